/*
 * replica.c - copies of chunks on devices: their memory, pins, eviction; and mappings.
 *
 * A replica is evictable when nothing pins it. Making and freeing replicas of one device happens
 * under dev->reserve, so that two acquires which need each other's memory are decided one after the
 * other, and one that cannot fit fails whole.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/state.h"

/* ---- pins ---- */

/* dev->lock held. */
static void make_busy(struct replica *rep)
{
	TAILQ_REMOVE(&rep->dev->idle, rep, link);
	TAILQ_INSERT_TAIL(&rep->dev->busy, rep, link);
	rep->dev->pinned += GAIA_CHUNK;
}

void replica_pin(struct replica *rep)
{
	struct cache_device *dev = rep->dev;

	pthread_mutex_lock(&dev->lock);
	if (rep->pins++ == 0)
		make_busy(rep);
	pthread_mutex_unlock(&dev->lock);
}

/* One more pin of what is pinned. Not what is idle or being evicted: nothing of it is acquired. */
static bool pin_again(struct replica *rep)
{
	struct cache_device *dev = rep->dev;
	bool held;

	pthread_mutex_lock(&dev->lock);
	held = rep->pins > 0 && !rep->evicting;
	rep->pins += held;
	pthread_mutex_unlock(&dev->lock);
	return held;
}

void replica_unpin(struct replica *rep)
{
	struct cache_device *dev = rep->dev;

	pthread_mutex_lock(&dev->lock);
	bug_on(rep->pins == 0);
	if (--rep->pins == 0) {
		rep->evicting = false;
		TAILQ_REMOVE(&dev->busy, rep, link);
		TAILQ_INSERT_TAIL(&dev->idle, rep, link);
		dev->pinned -= GAIA_CHUNK;
	}
	pthread_mutex_unlock(&dev->lock);
}

/* Claim a replica for eviction: a pin that nobody can join. Fails if it is pinned. dev->reserve held. */
static bool claim(struct replica *rep)
{
	bool idle;

	pthread_mutex_lock(&rep->dev->lock);
	idle = rep->pins == 0;
	if (idle) {
		make_busy(rep);
		rep->pins = 1;
		rep->evicting = true;
	}
	pthread_mutex_unlock(&rep->dev->lock);
	return idle;
}

static struct replica *claim_oldest(struct cache_device *dev)
{
	struct replica *rep;

	pthread_mutex_lock(&dev->lock);
	rep = TAILQ_FIRST(&dev->idle);
	pthread_mutex_unlock(&dev->lock);
	/* Who pins it in between has it pinned already through something acquired: then it is not idle. */
	return rep && claim(rep) ? rep : NULL;
}

/* ---- device memory ---- */

/* An operation failed: when the device is gone, so is everything on it. */
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

static int memory_alloc(struct cache_device *dev, struct devmem **out)
{
	int err = atomic_load(&dev->gone) ? -ENODEV : dev->dev->ops->alloc(dev->dev, out);

	note_gone(dev, err);
	if (err)
		return err;
	pthread_mutex_lock(&dev->lock);
	dev->used += GAIA_CHUNK;
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
	/* Snapshots are no reason to evict somebody: without room the release is fetched instead. */
	if (mem || memory_alloc(rep->dev, &made))
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

/* chunk->lock held. Keeps the order of the devices. */
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

/* @only: see struct replica. */
static struct replica *replica_find(struct chunk *ch, const struct cache_device *dev,
				    const struct readers *only)
{
	struct replica *found = NULL;

	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < ch->n_replicas && !found; k++)
		if (ch->replica[k]->dev == dev && ch->replica[k]->only == only)
			found = ch->replica[k];
	pthread_mutex_unlock(&ch->lock);
	return found;
}

/* With a pin. Takes over the caller's reference to the chunk, also on error. */
static int replica_create(struct chunk *ch, struct cache_device *dev, struct readers *only,
			  struct replica **out)
{
	struct replica *rep = xcalloc(1, sizeof(*rep));
	int err = memory_alloc(dev, &rep->mem);

