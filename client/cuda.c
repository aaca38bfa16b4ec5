/*
 * cuda.c - memory of a GPU: one address range a mapping, into which chunks are mapped as they are
 * handed over.
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

/* The driver's way to name versions of its functions; ours are those that CUDA 12.0 has. */
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

/* -ENODEV: there is no driver, or one that is too old, or it finds no device. */
static int load(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool loaded;
	bool complete = true;

	pthread_mutex_lock(&lock);
	if (!loaded) {
#define X(name, args) complete &= (cuda_api.name = (CUresult(*) args)cuda_lookup("cu" #name)) != NULL;
		CUDA_ENTRY_POINTS(X)
#undef X
		loaded = complete;
	}
	pthread_mutex_unlock(&lock);
	return complete && cuda_api.Init(0) == CUDA_SUCCESS ? 0 : -ENODEV;
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
	default:
		return -EIO;
	}
}

/* ---- contexts ---- */

int cuda_enter(const struct cuda_mapping *c)
{
	return cuda_errno(cuda_api.CtxPushCurrent(c->ctx));
}

void cuda_leave(void)
{
	CUcontext ours;

	cuda_api.CtxPopCurrent(&ours);
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

/* The caller's context, if it is one of the device; else the one that the runtime API uses. */
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
	struct cuda_mapping *c;
	CUdeviceptr at;
	int err = load();

	if (err)
		return err;
	c = calloc(1, sizeof(*c) + words * sizeof(c->placed[0]));
	if (!c)
		return -ENOMEM;
	err = find_device(device->uuid, &c->dev);
	if (err)
		goto free_own;
	err = find_context(c);
	if (err)
		goto free_own;
	err = cuda_enter(c);
	if (err)
		goto release_context;
	err = cuda_errno(cuda_api.MemAddressReserve(&at, m->span, GAIA_CHUNK, 0, 0));
	cuda_leave();
	if (err)
		goto release_context;
	m->base = (char *)at;
	m->own = c;
	return 0;

release_context:
	if (c->retained)
		cuda_api.DevicePrimaryCtxRelease(c->dev);
free_own:
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

static CUresult unmap_chunk(struct mapping *m, uint64_t k)
{
	struct cuda_mapping *c = m->own;

	if (!is_placed(c, k))
		return CUDA_SUCCESS;
	/* What it reports may be about earlier work; the chunk is unmapped all the same. */
	c->placed[k / 64] &= ~(1ull << (k % 64));
	return cuda_api.MemUnmap(chunk_at(m, k), GAIA_CHUNK);
}

static CUresult map_chunk(struct mapping *m, uint64_t k, int fd)
{
	struct cuda_mapping *c = m->own;
	CUmemGenericAllocationHandle handle;
	CUresult r, released;

	r = unmap_chunk(m, k);
	if (r)
		return r;
	r = cuda_api.MemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
						  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r)
		return r;
	r = cuda_api.MemMap(chunk_at(m, k), GAIA_CHUNK, 0, handle, 0);
	if (!r)
		c->placed[k / 64] |= 1ull << (k % 64);
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

	/* Not every device knows memory that can only be read. What it may not write is not shared
	 * with others. */
	if ((r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_INVALID_VALUE) && !(prot & PROT_WRITE)) {
		desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		r = cuda_api.MemSetAccess(chunk_at(m, first), n * (size_t)GAIA_CHUNK, &desc, 1);
	}
	return r;
}

static int cuda_place(struct mapping *m, uint64_t first, unsigned n, const int *fd, int prot)
{
	CUresult r = CUDA_SUCCESS;
	unsigned done = 0;
	int err = cuda_enter(m->own);

	if (err)
		return err;
	while (done < n && !r) {
		r = map_chunk(m, first + done, fd[done]);
		done++;
	}
	if (!r)
		r = allow(m, first, n, prot);
	while (r && done)
		unmap_chunk(m, first + --done);
	cuda_leave();
	return cuda_errno(r);
}

static int cuda_clear(struct mapping *m, uint64_t k)
{
	CUresult r;
	int err = cuda_enter(m->own);

	if (err)
		return err;
	/* Nothing to wait for: what is taken back was released, after the work on it. */
	r = unmap_chunk(m, k);
	cuda_leave();
	return cuda_errno(r);
}

/*
 * Whether the context's work has been waited for. It has not where the context is broken, or gone.
 */
static bool synchronize(const struct cuda_mapping *c)
{
	CUresult r = CUDA_ERROR_UNKNOWN;

	/* Twice: an error that passes is not taken for one that lasts. */
	for (int i = 0; i < 2 && r; i++) {
		if (cuda_enter(c))
			continue;
		r = cuda_api.CtxSynchronize();
		cuda_leave();
	}
	return r == CUDA_SUCCESS;
}

/*
 * The work first, since a page that goes under a kernel breaks the context. Then the streams'
 * acquires and releases, which have all been reached. In a broken context none are reached any
 * more.
 */
static bool wait_for_work(struct mapping *m)
{
	const struct cuda_mapping *c = m->own;
	bool used = c->flag != NULL, ended;

	for (uint64_t k = 0; k < m->span / GAIA_CHUNK && !used; k++)
		used = is_placed(c, k);
	if (!used)
		return true;
	ended = synchronize(c);
	turns_wait(m, ended);
	return ended;
}

static void cuda_unreserve(struct mapping *m)
{
	struct cuda_mapping *c = m->own;
	bool entered, ended = wait_for_work(m);

	/* Where the caller has destroyed the context, the addresses are the process's still. */
	entered = cuda_enter(c) == 0;
	cuda_queue_end(c, ended);
	for (uint64_t k = 0; k < m->span / GAIA_CHUNK; k++)
		unmap_chunk(m, k);
	cuda_api.MemAddressFree((CUdeviceptr)m->base, m->span);
	if (entered)
		cuda_leave();
	if (c->retained)
		cuda_api.DevicePrimaryCtxRelease(c->dev);
}

const struct kind_ops cuda_kind = {
	.kind = "cuda",
	.reserve = cuda_reserve,
	.unreserve = cuda_unreserve,
	.place = cuda_place,
	.clear = cuda_clear,
	.queue = cuda_queue,
};
