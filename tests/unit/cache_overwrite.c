/*
 * cache_overwrite.c - acquires with PROT_WRITE alone, promise 15, clause by clause. What they cost is counted in operations of devices and
 * in reads of the store.
 */
#include <linux/falloc.h>
#include <sched.h>
#include <semaphore.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "cache_acquires.h"
#include "pagecache/cache.h"

#define AT(page) ((uint64_t)(page) * GAIA_PAGE)
#define PAGES GAIA_CHUNK_PAGES

/* ---- scenes ---- */

/* The file's first chunks have @was all over, in the store only; as the devices' memory would show. */
static void begin_stored(unsigned devices, char was)
{
	static char chunk[GAIA_CHUNK];

	begin_devices(devices);
	memset(chunk, was, sizeof(chunk));
	for (unsigned c = 0; c < 3; c++)
		cr_assert_eq(cpu_write_direct(kf, chunk, sizeof(chunk), c * (uint64_t)GAIA_CHUNK), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
}

static void overwrite(struct client *cl, unsigned page, unsigned n)
{
	cr_assert_eq(client_acquire(cl, AT(page), AT(n), GAIA_PROT_WRITE), 0);
}

static void fill(struct client *cl, unsigned page, char with)
{
	memset(client_at(cl, AT(page)), with, GAIA_PAGE);
}

static void fill_all(struct client *cl, unsigned page, unsigned n, char with)
{
	for (unsigned i = page; i < page + n; i++)
		fill(cl, i, with);
}

static void release(struct client *cl, unsigned page, unsigned n)
{
	cr_assert_eq(client_release(cl, AT(page), AT(n)), 0);
}

static bool is_all(const void *bytes, char c)
{
	const char *b = bytes;

	return b[0] == c && !memcmp(b, b + 1, GAIA_PAGE - 1);
}

#define expect_page_cpu(page, c)                                                                         \
	do {                                                                                             \
		char seen_[GAIA_PAGE];                                                                   \
		cr_assert_eq(cpu_read(kf, seen_, GAIA_PAGE, AT(page)), (ssize_t)GAIA_PAGE);              \
		cr_assert(is_all(seen_, c), "page %u: %#x...", (unsigned)(page), (unsigned)seen_[0]);     \
	} while (0)

#define expect_page(cl, page, c)                                                                         \
	do {                                                                                             \
		const char *at_ = (char *)client_at(cl, AT(page));                                       \
		cr_assert(is_all(at_, c), "page %u: %#x...", (unsigned)(page), (unsigned)at_[0]);         \
	} while (0)

/* ---- what they cost ---- */

static struct {
	uint64_t operations, in, out, reads, snapshots, released;
} before;

static void counting_begins(void)
{
	before.operations = counter_value(CTR_device_operations);
	before.in = counter_value(CTR_device_bytes_in);
	before.out = counter_value(CTR_device_bytes_out);
	before.reads = counter_value(CTR_storage_reads);
	before.snapshots = counter_value(CTR_device_snapshots);
	before.released = counter_value(CTR_released_pages);
}

/* Since then so many operations, none of which moves a byte over the bus; and no read of the store. */
#define expect_only(operations_)                                                                         \
	do {                                                                                             \
		cr_assert_eq(counter_value(CTR_device_operations) - before.operations, (operations_),     \
			     "%lu operations", (unsigned long)(counter_value(CTR_device_operations) - before.operations)); \
		cr_assert_eq(counter_value(CTR_device_bytes_in), before.in);                             \
		cr_assert_eq(counter_value(CTR_device_bytes_out), before.out);                           \
		cr_assert_eq(counter_value(CTR_storage_reads), before.reads);                            \
		counting_begins();                                                                       \
	} while (0)

Test(overwrite, brings_reads_and_compares_nothing)
{
	uint64_t whole = counter_value(CTR_overwritten_pages);
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	counting_begins();
	overwrite(cl, 0, 2 * PAGES);
	/* Zeros, by one operation for each window: home is so small that a window is a chunk. */
	expect_only(2);
	expect_page(cl, 0, 0);
	expect_page(cl, 2 * PAGES - 1, 0);
	fill_all(cl, 0, 2 * PAGES, 'd');
	release(cl, 0, 2 * PAGES);
	expect_only(0);
	cr_assert_eq(counter_value(CTR_overwritten_pages) - whole, 2 * PAGES);
	expect_page_cpu(0, 'd');
	expect_page_cpu(2 * PAGES - 1, 'd');
	expect_page_cpu(2 * PAGES, 'w');
	/* Home takes what was released as it is, without what was there before. */
	cr_assert_leq(counter_value(CTR_storage_reads) - before.reads, PAGES);
	end();
}

/* Only what is brought: the page with each end. */
Test(overwrite, of_a_part_of_a_page_brings_that_page)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, AT(3) + 1, AT(4), GAIA_PROT_WRITE), 0);
	expect_page(cl, 3, 'w');
	expect_page(cl, 4, 0);
	expect_page(cl, 6, 0);
	expect_page(cl, 7, 'w');
	/* Not at the border of the pages: one that is touched is acquired. */
	fill_all(cl, 4, 3, 'd');
	client_store(cl, "dd", 2, AT(3) + 1);
	client_store(cl, "d", 1, AT(7));
	write_cpu(AT(3) + 3, "c");
	write_cpu(AT(7) + 1, "c");
	cr_assert_eq(client_release(cl, AT(3) + 1, AT(4)), 0);
	expect_cpu(AT(3), "wddcw");
	expect_cpu(AT(7), "dcw");
	expect_page_cpu(4, 'd');
	expect_page_cpu(6, 'd');
	end();
}

