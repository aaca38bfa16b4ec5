/*
 * evict.c - replicas leave a device: clients are asked for the memory, what was released is brought home, and the memory is freed.
 *
 * Also for replicas of which somebody may have the memory who is not a client any more: their contents move to other memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/evict.h"

#include "base/counters.h"
#include "base/fault.h"
#include "base/probe.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/coherence.h"
#include "pagecache/devices.h"
#include "pagecache/fetch.h"
#include "pagecache/file.h"
#include "pagecache/grant.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/run.h"
#include "pagecache/state.h"
#include "pagecache/stranded.h"
#include "pagecache/view.h"

/* Whether the client of the grant must be asked for the memory; from now on it counts as asked. chunk->lock is held. */
static bool take_back(struct grant *g)
{
	if (!g->delivered && !g->offered)
		return false;
	g->delivered = 0;
	g->offered = false;
	if (g->replica->extent || !fault_point("break.reuse_mapped"))
		return true;
	g->mapping->kept = 1 + g->index;
	return false;
}

void asked_add(struct asked *asked, struct cache_revoke ask, struct grant *g)
{
	if (asked->n == asked->room) {
		asked->room = MAX(2 * asked->room, 16u);
		asked->ask = xrealloc(asked->ask, asked->room * sizeof(*asked->ask));
		asked->grant = xrealloc(asked->grant, asked->room * sizeof(struct grant *));
	}
	asked->ask[asked->n] = ask;
	asked->grant[asked->n++] = g;
}

static void note_replica(struct asked *asked, struct replica *rep, bool stays)
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

void asked_note(struct asked *asked, struct replica *unit, bool stays)
{
	for (unsigned k = 0; k < unit_chunks(unit); k++)
		note_replica(asked, unit_member(unit, k), stays);
}

/* Ask all of them at once. */
static void ask(struct asked *asked)
{
	if (asked->n > 0)
		asked->grant[0]->mapping->file->cache->host.revoke_many(asked->ask, asked->n);
}

void asked_settle(struct asked *asked, unsigned k, enum becomes what)
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

void asked_free(struct asked *asked)
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
 * Take the memory of claimed units back from the clients that map it, though they hold none of it: from all at
 * once. What is being evicted is handed to nobody.
 */
static void replicas_revoke(struct replica **list, unsigned n)
{
	struct asked asked = { .n = 0 };

	for (unsigned k = 0; k < n; k++)
		asked_note(&asked, list[k], false);
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
	/* Nothing was released in it. */
	if (rep->only || rep->ahead)
		memset(pt->pages, 0, sizeof(pt->pages));
	if (!dead)
		return;
	pthread_mutex_lock(&rep->chunk->lock);
	forget_releases(rep);
	pthread_mutex_unlock(&rep->chunk->lock);
}

/* What was released of it was brought home, or that has failed. The chunk's pages are not locked afterwards. Returns why it stays, or 0. */
static int evict_end(struct replica *rep, int err)
{
	struct chunk *ch = rep->chunk;

	if (!err && replica_is_view(rep))
		err = view_leave(rep);
	PROBE4(evict, ch->file->key, ch->index, rep->dev->number, err);
	if (!err) {
		replica_destroy(rep);
		return 0;
	}
	pthread_mutex_lock(&ch->lock);
	pages_unlock(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&ch->lock);
	chunk_account(ch);
	replica_unclaim(rep, true, false);
	return err;
}

/* Lock all pages of as many of the replicas' chunks as go together, and see what is to be brought home of them. file->range is held. */
static struct fetch_window evict_lock(struct replica **list, unsigned n)
{
	struct fetch_window w = { .whole = true };
	struct cfile *f = list[0]->chunk->file;
	bool dead;

