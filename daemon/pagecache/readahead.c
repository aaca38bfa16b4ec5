/*
 * readahead.c - brings pages to a device before they are acquired: because the program asked for them (GAIA_WILLNEED), or because its
 * acquires follow each other.
 *
 * A mapping's requests are ranges of pages. A worker takes them piece by piece, a part of one chunk each. It does nothing that costs
 * others anything, and gives up what it cannot have at once:
 *  - It takes file->range and page locks by trying. It takes only pages that nobody holds on the device and that a copy from home, the
 *    store or another device brings up to date: it fetches no releases, and merges nothing. It locks pages that the store has to be read
 *    for apart from the others, so that threads that want the others do not wait for the store.
 *  - It evicts nothing from home: it reads the store into free frames only. If few are free, it frees these again after the copy.
 *  - It pins nothing, because pins would count when it is decided whether an acquire fits: its page locks keep the replica (3).
 *  - It makes replicas in free memory, or in the place of readahead that was not used (replica_make_ahead()): not of what the
 *    mapping's own requests would bring again, and of another mapping or user only while that one has more of it. Its replicas are the first
 *    to be evicted, until an acquire has pinned them. No client maps them, so evicting them asks nobody. A replica that got no page goes again.
 *  - It hands nothing to clients. What it leaves stale an acquire finds stale; the rest is what the acquire itself would have brought.
 *  - Its workers do nothing else, so nobody waits for them; each user has a part of them.
 * After the piece at work it ends when the mapping ends, and pauses while somebody waits to truncate the file. Its errors are counted, and
 * not reported: an acquire that they concern finds them itself.
 *
 * It leaves files alone that CPU programs may write past the cache: an acquire reads these again, to compare.
 *
 * Streams. A mapping remembers its last few acquires. An acquire that begins in, or at the end of, an earlier one and goes further makes a
 * stream; so does the third of equal length at equal distances. An acquire that continues a stream requests the next ranges: as many pages
 * as the stream's window. The window is at first as long as an acquire (WINDOW_LEAST at least), doubles each time that the stream goes on, up
 * to WINDOW_MOST, and is halved when a replica of the mapping's was evicted unused, or found no room. Advice changes that for each range:
 * nothing is requested (GAIA_RANDOM; windows end where such a range begins), or the largest window from the first acquire on (GAIA_SEQUENTIAL).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/state.h"

#define REQUESTS 32u /* of a mapping that wait; more advice is not taken */
#define PIECES 8u    /* at work on them before other mappings have their turn */

/* Threads: in all, of all users together, of each user. The rest is for the owners of the mount. */
#define THREADS 8u
#define THREADS_USERS 6u
#define THREADS_EACH 2u

/* All threads together may have this part of home under way. If less is free, what they read does not stay there. */
#define HOME_SHARE 8u
#define PIECE_LEAST 32u

/* Of a stream, in pages. */
#define WINDOW_LEAST 256u
#define WINDOW_MOST 4096u
#define STREAMS 4u
#define HISTORY 8u
#define STEPS_MOST 64u		  /* of a stride, that are requested */
#define STRIDE_MOST (1ll << 28) /* pages */

#define ADVICES 16u /* ranges of a mapping with advice of their own */

struct request {
	uint64_t id;
	struct page_span rest; /* of the present range: what was not brought yet */
	int64_t stride;	       /* from this range to the next */
	uint64_t length, more; /* of each range; how many come after this one */
	struct page_span all;  /* from the first page of all ranges to the last */
	bool guess;	       /* it is not advice */
};

struct stream {
	struct page_span last; /* acquired; empty: there is no such stream */
	int64_t stride;	       /* from there to the next; 0: that begins where this one ends */
	uint64_t window;       /* pages to request beyond */
	uint64_t ahead;	       /* the end of what was requested; of strides: how many beyond the last */
	uint64_t used;	       /* readahead.n_acquires then */
};

struct advice {
	struct page_span span;
	unsigned how; /* GAIA_ADVISE_* */
};

/* What a mapping asks for. */
struct streams {
	struct page_span all; /* constant: the mapping */
	atomic_uint n_lost; /* times that something was evicted unused, or found no room, since a stream last went on */
	struct request request[REQUESTS]; /* in the order of their turns */
	unsigned n_requests;
	uint64_t last_id;
	struct stream stream[STREAMS];
	struct page_span history[HISTORY]; /* acquires that belong to no stream */
	uint64_t n_acquires, n_history;
	struct advice advice[ADVICES]; /* in order */
	unsigned n_advice;
};

/* Lives while its mapping does, or its job, or a replica that was made for it and not used. */
struct readahead {
	/* Constant. */
	struct mapping *mapping; /* stays until readahead_end() has returned */
	struct cache *cache;
	struct cache_user user;

	atomic_uint refs;

	/* file->lock. */
	bool gave_way; /* its job waits in file->gave_way */
	TAILQ_ENTRY(readahead) link;

