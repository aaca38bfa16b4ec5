/* merge.c - see merge.h. */
#include "consistency/merge.h"

#include <string.h>

/*
 * The inner loop has no branches and works on blocks that fit registers, so that the compiler makes
 * vector code of it. Most blocks, those in which theirs equals base, cost one comparison.
 */
#define BLOCK 64

static inline size_t merge_block(uint8_t *restrict home, const uint8_t *restrict base,
				 const uint8_t *restrict theirs, size_t n, uint8_t theirs_win)
{
	uint8_t races = 0; /* at most BLOCK */

	for (size_t i = 0; i < n; i++) {
		uint8_t b = base[i], t = theirs[i], h = home[i];
		uint8_t wrote = t != b ? 0xff : 0;
		uint8_t race = wrote & (h != b ? 0xff : 0) & (h != t ? 0xff : 0);
		uint8_t take = wrote & (uint8_t)(~race | theirs_win);

		races += race & 1;
		home[i] = (uint8_t)((t & take) | (h & ~take));
	}
	return races;
}

size_t merge3(void *home, const void *base, const void *theirs, size_t len,
	      enum merge_winner winner)
{
	uint8_t *h = home;
	const uint8_t *b = base, *t = theirs;
	uint8_t theirs_win = winner == MERGE_THEIRS_WINS ? 0xff : 0;
	size_t races = 0, i = 0;

	for (; i + BLOCK <= len; i += BLOCK)
		if (memcmp(b + i, t + i, BLOCK) != 0)
			races += merge_block(h + i, b + i, t + i, BLOCK, theirs_win);
	if (i < len)
		races += merge_block(h + i, b + i, t + i, len - i, theirs_win);
	return races;
}

size_t merge3_reference(void *home, const void *base, const void *theirs, size_t len,
			enum merge_winner winner)
{
	uint8_t *h = home;
	const uint8_t *b = base, *t = theirs;
	size_t races = 0;

	for (size_t i = 0; i < len; i++) {
		if (t[i] == b[i])
			continue;
		if (h[i] != b[i] && h[i] != t[i]) {
			races++;
			if (winner == MERGE_HOME_WINS)
				continue;
		}
		h[i] = t[i];
	}
	return races;
}

size_t merge3_owned(void *home, uint8_t *owners, const void *base, const void *theirs, size_t len,
		    unsigned owner)
{
	uint8_t *h = home;
	const uint8_t *b = base, *t = theirs;
	size_t races = 0;

	for (size_t i = 0; i < len; i++) {
		if (t[i] == b[i])
			continue;
		if (h[i] != b[i] && h[i] != t[i])
			races++;
		/*
		 * A byte that both wrote with the same value belongs to the higher owner, too. But where home's
		 * byte equals the base's, @owner has seen it, and replaces it.
		 */
		if (h[i] != b[i] && owners[i] > owner)
			continue;
		h[i] = t[i];
		owners[i] = (uint8_t)owner;
	}
	return races;
}

void merge_note_owner(uint8_t *owners, const void *before, const void *now, size_t len,
		      unsigned owner)
{
	const uint8_t *b = before, *n = now;

	for (size_t i = 0; i < len; i++)
		if (b[i] != n[i])
			owners[i] = (uint8_t)owner;
}

size_t merge_next_race(const void *home, const void *base, const void *theirs, size_t len,
		       size_t from)
{
	const uint8_t *h = home, *b = base, *t = theirs;

	for (size_t i = from; i < len; i++) {
		/* Most blocks were written by at most one side. */
		while (i % BLOCK == 0 && i + BLOCK <= len &&
		       (!memcmp(t + i, b + i, BLOCK) || !memcmp(h + i, b + i, BLOCK)))
			i += BLOCK;
		if (i < len && t[i] != b[i] && h[i] != b[i] && h[i] != t[i])
			return i;
	}
	return len;
}
