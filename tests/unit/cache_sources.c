/*
 * cache_sources.c - what is not home comes from devices that have it and from the store: each page from where it is, and cheaper.
 *
 * What sources cost is set before each read. (What is learned from it does not change much: an eighth.)
 */
#include <pthread.h>
#include <sys/mman.h>

#include "cache_scene.h"
#include "page_waiters.h"
#include "pagecache/internal.h"
#include "read_costs.h"

#define AT(page) ((uint64_t)(page) * GAIA_PAGE)
#define PAGES 128u
#define CHEAP 10u
#define DEAR 1000000000u

static char bytes[AT(PAGES)];

/* By its number: so that a page in the wrong place is seen. */
static void mark(unsigned page, char *out)
{
	for (unsigned i = 0; i < GAIA_PAGE; i++)
		out[i] = (char)(page + i / 7);
}

/* Where it is dear each page costs, and one run no more than another. */
static void prefer_devices(void)
{
	read_cost_is(&rig->cache->store_cost, 0, DEAR);
	for (unsigned k = 0; k < rig->cache->n_devices; k++)
		read_cost_is(&rig->cache->dev[k].read_cost, CHEAP, CHEAP);
}

static void prefer_the_store(void)
{
	read_cost_is(&rig->cache->store_cost, CHEAP, CHEAP);
	for (unsigned k = 0; k < rig->cache->n_devices; k++)
		read_cost_is(&rig->cache->dev[k].read_cost, DEAR, DEAR);
}

static void forget_home(void)
{
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
}

static void begin_with(const struct rig_options *options)
{
	begin(options, sizeof(bytes)); /* nothing is behind it that could be read ahead */
	for (unsigned i = 0; i < PAGES; i++)
		mark(i, bytes + AT(i));
	cr_assert_eq(cpu_write_direct(kf, bytes, sizeof(bytes), 0), 0);
	forget_home();
}

static void begin_stored(unsigned devices)
{
	begin_with(&(struct rig_options){ .devices = devices });
}

static struct client *client_of(unsigned device)
{
	return client_create(kf, device, GAIA_PROT_RW, sizeof(bytes));
}

/* The device has pages [a, b), and nobody holds them. */
static void give_to_device(struct client *cl, unsigned a, unsigned b)
{
	cr_assert_eq(client_acquire(cl, AT(a), AT(b - a), GAIA_PROT_READ), 0);
	cr_assert_eq(client_release(cl, AT(a), AT(b - a)), 0);
}

static struct {
	uint64_t store, devices, out, failures, probes;
} before;

static void count_from_here(void)
{
	before.store = counter_value(CTR_storage_reads);
	before.devices = counter_value(CTR_device_reads);
	before.out = counter_value(CTR_device_bytes_out);
	before.failures = counter_value(CTR_device_read_failures);
	before.probes = counter_value(CTR_read_probes);
}

static void read_all(void)
{
	static char seen[sizeof(bytes)];

	cr_assert_eq(cpu_read_direct(kf, seen, sizeof(seen), 0), (ssize_t)sizeof(seen));
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert_eq(memcmp(seen + AT(i), bytes + AT(i), GAIA_PAGE), 0, "page %u", i);
}

/* Not in order: what was read last ended elsewhere. */
static void read_pages(unsigned a, unsigned b)
{
	static char seen[sizeof(bytes)];

	cr_assert_eq(cpu_read_direct(kf, seen, AT(b - a), AT(a)), (ssize_t)AT(b - a));
	cr_assert_eq(memcmp(seen, bytes + AT(a), AT(b - a)), 0);
}

/* So many pages of the file came from devices, and the others from the store. */
#define expect_from_devices(pages)                                                                     \
	do {                                                                                           \
		cr_assert_eq(counter_value(CTR_device_reads) - before.devices, (pages));               \
		cr_assert_eq(counter_value(CTR_device_bytes_out) - before.out, AT(pages));             \
		cr_assert_eq(counter_value(CTR_storage_reads) - before.store, PAGES - (pages));        \
		cr_assert_eq(counter_value(CTR_device_read_failures), before.failures);                \
	} while (0)

#define read_and_expect_from_devices(pages)    \
	do {                                   \
		count_from_here();             \
		read_all();                    \
		expect_from_devices(pages);    \
		cache_check(rig->cache);       \
	} while (0)

