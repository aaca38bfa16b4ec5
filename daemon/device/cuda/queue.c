/*
 * queue.c - operations of the CUDA device, from submit to done.
 *
 * The issuer takes operations in order and turns each into one or more batches of commands. The copy engine copies the
 * long runs, all those of a batch by one call. The rest of a batch becomes items of one kernel, which reads and writes
 * registered host memory itself, across the bus: so scattered pages cost one launch. Host memory that is not registered
 * goes through the batch's pinned staging buffer.
 *
 * A run is cut where its host memory crosses into another registration, or into another slab that is not registered.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/log.h"
#include "base/thread.h"
#include "device/cuda/internal.h"

#define ASK_NS 60000u

/* ---- the submitter's side ---- */

/* lock held. */
static const char *memory_fault(struct cuda *cuda, const struct dev_op *op)
{
	for (unsigned i = 0; i < op->n; i++) {
		if (!cuda_find_live(cuda, op->runs[i].mem))
			return "memory that is not the device's";
		if (op->kind == DEV_COPY_WITHIN && !cuda_find_live(cuda, op->runs[i].other))
			return "a source that is not the device's";
	}
	return NULL;
}

/* Memory in flight cannot be freed. lock is held. */
static void mark_in_flight(struct cuda *cuda, const struct dev_op *op, int by)
{
	for (unsigned i = 0; i < op->n; i++) {
		cuda_find_live(cuda, op->runs[i].mem)->in_flight += (unsigned)by;
		if (op->kind == DEV_COPY_WITHIN)
			cuda_find_live(cuda, op->runs[i].other)->in_flight += (unsigned)by;
	}
}

int cuda_submit(struct device *dev, struct dev_op *op)
{
	struct cuda *cuda = to_cuda(dev);
	const char *fault = device_op_fault(op);
	bool held = false;
	int err;

	if (atomic_load(&cuda->off))
		return -ENODEV;
	if (!fault && op->kind == DEV_COPY_PEER) {
		err = cuda_sources_hold(cuda, op, &fault);
		if (err == -EHOSTUNREACH)
			return err;
		held = !err;
	}
	pthread_mutex_lock(&cuda->lock);
	/* The keeper of a device that is off waits until nothing is under way (give_back()): so nothing may be added. */
	if (atomic_load(&cuda->off)) {
		pthread_mutex_unlock(&cuda->lock);
		if (held)
			cuda_sources_drop(op);
		return -ENODEV;
	}
	if (!fault)
		fault = memory_fault(cuda, op);
	if (fault) {
		pthread_mutex_unlock(&cuda->lock);
		if (held)
			cuda_sources_drop(op);
		log_error("device %s: refused to %s: %s", dev->name, device_kind_name(op->kind), fault);
		return -EINVAL;
	}
	mark_in_flight(cuda, op, 1);
	cuda->outstanding++;
	op->next = NULL;
	*cuda->tail = op;
	cuda->tail = &op->next;
	pthread_cond_signal(&cuda->work);
	pthread_mutex_unlock(&cuda->lock);
	return 0;
}

/* ---- the issuer's side ---- */

/* An operation that is being turned into batches. */
struct issue {
	struct cuda *cuda;
	struct dev_op *op;
	struct cuda_batch *batch; /* being filled; or NULL */
	int err;		  /* if set, nothing more is issued */
	bool ended;		  /* the last batch has been handed on */
};

/* Host memory as the device reaches it. */
struct place {
	void *host;	    /* NULL: there is none */
	CUdeviceptr device; /* its address there */
};

static struct cuda_batch *take_idle(struct cuda *cuda)
{
	struct cuda_batch *b;

