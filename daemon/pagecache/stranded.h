/*
 * stranded.h - memory that clients keep.
 */
#ifndef GAIA_PAGECACHE_STRANDED_H
#define GAIA_PAGECACHE_STRANDED_H

#include <stdbool.h>
#include <stdint.h>

struct cache_device;
struct keeper;
struct mapping;

/* A client that did not unmap memory that it was asked for, or was not asked: see stranded.c. */

/* No lock held. The mapping's client; NULL: it has ended, or the device can take memory back. [W] */
struct keeper *keeper_make(struct mapping *m);
/* @k may be NULL. */
void keeper_add(struct keeper **list, struct keeper *k);
void keepers_free(struct keeper *list);
/* One list of @n; these are empty then. */
struct keeper *keepers_join(struct keeper **lists, unsigned n);
/* dev->lock held. So many chunks, of one allocation, are freed. Bytes that stay used and pinned, since somebody may map them; takes the list over. */
uint64_t strand(struct cache_device *dev, struct keeper *keepers, unsigned chunks);
/* No lock held. How often memory was given up, to be called before looking for room. */
uint64_t stranded_count(struct cache_device *dev);
/*
 * No lock held. Of processes that have ended nothing is counted any more: whether something was given up since @before, by this call or
 * another. [W]
 */
bool stranded_reap(struct cache_device *dev, uint64_t before);
void stranded_free(struct cache_device *dev);

#endif
