/*
 * client_cuda.c - tests of client/cuda.c and cuda_stream.c: the library on a GPU that a fake driver
 * plays, with the daemon's side of clients over a played cache. "Kernels" are functions on the
 * fake's streams.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../client/cuda_client.h"
#include "base/log.h"
#include "fake_cuda.h"
#include "fake_daemon.h"
#include "gaia/client.h"
#include "gaia/cuda.h"

#define RW (PROT_READ | PROT_WRITE)
#define CHUNKS 4
#define LENGTH ((size_t)CHUNKS * GAIA_CHUNK)

/* ---- the application's own calls ---- */

#define ENTRY(name, ...) ((CUresult(*)(__VA_ARGS__))fake_cuda_entry(#name))

static void ok(CUresult r)
{
	cr_assert_eq(r, CUDA_SUCCESS);
}

static CUcontext new_context(CUdevice dev)
{
	CUcontext ctx;

	ok(ENTRY(cuInit, unsigned)(0));
	ok(ENTRY(cuCtxCreate_v2, CUcontext *, unsigned, CUdevice)(&ctx, 0, dev));
	return ctx;
}

static void end_context(CUcontext ctx)
{
	ok(ENTRY(cuCtxDestroy, CUcontext)(ctx));
}

static CUstream new_stream(void)
{
	CUstream s;

	ok(ENTRY(cuStreamCreate, CUstream *, unsigned)(&s, 0));
	return s;
}

static CUresult synchronize(CUstream s)
{
	return ENTRY(cuStreamSynchronize, CUstream)(s);
}

static void end_stream(CUstream s)
{
	ENTRY(cuStreamDestroy, CUstream)(s);
}

/* ---- scenes ---- */

static int file;
static unsigned gpu; /* the daemon's number for it */
static CUstreamCaptureStatus capturing;

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
	*status = capturing;
	return CUDA_SUCCESS;
}

static void *lookup(const char *name)
{
	if (!strcmp(name, "cuStreamIsCapturing"))
		return is_capturing;
	return fake_cuda_entry(name);
}

static int push(int fd, off_t off, off_t len)
{
	return 0;
}

static void begin_gpus(unsigned n, unsigned first, unsigned wanted)
{
	struct fake_cuda_config config = { .n_devices = n, .first = first, .memory = 64 << 20 };
	unsigned char uuid[16];

	log_set_level(LOG_LEVEL_ERROR);
	fake_cuda_reset(&config);
	cuda_lookup = lookup;
	wire_sys.ioctl = fake_ioctl;
	wire_sys.push = push;
	fake_start();
	file = fake_file();
	fake_cuda_uuid(wanted, uuid);
	gpu = fake_device("cuda", uuid);
}

static const struct fake_cuda_config one_gpu = { .n_devices = 1, .memory = 64 << 20 };

static void begin(void)
{
	begin_gpus(1, 0, 0);
}

static void end(void)
{
	close(file);
	fake_stop();
	cr_assert_null(fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true), 0);
}

static unsigned char *map(int prot)
{
	unsigned char *p = gaia_mmap(LENGTH, prot, file, 0, gpu);

	cr_assert_neq(p, MAP_FAILED);
	return p;
}

static void unmap(void *p)
{
	cr_assert_eq(gaia_munmap(p, LENGTH), 0);
}

static struct cuda_mapping *own(void *p)
{
	struct mapping *m = mapping_find(p, 1);
	struct cuda_mapping *c = m->own;

	mapping_put(m);
	return c;
}

/* ---- memory ---- */

