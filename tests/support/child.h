/*
 * child.h - processes that a test starts, and how they take turns.
 *
 * Criterion's asserts work in the test's own process only. A child uses
 * CHILD_CHECK() and reports by its exit status: the test asserts
 * that child_wait() returns 0. Children die with the test.
 *
 * Turns: a gate is opened any number of times and lets as many through.
 * Make gates before the processes that share them.
 */
#ifndef GAIA_TESTS_CHILD_H
#define GAIA_TESTS_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

/* Run @fn(@arg) in a new process, which exits with what it returns. */
pid_t child_start(int (*fn)(void *arg), void *arg);
/* The exit status, or 128 + the signal that ended it. Kills it and returns -1 if it
 * does not end within a time that only a hang takes. */
int child_wait(pid_t pid);
int child_run(int (*fn)(void *arg), void *arg);
/* SIGKILL; on return the process is gone. */
void child_kill(pid_t pid);
/*
 * SIGSTOP. On return all its threads have stopped: until then they may still do something. False: it ended, or a thread
 * cannot be stopped for a time that only a hang takes, which stderr says.
 */
bool child_stop(pid_t pid);
/* The number of the system call that a thread waits in; -1: it runs, or is not there. */
long child_syscall(pid_t tid);

/* In a child: become this user for good, with one group and no privileges. */
void child_become(uid_t uid, gid_t gid);

_Noreturn void child_fail(const char *file, int line, const char *what);
#define CHILD_CHECK(cond)                                          \
	do {                                                       \
		if (!(cond))                                       \
			child_fail(__FILE__, __LINE__, #cond);     \
	} while (0)

struct gate {
	int fd;
};

struct gate gate_make(void);
void gate_open(struct gate g);
/* False when nobody opened it within a time that only a hang takes. */
bool gate_pass(struct gate g);

/* Seconds after which a test says that something hangs: less than WAY_SECONDS (ways.h), which says nothing. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HANG_SECONDS 240
#else
#define HANG_SECONDS 80
#endif

#endif
