/* readcost.c - from which source pages are read: costs are given, and no clock is looked at. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "base/util.h"
#include "pagecache/readcost.h"
#include "read_costs.h"

static struct read_cost store, dev[3];
static struct read_cost *const devs[3] = { &dev[0], &dev[1], &dev[2] };
static uint16_t page[READ_BATCH];
static uint8_t has[READ_BATCH], from[READ_BATCH];
static struct read_cost *probed; /* by the last plan; it is over at once, and cost nothing beyond what was expected without */
static uint64_t instead;

/* A source with this latency and time a page, as it really is. */
struct real {
	uint64_t latency, page;
};

static uint64_t takes(struct real r, unsigned pages)
{
	return r.latency + pages * r.page;
}

static void known(struct read_cost *rc, struct real r)
{
	read_cost_is(rc, r.latency, r.page);
}

static void begin(void)
{
	read_cost_init(&store, true);
	for (unsigned k = 0; k < 3; k++)
		read_cost_init(&dev[k], false);
	memset(has, 0, sizeof(has));
	for (unsigned i = 0; i < READ_BATCH; i++)
		page[i] = (uint16_t)i;
}

static void has_pages(unsigned k, unsigned a, unsigned b, unsigned step)
{
	for (unsigned i = a; i < b; i += step)
		has[i] |= (uint8_t)(1u << k);
}

static struct read_batch batch(unsigned n_dev, unsigned n)
{
	return (struct read_batch){
		.store = &store, .dev = devs, .n_dev = n_dev, .n = n, .page = page, .has = has, .may_probe = true,
	};
}

static bool plan(unsigned n_dev, unsigned n)
{
	struct read_batch rb = batch(n_dev, n);

	probed = read_plan(&rb, from, &instead);
	if (probed)
		read_probe_end(probed, 0);
	return probed;
}

static unsigned from_source(unsigned which, unsigned n)
{
	unsigned k = 0;

	for (unsigned i = 0; i < n; i++)
		k += from[i] == which;
	return k;
}

Test(readcost, before_anything_is_known_a_device_is_asked_first)
{
	begin();
	for (unsigned n = 1; n <= READ_BATCH; n++)
		cr_assert_lt(read_cost_ns(&dev[0], n, 1), read_cost_ns(&store, n, 1));
	has_pages(0, 0, READ_BATCH, 1);
	cr_assert_not(plan(1, READ_BATCH));
	cr_assert_eq(from_source(0, READ_BATCH), READ_BATCH);
}

Test(readcost, what_a_device_has_not_comes_from_the_store)
{
	begin();
	has_pages(0, 16, 32, 1);
	cr_assert_not(plan(1, 64));
	for (unsigned i = 0; i < 64; i++)
		cr_assert_eq(from[i], i >= 16 && i < 32 ? 0 : READ_STORE, "page %u", i);
}

Test(readcost, the_cheaper_source_depends_on_how_much_is_read)
{
	begin();
	/* As from 11 pages on. */
	known(&store, (struct real){ 1000, 200 });
	known(&dev[0], (struct real){ 2000, 100 });
	has_pages(0, 0, READ_BATCH, 1);
	for (unsigned n = 1; n <= READ_BATCH; n++) {
		cr_assert_not(plan(0, n));
		cr_assert_eq(from_source(READ_STORE, n), n);
		known(&store, (struct real){ 1000, 200 }); /* no probes */
		dev[0].passed = 0;
		store.passed = 0;
		plan(1, n);
		cr_assert_eq(from_source(n > 10 ? 0 : READ_STORE, n), n, "%u pages", n);
	}
}

/* Each second page from the device: the store would have to be read as often. */
Test(readcost, pages_of_a_device_are_read_from_the_store_if_its_runs_would_be_many)
{
	begin();
	known(&store, (struct real){ 1000, 10 });
	known(&dev[0], (struct real){ 100, 10 });
	has_pages(0, 0, 64, 2);
	cr_assert_not(plan(1, 64));
	cr_assert_eq(from_source(READ_STORE, 64), 64);
	memset(has, 0, sizeof(has));
	has_pages(0, 32, 64, 1);
	cr_assert_not(plan(1, 64));
	cr_assert_eq(from_source(READ_STORE, 64), 32);
	cr_assert_eq(from_source(0, 64), 32);
}

