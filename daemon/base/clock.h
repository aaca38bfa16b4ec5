/*
 * clock.h - the time, for code that asks for it with each request.
 *
 * quick_ticks() takes a few instructions where it can read the processor's own counter: where the kernel itself takes the time from that
 * (so it runs evenly, and alike on all cores). Elsewhere it costs as much as now_ns(), which it calls. How much time is between two values
 * of it elapsed_ns() says, to within a thousandth. Any thread may call both; one thread's values may be some ticks before another's that
 * were taken earlier, so that may be less than nothing.
 */
#ifndef GAIA_BASE_CLOCK_H
#define GAIA_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util.h"

/* Constant after quick_clock_start(). */
struct quick_clock {
	bool is_counter;
	double tick_ns; /* nanoseconds a tick; -1 if now_ns() is asked, whose values are turned into negative ones */
};
extern struct quick_clock quick_clock;

/*
 * Find out whether the counter can be used, and its rate: it takes some milliseconds. Call it before there are threads, and before the first
 * quick_ticks(). If it is not called, now_ns() is asked.
 */
void quick_clock_start(void);

static inline int64_t quick_ticks(void)
{
#ifdef __x86_64__
	if (__builtin_expect(quick_clock.is_counter, 1))
		return (int64_t)__builtin_ia32_rdtsc();
#endif
	return -(int64_t)now_ns();
}

/* The same for a caller that has an earlier value, or 0 in the place of one, and looks at it anyway: its sign says which clock it is of. */
static inline int64_t quick_ticks_after(int64_t earlier)
{
#ifdef __x86_64__
	if (__builtin_expect(earlier > 0, 1))
		return (int64_t)__builtin_ia32_rdtsc();
#endif
	return quick_ticks();
}

static inline double elapsed_ns(int64_t from, int64_t to)
{
	return (double)(to - from) * quick_clock.tick_ns;
}

/* Whether less than @ns have passed since then. After a suspend the counter may have begun anew: then it is long ago. */
static inline bool is_within_ns(int64_t from, int64_t to, double ns)
{
	double elapsed = elapsed_ns(from, to);

	return elapsed < ns && elapsed > -1e6;
}

#endif
