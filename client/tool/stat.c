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

#include "../report.h"
#include "gaia/protocol.h"
#include "tool.h"

#define LINES_A_HEADER 20u
#define INTERVAL_LEAST 0.1
#define INTERVAL_MOST 86400.0

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

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sleep_until(double until)
{
	struct timespec t = { .tv_sec = (time_t)until, .tv_nsec = (long)((until - floor(until)) * 1e9) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* ---- numbers ---- */

static double number_at(const json_t *object, const char *key)
{
	return (double)json_integer_value(json_object_get(object, key));
}

/* A counter's; the difference of two reports' a second. */
static double rate(const json_t *before, const json_t *after, const char *counter, double seconds)
{
	return (number_at(json_object_get(after, "counters"), counter) - number_at(json_object_get(before, "counters"), counter)) / seconds;
}

/* 0, 12.3, 456, 1.23M: five characters at most, for a thousand or for 1024 of the unit before. */
static void put_scaled(double value, double scale)
{
	static const char units[] = " KMGTPE";
	unsigned u = 0;

	while (value >= 999.5 && u + 2 < sizeof(units)) {
		value /= scale;
		u++;
	}
	printf(" %6.*f%c", value == 0 || (u == 0 && value == floor(value)) || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value, units[u]);
}

static void put_percent(double part, double whole)
{
	if (whole > 0)
		printf(" %6.1f%%", 100 * part / whole);
	else
		printf(" %7s", "-");
}

/* ---- lines ---- */

static void put_head(void)
{
	printf("%7s", "home_hit");
	for (size_t i = 0; i < N_COLUMNS; i++)
		printf(" %6s ", columns[i].head);
	printf(" %6s  %7s %7s\n", "unsto", "home", "device");
}

static void put_line(const json_t *before, const json_t *after, double seconds)
{
	const json_t *home = json_object_get(after, "home"), *device;
	double hits = rate(before, after, "home_hits", seconds), used = 0, capacity = 0;
	size_t k;

	put_percent(hits, hits + rate(before, after, "home_misses", seconds));
	for (size_t i = 0; i < N_COLUMNS; i++) {
		const struct column *c = &columns[i];
		double sum = rate(before, after, c->counter[0], seconds) + (c->counter[1] ? rate(before, after, c->counter[1], seconds) : 0);

		put_scaled(sum * c->times, strchr(c->head, '_') ? 1024 : 1000);
	}
	put_scaled(number_at(after, "dirty_bytes"), 1024);
	putchar(' ');
	put_percent(number_at(home, "used"), number_at(home, "budget"));
	json_array_foreach(json_object_get(after, "devices"), k, device) {
		used += number_at(device, "used");
		capacity += number_at(device, "capacity");
	}
	put_percent(used, capacity);
	putchar('\n');
}

static void put_json(const json_t *before, const json_t *after, double seconds)
{
	json_t *rates = json_object(), *row;
	const char *name;
	json_t *value;
	char *text;

	json_object_foreach(json_object_get(after, "counters"), name, value)
		json_object_set_new(rates, name, json_real(rate(before, after, name, seconds)));
	row = json_pack("{s:I, s:f, s:o, s:O?, s:O?, s:O?}", "time", (json_int_t)time(NULL), "seconds", seconds, "rates", rates, "home",
			json_object_get(after, "home"), "devices", json_object_get(after, "devices"), "dirty_bytes",
			json_object_get(after, "dirty_bytes"));
	text = row ? json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	if (text)
		puts(text);
	free(text);
	json_decref(row);
}

/* ---- the command ---- */

static int fetch_status(const char *path, json_t **out)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), err;
	char *text;

	if (fd < 0)
		return fail_on(path, -errno);
	err = fetch_report(fd, GAIA_REPORT_STATUS, &text);
	close(fd);
	if (err)
		return fail_on(path, err);
	*out = json_loads(text, 0, NULL);
	free(text);
	return *out ? EXIT_OK : fail("%s: the daemon's report is not JSON", path);
}

static bool parse_number(const char *text, double least, double most, double *out)
{
	char *end;

	if ((*text < '0' || *text > '9') && *text != '.')
		return false;
	*out = strtod(text, &end);
	return !*end && *out >= least && *out <= most;
}

int stat_command(const struct args *a)
{
	double interval = 1, count = a->n_paths > 1 ? INFINITY : 1, last, at;
	json_t *before = NULL, *after = NULL;
	int status;

	if (a->n_paths > 3 || (a->n_paths > 1 && !parse_number(a->paths[1], INTERVAL_LEAST, INTERVAL_MOST, &interval)) ||
	    (a->n_paths > 2 && !parse_number(a->paths[2], 1, 1e9, &count)))
		return usage("stat: after the mount come an interval, of 0.1 to 86400 seconds, and how many lines to print");
	status = fetch_status(a->path, &before);
	last = now();
	for (double n = 0; !status && n < count; n++) {
		sleep_until(last + interval);
		status = fetch_status(a->path, &after);
		at = now();
		if (status)
			break;
		if (number_at(before, "pid") != number_at(after, "pid"))
			status = fail("%s: another daemon serves it now", a->path);
		else if (a->json)
			put_json(before, after, at - last);
		else if (fmod(n, LINES_A_HEADER) == 0)
			put_head();
		if (!status && !a->json)
			put_line(before, after, at - last);
		if (!status && (fflush(stdout) || ferror(stdout)))
			status = fail("standard output: %s", strerror(errno));
		json_decref(before);
		before = after;
		after = NULL;
		last = at;
	}
	json_decref(before);
	return status;
}
