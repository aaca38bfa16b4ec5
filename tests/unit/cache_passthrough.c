/*
 * cache_passthrough.c - files that processes have open past the cache: what goes wrong, and what is not done. That they
 * keep the contract is what cache_random.c and cache_threads.c see to.
 */
#include <sched.h>

#include "base/counters.h"
#include "base/fault.h"
#include "cache_scene.h"
#include "held.h"
#include "pagecache/cache.h"
#include "pagecache/file.h"

#define PAGE(n) ((uint64_t)(n) * GAIA_PAGE)

static struct client *dev;

static void begin_passthrough(void)
{
	begin(&(struct rig_options){ .devices = 2, .passthrough = true }, 4 * GAIA_CHUNK);
	dev = new_client(0);
}

static uint64_t home_pages(void)
{
	json_t *report = cfile_residency_json(kf->cfile);
	uint64_t n = (uint64_t)json_integer_value(json_object_get(report, "home"));

	json_decref(report);
	return n;
}

Test(passthrough, a_release_writes_the_changed_bytes_and_no_others)
{
	begin_passthrough();
	write_cpu(PAGE(1) + 100, "........");
	write_device(dev, PAGE(1) + 102, "de");
	/* A process that the device knows nothing of; the release comes after. */
	write_cpu(PAGE(1) + 101, "c");
	write_cpu(PAGE(1) + 104, "pu");
	release_all(dev);
	expect_store(PAGE(1) + 100, ".cdepu..");
	expect_cpu(PAGE(1) + 100, ".cdepu..");
	expect_device(dev, PAGE(1) + 100, ".cdepu..");
	end();
}

static int release_chunk(void *cl)
{
	return client_release(cl, 0, GAIA_CHUNK);
}

/* After the release has looked at what processes wrote. */
Test(passthrough, a_release_leaves_what_is_written_beside_it)
{
	struct held release = { .point = "store.write", .call = release_chunk };

	begin_passthrough();
	release.arg = dev;
	write_cpu(PAGE(1) + 100, "........");
	write_device(dev, PAGE(1) + 102, "de");
	held_begin(&release);
	write_cpu(PAGE(1) + 101, "c");
	write_cpu(PAGE(1) + 104, "pu");
	cr_assert_eq(held_end(&release), 0);
	expect_store(PAGE(1) + 100, ".cdepu..");
	expect_device(dev, PAGE(1) + 100, ".cdepu..");
	end();
}

Test(passthrough, of_racing_bytes_the_devices_wins_and_the_race_is_counted)
{
	uint64_t races;

	begin_passthrough();
	races = counter_value(CTR_merge_races);
	write_device(dev, 10, "D");
	write_cpu(10, "C");
	release_all(dev);
	expect_cpu(10, "D");
	cr_assert_eq(counter_value(CTR_merge_races) - races, 1);
	/* And what comes after the release wins over it. */
	write_cpu(10, "L");
	expect_device(dev, 10, "L");
	end();
}

Test(passthrough, what_cannot_be_stored_is_told_and_stored_later)
{
	begin_passthrough();
	write_cpu(0, "before..");
	write_device(dev, 0, "DEV");
	fault_arm("store.write", -ENOSPC, 0, 1);
	cr_assert_eq(client_release(dev, 0, GAIA_PAGE), -ENOSPC);
	cache_check(rig->cache);
	/* Other bytes, and one that races, are written meanwhile: the process's comes later. */
	write_cpu(6, "cpu");
	write_cpu(2, "c");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "DEcorecpu");
	expect_device(dev, 0, "DEcorecpu");
	end();
}

Test(passthrough, what_cannot_be_stored_is_acquired_by_others_all_the_same)
{
	struct client *other;

	begin_passthrough();
	other = new_client(1);
	write_device(dev, 0, "D");
	fault_arm("store.write", -EIO, 0, 1);
	cr_assert_eq(client_release(dev, 0, GAIA_PAGE), -EIO);
	write_cpu(1, "C");
	expect_device(other, 0, "DC");
	cr_assert_eq(cache_flush(kf->cfile), 0);
	expect_store(0, "DC");
	end();
}

Test(passthrough, a_copy_that_fails_is_told_and_tried_again)
{
	begin_passthrough();
	write_device(dev, 0, "D");
	fault_arm("device.copy_out", -EIO, 0, 1);
	cr_assert_eq(client_release(dev, 0, GAIA_PAGE), -EIO);
	cache_check(rig->cache);
	write_cpu(1, "C");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "DC");
	end();
}

