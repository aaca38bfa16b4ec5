/*
 * cache_beyond.c - what a client acquires beyond the end of a file: it reads as zeros, is as private as the
 * rest until it is released, and counts for nothing (promises 7 and 9 of the contract).
 */
#include <pthread.h>
#include <semaphore.h>

#include "cache_scene.h"

/* The file's end, but for the tests that say otherwise; two pages are looked at, the second of them beyond it. */
#define END GAIA_PAGE

/* Home reads what it lacks from a device where that has it: it does so once both ways have been measured. */
static void begin_cut(uint64_t size, unsigned devices)
{
	begin_devices(devices);
	cr_assert_eq(cpu_read(kf, (char[1]){ 0 }, 1, 3 * GAIA_CHUNK), 1);
	cr_assert_eq(cpu_truncate(kf, size), 0);
}

static void acquire(struct client *cl, uint64_t off, uint64_t len, unsigned prot)
{
	cr_assert_eq(client_acquire(cl, off, len, prot), 0);
}

static void grow(void)
{
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
}

/* Whatever the daemon could take the bytes from. */
static void expect_zero(uint64_t off)
{
	char byte = 1;

	cr_assert_eq(cpu_fsync(kf), 0);
	kernel_reclaim(kf, 0, 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(cpu_read(kf, &byte, 1, off), 1);
	cr_assert_eq(byte, 0, "byte %#llx is %c", (unsigned long long)off, byte);
	cache_check(rig->cache);
}

/* ---- private ---- */

static void stays_private(unsigned others_prot)
{
	struct client *cl, *other;

	begin_cut(END, 2);
	cl = new_client(0);
	other = new_client(0);
	acquire(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_RW);
	grow();
	acquire(other, 0, 2 * GAIA_PAGE, others_prot);
	if (others_prot & GAIA_PROT_WRITE)
		release_all(other);
	client_store(cl, "private", 7, END);
	expect_zero(END);
	acquire(new_client(1), END, 1, GAIA_PROT_READ);
	client_die(cl);
	expect_zero(END);
	end();
}

Test(beyond_the_end, what_is_not_released_stays_private_when_another_reads)
{
	stays_private(GAIA_PROT_READ);
}

Test(beyond_the_end, what_is_not_released_stays_private_when_another_has_released)
{
	stays_private(GAIA_PROT_RW);
}

/* Stored first: the other does not take it for what the file has. */
Test(beyond_the_end, what_was_stored_is_not_what_another_acquires)
{
	struct client *cl, *other;

	begin_cut(END, 1);
	cl = new_client(0);
	other = new_client(0);
	acquire(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_RW);
	client_store(cl, "x", 1, END);
	grow();
	client_store(cl, "y", 1, END + 1);
	acquire(other, END, 2, GAIA_PROT_RW);
	cr_assert_eq(*client_at(other, END), 0);
	cr_assert_eq(*client_at(other, END + 1), 0);
	client_store(other, "z", 1, END + 2);
	release_all(other);
	expect_zero(END);
	expect_zero(END + 1);
	expect_cpu(END + 2, "z");
	end();
}

/* A chunk that the client maps since it was in the file. */
Test(beyond_the_end, a_chunk_that_is_still_mapped_is_held_too)
{
	struct client *cl, *other;

	begin_devices(1);
	cr_assert_eq(cpu_read(kf, (char[1]){ 0 }, 1, 3 * GAIA_CHUNK), 1);
	cl = new_client(0);
	other = new_client(0);
	acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW);
	release_all(cl);
	cr_assert_eq(cpu_truncate(kf, END), 0);
	acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW);
	cr_assert_eq(cache_evict(kf->cfile, 0, GAIA_CHUNK, GAIA_CHUNK), -EBUSY);
	grow();
	acquire(other, GAIA_CHUNK, 1, GAIA_PROT_READ);
	client_store(cl, "x", 1, GAIA_CHUNK);
	expect_zero(GAIA_CHUNK);
	release_all(cl);
	release_all(other);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(beyond_the_end, so_is_one_where_nothing_of_the_range_is_in_the_file)
{
	struct client *cl, *other;

	begin_devices(1);
	cr_assert_eq(cpu_read(kf, (char[1]){ 0 }, 1, 3 * GAIA_CHUNK), 1);
	cl = new_client(0);
	other = new_client(0);
	acquire(cl, 0, 1, GAIA_PROT_READ);
	release_all(cl);
	cr_assert_eq(cpu_truncate(kf, 0), 0);
	acquire(cl, 0, 1, GAIA_PROT_RW);
	grow();
	acquire(other, 0, 1, GAIA_PROT_READ);
	client_store(cl, "x", 1, 0);
	expect_zero(0);
	end();
}

