/*
 * top.c - gaia top: what a mount does, for whom, and what takes the memory, again and again on a screen, as top(1). Of all mounts: top_mounts.c.
 *
 * Each round makes the same text (show()), which goes to the terminal through ncurses or, with -b, to standard output.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gaia/protocol.h"
#include "rates.h"
#include "screen.h"
#include "tool.h"
#include "top.h"

static double rate(const struct round *r, const char *counter)
{
	return counter_rate(r->before, r->after, counter, r->seconds);
}

/* ---- the parts of the screen ---- */

static void put_head(FILE *out, const struct round *r)
{
	const json_t *home = json_object_get(r->after, "home");
	time_t now = time(NULL);
	char clock[16] = "";
	struct tm tm;

	if (localtime_r(&now, &tm))
		strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
	fprintf(out, "gaia top - %s, ", clock);
	put_safely(out, r->name ? r->name : string_at(r->after, "mountpoint"));
	fprintf(out, ", daemon %.0f, in the last %.1f s, a second:\n", number_at(r->after, "pid"), r->seconds);
	fputs("home", out);
	put_percent(out, number_at(home, "used"), number_at(home, "budget"));
	fputs(" of", out);
	put_scaled(out, number_at(home, "budget"), 1024);
	fputs("  not stored", out);
	put_scaled(out, number_at(r->after, "dirty_bytes"), 1024);
	fputs("  of it only on devices", out);
	put_scaled(out, number_at(r->after, "only_on_devices_bytes"), 1024);
	fprintf(out, "  files %.0f\n", number_at(home, "files"));
}

static void put_named(FILE *out, const char *name, double value, double scale)
{
	fprintf(out, "  %s", name);
	put_scaled(out, value, scale);
}

/* Where pages were found that somebody needed in home: shares of this round. */
static void put_shares(FILE *out, const struct round *r)
{
	static const char *const names[] = { "home", "parked", "replicas", "storage" };
	const json_t *before = json_object_get(r->before, "tiers"), *after = json_object_get(r->after, "tiers");
	double n[4], all = 0;

	for (size_t k = 0; k < 4; k++) {
		n[k] = rate_at(json_array_get(before, k), json_array_get(after, k), "pages", r->seconds);
		n[k] = n[k] < 0 ? 0 : n[k];
		all += n[k];
	}
	fputs("found ", out);
	for (size_t k = 0; k < 4; k++) {
		fprintf(out, "  %s", names[k]);
		put_percent(out, n[k], all);
	}
	fputc('\n', out);
}

static void put_rates(FILE *out, const struct round *r)
{
	fputs("bytes ", out);
	put_named(out, "read by CPUs", (rate(r, "home_hits") + rate(r, "home_misses")) * GAIA_PAGE, 1024);
	put_named(out, "from storage", rate(r, "storage_reads") * GAIA_PAGE, 1024);
	put_named(out, "to storage", rate(r, "storage_writes") * GAIA_PAGE, 1024);
	put_named(out, "to devices", rate(r, "device_bytes_in"), 1024);
	put_named(out, "from devices", rate(r, "device_bytes_out"), 1024);
	fputs("\ncalls ", out);
	put_named(out, "acquires", rate(r, "acquires"), 1000);
	put_named(out, "of these ready", rate(r, "acquires_ready"), 1000);
	put_named(out, "releases", rate(r, "releases"), 1000);
	put_named(out, "merges", rate(r, "merges"), 1000);
	fputs("\nwaits ", out);
	put_named(out, "for pages", rate(r, "page_waits"), 1000);
	put_named(out, "for clients", rate(r, "revokes"), 1000);
	put_named(out, "in vain", rate(r, "revoke_timeouts"), 1000);
	put_named(out, "refused", rate(r, "acquire_nomem"), 1000);
	put_named(out, "home evicted", rate(r, "home_evicted"), 1000);
	put_named(out, "chunks evicted", rate(r, "device_evicted"), 1000);
	fputc('\n', out);
}

/* The one of that name before; NULL: there was none. */
static const json_t *same_device(const struct round *r, const json_t *device)
{
	if (device == json_object_get(r->after, "host"))
		return json_object_get(r->before, "host");
	return row_named(json_object_get(r->before, "devices"), "name", string_at(device, "name"));
}

static void put_device(FILE *out, const struct round *r, const json_t *device)
{
	const json_t *before = same_device(r, device);

	put_name(out, 12, string_at(device, "name"));
	put_percent(out, number_at(device, "used"), number_at(device, "capacity"));
	put_scaled(out, number_at(device, "capacity"), 1024);
	put_scaled(out, number_at(device, "pinned"), 1024);
	put_scaled(out, number_at(device, "cache_bytes"), 1024);
	put_scaled(out, rate_at(before, device, "in_bytes", r->seconds), 1024);
	put_scaled(out, rate_at(before, device, "out_bytes", r->seconds), 1024);
	fputs(json_is_true(json_object_get(device, "simulated")) ? "  simulated" : "", out);
	fputs(json_is_true(json_object_get(device, "gone")) ? "  gone" : number_at(device, "capacity") == 0 ? "  off" : "", out);
	fputc('\n', out);
}

