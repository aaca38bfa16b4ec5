/*
 * host.c - home memory that is registered for DMA.
 *
 * A registration belongs to the process, not to a device, and a range cannot be registered twice. So there is one table
 * for all devices. A slab is announced when it is made. When an operation names a slab for the first time, a thread of
 * each device (the pinner) begins to register slabs, first those that operations have named. Until a slab is registered
 * its pages go through staging buffers. (CUDA may make a registration wait for the streams. No operation waits for it.) If
 * no device is used nothing is registered; otherwise all of home is in the end, even parts that only CPU programs use.
 *
 * Slabs that wait side by side are registered together, as an arena: so the fewer calls are made the further the pinner is
 * behind, and a copy may go from one slab to the next. An arena ends as a whole. When one of its slabs goes, nobody gets
 * addresses of the others any more, batches that may have some are waited for, and the others are registered again
 * when operations name them. So one that was announced alone, and is to go alone, is an arena by itself.
 *
 * An arena is registered for all devices (PORTABLE), through one of them. If that fails its slabs are tried one by one,
 * each once.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/thread.h"
#include "device/cuda/internal.h"

#define uthash_fatal(msg) bug("uthash: %s", msg)
#include <uthash.h>

#define ARENA_SLABS 32u

/* One registration. Lives from pin_next() until it is unregistered, or its context is reset. */
struct arena {
	/* Constant once it is usable. */
	char *at;
	unsigned n; /* slabs */
	struct cuda *by; /* the device in whose context it is */
	CUdeviceptr address; /* the same on all devices (unified addressing) */

	/* registry.lock */
	bool usable; /* false: it is being registered, or is ending */
	LIST_ENTRY(arena) link;
};

/* Lives from its first announcement until every device to which it was announced was told of its end. */
struct slab {
	void *at; /* the key */

	/* registry.lock */
	unsigned announced; /* by how many devices */
	bool alone; /* it shares no arena: it goes by itself */
	enum slab_state {
		SLAB_WAITS, /* in registry.todo */
		SLAB_IN_ARENA,
		SLAB_LEFT, /* over from an arena that has ended; waits when an operation names it */
		SLAB_REFUSED,
	} state;
	struct arena *arena; /* IN_ARENA */
	UT_hash_handle hh;
	TAILQ_ENTRY(slab) link;
};

static struct {
	pthread_mutex_t lock; /* a leaf */
	pthread_cond_t changed;
	struct slab *slabs;
	TAILQ_HEAD(, slab) todo;
	LIST_HEAD(, arena) arenas;
	bool named; /* an operation has named a slab */
	bool singly; /* several slabs at once were refused */
	bool told;
	/*
	 * Batches of all devices that are not done, by the epoch in which they began, which is 0 or 1. While batches are
	 * waited for (`turning`) new ones begin in the other epoch. Otherwise that one has none.
	 */
	unsigned batches[2], epoch;
	bool turning;
} registry = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.todo = TAILQ_HEAD_INITIALIZER(registry.todo),
};

/* registry.lock */
static struct slab *find(void *at)
{
	struct slab *s;

	HASH_FIND_PTR(registry.slabs, &at, s);
	return s;
}

/* ---- arenas: registry.lock is held ---- */

static bool may_join(const struct slab *s)
{
	return s && s->state == SLAB_WAITS && !s->alone;
}

/* Of @s and slabs beside it that wait as well. */
static struct arena *make_arena(struct cuda *cuda, struct slab *s)
{
	struct arena *a = xcalloc(1, sizeof(*a));
	unsigned most = registry.singly || s->alone ? 1 : ARENA_SLABS;

	a->by = cuda;
	a->at = s->at;
	a->n = 1;
	while (a->n < most && may_join(find(a->at + a->n * GAIA_CHUNK)))
		a->n++;
	while (a->n < most && may_join(find(a->at - GAIA_CHUNK))) {
		a->at -= GAIA_CHUNK;
		a->n++;
	}
	for (unsigned i = 0; i < a->n; i++) {
		s = find(a->at + i * GAIA_CHUNK);
		TAILQ_REMOVE(&registry.todo, s, link);
		s->state = SLAB_IN_ARENA;
		s->arena = a;
	}
	LIST_INSERT_HEAD(&registry.arenas, a, link);
	return a;
}

/* It is not registered any more, or was not at all. */
static void free_arena(struct arena *a, enum slab_state next)
{
	for (unsigned i = a->n; i-- > 0;) {
		struct slab *s = find(a->at + i * GAIA_CHUNK);

		s->state = next;
		s->arena = NULL;
		if (next == SLAB_WAITS)
			TAILQ_INSERT_HEAD(&registry.todo, s, link);
	}
	LIST_REMOVE(a, link);
	free(a);
	pthread_cond_broadcast(&registry.changed);
}

