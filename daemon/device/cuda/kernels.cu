/*
 * kernels.cu - work on pages on the device. What one lane computes is in page.h and word.h.
 *
 * A warp takes a few consecutive pages, and all of a page's bytes at once: 32 lanes times
 * 16 bytes, eight times. Host memory is read and written across the bus by the same loads
 * and stores; it is registered.
 */
#include <cuda_runtime.h>

#include "device/cuda/launch.h"

#define WARPS 4u /* in a block of threads */

/* When it looks for changes a warp writes a whole byte of results. */
#define PAGES_A_WARP(kind) ((kind) == DEV_FIND_CHANGED ? 8u : 4u)

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

/* The sum over the lanes with the same accumulator, for each lane. */
static __device__ __forceinline__ word_t sum_lanes(struct hash_part part)
{
	word_t sum = part.products + __shfl_xor_sync(~0u, part.words, 1);

	sum += __shfl_xor_sync(~0u, sum, 8);
	return sum + __shfl_xor_sync(~0u, sum, 16);
}

/* Every lane gets the result. */
static __device__ __forceinline__ struct page_hash hash_page(const void *page, uint32_t lane)
{
	uint32_t accumulator = lane % HASH_LANES;
	word_t value = hash_start[accumulator], all[HASH_LANES];

#pragma unroll
	for (uint32_t block = 0; block < HASH_BLOCKS; block++) {
		if (block)
			value = hash_scramble(value, accumulator);
		value += sum_lanes(hash_block((const word_t *)page, block, lane));
	}
#pragma unroll
	for (uint32_t i = 0; i < HASH_LANES; i++)
		all[i] = __shfl_sync(~0u, value, i);
	return hash_end(all);
}

static __device__ __forceinline__ void arm(struct page_hash *armed, struct page_hash hash, uint32_t lane)
{
	if (!lane)
		*armed = hash;
}

static __device__ __forceinline__ void *nth_page(const void *first, uint32_t n)
{
	return (char *)first + (size_t)n * GAIA_PAGE;
}

/* Returns whether the page has changed, on lane 0, if that is what is asked. */
template <enum dev_kind kind>
static __device__ __forceinline__ bool work_on(const struct page_item *item, uint32_t n, uint32_t lane)
{
	struct page_hash *armed = item->armed + n;
	void *page = nth_page(item->page, n);

	if (kind == DEV_COPY_IN || kind == DEV_COPY_PEER) {
		copy_page(page, nth_page(item->other, n), lane);
	} else if (kind == DEV_COPY_OUT) {
		copy_page(nth_page(item->other, n), page, lane);
	} else if (kind == DEV_COPY_WITHIN) {
		copy_page(page, nth_page(item->other, n), lane);
		arm(armed, item->other_armed[n], lane);
	} else if (kind == DEV_PULL) {
		const word_t *host = (const word_t *)nth_page(item->other, n);
		const word_t *base = (const word_t *)nth_page(item->base, n);

		for (uint32_t i = lane; i < PAGE_WORDS; i += PAGE_LANES)
			word_pull((word_t *)page, host, base, item->limit, i);
		arm(armed, hash_page(host, lane), lane);
	} else if (kind == DEV_ZERO) {
		for (uint32_t i = lane + item->limit / 8; i < PAGE_WORDS; i += PAGE_LANES)
			word_zero((word_t *)page, item->limit, i);
	} else if (kind == DEV_ARM) {
		arm(armed, hash_page(page, lane), lane);
	} else { /* DEV_FIND_CHANGED */
		struct page_hash hash = hash_page(page, lane);

		if (!lane) {
			bool changed = hash.low != armed->low || hash.high != armed->high;

			*armed = hash;
			return changed;
		}
	}
	return false;
}

template <enum dev_kind kind, uint32_t room>
static __global__ void __launch_bounds__(WARPS * PAGE_LANES)
work(const __grid_constant__ struct item_list<room> list, uint32_t n_items, uint32_t n_pages, uint8_t *changed)
{
	uint32_t lane = threadIdx.x % PAGE_LANES;
	uint32_t warp = blockIdx.x * WARPS + threadIdx.x / PAGE_LANES;
	uint32_t number = warp * PAGES_A_WARP(kind);
	uint32_t end = min(number + PAGES_A_WARP(kind), n_pages), bits = 0;
	const struct page_item *item;

	if (number >= end)
		return;
	item = page_find_item(list.item, n_items, number);
	for (; number < end; number++) {
		while (item + 1 < list.item + n_items && item[1].first <= number)
			item++;
		bits |= (uint32_t)work_on<kind>(item, number - item->first, lane) << number % 8;
	}
	if (kind == DEV_FIND_CHANGED && !lane)
		changed[warp] = (uint8_t)bits;
}

template <uint32_t room>
static cudaError_t launch(enum dev_kind kind, const struct page_item *items, uint32_t n_items, uint32_t n_pages,
			  uint8_t *changed, CUstream stream)
{
	typedef void work_t(struct item_list<room>, uint32_t, uint32_t, uint8_t *);
	static work_t *const kernels[] = {
		work<DEV_COPY_IN, room>, work<DEV_COPY_OUT, room>, work<DEV_COPY_WITHIN, room>,
		work<DEV_COPY_PEER, room>, work<DEV_PULL, room>, work<DEV_ZERO, room>, work<DEV_ARM, room>,
		work<DEV_FIND_CHANGED, room>,
	};
	uint32_t pages_a_block = WARPS * PAGES_A_WARP(kind);
	void *args[] = { (void *)items, &n_items, &n_pages, &changed };

	static_assert(DEV_FIND_CHANGED == 7, "the order of the kernels");
	return cudaLaunchKernel(kernels[kind], dim3((n_pages + pages_a_block - 1) / pages_a_block),
				dim3(WARPS * PAGE_LANES), args, 0, stream);
}

CUresult cuda_launch(enum dev_kind kind, const struct page_item *items, uint32_t n_items,
		     uint32_t n_pages, uint8_t *changed, CUstream stream)
{
	/* The runtime's error codes are the driver's. */
	if (list_room(n_items) == LIST_SHORT)
		return (CUresult)launch<LIST_SHORT>(kind, items, n_items, n_pages, changed, stream);
	return (CUresult)launch<LIST_LONG>(kind, items, n_items, n_pages, changed, stream);
}
