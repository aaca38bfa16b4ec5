/*
 * cache_views.c - the host as a device: clients that read map home's own memory (pagecache/view.h), those that write have replicas as on any
 * device. Promises 2, 3, 5, 7, 9, 12 and 13 of the contract; what random programs find is in cache_random.c.
 */
#include <linux/falloc.h>

#include "cache_scene.h"
#include "held.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/root.h"
#include "pagecache/users.h"
#include "pagecache/view.h"

#define HOST 1u /* beside one other device */
#define SECRET 'S'
#define AT(page) ((uint64_t)(page) * GAIA_PAGE)

static void begin_host(uint64_t home_bytes, unsigned host_chunks)
{
	begin(&(struct rig_options){ .devices = 1, .device_chunks = 4, .host = true, .host_chunks = host_chunks, .home_bytes = home_bytes },
	      8 * GAIA_CHUNK);
}

static struct client *new_reader(void)
{
	return client_create(kf, HOST, GAIA_PROT_READ, 8 * GAIA_CHUNK);
}

static struct client *new_writer(unsigned device)
{
	return client_create(kf, device, GAIA_PROT_RW, 8 * GAIA_CHUNK);
}

static void acquire(struct client *cl, uint64_t off, uint64_t len)
{
	cr_assert_eq(client_acquire(cl, off, len, GAIA_PROT_READ), 0);
}

static void release(struct client *cl, uint64_t off, uint64_t len)
{
	cr_assert_eq(client_release(cl, off, len), 0);
}

/* What the client's memory shows now. */
#define expect_shown(cl, off, text) cr_assert_eq(memcmp(client_at(cl, off), text, strlen(text)), 0, "%.16s", client_at(cl, off))

static bool is_zeros(struct client *cl, uint64_t off, uint64_t len)
{
	const unsigned char *p = client_at(cl, off);

	for (uint64_t k = 0; k < len; k++)
		if (p[k])
			return false;
	return true;
}

