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
 * standard input. Ended by SIGKILL after @seconds, status 137.
 */
struct shell_result shell_run(const char *cwd, int seconds, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void shell_free(struct shell_result *r);

/* Assert that it succeeds; its output is the message if not. */
void shell_ok(const char *cwd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Whether a program is on the PATH. */
bool shell_has(const char *program);

#endif
