/*
 * state.h - all changes of a page's state: which copy includes which writes, and what memory may be shown.
 *
 * No other code calls track_*() or changes a struct page_track, page_replica or page_extra. A call here is one
 * transition; it updates the counters that follow from it (chunk.n_ahead, replica.n_snapped, cfile.n_windows, cache.n_kept) and
 * drops twins that nothing needs any more. The table of the states is in consistency/track.h; cache_check() compares
 * states and counters.
 *
 * Everything here is called with chunk->lock held. Calls that change something need the page locked, exclusively, unless stated
 * otherwise; for calls that only look it may be locked either way, or the caller takes the result for a hint.
 */
#ifndef GAIA_PAGECACHE_STATE_H
#define GAIA_PAGECACHE_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "consistency/track.h"
#include "pagecache/chunk.h"
#include "pagecache/frames.h"
#include "pagecache/replica.h"

/* ---- tracking ---- */

/* Begin to keep track, unless that is so already; no page need be locked. The kernel may have any page, unless the file is passed through. */
void track_make(struct chunk *ch);
/* Stop keeping track, if there is no replica and nothing is pending. No page need be locked. */
void track_maybe_free(struct chunk *ch);

/* ---- home ---- */

/* Whether home's bytes must be present before the page is changed: as a base, or to merge into. */
bool home_base_needed(struct chunk *ch, unsigned i);
/*
 * Whether home's copy of page i, which is clean and locked by nobody else, may be dropped to free
 * memory. If the answer is yes it must be dropped: in a passthrough file that CPU programs may write the devices' copies of the page are stale
 * then; in another one they cannot be written until home has it again, which is what they are compared with.
 */
bool home_may_leave(struct chunk *ch, unsigned i);
/* Home lacks the page, which is locked, of a passthrough file that CPU programs may write from now on: the devices' copies are stale. */
void home_distrust(struct chunk *ch, unsigned i);
/* Whether home must have the page before it may be held for writing: it is what a CPU program's writes, and a release, will be compared with. */
bool home_lacks_base(const struct chunk *ch, unsigned i);
/*
 * Home's bytes are about to change in place. The old ones, if @present and a base of somebody's, are kept in *@spare, a
 * frame, which is set to 0 then; and home gets a new id.
 */
void home_change(struct chunk *ch, unsigned i, bool present, frame_t *spare);
/* Make the bytes of @frame, which is consumed, home's. The old frame is kept, if it is somebody's base, or given back. */
void home_replace(struct chunk *ch, unsigned i, frame_t frame);
/* All of the page is cut off, and with it everything that was a base of it. */
void home_void(struct chunk *ch, unsigned i);
/* The bytes that @id names: home's, or a twin's. A bug() if they are nowhere. */
const void *base_bytes(struct chunk *ch, unsigned i, track_id id);

/* Who wrote which byte, see merge3_owned(); NULL: nobody needs to know. */
uint8_t *page_owners(struct chunk *ch, unsigned i);
/* May take *@spare, a frame, which is 0 then. */
uint8_t *page_owners_make(struct chunk *ch, unsigned i, frame_t *spare);

/* The store's bytes of the page when it was last equal to home, if home has others now (see passthrough.c), or NULL. */
char *under_bytes(struct chunk *ch, unsigned i);
/* Consumes @frame. */
void under_keep(struct chunk *ch, unsigned i, frame_t frame);
void under_drop(struct chunk *ch, unsigned i);

/* ---- what the kernel has ---- */

/* The kernel was given home's bytes, or sent what home has. */
void kernel_given(struct chunk *ch, unsigned i);
/* What the kernel sent, which @frame holds, was merged into home, which differs from it now. Consumes @frame. */
void kernel_merged(struct chunk *ch, unsigned i, frame_t frame);
/* What the kernel sent was not taken. */
void kernel_kept(struct chunk *ch, unsigned i);
/* Whether, while an invalidation is under way, the kernel's copy started from bytes that home does not have any more. */
bool kernel_is_behind(const struct chunk *ch, unsigned i);
/*
 * CPU programs wrote @len bytes at @off, and from now on the kernel's base has them, too: its copy has them, or it drops its copy. So
 * home differs from that base only by what devices wrote, and what the kernel sends wins over everything that CPUs wrote before,
 * even if it made a page anew without reading it. @before: home's id before the write. May take *@spare, which is set to 0 then.
 */
