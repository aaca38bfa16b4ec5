/*
 * upgrading.h - upgrades of the suite's mount.
 */
#ifndef GAIA_TESTS_UPGRADING_H
#define GAIA_TESTS_UPGRADING_H

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "ways.h"

/* @option: besides --upgrade; or NULL. 0, or a status that is not 0; what was said then is shown. */
static inline int upgrade(const char *option)
{
	char said[512];
	int status = mnt_upgrade(&mnt, option, said);

	if (status)
		fprintf(stderr, "%s", said);
	return status;
}

/* The upgrade fails, and says @why. */
static inline void refused(const char *option, const char *why)
{
	pid_t daemon = mnt.daemon;
	char said[512];

	cr_assert_eq(mnt_upgrade(&mnt, option, said), 1, "%s: %s", why, said);
	cr_assert(strstr(said, why), "%s: %s", why, said);
	cr_assert_eq(mnt.daemon, daemon);
	cr_assert_eq(kill(daemon, 0), 0);
	/* The new daemon's status nobody sees. */
	cr_assert_eq(mnt_log_lines(&mnt, "Sanitizer"), 0);
}

static inline int open_file(const char *name, int flags)
{
	int fd = openat(both_root[ON_MOUNT], name, flags | O_CLOEXEC, 0644);

	cr_assert_geq(fd, 0, "%s: %s", name, strerror(errno));
	return fd;
}

#endif
