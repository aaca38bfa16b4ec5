/*
 * track.h - which copy of a page includes which writes, and what an acquire has to do about it.
 *
 * The contract gives each page a vector of versions, with one counter for each owner (Parker et al., TSE'83; GAIA's
 * TSVT). Here replicas are only ever filled from home, or from a replica that has home's bytes
 * (track_is_home()). So a replica's vector is always the vector that home had at some moment,
 * plus the replica's own unmerged release. Two facts then
 * say what the vectors say: a name (an id) for that moment, and one bit. A page's home
 * gets a new id whenever its bytes change. Ids are compared for equality only, and an id is not
 * given again while anything still refers to it: so 16 bits are enough.
 *
 *	vector of replica >= vector of home	seen == home_id, or ahead and seen == home_id
 *	home >= vector of replica		not ahead
 *	concurrent				ahead and seen != home_id
 *
 * tests/unit/track.c compares this with full vectors on random histories.
 *
 * One invariant carries the protocol: *before home's bytes change for any reason, every
 * release that is not yet merged is merged.* So writes that follow a release in time are never taken for
 * concurrent ones; and a replica that is ahead lacks, beyond its base, only writes from before
 * its release.
 *
 * state of a page's replica      seen names                     base of what clients write now
 *  absent   (no PRESENT)         nothing                        -
 *  clean    (not written)        home's bytes that it equals    -
 *  written                       their base                     same
 *  void     (written, cut 0)     nothing                        none: it counts for nothing
 *  coming   (written, ZEROS)     nothing                        none: acquired for overwriting, by calls that have not succeeded yet
 *  fresh    (written, FRESH)     nothing                        none: all of it counts as written
 *  ahead    (AHEAD, not written) the base of the release        -
 *   whole   (AHEAD, WHOLE)       what home was when released    -
 *  secured  (AHEAD, SNAPPED)     the base of the release        the snapshot, which holds the release
 *
 * Pure: no I/O, no locks, no clock, no memory of its own. The caller serialises access to a page.
 */
#ifndef GAIA_CONSISTENCY_TRACK_H
#define GAIA_CONSISTENCY_TRACK_H

#include <stdbool.h>
#include <stdint.h>

#include "gaia/protocol.h"

/* Names home's bytes of a page at a moment. 0 names nothing. */
typedef uint16_t track_id;

/* Home's side of a page. */
struct page_track {
	track_id home_id;
	/*
	 * The kernel's cached copy, which matters while invalidations of it are pending
	 * ("window"): except for CPU stores it equals what kernel_base names. 0: an invalidation has dropped the
	 * copy. If the kernel sends a page then, processes have written all of it.
	 */
	track_id kernel_base;
	uint16_t pending : 14;	/* invalidations of this page that have not completed; see track_windows_suffice() */
	uint16_t met : 1;	/* kernel_base names what the kernel sent and home merged: that has lost its races with home */
	uint16_t may_hold : 1;	/* the kernel may have a copy */
	uint16_t given; /* how often the kernel was given or sent a copy since the first pending invalidation began; saturates */
};

enum {
	REPLICA_PRESENT = 1,	/* the bytes mean something */
	REPLICA_AHEAD = 2,	/* released, not yet merged home */
	REPLICA_SNAPPED = 4,	/* ... and the released bytes are in the snapshot */
	REPLICA_ARMED = 8,	/* the device remembers the hash of the base of what clients write;
				 * without, a release takes the page for changed */
	/* Of the memory, for the code that shows it to clients (pagecache/state.h); cleared when it is filled. */
	REPLICA_ZEROS = 16,	/* not PRESENT, and all of it is zeros */
	REPLICA_REMOVED = 32,	/* may contain bytes that were removed from the file since */
	/* Of what was acquired for overwriting. */
	REPLICA_FRESH = 64,	/* PRESENT, but not equal to anything: there is no base. Its memory was zeros at first */
	REPLICA_WHOLE = 128,	/* AHEAD, and all of its bytes count as written */
};

/* A device's side of a page. Packed, as there is one for each page that a device has. */
struct __attribute__((packed)) page_replica {
	track_id seen;
	uint16_t cut : 13; /* a truncate removed the bytes from here on: what clients wrote there is void */
	bool written : 1;  /* some mapping holds the page for writing */
	bool left : 1;	   /* ... and one that did so ended without releasing it: what that had stored may be in the memory */
	bool alone : 1;	   /* written, by one mapping alone, whose client knows whether it changed (pagecache/state.h) */
	uint8_t flags;
};

