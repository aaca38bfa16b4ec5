/*
 * ready.h - chunks that may be acquired without a look at them.
 */
#ifndef GAIA_PAGECACHE_READY_H
#define GAIA_PAGECACHE_READY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pagecache/chunk.h"
#include "pagecache/mapping.h"
#include "pagecache/range.h"
#include "pagecache/segments.h"

struct cache_device;
struct grant;
struct replica;

/* After an acquire or a release: the chunk is ready from now on, if it is in that state. No lock is held; the replica is pinned. */
void grant_make_ready(struct grant *g);
/*
 * From now on no mapping acquires or releases any of the chunk without chunk->lock, which is held; its replicas are pinned for what is
 * held of them, and the pages that are held for writing are counted.
 */
void chunk_end_ready(struct chunk *ch);
static inline void chunk_unready(struct chunk *ch)
{
	if (atomic_load_explicit(&ch->n_ready, memory_order_relaxed) > 0)
		chunk_end_ready(ch);
}
/* The same for one replica only; and for one grant: what other mappings have ready stays so. chunk->lock is held. */
void replica_end_ready(struct replica *rep);
void grant_end_ready(struct grant *g);
/* The same for all of a unit. No lock is held. */
void unit_end_ready(struct replica *unit);
/* The idle units that are ready, the longest unused first, @most of them at most: how many. @out is to be freed. dev->reserve is held, which keeps them. */
uint64_t device_idle_ready(struct cache_device *dev, uint64_t most, struct replica ***out);
/* Whether a mapping for which some of the unit is ready holds some of that. No lock is held. */
bool unit_is_held_ready(const struct replica *unit);
/* The same of one replica; chunk->lock is held. */
bool replica_is_held_ready_locked(const struct replica *rep);
/* The number of idle replicas of which something is held, because they are ready. dev->reserve is held. */
uint64_t device_held_idle(struct cache_device *dev);
/* Whether all of @span is ready to be read. No lock is held. */
bool ready_has(struct mapping *m, struct page_span span);
/* Acquire, with *err as of cache_acquire(), if all of @span is ready; those of @over to overwrite them. False: it is not, and nothing was done. */
bool ready_acquire(struct mapping *m, struct page_span span, bool write, struct page_span over, uint64_t *seq, atomic_uint *verdict, int *err);
/*
 * Hold, as coming until ready_end(), the pages of @span in those chunks of which all such pages are ready. The other chunks go to @rest, in
 * order. -EOVERFLOW, -ENOSR: part of them is held. The client has the chunks when it has handled message runs->seq.
 */
struct ready_runs {
	struct page_span *run;
	unsigned n, settled;
	uint64_t n_rest, seq;
	struct page_span over; /* what is for overwriting when it has succeeded */
};
int ready_take(struct mapping *m, struct page_span span, bool write, struct page_span over, struct ready_runs *runs, uint64_t *rest);
/*
 * One hold less of pages [a, b) of a chunk that is ready: false if it is not, or if the replica knows of the hold. Otherwise what the
 * replica has stays as it is. chunk->lock is held.
 */
bool ready_unhold(struct grant *g, unsigned a, unsigned b, bool write);
/* The acquire has succeeded: settle what lies before page @until, as mapping_settle_next() does. Not what is for overwriting, which is marked at the same time. */
void ready_settle(struct mapping *m, struct ready_runs *runs, uint64_t until, struct segment *run);
/* The acquire has succeeded: what has not been settled is now; @undo: it has not. */
void ready_end(struct mapping *m, struct ready_runs *runs, bool write, bool undo);
/* Release the pages of @span in ready chunks that are held for reading only: true if that was all. Else those in @rest (rest->at to be freed) remain to be released. */
bool ready_release(struct mapping *m, struct page_span span, struct segments *rest);
/* For cache_check(): a bug() if something is called ready and is not, with chunk->lock held; or if they are not counted as they are. */
void ready_check(const struct chunk *ch);
void device_check_ready(struct cache_device *dev);

#endif
