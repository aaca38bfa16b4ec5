/*
 * holds.h - which pages a mapping holds, how often, and for what: a sorted set of counted spans.
 *
 * Each acquire adds a hold of every page that it touches, each release takes one away (contract, promise 12). For each page
 * the set knows how many holds there are (n), and how many of them were added for writing (writes). It cannot know which of the
 * holds a release takes away, so a page is held for writing until the last hold is gone: a release takes from writes
 * only what would be more than n.
 *
 * A page is held *for overwriting* from when an acquire for that has succeeded until all of the page is published, or its last hold is
 * gone: one mark for all of its holds, since it cannot be known which of them a release takes.
 *
 * The holds that an acquire has added are *coming* until it has succeeded: no release takes them away; if the acquire fails they are undone.
 *
 * Consecutive pages with equal numbers are one span, whatever chunks they lie in: the cost of looking, adding and
 * taking away depends on the number of spans in the range (and its logarithm), not on pages.
 *
 * Pure: no locks. The caller serialises access to a set; memory comes from xmalloc().
 */
#ifndef GAIA_PAGECACHE_HOLDS_H
#define GAIA_PAGECACHE_HOLDS_H

#include <bsd/sys/tree.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define HOLDS_OF_A_PAGE 65535u

/* Pages [a, b) of the file. */
struct hold {
	RB_ENTRY(hold) link;
	uint64_t a, b;
	uint32_t n, writes, coming; /* 1 to HOLDS_OF_A_PAGE; 0 to n */
	bool over; /* held for overwriting */
};
RB_HEAD(hold_tree, hold);

struct holds {
	struct hold_tree tree;
	uint64_t spans;
	atomic_uint_least64_t pages; /* of all spans; may be read without the caller's lock */
};

/* All zeros is an empty set. */
void holds_clear(struct holds *hs);

/* The first span that has pages of [a, b); and the next one after @h. NULL: there is none. */
const struct hold *holds_first(const struct holds *hs, uint64_t a, uint64_t b);
const struct hold *holds_next(const struct hold *h, uint64_t b);
#define HOLDS_FOREACH(h, hs, a, b) for ((h) = holds_first(hs, a, b); (h); (h) = holds_next(h, b))

/* Add @n holds of each page of [a, b), coming, of which @writes are for writing. -EOVERFLOW: a page would have too many; nothing was done. */
int holds_add(struct holds *hs, uint64_t a, uint64_t b, uint32_t n, uint32_t writes);
/* The holds that were added count from now on; */
void holds_settle(struct holds *hs, uint64_t a, uint64_t b, uint32_t n);
/* or are taken back; fewer from pages that have fewer by now, because they were dropped. */
void holds_undo(struct holds *hs, uint64_t a, uint64_t b, uint32_t n, uint32_t writes);
/* Those of the pages that are held are held for overwriting; or are not any more. */
void holds_overwrite(struct holds *hs, uint64_t a, uint64_t b, bool over);
/* Take @n holds away from each page, or as many as it has that are not coming. */
void holds_release(struct holds *hs, uint64_t a, uint64_t b, uint32_t n);
/* Take all holds away. */
void holds_drop(struct holds *hs, uint64_t a, uint64_t b);

#endif
