/*
 * host.c - home memory that is registered for DMA.
 *
 * A registration belongs to the process, not to a device, and a range cannot be registered twice: so there
 * is one table for all devices. A slab is announced when it is made, and registered when
 * an operation first names it: files that no device touches cost nothing. It is
 * registered for all devices (PORTABLE), by the first that needs it.
 *
 * A slab that cannot be registered is not tried again: its pages go through staging buffers.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "device/cuda/internal.h"

#define uthash_fatal(msg) bug("uthash: %s", msg)
#include <uthash.h>

/* Lives from its first announcement until as many devices were told that it goes. */
struct slab {
	void *at; /* the key */

	/* registry.lock */
	unsigned announced; /* by how many devices */
	enum { SLAB_UNTRIED, SLAB_REGISTERED, SLAB_REFUSED } state;
	/* REGISTERED: through this device's context. The address is the same for all devices: unified. */
	struct cuda *by;
	CUdeviceptr address;
	UT_hash_handle hh;
};

static struct {
	pthread_mutex_t lock; /* held while registering; taken with no other lock held */
	struct slab *slabs;
	bool told;
} registry = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* registry.lock. */
static void unregister(struct slab *s)
{
	if (s->state != SLAB_REGISTERED)
		return;
	(void)cuda_enter(s->by); /* even without: nothing may stay pinned */
	cuda_ended(s->by, s->by->api->cuMemHostUnregister(s->at), "cuMemHostUnregister");
	s->state = SLAB_REFUSED;
}

/* registry.lock. */
static void register_slab(struct cuda *cuda, struct slab *s)
{
	CUresult result = cuda->api->cuMemHostRegister(
		s->at, GAIA_CHUNK, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);

	switch (result) {
	case CUDA_SUCCESS:
		s->state = SLAB_REGISTERED;
		s->by = cuda;
		if (cuda_check(cuda, cuda->api->cuMemHostGetDevicePointer(&s->address, s->at, 0),
			       "cuMemHostGetDevicePointer"))
			unregister(s);
		return;
	case CUDA_ERROR_OUT_OF_MEMORY:
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_NOT_SUPPORTED:
	case CUDA_ERROR_NOT_PERMITTED:
	case CUDA_ERROR_OPERATING_SYSTEM:
	case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
		break;
	default:
		cuda_ended(cuda, result, "cuMemHostRegister");
	}
	s->state = SLAB_REFUSED;
	if (!registry.told)
		log_warn("device %s: cannot pin host memory (error %d): copies are slower; a limit on locked memory?",
			 cuda->base.name, (int)result);
	registry.told = true;
}

void cuda_host_slab(struct device *dev, void *slab, bool there)
{
	struct slab *s;

	pthread_mutex_lock(&registry.lock);
	HASH_FIND_PTR(registry.slabs, &slab, s);
	if (there) {
		if (!s) {
			s = xcalloc(1, sizeof(*s));
			s->at = slab;
			HASH_ADD_PTR(registry.slabs, at, s);
		}
		s->announced++;
	} else {
		bug_on(!s);
		if (!--s->announced) {
			unregister(s);
			HASH_DEL(registry.slabs, s);
			free(s);
		}
	}
	pthread_mutex_unlock(&registry.lock);
}

CUdeviceptr cuda_host_address(struct cuda *cuda, const void *host)
{
	void *slab = (void *)ROUND_DOWN((uintptr_t)host, GAIA_CHUNK);
	CUdeviceptr address = 0;
	struct slab *s;

	pthread_mutex_lock(&registry.lock);
	HASH_FIND_PTR(registry.slabs, &slab, s);
	if (s && s->state == SLAB_UNTRIED)
		register_slab(cuda, s);
	if (s && s->state == SLAB_REGISTERED)
		address = s->address + ((uintptr_t)host - (uintptr_t)slab);
	pthread_mutex_unlock(&registry.lock);
	return address;
}
