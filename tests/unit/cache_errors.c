/*
 * cache_errors.c - what the page cache does when the store, a device or memory fails.
 *
 * The promises: an error is reported to the caller; nothing that was written or released is lost; what failed works
 * when it is tried again; and everything is accounted for (cache_check()).
 */
#include <inttypes.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "cache_scene.h"
#include "held.h"
#include "pagecache/cache.h"
#include "pagecache/file.h"
#include "pagecache/root.h"

/* ---- the store ---- */

Test(store_error, of_a_read_is_told_and_forgotten)
{
	begin_devices(1);
	fault_arm("store.read", -EIO, 0, 0);
	cr_assert_eq(cpu_read(kf, (char[1]){ 0 }, 1, 0), -EIO);
	cache_check(rig->cache);
	fault_disarm_all();
	cr_assert_eq(cpu_read(kf, (char[1]){ 0 }, 1, 0), 1);
	end();
}

/* One READ of 256 pages, and more of readahead: two calls to the store. */
static void begin_sequential(struct cache_read *rd)
{
	begin_devices(1);
	cr_assert_eq(cache_read_begin(kf->cfile, 0, GAIA_PAGE, true, rd), 0);
	cache_read_end(rd);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
}

Test(store_error, of_readahead_is_nobodys)
{
	struct cache_read rd;

	begin_sequential(&rd);
	fault_arm("store.read", -EIO, 1, 0);
	cr_assert_eq(cache_read_begin(kf->cfile, GAIA_PAGE, CACHE_READ_MAX, true, &rd), 0,
		     "what was asked for could be read");
	cr_assert_eq(rd.bytes, CACHE_READ_MAX);
	cache_read_end(&rd);
	end();
}

Test(store_error, in_the_middle_of_a_large_range_leaves_all_accounted_for)
{
	struct cache_read rd;

	begin_sequential(&rd);
	fault_arm("store.read", -EIO, 1, 0);
	/* The first of two chunks comes. */
	cr_assert_eq(cache_read_begin(kf->cfile, GAIA_CHUNK - GAIA_PAGE, 2 * GAIA_PAGE, true, &rd),
		     -EIO);
	cache_check(rig->cache);
	/* And the first half of a chunk. */
	fault_arm("store.read", -EIO, 1, 0);
	cr_assert_eq(cache_write(kf->cfile, "x", 1, 1, CACHE_WRITE_EXACT), 0);
	cr_assert_eq(cache_write(kf->cfile, "x", 1, 2 * GAIA_PAGE + 1, CACHE_WRITE_EXACT), -EIO);
	end();
}

Test(store_error, of_a_partial_write_is_told)
{
	begin_devices(1);
	fault_arm("store.read", -EIO, 0, 1);
	cr_assert_eq(cache_write(kf->cfile, "x", 1, 5, CACHE_WRITE_EXACT), -EIO);
	cache_check(rig->cache);
	cr_assert_eq(cache_write(kf->cfile, "x", 1, 5, CACHE_WRITE_EXACT), 0);
	expect_cpu(5, "x");
	end();
}

Test(store_error, of_writeback_is_told_once_to_each_cursor_and_the_data_stays)
{
	uint64_t cursor, other;

	begin_devices(1);
	cursor = other = cfile_error_now(kf->cfile);
	write_cpu(10, "kept");
	fault_arm("store.write", -ENOSPC, 0, 1);
	cr_assert_eq(cpu_fsync(kf), -ENOSPC);
	cr_assert_eq(cfile_error_check(kf->cfile, &cursor), -ENOSPC);
	cr_assert_eq(cfile_error_check(kf->cfile, &cursor), 0);
	cr_assert_eq(cfile_error_check(kf->cfile, &other), -ENOSPC);
	cr_assert_eq(cfile_error_check(kf->cfile, &other), 0);
	other = cfile_error_now(kf->cfile);
	cr_assert_eq(cfile_error_check(kf->cfile, &other), 0, "of before it was opened");
	cache_check(rig->cache);
	expect_cpu(10, "kept");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(10, "kept");
	end();
}

Test(store_error, of_an_eviction_drops_nothing)
{
	begin_devices(1);
	write_cpu(10, "kept");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	fault_arm("store.write", -ENOSPC, 0, 1);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), -ENOSPC);
	kernel_reclaim(kf, 0, 0);
	expect_cpu(10, "kept");
	cr_assert_eq(cache_flush(kf->cfile), 0);
	expect_store(10, "kept");
	end();
}

