/*
 * cache_victims.c - pages that left home and are parked on devices: they come back from there, and never the bytes of before.
 *
 * In most scenes the policy wants everything, and the store is dear (fault points); slabs are made on a thread, for which scenes wait.
 */
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "cache_scene.h"
#include "held.h"
#include "pagecache/cache.h"
#include "pagecache/devices.h"
#include "pagecache/root.h"
#include "pagecache/victim_inner.h"

#define AT(page) ((uint64_t)(page) * GAIA_PAGE)
#define PAGES 600u /* of two chunks */

static char bytes[AT(PAGES)], seen[AT(PAGES)];

static void mark(unsigned page, unsigned version)
{
	for (unsigned i = 0; i < GAIA_PAGE; i++)
		bytes[AT(page) + i] = (char)(page + i / 7 + version * 31);
}

static uint64_t parked(void)
{
	struct victims *v = rig->cache->victims;
	uint64_t n;

	pthread_mutex_lock(&v->lock);
	n = v->n_parked;
	pthread_mutex_unlock(&v->lock);
	return n;
}

#include "parked_pages.h"

static void begin_with(const struct rig_options *options)
{
	begin(options, sizeof(bytes));
	for (unsigned i = 0; i < PAGES; i++)
		mark(i, 0);
	cr_assert_eq(cpu_write_direct(kf, bytes, sizeof(bytes), 0), 0);
	forget_home();
}

static void want_all(void)
{
	fault_arm("park.all", -ENOSPC, 0, 0);
	fault_arm("source.store_is_dear", -ENOSPC, 0, 0);
}

/* All pages are on the device, and none is home. */
static void park_all(void)
{
	want_all();
	for (unsigned tries = 0; parked() < PAGES; tries++) {
		cr_assert_lt(tries, 10000u, "%lu pages are parked", parked());
		read_all();
		forget_home();
		settle();
		sched_yield();
	}
}

static void begin_parked(void)
{
	begin_with(&(struct rig_options){ .devices = 1, .device_cache = 3 * GAIA_CHUNK });
	park_all();
}

static struct {
	uint64_t store, hits, parked, dropped;
} before;

static void count_from_here(void)
{
	before.store = counter_value(CTR_storage_reads);
	before.hits = counter_value(CTR_victim_hits);
	before.parked = counter_value(CTR_victim_parked);
	before.dropped = counter_value(CTR_victim_dropped);
}

#define expect_counted(stored, hit)                                                  \
	do {                                                                         \
		cr_assert_eq(counter_value(CTR_storage_reads) - before.store, stored); \
		cr_assert_eq(counter_value(CTR_victim_hits) - before.hits, hit);     \
	} while (0)

Test(victims, are_read_from_the_device_and_stay_there)
{
	begin_parked();
	for (unsigned k = 0; k < 3; k++) {
		count_from_here();
		read_all();
		expect_counted(0, PAGES);
		settle();
		/* Nothing has changed: the slots are good for the next time. */
		forget_home();
		cr_assert_eq(counter_value(CTR_victim_parked), before.parked);
	}
	cr_assert_eq(parked(), PAGES);
	end();
}

/* What a page takes from there is what was learned of a device: not the guess about the host, of which nothing ever was. */
Test(victims, are_told_what_they_take)
{
	json_int_t page, guess;
	json_t *status;

	begin_with(&(struct rig_options){ .devices = 1, .host = true, .device_cache = 3 * GAIA_CHUNK });
	guess = (json_int_t)read_cost_ns(&rig->cache->dev[1].read_cost, 1, 1);
	park_all();
	/* Dearer than the guess. */
	for (unsigned k = 0; k < 50; k++)
		read_cost_learn(&rig->cache->dev[0].read_cost, 1, 1, 3 * (uint64_t)guess);
	status = cache_status_json(rig->cache);
	for (unsigned tier = 1; tier <= 2; tier++) {
		page = json_integer_value(json_object_get(json_array_get(json_object_get(status, "tiers"), tier), "page_ns"));
		cr_assert_gt(page, 2 * guess);
	}
	json_decref(status);
	end();
}

