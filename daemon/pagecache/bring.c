/*
 * bring.c - windows: what an acquire brings to a device, of many chunks at a time.
 *
 * An acquire takes its chunks in windows. For a window it locks the pages that it has to look at, plans all of them (track_plan), and
 * takes the steps of the plan one after the other, each for all of the window: fetch what others released, secure what is about to be
 * written over, take what other devices have (peer.c), fill home; then copy and merge into the replicas, and arm, all at once. So there are as
 * many device operations as there are kinds of steps, however many chunks the pages are in. While the device is at work on these last ones the
 * next window is locked, planned and begun: so device and processor wait for each other no longer than for one window.
 *
 * The index of what is stale says what has to be looked at. The other pages of a part are not locked: at the end it must say the same of
 * them still, and nobody may have locked any of them; else that part is acquired once more, by itself and with all of its pages locked. The
 * index knows nothing of what CPU programs write past the cache, so it is not relied on for files that are passed through.
 *
 * Only for the first part of a window a thread waits for pages, and with none of another window; what comes next joins if its pages can be had by
 * trying, and need not be read from the store. Parts that do have a window of their own: while it goes to the device the next ones are read (ahead.c). So
 * nobody waits for a slow store because of pages of other chunks.
 */
#include "pagecache/bring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/fetch.h"
#include "pagecache/state.h"

/*
 * A window ends when it has so many pages to look at, or window_pages(), or so many chunks, or segments to hold. Larger ones would save operations, but
 * the device waits for the first one, and the last one waits for the device.
 */
#define WINDOW_PAGES 4096u
#define WINDOW_CHUNKS 4096u

#define FOR_BEYOND(pt, i) for (unsigned i = (pt)->b; (i = bits_first((pt)->pages, i, (pt)->end)) < (pt)->end; i++)
#define FOR_TODO(pt, i) for (unsigned i = (pt)->a; (i = bits_first((pt)->todo, i, (pt)->b)) < (pt)->b; i++)

/* An operation of the device for all of a window. */
struct work {
	struct dev_op op;
	struct device_wait wait;
	bool begun;
	unsigned pages;
};

/* What has to be done, of a part or of all. */
struct amount {
	unsigned n_todo;      /* pages */
	unsigned n_locked;    /* pages: these, and those beyond the end of the file */
	unsigned n_read;      /* of these, those for which the store may have to be read */
	unsigned n_frames;    /* so many frames of home it takes, by estimate, to fetch what devices have released of these */
};

struct window {
	struct part **at; /* those with pages to look at, which are locked */
	unsigned n;
	struct amount all;
	uint64_t took; /* so many parts, also those for which there was nothing to do */
	const struct part *last; /* of these; NULL: what comes next is not read ahead */
	struct dev_run *runs; /* room for all pages */
	uint8_t *steps;
	struct work copy, merge, arm; /* of different pages */
	bool others; /* pages of the window before it are locked, too */
	bool quiet; /* see struct fills */
	int err;
};

static struct cache_device *window_device(const struct window *w)
{
	return w->at[0]->rep->dev;
}

/* Whether pages of one chunk only are locked: then it may take as long as the store does. */
static bool has_one_part(const struct window *w)
{
	return w->n == 1 && !w->others;
}

bool part_run(const struct part *pt, unsigned steps, unsigned *i, unsigned *j)
{
	*i = bits_first(pt->todo, *j, pt->b);
	while (*i < pt->b && !(steps & 1u << pt->step[*i]))
		*i = bits_first(pt->todo, *i + 1, pt->b);
	for (*j = *i; *j < pt->b && bit_test(pt->todo, *j) && (steps & 1u << pt->step[*j]); ++*j)
		;
	return *i < *j;
}

/* ---- the steps ---- */

/* chunk->lock held. */
static void part_plan(struct part *pt)
{
	pt->arms = pt->rep->n_undetecting > 0;
	pt->steps = replica_plan(pt->rep, pt->a, pt->b, pt->todo, pt->over, pt->write, pt->step);
	FOR_TODO(pt, i)
		pt->meets_fresh |= pt->write && replica_is_fresh(pt->rep, i);
}

/* For each run of the pages that are to be brought, whatever the index says of them. */
static int part_each_run(struct part *pt, int (*call)(struct chunk *ch, unsigned a, unsigned b))
{
	int err = 0;

	FOR_RUNS(pt->pages, pt->a, pt->b, i, j)
		err = err ? err : call(pt->ch, i, j);
	return err;
}

