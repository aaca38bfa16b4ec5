/*
 * dedup.h - equal pages of home in one frame: which pages are looked for, and when a page needs a frame of its own again.
 *
 * After DEDU (ICCS'11), which compares all blocks of a GPU's cache by signatures. Here pages are looked at when they come home (fill.c), since
 * reading them takes far longer than hashing them, and only by sample at first: see dedup_frames(). What is dirty is never shared.
 */
#ifndef GAIA_PAGECACHE_DEDUP_H
#define GAIA_PAGECACHE_DEDUP_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdint.h>

#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/frames.h"

struct dedup;

/* What the sample has shown, of a file or of all. Hints: relaxed, and not always exact. */
struct dedup_sample {
	atomic_uint tried, found; /* pages of it that were looked for, and found; */
	atomic_uint vain;	  /* and of these, written afterwards. All are halved now and then */
};

/* A file's part; zeros at first. */
struct dedup_file {
	struct dedup_sample sample;
	_Atomic uint64_t owner; /* see dedup.c */
	_Atomic uint64_t writer; /* who may have it open for writing, except root: 0: nobody; a user + 1; UINT64_MAX: several */
};

/* If config->dedup says so: c->dedup, else NULL. -ENOMEM. */
int dedup_create(struct cache *c, const struct cache_config *config);
/* Nothing runs any more. */
void dedup_destroy(struct cache *c);

/*
 * Pages of the file have come into frame[0..n), which belong to nobody yet: where home has the same bytes already, frame[k] becomes that frame, and
 * the other is given back. Those that are indexed are with FRAME_INDEXED then. @tag: what is known of their tags (0: nothing), or NULL.
 * @may_ask: it may wait for the store. No lock but their pages' and the file's range.
 */
void dedup_frames(struct cfile *f, frame_t *frame, const uint32_t *tag, unsigned n, bool may_ask);

/*
 * Pages [a, b), of those in @pages (NULL: all), are locked exclusively and about to be changed where they are: those that others may have, too,
 * get frames of their own, with the same bytes. Goes beyond the budget, as frame_alloc() does; -ENOMEM: no memory. No lock is held.
 */
int pages_own_indexed(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages);
static inline int pages_own(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages)
{
	while (a < b && !page_indexed(ch, a))
		a++;
	return a < b ? pages_own_indexed(ch, a, b, pages) : 0;
}
/* The same for one page, with chunk->lock held, and a frame for it in @spare, which becomes 0 if it is taken. */
void page_own(struct chunk *ch, unsigned i, frame_t *spare);

/* For the status. */
json_t *dedup_json(struct cache *c);

#endif
