/*
 * device_cuda_context.c - the CUDA device where calls of CUDA wait for streams, as its documentation lets them; when
 * its context breaks; and on which GPUs it is created. On a fake driver, in modes that do these things.
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "device/cuda/internal.h"
#include "device_io.h"
#include "fake_cuda_api.h"
#include "gpu_ends.h"
#include "held.h"

#define CHUNKS 8u

/* For what other threads bring about; else the suite's time runs out. */
#define until(condition)               \
	do {                           \
		while (!(condition))   \
			sched_yield(); \
	} while (0)

static struct device *dev;

static void begin(const struct fake_cuda_config *config)
{
	const struct cuda_config of_dev = { .capacity = CHUNKS * GAIA_CHUNK };
	struct fake_cuda_config with = *config;

	with.n_devices = with.n_devices ? with.n_devices : 1;
	with.memory = 4 * CHUNKS * GAIA_CHUNK;
	fake_cuda_reset(&with);
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	cr_assert_eq(cuda_create(fake_cuda_api(), &of_dev, 4 * GAIA_PAGE, &dev), 0);
}

static void end(void)
{
	dev->ops->destroy(dev);
	nothing_is_left();
}

static char *new_slab(struct device *to)
{
	char *slab = aligned_alloc(GAIA_CHUNK, GAIA_CHUNK);

	memset(slab, 's', GAIA_CHUNK);
	to->ops->host_slab(to, slab, HOST_SLAB_COMES);
	return slab;
}

static void end_slab(struct device *to, char *slab)
{
	to->ops->host_slab(to, slab, HOST_SLAB_GOES);
	free(slab);
}

/* By the keeper, which has been asked to; or it was refused (mode no_pins), and what uses the slab works all the same. */
static void until_registered(const char *slab)
{
	if (fake_cuda_mode()->no_pins) {
		until(fake_cuda_calls_of("cuMemHostRegister"));
		cr_assert_not(fake_cuda_usable(slab, GAIA_CHUNK));
	} else {
		until(fake_cuda_usable(slab, GAIA_CHUNK));
	}
}

/* ---- calls that wait ---- */

TestSuite(waits, .timeout = 60);

/* Another stream of the process, with a kernel that ends when it may. */
static struct {
	CUcontext context;
	CUstream stream;
	sem_t begun, may_end;
} busy;

static void run_until_told(void *arg)
{
	sem_post(&busy.begun);
	sem_wait(&busy.may_end);
}

static void begin_busy(void)
{
	const struct cuda_api *api = fake_cuda_api();

	sem_init(&busy.begun, 0, 0);
	sem_init(&busy.may_end, 0, 0);
	cr_assert_eq(api->cuDevicePrimaryCtxRetain(&busy.context, 0), 0);
	cr_assert_eq(api->cuCtxSetCurrent(busy.context), 0);
	cr_assert_eq(api->cuStreamCreate(&busy.stream, CU_STREAM_NON_BLOCKING), 0);
	cr_assert_eq(fake_cuda_launch(busy.stream, run_until_told, NULL), 0);
	sem_wait(&busy.begun);
}

static void end_busy(void)
{
	sem_post(&busy.may_end);
}

static void forget_busy(void)
{
	const struct cuda_api *api = fake_cuda_api();

	cr_assert_eq(api->cuStreamDestroy(busy.stream), 0);
	cr_assert_eq(api->cuDevicePrimaryCtxRelease(0), 0);
}

/* All chunks are made and cleared: until one is freed the keeper calls nothing, which may wait, too. */
static void keeper_of_is_done(struct device *of)
{
	struct cuda *cuda = to_cuda(of);
	bool done;

	do {
		sched_yield();
		pthread_mutex_lock(&cuda->lock);
		done = cuda->n_ready + cuda->n_live == cuda->n_chunks;
		pthread_mutex_unlock(&cuda->lock);
	} while (!done);
}

static void keeper_is_done(void)
{
	keeper_of_is_done(dev);
}

/* Copies there and back. */
static void works(struct devmem *mem, char *host)
{
	char *found = host_pages(2);

	cr_assert_eq(copy_in(mem, 3, 2, host), 0);
	cr_assert_eq(copy_out(mem, 3, 2, found), 0);
	cr_assert_arr_eq(found, host, 2 * GAIA_PAGE);
	free(found);
}

