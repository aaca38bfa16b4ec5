/*
 * acquire.c - acquires, of one range or of a list of ranges (segments.h); and advice.
 *
 * Pin replicas for all of it; then bring their pages up to date and note what is held, many chunks at a time (bring.c); last
 * hand chunks that the client does not map yet to it (handover.c). All holds are coming until it is decided that the acquire has
 * succeeded; else they are taken back.
 */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/acquire.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/probe.h"
#include "base/trace.h"
#include "base/util.h"
#include "pagecache/acquiring.h"
#include "pagecache/ahead.h"
#include "pagecache/bring.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/grant.h"
#include "pagecache/handover.h"
#include "pagecache/mapping.h"
#include "pagecache/passthrough.h"
#include "pagecache/pins.h"
#include "pagecache/promises.h"
#include "pagecache/range.h"
#include "pagecache/readahead.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/room.h"
#include "pagecache/scrub.h"
#include "pagecache/segments.h"
#include "pagecache/users.h"

/* ---- parts: what is acquired of each chunk ---- */

static void part_pin(struct part *pt)
{
	pthread_mutex_lock(&pt->ch->lock);
	pt->grant->to_come++;
	grant_repin(pt->grant);
	pthread_mutex_unlock(&pt->ch->lock);
}

/* Take back what this acquire granted; the client has not been told of it. */
static void part_undo(struct part *pt)
{
	struct chunk *ch = pt->ch;
	struct grant *g = pt->grant;
	unsigned a, b;

	pthread_mutex_lock(&ch->lock);
	if (pt->added > 0) {
		pages_lock_some(ch, pt->a, pt->end, pt->pages);
		for (size_t k = 0; k < pt->added; k++) {
			const struct segment *s = &pt->add.at[k];

			segment_in_chunk(s, ch->index, &a, &b);
			grant_unhold(g, a, b, s->n, pt->write ? s->n : 0, false);
		}
		FOR_RUNS(pt->pages, pt->a, pt->end, i, j)
			replica_scrub(pt->rep, i, j, false);
		pages_unlock_some(ch, pt->a, pt->end, pt->pages);
	}
	/* The client's death may have ended it. */
	if (pt->pin && g->to_come > 0)
		g->to_come--;
	grant_repin(g);
	pthread_mutex_unlock(&ch->lock);
}

void part_span(struct part *pt, unsigned a, unsigned b)
{
	if (pt->end == 0)
		pt->a = a;
	pt->end = b;
	bits_set(pt->pages, a, b);
}

static bool is_given_up(atomic_uint *verdict)
{
	return verdict && atomic_load(verdict) == CACHE_GIVEN_UP;
}

/* ---- bringing pages, and holding them ---- */

static void part_add(struct acquiring *ac, struct replica *rep)
{
	struct part *pt = &ac->parts.at[ac->parts.n];
	unsigned a, b;

	*pt = (struct part){
		.m = ac->m, .rep = rep, .ch = rep->chunk, .grant = grant_get(ac->m, rep),
		.pin = ac->purpose == PIN, .write = ac->write, .add = segments_of_chunk(ac->asked, rep->chunk->index),
	};
	SEGMENTS_FOREACH(s, pt->add) {
		segment_in_chunk(s, rep->chunk->index, &a, &b);
		part_span(pt, a, b);
	}
	SEGMENTS_FOREACH(o, segments_of_chunk(ac->over, rep->chunk->index)) {
		segment_in_chunk(o, rep->chunk->index, &a, &b);
		bits_set(pt->over, a, b);
	}
	/* The first ones are those of the file. */
	if (ac->parts.n < ac->ahead.n) {
		pt->ahead = &ac->ahead;
		pt->nth = ac->parts.n;
	}
	ac->parts.n++;
	if (pt->pin)
		part_pin(pt);
}

/* Between two windows: a thread that waits to truncate the file, and all who wait behind it, get their turn. */
static int give_turn(struct acquiring *ac, struct windows *ws)
{
	struct cfile *f = ac->m->file;
	int err;

	if (atomic_load(&f->range_waiters) == 0)
		return 0;
	err = windows_end(ws);
	ahead_drain(&ac->ahead);
	pthread_rwlock_unlock(&f->range);
	pthread_rwlock_rdlock(&f->range);
	return err;
}

/* Before each window. */
static int pause_windows(struct acquiring *ac, struct windows *ws, atomic_uint *verdict)
{
	int err = give_turn(ac, ws);

	return err ? err : is_given_up(verdict) ? -EINTR : 0;
}

#define MEMORY_AHEAD 16u /* chunks that get memory before their turn */

