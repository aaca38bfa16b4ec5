/*
 * cache_clients.c - what clients are given: memory of their own where they may not write the file,
 * and room for an acquire that is to come (GAIA_PROT_PIN). And what they may rely on beside others: threads of
 * one client, clients that die or are disconnected, clients of one device.
 */
#include "cache_scene.h"
#include "held.h"

#include <semaphore.h>
#include <sys/mman.h>

#include "base/thread.h"

/* ---- those that may not write, on a device that cannot keep them from it ---- */

static void begin_writable(unsigned chunks)
{
	begin(&(struct rig_options){ .devices = 1, .device_chunks = chunks, .always_writable = true },
	      4 * GAIA_CHUNK);
}

static struct client *new_reader(void)
{
	return client_create(kf, 0, GAIA_PROT_READ, 4 * GAIA_CHUNK);
}

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

/* What processes read then, when nothing else has it than the device and the store. */
static void forget_but_on_devices(void)
{
	cr_assert_eq(cpu_fsync(kf), 0);
	kernel_reclaim(kf, 0, 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	/* So that it is known how long a read of the store takes, and devices are the nearer. */
	cr_assert_eq(cpu_read(kf, (char[1]){ 0 }, 1, 2 * GAIA_CHUNK), 1);
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

	begin(&(struct rig_options){ .devices = CACHE_MAX_DEVICES - 4, .device_chunks = 6,
				     .always_writable = true }, 4 * GAIA_CHUNK);
	for (unsigned k = 0; k < 5; k++) {
		reader[k] = reader_of(k);
		cr_assert_eq(client_acquire(reader[k], 0, 1, GAIA_PROT_READ), k < 4 ? 0 : -EMFILE);
	}
	write_device(new_client(0), 0, "first");
	write_device(new_client(CACHE_MAX_DEVICES - 5), GAIA_PAGE, "last");
	cache_check(rig->cache);
	end();
}
#endif

/* ---- room for acquires to come ---- */

static int pin(struct client *cl, uint64_t off, uint64_t len, unsigned prot, uint64_t *seq)
{
	return cache_acquire(cl->mapping, off, len, prot, seq, NULL);
}

Test(pin, keeps_chunks_for_the_acquire_to_come)
{
	struct client *cl, *rival;
	uint64_t pinned, seq, sent;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	write_cpu(0, "abc");
	cl = new_client(0);
	rival = new_client(0);
	sent = counter_value(CTR_home_to_device);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &pinned), 0);
	cr_assert_eq(cl->granted, 2, "the chunks were handed over");
	cr_assert_eq(counter_value(CTR_home_to_device), sent, "and nothing in them");
	cr_assert_not_null(client_at(cl, GAIA_CHUNK));
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(client_acquire(rival, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), -ENOMEM);
	/* A release of what is not acquired yet is no end to it. */
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);

	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PINNED, &seq), 0);
	cr_assert_eq(seq, pinned, "and not again");
	cr_assert_eq(cl->granted, 2);
	expect_device(cl, 0, "abc");
	cr_assert_eq(client_acquire(rival, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), -ENOMEM);
	release_all(cl);
	cr_assert_eq(client_acquire(rival, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	end();
}

Test(pin, is_one_for_each_acquire)
{
	struct client *cl;
	uint64_t seq;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 100, GAIA_PROT_READ | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(pin(cl, 5000, 100, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(pin(cl, 0, 100, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), 0);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(pin(cl, 5000, 100, GAIA_PROT_PINNED, &seq), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* A client that gives up memory only when @go_on is posted, and another thread that waits for that. */
static struct eviction {
	struct client *rival;
	pthread_t evictor;
	sem_t asked, go_on;
} eviction;

static void *evict_for_rival(void *arg)
{
	cr_assert_eq(client_acquire(eviction.rival, 3 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	return NULL;
}

static void be_slow(void *arg, struct client *cl, uint64_t idx)
{
	sem_post(&eviction.asked);
	sem_wait(&eviction.go_on);
}

/* The device is full, and of chunk 2 nothing is held. */
static void begin_eviction(void)
{
	sem_init(&eviction.asked, 0, 0);
	sem_init(&eviction.go_on, 0, 0);
	eviction.rival = new_client(0);
	rig->before_revoke = be_slow;
	cr_assert_eq(pthread_create(&eviction.evictor, NULL, evict_for_rival, NULL), 0);
	sem_wait(&eviction.asked);
}

static void end_eviction(void)
{
	sem_post(&eviction.go_on);
	pthread_join(eviction.evictor, NULL);
	rig->before_revoke = NULL;
}

/* As when the client cannot unmap before its stream, which waits for the acquire, has gone on. */
Test(pin, lets_the_acquire_wait_for_nobody_who_evicts, .timeout = 60)
{
	struct client *cl, *dead;
	uint64_t seq;
	char seen[4];

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 3 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	dead = new_client(0);
	cr_assert_eq(client_acquire(cl, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	release_all(cl);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(client_acquire(dead, 0, 1, GAIA_PROT_RW), 0);
	client_store(dead, "lost", 4, 0);
	client_die(dead);
	begin_eviction();
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PINNED, &seq), 0);
	/* What is held is acquired again as freely. */
	cr_assert_eq(client_acquire(cl, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(cl, 1, 1, GAIA_PROT_RW), 0);
	/* And a death is seen all the same. */
	client_store(cl, "kept", 4, GAIA_PAGE);
	cr_assert_eq(client_release(cl, 0, 2 * GAIA_CHUNK), 0);
	cr_assert_eq(cpu_read(kf, seen, 4, 0), 4);
	cr_assert_eq(memcmp(seen, (char[4]){ 0 }, 4), 0, "%.4s", seen);
	expect_cpu(GAIA_PAGE, "kept");
	end_eviction();
	end();
}

Test(pin, of_what_lies_beyond_the_end_does_so_too, .timeout = 60)
{
	struct client *cl, *other;
	uint64_t seq;
	char seen[7];

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 3 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	other = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 3 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_all(cl);
	cr_assert_eq(cpu_truncate(kf, 100), 0);
	/* The client maps chunk 1, and goes on mapping it, though the file does not reach there now. */
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
	begin_eviction();
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PINNED, &seq), 0);
	client_store(cl, "private", 7, GAIA_CHUNK);
	end_eviction();
	cr_assert_eq(client_acquire(other, GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(cpu_read(kf, seen, 7, GAIA_CHUNK), 7);
	cr_assert_eq(memcmp(seen, (char[7]){ 0 }, 7), 0);
	cr_assert_eq(client_release(cl, 0, 2 * GAIA_CHUNK), 0);
	expect_cpu(GAIA_CHUNK, "private");
	end();
}

/* The file has grown between the two: the first holds chunk 0 only. */
Test(pin, takes_none_of_what_another_of_the_same_range_holds)
{
	struct client *cl;
	uint64_t seq;

	begin_devices(1);
	cr_assert_eq(cpu_truncate(kf, GAIA_CHUNK), 0);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(cpu_truncate(kf, 2 * GAIA_CHUNK), 0);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), 0);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, GAIA_CHUNK, GAIA_CHUNK), -EBUSY, "the second one's");
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), 0);
	cr_assert_not_null(client_at(cl, GAIA_CHUNK));
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(pin, is_needed_for_an_acquire_that_says_so_and_there_are_not_any_number)
{
	struct client *cl;
	uint64_t seq;
	int err = 0;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), -EINVAL);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_PINNED, &seq), -EINVAL);
	for (unsigned n = 0; n <= 4096 && !err; n++)
		err = pin(cl, 0, 1, GAIA_PROT_READ | GAIA_PROT_PIN, &seq);
	cr_assert_eq(err, -EAGAIN);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), 0);
	client_end(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(pin, stays_when_the_acquire_fails)
{
	struct client *cl;
	uint64_t seq;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	fault_arm("device.copy_in", -EIO, 0, 1);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_RW | GAIA_PROT_PINNED, &seq), -EIO);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_RW | GAIA_PROT_PINNED, &seq), 0);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(pin, that_cannot_be_had_holds_nothing)
{
	struct client *cl;
	uint64_t seq;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 3 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), -ENOMEM);
	fault_arm("device.export", -EMFILE, 1, 1);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), -EMFILE);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

