/*
 * cache_marks.h - a file with a mark in each page, acquired as a whole. Define CHUNKS, how many it has, before including this.
 */
#ifndef GAIA_TESTS_CACHE_MARKS_H
#define GAIA_TESTS_CACHE_MARKS_H

#include "cache_scene.h"
#include "pagecache/cache.h"
#include "pagecache/file.h"

#define LEN (CHUNKS * (uint64_t)GAIA_CHUNK)
#define PAGES (CHUNKS * GAIA_CHUNK_PAGES)
#define BIG_HOME (256ull << 20) /* the most is read ahead in it */

/* What page @i of the file begins with. */
static inline uint64_t mark(uint64_t i)
{
	return i * 0x9e3779b97f4a7c15ull | 1;
}

/* A file with a mark in each page, of which nothing is home. */
static inline void begin_cold_on(unsigned devices, unsigned device_chunks, uint64_t home_bytes)
{
	begin(&(struct rig_options){ .devices = devices, .device_chunks = device_chunks, .home_bytes = home_bytes }, LEN);
	for (uint64_t i = 0; i < PAGES; i++) {
		uint64_t m = mark(i);

		cr_assert_eq(cache_write(kf->cfile, &m, sizeof(m), (off_t)(i * GAIA_PAGE), CACHE_WRITE_EXACT), 0);
	}
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
}

static inline struct client *whole(unsigned device)
{
	return client_create(kf, device, GAIA_PROT_RW, LEN);
}

/* In chunks [a, b). */
static inline void expect_marks_in(struct client *cl, uint64_t a, uint64_t b)
{
	for (uint64_t i = a * GAIA_CHUNK_PAGES; i < b * GAIA_CHUNK_PAGES; i++) {
		uint64_t m;

		client_load(cl, &m, sizeof(m), i * GAIA_PAGE);
		cr_assert_eq(m, mark(i), "page %lu", (unsigned long)i);
	}
}

static inline void expect_marks(struct client *cl)
{
	expect_marks_in(cl, 0, CHUNKS);
}

#endif
