/*
 * map.c - gaia residency: one file's report, or, of trees and lists, a map of each file, as vmtouch(8) draws it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../report.h"
#include "gaia/protocol.h"
#include "rates.h"
#include "tool.h"
#include "work.h"

#define COLUMNS 60u
#define MAP_PAGES 8u /* one character of the report's maps */

/* What a memory has of a file: of each column how full it is: two for a character of the report that is O, one for o. */
struct strip {
	char name[40]; /* "" : not in use */
	double pages;
	unsigned halves[COLUMNS];
};

#define STRIPS 34u /* home, and devices */

struct drawing {
	struct strip strip[STRIPS];
	uint64_t chars; /* of the whole file's map */
	unsigned columns;
};

/* The one of that name; NULL: there are too many. */
static struct strip *strip_of(struct drawing *d, const char *name)
{
	for (unsigned k = 0; k < STRIPS; k++) {
		if (!d->strip[k].name[0])
			snprintf(d->strip[k].name, sizeof(d->strip[k].name), "%s", name);
		if (!strcmp(d->strip[k].name, name))
			return &d->strip[k];
	}
	return NULL;
}

/* A chunk's map: from its character @at of the file on. */
static void add_map(struct drawing *d, const char *name, uint64_t at, const json_t *map, double pages)
{
	const char *text = json_string_value(map);
	struct strip *s = strip_of(d, name);

	if (!s)
		return;
	s->pages += pages;
	for (; text && *text && at < d->chars; text++, at++)
		s->halves[at * d->columns / d->chars] += *text == 'O' ? 2 : *text == 'o';
}

/* The first character that falls into column @k. */
static uint64_t first_of(const struct drawing *d, unsigned k)
{
	return (uint64_t)(((unsigned __int128)k * d->chars + d->columns - 1) / d->columns);
}

static void draw_strip(const struct drawing *d, const struct strip *s, double pages, double all)
{
	unsigned parts[COLUMNS] = { 0 };

	/* As add_map() divides them. Files can have holes of any size. */
	for (unsigned k = 0; k < d->columns; k++)
		parts[k] = (unsigned)(first_of(d, k + 1) - first_of(d, k));
	fputs("  ", stdout);
	put_safely(stdout, s->name);
	printf("%*s [", (int)(12 - (strlen(s->name) < 12 ? strlen(s->name) : 12)), "");
	for (unsigned k = 0; k < d->columns; k++)
		putchar(s->halves[k] == 0 ? ' ' : s->halves[k] == 2 * parts[k] ? 'O' : 'o');
	printf("] %.0f/%.0f", pages, all);
	put_percent(stdout, pages, all);
	putchar('\n');
}

/* Adds to @sum what the file has. */
static void draw_file(const char *path, const json_t *report, double sum[4])
{
	struct drawing *d = calloc(1, sizeof(*d));
	double all = number_at(report, "pages"), home = number_at(report, "home"), devices = 0;
	const json_t *chunk, *replica;
	size_t k, i;

	if (!d)
		return;
	d->chars = ((uint64_t)all + MAP_PAGES - 1) / MAP_PAGES;
	d->columns = d->chars < COLUMNS ? (unsigned)d->chars : COLUMNS;
	strip_of(d, "home");
	json_array_foreach(json_object_get(report, "chunks"), k, chunk) {
		uint64_t at = (uint64_t)number_at(chunk, "chunk") * (GAIA_CHUNK / GAIA_PAGE / MAP_PAGES);

		add_map(d, "home", at, json_object_get(chunk, "map"), number_at(chunk, "home"));
		json_array_foreach(json_object_get(chunk, "devices"), i, replica) {
			const char *name = json_string_value(json_object_get(replica, "name"));

			devices += number_at(replica, "current");
			/* Readers' own copies are drawn with the shared one. */
			add_map(d, name ? name : "?", at, json_object_get(replica, "map"), number_at(replica, "current"));
		}
	}
	put_safely(stdout, path);
	putchar('\n');
	for (k = 0; k < STRIPS && d->strip[k].name[0]; k++)
		draw_strip(d, &d->strip[k], d->strip[k].pages, all);
	if (number_at(report, "dirty") > 0)
		printf("  %-12s %.0f pages\n", "not stored", number_at(report, "dirty"));
	sum[0] += all;
	sum[1] += home;
	sum[2] += devices;
	sum[3] += number_at(report, "dirty");
	free(d);
}

static json_t *fetch_residency(const struct item *it)
{
	int fd = open_item(it), err = fd < 0 ? fd : 0;
	char *text = NULL;
	json_t *report;

	if (!err)
		err = fetch_report(fd, GAIA_REPORT_RESIDENCY, &text);
	if (fd >= 0)
		close(fd);
	if (err) {
		fail_on(it->path, err);
		return NULL;
	}
	report = json_loads(text, 0, NULL);
	free(text);
	if (!report)
		fail("%s: the daemon's report is not JSON", it->path);
	return report;
}

static void put_total(const struct work *w, const double sum[4])
{
	printf("%zu file%s, %.0f pages: home %.0f,", w->n, w->n == 1 ? "" : "s", sum[0], sum[1]);
	put_percent(stdout, sum[1], sum[0]);
	printf("; devices %.0f,", sum[2]);
	put_percent(stdout, sum[2], sum[0]);
	printf("; not stored %.0f\n", sum[3]);
}

static int draw_all(const struct args *a)
{
	struct work w = { .a = a, .verb = "residency" };
	json_t *list = json_array();
	double sum[4] = { 0 };
	int status;

	w.dirs = calloc(a->n_paths, sizeof(*w.dirs));
	if (!w.dirs)
		return fail("%s", strerror(ENOMEM));
	for (size_t i = 0; i < a->n_paths; i++) {
		if (check_kind(a->paths[i], a->recursive))
			w.failed = true;
		else
			add_path(&w, a->paths[i]);
	}
	for (size_t i = 0; i < w.n; i++) {
		json_t *report = fetch_residency(&w.at[i]), *path;

		if (!report) {
			w.failed = true;
		} else if (a->json) {
			path = json_string(w.at[i].path); /* NULL: it is not UTF-8 */
			json_object_set_new(report, "path", path ? path : json_null());
			json_array_append(list, report);
		} else {
			draw_file(w.at[i].path, report, sum);
		}
		json_decref(report);
	}
	if (a->json && !json_dumpf(list, stdout, JSON_INDENT(2)))
		putchar('\n');
	else if (!a->json && w.n > 0)
		put_total(&w, sum);
	json_decref(list);
	status = w.failed ? EXIT_FAILED : EXIT_OK;
	work_end(&w);
	return fflush(stdout) ? fail("standard output: %s", strerror(errno)) : status;
}

int residency_command(const struct args *a)
{
	return a->recursive || a->n_paths > 1 ? draw_all(a) : report_command(a, GAIA_REPORT_RESIDENCY);
}
