/* publish.c - one chunk's part of a release: what of it changed is found and published. */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/publish.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/fault.h"
#include "base/uses.h"
#include "base/util.h"
#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/coherence.h"
#include "pagecache/devices.h"
#include "pagecache/fetch.h"
#include "pagecache/file.h"
#include "pagecache/grant.h"
#include "pagecache/home.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/run.h"
#include "pagecache/scrub.h"
#include "pagecache/segments.h"
#include "pagecache/state.h"

/*
 * The next page, from @i on, that may be published, and in which something may have been stored beyond the end of the file, since that lies in it
 * or before it.
 */
static unsigned next_to_cut(const struct release *rl, unsigned i)
{
	uint64_t at = rl->ch->index * GAIA_CHUNK, size = cfile_size(rl->ch->file);
	unsigned compare;

	/* Pages before that with the end are whole. */
	if (size > at)
		i = (unsigned)MIN(MAX((size - at) / GAIA_PAGE, (uint64_t)i), (uint64_t)rl->b);
	compare = bits_first(rl->compare, i, rl->b);
	for (i = bits_first(rl->detected, i, rl->b); i < rl->b && !bit_test(rl->found, i);)
		i = bits_first(rl->detected, i + 1, rl->b);
	return MIN(i, compare);
}

/* It cannot be found out what changed, so all counts as changed, except bytes beyond the file's end, which may be there still. */
static void take_for_changed(struct release *rl)
{
	struct replica *rep = rl->grant->replica;

	pthread_mutex_lock(&rl->ch->lock);
	for (unsigned i = rl->a; (i = bits_first(rl->compare, i, rl->b)) < rl->b; i++)
		replica_disarmed(rep, i);
	for (unsigned i = rl->a; (i = next_to_cut(rl, i)) < rl->b; i++) {
		unsigned limit = page_limit(rl->ch, i);

		if (limit < GAIA_PAGE)
			replica_cut(rep, i, limit);
	}
	pthread_mutex_unlock(&rl->ch->lock);
}

/* In the page with the end of the file, bytes past the end are dropped first. */
static int drop_beyond(const struct release *rl)
{
	struct replica *rep = rl->grant->replica;
	int err = 0;

	for (unsigned i = rl->a; (i = next_to_cut(rl, i)) < rl->b && !err; i++) {
		struct dev_run tail = { .mem = rep->mem, .page = i, .npages = 1, .limit = page_limit(rl->ch, i) };
		struct dev_op zero = { .kind = DEV_ZERO, .runs = &tail, .n = 1 };

		if (tail.limit > 0 && tail.limit < GAIA_PAGE)
			err = cache_device_run(rep->dev, &zero);
	}
	return err;
}

/* Add the pages to compare of all @n parts, in order. */
static void add_runs(const struct release *rl, unsigned n, struct dev_op *op)
{
	struct dev_run *runs = NULL;
	unsigned room = 0;

	for (unsigned k = 0; k < n; k++)
		FOR_RUNS(rl[k].compare, rl[k].a, rl[k].b, i, j) {
			if (op->n == room) {
				room = MAX(2 * room, 16u);
				runs = xrealloc(runs, room * sizeof(*runs));
			}
			runs[op->n++] = (struct dev_run){ .mem = rl[k].grant->replica->mem, .page = i, .npages = j - i };
		}
	op->runs = runs;
}

static void note_changed(struct release *rl, unsigned i)
{
	bit_set(rl->changed_pages, i);
	if (bit_test(rl->held_on, i))
		bit_set(rl->shared, i);
}

/* The device has found that page @i @differs from what it had remembered. */
static void note_found(struct release *rl, unsigned i, bool differs)
{
	/* Not armed: the device compared with something else. */
	if (differs || !(rl->grant->replica->page[i].flags & REPLICA_ARMED))
		note_changed(rl, i);
}

