/*
 * base_counters.c - tests of base/counters.h.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "base/counters.h"

Test(counters, names_are_unique)
{
	for (int a = 0; a < CTR_COUNT; a++)
		for (int b = 0; b < a; b++)
			cr_assert_str_neq(counter_name(a), counter_name(b));
}

Test(counters, have_a_name_and_say_what_they_count)
{
	for (int c = 0; c < CTR_COUNT; c++) {
		cr_assert_gt(strlen(counter_name(c)), 0);
		cr_assert_gt(strlen(counter_text(c)), 0);
	}
	cr_assert_str_eq(counter_name(CTR_merges), "merges");
}

Test(counters, start_at_zero_and_add_up_apart)
{
	count(CTR_merges, 2);
	count(CTR_merges, 3);
	for (int c = 0; c < CTR_COUNT; c++)
		cr_assert_eq(counter_value(c), c == CTR_merges ? 5 : 0);
}

static void *count_many(void *arg)
{
	(void)arg;
	for (int i = 0; i < 10000; i++)
		count(CTR_twins, 1);
	return NULL;
}

Test(counters, lose_nothing_between_threads)
{
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, count_many, NULL), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	cr_assert_eq(counter_value(CTR_twins), 40000);
}