	while (w.n < n && list[w.n]->chunk->file == f && (w.n == 0 || list[w.n]->extent == list[0]->extent) && fetch_window_add(&w, list[w.n]->chunk, 0, GAIA_CHUNK_PAGES))
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
	err = evict_end(rep, fetch_alone(w.part, t));
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
	one = apart ? 0 : *err;
	*err = 0;
	for (unsigned k = 0; k < w.n && !apart; k++) {
		int stays = evict_end(list[k], one);

		*err = *err ? *err : stays;
	}
	pthread_rwlock_unlock(&f->range);
	for (unsigned k = 0; k < w.n; k++) {
		one = apart ? evict_alone(list[k], t) : 0;
		*err = *err ? *err : one;
		chunk_put(w.part[k].ch);
	}
	free(w.part);
	return w.n;
}

/* Bring home what was released in these replicas, as many as go together: how many. Nothing is locked afterwards. */
static unsigned fetch_home(struct replica **list, unsigned n, struct fetch_trouble *t, int *err)
{
	struct fetch_window w = evict_lock(list, n);

	*err = w.n > 1 ? fetch_together(w.part, w.n, t) : fetch_alone(w.part, t);
	fetch_window_unlock(&w);
	n = w.n;
	free(w.part);
	return n;
}

/* All of an extent, or, on error, nothing. Clients have given its memory up, so nothing more is released there. */
static int evict_extent(struct replica *unit, struct fetch_trouble *t)
{
	struct chunk *first = chunk_ref(unit->chunk);
	struct cfile *f = first->file;
	int err = 0;

	pthread_rwlock_rdlock(&f->range);
	(void)fault_point("evict.before_fetch");
	for (unsigned k = 0, n; k < unit_chunks(unit) && !err; k += n) {
		if (k > 0 && atomic_load(&f->range_waiters) > 0) {
			pthread_rwlock_unlock(&f->range);
			pthread_rwlock_rdlock(&f->range);
		}
		n = fetch_home(unit->extent->member + k, unit_chunks(unit) - k, t, &err);
		/* Each by itself, with nothing of the others locked. */
		for (unsigned i = 0, failed = n > 1 && err; i < n && failed; i++) {
			(void)fetch_home(unit->extent->member + k + i, 1, t, &err);
			failed = !err;
		}
	}
	if (err) {
		PROBE4(evict, f->key, first->index, unit->dev->number, err);
		replica_unclaim(unit, true, false);
	}
	for (unsigned k = err ? 0 : GAIA_EXTENT_CHUNKS; k-- > 0;) {
		struct replica *rep = unit->extent->member[k];
		struct chunk *ch = rep->chunk;

		pthread_mutex_lock(&ch->lock);
		pages_lock(ch, 0, GAIA_CHUNK_PAGES);
		pthread_mutex_unlock(&ch->lock);
		(void)evict_end(rep, 0);
	}
	pthread_rwlock_unlock(&f->range);
	chunk_put(first);
	return err;
}