static json_int_t pages_dirty(void)
{
	json_t *status = cache_status_json(rig->cache);
	json_int_t n = json_integer_value(json_object_get(json_object_get(status, "home"), "dirty"));

	json_decref(status);
	return n;
}

Test(store_error, of_writeback_by_age_is_tried_again)
{
	char buf[5] = "";

	begin(&(struct rig_options){ .age_ms = 1 }, GAIA_PAGE);
	fault_arm("store.write", -EIO, 0, 3);
	write_cpu(0, "later");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	while (memcmp(buf, "later", 5) != 0)
		store_peek(kf, buf, 5, 0);
	/* The page is still the flusher's when its bytes are there. */
	while (pages_dirty())
		;
	end();
}

/* One failure a round of the flusher's would come to the other file after all of these chunks. */
#define CHUNKS_THAT_FAIL 40

Test(store_error, of_one_file_keeps_no_other_from_being_stored_by_age)
{
	struct kfile *other;
	static const char page[GAIA_PAGE] = "O"; /* whole: nothing has to be read */
	uint64_t failed;
	char byte = 0;

	begin(&(struct rig_options){ .age_ms = 1000 }, CHUNKS_THAT_FAIL * GAIA_CHUNK);
	other = kfile_create(rig, 2, 2 * GAIA_CHUNK);
	cr_assert_eq(cpu_write(other, "o", 1, 0), 0);
	cr_assert_eq(cpu_fsync(other), 0); /* it is open for writing now */
	fault_arm("store.open", -EDQUOT, 0, 0);
	failed = cfile_error_now(kf->cfile);
	for (unsigned k = 0; k < CHUNKS_THAT_FAIL; k++)
		cr_assert_eq(cache_write(kf->cfile, page, GAIA_PAGE, (off_t)(k * GAIA_CHUNK), CACHE_WRITE_EXACT), 0);
	/* Another chunk, which has not been on the list yet. */
	cr_assert_eq(cache_write(other->cfile, page, GAIA_PAGE, GAIA_CHUNK, CACHE_WRITE_EXACT), 0);
	while (byte != 'O')
		store_peek(other, &byte, 1, GAIA_CHUNK);
	failed = cfile_error_now(kf->cfile) - failed;
	cr_assert_gt(failed, 0);
	cr_assert_lt(failed, CHUNKS_THAT_FAIL / 2, "%" PRIu64 " attempts came first", failed);
	end();
}

Test(store_error, of_opening_for_writing_is_told_to_fsync)
{
	begin_devices(1);
	write_cpu(0, "x");
	fault_arm("store.open", -EACCES, 0, 1);
	cr_assert_eq(cpu_fsync(kf), -EACCES);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "x");
	end();
}

Test(store_error, of_sync_is_told)
{
	begin_devices(1);
	write_cpu(0, "x");
	fault_arm("store.sync", -EIO, 0, 1);
	cr_assert_eq(cpu_fsync(kf), -EIO);
	cr_assert_eq(cpu_fsync(kf), 0);
	end();
}

/* Linux says once that it could not write what it took, and drops it. */
Test(store_error, of_sync_makes_what_was_stored_be_stored_again)
{
	uint64_t stored;

	begin_devices(1);
	write_cpu(0, "x");
	write_cpu(5 * GAIA_PAGE, "y");
	cr_assert_eq(cpu_read(kf, (char[1]){ 0 }, 1, 3 * GAIA_PAGE), 1); /* is no reason to store it */
	fault_arm("store.sync", -EIO, 0, 2);
	cr_assert_eq(cpu_fsync(kf), -EIO);
	cache_check(rig->cache);
	for (int i = 0; i < 3; i++) {
		stored = counter_value(CTR_storage_writes);
		cr_assert_eq(cpu_fsync(kf), i == 0 ? -EIO : 0);
		cr_assert_eq(counter_value(CTR_storage_writes) - stored, i < 2 ? 2 : 0, "sync %d", i);
	}
	end();
}

