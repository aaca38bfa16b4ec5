/*
 * cuda_runtime.h - not CUDA's: as much of the runtime as the applications of client/examples use, so that what nvcc makes kernels of runs
 * without a GPU. Found before the real one where they are compiled as plain C++ (meson.build).
 *
 * CPU threads are a kernel's, in its place in a stream of the fake driver (support/fake_cuda.h), which knows each memory and is strict
 * about it. What cudaMalloc() gave cannot be touched outside of kernels and copies. Memory that both sides touch
 * (cudaMallocManaged) there is not.
 */
#ifndef GAIA_TESTS_PLAYED_CUDA_RUNTIME_H
#define GAIA_TESTS_PLAYED_CUDA_RUNTIME_H

#include <pthread.h>
#include <stdlib.h>

#include "runtime.h"

#define __device__
#define __global__
#define __host__

struct dim3 {
	unsigned x;

	explicit dim3(unsigned n) : x(n) {}
};

static thread_local struct { unsigned x; } threadIdx, blockIdx;
static struct { unsigned x; } gridDim, blockDim;

/* ---- what kernels call ---- */

static inline unsigned long long atomicMin(unsigned long long *p, unsigned long long value)
{
	unsigned long long old = __atomic_load_n(p, __ATOMIC_RELAXED);

	while (value < old && !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	return old;
}
static inline unsigned atomicAdd(unsigned *p, unsigned value)
{
	return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
static inline unsigned atomicExch(unsigned *p, unsigned value)
{
	return __atomic_exchange_n(p, value, __ATOMIC_RELAXED);
}
static inline unsigned atomicOr(unsigned *p, unsigned value)
{
	return __atomic_fetch_or(p, value, __ATOMIC_RELAXED);
}
static inline void __threadfence(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* ---- kernels, of device.h's form ---- */

/* Of CPU threads, which take turns at being a block's. No lane waits for another one: there are no shuffles here. */
#define PLAYED_THREADS 4u

template <class args_t> struct played_work {
	void (*kernel)(size_t n, args_t args);
	unsigned blocks, threads;
	size_t n;
	args_t args;
};

template <class args_t> struct played_thread {
	const struct played_work<args_t> *work;
	unsigned first;
	pthread_t thread;
};

template <class args_t> static void *played_part(void *arg)
{
	const struct played_thread<args_t> *t = (const struct played_thread<args_t> *)arg;
	const struct played_work<args_t> *work = t->work;

	for (unsigned block = 0; block < work->blocks; block++) {
		for (unsigned i = t->first; i < work->threads; i += PLAYED_THREADS) {
			blockIdx.x = block;
			threadIdx.x = i;
			work->kernel(work->n, work->args);
		}
	}
	return NULL;
}

/* Two GPUs take turns: what a kernel asks for the size of its grid and blocks is there once. */
static pthread_mutex_t played_turn = PTHREAD_MUTEX_INITIALIZER;

template <class args_t> static void played_kernel(void *arg)
{
	const struct played_work<args_t> *work = (const struct played_work<args_t> *)arg;
	struct played_thread<args_t> threads[PLAYED_THREADS];

	pthread_mutex_lock(&played_turn);
	gridDim.x = work->blocks;
	blockDim.x = work->threads;
	for (unsigned i = 0; i < PLAYED_THREADS; i++) {
		threads[i].work = work;
		threads[i].first = i;
		if (pthread_create(&threads[i].thread, NULL, played_part<args_t>, &threads[i]))
			abort();
	}
	for (unsigned i = 0; i < PLAYED_THREADS; i++)
		pthread_join(threads[i].thread, NULL);
	pthread_mutex_unlock(&played_turn);
}

template <class args_t>
static inline cudaError_t cudaLaunchKernel(void (*kernel)(size_t, args_t), dim3 grid, dim3 block, void **args, size_t shared, void *stream)
{
	struct played_work<args_t> work = { kernel, grid.x, block.x, *(const size_t *)args[0], *(const args_t *)args[1] };

	return shared || stream ? 1 : played_launch(played_kernel<args_t>, &work, sizeof(work), (size_t)((char *)&work.args - (char *)&work));
}

#endif
