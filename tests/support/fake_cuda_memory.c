/*
 * fake_cuda_memory.c - the fake CUDA driver: device memory, address ranges, pinned host memory.
 */
#include "fake_cuda_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEW_GARBAGE 0xa5

static bool is_multiple(size_t n)
{
	return n && n % fake.config.granularity == 0;
}

/* ---- fake.lock held ---- */

static struct fake_range *range_around(struct fake_ranges *ranges, const void *p, size_t bytes)
{
	struct fake_range *r;

	TAILQ_FOREACH(r, ranges, link)
		if ((const char *)p >= r->at && bytes <= r->size &&
		    (size_t)((const char *)p - r->at) <= r->size - bytes)
			return r;
	return NULL;
}

static struct fake_range *range_at(struct fake_ranges *ranges, const void *p)
{
	struct fake_range *r;

	TAILQ_FOREACH(r, ranges, link)
		if (r->at == p)
			return r;
	return NULL;
}

static bool overlaps(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
	return a < b + b_bytes && b < a + a_bytes;
}

/* Bytes of the range that are mapped; *access: the GPUs that may use all of those. */
static size_t mapped_bytes(const char *p, size_t bytes, unsigned *access)
{
	struct fake_mapping *m;
	size_t found = 0;

	*access = ~0u;
	TAILQ_FOREACH(m, &fake.mappings, link) {
		const char *from = m->at > p ? m->at : p;
		const char *to = m->at + m->size < p + bytes ? m->at + m->size : p + bytes;

		if (from >= to)
			continue;
		found += (size_t)(to - from);
		*access &= m->access;
	}
	return found;
}

bool fake_device_memory(const void *p, size_t bytes, unsigned gpus)
{
	struct fake_range *r = range_around(&fake.allocated, p, bytes);
	unsigned access;

	/* Other GPUs reach plain allocations by peer access of contexts, which nobody enables. */
	if (r)
		return gpus & 1u << r->gpu;
	return mapped_bytes(p, bytes, &access) == bytes && (access & gpus);
}

bool fake_readable_memory(const void *p, size_t bytes, unsigned gpus)
{
	struct fake_mapping *m;
	size_t found = 0;

	if (range_around(&fake.allocated, p, bytes))
		return fake_device_memory(p, bytes, gpus);
	TAILQ_FOREACH(m, &fake.mappings, link) {
		const char *from = m->at > (const char *)p ? m->at : p;
		const char *to = m->at + m->size < (const char *)p + bytes ? m->at + m->size : (const char *)p + bytes;

		found += from < to && (m->readable & gpus) ? (size_t)(to - from) : 0;
	}
	return found == bytes;
}

bool fake_pinned_memory(const void *p, size_t bytes)
{
	return range_around(&fake.pinned, p, bytes);
}

static struct fake_handle *find_handle(CUmemGenericAllocationHandle id)
{
	struct fake_handle *h;

	TAILQ_FOREACH(h, &fake.handles, link)
		if (h->id == id)
			return h;
	return NULL;
}

static void put_memory(struct fake_memory *m)
{
	if (--m->refs)
		return;
	close(m->fd);
	fake.memories--;
	if (m->exported && fake.config.busy_importers)
		fake.gpu[m->gpu].kept += m->size;
	else if (!m->imported)
		fake.gpu[m->gpu].used -= m->size;
	free(m);
}

/* Imported memory may be of any GPU. */
static unsigned memory_gpus(const struct fake_memory *m)
{
	return m->imported ? ALL_GPUS : 1u << m->gpu;
}

static CUmemGenericAllocationHandle new_handle(struct fake_memory *m)
{
	struct fake_handle *h = calloc(1, sizeof(*h));

	h->id = ++fake.last_id;
	h->refs = 1;
	h->memory = m;
	m->refs++;
	TAILQ_INSERT_TAIL(&fake.handles, h, link);
	return h->id;
}

/* fake.lock held. Descriptors of exported memory that this process has open, whoever made them. */
static unsigned exported_descriptors(void)
{
	static const char name[] = "/memfd:fake-cuda";
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	char target[64];
	unsigned n = 0;

	/* There is no descriptor to look with. */
	if (!dir)
		return fake.config.descriptors;
	while ((entry = readdir(dir))) {
		ssize_t len = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target));

		n += len >= (ssize_t)strlen(name) && !memcmp(target, name, strlen(name));
	}
	closedir(dir);
	return n - fake.memories;
}