Test(memory, is_one_range_in_file_order_shared_with_the_daemon, .init = begin, .fini = end)
{
	size_t length = 2 * GAIA_CHUNK;
	unsigned char *p = gaia_mmap(length, RW, file, GAIA_CHUNK + GAIA_PAGE, gpu);
	uint64_t id;

	cr_assert_neq(p, MAP_FAILED);
	id = fake_seen().map_id;
	cr_assert_eq((uintptr_t)p % GAIA_CHUNK, GAIA_PAGE);
	cr_assert_eq(gaia_acquire(p, length, RW), 0);
	for (unsigned k = 1; k <= 3; k++)
		cr_assert(fake_cuda_usable(p - GAIA_PAGE + (k - 1) * GAIA_CHUNK, GAIA_CHUNK));
	cr_assert_eq(p[GAIA_CHUNK - GAIA_PAGE], 2, "the second chunk's first byte");
	p[0] = 'a';
	p[GAIA_CHUNK] = 'b';
	cr_assert_eq(fake_chunk(id, 1)[GAIA_PAGE], 'a');
	cr_assert_eq(fake_chunk(id, 2)[GAIA_PAGE], 'b');
	cr_assert_eq(gaia_release(p, length), 0);
	cr_assert_eq(gaia_munmap(p, length), 0);
}

Test(memory, outside_of_what_was_acquired_is_not_there, .init = begin, .fini = end)
{
	unsigned char *p = map(RW);

	cr_assert_eq(gaia_acquire(p + GAIA_CHUNK, 1, RW), 0);
	cr_assert(fake_cuda_usable(p + GAIA_CHUNK, GAIA_CHUNK));
	cr_assert_not(fake_cuda_usable(p, 1));
	cr_assert_not(fake_cuda_usable(p + 2 * GAIA_CHUNK, 1));
	unmap(p);
}

Test(memory, of_a_run_gets_access_in_one_call, .init = begin, .fini = end)
{
	unsigned char *p = map(RW);
	unsigned calls = fake_cuda_calls();

	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	/* Import, map and release each chunk; enter and leave the context; set access. */
	cr_assert_eq(fake_cuda_calls() - calls, 3 * CHUNKS + 3);
	unmap(p);
}

Test(memory, that_is_acquired_again_is_not_mapped_again, .init = begin, .fini = end)
{
	unsigned char *p = map(RW);
	unsigned calls;

	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	cr_assert_eq(gaia_release(p, LENGTH), 0);
	calls = fake_cuda_calls();
	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	cr_assert_eq(fake_cuda_calls(), calls);
	unmap(p);
}

Test(memory, that_is_revoked_goes_and_comes_back, .init = begin, .fini = end)
{
	unsigned char *p = map(RW);
	uint64_t id = fake_seen().map_id;

	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	cr_assert_eq(gaia_release(p, LENGTH), 0);
	cr_assert_eq(fake_revoke(id, 1), 0);
	cr_assert_not(fake_cuda_usable(p + GAIA_CHUNK, 1));
	cr_assert(fake_cuda_usable(p, GAIA_CHUNK));
	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	cr_assert(fake_cuda_usable(p + GAIA_CHUNK, GAIA_CHUNK));
	unmap(p);
}

Test(memory, for_reading_cannot_be_written_where_the_driver_can_tell, .init = begin, .fini = end)
{
	unsigned char *p = map(PROT_READ);

	cr_assert_eq(gaia_acquire(p, LENGTH, PROT_READ), 0);
	cr_assert_eq(p[GAIA_CHUNK], 1);
	cr_assert_not(fake_cuda_usable(p, 1), "writing is not allowed");
	unmap(p);
}

Test(memory, for_reading_is_had_where_the_driver_knows_only_both, .init = begin, .fini = end)
{
	unsigned char *p = map(PROT_READ);

	fake_cuda_fail("cuMemSetAccess", 1, CUDA_ERROR_NOT_SUPPORTED, false);
	cr_assert_eq(gaia_acquire(p, LENGTH, PROT_READ), 0);
	cr_assert(fake_cuda_failed());
	cr_assert(fake_cuda_usable(p, LENGTH));
	unmap(p);
}

