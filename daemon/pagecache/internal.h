/*
 * internal.h - what the files of pagecache/ share. Not for other rooms.
 *
 * Concurrency (the rules with numbers are in daemon/README.md):
 *
 * A page is guarded by its page lock, shared or exclusive, which is a state of the page and may be
 * held across I/O. Changing home's bytes, a replica's bytes, or what track.h says of the page takes
 * it exclusively; reading home's bytes takes it shared. The fields themselves are read and
 * written under chunk->lock, a mutex that is never held across anything that waits, so that who holds the
 * page lock may look at them without it only where nobody else can write them.
 *
 * Locks, in the order in which they are taken:
 *	cache_device.dead_lock	somebody looks for what clients that are gone hold			[W] only
 *	cache_device.reserve	what an acquire gets, and what is evicted, is decided: not while waiting
 *	cfile.range		shared: who uses contents; exclusive: who removes them (truncate)
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

/* ---- frames.c: home memory ---- */

/* A page of home memory: slab number and position. 0 is none. */
typedef uint32_t frame_t;

struct slab {
	/* A bit a frame that nobody has; none without memory. All in one cache line. */
	_Alignas(64) _Atomic uint64_t free[GAIA_CHUNK_PAGES / 64];
	void *memory;	    /* GAIA_CHUNK bytes; frames->lock, or, to read it, one of its frames */
	atomic_bool needed; /* frames were taken or given since frames_trim() */
};

struct frames {
	/* Constant once there are any. */
	const struct cache_device *dev; /* those who are told of slabs */
	unsigned n_devices;
	uint64_t budget; /* frames */
	unsigned room;

	_Atomic uint64_t used; /* frames: never above the budget but by who goes beyond it */
	_Atomic uint64_t *some; /* a bit a slab; set if it has free frames */

	pthread_mutex_t lock;
	/* lock. Tables grow only, and are read without. */
	struct slab **slab;
	atomic_uint n_slabs, n_memory; /* of all; of those with memory */
};

int frames_init(struct frames *fr, uint64_t bytes);
void frames_destroy(struct frames *fr);
/*
 * Take up to @n frames, consecutive where there are such. Returns how many: fewer if the budget
 * is used up. @beyond: regardless of the budget; fewer then only without any memory.
 */
unsigned frames_take(struct frames *fr, unsigned n, frame_t *out, bool beyond);
void frames_give(struct frames *fr, const frame_t *frame, unsigned n);
/* Give the system what was empty since the last call; @all: what is empty now. Devices may take their time. */
void frames_trim(struct frames *fr, bool all);
void *frame_ptr(const struct frames *fr, frame_t frame);

/* ---- chunks ---- */

enum {
	PAGE_DIRTY = 1,	 /* home differs from the store; has a frame */
	PAGE_LOCKED = 2, /* exclusively */
	PAGE_STORED = 4, /* not dirty: home's bytes were stored; without a sync since, perhaps not for good */
	PAGE_SYNCING = 8, /* and were so before the sync that is under way */
	PAGE_GIVEN = 16, /* the kernel's cache was given home's bytes, or gave them */
	PAGE_SHARERS_TURN = 32, /* those who waited to share it go first, before the next exclusive lock */
};

struct page {
	frame_t frame;
	uint8_t flags;
	uint8_t readers; /* holders of the shared lock */
	uint8_t lockers, sharers; /* who wait: for the exclusive lock, for the shared one */
};

/* Pages come in leaves, so that a small file costs little. A leaf never moves while its chunk lives, so that
 * who holds a page's lock may look at the page without chunk->lock. */
#define LEAF_PAGES 64u

/* Saved bytes that are the base of merges to come: a twin. */
struct twin {
	struct twin *next;
	track_id id;
	frame_t frame;
};

/* Of the few pages that have twins. All its frames are counted in cache.n_kept. */
struct page_extra {
	unsigned page;
	struct twin *twins;
	frame_t owners;	 /* see merge3_owned(); where several devices write */
	frame_t under;	 /* what the store held when it was last made equal to home, see passthrough.c; 0: home's */
	UT_hash_handle hh;
};

/* Of a chunk that a device has touched. */
struct chunk_track {
	struct page_track page[GAIA_CHUNK_PAGES];
	struct page_extra *extra; /* hash */
};

struct grant;
struct replica;

/* What was a replica's memory until other took its place, and is taken back from the clients that map it. Nobody holds any of it. */
struct old_memory {
	struct old_memory *next;
	struct cache_device *dev;
	struct devmem *mem;
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
	pthread_cond_t unlocked; /* some page lock was dropped, or the delivery of a grant has ended */

