/*
 * client_detect.c - tests of client/detect.c and cuda_detect.c: what the library tells the daemon of changes (GAIA_DETECT=client), on a GPU that a
 * fake driver plays, with the daemon's side of clients over a played cache. The kernel is played too, with the same hash; the kernel itself is
 * in client_detect_kernel.c.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../client/cuda_client.h"
#include "../../client/cuda_detect.h"
#include "base/log.h"
#include "fake_cuda.h"
#include "fake_daemon.h"
#include "gaia/client.h"
#include "gaia/cuda.h"

#define RW (PROT_READ | PROT_WRITE)
#define CHUNKS 4
#define LENGTH ((size_t)CHUNKS * GAIA_CHUNK)
#define AT(page) ((size_t)(page) * GAIA_PAGE)

#define ENTRY(name, ...) ((CUresult(*)(__VA_ARGS__))fake_cuda_entry(#name))

static void ok(CUresult r)
{
	cr_assert_eq(r, CUDA_SUCCESS);
}

/* What cuda_detect.cu does. */
static void detect(void *parameter, unsigned blocks, unsigned threads)
{
	struct detect_work *w = parameter;

	if (threads != DETECT_WARPS * 32 || blocks * DETECT_PAGES_A_BLOCK < w->n_pages)
		abort();
	for (uint32_t number = 0; number < w->n_pages; number++) {
		uint32_t page = detect_page_of(w, number);
		const char *at = w->base + AT(page);
		struct page_hash now;

		/* On a GPU this would end the context: as good as a broken rule, and seen when the scene ends. */
		if (!fake_cuda_usable(at, GAIA_PAGE) || !fake_cuda_usable(&w->hash[page], sizeof(now)) ||
		    (w->changed && !fake_cuda_usable(&w->changed[page], 1)))
			abort();
		now = page_hash(at);
		if (w->changed)
			w->changed[page] = now.low != w->hash[page].low || now.high != w->hash[page].high;
		else
			w->hash[page] = now;
	}
}

static int push(int fd, off_t off, off_t len)
{
	return 0;
}

static int file;
static unsigned gpu;
static CUcontext ctx;
static CUstream stream, other;
static unsigned char *at;
static struct fake_cuda_config modes;

static void begin(void)
{
	struct fake_cuda_config config = modes;
	unsigned char uuid[16];

	config.n_devices = 1;
	config.memory = 64 << 20;
	setenv("GAIA_DETECT", "client", 1);
	log_set_level(LOG_LEVEL_ERROR);
	fake_cuda_reset(&config);
	fake_cuda_kernel(DETECT_KERNEL, detect, sizeof(struct detect_work));
	cuda_lookup = fake_cuda_entry;
	wire_sys.ioctl = fake_ioctl;
	wire_sys.push = push;
	fake_start();
	file = fake_file();
	fake_cuda_uuid(0, uuid);
	gpu = fake_device("cuda", uuid);
	ok(ENTRY(cuInit, unsigned)(0));
	ok(ENTRY(cuCtxCreate_v2, CUcontext *, unsigned, CUdevice)(&ctx, 0, 0));
	ok(ENTRY(cuStreamCreate, CUstream *, unsigned)(&stream, 0));
	ok(ENTRY(cuStreamCreate, CUstream *, unsigned)(&other, 0));
	at = gaia_mmap(LENGTH, RW, file, 0, (int)gpu);
	cr_assert_neq(at, MAP_FAILED);
}

static void end(void)
{
	if (at)
		cr_assert_eq(gaia_munmap(at, LENGTH), 0);
	ok(ENTRY(cuStreamDestroy, CUstream)(stream));
	ok(ENTRY(cuStreamDestroy, CUstream)(other));
	ok(ENTRY(cuCtxDestroy, CUcontext)(ctx));
	close(file);
	fake_stop();
	if (fake_cuda_violation() || fake_cuda_alive(true) > 0) {
		fprintf(stderr, "when a scene ended: %s\n", fake_cuda_violation());
		abort();
	}
}

TestSuite(told, .init = begin, .fini = end);
TestSuite(queued, .init = begin, .fini = end);
TestSuite(untold, .init = begin, .fini = end);

static void synchronize(CUstream s)
{
	ok(ENTRY(cuStreamSynchronize, CUstream)(s));
}

/* A kernel of the program's. */
static void store(void *arg)
{
	unsigned char *to = *(unsigned char **)arg;

	++*to;
}