Test(sources, each_page_comes_from_where_it_is)
{
	begin_stored(1);
	give_to_device(client_of(0), 20, 52);
	forget_home();
	prefer_devices();
	read_and_expect_from_devices(32);
	/* And then all are home. */
	count_from_here();
	read_all();
	cr_assert_eq(counter_value(CTR_storage_reads), before.store);
	cr_assert_eq(counter_value(CTR_device_bytes_out), before.out);
	end();
}

Test(sources, pages_that_lie_apart_are_one_operation_of_the_device)
{
	struct client *cl;
	uint64_t operations;

	begin_stored(1);
	cl = client_of(0);
	for (unsigned i = 0; i < PAGES; i += 4)
		give_to_device(cl, i, i + 1);
	forget_home();
	prefer_devices();
	operations = counter_value(CTR_device_operations);
	read_and_expect_from_devices(PAGES / 4);
	cr_assert_eq(counter_value(CTR_device_operations), operations + 1);
	end();
}

Test(sources, what_the_store_reads_for_less_a_device_is_not_asked_for)
{
	begin_stored(1);
	give_to_device(client_of(0), 0, PAGES);
	forget_home();
	prefer_the_store();
	read_and_expect_from_devices(0);
	end();
}

Test(sources, the_size_of_a_read_decides)
{
	char page[GAIA_PAGE];

	begin_stored(1);
	give_to_device(client_of(0), 0, PAGES);
	/* One page: 2 ms and 20 ms; all: 129 ms and 21 ms. */
	for (unsigned round = 0; round < 2; round++) {
		forget_home();
		read_cost_is(&rig->cache->store_cost, 1000000, 1000000);
		read_cost_is(&rig->cache->dev[0].read_cost, 20000000, 10000);
		count_from_here();
		if (round == 0) {
			read_all();
			expect_from_devices(PAGES);
			continue;
		}
		cr_assert_eq(cpu_read_direct(kf, page, sizeof(page), AT(9)), (ssize_t)sizeof(page));
		cr_assert_eq(memcmp(page, bytes + AT(9), GAIA_PAGE), 0);
		cr_assert_eq(counter_value(CTR_device_bytes_out), before.out);
		cr_assert_eq(counter_value(CTR_storage_reads), before.store + 1);
	}
	end();
}

Test(sources, several_devices_give_what_they_have)
{
	begin_stored(2);
	give_to_device(client_of(0), 0, 30);
	give_to_device(client_of(1), 20, 60);
	forget_home();
	prefer_devices();
	read_and_expect_from_devices(60);
	end();
}

/* ---- all begin before any is waited for ---- */

static void *read_in_thread(void *arg)
{
	(void)arg;
	read_all();
	return NULL;
}

Test(sources, all_begin_before_one_is_waited_for)
{
	uint64_t operations;
	pthread_t reader;

	begin_stored(1);
	/* The store would have to be read before the device's pages, and after them. */
	give_to_device(client_of(0), 20, 52);
	forget_home();
	prefer_devices();
	count_from_here();
	operations = counter_value(CTR_device_operations);
	fault_hold("store.read");
	cr_assert_eq(pthread_create(&reader, NULL, read_in_thread, NULL), 0);
	fault_await_held("store.read");
	cr_assert_eq(counter_value(CTR_device_operations), operations + 1, "the device was told");
	cr_assert_eq(counter_value(CTR_device_reads), before.devices, "and has not been waited for");
	fault_let_go("store.read");
	pthread_join(reader, NULL);
	expect_from_devices(32);
	end();
}

/* ---- only what equals home ---- */

Test(sources, what_cpus_wrote_later_a_device_has_not)
{
	begin_stored(1);
	give_to_device(client_of(0), 0, PAGES);
	memset(bytes + AT(40), 'w', AT(3));
	cr_assert_eq(cpu_write_direct(kf, bytes + AT(40), AT(3), AT(40)), 0);
	forget_home();
	prefer_devices();
	read_and_expect_from_devices(PAGES - 3);
	end();
}

Test(sources, what_is_being_written_on_a_device_is_not_read_there)
{
	struct client *cl;

	begin_stored(1);
	cl = client_of(0);
	give_to_device(cl, 0, PAGES);
	cr_assert_eq(client_acquire(cl, AT(60), AT(2), GAIA_PROT_RW), 0);
	client_store(cl, "private", 7, AT(60));
	forget_home();
	prefer_devices();
	read_and_expect_from_devices(PAGES - 2);
	end();
}