static void put_devices(FILE *out, const struct round *r)
{
	const json_t *device, *host = json_object_get(r->after, "host");
	size_t k;

	fprintf(out, "\n%-12s %7s %7s %7s %7s %7s %7s\n", "DEVICE", "USED", "OF", "PINNED", "PARKED", "IN/s", "OUT/s");
	json_array_foreach(json_object_get(r->after, "devices"), k, device)
		put_device(out, r, device);
	if (json_is_object(host))
		put_device(out, r, host);
}

/* Requests that workers have in hand, and that wait for one: what they wait for depends on the workers; see gaia(1). */
static void put_workers(FILE *out, const struct round *r)
{
	const json_t *one;
	bool headed = false;
	size_t k;

	json_array_foreach(json_object_get(r->after, "workers"), k, one) {
		double busy = number_at(one, "busy"), waiting = number_at(one, "waiting");

		/* That makes this report. */
		busy -= !strcmp(string_at(one, "workers"), "gaia-query");
		if (busy <= 0 && waiting == 0)
			continue;
		if (!headed)
			fprintf(out, "\n%-16s %7s %7s %7s\n", "WORKERS", "BUSY", "OF", "WAITING");
		headed = true;
		put_name(out, 16, string_at(one, "workers"));
		fprintf(out, " %7.0f %7.0f %7.0f\n", busy, number_at(one, "threads"), waiting);
	}
}

static void put_latencies(FILE *out, const struct round *r)
{
	const json_t *row;
	struct taken t;
	size_t k;

	fprintf(out, "\n%-22s %7s %7s %7s %7s\n", "TIME TAKEN", "/s", "50%", "99%", "99.9%");
	json_array_foreach(json_object_get(r->after, "latencies"), k, row) {
		const char *of = string_at(row, "of"), *kind = string_at(row, "kind");
		char name[40];

		taken_between(latency_row(r->before, of, kind), row, &t);
		if (t.count <= 0)
			continue;
		snprintf(name, sizeof(name), "%s %s", of, kind);
		put_name(out, 22, name);
		put_scaled(out, t.count / r->seconds, 1000);
		put_time(out, t.p50);
		put_time(out, t.p99);
		put_time(out, t.p999);
		fputc('\n', out);
	}
}

void put_screen(FILE *out, const struct round *r)
{
	put_head(out, r);
	put_shares(out, r);
	put_rates(out, r);
	put_devices(out, r);
	put_workers(out, r);
	put_latencies(out, r);
	put_clients(out, r);
	put_users(out, r);
	put_files(out, r);
	put_moving_files(out, r);
}

/* ---- the command ---- */

struct top {
	const char *path;
	bool batch, may; /* @may: the daemon has not said that it does not tell us of files */
	json_t *use; /* of the round before, or NULL */
};

/* To be freed; NULL: no memory. */
static char *show(const struct round *r)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	put_screen(out, r);
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

/* The files are for root and the daemon's user; an older daemon does not tell them at all. */
json_t *fetch_use(const char *path, bool *may)
{
	json_t *use = NULL;
	int err = *may ? fetch_json(path, GAIA_REPORT_USE, &use) : 0;

	*may = *may && err != -EPERM && err != -EINVAL;
	return use;
}

/* False: the user has had enough. */
static bool wait_for_user(double until, void *arg)
{
	(void)arg;
	return screen_wait(until, 0) != SCREEN_QUIT;
}

static int put_round(const json_t *before, const json_t *after, double seconds, double n, void *arg)
{
	struct top *t = arg;
	json_t *use = fetch_use(t->path, &t->may);
	char *text = show(&(struct round){ before, after, t->use, use, seconds, NULL });

	json_decref(t->use);
	t->use = use;
	if (!text)
		return fail("%s", strerror(ENOMEM));
	if (!t->batch)
		screen_show(text);
	else
		printf("%s%s", n == 0 ? "" : "\n", text);
	free(text);
	return t->batch && (fflush(stdout) || ferror(stdout)) ? fail("standard output: %s", strerror(errno)) : EXIT_OK;
}

int top_command(const struct args *a)
{
	struct top t = { .path = a->path, .batch = a->batch, .may = true };
	struct rounds r = { .interval = 2, .count = INFINITY, .wait = a->batch ? rounds_sleep : wait_for_user, .show = put_round, .arg = &t };
	json_t *first;
	int status;

	if (!rounds_parse(a, &r))
		return usage("top: after the mount, if one is named, come an interval, of 0.1 to 86400 seconds, and how often to show it");
	if (!r.path)
		return top_mounts(&r, a->batch);
	/* What is wrong is said before there is a screen. */
	status = fetch_json(a->path, GAIA_REPORT_STATUS, &first);
	if (status)
		return rounds_end(&r, status);
	json_decref(first);
	t.use = fetch_use(t.path, &t.may);
	if (!a->batch && !screen_begin()) {
		json_decref(t.use);
		return EXIT_FAILED;
	}
	status = rounds_run(&r);
	if (!a->batch)
		screen_end();
	json_decref(t.use);
	return rounds_end(&r, status);
}