Test(overwrite, of_less_than_a_page_is_an_acquire_to_write)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, AT(3) + 1, GAIA_PAGE - 1, GAIA_PROT_WRITE), 0);
	cr_assert_eq(client_acquire(cl, AT(4) + 1, GAIA_PAGE, GAIA_PROT_WRITE), 0);
	for (unsigned i = 3; i < 6; i++)
		expect_page(cl, i, 'w');
	release(cl, 3, 3);
	end();
}

/* ---- the contents ---- */

Test(overwrite, shows_zeros_where_anything_else_was)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_RW), 0);
	release(cl, 0, PAGES);
	/* Old, and removed, and as it is. */
	write_cpu(AT(1), "c");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, AT(2), GAIA_PAGE), 0);
	overwrite(cl, 0, 4);
	expect_page(cl, 0, 'w');
	expect_page(cl, 1, 0);
	expect_page(cl, 2, 0);
	expect_page(cl, 3, 'w');
	fill_all(cl, 0, 4, 'd');
	release(cl, 0, 4);
	for (unsigned i = 0; i < 4; i++)
		expect_page_cpu(i, 'd');
	end();
}

/* Nobody has mapped the memory when the hole was made, so nobody has cleaned it either. */
Test(overwrite, shows_a_newcomer_nothing_that_was_removed)
{
	struct client *cl, *newcomer;

	begin_stored(1, 's');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	release(cl, 0, PAGES);
	client_end(cl);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_CHUNK), 0);
	cl = new_client(0);
	overwrite(cl, 0, PAGES);
	newcomer = new_client(0);
	cr_assert_eq(client_acquire(newcomer, AT(9), 1, GAIA_PROT_READ), 0);
	for (unsigned i = 0; i < PAGES; i++)
		expect_page(newcomer, i, 0);
	end();
}

/* What is overwritten was current when it was acquired, and is not any more. */
Test(overwrite, shows_a_newcomer_nothing_that_was_written_over)
{
	struct client *cl, *newcomer;

	begin_stored(1, 's');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	release(cl, 0, PAGES);
	overwrite(cl, 0, 2);
	client_store(cl, "d", 1, 0);
	write_cpu(1, "cc");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	newcomer = new_client(0);
	cr_assert_eq(client_acquire(newcomer, AT(9), 1, GAIA_PROT_READ), 0);
	cr_assert_eq(memcmp(client_at(newcomer, 0), "dccs", 4), 0);
	release(cl, 0, 2);
	expect_cpu(0, "dccs");
	end();
}

/*
 * A page that somebody writes has a base that is older than the acquire: what CPU programs wrote in between is brought, or bytes that are
 * stored as they were in that base would not count, and what CPU programs had written would come back.
 */
Test(overwrite, knows_what_was_written_before_to_pages_that_are_held)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	write_device(cl, 0, "d");
	write_cpu(9, "before");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	overwrite(cl, 0, 1);
	cr_assert_eq(memcmp(client_at(cl, 0), "dwwwwwwwwbefore", 15), 0);
	fill(cl, 0, 'w');
	cr_assert_eq(client_acquire(cl, 0, 1, GAIA_PROT_RW), 0);
	expect_page(cl, 0, 'w');
	release(cl, 0, 1);
	expect_page_cpu(0, 'w');
	release(cl, 0, 1);
	release(cl, 0, 1);
	end();
}

/* ---- what is current, or ready ---- */

Test(overwrite, of_what_is_ready_costs_as_little)
{
	uint64_t ready = counter_value(CTR_acquires_ready);
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	release(cl, 0, 2 * PAGES);
	counting_begins();
	overwrite(cl, 5, PAGES);
	expect_only(0);
	cr_assert_eq(counter_value(CTR_acquires_ready) - ready, 1);
	expect_page(cl, 5, 'w');
	release(cl, 5, PAGES);
	expect_only(0);
	expect_page_cpu(5, 'w');
	end();
}

/* Current, but not armed: nothing is armed for it. */
Test(overwrite, of_what_was_only_read_arms_nothing)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	release(cl, 0, PAGES);
	counting_begins();
	overwrite(cl, 0, PAGES);
	fill_all(cl, 0, PAGES, 'd');
	release(cl, 0, PAGES);
	expect_only(0);
	expect_page_cpu(PAGES - 1, 'd');
	end();
}

/* Bytes that were stored as they were, too: also if a release before had found them so. */
/* Parts of one page between them are an acquire to write, and all together are one range. */
Test(overwrite, of_a_list_without_gaps_where_all_is_ready)
{
	struct gaia_list_range list[] = { { 0, GAIA_PAGE }, { AT(1) + 100, GAIA_PAGE - 100 }, { AT(2), GAIA_PAGE } };
	struct client *cl;
	uint64_t seq;

	begin_stored(1, 'w');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_RW), 0);
	release(cl, 0, PAGES);
	cr_assert_eq(cache_acquirev(cl->mapping, list, ARRAY_LEN(list), GAIA_PROT_WRITE, &seq, NULL), 0);
	write_cpu(AT(2) + 100, "cpu");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	fill(cl, 2, 'w');
	cr_assert_eq(client_release(cl, 0, AT(3)), 0);
	expect_page_cpu(2, 'w');
	end();
}

