/*
 * fake_cuda_stream.c - the fake CUDA driver: streams, events, copies.
 *
 * A stream is a thread that carries out its items one after the other.
 */
#include "fake_cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COPY_GARBAGE 0x5b

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
}

/* ---- the stream's thread ---- */

static void spoil(struct fake_item *item)
{
	if (item->kind == ITEM_COPY && !item->spoiled)
		memset(item->to, COPY_GARBAGE, item->bytes);
	item->spoiled = true;
}

/* Still allocated, mapped, registered, as when it was queued? */
static bool still_usable(const struct fake_item *item)
{
	if (fake_cuda_usable(item->to, item->bytes) &&
	    (item->kind == ITEM_SET || fake_cuda_usable(item->from, item->bytes)))
		return true;
	fake_refuse(CUDA_SUCCESS, "memory freed with a copy in flight");
	return false;
}

static bool value_reached(const struct fake_item *item)
{
	uint32_t now = __atomic_load_n((uint32_t *)item->to, __ATOMIC_ACQUIRE);

	switch (item->flags & 3) {
	case CU_STREAM_WAIT_VALUE_GEQ:
		return (int32_t)(now - item->value) >= 0;
	case CU_STREAM_WAIT_VALUE_EQ:
		return now == item->value;
	case CU_STREAM_WAIT_VALUE_AND:
		return now & item->value;
	}
	return ~(now | item->value); /* NOR */
}

static bool broken(void)
{
	bool is;

	pthread_mutex_lock(&fake.lock);
	is = fake.broken != CUDA_SUCCESS;
	pthread_mutex_unlock(&fake.lock);
	return is;
}

static void wait_event(const struct fake_item *item)
{
	pthread_mutex_lock(&fake.lock);
	while (item->event->reached < item->number)
		pthread_cond_wait(&fake.changed, &fake.lock);
	pthread_mutex_unlock(&fake.lock);
}

/* Not of a broken context, where nothing runs any more. */
static void carry_out(struct fake_item *item)
{
	switch (item->kind) {
	case ITEM_COPY:
		if (!still_usable(item))
			break;
		spoil(item);
		nap();
		memmove(item->to, item->from, item->bytes);
		break;
	case ITEM_SET:
		if (still_usable(item))
			memset(item->to, (int)item->value, item->bytes);
		break;
	case ITEM_KERNEL:
		nap();
		item->fn(item->arg);
		break;
	case ITEM_HOST_FUNC:
		fake_in_host_func = true;
		item->fn(item->arg);
		fake_in_host_func = false;
		break;
	case ITEM_WAIT_EVENT:
		wait_event(item);
		break;
	case ITEM_WAIT_VALUE:
		while (!value_reached(item) && !broken())
			nap();
		break;
	case ITEM_WRITE_VALUE:
		__atomic_store_n((uint32_t *)item->to, item->value, __ATOMIC_RELEASE);
		break;
	case ITEM_RECORD:
		break;
	}
}

/* fake.lock held. */
static void put_event(CUevent event)
{
	if (event->users || !event->destroyed)
		return;
	TAILQ_REMOVE(&fake.events, event, link);
	free(event);
}

static void *stream_main(void *arg)
{
	CUstream s = arg;
	struct fake_item *item;

	fake_stream_gpu_bit = 1u << s->ctx->gpu;
	pthread_mutex_lock(&fake.lock);
	for (;;) {
		item = STAILQ_FIRST(&s->items);
		if (!item && s->stop)
			break;
		if (!item) {
			pthread_cond_wait(&fake.changed, &fake.lock);
			continue;
		}
		if (item->broken && !fake.broken)
			fake.broken = item->broken;
		if (!fake.broken) {
			pthread_mutex_unlock(&fake.lock);
			carry_out(item);
			pthread_mutex_lock(&fake.lock);
		}
		/* Events are reached in any case: who waits for one must learn of the error. */
		if (item->kind == ITEM_RECORD)
			item->event->reached = item->number;
		STAILQ_REMOVE_HEAD(&s->items, link);
		if (item->event) {
			item->event->users--;
			put_event(item->event);
		}
		free(item->copy);
		free(item);
		pthread_cond_broadcast(&fake.changed);
	}
	pthread_mutex_unlock(&fake.lock);
	return NULL;
}

