/*
 * replica.c - copies of chunks on devices: pins, device memory, life.
 *
 * A replica is evictable when nothing pins it. One that is promised has no memory yet (promises.c).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/replica.h"

#include "base/counters.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/uses.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/file_pins.h"
#include "pagecache/grant.h"
#include "pagecache/readahead.h"
#include "pagecache/ready.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/stranded.h"
#include "pagecache/unused.h"
#include "pagecache/victim.h"
#include "pagecache/view.h"

/* ---- pins ---- */

/* The next ones with dev->lock held. The unit is idle: it leaves its list, or comes to the end of the one where it belongs. */
static struct replica_queue *idle_list(struct replica *rep)
{
	struct cache_device *dev = rep->dev;

	if (rep->file_pinned)
		return &dev->idle_pinned;
	return unit_ready(rep) > 0 ? &dev->idle_ready : rep->ahead ? &dev->unused : &dev->idle;
}

void replica_idle_remove(struct replica *rep)
{
	TAILQ_REMOVE(idle_list(rep), rep, link);
	rep->dev->n_idle_pinned -= rep->file_pinned ? unit_chunks(rep) : 0;
	rep->dev->n_idle_ready -= unit_ready(rep) > 0 && !rep->file_pinned ? unit_chunks(rep) : 0;
}

void replica_idle_add(struct replica *rep)
{
	rep->idled = ++rep->dev->n_idled;
	TAILQ_INSERT_TAIL(idle_list(rep), rep, link);
	rep->dev->n_idle_pinned += rep->file_pinned ? unit_chunks(rep) : 0;
	rep->dev->n_idle_ready += unit_ready(rep) > 0 && !rep->file_pinned ? unit_chunks(rep) : 0;
}

static void make_busy(struct replica *rep)
{
	replica_idle_remove(rep);
	TAILQ_INSERT_TAIL(&rep->dev->busy, rep, link);
	rep->dev->pinned += unit_bytes(rep);
}

static void make_idle(struct replica *rep)
{
	TAILQ_REMOVE(&rep->dev->busy, rep, link);
	rep->passed = 0;
	replica_idle_add(rep);
	rep->dev->pinned -= unit_bytes(rep);
}

bool replica_leaves(const struct replica *rep)
{
	const struct replica *unit = replica_unit(rep);

	return unit->evicting || unit->failed;
}

bool replica_pin_locked(struct replica *rep)
{
	struct replica *unit = replica_unit(rep);

	if (replica_leaves(unit))
		return false;
	if (unit->pins++ == 0) {
		make_busy(unit);
		readahead_ended(unit, true);
	}
	return true;
}

bool replica_pin(struct replica *rep)
{
	bool pinned;

	pthread_mutex_lock(&rep->dev->lock);
	pinned = replica_pin_locked(rep);
	pthread_mutex_unlock(&rep->dev->lock);
	return pinned;
}

bool replica_pin_again(struct replica *rep)
{
	bool pinned;

	pthread_mutex_lock(&rep->dev->lock);
	pinned = replica_unit(rep)->pins > 0 && replica_pin_locked(rep);
	pthread_mutex_unlock(&rep->dev->lock);
	return pinned;
}

void device_has_left(struct cache_device *dev)
{
	dev->n_left++;
	pthread_cond_broadcast(&dev->changed);
}

static void promise_end(struct replica *rep);

void replica_unpin(struct replica *rep)
{
	struct replica *unit = replica_unit(rep);
	struct cache_device *dev = rep->dev;
	bool last, failed;

	pthread_mutex_lock(&dev->lock);
	bug_on(unit->pins == 0 || unit->evicting);
	last = --unit->pins == 0;
	failed = unit->failed;
	if (last && !failed) {
		make_idle(unit);
		if (unit->only)
			device_has_left(dev); /* readers_drop_replicas() may wait for a thread that only looked at it */
	}
	pthread_mutex_unlock(&dev->lock);
	if (last && failed)
		promise_end(unit);
}

