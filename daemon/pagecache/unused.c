/*
 * unused.c - replicas that readahead has made (readahead.c) and that nobody has used since. They are made in free memory only, and are the
 * first to be evicted.
 */
#include <errno.h>

#include "pagecache/unused.h"

#include "base/fault.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/file_pins.h"
#include "pagecache/readahead.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/state.h"

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
		bug_on(rep->pins > 0 || replica_leaves(rep));
		replica_claim_idle(rep);
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

bool unused_evict(struct cache_device *dev, struct readahead *ra)
{
	struct replica *list[UNUSED_TRIES];
	unsigned n, k = 0;

	/* A thread that lacks memory may have pages locked, and must not wait here. */
	if (ra)
		pthread_mutex_lock(&dev->reserve);
	else if (pthread_mutex_trylock(&dev->reserve))
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
		fits = rep->mem && !replica_leaves(rep);
		replica_unit(rep)->filling += fits;
		pthread_mutex_unlock(&m->dev->lock);
	}
	return fits ? rep : NULL;
}

void replica_filled(struct replica *rep)
{
	pthread_mutex_lock(&rep->dev->lock);
	replica_unit(rep)->filling--;
	pthread_mutex_unlock(&rep->dev->lock);
}

/* For so long nothing is read ahead after the device had no memory left: otherwise acquires would not learn that it has none. */
#define FAILED_NS 1000000000ull

/* Take memory for a replica. Until it has one it counts as leaving, so that an acquire that lacks room waits for it. False: there is none. */
static bool ahead_begin(struct mapping *m)
{
	struct cache_device *dev = m->dev;
	bool failed, room;

	do {
		pthread_mutex_lock(&dev->lock);
		failed = dev->ahead_failed_ns && now_ns() - dev->ahead_failed_ns < FAILED_NS;
		room = !failed && readahead_has_room(m->readahead, dev) && device_take_spare(dev);
		if (room) {
			dev->pinned += GAIA_CHUNK;
			dev->leaving += GAIA_CHUNK;
		}
		pthread_mutex_unlock(&dev->lock);
	} while (!room && !failed && unused_evict(dev, m->readahead));
	return room;
}

/* The memory has its replica; NULL: it is free again. */
static void ahead_end(struct mapping *m, struct replica *rep)
{
	struct cache_device *dev = m->dev;

	pthread_mutex_lock(&dev->lock);
	if (rep) {
		readahead_made(m->readahead, rep);
		replica_file_pinned(rep);
		replica_idle_add(rep);
	} else {
		dev->used -= GAIA_CHUNK;
	}
	dev->pinned -= GAIA_CHUNK;
	dev->leaving -= GAIA_CHUNK;
	device_has_left(dev);
	pthread_mutex_unlock(&dev->lock);
}

/*
 * Give the chunk a replica with this memory, unless it has one by now, or (-EMFILE) other readers have half of the places for theirs.
 * Nobody sees it before ahead_end(): threads that look for it on the device have dev->reserve, which is held.
 */
static int ahead_link(struct mapping *m, struct chunk *ch, struct devmem *mem, struct replica **out)
{
	struct replica *rep;
	int err = 0;

	pthread_mutex_lock(&ch->lock);
	if (replica_find(ch, m->dev, m->readers)) {
		;
	} else if (!replica_fits(ch, NULL) || (m->readers && ch->n_replicas + ch->file->cache->n_devices >= CACHE_MAX_REPLICAS / 2)) {
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
	err = device_memory_alloc(dev, &mem);
	if (err) {
		pthread_mutex_lock(&dev->lock);
		dev->ahead_failed_ns = now_ns();
		pthread_mutex_unlock(&dev->lock);
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
		device_memory_end(dev, mem);
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
	empty = rep && !rep->brought;
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
