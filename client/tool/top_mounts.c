/*
 * top_mounts.c - gaia top of all mounts: a row for each, and on a screen, the one that is chosen as gaia top shows it alone.
 *
 * Each mount's child makes its row and its screen (ask.h). Here they are put in order, and it is said of which mounts there are none.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ask.h"
#include "gaia/protocol.h"
#include "rates.h"
#include "screen.h"
#include "tool.h"

#define NAME_LEAST 5	    /* columns: MOUNT */
#define NAME_ALIGNED 24	    /* a longer name moves its own row only */
#define LINES_ABOVE_ROWS 3u /* see put_table() */

/* ---- in a child ---- */

static const struct column {
	const char *head;
	const char *counter[2]; /* their sum */
	double times;
} columns[] = {
	{ "CPU/s", { "home_hits", "home_misses" }, GAIA_PAGE },
	{ "READ/s", { "storage_reads", NULL }, GAIA_PAGE },
	{ "WRITE/s", { "storage_writes", NULL }, GAIA_PAGE },
	{ "IN/s", { "device_bytes_in", NULL }, 1 },
	{ "OUT/s", { "device_bytes_out", NULL }, 1 },
};
#define N_COLUMNS (sizeof(columns) / sizeof(columns[0]))
/* And what put_row() puts after these. */
static const char *const more_heads[] = { "HIT", "DIRTY", "HOME", "DEVICES", "CLIENTS", "WAITING" };

/* The bytes that are moved, a second. */
static double put_row(FILE *out, const struct round *r)
{
	const json_t *home = json_object_get(r->after, "home"), *devices = json_object_get(r->after, "devices");
	double hits = counter_rate(r->before, r->after, "home_hits", r->seconds), all = 0;
	char *waits = NULL;
	size_t len;
	FILE *waits_out = open_memstream(&waits, &len);
	double waiting = sum_at(json_object_get(r->after, "workers"), "waiting");

	for (const struct column *c = columns; c < columns + N_COLUMNS; c++) {
		double sum = counter_rate(r->before, r->after, c->counter[0], r->seconds) +
			     (c->counter[1] ? counter_rate(r->before, r->after, c->counter[1], r->seconds) : 0);

		put_scaled(out, sum * c->times, 1024);
		all += sum * c->times;
	}
	put_percent(out, hits, hits + counter_rate(r->before, r->after, "home_misses", r->seconds));
	put_scaled(out, number_at(r->after, "dirty_bytes"), 1024);
	put_percent(out, number_at(home, "used"), number_at(home, "budget"));
	put_percent(out, sum_at(devices, "used"), sum_at(devices, "capacity"));
	fprintf(out, " %7zu", count_clients(r));
	if (waits_out) {
		waiting += put_all_waits(waits_out, r);
		fclose(waits_out);
	}
	fprintf(out, " %7.0f%s", waiting, waits ? waits : "");
	free(waits);
	return all;
}

static double make(FILE *out, const struct round *r, unsigned what, const char *path)
{
	static json_t *use; /* of the screen before */
	static bool may = true;
	struct round whole = *r;
	json_t *now;

	if (what == ASK_ROW)
		return put_row(out, r);
	now = fetch_use(path, &may);
	whole.use_before = use;
	whole.use = now;
	put_screen(out, &whole);
	json_decref(use);
	use = now;
	return 0;
}

/* ---- the table ---- */

static int busiest_first(const void *a, const void *b)
{
	const struct ask *x = *(struct ask *const *)a, *y = *(struct ask *const *)b;
	char room[64];
	bool wrong;
	int no_x = !!ask_trouble(x, ASK_ROW, room, &wrong), no_y = !!ask_trouble(y, ASK_ROW, room, &wrong);

	if (no_x != no_y)
		return no_x - no_y;
	if (!no_x && x->weight != y->weight)
		return x->weight < y->weight ? 1 : -1;
	return strcmp(x->mount.point, y->mount.point);
}

static void put_head(FILE *out, const struct asks *a, double interval)
{
	time_t now = time(NULL);
	char clock[16] = "", room[64];
	size_t wrong = 0;
	struct tm tm;

	for (size_t k = 0; k < a->n; k++) {
		bool is_wrong;

		wrong += ask_trouble(a->at[k], ASK_ROW, room, &is_wrong) && is_wrong;
	}
	if (localtime_r(&now, &tm))
		strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
	fprintf(out, "gaia top - %s, %zu mount%s", clock, a->n, a->n == 1 ? "" : "s");
	if (wrong > 0)
		fprintf(out, ", %zu of them not to be seen", wrong);
	fprintf(out, ", each %g s, a second:\n", interval);
}

