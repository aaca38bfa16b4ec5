/*
 * sim.c - memory of the simulated device, which is host memory: one memfd a chunk.
 */
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

#include "internal.h"

#define RESERVED (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

/*
 * A child must not have the chunks: they are the parent's lease. Called for each new
 * mapping, since a mapping does not inherit it from what it replaces.
 */
static int keep_from_children(char *at, size_t len)
{
	return madvise(at, len, MADV_DONTFORK) ? -errno : 0;
}

static int sim_reserve(size_t span, char **base)
{
	char *raw, *at;
	size_t before;

	if (span > SIZE_MAX - GAIA_CHUNK)
		return -ENOMEM;
	raw = mmap(NULL, span + GAIA_CHUNK, PROT_NONE, RESERVED, -1, 0);
	if (raw == MAP_FAILED)
		return -ENOMEM;
	before = -(uintptr_t)raw % GAIA_CHUNK;
	at = raw + before;
	if (before)
		munmap(raw, before);
	munmap(at + span, GAIA_CHUNK - before);
	keep_from_children(at, span);
	*base = at;
	return 0;
}

static void sim_unreserve(char *base, size_t span)
{
	munmap(base, span);
}

static int sim_place(char *at, int fd, int prot)
{
	if (mmap(at, GAIA_CHUNK, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		return -errno;
	return keep_from_children(at, GAIA_CHUNK);
}

static int sim_clear(char *at)
{
	if (mmap(at, GAIA_CHUNK, PROT_NONE, RESERVED | MAP_FIXED, -1, 0) == MAP_FAILED)
		return -errno;
	return keep_from_children(at, GAIA_CHUNK);
}

const struct kind_ops sim_kind = {
	.kind = "sim",
	.reserve = sim_reserve,
	.unreserve = sim_unreserve,
	.place = sim_place,
	.clear = sim_clear,
};