/* Fetch the pages of the parts for which the plan has the step, all together, and plan these parts again. */
static int parts_fetch(struct part *const *part, unsigned n_parts, unsigned step)
{
	struct fetch_part *fetch = NULL;
	unsigned n = 0;
	int err;

	for (unsigned k = 0; k < n_parts; k++) {
		struct part *pt = part[k];

		if (!part_has(pt, 1u << step))
			continue;
		if (!fetch)
			fetch = xcalloc(n_parts, sizeof(*fetch));
		fetch[n].ch = pt->ch;
		FOR_TODO(pt, i)
			if (pt->step[i] == step)
				bit_set(fetch[n].pages, i);
		n++;
	}
	err = n > 0 ? fetch_together(fetch, n, NULL) : 0;
	free(fetch);
	for (unsigned k = 0; k < n_parts && n > 0; k++) {
		struct part *pt = part[k];

		if (!part_has(pt, 1u << step))
			continue;
		pthread_mutex_lock(&pt->ch->lock);
		part_plan(pt);
		pthread_mutex_unlock(&pt->ch->lock);
	}
	return err;
}

/*
 * Somebody who is not a client any more may have stored to the memory: only pages that others hold, and so may be using, are left
 * alone. What was stored there can be published only by those holders; what they released is at home by now, or is brought there.
 */
static int part_distrust(struct part *pt)
{
	struct replica *rep = pt->rep;
	uint64_t held[GAIA_CHUNK_PAGES / 64] = { 0 };
	bool spoiled;
	int err;

	pthread_mutex_lock(&pt->ch->lock);
	spoiled = replica_is_spoiled(rep);
	pthread_mutex_unlock(&pt->ch->lock);
	if (!spoiled)
		return 0;
	err = part_each_run(pt, pages_secure);
	if (err)
		return err;
	pthread_mutex_lock(&pt->ch->lock);
	replica_held(rep, pt->a, pt->b, held);
	for (unsigned i = pt->a; i < pt->b; i++)
		if (bit_test(pt->pages, i) && !bit_test(held, i))
			replica_distrusted(rep, i);
	pthread_mutex_unlock(&pt->ch->lock);
	return 0;
}

static int part_prepare(struct part *pt)
{
	int err = pt->whole ? part_each_run(pt, passthrough_catch_up) : 0;

	/* Then bases may have been given up that the plan would ask for (kept_trim()). */
	if (!err && atomic_load(&pt->rep->dev->gone))
		err = -ENODEV;
	if (!err && pt->whole)
		err = part_distrust(pt);
	pthread_mutex_lock(&pt->ch->lock);
	part_plan(pt);
	pthread_mutex_unlock(&pt->ch->lock);
	return err;
}

/* There is no room for snapshots. To fetch may take long, so the part is to do that by itself. */
static int part_fetch_instead(const struct window *w, struct part *pt)
{
	if (has_one_part(w))
		return parts_fetch(&pt, 1, TRACK_SECURE);
	FOR_TODO(pt, i)
		if (pt->step[i] == TRACK_SECURE)
			pt->step[i] = TRACK_NOTHING;
	pt->again = true;
	return 0;
}

/* Snapshot what is about to be overwritten; if there is no room for that, fetch it. */
static int window_secure(struct window *w)
{
	struct dev_op op = { .kind = DEV_COPY_WITHIN, .runs = w->runs };
	unsigned n = 0;
	int err = 0;

	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		pt->shadow = part_has(pt, STEP(SECURE)) ? replica_shadow(pt->rep) : NULL;
		if (!pt->shadow) {
			if (!err && part_has(pt, STEP(SECURE)))
				err = part_fetch_instead(w, pt);
			continue;
		}
		FOR_TODO(pt, i)
			if (pt->step[i] == TRACK_SECURE) {
				dev_run_add(&op, w->runs, pt->shadow, i, NULL, pt->rep->mem);
				n++;
			}
	}
	if (!err && n > 0)
		err = cache_device_run(window_device(w), &op);
	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		if (!pt->shadow)
			continue;
		pthread_mutex_lock(&pt->ch->lock);
		FOR_TODO(pt, i)
			if (!err && pt->step[i] == TRACK_SECURE)
				replica_secured(pt->rep, i);
		if (!err)
			part_plan(pt);
		pthread_mutex_unlock(&pt->ch->lock);
		replica_shadow_done(pt->rep);
	}
	if (!err)
		count(CTR_device_snapshots, n);
	return err;
}

