/*
 * host.c - home memory that is registered for DMA.
 *
 * A registration belongs to the process, not to a device, and a range cannot be registered twice. So there is one table
 * for all devices. A slab is announced when it is made. When an operation names a slab for the first time, a thread of
 * each device (the pinner) begins to register slabs, first those that operations have named. Until a slab is registered
 * its pages go through staging buffers. (CUDA may make a registration wait for the streams. No operation waits for it.) If
 * no device is used nothing is registered; otherwise all of home is in the end, even parts that only CPU programs use.
 *
 * A slab is registered for all devices (PORTABLE), through one of them. If that fails it is not tried again.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/thread.h"
#include "device/cuda/internal.h"

#define uthash_fatal(msg) bug("uthash: %s", msg)
#include <uthash.h>

/* Lives from its first announcement until every device to which it was announced was told of its end. */
struct slab {
	void *at; /* the key */

	/* registry.lock */
	unsigned announced; /* by how many devices */
	enum slab_state {
		SLAB_UNTRIED, /* in registry.todo */
		SLAB_BUSY,    /* being registered, or its context is being reset */
		SLAB_REGISTERED,
		SLAB_REFUSED,
	} state;
	/*
	 * REGISTERED, BUSY: the device in whose context it is. The address is the same on all devices (unified
	 * addressing).
	 */
	struct cuda *by;
	CUdeviceptr address;
	UT_hash_handle hh;
	TAILQ_ENTRY(slab) link;
};

static struct {
	pthread_mutex_t lock; /* a leaf */
	pthread_cond_t changed;
	struct slab *slabs;
	TAILQ_HEAD(, slab) todo;
	bool named; /* an operation has named a slab */
	bool told;
	unsigned lent[CUDA_ORDINALS]; /* [i]: uses by other GPUs of the registrations in GPU i's context */
} registry = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.todo = TAILQ_HEAD_INITIALIZER(registry.todo),
};

/* ---- the pinner ---- */

static void tell_refused(struct cuda *cuda, CUresult result)
{
	const char *text;

	if (cuda->api->cuGetErrorString(result, &text))
		text = "unknown error";
	log_warn("device %s: host memory cannot be pinned: %s (error %d): copies are slower. The limit of locked memory "
		 "(ulimit -l) does not count here; a smaller --home may help, or more memory for the container",
		 cuda->base.name, text, (int)result);
}

