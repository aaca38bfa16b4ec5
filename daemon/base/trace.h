/*
 * trace.h - a record of accesses to files' pages, for `gaia trace`.
 *
 * Nothing is recorded until somebody takes what was recorded (trace_take()), nor when nobody has taken it for TRACE_IDLE_NS: so a
 * reader only has to stop. While it is off an access costs a look at one variable. While it is on there is memory for
 * TRACE_RECORDS; accesses for which there is none before the next trace_take() are counted and dropped.
 *
 * Process-wide, as counters.h. Thread-safe; its lock is a leaf.
 */
#ifndef GAIA_BASE_TRACE_H
#define GAIA_BASE_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define TRACE_RECORDS (256u << 10) /* of 32 bytes */
#define TRACE_IDLE_NS 5000000000ull
extern uint64_t trace_idle_ns; /* that; tests change it */

/* As in the text, see trace_take(). */
enum trace_op {
	TRACE_READ = 'r',	   /* by a CPU program, of a file that is not passed through */
	TRACE_WRITE = 'w',	   /* as that */
	TRACE_ACQUIRE = 'a',	   /* by a device's program, to read */
	TRACE_ACQUIRE_WRITE = 'A', /* to write, too */
};

extern atomic_bool trace_on; /* relaxed: a hint */
__attribute__((cold)) void trace_add(enum trace_op op, uint64_t file, uint64_t page, uint64_t pages, uint64_t hits);

/* @file: its key. @hits: of a read, how many of the pages home had; else 0. */
static inline void trace_access(enum trace_op op, uint64_t file, uint64_t page, uint64_t pages, uint64_t hits)
{
	if (__builtin_expect(atomic_load_explicit(&trace_on, memory_order_relaxed), 0))
		trace_add(op, file, page, pages, hits);
}

/*
 * What was recorded since the last call, as text, to be freed; the first call begins. "# dropped N", and then a line for each access in
 * their order: "TIME OP FILE PAGE PAGES HITS", where the time is in microseconds of CLOCK_MONOTONIC, the op a letter, and the file a number
 * that is its own as long as somebody uses it. Returns 0; -EBUSY: another process, not @reader, which has not ended, is taking it; -ENOMEM.
 */
int trace_take(pid_t reader, char **text);
/* What trace_take() gave last did not get to its reader: it counts as dropped. */
void trace_lost(void);

#endif
