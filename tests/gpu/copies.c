/*
 * copies.c - how fast bytes move on this machine.
 */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "ceilings.h"
#include "gpu.h"

#define REPS 15u

/* Microseconds of what @call queues on stream @s, in *@out. */
#define TIME(out, s, call)                                       \
	do {                                                     \
		for (struct repeat r_ = repeat(REPS); again(&r_);) { \
			double t0_ = now_us();                   \
			call;                                    \
			CU(StreamSynchronize(s));                \
			took(&r_, out, now_us() - t0_);          \
		}                                                \
	} while (0)

static void put_copy(const char *what, size_t bytes, struct samples *us, double ceiling)
{
	row_begin("%s", what);
	row_number("bytes", (double)bytes);
	row_samples("us", us);
	row_rate((double)bytes, median(us), ceiling);
	row_end();
}

/* @bytes, halved until @parts of it fit into free device memory. */
static size_t at_most(size_t bytes, unsigned parts)
{
	while (bytes > CHUNK && bytes * parts > gpu_free() / 10 * 9)
		bytes /= 2;
	return bytes;
}

void section_copies(void)
{
	size_t largest;
	CUdeviceptr dev;
	CUstream s;
	void *host;

	gpu_start();
	largest = at_most(quick ? 4 * MIB : 512 * MIB, 1);
	s = new_stream();
	dev = new_memory(largest);
	host = new_pinned(largest);
	for (size_t bytes = 4 * KIB; bytes <= largest; bytes *= quick ? 4 : 2) {
		struct samples in = { .n = 0 }, out = { .n = 0 };

		TIME(&in, s, CU(MemcpyHtoDAsync(dev, host, bytes, s)));
		TIME(&out, s, CU(MemcpyDtoHAsync(host, dev, bytes, s)));
		put_copy("host to device, pinned", bytes, &in, 0);
		put_copy("device to host, pinned", bytes, &out, 0);
	}
}

void section_both_ways(void)
{
	CUdeviceptr in_dev, out_dev;
	void *in_host, *out_host;
	CUstream in, out;
	size_t largest;

	gpu_start();
	largest = at_most(quick ? MIB : 256 * MIB, 2);
	in = new_stream();
	out = new_stream();
	in_dev = new_memory(largest);
	out_dev = new_memory(largest);
	in_host = new_pinned(largest);
	out_host = new_pinned(largest);
	for (size_t bytes = 64 * KIB; bytes <= largest; bytes *= 16) {
		struct samples one = { .n = 0 }, other = { .n = 0 }, both = { .n = 0 };

		TIME(&one, in, CU(MemcpyHtoDAsync(in_dev, in_host, bytes, in)));
		TIME(&other, out, CU(MemcpyDtoHAsync(out_host, out_dev, bytes, out)));
		TIME(&both, in, {
			CU(MemcpyHtoDAsync(in_dev, in_host, bytes, in));
			CU(MemcpyDtoHAsync(out_host, out_dev, bytes, out));
			CU(StreamSynchronize(out));
		});
		row_begin("both directions at once, two streams");
		row_number("bytes", 2 * (double)bytes);
		row_samples("us", &both);
		row_number("to_device_alone_us", median(&one));
		row_number("to_host_alone_us", median(&other));
		/* As if the directions did not know of each other. */
		row_rate(2 * (double)bytes, median(&both),
			 (double)bytes / median(&one) / 1e3 + (double)bytes / median(&other) / 1e3);
		row_end();
	}
}

/* ---- many pieces in one call ---- */

#if CUDA_VERSION >= 12080
#define PIECES_MAX 4096u

static struct {
	CUdeviceptr to[PIECES_MAX], from[PIECES_MAX];
	size_t bytes[PIECES_MAX];
} pieces;

static void batched(copy_batch_fn *copy, unsigned n, CUstream s)
{
	CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
	size_t which = 0, failed = 0;

	check_cu(copy(pieces.to, pieces.from, pieces.bytes, n, &attributes, &which, 1, &failed, s),
		 "cuMemcpyBatchAsync");
}

