/*
 * peer.c - reading the memory of another GPU.
 *
 * Access to memory that is mapped by parts, as chunks are, is set for each part and each GPU that uses it:
 * enabling peer access between contexts has no effect on it. So a GPU is given access to a chunk of another, or to an
 * extent, when it first copies from it, and keeps the access as long as that is mapped.
 */
#include <errno.h>

#include "base/log.h"
#include "device/cuda/internal.h"

bool cuda_reaches(struct device *dev, const struct device *from)
{
	struct cuda *cuda = to_cuda(dev), *source = to_cuda(from->core);
	int can = 0;

	if (from->core->ops != dev->ops)
		return false;
	if (atomic_load(&source->off) || cuda_enter_call(cuda))
		return false;
	if (cuda_check(cuda, cuda->api->cuDeviceCanAccessPeer(&can, cuda->ordinal, source->ordinal),
		       "cuDeviceCanAccessPeer"))
		can = 0;
	cuda_leave_call(cuda);
	return can;
}

struct cuda *cuda_source(const struct dev_op *op)
{
	return to_cuda(op->from->core);
}

int cuda_sources_hold(struct cuda *cuda, const struct dev_op *op, const char **fault)
{
	struct cuda *source = cuda_source(op);
	bool live = true, off;

	if (source == cuda || op->from->core->ops != cuda->base.ops) {
		*fault = "a source that is no other GPU";
		return -EINVAL;
	}
	pthread_mutex_lock(&source->lock);
	/* Operations under way keep the memory (give_back()). No new ones begin. */
	off = atomic_load(&source->off);
	for (unsigned i = 0; i < op->n && live; i++)
		live = cuda_find_live(source, op->runs[i].other);
	for (unsigned i = 0; i < op->n && live && !off; i++)
		cuda_find_live(source, op->runs[i].other)->in_flight++;
	source->readers += live && !off;
	pthread_mutex_unlock(&source->lock);
	if (!live)
		*fault = "a source that is not the other device's";
	return !live ? -EINVAL : off ? -EHOSTUNREACH : 0;
}

void cuda_sources_drop(const struct dev_op *op)
{
	struct cuda *source = cuda_source(op);

	pthread_mutex_lock(&source->lock);
	for (unsigned i = 0; i < op->n; i++)
		cuda_find_live(source, op->runs[i].other)->in_flight--;
	source->readers--;
	pthread_cond_broadcast(&source->memory);
	pthread_mutex_unlock(&source->lock);
}

int cuda_source_open(struct cuda *cuda, struct cuda *source, struct devmem *mem)
{
	const CUmemAccessDesc access = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->ordinal },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE, /* no other program is known to ask for reading alone */
	};
	size_t bytes;
	struct cuda_chunk *first = cuda_allocation(source, mem, &bytes);
	uint64_t self = 1ull << cuda->ordinal;
	CUresult result;
	bool open;

	pthread_mutex_lock(&source->lock);
	open = first->readers & self;
	pthread_mutex_unlock(&source->lock);
	if (open)
		return 0;
	result = cuda->api->cuMemSetAccess(cuda_page(source, &first->base, 0), bytes, &access, 1);
	if (result != CUDA_SUCCESS) {
		/* That is no reason to switch off one of the two: the pages can go through home. */
		log_warn("device %s: may not read the memory of %s (cuMemSetAccess: error %d)",
			 cuda->base.name, source->base.name, (int)result);
		return -EHOSTUNREACH;
	}
	pthread_mutex_lock(&source->lock);
	first->readers |= self;
	pthread_mutex_unlock(&source->lock);
	return 0;
}
