/*
 * util.h - the handful of macros and functions that every room uses.
 *
 * GAIA_PAGE and GAIA_CHUNK come from include/gaia/protocol.h: they are part
 * of the contract with clients (design: page = unit of versions and of
 * merging, chunk = unit of device memory and of mapping).
 */
#ifndef GAIA_BASE_UTIL_H
#define GAIA_BASE_UTIL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/param.h> /* MIN, MAX: libuv includes it, so there can be no others */
#include <time.h>

#define BIT(n) (1u << (n))
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* Smallest multiple of @to (a power of two) that is not below @x. */
#define ROUND_UP(x, to) (((x) + (to)-1) & ~((__typeof__(x))(to)-1))
#define ROUND_DOWN(x, to) ((x) & ~((__typeof__(x))(to)-1))

static inline struct timespec later_of(struct timespec a, struct timespec b)
{
	return (a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec) ? a : b;
}

/*
 * Report a state that cannot be: logs where it happened and the caller's text, and dumps
 * core. Never for what a user, a client or a disk can cause.
 */
_Noreturn void bug_at(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
#define bug(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
#define bug_on(cond)                                       \
	do {                                               \
		if (__builtin_expect(!!(cond), 0))         \
			bug("%s", #cond);                  \
	} while (0)

/*
 * malloc, calloc and realloc for small things without which the daemon cannot go on: instead of failing
 * they wait for memory, and log that.
 */
void *xmalloc(size_t size) __attribute__((malloc, returns_nonnull));
void *xcalloc(size_t n, size_t size) __attribute__((malloc, returns_nonnull));
void *xrealloc(void *p, size_t size) __attribute__((returns_nonnull));

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t now_ns(void);

/*
 * Parse a size: digits with an optional suffix K, M, G, T (powers of 1024).
 * Returns 0 and sets *@out, or -EINVAL (no number, trailing text) or -ERANGE
 * (does not fit 63 bits), leaving *@out alone.
 */
int parse_size(const char *text, uint64_t *out);

#endif