/* Chunk k's turn has come. Others get memory while the store reads, and the device copies, those before them. */
static int parts_arrive(struct acquiring *ac, uint64_t k)
{
	int err = atomic_load(&ac->lacks) ? -ENOMEM : promises_keep(ac->reps, &ac->kept, MIN(ac->n, k + MEMORY_AHEAD));

	ac->ahead.n = ac->kept;
	while (ac->parts.n < ac->kept)
		part_add(ac, ac->reps[ac->parts.n]);
	return err;
}

int parts_acquire(struct acquiring *ac, struct part *at, uint64_t n, atomic_uint *verdict)
{
	bool all = at != ac->parts.at || ac->kept == ac->n;
	struct windows ws = { NULL };
	int err = 0, ended;

	for (uint64_t k = 0; k < n && !err;) {
		err = pause_windows(ac, &ws, verdict);
		if (!err && !all)
			err = parts_arrive(ac, k);
		if (!err)
			k += windows_go_on(&ws, &at[k], (all ? n : ac->kept) - k, &err);
	}
	ended = windows_end(&ws);
	err = err ? err : ended;
	for (uint64_t k = 0; k < n && !err; k++) {
		if (!at[k].again)
			continue;
		ahead_drain(&ac->ahead);
		err = pause_windows(ac, &ws, verdict);
		if (!err)
			err = part_acquire_again(&at[k]);
	}
	return err;
}

/* Bring what was asked for to the device, and hold it; also what lies beyond the end of the file in chunks that the client maps. */
static int bring_and_hold(struct acquiring *ac)
{
	struct parts *parts = &ac->parts;
	int err = 0;

	parts->at = xcalloc(ac->n + ac->n_mapped + 1, sizeof(*parts->at));
	/* Of what is overwritten nothing is read. */
	ahead_init(&ac->ahead, ac->reps, ac->over.n > 0 ? 0 : ac->kept, ac->asked, ac->write);
	pthread_rwlock_rdlock(&ac->m->file->range);
	for (uint64_t k = 0; k < ac->kept; k++)
		part_add(ac, ac->reps[k]);
	if (ac->purpose != PIN)
		err = parts_acquire(ac, parts->at, ac->n, ac->verdict);
	ahead_drain(&ac->ahead);
	for (unsigned k = 0; k < ac->n_mapped && !err; k++)
		part_add(ac, ac->mapped[k]->replica);
	if (!err && ac->purpose != PIN)
		err = parts_acquire(ac, parts->at + ac->n, parts->n - ac->n, ac->verdict);
	pthread_rwlock_unlock(&ac->m->file->range);
	return err;
}

/* ---- handing chunks over ---- */

/* The chunks that were brought, where the client does not map them. */
static int deliver(const struct acquiring *ac)
{
	struct grant **list = xcalloc(ac->n + 1, sizeof(struct grant *));
	int err;

	for (uint64_t k = 0; k < ac->n; k++)
		list[k] = ac->parts.at[k].grant;
	err = grants_deliver(ac->m, list, ac->n);
	free(list);
	return err;
}

/* Of all that is handed over: an extent as a whole. */
static int acquire_all_wanted(struct acquiring *ac)
{
	bool any = wanted_any(ac->m);
	int err = 0;

	for (uint64_t k = 0; k < ac->n && any && !err; k++) {
		const struct replica *unit = replica_unit(ac->reps[k]);

		if (k > 0 && unit == replica_unit(ac->reps[k - 1]))
			continue;
		for (unsigned i = 0; i < unit_chunks(unit) && !err; i++)
			err = acquire_wanted(ac, unit_member(unit, i));
	}
	return err;
}

/* What an earlier acquire wanted of the chunks comes before they are handed over, and what was wanted meanwhile after it. */
static int hand_over(struct acquiring *ac)
{
	int err = acquire_all_wanted(ac);

	if (!err)
		err = deliver(ac);
	if (!err)
		err = acquire_all_wanted(ac);
	return err;
}

/* ---- what an acquire is about, and its end ---- */

/* Chunks that are ready are acquired so, without a look at each page. In a list that is one range several parts may be overwritten. */
static bool may_be_ready(const struct acquiring *ac)
{
	return ac->purpose == BRING_AND_GRANT && !ac->pin && segments_are_one_range(ac->asked) && ac->over.n <= 1;
}

/* Of what may be ready. */
static struct page_span overwritten(const struct acquiring *ac)
{
	return ac->over.n > 0 ? (struct page_span){ ac->over.at[0].a, ac->over.at[0].b } : (struct page_span){ 0, 0 };
}