	/* lock. */
	struct page *leaf[GAIA_CHUNK_PAGES / LEAF_PAGES]; /* NULL: absent, clean, unlocked */
	/* Set with lock held. Without it, what was done before is seen: all_dirty(), chunk_list_unsynced(). */
	atomic_uint n_frames, n_dirty, n_stored;
	atomic_uint n_ahead; /* page releases not merged yet, over all devices */
	bool unsynced;	     /* one of the last three is not 0: in file->unsynced */
	struct chunk_track *track;    /* NULL: no device has a replica, and none is needed */
	struct replica **replica;     /* in order of the devices */
	unsigned n_replicas;
	struct old_memory *old; /* all pages are locked as well when it changes */

	atomic_bool referenced; /* used since the LRU scan last came by */

	/*
	 * The lists of the cache (CHUNK_*) that it is on, or on its way to. Set with lock held, by who puts it there; cleared
	 * with cache->lock held.
	 */
	atomic_uint lists;
	/* On the way: see chunk_arrive(). */
	atomic_uint arriving;
	struct chunk *next_arrival;
	uint64_t dirty_since, ahead_since; /* ns; constant while on that list */
	uint64_t tried;	      /* the flusher's own: the round in which it could not be stored */
	/* cache->lock. */
	TAILQ_ENTRY(chunk) lru, dirty, emptied, ahead;
};
TAILQ_HEAD(chunk_list, chunk);
enum {
	CHUNK_LRU = 1,	   /* has frames */
	CHUNK_DIRTY = 2,   /* has dirty pages */
	CHUNK_EMPTIED = 4, /* the flusher is to take it off the LRU list */
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
	atomic_uint uses; /* holds and chunks: at 0 the cfile ends; without the lock if it is neither 0 before nor after */
	bool forgotten;
	UT_hash_handle hh;

	pthread_rwlock_t range;
	atomic_uint range_waiters; /* for range, exclusively; everybody else waits behind them */

	pthread_mutex_t lock;
	/* lock. */
	struct chunk *chunks; /* hash by index */
	TAILQ_HEAD(, chunk) unsynced; /* those that a sync has to do with, of which others may be many more; in no order */
	struct store_file *store_r, *store_w; /* opened when first needed; store_w serves both */
	int error;	      /* the last failed writeback's */
	uint64_t error_seq;

	/* The flusher's own: the round in which it came to the file, and how many of its chunks could not be stored then. */
	uint64_t tried;
	unsigned failed;
	bool complained;      /* about writeback, since it last worked */
	uint64_t failed_ns;   /* when it last did not */
	TAILQ_HEAD(, sync) syncs;  /* under way, in order */
	pthread_cond_t sync_ended; /* one of them is not any more */
	uint64_t syncs_begun;	   /* ever */
	/* What the store's is to be when what is dirty has been stored. */
	struct timespec mtime;
	bool mtime_set;

	atomic_uint_least64_t size;
	atomic_uint_least64_t n_dirty, n_stored; /* pages */
	atomic_uint_least64_t syncs_failed; /* ever; raised before what is stored is looked for, and when that is dirty: see store_again() */
	atomic_uint_least64_t n_ahead; /* page releases not merged yet, over all devices */
	atomic_uint_least64_t n_windows; /* invalidations of pages that have not completed */
	atomic_bool gone;
	/* Changed with range held exclusively; see passthrough.c. */
	atomic_bool passthrough;
	/*
	 * In that state, whether CPU programs may change the store's file; if not, whether home has what they did: one
	 * of CPU_*, and how often that changed.
	 */
	atomic_uint_least64_t cpu_writes;
	/* Where sequential readers would go on: hints, relaxed. */
	atomic_uint_least64_t stream[READ_STREAMS];
	atomic_uint oldest_stream;
	atomic_uint mappings;
	struct readers *readers; /* hash; lock */

	/* cache->lock: kernel copies to be invalidated again. */
	uint64_t again_asked, again_done;
};

/*
 * Mappings that may only read, but could store: those of one file on one device by one user, or a single one. They share replicas,
 * beside the one of who may write. Lives as long as one of them.
 */
struct readers {
	/* Constant. */
	struct readers_of {
		unsigned device;
		uid_t uid;
	} of;
	bool alone; /* a single one's: not in the table, where others would find it */

	/* file->lock. */
	unsigned mappings;
	UT_hash_handle hh;
};

/*
 * A device's copy of a chunk. Its pages are guarded as the chunk's pages are. A chunk has at most one on a device
 * that clients share, and one more for each struct readers: such a copy is only ever filled. Nothing is read
 * from it or released in it, and it ends with the last of their mappings.
 */
struct replica {
	struct chunk *chunk; /* holds a reference */
	struct cache_device *dev;
	struct readers *only; /* whose it is; NULL: shared by all who may write */

	/* chunk->lock. */
	struct devmem *shadow;	/* snapshots of secured pages; used by who locks the page */
	unsigned n_snapped, n_shadow_users;
	LIST_HEAD(, grant) grants;
	bool spoiled; /* who holds nothing of it, and is no client any more, may be storing there */
	unsigned n_suspects; /* grants */
	struct page_replica page[GAIA_CHUNK_PAGES];

