/*
 * fake_cuda_stream.c - the fake CUDA driver: streams, events, copies.
 *
 * A stream is a thread that carries out its items one after the other.
 */
#include "fake_cuda_internal.h"

#include "device/cuda/api.h"

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
	    (item->kind == ITEM_SET || fake_cuda_readable(item->from, item->bytes)))
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

static bool broken(const struct CUstream_st *s)
{
	bool is;

	pthread_mutex_lock(&fake.lock);
	is = fake.broken != CUDA_SUCCESS || s->abandoned;
	pthread_mutex_unlock(&fake.lock);
	return is;
}

/*
 * fake.lock held. The legacy stream comes after what blocking streams of its context have from before,
 * and they after what it has.
 */
static bool held_back(const struct CUstream_st *s, const struct fake_item *item)
{
	const struct CUstream_st *t;

	if (!s->blocking || fake.broken || s->abandoned)
		return false;
	TAILQ_FOREACH(t, &fake.streams, link) {
		const struct fake_item *first = STAILQ_FIRST(&t->items);

		if (t != s && t->ctx == s->ctx && t->blocking && (s->legacy || t->legacy) && first &&
		    first->issued < item->issued)
			return true;
	}
	return false;
}

static void wait_event(const struct CUstream_st *s, const struct fake_item *item)
{
	pthread_mutex_lock(&fake.lock);
	while (item->event->reached < item->number && !s->abandoned)
		pthread_cond_wait(&fake.changed, &fake.lock);
	pthread_mutex_unlock(&fake.lock);
}

/* Not of a broken context, where nothing runs any more. */
static void carry_out(const struct CUstream_st *s, struct fake_item *item)
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
		wait_event(s, item);
		break;
	case ITEM_WAIT_VALUE:
		while (!value_reached(item) && !broken(s))
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
		if (!item || held_back(s, item)) {
			pthread_cond_wait(&fake.changed, &fake.lock);
			continue;
		}
		if (item->broken && !fake.broken && !s->abandoned) {
			fake.broken = item->broken;
			fake.broken_ctx = s->ctx;
		}
		if (!fake.broken && !s->abandoned) {
			pthread_mutex_unlock(&fake.lock);
			carry_out(s, item);
			pthread_mutex_lock(&fake.lock);
		}
		/* Events are reached in any case: waiters must learn of the error. */
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

static CUstream new_stream(const struct CUstream_st *like)
{
	CUstream s = malloc(sizeof(*s));

	*s = *like;
	s->id = ++fake.last_stream;
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

	if (handle == NULL || handle == CU_STREAM_LEGACY) {
		if (!current)
			return NULL;
		if (!current->default_stream)
			current->default_stream = new_stream(&(struct CUstream_st){ .ctx = current,
										    .blocking = true,
										    .legacy = true });
		return current->default_stream;
	}
	if (handle == CU_STREAM_PER_THREAD) {
		TAILQ_FOREACH(s, &fake.streams, link)
			if (s->ctx == current && s->owner == fake_thread())
				return s;
		return current ? new_stream(&(struct CUstream_st){ .ctx = current, .blocking = true,
								   .owner = fake_thread() }) : NULL;
	}
	TAILQ_FOREACH(s, &fake.streams, link)
		if (s == handle)
			return s;
	return NULL;
}

/* fake.lock held. */
static void end_capture(struct fake_capture *capture)
{
	CUstream s;

	TAILQ_FOREACH(s, &fake.streams, link)
		if (s->capture == capture)
			s->capture = NULL;
	TAILQ_REMOVE(&fake.captures, capture, link);
	free(capture);
}

void fake_stream_end(CUstream s)
{
	pthread_mutex_lock(&fake.lock);
	if (s->capture && s->capture->origin == s)
		end_capture(s->capture);
	else if (s->capture)
		s->capture->invalidated = true;
	s->stop = true;
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
	pthread_join(s->thread, NULL);
	pthread_mutex_lock(&fake.lock);
	TAILQ_REMOVE(&fake.streams, s, link);
	pthread_mutex_unlock(&fake.lock);
	free(s);
}

void fake_default_streams_end(CUcontext ctx)
{
	CUstream s;

	pthread_mutex_lock(&fake.lock);
	ctx->default_stream = NULL;
again:
	TAILQ_FOREACH(s, &fake.streams, link) {
		if (s->ctx != ctx || s->user)
			continue;
		pthread_mutex_unlock(&fake.lock);
		fake_stream_end(s);
		pthread_mutex_lock(&fake.lock);
		goto again;
	}
	pthread_mutex_unlock(&fake.lock);
}

