/* promises.c - see promises.h. */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/promises.h"

#include "base/counters.h"
#include "base/util.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/file_pins.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/view.h"

int promise_make(struct chunk *ch, struct cache_device *dev, struct readers *only, struct replica **out)
{
	struct replica *rep = replica_new(ch, dev, only);

	rep->pins = 1;
	pthread_mutex_lock(&ch->lock);
	if (!replica_fits(ch, only)) {
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
	replica_file_pinned(rep);
	pthread_mutex_unlock(&dev->lock);
	*out = rep;
	return 0;
}

/* Whether the chunk can have a replica for the device, and other devices' that come meanwhile. */
static bool has_place(struct chunk *ch, const struct readers *only)
{
	bool has;

	pthread_mutex_lock(&ch->lock);
	has = replica_fits(ch, only) && ch->n_replicas + 2 * (ch->file->cache->n_devices + 1) < CACHE_MAX_REPLICAS;
	pthread_mutex_unlock(&ch->lock);
	return has;
}

int promise_make_extent(struct cfile *f, uint64_t first, struct cache_device *dev, struct readers *only, struct replica *out[GAIA_EXTENT_CHUNKS])
{
	struct chunk *ch[GAIA_EXTENT_CHUNKS];
	struct extent *e;
	bool fits = true;

	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++) {
		ch[k] = chunk_get(f, first + k, true);
		fits &= has_place(ch[k], only);
	}
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS && !fits; k++)
		chunk_put(ch[k]);
	if (!fits)
		return -EMFILE;
	e = xcalloc(1, sizeof(*e));
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++) {
		out[k] = e->member[k] = replica_new(ch[k], dev, only);
		out[k]->extent = e;
	}
	e->member[0]->pins = GAIA_EXTENT_CHUNKS;
	/* Only now, when each has all of them. */
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++) {
		pthread_mutex_lock(&ch[k]->lock);
		track_make(ch[k]);
		replica_link(ch[k], out[k]);
		pthread_mutex_unlock(&ch[k]->lock);
	}
	pthread_mutex_lock(&dev->lock);
	TAILQ_INSERT_TAIL(&dev->busy, e->member[0], link);
	replica_file_pinned(e->member[0]);
	pthread_mutex_unlock(&dev->lock);
	return 0;
}

/* What is promised for later is for nobody else, though the device has the memory. */
static int keep(struct replica *rep, bool later)
{
	struct cache_device *dev = rep->dev;
	struct devmem *mem[GAIA_EXTENT_CHUNKS];
	unsigned n = unit_chunks(rep);
	uint64_t bytes = unit_bytes(rep);
	int err = device_usable(dev);
	bool full;

	if (err)
		return err;
	/* What was evicted for it may be stranded; or the device has memory beyond its budget. */
	pthread_mutex_lock(&dev->lock);
	full = (dev->n_stranded > 0 || dev->capacity < dev->dev->capacity) && dev->used + bytes > dev->capacity;
	full |= !later && dev->later > 0 && dev->used + dev->later + bytes > dev->capacity;
	pthread_mutex_unlock(&dev->lock);
	err = full && !atomic_load(&dev->gone) ? -ENOMEM : device_memory_alloc_many(dev, mem, n);
	if (!err && replica_is_view(rep)) {
		err = view_begin(rep, mem[0]);
		if (err)
			device_memory_end(dev, mem[0]);
	}
	if (err)
		return err;
	pthread_mutex_lock(&dev->lock);
	/* Once it is off, nothing comes to it: not after it was found to be empty either. */
	if (device_is_off(dev)) {
		err = -ENODEV;
	} else {
		for (unsigned k = 0; k < n; k++)
			unit_member(rep, k)->mem = mem[k];
		dev->used += bytes;
		dev->promised -= bytes;
		pthread_cond_broadcast(&dev->changed);
	}
	pthread_mutex_unlock(&dev->lock);
	for (unsigned k = 0; k < n && err; k++)
		device_memory_end(dev, mem[k]);
	count(CTR_device_extents, !err && mem[0]->joined);
	return err;
}

