/* settings.c - what can be changed of a cache while it is at work. */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/settings.h"

#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/evict.h"
#include "pagecache/file_pins.h"
#include "pagecache/frames.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/victim.h"

#define USUAL_AGE_MS 5000u

void cache_set_ages(struct cache *c, uint64_t writeback_age_ms, uint64_t device_age_ms)
{
	uint64_t age = (writeback_age_ms ? writeback_age_ms : USUAL_AGE_MS) * 1000000ull;

	pthread_mutex_lock(&c->lock);
	c->age_ns = age;
	c->device_age_ns = device_age_ms ? device_age_ms * 1000000ull : age;
	/* They sleep by the age. */
	pthread_cond_signal(&c->flusher_cond);
	pthread_cond_signal(&c->fetcher_cond);
	pthread_mutex_unlock(&c->lock);
}

void cache_set_shares(struct cache *c, unsigned device_percent, unsigned files_percent, unsigned files_user_percent)
{
	c->device_percent = device_percent ? device_percent : CACHE_DEVICE_PERCENT;
	c->files_percent = files_percent;
	c->files_user_percent = files_user_percent;
	for (unsigned i = 0; i < c->n_devices; i++) {
		struct cache_device *dev = &c->dev[i];

		dev->each_percent = c->device_percent;
		dev->files_percent = files_percent;
		dev->files_user_percent = files_user_percent;
	}
}

/* The decision what an acquire gets reads it several times, with either lock held (18). */
static void set_capacity(struct cache_device *dev, uint64_t bytes)
{
	pthread_mutex_lock(&dev->reserve);
	pthread_mutex_lock(&dev->lock);
	dev->capacity = MIN(ROUND_DOWN(bytes, GAIA_CHUNK), dev->dev->capacity);
	pthread_mutex_unlock(&dev->lock);
	pthread_mutex_unlock(&dev->reserve);
}

/* The trimmer is to look. */
static void call_trimmer(struct cache *c)
{
	pthread_mutex_lock(&c->lock);
	c->n_shrunk++;
	pthread_cond_signal(&c->trimmer_cond);
	pthread_mutex_unlock(&c->lock);
}

/* What it uses beyond its budget, with pages that are parked there. */
static uint64_t beyond_budget(struct cache_device *dev)
{
	uint64_t parked = victim_bytes(dev), used;

	pthread_mutex_lock(&dev->lock);
	used = dev->used + parked - MIN(dev->used + parked, dev->capacity);
	pthread_mutex_unlock(&dev->lock);
	return used;
}

int cache_set_home(struct cache *c, uint64_t home_bytes, uint64_t local_bytes, uint64_t *beyond)
{
	uint64_t used, budget = home_bytes / GAIA_PAGE;
	int err = home_bytes < CACHE_HOME_MIN || home_bytes > CACHE_HOME_MAX ? -ERANGE : frames_set_budget(&c->frames, home_bytes);

	if (err)
		return err;
	if (c->local)
		set_capacity(c->local, local_bytes);
	used = atomic_load(&c->frames.used);
	*beyond = (used - MIN(used, budget)) * GAIA_PAGE;
	if (c->local && beyond_budget(c->local) > 0)
		atomic_store(&c->local->shrinking, true);
	else if (*beyond == 0)
		return 0;
	if (*beyond > 0)
		atomic_store(&c->shrinking, true);
	call_trimmer(c);
	return 0;
}

/* Begin to evict what is beyond the budget: so much. */
static uint64_t device_leaves(struct cache *c, struct cache_device *dev)
{
	uint64_t beyond = beyond_budget(dev);

	if (beyond == 0)
		return 0;
	atomic_store(&dev->shrinking, true);
	call_trimmer(c);
	return beyond;
}

int cache_set_device(struct cache *c, unsigned device, uint64_t bytes, uint64_t *beyond)
{
	struct cache_device *dev = cache_device_find(c, device);

	if (bytes < GAIA_CHUNK || bytes > dev->dev->capacity)
		return -ERANGE;
	set_capacity(dev, bytes);
	*beyond = device_leaves(c, dev);
	return 0;
}

int cache_device_off(struct cache *c, unsigned device, uint64_t *left)
{
	struct cache_device *dev = cache_device_find(c, device);
	int err = 0;

	pthread_mutex_lock(&dev->reserve);
	pthread_mutex_lock(&dev->lock);
	if (file_pins_of_owners(dev))
		err = -EBUSY;
	else
		dev->capacity = 0;
	*left = dev->promised;
	pthread_mutex_unlock(&dev->lock);
	pthread_mutex_unlock(&dev->reserve);
	if (err)
		return err;
	*left += device_leaves(c, dev);
	return 0;
}

void cache_device_unpin(struct cache *c, unsigned device)
{
	file_pins_end_on(cache_device_find(c, device));
	call_trimmer(c);
}

/* ---- what is beyond leaves ---- */

#define AT_ONCE 64u /* chunks */

/* Those that nobody has used for longest go first; what is ready only if there is nothing else. dev->reserve is held. */
static void claim(struct cache_device *dev, uint64_t n, struct replica_list *claimed)
{
	struct replica **ready, *rep;
	uint64_t n_ready;

	for (int round = 0; round < 2; round++) {
		pthread_mutex_lock(&dev->lock);
		while (units_chunks(claimed) < n && ((rep = TAILQ_FIRST(&dev->unused)) || (rep = TAILQ_FIRST(&dev->idle)))) {
			replica_claim_idle(rep);
			replica_list_add(claimed, rep);
		}
		pthread_mutex_unlock(&dev->lock);
		if (round > 0 || units_chunks(claimed) >= n)
			return;
		n_ready = device_idle_ready(dev, n - units_chunks(claimed), &ready);
		for (uint64_t k = 0; k < n_ready; k++)
			if (!unit_is_held_ready(ready[k]))
				unit_end_ready(ready[k]);
		free(ready);
	}
}

/* False: nothing more can leave now. */
static bool device_shrink(struct cache_device *dev)
{
	struct replica_list claimed = { .n = 0 };
	uint64_t beyond = beyond_budget(dev);

	if (beyond == 0) {
		atomic_store(&dev->shrinking, false);
		/* It may have been made smaller meanwhile. */
		if (beyond_budget(dev) > 0)
			atomic_store(&dev->shrinking, true);
		return false;
	}
	if (victim_bytes(dev) > 0 && victim_give_up(dev))
		return true;
	if (pthread_mutex_trylock(&dev->reserve))
		return false;
	claim(dev, MIN(beyond / GAIA_CHUNK, (uint64_t)AT_ONCE), &claimed);
	pthread_mutex_unlock(&dev->reserve);
	return claimed.n > 0 && !replicas_evict_all(&claimed);
}

void settings_trim(struct cache *c)
{
	if (atomic_load(&c->shrinking))
		home_shrink(c);
	for (unsigned i = 0; i < c->n_devices; i++)
		while (!c->stopping && atomic_load(&c->dev[i].shrinking) && device_shrink(&c->dev[i]))
			;
}
