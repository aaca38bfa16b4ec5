/*
 * device_cuda_faults.c - the CUDA device on a driver of which each call fails once in turn. In the end
 * it works, or is switched off and says so in one line; nothing leaks, hangs, or is used wrongly.
 */
#include <pthread.h>
#include <sched.h>

#include "base/log.h"
#include "device_io.h"
#include "fake_cuda_api.h"

#define CHUNKS 2u
#define N 24u /* pages */

static const struct fake_cuda_config gpu = { .n_devices = 1, .memory = 4 * CHUNKS * GAIA_CHUNK };

/* ---- what the device logs ---- */

static int real_stderr = -1;

static void capture_log(void)
{
	int fd = memfd_create("log", MFD_CLOEXEC);

	log_lift_limits();
	real_stderr = dup(STDERR_FILENO);
	dup2(fd, STDERR_FILENO);
	close(fd);
}

/* How often @what was logged since capture_log(). */
static unsigned logged(const char *what)
{
	char text[16384];
	ssize_t n = pread(STDERR_FILENO, text, sizeof(text) - 1, 0);
	unsigned found = 0;

	text[n < 0 ? 0 : n] = '\0';
	for (const char *p = text; (p = strstr(p, what)); p++)
		found++;
	return found;
}

static void release_log(void)
{
	dup2(real_stderr, STDERR_FILENO);
	close(real_stderr);
}

/* ---- what is done ---- */

struct scene {
	struct device *dev;
	struct devmem *mem[CHUNKS];
	char *slab;	/* announced */
	char *other;	/* not */
	bool unusable;	/* an answer was that of a device that is switched off */
	const char *wrong;
};

/* Only these may fail in passing. */
static void note(struct scene *s, int err, int passing)
{
	if (err && err != passing)
		s->unusable = true;
}

static void move_pages(struct scene *s)
{
	char *found = s->other + N * GAIA_PAGE;
	struct devmem *mem = s->mem[0], *copy = s->mem[1];
	struct dev_run pull = { mem, .page = 0, .npages = 2, .host = s->other, .base = s->slab,
				.limit = GAIA_PAGE };
	uint64_t bits[1] = { 0 };
	struct dev_run all = { mem, .page = 0, .npages = N };
	struct dev_op op = { .kind = DEV_FIND_CHANGED, .runs = &all, .n = 1, .changed = bits };
	int err;

	memset(s->slab, 'a', N * GAIA_PAGE);
	memset(s->other, 'b', N * GAIA_PAGE);
	memset(found, '?', N * GAIA_PAGE);
	err = copy_in(mem, 0, N, s->slab);
	if (!err)
		err = arm(mem, 0, N);
	if (!err)
		err = copy_in(mem, 8, 2, s->other);
	if (!err)
		err = run_one(s->dev, DEV_PULL, pull);
	if (!err)
		err = copy_within(copy, mem, 0, N);
	if (!err)
		err = run_one(s->dev, DEV_ZERO, (struct dev_run){ copy, .page = 5, .npages = 1 });
	if (!err)
		err = device_run(s->dev, &op);
	note(s, err, 0);
	/* Those forgotten; the pulled ones have host's hash. */
	if (!err && bits[0] != 0x300)
		s->wrong = "other pages changed than did";
	if (!err)
		err = copy_out(copy, 0, N, found);
	note(s, err, 0);
	for (uint32_t i = 0; i < N * GAIA_PAGE && !err; i++) {
		uint32_t page = i / GAIA_PAGE;
		char right = page < 2 || page == 8 || page == 9 ? 'b' : page == 5 ? 0 : 'a';

		if (found[i] != right)
			s->wrong = "success was reported of what did not happen";
	}
}

static void be_client(struct scene *s)
{
	int fd = s->dev->ops->export_fd(s->dev, s->mem[0], true);

	note(s, fd < 0 ? fd : 0, -EMFILE);
	if (fd >= 0)
		close(fd);
}

