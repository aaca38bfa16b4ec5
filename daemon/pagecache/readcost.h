/*
 * readcost.h - what reading costs, of the store and of each device; and from which of them pages are to come.
 *
 * A source's cost is a curve over the number of pages that are read at once, since most of what a page costs by itself is
 * latency. It is kept at a few points, with straight lines between them, and learned from reads: each multiplies the points beside
 * it by an eighth of the ratio to what was expected (more while few are known), and counts as eight times that at most, or an
 * eighth. So what happened once is soon forgotten, and what lasts is soon believed. More pages never cost less than fewer, nor more
 * than to read the fewer as often: points that a sample has put in contradiction to that follow.
 *
 * Before a point is known it has a guess: of the store a fast disk (80 us and 3 GB/s), of a device a bus (25 us and 20 GB/s). Thus a
 * device is asked first: its memory is never far, whereas the store may be anything, and the other is asked too by and by.
 *
 * A source that is not used, though it has the pages, is used all the same now and then, to learn what it costs by now. Such a
 * *probe* comes at most every 32nd time, one of each source at a time: so a source that does not answer holds up one read. And
 * not before the reads that were made instead took 32 times what it is expected to cost beyond them. What it did cost beyond them is
 * a debt that they pay off in the same way, before the next one: so probes add a thirty-second to what reading costs. They are
 * small, and made only where the caller allows it.
 *
 * Pure: no clock, no I/O, no memory of its own. Safe for concurrent use: a sample may be lost, and then another one comes.
 */
#ifndef GAIA_PAGECACHE_READCOST_H
#define GAIA_PAGECACHE_READCOST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define READ_POINTS 4u
extern const unsigned read_point[READ_POINTS]; /* pages: 1, 8, 64, 256 */
#define READ_BATCH 256u			       /* pages that are planned together at most */
#define READ_PROBE 32u			       /* pages of a batch that may become a probe at most */
#define READ_DEVICES 8u			       /* devices that are considered for a batch at most */
#define READ_KNOWN 8u			       /* samples after which one more counts for an eighth */

/* All fields relaxed, but for the flag. */
struct read_cost {
	_Atomic uint64_t ns[READ_POINTS];
	_Atomic uint32_t samples[READ_POINTS]; /* that have moved the point, up to READ_KNOWN; 0: ns is a guess */
	atomic_bool in_turn; /* reads of several runs are made one after the other */
	/* Probes. */
	_Atomic uint32_t passed; /* since the last one: how often another source was used */
	_Atomic int64_t credit;	 /* what may be spent on the next one; in ns / 32, negative: a debt */
	atomic_bool probing;	 /* one is under way */
};

void read_cost_init(struct read_cost *rc, bool is_store);
/*
 * What a read of @pages (at least one) is expected to take: 1 ns or more. They lie in so many @runs: of the store each but the first takes
 * a quarter of a read of one page more, since disks work on several at a time, or if in_turn all of it; a device copies any
 * number of runs as one.
 */
uint64_t read_cost_ns(const struct read_cost *rc, unsigned pages, unsigned runs);
/* How many pages take as long as the wait for them, bandwidth times latency: to read fewer at a time is to wait most of the time. */
#define READ_WINDOW_MOST 4096u /* 16 MiB */
unsigned read_cost_window(const struct read_cost *rc);
/* One took so long. */
void read_cost_learn(struct read_cost *rc, unsigned pages, unsigned runs, uint64_t ns);

/*
 * What a read took by itself. It waits for those that were begun before it from the same source; call this for each in that order.
 * *@last_ns is when the last of them ended, 0 at first.
 */
uint64_t read_own_ns(uint64_t *last_ns, uint64_t began_ns, uint64_t ended_ns);

#define READ_STORE 0xffu
/* Pages that are read together, and where they can come from. All are begun at the same time: so the slowest source decides. */
struct read_batch {
	struct read_cost *store;	/* it has all of them */
	struct read_cost *const *dev;
	unsigned n_dev;			/* READ_DEVICES at most */
	unsigned n;			/* 1 to READ_BATCH */
	const uint16_t *page;		/* ascending: neighbours are one run of the store's */
	const uint8_t *has;		/* bit k of has[i]: dev[k] has page[i] */
	bool in_turn;			/* the store will read one run after the other */
	bool may_probe;
};
/*
 * from[i] becomes the number of the device that page[i] is to come from, or READ_STORE. If few pages lie between what a device has, or
 * all that a device has is a page here and there, it may be cheapest to read all of it from the store.
 * Returns NULL, or the source of which this is a probe; it takes *@instead_ns without. The caller says when it is over.
 */
struct read_cost *read_plan(const struct read_batch *rb, uint8_t *from, uint64_t *instead_ns);
/* It took so much longer than it takes without. */
void read_probe_end(struct read_cost *rc, uint64_t more_ns);

#endif