Test(victims, are_what_left_home_before)
{
	begin_with(&(struct rig_options){ .devices = 1, .device_cache = 3 * GAIA_CHUNK });
	fault_arm("source.store_is_dear", -ENOSPC, 0, 0);
	/* It was written, and has left once by now. What leaves again is wanted, as soon as there is room. */
	cr_assert_eq(parked(), 0);
	for (unsigned tries = 0; parked() < PAGES; tries++) {
		cr_assert_lt(tries, 10000u);
		read_all();
		forget_home();
		settle();
	}
	/* As much as is read once pushes nothing out, and is not parked. */
	cr_assert_eq(cpu_truncate(kf, 3 * sizeof(bytes)), 0);
	for (unsigned i = 0; i < 2; i++)
		cr_assert_eq(cpu_read_direct(kf, seen, sizeof(seen), (i + 1) * sizeof(seen)), (ssize_t)sizeof(seen));
	forget_home();
	cr_assert_eq(parked(), PAGES);
	end();
}

Test(victims, are_what_the_kernel_had_and_asks_for_again)
{
	begin_with(&(struct rig_options){ .devices = 1, .device_cache = 3 * GAIA_CHUNK });
	fault_arm("source.store_is_dear", -ENOSPC, 0, 0);
	/* Home gives what it reads to the kernel and keeps nothing of it; the kernel drops it. */
	for (unsigned tries = 0; parked() < PAGES; tries++) {
		cr_assert_lt(tries, 10000u);
		cr_assert_eq(cpu_read(kf, seen, sizeof(seen), 0), (ssize_t)sizeof(seen));
		cr_assert_arr_eq(seen, bytes, sizeof(seen));
		cr_assert_eq(rig_frames(rig), 0);
		kernel_reclaim(kf, 0, 0);
		settle();
	}
	count_from_here();
	cr_assert_eq(cpu_read(kf, seen, sizeof(seen), 0), (ssize_t)sizeof(seen));
	cr_assert_arr_eq(seen, bytes, sizeof(seen));
	expect_counted(0, PAGES);
	end();
}

Test(victims, of_a_page_that_is_written_are_forgotten)
{
	begin_parked();
	/* Home does not have them: whole pages, and a part. */
	mark(5, 1);
	mark(599, 1);
	cr_assert_eq(cpu_write_direct(kf, bytes + AT(5), GAIA_PAGE, AT(5)), 0);
	cr_assert_eq(cpu_write_direct(kf, bytes + AT(599) + 100, GAIA_PAGE - 100, AT(599) + 100), 0);
	memcpy(bytes + AT(599), seen + AT(599), 100);
	cr_assert_eq(parked(), PAGES - 2);
	settle();
	/* And of one that it has. */
	cr_assert_eq(cpu_read_direct(kf, seen, GAIA_PAGE, AT(300)), (ssize_t)GAIA_PAGE);
	mark(300, 1);
	cr_assert_eq(cpu_write_direct(kf, bytes + AT(300), GAIA_PAGE, AT(300)), 0);
	cr_assert_eq(parked(), PAGES - 3);
	fault_disarm_all();
	forget_home();
	read_all();
	/* By way of the kernel's pages. */
	mark(40, 1);
	cr_assert_eq(cpu_write(kf, bytes + AT(40), GAIA_PAGE, AT(40)), 0);
	forget_home();
	read_all();
	end();
}

Test(victims, of_a_page_that_a_device_releases_are_forgotten)
{
	struct client *cl;

	begin_parked();
	cl = client_create(kf, 0, GAIA_PROT_RW, sizeof(bytes));
	count_from_here();
	cr_assert_eq(client_acquire(cl, 0, AT(10), GAIA_PROT_RW), 0);
	expect_counted(0, 10);
	mark(3, 1);
	client_store(cl, bytes + AT(3), GAIA_PAGE, AT(3));
	cr_assert_eq(client_release(cl, 0, AT(10)), 0);
	read_all();
	cr_assert_eq(parked(), PAGES - 1);
	settle();
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	forget_home();
	read_all();
	end();
}

