/*
 * top_mounts.c - gaia top and gaia stat of all mounts: whatever one of them does, the others are seen.
 *
 * Each test has a mount namespace of its own, so that there are no mounts but its own.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mountpoint.h"
#include "own_mounts.h"
#include "report.h"
#include "shell.h"

#define MOUNTS 3
#define MIB (1 << 20)
#define NOBODY 65534
#define SILENT "does not answer, for "

static struct mnt m[MOUNTS];
static bool stopped[MOUNTS];
static char extra[PATH_MAX + 8]; /* what else is mounted, or "" */

/* ---- mounts ---- */

static void start_one(unsigned i)
{
	static const char *const args[] = { "--device", "sim:8M", "--cpu-cache", "writethrough", NULL };

	cr_assert_eq(mnt_start(&m[i], &(struct mnt_options){ .args = args }), 0);
}

static void start(unsigned n)
{
	if (geteuid() != 0 || !own_mounts(NULL))
		cr_skip_test("needs root, for mounts that nobody else sees");
	for (unsigned i = 0; i < n; i++)
		start_one(i);
}

static void stop_daemon(unsigned i, int signal)
{
	cr_assert_eq(kill(m[i].daemon, signal), 0);
	stopped[i] = signal == SIGSTOP;
}

static void stop_one(unsigned i)
{
	if (stopped[i])
		kill(m[i].daemon, SIGCONT);
	stopped[i] = false;
	if (m[i].dir[0])
		mnt_stop(&m[i]);
	m[i].dir[0] = '\0';
}

/* Cached reads and stored writes, so that the mount is the busiest. */
static void work_on(const struct mnt *where)
{
	static char bytes[MIB] __attribute__((aligned(4096)));
	int fd = open(mnt_file(where, "work"), O_CREAT | O_RDWR | O_DIRECT | O_CLOEXEC, 0644);

	cr_assert_geq(fd, 0);
	cr_assert_eq(pwrite(fd, bytes, MIB, 0), MIB);
	for (int k = 0; k < 4; k++)
		cr_assert_eq(pread(fd, bytes, MIB, 0), MIB);
	close(fd);
}

/* ---- gaia top that runs ---- */

static pid_t tool; /* 0: none runs */
static int said = -1, typed = -1; /* from it, and to it */
static char text[1 << 18];	  /* what it has said and nobody has looked at */
static size_t had;

/* gaia top with these arguments, NULL-terminated; on a terminal or not. */
static void run_tool(bool on_terminal, const char *const *args)
{
	int ends[2], master = -1;

	if (on_terminal) {
		master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
		cr_assert(master >= 0 && !grantpt(master) && !unlockpt(master));
		cr_assert_eq(ioctl(master, TIOCSWINSZ, &(struct winsize){ .ws_row = 30, .ws_col = 150 }), 0);
		ends[0] = master;
		ends[1] = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	} else {
		cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
	}
	tool = fork();
	cr_assert_geq(tool, 0);
	if (tool == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(on_terminal ? ends[1] : open("/dev/null", O_RDONLY), 0);
		dup2(ends[1], 1);
		dup2(ends[1], 2);
		setenv("TERM", "xterm", 1);
		setenv("LC_ALL", "C.UTF-8", 1);
		execv(GAIA_BUILT, (char *const *)args);
		_exit(127);
	}
	close(ends[1]);
	said = ends[0];
	typed = master;
	had = 0;
	text[0] = '\0';
}

#define RUN_TOOL(on_terminal, ...) run_tool(on_terminal, (const char *const[]){ "gaia", __VA_ARGS__, NULL })

/* More of what it says; false: it has ended. */
static bool hear(void)
{
	ssize_t n;

	if (had == sizeof(text) - 1) { /* nobody needs the oldest */
		had /= 2;
		memmove(text, text + sizeof(text) - 1 - had, had);
	}
	n = read(said, text + had, sizeof(text) - 1 - had);
	had += n > 0 ? (size_t)n : 0;
	text[had] = '\0';
	return n > 0;
}