/* A write of many pages that gets memory for some of them only. */
static void write_short_of_memory(void)
{
	char *bytes = malloc(GAIA_CHUNK);

	memset(bytes, 'n', GAIA_CHUNK);
	/* Of the one slab that there is, so much that cannot be had for others. */
	cr_assert_eq(cpu_write_direct(kf, bytes, 240 * GAIA_PAGE, GAIA_CHUNK), 0);
	fault_arm("store.write", -ENOSPC, 0, 0);
	fault_arm("home.memory", -ENOMEM, 0, 0);
	cr_assert_eq(cpu_write_direct(kf, bytes, GAIA_CHUNK, 0), -ENOMEM);
	fault_disarm_all();
	free(bytes);
}

Test(memory_error, of_a_write_leaves_what_was_there)
{
	char seen[4] = "";

	begin_devices(1);
	cr_assert_eq(cpu_write_direct(kf, "old", 3, 0), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	write_short_of_memory();
	cache_check(rig->cache);
	cr_assert_eq(cpu_read_direct(kf, seen, 3, 0), 3);
	cr_assert_str_eq(seen, "old");
	end();
}

static int flush_file(void *none)
{
	return cache_flush(kf->cfile);
}

static int sync_first_page(void *none)
{
	return cache_fsync(kf->cfile, 0, GAIA_PAGE, true);
}

Test(store_error, of_sync_is_none_of_publish)
{
	uint64_t stored;

	begin_devices(1);
	write_cpu(0, "x");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	stored = counter_value(CTR_storage_writes);
	fault_arm("store.sync", -EIO, 0, 1);
	cr_assert_eq(cache_publish(kf->cfile, 0, GAIA_PAGE), 0);
	cr_assert_eq(counter_value(CTR_storage_writes) - stored, 1);
	cr_assert_eq(sync_first_page(NULL), -EIO);
	cr_assert_eq(sync_first_page(NULL), 0);
	end();
}

/* The disk refuses what somebody has just given it, and tells somebody else. */
Test(store_error, of_sync_makes_what_is_being_stored_be_stored_again)
{
	struct held flush = { .point = "store.written", .call = flush_file };
	uint64_t stored;

	begin_devices(1);
	write_cpu(0, "x");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	held_begin(&flush);
	fault_arm("store.sync", -EIO, 0, 1);
	cr_assert_eq(cache_fsync(kf->cfile, GAIA_CHUNK, GAIA_PAGE, true), -EIO);
	cr_assert_eq(held_end(&flush), -EIO);
	cache_check(rig->cache);
	stored = counter_value(CTR_storage_writes);
	cr_assert_eq(sync_first_page(NULL), 0);
	cr_assert_eq(counter_value(CTR_storage_writes) - stored, 1);
	end();
}

Test(store_error, of_sync_is_told_to_a_sync_that_stored_before_it)
{
	struct held sync = { .point = "store.sync", .call = sync_first_page };

	begin_devices(1);
	write_cpu(0, "x");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	held_begin(&sync);
	fault_arm("store.sync", -EIO, 0, 1);
	cr_assert_eq(cache_fsync(kf->cfile, GAIA_CHUNK, GAIA_PAGE, true), -EIO);
	cr_assert_eq(held_end(&sync), -EIO, "its page is dirty again");
	cr_assert_eq(sync_first_page(NULL), 0);
	end();
}

/* Of two at the same time the store may tell only one. */
Test(store_error, of_sync_is_told_to_a_sync_that_ends_at_the_same_time)
{
	struct held told = { .point = "store.synced", .call = sync_first_page };
	struct held other = { .point = "store.sync", .call = sync_first_page };

	begin_devices(1);
	write_cpu(0, "x");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	fault_arm("store.sync", -EIO, 0, 1);
	held_begin(&told);
	held_begin(&other);
	fault_let_go(other.point);
	/* Time for a sync that would not wait. */
	for (int k = 0; k < 1000; k++)
		sched_yield();
	cr_assert_eq(held_end(&told), -EIO);
	cr_assert_eq(held_end(&other), -EIO);
	cr_assert_eq(sync_first_page(NULL), 0);
	end();
}

/* Nor is one that begins when the error was told, but what it is about is not dirty again yet. */
Test(store_error, of_sync_is_told_to_a_sync_that_begins_before_the_other_is_over)
{
	struct held told = { .point = "store.synced", .call = sync_first_page };
	struct held other = { .point = "store.sync", .call = sync_first_page };
	struct cache_read rd;

	begin_devices(1);
	write_cpu(0, "x");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	cr_assert_eq(cache_flush(kf->cfile), 0);
	fault_arm("store.sync", -EIO, 0, 1);
	held_begin(&told);
	/* A reader of the page keeps it as it is. */
	cr_assert_eq(cache_read_begin(kf->cfile, 0, 1, false, &rd), 0);
	fault_let_go(told.point);
	while (atomic_load(&kf->cfile->syncs_failed) == 0)
		sched_yield();
	held_begin(&other);
	cache_read_end(&rd);
	cr_assert_eq(held_end(&told), -EIO);
	cr_assert_eq(held_end(&other), -EIO, "its page is dirty again");
	cr_assert_eq(sync_first_page(NULL), 0);
	end();
}

static int set_old_time(void *arg)
{
	struct timespec ts[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = 1000 } };
	struct store_file *sf;

	cr_assert_eq(store_open(rig->mem, kf->ref, true, &sf), 0);
	cr_assert_eq(sf->ops->utimens(sf, ts), 0);
	sf->ops->close(sf);
	return 0;
}

