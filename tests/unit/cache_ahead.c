/*
 * cache_ahead.c - an acquire of much that is not home: the store reads ahead of it, and nothing else is different.
 */
#include <sched.h>
#include <semaphore.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#define CHUNKS 12u
#include "cache_marks.h"
#include "pagecache/ahead.h"
#include "pagecache/writeback.h"

static void begin_cold(unsigned devices, uint64_t home_bytes)
{
	begin_cold_on(devices, 2 * CHUNKS, home_bytes);
}

static void acquire(struct client *cl)
{
	cr_assert_eq(client_acquire(cl, 0, LEN, GAIA_PROT_READ), 0);
}

Test(ahead, each_page_is_read_once)
{
	struct client *cl;
	uint64_t before;

	begin_cold(1, BIG_HOME);
	before = counter_value(CTR_storage_reads);
	cl = whole(0);
	acquire(cl);
	cr_assert_eq(counter_value(CTR_storage_reads), before + PAGES);
	expect_marks(cl);
	cache_check(rig->cache);
	end();
}

Test(ahead, what_home_or_a_device_has_is_not_read)
{
	struct client *a, *b;
	char byte;
	uint64_t before;

	begin_cold(2, BIG_HOME);
	a = whole(0);
	b = whole(1);
	/* The device has two chunks, home a page of each other one. */
	cr_assert_eq(client_acquire(a, 3 * GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	for (uint64_t k = 0; k < CHUNKS; k++)
		if (k != 3 && k != 4)
			cr_assert_eq(cpu_read_direct(kf, &byte, 1, k * GAIA_CHUNK + 7 * GAIA_PAGE), 1);
	before = counter_value(CTR_storage_reads);
	acquire(a);
	cr_assert_eq(counter_value(CTR_storage_reads), before + (CHUNKS - 2) * (GAIA_CHUNK_PAGES - 1));
	expect_marks(a);
	/* All is there: from the one to the other, or from home. */
	before = counter_value(CTR_storage_reads);
	acquire(b);
	cr_assert_eq(counter_value(CTR_storage_reads), before);
	expect_marks(b);
	end();
}

Test(ahead, a_small_home_will_do)
{
	struct client *cl;
	uint64_t beyond;

	begin_cold(1, CACHE_HOME_MIN);
	beyond = counter_value(CTR_home_overcommit);
	for (unsigned round = 0; round < 3; round++) {
		cl = whole(0);
		acquire(cl);
		expect_marks(cl);
		client_end(cl);
		cache_check(rig->cache);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
		rig_importers_gone();
	}
	cr_assert_eq(counter_value(CTR_home_overcommit), beyond);
	end();
}

Test(ahead, each_read_that_fails_fails_the_acquire_whole)
{
	struct client *cl;
	unsigned nth;

	begin_cold(1, BIG_HOME);
	cl = whole(0);
	for (nth = 0;; nth++) {
		int err;

		fault_arm("store.read", -EIO, nth, 0);
		err = client_acquire(cl, 0, LEN, GAIA_PROT_RW);
		fault_disarm_all();
		cache_check(rig->cache);
		if (!err)
			break;
		cr_assert_eq(err, -EIO);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
		cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0, "nothing is locked");
	}
	/* A chunk is two reads. */
	cr_assert_eq(nth, 2 * CHUNKS);
	expect_marks(cl);
	end();
}

/* Of what is read before its turn: nobody has asked for it yet. */
Test(ahead, a_read_that_fails_once_is_tried_again_at_its_turn)
{
	struct client *cl;
	unsigned failed = 0;

	begin_cold(1, BIG_HOME);
	cl = whole(0);
	for (unsigned nth = 0; nth < 2 * CHUNKS; nth++) {
		int err;

		fault_arm("store.read", -EIO, nth, 1);
		err = client_acquire(cl, 0, LEN, GAIA_PROT_READ);
		fault_disarm_all();
		cr_assert(err == 0 || err == -EIO);
		failed += err != 0;
		if (!err)
			expect_marks(cl);
		cr_assert_eq(client_release(cl, 0, LEN), 0);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
		cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
		rig_importers_gone();
	}
	/* The first chunk's turn has come. */
	cr_assert_eq(failed, 2);
	end();
}

/* ---- among others ---- */

static atomic_bool over;
static atomic_uint rounds;

/* Reads that begin in one chunk and end in the next. */
static void *read_across(void *arg)
{
	unsigned char *buf = xmalloc(2 * GAIA_CHUNK_PAGES * GAIA_PAGE);
	uint64_t k = *(unsigned *)arg;

	while (!atomic_load(&over)) {
		uint64_t border = (1 + k++ % (CHUNKS - 2)) * GAIA_CHUNK, page = border / GAIA_PAGE - 64, m;

		cr_assert_eq(cpu_read_direct(kf, buf, 128 * GAIA_PAGE, page * GAIA_PAGE), 128 * GAIA_PAGE);
		for (unsigned i = 0; i < 128; i++) {
			memcpy(&m, buf + i * GAIA_PAGE, sizeof(m));
			cr_assert_eq(m, mark(page + i));
		}
	}
	free(buf);
	return NULL;
}

static void *cut_and_extend(void *arg)
{
	while (!atomic_load(&over)) {
		rig_importers_gone();
		cr_assert_eq(cpu_truncate(kf, LEN - GAIA_CHUNK - 10), 0);
		cr_assert_eq(cpu_truncate(kf, LEN), 0);
		sched_yield();
	}
	return NULL;
}

static void *evict(void *arg)
{
	while (!atomic_load(&over))
		cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	return NULL;
}

/* The store's file, which waits where the test says so. */
static struct store_file_ops waiting_ops;
static void (*read_begin_)(struct store_file *file, struct store_read *rd);
static sem_t at_work;
static atomic_bool is_cut;

static void wait_and_begin(struct store_file *file, struct store_read *rd)
{
	if (rd->off == 0) {
		sem_post(&at_work);
		while (!atomic_load(&kf->cfile->range_waiters))
			sched_yield();
	}
	/* What was read ahead of the first chunk may end before. */
	while (rd->off > (off_t)(AHEAD_CHUNKS * GAIA_CHUNK + GAIA_CHUNK) && !atomic_load(&is_cut))
		sched_yield();
	read_begin_(file, rd);
}

static void *acquire_all(void *arg)
{
	acquire(arg);
	return NULL;
}

Test(ahead, a_truncate_gets_its_turn_before_the_acquire_is_through, .timeout = 240)
{
	struct store_file *sf;
	struct client *cl;
	pthread_t thread;

	begin_cold(1, BIG_HOME);
	cl = whole(0);
	cr_assert_eq(cfile_store(kf->cfile, false, &sf), 0);
	waiting_ops = *sf->ops;
	read_begin_ = waiting_ops.read_begin;
	waiting_ops.read_begin = wait_and_begin;
	sf->ops = &waiting_ops;
	sem_init(&at_work, 0, 0);
	cr_assert_eq(pthread_create(&thread, NULL, acquire_all, cl), 0);
	while (sem_wait(&at_work))
		;
	cr_assert_eq(cpu_truncate(kf, LEN - GAIA_CHUNK), 0);
	atomic_store(&is_cut, true);
	pthread_join(thread, NULL);
	for (uint64_t i = 0; i < PAGES; i++) {
		uint64_t m;

		client_load(cl, &m, sizeof(m), i * GAIA_PAGE);
		cr_assert_eq(m, i < PAGES - GAIA_CHUNK_PAGES ? mark(i) : 0, "page %lu", (unsigned long)i);
	}
	sem_destroy(&at_work);
	end();
}

static void *acquire_again(void *arg)
{
	struct client *cl = whole(*(unsigned *)arg);

	while (!atomic_load(&over)) {
		uint64_t m, i = atomic_fetch_add(&rounds, 1) % (PAGES - GAIA_CHUNK_PAGES - 1);

		acquire(cl);
		client_load(cl, &m, sizeof(m), i * GAIA_PAGE);
		cr_assert_eq(m, mark(i));
		cr_assert_eq(client_release(cl, 0, LEN), 0);
		/* Else there would be nothing to read. */
		(void)cache_evict(kf->cfile, *(unsigned *)arg, 0, 0);
		rig_importers_gone();
	}
	client_end(cl);
	return NULL;
}

Test(ahead, whoever_else_is_at_the_file_gets_on, .timeout = 240)
{
	static unsigned number[] = { 0, 1, 2, 3 };
	void *(*const each[])(void *) = { acquire_again, acquire_again, read_across, read_across, evict,
					  cut_and_extend };
	pthread_t thread[ARRAY_LEN(each)];

	begin_cold(2, BIG_HOME);
	for (unsigned i = 0; i < ARRAY_LEN(each); i++)
		cr_assert_eq(pthread_create(&thread[i], NULL, each[i], &number[i % 2]), 0);
	while (atomic_load(&rounds) < 30)
		sched_yield();
	atomic_store(&over, true);
	for (unsigned i = 0; i < ARRAY_LEN(each); i++)
		pthread_join(thread[i], NULL);
	cache_check(rig->cache);
	end();
}
