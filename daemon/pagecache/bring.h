/*
 * bring.h - windows: what an acquire brings to a device, of many chunks at a time.
 */
#ifndef GAIA_PAGECACHE_BRING_H
#define GAIA_PAGECACHE_BRING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/segments.h"

struct ahead;
struct chunk;
struct devmem;
struct grant;
struct mapping;
struct replica;
struct window;

/* One chunk's part of an acquire. */
struct part {
	struct mapping *m;
	struct replica *rep; /* pinned */
	struct chunk *ch;
	struct grant *grant; /* NULL: nothing is acquired, see replica_bring() and prefetch.c */
	struct ahead *ahead; /* NULL: nothing comes after it */
	uint64_t nth;	     /* of ahead's chunks */
	bool pin;
	bool write;	 /* the pages are to be written */
	bool wanted;	 /* adds no hold: wanted holds of the pages become holds */
	struct segments add; /* the holds that it adds: those that have pages of the chunk. None if it is wanted */
	size_t added;	 /* so many of these are there, and coming */
	uint64_t pages[GAIA_CHUNK_PAGES / 64]; /* what was asked for; the first is @a, the last comes before @end */
	uint64_t over[GAIA_CHUNK_PAGES / 64];  /* of these, what will be overwritten; once it is looked at: as far as it lies in the file as a whole */
	bool meets_fresh; /* what it acquires for writing others are overwriting */
	unsigned a, b;	 /* those of [a, b) are to be brought */
	unsigned end;	 /* those of [b, end) lie beyond the file, and are held, so that they stay private */

	/* While it is in a window. */
	bool whole; /* all of its pages are locked; else those of @todo, and the index must still say so of the others at the end */
	bool again; /* it did not, or the store would have to be read: the part is still to be acquired, by itself */
	uint64_t todo[GAIA_CHUNK_PAGES / 64]; /* pages to look at */
	unsigned n_todo;
	uint8_t *step;		/* of each page in todo */
	unsigned steps;		/* STEP() of all of them, maybe of more */
	bool arms;		/* what is written must be armed: some client that may write the chunk does not look for changes itself */
	struct devmem *shadow;
};

/* The windows of an acquire: for one the device may be at work, and pages of it are locked. All zeros at first. */
struct windows {
	struct window *under_way;
};

/*
 * Begin to acquire as many of the parts at[0..n) as go together: of one device, in the order of their chunks; and end the window before. Returns how
 * many were taken, one at least. Waits for pages that others have, if at all, for those of the first, with nothing under way. On error no more
 * is to be begun. file->range is held until windows_end().
 */
uint64_t windows_go_on(struct windows *ws, struct part *at, uint64_t n, int *err);
/* What is under way ends. Then all parts that were taken are acquired, except those that say @again; on error, those that say so (part.added). */
int windows_end(struct windows *ws);
/* A part that says so. No reads are under way for it, nor for others of the acquire. */
int part_acquire_again(struct part *pt);

/*
 * The acquire has succeeded: the part's holds count from now on, and what it overwrites is fresh. Neighbouring parts are settled together:
 * *@run is what came before and mapping_settle() is still to be called for. No lock is held.
 */
void part_settle(struct part *pt, struct segment *run);

/* Whether what is copied for these parts is to be armed: all of them acquire for writing. */
bool parts_arm(struct part *const *part, unsigned n);

/* A bit for each enum track_step. */
#define STEP(name) (1u << TRACK_##name)
/* The next run of the part's pages of which @steps has the step, from *j on: [*i, *j). Whether there is one. */
bool part_run(const struct part *pt, unsigned steps, unsigned *i, unsigned *j);
static inline bool part_has(const struct part *pt, unsigned steps)
{
	unsigned i, j = pt->a;

	return (pt->steps & steps) && part_run(pt, steps, &i, &j);
}

/* Bring pages [a, b) of the replica's, which are locked, up to date as an acquire to read does. file->range held. */
int replica_bring(struct replica *rep, unsigned a, unsigned b);
/* The same for those of them that are in @pages, which are all to be sent; the others need not be locked. See fills.quiet. */
int replica_bring_some(struct replica *rep, unsigned a, unsigned b, const uint64_t *pages);

#endif
