/*
 * fake_cuda.h - a CUDA driver in this process, as strict as the documentation.
 *
 * It has the entry points that gaiafs uses, by name, and memory that really is shared: an
 * allocation is a memfd, a mapping of it an mmap(2), so that a device pointer is good for the CPU
 * ("kernels" are functions queued with fake_cuda_launch()), and another process that
 * imports an exported descriptor shares the memory. It is simulated: it says nothing about speed.
 *
 * It is stricter than the real one, never kinder. A call that breaks a rule of the documentation
 * (a double map, a partial unmap, a wrong granularity or offset, a copy beyond an
 * allocation or across two registrations, a call in a host function, a use in a
 * forked child) fails, and is noted as a violation. Mapped memory without access cannot be
 * touched, not even by a GPU that was not given access itself, nor can freed memory. The destination of a copy is garbage from the
 * moment that the stream reaches it, at once on an idle stream, until the copy lands.
 *
 * Calls that end something (free, unmap, destroy, release, unregister) take effect even when
 * they are made to fail: on a real device such calls report earlier errors. (But see broken_frees. And if a
 * cuMemUnmap() of several mappings fails while no context is broken, it has unmapped none. In a broken context nobody can
 * tell, and unmapping again what is not mapped breaks no rule.)
 */
#ifndef GAIA_TESTS_FAKE_CUDA_H
#define GAIA_TESTS_FAKE_CUDA_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_cuda_config {
	unsigned n_devices;	/* 0: cuInit returns CUDA_ERROR_NO_DEVICE */
	unsigned first;		/* ordinal 0 is GPU number `first`, as CUDA_VISIBLE_DEVICES would have it */
	size_t memory;		/* bytes a device; a multiple of 2 MiB */
	size_t granularity;	/* bytes; 0: 2 MiB */
	bool no_peers;		/* no GPU can read another's memory */

	/* Modes, see below. */
	bool register_waits, access_waits, map_waits, unmap_waits, alloc_waits;
	bool broken_frees;
	unsigned latency;	/* microseconds a call */
	bool no_pins;
	size_t pins;		/* bytes that can be registered; 0: any */
	unsigned descriptors;	/* of exported memory, open at a time; 0: any */
	unsigned mappings;	/* of each GPU's memory, at a time; 0: any */
	bool busy_importers;
	CUcomputemode compute_mode;
	bool taken;		/* by another process */
	bool no_rdma;
	bool single_unmaps;
	bool no_copy_batch;
};

