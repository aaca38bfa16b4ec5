/*
 * replica.c - copies of chunks on devices: their memory, pins, eviction; and mappings.
 *
 * A replica is evictable when nothing pins it. What an acquire gets is decided under dev->reserve, at once. So two
 * acquires that need each other's memory are decided one after the other, and one that cannot fit fails
 * as a whole. What is missing is promised: replicas without memory, which the acquire pins, and which count like others. Then, with
 * no lock held, what must leave for them is evicted, and they get memory (18).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/fetch.h"
#include "pagecache/state.h"

/* ---- pins ---- */

/* The next ones with dev->lock held. The replica is idle: it leaves its list, or comes to the end of the one where it belongs. */
static struct replica_queue *idle_list(struct replica *rep)
{
	struct cache_device *dev = rep->dev;

	return rep->n_ready > 0 ? &dev->idle_ready : rep->ahead ? &dev->unused : &dev->idle;
}

static void idle_remove(struct replica *rep)
{
	TAILQ_REMOVE(idle_list(rep), rep, link);
	rep->dev->n_idle_ready -= rep->n_ready > 0;
}

static void idle_add(struct replica *rep)
{
	rep->idled = ++rep->dev->n_idled;
	TAILQ_INSERT_TAIL(idle_list(rep), rep, link);
	rep->dev->n_idle_ready += rep->n_ready > 0;
}

static void make_busy(struct replica *rep)
{
	idle_remove(rep);
	TAILQ_INSERT_TAIL(&rep->dev->busy, rep, link);
	rep->dev->pinned += GAIA_CHUNK;
}

static void make_idle(struct replica *rep)
{
	TAILQ_REMOVE(&rep->dev->busy, rep, link);
	idle_add(rep);
	rep->dev->pinned -= GAIA_CHUNK;
}

/* Whether it is leaving; unless its eviction fails it will be gone, and nobody else can pin it. dev->lock is held. */
static bool leaves(const struct replica *rep)
{
	return rep->evicting || rep->failed;
}

/* dev->lock held. */
static bool pin_locked(struct replica *rep)
{
	if (leaves(rep))
		return false;
	if (rep->pins++ == 0) {
		make_busy(rep);
		readahead_ended(rep, true);
	}
	return true;
}

bool replica_pin(struct replica *rep)
{
	bool pinned;

	pthread_mutex_lock(&rep->dev->lock);
	pinned = pin_locked(rep);
	pthread_mutex_unlock(&rep->dev->lock);
	return pinned;
}

/* Add a pin to a pinned replica. Fails for one that is idle or being evicted: nothing of it is acquired. */
static bool pin_again(struct replica *rep)
{
	bool pinned;

	pthread_mutex_lock(&rep->dev->lock);
	pinned = rep->pins > 0 && pin_locked(rep);
	pthread_mutex_unlock(&rep->dev->lock);
	return pinned;
}

/* A replica is gone, or is idle though somebody may count on its leaving. dev->lock is held. */
static void has_left(struct cache_device *dev)
{
	dev->n_left++;
	pthread_cond_broadcast(&dev->changed);
}

static void promise_end(struct replica *rep);

void replica_unpin(struct replica *rep)
{
	struct cache_device *dev = rep->dev;
	bool last, failed;

	pthread_mutex_lock(&dev->lock);
	bug_on(rep->pins == 0 || rep->evicting);
	last = --rep->pins == 0;
	failed = rep->failed;
	if (last && !failed) {
		make_idle(rep);
		if (rep->only)
			has_left(dev); /* readers_drop_replicas() may wait for a thread that only looked at it */
	}
	pthread_mutex_unlock(&dev->lock);
	if (last && failed)
		promise_end(rep);
}

void replica_ready_more(struct replica *rep)
{
	rep->chunk->n_ready++;
	pthread_mutex_lock(&rep->dev->lock);
	bug_on(rep->pins == 0);
	rep->n_ready++;
	pthread_mutex_unlock(&rep->dev->lock);
}

void replica_ready_less(struct replica *rep)
{
	rep->chunk->n_ready--;
	pthread_mutex_lock(&rep->dev->lock);
	if (rep->pins == 0 && rep->n_ready == 1) {
		idle_remove(rep);
		rep->n_ready = 0;
		idle_add(rep);
	} else {
		rep->n_ready--;
	}
	pthread_mutex_unlock(&rep->dev->lock);
}

/* Claim an idle replica for eviction: with a pin that nobody can join. It is not ready. dev->reserve and dev->lock are held. */
static void claim_idle(struct replica *rep)
{
	bug_on(rep->n_ready > 0);
	make_busy(rep);
	rep->pins = 1;
	rep->evicting = true;
	rep->dev->leaving += GAIA_CHUNK;
}

/* dev->reserve and chunk->lock held. Fails if it is pinned. */
static bool claim(struct replica *rep)
{
	bool idle;

	chunk_unready(rep->chunk);

	pthread_mutex_lock(&rep->dev->lock);
	idle = rep->pins == 0 && !leaves(rep);
	if (idle)
		claim_idle(rep);
	pthread_mutex_unlock(&rep->dev->lock);
	return idle;
}

/* Undo a claim: the replica stays. @stuck: it could not be evicted. @next: it is the first to go. */
static void unclaim(struct replica *rep, bool stuck, bool next)
{
	struct cache_device *dev = rep->dev;

	pthread_mutex_lock(&dev->lock);
	rep->evicting = false;
	rep->pins = 0;
	if (stuck)
		rep->stuck = ++dev->n_stuck;
	make_idle(rep);
	if (next) {
		TAILQ_REMOVE(idle_list(rep), rep, link);
		TAILQ_INSERT_HEAD(idle_list(rep), rep, link);
		rep->idled = 0;
	}
	if (rep->late)
		dev->late -= GAIA_CHUNK;
	rep->late = false;
	dev->leaving -= GAIA_CHUNK;
	has_left(dev);
	pthread_mutex_unlock(&dev->lock);
}

/* Others wait for its clients: it is idle again, and the next to go, when nobody looks at its grants any more. chunk->lock is held. */
static void set_late(struct replica *rep)
{
	pthread_mutex_lock(&rep->dev->lock);
	if (!rep->late)
		rep->dev->late += GAIA_CHUNK;
	rep->late = true;
	pthread_mutex_unlock(&rep->dev->lock);
}

void grant_look(struct grant *g)
{
	g->lookers++;
	g->replica->lookers++;
}

void grant_looked(struct grant *g)
{
	struct replica *rep = g->replica;

	g->lookers--;
	pthread_cond_broadcast(&rep->chunk->unlocked);
	if (--rep->lookers == 0 && rep->late)
		unclaim(rep, false, true);
}

/* To be called before looking for what leaves, for await_left(). */
static uint64_t count_left(struct cache_device *dev)
{
	uint64_t n;

	pthread_mutex_lock(&dev->lock);
	n = dev->n_left;
	pthread_mutex_unlock(&dev->lock);
	return n;
}

/* Wait until something has left the device since @before, or @until. Only pins may be held: evictors do not wait for pins. */
static void await_left_until(struct cache_device *dev, uint64_t before, uint64_t until_ns)
{
	struct timespec until = { .tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000 };
	int err = 0;

	thread_waits();
	pthread_mutex_lock(&dev->lock);
	while (dev->n_left == before && !err)
		err = pthread_cond_timedwait(&dev->changed, &dev->lock, &until);
	pthread_mutex_unlock(&dev->lock);
}

static void await_left(struct cache_device *dev, uint64_t before)
{
	await_left_until(dev, before, INT64_MAX);
}

/* Some of a device's replicas, or a chunk's; to be freed. */
struct replica_list {
	struct replica **at;
	unsigned n;
};

static void list_add(struct replica_list *list, struct replica *rep)
{
	if ((list->n & (list->n - 1)) == 0)
		list->at = xrealloc(list->at, MAX(2 * list->n, 1u) * sizeof(struct replica *));
	list->at[list->n++] = rep;
}

/* ---- device memory ---- */

static bool evict_unused(struct cache_device *dev, struct readahead *ra);

/* An operation failed: if the device is gone, so is everything on it. */
static void note_gone(struct cache_device *dev, int err)
{
	if (err == -ENODEV && !atomic_exchange(&dev->gone, true))
		log_error("device %s is gone; pages that were released on it and not fetched yet are "
			  "lost: reading and syncing them fails until they are written over",
			  dev->dev->name);
}

int cache_device_run(struct cache_device *dev, struct dev_op *op)
{
	int err = -ENODEV;

	if (!atomic_load(&dev->gone))
		err = device_run(dev->dev, op);
	note_gone(dev, err);
	return err;
}

int cache_device_begin(struct cache_device *dev, struct dev_op *op, struct device_wait *w)
{
	int err = -ENODEV;

	if (!atomic_load(&dev->gone))
		err = device_begin(dev->dev, op, w);
	note_gone(dev, err);
	return err;
}

int cache_device_end(struct cache_device *dev, struct device_wait *w)
{
	int err = device_end(w);

	note_gone(dev, err);
	return err;
}

/* Take a chunk that is free and promised to nobody. dev->lock is held. */
static bool take_spare(struct cache_device *dev)
{
	bool room = dev->used + dev->promised + GAIA_CHUNK <= dev->dev->capacity;

	if (room)
		dev->used += GAIA_CHUNK;
	return room;
}

/* For a snapshot or a copy: takes no memory that is promised to others, and evicts nothing but what was read ahead and not used. */
static int spare_alloc(struct cache_device *dev, struct devmem **out)
{
	bool room;
	int err;

	do {
		pthread_mutex_lock(&dev->lock);
		room = take_spare(dev);
		pthread_mutex_unlock(&dev->lock);
	} while (!room && evict_unused(dev, NULL));
	if (!room)
		return -ENOMEM;
	err = atomic_load(&dev->gone) ? -ENODEV : dev->dev->ops->alloc(dev->dev, out);
	note_gone(dev, err);
	if (!err)
		return 0;
	pthread_mutex_lock(&dev->lock);
	dev->used -= GAIA_CHUNK;
	pthread_mutex_unlock(&dev->lock);
	return err;
}