	if (err)
		goto put_chunk;
	rep->chunk = ch;
	rep->dev = dev;
	rep->only = only;
	rep->pins = 1;
	LIST_INIT(&rep->grants);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		rep->page[i].cut = GAIA_PAGE;
	pthread_mutex_lock(&ch->lock);
	/* Users can be many: not so many that their readers are in the way of what clients share. */
	if (only && ch->n_replicas + ch->file->cache->n_devices >= CACHE_MAX_DEVICES) {
		pthread_mutex_unlock(&ch->lock);
		err = -EMFILE;
		goto free_memory;
	}
	track_make(ch);
	replica_link(ch, rep);
	pthread_mutex_unlock(&ch->lock);
	pthread_mutex_lock(&dev->lock);
	TAILQ_INSERT_TAIL(&dev->busy, rep, link);
	dev->pinned += GAIA_CHUNK;
	pthread_mutex_unlock(&dev->lock);
	*out = rep;
	return 0;

free_memory:
	memory_free(dev, rep->mem);
put_chunk:
	free(rep);
	chunk_put(ch);
	return err;
}

/* All pages are locked, nothing is ahead, no client maps it. */
static void replica_destroy(struct replica *rep)
{
	struct chunk *ch = rep->chunk;
	struct cache_device *dev = rep->dev;
	struct grant *g;

	pthread_mutex_lock(&ch->lock);
	while ((g = LIST_FIRST(&rep->grants))) {
		bug_on(g->pinned || g->delivered || g->in_delivery || g->lookers);
		LIST_REMOVE(g, of_replica);
		pthread_mutex_lock(&g->mapping->lock);
		HASH_DEL(g->mapping->grants, g);
		pthread_mutex_unlock(&g->mapping->lock);
		free(g);
	}
	replica_unlink(ch, rep);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		replica_left(ch, i);
	track_maybe_free(ch);
	pages_unlock(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&ch->lock);

	memory_free(dev, rep->mem);
	if (rep->shadow)
		memory_free(dev, rep->shadow);
	pthread_mutex_lock(&dev->lock);
	TAILQ_REMOVE(&dev->busy, rep, link);
	dev->pinned -= GAIA_CHUNK;
	pthread_mutex_unlock(&dev->lock);
	free(rep);
	count(CTR_device_evicted, 1);
	chunk_account(ch);
	chunk_put(ch);
}

/* The chunk's lock is held. Whether the client of the grant is to be asked for the memory; from then on it counts as asked. */
static bool take_back(struct grant *g)
{
	if (!g->delivered)
		return false;
	g->delivered = 0;
	if (!fault_point("break.reuse_mapped"))
		return true;
	g->mapping->kept = 1 + g->index;
	return false;
}

/*
 * Take the memory back from the clients that map it, though they hold none of it. dev->reserve keeps their mappings, and so
 * the grants, from ending; and nobody is handed what is being evicted.
 */
static void replica_revoke(struct replica *rep)
{
	struct chunk *ch = rep->chunk;
	struct cache_revoke *ask = NULL;
	struct grant **asked = NULL, *g;
	unsigned n = 0;

	pthread_mutex_lock(&ch->lock);
	LIST_FOREACH(g, &rep->grants, of_replica) {
		if (!take_back(g))
			continue;
		ask = xrealloc(ask, (n + 1) * sizeof(*ask));
		asked = xrealloc(asked, (n + 1) * sizeof(*asked));
		ask[n] = (struct cache_revoke){ g->mapping->client, g->mapping->id, ch->index, 0 };
		asked[n++] = g;
	}
	pthread_mutex_unlock(&ch->lock);
	if (!n)
		return;
	ch->file->cache->host.revoke_many(ask, n);
	/* A client that is gone has unmapped: or cache_unmap() hears. */
	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < n; k++)
		asked[k]->unanswered |= ask[k].err != 0;
	pthread_mutex_unlock(&ch->lock);
	free(ask);
	free(asked);
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

int replica_evict(struct replica *rep)
{
	struct chunk *ch = rep->chunk;
	struct cfile *f = ch->file;
	int err = 0;

	replica_revoke(rep);
	pthread_rwlock_rdlock(&f->range);
	pthread_mutex_lock(&ch->lock);
	pages_lock(ch, 0, GAIA_CHUNK_PAGES);
	if (is_dead(f))
		forget_releases(rep);
	pthread_mutex_unlock(&ch->lock);
	if (!rep->only)
		err = fetch_pages(ch, 0, GAIA_CHUNK_PAGES);
	if (err) {
		pthread_mutex_lock(&ch->lock);
		pages_unlock(ch, 0, GAIA_CHUNK_PAGES);
		pthread_mutex_unlock(&ch->lock);
		chunk_account(ch);
		pthread_rwlock_unlock(&f->range);
		replica_unpin(rep);
		return err;
	}
	chunk_ref(ch);
	replica_destroy(rep);
	pthread_rwlock_unlock(&f->range);
	chunk_put(ch);
	return 0;
}

