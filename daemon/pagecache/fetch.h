/*
 * fetch.h - windows of what devices released: bringing it home, of many chunks at a time.
 */
#ifndef GAIA_PAGECACHE_FETCH_H
#define GAIA_PAGECACHE_FETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "pagecache/cache.h"
#include "pagecache/mapping.h"
#include "pagecache/range.h"

struct cache;
struct chunk;

/* Pages of a chunk, a bit each; they are locked. */
struct fetch_part {
	struct chunk *ch;
	uint64_t pages[GAIA_CHUNK_PAGES / 64];
	unsigned a, b; /* of a whole window: these are locked */
	int err; /* of fetch_some() */
	bool given_up; /* the same: it was not tried, nor locked, since its device has failed too often */
};

/* How often operations of each device have failed in a row, and how at last. */
struct fetch_trouble {
	unsigned failures[CACHE_MAX_REPLICAS];
	int err[CACHE_MAX_REPLICAS];
};

/*
 * Merge what devices released of the pages home, by one operation for each device; file->range is held, and all parts belong to that file.
 * On error some are not merged. -EIO: some are lost with their device. @t, may be NULL: the devices' failures are counted there.
 */
int fetch_together(const struct fetch_part *part, unsigned n, struct fetch_trouble *t);
/* The same for one part; but a device that has failed too often is not asked: then the result is that device's last error. */
int fetch_alone(const struct fetch_part *pt, struct fetch_trouble *t);

/* Parts that are locked together. All zeros but @whole at first; part is to be freed. */
struct fetch_window {
	struct fetch_part *part; /* the pages that devices had released when they were locked */
	unsigned n;
	bool whole; /* all of the pages that were asked for are locked */
	bool reads_store; /* the first part needs what only the store has */
	unsigned n_pages, n_frames; /* fetch_frames() of these */
};

/*
 * Lock pages [a, b) of the chunk, with @whole all of them, else those that devices released; and add the latter to the window. Waits for pages
 * only if they are the window's first. False: the chunk does not join the window, since somebody has one of its pages, the store would have to be
 * read for it, the window is full, or somebody waits for file->range; then nothing of it is locked.
 */
bool fetch_window_add(struct fetch_window *w, struct chunk *ch, unsigned a, unsigned b);
void fetch_window_unlock(struct fetch_window *w);
/*
 * Fetch pages @span of as many of the chunks list[0..n), which are of one file, as go together, one at least; if that fails each by itself, with
 * no other locked. file->range is held. On return nothing is locked, and the parts have the results. @t: NULL: no device is given up.
 */
struct fetch_window fetch_some(struct chunk **list, unsigned n, struct page_span span, struct fetch_trouble *t);

/* Whether the store has to be read for what was released of page i, which is locked. chunk->lock is held. */
bool fetch_reads_store(struct chunk *ch, unsigned i);
/* So many frames of home it takes, by estimate, to fetch page i: more if it is merged with others' changes. chunk->lock is held. */
unsigned fetch_frames(struct chunk *ch, unsigned i);
/* So many pages make a window. */
unsigned window_pages(const struct cache *c);
/*
 * Whether home can take so many frames: so much of it is free of what has to be stored that nobody should have to store
 * others' pages to have them, while pages of many chunks are locked.
 */
bool home_can_take(const struct cache *c, unsigned n_frames);

/* kept_trim() of the pages of all parts, which are of one file: by one operation for each device. */
void kept_trim_parts(const struct fetch_part *part, unsigned n);

/* Merge all releases of pages [a, b), which are locked, home. -EIO: some are lost with their device. */
int fetch_pages(struct chunk *ch, unsigned a, unsigned b);

#endif
