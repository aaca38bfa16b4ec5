/*
 * chunk.h - what the files about a chunk and its pages share: chunk.c, page.c, page_lock.c, lists.c and leave.c. chunk->lock is held
 * in all of these calls, unless stated otherwise.
 */
#ifndef GAIA_PAGECACHE_CHUNK_H
#define GAIA_PAGECACHE_CHUNK_H

#include "pagecache/internal.h"

/* ---- chunk.c ---- */

/* Free the leaves that say nothing: of pages without frames that nobody has locked or waits for. */
void chunk_trim_leaves(struct chunk *ch);
/* One of the counts has changed. */
void chunk_note_unsynced(struct chunk *ch);

/* ---- page.c ---- */

/*
 * Pages become dirty, stored (PAGE_STORED) or, with @state 0, neither. One of the counters belongs to all files: so it is changed
 * once for all these pages.
 */
void pages_become(struct chunk *ch, unsigned a, unsigned b, uint8_t state);

/* ---- page_lock.c ---- */

/* Assert that this thread may wait for page i (17). */
void page_check_order(const struct chunk *ch, unsigned i);
/* Whether who locks the page to write it must go on with a copy (21). */
bool page_is_to_renew(const struct chunk *ch, unsigned i);

/* ---- lists.c ---- */

/*
 * Put the chunk on those of @lists that it is not on, with a reference for each. Nearly always it is on
 * them; if not, this still takes no lock that other files use: the chunk is added to cache.arrivals, and the thread that
 * next looks at the lists puts arrivals on them, in the order in which they came (lists_lock()).
 */
void chunk_arrive(struct chunk *ch, unsigned lists);
/* Lock the lists (cache->lock), and put on them what has arrived. Needs no chunk->lock. */
void lists_lock(struct cache *c);
/* The lists are locked as above, and the chunk is on the list; the list's reference becomes the caller's. */
void chunk_leave_lru(struct chunk *ch);

/* ---- leave.c ---- */

/* There is no memory for so many frames: logs that, and returns the error. Called without a lock. */
int home_no_memory(unsigned n);

#endif
