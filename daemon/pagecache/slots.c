/*
 * slots.c - slots of victim slabs, and the pages that are parked in them: see victim.h.
 *
 * Equal pages (dedup.h) that leave home with one frame are parked in one slot, and copied there once. For that a frame that is indexed, so that its bytes
 * do not change (28), can be *linked* with the slot that has the same bytes. Each knows the other's number, and it is a link only if both say so: a slot
 * forgets the frame when no page is parked there any more, before it can be given to another page; a frame has forgotten its slot when it enters the
 * index, with other bytes perhaps. So what either still knows of the other from before is no link. Both become one where it is known that they have the
 * same bytes, whatever the store has by now: when the slot is filled from the frame (park()), and when a page that was read from the slot gets the
 * frame (victim_came()). Pages that have come to be parked in different slots, since they were not home at the same time, get into one when they
 * leave home with one frame again (park_again()).
 *
 * A page shares a slot only with those that had its frame, or with which it shares the slot since: these are of one domain (shares.h), and so are frames
 * with which the slot is linked later.
 */
#include <stdlib.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/root.h"
#include "pagecache/shares.h"
#include "pagecache/victim_inner.h"
#include "policy/ghosts.h"

#define LOOKS 512u /* slots that are looked at for a victim, and slabs for a free slot */
/* So many pages for each slot may be parked by sharing, and while indexes have so many leaves for each: what is recorded of a page takes memory of the host. */
#define MOST 8u
#define MOST_LEAVES 2u

struct victim_device *slot_device(struct victims *v, uint32_t slot)
{
	uint32_t slab = (slot - 1) / GAIA_CHUNK_PAGES;
	unsigned k = 0;

	while (slab >= v->dev[k].first + v->dev[k].room)
		k++;
	return &v->dev[k];
}

/* ---- whose it is ---- */

/* @who: a chunk's index, or struct sharers. */
static uint64_t owner_of(const void *who, unsigned page)
{
	uint64_t at = (uintptr_t)who;

	/* Pointers have 48 bits, and what malloc(3) returns is a multiple of 16. */
	bug_on(at >> 48 || at % 16);
	return at / 16 * (OWNER_PAGE + 1) | page;
}

static unsigned sharer_find(const struct sharers *sh, const struct parked *p, unsigned page)
{
	uint64_t who = owner_of(p, page);
	unsigned k = sh->n - 1;

	while ((sh->owner[k] & OWNER_WHO) != who)
		bug_on(k-- == 0);
	return k;
}

static void note_all_back(uint64_t *owner)
{
	const struct sharers *sh = owner_sharers(*owner);

	*owner = sh->n_back == sh->n ? *owner | OWNER_BACK : *owner & ~OWNER_BACK;
}

/* Few are left of many: they would take the place of those for ever. */
static void sharers_shrink(uint64_t *owner)
{
	struct sharers *sh = owner_sharers(*owner);
	unsigned room = sh->room / 2;

	if (sh->room <= SHARERS_LEAST || sh->n > sh->room / 4)
		return;
	sh = realloc(sh, sizeof(*sh) + room * sizeof(sh->owner[0]));
	if (!sh)
		return;
	sh->room = room;
	*owner = owner_of(sh, 0) | OWNER_MANY | (*owner & OWNER_STATE);
}

static void sharer_remove(uint64_t *owner, const struct parked *p, unsigned page)
{
	struct sharers *sh = owner_sharers(*owner);
	unsigned k = sharer_find(sh, p, page);

	sh->n_back -= !!(sh->owner[k] & OWNER_BACK);
	sh->owner[k] = sh->owner[--sh->n];
	if (sh->n > 1) {
		sharers_shrink(owner);
		note_all_back(owner);
		return;
	}
	*owner = (*owner & OWNER_BUSY) | sh->owner[0];
	free(sh);
}

/* With room for one page more; NULL: there is none. */
static struct sharers *sharers_make(uint64_t *owner)
{
	struct sharers *sh = *owner & OWNER_MANY ? owner_sharers(*owner) : NULL;
	unsigned room = sh ? 2 * sh->room : SHARERS_LEAST;

	if (sh && sh->n < sh->room)
		return sh;
	if (room > SHARERS_MOST || fault_point("victim.sharers"))
		return NULL;
	sh = realloc(sh, sizeof(*sh) + room * sizeof(sh->owner[0]));
	if (!sh)
		return NULL;
	if (!(*owner & OWNER_MANY)) {
		sh->n = 1;
		sh->n_back = !!(*owner & OWNER_BACK);
		sh->owner[0] = *owner & (OWNER_WHO | OWNER_BACK);
	}
	sh->room = room;
	*owner = owner_of(sh, 0) | OWNER_MANY | (*owner & OWNER_STATE);
	return sh;
}

