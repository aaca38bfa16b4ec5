/*
 * window.h - a window under way: what bring.c, which says what goes together, and window.c, which brings it, share.
 */
#ifndef GAIA_PAGECACHE_WINDOW_H
#define GAIA_PAGECACHE_WINDOW_H

#include "base/bits.h"
#include "device/device.h"
#include "pagecache/bring.h"

#define FOR_BEYOND(pt, i) for (unsigned i = (pt)->b; (i = bits_first((pt)->pages, i, (pt)->end)) < (pt)->end; i++)
#define FOR_TODO(pt, i) for (unsigned i = (pt)->a; (i = bits_first((pt)->todo, i, (pt)->b)) < (pt)->b; i++)

/* An operation of the device for all of a window. */
struct work {
	struct dev_op op;
	struct device_wait wait;
	bool begun;
	unsigned pages;
};

/* What has to be done, of a part or of all. */
struct amount {
	unsigned n_todo;      /* pages */
	unsigned n_locked;    /* pages: these, and those beyond the end of the file */
	unsigned n_read;      /* of these, those for which the store may have to be read */
	unsigned n_frames;    /* so many frames of home it takes, by estimate, to fetch what devices have released of these */
};

struct window {
	struct part **at; /* those with pages to look at, which are locked */
	unsigned n;
	struct amount all;
	uint64_t took; /* so many parts, also those for which there was nothing to do */
	const struct part *last; /* of these; NULL: what comes next is not read ahead */
	struct dev_run *runs; /* room for all pages */
	uint8_t *steps;
	bool makes_zeros;
	struct work copy, zero, merge, arm; /* of different pages */
	bool others; /* pages of the window before it are locked, too */
	bool quiet; /* see struct fills */
	int err;
};

/* ---- window.c ---- */

/* Bring the pages of the window to the device. They are locked, file->range is held. Whatever comes of it, window_await() comes next. */
int window_begin(struct window *w);
/* Wait for what window_begin() has begun, and which said @err. */
int window_await(struct window *w, int err);
int window_bring(struct window *w);
/* Pages beyond the end of the file read as zeros, whatever this memory had before. */
int window_zero(struct window *w);

#endif
