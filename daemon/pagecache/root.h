/*
 * root.h - the cache itself: what all its files share.
 *
 * Concurrency (the rules with numbers are in daemon/README.md):
 *
 * A page is guarded by its page lock, shared or exclusive, which is a state of the page and may be
 * held across I/O. Changing home's bytes, a replica's bytes, or what track.h says of the page takes
 * it exclusively; reading home's bytes takes it shared, or, to store them, keeps them as they are (21). The fields themselves are read and
 * written under chunk->lock, a mutex that is never held across anything that waits, so that who holds the
 * page lock may read them without chunk->lock only if nobody else can write them.
 *
 * Locks, in the order in which they are taken:
 *	cache_device.reserve	what an acquire gets, and what is evicted, is decided: not while waiting
 *	cfile.range		shared: to use contents; exclusive: to remove them (truncate)
 *	page locks		ascending by chunk, then page; out of order only by trying
 *	chunk.lock
 *	cfile.lock
 *	cache_device.lock, cache.lock, frames.lock, victims.lock	(leaves: nothing is taken inside)
 */
#ifndef GAIA_PAGECACHE_ROOT_H
#define GAIA_PAGECACHE_ROOT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/log.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/readcost.h"

struct cache_device;
struct cfile;
struct dedup;
struct late_user;
struct pool;
struct victims;

struct race {
	uint64_t file;
	uint64_t off;
	unsigned owner; /* device_owner() */
};
#define RACES_KEPT 32

/* The kernel's copy of a page lacks something: the notifier thread must invalidate it. */
struct again {
	struct chunk *chunk; /* holds a reference, and so its file */
	unsigned page;
	uint16_t opened; /* see track_window_open() */
	TAILQ_ENTRY(again) link;
};

struct cache {
	struct cache_host host;
	void *host_arg;
	struct frames frames;
	struct cache_device *dev; /* has room for all that there may be, and does not move */
	atomic_uint n_devices; /* with the host. Grows: cache_add_device() */
	unsigned device_percent, files_percent, files_user_percent; /* of a device that is added; of the thread that changes settings */
	struct cache_device *local; /* the host as a device; NULL: there is none */
	struct readers viewers;	    /* see view.h */
	struct victims *victims; /* NULL: no device has parked pages. Constant while anything runs */
	struct dedup *dedup;	 /* NULL: frames are not shared. Constant */
	uint64_t idled[5];	    /* of the trimmer: its n_idled in the last rounds, the oldest first */
	atomic_bool lacking;	    /* pages were needed, and nothing could leave home */
	atomic_bool shrinking;	    /* home has been made smaller, and what is beyond its budget leaves: the trimmer's work */
	_Atomic uint64_t age_ns, device_age_ns;
	uint64_t *unstored; /* see cache_config */
	bool times_above;
	struct read_cost store_cost; /* of reads of the store; no lock */

	pthread_mutex_t lock;
	/* lock. */
	struct cfile *files;	/* hash by key */
	struct chunk_list lru;	/* chunks with frames; first: longest unused */
	unsigned n_lru;
	struct chunk_list dirty; /* first: longest dirty */
	struct chunk_list ahead; /* first: released longest ago */
	struct chunk_list emptied;
	_Atomic(struct chunk *) arrivals; /* chunks that are not on their lists yet, the last one first; pushed without lock */
	TAILQ_HEAD(, again) again;
	atomic_uint n_again; /* of these, with the one at work */
	pthread_cond_t again_cond, again_done, flusher_cond, fetcher_cond, trimmer_cond;
	uint64_t n_shrunk; /* how often home, or a device, was made smaller */
	atomic_bool stopping;
	bool idle_files; /* the flusher must look for files to drop */
	struct race race[RACES_KEPT];
	uint64_t n_races;

	atomic_uint_least64_t n_dirty; /* pages */
	atomic_uint_least64_t n_ahead; /* page releases not merged yet, over all devices */
	struct log_rate pace;
	atomic_uint_least64_t n_kept;  /* frames for merges to come: see page_extra */
	atomic_uint n_releases;	       /* under way, of what is not only ready */
	pthread_t flusher, fetcher, trimmer, notifier;
	struct pool *evictors; /* they wait for clients that do not give up memory at once */
	pthread_mutex_t late_lock; /* a leaf */
	struct late_user *late;	   /* late_lock; hash by uid: the users of these */
	pthread_rwlock_t round; /* the flusher, the fetcher, the trimmer and who reads ahead hold it, shared, while they work; before all other locks (1) */
	struct pool *readahead;
	atomic_uint n_readahead; /* mappings with something to read ahead */
};

#endif