static void note_parked(struct victims *v, uint32_t slot, struct parked *p, unsigned page)
{
	struct parked_leaf **leaf = &p->leaf[page / LEAF_PAGES];

	if (!*leaf) {
		*leaf = xcalloc(1, sizeof(**leaf));
		v->n_leaves++;
	}
	(*leaf)->n++;
	*index_at(p, page) = slot;
	p->n++;
	v->n_parked++;
}

static void note_left(struct victims *v, struct parked *p, unsigned page)
{
	struct parked_leaf **leaf = &p->leaf[page / LEAF_PAGES];

	*index_at(p, page) = 0;
	v->n_parked--;
	/* It counts for what others may have recorded. */
	if (--(*leaf)->n == 0) {
		free(*leaf);
		*leaf = NULL;
		v->n_leaves--;
	}
	if (--p->n == 0 && !p->is_empty) {
		p->is_empty = true;
		p->next_empty = v->empty;
		v->empty = p;
	}
}

static void slot_free(struct victims *v, uint32_t slot)
{
	struct victim_slab *s = slot_slab(v, slot);

	*slot_owner(v, slot) = 0;
	s->n_taken--;
	slot_device(v, slot)->n_free += !s->leaves;
}

void slot_give(struct victims *v, uint32_t slot, struct parked *p, unsigned page)
{
	struct victim_slab *s = slot_slab(v, slot);

	*slot_owner(v, slot) = owner_of(p, page) | OWNER_COMING;
	s->n_taken++;
	s->n_busy++;
	slot_device(v, slot)->n_free--;
	note_parked(v, slot, p, page);
}

/* No page is parked there any more. */
static void slot_abandon(struct victims *v, uint32_t slot)
{
	uint64_t *owner = slot_owner(v, slot);

	if (v->cache->dedup)
		*slot_known(v, slot) = (struct slot_known){ 0 };
	if (*owner & OWNER_BUSY)
		*owner = (*owner & OWNER_BUSY) | OWNER_GONE;
	else
		slot_free(v, slot);
}

static void slot_leave(struct victims *v, uint32_t slot, struct parked *p, unsigned page)
{
	uint64_t *owner = slot_owner(v, slot);

	bug_on(*owner & OWNER_GONE || *index_at(p, page) != slot);
	note_left(v, p, page);
	if (*owner & OWNER_MANY) {
		sharer_remove(owner, p, page);
		v->n_shared--;
	} else {
		bug_on((*owner & OWNER_WHO) != owner_of(p, page));
		slot_abandon(v, slot);
	}
}

void slot_drop(struct victims *v, uint32_t slot, struct parked *p, unsigned page)
{
	slot_leave(v, slot, p, page);
	count(CTR_victim_dropped, 1);
}

void slot_drop_all(struct victims *v, uint32_t slot, bool ghosts)
{
	const uint64_t *page;
	unsigned n;

	while (page = owner_pages(slot_owner(v, slot), &n), n > 0) {
		struct parked *p = owner_index(page[n - 1]);
		unsigned i = page[n - 1] & OWNER_PAGE;

		if (ghosts)
			ghosts_add(v->ghosts, parked_key(p->ch, i));
		slot_drop(v, slot, p, i);
	}
}

/* ---- its state ---- */

void slot_note_back(struct victims *v, uint32_t slot, const struct parked *p, unsigned page, bool back)
{
	uint64_t *owner = slot_owner(v, slot);
	struct sharers *sh = *owner & OWNER_MANY ? owner_sharers(*owner) : NULL;
	uint64_t *of = sh ? &sh->owner[sharer_find(sh, p, page)] : owner;
	bool was = *of & OWNER_BACK;

	*of = back ? *of | OWNER_BACK : *of & ~OWNER_BACK;
	if (!sh)
		return;
	sh->n_back += (unsigned)back - (unsigned)was;
	note_all_back(owner);
}

bool slot_read(struct victims *v, uint32_t slot)
{
	uint64_t *owner = slot_owner(v, slot);

	if (*owner & OWNER_COMING || (*owner & OWNER_READS) == OWNER_READS)
		return false;
	*owner += OWNER_READ;
	slot_slab(v, slot)->n_busy++;
	return true;
}

void slot_ended(struct victims *v, uint32_t slot)
{
	uint64_t *owner = slot_owner(v, slot);

	bug_on(!(*owner & OWNER_BUSY));
	/* It is not read while it is COMING. */
	*owner -= *owner & OWNER_COMING ? OWNER_COMING : OWNER_READ;
	slot_slab(v, slot)->n_busy--;
	if (*owner == OWNER_GONE)
		slot_free(v, slot);
	pthread_cond_broadcast(&v->changed);
}

/* ---- one slot for equal pages ---- */

uint32_t slot_of_frame(const struct victims *v, frame_t frame)
{
	uint32_t slot = shares_slot(&v->cache->frames, frame);

	/* What a slab has that leaves is forgotten soon. */
	return slot && slab_stays(slot_slab(v, slot)) && slot_known(v, slot)->frame == frame ? slot : 0;
}

