/*
 * scrub.h - what the memory that clients map may show. chunk->lock is held.
 */
#ifndef GAIA_PAGECACHE_SCRUB_H
#define GAIA_PAGECACHE_SCRUB_H

#include <stdbool.h>

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
/*
 * All pages are locked, and those from @end on are beyond the end of the file. Zeros also what is merely old. On error some may be unchanged.
 */
int replica_scrub_old(struct replica *rep, unsigned end);
/* The same for all replicas, after something was removed from the file; file->range is held exclusively. */
void chunk_scrub(struct chunk *ch, unsigned a, unsigned b);

#endif
