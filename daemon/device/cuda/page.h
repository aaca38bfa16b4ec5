/*
 * page.h - the kernels' work on pages, for nvcc and for gcc.
 *
 * The functions here are the work of one lane, without the communication between lanes: kernels.cu adds that
 * with shuffles, the tests with loops.
 *
 * The hash of a page is XXH3_128bits() of its 4096 bytes, as on the simulated device, cut up for eight lanes: so a warp hashes
 * four pages at once. XXH3 reads stripes of 64 bytes, which are eight words. It adds a product of each word to an accumulator of
 * its own (and the word itself to the neighbouring one), and scrambles the accumulators only after every 16 stripes (a block). So
 * the stripes of a block can be added in any order, and their multiplications do not wait for each other. Eight lanes take two
 * stripes at a time, a unit of 16 bytes each: the words of two neighbouring accumulators, so that both are in the same lane. Lanes
 * 0 to 3 have the even stripes, and 4 to 7 the odd ones: at the end of a block the two sums are added, and nothing else crosses
 * lanes until the end of the page.
 */
#ifndef GAIA_DEVICE_CUDA_PAGE_H
#define GAIA_DEVICE_CUDA_PAGE_H

#include "device/word.h"
#include "gaia/protocol.h"

#define PAGE_LANES 32u
#define PAGE_WORDS (GAIA_PAGE / 8u)

/* Not constant memory, which serves one address at a time: lanes read different ones. */
#ifdef __CUDACC__
#define PAGE_TABLE static __device__ const
#else
#define PAGE_TABLE static const
#endif

/* Whether a page is armed is known on the host only (cuda_chunk.unarmed). */
struct page_hash {
	word_t low, high;
};

/* Consecutive pages of a chunk: a run, or a part of one, as the kernel gets it. */
struct page_item {
	void *page;		    /* on the device */
	void *other; /* COPY_*: the other end, maybe on another GPU; NULL: only arm what was copied. PULL: host */
	const void *base;	    /* PULL */
	struct page_hash *armed;    /* of the pages */
	const struct page_hash *other_armed; /* COPY_WITHIN */
	uint32_t first;		    /* number of its first page among those of all items */
	uint32_t limit;		    /* PULL, ZERO */
};

/* The item that page number @number belongs to. Items ascend; @n > 0. */
DEVICE_INLINE const struct page_item *page_find_item(const struct page_item *items, uint32_t n,
						     uint32_t number)
{
	uint32_t low = 0, high = n;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (items[middle].first <= number)
			low = middle;
		else
			high = middle;
	}
	return &items[low];
}

/* ---- the hash ---- */

#define HASH_LANES 8u		/* that hash a page; and accumulators */
#define HASH_BLOCKS 4u		/* of 1024 bytes */
#define HASH_UNITS 8u		/* of a lane, in a block: 16 bytes each */

/* XXH3's default secret, as the words in which it is used here. */
PAGE_TABLE word_t hash_secret[24] = {
	0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
	0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
	0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
	0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
	0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
	0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};
/* The secret from byte 121 on: for the last stripe. */
PAGE_TABLE word_t hash_last_keys[HASH_LANES] = {
	0xea647378d9c97e9f, 0xc5c3ebd33483acc5, 0x17eb6313faffa081, 0xd349daf0b751dd0d,
	0x2b9e68d429265516, 0x8ffca1477d58be16, 0x45ce31d07ad1b8f8, 0xaf280416958f3acb,
};
/* The secret from byte 11 on, for the low half of the result; from 117 on, for the high half. */
PAGE_TABLE word_t hash_low_keys[HASH_LANES] = {
	0x6dd4de1cad21f72c, 0xa44072db979083e9, 0xe679cb1f67b3b7a4, 0xd05a8278e5c0cc4e,
	0x4608b82172ffcc7d, 0x9035e08e2443f774, 0x52283c4c263a81e6, 0x65d088cb00c391bb,
};
PAGE_TABLE word_t hash_high_keys[HASH_LANES] = {
	0xd9c97e9fc83159b4, 0x3483acc5ea647378, 0xfaffa081c5c3ebd3, 0xb751dd0d17eb6313,
	0x29265516d349daf0, 0x7d58be162b9e68d4, 0x7ad1b8f88ffca147, 0x958f3acb45ce31d0,
};
PAGE_TABLE word_t hash_start[HASH_LANES] = {
	0x00000000c2b2ae3d, 0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
	0x85ebca77c2b2ae63, 0x0000000085ebca77, 0x27d4eb2f165667c5, 0x000000009e3779b1,
};

