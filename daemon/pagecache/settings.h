/*
 * settings.h - what can be changed of a cache while it is at work: see cache.h for the calls.
 */
#ifndef GAIA_PAGECACHE_SETTINGS_H
#define GAIA_PAGECACHE_SETTINGS_H

struct cache;

/* For the trimmer, which may wait for clients: evict what is beyond budgets that have become smaller, as far as it can leave now. */
void settings_trim(struct cache *c);

#endif
