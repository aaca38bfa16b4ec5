/*
 * release.c - find what changed, of many chunks by one operation, and publish it; then, with no lock held, invalidate what
 * the kernel may hold of that.
 */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/state.h"

#define WORDS (GAIA_CHUNK_PAGES / 64)

/* One chunk's part of a release; a bit a page. */
struct release {
	struct chunk *ch;
	struct grant *grant; /* its replica is pinned until what changed is found; NULL: nothing of it is ours */
	unsigned a, b;
	uint64_t writing[WORDS]; /* held for it by this mapping */
	uint64_t once[WORDS];	 /* held by it once, so that this release seems to be the last */
	uint64_t compare[WORDS]; /* of those held for writing, what is not void */
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

/* Nobody can tell: who needs them gets them, but for what lies beyond the end, which may be there still. */
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

/* In the page with the end of the file, bytes past the end are dropped first. */
static int drop_beyond(const struct release *rl)
{
	struct replica *rep = rl->grant->replica;
	int err = 0;

	for (unsigned i = rl->a; (i = bits_first(rl->compare, i, rl->b)) < rl->b && !err; i++) {
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

/* The device has found that page @i @differs from what it had remembered. */
static void note_found(struct release *rl, unsigned i, bool differs)
{
	const struct page_replica *r = &rl->grant->replica->page[i];

	/* Not armed: the device compared with something else. */
	if (!differs && (r->flags & REPLICA_ARMED))
		return;
	bit_set(rl->changed_pages, i);
	if (r->writers > bit_test(rl->once, i))
		bit_set(rl->shared, i);
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
	struct chunk *ch = rl->ch;

	if (!replica_release(rl->grant->replica, i, bit_test(rl->ended, i), bit_test(rl->changed_pages, i),
			     secured && bit_test(rl->shared, i)))
		return;
	rl->changed = true;
	count(CTR_released_pages, 1);
	if (ch->track->page[i].may_hold) {
		rl->opened[i] = window_open(ch, i);
		bit_set(rl->published, i);
	}
}

static void look_at(struct release *rl)
{
	struct replica *rep = rl->grant->replica;

	pthread_mutex_lock(&rl->ch->lock);
	grant_held(rl->grant, rl->a, rl->b, HELD_WRITING, rl->writing);
	grant_held(rl->grant, rl->a, rl->b, HELD_ONCE, rl->once);
	rl->any = any_bit(rl->writing);
	/* What is void may be so because it was lost (page_drop_lost()), of which others were told. */
	for (unsigned i = rl->a; (i = bits_first(rl->writing, i, rl->b)) < rl->b; i++)
		if (rep->page[i].cut > 0)
			bit_set(rl->compare, i);
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
		grant_release_lost(rl->grant, rl->a, rl->b);
		pthread_mutex_unlock(&ch->lock);
		return -ENODEV;
	}
	if (any_shared)
		secured = secure_shared(rep, rl->shared, rl->a, rl->b);
	(void)fault_point("release.before_publish");

	pthread_mutex_lock(&ch->lock);
	grant_released(rl->grant, rl->a, rl->b, rl->ended);
	for (unsigned i = rl->a; (i = bits_first(rl->writing, i, rl->b)) < rl->b; i++)
		publish_page(rl, i, secured);
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
		(void)pages_secure(ch, rl->a, rl->b);
	else if (any_shared && !secured)
		(void)fetch_pages(ch, rl->a, rl->b);
	pthread_mutex_lock(&ch->lock);
	replica_scrub(rep, rl->a, rl->b, true);
	pthread_mutex_unlock(&ch->lock);
	return 0;
}

/* If nothing was held for writing, and no memory must be hidden, only the holds have to end. */
static bool release_unwritten(struct grant *g, unsigned a, unsigned b)
{
	struct replica *rep = g->replica;
	struct chunk *ch = rep->chunk;
	uint64_t bits[GAIA_CHUNK_PAGES / 64] = { 0 };
	bool unwritten;

	if (cfile_is_passthrough(ch->file))
		return false;
	pthread_mutex_lock(&ch->lock);
	grant_end_ready(g);
	grant_held(g, a, b, HELD_WRITING, bits);
	unwritten = bits_first(bits, a, b) == b && ch->n_locked == 0 && !replica_is_spoiled(rep) &&
		    !replica_hides_any(rep, a, b);
	if (unwritten)
		grant_released(g, a, b, bits);
	bug_on(unwritten && any_bit(bits));
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
		ours = !replica_is_spoiled(rl->grant->replica) && pages_trylock(ch, rl->a, rl->b);
	else
		pages_lock(ch, rl->a, rl->b);
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

		part->err = err ? err : passthrough_left_over(part->ch, part->a, part->b);
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
			rl->err = passthrough_released(rl->ch, rl->a, rl->b);
		rs->err = rs->err ? rs->err : rl->err;
		pthread_mutex_lock(&rl->ch->lock);
		pages_unlock(rl->ch, rl->a, rl->b);
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

/* Whether any windows are open in pages [a, b); if so, join them. */
static bool join_windows(struct release *rl, unsigned a, unsigned b)
{
	struct chunk *ch = rl->ch;
	bool any = false;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b && ch->track; i++) {
		if (ch->track->page[i].pending == 0 || bit_test(rl->published, i))
			continue;
		rl->opened[i] = window_open(ch, i);
		bit_set(rl->published, i);
		any = true;
	}
	pthread_mutex_unlock(&ch->lock);
	return any;
}

/*
 * What the caller stored may have been published by another release: by another client of the device, or by
 * another thread of this client. Then ours has found nothing new; but it must not return before the kernel has dropped
 * its copy, and the other release may take longer to get there. So we invalidate the pages of its windows, too.
 * @rl: our @n parts, in order; parts of other chunks are added, one by one. Returns how many there are then.
 */
static uint64_t join_others(struct cfile *f, struct page_span span, struct release **rl, uint64_t n)
{
	struct chunk **list;
	uint64_t ours = 0, mine = 0, all = n;
	unsigned n_chunks;

	for (uint64_t k = 0; k < n; k++)
		ours += bits_count((*rl)[k].published, GAIA_CHUNK_PAGES / 64);
	if (atomic_load(&f->n_windows) == ours)
		return n;
	n_chunks = chunk_list_get(f, span.a / GAIA_CHUNK_PAGES, (span.b - 1) / GAIA_CHUNK_PAGES, &list);
	*rl = xrealloc(*rl, (n + n_chunks + 1) * sizeof(**rl));
	for (unsigned k = 0; k < n_chunks; k++) {
		uint64_t start = list[k]->index * GAIA_CHUNK_PAGES;
		struct release other = { .ch = list[k] }, *part = &other;

		while (mine < n && (*rl)[mine].ch->index < list[k]->index)
			mine++;
		if (mine < n && (*rl)[mine].ch == list[k])
			part = &(*rl)[mine];
		if (join_windows(part, (unsigned)(MAX(span.a, start) - start),
				 (unsigned)(MIN(span.b, start + GAIA_CHUNK_PAGES) - start)) &&
		    part == &other)
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
#define RELEASE_SHARE 64u
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

/* The mapping's grants of those chunks, as grants_pin() has them. */
static unsigned pin_rest(struct mapping *m, struct ready_rest *rest, struct grant ***out)
{
	struct grant **grants;
	unsigned n = 0, more;

	*out = NULL;
	for (unsigned k = 0; k < rest->n; k++) {
		more = grants_pin(m, rest->run[k].a, rest->run[k].b - 1, &grants);
		*out = xrealloc(*out, (n + more + 1) * sizeof(struct grant *));
		memcpy(*out + n, grants, more * sizeof(struct grant *));
		n += more;
		free(grants);
	}
	free(rest->run);
	return n;
}

/* The grant's pages of the file's pages [first, last]: [*a, *b). */
static void pages_of(const struct grant *g, uint64_t first, uint64_t last, unsigned *a, unsigned *b)
{
	*a = page_in_chunk(first, g->index, 0, 0);
	*b = page_in_chunk(last, g->index, 0, GAIA_CHUNK_PAGES - 1) + 1;
}

int cache_release(struct mapping *m, uint64_t off, uint64_t len, bool *changed_out)
{
	uint64_t first, last, at_once = chunks_at_once(m->file->cache);
	struct releasing rs = { .f = m->file, .one_by_one = at_once == 1 };
	struct group group[2], *g = &group[0], *before = &group[1], *full;
	struct ready_rest rest = { .n = 0 };
	struct grant **held;
	bool changed = false;
	unsigned n, a, b;
	int err;

	if (changed_out)
		*changed_out = false;
	if (off < m->off || len > m->len || off - m->off > m->len - len)
		return -EINVAL;
	if (len == 0)
		return 0;
	/* Not cut to the file's size: what was acquired before a truncate is released, too. */
	first = off / GAIA_PAGE;
	last = (off + len - 1) / GAIA_PAGE;
	if (fault_point("break.publish_late"))
		m->file->cache->host.invalidate(m->file->cache->host_arg, m->file->cookie, (off_t)off,
						(off_t)len);
	err = spans_room(m, first, last + 1);
	if (err)
		return err;
	if (ready_release(m, (struct page_span){ first, last + 1 }, &rest)) {
		count(CTR_releases, 1);
		return 0;
	}
	wanted_release(m, first, last + 1);
	n = pin_rest(m, &rest, &held);
	for (unsigned k = 0; k < 2; k++)
		group[k] = (struct group){ .rl = xcalloc(MIN(n, at_once) + 1, sizeof(struct release)) };
	/* At first, while nothing is locked. */
	for (unsigned k = 0; k < n; k++) {
		pages_of(held[k], first, last, &a, &b);
		if (!release_unwritten(held[k], a, b))
			continue;
		grant_make_ready(held[k]);
		replica_unpin(held[k]->replica);
		held[k] = NULL;
	}
	for (unsigned k = 0; k < n; k++) {
		if (!held[k])
			continue;
		if (g->n == at_once) {
			changed |= group_release(&rs, g, before);
			full = g;
			g = before;
			before = full;
		}
		pages_of(held[k], first, last, &a, &b);
		g->rl[g->n++] = (struct release){ .ch = chunk_ref(held[k]->replica->chunk), .grant = held[k], .a = a, .b = b };
	}
	changed |= group_release(&rs, g, before);
	settle(&rs);
	err = rs.err;
	for (uint64_t k = 0; k < g->n; k++)
		changed |= g->rl[k].changed;
	if (!err)
		err = passthrough_release_again(m->file, off, len);
	/* In a passthrough file what was put has set the time. */
	if (changed && !cfile_is_passthrough(m->file))
		cfile_touch(m->file);
	if (changed_out)
		*changed_out = changed;
	/* A mapping that cannot store waits for nothing; where the kernel writes through, it may not even invalidate. */
	if (!err && (m->prot & GAIA_PROT_WRITE))
		g->n = join_others(m->file, (struct page_span){ first, last + 1 }, &g->rl, g->n);
	(void)group_complete(m->file, g);
	free(g->rl);
	free(before->rl);
	free(held);
	count(CTR_releases, 1);
	return after_holds(err);
}