/* The first chunk, in storage and nowhere else. */
static void fill_with_secrets(void)
{
	static char secret[GAIA_CHUNK];

	memset(secret, SECRET, sizeof(secret));
	cr_assert_eq(cpu_write(kf, secret, sizeof(secret), 0), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	kernel_reclaim(kf, 0, 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(rig_frames(rig), 0);
}

static bool in_view(unsigned page)
{
	struct chunk *ch = chunk_get(kf->cfile, page / GAIA_CHUNK_PAGES, false);
	bool is = false;

	if (ch) {
		pthread_mutex_lock(&ch->lock);
		is = page_in_view(ch, page % GAIA_CHUNK_PAGES);
		pthread_mutex_unlock(&ch->lock);
		chunk_put(ch);
	}
	return is;
}

static bool at_home(unsigned page)
{
	struct chunk *ch = chunk_get(kf->cfile, page / GAIA_CHUNK_PAGES, false);
	bool is = false;

	if (ch) {
		pthread_mutex_lock(&ch->lock);
		is = page_present(ch, page % GAIA_CHUNK_PAGES);
		pthread_mutex_unlock(&ch->lock);
		chunk_put(ch);
	}
	return is;
}

/* ---- one copy ---- */

Test(views, readers_share_one_copy_which_is_homes)
{
	struct client *cl[4];
	uint64_t read, moved;

	begin_host(0, 0);
	fill_with_secrets();
	cl[0] = new_reader();
	acquire(cl[0], 0, GAIA_CHUNK);
	read = counter_value(CTR_storage_reads);
	moved = counter_value(CTR_home_viewed);
	for (unsigned k = 1; k < 4; k++) {
		cl[k] = new_reader();
		acquire(cl[k], 0, GAIA_CHUNK);
	}
	for (unsigned k = 0; k < 4; k++)
		cr_assert_eq(*client_at(cl[k], GAIA_CHUNK - 1), SECRET);
	cr_assert_eq(rig_frames(rig), GAIA_CHUNK_PAGES, "all that it takes of home");
	cr_assert_eq(counter_value(CTR_storage_reads), read);
	cr_assert_eq(counter_value(CTR_home_viewed), moved);
	cr_assert_eq(counter_value(CTR_home_to_device), 0);
	end();
}

Test(views, what_is_at_home_is_not_read_again)
{
	struct client *cl;
	uint64_t read;

	begin_host(0, 0);
	write_cpu(0, "here");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	read = counter_value(CTR_storage_reads);
	cl = new_reader();
	expect_device(cl, 0, "here");
	cr_assert_eq(counter_value(CTR_storage_reads), read);
	cr_assert(in_view(0));
	cr_assert(!in_view(1), "nobody has asked for it");
	end();
}

Test(views, what_is_acquired_again_costs_nothing)
{
	struct client *cl;
	uint64_t ready;

	begin_host(0, 0);
	fill_with_secrets();
	cl = new_reader();
	acquire(cl, 0, GAIA_CHUNK);
	release(cl, 0, GAIA_CHUNK);
	ready = counter_value(CTR_acquires_ready);
	acquire(cl, 0, GAIA_CHUNK);
	cr_assert_eq(counter_value(CTR_acquires_ready), ready + 1);
	end();
}

/* ---- what others write ---- */

Test(views, an_acquire_shows_what_was_written_before)
{
	struct client *cl, *writer;

	begin_host(0, 0);
	cl = new_reader();
	acquire(cl, 0, 2 * GAIA_PAGE);
	release(cl, 0, 2 * GAIA_PAGE);
	store_cpu(0, "cpu");
	writer = new_writer(0);
	write_device(writer, GAIA_PAGE, "device");
	release(writer, GAIA_PAGE, 6);
	writer = new_writer(HOST);
	write_device(writer, 100, "host");
	release(writer, 100, 4);
	expect_device(cl, 0, "cpu");
	expect_device(cl, GAIA_PAGE, "device");
	expect_device(cl, 100, "host");
	end();
}

Test(views, what_is_not_released_is_not_there)
{
	struct client *cl, *writer;

	begin_host(0, 0);
	writer = new_writer(HOST);
	write_device(writer, 0, "private");
	cl = new_reader();
	acquire(cl, 0, GAIA_PAGE);
	cr_assert(is_zeros(cl, 0, GAIA_PAGE));
	client_die(writer);
	release(cl, 0, GAIA_PAGE);
	acquire(cl, 0, GAIA_PAGE);
	cr_assert(is_zeros(cl, 0, GAIA_PAGE));
	end();
}

/* Home's pages stay where they are, whoever changes them. */
Test(views, what_is_held_shows_what_becomes_homes)
{
	struct client *cl, *a, *b;

	begin_host(0, 0);
	cl = new_reader();
	acquire(cl, 0, GAIA_PAGE);
	cr_assert_eq(cpu_write_direct(kf, "cpu", 3, 0), 0);
	expect_shown(cl, 0, "cpu");
	/* The one is home's base of the other. */
	a = new_writer(0);
	b = new_writer(HOST);
	write_device(a, 10, "one");
	write_device(b, 20, "other");
	release(a, 10, 3);
	release(b, 20, 5);
	expect_cpu(10, "one");
	expect_shown(cl, 0, "cpu");
	expect_shown(cl, 10, "one");
	expect_shown(cl, 20, "other");
	cr_assert(in_view(0));
	end();
}

/* It was changed since it came into view: for the next client, too, it is home's page, and not something old. */
Test(views, what_has_changed_is_there_for_the_next_reader)
{
	struct client *cl;

	begin_host(0, 0);
	cl = new_reader();
	acquire(cl, 0, 4 * GAIA_PAGE);
	release(cl, 0, 4 * GAIA_PAGE);
	cr_assert_eq(cpu_write_direct(kf, "changed", 7, AT(2)), 0);
	cl = new_reader();
	acquire(cl, 0, 1);
	expect_shown(cl, AT(2), "changed");
	expect_cpu(AT(2), "changed");
	end();
}

static int flush(void *arg)
{
	return cache_flush(kf->cfile);
}

/* Rule 21. */
Test(views, what_is_being_stored_can_be_written_meanwhile)
{
	struct held storing = { .point = "store.write", .call = flush };
	struct client *cl;

	begin_host(0, 0);
	cl = new_reader();
	acquire(cl, 0, GAIA_PAGE);
	cr_assert_eq(cpu_write_direct(kf, "first", 5, 0), 0);
	held_begin(&storing);
	cr_assert_eq(cpu_write_direct(kf, "later", 5, 0), 0);
	expect_shown(cl, 0, "later");
	cr_assert_eq(held_end(&storing), 0);
	expect_store(0, "first");
	cr_assert(in_view(0));
	cr_assert_eq(cache_flush(kf->cfile), 0);
	expect_store(0, "later");
	end();
}

/* ---- what nobody may see ---- */

Test(leaks, what_is_not_acquired_is_zeros_or_current)
{
	struct client *cl;

	begin_host(0, 0);
	fill_with_secrets();
	cl = new_reader();
	acquire(cl, 0, 1);
	cr_assert_eq(*client_at(cl, 0), SECRET);
	cr_assert(is_zeros(cl, GAIA_PAGE, GAIA_CHUNK - GAIA_PAGE));
	end();
}

Test(leaks, what_a_device_has_overwritten_is_not_shown)
{
	struct client *cl, *writer;

	begin_host(0, 0);
	fill_with_secrets();
	cl = new_reader();
	acquire(cl, 0, GAIA_CHUNK);
	client_end(cl);
	writer = new_writer(0);
	cr_assert_eq(client_acquire(writer, 0, GAIA_CHUNK, GAIA_PROT_RW), 0);
	memset(client_at(writer, 0), 0, GAIA_CHUNK);
	release(writer, 0, GAIA_CHUNK);
	cl = new_reader();
	acquire(cl, 0, 1);
	cr_assert(is_zeros(cl, 0, GAIA_CHUNK));
	end();
}

/* Mapped, and held or not. */
static struct client *begin_mapped(bool held)
{
	struct client *cl;

	begin_host(0, 0);
	fill_with_secrets();
	cl = new_reader();
	acquire(cl, 0, GAIA_CHUNK);
	if (!held)
		release(cl, 0, GAIA_CHUNK);
	return cl;
}

static void truncated(bool held)
{
	struct client *cl = begin_mapped(held);

	cr_assert_eq(cpu_truncate(kf, 2 * GAIA_PAGE + 10), 0);
	cr_assert_eq(*client_at(cl, 2 * GAIA_PAGE + 9), SECRET);
	cr_assert(is_zeros(cl, 2 * GAIA_PAGE + 10, GAIA_CHUNK - 2 * GAIA_PAGE - 10));
	cr_assert_eq(cpu_truncate(kf, GAIA_CHUNK), 0);
	if (held)
		release(cl, 0, GAIA_CHUNK);
	acquire(cl, 0, GAIA_CHUNK);
	cr_assert_eq(*client_at(cl, 2 * GAIA_PAGE + 9), SECRET);
	cr_assert(is_zeros(cl, 2 * GAIA_PAGE + 10, GAIA_CHUNK - 2 * GAIA_PAGE - 10));
	end();
}

Test(leaks, what_is_truncated_becomes_zeros)
{
	truncated(false);
}

Test(leaks, what_is_truncated_while_held_becomes_zeros)
{
	truncated(true);
}

static void punched(bool held)
{
	struct client *cl = begin_mapped(held);

	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100, 3 * GAIA_PAGE), 0);
	cr_assert_eq(*client_at(cl, 99), SECRET);
	cr_assert(is_zeros(cl, 100, 3 * GAIA_PAGE));
	cr_assert_eq(*client_at(cl, 100 + 3 * GAIA_PAGE), SECRET);
	acquire(cl, 0, GAIA_CHUNK);
	cr_assert_eq(*client_at(cl, 99), SECRET);
	cr_assert(is_zeros(cl, 100, 3 * GAIA_PAGE));
	cr_assert_eq(*client_at(cl, 100 + 3 * GAIA_PAGE), SECRET);
	end();
}

