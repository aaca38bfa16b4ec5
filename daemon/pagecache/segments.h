/*
 * segments.h - which pages an acquire or a release is for.
 *
 * A call names one range of bytes, or a list of ranges in any order, which may overlap. Either becomes segments: neighbouring pages
 * that are touched by equally many ranges, disjoint and in order. A page that n ranges touch is to be held n times, as by n
 * acquires, or to lose n holds. So nobody after this has to know that there were ranges.
 *
 * Pure: no locks.
 */
#ifndef GAIA_PAGECACHE_SEGMENTS_H
#define GAIA_PAGECACHE_SEGMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gaia/protocol.h"

/* Pages [a, b) of the file. */
struct segment {
	uint64_t a, b;
	uint32_t n; /* ranges that touch them; HOLDS_OF_A_PAGE + 1: too many */
};

struct segments {
	struct segment *at;
	size_t n;
};

static inline bool segments_are_one_range(struct segments segs)
{
	return segs.n == 1 && segs.at[0].n == 1;
}

#define SEGMENTS_FOREACH(s, segs) for (const struct segment *s = (segs).at, *s##_end = s + (segs).n; s < s##_end; s++)

/*
 * The pages that @n ranges touch. Sorts the ranges, which must not reach beyond INT64_MAX; those of no bytes touch nothing. out->at is to be
 * freed. -ENOMEM.
 */
int segments_make(struct gaia_list_range *range, size_t n, struct segments *out);

/* Those of them that have pages of the chunk: not a copy. */
struct segments segments_of_chunk(struct segments segs, uint64_t chunk);
/* Whether @segs have all pages that @others have. */
bool segments_cover(struct segments segs, struct segments others);
/* The first chunk from *chunk on that they have pages of, becomes *chunk: false if there is none. *k: 0 at first. */
bool segments_next_chunk(struct segments segs, size_t *k, uint64_t *chunk);
/* How many chunks of [from, to) they have pages of; and into @out, unless it is NULL, which. */
uint64_t segments_chunks(struct segments segs, uint64_t from, uint64_t to, uint64_t *out);

/* The part of the segment, which has pages of the chunk, that lies there: pages [*a, *b) of the chunk. */
static inline void segment_in_chunk(const struct segment *s, uint64_t chunk, unsigned *a, unsigned *b)
{
	uint64_t start = chunk * GAIA_CHUNK_PAGES, end = start + GAIA_CHUNK_PAGES;

	*a = (unsigned)((s->a > start ? s->a : start) - start);
	*b = (unsigned)((s->b < end ? s->b : end) - start);
}

#endif