Test(memory, that_cannot_be_mapped_ends_the_lease, .init = begin, .fini = end)
{
	unsigned char *p = map(RW);

	fake_cuda_fail("cuMemMap", 2, CUDA_ERROR_OUT_OF_MEMORY, false);
	cr_assert_eq(gaia_acquire(p, LENGTH, RW), -1);
	cr_assert_eq(errno, ENOMEM);
	sem_wait(&fake_unmapped);
	cr_assert_eq(gaia_acquire(p, LENGTH, RW), -1);
	cr_assert_eq(errno, ENOTCONN);
	unmap(p);
	/* The next one is a new client. */
	p = map(RW);
	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	unmap(p);
}

/* ---- devices and contexts ---- */

Test(device, is_known_by_its_uuid)
{
	unsigned char *p;

	/* This process sees GPUs 3 and 4, as 0 and 1; the daemon speaks of GPU 4. */
	begin_gpus(2, 3, 4);
	p = map(RW);
	cr_assert_eq(own(p)->dev, 1);
	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	unmap(p);
	end();
}

static void expect_no_device(void)
{
	cr_assert_eq(gaia_mmap(LENGTH, RW, file, 0, gpu), MAP_FAILED);
	cr_assert_eq(errno, ENODEV);
	cr_assert_eq(fake_seen().maps, 0);
	end();
}

Test(device, that_the_process_does_not_see_is_none)
{
	begin_gpus(2, 3, 0);
	expect_no_device();
}

Test(device, none_at_all)
{
	begin_gpus(0, 0, 0);
	expect_no_device();
}

static void *no_lookup(const char *name)
{
	return NULL;
}

static void *old_lookup(const char *name)
{
	return strcmp(name, "cuMemMap") ? lookup(name) : NULL;
}

Test(device, needs_a_driver)
{
	begin();
	cuda_lookup = no_lookup;
	expect_no_device();
}

Test(device, needs_a_driver_that_is_not_too_old)
{
	begin();
	cuda_lookup = old_lookup;
	expect_no_device();
}

