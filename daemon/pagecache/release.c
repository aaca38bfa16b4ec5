/*
 * release.c - chunk by chunk, find what changed and publish it; then, with no lock held, invalidate what the kernel may
 * hold of that.
 */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/state.h"

/* One chunk's part of a release. */
struct release {
	struct chunk *ch;
	uint64_t published[GAIA_CHUNK_PAGES / 64]; /* by us or others, and the kernel may hold copies */
	uint16_t opened[GAIA_CHUNK_PAGES]; /* of those, see window_open() */
	bool changed;
};

/* Nobody can tell: who needs them gets them, but for what lies beyond the end, which may be there still. */
static void take_for_changed(struct replica *rep, const uint64_t *pages, unsigned a, unsigned b, uint64_t *changed)
{
	pthread_mutex_lock(&rep->chunk->lock);
	for (unsigned i = a; i < b; i++) {
		unsigned limit = page_limit(rep->chunk, i);

		if (!bit_test(pages, i))
			continue;
		bit_set(changed, i);
		replica_disarmed(rep, i);
		if (limit < GAIA_PAGE)
			replica_cut(rep, i, limit);
	}
	pthread_mutex_unlock(&rep->chunk->lock);
}

/*
 * Find the changed ones of @pages, none of which is void. Locked by the caller. Bytes past the end are dropped first. On error all
 * count as changed.
 */
static int find_changed(struct replica *rep, const uint64_t *pages, unsigned a, unsigned b,
			uint64_t *changed)
{
	struct dev_run *runs = xmalloc((b - a) * sizeof(*runs));
	struct dev_op op = { .kind = DEV_FIND_CHANGED, .runs = runs };
	uint64_t packed[GAIA_CHUNK_PAGES / 64] = { 0 };
	unsigned nth = 0;
	int err = 0;

	for (unsigned i = a; i < b && !err; i++) {
		unsigned limit = page_limit(rep->chunk, i);

		if (!bit_test(pages, i))
			continue;
		if (limit > 0 && limit < GAIA_PAGE) {
			struct dev_run tail = { .mem = rep->mem, .page = i, .npages = 1,
						.limit = limit };
			struct dev_op zero = { .kind = DEV_ZERO, .runs = &tail, .n = 1 };

			err = cache_device_run(rep->dev, &zero);
		}
		dev_run_add(&op, runs, rep->mem, i, NULL, NULL);
	}
	op.changed = packed;
	if (!err && op.n > 0)
		err = cache_device_run(rep->dev, &op);
	for (unsigned i = a; i < b && !err; i++)
		if (bit_test(pages, i)) {
			bool differs = bit_test(packed, nth++);

			/* Not armed: the device compared with something else. */
			if (differs || !(rep->page[i].flags & REPLICA_ARMED))
				bit_set(changed, i);
		}
	if (err)
		take_for_changed(rep, pages, a, b, changed);
	free(runs);
	return err;
}

/* Snapshot changed pages that other mappings go on writing. What has no room is fetched by the caller. */
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

/* What a release of pages of a chunk finds: a bit a page. */
struct found {
	uint64_t writing[GAIA_CHUNK_PAGES / 64]; /* held for it by this mapping */
	uint64_t once[GAIA_CHUNK_PAGES / 64];	 /* held by it once, so that this release seems to be the last */
	uint64_t ended[GAIA_CHUNK_PAGES / 64];	 /* held for writing by it no more */
	uint64_t changed[GAIA_CHUNK_PAGES / 64];
	uint64_t shared[GAIA_CHUNK_PAGES / 64]; /* changed, and somebody goes on writing them */
};

/* Publish page i, which @g held for writing. chunk->lock held, page locked. */
static void publish_page(struct grant *g, unsigned i, const struct found *found, bool secured,
			 struct release *rl)
{
	struct chunk *ch = g->replica->chunk;