	pthread_mutex_lock(&cuda->lock);
	while (!(b = STAILQ_FIRST(&cuda->idle)))
		pthread_cond_wait(&cuda->work, &cuda->lock);
	STAILQ_REMOVE_HEAD(&cuda->idle, link);
	pthread_mutex_unlock(&cuda->lock);
	b->recorded = b->last = false;
	b->err = 0;
	b->host_epoch = cuda_host_begin();
	b->n_items = b->n_pages = b->n_copies = b->n_unstage = b->staged = 0;
	memset(b->unarmed, 0, sizeof(b->unarmed));
	return b;
}

static void need_batch(struct issue *is)
{
	if (!is->batch)
		is->batch = take_idle(is->cuda);
}

static int copy_one(struct cuda *cuda, enum dev_kind kind, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	const struct cuda_api *api = cuda->api;

	if (kind == DEV_COPY_OUT)
		return cuda_check(cuda, api->cuMemcpyDtoHAsync((void *)to, from, bytes, cuda->stream),
				  "cuMemcpyDtoHAsync");
	if (kind == DEV_COPY_PEER)
		return cuda_check(cuda, api->cuMemcpyDtoDAsync(to, from, bytes, cuda->stream),
				  "cuMemcpyDtoDAsync");
	return cuda_check(cuda, api->cuMemcpyHtoDAsync(to, (void *)from, bytes, cuda->stream),
			  "cuMemcpyHtoDAsync");
}

/*
 * Have the copy engine copy the runs that were added: by one call, if the driver can do that. Such copies have no order, but
 * runs of an operation have none either. (Not copies between two GPUs: the documentation does not say that these are
 * allowed.)
 */
static int copy_by_engine(struct cuda *cuda, struct cuda_batch *b, enum dev_kind kind)
{
	CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
	uint32_t n = b->n_copies;
	size_t first = 0, failed;
	CUresult result;
	int err = 0;

	b->n_copies = 0;
	if (n > 1 && kind != DEV_COPY_PEER && cuda->api->copy_batch && !cuda->no_copy_batch) {
		result = cuda->api->copy_batch(b->copy_to, b->copy_from, b->copy_bytes, n, &attributes, &first, 1,
					       &failed, cuda->stream);
		if (result == CUDA_SUCCESS)
			return 0;
		/*
		 * Copy one by one from now on. Copies that are under way are made once more; a context that is
		 * broken will report it again.
		 */
		log_warn("device %s: cuMemcpyBatchAsync: error %d, so what it was for is copied one by one", cuda->base.name, (int)result);
		cuda->no_copy_batch = true;
		cuda->copy_from = MAX(cuda->copy_from, cuda->copy_alone_from);
	}
	for (uint32_t i = 0; i < n && !err; i++)
		err = copy_one(cuda, kind, b->copy_to[i], b->copy_from[i], b->copy_bytes[i]);
	return err;
}

/* Issue what was added to the batch: copies, then a kernel. */
static int issue_added(struct cuda *cuda, struct cuda_batch *b, const struct dev_op *op)
{
	int err = b->n_copies ? copy_by_engine(cuda, b, op->kind) : 0;

	if (err || !b->n_items)
		return err;
	return cuda_check(cuda,
			  cuda->api->launch(op->kind, op->arm, b->items, b->n_items, b->n_pages,
					    (uint8_t *)b->device_changed, cuda->stream),
			  "launching a kernel");
}

/* Hand the batch, with its kernel, to the completer. After an error it is the operation's last. */
static void flush(struct issue *is, bool last)
{
	struct cuda *cuda = is->cuda;
	struct cuda_batch *b = is->batch;

	if (!is->err)
		is->err = issue_added(cuda, b, is->op);
	if (!is->err)
		is->err = cuda_check(cuda, cuda->api->cuEventRecord(b->event, cuda->stream),
				     "cuEventRecord");
	b->op = is->op;
	b->err = is->err;
	b->recorded = !is->err;
	b->last = is->ended = last || is->err;
	is->batch = NULL;
	pthread_mutex_lock(&cuda->lock);
	STAILQ_INSERT_TAIL(&cuda->issued, b, link);
	pthread_cond_signal(&cuda->issued_cond);
	pthread_mutex_unlock(&cuda->lock);
}