void kernel_base_wrote(struct chunk *ch, unsigned i, track_id before, unsigned off, const void *bytes,
		       unsigned len, frame_t *spare);
/* An invalidation of page i is about to begin: see track_window_open(). */
uint16_t window_open(struct chunk *ch, unsigned i);
/* So many are pending that one is yet to begin: see track_windows_suffice(). */
bool windows_suffice(const struct chunk *ch, unsigned i);
/* It has completed. Waits for the page, which the caller must not have locked. [W] */
void window_close(struct chunk *ch, unsigned i, uint16_t opened);

/* ---- the index of what is stale ---- */

/* Page i, which was in view (view.h), is not any more. */
void view_absent(struct chunk *ch, unsigned i);
/* For a new replica, which is not in the chunk's table yet: it has nothing, and all of it is stale. */
void replica_made(struct replica *rep);
/*
 * Whether an acquire of pages [a, b) (@write: for writing) only has to hold them: they are in the file and up to date, and, for writing,
 * the device remembers what a release must be compared with (unless all clients that may write it look for changes themselves). No page need be locked; the answer is valid as long as nobody has locked one of
 * them exclusively.
 */
bool replica_is_current(const struct replica *rep, unsigned a, unsigned b, bool write);
/* Set the bits of those pages of [a, b) of which replica_is_current() does not say so. */
void replica_not_current(const struct replica *rep, unsigned a, unsigned b, bool write, uint64_t *bits);
/* After an acquire has brought pages [a, b): those that are current now leave the index. */
void replica_acquired(struct replica *rep, unsigned a, unsigned b);
/* A mapping for writing has a grant of it from now on, or no more. @detects: its client looks for changes itself; for others pages are armed. */
void replica_granted(struct replica *rep, bool detects);
void replica_grant_ended(struct replica *rep, bool detects);
/* The page, which nobody holds for writing unless it is somebody's base, is not held for writing from now on without a look at it. */
void page_disarm(struct chunk *ch, unsigned i);
/* Whether the memory of one of pages [a, b) may show what it must not, if somebody maps it: see replica_hides(). */
bool replica_hides_any(const struct replica *rep, unsigned a, unsigned b);
/* For cache_check(): a bug() if the index lacks a page that needs something. */
void replica_check_index(struct replica *rep);

/* ---- a replica's page ---- */

static inline bool replica_ahead(const struct replica *rep, unsigned i)
{
	return rep->page[i].flags & REPLICA_AHEAD;
}
/* Whether some device has released what home lacks. */
static inline bool page_ahead(const struct chunk *ch, unsigned i)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (replica_ahead(ch->replica[k], i))
			return true;
	return false;
}
/* Whether changes of the page by others are to be merged sooner or later. */
bool others_outstanding(const struct chunk *ch, unsigned i, const struct replica *self);
/* Whether its bytes are home's present ones, and nobody is changing them. */
bool replica_is_home(const struct replica *rep, unsigned i);
/* Whether its bytes are home's, or those that were released and are nowhere else. Nobody holds the page. */
bool replica_has(const struct replica *rep, unsigned i);
/* Whether it has the only release of the page that is not merged, of bytes that were home's present ones: nothing has to be merged into it. */
bool replica_alone_has(const struct replica *rep, unsigned i);
/* What an acquire has to do to those of pages [a, b) that are in @pages, of which it will overwrite those in @over; and a bit for each step that any of them needs. */
unsigned replica_plan(struct replica *rep, unsigned a, unsigned b, const uint64_t *pages, const uint64_t *over, bool write, uint8_t *step);
/* The same for one page. */
enum track_step replica_step(struct replica *rep, unsigned i, bool write);

/* Home's bytes were copied over it, or those of another replica that has the same. */
void replica_sent(struct replica *rep, unsigned i);
/* That copy failed: it may be part old, part new. */
void replica_garbled(struct replica *rep, unsigned i);
/* Its bytes cannot be trusted: somebody who holds nothing may have stored there. Nobody holds the page, and no release of it is unmerged. */
void replica_distrusted(struct replica *rep, unsigned i);
/* Home's bytes were merged into it. */
void replica_pulled(struct replica *rep, unsigned i);
/* The released bytes are in the snapshot. */
void replica_secured(struct replica *rep, unsigned i);
/* The device remembers the hash that a release compares with; or does not any more. */
void replica_armed(struct replica *rep, unsigned i);
void replica_disarmed(struct replica *rep, unsigned i);

