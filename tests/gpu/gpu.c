/*
 * gpu.c - see gpu.h.
 */
#include "gpu.h"

#include <stdio.h>
#include <string.h>

#include "neighbour.h"

CUmemAllocationProp chunk_prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
};
const CUmemAccessDesc chunk_access = {
	.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

void check_cu(CUresult r, const char *call)
{
	const char *name = NULL;

	if (r == CUDA_SUCCESS)
		return;
	if (!cu.GetErrorName || cu.GetErrorName(r, &name))
		name = NULL;
	die("%.*s: error %d, %s", (int)strcspn(call, "("), call, (int)r, name ? name : "unknown");
}

void gpu_start(void)
{
	const char *why = driver_start();
	int rdma;

	if (why)
		does_not_apply("%s", why);
	if (!cu.DeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0) && rdma)
		chunk_prop.allocFlags.gpuDirectRDMACapable = 1;
	neighbour_begin();
}

int gpu_count(void)
{
	int n;

	CU(DeviceGetCount(&n));
	return n;
}

size_t gpu_free(void)
{
	size_t available, total;

	CU(MemGetInfo(&available, &total));
	return available;
}

CUstream new_stream(void)
{
	CUstream s;

	CU(StreamCreate(&s, CU_STREAM_NON_BLOCKING));
	return s;
}

CUevent new_event(unsigned flags)
{
	CUevent e;

	CU(EventCreate(&e, flags | CU_EVENT_DISABLE_TIMING));
	return e;
}

CUdeviceptr new_memory(size_t bytes)
{
	CUdeviceptr p;

	CU(MemAlloc(&p, bytes));
	return p;
}

void *new_pinned(size_t bytes)
{
	void *p;

	CU(MemHostAlloc(&p, bytes, CU_MEMHOSTALLOC_DEVICEMAP));
	memset(p, 1, bytes);
	return p;
}

CUdeviceptr address_of(void *pinned)
{
	CUdeviceptr at;

	CU(MemHostGetDevicePointer(&at, pinned, 0));
	return at;
}

#define RATE(out, bytes, call)                                                                 \
	do {                                                                                   \
		struct samples us = { .n = 0 };                                                \
		for (struct repeat r = repeat(7); again(&r);) {                                \
			double t0 = now_us();                                                  \
			call;                                                                  \
			CU(StreamSynchronize(s));                                              \
			took(&r, &us, now_us() - t0);                                          \
		}                                                                              \
		(out) = (double)(bytes) / median(&us) / 1e3;                                   \
	} while (0)

struct ceilings measure_ceilings(void)
{
	size_t over_bus = quick ? 4 * MIB : 128 * MIB, within = quick ? 4 * MIB : 512 * MIB;
	/* Much more than the L2 holds. */
	size_t read = quick ? 8 * MIB : 2 * GIB;
	CUstream s = new_stream();
	CUdeviceptr to, from, sink = new_memory(64);
	struct ceilings c;
	int l2 = 0;
	void *host;

	while (within * 4 > gpu_free() && within > MIB)
		within /= 2;
	if (over_bus > within)
		over_bus = within;
	while (read > within && read + within > gpu_free() / 2)
		read /= 2;
	if (read < within)
		read = within;
	if (cu.DeviceGetAttribute(&l2, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 0))
		l2 = 0;
	c.l2 = l2;
	neighbour_pause();
	to = new_memory(within);
	from = new_memory(read);
	host = new_pinned(over_bus);
	CU(MemsetD8Async(from, 1, read, s));
	/* An idle GPU has a low clock. */
	KERNEL(kernel_spin(quick ? 1e3 : 100e3, 0, 1, s));
	RATE(c.to_device, over_bus, CU(MemcpyHtoDAsync(to, host, over_bus, s)));
	RATE(c.to_host, over_bus, CU(MemcpyDtoHAsync(host, from, over_bus, s)));
	RATE(c.within, within, CU(MemcpyDtoDAsync(to, from, within, s)));
	RATE(c.read, read, KERNEL(kernel_read(from, read, sink, s)));
	RATE(c.set, within, CU(MemsetD8Async(to, 2, within, s)));
	CU(MemFreeHost(host));
	CU(MemFree(from));
	CU(MemFree(to));
	CU(MemFree(sink));
	CU(StreamDestroy(s));
	neighbour_resume();
	return c;
}