/*
 * The batch is full. If only its lists are, they are issued and the batch goes on: only staging buffers and results
 * have to be waited for.
 */
static void make_room(struct issue *is)
{
	struct cuda_batch *b = is->batch;
	bool full = b->n_items == BATCH_ITEMS || b->n_copies == BATCH_COPIES || b->n_pages == BATCH_PAGES;

	if (!full || is->op->kind == DEV_FIND_CHANGED) {
		flush(is, false);
		return;
	}
	is->err = issue_added(is->cuda, b, is->op);
	b->n_items = b->n_pages = 0;
}

static struct place stage(struct cuda_batch *b, uint32_t n)
{
	struct place place = { b->staging + b->staged, b->device_staging + b->staged };

	b->staged += n * GAIA_PAGE;
	return place;
}

/* Copy host memory that is not registered to the staging buffer. */
static void bring(struct cuda_batch *b, struct place *place, const void *host, uint32_t n)
{
	if (place->host)
		return;
	*place = stage(b, n);
	memcpy(place->host, host, (size_t)n * GAIA_PAGE);
}

/* Have bytes that the device will write to the staging buffer copied from there to host memory that is not registered. */
static void take_away(struct cuda_batch *b, struct place *place, void *host, uint32_t n)
{
	if (place->host)
		return;
	*place = stage(b, n);
	b->unstage[b->n_unstage++] = (struct cuda_unstage){ .to = host, .from = place->host,
							    .bytes = (size_t)n * GAIA_PAGE };
}

/* Add a copy by the copy engine. @place: the host's end; for DEV_COPY_PEER the item has the other address. */
static void add_copy(struct cuda_batch *b, enum dev_kind kind, const struct page_item *item,
		     const struct place *place, uint32_t n)
{
	CUdeviceptr page = (CUdeviceptr)item->page;
	CUdeviceptr other = kind == DEV_COPY_PEER ? (CUdeviceptr)item->other : (CUdeviceptr)place->host;

	b->copy_to[b->n_copies] = kind == DEV_COPY_OUT ? other : page;
	b->copy_from[b->n_copies] = kind == DEV_COPY_OUT ? page : other;
	b->copy_bytes[b->n_copies++] = (size_t)n * GAIA_PAGE;
}

/*
 * Update the armed marks of @n pages of a run, from @at on, as the operation changes them; these are the batch's pages
 * from @nth on. This costs the GPU nothing.
 */
static void mark_armed(struct cuda_batch *b, const struct dev_op *op, const struct dev_run *run, uint32_t at,
		       uint32_t n, uint32_t nth)
{
	enum dev_kind kind = op->kind;
	struct cuda_chunk *chunk = container_of(run->mem, struct cuda_chunk, base);
	const struct cuda_chunk *other = NULL;

	if (kind == DEV_COPY_OUT || kind == DEV_ZERO)
		return;
	if (kind == DEV_COPY_WITHIN)
		other = container_of(run->other, struct cuda_chunk, base);
	/* A word of pages at a time. */
	for (uint32_t page = run->page + at, end = page + n, next; page < end; nth += next - page, page = next) {
		uint64_t *word = &chunk->unarmed[page / 64], mask, unarmed;

		next = MIN((page / 64 + 1) * 64, end);
		mask = ~0ull >> (64 - (next - page)) << (page % 64);
		if (kind == DEV_FIND_CHANGED)
			bits_add(b->unarmed, nth, (*word & mask) >> (page % 64));
		if (kind == DEV_COPY_WITHIN)
			unarmed = other->unarmed[page / 64];
		else
			unarmed = (kind == DEV_COPY_IN || kind == DEV_COPY_PEER) && !op->arm ? ~0ull : 0;
		*word = (*word & ~mask) | (unarmed & mask);
	}
}