Test(victims, of_what_is_cut_off_are_forgotten)
{
	begin_parked();
	cr_assert_eq(cpu_truncate(kf, AT(550) + 10), 0);
	cr_assert_leq(parked(), 550u);
	cr_assert_eq(cpu_truncate(kf, AT(PAGES)), 0);
	memset(bytes + AT(550) + 10, 0, sizeof(bytes) - AT(550) - 10);
	read_all();
	settle();
	/* In a chunk whose pages are absent: none of them has ever been looked at. */
	forget_home();
	cr_assert_eq(cpu_truncate(kf, AT(64)), 0);
	cr_assert_eq(parked(), 64);
	cr_assert_eq(cpu_truncate(kf, AT(PAGES)), 0);
	memset(bytes + AT(64), 0, sizeof(bytes) - AT(64));
	read_all();
	end();
}

Test(victims, of_a_page_that_home_has_are_forgotten_when_it_is_cut)
{
	begin_parked();
	read_all();
	cr_assert_eq(cpu_truncate(kf, AT(550) + 10), 0);
	cr_assert_eq(parked(), 550);
	settle();
	cr_assert_eq(cpu_truncate(kf, AT(PAGES)), 0);
	memset(bytes + AT(550) + 10, 0, sizeof(bytes) - AT(550) - 10);
	forget_home();
	read_all();
	end();
}

Test(victims, of_a_hole_are_forgotten)
{
	begin_parked();
	/* A part of the second page, and of the tenth; some of the whole pages between are home. */
	cr_assert_eq(cpu_read_direct(kf, seen, AT(3), AT(4)), (ssize_t)AT(3));
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, AT(1) + 50, AT(9)), 0);
	memset(bytes + AT(1) + 50, 0, AT(9));
	read_all();
	settle();
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_ZERO_RANGE, AT(500), AT(50)), 0);
	memset(bytes + AT(500), 0, AT(50));
	forget_home();
	read_all();
	end();
}

/* As when others need the memory: whoever works on the range is not waited for. */
static void shrink_home(void)
{
	struct chunk **list;
	unsigned n = chunk_list_get(kf->cfile, 0, (sizeof(bytes) - 1) / GAIA_CHUNK, &list);

	for (unsigned k = 0; k < n; k++) {
		chunk_shrink(list[k], true, false);
		chunk_put(list[k]);
	}
	free(list);
}

static void *punch_tenth(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, AT(10), AT(1));
}

/* It leaves home when storage has the hole and home still has what was there. */
Test(victims, that_leave_home_while_a_hole_is_punched_are_forgotten, .timeout = 200)
{
	pthread_t thread;
	void *err;

	begin_parked();
	read_all();
	fault_hold("allocate.forgot");
	cr_assert_eq(pthread_create(&thread, NULL, punch_tenth, NULL), 0);
	fault_await_held("allocate.forgot");
	shrink_home();
	cr_assert_eq(parked(), PAGES, "the tenth, too");
	fault_let_go("allocate.forgot");
	pthread_join(thread, &err);
	cr_assert_null(err);
	memset(bytes + AT(10), 0, GAIA_PAGE);
	read_all();
	settle();
	end();
}

Test(victims, are_forgotten_with_the_file)
{
	begin_parked();
	kfile_end(kf, true);
	kf = kfile_create(rig, 2, 100);
	cr_assert_eq(parked(), 0);
	end();
}

Test(victims, of_a_forgotten_file_are_not_kept)
{
	begin_parked();
	read_all();
	kfile_end(kf, false);
	cr_assert_eq(parked(), 0);
	kf = kfile_create(rig, 1, sizeof(bytes));
	read_all();
	end();
}

