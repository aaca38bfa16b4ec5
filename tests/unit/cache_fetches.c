/*
 * cache_fetches.c - bringing home what devices released in many chunks, to be stored or because the chunks leave the device: how many operations
 * that takes, and what happens to these chunks meanwhile.
 */
#include <sched.h>
#include <unistd.h>

#include "cache_acquires.h"
#include "page_waiters.h"
#include "pagecache/file.h"
#include "pagecache/root.h"

#define CHUNKS 64u
#define ALL (CHUNKS * GAIA_CHUNK)
#define AT(chunk, page) ((uint64_t)(chunk) * GAIA_CHUNK + (uint64_t)(page) * GAIA_PAGE)
#define ROOM (1ull << 30) /* of home, for windows of all chunks */

static uint64_t before;

static void counting_begins(void)
{
	before = counter_value(CTR_device_operations);
}

/* Pages that were released and not fetched. */
static uint64_t on_devices(void)
{
	uint64_t home, devices;

	cache_unstored(rig->cache, &home, &devices);
	return devices / GAIA_PAGE;
}

/* Since then. */
#define expect_operations(n)                                                          \
	do {                                                                          \
		cr_assert_eq(counter_value(CTR_device_operations) - before, (n));     \
		counting_begins();                                                    \
	} while (0)

/* Devices send each other nothing. */
static void begin_fetches(unsigned devices, uint64_t home)
{
	begin(&(struct rig_options){ .devices = devices, .device_chunks = CHUNKS, .home_bytes = home, .no_peers = true }, ALL);
}

static struct client *client_of(unsigned device)
{
	return client_create(kf, device, GAIA_PROT_RW, ALL);
}

/* Release page @page of chunks [first, last). */
static void release_in(struct client *cl, unsigned first, unsigned last, unsigned page, const char *text)
{
	for (unsigned k = first; k < last; k++)
		write_device(cl, AT(k, page), text);
	cr_assert_eq(client_release(cl, AT(first, 0), (last - first) * GAIA_CHUNK), 0);
	counting_begins();
}

/* Release the first @n pages of chunks [0, last). */
static void release_pages(struct client *cl, unsigned last, unsigned n)
{
	for (unsigned k = 0; k < last; k++) {
		cr_assert_eq(client_acquire(cl, AT(k, 0), n * GAIA_PAGE, GAIA_PROT_RW), 0);
		for (unsigned i = 0; i < n; i++)
			client_store(cl, "mine", 4, AT(k, i));
	}
	cr_assert_eq(client_release(cl, 0, ALL), 0);
	counting_begins();
}

#define expect_stored(first, last, page, text)                          \
	do {                                                            \
		for (unsigned k_ = (first); k_ < (last); k_++)          \
			expect_store(AT(k_, page), text);               \
	} while (0)

Test(fetches, a_sync_asks_the_device_once)
{
	begin_fetches(1, ROOM);
	release_in(client_of(0), 0, CHUNKS, 7, "mine");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(1);
	expect_stored(0, CHUNKS, 7, "mine");
	end();
}

Test(fetches, a_sync_asks_each_device_once)
{
	begin_fetches(2, ROOM);
	release_in(client_of(0), 0, CHUNKS, 7, "aa");
	release_in(client_of(1), 0, CHUNKS / 2, 8, "bb");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(2);
	expect_stored(0, CHUNKS, 7, "aa");
	expect_stored(0, CHUNKS / 2, 8, "bb");
	end();
}

/* Both had the page before either released it: of what both wrote the second device's wins. */
Test(fetches, what_two_devices_wrote_is_merged)
{
	struct client *a, *b;

	begin_fetches(2, ROOM);
	a = client_of(0);
	b = client_of(1);
	for (unsigned k = 0; k < 8; k++) {
		write_device(b, AT(k, 7), "bb");
		write_device(a, AT(k, 7) + 1, "aa");
	}
	cr_assert_eq(client_release(b, 0, ALL), 0);
	cr_assert_eq(client_release(a, 0, ALL), 0);
	counting_begins();
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(2);
	expect_stored(0, 8, 7, "bba");
	end();
}

Test(fetches, pages_that_lie_apart_come_together)
{
	struct client *cl;

	begin_fetches(1, ROOM);
	cl = client_of(0);
	cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	for (unsigned i = 0; i < 2 * GAIA_CHUNK_PAGES; i += 2)
		client_store(cl, "mine", 4, AT(0, i));
	cr_assert_eq(client_release(cl, 0, 2 * GAIA_CHUNK), 0);
	counting_begins();
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(1);
	for (unsigned i = 0; i < 2 * GAIA_CHUNK_PAGES; i += 2)
		expect_store(AT(0, i), "mine");
	end();
}