void find_begin(struct find *fd)
{
	struct cache_device *dev = fd->rl->grant->replica->dev;

	fd->begun = fd->any && !atomic_load(&dev->gone);
	if (!fd->begun)
		return;
	fd->packed = xcalloc((size_t)fd->n * WORDS, sizeof(*fd->packed));
	fd->op = (struct dev_op){ .kind = DEV_FIND_CHANGED, .changed = fd->packed };
	for (unsigned k = 0; k < fd->n && !fd->err; k++)
		fd->err = drop_beyond(&fd->rl[k]);
	add_runs(fd->rl, fd->n, &fd->op);
	count(CTR_release_windows, fd->op.n > 0);
	for (unsigned k = 0; k < fd->op.n; k++)
		count(CTR_compared_pages, fd->op.runs[k].npages);
	if (!fd->err && fd->op.n > 0)
		fd->err = cache_device_begin(dev, &fd->op, &fd->wait);
	/* Else it is the device's. */
	if (fd->err)
		fd->op.n = 0;
}

int find_end(struct find *fd)
{
	unsigned nth = 0;

	if (!fd->begun)
		return 0;
	if (fd->op.n > 0)
		fd->err = cache_device_end(fd->rl->grant->replica->dev, &fd->wait);
	for (unsigned k = 0; k < fd->n; k++) {
		struct release *rl = &fd->rl[k];

		for (unsigned i = rl->a; (i = bits_first(rl->compare, i, rl->b)) < rl->b; i++, nth++)
			note_found(rl, i, fd->err || bit_test(fd->packed, nth));
		if (fd->err)
			take_for_changed(rl);
	}
	free((void *)fd->op.runs);
	free(fd->packed);
	return fd->err;
}

/* Snapshot changed pages that other mappings go on writing. The caller fetches those for which there is no room. */
static bool secure_shared(struct replica *rep, const uint64_t *pages, unsigned a, unsigned b)
{
	struct devmem *shadow = replica_shadow(rep);
	struct dev_run *runs;
	struct dev_op op = { .kind = DEV_COPY_WITHIN };
	int err;

	if (!shadow)
		return false;
	op.runs = runs = xmalloc((b - a) * sizeof(*runs));
	for (unsigned i = a; i < b; i++)
		if (bit_test(pages, i))
			dev_run_add(&op, runs, shadow, i, NULL, rep->mem);
	err = cache_device_run(rep->dev, &op);
	free(runs);
	if (err)
		replica_shadow_done(rep);
	else
		count(CTR_device_snapshots, bits_count(pages, GAIA_CHUNK_PAGES / 64));
	return err == 0;
}

/* Publish page i, which was held for writing. chunk->lock held, page locked. Whether it had changed. */
static bool publish_page(struct release *rl, unsigned i, bool secured)
{
	enum found found = bit_test(rl->whole, i) ? FOUND_WHOLE : bit_test(rl->changed_pages, i) ? FOUND_CHANGED : FOUND_EQUAL;
	struct chunk *ch = rl->ch;

	/* Of what is behind a cut, if the file has anything there, it says nothing. */
	if (found == FOUND_WHOLE && rl->grant->replica->page[i].cut >= page_limit(ch, i))
		replica_drop_lost_of_others(rl->grant->replica, i);
	if (!replica_release(rl->grant->replica, i, bit_test(rl->ended, i), found, secured && bit_test(rl->shared, i)))
		return false;
	/* The device has not armed it anew. */
	if (bit_test(rl->detected, i))
		replica_disarmed(rl->grant->replica, i);
	count(CTR_detected_pages, bit_test(rl->detected, i));
	rl->changed = true;
	count(CTR_released_pages, 1);
	count(CTR_overwritten_pages, found == FOUND_WHOLE);
	if (ch->track->page[i].may_hold) {
		rl->opened[i] = window_open(ch, i);
		bit_set(rl->published, i);
	}
	return true;
}

/* For each segment, with its pages of the chunk and how many holds of them go. chunk->lock is held. */
static void each_segment(struct release *rl, void (*call)(struct release *rl, unsigned a, unsigned b, unsigned n))
{
	unsigned a, b;

	SEGMENTS_FOREACH(s, rl->take) {
		segment_in_chunk(s, rl->ch->index, &a, &b);
		call(rl, a, b, s->n);
	}
}

int release_each_run(struct release *rl, int (*call)(struct chunk *ch, unsigned a, unsigned b))
{
	int err = 0, first = 0;

	FOR_RUNS(rl->pages, rl->a, rl->b, i, j) {
		err = call(rl->ch, i, j);
		first = first ? first : err;
	}
	return first;
}

static void note_held(struct release *rl, unsigned a, unsigned b, unsigned n)
{
	grant_held(rl->grant, a, b, HELD_WRITING, rl->writing);
	grant_held(rl->grant, a, b, HELD_OVERWRITING, rl->over);
	grant_held_at_most(rl->grant, a, b, n, rl->last);
}