Test(victims, are_forgotten_on_request)
{
	begin_parked();
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, AT(510), AT(10)), 0);
	cr_assert_eq(parked(), PAGES - 10);
	count_from_here();
	read_all();
	expect_counted(10, PAGES - 10);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
	cr_assert_eq(parked(), 0);
	end();
}

Test(victims, are_not_of_files_that_are_passed_through)
{
	begin_with(&(struct rig_options){ .devices = 1, .device_cache = 3 * GAIA_CHUNK, .passthrough = true });
	want_all();
	(void)client_create(kf, 0, GAIA_PROT_RW, sizeof(bytes));
	for (unsigned k = 0; k < 3; k++) {
		struct client *cl = SLIST_FIRST(&rig->clients);

		cr_assert_eq(client_acquire(cl, 0, sizeof(bytes), GAIA_PROT_READ), 0);
		cr_assert_eq(client_release(cl, 0, sizeof(bytes)), 0);
		cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	}
	cr_assert_eq(parked(), 0);
	end();
}

/* ---- replicas come first ---- */

/* victim_bytes() counts those that are still being made, too. */
static unsigned slabs_made(void)
{
	struct victims *v = rig->cache->victims;
	unsigned n;

	pthread_mutex_lock(&v->lock);
	n = v->dev[0].n_slabs;
	pthread_mutex_unlock(&v->lock);
	return n;
}

Test(victims, give_way_to_replicas)
{
	static char all[4 * GAIA_CHUNK];
	uint64_t evicted, given_up;
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 4, .device_cache = CACHE_DEVICE_AUTO }, sizeof(all));
	memset(all, 'x', sizeof(all));
	cr_assert_eq(cpu_write_direct(kf, all, sizeof(all), 0), 0);
	want_all();
	/* It leaves some of the device free. */
	for (unsigned tries = 0; victim_bytes(&rig->cache->dev[0]) < 3 * GAIA_CHUNK || slabs_made() < 3; tries++) {
		cr_assert_lt(tries, 10000u);
		cr_assert_eq(cpu_read_direct(kf, all, sizeof(all), 0), (ssize_t)sizeof(all));
		forget_home();
		settle();
	}
	cr_assert_eq(rig_device_used(rig, 0), 0);
	cl = new_client(0);
	evicted = counter_value(CTR_device_evicted);
	given_up = counter_value(CTR_victim_given_up);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(counter_value(CTR_device_evicted), evicted);
	cr_assert_geq(counter_value(CTR_victim_given_up), given_up + 3);
	cr_assert_eq(victim_bytes(&rig->cache->dev[0]), 0);
	cr_assert_eq(parked(), 0);
	client_load(cl, all, sizeof(all), 0);
	for (unsigned i = 0; i < sizeof(all); i += 1000)
		cr_assert_eq(all[i], 'x');
	end();
}

/* ---- what fails, and what is under way ---- */

Test(victims, that_do_not_get_there_are_forgotten)
{
	begin_with(&(struct rig_options){ .devices = 1, .device_cache = 3 * GAIA_CHUNK });
	park_all();
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
	read_all();
	fault_arm("device.copy_in", -EIO, 0, 0);
	forget_home();
	settle();
	cr_assert_eq(parked(), 0);
	fault_disarm_all();
	want_all();
	fault_arm("device.submit", -EIO, 0, 0);
	read_all();
	forget_home();
	settle();
	cr_assert_eq(parked(), 0);
	read_all();
	end();
}

Test(victims, that_cannot_be_read_are_forgotten)
{
	begin_parked();
	fault_arm("device.copy_out", -EIO, 0, 1);
	count_from_here();
	read_all();
	cr_assert_gt(counter_value(CTR_storage_reads), before.store);
	cr_assert_lt(parked(), PAGES);
	settle();
	forget_home();
	read_all();
	end();
}

Test(victims, on_a_device_that_is_lost_cost_nothing)
{
	begin_parked();
	fault_arm("device.submit", -ENODEV, 0, 0);
	fault_arm("device.alloc", -ENODEV, 0, 0);
	read_all();
	forget_home();
	read_all();
	settle();
	for (unsigned tries = 0; victim_bytes(&rig->cache->dev[0]) > 0; tries++) {
		cr_assert_lt(tries, 60000u);
		usleep(1000);
	}
	cr_assert_eq(parked(), 0);
	end();
}

