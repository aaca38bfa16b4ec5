/* device.c - code that all devices share: submitting, waiting, checks of operations. */
#include "device/device.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/counters.h"
#include "base/latency.h"
#include "base/thread.h"
#include "base/util.h"

/*
 * An operation of no more pages takes less time than falling asleep, being woken, and having another thread
 * take over meanwhile.
 */
#define FEW_PAGES 32u
#define SOON_NS 30000u

_Static_assert(LATENCY_device_find_changed - LATENCY_device_copy_in == DEV_FIND_CHANGED &&
	       LATENCY_device_copy_peer - LATENCY_device_copy_in == DEV_COPY_PEER, "latencies of devices are in the order of their operations");

static void wake_waiter(struct dev_op *op, int err)
{
	struct device_wait *w = op->arg;

	w->err = err;
	w->ended_ns = now_ns();
	latency_count(LATENCY_device_copy_in + op->kind, (int64_t)(w->ended_ns - w->began_ns));
	if (w->then)
		w->then(w->then_arg, err);
	sem_post(&w->completed);
}

static bool is_small(const struct dev_op *op)
{
	unsigned pages = 0;

	for (unsigned i = 0; i < op->n && pages <= FEW_PAGES; i++)
		pages += op->runs[i].npages;
	return pages <= FEW_PAGES;
}

static bool completes_soon(struct device_wait *w)
{
	uint64_t until = w->began_ns + SOON_NS;

	do {
		if (!sem_trywait(&w->completed))
			return true;
		sched_yield(); /* a simulated device may want this core */
	} while (now_ns() < until);
	return false;
}

int device_submit(struct device *dev, struct dev_op *op)
{
	/*
	 * Counted by the innermost device only: layers submit it again to the one below. When submit() returns
	 * @op may be gone.
	 */
	bool counts = dev == dev->core;
	uint64_t bytes = counts ? device_host_bytes(op) : 0;
	bool out = op->kind == DEV_COPY_OUT;
	int err = dev->ops->submit(dev, op);

	if (!err && counts) {
		count(CTR_device_operations, 1);
		count(out ? CTR_device_bytes_out : CTR_device_bytes_in, bytes);
		__atomic_fetch_add(out ? &dev->bytes_out : &dev->bytes_in, bytes, __ATOMIC_RELAXED);
	}
	return err;
}

int device_begin(struct device *dev, struct dev_op *op, struct device_wait *w)
{
	return device_begin_then(dev, op, w, NULL, NULL);
}

int device_begin_then(struct device *dev, struct dev_op *op, struct device_wait *w, void (*then)(void *arg, int err), void *arg)
{
	int err;

	w->then = then;
	w->then_arg = arg;
	sem_init(&w->completed, 0, 0);
	w->few = is_small(op);
	w->began_ns = now_ns();
	op->done = wake_waiter;
	op->arg = w;
	err = device_submit(dev, op);
	if (err)
		sem_destroy(&w->completed);
	return err;
}

int device_end(struct device_wait *w)
{
	if (sem_trywait(&w->completed) && !(w->few && thread_is_relied_on() && completes_soon(w))) {
		thread_waits();
		while (sem_wait(&w->completed) && errno == EINTR)
			;
	}
	sem_destroy(&w->completed);
	return w->err;
}

int device_run(struct device *dev, struct dev_op *op)
{
	struct device_wait w;
	int err;

	if (!thread_is_relied_on() || !is_small(op))
		thread_waits();
	err = device_begin(dev, op, &w);
	return err ? err : device_end(&w);
}

uint64_t device_new_generation(void)
{
	static _Atomic uint64_t last;

	return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

/* ---- whether operations are well formed ---- */

static const char *const kind_names[] = {
	[DEV_COPY_IN] = "copy in",
	[DEV_COPY_OUT] = "copy out",
	[DEV_COPY_WITHIN] = "copy within",
	[DEV_COPY_PEER] = "copy from another device",
	[DEV_PULL] = "pull",
	[DEV_ZERO] = "zero",
	[DEV_ARM] = "arm",
	[DEV_FIND_CHANGED] = "find changed",
};

const char *device_kind_name(enum dev_kind kind)
{
	return kind < ARRAY_LEN(kind_names) ? kind_names[kind] : "do what it does not know";
}

bool device_uses_host(enum dev_kind kind)
{
	return kind == DEV_COPY_IN || kind == DEV_COPY_OUT || kind == DEV_PULL;
}

uint64_t device_host_bytes(const struct dev_op *op)
{
	uint64_t pages = 0;

	if (!device_uses_host(op->kind))
		return 0;
	for (unsigned i = 0; i < op->n; i++) {
		const struct dev_run *run = &op->runs[i];

		pages += run->npages;
		if (op->kind == DEV_PULL && run->limit)
			pages += run->npages;
	}
	return pages * GAIA_PAGE;
}

static bool page_aligned(const void *p)
{
	return p && !((uintptr_t)p & (GAIA_PAGE - 1));
}

/* Why a run is malformed, or NULL. */
static const char *run_fault(enum dev_kind kind, const struct dev_run *run)
{
	if (!run->npages || run->page >= GAIA_CHUNK_PAGES ||
	    run->npages > GAIA_CHUNK_PAGES - run->page)
		return "its pages are not within a chunk";
	if (device_uses_host(kind) && !page_aligned(run->host))
		return "its host memory is not page aligned";
	if (kind == DEV_COPY_WITHIN && run->mem == run->other)
		return "it copies onto itself";
	if ((kind == DEV_PULL || kind == DEV_ZERO) && run->limit > GAIA_PAGE)
		return "its limit is beyond a page";
	if (kind == DEV_PULL && run->limit && !page_aligned(run->base))
		return "its base is not page aligned";
	if (kind == DEV_ZERO && run->limit > 0 && run->npages != 1)
		return "it zeroes the ends of several pages";
	return NULL;
}

const char *device_op_fault(const struct dev_op *op)
{
	const char *fault;
	unsigned i;

	if (op->kind >= ARRAY_LEN(kind_names))
		return "its kind is unknown";
	if (!op->done)
		return "no done()";
	if (!op->n)
		return "no runs";
	if (op->kind == DEV_COPY_PEER && !op->from)
		return "no device to copy from";
	if (op->kind == DEV_FIND_CHANGED && !op->changed)
		return "no bits to set";
	if (op->arm && op->kind != DEV_COPY_IN && op->kind != DEV_COPY_PEER)
		return "it does not copy in what it is to arm";
	for (i = 0; i < op->n; i++) {
		fault = run_fault(op->kind, &op->runs[i]);
		if (fault)
			return fault;
	}
	return NULL;
}