/* Keep a promise: the replica gets memory, and threads that wait for that go on. */
static int promise_keep(struct replica *rep)
{
	struct cache_device *dev = rep->dev;
	struct devmem *mem;
	bool full;
	int err;

	/* What was evicted for it may be stranded. */
	pthread_mutex_lock(&dev->lock);
	full = dev->n_stranded > 0 && dev->used + GAIA_CHUNK > dev->dev->capacity;
	pthread_mutex_unlock(&dev->lock);
	err = atomic_load(&dev->gone) ? -ENODEV : full ? -ENOMEM : dev->dev->ops->alloc(dev->dev, &mem);
	note_gone(dev, err);
	if (err)
		return err;
	pthread_mutex_lock(&dev->lock);
	rep->mem = mem;
	dev->used += GAIA_CHUNK;
	dev->promised -= GAIA_CHUNK;
	pthread_cond_broadcast(&dev->changed);
	pthread_mutex_unlock(&dev->lock);
	return 0;
}

static void memory_free(struct cache_device *dev, struct devmem *mem)
{
	dev->dev->ops->free(dev->dev, mem);
	pthread_mutex_lock(&dev->lock);
	dev->used -= GAIA_CHUNK;
	pthread_mutex_unlock(&dev->lock);
}

struct devmem *replica_shadow(struct replica *rep)
{
	struct chunk *ch = rep->chunk;
	struct devmem *mem, *made = NULL;

	pthread_mutex_lock(&ch->lock);
	mem = rep->shadow;
	if (mem)
		rep->n_shadow_users++;
	pthread_mutex_unlock(&ch->lock);
	/* If there is no room the release is fetched instead. */
	if (mem || spare_alloc(rep->dev, &made))
		return mem;
	pthread_mutex_lock(&ch->lock);
	if (!rep->shadow) {
		rep->shadow = made;
		made = NULL;
	}
	mem = rep->shadow;
	rep->n_shadow_users++;
	pthread_mutex_unlock(&ch->lock);
	if (made)
		memory_free(rep->dev, made);
	return mem;
}

void replica_shadow_trim(struct replica *rep)
{
	if (rep->n_snapped > 0 || rep->n_shadow_users > 0 || !rep->shadow)
		return;
	memory_free(rep->dev, rep->shadow);
	rep->shadow = NULL;
}

void replica_shadow_done(struct replica *rep)
{
	pthread_mutex_lock(&rep->chunk->lock);
	rep->n_shadow_users--;
	replica_shadow_trim(rep);
	pthread_mutex_unlock(&rep->chunk->lock);
}

/* ---- life ---- */

/* Add it to the chunk's, in the order of the devices. chunk->lock is held. */
static void replica_link(struct chunk *ch, struct replica *rep)
{
	unsigned k = ch->n_replicas++;

	ch->replica = xrealloc(ch->replica, ch->n_replicas * sizeof(struct replica *));
	for (; k > 0 && ch->replica[k - 1]->dev->index > rep->dev->index; k--)
		ch->replica[k] = ch->replica[k - 1];
	ch->replica[k] = rep;
}

static void replica_unlink(struct chunk *ch, struct replica *rep)
{
	unsigned k = 0;

	while (ch->replica[k] != rep)
		k++;
	for (ch->n_replicas--; k < ch->n_replicas; k++)
		ch->replica[k] = ch->replica[k + 1];
}

/* @only: see struct replica. chunk->lock is held. */
static struct replica *replica_find(struct chunk *ch, const struct cache_device *dev,
				    const struct readers *only)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (ch->replica[k]->dev == dev && ch->replica[k]->only == only)
			return ch->replica[k];
	return NULL;
}

/* Without memory and pins, and in no table; consumes a reference to the chunk. */
static struct replica *replica_new(struct chunk *ch, struct cache_device *dev, struct readers *only)
{
	struct replica *rep = xcalloc(1, sizeof(*rep));

	rep->chunk = ch;
	rep->dev = dev;
	rep->only = only;
	LIST_INIT(&rep->grants);
	replica_made(rep);
	return rep;
}

/*
 * Make a replica without memory, with a pin. dev->reserve is held, and the replica counts as pinned and promised already. Consumes
 * the caller's reference to the chunk, also on error. -EMFILE.
 */
static int promise_make(struct chunk *ch, struct cache_device *dev, struct readers *only, struct replica **out)
{
	struct replica *rep = replica_new(ch, dev, only);

	rep->pins = 1;
	pthread_mutex_lock(&ch->lock);
	/* There can be many users: their readers' replicas must leave room for those that clients share. */
	if (only && ch->n_replicas + ch->file->cache->n_devices >= CACHE_MAX_DEVICES) {
		pthread_mutex_unlock(&ch->lock);
		free(rep);
		chunk_put(ch);
		return -EMFILE;
	}
	track_make(ch);
	replica_link(ch, rep);
	pthread_mutex_unlock(&ch->lock);
	pthread_mutex_lock(&dev->lock);
	TAILQ_INSERT_TAIL(&dev->busy, rep, link);
	pthread_mutex_unlock(&dev->lock);
	*out = rep;
	return 0;
}

/* There is no memory for it after all. It goes when all who wait for it have unpinned it. */
static void promise_break(struct replica *rep)
{
	struct cache_device *dev = rep->dev;

	pthread_mutex_lock(&dev->lock);
	rep->failed = true;
	TAILQ_REMOVE(&dev->busy, rep, link);
	dev->pinned -= GAIA_CHUNK;
	dev->promised -= GAIA_CHUNK;
	pthread_cond_broadcast(&dev->changed);
	pthread_mutex_unlock(&dev->lock);
}

static void memory_end(struct replica *rep)
{
	struct cache_device *dev = rep->dev;
	uint64_t chunks = rep->shadow ? 2 : 1, stays;

	dev->dev->ops->free(dev->dev, rep->mem);
	if (rep->shadow)
		dev->dev->ops->free(dev->dev, rep->shadow);
	/* At once, for threads that count on what leaves. */
	pthread_mutex_lock(&dev->lock);
	TAILQ_REMOVE(&dev->busy, rep, link);
	readahead_ended(rep, false);
	stays = strand(dev, rep->keepers);
	dev->used -= chunks * GAIA_CHUNK - stays;
	dev->pinned -= GAIA_CHUNK - stays;
	dev->leaving -= GAIA_CHUNK;
	has_left(dev);
	pthread_mutex_unlock(&dev->lock);
	count(CTR_device_evicted, 1);
}

/* All pages are locked, no release is unmerged, no client maps it. */
static void replica_destroy(struct replica *rep)
{
	struct chunk *ch = rep->chunk;
	struct cache_device *dev = rep->dev;
	struct grant *g;

	pthread_mutex_lock(&ch->lock);
	while ((g = LIST_FIRST(&rep->grants))) {
		bug_on(g->pinned || g->ready || g->delivered || g->offered || g->in_delivery || g->lookers);
		LIST_REMOVE(g, of_replica);
		pthread_mutex_lock(&g->mapping->lock);
		HASH_DEL(g->mapping->grants, g);
		pthread_mutex_unlock(&g->mapping->lock);
		free(g);
	}
	readahead_dropped(rep);
	replica_unlink(ch, rep);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		replica_left(ch, i);
	track_maybe_free(ch);
	pages_unlock(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&ch->lock);

	if (!rep->failed) {
		memory_end(rep);
	} else {
		pthread_mutex_lock(&dev->lock);
		has_left(dev);
		pthread_mutex_unlock(&dev->lock);
	}
	free(rep);
	chunk_account(ch);
	chunk_put(ch);
}

/* Nobody pins the replica of a broken promise any more: it goes as replicas do, under the locks of all pages. */
static void promise_end(struct replica *rep)
{
	struct chunk *ch = chunk_ref(rep->chunk);
	struct cfile *f = ch->file;

	pthread_rwlock_rdlock(&f->range);
	pthread_mutex_lock(&ch->lock);
	pages_lock(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&ch->lock);
	replica_destroy(rep);
	pthread_rwlock_unlock(&f->range);
	chunk_put(ch);
}

/* Whether the client of the grant must be asked for the memory; from now on it counts as asked. chunk->lock is held. */
static bool take_back(struct grant *g)
{
	if (!g->delivered && !g->offered)
		return false;
	g->delivered = 0;
	g->offered = false;
	if (!fault_point("break.reuse_mapped"))
		return true;
	g->mapping->kept = 1 + g->index;
	return false;
}

struct asked {
	struct cache_revoke *ask;
	struct grant **grant;
	unsigned n, room;
};

static void asked_add(struct asked *asked, struct cache_revoke ask, struct grant *g)
{
	if (asked->n == asked->room) {
		asked->room = MAX(2 * asked->room, 16u);
		asked->ask = xrealloc(asked->ask, asked->room * sizeof(*asked->ask));
		asked->grant = xrealloc(asked->grant, asked->room * sizeof(struct grant *));
	}
	asked->ask[asked->n] = ask;
	asked->grant[asked->n++] = g;
}

/*
 * Note the grants that map @rep, which is claimed. They stay until their clients have been asked (grant.lookers). @stays: so does the
 * replica, and a client is handed nothing of it before it has answered.
 */
static void ask_for(struct asked *asked, struct replica *rep, bool stays)
{
	struct chunk *ch = rep->chunk;
	struct grant *g;

	pthread_mutex_lock(&ch->lock);
	chunk_unready(ch);
	/* Their mapping ends: it looks at what it held of what was not to be evicted then. */
	g = stays ? NULL : LIST_FIRST(&rep->grants);
	while (g) {
		if (g->lookers > 0) {
			page_wait(ch);
			g = LIST_FIRST(&rep->grants);
		} else {
			g = LIST_NEXT(g, of_replica);
		}
	}
	LIST_FOREACH(g, &rep->grants, of_replica) {
		if (!take_back(g))
			continue;
		grant_look(g);
		g->in_delivery = stays;
		asked_add(asked, (struct cache_revoke){ g->mapping->client, g->mapping->id, ch->index, 0 }, g);
	}
	pthread_mutex_unlock(&ch->lock);
}

/* Ask all of them at once. */
static void ask(struct asked *asked)
{
	if (asked->n > 0)
		asked->grant[0]->mapping->file->cache->host.revoke_many(asked->ask, asked->n);
}

/* What becomes of a replica whose client has answered, or is gone: it is evicted; its contents move to other memory; it stays. */
enum becomes { GOES, MOVES, STAYS };

