/*
 * replica.h - what replica.c, unused.c, evict.c, late.c, room.c and mapping.c share: device memory of chunks.
 *
 * Internal to these files. The locks that a function needs are named at it; [W]: it waits, for clients, storage or a device.
 */
#ifndef GAIA_PAGECACHE_REPLICA_H
#define GAIA_PAGECACHE_REPLICA_H

#include "pagecache/state.h"

/* Some of a device's replicas, or a chunk's; to be freed. */
struct replica_list {
	struct replica **at;
	unsigned n;
};

/* What clients are asked to give up: ask[k] is of grant[k], or, when that has been settled, of NULL. */
struct asked {
	struct cache_revoke *ask;
	struct grant **grant;
	unsigned n, room;
};

/* What becomes of a replica whose client has answered, or is gone: it is evicted; its contents move to other memory; it stays. */
enum becomes { GOES, MOVES, STAYS };

/* What the clients of one user were asked for, together. */
struct late {
	STAILQ_ENTRY(late) link;
	struct cache_user user;
	struct asked asked;
	struct revoking *revoking; /* NULL: they have answered, or are gone */
	unsigned pending;
	bool silent; /* none of them has answered lately */
};

STAILQ_HEAD(late_list, late);

/* ---- replica.c ---- */

/* Take it off the list of the device's idle ones that it is on; put it at the end of that on which it belongs. dev->lock is held. */
void replica_idle_remove(struct replica *rep);
void replica_idle_add(struct replica *rep);
/* Whether it is leaving; unless its eviction fails it will be gone, and nobody else can pin it. dev->lock is held. */
bool replica_leaves(const struct replica *rep);
/* replica_pin(), with dev->lock held as well. */
bool replica_pin_locked(struct replica *rep);
/* Add a pin to a pinned replica. Fails for one that is idle or being evicted: nothing of it is acquired. */
bool replica_pin_again(struct replica *rep);
/* A replica is gone, or is idle though somebody may count on its leaving. dev->lock is held. */
void device_has_left(struct cache_device *dev);
/* Claim an idle replica for eviction: with a pin that nobody can join. It is not ready. dev->reserve and dev->lock are held. */
void replica_claim_idle(struct replica *rep);
/* The same for one that may be ready, and then is not any more. Fails if it is pinned. dev->reserve and chunk->lock are held. */
bool replica_claim(struct replica *rep);
/* Undo a claim: the replica stays. @stuck: it could not be evicted. @next: it is the first to go. */
void replica_unclaim(struct replica *rep, bool stuck, bool next);
/* Others wait for its clients: it is idle again, and the next to go, when nobody looks at its grants any more. chunk->lock is held. */
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
/* Take a chunk that is free and promised to nobody. dev->lock is held. */
bool device_take_spare(struct cache_device *dev);
/* For a snapshot or a copy: takes no memory that is promised to others, and evicts nothing but what was read ahead and not used. */
int device_spare_alloc(struct cache_device *dev, struct devmem **out);
/* Keep a promise: the replica gets memory, and threads that wait for that go on. */
int promise_keep(struct replica *rep);
/* Free memory of the device, and count it. */
void device_memory_free(struct cache_device *dev, struct devmem *mem);
/* Add it to the chunk's, in the order of the devices. chunk->lock is held. */
void replica_link(struct chunk *ch, struct replica *rep);
/* @only: see struct replica. chunk->lock is held. */
struct replica *replica_find(struct chunk *ch, const struct cache_device *dev, const struct readers *only);
/* Without memory and pins, and in no table; consumes a reference to the chunk. */
struct replica *replica_new(struct chunk *ch, struct cache_device *dev, struct readers *only);
/*
 * Make a replica without memory, with a pin. dev->reserve is held, and the replica counts as pinned and promised already. Consumes
 * the caller's reference to the chunk, also on error. -EMFILE.
 */
int promise_make(struct chunk *ch, struct cache_device *dev, struct readers *only, struct replica **out);
/* There is no memory for it after all. It goes when all who wait for it have unpinned it. */
void promise_break(struct replica *rep);
/* All pages are locked, no release is unmerged, no client maps it. */
void replica_destroy(struct replica *rep);

/* ---- unused.c ---- */

/*
 * Free the memory of a replica that was read ahead and not used: the one that has been there for longest, of those that need no waiting. For
 * @ra only what it may replace; NULL: for somebody who needs it now.
 */
bool unused_evict(struct cache_device *dev, struct readahead *ra);

/* ---- evict.c ---- */

/* What @ask asks for is @g's, which stays until it is settled. */
void asked_add(struct asked *asked, struct cache_revoke ask, struct grant *g);
/*
 * Note the grants that map @rep, which is claimed. They stay until their clients have been asked (grant.lookers). @stays: so does the
 * replica, and a client is handed nothing of it before it has answered.
 */
void asked_note(struct asked *asked, struct replica *rep, bool stays);
/* If the client of ask @k is not asked any more, say what becomes of the replica for it. */
void asked_settle(struct asked *asked, unsigned k, enum becomes what);
void asked_free(struct asked *asked); /* all are settled, or another's now */
/* [W] The rest of replicas_evict_all(), when clients have given their memory up. */
int replicas_evict_revoked(struct replica_list *list);
/*
 * [W] Evict claimed replicas: take their memory back from clients, bring home what was released, and free them. No lock is held.
 * Those for which that fails are idle again, as before. Returns the first error.
 */
int replicas_evict_all(struct replica_list *list);
/* The chunks of replicas that are in use, to be put; *@out to be freed. @snapped: only of those with snapshots; what is ready has none. */
unsigned device_busy_chunks(struct cache_device *dev, bool snapped, struct chunk ***out);
/* [W if @wait] What clients hold that are gone is in nobody's way. @wait: see chunk_drop_dead(). */
void device_drop_dead(struct cache_device *dev, bool wait);
/* [W] Bring home what was released of the chunk, by @fetch: fetch_pages(), pages_secure(). */
int chunk_fetch(struct chunk *ch, int (*fetch)(struct chunk *, unsigned, unsigned));
/*
 * [W] Move what was released to where nobody stores to it any more; and the rest, too, if nobody holds any of it and there is room on
 * the device. Otherwise the replica goes: now, or, if it is held or cannot be brought home, when it is next acquired. A replica that
 * has been spoiled for long is not copied: nobody knows who stored last to it.
 */
void spoiled_secure(struct chunk *ch, struct cache_device *dev, const struct readers *only, bool copy);

/* ---- late.c ---- */

#define ANSWER_NS 20000000ull /* clients that take longer are not waited for, as long as the memory of others can be had */
/* Whether a client that maps it, of the first ones, is a user's whose clients have not answered in time. dev->reserve is held, which keeps it. */
bool replica_is_owed(struct replica *rep);
/* Split what is asked for by the clients' users. Consumes @asked; the parts are to be left to workers, or freed. */
void late_split(struct asked *asked, struct late_list *list);
void late_free(struct late *l);
/* [W] Ask all of them, and wait for each user's clients as long as they go on answering. */
void late_ask(struct late_list *list, const struct cache_host *host);
/* Leave it to the user's worker, which frees it. */
void late_leave(struct cache *c, struct late *l);

/* ---- room.c ---- */

/*
 * Add a pin to a replica of which the mapping holds something, or will (to_come). One that is ready and held may be idle: while it
 * is ready nobody claims it. mapping->lock is held.
 */
bool grant_pin_held(const struct mapping *m, const struct grant *g);

#endif
