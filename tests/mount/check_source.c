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
	shell_ok(top, "chmod 755 . && mkdir files c0 c1");
	for (int i = 0; i < 2; i++)
		shell_ok(top, ENGINE_FS " '%s/files' '%s/c%d' %s", top, top, i, option);
}

static void end(void)
{
	char client[PATH_MAX + 8];
	struct shell_result left;

	if (!*top)
		return;
	/* What a test has left that failed: an engine that is stopped, and the other file system. */
	left = shell_run(NULL, 10, "pkill -CONT -f '[e]ngine-fs %s/files'", top);
	shell_free(&left);
	for (int i = 0; i < 2; i++) {
		snprintf(client, sizeof(client), "%s/c%d", top, i);
		umount2(client, MNT_DETACH);
	}
	snprintf(client, sizeof(client), "%s/other", top);
	umount2(client, MNT_DETACH);
	shell_ok(NULL, "rm -rf '%s'", top);
	*top = '\0';
}

TestSuite(check_source, .fini = end, .timeout = 200);

static const char *check(int status, const char *args)
{
	said = shell_run(top, 120, "\"$GAIA\" check-source %s", args);
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
	expect(report, "a file that one makes, the other opens", false);
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
	expect(report, "who waits for a lock gets it", false);
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

/* Somebody who may rename puts a directory of his in the place of ours, with links to what is root's. */
Test(check_source, a_directory_of_others_is_not_written_to)
{
	struct shell_result r;

	start("");
	shell_ok(top, "mkdir other && mount -t tmpfs -o mode=1777 none other && echo precious > victim && chmod 600 victim");
	/* It waits for the name to be made in c0, and has its own directory by that name in the other place. */
	r = shell_run(top, 60,
		      "setpriv --reuid 65534 --clear-groups sh -c '"
		      "cd other; mkdir -m 700 trap; for f in bytes appended counter lock0 wait; do ln -s %s/victim trap/$f; done; "
		      "until n=$(cd ../files && ls -d .gaia-check-source.*); do :; done 2> /dev/null; mv trap $n' & "
		      "\"$GAIA\" check-source c0 other; s=$?; wait; exit $s", top);
	cr_assert_eq(r.status, 1, "%s%s", r.out, r.err);
	cr_assert_not_null(strstr(r.err, "is not there"), "%s", r.err);
	shell_free(&r);
	shell_ok(top, "test \"$(cat victim)\" = precious && test \"$(ls -A other/.gaia-check-source.* | wc -l)\" = 5 && umount other");
	nothing_is_left();
}

Test(check_source, an_engine_that_does_not_answer_holds_nobody_up)
{
	struct shell_result r;

	start("");
	/* Stopped when the probes have begun; the first signal cleans up, if that is possible. */
	r = shell_run(top, 60,
		      "engine=$(pgrep -f \"engine-fs $PWD/files $PWD/c1\"); \"$GAIA\" check-source c0 c1 > report & p=$!; "
		      "until grep -q 'the other opens' report; do :; done; kill -STOP $engine; kill -TERM $p; wait $p; s=$?; kill -CONT $engine; exit $s");
	cr_assert_eq(r.status, 1, "%s%s", r.out, r.err);
	cr_assert(strstr(r.err, "does not answer") || strstr(r.err, "interrupted"), "%s", r.err);
	shell_free(&r);
}

Test(check_source, what_ends_it_leaves_nothing)
{
	struct shell_result r;

	start("");
	r = shell_run(top, 60, "\"$GAIA\" check-source c0 c1 | head -n 1");
	cr_assert_eq(r.status, 0);
	shell_free(&r);
	nothing_is_left();
	r = shell_run(top, 60, "\"$GAIA\" check-source c0 c1 > report & p=$!; until grep -q 'the other opens' report; do :; done; kill -HUP $p; wait $p");
	cr_assert_neq(r.status, 2, "%s", r.err);
	shell_free(&r);
	nothing_is_left();
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
