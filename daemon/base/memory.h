/*
 * memory.h - how much memory this process may use at all.
 */
#ifndef GAIA_BASE_MEMORY_H
#define GAIA_BASE_MEMORY_H

#include <limits.h>
#include <stdint.h>

struct memory_limit {
	uint64_t bytes;
	/* The file that says so, of a cgroup; "" where it is all of the machine's memory. */
	char from[PATH_MAX];
};

/*
 * The smallest of the machine's memory and the limits of the process's memory cgroup and of those above it (version 2's
 * memory.max, version 1's memory.limit_in_bytes), as far up as can be seen from here. @root: before /proc and /sys; "" but in tests.
 */
void memory_limit(const char *root, struct memory_limit *out);

#endif
