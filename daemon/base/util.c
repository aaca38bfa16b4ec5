/*
 * util.c - see util.h.
 */
#include "base/util.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"

void bug_at(const char *file, int line, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	log_at(LOG_LEVEL_ERROR, "bug: %s:%d: %s; dumping core", file, line, text);
	abort();
}

#define WAIT_MS 10u
#define SAY_EVERY_MS 5000u

/* Wait before attempt @tries + 1. A size for which there is never memory is a bug, which waiting would hide. */
static void wait_for_memory(size_t size, unsigned tries)
{
	const struct timespec pause = {.tv_nsec = WAIT_MS * 1000 * 1000};

	if (size > PTRDIFF_MAX)
		bug("allocation of %zu bytes", size);
	if (tries % (SAY_EVERY_MS / WAIT_MS) == 0)
		log_warn("out of memory: waiting for %zu bytes; end other programs or lower --home",
			 size);
	nanosleep(&pause, NULL);
}

void *xmalloc(size_t size)
{
	return xrealloc(NULL, size);
}

void *xcalloc(size_t n, size_t size)
{
	size_t total;
	void *p;

	if (__builtin_mul_overflow(n, size, &total))
		bug("allocation of %zu times %zu bytes", n, size);
	total = MAX(total, 1);
	for (unsigned tries = 0; !(p = calloc(1, total)); tries++)
		wait_for_memory(total, tries);
	return p;
}

void *xrealloc(void *p, size_t size)
{
	void *moved;

	size = MAX(size, 1); /* realloc(p, 0) would free and return NULL */
	for (unsigned tries = 0; !(moved = realloc(p, size)); tries++)
		wait_for_memory(size, tries);
	return moved;
}

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int parse_size(const char *text, uint64_t *out)
{
	bool overflow = false;
	uint64_t value = 0;
	unsigned shift = 0;

	/* strtoull() would accept blanks and a sign. */
	if (*text < '0' || *text > '9')
		return -EINVAL;
	for (; *text >= '0' && *text <= '9'; text++) {
		overflow |= __builtin_mul_overflow(value, 10, &value);
		overflow |= __builtin_add_overflow(value, (unsigned)(*text - '0'), &value);
	}
	switch (*text) {
	case 'K':
		shift = 10;
		break;
	case 'M':
		shift = 20;
		break;
	case 'G':
		shift = 30;
		break;
	case 'T':
		shift = 40;
		break;
	}
	if (shift)
		text++;
	if (*text)
		return -EINVAL;
	if (overflow || value > (uint64_t)INT64_MAX >> shift)
		return -ERANGE;
	*out = value << shift;
	return 0;
}