static void play(struct scene *s)
{
	const struct cuda_config config = { .capacity = CHUNKS * GAIA_CHUNK };
	unsigned n = 0;
	int err;

	if (cuda_create(fake_cuda_api(), &config, 8 * GAIA_PAGE, &s->dev))
		return;
	s->dev->ops->host_slab(s->dev, s->slab, HOST_SLAB_COMES);
	for (int round = 0; round < 2; round++) {
		while (n < CHUNKS) {
			err = s->dev->ops->alloc(s->dev, &s->mem[n]);
			note(s, err, -ENOMEM);
			if (err)
				break;
			n++;
		}
		if (n >= 2) {
			move_pages(s);
			be_client(s);
		}
		while (n)
			s->dev->ops->free(s->dev, s->mem[--n]);
	}
	if (s->unusable) {
		struct dev_run run = { NULL, .npages = 1 };

		if (s->dev->ops->alloc(s->dev, &s->mem[0]) != -ENODEV ||
		    run_one(s->dev, DEV_ARM, run) != -ENODEV)
			s->wrong = "a device failed and is not switched off";
	}
	s->dev->ops->host_slab(s->dev, s->slab, HOST_SLAB_GOES);
	s->dev->ops->destroy(s->dev);
}

/* Whether what was armed happened. */
static bool play_with(void (*arm_fault)(unsigned nth, CUresult result), unsigned nth, CUresult result)
{
	struct scene s = { .slab = aligned_alloc(GAIA_CHUNK, GAIA_CHUNK), .other = host_pages(2 * N) };
	unsigned said;
	bool failed;

	fake_cuda_reset(&gpu);
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	capture_log();
	arm_fault(nth, result);
	play(&s);
	failed = fake_cuda_failed();
	said = logged("switched off") + logged("cannot be used");
	release_log();
	free(s.slab);
	free(s.other);
	cr_assert_null(s.wrong, "%s (call %u, error %d)", s.wrong, nth, (int)result);
	cr_assert_null(fake_cuda_violation(), "%s (call %u, error %d)", fake_cuda_violation(), nth,
		       (int)result);
	cr_assert_eq(fake_cuda_alive(true), 0, "call %u, error %d", nth, (int)result);
	cr_assert_leq(said, 1, "call %u, error %d: said %u times", nth, (int)result, said);
	cr_assert(!s.unusable || said == 1, "call %u, error %d: nothing said", nth, (int)result);
	cr_assert(failed || (!said && !s.unusable), "nothing failed, and yet");
	return failed;
}

/* ---- each in turn ---- */

static void fail_once(unsigned nth, CUresult result)
{
	fake_cuda_fail(NULL, nth, result, false);
}

static void fail_from(unsigned nth, CUresult result)
{
	fake_cuda_fail(NULL, nth, result, true);
}

static void fail_when_due(unsigned nth, CUresult result)
{
	fake_cuda_fail_later(nth, result);
}

static void each_in_turn(void (*arm_fault)(unsigned nth, CUresult result), CUresult result,
			 unsigned least)
{
	unsigned nth = 1;

	while (play_with(arm_fault, nth, result))
		nth++;
	cr_assert_gt(nth, least); /* or the fake did not make them fail */
}

TestSuite(faults, .timeout = 200);

Test(faults, any_call_may_fail_once)
{
	each_in_turn(fail_once, CUDA_ERROR_UNKNOWN, 100);
}

Test(faults, any_call_may_run_out_of_memory)
{
	each_in_turn(fail_once, CUDA_ERROR_OUT_OF_MEMORY, 100);
}

Test(faults, the_context_may_break_at_any_call)
{
	each_in_turn(fail_from, CUDA_ERROR_ILLEGAL_ADDRESS, 100);
}

Test(faults, any_copy_and_kernel_may_fail_when_it_is_due)
{
	each_in_turn(fail_when_due, CUDA_ERROR_ILLEGAL_ADDRESS, 20);
}