/* Find a run's host memory: where it is pinned, and how many of @n pages can be used at once. */
static uint32_t find_host(const void *first, uint32_t at, uint32_t n, const void **host, struct place *place)
{
	size_t bytes;

	*host = (const char *)first + (size_t)at * GAIA_PAGE;
	place->device = cuda_host_address(*host, &bytes);
	place->host = place->device ? (void *)*host : NULL;
	return (uint32_t)MIN((size_t)n, bytes / GAIA_PAGE);
}

/*
 * A kernel of ours waits for its turn beside kernels of other programs, 1.2 ms on an H200, and theirs wait for it; copies by the
 * copy engine do not. Those of a few runs take no longer (30 to 45 us, alone), whatever their length.
 */
static bool needs_no_kernel(const struct cuda *cuda, const struct dev_op *op)
{
	return (op->kind == DEV_COPY_OUT || (op->kind == DEV_COPY_IN && !op->arm)) && op->n <= cuda->few_runs;
}

/*
 * Add pages @at and following of the run to the batch. Returns their number; 0: there is no room for more, or
 * an error.
 */
static uint32_t add_pages(struct issue *is, const struct dev_run *run, uint32_t at)
{
	struct cuda *cuda = is->cuda;
	struct cuda_batch *b = is->batch;
	enum dev_kind kind = is->op->kind;
	bool has_host = device_uses_host(kind), has_base = kind == DEV_PULL && run->limit;
	bool is_copy = kind == DEV_COPY_IN || kind == DEV_COPY_OUT || kind == DEV_COPY_PEER;
	uint32_t n = MIN(run->npages - at, BATCH_PAGES - b->n_pages), unstaged = 0;
	struct place host_place = { NULL, 0 }, base_place = { NULL, 0 };
	const void *host = NULL, *base = NULL;
	struct page_item item = {
		.page = (void *)cuda_page(cuda, run->mem, run->page + at),
		.armed = cuda_armed(cuda, run->mem, run->page + at),
		.first = b->n_pages,
		.limit = run->limit,
	};

	if (b->n_items == BATCH_ITEMS || b->n_copies == BATCH_COPIES)
		return 0;
	if (has_host) {
		n = find_host(run->host, at, n, &host, &host_place);
		unstaged += !host_place.host;
	}
	if (has_base) {
		n = find_host(run->base, at, n, &base, &base_place);
		unstaged += !base_place.host;
	}
	if (unstaged)
		n = MIN(n, (BATCH_STAGING - b->staged) / GAIA_PAGE / unstaged);
	if (!n)
		return 0;
	if (kind == DEV_COPY_OUT)
		take_away(b, &host_place, (void *)host, n);
	else if (has_host)
		bring(b, &host_place, host, n);
	if (has_base)
		bring(b, &base_place, base, n);
	if (kind == DEV_COPY_WITHIN) {
		item.other = (void *)cuda_page(cuda, run->other, run->page + at);
		item.other_armed = cuda_armed(cuda, run->other, run->page + at);
	} else if (kind == DEV_COPY_PEER) {
		item.other = (void *)cuda_page(cuda_source(is->op), run->other, run->page + at);
	} else {
		item.other = (void *)host_place.device;
		item.base = (void *)base_place.device;
	}
	mark_armed(b, is->op, run, at, n, b->n_pages);
	if (is_copy && (n * GAIA_PAGE >= (kind == DEV_COPY_PEER || is->op->arm ? cuda->copy_alone_from : cuda->copy_from) ||
			needs_no_kernel(cuda, is->op))) {
		add_copy(b, kind, &item, &host_place, n);
		if (!is->op->arm)
			return n;
		item.other = NULL; /* the kernel comes after the copy, and finds the bytes in the page */
	}
	b->items[b->n_items++] = item;
	b->n_pages += n;
	return n;
}

