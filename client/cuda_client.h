/*
 * cuda_client.h - what the library's CUDA files share: the driver, and the library's side of a
 * mapping on a GPU.
 *
 * The driver is loaded when a GPU is first asked for, and never linked: without it the library still serves
 * other kinds of devices. cuda.c maps chunks; cuda_stream.c queues acquires and
 * releases on streams; cuda_detect.c finds what has changed.
 */
#ifndef GAIA_CLIENT_CUDA_CLIENT_H
#define GAIA_CLIENT_CUDA_CLIENT_H

#include <cuda.h>

#include "internal.h"

/* The entry points used, by their documented names without "cu". */
#define CUDA_ENTRY_POINTS(X)                                                                   \
	X(Init, (unsigned flags))                                                              \
	X(DeviceGetCount, (int *count))                                                        \
	X(DeviceGet, (CUdevice *dev, int ordinal))                                             \
	X(DeviceGetUuid, (CUuuid *uuid, CUdevice dev))                                         \
	X(DevicePrimaryCtxRetain, (CUcontext *ctx, CUdevice dev))                              \
	X(DevicePrimaryCtxRelease, (CUdevice dev))                                             \
	X(CtxGetCurrent, (CUcontext *ctx))                                                     \
	X(CtxGetDevice, (CUdevice *dev))                                                       \
	X(CtxPushCurrent, (CUcontext ctx))                                                     \
	X(CtxPopCurrent, (CUcontext *ctx))                                                     \
	X(CtxSynchronize, (void))                                                              \
	X(MemAddressReserve, (CUdeviceptr *at, size_t size, size_t align, CUdeviceptr hint,    \
			      unsigned long long flags))                                       \
	X(MemAddressFree, (CUdeviceptr at, size_t size))                                       \
	X(MemImportFromShareableHandle, (CUmemGenericAllocationHandle *handle, void *from,     \
					 CUmemAllocationHandleType type))                      \
	X(MemMap, (CUdeviceptr at, size_t size, size_t offset,                                 \
		   CUmemGenericAllocationHandle handle, unsigned long long flags))             \
	X(MemUnmap, (CUdeviceptr at, size_t size))                                             \
	X(MemSetAccess, (CUdeviceptr at, size_t size, const CUmemAccessDesc *desc,             \
			 size_t count))                                                        \
	X(MemRelease, (CUmemGenericAllocationHandle handle))                                   \
	X(MemHostRegister, (void *at, size_t size, unsigned flags))                            \
	X(MemHostUnregister, (void *at))                                                       \
	X(MemHostGetDevicePointer, (CUdeviceptr *out, void *at, unsigned flags))               \
	X(ThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode))                        \
	X(StreamGetCtx, (CUstream stream, CUcontext *ctx))                                     \
	X(StreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status))                 \
	X(StreamSynchronize, (CUstream stream))                                                \
	X(StreamWaitValue32, (CUstream stream, CUdeviceptr at, cuuint32_t value,               \
			      unsigned flags))                                                 \
	X(LaunchHostFunc, (CUstream stream, CUhostFn fn, void *arg))

struct cuda_api {
#define X(name, args) CUresult (*name) args;
	CUDA_ENTRY_POINTS(X)
#undef X
};

/* Valid after cuda_load(). */
extern struct cuda_api cuda_api;

/* The function of an entry point ("cuMemMap"), or NULL; tests replace it. */
extern void *(*cuda_lookup)(const char *name);

/*
 * Each acquire or release that is queued has a word of its own, for which its stream waits. A mapping's
 * words are in one page.
 */
#define CUDA_FLAGS (GAIA_PAGE / sizeof(uint32_t))

struct cuda_detect;

/* mapping.own of a mapping on a GPU. */
struct cuda_mapping {
	/* Constant. */
	CUdevice dev;
	CUcontext ctx;
	bool retained; /* ctx is the primary context, which the library has retained */
	uint32_t *flag; /* host memory that the device sees; NULL: the driver refused it */
	CUdeviceptr flag_dev; /* the same for the device */
	struct cuda_detect *detect; /* what finding changes takes; NULL: it is not done here */

	atomic_bool used; /* something was mapped, or queued */

	/* turns_lock. */
	uint32_t awaited[CUDA_FLAGS]; /* the value last waited for in each word */
	uint32_t reached[CUDA_FLAGS]; /* the value last written to each word; kept when the page is gone */
	uint64_t taken[CUDA_FLAGS / 64];

	/* Used by the thread that has made the mapping busy; in the end, by the one that has forgotten the mapping. */
	uint64_t placed[]; /* one bit for each chunk: something is mapped there */
};

/*
 * A group of driver calls. While the program captures a graph, in any thread, CUDA forbids many calls
 * in all threads, and such a call spoils the graph, unless the calling thread has declared that its
 * calls have nothing to do with graphs (relaxed mode).
 */
struct cuda_scope {
	bool relaxed, entered;
	CUstreamCaptureMode before; /* relaxed: the thread's mode before */
};

/* 0, or the nearest negative errno. */
int cuda_errno(CUresult result);

/* Whether the call failed because a stream of the context is being captured. Independent of the thread's mode. */
bool cuda_is_captured(CUresult result);

void cuda_begin(struct cuda_scope *s);
/* Make the mapping's context current until cuda_leave() or cuda_end(). Each scope is used once. */
CUresult cuda_enter(struct cuda_scope *s, const struct cuda_mapping *c);
void cuda_leave(struct cuda_scope *s);
void cuda_end(struct cuda_scope *s);

/*
 * Make and free the mapping's flags. Both may wait for all streams, so calls on a stream make
 * neither. In the mapping's context. @ended: no stream looks at the flags any more.
 */
void cuda_flags_make(struct cuda_mapping *c);
void cuda_flags_end(struct cuda_mapping *c, bool ended);

/* kind_ops.detect_make, .detect */
int cuda_detect_make(struct mapping *m, struct detect *d);
int cuda_detect(struct mapping *m, const struct detect_runs *rs, bool compare);
/* The same as the latter, queued on a stream. In the mapping's context. */
int cuda_detect_on(const struct mapping *m, const struct detect_runs *rs, bool compare, CUstream stream);
/* A number of the stream that no other ever has; 0: not known. */
uint64_t cuda_detect_stream(CUstream stream);
/* As cuda_flags_end(). */
void cuda_detect_end(struct cuda_mapping *c, bool ended);

/* kind_ops.queue */
int cuda_queue(struct mapping *m, const struct gaia_ioc_range *io, bool release,
	       struct CUstream_st *stream);

#endif
