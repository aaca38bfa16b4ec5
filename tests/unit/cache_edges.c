/*
 * cache_edges.c - the page cache at its limits: ends of files and of chunks, budgets, the life of files and mappings.
 */
#include <fcntl.h>
#include <linux/falloc.h>

#include "cache_scene.h"

/* ---- ends ---- */

Test(sizes, of_files_around_pages_and_chunks)
{
	static const uint64_t sizes[] = { 1, 4095, 4096, 4097, GAIA_CHUNK - 1, GAIA_CHUNK, GAIA_CHUNK + 1 };

	for (unsigned k = 0; k < ARRAY_LEN(sizes); k++) {
		uint64_t last = sizes[k] - 1;
		struct client *cl;
		char buf[2] = "";

		begin(&(struct rig_options){ .devices = 1 }, sizes[k]);
		cl = new_client(0);
		write_cpu(last, "C");
		cr_assert_eq(client_acquire(cl, 0, sizes[k], GAIA_PROT_RW), 0);
		client_load(cl, buf, 1, last);
		cr_assert_str_eq(buf, "C");
		client_store(cl, "D", 1, last);
		/* Beyond the end it may write, too; that is dropped. */
		if (sizes[k] % GAIA_PAGE)
			client_store(cl, "X", 1, sizes[k]);
		release_all(cl);
		expect_cpu(last, "D");
		cr_assert_eq(cpu_read(kf, buf, 2, last), 1, "it has not grown");
		cr_assert_eq(cfile_size(kf->cfile), sizes[k]);
		cr_assert_eq(cpu_fsync(kf), 0);
		cr_assert_eq(store_peek(kf, buf, 2, last), 1);
		cr_assert_eq(buf[0], 'D');
		/* Nor does it come up when the file grows. */
		cr_assert_eq(cpu_truncate(kf, sizes[k] + 1), 0);
		cr_assert_eq(cpu_read(kf, buf, 2, last), 2);
		cr_assert_eq(buf[1], 0);
		cr_assert_eq(client_acquire(cl, 0, sizes[k] + 1, GAIA_PROT_READ), 0);
		client_load(cl, buf, 2, last);
		cr_assert_arr_eq(buf, "D", 2);
		end();
	}
}

Test(sizes, of_an_empty_file)
{
	struct client *cl;
	char byte;

	begin(&(struct rig_options){ .devices = 1 }, 0);
	cl = new_client(0);
	cr_assert_eq(cpu_read(kf, &byte, 1, 0), 0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0, "there is nothing to hold");
	release_all(cl);
	cr_assert_eq(cpu_fsync(kf), 0);
	write_cpu(0, "grown");
	expect_device(cl, 0, "grown");
	end();
}

Test(sizes, what_grew_in_the_kernel_only_can_be_acquired)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1 }, 10);
	cl = new_client(0);
	write_cpu(GAIA_CHUNK, "end");
	/* A hole that lies before what the kernel has not written back yet. */
	cr_assert_eq(client_acquire(cl, GAIA_PAGE, GAIA_PAGE, GAIA_PROT_RW), 0);
	client_store(cl, "D", 1, GAIA_PAGE);
	release_all(cl);
	expect_cpu(GAIA_PAGE, "D");
	expect_cpu(GAIA_CHUNK, "end");
	end();
}