/* Pages that will be overwritten, and that nobody has: zeros, whatever their memory had before. */
static int window_overwrite(struct window *w)
{
	struct dev_op op = { .kind = DEV_ZERO, .runs = w->runs };
	int err;

	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		if (!part_has(pt, STEP(ZERO)))
			continue;
		FOR_TODO(pt, i)
			if (pt->step[i] == TRACK_ZERO)
				w->runs[op.n++] = (struct dev_run){ .mem = pt->rep->mem, .page = i, .npages = 1 };
	}
	if (op.n == 0)
		return 0;
	err = cache_device_run(window_device(w), &op);
	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		if (!part_has(pt, STEP(ZERO)))
			continue;
		pthread_mutex_lock(&pt->ch->lock);
		FOR_TODO(pt, i) {
			if (pt->step[i] != TRACK_ZERO)
				continue;
			if (err)
				replica_garbled(pt->rep, i);
			else
				replica_zeroed(pt->rep, i);
		}
		pthread_mutex_unlock(&pt->ch->lock);
	}
	return err;
}

/*
 * What other devices did not send after all, and the store would have to be read for, its part does by itself. Since the pages are locked nobody
 * else changes whether home has them.
 */
static void part_put_off(struct part *pt)
{
	FOR_TODO(pt, i)
		if ((pt->step[i] == TRACK_SEND || pt->step[i] == TRACK_PULL) && !page_present(pt->ch, i)) {
			pt->step[i] = TRACK_NOTHING;
			pt->again = true;
		}
}

static int part_fill(const struct window *w, struct part *pt)
{
	uint64_t pages[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct fills fills = FILLS(fills, false);
	int err, ended;

	FOR_TODO(pt, i)
		if (pt->step[i] == TRACK_SEND || pt->step[i] == TRACK_PULL)
			bit_set(pages, i);
	fills.quiet = w->quiet;
	err = home_fill_begin(&fills, pt->ch, pt->a, pt->b, pages);
	ended = home_fill_end(&fills);
	return err ? err : ended;
}

/* Have home's bytes where they are to be copied or merged. @any: there are such pages. */
static int window_fill(struct window *w, bool *any)
{
	int err = 0;

	*any = false;
	for (unsigned k = 0; k < w->n && !err; k++) {
		struct part *pt = w->at[k];

		if (!part_has(pt, STEP(SEND) | STEP(PULL)))
			continue;
		*any = true;
		if (has_one_part(w))
			err = part_fill(w, pt);
		else
			part_put_off(pt);
	}
	return err;
}

bool parts_arm(struct part *const *part, unsigned n)
{
	bool all = true;

	for (unsigned k = 0; k < n && all; k++)
		all = part[k]->write;
	return all;
}

/* ---- the last steps: operations that are under way together ---- */

static int work_begin(const struct window *w, struct work *wk)
{
	int err = wk->op.n > 0 ? cache_device_begin(window_device(w), &wk->op, &wk->wait) : 0;

	wk->begun = wk->op.n > 0 && !err;
	return err;
}

/* @err: why it was not begun. */
static int work_end(const struct window *w, struct work *wk, int err)
{
	return wk->begun ? cache_device_end(window_device(w), &wk->wait) : err;
}

/* To copy home's pages to the replicas where the plan says so. Home has them. */
static void copy_add(struct window *w, struct dev_run *runs)
{
	struct work *wk = &w->copy;

	wk->op = (struct dev_op){ .kind = DEV_COPY_IN, .runs = runs, .arm = parts_arm(w->at, w->n) };
	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		if (!part_has(pt, STEP(SEND)))
			continue;
		FOR_TODO(pt, i)
			if (pt->step[i] == TRACK_SEND) {
				dev_run_add(&wk->op, runs, pt->rep->mem, i, page_ptr(pt->ch, i), NULL);
				wk->pages++;
			}
	}
}

static void copy_done(struct window *w, int err)
{
	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		if (!part_has(pt, STEP(SEND)))
			continue;
		pthread_mutex_lock(&pt->ch->lock);
		FOR_TODO(pt, i) {
			if (pt->step[i] != TRACK_SEND)
				continue;
			if (err)
				replica_garbled(pt->rep, i);
			else
				replica_sent(pt->rep, i);
			if (!err && w->copy.op.arm)
				replica_armed(pt->rep, i);
		}
		pthread_mutex_unlock(&pt->ch->lock);
	}
	if (!err)
		count(CTR_home_to_device, w->copy.pages);
}