Test(device, of_another_kind_needs_no_driver)
{
	unsigned char *p;

	begin();
	cuda_lookup = no_lookup;
	p = gaia_mmap(LENGTH, RW, file, 0, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	cr_assert_eq(gaia_acquire_on(p, 1, RW, NULL), -1);
	cr_assert_eq(errno, ENOTSUP);
	cr_assert_eq(gaia_release_on(p, 1, NULL), -1);
	cr_assert_eq(errno, ENOTSUP);
	unmap(p);
	end();
}

Test(context, is_the_callers_if_it_is_of_the_device, .init = begin, .fini = end)
{
	CUcontext ctx = new_context(0);
	unsigned char *p = map(RW);

	cr_assert_eq(own(p)->ctx, ctx);
	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	unmap(p);
	end_context(ctx);
}

Test(context, is_the_primary_one_otherwise)
{
	CUcontext other, primary;
	unsigned char *p;

	begin_gpus(2, 0, 0);
	other = new_context(1);
	p = map(RW);
	ok(ENTRY(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&primary, 0));
	cr_assert_eq(own(p)->ctx, primary);
	ok(ENTRY(cuDevicePrimaryCtxRelease, CUdevice)(0));
	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	unmap(p);
	end_context(other);
	end();
}

Test(context, of_the_caller_is_left_as_it_was, .init = begin, .fini = end)
{
	CUcontext ctx = new_context(0), now;
	unsigned char *p = map(RW);
	CUstream s = new_stream();

	cr_assert_eq(gaia_acquire_on(p, LENGTH, RW, s), 0);
	cr_assert_eq(gaia_release_on(p, LENGTH, s), 0);
	ok(synchronize(s));
	unmap(p);
	ok(ENTRY(cuCtxGetCurrent, CUcontext *)(&now));
	cr_assert_eq(now, ctx);
	end_stream(s);
	end_context(ctx);
}

Test(context, that_is_gone_does_not_keep_a_mapping_from_ending, .init = begin, .fini = end)
{
	CUcontext ctx = new_context(0);
	unsigned char *p = map(RW);

	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	end_context(ctx);
	cr_assert_eq(gaia_munmap(p, LENGTH), 0);
	cr_assert_eq(fake_cuda_alive(true), 0);
	/* The fake minds that we ask for it: there is no other way to find out. */
	cr_assert_str_eq(fake_cuda_violation(), "cuCtxPushCurrent of no context");
	fake_cuda_reset(&one_gpu);
}

/* ---- processes ---- */

Test(child, has_no_mappings_and_leaves_the_device_alone, .init = begin, .fini = end)
{
	unsigned char *p = map(RW);
	int status;
	pid_t pid;

	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	pid = fork();
	if (pid == 0) {
		bool good = gaia_acquire(p, 1, RW) == -1 && errno == ENOTCONN &&
			    gaia_acquire_on(p, 1, RW, NULL) == -1 && errno == ENOTCONN &&
			    gaia_munmap(p, LENGTH) == -1 && errno == ENOTCONN;

		_exit(!good || fake_cuda_violation() ? 1 : 0);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
	cr_assert_eq(gaia_release(p, LENGTH), 0);
	unmap(p);
}

/* ---- work ---- */

/* A kernel that waits until it is told to go on, then writes. */
struct work {
	sem_t started, go;
	unsigned char *at, value, saw;
};

static void kernel(void *arg)
{
	struct work *w = arg;

	sem_post(&w->started);
	sem_wait(&w->go);
	w->saw = *w->at;
	*w->at = w->value;
}

static void launch(struct work *w, CUstream s, unsigned char *at, unsigned char value)
{
	w->at = at;
	w->value = value;
	sem_init(&w->started, 0, 0);
	sem_init(&w->go, 0, 0);
	ok(fake_cuda_launch(s, kernel, w));
}

static void *go_later(void *arg)
{
	struct work *w = arg;

	sem_wait(&w->started);
	sem_post(&w->go);
	return NULL;
}

/* A stream in a context of the test's own, and a mapping on it. */
static CUcontext ctx;
static CUstream stream;
static unsigned char *at;

static void begin_stream(void)
{
	begin();
	ctx = new_context(0);
	stream = new_stream();
	at = map(RW);
}

static void end_stream_scene(void)
{
	if (at)
		unmap(at);
	end_stream(stream);
	end_context(ctx);
	end();
}

Test(unmapping, waits_for_the_work_that_uses_it, .init = begin_stream, .fini = end_stream_scene)
{
	struct work w;
	pthread_t thread;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, stream, at + GAIA_CHUNK, 7);
	cr_assert_eq(pthread_create(&thread, NULL, go_later, &w), 0);
	/* If it did not, the kernel would touch what is gone. */
	unmap(at);
	at = NULL;
	cr_assert_eq(w.saw, 1);
	pthread_join(thread, NULL);
}

Test(unmapping, waits_for_what_is_queued, .init = begin_stream, .fini = end_stream_scene)
{
	struct work w;
	pthread_t thread;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, stream, at, 7);
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
	cr_assert_eq(fake_seen().releases, 0);
	cr_assert_eq(pthread_create(&thread, NULL, go_later, &w), 0);
	unmap(at);
	at = NULL;
	cr_assert_eq(fake_seen().releases, 1);
	pthread_join(thread, NULL);
}

/* ---- in the order of a stream ---- */

#define on_stream(suite, name) Test(suite, name, .init = begin_stream, .fini = end_stream_scene)

on_stream(on, an_acquire_comes_when_the_stream_comes_to_it)
{
	struct work before, after;

	cr_assert_eq(gaia_acquire(at, GAIA_CHUNK, RW), 0);
	launch(&before, stream, at, 1);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	launch(&after, stream, at + GAIA_CHUNK, 2);
	sem_wait(&before.started);
	cr_assert_eq(fake_seen().acquires, 1);
	cr_assert_eq(fake_seen().pins, 1);
	cr_assert(fake_cuda_usable(at, LENGTH), "mapped before anything waits");
	sem_post(&before.go);
	sem_wait(&after.started);
	cr_assert_eq(fake_seen().acquires, 2);
	cr_assert_eq(fake_seen().pins, 0);
	sem_post(&after.go);
	ok(synchronize(stream));
}