Test(pin, of_a_dead_client_is_in_nobodys_way)
{
	struct client *cl, *rival;
	uint64_t seq;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	rival = new_client(0);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	client_die(cl);
	cr_assert_eq(client_acquire(rival, 2 * GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	end();
}

Test(pin, ends_with_the_mapping)
{
	struct client *cl;
	uint64_t seq;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	client_end(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(pin, to_write_needs_a_mapping_that_may)
{
	struct client *cl;
	uint64_t seq;

	begin_devices(1);
	cl = client_create(kf, 0, GAIA_PROT_READ, GAIA_CHUNK);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), -EACCES);
	end();
}

/* ---- threads of one client ---- */

struct acquire {
	struct client *cl;
	uint64_t off, len, seq;
	unsigned prot; /* besides GAIA_PROT_RW */
	atomic_uint verdict;
};

static int acquire(void *arg)
{
	struct acquire *a = arg;

	return cache_acquire(a->cl->mapping, a->off, a->len, GAIA_PROT_RW | a->prot, &a->seq, &a->verdict);
}

static struct acquire of_page(struct client *cl, uint64_t page)
{
	return (struct acquire){ .cl = cl, .off = page * GAIA_PAGE, .len = GAIA_PAGE };
}

/* To begin in this order: who hands over a chunk, and who wants it, too. */
static struct held giving(struct acquire *a)
{
	return (struct held){ .point = "acquire.before_grant", .call = acquire, .arg = a };
}

static struct held waiting(struct acquire *a)
{
	return (struct held){ .point = "acquire.awaits_grant", .call = acquire, .arg = a };
}

/* The rig's client counts what it is given, and does not take what it has. */
Test(threads, are_handed_a_chunk_once)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire first = of_page(cl, 0), second = of_page(cl, 1), third = of_page(cl, 2);
	struct held giver = giving(&first), waiter = waiting(&second);

	held_begin(&giver);
	held_begin(&waiter);
	cr_assert_eq(cl->granted, 0);
	fault_let_go(waiter.point);
	cr_assert_eq(held_end(&giver), 0);
	cr_assert_eq(held_end(&waiter), 0);
	cr_assert_eq(cl->granted, 1);
	cr_assert_neq(first.seq, 0);
	cr_assert_eq(second.seq, first.seq, "it may not be used before that");
	/* Who comes later may be before the client's own thread, too. */
	cr_assert_eq(acquire(&third), 0);
	cr_assert_eq(third.seq, first.seq);
	release_all(cl);
	end();
}

/* Two could wait for each other's. */
Test(threads, hand_over_what_is_theirs_before_they_wait)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire first = of_page(cl, 0), second = of_page(cl, 1);
	struct held giver = giving(&first), waiter = waiting(&second);

	second.len = 2 * GAIA_CHUNK;
	held_begin(&giver);
	held_begin(&waiter);
	cr_assert_eq(cl->granted, 2, "of three");
	cr_assert_eq(held_end(&giver), 0);
	cr_assert_eq(held_end(&waiter), 0);
	cr_assert_eq(cl->granted, 3);
	cr_assert_geq(second.seq, first.seq);
	release_all(cl);
	end();
}

/* Who waits tries it then. */
Test(threads, do_it_when_the_one_that_was_to_cannot)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire first = of_page(cl, 0), second = of_page(cl, 1);
	struct held giver = giving(&first), waiter = waiting(&second);

	giver.point = "device.export";
	fault_arm(giver.point, -EMFILE, 0, 1);
	held_begin(&giver);
	held_begin(&waiter);
	cr_assert_eq(held_end(&giver), -EMFILE);
	cr_assert_eq(held_end(&waiter), 0);
	cr_assert_eq(cl->granted, 1);
	release_all(cl);
	end();
}

/* ---- acquires count (contract, promise 12) ---- */

/* Two ranges that meet in a page, as threads have them: what is stored in the second outlives the first one's release. */
Test(holds, of_ranges_that_share_a_page_are_each_their_own)
{
	const uint64_t middle = GAIA_PAGE + GAIA_PAGE / 2;
	struct client *cl, *other;

	begin_devices(2);
	cl = new_client(0);
	other = new_client(1);
	cr_assert_eq(client_acquire(cl, 0, middle, GAIA_PROT_RW), 0);
	cr_assert_eq(client_acquire(cl, middle, GAIA_PAGE, GAIA_PROT_RW), 0);
	client_store(cl, "first", 5, GAIA_PAGE);
	cr_assert_eq(client_release(cl, 0, middle), 0);
	expect_cpu(GAIA_PAGE, "first");
	client_store(cl, "second", 6, middle);
	write_cpu(GAIA_PAGE, "cpu's");
	expect_device(other, GAIA_PAGE, "cpu's");
	/* Not published, and not lost. */
	expect_cpu(middle, "");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(client_release(cl, middle, GAIA_PAGE), 0);
	expect_cpu(GAIA_PAGE, "cpu's");
	expect_cpu(middle, "second");
	expect_device(other, middle, "second");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	end();
}

