/*
 * run.h - run a scenario on a mount of its own.
 */
#ifndef GAIA_LITMUS_RUN_H
#define GAIA_LITMUS_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "scenario.h"

/* How the files of a scenario are when it begins: see README.md. */
enum start { START_FRESH, START_CACHED, START_HELD, START_MAPPED };

struct run_options {
	const char *gaiafs;	/* NULL: as mountpoint.h says */
	const char *gaia;
	const char *cpu_cache;	/* "auto", "writeback" or "writethrough" */
	enum start start;
	unsigned repeat;	/* 0: what the scenario asks for, and at least 50 with a par */
	uint64_t seed;		/* of the first repetition; rises by one */
	bool host;		/* scenario_on_host() */
	bool delays;		/* the daemon lingers where others could come between */
	bool park;		/* what leaves home is parked on devices */
	bool dedup;		/* equal pages are kept once */
	unsigned seconds;	/* after which a repetition has deadlocked, if the daemon has no work */
};

struct run_report {
	unsigned repetitions;
	uint64_t slowest_ms;	/* of them */
};

/* For messages. */
const char *run_way(const struct run_options *options);

/* Whether every repetition saw only what is allowed, and the mount ended cleanly. If
 * not, stderr has why. Nothing is left running or mounted. Adds to the report. */
bool run_scenario(const struct scenario *s, const struct run_options *options,
		  struct run_report *report);

#endif
