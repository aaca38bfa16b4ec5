/*
 * source.h - what source.c and source_probes.c share: probes of a file system, by two of its clients.
 */
#ifndef GAIA_TOOL_SOURCE_H
#define GAIA_TOOL_SOURCE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

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

/* Since some moment, in seconds. */
double clock_now(void);
void rest(unsigned ms);
/* Unlink what the probes have made, by the first client. */
void probes_clean_up(void);

#endif
