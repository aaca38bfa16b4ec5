/*
 * cuda_detect.cu - hash pages of a mapping, to remember that or to compare it. What one lane computes is in page_hash.h.
 *
 * A warp takes four pages, with eight lanes for each. Of a page the lanes load 128 bytes at a time, side by side.
 */
#include <cuda_runtime.h>

#include "cuda_detect.h"

static __device__ __forceinline__ hash_word add_across(hash_word x, uint32_t lane_bit)
{
	return x + __shfl_xor_sync(~0u, x, lane_bit);
}

extern "C" __global__ void __launch_bounds__(DETECT_WARPS * 32)
gaia_detect(const __grid_constant__ struct detect_work work)
{
	uint32_t lane = threadIdx.x % HASH_LANES;
	uint32_t number = blockIdx.x * DETECT_PAGES_A_BLOCK + threadIdx.x / HASH_LANES;
	bool there = number < work.n_pages;
	uint32_t page = there ? detect_page_of(&work, number) : 0;
	const ulonglong2 *unit = (const ulonglong2 *)(work.base + (size_t)page * GAIA_PAGE);
	struct page_hash h = hash_begin(lane);

	if (there) {
#pragma unroll 8
		for (uint32_t i = 0; i < HASH_UNITS; i++) {
			ulonglong2 u = unit[hash_unit(i, lane)];

			hash_add(&h, u.x, u.y);
		}
	}
	h = hash_end(h);
	/* All lanes of the warp take part. */
	for (uint32_t bit = HASH_LANES / 2; bit > 0; bit /= 2) {
		h.low = add_across(h.low, bit);
		h.high = add_across(h.high, bit);
	}
	if (!there || lane > 0)
		return;
	if (work.changed)
		work.changed[page] = work.hash[page].low != h.low || work.hash[page].high != h.high;
	else
		work.hash[page] = h;
}
