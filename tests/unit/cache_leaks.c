/*
 * cache_leaks.c - what memory shows that clients map, but do not hold: current bytes or zeros when they are handed it, and
 * nothing that was removed since (promise 13 of the contract).
 */
#include <linux/falloc.h>

#include "cache_scene.h"

#define SECRET 'S'
#define PAGES 512u

/* A chunk full of secrets, which a client that is gone has used, and another one on another device. */
static void begin_secret_of(const struct rig_options *options)
{
	static char secret[GAIA_CHUNK];
	struct rig_options o = *options;

	/* But for memory of one's own, clients share it, also where the device cannot keep readers from writing. */
	o.readers_may_write = !o.always_writable;
	begin(&o, GAIA_CHUNK);
	memset(secret, SECRET, sizeof(secret));
	cr_assert_eq(cpu_write(kf, secret, sizeof(secret), 0), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
}

static struct client *client_of(unsigned device, unsigned prot)
{
	return client_create(kf, device, prot, GAIA_CHUNK);
}

static void acquire(struct client *cl, uint64_t off, uint64_t len, unsigned prot)
{
	cr_assert_eq(client_acquire(cl, off, len, prot), 0);
}

static void release(struct client *cl, uint64_t off, uint64_t len)
{
	cr_assert_eq(client_release(cl, off, len), 0);
}

static void owner_uses_it(unsigned device)
{
	struct client *cl = client_of(device, GAIA_PROT_RW);

	acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_RW);
	release(cl, 0, GAIA_CHUNK);
	client_end(cl);
}

static void begin_secret(void)
{
	begin_secret_of(&(struct rig_options){ .devices = 2 });
	owner_uses_it(0);
}

/* The first page outside [from, to) that shows something other than zeros; PAGES: none. */
static unsigned shown_beside(struct client *cl, unsigned from, unsigned to)
{
	static const unsigned char zeros[GAIA_PAGE];

	for (unsigned i = 0; i < PAGES; i++)
		if ((i < from || i >= to) && memcmp(client_at(cl, i * GAIA_PAGE), zeros, GAIA_PAGE) != 0)
			return i;
	return PAGES;
}

/* Of the whole chunk. */
#define expect_nothing_shown(cl) cr_assert_eq(shown_beside(cl, 0, 0), PAGES, "page %u is shown", shown_beside(cl, 0, 0))
/* Nothing but the first page, which is the client's. */
#define expect_first_page_only(cl) cr_assert_eq(shown_beside(cl, 0, 1), PAGES, "page %u is shown", shown_beside(cl, 0, 1))

static struct client *reader_of_first_page(void)
{
	struct client *cl = client_of(0, GAIA_PROT_READ);

	acquire(cl, 0, 1, GAIA_PROT_READ);
	return cl;
}

/* ---- when it is handed over ---- */

Test(handed, memory_that_nobody_had_is_zeros)
{
	begin_secret_of(&(struct rig_options){ .devices = 1 });
	expect_first_page_only(reader_of_first_page());
	end();
}

/* Home's memory had something else before. */
Test(handed, what_follows_the_end_of_the_file_is_zeros)
{
	static char page[GAIA_PAGE];
	struct kfile *other;
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1 }, 100);
	other = kfile_create(rig, 2, GAIA_CHUNK);
	memset(page, SECRET, sizeof(page));
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert_eq(cpu_write(other, page, sizeof(page), i * GAIA_PAGE), 0);
	cr_assert_eq(cpu_fsync(other), 0);
	kernel_reclaim(other, 0, 0);
	cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cl = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 0, 100, GAIA_PROT_READ), 0);
	for (unsigned at = 0; at < GAIA_PAGE; at++)
		cr_assert_eq(*client_at(cl, at), 0, "byte %u is shown", at);
	end();
}

Test(handed, what_is_current_is_there)
{
	struct client *cl;

	begin_secret();
	cl = reader_of_first_page();
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert_eq(*client_at(cl, i * GAIA_PAGE), SECRET);
	end();
}

Test(handed, what_was_truncated_is_zeros)
{
	begin_secret();
	cr_assert_eq(cpu_truncate(kf, 0), 0);
	cr_assert_eq(cpu_truncate(kf, GAIA_CHUNK), 0);
	expect_nothing_shown(reader_of_first_page());
	end();
}

