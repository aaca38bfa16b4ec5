/*
 * client_cuda.c - tests of client/cuda.c and cuda_stream.c: the library on a GPU that a fake driver
 * plays, with the daemon's side of clients over a played cache. "Kernels" are functions on the
 * fake's streams.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../client/cuda_client.h"
#include "base/fault.h"
#include "base/log.h"
#include "fake_cuda.h"
#include "fake_daemon.h"
#include "gaia/client.h"
#include "gaia/cuda.h"
#include "thread_sleeps.h"

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
static struct fake_cuda_config modes; /* on in the next scene */

/* While armed, cuMemSetAccess() posts entered and waits for leave. */
static struct {
	bool armed;
	sem_t entered, leave;
} access_gate;

static CUresult set_access(CUdeviceptr at, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	if (access_gate.armed) {
		sem_post(&access_gate.entered);
		sem_wait(&access_gate.leave);
	}
	return ENTRY(cuMemSetAccess, CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)(at, size, desc,
											    count);
}

static CUresult refuses_several; /* not 0: what cuMemUnmap() of several chunks says */

static CUresult unmap_memory(CUdeviceptr at, size_t size)
{
	if (refuses_several && size > GAIA_CHUNK)
		return refuses_several;
	return ENTRY(cuMemUnmap, CUdeviceptr, size_t)(at, size);
}

/*
 * While armed, streams cannot wait for memory: so they are waited for, which posts entered, waits for leave and
 * says @result. Before that they really are waited for, if @synchronizes.
 */
static struct {
	bool armed, synchronizes;
	CUresult result;
	sem_t entered, leave;
} wait_gate;

static CUresult wait_value(CUstream s, CUdeviceptr word, cuuint32_t value, unsigned flags)
{
	if (wait_gate.armed)
		return CUDA_ERROR_NOT_SUPPORTED;
	return ENTRY(cuStreamWaitValue32, CUstream, CUdeviceptr, cuuint32_t, unsigned)(s, word, value, flags);
}

static CUresult wait_for_stream(CUstream s)
{
	CUresult r = wait_gate.armed && !wait_gate.synchronizes ? CUDA_SUCCESS : synchronize(s);

	if (!wait_gate.armed)
		return r;
	sem_post(&wait_gate.entered);
	sem_wait(&wait_gate.leave);
	return wait_gate.result;
}

static void *lookup(const char *name)
{
	if (!strcmp(name, "cuMemSetAccess"))
		return set_access;
	if (!strcmp(name, "cuMemUnmap"))
		return unmap_memory;
	if (!strcmp(name, "cuStreamWaitValue32"))
		return wait_value;
	if (!strcmp(name, "cuStreamSynchronize"))
		return wait_for_stream;
	return fake_cuda_entry(name);
}

static int push(int fd, off_t off, off_t len)
{
	return 0;
}

static void begin_gpus(unsigned n, unsigned first, unsigned wanted)
{
	struct fake_cuda_config config = modes;
	unsigned char uuid[16];

	config.n_devices = n;
	config.first = first;
	config.memory = 64 << 20;
	sem_init(&access_gate.entered, 0, 0);
	sem_init(&access_gate.leave, 0, 0);
	sem_init(&wait_gate.entered, 0, 0);
	sem_init(&wait_gate.leave, 0, 0);
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

/* For what ends scenes: an assertion in .fini fails no test that has passed until then. A crash fails
 * the run. */
static void must(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "when a scene ended, not so: %s\n", what);
	abort();
}

static void end(void)
{
	close(file);
	fake_stop();
	must(!fake_cuda_violation(), "no rule was broken");
	must(fake_cuda_alive(true) == 0, "all was given back");
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

static struct mapping *mapping_of(void *p)
{
	return mapping_find(p, 1);
}

static struct cuda_mapping *own(void *p)
{
	struct mapping *m = mapping_of(p);
	struct cuda_mapping *c = m->own;

	mapping_put(m);
	return c;
}

/*
 * Where no host memory can be registered (mode no_pins) nothing can be queued on streams, which is said, and nothing
 * comes of it.
 */
static bool cannot_queue(void *p, CUstream s)
{
	struct fake_cache before = fake_seen(), now;

	if (!fake_cuda_mode()->no_pins)
		return false;
	cr_assert_eq(gaia_acquire_on(p, GAIA_CHUNK, RW, s), -1);
	cr_assert_eq(errno, EIO);
	cr_assert_eq(gaia_release_on(p, GAIA_CHUNK, s), -1);
	cr_assert_eq(errno, EIO);
	now = fake_seen();
	cr_assert_eq(now.acquires, before.acquires);
	cr_assert_eq(now.releases, before.releases);
	cr_assert_eq(now.pins, before.pins);
	return true;
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
	/* Import, map and release each chunk; enter and leave the context, and a mode in which
	 * captures elsewhere do not matter; set access. */
	cr_assert_eq(fake_cuda_calls() - calls, 3 * CHUNKS + 5);
	unmap(p);
}

Test(memory, in_an_extent_costs_what_a_chunk_does, .init = begin, .fini = end)
{
	unsigned char *p;
	unsigned calls;

	fake_extents = true;
	p = map(RW);
	calls = fake_cuda_calls();
	cr_assert_eq(gaia_acquire(p + GAIA_CHUNK, GAIA_CHUNK, RW), 0);
	cr_assert_eq(fake_cuda_calls() - calls, 3 + 5);
	for (unsigned k = 0; k < CHUNKS; k++)
		cr_assert_eq(p[k * GAIA_CHUNK], k);
	p[3 * GAIA_CHUNK + 1] = 'a';
	cr_assert_eq(fake_chunk(fake_seen().map_id, 3)[1], 'a');
	/* What is there is not handed over again; what was taken back is. */
	calls = fake_cuda_calls();
	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	cr_assert_eq(fake_cuda_calls() - calls, 0);
	cr_assert_eq(gaia_release(p, LENGTH), 0);
	cr_assert_eq(gaia_release(p + GAIA_CHUNK, GAIA_CHUNK), 0);
	cr_assert_eq(fake_revoke(fake_seen().map_id, 2), 0);
	cr_assert_not(fake_cuda_usable(p, 1));
	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	cr_assert_eq(p[3 * GAIA_CHUNK + 1], 'a');
	unmap(p);
}

/* Nor is it asked a second time to unmap what is one mapping. */
Test(memory, of_an_extent_goes_in_one_call_whatever_the_driver_says, .init = begin, .fini = end)
{
	unsigned char *p;
	unsigned calls;

	fake_extents = true;
	p = map(RW);
	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	cr_assert_eq(gaia_release(p, 1), 0);
	calls = fake_cuda_calls_of("cuMemUnmap");
	fake_cuda_fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, false);
	unmap(p);
	cr_assert_eq(fake_cuda_calls_of("cuMemUnmap") - calls, 1);
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

Test(memory, that_lies_together_goes_in_one_call, .init = begin, .fini = end)
{
	unsigned char *p = map(RW);
	struct mapping *m = mapping_of(p);
	struct gaia_msg msg = { .kind = GAIA_MSG_REVOKE, .count = 3, .map = m->id, .chunk = { 0, 1, 3 } };
	unsigned calls;

	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	calls = fake_cuda_calls_of("cuMemUnmap");
	pthread_mutex_lock(&gaia_lock);
	cr_assert_eq(mapping_message(m->conn, &msg, NULL, 0), 0);
	pthread_mutex_unlock(&gaia_lock);
	cr_assert_eq(fake_cuda_calls_of("cuMemUnmap") - calls, fake_cuda_mode()->single_unmaps ? 4 : 2);
	for (unsigned k = 0; k < CHUNKS; k++)
		cr_assert_eq(fake_cuda_usable(p + k * GAIA_CHUNK, 1), k == 2);
	mapping_put(m);
	unmap(p);
	p = map(RW);
	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	calls = fake_cuda_calls_of("cuMemUnmap");
	unmap(p);
	cr_assert_eq(fake_cuda_calls_of("cuMemUnmap") - calls, fake_cuda_mode()->single_unmaps ? 1 + CHUNKS : 1);
}

Test(memory, goes_one_by_one_where_the_driver_wants_it_so, .init = begin, .fini = end)
{
	/* Which of these it says, if any, is not documented. */
	static const CUresult refusals[] = { CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
					     CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_OUT_OF_MEMORY,
					     CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_UNKNOWN };

	for (unsigned i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		unsigned char *p = map(RW);
		uint64_t id = fake_seen().map_id;

		refuses_several = refusals[i];
		cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
		cr_assert_eq(fake_revoke(id, 1), 0);
		unmap(p);
		cr_assert_null(fake_cuda_violation(), "error %d", (int)refusals[i]);
	}
}

/* All calls report what broke it: so does one that was refused for another reason. */
Test(memory, of_a_broken_context_goes_as_well)
{
	unsigned char *p;

	modes.single_unmaps = true;
	begin();
	p = map(RW);
	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	fake_cuda_fail("cuMemUnmap", 1, CUDA_ERROR_ILLEGAL_ADDRESS, true);
	unmap(p);
	cr_assert(fake_cuda_failed());
	cr_assert_null(fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true) == 0, !fake_cuda_mode()->broken_frees);
	close(file);
	fake_stop();
}

