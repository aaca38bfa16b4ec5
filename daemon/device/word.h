/*
 * word.h - changes to words of a page that clients may be storing to.
 *
 * One source for the simulated device, for the kernels of the CUDA device, and for the tests that
 * check the kernels' arithmetic on the CPU. A page is an array of 64-bit words, little-endian.
 */
#ifndef GAIA_DEVICE_WORD_H
#define GAIA_DEVICE_WORD_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define DEVICE_INLINE static __device__ __forceinline__
typedef unsigned long long word_t;
#else
#define DEVICE_INLINE static inline
typedef uint64_t __attribute__((may_alias)) word_t;
#endif

/* The present value, even if others store to it. */
DEVICE_INLINE word_t word_load(const word_t *at)
{
#ifdef __CUDACC__
	return *(const volatile word_t *)at;
#else
	return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}

/* Replace the word by @want if it equals *@have; otherwise set *@have to its present value. */
DEVICE_INLINE bool word_replace(word_t *at, word_t *have, word_t want)
{
#ifdef __CUDACC__
	word_t found = atomicCAS_system(at, *have, want);
	bool replaced = found == *have;

	*have = found;
	return replaced;
#else
	return __atomic_compare_exchange_n(at, have, want, false, __ATOMIC_RELAXED,
					   __ATOMIC_RELAXED);
#endif
}

/* 0xff in each byte that is not zero. */
DEVICE_INLINE word_t word_nonzero_bytes(word_t x)
{
	const word_t low7 = 0x7f7f7f7f7f7f7f7f;

	return ((((((x & low7) + low7) | x) & ~low7)) >> 7) * 0xff;
}

/* 0xff in the bytes of a page's @i-th word that lie below @limit. */
DEVICE_INLINE word_t word_bytes_below(uint32_t limit, uint32_t i)
{
	uint32_t start = i * (uint32_t)sizeof(word_t);

	if (limit <= start)
		return 0;
	if (limit - start >= sizeof(word_t))
		return ~(word_t)0;
	return ((word_t)1 << (8 * (limit - start))) - 1;
}

/*
 * DEV_PULL of a word of a page: the bytes that @merged marks are merged, the others become @host's. The word is
 * replaced only if all of it is still as it was read, so no byte that a client stores meanwhile is lost. A word that
 * does not change is not stored to.
 */
DEVICE_INLINE void word_merge(word_t *at, word_t host, word_t base, word_t merged)
{
	word_t theirs = word_nonzero_bytes(host ^ base) & merged;
	word_t have, want, ours;

	if (!theirs && !~merged)
		return;
	have = word_load(at);
	do {
		ours = word_nonzero_bytes(have ^ base);
		want = ~merged | (theirs & ~ours);
		want = (have & ~want) | (host & want);
	} while (have != want && !word_replace(at, &have, want));
}

/* DEV_PULL of a page's @i-th word: the bytes below @limit are merged. @base is read only where bytes are merged. */
DEVICE_INLINE void word_pull(word_t *page, const word_t *host, const word_t *base, uint32_t limit,
			     uint32_t i)
{
	word_t merged = word_bytes_below(limit, i);

	word_merge(&page[i], host[i], merged ? base[i] : 0, merged);
}

/* DEV_ZERO of a page's @i-th word: the bytes below @limit are not stored to. */
DEVICE_INLINE void word_zero(word_t *page, uint32_t limit, uint32_t i)
{
	uint32_t start = i * (uint32_t)sizeof(word_t);

	if (limit <= start) {
		page[i] = 0;
		return;
	}
	for (uint32_t byte = limit - start; byte < sizeof(word_t); byte++)
		((unsigned char *)&page[i])[byte] = 0;
}

#endif
