/*
 * internal.h - what the files of pagecache/ share. Not for other rooms.
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
 *	cache_device.lock, cache.lock, frames.lock	(leaves: nothing is taken inside)
 */
#ifndef GAIA_PAGECACHE_INTERNAL_H
#define GAIA_PAGECACHE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <uthash.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"
#include "consistency/merge.h"
#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/holds.h"
#include "pagecache/readcost.h"
#include "pagecache/segments.h"

/* ---- frames.c: home memory ---- */

/* A page of home memory: slab number and position. 0 is none. */
typedef uint32_t frame_t;

struct slab {
	/* One bit for each frame, set if nobody has it; none is set without memory. All in one cache line. */
	_Alignas(64) _Atomic uint64_t free[GAIA_CHUNK_PAGES / 64];
	void *memory;	    /* GAIA_CHUNK bytes; frames->lock, or, to read it, one of its frames */
	atomic_bool needed; /* frames were taken or given since frames_trim() */
};

struct frames {
	/* Constant once there are any. */
	const struct cache_device *dev; /* the devices to which slabs are announced */
	unsigned n_devices;
	uint64_t budget; /* frames */
	unsigned room;

	_Atomic uint64_t used; /* frames; above the budget only by calls that may go beyond it */
	_Atomic uint64_t *slabs_with_space; /* one bit for each slab; set if it has free frames */

	pthread_mutex_t lock;
	/* lock. Tables only grow, and are read without it. */
	struct slab **slab;
	char **arena; /* addresses reserved for several slabs each; NULL: not yet */
	atomic_uint n_slabs, n_memory; /* of all; of those with memory */
};

int frames_init(struct frames *fr, uint64_t bytes);
void frames_destroy(struct frames *fr);
/*
 * Take up to @n frames, consecutive ones if there are any. Returns how many: fewer if the budget
 * is used up. @beyond: regardless of the budget; then fewer only if there is no memory.
 */
unsigned frames_take(struct frames *fr, unsigned n, frame_t *out, bool beyond);
void frames_give(struct frames *fr, const frame_t *frame, unsigned n);
/* Give back to the system what has been empty since the last call; @all: what is empty now. Devices may take their time. */
void frames_trim(struct frames *fr, bool all);
void *frame_ptr(const struct frames *fr, frame_t frame);

/* ---- chunks ---- */

enum {
	PAGE_DIRTY = 1,	 /* home differs from the store; has a frame */
	PAGE_LOCKED = 2, /* exclusively */
	PAGE_STORED = 4, /* not dirty: home's bytes were stored, but not synced since, so perhaps not for good */
	PAGE_SYNCING = 8, /* STORED since before the sync that is under way */
	PAGE_GIVEN = 16, /* the kernel's cache was given home's bytes, or sent them */
	PAGE_SHARERS_TURN = 32, /* those who waited to share it go first, before the next exclusive lock */
	PAGE_STORING = 64, /* dirty, and somebody is storing the bytes that it had when he began: in its frame, or */
	PAGE_RENEWED = 128, /* in one that is that one's alone by now, since it was written meanwhile */
};

struct page {
	frame_t frame;
	uint8_t flags;
	uint8_t readers; /* holders of the shared lock */
	uint8_t lockers, sharers; /* waiting threads: for the exclusive lock, for the shared one */
};

/*
 * Pages come in leaves, so that a small file costs little. While one of its pages has a frame, or is locked, a leaf stays where
 * it is, so that the holder of a page's lock may look at the page without chunk->lock.
 */
#define LEAF_PAGES 64u

/* Saved bytes that are the base of merges to come: a twin. */
struct twin {
	struct twin *next;
	track_id id;
	frame_t frame;
};

/* For the few pages that have twins. All its frames are counted in cache.n_kept. */
struct page_extra {
	unsigned page;
	struct twin *twins;
	frame_t owners;	 /* see merge3_owned(); if several devices write */
	frame_t under;	 /* the store's bytes when it was last made equal to home, see passthrough.c; 0: home's */
	UT_hash_handle hh;
};

/* For a chunk that a device has touched. */
struct chunk_track {
	struct page_track page[GAIA_CHUNK_PAGES];
	struct page_extra *extra; /* hash */
};

struct grant;
struct replica;

enum { READY_TO_READ, READY_TO_WRITE, READY_KINDS };
#define SHARERS_MOST 16u /* with more clients that may store there nothing is ready */

/* What was a replica's memory until other took its place, and is taken back from the clients that map it. Nobody holds any of it. */
struct old_memory {
	struct old_memory *next;
	struct cache_device *dev;
	struct devmem *mem;
	struct keeper *keepers; /* of who takes it back */
};

/*
 * Made by chunk_get(). Lives while referenced; each list that it is on holds a
 * reference, and so does each replica.
 */
struct chunk {
	/* Constant. */
	struct cfile *file;
	uint64_t index;

	/* file->lock. */
	unsigned refs;
	UT_hash_handle hh;
	TAILQ_ENTRY(chunk) link; /* in file->unsynced */

	pthread_mutex_t lock;
	pthread_cond_t unlocked; /* a page lock was dropped, or the delivery of a grant has ended */

	/* lock. */
	struct page *leaf[GAIA_CHUNK_PAGES / LEAF_PAGES]; /* NULL: absent, clean, unlocked */
	unsigned n_locked, n_shared;  /* page locks held: exclusive ones, shared ones */
	unsigned n_storing;	      /* pages that are being stored */
	atomic_uint n_ready;	      /* grants for which it is ready, see ready.c. Set with lock held */
	/* Set with lock held. Without it, what was done before is seen: all_dirty(), chunk_list_unsynced(). */
	atomic_uint n_frames, n_dirty, n_stored;
	atomic_uint n_ahead; /* page releases not merged yet, over all devices */
	bool unsynced;	     /* one of n_dirty, n_stored and n_ahead is not 0: in file->unsynced */
	struct chunk_track *track;    /* NULL: no device has a replica, and none is needed */
	struct replica **replica;     /* in order of the devices */
	unsigned n_replicas;
	struct old_memory *old; /* all pages are locked, too, when it changes */

	atomic_bool referenced; /* used since the LRU scan last looked at it */

	/*
	 * The lists of the cache (CHUNK_*) that it is on, or on its way to. Set with lock held, by the thread that puts it there;
	 * cleared with cache->lock held.
	 */
	atomic_uint lists;
	/* For chunks on the way: see chunk_arrive(). */
	atomic_uint arriving;
	struct chunk *next_arrival;
	uint64_t dirty_since, ahead_since; /* ns; constant while on that list */
	uint64_t tried;	      /* the flusher's: the round in which it could not be stored */
	/* cache->lock. */
	TAILQ_ENTRY(chunk) lru, dirty, emptied, ahead;
};
TAILQ_HEAD(chunk_list, chunk);
enum {
	CHUNK_LRU = 1,	   /* has frames */
	CHUNK_DIRTY = 2,   /* has dirty pages */
	CHUNK_EMPTIED = 4, /* the flusher must take it off the LRU list */
	CHUNK_AHEAD = 8,   /* has pages that devices released and home lacks */
};

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
	bool complained;      /* it was logged that writeback fails, since it last worked */
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
	/* Where sequential readers would continue: hints, relaxed. */
	atomic_uint_least64_t stream[READ_STREAMS];
	atomic_uint oldest_stream;
	atomic_uint mappings;
	struct readers *readers; /* hash; lock */

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