/* ---- streams ---- */

static CUstream new_stream(CUcontext ctx, bool user)
{
	CUstream s = calloc(1, sizeof(*s));

	s->ctx = ctx;
	s->user = user;
	STAILQ_INIT(&s->items);
	if (pthread_create(&s->thread, NULL, stream_main, s))
		abort();
	TAILQ_INSERT_TAIL(&fake.streams, s, link);
	return s;
}

/* fake.lock held. The stream that a handle means; NULL. */
static CUstream find_stream(CUstream handle, CUcontext current)
{
	CUstream s;

	if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
		if (!current)
			return NULL;
		if (!current->default_stream)
			current->default_stream = new_stream(current, false);
		return current->default_stream;
	}
	TAILQ_FOREACH(s, &fake.streams, link)
		if (s == handle)
			return s;
	return NULL;
}

void fake_stream_end(CUstream s)
{
	pthread_mutex_lock(&fake.lock);
	s->stop = true;
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
	pthread_join(s->thread, NULL);
	pthread_mutex_lock(&fake.lock);
	TAILQ_REMOVE(&fake.streams, s, link);
	pthread_mutex_unlock(&fake.lock);
	free(s);
}

static CUresult fake_stream_create(CUstream *out, unsigned flags)
{
	CUresult err = fake_enter("cuStreamCreate");
	CUcontext ctx = fake_context();

	if (err)
		return err;
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&fake.lock);
	*out = new_stream(ctx, true);
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream handle)
{
	CUresult err = fake_enter("cuStreamDestroy");
	CUstream s;

	pthread_mutex_lock(&fake.lock);
	s = find_stream(handle, NULL);
	pthread_mutex_unlock(&fake.lock);
	if (!s || !s->user)
		return fake_refuse(CUDA_ERROR_INVALID_HANDLE, "cuStreamDestroy of no stream");
	fake_stream_end(s);
	return err;
}

/* Queues a copy of *@like. */
static CUresult queue(CUstream handle, const struct fake_item *like)
{
	CUcontext current = fake_context();
	struct fake_item *item = malloc(sizeof(*item));
	CUresult err = CUDA_SUCCESS;
	bool idle = false;
	CUstream s;

	*item = *like;
	pthread_mutex_lock(&fake.lock);
	s = find_stream(handle, current);
	if (!s) {
		err = handle ? fake_refuse(CUDA_ERROR_INVALID_HANDLE, "use of no stream") :
			       CUDA_ERROR_INVALID_CONTEXT;
		free(item);
		goto unlock;
	}
	if (item->kind <= ITEM_KERNEL && fake.fail_later.nth && !--fake.fail_later.nth) {
		item->broken = fake.fail_later.result;
		fake.failed = true;
	}
	if (item->event) {
		item->event->users++;
		item->number = item->kind == ITEM_RECORD ? ++item->event->recorded : item->event->recorded;
	}
	idle = STAILQ_EMPTY(&s->items);
	if (idle && !item->broken)
		spoil(item);
	item->issued = ++fake.last_issued;
	STAILQ_INSERT_TAIL(&s->items, item, link);
	pthread_cond_broadcast(&fake.changed);
unlock:
	pthread_mutex_unlock(&fake.lock);
	return err;
}

/* In a broken context nothing begins any more: what it says is true only when what runs has ended. */
static CUresult enter_waiting(const char *call)
{
	CUresult err = fake_enter(call);
	CUstream s;

	if (!err)
		return err;
	pthread_mutex_lock(&fake.lock);
again:
	TAILQ_FOREACH(s, &fake.streams, link) {
		if (!fake.broken || STAILQ_EMPTY(&s->items))
			continue;
		pthread_cond_wait(&fake.changed, &fake.lock);
		goto again;
	}
	pthread_mutex_unlock(&fake.lock);
	return err;
}

