/*
 * stub_driver.c - a libcuda.so.1 that has every entry point and does not start: cuInit() says
 * CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, which nothing else here does. Whoever reports that has found it.
 */
#include <cuda.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static CUresult does_not_start(unsigned flags)
{
	return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
}

static CUresult not_called(void)
{
	return CUDA_ERROR_NOT_INITIALIZED;
}

#undef cuGetProcAddress
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags,
				    CUdriverProcAddressQueryResult *found)
{
	*out = strcmp(name, "cuInit") == 0 ? (void *)does_not_start : (void *)not_called;
	if (found)
		*found = CU_GET_PROC_ADDRESS_SUCCESS;
	return CUDA_SUCCESS;
}