Test(readcost, each_device_gives_what_it_has_and_the_better_one_what_both_have)
{
	begin();
	known(&store, (struct real){ 1000, 10000 });
	known(&dev[0], (struct real){ 200, 20 });
	known(&dev[1], (struct real){ 100, 10 });
	has_pages(0, 0, 20, 1);
	has_pages(1, 10, 30, 1);
	cr_assert_not(plan(2, 40));
	for (unsigned i = 0; i < 40; i++)
		cr_assert_eq(from[i], i < 10 ? 0 : i < 30 ? 1 : READ_STORE, "page %u", i);
	/* One that is too slow is left out, and the other one not. */
	known(&dev[0], (struct real){ 1000000, 0 });
	cr_assert_not(plan(2, 40));
	cr_assert_eq(from_source(0, 40), 0);
	cr_assert_eq(from_source(1, 40), 20);
}

Test(readcost, is_learned_at_every_size)
{
	struct real is = { 30000, 700 };

	begin();
	srandom(1);
	for (unsigned k = 0; k < 4000; k++) {
		unsigned n = 1 + (unsigned)random() % READ_BATCH;

		n = k % 2 ? n : 1 + n % 12;
		read_cost_learn(&dev[0], n, 1, takes(is, n));
	}
	for (unsigned n = 1; n <= READ_BATCH; n++)
		cr_assert_float_eq((double)read_cost_ns(&dev[0], n, 1), (double)takes(is, n), 0.02 * (double)takes(is, n), "%u pages", n);
}

Test(readcost, is_forgotten_when_it_is_not_so_any_more)
{
	begin();
	known(&dev[0], (struct real){ 1000, 0 });
	for (unsigned k = 0; k < 20; k++)
		read_cost_learn(&dev[0], 8, 1, 100000);
	cr_assert_gt(read_cost_ns(&dev[0], 8, 1), 80000);
	for (unsigned k = 0; k < 40; k++)
		read_cost_learn(&dev[0], 8, 1, 1000);
	cr_assert_lt(read_cost_ns(&dev[0], 8, 1), 2000);
	cr_assert_leq(read_cost_ns(&dev[0], 1, 1), 2000, "nor remembered of other sizes");
}

Test(readcost, one_slow_read_does_not_mean_much)
{
	begin();
	known(&dev[0], (struct real){ 1000, 0 });
	read_cost_learn(&dev[0], 1, 1, 2000000000);
	cr_assert_leq(read_cost_ns(&dev[0], 1, 1), 2000);
}

/* Reads until the device is asked again, of which each is made where the plan says, and takes what it takes. */
static unsigned reads_until_asked(unsigned n, struct real store_is, struct real dev_is, unsigned most)
{
	for (unsigned k = 1; k <= most; k++) {
		plan(1, n);
		if (from[0] == 0) {
			read_cost_learn(&dev[0], n, 1, takes(dev_is, n));
			return k;
		}
		read_cost_learn(&store, n, 1, takes(store_is, n));
	}
	return 0;
}

Test(readcost, a_device_that_was_slow_once_is_asked_again)
{
	struct real store_is = { 1000, 0 }, dev_is = { 900, 0 };

	begin();
	known(&store, store_is);
	known(&dev[0], dev_is);
	has_pages(0, 0, 1, 1);
	read_cost_learn(&dev[0], 1, 1, 5000000000);
	cr_assert_gt(reads_until_asked(1, store_is, dev_is, 1000), 1, "first it is not");
	/* Each time it is asked it seems cheaper, and then it is cheaper. */
	for (unsigned k = 0; k < 20; k++)
		cr_assert_gt(reads_until_asked(1, store_is, dev_is, 100), 0);
	cr_assert_eq(reads_until_asked(1, store_is, dev_is, 1), 1);
}