	if (!replica_release(g->replica, i, bit_test(found->ended, i), bit_test(found->changed, i),
			     secured && bit_test(found->shared, i)))
		return;
	rl->changed = true;
	count(CTR_released_pages, 1);
	if (ch->track->page[i].may_hold) {
		rl->opened[i] = window_open(ch, i);
		bit_set(rl->published, i);
	}
}

/* The holds end, whatever happens; on error what was stored is kept, and is published as far as that is known. */
static int release_locked(struct grant *g, unsigned a, unsigned b, struct release *rl)
{
	struct replica *rep = g->replica;
	struct chunk *ch = rep->chunk;
	uint64_t compare[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct found found = { .writing = { 0 } };
	bool secured = false, any_shared = false, any = false, spoiled;
	int err = 0;

	pthread_mutex_lock(&ch->lock);
	grant_held(g, a, b, HELD_WRITING, found.writing);
	grant_held(g, a, b, HELD_ONCE, found.once);
	for (unsigned i = a; i < b; i++) {
		if (!bit_test(found.writing, i))
			continue;
		any = true;
		if (rep->page[i].cut > 0)
			bit_set(compare, i);
	}
	pthread_mutex_unlock(&ch->lock);
	/* What is void may be so because it was lost (page_drop_lost()), of which others were told. */
	if (any && !atomic_load(&rep->dev->gone))
		err = find_changed(rep, compare, a, b, found.changed);
	if (any && atomic_load(&rep->dev->gone)) {
		pthread_mutex_lock(&ch->lock);
		grant_release_lost(g, a, b);
		pthread_mutex_unlock(&ch->lock);
		return -ENODEV;
	}
	for (unsigned i = a; i < b; i++)
		if (bit_test(found.changed, i) && rep->page[i].writers > bit_test(found.once, i)) {
			bit_set(found.shared, i);
			any_shared = true;
		}
	if (any_shared)
		secured = secure_shared(rep, found.shared, a, b);
	(void)fault_point("release.before_publish");

	pthread_mutex_lock(&ch->lock);
	grant_released(g, a, b, found.ended);
	for (unsigned i = a; i < b; i++)
		if (bit_test(found.writing, i))
			publish_page(g, i, &found, secured, rl);
	replica_shadow_trim(rep);
	spoiled = replica_is_spoiled(rep);
	pthread_mutex_unlock(&ch->lock);
	if (secured)
		replica_shadow_done(rep);
	/*
	 * What others go on writing and could not be secured belongs home; and what somebody may write who is no client any more.
	 * It is released, whether that works now or when somebody asks for it; then with what the others have written by that time.
	 */
	if (spoiled)
		(void)pages_secure(ch, a, b);
	else if (any_shared && !secured)
		(void)fetch_pages(ch, a, b);
	pthread_mutex_lock(&ch->lock);
	replica_scrub(rep, a, b, true);
	pthread_mutex_unlock(&ch->lock);
	return err;
}

static int release_part(struct grant *g, unsigned a, unsigned b, struct release *rl)
{
	struct chunk *ch = g->replica->chunk;
	int err, first;

	pthread_rwlock_rdlock(&ch->file->range);
	first = passthrough_before_release(ch->file);
	pthread_mutex_lock(&ch->lock);
	pages_lock(ch, a, b);
	pthread_mutex_unlock(&ch->lock);
	if (!first)
		first = passthrough_left_over(ch, a, b);
	err = release_locked(g, a, b, rl);
	first = first ? first : err;
	if (!first)
		first = passthrough_released(ch, a, b);
	pthread_mutex_lock(&ch->lock);
	pages_unlock(ch, a, b);
	pthread_mutex_unlock(&ch->lock);
	chunk_account(ch);
	pthread_rwlock_unlock(&ch->file->range);
	return first;
}

/* Whether there are any, in pages [a, b). */
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
 * What the caller stored may have been published by somebody else's release: another client's of the device, or
 * another thread's of this one. Ours has found nothing new, then; but it must not return before the kernel has dropped
 * its copy, and theirs may take longer to get there. So the pages of their windows are invalidated by us, too.
 * @rl: our @n parts, in order; parts of other chunks are added, one by one. How many there are then.
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

/* With "break.forget_again" the kernel is trusted with what it wrote back or read since the release. */
static bool to_invalidate(const struct release *rl, unsigned i)
{
	return bit_test(rl->published, i) &&
	       !(fault_point("break.forget_again") &&
		 rl->ch->track->page[i].given != rl->opened[i]);
}

/* Invalidate what was published, in runs, and close the windows. No locks held. */
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
 * So many chunks are published before the kernel's copies of them go. As long as they do not, home's bytes from before are
 * kept for each page that changes again: at most this part of home, at one release.
 */
#define RELEASE_SHARE 64u
#define RELEASE_CHUNKS 16u

static uint64_t chunks_at_once(const struct cache *c)
{
	return MAX(1u, MIN(c->frames.budget / RELEASE_SHARE / GAIA_CHUNK_PAGES, (uint64_t)RELEASE_CHUNKS));
}

/* What was published is so for the kernel, too. */
static void release_complete(struct cfile *f, struct release *rl, uint64_t n)
{
	invalidate_published(f, rl, n);
	again_wait(f);
	for (uint64_t k = 0; k < n; k++)
		chunk_put(rl[k].ch);
	memset(rl, 0, n * sizeof(*rl));
}

/* What a store or a device may say, too, means to the client that nothing has changed. */
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

int cache_release(struct mapping *m, uint64_t off, uint64_t len, bool *changed_out)
{
	uint64_t first, last, at_once = chunks_at_once(m->file->cache);
	struct release *rl;
	struct grant **held;
	bool changed = false;
	uint64_t done = 0;
	unsigned n;
	int one, err = 0;

	if (changed_out)
		*changed_out = false;
	if (off < m->off || len > m->len || off - m->off > m->len - len)
		return -EINVAL;
	if (len == 0)
		return 0;
	/* Not clipped to the file's size: what was acquired before a truncate is released, too. */
	first = off / GAIA_PAGE;
	last = (off + len - 1) / GAIA_PAGE;
	if (fault_point("break.publish_late"))
		m->file->cache->host.invalidate(m->file->cache->host_arg, m->file->cookie, (off_t)off,
						(off_t)len);
	err = spans_room(m, first, last + 1);
	if (err)
		return err;
	wanted_release(m, first, last + 1);
	n = grants_pin(m, first / GAIA_CHUNK_PAGES, last / GAIA_CHUNK_PAGES, &held);
	rl = xcalloc(MIN(n, at_once) + 1, sizeof(*rl));
	for (unsigned k = 0; k < n; k++) {
		struct replica *rep = held[k]->replica;
		uint64_t index = held[k]->index;

		if (done == at_once) {
			release_complete(m->file, rl, done);
			done = 0;
		}
		rl[done].ch = chunk_ref(rep->chunk);
		one = release_part(held[k], page_in_chunk(first, index, 0, 0),
				   page_in_chunk(last, index, 0, GAIA_CHUNK_PAGES - 1) + 1, &rl[done]);
		/* The others' holds end as well. */
		err = err ? err : one;
		changed |= rl[done].changed;
		done++;
		replica_unpin(rep);
	}
	if (!err)
		err = passthrough_release_again(m->file, off, len);
	/* Else what was put has set the time. */
	if (changed && !cfile_is_passthrough(m->file))
		cfile_touch(m->file);
	if (changed_out)
		*changed_out = changed;
	/* Who can store nothing waits for nothing; where the kernel writes through, it may not even invalidate. */
	if (!err && (m->prot & GAIA_PROT_WRITE))
		done = join_others(m->file, (struct page_span){ first, last + 1 }, &rl, done);
	release_complete(m->file, rl, done);
	free(rl);
	free(held);
	count(CTR_releases, 1);
	return after_holds(err);
}