/* To merge home's pages into replicas that clients may be writing, or are reading. */
static void merge_add(struct window *w, struct dev_run *runs)
{
	struct work *wk = &w->merge;

	wk->op = (struct dev_op){ .kind = DEV_PULL, .runs = runs };
	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		if (!part_has(pt, STEP(PULL)))
			continue;
		pthread_mutex_lock(&pt->ch->lock);
		FOR_TODO(pt, i) {
			struct page_replica *r = &pt->rep->page[i];
			/* Pages that nobody writes, or that are void, are overwritten: there is no base that tells what to keep. */
			unsigned keep = r->written && (r->flags & REPLICA_PRESENT) ? r->cut : 0;

			if (pt->step[i] != TRACK_PULL)
				continue;
			/* Of what is fresh all is kept: home differs nowhere from itself. */
			runs[wk->op.n++] = (struct dev_run){
				.mem = pt->rep->mem, .page = i, .npages = 1, .host = page_ptr(pt->ch, i),
				.base = replica_is_fresh(pt->rep, i) ? page_ptr(pt->ch, i) : keep > 0 ? base_bytes(pt->ch, i, r->seen) : frame_zeros,
				.limit = keep,
			};
		}
		pthread_mutex_unlock(&pt->ch->lock);
	}
}

static void merge_done(struct window *w, int err)
{
	for (unsigned k = 0; k < w->n; k++) {
		uint64_t pulled[GAIA_CHUNK_PAGES / 64] = { 0 };
		struct part *pt = w->at[k];

		if (!part_has(pt, STEP(PULL)))
			continue;
		pthread_mutex_lock(&pt->ch->lock);
		FOR_TODO(pt, i) {
			if (pt->step[i] != TRACK_PULL)
				continue;
			if (!err || !replica_is_fresh(pt->rep, i))
				bit_set(pulled, i);
			if (!err)
				replica_pulled(pt->rep, i);
		}
		/* It may have bytes of others now, which who is overwriting it must not publish as his own. */
		if (bits_first(pulled, 0, GAIA_CHUNK_PAGES) < GAIA_CHUNK_PAGES)
			replica_overwritten(pt->rep, pulled);
		pthread_mutex_unlock(&pt->ch->lock);
	}
	count(CTR_home_to_device, err ? 0 : w->merge.op.n);
}

/*
 * Whether the device has to be told to remember what page i holds, so that the release can tell what changed. What is copied or merged it is told of with
 * that. Clients that look for changes themselves do not need it.
 */
static bool is_to_arm(const struct part *pt, unsigned i)
{
	return pt->arms && pt->step[i] != TRACK_SEND && pt->step[i] != TRACK_PULL && !(pt->rep->page[i].flags & REPLICA_ARMED) &&
	       !pt->rep->page[i].written && !bit_test(pt->over, i);
}

static void arm_add(struct window *w, struct dev_run *runs)
{
	w->arm.op = (struct dev_op){ .kind = DEV_ARM, .runs = runs };
	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		if (!pt->write || pt->again)
			continue;
		FOR_TODO(pt, i)
			if (is_to_arm(pt, i))
				dev_run_add(&w->arm.op, runs, pt->rep->mem, i, NULL, NULL);
	}
}

static void arm_done(struct window *w)
{
	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		if (!pt->write || pt->again)
			continue;
		pthread_mutex_lock(&pt->ch->lock);
		FOR_TODO(pt, i)
			if (is_to_arm(pt, i))
				replica_armed(pt->rep, i);
		pthread_mutex_unlock(&pt->ch->lock);
	}
}

/* Everything else has been done. On error some may be under way. */
static int works_begin(struct window *w)
{
	int err;

	/* Of a device that is gone no base may be left (kept_trim()). */
	if (atomic_load(&window_device(w)->gone))
		return -ENODEV;
	copy_add(w, w->runs);
	merge_add(w, w->runs + w->copy.op.n);
	arm_add(w, w->runs + w->copy.op.n + w->merge.op.n);
	err = work_begin(w, &w->copy);
	if (!err)
		err = work_begin(w, &w->merge);
	if (!err)
		err = work_begin(w, &w->arm);
	return err;
}

/* @err: as far as they were begun. */
static int works_end(struct window *w, int err)
{
	int copied = work_end(w, &w->copy, err), merged = work_end(w, &w->merge, err), armed = work_end(w, &w->arm, err);

	if (w->copy.op.n > 0)
		copy_done(w, copied);
	if (w->merge.begun)
		merge_done(w, merged);
	if (w->arm.begun && !armed)
		arm_done(w);
	return copied ? copied : merged ? merged : armed;
}

