/*
 * cache_file_pins.c - files that are pinned to a device, and what is brought there, or into home, without an acquire.
 */
#include "cache_acquires.h"

#include <unistd.h>

#include "pagecache/devices.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"

#define OWNER ((struct cache_user){ .uid = 0, .owner = true })
#define USER(n) ((struct cache_user){ .uid = (n) })

static int pin_as(struct kfile *f, struct cache_user user)
{
	bool fresh;

	return cache_pin(f->cfile, 0, user, &fresh);
}

static void pin_all(struct kfile *f)
{
	cr_assert_eq(pin_as(f, OWNER), 0);
	cr_assert_eq(cache_bring(f->cfile, 0, OWNER, 0, UINT64_MAX, false, NULL), 0);
}

static uint64_t sent(void)
{
	return counter_value(CTR_home_to_device);
}

/* A device of 8 chunks, and the file, of 4, pinned with its contents. */
static void begin_pinned(const struct rig_options *options)
{
	begin(options, 4 * GAIA_CHUNK);
	write_cpu(0, "first");
	write_cpu(3 * GAIA_CHUNK, "last");
	client_push(&(struct client){ .kf = kf }, 0, 4 * GAIA_CHUNK);
	pin_all(kf);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
}

/* What is left of the device, for another file: exactly @chunks. */
static void expect_room(uint64_t chunks)
{
	struct kfile *other = kfile_create(rig, 9, 9 * GAIA_CHUNK);
	struct client *cl = client_create(other, 0, GAIA_PROT_RW, 9 * GAIA_CHUNK);

	cr_assert_eq(client_acquire(cl, 0, (chunks + 1) * GAIA_CHUNK, GAIA_PROT_READ), -ENOMEM);
	if (chunks > 0)
		cr_assert_eq(client_acquire(cl, 0, chunks * GAIA_CHUNK, GAIA_PROT_READ), 0);
	client_end(cl);
	cr_assert_eq(cache_evict(other->cfile, 0, 0, 0), 0);
	kfile_end(other, false);
}

/* Acquiring all of the file moves so many pages. */
static void expect_moved(uint64_t pages)
{
	struct client *cl = new_client(0);
	uint64_t before = sent();

	expect_device(cl, 0, "first");
	expect_device(cl, 3 * GAIA_CHUNK, "last");
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(sent() - before, pages);
	client_end(cl);
}

Test(file_pins, stay_when_no_client_is_left, .timeout = 200)
{
	begin_pinned(&(struct rig_options){ .devices = 1 });
	expect_room(4);
	expect_moved(0);
	expect_room(4);
	expect_moved(0);
	end();
}

Test(file_pins, stay_when_the_kernel_has_forgotten_the_file, .timeout = 200)
{
	struct kfile *other;

	begin_pinned(&(struct rig_options){ .devices = 1 });
	kfile_forget(kf);
	/* The flusher drops what devices have of forgotten files: of another one, and so it comes to ours. */
	other = kfile_create(rig, 2, GAIA_CHUNK);
	cr_assert_eq(cache_bring(other->cfile, 0, OWNER, 0, GAIA_CHUNK, false, NULL), 0);
	kfile_end(other, false);
	cache_check(rig->cache); /* waits for it */
	expect_room(4);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
	kfile_remember(kf);
	expect_moved(0);
	end();
}

Test(file_pins, end_with_the_file, .timeout = 200)
{
	begin_pinned(&(struct rig_options){ .devices = 1 });
	kfile_end(kf, true);
	while (rig_device_used(rig, 0) > 0)
		usleep(1000);
	kf = kfile_create(rig, 2, 4 * GAIA_CHUNK);
	expect_room(8);
	cr_assert_eq(rig->cache->dev[0].file_chunks, 0);
	end();
}

Test(file_pins, end_when_they_are_ended, .timeout = 200)
{
	begin_pinned(&(struct rig_options){ .devices = 1 });
	cr_assert_eq(cache_unpin(kf->cfile, 0, OWNER), 0);
	cr_assert_eq(cache_unpin(kf->cfile, 0, OWNER), -ENOENT);
	cr_assert_eq(cache_pinned(kf->cfile, 0), 0);
	/* The contents stay until somebody needs the room. */
	expect_moved(0);
	expect_room(8);
	end();
}

