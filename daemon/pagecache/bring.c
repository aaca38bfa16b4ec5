/*
 * bring.c - windows: what an acquire brings to a device, of many chunks at a time.
 *
 * An acquire takes its chunks in windows. For a window it locks the pages that it has to look at, plans all of them (track_plan), and
 * takes the steps of the plan one after the other, each for all of the window: fetch what others released, secure what is about to be
 * written over, take what other devices have (peer.c), fill home, copy and merge into the replicas, arm. So there are as
 * many device operations as there are kinds of steps, however many chunks the pages are in.
 *
 * The index of what is stale says what has to be looked at. The other pages of a part are not locked: at the end it must say the same of
 * them still, and nobody may have locked any of them; else that part is acquired once more, by itself and with all of its pages locked. The
 * index knows nothing of what CPU programs write past the cache, so it is not relied on for files that are passed through.
 *
 * Only for the first part of a window a thread waits for pages; what comes next joins if its pages can be had by trying, and need not be
 * read from the store. Parts that do have a window of their own: while it goes to the device the next ones are read (ahead.c). So
 * nobody waits for a slow store because of pages of other chunks.
 */
#include "pagecache/bring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/fetch.h"
#include "pagecache/state.h"

/* A window ends when it has window_pages() to look at, or so many segments to hold, or so many chunks. */
#define WINDOW_CHUNKS 4096u

#define FOR_BEYOND(pt, i) for (unsigned i = (pt)->b; (i = bits_first((pt)->pages, i, (pt)->end)) < (pt)->end; i++)
#define FOR_TODO(pt, i) for (unsigned i = (pt)->a; (i = bits_first((pt)->todo, i, (pt)->b)) < (pt)->b; i++)

struct window {
	struct part **at; /* those with pages to look at, which are locked */
	unsigned n;
	unsigned n_todo;      /* pages */
	unsigned n_locked;    /* pages: these, and those beyond the end of the file */
	unsigned n_read;      /* of these, those for which the store may have to be read */
	unsigned n_frames;    /* so many frames of home it takes, by estimate, to fetch what devices have released of these */
	const struct part *last; /* of all that were taken; NULL: what comes next is not read ahead */
	struct dev_run *runs; /* room for all pages */
	bool quiet; /* see struct fills */
};

static struct cache_device *window_device(const struct window *w)
{
	return w->at[0]->rep->dev;
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
	replica_plan(pt->rep, pt->a, pt->b, pt->todo, pt->over, pt->write, pt->step);
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
	struct fetch_part *fetch = xcalloc(n_parts, sizeof(*fetch));
	unsigned n = 0;
	int err;

