/*
 * rates.h - what happened between two reports of a mount: for gaia stat and gaia top.
 *
 * Reports are those of GAIA_REPORT_STATUS. One thread.
 */
#ifndef GAIA_TOOL_RATES_H
#define GAIA_TOOL_RATES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

struct args;

#define INTERVAL_LEAST 0.1
#define INTERVAL_MOST 86400.0

/* Seconds of CLOCK_MONOTONIC. */
double clock_seconds(void);

/* A report of @path's mount (GAIA_REPORT_*), to be let go. 0 or a negative errno. */
int fetch_json(const char *path, unsigned what, json_t **out);
/* Says why fetch_json() gave no report; or -ESTALE, that another daemon serves the mount. Returns the exit status. */
int report_failed(const char *path, int err);
/* The row of the list in which this is the text of that name. NULL: there is none. */
const json_t *row_named(const json_t *list, const char *key, const char *text);

/* ---- reports, one interval after the other ---- */

struct rounds {
	const char *path; /* of the mount; NULL: of all */
	double interval, count; /* in seconds; may be INFINITY */
	/* Return at @until (clock_seconds()), or earlier. False: there shall be no more rounds. */
	bool (*wait)(double until, void *arg);
	/* Of round @n, from 0 on, with the seconds between the two reports. An exit status: EXIT_OK to go on. */
	int (*show)(const json_t *before, const json_t *after, double seconds, double n, void *arg);
	void *arg;
};
/* [PATH] [INTERVAL [COUNT]]; a number is no path. With an interval alone, without end. False: they are wrong. What else is not given stays as it is. */
bool rounds_parse(const struct args *a, struct rounds *r);
/* Says nothing. An exit status, or a negative errno (-ESTALE: another daemon serves the mount), for rounds_end(). */
int rounds_run(const struct rounds *r);
/* Says what is wrong, if something is. The exit status. */
int rounds_end(const struct rounds *r, int status);
/* For rounds.wait: sleeps. */
bool rounds_sleep(double until, void *arg);

/* The integer of that name, as a double; 0: there is none. */
double number_at(const json_t *object, const char *key);
/* The same of all rows of a list, added up. */
double sum_at(const json_t *list, const char *key);
/* The text of that name; "?": there is none. */
const char *string_at(const json_t *object, const char *key);
/* A counter of two reports: the difference a second. */
double counter_rate(const json_t *before, const json_t *after, const char *counter, double seconds);
/* The same of an integer of two objects. */
double rate_at(const json_t *before, const json_t *after, const char *key, double seconds);

/* What took how long meanwhile; times in seconds. A percentile is at most an eighth too high. */
struct taken {
	double count, p50, p99, p999;
};
/* Of the kind that @after is a row of, in "latencies"; in @before it may be missing. */
void taken_between(const json_t *before, const json_t *after, struct taken *out);
/* The row of the kind, or NULL. */
const json_t *latency_row(const json_t *report, const char *of, const char *kind);

/* " 12.3 ", " 456 ", " 1.23M": 8 characters, K being @scale. */
void put_scaled(FILE *out, double value, double scale);
/* " 12.3us": 8 characters. Negative: nothing is known. */
void put_time(FILE *out, double seconds);
/* " 12.3%": 8 characters; of nothing "-". */
void put_percent(FILE *out, double part, double whole);
/* @text, as UTF-8, without characters that would send commands to the terminal. */
void put_safely(FILE *out, const char *text);
/* How many columns its characters take, each being one. */
int name_columns(const char *text);
/* The same, with blanks up to so many columns. */
void put_name(FILE *out, int columns, const char *text);

#endif