Test(waits, no_operation_waits_for_a_registration)
{
	struct devmem *mem;
	char *slab, *next;

	begin(&(struct fake_cuda_config){ .register_waits = true });
	mem = must_alloc(dev);
	keeper_is_done();
	begin_busy();
	slab = new_slab(dev);
	next = new_slab(dev);
	works(mem, slab);
	until(fake_cuda_waiting() == 1);
	works(mem, slab);
	works(mem, next);
	cr_assert_not(fake_cuda_usable(slab, GAIA_CHUNK));
	end_busy();
	until_registered(slab);
	until_registered(next);
	works(mem, slab);
	must_free(mem);
	end_slab(dev, slab);
	end_slab(dev, next);
	forget_busy();
	end();
}

/* Only when some device is used: and then also what no operation has named. */
Test(waits, slabs_are_registered_ahead)
{
	struct devmem *mem;
	char *slab, *other;

	begin(&(struct fake_cuda_config){ 0 });
	mem = must_alloc(dev);
	slab = new_slab(dev);
	other = new_slab(dev);
	cr_assert_eq(find_changed(mem, 0, 1), 1);
	cr_assert_eq(fake_cuda_calls_of("cuMemHostRegister"), 0);
	works(mem, slab);
	until_registered(other);
	must_free(mem);
	end_slab(dev, slab);
	end_slab(dev, other);
	end();
}

Test(waits, who_frees_does_not_wait_for_an_unmapping)
{
	struct devmem *mem, *other;
	char *host = host_pages(2);

	begin(&(struct fake_cuda_config){ .unmap_waits = true });
	mem = must_alloc(dev);
	other = must_alloc(dev);
	close(dev->ops->export_fd(dev, mem, true));
	keeper_is_done();
	begin_busy();
	must_free(mem); /* it was exported, and is not used again */
	until(fake_cuda_waiting() == 1);
	works(other, host);
	must_free(must_alloc(dev));
	end_busy();
	until(fake_cuda_waiting() == 0);
	must_free(other);
	forget_busy();
	end();
	free(host);
}

/* ---- slabs that are registered together ---- */

#define SLABS 4u

TestSuite(arenas, .timeout = 60);

/* Side by side. */
static char *new_slabs(unsigned n)
{
	char *slabs = aligned_alloc(GAIA_CHUNK, n * (size_t)GAIA_CHUNK);

	memset(slabs, 's', n * (size_t)GAIA_CHUNK);
	for (unsigned i = 0; i < n; i++)
		dev->ops->host_slab(dev, slabs + i * (size_t)GAIA_CHUNK, HOST_SLAB_COMES);
	return slabs;
}

static void end_slabs(char *slabs, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		dev->ops->host_slab(dev, slabs + i * (size_t)GAIA_CHUNK, HOST_SLAB_GOES);
	free(slabs);
}

static unsigned registered(const char *slabs, unsigned n)
{
	unsigned count = 0;

	for (unsigned i = 0; i < n; i++)
		count += fake_cuda_usable(slabs + i * (size_t)GAIA_CHUNK, GAIA_CHUNK);
	return count;
}

Test(arenas, slabs_that_wait_side_by_side_are_registered_by_one_call)
{
	struct devmem *mem;
	char *slabs;

	begin(&(struct fake_cuda_config){ 0 });
	mem = must_alloc(dev);
	slabs = new_slabs(40);
	/* The middle of them is named first, and 32 are the most. */
	works(mem, slabs + 20 * (size_t)GAIA_CHUNK);
	if (!fake_cuda_mode()->no_pins && !fake_cuda_mode()->pins) {
		until(registered(slabs, 40) == 40);
		cr_assert_eq(fake_cuda_calls_of("cuMemHostRegister"), 2);
		works(mem, slabs + 21 * (size_t)GAIA_CHUNK - GAIA_PAGE); /* over a border */
	}
	must_free(mem);
	end_slabs(slabs, 40);
	end();
}