/* If its client is not asked any more. */
static void asked_settle(struct asked *asked, unsigned k, enum becomes what)
{
	struct grant *g = asked->grant[k];
	bool gone = asked->ask[k].err;
	struct keeper *keeper;
	struct chunk *ch;

	if (!g || asked->ask[k].err == -EINPROGRESS)
		return;
	asked->grant[k] = NULL;
	ch = g->replica->chunk;
	keeper = what == GOES && gone ? keeper_make(g->mapping) : NULL;
	pthread_mutex_lock(&ch->lock);
	keeper_add(&g->replica->keepers, keeper);
	/* A client that is gone has unmapped: or cache_unmap() hears. */
	g->unanswered |= what == GOES && gone;
	/* As if it had not been asked: it may map it, which is seen to when its mapping ends. */
	g->offered |= what == STAYS && gone;
	g->in_delivery = false;
	grant_looked(g);
	pthread_mutex_unlock(&ch->lock);
}

static void asked_free(struct asked *asked)
{
	free(asked->ask);
	free(asked->grant);
	*asked = (struct asked){ .n = 0 };
}

static void asked_end(struct asked *asked, enum becomes what)
{
	for (unsigned k = 0; k < asked->n; k++)
		asked_settle(asked, k, what);
	asked_free(asked);
}

/*
 * Take the memory of claimed replicas back from the clients that map it, though they hold none of it: from all at
 * once. What is being evicted is handed to nobody.
 */
static void replicas_revoke(struct replica **list, unsigned n)
{
	struct asked asked = { .n = 0 };

	for (unsigned k = 0; k < n; k++)
		ask_for(&asked, list[k], false);
	ask(&asked);
	asked_end(&asked, GOES);
}

/* Nobody will ever ask for what was released. */
static void forget_releases(struct replica *rep)
{
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		if (replica_ahead(rep, i))
			replica_forget(rep, i);
}

static bool is_dead(struct cfile *f)
{
	struct cache *c = f->cache;
	bool dead;

	pthread_mutex_lock(&c->lock);
	dead = f->holds == 0 && atomic_load(&f->gone);
	pthread_mutex_unlock(&c->lock);
	return dead;
}

/* Its chunk's pages are locked: what was released of it need not be brought home. */
static void evict_without_fetch(struct replica *rep, struct fetch_part *pt, bool dead)
{
	if (rep->only)
		memset(pt->pages, 0, sizeof(pt->pages));
	if (!dead)
		return;
	pthread_mutex_lock(&rep->chunk->lock);
	forget_releases(rep);
	pthread_mutex_unlock(&rep->chunk->lock);
}

/* What was released of it was brought home, or that has failed. The chunk's pages are not locked afterwards. */
static void evict_end(struct replica *rep, int err)
{
	struct chunk *ch = rep->chunk;

	if (!err) {
		replica_destroy(rep);
		return;
	}
	pthread_mutex_lock(&ch->lock);
	pages_unlock(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&ch->lock);
	chunk_account(ch);
	unclaim(rep, true, false);
}

/* Lock all pages of as many of the replicas' chunks as go together, and see what is to be brought home of them. file->range is held. */
static struct fetch_window evict_lock(struct replica **list, unsigned n)
{
	struct fetch_window w = { .whole = true };
	struct cfile *f = list[0]->chunk->file;
	bool dead;

	while (w.n < n && list[w.n]->chunk->file == f && fetch_window_add(&w, list[w.n]->chunk, 0, GAIA_CHUNK_PAGES))
		;
	dead = is_dead(f);
	for (unsigned k = 0; k < w.n; k++)
		evict_without_fetch(list[k], &w.part[k], dead);
	return w;
}

static int evict_alone(struct replica *rep, struct fetch_trouble *t)
{
	struct chunk *ch = chunk_ref(rep->chunk);
	struct fetch_window w;
	int err;

	pthread_rwlock_rdlock(&ch->file->range);
	w = evict_lock(&rep, 1);
	err = fetch_alone(w.part, t);
	evict_end(rep, err);
	pthread_rwlock_unlock(&ch->file->range);
	chunk_put(ch);
	free(w.part);
	return err;
}

/*
 * Evict as many of the replicas as go together, one at least: how many. Clients have given their memory up. If that fails each is evicted by
 * itself, with nothing of the others locked. *@err: the first.
 */
static unsigned replicas_evict(struct replica **list, unsigned n, struct fetch_trouble *t, int *err)
{
	struct cfile *f = list[0]->chunk->file;
	struct fetch_window w;
	bool apart;
	int one;

	pthread_rwlock_rdlock(&f->range);
	w = evict_lock(list, n);
	for (unsigned k = 0; k < w.n; k++)
		chunk_ref(w.part[k].ch);
	(void)fault_point("evict.before_fetch");
	*err = w.n > 1 ? fetch_together(w.part, w.n, t) : fetch_alone(w.part, t);
	apart = *err && w.n > 1;
	if (apart)
		fetch_window_unlock(&w);
	for (unsigned k = 0; k < w.n && !apart; k++)
		evict_end(list[k], *err);
	pthread_rwlock_unlock(&f->range);
	*err = apart ? 0 : *err;
	for (unsigned k = 0; k < w.n; k++) {
		one = apart ? evict_alone(list[k], t) : 0;
		*err = *err ? *err : one;
		chunk_put(w.part[k].ch);
	}
	free(w.part);
	return w.n;
}

