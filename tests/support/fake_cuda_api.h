/*
 * fake_cuda_api.h - the CUDA device on the fake driver: the daemon's table of functions, with kernels
 * that are carried out by the CPU from the same source as those of the GPU.
 */
#ifndef GAIA_TESTS_FAKE_CUDA_API_H
#define GAIA_TESTS_FAKE_CUDA_API_H

#include "device/cuda/api.h"
#include "fake_cuda.h"

/* Call it after fake_cuda_reset() and cuInit(). */
const struct cuda_api *fake_cuda_api(void);

/* fake_cuda_reset() for one GPU of @memory bytes, and cuInit(). */
void fake_cuda_start(size_t memory);

/* XXH3_128bits() of a page as eight lanes compute it, one after the other. */
struct page_hash fake_cuda_hash(const void *page);

#endif
