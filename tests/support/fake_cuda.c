/*
 * fake_cuda.c - the fake CUDA driver: devices, contexts, faults, rules. See fake_cuda.h.
 */
#include "fake_cuda_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fake fake = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.config = { .n_devices = 1, .memory = 64u << 20, .granularity = 2u << 20 },
	.contexts = TAILQ_HEAD_INITIALIZER(fake.contexts),
	.dead = TAILQ_HEAD_INITIALIZER(fake.dead),
	.streams = TAILQ_HEAD_INITIALIZER(fake.streams),
	.events = TAILQ_HEAD_INITIALIZER(fake.events),
	.handles = TAILQ_HEAD_INITIALIZER(fake.handles),
	.reserved = TAILQ_HEAD_INITIALIZER(fake.reserved),
	.allocated = TAILQ_HEAD_INITIALIZER(fake.allocated),
	.pinned = TAILQ_HEAD_INITIALIZER(fake.pinned),
	.mappings = TAILQ_HEAD_INITIALIZER(fake.mappings),
	.captures = TAILQ_HEAD_INITIALIZER(fake.captures),
	.graphs = TAILQ_HEAD_INITIALIZER(fake.graphs),
};

_Thread_local bool fake_in_host_func;

#define MAX_STACK 16
static _Thread_local struct {
	CUcontext ctx[MAX_STACK];
	unsigned depth; /* the current one is ctx[depth - 1] */
} stack;

/* Of the calling thread. */
static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static _Thread_local unsigned without_effect; /* on things of these GPUs */
static _Thread_local uint64_t thread_number;

uint64_t fake_thread(void)
{
	static uint64_t last;

	if (!thread_number)
		thread_number = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
	return thread_number;
}

/* ---- modes ---- */

#define AT(field) offsetof(struct fake_cuda_config, field)
static const struct mode {
	const char *word;
	enum { FLAG, NUMBER, BYTES, EXCLUSIVE, PROHIBITED } kind;
	size_t at;
} modes[] = {
	{ "register_waits", FLAG, AT(register_waits) },
	{ "access_waits", FLAG, AT(access_waits) },
	{ "map_waits", FLAG, AT(map_waits) },
	{ "unmap_waits", FLAG, AT(unmap_waits) },
	{ "alloc_waits", FLAG, AT(alloc_waits) },
	{ "waits", FLAG, AT(register_waits) },
	{ "waits", FLAG, AT(access_waits) },
	{ "waits", FLAG, AT(map_waits) },
	{ "waits", FLAG, AT(unmap_waits) },
	{ "waits", FLAG, AT(alloc_waits) },
	{ "broken_frees", FLAG, AT(broken_frees) },
	{ "latency", NUMBER, AT(latency) },
	{ "no_pins", FLAG, AT(no_pins) },
	{ "pins", BYTES, AT(pins) },
	{ "descriptors", NUMBER, AT(descriptors) },
	{ "mappings", NUMBER, AT(mappings) },
	{ "busy_importers", FLAG, AT(busy_importers) },
	{ "exclusive", EXCLUSIVE, AT(compute_mode) },
	{ "prohibited", PROHIBITED, AT(compute_mode) },
	{ "taken", FLAG, AT(taken) },
	{ "no_rdma", FLAG, AT(no_rdma) },
	{ "single_unmaps", FLAG, AT(single_unmaps) },
	{ "no_copy_batch", FLAG, AT(no_copy_batch) },
};

/* @value: what follows a "=", or NULL. */
static bool set_one(void *field, const struct mode *m, const char *value)
{
	unsigned long long n = 0;
	char *end = NULL;

	if (value)
		n = strtoull(value, &end, 10);
	if ((value && (!n || *end)) || !value != (m->kind != NUMBER && m->kind != BYTES))
		return false;
	switch (m->kind) {
	case FLAG:
		*(bool *)field = true;
		break;
	case NUMBER: /* the configuration's own goes before */
		if (!*(unsigned *)field)
			*(unsigned *)field = (unsigned)n;
		break;
	case BYTES:
		if (!*(size_t *)field)
			*(size_t *)field = n;
		break;
	case EXCLUSIVE:
	case PROHIBITED:
		if (!*(CUcomputemode *)field)
			*(CUcomputemode *)field = m->kind == EXCLUSIVE ? CU_COMPUTEMODE_EXCLUSIVE_PROCESS :
									  CU_COMPUTEMODE_PROHIBITED;
	}
	return true;
}

