/*
 * cuda.c - memory of a GPU: one address range for each mapping, into which chunks and extents are mapped as
 * they are handed over.
 *
 * Devices are known by their UUIDs, since a process may see other numbers than the daemon
 * (CUDA_VISIBLE_DEVICES), or not see a device at all.
 */
#include "cuda_client.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct cuda_api cuda_api;

/* ---- the driver ---- */

/* The driver finds a function by name and version: those of CUDA 12.0 are used. */
#define ENTRY_VERSION 12000

typedef CUresult get_proc_fn(const char *name, void **out, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status);

static void *driver_lookup(const char *name)
{
	static get_proc_fn *get_proc;
	void *driver, *out = NULL;

	if (!get_proc) {
		driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
		if (driver)
			get_proc = (get_proc_fn *)dlsym(driver, "cuGetProcAddress_v2");
	}
	if (!get_proc || get_proc(name, &out, ENTRY_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, NULL))
		return NULL;
	return out;
}

void *(*cuda_lookup)(const char *name) = driver_lookup;

/* -ENODEV: there is no driver, or it is too old, or it finds no device. -EBUSY: the driver accepts no more
 * processes. */
static int load(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool loaded;
	bool complete = true;
	int err;

	pthread_mutex_lock(&lock);
	if (!loaded) {
#define X(name, args) complete &= (cuda_api.name = (CUresult(*) args)cuda_lookup("cu" #name)) != NULL;
		CUDA_ENTRY_POINTS(X)
#undef X
		loaded = complete;
	}
	pthread_mutex_unlock(&lock);
	if (!complete)
		return -ENODEV;
	err = cuda_errno(cuda_api.Init(0));
	return err && err != -EBUSY ? -ENODEV : err;
}

int cuda_errno(CUresult result)
{
	switch (result) {
	case CUDA_SUCCESS:
		return 0;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_INVALID_DEVICE:
	case CUDA_ERROR_NOT_INITIALIZED:
	case CUDA_ERROR_DEINITIALIZED:
		return -ENODEV;
	case CUDA_ERROR_DEVICE_UNAVAILABLE:
	case CUDA_ERROR_MPS_SERVER_NOT_READY:
	case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
	case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
		return -EBUSY;
	default:
		return -EIO;
	}
}

