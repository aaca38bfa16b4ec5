/*
 * stat.c - gaia stat: what a mount does, one line an interval, as iostat(1) and zpool-iostat(8) show it of disks.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ask.h"
#include "gaia/protocol.h"
#include "rates.h"
#include "tool.h"

#define LINES_A_HEADER 20u

/* The sum of up to two counters' rates, of which each counts as @times. */
static const struct column {
	const char *head;
	const char *counter[2];
	double times;
} columns[] = {
	{ "cpu_rd", { "home_hits", "home_misses" }, GAIA_PAGE },
	{ "sto_rd", { "storage_reads", NULL }, GAIA_PAGE },
	{ "sto_wr", { "storage_writes", NULL }, GAIA_PAGE },
	{ "to_dev", { "device_bytes_in", NULL }, 1 },
	{ "fr_dev", { "device_bytes_out", NULL }, 1 },
	{ "acq", { "acquires", NULL }, 1 },
	{ "rel", { "releases", NULL }, 1 },
	{ "merge", { "merges", NULL }, 1 },
	{ "waits", { "page_waits", NULL }, 1 },
};
#define N_COLUMNS (sizeof(columns) / sizeof(columns[0]))

/* What 99 of 100 took no longer than. */
static const struct {
	const char *head, *of, *kind;
} times[] = {
	{ "rd_99", "request", "read" },
	{ "acq_99", "call", "acquire" },
};
#define N_TIMES (sizeof(times) / sizeof(times[0]))

/* ---- lines ---- */

static void put_head(bool all)
{
	printf("%7s", "home_hit");
	for (size_t i = 0; i < N_COLUMNS; i++)
		printf(" %6s ", columns[i].head);
	for (size_t i = 0; i < N_TIMES; i++)
		printf(" %7s", times[i].head);
	printf(" %6s  %7s %7s%s\n", "unsto", "home", "device", all ? "  mount" : "");
}

/* Without a line's end. */
static void put_line(FILE *out, const json_t *before, const json_t *after, double seconds)
{
	const json_t *home = json_object_get(after, "home"), *devices = json_object_get(after, "devices");
	double hits = counter_rate(before, after, "home_hits", seconds);

	put_percent(out, hits, hits + counter_rate(before, after, "home_misses", seconds));
	for (size_t i = 0; i < N_COLUMNS; i++) {
		const struct column *c = &columns[i];
		double sum = counter_rate(before, after, c->counter[0], seconds) + (c->counter[1] ? counter_rate(before, after, c->counter[1], seconds) : 0);

		put_scaled(out, sum * c->times, strchr(c->head, '_') ? 1024 : 1000);
	}
	for (size_t i = 0; i < N_TIMES; i++) {
		struct taken taken;

		taken_between(latency_row(before, times[i].of, times[i].kind), latency_row(after, times[i].of, times[i].kind), &taken);
		put_time(out, taken.p99);
	}
	put_scaled(out, number_at(after, "dirty_bytes"), 1024);
	putc(' ', out);
	put_percent(out, number_at(home, "used"), number_at(home, "budget"));
	put_percent(out, sum_at(devices, "used"), sum_at(devices, "capacity"));
}

/* Of each kind that there was meanwhile. */
static json_t *latencies_json(const json_t *before, const json_t *after, double seconds)
{
	json_t *list = json_array();
	const json_t *row;
	size_t k;

	json_array_foreach(json_object_get(after, "latencies"), k, row) {
		json_t *of = json_object_get(row, "of"), *kind = json_object_get(row, "kind");
		struct taken t;

		if (!json_is_string(of) || !json_is_string(kind))
			continue;
		taken_between(latency_row(before, json_string_value(of), json_string_value(kind)), row, &t);
		if (t.count > 0)
			json_array_append_new(list, json_pack("{s:O, s:O, s:f, s:f, s:f, s:f}", "of", of, "kind", kind, "rate", t.count / seconds,
							      "p50", t.p50, "p99", t.p99, "p999", t.p999));
	}
	return list;
}

/* Names may have characters that would send commands to the terminal: so all is ASCII. */
static void put_object(FILE *out, const json_t *row)
{
	char *text = row ? json_dumps(row, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9)) : NULL;

	if (text)
		fputs(text, out);
	free(text);
}

/* @mount: its name; a name that is not UTF-8 is null. */
static json_t *object_of(const char *mount)
{
	json_t *name = json_string(mount);

	return json_pack("{s:o, s:I}", "mount", name ? name : json_null(), "time", (json_int_t)time(NULL));
}

