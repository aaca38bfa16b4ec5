/*
 * evict.h - replicas leave: evict.c, late.c.
 */
#ifndef GAIA_PAGECACHE_EVICT_H
#define GAIA_PAGECACHE_EVICT_H

#include <stdbool.h>
#include <sys/queue.h>

#include "pagecache/cache.h"

struct cache;
struct cache_device;
struct chunk;
struct grant;
struct living;
struct mapping;
struct readers;
struct replica;
struct replica_list;
struct revoking;

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

/*
 * Evict the chunks' replicas on the device on request, each with all of its extent: -EBUSY if one is pinned. With a mapping @m only the replicas
 * that it uses, each of which stays (-EBUSY) if another mapping maps it. @views: only views (view.h). The others go in any case; the first
 * error. [W]
 */
int replicas_drop(struct chunk *const *list, unsigned n, struct cache_device *dev, const struct mapping *m, bool views);
/* Evict the chunk's replica that those share who may write, with all of its extent, if nobody uses any of that: else -EBUSY. [W] */
int replica_drop_shared(struct chunk *ch, struct cache_device *dev);
/* Evict the chunks' replicas, if nobody uses them. */
void replicas_drop_idle(struct cache *c, struct chunk **list, unsigned n);
/* So many chunks are evicted at a time, on request: a thread that needs one of them waits for all. */
#define EVICT_AT_ONCE 64u

/* ---- for evict.c, late.c, room.c and mapping.c only ---- */

/* What @ask asks for is @g's, which stays until it is settled. */
void asked_add(struct asked *asked, struct cache_revoke ask, struct grant *g);
/*
 * Note the grants that map any of @unit, which is claimed. They stay until their clients have been asked (grant.lookers). @stays: so does the
 * replica, and a client is handed nothing of it before it has answered.
 */
void asked_note(struct asked *asked, struct replica *unit, bool stays);
/* If the client of ask @k is not asked any more, say what becomes of the replica for it. */
void asked_settle(struct asked *asked, unsigned k, enum becomes what);
void asked_free(struct asked *asked); /* all are settled, or another's now */
/* [W] The rest of replicas_evict_all(), when clients have given their memory up. */
int replicas_evict_revoked(struct replica_list *list);
/*
 * [W] Evict claimed units: take their memory back from clients, bring home what was released, and free them. No lock is held.
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
 * [W] The replica is pinned. What clients hold there that are gone is dropped, and what was released is brought home before somebody who is not
 * a client any more stores more to it.
 */
void replica_drop_dead(struct replica *rep, struct living *known);
/*
 * [W] Move what was released to where nobody stores to it any more; and the rest, too, if nobody holds any of it and there is room on
 * the device. Otherwise the replica goes: now, or, if it is held or cannot be brought home, when it is next acquired. A replica that
 * has been spoiled for long is not copied: nobody knows who stored last to it.
 */
void spoiled_secure(struct chunk *ch, struct cache_device *dev, const struct readers *only, bool copy);

#define ANSWER_NS 20000000ull /* clients that take longer are not waited for, as long as the memory of others can be had */
/* Whether a client that maps the unit, of the first ones, is a user's whose clients have not answered in time. dev->reserve is held, which keeps it. */
bool replica_is_owed(struct replica *rep);
/* Split what is asked for by the clients' users. Consumes @asked; the parts are to be left to workers, or freed. */
void late_split(struct asked *asked, struct late_list *list);
void late_free(struct late *l);
/* [W] Ask all of them, and wait for each user's clients as long as they go on answering. */
void late_ask(struct late_list *list, const struct cache_host *host);
/* Leave it to the user's worker, which frees it. */
void late_leave(struct cache *c, struct late *l);

#endif