	/* dev->lock; who pins it may look at mem without, once there is any. */
	struct devmem *mem; /* NULL: promised to the acquire that has made it, which others may wait for */
	unsigned pins;	/* grants that hold pages, calls in progress */
	struct pinner *pinners; /* see users.c */
	bool evicting;	/* the one pin is the evictor's, and nobody may join it; set under dev->reserve, too */
	bool failed;	/* the promise was not kept; ends with the last pin */
	uint64_t stuck;	/* it could not be evicted: dev->n_stuck of then */
	TAILQ_ENTRY(replica) link; /* in dev->idle iff pins == 0, else in dev->busy; of what failed in neither */
};

/* chunk->lock held. */
static inline bool replica_is_spoiled(const struct replica *rep)
{
	return rep->spoiled || rep->n_suspects > 0;
}

/* What one mapping has to do with one replica. Lives while the mapping knows the replica. */
struct grant {
	struct mapping *mapping;
	struct replica *replica;
	LIST_ENTRY(grant) of_replica; /* chunk->lock */
	UT_hash_handle hh;	      /* mapping->lock; by chunk index */
	uint64_t index;

	/* chunk->lock. */
	unsigned to_come; /* acquires, for which the chunk stays (GAIA_PROT_PIN) */
	bool pinned;	/* the mapping holds pages of it, or to_come: holds a pin on the replica */
	bool in_delivery; /* some acquire is handing the replica's memory to the client; or what was that before is taken back from it */
	/* The client maps it, when it has handled this message (cache_host.grant); 0: it does not. */
	uint64_t delivered;
	bool offered; /* sent to the client, which has not said that it maps it: it may, and is asked to unmap it */
	unsigned lookers; /* who asks its client, or drops what it holds; it and its mapping stay meanwhile */
	bool suspect; /* its client is gone, and may have left the memory to somebody: known when the mapping has ended */
	bool unanswered; /* it was asked to unmap it, and has not said that it did */
};

/* Pages [a, b) of a file. */
struct page_span {
	uint64_t a, b;
};

/* An acquire to come (GAIA_PROT_PIN), and the chunks that stay for it: each is counted in its grant's to_come. */
struct pin {
	STAILQ_ENTRY(pin) link; /* mapping.pins, oldest first */
	struct page_span span;
	bool taken;		/* the acquire has come, and is under way */
	uint64_t first, n;	/* chunks of the file */
	unsigned n_beyond;	/* runs of others of the span, which the client maps */
	struct chunk_span {
		uint64_t a, b;
	} beyond[];
};

struct mapping {
	struct cfile *file; /* held */
	struct cache_device *dev;
	void *client;
	struct cache_user user;
	uint64_t id;
	unsigned prot;
	bool export_write;    /* descriptors for the client allow writing */
	struct readers *readers; /* whose replicas it has; NULL: the shared ones */
	uint64_t off, len;
	pthread_mutex_t lock; /* taken inside chunk.lock */
	/* lock. */
	struct grant *grants;
	struct holds holds; /* of pages of chunks that it has a grant of: each is counted in the replica (replica_hold()) */
	/*
	 * Acquired when they lay beyond the end, in chunks that the client does not map: an acquire by which
	 * it gets the chunk acquires them, too.
	 */
	struct holds wanted;
	unsigned span_blocks; /* of these two that were asked for, see cache_host.spans */
	STAILQ_HEAD(, pin) pins;
	unsigned n_pins;
	_Atomic uint64_t kept; /* "break.reuse_mapped": 1 + a chunk that the client was left with */
};

/* Whether pages are copied from another device. */
enum peer {
	PEER_NONE,
	PEER_NEW, /* yes, but none was seen to arrive as it was sent */
	PEER_PROVEN,
};

struct cache_device {
	struct device *dev;
	unsigned index;
	unsigned each_percent; /* of it, that each user may have pinned */
	struct log_pace pace;
	pthread_mutex_t dead_lock, reserve;
	pthread_mutex_t lock;
	/* lock. */
	uint64_t used, pinned; /* bytes; pinned: all that is not idle */
	uint64_t promised, leaving; /* of pinned: without memory yet, being evicted */
	uint64_t n_left; /* how often replicas have gone, or were to be evicted and stay */
	uint64_t n_stuck; /* of these, those that could not be evicted */
	pthread_cond_t changed; /* n_left has, or a promise was kept or broken */
	struct device_user *users; /* hash by uid: who pins something, other than the owners of the mount */
	uint64_t user_chunks;	   /* that any of them pins */
	TAILQ_HEAD(, replica) idle; /* first: longest unused */
	TAILQ_HEAD(, replica) busy;
	_Atomic uint64_t read_ns; /* a page, moving average (relaxed); 0: not known */
	atomic_bool gone;	/* for good: an operation said so (-ENODEV) */
	atomic_bool complained; /* about fetching, since it last worked */
	_Atomic uint8_t peer[CACHE_MAX_DEVICES]; /* enum peer, by the other's index */
};

