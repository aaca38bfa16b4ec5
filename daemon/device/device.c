/*
 * device.c - what all devices share.
 */
#include "device/device.h"

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>

struct waiter {
	sem_t completed;
	int err;
};

static void wake_waiter(struct dev_op *op, int err)
{
	struct waiter *w = op->arg;

	w->err = err;
	sem_post(&w->completed);
}

int device_run(struct device *dev, struct dev_op *op)
{
	struct waiter w;
	int err;

	sem_init(&w.completed, 0, 0);
	op->done = wake_waiter;
	op->arg = &w;
	err = device_submit(dev, op);
	if (!err) {
		while (sem_wait(&w.completed) && errno == EINTR)
			;
		err = w.err;
	}
	sem_destroy(&w.completed);
	return err;
}

uint64_t device_new_generation(void)
{
	static _Atomic uint64_t last;

	return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}