/* The strongest access is that of all, until the last hold is gone; what was released meanwhile is what a death leaves. */
Test(holds, are_for_writing_until_the_last_is_gone)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	write_device(cl, 0, "one");
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	release_all(cl);
	client_store(cl, "two", 3, 0);
	expect_cpu(0, "one");
	release_all(cl);
	expect_cpu(0, "two");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	release_all(cl);

	write_device(cl, 0, "six");
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	release_all(cl);
	client_store(cl, "bad", 3, 0);
	client_die(cl);
	expect_cpu(0, "six");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	expect_cpu(0, "six");
	end();
}

/* Without memory for a snapshot what is released, and goes on being written, comes home. */
Test(holds, that_go_on_need_no_room_on_the_device)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 1 }, GAIA_CHUNK);
	cl = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	write_device(cl, 0, "one");
	write_device(cl, 0, "two");
	cr_assert_eq(client_release(cl, 0, GAIA_CHUNK), 0);
	client_store(cl, "bad", 3, 0);
	expect_cpu(0, "two");
	client_die(cl);
	expect_cpu(0, "two");
	end();
}

static int release_first_page(void *cl)
{
	return client_release(cl, 0, GAIA_PAGE);
}

/* A release of what another thread is just acquiring takes nothing of that, whichever of the two ends first. */
static void released_beside_an_acquire(bool acquire_ends_first)
{
	struct client *cl, *other;

	begin_devices(1);
	cl = new_client(0);
	other = new_client(0);
	struct acquire a = of_page(cl, 0);
	struct held acquiring = giving(&a);
	struct held releasing = { .point = "release.before_publish", .call = release_first_page, .arg = cl };

	write_cpu(0, "abc");
	held_begin(&acquiring);
	held_begin(&releasing);
	if (acquire_ends_first)
		cr_assert_eq(held_end(&acquiring), 0);
	cr_assert_eq(held_end(&releasing), 0);
	if (!acquire_ends_first)
		cr_assert_eq(held_end(&acquiring), 0);
	cache_check(rig->cache);
	release_all(cl);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	/* Nor does anything keep what another one loses by dying. */
	write_device(other, 0, "bad");
	client_die(other);
	expect_device(cl, 0, "abc");
	end();
}

Test(holds, that_are_coming_are_not_released)
{
	released_beside_an_acquire(true);
	released_beside_an_acquire(false);
}

/* What was acquired beyond the end is its own acquire's, also while another one, by which the client gets the chunk, is under way. */
static void wanted_beside_an_acquire(bool fails)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1 }, GAIA_CHUNK);
	cl = client_create(kf, 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 2 * GAIA_CHUNK, GAIA_PAGE, GAIA_PROT_RW), 0);
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
	struct acquire a = { .cl = cl, .off = 2 * GAIA_CHUNK + GAIA_PAGE, .len = GAIA_PAGE };
	struct held giver = giving(&a);

	if (fails) {
		giver.point = "device.export";
		fault_arm(giver.point, -EMFILE, 0, 1);
	}
	held_begin(&giver);
	cr_assert_eq(client_release(cl, 2 * GAIA_CHUNK, GAIA_PAGE), 0);
	cr_assert_eq(held_end(&giver), fails ? -EMFILE : 0);
	if (!fails)
		cr_assert_eq(client_release(cl, 2 * GAIA_CHUNK + GAIA_PAGE, GAIA_PAGE), 0);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	end();
}

Test(holds, of_what_lay_beyond_the_end_are_released_beside_an_acquire)
{
	wanted_beside_an_acquire(false);
	wanted_beside_an_acquire(true);
}

/* A release that fails has ended all its holds, and lost nothing. */
Test(holds, end_also_where_a_release_fails)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	for (unsigned k = 0; k < 3; k++) {
		write_device(cl, k * GAIA_CHUNK, "new");
		/* Another thread's. */
		cr_assert_eq(client_acquire(cl, k * GAIA_CHUNK + GAIA_PAGE, 1, GAIA_PROT_READ), 0);
	}
	fault_arm("device.find_changed", -EIO, 1, 1);
	cr_assert_eq(client_release(cl, 0, 2 * GAIA_CHUNK + GAIA_PAGE - 1), -EIO);
	fault_disarm_all();
	cache_check(rig->cache);
	for (unsigned k = 0; k < 3; k++)
		expect_cpu(k * GAIA_CHUNK, "new");
	/* Of the last chunk a page was released. */
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(client_release(cl, 2 * GAIA_CHUNK + GAIA_PAGE, 1), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	end();
}

/* An acquire that fails adds none, and takes none of what there was. */
Test(holds, of_an_acquire_that_fails_are_none)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	fault_arm("device.copy_in", -EIO, 0, 1);
	cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_RW), -EIO);
	cache_check(rig->cache);
	/* Held for reading, as before: nothing is compared. */
	client_store(cl, "bad", 3, 0);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	expect_cpu(0, "");
	end();
}

