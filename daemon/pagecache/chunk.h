/*
 * chunk.h - chunks and their pages: chunk.c, page.c, page_lock.c, lists.c, leave.c.
 */
#ifndef GAIA_PAGECACHE_CHUNK_H
#define GAIA_PAGECACHE_CHUNK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uthash.h>

#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/frames.h"

struct cache;
struct cfile;
struct old_memory;
struct parked;
struct replica;

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
	frame_t frame : 31;
	frame_t indexed : 1; /* its frame is (shares.h): so the bytes do not change */
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
	struct parked *parked; /* which pages are parked on devices; NULL: none. See victim.h */
	frame_t lent; /* of memory that clients may map, the frame for its first page (see view.h); 0: there is none. It ends with all pages locked, and none in view */
	struct old_memory *old; /* all pages are locked, too, when it changes */

	bool lacks_bases; /* lock: home has dropped pages of a passthrough file that devices go on with: see passthrough.c */

	atomic_bool referenced; /* used since the LRU scan last looked at it */
	atomic_bool spared; /* it did so, and there is only what other pages have, too */

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
/* Whether others have its frame, too, or may find it at any time (dedup.h). */
static inline bool page_indexed(const struct chunk *ch, unsigned i)
{
	return page_at(ch, i) && page_at(ch, i)->indexed;
}

/* Whether home's copy of the page lies in memory that clients may map: then it stays there, and is changed in place. */
static inline bool page_in_view(const struct chunk *ch, unsigned i)
{
	return ch->lent && page_present(ch, i) && page_at(ch, i)->frame == ch->lent + i;
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
/* Count @n frames as used that are no slabs', as memory of the host device is not: evicts and stores for that, and at last goes beyond the budget. */
void home_reserve(struct cache *c, unsigned n);
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
/* Evict and store until home is within its budget, or nothing more can leave now; c->shrinking ends with it. No lock is held. */
void home_shrink(struct cache *c);

/* Make @frame, which is consumed, home's bytes, and return the old frame (or 0). @frame may be with FRAME_INDEXED. chunk->lock is held, the page is locked. */
frame_t page_set_frame(struct chunk *ch, unsigned i, frame_t frame);
/* In the same way: its frame is not indexed any more. */
void page_leaves_index(struct chunk *ch, unsigned i);
/* In the same way for pages [a, b): make them dirty, and so not stored; or stored, and so not dirty. */
void pages_set_dirty(struct chunk *ch, unsigned a, unsigned b);
void pages_set_stored(struct chunk *ch, unsigned a, unsigned b);
void page_clear_dirty(struct chunk *ch, unsigned i);
/* Drop home's copy, which is clean, or whose changes no longer matter. What clients may map of it becomes zeros. True: that made a frame free. */
bool page_drop(struct chunk *ch, unsigned i);

/* Put the chunk on the lists it belongs to, after frames or dirty pages were added. No lock is held. */
void chunk_account(struct chunk *ch);
/* Take the chunk off the lists that it no longer belongs to, so that it can end. */
void chunk_unlist(struct chunk *ch);
/*
 * Drop the clean pages of a chunk that nobody uses; returns how many frames are free by that. @park: they may be parked on a device. @alone: only those
 * whose frames no other pages have: to drop others frees nothing.
 */
unsigned chunk_shrink(struct chunk *ch, bool park, bool alone);
/* So many of its pages have been dropped from home, to make room or since somebody asked for it: counts them, and tells tracers. */
void home_evicted(const struct chunk *ch, unsigned n);
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

/* ---- for these files only ---- */

/* chunk.c. chunk->lock is held, also in what follows, unless stated otherwise. */
/* Free the leaves that say nothing: of pages without frames that nobody has locked or waits for. */
void chunk_trim_leaves(struct chunk *ch);
/* One of the counts has changed. */
void chunk_note_unsynced(struct chunk *ch);

/*
 * Pages become dirty, stored (PAGE_STORED) or, with @state 0, neither. One of the counters belongs to all files: so it is changed
 * once for all these pages.
 */
void pages_become(struct chunk *ch, unsigned a, unsigned b, uint8_t state);

/* Assert that this thread may wait for page i (17). */
void page_check_order(const struct chunk *ch, unsigned i);
/* Whether who locks the page to write it must go on with a copy (21). */
bool page_is_to_renew(const struct chunk *ch, unsigned i);

/*
 * Put the chunk on those of @lists that it is not on, with a reference for each. Nearly always it is on
 * them; if not, this still takes no lock that other files use: the chunk is added to cache.arrivals, and the thread that
 * next looks at the lists puts arrivals on them, in the order in which they came (lists_lock()).
 */
void chunk_arrive(struct chunk *ch, unsigned lists);
/* Lock the lists (cache->lock), and put on them what has arrived. Needs no chunk->lock. */
void lists_lock(struct cache *c);
/* The lists are locked as above, and the chunk is on the list; the list's reference becomes the caller's. */
void chunk_leave_lru(struct chunk *ch);

/* There is no memory for so many frames: logs that, and returns the error. Called without a lock. */
int home_no_memory(unsigned n);

#endif