/* Until it says this; what it has said before is forgotten, and what comes after is kept. */
static void hear_until(const char *what)
{
	char *at;

	while (!(at = memmem(text, had, what, strlen(what))))
		cr_assert(hear(), "it ended, and never said \"%s\": %s", what, text);
	at += strlen(what);
	had -= (size_t)(at - text);
	memmove(text, at, had + 1);
}

/* The next round, whole. */
static const char *next_round(void)
{
	static char round[1 << 16];
	static const char begin[] = "\ngaia top - ";
	char *at;

	while (!(at = memmem(text, had, begin, strlen(begin))))
		cr_assert(hear(), "it ended: %s", text);
	snprintf(round, sizeof(round), "%.*s", (int)(at + 1 - text), text);
	had -= (size_t)(at + 1 - text);
	memmove(text, at + 1, had + 1);
	return round;
}

/* Its exit status, when it has ended. */
static int end_of_tool(void)
{
	int status;

	while (hear())
		;
	close(said);
	said = -1;
	cr_assert_eq(waitpid(tool, &status, 0), tool);
	tool = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void clean_up(void)
{
	if (tool > 0) {
		kill(tool, SIGKILL);
		waitpid(tool, NULL, 0);
	}
	if (extra[0])
		umount2(extra, MNT_FORCE | MNT_DETACH);
	for (unsigned i = 0; i < MOUNTS; i++)
		stop_one(i);
}

TestSuite(top_mounts, .fini = clean_up, .timeout = 300);

/* ---- rows ---- */

/* What follows the mount's name in the round, up to the line's end; NULL: it has no row. */
static const char *row_of(const char *round, const char *name)
{
	static char row[1024];
	size_t len = strlen(name);

	for (const char *line = round; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, name, len) && line[len] == ' ') {
			snprintf(row, sizeof(row), "%.*s", (int)strcspn(line + len, "\n"), line + len);
			return row;
		}
	}
	return NULL;
}

static bool has_numbers(const char *row)
{
	char home[16], devices[16];

	return row && sscanf(row, "%*s %*s %*s %*s %*s %*s %*s %15s %15s %*d %*d", home, devices) == 2 && strchr(home, '%') && strchr(devices, '%');
}

/* In how many rounds the mount's row has numbers: of one that has not answered in time, as on a busy machine, it has none. */
static unsigned n_with_numbers(const char *rounds, const char *name)
{
	unsigned n = 0;

	for (; (rounds = strstr(rounds, "gaia top - ")); rounds++) {
		const char *next = strstr(rounds + 1, "gaia top - ");
		char *round = strndup(rounds, next ? (size_t)(next - rounds) : strlen(rounds));

		n += has_numbers(row_of(round, name));
		free(round);
	}
	return n;
}

#define ENOUGH 3 /* of ten rounds */

/* Round after round until the mount's row has this text ("": numbers; NULL: there is no such row), and that of @besides has numbers. */
static void await_row(const char *name, const char *what, const struct mnt *besides)
{
	time_t end = time(NULL) + 120;

	for (;;) {
		const char *round = next_round(), *row = row_of(round, name);

		if ((what ? row && (!*what ? has_numbers(row) : !!strstr(row, what)) : !row) && has_numbers(row_of(round, besides->path)))
			return;
		cr_assert_lt(time(NULL), end, "never \"%s\" in the row of %s:\n%s", what ? what : "nothing", name, round);
	}
}

/* ---- tests ---- */