Test(leaks, what_is_punched_becomes_zeros)
{
	punched(false);
}

Test(leaks, what_is_punched_while_held_becomes_zeros)
{
	punched(true);
}

/* Removed, and written again: the view must not become zeros then. */
Test(leaks, what_is_written_after_a_hole_is_there)
{
	struct client *cl = begin_mapped(true);

	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_CHUNK), 0);
	write_cpu(GAIA_PAGE, "new");
	expect_device(cl, GAIA_PAGE, "new");
	release(cl, 0, GAIA_CHUNK);
	release(cl, GAIA_PAGE, 3);
	expect_shown(cl, GAIA_PAGE, "new");
	cr_assert(is_zeros(cl, 2 * GAIA_PAGE, GAIA_CHUNK - 2 * GAIA_PAGE));
	expect_cpu(GAIA_PAGE, "new");
	end();
}

Test(leaks, beyond_the_end_there_are_zeros)
{
	struct client *cl;

	begin_host(0, 0);
	fill_with_secrets();
	cr_assert_eq(cpu_truncate(kf, 100), 0);
	cl = new_reader();
	acquire(cl, 0, GAIA_CHUNK);
	cr_assert_eq(*client_at(cl, 99), SECRET);
	cr_assert(is_zeros(cl, 100, GAIA_CHUNK - 100));
	write_cpu(2 * GAIA_PAGE, "grown");
	expect_device(cl, 2 * GAIA_PAGE, "grown");
	end();
}

