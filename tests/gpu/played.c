/*
 * played.c - gives a measuring program the fake CUDA driver, and kernels that the CPU carries out, to see that
 * it runs to its end. Its numbers mean nothing then.
 *
 *	GAIAFS_PLAYED_WAITS	set: cuMemUnmap waits for the context's streams, as some calls of a driver do
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "fake_cuda.h"
#include "kernels.h"
#include "rows.h"

/* ---- entry points that the fake driver does not have ---- */

static CUresult version(int *out)
{
	*out = 13000;
	return CUDA_SUCCESS;
}

/* Events do not go from process to process: each end makes its own. */
static CUresult get_handle(CUipcEventHandle *out, CUevent event)
{
	memset(out, 0, sizeof(*out));
	return CUDA_SUCCESS;
}

static CUresult open_handle(CUevent *out, CUipcEventHandle handle)
{
	return ((CUresult(*)(CUevent *, unsigned))fake_cuda_entry("cuEventCreate"))(out, 0);
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
	*status = CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

struct piece {
	void *to;
	const void *from;
	size_t bytes;
};

static void copy_piece(void *arg)
{
	struct piece *p = arg;

	if (fake_cuda_usable(p->to, p->bytes) && fake_cuda_usable(p->from, p->bytes))
		memcpy(p->to, p->from, p->bytes);
}

static CUresult peer_copy(CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t bytes, CUstream stream)
{
	struct piece p = { (void *)to, (void *)from, bytes };

	return fake_cuda_launch_copy(stream, copy_piece, &p, sizeof(p));
}

static CUresult enable_peer(CUcontext ctx, unsigned flags)
{
	return CUDA_SUCCESS;
}

static CUresult unmap_that_waits(CUdeviceptr at, size_t bytes)
{
	((CUresult(*)(void))fake_cuda_entry("cuCtxSynchronize"))();
	return ((CUresult(*)(CUdeviceptr, size_t))fake_cuda_entry("cuMemUnmap"))(at, bytes);
}

/* With a cache, as a GPU has one. */
static CUresult attribute(int *out, CUdevice_attribute which, CUdevice dev)
{
	if (which == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE) {
		*out = 1 << 20;
		return CUDA_SUCCESS;
	}
	return ((CUresult(*)(int *, CUdevice_attribute, CUdevice))fake_cuda_entry("cuDeviceGetAttribute"))(out, which,
													   dev);
}

static const struct {
	const char *name;
	void *function;
} more[] = {
	{ "cuDriverGetVersion", version },	  { "cuIpcGetEventHandle", get_handle },
	{ "cuIpcOpenEventHandle", open_handle }, { "cuStreamIsCapturing", is_capturing },
	{ "cuMemcpyPeerAsync", peer_copy },
	{ "cuCtxEnablePeerAccess", enable_peer },
};

static void *lookup(const char *name)
{
	void *function = fake_cuda_entry(name);

	if (getenv("GAIAFS_PLAYED_WAITS") && !strcmp(name, "cuMemUnmap"))
		return unmap_that_waits;
	if (!strcmp(name, "cuDeviceGetAttribute"))
		return attribute;
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]) && !function; i++)
		if (!strcmp(more[i].name, name))
			function = more[i].function;
	return function;
}

static void *lookup_version(const char *name, int version)
{
	return lookup(name);
}

/* The client library's, in a program that has it. */
extern void *(*cuda_lookup)(const char *name) __attribute__((weak));

__attribute__((constructor)) static void play(void)
{
	driver_lookup = lookup_version;
	if (&cuda_lookup)
		cuda_lookup = lookup;
	rows_simulated();
}

/* ---- kernels ---- */

static void nothing(void *arg)
{
}

CUresult kernel_empty(CUstream stream)
{
	return fake_cuda_launch(stream, nothing, NULL);
}

CUresult kernel_trap(CUstream stream)
{
	fake_cuda_fail_later(1, CUDA_ERROR_LAUNCH_FAILED);
	return kernel_empty(stream);
}

struct spin {
	double us;
	const uint32_t *stop;
};

static void spin(void *arg)
{
	struct spin *s = arg;
	double until = now_us() + s->us;

	while (now_us() < until && !(s->stop && __atomic_load_n(s->stop, __ATOMIC_ACQUIRE)))
		nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
}

CUresult kernel_spin(double us, CUdeviceptr stop, int wide, CUstream stream)
{
	struct spin s = { us, (const uint32_t *)stop };

	return fake_cuda_launch_copy(stream, spin, &s, sizeof(s));
}

static void sum(void *arg)
{
	struct piece *p = arg;
	uint64_t total = 0;

	if (!fake_cuda_usable(p->from, p->bytes))
		abort();
	for (size_t i = 0; i < p->bytes / 8; i++)
		total += ((const uint64_t *)p->from)[i];
	if (total == 0x9e3779b97f4a7c15ull)
		*(uint64_t *)p->to = total;
}

CUresult kernel_read(CUdeviceptr from, size_t bytes, CUdeviceptr sink, CUstream stream)
{
	struct piece p = { (void *)sink, (void *)from, bytes };

	return fake_cuda_launch_copy(stream, sum, &p, sizeof(p));
}

CUresult kernel_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	struct piece p = { (void *)to, (void *)from, bytes };

	return fake_cuda_launch_copy(stream, copy_piece, &p, sizeof(p));
}
