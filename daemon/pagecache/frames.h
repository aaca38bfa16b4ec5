/*
 * frames.h - home memory.
 */
#ifndef GAIA_PAGECACHE_FRAMES_H
#define GAIA_PAGECACHE_FRAMES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pagecache/cache.h"

struct cache_device;
struct shares;
struct slab_shares;

/* A page of home memory: slab number and position. 0 is none. */
typedef uint32_t frame_t;
/* Beside a frame's number, from dedup_frames() to page_set_frame(): it is indexed (shares.h). */
#define FRAME_INDEXED (1u << 31)

struct slab {
	/* One bit for each frame, set if nobody has it; none is set without memory. All in one cache line. */
	_Alignas(64) _Atomic uint64_t free[GAIA_CHUNK_PAGES / 64];
	void *memory;	    /* GAIA_CHUNK bytes; frames->lock, or, to read it, one of its frames */
	bool lent;	    /* a chunk's alone: see frames_lend(). Constant while it has memory */
	atomic_bool needed; /* frames were taken or given since frames_trim() */
	_Atomic(struct slab_shares *) shares; /* NULL: none of its frames has been shared, see shares.h. Stays */
};

struct frames {
	/* Constant once there are any. */
	const struct cache_device *dev; /* the devices to which slabs are announced, */
	unsigned room;
	struct shares *shares; /* NULL: frames are not shared */

	_Atomic uint64_t budget; /* frames: read it once where two reads must agree */

	_Atomic uint64_t used; /* frames; above the budget only by calls that may go beyond it */
	_Atomic uint64_t reserved; /* part of used: by frames_reserve() */
	_Atomic uint64_t *slabs_with_space; /* one bit for each slab; set if it has free frames */

	/* Held while memory of slabs comes or goes, until devices have heard; to write it while a device is added. Taken before lock. */
	pthread_rwlock_t telling;
	unsigned n_devices; /* so many; telling */

	pthread_mutex_t lock;
	/* lock. Tables only grow, and are read without it. */
	struct slab **slab;
	char **arena; /* addresses reserved for several slabs each; NULL: not yet */
	atomic_uint n_slabs, n_memory, n_lent; /* of all; of those with memory; of these, lent */
};

/* @bytes: the budget; @most: what frames_set_budget() may make of it. */
int frames_init(struct frames *fr, uint64_t bytes, uint64_t most);
/* -ERANGE: more than it was made for. What is used beyond it stays: it is for the caller to evict that. */
int frames_set_budget(struct frames *fr, uint64_t bytes);
void frames_destroy(struct frames *fr);
/*
 * Take up to @n frames, consecutive ones if there are any. Returns how many: fewer if the budget
 * is used up. @beyond: regardless of the budget; then fewer only if there is no memory.
 */
unsigned frames_take(struct frames *fr, unsigned n, frame_t *out, bool beyond);
/* Give back frames, or shares of them (shares.h). Returns how many frames nobody has any more. */
unsigned frames_give(struct frames *fr, const frame_t *frame, unsigned n);
/*
 * Make a slab of memory that belongs to a chunk: GAIA_CHUNK bytes at @memory, aligned to as much. Frame k of it is for page k of that chunk
 * and nothing else: it is neither taken nor given. Its budget is the caller's (frames_reserve()). Returns its first frame; 0: there are no
 * numbers left, or there is no memory. Ends with frames_lend_end(), when nothing refers to its frames. Both tell devices of the memory, so no lock is held.
 */
frame_t frames_lend(struct frames *fr, void *memory);
void frames_lend_end(struct frames *fr, frame_t first);
/*
 * The next device of the table @fr->dev hears of slabs, too: of all that there are, while nobody makes or gives back one. One call at a time.
 * -EBUSY: a device that has a slab to give back has not answered for 2 s, and nothing has changed.
 */
int frames_add_device(struct frames *fr);
/* Whether it is a frame of such a slab. */
bool frame_is_lent(const struct frames *fr, frame_t frame);
/* Count up to @n frames as used, by memory that is not of slabs, as frames_take() does: how many. And count them no more. */
unsigned frames_reserve(struct frames *fr, unsigned n, bool beyond);
void frames_unreserve(struct frames *fr, unsigned n);
/* Give back to the system what has been empty since the last call; @all: what is empty now. Devices may take their time. */
void frames_trim(struct frames *fr, bool all);
static inline void *frame_ptr(const struct frames *fr, frame_t frame)
{
	return (char *)fr->slab[(frame - 1) / GAIA_CHUNK_PAGES]->memory + (size_t)((frame - 1) % GAIA_CHUNK_PAGES) * GAIA_PAGE;
}

#endif