Test(leaks, memory_that_is_used_again_is_zeros)
{
	struct client *cl;

	begin_host(0, 1);
	fill_with_secrets();
	cl = new_reader();
	acquire(cl, 0, GAIA_CHUNK);
	release(cl, 0, GAIA_CHUNK);
	acquire(cl, GAIA_CHUNK, 1);
	cr_assert_null(client_at(cl, 0), "there is room for one chunk");
	cr_assert(is_zeros(cl, GAIA_CHUNK, GAIA_CHUNK));
	end();
}

/* ---- how a view ends ---- */

Test(ends, when_nobody_maps_it_home_keeps_the_pages)
{
	struct client *cl;
	uint64_t read;

	begin_host(0, 0);
	fill_with_secrets();
	cl = new_reader();
	acquire(cl, 0, 8 * GAIA_PAGE);
	write_cpu(GAIA_PAGE, "dirty");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	client_end(cl);
	cr_assert(in_view(0), "it stays for the next one");
	cr_assert_eq(cache_evict(kf->cfile, GAIA_HOST, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, HOST), 0);
	cr_assert_eq(rig_frames(rig), 8);
	cr_assert(!in_view(0) && at_home(0) && at_home(7));
	read = counter_value(CTR_storage_reads);
	cl = new_reader();
	expect_device(cl, GAIA_PAGE, "dirty");
	cr_assert_eq(*client_at(cl, GAIA_PAGE + 5), SECRET);
	cr_assert_eq(counter_value(CTR_storage_reads), read);
	expect_cpu(GAIA_PAGE, "dirty");
	end();
}

Test(ends, what_is_held_stays)
{
	struct client *cl;

	begin_host(0, 0);
	fill_with_secrets();
	cl = new_reader();
	acquire(cl, 0, GAIA_PAGE);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_HOST, 0, 0), -EBUSY);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), -EBUSY);
	cr_assert_eq(*client_at(cl, 0), SECRET);
	release(cl, 0, GAIA_PAGE);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_null(client_at(cl, 0), "the client was asked for it");
	cr_assert_eq(rig_frames(rig), 0);
	end();
}

