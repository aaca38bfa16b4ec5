/*
 * report.h - what gaia(1) reports of a test's mount (ways.h), as JSON.
 */
#ifndef GAIA_TESTS_REPORT_H
#define GAIA_TESTS_REPORT_H

#include <jansson.h>

/* What `gaia COMMAND NAME --json` says of a file of the mount; to be let go (json_decref()). */
json_t *report(const char *command, const char *name);

/* The integer at a path of keys and indices: NUMBER(status, "devices", "1", "used"). */
long report_number(json_t *json, const char *const *path);
#define NUMBER(json, ...) report_number(json, (const char *const[]){ __VA_ARGS__, NULL })

/* The same of `gaia status`, at once: STATUS("counters", "acquires"). */
long report_status(const char *const *path);
#define STATUS(...) report_status((const char *const[]){ __VA_ARGS__, NULL })

#endif
