/*
 * publish.h - one chunk's part of a release: what release.c and publish.c share.
 */
#ifndef GAIA_PAGECACHE_PUBLISH_H
#define GAIA_PAGECACHE_PUBLISH_H

#include "base/bits.h"
#include "device/device.h"
#include "pagecache/grant.h"
#include "pagecache/segments.h"

#define WORDS (GAIA_CHUNK_PAGES / 64)

/* One chunk's part of a release; a bit a page. */
struct release {
	struct chunk *ch;
	struct grant *grant; /* its replica is pinned until what changed is found; NULL: nothing of it is ours */
	struct segments take; /* the holds to take away: those that have pages of the chunk */
	bool unused;	      /* see cache_give_back(): only pages that nobody else holds are published */
	unsigned a, b;		 /* the first of @pages, and behind the last */
	uint64_t pages[WORDS];	 /* to release */
	uint64_t writing[WORDS]; /* of these: held for writing by this mapping */
	uint64_t last[WORDS];	 /* held by it no more often than this release takes away, so that it seems to be the last */
	uint64_t held_on[WORDS]; /* of those held for writing, what it or another mapping seems to go on holding so */
	uint64_t over[WORDS];	 /* and for overwriting */
	uint64_t whole[WORDS];	 /* of these, what is not void: to be published without a comparison */
	uint64_t compare[WORDS]; /* of the others, what is not void, and not: */
	uint64_t detected[WORDS]; /* what its client can tell of whether it has changed */
	bool told;		  /* the client has told what it has found changed: */
	uint64_t found[WORDS];
	uint64_t changed_pages[WORDS];
	uint64_t shared[WORDS];	 /* changed, and somebody goes on writing them */
	uint64_t ended[WORDS];	 /* held for writing by it no more */
	bool any;		 /* held for writing */
	int err;

	uint64_t published[WORDS]; /* by us or others, and the kernel may hold copies */
	uint16_t opened[GAIA_CHUNK_PAGES]; /* of those, see window_open() */
	bool changed;
};

/* Parts whose pages are locked, and whose changed pages are being found by one operation. */
struct find {
	struct release *rl;
	unsigned n;
	bool any; /* something is held for writing */
	bool begun;
	uint64_t *packed; /* a bit for each page to compare, in order */
	struct dev_op op;
	struct device_wait wait;
	int err;
};

/* ---- publish.c ---- */

void find_begin(struct find *fd);
/* On error nobody knows what the device has compared: all count as changed. */
int find_end(struct find *fd);
/* For each run of its pages: the first error. */
int release_each_run(struct release *rl, int (*call)(struct chunk *ch, unsigned a, unsigned b));
void release_look_at(struct release *rl);
/* The changed pages have been found. The holds end, whatever happens; on error what was stored is kept, and is published as far as it is known. */
int release_publish(struct release *rl);
/* If nothing was held for writing, and no memory must be hidden, only the holds have to end. */
bool release_unwritten(struct release *rl);
/* Lock the part's pages; @others: pages of other chunks are locked already, so do not wait: whether it worked. */
bool release_lock(struct release *rl, bool others);

#endif