Test(file_pins, have_a_share_of_the_device, .timeout = 200)
{
	struct kfile *other;

	begin_pinned(&(struct rig_options){ .devices = 1, .files_percent = 63 }); /* 5 chunks */
	other = kfile_create(rig, 2, 2 * GAIA_CHUNK);
	cr_assert_eq(pin_as(other, OWNER), -ENOSPC);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
	cr_assert_eq(cpu_truncate(other, GAIA_CHUNK), 0);
	cr_assert_eq(pin_as(other, OWNER), 0);
	cr_assert_eq(cache_unpin(kf->cfile, 0, OWNER), 0);
	/* Without contents it counts as one chunk: it takes memory of the daemon's. */
	cr_assert_eq(cpu_truncate(kf, 0), 0);
	cr_assert_eq(pin_as(kf, OWNER), 0);
	cr_assert_eq(cache_pinned(kf->cfile, 0), GAIA_CHUNK);
	end();
}

Test(file_pins, of_a_share_of_nothing_there_are_none, .timeout = 200)
{
	begin(&(struct rig_options){ .devices = 1, .files_percent = 1 }, 100);
	cr_assert_eq(pin_as(kf, OWNER), -ENOSPC);
	end();
}

Test(file_pins, of_users_are_limited_for_each, .timeout = 200)
{
	struct kfile *other;

	begin(&(struct rig_options){ .devices = 1, .files_percent = 100, .files_user_percent = 50 }, 4 * GAIA_CHUNK);
	other = kfile_create(rig, 2, GAIA_CHUNK);
	cr_assert_eq(pin_as(kf, USER(1)), 0);
	cr_assert_eq(pin_as(kf, USER(1)), 0, "again: the same pin");
	cr_assert_eq(pin_as(other, USER(1)), -EDQUOT);
	cr_assert_eq(pin_as(other, USER(2)), 0);
	cr_assert_eq(pin_as(kf, USER(2)), -EDQUOT, "also if another has it there");
	cr_assert_eq(pin_as(kf, OWNER), 0);
	cr_assert_eq(rig->cache->dev[0].file_chunks, 5, "a file counts once");
	cr_assert_eq(cache_unpin(kf->cfile, 0, USER(2)), -ENOENT);
	cr_assert_eq(cache_unpin(kf->cfile, 0, USER(1)), 0);
	cr_assert_eq(cache_pinned(kf->cfile, 0), 4 * GAIA_CHUNK, "the owner's");
	cr_assert_eq(pin_as(kf, USER(1)), 0);
	cr_assert_eq(cache_unpin(kf->cfile, 0, OWNER), 0);
	cr_assert_eq(cache_pinned(kf->cfile, 0), 0, "an owner ends all");
	cr_assert_eq(cache_unpin(other->cfile, 0, USER(2)), 0);
	cr_assert_null(rig->cache->dev[0].users);
	cr_assert_eq(rig->cache->dev[0].user_chunks, 0);
	end();
}

