/*
 * device.c - creation, errors and end of the CUDA device.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "device/cuda/internal.h"

#define FEW_RUNS 8u

/* ---- errors ---- */

static const char *error_text(const struct cuda_api *api, CUresult result)
{
	const char *text;

	return api->cuGetErrorString(result, &text) ? "unknown error" : text;
}

/* After an unexpected error of the driver: the contents of the device cannot be trusted any more. */
static void switch_off(struct cuda *cuda, CUresult result, const char *call)
{
	if (atomic_exchange(&cuda->off, true))
		return;
	log_error("device %s: %s: %s (error %d): %s", cuda->base.name, call,
		  error_text(cuda->api, result), (int)result,
		  cuda->created ? "switched off; files stay usable, and mounting again may bring it back" :
				  "it cannot be used");
	pthread_mutex_lock(&cuda->lock);
	pthread_cond_broadcast(&cuda->memory);
	pthread_mutex_unlock(&cuda->lock);
	cuda_host_wake();
}

int cuda_check(struct cuda *cuda, CUresult result, const char *call)
{
	if (result == CUDA_SUCCESS)
		return 0;
	switch_off(cuda, result, call);
	return -EIO;
}

void cuda_ended(struct cuda *cuda, CUresult result, const char *call)
{
	if (result != CUDA_SUCCESS)
		switch_off(cuda, result, call);
}

int cuda_drain(struct cuda *cuda, CUstream stream)
{
	int err = cuda_check(cuda, cuda->api->cuStreamSynchronize(stream), "cuStreamSynchronize");

	/* The error may be an earlier operation's, and work still be under way. (In a broken context there is none.) */
	if (err)
		(void)cuda->api->cuStreamSynchronize(stream);
	return err;
}

int cuda_enter(struct cuda *cuda)
{
	return cuda_check(cuda, cuda->api->cuCtxSetCurrent(cuda->context), "cuCtxSetCurrent");
}

/*
 * The primary context belongs to the process: if two devices use one GPU, neither may reset the context while the other
 * uses it. Memory that cannot be given back for that reason is freed when the process ends.
 */
static struct {
	pthread_mutex_t lock; /* held while one is retained, reset or released */
	unsigned users[CUDA_ORDINALS];
} contexts = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int retain_context(struct cuda *cuda)
{
	int err;

	pthread_mutex_lock(&contexts.lock);
	err = cuda_check(cuda, cuda->api->cuDevicePrimaryCtxRetain(&cuda->context, cuda->ordinal),
			 "cuDevicePrimaryCtxRetain");
	if (!err)
		contexts.users[cuda->ordinal]++;
	pthread_mutex_unlock(&contexts.lock);
	return err;
}

static void release_context(struct cuda *cuda)
{
	pthread_mutex_lock(&contexts.lock);
	contexts.users[cuda->ordinal]--;
	cuda_ended(cuda, cuda->api->cuDevicePrimaryCtxRelease(cuda->ordinal), "cuDevicePrimaryCtxRelease");
	pthread_mutex_unlock(&contexts.lock);
}

void cuda_reset_context(struct cuda *cuda)
{
	CUresult result = CUDA_SUCCESS;

	cuda_host_leave(cuda);
	pthread_mutex_lock(&contexts.lock);
	if (contexts.users[cuda->ordinal] == 1) {
		/* The state of this thread's current context is unknown afterwards. */
		(void)cuda->api->cuCtxSetCurrent(NULL);
		result = cuda->api->cuDevicePrimaryCtxReset(cuda->ordinal);
		cuda->reset = result == CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&contexts.lock);
	if (result != CUDA_SUCCESS)
		log_warn("device %s: cuDevicePrimaryCtxReset: %s (error %d): its memory may stay taken until gaiafs ends",
			 cuda->base.name, error_text(cuda->api, result), (int)result);
	cuda_host_left(cuda, cuda->reset);
}

