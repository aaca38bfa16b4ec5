/*
 * sides.h - mappings of the host that can write, of which what is only read is home itself.
 *
 * To the daemon such a mapping is two: the program's own, whose chunks are replicas, and one more to read, whose chunks are views (home's own
 * memory, daemon/pagecache/view.h). These are its *sides*. The program sees one mapping. A chunk's pages are all held on one side; a page that
 * is to be written has the chunk on the replica's. The next acquire to read, when none of it is held for writing any more, brings it back to
 * the view's. If other pages of it are held then, they *move*: they are acquired on the other side, that is shown, and what is held on
 * the first is given back. So at every moment what the program holds is there, and a thread that reads it meanwhile sees the one or the other.
 *
 * What the daemon hands over is placed at hidden addresses of the side's. What is shown to the program is the same memory, mapped once more.
 *
 * Rules (beside those of internal.h)
 *  A. sides.lock is a leaf, and not held while anything is waited for.
 *  B. A chunk changes sides only while nobody acquires or releases any of it (under_way), and meanwhile (moving) nobody begins to.
 *  C. An acquire or release marks all of its chunks at once, or waits without having marked any: so threads wait in no circle.
 *  D. Acquires to read that would come first again and again wait for one to write that has said that it waits (wanted).
 *  E. A hold is counted here when the daemon has answered, by those who have the chunk marked.
 *
 * A thread in gaia_acquire() waits for others' calls on the same chunks interruptibly; a release waits for a move to end, which takes as long as an
 * acquire.
 */
#ifndef GAIA_CLIENT_SIDES_H
#define GAIA_CLIENT_SIDES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "internal.h"

enum side { SIDE_VIEW, SIDE_REPLICA, SIDES };

struct side_pages;

struct side_chunk {
	/* sides.lock. */
	enum side held_on;	   /* where its pages are held, or were last */
	bool moving;
	unsigned under_way;	   /* acquires and releases */
	unsigned wanted;	   /* acquires to write that are waiting, or about to begin */
	unsigned whole;		   /* holds of all of its pages */
	bool whole_writes;	   /* some of these are for writing */
	struct side_pages *pages;  /* other holds; NULL: there were none yet */
	/* gaia_lock. */
	bool placed[SIDES];
	bool shown[SIDES];	   /* one of them at most */
};

/* Lives as long as its mapping. */
struct sides {
	/* Constant. */
	struct mapping *reader;	   /* SIDE_VIEW; SIDE_REPLICA is the program's mapping itself */
	char *at[SIDES];	   /* where they are placed, as at the mapping's base */
	struct side_chunk *chunk;  /* of each of the span's */

	pthread_mutex_t lock;
	_Atomic uint32_t changed;  /* a futex: something that a thread waits for has changed; written with lock held */
	unsigned waiting;	   /* lock */
};

/* ---- host.c: memory ---- */

/* Give @m, whose addresses are reserved, another side: @reader, which is not known yet. -ENOMEM. */
int sides_make(struct mapping *m, struct mapping *reader);
/* Undo it; the reader is the caller's again. Nobody uses it. */
struct mapping *sides_free(struct mapping *m);
/*
 * Show chunk k's @side to the program. Nothing happens if there is no memory of it (it was beyond the end of the file). On error what was
 * shown is there, or nothing. gaia_lock is held.
 */
int side_show(struct mapping *m, uint64_t k, enum side side);

/* ---- sides.c: holds ---- */

/* The work of acquires and releases, of ranges of the file, not empty and sorted. Errors as of list_acquire() and list_release(). What was
 * acquired is mapped. @push_err: as of range_release(). */
int sides_acquire(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot);
int sides_release(struct mapping *m, const struct gaia_list_range *range, size_t n, int *push_err);
/* As list_give_back(). */
int sides_give_back(struct mapping *m, const struct gaia_list_range *range, size_t n);
/* gaia_advise() of both. */
int sides_advise(struct mapping *m, struct gaia_ioc_range *io);

#endif
