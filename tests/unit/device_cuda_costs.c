/*
 * device_cuda_costs.c - what each kind of operation of the CUDA device asks of the driver: calls, launches, and bytes
 * each way, exactly, on the fake driver.
 *
 * A call costs the CPU time, and a command the GPU's; bytes in and out cross the bus. So a number that grows here
 * is a path that became slower, by an amount that only a GPU can tell.
 */
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>

#include "device/cuda/internal.h"
#include "device_io.h"
#include "fake_cuda_api.h"

#define CHUNKS 8u
#define ENGINE_PAGES 8u /* runs of so many pages and more are the copy engine's */

static struct device *dev;
static struct devmem *mem[CHUNKS];
static char *pinned;   /* announced and registered slabs, one for each chunk */
static char *pageable; /* as many bytes, not announced */

/* For what other threads bring about; else the suite's time runs out. */
#define until(condition)               \
	do {                           \
		while (!(condition))   \
			sched_yield(); \
	} while (0)

/* Each of its threads has begun: it enters the context when it does, which is a call. */
static struct device *new_cuda(unsigned index)
{
	enum { THREADS = 4, MAKER = 1 };
	const struct cuda_config config = { .index = index, .capacity = CHUNKS * GAIA_CHUNK };
	unsigned entered = fake_cuda_calls_of("cuCtxSetCurrent");
	struct device *made = NULL;

	cr_assert_eq(cuda_create(fake_cuda_api(), &config, ENGINE_PAGES * GAIA_PAGE, &made), 0);
	until(fake_cuda_calls_of("cuCtxSetCurrent") >= entered + THREADS + MAKER);
	return made;
}

/* All chunks are taken, so that no thread of the device calls the driver on its own. */
static void take_all(struct device *of, struct devmem **chunks)
{
	for (unsigned i = 0; i < CHUNKS; i++)
		chunks[i] = must_alloc(of);
}

static void start(void)
{
	fake_cuda_start(2 * CHUNKS * GAIA_CHUNK);
	dev = new_cuda(0);
	take_all(dev, mem);
	pinned = aligned_alloc(GAIA_CHUNK, CHUNKS * (size_t)GAIA_CHUNK);
	pageable = memset(aligned_alloc(GAIA_CHUNK, CHUNKS * (size_t)GAIA_CHUNK), 0, CHUNKS * (size_t)GAIA_CHUNK);
	for (unsigned i = 0; i < CHUNKS; i++) {
		dev->ops->host_slab(dev, pinned + i * (size_t)GAIA_CHUNK, HOST_SLAB_COMES);
		cuda_host_settle(to_cuda(dev), pinned + i * (size_t)GAIA_CHUNK);
	}
}

static void end(void)
{
	for (unsigned i = 0; i < CHUNKS; i++) {
		dev->ops->host_slab(dev, pinned + i * (size_t)GAIA_CHUNK, HOST_SLAB_GOES);
		dev->ops->free(dev, mem[i]);
	}
	dev->ops->destroy(dev);
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true), 0);
	free(pinned);
	free(pageable);
}

TestSuite(costs, .init = start, .fini = end, .timeout = 100);

/* ---- what an operation costs ---- */

static const char *as_text(const struct fake_cuda_traffic *t)
{
	static char text[2][300];
	static unsigned turn;
	char *to = text[turn++ % 2];

	snprintf(to, sizeof(text[0]),
		 "%u calls, %u of them launches with %llu bytes; %u copies, %llu bytes in, %llu out, %llu within; kernels "
		 "read %llu and write %llu",
		 t->calls, t->launches, (unsigned long long)t->parameters, t->copies, (unsigned long long)t->in,
		 (unsigned long long)t->out, (unsigned long long)t->within, (unsigned long long)t->read,
		 (unsigned long long)t->written);
	return to;
}

