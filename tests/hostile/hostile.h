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
#include <unistd.h>

#include "child.h"
#include "mountpoint.h"
#include "raw_client.h"

#define NOBODY 65534
#define SOMEBODY 65533 /* another user, who does no harm */

static struct mnt mnt;

/* What attacker and test both see. */
static struct shared {
	int count;
	int error;
} *shared;

static inline void hostile_begin(const char *const *args)
{
	struct mnt_options o = { .args = args };

	if (geteuid())
		cr_skip_test("needs root, to be another user as well");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(shared, MAP_FAILED);
	cr_assert_eq(mnt_start(&mnt, &o), 0);
}

/* In the fini of each test, also of one that failed. */
static inline void hostile_clean_up(void)
{
	if (mnt.dir[0])
		mnt_stop(&mnt);
}

/* A file of root's on the mount that all may read. */
static inline int hostile_file(const char *name, size_t size)
{
	int fd = open(mnt_file(&mnt, name), O_RDWR | O_CREAT | O_CLOEXEC, 0644);

	cr_assert_geq(fd, 0, "%s: %s", name, strerror(errno));
	cr_assert_eq(ftruncate(fd, (off_t)size), 0);
	return fd;
}

/* As many descriptors as one can have. */
static inline void hostile_raise_limit(void)
{
	struct rlimit r;

	getrlimit(RLIMIT_NOFILE, &r);
	r.rlim_cur = r.rlim_max;
	setrlimit(RLIMIT_NOFILE, &r);
}

#endif
