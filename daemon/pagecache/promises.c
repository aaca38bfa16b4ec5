/* promises.c - see promises.h. */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/promises.h"

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

/* What is promised for later is for nobody else, though the device has the memory. */
static int keep(struct replica *rep, bool later)
{
	struct cache_device *dev = rep->dev;
	struct devmem *mem;
	int err = device_usable(dev);
	bool full;

	if (err)
		return err;
	/* What was evicted for it may be stranded; or the device has memory beyond its budget. */
	pthread_mutex_lock(&dev->lock);
	full = (dev->n_stranded > 0 || dev->capacity < dev->dev->capacity) && dev->used + GAIA_CHUNK > dev->capacity;
	full |= !later && dev->later > 0 && dev->used + dev->later + GAIA_CHUNK > dev->capacity;
	pthread_mutex_unlock(&dev->lock);
	err = full && !atomic_load(&dev->gone) ? -ENOMEM : device_memory_alloc(dev, &mem);
	if (!err && replica_is_view(rep)) {
		err = view_begin(rep, mem);
		if (err)
			device_memory_end(dev, mem);
	}
	if (err)
		return err;
	pthread_mutex_lock(&dev->lock);
	/* Once it is off, nothing comes to it: not after it was found to be empty either. */
	if (device_is_off(dev)) {
		err = -ENODEV;
	} else {
		rep->mem = mem;
		dev->used += GAIA_CHUNK;
		dev->promised -= GAIA_CHUNK;
		pthread_cond_broadcast(&dev->changed);
	}
	pthread_mutex_unlock(&dev->lock);
	if (err)
		device_memory_end(dev, mem);
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
	}
	dev->later += n * GAIA_CHUNK;
	pthread_cond_broadcast(&dev->changed);
	pthread_mutex_unlock(&dev->lock);
}

/* It is not for later any more. dev->lock is held. */
static void not_later(struct replica *rep)
{
	rep->promise = PROMISE_OWN;
	rep->lacks = NULL;
	rep->dev->later -= GAIA_CHUNK;
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
		struct replica *rep = reps[*kept];

		pthread_mutex_lock(&rep->dev->lock);
		await_taken(rep);
		if (!rep->mem)
			err = keep_later(rep);
		pthread_mutex_unlock(&rep->dev->lock);
	}
	return err;
}

bool promise_await(struct replica *rep, bool *may_keep)
{
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
	dev->pinned -= GAIA_CHUNK;
	dev->promised -= GAIA_CHUNK;
	pthread_cond_broadcast(&dev->changed);
	pthread_mutex_unlock(&dev->lock);
}

void promises_break(struct cache_device *dev, struct replica **reps, uint64_t n)
{
	pthread_mutex_lock(&dev->lock);
	for (uint64_t k = 0; k < n; k++) {
		await_taken(reps[k]);
		if (reps[k]->promise == PROMISE_LATER)
			not_later(reps[k]);
	}
	pthread_mutex_unlock(&dev->lock);
	/* From now on nobody else keeps one. A thread that decides meanwhile has either joined a promise, or sees that it is broken. */
	pthread_mutex_lock(&dev->reserve);
	for (uint64_t k = 0; k < n; k++)
		if (!reps[k]->mem)
			promise_break(reps[k]);
	pthread_mutex_unlock(&dev->reserve);
}