static void silent_store_wins(unsigned access)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	if (access) {
		cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, access), 0);
		release(cl, 0, PAGES);
	}
	overwrite(cl, 0, 1);
	write_cpu(100, "cpu");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	fill(cl, 0, 'w');
	release(cl, 0, 1);
	expect_page_cpu(0, 'w');
	end();
}

Test(overwrite, wins_over_what_was_written_meanwhile_fresh)
{
	silent_store_wins(0);
}

Test(overwrite, wins_over_what_was_written_meanwhile_current)
{
	silent_store_wins(GAIA_PROT_READ);
}

Test(overwrite, wins_over_what_was_written_meanwhile_ready)
{
	silent_store_wins(GAIA_PROT_RW);
}

/* The device remembers a page's hash from before it was overwritten without one. */
Test(overwrite, is_no_base_of_what_comes_next)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_RW), 0);
	release(cl, 0, PAGES);
	overwrite(cl, 0, 2);
	fill_all(cl, 0, 2, 'd');
	release(cl, 0, 2);
	expect_page_cpu(0, 'd');
	expect_page_cpu(1, 'd');
	counting_begins();
	cr_assert_eq(client_acquire(cl, 0, AT(2), GAIA_PROT_RW), 0);
	fill(cl, 0, 'w');
	release(cl, 0, 2);
	cr_assert_eq(counter_value(CTR_released_pages) - before.released, 1, "the other page is as it was");
	expect_page_cpu(0, 'w');
	expect_page_cpu(1, 'd');
	end();
}

/* ---- what was released, and not fetched ---- */

Test(overwrite, secures_what_was_released)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	overwrite(cl, 0, PAGES);
	fill_all(cl, 0, PAGES, '0');
	release(cl, 0, PAGES);
	for (char n = '1'; n < '5'; n++) {
		counting_begins();
		overwrite(cl, 0, PAGES);
		fill_all(cl, 0, PAGES, n);
		cr_assert_eq(counter_value(CTR_device_snapshots) - before.snapshots, PAGES);
		/* The snapshot. */
		expect_only(1);
		if (n == '3')
			expect_page_cpu(7, n - 1);
		counting_begins();
		release(cl, 0, PAGES);
		expect_only(0);
	}
	overwrite(cl, 0, PAGES);
	fill_all(cl, 0, PAGES, 'x');
	client_die(cl);
	client_end(cl);
	expect_page_cpu(0, '4');
	expect_page_cpu(7, '4');
	end();
}

Test(overwrite, fetches_what_was_released_if_there_is_no_room_for_a_snapshot)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 1 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	for (char n = '1'; n < '4'; n++) {
		overwrite(cl, 0, 4);
		if (n > '1')
			expect_page_cpu(3, n - 1);
		fill_all(cl, 0, 4, n);
		release(cl, 0, 4);
	}
	expect_page_cpu(0, '3');
	end();
}

/* A release that lacks what CPU programs wrote before it is no base of what is overwritten after that. */
Test(overwrite, fetches_a_release_that_is_to_be_merged)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	write_device(cl, 0, "d");
	write_cpu(9, "cpu");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	release(cl, 0, 1);
	overwrite(cl, 0, 1);
	fill(cl, 0, 'w');
	cr_assert_eq(client_acquire(cl, 0, 1, GAIA_PROT_RW), 0);
	expect_page(cl, 0, 'w');
	release(cl, 0, 1);
	release(cl, 0, 1);
	expect_page_cpu(0, 'w');
	end();
}

/* A part is released, over a release of all, which is not at home yet; and the other way round. */
Test(overwrite, goes_with_other_releases_of_the_device)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	overwrite(cl, 0, 1);
	fill(cl, 0, 'd');
	release(cl, 0, 1);
	write_device(cl, 100, "part");
	release(cl, 0, 1);
	expect_cpu(99, "dpartd");
	write_device(cl, 200, "part");
	release(cl, 0, 1);
	overwrite(cl, 0, 1);
	fill(cl, 0, 'e');
	release(cl, 0, 1);
	expect_page_cpu(0, 'e');
	end();
}

/* ---- other clients of the device ---- */

Test(overwrite, leaves_what_others_write_as_it_is)
{
	struct client *a, *b;

	begin_stored(1, 'w');
	a = new_client(0);
	b = new_client(0);
	write_device(a, 0, "a");
	write_cpu(AT(0) + 9, "c");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	/* b gets the chunk, which shows what a has. */
	cr_assert_eq(client_acquire(b, AT(1), 1, GAIA_PROT_READ), 0);
	release(b, 1, 1);
	counting_begins();
	overwrite(b, 0, 1);
	expect_only(0);
	cr_assert_eq(memcmp(client_at(b, 0), "awwwwwwwwc", 10), 0);
	client_store(b, "b", 1, 1);
	release(b, 0, 1);
	expect_cpu(0, "abwwwwwwwc");
	client_store(a, "A", 1, 2);
	release(a, 0, 1);
	expect_cpu(0, "abAw");
	end();
}

