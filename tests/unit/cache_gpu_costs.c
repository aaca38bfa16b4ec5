/*
 * cache_gpu_costs.c - what acquires, releases and reads ask of a GPU's driver, on a fake one: calls, launches, and the bytes
 * that cross the bus, exactly. device_cuda_costs.c says what single operations of the device cost.
 *
 * Nothing of it depends on how long calls take, nor on whether the driver copies batches, except where that is said.
 */
#include <stdio.h>

#include "base/util.h"
#include "cache_scene.h"
#include "device/cuda/internal.h"
#include "fake_cuda_api.h"
#include "pagecache/cache.h"
#include "pagecache/devices.h"
#include "pagecache/frames.h"
#include "pagecache/root.h"

#define CHUNKS 8u
#define PAGES (CHUNKS * GAIA_CHUNK_PAGES)
#define LENGTH (CHUNKS * (uint64_t)GAIA_CHUNK)
#define SHORT PARAMETER_BYTES(LIST_SHORT)
/* One launch, one record of an event, and one wait for it. */
#define KERNEL .calls = 3, .launches = 1, .parameters = SHORT
/* To give a chunk out and to export it: each enters the context, and exporting is a call. */
#define HANDED_OVER 3u

static struct client *cl;

static struct cuda *gpu(void)
{
	return to_cuda(rig->cache->dev[0].dev->core);
}

/* The keeper has nothing to do, and home's slabs are registered: so no thread calls the driver but for us. */
static void settle(void)
{
	struct frames *fr = &rig->cache->frames;
	struct cuda *cuda = gpu();
	bool done = false;

	for (unsigned i = 0; i < fr->n_slabs; i++)
		if (fr->slab[i]->memory)
			cuda_host_settle(cuda, fr->slab[i]->memory);
	while (!done) {
		sched_yield();
		pthread_mutex_lock(&cuda->lock);
		done = cuda->n_ready + cuda->n_live == cuda->n_chunks;
		pthread_mutex_unlock(&cuda->lock);
	}
}

/* An operation: so its threads have begun, each of which enters the context once. */
static void begin_threads(void)
{
	struct device *dev = rig->cache->dev[0].dev;
	struct devmem *mem;

	cr_assert_eq(dev->ops->alloc(dev, &mem), 0);
	struct dev_run run = { .mem = mem, .npages = 1 };
	struct dev_op op = { .kind = DEV_ZERO, .runs = &run, .n = 1 };

	cr_assert_eq(device_run(dev, &op), 0);
	dev->ops->free(dev, mem);
}

/* Home makes slabs for as much again, so that what is fetched finds registered ones. */
static void make_slabs(void)
{
	static frame_t frame[PAGES + GAIA_CHUNK_PAGES];
	unsigned n = frames_take(&rig->cache->frames, ARRAY_LEN(frame), frame, false);

	cr_assert_eq(n, ARRAY_LEN(frame));
	frames_give(&rig->cache->frames, frame, n);
}

/* A file of CHUNKS chunks, all of it in home. The device has as many chunks, and windows are larger. */
static void begin_gpu(void)
{
	char *bytes = malloc(GAIA_CHUNK);

	begin(&(struct rig_options){ .devices = 1, .device_chunks = CHUNKS, .home_bytes = 1ull << 30 }, LENGTH);
	/* The trimmer would give back slabs that nothing is in for a while. */
	pthread_rwlock_wrlock(&rig->cache->round);
	/* What an extent costs to make and to hand over: device_cuda_extents.c. */
	rig->old_clients = true;
	cl = client_create(kf, 0, GAIA_PROT_RW, LENGTH);
	memset(bytes, '.', GAIA_CHUNK);
	for (unsigned i = 0; i < CHUNKS; i++)
		cr_assert_eq(cpu_write_direct(kf, bytes, GAIA_CHUNK, i * (uint64_t)GAIA_CHUNK), 0);
	free(bytes);
	make_slabs();
	begin_threads();
	settle();
}

static void end_gpu(void)
{
	pthread_rwlock_unlock(&rig->cache->round);
	end();
}

TestSuite(paths, .init = begin_gpu, .fini = end_gpu, .timeout = 100);

/* ---- what a call costs ---- */

static struct fake_cuda_traffic before;

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

static void count_from_here(void)
{
	before = fake_cuda_traffic();
}

static void expect(const char *what, struct fake_cuda_traffic want)
{
	struct fake_cuda_traffic t = fake_cuda_traffic();

	t.calls -= before.calls;
	t.launches -= before.launches;
	t.copies -= before.copies;
	t.parameters -= before.parameters;
	t.in -= before.in;
	t.out -= before.out;
	t.within -= before.within;
	t.read -= before.read;
	t.written -= before.written;
	cr_expect_str_eq(as_text(&t), as_text(&want), "%s: %s;\nexpected %s", what, as_text(&t), as_text(&want));
}