/* Each slab of home: the first is told of, with what helps and what does not. */
Test(faults, memory_that_cannot_be_pinned_is_told_of_once)
{
	const struct fake_cuda_config no_pins = { .n_devices = 1, .memory = 4 * CHUNKS * GAIA_CHUNK, .no_pins = true };
	const struct cuda_config config = { .capacity = CHUNKS * GAIA_CHUNK };
	char *slabs = aligned_alloc(GAIA_CHUNK, 2 * GAIA_CHUNK), *found = host_pages(N);
	struct devmem *mem;
	struct device *dev;

	fake_cuda_reset(&no_pins);
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	capture_log();
	cr_assert_eq(cuda_create(fake_cuda_api(), &config, 8 * GAIA_PAGE, &dev), 0);
	cr_assert_eq(dev->ops->alloc(dev, &mem), 0);
	memset(slabs, 's', 2 * GAIA_CHUNK);
	for (unsigned k = 0; k < 2; k++)
		dev->ops->host_slab(dev, slabs + k * GAIA_CHUNK, HOST_SLAB_COMES);
	cr_assert_eq(copy_in(mem, 0, N, slabs), 0);
	cr_assert_eq(copy_in(mem, 0, N, slabs + GAIA_CHUNK), 0);
	while (fake_cuda_calls_of("cuMemHostRegister") < 2)
		sched_yield();
	cr_assert_eq(copy_out(mem, 0, N, found), 0);
	cr_assert_arr_eq(found, slabs, N * GAIA_PAGE);
	for (unsigned k = 0; k < 2; k++)
		dev->ops->host_slab(dev, slabs + k * GAIA_CHUNK, HOST_SLAB_GOES);
	dev->ops->free(dev, mem);
	dev->ops->destroy(dev);
	cr_expect_eq(logged("host memory cannot be pinned: "), 1);
	cr_expect_eq(logged("copies are slower"), 1);
	cr_expect_eq(logged("(ulimit -l) does not count here; a smaller --home may help"), 1);
	release_log();
	free(slabs);
	free(found);
}

/* Two GPUs, of which one copies from the other: whether what was armed happened. */
static bool play_peers(void (*arm_fault)(unsigned nth, CUresult result), unsigned nth, CUresult result)
{
	char *host = host_pages(N), *found = host_pages(N);
	struct devmem *mem[2] = { NULL, NULL };
	struct device *dev[2] = { NULL, NULL };
	bool failed;
	int err = 0;

	fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 2, .memory = 4 * CHUNKS * GAIA_CHUNK });
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	arm_fault(nth, result);
	for (unsigned i = 0; i < 2 && !err; i++) {
		const struct cuda_config config = { .index = i, .capacity = CHUNKS * GAIA_CHUNK };

		err = cuda_create(fake_cuda_api(), &config, 8 * GAIA_PAGE, &dev[i]);
		if (!err)
			err = dev[i]->ops->alloc(dev[i], &mem[i]);
	}
	if (!err && device_reaches(dev[0], dev[1])) {
		/* A long run and a short one. */
		struct dev_run runs[2] = { { mem[0], .other = mem[1], .npages = N - 2 },
					   { mem[0], .other = mem[1], .page = N - 1, .npages = 1 } };
		struct dev_op op = { .kind = DEV_COPY_PEER, .runs = runs, .n = 2, .from = dev[1] };

		memset(host, 'p', N * GAIA_PAGE);
		memset(host + (N - 2) * GAIA_PAGE, 'o', GAIA_PAGE);
		err = copy_in(mem[0], N - 2, 1, host + (N - 2) * GAIA_PAGE);
		if (!err)
			err = copy_in(mem[1], 0, N, host);
		if (!err)
			err = device_run(dev[0], &op);
		if (!err)
			err = copy_out(mem[0], 0, N, found);
		cr_assert(err || !memcmp(host, found, N * GAIA_PAGE), "call %u, error %d", nth, (int)result);
	}
	for (unsigned i = 0; i < 2; i++) {
		if (mem[i])
			dev[i]->ops->free(dev[i], mem[i]);
		if (dev[i])
			dev[i]->ops->destroy(dev[i]);
	}
	failed = fake_cuda_failed();
	cr_assert_null(fake_cuda_violation(), "%s (call %u, error %d)", fake_cuda_violation(), nth,
		       (int)result);
	cr_assert_eq(fake_cuda_alive(true), 0, "call %u, error %d", nth, (int)result);
	free(host);
	free(found);
	return failed;
}