static void issue(struct cuda *cuda, struct dev_op *op)
{
	struct issue is = { .cuda = cuda, .op = op, .err = atomic_load(&cuda->off) ? -EIO : 0 };
	uint32_t at, n;

	/* After an error the last batch has been handed on, and op may be gone. */
	for (unsigned i = 0; !is.err && i < op->n; i++) {
		if (op->kind == DEV_COPY_PEER)
			is.err = cuda_source_open(cuda, cuda_source(op), op->runs[i].other);
		for (at = 0; !is.err && at < op->runs[i].npages; at += n) {
			need_batch(&is);
			n = add_pages(&is, &op->runs[i], at);
			if (!n && !is.err)
				make_room(&is);
		}
	}
	if (is.ended)
		return;
	need_batch(&is);
	flush(&is, true);
}

void *cuda_issuer_main(void *arg)
{
	struct cuda *cuda = arg;
	struct dev_op *op;

	thread_set_name("cuda-issue");
	(void)cuda_enter(cuda); /* if it fails, each operation fails */
	pthread_mutex_lock(&cuda->lock);
	for (;;) {
		while (!cuda->head && !cuda->stop)
			pthread_cond_wait(&cuda->work, &cuda->lock);
		op = cuda->head;
		if (!op)
			break;
		cuda->head = op->next;
		if (!cuda->head)
			cuda->tail = &cuda->head;
		pthread_mutex_unlock(&cuda->lock);
		issue(cuda, op);
		pthread_mutex_lock(&cuda->lock);
	}
	pthread_mutex_unlock(&cuda->lock);
	return NULL;
}

/* ---- the completer's side ---- */

/*
 * The thread that sleeps for an event wakes up 40 us after it (an H200 in a virtual machine); most operations have ended before
 * that. So it asks for a moment first.
 */
static CUresult wait_for_event(struct cuda *cuda, CUevent event)
{
	uint64_t until = now_ns() + ASK_NS;
	CUresult result;

	while ((result = cuda->api->cuEventQuery(event)) == CUDA_ERROR_NOT_READY && now_ns() < until)
		sched_yield();
	return result == CUDA_ERROR_NOT_READY ? cuda->api->cuEventSynchronize(event) : result;
}

/* Wait until nothing of the batch is under way any more. Returns whether it was carried out. */
static int wait_for(struct cuda *cuda, struct cuda_batch *b)
{
	if (b->recorded) {
		b->err = cuda_check(cuda, wait_for_event(cuda, b->event), "waiting for an event");
		if (!b->err)
			return 0;
	}
	(void)cuda_drain(cuda, cuda->stream);
	return b->err;
}

/* If the source GPU is off by now, what was read from it may be anything. */
static int check_source(const struct dev_op *op)
{
	return op->kind == DEV_COPY_PEER && atomic_load(&cuda_source(op)->off) ? -EHOSTUNREACH : 0;
}

/* Do the part of the batch that is left for the CPU. @bit: number of the batch's first page in the operation. */
static void finish(struct cuda_batch *b, uint64_t bit)
{
	for (uint32_t i = 0; i < b->n_unstage; i++)
		memcpy(b->unstage[i].to, b->unstage[i].from, b->unstage[i].bytes);
	if (b->op->kind != DEV_FIND_CHANGED)
		return;
	for (uint32_t first = 0; first < b->n_pages; first += 64) {
		uint64_t changed = b->changed[first / 64] | b->unarmed[first / 64];

		if (b->n_pages - first < 64)
			changed &= (1ull << (b->n_pages - first)) - 1;
		bits_add(b->op->changed, bit + first, changed);
	}
}

static void put_idle(struct cuda *cuda, struct cuda_batch *b)
{
	cuda_host_done(b->host_epoch);
	pthread_mutex_lock(&cuda->lock);
	STAILQ_INSERT_TAIL(&cuda->idle, b, link);
	if (b->last) {
		mark_in_flight(cuda, b->op, -1);
		if (--cuda->outstanding == 0 && atomic_load(&cuda->off))
			pthread_cond_broadcast(&cuda->memory); /* the keeper */
	}
	pthread_cond_signal(&cuda->work);
	pthread_mutex_unlock(&cuda->lock);
}