/*
 * A device's copy of a chunk. Its pages are guarded as the chunk's pages are. A chunk has at most one replica on a device
 * that all clients share, and one more for each struct readers. The latter is only ever filled: nothing is read
 * from it or released in it, and it ends with the last of these readers' mappings.
 */
struct replica {
	struct chunk *chunk; /* holds a reference */
	struct cache_device *dev;
	struct readers *only; /* the readers that it is for; NULL: shared by all who may write */

	/* chunk->lock. */
	struct devmem *shadow;	/* snapshots of secured pages; used by the thread that has the page locked */
	unsigned n_snapped, n_shadow_users;
	unsigned lookers;	   /* the sum of the grants' */
	LIST_HEAD(, grant) grants; /* changes only while it is ready for none of them */
	bool spoiled; /* somebody who holds nothing of it, and is not a client any more, may be storing there */
	unsigned n_suspects; /* grants */
	unsigned n_undetecting; /* grants of mappings for writing whose clients do not look for changes themselves */
	struct keeper *keepers; /* clients that may map it still when it is freed: see stranded.c */
	struct page_replica page[GAIA_CHUNK_PAGES];
	/*
	 * The index of what is stale: a bit a page, set if an acquire might find something to do there, to read it or (unready) to write
	 * it. state.c sets and clears it. A bit too many costs a look at the page; one too few would be a wrong byte (cache_check()).
	 */
	uint64_t stale[GAIA_CHUNK_PAGES / 64], unready[GAIA_CHUNK_PAGES / 64];
	/* Pages that several mappings hold for writing: how many beyond the first. NULL: there are none. */
	struct more_writers {
		uint16_t of[GAIA_CHUNK_PAGES];
		unsigned sum;
	} *more_writers;
	/* Pages that were read ahead and that no acquire has asked for since: for the counters. NULL: there are none. */
	struct brought {
		uint64_t pages[GAIA_CHUNK_PAGES / 64];
		unsigned n;
	} *brought;

	/* dev->lock; a thread that has it pinned may read mem without, once there is any. */
	struct devmem *mem; /* NULL: promised to the acquire that has made the replica; others may wait for that */
	unsigned pins;	/* grants that hold pages, calls in progress */
	struct pinner *pinners; /* see users.c */
	unsigned n_ready; /* grants for which it is ready, see ready.c; changed with chunk->lock held as well */
	bool late;	/* chunk->lock and dev->lock: being evicted no more, but not idle before nobody looks at its grants (lookers) */
	bool evicting;	/* the only pin is the evictor's, and nobody may add one; set under dev->reserve, too */
	bool failed;	/* the promise was not kept; the replica ends with the last pin */
	uint64_t stuck;	/* dev->n_stuck when it could not be evicted */
	uint64_t idled;	/* dev->n_idled when it came to the end of its list; 0: it was put at the head */
	unsigned filling; /* workers that read pages of it ahead now, and have these locked */
	unsigned passed_by; /* the last decision (dev->n_decisions) that has passed it over, see room.c; */
	unsigned passed;    /* how many have, since it became idle */
	struct readahead *ahead; /* it was made to read ahead, and nobody has pinned it since */
	TAILQ_ENTRY(replica) link; /* in dev->busy iff pins > 0, else in dev->idle_ready iff n_ready > 0, else in dev->unused iff ahead, else in dev->idle; if failed in none */
};

/* chunk->lock is held. */
static inline bool replica_is_spoiled(const struct replica *rep)
{
	return rep->spoiled || rep->n_suspects > 0;
}

/* The relation of one mapping to one replica. Lives while the mapping knows the replica. */
struct grant {
	struct mapping *mapping;
	struct replica *replica;
	LIST_ENTRY(grant) of_replica; /* chunk->lock */
	UT_hash_handle hh;	      /* mapping->lock; by chunk index */
	uint64_t index;

	/* chunk->lock. */
	unsigned to_come; /* acquires, for which the chunk stays (GAIA_PROT_PIN) */
	bool pinned;	/* has a pin on the replica: the mapping holds pages of it, and it is not ready; or to_come */
	uint8_t ready;	/* bits READY_*; changed with mapping->lock held as well */
	uint64_t counted[GAIA_CHUNK_PAGES / 64]; /* pages held for writing that the replica has counted (replica_hold()) */
	bool in_delivery; /* some acquire is handing the replica's memory to the client; or what was that before is taken back from it */
	/* The client maps it once it has handled this message (cache_host.grant); 0: it does not map it. */
	uint64_t delivered;
	bool offered; /* sent to a client that has not said that it maps it. It may map it, so it is asked to unmap it */
	unsigned lookers; /* threads that ask its client, or drop what it holds; it and its mapping stay meanwhile */
	bool suspect; /* its client is gone, and may have left the memory to somebody: known when the mapping has ended */
	bool unanswered; /* the client was asked to unmap it, and has not said that it did */
};

/* Pages [a, b) of a file; chunks of it. */
struct page_span {
	uint64_t a, b;
};
struct chunk_span {
	uint64_t a, b;
};

/* An announced acquire (GAIA_PROT_PIN), and the chunks that stay for it: each counts in its grant's to_come. */
struct pin {
	STAILQ_ENTRY(pin) link; /* mapping.pins, oldest first */
	struct page_span span;
	bool taken;		/* the acquire itself has come, and is under way */
	uint64_t first, n;	/* chunks of the file */
	unsigned n_beyond;	/* runs of others of the span, which the client maps */
	struct chunk_span beyond[];
};

struct mapping {
	struct cfile *file; /* held */
	struct cache_device *dev;
	void *client;
	struct cache_user user;
	uint64_t id;
	unsigned prot;
	bool export_write;    /* descriptors for the client allow writing */
	bool detects;	      /* it is for writing, and its client looks for changes itself: see cache_map_detects() */
	struct readers *readers; /* the readers whose replicas it uses; NULL: it uses the shared ones */
	uint64_t off, len;
	pthread_mutex_t lock; /* taken inside chunk.lock */
	/* lock. */
	struct grant *grants;
	struct holds holds; /* of pages of chunks that it has a grant of */
	struct holds ready[READY_KINDS]; /* pages: see ready.c */
	/* Who must live for what is ready to be acquired without a look at it: see ready.c. */
	struct sharer {
		void *client;
		uint64_t n; /* grants of the client's, of replicas that are ready for this mapping */
	} sharer[SHARERS_MOST];
	unsigned n_sharers;
	uint64_t ready_seq; /* the last message by which the client got such a chunk */
	/*
	 * Pages that were acquired when they were beyond the end, in chunks that the client does not map: an acquire that
	 * brings the chunk to the client acquires these pages, too.
	 */
	struct holds wanted;
	unsigned span_blocks; /* blocks of spans that were asked for, for these two: see cache_host.spans */
	uint64_t spans_to_come; /* room for so many is kept for releases that cut spans */
	STAILQ_HEAD(, pin) pins;
	unsigned n_pins;
	struct readahead *readahead; /* constant */
	struct cache_process process; /* lock: its client's, once it was asked for; see keeper_make() */
	bool process_known;
	_Atomic uint64_t kept; /* "break.reuse_mapped": 1 + a chunk that the client was left with */
};