	for (unsigned k = 0; k < n_parts; k++) {
		struct part *pt = part[k];

		if (!part_has(pt, 1u << step))
			continue;
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
	if (w->n == 1)
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

	for (unsigned k = 0; k < w->n; k++)
		FOR_TODO(w->at[k], i)
			if (w->at[k]->step[i] == TRACK_ZERO)
				w->runs[op.n++] = (struct dev_run){ .mem = w->at[k]->rep->mem, .page = i, .npages = 1 };
	if (op.n == 0)
		return 0;
	err = cache_device_run(window_device(w), &op);
	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

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

/* What other devices did not send after all, and the store would have to be read for, its part does by itself. */
static void window_put_off(struct window *w)
{
	for (unsigned k = 0; k < w->n && w->n > 1; k++) {
		struct part *pt = w->at[k];

		pthread_mutex_lock(&pt->ch->lock);
		FOR_TODO(pt, i)
			if ((pt->step[i] == TRACK_SEND || pt->step[i] == TRACK_PULL) && !page_present(pt->ch, i)) {
				pt->step[i] = TRACK_NOTHING;
				pt->again = true;
			}
		pthread_mutex_unlock(&pt->ch->lock);
	}
}

/* Have home's bytes where they are to be copied or merged. @any: there are such pages. */
static int window_fill(struct window *w, bool *any)
{
	struct fills fills = FILLS(fills, false);
	int err = 0, ended;

	fills.quiet = w->quiet;
	*any = false;
	for (unsigned k = 0; k < w->n && !err; k++) {
		uint64_t pages[GAIA_CHUNK_PAGES / 64] = { 0 };
		const struct part *pt = w->at[k];
		bool some = false;

		FOR_TODO(pt, i)
			if (pt->step[i] == TRACK_SEND || pt->step[i] == TRACK_PULL) {
				bit_set(pages, i);
				some = true;
			}
		if (!some)
			continue;
		*any = true;
		fills.more = k + 1 < w->n;
		err = home_fill_begin(&fills, pt->ch, pt->a, pt->b, pages);
	}
	ended = home_fill_end(&fills);
	return err ? err : ended;
}

bool parts_arm(struct part *const *part, unsigned n)
{
	bool all = true;

	for (unsigned k = 0; k < n && all; k++)
		all = part[k]->write;
	return all;
}

/* Copy home's pages to the replicas where the plan says so. Home has them. */
static int window_send(struct window *w)
{
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = w->runs, .arm = parts_arm(w->at, w->n) };
	unsigned n = 0;
	int err;

	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		FOR_TODO(pt, i)
			if (pt->step[i] == TRACK_SEND) {
				dev_run_add(&op, w->runs, pt->rep->mem, i, page_ptr(pt->ch, i), NULL);
				n++;
			}
	}
	if (n == 0)
		return 0;
	err = cache_device_run(window_device(w), &op);
	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		pthread_mutex_lock(&pt->ch->lock);
		FOR_TODO(pt, i) {
			if (pt->step[i] != TRACK_SEND)
				continue;
			if (err)
				replica_garbled(pt->rep, i);
			else
				replica_sent(pt->rep, i);
			if (!err && op.arm)
				replica_armed(pt->rep, i);
		}
		pthread_mutex_unlock(&pt->ch->lock);
	}
	if (!err)
		count(CTR_home_to_device, n);
	return err;
}

/* Merge home's pages into replicas that clients may be writing, or are reading. */
static int window_pull(struct window *w)
{
	struct dev_op op = { .kind = DEV_PULL, .runs = w->runs };
	int err;

	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		pthread_mutex_lock(&pt->ch->lock);
		FOR_TODO(pt, i) {
			struct page_replica *r = &pt->rep->page[i];
			/* Pages that nobody writes, or that are void, are overwritten: there is no base that tells what to keep. */
			unsigned keep = r->writers > 0 && (r->flags & REPLICA_PRESENT) ? r->cut : 0;

			if (pt->step[i] != TRACK_PULL)
				continue;
			/* Of what is fresh all is kept: home differs nowhere from itself. */
			w->runs[op.n++] = (struct dev_run){
				.mem = pt->rep->mem, .page = i, .npages = 1, .host = page_ptr(pt->ch, i),
				.base = replica_is_fresh(pt->rep, i) ? page_ptr(pt->ch, i) : keep > 0 ? base_bytes(pt->ch, i, r->seen) : frame_zeros,
				.limit = keep,
			};
		}
		pthread_mutex_unlock(&pt->ch->lock);
	}
	if (op.n == 0)
		return 0;
	err = cache_device_run(window_device(w), &op);
	count(CTR_home_to_device, err ? 0 : op.n);
	for (unsigned k = 0; k < w->n; k++) {
		uint64_t pulled[GAIA_CHUNK_PAGES / 64] = { 0 };
		struct part *pt = w->at[k];

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
	return err;
}

