/*
 * shell.h - commands that a test runs as a user would type them.
 */
#ifndef GAIA_TESTS_SHELL_H
#define GAIA_TESTS_SHELL_H

#include <stdbool.h>
#include <stddef.h>

struct shell_result {
	int status;	/* exit status, or 128 + signal */
	char *out;	/* standard output; NUL-terminated */
	char *err;	/* standard error */
};

/*
 * Run a command line with sh, in directory @cwd (NULL: here), without
 * standard input. Ended by SIGKILL after @seconds, status 137. $GAIAFS and $GAIA
 * are the daemon and the control tool of this build, unless they are set already.
 */
struct shell_result shell_run(const char *cwd, int seconds, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void shell_free(struct shell_result *r);

/* Assert that it succeeds; its output is the message if not. */
void shell_ok(const char *cwd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Assert that gaia with these arguments exits with @status and says nothing but one line on standard error, in which @says is (NULL: anything). */
void shell_gaia_fails(const char *cwd, int status, const char *args, const char *says);

/* Run a command whose standard error is a terminal: its exit status, and what it wrote there. */
int shell_on_terminal(const char *cwd, int seconds, const char *command, char *said, size_t room);

/* The first of these programs that is not on the PATH, or NULL. */
const char *shell_lacks(const char *const *programs);

#endif