static void costs_op(const char *what, struct device *of, struct dev_op *op, struct fake_cuda_traffic want)
{
	struct fake_cuda_traffic before = fake_cuda_traffic(), t;

	cr_assert_eq(device_run(of, op), 0);
	t = fake_cuda_traffic();
	t.calls -= before.calls;
	t.launches -= before.launches;
	t.copies -= before.copies;
	t.parameters -= before.parameters;
	t.in -= before.in;
	t.out -= before.out;
	t.within -= before.within;
	t.read -= before.read;
	t.written -= before.written;
	cr_assert_str_eq(as_text(&t), as_text(&want), "%s: %s;\nexpected %s", what, as_text(&t), as_text(&want));
}

#define N(runs) (sizeof(runs) / sizeof((runs)[0]))
#define COSTS(what, runs_, kind_, ...)                                                                              \
	costs_op(what, dev, &(struct dev_op){ .kind = kind_, .runs = runs_, .n = N(runs_) },                       \
		 (struct fake_cuda_traffic){ __VA_ARGS__ })

/* A kernel with a short list of items, which are parameters; and with a long one. */
#define SHORT PARAMETER_BYTES(LIST_SHORT)
#define LONG PARAMETER_BYTES(LIST_LONG)
#define KERNEL .calls = 3, .launches = 1, .parameters = SHORT

/* Of @n long runs that are copied together. */
static unsigned copy_calls(unsigned n)
{
	return fake_cuda_mode()->no_copy_batch ? n : 1;
}

static char *at(char *host, uint32_t page)
{
	return host + (size_t)page * GAIA_PAGE;
}

static struct dev_run run_of(unsigned chunk, uint32_t page, uint32_t n, char *host)
{
	return (struct dev_run){ mem[chunk], .page = page, .npages = n,
				 .host = at(host, chunk * GAIA_CHUNK_PAGES + page) };
}

/* Every other page of the first @n, of all chunks in turn. */
static struct dev_run *scattered(uint32_t n, char *host)
{
	struct dev_run *runs = calloc(n, sizeof(*runs));

	for (uint32_t i = 0; i < n; i++)
		runs[i] = run_of(i % CHUNKS, i / CHUNKS * 2, 1, host);
	return runs;
}

Test(costs, copies_in_and_out)
{
	struct dev_run one[] = { run_of(0, 3, 1, pinned) };
	struct dev_run few[] = { run_of(0, 3, 1, pinned), run_of(0, 9, 2, pinned), run_of(5, 0, 7, pinned) };
	struct dev_run large[] = { run_of(2, 0, GAIA_CHUNK_PAGES, pinned) };

	COSTS("a page in", one, DEV_COPY_IN, KERNEL, .read = GAIA_PAGE);
	COSTS("a page out", one, DEV_COPY_OUT, KERNEL, .written = GAIA_PAGE);
	COSTS("ten in", few, DEV_COPY_IN, KERNEL, .read = 10 * GAIA_PAGE);
	COSTS("ten out", few, DEV_COPY_OUT, KERNEL, .written = 10 * GAIA_PAGE);
	COSTS("a chunk in", large, DEV_COPY_IN, .calls = 3, .copies = 1, .in = GAIA_CHUNK);
	COSTS("a chunk out", large, DEV_COPY_OUT, .calls = 3, .copies = 1, .out = GAIA_CHUNK);
}

/*
 * As a device is that calibrates itself: an operation of a few runs, which only copies, needs no kernel, however short they are, since that would
 * wait for kernels of other programs. (One that arms does.)
 */
