/* leave.c - what leaves home: pages that the kernel has, and pages for which others need the frames. */
#include <errno.h>
#include <string.h>

#include "base/counters.h"
#include "base/log.h"
#include "base/probe.h"
#include "base/util.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/root.h"
#include "pagecache/shares.h"
#include "pagecache/state.h"
#include "pagecache/victim.h"
#include "pagecache/writeback.h"

/* ---- what the kernel has ---- */

/* Whether devices share the chunk: they read home, not the kernel's cache. chunk->lock is held. */
static bool devices_share(const struct chunk *ch)
{
	return ch->track || atomic_load(&ch->file->mappings) > 0;
}

/* Returns its frame if the page may leave, and drops it; else 0: what was stored may have to be stored again if a sync fails. */
static frame_t page_leave(struct chunk *ch, unsigned i)
{
	struct page *p = page_at(ch, i);

	if (!p->frame || p->readers || (p->flags & (PAGE_LOCKED | PAGE_DIRTY | PAGE_STORED)))
		return 0;
	if (__builtin_expect(ch->file->cache->victims != NULL, 0))
		victim_offer(ch, i);
	p->flags &= (uint8_t)~PAGE_GIVEN;
	return page_set_frame(ch, i, 0);
}

/* Drop the lock, and give back the frames of the pages that have left. */
static void pages_left(struct chunk *ch, const frame_t *frame, unsigned n)
{
	if (n > 0 && ch->n_frames == 0)
		chunk_arrive(ch, CHUNK_EMPTIED);
	pthread_mutex_unlock(&ch->lock);
	if (n == 0)
		return;
	frames_give(&ch->file->cache->frames, frame, n);
	if (__builtin_expect(ch->file->cache->victims != NULL, 0))
		victims_send(ch->file->cache, false);
	count(CTR_home_given, n);
}

void pages_unshare(struct chunk *ch, unsigned a, unsigned b, bool given)
{
	frame_t frame[GAIA_CHUNK_PAGES];
	unsigned n = 0;

	pthread_mutex_lock(&ch->lock);
	given = given && !devices_share(ch);
	for (unsigned i = a; i < b; i++) {
		page_unshare(ch, i);
		if (given && (frame[n] = page_leave(ch, i)))
			n++;
	}
	pages_left(ch, frame, n);
}

void chunk_sync_begins(struct chunk *ch)
{
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES && ch->n_stored; i++)
		if (page_at(ch, i) && (page_at(ch, i)->flags & PAGE_STORED))
			page_at(ch, i)->flags |= PAGE_SYNCING;
	pthread_mutex_unlock(&ch->lock);
}

void chunk_sync_ended(struct chunk *ch, bool worked)
{
	frame_t frame[GAIA_CHUNK_PAGES];
	unsigned n = 0;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES && ch->n_stored; i++) {
		struct page *p = page_at(ch, i);

		if (!p || !(p->flags & PAGE_SYNCING))
			continue;
		p->flags &= (uint8_t)~PAGE_SYNCING;
		if (!worked)
			continue;
		pages_become(ch, i, i + 1, 0);
		if ((p->flags & PAGE_GIVEN) && !devices_share(ch) && (frame[n] = page_leave(ch, i)))
			n++;
	}
	pages_left(ch, frame, n);
}

/* ---- eviction ---- */

int home_no_memory(unsigned n)
{
	log_error("home: no memory for %u pages; give the machine more, or --home less", n);
	return -ENOMEM;
}

void home_evicted(const struct chunk *ch, unsigned n)
{
	if (n > 0)
		PROBE3(evict__home, ch->file->key, ch->index, n);
	count(CTR_home_evicted, n);
}

unsigned chunk_shrink(struct chunk *ch, bool park, bool alone)
{
	struct cache *c = ch->file->cache;
	unsigned n = 0, freed = 0;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES && ch->n_frames; i++) {
		struct page *p = page_at(ch, i);

		if (!p || !p->frame || p->readers || (p->flags & (PAGE_LOCKED | PAGE_DIRTY)) || page_in_view(ch, i))
			continue;
		if ((alone && shares_by_others(&c->frames, p->frame)) || !home_may_leave(ch, i))
			continue;
		if (park && c->victims)
			victim_offer(ch, i);
		freed += page_drop(ch, i);
		n++;
	}
	pthread_mutex_unlock(&ch->lock);
	victims_send(c, false);
	home_evicted(ch, n);
	return freed;
}

/* So many chunks are looked at before the lock, which all files share, is dropped. */
#define LOOKS_AT_ONCE 64u

/* A hint: its lock is not held. */
static bool all_dirty(const struct chunk *ch)
{
	return ch->n_dirty > 0 && ch->n_dirty == ch->n_frames;
}

/*
 * The chunk that was not used for the longest time and may have clean pages, taken off the list; the list's reference becomes the
 * caller's. Chunks that were used since the last look get a second chance. NULL: there was none among those looked at. *@looks counts down.
 */
static struct chunk *lru_next(struct cache *c, unsigned *looks)
{
	struct chunk *ch, *found = NULL;

