/*
 * source.h - what source.c and source_probes.c share: probes of a file system, by two of its clients.
 */
#ifndef GAIA_TOOL_SOURCE_H
#define GAIA_TOOL_SOURCE_H

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define SIDES 2
#define TURNS 20u
#define LOOK_FOR 3.0 /* seconds, at what is wrong */

struct result {
	unsigned turns, wrong;
	double longest; /* seconds until it was right; LOOK_FOR or more: it was not */
	int err;	/* a call that must not fail has failed so: a negative errno */
	unsigned grain; /* milliseconds; of times only */
};

struct probe {
	const char *name, *what, *setting; /* the last: what to look at in the settings where it is wrong */
	void (*run)(struct result *r);
};
#define LOCKS "its locks: they hold on one machine only, or are not there"

extern const struct probe probes[];
extern const size_t n_probes;

extern int side[SIDES]; /* the probes' directory, by each client */
extern volatile sig_atomic_t interrupted; /* they end early, and mean nothing */

/* Whether the second client's directory is the first one's: it must find there what the first has written. */
bool probes_begin(const char *secret);
/* Unlink what the probes have made. */
void probes_clean_up(void);

/* ---- source_files.c ---- */

/* Since some moment, in seconds. */
double clock_now(void);
void rest(unsigned ms);

/* Errors are negative errnos. Whether it is one; the first is noted. */
bool failed(struct result *r, int err);

#define BYTES 8192u
#define MAKE (O_CREAT | O_EXCL)

/* A descriptor of a regular file that has one name. */
int open_file(int by, const char *name, int flags);
/* Of a call that moves bytes: 0 if it was all of them. */
int moved(ssize_t done, size_t n);
int close_file(int fd);
/* The bytes of turn @turn. */
const char *bytes_of(unsigned turn, char out[BYTES]);
/* Have the file be @n of these, from open to close. @flags: 0 or MAKE. */
int put(int by, const char *name, int flags, unsigned turn, size_t n);
/* Whether the client that opens it reads just these bytes, and is told that it is so long. */
bool reads(int by, const char *name, unsigned turn, size_t n);

struct look {
	int by;
	const char *name;
	unsigned turn;
	size_t n;
};
bool is_read(const struct look *l);
bool is_gone(const struct look *l);
/* Look once, and count that; what is wrong is looked at until it is right. Whether the probe goes on. */
bool look(struct result *r, bool (*right)(const struct look *), struct look l);
/* What is counted without looking for longer. Whether the probe goes on. */
bool count(struct result *r, bool right);

/* A child that does @does(arg), whose result (0 to 255) it ends with; or an error. It does not outlive us, and signals end it. */
pid_t child(int (*does)(void *), void *arg);
/* Wait @seconds for it, and end it after that: what it ended with, or an error: -ETIME if it had to be ended, -EINTR if a signal did. */
int end_child(pid_t pid, double seconds);

#endif
