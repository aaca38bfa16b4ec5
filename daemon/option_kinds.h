/*
 * option_kinds.h - the table of options as the parsers use it. For options.c and command_line.c.
 */
#ifndef GAIA_OPTION_KINDS_H
#define GAIA_OPTION_KINDS_H

#include <stddef.h>

#include "options.h"

/* See option_table.h. */
struct option_kind {
	const char *name;
	char letter;
	const char *value;
	const char *help; /* the first line stands beside the name, if there is room */
	/* 0, or a negative errno, and o->why says what is wrong. */
	int (*parse)(struct options *o, const char *text);
	const char *stays;
};

#define N_OPTION_KINDS 40u /* as many rows as the table has, or more */
extern const struct option_kind option_kinds[];
extern const size_t n_option_kinds;

/* @kind's value, or NULL if it has none. 0, or -EINVAL, and o->why says why. */
int option_take_kind(struct options *o, const struct option_kind *kind, const char *text);

/* The defaults. */
void options_begin(struct options *o);

#endif