/*
 * Modes make the fake do what a real driver may do but mostly does not, or does when it is short
 * of something. Each is a field of the configuration, and a word of the environment variable
 * FAKE_CUDA (words separated by commas, "waits,latency=50"), so that a whole suite can run in it. The
 * variable is read by fake_cuda_reset() and by the first call on the default configuration. A mode is on
 * if either says so; a number in the configuration takes precedence. An unknown word
 * aborts.
 *
 * register_waits	cuMemHostRegister, cuMemHostUnregister
 * access_waits		cuMemSetAccess
 * map_waits		cuMemMap
 * unmap_waits		cuMemUnmap
 * alloc_waits		cuMemAlloc, cuMemFree, cuMemHostAlloc, cuMemFreeHost, cuMemCreate, cuMemRelease
 * waits		all of these
 *	The call takes effect after all work that was queued before it: of all streams, in all
 *	contexts, of every GPU whose page tables it changes (cuMemMap, cuMemCreate, cuMemRelease:
 *	of the memory's GPU, or of all GPUs where it is imported memory; cuMemSetAccess: of the
 *	GPU that gets access; cuMemUnmap: also of those with access; pinned host memory: of all
 *	GPUs, as unified addressing maps it for all). Host functions and cuStreamWaitValue32() are
 *	work. Other calls go on meanwhile. Documented: any call may block or synchronize ("API
 *	synchronization behavior"). cuMemUnmap() and cuMemSetAccess() bear the note that they are
 *	synchronous in most cases. cuMemFree() "may perform implicit synchronization". Allocations
 *	of device and of page-locked memory are implicit synchronization (programming guide). Of
 *	registration and of cuMemMap() nothing is said on either side. Assumed: whom they wait
 *	for. Contexts are no bound, as the virtual memory calls know none.
 *
 * broken_frees
 *	In a broken context (an error that all later calls report) calls that free or end
 *	something of its GPU fail and do not take effect; else they fail and do.
 *	cuDevicePrimaryCtxReset() gives all back; nothing does where the broken context is one of
 *	cuCtxCreate(). Two take effect in any case, as they concern no context: cuMemAddressFree()
 *	where nothing is mapped, and cuDevicePrimaryCtxRelease(), which then only counts.
 *	Documented: neither. The documentation of such errors says that the process must end; that of
 *	cuDevicePrimaryCtxRelease() that the last one resets.
 *
 * latency=N		Every call takes N microseconds more; others go on meanwhile.
 *
 * no_pins		cuMemHostRegister says CUDA_ERROR_OUT_OF_MEMORY,
 * pins=N		or does so beyond N bytes, as under a limit on locked memory.
 *	Assumed: the error; that cuMemHostAlloc, whose memory the driver makes, does not count.
 *
 * descriptors=N	cuMemExportToShareableHandle says CUDA_ERROR_OPERATING_SYSTEM while this
 *	process has N descriptors of exported memory open, imported ones too. Other descriptors do not
 *	count: the fake has some that a driver has not. Assumed: the error.
 *
 * mappings=N		cuMemMap says CUDA_ERROR_OUT_OF_MEMORY above N mappings of a GPU's memory.
 *	Assumed: that there is a limit at all, and the error; of each GPU, since of one for all of them the first could take
 *	all.
 *
 * busy_importers	Memory that was ever exported stays used when the last handle and mapping
 *	here are gone, until fake_cuda_importers_gone() or fake_cuda_reset(): as if another process had
 *	imported it, which the documentation says keeps it.
 *
 * exclusive, prohibited, taken
 *	compute_mode, and whether another process has a context. In exclusive-process mode of a
 *	GPU that is taken, making a context (cuDevicePrimaryCtxRetain, cuCtxCreate) says
 *	CUDA_ERROR_DEVICE_UNAVAILABLE, which that error's documentation suggests; where it is
 *	prohibited, CUDA_ERROR_UNKNOWN, as documented.
 *
 * no_rdma		No memory for RDMA:
 *	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED is 0, and cuMemCreate() with gpuDirectRDMACapable breaks a rule.
 *
 * single_unmaps	cuMemUnmap() of several mappings at once says CUDA_ERROR_INVALID_VALUE, without effect.
 *
 * no_copy_batch	There is no cuMemcpyBatchAsync, as before CUDA 12.8.
 *
 * What needs no mode:
 *
 * cuMemcpyBatchAsync() has the form of CUDA 12.8, with the index of the copy at fault (in CUDA 13's headers:
 * PFN_cuMemcpyBatchAsync_v12080). The copies are carried out from the last to the first. Documented: that they have no
 * order and must not depend on each other, which is checked; the rules for attributes; that the stream must not be the legacy
 * one. Assumed: that newer drivers keep this form, as entry points are asked for with a version; that memory which was
 * mapped by parts, and host memory that was registered, may be in one batch; that a copy must be within one allocation, as of
 * the calls for one copy; that what it has copied when it fails does not matter (one that is made to fail has copied
 * the second half of the list).
 *
 * Parameters of kernels (tests/support/fake_cuda_api.c) are copied by the launch, as documented: what they were copied from may
 * change at once. Assumed: that 24 KiB of them cost little more than 4.
 *
 * The legacy default stream (NULL, CU_STREAM_LEGACY) waits for the work that blocking streams of
 * its context have from before, and they for its. CU_STREAM_NON_BLOCKING exempts.
 * CU_STREAM_PER_THREAD is a blocking stream for each thread. As documented.
 *
 * Captures. While a stream captures, its work is checked and never carried out; the graph is a
 * token that cannot be launched. Calls that are potentially unsafe fail with
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED without any effect and invalidate the capture, by the
 * modes of the thread and of the capture as cuThreadExchangeStreamCaptureMode() documents them.
 * In any mode of the thread so do a wait for a stream that captures, or for its context, and a
 * query; use of the legacy stream while a blocking stream of the context captures
 * (CUDA_ERROR_STREAM_CAPTURE_IMPLICIT); a query of an event that was recorded in a capture
 * (CUDA_ERROR_CAPTURED_EVENT). Events take other streams into the capture; that they come back to
 * the first before it ends is not checked. Assumed: which calls are potentially unsafe; the
 * documentation names cudaMalloc() only. Here it is all that allocates, frees, registers, maps,
 * waits or queries, whatever the GPU. Known from reports: cuEventQuery() of events from before
 * the capture is one; a wait for another GPU's streams was seen to do no harm, here it does.
 *
 * cuDevicePrimaryCtxReset() ends the context's streams without carrying out what they have, its
 * events, allocations and registrations, and all handles and mappings of memory of its GPU; not
 * address reservations, nor imported memory. A broken context is mended. Until the next
 * cuDevicePrimaryCtxRetain() the context cannot be used, while what was retained is still to be
 * released. Ending once more what the reset ended fails and is no broken rule, but for streams
 * and events, whose handles are pointers. Documented: "all resources associated with the current
 * device in the current process", and that retains stay. Assumed: that this includes virtual
 * memory, which belongs to no context; that reservations stay; that it mends (some say that only
 * the end of the process does).
 *
 * cuMemUnmap() takes several whole mappings that lie side by side. Documented: "the entire
 * contiguous address range that was mapped to". Assumed: that this allows it.
 *
 * cuIpcGetEventHandle() and cuIpcOpenEventHandle() are simulated: each end has an event of its
 * own.
 */

