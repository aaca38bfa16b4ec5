/*
 * replica.h - device memory of chunks.
 */
#ifndef GAIA_PAGECACHE_REPLICA_H
#define GAIA_PAGECACHE_REPLICA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/frames.h"

struct cache_device;
struct chunk;
struct dev_op;
struct device_wait;
struct devmem;
struct grant;
struct keeper;
struct pinner;
struct readahead;
struct readers;

/* What was a replica's memory until other took its place, and is taken back from the clients that map it. Nobody holds any of it. */
struct old_memory {
	struct old_memory *next;
	struct cache_device *dev;
	struct devmem *mem;
	struct keeper *keepers; /* of who takes it back */
};

/*
 * The replicas of neighbouring chunks whose memory is one: it is allocated, handed to clients, pinned and evicted as a whole. So the
 * first of them stands for all: it alone has the fields that say so below, and it alone is on the device's lists. It is their *unit*;
 * a replica that is in no extent is its own. They are made and destroyed together.
 */
struct extent {
	struct replica *member[GAIA_EXTENT_CHUNKS];
	/* dev->lock. */
	unsigned lookers, n_ready; /* the sums of theirs */
	/* The thread that destroys them. */
	struct keeper *keepers[GAIA_EXTENT_CHUNKS];
	unsigned n_ended;	   /* members */
	uint64_t bytes_ended;	   /* of these, with their shadows */
	bool was_joined;	   /* their memory was one */
};

/*
 * A device's copy of a chunk. Its pages are guarded as the chunk's pages are. A chunk has at most one replica on a device
 * that all clients share, and one more for each struct readers. The latter is only ever filled: nothing is read
 * from it or released in it, and it ends with the last of these readers' mappings.
 */
struct replica {
	struct chunk *chunk; /* holds a reference */
	struct cache_device *dev;
	struct readers *only; /* the readers that it is for; NULL: shared by all who may write */
	struct extent *extent; /* of which it is part; NULL: none. Constant */

	/* chunk->lock. */
	struct devmem *shadow;	/* snapshots of secured pages; used by the thread that has the page locked */
	unsigned n_snapped, n_shadow_users;
	unsigned lookers;	   /* the sum of the grants' */
	LIST_HEAD(, grant) grants; /* changes only while it is ready for none of them */
	bool spoiled; /* somebody who holds nothing of it, and is not a client any more, may be storing there */
	unsigned n_suspects; /* grants */
	unsigned n_undetecting; /* grants of mappings for writing whose clients do not look for changes themselves */
	struct keeper *keepers; /* clients that may map it still when it is freed: see stranded.c */
	struct page_replica page[GAIA_CHUNK_PAGES];
	/*
	 * The index of what is stale: a bit a page, set if an acquire might find something to do there, to read it or (unready) to write
	 * it. state.c sets and clears it. A bit too many costs a look at the page; one too few would be a wrong byte (cache_check()).
	 */
	uint64_t stale[GAIA_CHUNK_PAGES / 64], unready[GAIA_CHUNK_PAGES / 64];
	/* Pages that several mappings hold for writing: how many beyond the first. NULL: there are none. */
	struct more_writers {
		uint16_t of[GAIA_CHUNK_PAGES];
		unsigned sum;
	} *more_writers;
	/* Pages that were read ahead and that no acquire has asked for since: for the counters. NULL: there are none. */
	struct brought {
		uint64_t pages[GAIA_CHUNK_PAGES / 64];
		unsigned n;
	} *brought;

