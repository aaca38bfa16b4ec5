/*
 * file_pins.h - files that are pinned to a device (gaia pin), and what is brought there though nobody acquires it.
 *
 * A pin is of a file, to a device, by a user. It covers the chunks that the file had when it was pinned. Their shared replicas are there
 * from then on, and nothing takes their memory: no acquire or readahead that needs room, no request to evict. A pin keeps memory, not
 * freshness: what CPU programs write later the next acquire brings, as ever.
 *
 * Use: cache_pin(), then cache_bring() for the contents; cache_unpin().
 */
#ifndef GAIA_PAGECACHE_FILE_PINS_H
#define GAIA_PAGECACHE_FILE_PINS_H

#include <stdbool.h>
#include <stdint.h>

#include "pagecache/cache.h"

struct cache_device;
struct cfile;
struct mapping;
struct readers;
struct replica;

/* dev->lock is held, and the replica in no idle list. It does not leave: count it, if its chunk is pinned. It leaves. */
void replica_file_pinned(struct replica *rep);
void replica_file_unpinned(struct replica *rep);
/* Whether the part of the mapping's file that is pinned to its device ends within chunks [@first, @end). @only: as below. */
bool file_pins_end_within(const struct mapping *m, const struct readers *only, uint64_t first, uint64_t end);
/*
 * How many of the chunks index[0..n) of the mapping's file that have no replica (@reps: NULL) are pinned to the device. @only: of
 * readers' replicas none is. dev->lock is held.
 */
uint64_t file_chunks_missing(const struct mapping *m, const struct readers *only, const uint64_t *index, struct replica *const *reps,
			     uint64_t n);
/* Bytes of the device that pinned files may have: of all users together, of one user who is no owner of the mount. */
uint64_t files_limit(const struct cache_device *dev);
uint64_t files_user_limit(const struct cache_device *dev);
/* Nobody can use the file any more: its pins end. Waits for nobody; what it cannot have now is left for the next time. */
void file_pins_end(struct cfile *f);
/* Whether an owner of the mount has pinned a file that still has a name. dev->lock is held. */
bool file_pins_of_owners(const struct cache_device *dev);
/* The device is off: all pins end. */
void file_pins_end_on(struct cache_device *dev);
/* For cache_check(). dev->lock is held. */
void file_pins_check(struct cache_device *dev);

#endif
