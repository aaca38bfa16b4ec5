/* huge_pages.h - whether memory has become huge pages (device/huge.h). */
#ifndef GAIA_TESTS_HUGE_PAGES_H
#define GAIA_TESTS_HUGE_PAGES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gaia/protocol.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Whether GAIA_CHUNK bytes of shared memory at @at, aligned to as much, are mapped here as one page; touches them. */
static inline bool huge_pages_are_at(const void *at)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	unsigned long from, to, kib;
	bool here = false, are = false;
	char line[512];

	(void)*(const volatile char *)at;
	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = from <= (unsigned long)at && to >= (unsigned long)at + GAIA_CHUNK;
		else if (here && sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1)
			are = kib >= GAIA_CHUNK / 1024;
	}
	if (f)
		fclose(f);
	return are;
}

/* Whether this kernel makes some of shared memory. */
static inline bool huge_pages_can_be_had(void)
{
	char *raw = mmap(NULL, 2 * (size_t)GAIA_CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *at = raw + -(uintptr_t)raw % GAIA_CHUNK;
	int fd = memfd_create("test", MFD_CLOEXEC);
	bool can = raw != MAP_FAILED && fd >= 0 && !ftruncate(fd, GAIA_CHUNK) &&
		   mmap(at, GAIA_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) == at &&
		   !madvise(at, GAIA_CHUNK, MADV_COLLAPSE);

	if (fd >= 0)
		close(fd);
	if (raw != MAP_FAILED)
		munmap(raw, 2 * (size_t)GAIA_CHUNK);
	return can;
}

#endif