/* Of two that cost the same one is as good as the other; but which one was chosen is so for some reads. */
Test(readcost, probes_are_seldom)
{
	unsigned probes = 0;

	begin();
	known(&store, (struct real){ 1000, 0 });
	known(&dev[0], (struct real){ 1001, 0 });
	has_pages(0, 0, 1, 1);
	for (unsigned k = 0; k < 3200; k++) {
		bool probe = plan(1, 1);

		cr_assert_eq(from[0], probe ? 0 : READ_STORE);
		probes += probe;
	}
	cr_assert_eq(probes, 100);
}

/* In either direction. */
Test(readcost, probes_cost_little_even_if_a_source_is_very_slow)
{
	struct real slow = { 1000000, 0 }, fast = { 1000, 0 };

	for (unsigned slow_store = 0; slow_store < 2; slow_store++) {
		uint64_t spent = 0;
		unsigned probes = 0;

		begin();
		known(&store, slow_store ? slow : fast);
		known(&dev[0], slow_store ? fast : slow);
		has_pages(0, 0, 8, 1);
		for (unsigned k = 0; k < 100000; k++) {
			struct read_batch rb = batch(1, 8);
			struct read_cost *probe = read_plan(&rb, from, &instead);

			cr_assert_eq(from[0] == READ_STORE, (probe != NULL) == slow_store);
			probes += probe != NULL;
			spent += takes(probe ? slow : fast, 8);
			if (probe)
				read_probe_end(probe, takes(slow, 8) - instead);
		}
		cr_assert_geq(probes, 2);
		cr_assert_leq(spent, 100000ull * takes(fast, 8) * 104 / 100);
		cr_assert_eq(probes, 100000 / 32 / 999, "and no more than that is left undone");
	}
}

Test(readcost, a_device_that_another_stands_in_for_is_asked_again)
{
	unsigned probes = 0;

	begin();
	known(&store, (struct real){ 100000000, 0 });
	known(&dev[0], (struct real){ 1000, 0 });
	known(&dev[1], (struct real){ 3000, 0 });
	has_pages(0, 0, 8, 1);
	has_pages(1, 0, 8, 1);
	for (unsigned k = 0; k < 640; k++) {
		bool probe = plan(2, 8);

		cr_assert_eq(from_source(probe, 8), 8);
		probes += probe;
	}
	cr_assert_geq(probes, 5);
	cr_assert_leq(probes, 640 / 32);
}

Test(readcost, a_window_takes_as_long_as_the_wait_for_it)
{
	begin();
	known(&dev[0], (struct real){ 300000, 1000 });
	cr_assert_eq(read_cost_window(&dev[0]), 301);
	known(&dev[0], (struct real){ 0, 1000 });
	cr_assert_eq(read_cost_window(&dev[0]), 1);
	/* As far as is known more pages cost nothing. */
	known(&dev[0], (struct real){ 1000, 0 });
	cr_assert_eq(read_cost_window(&dev[0]), READ_WINDOW_MOST);
	known(&dev[0], (struct real){ 1000000, 100 });
	cr_assert_eq(read_cost_window(&dev[0]), READ_WINDOW_MOST);
	read_cost_set(&dev[0], (uint64_t[READ_POINTS]){ 1000, 1000, 1000, 10 });
	cr_assert_eq(read_cost_window(&dev[0]), READ_WINDOW_MOST);
}