Test(handed, what_was_cut_within_a_page_is_zeros)
{
	struct client *cl;

	begin_secret();
	cr_assert_eq(cpu_truncate(kf, GAIA_PAGE + 6), 0);
	cr_assert_eq(cpu_truncate(kf, GAIA_CHUNK), 0);
	cl = reader_of_first_page();
	cr_assert_eq(shown_beside(cl, 0, 2), PAGES);
	cr_assert_eq(memchr(client_at(cl, GAIA_PAGE + 6), SECRET, GAIA_PAGE - 6), NULL);
	end();
}

Test(handed, what_was_punched_is_zeros)
{
	begin_secret();
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_CHUNK), 0);
	expect_nothing_shown(reader_of_first_page());
	end();
}

Test(handed, what_was_overwritten_is_not_there)
{
	static const char zeros[GAIA_CHUNK];

	begin_secret();
	cr_assert_eq(cpu_write(kf, zeros, sizeof(zeros), 0), 0);
	/* As a change of the mode does. */
	cr_assert_eq(kernel_writeback(kf, 0, 0, 64), 0);
	expect_nothing_shown(reader_of_first_page());
	end();
}

Test(handed, what_another_device_overwrote_is_not_there)
{
	struct client *other;

	begin_secret();
	other = client_of(1, GAIA_PROT_RW);
	acquire(other, 0, GAIA_CHUNK, GAIA_PROT_RW);
	memset(client_at(other, 0), 0, GAIA_CHUNK);
	release(other, 0, GAIA_CHUNK);
	expect_nothing_shown(reader_of_first_page());
	end();
}

Test(handed, what_the_dead_had_not_released_is_zeros)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .readers_may_write = true }, GAIA_CHUNK);
	cl = client_of(0, GAIA_PROT_RW);
	acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_RW);
	memset(client_at(cl, 0), SECRET, GAIA_CHUNK);
	client_die(cl);
	expect_nothing_shown(reader_of_first_page());
	end();
}

Test(handed, what_cpu_programs_overwrote_past_the_cache_is_not_there)
{
	static const char zeros[GAIA_CHUNK];

	begin_secret_of(&(struct rig_options){ .devices = 1, .passthrough = true });
	owner_uses_it(0);
	cr_assert_eq(cpu_write(kf, zeros, sizeof(zeros), 0), 0);
	expect_nothing_shown(reader_of_first_page());
	end();
}

Test(handed, what_was_punched_past_the_cache_is_zeros)
{
	begin_secret_of(&(struct rig_options){ .devices = 1, .passthrough = true });
	owner_uses_it(0);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_CHUNK), 0);
	expect_nothing_shown(reader_of_first_page());
	end();
}

Test(handed, memory_of_ones_own_is_zeros_too)
{
	struct client *cl;

	begin_secret_of(&(struct rig_options){ .devices = 1, .always_writable = true });
	owner_uses_it(0);
	cl = client_of(0, GAIA_PROT_READ);
	acquire(cl, 0, 1, GAIA_PROT_READ);
	expect_first_page_only(cl);
	end();
}

/* A client that holds a page goes on with it: it is brought up to date. What was released and not fetched is not lost. */
Test(handed, what_is_held_or_released_is_merged)
{
	struct client *holder, *reader;

	begin_secret_of(&(struct rig_options){ .devices = 1 });
	holder = client_of(0, GAIA_PROT_RW);
	acquire(holder, GAIA_PAGE, 3 * GAIA_PAGE, GAIA_PROT_RW);
	client_store(holder, "mine", 4, GAIA_PAGE);
	client_store(holder, "new", 3, 3 * GAIA_PAGE);
	release(holder, 3 * GAIA_PAGE, 1);
	cr_assert_eq(cpu_write_direct(kf, "theirs", 6, GAIA_PAGE + 100), 0);
	cr_assert_eq(cpu_write_direct(kf, "theirs", 6, 2 * GAIA_PAGE + 100), 0);
	reader = reader_of_first_page();
	cr_assert_eq(memcmp(client_at(reader, GAIA_PAGE), "mine", 4), 0);
	cr_assert_eq(memcmp(client_at(reader, GAIA_PAGE + 100), "theirs", 6), 0);
	cr_assert_eq(memcmp(client_at(reader, 2 * GAIA_PAGE + 100), "theirs", 6), 0);
	cr_assert_eq(memcmp(client_at(reader, 3 * GAIA_PAGE), "new", 3), 0);
	expect_cpu(3 * GAIA_PAGE, "new");
	release(holder, GAIA_PAGE, 1);
	expect_cpu(GAIA_PAGE, "mine");
	expect_cpu(GAIA_PAGE + 100, "theirs");
	end();
}

