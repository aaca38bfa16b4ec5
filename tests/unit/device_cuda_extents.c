/*
 * device_cuda_extents.c - extents of the CUDA device: what of the driver is called for them, how they share the capacity
 * with single chunks, and what becomes of them when memory or the context fails. On a fake driver. That their chunks
 * work as others do is in tests/contract/device.c.
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/stat.h>

#include "device/cuda/internal.h"
#include "device_io.h"
#include "fake_cuda_api.h"
#include "gpu_ends.h"

#define N GAIA_EXTENT_CHUNKS
#define CHUNKS (2 * N)
#define TABLES GAIA_CHUNK /* device memory that the device takes beside its capacity: armed hashes */

/* For what other threads bring about; else the suite's time runs out. */
#define until(condition)               \
	do {                           \
		while (!(condition))   \
			sched_yield(); \
	} while (0)

static struct device *dev;

static void begin_with(const struct fake_cuda_config *config, unsigned chunks)
{
	const struct cuda_config of_dev = { .capacity = chunks * (uint64_t)GAIA_CHUNK };
	struct fake_cuda_config with = *config;

	with.n_devices = with.n_devices ? with.n_devices : 1;
	with.memory = with.memory ? with.memory : 4 * CHUNKS * GAIA_CHUNK;
	fake_cuda_reset(&with);
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	cr_assert_eq(cuda_create(fake_cuda_api(), &of_dev, 4 * GAIA_PAGE, &dev), 0);
}

/* All chunks are made and cleared, or as many as the keeper keeps. */
static bool has_done_its_work(struct device *of)
{
	struct cuda *cuda = to_cuda(of);
	bool done;

	pthread_mutex_lock(&cuda->lock);
	done = !cuda->n_busy && !cuda->n_stale && !cuda->n_ended &&
	       (cuda->n_ready + cuda->n_live + cuda->n_left == cuda->n_chunks || cuda->n_ready >= N || cuda->physical_full);
	pthread_mutex_unlock(&cuda->lock);
	return done;
}

/* Nothing but what a test does is called from now on. */
static void keeper_is_done(void)
{
	until(has_done_its_work(dev));
}

/* One of the device's counts. */
static unsigned count(const unsigned *n)
{
	unsigned is;

	pthread_mutex_lock(&to_cuda(dev)->lock);
	is = *n;
	pthread_mutex_unlock(&to_cuda(dev)->lock);
	return is;
}

static void begin(void)
{
	begin_with(&(struct fake_cuda_config){ 0 }, CHUNKS);
	keeper_is_done();
}

static void end(void)
{
	dev->ops->destroy(dev);
	nothing_is_left();
}

static void free_extent(struct devmem **mem)
{
	for (unsigned k = 0; k < N; k++)
		must_free(mem[k]);
}

static unsigned n_joined(struct devmem **mem)
{
	unsigned n = 0;

	for (unsigned k = 0; k < N; k++)
		n += mem[k]->joined;
	return n;
}

static void close_export(struct devmem *mem, size_t bytes)
{
	int fd = dev->ops->export_fd(dev, mem, true);
	struct stat st;

	cr_assert_geq(fd, 0);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq((size_t)st.st_size, bytes);
	close(fd);
}

/* Calls for memory, from when they are noted. */
struct calls {
	unsigned create, map, access, clear, export, unmap, release;
};

static struct calls calls(void)
{
	return (struct calls){ fake_cuda_calls_of("cuMemCreate"), fake_cuda_calls_of("cuMemMap"),
			       fake_cuda_calls_of("cuMemSetAccess"), fake_cuda_calls_of("cuMemsetD8Async"),
			       fake_cuda_calls_of("cuMemExportToShareableHandle"), fake_cuda_calls_of("cuMemUnmap"),
			       fake_cuda_calls_of("cuMemRelease") };
}

TestSuite(extents, .timeout = 60);

/* ---- one allocation ---- */

Test(extents, are_made_as_one_chunk_is)
{
	struct devmem *mem[N];
	struct calls before, after;

	begin();
	before = calls();
	must_alloc_extent(dev, mem);
	after = calls();
	cr_assert_eq(n_joined(mem), N);
	cr_assert_eq(after.create - before.create, 1);
	cr_assert_eq(after.map - before.map, 1);
	cr_assert_eq(after.access - before.access, 1);
	cr_assert_eq(after.clear - before.clear, 1);
	free_extent(mem);
	end();
}