static void nothing_else(unsigned round)
{
}

Test(victims, survive_the_failure_of_any_operation)
{
	fail_each_operation(begin_parked, nothing_else);
}

static int forget_call(void *arg)
{
	(void)arg;
	return cache_evict(kf->cfile, GAIA_FROM_HOME, 0, AT(VICTIM_BATCH));
}

/* Of one batch; the others are home still. */
Test(victims, that_are_under_way_return_without_the_store)
{
	struct held forget = { .point = "device.copy_in", .call = forget_call };
	uint64_t returned;

	begin_with(&(struct rig_options){ .devices = 1, .device_cache = 3 * GAIA_CHUNK });
	park_all();
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
	read_all();
	cr_assert_eq(cpu_fsync(kf), 0);
	returned = counter_value(CTR_victim_returned);
	held_begin(&forget);
	count_from_here();
	/* Once it is home it is that no more, and may change. */
	read_all();
	mark(100, 1);
	cr_assert_eq(cpu_write_direct(kf, bytes + AT(100), GAIA_PAGE, AT(100)), 0);
	read_all();
	expect_counted(0, 0);
	cr_assert_eq(counter_value(CTR_victim_returned) - returned, VICTIM_BATCH);
	cr_assert_eq(held_end(&forget), 0);
	settle();
	forget_home();
	read_all();
	end();
}

Test(victims, that_are_under_way_may_change)
{
	begin_with(&(struct rig_options){ .devices = 1, .device_cache = 3 * GAIA_CHUNK, .latency_ns = 20000000 });
	park_all();
	for (unsigned k = 1; k < 4; k++) {
		cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
		read_all();
		forget_home();
		/* Some of it is on its way. */
		mark(100, k);
		cr_assert_eq(cpu_write_direct(kf, bytes + AT(100), GAIA_PAGE, AT(100)), 0);
		read_all();
		settle();
		forget_home();
		read_all();
	}
	end();
}

static int read_call(void *arg)
{
	(void)arg;
	return (int)cpu_read_direct(kf, seen, sizeof(seen), 0);
}

static void *acquire_call(void *arg)
{
	cr_assert_eq(client_acquire(arg, 0, sizeof(bytes), GAIA_PROT_READ), 0);
	return NULL;
}

/* Some slab is about to go, and what is read from it has not come yet. */
static bool one_leaves(void)
{
	struct victims *v = rig->cache->victims;
	bool leaves = false;

	pthread_mutex_lock(&v->lock);
	for (unsigned k = 0; k < 2; k++)
		leaves |= v->slab[k] && v->slab[k]->leaves && v->slab[k]->n_busy > 0;
	pthread_mutex_unlock(&v->lock);
	return leaves;
}

Test(victims, stay_while_they_are_read, .timeout = 200)
{
	struct held reads = { .point = "device.copy_out", .call = read_call };
	struct client *cl;
	pthread_t acquires;

	begin_with(&(struct rig_options){ .devices = 1, .device_chunks = 2, .device_cache = 2 * GAIA_CHUNK });
	park_all();
	cl = client_create(kf, 0, GAIA_PROT_READ, sizeof(bytes));
	held_begin(&reads);
	cr_assert_eq(pthread_create(&acquires, NULL, acquire_call, cl), 0);
	while (!one_leaves())
		sched_yield();
	cr_assert_eq(held_end(&reads), (int)sizeof(seen));
	cr_assert_arr_eq(seen, bytes, sizeof(seen));
	pthread_join(acquires, NULL);
	cr_assert_eq(victim_bytes(&rig->cache->dev[0]), 0);
	end();
}

/* ---- a home that is too small ---- */

#define LARGE 3000u /* pages: home has 2,048 */