Test(overwrite, leaves_readers_what_they_read)
{
	struct client *reader, *cl;

	begin_stored(1, 'w');
	reader = new_client(0);
	cl = new_client(0);
	cr_assert_eq(client_acquire(reader, 0, AT(2), GAIA_PROT_READ), 0);
	write_cpu(AT(1), "c");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	overwrite(cl, 0, 3);
	expect_page(reader, 0, 'w');
	cr_assert_eq(memcmp(client_at(reader, AT(1)), "cw", 2), 0, "it is brought, not cleared");
	expect_page(cl, 2, 0);
	fill_all(cl, 0, 3, 'd');
	release(cl, 0, 3);
	for (unsigned i = 0; i < 3; i++)
		expect_page_cpu(i, 'd');
	end();
}

/* It finds it as it is, and publishes all of it. */
Test(overwrite, is_shared_by_who_acquires_the_page_meanwhile)
{
	struct client *a, *b;

	begin_stored(1, 'w');
	a = new_client(0);
	b = new_client(0);
	overwrite(a, 0, 2);
	fill(a, 0, 'a');
	client_store(a, "a", 1, AT(1));
	cr_assert_eq(client_acquire(b, 0, AT(2), GAIA_PROT_RW), 0);
	expect_page(b, 0, 'a');
	client_store(b, "b", 1, 5);
	release(b, 0, 1);
	expect_cpu(4, "aba");
	/* From here on it is compared: what comes after that release is not undone. */
	write_cpu(8, "c");
	fill(a, 1, 'a');
	release(a, 0, 2);
	expect_cpu(4, "abaac");
	expect_page_cpu(1, 'a');
	release(b, 1, 1);
	end();
}

/* Nor does what the device knows of the page since it was last acquired let anybody pass who is to write it. */
Test(overwrite, is_shared_by_who_has_looked_at_the_page_before)
{
	struct client *one, *two;

	begin_stored(1, 'w');
	one = new_client(0);
	two = new_client(0);
	overwrite(one, 5, 1);
	cr_assert_eq(client_acquire(two, AT(5), GAIA_PAGE, GAIA_PROT_READ), 0);
	release(two, 5, 1);
	cr_assert_eq(client_acquire(two, AT(5), GAIA_PAGE, GAIA_PROT_RW), 0);
	client_store(two, "b", 1, AT(5) + 9);
	release(two, 5, 1);
	expect_cpu(AT(5) + 9, "b");
	release(one, 5, 1);
	cache_check(rig->cache);
	end();
}

/* ---- what is given back ---- */

/* Whether that has published something. */
static bool give_back(struct client *cl, unsigned page, unsigned n)
{
	bool changed;

	cr_assert_eq(cache_give_back(cl->mapping, AT(page), AT(n), &changed), 0);
	return changed;
}

/* An acquire that fails in the library, or that nobody has waited for. */
Test(overwrite, that_is_given_back_publishes_nothing)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	overwrite(cl, 5, 1);
	cr_assert_not(give_back(cl, 5, 1));
	expect_page_cpu(5, 'w');
	cr_assert_eq(client_acquire(cl, AT(5), GAIA_PAGE, GAIA_PROT_RW), 0);
	expect_page(cl, 5, 'w');
	fill(cl, 5, 'd');
	release(cl, 5, 1);
	expect_page_cpu(5, 'd');
	end();
}

/* Nor does it undo what CPU programs have written meanwhile. */
static void given_back_of_current(unsigned access)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, access), 0);
	release(cl, 0, PAGES);
	overwrite(cl, 5, 1);
	write_cpu(AT(5) + 9, "new");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	/* One that is not armed may have changed, for all that the device knows; but it has no byte that differs from its base. */
	(void)give_back(cl, 5, 1);
	expect_cpu(AT(5) + 7, "wwnewww");
	cache_check(rig->cache);
	end();
}

Test(overwrite, of_what_was_current_undoes_nothing_when_it_is_given_back)
{
	given_back_of_current(GAIA_PROT_READ);
}

Test(overwrite, of_what_was_ready_undoes_nothing_when_it_is_given_back)
{
	given_back_of_current(GAIA_PROT_RW);
}

/* What cannot be looked at is discarded, and the caller is told. */
Test(overwrite, that_is_given_back_and_cannot_be_looked_at_publishes_nothing)
{
	struct client *cl;
	bool changed;

	begin_stored(1, 'w');
	cl = new_client(0);
	overwrite(cl, 5, 1);
	fault_arm("device.copy_out", -EIO, 0, 1);
	cr_assert_eq(cache_give_back(cl->mapping, AT(5), GAIA_PAGE, &changed), -EIO);
	fault_disarm_all();
	expect_page_cpu(5, 'w');
	end();
}

/* The hold was another acquire's of the same client, which has stored something: nobody else can publish that. */
Test(overwrite, that_was_stored_to_is_published_by_who_gives_back)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	overwrite(cl, 5, 3);
	fill(cl, 6, 'd');
	cr_assert(give_back(cl, 5, 3));
	expect_page_cpu(5, 'w');
	expect_page_cpu(6, 'd');
	expect_page_cpu(7, 'w');
	end();
}

/* What was cut off was brought again meanwhile, for who reads it. */
Test(overwrite, that_was_cut_and_is_given_back_publishes_nothing)
{
	struct client *cl, *reader;

	begin_stored(1, 'w');
	cl = new_client(0);
	reader = new_client(0);
	overwrite(cl, 5, 1);
	cr_assert_eq(cpu_truncate(kf, AT(5) + 100), 0);
	cr_assert_eq(client_acquire(reader, AT(5), GAIA_PAGE, GAIA_PROT_READ), 0);
	cr_assert_not(give_back(cl, 5, 1));
	expect_cpu(AT(5) + 90, "wwwwwwwww");
	end();
}

