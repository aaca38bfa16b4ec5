/*
 * readcost.h - what reading costs, of the store and of each device; and from which of them pages are to come.
 *
 * A source's cost is a curve over the number of pages that are read at once, since most of what a page costs by itself is
 * latency. It is kept at a few points, with straight lines between them, and learned from reads: each moves the points beside
 * it by an eighth of what it differs by (more while few are known), and counts as eight times what was expected at most. So
 * what happened once is soon forgotten, and what lasts is soon believed.
 *
 * Before a point is known it has a guess: of the store a fast disk (80 us and 3 GB/s), of a device a bus (25 us and 20 GB/s). Thus a
 * device is asked first: its memory is never far, whereas the store may be anything, and the other is asked too by and by.
 *
 * A source that is not used, though it has the pages, is used all the same now and then, to learn what it costs by now. Such a
 * *probe* comes at most every 32nd time, and not before the reads that were made instead took 32 times what it is expected to cost
 * beyond them: so probes add a thirty-second to what reading costs. (Of a source that has become much slower it takes some
 * probes to know how much.)
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
#define READ_DEVICES 8u			       /* devices that are considered for them at most */

/* All fields relaxed. */
struct read_cost {
	_Atomic uint64_t ns[READ_POINTS];
	_Atomic uint32_t samples[READ_POINTS]; /* that have moved the point, up to a limit; 0: ns is a guess */
	_Atomic uint32_t passed;    /* since the last probe: how often another source was used, */
	_Atomic uint64_t credit_ns; /* and what may be spent on the next one */
};

void read_cost_init(struct read_cost *rc, bool is_store);
/* For tests: as if that were known for long. Probes are not touched. */
void read_cost_set(struct read_cost *rc, const uint64_t ns[READ_POINTS]);
/*
 * What a read of @pages (at least one) is expected to take: 1 ns or more. They lie in so many @runs: of the store each but the first takes
 * a quarter of a read of one page more, since disks work on several at a time; a device copies any number of runs as one.
 */
uint64_t read_cost_ns(const struct read_cost *rc, unsigned pages, unsigned runs);
/* How many pages take as long as the wait for them, bandwidth times latency: to read fewer at a time is to wait most of the time. */
#define READ_WINDOW_MOST 4096u /* 16 MiB */
unsigned read_cost_window(const struct read_cost *rc);
/* One took so long. */
void read_cost_learn(struct read_cost *rc, unsigned pages, unsigned runs, uint64_t ns);

/*
 * Plan the read of @n neighbouring pages, 1 to READ_BATCH. Bit k of has[i]: dev[k] has page i, which it can be read from. The store has all of
 * them. from[i] becomes k, or READ_STORE. All are begun at the same time: so the slowest decides. If few pages lie between what
 * a device has, or all that a device has is a page here and there, it may be cheapest to read all of it from the store.
 * True: this is a probe.
 */
#define READ_STORE 0xffu
bool read_plan(struct read_cost *store, struct read_cost *const *dev, unsigned n_dev, const uint8_t *has, unsigned n,
	       uint8_t *from);

#endif