Test(ranges, across_chunks_carry_all_bytes)
{
	static unsigned char pattern[2 * GAIA_CHUNK + 10000], back[sizeof(pattern)];
	uint64_t off = GAIA_CHUNK - 5000;
	struct client *a, *b;

	for (unsigned k = 0; k < sizeof(pattern); k++)
		pattern[k] = (unsigned char)(k * 7 + k / 256);
	begin_devices(2);
	a = new_client(0);
	b = new_client(1);
	cr_assert_eq(cpu_write(kf, pattern, sizeof(pattern), off), 0);
	cr_assert_eq(client_acquire(a, off, sizeof(pattern), GAIA_PROT_RW), 0);
	client_load(a, back, sizeof(back), off);
	cr_assert_arr_eq(back, pattern, sizeof(pattern));
	for (unsigned k = 0; k < sizeof(pattern); k++)
		pattern[k] ^= 0x5a;
	client_store(a, pattern, sizeof(pattern), off);
	cr_assert_eq(client_release(a, off, sizeof(pattern)), 0);
	cr_assert_eq(client_acquire(b, off, sizeof(pattern), GAIA_PROT_READ), 0);
	client_load(b, back, sizeof(back), off);
	cr_assert_arr_eq(back, pattern, sizeof(pattern));
	memset(back, 0, sizeof(back));
	cr_assert_eq(cpu_read(kf, back, sizeof(back), off), (ssize_t)sizeof(back));
	cr_assert_arr_eq(back, pattern, sizeof(pattern));
	cr_assert_eq(cpu_fsync(kf), 0);
	store_peek(kf, back, sizeof(back), off);
	cr_assert_arr_eq(back, pattern, sizeof(pattern));
	end();
}

/* ---- what is asked wrongly ---- */