/* Have the device remember what the pages hold, so that the release can tell what changed. What was copied or merged is armed already. */
static int window_arm(struct window *w)
{
	struct dev_op op = { .kind = DEV_ARM, .runs = w->runs };
	int err;

	for (unsigned k = 0; k < w->n; k++) {
		struct part *pt = w->at[k];

		if (!pt->write || pt->again)
			continue;
		FOR_TODO(pt, i)
			if (!(pt->rep->page[i].flags & REPLICA_ARMED) && pt->rep->page[i].writers == 0 && !bit_test(pt->over, i))
				dev_run_add(&op, w->runs, pt->rep->mem, i, NULL, NULL);
	}
	if (op.n == 0)
		return 0;
	err = cache_device_run(window_device(w), &op);
	for (unsigned k = 0; k < w->n && !err; k++) {
		struct part *pt = w->at[k];

		if (!pt->write || pt->again)
			continue;
		pthread_mutex_lock(&pt->ch->lock);
		FOR_TODO(pt, i)
			if (pt->rep->page[i].writers == 0 && !bit_test(pt->over, i))
				replica_armed(pt->rep, i);
		pthread_mutex_unlock(&pt->ch->lock);
	}
	return err;
}

/* Bring the pages of the window to the device. They are locked, file->range is held. */
static int window_bring(struct window *w)
{
	uint8_t *steps = xmalloc((size_t)w->n * GAIA_CHUNK_PAGES);
	bool fills = false;
	int err = 0;

	w->runs = xmalloc(w->n_todo * sizeof(*w->runs));
	for (unsigned k = 0; k < w->n; k++)
		w->at[k]->step = steps + (size_t)k * GAIA_CHUNK_PAGES;
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
	if (!err) {
		window_put_off(w);
		err = window_fill(w, &fills);
	}
	if (!err && fills && w->last && w->last->ahead)
		ahead_go_on(w->last->ahead, w->last->nth);
	if (!err)
		err = window_send(w);
	/* Of a device that is gone no base may be left (kept_trim()). */
	if (!err && atomic_load(&window_device(w)->gone))
		err = -ENODEV;
	if (!err)
		err = window_pull(w);
	if (!err)
		err = window_arm(w);
	free(w->runs);
	free(steps);
	return err;
}

/* Pages beyond the end of the file read as zeros, whatever this memory had before. */
static int window_zero(struct window *w)
{
	struct dev_run *runs = xmalloc((w->n_locked - w->n_todo) * sizeof(*runs));
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
static void window_add(struct window *w, struct part *pt)
{
	w->at[w->n++] = pt;
	w->n_todo += pt->n_todo;
	w->n_locked += pt->n_todo;
	FOR_BEYOND(pt, i)
		w->n_locked++;
	FOR_TODO(pt, i) {
		w->n_frames += page_ahead(pt->ch, i) ? fetch_frames(pt->ch, i) : 0;
		/* For what will be overwritten only what others released comes home. */
		w->n_read += (!bit_test(pt->over, i) || page_ahead(pt->ch, i)) && !comes_without_store(pt->rep, i);
	}
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
		window_add(w, pt);
	}
	pthread_mutex_unlock(&ch->lock);
	return err;
}

