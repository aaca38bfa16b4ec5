/*
 * release.c - find what changed, of many chunks by one operation, and publish it; then, with no lock held, invalidate what
 * the kernel may hold of that. Of one range or of a list of ranges (segments.h).
 */
#include <errno.h>
#include <stdlib.h>

#include "base/bits.h"
#include "base/counters.h"
#include "base/fault.h"
#include "base/probe.h"
#include "base/quota.h"
#include "base/util.h"
#include "pagecache/acquire.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/coherence.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/grant.h"
#include "pagecache/mapping.h"
#include "pagecache/passthrough.h"
#include "pagecache/publish.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/segments.h"
#include "pagecache/state.h"
#include "pagecache/writeback.h"

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
static void release_window_begin(struct find *fd, struct cfile *f, struct release *rl, unsigned n, bool others)
{
	int err = passthrough_before_release(f);

	*fd = (struct find){ .rl = rl };
	for (; fd->n < n && release_lock(&rl[fd->n], others || fd->n > 0); fd->n++) {
		struct release *part = &rl[fd->n];

		part->err = err ? err : release_each_run(part, passthrough_left_over);
		release_look_at(part);
		fd->any |= part->any;
	}
	if (fd->n > 0)
		find_begin(fd);
}

/* Publish what has changed in what is under way. */
static void release_window_publish(struct releasing *rs)
{
	struct find *fd = rs->under_way;
	int found, err;

	if (!fd)
		return;
	rs->under_way = NULL;
	found = find_end(fd);
	for (unsigned k = 0; k < fd->n; k++) {
		struct release *rl = &fd->rl[k];

		err = release_publish(rl);
		err = rl->any && found ? found : err;
		rl->err = rl->err ? rl->err : err;
		if (!rl->err)
			rl->err = release_each_run(rl, passthrough_released);
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
	release_window_publish(rs);
	if (rs->ranged)
		pthread_rwlock_unlock(&rs->f->range);
	rs->ranged = false;
}

/* Begin a window of some of the @n parts, and publish the one before: how many. */
static unsigned release_window_next(struct releasing *rs, struct release *rl, unsigned n)
{
	struct find *next = rs->under_way == &rs->find[0] ? &rs->find[1] : &rs->find[0];

	/* Before that waits for anything, and where a truncate waits for us. */
	if (cfile_is_passthrough(rs->f) || atomic_load(&rs->f->range_waiters) > 0)
		settle(rs);
	if (!rs->ranged)
		pthread_rwlock_rdlock(&rs->f->range);
	rs->ranged = true;
	release_window_begin(next, rs->f, rl, n, rs->under_way != NULL);
	release_window_publish(rs);
	if (next->n == 0)
		release_window_begin(next, rs->f, rl, n, false);
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
	struct uses *waits;

	(void)fault_point("release.before_invalidate");
	for (uint64_t k = 0; k <= n && !fault_point("break.publish_late"); k++)
		for (unsigned i = 0; i < (k < n ? GAIA_CHUNK_PAGES : 1); i++) {
			at = k < n ? rl[k].ch->index * GAIA_CHUNK_PAGES + i : UINT64_MAX;
			if (run > 0 && (k == n || at != from + run || !to_invalidate(&rl[k], i))) {
				waits = wait_begin(WAIT_kernel);
				c->host.invalidate(c->host_arg, f->cookie, (off_t)(from * GAIA_PAGE),
						   (off_t)(run * GAIA_PAGE));
				wait_end(waits, WAIT_kernel);
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
 * kept for each page that changes again, of which nothing can be given up for room: at most twice the first part of home for one release,
 * and twice the second for all that are under way, where a chunk each is not more.
 */
#define RELEASE_SHARE 32u
#define RELEASES_SHARE 16u
#define RELEASE_CHUNKS 32u

static uint64_t chunks_at_once(const struct cache *c)
{
	uint64_t one = c->frames.budget / RELEASE_SHARE, all = c->frames.budget / RELEASES_SHARE;
	uint64_t most = MIN(one, all / MAX(1u, atomic_load(&c->n_releases))) / GAIA_CHUNK_PAGES;

	return MAX(1u, MIN(most, (uint64_t)RELEASE_CHUNKS));
}

/* Parts that are published together. */
struct group {
	struct release *rl;
	uint64_t n;
};

static bool group_has_published(const struct group *g)
{
	for (uint64_t k = 0; k < g->n; k++)
		if (bits_any(g->rl[k].published, WORDS))
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
		at += release_window_next(rs, g->rl + at, (unsigned)(g->n - at));
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
	uint64_t at_once;	/* chunks in a group, at most */
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
		/* Others may have begun meanwhile. */
		if (rl->g->n >= MIN(rl->at_once, chunks_at_once(rl->m->file->cache))) {
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
	atomic_fetch_add(&f->cache->n_releases, 1);
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
	atomic_fetch_sub(&f->cache->n_releases, 1);
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

	PROBE5(release__begin, m->file->key, asked.at[0].a, asked.at[asked.n - 1].b, asked.n, m->dev->number);
	if (fault_point("break.publish_late"))
		invalidate_early(m, asked);
	err = spans_room(m, asked, &room);
	if (err) {
		PROBE4(release__end, m->file->key, m->dev->number, err, false);
		return err;
	}
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
	err = after_holds(err);
	PROBE4(release__end, m->file->key, m->dev->number, err, rl.changed);
	return err;
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