/* The busiest first, with what it moves. Another place of the same file system is no other mount. */
Test(top_mounts, each_mount_has_a_row)
{
	char cpu[16], reads[16], writes[16], hit[16];
	const char *round, *first = NULL, *row;
	time_t end = time(NULL) + 120;

	start(MOUNTS);
	snprintf(extra, sizeof(extra), "%s/again", m[1].dir);
	shell_ok("/", "mkdir '%s' && mount --bind '%s' '%s'", extra, m[1].path, extra);
	RUN_TOOL(false, "top", "-b", "0.2");
	do {
		work_on(&m[1]);
		round = next_round();
		cr_assert_null(row_of(round, extra), "%s", round);
		for (unsigned i = 0; i < MOUNTS; i++)
			cr_assert_not_null(row_of(round, m[i].path), "%s", round);
		first = strstr(round, "WAITS FOR\n");
		for (unsigned i = 0; i < MOUNTS; i++)
			if (!has_numbers(row_of(round, m[i].path)))
				first = NULL;
		row = row_of(round, m[1].path);
		cr_assert_lt(time(NULL), end, "%s", round);
	} while (!first || strncmp(first + 10, m[1].path, strlen(m[1].path)) != 0 || !has_numbers(row) ||
		 sscanf(row, "%15s %15s %15s %*s %*s %15s", cpu, reads, writes, hit) != 4 || !strcmp(cpu, "0") || !strcmp(writes, "0"));
	cr_assert(strchr(hit, '%'), "%s", round);
	for (unsigned i = 0; i < MOUNTS; i += 2)
		cr_assert(sscanf(row_of(round, m[i].path), "%15s %15s", cpu, writes) == 2 && !strcmp(cpu, "0"), "what one does is said of another:\n%s", round);
	shell_ok("/", "umount '%s'", extra);
	extra[0] = '\0';
	kill(tool, SIGTERM);
	cr_assert_eq(end_of_tool(), 128 + SIGTERM);
}

/* While it runs: one is stopped and goes on, dies, goes, and another one comes. */
Test(top_mounts, mounts_that_do_not_answer_or_go_are_said_to)
{
	struct mnt dead;

	start(2);
	RUN_TOOL(false, "top", "-b", "0.2");
	await_row(m[1].path, "", &m[0]);
	stop_daemon(1, SIGSTOP);
	await_row(m[1].path, SILENT, &m[0]);
	stop_daemon(1, SIGCONT);
	await_row(m[1].path, "", &m[0]);
	start_one(2);
	await_row(m[2].path, "", &m[0]);
	dead = m[1];
	stop_one(1);
	await_row(dead.path, NULL, &m[0]);
	kill(m[2].daemon, SIGKILL);
	await_row(m[2].path, "its daemon is gone", &m[0]);
	kill(tool, SIGTERM);
	cr_assert_eq(end_of_tool(), 128 + SIGTERM);
	mnt_crash(&m[2]);
}

/* Nor does it end later for that; the others are in every round. */
Test(top_mounts, a_mount_that_is_silent_from_the_start)
{
	struct shell_result r;
	unsigned rounds = 0, seen = 0;

	start(2);
	stop_daemon(1, SIGSTOP);
	r = shell_run("/", 60, "\"$GAIA\" top -b 0.2 10");
	cr_assert_eq(r.status, 0, "%d: %s", r.status, r.err);
	cr_assert_str_eq(r.err, "");
	for (char *at = r.out; (at = strstr(at, "gaia top - ")); at++, rounds++) {
		seen += has_numbers(row_of(at, m[0].path)) && strstr(at, " 2 mounts, 1 of them not to be seen, ");
		cr_assert(strstr(row_of(at, m[1].path), SILENT), "%s", at);
	}
	cr_assert(rounds == 10 && seen >= ENOUGH, "%u %u: %s", rounds, seen, r.out);
	shell_free(&r);
}