/* From the middle of one chunk to the middle of another. */
Test(fetches, a_sync_of_a_range_leaves_the_rest)
{
	begin_fetches(1, ROOM);
	release_in(client_of(0), 0, CHUNKS, 7, "mine");
	cr_assert_eq(cache_fsync(kf->cfile, (off_t)AT(1, 8), (off_t)(AT(5, 8) - AT(1, 8)), false), 0);
	expect_operations(1);
	expect_stored(2, 6, 7, "mine");
	expect_store(AT(1, 7), "");
	expect_store(AT(6, 7), "");
	end();
}

/* ---- what an acquire needs of another device ---- */

#define FEW 8u

/* @home: whether home has the pages from before, and so need not be asked for them. */
static void acquire_what_another_released(bool home)
{
	struct client *a, *b;

	begin_fetches(2, ROOM);
	a = client_of(0);
	b = client_of(1);
	cr_assert_eq(client_acquire(b, 0, FEW * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(client_release(b, 0, ALL), 0);
	release_in(a, 0, FEW, 7, "mine");
	if (!home)
		cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(client_acquire(b, 0, FEW * GAIA_CHUNK, GAIA_PROT_READ), 0);
	/* One operation of each device. */
	expect_operations(2);
	for (unsigned k = 0; k < FEW; k++) {
		char seen[8] = "";

		client_load(b, seen, 4, AT(k, 7));
		cr_assert_str_eq(seen, "mine");
	}
	end();
}

Test(fetches, an_acquire_asks_the_other_device_once)
{
	acquire_what_another_released(true);
}

/* What was released takes the place of what home had: the store need not be read. */
Test(fetches, an_acquire_of_what_home_lacks_asks_the_other_device_once)
{
	acquire_what_another_released(false);
}

/* ---- how much at a time ---- */

/* Release pages [0, @n) of chunks [0, last), which two devices have written. */
static void release_what_two_wrote(unsigned last, unsigned n)
{
	struct client *cl[2] = { client_of(0), client_of(1) };

	for (unsigned d = 0; d < 2; d++)
		for (unsigned k = 0; k < last; k++) {
			cr_assert_eq(client_acquire(cl[d], AT(k, 0), n * GAIA_PAGE, GAIA_PROT_RW), 0);
			for (unsigned i = 0; i < n; i++)
				client_store(cl[d], d == 0 ? "a" : "b", 1, AT(k, i) + d);
		}
	for (unsigned d = 0; d < 2; d++)
		cr_assert_eq(client_release(cl[d], 0, ALL), 0);
	counting_begins();
}

/* Half of home is 1024 pages: enough for 512 pages of others' bytes, not for their merges. */
Test(fetches, a_window_that_is_merged_takes_more_of_home)
{
	begin_fetches(2, 8 << 20);
	release_what_two_wrote(2, 256);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(4);
	expect_stored(0, 2, 255, "ab");
	end();
}

/* Home is as large as what is fetched; when half of it is dirty that is stored, so that windows remain of two chunks. */
Test(fetches, a_sync_makes_room_for_windows)
{
	begin_fetches(1, 64 << 20);
	pthread_rwlock_wrlock(&rig->cache->round);
	release_pages(client_of(0), CHUNKS, 256);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(CHUNKS / 2);
	expect_stored(0, CHUNKS, 255, "mine");
	pthread_rwlock_unlock(&rig->cache->round);
	end();
}

/* Half of home is 1024 pages: then what cannot be stored stays on the device. */
Test(fetches, a_sync_fills_half_of_home_with_what_cannot_be_stored)
{
	begin_fetches(1, 8 << 20);
	pthread_rwlock_wrlock(&rig->cache->round);
	release_pages(client_of(0), 16, 256);
	fault_arm("store.write", -ENOSPC, 0, 0);
	cr_assert_eq(cpu_fsync(kf), -ENOSPC);
	cr_assert_leq(atomic_load(&rig->cache->n_dirty), 1024);
	cr_assert_geq(on_devices(), 12 * 256);
	fault_disarm_all();
	(void)cpu_fsync(kf); /* may tell what failed before */
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_stored(0, 16, 255, "mine");
	pthread_rwlock_unlock(&rig->cache->round);
	end();
}

/* A window has a sixty-fourth of home: 512 pages here. */
Test(fetches, a_window_is_a_part_of_home)
{
	begin_fetches(1, 128ull << 20);
	release_pages(client_of(0), CHUNKS, 16);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(2);
	expect_stored(0, CHUNKS, 15, "mine");
	end();
}

/* More than half of home is dirty: only what is to be stored comes, chunk by chunk. */
Test(fetches, a_home_that_is_full_of_dirty_pages_takes_a_chunk_at_a_time)
{
	static char dirty[5 << 20];
	uint64_t beyond = counter_value(CTR_home_overcommit);

	begin_fetches(1, 8 << 20);
	/* The flusher would make room. */
	pthread_rwlock_wrlock(&rig->cache->round);
	memset(dirty, 'd', sizeof(dirty));
	cr_assert_eq(cpu_write_direct(kf, dirty, sizeof(dirty), AT(8, 0)), 0);
	release_in(client_of(0), 0, 4, 7, "mine");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(4);
	expect_stored(0, 4, 7, "mine");
	expect_stored(8, 10, 7, "dddd");
	cr_assert_eq(counter_value(CTR_home_overcommit), beyond);
	pthread_rwlock_unlock(&rig->cache->round);
	end();
}

/* ---- what else is to be done for a window ---- */

/* What was released is in snapshots: it was acquired again since, and is written over. */
Test(fetches, snapshots_come_together)
{
	struct client *cl;

	begin_fetches(1, ROOM);
	cl = client_of(0);
	release_in(cl, 0, 8, 7, "mine");
	for (unsigned k = 0; k < 8; k++)
		write_device(cl, AT(k, 7), "over");
	cr_assert_geq(counter_value(CTR_device_snapshots), 8u);
	counting_begins();
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(1);
	expect_stored(0, 8, 7, "mine");
	cr_assert_eq(client_release(cl, 0, ALL), 0);
	counting_begins();
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(1);
	expect_stored(0, 8, 7, "over");
	end();
}

/* Too much is kept for those who hold the pages: they get home's bytes, which become their base. */
Test(fetches, what_is_not_kept_is_sent_once)
{
	struct client *a, *b;

	begin_fetches(2, ROOM);
	a = client_of(0);
	b = client_of(1);
	for (unsigned k = 0; k < 8; k++)
		for (unsigned page = 7; page <= 9; page += 2) {
			write_device(b, AT(k, page) + 4, "held");
			write_device(a, AT(k, page), "mine");
		}
	cr_assert_eq(client_release(a, 0, ALL), 0);
	counting_begins();
	fault_arm("home.kept_full", -ENOSPC, 0, 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(2);
	fault_disarm_all();
	cr_assert_eq(atomic_load(&rig->cache->n_kept), 0);
	expect_stored(0, 8, 9, "mine");
	cr_assert_eq(client_release(b, 0, ALL), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_stored(0, 8, 7, "mineheld");
	expect_stored(0, 8, 9, "mineheld");
	end();
}

/* ---- failures ---- */

Test(fetches, what_fails_together_is_fetched_one_by_one)
{
	begin_fetches(1, ROOM);
	release_in(client_of(0), 0, 4, 7, "mine");
	fault_arm("device.copy_out", -EIO, 0, 1);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(1 + 4);
	expect_stored(0, 4, 7, "mine");
	end();
}

/* The window, and then the second chunk. */
Test(fetches, a_chunk_that_fails_keeps_no_other_from_being_stored)
{
	begin_fetches(1, ROOM);
	release_in(client_of(0), 0, 4, 7, "mine");
	fault_arm("device.copy_out", -EIO, 0, 2);
	cr_assert_eq(cpu_fsync(kf), -EIO);
	expect_store(AT(0, 7), "");
	expect_stored(1, 4, 7, "mine");
	cache_check(rig->cache);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(AT(0, 7), "mine");
	end();
}

/* What it released is lost, and told; what the other one released is not. */
Test(fetches, a_device_that_is_gone_keeps_no_other_from_being_stored)
{
	begin_fetches(2, ROOM);
	release_in(client_of(0), 0, 2, 7, "lost");
	release_in(client_of(1), 2, 4, 7, "mine");
	fault_arm("device.copy_out", -ENODEV, 0, 1);
	cr_assert_eq(cpu_fsync(kf), -EIO);
	expect_stored(2, 4, 7, "mine");
	cache_check(rig->cache);
	for (unsigned k = 0; k < 2; k++)
		cr_assert_eq(cpu_write_direct(kf, (char[GAIA_PAGE]){ "anew" }, GAIA_PAGE, AT(k, 7)), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_stored(0, 2, 7, "anew");
	end();
}

/* What the first device released has been merged by then. */
Test(fetches, the_second_device_fails_after_the_first)
{
	begin_fetches(2, ROOM);
	release_in(client_of(0), 0, 4, 7, "aa");
	release_in(client_of(1), 0, 4, 8, "bb");
	fault_arm("device.copy_out", -EIO, 1, 1);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(2 + 4);
	expect_stored(0, 4, 7, "aa");
	expect_stored(0, 4, 8, "bb");
	end();
}

/* Home has frames for the copies of two chunks' pages, but no more for a merge: each chunk's find room. */
Test(fetches, a_window_for_which_frames_lack_is_fetched_one_by_one)
{
	static frame_t taken[1 << 16];
	struct frames *fr;
	unsigned n = 0;

	begin_fetches(1, ROOM);
	fr = &rig->cache->frames;
	release_pages(client_of(0), 2, 256);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	fault_arm("home.memory", -ENOMEM, 1, 0);
	while (n < ARRAY_LEN(taken) && frames_take(fr, 1, &taken[n], true) == 1)
		n++;
	cr_assert_geq(n, 512u);
	frames_give(fr, taken + n - 512, 512);
	counting_begins();
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(1 + 2);
	fault_disarm_all();
	frames_give(fr, taken, n - 512);
	expect_stored(0, 2, 255, "mine");
	end();
}

/* ---- meanwhile ---- */

static int sync_all(void *arg)
{
	return cpu_fsync(kf);
}

static void *sync_main(void *arg)
{
	return (void *)(intptr_t)sync_all(arg);
}

/* The page of the third chunk is being fetched for somebody else, on the way out of the device. */
Test(fetches, who_waits_has_no_page_locked, .timeout = PATIENCE / 1000)
{
	struct acquire a = { .off = AT(2, 7), .len = 1 };
	struct held h = { .point = "device.copy_out", .call = acquire, .arg = &a };
	pthread_t thread;
	void *result;

	begin_fetches(2, ROOM);
	release_in(client_of(0), 0, 4, 7, "mine");
	a.cl = client_of(1);
	held_begin(&h);
	cr_assert_eq(pthread_create(&thread, NULL, sync_main, NULL), 0);
	while (page_waiters(2 * GAIA_CHUNK_PAGES + 7, true) == 0)
		sched_yield();
	/* Those before it are home by now, and those after it are still to come. */
	for (unsigned k = 0; k < 4; k++)
		if (k != 2)
			cr_assert_eq(cpu_write_direct(kf, "new", 3, AT(k, 7) + 100), 0);
	cr_assert_eq(held_end(&h), 0);
	pthread_join(thread, &result);
	cr_assert_eq((intptr_t)result, 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_stored(0, 4, 7, "mine");
	end();
}

/* The first chunk is fetched by itself, since all together have failed: the others are not locked for that. */
Test(fetches, after_a_failure_one_chunk_is_locked, .timeout = PATIENCE / 1000)
{
	struct held h = { .point = "fetch.before_merge", .call = sync_all };

	begin_fetches(1, ROOM);
	release_in(client_of(0), 0, 4, 7, "mine");
	fault_arm("device.copy_out", -EIO, 0, 1);
	held_begin(&h);
	for (unsigned k = 1; k < 4; k++)
		cr_assert_eq(cpu_write_direct(kf, "new", 3, AT(k, 7) + 100), 0);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_stored(0, 4, 7, "mine");
	end();
}

/* The second chunk is merged with what the store alone has: nobody else's pages wait for that. */
Test(fetches, what_the_store_is_read_for_has_its_own_window, .timeout = PATIENCE / 1000)
{
	struct held h = { .point = "store.read", .call = sync_all };
	struct client *a, *b;

	begin_fetches(2, ROOM);
	for (unsigned k = 0; k < 4; k++)
		write_cpu(AT(k, 7), "base");
	cr_assert_eq(cpu_fsync(kf), 0);
	a = client_of(0);
	b = client_of(1);
	write_device(b, AT(1, 7) + 8, "theirs");
	for (unsigned k = 0; k < 4; k++)
		write_device(a, AT(k, 7) + 4, "mine");
	cr_assert_eq(client_release(a, 0, ALL), 0);
	cr_assert_eq(client_release(b, 0, ALL), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	held_begin(&h);
	for (unsigned k = 0; k < 4; k++)
		if (k != 1)
			cr_assert_eq(cpu_write_direct(kf, "new", 3, AT(k, 7) + 100), 0);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(AT(0, 7), "basemine");
	expect_store(AT(1, 7), "baseminetheirs");
	expect_store(AT(2, 7), "basemine");
	expect_store(AT(3, 7), "basemine");
	end();
}

static void *truncate_main(void *arg)
{
	return (void *)(intptr_t)cpu_truncate(kf, ALL / 2);
}

/* After the first of two windows. */
Test(fetches, a_sync_lets_a_truncate_pass, .timeout = PATIENCE / 1000)
{
	struct held h = { .point = "device.copy_out", .call = sync_all };
	pthread_t thread;
	void *result;

	begin_fetches(1, 128ull << 20);
	release_pages(client_of(0), CHUNKS, 16);
	held_begin(&h);
	fault_hold("truncate.before_cut");
	cr_assert_eq(pthread_create(&thread, NULL, truncate_main, NULL), 0);
	while (atomic_load(&kf->cfile->range_waiters) == 0)
		sched_yield();
	fault_let_go("device.copy_out");
	fault_await_held("truncate.before_cut");
	cr_assert_eq(on_devices(), CHUNKS / 2 * 16);
	fault_let_go("truncate.before_cut");
	pthread_join(thread, &result);
	cr_assert_eq((intptr_t)result, 0);
	cr_assert_eq(held_end(&h), 0);
	expect_stored(0, CHUNKS / 2, 15, "mine");
	end();
}

/* The file below may have to be read for each: the pages of others do not wait for that. */
Test(fetches, of_a_file_that_is_passed_through_each_chunk_comes_alone)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .passthrough = true }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	for (unsigned k = 0; k < 4; k++)
		write_device(cl, AT(k, 7), "mine");
	fault_arm("device.copy_out", -EIO, 0, 0);
	cr_assert_eq(client_release(cl, 0, 4 * GAIA_CHUNK), -EIO);
	fault_disarm_all();
	cr_assert_eq(on_devices(), 4);
	for (unsigned k = 0; k < 4; k++)
		write_cpu(AT(k, 7) + 4, "theirs");
	counting_begins();
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(4);
	expect_stored(0, 4, 7, "minetheirs");
	end();
}

/* ---- before chunks leave a device ---- */

/* So many chunks leave it together. */
#define TOGETHER 32u

Test(fetches, an_eviction_on_request_asks_the_device_once)
{
	struct client *cl;
	unsigned asked;

	begin_fetches(1, ROOM);
	cl = client_of(0);
	release_in(cl, 0, TOGETHER, 7, "mine");
	asked = rig->asked;
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	expect_operations(1);
	cr_assert_eq(rig->asked - asked, 1, "and all clients together");
	cr_assert_eq(cl->revoked, TOGETHER);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	for (unsigned k = 0; k < TOGETHER; k++)
		expect_cpu(AT(k, 7), "mine");
	end();
}

Test(fetches, many_are_evicted_in_several_windows)
{
	begin_fetches(1, ROOM);
	release_in(client_of(0), 0, CHUNKS, 7, "mine");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	expect_operations(CHUNKS / TOGETHER);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_stored(0, CHUNKS, 7, "mine");
	end();
}

/* Of two files by turns. The device takes two operations of this kind, no more. */
Test(fetches, what_leaves_for_an_acquire_is_asked_for_once_a_file)
{
	struct kfile *first, *second;
	struct acquire needy = { .off = AT(CHUNKS - TOGETHER, 0), .len = TOGETHER * GAIA_CHUNK, .prot = GAIA_PROT_PIN };
	struct client *a, *b;
	int err;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = TOGETHER, .home_bytes = ROOM }, ALL);
	first = kf;
	second = kfile_create(rig, 2, ALL);
	a = client_of(0);
	b = client_create(second, 0, GAIA_PROT_RW, ALL);
	for (unsigned k = 0; k < TOGETHER / 2; k++) {
		write_device(a, AT(k, 7), "mine");
		cr_assert_eq(client_release(a, AT(k, 7), 4), 0);
		write_device(b, AT(k, 7), "theirs");
		cr_assert_eq(client_release(b, AT(k, 7), 6), 0);
	}
	fault_arm("device.copy_out", -EIO, 2, 0);
	needy.cl = a;
	err = acquire(&needy);
	if (err == -ENOMEM && rig_importers_gone())
		err = acquire(&needy);
	cr_assert_eq(err, 0);
	fault_disarm_all();
	for (unsigned k = 0; k < TOGETHER / 2; k++) {
		kf = first;
		expect_cpu(AT(k, 7), "mine");
		kf = second;
		expect_cpu(AT(k, 7), "theirs");
	}
	end();
}

/* The window, and then the first chunk by itself, cannot be fetched. */
Test(fetches, a_chunk_that_cannot_be_fetched_stays_alone)
{
	begin_fetches(1, ROOM);
	release_in(client_of(0), 0, 4, 7, "mine");
	fault_arm("device.copy_out", -EIO, 0, 2);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EIO);
	cache_check(rig->cache);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	for (unsigned k = 0; k < 4; k++)
		expect_cpu(AT(k, 7), "mine");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

/* Another device has released pages of the third chunk, and fails: only that chunk stays. */
Test(fetches, another_device_that_fails_keeps_no_other_chunk)
{
	begin_fetches(2, ROOM);
	release_in(client_of(0), 0, 4, 7, "aa");
	release_in(client_of(1), 2, 3, 8, "bb");
	fault_arm("device.copy_out", -EIO, 1, 2);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EIO);
	cache_check(rig->cache);
	expect_operations(1 + 2);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	for (unsigned k = 0; k < 4; k++)
		expect_cpu(AT(k, 7), "aa");
	expect_cpu(AT(2, 8), "bb");
	end();
}

/* It is asked for all together, then for three chunks; for the fourth and the fifth no more. Of the others it has nothing. */
Test(fetches, another_device_that_fails_is_given_up)
{
	begin_fetches(2, ROOM);
	release_in(client_of(0), 0, 8, 7, "aa");
	release_in(client_of(1), 0, 5, 8, "bb");
	fault_arm("device.copy_out", -EIO, 1, 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EIO);
	cache_check(rig->cache);
	expect_operations(1 + 4);
	cr_assert_eq(rig_device_used(rig, 0), 5 * GAIA_CHUNK);
	fault_disarm_all();
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	for (unsigned k = 0; k < 8; k++)
		expect_cpu(AT(k, 7), "aa");
	for (unsigned k = 0; k < 5; k++)
		expect_cpu(AT(k, 8), "bb");
	end();
}

/* One chunk is held: the others go, and the caller is told. */
Test(fetches, a_chunk_that_is_held_keeps_no_other)
{
	struct client *cl;

	begin_fetches(1, ROOM);
	cl = client_of(0);
	release_in(cl, 0, 4, 7, "mine");
	write_device(cl, AT(1, 8), "held");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	cr_assert_eq(client_release(cl, AT(1, 8), 4), 0);
	expect_cpu(AT(1, 8), "held");
	end();
}

/* Two replicas of the same chunk cannot go together: each takes all of its pages. */
Test(fetches, a_readers_own_replica_goes_after_the_other, .timeout = PATIENCE / 1000)
{
	struct client *cl, *reader;

	begin_writable(8);
	cl = new_client(0);
	reader = new_reader();
	for (unsigned k = 0; k < 2; k++) {
		write_cpu(AT(k, 7), "old");
		expect_device(reader, AT(k, 7), "old");
		write_device(cl, AT(k, 7), "mine");
	}
	release_all(cl);
	release_all(reader);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	for (unsigned k = 0; k < 2; k++)
		expect_cpu(AT(k, 7), "mine");
	end();
}

/* The clients of a file that is gone will not ask for what they released. */
Test(fetches, nothing_is_fetched_of_a_file_that_is_gone)
{
	struct client *cl;

	begin_fetches(1, ROOM);
	cl = client_of(0);
	release_in(cl, 0, 4, 7, "mine");
	client_end(cl);
	counting_begins();
	kfile_end(kf, true);
	while (rig_device_used(rig, 0) > 0)
		usleep(1000);
	expect_operations(0);
	end();
}

static int evict_all_of(void *arg)
{
	return cache_evict(kf->cfile, 0, 0, 0);
}

static void *evict_main(void *arg)
{
	return (void *)(intptr_t)evict_all_of(arg);
}

/* The third chunk's page is on the way out of the device for somebody else: those before it are gone by then, and those after it free. */
Test(fetches, an_eviction_that_waits_has_no_other_chunk_locked, .timeout = PATIENCE / 1000)
{
	struct acquire a = { .off = AT(2, 7), .len = 1 };
	struct held h = { .point = "device.copy_out", .call = acquire, .arg = &a };
	pthread_t thread;
	void *result;

	begin_fetches(2, ROOM);
	release_in(client_of(0), 0, 4, 7, "mine");
	a.cl = client_of(1);
	held_begin(&h);
	cr_assert_eq(pthread_create(&thread, NULL, evict_main, NULL), 0);
	while (page_waiters(2 * GAIA_CHUNK_PAGES + 7, true) == 0)
		sched_yield();
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	cr_assert_eq(cpu_write_direct(kf, "new", 3, AT(0, 7) + 100), 0);
	cr_assert_eq(cpu_write_direct(kf, "new", 3, AT(3, 7) + 100), 0);
	cr_assert_eq(held_end(&h), 0);
	pthread_join(thread, &result);
	cr_assert_eq((intptr_t)result, 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	for (unsigned k = 0; k < 4; k++)
		expect_cpu(AT(k, 7), "mine");
	end();
}

Test(fetches, after_a_failure_one_chunk_is_locked_to_be_evicted, .timeout = PATIENCE / 1000)
{
	struct held h = { .point = "fetch.before_merge", .call = evict_all_of };

	begin_fetches(1, ROOM);
	release_in(client_of(0), 0, 4, 7, "mine");
	fault_arm("device.copy_out", -EIO, 0, 1);
	held_begin(&h);
	for (unsigned k = 1; k < 4; k++)
		cr_assert_eq(cpu_write_direct(kf, "new", 3, AT(k, 7) + 100), 0);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	for (unsigned k = 0; k < 4; k++)
		expect_cpu(AT(k, 7), "mine");
	end();
}

/* ---- by age ---- */

#define SOON_MS 5

static void begin_soon(void)
{
	begin(&(struct rig_options){ .devices = 1, .device_chunks = CHUNKS, .home_bytes = ROOM, .device_age_ms = SOON_MS }, ALL);
	/* Nothing is fetched by age until all of it is due. */
	pthread_rwlock_wrlock(&rig->cache->round);
}

static void all_is_due(void)
{
	usleep(20 * SOON_MS * 1000);
	pthread_rwlock_unlock(&rig->cache->round);
}

static void wait_until_stored(struct kfile *file, unsigned first, unsigned last, unsigned page)
{
	for (unsigned k = first; k < last; k++) {
		char seen[5] = "";

		while (strcmp(seen, "mine")) {
			usleep(1000);
			store_peek(file, seen, 4, AT(k, page));
		}
	}
}

/* Since when chunks [0, n) have had released pages: a chunk that is put off has another age. */
static void note_since(uint64_t *since, unsigned n)
{
	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = chunk_get(kf->cfile, k, false);

		since[k] = ch->ahead_since;
		chunk_put(ch);
	}
}

/* One chunk, to see that it can be stored, and then the others. */
Test(fetches, by_age_many_chunks_come_together, .timeout = PATIENCE / 1000)
{
	begin_soon();
	release_in(client_of(0), 0, CHUNKS, 7, "mine");
	all_is_due();
	wait_until_stored(kf, 0, CHUNKS, 7);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_operations(2);
	end();
}

Test(fetches, by_age_two_files_that_release_by_turns_come_together, .timeout = PATIENCE / 1000)
{
	struct kfile *other;
	struct client *a, *b;

	begin_soon();
	other = kfile_create(rig, 2, ALL);
	a = client_of(0);
	b = client_create(other, 0, GAIA_PROT_RW, ALL);
	for (unsigned k = 0; k < CHUNKS / 2; k++) {
		write_device(a, AT(k, 7), "mine");
		cr_assert_eq(client_release(a, AT(k, 7), 4), 0);
		write_device(b, AT(k, 7), "mine");
		cr_assert_eq(client_release(b, AT(k, 7), 4), 0);
	}
	counting_begins();
	all_is_due();
	wait_until_stored(kf, 0, CHUNKS / 2, 7);
	wait_until_stored(other, 0, CHUNKS / 2, 7);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cpu_fsync(other), 0);
	expect_operations(4);
	end();
}

/* Somebody else has a file's range: another file's is stored meanwhile, and nothing of it is put off by another age. */
Test(fetches, by_age_what_is_in_use_stays_due, .timeout = PATIENCE / 1000)
{
	uint64_t since[4];
	struct kfile *other;
	struct client *b;

	begin_soon();
	other = kfile_create(rig, 2, ALL);
	b = client_create(other, 0, GAIA_PROT_RW, ALL);
	release_in(client_of(0), 0, 4, 7, "mine");
	write_device(b, AT(0, 7), "mine");
	cr_assert_eq(client_release(b, AT(0, 7), 4), 0);
	note_since(since, 4);
	pthread_rwlock_wrlock(&kf->cfile->range);
	all_is_due();
	wait_until_stored(other, 0, 1, 7);
	while (pthread_rwlock_trywrlock(&rig->cache->round)) /* out of order */
		sched_yield();
	for (unsigned k = 0; k < 4; k++) {
		struct chunk *ch = chunk_get(kf->cfile, k, false);

		cr_assert_eq(ch->ahead_since, since[k]);
		cr_assert(ch->lists & CHUNK_AHEAD);
		chunk_put(ch);
	}
	pthread_rwlock_unlock(&kf->cfile->range);
	pthread_rwlock_unlock(&rig->cache->round);
	wait_until_stored(kf, 0, 4, 7);
	cr_assert_eq(cpu_fsync(kf), 0);
	end();
}

/* The fetcher is storing. @window: what it had fetched together, and there is more of that; else one chunk. */
static void truncate_while_it_stores(bool window)
{
	uint64_t stored = counter_value(CTR_writeback_runs);
	pthread_t thread;
	void *result;

	begin_soon();
	release_in(client_of(0), 0, CHUNKS, 7, "mine");
	fault_hold("store.write");
	all_is_due();
	fault_await_held("store.write");
	if (window) {
		fault_hold("device.copy_out");
		fault_let_go("store.write");
		fault_await_held("device.copy_out");
		fault_hold("store.write");
		fault_let_go("device.copy_out");
		fault_await_held("store.write");
	}
	fault_hold("truncate.before_cut");
	cr_assert_eq(pthread_create(&thread, NULL, truncate_main, NULL), 0);
	while (atomic_load(&kf->cfile->range_waiters) == 0)
		sched_yield();
	fault_let_go("store.write");
	fault_await_held("truncate.before_cut");
	cr_assert_eq(counter_value(CTR_writeback_runs) - stored, window ? 2 : 1);
	cr_assert_eq(on_devices(), window ? 0 : CHUNKS - 1);
	fault_let_go("truncate.before_cut");
	pthread_join(thread, &result);
	cr_assert_eq((intptr_t)result, 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_stored(0, CHUNKS / 2, 7, "mine");
	end();
}

Test(fetches, by_age_a_truncate_waits_for_one_chunk, .timeout = PATIENCE / 1000)
{
	truncate_while_it_stores(false);
}

Test(fetches, by_age_a_truncate_waits_for_one_chunk_of_a_window, .timeout = PATIENCE / 1000)
{
	truncate_while_it_stores(true);
}

/* No more is tried of what was fetched together, and no more is fetched. */
Test(fetches, by_age_it_ends_at_the_first_that_cannot_be_stored, .timeout = PATIENCE / 1000)
{
	uint64_t failed = counter_value(CTR_storage_errors);

	begin_soon();
	release_in(client_of(0), 0, CHUNKS, 7, "mine");
	fault_arm("store.write", -ENOSPC, 1, 0);
	all_is_due();
	while (counter_value(CTR_storage_errors) == failed)
		usleep(1000);
	/* Time to do what is wrong. */
	usleep(20 * SOON_MS * 1000);
	cr_assert_eq(counter_value(CTR_storage_errors) - failed, 1);
	expect_store(AT(0, 7), "mine");
	fault_disarm_all();
	(void)cpu_fsync(kf); /* may tell what failed before */
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_stored(0, CHUNKS, 7, "mine");
	end();
}

/* Four chunks in a row: the device is not asked for more of the file in this round; the next one begins with what was not tried. */
Test(fetches, by_age_a_device_that_fails_is_given_up_for_now, .timeout = PATIENCE / 1000)
{
	struct chunk *ch;

	begin_soon();
	release_in(client_of(0), 0, 8, 7, "mine");
	fault_arm("device.copy_out", -EIO, 0, 4);
	fault_hold("fetch.before_merge");
	all_is_due();
	fault_await_held("fetch.before_merge");
	expect_operations(5);
	cr_assert_neq(kf->cfile->put_off, 0);
	for (unsigned k = 0; k < 5; k++) {
		ch = chunk_get(kf->cfile, k, false);
		pthread_mutex_lock(&ch->lock);
		cr_assert_eq(!!(page_at(ch, 7)->flags & PAGE_LOCKED), k == 4);
		pthread_mutex_unlock(&ch->lock);
		chunk_put(ch);
	}
	fault_let_go("fetch.before_merge");
	wait_until_stored(kf, 0, 8, 7);
	cr_assert_eq(cpu_fsync(kf), 0);
	end();
}