Test(sources, what_a_device_released_is_read_there_when_home_has_had_it)
{
	struct client *cl;

	begin_stored(1);
	cl = client_of(0);
	give_to_device(cl, 0, PAGES);
	cr_assert_eq(client_acquire(cl, AT(60), AT(2), GAIA_PROT_RW), 0);
	memset(bytes + AT(60), 'd', AT(2));
	client_store(cl, bytes + AT(60), AT(2), AT(60));
	cr_assert_eq(client_release(cl, AT(60), AT(2)), 0);
	forget_home();
	prefer_devices();
	read_and_expect_from_devices(PAGES);
	end();
}

Test(sources, what_was_cut_off_is_not_read_on_a_device)
{
	begin_stored(1);
	give_to_device(client_of(0), 0, PAGES);
	cr_assert_eq(cpu_truncate(kf, AT(70) + 10), 0);
	cr_assert_eq(cpu_truncate(kf, sizeof(bytes)), 0);
	memset(bytes + AT(70) + 10, 0, sizeof(bytes) - AT(70) - 10);
	forget_home();
	prefer_devices();
	count_from_here();
	read_all();
	cr_assert_eq(counter_value(CTR_device_reads), before.devices + 70);
	end();
}

Test(sources, replicas_of_readers_are_not_read)
{
	struct client *cl;

	begin_with(&(struct rig_options){ .devices = 1, .always_writable = true });
	rig->user = (struct cache_user){ .uid = 1000 };
	cl = client_create(kf, 0, GAIA_PROT_READ, sizeof(bytes));
	give_to_device(cl, 0, PAGES);
	/* As a program can do that takes the descriptor of the chunk from the library. */
	cr_assert_eq(mprotect(client_at(cl, 0), GAIA_CHUNK, PROT_READ | PROT_WRITE), 0);
	client_store(cl, "forged", 6, AT(5));
	forget_home();
	prefer_devices();
	read_and_expect_from_devices(0);
	end();
}

/* ---- what lies ahead of a reader ---- */

/* A file of a chunk, all of which the device has, and which takes as long for 301 pages as for the wait for them. */
static void begin_far_device(uint64_t home_bytes)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .home_bytes = home_bytes }, GAIA_CHUNK);
	cl = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	give_to_device(cl, 0, GAIA_CHUNK_PAGES);
	forget_home();
	read_cost_is(&rig->cache->store_cost, DEAR, DEAR);
	read_cost_is(&rig->cache->dev[0].read_cost, 300000, 1000);
}

/* The device is asked for so many. */
#define expect_asked(page, pages)                                                                        \
	do {                                                                                             \
		count_from_here();                                                                       \
		cr_assert_eq(cpu_read_direct(kf, bytes, GAIA_PAGE, AT(page)), (ssize_t)GAIA_PAGE);       \
		cr_assert_eq(counter_value(CTR_device_reads) - before.devices, (pages));                 \
	} while (0)

Test(sources, ahead_of_a_reader_a_device_copies_while_one_waits_for_it)
{
	begin_far_device(0);
	expect_asked(0, 1 + 301);
	expect_asked(1, 0);
	expect_asked(400, 1);
	end();
}

Test(sources, nothing_leaves_home_for_what_lies_far_ahead)
{
	struct kfile *other;
	uint64_t evicted;
	char *much;

	begin_far_device(CACHE_HOME_MIN);
	/* Home is full of what is used. */
	other = kfile_create(rig, 2, CACHE_HOME_MIN);
	much = xcalloc(1, CACHE_HOME_MIN);
	cr_assert_eq(cpu_write_direct(other, much, CACHE_HOME_MIN - AT(200), 0), 0);
	cr_assert_eq(cpu_fsync(other), 0);
	free(much);
	evicted = counter_value(CTR_home_evicted);
	expect_asked(0, 200);
	cr_assert_eq(counter_value(CTR_home_evicted), evicted);
	end();
}

/* ---- what fails ---- */

