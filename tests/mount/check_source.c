/*
 * check_source.c - gaia check-source, on two clients of an engine (engine_fs.c) that promises what it should, or less.
 */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "shell.h"
#include "tree.h"

static char top[PATH_MAX];
static struct shell_result said;

/* Two clients, c0 and c1, with that option. */
static void start(const char *option)
{
	if (geteuid() != 0)
		cr_skip_test("needs root, to mount");
	tree_make_temp(NULL, top);
	shell_ok(top, "mkdir files c0 c1");
	for (int i = 0; i < 2; i++)
		shell_ok(top, ENGINE_FS " files c%d %s", i, option);
}

static void end(void)
{
	char client[PATH_MAX + 8];

	if (!*top)
		return;
	for (int i = 0; i < 2; i++) {
		snprintf(client, sizeof(client), "%s/c%d", top, i);
		umount2(client, MNT_DETACH);
	}
	shell_ok(NULL, "rm -rf '%s'", top);
	*top = '\0';
}

TestSuite(check_source, .fini = end, .timeout = 100);

static const char *check(int status, const char *args)
{
	said = shell_run(top, 60, "\"$GAIA\" check-source %s", args);
	cr_assert_eq(said.status, status, "%d: %s%s", said.status, said.out, said.err);
	return said.out;
}

/* The probe is there, and was right or not. */
static void expect(const char *report, const char *what, bool right)
{
	const char *line = strstr(report, what), *begin = line;
	unsigned n, of;

	cr_assert_not_null(line, "%s: not in %s", what, report);
	while (begin > report && begin[-1] != '\n')
		begin--;
	cr_assert_eq(sscanf(begin, "%u of %u", &n, &of), 2, "%s", begin);
	cr_assert_eq(of > 0 && n == of, right, "%s: %s", what, report);
}

static void nothing_is_left(void)
{
	struct shell_result r = shell_run(top, 10, "ls -A files");

	cr_assert_str_empty(r.out);
	shell_free(&r);
}

Test(check_source, what_keeps_its_promises_is_fit)
{
	const char *report;

	start("");
	report = check(0, "c0 c1");
	cr_assert_not_null(strstr(report, "\nfit"));
	expect(report, "a file that one makes, the other opens", true);
	expect(report, "flock(2) by one keeps the other out", true);
	expect(report, "what was written under a lock", true);
	nothing_is_left();
	shell_free(&said);
	report = check(0, "--json c1 c0");
	cr_assert_not_null(strstr(report, "\"fit\": true"), "%s", report);
	shell_free(&said);
}

Test(check_source, old_pages_are_found)
{
	const char *report;

	start("oldpages");
	report = check(1, "c0 c1");
	cr_assert_not_null(strstr(report, "not fit"));
	expect(report, "what one has written and closed, the other reads", false);
	expect(report, "flock(2) by one keeps the other out", true);
	nothing_is_left();
	shell_free(&said);
}

Test(check_source, old_names_are_found)
{
	const char *report;

	start("oldnames");
	report = check(1, "c0 c1");
	expect(report, "a file that one removes is gone for the other", false);
	expect(report, "bytes of one page that both write are all kept", true);
	nothing_is_left();
	shell_free(&said);
}

Test(check_source, locks_that_hold_on_one_node_only_are_found)
{
	const char *report;

	start("ownlocks");
	report = check(1, "c0 c1");
	expect(report, "a file that one makes, the other opens", true);
	expect(report, "flock(2) by one keeps the other out", false);
	expect(report, "so do record locks", false);
	expect(report, "and locks of open files", false);
	nothing_is_left();
	shell_free(&said);
}

Test(check_source, locks_that_are_not_there_are_found)
{
	const char *report;

	start("nolocks");
	report = check(1, "--json c0 c1");
	cr_assert_not_null(strstr(report, "\"fit\": false"), "%s", report);
	cr_assert_not_null(strstr(report, "No locks available"), "%s", report);
	nothing_is_left();
	shell_free(&said);
}

Test(check_source, what_is_no_two_mounts_of_one_file_system_is_refused)
{
	start("");
	shell_ok(top, "mkdir other && mkdir c0/sub");
	shell_gaia_fails(top, 2, "check-source c0", "two directories");
	shell_gaia_fails(top, 2, "check-source c0 c1 c0", "two directories");
	shell_gaia_fails(top, 1, "check-source c0 c0", "one mount to this kernel");
	shell_gaia_fails(top, 1, "check-source c0 c0/sub", "one mount to this kernel");
	shell_gaia_fails(top, 1, "check-source c0 nowhere", "nowhere: No such file or directory");
	shell_gaia_fails(top, 1, "check-source c0 other", "two mounts of one file system");
	shell_ok(top, "rmdir c0/sub");
	nothing_is_left();
}
