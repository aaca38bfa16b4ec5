/*
 * kernels.cu - see kernels.h.
 */
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels.h"

#define THREADS 256u
#define UNROLL 4u

static unsigned processors(void)
{
	static int n;
	int device;

	if (!n && (cudaGetDevice(&device) || cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device)))
		n = 1;
	return (unsigned)n;
}

/* Enough for what there is to do, at most what fills the GPU. */
static unsigned blocks_for(size_t bytes)
{
	size_t wanted = (bytes / sizeof(ulonglong2) + THREADS * UNROLL - 1) / (THREADS * UNROLL);
	unsigned most = processors() * 8;

	return wanted < 1 ? 1 : wanted < most ? (unsigned)wanted : most;
}

static __global__ void empty()
{
}

static __global__ void trap()
{
	__trap();
}

static __device__ __forceinline__ uint64_t nanoseconds()
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

static __global__ void spin(uint64_t ns, const volatile uint32_t *stop)
{
	uint64_t start = nanoseconds();

	while (nanoseconds() - start < ns)
		if (stop && *stop)
			break;
}

/* @n units of 16 bytes. Several loads are on their way at once. */
static __global__ void __launch_bounds__(THREADS) sum(const ulonglong2 *from, size_t n, unsigned long long *sink)
{
	size_t stride = (size_t)gridDim.x * THREADS, i = (size_t)blockIdx.x * THREADS + threadIdx.x;
	unsigned long long total = 0;

	for (; i + (UNROLL - 1) * stride < n; i += UNROLL * stride) {
		ulonglong2 v[UNROLL];

#pragma unroll
		for (unsigned k = 0; k < UNROLL; k++)
			v[k] = from[i + k * stride];
#pragma unroll
		for (unsigned k = 0; k < UNROLL; k++)
			total += v[k].x ^ v[k].y;
	}
	for (; i < n; i += stride)
		total += from[i].x ^ from[i].y;
	/* Or the compiler would leave it all out. */
	if (total == 0x9e3779b97f4a7c15ull)
		*sink = total;
}

static __global__ void __launch_bounds__(THREADS) copy(ulonglong2 *to, const ulonglong2 *from, size_t n)
{
	size_t stride = (size_t)gridDim.x * THREADS, i = (size_t)blockIdx.x * THREADS + threadIdx.x;

	for (; i + (UNROLL - 1) * stride < n; i += UNROLL * stride) {
		ulonglong2 v[UNROLL];

#pragma unroll
		for (unsigned k = 0; k < UNROLL; k++)
			v[k] = from[i + k * stride];
#pragma unroll
		for (unsigned k = 0; k < UNROLL; k++)
			to[i + k * stride] = v[k];
	}
	for (; i < n; i += stride)
		to[i] = from[i];
}

static CUresult launch(const void *kernel, unsigned blocks, unsigned threads, void **args, CUstream stream)
{
	/* The runtime's error codes are the driver's. */
	return (CUresult)cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), args, 0, stream);
}

CUresult kernel_empty(CUstream stream)
{
	return launch((const void *)empty, 1, 32, NULL, stream);
}

CUresult kernel_trap(CUstream stream)
{
	return launch((const void *)trap, 1, 1, NULL, stream);
}

CUresult kernel_spin(double us, CUdeviceptr stop, int wide, CUstream stream)
{
	uint64_t ns = (uint64_t)(us * 1e3);
	void *args[] = { &ns, &stop };

	return launch((const void *)spin, wide ? processors() * 2 : 1, wide ? 1024 : 1, args, stream);
}

CUresult kernel_read(CUdeviceptr from, size_t bytes, CUdeviceptr sink, CUstream stream)
{
	size_t n = bytes / sizeof(ulonglong2);
	void *args[] = { &from, &n, &sink };

	return launch((const void *)sum, blocks_for(bytes), THREADS, args, stream);
}

CUresult kernel_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	size_t n = bytes / sizeof(ulonglong2);
	void *args[] = { &to, &from, &n };

	return launch((const void *)copy, blocks_for(bytes), THREADS, args, stream);
}