Test(holds, of_a_page_are_so_many_and_no_more)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	for (unsigned k = 0; k < 65535; k++)
		cr_assert_eq(client_acquire(cl, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_READ), -EOVERFLOW);
	cache_check(rig->cache);
	for (unsigned k = 0; k < 65535; k++) {
		if (k % 5000 == 0)
			cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
		release_all(cl);
	}
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* Spans are memory: a mapping that wants many asks for it, and gives it back. */
Test(holds, in_pieces_are_as_many_as_the_client_may_have)
{
	struct client *cl;
	uint64_t at = 4 * GAIA_PAGE;
	int err = 0;

	begin_devices(1);
	cl = new_client(0);
	cl->spans_allowed = 3;
	cr_assert_eq(client_acquire(cl, 0, 3 * GAIA_PAGE, GAIA_PROT_READ), 0);
	for (; !err; at += 2 * GAIA_PAGE) {
		cr_assert_lt(at, 4 * GAIA_CHUNK);
		err = client_acquire(cl, at, 1, GAIA_PROT_READ);
	}
	cr_assert_eq(err, -ENOSR);
	cr_assert_eq(cl->spans, 3);
	cr_assert_gt(at / (2 * GAIA_PAGE), 64);
	cache_check(rig->cache);
	/* Where it would have to be cut, a release changes nothing. */
	cr_assert_eq(client_release(cl, GAIA_PAGE, GAIA_PAGE), -ENOSR);
	cr_assert_eq(client_release(cl, 0, at), 0);
	cr_assert_eq(cl->spans, 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	/* Beyond the end they are counted, too. */
	cr_assert_eq(cpu_truncate(kf, 0), 0);
	for (at = 0, err = 0; !err; at += 2 * GAIA_PAGE)
		err = client_acquire(cl, at, 1, GAIA_PROT_READ);
	cr_assert_eq(err, -ENOSR);
	cr_assert_eq(cl->spans, 3);
	client_end(cl);
	end();
}

/* ---- threads of one client, and one that fails ---- */

#define LAST (GAIA_CHUNK - GAIA_PAGE) /* page of the first chunk */

/*
 * An acquire of the last page of the first chunk, and of the first one of the second, held where it has got the one
 * and brings the other, which will fail.
 */
static struct held failing(struct acquire *a)
{
	struct client *other = new_client(0);

	/* On the device already: not copied again. */
	cr_assert_eq(client_acquire(other, LAST, GAIA_PAGE, GAIA_PROT_READ), 0);
	release_all(other);
	*a = (struct acquire){ .cl = a->cl, .off = LAST, .len = 2 * GAIA_PAGE };
	fault_arm("device.copy_in", -EIO, 0, 1);
	return (struct held){ .point = "device.copy_in", .call = acquire, .arg = a };
}

/* "Nothing is acquired" is said of what it would have acquired, not of what others have. */
Test(threads, keep_what_they_acquired_when_another_one_fails)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire both = { .cl = cl }, one = of_page(cl, LAST / GAIA_PAGE);
	struct held loser = failing(&both);

	held_begin(&loser);
	cr_assert_eq(acquire(&one), 0);
	client_store(cl, "kept", 4, LAST);
	cr_assert_eq(held_end(&loser), -EIO);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, GAIA_CHUNK), -EBUSY);
	release_all(cl);
	expect_cpu(LAST, "kept");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* Two of the same pages, neither through yet; the first one fails, and the second one if @err. */
static void fail_before(int err)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire both = { .cl = cl }, one = of_page(cl, LAST / GAIA_PAGE);
	struct held loser = failing(&both);
	struct held other = { .point = "device.export", .call = acquire, .arg = &one };

	held_begin(&loser);
	if (err)
		fault_arm(other.point, err, 0, 1);
	held_begin(&other);
	cr_assert_eq(held_end(&loser), -EIO);
	cr_assert_eq(held_end(&other), err);
	if (!err) {
		client_store(cl, "kept", 4, LAST);
		release_all(cl);
		expect_cpu(LAST, "kept");
	}
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(threads, keep_what_they_are_acquiring_when_another_one_fails)
{
	fail_before(0);
}

Test(threads, hold_nothing_when_all_fail)
{
	fail_before(-EMFILE);
}

/* What is acquired again after that belongs to who did so. */
Test(threads, may_release_what_another_one_is_acquiring)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire both = { .cl = cl };
	struct held loser = failing(&both);

	held_begin(&loser);
	cr_assert_eq(client_release(cl, LAST, GAIA_PAGE), 0);
	write_device(cl, LAST, "again");
	cr_assert_eq(held_end(&loser), -EIO);
	release_all(cl);
	expect_cpu(LAST, "again");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

static int release_page(void *client)
{
	return client_release(client, 0, GAIA_PAGE);
}

/* What one thread stored the other's release published: the client holds nothing any more, maybe not even the memory. */
static void release_twice(bool evicted)
{
	struct client *a;

	begin_devices(1);
	a = new_client(0);
	struct held first = { .point = "release.before_invalidate", .call = release_page, .arg = a };

	write_cpu(0, "old");
	write_cpu(GAIA_CHUNK, "past");
	write_device(a, 0, "new");
	write_device(a, GAIA_CHUNK, "mine");
	expect_cpu(GAIA_CHUNK, "past");
	held_begin(&first);
	if (evicted) {
		cr_assert_eq(client_release(a, GAIA_CHUNK, GAIA_PAGE), 0);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	}
	release_all(a);
	expect_cpu(0, "new");
	expect_cpu(GAIA_CHUNK, "mine");
	store_cpu(0, "NEW");
	cr_assert_eq(held_end(&first), 0);
	expect_cpu(0, "NEW");
	end();
}

Test(threads, releases_of_nothing_await_what_another_one_published)
{
	release_twice(false);
}

Test(threads, releases_of_evicted_memory_await_what_another_one_published)
{
	release_twice(true);
}

/* ---- acquires beside an eviction ---- */

static sem_t waits;

static void post(void *sem)
{
	sem_post(sem);
}

static void *acquire_and_say_when_waiting(void *arg)
{
	thread_relied_on(post, &waits);
	return (void *)(intptr_t)acquire(arg);
}

/* An acquire that waits, and for what was said. */
static pthread_t begin_waiting(struct acquire *a)
{
	pthread_t thread;

	sem_init(&waits, 0, 0);
	cr_assert_eq(pthread_create(&thread, NULL, acquire_and_say_when_waiting, a), 0);
	sem_wait(&waits);
	return thread;
}

static int end_waiting(pthread_t thread)
{
	void *result;

	pthread_join(thread, &result);
	return (int)(intptr_t)result;
}

