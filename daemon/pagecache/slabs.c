/* slabs.c - victim slabs: device memory for parked pages, see victim.h. What becomes of its slots: slots.c. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/thread.h"
#include "base/util.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/victim_inner.h"

#define REST_NS 2000000000ull	/* after a slab was given up */
#define TICK_NS 100000000ull
#define DROP_AT_ONCE GAIA_CHUNK_PAGES /* pages, while others wait for the lock: a slot may have many */
#define SPARE_SHARE 16u		/* of a device: what cache=auto leaves free, so that replicas seldom wait for slabs */

/* ---- memory ---- */

/* The next ones are called with victims.lock held. */
static void slab_add(struct victims *v, struct victim_device *vd, struct devmem *mem)
{
	struct victim_slab *s = xcalloc(1, sizeof(*s) + (v->cache->dedup ? GAIA_CHUNK_PAGES * sizeof(s->known[0]) : 0));
	uint32_t k = vd->added_at;

	s->mem = mem;
	while (v->slab[vd->first + k])
		k = (k + 1) % vd->room;
	vd->added_at = k;
	v->slab[vd->first + k] = s;
	vd->free_at = k;
	vd->n_slabs++;
	vd->n_free += GAIA_CHUNK_PAGES;
}

/* Others have the lock for a moment: a thread that takes it again at once would be faster than those that are woken for it. */
static void let_others(struct victims *v)
{
	pthread_mutex_unlock(&v->lock);
	(void)fault_point("victim.leaves");
	nanosleep(&(struct timespec){ .tv_nsec = 1000 }, NULL);
	pthread_mutex_lock(&v->lock);
}

/*
 * Drop what is parked there. What is under way is waited for: operations of the device only. The memory is the caller's then, to be
 * freed. victims.lock is held, but not all the time.
 */
static struct devmem *slab_end(struct victims *v, struct victim_device *vd, uint32_t number)
{
	struct victim_slab *s = v->slab[number];
	struct devmem *mem = s->mem;
	unsigned dropped = 0;

	s->leaves = true;
	vd->n_free -= GAIA_CHUNK_PAGES - s->n_taken;
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		uint32_t slot = number * GAIA_CHUNK_PAGES + i + 1;

		dropped += slot_pages(v, slot);
		slot_drop_all(v, slot, false);
		if (dropped < DROP_AT_ONCE)
			continue;
		dropped = 0;
		let_others(v);
	}
	/* What waits in a batch that is not full. From here on no slot of this slab comes into one. */
	pthread_mutex_unlock(&v->lock);
	victims_send(v->cache, true);
	pthread_mutex_lock(&v->lock);
	while (s->n_busy > 0)
		pthread_cond_wait(&v->changed, &v->lock);
	bug_on(s->n_taken > 0);
	v->slab[number] = NULL;
	free(s);
	return mem;
}

/* The slab to give up: the next one, if possible one of which nothing is under way. */
static bool find_leaver(const struct victims *v, struct victim_device *vd, uint32_t *number)
{
	bool found = false;

	for (uint32_t k = 0; k < vd->room && vd->n_slabs > 0; k++) {
		const struct victim_slab *s = v->slab[vd->first + vd->leave_at];

		if (slab_stays(s) && (!found || s->n_busy == 0)) {
			*number = vd->first + vd->leave_at;
			found = true;
			if (s->n_busy == 0)
				break;
		}
		vd->leave_at = (vd->leave_at + 1) % vd->room;
	}
	return found;
}

static struct victim_device *of_device(const struct cache_device *dev)
{
	struct victims *v = dev->victims;

	for (unsigned k = 0; v && k < v->n_devices; k++)
		if (v->dev[k].dev == dev)
			return &v->dev[k];
	return NULL;
}

bool victim_give_up(struct cache_device *dev)
{
	struct victim_device *vd = of_device(dev);
	struct victims *v = dev->victims;
	struct devmem *mem = NULL;
	uint32_t number = 0;
	unsigned before;

	if (!vd)
		return false;
	thread_waits();
	pthread_mutex_lock(&v->lock);
	vd->rests_until_ns = now_ns() + REST_NS;
	before = vd->n_slabs;
	/* What is being made is in the way as well, and what others give up is room, too. */
	while (!find_leaver(v, vd, &number) && (vd->grows || (vd->n_slabs > 0 && vd->n_slabs == before)))
		pthread_cond_wait(&v->changed, &v->lock);
	if (find_leaver(v, vd, &number))
		mem = slab_end(v, vd, number);
	pthread_mutex_unlock(&v->lock);
	if (!mem)
		return before > 0;
	dev->dev->ops->free(dev->dev, mem);
	count(CTR_victim_given_up, 1);
	/* Only now there is one less: others that find none wait until there is room. */
	pthread_mutex_lock(&v->lock);
	vd->n_slabs--;
	pthread_cond_broadcast(&v->changed);
	pthread_mutex_unlock(&v->lock);
	return true;
}

