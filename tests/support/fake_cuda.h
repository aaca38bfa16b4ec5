/*
 * fake_cuda.h - a CUDA driver in this process, as strict as the documentation.
 *
 * It has the entry points that gaiafs uses, by name, and memory that really is shared: an
 * allocation is a memfd, a mapping of it an mmap(2), so that a device pointer is good for the CPU
 * ("kernels" are functions queued with fake_cuda_launch()), and another process that
 * imports an exported descriptor shares the memory. It is simulated: it says nothing about speed.
 *
 * Stricter than the real one, never kinder. What breaks a rule of the documentation
 * (a double map, a partial unmap, a wrong granularity or offset, a copy beyond an
 * allocation or across two registrations, a call in a host function, a use in a
 * forked child) fails, and is noted as a violation. Mapped memory without access cannot be
 * touched, by a GPU that was not given any itself, nor can freed memory. The destination of a copy is garbage from the moment that
 * the stream comes to it, at once on an idle stream, until the copy lands.
 *
 * Calls that end something (free, unmap, destroy, release, unregister) take effect even when
 * they are made to fail: on a real device they report earlier errors like that.
 */
#ifndef GAIA_TESTS_FAKE_CUDA_H
#define GAIA_TESTS_FAKE_CUDA_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

struct fake_cuda_config {
	unsigned n_devices;	/* 0: cuInit says CUDA_ERROR_NO_DEVICE */
	unsigned first;		/* ordinal 0 is GPU number `first`, as CUDA_VISIBLE_DEVICES would have it */
	size_t memory;		/* bytes a device; a multiple of 2 MiB */
	size_t granularity;	/* bytes; 0: 2 MiB */
	bool no_peers;		/* no GPU can read another's memory */

	/* Modes, see below. */
	bool register_waits, access_waits, map_waits, unmap_waits, alloc_waits;
};

/*
 * Modes make the fake do what a real driver may do and mostly does not, or does where it is short of
 * something. Each is a field of the configuration, and a word of the environment variable FAKE_CUDA
 * (words separated by commas, "waits,latency=50"), so that a whole suite runs in it. It is read
 * by fake_cuda_reset() and by the first call on the default configuration; a mode is
 * on when either says so, a number is the configuration's own where that has one. An unknown word aborts.
 *
 * register_waits	cuMemHostRegister, cuMemHostUnregister
 * access_waits		cuMemSetAccess
 * map_waits		cuMemMap
 * unmap_waits		cuMemUnmap
 * alloc_waits		cuMemAlloc, cuMemFree, cuMemHostAlloc, cuMemFreeHost, cuMemCreate, cuMemRelease
 * waits		all of these
 *	The call returns after all work that was queued before it: of all streams, in all contexts, of every
 *	GPU whose page tables it changes (cuMemMap, cuMemCreate, cuMemRelease: of the memory's GPU, of all GPUs
 *	where it is imported memory; cuMemSetAccess: of the GPU that gets access; cuMemUnmap: also of
 *	those with access; pinned host memory: of all GPUs, as unified addressing maps it for all).
 *	Host functions and cuStreamWaitValue32() are work. Other calls go on meanwhile.
 *	Documented: any call may block or synchronize ("API synchronization behavior"); cuMemFree() "may
 *	perform implicit synchronization"; allocations of device and of page-locked memory are implicit
 *	synchronization (programming guide). Of registration and the virtual memory calls nothing is
 *	said on either side. Assumed: whom they wait for. Contexts are no bound, as the virtual memory calls
 *	know none.
 */

/* Before the first call, and again between tests; nothing may be alive. Default: one GPU of 64 MiB. */
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

/* With a copy of the @bytes at @arg, as a kernel's arguments are copied. */
CUresult fake_cuda_launch_copy(CUstream stream, void (*fn)(void *arg), const void *arg,
			       size_t bytes);

/*
 * Whether a kernel or a copy may use the bytes: device memory with access, or pinned host memory. On the GPU of
 * the stream whose kernel asks; else on that of the current context.
 */
bool fake_cuda_usable(const void *p, size_t bytes);

/* ---- making things go wrong ---- */

/*
 * The @nth call from now (1: the next) to @entry (NULL: to any) fails with @result. @sticky: as do all
 * calls after it, as with a broken context. One is armed at a time.
 */
void fake_cuda_fail(const char *entry, unsigned nth, CUresult result, bool sticky);

/* The @nth copy, memset or kernel from now is not carried out, and breaks the context when it is due. */
void fake_cuda_fail_later(unsigned nth, CUresult result);

/* Whether what was armed has failed. Disarms. */
bool fake_cuda_failed(void);

/* Calls since fake_cuda_reset(). */
unsigned fake_cuda_calls(void);

/* Of them, those to one entry point, or to fake_cuda_launch() ("launch"). */
unsigned fake_cuda_calls_of(const char *entry);

/* How many calls wait for streams now because a mode says so. */
unsigned fake_cuda_waiting(void);

/* ---- what to assert ---- */

/* The first rule that was broken since fake_cuda_reset(), in words; NULL: none. */
const char *fake_cuda_violation(void);

/* What is alive: handles, mappings, reservations, allocations, registrations, streams, events,
 * contexts. @say: name them on standard error. */
unsigned fake_cuda_alive(bool say);

/* Bytes of device memory in use. */
size_t fake_cuda_used(void);

#endif