struct race {
	uint64_t file;
	uint64_t off;
	unsigned owner; /* the device's, + 1 */
};
#define RACES_KEPT 32

/* The kernel's copy of a page lacks something: the notifier thread invalidates it. */
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
	_Atomic uint64_t store_read_ns; /* a page, moving average (relaxed); 0: not known */

	pthread_mutex_t lock;
	/* lock. */
	struct cfile *files;	/* hash by key */
	struct chunk_list lru;	/* chunks with frames; first: longest unused */
	unsigned n_lru;
	struct chunk_list dirty; /* first: longest dirty */
	struct chunk_list ahead; /* first: released longest ago */
	struct chunk_list emptied;
	_Atomic(struct chunk *) arrivals; /* not on their lists yet; the last one first; pushed without lock */
	TAILQ_HEAD(, again) again;
	pthread_cond_t again_cond, again_done, flusher_cond, fetcher_cond;
	atomic_bool stopping;
	bool idle_files; /* the flusher is to look for files to drop */
	struct race race[RACES_KEPT];
	uint64_t n_races;

	atomic_uint_least64_t n_dirty; /* pages */
	atomic_uint_least64_t n_ahead; /* page releases not merged yet, over all devices */
	struct log_pace pace;
	atomic_uint_least64_t n_kept;  /* frames for merges to come: see page_extra */
	pthread_t flusher, fetcher, notifier;
	pthread_rwlock_t round; /* shared: the flusher's and the fetcher's while they are at work; before all other locks (1) */
};

/* ---- file.c ---- */
/* A chunk was made, is gone; the latter may end the cfile. */
void cfile_use(struct cfile *f);
void cfile_unuse(struct cfile *f);
/* file->range, for who removes contents: those who have it shared for long give him a turn. */
void range_lock_exclusively(struct cfile *f);
/* Drop what files that nothing holds and nobody knows still cache. The flusher's. */
void idle_files_reap(struct cache *c);
/* The file's path, for people: without bytes that would spoil a line of text. No lock held. */
#define CFILE_NAME_MAX 4096u
const char *cfile_name(struct cfile *f, char buf[CFILE_NAME_MAX]);

/* ---- chunk.c: chunks, page locks, frames for them, eviction of home ---- */

struct chunk *chunk_get(struct cfile *f, uint64_t index, bool make);
struct chunk *chunk_ref(struct chunk *ch);
void chunk_put(struct chunk *ch);
/* References to the chunks of [first, last], in order; *@out to be freed. */
unsigned chunk_list_get(struct cfile *f, uint64_t first, uint64_t last, struct chunk ***out);
/* Of these the ones that have such pages (@what: one of the enum), looking at no others. */
enum unsynced {
	UNSYNCED_AHEAD,	 /* released, and not merged */
	UNSYNCED_DIRTY,	 /* not stored */
	UNSYNCED_STORED, /* and without a sync since */
	UNSYNCED_ANY,	 /* also where pages are about to become one from another of these */
};
unsigned chunk_list_unsynced(struct cfile *f, uint64_t first, uint64_t last, enum unsynced what,
			     struct chunk ***out);
/* chunk->lock held. @more releases of its pages are not merged yet. */
void chunk_count_ahead(struct chunk *ch, int more);

/* chunk->lock held. The page, its leaf made if need be. */
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

/* chunk->lock held, dropped while some page lock of the chunk is waited for. */
void page_wait(struct chunk *ch);
/* The same, and pages [a, b). */
void pages_lock(struct chunk *ch, unsigned a, unsigned b);
void pages_unlock(struct chunk *ch, unsigned a, unsigned b);
bool page_trylock(struct chunk *ch, unsigned i);
/*
 * A thread that shares a page waits for later pages only: not for the same one again, since who waits for it exclusively
 * goes first (17).
 */
void page_share(struct chunk *ch, unsigned i);
bool page_tryshare(struct chunk *ch, unsigned i);
void page_unshare(struct chunk *ch, unsigned i);
/*
 * No lock held: unshare pages [a, b). @given: the kernel's cache has them now, so that nobody will ask
 * for them soon. They leave home, unless devices share the file or home is all there is of their bytes.
 */
void pages_unshare(struct chunk *ch, unsigned a, unsigned b, bool given);
/*
 * No lock held: a sync begins; and has ended. If it has worked, what was stored before it is on the disk, and those pages
 * leave home, as above, that the kernel has.
 */
void chunk_sync_begins(struct chunk *ch);
void chunk_sync_ended(struct chunk *ch, bool worked);
/* From exclusive to shared. */
void page_downgrade(struct chunk *ch, unsigned i);

