/*
 * cache_streams.c - reads and writes in order are carried out in few, large steps.
 */
#include "cache_scene.h"

#define PAGES 100u

static void read_page(uint64_t page)
{
	char bytes[GAIA_PAGE];

	cr_assert_eq(cpu_read_direct(kf, bytes, GAIA_PAGE, page * GAIA_PAGE), GAIA_PAGE);
}

Test(streams, several_at_a_time_are_each_read_ahead)
{
	begin(&(struct rig_options){ .devices = 0 }, 4 * GAIA_CHUNK);
	for (unsigned i = 0; i < PAGES; i++)
		for (unsigned stream = 0; stream < 4; stream++)
			read_page(stream * GAIA_CHUNK_PAGES + 7 + i);
	/* The first page, and the next one with all the others. */
	cr_assert_eq(counter_value(CTR_home_misses), 4 * 2);
	end();
}

Test(streams, pages_read_here_and_there_bring_no_others)
{
	begin(&(struct rig_options){ .devices = 0 }, 4 * GAIA_CHUNK);
	for (unsigned i = 0; i < PAGES; i++)
		read_page((i * 37 + 11) % GAIA_CHUNK_PAGES);
	cr_assert_eq(counter_value(CTR_storage_reads), PAGES);
	end();
}

/* Stored in the first @n pages, a byte in each. */
static void release_pages(unsigned n)
{
	struct client *cl = new_client(0);

	cr_assert_eq(client_acquire(cl, 0, n * GAIA_PAGE, GAIA_PROT_RW), 0);
	for (unsigned i = 0; i < n; i++)
		client_store(cl, "x", 1, i * GAIA_PAGE);
	release_all(cl);
}

/* All of it in the chunk, in one operation. */
Test(streams, what_a_device_released_is_fetched_ahead)
{
	const unsigned pages = 400;

	begin_devices(1);
	release_pages(pages);
	read_page(0);
	cr_assert_eq(counter_value(CTR_device_to_home), pages);
	for (unsigned i = 1; i < pages; i++)
		read_page(i);
	cr_assert_eq(counter_value(CTR_home_misses), 1);
	expect_cpu(399 * GAIA_PAGE, "x");
	end();
}

Test(streams, of_what_a_device_released_one_page_comes_to_who_reads_here_and_there)
{
	begin_devices(1);
	release_pages(PAGES);
	read_page(40);
	read_page(20);
	cr_assert_eq(counter_value(CTR_device_to_home), 2);
	end();
}

Test(streams, a_chunk_is_stored_in_one_go)
{
	char *bytes = calloc(1, GAIA_CHUNK);

	begin(&(struct rig_options){ .devices = 0 }, GAIA_CHUNK);
	cr_assert_eq(cpu_write_direct(kf, bytes, GAIA_CHUNK, 0), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(counter_value(CTR_writeback_runs), 1);
	free(bytes);
	end();
}