static void end_holds(struct release *rl, unsigned a, unsigned b, unsigned n)
{
	grant_released(rl->grant, a, b, n, rl->ended);
}

static void end_lost_holds(struct release *rl, unsigned a, unsigned b, unsigned n)
{
	grant_release_lost(rl->grant, a, b, n);
}

/* Of what is given back, pages that are held otherwise, too, by this mapping or another one: those publish them. chunk->lock is held. */
static void leave_to_others(struct release *rl)
{
	for (unsigned i = rl->a; (i = bits_first(rl->writing, i, rl->b)) < rl->b; i++)
		if (!bit_test(rl->last, i) || replica_writers(rl->grant->replica, i) > 1)
			bit_clear(rl->writing, i);
}

/*
 * Whether the client's word tells of page @i all that a release has to know. On the host, where it has found stores, and perhaps more, the device
 * is asked what these changed, if it remembers what there was.
 */
static bool is_told(const struct release *rl, unsigned i)
{
	const struct replica *rep = rl->grant->replica;

	if (!rl->told || !replica_is_detected(rep, i))
		return false;
	return !bit_test(rl->found, i) || !rep->dev->home || !(rep->page[i].flags & REPLICA_ARMED);
}

/* Fresh pages that are given back by the last who holds them. chunk->lock is held. */
static unsigned fresh_of_nobody(const struct release *rl, uint64_t *pages)
{
	const struct replica *rep = rl->grant->replica;

	for (unsigned i = rl->a; (i = bits_first(rl->writing, i, rl->b)) < rl->b; i++)
		if (bit_test(rl->over, i) && replica_is_fresh(rep, i) && !rep->page[i].left)
			bit_set(pages, i);
	return (unsigned)bits_count(pages, WORDS);
}

/* Those of these pages, which were zeros when they became fresh, that are not zeros any more are not among them afterwards. If it fails all are. */
static int keep_zeros(const struct release *rl, uint64_t *pages, unsigned n)
{
	const struct replica *rep = rl->grant->replica;
	char *bytes = aligned_alloc(GAIA_PAGE, (size_t)n * GAIA_PAGE);
	struct dev_run *runs = xmalloc(n * sizeof(*runs));
	struct dev_op op = { .kind = DEV_COPY_OUT, .runs = runs };
	int err;

	n = 0;
	for (unsigned i = 0; bytes && (i = bits_first(pages, i, GAIA_CHUNK_PAGES)) < GAIA_CHUNK_PAGES; i++, n++)
		dev_run_add(&op, runs, rep->mem, i, bytes + (size_t)n * GAIA_PAGE, NULL);
	err = bytes ? cache_device_run(rep->dev, &op) : -ENOMEM;
	n = 0;
	for (unsigned i = 0; !err && (i = bits_first(pages, i, GAIA_CHUNK_PAGES)) < GAIA_CHUNK_PAGES; i++, n++)
		if (memcmp(bytes + (size_t)n * GAIA_PAGE, frame_zeros, rep->page[i].cut) != 0)
			bit_clear(pages, i);
	free(runs);
	free(bytes);
	return err;
}

void release_look_at(struct release *rl)
{
	struct replica *rep = rl->grant->replica;
	uint64_t untouched[WORDS] = { 0 };
	unsigned n = 0;

	pthread_mutex_lock(&rl->ch->lock);
	each_segment(rl, note_held);
	if (rl->unused) {
		leave_to_others(rl);
		n = fresh_of_nobody(rl, untouched);
	}
	if (n > 0) {
		pthread_mutex_unlock(&rl->ch->lock);
		rl->err = keep_zeros(rl, untouched, n);
		pthread_mutex_lock(&rl->ch->lock);
	}
	rl->any = bits_any(rl->writing, WORDS);
	/* What is void may be so because it was lost (page_drop_lost()), of which others were told. */
	for (unsigned i = rl->a; (i = bits_first(rl->writing, i, rl->b)) < rl->b; i++) {
		if (replica_writers(rep, i) > bit_test(rl->last, i))
			bit_set(rl->held_on, i);
		if (rep->page[i].cut == 0)
			continue;
		/*
		 * What is given back nobody has stored to, unless its hold was taken for another's: what is fresh is discarded if it is as it
		 * was, or has what a client has left that is gone. What has a base is compared.
		 */
		if (bit_test(rl->over, i) && !bit_test(untouched, i) && !(rl->unused && (rep->page[i].left || !replica_is_fresh(rep, i)))) {
			bit_set(rl->whole, i);
			note_changed(rl, i);
		} else if (is_told(rl, i)) {
			bit_set(rl->detected, i);
			if (bit_test(rl->found, i))
				note_changed(rl, i);
		} else if (replica_has_base(rep, i) && !(rl->unused && rep->page[i].left)) {
			bit_set(rl->compare, i);
		}
	}
	pthread_mutex_unlock(&rl->ch->lock);
}