/* As views are, which go one by one. */
Test(arenas, what_comes_alone_goes_alone)
{
	struct devmem *mem;
	char *slabs;

	begin(&(struct fake_cuda_config){ 0 });
	mem = must_alloc(dev);
	slabs = aligned_alloc(GAIA_CHUNK, 4 * (size_t)GAIA_CHUNK);
	memset(slabs, 's', 4 * (size_t)GAIA_CHUNK);
	for (unsigned i = 0; i < 4; i++)
		dev->ops->host_slab(dev, slabs + i * (size_t)GAIA_CHUNK, i ? HOST_SLAB_COMES_ALONE : HOST_SLAB_COMES);
	works(mem, slabs + 2 * (size_t)GAIA_CHUNK);
	if (!fake_cuda_mode()->no_pins && !fake_cuda_mode()->pins) {
		until(registered(slabs, 4) == 4);
		cr_assert_eq(fake_cuda_calls_of("cuMemHostRegister"), 4);
		dev->ops->host_slab(dev, slabs + GAIA_CHUNK, HOST_SLAB_GOES);
		cr_assert_eq(fake_cuda_calls_of("cuMemHostUnregister"), 1);
		cr_assert_eq(registered(slabs, 4), 3, "those beside it stay");
		dev->ops->host_slab(dev, slabs + GAIA_CHUNK, HOST_SLAB_COMES_ALONE);
	}
	must_free(mem);
	end_slabs(slabs, 4);
	end();
}

Test(arenas, that_are_refused_are_tried_slab_by_slab)
{
	struct devmem *mem;
	char *slabs;

	begin(&(struct fake_cuda_config){ .pins = 3 * GAIA_CHUNK });
	mem = must_alloc(dev);
	slabs = new_slabs(SLABS);
	works(mem, slabs);
	until(fake_cuda_calls_of("cuMemHostRegister") == 1 + SLABS);
	for (unsigned i = 0; i < SLABS; i++)
		works(mem, slabs + i * (size_t)GAIA_CHUNK);
	if (!fake_cuda_mode()->no_pins)
		cr_assert_eq(registered(slabs, SLABS), 3);
	must_free(mem);
	end_slabs(slabs, SLABS);
	end();
}

static struct {
	char *slab;
	_Atomic int tid;
} goes;

static void *withdraw(void *arg)
{
	goes.tid = (int)syscall(SYS_gettid);
	dev->ops->host_slab(dev, goes.slab, HOST_SLAB_GOES);
	return NULL;
}

/* It waits for what uses the others, which are staged meanwhile, and registered again when they are named. */
Test(arenas, no_slab_goes_under_an_operation_that_uses_another)
{
	char *slabs, *second;
	struct dev_run run = { .npages = 1 };
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = &run, .n = 1 };
	struct device_wait wait;
	struct devmem *mem;
	pthread_t thread;

	if (fake_cuda_mode()->no_pins || fake_cuda_mode()->pins)
		cr_skip("nothing is registered together in this mode");
	sem_init(&busy.begun, 0, 0);
	sem_init(&busy.may_end, 0, 0);
	begin(&(struct fake_cuda_config){ 0 });
	mem = must_alloc(dev);
	keeper_is_done();
	slabs = new_slabs(SLABS);
	second = slabs + GAIA_CHUNK;
	works(mem, slabs);
	until(registered(slabs, SLABS) == SLABS);
	cr_assert_eq(fake_cuda_launch(to_cuda(dev)->stream, run_until_told, NULL), 0);
	sem_wait(&busy.begun);
	run.mem = mem;
	run.host = second;
	cr_assert_eq(device_begin(dev, &op, &wait), 0);
	until(fake_cuda_calls_of("launch") == 4); /* two of works(), the kernel, and this operation */
	goes.slab = slabs;
	cr_assert_eq(pthread_create(&thread, NULL, withdraw, NULL), 0);
	until(goes.tid && thread_sleeps(goes.tid));
	cr_assert_eq(fake_cuda_calls_of("cuMemHostUnregister"), 0);
	sem_post(&busy.may_end);
	cr_assert_eq(device_end(&wait), 0);
	pthread_join(thread, NULL);
	cr_assert_eq(fake_cuda_calls_of("cuMemHostUnregister"), 1);
	cr_assert_eq(registered(slabs, SLABS), 0);
	works(mem, second);
	until(fake_cuda_usable(second, GAIA_CHUNK));
	works(mem, second);
	cr_assert_not(fake_cuda_usable(slabs, GAIA_CHUNK));
	must_free(mem);
	for (unsigned i = 1; i < SLABS; i++)
		dev->ops->host_slab(dev, slabs + i * (size_t)GAIA_CHUNK, HOST_SLAB_GOES);
	end();
	free(slabs);
}

/* Slabs go in any order, come again at the same place, and are used all the time. */
static _Atomic bool stop_using;