/*
 * The chunks to bring; of those that are ready pages are held by then.
 *
 * ac->pin: a stream waits for this acquire, and clients that are asked for memory may wait for the stream. So it brings the
 * chunks that were to stay for it, and waits for no evictor. Chunks that the file has grown into since then count
 * as beyond its end.
 */
static int choose_chunks(struct acquiring *ac)
{
	uint64_t first = ac->asked.at[0].a / GAIA_CHUNK_PAGES, n_all;
	int err = 0;

	ac->border = (cfile_size(ac->m->file) + GAIA_CHUNK - 1) / GAIA_CHUNK;
	if (ac->pin)
		ac->border = MIN(ac->border, first + ac->pin->n);
	n_all = segments_chunks(ac->asked, 0, ac->border, NULL);
	/* A stream got its room before: a smaller budget, or none, is for who comes later. */
	err = !ac->pin ? device_usable(ac->m->dev) : atomic_load(&ac->m->dev->gone) ? -ENODEV : 0;
	if (err)
		return err;
	/* More than the device has cannot fit; asked before any memory is spent on it. */
	if (!ac->pin && n_all > ac->m->dev->capacity / GAIA_CHUNK)
		return -ENOMEM;
	ac->reps = xcalloc(n_all + 1, sizeof(*ac->reps));
	ac->index = xcalloc(n_all + 1, sizeof(*ac->index));
	if (ac->ready) {
		struct page_span span = { ac->asked.at[0].a, MIN(ac->asked.at[0].b, ac->border * GAIA_CHUNK_PAGES) };

		err = ready_take(ac->m, span, ac->write, overwritten(ac), ac->ready, ac->index);
		ac->n = ac->kept = ac->ready->n_rest;
		*ac->seq = MAX(*ac->seq, ac->ready->seq);
	} else {
		ac->n = segments_chunks(ac->asked, 0, ac->border, ac->index);
	}
	return err;
}

/* Those that a PIN holds are pinned, as long as the client lives. */
static int pin_again(struct acquiring *ac)
{
	uint64_t n = replicas_pin_again(ac->m, ac->index, ac->n, ac->reps);

	if (n < ac->n) {
		while (n > 0)
			replica_unpin(ac->reps[--n]);
		return -ENOTCONN;
	}
	for (uint64_t k = 0; k < n; k++)
		user_pin(ac->m, ac->reps[k]);
	return 0;
}

static int pin_chunks(struct acquiring *ac)
{
	int err = 0;

	ac->kept = ac->n;
	if (ac->n > 0 && ac->pin)
		err = pin_again(ac);
	else if (ac->n > 0 && ac->piecewise)
		err = replicas_pin_piecewise(ac->m, ac->index, ac->n, ac->reps, &ac->kept, &ac->lacks);
	else if (ac->n > 0)
		err = replicas_pin(ac->m, ac->index, ac->n, ac->reps);
	ac->n_pinned = err ? 0 : ac->n;
	return err;
}

/* Chunks behind the border that the client maps. */
static int pin_mapped(struct acquiring *ac)
{
	if (!reaches_beyond(ac))
		return 0;
	ac->n_mapped = grants_pin_mapped(ac->m, ac->asked, ac->border, !ac->pin, &ac->mapped);
	ac->counted = xcalloc(ac->n_mapped + 1, sizeof(*ac->counted));
	for (unsigned k = 0; k < ac->n_mapped; k++)
		ac->counted[k] = ac->mapped[k]->replica;
	if (!user_pin_all(ac->m, ac->counted, ac->n_mapped))
		return user_refuse(ac->m);
	ac->n_counted = ac->n_mapped;
	return 0;
}

/* The client must handle the messages that bring these chunks, also those that others have sent it. */
static void await_deliveries(struct acquiring *ac)
{
	for (uint64_t k = 0; k < ac->parts.n; k++)
		delivery_wait(ac->parts.at[k].grant, ac->seq);
	for (unsigned k = 0; k < ac->n_since; k++)
		delivery_wait(ac->since[k], ac->seq);
}

static void make_ready(struct acquiring *ac)
{
	for (uint64_t k = 0; k < ac->parts.n; k++)
		grant_make_ready(ac->parts.at[k].grant);
	for (unsigned k = 0; k < ac->n_since; k++)
		grant_make_ready(ac->since[k]);
}