/* What users pin counts in what they may have of the device, once. */
Test(file_pins, of_users_count_in_their_share, .timeout = 200)
{
	struct client *cl, *other;
	struct kfile *file;

	/* 6 chunks a user, 7 all users. */
	begin(&(struct rig_options){ .devices = 1, .files_percent = 100, .files_user_percent = 50 }, 4 * GAIA_CHUNK);
	file = kfile_create(rig, 2, 8 * GAIA_CHUNK);
	cr_assert_eq(pin_as(kf, USER(1)), 0);
	rig->user = USER(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	other = client_create(file, 0, GAIA_PROT_RW, 8 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(other, 0, 3 * GAIA_CHUNK, GAIA_PROT_READ), -ENOMEM);
	cr_assert_eq(client_acquire(other, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_all(cl);
	cr_assert_eq(client_acquire(other, 2 * GAIA_CHUNK, GAIA_CHUNK, GAIA_PROT_READ), -ENOMEM, "it is pinned still");
	rig->user = USER(2);
	cl = client_create(file, 0, GAIA_PROT_RW, 8 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 6 * GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_READ), -ENOMEM);
	cr_assert_eq(client_acquire(cl, 6 * GAIA_CHUNK, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_unpin(kf->cfile, 0, USER(1)), 0);
	cr_assert_eq(client_acquire(other, 2 * GAIA_CHUNK, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	rig->user = OWNER;
	end();
}

Test(file_pins, are_for_owners_only_by_default, .timeout = 200)
{
	begin(&(struct rig_options){ .devices = 1 }, GAIA_CHUNK);
	cr_assert_eq(pin_as(kf, USER(1)), -EPERM);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

Test(file_pins, need_room_beside_what_is_held, .timeout = 200)
{
	struct kfile *other;
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .files_percent = 100 }, 4 * GAIA_CHUNK);
	other = kfile_create(rig, 2, 5 * GAIA_CHUNK);
	cl = client_create(other, 0, GAIA_PROT_RW, 5 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 0, 5 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(pin_as(kf, OWNER), -ENOMEM);
	cr_assert_eq(cache_pinned(kf->cfile, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 5 * GAIA_CHUNK, "nothing of it is there");
	/* What is not held goes, ready or not. */
	cr_assert_eq(client_release(cl, 0, GAIA_CHUNK), 0);
	cr_assert_eq(pin_as(kf, OWNER), 0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), -ENOMEM);
	end();
}

Test(file_pins, are_all_there_or_not_at_all, .timeout = 200)
{
	for (unsigned after = 0; after < 4; after++) {
		begin(&(struct rig_options){ .devices = 1 }, 4 * GAIA_CHUNK);
		fault_arm("device.alloc", -ENOMEM, after, 1000);
		cr_assert_eq(pin_as(kf, OWNER), -ENOMEM);
		fault_disarm_all();
		cr_assert_eq(cache_pinned(kf->cfile, 0), 0);
		cr_assert_eq(rig->cache->dev[0].file_chunks_there, 0);
		expect_room(8);
		cr_assert_eq(pin_as(kf, OWNER), 0);
		end();
	}
}

Test(file_pins, stay_when_their_contents_cannot_be_read, .timeout = 200)
{
	begin(&(struct rig_options){ .devices = 1 }, 4 * GAIA_CHUNK);
	write_cpu(0, "first");
	write_cpu(3 * GAIA_CHUNK, "last");
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(pin_as(kf, OWNER), 0);
	fault_arm("store.read", -EIO, 0, 1000);
	cr_assert_eq(cache_bring(kf->cfile, 0, OWNER, 0, UINT64_MAX, false, NULL), -EIO);
	fault_disarm_all();
	cr_assert_eq(cache_pinned(kf->cfile, 0), 4 * GAIA_CHUNK);
	expect_room(4);
	cr_assert_eq(cache_bring(kf->cfile, 0, OWNER, 0, UINT64_MAX, false, NULL), 0);
	expect_moved(0);
	end();
}

Test(file_pins, are_not_evicted_on_request, .timeout = 200)
{
	struct client *cl;

	begin_pinned(&(struct rig_options){ .devices = 1 });
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_all(cl);
	cr_assert_eq(cache_advise(cl->mapping, 0, 4 * GAIA_CHUNK, GAIA_ADVISE_DONTNEED), 0);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
	expect_moved(0);
	/* Home is another matter. */
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	end();
}

Test(file_pins, keep_memory_and_not_freshness, .timeout = 200)
{
	begin_pinned(&(struct rig_options){ .devices = 1 });
	write_cpu(5 * GAIA_PAGE, "new");
	expect_moved(1);
	expect_moved(0);
	end();
}

Test(file_pins, keep_what_was_released, .timeout = 200)
{
	struct client *cl;

	begin_pinned(&(struct rig_options){ .devices = 1 });
	cl = new_client(0);
	write_device(cl, GAIA_CHUNK, "released");
	release_all(cl);
	client_end(cl);
	expect_room(4);
	expect_cpu(GAIA_CHUNK, "released");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(GAIA_CHUNK, "released");
	expect_moved(0);
	end();
}

Test(file_pins, of_a_file_that_was_cut_show_nothing_of_before, .timeout = 200)
{
	struct client *cl;

	begin_pinned(&(struct rig_options){ .devices = 1 });
	cr_assert_eq(cpu_truncate(kf, 10), 0);
	cache_check(rig->cache);
	cr_assert_eq(cache_pinned(kf->cfile, 0), 4 * GAIA_CHUNK, "the room is kept");
	expect_room(4);
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
	cl = new_client(0);
	expect_device(cl, 0, "first");
	expect_device(cl, 3 * GAIA_CHUNK, "");
	client_end(cl);
	expect_room(4);
	end();
}

Test(file_pins, grow_by_a_later_call, .timeout = 200)
{
	bool fresh = true;

	begin_pinned(&(struct rig_options){ .devices = 1, .files_percent = 75 });
	cr_assert_eq(cpu_truncate(kf, 6 * GAIA_CHUNK), 0);
	expect_room(4);
	cr_assert_eq(cache_pin(kf->cfile, 0, OWNER, &fresh), 0);
	cr_assert_not(fresh);
	expect_room(2);
	end();
}

/* ---- clients that go ---- */

/* A client dies, and a child of it may store to its memory still. */
static void leave_behind(uint64_t chunk)
{
	struct client *cl = new_client(0);

	cr_assert_eq(client_acquire(cl, chunk * GAIA_CHUNK, 1, GAIA_PROT_RW), 0);
	client_store(cl, "lies", 4, chunk * GAIA_CHUNK);
	cl->kept = true;
	client_die(cl);
	client_end(cl);
}

Test(file_pins, stay_in_other_memory_when_a_client_may_store_there, .timeout = 200)
{
	begin_pinned(&(struct rig_options){ .devices = 1 });
	leave_behind(0);
	cr_assert_eq(counter_value(CTR_device_renewed), 1);
	cr_assert_eq(rig->cache->dev[0].file_chunks_there, 4);
	expect_room(4);
	expect_moved(1); /* that it had stored to */
	end();
}

Test(file_pins, keep_their_room_when_a_replica_has_to_go, .timeout = 200)
{
	struct client *holder;
	struct kfile *other;

	begin_pinned(&(struct rig_options){ .devices = 1 });
	other = kfile_create(rig, 2, 4 * GAIA_CHUNK);
	holder = client_create(other, 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(holder, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	leave_behind(0);
	cr_assert_eq(counter_value(CTR_device_renewed), 0, "there was no room for a copy");
	cr_assert_eq(rig->cache->dev[0].file_chunks_there, 3);
	cache_check(rig->cache);
	cr_assert_eq(client_release(holder, 0, 4 * GAIA_CHUNK), 0);
	cr_assert_eq(cache_evict(other->cfile, 0, 0, 0), 0);
	expect_room(4);
	/* There is room for it also when all else is held. */
	cr_assert_eq(client_acquire(holder, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	expect_moved(GAIA_CHUNK_PAGES);
	cr_assert_eq(rig->cache->dev[0].file_chunks_there, 4);
	client_end(holder);
	cr_assert_eq(cache_evict(other->cfile, 0, 0, 0), 0);
	expect_room(4);
	end();
}

Test(file_pins, of_a_device_that_is_lost_can_be_ended, .timeout = 200)
{
	json_t *pins;

	begin_pinned(&(struct rig_options){ .devices = 1 });
	device_note_gone(&rig->cache->dev[0], -ENODEV);
	cr_assert_eq(pin_as(kf, OWNER), -ENODEV);
	pins = cache_pins_json(rig->cache, 0, true);
	cr_assert_eq(json_array_size(json_object_get(pins, "pins")), 1u);
	json_decref(pins);
	cr_assert_eq(cache_unpin(kf->cfile, 0, OWNER), 0);
	cr_assert_eq(rig->cache->dev[0].file_chunks, 0);
	fault_disarm_all();
	rig_destroy(rig);
}

/* ---- all at once ---- */

#define ROUNDS 150

static struct kfile *contended;

static void allow(int err, int a, int b)
{
	if (err && err != a && err != b)
		bug("%s", strerror(-err));
}

static void *pin_and_unpin(void *arg)
{
	struct cache_user user = arg ? USER(1) : OWNER;

	for (unsigned k = 0; k < ROUNDS; k++) {
		allow(pin_as(kf, user), -ENOMEM, -EDQUOT);
		allow(cache_bring(kf->cfile, 0, user, 0, UINT64_MAX, k % 2, NULL), -ENOMEM, 0);
		allow(cache_unpin(kf->cfile, 0, user), -ENOENT, 0);
	}
	return NULL;
}

static void *cut_and_grow(void *arg)
{
	for (unsigned k = 0; k < ROUNDS; k++)
		allow(cpu_truncate(kf, (k * 7 % 9) * GAIA_CHUNK / 2), 0, 0);
	return arg;
}

/* Of another file: whatever fits. */
static void *use_the_rest(void *arg)
{
	for (unsigned k = 0; k < ROUNDS; k++) {
		struct client *cl = client_create(contended, 0, GAIA_PROT_RW, 8 * GAIA_CHUNK);

		allow(client_acquire(cl, 0, (1 + k % 8) * GAIA_CHUNK, GAIA_PROT_RW), -ENOMEM, 0);
		client_end(cl);
		allow(cache_evict(contended->cfile, 0, 0, 0), -EBUSY, 0);
	}
	return arg;
}

/* Of the pinned one; and somebody may go on storing to its memory. */
static void *use_and_leave(void *arg)
{
	for (unsigned k = 0; k < ROUNDS; k++) {
		struct client *cl = new_client(0);

		allow(client_acquire(cl, k % 4 * GAIA_CHUNK, GAIA_PAGE, GAIA_PROT_RW), -ENOMEM, 0);
		cl->kept = k % 2;
		if (cl->kept)
			client_die(cl);
		client_end(cl);
		allow(cache_evict(kf->cfile, 0, 0, 0), -EBUSY, 0);
	}
	return arg;
}

Test(file_pins, are_counted_right_whatever_others_do, .timeout = 200)
{
	void *(*const fn[])(void *) = { pin_and_unpin, pin_and_unpin, cut_and_grow, use_the_rest, use_and_leave };
	pthread_t thread[ARRAY_LEN(fn)];

	begin(&(struct rig_options){ .devices = 1, .files_percent = 100, .files_user_percent = 50 }, 4 * GAIA_CHUNK);
	contended = kfile_create(rig, 2, 8 * GAIA_CHUNK);
	for (unsigned k = 0; k < ARRAY_LEN(fn); k++)
		cr_assert_eq(pthread_create(&thread[k], NULL, fn[k], k == 1 ? &rig : NULL), 0);
	for (unsigned k = 0; k < ARRAY_LEN(fn); k++)
		pthread_join(thread[k], NULL);
	cr_assert_eq(rig->cache->dev[0].file_chunks, 0);
	cr_assert_eq(rig->cache->dev[0].file_chunks_there, 0);
	cr_assert_eq(rig->cache->dev[0].user_chunks, 0);
	cr_assert_null(rig->cache->dev[0].users);
	end();
}

/* ---- readers who may not write, on a device that cannot keep them from it ---- */

Test(file_pins, are_of_the_replica_that_writers_share, .timeout = 200)
{
	struct client *reader;
	uint64_t before, reads;

	begin_pinned(&(struct rig_options){ .devices = 1, .always_writable = true });
	forget_but_on_devices();
	before = sent();
	reads = counter_value(CTR_storage_reads);
	reader = new_reader();
	expect_device(reader, 0, "first");
	expect_device(reader, 3 * GAIA_CHUNK, "last");
	cr_assert_eq(rig_device_used(rig, 0), 6 * GAIA_CHUNK, "the reader has a copy of its own");
	cr_assert_eq(sent(), before);
	cr_assert_eq(counter_value(CTR_storage_reads), reads, "made on the device");
	client_end(reader);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
	expect_moved(0);
	end();
}

/* ---- beside what is ready ---- */

Test(file_pins, are_ready_like_others, .timeout = 200)
{
	struct client *cl;
	uint64_t before;

	begin_pinned(&(struct rig_options){ .devices = 1 });
	cr_assert_eq(cpu_fsync(kf), 0); /* storing it later would end the readiness */
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_all(cl);
	before = counter_value(CTR_acquires_ready);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(counter_value(CTR_acquires_ready), before + 1);
	release_all(cl);
	before = counter_value(CTR_acquires_ready);
	expect_room(4);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(counter_value(CTR_acquires_ready), before + 1, "others needed no room of it");
	expect_room(4);
	release_all(cl);
	end();
}

/* ---- bringing without a pin ---- */

static int warm(struct kfile *f, uint64_t off, uint64_t len)
{
	return cache_bring(f->cfile, 0, USER(1), off, len, true, NULL);
}

Test(warm, brings_contents_and_holds_nothing, .timeout = 200)
{
	begin(&(struct rig_options){ .devices = 1 }, 4 * GAIA_CHUNK);
	write_cpu(0, "first");
	write_cpu(3 * GAIA_CHUNK, "last");
	client_push(&(struct client){ .kf = kf }, 0, 4 * GAIA_CHUNK);
	cr_assert_eq(warm(kf, 0, 4 * GAIA_CHUNK), 0);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
	cr_assert_eq(cache_room(rig->cache, 0), 8 * GAIA_CHUNK, "it is in no use");
	expect_moved(0);
	expect_room(8);
	end();
}

Test(warm, takes_no_memory_that_is_in_use_ready_or_pinned, .timeout = 200)
{
	struct kfile *other, *third;
	struct client *cl;
	uint64_t before;

	begin_pinned(&(struct rig_options){ .devices = 1, .device_chunks = 9 });
	other = kfile_create(rig, 2, 4 * GAIA_CHUNK);
	cl = client_create(other, 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(client_release(cl, GAIA_CHUNK, 3 * GAIA_CHUNK), 0);
	third = kfile_create(rig, 3, 4 * GAIA_CHUNK);
	cr_assert_eq(cache_room(rig->cache, 0), GAIA_CHUNK);
	cr_assert_eq(warm(third, 0, 2 * GAIA_CHUNK), -ENOMEM);
	cr_assert_eq(warm(third, 0, GAIA_CHUNK), 0);
	cr_assert_eq(warm(third, GAIA_CHUNK, GAIA_CHUNK), 0, "in the place of what is in no use");
	before = counter_value(CTR_acquires_ready);
	cr_assert_eq(client_acquire(cl, GAIA_CHUNK, 3 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(counter_value(CTR_acquires_ready), before + 1, "what was ready is");
	client_end(cl);
	end();
}

Test(warm, ends_at_the_end_of_the_file, .timeout = 200)
{
	begin(&(struct rig_options){ .devices = 1 }, GAIA_CHUNK + 10);
	cr_assert_eq(warm(kf, 0, 100 * GAIA_CHUNK), 0);
	cr_assert_eq(warm(kf, 50 * GAIA_CHUNK, GAIA_CHUNK), 0);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	end();
}

Test(warm, that_was_given_up_says_so, .timeout = 200)
{
	atomic_uint verdict = CACHE_GIVEN_UP;

	begin_devices(1);
	cr_assert_eq(cache_bring(kf->cfile, 0, OWNER, 0, GAIA_CHUNK, true, &verdict), -EINTR);
	end();
}

Test(warm, of_home_takes_free_frames_only, .timeout = 200)
{
	struct kfile *other;
	uint64_t done, used;

	begin(&(struct rig_options){ .devices = 1, .home_bytes = 8ull << 20 }, 4 * GAIA_CHUNK);
	other = kfile_create(rig, 2, 4 * GAIA_CHUNK);
	cr_assert_eq(cache_bring_home(kf->cfile, 0, GAIA_CHUNK, &done), 0);
	cr_assert_eq(done, GAIA_CHUNK);
	used = rig_frames(rig);
	cr_assert_eq(used, GAIA_CHUNK_PAGES);
	cr_assert_eq(cache_bring_home(other->cfile, 0, 4 * GAIA_CHUNK, &done), 0);
	cr_assert_geq(done, 2 * GAIA_CHUNK);
	cr_assert_lt(done, 4 * GAIA_CHUNK, "the first file stays");
	cr_assert_eq(counter_value(CTR_home_evicted), 0);
	end();
}