Test(sources, what_a_device_fails_to_give_the_store_has)
{
	static const char *const points[] = { "device.copy_out", "device.submit" };

	begin_stored(2);
	give_to_device(client_of(0), 20, 52);
	give_to_device(client_of(1), 80, 90);
	for (unsigned p = 0; p < 2; p++)
		for (unsigned nth = 0; nth < 2; nth++) {
			forget_home();
			prefer_devices();
			count_from_here();
			fault_arm(points[p], -EIO, nth, 1);
			read_all();
			fault_disarm_all();
			cr_assert_eq(counter_value(CTR_device_read_failures), before.failures + 1);
			cr_assert_eq(counter_value(CTR_device_reads) - before.devices, nth ? 32 : 10);
			cr_assert_eq(counter_value(CTR_storage_reads) - before.store, PAGES - (nth ? 32 : 10));
			cache_check(rig->cache);
		}
	end();
}

/* Not even one, and later all of them. */
Test(sources, neither_device_nor_store)
{
	static char seen[sizeof(bytes)];

	begin_stored(1);
	give_to_device(client_of(0), 20, 52);
	forget_home();
	prefer_devices();
	fault_arm("device.copy_out", -EIO, 0, 0);
	for (unsigned nth = 0; nth < 3; nth++) {
		fault_arm("store.read", -EIO, nth, 0);
		cr_assert_eq(cpu_read_direct(kf, seen, sizeof(seen), 0), -EIO);
		cache_check(rig->cache);
		cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0, "nothing is locked");
		cr_assert_eq(rig_frames(rig), 0);
	}
	fault_disarm_all();
	prefer_devices();
	read_and_expect_from_devices(32);
	end();
}

Test(sources, a_device_that_is_gone_is_not_asked)
{
	begin_stored(1);
	give_to_device(client_of(0), 0, PAGES);
	forget_home();
	prefer_devices();
	fault_arm("device.copy_out", -ENODEV, 0, 1);
	read_all();
	forget_home();
	prefer_devices();
	read_and_expect_from_devices(0);
	end();
}

/* ---- what is learned ---- */

Test(sources, a_device_that_fails_is_asked_less)
{
	uint64_t expected;

	begin_stored(1);
	give_to_device(client_of(0), 0, PAGES);
	forget_home();
	prefer_devices();
	expected = read_cost_ns(&rig->cache->dev[0].read_cost, PAGES, 1);
	fault_arm("device.copy_out", -EIO, 0, 0);
	read_all();
	fault_disarm_all();
	cr_assert_gt(read_cost_ns(&rig->cache->dev[0].read_cost, PAGES, 1), expected);
	end();
}

Test(sources, one_that_is_not_used_is_tried_by_and_by)
{
	unsigned from_device = 0;

	begin_stored(1);
	give_to_device(client_of(0), 0, PAGES);
	for (unsigned k = 1; k <= 64; k++) {
		forget_home();
		/* Just a little dearer than what takes all the time there is. */
		read_cost_is(&rig->cache->store_cost, 10ull * DEAR, 1000);
		read_cost_is(&rig->cache->dev[0].read_cost, 10ull * DEAR + 1, 1000);
		count_from_here();
		read_pages(8, 16);
		cr_assert_eq(counter_value(CTR_read_probes) - before.probes, k % 32 == 0);
		cr_assert_eq(counter_value(CTR_device_reads) - before.devices, k % 32 == 0 ? 8 : 0);
		from_device += k % 32 == 0;
	}
	cr_assert_eq(from_device, 2);
	end();
}

Test(sources, reads_are_learned_from)
{
	struct read_cost *store, *device;
	uint64_t untold;

	begin_stored(1);
	store = &rig->cache->store_cost;
	device = &rig->cache->dev[0].read_cost;
	give_to_device(client_of(0), 0, PAGES);
	forget_home();
	prefer_devices();
	untold = device->ns[READ_POINTS - 2];
	read_all();
	cr_assert_neq(device->ns[READ_POINTS - 2], untold);
	forget_home();
	prefer_the_store();
	untold = store->ns[READ_POINTS - 2];
	read_all();
	cr_assert_eq(store->ns[READ_POINTS - 2], untold, "that was in order: the kernel may have read it before");
	forget_home();
	prefer_the_store();
	read_pages(1, PAGES);
	cr_assert_neq(store->ns[READ_POINTS - 2], untold);
	end();
}