void fake_wait_gpus(unsigned gpus)
{
	uint64_t last;
	CUstream s;

	if (fake_in_host_func) /* refused: it would wait for itself */
		return;
	pthread_mutex_lock(&fake.lock);
	last = fake.last_issued;
again:
	TAILQ_FOREACH(s, &fake.streams, link) {
		struct fake_item *first = STAILQ_FIRST(&s->items);

		if (!(gpus & 1u << s->ctx->gpu) || !first || first->issued > last)
			continue;
		fake.waiting++;
		pthread_cond_wait(&fake.changed, &fake.lock);
		fake.waiting--;
		goto again;
	}
	pthread_mutex_unlock(&fake.lock);
}

static CUresult drain(CUstream handle)
{
	CUcontext current = fake_context();
	CUresult err;
	CUstream s;

	pthread_mutex_lock(&fake.lock);
	s = find_stream(handle, current);
	while (s && !STAILQ_EMPTY(&s->items))
		pthread_cond_wait(&fake.changed, &fake.lock);
	err = s ? fake.broken : CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_unlock(&fake.lock);
	return err;
}

static CUresult fake_stream_synchronize(CUstream handle)
{
	CUresult err = enter_waiting("cuStreamSynchronize");

	return err ? err : drain(handle);
}

static CUresult fake_stream_query(CUstream handle)
{
	CUresult err = fake_enter("cuStreamQuery");
	CUcontext current = fake_context();
	CUstream s;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	s = find_stream(handle, current);
	if (!s)
		err = CUDA_ERROR_INVALID_HANDLE;
	else
		err = STAILQ_EMPTY(&s->items) ? fake.broken : CUDA_ERROR_NOT_READY;
	pthread_mutex_unlock(&fake.lock);
	return err;
}

static CUresult fake_stream_get_ctx(CUstream handle, CUcontext *ctx)
{
	CUresult err = fake_enter("cuStreamGetCtx");
	CUcontext current = fake_context();
	CUstream s;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	s = find_stream(handle, current);
	if (s)
		*ctx = s->ctx;
	pthread_mutex_unlock(&fake.lock);
	return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Of all streams of the current context. */
static CUresult fake_ctx_synchronize(void)
{
	CUresult err = enter_waiting("cuCtxSynchronize");
	CUcontext current = fake_context();
	CUstream s;

	if (err)
		return err;
	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&fake.lock);
again:
	TAILQ_FOREACH(s, &fake.streams, link) {
		if (s->ctx != current || STAILQ_EMPTY(&s->items))
			continue;
		pthread_cond_wait(&fake.changed, &fake.lock);
		goto again;
	}
	err = fake.broken;
	pthread_mutex_unlock(&fake.lock);
	return err;
}

/* ---- work ---- */

/* The GPU of the stream; of the current context where there is no such stream, which queue() refuses. */
static unsigned stream_gpu_bit(CUstream handle)
{
	CUcontext current = fake_context();
	unsigned gpus = fake_gpu_bit();
	CUstream s;

	pthread_mutex_lock(&fake.lock);
	s = find_stream(handle, current);
	if (s)
		gpus = 1u << s->ctx->gpu;
	pthread_mutex_unlock(&fake.lock);
	return gpus;
}

static CUresult fake_copy(const char *call, void *to, const void *from, size_t bytes, bool to_host,
			  bool from_host, CUstream stream)
{
	CUresult err = fake_enter(call);
	unsigned gpus;
	bool good;

	if (err)
		return err;
	gpus = stream_gpu_bit(stream);
	pthread_mutex_lock(&fake.lock);
	good = (to_host ? fake_pinned_memory(to, bytes) : fake_device_memory(to, bytes, gpus)) &&
	       (from_host ? fake_pinned_memory(from, bytes) : fake_device_memory(from, bytes, gpus));
	pthread_mutex_unlock(&fake.lock);
	if (!good)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE,
				   "%s of memory that is not the device's, or not pinned as one range", call);
	return queue(stream, &(struct fake_item){ .kind = ITEM_COPY, .to = to, .from = from,
						  .bytes = bytes });
}