/* Whether pages are copied from another device. */
enum peer {
	PEER_NONE,
	PEER_NEW, /* yes, but it is not known yet whether pages arrive as they were sent */
	PEER_PROVEN,
};

struct cache_device {
	struct device *dev;
	unsigned index;
	unsigned each_percent; /* how much of it each user may have pinned */
	struct log_pace pace;
	pthread_mutex_t reserve;
	pthread_mutex_t lock;
	/* lock. */
	uint64_t used, pinned; /* bytes; pinned: everything that is not idle */
	uint64_t promised, leaving; /* parts of pinned: without memory yet; being evicted */
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
	struct read_cost read_cost; /* of copies from it to home; no lock */
	atomic_bool gone;	/* for good: an operation said so (-ENODEV) */
	atomic_bool complained; /* about reading from it, since that last worked */
	_Atomic uint8_t peer[CACHE_MAX_DEVICES]; /* enum peer, by the other's index */
};

struct race {
	uint64_t file;
	uint64_t off;
	unsigned owner; /* the device's number + 1 */
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
	struct cache_device *dev;
	unsigned n_devices;
	uint64_t age_ns, device_age_ns;
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
	pthread_cond_t again_cond, again_done, flusher_cond, fetcher_cond, trimmer_cond;
	atomic_bool stopping;
	bool idle_files; /* the flusher must look for files to drop */
	struct race race[RACES_KEPT];
	uint64_t n_races;

	atomic_uint_least64_t n_dirty; /* pages */
	atomic_uint_least64_t n_ahead; /* page releases not merged yet, over all devices */
	struct log_pace pace;
	atomic_uint_least64_t n_kept;  /* frames for merges to come: see page_extra */
	pthread_t flusher, fetcher, trimmer, notifier;
	struct pool *evictors; /* they wait for clients that do not give up memory at once */
	pthread_mutex_t late_lock; /* a leaf */
	struct late_user *late;	   /* late_lock; hash by uid: the users of these */
	pthread_rwlock_t round; /* the flusher, the fetcher, the trimmer and who reads ahead hold it, shared, while they work; before all other locks (1) */
	struct pool *readahead;
	atomic_uint n_readahead; /* mappings with something to read ahead */
};

/* ---- file.c ---- */
/* A chunk was made; or is gone, which may end the cfile. */
void cfile_use(struct cfile *f);
void cfile_unuse(struct cfile *f);
/* Take file->range to remove contents: those who have it shared for long let this thread have its turn. */
void range_lock_exclusively(struct cfile *f);
void range_unlock_exclusively(struct cfile *f);
/* Drop what is cached of files that nothing holds and nobody knows. For the flusher. */
void idle_files_reap(struct cache *c);
/* The file's path, for messages: without bytes that would spoil a line of text. No lock is held. */
#define CFILE_NAME_MAX 4096u
const char *cfile_name(struct cfile *f, char buf[CFILE_NAME_MAX]);

/* ---- chunk.c, page.c, page_lock.c, lists.c, leave.c: chunks, page locks, frames for them, eviction of home ---- */

struct chunk *chunk_get(struct cfile *f, uint64_t index, bool make);
struct chunk *chunk_ref(struct chunk *ch);
void chunk_put(struct chunk *ch);
/* References to the chunks of [first, last], in order; *@out to be freed. */
unsigned chunk_list_get(struct cfile *f, uint64_t first, uint64_t last, struct chunk ***out);
/* Those of them that have such pages (@what: one of the enum); looks at no others. */
enum unsynced {
	UNSYNCED_AHEAD,	 /* released, and not merged */
	UNSYNCED_DIRTY,	 /* not stored */
	UNSYNCED_STORED, /* stored, without a sync since */
	UNSYNCED_ANY,	 /* any of these; also chunks whose pages are about to change from one of these to another */
};
unsigned chunk_list_unsynced(struct cfile *f, uint64_t first, uint64_t last, enum unsynced what,
			     struct chunk ***out);
/* Count @more releases of its pages as not merged yet. chunk->lock is held. */
void chunk_count_ahead(struct chunk *ch, int more);

/* The page; its leaf is made if necessary. chunk->lock is held. */
struct page *page_make(struct chunk *ch, unsigned i);
static inline struct page *page_at(const struct chunk *ch, unsigned i)
{
	struct page *leaf = ch->leaf[i / LEAF_PAGES];

	return leaf ? leaf + i % LEAF_PAGES : NULL;
}
static inline bool page_present(const struct chunk *ch, unsigned i)
{
	return page_at(ch, i) && page_at(ch, i)->frame;
}
static inline bool page_dirty(const struct chunk *ch, unsigned i)
{
	return page_at(ch, i) && (page_at(ch, i)->flags & PAGE_DIRTY);
}

/* Wait until some page lock of the chunk is dropped. chunk->lock is held, but dropped meanwhile. */
void page_wait(struct chunk *ch);
/* The same for all of pages [a, b), which it then locks or unlocks. */
void pages_lock(struct chunk *ch, unsigned a, unsigned b);
/* The same, to write them: without waiting for threads that store them. Returns how many of them pages_renew() has to renew (21). */
unsigned pages_lock_to_write(struct chunk *ch, unsigned a, unsigned b);
/* Without waiting for anybody: all or none. A thread that has them to write leaves home's bytes as they are. */
bool pages_trylock(struct chunk *ch, unsigned a, unsigned b);
bool pages_trylock_to_write(struct chunk *ch, unsigned a, unsigned b);
void pages_unlock(struct chunk *ch, unsigned a, unsigned b);
/* The same for those of pages [a, b) that are in @pages, a bit for each page. */
void pages_lock_some(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages);
bool pages_trylock_some(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages);
void pages_unlock_some(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages);
bool page_trylock(struct chunk *ch, unsigned i);
/*
 * A thread that shares a page may then wait for later pages only, not for the same one again: threads that wait for it
 * exclusively go first (17).
 */
void page_share(struct chunk *ch, unsigned i);
bool page_tryshare(struct chunk *ch, unsigned i);
void page_unshare(struct chunk *ch, unsigned i);
/*
 * Unshare pages [a, b). No lock is held. @given: the kernel's cache has them now, so nobody will ask
 * for them soon: they leave home, unless devices share the file or only home has their bytes.
 */
void pages_unshare(struct chunk *ch, unsigned a, unsigned b, bool given);
/*
 * A sync begins; and has ended. No lock is held. If it has worked, what was stored before it began is on the disk, and those
 * of these pages that the kernel has leave home, as above.
 */
void chunk_sync_begins(struct chunk *ch);
void chunk_sync_ended(struct chunk *ch, bool worked);
/* Change the lock from exclusive to shared. */
void page_downgrade(struct chunk *ch, unsigned i);
/*
 * Page i's bytes stay as they are, in its frame or without it, until store_ended(). Waits for threads that have the page
 * locked or store it; with @wait false it returns false instead.
 */