/* So that chunks of one file follow each other. */
static int by_file_and_index(const void *a, const void *b)
{
	const struct chunk *x = (*(struct replica *const *)a)->chunk, *y = (*(struct replica *const *)b)->chunk;

	if (x->file != y->file)
		return (uintptr_t)x->file < (uintptr_t)y->file ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

/* The rest of evict_all(). */
static int evict_revoked(struct replica_list *list)
{
	struct fetch_trouble trouble = { .err = { 0 } };
	int err, result = 0;

	if (list->n > 1)
		qsort(list->at, list->n, sizeof(struct replica *), by_file_and_index);
	for (unsigned done = 0; done < list->n;) {
		done += replicas_evict(list->at + done, list->n - done, &trouble, &err);
		result = result ? result : err;
	}
	free(list->at);
	*list = (struct replica_list){ .n = 0 };
	return result;
}

/*
 * Evict claimed replicas: take their memory back from clients, bring home what was released, and free them. No lock is held.
 * Those for which that fails are idle again, as before. Returns the first error.
 */
static int evict_all(struct replica_list *list)
{
	replicas_revoke(list->at, list->n);
	return evict_revoked(list);
}

void replicas_drop_idle(struct cache *c, struct chunk **list, unsigned n)
{
	for (unsigned d = 0; d < c->n_devices; d++) {
		struct cache_device *dev = &c->dev[d];
		struct replica_list claimed = { .n = 0 };
		struct replica *rep;

		if (pthread_mutex_trylock(&dev->reserve))
			continue;
		for (unsigned k = 0; k < n; k++) {
			pthread_mutex_lock(&list[k]->lock);
			rep = replica_find(list[k], dev, NULL);
			if (rep && claim(rep))
				list_add(&claimed, rep);
			pthread_mutex_unlock(&list[k]->lock);
		}
		pthread_mutex_unlock(&dev->reserve);
		(void)evict_all(&claimed); /* on error it is tried again */
	}
}

/* ---- replicas that are made to read ahead ---- */

#define UNUSED_LOOK_AT 64u
#define UNUSED_TRIES 8u /* of these */

/* Those that may go, the oldest first, but none that is being filled: how many. dev->reserve is held, which keeps them. */
static unsigned list_unused(struct cache_device *dev, struct readahead *ra, struct replica **out)
{
	unsigned looked = 0, n = 0;
	struct replica *rep;

	pthread_mutex_lock(&dev->lock);
	TAILQ_FOREACH(rep, &dev->unused, link) {
		if (looked++ == UNUSED_LOOK_AT || n == UNUSED_TRIES)
			break;
		if (rep->filling == 0 && (!ra || readahead_may_replace(ra, rep)))
			out[n++] = rep;
	}
	pthread_mutex_unlock(&dev->lock);
	return n;
}

/* Claim an unused replica with all of its pages and file->range locked, if that needs no waiting. dev->reserve is held. */
static bool claim_locked(struct replica *rep)
{
	struct chunk *ch = rep->chunk;
	bool claimed;

	if (pthread_rwlock_tryrdlock(&ch->file->range))
		return false;
	pthread_mutex_lock(&ch->lock);
	claimed = pages_trylock(ch, 0, GAIA_CHUNK_PAGES);
	if (claimed) {
		pthread_mutex_lock(&rep->dev->lock);
		bug_on(rep->pins > 0 || leaves(rep));
		claim_idle(rep);
		pthread_mutex_unlock(&rep->dev->lock);
	}
	pthread_mutex_unlock(&ch->lock);
	if (!claimed)
		pthread_rwlock_unlock(&ch->file->range);
	return claimed;
}

/* The rest of its eviction: no client was ever given it, and nothing was released there. */
static void free_locked(struct replica *rep)
{
	struct chunk *ch = chunk_ref(rep->chunk);

	replica_destroy(rep);
	pthread_rwlock_unlock(&ch->file->range);
	chunk_put(ch);
}

/*
 * Free the memory of a replica that was read ahead and not used: the one that has been there for longest, of those that need no waiting. For
 * @ra only what it may replace; NULL: for somebody who needs it now.
 */
static bool evict_unused(struct cache_device *dev, struct readahead *ra)
{
	struct replica *list[UNUSED_TRIES];
	unsigned n, k = 0;

	if (pthread_mutex_trylock(&dev->reserve))
		return false;
	n = list_unused(dev, ra, list);
	while (k < n && !claim_locked(list[k]))
		k++;
	pthread_mutex_unlock(&dev->reserve);
	if (k < n)
		free_locked(list[k]);
	return k < n;
}

struct replica *replica_to_fill(struct mapping *m, struct chunk *ch, bool *there)
{
	struct replica *rep = replica_find(ch, m->dev, m->readers);
	bool fits = rep && !replica_is_spoiled(rep);

	*there = rep;
	if (fits) {
		pthread_mutex_lock(&m->dev->lock);
		fits = rep->mem && !leaves(rep);
		rep->filling += fits;
		pthread_mutex_unlock(&m->dev->lock);
	}
	return fits ? rep : NULL;
}

void replica_filled(struct replica *rep)
{
	pthread_mutex_lock(&rep->dev->lock);
	rep->filling--;
	pthread_mutex_unlock(&rep->dev->lock);
}

/* Take memory for a replica. Until it has one it counts as leaving, so that an acquire that lacks room waits for it. False: there is none. */
static bool ahead_begin(struct mapping *m)
{
	struct cache_device *dev = m->dev;
	bool may, room;

	do {
		pthread_mutex_lock(&dev->lock);
		may = readahead_has_room(m->readahead, dev);
		room = may && take_spare(dev);
		if (room) {
			dev->pinned += GAIA_CHUNK;
			dev->leaving += GAIA_CHUNK;
		}
		pthread_mutex_unlock(&dev->lock);
	} while (!room && may && evict_unused(dev, m->readahead));
	return room;
}

/* The memory has its replica; NULL: it is free again. */
static void ahead_end(struct mapping *m, struct replica *rep)
{
	struct cache_device *dev = m->dev;

	pthread_mutex_lock(&dev->lock);
	if (rep) {
		readahead_made(m->readahead, rep);
		idle_add(rep);
	} else {
		dev->used -= GAIA_CHUNK;
	}
	dev->pinned -= GAIA_CHUNK;
	dev->leaving -= GAIA_CHUNK;
	has_left(dev);
	pthread_mutex_unlock(&dev->lock);
}

/*
 * Give the chunk a replica with this memory, unless there is one by now, or (-EMFILE), in half of the places for those of readers, others
 * are. Nobody sees it before ahead_end(): who looks for it on the device has dev->reserve, which is held.
 */
static int ahead_link(struct mapping *m, struct chunk *ch, struct devmem *mem, struct replica **out)
{
	struct replica *rep;
	int err = 0;

	pthread_mutex_lock(&ch->lock);
	if (replica_find(ch, m->dev, m->readers)) {
		;
	} else if (m->readers && ch->n_replicas + ch->file->cache->n_devices >= CACHE_MAX_DEVICES / 2) {
		err = -EMFILE;
	} else {
		rep = replica_new(chunk_ref(ch), m->dev, m->readers);
		rep->mem = mem;
		track_make(ch);
		replica_link(ch, rep);
		*out = rep;
	}
	pthread_mutex_unlock(&ch->lock);
	return err;
}

int replica_make_ahead(struct mapping *m, uint64_t index)
{
	struct cache_device *dev = m->dev;
	struct replica *rep = NULL;
	struct devmem *mem;
	struct chunk *ch;
	int err;

	if (!ahead_begin(m))
		return -ENOMEM;
	err = atomic_load(&dev->gone) ? -ENODEV : dev->dev->ops->alloc(dev->dev, &mem);
	note_gone(dev, err);
	if (err) {
		ahead_end(m, NULL);
		return err;
	}
	ch = chunk_get(m->file, index, true);
	(void)fault_point("readahead.before_link");
	pthread_mutex_lock(&dev->reserve);
	err = ahead_link(m, ch, mem, &rep);
	if (rep)
		ahead_end(m, rep);
	pthread_mutex_unlock(&dev->reserve);
	if (!rep) {
		dev->dev->ops->free(dev->dev, mem);
		ahead_end(m, NULL);
	}
	chunk_put(ch);
	return err;
}

void replica_drop_empty(struct mapping *m, uint64_t index)
{
	struct chunk *ch = chunk_get(m->file, index, false);
	struct cache_device *dev = m->dev;
	struct replica *rep;
	bool empty;

	if (!ch)
		return;
	pthread_mutex_lock(&dev->reserve);
	pthread_mutex_lock(&ch->lock);
	rep = replica_find(ch, dev, m->readers);
	empty = rep && rep->n_brought == 0;
	if (empty) {
		pthread_mutex_lock(&dev->lock);
		empty = rep->ahead && rep->pins == 0 && rep->filling == 0;
		pthread_mutex_unlock(&dev->lock);
	}
	pthread_mutex_unlock(&ch->lock);
	empty = empty && claim_locked(rep);
	pthread_mutex_unlock(&dev->reserve);
	if (empty)
		free_locked(rep);
	chunk_put(ch);
}

/* Whether another client maps it, or is being handed it. chunk->lock is held. */
static bool others_map(const struct replica *rep, const struct mapping *m)
{
	const struct grant *g;

	LIST_FOREACH(g, &rep->grants, of_replica)
		if (g->mapping != m && (g->delivered || g->offered || g->in_delivery))
			return true;
	return false;
}

/* Add those that are idle, since nobody has looked at them, and held. dev->reserve is held. */
static void add_held_idle(struct cache_device *dev, struct replica_list *list)
{
	struct replica **ready;
	uint64_t n = device_idle_ready(dev, UINT64_MAX, &ready);

	for (uint64_t k = 0; k < n; k++)
		if (replica_is_held_ready(ready[k]))
			list_add(list, ready[k]);
	free(ready);
}

/* The chunks of replicas that are in use, to be put; *@out to be freed. @snapped: only of those with snapshots; what is ready has none. */
static unsigned busy_chunks(struct cache_device *dev, bool snapped, struct chunk ***out)
{
	struct replica_list list = { .n = 0 };
	struct replica *rep;
	unsigned n = 0;

	/* Which keeps those that do not leave already. */
	pthread_mutex_lock(&dev->reserve);
	pthread_mutex_lock(&dev->lock);
	TAILQ_FOREACH(rep, &dev->busy, link)
		if ((rep->mem || !snapped) && !leaves(rep))
			list_add(&list, rep);
	pthread_mutex_unlock(&dev->lock);
	if (!snapped)
		add_held_idle(dev, &list);
	*out = xcalloc(list.n + 1, sizeof(struct chunk *));
	for (unsigned k = 0; k < list.n; k++) {
		struct chunk *ch = list.at[k]->chunk;

		pthread_mutex_lock(&ch->lock);
		if (!snapped || list.at[k]->shadow)
			(*out)[n++] = chunk_ref(ch);
		pthread_mutex_unlock(&ch->lock);
	}
	pthread_mutex_unlock(&dev->reserve);
	free(list.at);
	return n;
}

/* What clients hold that are gone is in nobody's way. @wait: see chunk_drop_dead(). */
static void drop_dead(struct cache_device *dev, bool wait)
{
	struct living known = { .n = 0 };
	struct chunk **list;
	unsigned n = busy_chunks(dev, false, &list);

	for (unsigned k = 0; k < n; k++) {
		chunk_drop_dead(list[k], dev, &known, wait);
		chunk_put(list[k]);
	}
	free(list);
}

/* Claim the chunk's replicas that may go: -EBUSY if that is not all of them; *@leave: some are being evicted by others. */
static int drop_claim(struct chunk *ch, struct cache_device *dev, const struct mapping *m,
		      struct replica_list *claimed, bool *leave)
{
	int err = 0;

	pthread_mutex_lock(&dev->reserve);
	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < ch->n_replicas; k++) {
		struct replica *rep = ch->replica[k];
		bool going;

		if (rep->dev != dev || (m && rep->only != m->readers))
			continue;
		pthread_mutex_lock(&dev->lock);
		going = leaves(rep);
		pthread_mutex_unlock(&dev->lock);
		*leave |= going;
		/* When it is claimed it is not handed to anybody any more. */
		if (!going && !(m && others_map(rep, m)) && claim(rep))
			list_add(claimed, rep);
		else if (!going)
			err = -EBUSY;
	}
	pthread_mutex_unlock(&ch->lock);
	pthread_mutex_unlock(&dev->reserve);
	return err;
}

int replicas_drop(struct chunk *const *list, unsigned n, struct cache_device *dev, const struct mapping *m)
{
	struct chunk **left = xmalloc((n + 1) * sizeof(struct chunk *));
	int err, result = 0;

	memcpy(left, list, n * sizeof(struct chunk *));
	while (n > 0) {
		struct replica_list claimed = { .n = 0 };
		uint64_t before = count_left(dev);
		unsigned n_leaving = 0;

		for (unsigned k = 0; k < n; k++)
			chunk_drop_dead(left[k], dev, &(struct living){ .n = 0 }, true);
		for (unsigned k = 0; k < n; k++) {
			bool leave = false;

			err = drop_claim(left[k], dev, m, &claimed, &leave);
			result = result ? result : err;
			if (leave && !err)
				left[n_leaving++] = left[k];
		}
		err = evict_all(&claimed);
		result = result ? result : err;
		n = n_leaving;
		/* If their eviction fails we have to try it. */
		if (n > 0)
			await_left(dev, before);
	}
	free(left);
	return result;
}

/* ---- room for an acquire ---- */

static void lock_all(struct chunk *ch)
{
	pthread_rwlock_rdlock(&ch->file->range);
	pthread_mutex_lock(&ch->lock);
	pages_lock(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&ch->lock);
}

static void unlock_all(struct chunk *ch)
{
	pthread_mutex_lock(&ch->lock);
	pages_unlock(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&ch->lock);
	pthread_rwlock_unlock(&ch->file->range);
}

/* Bring home what was released of the chunk, by @fetch: fetch_pages(), pages_secure(). */
static int fetch_chunk(struct chunk *ch, int (*fetch)(struct chunk *, unsigned, unsigned))
{
	int err;

	lock_all(ch);
	err = fetch(ch, 0, GAIA_CHUNK_PAGES);
	unlock_all(ch);
	chunk_account(ch);
	return err;
}

/* Give up snapshots, by fetching what was released, until a chunk is free: true if there was one. */
static bool shadows_reclaim(struct cache_device *dev)
{
	struct chunk **list;
	unsigned n = busy_chunks(dev, true, &list);
	bool freed = false;

	for (unsigned k = 0; k < n; k++) {
		struct replica *rep;

		if (!freed && !fetch_chunk(list[k], fetch_pages)) {
			pthread_mutex_lock(&list[k]->lock);
			rep = replica_find(list[k], dev, NULL);
			freed = !rep || !rep->shadow;
			pthread_mutex_unlock(&list[k]->lock);
		}
		chunk_put(list[k]);
	}
	free(list);
	return freed;
}

