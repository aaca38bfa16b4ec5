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
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/bring.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/quota.h"
#include "base/util.h"
#include "consistency/track.h"
#include "pagecache/ahead.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/fetch.h"
#include "pagecache/file.h"
#include "pagecache/grant.h"
#include "pagecache/home.h"
#include "pagecache/passthrough.h"
#include "pagecache/peer.h"
#include "pagecache/readahead.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/segments.h"
#include "pagecache/state.h"
#include "pagecache/window.h"

/*
 * A window ends when it has so many pages to look at, or window_pages(), or so many chunks, or segments to hold. Larger ones would save operations, but
 * the device waits for the first one, and the last one waits for the device.
 */
#define WINDOW_PAGES 4096u
#define WINDOW_CHUNKS 4096u

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
	if (pt->grant)
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

		if (replica_is_home(from, i) && (from == rep || peer_gives(rep, from)))
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

static void settle_holds(const struct part *pt, struct segment *run)
{
	uint64_t start = pt->ch->index * GAIA_CHUNK_PAGES;
	unsigned a, b;

	for (size_t k = 0; k < pt->added; k++) {
		segment_in_chunk(&pt->add.at[k], pt->ch->index, &a, &b);
		mapping_settle_next(pt->m, run, &(struct segment){ start + a, start + b, pt->add.at[k].n });
	}
}

/* Also makes what it overwrites fresh, before the holds count. */
static void settle_overwriting(struct part *pt)
{
	uint64_t lock[GAIA_CHUNK_PAGES / 64] = { 0 }, holds[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct segment run = { .n = 0 };
	struct chunk *ch = pt->ch;

	pthread_mutex_lock(&ch->lock);
	part_fresh(pt, lock);
	/* Until the holds say that they are for overwriting: no release of the pages goes on meanwhile. */
	pages_lock_some(ch, pt->a, pt->end, lock);
	/* The holds of a client that is gone may have been dropped meanwhile. Then what is there is another's, whose acquire may fail yet. */
	grant_held(pt->grant, pt->a, pt->end, HELD_WRITING, holds);
	FOR_RUNS(lock, pt->a, pt->end, i, j)
		for (unsigned k = i; k < j; k++)
			if (bit_test(pt->over, k) && bit_test(holds, k))
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