Test(costs, copies_of_a_few_runs_need_no_kernel)
{
	struct dev_run few[8], more[9], armed[] = { run_of(0, 3, 1, pinned) };
	struct dev_op arm = { .kind = DEV_COPY_IN, .arm = true, .runs = armed, .n = 1 };

	to_cuda(dev)->few_runs = 8;
	for (unsigned i = 0; i < 9; i++)
		more[i] = run_of(i % CHUNKS, 2 * i, 1, pinned);
	memcpy(few, more, sizeof(few));
	COSTS("eight pages in", few, DEV_COPY_IN, .calls = copy_calls(8) + 2, .copies = 8, .in = 8 * GAIA_PAGE);
	COSTS("eight pages out", few, DEV_COPY_OUT, .calls = copy_calls(8) + 2, .copies = 8, .out = 8 * GAIA_PAGE);
	COSTS("nine pages in", more, DEV_COPY_IN, KERNEL, .read = 9 * GAIA_PAGE);
	costs_op("one that is armed", dev, &arm, (struct fake_cuda_traffic){ KERNEL, .read = GAIA_PAGE });
	few[7].host = at(pageable, 1);
	COSTS("one of them staged", few, DEV_COPY_OUT, .calls = copy_calls(8) + 2, .copies = 8, .out = 8 * GAIA_PAGE);
}

/* Who names a length means it: in tests, so that kernels are tried. */
Test(costs, a_device_that_calibrates_itself_takes_few_runs_for_copies)
{
	const struct cuda_config config = { .capacity = GAIA_CHUNK };
	struct device *calibrated = NULL;

	cr_assert_eq(to_cuda(dev)->few_runs, 0);
	cr_assert_eq(cuda_create(fake_cuda_api(), &config, 0, &calibrated), 0);
	cr_assert_eq(to_cuda(calibrated)->few_runs, 8);
	calibrated->ops->destroy(calibrated);
}

Test(costs, many_long_runs)
{
	struct dev_run runs[CHUNKS];

	for (unsigned i = 0; i < CHUNKS; i++)
		runs[i] = run_of(i, 0, GAIA_CHUNK_PAGES, pinned);
	COSTS("all chunks in", runs, DEV_COPY_IN, .calls = copy_calls(CHUNKS) + 2, .copies = CHUNKS,
	      .in = CHUNKS * GAIA_CHUNK);
	COSTS("all chunks out", runs, DEV_COPY_OUT, .calls = copy_calls(CHUNKS) + 2, .copies = CHUNKS,
	      .out = CHUNKS * GAIA_CHUNK);
}

/* BATCH_COPIES of them are a call. None is waited for but the last. */
Test(costs, very_many_long_runs)
{
	enum { EACH = GAIA_CHUNK_PAGES / ENGINE_PAGES, RUNS = EACH * CHUNKS };
	struct dev_run runs[RUNS + 1];
	struct dev_op op = { .kind = DEV_COPY_OUT, .runs = runs, .n = RUNS };

	cr_assert_eq(RUNS, BATCH_COPIES);
	for (unsigned i = 0; i < RUNS; i++)
		runs[i] = run_of(i / EACH, i % EACH * ENGINE_PAGES, ENGINE_PAGES, pinned);
	costs_op("a call", dev, &op,
		 (struct fake_cuda_traffic){ .calls = copy_calls(RUNS) + 2, .copies = RUNS,
					     .out = CHUNKS * GAIA_CHUNK });
	runs[op.n++] = run_of(0, 0, ENGINE_PAGES, pageable);
	costs_op("one more", dev, &op,
		 (struct fake_cuda_traffic){ .calls = copy_calls(RUNS) + 3, .copies = RUNS + 1,
					     .out = CHUNKS * GAIA_CHUNK + ENGINE_PAGES * GAIA_PAGE });
}

/* A platform that has the call and cannot carry it out. */
/* Here a call that fails has copied what was to come last, which is copied once more. */
static void batches_are_refused(CUresult why)
{
	struct dev_run runs[] = { run_of(0, 0, 20, pinned), run_of(1, 0, 30, pinned), run_of(2, 0, 40, pinned) };

	if (fake_cuda_mode()->no_copy_batch)
		cr_skip("there is no such call in this mode");
	fake_cuda_fail("cuMemcpyBatchAsync", 1, why, false);
	COSTS("first", runs, DEV_COPY_IN, .calls = 1 + 3 + 2, .copies = 2 + 3, .in = (70 + 90) * GAIA_PAGE);
	cr_assert(fake_cuda_failed());
	COSTS("then", runs, DEV_COPY_OUT, .calls = 3 + 2, .copies = 3, .out = 90 * GAIA_PAGE);
}