/*
 * A frame for page i, which is locked exclusively. Neither chunk->lock nor another leaf held.
 * Evicts, stores, and at last goes beyond the budget; fails (-ENOMEM) only without any memory.
 */
int frame_alloc(struct cache *c, unsigned n, frame_t *out);
/* The two spare frames of kernel_page_write() and its like: those that are 0 are taken. To be given back, also on error. */
int spares_take(struct cache *c, frame_t spare[2]);
void spares_give(struct cache *c, frame_t spare[2]);
/* Home's bytes of a page that is present and locked by the caller, shared or exclusively. */
void *page_ptr(const struct chunk *ch, unsigned i);
/*
 * No lock but the file's range held: whether home can take @n pages more, that cannot leave it, and keep a quarter of its
 * budget for others: -ENOMEM. Evicts and stores until it can.
 */
int home_room_to_stay(struct cache *c, unsigned n);

/* chunk->lock held, page locked. Takes over @frame as home's bytes and returns the old one (or 0). */
frame_t page_set_frame(struct chunk *ch, unsigned i, frame_t frame);
/* The same of pages [a, b): they are dirty, and so not stored; or the other way round. */
void pages_set_dirty(struct chunk *ch, unsigned a, unsigned b);
void pages_set_stored(struct chunk *ch, unsigned a, unsigned b);
void page_clear_dirty(struct chunk *ch, unsigned i);
/* Drop home's copy: clean, or its dirt no longer matters. */
void page_drop(struct chunk *ch, unsigned i);

/* No lock held: put the chunk on the lists it belongs to. After frames or dirt were added. */
void chunk_account(struct chunk *ch);
/* Take the chunk off the lists that it no longer belongs to, so that it can end. */
void chunk_unlist(struct chunk *ch);
/* Drop the clean frames of a chunk that nobody uses: number of frames. */
unsigned chunk_shrink(struct chunk *ch);
/* The longest dirty chunk, if it is so for @age_ns: taken off its list, with the list's reference. */
struct chunk *chunk_due(struct cache *c, uint64_t age_ns);
/* The same of those with pages that were released so long before @at_ns and not fetched. */
struct chunk *chunk_due_ahead(struct cache *c, uint64_t age_ns, uint64_t at_ns);
/* Take chunks whose last frame left with a read off the LRU list. */
void emptied_reap(struct cache *c);

/* ---- writeback.c ---- */
void *flusher_main(void *cache);
void *fetcher_main(void *cache);
/*
 * Store the dirty pages of [a, b). @wait: for pages that are locked; else they are passed over. file->range held
 * shared or exclusively. 0 or the first error; the pages stay dirty then.
 */
int chunk_store(struct chunk *ch, unsigned a, unsigned b, bool wait);
/* As chunk_store() for eviction: tries all its locks. Number of pages stored. */
unsigned chunk_store_some(struct chunk *ch);
int cfile_store(struct cfile *f, bool write, struct store_file **out);
/* Pages of the file could not be stored: for who asks next, and the log. */
void store_failed(struct cfile *f, int err);
/* What is dirty and stored later was written now; */
void cfile_touch(struct cfile *f);
/* has the modification time that the store's file has now, unless it has one of its own; */
int cfile_keep_time(struct cfile *f);
/* one of the two: who writes may tell the time himself (times_above). */
void cfile_wrote(struct cfile *f);
/*
 * Before home takes more of the file: 0, or the error with which its pages cannot be stored, when dirty pages have used
 * up home's budget. Else what cannot be stored would take all of the machine's memory. file->range held.
 */
int cfile_make_room(struct cfile *f);
/* Merge home what devices released in a range (len 0: to the end). file->range held. */
int cfile_fetch(struct cfile *f, uint64_t off, uint64_t len);

/* ---- home.c: contents of home pages ---- */
/*
 * Make home present and current for pages [a, b), all locked exclusively: merge what devices released, read what is absent.
 * file->range held. Only pages below the end of the file.
 */
int home_bring(struct chunk *ch, unsigned a, unsigned b);
/* Only the absent ones, without regard to devices. */
int home_fill(struct chunk *ch, unsigned a, unsigned b);
/* Of those the ones in @pages (a bit a page), all runs of them at a time. */
int home_fill_some(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages);
/*
 * The same in two steps: in between pages are on their way from the store. They stay locked, and file->range held, until
 * all that was begun, for whatever pages, is ended. By one thread.
 */
