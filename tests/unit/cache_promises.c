/*
 * cache_promises.c - an acquire of many chunks that a device has room for: they get memory while it goes on, or from those who wait
 * for them; and if there is less than it seemed, all is as if nothing had been promised.
 */
#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#define CHUNKS 40u
#include "cache_acquires.h"
#include "cache_marks.h"

#define DEVICE_CHUNKS (CHUNKS + 4)
#define HANG 120 /* seconds */

static struct acquire all_of(struct client *cl)
{
	return (struct acquire){ .cl = cl, .len = LEN };
}

/* On another thread: it has begun to read the file, and goes on at held_end(). */
static struct held reading(struct acquire *a)
{
	return (struct held){ .point = "store.read", .call = acquire, .arg = a };
}

static void nothing_is_left(void)
{
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	cr_assert_eq(rig_device_used(rig, 0), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0, "nothing is locked");
}

Test(promises, are_kept_as_the_acquire_goes_on, .timeout = HANG)
{
	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	struct acquire a = all_of(whole(0));
	struct held h = reading(&a);
	uint64_t used;

	held_begin(&h);
	used = rig_device_used(rig, 0);
	cr_assert(used > 0 && used < LEN, "%lu", (unsigned long)used);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(rig_device_used(rig, 0), LEN);
	expect_marks(a.cl);
	end();
}

