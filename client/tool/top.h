/*
 * top.h - what the parts of gaia top share. One thread.
 */
#ifndef GAIA_TOOL_TOP_H
#define GAIA_TOOL_TOP_H

#include <jansson.h>
#include <stdio.h>

/* Two reports, and the files of both if the daemon tells us, else NULL. */
struct round {
	const json_t *before, *after;
	const json_t *use_before, *use;
	double seconds; /* between them */
};

/* ---- who.c: tables; users other than root and the daemon's are told of themselves only ---- */

/* The busiest first. */
void put_clients(FILE *out, const struct round *r);
void put_users(FILE *out, const struct round *r);
/* Those that take the most memory first; those for which most is moved. */
void put_files(FILE *out, const struct round *r);
void put_moving_files(FILE *out, const struct round *r);

#endif
