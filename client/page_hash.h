/*
 * page_hash.h - a hash of 128 bits of a page, to tell whether the page has changed. For nvcc and for gcc.
 *
 * Eight lanes hash a page: a lane takes every eighth unit of 16 bytes, and mixes its units as MurmurHash3 (x64, 128 bits; Appleby) does, from a
 * start of its own. The lanes' results are added up. Each step of a lane can be undone, so a change in the units of one lane always changes the
 * sum, and others with a probability of 1 - 2^-128, as long as nobody looks for collisions. It has no key: who chooses what a program stores over
 * what can choose bytes that count as unchanged, and so are not published. So the daemon looks for changes unless GAIA_DETECT says otherwise, and a
 * program that stores for others who are not to be trusted must not say so (gaiaclient(3)). The hash never leaves the process.
 */
#ifndef GAIA_CLIENT_PAGE_HASH_H
#define GAIA_CLIENT_PAGE_HASH_H

#include <stdint.h>

#include "gaia/protocol.h"

#ifdef __CUDACC__
#define HASH_INLINE static __device__ __forceinline__
typedef unsigned long long hash_word;
#else
#define HASH_INLINE static inline
typedef uint64_t __attribute__((may_alias)) hash_word;
#endif

#define HASH_LANES 8u
#define HASH_UNITS (GAIA_PAGE / 16u / HASH_LANES) /* of a lane */

struct page_hash {
	hash_word low, high;
};

/* A lane's @i-th unit, as a number in the page. */
HASH_INLINE uint32_t hash_unit(uint32_t i, uint32_t lane)
{
	return i * HASH_LANES + lane;
}

HASH_INLINE hash_word hash_rotate(hash_word x, uint32_t bits)
{
	return x << bits | x >> (64 - bits);
}

HASH_INLINE struct page_hash hash_begin(uint32_t lane)
{
	struct page_hash h = { (lane + 1) * 0x9e3779b97f4a7c15, (lane + 1) * 0xc2b2ae3d27d4eb4f };

	return h;
}

HASH_INLINE void hash_add(struct page_hash *h, hash_word first, hash_word second)
{
	const hash_word a = 0x87c37b91114253d5, b = 0x4cf5ad432745937f;

	h->low ^= hash_rotate(first * a, 31) * b;
	h->low = (hash_rotate(h->low, 27) + h->high) * 5 + 0x52dce729;
	h->high ^= hash_rotate(second * b, 33) * a;
	h->high = (hash_rotate(h->high, 31) + h->low) * 5 + 0x38495ab5;
}

HASH_INLINE hash_word hash_mix(hash_word x)
{
	x = (x ^ x >> 33) * 0xff51afd7ed558ccd;
	x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53;
	return x ^ x >> 33;
}

/* What the lane adds to the page's hash. */
HASH_INLINE struct page_hash hash_end(struct page_hash h)
{
	h.low += h.high;
	h.high += h.low;
	h.low = hash_mix(h.low);
	h.high = hash_mix(h.high);
	h.low += h.high;
	h.high += h.low;
	return h;
}

#ifndef __CUDACC__
/* Others may be storing to the page: then it is a hash of something. */
static inline struct page_hash page_hash(const void *page)
{
	const hash_word *word = (const hash_word *)page;
	struct page_hash sum = { 0, 0 }, h;

	for (uint32_t lane = 0; lane < HASH_LANES; lane++) {
		h = hash_begin(lane);
		for (uint32_t i = 0; i < HASH_UNITS; i++) {
			const hash_word *unit = &word[2 * hash_unit(i, lane)];

			hash_add(&h, __atomic_load_n(&unit[0], __ATOMIC_RELAXED), __atomic_load_n(&unit[1], __ATOMIC_RELAXED));
		}
		h = hash_end(h);
		sum.low += h.low;
		sum.high += h.high;
	}
	return sum;
}
#endif

#endif
