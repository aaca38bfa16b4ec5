/*
 * hostile.h - a mount of root's, and nobody, who attacks it.
 */
#ifndef GAIA_TESTS_HOSTILE_H
#define GAIA_TESTS_HOSTILE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "raw_client.h"
#include "report.h"
#include "threads.h"
#include "ways.h"

#define NOBODY 65534
#define SOMEBODY 65533 /* another user, who does no harm */

/* What attacker and test both see; each attacker says what it counts. */
extern volatile struct shared {
	int count, more, done;
	int error;
	bool stop;
} *shared;

extern struct gate ready; /* opened by the attacker */

/* The user that attackers become; may be set before they start. */
extern uid_t hostile_uid;

static inline void hostile_become(void)
{
	child_become(hostile_uid, hostile_uid);
}

/* First thing in a test, which is an EACH_WAY_BARE(). */
static inline void hostile_start(const char *const *args)
{
	if (geteuid())
		WAY_SKIP("needs root, to be another user as well");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(shared, MAP_FAILED);
	ready = gate_make();
	way_start(args);
}

/* Run the attacker, which becomes nobody by itself, until it is ready. */
static inline pid_t hostile_attack(int (*fn)(void *))
{
	pid_t pid = child_start(fn, NULL);

	cr_assert(gate_pass(ready), "the attacker is not ready");
	return pid;
}

/* Until the attacker's mapping has ended: it does not say when it has gone. */
static inline void hostile_await_end_of_mapping(void)
{
	time_t end = time(NULL) + HANG_SECONDS;
	long mappings = 1;

	while (mappings > 0 && time(NULL) < end) {
		json_t *status = report("status", "."), *row;
		size_t i;

		mappings = 0;
		json_array_foreach(json_object_get(status, "users"), i, row)
			if (NUMBER(row, "uid") == (long)hostile_uid)
				mappings = NUMBER(row, "mappings");
		json_decref(status);
		usleep(10000);
	}
	cr_assert_eq(mappings, 0, "the attacker's mapping does not end");
}

/* Before Criterion's timeout, which says nothing. */
#define HOSTILE_SECONDS (WAY_SECONDS - 20)

/* Wait for what @attacker, or the daemon, brings about. If that does not come about: where all of their threads are. */
#define HOSTILE_WAIT(attacker, condition)                                                           \
	do {                                                                                        \
		time_t end_ = time(NULL) + HOSTILE_SECONDS;                                         \
                                                                                                    \
		while (!(condition)) {                                                              \
			if (time(NULL) >= end_) {                                                   \
				threads_show((attacker), "attacker");                               \
				threads_show(mnt.daemon, "daemon");                                 \
				cr_assert_fail("not in %d s: %s (count %d, more %d)",               \
					       HOSTILE_SECONDS, #condition,                         \
					       shared ? shared->count : 0, shared ? shared->more : 0); \
			}                                                                           \
			usleep(1000);                                                               \
		}                                                                                   \
	} while (0)

static inline void hostile_add(volatile int *n)
{
	__atomic_fetch_add(n, 1, __ATOMIC_SEQ_CST);
}

/* The attacker's: keep what was taken until the test kills us. */
static inline _Noreturn void hostile_keep(void)
{
	gate_open(ready);
	for (;;)
		pause();
}

/* A file of root's on the mount that all may read. */
static inline int hostile_file(const char *name, size_t size)
{
	int fd = open(mnt_file(&mnt, name), O_RDWR | O_CREAT | O_CLOEXEC, 0644);

	cr_assert_geq(fd, 0, "%s: %s", name, strerror(errno));
	cr_assert_eq(ftruncate(fd, (off_t)size), 0);
	return fd;
}

/* To as many descriptors as the process may have. */
static inline void hostile_raise_limit(void)
{
	struct rlimit r;

	getrlimit(RLIMIT_NOFILE, &r);
	r.rlim_cur = r.rlim_max;
	setrlimit(RLIMIT_NOFILE, &r);
}

#endif
