/* readcost.c - from which source pages are read: costs are given, and no clock is looked at. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "base/util.h"
#include "pagecache/readcost.h"

static struct read_cost store, dev[3];
static struct read_cost *const devs[3] = { &dev[0], &dev[1], &dev[2] };
static uint8_t has[READ_BATCH], from[READ_BATCH];

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
	uint64_t ns[READ_POINTS];

	for (unsigned p = 0; p < READ_POINTS; p++)
		ns[p] = takes(r, read_point[p]);
	read_cost_set(rc, ns);
}

static void begin(void)
{
	read_cost_init(&store, true);
	for (unsigned k = 0; k < 3; k++)
		read_cost_init(&dev[k], false);
	memset(has, 0, sizeof(has));
}

static void has_pages(unsigned k, unsigned a, unsigned b, unsigned step)
{
	for (unsigned i = a; i < b; i += step)
		has[i] |= (uint8_t)(1u << k);
}

static bool plan(unsigned n_dev, unsigned n)
{
	return read_plan(&store, devs, n_dev, has, n, from);
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
	cr_assert_eq(read_cost_ns(&dev[0], 1, 1), 1000, "of other sizes nothing was learned");
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
			bool probe = plan(1, 8);

			cr_assert_eq(from[0] == READ_STORE, probe == slow_store);
			probes += probe;
			spent += takes(probe ? slow : fast, 8);
		}
		cr_assert_geq(probes, 2);
		cr_assert_leq(spent, 100000ull * takes(fast, 8) * 104 / 100);
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

static atomic_uint probes_seen;

static void *plan_many(void *arg)
{
	uint8_t mine[READ_BATCH];

	(void)arg;
	for (unsigned k = 0; k < 6400; k++) {
		if (read_plan(&store, devs, 1, has, 8, mine))
			atomic_fetch_add(&probes_seen, 1);
		read_cost_learn(k % 2 ? &store : &dev[1], 1 + k % READ_BATCH, 1, k);
	}
	return NULL;
}

Test(readcost, is_shared_by_threads)
{
	pthread_t threads[4];

	begin();
	has_pages(0, 0, 8, 1);
	known(&store, (struct real){ 1000, 0 });
	known(&dev[0], (struct real){ 1000, 0 });
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, plan_many, NULL), 0);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	/* Each source's come at most every 32nd time, of all threads' reads. */
	cr_assert_leq(probes_seen, 2 * 4 * 6400 / 32);
}