static unsigned count_mappings(unsigned gpu)
{
	struct fake_mapping *m;
	unsigned n = 0;

	TAILQ_FOREACH(m, &fake.mappings, link)
		n += m->memory->gpu == gpu;
	return n;
}

static size_t registered_bytes(void)
{
	struct fake_range *r;
	size_t bytes = 0;

	TAILQ_FOREACH(r, &fake.pinned, link)
		bytes += r->owned ? 0 : r->size;
	return bytes;
}

static bool take_memory(unsigned gpu, size_t size)
{
	if (fake.gpu[gpu].used + size > fake.config.memory)
		return false;
	fake.gpu[gpu].used += size;
	return true;
}

/* ---- device memory ---- */

bool fake_cuda_usable(const void *p, size_t bytes)
{
	unsigned gpus = fake_gpu_bit();
	bool usable;

	pthread_mutex_lock(&fake.lock);
	usable = fake_device_memory(p, bytes, gpus) || fake_pinned_memory(p, bytes);
	pthread_mutex_unlock(&fake.lock);
	return usable;
}

bool fake_cuda_readable(const void *p, size_t bytes)
{
	unsigned gpus = fake_gpu_bit();
	bool readable;

	pthread_mutex_lock(&fake.lock);
	readable = fake_readable_memory(p, bytes, gpus) || fake_pinned_memory(p, bytes);
	pthread_mutex_unlock(&fake.lock);
	return readable;
}

/* Those whose page tables know the handle; fake.lock not held. */
static unsigned handle_gpus(CUmemGenericAllocationHandle id)
{
	struct fake_handle *h;
	unsigned gpus;

	pthread_mutex_lock(&fake.lock);
	h = find_handle(id);
	gpus = h ? memory_gpus(h->memory) : 0;
	pthread_mutex_unlock(&fake.lock);
	return gpus;
}

/* Those that know the mappings of a range; fake.lock not held. */
static unsigned mapped_gpus(const char *at, size_t size)
{
	struct fake_mapping *m;
	unsigned gpus = 0;

	pthread_mutex_lock(&fake.lock);
	TAILQ_FOREACH(m, &fake.mappings, link)
		if (overlaps(at, size, m->at, m->size))
			gpus |= memory_gpus(m->memory) | m->access;
	pthread_mutex_unlock(&fake.lock);
	return gpus;
}

/* NULL: a property that asks for something else than memory of a GPU. */
static const char *prop_fault(const CUmemAllocationProp *prop)
{
	if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return "memory that is not pinned";
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    prop->location.id < 0 || (unsigned)prop->location.id >= fake.config.n_devices)
		return "memory of no device";
	if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return "handles that are no descriptors";
	if (prop->allocFlags.compressionType || prop->allocFlags.usage)
		return "memory of a special kind";
	if (prop->allocFlags.gpuDirectRDMACapable && fake.config.no_rdma)
		return "memory for RDMA, of which the device has none";
	return NULL;
}

static CUresult fake_get_granularity(size_t *granularity, const CUmemAllocationProp *prop,
				     CUmemAllocationGranularity_flags option)
{
	CUresult err = fake_enter("cuMemGetAllocationGranularity");

	if (err)
		return err;
	if (prop_fault(prop))
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "granularity of %s", prop_fault(prop));
	*granularity = fake.config.granularity;
	return CUDA_SUCCESS;
}