Test(memory, is_published, .fini = end)
{
	unsigned char *p;

	begin();
	p = map(RW);
	cr_assert_eq(gaia_publish(p, LENGTH), 0);
	cr_assert_eq(fake_seen().publishes, 1);
	cr_assert_eq(fake_seen().syncs, 0);
	unmap(p);
}

/* A sync is more than was asked for. */
Test(memory, is_synced_with_a_daemon_that_cannot_publish, .fini = end)
{
	unsigned char *p;

	begin();
	fake_lacks = GAIA_FEATURE_PUBLISHES;
	p = map(RW);
	cr_assert_eq(gaia_publish(p, LENGTH), 0);
	cr_assert_eq(fake_seen().publishes, 0);
	cr_assert_eq(fake_seen().syncs, 1);
	unmap(p);
}

/* It would refuse it as senseless, which says nothing of what to do. */
Test(memory, is_not_overwritten_with_a_daemon_that_cannot, .fini = end)
{
	struct gaia_range list;
	unsigned char *p;

	begin();
	fake_lacks = GAIA_FEATURE_OVERWRITE;
	p = map(RW);
	list = (struct gaia_range){ p, LENGTH };
	cr_assert_eq(gaia_acquire(p, LENGTH, PROT_WRITE), -1);
	cr_assert_eq(errno, ENOSYS);
	cr_assert_eq(gaia_acquirev(&list, 1, PROT_WRITE), -1);
	cr_assert_eq(errno, ENOSYS);
	cr_assert_eq(gaia_acquire_on(p, LENGTH, PROT_WRITE, NULL), -1);
	cr_assert_eq(errno, ENOSYS);
	cr_assert_eq(fake_seen().acquires, 0);
	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
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

/* None of its chunks is there; what was there before, and other mappings, stay. */
Test(memory, that_cannot_be_mapped_fails_the_acquire_alone, .init = begin, .fini = end)
{
	unsigned char *p = map(RW), *other = map(RW);

	cr_assert_eq(gaia_acquire(other, LENGTH, RW), 0);
	cr_assert_eq(gaia_acquire(p, GAIA_CHUNK, RW), 0);
	fake_cuda_fail("cuMemMap", 2, CUDA_ERROR_OUT_OF_MEMORY, false);
	fault_arm("grant.patience", -EAGAIN, 0, 0);
	cr_assert_eq(gaia_acquire(p, LENGTH, RW), -1);
	cr_assert_eq(errno, ENOMEM);
	fault_disarm_all();
	cr_assert(fake_cuda_usable(p, GAIA_CHUNK));
	for (unsigned k = 1; k < CHUNKS; k++)
		cr_assert_not(fake_cuda_usable(p + k * GAIA_CHUNK, 1));
	cr_assert_eq(fake_seen().live, 2);
	cr_assert(fake_cuda_usable(other, LENGTH));
	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	cr_assert(fake_cuda_usable(p, LENGTH));
	unmap(other);
	unmap(p);
}

/* ---- acquires that are waited for later ---- */

static int start(void *p, size_t len)
{
	int fd = gaia_acquire_start(p, len, RW);

	cr_assert_geq(fd, 0);
	return fd;
}

static void await_given_back(unsigned n)
{
	while (fake_seen().given_back < n)
		sched_yield();
}

Test(started, memory_is_there_when_it_has_been_waited_for, .init = begin, .fini = end)
{
	unsigned char *p = map(RW);
	struct gaia_range list[] = { { p + 2 * GAIA_CHUNK, 1 }, { p + 3 * GAIA_CHUNK, 1 } };
	int fd = start(p, 2 * GAIA_CHUNK), listed = gaia_acquirev_start(list, 2, PROT_READ);

	cr_assert_eq(gaia_wait(fd), 0);
	cr_assert(fake_cuda_usable(p, 2 * GAIA_CHUNK));
	cr_assert_eq(gaia_wait(listed), 0);
	cr_assert(fake_cuda_usable(p, LENGTH));
	cr_assert_eq(gaia_release(p, LENGTH), 0);
	fake_errors.acquire = -ENOMEM;
	fd = start(p, 1);
	cr_assert_eq(gaia_wait(fd), -1);
	cr_assert_eq(errno, ENOMEM);
	fake_errors.acquire = 0;
	cr_assert_eq(fake_seen().given_back, 0);
	unmap(p);
}

/* Of a connection; what waits begins when those have ended, and is forgotten when it is closed. */
Test(started, eight_are_under_way_at_a_time, .init = begin, .fini = end)
{
	unsigned char *p = map(RW);
	int fd[24];

	fake_gate.armed = true;
	for (unsigned k = 0; k < 24; k++)
		fd[k] = start(p, 1);
	for (unsigned k = 0; k < 8; k++)
		sem_wait(&fake_gate.entered);
	for (unsigned k = 8; k < 12; k++)
		close(fd[k]);
	/* What is under way is given back when it has ended. */
	close(fd[7]);
	cr_assert_eq(fake_seen().given_back, 0);
	cr_assert_lt(sem_trywait(&fake_gate.entered), 0);
	fake_gate.armed = false;
	for (unsigned k = 0; k < 8; k++)
		sem_post(&fake_gate.leave);
	for (unsigned k = 0; k < 24; k++)
		if (k < 7 || k > 11)
			cr_assert_eq(gaia_wait(fd[k]), 0);
	await_given_back(1);
	cr_assert_leq(fake_seen().acquires, 24);
	fd[0] = start(p, 1);
	close(fd[0]);
	unmap(p);
}

Test(started, ends_with_its_mapping, .init = begin, .fini = end)
{
	unsigned char *p = map(RW), *other = map(RW);
	int made = start(p, 1), under_way, fd[20];
	struct pollfd ended = { .fd = made, .events = POLLIN };

	cr_assert_eq(poll(&ended, 1, -1), 1);
	fake_gate.armed = true;
	under_way = start(p, LENGTH);
	for (unsigned k = 0; k < 20; k++)
		fd[k] = start(p, 1);
	for (unsigned k = 0; k < 8; k++)
		sem_wait(&fake_gate.entered);
	unmap(p);
	cr_assert_eq(gaia_wait(made), -1);
	cr_assert_eq(errno, ECANCELED);
	fake_gate.armed = false;
	for (unsigned k = 0; k < 8; k++)
		sem_post(&fake_gate.leave);
	cr_assert_eq(gaia_wait(under_way), -1);
	cr_assert_eq(errno, ECANCELED);
	for (unsigned k = 0; k < 20; k++) {
		cr_assert_eq(gaia_wait(fd[k]), -1);
		cr_assert_eq(errno, ECANCELED);
	}
	cr_assert_eq(gaia_acquire(other, 1, RW), 0);
	unmap(other);
}

/* No page stays held because the daemon has no room to note that fewer are. */
Test(started, and_closed_is_given_back_until_that_works, .init = begin, .fini = end)
{
	unsigned char *p = map(RW);
	int fd = start(p, 1);
	struct pollfd ended = { .fd = fd, .events = POLLIN };

	cr_assert_eq(poll(&ended, 1, -1), 1);
	fake_errors.release = -ENOSR;
	close(fd);
	await_given_back(2);
	fake_errors.release = 0;
	for (bool given = false; !given; sched_yield()) {
		struct fake_cache seen = fake_seen();

		given = seen.given_back > seen.give_back_failed;
	}
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

static void expect_no_ordinal(int ordinal, int error)
{
	cr_assert_eq(gaia_device_of_cuda(file, ordinal), -1);
	cr_assert_eq(errno, error, "%s", gaia_last_error_text());
}

Test(device, is_found_by_the_number_that_it_has_in_this_process)
{
	unsigned char uuid[16];
	unsigned other;

	/* As above. The daemon also has one that this process does not see. */
	begin_gpus(2, 3, 4);
	fake_cuda_uuid(2, uuid);
	other = fake_device("cuda", uuid);
	cr_assert_neq(other, gpu);
	cr_assert_eq(gaia_device_of_cuda(file, 1), (int)gpu, "%s", gaia_last_error_text());
	expect_no_ordinal(0, ENODEV);
	cr_assert(strstr(gaia_last_error_text(), "does not share this GPU"));
	expect_no_ordinal(2, ENODEV);
	expect_no_ordinal(-1, ENODEV);
	cr_assert(strstr(gaia_last_error_text(), "sees no CUDA device -1"));
	end();
}

static void expect_no_mapping(int error)
{
	cr_assert_eq(gaia_mmap(LENGTH, RW, file, 0, gpu), MAP_FAILED);
	cr_assert_eq(errno, error);
	cr_assert_eq(fake_seen().maps, 0);
	end();
}

Test(device, that_the_process_does_not_see_is_none)
{
	begin_gpus(2, 3, 0);
	expect_no_mapping(ENODEV);
}

Test(device, none_at_all)
{
	begin_gpus(0, 0, 0);
	expect_no_mapping(ENODEV);
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
	expect_no_mapping(ENODEV);
}

Test(device, needs_a_driver_that_is_not_too_old)
{
	begin();
	cuda_lookup = old_lookup;
	expect_no_mapping(ENODEV);
}

Test(device, that_another_process_has_to_itself_is_busy)
{
	modes.compute_mode = CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
	modes.taken = true;
	begin();
	expect_no_mapping(EBUSY);
}

Test(device, of_another_kind_needs_no_driver)
{
	unsigned char *p;

	begin();
	cuda_lookup = no_lookup;
	p = gaia_mmap(LENGTH, RW, file, 0, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	/* Without streams they act at once, whatever the stream. */
	cr_assert_eq(gaia_acquire_on(p, 1, RW, (struct CUstream_st *)1), 0);
	cr_assert_eq(gaia_release_on(p, 1, NULL), 0);
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

	if (!cannot_queue(p, s)) {
		cr_assert_eq(gaia_acquire_on(p, LENGTH, RW, s), 0);
		cr_assert_eq(gaia_release_on(p, LENGTH, s), 0);
	}
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
	uint64_t id = fake_seen().map_id;

	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	end_context(ctx);
	/* Its memory is not the context's. */
	cr_assert_eq(fake_revoke(id, 1), 0);
	cr_assert_not(fake_cuda_usable(p + GAIA_CHUNK, 1));
	cr_assert_eq(gaia_munmap(p, LENGTH), 0);
	cr_assert_eq(fake_cuda_alive(true), 0);
	/* The fake minds that we ask for it: there is no other way to find out. */
	cr_assert_str_eq(fake_cuda_violation(), "cuCtxPushCurrent of no context");
	fake_cuda_reset(&one_gpu);
}

/* ---- mistakes ---- */

/* What is written to standard error from here to said(). */
static int said_fd, real_stderr;

static void listen_to_stderr(void)
{
	said_fd = memfd_create("stderr", MFD_CLOEXEC);
	real_stderr = dup(STDERR_FILENO);
	cr_assert(said_fd >= 0 && dup2(said_fd, STDERR_FILENO) == STDERR_FILENO);
}

/* Since the last time, or since listen_to_stderr(). */
static const char *said(void)
{
	static char text[4096];
	ssize_t n = pread(said_fd, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	if (ftruncate(said_fd, 0) || lseek(said_fd, 0, SEEK_SET))
		abort();
	return text;
}

/* The line that names the file. */
static const char *line_of(unsigned long first, unsigned long last, const char *what)
{
	static char line[PATH_MAX + 200];
	char link[40], path[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
	n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
	snprintf(line, sizeof(line), "gaia: %s: bytes %lu to %lu %s\n", path, first, last, what);
	return line;
}

#define NOT_HELD "are released, and not held"
#define STILL_HELD "are still held at gaia_munmap(): what was stored there since the last release is lost"

/* The environment is read when a process makes its first mapping. */
static void begin_reported(void)
{
	setenv("GAIA_DEBUG", "1", 1);
	begin();
}

Test(mistakes, are_reported_if_the_environment_says_so, .init = begin_reported, .fini = end)
{
	unsigned char *p = map(RW);

	listen_to_stderr();
	cr_assert_eq(gaia_acquire(p, 2 * GAIA_PAGE, RW), 0);
	cr_assert_eq(gaia_release(p, 2 * GAIA_PAGE), 0);
	cr_assert_str_eq(said(), "", "nothing was wrong");
	cr_assert_eq(gaia_acquire(p + GAIA_CHUNK, GAIA_PAGE, RW), 0);
	cr_assert_eq(gaia_release(p + GAIA_CHUNK, 3 * GAIA_PAGE), 0);
	cr_assert_str_eq(said(), line_of(GAIA_CHUNK + GAIA_PAGE, GAIA_CHUNK + 3 * GAIA_PAGE - 1, NOT_HELD));
	cr_assert_eq(gaia_acquire(p + GAIA_CHUNK - GAIA_PAGE, 2 * GAIA_PAGE, GAIA_PROT_READ), 0);
	cr_assert_str_eq(said(), "");
	unmap(p);
	cr_assert_str_eq(said(), line_of(GAIA_CHUNK - GAIA_PAGE, GAIA_CHUNK + GAIA_PAGE - 1, STILL_HELD));
	dup2(real_stderr, STDERR_FILENO);
}

/* They are counted when their turn comes. */
Test(mistakes, on_streams_are_reported_too, .init = begin_reported, .fini = end)
{
	CUcontext mine = new_context(0);
	CUstream s = new_stream();
	unsigned char *p = map(RW);

	if (!cannot_queue(p, s)) {
		listen_to_stderr();
		cr_assert_eq(gaia_acquire_on(p, 2 * GAIA_PAGE, RW, s), 0);
		cr_assert_eq(gaia_release_on(p, GAIA_PAGE, s), 0);
		ok(synchronize(s));
		cr_assert_str_eq(said(), "", "nothing was wrong");
		cr_assert_eq(gaia_release_on(p, 2 * GAIA_PAGE, s), 0);
		ok(synchronize(s));
		cr_assert_str_eq(said(), line_of(0, GAIA_PAGE - 1, NOT_HELD));
		cr_assert_eq(gaia_acquire_on(p, 1, RW, s), 0);
		ok(synchronize(s));
		unmap(p);
		cr_assert_str_eq(said(), line_of(0, GAIA_PAGE - 1, STILL_HELD));
		dup2(real_stderr, STDERR_FILENO);
	} else {
		unmap(p);
	}
	end_stream(s);
	end_context(mine);
}

Test(mistakes, are_not_reported_otherwise, .init = begin, .fini = end)
{
	unsigned char *p = map(RW);

	listen_to_stderr();
	cr_assert_eq(gaia_release(p, GAIA_PAGE), 0);
	cr_assert_eq(gaia_acquire(p, GAIA_PAGE, RW), 0);
	unmap(p);
	cr_assert_str_eq(said(), "");
	dup2(real_stderr, STDERR_FILENO);
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
	must(!at || gaia_munmap(at, LENGTH) == 0, "it was unmapped");
	end_stream(stream);
	end_context(ctx);
	end();
}

#define on_stream(suite, name, ...) \
	Test(suite, name, .init = begin_stream, .fini = end_stream_scene __VA_OPT__(,) __VA_ARGS__)

/* What needs acquires and releases on streams. */
#define on_queue(suite, name, ...)                               \
	static void suite##_##name(void);                        \
	on_stream(suite, name __VA_OPT__(,) __VA_ARGS__)         \
	{                                                        \
		if (!cannot_queue(at, stream))                   \
			suite##_##name();                        \
	}                                                        \
	static void suite##_##name(void)

on_stream(unmapping, waits_for_the_work_that_uses_it)
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

on_queue(unmapping, waits_for_what_is_queued)
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

/* ---- while the mount may go to another daemon (client_moves.c has what comes then) ---- */

static struct control_movers look(void)
{
	struct control_movers who;

	control_move_look(fake_control(), &who);
	return who;
}

/* The client has heard that for the @nth time. */
static bool is_asked(unsigned nth)
{
	struct mapping *m = mapping_of(at);
	bool asked;

	pthread_mutex_lock(&gaia_lock);
	asked = m->conn->move == MOVE_ASKED && m->conn->asked == nth;
	pthread_mutex_unlock(&gaia_lock);
	mapping_put(m);
	return asked;
}

static void ask_it(unsigned nth)
{
	while (!is_asked(nth)) {
		/* Not while another thread is sending to it. */
		control_move_ask(fake_control());
		usleep(1000);
	}
}

static atomic_int waiter;

static void *acquire_on(void *arg)
{
	waiter = gettid();
	return (void *)(intptr_t)gaia_acquire_on(at, LENGTH, RW, stream);
}

on_queue(moving, waits_for_what_is_queued_and_no_more_is)
{
	unsigned char byte = 0;
	pthread_t thread;
	struct work w;
	void *result;

	/* So that all is mapped by then: the driver may wait for the stream. */
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	cr_assert_eq(gaia_release(at, LENGTH), 0);
	launch(&w, stream, &byte, 7);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	control_move_to(fake_control(), GAIA_FEATURES);
	ask_it(1);
	/* After a moment it is asked again: then who holds something waits, too. */
	control_move_stay(fake_control());
	ask_it(2);
	cr_assert_eq(pthread_create(&thread, NULL, acquire_on, NULL), 0);
	while (!waiter || !thread_sleeps(waiter))
		sched_yield();
	cr_assert_eq(fake_seen().pins, 1, "one more was announced");
	cr_assert_eq(fake_seen().acquires, 1);
	sem_post(&w.go);
	ok(synchronize(stream));
	cr_assert_eq(fake_seen().acquires, 2);
	/* The played cache knows of no holds but those that are announced. */
	while (look().busy)
		usleep(1000);
	cr_assert_eq(look().staying, 0);
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
	ok(synchronize(stream));
	cr_assert_eq(fake_seen().releases, 2);
	cr_assert_eq(fake_seen().acquires, 2);
	control_move_stay(fake_control());
	pthread_join(thread, &result);
	cr_assert_null(result);
	ok(synchronize(stream));
	cr_assert_eq(fake_seen().acquires, 3);
	cr_assert_eq(gaia_release(at, LENGTH), 0);
}

/* ---- what calls cost ---- */

/* Calls of the driver by the library: of each entry point, and by what is left over of no other. */
struct cost {
	const char *entry;
	unsigned calls;
};

#define COSTS_MOST 16

static struct {
	unsigned all, of[COSTS_MOST];
} so_far;

static void costs_begin(const struct cost *cost)
{
	so_far.all = fake_cuda_calls();
	for (unsigned i = 0; i < COSTS_MOST && cost[i].entry; i++)
		so_far.of[i] = fake_cuda_calls_of(cost[i].entry);
}

static void costs_end(const char *what, const struct cost *cost)
{
	unsigned all = 0, n;

	for (unsigned i = 0; i < COSTS_MOST && cost[i].entry; i++) {
		n = fake_cuda_calls_of(cost[i].entry) - so_far.of[i];
		cr_assert_eq(n, cost[i].calls, "%s: %u of %s, expected %u", what, n, cost[i].entry, cost[i].calls);
		all += n;
	}
	n = fake_cuda_calls() - so_far.all;
	cr_assert_eq(n, all, "%s: %u calls, of which %u were expected", what, n, all);
}

#define COSTS(call, ...)                                                          \
	do {                                                                      \
		const struct cost cost_[COSTS_MOST + 1] = { __VA_ARGS__ };        \
		costs_begin(cost_);                                               \
		cr_assert_eq(call, 0);                                            \
		costs_end(#call, cost_);                                          \
	} while (0)

/* Groups of calls in the mapping's context, which captures elsewhere do not mind. */
#define SCOPES(n)                                                                              \
	{ "cuThreadExchangeStreamCaptureMode", 2 * (n) }, { "cuCtxPushCurrent", n }, { "cuCtxPopCurrent", n }

/* Chunks that were handed over, in @runs runs. */
#define MAPPING(chunks, runs)                                                                                    \
	{ "cuMemImportFromShareableHandle", chunks }, { "cuMemMap", chunks }, { "cuMemRelease", chunks },         \
	{ "cuMemSetAccess", runs }

/* Of chunks side by side by one call. */
static unsigned unmaps(unsigned chunks)
{
	return fake_cuda_mode()->single_unmaps && chunks > 1 ? 1 + chunks : 1;
}

on_stream(costs, what_is_mapped_is_acquired_and_released_without_the_driver)
{
	struct gaia_range list[] = { { at, GAIA_PAGE }, { at + 2 * GAIA_CHUNK, GAIA_CHUNK } };

	COSTS(gaia_acquire(at, LENGTH, RW), MAPPING(CHUNKS, 1), SCOPES(1));
	COSTS(gaia_release(at, LENGTH), { NULL });
	COSTS(gaia_acquire(at, LENGTH, PROT_READ), { NULL });
	COSTS(gaia_release(at, LENGTH), { NULL });
	COSTS(gaia_acquirev(list, 2, RW), { NULL });
	COSTS(gaia_releasev(list, 2), { NULL });
	COSTS(gaia_sync(at, LENGTH), { NULL });
}

on_stream(costs, what_is_mapped_gets_access_run_by_run)
{
	COSTS(gaia_acquire(at + GAIA_CHUNK, GAIA_CHUNK, RW), MAPPING(1, 1), SCOPES(1));
	/* Those on both sides of it. */
	COSTS(gaia_acquire(at, LENGTH, RW), MAPPING(CHUNKS - 1, 2), SCOPES(2));
	cr_assert_eq(gaia_release(at, LENGTH), 0);
	cr_assert_eq(gaia_release(at + GAIA_CHUNK, GAIA_CHUNK), 0);
}

on_stream(costs, what_is_taken_back_goes_by_one_unmapping_a_run)
{
	uint64_t id = fake_seen().map_id;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	cr_assert_eq(gaia_release(at, LENGTH), 0);
	COSTS(fake_revoke(id, 1), { "cuMemUnmap", 1 }, SCOPES(1));
	COSTS(gaia_acquire(at, LENGTH, RW), MAPPING(1, 1), SCOPES(1));
	cr_assert_eq(gaia_release(at, LENGTH), 0);
}

on_queue(costs, on_a_stream_are_two_commands)
{
	static const struct cost queued[COSTS_MOST + 1] = {
		{ "cuThreadExchangeStreamCaptureMode", 2 }, { "cuCtxGetCurrent", 1 },	{ "cuStreamGetCtx", 1 },
		{ "cuStreamIsCapturing", 1 },		    { "cuLaunchHostFunc", 1 },	{ "cuStreamWaitValue32", 1 },
	};

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	cr_assert_eq(gaia_release(at, LENGTH), 0);
	for (unsigned i = 0; i < 3; i++) {
		costs_begin(queued);
		cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
		costs_end("an acquire on a stream", queued);
		costs_begin(queued);
		cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
		costs_end("a release on a stream", queued);
	}
	ok(synchronize(stream));
}

/* Nor on what of it is mapped, if that lies together. */
on_stream(costs, of_a_mapping_do_not_depend_on_its_length)
{
	unsigned calls[2][2], before;
	unsigned char *p;

	for (unsigned i = 0; i < 2; i++) {
		size_t length = i ? LENGTH : GAIA_CHUNK;

		before = fake_cuda_calls();
		p = gaia_mmap(length, RW, file, 0, gpu);
		cr_assert_neq(p, MAP_FAILED);
		calls[i][0] = fake_cuda_calls() - before;
		cr_assert_eq(gaia_acquire(p, length, RW), 0);
		cr_assert_eq(gaia_release(p, length), 0);
		before = fake_cuda_calls();
		cr_assert_eq(gaia_munmap(p, length), 0);
		calls[i][1] = fake_cuda_calls() - before;
	}
	cr_assert_eq(calls[0][0], calls[1][0]);
	cr_assert_eq(calls[1][1] - calls[0][1], unmaps(CHUNKS) - 1);
}

/* ---- a driver that waits ---- */

static void *acquire_all(void *arg)
{
	return (void *)(intptr_t)gaia_acquire(at, LENGTH, RW);
}

static void *unmap_all(void *arg)
{
	return (void *)(intptr_t)gaia_munmap(at, LENGTH);
}

static void *revoke_one(void *arg)
{
	return (void *)(intptr_t)fake_revoke(*(uint64_t *)arg, 1);
}

static void join(pthread_t thread)
{
	void *result;

	cr_assert_eq(pthread_join(thread, &result), 0);
	cr_assert_null(result);
}

static void begin_unmap_waits(void)
{
	modes.unmap_waits = true;
	begin_stream();
}

Test(waiting, for_streams_keeps_nobody_else, .init = begin_unmap_waits, .fini = end_stream_scene,
     .timeout = 60)
{
	uint64_t id = fake_seen().map_id;
	unsigned char *other;
	pthread_t thread;
	struct work w;
	int status;
	pid_t pid;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, stream, at, 5);
	cr_assert_eq(pthread_create(&thread, NULL, revoke_one, &id), 0);
	while (!fake_cuda_waiting())
		sched_yield();
	/* The connection's thread unmaps, and waits for the kernel. */
	if (!cannot_queue(at, stream)) {
		cr_assert_eq(gaia_release_on(at, GAIA_CHUNK, stream), 0);
		cr_assert_eq(gaia_acquire_on(at, GAIA_CHUNK, RW, stream), 0);
	}
	cr_assert_eq(gaia_sync(at, LENGTH), 0);
	other = gaia_mmap(LENGTH, RW, file, 0, 0);
	cr_assert_neq(other, MAP_FAILED);
	unmap(other);
	pid = fork();
	if (pid == 0)
		_exit(0);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(fake_cuda_waiting(), 1);
	sem_post(&w.go);
	join(thread);
	ok(synchronize(stream));
	cr_assert_not(fake_cuda_usable(at + GAIA_CHUNK, 1));
}

on_stream(waiting, to_map_leaves_children_no_descriptors, .timeout = 60)
{
	struct mapping *m = mapping_of(at);
	int status, fd[CHUNKS];
	pthread_t thread;
	pid_t pid;

	access_gate.armed = true;
	cr_assert_eq(pthread_create(&thread, NULL, acquire_all, NULL), 0);
	sem_wait(&access_gate.entered);
	pthread_mutex_lock(&gaia_lock);
	cr_assert_eq(m->conn->n_fds, CHUNKS);
	memcpy(fd, m->conn->fd, sizeof(fd));
	pthread_mutex_unlock(&gaia_lock);
	pid = fork();
	if (pid == 0) {
		for (unsigned i = 0; i < CHUNKS; i++)
			if (fcntl(fd[i], F_GETFD) >= 0)
				_exit(1);
		_exit(0);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
	access_gate.armed = false;
	sem_post(&access_gate.leave);
	join(thread);
	mapping_put(m);
	cr_assert(fake_cuda_usable(at, LENGTH));
}

on_stream(waiting, to_map_keeps_the_addresses, .timeout = 60)
{
	pthread_t acquirer, unmapper;
	struct mapping *m;

	access_gate.armed = true;
	cr_assert_eq(pthread_create(&acquirer, NULL, acquire_all, NULL), 0);
	sem_wait(&access_gate.entered);
	cr_assert_eq(pthread_create(&unmapper, NULL, unmap_all, NULL), 0);
	while ((m = mapping_of(at))) {
		mapping_put(m);
		sched_yield();
	}
	/* If it did not wait, it would be done about now, and access be set to what is gone. */
	usleep(20000);
	access_gate.armed = false;
	sem_post(&access_gate.leave);
	join(acquirer);
	join(unmapper);
	at = NULL;
}

/* While armed, the daemon's answer to an ACQUIRE posts entered and waits for leave. */
static struct {
	bool armed;
	sem_t entered, leave;
} answer_gate;

static int ioctl_with_gate(int fd, unsigned long request, void *arg)
{
	int rc = fake_ioctl(fd, request, arg);

	if (request == GAIA_IOC_ACQUIRE && answer_gate.armed) {
		sem_post(&answer_gate.entered);
		sem_wait(&answer_gate.leave);
	}
	return rc;
}

static void *acquire_in_vain(void *arg)
{
	int err = gaia_acquire(at, LENGTH, RW) ? errno : 0;

	return (void *)(intptr_t)err;
}

/* The daemon has said yes, as the driver took its time, before it fails: nobody may believe the daemon. */
on_stream(waiting, to_map_in_vain_fails_what_was_said_to_have_succeeded)
{
	pthread_t thread;
	void *err;

	sem_init(&answer_gate.entered, 0, 0);
	sem_init(&answer_gate.leave, 0, 0);
	wire_sys.ioctl = ioctl_with_gate;
	access_gate.armed = answer_gate.armed = true;
	fake_cuda_fail("cuMemSetAccess", 1, CUDA_ERROR_OUT_OF_MEMORY, false);
	cr_assert_eq(pthread_create(&thread, NULL, acquire_in_vain, NULL), 0);
	sem_wait(&access_gate.entered);
	sem_wait(&answer_gate.entered);
	access_gate.armed = answer_gate.armed = false;
	sem_post(&access_gate.leave);
	sem_wait(&fake_unmapped);
	sem_post(&answer_gate.leave);
	cr_assert_eq(pthread_join(thread, &err), 0);
	cr_assert_eq((intptr_t)err, ENOTCONN, "%s", strerror((int)(intptr_t)err));
}

static void begin_map_waits(void)
{
	modes.map_waits = true;
	begin_stream();
}

Test(waiting, to_map_what_a_file_has_grown_by_holds_no_stream_up, .init = begin_map_waits,
     .fini = end_stream_scene, .timeout = 60)
{
	if (cannot_queue(at, stream))
		return;
	fake_chunks = 2;
	fake_gate.armed = true;
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	sem_wait(&fake_gate.entered);
	/* Now the acquire brings chunks that were not announced; mapping them waits for the stream. */
	fake_chunks = 0;
	fake_gate.armed = false;
	sem_post(&fake_gate.leave);
	ok(synchronize(stream));
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	cr_assert(fake_cuda_usable(at, LENGTH));
}

/* ---- in the order of a stream ---- */

on_queue(on, an_acquire_comes_when_the_stream_comes_to_it)
{
	struct work before, after;

	/* A driver may wait for the stream to map what is not there. */
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&before, stream, at, 1);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	launch(&after, stream, at + GAIA_CHUNK, 2);
	sem_wait(&before.started);
	cr_assert_eq(fake_seen().acquires, 1);
	cr_assert_eq(fake_seen().pins, 1);
	sem_post(&before.go);
	sem_wait(&after.started);
	cr_assert_eq(fake_seen().acquires, 2);
	cr_assert_eq(fake_seen().pins, 0);
	sem_post(&after.go);
	ok(synchronize(stream));
}

on_queue(on, an_acquire_has_mapped_all_before_the_stream_waits)
{
	fake_gate.armed = true;
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	cr_assert(fake_cuda_usable(at, LENGTH));
	cr_assert_eq(fake_seen().acquires, 0);
	cr_assert_eq(fake_seen().pins, 1);
	sem_wait(&fake_gate.entered);
	fake_gate.armed = false;
	sem_post(&fake_gate.leave);
	ok(synchronize(stream));
}

/* Calls that CUDA may have wait for all streams. */
static unsigned calls_that_may_wait(void)
{
	static const char *const names[] = { "cuMemHostRegister", "cuMemHostUnregister", "cuMemHostAlloc",
					     "cuMemFreeHost", "cuMemAlloc", "cuMemFree", "cuMemMap",
					     "cuMemUnmap", "cuMemSetAccess", "cuMemRelease",
					     "cuStreamSynchronize", "cuCtxSynchronize" };
	unsigned calls = 0;

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		calls += fake_cuda_calls_of(names[i]);
	return calls;
}

on_queue(on, queueing_makes_no_call_that_may_wait_for_streams)
{
	struct work w;
	unsigned calls;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, stream, at, 1);
	calls = calls_that_may_wait();
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	cr_assert_eq(calls_that_may_wait(), calls);
	sem_post(&w.go);
	ok(synchronize(stream));
}

static void begin_without_pins(void)
{
	modes.no_pins = true;
	begin_stream();
}

Test(on, needs_host_memory_that_all_else_does_not, .init = begin_without_pins, .fini = end_stream_scene)
{
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	cr_assert_eq(gaia_release(at, LENGTH), 0);
	cr_assert(cannot_queue(at, stream));
}

on_queue(on, an_acquire_does_not_keep_the_caller_and_work_behind_it_sees_what_it_brought)
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

on_queue(on, a_release_comes_after_the_work_before_it_and_is_done_with_the_stream)
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

on_queue(on, the_default_stream_needs_no_current_context)
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
	cr_assert_eq(gaia_acquire_on(at, LENGTH, PROT_NONE, stream), -1);
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

on_queue(on, to_overwrite)
{
	cr_assert_eq(gaia_acquire_on(at, LENGTH, PROT_WRITE, stream), 0);
	ok(synchronize(stream));
	cr_assert_gt(fake_seen().acquires, 0);
	cr_assert_eq(fake_seen().prot & RW, PROT_WRITE);
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

/* ---- captures ---- */

static void begin_capture(CUstream s)
{
	ok(ENTRY(cuStreamBeginCapture, CUstream, CUstreamCaptureMode)(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

/* Nothing has spoilt it. */
static void end_capture(CUstream s)
{
	CUgraph graph;

	ok(ENTRY(cuStreamEndCapture, CUstream, CUgraph *)(s, &graph));
	ok(ENTRY(cuGraphDestroy, CUgraph)(graph));
}

static CUstreamCaptureMode capture_mode(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL, ignored;

	ok(ENTRY(cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode *)(&mode));
	ignored = mode;
	ok(ENTRY(cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode *)(&ignored));
	return mode;
}

on_stream(captured, streams_are_refused_and_left_alone)
{
	begin_capture(stream);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, NULL), -1, "the default stream would join in");
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(fake_seen().pins, 0);
	end_capture(stream);
}

/* All but unmapping, which waits for the context; in a thread that does not know of any capture. */
static void *use_everything(void *arg)
{
	unsigned char *p = map(RW);
	uint64_t id = fake_seen().map_id;

	cr_assert_eq(gaia_acquire(p, LENGTH, RW), 0);
	cr_assert_eq(gaia_release(p, LENGTH), 0);
	cr_assert_eq(fake_revoke(id, 1), 0);
	if (!cannot_queue(p, stream)) {
		cr_assert_eq(gaia_acquire_on(p, LENGTH, RW, stream), 0);
		cr_assert_eq(gaia_release_on(p, LENGTH, stream), 0);
	}
	cr_assert_eq(gaia_sync(p, LENGTH), 0);
	cr_assert_eq(capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL, "as it was");
	return p;
}

static void use_while_captured(bool other_thread)
{
	CUstream other = new_stream();
	pthread_t thread;
	void *p;

	begin_capture(other);
	if (other_thread) {
		cr_assert_eq(pthread_create(&thread, NULL, use_everything, NULL), 0);
		pthread_join(thread, &p);
	} else {
		p = use_everything(NULL);
	}
	end_capture(other);
	ok(synchronize(stream));
	unmap(p);
	end_stream(other);
}

static void begin_primary(void)
{
	/* A mapping that another thread makes is of the primary context. */
	begin();
	ok(ENTRY(cuInit, unsigned)(0));
	ok(ENTRY(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&ctx, 0));
	ok(ENTRY(cuCtxPushCurrent, CUcontext)(ctx));
	stream = new_stream();
}

static void end_primary(void)
{
	end_stream(stream);
	ok(ENTRY(cuDevicePrimaryCtxRelease, CUdevice)(0));
	end();
}

Test(captured, streams_of_another_thread_are_not_disturbed, .init = begin_primary,
     .fini = end_primary)
{
	use_while_captured(true);
}

Test(captured, streams_of_the_calling_thread_are_not_disturbed, .init = begin_primary,
     .fini = end_primary)
{
	use_while_captured(false);
}

on_stream(captured, contexts_cannot_be_waited_for)
{
	CUstream other = new_stream();
	CUgraph graph;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	begin_capture(other);
	cr_assert_eq(gaia_munmap(at, LENGTH), -1);
	cr_assert_eq(errno, EBUSY);
	end_capture(other);
	cr_assert(fake_cuda_usable(at, LENGTH), "nothing has changed");
	if (!cannot_queue(at, stream))
		cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
	end_stream(other);

	/* Nobody can tell beforehand, here; the capture is lost, as the documentation says. */
	ok(ENTRY(cuStreamCreate, CUstream *, unsigned)(&other, CU_STREAM_NON_BLOCKING));
	begin_capture(other);
	cr_assert_eq(gaia_munmap(at, LENGTH), -1);
	cr_assert_eq(errno, EBUSY);
	cr_assert_neq(ENTRY(cuStreamEndCapture, CUstream, CUgraph *)(other, &graph), CUDA_SUCCESS);
	end_stream(other);
	cr_assert_eq(fake_seen().unmaps, 0);
}

/* ---- and again streams ---- */

on_queue(on, a_device_that_cannot_wait_has_the_caller_wait)
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

on_queue(on, many_are_queued_and_too_many_refused)
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

on_queue(on, streams_do_not_wait_for_each_other)
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

/* A stream that is waited for in vain, once. */
static void *let_wait_fail(void *arg)
{
	sem_wait(&wait_gate.entered);
	while (fake_seen().acquires + fake_seen().releases < *(unsigned *)arg)
		sched_yield();
	sem_post(&wait_gate.leave);
	return NULL;
}

on_queue(on, what_was_carried_out_is_no_error_though_the_stream_cannot_be_waited_for, .timeout = 60)
{
	CUstream other = new_stream();
	unsigned wanted = 2;
	pthread_t thread;
	struct work w;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, other, at, 5);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, other), 0);
	wait_gate.armed = wait_gate.synchronizes = true;
	wait_gate.result = CUDA_ERROR_ILLEGAL_ADDRESS;
	cr_assert_eq(pthread_create(&thread, NULL, let_wait_fail, &wanted), 0);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	pthread_join(thread, NULL);
	wait_gate.armed = false;
	cr_assert_eq(fake_seen().pins, 1, "the other's is still to come");
	sem_post(&w.go);
	ok(synchronize(other));
	cr_assert_eq(fake_seen().acquires, 3);
	cr_assert_eq(fake_seen().pins, 0);
	end_stream(other);
}

on_queue(on, what_failed_is_not_carried_out_later, .timeout = 60)
{
	struct work w;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, stream, at, 5);
	wait_gate.armed = true;
	wait_gate.result = CUDA_ERROR_ILLEGAL_ADDRESS;
	sem_post(&wait_gate.leave);
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), -1);
	cr_assert_eq(errno, EIO);
	cr_assert_eq(fake_seen().pins, 0);
	sem_post(&wait_gate.leave);
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), -1);
	cr_assert_eq(errno, EIO);
	wait_gate.armed = false;
	/* The stream comes to them after all, and then to this. */
	cr_assert_eq(gaia_release_on(at, 1, stream), 0);
	sem_post(&w.go);
	ok(synchronize(stream));
	cr_assert_eq(fake_seen().acquires, 1);
	cr_assert_eq(fake_seen().releases, 1);
	cr_assert_eq(fake_seen().pins, 0);
}

