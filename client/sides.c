/* sides.c - on which side of a mapping with two its pages are held, and acquires and releases of them. See sides.h. */
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sides.h"

#define PAGES GAIA_CHUNK_PAGES

/* Holds that are not of all of a chunk. */
struct side_pages {
	unsigned held; /* pages of which n is not 0 */
	uint16_t n[PAGES];
	bool writes[PAGES]; /* since n was last 0 an acquire was for writing */
};

/* A range's part of a chunk: its pages [a, b). */
struct piece {
	struct side_chunk *c;
	uint64_t k;
	unsigned a, b;
};

/* The piece of the range from page *@at on, which becomes its end; false: there is none. *@at is 0 first. */
static bool next_piece(const struct mapping *m, const struct gaia_list_range *range, uint64_t *at, struct piece *out)
{
	uint64_t from = range->offset - m->start;
	uint64_t a = MAX(*at, from / GAIA_PAGE), end = (from + range->length + GAIA_PAGE - 1) / GAIA_PAGE;

	if (a >= end)
		return false;
	out->k = a / PAGES;
	out->c = &m->sides->chunk[out->k];
	out->a = (unsigned)(a % PAGES);
	out->b = (unsigned)MIN(PAGES, out->a + (end - a));
	*at = a + out->b - out->a;
	return true;
}

#define FOR_PIECES(m, range, n, p)                                    \
	for (size_t r_ = 0; r_ < (n); r_++)                           \
		for (uint64_t at_ = 0; next_piece(m, &(range)[r_], &at_, p);)

/* ---- holds of a chunk. sides.lock is held ---- */

static bool is_whole(const struct piece *p)
{
	return p->a == 0 && p->b == PAGES;
}

/* Have room for the holds of single pages. */
static bool have_pages(struct side_chunk *c)
{
	if (!c->pages)
		c->pages = calloc(1, sizeof(*c->pages));
	return c->pages;
}

static bool is_held(const struct side_chunk *c)
{
	return c->whole || (c->pages && c->pages->held);
}

static bool is_held_for_writing(const struct side_chunk *c)
{
	if (c->whole_writes)
		return true;
	return c->pages && memchr(c->pages->writes, true, sizeof(c->pages->writes));
}

static unsigned holds_of(const struct side_chunk *c, unsigned i)
{
	return c->whole + (c->pages ? c->pages->n[i] : 0);
}

static void count_up(const struct piece *p, bool writes)
{
	struct side_pages *pages = p->c->pages;

	if (is_whole(p)) {
		p->c->whole++;
		p->c->whole_writes |= writes;
		return;
	}
	for (unsigned i = p->a; i < p->b; i++) {
		pages->held += !pages->n[i]++;
		pages->writes[i] |= writes;
	}
}

/* From now on all are counted by pages. */
static void spread(struct side_chunk *c)
{
	for (unsigned i = 0; i < PAGES; i++) {
		c->pages->held += !c->pages->n[i];
		c->pages->n[i] += c->whole;
		c->pages->writes[i] |= c->whole_writes;
	}
	c->whole = 0;
	c->whole_writes = false;
}

static void count_down(const struct piece *p)
{
	struct side_chunk *c = p->c;
	struct side_pages *pages = c->pages;

	if (is_whole(p) && c->whole) {
		c->whole--;
		if (c->whole)
			return;
		for (unsigned i = 0; c->whole_writes && pages && i < PAGES; i++)
			pages->writes[i] |= pages->n[i] != 0;
		c->whole_writes = false;
		return;
	}
	if (c->whole)
		spread(c);
	for (unsigned i = p->a; pages && i < p->b; i++) {
		if (!pages->n[i] || --pages->n[i])
			continue;
		pages->writes[i] = false;
		pages->held--;
	}
}

/* ---- waiting ---- */