bool replica_has_memory(const struct replica *rep)
{
	bool has;

	pthread_mutex_lock(&rep->dev->lock);
	has = rep->mem;
	pthread_mutex_unlock(&rep->dev->lock);
	return has;
}

void replicas_unpin(struct replica **reps, uint64_t n)
{
	for (uint64_t k = 0; k < n; k++) {
		bool busy;

		pthread_mutex_lock(&reps[k]->chunk->lock);
		busy = reps[k]->chunk->n_locked > 0;
		pthread_mutex_unlock(&reps[k]->chunk->lock);
		if (busy)
			continue;
		replica_unpin(reps[k]);
		reps[k] = NULL;
	}
	for (uint64_t k = 0; k < n; k++)
		if (reps[k])
			replica_unpin(reps[k]);
}

void replica_ready_more(struct replica *rep)
{
	rep->chunk->n_ready++;
	pthread_mutex_lock(&rep->dev->lock);
	bug_on(replica_unit(rep)->pins == 0);
	rep->n_ready++;
	if (rep->extent)
		rep->extent->n_ready++;
	pthread_mutex_unlock(&rep->dev->lock);
}

/* dev->lock is held. */
static void one_less(struct replica *rep)
{
	rep->n_ready--;
	if (rep->extent)
		rep->extent->n_ready--;
}

void replica_ready_less(struct replica *rep)
{
	struct replica *unit = replica_unit(rep);

	rep->chunk->n_ready--;
	pthread_mutex_lock(&rep->dev->lock);
	if (unit->pins == 0 && unit_ready(unit) == 1) {
		replica_idle_remove(unit);
		one_less(rep);
		replica_idle_add(unit);
	} else {
		one_less(rep);
	}
	pthread_mutex_unlock(&rep->dev->lock);
}

void replica_claim_idle(struct replica *rep)
{
	bug_on(rep->extent && rep != replica_unit(rep));
	bug_on(unit_ready(rep) > 0);
	make_busy(rep);
	rep->pins = 1;
	rep->evicting = true;
	replica_file_unpinned(rep);
	rep->dev->leaving += unit_bytes(rep);
}

static bool claim_unit(struct replica *unit)
{
	bool idle;

	pthread_mutex_lock(&unit->dev->lock);
	idle = unit->pins == 0 && !replica_leaves(unit) && unit_ready(unit) == 0;
	if (idle)
		replica_claim_idle(unit);
	pthread_mutex_unlock(&unit->dev->lock);
	return idle;
}

bool replica_claim(struct replica *rep, bool (*unless)(const struct replica *rep, const void *arg), const void *arg)
{
	struct replica *unit = replica_unit(rep), *member;
	bool claimed = false, stays = false;

	for (unsigned k = 0; k < unit_chunks(unit) && !stays; k++) {
		member = unit_member(unit, k);
		pthread_mutex_lock(&member->chunk->lock);
		stays = unless && unless(member, arg);
		if (!stays)
			chunk_unready(member->chunk);
		/* With the lock of the last one: one by itself cannot become ready before it is claimed. */
		if (!stays && k + 1 == unit_chunks(unit))
			claimed = claim_unit(unit);
		pthread_mutex_unlock(&member->chunk->lock);
	}
	return claimed;
}

void replica_unclaim(struct replica *rep, bool stuck, bool next)
{
	struct cache_device *dev = rep->dev;

	pthread_mutex_lock(&dev->lock);
	rep->evicting = false;
	rep->pins = 0;
	replica_file_pinned(rep);
	if (stuck)
		rep->stuck = ++dev->n_stuck;
	make_idle(rep);
	if (next) {
		TAILQ_REMOVE(idle_list(rep), rep, link);
		TAILQ_INSERT_HEAD(idle_list(rep), rep, link);
		rep->idled = 0;
	}
	if (rep->late)
		dev->late -= unit_bytes(rep);
	rep->late = false;
	dev->leaving -= unit_bytes(rep);
	device_has_left(dev);
	pthread_mutex_unlock(&dev->lock);
}