/* Called without a lock. */
static enum slab_state register_slab(struct cuda *cuda, void *at, CUdeviceptr *address, CUresult *result)
{
	*result = cuda->api->cuMemHostRegister(at, GAIA_CHUNK,
					       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	switch (*result) {
	case CUDA_SUCCESS:
		if (!cuda_check(cuda, cuda->api->cuMemHostGetDevicePointer(address, at, 0),
				"cuMemHostGetDevicePointer"))
			return SLAB_REGISTERED;
		cuda_ended(cuda, cuda->api->cuMemHostUnregister(at), "cuMemHostUnregister");
		return SLAB_REFUSED;
	case CUDA_ERROR_OUT_OF_MEMORY:
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_NOT_SUPPORTED:
	case CUDA_ERROR_NOT_PERMITTED:
	case CUDA_ERROR_OPERATING_SYSTEM:
	case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
		return SLAB_REFUSED;
	default:
		/* No other device should try to register it: that device might break, too. */
		cuda_ended(cuda, *result, "cuMemHostRegister");
		return SLAB_REFUSED;
	}
}

/* registry.lock is held, but dropped meanwhile. */
static void pin_next(struct cuda *cuda, struct slab *s)
{
	CUdeviceptr address = 0;
	enum slab_state state;
	CUresult result;
	bool tell;

	TAILQ_REMOVE(&registry.todo, s, link);
	s->state = SLAB_BUSY;
	s->by = cuda;
	pthread_mutex_unlock(&registry.lock);
	state = register_slab(cuda, s->at, &address, &result);
	pthread_mutex_lock(&registry.lock);
	s->state = state;
	s->address = address;
	tell = state == SLAB_REFUSED && !registry.told && !atomic_load(&cuda->off);
	registry.told |= tell;
	pthread_cond_broadcast(&registry.changed);
	if (tell) {
		pthread_mutex_unlock(&registry.lock);
		tell_refused(cuda, result);
		pthread_mutex_lock(&registry.lock);
	}
}

void *cuda_pinner_main(void *arg)
{
	struct cuda *cuda = arg;

	thread_set_name("cuda-pin");
	if (cuda_enter(cuda))
		return NULL;
	pthread_mutex_lock(&registry.lock);
	while (!cuda->stop_pinner && !atomic_load(&cuda->off)) {
		struct slab *s = registry.named ? TAILQ_FIRST(&registry.todo) : NULL;

		if (s)
			pin_next(cuda, s);
		else
			pthread_cond_wait(&registry.changed, &registry.lock);
	}
	pthread_mutex_unlock(&registry.lock);
	return NULL;
}

void cuda_host_stop(struct cuda *cuda)
{
	pthread_mutex_lock(&registry.lock);
	cuda->stop_pinner = true;
	pthread_cond_broadcast(&registry.changed);
	pthread_mutex_unlock(&registry.lock);
}

void cuda_host_wake(void)
{
	pthread_mutex_lock(&registry.lock);
	pthread_cond_broadcast(&registry.changed);
	pthread_mutex_unlock(&registry.lock);
}

/* ---- slabs ---- */

/* registry.lock */
static struct slab *find(void *at)
{
	struct slab *s;

	HASH_FIND_PTR(registry.slabs, &at, s);
	return s;
}

/* registry.lock is held, but dropped while the slab is busy. */
static struct slab *find_idle(void *at)
{
	struct slab *s;