void replicas_drop_idle(struct chunk *ch)
{
	struct cache *c = ch->file->cache;

	for (unsigned d = 0; d < c->n_devices; d++) {
		struct cache_device *dev = &c->dev[d];
		struct replica *rep;

		if (pthread_mutex_trylock(&dev->reserve))
			continue;
		rep = replica_find(ch, dev, NULL);
		if (rep && claim(rep))
			(void)replica_evict(rep); /* on error it is tried again */
		pthread_mutex_unlock(&dev->reserve);
	}
}

/* The device's nth replica of the chunk: the shared one, or some readers'. */
static struct replica *replica_nth(struct chunk *ch, const struct cache_device *dev, unsigned nth)
{
	struct replica *found = NULL;

	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < ch->n_replicas && !found; k++)
		if (ch->replica[k]->dev == dev && nth-- == 0)
			found = ch->replica[k];
	pthread_mutex_unlock(&ch->lock);
	return found;
}

/* Whether some other client has it mapped, or is just being handed it. */
static bool others_map(const struct replica *rep, const struct mapping *m)
{
	const struct grant *g;
	bool found = false;

	pthread_mutex_lock(&rep->chunk->lock);
	LIST_FOREACH(g, &rep->grants, of_replica)
		found |= g->mapping != m && (g->delivered || g->in_delivery);
	pthread_mutex_unlock(&rep->chunk->lock);
	return found;
}

/* dev->reserve held. */
static int drop(struct replica *rep, const struct mapping *m)
{
	grants_drop_dead(rep);
	if (!claim(rep))
		return -EBUSY;
	/* Now nobody else is handed it. */
	if (!m || !others_map(rep, m))
		return replica_evict(rep);
	replica_unpin(rep);
	return -EBUSY;
}

int replica_drop(struct chunk *ch, struct cache_device *dev, const struct mapping *m)
{
	struct replica *rep;
	unsigned stay = 0;
	int result = 0;

	pthread_mutex_lock(&dev->reserve);
	while ((rep = replica_nth(ch, dev, stay))) {
		int err;

		if (m && rep->only != m->readers) {
			stay++;
			continue;
		}
		err = drop(rep, m);
		if (err) {
			result = err;
			stay++;
		}
	}
	pthread_mutex_unlock(&dev->reserve);
	return result;
}

/* ---- room for an acquire ---- */

/* dev->reserve held. Whether @n more chunks fit, if everything that is not pinned goes. */
static bool could_fit(struct cache_device *dev, uint64_t n)
{
	bool fits;

	pthread_mutex_lock(&dev->lock);
	fits = dev->pinned + n * GAIA_CHUNK <= dev->dev->capacity;
	pthread_mutex_unlock(&dev->lock);
	return fits;
}

/* dev->reserve held, which keeps the replicas. Those that are pinned; *@out to be freed. */
static unsigned busy_list(struct cache_device *dev, struct replica ***out)
{
	struct replica *rep;
	unsigned n = 0;

	*out = NULL;
	pthread_mutex_lock(&dev->lock);
	TAILQ_FOREACH(rep, &dev->busy, link) {
		*out = xrealloc(*out, (n + 1) * sizeof(struct replica *));
		(*out)[n++] = rep;
	}
	pthread_mutex_unlock(&dev->lock);
	return n;
}

/* dev->reserve held. What clients hold that are gone is in nobody's way. */
static void all_drop_dead(struct cache_device *dev)
{
	struct replica **list;
	unsigned n = busy_list(dev, &list);

	for (unsigned k = 0; k < n; k++)
		grants_drop_dead(list[k]);
	free(list);
}