/* What the other had stored goes with it; what it had released stays. */
Test(overwrite, of_who_dies_is_not_published_by_who_gives_back)
{
	struct client *dead, *cl;

	begin_stored(1, 'w');
	dead = new_client(0);
	cl = new_client(0);
	overwrite(dead, 5, 2);
	fill(dead, 6, 'r');
	release(dead, 6, 1);
	overwrite(dead, 6, 1);
	fill_all(dead, 5, 2, 'd');
	cr_assert_eq(client_acquire(cl, AT(5), AT(2), GAIA_PROT_RW), 0);
	client_die(dead);
	client_end(dead);
	cr_assert_not(give_back(cl, 5, 2));
	expect_page_cpu(5, 'w');
	expect_page_cpu(6, 'r');
	cache_check(rig->cache);
	end();
}

/* ---- the next release ---- */

Test(overwrite, once_published_is_compared)
{
	struct client *a, *b;

	begin_stored(1, 'w');
	a = new_client(0);
	b = new_client(0);
	overwrite(a, 0, 1);
	overwrite(b, 0, 1);
	overwrite(b, 0, 1);
	fill(a, 0, 'a');
	release(a, 0, 1);
	write_cpu(8, "c");
	client_store(b, "b", 1, 0);
	release(b, 0, 1);
	expect_cpu(0, "baaaaaaaca");
	write_cpu(9, "c");
	release(b, 0, 1);
	expect_cpu(0, "baaaaaaacca");
	end();
}

/* Bytes that were stored as they were are brought from home meanwhile: they are not published over newer ones. */
static void brought_meanwhile(bool trimmed)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_RW), 0);
	release(cl, 0, PAGES);
	overwrite(cl, 0, 1);
	fill(cl, 0, 'w');
	client_store(cl, "d", 1, 0);
	if (trimmed)
		fault_arm("home.kept_full", -ENOSPC, 0, 0);
	write_cpu(9, "old");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	if (!trimmed)
		cr_assert_eq(client_acquire(cl, 0, 1, GAIA_PROT_READ), 0);
	fault_disarm_all();
	cr_assert_eq(memcmp(client_at(cl, 9), "old", 3), 0);
	write_cpu(9, "new");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	release(cl, 0, 1);
	expect_cpu(0, "dwwwwwwwwneww");
	if (!trimmed)
		release(cl, 0, 1);
	end();
}

Test(overwrite, does_not_bring_back_what_an_acquire_had_brought)
{
	brought_meanwhile(false);
}

Test(overwrite, does_not_bring_back_what_was_brought_for_lack_of_room)
{
	brought_meanwhile(true);
}

/* ---- the end of the file ---- */

Test(overwrite, of_the_page_with_the_end_is_an_acquire_to_write)
{
	struct client *cl;

	begin_stored(1, 'w');
	cr_assert_eq(cpu_truncate(kf, AT(5) + 100), 0);
	cl = new_client(0);
	overwrite(cl, 4, 3);
	expect_page(cl, 4, 0);
	cr_assert_eq(memcmp(client_at(cl, AT(5) + 99), "w", 2), 0);
	fill_all(cl, 4, 3, 'd');
	write_cpu(AT(5) + 100, "cpu");
	release(cl, 4, 3);
	expect_page_cpu(4, 'd');
	expect_cpu(AT(5) + 99, "d");
	cr_assert_eq(cfile_size(kf->cfile), AT(5) + 103);
	end();
}

static void cut_while_held(unsigned access)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	if (access) {
		cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, access), 0);
		release(cl, 0, PAGES);
	}
	overwrite(cl, 0, 4);
	fill_all(cl, 0, 4, 'd');
	cr_assert_eq(cpu_truncate(kf, AT(1) + 50), 0);
	cr_assert_eq(cpu_truncate(kf, AT(4)), 0);
	write_cpu(AT(1) + 60, "cpu");
	release(cl, 0, 4);
	expect_page_cpu(0, 'd');
	expect_cpu(AT(1) + 48, "dd");
	for (unsigned at = 50; at < 60; at++) {
		char byte;

		cr_assert_eq(cpu_read(kf, &byte, 1, AT(1) + at), 1);
		cr_assert_eq(byte, 0);
	}
	expect_cpu(AT(1) + 60, "cpu");
	expect_page_cpu(2, 0);
	expect_page_cpu(3, 0);
	end();
}

Test(overwrite, publishes_nothing_behind_a_cut_fresh)
{
	cut_while_held(0);
}

Test(overwrite, publishes_nothing_behind_a_cut_current)
{
	cut_while_held(GAIA_PROT_RW);
}

