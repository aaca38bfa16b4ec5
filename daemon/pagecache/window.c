/* window.c - the steps of a window: plan, fetch, fill, copy, merge, arm. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/window.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/quota.h"
#include "base/uses.h"
#include "base/util.h"
#include "consistency/track.h"
#include "pagecache/ahead.h"
#include "pagecache/bring.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/coherence.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/fetch.h"
#include "pagecache/grant.h"
#include "pagecache/home.h"
#include "pagecache/passthrough.h"
#include "pagecache/peer.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/shares.h"
#include "pagecache/run.h"
#include "pagecache/state.h"
#include "pagecache/view.h"

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
				dev_run_add(&op, w->runs, pt->rep->mem, i, NULL, NULL);
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

/* It is to be written, is there, and home has nothing to compare it with. The page is locked. */
static bool lacks_base(const struct part *pt, unsigned i)
{
	return pt->write && pt->step[i] == TRACK_NOTHING && home_lacks_base(pt->ch, i);
}

static bool part_lacks_bases(const struct part *pt)
{
	bool lacks = false;

	if (pt->write && cfile_is_passthrough(pt->ch->file))
		FOR_TODO(pt, i)
			lacks |= lacks_base(pt, i);
	return lacks;
}

static int part_fill(const struct window *w, struct part *pt)
{
	uint64_t pages[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct fills fills = FILLS(fills, false);
	int err, ended;

	FOR_TODO(pt, i)
		if (pt->step[i] == TRACK_SEND || pt->step[i] == TRACK_PULL || lacks_base(pt, i))
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

		if (!part_has(pt, STEP(SEND) | STEP(PULL)) && !part_lacks_bases(pt))
			continue;
		*any |= part_has(pt, STEP(SEND) | STEP(PULL));
		/* Those of files that are passed through never go with others. */
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

/*
 * Whether home's page is known to be zeros (dedup.h), and need not be copied over a bus: the device makes them. (It remembers what a page held
 * only when that is copied.)
 */
static bool is_zeros(const struct part *pt, unsigned i)
{
	return pt->step[i] == TRACK_SEND && shares_zeros(&pt->ch->file->cache->frames, page_at(pt->ch, i)->frame);
}

/* An operation more, which takes a device about as long as to copy so many pages. */
#define ZEROS_WORTH 16u

static bool worth_zeroing(const struct window *w)
{
	unsigned n = 0;

	if (!w->at[0]->ch->file->cache->dedup || parts_arm(w->at, w->n))
		return false;
	for (unsigned k = 0; k < w->n && n < ZEROS_WORTH; k++)
		if (part_has(w->at[k], STEP(SEND)))
			FOR_TODO(w->at[k], i)
				n += is_zeros(w->at[k], i);
	return n >= ZEROS_WORTH;
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
			if (pt->step[i] == TRACK_SEND && !(w->makes_zeros && is_zeros(pt, i))) {
				dev_run_add(&wk->op, runs, pt->rep->mem, i, page_ptr(pt->ch, i), NULL);
				wk->pages++;
			}
	}
}

static void zero_add(struct window *w, struct dev_run *runs)
{
	w->zero.op = (struct dev_op){ .kind = DEV_ZERO, .runs = runs };
	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		if (!w->makes_zeros || !part_has(pt, STEP(SEND)))
			continue;
		FOR_TODO(pt, i)
			if (is_zeros(pt, i)) {
				dev_run_add(&w->zero.op, runs, pt->rep->mem, i, NULL, NULL);
				w->zero.pages++;
			}
	}
}

/* What was to be sent has been copied, or made zeros. */
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
	if (!err) {
		count(CTR_home_to_device, w->copy.pages);
		moved(&w->at[0]->ch->file->moved, MOVED_to_device_bytes, (uint64_t)w->copy.pages * GAIA_PAGE);
		count(CTR_device_zeroed, w->zero.pages);
	}
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
	if (err)
		return;
	count(CTR_home_to_device, w->merge.op.n);
	moved(&w->at[0]->ch->file->moved, MOVED_to_device_bytes, (uint64_t)w->merge.op.n * GAIA_PAGE);
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
	for (unsigned k = 0; k < w->n && replica_is_view(w->at[k]->rep); k++)
		view_bring(w->at[k]);
	w->makes_zeros = worth_zeroing(w);
	copy_add(w, w->runs);
	zero_add(w, w->runs + w->copy.op.n);
	merge_add(w, w->runs + w->copy.op.n + w->zero.op.n);
	arm_add(w, w->runs + w->copy.op.n + w->zero.op.n + w->merge.op.n);
	err = work_begin(w, &w->copy);
	if (!err)
		err = work_begin(w, &w->zero);
	if (!err)
		err = work_begin(w, &w->merge);
	if (!err)
		err = work_begin(w, &w->arm);
	return err;
}

/* @err: as far as they were begun. */
static int works_end(struct window *w, int err)
{
	int copied = work_end(w, &w->copy, err), zeroed = work_end(w, &w->zero, err), merged = work_end(w, &w->merge, err), armed = work_end(w, &w->arm, err);

	copied = copied ? copied : zeroed;
	if (w->copy.op.n + w->zero.op.n > 0)
		copy_done(w, copied);
	if (w->merge.begun)
		merge_done(w, merged);
	if (w->arm.begun && !armed)
		arm_done(w);
	return copied ? copied : merged ? merged : armed;
}

int window_begin(struct window *w)
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

int window_await(struct window *w, int err)
{
	if (w->all.n_todo == 0)
		return err;
	err = works_end(w, err);
	free(w->runs);
	free(w->steps);
	return err;
}

int window_bring(struct window *w)
{
	return window_await(w, window_begin(w));
}

int window_zero(struct window *w)
{
	struct dev_run *runs = xmalloc((w->all.n_locked - w->all.n_todo) * sizeof(*runs));
	struct dev_op op = { .kind = DEV_ZERO, .runs = runs };
	int err;

	if (replica_is_view(w->at[0]->rep)) {
		/* What is not in view is zeros. */
		free(runs);
		return 0;
	}
	for (unsigned k = 0; k < w->n; k++)
		FOR_BEYOND(w->at[k], i)
			dev_run_add(&op, runs, w->at[k]->rep->mem, i, NULL, NULL);
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