/* What was released of the chunk comes home. */
static int fetch_chunk(struct chunk *ch)
{
	int err;

	pthread_rwlock_rdlock(&ch->file->range);
	pthread_mutex_lock(&ch->lock);
	pages_lock(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&ch->lock);
	err = fetch_pages(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_lock(&ch->lock);
	pages_unlock(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&ch->lock);
	chunk_account(ch);
	pthread_rwlock_unlock(&ch->file->range);
	return err;
}

/*
 * dev->reserve held. Give up snapshots, by fetching what was released, until a chunk is free: true if
 * there was one.
 */
static bool shadows_reclaim(struct cache_device *dev)
{
	struct replica **list;
	unsigned n = busy_list(dev, &list);
	bool freed = false;

	for (unsigned k = 0; k < n && !freed; k++) {
		struct chunk *ch = list[k]->chunk;

		pthread_mutex_lock(&ch->lock);
		freed = list[k]->shadow;
		pthread_mutex_unlock(&ch->lock);
		if (!freed || fetch_chunk(ch)) {
			freed = false;
			continue;
		}
		pthread_mutex_lock(&ch->lock);
		freed = !list[k]->shadow;
		pthread_mutex_unlock(&ch->lock);
	}
	free(list);
	return freed;
}

static int replica_obtain(struct chunk *ch, struct cache_device *dev, struct readers *only,
			  struct replica **out)
{
	struct replica *rep = replica_find(ch, dev, only), *old, *stuck = NULL;
	int err;

	if (rep) {
		replica_pin(rep);
		chunk_put(ch);
		*out = rep;
		return 0;
	}
	for (;;) {
		chunk_ref(ch);
		err = replica_create(ch, dev, only, out);
		if (err != -ENOMEM)
			break;
		old = claim_oldest(dev);
		if (!old) {
			if (!shadows_reclaim(dev))
				break;
			continue;
		}
		if (old == stuck) {
			replica_unpin(old);
			break;
		}
		/* Another file's trouble is not ours, as long as another chunk can go. */
		if (replica_evict(old) && !stuck)
			stuck = old;
	}
	chunk_put(ch);
	return err;
}

/* What is pinned stays without dev->reserve. A grant leaves the table, under the mapping's lock, before it and its replica go. */
static uint64_t pin_pinned(struct mapping *m, uint64_t first, uint64_t n, struct replica **out)
{
	struct grant *g;
	uint64_t k;

	pthread_mutex_lock(&m->lock);
	for (k = 0; k < n; k++) {
		uint64_t index = first + k;

		HASH_FIND(hh, m->grants, &index, sizeof(index), g);
		if (!g || !pin_again(g->replica))
			break;
		out[k] = g->replica;
	}
	pthread_mutex_unlock(&m->lock);
	return k;
}

uint64_t replicas_pin_again(struct mapping *m, uint64_t first, uint64_t n, struct replica **out)
{
	n = pin_pinned(m, first, n, out);
	for (uint64_t k = 0; k < n; k++)
		grants_drop_dead(out[k]);
	return n;
}

int replicas_pin(struct mapping *m, uint64_t first, uint64_t last, struct replica **out)
{
	struct cache_device *dev = m->dev;
	struct readers *only = m->readers;
	uint64_t n = last - first + 1, missing = 0, held, k;
	int err = 0;

	/* What an acquire holds already keeps nobody waiting who evicts. */
	held = replicas_pin_again(m, first, n, out);
	if (held == n)
		return 0;
	while (held > 0)
		replica_unpin(out[--held]);

	pthread_mutex_lock(&dev->reserve);
	/* Ask before evicting for nothing. What is there and pinned already counts once. */
	for (k = 0; k < n; k++)
		out[k] = NULL;
	for (k = 0; k < n && !err; k++) {
		struct chunk *ch = chunk_get(m->file, first + k, false);
		struct replica *rep = ch ? replica_find(ch, dev, only) : NULL;

		if (rep && rep->spoiled && claim(rep)) {
			err = replica_evict(rep);
			rep = NULL;
		}
		if (err) {
			/* What was released there cannot be had, and nothing else there is to be trusted. */
		} else if (rep) {
			replica_pin(rep);
			out[k] = rep;
		} else {
			missing++;
		}
		if (ch)
			chunk_put(ch);
	}
	if (!err && !could_fit(dev, missing)) {
		all_drop_dead(dev);
		if (!could_fit(dev, missing))
			err = -ENOMEM;
	}
	for (k = 0; k < n && !err; k++)
		if (!out[k])
			err = replica_obtain(chunk_get(m->file, first + k, true), dev, only,
					     &out[k]);
	if (!err)
		for (k = 0; k < n; k++)
			grants_drop_dead(out[k]);
	pthread_mutex_unlock(&dev->reserve);
	if (!err)
		return 0;
	for (k = 0; k < n; k++)
		if (out[k])
			replica_unpin(out[k]);
	return err;
}

/* ---- grants ---- */

static int by_index(const void *a, const void *b)
{
	const struct grant *x = *(struct grant *const *)a, *y = *(struct grant *const *)b;

	return x->index < y->index ? -1 : x->index > y->index;
}

/* @idle: also those of which nothing is acquired; dev->reserve held. */
static unsigned pin_grants(struct mapping *m, uint64_t first, uint64_t last, bool idle,
			   struct grant ***out)
{
	struct grant **list, *g, *tmp;
	unsigned n = 0;

	/* A grant leaves the table, under the mapping's lock, before it and its replica are freed. */
	pthread_mutex_lock(&m->lock);
	list = xmalloc((HASH_COUNT(m->grants) + 1) * sizeof(struct grant *));
	HASH_ITER(hh, m->grants, g, tmp) {
		if (g->index < first || g->index > last)
			continue;
		if (idle)
			replica_pin(g->replica);
		else if (!pin_again(g->replica))
			continue;
		list[n++] = g;
	}
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

/* ---- who may only read, and could store ---- */

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

/* dev->reserve held. Nobody has any of it mapped or pinned any more; nothing was released in it, so that nothing can fail. */
static void readers_drop_replicas(struct readers *rd, struct cache_device *dev)
{
	struct replica *rep;

	do {
		pthread_mutex_lock(&dev->lock);
		TAILQ_FOREACH(rep, &dev->idle, link)
			if (rep->only == rd)
				break;
		pthread_mutex_unlock(&dev->lock);
		if (rep && claim(rep))
			(void)replica_evict(rep);
	} while (rep);
}

/* dev->reserve held, and nothing of the mapping is pinned any more. */
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

/* ---- mappings ---- */

int cache_map(struct cfile *f, unsigned device, void *client, struct cache_user user, uint64_t map_id, unsigned prot,
	      bool may_write, uint64_t off, uint64_t len, struct mapping **out)
{
	struct cache *c = f->cache;
	struct mapping *m;

	if (device >= c->n_devices)
		return -ENODEV;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	/* Each may come to hold the same page for writing, and those are counted. */
	if (atomic_fetch_add(&f->mappings, 1) >= CACHE_MAX_MAPPINGS) {
		atomic_fetch_sub(&f->mappings, 1);
		free(m);
		return -EMFILE;
	}
	cfile_hold(f);
	m->file = f;
	m->dev = &c->dev[device];
	m->client = client;
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

void cache_unmap(struct mapping *m, bool kept)
{
	struct cfile *f = m->file;
	struct grant *g, *tmp;

	pins_drop(m);
	pthread_mutex_lock(&m->dev->reserve);
	HASH_ITER(hh, m->grants, g, tmp) {
		struct replica *rep = g->replica;
		struct chunk *ch = rep->chunk;

		/* While it is pinned by us the replica stays until the grant is off its list. */
		replica_pin(rep);
		grant_discard(g);
		pthread_mutex_lock(&ch->lock);
		while (g->lookers > 0)
			page_wait(ch);
		if (kept && m->export_write && (g->delivered || g->unanswered))
			rep->spoiled = true;
		LIST_REMOVE(g, of_replica);
		pthread_mutex_unlock(&ch->lock);
		HASH_DEL(m->grants, g);
		replica_unpin(rep);
		free(g);
		/* It goes now, or when it is acquired next and nobody holds any of it; what was released is safe at home. */
		if (rep->spoiled && claim(rep))
			(void)replica_evict(rep);
		else if (rep->spoiled)
			(void)fetch_chunk(ch);
	}
	if (m->readers)
		readers_leave(m);
	pthread_mutex_unlock(&m->dev->reserve);
	mapping_holds_nothing(m);
	pthread_mutex_destroy(&m->lock);
	free(m);
	atomic_fetch_sub(&f->mappings, 1);
	cfile_put(f);
}