Test(faults, any_call_may_fail_while_one_copies_from_the_other)
{
	static const struct {
		void (*arm_fault)(unsigned nth, CUresult result);
		CUresult result;
		unsigned least;
	} ways[] = { { fail_once, CUDA_ERROR_UNKNOWN, 100 },
		     { fail_once, CUDA_ERROR_OUT_OF_MEMORY, 100 },
		     { fail_from, CUDA_ERROR_ILLEGAL_ADDRESS, 100 },
		     { fail_when_due, CUDA_ERROR_ILLEGAL_ADDRESS, 5 } };

	for (unsigned i = 0; i < ARRAY_LEN(ways); i++) {
		unsigned nth = 1;

		while (play_peers(ways[i].arm_fault, nth, ways[i].result))
			nth++;
		cr_assert_gt(nth, ways[i].least, "way %u: %u", i, nth);
	}
}

/* With calibration, which the others leave out: thousands of calls, so that not each has its turn. */
Test(faults, calls_of_creation_may_fail)
{
	const struct cuda_config config = { .capacity = CHUNKS * GAIA_CHUNK };
	bool failed = true;

	for (unsigned nth = 1; failed; nth += 1 + nth / 3) {
		struct device *dev = NULL;
		char *host = host_pages(2);
		struct devmem *mem;
		int err;

		fake_cuda_reset(&gpu);
		cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
		fake_cuda_fail(NULL, nth, CUDA_ERROR_UNKNOWN, false);
		err = cuda_create(fake_cuda_api(), &config, 0, &dev);
		failed = fake_cuda_failed();
		cr_assert_eq(err != 0, dev == NULL);
		cr_assert(!err || failed);
		if (!failed) {
			mem = must_alloc(dev);
			memset(host, 'h', GAIA_PAGE);
			cr_assert_eq(copy_in(mem, 7, 1, host), 0);
			cr_assert_eq(copy_out(mem, 7, 1, host + GAIA_PAGE), 0);
			cr_assert_arr_eq(host, host + GAIA_PAGE, GAIA_PAGE);
			dev->ops->free(dev, mem);
		}
		if (dev)
			dev->ops->destroy(dev);
		free(host);
		cr_assert_null(fake_cuda_violation(), "%s (call %u)", fake_cuda_violation(), nth);
		cr_assert_eq(fake_cuda_alive(true), 0, "call %u", nth);
	}
}

/* Running out of memory is never a reason to switch off where memory is asked for. */
Test(faults, creating_memory_may_fail_for_want_of_memory_at_any_time)
{
	static const char *const calls[] = { "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAlloc" };

	for (unsigned c = 0; c < ARRAY_LEN(calls); c++) {
		for (unsigned nth = 1;; nth++) {
			const struct cuda_config config = { .capacity = CHUNKS * GAIA_CHUNK };
			struct device *dev = NULL;
			struct devmem *mem = NULL;
			bool failed;

			fake_cuda_reset(&gpu);
			cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
			cr_assert_eq(cuda_create(fake_cuda_api(), &config, 1, &dev), 0);
			fake_cuda_fail(calls[c], nth, CUDA_ERROR_OUT_OF_MEMORY, false);
			for (unsigned i = 0; i < 2 * CHUNKS; i++) {
				int err = dev->ops->alloc(dev, &mem);

				cr_assert(err == 0 || err == -ENOMEM, "%s: %d", calls[c], err);
				if (!err)
					client_unmap(client_map(mem)); /* so that it is made anew */
				if (!err)
					dev->ops->free(dev, mem);
			}
			failed = fake_cuda_failed();
			mem = must_alloc(dev);
			dev->ops->free(dev, mem);
			dev->ops->destroy(dev);
			cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
			cr_assert_eq(fake_cuda_alive(true), 0);
			if (!failed)
				break;
		}
	}
}