void replica_set_late(struct replica *rep)
{
	struct replica *unit = replica_unit(rep);

	pthread_mutex_lock(&rep->dev->lock);
	if (!unit->late)
		rep->dev->late += unit_bytes(unit);
	unit->late = true;
	pthread_mutex_unlock(&rep->dev->lock);
}

/* One more, or less, looks at grants of the replica: whether there are none any more, at the grants of the unit, and that is late. */
static bool lookers_add(struct replica *rep, int n)
{
	bool over;

	rep->lookers += (unsigned)n;
	if (!rep->extent)
		return rep->lookers == 0 && rep->late;
	pthread_mutex_lock(&rep->dev->lock);
	rep->extent->lookers += (unsigned)n;
	over = rep->extent->lookers == 0 && replica_unit(rep)->late;
	pthread_mutex_unlock(&rep->dev->lock);
	return over;
}

void grant_look(struct grant *g)
{
	g->lookers++;
	(void)lookers_add(g->replica, 1);
}

void grant_looked(struct grant *g)
{
	struct replica *rep = g->replica;

	g->lookers--;
	pthread_cond_broadcast(&rep->chunk->unlocked);
	if (lookers_add(rep, -1))
		replica_unclaim(replica_unit(rep), false, true);
}

uint64_t device_count_left(struct cache_device *dev)
{
	uint64_t n;

	pthread_mutex_lock(&dev->lock);
	n = dev->n_left;
	pthread_mutex_unlock(&dev->lock);
	return n;
}

void device_await_left_until(struct cache_device *dev, uint64_t before, uint64_t until_ns)
{
	struct timespec until = { .tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000 };
	struct uses *waits;
	int err = 0;

	thread_waits();
	waits = wait_begin(WAIT_room);
	pthread_mutex_lock(&dev->lock);
	while (dev->n_left == before && !err)
		err = pthread_cond_timedwait(&dev->changed, &dev->lock, &until);
	pthread_mutex_unlock(&dev->lock);
	wait_end(waits, WAIT_room);
}

void device_await_left(struct cache_device *dev, uint64_t before)
{
	device_await_left_until(dev, before, INT64_MAX);
}

void replica_list_add(struct replica_list *list, struct replica *rep)
{
	if ((list->n & (list->n - 1)) == 0)
		list->at = xrealloc(list->at, MAX(2 * list->n, 1u) * sizeof(struct replica *));
	list->at[list->n++] = rep;
}

uint64_t units_chunks(const struct replica_list *list)
{
	uint64_t chunks = 0;

	for (unsigned k = 0; k < list->n; k++)
		chunks += unit_chunks(list->at[k]);
	return chunks;
}

/* ---- device memory ---- */

void device_note_gone(struct cache_device *dev, int err)
{
	if (err == -ENODEV && !atomic_exchange(&dev->gone, true))
		log_error("device %s is gone; pages that were released on it and not fetched yet are "
			  "lost: reading and syncing them fails until they are written over",
			  dev->dev->name);
}

int cache_device_run(struct cache_device *dev, struct dev_op *op)
{
	int err = -ENODEV;

	if (!atomic_load(&dev->gone)) {
		struct uses *waits = wait_begin(WAIT_device);

		err = device_run(dev->dev, op);
		wait_end(waits, WAIT_device);
	}
	device_note_gone(dev, err);
	return err;
}

int cache_device_begin(struct cache_device *dev, struct dev_op *op, struct device_wait *w)
{
	return cache_device_begin_then(dev, op, w, NULL, NULL);
}

int cache_device_begin_then(struct cache_device *dev, struct dev_op *op, struct device_wait *w, void (*then)(void *arg, int err), void *arg)
{
	int err = -ENODEV;

	if (!atomic_load(&dev->gone))
		err = device_begin_then(dev->dev, op, w, then, arg);
	device_note_gone(dev, err);
	return err;
}