/* Let the part join, if that needs no waiting. */
static bool window_join(struct window *w, struct part *pt, int *err)
{
	struct chunk *ch = pt->ch;
	struct window with = *w;
	bool joins = true;

	if ((pt->ahead && ahead_is_under_way(pt->ahead, pt->nth)) || cfile_is_passthrough(ch->file))
		return false;
	pthread_mutex_lock(&ch->lock);
	part_look(pt, false);
	if (!part_is_held(pt, err)) {
		if (pt->whole)
			part_todo_whole(pt);
		window_add(&with, pt);
		joins = with.n_read == 0 && (with.n_frames == 0 || home_can_take(ch->file->cache, with.n_frames)) &&
			pages_trylock_some(ch, pt->a, pt->end, part_to_lock(pt));
		if (joins)
			*w = with;
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

static void settle_holds(const struct part *pt)
{
	unsigned a, b;

	for (size_t k = 0; k < pt->added; k++) {
		segment_in_chunk(&pt->add.at[k], pt->ch->index, &a, &b);
		grant_settle(pt->grant, a, b, pt->add.at[k].n);
	}
}

/* What is to become fresh, or may be, and so must be locked: into @lock. chunk->lock is held. */
static void part_fresh(const struct part *pt, uint64_t *lock)
{
	FOR_RUNS(pt->pages, pt->a, pt->end, i, j)
		for (unsigned k = i; k < j; k++)
			if (pt->meets_fresh || (bit_test(pt->over, k) && (pt->rep->page[k].flags & REPLICA_ZEROS)))
				bit_set(lock, k);
}

void part_settle(struct part *pt)
{
	uint64_t lock[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct chunk *ch = pt->ch;

	if (pt->added == 0 || (!pt->meets_fresh && bits_first(pt->over, 0, GAIA_CHUNK_PAGES) == GAIA_CHUNK_PAGES)) {
		settle_holds(pt);
		return;
	}
	pthread_mutex_lock(&ch->lock);
	part_fresh(pt, lock);
	/* Until the holds say that they are for overwriting: no release of the pages goes on meanwhile. */
	pages_lock_some(ch, pt->a, pt->end, lock);
	FOR_RUNS(lock, pt->a, pt->end, i, j)
		for (unsigned k = i; k < j; k++)
			if (bit_test(pt->over, k))
				replica_overwriting(pt->rep, k);
	settle_holds(pt);
	grant_overwrites(pt->grant, pt->over);
	if (pt->meets_fresh)
		part_joins_overwriters(pt);
	pages_unlock_some(ch, pt->a, pt->end, lock);
	pthread_mutex_unlock(&ch->lock);
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

static int window_end(struct window *w, int err)
{
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

static int window_go(struct window *w)
{
	int err = 0;

	if (w->n_todo > 0)
		err = window_bring(w);
	if (!err && w->n_todo < w->n_locked)
		err = window_zero(w);
	return err;
}

uint64_t window_acquire(struct part *at, uint64_t n, int *err)
{
	unsigned most = window_pages(at->ch->file->cache), chunks = (unsigned)MIN(n, (uint64_t)WINDOW_CHUNKS);
	struct window w = { .at = xmalloc(chunks * sizeof(struct part *)) };
	uint64_t k, holds;

	if (at->ahead)
		ahead_arrived(at->ahead, at->nth);
	*err = window_first(&w, at, false);
	holds = at->add.n;
	for (k = 1; k < chunks && !*err && w.n_locked < most && holds < most && w.n_read == 0; k++) {
		if (!window_join(&w, &at[k], err))
			break;
		holds += at[k].add.n;
	}
	w.last = &at[k - 1];
	if (!*err)
		*err = window_go(&w);
	*err = window_end(&w, *err);
	free(w.at);
	return k;
}

int part_acquire_again(struct part *pt)
{
	struct window w = { .at = &pt };
	int err;

	pt->again = false;
	pt->ahead = NULL;
	err = window_first(&w, pt, true);
	if (!err)
		err = window_go(&w);
	return window_end(&w, err);
}

int replica_bring_some(struct replica *rep, unsigned a, unsigned b, const uint64_t *pages)
{
	struct part pt = { .rep = rep, .ch = rep->chunk, .a = a, .b = b, .end = b }, *at = &pt;
	struct window w = { .at = &at, .n = 1, .quiet = true };

	memcpy(pt.todo, pages, sizeof(pt.todo));
	pt.n_todo = w.n_todo = w.n_locked = bits_count(pages, GAIA_CHUNK_PAGES / 64);
	return window_bring(&w);
}

int replica_bring(struct replica *rep, unsigned a, unsigned b)
{
	struct part pt = { .rep = rep, .ch = rep->chunk, .a = a, .b = b, .end = b, .whole = true }, *at = &pt;
	struct window w = { .at = &at };

	bits_set(pt.pages, a, b);
	part_todo_whole(&pt);
	w.n = 1;
	w.n_todo = w.n_locked = pt.n_todo;
	return window_bring(&w);
}
