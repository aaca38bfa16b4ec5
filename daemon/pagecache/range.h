/*
 * range.h - a range of a file, chunk by chunk.
 */
#ifndef GAIA_PAGECACHE_RANGE_H
#define GAIA_PAGECACHE_RANGE_H

#include <stddef.h>
#include <stdint.h>

#include "base/util.h"
#include "gaia/protocol.h"

/* The pages of a range that lie in its first chunk: [*a, *b); returns the bytes. */
static inline size_t range_first(uint64_t off, size_t len, unsigned *a, unsigned *b)
{
	uint64_t in = off % GAIA_CHUNK;
	size_t n = (size_t)MIN((uint64_t)len, GAIA_CHUNK - in);

	*a = (unsigned)(in / GAIA_PAGE);
	*b = (unsigned)((in + n + GAIA_PAGE - 1) / GAIA_PAGE);
	return n;
}

#endif