int cache_device_end(struct cache_device *dev, struct device_wait *w)
{
	struct uses *waits = wait_begin(WAIT_device);
	int err = device_end(w);

	wait_end(waits, WAIT_device);
	device_note_gone(dev, err);
	return err;
}

/* A device whose budget was made smaller has more memory than that: so parked pages give way before the budget is exceeded. */
static void keep_to_budget(struct cache_device *dev, uint64_t more)
{
	uint64_t parked, used;

	while (dev->capacity < dev->dev->capacity && (parked = victim_bytes(dev)) > 0) {
		pthread_mutex_lock(&dev->lock);
		used = dev->used;
		pthread_mutex_unlock(&dev->lock);
		if (used + parked + more <= dev->capacity || !victim_give_up(dev))
			break;
	}
}

int device_memory_alloc_many(struct cache_device *dev, struct devmem **out, unsigned n)
{
	const struct device_ops *ops = dev->dev->ops;
	int err = -ENODEV;

	keep_to_budget(dev, n * (uint64_t)GAIA_CHUNK);

	if (dev->home)
		home_reserve(dev->home, GAIA_CHUNK_PAGES);
	while (!atomic_load(&dev->gone)) {
		err = n == 1 ? ops->alloc(dev->dev, out) : ops->alloc_extent(dev->dev, out);
		if (err != -ENOMEM || !victim_give_up(dev))
			break;
	}
	device_note_gone(dev, err);
	if (err && dev->home)
		frames_unreserve(&dev->home->frames, GAIA_CHUNK_PAGES);
	return err;
}

int device_memory_alloc(struct cache_device *dev, struct devmem **out)
{
	return device_memory_alloc_many(dev, out, 1);
}

void device_memory_end(struct cache_device *dev, struct devmem *mem)
{
	dev->dev->ops->free(dev->dev, mem);
	if (dev->home)
		frames_unreserve(&dev->home->frames, GAIA_CHUNK_PAGES);
}

bool device_take_spare(struct cache_device *dev)
{
	bool room = dev->used + dev->promised + GAIA_CHUNK <= dev->capacity;

	if (room)
		dev->used += GAIA_CHUNK;
	return room;
}

int device_spare_alloc(struct cache_device *dev, struct devmem **out)
{
	bool room;
	int err;

	do {
		pthread_mutex_lock(&dev->lock);
		room = device_take_spare(dev);
		pthread_mutex_unlock(&dev->lock);
	} while (!room && unused_evict(dev, NULL));
	if (!room)
		return -ENOMEM;
	err = device_memory_alloc(dev, out);
	if (!err)
		return 0;
	pthread_mutex_lock(&dev->lock);
	dev->used -= GAIA_CHUNK;
	pthread_mutex_unlock(&dev->lock);
	return err;
}

void device_memory_free(struct cache_device *dev, struct devmem *mem)
{
	device_memory_end(dev, mem);
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
	if (mem || device_spare_alloc(rep->dev, &made))
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
		device_memory_free(rep->dev, made);
	return mem;
}

