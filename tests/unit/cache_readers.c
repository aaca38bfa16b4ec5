/*
 * cache_readers.c - what clients are given that may not write the file: memory of their own, which those of one user
 * share. And what each user may pin of a device.
 */
#include "cache_acquires.h"

#include <sys/mman.h>

/* ---- those that may not write, on a device that cannot keep them from it ---- */

static struct client *reader_of(uid_t uid)
{
	rig->user.uid = uid;
	return new_reader();
}

/* What a program can do that takes the descriptor of a chunk from the library. */
static void scribble(struct client *cl, uint64_t off, const char *text)
{
	unsigned char *chunk = client_at(cl, off) - off % GAIA_CHUNK;

	cr_assert_eq(mprotect(chunk, GAIA_CHUNK, PROT_READ | PROT_WRITE), 0);
	client_store(cl, text, strlen(text), off);
}

Test(reader, has_memory_that_nobody_else_reads)
{
	struct client *reader, *writer, *other;
	char seen[5] = "";

	begin_writable(8);
	write_cpu(0, "true");
	reader = reader_of(1);
	other = reader_of(2);
	writer = new_client(0);
	cr_assert_eq(client_acquire(reader, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	expect_device(other, 0, "true");
	scribble(reader, 0, "lies");
	expect_device(writer, 0, "true");
	expect_device(other, 0, "true");
	/* Not even where a device is the nearest place to read from. */
	cr_assert_eq(cpu_fsync(kf), 0);
	release_all(writer);
	release_all(other);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY, "the reader's own is left");
	client_end(other);
	forget_but_on_devices();
	expect_cpu(0, "true");
	release_all(reader);
	client_load(reader, seen, 4, 0);
	cr_assert_str_eq(seen, "lies");
	expect_cpu(0, "true");
	end();
}

Test(reader, sees_what_is_released_later)
{
	struct client *reader, *writer;

	begin_writable(8);
	reader = new_reader();
	writer = new_client(0);
	write_cpu(100, "one");
	expect_device(reader, 100, "one");
	write_device(writer, 100, "two");
	expect_device(reader, 100, "one");
	release_all(writer);
	expect_device(reader, 100, "two");
	store_cpu(100, "three");
	expect_device(reader, 100, "three");
	end();
}

/* What those have who may write comes to readers on the device, and nothing of a reader's to anybody. */
Test(reader, is_served_by_what_writers_share)
{
	struct client *reader, *other, *writer;
	uint64_t sent, reads;

	begin_writable(8);
	write_cpu(0, "one");
	write_cpu(GAIA_PAGE, "two");
	writer = new_client(0);
	cr_assert_eq(client_acquire(writer, 0, 2 * GAIA_PAGE, GAIA_PROT_READ), 0);
	release_all(writer);
	write_device(writer, GAIA_PAGE, "2wo");
	forget_but_on_devices();
	sent = counter_value(CTR_home_to_device);
	reads = counter_value(CTR_storage_reads);
	reader = reader_of(1);
	expect_device(reader, 0, "one");
	cr_assert_eq(counter_value(CTR_device_within), 1);
	cr_assert_eq(counter_value(CTR_home_to_device), sent);
	cr_assert_eq(counter_value(CTR_storage_reads), reads);
	/* Held for writing, and not released: that is private. */
	expect_device(reader, GAIA_PAGE, "two");
	cr_assert_eq(counter_value(CTR_device_within), 1);
	release_all(writer);
	expect_device(reader, GAIA_PAGE, "2wo");
	scribble(reader, 0, "lie");
	other = reader_of(2);
	expect_device(other, 0, "one");
	client_end(writer);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	client_end(other);
	other = reader_of(3);
	expect_device(other, 0, "one");
	end();
}

Test(reader, is_served_by_home_if_the_device_fails)
{
	struct client *reader, *writer;

	begin_writable(8);
	write_cpu(0, "one");
	writer = new_client(0);
	expect_device(writer, 0, "one");
	fault_arm("device.copy_within", -EIO, 0, 1);
	reader = reader_of(1);
	expect_device(reader, 0, "one");
	cr_assert_eq(counter_value(CTR_device_within), 0);
	cr_assert_eq(counter_value(CTR_peer_failures), 1);
	end();
}

Test(reader, of_pages_that_did_not_change_moves_nothing_again)
{
	struct client *reader;
	uint64_t sent;

	begin_writable(8);
	write_cpu(0, "abc");
	reader = new_reader();
	expect_device(reader, 0, "abc");
	release_all(reader);
	sent = counter_value(CTR_home_to_device);
	expect_device(reader, 0, "abc");
	cr_assert_eq(counter_value(CTR_home_to_device), sent);
	end();
}

Test(reader, takes_its_memory_along)
{
	struct client *reader, *writer;

	begin_writable(8);
	writer = new_client(0);
	reader = new_reader();
	cr_assert_eq(client_acquire(writer, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(reader, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_advise(reader->mapping, 2 * GAIA_CHUNK, GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	rig_readahead(rig);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
	client_end(reader);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	end();
}

Test(reader, gives_way_when_it_has_released)
{
	struct client *reader, *writer;

	begin_writable(2);
	reader = new_reader();
	writer = new_client(0);
	cr_assert_eq(client_acquire(reader, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(writer, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW), -ENOMEM);
	release_all(reader);
	cr_assert_eq(client_acquire(writer, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(atomic_load(&reader->revoked), 1);
	cr_assert_null(client_at(reader, 0));
	end();
}

Test(reader, loses_its_copy_on_request_like_any)
{
	struct client *reader, *writer;

	begin_writable(8);
	reader = new_reader();
	writer = new_client(0);
	cr_assert_eq(client_acquire(reader, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(writer, 0, 1, GAIA_PROT_RW), 0);
	release_all(writer);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK, "the other one went");
	release_all(reader);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

/* ---- readers of one user ---- */

Test(readers, of_one_user_share_one_copy)
{
	struct client *one, *two, *writer;

	begin_writable(8);
	write_cpu(0, "true");
	one = reader_of(1);
	two = reader_of(1);
	writer = new_client(0);
	expect_device(one, 0, "true");
	expect_device(two, 0, "true");
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	cr_assert_eq(counter_value(CTR_home_to_device), 1);
	expect_device(writer, 0, "true");
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	/* They could write each other's memory anyway; what is in it becomes nobody else's. */
	cr_assert_eq(client_acquire(one, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	scribble(one, 0, "lies");
	cr_assert_eq(memcmp(client_at(two, 0), "lies", 4), 0);
	release_all(one);
	release_all(two);
	release_all(writer);
	expect_device(writer, 0, "true");
	client_end(writer);
	forget_but_on_devices();
	expect_cpu(0, "true");
	end();
}

Test(readers, of_one_user_see_what_is_released_while_another_holds_it)
{
	struct client *one, *two, *writer;

	begin_writable(8);
	one = reader_of(1);
	two = reader_of(1);
	writer = new_client(0);
	write_cpu(100, "one");
	expect_device(one, 100, "one");
	write_device(writer, 100, "two");
	release_all(writer);
	expect_device(two, 100, "two");
	cr_assert_eq(memcmp(client_at(one, 100), "two", 3), 0);
	release_all(two);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY, "the other one holds it");
	release_all(one);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(one->revoked + two->revoked, 2);
	end();
}

Test(readers, copy_stays_until_the_last_of_the_user_goes)
{
	struct client *one, *two, *other;

	begin_writable(8);
	one = reader_of(1);
	two = reader_of(1);
	other = reader_of(2);
	cr_assert_eq(client_acquire(one, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_advise(one->mapping, 2 * GAIA_CHUNK, GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	rig_readahead(rig);
	cr_assert_eq(client_acquire(two, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(other, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
	client_end(one);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
	client_end(two);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK, "the other user's");
	/* And a later one begins anew. */
	two = reader_of(1);
	cr_assert_eq(client_acquire(two, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	end();
}

Test(readers, of_two_files_have_nothing_in_common)
{
	struct client *one, *two;
	struct kfile *other;

	begin_writable(8);
	other = kfile_create(rig, 2, 4 * GAIA_CHUNK);
	write_cpu(0, "first");
	cr_assert_eq(cpu_write(other, "second", 6, 0), 0);
	one = reader_of(1);
	two = client_create(other, 0, GAIA_PROT_READ, 4 * GAIA_CHUNK);
	expect_device(one, 0, "first");
	expect_device(two, 0, "second");
	release_all(two);
	client_end(one);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	expect_device(two, 0, "second");
	end();
}

Test(readers, who_are_alone_share_with_nobody)
{
	struct client *one, *two, *alone;

	begin_writable(8);
	write_cpu(0, "true");
	one = reader_of(1);
	rig->user.alone = true;
	alone = reader_of(1);
	two = reader_of(1);
	expect_device(one, 0, "true");
	expect_device(alone, 0, "true");
	expect_device(two, 0, "true");
	cr_assert_eq(rig_device_used(rig, 0), 3 * GAIA_CHUNK);
	scribble(one, 0, "lies");
	scribble(two, 0, "lies");
	cr_assert_eq(memcmp(client_at(alone, 0), "true", 4), 0);
	client_end(alone);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	end();
}

Test(readers, who_may_write_share_with_those_who_do)
{
	struct client *reader, *writer;

	begin(&(struct rig_options){ .devices = 1, .always_writable = true, .readers_may_write = true }, 4 * GAIA_CHUNK);
	reader = new_reader();
	writer = new_client(0);
	write_device(writer, 0, "device");
	release_all(writer);
	expect_device(reader, 0, "device");
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	cr_assert_eq(counter_value(CTR_home_to_device), 1);
	end();
}

static void *come_and_go(void *arg)
{
	for (int i = 0; i < 50; i++) {
		struct client *cl = new_reader();

		rig_importers_gone();
		if (i % 2)
			cr_assert_eq(cache_advise(cl->mapping, GAIA_CHUNK, GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
		expect_device(cl, 0, "true");
		client_end(cl);
	}
	return arg;
}

Test(readers, of_one_user_come_and_go_at_the_same_time, .timeout = 120)
{
	pthread_t thread[4];

	begin_writable(32);
	write_cpu(0, "true");
	for (unsigned k = 0; k < 4; k++)
		cr_assert_eq(pthread_create(&thread[k], NULL, come_and_go, NULL), 0);
	for (unsigned k = 0; k < 4; k++)
		pthread_join(thread[k], NULL);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

/* A client that was disconnected maps the copy still. It may store there, as all of its user may; that goes no further. */
Test(readers, who_were_disconnected_are_in_no_other_users_way)
{
	struct client *gone, *same, *other;
	unsigned char *memory;

	begin_writable(8);
	write_cpu(0, "true");
	gone = reader_of(1);
	same = reader_of(1);
	other = reader_of(2);
	expect_device(gone, 0, "true");
	expect_device(same, 0, "true");
	memory = mremap(client_at(gone, 0), 0, GAIA_CHUNK, MREMAP_MAYMOVE);
	cr_assert_neq(memory, MAP_FAILED);
	cr_assert_eq(mprotect(memory, GAIA_CHUNK, PROT_READ | PROT_WRITE), 0);
	client_die(gone);
	gone->kept = true;
	client_end(gone);
	memcpy(memory, "lies", 4);
	expect_device(other, 0, "true");
	release_all(same);
	/* Nobody holds any of it: so it goes, and the rest of the user's get another. */
	expect_device(same, 0, "true");
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	munmap(memory, GAIA_CHUNK);
	end();
}

Test(readers, advice_concerns_what_they_share)
{
	struct client *one, *other;

	begin_writable(8);
	one = reader_of(1);
	other = reader_of(2);
	cr_assert_eq(cache_advise(one->mapping, 0, GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	cr_assert_eq(cache_advise(other->mapping, 0, GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	rig_readahead(rig);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	cr_assert_eq(cache_advise(one->mapping, 0, GAIA_CHUNK, GAIA_ADVISE_DONTNEED), 0);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK, "the other user's");
	cr_assert_eq(cache_advise(one->mapping, 0, GAIA_CHUNK, GAIA_ADVISE_DONTNEED), 0);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	end();
}

/* Advice needs no right to write the file, so it is no way to evict what others use. */
Test(advice, to_drop_leaves_what_another_client_maps)
{
	struct client *one, *other;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 8 }, 4 * GAIA_CHUNK);
	one = new_client(0);
	other = new_client(0);
	cr_assert_eq(client_acquire(one, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(other, 0, 1, GAIA_PROT_READ), 0);
	release_all(one);
	release_all(other);
	cr_assert_eq(cache_advise(one->mapping, 0, 4 * GAIA_CHUNK, GAIA_ADVISE_DONTNEED), 0);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK, "what the adviser alone maps is gone");
	cr_assert_eq(other->revoked, 0);
	client_end(other);
	cr_assert_eq(cache_advise(one->mapping, 0, 4 * GAIA_CHUNK, GAIA_ADVISE_DONTNEED), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

Test(reader, shares_where_the_device_can_keep_it_from_writing)
{
	struct client *reader, *writer;
	struct cache_device_use use;

	begin_devices(1);
	cache_device(rig->cache, 0, &use);
	if (!use.dev->shares_readonly) {
		end();
		cr_skip_test("this device cannot");
	}
	reader = new_reader();
	writer = new_client(0);
	cr_assert_eq(client_acquire(writer, 0, 1, GAIA_PROT_RW), 0);
	cr_assert_eq(client_acquire(reader, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	end();
}

#ifndef RIG_CUDA
Test(reader, is_in_no_writers_way_however_many_there_are)
{
	struct client *reader[5];

	begin(&(struct rig_options){ .devices = CACHE_MAX_REPLICAS - 4, .device_chunks = 6,
				     .always_writable = true }, 4 * GAIA_CHUNK);
	for (unsigned k = 0; k < 5; k++) {
		reader[k] = reader_of(k);
		cr_assert_eq(client_acquire(reader[k], 0, 1, GAIA_PROT_READ), k < 4 ? 0 : -EMFILE);
	}
	write_device(new_client(0), 0, "first");
	write_device(new_client(CACHE_MAX_REPLICAS - 5), GAIA_PAGE, "last");
	cache_check(rig->cache);
	end();
}
#endif

/* ---- what each user may pin ---- */

/* A device of 16 chunks, of which a user may have 12 and all users 14. */
static void begin_shared_device(void)
{
	begin(&(struct rig_options){ .devices = 1, .device_chunks = 16, .readers_may_write = true }, 32 * GAIA_CHUNK);
	/* What users pin is counted chunk by chunk here; of extents: cache_extents.c. */
	rig->old_clients = true;
}

static struct client *client_of(uid_t uid, bool owner)
{
	rig->user = (struct cache_user){ .uid = uid, .owner = owner };
	return client_create(kf, 0, GAIA_PROT_RW, 32 * GAIA_CHUNK);
}

static int acquire_chunks(struct client *cl, unsigned first, unsigned n)
{
	return client_acquire(cl, first * GAIA_CHUNK, n * GAIA_CHUNK, GAIA_PROT_READ);
}

Test(users, one_cannot_pin_all_of_a_device)
{
	struct client *greedy, *again, *other;

	begin_shared_device();
	greedy = client_of(1, false);
	cr_assert_eq(acquire_chunks(greedy, 0, 13), -ENOMEM);
	cr_assert_eq(acquire_chunks(greedy, 0, 12), 0);
	cr_assert_eq(acquire_chunks(greedy, 12, 1), -ENOMEM);
	again = client_of(1, false);
	cr_assert_eq(acquire_chunks(again, 12, 1), -ENOMEM, "by another client");
	other = client_of(2, false);
	cr_assert_eq(acquire_chunks(other, 16, 2), 0);
	cr_assert_eq(acquire_chunks(other, 18, 1), -ENOMEM, "what is left is for the owners");
	cr_assert_eq(acquire_chunks(client_of(0, true), 20, 2), 0);
	end();
}

/* The same where it has to fit; but a driver may keep for a moment what was evicted for it. */
static void acquire_what_fits(struct client *cl, unsigned first, unsigned n)
{
	int err = acquire_chunks(cl, first, n);

	for (unsigned k = 0; k < n && err == -ENOMEM && rig_importers_gone(); k++)
		err = acquire_chunks(cl, first, n);
	cr_assert_eq(err, 0);
}

static void *acquire_twelve(void *cl)
{
	acquire_what_fits(cl, 0, 12);
	return NULL;
}

/* Also while others are asked for the room: or all of the device could be promised to one user meanwhile. */
Test(users, what_is_promised_counts, .timeout = 120)
{
	struct client *owner, *greedy, *again;
	pthread_t thread;

	begin_shared_device();
	owner = client_of(0, true);
	cr_assert_eq(acquire_chunks(owner, 16, 16), 0);
	cr_assert_eq(client_release(owner, 16 * GAIA_CHUNK, 16 * GAIA_CHUNK), 0);
	greedy = client_of(1, false);
	again = client_of(1, false);
	give_up_slowly();
	cr_assert_eq(pthread_create(&thread, NULL, acquire_twelve, greedy), 0);
	sem_wait(&giving_up.asked);
	rig->before_revoke = NULL;
	cr_assert_eq(acquire_chunks(again, 12, 1), -ENOMEM);
	sem_post(&giving_up.go_on);
	pthread_join(thread, NULL);
	cr_assert_eq(client_release(greedy, 0, GAIA_CHUNK), 0);
	acquire_what_fits(again, 12, 1);
	end();
}

/* Once for each user that pins it, however often. */
Test(users, a_chunk_counts_once_for_a_user)
{
	struct client *one, *two, *other;

	begin_shared_device();
	one = client_of(1, false);
	two = client_of(1, false);
	other = client_of(2, false);
	for (unsigned k = 0; k < 12; k++) {
		cr_assert_eq(acquire_chunks(one, k, 1), 0);
		cr_assert_eq(acquire_chunks(two, k, 1), 0);
		cr_assert_eq(acquire_chunks(other, k, 1), 0);
	}
	cr_assert_eq(acquire_chunks(two, 12, 1), -ENOMEM);
	/* It counts as long as any of the user's clients holds it. */
	cr_assert_eq(client_release(one, 0, 12 * GAIA_CHUNK), 0);
	cr_assert_eq(acquire_chunks(two, 12, 1), -ENOMEM);
	cr_assert_eq(client_release(two, 0, GAIA_CHUNK), 0);
	cr_assert_eq(acquire_chunks(two, 12, 1), 0);
	end();
}

/* Nor in small steps, by joining what others have pinned and keeping it. */
Test(users, what_others_pinned_counts_when_it_is_joined)
{
	struct client *greedy, *owner;

	begin_shared_device();
	greedy = client_of(1, false);
	owner = client_of(0, true);
	cr_assert_eq(acquire_chunks(greedy, 0, 12), 0);
	cr_assert_eq(acquire_chunks(owner, 12, 2), 0);
	cr_assert_eq(acquire_chunks(greedy, 12, 1), -ENOMEM);
	end();
}

/* What lies beyond the end of the file is held, too. */
Test(users, what_is_beyond_the_end_counts)
{
	struct client *greedy;

	begin_shared_device();
	greedy = client_of(1, false);
	for (unsigned k = 0; k < 14; k++) {
		cr_assert_eq(acquire_chunks(greedy, k, 1), 0);
		cr_assert_eq(client_release(greedy, k * GAIA_CHUNK, GAIA_CHUNK), 0);
	}
	cr_assert_eq(cpu_truncate(kf, 0), 0);
	cr_assert_eq(acquire_chunks(greedy, 0, 14), -ENOMEM);
	cr_assert_eq(acquire_chunks(greedy, 0, 12), 0);
	end();
}

/* The user's next program need not wait until the daemon has tidied up. */
Test(users, what_the_dead_held_does_not_count)
{
	struct client *dead, *next;

	begin_shared_device();
	dead = client_of(1, false);
	cr_assert_eq(acquire_chunks(dead, 0, 12), 0);
	client_die(dead);
	next = client_of(1, false);
	acquire_what_fits(next, 16, 12);
	client_end(dead);
	end();
}

Test(users, nothing_counts_when_an_acquire_has_failed)
{
	struct client *cl;

	begin_shared_device();
	cl = client_of(1, false);
	for (unsigned k = 0; k < 4; k++) {
		fault_arm("device.export", -EMFILE, 5, 1);
		cr_assert_eq(acquire_chunks(cl, k, 12), -EMFILE);
	}
	cr_assert_eq(acquire_chunks(cl, 0, 12), 0);
	end();
}
