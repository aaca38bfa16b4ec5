/*
 * rows.c - see rows.h.
 */
#include "rows.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sections.h"

#define LABELS 4u
#define WARM_UP 2u
#define ENOUGH_US 250e3 /* of repetitions of one thing */

/* ---- time ---- */

double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

void sample(struct samples *s, double v)
{
	if (s->n < sizeof(s->v) / sizeof(s->v[0]))
		s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double quantile(struct samples *s, double p)
{
	if (!s->n)
		return 0;
	qsort(s->v, s->n, sizeof(s->v[0]), by_value);
	return s->v[(unsigned)(p * (s->n - 1) + 0.5)];
}

double median(struct samples *s)
{
	return quantile(s, 0.5);
}

struct repeat repeat(unsigned most)
{
	return (struct repeat){ .most = quick || most < 3 ? 3 : most, .warm_up = WARM_UP, .begun = now_us() };
}

bool again(struct repeat *r)
{
	double now = now_us();

	/* What takes long is warm after one. */
	if (r->i == 1 && now - r->begun > ENOUGH_US / 5)
		r->warm_up = 1;
	if (r->i == r->warm_up)
		r->until = now + ENOUGH_US;
	if (r->i == r->warm_up + r->most || (r->i >= r->warm_up + 3 && now > r->until))
		return false;
	r->i++;
	return true;
}

void took(const struct repeat *r, struct samples *s, double us)
{
	if (r->i > r->warm_up)
		sample(s, us);
}

/* ---- rows ---- */

static const char *section = "none";
static bool simulated;
static struct {
	const char *name, *value;
} label[LABELS];

static struct {
	char text[4096];
	size_t len;
	bool first, has_n;
} row;

void rows_section(const char *name)
{
	section = name;
}

void rows_simulated(void)
{
	simulated = true;
}

void rows_label(const char *name, const char *value)
{
	unsigned i = 0;

	while (label[i].name && strcmp(label[i].name, name) != 0)
		if (++i == LABELS)
			die("too many labels");
	label[i].name = name;
	label[i].value = value;
}

static void put(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void put(const char *fmt, ...)
{
	size_t left = sizeof(row.text) - row.len;
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(row.text + row.len, left, fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= left)
		die("a row of section %s is too long", section);
	row.len += (size_t)n;
}

static void put_string(const char *s)
{
	put("\"");
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			put("\\%c", *s);
		else if ((unsigned char)*s < ' ')
			put(" ");
		else
			put("%c", *s);
	}
	put("\"");
}

static void put_name(const char *name)
{
	put(row.first ? "" : ", ");
	row.first = false;
	put_string(name);
	put(": ");
}

void row_text(const char *name, const char *text)
{
	put_name(name);
	put_string(text);
}

void row_bool(const char *name, bool v)
{
	put_name(name);
	put(v ? "true" : "false");
}

void row_number(const char *name, double v)
{
	if (!isfinite(v))
		return;
	put_name(name);
	if (v == floor(v) && fabs(v) < 1e15)
		put("%.0f", v);
	else
		put("%.6g", v);
}

static void begin(const char *what)
{
	row.len = 0;
	row.first = true;
	row.has_n = false;
	put("{");
	row_text("section", section);
	row_text("what", what);
	for (unsigned i = 0; i < LABELS; i++)
		if (label[i].name && label[i].value)
			row_text(label[i].name, label[i].value);
}

void row_begin(const char *fmt, ...)
{
	char what[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	begin(what);
}

void row_samples(const char *name, struct samples *s)
{
	char wide[64];

	if (!s->n)
		return;
	row_number(name, median(s));
	snprintf(wide, sizeof(wide), "%s_p10", name);
	row_number(wide, quantile(s, 0.1));
	snprintf(wide, sizeof(wide), "%s_p90", name);
	row_number(wide, quantile(s, 0.9));
	if (!row.has_n)
		row_number("n", s->n);
	row.has_n = true;
}

void row_rate(double bytes, double us, double ceiling)
{
	double rate = us > 0 ? bytes / us / 1e3 : NAN;

	row_number("gb_s", rate);
	if (ceiling <= 0)
		return;
	row_number("ceiling_gb_s", ceiling);
	row_number("of_ceiling", rate / ceiling);
}

void row_open(const char *name)
{
	put_name(name);
	put("{");
	row.first = true;
}

void row_close(void)
{
	put("}");
	row.first = false;
}

void row_end(void)
{
	ssize_t n;

	if (simulated)
		row_bool("simulated", true);
	put("}\n");
	n = write(STDOUT_FILENO, row.text, row.len);
	if (n < 0 || (size_t)n != row.len)
		die("standard output cannot be written");
}

void row_not_run(const char *what, const char *fmt, ...)
{
	char why[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(why, sizeof(why), fmt, args);
	va_end(args);
	begin(what);
	row_text("not_run", why);
	row_end();
}
