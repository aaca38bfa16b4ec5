/*
 * ways.h - tests that run in each of the kernel's ways of caching.
 *
 *	EACH_WAY(fs_names, mkdir_and_rmdir)
 *	{
 *		SAME_OK(mkdirat(at, "d", 0755));
 *	}
 *
 * becomes the tests mkdir_and_rmdir_auto, mkdir_and_rmdir_writeback and mkdir_and_rmdir_writethrough, each on
 * a fresh mount `mnt` next to a plain directory on the same file system (both.h). At the end the
 * mount must stop cleanly. EACH_WAY_BARE leaves the start to the test: way_start().
 *
 * In auto files are passed through, unless a device had mapped them before they were opened; where the
 * system cannot do that, these tests are skipped.
 */
#ifndef GAIA_TESTS_WAYS_H
#define GAIA_TESTS_WAYS_H

#include <criterion/criterion.h>
#include <stdbool.h>

#include "both.h"
#include "mountpoint.h"

/* This test's mount, and its plain directory, which no gaiafs knows. */
extern struct mnt mnt;
extern char plain_dir[];

/* "auto", "writeback" or "writethrough". */
extern const char *way;
bool way_is(const char *name);

/* Mount, with more options (NULL-terminated, or NULL), and open both roots. */
void way_start(const char *const *args);
/* As way_start(), over a backing directory of the test's own, beside the plain directory @plain. */
void way_start_at(const char *backing, const char *plain, const char *const *args);
/* Unmount; mnt.backing stays to be looked at until the test ends. */
void way_unmount(void);
/* Mount what way_unmount() or mnt_crash() left. */
void way_remount(void);

/* Before the mount has seen the file: make it cached in auto, too, like one that a device mapped in an earlier mount. If
 * it does not exist an empty one is made. */
void way_make_cached(const char *name);

/* Assert that the file @name of the backing directory is these @n bytes. */
void backing_holds(const char *name, const void *bytes, size_t n);

void way_init_auto(void);
void way_bare_auto(void);
void way_init_writeback(void);
void way_init_writethrough(void);
void way_bare_writeback(void);
void way_bare_writethrough(void);
/* Assert a clean end, if something is mounted. */
void way_end(void);
/* The same without asserts: the test has failed already. */
void way_clean_up(void);

/* Skip the test, saying why. Criterion does not clean up after a test that is skipped. */
#define WAY_SKIP(...)                      \
	do {                               \
		way_clean_up();            \
		cr_skip_test(__VA_ARGS__); \
	} while (0)

/* For tests that fork() beside threads of the library which may be allocating just then, and whose children allocate, too. */
#ifdef __SANITIZE_ADDRESS__
#define WAY_NOT_FOR_ASAN WAY_SKIP("AddressSanitizer (GCC 12) does not lock its allocator for a fork(), so a child may wait for ever")
#else
#define WAY_NOT_FOR_ASAN (void)0
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WAY_SECONDS 600
#else
#define WAY_SECONDS 200
#endif

#define WAY_TEST(suite, name, w, init_fn)                                               \
	Test(suite, name##_##w, .init = init_fn, .fini = way_clean_up, .timeout = WAY_SECONDS) \
	{                                                                               \
		suite##_##name();                                                       \
		way_end();                                                              \
	}

#define EACH_WAY(suite, name)                                      \
	static void suite##_##name(void);                          \
	WAY_TEST(suite, name, auto, way_init_auto)                 \
	WAY_TEST(suite, name, writeback, way_init_writeback)       \
	WAY_TEST(suite, name, writethrough, way_init_writethrough) \
	static void suite##_##name(void)

#define EACH_WAY_BARE(suite, name)                                 \
	static void suite##_##name(void);                          \
	WAY_TEST(suite, name, auto, way_bare_auto)                 \
	WAY_TEST(suite, name, writeback, way_bare_writeback)       \
	WAY_TEST(suite, name, writethrough, way_bare_writethrough) \
	static void suite##_##name(void)

/* In the two ways in which all files go through the daemon's cache. */
#define CACHED_WAYS_BARE(suite, name)                              \
	static void suite##_##name(void);                          \
	WAY_TEST(suite, name, writeback, way_bare_writeback)       \
	WAY_TEST(suite, name, writethrough, way_bare_writethrough) \
	static void suite##_##name(void)

/* Of files that are passed through. */
#define AUTO_WAY_BARE(suite, name)                                 \
	static void suite##_##name(void);                          \
	WAY_TEST(suite, name, auto, way_bare_auto)                 \
	static void suite##_##name(void)

#endif