/* @mount: NULL: the one that was asked for. Without a line's end. */
static void put_json(FILE *out, const char *mount, const json_t *before, const json_t *after, double seconds)
{
	json_t *rates = json_object(), *all = mount ? object_of(mount) : json_object(), *row;
	const char *name;
	json_t *value;

	json_object_foreach(json_object_get(after, "counters"), name, value)
		json_object_set_new(rates, name, json_real(counter_rate(before, after, name, seconds)));
	row = json_pack("{s:I, s:f, s:o, s:o, s:O?, s:O?, s:O?}", "time", (json_int_t)time(NULL), "seconds", seconds, "rates", rates,
			"latencies", latencies_json(before, after, seconds), "home",
			json_object_get(after, "home"), "devices", json_object_get(after, "devices"), "dirty_bytes",
			json_object_get(after, "dirty_bytes"));
	json_object_update(all, row);
	put_object(out, all);
	json_decref(row);
	json_decref(all);
}

/* ---- the command ---- */

static int show(const json_t *before, const json_t *after, double seconds, double n, void *arg)
{
	const struct args *a = arg;

	if (!a->json && fmod(n, LINES_A_HEADER) == 0)
		put_head(false);
	if (a->json)
		put_json(stdout, NULL, before, after, seconds);
	else
		put_line(stdout, before, after, seconds);
	putchar('\n');
	return fflush(stdout) || ferror(stdout) ? fail("standard output: %s", strerror(errno)) : EXIT_OK;
}

/* ---- all mounts ---- */

struct all {
	struct asks asks;
	bool json;
	unsigned lines; /* since the heading */
};

static double make_line(FILE *out, const struct round *r, unsigned what, const char *path)
{
	put_line(out, r->before, r->after, r->seconds);
	return 0;
}

static double make_json(FILE *out, const struct round *r, unsigned what, const char *path)
{
	put_json(out, r->name, r->before, r->after, r->seconds);
	return 0;
}

static const struct ask *no_one(void *arg)
{
	return NULL;
}

static void show_trouble(const struct ask *one, const char *trouble, bool json)
{
	json_t *row;

	if (json) {
		row = object_of(one->mount.point);
		json_object_set_new(row, "error", json_string(trouble));
		put_object(stdout, row);
		json_decref(row);
	} else {
		put_safely(stdout, one->mount.point);
		printf(": %s", trouble);
	}
}

static int show_all(double n, void *arg)
{
	struct all *all = arg;

	if (!all->json && (n == 0 || all->lines >= LINES_A_HEADER)) {
		put_head(true);
		all->lines = 0;
	}
	for (size_t k = 0; k < all->asks.n; k++, all->lines++) {
		const struct ask *one = all->asks.at[k];
		char room[64];
		bool wrong;
		const char *trouble = ask_trouble(one, ASK_ROW, room, &wrong);

		if (trouble)
			show_trouble(one, trouble, all->json);
		else
			fputs(one->text[ASK_ROW], stdout);
		if (!trouble && !all->json) {
			fputs("  ", stdout);
			put_safely(stdout, one->mount.point);
		}
		putchar('\n');
	}
	if (all->asks.more > 0 && !all->json)
		printf("(and %zu more mounts, which are not asked)\n", all->asks.more);
	return fflush(stdout) || ferror(stdout) ? fail("standard output: %s", strerror(errno)) : EXIT_OK;
}

static int stat_all(const struct rounds *rounds, bool json)
{
	struct all all = { .asks = { .make = json ? make_json : make_line }, .json = json };
	struct asks_rounds r = { .interval = rounds->interval, .count = rounds->count, .keys = -1, .wait = rounds_sleep, .opened = no_one,
				 .show = show_all, .arg = &all };
	int status;

	asks_refresh(&all.asks);
	asks_send(&all.asks, NULL);
	asks_wait(&all.asks, clock_seconds() + SILENCE_S, -1);
	status = asks_run(&all.asks, &r);
	asks_end(&all.asks);
	return status;
}

int stat_command(const struct args *a)
{
	struct rounds r = { .interval = 1, .count = 1, .wait = rounds_sleep, .show = show, .arg = (void *)a };

	if (!rounds_parse(a, &r))
		return usage("stat: after the mount, if one is named, come an interval, of 0.1 to 86400 seconds, and how many lines to print");
	return r.path ? rounds_end(&r, rounds_run(&r)) : stat_all(&r, a->json);
}