Test(extents, are_exported_as_one_chunk_is)
{
	struct devmem *mem[N];
	struct calls before;

	begin();
	must_alloc_extent(dev, mem);
	close_export(mem[4], GAIA_EXTENT);
	before = calls();
	close_export(mem[0], GAIA_EXTENT);
	close_export(mem[7], GAIA_EXTENT);
	cr_assert_eq(calls().export - before.export, 2);
	cr_assert_eq(calls().create, before.create);
	free_extent(mem);
	end();
}

Test(extents, read_only_cannot_be_had)
{
	struct devmem *mem[N];

	begin();
	must_alloc_extent(dev, mem);
	cr_assert_eq(dev->ops->export_fd(dev, mem[1], false), -ENOTSUP);
	free_extent(mem);
	cr_assert_eq(dev->ops->export_fd(dev, mem[1], true), -EINVAL);
	end();
}

Test(extents, are_zeros_whatever_was_there)
{
	begin();
	for (int round = 0; round < 3; round++) {
		struct devmem *mem[N];
		unsigned char *client;

		must_alloc_extent(dev, mem);
		client = client_map(mem[round]);
		for (size_t i = 0; i < GAIA_EXTENT; i += 64)
			cr_assert_eq(client[i], 0);
		memset(client, 's', GAIA_EXTENT);
		client_unmap_extent(client);
		free_extent(mem);
		fake_cuda_importers_gone();
	}
	end();
}

/* ---- the end of an extent ---- */

static void is_given_back_when_the_last_goes(uint64_t seed, bool exported)
{
	struct devmem *mem[N];
	size_t used;
	struct calls before;

	begin();
	must_alloc_extent(dev, mem);
	keeper_is_done();
	if (exported)
		close_export(mem[seed % N], GAIA_EXTENT);
	used = fake_cuda_used();
	before = calls();
	for (unsigned left = N; left > 0; left--) {
		unsigned k = random_below(&seed, left);

		cr_assert_eq(fake_cuda_used(), used);
		cr_assert_eq(calls().unmap, before.unmap);
		must_free(mem[k]);
		mem[k] = mem[left - 1];
		/* What the keeper had to do it has done. */
		if (left > 1)
			keeper_is_done();
	}
	until(calls().release == before.release + 1);
	cr_assert_eq(calls().unmap, before.unmap + 1);
	until(fake_cuda_used() == used - (exported && fake_cuda_mode()->busy_importers ? 0 : GAIA_EXTENT));
	end();
}

Test(extents, are_given_back_when_the_last_chunk_is_freed)
{
	for (uint64_t seed = 1; seed < 6; seed++)
		is_given_back_when_the_last_goes(seed, seed % 2);
}

/* As their memory is not there again. */
Test(extents, count_in_the_capacity_until_all_of_their_chunks_are_freed)
{
	struct devmem *mem[2][N], *none[N] = { NULL }, *single[N];

	begin();
	must_alloc_extent(dev, mem[0]);
	must_alloc_extent(dev, mem[1]);
	for (unsigned i = 0; i < 2; i++)
		for (unsigned k = 1; k < N; k++)
			must_free(mem[i][k]);
	cr_assert_eq(dev->ops->alloc(dev, none), -ENOMEM);
	cr_assert_eq(dev->ops->alloc_extent(dev, none), -ENOMEM);
	cr_assert_null(none[0]);
	must_free(mem[0][0]);
	for (unsigned k = 0; k < N; k++)
		single[k] = must_alloc(dev);
	cr_assert_eq(dev->ops->alloc(dev, none), -ENOMEM);
	cr_assert_leq(fake_cuda_used(), CHUNKS * (size_t)GAIA_CHUNK + TABLES);
	must_free(mem[1][0]);
	must_alloc_extent(dev, mem[1]);
	cr_assert_eq(n_joined(mem[1]), N);
	free_extent(single);
	free_extent(mem[1]);
	end();
}

static void run_until_told(void *arg)
{
	sem_t *sems = arg;

	sem_post(&sems[0]);
	sem_wait(&sems[1]);
}

/* A stream for which unmapping waits: so the keeper is held. */
static struct {
	CUcontext context;
	CUstream stream;
	sem_t sems[2]; /* begun, may end */
} busy;