static CUresult fake_memcpy_htod_async(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	return fake_copy("cuMemcpyHtoDAsync", (void *)to, from, bytes, false, true, stream);
}

static CUresult fake_memcpy_dtoh_async(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return fake_copy("cuMemcpyDtoHAsync", to, (void *)from, bytes, true, false, stream);
}

static CUresult fake_memcpy_dtod_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return fake_copy("cuMemcpyDtoDAsync", (void *)to, (void *)from, bytes, false, false, stream);
}

/* Any host memory; waits for the default stream, as the driver does. */
static CUresult fake_copy_now(const char *call, void *to, const void *from, const void *device,
			      size_t bytes)
{
	CUresult err = fake_enter(call);
	unsigned gpus = fake_gpu_bit();
	bool good;

	if (!err)
		err = drain(NULL);
	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	good = fake_device_memory(device, bytes, gpus);
	pthread_mutex_unlock(&fake.lock);
	if (!good)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "%s of memory that is not the device's", call);
	memcpy(to, from, bytes);
	return CUDA_SUCCESS;
}

static CUresult fake_memcpy_htod(CUdeviceptr to, const void *from, size_t bytes)
{
	return fake_copy_now("cuMemcpyHtoD", (void *)to, from, (void *)to, bytes);
}

static CUresult fake_memcpy_dtoh(void *to, CUdeviceptr from, size_t bytes)
{
	return fake_copy_now("cuMemcpyDtoH", to, (void *)from, (void *)from, bytes);
}

static CUresult fake_memset_d8_async(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream stream)
{
	CUresult err = fake_enter("cuMemsetD8Async");

	if (err)
		return err;
	if (!fake_cuda_usable((void *)to, bytes))
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemsetD8Async of memory that is not the device's");
	return queue(stream, &(struct fake_item){ .kind = ITEM_SET, .to = (void *)to, .bytes = bytes,
						  .value = byte });
}

CUresult fake_cuda_launch(CUstream stream, void (*fn)(void *arg), void *arg)
{
	CUresult err = fake_enter("launch");

	return err ? err : queue(stream, &(struct fake_item){ .kind = ITEM_KERNEL, .fn = fn, .arg = arg });
}

CUresult fake_cuda_launch_copy(CUstream stream, void (*fn)(void *arg), const void *arg, size_t bytes)
{
	void *copy = memcpy(malloc(bytes), arg, bytes);
	CUresult err = fake_enter("launch");

	if (!err)
		err = queue(stream, &(struct fake_item){ .kind = ITEM_KERNEL, .fn = fn, .arg = copy,
							 .copy = copy });
	if (err)
		free(copy);
	return err;
}

static CUresult fake_launch_host_func(CUstream stream, CUhostFn fn, void *arg)
{
	CUresult err = fake_enter("cuLaunchHostFunc");

	return err ? err : queue(stream, &(struct fake_item){ .kind = ITEM_HOST_FUNC, .fn = fn, .arg = arg });
}

static CUresult queue_value(const char *call, int kind, CUstream stream, CUdeviceptr at,
			    uint32_t value, unsigned flags)
{
	CUresult err = fake_enter(call);

	if (err)
		return err;
	if (at % 4 || !fake_cuda_usable((void *)at, 4))
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "%s on memory that is not the device's", call);
	return queue(stream, &(struct fake_item){ .kind = kind, .to = (void *)at, .value = value,
						  .flags = flags });
}

static CUresult fake_stream_wait_value(CUstream stream, CUdeviceptr at, cuuint32_t value,
				       unsigned flags)
{
	return queue_value("cuStreamWaitValue32", ITEM_WAIT_VALUE, stream, at, value, flags);
}

static CUresult fake_stream_write_value(CUstream stream, CUdeviceptr at, cuuint32_t value,
					unsigned flags)
{
	return queue_value("cuStreamWriteValue32", ITEM_WRITE_VALUE, stream, at, value, flags);
}

/* ---- events ---- */