	uint64_t n_unused; /* replicas that were made for it and not used; cache_device.lock */

	pthread_mutex_t lock; /* a leaf, inside cfile.lock and cache_device.lock */
	pthread_cond_t paused;
	/* lock. */
	bool queued;	  /* a job is in the pool, at work, or in file->gave_way */
	unsigned at_work; /* with the mapping: jobs, of which one may have ended but for this */
	bool ended;
	struct streams st;
	struct page_span piece;	  /* at work; empty: none is */
	struct page_span present; /* all of the request at work, which may have no more pieces */
};

static struct readahead *ra_get(struct readahead *ra)
{
	atomic_fetch_add(&ra->refs, 1);
	return ra;
}

static void ra_put(struct readahead *ra)
{
	if (atomic_fetch_sub(&ra->refs, 1) != 1)
		return;
	pthread_mutex_destroy(&ra->lock);
	pthread_cond_destroy(&ra->paused);
	free(ra);
}

/* ---- what was brought and is not used yet ---- */

void readahead_made(struct readahead *ra, struct replica *rep)
{
	rep->ahead = ra_get(ra);
	ra->n_unused++;
	user_ahead_more(rep->dev, &ra->user);
}

void readahead_ended(struct replica *rep, bool used)
{
	struct readahead *ra = rep->ahead;

	if (!ra)
		return;
	if (!used)
		atomic_fetch_add(&ra->st.n_lost, 1);
	rep->ahead = NULL;
	ra->n_unused--;
	user_ahead_less(rep->dev, &ra->user);
	ra_put(ra);
}

bool readahead_has_room(const struct readahead *ra, const struct cache_device *dev)
{
	return user_may_ahead(dev, &ra->user);
}

static void brought_free(struct replica *rep)
{
	free(rep->brought);
	rep->brought = NULL;
}

static void note_brought(struct replica *rep, unsigned i)
{
	if (!rep->brought)
		rep->brought = xcalloc(1, sizeof(*rep->brought));
	if (bit_test(rep->brought->pages, i))
		return;
	bit_set(rep->brought->pages, i);
	rep->brought->n++;
}

void readahead_count(struct replica *rep, unsigned a, unsigned b)
{
	uint64_t used = 0, wasted = 0;

	for (unsigned i = a; rep->brought && (i = bits_first(rep->brought->pages, i, b)) < b; i++) {
		if (replica_is_current(rep, i, i + 1, false))
			used++;
		else
			wasted++;
		bit_clear(rep->brought->pages, i);
		if (--rep->brought->n == 0)
			brought_free(rep);
	}
	if (used > 0)
		count(CTR_readahead_used, used);
	if (wasted > 0)
		count(CTR_readahead_wasted, wasted);
}

void readahead_dropped(struct replica *rep)
{
	if (rep->brought)
		count(CTR_readahead_wasted, rep->brought->n);
	brought_free(rep);
}

static bool meet(struct page_span x, struct page_span y)
{
	return x.a < y.b && y.a < x.b;
}

/* From what the stream acquired last to the end of what was requested for it. */
static struct page_span stream_reach(const struct stream *s)
{
	int64_t far = s->stride * (int64_t)s->ahead;

	if (s->stride == 0)
		return (struct page_span){ s->last.a, MAX(s->ahead, s->last.b) };
	if (far < 0)
		return (struct page_span){ (uint64_t)-far < s->last.a ? s->last.a - (uint64_t)-far : 0, s->last.b };
	return (struct page_span){ s->last.a, s->last.b + (uint64_t)far };
}

/* Whether requests name some of the pages, or a stream will come to them. */
static bool streams_want(const struct streams *st, struct page_span pages)
{
	bool want = false;

	for (unsigned k = 0; k < st->n_requests && !want; k++)
		want = meet(st->request[k].all, pages);
	for (unsigned k = 0; k < STREAMS && !want; k++)
		want = meet(stream_reach(&st->stream[k]), pages);
	return want;
}

/* Whether the requests name some of the chunk, or a stream will come to it: then it is not given up for others of them. cache_device.lock is held. */
static bool is_asked_for(struct readahead *ra, uint64_t index)
{
	struct page_span chunk = { index * GAIA_CHUNK_PAGES, (index + 1) * GAIA_CHUNK_PAGES };
	bool asked;

	pthread_mutex_lock(&ra->lock);
	asked = meet(ra->present, chunk) || streams_want(&ra->st, chunk);
	pthread_mutex_unlock(&ra->lock);
	return asked;
}

/* Whether @other has so much more read ahead and not used that it is still no less after one of these has become @ra's. */
static bool has_more(const struct readahead *other, const struct readahead *ra, const struct cache_device *dev)
{
	if (other->user.uid == ra->user.uid)
		return other->n_unused > ra->n_unused + 1;
	return user_ahead(dev, &other->user) > user_ahead(dev, &ra->user) + 1;
}

