/*
 * latency.h - how long requests and operations take: a histogram of each kind.
 *
 * Always on. A request takes no lock, and writes to no cache line that many threads write to: there are several sets, as of
 * counters. Buckets are log-linear: each power of two of nanoseconds is divided into LATENCY_PARTS equal ones, so a percentile is
 * at most an eighth too high. Each value is counted exactly once; those that are read together are not a snapshot.
 *
 * What it costs: 23 of some 2,400 instructions that the daemon needs for a read of 4 KiB from home (callgrind, a release build on
 * x86-64). Of the two readings of the clock, 6 each, it has the one when the request came; receive.c needs the other anyway, and
 * both in threads that are not in front: there it is 17. Where the processor's counter cannot be used (clock.h), each is a
 * clock_gettime(2).
 *
 * The kinds are said here only: `gaia status`, `gaia top`, the metrics and gaia(1) are made from this table.
 */
#ifndef GAIA_BASE_LATENCY_H
#define GAIA_BASE_LATENCY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What they are of, the name there, and what is in it. The first is that of requests which have none of their own; those of devices are in the order of enum dev_kind. */
#define LATENCIES(X)                                                                                        \
	X(request, other, "other requests of the kernel")                                                   \
	X(request, read, "reads that the kernel asks the daemon for")                                       \
	X(request, write, "writes, and what the kernel writes back")                                        \
	X(request, open, "open and create a file")                                                          \
	X(request, close, "close a descriptor, and the last one of an open file")                           \
	X(request, fsync, "fsync, of directories, too")                                                     \
	X(request, lookup, "look a name up")                                                                \
	X(request, getattr, "attributes, targets of links, the state of the file system")                   \
	X(request, setattr, "change attributes: truncate, chmod, utimes")                                   \
	X(request, readdir, "open, read and close a directory")                                             \
	X(request, names, "make, link, rename and remove names")                                            \
	X(request, xattr, "extended attributes")                                                            \
	X(request, seek, "look for data and holes")                                                         \
	X(request, allocate, "fallocate: allocate, punch, zero")                                            \
	X(request, copy, "copy_file_range")                                                                 \
	X(call, map, "gaia_mmap")                                                                           \
	X(call, unmap, "gaia_munmap")                                                                       \
	X(call, acquire, "gaia_acquire and gaia_acquirev; what the kernel has to push before is not part of it") \
	X(call, release, "gaia_release and gaia_releasev")                                                  \
	X(call, sync, "gaia_sync, and gaia flush of a file")                                                \
	X(call, advise, "gaia_advise")                                                                      \
	X(call, place, "gaia pin, warm and evict, a piece at a time")                                       \
	X(call, query, "connect, ask for devices, and reports such as this one")                            \
	X(device, copy_in, "copy pages to a device")                                                        \
	X(device, copy_out, "copy pages from a device")                                                     \
	X(device, copy_within, "copy pages within a device")                                                \
	X(device, copy_peer, "copy pages from another device")                                              \
	X(device, pull, "merge what others wrote into pages that programs hold")                            \
	X(device, zero, "zero ends of pages")                                                               \
	X(device, arm, "remember what pages contain")                                                       \
	X(device, find_changed, "find pages that have changed since")                                       \
	X(storage, read, "reads from the backing store, until somebody takes the result")                   \
	X(storage, write, "writes to the backing store")                                                    \
	X(storage, sync, "syncs of files in the backing store")

enum latency {
#define X(of, name, text) LATENCY_##of##_##name,
	LATENCIES(X)
#undef X
	LATENCY_COUNT
};

#define LATENCY_PARTS 8u /* 2^3 */
#define LATENCY_OCTAVES 31u
#define LATENCY_BUCKETS (LATENCY_OCTAVES * LATENCY_PARTS)
/* Less counts as the least. More counts as the most, 17 seconds, in a bucket, but as it is in the sum. (If the compiler knew them, it would branch.) */
extern const double latency_least_ns, latency_most_ns;

struct latency_values {
	uint64_t sum_ns;
	uint64_t bucket[LATENCY_BUCKETS];
};

#define LATENCY_SETS 16u
struct latency_counts {
	_Alignas(64) _Atomic uint64_t sum_ns;
	_Atomic uint64_t bucket[LATENCY_BUCKETS];
};
_Static_assert(sizeof(struct latency_counts) == 2048u, "a power of two, so that they are found by a shift");
extern struct latency_counts latency_sets[LATENCY_SETS][LATENCY_COUNT];
extern __thread struct latency_counts *latency_set; /* the thread's: the first one, which is others' too, until it chooses */
/* Have a set that few other threads write to. For threads that count often. */
void latency_set_choose(void);

/*
 * A double begins with its sign, its power of two (11 bits, plus 1023), and the binary digits after the first: so the octave and the part
 * are there already. @ns: latency_least_ns to latency_most_ns.
 */
static inline uint64_t latency_bucket(double ns)
{
	uint64_t bits;

	memcpy(&bits, &ns, sizeof(bits));
	return (bits >> 49) - (1023 + 3) * LATENCY_PARTS;
}

/* Where a kind is in a set, in bytes: for tables of those that count with each request, which need not find that out. Those of requests are below 2^16. */
#define LATENCY_PLACE(l) ((l) * sizeof(struct latency_counts))

/* @ns: less than 2^63; may be less than nothing (clock.h). */
static inline void latency_count_at(size_t place, double ns)
{
	struct latency_counts *counts = (struct latency_counts *)((char *)latency_set + place);

	ns = ns > latency_least_ns ? ns : latency_least_ns;
	atomic_fetch_add_explicit(&counts->sum_ns, (uint64_t)(int64_t)ns, memory_order_relaxed);
	ns = ns < latency_most_ns ? ns : latency_most_ns;
	atomic_fetch_add_explicit(&counts->bucket[latency_bucket(ns)], 1, memory_order_relaxed);
}

static inline void latency_count(enum latency l, double ns)
{
	latency_count_at(LATENCY_PLACE(l), ns);
}

/* What is below this, and in no bucket before, is in the bucket. */
uint64_t latency_bound_ns(unsigned bucket);
void latency_read(enum latency l, struct latency_values *out);
uint64_t latency_number(const struct latency_values *v);
/* The bound below which @permyriad of 10,000 values are. 0: there are none. */
uint64_t latency_percentile(const struct latency_values *v, unsigned permyriad);
const char *latency_of(enum latency l);
const char *latency_name(enum latency l);
const char *latency_text(enum latency l);

#endif
