/*
 * cuda_detect.h - what cuda_detect.c tells the kernel (cuda_detect.cu).
 */
#ifndef GAIA_CLIENT_CUDA_DETECT_H
#define GAIA_CLIENT_CUDA_DETECT_H

#include "page_hash.h"

#define DETECT_KERNEL "gaia_detect"
#define DETECT_RUNS 128u  /* a launch takes so many; with the rest of its parameters less than the 4 KiB that any driver takes */
#define DETECT_WARPS 4u	  /* in a block of threads */
#define DETECT_PAGES_A_BLOCK (DETECT_WARPS * 32u / HASH_LANES)

/* Consecutive pages. */
struct detect_pages {
	uint32_t page;	/* the first, from `base` */
	uint32_t first; /* its number among the pages of all runs */
};

/* The kernel's parameter. */
struct detect_work {
	const char *base;
	struct page_hash *hash;	/* of each page from base */
	uint8_t *changed;	/* of each, host memory: whether it has another hash now. NULL: remember its hash */
	uint32_t n_runs, n_pages; /* of all runs; no pages: nothing is done */
	struct detect_pages run[DETECT_RUNS]; /* first ascends */
};

/* The page whose number among those of all runs is @number. */
HASH_INLINE uint32_t detect_page_of(const struct detect_work *work, uint32_t number)
{
	uint32_t low = 0, high = work->n_runs;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (work->run[middle].first <= number)
			low = middle;
		else
			high = middle;
	}
	return work->run[low].page + (number - work->run[low].first);
}

#endif
