/*
 * victim_inner.h - what victim.c and slabs.c share.
 */
#ifndef GAIA_PAGECACHE_VICTIM_INNER_H
#define GAIA_PAGECACHE_VICTIM_INNER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "gaia/protocol.h"
#include "pagecache/chunk.h"
#include "pagecache/victim.h"

struct ghosts;

/* A chunk's index: slots of its pages. Made when the first is parked, ended by victims_reap() when none is. */
struct parked {
	struct chunk *ch; /* a reference */
	/* victims.lock. */
	unsigned n;
	bool is_empty; /* it is in the list: */
	struct parked *next_empty;
	uint32_t *leaf[GAIA_CHUNK_PAGES / LEAF_PAGES]; /* numbers of slots; 0: none. A leaf stays until the end */
};

/* A slot's owner is 0: it is free; or a chunk's index, a page, and the slot's state. */
#define OWNER_PAGE 0x1ffull	  /* the page's number */
#define OWNER_BACK (1ull << 60)	  /* the page was read from here, and has not left home since: what is there is there twice */
#define OWNER_COMING (1ull << 61) /* under way to the device: it cannot be read */
#define OWNER_READ (1ull << 62)	  /* being read: it stays */
#define OWNER_GONE (1ull << 63)	  /* the page has none any more: the slot is free when what is under way has ended */
#define OWNER_STATE (OWNER_BACK | OWNER_COMING | OWNER_READ | OWNER_GONE)

struct victim_slab {
	struct devmem *mem;
	unsigned n_taken; /* slots that are not free */
	unsigned n_busy;  /* COMING or READ */
	bool leaves;	  /* is given up */
	uint64_t owner[GAIA_CHUNK_PAGES];
};

/* Of a device that has parked pages. */
struct victim_device {
	/* Constant. */
	struct cache_device *dev;
	uint32_t first, room; /* its slabs' numbers */
	bool is_auto;	      /* it leaves some of the free memory free */

	/* victims.lock. */
	unsigned n_slabs; /* with memory, also those that leave */
	uint64_t n_free;  /* slots of slabs that stay */
	uint32_t free_at; /* where a free slot was found last, as a slab's number from @first on */
	/* Where the next victim is looked for, among those that are BACK and the others: slots' numbers, from 0 on. */
	uint64_t back_hand, hand;
	uint32_t added_at, leave_at; /* where the last slab was added, and the next one may be given up: numbers from @first on */
	bool wants;	  /* a page found no slot */
	bool grows;	  /* a slab is being made */
	uint64_t rests_until_ns; /* no slab is made before */
};

/* Pages that are on their way out, in host memory. */
struct batch {
	char *bytes;
	enum { BATCH_EMPTY, BATCH_FILLS, BATCH_FLIES } state;
	struct victim_device *to;
	unsigned n;
	uint32_t slot[VICTIM_BATCH];
	struct dev_run run[VICTIM_BATCH];
	struct dev_op op;
	uint64_t began_ns; /* when it was submitted */
	struct victims *victims;
};

#define BATCHES 2u /* one is filled while the other is copied; together they take a chunk */

struct victims {
	/* Constant. */
	struct cache *cache;
	struct victim_device *dev;
	unsigned n_devices;
	void *memory; /* of the batches */
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t work;	/* for the thread */
	pthread_cond_t changed; /* something under way has ended, or a slab was made */
	/* lock. */
	struct victim_slab **slab; /* NULL: no memory */
	struct ghosts *ghosts;
	struct batch batch[BATCHES];
	uint64_t n_parked; /* pages */
	struct parked *empty;
	unsigned next_device; /* which batches go to */
	bool stopping;
};

/* ---- slabs.c; victims.lock is held ---- */

static inline uint64_t *slot_owner(struct victims *v, uint32_t slot)
{
	return &v->slab[(slot - 1) / GAIA_CHUNK_PAGES]->owner[(slot - 1) % GAIA_CHUNK_PAGES];
}
static inline struct parked *owner_index(uint64_t owner)
{
	return (struct parked *)(uintptr_t)((owner & ~OWNER_STATE) / (OWNER_PAGE + 1) * 16);
}
/* The page's place in the index, or NULL. */
static inline uint32_t *index_at(const struct parked *p, unsigned i)
{
	uint32_t *leaf = p ? p->leaf[i / LEAF_PAGES] : NULL;

	return leaf ? leaf + i % LEAF_PAGES : NULL;
}
struct victim_device *slot_device(struct victims *v, uint32_t slot);
/* A slot of the device, free or made so; 0: none. */
uint32_t slot_take(struct victims *v, struct victim_device *vd);
/* It is the page's, and under way. */
void slot_give(struct victims *v, uint32_t slot, struct parked *p, unsigned page);
/* It is the page's no more. */
void slot_drop(struct victims *v, uint32_t slot);
/* What was under way (COMING, READ) has ended. */
void slot_ended(struct victims *v, uint32_t slot);
/* Names the page for the policy. */
uint64_t parked_key(const struct chunk *ch, unsigned i);
void *slabs_main(void *victims);
/* Free all, when nothing is parked or under way. */
void slabs_end(struct victims *v);

#endif