static void begin_busy(void)
{
	const struct cuda_api *api = fake_cuda_api();

	sem_init(&busy.sems[0], 0, 0);
	sem_init(&busy.sems[1], 0, 0);
	cr_assert_eq(api->cuDevicePrimaryCtxRetain(&busy.context, 0), 0);
	cr_assert_eq(api->cuCtxSetCurrent(busy.context), 0);
	cr_assert_eq(api->cuStreamCreate(&busy.stream, CU_STREAM_NON_BLOCKING), 0);
	cr_assert_eq(fake_cuda_launch(busy.stream, run_until_told, busy.sems), 0);
	sem_wait(&busy.sems[0]);
}

static void end_busy(void)
{
	sem_post(&busy.sems[1]);
}

static void forget_busy(void)
{
	cr_assert_eq(fake_cuda_api()->cuStreamDestroy(busy.stream), 0);
	cr_assert_eq(fake_cuda_api()->cuDevicePrimaryCtxRelease(0), 0);
}

/* Two extents and chunks, all ended while the keeper unmaps another: how many calls it takes to unmap them. */
static unsigned unmaps_of_two(bool single_unmaps)
{
	struct devmem *mem[2][N], *first[N];
	struct calls before;
	unsigned n;

	begin_with(&(struct fake_cuda_config){ .unmap_waits = true, .single_unmaps = single_unmaps }, 3 * N);
	must_alloc_extent(dev, mem[0]);
	must_alloc_extent(dev, mem[1]);
	must_alloc_extent(dev, first);
	cr_assert_eq(n_joined(mem[0]) + n_joined(mem[1]) + n_joined(first), 3 * N);
	keeper_is_done();
	before = calls();
	begin_busy();
	free_extent(first);
	until(fake_cuda_waiting() == 1);
	free_extent(mem[1]);
	free_extent(mem[0]);
	end_busy();
	until(calls().release >= before.release + 3);
	n = calls().unmap - before.unmap - 1;
	forget_busy();
	end();
	return n;
}

Test(extents, side_by_side_are_unmapped_by_one_call_or_each_by_one)
{
	/* (Where it may be that none waits the keeper may have begun with one.) */
	cr_assert_eq(unmaps_of_two(false), fake_cuda_mode()->single_unmaps ? 3 : 1);
	cr_assert_eq(unmaps_of_two(true), 3);
}

/* ---- sharing the capacity ---- */

Test(extents, are_had_in_place_of_chunks_that_are_kept)
{
	struct devmem *mem[2][N], *none = NULL;

	begin();
	cr_assert_eq(count(&to_cuda(dev)->n_ready), CHUNKS);
	for (int round = 0; round < 3; round++) {
		must_alloc_extent(dev, mem[0]);
		must_alloc_extent(dev, mem[1]);
		cr_assert_eq(n_joined(mem[0]) + n_joined(mem[1]), 2 * N);
		cr_assert_eq(dev->ops->alloc(dev, &none), -ENOMEM);
		free_extent(mem[round % 2]);
		free_extent(mem[1 - round % 2]);
	}
	end();
}

/* No more of them than are needed. */
Test(extents, leave_the_other_chunks_that_are_kept)
{
	struct devmem *mem[N];
	struct calls before;

	begin();
	before = calls();
	must_alloc_extent(dev, mem);
	keeper_is_done();
	cr_assert_eq(count(&to_cuda(dev)->n_ready), CHUNKS - N);
	cr_assert_eq(calls().create - before.create, 1, "none had to be made again");
	free_extent(mem);
	end();
}

/* Though there are more addresses. */
Test(extents, and_what_is_kept_are_no_more_than_the_capacity)
{
	struct devmem *mem[N], *single[3];

	begin();
	must_alloc_extent(dev, mem);
	for (unsigned i = 0; i < 3; i++)
		single[i] = must_alloc(dev);
	keeper_is_done();
	close_export(single[0], GAIA_CHUNK);
	must_free(single[0]);
	fake_cuda_importers_gone();
	keeper_is_done();
	until(count(&to_cuda(dev)->n_ready) == CHUNKS - N - 2);
	fake_cuda_importers_gone();
	/* And the one whose descriptor is kept: it is no handle any more. */
	cr_assert_eq(fake_cuda_used(), CHUNKS * (size_t)GAIA_CHUNK + TABLES);
	must_free(single[1]);
	must_free(single[2]);
	free_extent(mem);
	end();
}

