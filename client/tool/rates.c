/*
 * rates.c - see rates.h.
 */
#include "rates.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../report.h"
#include "gaia/protocol.h"
#include "tool.h"

double clock_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int fetch_json(const char *path, unsigned what, json_t **out)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), err;
	char *text;

	if (fd < 0)
		return -errno;
	err = fetch_report(fd, what, &text);
	close(fd);
	if (err)
		return err;
	*out = json_loads(text, 0, NULL);
	free(text);
	return *out ? 0 : -EBADMSG;
}

static bool parse_number(const char *text, double least, double most, double *out)
{
	char *end;

	if ((*text < '0' || *text > '9') && *text != '.')
		return false;
	*out = strtod(text, &end);
	return !*end && *out >= least && *out <= most;
}

/* It may be out of its bounds. */
static bool is_number(const char *text)
{
	return *text >= '0' && *text <= '9' && !text[strspn(text, "0123456789.")];
}

bool rounds_parse(const struct args *a, struct rounds *r)
{
	size_t k = a->n_paths > 0 && !is_number(a->paths[0]);

	r->path = k ? a->paths[0] : NULL;
	if (a->n_paths > k)
		r->count = INFINITY;
	return a->n_paths <= k + 2 && (a->n_paths < k + 1 || parse_number(a->paths[k], INTERVAL_LEAST, INTERVAL_MOST, &r->interval)) &&
	       (a->n_paths < k + 2 || parse_number(a->paths[k + 1], 1, 1e9, &r->count));
}