static void *acquire_on_all(void *arg)
{
	ok(ENTRY(cuCtxSetCurrent, CUcontext)(ctx));
	return (void *)(intptr_t)gaia_acquire_on(at, LENGTH, RW, stream);
}

#define MARK 0x6d61726bu

/* Whether the page is there that was marked: another thread may map its own where that was. */
static bool marked(const uint32_t *word)
{
	uint32_t seen = 0;
	int fd[2];

	cr_assert_eq(pipe2(fd, O_CLOEXEC), 0);
	/* A system call may be given any address, and past sanitizers: they would take it for an access of ours. */
	if (syscall(SYS_write, fd[1], word, sizeof(*word)) == sizeof(*word))
		cr_assert_eq(read(fd[0], &seen, sizeof(seen)), sizeof(seen));
	close(fd[0]);
	close(fd[1]);
	return seen == MARK;
}

/* A caller that waits in a stream's stead has not looked yet when the mapping ends, and its flags with it. */
on_queue(on, a_mapping_may_end_while_a_caller_waits_in_a_streams_stead, .timeout = 60)
{
	uint32_t *last = own(at)->flag + CUDA_FLAGS - 1; /* no turn comes to have it */
	pthread_t thread;

	*last = MARK;
	cr_assert(marked(last));
	wait_gate.armed = wait_gate.synchronizes = true;
	cr_assert_eq(pthread_create(&thread, NULL, acquire_on_all, NULL), 0);
	sem_wait(&wait_gate.entered);
	while (fake_seen().pins)
		sched_yield();
	unmap(at);
	at = NULL;
	cr_assert_not(marked(last), "the flags are gone");
	sem_post(&wait_gate.leave);
	join(thread);
	wait_gate.armed = false;
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

on_queue(late, errors_are_reported_by_the_next_call)
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

on_queue(late, errors_can_be_asked_for_and_no_call_is_lost)
{
	unsigned before;

	fake_errors.release = -EIO;
	cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	cr_assert_eq(gaia_release_on(at + GAIA_PAGE, GAIA_PAGE, stream), 0);
	ok(synchronize(stream));
	fake_errors.release = 0;
	before = done_so_far();
	cr_assert_eq(gaia_stream_error(at + LENGTH - 1), EIO);
	cr_assert(strstr(gaia_last_error_text(), "bytes 4096 to 8191 of "), "%s", gaia_last_error_text());
	cr_assert(strstr(gaia_last_error_text(), "gaia_release_on()"), "%s", gaia_last_error_text());
	cr_assert_eq(gaia_stream_error(at), 0);
	cr_assert_eq(done_so_far(), before);
	cr_assert_eq(gaia_sync(at, LENGTH), 0);
	cr_assert_eq(done_so_far(), before + 1, "the call was not lost");
}

on_queue(late, errors_that_a_call_reports_are_said_to_be_earlier_ones)
{
	fake_errors.release = -EIO;
	cr_assert_eq(gaia_release_on(at + GAIA_PAGE, GAIA_PAGE, stream), 0);
	ok(synchronize(stream));
	fake_errors.release = 0;
	cr_assert_eq(gaia_sync(at, GAIA_PAGE), -1);
	cr_assert(strstr(gaia_last_error_text(), "this call has done nothing, because an earlier gaia_release_on() of bytes 4096 to 8191"), "%s",
		  gaia_last_error_text());
}

on_queue(late, errors_are_reported_by_unmapping_which_unmaps)
{
	fake_errors.release = -EIO;
	cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
	cr_assert_eq(gaia_munmap(at, LENGTH), -1);
	cr_assert_eq(errno, EIO);
	cr_assert_eq(fake_seen().live, 0);
	at = NULL;
}

on_queue(late, too_many_ranges_are_called_by_another_name)
{
	fake_errors.acquire = -ENOSR;
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), -1);
	cr_assert_eq(errno, ENOBUFS);
	fake_errors.acquire = 0;
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	fake_errors.release = -ENOSR;
	cr_assert_eq(gaia_release(at, LENGTH), -1);
	cr_assert_eq(errno, ENOBUFS);
	fake_errors.release = 0;
	cr_assert_eq(gaia_release(at, LENGTH), 0);
}

