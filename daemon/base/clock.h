/*
 * clock.h - the time, for code that asks for it with each request.
 *
 * quick_ns() is CLOCK_MONOTONIC to within a hundred-thousandth of what has passed, read with a few instructions from the processor's
 * own counter, where the kernel itself takes the time from that counter (so it runs evenly, and alike on all cores). Elsewhere,
 * and until the counter's rate has been measured, it is now_ns(). Compare its values with each other only. Any thread may
 * call it; one thread's values may be some nanoseconds before another's that were taken earlier: elapsed_ns() allows for that.
 */
#ifndef GAIA_BASE_CLOCK_H
#define GAIA_BASE_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>

struct quick_clock {
	_Atomic uint64_t rate; /* nanoseconds a tick, times 2^32; 0: not known. What follows is constant once it is set */
	uint64_t ticks, ns;    /* of the same moment */
};
extern struct quick_clock quick_clock;

/* Whether the counter may be used; its rate is measured from now on. Call it before there are threads. Without it quick_ns() is now_ns(). */
void quick_clock_start(void);
uint64_t quick_ns_slow(void);

#ifdef __x86_64__
static inline uint64_t quick_ticks(void)
{
	return __builtin_ia32_rdtsc();
}
#else
#define quick_ticks() 0ull /* quick_clock.rate stays 0 */
#endif

static inline uint64_t quick_ns(void)
{
	uint64_t rate = atomic_load_explicit(&quick_clock.rate, memory_order_acquire);

	if (__builtin_expect(!rate, 0))
		return quick_ns_slow();
	return quick_clock.ns + (uint64_t)(((unsigned __int128)(quick_ticks() - quick_clock.ticks) * rate) >> 32);
}

/* From one value of quick_ns() to another; may be less than nothing. */
static inline int64_t elapsed_ns(uint64_t from, uint64_t to)
{
	return (int64_t)(to - from);
}

#endif