Test(arguments, that_are_wrong_are_refused)
{
	struct client *ro, *part;
	struct mapping *none;
	uint64_t seq;

	begin_devices(1);
	cr_assert_eq(cache_map(kf->cfile, 1, NULL, 1, GAIA_PROT_READ, 0, 1, &none), -ENODEV);
	ro = client_create(kf, 0, GAIA_PROT_READ, 4 * GAIA_CHUNK);
	part = client_create(kf, 0, GAIA_PROT_RW, GAIA_PAGE);
	cr_assert_eq(cache_acquire(ro->mapping, 0, 1, GAIA_PROT_RW, &seq), -EACCES);
	cr_assert_eq(cache_acquire(ro->mapping, 0, 1, 0, &seq), -EINVAL);
	cr_assert_eq(cache_acquire(part->mapping, 0, GAIA_PAGE + 1, GAIA_PROT_READ, &seq), -EINVAL);
	cr_assert_eq(cache_acquire(part->mapping, GAIA_PAGE, 1, GAIA_PROT_READ, &seq), -EINVAL);
	cr_assert_eq(cache_acquire(part->mapping, 1, UINT64_MAX, GAIA_PROT_READ, &seq), -EINVAL);
	cr_assert_eq(cache_release(part->mapping, UINT64_MAX, 2), -EINVAL);
	cr_assert_eq(cache_advise(part->mapping, 0, GAIA_PAGE, 99), -EINVAL);
	cr_assert_eq(cache_acquire(part->mapping, 0, 0, GAIA_PROT_READ, &seq), 0);
	cr_assert_eq(cache_write(kf->cfile, "x", 1, INT64_MAX, CACHE_WRITE_EXACT), -EFBIG);
	cr_assert_eq(cache_write(kf->cfile, "x", 1, 1, CACHE_WRITE_PAGES), -EINVAL);
	cr_assert_eq(cache_truncate(kf->cfile, (uint64_t)INT64_MAX + 1), -EFBIG);
	cr_assert_eq(cache_allocate(kf->cfile, 0, -1, 1), -EINVAL);
	cr_assert_eq(cache_allocate(kf->cfile, FALLOC_FL_COLLAPSE_RANGE, 0, GAIA_PAGE), -EOPNOTSUPP);
	cr_assert_eq(cache_evict(kf->cfile, 1, 0, 0), -ENODEV);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

Test(arguments, of_a_cache_that_is_too_small)
{
	struct cache_host host = { NULL };
	struct cache_config config = { .home_bytes = CACHE_HOME_MIN - 1, .host = &host };
	struct cache *c;

	cr_assert_eq(cache_create(&config, &c), -EINVAL);
}

/* ---- the budget of home ---- */

Test(home, stays_within_its_budget)
{
	static char buf[1 << 20];
	uint64_t over;

	begin(&(struct rig_options){ .home_bytes = CACHE_HOME_MIN }, 64ull << 20);
	over = counter_value(CTR_home_overcommit);
	/* Dirty pages, too: they are stored and go. */
	for (uint64_t off = 0; off < 64ull << 20; off += sizeof(buf)) {
		memset(buf, 1 + (int)(off >> 20), sizeof(buf));
		cr_assert_eq(cache_write(kf->cfile, buf, sizeof(buf), (off_t)off, CACHE_WRITE_EXACT), 0);
		cr_assert_leq(rig_frames(rig) * GAIA_PAGE, CACHE_HOME_MIN);
	}
	for (uint64_t off = 0; off < 64ull << 20; off += sizeof(buf)) {
		cr_assert_eq(cache_read(kf->cfile, buf, sizeof(buf), (off_t)off), (ssize_t)sizeof(buf));
		cr_assert_eq(buf[0], 1 + (int)(off >> 20));
		cr_assert_eq(buf[sizeof(buf) - 1], 1 + (int)(off >> 20));
		cr_assert_leq(rig_frames(rig) * GAIA_PAGE, CACHE_HOME_MIN);
	}
	cr_assert_eq(counter_value(CTR_home_overcommit), over);
	end();
}

/* What cannot be stored stays, beyond the budget rather than lost. */
Test(home, goes_beyond_its_budget_rather_than_lose_what_cannot_be_stored)
{
	static char buf[1 << 20], back[1 << 20];

	begin(&(struct rig_options){ .home_bytes = CACHE_HOME_MIN }, 0);
	fault_arm("store.write", -EIO, 0, 0);
	memset(buf, 7, sizeof(buf));
	for (uint64_t off = 0; off < 12ull << 20; off += sizeof(buf))
		cr_assert_eq(cache_write(kf->cfile, buf, sizeof(buf), (off_t)off, CACHE_WRITE_EXACT), 0);
	kf->size = 12ull << 20;
	for (uint64_t off = 0; off < 12ull << 20; off += sizeof(buf)) {
		cr_assert_eq(cache_read(kf->cfile, back, sizeof(back), (off_t)off), (ssize_t)sizeof(back));
		cr_assert_arr_eq(back, buf, sizeof(buf));
	}
	fault_disarm_all();
	cr_assert_eq(cpu_fsync(kf), 0);
	end();
}

Test(home, larger_than_device_and_home_together)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2, .home_bytes = CACHE_HOME_MIN },
	      24ull << 20);
	cl = client_create(kf, 0, GAIA_PROT_RW, 24ull << 20);
	for (unsigned pass = 1; pass <= 2; pass++)
		for (uint64_t chunk = 0; chunk < 12; chunk++) {
			uint64_t off = chunk * GAIA_CHUNK;
			unsigned char *p;

			cr_assert_eq(client_acquire(cl, off, GAIA_CHUNK, GAIA_PROT_RW), 0);
			p = client_at(cl, off);
			for (unsigned at = 0; at < GAIA_CHUNK; at += GAIA_PAGE / 2) {
				cr_assert_eq(p[at], pass == 1 ? 0 : (unsigned char)(chunk + 1));
				p[at] = (unsigned char)(chunk + pass);
			}
			cr_assert_eq(client_release(cl, off, GAIA_CHUNK), 0);
		}
	for (uint64_t chunk = 0; chunk < 12; chunk++) {
		char byte;

		cr_assert_eq(cpu_read(kf, &byte, 1, chunk * GAIA_CHUNK + GAIA_PAGE / 2), 1);
		cr_assert_eq(byte, (char)(chunk + 2));
	}
	end();
}

/* ---- the budget of devices ---- */