static void put_table(FILE *out, const struct asks *a, double interval)
{
	int width = NAME_LEAST;

	for (size_t k = 0; k < a->n; k++) {
		int its = name_columns(a->at[k]->mount.point);

		width = its > width ? its : width;
	}
	width = width < NAME_ALIGNED ? width : NAME_ALIGNED;
	put_head(out, a, interval);
	if (a->n > 0) {
		fputc('\n', out);
		put_name(out, width, "MOUNT");
		for (size_t i = 0; i < N_COLUMNS; i++)
			fprintf(out, " %7s", columns[i].head);
		for (size_t i = 0; i < sizeof(more_heads) / sizeof(more_heads[0]); i++)
			fprintf(out, " %7s", more_heads[i]);
		fputs("  WAITS FOR\n", out);
	}
	for (size_t k = 0; k < a->n; k++) {
		char room[64];
		bool wrong;
		const char *trouble = ask_trouble(a->at[k], ASK_ROW, room, &wrong);

		put_name(out, width, a->at[k]->mount.point);
		if (trouble)
			fprintf(out, "  %s", trouble);
		else
			fputs(a->at[k]->text[ASK_ROW], out);
		fputc('\n', out);
	}
	if (a->more > 0)
		fprintf(out, "(and %zu more mounts, which are not asked)\n", a->more);
}

/* ---- the screen ---- */

struct view {
	struct asks asks;
	bool batch;
	double interval;
	/* As the row that is marked, and the one whose screen is shown, if @is_open. Mounts come and go. */
	struct key {
		unsigned id, major, minor;
	} marked, opened;
	bool is_open;
};

static struct key key_of(const struct ask *one)
{
	return (struct key){ one->mount.id, one->mount.major, one->mount.minor };
}

/* Its place in the list; the list's end: it has gone. */
static size_t place_of(const struct asks *a, struct key key)
{
	size_t k = 0;

	while (k < a->n && (a->at[k]->mount.id != key.id || a->at[k]->mount.major != key.major || a->at[k]->mount.minor != key.minor))
		k++;
	return k;
}

static const struct ask *opened(void *arg)
{
	struct view *v = arg;
	size_t k = v->is_open ? place_of(&v->asks, v->opened) : v->asks.n;

	v->is_open = k < v->asks.n;
	return v->is_open ? v->asks.at[k] : NULL;
}

static void put_opened(FILE *out, const struct ask *one)
{
	char room[64];
	bool wrong;
	const char *trouble = ask_trouble(one, ASK_SCREEN, room, &wrong);

	if (!trouble) {
		fputs(one->text[ASK_SCREEN], out);
		return;
	}
	fputs("gaia top - ", out);
	put_safely(out, one->mount.point);
	fprintf(out, ": %s\n\nthe left arrow leads back to all mounts\n", trouble);
}

/* An exit status. */
static int show(double n, void *arg)
{
	struct view *v = arg;
	const struct ask *one = opened(v);
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return fail("%s", strerror(ENOMEM));
	if (v->asks.n > 0)
		qsort(v->asks.at, v->asks.n, sizeof(struct ask *), busiest_first);
	if (one)
		put_opened(out, one);
	else
		put_table(out, &v->asks, v->interval);
	if (fclose(out)) {
		free(text);
		return fail("%s", strerror(ENOMEM));
	}
	if (v->batch) {
		printf("%s%s", n == 0 ? "" : "\n", text);
	} else {
		screen_mark(LINES_ABOVE_ROWS, one ? 0 : (unsigned)v->asks.n, (unsigned)place_of(&v->asks, v->marked));
		screen_show(text);
	}
	free(text);
	return v->batch && (fflush(stdout) || ferror(stdout)) ? fail("standard output: %s", strerror(errno)) : EXIT_OK;
}

/* The mark may have been moved. */
static void note_mark(struct view *v)
{
	if (!v->is_open && v->asks.n > 0)
		v->marked = key_of(v->asks.at[screen_marked()]);
}

/* False: the user has had enough. */
static bool wait_for_user(double until, void *arg)
{
	struct view *v = arg;
	enum screen_key key = screen_wait(until, SCREEN_WANTS(v->is_open ? SCREEN_BACK : SCREEN_OPEN));

	note_mark(v);
	if (key == SCREEN_OPEN && v->asks.n > 0) {
		struct ask *one = v->asks.at[screen_marked()];

		free(one->text[ASK_SCREEN]); /* of an earlier time */
		one->text[ASK_SCREEN] = NULL;
		v->opened = v->marked;
		v->is_open = true;
	} else if (key == SCREEN_BACK) {
		v->is_open = false;
	}
	return key != SCREEN_QUIT;
}

int top_mounts(const struct rounds *rounds, bool batch)
{
	struct view v = { .asks = { .make = make }, .batch = batch, .interval = rounds->interval };
	struct asks_rounds r = { .interval = rounds->interval, .count = rounds->count, .keys = batch ? -1 : STDIN_FILENO,
				 .wait = batch ? rounds_sleep : wait_for_user, .opened = opened, .show = show, .arg = &v };
	int status;

	if (!batch && !screen_begin())
		return EXIT_FAILED;
	asks_refresh(&v.asks);
	asks_send(&v.asks, NULL);
	asks_wait(&v.asks, clock_seconds() + (batch ? SILENCE_S : 0.5), r.keys);
	status = batch ? EXIT_OK : show(0, &v);
	if (!status)
		status = asks_run(&v.asks, &r);
	if (!batch)
		screen_end();
	asks_end(&v.asks);
	return status;
}