Test(costs, batches_that_are_refused_are_not_tried_again) { batches_are_refused(CUDA_ERROR_NOT_SUPPORTED); }
Test(costs, batches_that_fail_are_not_tried_again) { batches_are_refused(CUDA_ERROR_INVALID_VALUE); }

Test(costs, long_and_short_runs_together)
{
	struct dev_run runs[] = {
		run_of(0, 0, 1, pinned), run_of(1, 0, 100, pinned), run_of(2, 8, 3, pinned), run_of(3, 0, 9, pinned),
	};

	COSTS("in", runs, DEV_COPY_IN, .calls = copy_calls(2) + 3, .launches = 1, .parameters = SHORT,
	      .copies = 2, .in = 109 * GAIA_PAGE, .read = 4 * GAIA_PAGE);
}

/* LIST_LONG runs are a launch. None is waited for but the last. */
Test(costs, scattered_pages)
{
	enum { PAGES = 2000 };
	struct dev_run *runs = scattered(PAGES, pinned);
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = runs, .n = PAGES };

	costs_op("in", dev, &op,
		 (struct fake_cuda_traffic){ .calls = 6, .launches = 4, .parameters = 4 * LONG,
					     .read = PAGES * GAIA_PAGE });
	free(runs);
}

/* It goes through the staging buffer, which the kernel reads. */
Test(costs, memory_that_is_not_registered)
{
	struct dev_run one[] = { run_of(0, 3, 1, pageable) };
	struct dev_run large[] = { run_of(2, 0, GAIA_CHUNK_PAGES, pageable), run_of(3, 0, 100, pageable) };

	COSTS("a page in", one, DEV_COPY_IN, KERNEL, .read = GAIA_PAGE);
	COSTS("a page out", one, DEV_COPY_OUT, KERNEL, .written = GAIA_PAGE);
	COSTS("more than a staging buffer in", large, DEV_COPY_IN, .calls = 6, .copies = 2, .in = 612 * GAIA_PAGE);
	COSTS("more than a staging buffer out", large, DEV_COPY_OUT, .calls = 6, .copies = 2,
	      .out = 612 * GAIA_PAGE);
}

Test(costs, hashes)
{
	uint64_t bits[CHUNKS * GAIA_CHUNK_PAGES / 64] = { 0 };
	struct dev_run all[CHUNKS];
	struct dev_run few[] = { run_of(0, 0, 1, NULL), run_of(3, 500, 5, NULL) };
	struct dev_op op = { .kind = DEV_FIND_CHANGED, .runs = few, .n = N(few), .changed = bits };

	for (unsigned i = 0; i < CHUNKS; i++)
		all[i] = run_of(i, 0, GAIA_CHUNK_PAGES, NULL);
	COSTS("arm few", few, DEV_ARM, KERNEL);
	COSTS("arm all", all, DEV_ARM, KERNEL);
	costs_op("compare few", dev, &op,
		 (struct fake_cuda_traffic){ KERNEL, .written = 1 });
	op.runs = all;
	op.n = CHUNKS;
	costs_op("compare all", dev, &op,
		 (struct fake_cuda_traffic){ KERNEL,
					     .written = CHUNKS * GAIA_CHUNK_PAGES / 8 });
	for (unsigned i = 0; i < N(bits); i++)
		cr_assert_eq(bits[i], 0);
}

Test(costs, comparing_scattered_pages)
{
	enum { PAGES = 1024 };
	struct dev_run *runs = scattered(PAGES, NULL);
	uint64_t bits[PAGES / 64] = { 0 };
	struct dev_op op = { .kind = DEV_FIND_CHANGED, .runs = runs, .n = PAGES, .changed = bits };

	costs_op("compare", dev, &op,
		 (struct fake_cuda_traffic){ .calls = 6, .launches = 2, .parameters = 2 * LONG,
					     .written = PAGES / 8 });
	for (unsigned i = 0; i < N(bits); i++)
		cr_assert_eq(bits[i], UINT64_MAX); /* never armed */
	free(runs);
}