on_stream(on, an_acquire_does_not_keep_the_caller_and_work_behind_it_sees_what_it_brought)
{
	uint64_t id = fake_seen().map_id;
	struct work w;

	fake_gate.armed = true;
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	launch(&w, stream, at, 2);
	sem_post(&w.go);
	sem_wait(&fake_gate.entered);
	/* The data comes now. */
	fake_chunk(id, 0)[0] = 99;
	fake_gate.armed = false;
	sem_post(&fake_gate.leave);
	ok(synchronize(stream));
	cr_assert_eq(w.saw, 99);
}

on_stream(on, a_release_comes_after_the_work_before_it_and_is_done_with_the_stream)
{
	struct work w;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, stream, at, 5);
	cr_assert_eq(gaia_release_on(at, GAIA_PAGE, stream), 0);
	sem_wait(&w.started);
	cr_assert_eq(fake_seen().releases, 0);
	sem_post(&w.go);
	ok(synchronize(stream));
	cr_assert_eq(fake_seen().releases, 1);
	cr_assert_eq(fake_seen().len, GAIA_PAGE);
}

on_stream(on, the_default_stream_needs_no_current_context)
{
	CUcontext none;

	ok(ENTRY(cuCtxPopCurrent, CUcontext *)(&none));
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, NULL), 0);
	cr_assert_eq(gaia_release_on(at, LENGTH, NULL), 0);
	unmap(at);
	at = NULL;
	cr_assert_eq(fake_seen().releases, 1);
	ok(ENTRY(cuCtxPushCurrent, CUcontext)(ctx));
}

on_stream(on, what_does_not_fit_is_said_at_once_and_nothing_is_queued)
{
	fake_errors.pin = -ENOMEM;
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), -1);
	cr_assert_eq(errno, ENOMEM);
	ok(synchronize(stream));
	cr_assert_eq(fake_seen().acquires, 0);
}

on_stream(on, arguments_are_checked_at_once)
{
	cr_assert_eq(gaia_acquire_on(at, LENGTH, PROT_WRITE, stream), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(gaia_acquire_on(at, LENGTH + 1, RW, stream), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(gaia_release_on(at + 1, LENGTH, stream), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(gaia_acquire_on(at, 0, RW, stream), 0);
	cr_assert_eq(gaia_release_on(at, 0, stream), 0);
	unmap(at);
	at = map(PROT_READ);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), -1);
	cr_assert_eq(errno, EACCES);
	cr_assert_eq(fake_seen().pins, 0);
}

on_stream(on, a_stream_of_another_context_is_refused)
{
	CUcontext other = new_context(0);
	CUstream s = new_stream();

	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, s), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(gaia_release_on(at, LENGTH, s), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, NULL), -1, "the default stream is the current context's");
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(fake_seen().pins, 0, "room is given up");
	end_stream(s);
	end_context(other);
	ok(ENTRY(cuCtxSetCurrent, CUcontext)(ctx));
}

on_stream(on, a_graph_is_refused)
{
	capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(fake_seen().pins, 0);
}

on_stream(on, a_device_that_cannot_wait_has_the_caller_wait)
{
	for (int i = 0; i < 3; i++) {
		fake_cuda_fail("cuStreamWaitValue32", 1, CUDA_ERROR_NOT_SUPPORTED, false);
		cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
		cr_assert(fake_cuda_failed());
		cr_assert_eq(fake_seen().acquires, i + 1);
		fake_cuda_fail("cuStreamWaitValue32", 1, CUDA_ERROR_NOT_SUPPORTED, false);
		cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
		cr_assert(fake_cuda_failed());
		cr_assert_eq(fake_seen().releases, i + 1);
	}
}