bool store_begin(struct chunk *ch, unsigned i, bool wait);
/*
 * Of pages [a, b), whose frames were @frame: what is not the page's any more is given back. @stored: the bytes are the
 * store's now.
 */
void store_ended(struct chunk *ch, unsigned a, unsigned b, const frame_t *frame, bool stored);
/* No lock held; pages [a, b) are locked to be written. Those that are being stored, @n at most, get other frames, with the same bytes. */
int pages_renew(struct chunk *ch, unsigned a, unsigned b, unsigned n);

/*
 * Frames for @n pages that are locked exclusively. Neither chunk->lock nor a leaf lock is held.
 * Evicts, stores, and at last goes beyond the budget; fails (-ENOMEM) only if there is no memory.
 */
int frame_alloc(struct cache *c, unsigned n, frame_t *out);
/* The two spare frames of kernel_page_write() and similar calls: replaces those that are 0. They must be given back, also on error. */
int spares_take(struct cache *c, frame_t spare[2]);
void spares_give(struct cache *c, frame_t spare[2]);
/* Home's bytes of a page that is present and locked by the caller, shared or exclusively. */
void *page_ptr(const struct chunk *ch, unsigned i);
/*
 * Whether home can take @n more pages that cannot leave it, and still keep a quarter of its
 * budget for others: -ENOMEM. Evicts and stores until it can. No lock but the file's range is held.
 */
int home_room_to_stay(struct cache *c, unsigned n);

/* Make @frame, which is consumed, home's bytes, and return the old frame (or 0). chunk->lock is held, the page is locked. */
frame_t page_set_frame(struct chunk *ch, unsigned i, frame_t frame);
/* In the same way for pages [a, b): make them dirty, and so not stored; or stored, and so not dirty. */
void pages_set_dirty(struct chunk *ch, unsigned a, unsigned b);
void pages_set_stored(struct chunk *ch, unsigned a, unsigned b);
void page_clear_dirty(struct chunk *ch, unsigned i);
/* Drop home's copy, which is clean, or whose changes no longer matter. */
void page_drop(struct chunk *ch, unsigned i);

/* Put the chunk on the lists it belongs to, after frames or dirty pages were added. No lock is held. */
void chunk_account(struct chunk *ch);
/* Take the chunk off the lists that it no longer belongs to, so that it can end. */
void chunk_unlist(struct chunk *ch);
/* Drop the clean frames of a chunk that nobody uses; returns their number. */
unsigned chunk_shrink(struct chunk *ch);
/* The chunk that has been dirty longest, if for at least @age_ns: taken off its list, with the list's reference. */
struct chunk *chunk_due(struct cache *c, uint64_t age_ns);
/*
 * The same for chunks with pages that were released so long before @at_ns and not fetched: up to @most, all of one file, which was not put off
 * in the round @at_ns; and how many.
 */
unsigned chunks_due_ahead(struct cache *c, uint64_t age_ns, uint64_t at_ns, struct chunk **list, unsigned most);
/* It was taken off that list: it is the first of it again, as old as it was, with the reference. False: it need not be there, or is again. */
bool chunk_back_ahead(struct chunk *ch);
/* Take chunks off the LRU list whose last frame left after a read. */
void emptied_reap(struct cache *c);

/* ---- writeback.c ---- */
void *flusher_main(void *cache);
void *fetcher_main(void *cache);
void *trimmer_main(void *cache);
/*
 * Store the dirty pages of [a, b). @wait: wait for pages that are locked; otherwise skip them. file->range is held
 * shared or exclusively. 0 or the first error; then the pages stay dirty.
 */
int chunk_store(struct chunk *ch, unsigned a, unsigned b, bool wait);
/* chunk_store() for eviction: takes all its locks by trying. Returns the number of pages stored. */
unsigned chunk_store_some(struct chunk *ch);
int cfile_store(struct cfile *f, bool write, struct store_file **out);
/* Pages of the file could not be stored: note it for the next cfile_error_check(), and log it. */
void store_failed(struct cfile *f, int err);
/* Set the modification time for what is dirty and stored later: to now; */
void cfile_touch(struct cfile *f);
/* to the time that the store's file has now, unless one has been set; */
int cfile_keep_time(struct cfile *f);
/* one of the two, depending on whether the kernel keeps times (times_above). */
void cfile_wrote(struct cfile *f);
/*
 * Called before home takes more of the file: 0; or, when dirty pages have used up home's budget, the error with which the
 * file's pages cannot be stored. Otherwise such pages would take all of the machine's memory. file->range is held.
 */
int cfile_make_room(struct cfile *f);
/*
 * Merge home what devices released in a range (len 0: to the end). file->range is held, shared, and given up meanwhile for those that wait for
 * it. When home has much to store, what was fetched is stored, too, as far as that makes room; if that fails, and there is no room, nothing more
 * is fetched.
 */
int cfile_fetch(struct cfile *f, uint64_t off, uint64_t len);

/* ---- read.c, write.c, fill.c, source.c: contents of home pages ---- */
/*
 * Make home present and current for pages [a, b), all locked exclusively: merge what devices released, read what is absent.
 * file->range is held. Only pages below the end of the file.
 */
int home_bring(struct chunk *ch, unsigned a, unsigned b);
/* Only read the absent ones, without regard to devices. */
int home_fill(struct chunk *ch, unsigned a, unsigned b);
/* Only those of them that are in @pages (one bit for each page), all at the same time. */
int home_fill_some(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages);
/*
 * The same in two steps: in between pages are on their way, from the store and from devices that have them (readcost.h). They stay
 * locked, and file->range held, until everything that was begun, for whatever pages, has ended. All by one thread.
 */
struct fill;
struct fills {
	STAILQ_HEAD(, fill) list;   /* under way from the store; */
	STAILQ_HEAD(, fill) copies; /* from devices */
	uint64_t began;		  /* ns, of the first from the store; 0: there was none */
	bool ahead;		  /* reads are begun before they are needed */
	bool in_order;		  /* reads continue what lies before them in the file */
	bool more;		  /* more are begun before any is waited for */
	bool may_probe;		  /* some may come from a source that seems dearer */
	unsigned devices_only;	  /* 0, or a page of the chunk: from there on what no device gives stays absent */
	bool quiet;		  /* nobody has asked for it: what fails is counted, and not logged; and home evicts nothing (-ENOBUFS: it is full) */

	bool made_room; /* for some of them pages had to leave home */
	/* If this is a probe: */
	struct read_cost *probe; /* of this source */
	uint64_t probe_began, instead_ns;
};
#define FILLS(name, ahead_)                                                                                       \
	{ .list = STAILQ_HEAD_INITIALIZER((name).list), .copies = STAILQ_HEAD_INITIALIZER((name).copies), .ahead = (ahead_) }
/* The absent ones of pages [a, b) that are in @pages (a bit for each; NULL: all). It is ended also after an error. */
int home_fill_begin(struct fills *fills, struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages);
/* 0 or the first error; what was read is in home in any case. */
int home_fill_end(struct fills *fills);
/* cache_write() for callers that hold file->range; @buf NULL: zeros. */
int home_write(struct cfile *f, const void *buf, size_t len, uint64_t off,
	       enum cache_write_kind kind);
