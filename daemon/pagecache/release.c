/*
 * release.c - find what changed, of many chunks by one operation, and publish it; then, with no lock held, invalidate what
 * the kernel may hold of that. Of one range or of a list of ranges (segments.h).
 */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/state.h"

#define WORDS (GAIA_CHUNK_PAGES / 64)

/* One chunk's part of a release; a bit a page. */
struct release {
	struct chunk *ch;
	struct grant *grant; /* its replica is pinned until what changed is found; NULL: nothing of it is ours */
	struct segments take; /* the holds to take away: those that have pages of the chunk */
	bool unused;	      /* see cache_give_back(): only pages that nobody else holds are published */
	unsigned a, b;		 /* the first of @pages, and behind the last */
	uint64_t pages[WORDS];	 /* to release */
	uint64_t writing[WORDS]; /* of these: held for writing by this mapping */
	uint64_t last[WORDS];	 /* held by it no more often than this release takes away, so that it seems to be the last */
	uint64_t held_on[WORDS]; /* of those held for writing, what it or another mapping seems to go on holding so */
	uint64_t over[WORDS];	 /* and for overwriting */
	uint64_t whole[WORDS];	 /* of these, what is not void: to be published without a comparison */
	uint64_t compare[WORDS]; /* of the others, what is not void, and not: */
	uint64_t detected[WORDS]; /* what its client can tell of whether it has changed */
	bool told;		  /* the client has told what it has found changed: */
	uint64_t found[WORDS];
	uint64_t changed_pages[WORDS];
	uint64_t shared[WORDS];	 /* changed, and somebody goes on writing them */
	uint64_t ended[WORDS];	 /* held for writing by it no more */
	bool any;		 /* held for writing */
	int err;

	uint64_t published[WORDS]; /* by us or others, and the kernel may hold copies */
	uint16_t opened[GAIA_CHUNK_PAGES]; /* of those, see window_open() */
	bool changed;
};

static bool any_bit(const uint64_t *bits)
{
	return bits_first(bits, 0, GAIA_CHUNK_PAGES) < GAIA_CHUNK_PAGES;
}

/* It cannot be found out what changed, so all counts as changed, except bytes beyond the file's end, which may be there still. */
static void take_for_changed(struct release *rl)
{
	struct replica *rep = rl->grant->replica;

	pthread_mutex_lock(&rl->ch->lock);
	for (unsigned i = rl->a; (i = bits_first(rl->compare, i, rl->b)) < rl->b; i++) {
		unsigned limit = page_limit(rl->ch, i);

		replica_disarmed(rep, i);
		if (limit < GAIA_PAGE)
			replica_cut(rep, i, limit);
	}
	pthread_mutex_unlock(&rl->ch->lock);
}