struct fill;
struct fills {
	STAILQ_HEAD(, fill) list; /* under way */
	uint64_t began;		  /* ns; 0: nothing was */
	bool ahead;		  /* before it is needed */
	bool in_order;		  /* after what lies before it in the file */
	bool more;		  /* more is begun before any is waited for */
};
#define FILLS(name, ahead_) { .list = STAILQ_HEAD_INITIALIZER((name).list), .ahead = (ahead_) }
int home_fill_begin(struct fills *fills, struct chunk *ch, unsigned a, unsigned b);
/* 0 or the first error; what was read is home's in any case. */
int home_fill_end(struct fills *fills);
/* cache_write() where file->range is held; @buf NULL: zeros. */
int home_write(struct cfile *f, const void *buf, size_t len, uint64_t off,
	       enum cache_write_kind kind);
extern const char frame_zeros[GAIA_PAGE];
/* Bytes of the page that are below the end of the file: 0 to GAIA_PAGE. */
unsigned page_limit(const struct chunk *ch, unsigned i);

/* ---- ahead.c: what an acquire will need from the store ---- */

#define AHEAD_CHUNKS 4u /* under way beyond the one at work, at most */
struct batch;
/* Of one acquire: of pages @span of the chunks of reps[0..n). */
struct ahead {
	struct replica **reps;
	uint64_t n;
	struct page_span span;
	bool write;
	uint64_t next; /* the first that was not begun */
	struct batch *batch[AHEAD_CHUNKS]; /* chunk k's at k % AHEAD_CHUNKS */
};
void ahead_init(struct ahead *ah, struct replica **reps, uint64_t n, struct page_span span, bool write);
/* file->range held from here to ahead_drain(): chunk k is at work, let those after it be read. */
void ahead_go_on(struct ahead *ah, uint64_t k);
/* Chunk k's turn: what was read of it is home's, and all of it unlocked. What could not be read is absent as before. */
void ahead_arrived(struct ahead *ah, uint64_t k);
/* The same of all. */
void ahead_drain(struct ahead *ah);

/* ---- passthrough.c: files that CPU programs have open past the cache. Nothing happens to others. ---- */

/* Whether CPU programs may write the store's file past us: acquires and releases read it to compare. */
bool passthrough_compares(struct cfile *f);
/* The size that the store's file has by now. file->range held. */
int passthrough_size(struct cfile *f);
/* Whatever was released of pages [a, b), locked exclusively, and CPU programs have changed, becomes home's. */
int passthrough_catch_up(struct chunk *ch, unsigned a, unsigned b);
/*
 * Before pages are acquired to write: home's bytes are the only base of what is written then, and stay until the release.
 * -ENOMEM: there is no room for @n pages more, unless for the owners of the mount.
 */
int passthrough_room(const struct mapping *m, unsigned n);
/*
 * A release: before pages are locked, file->range held: whether there is room for what may not be stored, and the size;
 * then what earlier ones left unmerged of pages [a, b); then, when they are released, CPU programs are to see them, or an
 * error is told; at last, with nothing held, what earlier ones could not store of the range is tried again.
 */
int passthrough_before_release(struct cfile *f);
int passthrough_left_over(struct chunk *ch, unsigned a, unsigned b);
int passthrough_released(struct chunk *ch, unsigned a, unsigned b);
int passthrough_release_again(struct cfile *f, uint64_t off, uint64_t len);
/* cache_read() and cache_write() of such a file. */
ssize_t passthrough_read(struct cfile *f, void *buf, size_t len, off_t off);
int passthrough_write(struct cfile *f, const void *buf, size_t len, off_t off);
/* chunk_store() of such a file. */
int passthrough_store(struct chunk *ch, unsigned a, unsigned b, bool wait);

/* ---- coherence.c: twins, merging, what the kernel holds ---- */

/* Merge all releases of pages [a, b) (locked) home. -EIO: some are lost with their device. */
int fetch_pages(struct chunk *ch, unsigned a, unsigned b);
/*
 * The same, for fear of who may store to spoiled replicas: what cannot be fetched from these now is copied on their device, and fetched
 * from there later. The error of the fetch, if there is one.
 */
int pages_secure(struct chunk *ch, unsigned a, unsigned b);
/* chunk->lock held; page i is locked and about to be written over: what is lost of it does not matter any more. */
void page_drop_lost(struct chunk *ch, unsigned i);
/*
 * Home's bytes of pages [a, b), which are locked exclusively, have changed; file->range held. If what is kept for merges to
 * come has more than its share of home, the devices that would need the bytes from before are given home's present ones (19).
 */
#define KEPT_SHARE 4u
void kept_trim(struct chunk *ch, unsigned a, unsigned b);

/*
 * A WRITE changes a tracked page, which is locked, has a frame, and of which no release is unmerged;
 * chunk->lock is held. @present: home had bytes before (a frame without is just memory). @spare: two
 * frames that may be taken, and are set to 0 then.
 */
void kernel_page_write(struct chunk *ch, unsigned i, bool present, const void *bytes, unsigned len,
		       frame_t spare[2]);
void exact_write(struct chunk *ch, unsigned i, bool present, unsigned off, const void *bytes,
		 unsigned len, bool through, frame_t spare[2]);