/* Every other chunk is taken, but extents have addresses of their own. */
Test(extents, need_no_chunks_side_by_side)
{
	struct devmem *single[CHUNKS], *mem[N];

	begin();
	for (unsigned i = 0; i < CHUNKS; i++)
		single[i] = must_alloc(dev);
	for (unsigned i = 0; i < CHUNKS; i += 2) {
		if (i % 4)
			close_export(single[i], GAIA_CHUNK);
		must_free(single[i]);
	}
	fake_cuda_importers_gone();
	must_alloc_extent(dev, mem);
	cr_assert_eq(n_joined(mem), N);
	free_extent(mem);
	for (unsigned i = 1; i < CHUNKS; i += 2)
		must_free(single[i]);
	end();
}

Test(extents, and_chunks_never_exceed_the_capacity)
{
	enum { EXTENTS = 4, SINGLES = 20 };
	struct devmem *mem[EXTENTS][N] = { { NULL } }, *single[SINGLES] = { NULL };
	unsigned n = 0, of_extent[EXTENTS] = { 0 }, joined = 0;
	uint64_t seed = 3;

	begin_with(&(struct fake_cuda_config){ 0 }, CHUNKS + 3);
	for (unsigned i = 0; i < 400; i++) {
		unsigned e = random_below(&seed, EXTENTS), s = random_below(&seed, SINGLES);

		if (random_below(&seed, 3) == 0) {
			if (single[s]) {
				must_free(single[s]);
				single[s] = NULL;
				n--;
			} else {
				n += dev->ops->alloc(dev, &single[s]) == 0;
			}
		} else if (of_extent[e]) {
			/* From the front and from the back, so that parts of several extents stay. */
			unsigned k = of_extent[e]-- - 1;

			must_free(mem[e][k]);
			n--;
		} else if (dev->ops->alloc_extent(dev, mem[e]) == 0) {
			joined += n_joined(mem[e]) == N;
			of_extent[e] = N;
			n += N;
		}
		cr_assert_leq(n, CHUNKS + 3);
		cr_assert_leq(fake_cuda_used(), (CHUNKS + 3 + 1) * (size_t)GAIA_CHUNK + TABLES, "round %u", i);
	}
	cr_assert_gt(joined, 3);
	for (unsigned s = 0; s < SINGLES; s++)
		if (single[s])
			must_free(single[s]);
	for (unsigned e = 0; e < EXTENTS; e++)
		while (of_extent[e])
			must_free(mem[e][--of_extent[e]]);
	end();
}

Test(extents, may_be_none)
{
	const struct cuda_config config = { .capacity = CHUNKS * GAIA_CHUNK, .no_extents = true };

	fake_cuda_start(4 * CHUNKS * GAIA_CHUNK);
	cr_assert_eq(cuda_create(fake_cuda_api(), &config, 4 * GAIA_PAGE, &dev), 0);
	cr_assert_not(dev->gives_extents);
	end();
}

Test(extents, do_not_fit_into_a_device_that_is_smaller)
{
	struct devmem *none[N] = { NULL };

	begin_with(&(struct fake_cuda_config){ 0 }, N - 1);
	cr_assert_eq(dev->ops->alloc_extent(dev, none), -ENOMEM);
	cr_assert_null(none[0]);
	must_free(must_alloc(dev));
	end();
}

/* ---- without memory ---- */

static void are_single(struct devmem **mem)
{
	char *host = host_pages(1), *found = host_pages(1);

	cr_assert_eq(n_joined(mem), 0);
	for (unsigned k = 0; k < N; k++) {
		memset(host, 'a' + (int)k, GAIA_PAGE);
		cr_assert_eq(copy_in(mem[k], k, 1, host), 0);
	}
	for (unsigned k = 0; k < N; k++) {
		memset(host, 'a' + (int)k, GAIA_PAGE);
		cr_assert_eq(copy_out(mem[k], k, 1, found), 0);
		cr_assert_arr_eq(found, host, GAIA_PAGE);
	}
	close_export(mem[3], GAIA_CHUNK);
	free(host);
	free(found);
}

Test(without_memory, an_extent_is_single_chunks, .timeout = 60)
{
	static const char *const entries[] = { "cuMemCreate", "cuMemMap", "cuMemSetAccess" };

	for (unsigned i = 0; i < ARRAY_LEN(entries); i++) {
		struct devmem *mem[N], *again[N];

		begin_with(&(struct fake_cuda_config){ 0 }, 4 * N);
		keeper_is_done();
		cr_assert_eq(count(&to_cuda(dev)->n_ready), 2 * N);
		fake_cuda_fail(entries[i], 1, CUDA_ERROR_OUT_OF_MEMORY, false);
		must_alloc_extent(dev, mem);
		cr_assert(fake_cuda_failed() || fake_cuda_mode()->mappings, "it was not called, or another call failed");
		are_single(mem);
		if (!fake_cuda_mode()->mappings) {
			must_alloc_extent(dev, again);
			cr_assert_eq(n_joined(again), N);
			free_extent(again);
		}
		free_extent(mem);
		end();
	}
}

