/*
 * cuda_device.h - what device.h says, by CUDA. Whatever fails ends the program.
 */
#ifndef EXAMPLE_CUDA_DEVICE_H
#define EXAMPLE_CUDA_DEVICE_H

#include "common.h"

#include <cuda_runtime.h>

#define CUDA(call)                                                               \
	do {                                                                     \
		cudaError_t e_ = (call);                                         \
		if (e_ != cudaSuccess)                                           \
			errx(1, "%s: %s", #call, cudaGetErrorString(e_));        \
	} while (0)

#define DEVICE __device__
#define KERNEL(name, type)                                                                                  \
	static __device__ void name##_one(size_t i, const type *a);                                         \
	static __global__ void name##_all(size_t n, type a)                                                 \
	{                                                                                                   \
		for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;                       \
		     i += gridDim.x * (size_t)blockDim.x)                                                   \
			name##_one(i, &a);                                                                  \
	}                                                                                                   \
	static __device__ void name##_one(size_t i, const type *a)
#define LAUNCH(name, n, args)                                                                               \
	do {                                                                                                \
		size_t n_ = (n), blocks_ = (n_ + 255) / 256;                                                \
		void *args_[] = { &n_, (void *)(args) };                                                    \
		if (n_) {                                                                                   \
			CUDA(cudaLaunchKernel(name##_all, dim3((unsigned)(blocks_ < 65536 ? blocks_ : 65536)), dim3(256), \
					      args_, 0, NULL));                                             \
			CUDA(cudaDeviceSynchronize());                                                      \
		}                                                                                           \
	} while (0)

/* Each returns what was there before. */
DEVICE static inline uint64_t device_min(uint64_t *p, uint64_t value)
{
	return atomicMin((unsigned long long *)p, (unsigned long long)value);
}
DEVICE static inline uint32_t device_add(uint32_t *p, uint32_t value)
{
	return atomicAdd(p, value);
}
DEVICE static inline uint32_t device_exchange(uint32_t *p, uint32_t value)
{
	uint32_t old = atomicExch(p, value);

	__threadfence();
	return old;
}
DEVICE static inline uint32_t device_or(uint32_t *p, uint32_t value)
{
	return atomicOr(p, value);
}
/* What other threads may be changing. */
DEVICE static inline uint64_t device_load(const uint64_t *p)
{
	return *(const volatile uint64_t *)p;
}

/* Memory of the program's own on the device, full of zeros; ends the program where there is none. */
static inline void *device_alloc(size_t n)
{
	void *p;

	CUDA(cudaMalloc(&p, n ? n : 1));
	CUDA(cudaMemset(p, 0, n ? n : 1));
	return p;
}
static inline void device_free(void *p)
{
	CUDA(cudaFree(p));
}
/* From, to and between memories of the device: cudaMemcpy() finds out which. */
static inline void device_copy(void *to, const void *from, size_t n)
{
	CUDA(cudaMemcpy(to, from, n, cudaMemcpyDefault));
	CUDA(cudaDeviceSynchronize());
}
static inline void device_fill(void *p, int byte, size_t n)
{
	CUDA(cudaMemset(p, byte, n));
	CUDA(cudaDeviceSynchronize());
}

#endif