Test(handed, chunks_are_made_zeros_once)
{
	uint64_t before;

	begin_secret_of(&(struct rig_options){ .devices = 1 });
	reader_of_first_page();
	before = counter_value(CTR_device_zeroed);
	reader_of_first_page();
	cr_assert_eq(counter_value(CTR_device_zeroed), before);
	end();
}

/* Pages here and there of a file: one operation makes zeros of the rest of 32 chunks. */
Test(handed, many_chunks_are_made_zeros_together)
{
	enum { CHUNKS = 70 };
	const struct rig_options options = { .devices = 1, .device_chunks = CHUNKS };
	struct gaia_list_range range[CHUNKS];
	uint64_t zeroed, operations, seq;
	struct client *cl;

	begin(&options, (uint64_t)CHUNKS * GAIA_CHUNK);
	for (unsigned k = 0; k < CHUNKS; k++)
		range[k] = (struct gaia_list_range){ .offset = (uint64_t)k * GAIA_CHUNK + k * GAIA_PAGE, .length = GAIA_PAGE };
	for (unsigned k = 0; k < CHUNKS; k++)
		cr_assert_eq(cpu_write_direct(kf, "in home", 7, range[k].offset), 0);
	cl = client_create(kf, 0, GAIA_PROT_READ, (uint64_t)CHUNKS * GAIA_CHUNK);
	zeroed = counter_value(CTR_device_zeroed);
	operations = counter_value(CTR_device_operations);
	cr_assert_eq(cache_acquirev(cl->mapping, range, CHUNKS, GAIA_PROT_READ, &seq, NULL), 0);
	cr_assert_eq(counter_value(CTR_device_zeroed) - zeroed, CHUNKS * (PAGES - 1));
	/* And one that copies. */
	operations = counter_value(CTR_device_operations) - operations;
	cr_assert_eq(operations, 1 + (CHUNKS + 31) / 32, "%d operations", (int)operations);
	end();
}

Test(handed, nothing_is_where_it_cannot_be_made_ready)
{
	struct client *cl;

	begin_secret();
	cr_assert_eq(cpu_truncate(kf, 0), 0);
	cr_assert_eq(cpu_truncate(kf, GAIA_CHUNK), 0);
	cl = client_of(0, GAIA_PROT_READ);
	fault_arm("device.zero", -EIO, 0, 1);
	cr_assert_eq(client_acquire(cl, 0, 1, GAIA_PROT_READ), -EIO);
	cr_assert_null(client_at(cl, 0));
	fault_disarm_all();
	acquire(cl, 0, 1, GAIA_PROT_READ);
	expect_nothing_shown(cl);
	end();
}

/* ---- while it is mapped ---- */

static struct client *begin_mapped(void)
{
	struct client *cl;

	begin_secret();
	cl = client_of(0, GAIA_PROT_RW);
	acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_RW);
	release(cl, 0, GAIA_CHUNK);
	return cl;
}

Test(mapped, what_is_truncated_becomes_zeros)
{
	struct client *cl = begin_mapped();

	cr_assert_eq(cpu_truncate(kf, 0), 0);
	expect_nothing_shown(cl);
	end();
}

Test(mapped, what_is_cut_within_a_page_becomes_zeros)
{
	struct client *cl = begin_mapped();

	cr_assert_eq(cpu_truncate(kf, 6), 0);
	cr_assert_eq(shown_beside(cl, 0, 1), PAGES);
	cr_assert_eq(memchr(client_at(cl, 6), SECRET, GAIA_PAGE - 6), NULL);
	end();
}

Test(mapped, what_is_punched_becomes_zeros)
{
	struct client *cl = begin_mapped();

	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100, GAIA_PAGE), 0);
	cr_assert_eq(memchr(client_at(cl, 100), SECRET, GAIA_PAGE), NULL);
	cr_assert_eq(*client_at(cl, 2 * GAIA_PAGE), SECRET);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_ZERO_RANGE, 0, GAIA_CHUNK), 0);
	expect_nothing_shown(cl);
	end();
}