int cuda_enter_call(struct cuda *cuda)
{
	int err = -ENODEV;

	pthread_mutex_lock(&cuda->lock);
	if (!atomic_load(&cuda->off)) {
		cuda->calls++;
		err = 0;
	}
	pthread_mutex_unlock(&cuda->lock);
	if (!err)
		err = cuda_enter(cuda);
	else
		return err;
	if (err)
		cuda_leave_call(cuda);
	return err;
}

void cuda_leave_call(struct cuda *cuda)
{
	pthread_mutex_lock(&cuda->lock);
	if (--cuda->calls == 0 && atomic_load(&cuda->off))
		pthread_cond_broadcast(&cuda->memory); /* the keeper */
	pthread_mutex_unlock(&cuda->lock);
}

/* ---- creation ---- */

static int refuse(const struct cuda *cuda, const char *what)
{
	log_error("device %s: %s", cuda->base.name, what);
	return -ENODEV;
}

static int attribute(struct cuda *cuda, CUdevice_attribute which, int *value)
{
	return cuda_check(cuda, cuda->api->cuDeviceGetAttribute(value, which, cuda->ordinal),
			  "cuDeviceGetAttribute");
}

/* Whether the GPU has the abilities that are needed. */
static int check_abilities(struct cuda *cuda)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->ordinal },
	};
	int major, vmm, descriptors, mode, rdma = 0, host_pointers = 1;
	size_t granularity;
	int err;

	err = attribute(cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major);
	if (!err)
		err = attribute(cuda, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
				&vmm);
	if (!err)
		err = attribute(cuda, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
				&descriptors);
	if (!err)
		err = attribute(cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, &mode);
	if (err)
		return err;
	if (mode != CU_COMPUTEMODE_DEFAULT)
		return refuse(cuda, mode == CU_COMPUTEMODE_PROHIBITED ?
				      "the GPU's compute mode is \"prohibited\": nvidia-smi -c DEFAULT allows its use" :
				      "the GPU's compute mode is \"exclusive process\": no program could use it beside the "
				      "daemon; nvidia-smi -c DEFAULT lets several");
	/* A driver that does not know the attribute has no such memory. */
	if (cuda->api->cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
					    cuda->ordinal) == CUDA_SUCCESS)
		cuda->rdma = rdma;
	/* Some GPUs know registered memory by another address. Single copies translate it; a batch does not. */
	if (cuda->api->cuDeviceGetAttribute(&host_pointers, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
					    cuda->ordinal) == CUDA_SUCCESS)
		cuda->no_copy_batch = !host_pointers;
	if (major < 8)
		return refuse(cuda, "the GPU is older than compute capability 8.0 (Ampere)");
	if (!vmm || !descriptors)
		return refuse(cuda, "the GPU or its driver cannot share memory between processes by descriptors");
	err = cuda_check(cuda,
			 cuda->api->cuMemGetAllocationGranularity(&granularity, &prop,
								  CU_MEM_ALLOC_GRANULARITY_MINIMUM),
			 "cuMemGetAllocationGranularity");
	if (err)
		return err;
	if (!granularity || GAIA_CHUNK % granularity)
		return refuse(cuda, "the GPU's memory cannot be had in pieces of 2 MiB");
	return 0;
}

static int choose_capacity(struct cuda *cuda, uint64_t wanted)
{
	size_t available, total;
	int err = cuda_check(cuda, cuda->api->cuMemGetInfo(&available, &total), "cuMemGetInfo");

	if (err)
		return err;
	cuda->base.capacity = ROUND_DOWN(wanted ? wanted : available / 5 * 4, GAIA_CHUNK);
	if (cuda->base.capacity && cuda->base.capacity <= total)
		return 0;
	log_error("device %s: %" PRIu64 " bytes cannot be had: the GPU has %zu, %zu of them free",
		  cuda->base.name, wanted, total, available);
	return -EINVAL;
}

#define MODEL_LENGTH 64