Test(store_error, of_sync_leaves_the_time_of_what_is_stored_again)
{
	struct store_file *sf;
	struct stat st;

	begin_devices(1);
	write_cpu(0, "x");
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_set_times(kf->cfile, set_old_time, NULL), 0);
	fault_arm("store.sync", -EIO, 0, 1);
	cr_assert_eq(cpu_fsync(kf), -EIO);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(store_open(rig->mem, kf->ref, false, &sf), 0);
	cr_assert_eq(sf->ops->stat(sf, &st), 0);
	sf->ops->close(sf);
	cr_assert_eq(st.st_mtim.tv_sec, 1000);
	end();
}

/* What cannot be stored is kept, but does not take all of the machine's memory. */
Test(store_error, of_writeback_bounds_what_is_taken)
{
	static char bytes[1 << 20];
	json_t *status;
	int err = 0;

	begin(&(struct rig_options){ .home_bytes = CACHE_HOME_MIN }, 64 * sizeof(bytes));
	fault_arm("store.write", -ENOSPC, 0, 0);
	for (int i = 0; i < 64 && !err; i++)
		err = cache_write(kf->cfile, bytes, sizeof(bytes), (off_t)(i * sizeof(bytes)),
				  CACHE_WRITE_EXACT);
	cr_assert_eq(err, -ENOSPC);
	status = cache_status_json(rig->cache);
	cr_assert_leq((uint64_t)json_integer_value(json_object_get(json_object_get(status, "home"), "dirty")),
		      CACHE_HOME_MIN + sizeof(bytes));
	json_decref(status);
	cache_check(rig->cache);
	fault_disarm_all();
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_write(kf->cfile, bytes, sizeof(bytes), 0, CACHE_WRITE_EXACT), 0);
	end();
}

/* It is in the kernel's page, which a release has to drop. */
Test(store_error, of_a_write_back_does_not_hide_what_is_released_next)
{
	static char page[GAIA_PAGE];
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	write_cpu(0, "old");
	write_device(cl, 0, "new");
	release_all(cl);
	cr_assert(!kernel_has(kf, 0));
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_RW), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	memset(page, 'c', sizeof(page));
	cr_assert_eq(cpu_write(kf, page, sizeof(page), 0), 0);
	fault_arm("store.read", -EIO, 0, 0);
	fault_arm("device.copy_out", -EIO, 0, 0);
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), -EIO);
	fault_disarm_all();
	client_store(cl, "dev", 3, 0);
	release_all(cl);
	expect_cpu(0, "dev");
	end();
}

Test(store_error, of_a_read_fails_an_acquire_whole)
{
	struct client *cl;

	begin_devices(1);
	cl = client_create(kf, 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	/* The first chunk comes, the third does not. */
	cr_assert_eq(cpu_read_direct(kf, (char[1]){ 0 }, 1, 0), 1);
	fault_arm("store.read", -EIO, 4, 0);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), -EIO);
	fault_disarm_all();
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	end();
}

Test(store_error, of_a_truncate_changes_nothing)
{
	struct client *cl;

	begin_devices(1);
	write_cpu(100, "stays");
	cl = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	write_device(cl, 200, "too");
	cr_assert_eq(client_release(cl, 200, 3), 0);
	fault_arm("store.truncate", -EIO, 0, 1);
	cr_assert_eq(cpu_truncate(kf, 10), -EIO);
	cache_check(rig->cache);
	cr_assert_eq(cfile_size(kf->cfile), 4 * GAIA_CHUNK);
	expect_cpu(100, "stays");
	expect_cpu(200, "too");
	end();
}

