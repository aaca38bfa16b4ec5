/*
 * readahead.h - what is brought to a device before it is acquired.
 */
#ifndef GAIA_PAGECACHE_READAHEAD_H
#define GAIA_PAGECACHE_READAHEAD_H

#include <stdbool.h>

#include "pagecache/cache.h"
#include "pagecache/mapping.h"
#include "pagecache/range.h"

struct cache;
struct cache_device;
struct cfile;
struct pool;
struct readahead;
struct replica;

/* The workers. */
int readahead_start(struct cache *c);
void readahead_stop(struct cache *c);
/* A mapping begins: -ENOMEM. It is about to end: no piece is begun from now on. It ends: none is at work. No lock is held. */
int readahead_begin(struct mapping *m, struct cache *c, struct cache_user user);
void readahead_cease(struct mapping *m);
void readahead_end(struct mapping *m);
/* The file's range is not held exclusively any more: what gave way goes on. No lock is held. */
void readahead_wake(struct cfile *f);
/* Bring the pages of @span, which lies in the mapping, when there is time, as far as there is room. */
void readahead_will_need(struct mapping *m, struct page_span span);
/* An acquire of @span has succeeded. No lock is held. */
void readahead_acquired(struct mapping *m, struct page_span span);
/* GAIA_ADVISE_NORMAL, RANDOM or SEQUENTIAL. -EAGAIN: too many ranges of the mapping have advice of their own. */
int readahead_advise(struct mapping *m, struct page_span span, unsigned how);
/* Bring nothing of @span any more; when it returns nothing of it is at work. [W] */
void readahead_cancel(struct mapping *m, struct page_span span);
/* dev->lock held. A replica was made for it; it is pinned (@used), or goes; its user may have one more. */
void readahead_made(struct readahead *ra, struct replica *rep);
void readahead_ended(struct replica *rep, bool used);
bool readahead_has_room(const struct readahead *ra, const struct cache_device *dev);
/*
 * The same. Whether what @ra is to bring may take the place of this replica, which is unused: not if it is to bring that, too, nor if another has
 * brought it who has no more such replicas (by one at least, or they would take turns).
 */
bool readahead_may_replace(struct readahead *ra, const struct replica *rep);
/* Pages [a, b) are being acquired; or the replica goes: count those that were read ahead. chunk->lock is held. */
void readahead_count(struct replica *rep, unsigned a, unsigned b);
void readahead_dropped(struct replica *rep);

#endif