/* Find the GPU; its name, for messages, goes to @model. */
static int identify(struct cuda *cuda, unsigned index, char *model)
{
	CUuuid uuid;
	int err, n;

	snprintf(cuda->base.name, sizeof(cuda->base.name), "cuda%u", index);
	snprintf(cuda->base.kind, sizeof(cuda->base.kind), "cuda");
	err = cuda_check(cuda, cuda->api->cuDeviceGetCount(&n), "cuDeviceGetCount");
	if (err)
		return err;
	if (index >= (unsigned)n || index >= CUDA_ORDINALS) {
		log_error("device %s: there are %d GPUs, numbered from 0", cuda->base.name,
			  MIN(n, (int)CUDA_ORDINALS));
		return -ENODEV;
	}
	err = cuda_check(cuda, cuda->api->cuDeviceGet(&cuda->ordinal, (int)index), "cuDeviceGet");
	if (!err)
		err = cuda_check(cuda, cuda->api->cuDeviceGetUuid(&uuid, cuda->ordinal),
				 "cuDeviceGetUuid");
	if (err)
		return err;
	memcpy(cuda->base.uuid, uuid.bytes, sizeof(cuda->base.uuid));
	return cuda_check(cuda, cuda->api->cuDeviceGetName(model, MODEL_LENGTH, cuda->ordinal),
			  "cuDeviceGetName");
}

static int start_thread(struct cuda *cuda, pthread_t *thread, void *(*main)(void *))
{
	int err = -pthread_create(thread, NULL, main, cuda);

	if (err)
		log_error("device %s: cannot start a thread: %s", cuda->base.name, strerror(-err));
	return err;
}

/* End the first @started threads, in the order in which work passes through them. */
static void stop_threads(struct cuda *cuda, unsigned started)
{
	pthread_mutex_lock(&cuda->lock);
	cuda->stop = true;
	pthread_cond_broadcast(&cuda->work);
	pthread_cond_broadcast(&cuda->memory);
	pthread_mutex_unlock(&cuda->lock);
	if (started > 0)
		pthread_join(cuda->issuer, NULL);
	pthread_mutex_lock(&cuda->lock);
	cuda->stop_completer = true;
	pthread_cond_broadcast(&cuda->issued_cond);
	pthread_mutex_unlock(&cuda->lock);
	if (started > 1)
		pthread_join(cuda->completer, NULL);
	if (started > 2)
		pthread_join(cuda->keeper, NULL);
	cuda_host_stop(cuda);
	if (started > 3)
		pthread_join(cuda->pinner, NULL);
}

static int start_threads(struct cuda *cuda)
{
	unsigned started = 0;
	int err = start_thread(cuda, &cuda->issuer, cuda_issuer_main);

	if (!err)
		started++, err = start_thread(cuda, &cuda->completer, cuda_completer_main);
	if (!err)
		started++, err = start_thread(cuda, &cuda->keeper, cuda_keeper_main);
	if (!err)
		started++, err = start_thread(cuda, &cuda->pinner, cuda_pinner_main);
	if (err)
		stop_threads(cuda, started);
	return err;
}

static void init_locks(struct cuda *cuda)
{
	pthread_mutex_init(&cuda->lock, NULL);
	pthread_mutex_init(&cuda->armed_lock, NULL);
	pthread_cond_init(&cuda->work, NULL);
	pthread_cond_init(&cuda->issued_cond, NULL);
	pthread_cond_init(&cuda->memory, NULL);
	cuda->tail = &cuda->head;
	STAILQ_INIT(&cuda->idle);
	STAILQ_INIT(&cuda->issued);
	LIST_INIT(&cuda->ready);
	LIST_INIT(&cuda->stale);
	LIST_INIT(&cuda->ended);
}

static void free_cuda(struct cuda *cuda)
{
	pthread_cond_destroy(&cuda->memory);
	pthread_cond_destroy(&cuda->issued_cond);
	pthread_cond_destroy(&cuda->work);
	pthread_mutex_destroy(&cuda->armed_lock);
	pthread_mutex_destroy(&cuda->lock);
	free(cuda);
}