	/* dev->lock; a thread that has it pinned may read mem without, once there is any. */
	frame_t lent; /* a view's, once it has mem: the frame for its first page */
	struct devmem *mem; /* NULL: promised to the acquire that has made the replica; others may wait for that */
	enum {
		PROMISE_OWN,   /* which gives it memory itself; or it has some */
		PROMISE_LATER, /* which does so later; whoever waits for it may do it before */
		PROMISE_TAKEN, /* somebody does it now */
	} promise;
	atomic_bool *lacks; /* of that acquire, if later or taken: somebody could not */
	unsigned pins;	/* a unit's: grants that hold pages, calls in progress */
	struct pinner *pinners; /* a unit's: see users.c */
	unsigned n_ready; /* grants for which it is ready, see ready.c; changed with chunk->lock held as well */
	bool late;	/* a unit's: chunk->lock and dev->lock: being evicted no more, but not idle before nobody looks at its grants (lookers) */
	/* The next ones are a unit's. */
	bool evicting;	/* the only pin is the evictor's, and nobody may add one; set under dev->reserve, too */
	bool failed;	/* the promise was not kept; the replica ends with the last pin */
	uint64_t stuck;	/* dev->n_stuck when it could not be evicted */
	uint64_t idled;	/* dev->n_idled when it came to the end of its list; 0: it was put at the head */
	unsigned filling; /* workers that read pages of it ahead now, and have these locked */
	unsigned passed_by; /* the last decision (dev->n_decisions) that has passed it over, see room.c; */
	unsigned passed;    /* how many have, since it became idle */
	struct readahead *ahead; /* it was made to read ahead, and nobody has pinned it since */
	unsigned file_pinned; /* so many of its chunks are pinned to the device, and it does not leave: set by file_pins.c only */
	TAILQ_ENTRY(replica) link; /* in dev->busy iff pins > 0, else in dev->idle_pinned iff file_pinned, else in dev->idle_ready iff unit_ready() > 0, else in dev->unused iff ahead, else in dev->idle; if failed in none */
};

/* The replica that stands for it and those that go with it. They stay while it is pinned, or with dev->reserve held and it does not leave. */
static inline struct replica *replica_unit(const struct replica *rep)
{
	return rep->extent ? rep->extent->member[0] : (struct replica *)rep;
}

static inline unsigned unit_chunks(const struct replica *unit)
{
	return unit->extent ? GAIA_EXTENT_CHUNKS : 1;
}

static inline uint64_t unit_bytes(const struct replica *unit)
{
	return unit_chunks(unit) * (uint64_t)GAIA_CHUNK;
}

/* The @k-th replica, of unit_chunks(). */
static inline struct replica *unit_member(const struct replica *unit, unsigned k)
{
	return unit->extent ? unit->extent->member[k] : (struct replica *)unit;
}

/* For how many grants it is ready. dev->lock is held. */
static inline unsigned unit_ready(const struct replica *unit)
{
	return unit->extent ? unit->extent->n_ready : unit->n_ready;
}

/* dev->lock is not held. False: it is promised some. */
bool replica_has_memory(const struct replica *rep);
/* chunk->lock is held. */
static inline bool replica_is_spoiled(const struct replica *rep)
{
	return rep->spoiled || rep->n_suspects > 0;
}

/* Some of a device's units, or replicas of a chunk; to be freed. */
struct replica_list {
	struct replica **at;
	unsigned n;
};

/* device_run(), device_begin(), device_end(); for devices that are gone -ENODEV, at once. */
int cache_device_run(struct cache_device *dev, struct dev_op *op);
int cache_device_begin(struct cache_device *dev, struct dev_op *op, struct device_wait *w);
int cache_device_begin_then(struct cache_device *dev, struct dev_op *op, struct device_wait *w, void (*then)(void *arg, int err), void *arg);
int cache_device_end(struct cache_device *dev, struct device_wait *w);

/* dev->reserve held, or it is pinned by right, and stays so. False: it leaves. */
bool replica_pin(struct replica *rep);
void replica_unpin(struct replica *rep);
/* The same for all of these; first those of which no page is locked: the end of one that was promised in vain waits for the others'. Consumes what is in @reps. */
void replicas_unpin(struct replica **reps, uint64_t n);
/* See grant.lookers. chunk->lock is held. After the last grant_looked() the grant may go when that is given up. */
void grant_look(struct grant *g);
void grant_looked(struct grant *g);
/* It is ready for one grant more, for which it is pinned; or for one less. chunk->lock is held. */
void replica_ready_more(struct replica *rep);
void replica_ready_less(struct replica *rep);
/* Memory for snapshots, made when first needed; NULL if there is none. It stays until replica_shadow_done() was called
 * as often, which frees it (as replica_shadow_trim() does) if no page is in it. */
struct devmem *replica_shadow(struct replica *rep);
void replica_shadow_done(struct replica *rep);
/* chunk->lock held. */
void replica_shadow_trim(struct replica *rep);

/* Of so many chunks of a list's units. */
uint64_t units_chunks(const struct replica_list *list);