/* What asks a mount that takes the question and does not answer cannot even be killed. It holds no terminal, no pipe, nobody. */
Test(top_mounts, who_never_answers_holds_nobody_up)
{
	struct shell_result r;

	start(1);
	snprintf(extra, sizeof(extra), "%s/mute", m[0].dir);
	shell_ok("/", "mkdir '%s' && " OTHER_FS " '%s' mute", extra, extra);
	/* cat(1) ends when nobody has the pipe any more. */
	r = shell_run("/", 60, "\"$GAIA\" top -b 0.2 10 | cat");
	cr_assert_eq(r.status, 0, "%d: %s", r.status, r.err);
	cr_assert(n_with_numbers(r.out, m[0].path) >= ENOUGH && strstr(row_of(r.out, extra), SILENT), "%s", r.out);
	shell_free(&r);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which leave memory without a limit, and take more time */
/* A report can be made to take much memory, or much time to compare. */
Test(top_mounts, a_report_takes_no_more_than_its_share)
{
	static const char *const kinds[] = { "memory", "time" };

	start(1);
	snprintf(extra, sizeof(extra), "%s/liar", m[0].dir);
	shell_ok("/", "mkdir '%s'", extra);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		shell_ok("/", LIAR_FS " '%s' %s", extra, kinds[i]);
		/* Of the objects of gaia stat all that took how long is compared. Nor is all of the report read, which is nothing but zeros. */
		RUN_TOOL(false, "stat", "0.2", "1000", "--json");
		while (!strstr(text, "no report of it could be read"))
			cr_assert(hear() && !strstr(text, strerror(EAGAIN)), "%s", text);
		hear_until("\"rates\":");
		kill(tool, SIGTERM);
		cr_assert_eq(end_of_tool(), 128 + SIGTERM);
		shell_ok("/", "umount '%s'", extra);
	}
	extra[0] = '\0';
}
#endif

/* A name can hold anything. */
Test(top_mounts, names_command_no_terminal)
{
	static const char *const commands[] = { "top -b 0.2 1", "stat 0.2 1", "stat 0.2 1 --json" };
	struct shell_result r;

	start(1);
	shell_ok(m[0].dir, "evil=\"$(printf 'e\\033]0;t\\007\\233\\302\\233\\nn')\" && mkdir below \"$evil\" && \"$GAIAFS\" --device none below \"$evil\"");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		r = shell_run("/", 60, "\"$GAIA\" %s", commands[i]);
		cr_assert_eq(r.status, 0, "%s", r.err);
		cr_assert(i == 2 || strstr(r.out, "/e?]0;t????n"), "%s", r.out);
		for (const char *c = r.out; *c; c++)
			cr_assert(*c == '\n' || (*c >= ' ' && *c < 0x7f), "gaia %s: a name sends commands to the terminal", commands[i]);
		shell_free(&r);
	}
	shell_ok(m[0].dir, "\"$GAIA\" umount \"$(printf 'e\\033]0;t\\007\\233\\302\\233\\nn')\"");
}

/* The one below is still there, but its path leads to another: that one is not said to be it. */
Test(top_mounts, what_covers_a_mount_is_not_taken_for_it)
{
	struct shell_result r;

	start(2);
	/* Over the directory in which it is mounted, where a path of the same name leads to another mount's directory. */
	shell_ok("/", "mkdir '%s/mnt' && mount --bind '%s' '%s'", m[1].path, m[1].path, m[0].dir);
	r = shell_run("/", 60, "\"$GAIA\" top -b 0.2 10");
	umount2(m[0].dir, MNT_DETACH);
	cr_assert_eq(r.status, 0, "%s", r.err);
	cr_assert(strstr(row_of(r.out, m[0].path), "another mount covers it") && n_with_numbers(r.out, m[1].path) >= ENOUGH, "%s", r.out);
	shell_free(&r);
}

/* Who may not look at a mount is told so, and sees the others. */
Test(top_mounts, another_user)
{
	struct shell_result r;

	start(1);
	snprintf(extra, sizeof(extra), "%s/hidden", m[0].dir);
	shell_ok("/", "chmod 755 '%s' && mkdir '%s' && " OTHER_FS " '%s' mute", m[0].dir, extra, extra);
	r = shell_run("/", 60, "setpriv --reuid=%d --regid=%d --clear-groups \"$GAIA\" top -b 0.2 10", NOBODY, NOBODY);
	cr_assert_eq(r.status, 0, "%s", r.err);
	cr_assert(strstr(row_of(r.out, extra), "only another user may look") && n_with_numbers(r.out, m[0].path) >= ENOUGH, "%s", r.out);
	shell_free(&r);
}

