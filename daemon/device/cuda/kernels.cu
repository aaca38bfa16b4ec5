/*
 * kernels.cu - work on pages on the device. What one lane computes is in page.h and word.h.
 *
 * A warp takes a few consecutive pages. When it copies or zeroes it takes one page after the other, with all lanes on
 * one page: 32 lanes times 16 bytes, eight times. When it hashes it takes four pages at once, with eight lanes for each;
 * what is merged is hashed by the same loads. Host memory is read and written across the bus by the same loads and
 * stores; it is registered.
 */
#include <cuda_runtime.h>

#include "device/cuda/launch.h"

#define WARPS 4u /* in a block of threads */

/* At a time. Eight when it looks for changes, so that a warp writes a whole byte of results. */
#define PAGES_A_WARP(kind) ((kind) == DEV_FIND_CHANGED ? 8u : 4u)

/*
 * What reads or writes memory beyond a bus has so many blocks at most, whose warps take turns: their loads under way, 4 KiB for
 * each warp, keep the bus busy. More blocks would only take multiprocessors from programs' kernels. What stays on the
 * GPU has as many blocks as it has work for.
 */
#define BUS_BLOCKS 64u

/* In the constant memory of the launch. */
template <uint32_t room> struct item_list {
	struct page_item item[room];
};

static_assert(PARAMETER_BYTES(LIST_SHORT) <= 4096, "what drivers before CUDA 12.1 take");
static_assert(PARAMETER_BYTES(LIST_LONG) <= 32764, "what drivers from CUDA 12.1 on take");

typedef ulonglong2 unit_t; /* 16 bytes */
#define UNITS (GAIA_PAGE / sizeof(unit_t) / PAGE_LANES) /* of a lane */

static __device__ __forceinline__ void copy_page(void *to, const void *from, uint32_t lane)
{
	const unit_t *source = (const unit_t *)from + lane;
	unit_t *target = (unit_t *)to + lane;
	unit_t unit[UNITS];

#pragma unroll
	for (uint32_t i = 0; i < UNITS; i++)
		unit[i] = source[i * PAGE_LANES];
#pragma unroll
	for (uint32_t i = 0; i < UNITS; i++)
		target[i * PAGE_LANES] = unit[i];
}

static __device__ __forceinline__ void *nth_page(const void *first, uint32_t n)
{
	return (char *)first + (size_t)n * GAIA_PAGE;
}

/* ---- a page by eight lanes ---- */

static __device__ __forceinline__ void merge_units(unit_t *to, const unit_t *host, const unit_t *base_page,
						   uint32_t limit, uint32_t block, uint32_t lane)
{
	unit_t base[HASH_UNITS];

#pragma unroll
	for (uint32_t i = 0; i < HASH_UNITS; i++) {
		uint32_t number = hash_unit(block, i, lane);

		base[i].x = base[i].y = 0;
		if (limit > number * sizeof(unit_t))
			base[i] = base_page[number];
	}
#pragma unroll
	for (uint32_t i = 0; i < HASH_UNITS; i++) {
		uint32_t number = hash_unit(block, i, lane);
		word_t *word = (word_t *)&to[number];

		word_merge(&word[0], host[i].x, base[i].x, word_bytes_below(limit, 2 * number));
		word_merge(&word[1], host[i].y, base[i].y, word_bytes_below(limit, 2 * number + 1));
	}
}

/*
 * Load the lane's part of a block of the bytes to be hashed. If these are the other end's they are also merged
 * into the page, or copied to it.
 */