/* The next page that may be published and in which something may have been stored beyond the end of the file. */
static unsigned next_to_cut(const struct release *rl, unsigned i)
{
	unsigned compare = bits_first(rl->compare, i, rl->b);

	for (i = bits_first(rl->detected, i, rl->b); i < rl->b && !bit_test(rl->found, i);)
		i = bits_first(rl->detected, i + 1, rl->b);
	return MIN(i, compare);
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
		for (unsigned i = rl[k].a; (i = bits_first(rl[k].compare, i, rl[k].b)) < rl[k].b; i++) {
			if (op->n == room) {
				room = MAX(2 * room, 16u);
				runs = xrealloc(runs, room * sizeof(*runs));
			}
			dev_run_add(op, runs, rl[k].grant->replica->mem, i, NULL, NULL);
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

/* Parts whose pages are locked, and whose changed pages are being found by one operation. */
struct find {
	struct release *rl;
	unsigned n;
	bool any; /* something is held for writing */
	bool begun;
	uint64_t *packed; /* a bit for each page to compare, in order */
	struct dev_op op;
	struct device_wait wait;
	int err;
};

static void find_begin(struct find *fd)
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
	if (!fd->err && fd->op.n > 0)
		fd->err = cache_device_begin(dev, &fd->op, &fd->wait);
	/* Else it is the device's. */
	if (fd->err)
		fd->op.n = 0;
}

/* On error nobody knows what the device has compared: all count as changed. */
static int find_end(struct find *fd)
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

/* Publish page i, which was held for writing. chunk->lock held, page locked. */
static void publish_page(struct release *rl, unsigned i, bool secured)
{
	enum found found = bit_test(rl->whole, i) ? FOUND_WHOLE : bit_test(rl->changed_pages, i) ? FOUND_CHANGED : FOUND_EQUAL;
	struct chunk *ch = rl->ch;

	if (found == FOUND_WHOLE)
		replica_drop_lost_of_others(rl->grant->replica, i);
	if (!replica_release(rl->grant->replica, i, bit_test(rl->ended, i), found, secured && bit_test(rl->shared, i)))
		return;
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

/* For each run of its pages: the first error. */
static int each_run(struct release *rl, int (*call)(struct chunk *ch, unsigned a, unsigned b))
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

static void look_at(struct release *rl)
{
	struct replica *rep = rl->grant->replica;

	pthread_mutex_lock(&rl->ch->lock);
	each_segment(rl, note_held);
	if (rl->unused)
		leave_to_others(rl);
	rl->any = any_bit(rl->writing);
	/* What is void may be so because it was lost (page_drop_lost()), of which others were told. */
	for (unsigned i = rl->a; (i = bits_first(rl->writing, i, rl->b)) < rl->b; i++) {
		if (replica_writers(rep, i) > bit_test(rl->last, i))
			bit_set(rl->held_on, i);
		if (rep->page[i].cut == 0)
			continue;
		if (bit_test(rl->over, i)) {
			bit_set(rl->whole, i);
			note_changed(rl, i);
		} else if (rl->told && replica_is_detected(rep, i)) {
			bit_set(rl->detected, i);
			if (bit_test(rl->found, i))
				note_changed(rl, i);
		} else if (replica_has_base(rep, i)) {
			bit_set(rl->compare, i);
		}
	}
	pthread_mutex_unlock(&rl->ch->lock);
}

/* The changed pages have been found. The holds end, whatever happens; on error what was stored is kept, and is published as far as it is known. */
static int publish(struct release *rl)
{
	struct replica *rep = rl->grant->replica;
	struct chunk *ch = rl->ch;
	bool any_shared = any_bit(rl->shared), secured = false, spoiled;

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
		publish_page(rl, i, secured);
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
		(void)each_run(rl, pages_secure);
	else if (any_shared && !secured)
		(void)each_run(rl, fetch_pages);
	pthread_mutex_lock(&ch->lock);
	FOR_RUNS(rl->pages, rl->a, rl->b, i, j)
		replica_scrub(rep, i, j, true);
	pthread_mutex_unlock(&ch->lock);
	return 0;
}

/* If nothing was held for writing, and no memory must be hidden, only the holds have to end. */
static bool release_unwritten(struct release *rl)
{
	struct replica *rep = rl->grant->replica;
	struct chunk *ch = rl->ch;
	bool unwritten;

	if (cfile_is_passthrough(ch->file))
		return false;
	pthread_mutex_lock(&ch->lock);
	grant_end_ready(rl->grant);
	each_segment(rl, note_held);
	unwritten = !any_bit(rl->writing) && ch->n_locked == 0 && !replica_is_spoiled(rep);
	FOR_RUNS(rl->pages, rl->a, rl->b, i, j)
		unwritten = unwritten && !replica_hides_any(rep, i, j);
	if (unwritten)
		each_segment(rl, end_holds);
	bug_on(unwritten && any_bit(rl->ended));
	pthread_mutex_unlock(&ch->lock);
	return unwritten;
}

/* Lock the part's pages; @others: pages of other chunks are locked already, so do not wait: whether it worked. */
static bool part_lock(struct release *rl, bool others)
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
struct releasing {
	struct cfile *f;
	struct find find[2], *under_way;
	bool ranged; /* has file->range: as long as something is under way */
	bool one_by_one; /* a group is complete before the next begins */
	int err;     /* the first */
};

/*
 * Lock the pages of as many of the @n parts as can be had without waiting, of one at least unless pages of @others are locked, and note what
 * must be compared. Errors are kept in the parts: the holds end all the same.
 */
static void window_begin(struct find *fd, struct cfile *f, struct release *rl, unsigned n, bool others)
{
	int err = passthrough_before_release(f);

	*fd = (struct find){ .rl = rl };
	for (; fd->n < n && part_lock(&rl[fd->n], others || fd->n > 0); fd->n++) {
		struct release *part = &rl[fd->n];

		part->err = err ? err : each_run(part, passthrough_left_over);
		look_at(part);
		fd->any |= part->any;
	}
	if (fd->n > 0)
		find_begin(fd);
}

/* Publish what has changed in what is under way. */
static void window_publish(struct releasing *rs)
{
	struct find *fd = rs->under_way;
	int found, err;

	if (!fd)
		return;
	rs->under_way = NULL;
	found = find_end(fd);
	for (unsigned k = 0; k < fd->n; k++) {
		struct release *rl = &fd->rl[k];

		err = publish(rl);
		err = rl->any && found ? found : err;
		rl->err = rl->err ? rl->err : err;
		if (!rl->err)
			rl->err = each_run(rl, passthrough_released);
		rs->err = rs->err ? rs->err : rl->err;
		pthread_mutex_lock(&rl->ch->lock);
		pages_unlock_some(rl->ch, rl->a, rl->b, rl->pages);
		pthread_mutex_unlock(&rl->ch->lock);
		chunk_account(rl->ch);
		grant_make_ready(rl->grant);
		replica_unpin(rl->grant->replica);
	}
}

/* Nothing is under way, and no lock is held. */
static void settle(struct releasing *rs)
{
	window_publish(rs);
	if (rs->ranged)
		pthread_rwlock_unlock(&rs->f->range);
	rs->ranged = false;
}

/* Begin a window of some of the @n parts, and publish the one before: how many. */
static unsigned window_next(struct releasing *rs, struct release *rl, unsigned n)
{
	struct find *next = rs->under_way == &rs->find[0] ? &rs->find[1] : &rs->find[0];

	/* Before that waits for anything, and where a truncate waits for us. */
	if (cfile_is_passthrough(rs->f) || atomic_load(&rs->f->range_waiters) > 0)
		settle(rs);
	if (!rs->ranged)
		pthread_rwlock_rdlock(&rs->f->range);
	rs->ranged = true;
	window_begin(next, rs->f, rl, n, rs->under_way != NULL);
	window_publish(rs);
	if (next->n == 0)
		window_begin(next, rs->f, rl, n, false);
	rs->under_way = next;
	return next->n;
}

/* The chunk's part of a release of these. */
static struct release part_of(struct chunk *ch, struct segments segs, bool unused)
{
	struct release rl = { .ch = ch, .take = segments_of_chunk(segs, ch->index), .unused = unused };
	unsigned a, b;

	SEGMENTS_FOREACH(s, rl.take) {
		segment_in_chunk(s, ch->index, &a, &b);
		bits_set(rl.pages, a, b);
		rl.b = b;
	}
	rl.a = bits_first(rl.pages, 0, rl.b);
	return rl;
}

/* Whether any windows are open in these pages; if so, join them. */
static bool join_windows(struct release *rl, const uint64_t *pages)
{
	struct chunk *ch = rl->ch;
	bool any = false;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; ch->track && (i = bits_first(pages, i, GAIA_CHUNK_PAGES)) < GAIA_CHUNK_PAGES; i++) {
		if (ch->track->page[i].pending == 0 || bit_test(rl->published, i))
			continue;
		rl->opened[i] = window_open(ch, i);
		bit_set(rl->published, i);
		any = true;
	}
	pthread_mutex_unlock(&ch->lock);
	return any;
}

/* The chunks in which these lie, with references, in order; *@out to be freed. */
static unsigned chunks_of(struct cfile *f, struct segments segs, struct chunk ***out)
{
	struct chunk **list;
	unsigned all = chunk_list_get(f, segs.at[0].a / GAIA_CHUNK_PAGES, (segs.at[segs.n - 1].b - 1) / GAIA_CHUNK_PAGES, &list), n = 0;

	for (unsigned k = 0; k < all; k++) {
		if (segments_of_chunk(segs, list[k]->index).n > 0)
			list[n++] = list[k];
		else
			chunk_put(list[k]);
	}
	*out = list;
	return n;
}

/*
 * What the caller stored may have been published by another release: by another client of the device, or by
 * another thread of this client. Then ours has found nothing new; but it must not return before the kernel has dropped
 * its copy, and the other release may take longer to get there. So we invalidate the pages of its windows, too.
 * @rl: our @n parts, in order; parts of other chunks are added, one by one. Returns how many there are then.
 */
static uint64_t join_others(struct cfile *f, struct segments asked, struct release **rl, uint64_t n)
{
	struct chunk **list;
	uint64_t ours = 0, mine = 0, all = n;
	unsigned n_chunks;

	for (uint64_t k = 0; k < n; k++)
		ours += bits_count((*rl)[k].published, GAIA_CHUNK_PAGES / 64);
	if (atomic_load(&f->n_windows) == ours)
		return n;
	n_chunks = chunks_of(f, asked, &list);
	*rl = xrealloc(*rl, (n + n_chunks + 1) * sizeof(**rl));
	for (unsigned k = 0; k < n_chunks; k++) {
		struct release other = part_of(list[k], asked, false), *part = &other;

		while (mine < n && (*rl)[mine].ch->index < list[k]->index)
			mine++;
		if (mine < n && (*rl)[mine].ch == list[k])
			part = &(*rl)[mine];
		if (join_windows(part, other.pages) && part == &other)
			(*rl)[all++] = other;
		else
			chunk_put(list[k]);
	}
	free(list);
	return all;
}

/* With "break.forget_again" the fault makes us trust what the kernel wrote back or read since the release. */
static bool to_invalidate(const struct release *rl, unsigned i)
{
	return bit_test(rl->published, i) &&
	       !(fault_point("break.forget_again") &&
		 rl->ch->track->page[i].given != rl->opened[i]);
}

/* Invalidate what was published, in runs, and close the windows. No lock is held. */
static void invalidate_published(struct cfile *f, struct release *rl, uint64_t n)
{
	struct cache *c = f->cache;
	uint64_t run = 0, from = 0, at;

	(void)fault_point("release.before_invalidate");
	for (uint64_t k = 0; k <= n && !fault_point("break.publish_late"); k++)
		for (unsigned i = 0; i < (k < n ? GAIA_CHUNK_PAGES : 1); i++) {
			at = k < n ? rl[k].ch->index * GAIA_CHUNK_PAGES + i : UINT64_MAX;
			if (run > 0 && (k == n || at != from + run || !to_invalidate(&rl[k], i))) {
				c->host.invalidate(c->host_arg, f->cookie, (off_t)(from * GAIA_PAGE),
						   (off_t)(run * GAIA_PAGE));
				count(CTR_kernel_invalidated, run);
				run = 0;
			}
			if (k < n && to_invalidate(&rl[k], i)) {
				if (run == 0)
					from = at;
				run++;
			}
		}
	for (uint64_t k = 0; k < n; k++) {
		struct chunk *ch = rl[k].ch;

		pthread_mutex_lock(&ch->lock);
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
			if (!bit_test(rl[k].published, i))
				continue;
			window_close(ch, i, rl[k].opened[i]);
		}
		track_maybe_free(ch);
		pthread_mutex_unlock(&ch->lock);
	}
}