/* Bring the pages of the window to the device. They are locked, file->range is held. Whatever comes of it, window_await() comes next. */
static int window_begin(struct window *w)
{
	bool fills = false;
	int err = 0;

	if (w->all.n_todo == 0)
		return 0;
	w->steps = xmalloc((size_t)w->n * GAIA_CHUNK_PAGES);
	w->runs = xmalloc(w->all.n_todo * sizeof(*w->runs));
	for (unsigned k = 0; k < w->n; k++)
		w->at[k]->step = w->steps + (size_t)k * GAIA_CHUNK_PAGES;
	for (unsigned k = 0; k < w->n && !err; k++)
		err = part_prepare(w->at[k]);
	if (!err)
		err = parts_fetch(w->at, w->n, TRACK_FETCH);
	if (!err)
		err = window_secure(w);
	if (!err)
		err = window_overwrite(w);
	if (!err)
		peers_send(w->at, w->n, w->runs);
	if (!err)
		err = window_fill(w, &fills);
	if (!err && fills && w->last && w->last->ahead)
		ahead_go_on(w->last->ahead, w->last->nth);
	return err ? err : works_begin(w);
}

/* Wait for what window_begin() has begun, and which said @err. */
static int window_await(struct window *w, int err)
{
	if (w->all.n_todo == 0)
		return err;
	err = works_end(w, err);
	free(w->runs);
	free(w->steps);
	return err;
}

static int window_bring(struct window *w)
{
	return window_await(w, window_begin(w));
}

/* Pages beyond the end of the file read as zeros, whatever this memory had before. */
static int window_zero(struct window *w)
{
	struct dev_run *runs = xmalloc((w->all.n_locked - w->all.n_todo) * sizeof(*runs));
	struct dev_op op = { .kind = DEV_ZERO, .runs = runs };
	int err;

	for (unsigned k = 0; k < w->n; k++)
		FOR_BEYOND(w->at[k], i)
			runs[op.n++] = (struct dev_run){ .mem = w->at[k]->rep->mem, .page = i, .npages = 1 };
	err = cache_device_run(window_device(w), &op);
	free(runs);
	for (unsigned k = 0; k < w->n && !err; k++) {
		struct part *pt = w->at[k];

		pthread_mutex_lock(&pt->ch->lock);
		FOR_BEYOND(pt, i)
			replica_zeroed(pt->rep, i);
		pthread_mutex_unlock(&pt->ch->lock);
	}
	return err;
}

/* ---- what goes together ---- */

/* Of the part's pages the first one that lies beyond the end of the file. */
static unsigned part_in_file(const struct part *pt)
{
	unsigned i = pt->end;

	while (i > pt->a && page_limit(pt->ch, i - 1) == 0)
		i--;
	return i;
}

/* chunk->lock held. */
static int part_grant(struct part *pt)
{
	int err = 0;

	if (pt->wanted)
		return grant_take_wanted(pt->grant, pt->a, pt->end, pt->b, pt->write);
	SEGMENTS_FOREACH(s, pt->add) {
		unsigned a, b;

		segment_in_chunk(s, pt->ch->index, &a, &b);
		err = grant_hold(pt->grant, a, b, pt->b, s->n, pt->write ? s->n : 0);
		if (err)
			break;
		pt->added++;
	}
	return err;
}

/*
 * Whether pages that the index does not name only have to be held, without locking them: nobody may have them locked to change them, or, if
 * they are to be written, because it relies on nobody writing them. @ours: pages that this thread has locked. chunk->lock is held.
 */
static bool part_may_trust(const struct part *pt, unsigned ours)
{
	return !pt->wanted && pt->ch->n_locked == ours && (!pt->write || pt->ch->n_shared == 0) &&
	       !replica_is_spoiled(pt->rep) && !passthrough_compares(pt->ch->file) && !atomic_load(&pt->rep->dev->gone);
}

/* The bits of those of its pages for which the index says that there may be something to do. chunk->lock is held. */
static void part_not_current(const struct part *pt, uint64_t *bits)
{
	replica_not_current(pt->rep, pt->a, pt->end, pt->write, bits);
	for (unsigned k = 0; k < GAIA_CHUNK_PAGES / 64; k++)
		bits[k] &= pt->pages[k];
}

/* Pages that lie in the file in part, or beyond it, are not overwritten: others may make the file longer. chunk->lock is held. */
static void part_over(struct part *pt)
{
	if (cfile_is_passthrough(pt->ch->file))
		memset(pt->over, 0, sizeof(pt->over));
	for (unsigned i = pt->end; i > pt->a && page_limit(pt->ch, i - 1) < GAIA_PAGE; i--)
		bit_clear(pt->over, i - 1);
}

