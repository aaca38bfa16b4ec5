/*
 * mistakes.c - a client that carries out its orders, including the wrong ones.
 *
 *	mistakes FILE STEP...
 *
 * Maps 4 MiB of FILE on device 0. Steps, with offsets and lengths in bytes: r:OFF:LEN and w:OFF:LEN acquire, for
 * reading or for both; release:OFF:LEN; rv:, wv: and releasev:, with any number of OFF:LEN, the same of a list; start:OFF:LEN begins to acquire for
 * both, ended waits until that has ended, and wait until it is acquired; load:OFF, store:OFF; unmap. Exits with 0, or 1 if a call has failed.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "gaia/client.h"

#define SIZE (4 << 20)

static size_t parse_list(const char *text, unsigned char *p, struct gaia_range *out)
{
	size_t n = 0;

	for (char *end; text; text = *end ? end + 1 : NULL) {
		out[n].addr = p + strtoul(text, &end, 10);
		out[n++].length = strtoul(end + 1, &end, 10);
	}
	return n;
}

static int do_step(unsigned char *p, const char *step)
{
	const char *at = strchr(step, ':');
	size_t off = at ? strtoul(at + 1, NULL, 10) : 0, len;
	const char *second = at ? strchr(at + 1, ':') : NULL;

	static int started;
	struct gaia_range list[16];
	struct pollfd ended = { .fd = started, .events = POLLIN };

	if (!strncmp(step, "rv:", 3))
		return gaia_acquirev(list, parse_list(step + 3, p, list), PROT_READ);
	if (!strncmp(step, "wv:", 3))
		return gaia_acquirev(list, parse_list(step + 3, p, list), PROT_READ | PROT_WRITE);
	if (!strncmp(step, "releasev:", 9))
		return gaia_releasev(list, parse_list(step + 9, p, list));
	len = second ? strtoul(second + 1, NULL, 10) : 0;
	if (!strncmp(step, "r:", 2))
		return gaia_acquire(p + off, len, PROT_READ);
	if (!strncmp(step, "w:", 2))
		return gaia_acquire(p + off, len, PROT_READ | PROT_WRITE);
	if (!strncmp(step, "release:", 8))
		return gaia_release(p + off, len);
	if (!strncmp(step, "start:", 6))
		return (started = gaia_acquire_start(p + off, len, PROT_READ | PROT_WRITE)) < 0;
	if (!strcmp(step, "ended"))
		return poll(&ended, 1, -1) != 1;
	if (!strcmp(step, "wait"))
		return gaia_wait(started);
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