/* Everything has been done: so the acquire succeeds, unless it was given up before. */
static int decide(struct acquiring *ac)
{
	await_deliveries(ac);
	if (!cache_decide(ac->verdict, CACHE_DONE))
		return -EINTR;
	make_ready(ac);
	if (ac->purpose != PIN)
		return 0;
	return pin_note(ac->m, (struct page_span){ ac->asked.at[0].a, ac->asked.at[0].b }, ac->asked.at[0].a / GAIA_CHUNK_PAGES, ac->n,
			ac->mapped, ac->n_mapped);
}

/* The holds count from now on: those of the parts, and what is ready between them, so that all that lies side by side is one span at once. */
static void settle(struct acquiring *ac)
{
	struct segment run = { .n = 0 };

	for (uint64_t k = 0; k < ac->parts.n; k++) {
		if (ac->ready)
			ready_settle(ac->m, ac->ready, ac->parts.at[k].ch->index * GAIA_CHUNK_PAGES, &run);
		part_settle(&ac->parts.at[k], &run);
	}
	if (ac->ready)
		ready_settle(ac->m, ac->ready, UINT64_MAX, &run);
	mapping_settle(ac->m, &run);
	if (ac->wants)
		settle_unmapped(ac);
}

static void undo(struct acquiring *ac)
{
	for (uint64_t k = 0; k < ac->parts.n; k++)
		part_undo(&ac->parts.at[k]);
	if (ac->wants)
		unwant_unmapped(ac, UINT64_MAX);
}

static void acquiring_end(struct acquiring *ac)
{
	for (unsigned k = 0; k < ac->n_since; k++)
		replica_unpin(ac->since[k]->replica);
	user_unpin_all(ac->m, ac->counted, ac->n_counted);
	for (unsigned k = 0; k < ac->n_mapped; k++)
		replica_unpin(ac->mapped[k]->replica);
	if (ac->n_pinned > ac->kept)
		promises_break(ac->m->dev, ac->reps + ac->kept, ac->n_pinned - ac->kept);
	user_unpin_all(ac->m, ac->reps, ac->n_pinned);
	replicas_unpin(ac->reps, ac->n_pinned);
	free(ac->since);
	free(ac->counted);
	free(ac->mapped);
	free(ac->reps);
	free(ac->index);
	free(ac->parts.at);
}

static int acquire_segments(struct acquiring *ac)
{
	int err = choose_chunks(ac);

	if (!err)
		err = pin_chunks(ac);
	if (!err)
		err = pin_mapped(ac);
	if (!err)
		err = bring_and_hold(ac);
	if (!err)
		err = hand_over(ac);
	if (!err)
		err = want_unmapped(ac);
	if (!err)
		err = decide(ac);
	if (err)
		undo(ac);
	else
		settle(ac);
	acquiring_end(ac);
	return err;
}

/*
 * What is ready of a single range is held at once, and the rest decided for itself. Two acquires that do so may both fail for lack of
 * room for the rest. So the second try decides about the whole range at once; and has all memory before it goes on, if it was less than
 * it seemed.
 */
static int acquire_some_ready(const struct acquiring *what)
{
	struct ready_runs ready = { .n = 0 };
	struct acquiring ac = *what;
	bool apart = may_be_ready(&ac);
	int err;

	if (apart)
		ac.ready = &ready;
	/* What is overwritten needs nothing else that takes long. */
	ac.piecewise = apart && ac.over.n == 0;
	err = acquire_segments(&ac);
	if (apart)
		ready_end(ac.m, &ready, ac.write, err != 0);
	if (err != -ENOMEM || (ready.n == 0 && ac.kept == ac.n))
		return err;
	ac = *what;
	return acquire_segments(&ac);
}

/* What is ready needs nothing but its holds. *err as of cache_acquire(). */
static bool acquire_ready(const struct acquiring *ac, int *err)
{
	struct page_span span = { ac->asked.at[0].a, ac->asked.at[0].b };

	if (!may_be_ready(ac) ||
	    !ready_acquire(ac->m, span, ac->write, overwritten(ac), ac->seq, ac->verdict, err))
		return false;
	count(CTR_acquires_ready, 1);
	return true;
}

/* What is overwritten are spans of their own, perhaps: two more for each. */
static int acquire_some(const struct acquiring *ac)
{
	uint64_t room = 2 * ac->over.n;
	int err = spans_keep(ac->m, room);

	if (err)
		return err;
	err = acquire_some_ready(ac);
	spans_room_end(ac->m, room);
	return err;
}

