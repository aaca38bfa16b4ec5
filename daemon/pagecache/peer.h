/*
 * peer.h - copies from device to device.
 */
#ifndef GAIA_PAGECACHE_PEER_H
#define GAIA_PAGECACHE_PEER_H

struct cache;
struct dev_run;
struct part;

/* Find out which devices reach which. Called when they exist. */
void peers_find(struct cache *c);
/*
 * Of the pages that the parts' plans say are to be sent, copy those that another device has exactly as home has
 * them, whether home is present or not, and set their step to TRACK_NOTHING. @runs: room for all of them. What fails is left
 * to be sent from home. Called by bring.c.
 */
void peers_send(struct part **part, unsigned n, struct dev_run *runs);

#endif