/* A lane's two accumulators: number 2 * (lane % 4) and the next. */
struct hash_pair {
	word_t of[2];
};

/* The lane's @i-th unit in a block, as a number in the page. */
DEVICE_INLINE uint32_t hash_unit(uint32_t block, uint32_t i, uint32_t lane)
{
	return (block * HASH_UNITS + i) * HASH_LANES + lane;
}

/* The keys of a lane: two for each of its units in a block, others for its last unit in the page, and two to scramble with. */
struct hash_keys {
	word_t unit[2 * HASH_UNITS], last[2], scramble[2];
};

DEVICE_INLINE struct hash_keys hash_keys_of(uint32_t lane)
{
	uint32_t stripe = lane / 4, accumulator = 2 * (lane % 4);
	struct hash_keys keys;

	for (uint32_t i = 0; i < 2 * HASH_UNITS; i++)
		keys.unit[i] = hash_secret[stripe + accumulator + i];
	for (uint32_t i = 0; i < 2; i++) {
		keys.last[i] = stripe ? hash_last_keys[accumulator + i] : keys.unit[2 * HASH_UNITS - 2 + i];
		keys.scramble[i] = hash_secret[16 + accumulator + i];
	}
	return keys;
}

/* Add the lane's @i-th unit in a block, the two words of it, to the sums of the block. */
DEVICE_INLINE void hash_add(struct hash_pair *sums, word_t first, word_t second, const struct hash_keys *keys,
			    uint32_t block, uint32_t i)
{
	bool last = block == HASH_BLOCKS - 1 && i == HASH_UNITS - 1;
	word_t x = first ^ (last ? keys->last[0] : keys->unit[2 * i]);
	word_t y = second ^ (last ? keys->last[1] : keys->unit[2 * i + 1]);

	sums->of[0] += (x & 0xffffffff) * (x >> 32) + second;
	sums->of[1] += (y & 0xffffffff) * (y >> 32) + first;
}

/* Done between blocks. */
DEVICE_INLINE word_t hash_scramble(word_t value, word_t key)
{
	return (value ^ (value >> 47) ^ key) * 0x9e3779b1;
}

DEVICE_INLINE struct hash_pair hash_begin(uint32_t lane)
{
	uint32_t accumulator = 2 * (lane % 4);
	struct hash_pair pair = { { hash_start[accumulator], hash_start[accumulator + 1] } };

	return pair;
}

/* Add the block's sums to the accumulators. @sums: of the even and the odd stripes together. */
DEVICE_INLINE void hash_end_block(struct hash_pair *pair, const struct hash_pair *sums, uint32_t block,
				  const struct hash_keys *keys)
{
	for (uint32_t i = 0; i < 2; i++) {
		if (block)
			pair->of[i] = hash_scramble(pair->of[i], keys->scramble[i]);
		pair->of[i] += sums->of[i];
	}
}

DEVICE_INLINE word_t hash_fold(word_t a, word_t b)
{
#ifdef __CUDACC__
	return (a * b) ^ __umul64hi(a, b);
#else
	unsigned __int128 product = (unsigned __int128)a * b;

	return (word_t)product ^ (word_t)(product >> 64);
#endif
}

/*
 * The lane's part of the result, from the accumulators after the last block, which is not scrambled: of the low half for
 * lanes 0 to 3, of the high half for 4 to 7. They are to be added up.
 */
DEVICE_INLINE word_t hash_part(const struct hash_pair *pair, uint32_t lane)
{
	const word_t *keys = (lane < 4 ? hash_low_keys : hash_high_keys) + 2 * (lane % 4);

	return hash_fold(pair->of[0] ^ keys[0], pair->of[1] ^ keys[1]);
}

/* That half of the hash, from the sum of its parts. */
DEVICE_INLINE word_t hash_end(word_t sum, uint32_t lane)
{
	const word_t length = GAIA_PAGE;

	sum += lane < 4 ? length * 0x9e3779b185ebca87 : ~(length * 0xc2b2ae3d27d4eb4f);
	sum = (sum ^ (sum >> 37)) * 0x165667919e3779f9;
	return sum ^ (sum >> 32);
}

#endif
