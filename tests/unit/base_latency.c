/*
 * base_latency.c - tests of base/latency.h and base/clock.h.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
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

/* What passes by it passes by CLOCK_MONOTONIC, to within a thousandth. */
static void expect_monotonic_time(void)
{
	for (int i = 0; i < 3; i++) {
		uint64_t before = now_ns(), between, after, then;
		int64_t quick = quick_ticks(), quick_then;

		between = now_ns();
		usleep(100000);
		after = now_ns();
		quick_then = quick_ticks_after(quick);
		then = now_ns();
		cr_assert_geq(elapsed_ns(quick, quick_then), (double)(after - between) * 0.999);
		cr_assert_leq(elapsed_ns(quick, quick_then), (double)(then - before) * 1.001);
		cr_assert_lt(elapsed_ns(quick_then, quick), 0);
		cr_assert_eq(elapsed_ns(quick, quick), 0);
		cr_assert(is_within_ns(quick, quick_then, 1e18) && !is_within_ns(quick, quick_then, 0));
		/* The counter has begun anew: a second less. */
		cr_assert_not(is_within_ns(quick, quick - (int64_t)(1e9 / quick_clock.tick_ns), 1e18));
	}
}

static bool kernel_uses_counter(void)
{
	char text[16] = "";
	FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");

	if (file) {
		cr_assert(fgets(text, sizeof(text), file));
		fclose(file);
	}
	return strcmp(text, "tsc\n") == 0;
}

Test(clock, passes_as_the_monotonic_clock)
{
	quick_clock_start();
#ifdef __x86_64__
	cr_assert_eq(quick_clock.is_counter, kernel_uses_counter());
#else
	cr_assert(!quick_clock.is_counter);
	(void)kernel_uses_counter;
#endif
	expect_monotonic_time();
}

/* The clock that the sign of its values tells. */
static void expect_now_ns(void)
{
	uint64_t before = now_ns();
	int64_t first = quick_ticks(), then = quick_ticks_after(first), from_nothing = quick_ticks_after(0);
	uint64_t after = now_ns();

	cr_assert_leq(before, (uint64_t)-first);
	cr_assert_geq(elapsed_ns(first, then), 0);
	cr_assert_geq(elapsed_ns(then, from_nothing), 0);
	cr_assert_leq((uint64_t)-from_nothing, after);
}

Test(clock, is_the_monotonic_clock_where_there_is_no_counter)
{
	expect_now_ns();
	expect_monotonic_time();
}

/* From 100 MHz to 5 GHz: elapsed_ns() tells what the ticks are worth, and the bound that is told of it later is at most an eighth more. */
Test(clock, ticks_are_counted_as_nanoseconds_at_any_rate)
{
	static const double rates[] = { 10, 1, 0.5, 1 / 2.45, 0.2 };
	const int64_t from = 1ll << 50;

	for (unsigned r = 0; r < ARRAY_LEN(rates); r++) {
		uint64_t sum = 0;
		struct latency_values v;

		quick_clock = (struct quick_clock){ .is_counter = true, .tick_ns = rates[r] };
		for (int64_t ticks = 100; ticks < 10000000000; ticks += ticks / 3) {
			double ns = elapsed_ns(from, from + ticks), bound;

			cr_assert_float_eq(ns, (double)ticks * rates[r], 0.01);
			cr_assert_float_eq(elapsed_ns(from + ticks, from), -ns, 0.01);
			if (ns > latency_most_ns)
				break;
			latency_count(LATENCY_device_zero + r, ns);
			sum += (uint64_t)ns;
			bound = (double)latency_bound_ns((unsigned)latency_bucket(ns));
			cr_assert_lt(ns, bound);
			cr_assert_geq(ns * 1.125, bound, "%f ns, %f", ns, bound);
			latency_read(LATENCY_device_zero + r, &v);
			cr_assert_eq(latency_percentile(&v, 10000), bound);
			cr_assert_eq(v.sum_ns, sum);
		}
	}
}