extern const char frame_zeros[GAIA_PAGE];
/* How many bytes of the page are below the end of the file: 0 to GAIA_PAGE. */
unsigned page_limit(const struct chunk *ch, unsigned i);

/* ---- ahead.c: reading what an acquire will need from the store ---- */

#define AHEAD_CHUNKS 4u /* chunks that are read, at most, beyond the one at work */
struct batch;
/* For one acquire: of pages @asked of the chunks of reps[0..n). */
struct ahead {
	struct replica **reps;
	uint64_t n;
	struct segments asked;
	bool write;
	uint64_t next; /* the first chunk whose reads were not begun */
	struct batch *batch[AHEAD_CHUNKS]; /* for chunk k at k % AHEAD_CHUNKS */
};
void ahead_init(struct ahead *ah, struct replica **reps, uint64_t n, struct segments asked, bool write);
/* Chunk k is at work: begin to read those after it. file->range is held from here to ahead_drain(). */
void ahead_go_on(struct ahead *ah, uint64_t k);
/* It is chunk k's turn: what was read of it is put into home, and all of it unlocked. What could not be read stays absent. */
void ahead_arrived(struct ahead *ah, uint64_t k);
/* The same for all chunks. */
void ahead_drain(struct ahead *ah);
/* Chunk k, whose turn has not come, is being read. */
bool ahead_is_under_way(const struct ahead *ah, uint64_t k);

/* ---- passthrough.c: files that CPU programs have open past the cache. For others these do nothing. ---- */

/* Whether CPU programs may write the store's file past us: acquires and releases read it to compare. */
bool passthrough_compares(struct cfile *f);
/* Update the size to that of the store's file. file->range is held. */
int passthrough_size(struct cfile *f);
/* In pages [a, b), locked exclusively: what was released, and what CPU programs have changed, becomes home's. */
int passthrough_catch_up(struct chunk *ch, unsigned a, unsigned b);
/*
 * Called before pages are acquired for writing: home's bytes are the only base of what is written then, and stay until the
 * release. -ENOMEM: there is no room for @n more pages, except for the owners of the mount.
 */
int passthrough_room(const struct mapping *m, unsigned n);
/*
 * The steps of a release. Before pages are locked, with file->range held: check that there is room for what may not be stored, and
 * update the size. Then merge what earlier releases left unmerged of pages [a, b). Then, when the pages are released: show them
 * to CPU programs, or report an error. At last, with nothing held: try again what earlier releases could not store of these pages.
 */
int passthrough_before_release(struct cfile *f);
int passthrough_left_over(struct chunk *ch, unsigned a, unsigned b);
int passthrough_released(struct chunk *ch, unsigned a, unsigned b);
bool passthrough_has_left_over(struct cfile *f);
int passthrough_release_again(struct chunk *ch, const uint64_t *pages);
/* cache_read() and cache_write() for such a file. */
ssize_t passthrough_read(struct cfile *f, void *buf, size_t len, off_t off);
int passthrough_write(struct cfile *f, const void *buf, size_t len, off_t off);
/* chunk_store() for such a file. */
int passthrough_store(struct chunk *ch, unsigned a, unsigned b, bool wait);

/* ---- fetch.c ---- */

/* Merge all releases of pages [a, b), which are locked, home. -EIO: some are lost with their device. */
int fetch_pages(struct chunk *ch, unsigned a, unsigned b);

/* ---- coherence.c: twins, merging, what the kernel holds ---- */

/* Note the bytes that both @home and @theirs, which is @owner's, have changed since @base. */
void races_note(struct chunk *ch, unsigned i, const void *home, const void *base, const void *theirs, unsigned len, unsigned owner);
/*
 * fetch_pages(), out of caution against whoever may store to spoiled replicas: what cannot be fetched from these now is copied on their
 * device, and fetched from there later. Returns the error of the fetch, if there is one.
 */
int pages_secure(struct chunk *ch, unsigned a, unsigned b);
/* Page i is locked and about to be overwritten: forget what is lost of it, which does not matter any more. chunk->lock is held. */
void page_drop_lost(struct chunk *ch, unsigned i);
/*
 * Called when home's bytes of pages [a, b), which are locked exclusively, have changed; file->range is held. If more is kept for
 * merges to come than its share of home, the devices that would need the old bytes are given home's present ones (19).
 */
#define KEPT_SHARE 4u
void kept_trim(struct chunk *ch, unsigned a, unsigned b);

/*
 * A WRITE changes a tracked page, which is locked, has a frame, and has no unmerged release.
 * chunk->lock is held. @present: home had bytes before (otherwise the frame is just memory). @spare: two
 * frames that may be taken, and are set to 0 then.
 */
void kernel_page_write(struct chunk *ch, unsigned i, bool present, const void *bytes, unsigned len,
		       frame_t spare[2]);
void exact_write(struct chunk *ch, unsigned i, bool present, unsigned off, const void *bytes,
		 unsigned len, bool through, frame_t spare[2]);
/* The same for bytes that a truncate turns to zeros from @cut on. */
void truncate_page(struct chunk *ch, unsigned i, unsigned cut, frame_t spare[2]);

void *notifier_main(void *cache);
/* Wait until the invalidations that have been asked for until now are done. [W] */
void again_wait(struct cfile *f);

/* ---- peer.c ---- */

/* Find out which devices reach which. Called when they exist. */
void peers_find(struct cache *c);
/*
 * Of the pages that the parts' plans say are to be sent, copy those that another device has exactly as home has
 * them, whether home is present or not, and set their step to TRACK_NOTHING. @runs: room for all of them. What fails is left
 * to be sent from home. Called by bring.c.
 */
struct part;
void peers_send(struct part **part, unsigned n, struct dev_run *runs);

/* ---- scrub.c: what the memory that clients map may show. chunk->lock is held ---- */

/* Whether a client maps it, or is being handed it, or may still be mapping it. */
bool replica_is_mapped(const struct replica *rep);
bool chunk_is_mapped(const struct chunk *ch);
/*
 * If anybody maps the replica: zero what its memory must not show, in pages of [a, b), which are locked, that nobody holds. Drops the
 * lock meanwhile. @fetch: if released bytes are in the way fetch them first; file->range is held.
 */
void replica_scrub(struct replica *rep, unsigned a, unsigned b, bool fetch);
/*
 * All pages are locked, and those from @end on are beyond the end of the file. Zeros also what is merely old. On error some may be unchanged.
 */
int replica_scrub_old(struct replica *rep, unsigned end);
/* The same for all replicas, after something was removed from the file; file->range is held exclusively. */
void chunk_scrub(struct chunk *ch, unsigned a, unsigned b);

/* ---- acquire.c ---- */

/* -EINVAL: one of the ranges does not lie in the mapping. */
int ranges_check(const struct mapping *m, const struct gaia_list_range *range, size_t n);
/* The mapping ends, and with it all announced acquires. */
void pins_drop(struct mapping *m);
/* Take back @n holds of pages [a, b), which an acquire that has failed had added; @untold: see grant_unhold(). No lock is held. */
void mapping_unhold(struct mapping *m, uint64_t a, uint64_t b, unsigned n, bool write, bool untold);
/* ---- bring.c ---- */