/* Home's bytes are brought behind the cut; they are not taken for overwritten. */
Test(overwrite, of_a_page_that_was_cut_and_is_acquired_again_keeps_what_cpus_write)
{
	struct client *cl, *other;

	begin_stored(1, 'w');
	cl = new_client(0);
	other = new_client(0);
	overwrite(cl, 0, 2);
	fill_all(cl, 0, 2, 'd');
	cr_assert_eq(cpu_truncate(kf, 50), 0);
	cr_assert_eq(cpu_truncate(kf, AT(4)), 0);
	write_cpu(60, "cpu");
	write_cpu(AT(1), "cpu");
	cr_assert_eq(client_acquire(other, 0, AT(2), GAIA_PROT_RW), 0);
	cr_assert_eq(memcmp(client_at(other, 48), "dd\0\0\0\0\0\0\0\0\0\0cpu", 15), 0);
	cr_assert_eq(memcmp(client_at(other, AT(1)), "cpu", 4), 0);
	write_cpu(70, "later");
	write_cpu(AT(1) + 4, "later");
	client_store(other, "o", 1, 80);
	release(cl, 0, 2);
	expect_cpu(48, "dd");
	expect_cpu(60, "cpu");
	expect_cpu(70, "later");
	expect_cpu(80, "o");
	expect_cpu(AT(1), "cpu");
	expect_cpu(AT(1) + 4, "later");
	release(other, 0, 2);
	end();
}

/* ---- deaths, and acquires that fail ---- */

Test(overwrite, of_who_dies_is_undone)
{
	struct client *cl, *other;

	begin_stored(1, 'w');
	cl = new_client(0);
	other = new_client(0);
	overwrite(cl, 0, 3);
	fill_all(cl, 0, 2, 'd');
	cr_assert_eq(client_acquire(other, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	client_die(cl);
	client_end(cl);
	for (unsigned i = 0; i < 3; i++)
		expect_page_cpu(i, 'w');
	cr_assert_eq(client_acquire(other, 0, AT(3), GAIA_PROT_READ), 0);
	for (unsigned i = 0; i < 3; i++)
		expect_page(other, i, 'w');
	end();
}

static int overwrite_four(void *arg)
{
	struct acquire *a = arg;

	return cache_acquire(a->cl->mapping, 0, AT(4), GAIA_PROT_WRITE, &a->seq, &a->verdict);
}

/* Until the acquire has succeeded others find the page as the file has it, and a release publishes nothing of it. */
Test(overwrite, is_nothing_before_it_has_succeeded)
{
	struct acquire a = { .off = 0 };
	struct held acquiring = { .point = "acquire.before_grant", .call = overwrite_four, .arg = &a };
	struct client *cl, *other;

	begin_stored(1, 'w');
	cl = new_client(0);
	other = new_client(0);
	cr_assert_eq(client_acquire(other, AT(9), 1, GAIA_PROT_READ), 0);
	a.cl = cl;
	held_begin(&acquiring);
	release(cl, 0, 4);
	cr_assert_eq(client_acquire(other, 0, AT(2), GAIA_PROT_RW), 0);
	expect_page(other, 0, 'w');
	client_store(other, "o", 1, 3);
	release(other, 0, 2);
	expect_cpu(0, "wwwow");
	expect_page_cpu(2, 'w');
	cr_assert(cache_decide(&a.verdict, CACHE_GIVEN_UP));
	cr_assert_eq(held_end(&acquiring), -EINTR);
	expect_cpu(0, "wwwow");
	expect_page_cpu(3, 'w');
	cr_assert_eq(client_acquire(other, 0, AT(4), GAIA_PROT_RW), 0);
	expect_page(other, 3, 'w');
	release(other, 0, 4);
	end();
}

/* The same, but it succeeds. */
/* Two whose calls wait while their clients map the chunk. */
static struct mapping_wait {
	struct acquire a;
	pthread_t thread;
	sem_t reached, may_go;
	int err;
} slow[2];

static void wait_while_mapping(void *arg, struct client *cl, uint64_t idx)
{
	for (unsigned k = 0; k < ARRAY_LEN(slow); k++)
		if (cl == slow[k].a.cl) {
			sem_post(&slow[k].reached);
			sem_wait(&slow[k].may_go);
		}
}

static void *overwrite_and_wait(void *arg)
{
	struct mapping_wait *w = arg;

	w->err = overwrite_four(&w->a);
	return NULL;
}

static void wait_begin_mapping(struct mapping_wait *w)
{
	w->a.cl = new_client(0);
	sem_init(&w->reached, 0, 0);
	sem_init(&w->may_go, 0, 0);
	cr_assert_eq(pthread_create(&w->thread, NULL, overwrite_and_wait, w), 0);
	sem_wait(&w->reached);
}

static int wait_end_mapping(struct mapping_wait *w)
{
	sem_post(&w->may_go);
	pthread_join(w->thread, NULL);
	return w->err;
}

/* Who has lost its holds meanwhile, as its client is gone, makes nothing fresh for others, whose acquires may fail yet. */
Test(overwrite, of_who_is_gone_before_it_ends_is_nothing)
{
	struct mapping_wait *dead = &slow[0], *next = &slow[1];
	struct client *cl;

	begin_stored(1, 'w');
	rig->after_grant = wait_while_mapping;
	wait_begin_mapping(dead);
	atomic_store(&dead->a.cl->alive, false);
	wait_begin_mapping(next);
	(void)wait_end_mapping(dead);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, AT(2), GAIA_PROT_RW), 0);
	expect_page(cl, 0, 'w');
	cr_assert(cache_decide(&next->a.verdict, CACHE_GIVEN_UP));
	cr_assert_eq(wait_end_mapping(next), -EINTR);
	client_store(cl, "o", 1, 3);
	release(cl, 0, 2);
	expect_cpu(0, "wwwow");
	expect_page_cpu(1, 'w');
	client_end(dead->a.cl);
	expect_page_cpu(2, 'w');
	cache_check(rig->cache);
	end();
}