/*
 * So many chunks, or twice as many, are published before the kernel's copies of them are invalidated. Until then home's old bytes are
 * kept for each page that changes again: at most twice this part of home for one release.
 */
#define RELEASE_SHARE 32u
#define RELEASE_CHUNKS 32u

static uint64_t chunks_at_once(const struct cache *c)
{
	return MAX(1u, MIN(c->frames.budget / RELEASE_SHARE / GAIA_CHUNK_PAGES, (uint64_t)RELEASE_CHUNKS));
}

/* Parts that are published together. */
struct group {
	struct release *rl;
	uint64_t n;
};

static bool group_has_published(const struct group *g)
{
	for (uint64_t k = 0; k < g->n; k++)
		if (any_bit(g->rl[k].published))
			return true;
	return false;
}

/* Nothing of it was published for the kernel. Whether anything had changed. */
static bool group_end(struct group *g)
{
	bool changed = false;

	for (uint64_t k = 0; k < g->n; k++) {
		changed |= g->rl[k].changed;
		chunk_put(g->rl[k].ch);
	}
	g->n = 0;
	return changed;
}

/* What was published is so for the kernel, too. No lock is held. Whether anything had changed. */
static bool group_complete(struct cfile *f, struct group *g)
{
	invalidate_published(f, g->rl, g->n);
	again_wait(f);
	return group_end(g);
}