	lists_lock(c);
	for (unsigned n = MIN(*looks, LOOKS_AT_ONCE); n > 0 && !found; n--) {
		--*looks;
		ch = TAILQ_FIRST(&c->lru);
		if (!ch) {
			*looks = 0;
			break;
		}
		if (atomic_exchange(&ch->referenced, false) || all_dirty(ch)) {
			atomic_store_explicit(&ch->spared, false, memory_order_relaxed);
			TAILQ_REMOVE(&c->lru, ch, lru);
			TAILQ_INSERT_TAIL(&c->lru, ch, lru);
		} else {
			chunk_leave_lru(ch);
			found = ch;
		}
	}
	pthread_mutex_unlock(&c->lock);
	return found;
}

/*
 * What shares a frame frees nothing when it leaves, until the last page that has the frame does. So when a chunk's turn comes such pages stay;
 * when it comes again, and nobody has used them, they leave, but of few chunks at a time: else one request would drop all that is shared, for little.
 */
static unsigned evict_chunk(struct chunk *ch, unsigned *drops)
{
	bool drop = atomic_load(&ch->spared) && *drops > 0;

	if (!ch->file->cache->dedup)
		return chunk_shrink(ch, true, false);
	*drops -= drop;
	if (atomic_exchange(&ch->spared, !drop) && !drop)
		return 0;
	return chunk_shrink(ch, true, !drop);
}

/* Evict clean frames until @want are free or every chunk was looked at. Returns how many. @drops: of so many chunks at most what is shared. */
static unsigned home_evict(struct cache *c, unsigned want, unsigned drops)
{
	unsigned freed = 0, looks;
	struct chunk *ch;

	lists_lock(c);
	looks = 2 * c->n_lru;
	pthread_mutex_unlock(&c->lock);
	while (looks > 0 && freed < want) {
		ch = lru_next(c, &looks);
		if (!ch)
			continue;
		freed += evict_chunk(ch, &drops);
		chunk_account(ch);
		chunk_put(ch);
	}
	return freed;
}

/* Store some of the chunk that has been dirty longest, so that it can be evicted. Returns the number of pages stored. */
static unsigned home_clean(struct cache *c)
{
	struct chunk *ch = chunk_due(c, 0);
	unsigned n;

	if (!ch)
		return 0;
	n = chunk_store_some(ch);
	chunk_account(ch);
	chunk_put(ch);
	return n;
}

/* One by one, as others leave; and when there is nothing else. */
static unsigned drops_after(unsigned fruitless)
{
	return fruitless ? 64 : 1;
}

int frame_alloc(struct cache *c, unsigned n, frame_t *out)
{
	unsigned got = 0, fruitless = 0, more;

	while (got < n) {
		got += frames_take(&c->frames, n - got, out + got, false);
		if (got == n)
			break;
		if (home_evict(c, MAX(n - got, 64u), drops_after(fruitless)) > 0 || home_clean(c) > 0) {
			fruitless = 0;
			continue;
		}
		if (c->local && !atomic_exchange(&c->lacking, true))
			pthread_cond_signal(&c->trimmer_cond);
		/* When so many attempts have failed all dirty chunks of the list were tried. */
		if (++fruitless < 4)
			continue;
		/*
		 * Everything is in use or cannot be stored. If threads waited here, they might hold what
		 * the others wait for. One more page does less harm than a deadlock.
		 */
		more = frames_take(&c->frames, n - got, out + got, true);
		if (more == 0)
			goto give_back;
		got += more;
	}
	return 0;

give_back:
	frames_give(&c->frames, out, got);
	return home_no_memory(n);
}

void home_reserve(struct cache *c, unsigned n)
{
	unsigned fruitless = 0;

	while ((n -= frames_reserve(&c->frames, n, fruitless == 4)) > 0) {
		if (home_evict(c, MAX(n, 64u), drops_after(fruitless)) > 0 || home_clean(c) > 0)
			fruitless = 0;
		else
			fruitless++;
	}
}

void home_shrink(struct cache *c)
{
	unsigned fruitless = 0;

	while (!c->stopping && fruitless < 4) {
		uint64_t used = atomic_load(&c->frames.used), budget = c->frames.budget;

		if (used <= budget) {
			atomic_store(&c->shrinking, false);
			/* It may have been made smaller meanwhile. */
			if (atomic_load(&c->frames.used) > c->frames.budget)
				atomic_store(&c->shrinking, true);
			return;
		}
		if (home_evict(c, (unsigned)MIN(used - budget, 65536u), drops_after(fruitless)) > 0 || home_clean(c) > 0)
			fruitless = 0;
		else
			fruitless++;
	}
}

int home_room_to_stay(struct cache *c, unsigned n)
{
	uint64_t budget = c->frames.budget, most = budget - budget / 4, used;
	unsigned fruitless = 0;

	while ((used = atomic_load(&c->frames.used)) + n > most && fruitless < 4) {
		if (home_evict(c, (unsigned)(used + n - most), drops_after(fruitless)) > 0 || home_clean(c) > 0)
			fruitless = 0;
		else
			fruitless++;
	}
	return fruitless < 4 ? 0 : -ENOMEM;
}

int spares_take(struct cache *c, frame_t spare[2])
{
	int err = 0;

	for (unsigned k = 0; k < 2 && !err; k++)
		if (!spare[k])
			err = frame_alloc(c, 1, &spare[k]);
	return err;
}

void spares_give(struct cache *c, frame_t spare[2])
{
	for (unsigned k = 0; k < 2; k++)
		if (spare[k])
			frames_give(&c->frames, &spare[k], 1);
}
