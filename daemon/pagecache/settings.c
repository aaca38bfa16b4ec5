/* settings.c - what can be changed of a cache while it is at work. */
#include <errno.h>

#include "pagecache/cache.h"

#include "base/util.h"
#include "pagecache/devices.h"
#include "pagecache/frames.h"
#include "pagecache/root.h"

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
	for (unsigned i = 0; i < c->n_devices; i++) {
		struct cache_device *dev = &c->dev[i];

		dev->each_percent = device_percent ? device_percent : CACHE_DEVICE_PERCENT;
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
	if (*beyond == 0)
		return 0;
	atomic_store(&c->shrinking, true);
	pthread_mutex_lock(&c->lock);
	c->n_shrunk++;
	pthread_cond_signal(&c->trimmer_cond);
	pthread_mutex_unlock(&c->lock);
	return 0;
}