bool cuda_is_captured(CUresult result)
{
	return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
	       result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

/* ---- contexts ---- */

void cuda_begin(struct cuda_scope *s)
{
	s->entered = false;
	s->before = CU_STREAM_CAPTURE_MODE_RELAXED;
	s->relaxed = cuda_api.ThreadExchangeStreamCaptureMode(&s->before) == CUDA_SUCCESS;
}

CUresult cuda_enter(struct cuda_scope *s, const struct cuda_mapping *c)
{
	CUresult r = cuda_api.CtxPushCurrent(c->ctx);

	s->entered = r == CUDA_SUCCESS;
	return r;
}

void cuda_leave(struct cuda_scope *s)
{
	CUcontext ours;

	if (s->entered)
		cuda_api.CtxPopCurrent(&ours);
	s->entered = false;
}

void cuda_end(struct cuda_scope *s)
{
	CUstreamCaptureMode mode = s->before;

	cuda_leave(s);
	/* Tried twice: the thread belongs to the program, and must have its mode back. */
	if (s->relaxed && cuda_api.ThreadExchangeStreamCaptureMode(&mode)) {
		mode = s->before;
		cuda_api.ThreadExchangeStreamCaptureMode(&mode);
	}
}

static int find_device(const uint8_t uuid[16], CUdevice *out)
{
	CUuuid seen;
	int n = 0, err;

	err = cuda_errno(cuda_api.DeviceGetCount(&n));
	for (int i = 0; i < n && !err; i++) {
		err = cuda_errno(cuda_api.DeviceGet(out, i));
		if (!err)
			err = cuda_errno(cuda_api.DeviceGetUuid(&seen, *out));
		if (!err && !memcmp(seen.bytes, uuid, sizeof(seen.bytes)))
			return 0;
	}
	return err ? err : -ENODEV;
}

int cuda_uuid(int ordinal, uint8_t uuid[16])
{
	struct cuda_scope scope;
	CUuuid seen;
	CUdevice dev;
	int err = load();

	if (err)
		return err;
	cuda_begin(&scope);
	err = cuda_errno(cuda_api.DeviceGet(&dev, ordinal));
	if (!err)
		err = cuda_errno(cuda_api.DeviceGetUuid(&seen, dev));
	cuda_end(&scope);
	if (!err)
		memcpy(uuid, seen.bytes, sizeof(seen.bytes));
	return err;
}

/* The caller's context, if it is one of the device; else the primary context, which the runtime API uses. */
static int find_context(struct cuda_mapping *c)
{
	CUcontext now = NULL;
	CUdevice dev;

	if (!cuda_api.CtxGetCurrent(&now) && now && !cuda_api.CtxGetDevice(&dev) && dev == c->dev) {
		c->ctx = now;
		return 0;
	}
	c->retained = true;
	return cuda_errno(cuda_api.DevicePrimaryCtxRetain(&c->ctx, c->dev));
}

/* ---- addresses ---- */

static int cuda_reserve(struct mapping *m, const struct gaia_ioc_device *device)
{
	size_t words = (m->span / GAIA_CHUNK + 63) / 64;
	struct cuda_scope scope;
	struct cuda_mapping *c;
	CUdeviceptr at;
	int err = load();

	if (err)
		return err;
	c = calloc(1, sizeof(*c) + words * sizeof(c->placed[0]));
	if (!c)
		return -ENOMEM;
	cuda_begin(&scope);
	err = find_device(device->uuid, &c->dev);
	if (err)
		goto free_own;
	err = find_context(c);
	if (err)
		goto free_own;
	err = cuda_errno(cuda_enter(&scope, c));
	if (err)
		goto release_context;
	err = cuda_errno(cuda_api.MemAddressReserve(&at, m->span, GAIA_CHUNK, 0, 0));
	if (err)
		goto release_context;
	/* Without flags the mapping works, except in streams. */
	cuda_flags_make(c);
	m->base = (char *)at;
	m->own = c;
	cuda_end(&scope);
	return 0;

release_context:
	cuda_leave(&scope);
	if (c->retained)
		cuda_api.DevicePrimaryCtxRelease(c->dev);
free_own:
	cuda_end(&scope);
	free(c);
	return err;
}

/* ---- chunks ---- */

static bool is_placed(const struct cuda_mapping *c, uint64_t k)
{
	return c->placed[k / 64] >> (k % 64) & 1;
}

static CUdeviceptr chunk_at(const struct mapping *m, uint64_t k)
{
	return (CUdeviceptr)(m->base + k * GAIA_CHUNK);
}

/* The chunks of the mapping that is at chunk @k: of an extent all. */
static unsigned chunks_together(const struct mapping *m, uint64_t k)
{
	return extent_is_placed(m, k) ? GAIA_EXTENT_CHUNKS : 1;
}

/* Unmap @n chunks. An error may be one of earlier work that is reported only now; the chunks are unmapped all the same. */
static CUresult unmap_run(const struct mapping *m, uint64_t first, unsigned n)
{
	CUresult r = cuda_api.MemUnmap(chunk_at(m, first), n * (size_t)GAIA_CHUNK), one;
	unsigned its;

	/*
	 * The documentation allows one mapping a call only, but other programs (llama.cpp) unmap adjacent ones together.
	 * How a driver would refuse that is not documented. If the first call has unmapped them although it failed, as in
	 * a broken context, the calls below are refused, which does no harm.
	 */
	if (n == chunks_together(m, first) || !r)
		return r;
	r = CUDA_SUCCESS;
	for (uint64_t k = first; k < first + n; k += its) {
		its = chunks_together(m, k);
		one = cuda_api.MemUnmap(chunk_at(m, k), its * (size_t)GAIA_CHUNK);
		r = r ? r : one;
	}
	return r;
}

static void note_placed(struct mapping *m, uint64_t k, bool placed)
{
	struct cuda_mapping *c = m->own;
	uint64_t bit = 1ull << (k % 64);

	c->placed[k / 64] = placed ? c->placed[k / 64] | bit : c->placed[k / 64] & ~bit;
	if (!placed && extent_is_placed(m, k))
		extent_set(m, k, false);
}

static CUresult unmap_chunks(struct mapping *m, uint64_t first, uint64_t n)
{
	struct cuda_mapping *c = m->own;
	CUresult r = CUDA_SUCCESS, one;
	unsigned run;

	for (uint64_t k = first; k < first + n; k += run ? run : 1) {
		for (run = 0; k + run < first + n && is_placed(c, k + run); run++)
			;
		if (!run)
			continue;
		one = unmap_run(m, k, run);
		r = r ? r : one;
		for (unsigned i = 0; i < run; i++)
			note_placed(m, k + i, false);
	}
	return r;
}

/* Map what is behind the descriptor, which is so many chunks. */
static CUresult map_memory(struct mapping *m, uint64_t k, unsigned chunks, int fd)
{
	CUmemGenericAllocationHandle handle;
	CUresult r, released;

	r = cuda_api.MemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
						  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r)
		return r;
	r = cuda_api.MemMap(chunk_at(m, k), chunks * (size_t)GAIA_CHUNK, 0, handle, 0);
	for (unsigned i = 0; i < chunks && !r; i++)
		note_placed(m, k + i, true);
	if (!r && chunks == GAIA_EXTENT_CHUNKS)
		extent_set(m, k, true);
	/* The mapping keeps the memory. */
	released = cuda_api.MemRelease(handle);
	return r ? r : released;
}