static unsigned page_of(unsigned i)
{
	return i * 1009 % LARGE; /* in no order that anybody reads ahead for */
}

/* How many of the pages the store was read for. */
static uint64_t read_large(void)
{
	uint64_t reads = counter_value(CTR_storage_reads);

	for (unsigned i = 0; i < LARGE; i++) {
		cr_assert_eq(cpu_read_direct(kf, seen, GAIA_PAGE, AT(page_of(i))), (ssize_t)GAIA_PAGE);
		cr_assert_eq(*(unsigned *)seen, page_of(i));
	}
	return counter_value(CTR_storage_reads) - reads;
}

static void begin_large(uint64_t cache)
{
	begin(&(struct rig_options){ .devices = 1, .device_chunks = 8, .device_cache = cache, .home_bytes = CACHE_HOME_MIN }, AT(LARGE));
	for (unsigned i = 0; i < LARGE; i++) {
		*(unsigned *)seen = i;
		cr_assert_eq(cpu_write_direct(kf, seen, GAIA_PAGE, AT(i)), 0);
	}
	cr_assert_eq(cpu_fsync(kf), 0);
}

Test(victims, save_reading_the_store_for_what_does_not_fit_home)
{
	uint64_t without, with = LARGE;

	begin_large(0);
	(void)read_large();
	without = read_large();
	end();
	begin_large(6 * GAIA_CHUNK);
	fault_arm("source.store_is_dear", -ENOSPC, 0, 0);
	/* Slabs are made meanwhile. */
	for (unsigned k = 0; k < 1000 && with * 4 >= without; k++)
		with = read_large();
	cr_log_info("the store was read for %lu of %u pages without, %lu with", without, LARGE, with);
	cr_assert_lt(with * 4, without);
	settle();
	end();
}

static void *acquire_all_the_time(void *arg)
{
	struct client *cl = arg;

	for (unsigned k = 0; k < 40; k++) {
		uint64_t off = k % 2 ? 0 : 2 * GAIA_CHUNK;

		if (!client_acquire(cl, off, 2 * GAIA_CHUNK, GAIA_PROT_READ))
			(void)client_release(cl, off, 2 * GAIA_CHUNK);
		if (k % 5 == 0)
			(void)cache_evict(cl->kf->cfile, 0, 0, 0);
	}
	return NULL;
}

/* Fills need frames, whose eviction parks pages, on a device where acquires take the slabs back meanwhile. */
Test(victims, nobody_waits_for_anybody_in_a_circle)
{
	struct client *cl;
	pthread_t thread;

	begin_large(CACHE_DEVICE_AUTO);
	want_all();
	cl = client_create(kf, 0, GAIA_PROT_READ, AT(LARGE));
	cr_assert_eq(pthread_create(&thread, NULL, acquire_all_the_time, cl), 0);
	for (unsigned k = 0; k < 3; k++)
		(void)read_large();
	pthread_join(thread, NULL);
	settle();
	end();
}

/* ---- what is wrong is found ---- */

static void no_core(void)
{
	setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
}

static void write_and_keep_slot(unsigned page)
{
	begin_parked();
	fault_arm("break.stale_parked", -EEXIST, 0, 0);
	mark(page, 1);
	cr_assert_eq(cpu_write_direct(kf, bytes + AT(page), GAIA_PAGE, AT(page)), 0);
}

Test(victims, that_are_stale_are_found, .init = no_core, .signal = SIGABRT)
{
	write_and_keep_slot(5);
	cache_check(rig->cache);
}

Test(victims, that_were_stale_would_show_what_was_before)
{
	write_and_keep_slot(5);
	forget_home();
	cr_assert_eq(cpu_read_direct(kf, seen, GAIA_PAGE, AT(5)), (ssize_t)GAIA_PAGE);
	cr_assert_neq(memcmp(seen, bytes + AT(5), GAIA_PAGE), 0);
	mark(5, 0);
	cr_assert_eq(memcmp(seen, bytes + AT(5), GAIA_PAGE), 0);
}