/* What of the part has to be looked at. chunk->lock is held. */
static void part_look(struct part *pt, bool all)
{
	grant_end_ready(pt->grant);
	memset(pt->todo, 0, sizeof(pt->todo));
	part_over(pt);
	pt->whole = all || !part_may_trust(pt, 0);
	FOR_RUNS(pt->pages, pt->a, pt->end, i, j)
		readahead_count(pt->rep, i, j);
	if (!pt->whole)
		part_not_current(pt, pt->todo);
	pt->n_todo = bits_count(pt->todo, GAIA_CHUNK_PAGES / 64);
	if (pt->n_todo > 0 && (cfile_is_passthrough(pt->ch->file) || page_limit(pt->ch, pt->end - 1) == 0))
		pt->whole = true;
	pt->b = pt->end;
}

/* Whether the part was acquired without anything to bring. chunk->lock is held. */
static bool part_is_held(struct part *pt, int *err)
{
	if (pt->whole || pt->n_todo > 0)
		return false;
	*err = part_grant(pt);
	atomic_store_explicit(&pt->ch->referenced, true, memory_order_relaxed);
	count(CTR_acquired_current, 1);
	return true;
}

/* The pages that it has to lock. */
static const uint64_t *part_to_lock(const struct part *pt)
{
	return pt->whole ? pt->pages : pt->todo;
}

/* Never waits for a page while reads of other pages are under way for us. chunk->lock is held. */
static void part_lock(struct part *pt)
{
	struct chunk *ch = pt->ch;

	for (unsigned i = pt->a; i < pt->end; i++) {
		if (!bit_test(part_to_lock(pt), i) || page_trylock(ch, i))
			continue;
		if (pt->ahead) {
			pthread_mutex_unlock(&ch->lock);
			ahead_drain(pt->ahead);
			pthread_mutex_lock(&ch->lock);
		}
		pages_lock(ch, i, i + 1);
	}
}

/* Whether page i comes to the replica without the store's being read: from home, or from a device that it can be copied from. chunk->lock is held. */
static bool comes_without_store(const struct replica *rep, unsigned i)
{
	const struct chunk *ch = rep->chunk;

	if (page_present(ch, i))
		return true;
	if (page_ahead(ch, i)) /* by others: what it is merged with may be in the store only */
		return replica_alone_has(rep, i) || !fetch_reads_store(rep->chunk, i);
	for (unsigned k = 0; k < ch->n_replicas; k++) {
		const struct replica *from = ch->replica[k];

		if (replica_is_home(from, i) && (from == rep || (!from->only && !replica_is_spoiled(from) && !atomic_load(&from->dev->gone) &&
								 atomic_load(&rep->dev->peer[from->dev->index]) != PEER_NONE)))
			return true;
	}
	return false;
}

/* chunk->lock held. */
static struct amount part_amount(const struct part *pt)
{
	struct amount all = { .n_todo = pt->n_todo, .n_locked = pt->n_todo };

	FOR_BEYOND(pt, i)
		all.n_locked++;
	FOR_TODO(pt, i) {
		all.n_frames += page_ahead(pt->ch, i) ? fetch_frames(pt->ch, i) : 0;
		/* For what will be overwritten only what others released comes home. */
		all.n_read += (!bit_test(pt->over, i) || page_ahead(pt->ch, i)) && !comes_without_store(pt->rep, i);
	}
	return all;
}

static void window_add(struct window *w, struct part *pt, struct amount more)
{
	w->at[w->n++] = pt;
	w->all.n_todo += more.n_todo;
	w->all.n_locked += more.n_locked;
	w->all.n_read += more.n_read;
	w->all.n_frames += more.n_frames;
}

/* All of the part is to be looked at, as far as it lies in the file. */
static void part_todo_whole(struct part *pt)
{
	pt->b = part_in_file(pt);
	memset(pt->todo, 0, sizeof(pt->todo));
	FOR_RUNS(pt->pages, pt->a, pt->b, i, j)
		bits_set(pt->todo, i, j);
	pt->n_todo = bits_count(pt->todo, GAIA_CHUNK_PAGES / 64);
}

