/*
 * cache_scene.h - shared by the suites of the page cache: one rig with one file, whose contents are texts.
 *
 * Every scene ends with end(), which checks the cache and that it gives everything back.
 */
#ifndef GAIA_TESTS_CACHE_SCENE_H
#define GAIA_TESTS_CACHE_SCENE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "base/util.h"
#include "cache_rig.h"

static struct rig *rig;
static struct kfile *kf;

static inline void begin(const struct rig_options *options, uint64_t size)
{
	rig = rig_create(options);
	kf = kfile_create(rig, 1, size);
}

static inline void begin_devices(unsigned n)
{
	begin(&(struct rig_options){ .devices = n }, 4 * GAIA_CHUNK);
}

static inline void end(void)
{
	fault_disarm_all();
	cache_check(rig->cache);
	rig_destroy(rig);
}

static inline struct client *new_client(unsigned device)
{
	return client_create(kf, device, GAIA_PROT_RW, 4 * GAIA_CHUNK);
}

/* Macros, so that a failure names the line of the test. */
#define expect_cpu(off, text)                                                              \
	do {                                                                               \
		char seen_[64] = "";                                                       \
		cr_assert_eq(cpu_read(kf, seen_, strlen(text), off), (ssize_t)strlen(text)); \
		cr_assert_str_eq(seen_, text);                                             \
	} while (0)

#define expect_store(off, text)                                   \
	do {                                                      \
		char seen_[64] = "";                              \
		store_peek(kf, seen_, strlen(text), off);         \
		cr_assert_str_eq(seen_, text);                    \
	} while (0)

/* What an acquire to read shows; held afterwards. */
#define expect_device(cl, off, text)                                                       \
	do {                                                                               \
		char seen_[64] = "";                                                       \
		cr_assert_eq(client_acquire(cl, off, strlen(text), GAIA_PROT_READ), 0);    \
		client_load(cl, seen_, strlen(text), off);                                 \
		cr_assert_str_eq(seen_, text);                                             \
	} while (0)

static inline void write_cpu(uint64_t off, const char *text)
{
	cr_assert_eq(cpu_write(kf, text, strlen(text), off), 0);
}

static inline void store_cpu(uint64_t off, const char *text)
{
	cr_assert_eq(cpu_store(kf, text, strlen(text), off), 0);
}

/* Acquired, written, not released. */
static inline void write_device(struct client *cl, uint64_t off, const char *text)
{
	cr_assert_eq(client_acquire(cl, off, strlen(text), GAIA_PROT_RW), 0);
	client_store(cl, text, strlen(text), off);
}

static inline void release_all(struct client *cl)
{
	cr_assert_eq(client_release(cl, 0, 4 * GAIA_CHUNK), 0);
}

#endif