/* A hole that the store will not make takes nothing from anybody. */
Test(store_error, of_a_hole_changes_nothing)
{
	begin_devices(1);
	write_cpu(100, "stays");
	fault_arm("store.allocate", -EOPNOTSUPP, 0, 1);
	cr_assert_eq(cpu_allocate(kf, 3, 0, GAIA_PAGE), -EOPNOTSUPP);
	cache_check(rig->cache);
	expect_cpu(100, "stays");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(100, "stays");
	end();
}

/* ---- devices ---- */

static void a_device_error_loses_nothing(const char *point, int expected_release)
{
	struct client *a, *b;
	int err;

	begin_devices(2);
	a = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	b = client_create(kf, 1, GAIA_PROT_RW, GAIA_CHUNK);
	for (unsigned page = 0; page < 4; page++)
		write_cpu(page * GAIA_PAGE, "cpu.");
	cr_assert_eq(client_acquire(a, 0, 4 * GAIA_PAGE, GAIA_PROT_RW), 0);
	for (unsigned page = 0; page < 4; page++)
		client_store(a, "DEV", 3, page * GAIA_PAGE + 8);
	fault_arm(point, -EIO, 0, 1);
	err = client_release(a, 0, 4 * GAIA_PAGE);
	cr_assert_eq(err, expected_release, "%d", err);
	cache_check(rig->cache);
	if (err)
		cr_assert_eq(client_release(a, 0, 4 * GAIA_PAGE), 0);
	/* If it was not the release that failed, it is what fetches. */
	err = client_acquire(b, 0, 4 * GAIA_PAGE, GAIA_PROT_READ);
	cache_check(rig->cache);
	if (err)
		cr_assert_eq(client_acquire(b, 0, 4 * GAIA_PAGE, GAIA_PROT_READ), 0);
	for (unsigned page = 0; page < 4; page++) {
		expect_device(b, page * GAIA_PAGE, "cpu.");
		expect_device(b, page * GAIA_PAGE + 8, "DEV");
		expect_cpu(page * GAIA_PAGE, "cpu.");
		expect_cpu(page * GAIA_PAGE + 8, "DEV");
	}
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(3 * GAIA_PAGE + 8, "DEV");
	end();
}

Test(device_error, of_finding_changes_loses_none)
{
	a_device_error_loses_nothing("device.find_changed", -EIO);
}

/* A release has ended its holds, whatever errno the driver took: those that say that nothing has changed are not told. */
Test(device_error, of_a_release_does_not_say_that_nothing_has_changed)
{
	static const int error[] = { -EINVAL, -EINTR, -ENOTCONN, -ENOBUFS, -ENOSR };
	struct client *a;

	begin_devices(1);
	a = new_client(0);
	for (size_t k = 0; k < ARRAY_LEN(error); k++) {
		write_device(a, k * GAIA_PAGE, "new");
		fault_arm("device.find_changed", error[k], 0, 1);
		cr_assert_eq(client_release(a, k * GAIA_PAGE, GAIA_PAGE), -EIO, "for %s", strerror(-error[k]));
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
		expect_cpu(k * GAIA_PAGE, "new");
	}
	end();
}

Test(device_error, of_copying_out_loses_nothing)
{
	a_device_error_loses_nothing("device.copy_out", 0);
}

Test(device_error, of_copying_in_loses_nothing)
{
	a_device_error_loses_nothing("device.copy_in", 0);
}

Test(device_error, of_submission_loses_nothing)
{
	a_device_error_loses_nothing("device.submit", -EIO);
}

Test(device_error, of_copying_in_leaves_no_page_that_passes_for_current)
{
	struct client *a;

	begin_devices(1);
	for (unsigned page = 0; page < 4; page++)
		write_cpu(page * GAIA_PAGE, "right");
	a = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	fault_arm("device.copy_in", -EIO, 0, 1);
	cr_assert_eq(client_acquire(a, 0, 4 * GAIA_PAGE, GAIA_PROT_READ), -EIO);
	cache_check(rig->cache);
	for (unsigned page = 0; page < 4; page++)
		expect_device(a, page * GAIA_PAGE, "right");
	end();
}