static int acquire(const struct acquiring *ac)
{
	int err;

	PROBE6(acquire__begin, ac->m->file->key, ac->asked.at[0].a, ac->asked.at[ac->asked.n - 1].b, ac->asked.n, ac->m->dev->number, ac->write);
	if (!acquire_ready(ac, &err)) {
		err = passthrough_learn_size(ac->m->file);
		if (!err)
			err = acquire_some(ac);
	}
	PROBE3(acquire__end, ac->m->file->key, ac->m->dev->number, err);
	count(CTR_acquires, ac->purpose == BRING_AND_GRANT);
	if (!err && ac->purpose == BRING_AND_GRANT)
		SEGMENTS_FOREACH(s, ac->asked)
			trace_access(ac->write ? TRACE_ACQUIRE_WRITE : TRACE_ACQUIRE, ac->m->file->key, s->a, s->b - s->a, 0);
	if (err == -ENOMEM)
		count(CTR_acquire_nomem, 1);
	return err;
}

int cache_acquire(struct mapping *m, uint64_t off, uint64_t len, unsigned prot, uint64_t *seq,
		  atomic_uint *verdict)
{
	unsigned access = prot & (GAIA_PROT_READ | GAIA_PROT_WRITE);
	bool over = access == GAIA_PROT_WRITE && !(prot & GAIA_PROT_PIN);
	struct page_span span;
	struct segment asked, whole;
	struct pin *pin = NULL;
	int err = 0;

	*seq = 0;
	if (access & ~m->prot)
		return -EACCES;
	if (!mapping_has(m, off, len))
		return -EINVAL;
	if (len == 0)
		return 0;
	span = range_span(off, len);
	asked = (struct segment){ span.a, span.b, 1 };
	whole = (struct segment){ (off + GAIA_PAGE - 1) / GAIA_PAGE, (off + len) / GAIA_PAGE, 1 };
	if (prot & GAIA_PROT_PINNED) {
		pin = pin_take(m, span);
		if (!pin)
			return -EINVAL;
	}
	if (access)
		err = acquire(&(struct acquiring){
			.m = m, .asked = { &asked, 1 }, .over = { &whole, over && whole.a < whole.b }, .write = access & GAIA_PROT_WRITE,
			.purpose = prot & GAIA_PROT_PIN ? PIN : BRING_AND_GRANT, .pin = pin, .seq = seq, .verdict = verdict,
		});
	if (pin && err)
		pin_put_back(m, pin);
	else if (pin)
		pin_end(m, pin);
	/* Who overwrites one range will overwrite the next one. */
	if (access & GAIA_PROT_READ && !err && !(prot & GAIA_PROT_PIN))
		readahead_acquired(m, span);
	return err;
}

int ranges_check(const struct mapping *m, const struct gaia_list_range *range, size_t n)
{
	for (size_t k = 0; k < n; k++)
		if (range[k].length > 0 && !mapping_has(m, range[k].offset, range[k].length))
			return -EINVAL;
	return 0;
}

/* Cut the ranges down to the pages that they have as a whole: how many are left. */
static size_t whole_pages(struct gaia_list_range *range, size_t n)
{
	size_t left = 0;

	for (size_t k = 0; k < n; k++) {
		uint64_t a = ROUND_DOWN(range[k].offset + GAIA_PAGE - 1, (uint64_t)GAIA_PAGE);
		uint64_t b = ROUND_DOWN(range[k].offset + range[k].length, (uint64_t)GAIA_PAGE);

		if (a < b)
			range[left++] = (struct gaia_list_range){ .offset = a, .length = b - a };
	}
	return left;
}

int cache_acquirev(struct mapping *m, struct gaia_list_range *range, size_t n, unsigned prot, uint64_t *seq, atomic_uint *verdict)
{
	struct segments segs, over = { .n = 0 };
	int err;

	*seq = 0;
	if (prot & ~m->prot)
		return -EACCES;
	err = ranges_check(m, range, n);
	if (err)
		return err;
	/* Not -ENOMEM, which is about the device's memory. */
	if (segments_make(range, n, &segs))
		return -ENOSR;
	/* The ranges are not needed any more. */
	if (prot == GAIA_PROT_WRITE && segments_make(range, whole_pages(range, n), &over)) {
		free(segs.at);
		return -ENOSR;
	}
	if (segs.n > 0)
		err = acquire(&(struct acquiring){
			.m = m, .asked = segs, .over = over, .write = prot & GAIA_PROT_WRITE, .purpose = BRING_AND_GRANT, .seq = seq, .verdict = verdict,
		});
	/* A list says what is needed: there is nothing to guess, unless it is one range. */
	if (!err && segs.n == 1 && prot & GAIA_PROT_READ)
		readahead_acquired(m, (struct page_span){ segs.at[0].a, segs.at[0].b });
	free(over.at);
	free(segs.at);
	return err;
}