Test(readcost, nothing_and_endless_are_times_too)
{
	static const uint64_t times[] = { 0, 1, UINT64_MAX };

	begin();
	has_pages(0, 0, READ_BATCH, 1);
	for (unsigned t = 0; t < ARRAY_LEN(times); t++)
		for (unsigned k = 0; k < 100; k++) {
			for (unsigned n = 1; n <= 2 * READ_BATCH; n += 1 + n / 3)
				read_cost_learn(k % 2 ? &dev[0] : &store, n, 1 + k % n, times[t]);
			for (unsigned n = 1; n <= 2 * READ_BATCH; n++) {
				uint64_t ns = read_cost_ns(&dev[0], n, 1);

				cr_assert(ns > 0 && ns < UINT64_MAX / READ_BATCH);
			}
			for (unsigned n = 1; n <= READ_BATCH; n++) {
				plan(1, n);
				cr_assert_eq(from_source(0, n) + from_source(READ_STORE, n), n);
			}
		}
}

/* ---- one probe at a time, which pays what it took ---- */

static bool plan_goes_on(unsigned n)
{
	struct read_batch rb = batch(1, n);

	probed = read_plan(&rb, from, &instead);
	return probed;
}

/* Alternatives that cost nearly the same. */
static void begin_even(void)
{
	begin();
	known(&store, (struct real){ 1001, 0 });
	known(&dev[0], (struct real){ 1000, 0 });
	has_pages(0, 0, READ_BATCH, 1);
}

static unsigned reads_until_probe(unsigned most)
{
	for (unsigned k = 1; k <= most; k++)
		if (plan_goes_on(1))
			return k;
	return 0;
}

Test(readcost, while_a_probe_is_under_way_there_is_no_other)
{
	begin_even();
	cr_assert_gt(reads_until_probe(100), 0);
	cr_assert_eq(probed, &store);
	cr_assert_eq(from[0], READ_STORE);
	cr_assert_eq(instead, 1000);
	cr_assert_eq(reads_until_probe(10000), 0);
	read_probe_end(&store, 0);
	cr_assert_eq(reads_until_probe(1), 1);
}

Test(readcost, what_a_probe_took_is_paid_off_before_the_next_one)
{
	begin_even();
	cr_assert_gt(reads_until_probe(100), 0);
	read_probe_end(&store, 1000000);
	/* A thirty-second of each read, which takes 1000. */
	cr_assert_eq(reads_until_probe(31000), 0);
	cr_assert_gt(reads_until_probe(2000), 0);
	/* One that did not answer for an hour is asked again the same day. */
	read_probe_end(&store, 3600ull * 1000000000);
	known(&dev[0], (struct real){ 1000000000, 0 });
	known(&store, (struct real){ 1000000001, 0 });
	cr_assert_eq(reads_until_probe(300), 0);
	cr_assert_gt(reads_until_probe(100), 0);
}

Test(readcost, what_is_saved_for_probes_has_a_limit)
{
	begin_even();
	/* A day of reads that may not probe. */
	known(&dev[0], (struct real){ 1000000000, 0 });
	known(&store, (struct real){ 1000000001, 0 });
	for (unsigned k = 0; k < 86400; k++)
		cr_assert_not(plan_goes_on(READ_PROBE + 1));
	known(&dev[0], (struct real){ 1000, 0 });
	known(&store, (struct real){ 1001, 0 });
	cr_assert_eq(reads_until_probe(1), 1);
	read_probe_end(&store, 200000000);
	cr_assert_eq(reads_until_probe(1000000), 0, "it was not enough for two");
}

Test(readcost, probes_are_small_and_made_where_they_may)
{
	struct read_batch rb;

	begin_even();
	for (unsigned k = 0; k < 1000; k++) {
		cr_assert_not(plan_goes_on(READ_PROBE + 1));
		rb = batch(1, 1);
		rb.may_probe = false;
		cr_assert_null(read_plan(&rb, from, &instead));
	}
	cr_assert_eq(reads_until_probe(1), 1);
	read_probe_end(&store, 0);
	for (unsigned k = 0; k < 1000; k++)
		cr_assert_not(plan_goes_on(READ_PROBE + 1));
	cr_assert(plan_goes_on(READ_PROBE));
}

