/*
 * coherence.h - twins, merging, what the kernel holds.
 */
#ifndef GAIA_PAGECACHE_COHERENCE_H
#define GAIA_PAGECACHE_COHERENCE_H

#include <stdbool.h>

#include "pagecache/frames.h"

struct cfile;
struct chunk;

/* Note the bytes that both @home and @theirs, which is @owner's, have changed since @base. */
void races_note(struct chunk *ch, unsigned i, const void *home, const void *base, const void *theirs, unsigned len, unsigned owner);
/*
 * fetch_pages(), out of caution against whoever may store to spoiled replicas: what cannot be fetched from these now is copied on their
 * device, and fetched from there later. Returns the error of the fetch, if there is one.
 */
int pages_secure(struct chunk *ch, unsigned a, unsigned b);
/* Page i is locked and about to be overwritten: forget what is lost of it, which does not matter any more. chunk->lock is held. */
void page_drop_lost(struct chunk *ch, unsigned i);
/*
 * Called when home's bytes of pages [a, b), which are locked exclusively, have changed; file->range is held. If more is kept for
 * merges to come than its share of home, the devices that would need the old bytes are given home's present ones (19).
 */
#define KEPT_SHARE 4u
void kept_trim(struct chunk *ch, unsigned a, unsigned b);

/*
 * A WRITE changes a tracked page, which is locked, has a frame, and has no unmerged release.
 * chunk->lock is held. @present: home had bytes before (otherwise the frame is just memory). @spare: two
 * frames that may be taken, and are set to 0 then.
 */
void kernel_page_write(struct chunk *ch, unsigned i, bool present, const void *bytes, unsigned len,
		       frame_t spare[2]);
void exact_write(struct chunk *ch, unsigned i, bool present, unsigned off, const void *bytes,
		 unsigned len, bool through, frame_t spare[2]);
/* The same for bytes that a truncate turns to zeros from @cut on. */
void truncate_page(struct chunk *ch, unsigned i, unsigned cut, frame_t spare[2]);

void *notifier_main(void *cache);
/* Wait until the invalidations that have been asked for until now are done. [W] */
void again_wait(struct cfile *f);

#endif