#define COSTS(call, ...)                                                  \
	do {                                                              \
		count_from_here();                                        \
		cr_assert_eq(call, 0);                                    \
		expect(#call, (struct fake_cuda_traffic){ __VA_ARGS__ }); \
	} while (0)

/* Of @n long runs that are copied together. */
static unsigned copy_calls(unsigned n)
{
	return fake_cuda_mode()->no_copy_batch ? n : 1;
}

static int acquire(unsigned prot)
{
	return client_acquire(cl, 0, LENGTH, prot);
}

static int release(void)
{
	return client_release(cl, 0, LENGTH);
}

/* ---- nothing has changed ---- */

Test(paths, reading_what_is_current_costs_nothing)
{
	cr_assert_eq(acquire(GAIA_PROT_READ), 0);
	COSTS(release());
	COSTS(acquire(GAIA_PROT_READ));
	COSTS(release());
}

Test(paths, writing_where_nothing_was_stored_costs_one_look)
{
	cr_assert_eq(acquire(GAIA_PROT_RW), 0);
	COSTS(release(), KERNEL, .written = PAGES / 8);
	COSTS(acquire(GAIA_PROT_RW));
	COSTS(release(), KERNEL, .written = PAGES / 8);
}

/* ---- to the device ---- */

/* Once: memory, its export, and the end of its handle, for the descriptor that is kept (memory.c). */
#define KEPT 3

Test(paths, the_first_acquire_is_one_batch_of_copies)
{
	COSTS(acquire(GAIA_PROT_READ), .calls = KEPT + CHUNKS * HANDED_OVER + copy_calls(CHUNKS) + 2, .copies = CHUNKS, .in = LENGTH);
	cr_assert_eq(release(), 0);
}

/* What is copied is armed by a kernel behind it: the same operation, and waited for once. */
Test(paths, the_first_acquire_to_write_takes_a_launch_more)
{
	COSTS(acquire(GAIA_PROT_RW), .calls = KEPT + CHUNKS * HANDED_OVER + copy_calls(CHUNKS) + 3, .copies = CHUNKS, .in = LENGTH,
	      .launches = 1, .parameters = SHORT);
	cr_assert_eq(release(), 0);
}

Test(paths, writing_what_was_read_is_armed_by_one_launch)
{
	cr_assert_eq(acquire(GAIA_PROT_READ), 0);
	cr_assert_eq(release(), 0);
	COSTS(acquire(GAIA_PROT_RW), KERNEL);
	cr_assert_eq(release(), 0);
}

/* The k pages, and no other byte; they lie in all chunks. */
static void change_by_cpu(unsigned k)
{
	static char byte[GAIA_PAGE];

	byte[0]++;
	for (unsigned i = 0; i < k; i++)
		cr_assert_eq(cpu_write_direct(kf, byte, GAIA_PAGE, (i * 2 % PAGES + i * 2 / PAGES) * (uint64_t)GAIA_PAGE), 0);
}

Test(paths, an_acquire_costs_what_changed)
{
	static const unsigned changed[] = { 1, 8, 80 };

	cr_assert_eq(acquire(GAIA_PROT_READ), 0);
	cr_assert_eq(release(), 0);
	for (unsigned i = 0; i < ARRAY_LEN(changed); i++) {
		change_by_cpu(changed[i]);
		COSTS(acquire(GAIA_PROT_READ), KERNEL, .read = changed[i] * (uint64_t)GAIA_PAGE);
		COSTS(release());
	}
	/* More runs than one launch takes. */
	change_by_cpu(1200);
	COSTS(acquire(GAIA_PROT_READ), .calls = 5, .launches = 3, .parameters = 3 * PARAMETER_BYTES(LIST_LONG),
	      .read = 1200 * (uint64_t)GAIA_PAGE);
	COSTS(release());
}

/* They are merged into, since they are held: host and base cross the bus. */
Test(paths, what_changed_in_held_pages_is_merged_by_one_launch)
{
	cr_assert_eq(acquire(GAIA_PROT_READ), 0);
	change_by_cpu(16);
	COSTS(acquire(GAIA_PROT_READ), KERNEL, .read = 16 * (uint64_t)GAIA_PAGE);
	cr_assert_eq(release(), 0);
	cr_assert_eq(release(), 0);
}

/* ---- from the device ---- */

/* Every @step-th page, of all chunks. */
static unsigned change_by_device(unsigned step)
{
	unsigned n = 0;

	cr_assert_eq(acquire(GAIA_PROT_RW), 0);
	for (unsigned i = 0; i < PAGES; i += step, n++)
		client_store(cl, "d", 1, i * (uint64_t)GAIA_PAGE);
	return n;
}

Test(paths, a_release_moves_a_bit_for_a_page_and_no_more)
{
	change_by_device(3);
	COSTS(release(), KERNEL, .written = PAGES / 8);
}

/* A sync fetches what was released, of all chunks, by one operation. */
Test(paths, a_fetch_costs_what_was_released)
{
	unsigned n = change_by_device(64);

	cr_assert_eq(release(), 0);
	COSTS(cpu_fsync(kf), KERNEL, .written = n * (uint64_t)GAIA_PAGE);
	COSTS(cpu_fsync(kf));
}

Test(paths, a_fetch_of_whole_chunks_is_one_batch_of_copies)
{
	change_by_device(1);
	cr_assert_eq(release(), 0);
	COSTS(cpu_fsync(kf), .calls = copy_calls(CHUNKS) + 2, .copies = CHUNKS, .out = LENGTH);
}

Test(paths, a_read_of_a_released_page_is_one_kernel)
{
	char byte;

	change_by_device(64);
	cr_assert_eq(release(), 0);
	count_from_here();
	cr_assert_eq(cpu_read(kf, &byte, 1, 0), 1);
	cr_assert_eq(byte, 'd');
	expect("a read", (struct fake_cuda_traffic){ KERNEL, .written = GAIA_PAGE });
}

/* ---- rooms ---- */

/* An eviction of what home has as well moves nothing. */
Test(paths, evicting_what_home_has_moves_nothing)
{
	struct fake_cuda_traffic t;

	cr_assert_eq(acquire(GAIA_PROT_READ), 0);
	cr_assert_eq(release(), 0);
	count_from_here();
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	t = fake_cuda_traffic();
	cr_assert_eq(t.launches, before.launches);
	cr_assert_eq(t.in + t.out, before.in + before.out);
}
