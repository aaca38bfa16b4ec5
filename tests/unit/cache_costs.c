/*
 * cache_costs.c - what requests cost: reads of the store, by how many runs of pages lie there, not by pages.
 */
#include <linux/falloc.h>

#include "base/counters.h"
#include "cache_scene.h"
#include "pagecache/cache.h"

#define AT(page) ((uint64_t)(page) * GAIA_PAGE)
/* A run is read by two requests at most: from here to there, and past the middle of a chunk. */
#define RUNS_OF_A_CHUNK 2u

static char chunk[GAIA_CHUNK];

static struct {
	uint64_t pages, runs;
} before;

static void reads_begin(void)
{
	before.pages = counter_value(CTR_storage_reads);
	before.runs = counter_value(CTR_storage_read_runs);
}

#define expect_reads(pages_, runs_)                                                                \
	do {                                                                                       \
		cr_assert_eq(counter_value(CTR_storage_reads) - before.pages, (pages_));           \
		cr_assert_leq(counter_value(CTR_storage_read_runs) - before.runs, (runs_),         \
			      "%lu runs",                                                          \
			      (unsigned long)(counter_value(CTR_storage_read_runs) - before.runs)); \
	} while (0)

/* What is in the store, and nowhere else. */
static void begin_stored(unsigned devices)
{
	begin_devices(devices);
	memset(chunk, '.', sizeof(chunk));
	cr_assert_eq(cpu_write_direct(kf, chunk, sizeof(chunk), 0), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
}

/* Every @step-th page of the chunk is changed at @at, and not released yet. */
static struct client *change_pages(unsigned device, unsigned at, unsigned step)
{
	struct client *cl = new_client(device);

	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_RW), 0);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i += step)
		client_store(cl, "d", 1, AT(i) + at);
	return cl;
}

Test(costs, merge_bases_are_read_in_runs)
{
	struct client *cl[2];

	begin_stored(2);
	for (unsigned d = 0; d < 2; d++)
		cl[d] = change_pages(d, d + 1, 1);
	for (unsigned d = 0; d < 2; d++)
		release_all(cl[d]);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	reads_begin();
	cr_assert_eq(cpu_read_direct(kf, chunk, sizeof(chunk), 0), (ssize_t)sizeof(chunk));
	expect_reads(GAIA_CHUNK_PAGES, RUNS_OF_A_CHUNK);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		cr_assert_eq(memcmp(chunk + AT(i), ".dd.", 4), 0, "page %u", i);
	end();
}

/* Of those pages only that need one. */
Test(costs, merge_bases_that_lie_apart_are_read_apart)
{
	struct client *cl[2];

	begin_stored(2);
	for (unsigned d = 0; d < 2; d++)
		cl[d] = change_pages(d, d + 1, 4);
	for (unsigned d = 0; d < 2; d++)
		release_all(cl[d]);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	reads_begin();
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_reads(GAIA_CHUNK_PAGES / 4, GAIA_CHUNK_PAGES / 4);
	cr_assert_eq(cpu_read_direct(kf, chunk, sizeof(chunk), 0), (ssize_t)sizeof(chunk));
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		cr_assert_eq(memcmp(chunk + AT(i), i % 4 ? "...." : ".dd.", 4), 0, "page %u", i);
	end();
}

Test(costs, bases_that_a_write_covers_are_read_in_runs)
{
	struct client *cl;

	begin_stored(1);
	cl = change_pages(0, 1, 1);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	memset(chunk, 'w', sizeof(chunk));
	reads_begin();
	cr_assert_eq(cpu_write_direct(kf, chunk, sizeof(chunk), 0), 0);
	expect_reads(GAIA_CHUNK_PAGES, RUNS_OF_A_CHUNK);
	release_all(cl);
	cr_assert_eq(cpu_read_direct(kf, chunk, sizeof(chunk), 0), (ssize_t)sizeof(chunk));
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		cr_assert_eq(memcmp(chunk + AT(i), "wdww", 4), 0, "page %u", i);
	end();
}

Test(costs, bases_of_what_is_punched_are_read_in_runs)
{
	struct client *cl;

	begin_stored(1);
	cl = change_pages(0, 1, 1);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	reads_begin();
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_CHUNK), 0);
	expect_reads(GAIA_CHUNK_PAGES, RUNS_OF_A_CHUNK);
	release_all(cl);
	cr_assert_eq(cpu_read_direct(kf, chunk, sizeof(chunk), 0), (ssize_t)sizeof(chunk));
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		cr_assert_eq(memcmp(chunk + AT(i), "\0d\0", 4), 0, "page %u", i);
	end();
}