/* Release the parts of @g, which may be under way still; what was @before it is complete by then. Whether anything of that had changed. */
static bool group_release(struct releasing *rs, struct group *g, struct group *before)
{
	bool changed = false;

	if (rs->one_by_one && before->n > 0) {
		settle(rs);
		changed = group_complete(rs->f, before);
	}
	for (uint64_t at = 0; at < g->n;) {
		at += window_next(rs, g->rl + at, (unsigned)(g->n - at));
		if (!group_has_published(before)) {
			changed |= group_end(before);
			continue;
		}
		/* The kernel must be told with nothing locked; so must it be of what comes next, probably. */
		rs->one_by_one = true;
		settle(rs);
		changed |= group_complete(rs->f, before);
	}
	return changed;
}

/* These errors, which a store or a device may return, too, would tell the client that nothing has changed. */
static int after_holds(int err)
{
	switch (err) {
	case -EINVAL:
	case -EINTR:
	case -ENOTCONN:
	case -ENOBUFS:
	case -ENOSR:
		return -EIO;
	}
	return err;
}

/* One release under way. */
struct releases {
	struct mapping *m;
	struct segments asked;	/* what the caller named; */
	struct segments rest;	/* and what of it is not released yet */
	struct releasing rs;
	struct grant **grant;	/* of what the mapping holds of the rest; NULL: done */
	unsigned n;
	uint64_t at_once;
	struct group group[2], *g, *before;
	bool unused;		/* see cache_give_back() */
	const struct segments *told; /* what the client has found changed; NULL: it has not told */
	bool changed;
};

