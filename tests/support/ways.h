/*
 * ways.h - tests that run in both of the kernel's caching ways.
 *
 *	BOTH_WAYS(fs_names, mkdir_and_rmdir)
 *	{
 *		SAME_OK(mkdirat(at, "d", 0755));
 *	}
 *
 * becomes the tests mkdir_and_rmdir_writeback and mkdir_and_rmdir_writethrough, each on
 * a fresh mount `mnt` next to a plain directory on the same file system (both.h). At the end the
 * mount must stop cleanly. BOTH_WAYS_BARE leaves the start to the test: way_start().
 */
#ifndef GAIA_TESTS_WAYS_H
#define GAIA_TESTS_WAYS_H

#include <criterion/criterion.h>

#include "both.h"
#include "mountpoint.h"

/* This test's mount, and its directory that no gaiafs knows. */
extern struct mnt mnt;
extern char plain_dir[];

/* "writeback" or "writethrough". */
extern const char *way;

/* Mount, with more options (NULL-terminated, or NULL), and open both roots. */
void way_start(const char *const *args);
/* As way_start(), over a backing directory of the test's own, beside the plain directory @plain. */
void way_start_at(const char *backing, const char *plain, const char *const *args);
/* Unmount; mnt.backing stays to be looked at until the test ends. */
void way_unmount(void);
/* Mount what way_unmount() or mnt_crash() left. */
void way_remount(void);

/* What is in the backing directory under @name equals @text. */
void backing_holds(const char *name, const void *bytes, size_t n);

void way_init_auto(void);
void way_bare_auto(void);
void way_init_writeback(void);
void way_init_writethrough(void);
void way_bare_writeback(void);
void way_bare_writethrough(void);
/* Assert a clean end, if something is mounted. */
void way_end(void);
/* The same without a word: the test has failed already. */
void way_clean_up(void);

/* Skip the test, saying why. Criterion does not tidy up after a test that is skipped. */
#define WAY_SKIP(...)                      \
	do {                               \
		way_clean_up();            \
		cr_skip_test(__VA_ARGS__); \
	} while (0)

#define WAY_SECONDS 100

#define WAY_TEST(suite, name, w, init_fn)                                               \
	Test(suite, name##_##w, .init = init_fn, .fini = way_clean_up, .timeout = WAY_SECONDS) \
	{                                                                               \
		suite##_##name();                                                       \
		way_end();                                                              \
	}

/* The two in which all files are cached, for what only the cache can do (faults of the store, for one). */
#define CACHED_WAYS(suite, name)                                  \
	static void suite##_##name(void);                         \
	WAY_TEST(suite, name, writeback, way_init_writeback)      \
	WAY_TEST(suite, name, writethrough, way_init_writethrough) \
	static void suite##_##name(void)

#define CACHED_WAYS_BARE(suite, name)                             \
	static void suite##_##name(void);                         \
	WAY_TEST(suite, name, writeback, way_bare_writeback)      \
	WAY_TEST(suite, name, writethrough, way_bare_writethrough) \
	static void suite##_##name(void)

#define EACH_WAY(suite, name)                                     \
	static void suite##_##name(void);                         \
	WAY_TEST(suite, name, auto, way_init_auto)                \
	WAY_TEST(suite, name, writeback, way_init_writeback)      \
	WAY_TEST(suite, name, writethrough, way_init_writethrough) \
	static void suite##_##name(void)

#define EACH_WAY_BARE(suite, name)                                \
	static void suite##_##name(void);                         \
	WAY_TEST(suite, name, auto, way_bare_auto)                \
	WAY_TEST(suite, name, writeback, way_bare_writeback)      \
	WAY_TEST(suite, name, writethrough, way_bare_writethrough) \
	static void suite##_##name(void)

/* Until all have moved to one of the above. */
#define BOTH_WAYS CACHED_WAYS
#define BOTH_WAYS_BARE CACHED_WAYS_BARE

#endif
