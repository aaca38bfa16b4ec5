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
#include "cache_mute.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/replica.h"

#define DEVICE_CHUNKS (CHUNKS + 4)
#define HANG 240 /* seconds */

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

/* Somebody who waited for the last chunk could not keep its promise. */
static bool is_lacking(void)
{
	struct chunk *ch = chunk_get(kf->cfile, CHUNKS - 1, false);
	struct replica *rep;
	bool is;

	cr_assert(ch);
	pthread_mutex_lock(&ch->lock);
	cr_assert_eq(ch->n_replicas, 1);
	rep = replica_unit(ch->replica[0]);
	pthread_mutex_lock(&rep->dev->lock);
	is = rep->promise == PROMISE_LATER && atomic_load(rep->lacks);
	pthread_mutex_unlock(&rep->dev->lock);
	pthread_mutex_unlock(&ch->lock);
	chunk_put(ch);
	return is;
}

/* Who waits cannot keep it: the acquire is told, and does not let the other wait until the chunk's turn comes. */
Test(promises, that_others_cannot_keep_are_given_up, .timeout = HANG)
{
	pthread_t thread;

	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	struct acquire a = all_of(whole(0)), b = { .cl = whole(0), .off = LEN - GAIA_CHUNK, .len = GAIA_CHUNK };
	struct held h = reading(&a);

	held_begin(&h);
	fault_arm("device.alloc", -ENOMEM, 0, 0);
	thread = begin_waiting(&b);
	while (!is_lacking())
		sched_yield();
	fault_arm("device.alloc", 0, 0, 0);
	/* Nothing can be read after most of the file, which is two reads a chunk: had the other to wait for that it would fail as well. */
	fault_arm("store.read", -EIO, 2 * CHUNKS - 6, 0);
	(void)held_end(&h);
	cr_assert_eq(end_waiting(thread), 0);
	expect_marks_in(b.cl, CHUNKS - 1, CHUNKS);
	fault_disarm_all();
	cr_assert_eq(acquire(&a), 0);
	expect_marks(a.cl);
	end();
}

/* ---- memory that others give up slowly ---- */

/* What has room needs nobody's memory, and does not get to need it because somebody else takes its own. */
Test(promises, are_kept_beside_who_waits_for_others_memory, .timeout = HANG)
{
	struct kfile *idle, *third;
	struct client *owner;
	pthread_t thread;

	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	idle = kfile_create(rig, 2, 4 * (uint64_t)GAIA_CHUNK);
	third = kfile_create(rig, 3, 4 * (uint64_t)GAIA_CHUNK);
	owner = client_create(idle, 0, GAIA_PROT_RW, 4 * (uint64_t)GAIA_CHUNK);
	cr_assert_eq(client_acquire(owner, 0, 4 * (uint64_t)GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(client_release(owner, 0, 4 * (uint64_t)GAIA_CHUNK), 0);
	struct acquire a = all_of(whole(0));
	struct acquire c = { .cl = client_create(third, 0, GAIA_PROT_RW, 4 * (uint64_t)GAIA_CHUNK), .len = 4 * (uint64_t)GAIA_CHUNK };
	struct held h = reading(&a);

	held_begin(&h);
	mute = owner;
	atomic_store(&mute_answers, false);
	rig->late = is_mute;
	thread = begin_waiting(&c);
	cr_assert_eq(held_end(&h), 0);
	expect_marks(a.cl);
	atomic_store(&mute_answers, true);
	/* All of the device is held, but for what the mute one had. */
	cr_assert_eq(end_waiting(thread), 0);
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

/* @each: chunks that the device gives at a time. */
static void broken_promises(bool old_client, unsigned each)
{
	struct client *cl;

	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	rig->old_clients = old_client;
	cl = whole(0);
	for (unsigned nth = 0; nth < CHUNKS / each; nth += nth < 10 ? 1 : 7) {
		fault_arm("device.alloc", -ENOMEM, nth, 0);
		cr_assert_eq(client_acquire(cl, 0, LEN, GAIA_PROT_RW), -ENOMEM, "%u", nth);
		fault_disarm_all();
		nothing_is_left();
	}
	cr_assert_eq(client_acquire(cl, 0, LEN, GAIA_PROT_RW), 0);
	expect_marks(cl);
	end();
}

Test(promises, that_cannot_be_kept_leave_nothing, .timeout = HANG)
{
	broken_promises(true, 1);
	broken_promises(false, GAIA_EXTENT_CHUNKS);
}

/* ---- all at once ---- */

#define ROUNDS 15
static atomic_uint acquirers, acquired;

static void *acquire_again_and_again(void *arg)
{
	struct client *cl = arg;

	for (unsigned round = 0; round < ROUNDS; round++) {
		int err = client_acquire(cl, 0, LEN, GAIA_PROT_READ);

		cr_assert(err == 0 || err == -ENOMEM || err == -EIO, "%d", err);
		if (err)
			continue;
		atomic_fetch_add(&acquired, 1);
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
	struct client *cl[ARRAY_LEN(thread)];

	begin_cold_on(1, DEVICE_CHUNKS, BIG_HOME);
	atomic_store(&acquirers, ARRAY_LEN(thread));
	for (unsigned k = 0; k < ARRAY_LEN(thread); k++) {
		cl[k] = whole(0);
		cr_assert_eq(pthread_create(&thread[k], NULL, acquire_again_and_again, cl[k]), 0);
	}
	for (unsigned n = 0; atomic_load(&acquirers) > 0; n++) {
		fault_arm("device.alloc", -ENOMEM, n * 7 % 50, 1 + n % 3);
		if (n % 4 == 0)
			fault_arm("store.read", -EIO, n % 30, 2);
		(void)cache_evict(kf->cfile, 0, 0, 0);
		(void)cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0);
		usleep(1000);
	}
	for (unsigned k = 0; k < ARRAY_LEN(thread); k++)
		pthread_join(thread[k], NULL);
	fault_disarm_all();
	cr_assert_gt(atomic_load(&acquired), 0);
	for (unsigned k = 0; k < ARRAY_LEN(thread); k++)
		client_end(cl[k]);
	nothing_is_left();
	end();
}
