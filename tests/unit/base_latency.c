/*
 * base_latency.c - tests of base/latency.h and base/clock.h.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/latency.h"
#include "base/util.h"

Test(latency, kinds_have_a_text_and_a_name_of_their_own)
{
	for (int a = 0; a < LATENCY_COUNT; a++) {
		cr_assert_gt(strlen(latency_text(a)), 0);
		for (int b = 0; b < a; b++)
			cr_assert(strcmp(latency_of(a), latency_of(b)) || strcmp(latency_name(a), latency_name(b)));
	}
}

/* Each is in the one bucket whose bounds it lies between; that is at most an eighth wide. */
Test(latency, buckets_are_in_order_and_narrow)
{
	uint64_t below = LATENCY_PARTS;

	for (unsigned k = 0; k < LATENCY_BUCKETS; k++) {
		uint64_t bound = latency_bound_ns(k);

		cr_assert_gt(bound, below);
		cr_assert_leq(bound - below, MAX(below / 8, 1));
		cr_assert_eq(latency_bucket((double)below), k);
		cr_assert_eq(latency_bucket((double)bound - 0.001), k);
		below = bound;
	}
	cr_assert_eq(below, 1ull << 34);
	cr_assert_eq(latency_bucket(latency_least_ns), 0);
	cr_assert_eq(latency_bucket(latency_most_ns), LATENCY_BUCKETS - 1);
}

/* 1 us to 1 ms in steps of 1 us: percentiles are as in the sorted list, or an eighth above. */
Test(latency, percentiles_are_those_of_the_values)
{
	struct latency_values v;

	latency_read(LATENCY_request_read, &v);
	cr_assert_eq(latency_number(&v), 0);
	cr_assert_eq(latency_percentile(&v, 5000), 0);
	for (unsigned us = 1; us <= 1000; us++)
		latency_count(LATENCY_request_read, us * 1000);
	latency_read(LATENCY_request_read, &v);
	cr_assert_eq(latency_number(&v), 1000);
	cr_assert_eq(v.sum_ns, 500500000);
	for (unsigned p = 10; p <= 10000; p += 10) {
		uint64_t exact = p / 10 * 1000, told = latency_percentile(&v, p);

		cr_assert_gt(told, exact);
		cr_assert_leq(told, exact + exact / 8 + 1, "%u: %llu", p, (unsigned long long)told);
	}
	latency_read(LATENCY_request_write, &v);
	cr_assert_eq(latency_number(&v), 0);
}

/* Clocks of different cores may be a little apart. And a year, 2^54.8 ns, is as long as it is in the sum. */
Test(latency, less_than_nothing_is_little_and_a_year_is_much)
{
	const double year = 365.25 * 86400 * 1e9;
	struct latency_values v;

	latency_count(LATENCY_call_map, -3);
	latency_count(LATENCY_call_map, -year);
	latency_count(LATENCY_call_map, 0);
	latency_count(LATENCY_call_map, year);
	latency_read(LATENCY_call_map, &v);
	cr_assert_eq(v.bucket[0], 3);
	cr_assert_eq(v.bucket[LATENCY_BUCKETS - 1], 1);
	cr_assert_eq(latency_number(&v), 4);
	cr_assert_eq(v.sum_ns, 3 * LATENCY_PARTS + (uint64_t)year);
}

static pthread_barrier_t begin;

static void *count_many(void *arg)
{
	if (arg)
		latency_set_choose();
	pthread_barrier_wait(&begin);
	for (unsigned i = 0; i < 100000; i++)
		latency_count(LATENCY_device_pull, 1000);
	return NULL;
}

/* Of those that have chosen a set, and those that share the first one. */
Test(latency, loses_nothing_between_threads)
{
	struct latency_values v;
	pthread_t threads[2 * LATENCY_SETS];

	pthread_barrier_init(&begin, NULL, ARRAY_LEN(threads));
	for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, count_many, i < LATENCY_SETS ? &v : NULL), 0);
	for (unsigned i = 0; i < ARRAY_LEN(threads); i++)
		pthread_join(threads[i], NULL);
	latency_read(LATENCY_device_pull, &v);
	cr_assert_eq(latency_number(&v), ARRAY_LEN(threads) * 100000);
	cr_assert_eq(v.sum_ns, ARRAY_LEN(threads) * 100000 * 1000);
}

/* Whatever clock it takes, before its rate is known and afterwards: what passes by it passes by CLOCK_MONOTONIC. */
Test(clock, passes_as_the_monotonic_clock)
{
	uint64_t quick, quick_then, before, between, after, then;

	quick_clock_start();
	for (int i = 0; i < 6; i++) {
		before = now_ns();
		quick = quick_ns();
		between = now_ns();
		usleep(100000);
		after = now_ns();
		quick_then = quick_ns();
		then = now_ns();
		/* A thousandth for the rate. */
		cr_assert_geq(elapsed_ns(quick, quick_then), (int64_t)((after - between) - (after - between) / 1000));
		cr_assert_leq(elapsed_ns(quick, quick_then), (int64_t)((then - before) + (then - before) / 1000));
	}
	cr_assert_eq(elapsed_ns(2, 1), -1);
	cr_assert_eq(elapsed_ns(1, 3), 2);
}

Test(clock, is_the_monotonic_clock_where_it_was_not_started)
{
	uint64_t before = now_ns(), quick = quick_ns(), after = now_ns();

	cr_assert_leq(before, quick);
	cr_assert_leq(quick, after);
}
