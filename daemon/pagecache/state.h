/*
 * state.h - the one owner of a page's state: which copy includes which writes, and what memory may be shown.
 *
 * Nobody else calls track_*() or changes a struct page_track, page_replica or page_extra. A call here is one
 * transition; it keeps the counters that follow from it (chunk.n_ahead, replica.n_snapped, cfile.n_windows, cache.n_kept) and
 * drops the twins that nothing needs any more. The table of the states is in consistency/track.h; cache_check() compares
 * states and counters.
 *
 * All of it is called with chunk->lock held. What changes something wants the page locked, exclusively, but for what says
 * otherwise; what only looks wants it locked either way, or takes what it sees for a hint.
 */
#ifndef GAIA_PAGECACHE_STATE_H
#define GAIA_PAGECACHE_STATE_H

#include "pagecache/internal.h"

/* ---- tracking ---- */

/* From now on, if it was not so before; no page need be locked. The kernel may have any page, of a file that is not passed through. */
void track_make(struct chunk *ch);
/* No replica, nothing pending: stop keeping track. No page need be locked. */
void track_maybe_free(struct chunk *ch);

/* ---- home ---- */

/* Whether home's bytes must be present before the page is changed: as a base, or to merge into. */
bool home_base_needed(struct chunk *ch, unsigned i);
/*
 * Whether home's copy of page i, which is clean and locked by nobody else, may be dropped for want of
 * memory. If so it must be: in a passthrough file what devices have of the page becomes stale.
 */
bool home_may_leave(struct chunk *ch, unsigned i);
/*
 * Home's bytes are about to change in place: the old ones, if @present, are kept where they are somebody's base, in *@spare, a
 * frame, which is 0 then; and home has a new id.
 */
void home_change(struct chunk *ch, unsigned i, bool present, frame_t *spare);
/* Home's bytes become those of @frame, which is taken over; what it had is kept, where it is somebody's base, or given back. */
void home_replace(struct chunk *ch, unsigned i, frame_t frame);
/* All of the page is cut off, and so whatever was a base of it. */
void home_void(struct chunk *ch, unsigned i);
/* The bytes that @id names: home's, or a twin's. A bug() if they are nowhere. */
const void *base_bytes(struct chunk *ch, unsigned i, track_id id);

/* Who wrote which byte, see merge3_owned(); NULL: nobody has to know. */
uint8_t *page_owners(struct chunk *ch, unsigned i);
/* May take *@spare, a frame, which is 0 then. */
uint8_t *page_owners_make(struct chunk *ch, unsigned i, frame_t *spare);

/* What the store had of the page when it was last equal to home, where that is not home's (see passthrough.c), or NULL. */
char *under_bytes(struct chunk *ch, unsigned i);
/* Takes over @frame. */
void under_keep(struct chunk *ch, unsigned i, frame_t frame);
void under_drop(struct chunk *ch, unsigned i);

/* ---- what the kernel has ---- */

/* It was given home's bytes, or what it sent is what home has. */
void kernel_given(struct chunk *ch, unsigned i);
/* What it sent, which @frame holds, was merged into home, which differs now. Takes @frame over. */
void kernel_merged(struct chunk *ch, unsigned i, frame_t frame);
/* What it sent was not taken. */
void kernel_kept(struct chunk *ch, unsigned i);
/* While an invalidation is under way, its copy started from what home does not have any more. */
bool kernel_is_behind(const struct chunk *ch, unsigned i);
/*
 * CPU programs wrote @len bytes at @off, which the kernel's base has now, too: its copy has them, or it drops its copy. So home
 * differs from that base by what devices wrote only, and what the kernel sends wins over all that CPUs wrote before,
 * also where it made a page anew without reading it. @before: home's id before the write. May take *@spare, which is 0 then.
 */
void kernel_base_wrote(struct chunk *ch, unsigned i, track_id before, unsigned off, const void *bytes,
		       unsigned len, frame_t *spare);
/* An invalidation of page i is about to begin: see track_window_open(). */
uint16_t window_open(struct chunk *ch, unsigned i);
/* So many are pending that one is yet to begin: see track_windows_suffice(). */
bool windows_suffice(const struct chunk *ch, unsigned i);
/* It has completed. Waits for the page, which the caller has not locked. [W] */
void window_close(struct chunk *ch, unsigned i, uint16_t opened);

/* ---- a replica's page ---- */