/* Its pages cannot go anywhere else, and are not stored: it stays, with all that is in it. */
Test(ends, only_when_what_is_not_stored_has_a_place)
{
	struct client *cl;

	begin_host(0, 0);
	cl = new_reader();
	acquire(cl, 0, GAIA_PAGE);
	write_cpu(0, "dirty");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	client_end(cl);
	/* What is free in other slabs would do. */
	frames_trim(&rig->cache->frames, true);
	fault_arm("home.memory", -ENOMEM, 0, 0);
	cr_assert_neq(cache_evict(kf->cfile, GAIA_HOST, 0, 0), 0);
	cr_assert(in_view(0));
	fault_disarm_all();
	expect_cpu(0, "dirty");
	cr_assert_eq(cache_evict(kf->cfile, GAIA_HOST, 0, 0), 0);
	cr_assert(!in_view(0));
	expect_cpu(0, "dirty");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "dirty");
	end();
}

/* What cannot be stored has what the host leaves of home. */
Test(room, what_cannot_be_stored_does_not_use_up_more_than_home)
{
	struct client *cl;
	unsigned written = 0;

	begin_host(CACHE_HOME_MIN, 2);
	cl = new_reader();
	acquire(cl, 0, 2 * GAIA_CHUNK);
	fault_arm("store.write", -ENOSPC, 0, 0);
	while (written < 4 * GAIA_CHUNK_PAGES && cpu_write_direct(kf, "x", 1, 4 * GAIA_CHUNK + AT(written)) == 0)
		written++;
	cr_assert_lt(written, 2 * GAIA_CHUNK_PAGES + 64);
	fault_disarm_all();
	end();
}

Test(ends, with_the_file)
{
	struct client *cl;

	begin_host(0, 0);
	fill_with_secrets();
	cl = new_reader();
	acquire(cl, 0, GAIA_PAGE);
	write_cpu(0, "lost");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	client_end(cl);
	kfile_end(kf, true);
	cr_assert_eq(rig_frames(rig), 0);
	cr_assert_eq(rig_device_used(rig, HOST), 0);
	end();
}

/* ---- room ---- */

Test(room, an_acquire_that_does_not_fit_fails)
{
	struct client *cl;

	begin_host(0, 2);
	cl = new_reader();
	cr_assert_eq(client_acquire(cl, 0, 3 * GAIA_CHUNK, GAIA_PROT_READ), -ENOMEM);
	acquire(cl, 0, 2 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), -ENOMEM);
	release(cl, 0, GAIA_CHUNK);
	acquire(cl, 2 * GAIA_CHUNK, 1);
	cr_assert_eq(rig_device_used(rig, HOST), 2 * GAIA_CHUNK);
	end();
}

Test(room, a_user_has_a_part)
{
	struct client *cl;

	begin_host(0, 4);
	rig->user = (struct cache_user){ .uid = 1 };
	cl = new_reader();
	acquire(cl, 0, 3 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 3 * GAIA_CHUNK, 1, GAIA_PROT_READ), -ENOMEM);
	end();
}

/* Home is as small as may be, and half of it is the host's. */
Test(room, a_file_goes_through_a_small_home)
{
	static char piece[GAIA_PAGE];
	struct client *cl;

	begin_host(CACHE_HOME_MIN, 2);
	for (unsigned k = 0; k < 8; k++) {
		memset(piece, 'a' + (int)k, sizeof(piece));
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
			cr_assert_eq(cpu_write(kf, piece, sizeof(piece), k * GAIA_CHUNK + AT(i)), 0);
	}
	cl = new_reader();
	for (unsigned round = 0; round < 2; round++)
		for (unsigned k = 0; k < 8; k++) {
			acquire(cl, k * GAIA_CHUNK, GAIA_CHUNK);
			for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
				cr_assert_eq(*client_at(cl, k * GAIA_CHUNK + AT(i)), 'a' + k);
			release(cl, k * GAIA_CHUNK, GAIA_CHUNK);
			cr_assert_leq(rig_frames(rig), CACHE_HOME_MIN / GAIA_PAGE);
		}
	end();
}