/* Wait until all batches that have begun are done. registry.lock is dropped meanwhile. */
static void wait_for_batches(void)
{
	unsigned epoch;

	while (registry.turning)
		pthread_cond_wait(&registry.changed, &registry.lock);
	epoch = registry.epoch;
	bug_on(registry.batches[!epoch] != 0);
	registry.turning = true;
	registry.epoch = !epoch;
	while (registry.batches[epoch] > 0)
		pthread_cond_wait(&registry.changed, &registry.lock);
	registry.turning = false;
	pthread_cond_broadcast(&registry.changed);
}

/* registry.lock is dropped meanwhile. The context stays, as cuda_host_leave() waits for arenas that are ending. */
static void end_arena(struct arena *a)
{
	a->usable = false;
	/* No operation names the slab that goes. */
	if (a->n > 1)
		wait_for_batches();
	pthread_mutex_unlock(&registry.lock);
	(void)cuda_enter(a->by); /* even if that fails: nothing may stay pinned */
	cuda_ended(a->by, a->by->api->cuMemHostUnregister(a->at), "cuMemHostUnregister");
	pthread_mutex_lock(&registry.lock);
	free_arena(a, SLAB_LEFT);
}

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
static bool register_arena(struct arena *a, CUresult *result)
{
	struct cuda *cuda = a->by;

	*result = cuda->api->cuMemHostRegister(a->at, a->n * (size_t)GAIA_CHUNK,
					       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	switch (*result) {
	case CUDA_SUCCESS:
		if (!cuda_check(cuda, cuda->api->cuMemHostGetDevicePointer(&a->address, a->at, 0),
				"cuMemHostGetDevicePointer"))
			return true;
		cuda_ended(cuda, cuda->api->cuMemHostUnregister(a->at), "cuMemHostUnregister");
		return false;
	case CUDA_ERROR_OUT_OF_MEMORY:
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_NOT_SUPPORTED:
	case CUDA_ERROR_NOT_PERMITTED:
	case CUDA_ERROR_OPERATING_SYSTEM:
	case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
		return false;
	default:
		cuda_ended(cuda, *result, "cuMemHostRegister");
		return false;
	}
}

/* registry.lock is held, but dropped meanwhile. */
static void pin_next(struct cuda *cuda, struct slab *s)
{
	struct arena *a = make_arena(cuda, s);
	bool registered, off, tell = false;
	CUresult result;

	pthread_mutex_unlock(&registry.lock);
	registered = register_arena(a, &result);
	pthread_mutex_lock(&registry.lock);
	off = atomic_load(&cuda->off);
	if (registered) {
		a->usable = true;
		pthread_cond_broadcast(&registry.changed);
	} else if (a->n > 1 && !off) {
		registry.singly = true;
		free_arena(a, SLAB_WAITS);
	} else {
		/* If the device has broken no other should try to register them: that device might break, too. */
		free_arena(a, SLAB_REFUSED);
		tell = !registry.told && !off;
		registry.told |= tell;
	}
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

/* registry.lock is held, but dropped while the slab's arena is being registered, or is ending. */
static struct slab *find_idle(void *at)
{
	struct slab *s;

	while ((s = find(at)) && s->arena && !s->arena->usable)
		pthread_cond_wait(&registry.changed, &registry.lock);
	return s;
}

/* registry.lock */
static void announce(void *at, bool alone)
{
	struct slab *s = find(at);

	if (!s) {
		s = xcalloc(1, sizeof(*s));
		s->at = at;
		s->alone = alone;
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

	bug_on(!s);
	if (--s->announced)
		return;
	if (s->arena)
		end_arena(s->arena);
	if (s->announced) /* anew, while the arena was ending */
		return;
	HASH_DEL(registry.slabs, s);
	if (s->state == SLAB_WAITS)
		TAILQ_REMOVE(&registry.todo, s, link);
	registry.named &= registry.slabs != NULL;
	registry.singly &= registry.slabs != NULL;
	free(s);
}

void cuda_host_slab(struct device *dev, void *slab, enum host_slab what)
{
	pthread_mutex_lock(&registry.lock);
	if (what != HOST_SLAB_GOES)
		announce(slab, what == HOST_SLAB_COMES_ALONE);
	else
		withdraw(slab);
	pthread_mutex_unlock(&registry.lock);
}

/* An operation has named the slab: it is registered next. registry.lock is held. */
static void put_first(struct slab *s)
{
	if (s->state == SLAB_WAITS)
		TAILQ_REMOVE(&registry.todo, s, link);
	s->state = SLAB_WAITS;
	TAILQ_INSERT_HEAD(&registry.todo, s, link);
	registry.named = true;
	pthread_cond_broadcast(&registry.changed);
}

CUdeviceptr cuda_host_address(const void *host, size_t *bytes)
{
	void *at = (void *)ROUND_DOWN((uintptr_t)host, GAIA_CHUNK);
	const char *end = (char *)at + GAIA_CHUNK;
	CUdeviceptr address = 0;
	struct slab *s;

	pthread_mutex_lock(&registry.lock);
	s = find(at);
	if (s && (s->state == SLAB_WAITS || s->state == SLAB_LEFT)) {
		put_first(s);
	} else if (s && s->arena && s->arena->usable) {
		const struct arena *a = s->arena;

		address = a->address + (size_t)((const char *)host - a->at);
		end = a->at + a->n * (size_t)GAIA_CHUNK;
	}
	pthread_mutex_unlock(&registry.lock);
	*bytes = (size_t)(end - (const char *)host);
	return address;
}

unsigned cuda_host_begin(void)
{
	unsigned epoch;

	pthread_mutex_lock(&registry.lock);
	epoch = registry.epoch;
	registry.batches[epoch]++;
	pthread_mutex_unlock(&registry.lock);
	return epoch;
}

void cuda_host_done(unsigned epoch)
{
	pthread_mutex_lock(&registry.lock);
	if (--registry.batches[epoch] == 0 && registry.turning)
		pthread_cond_broadcast(&registry.changed);
	pthread_mutex_unlock(&registry.lock);
}

void cuda_host_settle(struct cuda *cuda, void *slab)
{
	size_t bytes;
	struct slab *s;

	(void)cuda_host_address(slab, &bytes);
	pthread_mutex_lock(&registry.lock);
	while ((s = find_idle(slab)) && s->state == SLAB_WAITS && !atomic_load(&cuda->off))
		pthread_cond_wait(&registry.changed, &registry.lock);
	pthread_mutex_unlock(&registry.lock);
}

/* ---- the end of a context ---- */

/* The first arena in the device's context from @a on. registry.lock is held. */
static struct arena *arena_by(struct arena *a, const struct cuda *cuda)
{
	while (a && a->by != cuda)
		a = LIST_NEXT(a, link);
	return a;
}

static struct arena *first_by(const struct cuda *cuda)
{
	return arena_by(LIST_FIRST(&registry.arenas), cuda);
}

static struct arena *next_by(const struct arena *a, const struct cuda *cuda)
{
	return arena_by(LIST_NEXT(a, link), cuda);
}

/* Whether some are being registered, or are ending. */
static bool some_are_busy(const struct cuda *cuda)
{
	for (struct arena *a = first_by(cuda); a; a = next_by(a, cuda))
		if (!a->usable)
			return true;
	return false;
}

void cuda_host_leave(struct cuda *cuda)
{
	pthread_mutex_lock(&registry.lock);
	while (some_are_busy(cuda))
		pthread_cond_wait(&registry.changed, &registry.lock);
	for (struct arena *a = first_by(cuda); a; a = next_by(a, cuda))
		a->usable = false;
	if (first_by(cuda))
		wait_for_batches();
	pthread_mutex_unlock(&registry.lock);
}

void cuda_host_left(struct cuda *cuda, bool ended)
{
	struct arena *a, *next;

	pthread_mutex_lock(&registry.lock);
	for (a = first_by(cuda); a; a = next) {
		next = next_by(a, cuda);
		if (ended)
			free_arena(a, SLAB_WAITS);
		else
			a->usable = true;
	}
	pthread_cond_broadcast(&registry.changed);
	pthread_mutex_unlock(&registry.lock);
}

void cuda_host_end(struct cuda *cuda)
{
	cuda_host_leave(cuda);
	pthread_mutex_lock(&registry.lock);
	/* These stay, because this thread has made them unusable. Others may come and go. */
	for (struct arena *a = first_by(cuda); a; a = next_by(a, cuda)) {
		pthread_mutex_unlock(&registry.lock);
		cuda_ended(cuda, cuda->api->cuMemHostUnregister(a->at), "cuMemHostUnregister");
		pthread_mutex_lock(&registry.lock);
	}
	pthread_mutex_unlock(&registry.lock);
	cuda_host_left(cuda, true);
}