/* Other programs have the GPU's memory. */
Test(without_memory, neither_an_extent_nor_its_part_is_kept, .timeout = 60)
{
	const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					   .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUmemGenericAllocationHandle theirs;
	struct devmem *mem[2][N], *none[N] = { NULL }, *single[3 * N];
	unsigned n = 0;

	begin_with(&(struct fake_cuda_config){ .memory = 5 * N * GAIA_CHUNK }, 4 * N);
	keeper_is_done();
	/* There are two extents' worth of chunks. All but three more are taken. */
	cr_assert_eq(fake_cuda_used(), 2 * N * GAIA_CHUNK + TABLES);
	cr_assert_eq(fake_cuda_api()->cuMemCreate(&theirs, 3 * N * (size_t)GAIA_CHUNK - TABLES - 3 * GAIA_CHUNK, &prop, 0), 0);
	must_alloc_extent(dev, mem[0]);
	are_single(mem[0]);
	must_alloc_extent(dev, mem[1]);
	are_single(mem[1]);
	for (unsigned i = 0; i < 3; i++) {
		cr_assert_eq(dev->ops->alloc_extent(dev, none), -ENOMEM);
		cr_assert_null(none[0]);
		cr_assert_eq(count(&to_cuda(dev)->n_live), 2 * N);
	}
	while (dev->ops->alloc(dev, &single[n]) == 0)
		n++;
	/* (Then the fake takes the chunk whose descriptor is kept for one that has been imported, too.) */
	cr_assert_eq(n, fake_cuda_mode()->mappings ? 0 : fake_cuda_mode()->busy_importers ? 2 : 3, "%u", n);
	while (n)
		must_free(single[--n]);
	free_extent(mem[0]);
	free_extent(mem[1]);
	cr_assert_eq(fake_cuda_api()->cuMemRelease(theirs), 0);
	end();
}

/* ---- other GPUs ---- */

static int copy_peer(struct devmem *to, struct devmem *from)
{
	struct dev_run run = { to, .other = from, .npages = 20 };
	struct dev_op op = { .kind = DEV_COPY_PEER, .runs = &run, .n = 1, .from = from->dev };

	return device_run(to->dev, &op);
}

/* All of both devices is allocated: nobody makes chunks to keep. */
Test(extents, are_opened_to_another_gpu_as_a_whole_and_once_in_each_life)
{
	const struct cuda_config second = { .index = 1, .capacity = N * GAIA_CHUNK };
	struct devmem *from[N], *to[N];
	char *host = host_pages(20), *found = host_pages(20);
	struct device *other;

	begin_with(&(struct fake_cuda_config){ .n_devices = 2 }, N);
	cr_assert_eq(cuda_create(fake_cuda_api(), &second, 4 * GAIA_PAGE, &other), 0);
	must_alloc_extent(other, to);
	for (unsigned round = 0; round < 3; round++) {
		struct calls before;

		must_alloc_extent(dev, from);
		cr_assert_eq(n_joined(from) + n_joined(to), 2 * N);
		before = calls();
		for (unsigned k = N; k-- > 0;) {
			memset(host, 'a' + (int)k, 20 * GAIA_PAGE);
			cr_assert_eq(copy_in(from[k], 0, 20, host), 0);
			cr_assert_eq(copy_peer(to[N - 1 - k], from[k]), 0);
			cr_assert_eq(copy_out(to[N - 1 - k], 0, 20, found), 0);
			cr_assert_arr_eq(found, host, 20 * GAIA_PAGE);
		}
		cr_assert_eq(calls().access - before.access, 1);
		free_extent(from);
	}
	free_extent(to);
	other->ops->destroy(other);
	end();
	free(host);
	free(found);
}

/* ---- a context that breaks ---- */

TestSuite(broken, .timeout = 60);

static void break_context(struct devmem *mem)
{
	char *host = host_pages(1);

	fake_cuda_fail_later(1, CUDA_ERROR_ILLEGAL_ADDRESS);
	cr_assert_neq(copy_in(mem, 0, 1, host), 0);
	cr_assert(fake_cuda_failed());
	free(host);
}