static bool has_ended(struct readahead *ra)
{
	bool ended;

	pthread_mutex_lock(&ra->lock);
	ended = ra->ended;
	pthread_mutex_unlock(&ra->lock);
	return ended;
}

bool readahead_may_replace(struct readahead *ra, const struct replica *rep)
{
	const struct mapping *m = ra->mapping;

	if (rep->chunk->file == m->file && rep->only == m->readers && is_asked_for(ra, rep->chunk->index))
		return false;
	if (!user_ahead_helps(rep->dev, &ra->user, &rep->ahead->user))
		return false;
	return rep->ahead == ra || has_ended(rep->ahead) || has_more(rep->ahead, ra, rep->dev);
}

/* ---- one piece ---- */

static unsigned piece_pages(const struct cache *c)
{
	return (unsigned)MAX(MIN(c->frames.budget / HOME_SHARE / THREADS, (uint64_t)GAIA_CHUNK_PAGES), (uint64_t)PIECE_LEAST);
}

/* How many pages home can take without storing or evicting anything. */
static uint64_t home_room(struct cache *c)
{
	uint64_t stay = atomic_load(&c->n_dirty) + atomic_load(&c->n_kept), used = atomic_load(&c->frames.used);

	return used < c->frames.budget && stay <= c->frames.budget / 2 ? c->frames.budget - used : 0;
}

/* Whether some of the stale pages is to be copied, unless somebody holds it. chunk->lock is held. */
static bool any_to_send(struct replica *rep, unsigned a, unsigned b, bool absent, const uint64_t *stale)
{
	for (unsigned i = a; (i = bits_first(stale, i, b)) < b; i++)
		if (page_present(rep->chunk, i) != absent && replica_step(rep, i, false) == TRACK_SEND)
			return true;
	return false;
}

/*
 * Lock those of pages [a, b) that are to be copied to the replica, and that nobody of the device holds or has locked: a bit each. How many. Only
 * those that home has, or (@absent) only those that it lacks, as many as there is room for. chunk->lock is held.
 */
static unsigned pages_take(struct readahead *ra, struct replica *rep, unsigned a, unsigned b, bool absent, uint64_t *pages)
{
	struct chunk *ch = rep->chunk;
	uint64_t stale[GAIA_CHUNK_PAGES / 64] = { 0 }, held[GAIA_CHUNK_PAGES / 64] = { 0 };
	uint64_t most = absent ? home_room(ch->file->cache) : GAIA_CHUNK_PAGES;
	unsigned n = 0;

	replica_not_current(rep, a, b, false, stale);
	if (!any_to_send(rep, a, b, absent, stale))
		return 0;
	/* Then it is known who holds what. */
	chunk_unready(ch);
	replica_held(rep, a, b, held);
	for (unsigned i = a; (i = bits_first(stale, i, b)) < b; i++) {
		if (bit_test(held, i) || page_limit(ch, i) == 0 || page_present(ch, i) == absent || replica_step(rep, i, false) != TRACK_SEND)
			continue;
		if (n == most) {
			atomic_fetch_add(&ra->st.n_lost, 1);
			break;
		}
		if (!page_trylock(ch, i))
			continue;
		bit_set(pages, i);
		n++;
	}
	return n;
}

/*
 * Home lacked page i: it need not keep it. Of files that others may write home's bytes are what the replica is compared with. The page is locked;
 * chunk->lock is held.
 */
static void home_lacks_again(struct chunk *ch, unsigned i)
{
	if (page_present(ch, i) && !page_dirty(ch, i) && !cfile_is_passthrough(ch->file))
		page_drop(ch, i);
}

/* The pages have been brought, or not: note it, and unlock them. @absent: home lacked them. */
static void pages_give(struct replica *rep, unsigned a, unsigned b, bool absent, const uint64_t *pages)
{
	struct chunk *ch = rep->chunk;
	struct cache *c = ch->file->cache;
	bool drop = absent && home_room(c) < c->frames.budget / HOME_SHARE;
	unsigned n = 0, j;

	pthread_mutex_lock(&ch->lock);
	replica_filled(rep);
	for (unsigned i = a; (i = bits_first(pages, i, b)) < b; i = j) {
		for (j = i; j < b && bit_test(pages, j); j++)
			;
		replica_acquired(rep, i, j);
		for (unsigned k = i; k < j; k++) {
			if (drop)
				home_lacks_again(ch, k);
			if (!replica_is_current(rep, k, k + 1, false))
				continue;
			note_brought(rep, k);
			n++;
		}
		pages_unlock(ch, i, j);
	}
	pthread_mutex_unlock(&ch->lock);
	if (n > 0)
		count(CTR_readahead, n);
	chunk_account(ch);
	if (drop)
		chunk_unlist(ch);
}