on_stream(on, many_are_queued_and_too_many_refused)
{
	struct work w;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, stream, at, 5);
	for (unsigned i = 0; i < CUDA_FLAGS; i++)
		cr_assert_eq(gaia_release_on(at, 1, stream), 0);
	cr_assert_eq(gaia_release_on(at, 1, stream), -1);
	cr_assert_eq(errno, EAGAIN);
	cr_assert_eq(gaia_acquire_on(at, 1, RW, stream), -1);
	cr_assert_eq(errno, EAGAIN);
	cr_assert_eq(fake_seen().pins, 0);
	sem_post(&w.go);
	ok(synchronize(stream));
	cr_assert_eq(fake_seen().releases, CUDA_FLAGS);
	cr_assert_eq(gaia_release_on(at, 1, stream), 0);
}

on_stream(on, streams_do_not_wait_for_each_other)
{
	CUstream other = new_stream();
	struct work w;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, stream, at, 5);
	cr_assert_eq(gaia_release_on(at, 1, stream), 0);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, other), 0);
	cr_assert_eq(gaia_release_on(at, LENGTH, other), 0);
	ok(synchronize(other));
	cr_assert_eq(fake_seen().releases, 1);
	sem_post(&w.go);
	ok(synchronize(stream));
	cr_assert_eq(fake_seen().releases, 2);
	end_stream(other);
}

/* ---- errors that come late ---- */

/* Each reports it, once, and does nothing else. */
static int call(unsigned which)
{
	switch (which) {
	case 0:
		return gaia_acquire_on(at, LENGTH, RW, stream);
	case 1:
		return gaia_release_on(at, LENGTH, stream);
	case 2:
		return gaia_acquire(at, LENGTH, RW);
	case 3:
		return gaia_release(at, LENGTH);
	case 4:
		return gaia_sync(at, LENGTH);
	default:
		return gaia_advise(at, LENGTH, GAIA_WILLNEED);
	}
}

static unsigned done_so_far(void)
{
	struct fake_cache seen = fake_seen();

	return seen.acquires + seen.releases + seen.syncs + seen.advices + (unsigned)seen.pins;
}

on_stream(late, errors_are_reported_by_the_next_call)
{
	unsigned before;

	for (unsigned which = 0; which < 6; which++) {
		fake_errors.acquire = -EIO;
		cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
		ok(synchronize(stream));
		fake_errors.acquire = 0;
		before = done_so_far();
		cr_assert_eq(call(which), -1, "call %u", which);
		cr_assert_eq(errno, EIO);
		ok(synchronize(stream));
		cr_assert_eq(done_so_far(), before, "call %u did nothing else", which);
		cr_assert_eq(call(which), 0);
		ok(synchronize(stream));
	}
}

on_stream(late, errors_are_reported_by_unmapping_which_unmaps)
{
	fake_errors.release = -EIO;
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
	cr_assert_eq(gaia_munmap(at, LENGTH), -1);
	cr_assert_eq(errno, EIO);
	cr_assert_eq(fake_seen().live, 0);
	at = NULL;
}

on_stream(late, errors_the_first_is_kept)
{
	struct work w;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	fake_errors.acquire = -EIO;
	fake_errors.release = -ENOSPC;
	launch(&w, stream, at, 1);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
	sem_post(&w.go);
	ok(synchronize(stream));
	fake_errors.acquire = fake_errors.release = 0;
	cr_assert_eq(gaia_sync(at, 1), -1);
	cr_assert_eq(errno, EIO);
	cr_assert_eq(gaia_sync(at, 1), 0);
}

on_stream(late, errors_are_of_one_mapping)
{
	unsigned char *other = map(RW);

	fake_errors.acquire = -EIO;
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	ok(synchronize(stream));
	fake_errors.acquire = 0;
	cr_assert_eq(gaia_sync(other, 1), 0);
	cr_assert_eq(gaia_sync(at, 1), -1);
	unmap(other);
}

on_stream(late, memory_of_a_failed_acquire_is_there_for_what_is_queued_behind)
{
	struct work w;

	fake_errors.acquire = -EIO;
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	launch(&w, stream, at + 2 * GAIA_CHUNK, 1);
	sem_post(&w.go);
	ok(synchronize(stream));
	cr_assert_eq(fake_seen().pins, 1);
	cr_assert_eq(gaia_sync(at, 1), -1);
}

