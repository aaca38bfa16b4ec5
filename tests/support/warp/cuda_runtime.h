/*
 * cuda_runtime.h - not CUDA's: a warp of CPU threads, to run kernels without a GPU (kernels.cu, and the client's cuda_detect.cu).
 *
 * Found before the real one when a kernel is compiled as plain C++ for tests. 32 threads are the lanes;
 * warps and blocks take turns. A shuffle is two barriers. So a kernel's own code runs, shuffles and
 * all, slowly.
 */
#ifndef GAIA_TESTS_WARP_H
#define GAIA_TESTS_WARP_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __grid_constant__

typedef int cudaError_t;

struct dim3 {
	unsigned x;

	explicit dim3(unsigned n) : x(n) {}
};

struct alignas(16) ulonglong2 {
	unsigned long long x, y;
};

static inline unsigned min(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
	return (unsigned long long)((unsigned __int128)a * b >> 64);
}

static inline unsigned long long atomicCAS_system(unsigned long long *at, unsigned long long have,
						  unsigned long long want)
{
	return __sync_val_compare_and_swap(at, have, want);
}

/* ---- lanes ---- */

static thread_local struct { unsigned x; } threadIdx, blockIdx;
static struct { unsigned x; } gridDim;

/* Of the last launch, for tests. */
extern "C" {
unsigned warp_blocks;
}

static struct {
	pthread_barrier_t barrier;
	unsigned long long value[32];
	void (*kernel)(void);
	void **args;
	unsigned threads;
} warp;

static inline unsigned long long warp_exchange(unsigned long long value, unsigned from)
{
	unsigned long long got;

	warp.value[threadIdx.x % 32] = value;
	pthread_barrier_wait(&warp.barrier);
	got = warp.value[from % 32];
	pthread_barrier_wait(&warp.barrier);
	return got;
}

static inline unsigned long long __shfl_sync(unsigned mask, unsigned long long value, unsigned lane)
{
	return mask == ~0u ? warp_exchange(value, lane) : (abort(), 0);
}

static inline unsigned long long __shfl_xor_sync(unsigned mask, unsigned long long value, unsigned flip)
{
	return mask == ~0u ? warp_exchange(value, threadIdx.x % 32 ^ flip) : (abort(), 0);
}

static inline unsigned __ballot_sync(unsigned mask, int vote)
{
	unsigned votes = 0;

	for (unsigned i = 0; i < 32; i++)
		votes |= (warp_exchange(vote != 0, i) ? 1u : 0u) << i;
	return mask == ~0u ? votes : (abort(), 0);
}

static inline cudaError_t warp_launch(void (*kernel)(void), void *(*be)(void *arg), dim3 grid, dim3 block, void **args)
{
	pthread_t lane[32];

	warp.kernel = kernel;
	warp.args = args;
	gridDim.x = warp_blocks = grid.x;
	warp.threads = block.x;
	pthread_barrier_init(&warp.barrier, NULL, 32);
	for (size_t i = 0; i < 32; i++)
		if (pthread_create(&lane[i], NULL, be, (void *)i))
			abort();
	for (size_t i = 0; i < 32; i++)
		pthread_join(lane[i], NULL);
	pthread_barrier_destroy(&warp.barrier);
	return 0;
}

/* Of the type that all kernels of kernels.cu have, but for their lists. */
template <class list_t> static void *be_lane(void *arg)
{
	typedef void kernel_t(list_t, uint32_t, uint32_t, uint8_t *);
	kernel_t *kernel = (kernel_t *)warp.kernel;

	for (unsigned block = 0; block < gridDim.x; block++) {
		for (unsigned first = 0; first < warp.threads; first += 32) {
			blockIdx.x = block;
			threadIdx.x = first + (unsigned)(size_t)arg;
			kernel(*(const list_t *)warp.args[0], *(uint32_t *)warp.args[1],
			       *(uint32_t *)warp.args[2], *(uint8_t **)warp.args[3]);
		}
	}
	return NULL;
}

template <class list_t>
static inline cudaError_t cudaLaunchKernel(void (*kernel)(list_t, uint32_t, uint32_t, uint8_t *), dim3 grid,
					   dim3 block, void **args, size_t shared, void *stream)
{
	return warp_launch((void (*)(void))kernel, be_lane<list_t>, grid, block, args);
}

/* Of a kernel that has one parameter, as the client's. */
template <class work_t> static void *be_lane_of_one(void *arg)
{
	typedef void kernel_t(work_t);
	kernel_t *kernel = (kernel_t *)warp.kernel;

	for (unsigned block = 0; block < gridDim.x; block++) {
		for (unsigned first = 0; first < warp.threads; first += 32) {
			blockIdx.x = block;
			threadIdx.x = first + (unsigned)(size_t)arg;
			kernel(*(const work_t *)warp.args[0]);
		}
	}
	return NULL;
}

template <class work_t>
static inline cudaError_t cudaLaunchKernel(void (*kernel)(work_t), dim3 grid, dim3 block, void **args, size_t shared, void *stream)
{
	return warp_launch((void (*)(void))kernel, be_lane_of_one<work_t>, grid, block, args);
}

#endif