template <enum dev_kind kind>
static __device__ __forceinline__ void take_block(const struct page_item *item, uint32_t n, uint32_t block,
						  uint32_t lane, unit_t *unit)
{
	unit_t *page = (unit_t *)nth_page(item->page, n);
	bool copies = (kind == DEV_COPY_IN || kind == DEV_COPY_PEER) && item->other;
	const unit_t *source = kind == DEV_PULL || copies ? (const unit_t *)nth_page(item->other, n) : page;

#pragma unroll
	for (uint32_t i = 0; i < HASH_UNITS; i++)
		unit[i] = source[hash_unit(block, i, lane)];
	if (copies) {
#pragma unroll
		for (uint32_t i = 0; i < HASH_UNITS; i++)
			page[hash_unit(block, i, lane)] = unit[i];
	}
	if (kind == DEV_PULL)
		merge_units(page, unit, (const unit_t *)nth_page(item->base, n), item->limit, block, lane);
}

static __device__ __forceinline__ word_t add_across(word_t x, uint32_t lane_bit)
{
	return x + __shfl_xor_sync(~0u, x, lane_bit);
}

/*
 * Lanes 0 to 3 of a page get the low half of its hash, 4 to 7 the high half. All lanes of the warp take part; for those
 * without a page (@there is false) the result means nothing.
 */
template <enum dev_kind kind>
static __device__ __forceinline__ word_t hash_page(const struct page_item *item, uint32_t n, uint32_t lane,
						   bool there, const struct hash_keys *keys)
{
	struct hash_pair pair = hash_begin(lane);
	word_t half;

#pragma unroll 1
	for (uint32_t block = 0; block < HASH_BLOCKS; block++) {
		struct hash_pair sums = { { 0, 0 } };
		unit_t unit[HASH_UNITS] = {};

		if (there)
			take_block<kind>(item, n, block, lane, unit);
#pragma unroll
		for (uint32_t i = 0; i < HASH_UNITS; i++)
			hash_add(&sums, unit[i].x, unit[i].y, keys, block, i);
		sums.of[0] = add_across(sums.of[0], 4);
		sums.of[1] = add_across(sums.of[1], 4);
		hash_end_block(&pair, &sums, block, keys);
	}
	half = add_across(hash_part(&pair, lane), 1);
	return hash_end(add_across(half, 2), lane);
}

/*
 * Arm the pages @first to @end of @items, four at most. Returns, on every lane, a bit for each page: whether it had
 * another hash before.
 */
template <enum dev_kind kind>
static __device__ __forceinline__ uint32_t hash_pages(const struct page_item *items, uint32_t n_items,
						      uint32_t first, uint32_t end, uint32_t warp_lane,
						      const struct hash_keys *keys)
{
	uint32_t group = warp_lane / HASH_LANES, lane = warp_lane % HASH_LANES;
	bool there = first + group < end, changed = false;
	uint32_t number = there ? first + group : first, votes, bits = 0;
	const struct page_item *item = page_find_item(items, n_items, number);
	word_t half = hash_page<kind>(item, number - item->first, lane, there, keys);

	if (there && lane % 4 == 0) {
		struct page_hash *armed = &item->armed[number - item->first];
		word_t *at = lane ? &armed->high : &armed->low;

		changed = *at != half;
		*at = half;
	}
	votes = __ballot_sync(~0u, changed);
	for (uint32_t i = 0; i < PAGE_LANES / HASH_LANES; i++)
		bits |= (uint32_t)((votes >> (i * HASH_LANES) & 0xff) != 0) << i;
	return bits;
}

/* ---- a page by all lanes ---- */

template <enum dev_kind kind>
static __device__ __forceinline__ void move_page(const struct page_item *item, uint32_t n, uint32_t lane)
{
	void *page = nth_page(item->page, n);

	if (kind == DEV_COPY_OUT) {
		copy_page(nth_page(item->other, n), page, lane);
	} else if (kind == DEV_ZERO) {
		for (uint32_t i = lane + item->limit / 8; i < PAGE_WORDS; i += PAGE_LANES)
			word_zero((word_t *)page, item->limit, i);
	} else {
		copy_page(page, nth_page(item->other, n), lane);
		if (kind == DEV_COPY_WITHIN && !lane)
			item->armed[n] = item->other_armed[n];
	}
}