/* So that chunks of one file follow each other. */
static int by_file_and_index(const void *a, const void *b)
{
	const struct chunk *x = (*(struct replica *const *)a)->chunk, *y = (*(struct replica *const *)b)->chunk;

	if (x->file != y->file)
		return (uintptr_t)x->file < (uintptr_t)y->file ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

/* Before anything of it is locked. */
static void say_what_leaves(const struct replica_list *list)
{
	struct replica *rep = list->n > 0 ? list->at[0] : NULL;

	if (rep)
		log_decision("device %s: %llu chunks leave, the first of them chunk %llu of %s", rep->dev->dev->name,
			     (unsigned long long)units_chunks(list), (unsigned long long)rep->chunk->index, cfile_name(rep->chunk->file, (char[CFILE_NAME_MAX]){ "" }));
}

int replicas_evict_revoked(struct replica_list *list)
{
	struct fetch_trouble trouble = { .err = { 0 } };
	int err, result = 0;

	if (list->n > 1)
		qsort(list->at, list->n, sizeof(struct replica *), by_file_and_index);
	say_what_leaves(list);
	for (unsigned done = 0; done < list->n;) {
		if (list->at[done]->extent)
			err = evict_extent(list->at[done++], &trouble);
		else
			done += replicas_evict(list->at + done, list->n - done, &trouble, &err);
		result = result ? result : err;
	}
	free(list->at);
	*list = (struct replica_list){ .n = 0 };
	return result;
}

int replicas_evict_all(struct replica_list *list)
{
	replicas_revoke(list->at, list->n);
	return replicas_evict_revoked(list);
}

/* Whether it leaves. chunk->lock is held, and dev->reserve: if not, it stays while that is held. */
static bool is_leaving(const struct replica *rep)
{
	bool leaves;

	pthread_mutex_lock(&rep->dev->lock);
	leaves = replica_leaves(rep);
	pthread_mutex_unlock(&rep->dev->lock);
	return leaves;
}

/* The chunk's replica, unless it is leaving. dev->reserve is held, which keeps it. */
static struct replica *find_staying(struct chunk *ch, const struct cache_device *dev, const struct readers *only)
{
	struct replica *rep;

	pthread_mutex_lock(&ch->lock);
	rep = replica_find(ch, dev, only);
	if (rep && is_leaving(rep))
		rep = NULL;
	pthread_mutex_unlock(&ch->lock);
	return rep;
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
			rep = find_staying(list[k], dev, NULL);
			if (rep && !replica_unit(rep)->file_pinned && replica_claim(rep, NULL, NULL))
				replica_list_add(&claimed, replica_unit(rep));
			rep = find_staying(list[k], dev, view_readers(c));
			if (rep && replica_claim(rep, NULL, NULL))
				replica_list_add(&claimed, rep);
		}
		pthread_mutex_unlock(&dev->reserve);
		(void)replicas_evict_all(&claimed); /* on error it is tried again */
	}
}

/* Whether another client than the mapping's (NULL: does not matter) maps it, or is being handed it. chunk->lock is held. */
static bool others_map(const struct replica *rep, const void *mapping)
{
	const struct mapping *m = mapping;
	const struct grant *g;

	if (!m)
		return false;

	LIST_FOREACH(g, &rep->grants, of_replica)
		if (g->mapping != m && (g->delivered || g->offered || g->in_delivery))
			return true;
	return false;
}

/* Add units that are idle, since nobody has looked at them, and held. dev->reserve is held. */
static void add_held_idle(struct cache_device *dev, struct replica_list *list)
{
	struct replica **ready;
	uint64_t n = device_idle_ready(dev, UINT64_MAX, &ready);

	for (uint64_t k = 0; k < n; k++)
		if (unit_is_held_ready(ready[k]))
			replica_list_add(list, ready[k]);
	free(ready);
}

unsigned device_busy_chunks(struct cache_device *dev, bool snapped, struct chunk ***out)
{
	struct replica_list list = { .n = 0 };
	struct replica *rep;
	unsigned n = 0;

	/* Which keeps those that do not leave already. */
	pthread_mutex_lock(&dev->reserve);
	pthread_mutex_lock(&dev->lock);
	TAILQ_FOREACH(rep, &dev->busy, link)
		if ((rep->mem || !snapped) && !replica_leaves(rep))
			replica_list_add(&list, rep);
	pthread_mutex_unlock(&dev->lock);
	if (!snapped)
		add_held_idle(dev, &list);
	*out = xcalloc(units_chunks(&list) + 1, sizeof(struct chunk *));
	for (unsigned k = 0; k < list.n; k++)
		for (unsigned i = 0; i < unit_chunks(list.at[k]); i++) {
			rep = unit_member(list.at[k], i);
			pthread_mutex_lock(&rep->chunk->lock);
			if (!snapped || rep->shadow)
				(*out)[n++] = chunk_ref(rep->chunk);
			pthread_mutex_unlock(&rep->chunk->lock);
		}
	pthread_mutex_unlock(&dev->reserve);
	free(list.at);
	return n;
}