Test(overwrite, goes_on_with_what_others_had_brought_meanwhile)
{
	struct acquire a = { .off = 0 };
	struct held acquiring = { .point = "acquire.before_grant", .call = overwrite_four, .arg = &a };
	struct client *cl, *other;

	begin_stored(1, 'w');
	cl = new_client(0);
	other = new_client(0);
	cr_assert_eq(client_acquire(other, AT(9), 1, GAIA_PROT_READ), 0);
	a.cl = cl;
	held_begin(&acquiring);
	write_device(other, 3, "o");
	cr_assert_eq(held_end(&acquiring), 0);
	cr_assert_eq(memcmp(client_at(cl, 0), "wwwow", 5), 0);
	expect_page(cl, 1, 0);
	write_cpu(8, "c");
	fill_all(cl, 1, 3, 'd');
	client_store(cl, "d", 1, 0);
	release(cl, 0, 4);
	/* All of it, as for every page. */
	expect_cpu(0, "dwwowwwwww");
	for (unsigned i = 1; i < 4; i++)
		expect_page_cpu(i, 'd');
	release(other, 0, 1);
	end();
}

/* ---- several devices ---- */

/* Released in either order, and merged together: the device with the higher number wins. */
static void two_overwrite(unsigned first)
{
	struct client *cl[2];

	begin_stored(2, 'w');
	for (unsigned d = 0; d < 2; d++) {
		cl[d] = new_client(d);
		overwrite(cl[d], 0, 2);
		fill_all(cl[d], 0, 2, (char)('0' + d));
	}
	release(cl[first], 0, 2);
	release(cl[1 - first], 0, 2);
	expect_page_cpu(0, '1');
	expect_page_cpu(1, '1');
	end();
}

Test(overwrite, of_two_devices_lower_first)
{
	two_overwrite(0);
}

Test(overwrite, of_two_devices_higher_first)
{
	two_overwrite(1);
}

/* One of them writes a part. */
static void whole_and_part(unsigned whole)
{
	struct client *cl[2];

	begin_stored(2, 'w');
	for (unsigned d = 0; d < 2; d++)
		cl[d] = new_client(d);
	overwrite(cl[whole], 0, 1);
	fill(cl[whole], 0, 'a');
	write_device(cl[1 - whole], 10, "part");
	for (unsigned d = 0; d < 2; d++)
		release(cl[d], 0, 1);
	if (whole == 0)
		expect_cpu(9, "aparta");
	else
		expect_page_cpu(0, 'a');
	end();
}

Test(overwrite, and_a_part_by_a_higher_device)
{
	whole_and_part(0);
}

Test(overwrite, and_a_part_by_a_lower_device)
{
	whole_and_part(1);
}

/* It had been released when the page was acquired, so it is no race. */
Test(overwrite, of_what_a_higher_device_had_released)
{
	struct client *low, *high;

	begin_stored(2, 'w');
	low = new_client(0);
	high = new_client(1);
	/* Also where somebody on the device holds it. */
	write_device(low, AT(1), "l");
	write_device(high, 0, "high");
	write_device(high, AT(1) + 1, "high");
	release(high, 0, 2);
	overwrite(low, 0, 2);
	fill_all(low, 0, 2, 'l');
	release(low, 0, 2);
	expect_page_cpu(0, 'l');
	expect_page_cpu(1, 'l');
	release(low, 1, 1);
	end();
}

Test(overwrite, of_what_was_lost_with_another_device)
{
	struct client *lost, *cl, *other;

	begin_stored(2, 'w');
	lost = new_client(0);
	cl = new_client(1);
	write_device(lost, 0, "lost");
	write_device(lost, AT(1), "lost");
	release(lost, 0, 2);
	fault_arm("device.copy_out", -ENODEV, 0, 1);
	cr_assert_neq(cpu_fsync(kf), 0);
	overwrite(cl, 0, 1);
	fill(cl, 0, 'd');
	/* Nor does it matter to who acquires the page besides, or another one of the chunk for the first time. */
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_RW), 0);
	release(cl, 0, 1);
	other = new_client(1);
	cr_assert_eq(client_acquire(other, AT(5), GAIA_PAGE, GAIA_PROT_READ), 0);
	release(cl, 0, 1);
	release(cl, 0, 1);
	expect_page_cpu(0, 'd');
	cr_assert_eq(cpu_read(kf, (char[1]){ 0 }, 1, AT(1)), -EIO);
	cr_assert_eq(cpu_write(kf, (char[GAIA_PAGE]){ 0 }, GAIA_PAGE, AT(1)), 0);
	end();
}

/* A whole release says nothing of what is behind a cut, so what was lost there is lost still. */
Test(overwrite, of_a_page_that_was_cut_leaves_what_was_lost_behind_the_cut)
{
	struct client *cl, *lost;

	begin_stored(2, 'w');
	cl = new_client(1);
	lost = new_client(0);
	overwrite(cl, 0, 1);
	cr_assert_eq(cpu_truncate(kf, 100), 0);
	cr_assert_eq(cpu_truncate(kf, AT(4)), 0);
	write_device(lost, 200, "lost");
	release(lost, 0, 1);
	fault_arm("device.copy_out", -ENODEV, 0, 1);
	cr_assert_neq(cpu_fsync(kf), 0);
	fill(cl, 0, 'd');
	release(cl, 0, 1);
	cr_assert_eq(cpu_read(kf, (char[1]){ 0 }, 1, 200), -EIO);
	cr_assert_eq(cpu_write(kf, (char[GAIA_PAGE]){ 0 }, GAIA_PAGE, 0), 0);
	end();
}

