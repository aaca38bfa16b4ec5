/*
 * moved.h - what moved over the bus.
 */
#ifndef EXAMPLE_MOVED_H
#define EXAMPLE_MOVED_H

#include "common.h"

struct moved {
	uint64_t in, out;    /* bytes, to devices and from them */
	uint64_t operations; /* each is at least one round trip */
	uint64_t model_ns;   /* how long that takes on PCIe 5, modelled */
};

/*
 * The model: what scripts/bench gives the simulated device for gaiafs, whose daemon then counts by it, and what is assumed of the
 * other ways here. Of these an operation begins when the one before it has ended.
 */
#define MODEL_BYTES_A_NS 55
#define MODEL_OPERATION_NS 13000 /* 3 µs to submit, 10 µs until it is seen that it has ended */

/* Atomic: what modes of this program have moved that do it by themselves. */
static struct moved own_moved;

static inline void count_moved(uint64_t in, uint64_t out, uint64_t operations)
{
	__atomic_fetch_add(&own_moved.in, in, __ATOMIC_RELAXED);
	__atomic_fetch_add(&own_moved.out, out, __ATOMIC_RELAXED);
	__atomic_fetch_add(&own_moved.operations, operations, __ATOMIC_RELAXED);
}

static inline struct moved own_moved_until_now(void)
{
	struct moved moved;

	moved.in = __atomic_load_n(&own_moved.in, __ATOMIC_RELAXED);
	moved.out = __atomic_load_n(&own_moved.out, __ATOMIC_RELAXED);
	moved.operations = __atomic_load_n(&own_moved.operations, __ATOMIC_RELAXED);
	moved.model_ns = moved.operations * MODEL_OPERATION_NS + (moved.in + moved.out) / MODEL_BYTES_A_NS;
	return moved;
}

static inline struct moved moved_since(struct moved before, struct moved now)
{
	struct moved moved = { now.in - before.in, now.out - before.out, now.operations - before.operations,
			       now.model_ns - before.model_ns };

	return moved;
}

/* One line, for people. @unknown: what to say where there is no time. */
static inline void print_moved(const char *what, struct moved moved, const char *unknown)
{
	printf("%s: %s to the device, %s from it, %" PRIu64 " operation%s", what, size_text(moved.in), size_text(moved.out),
	       moved.operations, moved.operations == 1 ? "" : "s");
	if (moved.model_ns)
		printf("; modelled: %.3f ms\n", (double)moved.model_ns / 1e6);
	else
		printf("%s\n", unknown);
}

/* One line for programs: what moved, and what else there is to say, as "key": value pairs. */
static inline void print_json(const char *what, struct moved moved, const char *more)
{
	printf("{\"what\": \"%s\", \"bytes_in\": %" PRIu64 ", \"bytes_out\": %" PRIu64 ", \"operations\": %" PRIu64
	       ", \"model_ns\": %" PRIu64 "%s%s}\n", what, moved.in, moved.out, moved.operations, moved.model_ns, *more ? ", " : "", more);
}

#endif
