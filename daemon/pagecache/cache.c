/* cache.c - creating and ending the cache. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/cache.h"

#include "base/thread.h"
#include "base/util.h"
#include "pagecache/chunk.h"
#include "pagecache/coherence.h"
#include "pagecache/dedup.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/file_pins.h"
#include "pagecache/frames.h"
#include "pagecache/peer.h"
#include "pagecache/readahead.h"
#include "pagecache/readcost.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/stranded.h"
#include "pagecache/users.h"
#include "pagecache/victim.h"
#include "pagecache/writeback.h"

#define EVICTORS 32u	   /* threads that wait for clients, one for each user; */
#define EVICTORS_OWNERS 4u /* so many of these for owners only */

/* Make the entry after the last one of the table, which nobody sees yet. */
static struct cache_device *device_init(struct cache *c, struct device *device, unsigned number)
{
	struct cache_device *dev = &c->dev[c->n_devices];

	dev->dev = device;
	dev->home = number == GAIA_HOST ? c : NULL;
	dev->index = c->n_devices;
	dev->number = number;
	dev->capacity = device->capacity;
	dev->each_percent = c->device_percent;
	dev->files_percent = c->files_percent;
	dev->files_user_percent = c->files_user_percent;
	read_cost_init(&dev->read_cost, false);
	TAILQ_INIT(&dev->idle);
	TAILQ_INIT(&dev->unused);
	TAILQ_INIT(&dev->idle_ready);
	TAILQ_INIT(&dev->idle_pinned);
	TAILQ_INIT(&dev->busy);
	pthread_mutex_init(&dev->reserve, NULL);
	pthread_mutex_init(&dev->lock, NULL);
	cond_init_monotonic(&dev->changed);
	peers_find(c, dev);
	return dev;
}

static void device_fini(struct cache_device *dev)
{
	pthread_mutex_destroy(&dev->reserve);
	pthread_mutex_destroy(&dev->lock);
	pthread_cond_destroy(&dev->changed);
}

static int devices_init(struct cache *c, const struct cache_config *config)
{
	c->dev = calloc(CACHE_MAX_DEVICES + 1, sizeof(*c->dev));
	if (!c->dev)
		return -ENOMEM;
	c->device_percent = config->device_percent ? config->device_percent : CACHE_DEVICE_PERCENT;
	c->files_percent = config->files_percent;
	c->files_user_percent = config->files_user_percent;
	for (unsigned i = 0; i < config->n_devices; i++) {
		device_init(c, config->devices[i], i);
		c->n_devices++;
	}
	if (config->local) {
		c->local = device_init(c, config->local, GAIA_HOST);
		if (config->local_bytes)
			c->local->capacity = MIN(config->local->capacity, ROUND_DOWN(config->local_bytes, GAIA_CHUNK));
		c->n_devices++;
	}
	c->frames.dev = c->dev;
	c->frames.n_devices = c->n_devices;
	return 0;
}

int cache_add_device(struct cache *c, struct device *device)
{
	struct cache_device *dev;
	int err;

	if (cache_devices(c) == CACHE_MAX_DEVICES)
		return -ENOSPC;
	dev = device_init(c, device, cache_devices(c));
	err = frames_add_device(&c->frames);
	if (err) {
		device_fini(dev);
		return err;
	}
	/* From here on there is one more. */
	atomic_store(&c->n_devices, dev->index + 1);
	return 0;
}

static void threads_stop(struct cache *c)
{
	pthread_mutex_lock(&c->lock);
	c->stopping = true;
	pthread_cond_signal(&c->flusher_cond);
	pthread_cond_signal(&c->fetcher_cond);
	pthread_cond_signal(&c->trimmer_cond);
	pthread_cond_signal(&c->again_cond);
	pthread_mutex_unlock(&c->lock);
}