static void store_on(CUstream s, unsigned page)
{
	unsigned char *to = at + AT(page);

	ok(fake_cuda_launch_copy(s, store, &to, sizeof(to)));
}

static void acquire(unsigned page, unsigned n)
{
	cr_assert_eq(gaia_acquire(at + AT(page), AT(n), RW), 0);
}

static void release(unsigned page, unsigned n)
{
	cr_assert_eq(gaia_release(at + AT(page), AT(n)), 0);
}

static void acquire_on(CUstream s, unsigned page, unsigned n)
{
	cr_assert_eq(gaia_acquire_on(at + AT(page), AT(n), RW, s), 0);
}

static void release_on(CUstream s, unsigned page, unsigned n)
{
	cr_assert_eq(gaia_release_on(at + AT(page), AT(n), s), 0);
}

/* So many releases have told by now; the last one @n_found ranges, of which the @k-th is this. */
#define expect_told(told_, n_found_)                        \
	do {                                                \
		struct fake_cache seen_ = fake_seen();      \
		cr_assert_eq(seen_.told, told_);            \
		cr_assert_eq(seen_.n_found, n_found_);      \
	} while (0)
#define expect_found(k, page, n)                                    \
	do {                                                        \
		struct gaia_list_range r_ = fake_seen().found[k];   \
		cr_assert_eq(r_.offset, AT(page));                  \
		cr_assert_eq(r_.length, AT(n));                     \
	} while (0)

Test(told, is_what_has_changed)
{
	cr_assert(fake_seen().detects);
	acquire(0, 1024);
	at[AT(3)]++;
	at[AT(4) + 4095]++;
	at[AT(700) + 17]++;
	release(0, 1024);
	expect_told(1, 2);
	expect_found(0, 3, 2);
	expect_found(1, 700, 1);
}

Test(told, nothing_is_told_of_silent_stores)
{
	acquire(0, 8);
	at[AT(3)]++;
	at[AT(3)]--;
	release(0, 8);
	expect_told(1, 0);
	cr_assert_eq(gaia_acquire(at, AT(8), PROT_READ), 0);
	release(0, 8);
	expect_told(2, 1); /* these are not held for writing: it means nothing */
}

Test(told, ranges_end_where_the_release_ends)
{
	cr_assert_eq(gaia_acquire(at + 100, 8000, RW), 0);
	at[200]++;
	at[8000]++;
	cr_assert_eq(gaia_release(at + 100, 8000), 0);
	expect_told(1, 1);
	cr_assert_eq(fake_seen().found[0].offset, 100);
	cr_assert_eq(fake_seen().found[0].length, 8000);
}

/* What the first has published, and what not, is not known to the second. */
Test(told, pages_that_are_held_twice_count_as_changed)
{
	acquire(0, 4);
	acquire(2, 4);
	release(0, 4);
	expect_told(1, 1);
	expect_found(0, 2, 2);
	release(2, 4);
	expect_told(2, 1);
	expect_found(0, 2, 2);
	/* And are looked at again once nobody holds them. */
	acquire(0, 6);
	release(0, 6);
	expect_told(3, 0);
}

Test(told, pages_to_be_overwritten_count_as_changed)
{
	cr_assert_eq(gaia_acquire(at, AT(2), PROT_WRITE), 0);
	release(0, 2);
	expect_told(1, 1);
	expect_found(0, 0, 2);
}

Test(told, of_lists)
{
	struct gaia_range list[] = { { at + AT(9), GAIA_PAGE }, { at, AT(2) }, { at + AT(600), AT(3) } };

	cr_assert_eq(gaia_acquirev(list, 3, RW), 0);
	at[AT(1)]++;
	at[AT(602)]++;
	cr_assert_eq(gaia_releasev(list, 3), 0);
	expect_told(1, 2);
	expect_found(0, 1, 1);
	expect_found(1, 602, 1);
}

Test(told, chunks_beyond_the_end_are_not_touched)
{
	fake_chunks = 2;
	acquire(0, 4 * GAIA_CHUNK_PAGES);
	at[AT(1)]++;
	release(0, 4 * GAIA_CHUNK_PAGES);
	expect_told(1, 2);
	expect_found(0, 1, 1);
	expect_found(1, 2 * GAIA_CHUNK_PAGES, 2 * GAIA_CHUNK_PAGES);
	fake_chunks = 0;
}