/* What one released of a page was what the other had stored there, too: it went with it. */
Test(passthrough, what_is_lost_with_its_device_is_told_to_each_who_releases_it)
{
	struct client *other;

	begin_passthrough();
	other = new_client(0);
	write_device(dev, 0, "D");
	write_device(other, 1, "O");
	fault_arm("device.copy_out", -ENODEV, 0, 1);
	cr_assert_eq(client_release(dev, 0, GAIA_PAGE), -EIO);
	cache_check(rig->cache);
	cr_assert_eq(client_release(other, 0, GAIA_PAGE), -ENODEV);
	end();
}

Test(passthrough, a_store_that_cannot_be_read_fails_the_acquire)
{
	begin_passthrough();
	write_cpu(0, "one");
	expect_device(dev, 0, "one");
	release_all(dev);
	write_cpu(0, "two");
	fault_arm("store.read", -EIO, 0, 1);
	cr_assert_eq(client_acquire(dev, 0, 3, GAIA_PROT_READ), -EIO);
	expect_device(dev, 0, "two");
	end();
}

Test(passthrough, nothing_is_compared_if_no_process_can_write)
{
	uint64_t reads, stopped;

	begin_passthrough();
	write_cpu(0, "fixed");
	stopped = cfile_cpu_stops(kf->cfile);
	cr_assert_neq(stopped, 0);
	cr_assert_eq(cfile_cpu_stops(kf->cfile), 0);
	cr_assert_eq(cfile_cpu_stopped(kf->cfile, stopped), 0);
	expect_device(dev, 0, "fixed");
	release_all(dev);
	reads = counter_value(CTR_storage_reads);
	for (unsigned k = 0; k < 10; k++) {
		cr_assert_eq(client_acquire(dev, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
		release_all(dev);
	}
	/* The first brought the rest of the chunk. */
	cr_assert_eq(counter_value(CTR_storage_reads) - reads, GAIA_CHUNK_PAGES - 1);
	/* Somebody can, from here on. */
	cfile_cpu_writes(kf->cfile);
	write_cpu(0, "moved");
	expect_device(dev, 0, "moved");
	end();
}

/* A page of each of four chunks, which home has: what that asks of the device. Of the other pages the client must not see what was there before. */
static uint64_t operations_for_four_chunks(void)
{
	struct gaia_list_range range[4];
	uint64_t before, seq;

	cr_assert_eq(client_acquire(dev, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_all(dev);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	for (unsigned k = 0; k < 4; k++) {
		range[k] = (struct gaia_list_range){ k * GAIA_CHUNK + PAGE(k), 1 };
		client_push(dev, range[k].offset, 1);
	}
	before = counter_value(CTR_device_operations);
	cr_assert_eq(cache_acquirev(dev->mapping, range, 4, GAIA_PROT_READ, &seq, NULL), 0);
	return counter_value(CTR_device_operations) - before;
}

static void expect_only_what_was_acquired(void)
{
	for (unsigned k = 0; k < 4; k++)
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
			cr_assert_eq(*client_at(dev, k * GAIA_CHUNK + PAGE(i)), i == k ? 'a' + (int)k : 0, "page %u of chunk %u", i, k);
}

static void write_four_chunks(void)
{
	for (unsigned k = 0; k < 4; k++)
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
			write_cpu(k * GAIA_CHUNK + PAGE(i), (char[]){ (char)('a' + k), 0 });
}

Test(passthrough, chunks_that_nobody_can_write_are_made_ready_together)
{
	begin_passthrough();
	write_four_chunks();
	cr_assert_eq(kfile_writers_leave(kf), 0);
	/* Each page is copied by itself, and one operation makes zeros of all others. */
	cr_assert_eq(operations_for_four_chunks(), 4 + 1);
	expect_only_what_was_acquired();
	cache_check(rig->cache);
	end();
}

/* Each may have to be compared with what processes have written, while its pages are locked. */
Test(passthrough, chunks_that_somebody_can_write_are_made_ready_one_by_one)
{
	begin_passthrough();
	write_four_chunks();
	cr_assert_eq(operations_for_four_chunks(), 4 + 4);
	expect_only_what_was_acquired();
	end();
}

/* ---- what home lacks ---- */

/* All of the chunk is on the device, home has dropped it, and nobody can write the file. */
static void begin_lacking(void)
{
	begin_passthrough();
	write_cpu(0, "fixed");
	cr_assert_eq(kfile_writers_leave(kf), 0);
	expect_device(dev, 0, "fixed");
	release_all(dev);
	cr_assert_eq(client_acquire(dev, 0, GAIA_CHUNK, GAIA_PROT_RW), 0);
	release_all(dev);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
}

Test(passthrough, what_home_drops_of_a_file_that_nobody_can_write_is_not_read_again)
{
	uint64_t reads, sent;

	begin_lacking();
	reads = counter_value(CTR_storage_reads);
	sent = counter_value(CTR_home_to_device);
	cr_assert_eq(client_acquire(dev, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	expect_device(dev, 0, "fixed");
	release_all(dev);
	cr_assert_eq(counter_value(CTR_storage_reads), reads);
	cr_assert_eq(counter_value(CTR_home_to_device), sent);
	cache_check(rig->cache);
	end();
}

Test(passthrough, what_home_lacks_is_stale_once_somebody_can_write)
{
	begin_lacking();
	write_cpu(0, "moved");
	expect_device(dev, 0, "moved");
	release_all(dev);
	cache_check(rig->cache);
	end();
}

/* As long as others write: what a release publishes is compared with what was there when the page was acquired. */
Test(passthrough, what_home_lacks_comes_home_before_it_is_held_for_writing)
{
	begin_lacking();
	cr_assert_eq(client_acquire(dev, 0, GAIA_PAGE, GAIA_PROT_RW), 0);
	write_cpu(0, "F");
	client_store(dev, "D", 1, 4);
	release_all(dev);
	expect_cpu(0, "FixeD");
	cache_check(rig->cache);
	end();
}

Test(passthrough, what_home_lacks_comes_home_for_other_devices)
{
	struct client *other;

	begin_lacking();
	other = new_client(1);
	expect_device(other, 0, "fixed");
	release_all(other);
	write_cpu(0, "moved");
	expect_device(dev, 0, "moved");
	expect_device(other, 0, "moved");
	end();
}

static _Atomic unsigned opened;

static void *open_to_write(void *arg)
{
	(void)arg;
	cfile_cpu_writes(kf->cfile);
	opened++;
	return NULL;
}

static int acquire_to_write(void *cl)
{
	return client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_RW);
}

/* What is being brought is what the store has until then. */
Test(passthrough, who_opens_it_for_writing_waits_for_what_is_being_brought)
{
	struct held acquire = { .point = "device.copy_out", .call = acquire_to_write };
	pthread_t thread[2];

	begin_lacking();
	acquire.arg = dev;
	/* So that it is certain where it comes from. */
	fault_arm("source.store_is_dear", -ENOSPC, 0, 0);
	held_begin(&acquire);
	for (unsigned k = 0; k < 2; k++)
		cr_assert_eq(pthread_create(&thread[k], NULL, open_to_write, NULL), 0);
	while (!cfile_cpu_may_write(kf->cfile))
		sched_yield();
	for (unsigned k = 0; k < 1000; k++)
		sched_yield();
	cr_assert_eq(opened, 0);
	cr_assert_eq(held_end(&acquire), 0);
	for (unsigned k = 0; k < 2; k++)
		pthread_join(thread[k], NULL);
	write_cpu(0, "F");
	client_store(dev, "D", 1, 4);
	release_all(dev);
	expect_cpu(0, "FixeD");
	cache_check(rig->cache);
	end();
}

Test(passthrough, what_was_written_before_processes_stopped_is_acquired)
{
	uint64_t stopped;

	begin_passthrough();
	write_cpu(0, "one");
	expect_device(dev, 0, "one");
	release_all(dev);
	write_cpu(0, "two");
	stopped = cfile_cpu_stops(kf->cfile);
	expect_device(dev, 0, "two");
	release_all(dev);
	cr_assert_eq(cfile_cpu_stopped(kf->cfile, stopped), 0);
	cr_assert(!cfile_cpu_may_write(kf->cfile));
	expect_device(dev, 0, "two");
	end();
}

/* Also of a chunk that no device has any more: home still has some of it, from before. */
Test(passthrough, what_was_written_before_processes_stopped_is_acquired_where_the_replica_has_gone)
{
	uint64_t stopped;

	begin_passthrough();
	write_cpu(0, "one");
	expect_device(dev, 0, "one");
	release_all(dev);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	write_cpu(0, "two");
	stopped = cfile_cpu_stops(kf->cfile);
	cr_assert_eq(cfile_cpu_stopped(kf->cfile, stopped), 0);
	cr_assert(!cfile_cpu_may_write(kf->cfile));
	expect_device(dev, 0, "two");
	end();
}

/* Somebody begins again, and stops, while it is being taken over. */
Test(passthrough, who_takes_over_what_was_written_does_not_speak_for_others)
{
	uint64_t stopped, later;

	begin_passthrough();
	write_cpu(0, "one");
	expect_device(dev, 0, "one");
	release_all(dev);
	stopped = cfile_cpu_stops(kf->cfile);
	cfile_cpu_writes(kf->cfile);
	cr_assert_eq(cfile_cpu_stopped(kf->cfile, stopped), 0);
	write_cpu(0, "two");
	expect_device(dev, 0, "two");
	release_all(dev);

	stopped = cfile_cpu_stops(kf->cfile);
	cfile_cpu_writes(kf->cfile);
	write_cpu(0, "six");
	later = cfile_cpu_stops(kf->cfile);
	/* As if its chunks had been looked at before the write. */
	fault_arm("store.read", -EIO, 0, 1);
	cr_assert_eq(cfile_cpu_stopped(kf->cfile, stopped), -EIO);
	cr_assert(!cfile_cpu_may_write(kf->cfile), "the later one is still to be taken over");
	expect_device(dev, 0, "six");
	cr_assert_eq(cfile_cpu_stopped(kf->cfile, later), 0);
	end();
}

Test(passthrough, what_cannot_be_taken_over_is_compared_later)
{
	uint64_t stopped;

	begin_passthrough();
	write_cpu(0, "one");
	expect_device(dev, 0, "one");
	release_all(dev);
	write_cpu(0, "two");
	stopped = cfile_cpu_stops(kf->cfile);
	fault_arm("store.read", -EIO, 0, 1);
	cr_assert_eq(cfile_cpu_stopped(kf->cfile, stopped), -EIO);
	cr_assert(cfile_cpu_may_write(kf->cfile));
	expect_device(dev, 0, "two");
	end();
}

Test(passthrough, a_release_that_failed_may_be_called_again)
{
	begin_passthrough();
	write_device(dev, 0, "D");
	write_device(dev, GAIA_CHUNK, "E");
	fault_arm("store.write", -EIO, 0, 1);
	cr_assert_eq(client_release(dev, 0, 2 * GAIA_CHUNK), -EIO);
	fault_arm("store.write", -EIO, 0, 1);
	cr_assert_eq(client_release(dev, 0, 2 * GAIA_CHUNK), -EIO);
	cr_assert_eq(client_release(dev, 0, 2 * GAIA_CHUNK), 0);
	expect_cpu(0, "D");
	expect_cpu(GAIA_CHUNK, "E");
	end();
}

/* A full store: the replica goes, and then what could not be stored is cut away. */
Test(passthrough, what_could_not_be_stored_can_be_cut_away)
{
	begin_passthrough();
	write_device(dev, PAGE(3), "D");
	fault_arm("store.write", -ENOSPC, 0, 0);
	cr_assert_eq(client_release(dev, 0, GAIA_CHUNK), -ENOSPC);
	client_end(dev);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(cpu_truncate(kf, PAGE(1)), 0);
	fault_disarm_all();
	end();
}

/* The error is reported, and a thread that asks for memory meanwhile does not store it. */
Test(passthrough, what_cannot_be_stored_is_kept_within_bounds)
{
	const uint64_t len = 12ull << 20;
	int err = 0;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 16, .passthrough = true,
				     .home_bytes = CACHE_HOME_MIN }, len);
	dev = client_create(kf, 0, GAIA_PROT_RW, len);
	fault_arm("store.write", -ENOSPC, 0, 0);
	for (uint64_t at = 0; at < len; at += GAIA_CHUNK) {
		cr_assert_eq(client_acquire(dev, at, GAIA_CHUNK, GAIA_PROT_RW), 0);
		for (uint64_t page = at; page < at + GAIA_CHUNK; page += GAIA_PAGE)
			client_store(dev, "D", 1, page);
		err = client_release(dev, at, GAIA_CHUNK);
		cr_assert_eq(err, -ENOSPC);
	}
	cr_assert_leq(atomic_load(&kf->cfile->n_dirty), CACHE_HOME_MIN / GAIA_PAGE + 512);
	fault_disarm_all();
	/* What was not released for want of room is held still. The store is given time to recover. */
	while ((err = client_release(dev, 0, len)) == -ENOSPC)
		sched_yield();
	cr_assert_eq(err, 0);
	for (uint64_t page = 0; page < len; page += GAIA_PAGE)
		expect_store(page, "D");
	end();
}

Test(passthrough, only_what_changed_is_moved)
{
	uint64_t moved, imported;

	begin_passthrough();
	cr_assert_eq(client_acquire(dev, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_all(dev);
	write_cpu(PAGE(3), "a");
	write_cpu(PAGE(600) + 17, "b");
	moved = counter_value(CTR_home_to_device);
	imported = counter_value(CTR_passthrough_imported);
	cr_assert_eq(client_acquire(dev, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(counter_value(CTR_home_to_device) - moved, 2);
	cr_assert_eq(counter_value(CTR_passthrough_imported) - imported, 2);
	end();
}

/* Home is no copy of the store that could be read again: what is dropped of it is stale on the devices. */
Test(passthrough, what_leaves_home_is_brought_again)
{
	begin_passthrough();
	write_cpu(0, "one");
	expect_device(dev, 0, "one");
	release_all(dev);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(home_pages(), 0);
	cache_check(rig->cache);
	write_cpu(0, "two");
	expect_device(dev, 0, "two");
	end();
}

Test(passthrough, the_base_of_what_a_device_writes_stays_at_home)
{
	begin_passthrough();
	write_cpu(0, "..");
	write_cpu(PAGE(9), "x");
	expect_device(dev, PAGE(9), "x");
	write_device(dev, 0, "D");
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(home_pages(), 1);
	write_cpu(1, "C");
	release_all(dev);
	expect_cpu(0, "DC");
	end();
}

Test(passthrough, what_processes_make_longer_is_acquired_and_released)
{
	begin(&(struct rig_options){ .devices = 1, .passthrough = true }, 100);
	dev = new_client(0);
	cr_assert_eq(client_acquire(dev, 0, PAGE(2), GAIA_PROT_RW), 0);
	client_store(dev, "D", 1, 50);
	write_cpu(PAGE(1) + 8, "grown");
	release_all(dev);
	expect_store(50, "D");
	expect_store(PAGE(1) + 8, "grown");
	expect_device(dev, PAGE(1) + 8, "grown");
	cr_assert_eq(cfile_size(kf->cfile), PAGE(1) + 13);
	end();
}

Test(passthrough, a_file_that_is_left_is_cached_with_what_was_written_last)
{
	begin_passthrough();
	write_cpu(0, "old");
	write_cpu(PAGE(5), "old");
	expect_device(dev, PAGE(5), "old");
	release_all(dev);
	write_device(dev, 0, "D");
	write_cpu(1, "C");
	write_cpu(PAGE(5), "new");
	cr_assert_eq(kfile_leave_passthrough(kf), 0);
	cr_assert(!cfile_is_passthrough(kf->cfile));
	cache_check(rig->cache);
	expect_cpu(0, "oCd");
	write_cpu(2, "c");
	release_all(dev);
	expect_cpu(0, "DCc");
	expect_device(dev, PAGE(5), "new");
	/* Cached: not stored until somebody asks. */
	expect_store(0, "oCd");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "DCc");
	end();
}

Test(passthrough, a_file_is_left_with_what_could_not_be_stored)
{
	begin_passthrough();
	write_device(dev, 0, "D");
	fault_arm("store.write", -ENOSPC, 0, 1);
	cr_assert_eq(client_release(dev, 0, GAIA_PAGE), -ENOSPC);
	write_cpu(1, "C");
	cr_assert_eq(kfile_leave_passthrough(kf), 0);
	cache_check(rig->cache);
	expect_cpu(0, "DC");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "DC");
	end();
}

Test(passthrough, a_file_that_cannot_be_read_is_not_left)
{
	begin_passthrough();
	expect_device(dev, 0, "");
	cr_assert_eq(client_acquire(dev, 0, 1, GAIA_PROT_READ), 0);
	fault_arm("store.read", -EIO, 0, 1);
	cr_assert_eq(kfile_leave_passthrough(kf), -EIO);
	cr_assert(cfile_is_passthrough(kf->cfile));
	write_cpu(0, "on");
	expect_device(dev, 0, "on");
	end();
}

Test(passthrough, a_file_that_no_device_maps_takes_no_memory)
{
	static char big[1 << 20], back[sizeof(big)];
	struct kfile *to;

	begin(&(struct rig_options){ .devices = 1, .passthrough = true }, 4 * GAIA_CHUNK);
	to = kfile_create(rig, 2, 0);
	memset(big, 'x', sizeof(big));
	cr_assert_eq(cpu_write(kf, big, sizeof(big), 0), 0);
	cr_assert_eq(cpu_copy(kf, 0, to, 0, sizeof(big)), (ssize_t)sizeof(big));
	cr_assert_eq(cpu_read(to, back, sizeof(back), 0), (ssize_t)sizeof(back));
	cr_assert_arr_eq(big, back, sizeof(big));
	cr_assert_eq(cpu_truncate(kf, 5000), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(rig_frames(rig), 0);
	end();
}
