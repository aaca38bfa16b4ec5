/*
 * policy.h - the library's own policies: which page leaves when another needs its memory.
 *
 * Each is a struct gaia_umap_policy, as an application's own (gaia/umap.h says when its functions are called). They
 * know nothing but slots and numbers of pages: no memory, locks or clocks.
 */
#ifndef UMAP_POLICY_H
#define UMAP_POLICY_H

#pragma GCC visibility push(default)
#include "gaia/umap.h"
#pragma GCC visibility pop

/* First in, first out. A page that is touched after it was chosen is the next to be chosen again. */
extern const struct gaia_umap_policy umap_fifo;

/* Least recently seen: a hit counts as new. The reference for what recency alone brings. */
extern const struct gaia_umap_policy umap_lru;

/*
 * S3-FIFO (SOSP'23): new pages go through a small queue, a tenth of the slots, so that what is touched once leaves soon.
 * What is touched while it is chosen to leave goes to the main queue; so do pages that come again soon after they left
 * the small one (their ghosts are remembered). The queues are FIFOs.
 */
extern const struct gaia_umap_policy umap_s3fifo;

#endif
