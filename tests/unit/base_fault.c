/*
 * base_fault.c - tests of base/fault.h.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/fault.h"
#include "base/util.h"

#ifdef GAIA_FAULTS

/* The results of @n hits, as a string of '.' and '!'. */
static const char *hits(const char *name, int n)
{
	static char text[64];

	for (int i = 0; i < n; i++)
		text[i] = fault_point(name) ? '!' : '.';
	text[n] = '\0';
	return text;
}

Test(fault, nothing_happens_while_nothing_is_armed)
{
	cr_assert_str_eq(hits("a", 4), "....");
}

Test(fault, only_the_armed_point_fails)
{
	fault_arm("a", -EIO, 0, 0);
	cr_assert_eq(fault_point("a"), -EIO);
	cr_assert_eq(fault_point("b"), 0);
	cr_assert_eq(fault_point("aa"), 0);
	cr_assert_eq(fault_point(""), 0);
}

Test(fault, skips_and_counts_exactly)
{
	fault_arm("a", -EIO, 3, 2);
	cr_assert_str_eq(hits("a", 8), "...!!...");
}

Test(fault, without_a_count_it_stays)
{
	fault_arm("a", -EIO, 1, 0);
	cr_assert_str_eq(hits("a", 6), ".!!!!!");
}

Test(fault, arming_again_starts_anew)
{
	fault_arm("a", -EIO, 0, 1);
	cr_assert_str_eq(hits("a", 2), "!.");
	fault_arm("a", -ENOSPC, 1, 1);
	cr_assert_eq(fault_point("a"), 0);
	cr_assert_eq(fault_point("a"), -ENOSPC);
	cr_assert_eq(fault_point("a"), 0);
}

Test(fault, disarm_all_disarms_all)
{
	fault_arm("a", -EIO, 0, 0);
	fault_arm("b", -EIO, 0, 0);
	fault_arm_delay("c", 10, 1);
	fault_disarm_all();
	cr_assert_eq(fault_point("a"), 0);
	cr_assert_eq(fault_point("b"), 0);
	fault_arm("b", -ENOSPC, 0, 0);
	cr_assert_eq(fault_point("b"), -ENOSPC);
	cr_assert_eq(fault_point("a"), 0);
}

Test(fault, a_delay_fails_nothing_and_goes_with_an_error)
{
	fault_arm_delay("a", 50, 7);
	cr_assert_str_eq(hits("a", 3), "...");
	fault_arm("a", -EIO, 1, 1);
	cr_assert_str_eq(hits("a", 3), ".!.");
}

static void *hit_many(void *arg)
{
	for (int i = 0; i < 1000; i++)
		if (fault_point("a"))
			atomic_fetch_add((atomic_uint *)arg, 1);
	return NULL;
}

Test(fault, counts_exactly_between_threads)
{
	pthread_t threads[4];
	atomic_uint failed = 0;

	fault_arm("a", -EIO, 1000, 777);
	for (int i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, hit_many, &failed), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	cr_assert_eq(failed, 777);
}

static void *arm_and_disarm(void *arg)
{
	(void)arg;
	for (int i = 0; i < 1000; i++) {
		fault_arm("a", -EIO, 0, 0);
		fault_disarm_all();
	}
	return NULL;
}

Test(fault, may_be_armed_while_it_is_hit)
{
	pthread_t armer, hitter;
	atomic_uint failed = 0;

	pthread_create(&armer, NULL, arm_and_disarm, NULL);
	pthread_create(&hitter, NULL, hit_many, &failed);
	pthread_join(armer, NULL);
	pthread_join(hitter, NULL);
	cr_assert_eq(fault_point("a"), 0);
}

static void *hit_once(void *arg)
{
	atomic_store((atomic_int *)arg, fault_point("a"));
	return NULL;
}

static void a_hit_is_held_until(void (*let_go)(void))
{
	atomic_int result = 1;
	pthread_t hitter;

	fault_hold("a");
	fault_arm("a", -EIO, 0, 1);
	pthread_create(&hitter, NULL, hit_once, &result);
	fault_await_held("a");
	cr_assert_eq(atomic_load(&result), 1);
	cr_assert_eq(fault_point("a"), 0, "only one is held");
	let_go();
	pthread_join(hitter, NULL);
	cr_assert_eq(result, -EIO);
	cr_assert_eq(fault_point("a"), 0);
}

static void let_a_go(void)
{
	fault_let_go("a");
}

Test(fault, holds_one_hit_until_it_is_let_go)
{
	a_hit_is_held_until(let_a_go);
}

Test(fault, disarm_all_lets_go)
{
	a_hit_is_held_until(fault_disarm_all);
}

Test(fault_parse, takes_the_documented_form)
{
	cr_assert_eq(fault_parse("a=errno:EIO,after=3,count=1;b=delay:200us,seed=7"), 0);
	cr_assert_str_eq(hits("a", 6), "...!..");
	cr_assert_str_eq(hits("b", 3), "...");
}

Test(fault_parse, options_have_defaults_and_no_order)
{
	cr_assert_eq(fault_parse("a=errno:ENOSPC;b=errno:ENOMEM,count=1,after=1;c=delay:0us;"), 0);
	cr_assert_eq(fault_point("a"), -ENOSPC);
	cr_assert_eq(fault_point("a"), -ENOSPC);
	cr_assert_eq(fault_point("b"), 0);
	cr_assert_eq(fault_point("b"), -ENOMEM);
	cr_assert_eq(fault_point("b"), 0);
}

Test(fault_parse, nothing_arms_nothing)
{
	cr_assert_eq(fault_parse(""), 0);
	cr_assert_eq(fault_parse(";"), 0);
}

Test(fault_parse, one_name_may_have_an_error_and_a_delay)
{
	cr_assert_eq(fault_parse("a=delay:1us,seed=1;a=errno:EIO,count=1"), 0);
	cr_assert_str_eq(hits("a", 3), "!..");
}

Test(fault_parse, refuses_what_it_does_not_know_and_arms_nothing)
{
	static const char *const bad[] = {
		"a", "=errno:EIO", "a=", "a=errno", "a=errno:", "a=errno:EWHAT", "a=errno:5",
		"a=errno:eio", "a=errno:EIO,", "a=errno:EIO,after", "a=errno:EIO,after=",
		"a=errno:EIO,after=x", "a=errno:EIO,after=-1", "a=errno:EIO,after=4294967296",
		"a=errno:EIO,count=1x", "a=errno:EIO,seed=1", "a=errno:EIO,what=1", "a=delay:1",
		"a=delay:1ms", "a=delay:us", "a=delay:1us,after=1", "a=pause:1us",
		"a=delay:1us,seed=18446744073709551616", "a = errno:EIO",
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		char text[100];

		cr_assert_eq(fault_parse(bad[i]), -EINVAL, "%s", bad[i]);
		/* Not even the part before it. */
		snprintf(text, sizeof(text), "z=errno:EIO;%s", bad[i]);
		cr_assert_eq(fault_parse(text), -EINVAL, "%s", text);
		cr_assert_eq(fault_point("z"), 0);
		cr_assert_eq(fault_point("a"), 0);
	}
}

#else

Test(fault, costs_nothing_when_left_out)
{
	_Static_assert(fault_point("a") == 0, "a constant");
}

#endif