/* An acquire that brings pages and arms them. */
Test(costs, copying_in_and_arming)
{
	struct dev_run few[] = { run_of(0, 3, 1, pinned), run_of(0, 9, 2, pinned) };
	struct dev_run large[] = { run_of(2, 0, GAIA_CHUNK_PAGES, pinned) };
	struct dev_run both[] = { run_of(0, 3, 1, pinned), run_of(2, 0, 100, pinned), run_of(3, 0, 100, pinned) };
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = few, .n = N(few), .arm = true };

	/* By two operations; and by one. */
	COSTS("copy few", few, DEV_COPY_IN, KERNEL, .read = 3 * GAIA_PAGE);
	COSTS("arm few", few, DEV_ARM, KERNEL);
	costs_op("few", dev, &op, (struct fake_cuda_traffic){ KERNEL, .read = 3 * GAIA_PAGE });
	COSTS("copy a chunk", large, DEV_COPY_IN, .calls = 3, .copies = 1, .in = GAIA_CHUNK);
	COSTS("arm a chunk", large, DEV_ARM, KERNEL);
	op.runs = large;
	op.n = N(large);
	costs_op("a chunk", dev, &op,
		 (struct fake_cuda_traffic){ .calls = 4, .launches = 1, .parameters = SHORT, .copies = 1,
					     .in = GAIA_CHUNK });
	op.runs = both;
	op.n = N(both);
	costs_op("long and short runs", dev, &op,
		 (struct fake_cuda_traffic){ .calls = copy_calls(2) + 3, .launches = 1, .parameters = SHORT,
					     .copies = 2, .in = 200 * GAIA_PAGE, .read = GAIA_PAGE });
}

Test(costs, merges_and_zeros)
{
	struct dev_run merge[] = { run_of(0, 0, 2, pinned), run_of(1, 7, 1, pinned) };
	struct dev_run overwrite[] = { run_of(4, 0, 3, pinned) };
	struct dev_run ends[] = { run_of(0, 0, 1, NULL), run_of(1, 7, 1, NULL) };

	for (unsigned i = 0; i < N(merge); i++) {
		merge[i].base = at(pinned, 2 * GAIA_CHUNK_PAGES);
		merge[i].limit = GAIA_PAGE;
		ends[i].limit = 100;
	}
	COSTS("merge", merge, DEV_PULL, KERNEL, .read = 6 * GAIA_PAGE);
	COSTS("overwrite in place", overwrite, DEV_PULL, KERNEL, .read = 3 * GAIA_PAGE);
	COSTS("zero ends", ends, DEV_ZERO, KERNEL);
}

Test(costs, copies_within)
{
	struct dev_run runs[] = { run_of(0, 0, GAIA_CHUNK_PAGES, NULL), run_of(1, 7, 1, NULL) };

	runs[0].other = mem[2];
	runs[1].other = mem[2];
	COSTS("within", runs, DEV_COPY_WITHIN, KERNEL);
}

Test(costs, operations_that_were_submitted_together)
{
	enum { OPS = 4 };
	struct device_wait wait[OPS];
	struct dev_op op[OPS];
	struct dev_run runs[OPS];
	struct fake_cuda_traffic before = fake_cuda_traffic(), t;

	for (unsigned i = 0; i < OPS; i++) {
		runs[i] = run_of(i, i, 2, pinned);
		op[i] = (struct dev_op){ .kind = i % 2 ? DEV_ARM : DEV_COPY_IN, .runs = &runs[i], .n = 1 };
		cr_assert_eq(device_begin(dev, &op[i], &wait[i]), 0);
	}
	for (unsigned i = 0; i < OPS; i++)
		cr_assert_eq(device_end(&wait[i]), 0);
	t = fake_cuda_traffic();
	cr_assert_eq(t.calls - before.calls, 12);
	cr_assert_eq(t.launches - before.launches, OPS);
}