_Static_assert(sizeof(struct page_track) + sizeof(struct page_replica) <= 13,
	       "at most 16 bytes a page and device, with all that the page cache keeps of chunks (tests/bench/counts.c)");

/* All sides of one page. r[i] may belong to any device. */
struct page_view {
	struct page_track *t;
	struct page_replica **r;
	unsigned n;
};

/* What an acquire has to do to one page of one replica. */
enum track_step {
	TRACK_NOTHING,	/* it is current */
	TRACK_FETCH,	/* bring home up to date with the replicas that are ahead; then plan again */
	TRACK_SEND,	/* copy home's page to the replica */
	TRACK_PULL,	/* merge home's page into the replica, which clients may be writing */
	TRACK_SECURE,	/* snapshot the released bytes: they are about to be overwritten */
	TRACK_ZERO,	/* fill the page with zeros: nobody will ask what it was */
};

void track_init(struct page_track *t);

/* Whether any replica holds a release that home lacks. */
bool track_ahead(const struct page_view *v);

/* Whether anything still needs the bytes that @id names, as the base of a merge to come. */
bool track_base_needed(const struct page_view *v, track_id id);

/*
 * Home's bytes change (now, or when this returns): give them a new id. The caller has saved
 * the old bytes if track_base_needed(v, home_id). No replica may be ahead, except
 * while a merge of several is under way. Returns the new id.
 */
track_id track_home_changed(struct page_view *v);

/* An id that nothing refers to, for bytes that are kept as a base but never were home's. */
track_id track_fresh_id(const struct page_view *v);

/* The plan for replica v->r[self]. */
enum track_step track_plan(const struct page_view *v, unsigned self, bool write);

/* The same for an acquire of all of the page that will overwrite it; @held: clients of the device hold it. */
enum track_step track_plan_overwrite(const struct page_view *v, unsigned self, bool held);

/* Whether the replica's bytes are home's present ones, and nobody is changing them. */
bool track_is_home(const struct page_track *t, const struct page_replica *r);

/* Events. @r is one of the view's replicas. */
void track_sent(const struct page_track *t, struct page_replica *r);
void track_pulled(const struct page_track *t, struct page_replica *r);
void track_secured(struct page_replica *r);

/* An acquire for overwriting has succeeded: if the page is coming it is fresh from now on, or void if it was cut off meanwhile. */
void track_overwriting(struct page_replica *r);
/* All of the page, which is not void, is about to be released: called before track_released(). */
void track_overwritten(const struct page_track *t, struct page_replica *r);

/*
 * A release found the page changed (or not). @writers_left: other mappings still hold it for writing, and
 * the caller has secured the page. Returns whether there is something new for others to see.
 */
bool track_released(struct page_replica *r, bool changed, bool writers_left);

/*
 * Home has merged the replica's release; home's new id is set. @equal: home's bytes now equal the released
 * ones. @kept: if track_keep_released() asked for it, the id of a saved copy of the released bytes, which becomes the
 * base of what clients write from now on; else 0.
 */
bool track_keep_released(const struct page_replica *r, bool equal);
void track_merged(const struct page_track *t, struct page_replica *r, bool equal, track_id kept);

/* What the clients of the replica wrote since the last release is void. */
void track_discarded(struct page_replica *r);

/* The kernel has a copy that equals what @base names: home's bytes now (a READ was answered), or what it sent. */
void track_kernel_given(struct page_track *t, track_id base);
/* The same, and home, which differs from that copy now, has merged it. */
void track_kernel_merged(struct page_track *t, track_id base);
/* The kernel sent its copy, and an error kept home from taking it. What it sent counts as stores to the copy that it had. */
void track_kernel_kept(struct page_track *t);

/*
 * An invalidation: open before it starts, for a page that the kernel may hold; close when it has completed, with the
 * value that track_window_open() returned.
 */
uint16_t track_window_open(struct page_track *t);
/*
 * Whether more are pending than can be under way at a time, so that one of them is yet to begin: then no other has to be
 * asked for to have the kernel's copy dropped.
 */
bool track_windows_suffice(const struct page_track *t);
void track_window_close(struct page_track *t, uint16_t opened);

/* Clients are about to hold for writing a page beyond the end of the file: it is void until it is brought. */
void track_voided(struct page_replica *r);

/* A truncate removed the bytes from @cut on (0: all); home's new id is set. */
void track_truncated(struct page_replica *r, unsigned cut);

#endif