void fake_streams_reset(CUcontext ctx)
{
	CUevent event, next;
	CUstream s;

	pthread_mutex_lock(&fake.lock);
	TAILQ_FOREACH(s, &fake.streams, link)
		if (s->ctx == ctx)
			s->abandoned = true;
	ctx->default_stream = NULL;
again:
	TAILQ_FOREACH(s, &fake.streams, link) {
		if (s->ctx != ctx)
			continue;
		pthread_cond_broadcast(&fake.changed);
		pthread_mutex_unlock(&fake.lock);
		fake_stream_end(s);
		pthread_mutex_lock(&fake.lock);
		goto again;
	}
	for (event = TAILQ_FIRST(&fake.events); event; event = next) {
		next = TAILQ_NEXT(event, link);
		if (event->ctx != ctx || event->destroyed)
			continue;
		event->destroyed = true;
		put_event(event);
	}
	pthread_mutex_unlock(&fake.lock);
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
	*out = new_stream(&(struct CUstream_st){ .ctx = ctx, .user = true,
						 .blocking = !(flags & CU_STREAM_NON_BLOCKING) });
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
	if (!fake_takes_effect(err, 1u << s->ctx->gpu))
		return err;
	fake_stream_end(s);
	return err;
}

/* fake.lock held. Whether a blocking stream of the context captures: the legacy stream would wait for it. */
static struct fake_capture *capture_of_context(CUcontext ctx, bool blocking)
{
	CUstream s;

	TAILQ_FOREACH(s, &fake.streams, link)
		if (s->ctx == ctx && s->capture && (!blocking || s->blocking))
			return s->capture;
	return NULL;
}

static bool is_capture(const struct fake_capture *capture)
{
	struct fake_capture *c;

	TAILQ_FOREACH(c, &fake.captures, link)
		if (c == capture)
			return true;
	return false;
}

static CUresult invalidate(struct fake_capture *capture, CUresult result)
{
	capture->invalidated = true;
	return result;
}

/*
 * fake.lock held. What captures say to an item, in any mode of the thread. Events take a second stream
 * into a capture, and nothing else leads into or out of one.
 */
