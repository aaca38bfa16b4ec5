/*
 * sections.h - a measuring program: sections, each of which is run by a process of its own.
 *
 *	PROGRAM [--beside] --list			NAME SECONDS, a line a section, in order of worth
 *	PROGRAM [--quick] [--beside] SECTION [ARGUMENT]	rows on standard output (rows.h)
 *
 * With --beside another process uses the GPU at the same time (neighbour.h); there are fewer sections.
 *
 * Exit status: 0 done; 77 does not apply here; else failed. In both cases the last line on standard
 * error says why. The caller kills a section that takes longer than SECONDS: no watchdog is needed here for
 * a call of the driver that hangs.
 */
#ifndef GAIA_TESTS_GPU_SECTIONS_H
#define GAIA_TESTS_GPU_SECTIONS_H

#include <stdbool.h>

/* Few repetitions, and small: to see that it works. */
extern bool quick;
extern bool beside;
/* What followed the section's name; NULL. */
extern const char *argument;

struct section {
	const char *name;
	unsigned seconds; /* its limit, on a machine with a GPU */
	unsigned beside;  /* the same with --beside; 0: there it is left out */
	void (*run)(void);
};

/* @table ends with a section without a name. */
int sections_main(const char *program, const struct section *table, int argc, char **argv);

/* Ends a section whose rows are out, without giving back what it has: run() need not return. */
void section_done(void) __attribute__((noreturn));

/* One line on standard error, and exit 1. */
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* One line on standard error, and exit 77: the section does not apply here. */
void does_not_apply(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/*
 * Another process, forked before CUDA is used, since a driver does not survive a fork(). It dies with us;
 * and where it fails, so do we: it has said why.
 */
struct other {
	int pid, sock; /* a stream */
};
struct other other_start(void (*run)(int sock));
void other_end(struct other *o);

/* Whole messages. At the end of the stream: in the other process it exits; in ours we fail. */
void tell(int sock, const void *message, unsigned bytes);
void hear(int sock, void *message, unsigned bytes);

/* Descriptors, at most 64 at once. */
void tell_fds(int sock, const int *fd, unsigned n);
void hear_fds(int sock, int *fd, unsigned n);

#endif
