/*
 * ask.h - ask all mounts of gaiafs, again and again, such that none of them can hold us up: for gaia top and gaia stat.
 *
 * Who serves a mount may be stopped, broken or hostile. Calls there may not return, and a process in such a call may not even be
 * killed. So for each mount there is a child, which asks it, and makes text of the last two reports; for what it says we wait as long as
 * we like. One that has to be left behind when we end has nothing of ours open, not even the terminal, and is left once for a mount.
 *
 * One thread, which has no other children.
 */
#ifndef GAIA_TOOL_ASK_H
#define GAIA_TOOL_ASK_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "mounts.h"
#include "top.h"

#define SILENCE_S 2.0 /* who has not answered for so long is said to be silent */

/* What text is made of a mount. */
enum { ASK_ROW, ASK_SCREEN, ASKS };

/* A mount. */
struct ask {
	struct mount_entry mount;
	pid_t child;  /* 0: it has been waited for */
	int sock;     /* to the child; -1: there is none */
	double asked; /* clock_seconds() when it was asked what it has not answered yet; else 0 */
	double ended; /* when the child has ended by itself */
	int err;      /* of its last answer, a negative errno, or ASK_NEW */
	double weight;
	char *text[ASKS]; /* the last of each; NULL: there was none */
};
#define ASK_NEW 1 /* there is nothing to compare with yet */

struct asks {
	/* In a child: the text, and the weight of the mount among others. @path: of the mount, to be used at once. */
	double (*make)(FILE *out, const struct round *r, unsigned what, const char *path);
	struct ask **at;
	size_t n, more; /* @more mounts are not asked, as there are so many */
	size_t left;	/* children of mounts that have gone, which have not ended */
};

/* What is mounted now: what has gone goes, too. */
void asks_refresh(struct asks *a);
/* Ask each for its row, but @opened, if not NULL, for its screen. Those that have not answered yet are not asked again. */
void asks_send(struct asks *a, const struct ask *opened);
/* Until all that are not silent have answered, at most until @until, or until something can be read from @keys (-1: nothing). */
void asks_wait(struct asks *a, double until, int keys);
void asks_end(struct asks *a);

/* Why there is no text of that kind; NULL: there is. *@wrong: nor will there be. @room may hold what is returned. */
const char *ask_trouble(const struct ask *one, unsigned what, char room[64], bool *wrong);

/* Round after round, as struct rounds has them, for all mounts. */
struct asks_rounds {
	double interval, count;
	int keys;
	bool (*wait)(double until, void *arg);
	/* Which one is asked for its screen, or NULL. */
	const struct ask *(*opened)(void *arg);
	int (*show)(double n, void *arg);
	void *arg;
};
/* The exit status. */
int asks_run(struct asks *a, const struct asks_rounds *r);

#endif