/* Two chunks are mapped, one of them held; and beside these there are as many of home's, which is all that there is. */
static struct client *begin_full(uint64_t used)
{
	struct client *cl;

	begin_host(CACHE_HOME_MIN, 2);
	fill_with_secrets();
	cl = new_reader();
	acquire(cl, 0, used);
	acquire(cl, GAIA_CHUNK, GAIA_CHUNK);
	release(cl, 0, used);
	cr_assert_eq(cache_flush(kf->cfile), 0);
	for (unsigned i = 0; i < 2 * GAIA_CHUNK_PAGES; i++)
		cr_assert_eq(cpu_write_direct(kf, "x", 1, 4 * GAIA_CHUNK + AT(i)), 0);
	return cl;
}

static void expect_held_only(struct client *cl)
{
	cr_assert_eq(rig_device_used(rig, HOST), GAIA_CHUNK, "the other one is held");
	cr_assert_null(client_at(cl, 0));
	cr_assert_not_null(client_at(cl, GAIA_CHUNK));
}

/* While the thread whose work that is has none. */
static void trim(bool lacking)
{
	pthread_rwlock_wrlock(&rig->cache->round);
	view_trim(rig->cache, lacking);
	pthread_rwlock_unlock(&rig->cache->round);
}

#define ROUNDS ARRAY_LEN(((struct cache *)NULL)->idled)

/* What is idle goes when others need home. */
Test(room, what_nobody_uses_makes_way)
{
	struct client *cl = begin_full(GAIA_CHUNK);

	trim(true);
	expect_held_only(cl);
	end();
}

static void used_for_long(uint64_t used)
{
	struct client *cl = begin_full(used);

	for (unsigned k = 0; k < 3 * ROUNDS; k++) {
		acquire(cl, 0, used);
		release(cl, 0, used);
		trim(false);
		cr_assert_not_null(client_at(cl, 0), "round %u", k);
	}
	for (unsigned k = 0; k < ROUNDS + 2; k++)
		trim(false);
	expect_held_only(cl);
	end();
}

Test(room, what_nobody_has_used_for_long_makes_way_in_time)
{
	used_for_long(GAIA_PAGE);
}

/* Of which it is not known when it is used. */
Test(room, what_is_ready_makes_way_in_time)
{
	used_for_long(GAIA_CHUNK);
}

Test(room, what_is_held_stays_where_it_is)
{
	struct client *cl;

	begin_host(CACHE_HOME_MIN, 2);
	fill_with_secrets();
	cl = new_reader();
	acquire(cl, 0, 2 * GAIA_CHUNK);
	/* More than there is room for. */
	for (unsigned i = 0; i < 4 * GAIA_CHUNK_PAGES; i++)
		cr_assert_eq(cpu_write_direct(kf, "x", 1, 4 * GAIA_CHUNK + AT(i)), 0);
	trim(true);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		cr_assert_eq(*client_at(cl, AT(i)), SECRET, "page %u", i);
	cr_assert_leq(rig_frames(rig), CACHE_HOME_MIN / GAIA_PAGE);
	end();
}

Test(room, without_memory_for_it_nothing_happens)
{
	struct client *cl;

	begin_host(0, 0);
	cl = new_reader();
	fault_arm("device.alloc", -ENOMEM, 0, 0);
	cr_assert_eq(client_acquire(cl, 0, 1, GAIA_PROT_READ), -ENOMEM);
	fault_disarm_all();
	acquire(cl, 0, 1);
	end();
}