static void *use_slabs(void *arg)
{
	struct devmem *mem = must_alloc(dev);
	uint64_t seed = 5;

	while (!stop_using)
		works(mem, (char *)arg + random_below(&seed, 2) * (size_t)GAIA_CHUNK);
	must_free(mem);
	return NULL;
}

Test(arenas, come_and_go_beside_operations)
{
	enum { USED = 2 };
	uint64_t seed = 7;
	pthread_t thread;
	bool there[8];
	char *slabs;

	begin(&(struct fake_cuda_config){ 0 });
	slabs = new_slabs(8);
	memset(there, true, sizeof(there));
	cr_assert_eq(pthread_create(&thread, NULL, use_slabs, slabs), 0);
	for (unsigned i = 0; i < 300; i++) {
		unsigned k = USED + random_below(&seed, 8 - USED);

		there[k] = !there[k];
		dev->ops->host_slab(dev, slabs + k * (size_t)GAIA_CHUNK, there[k] ? HOST_SLAB_COMES : HOST_SLAB_GOES);
	}
	stop_using = true;
	pthread_join(thread, NULL);
	for (unsigned k = 0; k < 8; k++)
		if (there[k])
			dev->ops->host_slab(dev, slabs + k * (size_t)GAIA_CHUNK, HOST_SLAB_GOES);
	end();
	free(slabs);
}

/* ---- calls that need not be ---- */

TestSuite(calls, .timeout = 60);

Test(calls, the_copy_engine_is_given_no_more_than_the_copy)
{
	struct devmem *mem;
	char *slab;
	unsigned sets;

	begin(&(struct fake_cuda_config){ 0 });
	mem = must_alloc(dev);
	slab = new_slab(dev);
	works(mem, slab);
	until_registered(slab);
	keeper_is_done();
	cr_assert_eq(arm(mem, 0, 64), 0);
	sets = fake_cuda_calls_of("cuMemsetD8Async");
	cr_assert_eq(copy_in(mem, 0, 64, slab), 0);
	cr_assert_eq(fake_cuda_calls_of("cuMemsetD8Async"), sets);
	cr_assert_eq(find_changed(mem, 0, 64), 64, "they are not armed all the same");
	cr_assert_eq(find_changed(mem, 0, 64), 0);
	must_free(mem);
	end_slab(dev, slab);
	end();
}

Test(calls, chunks_side_by_side_are_unmapped_by_one)
{
	begin(&(struct fake_cuda_config){ 0 });
	keeper_is_done();
	dev->ops->destroy(dev);
	cr_assert_eq(fake_cuda_calls_of("cuMemUnmap"), fake_cuda_mode()->single_unmaps ? 1 + CHUNKS : 1);
	nothing_is_left();
}

Test(calls, chunks_side_by_side_are_unmapped_one_by_one_where_only_that_is_allowed)
{
	struct devmem *mem;
	char *host = host_pages(2);

	begin(&(struct fake_cuda_config){ .single_unmaps = true });
	keeper_is_done();
	mem = must_alloc(dev);
	works(mem, host);
	must_free(mem);
	end();
	free(host);
}

Test(calls, chunks_side_by_side_are_unmapped_one_by_one_whatever_a_driver_calls_that)
{
	static const CUresult refusals[] = { CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
					     CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_OUT_OF_MEMORY,
					     CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_UNKNOWN };

	for (unsigned i = 0; i < ARRAY_LEN(refusals); i++) {
		begin(&(struct fake_cuda_config){ 0 });
		keeper_is_done();
		fake_cuda_fail("cuMemUnmap", 1, refusals[i], false);
		dev->ops->destroy(dev);
		cr_assert(fake_cuda_failed());
		cr_assert_eq(fake_cuda_calls_of("cuMemUnmap"), 1 + CHUNKS, "error %d", (int)refusals[i]);
		cr_assert_eq(fake_cuda_calls_of("cuDevicePrimaryCtxReset"), 0, "it was not switched off");
		nothing_is_left();
	}
}

/* ---- a context that breaks ---- */

TestSuite(broken, .timeout = 60);

static void break_context(struct devmem *mem)
{
	char *host = host_pages(1);

	fake_cuda_fail_later(1, CUDA_ERROR_ILLEGAL_ADDRESS);
	cr_assert_neq(copy_in(mem, 0, 1, host), 0);
	cr_assert(fake_cuda_failed());
	cr_assert_eq(copy_in(mem, 0, 1, host), -ENODEV);
	free(host);
}

