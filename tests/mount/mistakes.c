/*
 * mistakes.c - a client that carries out its orders, including the wrong ones.
 *
 *	mistakes FILE STEP...
 *
 * Maps 4 MiB of FILE on device 0. Steps, with offsets and lengths in bytes: r:OFF:LEN and w:OFF:LEN acquire, for
 * reading or for both; release:OFF:LEN; load:OFF, store:OFF; unmap. Exits with 0, or 1 if a call has failed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "gaia/client.h"

#define SIZE (4 << 20)

static int do_step(unsigned char *p, const char *step)
{
	const char *at = strchr(step, ':');
	size_t off = at ? strtoul(at + 1, NULL, 10) : 0, len;
	const char *second = at ? strchr(at + 1, ':') : NULL;

	len = second ? strtoul(second + 1, NULL, 10) : 0;
	if (!strncmp(step, "r:", 2))
		return gaia_acquire(p + off, len, PROT_READ);
	if (!strncmp(step, "w:", 2))
		return gaia_acquire(p + off, len, PROT_READ | PROT_WRITE);
	if (!strncmp(step, "release:", 8))
		return gaia_release(p + off, len);
	if (!strncmp(step, "load:", 5))
		return (void)((volatile unsigned char *)p)[off], 0;
	if (!strncmp(step, "store:", 6))
		return ((volatile unsigned char *)p)[off] = 's', 0;
	return gaia_munmap(p, SIZE);
}

int main(int argc, char **argv)
{
	static const struct rlimit no_core;
	int fd = open(argv[1], O_RDWR);
	unsigned char *p = gaia_mmap(SIZE, PROT_READ | PROT_WRITE, fd, 0, 0);

	if (p == MAP_FAILED) {
		perror("gaia_mmap");
		return 1;
	}
	setrlimit(RLIMIT_CORE, &no_core);
	for (int i = 2; i < argc; i++) {
		if (do_step(p, argv[i])) {
			perror(argv[i]);
			return 1;
		}
	}
	return 0;
}
