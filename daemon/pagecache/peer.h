/*
 * peer.h - copies from device to device, and within one.
 */
#ifndef GAIA_PAGECACHE_PEER_H
#define GAIA_PAGECACHE_PEER_H

#include <stdbool.h>

struct cache;
struct cache_device;
struct dev_run;
struct part;
struct replica;

/* Find out which of the devices before it in the table @dev reaches, and which reach it. Nobody sees it yet. */
void peers_find(struct cache *c, struct cache_device *dev);
/*
 * Whether pages of @from, another replica of the same chunk, may be copied to @rep without home: from another device; or within one, to memory that
 * readers have for themselves. chunk->lock is held.
 */
bool peer_gives(const struct replica *rep, const struct replica *from);
/*
 * Of the pages that the parts' plans say are to be sent, copy those that a replica which gives them has exactly as home has
 * them, whether home is present or not, and set their step to TRACK_NOTHING. @runs: room for all of them. What fails is left
 * to be sent from home. Called by bring.c.
 */
void peers_send(struct part **part, unsigned n, struct dev_run *runs);

#endif