Test(told, costs_a_launch)
{
	unsigned launches, syncs;

	acquire(0, 1024);
	release(0, 1024);
	launches = fake_cuda_calls_of("cuLaunchKernel");
	syncs = fake_cuda_calls_of("cuStreamSynchronize");
	acquire(0, 1024);
	cr_assert_eq(fake_cuda_calls_of("cuLaunchKernel") - launches, 1);
	release(0, 1024);
	cr_assert_eq(fake_cuda_calls_of("cuLaunchKernel") - launches, 2);
	cr_assert_eq(fake_cuda_calls_of("cuStreamSynchronize") - syncs, 2);
	cr_assert_eq(gaia_acquire(at, AT(8), PROT_READ), 0);
	release(0, 8);
	cr_assert_eq(fake_cuda_calls_of("cuLaunchKernel") - launches, 2);
}

Test(told, many_runs_take_several_launches)
{
	struct gaia_range list[DETECT_RUNS + 1];
	unsigned launches = fake_cuda_calls_of("cuLaunchKernel");

	for (unsigned i = 0; i <= DETECT_RUNS; i++)
		list[i] = (struct gaia_range){ at + AT(2 * i), GAIA_PAGE };
	cr_assert_eq(gaia_acquirev(list, DETECT_RUNS + 1, RW), 0);
	cr_assert_eq(fake_cuda_calls_of("cuLaunchKernel") - launches, 2);
	at[AT(2 * DETECT_RUNS)]++;
	cr_assert_eq(gaia_releasev(list, DETECT_RUNS + 1), 0);
	expect_told(1, 1);
	expect_found(0, 2 * DETECT_RUNS, 1);
}

/* ---- in the order of a stream ---- */

Test(queued, is_told_in_the_order_of_the_stream)
{
	acquire_on(stream, 0, 1024);
	store_on(stream, 5);
	release_on(stream, 0, 1024);
	synchronize(stream);
	expect_told(1, 1);
	expect_found(0, 5, 1);
}

/* All queued before anything is carried out, as far as the fake lets us. */
Test(queued, loops_are_sure_of_their_pages)
{
	for (unsigned i = 0; i < 4; i++) {
		acquire_on(stream, 0, 8);
		store_on(stream, i);
		release_on(stream, 0, 8);
	}
	synchronize(stream);
	expect_told(4, 1);
	expect_found(0, 3, 1);
}

Test(queued, other_streams_are_not)
{
	acquire_on(stream, 0, 8);
	/* Released behind this: the other stream comes first, for all the library knows. */
	acquire_on(other, 4, 8);
	release_on(other, 4, 8);
	synchronize(other);
	expect_told(1, 1);
	expect_found(0, 4, 4);
	release_on(stream, 0, 8);
	synchronize(stream);
	expect_told(2, 1);
	expect_found(0, 4, 4);
}

static void wait_for(void *arg)
{
	while (!atomic_load(*(atomic_bool **)arg))
		usleep(1000);
}

Test(queued, releases_under_way_make_others_unsure)
{
	static atomic_bool go;
	atomic_bool *when = &go;

	acquire_on(stream, 0, 8);
	ok(fake_cuda_launch_copy(stream, wait_for, &when, sizeof(when)));
	store_on(stream, 1);
	release_on(stream, 0, 8);
	/* The stream still stores there. */
	acquire(0, 2);
	atomic_store(&go, true);
	synchronize(stream);
	expect_told(1, 1);
	expect_found(0, 1, 1);
	release(0, 2);
	expect_told(2, 1);
	expect_found(0, 0, 2);
	acquire(0, 2);
	release(0, 2);
	expect_told(3, 0);
}

Test(queued, costs_a_launch_each)
{
	unsigned launches;

	acquire_on(stream, 0, 8);
	release_on(stream, 0, 8);
	synchronize(stream);
	launches = fake_cuda_calls_of("cuLaunchKernel");
	acquire_on(stream, 0, 8);
	cr_assert_eq(fake_cuda_calls_of("cuLaunchKernel") - launches, 1);
	release_on(stream, 0, 8);
	cr_assert_eq(fake_cuda_calls_of("cuLaunchKernel") - launches, 2);
	synchronize(stream);
}

/* ---- when the daemon is to find out itself, or everything counts as changed ---- */