/* In two batches at least, since that memory is not registered. */
Test(faults, an_operation_fails_if_the_first_part_of_it_did)
{
	const struct cuda_config config = { .capacity = CHUNKS * GAIA_CHUNK };
	struct dev_run runs[CHUNKS];
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = runs, .n = CHUNKS };
	char *host = host_pages(GAIA_CHUNK_PAGES);
	struct device *dev = NULL;

	fake_cuda_reset(&gpu);
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	cr_assert_eq(cuda_create(fake_cuda_api(), &config, 1, &dev), 0);
	for (unsigned i = 0; i < CHUNKS; i++)
		runs[i] = (struct dev_run){ must_alloc(dev), .npages = GAIA_CHUNK_PAGES, .host = host };
	fake_cuda_fail("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN, false);
	cr_assert_eq(device_run(dev, &op), -EIO);
	cr_assert(fake_cuda_failed());
	for (unsigned i = 0; i < CHUNKS; i++)
		dev->ops->free(dev, runs[i].mem);
	dev->ops->destroy(dev);
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true), 0);
	free(host);
}

/* ---- what is under way when the device breaks ---- */

struct waiting {
	struct dev_op op;
	struct dev_run run;
	int err;
	unsigned place; /* in the order in which they ended */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static unsigned n_ended;

static void note_end(struct dev_op *op, int err)
{
	struct waiting *w = op->arg;

	pthread_mutex_lock(&lock);
	w->err = err;
	w->place = n_ended++;
	pthread_cond_signal(&ended);
	pthread_mutex_unlock(&lock);
}

Test(faults, what_is_under_way_when_it_breaks_ends_in_order)
{
	enum { OPS = 60 };
	static struct waiting w[OPS];
	const struct cuda_config config = { .capacity = CHUNKS * GAIA_CHUNK };
	char *host = host_pages(OPS);
	struct device *dev = NULL;
	struct devmem *mem;
	unsigned submitted = 0, good = 0;

	fake_cuda_reset(&gpu);
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	cr_assert_eq(cuda_create(fake_cuda_api(), &config, 1, &dev), 0);
	mem = must_alloc(dev);
	fake_cuda_fail_later(OPS / 2, CUDA_ERROR_ILLEGAL_ADDRESS);
	for (; submitted < OPS; submitted++) {
		struct waiting *m = &w[submitted];

		m->run = (struct dev_run){ mem, .page = submitted, .npages = 1,
					   .host = host + submitted * GAIA_PAGE };
		m->op = (struct dev_op){ .kind = DEV_COPY_OUT, .runs = &m->run, .n = 1, .done = note_end,
					 .arg = m };
		if (device_submit(dev, &m->op)) {
			cr_assert_gt(submitted, 0);
			break;
		}
	}
	pthread_mutex_lock(&lock);
	while (n_ended < submitted)
		pthread_cond_wait(&ended, &lock);
	pthread_mutex_unlock(&lock);
	while (good < submitted && !w[good].err)
		good++;
	for (unsigned i = 0; i < submitted; i++) {
		cr_assert_eq(w[i].place, i);
		cr_assert_eq(w[i].err, i < good ? 0 : -EIO);
	}
	cr_assert_lt(good, submitted);
	cr_assert(fake_cuda_failed());
	dev->ops->free(dev, mem);
	dev->ops->destroy(dev);
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true), 0);
	free(host);
}