/* Something of the chunks has changed. The lock is held. */
static void wake(struct sides *s)
{
	s->changed++;
	if (s->waiting)
		syscall(SYS_futex, &s->changed, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* The lock is held, but for the time of waiting. -EINTR. */
static int wait_for_change(struct sides *s)
{
	uint32_t seen = s->changed;
	int err = 0;

	s->waiting++;
	pthread_mutex_unlock(&s->lock);
	if (syscall(SYS_futex, &s->changed, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0) && errno == EINTR)
		err = -EINTR;
	pthread_mutex_lock(&s->lock);
	s->waiting--;
	return err;
}

/* ---- one side ---- */

static struct mapping *mapping_of(struct mapping *m, enum side side)
{
	return side == SIDE_VIEW ? m->sides->reader : m;
}

static struct gaia_ioc_range io_of(const struct mapping *m, const struct gaia_list_range *range, int prot)
{
	return (struct gaia_ioc_range){
		.key = m->conn->key, .map = m->id, .offset = range->offset, .length = range->length, .prot = (unsigned)prot
	};
}

static int acquire_at_daemon(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot)
{
	struct gaia_ioc_range io;
	int err;

	if (n != 1)
		return list_acquire(m, range, n, prot);
	io = io_of(m, range, prot);
	err = range_acquire(m, &io);
	return err || !io.seq ? err : conn_wait(m->conn, io.seq, io.unanswered);
}

/* Holds count for detect.c on the side that can write alone. */
static int acquire_on(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot)
{
	int err;

	if (!n)
		return 0;
	detect_acquire(m, range, n, prot, 0);
	err = acquire_at_daemon(m, range, n, prot);
	detect_settled(m, range, n, !err);
	return err;
}

/* @push_err: as of range_release(); NULL: they were not used. */
static int release_on(struct mapping *m, const struct gaia_list_range *range, size_t n, int *push_err)
{
	struct gaia_ioc_range io;

	if (n != 1)
		return !n ? 0 : !push_err ? list_give_back(m, range, n) : list_release(m, range, n, push_err);
	io = io_of(m, range, 0);
	return !push_err ? range_give_back(m, &io) : range_release(m, &io, push_err);
}

#define TRIES 100u

/*
 * Give back what was acquired a moment ago, or is held on the other side now. If there is no room for it (ENOBUFS) for so long, these pages stay
 * held, and with them their memory, until they are released or unmapped; nothing else depends on it.
 */
static void undo(struct mapping *m, const struct gaia_list_range *range, size_t n)
{
	int err = n ? -EINTR : 0;

	for (unsigned tries = 0; (err == -EINTR || err == -ENOBUFS) && tries < TRIES;) {
		err = release_on(m, range, n, NULL);
		if (err != -ENOBUFS)
			continue;
		tries++;
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
}

static int show(struct mapping *m, uint64_t k, enum side side)
{
	int err;

	pthread_mutex_lock(&gaia_lock);
	err = side_show(m, k, side);
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

/* ---- a chunk changes sides ---- */

/* What is held of the chunk, as ranges, as many times as it is: *@out is to be freed. -ENOMEM. */
static int list_holds(const struct mapping *m, uint64_t k, struct gaia_list_range **out, size_t *n)
{
	const struct side_chunk *c = &m->sides->chunk[k];
	uint64_t start = m->start + k * GAIA_CHUNK;
	unsigned most = 0, j;
	size_t room = 0;

	*out = NULL;
	*n = 0;
	for (unsigned i = 0; i < PAGES; i++)
		most = MAX(most, holds_of(c, i));
	for (unsigned i = 0; i < PAGES; i = j) {
		for (j = i + 1; j < PAGES && holds_of(c, j) == holds_of(c, i); j++)
			;
		room += holds_of(c, i);
	}
	if (room > GAIA_LIST_MOST)
		return -E2BIG;
	*out = malloc(MAX(room, 1) * sizeof(**out));
	if (!*out)
		return -ENOMEM;
	/* Sorted by where they begin, which each of them does as often as it is held. */
	for (unsigned i = 0; i < PAGES; i = j) {
		for (j = i + 1; j < PAGES && holds_of(c, j) == holds_of(c, i); j++)
			;
		for (unsigned times = holds_of(c, i); times > 0; times--)
			(*out)[(*n)++] = (struct gaia_list_range){ start + i * (uint64_t)GAIA_PAGE, (j - i) * (uint64_t)GAIA_PAGE };
	}
	return 0;
}

static int acquire_and_show(struct mapping *m, uint64_t k, enum side to, const struct gaia_list_range *held, size_t n)
{
	int err = acquire_on(mapping_of(m, to), held, n, PROT_READ);

	if (err)
		return err;
	err = show(m, k, to);
	if (err)
		undo(mapping_of(m, to), held, n);
	return err;
}

/* Bring the chunk, and what is held of it for reading, to its other side. The lock is held, but dropped meanwhile. */
static int move(struct mapping *m, uint64_t k)
{
	struct sides *s = m->sides;
	struct side_chunk *c = &s->chunk[k];
	enum side from = c->held_on, to = from == SIDE_VIEW ? SIDE_REPLICA : SIDE_VIEW;
	struct gaia_list_range *held;
	size_t n;
	int err;

	c->moving = true;
	err = list_holds(m, k, &held, &n);
	pthread_mutex_unlock(&s->lock);
	if (!err)
		err = acquire_and_show(m, k, to, held, n);
	if (!err)
		undo(mapping_of(m, from), held, n);
	free(held);
	pthread_mutex_lock(&s->lock);
	c->moving = false;
	if (!err)
		c->held_on = to;
	wake(s);
	return err;
}

/* ---- which side ---- */

enum verdict { GO, WAIT, MOVE };

/* What an acquire has to do about the chunk. @stay: rather leave it where it is. *@side: if it may GO, where. */
static enum verdict look(const struct side_chunk *c, bool write, bool stay, enum side *side)
{
	*side = c->held_on;
	if (c->moving)
		return WAIT;
	if (write) {
		*side = SIDE_REPLICA;
		if (c->held_on == SIDE_REPLICA)
			return GO;
		return c->under_way ? WAIT : is_held(c) ? MOVE : GO;
	}
	if (c->held_on == SIDE_VIEW)
		return c->wanted ? WAIT : GO;
	if (c->under_way || c->wanted || is_held_for_writing(c))
		return GO;
	if (is_held(c))
		return stay ? GO : MOVE;
	*side = SIDE_VIEW;
	return GO;
}

static void add_wanted(struct mapping *m, const struct gaia_list_range *range, size_t n, int more)
{
	struct piece p;

	FOR_PIECES(m, range, n, &p)
		p.c->wanted += (unsigned)more;
}

/* One look at all chunks: 1: look again. The lock is held, but may be dropped meanwhile. */
static int look_at_all(struct mapping *m, const struct gaia_list_range *range, size_t n, bool write, bool *stay)
{
	enum side side;
	struct piece p;
	int err = 0, again = 0;

	FOR_PIECES(m, range, n, &p) {
		enum verdict what = look(p.c, write, *stay, &side);

		if (!is_whole(&p) && !have_pages(p.c))
			return -ENOMEM;
		if (what == GO)
			continue;
		again = 1;
		err = what == WAIT ? wait_for_change(m->sides) : move(m, p.k);
		/* Who only reads can read it where it is. */
		if (err && !write && what == MOVE && err != -EINTR && err != -ENOTCONN) {
			*stay = true;
			err = 0;
		}
		if (err)
			return err;
	}
	return again;
}

/* Choose sides for an acquire, and mark its chunks. */
static int begin_acquire(struct mapping *m, const struct gaia_list_range *range, size_t n, bool write)
{
	struct sides *s = m->sides;
	bool stay = false;
	struct piece p;
	int err;

	pthread_mutex_lock(&s->lock);
	if (write)
		add_wanted(m, range, n, 1);
	while ((err = look_at_all(m, range, n, write, &stay)) > 0)
		;
	FOR_PIECES(m, range, n, &p) {
		enum side side;

		if (err)
			break;
		(void)look(p.c, write, stay, &side);
		/* Those who have it marked read it without the lock. */
		if (p.c->held_on != side)
			p.c->held_on = side;
		p.c->under_way++;
	}
	if (write)
		add_wanted(m, range, n, -1);
	if (write && s->waiting)
		wake(s);
	pthread_mutex_unlock(&s->lock);
	return err;
}

/* Mark the chunks of a release. -ENOBUFS: it may cut holds of whole chunks, and there is no memory for that. */
static int begin_release(struct mapping *m, const struct gaia_list_range *range, size_t n)
{
	struct sides *s = m->sides;
	struct piece p;
	bool moving = true;
	int err = 0;

	pthread_mutex_lock(&s->lock);
	while (moving && !err) {
		moving = false;
		FOR_PIECES(m, range, n, &p) {
			moving |= p.c->moving;
			if (!is_whole(&p) && !have_pages(p.c))
				err = -ENOBUFS;
		}
		if (moving && !err)
			(void)wait_for_change(s);
	}
	if (!err)
		FOR_PIECES(m, range, n, &p)
			p.c->under_way++;
	pthread_mutex_unlock(&s->lock);
	return err;
}

enum outcome { NOTHING, ADDED, ADDED_TO_WRITE, TAKEN };

static void end(struct mapping *m, const struct gaia_list_range *range, size_t n, enum outcome outcome)
{
	struct sides *s = m->sides;
	struct piece p;

	pthread_mutex_lock(&s->lock);
	FOR_PIECES(m, range, n, &p) {
		p.c->under_way--;
		if (outcome == TAKEN)
			count_down(&p);
		else if (outcome != NOTHING)
			count_up(&p, outcome == ADDED_TO_WRITE);
	}
	wake(s);
	pthread_mutex_unlock(&s->lock);
}

/* ---- ranges, by sides ---- */

/* The parts of a list that lie on each side. */
struct by_side {
	const struct gaia_list_range *range[SIDES];
	size_t n[SIDES];
	struct gaia_list_range *own; /* to be freed */
};

/* Append the piece, or make the last longer if it @goes_on there. */
static void append(struct gaia_list_range *list, size_t *n, uint64_t from, uint64_t to, bool goes_on)
{
	if (goes_on)
		list[*n - 1].length += to - from;
	else
		list[(*n)++] = (struct gaia_list_range){ from, to - from };
}

/* The chunks are marked, so they stay on their sides. */
static int split(const struct mapping *m, const struct gaia_list_range *range, size_t n, struct by_side *out)
{
	size_t pieces[SIDES] = { 0 };
	struct gaia_list_range *list[SIDES];
	struct piece p;

	*out = (struct by_side){ .own = NULL };
	FOR_PIECES(m, range, n, &p)
		pieces[p.c->held_on]++;
	for (unsigned i = 0; i < SIDES; i++)
		if (pieces[i] && !pieces[1 - i]) {
			out->range[i] = range;
			out->n[i] = n;
			return 0;
		}
	out->own = malloc((pieces[SIDE_VIEW] + pieces[SIDE_REPLICA]) * sizeof(*out->own));
	if (!out->own)
		return -ENOMEM;
	out->range[SIDE_VIEW] = list[SIDE_VIEW] = out->own;
	out->range[SIDE_REPLICA] = list[SIDE_REPLICA] = out->own + pieces[SIDE_VIEW];
	for (size_t r = 0; r < n; r++) {
		uint64_t at = 0, start = m->start, end = range[r].offset + range[r].length;
		int last = -1;

		while (next_piece(m, &range[r], &at, &p)) {
			/* As long as it was asked for: of which pages it has only a part matters. */
			uint64_t from = MAX(range[r].offset, start + (p.k * PAGES + p.a) * GAIA_PAGE);
			uint64_t to = MIN(end, start + (p.k * PAGES + p.b) * GAIA_PAGE);
			enum side side = p.c->held_on;

			append(list[side], &out->n[side], from, to, last == (int)side);
			last = (int)side;
		}
	}
	return 0;
}

static int acquire_both(struct mapping *m, const struct by_side *by, int prot)
{
	int err = acquire_on(mapping_of(m, SIDE_REPLICA), by->range[SIDE_REPLICA], by->n[SIDE_REPLICA], prot);

	if (err)
		return err;
	err = acquire_on(mapping_of(m, SIDE_VIEW), by->range[SIDE_VIEW], by->n[SIDE_VIEW], prot);
	if (err)
		undo(mapping_of(m, SIDE_REPLICA), by->range[SIDE_REPLICA], by->n[SIDE_REPLICA]);
	return err;
}

#define SHOWN_AT_ONCE 64u /* with the lock held */

static int show_all(struct mapping *m, const struct gaia_list_range *range, size_t n)
{
	unsigned done = 0;
	struct piece p;
	int err = 0;

	pthread_mutex_lock(&gaia_lock);
	FOR_PIECES(m, range, n, &p) {
		if (++done % SHOWN_AT_ONCE == 0) {
			pthread_mutex_unlock(&gaia_lock);
			pthread_mutex_lock(&gaia_lock);
		}
		if (!err)
			err = side_show(m, p.k, p.c->held_on);
	}
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

int sides_acquire(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot)
{
	bool write = prot & PROT_WRITE;
	struct by_side by;
	int err = begin_acquire(m, range, n, write);

	if (err)
		return err;
	err = split(m, range, n, &by);
	if (!err)
		err = acquire_both(m, &by, prot);
	if (!err) {
		err = show_all(m, range, n);
		for (unsigned i = 0; err && i < SIDES; i++)
			undo(mapping_of(m, i), by.range[i], by.n[i]);
	}
	free(by.own);
	end(m, range, n, err ? NOTHING : write ? ADDED_TO_WRITE : ADDED);
	return err;
}

/* First what may fail without having changed anything: of the view nothing is published. *@none: nothing has changed. */
static int release_both(struct mapping *m, const struct by_side *by, int *push_err, bool *none)
{
	struct mapping *reader = mapping_of(m, SIDE_VIEW);
	bool both = by->n[SIDE_REPLICA] && by->n[SIDE_VIEW];
	int err = release_on(m, by->range[SIDE_REPLICA], by->n[SIDE_REPLICA], push_err), also;

	*none = by->n[SIDE_REPLICA] && wire_changed_nothing(err);
	if (*none)
		return err;
	if (both) {
		undo(reader, by->range[SIDE_VIEW], by->n[SIDE_VIEW]);
		return err;
	}
	also = release_on(reader, by->range[SIDE_VIEW], by->n[SIDE_VIEW], push_err);
	*none = by->n[SIDE_VIEW] && wire_changed_nothing(also);
	return err ? err : also;
}

/* @push_err: as of release_on(). */
static int release(struct mapping *m, const struct gaia_list_range *range, size_t n, int *push_err, struct by_side *by, bool *none)
{
	int err = begin_release(m, range, n);

	*none = true;
	by->own = NULL;
	if (err)
		return err;
	err = split(m, range, n, by) ? -ENOBUFS : release_both(m, by, push_err, none);
	end(m, range, n, *none ? NOTHING : TAKEN);
	return err;
}

int sides_release(struct mapping *m, const struct gaia_list_range *range, size_t n, int *push_err)
{
	struct by_side by;
	bool none;
	int err = release(m, range, n, push_err, &by, &none);

	/* The others have been noted. */
	if (!none && by.n[SIDE_VIEW])
		held_take_list(m, by.range[SIDE_VIEW], by.n[SIDE_VIEW]);
	free(by.own);
	return err;
}

int sides_give_back(struct mapping *m, const struct gaia_list_range *range, size_t n)
{
	struct by_side by;
	bool none;
	int err = release(m, range, n, NULL, &by, &none);

	free(by.own);
	return err;
}

int sides_advise(struct mapping *m, struct gaia_ioc_range *io)
{
	struct gaia_ioc_range reader = *io;
	int err;

	reader.map = m->sides->reader->id;
	err = wire_ioctl(m->file->fd, GAIA_IOC_ADVISE, &reader);
	/* What is read ahead is for reading. */
	return err || io->advice == GAIA_ADVISE_WILLNEED ? err : wire_ioctl(m->file->fd, GAIA_IOC_ADVISE, io);
}