static inline bool replica_ahead(const struct replica *rep, unsigned i)
{
	return rep->page[i].flags & REPLICA_AHEAD;
}
/* Some device has released what home lacks. */
static inline bool page_ahead(const struct chunk *ch, unsigned i)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (replica_ahead(ch->replica[k], i))
			return true;
	return false;
}
/* Somebody else's changes of the page are to be merged sooner or later. */
bool others_outstanding(const struct chunk *ch, unsigned i, const struct replica *self);
/* Its bytes are home's present ones, and nobody is changing them. */
bool replica_is_home(const struct replica *rep, unsigned i);
/* Its bytes are home's, or those that were released and are nowhere else. Nobody holds the page. */
bool replica_has(const struct replica *rep, unsigned i);
/* What an acquire has to do to pages [a, b). */
void replica_plan(struct replica *rep, unsigned a, unsigned b, bool write, uint8_t *step);
/* To one, but for who may be looking at it. */
enum track_step replica_step(struct replica *rep, unsigned i, bool write);

/* Home's bytes were copied over it, or another replica's that has the same. */
void replica_sent(struct replica *rep, unsigned i);
/* They were to be: it holds part of old, part of new. */
void replica_garbled(struct replica *rep, unsigned i);
/* Its bytes are not to be trusted: somebody may have stored there who holds nothing. Nobody does, and nothing is released of it. */
void replica_distrusted(struct replica *rep, unsigned i);
/* Home's bytes were merged into it. */
void replica_pulled(struct replica *rep, unsigned i);
/* The released bytes are in the snapshot. */
void replica_secured(struct replica *rep, unsigned i);
/* The device remembers what a release is to be compared with; or does not any more. */
void replica_armed(struct replica *rep, unsigned i);
void replica_disarmed(struct replica *rep, unsigned i);

/* One mapping more holds it for writing. @beyond: the page lies beyond the end of the file. */
void replica_hold(struct replica *rep, unsigned i, bool beyond);
/* One less; what it stored is void, unless others hold it so. */
void replica_drop_hold(struct replica *rep, unsigned i);
/*
 * A release found it @changed or not, and takes a hold away (@ends) or not. Who still holds it goes on writing: the released bytes
 * were @secured, or are to be fetched by the caller. Whether there is something new for others to see.
 */
bool replica_release(struct replica *rep, unsigned i, bool ends, bool changed, bool secured);

/* What will be merged of it once differs from something that home was before. */
bool replica_is_behind(const struct replica *rep, unsigned i);
/* Its device is gone: it will never be merged, and needs no base. */
void replica_forget_base(struct replica *rep, unsigned i);

/* What was released of it is about to be merged home: its base is not needed beyond this any more. */
void replica_merge_begin(struct replica *rep, unsigned i);
/* It was: home is dirty now. @equal: and has just what was released. @frame: that, which is taken over; 0 where it is home's. */
void replica_merge_end(struct replica *rep, unsigned i, bool equal, frame_t frame);

/* Bytes from @cut on were cut off, and are zeros at home (0: all of the page). What clients store there counts for nothing. */
void replica_cut(struct replica *rep, unsigned i, unsigned cut);
/* What it has of the file's bytes was removed from the file, in part or as a whole. */
void replica_removed(struct replica *rep, unsigned i);
/* Whether nobody but a look at other bits can say that its memory shows nothing that was removed, or was never there. */
static inline bool replica_hides(const struct replica *rep, unsigned i)
{
	unsigned flags = rep->page[i].flags;

	return (flags & REPLICA_REMOVED) || !(flags & (REPLICA_PRESENT | REPLICA_ZEROS)) ||
	       (flags & REPLICA_SNAPPED);
}
/*
 * Of a page whose memory somebody maps, and that some mapping has @held or not: whether it is to be zeros; @all: also where it is
 * only old. And whether it is to be brought up to date, as that one goes on with it, or all of what was released is there.
 */
bool replica_to_zero(struct replica *rep, unsigned i, bool held, bool all, bool in_file);
bool replica_to_bring(struct replica *rep, unsigned i, bool held, bool in_file);
/* Its memory is zeros now. */
void replica_zeroed(struct replica *rep, unsigned i);

/* What it released is lost with its device, or nobody will ever ask for it. */
void replica_forget(struct replica *rep, unsigned i);
/* Page i of a replica that is not in the table any more: what was kept for it may go. */
void replica_left(struct chunk *ch, unsigned i);

#endif