/* Of the device's three chunks the first one was released, changed, the second one is held, the third one neither. */
static void begin_full(struct client **writer, struct client **holder)
{
	begin(&(struct rig_options){ .devices = 1, .device_chunks = 3 }, 8 * GAIA_CHUNK);
	*writer = new_client(0);
	*holder = new_client(0);
	write_device(*writer, 0, "released");
	release_all(*writer);
	cr_assert_eq(client_acquire(*holder, GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(client_release(*holder, 2 * GAIA_CHUNK, GAIA_CHUNK), 0);
}

static struct acquire of_chunk(struct client *cl, uint64_t chunk)
{
	return (struct acquire){ .cl = cl, .off = chunk * GAIA_CHUNK, .len = GAIA_PAGE };
}

/* What was released is on its way out of the device. */
static struct held evicting(struct acquire *a)
{
	return (struct held){ .point = "device.copy_out", .call = acquire, .arg = a };
}

Test(eviction, holds_up_nobody_who_needs_what_is_there, .timeout = 60)
{
	struct client *writer, *holder, *other;

	begin_full(&writer, &holder);
	struct acquire needy = of_chunk(new_client(0), 3), again;
	struct held h = evicting(&needy);

	other = new_client(0);
	held_begin(&h);
	expect_device(other, GAIA_CHUNK, "");
	again = of_chunk(other, 2);
	cr_assert_eq(acquire(&again), 0, "nobody has held it");
	cr_assert_eq(cache_evict(kf->cfile, 0, 2 * GAIA_CHUNK, GAIA_CHUNK), -EBUSY);
	release_all(other);
	cr_assert_eq(cache_evict(kf->cfile, 0, 2 * GAIA_CHUNK, GAIA_CHUNK), 0);
	client_end(holder);
	cr_assert_eq(held_end(&h), 0);
	expect_cpu(0, "released");
	end();
}

/* On request, so that there is room for others. */
static int evict_first(void *arg)
{
	return cache_evict(kf->cfile, 0, 0, GAIA_CHUNK);
}

Test(eviction, holds_up_nobody_who_needs_what_is_free, .timeout = 60)
{
	struct held h = { .point = "device.copy_out", .call = evict_first };
	struct client *writer, *holder;

	begin_full(&writer, &holder);
	cr_assert_eq(cache_evict(kf->cfile, 0, 2 * GAIA_CHUNK, GAIA_CHUNK), 0);
	held_begin(&h);
	expect_device(holder, 3 * GAIA_CHUNK, "");
	cr_assert_eq(held_end(&h), 0);
	expect_cpu(0, "released");
	end();
}

Test(eviction, lets_those_unmap_who_mapped_the_chunk, .timeout = 60)
{
	struct client *writer, *holder;

	begin_full(&writer, &holder);
	struct acquire needy = of_chunk(new_client(0), 3);
	struct held h = evicting(&needy);

	held_begin(&h);
	client_end(writer);
	cr_assert_eq(held_end(&h), 0);
	expect_cpu(0, "released");
	end();
}

/* A mapping whose replicas are its own waits for those that are being evicted. */
Test(eviction, of_a_readers_own_chunk_and_its_end_are_no_matter, .timeout = 60)
{
	struct client *reader;

	begin_writable(1);
	reader = new_reader();
	struct acquire needy = of_chunk(new_client(0), 1);
	struct held h = { .point = "evict.before_fetch", .call = acquire, .arg = &needy };

	cr_assert_eq(client_acquire(reader, 0, 1, GAIA_PROT_READ), 0);
	release_all(reader);
	held_begin(&h);
	fault_let_go(h.point);
	client_end(reader);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	end();
}

Test(eviction, is_awaited_by_who_needs_the_chunk, .timeout = 60)
{
	struct client *writer, *holder, *late;
	pthread_t thread;

	begin_full(&writer, &holder);
	late = new_client(0);
	struct acquire needy = of_chunk(new_client(0), 3), same = of_chunk(late, 0);
	struct held h = evicting(&needy);

	held_begin(&h);
	thread = begin_waiting(&same);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(end_waiting(thread), 0);
	expect_device(late, 0, "released");
	end();
}

/* All clients of all the chunks that an acquire needs. */
Test(eviction, asks_all_at_once, .timeout = 60)
{
	struct client *cl[3];

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 4 }, 8 * GAIA_CHUNK);
	for (unsigned k = 0; k < 3; k++) {
		cl[k] = new_client(0);
		cr_assert_eq(client_acquire(cl[k], k * GAIA_CHUNK, (4 - k) * GAIA_CHUNK, GAIA_PROT_READ), 0);
		release_all(cl[k]);
	}
	struct client *needy = client_create(kf, 0, GAIA_PROT_RW, 8 * GAIA_CHUNK);

	cr_assert_eq(client_acquire(needy, 4 * GAIA_CHUNK, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(rig->asked, 1);
	cr_assert_eq(cl[0]->revoked + cl[1]->revoked + cl[2]->revoked, 4 + 3 + 2);
	end();
}

/* ... and no more than that. */
Test(eviction, takes_no_more_than_is_needed)
{
	struct client *cl, *needy;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 4 }, 8 * GAIA_CHUNK);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 3 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_all(cl);
	needy = client_create(kf, 0, GAIA_PROT_RW, 8 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(needy, 2 * GAIA_CHUNK, 3 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(cl->revoked, 1, "of chunk 2 there is one, and one is free");
	end();
}

/* ---- what is promised to an acquire ---- */

/* Neither to who comes later nor to snapshots. */
Test(promise, is_given_to_nobody_else, .timeout = 60)
{
	struct client *writer, *holder, *thief;
	uint64_t snapshots;

	begin_full(&writer, &holder);
	thief = new_client(0);
	struct acquire needy = { .cl = new_client(0), .off = 2 * GAIA_CHUNK, .len = 2 * GAIA_CHUNK };
	struct held h = { .point = "device.alloc", .call = acquire, .arg = &needy };

	write_device(holder, GAIA_CHUNK, "first");
	cr_assert_eq(client_release(holder, GAIA_CHUNK, GAIA_PAGE), 0);
	cr_assert_eq(client_acquire(holder, GAIA_CHUNK, 2 * GAIA_PAGE, GAIA_PROT_READ), 0);
	held_begin(&h);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK, "there is room");
	cr_assert_eq(client_acquire(thief, 0, 1, GAIA_PROT_READ), -ENOMEM);
	snapshots = counter_value(CTR_device_snapshots);
	write_device(holder, GAIA_CHUNK, "later");
	cr_assert_eq(counter_value(CTR_device_snapshots), snapshots);
	expect_cpu(GAIA_CHUNK, "first");
	cr_assert_eq(held_end(&h), 0);
	release_all(holder);
	expect_cpu(GAIA_CHUNK, "later");
	end();
}

/* Two who need one chunk need it once. */
Test(promise, is_shared_by_all_who_need_the_chunk, .timeout = 60)
{
	struct client *writer, *holder;
	pthread_t thread;

	begin_full(&writer, &holder);
	cr_assert_eq(client_acquire(holder, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	struct acquire needy = of_chunk(new_client(0), 3), same = of_chunk(new_client(0), 3);
	struct held h = evicting(&needy);

	held_begin(&h);
	thread = begin_waiting(&same);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(end_waiting(thread), 0);
	cr_assert_eq(rig_device_used(rig, 0), 3 * GAIA_CHUNK);
	end();
}

Test(promise, that_is_broken_is_for_the_next_to_try, .timeout = 60)
{
	struct client *writer, *holder;
	pthread_t thread;

	begin_full(&writer, &holder);
	cr_assert_eq(client_acquire(holder, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	struct acquire needy = of_chunk(new_client(0), 3), same = of_chunk(new_client(0), 3);
	struct held h = evicting(&needy);

	fault_arm(h.point, -EIO, 0, 1);
	held_begin(&h);
	thread = begin_waiting(&same);
	cr_assert_eq(held_end(&h), -ENOMEM, "what was to go could not be fetched");
	cr_assert_eq(end_waiting(thread), 0, "now it could");
	expect_cpu(0, "released");
	end();
}

/* Of what does not fit nothing is evicted. */
Test(promise, is_of_all_or_nothing)
{
	struct client *writer, *holder, *greedy;

	begin_full(&writer, &holder);
	greedy = client_create(kf, 0, GAIA_PROT_RW, 8 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(greedy, 3 * GAIA_CHUNK, 3 * GAIA_CHUNK, GAIA_PROT_RW), -ENOMEM);
	cr_assert_eq(writer->revoked + holder->revoked, 0);
	cr_assert_eq(client_acquire(greedy, 3 * GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(writer->revoked + holder->revoked, 2);
	end();
}

/* ---- very many ---- */

/* What counts those that hold a page does not overflow. */
Test(mappings, of_one_file_are_so_many_and_no_more)
{
	static struct mapping *m[CACHE_MAX_MAPPINGS + 1];
	struct client *cl;
	unsigned n = 0;

	begin_devices(1);
	cl = new_client(0);
	while (n < CACHE_MAX_MAPPINGS &&
	       !cache_map(kf->cfile, 0, cl, rig->user, 2 + n, GAIA_PROT_RW, true, 0, GAIA_PAGE, &m[n]))
		n++;
	cr_assert_eq(n, CACHE_MAX_MAPPINGS - 1, "the client has one already");
	cr_assert_eq(cache_map(kf->cfile, 0, cl, rig->user, 2 + n, GAIA_PROT_RW, true, 0, GAIA_PAGE, &m[n]), -EMFILE);
	while (n > 0)
		cache_unmap(m[--n], CACHE_UNMAPPED);
	end();
}

/* ---- death ---- */

/* The kernel kills its threads, but not what they have asked for. */
Test(death, in_the_middle_of_a_release_does_not_take_back_what_that_publishes)
{
	struct client *dying, *heir;
	pthread_t thread;

	begin_devices(1);
	dying = new_client(0);
	heir = new_client(0);
	struct held release = { .point = "release.before_publish", .call = release_page, .arg = dying };
	struct acquire next = of_page(heir, 0);

	write_device(dying, 0, "released");
	held_begin(&release);
	client_die(dying);
	thread = begin_waiting(&next);
	cr_assert_eq(held_end(&release), 0);
	cr_assert_eq(end_waiting(thread), 0);
	expect_device(heir, 0, "released");
	client_end(dying);
	expect_cpu(0, "released");
	release_all(heir);
	end();
}

/* ---- those that are disconnected, and live ---- */

#define LATE (8 * GAIA_PAGE)

/* A client that has stored to the first chunk and released it; and where it goes on storing, when it is disconnected. */
static unsigned char *disconnected(struct client **cl)
{
	unsigned char *memory;

	*cl = new_client(0);
	write_device(*cl, LATE, "true");
	release_all(*cl);
	memory = mremap(client_at(*cl, 0), 0, GAIA_CHUNK, MREMAP_MAYMOVE);
	cr_assert_neq(memory, MAP_FAILED);
	client_die(*cl);
	(*cl)->kept = true;
	return memory;
}

Test(disconnected, store_to_memory_that_nobody_reads)
{
	struct client *a, *b;
	unsigned char *memory;

	begin_devices(1);
	memory = disconnected(&a);
	client_end(a);
	memcpy(memory + LATE, "lies", 4);
	forget_but_on_devices();
	expect_cpu(LATE, "true");
	b = new_client(0);
	memcpy(memory + LATE, "lies", 4);
	expect_device(b, LATE, "true");
	munmap(memory, GAIA_CHUNK);
	end();
}

/* As long as another one holds some of it it stays; but is not the file's any more. */
Test(disconnected, store_to_memory_that_goes_when_nobody_holds_it)
{
	struct client *a, *b, *other;
	unsigned char *memory;

	begin_devices(2);
	memory = disconnected(&a);
	b = new_client(0);
	other = new_client(1);
	cr_assert_eq(client_acquire(b, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	client_end(a);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	memcpy(memory + LATE, "lies", 4);
	forget_but_on_devices();
	expect_cpu(LATE, "true");
	forget_but_on_devices();
	expect_device(other, LATE, "true");
	release_all(b);
	expect_device(b, LATE, "true");
	munmap(memory, GAIA_CHUNK);
	end();
}

/* ---- memory of clients that are gone, which somebody has still ---- */

#define CALM (LATE + GAIA_PAGE) /* of a page that nobody changed: the device has what home has */

/* A client that left memory, and what it left. */
struct left {
	struct client *cl;
	unsigned char *memory;
	uint64_t fetched; /* pages, before it was gone */
};

static struct left leave_memory(const struct rig_options *options)
{
	struct left left;

	begin(options, 4 * GAIA_CHUNK);
	write_cpu(CALM, "calm");
	left.cl = new_client(0);
	expect_device(left.cl, CALM, "calm");
	write_device(left.cl, LATE, "true");
	release_all(left.cl);
	left.memory = mremap(client_at(left.cl, 0), 0, GAIA_CHUNK, MREMAP_MAYMOVE);
	cr_assert_neq(left.memory, MAP_FAILED);
	return left;
}

/* The client's process ends; where its children have its memory then, they have it, else it lives on unconnected. */
static void leave(struct left *left)
{
	struct cache_device_use use;

	cache_device(rig->cache, 0, &use);
	left->fetched = counter_value(CTR_device_to_home);
	client_die(left->cl);
	left->cl->kept = !use.dev->inherited;
	client_end(left->cl);
}

static void lie(const struct left *left)
{
	memcpy(left->memory + LATE, "lies", 4);
	memcpy(left->memory + CALM, "lies", 4);
}

/* To devices, and to processes when a device has published what it found there. */
static void expect_no_lies(struct client *cl)
{
	expect_device(cl, LATE, "true");
	expect_device(cl, CALM, "calm");
	write_device(cl, LATE + 8, "x");
	write_device(cl, CALM + 8, "x");
	release_all(cl);
	forget_but_on_devices();
	expect_cpu(LATE, "true");
	expect_cpu(CALM, "calm");
}

static void left_end(struct left *left)
{
	munmap(left->memory, GAIA_CHUNK);
	end();
}

Test(left, memory_is_copied_on_the_device_and_nothing_crosses_the_bus)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b;
	uint64_t sent = counter_value(CTR_home_to_device);

	leave(&left);
	lie(&left);
	b = new_client(0);
	expect_device(b, LATE, "true");
	expect_device(b, CALM, "calm");
	cr_assert_eq(counter_value(CTR_device_renewed), 1);
	cr_assert_eq(counter_value(CTR_device_to_home), left.fetched);
	cr_assert_eq(counter_value(CTR_home_to_device), sent);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	expect_no_lies(b);
	lie(&left);
	expect_no_lies(b);
	left_end(&left);
}

Test(left, memory_is_taken_from_those_who_shared_it)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	expect_device(b, CALM, "calm");
	release_all(b);
	leave(&left);
	cr_assert_eq(atomic_load(&b->revoked), 1);
	cr_assert_null(client_at(b, 0));
	lie(&left);
	expect_no_lies(b);
	left_end(&left);
}

Test(left, memory_that_was_unmapped_stays)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	expect_device(b, CALM, "calm");
	client_end(left.cl);
	cr_assert_eq(counter_value(CTR_device_renewed), 0);
	cr_assert_eq(atomic_load(&b->revoked), 0);
	expect_device(b, LATE, "true");
	left_end(&left);
}

/* A snapshot of what was released is not where a client stores. */
Test(left, memory_falls_back_to_what_was_released)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });

	write_device(left.cl, LATE, "priv");
	write_device(left.cl, CALM, "priv");
	leave(&left);
	cr_assert_eq(counter_value(CTR_device_renewed), 1);
	lie(&left);
	expect_no_lies(new_client(0));
	left_end(&left);
}

Test(left, memory_goes_where_there_is_no_room_for_a_copy)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1, .device_chunks = 1 });

	leave(&left);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	cr_assert_eq(counter_value(CTR_device_renewed), 0);
	lie(&left);
	expect_no_lies(new_client(0));
	left_end(&left);
}