static CUresult allow(const struct mapping *m, uint64_t first, unsigned n, int prot)
{
	const struct cuda_mapping *c = m->own;
	CUmemAccessDesc desc = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = c->dev },
		.flags = prot & PROT_WRITE ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE :
					     CU_MEM_ACCESS_FLAGS_PROT_READ,
	};
	CUresult r = cuda_api.MemSetAccess(chunk_at(m, first), n * (size_t)GAIA_CHUNK, &desc, 1);

	/*
	 * Not every device has memory that can only be read. On those that do not, this process shares
	 * with others only memory of files that it may write.
	 */
	if ((r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_INVALID_VALUE) && !(prot & PROT_WRITE)) {
		desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		r = cuda_api.MemSetAccess(chunk_at(m, first), n * (size_t)GAIA_CHUNK, &desc, 1);
	}
	return r;
}

static int cuda_place(struct mapping *m, uint64_t first, unsigned n, const int *fd, uint64_t extents, int prot)
{
	unsigned all = chunks_behind(n, extents), done = 0, its;
	struct cuda_mapping *c = m->own;
	struct cuda_scope scope;
	CUresult r;

	atomic_store(&c->used, true);
	cuda_begin(&scope);
	r = cuda_enter(&scope, c);
	if (!r)
		r = unmap_chunks(m, first, all);
	for (unsigned i = 0; i < n && !r; i++, done += its) {
		its = extents >> i & 1 ? GAIA_EXTENT_CHUNKS : 1;
		r = map_memory(m, first + done, its, fd[i]);
	}
	if (!r)
		r = allow(m, first, all, prot);
	if (r)
		unmap_chunks(m, first, all);
	cuda_end(&scope);
	return cuda_errno(r);
}

/*
 * Mapped memory belongs to the process and to no context: it can be unmapped even when the program has
 * destroyed the mapping's context.
 */
static int cuda_clear(struct mapping *m, uint64_t first, unsigned n)
{
	struct cuda_scope scope;
	CUresult r;

	cuda_begin(&scope);
	cuda_enter(&scope, m->own);
	/*
	 * There is nothing to wait for: the daemon takes back only chunks that are released, and so work on
	 * them has ended.
	 */
	r = unmap_chunks(m, first, n);
	cuda_end(&scope);
	return cuda_errno(r);
}

/*
 * Waits for all work of the context, since unmapping a page under a running kernel breaks the context. A context that is
 * broken or gone cannot be waited for. Nor can one while a stream of it is captured; trying to would invalidate the
 * capture. So the default stream is queried first: that shows all captures except those of non-blocking streams.
 */
static int cuda_finish(struct mapping *m, bool *ended)
{
	struct cuda_mapping *c = m->own;
	CUstreamCaptureStatus ignored;
	CUresult r = CUDA_ERROR_UNKNOWN;
	struct cuda_scope scope;

	if (!atomic_load(&c->used))
		r = CUDA_SUCCESS;
	/* Tried twice, so that a passing error is not taken for a lasting one. */
	for (int i = 0; i < 2 && r && !cuda_is_captured(r); i++) {
		cuda_begin(&scope);
		r = cuda_enter(&scope, c);
		if (!r)
			r = cuda_api.StreamIsCapturing(CU_STREAM_LEGACY, &ignored);
		if (!r)
			r = cuda_api.CtxSynchronize();
		cuda_end(&scope);
	}
	*ended = r == CUDA_SUCCESS;
	return cuda_is_captured(r) ? -EBUSY : 0;
}

static void cuda_unreserve(struct mapping *m, bool ended)
{
	struct cuda_mapping *c = m->own;
	struct cuda_scope scope;

	/*
	 * When that work has ended every stream has reached its turns. Turns that are left belong to
	 * streams that the program has destroyed with their context.
	 */
	if (atomic_load(&c->used) && !turns_wait(m))
		ended = false;
	cuda_begin(&scope);
	cuda_enter(&scope, c);
	cuda_detect_end(c, ended);
	cuda_flags_end(c, ended);
	unmap_chunks(m, 0, m->span / GAIA_CHUNK);
	cuda_api.MemAddressFree((CUdeviceptr)m->base, m->span);
	cuda_leave(&scope);
	if (c->retained)
		cuda_api.DevicePrimaryCtxRelease(c->dev);
	cuda_end(&scope);
}

const struct kind_ops cuda_kind = {
	.kind = "cuda",
	.extents = true,
	.reserve = cuda_reserve,
	.finish = cuda_finish,
	.unreserve = cuda_unreserve,
	.place = cuda_place,
	.clear = cuda_clear,
	.queue = cuda_queue,
	.detect_make = cuda_detect_make,
	.detect = cuda_detect,
};
