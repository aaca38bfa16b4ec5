/*
 * top.h - what the parts of gaia top share. One thread.
 */
#ifndef GAIA_TOOL_TOP_H
#define GAIA_TOOL_TOP_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

struct rounds;

/* Two reports, and the files of both if the daemon tells us, else NULL. */
struct round {
	const json_t *before, *after;
	const json_t *use_before, *use;
	double seconds; /* between them */
	const char *name; /* of the mount; NULL: as the daemon says */
};

/* ---- top.c: one mount ---- */

void put_screen(FILE *out, const struct round *r);
/* The files of the mount at @path, to be let go, or NULL. *@may: whether they may be told; at first true. */
json_t *fetch_use(const char *path, bool *may);

/* ---- top_mounts.c: all mounts ---- */

/* The exit status. */
int top_mounts(const struct rounds *rounds, bool batch);

/* ---- who.c: tables; users other than root and the daemon's are told of themselves only ---- */

/* The busiest first. */
void put_clients(FILE *out, const struct round *r);
void put_users(FILE *out, const struct round *r);
/* Those that take the most memory first; those for which most is moved. */
void put_files(FILE *out, const struct round *r);
void put_moving_files(FILE *out, const struct round *r);

/* How many clients are told of, but for this command. */
size_t count_clients(const struct round *r);
/* How many of their calls wait at the moment, and what for they waited most; to @out. */
double put_all_waits(FILE *out, const struct round *r);

#endif