Test(left, memory_goes_where_it_cannot_be_copied)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });

	fault_arm("device.copy_within", -EIO, 0, 1);
	leave(&left);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	lie(&left);
	expect_no_lies(new_client(0));
	left_end(&left);
}

/* It stays theirs who hold some of it; what nobody held comes from home, and what they release goes there at once. */
Test(left, memory_that_is_held_is_not_trusted)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	cr_assert_eq(client_acquire(b, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	leave(&left);
	cr_assert_eq(counter_value(CTR_device_to_home), left.fetched + 1);
	cr_assert_eq(atomic_load(&b->revoked), 0);
	lie(&left);
	write_device(b, CALM + 8, "b's");
	write_device(b, LATE + 8, "b's");
	cr_assert_eq(client_release(b, LATE, 2 * GAIA_PAGE), 0);
	lie(&left);
	expect_cpu(LATE, "true");
	expect_cpu(CALM, "calm");
	expect_cpu(LATE + 8, "b's");
	expect_cpu(CALM + 8, "b's");
	expect_device(b, CALM, "calm");
	/* Of what b holds, nothing is brought: it may be using it. */
	lie(&left);
	cr_assert_eq(client_acquire(b, CALM, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(memcmp(client_at(b, CALM), "lies", 4), 0);
	release_all(b);
	release_all(b);
	expect_no_lies(b);
	cr_assert_eq(atomic_load(&b->revoked), 1);
	left_end(&left);
}

/* ---- clients of one device ---- */

/* Two that hold a page for writing, in which @a has stored: the other one's release. */
static struct held neighbours_release(struct client **a)
{
	struct client *b;

	begin_devices(1);
	*a = new_client(0);
	b = new_client(0);
	write_cpu(0, "old");
	write_device(*a, 0, "new");
	cr_assert_eq(client_acquire(b, 0, GAIA_PAGE, GAIA_PROT_RW), 0);
	return (struct held){ .point = "release.before_invalidate", .call = release_page, .arg = b };
}

/* Who releases the page first publishes what the other one stored there, too; and once that is home the other's has no news. */
Test(neighbours, releases_do_not_return_before_the_kernel_lacks_old_bytes)
{
	struct client *a;
	struct held first = neighbours_release(&a);
	char seen[4] = "";

	expect_cpu(0, "old");
	held_begin(&first);
	cr_assert_eq(cpu_read_direct(kf, seen, 3, 0), 3);
	cr_assert_str_eq(seen, "new");
	cr_assert_eq(release_page(a), 0);
	expect_cpu(0, "new");
	/* Later than both: not a race. */
	write_cpu(0, "NEW");
	cr_assert_eq(held_end(&first), 0);
	expect_cpu(0, "NEW");
	end();
}

/* ... also where the device has been told since what is home, and so can tell that it is no news. */
Test(neighbours, releases_of_nothing_new_await_what_others_published)
{
	struct client *a;
	struct held first = neighbours_release(&a);

	store_cpu(64, "elsewhere");
	cr_assert_eq(kernel_writeback(kf, 0, GAIA_PAGE, 1), 0);
	held_begin(&first);
	expect_device(a, 64, "elsewhere");
	cr_assert_eq(release_page(a), 0);
	expect_cpu(0, "new");
	store_cpu(0, "NEW");
	cr_assert_eq(held_end(&first), 0);
	expect_cpu(0, "NEW");
	expect_cpu(64, "elsewhere");
	end();
}

/* It need not, and where the kernel writes through it must not: it does not hold the inode's lock. */
Test(neighbours, releases_of_readers_leave_the_kernel_alone)
{
	struct client *writer, *reader;

	begin_devices(1);
	writer = new_client(0);
	reader = new_reader();
	struct held first = { .point = "release.before_invalidate", .call = release_page, .arg = writer };

	write_cpu(0, "old");
	write_device(writer, 0, "new");
	held_begin(&first);
	expect_device(reader, 0, "new");
	cr_assert(kernel_has(kf, 0));
	release_all(reader);
	cr_assert(kernel_has(kf, 0));
	cr_assert_eq(held_end(&first), 0);
	cr_assert(!kernel_has(kf, 0));
	end();
}

/* ---- acquires that are given up while they are under way ---- */

Test(given_up, leaves_nothing_behind)
{
	static const unsigned prots[] = { 0, GAIA_PROT_PIN };
	struct client *cl;

	begin_devices(1);
	write_cpu(0, "abc");
	cl = new_client(0);
	for (size_t k = 0; k < ARRAY_LEN(prots); k++) {
		struct acquire a = of_page(cl, k * GAIA_CHUNK_PAGES);
		struct held giver = giving(&a);

		a.prot = prots[k];
		held_begin(&giver);
		cr_assert(cache_decide(&a.verdict, CACHE_GIVEN_UP));
		cr_assert_eq(held_end(&giver), -EINTR);
		cr_assert_eq(a.verdict, CACHE_GIVEN_UP);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held, nor to come");
		cache_check(rig->cache);
	}
	expect_device(cl, 0, "abc");
	release_all(cl);
	end();
}

/* What was announced may come again. */
Test(given_up, keeps_the_room_that_it_came_for)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire a = of_page(cl, 0);

	a.prot = GAIA_PROT_PIN;
	cr_assert_eq(acquire(&a), 0);
	cr_assert_eq(a.verdict, CACHE_DONE);
	a.prot = GAIA_PROT_PINNED;
	a.verdict = CACHE_GIVEN_UP;
	cr_assert_eq(acquire(&a), -EINTR);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	a.verdict = CACHE_OPEN;
	cr_assert_eq(acquire(&a), 0);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(given_up, takes_nothing_from_another_thread)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire first = of_page(cl, 0), second = of_page(cl, 0);
	struct held giver = giving(&first), waiter = waiting(&second);

	held_begin(&giver);
	held_begin(&waiter);
	cr_assert(cache_decide(&first.verdict, CACHE_GIVEN_UP));
	cr_assert_eq(held_end(&giver), -EINTR);
	cr_assert_eq(held_end(&waiter), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	client_store(cl, "mine", 4, 10);
	release_all(cl);
	expect_cpu(10, "mine");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* Of pages that are held already one hold was added, which is one to take back, whatever is released meanwhile. */
static void gives_up_beside_a_hold(bool release_first)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire held = of_page(cl, 0), both = { .cl = cl, .len = GAIA_CHUNK + GAIA_PAGE };
	struct held giver = giving(&both);

	cr_assert_eq(acquire(&held), 0);
	client_store(cl, "mine", 4, 10);
	held_begin(&giver);
	if (release_first)
		cr_assert_eq(client_release(cl, 0, GAIA_PAGE), 0);
	cr_assert(cache_decide(&both.verdict, CACHE_GIVEN_UP));
	cr_assert_eq(held_end(&giver), -EINTR);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, GAIA_CHUNK, GAIA_CHUNK), 0, "the second chunk is not held");
	if (!release_first) {
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, GAIA_CHUNK), -EBUSY, "the first one still is");
		cr_assert_eq(client_release(cl, 0, GAIA_PAGE), 0);
	}
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "it was once");
	expect_cpu(10, "mine");
	end();
}