/* The store at a nanosecond a read was never probed: a share of that is none. */
Test(readcost, the_fastest_reads_pay_for_probes_too)
{
	begin();
	known(&store, (struct real){ 20, 0 });
	known(&dev[0], (struct real){ 10, 0 });
	has_pages(0, 0, 1, 1);
	cr_assert_gt(reads_until_probe(64), 0);
}

/* ---- what is learned ---- */

/* Reads of many runs that take as long as one: it is not the pages that became cheap. */
Test(readcost, runs_that_take_no_time_do_not_make_pages_free)
{
	struct real is = { 80000, 1000 };

	begin();
	known(&store, is);
	for (unsigned k = 0; k < 200; k++)
		read_cost_learn(&store, 64, 64, takes(is, 64));
	for (unsigned n = 1; n <= READ_BATCH; n++)
		cr_assert_geq(read_cost_ns(&store, n, 1), takes(is, n), "%u pages", n);
	/* But what takes less than one run, or more than that and so many others, says something. */
	for (unsigned k = 0; k < 40; k++)
		read_cost_learn(&store, 64, 64, takes(is, 64) / 2);
	cr_assert_float_eq((double)read_cost_ns(&store, 64, 1), (double)takes(is, 64) / 2, (double)takes(is, 64) / 20);
	for (unsigned k = 0; k < 400; k++)
		read_cost_learn(&store, 64, 64, 64 * takes(is, 1));
	cr_assert_geq(read_cost_ns(&store, 64, 64), 60 * takes(is, 1));
}

Test(readcost, reads_that_take_no_time_are_not_believed)
{
	begin();
	for (unsigned k = 0; k < 1000; k++)
		for (unsigned n = 1; n <= READ_BATCH; n *= 2)
			read_cost_learn(&store, n, 1, 0);
	cr_assert_geq(read_cost_ns(&store, 1, 1), 100);
}

Test(readcost, more_pages_never_cost_less)
{
	begin();
	srandom(2);
	for (unsigned k = 0; k < 20000; k++) {
		struct read_cost *rc = k % 2 ? &store : &dev[0];
		unsigned n = 1 + (unsigned)random() % (k % 3 ? 16 : 2 * READ_BATCH);

		read_cost_learn(rc, n, 1 + (unsigned)random() % n, (uint64_t)random() % 1000 << random() % 20);
		for (unsigned p = 1; p < READ_POINTS; p++) {
			cr_assert_geq(rc->ns[p], rc->ns[p - 1]);
			cr_assert_leq(rc->ns[p], rc->ns[p - 1] * (read_point[p] / read_point[p - 1]));
		}
		cr_assert_geq(rc->ns[0], 100);
	}
}

/* What a busy moment taught of large reads is not believed for ever where only small ones may probe. */
Test(readcost, small_reads_tell_of_large_ones)
{
	begin();
	known(&dev[0], (struct real){ 1000, 1000 });
	for (unsigned k = 0; k < 20; k++)
		read_cost_learn(&dev[0], READ_BATCH, 1, 1000000000);
	cr_assert_gt(read_cost_ns(&dev[0], READ_BATCH, 1), 100000000);
	for (unsigned k = 0; k < 100; k++)
		read_cost_learn(&dev[0], 8, 1, 9000);
	cr_assert_leq(read_cost_ns(&dev[0], READ_BATCH, 1), 32 * 10000);
}

/* Three that were begun at nearly the same time, one long after them, one that overtook it, and one that waited for both. */
Test(readcost, of_reads_in_a_row_none_counts_what_the_others_took)
{
	uint64_t last = 0;

	cr_assert_eq(read_own_ns(&last, 1000, 1100), 100);
	cr_assert_eq(read_own_ns(&last, 1001, 1300), 200);
	cr_assert_eq(read_own_ns(&last, 1002, 1310), 10);
	cr_assert_eq(read_own_ns(&last, 2000, 2100), 100);
	cr_assert_eq(read_own_ns(&last, 2001, 2050), 0);
	cr_assert_eq(read_own_ns(&last, 2002, 2150), 50);
}

