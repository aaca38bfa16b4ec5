/*
 * devices.h - the devices of a cache.
 */
#ifndef GAIA_PAGECACHE_DEVICES_H
#define GAIA_PAGECACHE_DEVICES_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/log.h"
#include "pagecache/cache.h"
#include "pagecache/readcost.h"

struct cache;
struct device;
struct device_user;
struct keeping;
struct pinned_file;
struct victims;

/* Whether pages are copied from another device. */
enum peer {
	PEER_NONE,
	PEER_NEW, /* yes, but it is not known yet whether pages arrive as they were sent */
	PEER_PROVEN,
};

struct cache_device {
	struct device *dev;
	struct cache *home; /* of the host: its memory counts as home's; else NULL */
	unsigned index;	 /* in the cache's table, where the host is the last of those that there were at first */
	unsigned number; /* by which programs and administrators know it; or GAIA_HOST */
	_Atomic uint64_t capacity; /* bytes: the budget, not more than the device's own; 0: it is off (device_is_off()). Changed with reserve and lock held */
	atomic_bool shrinking; /* it has been made smaller, and what is beyond it leaves: the trimmer's work */
	struct victims *victims; /* the cache's, if it has parked pages here; see victim.h */
	atomic_uint each_percent; /* how much of it each user may have pinned */
	atomic_uint files_percent, files_user_percent; /* how much of it files may have that are pinned: in all, by one user who is no owner */
	struct log_rate pace, pace_extents;
	pthread_mutex_t reserve;
	pthread_mutex_t lock;
	/* lock. */
	uint64_t used, pinned; /* bytes; pinned: everything that is not idle */
	uint64_t promised, leaving; /* parts of pinned: without memory yet; being evicted */
	uint64_t later; /* part of promised: see promises.h */
	uint64_t late; /* part of leaving: clients are waited for, and then it stays (replica.late) */
	uint64_t n_left; /* how often replicas have gone, or should have been evicted and stayed */
	uint64_t n_stuck; /* of these, how often one stayed */
	unsigned n_decisions; /* what acquires get */
	pthread_cond_t changed; /* n_left has changed, or a promise was kept or broken */
	struct device_user *users; /* hash by uid: users who pin something, except the owners of the mount; and for whom something was read ahead */
	uint64_t user_chunks;	   /* that any of them pins */
	uint64_t ahead_failed_ns;  /* when there was no memory to read ahead, though it seemed so; 0: never */
	uint64_t user_ahead;	   /* that were read ahead for them, except the owners, and not used */
	struct keeping *keeping; /* hash: the processes that keep memory of it, see stranded.c */
	uint64_t n_stranded; /* chunks that they keep */
	uint64_t n_given_up; /* how often one of them was found to have ended */
	/*
	 * Replicas that nobody pins, the longest unused first: idle_ready has those that are ready for some grant, and so may be held at any
	 * moment; unused those that were made to read ahead, and that nobody has pinned since.
	 */
	TAILQ_HEAD(replica_queue, replica) idle, idle_ready, unused;
	uint64_t n_idle_ready, n_idled; /* how many; how often one came to the end of any of these lists */
	TAILQ_HEAD(, replica) busy;
	/*
	 * Files that are pinned to it, see file_pins.c: changed with dev->reserve held as well. idle_pinned has those of their replicas that
	 * nobody pins, ready or not.
	 */
	struct pinned_file *pinned_files; /* hash by file */
	uint64_t file_chunks;	    /* of these files; */
	uint64_t file_chunks_there; /* of these, those with a replica that does not leave (replica.file_pinned) */
	struct replica_queue idle_pinned;
	uint64_t n_idle_pinned;
	struct read_cost read_cost; /* of copies from it to home; no lock */
	atomic_bool gone;	/* for good: an operation said so (-ENODEV) */
	atomic_bool complained; /* about reading from it, since that last worked */
	_Atomic uint8_t peer[CACHE_MAX_REPLICAS]; /* enum peer, by the other's index */
};

/* It is taken away (cache_device_off()): nothing more comes to it. The host's share of home may be nothing without that. */
static inline bool device_is_off(const struct cache_device *dev)
{
	return !dev->home && atomic_load(&dev->capacity) == 0;
}

/* 0; or -ENODEV if it is gone or off. */
static inline int device_usable(const struct cache_device *dev)
{
	return atomic_load(&dev->gone) || device_is_off(dev) ? -ENODEV : 0;
}

/* Of bytes in a race, of which those of the highest stay: the host's. The CPU is 0. */
static inline uint8_t device_owner(const struct cache_device *dev)
{
	return (uint8_t)(dev->home ? CACHE_MAX_DEVICES + 1 : dev->number + 1);
}

/* The device of this number; GAIA_HOST: the host. NULL: there is none. */
struct cache_device *cache_device_find(struct cache *c, unsigned number);

#endif
