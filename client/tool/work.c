/*
 * work.c - see work.h.
 */
#include "work.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tool.h"

#define SHOW_EVERY 0.2 /* seconds */

double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- progress ---- */

void progress_clear(struct work *w)
{
	if (w->line)
		fputs("\r\033[K", stderr);
	w->line = false;
}

static struct work *in_progress;

void progress_is_of(struct work *w)
{
	in_progress = w;
}

void progress_clear_any(void)
{
	if (in_progress)
		progress_clear(in_progress);
}

static void progress_show(struct work *w)
{
	double now = seconds(), taken = now - w->began, rate = taken > 0 ? (double)w->done / taken : 0;
	char done[32], all[32], each[32], left[32] = "";

	if (!w->terminal || w->all == 0 || now - w->shown < SHOW_EVERY)
		return;
	w->shown = now;
	format_bytes(done, sizeof(done), (json_int_t)w->done);
	format_bytes(all, sizeof(all), (json_int_t)w->all);
	format_bytes(each, sizeof(each), (json_int_t)rate);
	if (rate >= 1)
		snprintf(left, sizeof(left), ", %.0f s left", (double)(w->all - w->done) / rate + 0.5);
	fprintf(stderr, "\r%s: %s of %s, %s/s%s\033[K", w->verb, done, all, each, left);
	w->line = true;
}

void item_done(struct work *w, struct item *it, uint64_t bytes)
{
	/* The file may have grown. */
	bytes = bytes < it->size - it->done ? bytes : it->size - it->done;
	it->done += bytes;
	w->done += bytes;
	progress_show(w);
}

void item_failed(struct work *w, struct item *it, const char *text)
{
	progress_clear(w);
	fail("%s: %s", it->path, text);
	it->error = strdup(text);
	w->failed = true;
}

/* ---- the list of files ---- */

static bool add_item(struct work *w, const char *path, int dir, size_t name, uint64_t size)
{
	struct item *more;
	char *copy = strdup(path);

	if (copy && w->n == w->room) {
		w->room = w->room ? 2 * w->room : 64;
		more = realloc(w->at, w->room * sizeof(*more));
		if (more)
			w->at = more;
		else
			goto fail;
	}
	if (!copy)
		goto fail;
	w->at[w->n++] = (struct item){ .path = copy, .dir = dir, .name = name, .size = size };
	w->all += size;
	return true;

fail:
	free(copy);
	w->failed = true;
	fail("%s", strerror(ENOMEM));
	return false;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* All regular files in a directory, in the order of their names; not on what is mounted below. */
static void add_below(struct work *w, char *path)
{
	char *roots[] = { path, NULL };
	int dir = open_ours(path, O_DIRECTORY);
	FTSENT *e;
	FTS *fts;

	if (dir < 0) {
		fail_on(path, dir);
		w->failed = true;
		return;
	}
	w->dirs[w->n_dirs++] = dir;
	fts = fts_open(roots, FTS_PHYSICAL | FTS_XDEV | FTS_NOCHDIR, by_name);
	while (fts && (e = fts_read(fts))) {
		if (e->fts_info == FTS_F && !add_item(w, e->fts_path, dir, strlen(path), (uint64_t)e->fts_statp->st_size))
			break;
		if (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR || e->fts_info == FTS_NS) {
			fail("%s: %s", e->fts_path, strerror(e->fts_errno));
			w->failed = true;
		}
	}
	if (fts)
		fts_close(fts);
}

void add_path(struct work *w, char *path)
{
	struct stat st;

	if (stat(path, &st)) {
		fail_on(path, -errno);
		w->failed = true;
	} else if (S_ISDIR(st.st_mode)) {
		add_below(w, path);
	} else if (S_ISREG(st.st_mode)) {
		add_item(w, path, -1, 0, (uint64_t)st.st_size);
	} else {
		fail("%s: neither a regular file nor a directory", path);
		w->failed = true;
	}
}

/* A descriptor, or a negative errno. */
int open_item(const struct item *it)
{
	return it->dir < 0 ? open_ours(it->path, 0) : open_beneath(it->dir, it->path + it->name);
}

void work_end(struct work *w)
{
	for (size_t i = 0; i < w->n; i++) {
		free(w->at[i].path);
		free(w->at[i].error);
	}
	for (size_t i = 0; i < w->n_dirs; i++)
		close(w->dirs[i]);
	free(w->at);
	free(w->dirs);
}

/* ---- what came of it ---- */

void print_json(const struct work *w, double taken)
{
	json_t *files = json_array(), *all;
	size_t whole = 0;

	for (size_t i = 0; i < w->n; i++) {
		const struct item *it = &w->at[i];
		json_t *row = json_pack("{s:s, s:I, s:I}", "path", it->path, "bytes", (json_int_t)it->size, "done_bytes", (json_int_t)it->done);

		/* NULL: a path that is not UTF-8. */
		if (!row)
			row = json_pack("{s:n, s:I, s:I}", "path", "bytes", (json_int_t)it->size, "done_bytes", (json_int_t)it->done);
		if (it->error)
			json_object_set_new(row, "error", json_string(it->error));
		whole += !it->error && it->done == it->size;
		json_array_append_new(files, row);
	}
	all = json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:o}", "command", w->verb, "memory", w->memory, "whole_files", (json_int_t)whole, "bytes",
			(json_int_t)w->all, "done_bytes", (json_int_t)w->done, "seconds", taken, "files", files);
	json_dumpf(all, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(all);
}

void print_summary(const struct work *w, const char *are)
{
	char done[32], all[32];
	size_t whole = 0;

	for (size_t i = 0; i < w->n; i++)
		whole += !w->at[i].error && w->at[i].done == w->at[i].size;
	format_bytes(done, sizeof(done), (json_int_t)w->done);
	format_bytes(all, sizeof(all), (json_int_t)w->all);
	if (whole == w->n)
		printf("%zu file%s, %s: %s %s\n", w->n, w->n == 1 ? "" : "s", done, are, w->memory);
	else
		printf("%zu of %zu files, %s of %s: %s %s%s\n", whole, w->n, done, all, are, w->memory,
		       w->full ? "; there was no room for the rest" : "");
}