/* Holds of pages in chunks that the client does not map. */
static void release_wanted(struct releases *rl)
{
	SEGMENTS_FOREACH(s, rl->asked)
		wanted_release(rl->m, s->a, s->b, s->n);
}

/* What was only read is released at first, while nothing is locked. */
static void release_all_unwritten(struct releases *rl)
{
	for (unsigned k = 0; k < rl->n; k++) {
		struct release part = part_of(rl->grant[k]->replica->chunk, rl->rest, rl->unused);

		part.grant = rl->grant[k];
		if (!release_unwritten(&part))
			continue;
		grant_make_ready(part.grant);
		replica_unpin(part.grant->replica);
		rl->grant[k] = NULL;
	}
}

/* What the client has found changed of the part. */
static void part_told(struct release *rl, struct segments told)
{
	unsigned a, b;

	told = segments_of_chunk(told, rl->ch->index);
	rl->told = true;
	SEGMENTS_FOREACH(s, told) {
		segment_in_chunk(s, rl->ch->index, &a, &b);
		bits_set(rl->found, a, b);
	}
}

/* The other chunks, group by group. The last group is complete() later. */
static void release_written(struct releases *rl)
{
	struct group *full;

	for (unsigned k = 0; k < rl->n; k++) {
		struct release *part;

		if (!rl->grant[k])
			continue;
		if (rl->g->n == rl->at_once) {
			rl->changed |= group_release(&rl->rs, rl->g, rl->before);
			full = rl->g;
			rl->g = rl->before;
			rl->before = full;
		}
		part = &rl->g->rl[rl->g->n++];
		*part = part_of(chunk_ref(rl->grant[k]->replica->chunk), rl->rest, rl->unused);
		part->grant = rl->grant[k];
		if (rl->told)
			part_told(part, *rl->told);
	}
	rl->changed |= group_release(&rl->rs, rl->g, rl->before);
	settle(&rl->rs);
	for (uint64_t k = 0; k < rl->g->n; k++)
		rl->changed |= rl->g->rl[k].changed;
}

/* What earlier releases could not store of a file that is passed through. */
static int store_left_over(const struct releases *rl)
{
	struct chunk **list;
	int err = rl->rs.err;
	unsigned n;

	if (err || !passthrough_has_left_over(rl->m->file))
		return err;
	n = chunks_of(rl->m->file, rl->asked, &list);
	for (unsigned k = 0; k < n; k++) {
		const struct release part = part_of(list[k], rl->asked, rl->unused);
		int failed = passthrough_release_again(list[k], part.pages);

		err = err ? err : failed;
		chunk_put(list[k]);
	}
	free(list);
	return err;
}

/* What was published last is so for the kernel, too; and so is what others have published for this caller. */
static void complete(struct releases *rl, bool join)
{
	if (join)
		rl->g->n = join_others(rl->m->file, rl->asked, &rl->g->rl, rl->g->n);
	(void)group_complete(rl->m->file, rl->g);
}