static bool set_mode(struct fake_cuda_config *config, const char *word)
{
	size_t len = strcspn(word, "=");
	const char *value = word[len] ? word + len + 1 : NULL;
	bool known = false;

	for (unsigned i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		if (strlen(modes[i].word) != len || strncmp(word, modes[i].word, len))
			continue;
		if (!set_one((char *)config + modes[i].at, &modes[i], value))
			return false;
		known = true;
	}
	return known;
}

static void read_environment(struct fake_cuda_config *config)
{
	const char *text = getenv("FAKE_CUDA");
	char *words, *word, *rest;

	fake.configured = true;
	if (!text)
		return;
	words = strdup(text);
	for (word = strtok_r(words, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
		if (!set_mode(config, word)) {
			fprintf(stderr, "FAKE_CUDA: the fake CUDA driver does not know \"%s\"\n", word);
			abort();
		}
	free(words);
}

/* ---- for tests ---- */

const struct fake_cuda_config *fake_cuda_mode(void)
{
	pthread_mutex_lock(&fake.lock);
	if (!fake.configured)
		read_environment(&fake.config);
	pthread_mutex_unlock(&fake.lock);
	return &fake.config;
}

void fake_cuda_reset(const struct fake_cuda_config *config)
{
	static const struct fake init = { .lock = PTHREAD_MUTEX_INITIALIZER,
					  .changed = PTHREAD_COND_INITIALIZER };
	CUcontext ctx;

	/* A forked child starts anew; what its parent has is not its own. */
	if ((!fake.pid || fake.pid == getpid()) && fake_cuda_alive(true)) {
		fprintf(stderr, "fake_cuda_reset: something is still alive\n");
		abort();
	}
	while ((ctx = TAILQ_FIRST(&fake.dead))) {
		TAILQ_REMOVE(&fake.dead, ctx, link);
		free(ctx);
	}
	fake = init;
	fake.config = *config;
	read_environment(&fake.config);
	if (!fake.config.granularity)
		fake.config.granularity = 2u << 20;
	if (fake.config.n_devices > FAKE_GPUS)
		abort();
	/* Threads of streams read it without the lock. */
	for (unsigned gpu = 0; gpu < FAKE_GPUS; gpu++)
		fake.gpu[gpu].primary.gpu = gpu;
	TAILQ_INIT(&fake.contexts);
	TAILQ_INIT(&fake.dead);
	TAILQ_INIT(&fake.streams);
	TAILQ_INIT(&fake.events);
	TAILQ_INIT(&fake.handles);
	TAILQ_INIT(&fake.reserved);
	TAILQ_INIT(&fake.allocated);
	TAILQ_INIT(&fake.pinned);
	TAILQ_INIT(&fake.mappings);
	TAILQ_INIT(&fake.captures);
	TAILQ_INIT(&fake.graphs);
	capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
	stack.depth = 0;
}

void *fake_cuda_entry(const char *name)
{
	static const struct fake_entry *const tables[] = { fake_context_entries, fake_memory_entries,
							   fake_stream_entries, fake_library_entries };

	const char *version = strstr(name, "_v");
	char plain[64];

	if (!strcmp(name, "cuMemcpyBatchAsync") && fake_cuda_mode()->no_copy_batch)
		return NULL;
	for (unsigned t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
		for (const struct fake_entry *e = tables[t]; e->name; e++)
			if (!strcmp(e->name, name))
				return e->function;
	if (!version || (size_t)(version - name) >= sizeof(plain))
		return NULL;
	memcpy(plain, name, (size_t)(version - name));
	plain[version - name] = '\0';
	return fake_cuda_entry(plain);
}

void fake_cuda_uuid(unsigned gpu, unsigned char uuid[16])
{
	memcpy(uuid, "simulated-GPU-00", 16);
	uuid[15] = (unsigned char)gpu;
}

void fake_cuda_fail(const char *entry, unsigned nth, CUresult result, bool sticky)
{
	pthread_mutex_lock(&fake.lock);
	fake.fail.entry = entry;
	fake.fail.nth = nth;
	fake.fail.result = result;
	fake.fail.sticky = sticky;
	fake.failed = false;
	pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_fail_later(unsigned nth, CUresult result)
{
	pthread_mutex_lock(&fake.lock);
	fake.fail_later.nth = nth;
	fake.fail_later.result = result;
	fake.failed = false;
	pthread_mutex_unlock(&fake.lock);
}

bool fake_cuda_failed(void)
{
	bool failed;

	pthread_mutex_lock(&fake.lock);
	failed = fake.failed;
	fake.failed = false;
	fake.fail.nth = fake.fail_later.nth = 0;
	pthread_mutex_unlock(&fake.lock);
	return failed;
}

unsigned fake_cuda_calls(void)
{
	unsigned calls;

	pthread_mutex_lock(&fake.lock);
	calls = fake.calls;
	pthread_mutex_unlock(&fake.lock);
	return calls;
}

unsigned fake_cuda_calls_of(const char *entry)
{
	unsigned calls = 0;

	if (strcmp(entry, "launch") && !fake_cuda_entry(entry)) {
		fprintf(stderr, "fake_cuda_calls_of: there is no %s\n", entry);
		abort();
	}
	pthread_mutex_lock(&fake.lock);
	for (unsigned i = 0; i < FAKE_CALLED && fake.called[i].entry; i++)
		if (!strcmp(fake.called[i].entry, entry))
			calls = fake.called[i].calls;
	pthread_mutex_unlock(&fake.lock);
	return calls;
}

unsigned fake_cuda_waiting(void)
{
	unsigned waiting;

	pthread_mutex_lock(&fake.lock);
	waiting = fake.waiting;
	pthread_mutex_unlock(&fake.lock);
	return waiting;
}

struct fake_cuda_traffic fake_cuda_traffic(void)
{
	struct fake_cuda_traffic traffic;
	unsigned launches = fake_cuda_calls_of("launch");

	pthread_mutex_lock(&fake.lock);
	traffic = fake.traffic;
	traffic.calls = fake.calls;
	traffic.launches = launches;
	pthread_mutex_unlock(&fake.lock);
	return traffic;
}

void fake_cuda_kernel_says(uint64_t parameters, uint64_t read, uint64_t written)
{
	pthread_mutex_lock(&fake.lock);
	fake.traffic.parameters += parameters;
	fake.traffic.read += read;
	fake.traffic.written += written;
	pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_importers_gone(void)
{
	pthread_mutex_lock(&fake.lock);
	for (unsigned i = 0; i < FAKE_GPUS; i++) {
		fake.gpu[i].used -= fake.gpu[i].kept;
		fake.gpu[i].kept = 0;
	}
	pthread_mutex_unlock(&fake.lock);
}

unsigned fake_cuda_rdma_capable(void)
{
	struct fake_handle *h;
	unsigned n = 0;

	pthread_mutex_lock(&fake.lock);
	TAILQ_FOREACH(h, &fake.handles, link)
		n += h->memory->rdma;
	pthread_mutex_unlock(&fake.lock);
	return n;
}

const char *fake_cuda_violation(void)
{
	const char *text;

	pthread_mutex_lock(&fake.lock);
	text = fake.violation[0] ? fake.violation : NULL;
	pthread_mutex_unlock(&fake.lock);
	return text;
}

static unsigned tell(bool say, unsigned n, const char *what)
{
	if (n && say)
		fprintf(stderr, "fake CUDA: alive: %u %s\n", n, what);
	return n;
}

static unsigned count_ranges(const struct fake_ranges *ranges)
{
	const struct fake_range *r;
	unsigned n = 0;

	TAILQ_FOREACH(r, ranges, link)
		n++;
	return n;
}

unsigned fake_cuda_alive(bool say)
{
	unsigned handles = 0, mappings = 0, streams = 0, events = 0, graphs = 0, contexts = 0, n = 0;
	struct fake_handle *handle;
	struct fake_mapping *mapping;
	CUstream stream;
	CUevent event;
	CUgraph graph;
	CUcontext ctx;

	pthread_mutex_lock(&fake.lock);
	TAILQ_FOREACH(handle, &fake.handles, link)
		handles++;
	TAILQ_FOREACH(mapping, &fake.mappings, link)
		mappings++;
	TAILQ_FOREACH(stream, &fake.streams, link)
		streams += stream->user;
	TAILQ_FOREACH(event, &fake.events, link)
		events += !event->destroyed;
	TAILQ_FOREACH(graph, &fake.graphs, link)
		graphs++;
	TAILQ_FOREACH(ctx, &fake.contexts, link)
		contexts++;
	for (unsigned i = 0; i < FAKE_GPUS; i++)
		contexts += fake.gpu[i].primary.refs;
	n += tell(say, handles, "memory handles");
	n += tell(say, mappings, "mappings");
	n += tell(say, count_ranges(&fake.reserved), "address ranges");
	n += tell(say, count_ranges(&fake.allocated), "allocations");
	n += tell(say, count_ranges(&fake.pinned), "ranges of pinned memory");
	n += tell(say, streams, "streams");
	n += tell(say, events, "events");
	n += tell(say, graphs, "graphs");
	n += tell(say, contexts, "uses of contexts");
	pthread_mutex_unlock(&fake.lock);
	return n;
}

size_t fake_cuda_used(void)
{
	size_t used = 0;

	pthread_mutex_lock(&fake.lock);
	for (unsigned i = 0; i < FAKE_GPUS; i++)
		used += fake.gpu[i].used;
	pthread_mutex_unlock(&fake.lock);
	return used;
}

/* ---- rules and faults ---- */

static void note(const char *fmt, va_list args)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&lock);
	if (!fake.violation[0]) {
		vsnprintf(fake.violation, sizeof(fake.violation), fmt, args);
		fprintf(stderr, "fake CUDA: %s\n", fake.violation);
	}
	pthread_mutex_unlock(&lock);
}

CUresult fake_refuse(CUresult result, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	note(fmt, args);
	va_end(args);
	return result;
}

CUresult fake_refuse_gone(CUresult result, const char *fmt, ...)
{
	va_list args;

	if (__atomic_load_n(&fake.resets, __ATOMIC_ACQUIRE))
		return result;
	va_start(args, fmt);
	note(fmt, args);
	va_end(args);
	return result;
}

/* ---- captures ---- */

/*
 * Those that are not queued on a stream, so that a capture would not observe them, and those that
 * wait or ask for what was queued.
 */
static bool is_unsafe(const char *entry)
{
	static const char *const unsafe[] = {
		"cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister",
		"cuMemHostUnregister", "cuMemCreate", "cuMemRelease", "cuMemExportToShareableHandle",
		"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap",
		"cuMemUnmap", "cuMemSetAccess", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuStreamSynchronize",
		"cuStreamQuery", "cuCtxSynchronize", "cuEventSynchronize", "cuEventQuery",
		"cuCtxDestroy", "cuDevicePrimaryCtxReset",
	};

	for (unsigned i = 0; i < sizeof(unsafe) / sizeof(unsafe[0]); i++)
		if (!strcmp(entry, unsafe[i]))
			return true;
	return false;
}

/* fake.lock held. Whether captures forbid the call; those are invalid then. */
static bool capture_forbids(const char *entry)
{
	struct fake_capture *c;
	bool forbids = false;

	if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED || TAILQ_EMPTY(&fake.captures) ||
	    !is_unsafe(entry))
		return false;
	TAILQ_FOREACH(c, &fake.captures, link) {
		if (c->thread == fake_thread() ? c->mode == CU_STREAM_CAPTURE_MODE_RELAXED :
		    c->mode != CU_STREAM_CAPTURE_MODE_GLOBAL ||
		    capture_mode != CU_STREAM_CAPTURE_MODE_GLOBAL)
			continue;
		c->invalidated = true;
		forbids = true;
	}
	return forbids;
}

static CUresult fake_exchange_capture_mode(CUstreamCaptureMode *mode)
{
	CUresult err = fake_enter("cuThreadExchangeStreamCaptureMode");
	CUstreamCaptureMode was = capture_mode;

	if (err)
		return err;
	if (*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "a capture mode that is none");
	capture_mode = *mode;
	*mode = was;
	return CUDA_SUCCESS;
}

/* ---- every call ---- */

bool fake_takes_effect(CUresult err, unsigned gpus)
{
	return !err || !(gpus & without_effect);
}

/* fake.lock held. Those on whose things calls have no effect. */
static unsigned broken_gpus(void)
{
	if (!fake.broken || !fake.config.broken_frees)
		return 0;
	return fake.broken_ctx ? 1u << fake.broken_ctx->gpu : ALL_GPUS;
}

/* fake.lock held. */
/* Whether it is one of those that are to fail. Who waits for an event may have asked for it, and so need not wait. */
static bool fails(const char *entry)
{
	return !fake.fail.entry || !strcmp(fake.fail.entry, entry) ||
	       (!strcmp(fake.fail.entry, "cuEventSynchronize") && !strcmp(entry, "cuEventQuery"));
}

static void count_call(const char *entry)
{
	unsigned i = 0;

	while (i < FAKE_CALLED && fake.called[i].entry && strcmp(fake.called[i].entry, entry))
		i++;
	if (i == FAKE_CALLED)
		abort();
	fake.called[i].entry = entry;
	fake.called[i].calls++;
	fake.calls++;
}

CUresult fake_enter(const char *entry)
{
	CUresult result = CUDA_SUCCESS;
	unsigned latency;

	without_effect = 0;
	if (fake_in_host_func)
		return fake_refuse(CUDA_ERROR_NOT_PERMITTED, "%s in a host function", entry);
	pthread_mutex_lock(&fake.lock);
	if (!fake.configured)
		read_environment(&fake.config);
	count_call(entry);
	if (fake.pid && fake.pid != getpid())
		result = fake_refuse(CUDA_ERROR_NOT_INITIALIZED, "%s in a child that was forked after cuInit",
				     entry);
	else if (!fake.pid && strcmp(entry, "cuInit"))
		result = fake_refuse(CUDA_ERROR_NOT_INITIALIZED, "%s before cuInit", entry);
	else if (fake.broken && strcmp(entry, "cuDevicePrimaryCtxReset"))
		result = fake.broken;
	without_effect = result ? broken_gpus() : 0;
	if (!result && capture_forbids(entry)) {
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		without_effect = ALL_GPUS;
	}
	if (!result && fake.fail.nth && fails(entry) &&
	    !--fake.fail.nth) {
		result = fake.fail.result;
		fake.failed = true;
		if (fake.fail.sticky) {
			fake.broken = result;
			fake.broken_ctx = stack.depth ? stack.ctx[stack.depth - 1] : NULL;
			without_effect = broken_gpus();
		}
	}
	latency = fake.config.latency;
	pthread_mutex_unlock(&fake.lock);
	if (latency)
		usleep(latency);
	return result;
}

/* ---- devices and contexts ---- */

unsigned fake_gpu_of(CUdevice ordinal)
{
	return ((unsigned)ordinal + fake.config.first) % FAKE_GPUS;
}

static CUdevice ordinal_of(unsigned gpu)
{
	return (CUdevice)((gpu + FAKE_GPUS - fake.config.first) % FAKE_GPUS);
}

static bool is_device(CUdevice dev)
{
	return dev >= 0 && (unsigned)dev < fake.config.n_devices;
}

bool fake_is_context(CUcontext ctx)
{
	CUcontext c;
	bool found = false;

	pthread_mutex_lock(&fake.lock);
	for (unsigned i = 0; i < FAKE_GPUS; i++)
		found |= ctx == &fake.gpu[i].primary && ctx->refs;
	TAILQ_FOREACH(c, &fake.contexts, link)
		found |= c == ctx;
	pthread_mutex_unlock(&fake.lock);
	return found;
}

CUcontext fake_context(void)
{
	CUcontext ctx = stack.depth ? stack.ctx[stack.depth - 1] : NULL;

	return ctx && fake_is_context(ctx) && !__atomic_load_n(&ctx->reset, __ATOMIC_ACQUIRE) ? ctx : NULL;
}

_Thread_local unsigned fake_stream_gpu_bit;

unsigned fake_gpu_bit(void)
{
	CUcontext ctx = fake_stream_gpu_bit ? NULL : fake_context();

	if (fake_stream_gpu_bit)
		return fake_stream_gpu_bit;
	return ctx ? 1u << ctx->gpu : ~0u;
}

static CUresult fake_init(unsigned flags)
{
	CUresult err = fake_enter("cuInit");

	if (err)
		return err;
	if (flags)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuInit with flags");
	if (!fake.config.n_devices)
		return CUDA_ERROR_NO_DEVICE;
	pthread_mutex_lock(&fake.lock);
	fake.pid = getpid();
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static CUresult fake_device_get_count(int *count)
{
	CUresult err = fake_enter("cuDeviceGetCount");

	if (!err)
		*count = (int)fake.config.n_devices;
	return err;
}

static CUresult fake_device_get(CUdevice *dev, int ordinal)
{
	CUresult err = fake_enter("cuDeviceGet");

	if (err)
		return err;
	if (!is_device(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*dev = ordinal;
	return CUDA_SUCCESS;
}

static CUresult fake_device_get_uuid(CUuuid *uuid, CUdevice dev)
{
	CUresult err = fake_enter("cuDeviceGetUuid");

	if (err)
		return err;
	if (!is_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_cuda_uuid(fake_gpu_of(dev), (unsigned char *)uuid->bytes);
	return CUDA_SUCCESS;
}

static CUresult fake_device_get_name(char *name, int len, CUdevice dev)
{
	CUresult err = fake_enter("cuDeviceGetName");

	if (err)
		return err;
	if (!is_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)len, "Simulated GPU %u", fake_gpu_of(dev));
	return CUDA_SUCCESS;
}

static CUresult fake_device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
	CUresult err = fake_enter("cuDeviceGetAttribute");

	if (err)
		return err;
	if (!is_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	switch ((int)attribute) {
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = 2;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = 0;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
		*value = (int)fake.config.compute_mode;
		break;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
		*value = !fake.config.no_rdma;
		break;
	default: /* whatever it is, it is supported */
		*value = 1;
	}
	return CUDA_SUCCESS;
}

static CUresult fake_device_can_access_peer(int *can, CUdevice dev, CUdevice peer)
{
	CUresult err = fake_enter("cuDeviceCanAccessPeer");

	if (err)
		return err;
	if (!is_device(dev) || !is_device(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = dev != peer && !fake.config.no_peers;
	return CUDA_SUCCESS;
}

/* What making a context fails with. */
static CUresult compute_mode_fault(void)
{
	if (fake.config.compute_mode == CU_COMPUTEMODE_PROHIBITED)
		return CUDA_ERROR_UNKNOWN;
	if (fake.config.compute_mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS && fake.config.taken)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	return CUDA_SUCCESS;
}

static CUresult fake_driver_get_version(int *version)
{
	CUresult err = fake_enter("cuDriverGetVersion");

	if (!err)
		*version = 12000;
	return err;
}

static CUresult fake_device_get_pci_bus_id(char *id, int len, CUdevice dev)
{
	CUresult err = fake_enter("cuDeviceGetPCIBusId");

	if (err)
		return err;
	if (!is_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(id, (size_t)len, "FA4E:%02X:00.0", fake_gpu_of(dev));
	return CUDA_SUCCESS;
}

static CUresult fake_device_total_mem(size_t *bytes, CUdevice dev)
{
	CUresult err = fake_enter("cuDeviceTotalMem");

	if (err)
		return err;
	if (!is_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = fake.config.memory;
	return CUDA_SUCCESS;
}

static CUresult fake_primary_retain(CUcontext *ctx, CUdevice dev)
{
	CUresult err = fake_enter("cuDevicePrimaryCtxRetain");

	if (err)
		return err;
	if (!is_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	err = compute_mode_fault();
	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	*ctx = &fake.gpu[fake_gpu_of(dev)].primary;
	(*ctx)->refs++;
	__atomic_store_n(&(*ctx)->reset, false, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static CUresult fake_primary_release(CUdevice dev)
{
	CUresult err = fake_enter("cuDevicePrimaryCtxRelease");
	bool last;
	CUcontext ctx;

	if (!is_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&fake.lock);
	ctx = &fake.gpu[fake_gpu_of(dev)].primary;
	if (!ctx->refs) {
		pthread_mutex_unlock(&fake.lock);
		return fake_refuse(CUDA_ERROR_INVALID_CONTEXT, "a primary context released too often");
	}
	last = !--ctx->refs;
	pthread_mutex_unlock(&fake.lock);
	if (last)
		fake_default_streams_end(ctx);
	return err;
}

/* Ends something: takes effect even if it is made to fail, and then whatever is broken. */
static CUresult fake_primary_reset(CUdevice dev)
{
	CUresult err = fake_enter("cuDevicePrimaryCtxReset");
	CUcontext ctx;

	if (err == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || err == CUDA_ERROR_NOT_INITIALIZED ||
	    err == CUDA_ERROR_NOT_PERMITTED)
		return err;
	if (!is_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	ctx = &fake.gpu[fake_gpu_of(dev)].primary;
	__atomic_add_fetch(&fake.resets, 1, __ATOMIC_RELEASE);
	fake_streams_reset(ctx);
	fake_memory_reset(ctx);
	pthread_mutex_lock(&fake.lock);
	__atomic_store_n(&ctx->reset, true, __ATOMIC_RELEASE);
	if (fake.broken_ctx == ctx || !fake.broken_ctx) {
		fake.broken = CUDA_SUCCESS;
		fake.broken_ctx = NULL;
	}
	pthread_mutex_unlock(&fake.lock);
	return err;
}

/* The signature of cuCtxCreate_v2, which asks for nothing special. */
static CUresult fake_ctx_create(CUcontext *out, unsigned flags, CUdevice dev)
{
	CUresult err = fake_enter("cuCtxCreate");
	CUcontext ctx;

	if (err)
		return err;
	if (!is_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	err = compute_mode_fault();
	if (err)
		return err;
	if (stack.depth == MAX_STACK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ctx = calloc(1, sizeof(*ctx));
	ctx->gpu = fake_gpu_of(dev);
	pthread_mutex_lock(&fake.lock);
	TAILQ_INSERT_TAIL(&fake.contexts, ctx, link);
	pthread_mutex_unlock(&fake.lock);
	stack.ctx[stack.depth++] = *out = ctx;
	return CUDA_SUCCESS;
}

static CUresult fake_ctx_create_v4(CUcontext *out, CUctxCreateParams *params, unsigned flags,
				   CUdevice dev)
{
	return fake_ctx_create(out, flags, dev);
}

static CUresult fake_ctx_destroy(CUcontext ctx)
{
	CUresult err = fake_enter("cuCtxDestroy");
	CUcontext c;

	pthread_mutex_lock(&fake.lock);
	TAILQ_FOREACH(c, &fake.contexts, link)
		if (c == ctx)
			break;
	if (c && !fake_takes_effect(err, 1u << c->gpu)) {
		pthread_mutex_unlock(&fake.lock);
		return err;
	}
	if (c)
		TAILQ_REMOVE(&fake.contexts, c, link);
	pthread_mutex_unlock(&fake.lock);
	if (!c)
		return fake_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxDestroy of no context");
	if (stack.depth && stack.ctx[stack.depth - 1] == c)
		stack.depth--;
	fake_default_streams_end(c);
	pthread_mutex_lock(&fake.lock);
	TAILQ_INSERT_TAIL(&fake.dead, c, link);
	pthread_mutex_unlock(&fake.lock);
	return err;
}

static CUresult fake_ctx_get_current(CUcontext *ctx)
{
	CUresult err = fake_enter("cuCtxGetCurrent");

	if (!err)
		*ctx = stack.depth ? stack.ctx[stack.depth - 1] : NULL;
	return err;
}

static CUresult fake_ctx_set_current(CUcontext ctx)
{
	CUresult err = fake_enter("cuCtxSetCurrent");

	if (err)
		return err;
	if (ctx && !fake_is_context(ctx))
		return fake_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxSetCurrent of no context");
	if (stack.depth)
		stack.depth--;
	if (ctx)
		stack.ctx[stack.depth++] = ctx;
	return CUDA_SUCCESS;
}

static CUresult fake_ctx_push_current(CUcontext ctx)
{
	CUresult err = fake_enter("cuCtxPushCurrent");

	if (err)
		return err;
	if (!fake_is_context(ctx))
		return fake_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxPushCurrent of no context");
	if (stack.depth == MAX_STACK)
		return CUDA_ERROR_INVALID_VALUE;
	stack.ctx[stack.depth++] = ctx;
	return CUDA_SUCCESS;
}

/* Ends something: takes effect even if it is made to fail. */
static CUresult fake_ctx_pop_current(CUcontext *ctx)
{
	CUresult err = fake_enter("cuCtxPopCurrent");

	if (!stack.depth)
		return fake_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxPopCurrent of nothing");
	stack.depth--;
	if (ctx)
		*ctx = stack.ctx[stack.depth];
	return err;
}

static CUresult fake_ctx_get_device(CUdevice *dev)
{
	CUresult err = fake_enter("cuCtxGetDevice");
	CUcontext ctx = fake_context();

	if (err)
		return err;
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	*dev = ordinal_of(ctx->gpu);
	return CUDA_SUCCESS;
}

static CUresult fake_get_error_name(CUresult result, const char **name)
{
	*name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" :
		result == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
	return CUDA_SUCCESS;
}

static CUresult fake_get_error_string(CUresult result, const char **text)
{
	*text = result == CUDA_SUCCESS ? "no error" : "a simulated error";
	return CUDA_SUCCESS;
}

const struct fake_entry fake_context_entries[] = {
	{ "cuInit", fake_init },
	{ "cuDriverGetVersion", fake_driver_get_version },
	{ "cuDeviceGetCount", fake_device_get_count },
	{ "cuDeviceGet", fake_device_get },
	{ "cuDeviceGetUuid", fake_device_get_uuid },
	{ "cuDeviceGetName", fake_device_get_name },
	{ "cuDeviceGetAttribute", fake_device_get_attribute },
	{ "cuDeviceCanAccessPeer", fake_device_can_access_peer },
	{ "cuDeviceGetPCIBusId", fake_device_get_pci_bus_id },
	{ "cuDeviceTotalMem", fake_device_total_mem },
	{ "cuDevicePrimaryCtxRetain", fake_primary_retain },
	{ "cuDevicePrimaryCtxReset", fake_primary_reset },
	{ "cuThreadExchangeStreamCaptureMode", fake_exchange_capture_mode },
	{ "cuDevicePrimaryCtxRelease", fake_primary_release },
	{ "cuCtxCreate", fake_ctx_create_v4 },
	{ "cuCtxCreate_v2", fake_ctx_create },
	{ "cuCtxCreate_v4", fake_ctx_create_v4 },
	{ "cuCtxDestroy", fake_ctx_destroy },
	{ "cuCtxGetCurrent", fake_ctx_get_current },
	{ "cuCtxSetCurrent", fake_ctx_set_current },
	{ "cuCtxPushCurrent", fake_ctx_push_current },
	{ "cuCtxPopCurrent", fake_ctx_pop_current },
	{ "cuCtxGetDevice", fake_ctx_get_device },
	{ "cuGetErrorName", fake_get_error_name },
	{ "cuGetErrorString", fake_get_error_string },
	{ NULL, NULL },
};