void replica_shadow_trim(struct replica *rep)
{
	if (rep->n_snapped > 0 || rep->n_shadow_users > 0 || !rep->shadow)
		return;
	device_memory_free(rep->dev, rep->shadow);
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

void replica_link(struct chunk *ch, struct replica *rep)
{
	unsigned k = ch->n_replicas++;

	bug_on(k >= CACHE_MAX_REPLICAS);
	ch->replica = xrealloc(ch->replica, ch->n_replicas * sizeof(struct replica *));
	for (; k > 0 && ch->replica[k - 1]->dev->number > rep->dev->number; k--)
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

struct replica *replica_find(struct chunk *ch, const struct cache_device *dev,
				    const struct readers *only)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (ch->replica[k]->dev == dev && ch->replica[k]->only == only)
			return ch->replica[k];
	return NULL;
}

struct replica *replica_new(struct chunk *ch, struct cache_device *dev, struct readers *only)
{
	struct replica *rep = xcalloc(1, sizeof(*rep));

	rep->chunk = ch;
	rep->dev = dev;
	rep->only = only;
	LIST_INIT(&rep->grants);
	replica_made(rep);
	return rep;
}

bool replica_fits(const struct chunk *ch, const struct readers *only)
{
	struct cache *c = ch->file->cache;
	unsigned others = only && only != view_readers(c) ? c->n_devices + (c->local != NULL) : 0;

	return ch->n_replicas + others < CACHE_MAX_REPLICAS;
}

/* The unit's memory has been freed: all of it, with shadows, was @bytes. */
static void unit_ends(struct replica *unit, struct keeper **keepers, uint64_t bytes)
{
	struct cache_device *dev = unit->dev;
	uint64_t stays = 0;

	/* At once, for threads that count on what leaves. */
	pthread_mutex_lock(&dev->lock);
	TAILQ_REMOVE(&dev->busy, unit, link);
	readahead_ended(unit, false);
	/* Who keeps memory of an extent keeps all. */
	if (unit->extent && unit->extent->was_joined)
		stays = strand(dev, keepers_join(keepers, GAIA_EXTENT_CHUNKS), GAIA_EXTENT_CHUNKS);
	else
		for (unsigned k = 0; k < unit_chunks(unit); k++)
			stays += strand(dev, keepers[k], 1);
	dev->used -= bytes - stays;
	dev->pinned -= unit_bytes(unit) - stays;
	dev->leaving -= unit_bytes(unit);
	device_has_left(dev);
	pthread_mutex_unlock(&dev->lock);
	count(CTR_device_evicted, unit_chunks(unit));
}

static void memory_end(struct replica *rep)
{
	uint64_t bytes = rep->shadow ? 2 * GAIA_CHUNK : GAIA_CHUNK;
	struct extent *e = rep->extent;

	view_end(rep);
	if (e)
		e->was_joined = rep->mem->joined;
	device_memory_end(rep->dev, rep->mem);
	if (rep->shadow)
		device_memory_end(rep->dev, rep->shadow);
	if (!e) {
		unit_ends(rep, &rep->keepers, bytes);
		return;
	}
	e->keepers[e->n_ended++] = rep->keepers;
	e->bytes_ended += bytes;
	if (e->n_ended == GAIA_EXTENT_CHUNKS)
		unit_ends(rep, e->keepers, e->bytes_ended);
}

void replica_destroy(struct replica *rep)
{
	struct chunk *ch = rep->chunk;
	struct cache_device *dev = rep->dev;
	struct grant *g;

	pthread_mutex_lock(&ch->lock);
	bug_on(rep->lent && ch->lent);
	while ((g = LIST_FIRST(&rep->grants))) {
		bug_on(g->pinned || g->ready || g->delivered || g->offered || g->in_delivery || g->lookers);
		LIST_REMOVE(g, of_replica);
		pthread_mutex_lock(&g->mapping->lock);
		mapping_grant_ends(g->mapping, g);
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

	if (!replica_unit(rep)->failed) {
		memory_end(rep);
	} else {
		pthread_mutex_lock(&dev->lock);
		device_has_left(dev);
		pthread_mutex_unlock(&dev->lock);
	}
	if (rep == replica_unit(rep))
		free(rep->extent);
	free(rep);
	chunk_account(ch);
	chunk_put(ch);
}

/* Nobody pins the replica of a broken promise any more: it goes as replicas do, under the locks of all pages. */
static void promise_end(struct replica *unit)
{
	struct chunk *first = chunk_ref(unit->chunk);
	struct cfile *f = first->file;

	pthread_rwlock_rdlock(&f->range);
	for (unsigned k = unit_chunks(unit); k-- > 0;) {
		struct replica *rep = unit_member(unit, k);
		struct chunk *ch = rep->chunk;

		pthread_mutex_lock(&ch->lock);
		pages_lock(ch, 0, GAIA_CHUNK_PAGES);
		pthread_mutex_unlock(&ch->lock);
		replica_destroy(rep);
	}
	pthread_rwlock_unlock(&f->range);
	chunk_put(first);
}