on_queue(late, errors_the_first_is_kept)
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

on_queue(late, errors_are_of_one_mapping)
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

on_queue(late, memory_of_a_failed_acquire_is_there_for_what_is_queued_behind)
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
	if (!cannot_queue(at, stream)) {
		cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
		cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	}
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

on_queue(late, streams_are_let_go_when_the_client_is_disconnected)
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

/* ---- contexts that the program resets ---- */

static uint32_t *word; /* in page-locked memory; a stream waits for it */

static void reset(void)
{
	ok(ENTRY(cuDevicePrimaryCtxReset, CUdevice)(0));
}

/* A stream that will never come to a release that is queued on it. */
static void begin_stuck(void)
{
	begin_primary();
	ok(ENTRY(cuMemHostAlloc, void **, size_t, unsigned)((void **)&word, GAIA_PAGE, 0));
	at = map(RW);
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	ok(ENTRY(cuStreamWaitValue32, CUstream, CUdeviceptr, cuuint32_t,
		 unsigned)(stream, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_EQ));
	if (!cannot_queue(at, stream))
		cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
}

static void end_stuck(void)
{
	must(fake_seen().releases == 0, "the stream never came to it");
	must(fake_seen().live == 0, "the daemon knows of no mapping");
	ok(ENTRY(cuDevicePrimaryCtxRelease, CUdevice)(0));
	end();
}