/* ---- the kernels ---- */

template <enum dev_kind kind, bool arm, uint32_t room>
static __global__ void __launch_bounds__(WARPS * PAGE_LANES)
work(const __grid_constant__ struct item_list<room> list, uint32_t n_items, uint32_t n_pages, uint8_t *changed)
{
	const bool hashes = arm || kind == DEV_PULL || kind == DEV_ARM || kind == DEV_FIND_CHANGED;
	const uint32_t at_once = hashes ? PAGE_LANES / HASH_LANES : 1;
	uint32_t lane = threadIdx.x % PAGE_LANES;
	uint32_t warp = blockIdx.x * WARPS + threadIdx.x / PAGE_LANES;
	struct hash_keys keys;

	/* Once, and then in registers: as loads between those of pages they would wait for these. */
	if (hashes)
		keys = hash_keys_of(lane % HASH_LANES);
	for (uint32_t first = warp * PAGES_A_WARP(kind); first < n_pages;
	     first += gridDim.x * WARPS * PAGES_A_WARP(kind)) {
		uint32_t end = min(first + PAGES_A_WARP(kind), n_pages), bits = 0;

		for (uint32_t number = first; number < end; number += at_once) {
			if (hashes) {
				bits |= hash_pages<kind>(list.item, n_items, number, end, lane, &keys) << (number - first);
			} else {
				const struct page_item *item = page_find_item(list.item, n_items, number);

				move_page<kind>(item, number - item->first, lane);
			}
		}
		if (kind == DEV_FIND_CHANGED && !lane)
			changed[first / PAGES_A_WARP(kind)] = (uint8_t)bits;
	}
}

static uint32_t blocks_for(enum dev_kind kind, uint32_t n_pages)
{
	uint32_t pages_a_block = WARPS * PAGES_A_WARP(kind), n = (n_pages + pages_a_block - 1) / pages_a_block;
	bool bus = kind == DEV_COPY_IN || kind == DEV_COPY_OUT || kind == DEV_COPY_PEER || kind == DEV_PULL;

	return bus ? min(n, BUS_BLOCKS) : n;
}

template <uint32_t room>
static cudaError_t launch(enum dev_kind kind, bool arm, const struct page_item *items, uint32_t n_items,
			  uint32_t n_pages, uint8_t *changed, CUstream stream)
{
	typedef void work_t(struct item_list<room>, uint32_t, uint32_t, uint8_t *);
	static work_t *const kernels[] = {
		work<DEV_COPY_IN, false, room>,	    work<DEV_COPY_OUT, false, room>,
		work<DEV_COPY_WITHIN, false, room>, work<DEV_COPY_PEER, false, room>,
		work<DEV_PULL, false, room>,	    work<DEV_ZERO, false, room>,
		work<DEV_ARM, false, room>,	    work<DEV_FIND_CHANGED, false, room>,
	};
	work_t *kernel = kernels[kind];
	void *args[] = { (void *)items, &n_items, &n_pages, &changed };

	static_assert(DEV_FIND_CHANGED == 7, "the order of the kernels");
	if (arm)
		kernel = kind == DEV_COPY_IN ? work<DEV_COPY_IN, true, room> : work<DEV_COPY_PEER, true, room>;
	return cudaLaunchKernel(kernel, dim3(blocks_for(kind, n_pages)), dim3(WARPS * PAGE_LANES), args, 0, stream);
}

CUresult cuda_launch(enum dev_kind kind, bool arm, const struct page_item *items, uint32_t n_items,
		     uint32_t n_pages, uint8_t *changed, CUstream stream)
{
	/* The runtime's error codes are the driver's. */
	if (list_room(n_items) == LIST_SHORT)
		return (CUresult)launch<LIST_SHORT>(kind, arm, items, n_items, n_pages, changed, stream);
	return (CUresult)launch<LIST_LONG>(kind, arm, items, n_items, n_pages, changed, stream);
}