/* How many mappings hold it for writing. chunk->lock is held. */
unsigned replica_writers(const struct replica *rep, unsigned i);
/* One mapping more holds it for writing. @beyond: the page lies beyond the end of the file. @detects: its client looks for changes itself. */
void replica_hold(struct replica *rep, unsigned i, bool beyond, bool detects);
/*
 * Whether the client that holds it for writing can tell whether it has changed: it has looked for itself (@detects, above) since it acquired
 * the page, nobody else has held it for writing, and nobody has changed its memory. Then what a release is to be compared with is what the page
 * was when it was acquired.
 */
bool replica_is_detected(const struct replica *rep, unsigned i);
/* One mapping less; what it stored is void, unless others hold it for writing. */
void replica_drop_hold(struct replica *rep, unsigned i);
/* One mapping less, which was never told that it may store there. */
void replica_undo_hold(struct replica *rep, unsigned i);
/* An acquire for overwriting of the page has succeeded: what is still as the acquire left it is fresh from now on. */
void replica_overwriting(struct replica *rep, unsigned i);
/*
 * A release found it changed or not, or does not ask (whole), and takes a hold away (@ends) or not. Mappings that still hold it go on writing: the released
 * bytes were @secured, or the caller will fetch them. Returns whether there is something new for others to see.
 */
enum found { FOUND_EQUAL, FOUND_CHANGED, FOUND_WHOLE };
bool replica_release(struct replica *rep, unsigned i, bool ends, enum found found, bool secured);
/* All of it is published by @rep: what others released of it and is lost with their devices does not matter any more. */
void replica_drop_lost_of_others(struct replica *rep, unsigned i);
static inline bool replica_is_fresh(const struct replica *rep, unsigned i)
{
	return rep->page[i].flags & REPLICA_FRESH;
}
/* Whether there is something that a release of the page, which is held for writing, can be compared with: not of what is being acquired for overwriting. */
static inline bool replica_has_base(const struct replica *rep, unsigned i)
{
	return (rep->page[i].flags & (REPLICA_PRESENT | REPLICA_FRESH)) == REPLICA_PRESENT;
}

/* Whether what will be merged of it once differs from something that home was before. */
bool replica_is_behind(const struct replica *rep, unsigned i);
/* Its device is gone: it will never be merged, and needs no base. */
void replica_forget_base(struct replica *rep, unsigned i);

/* What was released of it is about to be merged home: after this its base is not needed any more. */
void replica_merge_begin(struct replica *rep, unsigned i);
/* It was merged: home is dirty now. @equal: home has just what was released. @frame: the released bytes, consumed; 0 if they are home's. */
void replica_merge_end(struct replica *rep, unsigned i, bool equal, frame_t frame);

/* Bytes from @cut on were cut off, and are zeros at home (0: all of the page). What clients store there does not count. */
void replica_cut(struct replica *rep, unsigned i, unsigned cut);
/* Its bytes were removed from the file, in part or all. */
void replica_removed(struct replica *rep, unsigned i);
/* Whether its memory may contain what was removed, or was never the file's: true means that other state has to be looked at, too. */
static inline bool replica_hides(const struct replica *rep, unsigned i)
{
	unsigned flags = rep->page[i].flags;

	return (flags & REPLICA_REMOVED) || !(flags & (REPLICA_PRESENT | REPLICA_ZEROS)) ||
	       (flags & REPLICA_SNAPPED);
}
/*
 * For a page whose memory somebody maps: whether it must be zeroed, given whether some mapping has it @held; @all: also if it is
 * only old. And whether it must be brought up to date, because that mapping goes on with it, or because all of what was released
 * is there.
 */
bool replica_to_zero(struct replica *rep, unsigned i, bool held, bool all, bool in_file);
bool replica_to_bring(struct replica *rep, unsigned i, bool held, bool in_file);
/* Its memory is zeros now. */
void replica_zeroed(struct replica *rep, unsigned i);

/* What it released is lost with its device, or nobody will ever ask for it. */
void replica_forget(struct replica *rep, unsigned i);
/* Page i of a replica that is not in the table any more: what was kept for it may be dropped. */
void replica_left(struct chunk *ch, unsigned i);

#endif