/* ---- what is planned ---- */

Test(readcost, pages_that_do_not_lie_together_are_runs_of_the_store)
{
	begin();
	/* Four pages as one run: 1000; as four: 1750. */
	known(&store, (struct real){ 1000, 0 });
	known(&dev[0], (struct real){ 1500, 0 });
	has_pages(0, 0, 4, 1);
	cr_assert_not(plan(1, 4));
	cr_assert_eq(from_source(READ_STORE, 4), 4);
	for (unsigned i = 0; i < 4; i++)
		page[i] = (uint16_t)(2 * i);
	cr_assert_not(plan(1, 4));
	cr_assert_eq(from_source(0, 4), 4);
}

Test(readcost, runs_that_are_read_one_after_the_other_cost_all_of_themselves)
{
	struct read_batch rb;

	begin();
	/* Four runs: 1750, or 4000. */
	known(&store, (struct real){ 1000, 0 });
	known(&dev[0], (struct real){ 3000, 0 });
	has_pages(0, 0, 4, 1);
	for (unsigned i = 0; i < 4; i++)
		page[i] = (uint16_t)(2 * i);
	cr_assert_not(plan(1, 4));
	cr_assert_eq(from_source(READ_STORE, 4), 4);
	rb = batch(1, 4);
	rb.in_turn = true;
	cr_assert_null(read_plan(&rb, from, &instead));
	cr_assert_eq(from_source(0, 4), 4);
	store.in_turn = true;
	cr_assert_not(plan(1, 4));
	cr_assert_eq(from_source(0, 4), 4);
	cr_assert_eq(read_cost_ns(&store, 4, 4), 4000);
}

/* The first device costs less for each page, and all the same it is the one that takes longest. */
Test(readcost, a_device_that_is_in_the_way_is_left_out)
{
	begin();
	known(&store, (struct real){ 1000, 1000 });
	known(&dev[0], (struct real){ 40000, 10 });
	known(&dev[1], (struct real){ 2000, 5000 });
	has_pages(0, 0, 30, 1);
	has_pages(1, 30, 34, 1);
	cr_assert_not(plan(2, 34));
	cr_assert_eq(from_source(0, 34), 0);
	cr_assert_eq(from_source(1, 34), 4);
	cr_assert_eq(from_source(READ_STORE, 34), 30);
}

/* ---- by many threads ---- */

static atomic_uint under_way, probes_seen;
static pthread_barrier_t all_ready;

static void *plan_many(void *arg)
{
	struct read_batch rb = batch(1, 8);
	uint8_t mine[READ_BATCH];
	struct read_cost *rc;
	uint64_t ns;

	(void)arg;
	pthread_barrier_wait(&all_ready);
	for (unsigned k = 0; k < 6400; k++) {
		rc = read_plan(&rb, mine, &ns);
		if (rc) {
			cr_assert_eq(atomic_fetch_add(&under_way, 1), 0);
			atomic_fetch_add(&probes_seen, 1);
			sched_yield();
			atomic_fetch_sub(&under_way, 1);
			read_probe_end(rc, 0);
		}
		read_cost_learn(&dev[1], 1 + k % READ_BATCH, 1, k);
	}
	return NULL;
}

Test(readcost, is_shared_by_threads)
{
	pthread_t threads[4];

	begin();
	has_pages(0, 0, 8, 1);
	/* Only one of the two is ever probed. */
	known(&store, (struct real){ 1001, 0 });
	known(&dev[0], (struct real){ 1000, 0 });
	pthread_barrier_init(&all_ready, NULL, 4);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, plan_many, NULL), 0);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&all_ready);
	cr_assert_gt(probes_seen, 0);
	cr_assert_leq(probes_seen, 4 * 6400 / 32);
	/* The reads pay for them, each 1000: nobody's share is lost. */
	cr_assert_eq(store.credit, (4 * 6400 - (int64_t)probes_seen) * 1000 + (int64_t)probes_seen * 1000);
}