/* Every other piece of both memories. */
static void batch_row(copy_batch_fn *copy, bool in, CUdeviceptr dev, char *host, size_t bytes, unsigned n,
		      CUstream s)
{
	struct samples together = { .n = 0 }, singly = { .n = 0 }, whole = { .n = 0 };

	for (unsigned i = 0; i < n; i++) {
		CUdeviceptr there = dev + 2 * i * bytes, here = (CUdeviceptr)(host + 2 * i * bytes);

		pieces.to[i] = in ? there : here;
		pieces.from[i] = in ? here : there;
		pieces.bytes[i] = bytes;
	}
	TIME(&together, s, batched(copy, n, s));
	TIME(&singly, s, for (unsigned i = 0; i < n; i++) {
		if (in)
			CU(MemcpyHtoDAsync(pieces.to[i], (void *)pieces.from[i], bytes, s));
		else
			CU(MemcpyDtoHAsync((void *)pieces.to[i], pieces.from[i], bytes, s));
	});
	TIME(&whole, s, {
		if (in)
			CU(MemcpyHtoDAsync(dev, host, n * bytes, s));
		else
			CU(MemcpyDtoHAsync(host, dev, n * bytes, s));
	});
	row_begin("cuMemcpyBatchAsync, %s", in ? "host to device" : "device to host");
	row_number("piece_bytes", (double)bytes);
	row_number("pieces", n);
	row_samples("us", &together);
	row_number("one_by_one_us", median(&singly));
	row_number("as_one_piece_us", median(&whole));
	row_rate((double)bytes * n, median(&together), (double)bytes * n / median(&whole) / 1e3);
	row_end();
}

void section_batched(void)
{
	size_t room = quick ? 8 * MIB : 512 * MIB;
	copy_batch_fn *copy;
	CUdeviceptr dev;
	CUstream s;
	char *host;

	gpu_start();
	copy = (copy_batch_fn *)driver_lookup("cuMemcpyBatchAsync", 12080);
	if (!copy) {
		row_not_run("cuMemcpyBatchAsync", "the driver has none: it came with CUDA 12.8");
		return;
	}
	room = at_most(room, 1);
	s = new_stream();
	dev = new_memory(room);
	host = new_pinned(room);
	for (unsigned n = 8; n <= (quick ? 64 : PIECES_MAX); n *= 8)
		for (size_t bytes = 4 * KIB; bytes <= 256 * KIB && 2 * n * bytes <= room; bytes *= 4) {
			batch_row(copy, true, dev, host, bytes, n, s);
			batch_row(copy, false, dev, host, bytes, n, s);
		}
}
#else
void section_batched(void)
{
	gpu_start();
	row_not_run("cuMemcpyBatchAsync", "this program was built with a CUDA older than 12.8");
}
#endif

/* ---- in the GPU's memory ---- */

void section_within(void)
{
	CUdeviceptr from, to, sink;
	size_t largest;
	CUstream s;

	gpu_start();
	largest = at_most(quick ? 8 * MIB : 4 * GIB, 2);
	s = new_stream();
	from = new_memory(largest);
	to = new_memory(largest);
	sink = new_memory(64);
	CU(MemsetD8Async(from, 1, largest, s));
	for (size_t bytes = CHUNK; bytes <= largest; bytes *= quick ? 4 : 8) {
		struct samples read = { .n = 0 }, copy = { .n = 0 }, engine = { .n = 0 }, set = { .n = 0 };

		TIME(&read, s, KERNEL(kernel_read(from, bytes, sink, s)));
		TIME(&copy, s, KERNEL(kernel_copy(to, from, bytes, s)));
		TIME(&engine, s, CU(MemcpyDtoDAsync(to, from, bytes, s)));
		TIME(&set, s, CU(MemsetD8Async(to, 1, bytes, s)));
		put_copy("read by a kernel", bytes, &read, 0);
		/* Bytes read and bytes written, to compare with the above. */
		put_copy("copied by a kernel, read and written", 2 * bytes, &copy, 0);
		put_copy("copied by cuMemcpyDtoDAsync, read and written", 2 * bytes, &engine, 0);
		put_copy("set by cuMemsetD8Async", bytes, &set, 0);
	}
}