void *cuda_completer_main(void *arg)
{
	struct cuda *cuda = arg;
	uint64_t bit = 0; /* this and the next: of the operation whose batches are coming */
	int failed = 0;

	thread_set_name("cuda-complete");
	(void)cuda_enter(cuda);
	pthread_mutex_lock(&cuda->lock);
	for (;;) {
		struct cuda_batch *b;
		struct dev_op *op;
		bool last;
		int err;

		while (!(b = STAILQ_FIRST(&cuda->issued)) && !cuda->stop_completer)
			pthread_cond_wait(&cuda->issued_cond, &cuda->lock);
		if (!b)
			break;
		STAILQ_REMOVE_HEAD(&cuda->issued, link);
		pthread_mutex_unlock(&cuda->lock);

		err = wait_for(cuda, b);
		if (!failed)
			failed = err;
		if (!failed)
			finish(b, bit);
		bit += b->n_pages;
		op = b->op;
		last = b->last;
		put_idle(cuda, b); /* the issuer's now */
		if (last) {
			err = failed ? failed : check_source(op);
			bit = 0;
			failed = 0;
			if (op->kind == DEV_COPY_PEER)
				cuda_sources_drop(op);
			op->done(op, err); /* op may be gone now */
		}
		pthread_mutex_lock(&cuda->lock);
	}
	pthread_mutex_unlock(&cuda->lock);
	return NULL;
}

/* ---- life ---- */

/* Pinned, for the CPU and the device. */
static int host_alloc(struct cuda *cuda, size_t bytes, void *out, CUdeviceptr *address)
{
	void *memory;
	int err = cuda_check(cuda,
			     cuda->api->cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_DEVICEMAP),
			     "cuMemHostAlloc");

	if (err)
		return err;
	*(void **)out = memory;
	return cuda_check(cuda, cuda->api->cuMemHostGetDevicePointer(address, memory, 0),
			  "cuMemHostGetDevicePointer");
}

static int batch_init(struct cuda *cuda, struct cuda_batch *b)
{
	int err = host_alloc(cuda, BATCH_PAGES / 8, &b->changed, &b->device_changed);

	if (!err)
		err = host_alloc(cuda, BATCH_STAGING, &b->staging, &b->device_staging);
	if (!err)
		err = cuda_check(cuda,
				 cuda->api->cuEventCreate(&b->event, CU_EVENT_BLOCKING_SYNC |
								     CU_EVENT_DISABLE_TIMING),
				 "cuEventCreate");
	return err;
}

static void batch_destroy(struct cuda *cuda, struct cuda_batch *b)
{
	const struct cuda_api *api = cuda->api;

	if (b->event)
		cuda_ended(cuda, api->cuEventDestroy(b->event), "cuEventDestroy");
	if (b->staging)
		cuda_ended(cuda, api->cuMemFreeHost(b->staging), "cuMemFreeHost");
	if (b->changed)
		cuda_ended(cuda, api->cuMemFreeHost(b->changed), "cuMemFreeHost");
}

int cuda_queue_init(struct cuda *cuda)
{
	int err = cuda_check(cuda, cuda->api->cuStreamCreate(&cuda->stream, CU_STREAM_NON_BLOCKING),
			     "cuStreamCreate");

	for (unsigned i = 0; i < BATCHES && !err; i++) {
		err = batch_init(cuda, &cuda->batch[i]);
		STAILQ_INSERT_TAIL(&cuda->idle, &cuda->batch[i], link);
	}
	return err;
}

void cuda_queue_destroy(struct cuda *cuda)
{
	if (cuda->reset)
		return;
	for (unsigned i = 0; i < BATCHES; i++)
		batch_destroy(cuda, &cuda->batch[i]);
	if (cuda->stream)
		cuda_ended(cuda, cuda->api->cuStreamDestroy(cuda->stream), "cuStreamDestroy");
}