static void gives_back(const struct fake_cuda_config *config)
{
	struct devmem *mem, *exported;
	char *slab;

	begin(config);
	mem = must_alloc(dev);
	exported = must_alloc(dev);
	close(dev->ops->export_fd(dev, exported, true));
	slab = new_slab(dev);
	works(mem, slab);
	until_registered(slab);
	keeper_is_done();
	break_context(mem);
	must_free(mem);
	must_free(exported);
	/*
	 * The device still exists, and others may have all of the memory, except what importers keep. (The fake takes the chunk whose descriptor
	 * was kept for one that has been imported, too.)
	 */
	until(fake_cuda_used() == (fake_cuda_mode()->busy_importers ? 2 * GAIA_CHUNK : 0));
	cr_assert_eq(dev->ops->alloc(dev, &mem), -ENODEV);
	end_slab(dev, slab);
	end();
}

Test(broken, gives_its_memory_back_at_once)
{
	gives_back(&(struct fake_cuda_config){ 0 });
	gives_back(&(struct fake_cuda_config){ .broken_frees = true });
}

Test(broken, gives_back_what_is_freed_later)
{
	struct devmem *mem;

	begin(&(struct fake_cuda_config){ .broken_frees = true });
	mem = must_alloc(dev);
	keeper_is_done();
	break_context(mem);
	until(fake_cuda_calls_of("cuDevicePrimaryCtxReset") == 1);
	must_free(mem);
	until(fake_cuda_used() == 0);
	end();
}

/* Two devices in the memory of one GPU have one context. */
Test(broken, of_two_devices_of_a_gpu_is_not_reset_under_the_other)
{
	const struct cuda_config second = { .capacity = CHUNKS * GAIA_CHUNK };
	struct devmem *mem, *theirs;
	struct device *other;

	begin(&(struct fake_cuda_config){ 0 });
	cr_assert_eq(cuda_create(fake_cuda_api(), &second, 4 * GAIA_PAGE, &other), 0);
	mem = must_alloc(dev);
	theirs = must_alloc(other);
	keeper_is_done();
	keeper_of_is_done(other);
	break_context(mem);
	must_free(mem);
	dev->ops->destroy(dev);
	cr_assert_eq(fake_cuda_calls_of("cuDevicePrimaryCtxReset"), 0);
	must_free(theirs);
	other->ops->destroy(other);
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
}

Test(broken, while_it_is_created_leaves_nothing)
{
	const struct cuda_config config = { .capacity = CHUNKS * GAIA_CHUNK };
	unsigned nth = 0;
	int err;

	do {
		fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 1, .memory = 4 * CHUNKS * GAIA_CHUNK,
							    .broken_frees = true });
		cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
		fake_cuda_fail("cuMemHostAlloc", ++nth, CUDA_ERROR_ILLEGAL_ADDRESS, true);
		err = cuda_create(fake_cuda_api(), &config, 4 * GAIA_PAGE, &dev);
		fake_cuda_failed();
		if (!err)
			dev->ops->destroy(dev);
		nothing_is_left();
	} while (err);
	cr_assert_gt(nth, 10);
}

/* ---- a context that breaks, and threads that call at that moment ---- */

/* A caller's thread, which sleeps on a lock that the test has. */
static struct {
	struct devmem *mem;
	_Atomic int tid;
	int err;
} caller;

static void *submit_one(void *arg)
{
	char *host = host_pages(1);

	caller.tid = (int)syscall(SYS_gettid);
	caller.err = copy_in(caller.mem, 0, 1, host);
	free(host);
	return NULL;
}

static void *break_it(void *arg)
{
	(void)cuda_check(to_cuda(dev), CUDA_ERROR_ILLEGAL_ADDRESS, "a call");
	return NULL;
}

Test(broken, takes_no_operation_after_it_was_switched_off)
{
	pthread_t thread, breaker;

	begin(&(struct fake_cuda_config){ .broken_frees = true });
	caller.mem = must_alloc(dev);
	keeper_is_done();
	pthread_mutex_lock(&to_cuda(dev)->lock);
	cr_assert_eq(pthread_create(&thread, NULL, submit_one, NULL), 0);
	until(caller.tid && thread_sleeps(caller.tid));
	/* It has seen that the device is on, and waits for the lock. */
	cr_assert_eq(pthread_create(&breaker, NULL, break_it, NULL), 0);
	until(atomic_load(&to_cuda(dev)->off));
	pthread_mutex_unlock(&to_cuda(dev)->lock);
	pthread_join(thread, NULL);
	pthread_join(breaker, NULL);
	cr_assert_eq(caller.err, -ENODEV);
	must_free(caller.mem);
	end();
}