Test(resetting, leaves_a_mapping_that_can_be_ended, .init = begin_stuck, .fini = end_stuck,
     .timeout = 60)
{
	reset();
	unmap(at);
}

/* Its streams are others: waiting for them says nothing of what was queued before. */
Test(resetting, and_using_the_device_again_leaves_a_mapping_that_can_be_ended, .init = begin_stuck,
     .fini = end_stuck, .timeout = 60)
{
	reset();
	ok(ENTRY(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&ctx, 0));
	stream = new_stream();
	ok(synchronize(stream));
	unmap(at);
	end_stream(stream);
	ok(ENTRY(cuDevicePrimaryCtxRelease, CUdevice)(0));
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

static void fail_in_turn(CUresult result)
{
	unsigned nth = 0;
	bool failed;

	begin();
	do {
		ctx = new_context(0);
		stream = new_stream();
		fake_cuda_fail(NULL, ++nth, result, false);
		do_everything();
		failed = fake_cuda_failed();
		end_stream(stream);
		end_context(ctx);
		cr_assert_null(fake_cuda_violation(), "call %u", nth);
		cr_assert_eq(fake_cuda_alive(true), 0, "call %u", nth);
		cr_assert_eq(capture_mode(), CU_STREAM_CAPTURE_MODE_GLOBAL, "call %u", nth);
	} while (failed);
	cr_assert_gt(nth, 40);
	end();
}

enum outcome { FAILED, DID_NOT_FAIL, WRONG };

static enum outcome break_at(unsigned nth)
{
	bool failed;

	ctx = new_context(0);
	stream = new_stream();
	fake_cuda_fail(NULL, nth, CUDA_ERROR_ILLEGAL_ADDRESS, true);
	do_everything();
	failed = fake_cuda_failed();
	ENTRY(cuStreamDestroy, CUstream)(stream);
	ENTRY(cuCtxDestroy, CUcontext)(ctx);
	if (fake_cuda_violation() || (!fake_cuda_mode()->broken_frees && fake_cuda_alive(true)))
		return WRONG;
	return failed ? FAILED : DID_NOT_FAIL;
}

/* Where nothing is given back nobody can go on but in a new process. */
static enum outcome break_in_child(unsigned nth)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		begin();
		_exit(break_at(nth));
	}
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return WRONG;
	return WEXITSTATUS(status);
}