Test(given_up, takes_back_what_it_added)
{
	gives_up_beside_a_hold(false);
	gives_up_beside_a_hold(true);
}

static void *give_up(void *verdict)
{
	(void)cache_decide(verdict, CACHE_GIVEN_UP);
	return NULL;
}

/* Whichever comes first, both sides know. */
Test(given_up, or_done_is_decided_once)
{
	unsigned done = 0;
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	for (unsigned i = 0; i < 500; i++) {
		struct acquire a = of_page(cl, 0);
		pthread_t thread;
		int err;

		rig_importers_gone();
		cr_assert_eq(pthread_create(&thread, NULL, give_up, &a.verdict), 0);
		err = acquire(&a);
		pthread_join(thread, NULL);
		cr_assert_eq(a.verdict, err ? CACHE_GIVEN_UP : CACHE_DONE);
		cr_assert(!err || err == -EINTR, "%d", err);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), err ? 0 : -EBUSY);
		done += !err;
		if (!err) {
			client_store(cl, &done, sizeof(done), 0);
			release_all(cl);
		}
	}
	cr_assert_eq(cpu_read(kf, &(unsigned){ 0 }, sizeof(done), 0), sizeof(done));
	cache_check(rig->cache);
	end();
}

/* ---- what each user may pin ---- */

