/*
 * fetch.h - windows of what devices released: bringing it home, of many chunks at a time.
 */
#ifndef GAIA_PAGECACHE_FETCH_H
#define GAIA_PAGECACHE_FETCH_H

#include "pagecache/internal.h"

/* Pages of a chunk, a bit each; they are locked. */
struct fetch_part {
	struct chunk *ch;
	uint64_t pages[GAIA_CHUNK_PAGES / 64];
	int err; /* of fetch_parts() */
};

/*
 * Merge what devices released of the pages home, by one operation for each device; file->range is held, and all parts belong to that file.
 * On error some are not merged. -EIO: some are lost with their device.
 */
int fetch_together(struct fetch_part *part, unsigned n);
/* The same; but if that fails each part is fetched by itself, and has its own result. */
void fetch_parts(struct fetch_part *part, unsigned n);

/* Parts that are locked together. All zeros but @whole at first. */
struct fetch_window {
	struct fetch_part *part; /* the pages that devices had released when they were locked */
	unsigned n;
	bool whole; /* all of the pages that were asked for are locked */
	bool reads_store; /* the first part needs what only the store has */
	unsigned n_pages;
};

/*
 * Lock pages [a, b) of the chunk, with @whole all of them, else those that devices released; and add the latter to the window. Waits for pages
 * only if they are the window's first. False: the chunk does not join the window, since somebody has one of its pages, the store would have to be
 * read for it, or the window is full; then nothing of it is locked.
 */
bool fetch_window_add(struct fetch_window *w, struct chunk *ch, unsigned a, unsigned b);
/*
 * Fetch pages @span of as many of the chunks list[0..n), which are of one file, as go together, one at least. file->range is held. On return
 * nothing is locked; the parts have the results, and are to be freed.
 */
struct fetch_window fetch_some(struct chunk **list, unsigned n, struct page_span span);

/* Whether the store has to be read for what was released of page i, which is locked. chunk->lock is held. */
bool fetch_reads_store(struct chunk *ch, unsigned i);
/* So many pages make a window. */
unsigned window_pages(const struct cache *c);
/*
 * Whether home can take what was released of so many pages: so much of it is free of what has to be stored that nobody should have to store
 * others' pages to have frames, while pages of many chunks are locked.
 */
bool home_can_take(const struct cache *c, unsigned n_pages);

#endif