/* What has no memory yet is taken all the same. */
Test(promises, are_for_nobody_else, .timeout = HANG)
{
	struct kfile *other;
	struct client *cl;

	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	struct acquire a = all_of(whole(0));
	struct held h = reading(&a);

	held_begin(&h);
	other = kfile_create(rig, 2, 5 * (uint64_t)GAIA_CHUNK);
	cl = client_create(other, 0, GAIA_PROT_RW, 5 * (uint64_t)GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 0, 5 * (uint64_t)GAIA_CHUNK, GAIA_PROT_RW), -ENOMEM);
	cr_assert_eq(client_acquire(cl, 0, 4 * (uint64_t)GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(held_end(&h), 0);
	expect_marks(a.cl);
	end();
}

/* A reader of the last chunks does not wait for all that comes before these. */
Test(promises, are_kept_by_who_waits_for_them, .timeout = HANG)
{
	struct client *cl;

	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	struct acquire a = all_of(whole(0));
	struct held h = reading(&a);

	cl = whole(0);
	held_begin(&h);
	cr_assert_eq(client_acquire(cl, (CHUNKS - 2) * (uint64_t)GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	expect_marks_in(cl, CHUNKS - 2, CHUNKS);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(rig_device_used(rig, 0), LEN);
	expect_marks(a.cl);
	end();
}

/* Of these many are looked at together, as nothing is to be done there. */
Test(promises, come_before_many_chunks_that_are_there, .timeout = HANG)
{
	struct client *first, *cl;

	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	first = whole(0);
	cr_assert_eq(client_acquire(first, 20 * (uint64_t)GAIA_CHUNK, (CHUNKS - 20) * (uint64_t)GAIA_CHUNK, GAIA_PROT_READ), 0);
	cl = whole(0);
	cr_assert_eq(client_acquire(cl, 0, LEN, GAIA_PROT_READ), 0);
	expect_marks(cl);
	cr_assert_eq(rig_device_used(rig, 0), LEN);
	end();
}

/* Who waits cannot keep it. */
Test(promises, that_others_cannot_keep_are_still_the_acquires, .timeout = HANG)
{
	pthread_t thread;

	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	struct acquire a = all_of(whole(0)), b = of_page(whole(0), PAGES - 1);
	struct held h = reading(&a);

	held_begin(&h);
	fault_arm("device.alloc", -ENOMEM, 0, 1);
	thread = begin_waiting(&b);
	/* Waiting means that it has tried, or is about to: the acquire has nothing to do before. */
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(end_waiting(thread), 0);
	expect_marks(a.cl);
	expect_marks_in(b.cl, CHUNKS - 1, CHUNKS);
	fault_disarm_all();
	end();
}

/* Of less memory than the device says. Once: then there is enough after all. */
Test(promises, are_made_anew_where_there_is_less_memory, .timeout = HANG)
{
	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	for (unsigned nth = 0; nth < CHUNKS; nth += nth < 10 ? 1 : 7) {
		struct client *cl = whole(0);

		fault_arm("device.alloc", -ENOMEM, nth, 1);
		cr_assert_eq(client_acquire(cl, 0, LEN, GAIA_PROT_READ), 0, "%u", nth);
		fault_disarm_all();
		expect_marks(cl);
		client_end(cl);
		nothing_is_left();
		rig_importers_gone();
	}
	end();
}

Test(promises, that_cannot_be_kept_leave_nothing, .timeout = HANG)
{
	struct client *cl;

	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	cl = whole(0);
	for (unsigned nth = 0; nth < CHUNKS; nth += nth < 10 ? 1 : 7) {
		fault_arm("device.alloc", -ENOMEM, nth, 0);
		cr_assert_eq(client_acquire(cl, 0, LEN, GAIA_PROT_RW), -ENOMEM, "%u", nth);
		fault_disarm_all();
		nothing_is_left();
	}
	cr_assert_eq(client_acquire(cl, 0, LEN, GAIA_PROT_RW), 0);
	expect_marks(cl);
	end();
}

/* Nobody waits for what does not come. */
Test(promises, that_are_broken_are_for_the_next_to_try, .timeout = HANG)
{
	pthread_t thread;
	int err;

	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	struct acquire a = all_of(whole(0)), b = of_page(whole(0), PAGES - 1);
	struct held h = reading(&a);

	held_begin(&h);
	/* One for each. */
	fault_arm("device.alloc", -ENOMEM, 0, 2);
	thread = begin_waiting(&b);
	err = held_end(&h);
	cr_assert(err == 0 || err == -ENOMEM, "%d", err);
	err = end_waiting(thread);
	cr_assert(err == 0 || err == -ENOMEM, "%d", err);
	fault_disarm_all();
	cr_assert_eq(acquire(&b), 0);
	expect_marks_in(b.cl, CHUNKS - 1, CHUNKS);
	cr_assert_eq(acquire(&a), 0);
	expect_marks(a.cl);
	end();
}

/* ---- all at once ---- */

#define ROUNDS 15
static atomic_uint acquirers;

static void *acquire_again_and_again(void *arg)
{
	struct client *cl = arg;

	for (unsigned round = 0; round < ROUNDS; round++) {
		int err = client_acquire(cl, 0, LEN, GAIA_PROT_READ);

		cr_assert(err == 0 || err == -ENOMEM, "%d", err);
		if (err)
			continue;
		for (uint64_t i = round; i < PAGES; i += 97) {
			uint64_t m;

			client_load(cl, &m, sizeof(m), i * GAIA_PAGE);
			cr_assert_eq(m, mark(i), "page %lu", (unsigned long)i);
		}
		cr_assert_eq(client_release(cl, 0, LEN), 0);
	}
	atomic_fetch_sub(&acquirers, 1);
	return NULL;
}

Test(promises, of_several_acquires_at_once_while_memory_comes_and_goes, .timeout = HANG)
{
	pthread_t thread[3];

	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	atomic_store(&acquirers, ARRAY_LEN(thread));
	for (unsigned k = 0; k < ARRAY_LEN(thread); k++)
		cr_assert_eq(pthread_create(&thread[k], NULL, acquire_again_and_again, whole(0)), 0);
	for (unsigned n = 0; atomic_load(&acquirers) > 0; n++) {
		fault_arm("device.alloc", -ENOMEM, n * 7 % 50, n % 3);
		(void)cache_evict(kf->cfile, 0, 0, 0);
		usleep(1000);
	}
	for (unsigned k = 0; k < ARRAY_LEN(thread); k++)
		pthread_join(thread[k], NULL);
	fault_disarm_all();
	cache_check(rig->cache);
	end();
}