/* Bring pages [a, b) of the replica's, which are locked, up to date as an acquire to read does. file->range held. */
int replica_bring(struct replica *rep, unsigned a, unsigned b);
/* The same for those of them that are in @pages, which are all to be sent; the others need not be locked. See fills.quiet. */
int replica_bring_some(struct replica *rep, unsigned a, unsigned b, const uint64_t *pages);

/* ---- readahead.c: what is brought to a device before it is acquired ---- */

struct pool;
struct readahead;
/* The workers. */
int readahead_start(struct cache *c);
void readahead_stop(struct cache *c);
/* A mapping begins: -ENOMEM. It is about to end: no piece is begun from now on. It ends: none is at work. No lock is held. */
int readahead_begin(struct mapping *m, struct cache *c, struct cache_user user);
void readahead_cease(struct mapping *m);
void readahead_end(struct mapping *m);
/* The file's range is not held exclusively any more: what gave way goes on. No lock is held. */
void readahead_wake(struct cfile *f);
/* Bring the pages of @span, which lies in the mapping, when there is time, as far as there is room. */
void readahead_will_need(struct mapping *m, struct page_span span);
/* An acquire of @span has succeeded. No lock is held. */
void readahead_acquired(struct mapping *m, struct page_span span);
/* GAIA_ADVISE_NORMAL, RANDOM or SEQUENTIAL. -EAGAIN: too many ranges of the mapping have advice of their own. */
int readahead_advise(struct mapping *m, struct page_span span, unsigned how);
/* Bring nothing of @span any more; when it returns nothing of it is at work. [W] */
void readahead_cancel(struct mapping *m, struct page_span span);
/* dev->lock held. A replica was made for it; it is pinned (@used), or goes; its user may have one more. */
void readahead_made(struct readahead *ra, struct replica *rep);
void readahead_ended(struct replica *rep, bool used);
bool readahead_has_room(const struct readahead *ra, const struct cache_device *dev);
/*
 * The same. Whether what @ra is to bring may take the place of this replica, which is unused: not if it is to bring that, too, nor if another has
 * brought it who has no more such replicas (by one at least, or they would take turns).
 */
bool readahead_may_replace(struct readahead *ra, const struct replica *rep);
/* Pages [a, b) are being acquired; or the replica goes: count those that were read ahead. chunk->lock is held. */
void readahead_count(struct replica *rep, unsigned a, unsigned b);
void readahead_dropped(struct replica *rep);

/* ---- ready.c: chunks that may be acquired without a look at them ---- */

/* After an acquire or a release: the chunk is ready from now on, if it is in that state. No lock is held; the replica is pinned. */
void grant_make_ready(struct grant *g);
/*
 * From now on no mapping acquires or releases any of the chunk without chunk->lock, which is held; its replicas are pinned for what is
 * held of them, and the pages that are held for writing are counted.
 */
void chunk_end_ready(struct chunk *ch);
static inline void chunk_unready(struct chunk *ch)
{
	if (atomic_load_explicit(&ch->n_ready, memory_order_relaxed) > 0)
		chunk_end_ready(ch);
}
/* The same for one replica only; and for one grant: what other mappings have ready stays so. chunk->lock is held. */
void replica_end_ready(struct replica *rep);
void grant_end_ready(struct grant *g);
/* The idle replicas that are ready, the longest unused first, @most of them at most: how many. @out is to be freed. dev->reserve is held, which keeps them. */
uint64_t device_idle_ready(struct cache_device *dev, uint64_t most, struct replica ***out);
/* Whether a mapping for which the replica is ready holds some of it. No lock is held. */
bool replica_is_held_ready(const struct replica *rep);
/* The number of idle replicas of which something is held, because they are ready. dev->reserve is held. */
uint64_t device_held_idle(struct cache_device *dev);
/* Whether all of @span is ready to be read. No lock is held. */
bool ready_has(struct mapping *m, struct page_span span);
/* Acquire, with *err as of cache_acquire(), if all of @span is ready; those of @over to overwrite them. False: it is not, and nothing was done. */
bool ready_acquire(struct mapping *m, struct page_span span, bool write, struct page_span over, uint64_t *seq, atomic_uint *verdict, int *err);
/*
 * Hold, as coming until ready_end(), the pages of @span in those chunks of which all such pages are ready. The other chunks go to @rest, in
 * order. -EOVERFLOW, -ENOSR: part of them is held. The client has the chunks when it has handled message runs->seq.
 */
struct ready_runs {
	struct page_span *run;
	unsigned n;
	uint64_t n_rest, seq;
	struct page_span over; /* what is for overwriting when it has succeeded */
};
int ready_take(struct mapping *m, struct page_span span, bool write, struct page_span over, struct ready_runs *runs, uint64_t *rest);
/*
 * One hold less of pages [a, b) of a chunk that is ready: false if it is not, or if the replica knows of the hold. Otherwise what the
 * replica has stays as it is. chunk->lock is held.
 */
bool ready_unhold(struct grant *g, unsigned a, unsigned b, bool write);
/* The acquire has succeeded; @undo: it has not. */
void ready_end(struct mapping *m, struct ready_runs *runs, bool write, bool undo);
/* Release the pages of @span in ready chunks that are held for reading only: true if that was all. Else those in @rest (rest->at to be freed) remain to be released. */
bool ready_release(struct mapping *m, struct page_span span, struct segments *rest);
/* For cache_check(): a bug() if something is called ready and is not, with chunk->lock held; or if they are not counted as they are. */
void ready_check(const struct chunk *ch);
void device_check_ready(struct cache_device *dev);

/* ---- handover.c. [W] ---- */

/* Hand the chunks of grant[0..n), whose replicas are pinned, to the client if it does not map them. 0: it says that it maps them. */
int grants_deliver(struct mapping *m, struct grant **grant, uint64_t n);
/*
 * If another thread is handing the chunk over, wait until it has ended. @seq becomes at least the message by which the client
 * has it. False: the client does not have it, since the other thread failed.
 */
bool delivery_wait(struct grant *g, uint64_t *seq);

/* ---- users.c: what each user has pinned. Owners of the mount are not counted. ---- */

/* Whether the user may pin these replicas (NULL: one that has still to be made). */
bool user_may_pin(const struct mapping *m, struct replica *const *reps, uint64_t n);
/* -ENOMEM, and a line in the log. */
int user_refuse(const struct mapping *m);
/*
 * Count these replicas, which are pinned, as pinned by the user, once each: all, or none if the user may not pin so many. Takes
 * dev->reserve, so that a thread that decides what an acquire gets either counts them or is counted.
 */
