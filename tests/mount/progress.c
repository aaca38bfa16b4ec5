/*
 * progress.c - what gaia flush, evict and set --wait show on a terminal of how far they are, and what elsewhere. Of gaia pin and warm: pins.c;
 * of gaia umount: storing.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor.h"
#include "report.h"
#include "shell.h"
#include "ways.h"

#define MIB (1024 * 1024)
#define SIZE (5 * MIB)
#define RW (PROT_READ | PROT_WRITE)
#define FILES 3

/* Sets the title of a terminal, clears it, begins a line, and (as one character of two bytes) a command. */
#define NASTY "n\033]0;x\a\033[2J\r\n\xc2\x9bm"
#define HARMLESS "n?]0;x??[2J????m"

static const char *const names[FILES] = { "a", NASTY, "c" };
static const char all_names[] = "a n*m c";

/* So that the kernel does not forget them when others drop its caches: what is forgotten is fetched and stored. */
static int known[FILES] = { -1, -1, -1 };

static void let_go(void)
{
	for (int i = 0; i < FILES; i++)
		if (known[i] >= 0)
			close(known[i]);
}

/* The way of caching makes no difference. */
#define ONCE(name)                                                                                             \
	static void name(void);                                                                                \
	Test(progress, name, .init = way_bare_writeback, .fini = way_clean_up, .timeout = WAY_SECONDS) \
	{                                                                                                      \
		name();                                                                                        \
		let_go();                                                                                      \
		way_end();                                                                                     \
	}                                                                                                      \
	static void name(void)

/* Each copy takes longer than a line stays. */
static const char *const slow[] = { "--device", "sim:64M,latency=300000", "--device", "sim:16M", "--home", "64M", "--writeback-age", "3600",
				    "--device-age", "3600", NULL };

/* What a device has released of each file, and nobody has fetched. */
static void release_all(char byte)
{
	for (int i = 0; i < FILES; i++) {
		int fd = openat(both_root[ON_MOUNT], names[i], O_CREAT | O_RDWR, 0644);
		struct actor *a;

		cr_assert(fd >= 0 && ftruncate(fd, SIZE) == 0);
		close(fd);
		if (known[i] < 0)
			known[i] = openat(both_root[ON_MOUNT], names[i], O_PATH | O_CLOEXEC);
		cr_assert(known[i] >= 0);
		a = actor_start(names[i], SIZE, 0);
		actor_ok(a, ACQUIRE, 0, SIZE, RW);
		actor_ok(a, STORE, 0, SIZE, byte);
		actor_ok(a, RELEASE, 0, SIZE, 0);
		actor_end(a);
	}
}

/* Nothing but text, and what takes a line away or begins it anew. */
static void is_harmless(const char *said)
{
	for (const char *at = said; *at; at++)
		cr_assert((unsigned char)*at >= ' ' || *at == '\r' || *at == '\n' || !strncmp(at, "\033[K", 3), "byte %d in \"%s\"", *at, said);
	cr_assert_not(strstr(said, "\xc2\x9b"), "%s", said);
}

/* ---- gaia flush, gaia evict ---- */

/* One line in the place of the other, up to all @mib MiB; what is left in the end is nothing. The number of lines. */
static int steps_to(const char *said, const char *verb, double mib)
{
	double done = 0, before = 0, all, rate;
	char line[32], end[8];
	unsigned left = 1;
	int lines = 0;

	snprintf(line, sizeof(line), "\r%s: ", verb);
	for (const char *at = said; (at = strstr(at, line)); at += strlen(line), lines++) {
		cr_assert_eq(sscanf(at + strlen(line), "%lf MiB of %lf MiB, %lf %*[KM]iB/s, %u s left%7[^\r]", &done, &all, &rate, &left, end), 5, "%s", at);
		cr_assert_str_eq(end, "\033[K");
		cr_assert(done > before && done <= all && all == SIZE / MIB * FILES && rate > 0, "%s", said);
		before = done;
	}
	cr_assert(done == mib && (left == 0 || mib < all), "not up to %g MiB: %s", mib, said);
	cr_assert_str_eq(strrchr(said, '\r'), "\r\033[K", "the last line stays: %s", said);
	return lines;
}