Test(device, the_longest_unused_goes)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	for (unsigned chunk = 0; chunk < 3; chunk++) {
		write_device(cl, chunk * GAIA_CHUNK, "kept");
		release_all(cl);
	}
	cr_assert_null(client_at(cl, 0));
	cr_assert_not_null(client_at(cl, GAIA_CHUNK));
	for (unsigned chunk = 0; chunk < 3; chunk++)
		expect_cpu(chunk * GAIA_CHUNK, "kept");
	end();
}

Test(device, snapshots_give_way_to_an_acquire)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	write_device(cl, 0, "rel");
	release_all(cl);
	write_device(cl, 0, "pri");
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK, "a snapshot was made");
	cr_assert_eq(client_acquire(cl, GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	expect_cpu(0, "rel");
	client_die(cl);
	client_end(cl);
	expect_cpu(0, "rel");
	end();
}

Test(device, another_files_trouble_is_not_ours)
{
	struct client *bad, *cl;
	struct kfile *other;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	other = kfile_create(rig, 2, GAIA_CHUNK);
	bad = client_create(other, 0, GAIA_PROT_RW, GAIA_CHUNK);
	write_device(bad, 0, "kept");
	cr_assert_eq(client_release(bad, 0, 4), 0);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 1, GAIA_PROT_READ), 0);
	release_all(cl);
	fault_arm("device.copy_out", -EIO, 0, 0);
	cr_assert_eq(client_acquire(cl, GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	end();
}

Test(device, advice_is_advice)
{
	struct client *cl;
	uint64_t sent;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	write_cpu(0, "warm");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	cr_assert_eq(cache_advise(cl->mapping, 0, 4 * GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	cr_assert_eq(cache_advise(cl->mapping, 0, GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	sent = counter_value(CTR_home_to_device);
	expect_device(cl, 0, "warm");
	cr_assert_eq(counter_value(CTR_home_to_device), sent, "it was there");
	cr_assert_eq(cache_advise(cl->mapping, 0, GAIA_CHUNK, GAIA_ADVISE_DONTNEED), 0);
	cr_assert_gt(rig_device_used(rig, 0), 0, "it is held");
	release_all(cl);
	cr_assert_eq(cache_advise(cl->mapping, GAIA_PAGE, GAIA_CHUNK, GAIA_ADVISE_DONTNEED), 0);
	cr_assert_gt(rig_device_used(rig, 0), 0, "a part is not enough");
	cr_assert_eq(cache_advise(cl->mapping, 0, GAIA_CHUNK, GAIA_ADVISE_DONTNEED), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

Test(device, work_is_proportional_to_what_changed)
{
	struct client *cl;
	uint64_t sent, out;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	client_store(cl, "x", 1, GAIA_CHUNK);
	release_all(cl);
	write_cpu(2 * GAIA_CHUNK, "y");
	sent = counter_value(CTR_home_to_device);
	out = counter_value(CTR_device_to_home);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(counter_value(CTR_home_to_device), sent + 1);
	release_all(cl);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(counter_value(CTR_device_to_home), out + 1);
	end();
}

/* ---- parts of a release ---- */

Test(release, of_a_part_leaves_the_rest_held)
{
	struct client *cl;
	char byte = 1;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 3 * GAIA_PAGE, GAIA_PROT_RW), 0);
	for (unsigned page = 0; page < 3; page++)
		client_store(cl, "d", 1, page * GAIA_PAGE);
	cr_assert_eq(client_release(cl, GAIA_PAGE + 100, 1), 0);
	expect_cpu(GAIA_PAGE, "d");
	cr_assert_eq(cpu_read(kf, &byte, 1, 0), 1);
	cr_assert_eq(byte, 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	release_all(cl);
	expect_cpu(0, "d");
	expect_cpu(2 * GAIA_PAGE, "d");
	cr_assert_eq(client_release(cl, 0, GAIA_CHUNK), 0, "nothing is left to release");
	end();
}

Test(release, of_what_was_acquired_to_read_publishes_nothing)
{
	struct client *cl;
	uint64_t published = counter_value(CTR_released_pages);

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	release_all(cl);
	cr_assert_eq(counter_value(CTR_released_pages), published);
	end();
}

Test(release, twice_acquired_is_once_released)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	write_device(cl, 0, "a");
	write_device(cl, 1, "b");
	cr_assert_eq(client_acquire(cl, 0, 2, GAIA_PROT_READ), 0);
	client_store(cl, "c", 1, 2);
	release_all(cl);
	expect_cpu(0, "abc");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* ---- holes and zeros ---- */

Test(zeros, a_hole_under_a_device_that_holds_the_page)
{
	struct client *cl;
	char byte = 1;

	begin_devices(1);
	write_cpu(0, "..........");
	cr_assert_eq(cpu_fsync(kf), 0);
	cl = new_client(0);
	write_device(cl, 2, "D");
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_PAGE), 0);
	release_all(cl);
	/* Only what it wrote is in it: not what it read before. */
	expect_cpu(2, "D");
	cr_assert_eq(cpu_read(kf, &byte, 1, 3), 1);
	cr_assert_eq(byte, 0);
	end();
}

Test(zeros, a_hole_takes_what_was_released_before)
{
	struct client *cl;
	char bytes[3];

	begin_devices(1);
	cl = new_client(0);
	write_device(cl, 0, "abc");
	release_all(cl);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1, 1), 0);
	cr_assert_eq(cpu_read(kf, bytes, 3, 0), 3);
	cr_assert_arr_eq(bytes, "a\0c", 3);
	cr_assert_eq(client_acquire(cl, 0, 3, GAIA_PROT_READ), 0);
	cr_assert_arr_eq(client_at(cl, 0), "a\0c", 3);
	end();
}

/* The home copy is gone, the store has been zeroed: the replica must not pass for current. */
Test(zeros, of_a_part_of_a_page_that_only_a_device_holds)
{
	struct client *cl;
	char bytes[3];

	begin_devices(1);
	write_cpu(0, "abc");
	cr_assert_eq(cpu_fsync(kf), 0);
	cl = new_client(0);
	expect_device(cl, 0, "abc");
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 1, 1), 0);
	cr_assert_eq(client_acquire(cl, 0, 3, GAIA_PROT_READ), 0);
	cr_assert_arr_eq(client_at(cl, 0), "a\0c", 3);
	cr_assert_eq(cpu_read(kf, bytes, 3, 0), 3);
	cr_assert_arr_eq(bytes, "a\0c", 3);
	end();
}

