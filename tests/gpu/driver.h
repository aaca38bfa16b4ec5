/*
 * driver.h - the CUDA driver for programs that must start without one.
 */
#ifndef GAIA_TESTS_GPU_DRIVER_H
#define GAIA_TESTS_GPU_DRIVER_H

#include <cuda.h>
#include <stdbool.h>

#define DRIVER_ENTRIES(X)                                                                      \
	X(Init, (unsigned))                                                                    \
	X(DriverGetVersion, (int *))                                                           \
	X(GetErrorName, (CUresult, const char **))                                             \
	X(DeviceGetCount, (int *))                                                             \
	X(DeviceGet, (CUdevice *, int))                                                        \
	X(DeviceGetName, (char *, int, CUdevice))                                              \
	X(DeviceGetUuid, (CUuuid *, CUdevice))                                                 \
	X(DeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                           \
	X(DeviceCanAccessPeer, (int *, CUdevice, CUdevice))                                    \
	X(DevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                     \
	X(CtxSetCurrent, (CUcontext))                                                          \
	X(CtxSynchronize, (void))                                                              \
	X(MemGetInfo, (size_t *, size_t *))                                                    \
	X(MemAlloc, (CUdeviceptr *, size_t))                                                   \
	X(MemFree, (CUdeviceptr))                                                              \
	X(MemHostAlloc, (void **, size_t, unsigned))                                           \
	X(MemFreeHost, (void *))                                                               \
	X(MemHostRegister, (void *, size_t, unsigned))                                         \
	X(MemHostUnregister, (void *))                                                         \
	X(MemHostGetDevicePointer, (CUdeviceptr *, void *, unsigned))                          \
	X(MemcpyHtoD, (CUdeviceptr, const void *, size_t))                                     \
	X(MemcpyDtoH, (void *, CUdeviceptr, size_t))                                           \
	X(MemcpyHtoDAsync, (CUdeviceptr, const void *, size_t, CUstream))                      \
	X(MemcpyDtoHAsync, (void *, CUdeviceptr, size_t, CUstream))                            \
	X(MemcpyDtoDAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                       \
	X(MemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                       \
	X(StreamCreate, (CUstream *, unsigned))                                                \
	X(StreamDestroy, (CUstream))                                                           \
	X(StreamSynchronize, (CUstream))                                                       \
	X(StreamWaitValue32, (CUstream, CUdeviceptr, cuuint32_t, unsigned))                    \
	X(LaunchHostFunc, (CUstream, CUhostFn, void *))                                        \
	X(StreamWaitEvent, (CUstream, CUevent, unsigned))                                      \
	X(EventCreate, (CUevent *, unsigned))                                                  \
	X(EventDestroy, (CUevent))                                                             \
	X(EventRecord, (CUevent, CUstream))                                                    \
	X(EventQuery, (CUevent))                                                               \
	X(EventSynchronize, (CUevent))                                                         \
	X(IpcGetEventHandle, (CUipcEventHandle *, CUevent))                                    \
	X(IpcOpenEventHandle, (CUevent *, CUipcEventHandle))                                   \
	X(MemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,     \
		      unsigned long long))                                                     \
	X(MemRelease, (CUmemGenericAllocationHandle))                                          \
	X(MemExportToShareableHandle, (void *, CUmemGenericAllocationHandle,                   \
				       CUmemAllocationHandleType, unsigned long long))         \
	X(MemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *,               \
					 CUmemAllocationHandleType))                           \
	X(MemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(MemAddressFree, (CUdeviceptr, size_t))                                               \
	X(MemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,                  \
		   unsigned long long))                                                        \
	X(MemUnmap, (CUdeviceptr, size_t))                                                     \
	X(MemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))

struct driver {
#define X(name, args) CUresult (*name) args;
	DRIVER_ENTRIES(X)
#undef X
};
extern struct driver cu;

/*
 * NULL, or why there is no GPU to use: in one line. Makes the primary context of device 0 current.
 * In the process that is to use it, since a driver does not survive fork().
 */
const char *driver_start(void);

/*
 * An entry point ("cuMemMap") as it was in that version of CUDA (12000: 12.0); NULL: the driver has none.
 * Replaced where the driver is played.
 */
extern void *(*driver_lookup)(const char *name, int version);

#endif