/* The same for bytes that a truncate turns to zeros from @cut on. */
void truncate_page(struct chunk *ch, unsigned i, unsigned cut, frame_t spare[2]);

void *notifier_main(void *cache);
/* Wait until the invalidations that were asked for until now are done. [W] */
void again_wait(struct cfile *f);

/* ---- peer.c ---- */

/* When the devices are there: which reach which. */
void peers_find(struct cache *c);
/*
 * Of the pages [a, b) (locked) that @step says are to be sent to @rep, fill those that another device has just as home has
 * them, whether home is there or not: their step is TRACK_NOTHING then. @runs: room for as many. What fails is left
 * to be sent from home.
 */
void peer_send(struct replica *rep, unsigned a, unsigned b, uint8_t *step, struct dev_run *runs);

/* ---- scrub.c: what memory shows that clients map. chunk->lock held ---- */

/* Some client maps it, or is being handed it, or may be mapping it still. */
bool replica_is_mapped(const struct replica *rep);
bool chunk_is_mapped(const struct chunk *ch);
/*
 * Pages [a, b) are locked. If somebody maps the replica: what its memory must not show becomes zeros, where nobody holds it. Drops the
 * lock meanwhile. @fetch: where released bytes are in the way they are fetched first; file->range held.
 */
void replica_scrub(struct replica *rep, unsigned a, unsigned b, bool fetch);
/*
 * All pages are locked, and those from @end on lie beyond the end of the file: also what is merely old. An error: some may be as it was.
 */
int replica_scrub_old(struct replica *rep, unsigned end);
/* The same of all replicas, after something was removed from the file; file->range held exclusively. */
void chunk_scrub(struct chunk *ch, unsigned a, unsigned b);

/* ---- acquire.c ---- */

/* The mapping ends, and with it all acquires to come. */
void pins_drop(struct mapping *m);
/* Bring pages [a, b) of the replica's, which are locked, up to date as an acquire to read does. file->range held. */
int replica_bring(struct replica *rep, unsigned a, unsigned b);

/* ---- handover.c. [W] ---- */

/* The chunks of grant[0..n), whose replicas are pinned, where the client does not map them: 0 when it does, by what it says. */
int grants_deliver(struct mapping *m, struct grant **grant, uint64_t n);
/*
 * If somebody is handing the chunk over, until that has ended. @seq becomes at least the message by which the client has
 * it. False: it has not, since who was handing it over could not.
 */
bool delivery_wait(struct grant *g, uint64_t *seq);

/* ---- users.c: what each user has pinned. Nobody counts of the owners of the mount. ---- */

/* Whether the user may pin these replicas (NULL: one that is to be made). */
bool user_may_pin(const struct mapping *m, struct replica *const *reps, uint64_t n);
/* -ENOMEM, and a line in the log. */
int user_refuse(const struct mapping *m);
/*
 * He pins them, once each: all, or none if that is more than he may. They are pinned. Takes dev->reserve, so that who decides what an
 * acquire gets either counts them or is counted.
 */
bool user_pin_all(const struct mapping *m, struct replica *const *reps, uint64_t n);
void user_unpin_all(const struct mapping *m, struct replica *const *reps, uint64_t n);
/* chunk->lock held. Of a grant, for which there was room when its acquire began. */
void user_pin(const struct mapping *m, struct replica *rep);
void user_unpin(const struct mapping *m, struct replica *rep);
/* Bytes of a device that one may have pinned. */
uint64_t user_limit(const struct cache_device *dev);

/* ---- replica.c ---- */

/* device_run(), but for devices that are gone: -ENODEV, at once. */
int cache_device_run(struct cache_device *dev, struct dev_op *op);

/*
 * Evict the chunk's replicas on the device on request: -EBUSY if one is pinned. For the mapping @m, if it is not NULL: only the one
 * that it shares, which stays (-EBUSY) if another mapping maps it. [W]
 */
int replica_drop(struct chunk *ch, struct cache_device *dev, const struct mapping *m);
/* Evict the chunk's replicas, if nobody uses them. */
void replicas_drop_idle(struct chunk *ch);
/*
 * Pins the replicas of the file's chunks [first, last], made where missing, into @out: all or none (-ENOMEM).
 * Unreleased writes of clients that have died are dropped on the way. [W]
 */
int replicas_pin(struct mapping *m, uint64_t first, uint64_t last, struct replica **out);
/*
 * The same of those of the @n chunks from @first on that the mapping holds something of, up to the first that it does
 * not: how many. Makes none, and so takes no dev->reserve and waits for no client.
 */
uint64_t replicas_pin_again(struct mapping *m, uint64_t first, uint64_t n, struct replica **out);
/* dev->reserve held, or it is pinned by right, and stays so. False: it leaves. */
bool replica_pin(struct replica *rep);
void replica_unpin(struct replica *rep);
/* Memory for snapshots, made when first needed; NULL if there is none. Stays until as many calls of
 * replica_shadow_done(), which frees it (as replica_shadow_trim() does) when no page is in it. */