Test(zeros, may_make_the_file_larger)
{
	begin(&(struct rig_options){ .devices = 0 }, 10);
	write_cpu(0, "0123456789");
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_ZERO_RANGE, 5, 100), 0);
	cr_assert_eq(cfile_size(kf->cfile), 105);
	expect_cpu(0, "01234");
	cr_assert_eq(cpu_allocate(kf, 0, 0, 1000), 0);
	cr_assert_eq(cfile_size(kf->cfile), 1000);
	end();
}

Test(zeros, holes_can_be_found)
{
	struct client *cl;

	begin_devices(1);
	cr_assert_eq(cache_seek(kf->cfile, 0, SEEK_DATA), -ENXIO);
	cr_assert_eq(cache_seek(kf->cfile, 0, SEEK_HOLE), 0);
	cl = new_client(0);
	write_device(cl, 2 * GAIA_PAGE, "x");
	release_all(cl);
	cr_assert_eq(cache_seek(kf->cfile, 0, SEEK_DATA), 2 * GAIA_PAGE);
	cr_assert_eq(cache_seek(kf->cfile, 2 * GAIA_PAGE, SEEK_HOLE), 3 * GAIA_PAGE);
	cr_assert_eq(cache_seek(kf->cfile, 4 * GAIA_CHUNK, SEEK_HOLE), -ENXIO);
	end();
}