/* Bring those of pages [a, b) of the chunk that home has, or lacks, as far as they are to be had. -ENOENT: it has no replica. file->range is held. */
static int chunk_bring(struct mapping *m, struct chunk *ch, unsigned a, unsigned b, bool absent)
{
	uint64_t pages[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct replica *rep;
	unsigned n = 0;
	bool there;
	int err;

	pthread_mutex_lock(&ch->lock);
	rep = replica_to_fill(m, ch, &there);
	if (rep)
		n = pages_take(m->readahead, rep, a, b, absent, pages);
	/* Once no page of it is locked it may go. */
	if (rep && n == 0)
		replica_filled(rep);
	pthread_mutex_unlock(&ch->lock);
	if (n == 0)
		return there ? 0 : -ENOENT;
	(void)fault_point("readahead.bring");
	err = replica_bring_some(rep, a, b, pages);
	pages_give(rep, a, b, absent, pages);
	if (err == -ENOBUFS)
		atomic_fetch_add(&m->readahead->st.n_lost, 1);
	return err == -ENOBUFS ? 0 : err;
}

static int bring_once(struct mapping *m, struct page_span piece)
{
	uint64_t index = piece.a / GAIA_CHUNK_PAGES, start = index * GAIA_CHUNK_PAGES;
	unsigned a = (unsigned)(piece.a - start), b = (unsigned)(piece.b - start);
	struct chunk *ch = chunk_get(m->file, index, false);
	int err = -ENOENT;

	if (!ch)
		return err;
	err = chunk_bring(m, ch, a, b, false);
	if (!err)
		err = chunk_bring(m, ch, a, b, true);
	chunk_put(ch);
	return err;
}

/* Whether something of the chunk could be brought: home or a device has some, or home has room. */
static bool may_bring(struct mapping *m, uint64_t index)
{
	struct chunk *ch;
	bool may = home_room(m->file->cache) > 0;

	if (may)
		return true;
	atomic_fetch_add(&m->readahead->st.n_lost, 1);
	ch = chunk_get(m->file, index, false);
	if (!ch)
		return false;
	pthread_mutex_lock(&ch->lock);
	may = ch->n_frames > 0;
	pthread_mutex_unlock(&ch->lock);
	chunk_put(ch);
	return may;
}

/* Who waits to truncate the file, and all who wait behind, go first. */
static bool range_try(struct cfile *f)
{
	return atomic_load(&f->range_waiters) == 0 && !pthread_rwlock_tryrdlock(&f->range);
}

/* 0 also if it was left alone; OVER or an error: so is the rest of the request. GAVE_WAY: it is to be tried again, when range is free. */
enum { OVER = 1, GAVE_WAY };
static int bring(struct readahead *ra, struct page_span piece)
{
	struct mapping *m = ra->mapping;
	struct cfile *f = m->file;
	uint64_t index = piece.a / GAIA_CHUNK_PAGES;
	int err;

	if (atomic_load(&m->dev->gone) || passthrough_compares(f) || piece.a >= (cfile_size(f) + GAIA_PAGE - 1) / GAIA_PAGE)
		return OVER;
	if (!range_try(f))
		return GAVE_WAY;
	err = bring_once(m, piece);
	pthread_rwlock_unlock(&f->range);
	if (err != -ENOENT)
		return err;
	if (!may_bring(m, index))
		return 0;
	err = replica_make_ahead(m, index);
	if (err)
		return err;
	if (range_try(f)) {
		err = bring_once(m, piece);
		pthread_rwlock_unlock(&f->range);
	} else {
		err = GAVE_WAY;
	}
	replica_drop_empty(m, index);
	return err == -ENOENT ? 0 : err;
}

/* ---- requests ---- */

/* The lock is held in the next ones. */
static void request_remove(struct streams *st, unsigned k)
{
	st->n_requests--;
	memmove(&st->request[k], &st->request[k + 1], (st->n_requests - k) * sizeof(st->request[0]));
}

static void request_drop(struct streams *st, uint64_t id)
{
	for (unsigned k = 0; k < st->n_requests; k++)
		if (st->request[k].id == id) {
			request_remove(st, k);
			return;
		}
}

/* Pages of one range of a request, from the present one on. */
static struct page_span nth_range(const struct request *rq, uint64_t n)
{
	uint64_t b = rq->rest.b + n * (uint64_t)rq->stride;

	return n == 0 ? rq->rest : (struct page_span){ b - rq->length, b };
}

/* Make range n the present one, with @more to come. */
static void request_from(struct request *rq, uint64_t n, uint64_t more)
{
	struct page_span last;

	rq->rest = nth_range(rq, n);
	rq->more = more;
	last = nth_range(rq, more);
	rq->all = (struct page_span){ MIN(rq->rest.a, last.a), MAX(rq->rest.b, last.b) };
}

/* The first request's next piece. */
static uint64_t next_piece(struct readahead *ra)
{
	struct request *rq = &ra->st.request[0];
	uint64_t end = ROUND_DOWN(rq->rest.a, GAIA_CHUNK_PAGES) + GAIA_CHUNK_PAGES;

	ra->piece = (struct page_span){ rq->rest.a, MIN(MIN(rq->rest.b, end), rq->rest.a + piece_pages(ra->cache)) };
	ra->present = rq->all;
	return rq->id;
}

/* It was brought: the request, if it is still there, has its next turn after the others. */
static void piece_done(struct streams *st, uint64_t id, struct page_span piece)
{
	struct request rq;
	unsigned k = 0;

	while (k < st->n_requests && !(st->request[k].id == id && st->request[k].rest.a == piece.a))
		k++;
	if (k == st->n_requests)
		return;
	rq = st->request[k];
	request_remove(st, k);
	rq.rest.a = MIN(piece.b, rq.rest.b);
	if (rq.rest.a == rq.rest.b && rq.more > 0) {
		rq.rest = nth_range(&rq, 1);
		rq.more--;
	}
	if (rq.rest.a < rq.rest.b)
		st->request[st->n_requests++] = rq;
}

/* Whether it gave way. */
static bool work(struct readahead *ra)
{
	uint64_t id;
	int err = 0;

	for (unsigned k = 0; k < PIECES && ra->st.n_requests > 0 && !ra->ended && err != GAVE_WAY; k++) {
		struct page_span piece;

		id = next_piece(ra);
		piece = ra->piece;
		pthread_mutex_unlock(&ra->lock);
		pthread_rwlock_rdlock(&ra->cache->round);
		err = bring(ra, piece);
		pthread_rwlock_unlock(&ra->cache->round);
		if (err < 0)
			count(CTR_readahead_failed, 1);
		if (err == -ENOMEM)
			atomic_fetch_add(&ra->st.n_lost, 1);
		pthread_mutex_lock(&ra->lock);
		ra->piece = (struct page_span){ 0, 0 };
		pthread_cond_broadcast(&ra->paused);
		if (err == 0)
			piece_done(&ra->st, id, piece);
		else if (err != GAVE_WAY)
			request_drop(&ra->st, id);
	}
	return err == GAVE_WAY;
}

static void run(void *arg);

static void submit(struct readahead *ra)
{
	pool_submit_for(ra->cache->readahead, ra->user.uid, ra->user.owner, run, ra);
}

void readahead_wake(struct cfile *f)
{
	TAILQ_HEAD(, readahead) woken = TAILQ_HEAD_INITIALIZER(woken);
	struct readahead *ra;

	pthread_mutex_lock(&f->lock);
	while ((ra = TAILQ_FIRST(&f->gave_way))) {
		TAILQ_REMOVE(&f->gave_way, ra, link);
		ra->gave_way = false;
		TAILQ_INSERT_TAIL(&woken, ra, link);
	}
	pthread_mutex_unlock(&f->lock);
	/* As soon as it is submitted it may give way again. */
	while ((ra = TAILQ_FIRST(&woken))) {
		TAILQ_REMOVE(&woken, ra, link);
		submit(ra);
	}
}

/* The job waits until range is not held exclusively any more. */
static void give_way(struct readahead *ra)
{
	struct cfile *f = ra->mapping->file;

	pthread_mutex_lock(&f->lock);
	ra->gave_way = true;
	TAILQ_INSERT_TAIL(&f->gave_way, ra, link);
	pthread_mutex_unlock(&f->lock);
	/* Whoever had it, or waited for it, may have been done before that. */
	if (range_try(f)) {
		pthread_rwlock_unlock(&f->range);
		readahead_wake(f);
	}
}

/* The job ends. */
static void job_end(struct readahead *ra)
{
	struct cache *c = ra->cache;

	ra_put(ra);
	atomic_fetch_sub(&c->n_readahead, 1);
}

static void run(void *arg)
{
	struct readahead *ra = ra_get(arg);
	bool more, waits;

	(void)fault_point("readahead.begin");
	pthread_mutex_lock(&ra->lock);
	ra->at_work++;
	waits = work(ra);
	more = ra->st.n_requests > 0 && !ra->ended;
	waits &= more;
	ra->queued = more;
	if (waits) {
		pthread_mutex_unlock(&ra->lock);
		give_way(ra);
		pthread_mutex_lock(&ra->lock);
	}
	ra->at_work--;
	pthread_cond_broadcast(&ra->paused);
	pthread_mutex_unlock(&ra->lock);
	if (more && !waits)
		submit(ra);
	else if (!more)
		job_end(ra);
	ra_put(ra);
}

/* False: it lengthens the last one; or there are too many, and it is dropped. */
static bool request_add(struct streams *st, struct request rq)
{
	struct request *last = st->n_requests > 0 ? &st->request[st->n_requests - 1] : NULL;

	if (last && rq.more == 0 && last->more == 0 && last->rest.b == rq.rest.a && last->guess == rq.guess) {
		last->rest.b = last->all.b = rq.rest.b;
		return false;
	}
	if (st->n_requests == REQUESTS)
		return false;
	rq.id = ++st->last_id;
	st->request[st->n_requests++] = rq;
	return true;
}

static void ask(struct readahead *ra, struct request rq)
{
	bool begin;

	pthread_mutex_lock(&ra->lock);
	begin = request_add(&ra->st, rq) && !ra->queued;
	if (begin) {
		ra->queued = true;
		ra_get(ra);
		atomic_fetch_add(&ra->cache->n_readahead, 1);
	}
	pthread_mutex_unlock(&ra->lock);
	if (begin)
		submit(ra);
}

/* ---- streams. The lock is held, unless stated otherwise ---- */

static unsigned advice_at(const struct streams *st, uint64_t page)
{
	for (unsigned k = 0; k < st->n_advice; k++)
		if (page >= st->advice[k].span.a && page < st->advice[k].span.b)
			return st->advice[k].how;
	return GAIA_ADVISE_NORMAL;
}

static bool is_stream(const struct stream *s)
{
	return s->last.a < s->last.b;
}

/* Whether @next goes on where @last ended, or overlaps it, and ends later. */
static bool follows(struct page_span last, struct page_span next)
{
	return next.a > last.a && next.a <= last.b && next.b > last.b;
}

static bool continues(const struct stream *s, struct page_span span)
{
	if (!is_stream(s))
		return false;
	return s->stride == 0 ? follows(s->last, span) : span.a == s->last.a + (uint64_t)s->stride;
}

/* The stream that has not gone on for longest becomes a new one. */
static struct stream *stream_begin(struct streams *st, struct page_span span, int64_t stride)
{
	struct stream *s = &st->stream[0];

	for (unsigned k = 1; k < STREAMS; k++)
		if (st->stream[k].used < s->used)
			s = &st->stream[k];
	*s = (struct stream){ .last = span, .stride = stride, .window = MIN(MAX(span.b - span.a, (uint64_t)WINDOW_LEAST), (uint64_t)WINDOW_MOST) };
	return s;
}

/* Whether @span is the third of equal length at equal distances: the distance, or 0. */
static int64_t find_stride(const struct streams *st, struct page_span span)
{
	uint64_t length = span.b - span.a;

	for (unsigned k = 0; k < HISTORY; k++)
		for (unsigned j = 0; j < HISTORY; j++) {
			struct page_span one = st->history[j], two = st->history[k];
			int64_t stride = (int64_t)(span.a - two.a);

			if (two.b - two.a == length && one.b - one.a == length && stride != 0 && two.a - one.a == (uint64_t)stride &&
			    stride <= STRIDE_MOST && stride >= -STRIDE_MOST)
				return stride;
		}
	return 0;
}

/* A stream that begins with @span, after what is remembered; NULL: there is none. */
static struct stream *find_stream(struct streams *st, struct page_span span, unsigned advice)
{
	struct stream *s = NULL;
	bool known = false;
	int64_t stride;

	for (unsigned k = 0; k < HISTORY && !s; k++) {
		known |= st->history[k].a == span.a && st->history[k].b == span.b;
		if (follows(st->history[k], span))
			s = stream_begin(st, span, 0);
	}
	stride = s || known ? 0 : find_stride(st, span);
	if (stride != 0)
		s = stream_begin(st, span, stride);
	if (!s && advice == GAIA_ADVISE_SEQUENTIAL)
		s = stream_begin(st, span, 0);
	if (s && advice == GAIA_ADVISE_SEQUENTIAL)
		s->window = WINDOW_MOST;
	if (!s && !known)
		st->history[st->n_history++ % HISTORY] = span;
	return s;
}

static void stream_goes_on(struct streams *st, struct stream *s, struct page_span span)
{
	bool lost = atomic_exchange(&st->n_lost, 0) > 0;

	s->window = lost ? MAX(s->window / 2, (uint64_t)WINDOW_LEAST) : MIN(2 * s->window, (uint64_t)WINDOW_MOST);
	s->last = span;
	if (s->stride != 0 && s->ahead > 0)
		s->ahead--;
	/* What was lost is asked for again; what is there costs a look. */
	if (lost)
		s->ahead = 0;
}

/* End @rq where it comes to pages that are used at random. False: nothing of it is left. */
static bool request_avoid(const struct streams *st, struct request *rq)
{
	for (unsigned k = 0; k < st->n_advice; k++) {
		struct page_span span = st->advice[k].span;
		uint64_t n = 0;

		if (st->advice[k].how != GAIA_ADVISE_RANDOM)
			continue;
		while (n <= rq->more && !meet(nth_range(rq, n), span))
			n++;
		if (n > rq->more)
			continue;
		if (n == 0 && (rq->more > 0 || rq->rest.a >= span.a))
			return false;
		if (n == 0)
			rq->rest.b = span.a;
		else
			rq->more = n - 1;
	}
	return true;
}

/* Cut @rq to the mapping, and as advice says. False: nothing of it is left. */
static bool request_clip(const struct streams *st, struct request *rq)
{
	uint64_t first = st->all.a, end = st->all.b;

	if (rq->rest.a < first || rq->rest.a >= end)
		return false;
	if (rq->stride > 0)
		rq->more = MIN(rq->more, (end - 1 - rq->rest.a) / (uint64_t)rq->stride);
	else if (rq->stride < 0)
		rq->more = MIN(rq->more, (rq->rest.a - first) / (uint64_t)-rq->stride);
	if (rq->more == 0)
		rq->rest.b = MIN(rq->rest.b, end);
	else if (rq->stride > 0 && rq->rest.b + rq->more * (uint64_t)rq->stride > end)
		rq->more--;
	if (!request_avoid(st, rq))
		return false;
	request_from(rq, 0, rq->more);
	return true;
}

/* What the stream needs now. False: nothing; it asks for no less than half a window. */
static bool stream_asks(const struct streams *st, struct stream *s, struct request *rq)
{
	uint64_t length = MIN(s->last.b - s->last.a, (uint64_t)WINDOW_MOST), steps;

	*rq = (struct request){ .stride = s->stride, .length = length, .guess = true };
	if (s->stride == 0) {
		s->ahead = MAX(s->ahead, s->last.b);
		rq->rest = (struct page_span){ s->ahead, s->last.b + s->window };
		if (rq->rest.a >= rq->rest.b || rq->rest.b - rq->rest.a < s->window / 2)
			return false;
		s->ahead = rq->rest.b;
		return request_clip(st, rq);
	}
	steps = MIN(MAX(s->window / length, 1u), (uint64_t)STEPS_MOST);
	if (s->ahead >= steps || steps - s->ahead < steps / 2)
		return false;
	rq->rest.a = s->last.a + (s->ahead + 1) * (uint64_t)s->stride;
	rq->rest.b = rq->rest.a + length;
	rq->more = steps - s->ahead - 1;
	s->ahead = steps;
	return request_clip(st, rq);
}

/* @span was acquired. Whether @rq should be asked for now. */
static bool streams_acquired(struct streams *st, struct page_span span, struct request *rq)
{
	unsigned advice = advice_at(st, span.a);
	struct stream *s = NULL;
	bool again = false;

	for (unsigned k = 0; k < STREAMS; k++)
		again |= st->stream[k].last.a == span.a && st->stream[k].last.b == span.b;
	for (unsigned k = 0; k < STREAMS && !s && advice != GAIA_ADVISE_RANDOM; k++)
		if (continues(&st->stream[k], span)) {
			s = &st->stream[k];
			stream_goes_on(st, s, span);
		}
	if (!s && !again && advice != GAIA_ADVISE_RANDOM)
		s = find_stream(st, span, advice);
	if (!s)
		return false;
	s->used = ++st->n_acquires;
	return stream_asks(st, s, rq);
}

void readahead_acquired(struct mapping *m, struct page_span span)
{
	struct readahead *ra = m->readahead;
	struct request rq;
	bool asks;

	pthread_mutex_lock(&ra->lock);
	asks = streams_acquired(&ra->st, span, &rq);
	pthread_mutex_unlock(&ra->lock);
	/* Mostly what goes round in a file that is all there. */
	if (asks && !(rq.stride == 0 && ready_has(m, rq.rest)))
		ask(ra, rq);
}

/* ---- advice ---- */

/* Take the ranges of @rq that meet @span out of it, or, if it is one range, the pages: what is left before, and after; whether there is any. */
static bool request_split(struct request *rq, struct page_span span, struct request *after, bool *has_after)
{
	uint64_t a = 0, b;
	bool before;

	*after = *rq;
	if (rq->more == 0) {
		rq->all = rq->rest = (struct page_span){ rq->rest.a, MIN(rq->rest.b, span.a) };
		after->all = after->rest = (struct page_span){ MAX(after->rest.a, span.b), after->rest.b };
		*has_after = after->rest.a < after->rest.b;
		return rq->rest.a < rq->rest.b;
	}
	while (a <= rq->more && !meet(nth_range(rq, a), span))
		a++;
	for (b = a; b <= rq->more && meet(nth_range(rq, b), span); b++)
		;
	before = a > 0;
	*has_after = b <= rq->more;
	if (*has_after)
		request_from(after, b, rq->more - b);
	if (before)
		request_from(rq, 0, a - 1);
	return before;
}

/* Ask for no pages of @span any more; @guesses: but for those that the program asked for. */
static void requests_cut(struct streams *st, struct page_span span, bool guesses)
{
	for (unsigned k = st->n_requests; k-- > 0;) {
		struct request rq = st->request[k], after;
		bool before, has_after;

		if ((guesses && !rq.guess) || !meet(rq.all, span))
			continue;
		before = request_split(&rq, span, &after, &has_after);
		if (before || has_after)
			st->request[k] = before ? rq : after;
		else
			request_remove(st, k);
		if (before && has_after && st->n_requests < REQUESTS) {
			after.id = ++st->last_id;
			st->request[st->n_requests++] = after;
		}
	}
}

void readahead_will_need(struct mapping *m, struct page_span span)
{
	ask(m->readahead, (struct request){ .rest = span, .all = span });
}

void readahead_cancel(struct mapping *m, struct page_span span)
{
	struct readahead *ra = m->readahead;

	pthread_mutex_lock(&ra->lock);
	requests_cut(&ra->st, span, false);
	while (meet(ra->piece, span))
		pthread_cond_wait(&ra->paused, &ra->lock);
	pthread_mutex_unlock(&ra->lock);
}

/* Add [a, b), if it is not empty, behind what is there already. */
static void advice_add(struct advice *out, unsigned *n, uint64_t a, uint64_t b, unsigned how)
{
	if (a >= b)
		return;
	if (*n > 0 && out[*n - 1].span.b == a && out[*n - 1].how == how)
		out[*n - 1].span.b = b;
	else
		out[(*n)++] = (struct advice){ { a, b }, how };
}

/* The advice for all pages but those of @span, and, unless it is the usual, @how for these, into @out: how many. */
static unsigned advice_with(const struct streams *st, struct page_span span, unsigned how, struct advice *out)
{
	unsigned n = 0;

	for (unsigned k = 0; k < st->n_advice; k++)
		advice_add(out, &n, st->advice[k].span.a, MIN(st->advice[k].span.b, span.a), st->advice[k].how);
	if (how != GAIA_ADVISE_NORMAL)
		advice_add(out, &n, span.a, span.b, how);
	for (unsigned k = 0; k < st->n_advice; k++)
		advice_add(out, &n, MAX(st->advice[k].span.a, span.b), st->advice[k].span.b, st->advice[k].how);
	return n;
}

/* From now on advice for the pages is @how, GAIA_ADVISE_*. -EAGAIN: too many ranges have advice of their own. */
static int streams_advise(struct streams *st, struct page_span span, unsigned how)
{
	struct advice now[2 * ADVICES + 1];
	unsigned n = advice_with(st, span, how, now);

	if (n > ADVICES)
		return -EAGAIN;
	memcpy(st->advice, now, n * sizeof(now[0]));
	st->n_advice = n;
	if (how == GAIA_ADVISE_RANDOM)
		requests_cut(st, span, true);
	for (unsigned k = 0; k < STREAMS && how == GAIA_ADVISE_RANDOM; k++)
		if (meet(st->stream[k].last, span))
			st->stream[k] = (struct stream){ .window = 0 };
	return 0;
}

int readahead_advise(struct mapping *m, struct page_span span, unsigned how)
{
	struct readahead *ra = m->readahead;
	int err;

	pthread_mutex_lock(&ra->lock);
	err = streams_advise(&ra->st, span, how);
	pthread_mutex_unlock(&ra->lock);
	return err;
}

/* ---- life ---- */

int readahead_begin(struct mapping *m, struct cache *c, struct cache_user user)
{
	struct readahead *ra = calloc(1, sizeof(*ra));

	if (!ra)
		return -ENOMEM;
	ra->mapping = m;
	ra->st.all = (struct page_span){ m->off / GAIA_PAGE, (m->off + m->len + GAIA_PAGE - 1) / GAIA_PAGE };
	ra->cache = c;
	ra->user = user;
	atomic_init(&ra->refs, 1);
	pthread_mutex_init(&ra->lock, NULL);
	pthread_cond_init(&ra->paused, NULL);
	m->readahead = ra;
	return 0;
}

void readahead_cease(struct mapping *m)
{
	pthread_mutex_lock(&m->readahead->lock);
	m->readahead->ended = true;
	pthread_mutex_unlock(&m->readahead->lock);
}

/* A job that waits in file->gave_way ends there. */
static void end_waiting(struct readahead *ra, struct cfile *f)
{
	bool waits;

	pthread_mutex_lock(&f->lock);
	waits = ra->gave_way;
	if (waits)
		TAILQ_REMOVE(&f->gave_way, ra, link);
	ra->gave_way = false;
	pthread_mutex_unlock(&f->lock);
	if (waits)
		job_end(ra);
}

void readahead_end(struct mapping *m)
{
	struct readahead *ra = m->readahead;

	readahead_cease(m);
	pthread_mutex_lock(&ra->lock);
	while (ra->at_work > 0)
		pthread_cond_wait(&ra->paused, &ra->lock);
	pthread_mutex_unlock(&ra->lock);
	if (m->file)
		end_waiting(ra, m->file);
	ra_put(ra);
}

int readahead_start(struct cache *c)
{
	int err = pool_create("gaia-readahead", THREADS, &c->readahead);

	if (!err)
		pool_share(c->readahead, THREADS_EACH, THREADS_USERS);
	return err;
}

void readahead_stop(struct cache *c)
{
	pool_destroy(c->readahead);
}