static void shows(const char *verb)
{
	char said[8192], command[64];

	snprintf(command, sizeof(command), "\"$GAIA\" %s %s > out", verb, all_names);
	cr_assert_eq(shell_on_terminal(mnt.path, WAY_SECONDS - 20, command, said, sizeof(said)), 0, "%s: %s", command, said);
	cr_assert_eq(steps_to(said, verb, SIZE / MIB * FILES), FILES, "%s", said);
	cr_assert_not(strchr(said, '\n'), "%s", said);
	is_harmless(said);
	shell_ok(mnt.path, "grep -q '^3 files, 15 MiB: ' out && rm out");
}

ONCE(flush_and_evict_show_on_a_terminal_how_far_they_are)
{
	static char bytes[SIZE];

	way_start(slow);
	release_all('1');
	shows("flush");
	backing_holds("a", memset(bytes, '1', SIZE), SIZE);
	release_all('2');
	shows("evict");
	backing_holds("a", memset(bytes, '2', SIZE), SIZE);
}

ONCE(elsewhere_they_say_only_what_came_of_it)
{
	way_start(slow);
	release_all('1');
	shell_ok(mnt.path, "\"$GAIA\" flush %s > out 2> err && test ! -s err && test $(wc -l < out) = 1", all_names);
	release_all('2');
	shell_ok(mnt.path, "\"$GAIA\" evict %s > out 2> err && test ! -s err && test $(wc -l < out) = 1", all_names);
}

/* What fails is said in a line of its own, for which the other one makes way, and the rest is done. */
ONCE(a_file_that_fails_takes_the_line_away_and_its_name_is_harmless)
{
	struct actor *holder;
	char said[8192], *at;

	way_start(slow);
	release_all('1');
	holder = actor_start(NASTY, SIZE, 0);
	actor_ok(holder, ACQUIRE, 0, SIZE, RW);
	cr_assert_eq(shell_on_terminal(mnt.path, WAY_SECONDS - 20, "\"$GAIA\" evict a n*m c", said, sizeof(said)), 1, "%s", said);
	cr_assert_eq(steps_to(said, "evict", SIZE / MIB * (FILES - 1)), FILES - 1, "%s", said);
	at = strstr(said, "\r\033[Kgaia: " HARMLESS ": in use in device 0: ");
	cr_assert(at && strchr(said, '\n') > at && strstr(at, "\nevict: ") == NULL, "%s", said);
	is_harmless(said);
	actor_end(holder);
}

/* ---- gaia set --wait ---- */

struct command {
	pid_t pid;
	int from; /* its standard error: the terminal's other end, or a pipe's */
	char said[16384];
	size_t had;
};

/* In the mount, with its standard error on a terminal or in a pipe. */
static void begin_command(struct command *c, bool terminal, const char *line)
{
	struct shell_result gaia = shell_run(NULL, 60, "printf %%s \"$GAIA\"");
	int ends[2];

	*c = (struct command){ .had = 0 };
	if (terminal) {
		ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
		cr_assert(ends[0] >= 0 && !grantpt(ends[0]) && !unlockpt(ends[0]), "posix_openpt: %s", strerror(errno));
		ends[1] = open(ptsname(ends[0]), O_WRONLY | O_NOCTTY | O_CLOEXEC);
	} else {
		cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
	}
	fflush(NULL);
	c->pid = fork();
	if (c->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (fchdir(both_root[ON_MOUNT]) || dup2(ends[1], STDERR_FILENO) < 0)
			_exit(126);
		setenv("GAIA", gaia.out, 1);
		execl("/bin/sh", "sh", "-c", line, NULL);
		_exit(127);
	}
	cr_assert_gt(c->pid, 0);
	shell_free(&gaia);
	close(ends[1]);
	c->from = ends[0];
}

/* False: it has ended. (Then reading from a terminal fails.) */
static bool hear(struct command *c)
{
	ssize_t n = read(c->from, c->said + c->had, sizeof(c->said) - 1 - c->had);

	c->had += n > 0 ? (size_t)n : 0;
	c->said[c->had] = '\0';
	return n > 0;
}

static void hear_until(struct command *c, const char *text)
{
	while (!strstr(c->said, text))
		cr_assert(hear(c), "it ends without \"%s\": %s", text, c->said);
}