/* ---- the life of files ---- */

static unsigned given_back;

static void give_back(void *cookie)
{
	given_back++;
}

Test(life, a_second_reference_to_the_cookie_is_given_back)
{
	struct cfile_source source = { NULL, give_back };
	struct cfile *again;

	begin_devices(0);
	cr_assert_eq(cfile_get(rig->cache, 1, &source, NULL, 0, &again), 0);
	cr_assert_eq(again, kf->cfile);
	cr_assert_eq(given_back, 1);
	cr_assert_eq(cfile_size(again), 4 * GAIA_CHUNK);
	cfile_put(again);
	end();
	cr_assert_eq(given_back, 1);
}

Test(life, a_forgotten_file_is_stored_and_ends)
{
	begin(&(struct rig_options){ .devices = 1, .age_ms = 1 }, GAIA_PAGE);
	write_cpu(0, "kept");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	cfile_put(kf->cfile);
	cache_forget(rig->cache, 1);
	while (atomic_load(&kf->released) == 0)
		sched_yield();
	expect_store(0, "kept");
	cr_assert_eq(rig_frames(rig), 0);
	/* The kfile is not the cache's any more. */
	SLIST_REMOVE(&rig->files, kf, kfile, link);
	free(kf);
	end();
}

Test(life, a_forgotten_file_is_found_again)
{
	struct cfile *f;

	begin_devices(1);
	write_cpu(0, "kept");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	cache_forget(rig->cache, 1);
	f = kf->cfile;
	expect_cpu(0, "kept");
	cr_assert_eq(cfile_size(f), 4 * GAIA_CHUNK);
	end();
}

Test(life, a_mapping_holds_its_file)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	write_device(cl, 0, "kept");
	cfile_put(kf->cfile);
	cache_forget(rig->cache, 1);
	cr_assert_eq(cache_release(cl->mapping, 0, 4), 0);
	cr_assert_eq(cache_fsync(kf->cfile, 0, 0, false), 0);
	expect_store(0, "kept");
	cr_assert_eq(atomic_load(&kf->released), 0);
	cfile_hold(kf->cfile);
	end();
}

/* ---- reports ---- */

static json_int_t number(json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

Test(report, residency_counts_what_is_where)
{
	json_t *report, *chunk, *replica;
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	write_device(cl, 0, "x");
	release_all(cl);
	cr_assert_eq(client_acquire(cl, GAIA_PAGE, GAIA_PAGE, GAIA_PROT_RW), 0);
	report = cfile_residency_json(kf->cfile);
	cr_assert_not_null(report);
	cr_assert_eq(number(report, "size"), 4 * GAIA_CHUNK);
	cr_assert_eq(number(report, "released"), 1);
	chunk = json_array_get(json_object_get(report, "chunks"), 0);
	replica = json_array_get(json_object_get(chunk, "devices"), 0);
	cr_assert_eq(number(replica, "present"), 2);
	cr_assert_eq(number(replica, "released"), 1);
	cr_assert_eq(number(replica, "writable"), 1);
	json_decref(report);
	end();
}

Test(report, status_tells_budgets_and_counters)
{
	json_t *report, *home, *device;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 3 }, GAIA_PAGE);
	write_cpu(0, "x");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	report = cache_status_json(rig->cache);
	cr_assert_not_null(report);
	home = json_object_get(report, "home");
	cr_assert_eq(number(home, "budget"), 64 << 20);
	cr_assert_eq(number(home, "used"), GAIA_PAGE);
	cr_assert_eq(number(home, "dirty"), GAIA_PAGE);
	cr_assert_eq(number(home, "files"), 1);
	device = json_array_get(json_object_get(report, "devices"), 0);
	cr_assert_eq(number(device, "capacity"), 3 * GAIA_CHUNK);
	cr_assert_not_null(json_object_get(json_object_get(report, "counters"), "merges"));
	json_decref(report);
	end();
}
