/*
 * mountpoint.h - a gaiafs mount of a test's own.
 *
 *	struct mnt m;
 *	const char *args[] = { "--device", "sim:8M", NULL };
 *	struct mnt_options o = { .args = args };
 *
 *	mnt_start(&m, &o);		files below m.path; m.backing_fd sees beneath it
 *	mnt_crash(&m); mnt_restart(&m);	kill -9, and again over the same backing
 *	mnt_stop(&m);			unmount, daemon's exit status, nothing left
 *
 * The daemon is a child of the caller. A second process, the guard, waits for the
 * caller's death, whatever its cause, and then kills the daemon, detaches the
 * mount and removes the directory: so a test that crashes, times out or is killed
 * leaks nothing.
 *
 * Not thread-safe: one thread uses a struct mnt at a time, and it must be the one
 * process that started it (children forked later must not call any of this).
 * Failures are reported on stderr, with the daemon's log.
 */
#ifndef GAIA_TESTS_MOUNTPOINT_H
#define GAIA_TESTS_MOUNTPOINT_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

struct mnt_options {
	/* The daemon's binary. NULL: $GAIAFS, or the one of this build. */
	const char *gaiafs;

	/*
	 * Its options beyond source, mount point and -f; ends with NULL. NULL: none. Unless they set --device-age or
	 * --writeback-age, nothing is fetched from devices by age.
	 */
	const char *const *args;

	/* Mount this directory, and leave it when done. NULL: an empty one, of the mount's own. */
	const char *backing;

	/* Mount over the backing directory itself. */
	bool over;

	/* Without -f: the command must return 0, and the mount be live by then. */
	bool background;
};

struct mnt {
	/* Constant from mnt_start() to mnt_stop(). */
	char dir[PATH_MAX / 2];		/* temporary, holds all of the below */
	char path[PATH_MAX];		/* the mount point */
	char backing[PATH_MAX];		/* the directory beneath */
	char log[PATH_MAX];		/* the daemon's output; a restart appends to it */
	int backing_fd;			/* the directory, opened before the mount: for the *at() calls */
	struct mnt_options options;	/* shallow: what it points to must last */

	/* While mounted, else 0. */
	pid_t daemon;
	pid_t guard;
};

/* Returns when the mount is live: 0; or -1, and nothing is left of it. */
int mnt_start(struct mnt *m, const struct mnt_options *options);

/* End it cleanly: 0, or -1 if that failed (something was still open, or the daemon failed). In
 * both cases nothing is left, except options.backing. */
int mnt_stop(struct mnt *m);

/* mnt_stop()'s first half: unmount and wait for the daemon's exit status 0. */
int mnt_unmount(struct mnt *m);

/* kill -9 the daemon and take the dead mount away. Programs with files open on it get ENOTCONN. */
void mnt_crash(struct mnt *m);

/* After mnt_unmount() or mnt_crash(): mount again, the same way. On -1 only mnt_stop() may follow. */
int mnt_restart(struct mnt *m);

/*
 * `gaiafs --upgrade` with @option (or NULL): its exit status. At 0 the old daemon has ended, and m->daemon is the new one. Otherwise what
 * it said is in @said (or NULL), and nothing has changed.
 */
int mnt_upgrade(struct mnt *m, const char *option, char said[512]);
/* When another process has upgraded it, after mnt_may_adopt(): 0, and m->daemon is the new one; or -1. */
int mnt_adopt(struct mnt *m);
/* The new daemon will be a child of the caller's. */
void mnt_may_adopt(void);

/* Wait for a daemon that ends by itself or was told to (SIGTERM), and remove what is left of the
 * mount. Returns its wait status, or -1 if it had not ended after a minute and was killed. */
int mnt_wait(struct mnt *m);

/* Whether no daemon serves what is at @path: its mount has died, or is gone. */
bool mnt_is_dead(const char *path);

/* Whether this user's supervisor can end a connection on which remains of a daemon hang. */
bool mnt_can_abort(void);

/* Copy the daemon's log to stderr. */
void mnt_show_log(const struct mnt *m);
/* How many lines of it contain @text. */
int mnt_log_lines(const struct mnt *m, const char *text);

/* Whether the daemon has a thread of this name. */
bool mnt_has_thread(const struct mnt *m, const char *name);

/* A word of `gaia status`. (For "cpu_cache" it may differ from the "auto" that was asked for.) 0, or -1 if
 * it is not there. */
int mnt_says(const struct mnt *m, const char *what, char word[16]);
/* A number of it, or -1. */
long mnt_number(const struct mnt *m, const char *what);

/* Absolute path of a file on the mount; the buffer is one of a few that are used in turn. */
const char *mnt_file(const struct mnt *m, const char *name);

#endif
