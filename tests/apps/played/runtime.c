/*
 * runtime.c - what runtime.h says, by the fake driver.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "runtime.h"

#define GPUS 2
#define CALL(entry, types, ...) ((CUresult(*) types)fake_cuda_entry(entry))(__VA_ARGS__)

extern void *(*cuda_lookup)(const char *name); /* the client library's */

static _Thread_local int device; /* CUDA's current one */

/* Memory of cudaMalloc(), which can be touched while anybody computes or copies. */
static struct {
	pthread_mutex_t lock;
	struct {
		void *p;
		size_t n;
	} piece[256];
	unsigned n, users;
} own = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void protect(int prot)
{
	for (unsigned i = 0; i < own.n; i++)
		if (mprotect(own.piece[i].p, own.piece[i].n, prot))
			abort();
}

static void begin_use(void)
{
	pthread_mutex_lock(&own.lock);
	if (!own.users++)
		protect(PROT_READ | PROT_WRITE);
	pthread_mutex_unlock(&own.lock);
}

static void end_use(void)
{
	pthread_mutex_lock(&own.lock);
	if (!--own.users)
		protect(PROT_NONE);
	pthread_mutex_unlock(&own.lock);
}

/* Makes the GPU's context this thread's. */
static CUresult enter(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static CUcontext context[GPUS];
	CUresult err = CUDA_SUCCESS;

	pthread_mutex_lock(&lock);
	if (!context[device]) {
		err = CALL("cuInit", (unsigned), 0);
		err = err ? err : CALL("cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice), &context[device], device);
	}
	pthread_mutex_unlock(&lock);
	return err ? err : CALL("cuCtxSetCurrent", (CUcontext), context[device]);
}

static bool is_device_memory(const void *p)
{
	CUmemorytype type;

	return !CALL("cuPointerGetAttribute", (void *, CUpointer_attribute, CUdeviceptr), &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		     (CUdeviceptr)p) &&
	       type == CU_MEMORYTYPE_DEVICE;
}

static CUresult synchronize(void)
{
	return CALL("cuCtxSynchronize", (void));
}

cudaError_t cudaGetDeviceCount(int *n)
{
	CUresult err = CALL("cuInit", (unsigned), 0);

	return (int)(err ? err : CALL("cuDeviceGetCount", (int *), n));
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int gpu)
{
	CUuuid found;
	CUresult err = CALL("cuDeviceGetUuid", (CUuuid *, CUdevice), &found, gpu);

	memcpy(prop->uuid.bytes, found.bytes, sizeof(found.bytes));
	return (int)err;
}

cudaError_t cudaSetDevice(int gpu)
{
	if (gpu < 0 || gpu >= GPUS)
		return CUDA_ERROR_INVALID_DEVICE;
	device = gpu;
	return (int)enter();
}

cudaError_t cudaGetDevice(int *gpu)
{
	*gpu = device;
	return CUDA_SUCCESS;
}

cudaError_t cudaDeviceSynchronize(void)
{
	CUresult err = enter();

	return (int)(err ? err : synchronize());
}

cudaError_t cudaMalloc(void **out, size_t n)
{
	CUresult err = enter();

	err = err ? err : CALL("cuMemAlloc", (CUdeviceptr *, size_t), (CUdeviceptr *)out, n);
	if (err)
		return (int)err;
	begin_use();
	pthread_mutex_lock(&own.lock);
	if (own.n == sizeof(own.piece) / sizeof(own.piece[0]))
		abort(); /* more than expected: make own.piece longer */
	own.piece[own.n].p = *out;
	own.piece[own.n++].n = n;
	pthread_mutex_unlock(&own.lock);
	end_use();
	return CUDA_SUCCESS;
}

cudaError_t cudaFree(void *p)
{
	CUresult err = enter();

	begin_use();
	pthread_mutex_lock(&own.lock);
	for (unsigned i = 0; i < own.n; i++)
		if (own.piece[i].p == p)
			own.piece[i] = own.piece[--own.n];
	pthread_mutex_unlock(&own.lock);
	err = err ? err : CALL("cuMemFree", (CUdeviceptr), (CUdeviceptr)p);
	end_use();
	return (int)err;
}

cudaError_t cudaMallocHost(void **out, size_t n)
{
	CUresult err = enter();

	return (int)(err ? err : CALL("cuMemHostAlloc", (void **, size_t, unsigned), out, n, 0));
}

cudaError_t cudaFreeHost(void *p)
{
	return (int)CALL("cuMemFreeHost", (void *), p);
}

cudaError_t cudaMallocManaged(void **out, size_t n)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, int kind)
{
	CUresult err = enter();
	bool to_gpu = is_device_memory(to), from_gpu = is_device_memory(from);

	begin_use();
	if (err || !n)
		;
	else if (to_gpu && from_gpu)
		err = CALL("cuMemcpyDtoDAsync", (CUdeviceptr, CUdeviceptr, size_t, CUstream), (CUdeviceptr)to, (CUdeviceptr)from, n, NULL);
	else if (to_gpu)
		err = CALL("cuMemcpyHtoD", (CUdeviceptr, const void *, size_t), (CUdeviceptr)to, from, n);
	else if (from_gpu)
		err = CALL("cuMemcpyDtoH", (void *, CUdeviceptr, size_t), to, (CUdeviceptr)from, n);
	else
		memcpy(to, from, n);
	err = err ? err : synchronize();
	end_use();
	return (int)err;
}

cudaError_t cudaMemset(void *p, int byte, size_t n)
{
	CUresult err = enter();

	begin_use();
	err = err ? err : CALL("cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream), (CUdeviceptr)p, (unsigned char)byte, n, NULL);
	err = err ? err : synchronize();
	end_use();
	return (int)err;
}

const char *cudaGetErrorString(cudaError_t err)
{
	static _Thread_local char text[32];

	snprintf(text, sizeof(text), "CUDA error %d", err);
	return text;
}

/* None of a kernel's parameters may be an address of the host's. (Addresses that are only reserved are nobody's.) */
static void refuse_host_memory(const char *parameters, size_t bytes)
{
	for (size_t at = 0; at + sizeof(void *) <= bytes; at += sizeof(void *)) {
		char byte;
		struct iovec here = { &byte, 1 }, there = { .iov_len = 1 };

		memcpy(&there.iov_base, parameters + at, sizeof(there.iov_base));
		if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != 1 || is_device_memory(there.iov_base))
			continue;
		fprintf(stderr, "a kernel is given an address of the host's, %p, in byte %zu of its parameters\n", there.iov_base, at);
		abort();
	}
}

cudaError_t played_launch(void (*run)(void *arg), const void *arg, size_t bytes, size_t first)
{
	CUresult err = enter();

	refuse_host_memory((const char *)arg + first, bytes - first);
	begin_use();
	err = err ? err : fake_cuda_launch_copy(NULL, run, arg, bytes);
	err = err ? err : synchronize();
	end_use();
	return (int)err;
}

__attribute__((constructor)) static void play(void)
{
	cuda_lookup = fake_cuda_entry;
}

__attribute__((destructor)) static void be_strict(void)
{
	const char *violation = fake_cuda_violation();

	if (!violation)
		return;
	fprintf(stderr, "the driver was called wrongly: %s\n", violation);
	_exit(1);
}