static sem_t exporting;

/* The driver is in the middle of it, until the context is reset under it, or that has had its time. */
static CUresult export_slowly(void *handle, CUmemGenericAllocationHandle of, CUmemAllocationHandleType type,
			      unsigned long long flags)
{
	sem_post(&exporting);
	until(atomic_load(&to_cuda(dev)->off));
	for (unsigned i = 0; i < 200 && !fake_cuda_calls_of("cuDevicePrimaryCtxReset"); i++)
		usleep(1000);
	cr_assert_eq(fake_cuda_calls_of("cuDevicePrimaryCtxReset"), 0);
	return fake_cuda_api()->cuMemExportToShareableHandle(handle, of, type, flags);
}

static void *export_one(void *arg)
{
	caller.err = dev->ops->export_fd(dev, caller.mem, true);
	return NULL;
}

Test(broken, is_not_reset_under_a_caller_that_is_in_the_driver)
{
	const struct cuda_config config = { .capacity = CHUNKS * GAIA_CHUNK };
	struct cuda_api slow;
	struct devmem *mem;
	pthread_t thread;

	fake_cuda_start(4 * CHUNKS * GAIA_CHUNK);
	slow = *fake_cuda_api();
	slow.cuMemExportToShareableHandle = export_slowly;
	sem_init(&exporting, 0, 0);
	cr_assert_eq(cuda_create(&slow, &config, 4 * GAIA_PAGE, &dev), 0);
	caller.mem = must_alloc(dev);
	mem = must_alloc(dev);
	keeper_is_done();
	cr_assert_eq(pthread_create(&thread, NULL, export_one, NULL), 0);
	sem_wait(&exporting);
	break_context(mem);
	pthread_join(thread, NULL);
	cr_assert_lt(caller.err, 0, "the context is broken");
	until(fake_cuda_calls_of("cuDevicePrimaryCtxReset") == 1);
	must_free(mem);
	must_free(caller.mem);
	end();
}

/* What was registered through the one that broke was used by the other. */
Test(broken, one_of_two_takes_nothing_of_the_others_along)
{
	const struct cuda_config second = { .index = 1, .capacity = CHUNKS * GAIA_CHUNK };
	struct devmem *mem[2];
	struct device *other;
	char *slab;

	begin(&(struct fake_cuda_config){ .n_devices = 2 });
	mem[0] = must_alloc(dev);
	slab = new_slab(dev);
	works(mem[0], slab);
	until_registered(slab);
	/* The other comes later: so it is the first one's registration. */
	cr_assert_eq(cuda_create(fake_cuda_api(), &second, 4 * GAIA_PAGE, &other), 0);
	mem[1] = must_alloc(other);
	other->ops->host_slab(other, slab, HOST_SLAB_COMES);
	works(mem[1], slab);
	/* (In the fake all contexts break together; the reset mends it.) */
	fake_cuda_fail("launch", 1, CUDA_ERROR_ILLEGAL_ADDRESS, false);
	cr_assert_eq(copy_in(mem[0], 0, 1, slab), -EIO);
	cr_assert(fake_cuda_failed());
	while (fake_cuda_calls_of("cuDevicePrimaryCtxReset") == 0)
		works(mem[1], slab);
	works(mem[1], slab);
	until_registered(slab);
	works(mem[1], slab);
	must_free(mem[0]);
	must_free(mem[1]);
	dev->ops->host_slab(dev, slab, HOST_SLAB_GOES);
	end_slab(other, slab);
	other->ops->destroy(other);
	end();
}

struct reading {
	sem_t ended;
	int err;
};

static void note_end(struct dev_op *op, int err)
{
	struct reading *reading = op->arg;

	reading->err = err;
	sem_post(&reading->ended);
}