bool user_pin_all(const struct mapping *m, struct replica *const *reps, uint64_t n);
void user_unpin_all(const struct mapping *m, struct replica *const *reps, uint64_t n);
/* For a grant whose acquire found room when it began. chunk->lock is held. */
void user_pin(const struct mapping *m, struct replica *rep);
void user_unpin(const struct mapping *m, struct replica *rep);
/* Bytes of a device that one user may have pinned. */
uint64_t user_limit(const struct cache_device *dev);
/* dev->lock held. Whether one chunk more may be read ahead for the user; and one more, or less, is there. */
bool user_may_ahead(const struct cache_device *dev, const struct cache_user *user);
/* Whether the user may have one more when one of @other's that nobody has used is gone, or sooner. */
bool user_ahead_helps(const struct cache_device *dev, const struct cache_user *user, const struct cache_user *other);
void user_ahead_more(struct cache_device *dev, const struct cache_user *user);
void user_ahead_less(struct cache_device *dev, const struct cache_user *user);
uint64_t user_ahead(const struct cache_device *dev, const struct cache_user *user);
/* dev->lock held. Once more, or less, of the chunk whose list it is. */
void user_pin_more(struct cache_device *dev, struct pinner **pinners, uid_t uid);
void user_pin_less(struct cache_device *dev, struct pinner **pinners, uid_t uid);

/* ---- stranded.c ---- */

/* A client that did not unmap memory that it was asked for, or was not asked: see stranded.c. */
struct keeper;

/* No lock held. The mapping's client; NULL: it has ended, or the device can take memory back. [W] */
struct keeper *keeper_make(struct mapping *m);
/* @k may be NULL. */
void keeper_add(struct keeper **list, struct keeper *k);
void keepers_free(struct keeper *list);
/* dev->lock held. A chunk is freed. Bytes that stay used and pinned, since somebody may map it; takes the list over. */
uint64_t strand(struct cache_device *dev, struct keeper *keepers);
/* No lock held. How often memory was given up, to be called before looking for room. */
uint64_t stranded_count(struct cache_device *dev);
/*
 * No lock held. Of processes that have ended nothing is counted any more: whether something was given up since @before, by this call or
 * another. [W]
 */
bool stranded_reap(struct cache_device *dev, uint64_t before);
void stranded_free(struct cache_device *dev);

/* ---- replica.c; see also replica.h ---- */

/* device_run(), device_begin(), device_end(); for devices that are gone -ENODEV, at once. */
int cache_device_run(struct cache_device *dev, struct dev_op *op);
int cache_device_begin(struct cache_device *dev, struct dev_op *op, struct device_wait *w);
int cache_device_end(struct cache_device *dev, struct device_wait *w);

/* dev->reserve held, or it is pinned by right, and stays so. False: it leaves. */
bool replica_pin(struct replica *rep);
void replica_unpin(struct replica *rep);
/* See grant.lookers. chunk->lock is held. After the last grant_looked() the grant may go when that is given up. */
void grant_look(struct grant *g);
void grant_looked(struct grant *g);
/* It is ready for one grant more, for which it is pinned; or for one less. chunk->lock is held. */
void replica_ready_more(struct replica *rep);
void replica_ready_less(struct replica *rep);
/* Memory for snapshots, made when first needed; NULL if there is none. It stays until replica_shadow_done() was called
 * as often, which frees it (as replica_shadow_trim() does) if no page is in it. */
struct devmem *replica_shadow(struct replica *rep);
void replica_shadow_done(struct replica *rep);
/* chunk->lock held. */
void replica_shadow_trim(struct replica *rep);

/* ---- unused.c ---- */

/*
 * The replica of the chunk that the mapping uses, if it has memory that can be filled and is not leaving: it is known as being
 * filled until replica_filled(), and stays while one of its pages is locked. NULL: none can be filled; *@there: there is one.
 * chunk->lock is held.
 */
struct replica *replica_to_fill(struct mapping *m, struct chunk *ch, bool *there);
void replica_filled(struct replica *rep);
/*
 * Make that replica, of which nothing is current: in memory that is free, or in place of another that was read ahead and not used. No lock is
 * held. -ENOMEM: there is no room; -EMFILE: other readers have too many of the chunk. 0 also if there is one by now.
 */
int replica_make_ahead(struct mapping *m, uint64_t index);
/* Free it, if nothing was brought into it, and that needs no waiting. No lock is held. */
void replica_drop_empty(struct mapping *m, uint64_t index);

/* ---- evict.c ---- */

/*
 * Evict the chunks' replicas on the device on request: -EBUSY if one is pinned. With a mapping @m only the replicas
 * that it uses, each of which stays (-EBUSY) if another mapping maps it. The others go in any case; the first error. [W]
 */
int replicas_drop(struct chunk *const *list, unsigned n, struct cache_device *dev, const struct mapping *m);
/* Evict the chunks' replicas, if nobody uses them. */
void replicas_drop_idle(struct cache *c, struct chunk **list, unsigned n);
/* So many chunks are evicted at a time, on request: a thread that needs one of them waits for all. */
#define EVICT_AT_ONCE 64u

/* ---- room.c ---- */

/*
 * Pins the replicas of the file's chunks index[0..n), in order, made where missing, into @out: all or none (-ENOMEM).
 * Unreleased writes of clients that have died are dropped on the way. [W]
 */
int replicas_pin(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out);
/*
 * The same of those that the mapping holds something of, up to the first that it does not: how many. Makes none, and so
 * takes no dev->reserve and waits for no client.
 */
uint64_t replicas_pin_again(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out);

/* ---- mapping.c ---- */

/* The mapping's grants of the chunks in which @segs lie that hold something, in order, with their replicas pinned; *@out must
 * be freed. */
unsigned grants_pin(struct mapping *m, struct segments segs, struct grant ***out);
/*
 * The same for grants whose memory the client maps, of chunks from @from on. @idle: also those that hold nothing; takes
 * dev->reserve. [W]
 */
unsigned grants_pin_mapped(struct mapping *m, struct segments segs, uint64_t from, bool idle, struct grant ***out);

/* ---- grant.c ---- */

struct grant *grant_get(struct mapping *m, struct replica *rep);
/* chunk->lock held: the pin follows what is held, unless the chunk is ready, and to_come. */
void grant_repin(struct grant *g);
/* The same, and what is held for writing is counted. */
void grant_catch_up(struct grant *g);
/*
 * Drop what clients that are gone hold of the replica, which is pinned. If they may have left the memory to somebody it is spoiled
 * from now on; returns whether that is new. @known: clients that were alive when the caller began, and are not asked again. (Clients
 * that were not alive are not kept there: another could get the same address.)
 */
#define LIVING_KNOWN 8u
struct living {
	const void *client[LIVING_KNOWN];
	unsigned n; /* ever noted */
};
bool grants_drop_dead(struct replica *rep, struct living *known);
/*
 * The same of the chunk's replicas on the device, which nobody need have pinned; nor does who looks here, so that whoever decides
 * meanwhile what is in use is not misled. @wait: for those who have the pages; else what they have is left as it is.
 */
void chunk_drop_dead(struct chunk *ch, const struct cache_device *dev, struct living *known, bool wait);
/* Give up all holds, and acquires to come. @wait false: but those of pages that somebody has. */
void grant_discard(struct grant *g, bool wait);

/* ---- grant.c: what mappings hold. chunk->lock is held; bitmaps have one bit for each page of the chunk; bits are set, not cleared. ---- */