Test(late, streams_are_let_go_when_the_daemon_ends)
{
	struct work w;

	begin_stream();
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, stream, at, 1);
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	close(file);
	fake_stop();
	sem_post(&w.go);
	ok(synchronize(stream));
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), -1);
	cr_assert_eq(errno, ENOTCONN);
	cr_assert_eq(gaia_munmap(at, LENGTH), 0);
	end_stream(stream);
	end_context(ctx);
	cr_assert_null(fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true), 0);
}

on_stream(late, streams_are_let_go_when_the_client_is_disconnected)
{
	struct work w;

	fake_gate.armed = true;
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	launch(&w, stream, at, 1);
	sem_post(&w.go);
	sem_wait(&fake_gate.entered);
	fake_disconnect();
	fake_gate.armed = false;
	sem_post(&fake_gate.leave);
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), -1);
	cr_assert_eq(errno, ENOTCONN);
	ok(synchronize(stream));
	unmap(at);
	at = NULL;
}

/* ---- when the driver fails ---- */

static void nothing(void *arg)
{
}

/* All that the library does with the driver. What fails may fail; nothing may be left behind, and
 * nobody may hang. */
static void do_everything(void)
{
	unsigned char *p = gaia_mmap(LENGTH, RW, file, 0, gpu);
	uint64_t id = fake_seen().map_id;

	if (p == MAP_FAILED)
		return;
	if (gaia_acquire(p, LENGTH, RW) == 0 && gaia_release(p, LENGTH) == 0)
		(void)fake_revoke(id, 1);
	(void)gaia_acquire_on(p, LENGTH, RW, stream);
	(void)fake_cuda_launch(stream, nothing, NULL);
	(void)gaia_release_on(p, LENGTH, stream);
	(void)gaia_munmap(p, LENGTH);
}

static void fail_in_turn(CUresult result, bool sticky)
{
	unsigned nth = 0;
	bool failed;

	begin();
	do {
		ctx = new_context(0);
		stream = new_stream();
		fake_cuda_fail(NULL, ++nth, result, sticky);
		do_everything();
		failed = fake_cuda_failed();
		ENTRY(cuStreamDestroy, CUstream)(stream);
		ENTRY(cuCtxDestroy, CUcontext)(ctx);
		cr_assert_null(fake_cuda_violation(), "call %u", nth);
		cr_assert_eq(fake_cuda_alive(true), 0, "call %u", nth);
		if (sticky)
			fake_cuda_reset(&one_gpu);
	} while (failed);
	cr_assert_gt(nth, 40);
	end();
}

Test(driver, may_fail_anywhere_once, .timeout = 60)
{
	fail_in_turn(CUDA_ERROR_UNKNOWN, false);
}

Test(driver, may_run_out_of_memory_anywhere, .timeout = 60)
{
	fail_in_turn(CUDA_ERROR_OUT_OF_MEMORY, false);
}

Test(driver, may_break_for_good_anywhere, .timeout = 60)
{
	fail_in_turn(CUDA_ERROR_ILLEGAL_ADDRESS, true);
}

on_stream(driver, that_breaks_with_work_queued_hangs_nobody)
{
	struct work w;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, stream, at, 1);
	fake_cuda_fail_later(1, CUDA_ERROR_ILLEGAL_ADDRESS);
	ok(fake_cuda_launch(stream, nothing, NULL));
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	sem_post(&w.go);
	cr_assert_neq(synchronize(stream), CUDA_SUCCESS);
	unmap(at);
	at = NULL;
	cr_assert_eq(fake_seen().releases, 0);
	end_stream(stream);
	ENTRY(cuCtxDestroy, CUcontext)(ctx);
	fake_cuda_reset(&one_gpu);
	ctx = new_context(0);
	stream = new_stream();
}