/* But it covers all that the file has. */
Test(overwrite, of_a_page_that_ends_at_the_cut_covers_what_was_lost)
{
	struct client *cl, *lost;

	begin_stored(2, 'w');
	cl = new_client(1);
	lost = new_client(0);
	overwrite(cl, 0, 1);
	cr_assert_eq(cpu_truncate(kf, 100), 0);
	write_device(lost, 50, "lost");
	release(lost, 0, 1);
	fault_arm("device.copy_out", -ENODEV, 0, 1);
	cr_assert_neq(cpu_fsync(kf), 0);
	fill(cl, 0, 'd');
	release(cl, 0, 1);
	expect_cpu(50, "dddd");
	end();
}

/* ---- the kernel ---- */

/* Case 1: what CPU programs stored before the acquire is in home by then, and does not come back after the release. */
Test(overwrite, is_not_undone_by_older_stores)
{
	struct client *cl;

	begin_stored(1, 'w');
	expect_page_cpu(0, 'w');
	store_cpu(7, "older");
	cl = new_client(0);
	overwrite(cl, 0, 1);
	cr_assert(!kernel_is_dirty(kf, 0));
	fill(cl, 0, 'w');
	release(cl, 0, 1);
	cr_assert(!kernel_has(kf, 0));
	expect_page_cpu(0, 'w');
	end();
}

/* ---- lists, limits, errors ---- */

Test(overwrite, of_a_list)
{
	struct gaia_list_range list[] = {
		{ AT(1), GAIA_PAGE }, { AT(9) + 1, AT(3) }, { AT(5) + 7, 9 }, { AT(PAGES - 1), AT(2) }, { AT(9) + 1, GAIA_PAGE - 1 },
	};
	struct gaia_list_range copy[ARRAY_LEN(list)];
	struct client *cl;
	uint64_t seq;
	bool changed;

	begin_stored(1, 'w');
	cl = new_client(0);
	memcpy(copy, list, sizeof(list));
	cr_assert_eq(cache_acquirev(cl->mapping, copy, ARRAY_LEN(copy), GAIA_PROT_WRITE, &seq, NULL), 0);
	expect_page(cl, 1, 0);
	expect_page(cl, 9, 'w');
	expect_page(cl, 10, 0);
	expect_page(cl, 11, 0);
	expect_page(cl, 12, 'w');
	expect_page(cl, 5, 'w');
	expect_page(cl, PAGES - 1, 0);
	expect_page(cl, PAGES, 0);
	fill(cl, 10, 'd');
	fill(cl, PAGES, 'd');
	memcpy(copy, list, sizeof(list));
	cr_assert_eq(cache_releasev(cl->mapping, copy, ARRAY_LEN(copy), &changed), 0);
	cr_assert(changed);
	expect_page_cpu(1, 0);
	expect_page_cpu(9, 'w');
	expect_page_cpu(10, 'd');
	expect_page_cpu(11, 0);
	expect_page_cpu(12, 'w');
	expect_page_cpu(5, 'w');
	expect_page_cpu(PAGES - 1, 0);
	expect_page_cpu(PAGES, 'd');
	expect_page_cpu(PAGES + 1, 'w');
	end();
}

Test(overwrite, brings_nothing_ahead)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	for (unsigned i = 0; i < PAGES; i += 64) {
		overwrite(cl, i, 64);
		fill_all(cl, i, 64, 'd');
		release(cl, i, 64);
	}
	rig_readahead(rig);
	cr_assert_eq(counter_value(CTR_readahead), 0);
	end();
}

Test(overwrite, needs_the_right_to_write)
{
	struct client *cl;

	begin_devices(1);
	cl = client_create(kf, 0, GAIA_PROT_READ, 4 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_WRITE), -EACCES);
	end();
}

/* If the device cannot clear the memory nothing is acquired, and nothing is lost. */
Test(overwrite, fails_if_the_device_does)
{
	struct client *cl;

	begin_stored(1, 'w');
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, AT(PAGES - 1), 1, GAIA_PROT_READ), 0);
	fault_arm("device.zero", -EIO, 0, 1);
	cr_assert_eq(client_acquire(cl, 0, AT(4), GAIA_PROT_WRITE), -EIO);
	expect_page_cpu(0, 'w');
	cr_assert_eq(client_acquire(cl, 0, AT(4), GAIA_PROT_READ), 0);
	for (unsigned i = 0; i < 4; i++)
		expect_page(cl, i, 'w');
	end();
}

/* Of a file that is passed through all bytes that CPU programs write meanwhile are kept. */
Test(overwrite, of_a_file_that_is_passed_through_is_an_acquire_to_write)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .passthrough = true }, 4 * GAIA_CHUNK);
	write_cpu(0, "file");
	cl = new_client(0);
	overwrite(cl, 0, 2);
	cr_assert_eq(memcmp(client_at(cl, 0), "file", 4), 0);
	client_store(cl, "F", 1, 0);
	write_cpu(3, "E");
	release(cl, 0, 2);
	expect_cpu(0, "FilE");
	end();
}