static CUresult fake_mem_create(CUmemGenericAllocationHandle *handle, size_t size,
				const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult err = fake_enter("cuMemCreate");
	struct fake_memory *m;
	char garbage[4096];

	if (err)
		return err;
	if (prop_fault(prop) || flags)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemCreate of %s",
				   flags ? "flags" : prop_fault(prop));
	if (!is_multiple(size))
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemCreate of %zu bytes", size);
	if (fake.config.alloc_waits)
		fake_wait_gpus(1u << fake_gpu_of(prop->location.id));
	m = calloc(1, sizeof(*m));
	m->size = size;
	m->gpu = fake_gpu_of(prop->location.id);
	m->rdma = prop->allocFlags.gpuDirectRDMACapable;
	m->exportable = prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	pthread_mutex_lock(&fake.lock);
	if (!take_memory(m->gpu, size)) {
		pthread_mutex_unlock(&fake.lock);
		free(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	fake.memories++;
	m->fd = memfd_create("fake-cuda", MFD_CLOEXEC);
	memset(garbage, NEW_GARBAGE, sizeof(garbage));
	for (size_t at = 0; at < size; at += sizeof(garbage))
		if (pwrite(m->fd, garbage, sizeof(garbage), (off_t)at) != sizeof(garbage))
			abort(); /* the machine is out of memory */
	*handle = new_handle(m);
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static CUresult fake_mem_release(CUmemGenericAllocationHandle handle)
{
	CUresult err = fake_enter("cuMemRelease");
	struct fake_handle *h;

	if (!fake_takes_effect(err, handle_gpus(handle)))
		return err;
	if (fake.config.alloc_waits)
		fake_wait_gpus(handle_gpus(handle));
	pthread_mutex_lock(&fake.lock);
	h = find_handle(handle);
	if (h && !--h->refs) {
		TAILQ_REMOVE(&fake.handles, h, link);
		put_memory(h->memory);
		free(h);
	}
	pthread_mutex_unlock(&fake.lock);
	return h ? err : fake_refuse_gone(CUDA_ERROR_INVALID_VALUE, "cuMemRelease of no handle");
}

static CUresult fake_mem_export(void *out, CUmemGenericAllocationHandle handle,
				CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult err = fake_enter("cuMemExportToShareableHandle");
	struct fake_handle *h;
	int fd = -1;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	h = find_handle(handle);
	if (h && h->memory->exportable &&
	    (!fake.config.descriptors || exported_descriptors() < fake.config.descriptors))
		fd = dup(h->memory->fd); /* not closed on exec: the documentation promises nothing */
	if (fd >= 0)
		h->memory->exported = true;
	pthread_mutex_unlock(&fake.lock);
	if (!h || !h->memory->exportable || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags) {
		if (fd >= 0)
			close(fd);
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemExportToShareableHandle of %s",
				   !h ? "no handle" : "what was not created for it");
	}
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

static CUresult fake_mem_import(CUmemGenericAllocationHandle *handle, void *os_handle,
				CUmemAllocationHandleType type)
{
	CUresult err = fake_enter("cuMemImportFromShareableHandle");
	int fd = (int)(intptr_t)os_handle;
	struct fake_memory *m;
	struct stat st;

	if (err)
		return err;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "import of what is no descriptor");
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || !is_multiple((size_t)st.st_size))
		return CUDA_ERROR_INVALID_VALUE; /* the exporter may be anybody */
	m = calloc(1, sizeof(*m));
	m->size = (size_t)st.st_size;
	m->imported = true;
	m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (m->fd < 0) {
		free(m);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	pthread_mutex_lock(&fake.lock);
	fake.memories++;
	*handle = new_handle(m);
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

/* ---- address ranges ---- */

static CUresult fake_address_reserve(CUdeviceptr *ptr, size_t size, size_t alignment,
				     CUdeviceptr hint, unsigned long long flags)
{
	CUresult err = fake_enter("cuMemAddressReserve");
	size_t align = alignment > fake.config.granularity ? alignment : fake.config.granularity;
	struct fake_range *r;
	char *raw, *at;

	if (err)
		return err;
	if (!is_multiple(size) || (alignment & (alignment - 1)) || flags)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE,
				   "cuMemAddressReserve of %zu bytes aligned to %zu", size, alignment);
	raw = mmap(NULL, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (raw == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	at = (char *)(((uintptr_t)raw + align - 1) & ~(align - 1));
	if (at > raw)
		munmap(raw, (size_t)(at - raw));
	munmap(at + size, align - (size_t)(at - raw));
	r = calloc(1, sizeof(*r));
	r->at = at;
	r->size = size;
	pthread_mutex_lock(&fake.lock);
	TAILQ_INSERT_TAIL(&fake.reserved, r, link);
	pthread_mutex_unlock(&fake.lock);
	*ptr = (CUdeviceptr)at;
	return CUDA_SUCCESS;
}

static CUresult fake_address_free(CUdeviceptr ptr, size_t size)
{
	CUresult err = fake_enter("cuMemAddressFree");
	struct fake_range *r;
	const char *fault = NULL;
	unsigned access;

	pthread_mutex_lock(&fake.lock);
	r = range_at(&fake.reserved, (void *)ptr);
	if (!r || r->size != size)
		fault = "what was not reserved so";
	else if (mapped_bytes(r->at, r->size, &access))
		fault = "a range with mappings";
	if (fault && !fake_takes_effect(err, ALL_GPUS)) { /* they could not be ended either */
		pthread_mutex_unlock(&fake.lock);
		return err;
	}
	if (!fault) {
		TAILQ_REMOVE(&fake.reserved, r, link);
		munmap(r->at, r->size);
		free(r);
	}
	pthread_mutex_unlock(&fake.lock);
	return fault ? fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemAddressFree of %s", fault) : err;
}

static const char *map_fault(const char *at, size_t size, size_t offset, struct fake_handle *h,
			     unsigned long long flags)
{
	struct fake_mapping *m;

	if (!h)
		return "of no handle";
	if (!is_multiple(size) || (uintptr_t)at % fake.config.granularity)
		return "that is not aligned to the granularity";
	if (offset || flags)
		return "with an offset or flags";
	if (size != h->memory->size)
		return "of a part of an allocation";
	if (!range_around(&fake.reserved, at, size))
		return "outside of a reserved range";
	TAILQ_FOREACH(m, &fake.mappings, link)
		if (overlaps(at, size, m->at, m->size))
			return "over a mapping";
	return NULL;
}

static CUresult fake_mem_map(CUdeviceptr ptr, size_t size, size_t offset,
			     CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult err = fake_enter("cuMemMap");
	struct fake_mapping *m, *after;
	struct fake_handle *h;
	const char *fault;

	if (err)
		return err;
	if (fake.config.map_waits)
		fake_wait_gpus(handle_gpus(handle));
	pthread_mutex_lock(&fake.lock);
	h = find_handle(handle);
	fault = map_fault((char *)ptr, size, offset, h, flags);
	if (!fault && fake.config.mappings && count_mappings(h->memory->gpu) >= fake.config.mappings) {
		err = CUDA_ERROR_OUT_OF_MEMORY;
	} else if (!fault) {
		m = calloc(1, sizeof(*m));
		m->at = (char *)ptr;
		m->size = size;
		m->memory = h->memory;
		m->memory->refs++;
		if (mmap(m->at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, h->memory->fd, 0) == MAP_FAILED)
			abort();
		TAILQ_FOREACH(after, &fake.mappings, link)
			if (after->at > m->at)
				break;
		if (after)
			TAILQ_INSERT_BEFORE(after, m, link);
		else
			TAILQ_INSERT_TAIL(&fake.mappings, m, link);
	}
	pthread_mutex_unlock(&fake.lock);
	return fault ? fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemMap %s", fault) : err;
}

/* fake.lock held. */
static void end_mapping(struct fake_mapping *m)
{
	TAILQ_REMOVE(&fake.mappings, m, link);
	if (mmap(m->at, m->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
	    MAP_FAILED)
		abort();
	put_memory(m->memory);
	free(m);
}

/* Of one mapping or of several side by side; each whole. */
static CUresult fake_mem_unmap(CUdeviceptr ptr, size_t size)
{
	CUresult err = fake_enter("cuMemUnmap");
	struct fake_mapping *m, *next;
	char *at = (char *)ptr;
	bool good, any, gone, several = false;
	unsigned access;

	if (!fake_takes_effect(err, mapped_gpus(at, size)))
		return err;
	if (fake.config.unmap_waits)
		fake_wait_gpus(mapped_gpus(at, size));
	pthread_mutex_lock(&fake.lock);
	TAILQ_FOREACH(m, &fake.mappings, link)
		several |= m->at == at && m->size < size;
	if (several && (fake.config.single_unmaps || (err && !fake.broken))) {
		pthread_mutex_unlock(&fake.lock);
		return err ? err : CUDA_ERROR_INVALID_VALUE;
	}
	any = mapped_bytes(at, size, &access) > 0;
	good = size && mapped_bytes(at, size, &access) == size;
	gone = fake.broken && !any;
	TAILQ_FOREACH(m, &fake.mappings, link)
		good &= !overlaps(at, size, m->at, m->size) || (m->at >= at && m->at + m->size <= at + size);
	for (m = TAILQ_FIRST(&fake.mappings); good && m; m = next) {
		next = TAILQ_NEXT(m, link);
		if (overlaps(at, size, m->at, m->size))
			end_mapping(m);
	}
	pthread_mutex_unlock(&fake.lock);
	if (good || (err && gone))
		return err;
	return any ? fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemUnmap of what are not whole mappings") :
		     fake_refuse_gone(CUDA_ERROR_INVALID_VALUE, "cuMemUnmap of what is not mapped");
}

/* What a GPU may do with mapped memory; others may do what they could before. */
static CUresult fake_mem_set_access(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
				    size_t count)
{
	CUresult err = fake_enter("cuMemSetAccess");
	struct fake_mapping *m;
	const char *fault = NULL;
	char *at = (char *)ptr;
	unsigned access, gpu;

	if (err)
		return err;
	if (count != 1 || desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE || desc->location.id < 0 ||
	    (unsigned)desc->location.id >= fake.config.n_devices)
		return fake_refuse(CUDA_ERROR_INVALID_DEVICE, "cuMemSetAccess for no device");
	gpu = fake_gpu_of(desc->location.id);
	if (fake.config.access_waits)
		fake_wait_gpus(1u << gpu);
	pthread_mutex_lock(&fake.lock);
	if (!is_multiple(size) || mapped_bytes(at, size, &access) != size)
		fault = "what is not mapped";
	TAILQ_FOREACH(m, &fake.mappings, link)
		if (overlaps(at, size, m->at, m->size) && (m->at < at || m->at + m->size > at + size))
			fault = "a part of a mapping";
	TAILQ_FOREACH(m, &fake.mappings, link)
		if (overlaps(at, size, m->at, m->size) && fake.config.no_peers && !m->memory->imported &&
		    m->memory->gpu != gpu)
			fault = "the memory of a GPU that is no peer";
	TAILQ_FOREACH(m, &fake.mappings, link) {
		if (fault || !overlaps(at, size, m->at, m->size))
			continue;
		m->access &= ~(1u << gpu);
		m->readable &= ~(1u << gpu);
		if (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			m->access |= 1u << gpu;
		if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
			m->readable |= 1u << gpu;
		if (mprotect(m->at, m->size, m->access ? PROT_READ | PROT_WRITE :
			     desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_NONE))
			abort();
	}
	pthread_mutex_unlock(&fake.lock);
	return fault ? fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemSetAccess of %s", fault) : CUDA_SUCCESS;
}

/* ---- plain allocations ---- */

static void add_range(struct fake_ranges *ranges, const struct fake_range *like)
{
	struct fake_range *r = malloc(sizeof(*r));

	*r = *like;
	TAILQ_INSERT_TAIL(ranges, r, link);
}

/* fake.lock held. */
static void end_range(struct fake_ranges *ranges, struct fake_range *r)
{
	TAILQ_REMOVE(ranges, r, link);
	if (ranges == &fake.allocated)
		fake.gpu[r->gpu].used -= r->size;
	if (ranges == &fake.allocated || r->owned)
		munmap(r->at, r->size);
	free(r);
}

void fake_memory_reset(CUcontext ctx)
{
	struct fake_mapping *m, *next_mapping;
	struct fake_handle *h, *next_handle;
	struct fake_range *r, *next;

	pthread_mutex_lock(&fake.lock);
	for (m = TAILQ_FIRST(&fake.mappings); m; m = next_mapping) {
		next_mapping = TAILQ_NEXT(m, link);
		if (!m->memory->imported && m->memory->gpu == ctx->gpu)
			end_mapping(m);
	}
	for (h = TAILQ_FIRST(&fake.handles); h; h = next_handle) {
		next_handle = TAILQ_NEXT(h, link);
		if (h->memory->imported || h->memory->gpu != ctx->gpu)
			continue;
		TAILQ_REMOVE(&fake.handles, h, link);
		put_memory(h->memory);
		free(h);
	}
	for (r = TAILQ_FIRST(&fake.allocated); r; r = next) {
		next = TAILQ_NEXT(r, link);
		if (r->ctx == ctx)
			end_range(&fake.allocated, r);
	}
	for (r = TAILQ_FIRST(&fake.pinned); r; r = next) {
		next = TAILQ_NEXT(r, link);
		if (r->ctx == ctx)
			end_range(&fake.pinned, r);
	}
	pthread_mutex_unlock(&fake.lock);
}

static CUresult fake_mem_get_info(size_t *free_bytes, size_t *total)
{
	CUresult err = fake_enter("cuMemGetInfo");
	CUcontext ctx = fake_context();

	if (err)
		return err;
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&fake.lock);
	*total = fake.config.memory;
	*free_bytes = *total - fake.gpu[ctx->gpu].used;
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static CUresult fake_mem_alloc(CUdeviceptr *ptr, size_t bytes)
{
	CUresult err = fake_enter("cuMemAlloc");
	CUcontext ctx = fake_context();
	void *at = MAP_FAILED;

	if (err)
		return err;
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (fake.config.alloc_waits)
		fake_wait_gpus(1u << ctx->gpu);
	pthread_mutex_lock(&fake.lock);
	if (take_memory(ctx->gpu, bytes))
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at != MAP_FAILED) {
		memset(at, NEW_GARBAGE, bytes);
		add_range(&fake.allocated, &(struct fake_range){ .at = at, .size = bytes, .gpu = ctx->gpu,
								 .ctx = ctx });
	}
	pthread_mutex_unlock(&fake.lock);
	*ptr = (CUdeviceptr)at;
	return at == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static unsigned range_gpus(struct fake_ranges *ranges, const void *p)
{
	struct fake_range *r;
	unsigned gpus;

	pthread_mutex_lock(&fake.lock);
	r = range_at(ranges, p);
	gpus = r ? 1u << r->ctx->gpu : 0;
	pthread_mutex_unlock(&fake.lock);
	return gpus;
}

static CUresult fake_mem_free(CUdeviceptr ptr)
{
	CUresult err = fake_enter("cuMemFree");
	struct fake_range *r;

	if (!fake_takes_effect(err, range_gpus(&fake.allocated, (void *)ptr)))
		return err;
	if (fake.config.alloc_waits)
		fake_wait_gpus(range_gpus(&fake.allocated, (void *)ptr));
	pthread_mutex_lock(&fake.lock);
	r = range_at(&fake.allocated, (void *)ptr);
	if (r)
		end_range(&fake.allocated, r);
	pthread_mutex_unlock(&fake.lock);
	return r ? err : fake_refuse_gone(CUDA_ERROR_INVALID_VALUE, "cuMemFree of no allocation");
}

/* ---- pinned host memory ---- */

static CUresult fake_mem_host_alloc(void **out, size_t bytes, unsigned flags)
{
	CUresult err = fake_enter("cuMemHostAlloc");
	CUcontext ctx = fake_context();

	if (err)
		return err;
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (fake.config.alloc_waits)
		fake_wait_gpus(ALL_GPUS);
	*out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*out == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&fake.lock);
	add_range(&fake.pinned, &(struct fake_range){ .at = *out, .size = bytes, .owned = true,
						      .flags = flags, .ctx = ctx });
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static CUresult end_pinned(CUresult err, void *p, bool owned, const char *call)
{
	struct fake_range *r;
	bool found;

	if (!fake_takes_effect(err, range_gpus(&fake.pinned, p)))
		return err;
	if (owned ? fake.config.alloc_waits : fake.config.register_waits)
		fake_wait_gpus(ALL_GPUS);
	pthread_mutex_lock(&fake.lock);
	r = range_at(&fake.pinned, p);
	found = r && r->owned == owned;
	if (found)
		end_range(&fake.pinned, r);
	pthread_mutex_unlock(&fake.lock);
	return found ? err : fake_refuse_gone(CUDA_ERROR_INVALID_VALUE, "%s of what is not pinned so", call);
}

static CUresult fake_mem_free_host(void *p)
{
	return end_pinned(fake_enter("cuMemFreeHost"), p, true, "cuMemFreeHost");
}

static CUresult fake_mem_host_register(void *p, size_t bytes, unsigned flags)
{
	CUresult err = fake_enter("cuMemHostRegister");
	CUcontext ctx = fake_context();
	struct fake_range *r;
	bool twice = false;

	if (err)
		return err;
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!bytes || ((uintptr_t)p | bytes) % 4096)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemHostRegister of parts of pages");
	if (fake.config.register_waits)
		fake_wait_gpus(ALL_GPUS);
	/* Pinned memory is there. */
	if (madvise(p, bytes, MADV_POPULATE_WRITE))
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemHostRegister of what cannot be written");
	pthread_mutex_lock(&fake.lock);
	TAILQ_FOREACH(r, &fake.pinned, link)
		twice |= overlaps(p, bytes, r->at, r->size);
	if (fake.config.no_pins || (fake.config.pins && registered_bytes() + bytes > fake.config.pins))
		err = CUDA_ERROR_OUT_OF_MEMORY;
	if (!err && !twice)
		add_range(&fake.pinned, &(struct fake_range){ .at = p, .size = bytes, .flags = flags,
							      .ctx = ctx });
	pthread_mutex_unlock(&fake.lock);
	if (twice)
		return fake_refuse(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "cuMemHostRegister twice");
	return err;
}

static CUresult fake_mem_host_unregister(void *p)
{
	return end_pinned(fake_enter("cuMemHostUnregister"), p, false, "cuMemHostUnregister");
}

static CUresult fake_host_get_device_pointer(CUdeviceptr *ptr, void *p, unsigned flags)
{
	CUresult err = fake_enter("cuMemHostGetDevicePointer");
	bool pinned;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	pinned = fake_pinned_memory(p, 1);
	pthread_mutex_unlock(&fake.lock);
	if (!pinned || flags)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemHostGetDevicePointer of what is not pinned");
	*ptr = (CUdeviceptr)p;
	return CUDA_SUCCESS;
}

static CUresult fake_host_get_flags(unsigned *flags, void *p)
{
	CUresult err = fake_enter("cuMemHostGetFlags");
	struct fake_range *r;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	r = range_around(&fake.pinned, p, 1);
	if (r)
		*flags = r->flags;
	pthread_mutex_unlock(&fake.lock);
	return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_pointer_get_attribute(void *out, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	CUresult err = fake_enter("cuPointerGetAttribute");
	bool pinned, device;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	pinned = fake_pinned_memory((void *)ptr, 1);
	device = fake_readable_memory((void *)ptr, 1, ALL_GPUS);
	pthread_mutex_unlock(&fake.lock);
	if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
		return fake_refuse(CUDA_ERROR_NOT_SUPPORTED, "an attribute of pointers that the fake lacks");
	if (!pinned && !device)
		return CUDA_ERROR_INVALID_VALUE;
	*(CUmemorytype *)out = pinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
	return CUDA_SUCCESS;
}

const struct fake_entry fake_memory_entries[] = {
	{ "cuMemHostGetFlags", fake_host_get_flags },
	{ "cuPointerGetAttribute", fake_pointer_get_attribute },
	{ "cuMemGetAllocationGranularity", fake_get_granularity },
	{ "cuMemCreate", fake_mem_create },
	{ "cuMemRelease", fake_mem_release },
	{ "cuMemExportToShareableHandle", fake_mem_export },
	{ "cuMemImportFromShareableHandle", fake_mem_import },
	{ "cuMemAddressReserve", fake_address_reserve },
	{ "cuMemAddressFree", fake_address_free },
	{ "cuMemMap", fake_mem_map },
	{ "cuMemUnmap", fake_mem_unmap },
	{ "cuMemSetAccess", fake_mem_set_access },
	{ "cuMemGetInfo", fake_mem_get_info },
	{ "cuMemAlloc", fake_mem_alloc },
	{ "cuMemFree", fake_mem_free },
	{ "cuMemHostAlloc", fake_mem_host_alloc },
	{ "cuMemFreeHost", fake_mem_free_host },
	{ "cuMemHostRegister", fake_mem_host_register },
	{ "cuMemHostUnregister", fake_mem_host_unregister },
	{ "cuMemHostGetDevicePointer", fake_host_get_device_pointer },
	{ NULL, NULL },
};