static void break_in_turn(void)
{
	enum outcome outcome;
	unsigned nth = 0;

	if (!fake_cuda_mode()->broken_frees)
		begin();
	do {
		nth++;
		if (fake_cuda_mode()->broken_frees) {
			outcome = break_in_child(nth);
		} else {
			outcome = break_at(nth);
			fake_cuda_reset(&one_gpu);
		}
		cr_assert_neq(outcome, WRONG, "call %u", nth);
	} while (outcome == FAILED);
	cr_assert_gt(nth, 40);
	if (!fake_cuda_mode()->broken_frees)
		end();
}

Test(driver, may_fail_anywhere_once, .timeout = 60)
{
	fail_in_turn(CUDA_ERROR_UNKNOWN);
}

Test(driver, may_run_out_of_memory_anywhere, .timeout = 60)
{
	fail_in_turn(CUDA_ERROR_OUT_OF_MEMORY);
}

Test(driver, may_break_for_good_anywhere, .timeout = 60)
{
	break_in_turn();
}

static void end_broken(void)
{
	end_stream(stream);
	ENTRY(cuCtxDestroy, CUcontext)(ctx);
	close(file);
	fake_stop();
	must(!fake_cuda_violation(), "no rule was broken");
	must(fake_cuda_mode()->broken_frees || fake_cuda_alive(true) == 0, "all was given back");
}

Test(driver, that_breaks_with_work_queued_hangs_nobody, .init = begin_stream, .fini = end_broken)
{
	struct work w;

	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	launch(&w, stream, at, 1);
	fake_cuda_fail_later(1, CUDA_ERROR_ILLEGAL_ADDRESS);
	ok(fake_cuda_launch(stream, nothing, NULL));
	if (!cannot_queue(at, stream)) {
		cr_assert_eq(gaia_release_on(at, LENGTH, stream), 0);
		cr_assert_eq(gaia_acquire_on(at, LENGTH, RW, stream), 0);
	}
	sem_post(&w.go);
	cr_assert_neq(synchronize(stream), CUDA_SUCCESS);
	unmap(at);
	cr_assert_eq(fake_seen().releases, 0);
}