int promise_keep(struct replica *rep)
{
	return keep(rep, false);
}

void promises_later(struct cache_device *dev, struct replica **reps, uint64_t n, atomic_bool *lacks)
{
	pthread_mutex_lock(&dev->lock);
	for (uint64_t k = 0; k < n; k++) {
		reps[k]->promise = PROMISE_LATER;
		reps[k]->lacks = lacks;
		dev->later += unit_bytes(reps[k]);
	}
	pthread_cond_broadcast(&dev->changed);
	pthread_mutex_unlock(&dev->lock);
}

/* It is not for later any more. dev->lock is held. */
static void not_later(struct replica *rep)
{
	rep->promise = PROMISE_OWN;
	rep->lacks = NULL;
	rep->dev->later -= unit_bytes(rep);
}

/* One that is for later. dev->lock is held, but dropped meanwhile. */
static int keep_later(struct replica *rep)
{
	struct cache_device *dev = rep->dev;
	int err;

	rep->promise = PROMISE_TAKEN;
	pthread_mutex_unlock(&dev->lock);
	err = keep(rep, true);
	pthread_mutex_lock(&dev->lock);
	if (err)
		rep->promise = PROMISE_LATER;
	else
		not_later(rep);
	pthread_cond_broadcast(&dev->changed);
	return err;
}

static void await_taken(struct replica *rep)
{
	while (rep->promise == PROMISE_TAKEN)
		pthread_cond_wait(&rep->dev->changed, &rep->dev->lock);
}

int promises_keep(struct replica **reps, uint64_t *kept, uint64_t until)
{
	int err = 0;

	for (; *kept < until && !err; *kept += !err) {
		struct replica *rep = replica_unit(reps[*kept]);

		pthread_mutex_lock(&rep->dev->lock);
		await_taken(rep);
		if (!rep->mem)
			err = keep_later(rep);
		pthread_mutex_unlock(&rep->dev->lock);
	}
	return err;
}

bool promise_await(struct replica *one, bool *may_keep)
{
	struct replica *rep = replica_unit(one);
	struct cache_device *dev = rep->dev;
	bool there;

	pthread_mutex_lock(&dev->lock);
	while (!rep->mem && !rep->failed) {
		if (!*may_keep || rep->promise != PROMISE_LATER) {
			pthread_cond_wait(&dev->changed, &dev->lock);
			continue;
		}
		*may_keep = !keep_later(rep);
		/* It may be long before its turn comes: so who has promised it should know. */
		if (!*may_keep && rep->promise == PROMISE_LATER)
			atomic_store(rep->lacks, true);
	}
	there = !rep->failed;
	pthread_mutex_unlock(&dev->lock);
	return there;
}

static void promise_break(struct replica *rep)
{
	struct cache_device *dev = rep->dev;

	pthread_mutex_lock(&dev->lock);
	rep->failed = true;
	replica_file_unpinned(rep);
	TAILQ_REMOVE(&dev->busy, rep, link);
	dev->pinned -= unit_bytes(rep);
	dev->promised -= unit_bytes(rep);
	pthread_cond_broadcast(&dev->changed);
	pthread_mutex_unlock(&dev->lock);
}

void promises_break(struct cache_device *dev, struct replica **reps, uint64_t n)
{
	pthread_mutex_lock(&dev->lock);
	for (uint64_t k = 0; k < n; k++) {
		struct replica *unit = replica_unit(reps[k]);

		await_taken(unit);
		if (unit->promise == PROMISE_LATER)
			not_later(unit);
	}
	pthread_mutex_unlock(&dev->lock);
	/* From now on nobody else keeps one. A thread that decides meanwhile has either joined a promise, or sees that it is broken. */
	pthread_mutex_lock(&dev->reserve);
	for (uint64_t k = 0; k < n; k++)
		if (!reps[k]->mem && (k == 0 || replica_unit(reps[k]) != replica_unit(reps[k - 1])))
			promise_break(replica_unit(reps[k]));
	pthread_mutex_unlock(&dev->reserve);
}