/* Merges of memory that is not registered go through staging buffers, both ends of them. */
Test(costs, merges_of_memory_that_is_not_registered)
{
	struct dev_run runs[] = { run_of(0, 0, 2, pageable), run_of(1, 7, 1, pinned) };

	for (unsigned i = 0; i < N(runs); i++) {
		runs[i].base = at(pageable, 2 * GAIA_CHUNK_PAGES);
		runs[i].limit = GAIA_PAGE;
	}
	COSTS("merge", runs, DEV_PULL, KERNEL, .read = 6 * GAIA_PAGE);
}

/* The kernel arms all; what the engine copies crosses the bus once. */
Test(costs, copying_in_what_is_not_registered_and_arming)
{
	struct dev_run runs[] = { run_of(0, 3, 1, pageable), run_of(2, 0, 100, pageable) };
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = runs, .n = N(runs), .arm = true };

	costs_op("in", dev, &op,
		 (struct fake_cuda_traffic){ .calls = 4, .launches = 1, .parameters = SHORT, .copies = 1,
					     .in = 100 * GAIA_PAGE, .read = GAIA_PAGE });
}

Test(costs_of_two, copies_from_a_peer, .timeout = 100)
{
	struct devmem *to[CHUNKS], *from[CHUNKS];
	struct device *peer;
	struct dev_run runs[2];
	struct dev_op op = { .kind = DEV_COPY_PEER, .runs = runs, .n = 2 };

	fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 2, .memory = 2 * CHUNKS * GAIA_CHUNK });
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	dev = new_cuda(0);
	peer = new_cuda(1);
	take_all(dev, to);
	take_all(peer, from);
	for (unsigned i = 0; i < 2; i++)
		runs[i] = (struct dev_run){ to[i], .other = from[i], .page = 0, .npages = i ? GAIA_CHUNK_PAGES : 3 };
	op.from = peer;
	/* It is given access to each chunk, once. */
	costs_op("first", dev, &op,
		 (struct fake_cuda_traffic){ .calls = 6, .launches = 1, .parameters = SHORT, .copies = 1, .within = GAIA_CHUNK });
	costs_op("again", dev, &op,
		 (struct fake_cuda_traffic){ .calls = 4, .launches = 1, .parameters = SHORT, .copies = 1, .within = GAIA_CHUNK });
	for (unsigned i = 0; i < CHUNKS; i++) {
		dev->ops->free(dev, to[i]);
		peer->ops->free(peer, from[i]);
	}
	dev->ops->destroy(dev);
	peer->ops->destroy(peer);
}

/* ---- memory ---- */

static unsigned n_ready(void)
{
	struct cuda *cuda = to_cuda(dev);
	unsigned n;

	pthread_mutex_lock(&cuda->lock);
	n = cuda->n_ready;
	pthread_mutex_unlock(&cuda->lock);
	return n;
}

static void start_device(void)
{
	fake_cuda_start(2 * CHUNKS * GAIA_CHUNK);
	dev = new_cuda(0);
	until(n_ready() == CHUNKS);
}

static void end_device(void)
{
	dev->ops->destroy(dev);
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true), 0);
}

TestSuite(memory, .init = start_device, .fini = end_device, .timeout = 100);

/* What the keeper makes, it makes side by side: access and zeros are one call for all. The rest is for their hashes. */
Test(memory, is_made_by_two_calls_a_chunk)
{
	cr_assert_eq(fake_cuda_calls_of("cuMemCreate"), CHUNKS);
	cr_assert_eq(fake_cuda_calls_of("cuMemMap"), CHUNKS);
	cr_assert_eq(fake_cuda_calls_of("cuMemSetAccess"), 1);
	cr_assert_eq(fake_cuda_calls_of("cuMemAlloc"), 1);
	cr_assert_eq(fake_cuda_calls_of("cuMemsetD8Async"), 2);
	cr_assert_eq(fake_cuda_calls_of("cuStreamSynchronize"), 2);
}

