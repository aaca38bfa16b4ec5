/*
 * grant.h - what mappings hold of replicas, and what their clients map.
 */
#ifndef GAIA_PAGECACHE_GRANT_H
#define GAIA_PAGECACHE_GRANT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uthash.h>

#include "pagecache/cache.h"
#include "pagecache/holds.h"
#include "pagecache/mapping.h"
#include "pagecache/segments.h"

struct cache_device;
struct chunk;
struct replica;

/* The relation of one mapping to one replica. Lives while the mapping knows the replica. */
struct grant {
	struct mapping *mapping;
	struct replica *replica;
	LIST_ENTRY(grant) of_replica; /* chunk->lock */
	UT_hash_handle hh;	      /* mapping->lock; by chunk index */
	uint64_t index;

	/* chunk->lock. */
	unsigned to_come; /* acquires, for which the chunk stays (GAIA_PROT_PIN) */
	bool pinned;	/* has a pin on the replica: the mapping holds pages of it, and it is not ready; or to_come */
	uint8_t ready;	/* bits READY_*; changed with mapping->lock held as well */
	uint64_t counted[GAIA_CHUNK_PAGES / 64]; /* pages held for writing that the replica has counted (replica_hold()) */
	bool in_delivery; /* some acquire is handing the replica's memory to the client; or what was that before is taken back from it */
	/* The client maps it once it has handled this message (cache_host.grant); 0: it does not map it. */
	uint64_t delivered;
	bool offered; /* sent to a client that has not said that it maps it. It may map it, so it is asked to unmap it */
	unsigned lookers; /* threads that ask its client, or drop what it holds; it and its mapping stay meanwhile */
	bool suspect; /* its client is gone, and may have left the memory to somebody: known when the mapping has ended */
	bool unanswered; /* the client was asked to unmap it, and has not said that it did */
};

struct grant *grant_get(struct mapping *m, struct replica *rep);
/* It leaves the mapping's table. mapping->lock is held. */
void mapping_grant_ends(struct mapping *m, struct grant *g);
/* chunk->lock held: the pin follows what is held, unless the chunk is ready, and to_come. */
void grant_repin(struct grant *g);
/* The same, and what is held for writing is counted. */
void grant_catch_up(struct grant *g);
/*
 * Drop what clients that are gone hold of the replica, which is pinned. If they may have left the memory to somebody it is spoiled
 * from now on; returns whether that is new. @known: clients that were alive when the caller began, and are not asked again. (Clients
 * that were not alive are not kept there: another could get the same address.)
 */
#define LIVING_KNOWN 8u
struct living {
	const void *client[LIVING_KNOWN];
	unsigned n; /* ever noted */
};
bool grants_drop_dead(struct replica *rep, struct living *known);
/*
 * The same of the chunk's replicas on the device, which nobody need have pinned; nor does who looks here, so that whoever decides
 * meanwhile what is in use is not misled. @wait: for those who have the pages; else what they have is left as it is.
 */
void chunk_drop_dead(struct chunk *ch, const struct cache_device *dev, struct living *known, bool wait);
/* Give up all holds, and acquires to come. @wait false: but those of pages that somebody has. */
void grant_discard(struct grant *g, bool wait);

/* ---- grant.c: what mappings hold. chunk->lock is held; bitmaps have one bit for each page of the chunk; bits are set, not cleared. ---- */

/* Those of pages [a, b) that some mapping holds. */
void replica_held(struct replica *rep, unsigned a, unsigned b, uint64_t *bits);
/* Those that the grant's mapping holds: in any way; for writing; or for overwriting, by an acquire that has succeeded. */
enum held_as { HELD, HELD_WRITING, HELD_OVERWRITING };
void grant_held(const struct grant *g, unsigned a, unsigned b, enum held_as what, uint64_t *bits);
/* Those that it holds @n times at most, so that a release that takes so many holds away is the last. */
void grant_held_at_most(const struct grant *g, unsigned a, unsigned b, unsigned n, uint64_t *bits);
/*
 * Add @n holds, of which @writes are for writing, to each of the pages, which are locked; pages from @beyond on are beyond the end
 * of the file. -EOVERFLOW, -ENOSR: too many of a page, or too many spans; nothing was done.
 */
int grant_hold(struct grant *g, unsigned a, unsigned b, unsigned beyond, unsigned n, unsigned writes);
/* The acquire has succeeded: its holds, of whatever chunks the pages lie in, count from now on. No lock is held, or chunk->lock; */
void mapping_settle(struct mapping *m, const struct segment *s);
/* the same for many, in order: neighbours are settled together. *@run, of no pages at first, is what mapping_settle() is still to be called for; */
void mapping_settle_next(struct mapping *m, struct segment *run, const struct segment *next);
/* and those of these pages are for overwriting, until replica_overwritten(): all of them were published. They are locked. */
void grant_overwrites(struct grant *g, const uint64_t *pages);
void replica_overwritten(struct replica *rep, const uint64_t *pages);
/* or they are taken back: what was stored under a hold for writing is void, if it was the last; @untold: nothing can have been. */
void grant_unhold(struct grant *g, unsigned a, unsigned b, unsigned n, unsigned writes, bool untold);
/* Take @n holds away from each; @ended: those that were held for writing and are not any more, of which the replica must be told. */
void grant_released(struct grant *g, unsigned a, unsigned b, unsigned n, uint64_t *ended);
/* The same if nothing can be published because the device is gone. */
void grant_release_lost(struct grant *g, unsigned a, unsigned b, unsigned n);
/* mapping->lock held; the chunks are ready. One more hold of each page, coming. -EOVERFLOW, -ENOSR. */
int mapping_hold(struct mapping *m, struct page_span span, bool write);
/* The same. There are fewer spans now: what is not needed of what was asked for is given back. */
void spans_give(struct mapping *m);
/*
 * No lock held. A release of these pages may cut spans in two: keep room for that, for so many spans more, to be given back by
 * spans_room_end(). -ENOSR: there is none.
 */
int spans_room(struct mapping *m, struct segments segs, uint64_t *more);
/* Keep room for so many. */
int spans_keep(struct mapping *m, uint64_t more);
void spans_room_end(struct mapping *m, uint64_t more);
/*
 * mapping.wanted: add @n holds of each page, coming; settle them, wherever they are by now; or take them back, as far as they are
 * still there: for the pages up to the one returned, of which *@left are elsewhere. No lock is held.
 */
int wanted_add(struct mapping *m, uint64_t a, uint64_t b, unsigned n, bool write);
void wanted_settle(struct mapping *m, uint64_t a, uint64_t b, unsigned n);
uint64_t wanted_undo(struct mapping *m, uint64_t a, uint64_t b, unsigned n, bool write, unsigned *left);
void wanted_release(struct mapping *m, uint64_t a, uint64_t b, unsigned n);
/* Whether anything is wanted. */
bool wanted_any(struct mapping *m);
/* The chunk's first span, cut to the chunk, if there is any. */
bool wanted_first(struct mapping *m, uint64_t chunk, struct hold *out);
/*
 * Pages [a, b) are locked, and have been brought for reading or, with @write, also for writing; chunk->lock is held. Wanted holds
 * of them become holds, except that pages wanted for writing but brought for reading stay wanted. -EOVERFLOW: together these are
 * too many holds of a page, which stays wanted.
 */
int grant_take_wanted(struct grant *g, unsigned a, unsigned b, unsigned beyond, bool write);
/* The mapping ends, and nothing of any chunk is held. */
void mapping_holds_nothing(struct mapping *m);

#endif
