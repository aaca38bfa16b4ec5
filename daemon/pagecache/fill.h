/*
 * fill.h - what fill.c, which brings absent pages home, and source.c, which knows where they come from, share; and read.c.
 */
#ifndef GAIA_PAGECACHE_FILL_H
#define GAIA_PAGECACHE_FILL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "pagecache/frames.h"
#include "pagecache/home.h"
#include "pagecache/readcost.h"

#define FILL_PAGES READ_BATCH /* at a time */

/*
 * Pages on their way home from one source, into frames that belong to nobody until they have come. Until then the pages are
 * locked exclusively and file->range is held. From the store comes one run; from a device whatever it has of a batch.
 */
struct fill {
	STAILQ_ENTRY(fill) link;
	struct chunk *ch;
	struct cache_device *dev; /* NULL: from the store */
	struct replica *rep;	  /* from the device's replica; NULL: from slots where the pages are parked. Since pages are locked it stays (3) */
	unsigned n;
	uint16_t *page;
	frame_t *frame;
	uint32_t *slot;
	uint32_t *tag; /* what is known of their bytes, see victim_place(); NULL: from the store */

	unsigned n_read; /* of them, those that do not lie wholly beyond the end: the others are zeros, and nobody's to read */
	struct store_file *sf;
	struct store_read rd;
	uint64_t began_ns; /* when it was begun */
	struct iovec *iov;

	struct dev_op op;
	struct dev_run *runs;
	struct device_wait wait;
	int err;      /* of the copy, when it has ended */
	bool learned; /* see copies_learn() */
};

/* Pages of a chunk that are absent, not necessarily neighbours. */
struct fill_batch {
	struct chunk *ch;
	bool on_devices; /* some of its pages may be */
	unsigned n;
	uint16_t page[FILL_PAGES];
	frame_t frame[FILL_PAGES];
	uint8_t from[FILL_PAGES]; /* see read_plan() */
	uint32_t slot[FILL_PAGES]; /* where it is parked; 0: nowhere, or on a device that is not a source */
};

/* A device that pages can come from. */
struct source {
	struct cache_device *dev;
	struct replica *rep; /* NULL: pages are parked there */
};

/* ---- fill.c ---- */

/* For so many pages; @src: NULL: from the store. */
struct fill *fill_create(struct chunk *ch, const struct source *src, unsigned room);
/* @slot: where it is parked, if it comes from there. */
void fill_add(struct fill *fl, unsigned page, frame_t frame, uint32_t slot);
/* Its frames are home's now, or on error nobody's. Frees it. */
void fill_done(const struct fills *fills, struct fill *fl, int err);
/* The device has failed: begin to read the store. On error nobody has the frames of the rest. */
int fill_read_instead(struct fills *fills, const struct fill *fl);
/* What was begun from the store has come. */
int fill_reads_end(struct fills *fills, bool learn);
/* home_bring(), with what is known of the read. */
int fill_bring(struct fills *fills, struct chunk *ch, unsigned a, unsigned b);

/* ---- source.c ---- */

/* Where the pages are to come from, if not all from the store: @src becomes the sources that can be read, READ_DEVICES at most. */
unsigned source_plan(struct fills *fills, struct fill_batch *bt, struct source *src);
/* Those of the batch that are on their way to be parked are home again, at once, and are the batch's no more. */
void source_take_coming(struct fills *fills, struct fill_batch *bt);
/* Begin to copy those that come from this one; if that fails they are the store's. */
void source_copy(struct fills *fills, struct fill_batch *bt, const struct source *src, unsigned which);
/* What was begun from devices has come; or it comes from the store now. */
int source_copies_end(struct fills *fills);
/*
 * How many pages may be brought beyond a read [i, b): @ahead; or, if a device has them and gives them, as many as go together for what
 * it takes to wait for it, but nothing leaves home for these. chunk->lock is held.
 */
unsigned source_ahead(const struct chunk *ch, unsigned i, unsigned b, unsigned ahead);

#endif