static CUresult fake_event_create(CUevent *out, unsigned flags)
{
	CUresult err = fake_enter("cuEventCreate");

	if (err)
		return err;
	if (!fake_context())
		return CUDA_ERROR_INVALID_CONTEXT;
	*out = calloc(1, sizeof(**out));
	pthread_mutex_lock(&fake.lock);
	TAILQ_INSERT_TAIL(&fake.events, *out, link);
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

/* fake.lock held. */
static bool is_event(CUevent event)
{
	CUevent e;

	TAILQ_FOREACH(e, &fake.events, link)
		if (e == event)
			return !e->destroyed;
	return false;
}

static CUresult fake_event_destroy(CUevent event)
{
	CUresult err = fake_enter("cuEventDestroy");
	bool good;

	pthread_mutex_lock(&fake.lock);
	good = is_event(event);
	if (good) {
		event->destroyed = true;
		put_event(event);
	}
	pthread_mutex_unlock(&fake.lock);
	return good ? err : fake_refuse(CUDA_ERROR_INVALID_HANDLE, "cuEventDestroy of no event");
}

static CUresult event_item(const char *call, int kind, CUstream stream, CUevent event)
{
	CUresult err = fake_enter(call);
	bool good;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	good = is_event(event);
	pthread_mutex_unlock(&fake.lock);
	if (!good)
		return fake_refuse(CUDA_ERROR_INVALID_HANDLE, "%s of no event", call);
	return queue(stream, &(struct fake_item){ .kind = kind, .event = event });
}

static CUresult fake_event_record(CUevent event, CUstream stream)
{
	return event_item("cuEventRecord", ITEM_RECORD, stream, event);
}

static CUresult fake_stream_wait_event(CUstream stream, CUevent event, unsigned flags)
{
	return event_item("cuStreamWaitEvent", ITEM_WAIT_EVENT, stream, event);
}

static CUresult fake_event_synchronize(CUevent event)
{
	CUresult err = enter_waiting("cuEventSynchronize");
	uint64_t number;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	if (is_event(event)) {
		for (number = event->recorded; event->reached < number;)
			pthread_cond_wait(&fake.changed, &fake.lock);
		err = fake.broken;
	} else {
		err = fake_refuse(CUDA_ERROR_INVALID_HANDLE, "cuEventSynchronize of no event");
	}
	pthread_mutex_unlock(&fake.lock);
	return err;
}

static CUresult fake_event_query(CUevent event)
{
	CUresult err = fake_enter("cuEventQuery");

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	if (!is_event(event))
		err = fake_refuse(CUDA_ERROR_INVALID_HANDLE, "cuEventQuery of no event");
	else
		err = event->reached < event->recorded ? CUDA_ERROR_NOT_READY : fake.broken;
	pthread_mutex_unlock(&fake.lock);
	return err;
}

const struct fake_entry fake_stream_entries[] = {
	{ "cuStreamCreate", fake_stream_create },
	{ "cuStreamDestroy", fake_stream_destroy },
	{ "cuStreamSynchronize", fake_stream_synchronize },
	{ "cuStreamQuery", fake_stream_query },
	{ "cuStreamGetCtx", fake_stream_get_ctx },
	{ "cuStreamWaitEvent", fake_stream_wait_event },
	{ "cuStreamWaitValue32", fake_stream_wait_value },
	{ "cuStreamWriteValue32", fake_stream_write_value },
	{ "cuCtxSynchronize", fake_ctx_synchronize },
	{ "cuMemcpyHtoDAsync", fake_memcpy_htod_async },
	{ "cuMemcpyDtoHAsync", fake_memcpy_dtoh_async },
	{ "cuMemcpyDtoDAsync", fake_memcpy_dtod_async },
	{ "cuMemcpyHtoD", fake_memcpy_htod },
	{ "cuMemcpyDtoH", fake_memcpy_dtoh },
	{ "cuMemsetD8Async", fake_memset_d8_async },
	{ "cuLaunchHostFunc", fake_launch_host_func },
	{ "cuEventCreate", fake_event_create },
	{ "cuEventDestroy", fake_event_destroy },
	{ "cuEventRecord", fake_event_record },
	{ "cuEventSynchronize", fake_event_synchronize },
	{ "cuEventQuery", fake_event_query },
	{ NULL, NULL },
};