/* A device of 16 chunks, of which a user may have 12 and all users 14. */
static void begin_shared_device(void)
{
	begin(&(struct rig_options){ .devices = 1, .device_chunks = 16, .readers_may_write = true }, 32 * GAIA_CHUNK);
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
Test(users, what_is_promised_counts, .timeout = 60)
{
	struct client *owner, *greedy, *again;
	pthread_t thread;

	begin_shared_device();
	owner = client_of(0, true);
	cr_assert_eq(acquire_chunks(owner, 16, 16), 0);
	cr_assert_eq(client_release(owner, 16 * GAIA_CHUNK, 16 * GAIA_CHUNK), 0);
	greedy = client_of(1, false);
	again = client_of(1, false);
	sem_init(&eviction.asked, 0, 0);
	sem_init(&eviction.go_on, 0, 0);
	rig->before_revoke = be_slow;
	cr_assert_eq(pthread_create(&thread, NULL, acquire_twelve, greedy), 0);
	sem_wait(&eviction.asked);
	rig->before_revoke = NULL;
	cr_assert_eq(acquire_chunks(again, 12, 1), -ENOMEM);
	sem_post(&eviction.go_on);
	pthread_join(thread, NULL);
	cr_assert_eq(client_release(greedy, 0, GAIA_CHUNK), 0);
	acquire_what_fits(again, 12, 1);
	end();
}

/* Once for each who pins it, however often. */
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
	/* It is his as long as any of his clients holds it. */
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

/* The next program of his need not wait until the daemon has tidied up. */
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