Test(mapped, what_is_punched_past_the_cache_becomes_zeros)
{
	struct client *cl;

	begin_secret_of(&(struct rig_options){ .devices = 1, .passthrough = true });
	cl = client_of(0, GAIA_PROT_RW);
	acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_RW);
	release(cl, 0, GAIA_CHUNK);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_CHUNK), 0);
	expect_nothing_shown(cl);
	end();
}

/* What is held is the holder's until its last release. */
static void removed_while_held(unsigned prot)
{
	struct client *cl, *other;

	begin_secret();
	cl = client_of(0, prot);
	other = client_of(0, GAIA_PROT_READ);
	acquire(other, 0, 1, GAIA_PROT_READ);
	release(other, 0, 1);
	acquire(cl, 0, 4 * GAIA_PAGE, prot);
	acquire(cl, 0, 1, prot);
	cr_assert_eq(cpu_truncate(kf, 2 * GAIA_PAGE + 10), 0);
	cr_assert_eq(cpu_truncate(kf, GAIA_CHUNK), 0);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 50, 50), 0);
	cr_assert_eq(*client_at(cl, 3 * GAIA_PAGE), SECRET);
	cr_assert_eq(shown_beside(cl, 0, 4), PAGES);
	release(cl, 0, 4 * GAIA_PAGE);
	cr_assert_eq(memchr(client_at(other, 2 * GAIA_PAGE + 10), SECRET, GAIA_PAGE - 10), NULL);
	cr_assert_eq(memchr(client_at(other, 3 * GAIA_PAGE), SECRET, GAIA_PAGE), NULL);
	cr_assert_eq(client_at(other, 60)[0], SECRET, "held for a second time still");
	release(cl, 0, 1);
	cr_assert_eq(memchr(client_at(other, 50), SECRET, 50), NULL);
	end();
}

Test(mapped, what_is_removed_while_it_is_read_becomes_zeros_at_the_last_release)
{
	removed_while_held(GAIA_PROT_READ);
}

Test(mapped, what_is_removed_while_it_is_written_becomes_zeros_at_the_last_release)
{
	removed_while_held(GAIA_PROT_RW);
}

/* What was stored beside what was removed is published. */
Test(mapped, what_was_stored_beside_what_was_punched_is_kept)
{
	struct client *cl;

	begin_secret();
	cl = client_of(0, GAIA_PROT_RW);
	acquire(cl, 0, 1, GAIA_PROT_RW);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 50, 50), 0);
	client_store(cl, "mine", 4, 0);
	release(cl, 0, 1);
	cr_assert_eq(memchr(client_at(cl, 50), SECRET, 50), NULL);
	expect_cpu(0, "mine");
	end();
}

Test(mapped, what_the_dead_had_not_released_becomes_zeros)
{
	struct client *cl = begin_mapped(), *dies = client_of(0, GAIA_PROT_RW);

	cr_assert_eq(cpu_truncate(kf, 0), 0);
	cr_assert_eq(cpu_truncate(kf, GAIA_CHUNK), 0);
	acquire(dies, 0, 4 * GAIA_PAGE, GAIA_PROT_RW);
	memset(client_at(dies, 0), SECRET, 4 * GAIA_PAGE);
	client_die(dies);
	/* An acquire finds that the client is dead. */
	acquire(cl, 8 * GAIA_PAGE, 1, GAIA_PROT_READ);
	expect_nothing_shown(cl);
	end();
}

/* Released, acquired again and never released: what was released is in the snapshot. */
Test(mapped, what_the_dead_stored_over_what_they_had_released_becomes_zeros)
{
	struct client *cl = begin_mapped(), *dies = client_of(0, GAIA_PROT_RW);

	acquire(dies, 0, 1, GAIA_PROT_RW);
	client_store(dies, "released", 8, 0);
	release(dies, 0, 1);
	acquire(dies, 0, 1, GAIA_PROT_RW);
	client_store(dies, "not released", 12, 100);
	client_die(dies);
	acquire(cl, 8 * GAIA_PAGE, 1, GAIA_PROT_READ);
	cr_assert_neq(memcmp(client_at(cl, 100), "not released", 12), 0);
	expect_cpu(0, "released");
	end();
}

Test(mapped, a_device_that_is_gone_holds_nobody_up)
{
	begin_mapped();
	fault_arm("device.submit", -ENODEV, 0, UINT_MAX);
	cr_assert_eq(cpu_truncate(kf, 0), 0);
	end();
}