/* ---- for replica.c, unused.c, evict.c, late.c, room.c, file_pins.c and mapping.c only ---- */

/* Take a unit off the list of the device's idle ones that it is on; put it at the end of that on which it belongs. dev->lock is held. */
void replica_idle_remove(struct replica *unit);
void replica_idle_add(struct replica *unit);
/* Whether it is leaving; unless its eviction fails it will be gone, and nobody else can pin it. dev->lock is held. */
bool replica_leaves(const struct replica *rep);
/* replica_pin(), with dev->lock held as well. */
bool replica_pin_locked(struct replica *rep);
/* Add a pin to a pinned replica. Fails for one that is idle or being evicted: nothing of it is acquired. */
bool replica_pin_again(struct replica *rep);
/* A replica is gone, or is idle though somebody may count on its leaving. dev->lock is held. */
void device_has_left(struct cache_device *dev);
/* Claim an idle unit for eviction: with a pin that nobody can join. It is not ready. dev->reserve and dev->lock are held. */
void replica_claim_idle(struct replica *unit);
/*
 * The same for the unit of a replica, which may be ready, and then is not any more. Fails if it is pinned; and if one of several is made
 * ready just then. dev->reserve is held, and no chunk's lock. @unless, may be NULL: with the chunk's lock held, for each: whether it is not to be claimed after all.
 */
bool replica_claim(struct replica *rep, bool (*unless)(const struct replica *rep, const void *arg), const void *arg);
/* Undo a claim: the unit stays. @stuck: it could not be evicted. @next: it is the first to go. */
void replica_unclaim(struct replica *unit, bool stuck, bool next);
/* Others wait for its clients: its unit is idle again, and the next to go, when nobody looks at its grants any more. chunk->lock is held. */
void replica_set_late(struct replica *rep);
/* To be called before looking for what leaves, for device_await_left(). */
uint64_t device_count_left(struct cache_device *dev);
/* [W] Wait until something has left the device since @before, or until @until_ns. Only pins may be held: evictors do not wait for pins. */
void device_await_left_until(struct cache_device *dev, uint64_t before, uint64_t until_ns);
void device_await_left(struct cache_device *dev, uint64_t before);
/* Append it; pins nothing. */
void replica_list_add(struct replica_list *list, struct replica *rep);
/* An operation failed: if the device is gone, so is everything on it. */
void device_note_gone(struct cache_device *dev, int err);
/* The end of device_memory_alloc()'s. What is the host's counts as home's, too. No lock is held but, for a snapshot's, chunk->lock. */
void device_memory_end(struct cache_device *dev, struct devmem *mem);
/* Take a chunk that is free and promised to nobody. dev->lock is held. */
bool device_take_spare(struct cache_device *dev);
/* For a snapshot or a copy: takes no memory that is promised to others, and evicts nothing but what was read ahead and not used. */
int device_spare_alloc(struct cache_device *dev, struct devmem **out);
/* Memory that the caller has counted: of a chunk. What is parked on the device makes room for it: so this may wait for operations of the device. */
int device_memory_alloc(struct cache_device *dev, struct devmem **out);
/* The same for @n chunks: one, or those of an extent. */
int device_memory_alloc_many(struct cache_device *dev, struct devmem **out, unsigned n);
/* Free memory of the device, and count it. */
void device_memory_free(struct cache_device *dev, struct devmem *mem);
/* Add it to the chunk's, in the order of the devices. chunk->lock is held. */
void replica_link(struct chunk *ch, struct replica *rep);
/* @only: see struct replica. chunk->lock is held. */
struct replica *replica_find(struct chunk *ch, const struct cache_device *dev, const struct readers *only);
/*
 * Whether the chunk may have one more replica: of the clients that share one, or of these readers. There can be many users, whose readers' replicas
 * leave room for the others, and for a view; not for devices that are added later. chunk->lock is held.
 */
bool replica_fits(const struct chunk *ch, const struct readers *only);
/* Without memory and pins, and in no table; consumes a reference to the chunk. */
struct replica *replica_new(struct chunk *ch, struct cache_device *dev, struct readers *only);
/* All pages are locked, no release is unmerged, no client maps it. Of an extent the first is the last that is destroyed. */
void replica_destroy(struct replica *rep);

#endif
