/*
 * readcost.h - what reading costs, from the store and from each device; and which pages of a read are to come from which of them.
 *
 * Cost: for each source a curve, from the number of pages that are read together to nanoseconds. The first page costs latency and
 * further ones bandwidth, so no average for each page would do. The curve is kept at a few points, with straight lines between
 * them. A sample moves the points on both sides of it by an eighth of the ratio between what it took and what was expected, by
 * more while they have few samples. It counts as eight times what was expected at most, and as an eighth at least. So one odd read is
 * soon forgotten, and a lasting change soon believed. More pages never cost less than fewer, nor more than reading the fewer
 * as often as it takes: other points follow the one that was learned.
 *
 * Prior: a point without samples is a guess. For the store it is a fast disk (80 us and 3 GB/s), for a device a bus (25 us and
 * 20 GB/s). So devices are asked first: their memory is never far, but the store may be anything.
 *
 * Probes: what is known of a source that is never used would never change. So now and then a read goes to a source that has the
 * pages but seems dearer. For each source
 *  - one of 32 reads at most is a probe;
 *  - one probe is under way at a time, so that a source that does not answer holds up one read;
 *  - the reads that were made elsewhere since the last one have taken 32 times what this one is expected to cost beyond them. If
 *    it turns out to cost more, further reads have to make up for that first. So probes add a thirty-second to what reading costs.
 * A probe has READ_PROBE pages at most, and is made only where the caller allows it.
 *
 * Pure: no clock, no I/O, no memory of its own. All functions may be called by several threads at once, without locks. A sample may
 * be lost then, which the next one makes up for.
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

/* One source. Lives as long as its cache. All accesses are relaxed, but for @probing. */
struct read_cost {
	_Atomic uint64_t ns[READ_POINTS];      /* the curve */
	_Atomic uint32_t samples[READ_POINTS]; /* that have moved the point, up to READ_KNOWN; 0: ns is a guess */
	atomic_bool in_turn;		       /* reads of several runs are made one after the other */
	/* Probes. */
	_Atomic uint32_t passed; /* reads that went elsewhere since the last one */
	_Atomic int64_t credit;	 /* what the next one may cost, in ns / 32; negative: a debt */
	atomic_bool probing;	 /* one is under way */
};

void read_cost_init(struct read_cost *rc, bool is_store);

/*
 * What a read of @pages (at least one) in so many @runs of neighbours is expected to take, in ns: 1 or more. For the store each run
 * after the first adds a quarter of a read of one page, since disks work on several at a time, or all of it if in_turn.
 * A device copies any number of runs as one: pass 1.
 */
uint64_t read_cost_ns(const struct read_cost *rc, unsigned pages, unsigned runs);

/*
 * A read took @ns. It must be what this source took: not what others took, nor what was read before it was asked for. What a read of
 * several runs took says nothing of the curve if it lies between what one run and what so many are expected to take.
 */
void read_cost_learn(struct read_cost *rc, unsigned pages, unsigned runs, uint64_t ns);

/*
 * How many pages take as long as the latency: bandwidth times latency, 1 to READ_WINDOW_MOST. Whoever reads fewer at a time waits most
 * of the time.
 */
#define READ_WINDOW_MOST 4096u /* 16 MiB */
unsigned read_cost_window(const struct read_cost *rc);

/*
 * What one of several reads of a source took by itself, in ns: it begins when those that were begun before it have ended. To be
 * called for all of them in the order in which they were begun. *@last_ns is for this function, 0 at first.
 */
uint64_t read_own_ns(uint64_t *last_ns, uint64_t began_ns, uint64_t ended_ns);

#define READ_STORE 0xffu

/* Pages that are read together, and where they can come from. Sources are read at the same time: so the slowest one counts. */
struct read_batch {
	struct read_cost *store;	/* has all of them */
	struct read_cost *const *dev;
	unsigned n_dev;			/* READ_DEVICES at most */
	unsigned n;			/* 1 to READ_BATCH */
	const uint16_t *page;		/* ascending: neighbours are one run of the store's */
	const uint8_t *has;		/* bit k of has[i]: dev[k] has page[i] */
	bool in_turn;			/* the store will read one run after the other, whatever its cost says */
	bool may_probe;
};

/*
 * from[i] becomes the number of the device that page[i] is to come from, or READ_STORE. A page that a device has may come from the
 * store all the same, if that is cheaper for all of them together: if they are few, or lie between others that the store has to read.
 * Returns NULL, or the source that this is a probe of: then *@instead_ns is what it would take without, and read_probe_end() must follow.
 */
struct read_cost *read_plan(const struct read_batch *rb, uint8_t *from, uint64_t *instead_ns);

/* A probe of @rc is over: it took so much longer than *@instead_ns, or 0. */
void read_probe_end(struct read_cost *rc, uint64_t more_ns);

#endif
