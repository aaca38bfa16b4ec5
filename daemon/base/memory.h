/*
 * memory.h - how much memory this process may use.
 */
#ifndef GAIA_BASE_MEMORY_H
#define GAIA_BASE_MEMORY_H

#include <limits.h>
#include <stdint.h>

struct memory_limit {
	uint64_t bytes;
	/* The file of the cgroup that sets the limit; "" if it is the machine's memory. */
	char from[PATH_MAX];
};

/*
 * The smallest of the machine's memory and the limits of the process's memory cgroup and of those above it (version 2's
 * memory.max, version 1's memory.limit_in_bytes), as far up as can be seen from here. @root: a prefix of /proc and /sys; "" except in tests.
 */
void memory_limit(const char *root, struct memory_limit *out);

#endif