/* Of one extent all chunks are freed before, of the other some. */
static void gives_back(const struct fake_cuda_config *config, bool at_once)
{
	struct devmem *mem[2][N], *none[N];

	begin_with(config, 2 * N);
	must_alloc_extent(dev, mem[0]);
	must_alloc_extent(dev, mem[1]);
	close_export(mem[1][0], GAIA_EXTENT);
	for (unsigned k = 0; k < 5; k++)
		must_free(mem[0][k]);
	break_context(mem[1][0]);
	if (!at_once)
		until(fake_cuda_calls_of("cuDevicePrimaryCtxReset") == 1);
	for (unsigned k = 0; k < N; k++)
		must_free(mem[1][k]);
	for (unsigned k = 5; k < N; k++)
		must_free(mem[0][k]);
	/* The fake takes the chunk whose descriptor was kept for one that has been imported, too; all others are gone. */
	until(fake_cuda_used() <= (fake_cuda_mode()->busy_importers ? GAIA_EXTENT + GAIA_CHUNK : 0));
	cr_assert_eq(dev->ops->alloc_extent(dev, none), -ENODEV);
	end();
}

Test(broken, gives_extents_back)
{
	for (unsigned i = 0; i < 4; i++)
		gives_back(&(struct fake_cuda_config){ .broken_frees = i % 2 }, i / 2);
}

static void breaks_while_it_is_made(const char *entry, unsigned nth, bool sticky, bool broken_frees)
{
	struct devmem *none[N] = { NULL };

	begin_with(&(struct fake_cuda_config){ .broken_frees = broken_frees }, 2 * N);
	keeper_is_done();
	fake_cuda_fail(entry, nth, CUDA_ERROR_ILLEGAL_ADDRESS, sticky);
	cr_assert_lt(dev->ops->alloc_extent(dev, none), 0);
	cr_assert(fake_cuda_failed());
	cr_assert_null(none[0]);
	cr_assert_eq(dev->ops->alloc_extent(dev, none), -ENODEV);
	end();
}

Test(broken, while_an_extent_is_made_leaves_nothing)
{
	static const char *const entries[] = { "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async",
					       "cuStreamSynchronize", "cuMemUnmap", "cuMemRelease" };

	for (unsigned i = 0; i < ARRAY_LEN(entries); i++)
		for (unsigned how = 0; how < 4; how++)
			if (strcmp(entries[i], "cuMemUnmap") || how & 1)
				breaks_while_it_is_made(entries[i], 1, how & 1, how & 2);
}

/* The other device of the GPU keeps the context from being reset, which would end all mappings. */
Test(broken, while_an_extent_is_made_it_is_unmapped_without_a_reset)
{
	const struct cuda_config second = { .capacity = N * GAIA_CHUNK };
	struct devmem *none[N] = { NULL };
	struct device *other;

	begin();
	cr_assert_eq(cuda_create(fake_cuda_api(), &second, 4 * GAIA_PAGE, &other), 0);
	until(has_done_its_work(other));
	fake_cuda_fail("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN, false);
	cr_assert_eq(dev->ops->alloc_extent(dev, none), -EIO);
	cr_assert(fake_cuda_failed());
	dev->ops->destroy(dev);
	cr_assert_eq(fake_cuda_calls_of("cuDevicePrimaryCtxReset"), 0);
	other->ops->destroy(other);
	nothing_is_left();
}

static void *alloc_one(void *arg)
{
	struct devmem *mem[N];

	*(int *)arg = dev->ops->alloc_extent(dev, mem);
	return NULL;
}

/* The keeper is to make room for it, and waits. */
Test(broken, who_waits_for_room_is_told)
{
	struct devmem *first;
	pthread_t thread;
	int err = 0;

	begin_with(&(struct fake_cuda_config){ .unmap_waits = true }, N + 1);
	first = must_alloc(dev);
	keeper_is_done();
	begin_busy();
	cr_assert_eq(pthread_create(&thread, NULL, alloc_one, &err), 0);
	until(fake_cuda_waiting() == 1);
	(void)cuda_check(to_cuda(dev), CUDA_ERROR_ILLEGAL_ADDRESS, "a call");
	pthread_join(thread, NULL);
	cr_assert_eq(err, -ENODEV);
	end_busy();
	until(fake_cuda_waiting() == 0);
	must_free(first);
	dev->ops->destroy(dev);
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
}