/* ---- a kernel and the host's memory ---- */

enum { ALLOCATED, REGISTERED, REGISTERED_HUGE, HOSTS };
static const char *const host_name[] = { "cuMemHostAlloc", "registered", "registered, huge pages" };

/* NULL: it is not to be had, which a row says. */
static void *host_memory(unsigned how, size_t bytes)
{
	CUresult r;
	char *p;

	if (how == ALLOCATED)
		return new_pinned(bytes);
	p = mmap(NULL, bytes + CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		die("no memory");
	p = (char *)(((uintptr_t)p + CHUNK - 1) & ~(CHUNK - 1));
	madvise(p, bytes, how == REGISTERED_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	memset(p, 1, bytes);
	r = cu.MemHostRegister(p, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (!r)
		return p;
	row_not_run("a kernel and host memory", "%s: cuMemHostRegister: error %d (ulimit -l does not count)",
		    host_name[how], (int)r);
	return NULL;
}

static void put_access(const char *what, unsigned how, size_t bytes, struct samples *us, double ceiling)
{
	row_begin("%s", what);
	row_text("host_memory", host_name[how]);
	row_number("bytes", (double)bytes);
	row_samples("us", us);
	row_rate((double)bytes, median(us), ceiling);
	row_end();
}

void section_host_access(void)
{
	size_t largest = quick ? MIB : 64 * MIB;
	CUdeviceptr dev, sink;
	struct ceilings c;
	CUstream s;

	gpu_start();
	c = measure_ceilings();
	s = new_stream();
	dev = new_memory(largest);
	sink = new_memory(64);
	for (unsigned how = 0; how < HOSTS; how++) {
		void *host = host_memory(how, largest);
		CUdeviceptr mapped = host ? address_of(host) : 0;

		for (size_t bytes = 4 * KIB; host && bytes <= largest; bytes *= quick ? 16 : 4) {
			struct samples read = { .n = 0 }, in = { .n = 0 }, out = { .n = 0 }, engine = { .n = 0 };

			TIME(&read, s, KERNEL(kernel_read(mapped, bytes, sink, s)));
			TIME(&in, s, KERNEL(kernel_copy(dev, mapped, bytes, s)));
			TIME(&out, s, KERNEL(kernel_copy(mapped, dev, bytes, s)));
			TIME(&engine, s, CU(MemcpyHtoDAsync(dev, host, bytes, s)));
			put_access("a kernel reads host memory", how, bytes, &read, c.to_device);
			put_access("a kernel copies host to device", how, bytes, &in, c.to_device);
			put_access("a kernel copies device to host", how, bytes, &out, c.to_host);
			put_access("the copy engine copies host to device", how, bytes, &engine, c.to_device);
		}
	}
}

/* ---- between two GPUs ---- */

/* A chunk's worth of memory of GPU 1, to which both have access: *@access is what giving it to GPU 0 took. */
static CUmemGenericAllocationHandle open_peer(CUdeviceptr *at, double *access)
{
	CUmemAllocationProp prop = chunk_prop;
	CUmemAccessDesc desc = chunk_access;
	CUmemGenericAllocationHandle handle;
	double t0;

	prop.location.id = desc.location.id = 1;
	prop.allocFlags.gpuDirectRDMACapable = 0; /* as GPU 0 has it */
	CU(MemAddressReserve(at, CHUNK, CHUNK, 0, 0));
	CU(MemCreate(&handle, CHUNK, &prop, 0));
	CU(MemMap(*at, CHUNK, 0, handle, 0));
	CU(MemSetAccess(*at, CHUNK, &desc, 1));
	t0 = now_us();
	CU(MemSetAccess(*at, CHUNK, &chunk_access, 1));
	*access = now_us() - t0;
	return handle;
}

typedef CUresult peer_fn(CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t bytes, CUstream s);

/* By contexts, which memory that is mapped by parts has none of: so between allocations that belong to one. */
static void by_contexts_row(double mapped_us)
{
	static const char what[] = "GPU 1 to GPU 0, by cuMemcpyPeerAsync";
	CUresult (*enable)(CUcontext, unsigned) = (CUresult(*)(CUcontext, unsigned))driver_lookup("cuCtxEnablePeerAccess", 12000);
	peer_fn *copy = (peer_fn *)driver_lookup("cuMemcpyPeerAsync", 12000);
	struct samples us = { .n = 0 };
	CUdeviceptr from, to;
	CUcontext ctx[2];
	CUstream s;
	CUresult r;

	if (!enable || !copy) {
		row_not_run(what, "the driver lacks it");
		return;
	}
	for (int i = 1; i >= 0; i--) {
		CU(DevicePrimaryCtxRetain(&ctx[i], i));
		CU(CtxSetCurrent(ctx[i]));
		*(i ? &from : &to) = new_memory(CHUNK);
	}
	r = enable(ctx[1], 0);
	if (r && r != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
		row_not_run(what, "cuCtxEnablePeerAccess: error %d", (int)r);
		return;
	}
	s = new_stream();
	for (struct repeat rep = repeat(REPS); again(&rep);) {
		double t0 = now_us();

		for (unsigned k = 0; k < 8; k++)
			check_cu(copy(to, ctx[0], from, ctx[1], CHUNK, s), "cuMemcpyPeerAsync");
		CU(StreamSynchronize(s));
		took(&rep, &us, (now_us() - t0) / 8);
	}
	row_begin("%s", what);
	row_number("bytes", CHUNK);
	row_samples("us", &us);
	row_rate(CHUNK, median(&us), 0);
	row_number("by_cuMemcpyDtoDAsync_us", mapped_us);
	row_text("decides", "daemon/device/cuda/queue.c: copy_by_engine(), which takes cuMemcpyDtoDAsync between GPUs");
	row_end();
}

void section_between(void)
{
	struct samples open = { .n = 0 }, copy = { .n = 0 }, kernel = { .n = 0 };
	CUdeviceptr from, to;
	int can = 0;
	CUstream s;

	gpu_start();
	if (gpu_count() < 2) {
		row_not_run("GPU 1 to GPU 0", "there is one GPU");
		return;
	}
	CU(DeviceCanAccessPeer(&can, 0, 1));
	if (!can) {
		row_not_run("GPU 1 to GPU 0", "GPU 0 cannot read the memory of GPU 1");
		return;
	}
	s = new_stream();
	to = new_memory(CHUNK);
	for (struct repeat r = repeat(REPS); again(&r);) {
		CUmemGenericAllocationHandle handle;
		double access, t0;

		handle = open_peer(&from, &access);
		took(&r, &open, access);
		t0 = now_us();
		for (unsigned k = 0; k < 8; k++)
			CU(MemcpyDtoDAsync(to, from, CHUNK, s));
		CU(StreamSynchronize(s));
		took(&r, &copy, (now_us() - t0) / 8);
		t0 = now_us();
		for (unsigned k = 0; k < 8; k++)
			KERNEL(kernel_copy(to, from, CHUNK, s));
		CU(StreamSynchronize(s));
		took(&r, &kernel, (now_us() - t0) / 8);
		CU(MemUnmap(from, CHUNK));
		CU(MemRelease(handle));
		CU(MemAddressFree(from, CHUNK));
	}
	put_copy("GPU 1 to GPU 0, by cuMemcpyDtoDAsync", CHUNK, &copy, 0);
	put_copy("GPU 1 to GPU 0, by a kernel that reads it", CHUNK, &kernel, 0);
	row_begin("cuMemSetAccess of a chunk for one more GPU");
	row_samples("us", &open);
	row_end();
	by_contexts_row(median(&copy));
}