/* A chunk that the client gets with a later acquire, of other pages of it. */
static void late_chunk(unsigned later, uint64_t size)
{
	struct client *cl, *other;

	begin_cut(END, 1);
	cl = new_client(0);
	other = new_client(0);
	acquire(cl, 0, 3 * GAIA_CHUNK, GAIA_PROT_RW);
	cr_assert_eq(client_release(cl, GAIA_CHUNK + 9 * GAIA_PAGE, GAIA_PAGE), 0);
	cr_assert_eq(cpu_truncate(kf, size), 0);
	acquire(cl, GAIA_CHUNK, 1, later);
	cr_assert_null(client_at(cl, 2 * GAIA_CHUNK));
	grow();
	acquire(other, GAIA_CHUNK, 10 * GAIA_PAGE, GAIA_PROT_READ);
	client_store(cl, "x", 1, GAIA_CHUNK + 5 * GAIA_PAGE);
	expect_zero(GAIA_CHUNK + 5 * GAIA_PAGE);
	cache_check(rig->cache);
	if (later & GAIA_PROT_PIN)
		acquire(cl, GAIA_CHUNK, 1, GAIA_PROT_READ | GAIA_PROT_PINNED);
	/* What it has released in between is not acquired again. */
	release_all(other);
	cr_assert_eq(client_release(cl, GAIA_CHUNK, 9 * GAIA_PAGE), 0);
	cr_assert_eq(client_release(cl, GAIA_CHUNK + 10 * GAIA_PAGE, GAIA_CHUNK), 0);
	/* The first page was acquired twice. */
	cr_assert_eq(cache_evict(kf->cfile, 0, GAIA_CHUNK, GAIA_CHUNK), -EBUSY);
	cr_assert_eq(client_release(cl, GAIA_CHUNK, 1), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, GAIA_CHUNK, GAIA_CHUNK), 0);
	end();
}

Test(beyond_the_end, a_chunk_that_comes_later_is_held_too)
{
	late_chunk(GAIA_PROT_RW, 3 * GAIA_CHUNK);
	late_chunk(GAIA_PROT_READ, 3 * GAIA_CHUNK);
	late_chunk(GAIA_PROT_READ, GAIA_CHUNK + 1);
	late_chunk(GAIA_PROT_READ | GAIA_PROT_PIN, 3 * GAIA_CHUNK);
}

Test(beyond_the_end, an_acquire_that_fails_leaves_what_was_asked_for_before)
{
	struct client *cl, *other;

	begin_cut(END, 1);
	cl = new_client(0);
	other = new_client(0);
	acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW);
	grow();
	fault_arm("device.export", -EIO, 0, 1);
	cr_assert_eq(client_acquire(cl, GAIA_CHUNK, 1, GAIA_PROT_READ), -EIO);
	cache_check(rig->cache);
	/* The acquire that failed holds nothing. What the first one asked for is held, now that the chunk is there. */
	cr_assert_eq(client_release(cl, GAIA_CHUNK, 1), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, GAIA_CHUNK, GAIA_CHUNK), -EBUSY);
	acquire(cl, GAIA_CHUNK, 1, GAIA_PROT_READ);
	acquire(other, GAIA_CHUNK + GAIA_PAGE, 1, GAIA_PROT_READ);
	client_store(cl, "x", 1, GAIA_CHUNK + GAIA_PAGE);
	expect_zero(GAIA_CHUNK + GAIA_PAGE);
	end();
}

/* While one thread acquires beyond the end, the file grows, and another thread of the client gets the chunk. */
static struct race {
	bool overtaken; /* the second one's acquire ends before the first one's */
	struct client *cl;
	pthread_t second;
	sem_t given, go_on;
} race;

static void *second_acquire(void *arg)
{
	cr_assert_eq(client_acquire(race.cl, GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	return NULL;
}

static void while_they_acquire(void *arg, struct client *cl, uint64_t idx)
{
	if (idx == 1) {
		sem_post(&race.given);
		if (!race.overtaken)
			sem_wait(&race.go_on);
		return;
	}
	grow();
	cr_assert_eq(pthread_create(&race.second, NULL, second_acquire, NULL), 0);
	if (race.overtaken)
		pthread_join(race.second, NULL);
	else
		sem_wait(&race.given);
}

static void race_of_acquires(bool overtaken)
{
	struct client *other;

	begin_cut(END, 1);
	race = (struct race){ .overtaken = overtaken, .cl = new_client(0) };
	sem_init(&race.given, 0, 0);
	sem_init(&race.go_on, 0, 0);
	other = new_client(0);
	rig->after_grant = while_they_acquire;
	acquire(race.cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW);
	rig->after_grant = NULL;
	sem_post(&race.go_on);
	if (!overtaken)
		pthread_join(race.second, NULL);
	acquire(other, GAIA_CHUNK + GAIA_PAGE, 1, GAIA_PROT_READ);
	client_store(race.cl, "x", 1, GAIA_CHUNK + GAIA_PAGE);
	expect_zero(GAIA_CHUNK + GAIA_PAGE);
	release_all(race.cl);
	release_all(other);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY, "both threads have acquired that page");
	cr_assert_eq(client_release(race.cl, GAIA_CHUNK, 1), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	end();
}

Test(beyond_the_end, a_chunk_that_another_thread_gets_meanwhile_is_held_too)
{
	race_of_acquires(true);
	race_of_acquires(false);
}

/* ---- zeros ---- */

Test(beyond_the_end, there_are_zeros_and_not_what_was_cut_off)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	write_device(cl, END, "old");
	write_device(cl, GAIA_CHUNK, "old");
	release_all(cl);
	cr_assert_eq(cpu_truncate(kf, END), 0);
	acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ);
	cr_assert_eq(*client_at(cl, END), 0);
	cr_assert_eq(*client_at(cl, 3 * GAIA_PAGE), 0);
	cr_assert_eq(*client_at(cl, GAIA_CHUNK), 0);
	end();
}