static CUresult capture_fault(CUstream s, const struct fake_item *item)
{
	struct fake_capture *other = s->legacy ? capture_of_context(s->ctx, true) : NULL;
	CUevent event = item->event;

	if (other)
		return invalidate(other, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	if (s->capture && s->capture->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (item->kind != ITEM_WAIT_EVENT)
		return CUDA_SUCCESS;
	if (s->capture && !event->captured)
		return invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	if (!event->captured)
		return CUDA_SUCCESS;
	if (!is_capture(event->capture))
		return CUDA_ERROR_CAPTURED_EVENT;
	if (event->capture->invalidated)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (s->capture && s->capture != event->capture) {
		s->capture->invalidated = true;
		return invalidate(event->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
	}
	s->capture = event->capture;
	return CUDA_SUCCESS;
}

/* fake.lock held. */
static void count_copy(const void *to, const void *from, size_t bytes)
{
	fake.traffic.copies++;
	if (fake_readable_memory(from, bytes, ALL_GPUS))
		*(fake_device_memory(to, bytes, ALL_GPUS) ? &fake.traffic.within : &fake.traffic.out) += bytes;
	else
		fake.traffic.in += bytes;
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
	err = capture_fault(s, item);
	if (item->kind == ITEM_RECORD && !err) {
		item->event->captured = s->capture;
		item->event->capture = s->capture;
	}
	if (err || s->capture) { /* captured is not carried out */
		if (!err)
			free(item->copy);
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
	if (item->kind == ITEM_COPY)
		count_copy(item->to, item->from, item->bytes);
	item->issued = ++fake.last_issued;
	idle = STAILQ_EMPTY(&s->items) && !held_back(s, item);
	if (idle && !item->broken && !fake.broken)
		spoil(item);
	STAILQ_INSERT_TAIL(&s->items, item, link);
	pthread_cond_broadcast(&fake.changed);
unlock:
	pthread_mutex_unlock(&fake.lock);
	return err;
}

/* In a broken context nothing begins any more; but its error is true only once what runs has ended. */
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

/* fake.lock held. Whether the stream has items up to number @last. */
static bool has_until(const struct CUstream_st *s, uint64_t last)
{
	const struct fake_item *first = STAILQ_FIRST(&s->items);

	return first && first->issued <= last;
}

/* With all that the legacy stream waits for. */
static bool busy_until(const struct CUstream_st *s, uint64_t last)
{
	const struct CUstream_st *t;

	if (has_until(s, last))
		return true;
	if (s->legacy)
		TAILQ_FOREACH(t, &fake.streams, link)
			if (t->ctx == s->ctx && t->blocking && has_until(t, last))
				return true;
	return false;
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
		if (!(gpus & 1u << s->ctx->gpu) || !has_until(s, last))
			continue;
		fake.waiting++;
		pthread_cond_wait(&fake.changed, &fake.lock);
		fake.waiting--;
		goto again;
	}
	pthread_mutex_unlock(&fake.lock);
}

/* fake.lock held. To ask for the state of a stream that captures, or to wait for it, spoils the capture. */
static CUresult asked_in_capture(CUstream s)
{
	struct fake_capture *other = s->legacy ? capture_of_context(s->ctx, true) : NULL;

	if (other)
		return invalidate(other, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	return s->capture ? invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : CUDA_SUCCESS;
}

static CUresult drain(CUstream handle)
{
	CUcontext current = fake_context();
	CUresult err;
	uint64_t last;
	CUstream s;

	pthread_mutex_lock(&fake.lock);
	last = fake.last_issued;
	s = find_stream(handle, current);
	err = s ? asked_in_capture(s) : CUDA_ERROR_INVALID_HANDLE;
	while (!err && s && busy_until(s, last)) {
		pthread_cond_wait(&fake.changed, &fake.lock);
		s = find_stream(handle, current);
	}
	if (!err)
		err = fake.broken;
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
		err = asked_in_capture(s);
	if (!err)
		err = busy_until(s, fake.last_issued) ? CUDA_ERROR_NOT_READY : fake.broken;
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

static CUresult fake_stream_get_id(CUstream handle, unsigned long long *id)
{
	CUresult err = fake_enter("cuStreamGetId");
	CUcontext current = fake_context();
	CUstream s;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	s = find_stream(handle, current);
	if (s)
		*id = s->id;
	pthread_mutex_unlock(&fake.lock);
	return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Of all streams of the current context. */
static CUresult fake_ctx_synchronize(void)
{
	CUresult err = enter_waiting("cuCtxSynchronize");
	CUcontext current = fake_context();
	struct fake_capture *capture;
	uint64_t last;
	CUstream s;

	if (err)
		return err;
	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&fake.lock);
	capture = capture_of_context(current, false);
	if (capture) {
		err = invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		goto unlock;
	}
	last = fake.last_issued;
again:
	TAILQ_FOREACH(s, &fake.streams, link) {
		if (s->ctx != current || !has_until(s, last))
			continue;
		pthread_cond_wait(&fake.changed, &fake.lock);
		goto again;
	}
	err = fake.broken;
unlock:
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
	       (from_host ? fake_pinned_memory(from, bytes) : fake_readable_memory(from, bytes, gpus));
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

/* fake.lock held. What is wrong with copy @i of a batch, as a text; NULL: nothing. */
static const char *batch_copy_fault(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t n,
				    size_t i, unsigned gpus)
{
	bool to_gpu = fake_device_memory((void *)to[i], bytes[i], gpus);
	bool from_gpu = fake_readable_memory((void *)from[i], bytes[i], gpus);

	if (!bytes[i] || (!to_gpu && !from_gpu) || (!to_gpu && !fake_pinned_memory((void *)to[i], bytes[i])) ||
	    (!from_gpu && !fake_pinned_memory((void *)from[i], bytes[i])))
		return "memory that is not the device's, or not pinned as one range";
	for (size_t k = 0; k < n; k++)
		if ((k != i && to[i] < to[k] + bytes[k] && to[k] < to[i] + bytes[i]) ||
		    (to[i] < from[k] + bytes[k] && from[k] < to[i] + bytes[i]))
			return "copies that depend on each other";
	return NULL;
}

static bool good_attributes(const CUmemcpyAttributes *attributes, const size_t *first, size_t n_attributes, size_t n)
{
	for (size_t i = 0; i < n_attributes; i++)
		if (attributes[i].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
		    attributes[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY || first[i] >= n ||
		    (i ? first[i] <= first[i - 1] : first[i] != 0))
			return false;
	return n_attributes > 0 && n_attributes <= n;
}

/* In the form of CUDA 12.8. */
static CUresult fake_memcpy_batch_async(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n,
					CUmemcpyAttributes *attributes, size_t *first, size_t n_attributes,
					size_t *failed, CUstream stream)
{
	CUresult err = fake_enter("cuMemcpyBatchAsync"), queued = CUDA_SUCCESS;
	const char *fault = NULL;
	unsigned gpus;

	*failed = SIZE_MAX;
	if (stream == NULL || stream == CU_STREAM_LEGACY)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemcpyBatchAsync on the legacy stream");
	if (!good_attributes(attributes, first, n_attributes, n))
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemcpyBatchAsync with wrong attributes");
	gpus = stream_gpu_bit(stream);
	pthread_mutex_lock(&fake.lock);
	for (size_t i = 0; i < n && !fault; i++) {
		fault = batch_copy_fault(to, from, bytes, n, i, gpus);
		if (fault)
			*failed = i;
	}
	pthread_mutex_unlock(&fake.lock);
	if (fault)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemcpyBatchAsync of %s", fault);
	/* One that is made to fail has copied half of it. */
	for (size_t i = n; i-- > (err ? n / 2 : 0) && !queued;)
		queued = queue(stream, &(struct fake_item){ .kind = ITEM_COPY, .to = (void *)to[i],
							    .from = (void *)from[i], .bytes = bytes[i] });
	return err ? err : queued;
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
	good = device == from ? fake_readable_memory(from, bytes, gpus) : fake_device_memory(device, bytes, gpus);
	pthread_mutex_unlock(&fake.lock);
	if (!good)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "%s of memory that is not the device's", call);
	memcpy(to, from, bytes);
	pthread_mutex_lock(&fake.lock);
	count_copy(to, from, bytes);
	pthread_mutex_unlock(&fake.lock);
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
	CUcontext ctx = fake_context();

	if (err)
		return err;
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	*out = calloc(1, sizeof(**out));
	(*out)->ctx = ctx;
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
	if (good && fake_takes_effect(err, 1u << event->ctx->gpu)) {
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

/* fake.lock held. It says nothing any more until it is recorded anew. */
static CUresult captured_event(CUevent event)
{
	if (is_capture(event->capture))
		event->capture->invalidated = true;
	return CUDA_ERROR_CAPTURED_EVENT;
}

static CUresult fake_event_synchronize(CUevent event)
{
	CUresult err = enter_waiting("cuEventSynchronize");
	uint64_t number;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	if (is_event(event) && event->captured) {
		err = captured_event(event);
	} else if (is_event(event)) {
		event->users++;
		for (number = event->recorded; event->reached < number && !event->destroyed;)
			pthread_cond_wait(&fake.changed, &fake.lock);
		event->users--;
		put_event(event);
		err = fake.broken;
	} else {
		err = fake_refuse(CUDA_ERROR_INVALID_HANDLE, "cuEventSynchronize of no event");
	}
	pthread_mutex_unlock(&fake.lock);
	return err;
}

static CUresult fake_event_query(CUevent event)
{
	CUresult err;
	bool ready;

	/* How often somebody asks in a loop depends on time: only the last answer counts as a call, and can be made to fail. */
	pthread_mutex_lock(&fake.lock);
	ready = !is_event(event) || event->captured || event->reached >= event->recorded || fake.broken;
	pthread_mutex_unlock(&fake.lock);
	if (!ready)
		return CUDA_ERROR_NOT_READY;
	err = fake_enter("cuEventQuery");
	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	if (!is_event(event))
		err = fake_refuse(CUDA_ERROR_INVALID_HANDLE, "cuEventQuery of no event");
	else if (event->captured)
		err = captured_event(event);
	else
		err = event->reached < event->recorded ? CUDA_ERROR_NOT_READY : fake.broken;
	pthread_mutex_unlock(&fake.lock);
	return err;
}

/* Simulated: an event does not go from process to process, each end has its own. */
static CUresult fake_ipc_get_event_handle(CUipcEventHandle *out, CUevent event)
{
	CUresult err = fake_enter("cuIpcGetEventHandle");
	bool good;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	good = is_event(event);
	pthread_mutex_unlock(&fake.lock);
	if (!good)
		return fake_refuse(CUDA_ERROR_INVALID_HANDLE, "cuIpcGetEventHandle of no event");
	memset(out, 0, sizeof(*out));
	return CUDA_SUCCESS;
}

static CUresult fake_ipc_open_event_handle(CUevent *out, CUipcEventHandle handle)
{
	CUresult err = fake_enter("cuIpcOpenEventHandle");

	return err ? err : fake_event_create(out, CU_EVENT_DISABLE_TIMING);
}

/* ---- captures ---- */

static CUresult fake_begin_capture(CUstream handle, CUstreamCaptureMode mode)
{
	CUresult err = fake_enter("cuStreamBeginCapture");
	CUcontext current = fake_context();
	struct fake_capture *capture;
	CUstream s;

	if (err)
		return err;
	if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "a capture mode that is none");
	pthread_mutex_lock(&fake.lock);
	s = find_stream(handle, current);
	if (!s) {
		err = CUDA_ERROR_INVALID_HANDLE;
	} else if (s->legacy) {
		err = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	} else if (s->capture) {
		err = CUDA_ERROR_ILLEGAL_STATE;
	} else {
		capture = calloc(1, sizeof(*capture));
		*capture = (struct fake_capture){ .origin = s, .mode = mode, .thread = fake_thread() };
		TAILQ_INSERT_TAIL(&fake.captures, capture, link);
		s->capture = capture;
	}
	pthread_mutex_unlock(&fake.lock);
	return err;
}

static CUresult fake_end_capture(CUstream handle, CUgraph *graph)
{
	CUresult err = fake_enter("cuStreamEndCapture");
	CUcontext current = fake_context();
	struct fake_capture *capture;
	CUstream s;

	if (err)
		return err;
	*graph = NULL;
	pthread_mutex_lock(&fake.lock);
	s = find_stream(handle, current);
	capture = s ? s->capture : NULL;
	if (!capture)
		err = s ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_HANDLE;
	else if (capture->origin != s)
		err = invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	else if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != fake_thread())
		err = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (err)
		goto unlock;
	if (capture->invalidated) {
		err = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	} else {
		*graph = calloc(1, sizeof(**graph));
		TAILQ_INSERT_TAIL(&fake.graphs, *graph, link);
	}
	end_capture(capture);
unlock:
	pthread_mutex_unlock(&fake.lock);
	return err;
}

static CUresult fake_is_capturing(CUstream handle, CUstreamCaptureStatus *status)
{
	CUresult err = fake_enter("cuStreamIsCapturing");
	CUcontext current = fake_context();
	CUstream s;

	if (err)
		return err;
	pthread_mutex_lock(&fake.lock);
	s = find_stream(handle, current);
	if (!s)
		err = CUDA_ERROR_INVALID_HANDLE;
	else if (s->legacy && capture_of_context(s->ctx, true))
		err = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; /* which spoils nothing */
	else
		*status = !s->capture ? CU_STREAM_CAPTURE_STATUS_NONE :
			  s->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED :
						    CU_STREAM_CAPTURE_STATUS_ACTIVE;
	pthread_mutex_unlock(&fake.lock);
	return err;
}

static CUresult fake_graph_destroy(CUgraph graph)
{
	CUresult err = fake_enter("cuGraphDestroy");
	CUgraph g;

	if (!fake_takes_effect(err, ALL_GPUS))
		return err;
	pthread_mutex_lock(&fake.lock);
	TAILQ_FOREACH(g, &fake.graphs, link)
		if (g == graph)
			break;
	if (g)
		TAILQ_REMOVE(&fake.graphs, g, link);
	pthread_mutex_unlock(&fake.lock);
	free(g);
	return g ? err : fake_refuse(CUDA_ERROR_INVALID_VALUE, "cuGraphDestroy of no graph");
}

const struct fake_entry fake_stream_entries[] = {
	{ "cuIpcGetEventHandle", fake_ipc_get_event_handle },
	{ "cuIpcOpenEventHandle", fake_ipc_open_event_handle },
	{ "cuStreamBeginCapture", fake_begin_capture },
	{ "cuStreamEndCapture", fake_end_capture },
	{ "cuStreamIsCapturing", fake_is_capturing },
	{ "cuGraphDestroy", fake_graph_destroy },
	{ "cuStreamCreate", fake_stream_create },
	{ "cuStreamDestroy", fake_stream_destroy },
	{ "cuStreamSynchronize", fake_stream_synchronize },
	{ "cuStreamQuery", fake_stream_query },
	{ "cuStreamGetCtx", fake_stream_get_ctx },
	{ "cuStreamGetId", fake_stream_get_id },
	{ "cuStreamWaitEvent", fake_stream_wait_event },
	{ "cuStreamWaitValue32", fake_stream_wait_value },
	{ "cuStreamWriteValue32", fake_stream_write_value },
	{ "cuCtxSynchronize", fake_ctx_synchronize },
	{ "cuMemcpyHtoDAsync", fake_memcpy_htod_async },
	{ "cuMemcpyDtoHAsync", fake_memcpy_dtoh_async },
	{ "cuMemcpyDtoDAsync", fake_memcpy_dtod_async },
	{ "cuMemcpyBatchAsync", fake_memcpy_batch_async },
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
