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

static void put_head(void)
{
	printf("%7s", "home_hit");
	for (size_t i = 0; i < N_COLUMNS; i++)
		printf(" %6s ", columns[i].head);
	for (size_t i = 0; i < N_TIMES; i++)
		printf(" %7s", times[i].head);
	printf(" %6s  %7s %7s\n", "unsto", "home", "device");
}

static void put_line(const json_t *before, const json_t *after, double seconds)
{
	const json_t *home = json_object_get(after, "home"), *device;
	double hits = counter_rate(before, after, "home_hits", seconds), used = 0, capacity = 0;
	size_t k;

	put_percent(stdout, hits, hits + counter_rate(before, after, "home_misses", seconds));
	for (size_t i = 0; i < N_COLUMNS; i++) {
		const struct column *c = &columns[i];
		double sum = counter_rate(before, after, c->counter[0], seconds) + (c->counter[1] ? counter_rate(before, after, c->counter[1], seconds) : 0);

		put_scaled(stdout, sum * c->times, strchr(c->head, '_') ? 1024 : 1000);
	}
	for (size_t i = 0; i < N_TIMES; i++) {
		struct taken taken;

		taken_between(latency_row(before, times[i].of, times[i].kind), latency_row(after, times[i].of, times[i].kind), &taken);
		put_time(stdout, taken.p99);
	}
	put_scaled(stdout, number_at(after, "dirty_bytes"), 1024);
	putchar(' ');
	put_percent(stdout, number_at(home, "used"), number_at(home, "budget"));
	json_array_foreach(json_object_get(after, "devices"), k, device) {
		used += number_at(device, "used");
		capacity += number_at(device, "capacity");
	}
	put_percent(stdout, used, capacity);
	putchar('\n');
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

static void put_json(const json_t *before, const json_t *after, double seconds)
{
	json_t *rates = json_object(), *row;
	const char *name;
	json_t *value;
	char *text;

	json_object_foreach(json_object_get(after, "counters"), name, value)
		json_object_set_new(rates, name, json_real(counter_rate(before, after, name, seconds)));
	row = json_pack("{s:I, s:f, s:o, s:o, s:O?, s:O?, s:O?}", "time", (json_int_t)time(NULL), "seconds", seconds, "rates", rates,
			"latencies", latencies_json(before, after, seconds), "home",
			json_object_get(after, "home"), "devices", json_object_get(after, "devices"), "dirty_bytes",
			json_object_get(after, "dirty_bytes"));
	text = row ? json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	if (text)
		puts(text);
	free(text);
	json_decref(row);
}

/* ---- the command ---- */

static int show(const json_t *before, const json_t *after, double seconds, double n, void *arg)
{
	const struct args *a = arg;

	if (a->json) {
		put_json(before, after, seconds);
	} else {
		if (fmod(n, LINES_A_HEADER) == 0)
			put_head();
		put_line(before, after, seconds);
	}
	return fflush(stdout) || ferror(stdout) ? fail("standard output: %s", strerror(errno)) : EXIT_OK;
}

int stat_command(const struct args *a)
{
	struct rounds r = { .path = a->path, .interval = 1, .count = a->n_paths > 1 ? INFINITY : 1, .wait = rounds_sleep, .show = show, .arg = (void *)a };

	if (!rounds_parse(a, &r))
		return usage("stat: after the mount come an interval, of 0.1 to 86400 seconds, and how many lines to print");
	return rounds_end(&r, rounds_run(&r));
}
