/*
 * work.h - what gaia pin, unpin, warm, flush, evict and residency do: a list of files, how far it is, what is said of it.
 *
 * One thread. work_end() frees everything; nothing here exits.
 */
#ifndef GAIA_TOOL_WORK_H
#define GAIA_TOOL_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct args;

struct item {
	char *path;
	int dir;	/* the directory that it lies below; -1: it was named itself */
	size_t name;	/* where in its path the part below that begins */
	uint64_t size;	/* bytes, when it was looked at */
	uint64_t done;	/* bytes that are where they should be */
	char *error;	/* NULL: none */
};

struct work {
	const struct args *a;
	const char *verb;
	uint32_t device; /* or GAIA_FROM_HOME */
	char memory[64]; /* "device 0 (sim0)", "home" */
	struct item *at;
	size_t n, room;
	int *dirs;
	size_t n_dirs;
	uint64_t all, done; /* bytes */
	double began, shown;
	bool terminal, line; /* standard error is one; a line of progress is on it */
	bool failed;
	/* warm: */
	uint64_t left;	/* bytes of the device that it may still take: what was free or in no use at first, or it would drop what it has brought */
	bool looked;	/* that is known */
	bool full;	/* something did not fit */
};

double seconds(void);
/* A file named, or all regular files in a directory named, in the order of their names. Says what is wrong with it. */
void add_path(struct work *w, char *path);
/* A descriptor of the file for reading, or a negative errno. */
int open_item(const struct item *it);
/* So many bytes more are done: shows the progress on a terminal. */
void item_done(struct work *w, struct item *it, uint64_t bytes);
/* Says so in a line on standard error. */
void item_failed(struct work *w, struct item *it, const char *text);
/* Takes the line of the progress away. */
void progress_clear(struct work *w);
/* From now on fail() takes it away, too, before it says something. NULL: there is none any more. */
void progress_is_of(struct work *w);
void progress_clear_any(void);
/* On standard output. @are: what whole files are, before the name of the memory. */
void print_json(const struct work *w, double taken);
void print_summary(const struct work *w, const char *are);
void work_end(struct work *w);

#endif
