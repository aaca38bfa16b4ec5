/*
 * base_log.c - tests of base/log.h.
 *
 * Standard error becomes a socket that keeps message boundaries, so a test sees each write(2).
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/log.h"
#include "base/util.h"

static int reader;

static void catch_stderr(void)
{
	int ends[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends), 0);
	cr_assert_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
	close(ends[1]);
	reader = ends[0];
}

/* What one write brought, or "" when there was none. */
static const char *next_write(void)
{
	static char buf[4096];
	ssize_t n = recv(reader, buf, sizeof(buf) - 1, 0);

	buf[n > 0 ? n : 0] = '\0';
	return buf;
}

TestSuite(log, .init = catch_stderr);

Test(log, writes_a_line_at_once_with_the_prefix)
{
	log_error("open %s: %s", "/mnt", "gone");
	cr_assert_str_eq(next_write(), "gaiafs: open /mnt: gone\n");
	cr_assert_str_eq(next_write(), "");
}

Test(log, keeps_quiet_below_its_level)
{
	log_set_level(LOG_LEVEL_WARN);
	log_debug("debug");
	log_info("info");
	log_warn("warn");
	log_error("error");
	cr_assert_str_eq(next_write(), "gaiafs: warn\n");
	cr_assert_str_eq(next_write(), "gaiafs: error\n");
	cr_assert_str_eq(next_write(), "");
}

Test(log, says_everything_at_debug)
{
	log_set_level(LOG_LEVEL_DEBUG);
	log_debug("debug");
	cr_assert_str_eq(next_write(), "gaiafs: debug\n");
}

Test(log, cuts_a_long_line_and_ends_it)
{
	char text[3000];
	const char *got;
	size_t len;

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	log_error("%s", text);
	got = next_write();
	len = strlen(got);
	cr_assert_gt(len, 900);
	cr_assert_lt(len, sizeof(text));
	cr_assert_str_eq(got + len - 5, "x...\n");
	cr_assert_str_eq(next_write(), "");
}

Test(log, never_cuts_a_line_that_fits)
{
	char text[2000];

	/* Around the cut, wherever it is: whole, or ending in the mark. */
	for (size_t n = 900; n < 1100; n++) {
		const char *got;
		size_t len;

		memset(text, 'x', n);
		text[n] = '\0';
		log_at(LOG_LEVEL_ERROR, "%s", text);
		got = next_write();
		len = strlen(got);
		cr_assert_eq(got[len - 1], '\n');
		if (len != strlen("gaiafs: ") + n + 1)
			cr_assert_str_eq(got + len - 4, "...\n", "%zu", n);
	}
}

Test(log, a_name_cannot_forge_a_line)
{
	log_error("open %s: no such file", "a\ngaiafs: b\x1b[2J");
	cr_assert_str_eq(next_write(), "gaiafs: open a?gaiafs: b?[2J: no such file\n");
}

Test(log, leaves_errno_alone)
{
	errno = ENOSPC;
	close(reader);
	signal(SIGPIPE, SIG_IGN);
	log_error("nobody reads this");
	cr_assert_eq(errno, ENOSPC);
}

Test(log, goes_to_syslog_when_told)
{
	log_to_syslog();
	log_error("a test of the log");
	cr_assert_str_eq(next_write(), "");
}

Test(log, tells_the_journal_its_priorities)
{
	char stream[64];
	struct stat st;

	cr_assert_eq(fstat(STDERR_FILENO, &st), 0);
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino + 1);
	setenv("JOURNAL_STREAM", stream, 1);
	log_to_journal();
	log_warn("one");
	cr_assert_str_eq(next_write(), "gaiafs: one\n");
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	log_to_journal();
	log_warn("two\nthree");
	log_error("four");
	cr_assert_str_eq(next_write(), "<4>gaiafs: two?three\n");
	cr_assert_str_eq(next_write(), "<3>gaiafs: four\n");
}

/* ---- limits ---- */

static unsigned evaluated;

static unsigned evaluate(void)
{
	return ++evaluated;
}