/* Those of pages [a, b) that some mapping holds. */
void replica_held(struct replica *rep, unsigned a, unsigned b, uint64_t *bits);
/* Those that the grant's mapping holds: in any way; for writing; or for overwriting, by an acquire that has succeeded. */
enum held_as { HELD, HELD_WRITING, HELD_OVERWRITING };
void grant_held(const struct grant *g, unsigned a, unsigned b, enum held_as what, uint64_t *bits);
/* Those that it holds @n times at most, so that a release that takes so many holds away is the last. */
void grant_held_at_most(const struct grant *g, unsigned a, unsigned b, unsigned n, uint64_t *bits);
/*
 * Add @n holds, of which @writes are for writing, to each of the pages, which are locked; pages from @beyond on are beyond the end
 * of the file. -EOVERFLOW, -ENOSR: too many of a page, or too many spans; nothing was done.
 */
int grant_hold(struct grant *g, unsigned a, unsigned b, unsigned beyond, unsigned n, unsigned writes);
/* The acquire has succeeded: its holds, of whatever chunks the pages lie in, count from now on. No lock is held, or chunk->lock; */
void mapping_settle(struct mapping *m, const struct segment *s);
/* and those of these pages are for overwriting, until replica_overwritten(): all of them were published. They are locked. */
void grant_overwrites(struct grant *g, const uint64_t *pages);
void replica_overwritten(struct replica *rep, const uint64_t *pages);
/* or they are taken back: what was stored under a hold for writing is void, if it was the last; @untold: nothing can have been. */
void grant_unhold(struct grant *g, unsigned a, unsigned b, unsigned n, unsigned writes, bool untold);
/* Take @n holds away from each; @ended: those that were held for writing and are not any more, of which the replica must be told. */
void grant_released(struct grant *g, unsigned a, unsigned b, unsigned n, uint64_t *ended);
/* The same if nothing can be published because the device is gone. */
void grant_release_lost(struct grant *g, unsigned a, unsigned b, unsigned n);
/* mapping->lock held; the chunks are ready. One more hold of each page, coming. -EOVERFLOW, -ENOSR. */
int mapping_hold(struct mapping *m, struct page_span span, bool write);
/* The same. There are fewer spans now: what is not needed of what was asked for is given back. */
void spans_give(struct mapping *m);
/*
 * No lock held. A release of these pages may cut spans in two: keep room for that, for so many spans more, to be given back by
 * spans_room_end(). -ENOSR: there is none.
 */
int spans_room(struct mapping *m, struct segments segs, uint64_t *more);
/* Keep room for so many. */
int spans_keep(struct mapping *m, uint64_t more);
void spans_room_end(struct mapping *m, uint64_t more);
/*
 * mapping.wanted: add @n holds of each page, coming; settle them, wherever they are by now; or take them back, as far as they are
 * still there: for the pages up to the one returned, of which *@left are elsewhere. No lock is held.
 */
int wanted_add(struct mapping *m, uint64_t a, uint64_t b, unsigned n, bool write);
void wanted_settle(struct mapping *m, uint64_t a, uint64_t b, unsigned n);
uint64_t wanted_undo(struct mapping *m, uint64_t a, uint64_t b, unsigned n, bool write, unsigned *left);
void wanted_release(struct mapping *m, uint64_t a, uint64_t b, unsigned n);
/* Whether anything is wanted. */
bool wanted_any(struct mapping *m);
/* The chunk's first span, cut to the chunk, if there is any. */
bool wanted_first(struct mapping *m, uint64_t chunk, struct hold *out);
/*
 * Pages [a, b) are locked, and have been brought for reading or, with @write, also for writing; chunk->lock is held. Wanted holds
 * of them become holds, except that pages wanted for writing but brought for reading stay wanted. -EOVERFLOW: together these are
 * too many holds of a page, which stays wanted.
 */
int grant_take_wanted(struct grant *g, unsigned a, unsigned b, unsigned beyond, bool write);
/* The mapping ends, and nothing of any chunk is held. */
void mapping_holds_nothing(struct mapping *m);

/* Add a page to the runs of @op; if it continues the last run, to that. */
static inline void dev_run_add(struct dev_op *op, struct dev_run *runs, struct devmem *mem,
			       unsigned page, void *host, struct devmem *other)
{
	struct dev_run *last = op->n > 0 ? &runs[op->n - 1] : NULL;

	if (last && last->mem == mem && last->other == other &&
	    last->page + last->npages == page &&
	    (host ? (char *)last->host + (size_t)last->npages * GAIA_PAGE == host : !last->host)) {
		last->npages++;
		return;
	}
	runs[op->n++] = (struct dev_run){ .mem = mem, .other = other, .page = page, .npages = 1,
					  .host = host };
}

/* The place of the file's page in @chunk; @below or @above if it is before or after the chunk. */
static inline unsigned page_in_chunk(uint64_t page, uint64_t chunk, unsigned below, unsigned above)
{
	if (page / GAIA_CHUNK_PAGES < chunk)
		return below;
	if (page / GAIA_CHUNK_PAGES > chunk)
		return above;
	return (unsigned)(page % GAIA_CHUNK_PAGES);
}

static inline bool bit_test(const uint64_t *map, unsigned i)
{
	return map[i / 64] >> (i % 64) & 1;
}
static inline void bit_set(uint64_t *map, unsigned i)
{
	map[i / 64] |= 1ull << (i % 64);
}
static inline void bit_clear(uint64_t *map, unsigned i)
{
	map[i / 64] &= ~(1ull << (i % 64));
}
/* The first set bit of [a, b), or @b. */
static inline unsigned bits_first(const uint64_t *map, unsigned a, unsigned b)
{
	while (a < b) {
		uint64_t word = map[a / 64] >> (a % 64);

		if (word)
			return MIN(a + (unsigned)__builtin_ctzll(word), b);
		a = (a / 64 + 1) * 64;
	}
	return b;
}
/* The first clear bit of [a, b), or @b. */
static inline unsigned bits_first_clear(const uint64_t *map, unsigned a, unsigned b)
{
	while (a < b) {
		uint64_t word = ~map[a / 64] >> (a % 64);

		if (word)
			return MIN(a + (unsigned)__builtin_ctzll(word), b);
		a = (a / 64 + 1) * 64;
	}
	return b;
}
/* The next run of set bits before @b, from *j on: [*i, *j). Whether there is one. */
static inline bool bits_run(const uint64_t *map, unsigned b, unsigned *i, unsigned *j)
{
	*i = bits_first(map, *j, b);
	*j = bits_first_clear(map, *i, b);
	return *i < b;
}
#define FOR_RUNS(map, a, b, i, j) for (unsigned i, j = (a); bits_run(map, b, &i, &j);)
static inline void bits_set(uint64_t *map, unsigned a, unsigned b)
{
	while (a < b) {
		unsigned end = MIN((a / 64 + 1) * 64, b);

		map[a / 64] |= ~0ull >> (64 - (end - a)) << (a % 64);
		a = end;
	}
}
static inline unsigned bits_count(const uint64_t *map, unsigned words)
{
	unsigned n = 0;

	for (unsigned i = 0; i < words; i++)
		n += (unsigned)__builtin_popcountll(map[i]);
	return n;
}

#endif