/* Begin a window. @all: look at all pages. */
static int window_first(struct window *w, struct part *pt, bool all)
{
	struct chunk *ch = pt->ch;
	int err = 0;

	if (pt->write)
		err = passthrough_room(pt->m, bits_count(pt->pages, GAIA_CHUNK_PAGES / 64));
	if (err)
		return err;
	pthread_mutex_lock(&ch->lock);
	part_look(pt, all);
	if (!part_is_held(pt, &err)) {
		part_lock(pt);
		/* The file may still grow, but nobody brings, writes or releases these pages meanwhile. */
		if (pt->whole)
			part_todo_whole(pt);
		window_add(w, pt, part_amount(pt));
	}
	pthread_mutex_unlock(&ch->lock);
	return err;
}

/* Whether home can take so much more that is fetched, while pages of the window are locked. */
static bool may_fetch(const struct window *w, const struct part *pt, unsigned n_frames)
{
	n_frames += w->all.n_frames;
	return n_frames == 0 || home_can_take(pt->ch->file->cache, n_frames);
}

/* Let the part join, if that needs no waiting. */
static bool window_join(struct window *w, struct part *pt, int *err)
{
	struct chunk *ch = pt->ch;
	struct amount more;
	bool joins = true;

	if ((pt->ahead && ahead_is_under_way(pt->ahead, pt->nth)) || cfile_is_passthrough(ch->file))
		return false;
	pthread_mutex_lock(&ch->lock);
	part_look(pt, false);
	if (!part_is_held(pt, err)) {
		if (pt->whole)
			part_todo_whole(pt);
		more = part_amount(pt);
		joins = more.n_read == 0 && may_fetch(w, pt, more.n_frames) && pages_trylock_some(ch, pt->a, pt->end, part_to_lock(pt));
		if (joins)
			window_add(w, pt, more);
	}
	pthread_mutex_unlock(&ch->lock);
	return joins;
}

/* What is fresh has no base: who acquires it for writing overwrites it, too. chunk->lock is held, and the pages are locked. */
static void part_joins_overwriters(struct part *pt)
{
	uint64_t fresh[GAIA_CHUNK_PAGES / 64] = { 0 };

	FOR_RUNS(pt->pages, pt->a, pt->end, i, j)
		for (unsigned k = i; k < j; k++)
			if (replica_is_fresh(pt->rep, k))
				bit_set(fresh, k);
	grant_overwrites(pt->grant, fresh);
}

/* What is to become fresh, or may be, and so must be locked: into @lock. chunk->lock is held. */
static void part_fresh(const struct part *pt, uint64_t *lock)
{
	FOR_RUNS(pt->pages, pt->a, pt->end, i, j)
		for (unsigned k = i; k < j; k++)
			if (pt->meets_fresh || (bit_test(pt->over, k) && (pt->rep->page[k].flags & REPLICA_ZEROS)))
				bit_set(lock, k);
}

/* What was added, to what came before it: neighbours are settled together. */
static void settle_holds(const struct part *pt, struct segment *run)
{
	uint64_t start = pt->ch->index * GAIA_CHUNK_PAGES;
	unsigned a, b;

	for (size_t k = 0; k < pt->added; k++) {
		const struct segment *s = &pt->add.at[k];

		segment_in_chunk(s, pt->ch->index, &a, &b);
		if (run->b == start + a && run->n == s->n) {
			run->b = start + b;
			continue;
		}
		mapping_settle(pt->m, run);
		*run = (struct segment){ start + a, start + b, s->n };
	}
}

