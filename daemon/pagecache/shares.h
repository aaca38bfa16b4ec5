/*
 * shares.h - frames of home that several pages have, because their bytes are equal: how many have each, and by what it is found.
 *
 * A frame that is *indexed* can be found by what it holds, and so got by another page at any time: its bytes must not change.
 * Who wants to change them, with the page locked exclusively, first takes the frame out of the index (shares_own()); if others have
 * it, too, the page needs a frame of its own (pages_own()). A frame enters the index before its page has it (dedup_frames()).
 *
 * Found by a tag: 32 bits of a hash of the bytes, by which the frame is looked for, and a domain, which keeps apart what must not be shared (whose
 * file it is of). What is found is compared byte by byte, always: the hash only says what is worth it.
 *
 * Thread-safe. The locks, of a part of the table each, are leaves.
 */
#ifndef GAIA_PAGECACHE_SHARES_H
#define GAIA_PAGECACHE_SHARES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pagecache/frames.h"

/* The tag and the domain of frames that hold nothing but zeros. */
#define SHARES_ZEROS 0u

/* A hash table in which chains go through the frames: 20 bytes for each frame of a slab that has had one of these. -ENOMEM. */
int shares_create(struct frames *fr);
void shares_destroy(struct frames *fr);

/*
 * A frame with the same bytes and domain, of which the caller has a share now. If there is none @frame, whose bytes do not change
 * any more, enters the index and is returned; the caller has the only share. It is returned without that if there is no memory, or so much is shared
 * that what is recorded of the pages would take too much.
 */
frame_t shares_join(struct frames *fr, frame_t frame, uint32_t tag, uint32_t domain);
/* Whether it is in the index. For who has a share of it, and, if it is a page's, has that locked. */
bool shares_indexed(const struct frames *fr, frame_t frame);
/* It is indexed, and the caller has a share of it: it is in the index no more, and the caller's alone. False: others have it, too. */
bool shares_own(struct frames *fr, frame_t frame);
/* It is indexed: give back a share. True: that was the last one, and it is in the index no more. */
bool shares_put(struct frames *fr, frame_t frame);
/* A hint, as others may come and go: it is indexed, and others have it, too. */
bool shares_by_others(const struct frames *fr, frame_t frame);
/* It is indexed as one of zeros. As shares_indexed(). */
bool shares_zeros(const struct frames *fr, frame_t frame);
/* Its domain, and its tag. As shares_indexed(). */
uint32_t shares_domain(const struct frames *fr, frame_t frame);
uint32_t shares_tag(const struct frames *fr, frame_t frame);
/* The slot of a device (victim.h) that it is linked with as far as it knows; 0: none, as when it enters the index. As above, with victims.lock held. */
uint32_t shares_slot(const struct frames *fr, frame_t frame);
void shares_set_slot(struct frames *fr, frame_t frame, uint32_t slot);
/* Frames that would be needed beside those that there are, if nothing were shared. */
uint64_t shares_saved(const struct frames *fr);

/*
 * For cache_check(): nothing runs. @owners: for each number of a frame how many have it. A bug() if that is not what the index
 * says, or a frame is not where its tag says. Returns shares_saved(), counted.
 */
uint64_t shares_check(const struct frames *fr, const uint32_t *owners);

#endif
