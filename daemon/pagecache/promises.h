/*
 * promises.h - replicas that have been promised memory.
 *
 * What an acquire lacks on a device is promised to it, all at once (18): it has pinned replicas without memory, and nobody else gets
 * that memory. It keeps the promises itself, before it goes on or as it goes on. If later, who waits for one keeps it instead.
 */
#ifndef GAIA_PAGECACHE_PROMISES_H
#define GAIA_PAGECACHE_PROMISES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gaia/protocol.h"

struct cache_device;
struct cfile;
struct chunk;
struct readers;
struct replica;

/*
 * Make a replica without memory, with a pin. dev->reserve is held, and the replica counts as pinned and promised already. Consumes
 * the caller's reference to the chunk, also on error. -EMFILE.
 */
int promise_make(struct chunk *ch, struct cache_device *dev, struct readers *only, struct replica **out);
/*
 * The same of the replicas of an extent: of the chunks from @first on, which have none there. Each has a pin. -EMFILE: one of the chunks has
 * too many replicas; others can still be made one by one.
 */
int promise_make_extent(struct cfile *f, uint64_t first, struct cache_device *dev, struct readers *only, struct replica *out[GAIA_EXTENT_CHUNKS]);
/* The next ones take units. */

/* Keep a promise that is not for later: the unit gets memory, and threads that wait for that go on. -ENOMEM (also if what there is is for later), -ENODEV... */
int promise_keep(struct replica *rep);
/*
 * Whoever waits for one of these may keep it from now on. *@lacks, until all are kept or broken, becomes true if somebody could not: the
 * acquire should give them up.
 */
void promises_later(struct cache_device *dev, struct replica **reps, uint64_t n, atomic_bool *lacks);
/*
 * Of replicas, each chunk's: have reps[0..until) get memory that have none; *kept says how many have some. Evicts nothing but parked pages, and waits for nobody
 * but the device: pages may be locked. An error as of promise_keep(): those from *kept on have none, or others have kept it.
 */
int promises_keep(struct replica **reps, uint64_t *kept, uint64_t until);
/* Of a replica: wait until the promise is kept, or do it if it is for later and *@may_keep, which is false once that has failed. False: it was broken. */
bool promise_await(struct replica *rep, bool *may_keep);
/* Units, or replicas in order: there is no memory for them after all, but for those that have some. They go when all who wait for them have unpinned them. */
void promises_break(struct cache_device *dev, struct replica **reps, uint64_t n);

#endif