/* Its configuration, with the modes that it is in. */
const struct fake_cuda_config *fake_cuda_mode(void);

/* Call it before the first call, and again between tests; nothing may be alive. Default: one GPU of 64 MiB. */
void fake_cuda_reset(const struct fake_cuda_config *config);

/*
 * The function of an entry point, by the name that cuGetProcAddress takes ("cuMemCreate"); NULL
 * if the fake does not have it. The signatures are those of cuda.h.
 */
void *fake_cuda_entry(const char *name);

/* The UUID of GPU number @gpu (not of the ordinal). */
void fake_cuda_uuid(unsigned gpu, unsigned char uuid[16]);

/* A kernel: @fn runs on the stream, in order. */
CUresult fake_cuda_launch(CUstream stream, void (*fn)(void *arg), void *arg);

/* The same with a copy of the @bytes at @arg, as a kernel's arguments are copied. */
CUresult fake_cuda_launch_copy(CUstream stream, void (*fn)(void *arg), const void *arg,
			       size_t bytes);

/*
 * Whether a kernel or a copy may use the bytes: device memory with access, or pinned host memory. For a kernel on the GPU of
 * its stream; otherwise on the current context's.
 */
bool fake_cuda_usable(const void *p, size_t bytes);

/* The same, where they need only be read: memory may be mapped for that alone. */
bool fake_cuda_readable(const void *p, size_t bytes);

/*
 * A kernel that programs load by cuLibraryLoadData(), whatever they load, and launch by cuLaunchKernel(): @fn is called once for a launch, with
 * a copy of its only parameter, of @bytes. Documented: all that is checked. Assumed: that loading and a first launch wait for nothing that
 * cuMemAlloc() does not wait for.
 */
void fake_cuda_kernel(const char *name, void (*fn)(void *parameter, unsigned blocks, unsigned threads), size_t bytes);

/* ---- making things go wrong ---- */

/*
 * The @nth call from now (1: the next) to @entry (NULL: to any) fails with @result. @sticky: as do all
 * calls after it, as with a broken context. One is armed at a time. (cuEventSynchronize: or a cuEventQuery that says that the
 * event has come, after which nobody need wait. One that says that it has not is no call here.)
 */
void fake_cuda_fail(const char *entry, unsigned nth, CUresult result, bool sticky);

/* The @nth copy, memset or kernel from now is not carried out, and breaks the context when it is due. */
void fake_cuda_fail_later(unsigned nth, CUresult result);

/* Whether what was armed has made a call fail. Disarms. */
bool fake_cuda_failed(void);

/* Calls since fake_cuda_reset(). */
unsigned fake_cuda_calls(void);

/* Those of them to one entry point, or to fake_cuda_launch() ("launch"). */
unsigned fake_cuda_calls_of(const char *entry);

/* How many calls wait for streams now because a mode says so. */
unsigned fake_cuda_waiting(void);

/* ---- what to assert ---- */

/* The first rule that was broken since fake_cuda_reset(), as a text; NULL: none. */
const char *fake_cuda_violation(void);

/* What is alive: handles, mappings, reservations, allocations, registrations, streams, events,
 * contexts. @say: name them on standard error. */
unsigned fake_cuda_alive(bool say);

/* Bytes of device memory in use. */
size_t fake_cuda_used(void);

/* What was asked of the driver since fake_cuda_reset(), whether or not it has been carried out. */
struct fake_cuda_traffic {
	unsigned calls;	   /* of all entry points, launches included */
	unsigned launches;
	unsigned copies;   /* ranges that copy engines were told to copy */
	uint64_t parameters; /* bytes of kernels' parameters; see fake_cuda_kernel_says() */
	uint64_t in, out, within; /* bytes of those copies: host to device, device to host, among devices */
	uint64_t read, written;	  /* bytes of host memory, across the bus, by kernels that say so */
};
struct fake_cuda_traffic fake_cuda_traffic(void);

/* Adds bytes: what a kernel was launched with, and what of host memory it reads and writes. */
void fake_cuda_kernel_says(uint64_t parameters, uint64_t read, uint64_t written);

/* Handles of memory that was created with gpuDirectRDMACapable. */
unsigned fake_cuda_rdma_capable(void);

/* Importers that keep memory (busy_importers) give it up. */
void fake_cuda_importers_gone(void);

#endif