/* What an acquire needs, and what it has got. */
struct demand {
	struct mapping *m;
	struct readers *only;
	struct cache_device *dev;
	const uint64_t *index; /* of the chunks */
	uint64_t n;
	struct replica **out;	     /* pinned, but of what decide() has not decided */
	struct replica_list mine;    /* of these, what was promised to us */
	unsigned kept;		     /* so many of them have memory */
	bool counted;		     /* all of @out is, as the user's */
	struct replica_list victims; /* claimed by us */
	uint64_t unready;	     /* idle replicas that were made not ready for it, and for which it has claimed none yet */
	uint64_t n_left, n_stuck;    /* the device's: before we looked; when we began to try */
	uint64_t n_given_up;	     /* stranded_count(), before we looked */
	unsigned rounds_late;	     /* in which clients did not answer at once, so that others' memory is claimed */
};

/* Chunk k's replica, which stays while dev->reserve is held; NULL: there is none. *@wait: there is one, and it is leaving. */
static struct replica *look_up(struct demand *d, uint64_t k, bool *wait)
{
	struct chunk *ch = chunk_get(d->m->file, d->index[k], false);
	struct replica *rep;

	if (!ch)
		return NULL;
	pthread_mutex_lock(&ch->lock);
	rep = replica_find(ch, d->dev, d->only);
	if (rep && replica_is_spoiled(rep) && claim(rep))
		list_add(&d->victims, rep);
	if (rep) {
		pthread_mutex_lock(&d->dev->lock);
		*wait |= leaves(rep);
		pthread_mutex_unlock(&d->dev->lock);
	}
	pthread_mutex_unlock(&ch->lock);
	chunk_put(ch);
	return rep;
}

/*
 * If everything that is pinned then, and everything that is ready, can be on the device at the same time: pin what is there, and count
 * the rest as promised: 0. Otherwise as many chunks are too many, and nothing was done. dev->reserve is held, without which the sum
 * grows only by memory that clients keep: what becomes ready was pinned, and what is held of what is ready counts already.
 */
static uint64_t pin_if_it_fits(struct demand *d)
{
	struct cache_device *dev = d->dev;
	uint64_t missing = 0, idle = 0, needed;

	pthread_mutex_lock(&dev->lock);
	for (uint64_t k = 0; k < d->n; k++) {
		missing += !d->out[k];
		idle += d->out[k] && d->out[k]->pins == 0 && d->out[k]->n_ready == 0;
	}
	needed = dev->pinned - dev->leaving + (missing + idle + dev->n_idle_ready) * GAIA_CHUNK;
	for (uint64_t k = 0; k < d->n && needed <= dev->dev->capacity; k++)
		if (d->out[k])
			bug_on(!pin_locked(d->out[k]));
	if (needed <= dev->dev->capacity) {
		dev->pinned += missing * GAIA_CHUNK;
		dev->promised += missing * GAIA_CHUNK;
	}
	pthread_mutex_unlock(&dev->lock);
	return needed <= dev->dev->capacity ? 0 : (needed - dev->dev->capacity + GAIA_CHUNK - 1) / GAIA_CHUNK;
}