Test(beyond_the_end, what_is_stored_is_dropped_by_the_release)
{
	struct client *cl;

	begin_cut(END, 1);
	cl = new_client(0);
	acquire(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_RW);
	client_store(cl, "dropped", 7, END);
	client_store(cl, "kept", 4, END - 4);
	release_all(cl);
	cr_assert_eq(cfile_size(kf->cfile), END);
	grow();
	expect_cpu(END - 4, "kept");
	expect_zero(END);
	end();
}

Test(beyond_the_end, what_is_acquired_again_when_it_is_in_the_file_counts)
{
	struct client *cl;

	begin_cut(END, 1);
	cl = new_client(0);
	acquire(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_RW);
	client_store(cl, "early", 5, END);
	grow();
	write_cpu(END + 8, "cpu");
	expect_device(cl, END + 8, "cpu");
	client_store(cl, "late", 4, END + 16);
	release_all(cl);
	expect_cpu(END + 8, "cpu");
	expect_cpu(END + 16, "late");
	expect_zero(END);
	end();
}

/* ---- each hold ends once ---- */

Test(beyond_the_end, each_hold_ends_once_however_it_ends)
{
	enum { RELEASE, DIE, UNMAP, TRUNCATE, WAYS };

	for (unsigned way = 0; way < WAYS * WAYS; way++) {
		struct client *cl[2];

		begin_cut(END, 1);
		/* The page after the end has two holds of each. */
		for (unsigned k = 0; k < 2; k++) {
			cl[k] = new_client(0);
			acquire(cl[k], 0, 2 * GAIA_PAGE, GAIA_PROT_RW);
			acquire(cl[k], END, GAIA_PAGE, GAIA_PROT_RW);
		}
		for (unsigned k = 0, how = way; k < 2; k++, how /= WAYS) {
			client_store(cl[k], "x", 1, END);
			switch (how % WAYS) {
			case RELEASE:
				release_all(cl[k]);
				cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
				release_all(cl[k]);
				break;
			case DIE:
				client_die(cl[k]);
				break;
			case UNMAP:
				client_end(cl[k]);
				break;
			case TRUNCATE:
				grow();
				cr_assert_eq(cpu_truncate(kf, k ? 0 : END), 0);
				release_all(cl[k]);
				release_all(cl[k]);
				break;
			}
			cache_check(rig->cache);
		}
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
		end();
	}
}

/* An acquire that fails holds nothing beyond the end, either. */
Test(beyond_the_end, an_acquire_that_fails_holds_nothing)
{
	static const char *const points[] = { "device.zero", "device.export" };

	for (unsigned k = 0; k < ARRAY_LEN(points); k++) {
		struct client *cl;

		begin_cut(END, 1);
		cl = new_client(0);
		fault_arm(points[k], -EIO, 0, 1);
		cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_RW), -EIO);
		cache_check(rig->cache);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
		acquire(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_RW);
		end();
	}
}

/* Chunks that the file had, and that the client maps still, are noted in runs, of which an acquire to come has no end. */
Test(beyond_the_end, an_acquire_to_come_has_not_any_number_of_parts)
{
	const uint64_t length = 130 * GAIA_CHUNK, last = 128 * GAIA_CHUNK;
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 70 }, length);
	cl = client_create(kf, 0, GAIA_PROT_RW, length);
	for (uint64_t off = 0; off <= last; off += 2 * GAIA_CHUNK)
		acquire(cl, off, 1, GAIA_PROT_READ);
	cr_assert_eq(client_release(cl, 0, length), 0);
	cr_assert_eq(cpu_truncate(kf, 0), 0);
	/* 65 runs of a chunk each. */
	cr_assert_eq(client_acquire(cl, 0, length, GAIA_PROT_READ | GAIA_PROT_PIN), -EAGAIN);
	cache_check(rig->cache);
	cr_assert_eq(client_acquire(cl, 0, length, GAIA_PROT_READ | GAIA_PROT_PINNED), -EINVAL, "nothing was noted");
	cr_assert_eq(cache_evict(kf->cfile, 0, last, GAIA_CHUNK), 0, "nothing is held");
	acquire(cl, 0, length, GAIA_PROT_READ | GAIA_PROT_PIN);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, GAIA_CHUNK), -EBUSY);
	acquire(cl, 0, length, GAIA_PROT_READ | GAIA_PROT_PINNED);
	cr_assert_eq(client_release(cl, 0, length), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}