int cache_create(const struct cache_config *config, struct cache **out)
{
	struct cache *c;
	int err;

	if (config->home_bytes < CACHE_HOME_MIN || config->home_bytes > CACHE_HOME_MAX ||
	    config->n_devices > CACHE_MAX_DEVICES)
		return -EINVAL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->host = *config->host;
	c->host_arg = config->host_arg;
	c->unstored = config->unstored;
	c->age_ns = (config->writeback_age_ms ? config->writeback_age_ms : 5000) * 1000000ull;
	c->device_age_ns = config->device_age_ms ? config->device_age_ms * 1000000ull : (uint64_t)c->age_ns;
	read_cost_init(&c->store_cost, true);
	err = frames_init(&c->frames, config->home_bytes, MIN(config->home_most, CACHE_HOME_MAX));
	if (err)
		goto free_cache;
	err = dedup_create(c, config);
	if (err)
		goto destroy_frames;
	err = devices_init(c, config);
	if (err)
		goto destroy_dedup;
	pthread_mutex_init(&c->lock, NULL);
	pthread_mutex_init(&c->late_lock, NULL);
	pthread_rwlock_init(&c->round, NULL);
	pthread_cond_init(&c->again_cond, NULL);
	pthread_cond_init(&c->again_done, NULL);
	cond_init_monotonic(&c->flusher_cond);
	cond_init_monotonic(&c->fetcher_cond);
	cond_init_monotonic(&c->trimmer_cond);
	TAILQ_INIT(&c->lru);
	TAILQ_INIT(&c->dirty);
	TAILQ_INIT(&c->emptied);
	TAILQ_INIT(&c->ahead);
	TAILQ_INIT(&c->again);
	err = pool_create("gaia-evict", EVICTORS, &c->evictors);
	if (err)
		goto free_devices;
	pool_share(c->evictors, 1, EVICTORS - EVICTORS_OWNERS);
	err = victims_create(c, config);
	if (err)
		goto destroy_evictors;
	err = -pthread_create(&c->flusher, NULL, flusher_main, c);
	if (err)
		goto destroy_victims;
	err = -pthread_create(&c->fetcher, NULL, fetcher_main, c);
	if (err)
		goto stop_flusher;
	err = -pthread_create(&c->trimmer, NULL, trimmer_main, c);
	if (err)
		goto stop_fetcher;
	err = -pthread_create(&c->notifier, NULL, notifier_main, c);
	if (err)
		goto stop_trimmer;
	err = readahead_start(c);
	if (err)
		goto stop_notifier;
	*out = c;
	return 0;

stop_notifier:
	threads_stop(c);
	pthread_join(c->notifier, NULL);
stop_trimmer:
	threads_stop(c);
	pthread_join(c->trimmer, NULL);
stop_fetcher:
	threads_stop(c);
	pthread_join(c->fetcher, NULL);
stop_flusher:
	threads_stop(c);
	pthread_join(c->flusher, NULL);
destroy_victims:
	victims_stop(c);
	victims_destroy(c);
destroy_evictors:
	pool_destroy(c->evictors);
free_devices:
	free(c->dev);
destroy_dedup:
	dedup_destroy(c);
destroy_frames:
	frames_destroy(&c->frames);
free_cache:
	free(c);
	return err;
}

void cache_set_times_above(struct cache *c, bool above)
{
	c->times_above = above;
}

/* Nothing holds the files: drop what they still cache. What could not be stored was logged. */
static void drop_all(struct cache *c)
{
	struct cfile *f, *tmp;

	pthread_mutex_lock(&c->lock);
	HASH_ITER(hh, c->files, f, tmp) {
		bug_on(f->holds > 0);
		f->forgotten = true;
		atomic_store(&f->gone, true);
	}
	pthread_mutex_unlock(&c->lock);
	emptied_reap(c);
	idle_files_reap(c);
	victims_reap(c);
	bug_on(c->files != NULL);
}

void cache_destroy(struct cache *c)
{
	readahead_stop(c);
	threads_stop(c);
	pthread_join(c->flusher, NULL);
	pthread_join(c->fetcher, NULL);
	pthread_join(c->trimmer, NULL);
	pthread_join(c->notifier, NULL);
	pool_destroy(c->evictors);
	pthread_mutex_destroy(&c->late_lock);
	victims_stop(c);
	drop_all(c);
	victims_destroy(c);
	frames_trim(&c->frames, true);
	for (unsigned i = 0; i < c->n_devices; i++) {
		stranded_free(&c->dev[i]);
		c->dev[i].dev->ops->destroy(c->dev[i].dev);
		device_fini(&c->dev[i]);
	}
	free(c->dev);
	frames_destroy(&c->frames);
	dedup_destroy(c);
	pthread_cond_destroy(&c->again_cond);
	pthread_cond_destroy(&c->again_done);
	pthread_cond_destroy(&c->flusher_cond);
	pthread_rwlock_destroy(&c->round);
	pthread_cond_destroy(&c->fetcher_cond);
	pthread_cond_destroy(&c->trimmer_cond);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

unsigned cache_devices(struct cache *c)
{
	return c->n_devices - (c->local != NULL);
}

struct cache_device *cache_device_find(struct cache *c, unsigned number)
{
	if (number == GAIA_HOST)
		return c->local;
	if (number >= cache_devices(c))
		return NULL;
	return &c->dev[number + (c->local && number >= c->local->index)];
}

bool cache_has_device(struct cache *c, unsigned number)
{
	return cache_device_find(c, number);
}

void cache_device(struct cache *c, unsigned number, struct cache_device_use *out)
{
	struct cache_device *dev = cache_device_find(c, number);

	pthread_mutex_lock(&dev->lock);
	*out = (struct cache_device_use){ dev->dev, dev->capacity, dev->used, dev->pinned, user_limit(dev), dev->file_chunks * GAIA_CHUNK, files_limit(dev),
					  files_user_limit(dev) };
	pthread_mutex_unlock(&dev->lock);
}
