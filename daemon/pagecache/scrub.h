/*
 * scrub.h - what the memory that clients map may show. chunk->lock is held, if nothing else is said.
 */
#ifndef GAIA_PAGECACHE_SCRUB_H
#define GAIA_PAGECACHE_SCRUB_H

#include <stdbool.h>
#include <stdint.h>

#include "gaia/protocol.h"

struct chunk;
struct replica;

/* Whether a client maps it, or is being handed it, or may still be mapping it. */
bool replica_is_mapped(const struct replica *rep);
bool chunk_is_mapped(const struct chunk *ch);
/*
 * If anybody maps the replica: zero what its memory must not show, in pages of [a, b), which are locked, that nobody holds. Drops the
 * lock meanwhile. @fetch: if released bytes are in the way fetch them first; file->range is held.
 */
void replica_scrub(struct replica *rep, unsigned a, unsigned b, bool fetch);
/* A replica that is about to be handed to a client, and the pages of it that must be zeros by then. */
struct to_show {
	struct replica *rep;
	unsigned end; /* of the pages that were in the file, if only in part, when the pages were locked */
	uint64_t old[GAIA_CHUNK_PAGES / 64];
};
/* All pages are locked, and those from @end on are beyond the end of the file. Sets the bits of what must not be shown, and of what is merely old. */
void replica_find_old(struct replica *rep, unsigned end, uint64_t *pages);
/* No lock is held; the pages are locked still, and all of one device's. Zeros them by one operation. On error some may be unchanged. */
int replicas_zero(const struct to_show *show, unsigned n);
/* The same for all replicas, after something was removed from the file; file->range is held exclusively. */
void chunk_scrub(struct chunk *ch, unsigned a, unsigned b);

#endif
