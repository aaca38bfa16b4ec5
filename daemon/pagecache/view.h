/*
 * view.h - home's own memory of a chunk, as clients on the host map it to read.
 *
 * A client on the host that only reads needs no copy: it maps what home has. For that a chunk has a *view*: a replica on the host device
 * whose memory is lent to home (frames_lend()). Page i of the file's chunk lies at page i of that memory, or nowhere in it. An acquire
 * moves pages that lie elsewhere there; from then on home's page is *in view*, and is changed where it is. What is not in view is zeros. So
 * clients see home's bytes of the chunk, or zeros (promise 13), and N of them share one copy.
 *
 * To everything else a view is a replica that is only ever filled, like those of readers (struct readers): nothing is released in it, and
 * nothing is read from it. Its page is PRESENT if it is in view, else ZEROS. It goes when devices' replicas go (evict.c): nobody has it
 * pinned, and clients have unmapped it. Then its pages get frames of home's again, or leave home. While it is there they leave home only by being
 * removed from the file: so its budget is all of the chunk's.
 */
#ifndef GAIA_PAGECACHE_VIEW_H
#define GAIA_PAGECACHE_VIEW_H

#include <stdbool.h>
#include <stddef.h>

#include "pagecache/chunk.h"

struct cache;
struct devmem;
struct part;
struct readers;
struct replica;

/* Whose replicas are views: the same for all files. */
struct readers *view_readers(struct cache *c);
bool replica_is_view(const struct replica *rep);

/* The replica, a view, is about to get this memory: -ENOMEM. No lock is held. */
int view_begin(struct replica *rep, struct devmem *mem);
/*
 * The view ends: nobody maps it, and all pages are locked. They get other frames, or are dropped: those that are clean if home is full. -ENOMEM:
 * there is no memory for those that are dirty, and nothing is lost. No other lock is held; so in what follows.
 */
int view_leave(struct replica *rep);
/* Its memory is no frames' any more. */
void view_end(struct replica *rep);
/* The part's pages that are to be sent or merged come into view: home has them, and they are locked. */
void view_bring(struct part *pt);

/*
 * If home is nearly full what the host device has goes, that which has been idle for longest first: what nobody has used in the last rounds
 * (cache.idled), or, if pages are @lacking that nothing else gives, whatever is not held. For one thread, in rounds of some seconds. [W]
 */
void view_trim(struct cache *c, bool lacking);

/* If the chunk has a view evict that, so that its pages leave home as others do: -EBUSY if somebody holds any of it. [W] */
int view_drop(struct chunk *ch);

/* ---- pages in view. chunk->lock is held, and the page is locked ---- */

/* Home's copy is dropped, and its memory zeros. */
void view_page_leaves(struct chunk *ch, unsigned i);
/* Its bytes change places with those of @frame, which is returned: a frame with the old ones. */
frame_t view_page_exchange(struct chunk *ch, unsigned i, frame_t frame);
/*
 * What is stored must stay as it is meanwhile (21), and pages in view have no other frame to be written to. So of pages [a, b), with the frames
 * @frame, those are stored from a copy: page k's is at (k - a) pages. NULL: none is in view. To be freed.
 */
char *view_store_copy(const struct chunk *ch, unsigned a, unsigned b, const frame_t *frame);

#endif