int release_publish(struct release *rl)
{
	struct replica *rep = rl->grant->replica;
	struct chunk *ch = rl->ch;
	bool any_shared = bits_any(rl->shared, WORDS), secured = false, spoiled;
	uint64_t n = 0;

	if (rl->any && atomic_load(&rep->dev->gone)) {
		pthread_mutex_lock(&ch->lock);
		each_segment(rl, end_lost_holds);
		pthread_mutex_unlock(&ch->lock);
		return -ENODEV;
	}
	if (any_shared)
		secured = secure_shared(rep, rl->shared, rl->a, rl->b);
	(void)fault_point("release.before_publish");

	pthread_mutex_lock(&ch->lock);
	each_segment(rl, end_holds);
	/* Holds end also of pages that are left to others. (And one of an acquire that was under way may be the last after all.) */
	for (unsigned w = 0; w < WORDS && rl->unused; w++)
		rl->writing[w] |= rl->ended[w];
	for (unsigned i = rl->a; (i = bits_first(rl->writing, i, rl->b)) < rl->b; i++)
		n += publish_page(rl, i, secured);
	moved(&ch->file->moved, MOVED_released_bytes, n * GAIA_PAGE);
	replica_overwritten(rep, rl->whole);
	replica_shadow_trim(rep);
	spoiled = replica_is_spoiled(rep);
	pthread_mutex_unlock(&ch->lock);
	if (secured)
		replica_shadow_done(rep);
	/*
	 * Pages that others go on writing and that could not be secured belong home; and so does what somebody who is not a client
	 * any more may write. They are released, whether fetching works now or when somebody asks for them; in the latter case with
	 * what the others have written by then.
	 */
	if (spoiled)
		(void)release_each_run(rl, pages_secure);
	else if (any_shared && !secured)
		(void)release_each_run(rl, fetch_pages);
	pthread_mutex_lock(&ch->lock);
	FOR_RUNS(rl->pages, rl->a, rl->b, i, j)
		replica_scrub(rep, i, j, true);
	pthread_mutex_unlock(&ch->lock);
	return 0;
}

bool release_unwritten(struct release *rl)
{
	struct replica *rep = rl->grant->replica;
	struct chunk *ch = rl->ch;
	bool unwritten;

	if (cfile_is_passthrough(ch->file))
		return false;
	pthread_mutex_lock(&ch->lock);
	grant_end_ready(rl->grant);
	each_segment(rl, note_held);
	unwritten = !bits_any(rl->writing, WORDS) && ch->n_locked == 0 && !replica_is_spoiled(rep);
	FOR_RUNS(rl->pages, rl->a, rl->b, i, j)
		unwritten = unwritten && !replica_hides_any(rep, i, j);
	if (unwritten)
		each_segment(rl, end_holds);
	bug_on(unwritten && bits_any(rl->ended, WORDS));
	pthread_mutex_unlock(&ch->lock);
	return unwritten;
}

bool release_lock(struct release *rl, bool others)
{
	struct chunk *ch = rl->ch;
	bool ours = true;

	pthread_mutex_lock(&ch->lock);
	/* What is spoiled may have to be brought home: by itself. */
	if (others)
		ours = !replica_is_spoiled(rl->grant->replica) && pages_trylock_some(ch, rl->a, rl->b, rl->pages);
	else
		pages_lock_some(ch, rl->a, rl->b, rl->pages);
	pthread_mutex_unlock(&ch->lock);
	return ours;
}

/*
 * A release goes through its chunks window by window. While the device compares the pages of one, the next one is locked and submitted: by
 * trying, since it has pages of the first. Notifications are sent when it has none.
 */