bool rounds_sleep(double until, void *arg)
{
	struct timespec t = { .tv_sec = (time_t)until, .tv_nsec = (long)((until - floor(until)) * 1e9) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
	return true;
}

int rounds_run(const struct rounds *r)
{
	json_t *before = NULL, *after = NULL;
	int status = fetch_json(r->path, GAIA_REPORT_STATUS, &before);
	double last = clock_seconds(), at;

	for (double n = 0; !status && n < r->count && r->wait(last + r->interval, r->arg); n++) {
		status = fetch_json(r->path, GAIA_REPORT_STATUS, &after);
		at = clock_seconds();
		if (status)
			break;
		status = number_at(before, "pid") != number_at(after, "pid") ? -ESTALE : r->show(before, after, at - last, n, r->arg);
		json_decref(before);
		before = after;
		after = NULL;
		last = at;
	}
	json_decref(before);
	return status;
}

int report_failed(const char *path, int err)
{
	if (err == -ESTALE)
		return fail("%s: another daemon serves it now", path);
	if (err == -EBADMSG)
		return fail("%s: the daemon's report is not JSON", path);
	return fail_on(path, err);
}

int rounds_end(const struct rounds *r, int status)
{
	return status < 0 ? report_failed(r->path, status) : status;
}

const json_t *row_named(const json_t *list, const char *key, const char *text)
{
	const json_t *one;
	size_t k;

	json_array_foreach(list, k, one)
		if (!strcmp(string_at(one, key), text))
			return one;
	return NULL;
}

double number_at(const json_t *object, const char *key)
{
	return (double)json_integer_value(json_object_get(object, key));
}

double sum_at(const json_t *list, const char *key)
{
	const json_t *one;
	double sum = 0;
	size_t k;

	json_array_foreach(list, k, one)
		sum += number_at(one, key);
	return sum;
}

const char *string_at(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "?";
}

double rate_at(const json_t *before, const json_t *after, const char *key, double seconds)
{
	return (number_at(after, key) - number_at(before, key)) / seconds;
}

double counter_rate(const json_t *before, const json_t *after, const char *counter, double seconds)
{
	return rate_at(json_object_get(before, "counters"), json_object_get(after, "counters"), counter, seconds);
}

/* ---- how long things took ---- */

const json_t *latency_row(const json_t *report, const char *of, const char *kind)
{
	const json_t *row;
	size_t k;

	json_array_foreach(json_object_get(report, "latencies"), k, row) {
		const char *its_of = json_string_value(json_object_get(row, "of")), *its = json_string_value(json_object_get(row, "kind"));

		if (its_of && its && !strcmp(its_of, of) && !strcmp(its, kind))
			return row;
	}
	return NULL;
}

struct bucket {
	double bound_ns, n;
};

static int by_bound(const void *a, const void *b)
{
	const struct bucket *x = a, *y = b;

	return (x->bound_ns > y->bound_ns) - (x->bound_ns < y->bound_ns);
}

static double percentile(const struct bucket *bucket, size_t n, double all, double part)
{
	double below = 0;

	for (size_t k = 0; k < n; k++) {
		below += bucket[k].n;
		if (below >= all * part && below > 0)
			return bucket[k].bound_ns / 1e9;
	}
	return -1;
}

void taken_between(const json_t *before, const json_t *after, struct taken *out)
{
	json_t *buckets = json_object_get(after, "below_ns"), *value;
	const json_t *old = json_object_get(before, "below_ns");
	struct bucket *bucket = calloc(json_object_size(buckets) + 1, sizeof(*bucket));
	const char *bound;
	size_t n = 0;

	*out = (struct taken){ .p50 = -1, .p99 = -1, .p999 = -1 };
	if (!bucket)
		return;
	json_object_foreach(buckets, bound, value) {
		/* (A daemon that lies may name anything.) */
		if (!parse_number(bound, 0, 2e19, &bucket[n].bound_ns))
			continue;
		bucket[n] = (struct bucket){ bucket[n].bound_ns, (double)json_integer_value(value) - number_at(old, bound) };
		out->count += bucket[n++].n;
	}
	qsort(bucket, n, sizeof(*bucket), by_bound);
	if (out->count > 0) {
		out->p50 = percentile(bucket, n, out->count, 0.5);
		out->p99 = percentile(bucket, n, out->count, 0.99);
		out->p999 = percentile(bucket, n, out->count, 0.999);
	}
	free(bucket);
}

/* ---- text ---- */

void put_scaled(FILE *out, double value, double scale)
{
	static const char units[] = " KMGTPE";
	unsigned u = 0;

	while (value >= 999.5 && u + 2 < sizeof(units)) {
		value /= scale;
		u++;
	}
	fprintf(out, " %6.*f%c", value == 0 || (u == 0 && value == floor(value)) || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value, units[u]);
}

void put_time(FILE *out, double seconds)
{
	static const char *const units[] = { "ns", "us", "ms", "s" };
	double value = seconds * 1e9;
	unsigned u = 0;

	if (seconds < 0) {
		fprintf(out, " %7s", "-");
		return;
	}
	while (value >= 999.5 && u < 3) {
		value /= 1000;
		u++;
	}
	fprintf(out, " %*.*f%s", u == 3 ? 6 : 5, value >= 99.95 || u == 0 ? 0 : value >= 9.995 ? 1 : 2, value, units[u]);
}

void put_percent(FILE *out, double part, double whole)
{
	if (whole > 0)
		fprintf(out, " %6.1f%%", 100 * part / whole);
	else
		fprintf(out, " %7s", "-");
}

/* How many bytes the character has, as UTF-8. 0: it is none, or commands the terminal. */
static int harmless(const unsigned char *c)
{
	int n = *c < 0x80 ? 1 : *c >= 0xc2 && *c < 0xe0 ? 2 : (*c & 0xf0) == 0xe0 ? 3 : *c >= 0xf0 && *c < 0xf5 ? 4 : 0;

	for (int k = 1; k < n; k++)
		if ((c[k] & 0xc0) != 0x80)
			return 0;
	if ((*c == 0xe0 && c[1] < 0xa0) || (*c == 0xf0 && c[1] < 0x90)) /* longer than it need be */
		return 0;
	return *c < ' ' || *c == 0x7f || (*c == 0xc2 && c[1] < 0xa0) ? 0 : n; /* U+0080 to U+009F */
}

void put_safely(FILE *out, const char *text)
{
	for (const unsigned char *c = (const unsigned char *)text; *c;) {
		int n = harmless(c);

		if (n > 0)
			fwrite(c, 1, (size_t)n, out);
		else
			putc('?', out);
		c += n > 0 ? n : *c == 0xc2 && (c[1] & 0xc0) == 0x80 ? 2 : 1;
	}
}

int name_columns(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += (*text & 0xc0) != 0x80;
	return n;
}

void put_name(FILE *out, int columns, const char *text)
{
	int left = columns - name_columns(text);

	put_safely(out, text);
	fprintf(out, "%*s", left > 0 ? left : 0, "");
}
