/*
 * nodes_rig.h - two gaiafs with --source shared over one directory: two nodes, on one machine.
 *
 * A test is run over the directory itself, whose kernel is the same for both, and over two clients of an engine (engine_fs.c), each with
 * a page cache and attributes of its own; and with files passed through, and with each call passed on:
 *
 * With GAIA_ENGINE_CLIENTS=DIR:DIR these are used as the engine's two clients: two mounts of a GlusterFS volume, say.
 *
 *	ALL(nodes, what_one_makes_the_other_sees)
 *	{
 *		put(0, "f", "text");
 *		has(1, "f", "text");
 *	}
 */
#ifndef GAIA_TESTS_NODES_RIG_H
#define GAIA_TESTS_NODES_RIG_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "mountpoint.h"

#define NODES 2
#define NODES_SECONDS 200

extern struct mnt node[NODES];
extern int at[NODES]; /* their roots */
extern char top[PATH_MAX], files[PATH_MAX + 16]; /* a directory for the test, and in it the one that all share */
extern int below; /* the latter */

/* @names_age: NULL: the source is not shared, only node 0 is to be used. @engine_option: of engine_fs.c, or "". False: that cannot be here, and stderr says why. */
bool nodes_start(bool engine, bool passthrough, const char *names_age, const char *engine_option);
/* Assert a clean end, if there are any. */
void nodes_stop(void);

/* A test is the function @name, run on nodes of one kind. */
#define ON(suite, name, kind, engine, passthrough, ...)                             \
	Test(suite, name##_##kind, .timeout = NODES_SECONDS, .fini = nodes_stop)    \
	{                                                                           \
		if (!nodes_start(engine, passthrough, __VA_ARGS__)) {               \
			nodes_stop();                                               \
			cr_skip_test(#name ": needs root, and passthrough if _passed"); \
		}                                                                   \
		name();                                                             \
		nodes_stop();                                                       \
	}
#define PASSED(suite, name)                               \
	static void name(void);                           \
	ON(suite, name, passed, false, true, "0", "")     \
	ON(suite, name, passed_engine, true, true, "0", "")
#define DIRECT(suite, name)                               \
	static void name(void);                           \
	ON(suite, name, direct, false, false, "0", "")    \
	ON(suite, name, direct_engine, true, false, "0", "")
#define ALL(suite, name)    \
	PASSED(suite, name) \
	DIRECT(suite, name) \
	static void name(void)

/* Open @name on a node; asserts that it works. */
int open_at(int n, const char *name, int flags);
/* Write a file on a node, from open to close. */
void put(int n, const char *name, const char *bytes);
/* Assert that it is these bytes to a node that opens it. */
void has(int n, const char *name, const char *bytes);
/* Whether a node has the name: by looking it up as by listing. */
bool is_there(int n, const char *name);
/* A counter of its daemon. */
long counter_of(int n, const char *name);

#endif
