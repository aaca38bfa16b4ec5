/*
 * prefetch.h - what is brought to a device, or into home, at once and on request, though nobody acquires it.
 */
#ifndef GAIA_PAGECACHE_PREFETCH_H
#define GAIA_PAGECACHE_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "pagecache/cache.h"
#include "pagecache/mapping.h"

struct cache_device;
struct cfile;
struct replica;

/* The shared replicas of some of a file's chunks, pinned for a call of the user's. */
struct bringing {
	struct mapping m; /* of no client: nothing is ever granted to it */
	uint64_t *index;
	struct replica **reps;
	uint64_t n;
};

/*
 * Pin those of chunks [first, first + n), made where missing: all or none. @modest: see replicas_pin_modestly(). As replicas_pin(). [W]
 */
int bringing_begin(struct bringing *b, struct cfile *f, struct cache_device *dev, struct cache_user user, uint64_t first, uint64_t n,
		   bool modest);
void bringing_end(struct bringing *b);

#endif
