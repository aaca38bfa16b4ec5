/*
 * base_log.c - tests of base/log.h.
 *
 * Standard error becomes a socket that keeps message boundaries, so a test sees each write(2).
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

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
		log_error("%s", text);
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

static unsigned evaluated;

static unsigned evaluate(void)
{
	return ++evaluated;
}

static void decide(void)
{
	log_decision("decision %u", evaluate());
}

Test(log, says_what_is_decided_some_times_a_second)
{
	unsigned lines = 0, left_out = 0, n;
	const char *line;

	decide();
	cr_assert_eq(evaluated, 0, "what is not shown is made");
	log_set_level(LOG_LEVEL_DEBUG);
	for (unsigned k = 0; k < 100 * LOG_RATE; k++) {
		decide();
		while (*(line = next_write())) {
			lines += strstr(line, "decision") != NULL;
			if (sscanf(line, "gaiafs: (%u lines like the next were left out)", &n) == 1)
				left_out += n;
		}
	}
	cr_assert_geq(lines, LOG_RATE);
	/* They take less than many seconds. */
	cr_assert_lt(lines, 50 * LOG_RATE);
	cr_assert_eq(lines, evaluated);
	/* What was left out is told when there is a line again. */
	while (!left_out) {
		decide();
		while (*(line = next_write()))
			if (sscanf(line, "gaiafs: (%u lines like the next were left out)", &n) == 1)
				left_out += n;
	}
	cr_assert_geq(left_out, 50 * LOG_RATE);
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
	struct log_pace pace = { 0 }, other = { 0 };

	cr_assert(log_may(&pace));
	for (int i = 0; i < 1000; i++)
		cr_assert_not(log_may(&pace));
	cr_assert(log_may(&other));
	/* A minute has passed. */
	pace.next_ns -= 60000000000ull;
	cr_assert(log_may(&pace));
	cr_assert_not(log_may(&pace));
}