void slot_link(struct victims *v, uint32_t slot, frame_t frame)
{
	uint32_t domain = shares_domain(&v->cache->frames, frame);

	slot_note_tag(v, slot, shares_tag(&v->cache->frames, frame));
	/* One of its pages is in another domain by now. It may stay with those with which it has been. */
	if (*slot_owner(v, slot) & OWNER_MANY && slot_known(v, slot)->domain != domain)
		return;
	slot_known(v, slot)->frame = frame;
	slot_known(v, slot)->domain = domain;
	shares_set_slot(&v->cache->frames, frame, slot);
}

void slot_note_tag(struct victims *v, uint32_t slot, uint32_t tag)
{
	slot_known(v, slot)->tag = tag;
}

/*
 * Without that anybody could have any number of pages recorded, of a large hole for instance. For a page that is alone in its chunk there is
 * far more than for one with neighbours.
 */
static bool may_record(const struct victims *v, const struct parked *p, unsigned page, bool wanted)
{
	uint64_t slots = 0, most;

	for (unsigned k = 0; k < v->n_devices; k++)
		slots += (uint64_t)v->dev[k].n_slabs * GAIA_CHUNK_PAGES;
	most = wanted ? MOST * slots : MOST * slots / 2;
	return v->n_shared < most && v->n_leaves + !index_at(p, page) <= MOST_LEAVES * slots;
}

bool slot_may_join(struct victims *v, uint32_t slot, const struct parked *p, unsigned page, bool wanted)
{
	return may_record(v, p, page, wanted) && sharers_make(slot_owner(v, slot));
}

void slot_join(struct victims *v, uint32_t slot, struct parked *p, unsigned page)
{
	uint64_t *owner = slot_owner(v, slot);
	struct sharers *sh = owner_sharers(*owner);

	sh->owner[sh->n++] = owner_of(p, page);
	note_all_back(owner);
	note_parked(v, slot, p, page);
	v->n_shared++;
	count(CTR_dedup_parked, 1);
}

void slot_move(struct victims *v, uint32_t slot, struct parked *p, unsigned page)
{
	slot_leave(v, *index_at(p, page), p, page);
	slot_join(v, slot, p, page);
}

/* ---- which is taken ---- */

static uint32_t find_free(struct victims *v, struct victim_device *vd)
{
	for (unsigned looks = 0; vd->n_free > 0 && looks < MIN(LOOKS, vd->room); looks++) {
		struct victim_slab *s = v->slab[vd->first + vd->free_at];

		for (unsigned i = 0; slab_stays(s) && s->n_taken < GAIA_CHUNK_PAGES && i < GAIA_CHUNK_PAGES; i++)
			if (!s->owner[i])
				return (vd->first + vd->free_at) * GAIA_CHUNK_PAGES + i + 1;
		vd->free_at = (vd->free_at + 1) % vd->room;
	}
	return 0;
}

/* The slot at the hand, which moves on: 0: there is none that can be taken. It may be free. */
static uint32_t at_hand(struct victims *v, const struct victim_device *vd, uint64_t *hand)
{
	uint64_t at = *hand;
	struct victim_slab *s = v->slab[vd->first + at / GAIA_CHUNK_PAGES];
	uint64_t all = (uint64_t)vd->room * GAIA_CHUNK_PAGES;

	if (!slab_stays(s)) {
		*hand = (at / GAIA_CHUNK_PAGES + 1) * GAIA_CHUNK_PAGES % all;
		return 0;
	}
	*hand = (at + 1) % all;
	return s->owner[at % GAIA_CHUNK_PAGES] & OWNER_BUSY ? 0 : (uint32_t)(vd->first * GAIA_CHUNK_PAGES + at + 1);
}

/*
 * Of pages that are home as well, all of them, the slots are spare, and go first; then the one that has been here for longest. What goes may come again
 * soon: it is a ghost, as what left home.
 */
static uint32_t find_victim(struct victims *v, struct victim_device *vd)
{
	uint32_t slot = 0;

	for (unsigned looks = 0; vd->n_slabs > 0 && looks < LOOKS && !slot; looks++) {
		slot = at_hand(v, vd, &vd->back_hand);
		if (slot && *slot_owner(v, slot) && !(*slot_owner(v, slot) & OWNER_BACK))
			slot = 0;
	}
	for (unsigned looks = 0; vd->n_slabs > 0 && looks < LOOKS && !slot; looks++)
		slot = at_hand(v, vd, &vd->hand);
	if (slot)
		slot_drop_all(v, slot, true);
	return slot;
}

uint32_t slot_take(struct victims *v, struct victim_device *vd)
{
	uint32_t slot = find_free(v, vd);

	if (vd->n_free < SLABS_AHEAD * GAIA_CHUNK_PAGES && !vd->wants && vd->n_slabs < vd->room) {
		vd->wants = true;
		pthread_cond_signal(&v->work);
	}
	return slot ? slot : find_victim(v, vd);
}
