/*
 * thread_sleeps.h - for tests that wait until a thread waits.
 */
#ifndef GAIA_TESTS_THREAD_SLEEPS_H
#define GAIA_TESTS_THREAD_SLEEPS_H

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* As in proc_pid_stat(5). */
static inline char thread_state(int tid)
{
	char path[64], line[512], *state;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	f = fopen(path, "re");
	cr_assert_not_null(f);
	cr_assert_not_null(fgets(line, sizeof(line), f));
	fclose(f);
	state = strrchr(line, ')');
	return state ? state[2] : 0;
}

/* Whether a thread of this process waits: for a lock, or in a page fault, where there is nothing else to wait for. */
static inline bool thread_sleeps(int tid)
{
	return thread_state(tid) == 'S';
}

#endif
