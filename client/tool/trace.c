/*
 * trace.c - gaia trace: accesses to the mount's files, as they come.
 *
 * The daemon records while it is asked for what it has recorded, and stops by itself when that ends. So nothing is left behind,
 * however this ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../report.h"
#include "../wire.h"
#include "tool.h"

#define ASK_NS 50000000l
#define MOST_FAILURES 20u /* to be asked: while the daemon is busy */

static volatile sig_atomic_t ended;

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

/* "# dropped N", which is only worth a line if it is not 0. Returns what follows it. */
static const char *after_dropped(const char *text, uint64_t *n)
{
	const char *line = strchr(text, '\n');

	*n = 0;
	if (!line || sscanf(text, "# dropped %" SCNu64, n) != 1)
		return NULL;
	return line + 1;
}

/* Print what has come: false if it is no trace. */
static bool print(const char *text, uint64_t *accesses, uint64_t *dropped)
{
	const char *lines = after_dropped(text, dropped);

	if (!lines)
		return false;
	if (*dropped)
		printf("# dropped %" PRIu64 "\n", *dropped);
	/* The mount's server may be anybody's: nothing but text gets to the terminal. */
	for (const char *c = lines; *c; c++)
		putchar(*c == '\n' || (*c >= ' ' && *c <= '~') ? *c : '?');
	for (*accesses = 0; (lines = strchr(lines, '\n')); lines++)
		++*accesses;
	return true;
}

static int64_t seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

static int trace_fd(const char *path, int fd, uint32_t seconds)
{
	uint64_t accesses, dropped, all = 0, lost = 0;
	int64_t until = seconds_now() + seconds;
	unsigned failures = 0;
	bool last = false;
	char *text;
	int err;

	/* Once more after the end, for what came since it was asked last. */
	for (bool first = true; !last; first = false) {
		last = ended || (seconds && seconds_now() >= until);
		err = fetch_report(fd, GAIA_REPORT_TRACE, &text);
		if (err == -EBUSY)
			return fail("%s: another process traces this mount", path);
		if (err == -EPERM)
			return fail("%s: only root, and the user whose daemon it is, may trace a mount", path);
		if (err && (first || ++failures > MOST_FAILURES))
			return fail_on(path, err);
		if (!err) {
			failures = 0;
			if (first)
				puts("# gaiafs trace 1\n# time_us op file page pages hits");
			if (!print(text, &accesses, &dropped))
				return fail("%s: the daemon's report is no trace", path);
			all += accesses;
			lost += dropped;
			free(text);
		}
		if (fflush(stdout) || ferror(stdout))
			return fail("standard output: %s", strerror(errno));
		if (!last)
			nanosleep(&(struct timespec){ .tv_nsec = ASK_NS }, NULL);
	}
	fprintf(stderr, "gaia: %" PRIu64 " accesses, and %" PRIu64 " dropped\n", all, lost);
	return err ? fail("%s: the last accesses could not be had: %s", path, strerror(-err)) : EXIT_OK;
}

int trace_command(const char *path, uint32_t seconds)
{
	struct sigaction action = { .sa_handler = end };
	int fd, status;

	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return fail_on(path, -errno);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	/* Whoever reads the trace has gone: fflush() says so. */
	signal(SIGPIPE, SIG_IGN);
	status = trace_fd(path, fd, seconds);
	close(fd);
	return status;
}