/* Reset a broken context when there is no keeper that would do it. */
static void reset_broken(struct cuda *cuda)
{
	if (atomic_load(&cuda->off) && !cuda->given_back)
		cuda_reset_context(cuda);
	cuda->given_back |= atomic_load(&cuda->off);
}

/* Called when no threads run. Also for a context that was made in part. */
static void end_context(struct cuda *cuda)
{
	if (!cuda->reset)
		(void)cuda_enter(cuda); /* if it fails: still give back what can be given back */
	reset_broken(cuda);
	if (!cuda->reset)
		cuda_host_end(cuda);
	cuda_queue_destroy(cuda);
	cuda_memory_end(cuda);
	reset_broken(cuda); /* in case it broke just now */
	cuda_memory_end(cuda);
	cuda_memory_destroy(cuda);
	release_context(cuda);
	free_cuda(cuda);
}

static void cuda_destroy(struct device *dev)
{
	struct cuda *cuda = to_cuda(dev);

	if (cuda->outstanding || cuda->n_live)
		bug("device %s: destroyed with %u operations in flight and %u chunks allocated",
		    dev->name, cuda->outstanding, cuda->n_live);
	stop_threads(cuda, 4);
	end_context(cuda);
}

static const struct device_ops cuda_ops = {
	.name = "cuda",
	.alloc = cuda_alloc,
	.alloc_extent = cuda_alloc_extent,
	.free = cuda_free,
	.export_fd = cuda_export_fd,
	.submit = cuda_submit,
	.host_slab = cuda_host_slab,
	.reaches = cuda_reaches,
	.destroy = cuda_destroy,
};

int cuda_create(const struct cuda_api *api, const struct cuda_config *config, uint32_t copy_from,
		struct device **out)
{
	struct cuda *cuda = xcalloc(1, sizeof(*cuda));
	char model[MODEL_LENGTH];
	int err;

	cuda->api = api;
	cuda->base.ops = &cuda_ops;
	cuda->base.core = &cuda->base;
	cuda->base.gives_extents = !config->no_extents;
	cuda->copy_from = cuda->copy_alone_from = copy_from;
	cuda->kept = -1;
	init_locks(cuda);
	err = identify(cuda, config->index, model);
	if (!err)
		err = check_abilities(cuda);
	if (err)
		goto free_cuda;
	err = retain_context(cuda);
	if (err)
		goto free_cuda;
	err = cuda_enter(cuda);
	if (!err)
		err = choose_capacity(cuda, config->capacity);
	if (!err)
		err = cuda_memory_init(cuda);
	if (!err)
		err = cuda_queue_init(cuda);
	cuda->created = !err;
	if (!err)
		err = start_threads(cuda);
	if (err) {
		end_context(cuda);
		return err;
	}
	if (!copy_from)
		err = cuda_calibrate(cuda);
	/* Who says from which length on the engine copies means all copies. */
	cuda->few_runs = copy_from ? 0 : FEW_RUNS;
	if (!err && atomic_load(&cuda->off))
		err = -EIO;
	if (err) {
		cuda_destroy(&cuda->base);
		return err;
	}
	log_info("device %s: %s, %" PRIu64 " MiB of its memory", cuda->base.name, model,
		 cuda->base.capacity >> 20);
	*out = &cuda->base;
	return 0;

free_cuda:
	free_cuda(cuda);
	return err;
}

int device_cuda_create(const struct cuda_config *config, struct device **out)
{
	const char *why;
	const struct cuda_api *api = cuda_driver(&why);

	if (api)
		return cuda_create(api, config, 0, out);
	log_error("device cuda%u: %s", config->index, why);
	return -ENODEV;
}

unsigned device_cuda_count(const char **why)
{
	const struct cuda_api *api = cuda_driver(why);
	int n = 0;

	if (!api)
		return 0;
	*why = "the CUDA driver finds no GPU";
	return api->cuDeviceGetCount(&n) == CUDA_SUCCESS && n > 0 ? (unsigned)n : 0;
}