struct devmem *replica_shadow(struct replica *rep);
void replica_shadow_done(struct replica *rep);
/* chunk->lock held. */
void replica_shadow_trim(struct replica *rep);

struct grant *grant_get(struct mapping *m, struct replica *rep);
/* The mapping's grants of chunks [first, last] that hold something, in order, their replicas pinned; *@out to
 * be freed. */
unsigned grants_pin(struct mapping *m, uint64_t first, uint64_t last, struct grant ***out);
/* The same of those whose memory the client maps. @idle: also those that hold nothing; takes dev->reserve. [W] */
unsigned grants_pin_mapped(struct mapping *m, uint64_t first, uint64_t last, bool idle,
			   struct grant ***out);
/* chunk->lock held: the pin follows what is held and to_come. */
void grant_repin(struct grant *g);
/*
 * The replica is pinned. Drop what clients that are gone hold of it. Where they may have left the memory to somebody it is spoiled from now
 * on: whether that is news. @known: clients that were alive when the caller began, who are not asked again; those that
 * were not would be taken for others with the same address.
 */
#define LIVING_KNOWN 8u
struct living {
	const void *client[LIVING_KNOWN];
	unsigned n; /* ever noted */
};
bool grants_drop_dead(struct replica *rep, struct living *known);
/* Give up all holds, and acquires to come. */
void grant_discard(struct grant *g);

/* ---- grant.c: what mappings hold. chunk->lock held; bits are a page of the chunk each, and are set, not cleared. ---- */

/* Of pages [a, b) those that some mapping holds. */
void replica_held(struct replica *rep, unsigned a, unsigned b, uint64_t *bits);
/* Those that the grant's mapping holds: at all; for writing; once, so that its next release is the last. */
enum held_as { HELD, HELD_WRITING, HELD_ONCE };
void grant_held(const struct grant *g, unsigned a, unsigned b, enum held_as what, uint64_t *bits);
/*
 * The pages are locked. @n more holds of each, of which @writes are for writing; pages from @beyond on lie beyond the end of the file.
 * -EOVERFLOW, -ENOSR: too many of a page, or too many spans; nothing was done.
 */
int grant_hold(struct grant *g, unsigned a, unsigned b, unsigned beyond, unsigned n, unsigned writes);
/* The acquire has succeeded: they are there; */
void grant_settle(struct grant *g, unsigned a, unsigned b, unsigned n);
/* or they are taken back: what was stored under a hold for writing is void, if that was the last. */
void grant_unhold(struct grant *g, unsigned a, unsigned b, unsigned n, unsigned writes);
/* One hold less of each; @ended: bits of those that were held for writing and are not any more, of which the replica is to hear. */
void grant_released(struct grant *g, unsigned a, unsigned b, uint64_t *ended);
/* The same where nothing can be published: the device is gone. */
void grant_release_lost(struct grant *g, unsigned a, unsigned b);
/* No lock held. A release of [a, b) may cut spans in two: 0, or -ENOSR if there is no room for that. */
int spans_room(struct mapping *m, uint64_t a, uint64_t b);
/*
 * No lock held. mapping.wanted: one more of each page, coming; settled, wherever it is by now; or taken back, if it is still there (*@there):
 * of as many pages, up to the one returned, as that is so of.
 */
int wanted_add(struct mapping *m, uint64_t a, uint64_t b, bool write);
void wanted_settle(struct mapping *m, uint64_t a, uint64_t b);
uint64_t wanted_undo(struct mapping *m, uint64_t a, uint64_t b, bool write, bool *there);
void wanted_release(struct mapping *m, uint64_t a, uint64_t b);
/* The first span of the chunk's, as far as it lies there, if there is any. */
bool wanted_first(struct mapping *m, uint64_t chunk, struct hold *out);
/*
 * chunk->lock held; pages [a, b) are locked, and have been brought, to read or, @write, also to write: what is wanted of them is
 * held from now on, but what is wanted for writing and was brought to read. -EOVERFLOW: together it is too much of a page, which
 * stays wanted.
 */
int grant_take_wanted(struct grant *g, unsigned a, unsigned b, unsigned beyond, bool write);
/* The mapping ends; nothing of any chunk is held. */
void mapping_holds_nothing(struct mapping *m);

/* Add a page to the runs of @op, joining it to the last run where it continues that. */
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

/* The place of the file's page in @chunk; @below, @above: if it lies before, or after that. */
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
static inline unsigned bits_count(const uint64_t *map, unsigned words)
{
	unsigned n = 0;

	for (unsigned i = 0; i < words; i++)
		n += (unsigned)__builtin_popcountll(map[i]);
	return n;
}

#endif