/* Also makes what it overwrites fresh, before the holds count. */
static void settle_overwriting(struct part *pt)
{
	uint64_t lock[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct segment run = { .n = 0 };
	struct chunk *ch = pt->ch;

	pthread_mutex_lock(&ch->lock);
	part_fresh(pt, lock);
	/* Until the holds say that they are for overwriting: no release of the pages goes on meanwhile. */
	pages_lock_some(ch, pt->a, pt->end, lock);
	FOR_RUNS(lock, pt->a, pt->end, i, j)
		for (unsigned k = i; k < j; k++)
			if (bit_test(pt->over, k))
				replica_overwriting(pt->rep, k);
	settle_holds(pt, &run);
	mapping_settle(pt->m, &run);
	grant_overwrites(pt->grant, pt->over);
	if (pt->meets_fresh)
		part_joins_overwriters(pt);
	pages_unlock_some(ch, pt->a, pt->end, lock);
	pthread_mutex_unlock(&ch->lock);
}

void part_settle(struct part *pt, struct segment *run)
{
	if (pt->added > 0 && (pt->meets_fresh || bits_first(pt->over, 0, GAIA_CHUNK_PAGES) < GAIA_CHUNK_PAGES))
		settle_overwriting(pt);
	else
		settle_holds(pt, run);
}

/* chunk->lock held. */
static int part_end(struct part *pt)
{
	uint64_t others[GAIA_CHUNK_PAGES / 64] = { 0 };
	int err;

	if (!pt->whole) {
		part_not_current(pt, others);
		for (unsigned k = 0; k < GAIA_CHUNK_PAGES / 64; k++)
			pt->again |= others[k] & ~pt->todo[k];
		pt->again |= !part_may_trust(pt, pt->n_todo);
	}
	if (pt->again)
		return 0;
	FOR_RUNS(pt->pages, pt->a, pt->b, i, j)
		replica_acquired(pt->rep, i, j);
	err = part_grant(pt);
	if (!err && pt->wanted && pt->meets_fresh)
		part_joins_overwriters(pt);
	return err;
}

/* The parts are held, unless there was an @err. Nothing of the window is locked any more. */
static int window_end(struct window *w, int err)
{
	err = window_await(w, err);
	if (!err && w->all.n_todo < w->all.n_locked)
		err = window_zero(w);
	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		pthread_mutex_lock(&pt->ch->lock);
		count(CTR_acquired_looked_at, 1);
		if (!err)
			err = part_end(pt);
		pages_unlock_some(pt->ch, pt->a, pt->end, part_to_lock(pt));
		pthread_mutex_unlock(&pt->ch->lock);
		atomic_store_explicit(&pt->ch->referenced, true, memory_order_relaxed);
		chunk_account(pt->ch);
	}
	return err;
}

/* ---- windows, of which two may be under way ---- */

static void window_free(struct window *w)
{
	if (w)
		free(w->at);
	free(w);
}

/* Lock as many of the parts as go together: one at least, unless pages of @others are locked. */
static struct window *window_take(struct part *at, uint64_t n, bool others)
{
	unsigned most = MIN(window_pages(at->ch->file->cache), WINDOW_PAGES), chunks = (unsigned)MIN(n, (uint64_t)WINDOW_CHUNKS);
	struct window *w = xcalloc(1, sizeof(*w));
	uint64_t k = 0, holds = 0;

	w->at = xmalloc(chunks * sizeof(struct part *));
	w->others = others;
	if (!others) {
		if (at->ahead)
			ahead_arrived(at->ahead, at->nth);
		w->err = window_first(w, at, false);
		holds = at->add.n;
		k = 1;
	}
	for (; k < chunks && !w->err && w->all.n_locked < most && holds < most && w->all.n_read == 0; k++) {
		if (!window_join(w, &at[k], &w->err))
			break;
		holds += at[k].add.n;
	}
	w->took = k;
	count(CTR_acquire_windows, w->n > 0);
	w->last = k > 0 ? &at[k - 1] : NULL;
	if (!w->err)
		w->err = window_begin(w);
	return w;
}

uint64_t windows_go_on(struct windows *ws, struct part *at, uint64_t n, int *err)
{
	struct window *w = window_take(at, n, ws->under_way != NULL);

	/* The one before. */
	*err = windows_end(ws);
	if (!*err && w->took == 0) {
		window_free(w);
		w = window_take(at, n, false);
	}
	ws->under_way = w;
	*err = *err ? *err : w->err;
	return w->took;
}

int windows_end(struct windows *ws)
{
	struct window *w = ws->under_way;
	int err = w ? window_end(w, w->err) : 0;

	window_free(w);
	ws->under_way = NULL;
	return err;
}

int part_acquire_again(struct part *pt)
{
	struct window w = { .at = &pt };
	int err;

	pt->again = false;
	pt->ahead = NULL;
	err = window_first(&w, pt, true);
	if (!err)
		err = window_begin(&w);
	return window_end(&w, err);
}

int replica_bring_some(struct replica *rep, unsigned a, unsigned b, const uint64_t *pages)
{
	struct part pt = { .rep = rep, .ch = rep->chunk, .a = a, .b = b, .end = b }, *at = &pt;
	struct window w = { .at = &at, .n = 1, .quiet = true };

	memcpy(pt.todo, pages, sizeof(pt.todo));
	pt.n_todo = w.all.n_todo = bits_count(pages, GAIA_CHUNK_PAGES / 64);
	return window_bring(&w);
}

int replica_bring(struct replica *rep, unsigned a, unsigned b)
{
	struct part pt = { .rep = rep, .ch = rep->chunk, .a = a, .b = b, .end = b, .whole = true }, *at = &pt;
	struct window w = { .at = &at, .n = 1 };

	bits_set(pt.pages, a, b);
	part_todo_whole(&pt);
	w.all.n_todo = pt.n_todo;
	return window_bring(&w);
}
