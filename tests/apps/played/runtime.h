/*
 * runtime.h - the functions of CUDA's runtime that the applications call, with CUDA's names. They return the driver's errors.
 */
#ifndef GAIA_TESTS_PLAYED_RUNTIME_H
#define GAIA_TESTS_PLAYED_RUNTIME_H

#include <stddef.h>

#define cudaSuccess 0
#define cudaMemcpyDefault 4

struct cudaDeviceProp {
	struct {
		char bytes[16];
	} uuid;
};

typedef int cudaError_t;

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaMalloc(void **out, size_t n);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **out, size_t n);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMallocManaged(void **out, size_t n);
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, int kind);
cudaError_t cudaMemset(void *p, int byte, size_t n);
const char *cudaGetErrorString(cudaError_t err);

/*
 * @run with a copy of @arg, as a kernel on the default stream; waits for its end. What kernels get begins at byte @first of it, and may
 * have no address of the host's: that ends the program.
 */
cudaError_t played_launch(void (*run)(void *arg), const void *arg, size_t bytes, size_t first);

#ifdef __cplusplus
}
#endif
#endif