/* gaia stat has a line of each in each interval; as JSON, objects that name it. */
Test(top_mounts, stat_of_all)
{
	unsigned lines = 0, seen = 0, silent = 0;
	struct shell_result r;
	char *rest;

	start(2);
	stop_daemon(1, SIGSTOP);
	r = shell_run("/", 60, "\"$GAIA\" stat 0.2 10 --json");
	cr_assert_eq(r.status, 0, "%s", r.err);
	for (char *line = strtok_r(r.out, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		json_t *row = json_loads(line, 0, NULL);
		const char *name = json_string_value(json_object_get(row, "mount")), *error = json_string_value(json_object_get(row, "error"));

		cr_assert_not_null(name, "%s", line);
		lines += !strcmp(name, m[0].path);
		if (!strcmp(name, m[0].path) && json_object_get(json_object_get(row, "rates"), "home_hits"))
			seen++;
		if (!strcmp(name, m[1].path) && error && strstr(error, SILENT))
			silent++;
		json_decref(row);
	}
	cr_assert(lines == 10 && seen >= ENOUGH && silent == 10, "%u %u %u", lines, seen, silent);
	shell_free(&r);
	r = shell_run("/", 60, "\"$GAIA\" stat 0.2 2");
	cr_assert(r.status == 0 && strstr(r.out, "  mount\n") && !strstr(strstr(r.out, "  mount\n") + 1, "  mount\n"), "%s", r.out);
	cr_assert(strstr(r.out, m[1].path) && strstr(r.out, ": " SILENT), "%s", r.out);
	shell_free(&r);
	stop_daemon(1, SIGCONT);
	stop_one(0);
	stop_one(1);
	shell_ok("/", "\"$GAIA\" top -b 0.1 1 | grep -q ' 0 mounts, '");
	shell_gaia_fails("/", 2, "top -b 0", "interval");
	shell_gaia_fails("/", 2, "stat 1 2 3", "interval");
}

/* ---- on a screen ---- */

static void type(const char *keys)
{
	cr_assert_eq(write(typed, keys, strlen(keys)), (ssize_t)strlen(keys));
}

static void start_screen(unsigned n)
{
	struct shell_result r = shell_run("/", 60, "\"$GAIA\" top 2>&1");
	bool none = strstr(r.out, "built without ncurses");

	shell_free(&r);
	if (none)
		cr_skip_test("gaia was built without ncurses");
	start(n);
	RUN_TOOL(true, "top", "0.2");
	hear_until("WAITS FOR");
}

#define ENTER "\r"
#define LEFT "\033OD"
#define DOWN "\033OB"

/* Its screen, whose head names it. */
static void hear_until_opened(const struct mnt *which)
{
	char head[PATH_MAX + 16];

	snprintf(head, sizeof(head), "%s, daemon", which->path);
	hear_until(head);
	hear_until("TAKEN");
}

/* The one that is marked is opened, and the table is there again after it; then the mark is where it was. */
Test(top_mounts, a_mount_is_opened_and_left)
{
	start_screen(2);
	/* They are in the order of their names. */
	if (strcmp(m[0].path, m[1].path) > 0) {
		struct mnt first = m[1];

		m[1] = m[0];
		m[0] = first;
	}
	type(ENTER);
	hear_until_opened(&m[0]);
	type(LEFT);
	hear_until("WAITS FOR");
	type(DOWN ENTER);
	hear_until_opened(&m[1]);
	type(LEFT);
	hear_until("WAITS FOR");
	type(ENTER);
	hear_until_opened(&m[1]);
	type("q");
	cr_assert_eq(end_of_tool(), 0, "%s", text);
	cr_assert_null(strstr(text, "gaia: "), "%s", text);
}

/* It is stopped while its screen is shown: keys work all the same. It goes: the table is there again. */
Test(top_mounts, an_opened_mount_is_silent_or_goes)
{
	start_screen(1);
	type(ENTER);
	hear_until("TAKEN");
	stop_daemon(0, SIGSTOP);
	hear_until("answer");
	type(LEFT);
	hear_until("WAITS FOR");
	type(ENTER);
	hear_until("leads back");
	stop_daemon(0, SIGCONT);
	hear_until("TAKEN");
	stop_one(0);
	hear_until("0 mounts");
	type("q");
	cr_assert_eq(end_of_tool(), 0, "%s", text);
}
