/*
 * api.h - what the CUDA device needs of CUDA: one table of functions.
 *
 * driver.c fills it from the installed driver, through the statically linked CUDA runtime, so
 * that no binary needs libcuda to start; tests fill it from a fake. The rest of the device calls
 * CUDA only through it.
 */
#ifndef GAIA_DEVICE_CUDA_API_H
#define GAIA_DEVICE_CUDA_API_H

#include "device/cuda/launch.h"

#define CUDA_CALLS(X)                   \
	X(cuInit)                       \
	X(cuDeviceGetCount)             \
	X(cuDeviceGet)                  \
	X(cuDeviceGetUuid)              \
	X(cuDeviceGetName)              \
	X(cuDeviceGetAttribute)         \
	X(cuDeviceCanAccessPeer)        \
	X(cuDevicePrimaryCtxRetain)     \
	X(cuDevicePrimaryCtxRelease)    \
	X(cuDevicePrimaryCtxReset)      \
	X(cuCtxSetCurrent)              \
	X(cuMemGetInfo)                 \
	X(cuMemGetAllocationGranularity) \
	X(cuMemCreate)                  \
	X(cuMemRelease)                 \
	X(cuMemExportToShareableHandle) \
	X(cuMemAddressReserve)          \
	X(cuMemAddressFree)             \
	X(cuMemMap)                     \
	X(cuMemUnmap)                   \
	X(cuMemSetAccess)               \
	X(cuMemAlloc)                   \
	X(cuMemFree)                    \
	X(cuMemHostAlloc)               \
	X(cuMemFreeHost)                \
	X(cuMemHostRegister)            \
	X(cuMemHostUnregister)          \
	X(cuMemHostGetDevicePointer)    \
	X(cuMemcpyHtoDAsync)            \
	X(cuMemcpyDtoHAsync)            \
	X(cuMemcpyDtoDAsync)            \
	X(cuMemsetD8Async)              \
	X(cuStreamCreate)               \
	X(cuStreamDestroy)              \
	X(cuStreamSynchronize)          \
	X(cuEventCreate)                \
	X(cuEventDestroy)               \
	X(cuEventRecord)                \
	X(cuEventQuery)                 \
	X(cuEventSynchronize)           \
	X(cuGetErrorString)

#if CUDA_VERSION < 12080 /* of the headers */
typedef struct {
	int srcAccessOrder;
	CUmemLocation srcLocHint, dstLocHint;
	unsigned flags;
} CUmemcpyAttributes;
#define CU_MEMCPY_SRC_ACCESS_ORDER_STREAM 1
#define CU_MEMCPY_SRC_ACCESS_ORDER_ANY 3
#endif

/*
 * cuMemcpyBatchAsync() in the form of CUDA 12.8, the first that has it. Newer drivers keep this form. (The headers of
 * CUDA 13 declare another one.) @failed: which copy is at fault, or SIZE_MAX.
 */
typedef CUresult CUDAAPI cuda_copy_batch_t(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n,
					   CUmemcpyAttributes *attributes, size_t *first, size_t n_attributes,
					   size_t *failed, CUstream stream);

struct cuda_api {
#define X(name) __typeof__(&name) name;
	CUDA_CALLS(X)
#undef X
	cuda_copy_batch_t *copy_batch; /* NULL: the driver does not have it */
	__typeof__(&cuda_launch) launch;
};

/* The installed driver's functions; or NULL, with a text in *@why (which stays valid), if no driver is usable. */
const struct cuda_api *cuda_driver(const char **why);

/*
 * device_cuda_create() with that table. @copy_from: runs of this many bytes or more are copied by the
 * copy engine, shorter ones by kernels; 0: calibrate.
 */
int cuda_create(const struct cuda_api *api, const struct cuda_config *config, uint32_t copy_from,
		struct device **out);

#endif