void device_drop_dead(struct cache_device *dev, bool wait)
{
	struct living known = { .n = 0 };
	struct chunk **list;
	unsigned n = device_busy_chunks(dev, false, &list);

	for (unsigned k = 0; k < n; k++) {
		chunk_drop_dead(list[k], dev, &known, wait);
		chunk_put(list[k]);
	}
	free(list);
}

/* What clients hold that are gone is in nobody's way, of the chunk and of all that leaves with it. */
static void drop_dead(struct chunk *ch, struct cache_device *dev)
{
	struct living known = { .n = 0 };
	uint64_t first = ch->index / GAIA_EXTENT_CHUNKS * GAIA_EXTENT_CHUNKS;
	bool joined = false;

	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < ch->n_replicas; k++)
		joined |= ch->replica[k]->dev == dev && ch->replica[k]->extent;
	pthread_mutex_unlock(&ch->lock);
	chunk_drop_dead(ch, dev, &known, true);
	for (uint64_t i = first; i < first + GAIA_EXTENT_CHUNKS && joined; i++) {
		struct chunk *other = i == ch->index ? NULL : chunk_get(ch->file, i, false);

		if (!other)
			continue;
		chunk_drop_dead(other, dev, &known, true);
		chunk_put(other);
	}
}

/* Whether all of the unit's chunks are among these. */
static bool lists_unit(struct chunk *const *chunks, unsigned n, const struct replica *rep)
{
	unsigned found = 0;

	for (unsigned k = 0; k < n; k++)
		found += chunks[k]->index / GAIA_EXTENT_CHUNKS == rep->chunk->index / GAIA_EXTENT_CHUNKS;
	return found == unit_chunks(rep);
}

/* Claim the chunk's replicas that may go: -EBUSY if that is not all of them; *@leave: some are being evicted by others. @views: only these. */
static int drop_claim(struct chunk *ch, struct chunk *const *chunks, unsigned n, struct cache_device *dev, const struct mapping *m, bool views,
		      struct replica_list *claimed, bool *leave)
{
	struct replica_list list = { .n = 0 };
	int err = 0;

	pthread_mutex_lock(&dev->reserve);
	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < ch->n_replicas; k++) {
		struct replica *rep = ch->replica[k];

		if (rep->dev != dev || (m && rep->only != m->readers) || (views && !replica_is_view(rep)))
			continue;
		if (is_leaving(rep))
			*leave = true;
		else
			replica_list_add(&list, rep);
	}
	pthread_mutex_unlock(&ch->lock);
	for (unsigned k = 0; k < list.n; k++) {
		struct replica *rep = list.at[k];

		/* Of an extent all must be meant by whoever only advises. */
		if (m && rep->extent && !lists_unit(chunks, n, rep))
			continue;
		/* When it is claimed it is not handed to anybody any more. */
		if (!replica_unit(rep)->file_pinned && replica_claim(rep, others_map, m))
			replica_list_add(claimed, replica_unit(rep));
		else
			err = -EBUSY;
	}
	free(list.at);
	pthread_mutex_unlock(&dev->reserve);
	return err;
}

int replicas_drop(struct chunk *const *list, unsigned n, struct cache_device *dev, const struct mapping *m, bool views)
{
	struct chunk **left = xmalloc((n + 1) * sizeof(struct chunk *));
	unsigned n_list = n;
	int err, result = 0;

	memcpy(left, list, n * sizeof(struct chunk *));
	while (n > 0) {
		struct replica_list claimed = { .n = 0 };
		uint64_t before = device_count_left(dev);
		unsigned n_leaving = 0;

		for (unsigned k = 0; k < n; k++)
			drop_dead(left[k], dev);
		for (unsigned k = 0; k < n; k++) {
			bool leave = false;

			err = drop_claim(left[k], list, n_list, dev, m, views, &claimed, &leave);
			result = result ? result : err;
			if (leave && !err)
				left[n_leaving++] = left[k];
		}
		err = replicas_evict_all(&claimed);
		result = result ? result : err;
		n = n_leaving;
		/* If their eviction fails we have to try it. */
		if (n > 0)
			device_await_left(dev, before);
	}
	free(left);
	return result;
}

