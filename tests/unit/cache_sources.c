/*
 * cache_sources.c - what is not home comes from devices that have it and from the store: each page from where it is, and cheaper.
 *
 * What sources cost is set before each read. (What is learned from it does not change much: an eighth.)
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "held.h"
#include "page_waiters.h"
#include "pagecache/cache.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/readcost.h"
#include "pagecache/root.h"
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

/* The other device cannot copy from it: it gets them by way of home. */
Test(sources, pages_that_lie_apart_are_one_operation_for_an_acquire_too)
{
	struct client *a, *b;
	uint64_t operations, runs;
	char seen[GAIA_PAGE];

	begin_with(&(struct rig_options){ .devices = 2, .no_peers = true });
	a = client_of(0);
	b = client_of(1);
	for (unsigned i = 0; i < PAGES; i += 2)
		give_to_device(a, i, i + 1);
	forget_home();
	prefer_devices();
	count_from_here();
	operations = counter_value(CTR_device_operations);
	runs = counter_value(CTR_storage_read_runs);
	cr_assert_eq(client_acquire(b, 0, sizeof(bytes), GAIA_PROT_READ), 0);
	cr_assert_eq(counter_value(CTR_device_reads) - before.devices, PAGES / 2);
	cr_assert_eq(counter_value(CTR_storage_reads) - before.store, PAGES / 2);
	cr_assert_eq(counter_value(CTR_storage_read_runs) - runs, PAGES / 2);
	cr_assert_eq(counter_value(CTR_device_operations) - operations, 3, "from the one, to the other, and zeros to the rest of the chunk");
	for (unsigned i = 0; i < PAGES; i++) {
		client_load(b, seen, GAIA_PAGE, AT(i));
		cr_assert_eq(memcmp(seen, bytes + AT(i), GAIA_PAGE), 0, "page %u", i);
	}
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

/* Beyond 128 pages only what a device really gives. */
Test(sources, ahead_of_a_reader_the_store_reads_no_more_for_a_device_that_is_far)
{
	static const char *const points[] = { "device.submit", "device.copy_out" };

	begin_far_device(0);
	prefer_the_store();
	count_from_here();
	expect_asked(0, 0);
	cr_assert_eq(counter_value(CTR_storage_reads) - before.store, 1 + 128);
	for (unsigned p = 0; p < 2; p++) {
		forget_home();
		read_cost_is(&rig->cache->store_cost, DEAR, DEAR);
		read_cost_is(&rig->cache->dev[0].read_cost, 300000, 1000);
		count_from_here();
		fault_arm(points[p], -EIO, 0, 0);
		/* After the start, or where the last one ended. */
		expect_asked(p, 0);
		fault_disarm_all();
		cr_assert_gt(counter_value(CTR_device_read_failures), before.failures);
		cr_assert_eq(counter_value(CTR_storage_reads) - before.store, 1 + 128);
	}
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

/* The first of the runs that the store reads instead fails: the others have begun, and are home. */
Test(sources, all_that_a_device_fails_to_give_is_read_at_the_same_time)
{
	static char seen[sizeof(bytes)];
	struct client *cl;

	begin_stored(1);
	cl = client_of(0);
	for (unsigned i = 0; i < PAGES; i += 2)
		give_to_device(cl, i, i + 1);
	forget_home();
	prefer_devices();
	count_from_here();
	fault_arm("device.copy_out", -EIO, 0, 0);
	fault_arm("store.read", -EIO, PAGES / 2, 1);
	cr_assert_eq(cpu_read_direct(kf, seen, sizeof(seen), 0), -EIO);
	cr_assert_eq(counter_value(CTR_storage_reads) - before.store, PAGES - 1);
	fault_disarm_all();
	read_all();
	end();
}

Test(sources, the_store_cannot_be_opened_while_a_device_copies)
{
	static char seen[sizeof(bytes)];
	struct store_file *r, *w;

	begin_stored(1);
	give_to_device(client_of(0), 20, 52);
	forget_home();
	prefer_devices();
	r = kf->cfile->store_r;
	w = kf->cfile->store_w;
	kf->cfile->store_r = kf->cfile->store_w = NULL;
	count_from_here();
	fault_arm("store.open", -EMFILE, 0, 0);
	cr_assert_eq(cpu_read_direct(kf, seen, sizeof(seen), 0), -EMFILE);
	cr_assert_eq(counter_value(CTR_device_reads) - before.devices, 32);
	cr_assert_eq(rig_frames(rig), 32);
	fault_disarm_all();
	kf->cfile->store_r = r;
	kf->cfile->store_w = w;
	cache_check(rig->cache);
	read_all();
	end();
}

/* Of two runs of pages, which only the store has, or another device that fails to give them. What comes after it is not read, as if all were well. */
Test(sources, the_store_cannot_be_opened_for_the_first_run)
{
	struct store_file *r, *w;
	struct client *gives, *takes;

	begin_with(&(struct rig_options){ .devices = 2, .no_peers = true });
	gives = client_of(0);
	takes = client_of(1);
	for (unsigned given = 0; given < 2; given++) {
		for (unsigned k = 0; given && k < 2; k++)
			give_to_device(gives, 20 + 10 * k, 24 + 10 * k);
		cr_assert_eq(cache_evict(kf->cfile, takes->device, 0, 0), 0);
		forget_home();
		prefer_devices();
		read_pages(24, 30);
		r = kf->cfile->store_r;
		w = kf->cfile->store_w;
		kf->cfile->store_r = kf->cfile->store_w = NULL;
		count_from_here();
		fault_arm("device.copy_out", -EIO, 0, 0);
		fault_arm("store.open", -EMFILE, 0, 1);
		cr_assert_eq(client_acquire(takes, AT(20), AT(14), GAIA_PROT_READ), -EMFILE);
		cr_assert_eq(counter_value(CTR_storage_reads), before.store);
		cr_assert_eq(rig_frames(rig), 6);
		fault_disarm_all();
		kf->cfile->store_r = r;
		kf->cfile->store_w = w;
		cache_check(rig->cache);
		give_to_device(takes, 20, 34);
		read_all();
	}
	end();
}

/* For the second half of a chunk there is no memory, while the first is on its way. */
Test(sources, no_frames_for_what_is_read_together_with_copies_under_way)
{
	static frame_t taken[GAIA_CHUNK_PAGES - READ_BATCH - 40];
	struct client *a, *b;
	struct frames *fr;
	char byte;

	begin(&(struct rig_options){ .devices = 2, .no_peers = true }, GAIA_CHUNK);
	a = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	b = client_create(kf, 1, GAIA_PROT_RW, GAIA_CHUNK);
	give_to_device(a, 0, GAIA_CHUNK_PAGES);
	forget_home();
	fr = &rig->cache->frames;
	frames_trim(fr, true);
	cr_assert_eq(frames_take(fr, ARRAY_LEN(taken), taken, false), ARRAY_LEN(taken));
	prefer_devices();
	count_from_here();
	fault_arm("home.memory", -ENOMEM, 0, 0);
	cr_assert_eq(client_acquire(b, 0, GAIA_CHUNK, GAIA_PROT_READ), -ENOMEM);
	cr_assert_eq(counter_value(CTR_device_reads) - before.devices, READ_BATCH);
	cr_assert_eq(rig_frames(rig), ARRAY_LEN(taken) + READ_BATCH);
	/* What lies ahead of a reader cannot fail. */
	forget_home();
	cr_assert_eq(cpu_read_direct(kf, &byte, 1, 0), 1);
	fault_disarm_all();
	frames_give(fr, taken, ARRAY_LEN(taken));
	cache_check(rig->cache);
	cr_assert_eq(client_acquire(b, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	end();
}

/* ---- what else happens to pages that are on their way from a device ---- */

#define PAGE 33u
static char was[GAIA_PAGE], seen_page[GAIA_PAGE];

static int read_the_page(void *arg)
{
	(void)arg;
	return (int)cpu_read_direct(kf, seen_page, GAIA_PAGE, AT(PAGE));
}

static struct held reader = { .point = "device.copy_out", .call = read_the_page };
static struct client *user;
static atomic_int other_tid;
static atomic_bool other_done;

static void *other_main(void *call)
{
	atomic_store(&other_tid, gettid());
	(*(void (**)(void))call)();
	atomic_store(&other_done, true);
	return NULL;
}

/* @call, while a read of the page is under way; it waits for that, or has ended before. Then the read ends, with the old bytes. */
static void beside_a_read(void (*call)(void))
{
	pthread_t other;

	forget_home();
	prefer_devices();
	memcpy(was, bytes + AT(PAGE), GAIA_PAGE);
	held_begin(&reader);
	atomic_store(&other_tid, 0);
	atomic_store(&other_done, false);
	cr_assert_eq(pthread_create(&other, NULL, other_main, &call), 0);
	while (!atomic_load(&other_tid) || (!atomic_load(&other_done) && !thread_sleeps(atomic_load(&other_tid))))
		sched_yield();
	cr_assert_eq(held_end(&reader), (int)GAIA_PAGE);
	pthread_join(other, NULL);
	cr_assert_eq(memcmp(seen_page, was, GAIA_PAGE), 0);
	cache_check(rig->cache);
}

static void begin_beside(void)
{
	begin_stored(1);
	user = client_of(0);
	give_to_device(user, 0, PAGES);
}

static void write_on_the_device(void)
{
	memset(bytes + AT(PAGE), 'n', GAIA_PAGE);
	cr_assert_eq(client_acquire(user, AT(PAGE), GAIA_PAGE, GAIA_PROT_RW), 0);
	client_store(user, bytes + AT(PAGE), GAIA_PAGE, AT(PAGE));
	cr_assert_eq(client_release(user, AT(PAGE), GAIA_PAGE), 0);
}

Test(beside_a_copy, a_device_writes_the_page)
{
	begin_beside();
	beside_a_read(write_on_the_device);
	read_all();
	end();
}

static void cut_the_file(void)
{
	cr_assert_eq(cpu_truncate(kf, AT(PAGE) + 1), 0);
	cr_assert_eq(cpu_truncate(kf, sizeof(bytes)), 0);
	memset(bytes + AT(PAGE) + 1, 0, sizeof(bytes) - AT(PAGE) - 1);
}

Test(beside_a_copy, the_file_is_truncated)
{
	begin_beside();
	beside_a_read(cut_the_file);
	read_all();
	end();
}

static void evict_from_the_device(void)
{
	int err = cache_evict(kf->cfile, 0, 0, 0);

	cr_assert(err == 0 || err == -EBUSY);
}

Test(beside_a_copy, the_chunk_is_evicted_from_the_device)
{
	begin_beside();
	beside_a_read(evict_from_the_device);
	read_all();
	end();
}

static void end_the_user(void)
{
	unsigned char *memory = mremap(client_at(user, 0), 0, GAIA_CHUNK, MREMAP_MAYMOVE);

	cr_assert_neq(memory, MAP_FAILED);
	client_die(user);
	user->kept = true;
	client_end(user);
	/* From now on it is not the file's. */
	memset(memory, 'x', GAIA_CHUNK);
	munmap(memory, GAIA_CHUNK);
}

Test(beside_a_copy, the_client_ends_and_goes_on_storing)
{
	begin_beside();
	beside_a_read(end_the_user);
	read_all();
	end();
}

/* ---- what is learned ---- */

Test(sources, a_device_that_fails_is_asked_less)
{
	static const char *const points[] = { "device.copy_out", "device.submit" };
	struct cache_device *dev;
	uint64_t expected;

	begin_stored(1);
	dev = &rig->cache->dev[0];
	give_to_device(client_of(0), 0, PAGES);
	for (unsigned p = 0; p < 2; p++) {
		forget_home();
		prefer_devices();
		expected = read_cost_ns(&dev->read_cost, PAGES, 1);
		fault_arm(points[p], -EIO, 0, 0);
		read_all();
		fault_disarm_all();
		cr_assert_gt(read_cost_ns(&dev->read_cost, PAGES, 1), expected);
		cr_assert(dev->complained);
		forget_home();
		prefer_devices();
		read_and_expect_from_devices(PAGES);
		cr_assert_not(dev->complained, "it works again: what fails next is logged");
	}
	end();
}

/* That it fails at once is not cheap. */
Test(sources, a_device_that_fails_is_not_asked_for_ever)
{
	static const char *const points[] = { "device.copy_out", "device.submit" };

	begin_stored(1);
	give_to_device(client_of(0), 0, PAGES);
	for (unsigned p = 0; p < 2; p++) {
		prefer_devices();
		fault_arm(points[p], -EIO, 0, 0);
		for (unsigned k = 0; k < 200; k++) {
			forget_home();
			read_cost_is(&rig->cache->store_cost, 10ull * DEAR, 0);
			count_from_here();
			read_all();
		}
		cr_assert_eq(counter_value(CTR_device_read_failures), before.failures);
		fault_disarm_all();
	}
	end();
}

static void begin_chunk_on_device(unsigned devices)
{
	begin(&(struct rig_options){ .devices = devices, .no_peers = true }, GAIA_CHUNK);
	give_to_device(client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK), 0, GAIA_CHUNK_PAGES);
	forget_home();
}

/* Two copies of half a chunk, of which one fails. */
Test(sources, a_device_that_fails_in_part_does_not_count_as_working_again)
{
	struct client *other;

	begin_chunk_on_device(2);
	other = client_create(kf, 1, GAIA_PROT_RW, GAIA_CHUNK);
	prefer_devices();
	count_from_here();
	fault_arm("device.copy_out", -EIO, 1, 1);
	cr_assert_eq(client_acquire(other, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	fault_disarm_all();
	cr_assert_eq(counter_value(CTR_device_read_failures) - before.failures, 1);
	cr_assert_eq(counter_value(CTR_device_reads) - before.devices, READ_BATCH);
	cr_assert_eq(counter_value(CTR_storage_reads) - before.store, GAIA_CHUNK_PAGES - READ_BATCH);
	cr_assert(rig->cache->dev[0].complained, "so what fails next is not logged again");
	end();
}

/* Dearer by nothing, so that they are probed as often as may be; and no read takes as long. */
static void store_is_little_dearer(void)
{
	read_cost_is(&rig->cache->store_cost, 10ull * DEAR + 1, 0);
	read_cost_is(&rig->cache->dev[0].read_cost, 10ull * DEAR, 0);
}

#define READERS 4u
#define SINGLE_READS 240u /* many times as many as there are between two probes */
static atomic_uint next_read;
static sem_t reader_ended;

static void *read_single_pages(void *arg)
{
	char page[GAIA_PAGE];
	unsigned k;

	(void)arg;
	while ((k = atomic_fetch_add(&next_read, 1)) < SINGLE_READS) {
		store_is_little_dearer();
		/* Never where a read has ended. */
		cr_assert_eq(cpu_read_direct(kf, page, GAIA_PAGE, AT(2 * k + 1)), (ssize_t)GAIA_PAGE);
	}
	sem_post(&reader_ended);
	return NULL;
}

Test(sources, a_store_that_does_not_answer_holds_up_one_read_of_what_a_device_has)
{
	pthread_t readers[READERS];

	begin_chunk_on_device(1);
	count_from_here();
	sem_init(&reader_ended, 0, 0);
	fault_hold("store.read");
	for (unsigned t = 0; t < READERS; t++)
		cr_assert_eq(pthread_create(&readers[t], NULL, read_single_pages, NULL), 0);
	fault_await_held("store.read");
	for (unsigned t = 0; t < READERS - 1; t++)
		while (sem_wait(&reader_ended) && errno == EINTR)
			;
	cr_assert_eq(counter_value(CTR_read_probes) - before.probes, 1);
	cr_assert_eq(counter_value(CTR_device_reads) - before.devices, SINGLE_READS - 1);
	cr_assert(rig->cache->store_cost.probing);
	fault_let_go("store.read");
	for (unsigned t = 0; t < READERS; t++)
		pthread_join(readers[t], NULL);
	cr_assert_eq(counter_value(CTR_storage_reads) - before.store, 1);
	cr_assert_not(rig->cache->store_cost.probing);
	sem_destroy(&reader_ended);
	end();
}

/* Nor writes, of a part of a page. */
Test(sources, acquires_do_not_probe)
{
	struct client *other;

	begin_chunk_on_device(2);
	other = client_create(kf, 1, GAIA_PROT_RW, GAIA_CHUNK);
	count_from_here();
	for (unsigned k = 0; k < 100; k++) {
		store_is_little_dearer();
		cr_assert_eq(client_acquire(other, AT(2 * k + 1), GAIA_PAGE, GAIA_PROT_READ), 0);
		store_is_little_dearer();
		cr_assert_eq(cpu_write_direct(kf, "w", 1, AT(300 + 2 * k)), 0);
	}
	cr_assert_eq(counter_value(CTR_read_probes), before.probes);
	cr_assert_eq(counter_value(CTR_device_reads) - before.devices, 200);
	cr_assert_eq(counter_value(CTR_storage_reads), before.store);
	end();
}

static void read_page_of_zeros(unsigned page)
{
	char seen[GAIA_PAGE];

	cr_assert_eq(cpu_read_direct(kf, seen, GAIA_PAGE, AT(page)), (ssize_t)GAIA_PAGE);
}

/* It may have had to store them. */
Test(sources, a_read_that_made_room_says_nothing_of_the_store)
{
	struct read_cost *store;
	struct kfile *other;
	uint64_t known, evicted;
	char *much;

	begin(&(struct rig_options){ .devices = 1, .home_bytes = CACHE_HOME_MIN }, GAIA_CHUNK);
	other = kfile_create(rig, 2, CACHE_HOME_MIN);
	much = xcalloc(1, CACHE_HOME_MIN);
	cr_assert_eq(cpu_write_direct(other, much, CACHE_HOME_MIN, 0), 0);
	cr_assert_eq(cpu_fsync(other), 0);
	free(much);
	store = &rig->cache->store_cost;
	evicted = counter_value(CTR_home_evicted);
	known = store->ns[0];
	read_page_of_zeros(33);
	cr_assert_gt(counter_value(CTR_home_evicted), evicted);
	cr_assert_eq(store->ns[0], known);
	read_page_of_zeros(55);
	cr_assert_neq(store->ns[0], known);
	end();
}

Test(sources, whether_the_store_reads_one_run_after_the_other_is_learned)
{
	begin_stored(0);
	rig->cache->store_cost.in_turn = false;
	read_pages(0, 8);
	cr_assert_not(rig->cache->store_cost.in_turn, "in order it always does");
	forget_home();
	read_pages(40, 48);
	cr_assert(rig->cache->store_cost.in_turn, "the one in memory");
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
