/*
 * file.h - a file's life, and who may only read it.
 */
#ifndef GAIA_PAGECACHE_FILE_H
#define GAIA_PAGECACHE_FILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>
#include <time.h>
#include <uthash.h>

#include "base/uses.h"
#include "pagecache/cache.h"
#include "pagecache/dedup.h"

struct cache;
struct chunk;
struct store_file;

#define READ_STREAMS 4u

enum { CPU_WRITES, CPU_STOPPED, CPU_IMPORTED, CPU_STATES };

struct cfile {
	/* Constant. */
	struct cache *cache;
	uint64_t key;
	struct cfile_source source;
	void *cookie;

	/* cache->lock. */
	unsigned holds; /* by callers and mappings */
	atomic_uint uses; /* holds and chunks: at 0 the cfile ends. Changed without the lock if it is 0 neither before nor after */
	bool forgotten;
	UT_hash_handle hh;

	pthread_rwlock_t range;
	atomic_uint range_waiters; /* threads that wait for range exclusively; all others wait behind them */
	atomic_uint range_shut;	   /* these, and a thread that has it exclusively */

	pthread_mutex_t lock;
	/* lock. */
	struct chunk *chunks; /* hash by index */
	TAILQ_HEAD(, chunk) unsynced; /* the chunks that concern a sync, maybe few of all; in no order */
	struct store_file *store_r, *store_w; /* opened when first needed; store_w serves both */
	int error;	      /* of the last writeback that failed */
	uint64_t error_seq;

	/* The flusher's: the round in which it last came to the file, and how many of its chunks could not be stored then. */
	uint64_t tried;
	unsigned failed;
	uint64_t put_off;     /* the fetcher's: the round in which it left something of the file for the next */
	bool failing;	      /* writeback fails since it last worked, */
	bool logged;	      /* and that was logged */
	uint64_t failed_ns;   /* when it last failed */
	TAILQ_HEAD(, sync) syncs;  /* under way, in order */
	TAILQ_HEAD(, readahead) gave_way; /* to who has range exclusively, or waits for it */
	pthread_cond_t sync_ended; /* one of them has ended */
	uint64_t syncs_begun;	   /* ever */
	/* The time that the store's file must have when everything dirty has been stored. */
	struct timespec mtime;
	bool mtime_set;

	atomic_uint_least64_t size;
	atomic_uint_least64_t n_dirty, n_stored; /* pages */
	atomic_uint_least64_t syncs_failed; /* ever; raised before looking for what is stored, and when that is dirty: see store_again() */
	atomic_uint_least64_t n_ahead; /* page releases not merged yet, over all devices */
	atomic_uint_least64_t n_windows; /* invalidations of pages that have not completed */
	atomic_bool gone;
	/* Changed with range held exclusively; see passthrough.c. */
	atomic_bool passthrough;
	/*
	 * For passthrough files: whether CPU programs may change the store's file; if not, whether home has their changes: one
	 * of CPU_*, and how often that changed.
	 */
	atomic_uint_least64_t cpu_writes;
	atomic_bool lacks_bases; /* of some chunk that may be so */
	atomic_bool distrusting;  /* they are being looked for */
	pthread_mutex_t distrust; /* held while these are looked for; before page locks and chunk->lock */
	/* Where sequential readers would continue: hints, relaxed. */
	atomic_uint_least64_t stream[READ_STREAMS];
	atomic_uint oldest_stream;
	atomic_uint mappings;
	atomic_uint n_without_extents; /* mappings whose clients do not know extents, on devices that give some */
	atomic_uint n_pinned; /* devices that it is pinned to, see file_pins.c */
	struct readers *readers; /* hash; lock */
	struct dedup_file dedup;
	struct moved_bytes moved;

	/* cache->lock: kernel copies to be invalidated again. */
	uint64_t again_asked, again_done;
};

/*
 * Mappings that may only read, but could store: all of one file on one device by one user, or a single one. They share replicas
 * of their own, beside the replica of the clients that may write. Lives as long as one of them.
 */
struct readers {
	/* Constant. */
	struct readers_of {
		unsigned device;
		uid_t uid;
	} of;
	bool alone; /* for a single mapping: not in the table, where others would find it */

	/* file->lock. */
	unsigned mappings;
	UT_hash_handle hh;
};

/* A chunk was made; or is gone, which may end the cfile. */
void cfile_use(struct cfile *f);
void cfile_unuse(struct cfile *f);
/* Take file->range to remove contents: those who have it shared for long let this thread have its turn. */
void range_lock_exclusively(struct cfile *f);
void range_unlock_exclusively(struct cfile *f);
/* Drop what is cached of files that nothing holds and nobody knows. For the flusher. */
void idle_files_reap(struct cache *c);
/* The file's path, for messages: without bytes that would spoil a line of text. No lock is held. */
const char *cfile_name(struct cfile *f, char buf[CFILE_NAME_MAX]);

#endif
