/*
 * detect.c - finding what changed, as a release does: hashing as much memory as there is.
 */
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#define TOO_LONG_US 7e6 /* to have the memory for one more row */

/* Chunks, with a run and an operation for each. */
struct many {
	struct device *dev;
	unsigned n, most;
	struct devmem **mem;
	struct dev_run *runs;
	struct dev_op *ops;
	uint64_t *changed;
};

/* False: there is no more memory. */
static bool grow(struct many *m, unsigned to)
{
	while (m->n < to) {
		int err = m->dev->ops->alloc(m->dev, &m->mem[m->n]);

		if (err == -ENOMEM)
			return false;
		if (err)
			die("allocating a chunk: %s", strerror(-err));
		m->runs[m->n] = (struct dev_run){ .mem = m->mem[m->n], .npages = GAIA_CHUNK_PAGES };
		m->n++;
	}
	return true;
}

static void one_operation(struct many *m, enum dev_kind kind, unsigned n)
{
	struct dev_op op = { .kind = kind, .runs = m->runs, .n = n, .changed = m->changed };

	run_op(m->dev, &op);
}

/* As the page cache asks. */
static void one_by_one(struct many *m, enum dev_kind kind, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct dev_op op = { .kind = kind, .runs = &m->runs[i], .n = 1,
				     .changed = m->changed + i * (GAIA_CHUNK_PAGES / 64) };

		run_op(m->dev, &op);
	}
}

static struct {
	sem_t completed;
	_Atomic unsigned left;
	_Atomic int err;
} at_once;

static void count_down(struct dev_op *op, int err)
{
	if (err)
		at_once.err = err;
	if (--at_once.left == 0)
		sem_post(&at_once.completed);
}

static void all_at_once(struct many *m, enum dev_kind kind, unsigned n)
{
	sem_init(&at_once.completed, 0, 0);
	at_once.left = n;
	for (unsigned i = 0; i < n; i++) {
		m->ops[i] = (struct dev_op){ .kind = kind, .runs = &m->runs[i], .n = 1,
					     .changed = m->changed + i * (GAIA_CHUNK_PAGES / 64),
					     .done = count_down };
		if (device_submit(m->dev, &m->ops[i]))
			die("the device refuses to %s", kind_name(kind));
	}
	while (sem_wait(&at_once.completed) && errno == EINTR)
		;
	if (at_once.err)
		die("the device does not %s: %s", kind_name(kind), strerror(-at_once.err));
}

static void put(struct many *m, enum dev_kind kind, unsigned n, const char *how,
		void (*run)(struct many *m, enum dev_kind kind, unsigned n))
{
	struct samples us = { .n = 0 };

	for (struct repeat r = repeat(7); again(&r);) {
		double t0;

		memset(m->changed, 0, n * sizeof(*m->changed) * (GAIA_CHUNK_PAGES / 64));
		t0 = now_us();
		run(m, kind, n);
		took(&r, &us, now_us() - t0);
	}
	row_begin("%s, %s", kind_name(kind), how);
	row_number("bytes", (double)n * CHUNK);
	row_samples("us", &us);
	put_rate((double)n * CHUNK, median(&us), ceilings.read);
	row_end();
}

void section_detect(void)
{
	static const unsigned gib[] = { 1, 4, 16, 64 };
	unsigned per_gib = quick ? 4 : (unsigned)(GIB / CHUNK), steps = quick ? 2 : 4;
	struct many m = { .most = gib[steps - 1] * per_gib };
	double took_us = 0;
	uint64_t room;

	bench_start();
	room = on_sim ? 64 * MIB : gpu_free() / 10 * 9;
	/* A few for the device itself, which keeps some ready. */
	m.dev = bench_device(MIN((uint64_t)m.most + 32, room / CHUNK) * CHUNK);
	m.mem = xcalloc(m.most, sizeof(*m.mem));
	m.runs = xcalloc(m.most, sizeof(*m.runs));
	m.ops = xcalloc(m.most, sizeof(*m.ops));
	m.changed = xcalloc(m.most * (GAIA_CHUNK_PAGES / 64), sizeof(*m.changed));
	for (unsigned i = 0; i < steps; i++) {
		unsigned n = gib[i] * per_gib;
		double t0 = now_us();

		if (took_us * 4 > TOO_LONG_US) {
			row_not_run(kind_name(DEV_FIND_CHANGED),
				    "%u GiB: the memory alone would take %.0f s to allocate", gib[i],
				    took_us * 4 / 1e6);
			break;
		}
		if (!grow(&m, n)) {
			row_not_run(kind_name(DEV_FIND_CHANGED), "%u GiB: the device has %u MiB", gib[i],
				    m.n * 2);
			break;
		}
		took_us += now_us() - t0;
		put(&m, DEV_FIND_CHANGED, n, "one operation", one_operation);
		put(&m, DEV_FIND_CHANGED, n, "an operation a chunk, submitted at once", all_at_once);
		/* Beside another process each may wait for that one's kernel. */
		if (beside ? i == 0 : gib[i] <= 16)
			put(&m, DEV_FIND_CHANGED, beside ? MIN(n, 64) : n,
			    "an operation a chunk, one after the other", one_by_one);
		if (i == 0)
			put(&m, DEV_ARM, n, "one operation", one_operation);
	}
	section_done(); /* freeing takes as long as allocating did */
}
