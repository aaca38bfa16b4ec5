/*
 * base_util.c - tests of base/util.h.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/util.h"

#define UNTOUCHED 0x5eedu

static void check_size(const char *text, int want, uint64_t value)
{
	uint64_t out = UNTOUCHED;
	int got = parse_size(text, &out);

	cr_assert_eq(got, want, "\"%s\": %d", text, got);
	cr_assert_eq(out, want ? UNTOUCHED : value, "\"%s\": %ju", text, (uintmax_t)out);
}

Test(parse_size, takes_numbers_with_and_without_suffix)
{
	check_size("0", 0, 0);
	check_size("1", 0, 1);
	check_size("007", 0, 7);
	check_size("4096", 0, 4096);
	check_size("0T", 0, 0);
	check_size("1K", 0, 1ull << 10);
	check_size("3M", 0, 3ull << 20);
	check_size("2G", 0, 2ull << 30);
	check_size("5T", 0, 5ull << 40);
}

Test(parse_size, takes_what_fits_63_bits_and_nothing_above)
{
	check_size("9223372036854775807", 0, INT64_MAX);
	check_size("9223372036854775808", -ERANGE, 0);
	check_size("18446744073709551615", -ERANGE, 0);
	check_size("18446744073709551616", -ERANGE, 0);
	check_size("18446744073709551621", -ERANGE, 0); /* 5, modulo 2^64 */
	check_size("99999999999999999999999", -ERANGE, 0);
	check_size("9007199254740991K", 0, INT64_MAX - 1023);
	check_size("9007199254740992K", -ERANGE, 0);
	check_size("8388607T", 0, 8388607ull << 40);
	check_size("8388608T", -ERANGE, 0);
	check_size("16777217T", -ERANGE, 0); /* 1T, modulo 2^64 */
}

Test(parse_size, refuses_what_is_no_size)
{
	static const char *const bad[] = {
		"", " ", "K", "-1", "+1", " 1", "1 ", "1KB", "1KK", "1k", "1B", "0x10", "1.5G",
		"one", "1\n", "99999999999999999999999x",
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		check_size(bad[i], -EINVAL, 0);
}

Test(round, is_exact_at_the_boundaries)
{
	cr_assert_eq(ROUND_UP(0, 4096), 0);
	cr_assert_eq(ROUND_UP(1, 4096), 4096);
	cr_assert_eq(ROUND_UP(4096, 4096), 4096);
	cr_assert_eq(ROUND_DOWN(4095, 4096), 0);
	cr_assert_eq(ROUND_DOWN(4096, 4096), 4096);
}

Test(round, keeps_64_bits)
{
	uint64_t x = (1ull << 40) + 1;

	cr_assert_eq(ROUND_UP(x, 4096u), (1ull << 40) + 4096);
	cr_assert_eq(ROUND_DOWN(x, 4096u), 1ull << 40);
}

Test(alloc, nothing_is_something)
{
	void *p = xmalloc(0);
	void *q = xcalloc(0, 8);

	cr_assert_neq(p, NULL);
	cr_assert_neq(q, NULL);
	p = xrealloc(p, 0);
	cr_assert_neq(p, NULL);
	free(p);
	free(q);
}

Test(alloc, calloc_zeroes_and_realloc_keeps)
{
	char *p = xcalloc(16, 4);

	for (int i = 0; i < 64; i++)
		cr_assert_eq(p[i], 0);
	p[63] = 'x';
	p = xrealloc(p, 1 << 20);
	cr_assert_eq(p[63], 'x');
	free(p);
}

/* Sanitizers need address space of their own. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static struct rlimit old_limit;

/* Lift the limit when standard error says that somebody waits. */
static void *end_shortage(void *arg)
{
	char said[200];
	ssize_t n = read(*(int *)arg, said, sizeof(said) - 1);

	setrlimit(RLIMIT_AS, &old_limit);
	said[MAX(n, 0)] = '\0';
	return strstr(said, "out of memory") ? arg : NULL;
}

Test(alloc, waits_for_memory_and_says_so)
{
	struct rlimit none;
	pthread_t helper;
	void *said;
	int ends[2];
	void *p;

	cr_assert_eq(pipe(ends), 0);
	dup2(ends[1], STDERR_FILENO);
	getrlimit(RLIMIT_AS, &old_limit);
	cr_assert_eq(pthread_create(&helper, NULL, end_shortage, &ends[0]), 0);
	none = (struct rlimit){1, old_limit.rlim_max};
	setrlimit(RLIMIT_AS, &none);
	p = xmalloc(64 << 20);
	cr_assert_neq(p, NULL);
	free(p);
	pthread_join(helper, &said);
	cr_assert(said);
}

#endif

static void no_core(void)
{
	setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
}

Test(alloc, a_size_that_overflows_is_a_bug, .init = no_core, .signal = SIGABRT)
{
	/* Through a variable, so that the compiler does not see it coming. */
	volatile size_t n = SIZE_MAX / 4;

	free(xcalloc(n, 8));
}

Test(bug, ends_the_process, .init = no_core, .signal = SIGABRT)
{
	bug("%s", "on purpose");
}

Test(bug_on, does_nothing_when_all_is_well, .init = no_core)
{
	bug_on(1 == 2);
}

Test(bug_on, ends_the_process_when_it_is_not, .init = no_core, .signal = SIGABRT)
{
	bug_on(1 == 1);
}

Test(now, never_goes_back)
{
	uint64_t before = now_ns();

	cr_assert_gt(before, 0);
	for (int i = 0; i < 1000; i++) {
		uint64_t now = now_ns();

		cr_assert_geq(now, before);
		before = now;
	}
}