/* Make replicas of what was counted: all, or, on error, none. dev->reserve is held. */
static int make_promises(struct demand *d)
{
	int err = 0;

	for (uint64_t k = 0; k < d->n; k++) {
		if (d->out[k])
			continue;
		if (!err)
			err = promise_make(chunk_get(d->m->file, d->index[k], true), d->dev, d->only, &d->out[k]);
		if (!err) {
			list_add(&d->mine, d->out[k]);
			continue;
		}
		pthread_mutex_lock(&d->dev->lock);
		d->dev->pinned -= GAIA_CHUNK;
		d->dev->promised -= GAIA_CHUNK;
		pthread_mutex_unlock(&d->dev->lock);
	}
	return err;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static bool asks_for(const struct demand *d, const struct replica *rep)
{
	return rep->chunk->file == d->m->file && rep->only == d->only &&
	       bsearch(&rep->chunk->index, d->index, d->n, sizeof(d->index[0]), by_number);
}

#define LOOK_AT 16u /* at first */

/*
 * End the readiness of @n idle replicas that the acquire does not ask for, the longest unused first, of which nothing is held. False: there
 * are not so many; then nothing was done. Otherwise there is room for as many, unless some were acquired meanwhile. dev->reserve is held.
 */
static bool unready_idle(struct demand *d, uint64_t n)
{
	uint64_t most = n + LOOK_AT, listed, free_ones;
	struct replica **list;

	/* Those that have been idle for longest are seldom held: so mostly a few have to be looked at, however many there are. */
	for (;; most *= 2) {
		listed = device_idle_ready(d->dev, most, &list);
		free_ones = 0;
		for (uint64_t k = 0; k < listed && free_ones < n; k++)
			if (!asks_for(d, list[k]) && !replica_is_held_ready(list[k]))
				list[free_ones++] = list[k];
		if (free_ones == n || listed < most)
			break;
		free(list);
	}
	for (uint64_t k = 0; k < n && free_ones == n; k++) {
		pthread_mutex_lock(&list[k]->chunk->lock);
		replica_end_ready(list[k]);
		pthread_mutex_unlock(&list[k]->chunk->lock);
		d->unready++;
	}
	free(list);
	return free_ones == n;
}

static bool lacks_room(struct cache_device *dev)
{
	bool lacks;

	pthread_mutex_lock(&dev->lock);
	lacks = dev->used + dev->promised > dev->dev->capacity + dev->leaving;
	pthread_mutex_unlock(&dev->lock);
	return lacks;
}

/*
 * The first that could be evicted, if @n_stuck is dev->n_stuck as of when the caller began to try: another file's trouble is not ours, as long as
 * another chunk can go. @filling: though pages of it are being read ahead, for which its eviction waits. dev->lock is held.
 */
static struct replica *first_quiet(struct replica_queue *list, uint64_t n_stuck, bool filling)
{
	struct replica *rep;

	TAILQ_FOREACH(rep, list, link)
		if (rep->stuck <= n_stuck && (filling || rep->filling == 0))
			break;
	return rep;
}

/*
 * If an idle replica that is ready has been idle for longer than those that are not, it may have been used since: it is the last from now
 * on, and, unless it is held, not ready, so that it is known whether it is used. dev->reserve is held.
 */
static void use_again(struct cache_device *dev)
{
	struct replica *rep, *other;
	bool held;

	pthread_mutex_lock(&dev->lock);
	rep = TAILQ_FIRST(&dev->idle_ready);
	other = TAILQ_FIRST(&dev->idle);
	if ((rep && other && other->idled < rep->idled) || first_quiet(&dev->unused, UINT64_MAX, false))
		rep = NULL;
	pthread_mutex_unlock(&dev->lock);
	if (!rep)
		return;
	held = replica_is_held_ready(rep);
	pthread_mutex_lock(&rep->chunk->lock);
	if (!held)
		replica_end_ready(rep);
	pthread_mutex_lock(&dev->lock);
	if (held && rep->pins == 0) {
		idle_remove(rep);
		idle_add(rep);
	}
	pthread_mutex_unlock(&dev->lock);
	pthread_mutex_unlock(&rep->chunk->lock);
}

/*
 * Claim the replica that was read ahead first of those that were not used since, or else the one that has been idle for longest of those that
 * are not ready: false if none can go. @filling: see first_quiet(). dev->reserve is held.
 */
static bool claim_next(struct demand *d, bool filling)
{
	struct cache_device *dev = d->dev;
	struct replica *rep;

	pthread_mutex_lock(&dev->lock);
	rep = first_quiet(&dev->unused, d->n_stuck, filling);
	if (!rep)
		rep = first_quiet(&dev->idle, d->n_stuck, filling);
	if (rep) {
		claim_idle(rep);
		list_add(&d->victims, rep);
	}
	pthread_mutex_unlock(&dev->lock);
	return rep;
}

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

/* A user whose clients have not answered in time. A worker of the user's waits for them. cache.late_lock */
struct late_user {
	UT_hash_handle hh;
	uid_t uid;
	struct cache *cache;
	struct late_list list;
	unsigned n;
};

static bool user_is_late(struct cache *c, uid_t uid)
{
	struct late_user *u;

	pthread_mutex_lock(&c->late_lock);
	HASH_FIND(hh, c->late, &uid, sizeof(uid), u);
	pthread_mutex_unlock(&c->late_lock);
	return u;
}

#define OWED_LOOK_AT 1024u
#define OWED_GRANTS 16u

/* Whether a client that maps it, of the first ones, is a user's whose clients have not answered in time. dev->reserve is held, which keeps it. */
static bool is_owed(struct replica *rep)
{
	struct cache *c = rep->chunk->file->cache;
	unsigned looked = 0;
	bool owed = false;
	struct grant *g;

	pthread_mutex_lock(&rep->chunk->lock);
	LIST_FOREACH(g, &rep->grants, of_replica) {
		if (looked++ == OWED_GRANTS || owed)
			break;
		owed = (g->delivered || g->offered) && user_is_late(c, g->mapping->user.uid);
	}
	pthread_mutex_unlock(&rep->chunk->lock);
	return owed;
}

/*
 * Put what is owed behind other idle replicas that are not ready, so that who is mute once does not cost every round. False: there are no
 * others. @looks is how often this may look at one still. dev->reserve is held.
 */
static bool pass_over_owed(struct demand *d, unsigned *looks)
{
	struct cache_device *dev = d->dev;
	uint64_t before = UINT64_MAX;

	for (; *looks > 0; --*looks) {
		struct replica *rep = NULL;
		bool again;

		pthread_mutex_lock(&dev->lock);
		before = MIN(before, dev->n_idled);
		if (dev->late > 0 && !first_quiet(&dev->unused, d->n_stuck, false))
			rep = first_quiet(&dev->idle, d->n_stuck, false);
		again = rep && rep->idled > before;
		pthread_mutex_unlock(&dev->lock);
		if (!rep || !is_owed(rep))
			break;
		if (again)
			return false;
		pthread_mutex_lock(&dev->lock);
		if (rep->pins == 0) {
			idle_remove(rep);
			idle_add(rep);
		}
		pthread_mutex_unlock(&dev->lock);
	}
	return true;
}

/* Claim up to @most replicas; for each one loses its readiness, here or when room was counted. dev->reserve is held. */
static void claim_room(struct demand *d, unsigned most, bool regardless)
{
	unsigned looks = OWED_LOOK_AT;

	while (most > 0 && (regardless || lacks_room(d->dev))) {
		bool claimed;

		if (d->unready == 0)
			use_again(d->dev);
		claimed = pass_over_owed(d, &looks) && claim_next(d, false);
		if (!claimed && unready_idle(d, 1))
			continue;
		/* Only now what is owed, or one whose store read has to be waited for. */
		if (!claimed && !claim_next(d, false) && !claim_next(d, true))
			return;
		d->unready -= d->unready > 0;
		most--;
	}
}

#define TRIES_TO_FIT 3u /* others may acquire what is ready meanwhile */

/* pin_if_it_fits(), beside everything that is held; what is ready may be held at any moment. dev->reserve is held. */
static bool pin_beside_what_is_held(struct demand *d)
{
	uint64_t lacking;

	for (unsigned k = 0; k < TRIES_TO_FIT; k++) {
		lacking = pin_if_it_fits(d);
		if (lacking == 0)
			return true;
		if (!unready_idle(d, lacking))
			return false;
	}
	return pin_if_it_fits(d) == 0;
}

/*
 * Decide at once everything that the acquire gets. 0: it is pinned, or promised, and what leaves for that is
 * claimed. -ENOMEM: it does not fit; -EDQUOT: it is more than one user may pin. -EAGAIN: something of it is leaving; those of these that
 * we have to evict are claimed.
 */
static int decide(struct demand *d)
{
	bool wait = false;
	int err = 0;

	d->n_left = count_left(d->dev);
	d->unready = 0;
	pthread_mutex_lock(&d->dev->reserve);
	for (uint64_t k = 0; k < d->n; k++)
		d->out[k] = look_up(d, k, &wait);
	if (wait)
		err = -EAGAIN;
	else if (!user_may_pin(d->m, d->out, d->n))
		err = -EDQUOT;
	else if (!pin_beside_what_is_held(d))
		err = -ENOMEM;
	if (err)
		memset(d->out, 0, d->n * sizeof(struct replica *));
	else
		err = make_promises(d);
	if (!err) {
		claim_room(d, d->mine.n, false);
		/* At once, so that what others of the same user decide meanwhile counts it. */
		for (uint64_t k = 0; k < d->n; k++)
			user_pin(d->m, d->out[k]);
		d->counted = true;
	}
	pthread_mutex_unlock(&d->dev->reserve);
	return err;
}

/* ---- victims that clients map ---- */

#define ANSWER_NS 20000000ull /* clients that take longer are not waited for, as long as the memory of others can be had */
#define ANSWERS_WAITS 10u     /* for so long, so many times at most while they answer, one after the other */
#define MORE_AT_ONCE 16u      /* so many more are claimed at most, when clients have not answered */

/* Split what is asked for by users. Consumes @asked. */
static void split_by_user(struct asked *asked, struct late_list *list)
{
	STAILQ_INIT(list);
	for (unsigned k = 0; k < asked->n; k++) {
		struct cache_user user = asked->grant[k]->mapping->user;
		struct late *l;

		STAILQ_FOREACH(l, list, link)
			if (l->user.uid == user.uid)
				break;
		if (!l) {
			l = xcalloc(1, sizeof(*l));
			l->user = user;
			STAILQ_INSERT_TAIL(list, l, link);
		}
		asked_add(&l->asked, asked->ask[k], asked->grant[k]);
	}
	asked_free(asked);
}

static void late_free(struct late *l)
{
	asked_free(&l->asked);
	free(l);
}

/* Wait for answers; @l->pending is how many lack then. */
static void late_await(struct late *l, const struct cache_host *host, uint64_t end)
{
	unsigned before = l->pending;

	l->revoking = host->revoke_more(l->revoking, end);
	l->pending = 0;
	for (unsigned k = 0; k < l->asked.n; k++)
		l->pending += l->asked.ask[k].err == -EINPROGRESS;
	l->silent = l->pending == before;
}

/* Ask all of them, and wait for each user's clients as long as they go on answering. */
static void ask_soon(struct late_list *list, const struct cache_host *host)
{
	struct late *l;
	bool more = true;

	STAILQ_FOREACH(l, list, link) {
		l->revoking = host->revoke_soon(l->asked.ask, l->asked.n, 0);
		l->pending = l->asked.n;
	}
	for (unsigned k = 0; k < ANSWERS_WAITS && more; k++) {
		uint64_t end = now_ns() + ANSWER_NS;

		more = false;
		STAILQ_FOREACH(l, list, link)
			if (l->revoking && !l->silent) {
				late_await(l, host, end);
				more |= l->revoking && !l->silent;
			}
	}
}

/* All that is asked of the user's clients has its share of the worker's time, so none of their answers waits for another. */
static void late_work(void *arg)
{
	struct late_user *u = arg;
	struct cache *c = u->cache;
	struct late *l;

	pthread_mutex_lock(&c->late_lock);
	while ((l = STAILQ_FIRST(&u->list))) {
		uint64_t share = ANSWER_NS / u->n;

		STAILQ_REMOVE_HEAD(&u->list, link);
		pthread_mutex_unlock(&c->late_lock);
		late_await(l, &c->host, now_ns() + share);
		for (unsigned k = 0; k < l->asked.n; k++)
			asked_settle(&l->asked, k, STAYS);
		pthread_mutex_lock(&c->late_lock);
		if (l->revoking) {
			STAILQ_INSERT_TAIL(&u->list, l, link);
		} else {
			u->n--;
			late_free(l);
		}
	}
	HASH_DEL(c->late, u);
	pthread_mutex_unlock(&c->late_lock);
	free(u);
}

/* Leave it to the user's worker. */
static void late_leave(struct cache *c, struct late *l)
{
	struct late_user *u;

	pthread_mutex_lock(&c->late_lock);
	HASH_FIND(hh, c->late, &l->user.uid, sizeof(l->user.uid), u);
	if (!u) {
		u = xcalloc(1, sizeof(*u));
		u->uid = l->user.uid;
		u->cache = c;
		STAILQ_INIT(&u->list);
		HASH_ADD(hh, c->late, uid, sizeof(u->uid), u);
		pool_submit_for(c->evictors, l->user.uid, l->user.owner, late_work, u);
	}
	STAILQ_INSERT_TAIL(&u->list, l, link);
	u->n++;
	pthread_mutex_unlock(&c->late_lock);
}

/* Those whose clients others are asking, which may take a while, are not our victims any more. */
static void leave_to_others(struct demand *d)
{
	struct replica_list *victims = &d->victims;
	unsigned kept = 0;

	for (unsigned k = 0; k < victims->n; k++) {
		struct replica *rep = victims->at[k];
		struct chunk *ch = rep->chunk;

		pthread_mutex_lock(&ch->lock);
		if (rep->lookers > 0)
			set_late(rep);
		else
			victims->at[kept++] = rep;
		pthread_mutex_unlock(&ch->lock);
	}
	d->rounds_late += kept < victims->n;
	victims->n = kept;
}

/* Nor those of whose clients some have not answered. Consumes @list. */
static void leave_late(struct demand *d, struct late_list *list)
{
	struct replica_list *victims = &d->victims;
	unsigned kept = 0;
	struct late *l;

	STAILQ_FOREACH(l, list, link)
		for (unsigned k = 0; k < l->asked.n; k++)
			if (l->asked.ask[k].err == -EINPROGRESS) {
				struct replica *rep = l->asked.grant[k]->replica;

				pthread_mutex_lock(&rep->chunk->lock);
				set_late(rep);
				pthread_mutex_unlock(&rep->chunk->lock);
			}
	STAILQ_FOREACH(l, list, link)
		for (unsigned k = 0; k < l->asked.n; k++)
			asked_settle(&l->asked, k, l->asked.grant[k]->replica->late ? STAYS : GOES);
	for (unsigned k = 0; k < victims->n; k++)
		if (!victims->at[k]->late)
			victims->at[kept++] = victims->at[k];
	d->rounds_late += kept < victims->n;
	victims->n = kept;
	while ((l = STAILQ_FIRST(list))) {
		STAILQ_REMOVE_HEAD(list, link);
		if (l->revoking)
			late_leave(d->m->file->cache, l);
		else
			late_free(l);
	}
}

/*
 * Evict up to @n victims of an acquire that needs room, any room. Clients that do not answer at once are left to workers. What more
 * has been given up stays idle. If evicting one fails others may do.
 */
static void evict_for_room(struct demand *d, uint64_t n)
{
	struct replica_list *victims = &d->victims;
	struct asked asked = { .n = 0 };
	struct late_list list;

	leave_to_others(d);
	for (unsigned k = 0; k < victims->n; k++)
		ask_for(&asked, victims->at[k], false);
	split_by_user(&asked, &list);
	ask_soon(&list, &d->m->file->cache->host);
	leave_late(d, &list);
	while (victims->n > n)
		unclaim(victims->at[--victims->n], false, true);
	(void)evict_revoked(victims);
}

/* The device has no memory for @n chunks that it should have: 0 if it may have now. d->n_left is from before it was asked. */
static int make_room(struct demand *d, unsigned n)
{
	struct cache_device *dev = d->dev;
	bool others, late;

	pthread_mutex_lock(&dev->reserve);
	/* The clients of the next ones may not answer either. */
	claim_room(d, n + MIN((1u << MIN(d->rounds_late, 8u)) - 1, MORE_AT_ONCE), true);
	pthread_mutex_lock(&dev->lock);
	others = dev->leaving > dev->late || dev->n_left != d->n_left;
	late = dev->late > 0;
	pthread_mutex_unlock(&dev->lock);
	pthread_mutex_unlock(&dev->reserve);
	if (d->victims.n > 0) {
		evict_for_room(d, n);
		return 0;
	}
	if (!others && shadows_reclaim(dev))
		return 0;
	if (!others && !late)
		return -ENOMEM;
	/* Not only what leaves is room: what others use may become idle. */
	await_left_until(dev, d->n_left, now_ns() + ANSWER_NS);
	return 0;
}

static int keep_promises(struct demand *d)
{
	int err = 0;

	while (d->kept < d->mine.n && !err) {
		d->n_left = count_left(d->dev);
		d->n_given_up = stranded_count(d->dev);
		err = promise_keep(d->mine.at[d->kept]);
		if (!err)
			d->kept++;
		else if (err == -ENOMEM)
			err = stranded_reap(d->dev, d->n_given_up) ? 0 : make_room(d, d->mine.n - d->kept);
	}
	return err;
}

/* Wait for what had been promised to others. Nobody waits for us any more. -EAGAIN: a promise was broken. */
static int await_promises(struct demand *d)
{
	bool failed = false;

	thread_waits();
	pthread_mutex_lock(&d->dev->lock);
	for (uint64_t k = 0; k < d->n; k++) {
		while (!d->out[k]->mem && !d->out[k]->failed)
			pthread_cond_wait(&d->dev->changed, &d->dev->lock);
		failed |= d->out[k]->failed;
	}
	pthread_mutex_unlock(&d->dev->lock);
	return failed ? -EAGAIN : 0;
}

static void give_back(struct demand *d)
{
	if (d->counted)
		user_unpin_all(d->m, d->out, d->n);
	d->counted = false;
	/* A thread that decides meanwhile has either joined a promise, or sees that it is broken. */
	pthread_mutex_lock(&d->dev->reserve);
	for (; d->kept < d->mine.n; d->kept++)
		promise_break(d->mine.at[d->kept]);
	pthread_mutex_unlock(&d->dev->reserve);
	for (uint64_t k = 0; k < d->n; k++)
		if (d->out[k])
			replica_unpin(d->out[k]);
}

/* One attempt. -EAGAIN: something has changed since. */
static int try_to_obtain(struct demand *d)
{
	int err;

	pthread_mutex_lock(&d->dev->lock);
	d->n_stuck = d->dev->n_stuck;
	d->n_given_up = d->dev->n_given_up;
	pthread_mutex_unlock(&d->dev->lock);
	err = decide(d);
	if ((err == -ENOMEM || err == -EDQUOT) && stranded_reap(d->dev, d->n_given_up))
		err = decide(d);
	/* First what costs no waiting. */
	for (int wait = 0; wait <= 1 && (err == -ENOMEM || err == -EDQUOT); wait++) {
		drop_dead(d->dev, wait);
		err = decide(d);
	}
	if (err == -EDQUOT)
		err = user_refuse(d->m);
	if (err == -EAGAIN && d->victims.n == 0) {
		await_left(d->dev, d->n_left);
	} else if (err == -EAGAIN) {
		/* If this fails, what was released there cannot be fetched, and nothing else in it can be trusted. */
		err = evict_all(&d->victims);
		err = err ? err : -EAGAIN;
	} else if (!err) {
		evict_for_room(d, UINT64_MAX);
		err = keep_promises(d);
		err = err ? err : await_promises(d);
	}
	if (err)
		give_back(d);
	free(d->mine.at);
	d->mine = (struct replica_list){ .n = 0 };
	d->kept = 0;
	return err;
}

/*
 * Add a pin to a replica of which the mapping holds something, or will (to_come). One that is ready and held may be idle: while it
 * is ready nobody claims it. mapping->lock is held.
 */
static bool pin_held(const struct mapping *m, const struct grant *g)
{
	uint64_t start = g->index * GAIA_CHUNK_PAGES;

	if (pin_again(g->replica))
		return true;
	return g->ready && holds_first(&m->holds, start, start + GAIA_CHUNK_PAGES) && replica_pin(g->replica);
}

/* What is pinned stays without dev->reserve. A grant leaves the table, under the mapping's lock, before it and its replica go. */
static uint64_t pin_pinned(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out)
{
	struct grant *g;
	uint64_t k;

	pthread_mutex_lock(&m->lock);
	for (k = 0; k < n; k++) {
		HASH_FIND(hh, m->grants, &index[k], sizeof(index[k]), g);
		if (!g || !pin_held(m, g))
			break;
		out[k] = g->replica;
	}
	pthread_mutex_unlock(&m->lock);
	return k;
}

/* They are pinned. Bring home what was released before somebody who is not a client any more stores more to it. */
static void see_who_is_dead(struct replica **reps, uint64_t n)
{
	struct living known = { .n = 0 };

	for (uint64_t k = 0; k < n; k++)
		if (grants_drop_dead(reps[k], &known) && !reps[k]->only)
			(void)fetch_chunk(reps[k]->chunk, pages_secure);
}

uint64_t replicas_pin_again(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out)
{
	n = pin_pinned(m, index, n, out);
	see_who_is_dead(out, n);
	return n;
}

int replicas_pin(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out)
{
	struct demand d = { .m = m, .only = m->readers, .dev = m->dev, .index = index, .n = n, .out = out };
	uint64_t held;
	int err;

	/* What is held already is acquired again without waiting for anybody who evicts: but it may be others who hold it. */
	held = replicas_pin_again(m, index, n, out);
	if (held == d.n && user_pin_all(m, out, d.n))
		return 0;
	while (held > 0)
		replica_unpin(out[--held]);

	do
		err = try_to_obtain(&d);
	while (err == -EAGAIN);
	if (!err)
		see_who_is_dead(out, d.n);
	return err;
}

/* ---- grants ---- */

static int by_index(const void *a, const void *b)
{
	const struct grant *x = *(struct grant *const *)a, *y = *(struct grant *const *)b;

	return x->index < y->index ? -1 : x->index > y->index;
}

/* mapping->lock held. The mapping's grants of chunks [first, last] into @list; how many. Of few chunks each is looked up. */
static unsigned list_grants(struct mapping *m, uint64_t first, uint64_t last, struct grant **list)
{
	bool few = last - first < HASH_COUNT(m->grants);
	struct grant *g, *tmp;
	unsigned n = 0;

	for (uint64_t index = first; few && index <= last; index++) {
		HASH_FIND(hh, m->grants, &index, sizeof(index), g);
		if (g)
			list[n++] = g;
	}
	if (!few)
		HASH_ITER(hh, m->grants, g, tmp)
			if (g->index >= first && g->index <= last)
				list[n++] = g;
	return n;
}

/* @idle: also those of which nothing is acquired; dev->reserve held. */
static unsigned pin_grants(struct mapping *m, uint64_t first, uint64_t last, bool idle,
			   struct grant ***out)
{
	struct grant **list;
	unsigned all, n = 0;

	/* A grant leaves the table, under the mapping's lock, before it and its replica are freed. */
	pthread_mutex_lock(&m->lock);
	list = xmalloc((MIN((uint64_t)HASH_COUNT(m->grants), last - first + 1) + 1) * sizeof(struct grant *));
	all = list_grants(m, first, last, list);
	for (unsigned k = 0; k < all; k++)
		if (idle ? replica_pin(list[k]->replica) : pin_held(m, list[k]))
			list[n++] = list[k];
	pthread_mutex_unlock(&m->lock);
	if (n > 1)
		qsort(list, n, sizeof(struct grant *), by_index);
	*out = list;
	return n;
}

unsigned grants_pin(struct mapping *m, uint64_t first, uint64_t last, struct grant ***out)
{
	return pin_grants(m, first, last, false, out);
}

unsigned grants_pin_mapped(struct mapping *m, uint64_t first, uint64_t last, bool idle,
			   struct grant ***out)
{
	struct grant **list;
	unsigned n, mapped = 0;

	if (idle)
		pthread_mutex_lock(&m->dev->reserve);
	n = pin_grants(m, first, last, idle, &list);
	for (unsigned k = 0; k < n; k++) {
		struct replica *rep = list[k]->replica;
		bool delivered;

		pthread_mutex_lock(&rep->chunk->lock);
		delivered = list[k]->delivered;
		pthread_mutex_unlock(&rep->chunk->lock);
		if (delivered)
			list[mapped++] = list[k];
		else
			replica_unpin(rep);
	}
	if (idle)
		pthread_mutex_unlock(&m->dev->reserve);
	*out = list;
	return mapped;
}

/* ---- mappings that may only read, but could store ---- */

static struct readers *readers_join(struct cfile *f, unsigned device, struct cache_user user)
{
	struct readers_of of = { .device = device, .uid = user.uid };
	struct readers *rd = NULL;

	pthread_mutex_lock(&f->lock);
	if (!user.alone)
		HASH_FIND(hh, f->readers, &of, sizeof(of), rd);
	if (!rd) {
		rd = xcalloc(1, sizeof(*rd));
		rd->of = of;
		rd->alone = user.alone;
		if (!rd->alone)
			HASH_ADD(hh, f->readers, of, sizeof(rd->of), rd);
	}
	rd->mappings++;
	pthread_mutex_unlock(&f->lock);
	return rd;
}

/* ---- mappings ---- */

int cache_map(struct cfile *f, unsigned device, void *client, struct cache_user user, uint64_t map_id, unsigned prot,
	      bool may_write, uint64_t off, uint64_t len, struct mapping **out)
{
	struct cache *c = f->cache;
	struct mapping *m;

	if (device >= c->n_devices)
		return -ENODEV;
	m = calloc(1, sizeof(*m));
	if (!m || readahead_begin(m, c, user)) {
		free(m);
		return -ENOMEM;
	}
	/* Each mapping may come to hold the same page for writing, and the count of those is limited. */
	if (atomic_fetch_add(&f->mappings, 1) >= CACHE_MAX_MAPPINGS) {
		atomic_fetch_sub(&f->mappings, 1);
		readahead_end(m);
		free(m);
		return -EMFILE;
	}
	cfile_hold(f);
	m->file = f;
	m->dev = &c->dev[device];
	m->client = client;
	m->user = user;
	m->id = map_id;
	m->prot = prot;
	m->export_write = (prot & GAIA_PROT_WRITE) || !m->dev->dev->shares_readonly;
	m->readers = m->export_write && !may_write ? readers_join(f, device, user) : NULL;
	m->off = off;
	m->len = len;
	STAILQ_INIT(&m->pins);
	pthread_mutex_init(&m->lock, NULL);
	*out = m;
	return 0;
}

/* Nobody maps or pins any of it any more. */
static void readers_drop_replicas(struct readers *rd, struct cache_device *dev)
{
	struct replica_queue *idle[] = { &dev->unused, &dev->idle };
	bool leave;

	do {
		struct replica_list claimed = { .n = 0 };
		uint64_t before = count_left(dev);
		struct replica *rep, *next;

		leave = false;
		pthread_mutex_lock(&dev->reserve);
		pthread_mutex_lock(&dev->lock);
		TAILQ_FOREACH(rep, &dev->busy, link)
			leave |= rep->only == rd;
		for (unsigned k = 0; k < ARRAY_LEN(idle); k++)
			for (rep = TAILQ_FIRST(idle[k]); rep; rep = next) {
				next = TAILQ_NEXT(rep, link);
				if (rep->only != rd)
					continue;
				claim_idle(rep);
				list_add(&claimed, rep);
			}
		pthread_mutex_unlock(&dev->lock);
		pthread_mutex_unlock(&dev->reserve);
		/* Nothing was released in them, so eviction cannot fail. */
		(void)evict_all(&claimed);
		if (leave)
			await_left(dev, before);
	} while (leave);
}

/* Nothing of the mapping is pinned any more. */
static void readers_leave(struct mapping *m)
{
	struct readers *rd = m->readers;
	struct cfile *f = m->file;
	bool last;

	pthread_mutex_lock(&f->lock);
	last = --rd->mappings == 0;
	if (last && !rd->alone)
		HASH_DEL(f->readers, rd);
	pthread_mutex_unlock(&f->lock);
	if (!last)
		return;
	readers_drop_replicas(rd, m->dev);
	free(rd);
}

/* A chunk that the mapping has a grant of, with a reference; NULL: there is none any more. */
static struct chunk *chunk_of_mapping(struct mapping *m)
{
	struct chunk *ch = NULL;

	/* A grant leaves the table, under the mapping's lock, before it and its replica are freed. */
	pthread_mutex_lock(&m->lock);
	if (m->grants)
		ch = chunk_ref(m->grants->replica->chunk);
	pthread_mutex_unlock(&m->lock);
	return ch;
}

/* chunk->lock held, which keeps it. */
static struct grant *grant_find(struct mapping *m, const struct chunk *ch)
{
	struct grant *g;

	pthread_mutex_lock(&m->lock);
	HASH_FIND(hh, m->grants, &ch->index, sizeof(ch->index), g);
	pthread_mutex_unlock(&m->lock);
	return g;
}

/* The mapping's grant of the chunk ends; others may be evicting the replica meanwhile. Whether that is spoiled; *@now: from now on. */
static bool grant_end(struct mapping *m, struct chunk *ch, enum cache_left left, bool *now)
{
	bool kept = left == CACHE_KEPT || (left == CACHE_ENDED && m->dev->dev->inherited);
	struct keeper *keeper = left == CACHE_KEPT ? keeper_make(m) : NULL;
	struct grant *g;
	bool spoiled = false;

	*now = false;

	pthread_mutex_lock(&ch->lock);
	chunk_unready(ch);
	g = grant_find(m, ch);
	if (g && g->pinned) {
		grant_look(g);
		pthread_mutex_unlock(&ch->lock);
		grant_discard(g, true);
		pthread_mutex_lock(&ch->lock);
		grant_looked(g);
	}
	while (g && g->lookers > 0) {
		page_wait(ch);
		g = grant_find(m, ch);
	}
	if (g) {
		struct replica *rep = g->replica;
		bool before = replica_is_spoiled(rep);

		/* It may have become ready for others meanwhile. */
		chunk_unready(ch);
		rep->n_suspects -= g->suspect;
		if (g->delivered || g->offered || g->unanswered) {
			rep->spoiled |= kept && m->export_write;
			keeper_add(&rep->keepers, keeper);
			keeper = NULL;
		}
		spoiled = replica_is_spoiled(rep);
		*now = spoiled && !before;
		LIST_REMOVE(g, of_replica);
		pthread_mutex_lock(&m->lock);
		HASH_DEL(m->grants, g);
		pthread_mutex_unlock(&m->lock);
		free(g);
	}
	pthread_mutex_unlock(&ch->lock);
	keepers_free(keeper);
	return spoiled;
}

/* ---- memory that somebody may have who is not a client any more ---- */

/* Copy what is current, or released and nowhere else, to @mem; the rest of @mem is zeros. All pages are locked, and nobody holds any. */
static int copy_current(struct replica *rep, struct devmem *mem)
{
	struct dev_run *runs = xmalloc(2 * GAIA_CHUNK_PAGES * sizeof(*runs));
	struct dev_op copy = { .kind = DEV_COPY_WITHIN, .runs = runs };
	struct dev_op zero = { .kind = DEV_ZERO, .runs = runs + GAIA_CHUNK_PAGES };
	int err = 0;

	pthread_mutex_lock(&rep->chunk->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		if (replica_has(rep, i))
			dev_run_add(&copy, runs, mem, i, NULL, rep->mem);
		else
			runs[GAIA_CHUNK_PAGES + zero.n++] = (struct dev_run){ .mem = mem, .page = i, .npages = 1 };
	}
	pthread_mutex_unlock(&rep->chunk->lock);
	if (copy.n > 0)
		err = cache_device_run(rep->dev, &copy);
	if (!err && zero.n > 0)
		err = cache_device_run(rep->dev, &zero);
	free(runs);
	return err;
}

/* The replica is in @mem from now on, and its former memory is @old, one of the chunk's. All pages are locked. */
static void move_to(struct replica *rep, struct devmem *mem, struct old_memory *old)
{
	struct chunk *ch = rep->chunk;
	struct grant *g;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		if (!replica_has(rep, i))
			replica_zeroed(rep, i);
	*old = (struct old_memory){ .next = ch->old, .dev = rep->dev, .mem = rep->mem, .keepers = rep->keepers };
	rep->keepers = NULL;
	ch->old = old;
	pthread_mutex_lock(&rep->dev->lock);
	rep->mem = mem;
	/* An acquire that needs room waits for it. */
	rep->dev->pinned += GAIA_CHUNK;
	rep->dev->leaving += GAIA_CHUNK;
	pthread_mutex_unlock(&rep->dev->lock);
	rep->spoiled = false;
	LIST_FOREACH(g, &rep->grants, of_replica)
		g->suspect = g->unanswered = false;
	rep->n_suspects = 0;
	pthread_mutex_unlock(&ch->lock);
}

/* No client maps it any more. */
static void old_memory_end(struct chunk *ch, struct old_memory *old)
{
	struct old_memory **at = &ch->old;
	struct cache_device *dev = old->dev;
	uint64_t stays;

	lock_all(ch);
	pthread_mutex_lock(&ch->lock);
	while (*at != old)
		at = &(*at)->next;
	*at = old->next;
	pthread_mutex_unlock(&ch->lock);
	unlock_all(ch);
	dev->dev->ops->free(dev->dev, old->mem);
	pthread_mutex_lock(&dev->lock);
	stays = strand(dev, old->keepers);
	dev->used -= GAIA_CHUNK - stays;
	dev->pinned -= GAIA_CHUNK - stays;
	dev->leaving -= GAIA_CHUNK;
	has_left(dev);
	pthread_mutex_unlock(&dev->lock);
}

/*
 * Give the replica other memory with the same contents, since whoever has the old one may store there anything. No lock is held; the
 * replica is claimed, and is not on return. The copy comes first, since such a store may happen at any moment. Then the replica is as
 * good as any, and its clients are asked for the old memory. On error, mostly -ENOMEM, nothing has changed, and it is still claimed.
 */
static int replica_renew(struct replica *rep)
{
	struct chunk *ch = rep->chunk;
	struct asked asked = { .n = 0 };
	struct old_memory old;
	struct devmem *mem;
	int err = spare_alloc(rep->dev, &mem);

	if (err)
		return err;
	lock_all(ch);
	err = copy_current(rep, mem);
	if (!err)
		move_to(rep, mem, &old);
	unlock_all(ch);
	if (err) {
		memory_free(rep->dev, mem);
		return err;
	}
	count(CTR_device_renewed, 1);
	ask_for(&asked, rep, true);
	unclaim(rep, false, false);
	ask(&asked);
	for (unsigned k = 0; k < asked.n; k++)
		if (asked.ask[k].err)
			keeper_add(&old.keepers, keeper_make(asked.grant[k]->mapping));
	old_memory_end(ch, &old);
	asked_end(&asked, MOVES);
	return 0;
}

/*
 * Move what was released to where nobody stores to it any more; and the rest, too, if nobody holds any of it and there is room on
 * the device. Otherwise the replica goes: now, or, if it is held or cannot be brought home, when it is next acquired. A replica that
 * has been spoiled for long is not copied: nobody knows who stored last to it.
 */
static void spoiled_secure(struct chunk *ch, struct cache_device *dev, const struct readers *only, bool copy)
{
	struct replica_list claimed = { .n = 0 };
	struct replica *rep;
	bool stays;

	/* Other mappings of a process that has ended are in nobody's way. */
	chunk_drop_dead(ch, dev, &(struct living){ .n = 0 }, true);
	pthread_mutex_lock(&dev->reserve);
	pthread_mutex_lock(&ch->lock);
	rep = replica_find(ch, dev, only);
	if (rep && replica_is_spoiled(rep) && claim(rep))
		list_add(&claimed, rep);
	pthread_mutex_unlock(&ch->lock);
	pthread_mutex_unlock(&dev->reserve);
	stays = rep && claimed.n == 0;
	if (claimed.n > 0 && copy && !only && !replica_renew(rep)) {
		free(claimed.at);
		return;
	}
	stays |= evict_all(&claimed) != 0;
	if (stays && !only)
		(void)fetch_chunk(ch, pages_secure);
}

void cache_unmap(struct mapping *m, enum cache_left left)
{
	struct cfile *f = m->file;
	struct chunk *ch;
	bool now;

	readahead_cease(m);
	pins_drop(m);
	while ((ch = chunk_of_mapping(m))) {
		if (grant_end(m, ch, left, &now))
			spoiled_secure(ch, m->dev, m->readers, now);
		chunk_put(ch);
	}
	readahead_end(m);
	if (m->readers)
		readers_leave(m);
	mapping_holds_nothing(m);
	pthread_mutex_destroy(&m->lock);
	free(m);
	atomic_fetch_sub(&f->mappings, 1);
	cfile_put(f);
}
