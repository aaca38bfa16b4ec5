/*
 * unused.h - replicas that were read ahead, and not used.
 */
#ifndef GAIA_PAGECACHE_UNUSED_H
#define GAIA_PAGECACHE_UNUSED_H

#include <stdbool.h>
#include <stdint.h>

struct cache_device;
struct chunk;
struct mapping;
struct readahead;
struct replica;

/*
 * The replica of the chunk that the mapping uses, if it has memory that can be filled and is not leaving: it is known as being
 * filled until replica_filled(), and stays while one of its pages is locked. NULL: none can be filled; *@there: there is one.
 * chunk->lock is held.
 */
struct replica *replica_to_fill(struct mapping *m, struct chunk *ch, bool *there);
void replica_filled(struct replica *rep);
/*
 * Make that replica, of which nothing is current: in memory that is free, or in place of another that was read ahead and not used. No lock is
 * held. -ENOMEM: there is no room; -EMFILE: other readers have too many of the chunk. 0 also if there is one by now.
 */
int replica_make_ahead(struct mapping *m, uint64_t index);
/* Free it, if nothing was brought into it, and that needs no waiting. No lock is held. */
void replica_drop_empty(struct mapping *m, uint64_t index);

/*
 * Free the memory of a replica that was read ahead and not used: the one that has been there for longest, of those that need no waiting. For
 * @ra only what it may replace; NULL: for somebody who needs it now.
 */
bool unused_evict(struct cache_device *dev, struct readahead *ra);

#endif