	while ((s = find(at)) && s->state == SLAB_BUSY)
		pthread_cond_wait(&registry.changed, &registry.lock);
	return s;
}

/* registry.lock */
static void announce(void *at)
{
	struct slab *s = find(at);

	if (!s) {
		s = xcalloc(1, sizeof(*s));
		s->at = at;
		HASH_ADD_PTR(registry.slabs, at, s);
		TAILQ_INSERT_TAIL(&registry.todo, s, link);
		if (registry.named)
			pthread_cond_broadcast(&registry.changed);
	}
	s->announced++;
}

/* registry.lock is held, but dropped meanwhile. */
static void withdraw(void *at)
{
	struct slab *s = find_idle(at);
	struct cuda *by;

	bug_on(!s);
	if (--s->announced)
		return;
	HASH_DEL(registry.slabs, s);
	if (s->state == SLAB_UNTRIED)
		TAILQ_REMOVE(&registry.todo, s, link);
	registry.named &= registry.slabs != NULL;
	by = s->state == SLAB_REGISTERED ? s->by : NULL;
	free(s);
	if (!by)
		return;
	/* Counts as a use, so that the context stays meanwhile. */
	registry.lent[by->ordinal]++;
	pthread_mutex_unlock(&registry.lock);
	(void)cuda_enter(by); /* even if that fails: nothing may stay pinned */
	cuda_ended(by, by->api->cuMemHostUnregister(at), "cuMemHostUnregister");
	pthread_mutex_lock(&registry.lock);
	registry.lent[by->ordinal]--;
	pthread_cond_broadcast(&registry.changed);
}

void cuda_host_slab(struct device *dev, void *slab, bool there)
{
	pthread_mutex_lock(&registry.lock);
	if (there)
		announce(slab);
	else
		withdraw(slab);
	pthread_mutex_unlock(&registry.lock);
}

CUdeviceptr cuda_host_address(struct cuda *cuda, const void *host, uint64_t *lenders)
{
	void *at = (void *)ROUND_DOWN((uintptr_t)host, GAIA_CHUNK);
	CUdeviceptr address = 0;
	struct slab *s;

	pthread_mutex_lock(&registry.lock);
	s = find(at);
	if (s && s->state == SLAB_UNTRIED) {
		TAILQ_REMOVE(&registry.todo, s, link);
		TAILQ_INSERT_HEAD(&registry.todo, s, link);
		registry.named = true;
		pthread_cond_broadcast(&registry.changed);
	}
	if (s && s->state == SLAB_REGISTERED) {
		uint64_t lender = s->by == cuda ? 0 : 1ull << s->by->ordinal;

		address = s->address + ((uintptr_t)host - (uintptr_t)at);
		if (lender & ~*lenders)
			registry.lent[s->by->ordinal]++;
		*lenders |= lender;
	}
	pthread_mutex_unlock(&registry.lock);
	return address;
}

void cuda_host_return(uint64_t lenders)
{
	if (!lenders)
		return;
	pthread_mutex_lock(&registry.lock);
	for (unsigned i = 0; i < CUDA_ORDINALS; i++)
		registry.lent[i] -= lenders >> i & 1;
	pthread_cond_broadcast(&registry.changed);
	pthread_mutex_unlock(&registry.lock);
}

void cuda_host_settle(struct cuda *cuda, void *slab)
{
	uint64_t lenders = 0;
	struct slab *s;

	(void)cuda_host_address(cuda, slab, &lenders);
	cuda_host_return(lenders);
	pthread_mutex_lock(&registry.lock);
	while ((s = find_idle(slab)) && s->state == SLAB_UNTRIED && !atomic_load(&cuda->off))
		pthread_cond_wait(&registry.changed, &registry.lock);
	pthread_mutex_unlock(&registry.lock);
}

/* ---- the end of a context ---- */

/* registry.lock. */
static bool some_are_being_pinned(const struct cuda *cuda)
{
	for (struct slab *s = registry.slabs; s; s = s->hh.next)
		if (s->state == SLAB_BUSY && s->by == cuda)
			return true;
	return false;
}

void cuda_host_leave(struct cuda *cuda)
{
	pthread_mutex_lock(&registry.lock);
	while (some_are_being_pinned(cuda))
		pthread_cond_wait(&registry.changed, &registry.lock);
	for (struct slab *s = registry.slabs; s; s = s->hh.next)
		if (s->state == SLAB_REGISTERED && s->by == cuda)
			s->state = SLAB_BUSY;
	while (registry.lent[cuda->ordinal] > 0)
		pthread_cond_wait(&registry.changed, &registry.lock);
	pthread_mutex_unlock(&registry.lock);
}

void cuda_host_left(struct cuda *cuda, bool ended)
{
	pthread_mutex_lock(&registry.lock);
	for (struct slab *s = registry.slabs; s; s = s->hh.next) {
		if (s->state != SLAB_BUSY || s->by != cuda)
			continue;
		s->state = ended ? SLAB_UNTRIED : SLAB_REGISTERED;
		if (ended)
			TAILQ_INSERT_TAIL(&registry.todo, s, link);
	}
	pthread_cond_broadcast(&registry.changed);
	pthread_mutex_unlock(&registry.lock);
}

void cuda_host_end(struct cuda *cuda)
{
	struct slab *s;

	cuda_host_leave(cuda);
	pthread_mutex_lock(&registry.lock);
	for (s = registry.slabs; s; s = s->hh.next) {
		/* The slab stays, because this thread has made it BUSY. Other slabs may come and go. */
		if (s->state != SLAB_BUSY || s->by != cuda)
			continue;
		pthread_mutex_unlock(&registry.lock);
		cuda_ended(cuda, cuda->api->cuMemHostUnregister(s->at), "cuMemHostUnregister");
		pthread_mutex_lock(&registry.lock);
	}
	pthread_mutex_unlock(&registry.lock);
	cuda_host_left(cuda, true);
}