Test(untold, what_was_not_hashed_counts_as_changed)
{
	/* There are hashes, but of an earlier time. */
	acquire(0, 8);
	release(0, 8);
	expect_told(1, 0);
	fake_cuda_fail("cuLaunchKernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, false);
	acquire(0, 8);
	cr_assert(fake_cuda_failed());
	release(0, 8);
	expect_told(2, 1);
	expect_found(0, 0, 8);
}

Test(untold, is_what_could_not_be_compared)
{
	acquire(0, 8);
	fake_cuda_fail("cuLaunchKernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, false);
	release(0, 8);
	cr_assert(fake_cuda_failed());
	expect_told(0, 0);
	cr_assert_eq(fake_seen().releases, 1);
}

/* The daemon has it still, with what was stored before. */
Test(untold, a_release_that_failed_has_taken_no_hold)
{
	acquire(0, 8);
	at[AT(1)]++;
	fake_errors.release = -ENOSR;
	cr_assert_eq(gaia_release(at, AT(8)), -1);
	cr_assert_eq(errno, ENOBUFS);
	fake_errors.release = 0;
	release(0, 8);
	cr_assert_eq(fake_seen().n_found, 1);
	expect_found(0, 0, 8);
}

Test(untold, is_everything_after_an_error_in_a_stream)
{
	unsigned told;

	acquire_on(stream, 0, 8);
	fake_errors.release = -ENOSR;
	release_on(stream, 0, 8);
	synchronize(stream);
	fake_errors.release = 0;
	told = fake_seen().told;
	cr_assert_eq(gaia_acquire(at, AT(8), RW), -1, "the stream's error");
	acquire(0, 8);
	release(0, 8);
	cr_assert_eq(fake_seen().told, told);
}

Test(untold, an_acquire_that_failed_holds_nothing)
{
	fake_errors.acquire = -ENOMEM;
	cr_assert_eq(gaia_acquire(at, AT(8), RW), -1);
	fake_errors.acquire = 0;
	acquire(0, 8);
	release(0, 8);
	expect_told(1, 0);
}

/* What the daemon has of the program's memory is released all the same. */
Test(broken, contexts_compare_nothing, .init = begin)
{
	acquire(0, 8);
	fake_cuda_fail_later(1, CUDA_ERROR_ILLEGAL_ADDRESS);
	store_on(stream, 1);
	cr_assert_neq(ENTRY(cuStreamSynchronize, CUstream)(stream), CUDA_SUCCESS);
	release(0, 8);
	expect_told(0, 0);
	cr_assert_eq(fake_seen().releases, 1);
	acquire(0, 8);
	release(0, 8);
	cr_assert_eq(fake_seen().n_found, 1);
	expect_found(0, 0, 8);
	cr_assert_eq(gaia_munmap(at, LENGTH), 0);
	cr_assert_null(fake_cuda_violation());
}

Test(untold, is_everything_once_an_acquire_was_started)
{
	int fd = gaia_acquire_start(at, AT(4), RW);

	cr_assert_geq(fd, 0);
	cr_assert_eq(gaia_wait(fd), 0);
	release(0, 4);
	acquire(0, 4);
	release(0, 4);
	expect_told(0, 0);
	cr_assert_eq(fake_seen().releases, 2);
}

static void without_detect(void)
{
	begin();
	cr_assert_eq(gaia_munmap(at, LENGTH), 0);
	at = NULL;
}

static void expect_untold(void)
{
	at = gaia_mmap(LENGTH, RW, file, 0, (int)gpu);
	cr_assert_neq(at, MAP_FAILED);
	cr_assert_not(fake_seen().detects);
	acquire(0, 8);
	release(0, 8);
	cr_assert_eq(fake_seen().told, 0);
}

Test(without, memory, .init = without_detect, .fini = end)
{
	fake_cuda_fail("cuMemAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY, false);
	expect_untold();
	cr_assert(fake_cuda_failed());
}

static void begin_older(void)
{
	fake_lacks = GAIA_FEATURE_DETECT;
	without_detect();
}

Test(without, a_daemon_that_knows_of_it, .init = begin_older, .fini = end)
{
	expect_untold();
}

static void *lookup_older(const char *name)
{
	return strcmp(name, "cuLibraryLoadData") ? fake_cuda_entry(name) : NULL;
}

Test(without, a_driver_that_loads_kernels_so, .init = without_detect, .fini = end)
{
	cuda_lookup = lookup_older;
	expect_untold();
}

static void begin_without_pins(void)
{
	modes.no_pins = true;
	without_detect();
}

Test(without, host_memory_for_the_answer, .init = begin_without_pins, .fini = end)
{
	expect_untold();
}