static void decide(void)
{
	log_decision("line %u", evaluate());
}

static void fail(void)
{
	log_error("line %u", evaluate());
}

/* Of what was written since: lines, and how many are said to have been left out. */
static struct {
	unsigned lines, left_out;
} seen;

static void look(void)
{
	const char *line;
	unsigned n;

	while (*(line = next_write())) {
		seen.lines += strstr(line, " line ") != NULL;
		if (sscanf(line, "gaiafs: (%u lines like the next were left out)", &n) == 1)
			seen.left_out += n;
	}
}

static uint64_t counted(void)
{
	return counter_value(CTR_log_lines_left_out);
}

/* One place logs as often as it can, and is limited to @at_once, and then one each @each_ns. What is not there is counted. */
static void flood(void (*place)(void), unsigned at_once, uint64_t each_ns)
{
	const unsigned calls = 100 * at_once;
	uint64_t began = now_ns(), most;

	for (unsigned k = 0; k < calls; k++) {
		place();
		look();
	}
	most = at_once + (now_ns() - began) / each_ns + 1;
	cr_assert_geq(seen.lines, at_once);
	cr_assert_leq(seen.lines, most, "%u lines, and not %llu at most", seen.lines, (unsigned long long)most);
	cr_assert_eq(seen.lines, evaluated, "what is left out is made");
	cr_assert_eq(seen.lines + counted(), calls, "%u lines and %llu left out are not %u", seen.lines, (unsigned long long)counted(), calls);
	/* What was left out is told when there is a line again. */
	for (unsigned had = seen.lines; seen.lines == had;) {
		place();
		look();
	}
	cr_assert_eq(seen.left_out, counted());
}

Test(log, says_what_is_decided_some_times_a_second)
{
	decide();
	cr_assert_eq(evaluated, 0, "what is not shown is made");
	log_set_level(LOG_LEVEL_DEBUG);
	flood(decide, LOG_DECISIONS, 1000000000 / LOG_DECISIONS);
}

Test(log, of_what_fails_very_often_is_bounded)
{
	flood(fail, LOG_AT_ONCE, LOG_EACH_NS);
}

Test(log, of_one_place_takes_nothing_from_others)
{
	for (unsigned k = 0; k < 100 * LOG_AT_ONCE; k++) {
		fail();
		next_write();
	}
	look();
	seen.lines = 0;
	log_error("another line %u", 1u);
	look();
	cr_assert_eq(seen.lines, 1);
}

Test(log, that_is_not_shown_uses_up_nothing)
{
	log_set_level(LOG_LEVEL_WARN);
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned k = 0; k < 2 * LOG_AT_ONCE; k++) {
			if (round == 1 && k == LOG_AT_ONCE)
				break;
			log_info("line %u", evaluate());
			look();
		}
		cr_assert_eq(seen.lines, round * LOG_AT_ONCE);
		cr_assert_eq(evaluated, round * LOG_AT_ONCE);
		log_set_level(LOG_LEVEL_INFO);
	}
	cr_assert_eq(counted(), 0);
}

Test(log, is_free_again_as_time_goes_by)
{
	const uint64_t start = 1000000, each = 100;
	struct log_rate rate = { 0 };
	unsigned n = 0;

	for (unsigned k = 0; k < 20; k++)
		n += log_rate_take(&rate, 5, each, start);
	cr_assert_eq(n, 5, "%u at once", n);
	cr_assert_eq(rate.left_out, 15);
	cr_assert_eq(counted(), 15);
	cr_assert_not(log_rate_take(&rate, 5, each, start + each - 1));
	cr_assert(log_rate_take(&rate, 5, each, start + each));
	cr_assert_not(log_rate_take(&rate, 5, each, start + each));
	n = 0;
	for (unsigned k = 0; k < 20; k++)
		n += log_rate_take(&rate, 5, each, start + 4 * each);
	cr_assert_eq(n, 3, "%u after as many times", n);
	/* Never more than at first, however long it was quiet. */
	n = 0;
	for (unsigned k = 0; k < 20; k++)
		n += log_rate_take(&rate, 5, each, start + 1000 * each);
	cr_assert_eq(n, 5, "%u after a long time", n);
}