int replica_drop_shared(struct chunk *ch, struct cache_device *dev)
{
	struct replica_list claimed = { .n = 0 };
	struct replica *rep;

	drop_dead(ch, dev);
	pthread_mutex_lock(&dev->reserve);
	rep = find_staying(ch, dev, NULL);
	/* What has been pinned meanwhile stays. */
	if (rep && !replica_unit(rep)->file_pinned && replica_claim(rep, NULL, NULL))
		replica_list_add(&claimed, replica_unit(rep));
	pthread_mutex_unlock(&dev->reserve);
	if (claimed.n == 0)
		return -EBUSY;
	return replicas_evict_all(&claimed);
}

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

int chunk_fetch(struct chunk *ch, int (*fetch)(struct chunk *, unsigned, unsigned))
{
	int err;

	lock_all(ch);
	err = fetch(ch, 0, GAIA_CHUNK_PAGES);
	unlock_all(ch);
	chunk_account(ch);
	return err;
}

void replica_drop_dead(struct replica *rep, struct living *known)
{
	if (grants_drop_dead(rep, known) && !rep->only)
		(void)chunk_fetch(rep->chunk, pages_secure);
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
			dev_run_add(&zero, runs + GAIA_CHUNK_PAGES, mem, i, NULL, NULL);
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
	device_memory_end(dev, old->mem);
	pthread_mutex_lock(&dev->lock);
	stays = strand(dev, old->keepers, 1);
	dev->used -= GAIA_CHUNK - stays;
	dev->pinned -= GAIA_CHUNK - stays;
	dev->leaving -= GAIA_CHUNK;
	device_has_left(dev);
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
	int err = device_spare_alloc(rep->dev, &mem);

	if (err)
		return err;
	lock_all(ch);
	err = copy_current(rep, mem);
	if (!err)
		move_to(rep, mem, &old);
	unlock_all(ch);
	if (err) {
		device_memory_free(rep->dev, mem);
		return err;
	}
	count(CTR_device_renewed, 1);
	asked_note(&asked, rep, true);
	replica_unclaim(rep, false, false);
	ask(&asked);
	for (unsigned k = 0; k < asked.n; k++)
		if (asked.ask[k].err)
			keeper_add(&old.keepers, keeper_make(asked.grant[k]->mapping));
	old_memory_end(ch, &old);
	asked_end(&asked, MOVES);
	return 0;
}

void spoiled_secure(struct chunk *ch, struct cache_device *dev, const struct readers *only, bool copy)
{
	struct replica_list claimed = { .n = 0 };
	struct replica *rep;
	bool stays;

	/* Other mappings of a process that has ended are in nobody's way. */
	drop_dead(ch, dev);
	pthread_mutex_lock(&dev->reserve);
	pthread_mutex_lock(&ch->lock);
	rep = replica_find(ch, dev, only);
	stays = rep;
	if (rep && (!replica_is_spoiled(rep) || is_leaving(rep)))
		rep = NULL;
	pthread_mutex_unlock(&ch->lock);
	if (rep && replica_claim(rep, NULL, NULL))
		replica_list_add(&claimed, replica_unit(rep));
	pthread_mutex_unlock(&dev->reserve);
	stays &= claimed.n == 0;
	if (claimed.n > 0 && copy && !only && !rep->extent && !replica_renew(rep)) {
		free(claimed.at);
		return;
	}
	/* Who has the memory may store there while clients are asked for it. */
	for (unsigned k = 0; claimed.n > 0 && rep->extent && !only && k < GAIA_EXTENT_CHUNKS; k++)
		(void)chunk_fetch(rep->extent->member[k]->chunk, pages_secure);
	stays |= replicas_evict_all(&claimed) != 0;
	if (stays && !only)
		(void)chunk_fetch(ch, pages_secure);
}
