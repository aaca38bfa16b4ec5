/*
 * holds.h - which pages a mapping holds, how often, and for what: a sorted set of counted spans.
 *
 * Each acquire adds a hold of every page that it touches, each release takes one away (contract, promise 12). Of a page
 * it is known how many holds there are (n), and how many of them were added for writing (writes). Which of its holds a release
 * takes away nobody can say, so that a page is held for writing until the last of them is gone: a release takes from writes
 * only what would be more than n.
 *
 * What an acquire has added is *coming* until it has succeeded: no release takes it away, and if the acquire fails it is undone.
 *
 * Pages with equal numbers that follow each other are one span, whatever chunks they lie in: what it costs to look, to add and to
 * take away depends on how many spans there are in the range (and their logarithm), not on pages.
 *
 * Pure: no locks. The caller serialises access to a set; memory comes from xmalloc().
 */
#ifndef GAIA_PAGECACHE_HOLDS_H
#define GAIA_PAGECACHE_HOLDS_H

#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stdint.h>

#define HOLDS_OF_A_PAGE 65535u

/* Pages [a, b), which lie in the file's numbering. */
struct hold {
	RB_ENTRY(hold) link;
	uint64_t a, b;
	uint32_t n, writes, coming; /* 1 to HOLDS_OF_A_PAGE; 0 to n */
};
RB_HEAD(hold_tree, hold);

struct holds {
	struct hold_tree tree;
	uint64_t spans;
};

/* All zeros is an empty set. */
void holds_clear(struct holds *hs);

/* The first span that has pages of [a, b); and the one after @h that has. NULL: none. */
const struct hold *holds_first(const struct holds *hs, uint64_t a, uint64_t b);
const struct hold *holds_next(const struct hold *h, uint64_t b);
#define HOLDS_FOREACH(h, hs, a, b) for ((h) = holds_first(hs, a, b); (h); (h) = holds_next(h, b))

/* @n more of each page of [a, b), coming, of which @writes are for writing. -EOVERFLOW, and nothing done: a page would have too many. */
int holds_add(struct holds *hs, uint64_t a, uint64_t b, uint32_t n, uint32_t writes);
/* What was added is there; */
void holds_settle(struct holds *hs, uint64_t a, uint64_t b, uint32_t n);
/* or is taken back. Of pages that have less by now, because it was dropped: less. */
void holds_undo(struct holds *hs, uint64_t a, uint64_t b, uint32_t n, uint32_t writes);
/* One less, of pages that have any that is not coming. */
void holds_release(struct holds *hs, uint64_t a, uint64_t b);
/* None any more. */
void holds_drop(struct holds *hs, uint64_t a, uint64_t b);

#endif