/* What the other one is reading from it, and reads to the end, may be anything. */
Test(broken, lets_nobody_have_what_was_being_read_from_it)
{
	const struct cuda_config second = { .index = 1, .capacity = CHUNKS * GAIA_CHUNK };
	char *host = host_pages(8);
	struct reading reading;
	struct device *other;
	struct dev_run run = { .npages = 8 };
	struct dev_op op = { .kind = DEV_COPY_PEER, .runs = &run, .n = 1, .done = note_end, .arg = &reading };

	sem_init(&reading.ended, 0, 0);
	sem_init(&busy.begun, 0, 0);
	sem_init(&busy.may_end, 0, 0);
	begin(&(struct fake_cuda_config){ .n_devices = 2 });
	cr_assert_eq(cuda_create(fake_cuda_api(), &second, 4 * GAIA_PAGE, &other), 0);
	run.mem = must_alloc(other);
	run.other = must_alloc(dev);
	op.from = dev;
	cr_assert_eq(fake_cuda_launch(to_cuda(other)->stream, run_until_told, NULL), 0);
	sem_wait(&busy.begun);
	cr_assert_eq(device_submit(other, &op), 0);
	fake_cuda_fail("cuMemcpyHtoDAsync", 1, CUDA_ERROR_UNKNOWN, false);
	cr_assert_eq(copy_in(run.other, 0, 8, host), -EIO);
	cr_assert(fake_cuda_failed());
	sem_post(&busy.may_end);
	sem_wait(&reading.ended);
	cr_assert_eq(reading.err, -EHOSTUNREACH);
	works(run.mem, host);
	must_free(run.mem);
	must_free(run.other);
	other->ops->destroy(other);
	end();
	free(host);
}

/* A device ends, and with it what was registered through it; the other has announced the same slab. */
Test(broken, or_ended_is_all_the_same_to_the_other)
{
	const struct cuda_config second = { .index = 1, .capacity = CHUNKS * GAIA_CHUNK };
	struct device *other;
	struct devmem *mem;
	char *slab;

	begin(&(struct fake_cuda_config){ .n_devices = 2 });
	mem = must_alloc(dev);
	slab = new_slab(dev);
	works(mem, slab);
	until_registered(slab);
	must_free(mem);
	cr_assert_eq(cuda_create(fake_cuda_api(), &second, 4 * GAIA_PAGE, &other), 0);
	other->ops->host_slab(other, slab, HOST_SLAB_COMES);
	dev->ops->host_slab(dev, slab, HOST_SLAB_GOES);
	dev->ops->destroy(dev);
	dev = other;
	mem = must_alloc(dev);
	works(mem, slab);
	until_registered(slab);
	works(mem, slab);
	must_free(mem);
	end_slab(dev, slab);
	end();
}

/* ---- which GPUs ---- */

TestSuite(gpus, .timeout = 60);

static void cannot_be_had(const struct fake_cuda_config *config)
{
	const struct cuda_config of_dev = { .capacity = CHUNKS * GAIA_CHUNK };

	fake_cuda_reset(config);
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	dev = NULL;
	cr_assert_eq(cuda_create(fake_cuda_api(), &of_dev, 4 * GAIA_PAGE, &dev), -ENODEV);
	cr_assert_null(dev);
	nothing_is_left();
}

Test(gpus, that_clients_could_not_use_as_well_are_refused)
{
	cannot_be_had(&(struct fake_cuda_config){ .n_devices = 1, .memory = 4 * CHUNKS * GAIA_CHUNK,
						  .compute_mode = CU_COMPUTEMODE_EXCLUSIVE_PROCESS });
	cannot_be_had(&(struct fake_cuda_config){ .n_devices = 1, .memory = 4 * CHUNKS * GAIA_CHUNK,
						  .compute_mode = CU_COMPUTEMODE_PROHIBITED });
}

Test(gpus, have_memory_for_rdma_where_they_can)
{
	begin(&(struct fake_cuda_config){ 0 });
	must_free(must_alloc(dev));
	cr_assert_eq(fake_cuda_rdma_capable() > 0, !fake_cuda_mode()->no_rdma);
	end();
	begin(&(struct fake_cuda_config){ .no_rdma = true });
	must_free(must_alloc(dev));
	cr_assert_eq(fake_cuda_rdma_capable(), 0);
	end();
}

/* Whether there is a driver or not. */
Test(gpus, are_used_without_mps)
{
	const char *why;

	setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp", 1);
	(void)cuda_driver(&why);
	cr_assert_str_eq(getenv("CUDA_MPS_PIPE_DIRECTORY"), "/dev/null");
}