static int end_command(struct command *c)
{
	int status;

	while (hear(c))
		;
	close(c->from);
	cr_assert_eq(waitpid(c->pid, &status, 0), c->pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* It holds 2 of the device's 2 MiB. */
static struct actor *hold_on(int device, const char *name)
{
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);
	struct actor *a;

	cr_assert(fd >= 0 && ftruncate(fd, 2 * MIB) == 0);
	close(fd);
	a = actor_start(name, 2 * MIB, device);
	actor_ok(a, ACQUIRE, 0, 2 * MIB, RW);
	actor_ok(a, STORE, 0, 2 * MIB, 's');
	return a;
}

#define STILL(mib, held) " " #mib " MiB are still there, and programs hold " #held " of them"

ONCE(a_device_that_is_drained_shows_on_a_terminal_what_is_still_there)
{
	struct actor *a;
	struct command c;
	char last[64];
	int lines = 0;

	way_start(slow);
	a = hold_on(1, "f");
	begin_command(&c, true, "mkdir \"$(printf 'n\\033]0;x\\a')\" && \"$GAIA\" set --wait n* device.sim1=off");
	/* More than one. */
	hear_until(&c, "\rgaia: n?]0;x?:" STILL(2, 2) "\033[K\rgaia: ");
	actor_ok(a, RELEASE, 0, 2 * MIB, 0);
	actor_end(a);
	cr_assert_eq(end_command(&c), 0, "%s", c.said);
	is_harmless(c.said);
	/* What the daemon says is a line that stays. */
	cr_assert(!strncmp(c.said, "gaia: n?]0;x?: device.1: ", 25) && strstr(c.said, "\n\r"), "%s", c.said);
	for (const char *at = strstr(c.said, "\n\r") + 1; *at == '\r' && sscanf(at, "\rgaia: n?]0;x?: %*u MiB are still there, and programs hold %*u of them%63[^\r]", last) == 1; lines++) {
		cr_assert_str_eq(last, "\033[K", "%s", at);
		at = strchr(at + 1, '\r');
		cr_assert(at, "%s", c.said);
	}
	cr_assert_geq(lines, 2, "%s", c.said);
	cr_assert_str_eq(strrchr(c.said, '\r'), "\r\033[K", "the last line stays: %s", c.said);
	cr_assert_eq(strrchr(c.said, '\n') + 1, strstr(c.said, "\n\r") + 1, "%s", c.said);
	cr_assert_eq(STATUS("devices", "1", "used"), 0);
	shell_ok(mnt.path, "test \"$(head -c 1 f)\" = s");
}

/* In a log, in one line, however long it takes. */
ONCE(elsewhere_it_says_once_what_is_still_there)
{
	struct actor *a;
	struct command c;
	char *at;

	way_start(slow);
	a = hold_on(1, "f");
	begin_command(&c, false, "\"$GAIA\" set --wait . device.sim1=off");
	hear_until(&c, "still there");
	actor_ok(a, RELEASE, 0, 2 * MIB, 0);
	actor_end(a);
	cr_assert_eq(end_command(&c), 0, "%s", c.said);
	at = strstr(c.said, "gaia: .:" STILL(2, 2) "\n");
	cr_assert(at && strchr(at, '\n')[1] == '\0' && !strchr(c.said, '\r') && !strchr(c.said, '\033'), "%s", c.said);
}

/* And if it ends otherwise, the line makes way for what is said of that. */
ONCE(a_device_that_is_wanted_again_is_said_in_a_line_of_its_own)
{
	struct actor *a;
	struct command c;
	char *at;

	way_start(slow);
	a = hold_on(1, "f");
	begin_command(&c, true, "\"$GAIA\" set --wait . device.sim1=off");
	hear_until(&c, STILL(2, 2));
	shell_ok(mnt.path, "\"$GAIA\" set . device.sim1=8M");
	cr_assert_eq(end_command(&c), 1, "%s", c.said);
	at = strstr(c.said, "\r\033[Kgaia: .: somebody has given device sim1 a size again\r\n");
	cr_assert(at && strchr(at, '\n')[1] == '\0', "%s", c.said);
	actor_end(a);
}
