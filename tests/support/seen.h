/*
 * seen.h - what a process sees at an address.
 */
#ifndef GAIA_TESTS_SEEN_H
#define GAIA_TESTS_SEEN_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* Whether @n bytes, one at least, are all @byte. */
static inline bool all_are(const unsigned char *at, size_t n, int byte)
{
	return at[0] == byte && memcmp(at, at + 1, n - 1) == 0;
}

/* Whether the process can read there. */
static inline bool is_mapped(const unsigned char *at)
{
	int ends[2];
	bool can;

	cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
	can = write(ends[1], at, 1) == 1;
	cr_assert(can || errno == EFAULT);
	close(ends[0]);
	close(ends[1]);
	return can;
}

#endif