/* As a step of its own, of what is there already, or of the copy. */
static void of_arming(const char *fault, bool there)
{
	struct client *a;

	begin_devices(1);
	a = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	if (there) {
		cr_assert_eq(client_acquire(a, 0, 4 * GAIA_PAGE, GAIA_PROT_READ), 0);
		cr_assert_eq(client_release(a, 0, 4 * GAIA_PAGE), 0);
	}
	fault_arm(fault, -EIO, 0, 1);
	cr_assert_eq(client_acquire(a, 0, 4 * GAIA_PAGE, GAIA_PROT_RW), -EIO);
	cache_check(rig->cache);
	for (unsigned page = 0; page < 4; page++)
		write_device(a, page * GAIA_PAGE, "seen");
	cr_assert_eq(client_release(a, 0, 4 * GAIA_PAGE), 0);
	for (unsigned page = 0; page < 4; page++)
		expect_cpu(page * GAIA_PAGE, "seen");
	end();
}

Test(device_error, of_arming_does_not_hide_writes) { of_arming("device.arm", true); }
Test(device_error, of_a_copy_that_arms_does_not_hide_writes) { of_arming("device.copy_in", false); }

/* Two clients of a device write a page; one acquires it again, which merges what the CPU wrote. */
Test(device_error, of_merging_into_a_page_that_is_being_written_loses_nothing)
{
	struct client *a, *b;

	begin_devices(1);
	a = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	b = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	for (unsigned page = 0; page < 4; page++)
		write_device(a, page * GAIA_PAGE, "aa");
	for (unsigned page = 0; page < 4; page++)
		write_cpu(page * GAIA_PAGE + 2, "cc");
	fault_arm("device.pull", -EIO, 0, 1);
	cr_assert_eq(client_acquire(b, 0, 4 * GAIA_PAGE, GAIA_PROT_RW), -EIO);
	cache_check(rig->cache);
	for (unsigned page = 0; page < 4; page++)
		client_store(a, "AA", 2, page * GAIA_PAGE + 4);
	cr_assert_eq(client_release(a, 0, 4 * GAIA_PAGE), 0);
	for (unsigned page = 0; page < 4; page++)
		expect_cpu(page * GAIA_PAGE, "aaccAA");
	end();
}

/* The snapshot fails: the released bytes must not be written over unsecured. */
Test(device_error, of_securing_is_told_before_anything_is_written_over)
{
	struct client *a;

	begin_devices(1);
	a = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	write_device(a, 0, "released");
	cr_assert_eq(client_release(a, 0, 8), 0);
	fault_arm("device.copy_within", -EIO, 0, 1);
	cr_assert_eq(client_acquire(a, 0, 8, GAIA_PROT_RW), -EIO);
	cache_check(rig->cache);
	write_device(a, 0, "private!");
	expect_cpu(0, "released");
	client_die(a);
	client_end(a);
	expect_cpu(0, "released");
	end();
}

/* Of two clients one releases; there is neither room for a snapshot nor a way to fetch. */
Test(device_error, of_the_only_way_out_of_a_shared_release_loses_nothing)
{
	struct client *a, *b;
	int err;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 1 }, GAIA_CHUNK);
	a = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	b = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	write_device(a, 0, "aa");
	write_device(b, 4, "bb");
	fault_arm("device.copy_out", -EIO, 0, 1);
	err = client_release(a, 0, 2);
	cache_check(rig->cache);
	if (err)
		cr_assert_eq(client_release(a, 0, 2), 0);
	expect_cpu(0, "aa");
	client_store(b, "BB", 2, 6);
	cr_assert_eq(client_release(b, 4, 2), 0);
	expect_cpu(4, "bbBB");
	end();
}

