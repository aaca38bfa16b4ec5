/*
 * cuda.h - acquire and release in the order of a CUDA stream.
 *
 *	gaia_acquire_on(p, len, PROT_READ | PROT_WRITE, stream);
 *	kernel<<<blocks, threads, 0, stream>>>(p, len);
 *	gaia_release_on(p, len, stream);
 *	...
 *	cudaStreamSynchronize(stream);			now it is released
 *
 * For a mapping on a CUDA device, made by gaia_mmap() of client.h. This header needs no header and no
 * library of CUDA.
 */
#ifndef GAIA_CUDA_H
#define GAIA_CUDA_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* what a cudaStream_t, and a CUstream, points to */

/*
 * Like gaia_acquire() and gaia_release() of client.h, but in the order of the stream: each is carried
 * out when the work queued on the stream before it has completed, and work queued after it begins
 * when it is done. The calls wait for neither. So when cudaStreamSynchronize() returns, everybody
 * sees what was released on the stream. (An acquire sees what others wrote until it is carried out,
 * not only until the call. But if the file grows after the call, the new part may not be mapped yet:
 * acquire it again.)
 *
 * The call itself maps what an acquire needs, so that nothing is left to map while the stream waits.
 * To map memory that was not mapped before, the driver may wait for all work of the context, as it may in
 * gaia_mmap(), gaia_munmap() and gaia_acquire(): do not have that work wait for the calling thread.
 *
 * The stream must belong to the mapping's context: the context that was current in the thread that
 * called gaia_mmap(), if it was one of the mapping's device, else the device's primary context,
 * which the runtime API uses. That context must live as long as the mapping. 0
 * means the legacy default stream; where each thread has its own default stream, pass cudaStreamPerThread.
 *
 * Errors come in two ways.
 *  - The call returns -1, sets errno, and has queued nothing: errors in the arguments; ENOMEM when
 *    the range does not fit the device (room for it is made and held at once); ENOTCONN; EINTR, as from
 *    gaia_acquire(); and
 *	EINVAL	also: the stream is of another context, or is being captured, or is the legacy default
 *		stream while another stream of the context is
 *	EAGAIN	1024 acquires and releases of the mapping are queued already
 *	EIO	the driver refuses, or the context is broken; cudaGetLastError() may say more. Always, if
 *		the driver had no page-locked host memory (4 KiB) when the mapping was made
 *  - An error that occurs when the operation's turn has come (EIO, ENOTCONN when the daemon ends, ...)
 *    does not stop the stream: work queued behind a failed acquire runs, on memory that is there, but
 *    whose contents are undefined. The first such error of a mapping is kept; it is kept before the
 *    stream goes on. The next call on the mapping reports it (-1 and errno), and does nothing else:
 *    gaia_acquire_on(), gaia_release_on(), gaia_acquire(), gaia_release(), gaia_acquire_start(), gaia_sync(),
 *    gaia_advise(); or gaia_munmap(), which does unmap. To learn of errors: synchronize with the
 *    stream, then call gaia_stream_error(). Room that a failed acquire held stays taken until gaia_munmap().
 *
 * gaia_munmap() waits for all work of the context, and for what is queued here, before it unmaps. When
 * the context is broken, destroyed or reset it cannot wait: it unmaps what the driver allows, and succeeds.
 *
 * Calls of client.h, and of this header on other streams, do not disturb captures
 * (cudaStreamBeginCapture()) in whatever thread and mode, with one exception. CUDA lets nobody wait
 * for a context while one of its streams is captured: then gaia_munmap() fails with EBUSY, and if the
 * stream is a non-blocking one CUDA may invalidate the capture. Unmap before or after captures.
 * Host functions (cudaLaunchHostFunc()) must not call functions of client.h or of this header: CUDA
 * allows them no CUDA calls, and ours make some, or wait for a thread that does.
 * On a device that cannot wait for memory in a stream, the calls wait instead. A simulated device has
 * no streams: there they act at once, like gaia_acquire() and gaia_release(), whatever the stream; so
 * code for streams can be written without a GPU.
 *
 * gaia_acquire_start() of client.h is for the host: it begins at once, whatever streams do, and kernels that use the range may be launched, on any
 * stream, when gaia_wait() has returned 0. Use it to have data ready before a kernel needs it; use gaia_acquire_on() where the host should not wait
 * at all. Where it maps memory that was not mapped before, it may take until all work of the context is done, as above.
 */
int gaia_acquire_on(void *addr, size_t length, int prot, struct CUstream_st *stream);
int gaia_release_on(void *addr, size_t length, struct CUstream_st *stream);

/*
 * The first error of a turn that had come (see above) in the mapping that ptr is in, and that no call has reported yet: an errno, which
 * then counts as reported, so that the next call on the mapping does its work; 0: there is none. gaia_last_error_text() says which bytes it
 * concerns. It waits for nothing. -1 and errno: EINVAL: ptr is in no mapping; ENOTCONN: in one of the parent's, and this is a child of fork().
 */
int gaia_stream_error(const void *ptr);

/*
 * Which device of fd's mount (any descriptor on it) is the GPU that this process knows as CUDA device ordinal (cudaSetDevice()):
 * its index in gaia_devices()'s array, found by the GPU's UUID. It loads the driver. ENODEV: the process sees no such GPU, the mount does
 * not share it, or the library was built without CUDA. EBUSY, EIO: the driver cannot be used.
 */
int gaia_device_of_cuda(int fd, int ordinal);

#ifdef __cplusplus
}
#endif
#endif
