/*
 * victim_inner.h - what victim.c, slots.c and slabs.c share.
 */
#ifndef GAIA_PAGECACHE_VICTIM_INNER_H
#define GAIA_PAGECACHE_VICTIM_INNER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "gaia/protocol.h"
#include "pagecache/chunk.h"
#include "pagecache/frames.h"
#include "pagecache/victim.h"

struct ghosts;

struct parked_leaf {
	unsigned n; /* pages that are parked */
	uint32_t slot[LEAF_PAGES]; /* 0: none */
};

/* A chunk's index: slots of its pages. Made when the first is parked, ended by victims_reap() when none is. */
struct parked {
	struct chunk *ch; /* a reference */
	/* victims.lock. */
	unsigned n;
	bool is_empty; /* it is in the list: */
	struct parked *next_empty;
	struct parked_leaf *leaf[GAIA_CHUNK_PAGES / LEAF_PAGES]; /* NULL: none of its pages is parked */
};

/*
 * A slot's owner is 0: it is free; or a chunk's index and a page: the one that is parked there. If several are (see slots.c), it is OWNER_MANY and
 * a struct sharers. Beside that the slot's state.
 */
#define OWNER_PAGE 0x1ffull	    /* the page's number */
#define OWNER_WHO (OWNER_READ - 1)  /* with the index, or struct sharers */
#define OWNER_READ (1ull << 53)	    /* being read, by so many: it stays */
#define OWNER_READS (0x7full << 53) /* at most */
#define OWNER_BACK (1ull << 60)	    /* the page, or each of them, was read from here, and has not left home since: what is there is there twice */
#define OWNER_COMING (1ull << 61)   /* under way to the device: it cannot be read */
#define OWNER_MANY (1ull << 62)
#define OWNER_GONE (1ull << 63) /* no page is parked there any more: the slot is free when what is under way has ended */
#define OWNER_STATE (OWNER_READS | OWNER_BACK | OWNER_COMING | OWNER_GONE)
#define OWNER_BUSY (OWNER_READS | OWNER_COMING)

/* Pages that are parked in one slot: two at least. */
struct sharers {
	unsigned n, room;
	unsigned n_back; /* of these */
	uint64_t owner[]; /* an index and a page; OWNER_BACK */
};
/* A slot is searched for a page of it, with victims.lock held. */
#define SHARERS_MOST 64u
#define SHARERS_LEAST 4u /* places */

/* What is known of a slot's bytes. */
struct slot_known {
	frame_t frame;	 /* of home, with the same bytes if it is linked with the slot (slots.c); 0: none */
	uint32_t domain; /* of all frames that it has been linked with (shares.h), while it has the same pages */
	uint32_t tag;	 /* of its bytes (shares.h); 0: not known */
};

struct victim_slab {
	struct devmem *mem;
	unsigned n_taken; /* slots that are not free */
	unsigned n_busy;  /* copies to slots, and reads of them, that have not ended */
	bool leaves;	  /* is given up */
	uint64_t owner[GAIA_CHUNK_PAGES];
	struct slot_known known[]; /* of each slot; none if frames are not shared */
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
	uint64_t n_shared; /* of these, beyond the first of each slot */
	uint64_t n_leaves; /* of indexes */
	struct parked *empty;
	unsigned next_device; /* which batches go to */
	bool stopping;
};

/* ---- slots.c; victims.lock is held ---- */

static inline struct victim_slab *slot_slab(const struct victims *v, uint32_t slot)
{
	return v->slab[(slot - 1) / GAIA_CHUNK_PAGES];
}
static inline uint64_t *slot_owner(const struct victims *v, uint32_t slot)
{
	return &slot_slab(v, slot)->owner[(slot - 1) % GAIA_CHUNK_PAGES];
}
/* Only if frames are shared. */
static inline struct slot_known *slot_known(const struct victims *v, uint32_t slot)
{
	return &slot_slab(v, slot)->known[(slot - 1) % GAIA_CHUNK_PAGES];
}
/* Of one page, or of an entry of struct sharers. */
static inline struct parked *owner_index(uint64_t owner)
{
	return (struct parked *)(uintptr_t)((owner & OWNER_WHO) / (OWNER_PAGE + 1) * 16);
}
/* OWNER_MANY is set. */
static inline struct sharers *owner_sharers(uint64_t owner)
{
	return (struct sharers *)owner_index(owner);
}
/* The pages that are parked there, @n of them. */
static inline const uint64_t *owner_pages(const uint64_t *owner, unsigned *n)
{
	const struct sharers *sh = (const struct sharers *)owner_index(*owner);

	*n = *owner & OWNER_MANY ? sh->n : *owner && !(*owner & OWNER_GONE);
	return *owner & OWNER_MANY ? sh->owner : owner;
}
static inline unsigned slot_pages(const struct victims *v, uint32_t slot)
{
	unsigned n;

	(void)owner_pages(slot_owner(v, slot), &n);
	return n;
}
/* The page's place in the index, or NULL. */
static inline uint32_t *index_at(const struct parked *p, unsigned i)
{
	struct parked_leaf *leaf = p ? p->leaf[i / LEAF_PAGES] : NULL;

	return leaf ? &leaf->slot[i % LEAF_PAGES] : NULL;
}
struct victim_device *slot_device(struct victims *v, uint32_t slot);
static inline bool slab_stays(const struct victim_slab *s)
{
	return s && !s->leaves;
}
/* A slot of the device, free or made so; 0: none. */
uint32_t slot_take(struct victims *v, struct victim_device *vd);
/* It is the page's, and under way. */
void slot_give(struct victims *v, uint32_t slot, struct parked *p, unsigned page);
/* It is not the page's any more, and forgotten. */
void slot_drop(struct victims *v, uint32_t slot, struct parked *p, unsigned page);
/* It is nobody's. @ghosts: the pages may come again soon, as what left home. */
void slot_drop_all(struct victims *v, uint32_t slot, bool ghosts);
/* The page is home as well, or not any more. */
void slot_note_back(struct victims *v, uint32_t slot, const struct parked *p, unsigned page, bool back);
/* Somebody reads it, until slot_ended(). False: it cannot be read now. */
bool slot_read(struct victims *v, uint32_t slot);
/* Something that was under way has ended: the copy to it, or one who reads it. */
void slot_ended(struct victims *v, uint32_t slot);

/* The slot that is linked with the frame, which is indexed and the caller's: it has the same bytes. 0: there is none. */
uint32_t slot_of_frame(const struct victims *v, frame_t frame);
/* Link them: the slot has the frame's bytes. */
void slot_link(struct victims *v, uint32_t slot, frame_t frame);
/* It has the bytes of a frame with this tag. */
void slot_note_tag(struct victims *v, uint32_t slot, uint32_t tag);
/* Whether one more page can be parked there; if so slot_join() or slot_move() is next. @wanted: by the policy; others leave these half of the room. */
bool slot_may_join(struct victims *v, uint32_t slot, const struct parked *p, unsigned page, bool wanted);
/* The page is parked there, too. */
void slot_join(struct victims *v, uint32_t slot, struct parked *p, unsigned page);
/* The same for a page that is parked in another slot. */
void slot_move(struct victims *v, uint32_t slot, struct parked *p, unsigned page);

/* ---- slabs.c ---- */

/* So many have free slots before a page finds none. */
#define SLABS_AHEAD 4u
/* Names the page for the policy. */
uint64_t parked_key(const struct chunk *ch, unsigned i);
void *slabs_main(void *victims);
/* Free all, when nothing is parked or under way. */
void slabs_end(struct victims *v);

#endif
