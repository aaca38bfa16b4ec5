/*
 * state_inner.h - what state.c and state_replica.c share.
 */
#ifndef GAIA_PAGECACHE_STATE_INNER_H
#define GAIA_PAGECACHE_STATE_INNER_H

#include "pagecache/state.h"

/* ---- state.c ---- */

/* @buf: room for all replicas of the chunk. */
struct page_view state_view(const struct chunk *ch, unsigned i, struct page_replica **buf);
/* Something that track_plan() goes by has changed: of the page, or of one of its replicas. */
void state_touched(struct chunk *ch, unsigned i);
void twin_add(struct chunk *ch, unsigned i, track_id id, frame_t frame);
bool state_is_outstanding(const struct page_replica *r);
/* Whether its base is something that home was before. */
bool state_is_behind(const struct page_track *t, const struct page_replica *r);
/* Drop the twins that nothing needs any more. */
void twins_collect(struct chunk *ch, unsigned i);

#endif
