/*
 * both.h - make the same calls on a mount and on a plain directory, and compare.
 *
 * The plain directory is the specification: it lies on the file system that
 * also backs the mount. An expression given to these macros is evaluated once
 * for each side, with `side` (ON_MOUNT, ON_PLAIN) and `at` (a descriptor of that side's root
 * directory) in scope; pass relative names and *at() calls.
 *
 *	SAME(mkdirat(at, "d", 0755));			result and errno agree
 *	SAME_FD(fd, openat(at, "f", O_RDWR));		fd[side], both or neither
 *	SAME(pwrite(fd[side], "x", 1, 0));
 *	both_same_tree();				names, modes, contents... agree
 */
#ifndef GAIA_TESTS_BOTH_H
#define GAIA_TESTS_BOTH_H

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum both_side { ON_MOUNT, ON_PLAIN };

/* Descriptors of the two roots, set by both_open(). */
extern int both_root[2];

void both_open(const char *mount, const char *plain);
void both_close(void);

/*
 * The mount's file @name stays known to the kernel until both_close(), though nobody opens it: what the kernel forgets, as others may drop
 * its caches at any time, the daemon drops, or stores at once. Eight files at most.
 */
void both_keep(const char *name);

/* Both trees print the same; the differing line is the assert's message. */
void both_same_tree(void);

/* What programs see of a file agrees: type, mode, links, owner, size, device number. */
void both_same_stat(const struct stat st[2], const char *what);

/* The common value; -1 leaves errno set. */
#define SAME(call)                                                                             \
	({                                                                                     \
		long both_r[2];                                                                \
		int both_e[2];                                                                 \
		for (int side = 0; side < 2; side++) {                                         \
			int at __attribute__((unused)) = both_root[side];                      \
			errno = 0;                                                             \
			both_r[side] = (call);                                                 \
			both_e[side] = both_r[side] < 0 ? errno : 0;                           \
		}                                                                              \
		cr_assert(both_r[0] == both_r[1] && both_e[0] == both_e[1],                    \
			  "%s: on the mount %ld (%s), on a plain directory %ld (%s)", #call,   \
			  both_r[0], strerror(both_e[0]), both_r[1], strerror(both_e[1]));     \
		errno = both_e[0];                                                             \
		both_r[0];                                                                     \
	})

/* As SAME, and it must succeed. */
#define SAME_OK(call)                                                                          \
	({                                                                                     \
		long both_ok = SAME(call);                                                     \
		cr_assert(both_ok >= 0, "%s: %s", #call, strerror(errno));                     \
		both_ok;                                                                       \
	})

/* As SAME, and it must fail with that errno. */
#define SAME_ERR(call, err)                                                                    \
	do {                                                                                   \
		cr_assert_eq(SAME(call), -1, "%s succeeded", #call);                           \
		cr_assert_eq(errno, (err), "%s: %s", #call, strerror(errno));                  \
	} while (0)

/* For calls that return descriptors: those of the two sides differ. */
#define SAME_FD(fds, call)                                                                     \
	do {                                                                                   \
		int both_fe[2];                                                                \
		for (int side = 0; side < 2; side++) {                                         \
			int at __attribute__((unused)) = both_root[side];                      \
			errno = 0;                                                             \
			(fds)[side] = (call);                                                  \
			both_fe[side] = (fds)[side] < 0 ? errno : 0;                           \
		}                                                                              \
		cr_assert_eq(both_fe[0], both_fe[1],                                           \
			     "%s: on the mount %s, on a plain directory %s", #call,            \
			     strerror(both_fe[0]), strerror(both_fe[1]));                      \
		errno = both_fe[0];                                                            \
	} while (0)

#define SAME_FD_OK(fds, call)                                                                  \
	do {                                                                                   \
		SAME_FD(fds, call);                                                            \
		cr_assert((fds)[0] >= 0, "%s: %s", #call, strerror(errno));                    \
	} while (0)

#define SAME_CLOSE(fds) SAME_OK(close((fds)[side]))

#endif