/* The holds of the rest end, whatever happens. */
static int release_rest(struct releases *rl)
{
	struct cfile *f = rl->m->file;
	int err;

	release_wanted(rl);
	rl->at_once = chunks_at_once(f->cache);
	rl->rs = (struct releasing){ .f = f, .one_by_one = rl->at_once == 1 };
	rl->n = grants_pin(rl->m, rl->rest, &rl->grant);
	for (unsigned k = 0; k < 2; k++)
		rl->group[k] = (struct group){ .rl = xcalloc(MIN(rl->n, rl->at_once) + 1, sizeof(struct release)) };
	rl->g = &rl->group[0];
	rl->before = &rl->group[1];
	release_all_unwritten(rl);
	release_written(rl);
	err = store_left_over(rl);
	/* In a passthrough file what was put has set the time. */
	if (rl->changed && !cfile_is_passthrough(f))
		cfile_touch(f);
	/* A mapping that cannot store waits for nothing; where the kernel writes through, it may not even invalidate. */
	complete(rl, !err && (rl->m->prot & GAIA_PROT_WRITE) && !rl->unused);
	free(rl->group[0].rl);
	free(rl->group[1].rl);
	free(rl->grant);
	return err;
}

/* With "break.publish_late" the kernel is told too early. */
static void invalidate_early(struct mapping *m, struct segments asked)
{
	struct cache *c = m->file->cache;

	SEGMENTS_FOREACH(s, asked)
		c->host.invalidate(c->host_arg, m->file->cookie, (off_t)(s->a * GAIA_PAGE), (off_t)((s->b - s->a) * GAIA_PAGE));
}

static int release_segments(struct mapping *m, struct segments asked, const struct segments *told, bool unused, bool *changed)
{
	struct releases rl = { .m = m, .asked = asked, .rest = asked, .unused = unused, .told = told };
	struct segments not_ready = { .n = 0 };
	uint64_t room;
	int err;

	if (fault_point("break.publish_late"))
		invalidate_early(m, asked);
	err = spans_room(m, asked, &room);
	if (err)
		return err;
	count(CTR_releases, 1);
	/* Of a list each chunk is released as a whole: all of its segments, or none. */
	if (segments_are_one_range(asked)) {
		bool all = ready_release(m, (struct page_span){ asked.at[0].a, asked.at[0].b }, &not_ready);

		rl.rest = not_ready;
		if (!all)
			err = release_rest(&rl);
	} else {
		err = release_rest(&rl);
	}
	spans_room_end(m, room);
	free(not_ready.at);
	*changed = rl.changed;
	return after_holds(err);
}

static int release_range(struct mapping *m, uint64_t off, uint64_t len, bool unused, bool *changed)
{
	struct segment span = { off / GAIA_PAGE, (off + len - 1) / GAIA_PAGE + 1, 1 };

	*changed = false;
	if (off < m->off || len > m->len || off - m->off > m->len - len)
		return -EINVAL;
	/* Not cut to the file's size: what was acquired before a truncate is released, too. */
	return len == 0 ? 0 : release_segments(m, (struct segments){ &span, 1 }, NULL, unused, changed);
}

static int release_list(struct mapping *m, struct gaia_list_range *range, size_t n, bool unused, bool *changed)
{
	struct segments segs;
	int err;

	*changed = false;
	err = ranges_check(m, range, n);
	if (err)
		return err;
	/* An error that says that nothing has changed. */
	if (segments_make(range, n, &segs))
		return -ENOSR;
	if (segs.n > 0)
		err = release_segments(m, segs, NULL, unused, changed);
	free(segs.at);
	return err;
}

int cache_release_told(struct mapping *m, struct gaia_list_range *range, size_t n, struct gaia_list_range *told, size_t n_told,
		       bool unused, bool *changed)
{
	struct segments segs = { .n = 0 }, found = { .n = 0 };
	int err;

	*changed = false;
	err = ranges_check(m, range, n);
	if (!err)
		err = ranges_check(m, told, n_told);
	/* An error that says that nothing has changed. */
	if (!err && (segments_make(range, n, &segs) || segments_make(told, n_told, &found)))
		err = -ENOSR;
	if (!err && !segments_cover(segs, found))
		err = -EINVAL;
	if (!err && segs.n > 0)
		err = release_segments(m, segs, m->detects ? &found : NULL, unused, changed);
	free(segs.at);
	free(found.at);
	return err;
}

int cache_release(struct mapping *m, uint64_t off, uint64_t len, bool *changed)
{
	bool ignored;

	return release_range(m, off, len, false, changed ? changed : &ignored);
}

int cache_releasev(struct mapping *m, struct gaia_list_range *range, size_t n, bool *changed)
{
	return release_list(m, range, n, false, changed);
}

int cache_give_back(struct mapping *m, uint64_t off, uint64_t len, bool *changed)
{
	return release_range(m, off, len, true, changed);
}

int cache_give_backv(struct mapping *m, struct gaia_list_range *range, size_t n, bool *changed)
{
	return release_list(m, range, n, true, changed);
}
