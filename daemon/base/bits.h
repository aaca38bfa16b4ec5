/*
 * bits.h - sets of small numbers, a bit each in words of 64.
 */
#ifndef GAIA_BASE_BITS_H
#define GAIA_BASE_BITS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util.h"

static inline bool bit_test(const uint64_t *map, unsigned i)
{
	return map[i / 64] >> (i % 64) & 1;
}
static inline void bit_set(uint64_t *map, unsigned i)
{
	map[i / 64] |= 1ull << (i % 64);
}
static inline void bit_clear(uint64_t *map, unsigned i)
{
	map[i / 64] &= ~(1ull << (i % 64));
}
/* The first set bit of [a, b), or @b. */
static inline unsigned bits_first(const uint64_t *map, unsigned a, unsigned b)
{
	while (a < b) {
		uint64_t word = map[a / 64] >> (a % 64);

		if (word)
			return MIN(a + (unsigned)__builtin_ctzll(word), b);
		a = (a / 64 + 1) * 64;
	}
	return b;
}
/* The first clear bit of [a, b), or @b. */
static inline unsigned bits_first_clear(const uint64_t *map, unsigned a, unsigned b)
{
	while (a < b) {
		uint64_t word = ~map[a / 64] >> (a % 64);

		if (word)
			return MIN(a + (unsigned)__builtin_ctzll(word), b);
		a = (a / 64 + 1) * 64;
	}
	return b;
}
/* The next run of set bits before @b, from *j on: [*i, *j). Whether there is one. */
static inline bool bits_run(const uint64_t *map, unsigned b, unsigned *i, unsigned *j)
{
	*i = bits_first(map, *j, b);
	*j = bits_first_clear(map, *i, b);
	return *i < b;
}
#define FOR_RUNS(map, a, b, i, j) for (unsigned i, j = (a); bits_run(map, b, &i, &j);)
static inline void bits_set(uint64_t *map, unsigned a, unsigned b)
{
	while (a < b) {
		unsigned end = MIN((a / 64 + 1) * 64, b);

		map[a / 64] |= ~0ull >> (64 - (end - a)) << (a % 64);
		a = end;
	}
}
/* Add the set bits of @word to @map, from @at on. Words beyond the last set bit are not touched. */
static inline void bits_add(uint64_t *map, uint64_t at, uint64_t word)
{
	map += at / 64;
	map[0] |= word << (at % 64);
	if (at % 64 && word >> (64 - at % 64))
		map[1] |= word >> (64 - at % 64);
}
/* Those bits of word @w that are in [a, b). */
static inline uint64_t bits_within(unsigned w, unsigned a, unsigned b)
{
	unsigned first = MAX(a, w * 64), end = MIN(b, (w + 1) * 64);

	return first < end ? ~0ull >> (64 - (end - first)) << (first % 64) : 0;
}
static inline unsigned bits_count(const uint64_t *map, unsigned words)
{
	unsigned n = 0;

	for (unsigned i = 0; i < words; i++)
		n += (unsigned)__builtin_popcountll(map[i]);
	return n;
}

static inline bool bits_any(const uint64_t *map, unsigned words)
{
	return bits_first(map, 0, words * 64) < words * 64;
}

#endif