Test(device_error, of_allocation_is_enomem_and_leaves_nothing)
{
	struct client *a;

	begin_devices(1);
	a = client_create(kf, 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	fault_arm("device.alloc", -ENOMEM, 2, 0);
	cr_assert_eq(client_acquire(a, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), -ENOMEM);
	cache_check(rig->cache);
	fault_disarm_all();
	cr_assert_eq(client_acquire(a, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	end();
}

Test(device_error, of_export_leaves_nothing_held)
{
	struct client *a;

	begin_devices(1);
	a = client_create(kf, 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	fault_arm("device.export", -EMFILE, 2, 1);
	cr_assert_eq(client_acquire(a, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), -EMFILE);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(client_acquire(a, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	end();
}

Test(device_error, of_fetching_keeps_a_replica_that_was_to_be_evicted)
{
	struct client *a;

	begin_devices(1);
	a = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	write_device(a, 0, "kept");
	cr_assert_eq(client_release(a, 0, 4), 0);
	fault_arm("device.copy_out", -EIO, 0, 1);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EIO);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	expect_cpu(0, "kept");
	end();
}

Test(device_error, of_fetching_is_told_to_a_reader_and_to_fsync)
{
	struct client *a;
	char byte;

	begin_devices(1);
	a = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	write_device(a, 0, "kept");
	cr_assert_eq(client_release(a, 0, 4), 0);
	fault_arm("device.copy_out", -EIO, 0, 0);
	cr_assert_eq(cpu_read(kf, &byte, 1, 0), -EIO);
	cr_assert_eq(cpu_fsync(kf), -EIO);
	cache_check(rig->cache);
	fault_disarm_all();
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "kept");
	expect_cpu(0, "kept");
	end();
}

Test(device_error, of_reading_what_the_store_has_too_is_nobodys)
{
	struct client *a;
	char byte;

	begin_devices(1);
	a = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	cr_assert_eq(client_acquire(a, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	fault_arm("device.copy_out", -EIO, 0, 0);
	cr_assert_eq(cpu_read(kf, &byte, 1, 0), 1);
	end();
}

/* ---- a file's size ---- */

static struct store_file *below(int ref)
{
	struct store_file *sf;

	cr_assert_eq(store_open(rig->mem, ref, true, &sf), 0);
	return sf;
}

static atomic_int given_back;

static int no_open(void *cookie, bool write, struct store_file **out)
{
	return -EIO;
}

/* The file as it is below, and what has happened to it by the time that somebody asks. */
static int size_below(void *cookie, uint64_t *bytes)
{
	struct store_file *sf = cookie;
	struct stat st;
	int err = fault_point("source.size");

	if (!err)
		err = sf->ops->stat(sf, &st);
	if (!err)
		*bytes = (uint64_t)st.st_size;
	return err;
}

static void count_release(void *cookie)
{
	atomic_fetch_add(&given_back, 1);
}

static const struct cfile_source source = { .open = no_open, .size = size_below, .release = count_release };

struct got {
	struct store_file *below;
	struct cfile *file;
};

static int get(void *arg)
{
	struct got *g = arg;

	return cfile_get(rig->cache, 9, &source, g->below, &g->file);
}

static bool is_known(void)
{
	uint64_t key = 9;
	struct cfile *f;

	pthread_mutex_lock(&rig->cache->lock);
	HASH_FIND(hh, rig->cache->files, &key, sizeof(key), f);
	pthread_mutex_unlock(&rig->cache->lock);
	return f;
}

/*
 * A cfile that has more of the file than the store may end before the next one is made. So the next one asks for the size
 * once it exists: asked before, that might be the size from before.
 */
Test(sizes, are_asked_when_nobody_else_can_have_the_file_any_more)
{
	struct got g;
	struct held h = { .point = "source.size", .call = get, .arg = &g };

	begin(&(struct rig_options){ .devices = 0 }, 0);
	g.below = below(9);
	held_begin(&h);
	/* It is there already: nobody makes another one. */
	cr_assert(is_known());
	cr_assert_eq(g.below->ops->truncate(g.below, 12345), 0);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(cfile_size(g.file), 12345);
	/* One that exists does not ask: it may have more than the store. */
	cr_assert_eq(g.below->ops->truncate(g.below, 1), 0);
	cr_assert_eq(get(&g), 0);
	cr_assert_eq(cfile_size(g.file), 12345);
	cr_assert_eq(given_back, 1);
	cfile_put(g.file);
	cfile_put(g.file);
	cache_forget(rig->cache, 9);
	cr_assert_eq(given_back, 2);
	g.below->ops->close(g.below);
	end();
}

Test(sizes, that_cannot_be_had_leave_nothing_behind)
{
	struct got g;

	begin(&(struct rig_options){ .devices = 0 }, 0);
	g.below = below(9);
	fault_arm("source.size", -EIO, 0, 1);
	cr_assert_eq(get(&g), -EIO);
	cr_assert_eq(given_back, 1);
	cr_assert_eq(get(&g), 0);
	cfile_put(g.file);
	cr_assert_eq(given_back, 2);
	g.below->ops->close(g.below);
	end();
}