uint64_t victim_bytes(const struct cache_device *dev)
{
	const struct victim_device *vd = of_device(dev);
	uint64_t n = 0;

	if (!vd)
		return 0;
	pthread_mutex_lock(&dev->victims->lock);
	/* What is being made counts: it found room before others, who look now, took it. */
	n = vd->n_slabs + vd->grows;
	pthread_mutex_unlock(&dev->victims->lock);
	return n * GAIA_CHUNK;
}

/* Whether replicas, with what is promised to them, leave so much of the device. */
static bool has_room(const struct victim_device *vd, unsigned slabs)
{
	struct cache_device *dev = vd->dev;
	uint64_t spare = vd->is_auto ? dev->capacity / SPARE_SHARE : 0;
	bool room;

	pthread_mutex_lock(&dev->lock);
	room = dev->used + dev->promised + (uint64_t)slabs * GAIA_CHUNK + spare <= dev->capacity;
	pthread_mutex_unlock(&dev->lock);
	return room;
}

/* victims.lock is held, but not meanwhile. */
static void grow(struct victims *v, struct victim_device *vd)
{
	struct device *dev = vd->dev->dev;
	struct devmem *mem;
	unsigned wanted = vd->n_slabs + 1;
	int err = -ENOMEM;

	vd->grows = true;
	pthread_mutex_unlock(&v->lock);
	if (has_room(vd, wanted))
		err = dev->ops->alloc(dev, &mem);
	device_note_gone(vd->dev, err);
	pthread_mutex_lock(&v->lock);
	vd->grows = false;
	if (!err)
		slab_add(v, vd, mem);
	else
		vd->rests_until_ns = now_ns() + REST_NS;
	vd->wants = vd->n_free < SLABS_AHEAD * GAIA_CHUNK_PAGES && vd->n_slabs < vd->room;
	pthread_cond_broadcast(&v->changed);
}

static bool may_grow(const struct victim_device *vd)
{
	return vd->wants && vd->n_slabs < vd->room && !atomic_load(&vd->dev->gone) && now_ns() >= vd->rests_until_ns;
}

/* One thing that is to be done, if there is one; victims.lock is held, but not meanwhile. */
static bool work(struct victims *v)
{
	for (unsigned k = 0; k < v->n_devices; k++) {
		struct victim_device *vd = &v->dev[k];

		if (may_grow(vd)) {
			grow(v, vd);
			return true;
		}
		if (atomic_load(&vd->dev->gone) && vd->n_slabs > 0) {
			pthread_mutex_unlock(&v->lock);
			(void)victim_give_up(vd->dev);
			pthread_mutex_lock(&v->lock);
			return true;
		}
	}
	return false;
}

/* Makes slabs, gives up those of devices that are gone, and sends batches that do not become full. */
void *slabs_main(void *arg)
{
	struct victims *v = arg;
	struct timespec until;
	uint64_t t;

	thread_set_name("gaia-victims");
	for (;;) {
		pthread_rwlock_rdlock(&v->cache->round);
		victims_send(v->cache, true);
		pthread_mutex_lock(&v->lock);
		while (!v->stopping && work(v))
			;
		pthread_mutex_unlock(&v->lock);
		pthread_rwlock_unlock(&v->cache->round);

		t = now_ns() + TICK_NS;
		until = (struct timespec){ (time_t)(t / 1000000000), (long)(t % 1000000000) };
		pthread_mutex_lock(&v->lock);
		if (!v->stopping)
			pthread_cond_timedwait(&v->work, &v->lock, &until);
		if (v->stopping)
			break;
		pthread_mutex_unlock(&v->lock);
	}
	pthread_mutex_unlock(&v->lock);
	return NULL;
}

void slabs_end(struct victims *v)
{
	for (unsigned k = 0; k < v->n_devices; k++)
		while (victim_give_up(v->dev[k].dev))
			;
}
