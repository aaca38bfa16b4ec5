/*
 * rows.h - results as lines of JSON on standard output, as soon as they are known.
 *
 *	row_begin("host to device, pinned");
 *	row_number("bytes", n);
 *	row_samples("us", &s);
 *	row_end();
 *
 * A row is one object in one line, written by one write(2): what is there after a kill is whole. The
 * section and, where it applies, "simulated" are put in by themselves.
 */
#ifndef GAIA_TESTS_GPU_ROWS_H
#define GAIA_TESTS_GPU_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- time ---- */

double now_us(void);

/* Samples of one quantity. What does not fit is left out. */
struct samples {
	double v[256];
	unsigned n;
};
void sample(struct samples *s, double v);
/* @p: 0 to 1. 0 where there is no sample. */
double quantile(struct samples *s, double p);
double median(struct samples *s);

/*
 * Repetitions: some that warm up, whose times do not count, then up to @most, fewer where they take
 * long, and at least three.
 *
 *	for (struct repeat r = repeat(15); again(&r);) {
 *		double t0 = now_us();
 *		...
 *		took(&r, &s, now_us() - t0);
 *	}
 */
struct repeat {
	unsigned i, most, warm_up;
	double begun, until;
};
struct repeat repeat(unsigned most);
bool again(struct repeat *r);
void took(const struct repeat *r, struct samples *s, double us);

/* ---- rows ---- */

/* Of all rows from now on. */
void rows_section(const char *section);
/* A played driver or a simulated device is at work. */
void rows_simulated(void);
/* Said in each row from now on, under that name; NULL: no longer. Both must last. */
void rows_label(const char *name, const char *value);

/* @fmt makes the row's "what". */
void row_begin(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void row_number(const char *name, double v); /* left out if it is not finite */
void row_text(const char *name, const char *text);
void row_bool(const char *name, bool v);
/* The median, the 10th and 90th percentile as NAME_p10 and NAME_p90, and how many as n (once a row). */
void row_samples(const char *name, struct samples *s);
/*
 * GB/s of @bytes in @us. @ceiling: what the machine can do, GB/s, measured in this process; 0: not known.
 */
void row_rate(double bytes, double us, double ceiling);
/* An object in the row: what follows is its members. */
void row_open(const char *name);
void row_close(void);
void row_end(void);

/* A row that says why there is none. */
void row_not_run(const char *what, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