#define THREADS 4
#define TURNS 20000u
static struct log_rate contended;

static void *take_many(void *arg)
{
	unsigned *got = arg;

	for (unsigned k = 0; k < TURNS; k++)
		*got += log_rate_take(&contended, THREADS * TURNS / 2, 1000, 1);
	return NULL;
}

Test(log, of_many_threads_is_limited_and_counted_exactly)
{
	unsigned got[THREADS] = { 0 }, all = 0;
	pthread_t thread[THREADS];

	for (unsigned t = 0; t < THREADS; t++)
		cr_assert_eq(pthread_create(&thread[t], NULL, take_many, &got[t]), 0);
	for (unsigned t = 0; t < THREADS; t++) {
		pthread_join(thread[t], NULL);
		all += got[t];
	}
	cr_assert_eq(all, THREADS * TURNS / 2, "%u lines", all);
	cr_assert_eq(contended.left_out, THREADS * TURNS / 2);
	cr_assert_eq(counted(), THREADS * TURNS / 2);
}

Test(log, tells_once_what_was_left_out_and_at_the_end_of_all)
{
	struct log_rate rate = { 0 };

	log_end();
	cr_assert_str_eq(next_write(), "", "nothing was left out");
	for (unsigned k = 0; k < 5; k++)
		log_may_more(&rate, LOG_LEVEL_WARN, 1, 3600000000000ull);
	cr_assert_str_eq(next_write(), "", "there is no line after them");
	/* An hour later. */
	rate.free_ns = 0;
	cr_assert(log_may_more(&rate, LOG_LEVEL_WARN, 1, 3600000000000ull));
	cr_assert_str_eq(next_write(), "gaiafs: (4 lines like the next were left out)\n");
	cr_assert_str_eq(next_write(), "");
	rate.free_ns = 0;
	cr_assert(log_may_more(&rate, LOG_LEVEL_WARN, 1, 3600000000000ull));
	cr_assert_str_eq(next_write(), "", "they are told twice");
	log_end();
	cr_assert_str_eq(next_write(), "gaiafs: of the log 4 lines were left out in all, as there were too many like them\n");
}

Test(log, leaves_errno_alone_when_it_leaves_lines_out)
{
	for (unsigned k = 0; k < 2 * LOG_AT_ONCE; k++) {
		errno = ENOSPC;
		fail();
		cr_assert_eq(errno, ENOSPC);
		look();
	}
	cr_assert_gt(counted(), 0);
}

Test(log_level, parses_its_names_only)
{
	enum log_level level = LOG_LEVEL_DEBUG;

	cr_assert_eq(log_level_parse("error", &level), 0);
	cr_assert_eq(level, LOG_LEVEL_ERROR);
	cr_assert_eq(log_level_parse("warn", &level), 0);
	cr_assert_eq(level, LOG_LEVEL_WARN);
	cr_assert_eq(log_level_parse("debug", &level), 0);
	cr_assert_eq(level, LOG_LEVEL_DEBUG);
	cr_assert_eq(log_level_parse("info", &level), 0);
	cr_assert_eq(level, LOG_LEVEL_INFO);
	cr_assert_eq(log_level_parse("", &level), -EINVAL);
	cr_assert_eq(log_level_parse("Info", &level), -EINVAL);
	cr_assert_eq(log_level_parse("information", &level), -EINVAL);
	cr_assert_eq(level, LOG_LEVEL_INFO);
}

Test(log, of_what_anybody_can_cause_is_seldom)
{
	struct log_rate pace = { 0 }, other = { 0 };

	cr_assert(log_may(&pace));
	for (int i = 0; i < 1000; i++)
		cr_assert_not(log_may(&pace));
	cr_assert_eq(counted(), 1000);
	cr_assert(log_may(&other));
	/* A minute has passed. */
	pace.free_ns -= 60000000000ull;
	cr_assert(log_may(&pace));
	cr_assert_not(log_may(&pace));
}
