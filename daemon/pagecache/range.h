/*
 * range.h - a range of a file, chunk by chunk.
 */
#ifndef GAIA_PAGECACHE_RANGE_H
#define GAIA_PAGECACHE_RANGE_H

#include <stddef.h>
#include <stdint.h>

#include "base/util.h"
#include "gaia/protocol.h"

/* Pages [a, b) of a file; chunks of it. */
struct page_span {
	uint64_t a, b;
};
struct chunk_span {
	uint64_t a, b;
};

/* The pages of a range that lie in its first chunk: [*a, *b); returns the bytes. */
static inline size_t range_first(uint64_t off, size_t len, unsigned *a, unsigned *b)
{
	uint64_t in = off % GAIA_CHUNK;
	size_t n = (size_t)MIN((uint64_t)len, GAIA_CHUNK - in);

	*a = (unsigned)(in / GAIA_PAGE);
	*b = (unsigned)((in + n + GAIA_PAGE - 1) / GAIA_PAGE);
	return n;
}

/* The pages of a range that is not empty. */
static inline struct page_span range_span(uint64_t off, uint64_t len)
{
	return (struct page_span){ off / GAIA_PAGE, (off + len - 1) / GAIA_PAGE + 1 };
}

/* The place of the file's page in @chunk; @below or @above if it is before or after the chunk. */
static inline unsigned page_in_chunk(uint64_t page, uint64_t chunk, unsigned below, unsigned above)
{
	if (page / GAIA_CHUNK_PAGES < chunk)
		return below;
	if (page / GAIA_CHUNK_PAGES > chunk)
		return above;
	return (unsigned)(page % GAIA_CHUNK_PAGES);
}

#endif