/* Each of a caller's calls enters the context first. */
Test(memory, that_is_ready_costs_the_caller_no_command)
{
	struct devmem *chunk[CHUNKS];
	unsigned calls = fake_cuda_calls();

	take_all(dev, chunk);
	cr_assert_eq(fake_cuda_calls() - calls, CHUNKS);
	for (unsigned i = 0; i < CHUNKS; i++)
		close(dev->ops->export_fd(dev, chunk[i], true));
	/* And once there is a descriptor that is kept: memory, its export, and its handle is released. */
	cr_assert_eq(fake_cuda_calls() - calls, 3 * CHUNKS + 3);
	cr_assert_eq(fake_cuda_calls_of("cuMemExportToShareableHandle"), CHUNKS + 1);
	for (unsigned i = 0; i < CHUNKS; i++)
		dev->ops->free(dev, chunk[i]);
}

static sem_t may_end;

static void until_told(void *arg)
{
	sem_wait(&may_end);
}

/* The keeper is at work on the first when the others come. */
Test(memory, that_lies_side_by_side_is_cleared_at_once)
{
	unsigned sets = fake_cuda_calls_of("cuMemsetD8Async");
	struct devmem *chunk[CHUNKS];

	sem_init(&may_end, 0, 0);
	take_all(dev, chunk);
	cr_assert_eq(fake_cuda_api()->cuCtxSetCurrent(to_cuda(dev)->context), 0);
	cr_assert_eq(fake_cuda_launch(to_cuda(dev)->scrubber, until_told, NULL), 0);
	dev->ops->free(dev, chunk[0]);
	until(fake_cuda_calls_of("cuMemsetD8Async") == sets + 1);
	for (unsigned i = 1; i < CHUNKS; i++)
		dev->ops->free(dev, chunk[i]);
	sem_post(&may_end);
	until(n_ready() == CHUNKS);
	cr_assert_eq(fake_cuda_calls_of("cuMemsetD8Async"), sets + 2);
}

/* Slabs that wait side by side are registered by two calls; and a run over a border is one copy. */
Test(memory, of_the_host_is_registered_at_once)
{
	enum { SLABS = 4 };
	char *slabs = aligned_alloc(GAIA_CHUNK, SLABS * (size_t)GAIA_CHUNK);
	struct devmem *chunk[CHUNKS];
	struct dev_run run = { .npages = GAIA_CHUNK_PAGES, .host = slabs + GAIA_CHUNK / 2 };
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = &run, .n = 1 };
	unsigned calls;

	take_all(dev, chunk);
	run.mem = chunk[0];
	calls = fake_cuda_calls();
	for (unsigned i = 0; i < SLABS; i++)
		dev->ops->host_slab(dev, slabs + i * (size_t)GAIA_CHUNK, HOST_SLAB_COMES);
	for (unsigned i = 0; i < SLABS; i++)
		cuda_host_settle(to_cuda(dev), slabs + i * (size_t)GAIA_CHUNK);
	cr_assert_eq(fake_cuda_calls() - calls, 2);
	costs_op("over a border", dev, &op, (struct fake_cuda_traffic){ .calls = 3, .copies = 1, .in = GAIA_CHUNK });
	/* The first that goes ends all of it; the others are not registered again before they are named. */
	calls = fake_cuda_calls();
	for (unsigned i = 0; i < SLABS; i++)
		dev->ops->host_slab(dev, slabs + i * (size_t)GAIA_CHUNK, HOST_SLAB_GOES);
	cr_assert_eq(fake_cuda_calls() - calls, 2);
	for (unsigned i = 0; i < CHUNKS; i++)
		dev->ops->free(dev, chunk[i]);
	free(slabs);
}
