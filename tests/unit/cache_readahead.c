/*
 * cache_readahead.c - what is brought to a device before it is acquired: that it is there, that it costs nobody anything, and that nobody sees
 * a difference.
 */
#include <linux/falloc.h>
#include <sched.h>
#include <stdlib.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "cache_acquires.h"
#include "pagecache/cache.h"
#include "pagecache/file.h"
#include "pagecache/root.h"
#include "thread_sleeps.h"

#define AT(chunk, page) ((uint64_t)(chunk) * GAIA_CHUNK + (uint64_t)(page) * GAIA_PAGE)
#define WINDOW_MOST (16u * 256u) /* pages: 16 MiB */

static struct {
	uint64_t brought, used, wasted, failed, sent, operations;
} before;

static void counts_begin(void)
{
	before.brought = counter_value(CTR_readahead);
	before.used = counter_value(CTR_readahead_used);
	before.wasted = counter_value(CTR_readahead_wasted);
	before.failed = counter_value(CTR_readahead_failed);
	before.sent = counter_value(CTR_home_to_device);
	before.operations = counter_value(CTR_device_operations);
}

/* Since then: pages that were brought before they were acquired; that were acquired after that; that were brought in vain. */
#define expect_counts(brought_, used_, wasted_)                                                 \
	do {                                                                                    \
		cr_assert_eq(counter_value(CTR_readahead) - before.brought, (brought_));        \
		cr_assert_eq(counter_value(CTR_readahead_used) - before.used, (used_));         \
		cr_assert_eq(counter_value(CTR_readahead_wasted) - before.wasted, (wasted_));   \
	} while (0)

static uint64_t brought(void)
{
	return counter_value(CTR_readahead) - before.brought;
}

static void will_need(struct client *cl, uint64_t off, uint64_t len)
{
	cr_assert_eq(cache_advise(cl->mapping, off, len, GAIA_ADVISE_WILLNEED), 0);
	rig_readahead(rig);
}

/* As client_acquire(), but the kernel is not asked for anything. */
static int acquire_range(struct client *cl, uint64_t off, uint64_t len, unsigned prot)
{
	uint64_t seq;

	return cache_acquire(cl->mapping, off, len, prot, &seq, NULL);
}

static void release_range(struct client *cl, uint64_t off, uint64_t len)
{
	cr_assert_eq(cache_release(cl->mapping, off, len, NULL), 0);
}

/* ---- advice ---- */

Test(will_need, is_there_when_it_is_acquired)
{
	struct client *cl;

	begin_devices(1);
	write_cpu(AT(1, 5), "there");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	cl = new_client(0);
	counts_begin();
	will_need(cl, AT(1, 0), 2 * GAIA_CHUNK);
	expect_counts(2 * GAIA_CHUNK_PAGES, 0, 0);
	before.operations = counter_value(CTR_device_operations);
	cr_assert_eq(acquire_range(cl, AT(1, 0), 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(counter_value(CTR_device_operations), before.operations);
	expect_counts(2 * GAIA_CHUNK_PAGES, 2 * GAIA_CHUNK_PAGES, 0);
	cr_assert_str_eq((char *)client_at(cl, AT(1, 5)), "there");
	end();
}

/* It is moved for that client, as are the bytes that its calls move; but the client does not wait for it. */
Test(will_need, counts_for_its_client)
{
	struct working_for nobody = { NULL, NULL };
	struct uses uses;
	unsigned now;

	begin_devices(1);
	uses_init(&uses);
	rig->user.uses = &uses;
	will_need(new_client(0), AT(1, 0), GAIA_CHUNK);
	cr_assert_eq(moved_get(&uses.moved, MOVED_to_device_bytes), GAIA_CHUNK);
	cr_assert_eq(moved_get(&uses.moved, MOVED_from_storage_bytes), GAIA_CHUNK);
	for (enum wait_for k = 0; k < WAIT_COUNT; k++)
		cr_assert_eq(uses_waited_ns(&uses, k, &now), 0, "%s", wait_names[k]);
	rig->user.uses = NULL;
	uses_enter(&uses);
	cr_assert_eq(acquire_range(new_client(0), AT(0, 0), GAIA_CHUNK, GAIA_PROT_READ), 0);
	uses_leave(nobody);
	cr_assert_eq(moved_get(&uses.moved, MOVED_to_device_bytes), 2 * GAIA_CHUNK);
	end();
	uses_destroy(&uses);
}

/* Advice is taken at once, whatever has the pages or the file. */
Test(will_need, returns_at_once)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	fault_hold("readahead.begin");
	cr_assert_eq(cache_advise(cl->mapping, 0, GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	fault_await_held("readahead.begin");
	cr_assert_eq(counter_value(CTR_readahead), 0);
	fault_let_go("readahead.begin");
	rig_readahead(rig);
	cr_assert_eq(counter_value(CTR_readahead), GAIA_CHUNK_PAGES);
	end();
}

/* The part of a mapping beyond the end of the file costs nothing, not even time. */
Test(will_need, ends_with_the_file)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true }, GAIA_CHUNK + 3 * GAIA_PAGE + 1);
	cl = client_create(kf, 0, GAIA_PROT_RW, 1ull << 40);
	will_need(cl, 0, 1ull << 40);
	cr_assert_eq(counter_value(CTR_readahead), GAIA_CHUNK_PAGES + 4);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	end();
}

Test(will_need, what_was_written_meanwhile_is_seen)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	will_need(cl, 0, GAIA_CHUNK);
	write_cpu(AT(0, 7), "newer");
	counts_begin();
	expect_device(cl, AT(0, 7), "newer");
	/* The others count as used, since from now on nobody looks. */
	expect_counts(0, GAIA_CHUNK_PAGES - 1, 1);
	end();
}

/* ---- whom it costs nothing ---- */

/* Another file's client, which has had the chunks and holds nothing. */
static struct client *begin_other(unsigned chunks)
{
	struct client *cl = client_create(kfile_create(rig, 2, chunks * GAIA_CHUNK), 0, GAIA_PROT_RW, chunks * GAIA_CHUNK);

	cr_assert_eq(acquire_range(cl, 0, chunks * GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_range(cl, 0, chunks * GAIA_CHUNK);
	return cl;
}

Test(room, is_free_memory_only)
{
	struct client *cl, *other;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 4 }, 4 * GAIA_CHUNK);
	other = begin_other(3);
	cl = new_client(0);
	counts_begin();
	will_need(cl, 0, 4 * GAIA_CHUNK);
	expect_counts(GAIA_CHUNK_PAGES, 0, 0);
	cr_assert_eq(counter_value(CTR_readahead_failed) - before.failed, 1);
	cr_assert_eq(other->revoked, 0);
	cr_assert_eq(counter_value(CTR_device_evicted), 0);
	end();
}

/* What was not used gives way first: to an acquire, before what others have used longer ago. */
/* What was read ahead for users who do not use it, or are gone, makes room for more of these users', and of others'. */
Test(room, of_users_is_not_used_up_by_what_nobody_uses)
{
	struct client *cl, *other;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 8 }, 16 * GAIA_CHUNK);
	rig->user = (struct cache_user){ .uid = 1 };
	cl = client_create(kf, 0, GAIA_PROT_RW, 16 * GAIA_CHUNK);
	will_need(cl, 0, 16 * GAIA_CHUNK);
	cr_assert_eq(rig_device_used(rig, 0), 6 * GAIA_CHUNK);
	client_end(cl);
	other = client_create(kfile_create(rig, 2, 4 * GAIA_CHUNK), 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	counts_begin();
	will_need(other, 0, 4 * GAIA_CHUNK);
	cr_assert_eq(brought(), 4 * GAIA_CHUNK_PAGES, "the same user");
	/* It keeps more than the next ones have. */
	for (unsigned uid = 2; uid <= 3; uid++) {
		rig->user = (struct cache_user){ .uid = uid };
		cl = client_create(kfile_create(rig, 1 + uid, GAIA_CHUNK), 0, GAIA_PROT_RW, GAIA_CHUNK);
		counts_begin();
		will_need(cl, 0, GAIA_CHUNK);
		cr_assert_eq(brought(), GAIA_CHUNK_PAGES, "user %u", uid);
	}
	cr_assert_leq(rig_device_used(rig, 0), 7 * GAIA_CHUNK, "the last eighth is the owners'");
	end();
}

Test(room, is_given_back_first)
{
	struct client *cl, *other;
	struct cache_user owner;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 4 }, 4 * GAIA_CHUNK);
	owner = rig->user;
	/* What users who do not own the mount have is never ready, and so could be evicted at once. */
	rig->user = (struct cache_user){ .uid = 1 };
	other = begin_other(2);
	rig->user = owner;
	cl = new_client(0);
	counts_begin();
	will_need(cl, 0, 2 * GAIA_CHUNK);
	cr_assert_eq(acquire_range(cl, AT(2, 0), 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(other->revoked, 0);
	expect_counts(2 * GAIA_CHUNK_PAGES, 0, 2 * GAIA_CHUNK_PAGES);
	end();
}

/* Once it was used it is like everybody's. */
Test(room, is_kept_by_what_was_used)
{
	struct client *cl, *other;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 4 }, 4 * GAIA_CHUNK);
	other = begin_other(2);
	cl = new_client(0);
	will_need(cl, 0, 2 * GAIA_CHUNK);
	cr_assert_eq(acquire_range(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_all(cl);
	cr_assert_eq(acquire_range(cl, AT(2, 0), 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(other->revoked, 2);
	cr_assert_eq(cl->revoked, 0);
	cr_assert_eq(counter_value(CTR_readahead_wasted), 0);
	end();
}

/* In the place of what was read ahead and not used comes what is read ahead for another file, but not for the same request. */
Test(room, is_taken_from_the_unused)
{
	struct client *cl, *other;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	other = client_create(kfile_create(rig, 2, GAIA_CHUNK), 0, GAIA_PROT_RW, GAIA_CHUNK);
	cl = new_client(0);
	counts_begin();
	will_need(cl, 0, 4 * GAIA_CHUNK);
	expect_counts(2 * GAIA_CHUNK_PAGES, 0, 0);
	will_need(other, 0, GAIA_CHUNK);
	expect_counts(3 * GAIA_CHUNK_PAGES, 0, GAIA_CHUNK_PAGES);
	/* What was read ahead first has gone. */
	cr_assert_eq(acquire_range(cl, AT(1, 0), GAIA_CHUNK, GAIA_PROT_READ), 0);
	expect_counts(3 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	end();
}

/* Two who read more ahead than there is room for have a part each, and do not evict each other's in turns. */
Test(room, is_shared_by_those_who_want_more)
{
	struct client *cl, *other;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 4 }, 4 * GAIA_CHUNK);
	other = client_create(kfile_create(rig, 2, 4 * GAIA_CHUNK), 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	cl = new_client(0);
	counts_begin();
	will_need(cl, 0, 4 * GAIA_CHUNK);
	for (unsigned k = 0; k < 4; k++) {
		will_need(other, 0, 4 * GAIA_CHUNK);
		will_need(cl, 0, 4 * GAIA_CHUNK);
	}
	expect_counts(6 * GAIA_CHUNK_PAGES, 0, 2 * GAIA_CHUNK_PAGES);
	/* What was read ahead for a mapping that has ended is nobody's part. */
	client_end(other);
	will_need(cl, 0, 4 * GAIA_CHUNK);
	expect_counts(8 * GAIA_CHUNK_PAGES, 0, 4 * GAIA_CHUNK_PAGES);
	end();
}

/* Users have a part each, however many mappings they have. */
Test(room, is_shared_by_users)
{
	struct client *cl, *mine[3];

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 8 }, 4 * GAIA_CHUNK);
	rig->user = (struct cache_user){ .uid = 1 };
	for (unsigned k = 0; k < ARRAY_LEN(mine); k++) {
		mine[k] = client_create(kfile_create(rig, 2 + (int)k, 4 * GAIA_CHUNK), 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
		will_need(mine[k], 0, 2 * GAIA_CHUNK);
	}
	rig->user = (struct cache_user){ .owner = true };
	cl = new_client(0);
	counts_begin();
	will_need(cl, 0, 4 * GAIA_CHUNK);
	expect_counts(4 * GAIA_CHUNK_PAGES, 0, 2 * GAIA_CHUNK_PAGES);
	rig->user = (struct cache_user){ .uid = 1 };
	for (unsigned k = 0; k < ARRAY_LEN(mine); k++)
		will_need(mine[k], 0, 4 * GAIA_CHUNK);
	counts_begin();
	cr_assert_eq(acquire_range(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	expect_counts(0, 4 * GAIA_CHUNK_PAGES, 0);
	end();
}

/* What is being filled waits for storage: who needs room does not wait for that, but has what others have used. */
Test(room, is_not_waited_for_while_it_is_filled, .timeout = 120)
{
	struct client *cl, *other;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	other = begin_other(1);
	cl = new_client(0);
	fault_hold("store.read");
	cr_assert_eq(cache_advise(cl->mapping, 0, GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	fault_await_held("store.read");
	cr_assert_eq(acquire_range(cl, AT(2, 0), GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(other->revoked, 1);
	fault_let_go("store.read");
	rig_readahead(rig);
	cr_assert_eq(counter_value(CTR_readahead_wasted), 0);
	end();
}

/* If one cannot be evicted at once, another can. */
Test(room, is_found_behind_what_somebody_has)
{
	struct cache_read rd;
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 4 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	write_device(cl, 0, "one");
	release_all(cl);
	will_need(cl, AT(1, 0), 3 * GAIA_CHUNK);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
	cr_assert_eq(cache_read_begin(kf->cfile, AT(1, 9), GAIA_PAGE, false, &rd), 0);
	write_device(cl, 0, "two");
	cr_assert_eq(counter_value(CTR_device_snapshots), 1);
	cache_read_end(&rd);
	expect_cpu(0, "one");
	end();
}

/* Snapshots do not lack memory because of it. */
Test(room, is_given_to_a_snapshot)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 4 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	write_device(cl, 0, "one");
	release_all(cl);
	will_need(cl, AT(1, 0), 3 * GAIA_CHUNK);
	cr_assert_eq(rig_device_used(rig, 0), 4 * GAIA_CHUNK);
	write_device(cl, 0, "two");
	cr_assert_eq(counter_value(CTR_device_snapshots), 1);
	expect_cpu(0, "one");
	end();
}

/* An acquire that comes while the memory has no replica yet waits for it, and does not fail. */
static void *advise(void *arg)
{
	struct client *cl = arg;

	cr_assert_eq(cache_advise(cl->mapping, 0, GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	return NULL;
}

static void *acquire_last(void *arg)
{
	return (void *)(intptr_t)acquire_range(arg, AT(2, 0), 2 * GAIA_CHUNK, GAIA_PROT_READ);
}

Test(room, that_is_about_to_be_filled_makes_no_acquire_fail)
{
	struct client *cl;
	pthread_t thread;
	void *result;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	fault_hold("readahead.before_link");
	advise(cl);
	fault_await_held("readahead.before_link");
	cr_assert_eq(pthread_create(&thread, NULL, acquire_last, cl), 0);
	usleep(20000);
	fault_let_go("readahead.before_link");
	pthread_join(thread, &result);
	cr_assert_eq((intptr_t)result, 0);
	rig_readahead(rig);
	end();
}

/* ---- what is left alone ---- */

Test(alone, what_is_held_is_left)
{
	struct client *cl;

	begin_devices(2);
	cl = new_client(0);
	cr_assert_eq(acquire_range(cl, AT(0, 0), 2 * GAIA_PAGE, GAIA_PROT_READ), 0);
	write_device(cl, AT(0, 4), "mine");
	write_cpu(AT(0, 1), "cpu");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	counts_begin();
	will_need(cl, 0, GAIA_CHUNK);
	expect_counts(GAIA_CHUNK_PAGES - 3, 0, 0);
	cr_assert_str_neq((char *)client_at(cl, AT(0, 1)), "cpu");
	cr_assert_str_eq((char *)client_at(cl, AT(0, 4)), "mine");
	release_all(cl);
	expect_cpu(AT(0, 4), "mine");
	expect_device(cl, AT(0, 1), "cpu");
	end();
}

Test(alone, what_another_device_released_is_left)
{
	struct client *cl, *other;
	uint64_t fetched;

	begin_devices(2);
	cl = new_client(0);
	other = new_client(1);
	write_device(other, AT(0, 3), "other");
	release_all(other);
	fetched = counter_value(CTR_device_to_home);
	counts_begin();
	will_need(cl, 0, GAIA_CHUNK);
	expect_counts(GAIA_CHUNK_PAGES - 1, 0, 0);
	cr_assert_eq(counter_value(CTR_device_to_home), fetched);
	expect_device(cl, AT(0, 3), "other");
	end();
}

/* A page that somebody has is not waited for. */
Test(alone, what_somebody_has_is_left)
{
	struct cache_read rd;
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(cache_read_begin(kf->cfile, AT(0, 9), GAIA_PAGE, false, &rd), 0);
	will_need(cl, 0, GAIA_CHUNK);
	cr_assert_eq(counter_value(CTR_readahead), GAIA_CHUNK_PAGES - 1);
	cache_read_end(&rd);
	will_need(cl, 0, GAIA_CHUNK);
	cr_assert_eq(counter_value(CTR_readahead), GAIA_CHUNK_PAGES);
	end();
}

/* Who wants pages that home has does not wait for the store to be read for others. */
Test(alone, what_home_has_is_not_locked_while_the_store_is_read, .timeout = 120)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(acquire_range(cl, AT(0, 0), GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_all(cl);
	/* Home has the first pages only. */
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		write_cpu(AT(0, i), i < 4 ? "home" : "store");
	cr_assert_eq(cpu_fsync(kf), 0);
	kernel_reclaim(kf, 0, 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, AT(0, 4), GAIA_CHUNK - 4 * GAIA_PAGE), 0);
	counts_begin();
	fault_hold("store.read");
	advise(cl);
	fault_await_held("store.read");
	expect_counts(4, 0, 0);
	cr_assert_eq(acquire_range(cl, AT(0, 0), 4 * GAIA_PAGE, GAIA_PROT_READ), 0);
	cr_assert_str_eq((char *)client_at(cl, AT(0, 3)), "home");
	fault_let_go("store.read");
	rig_readahead(rig);
	expect_counts(GAIA_CHUNK_PAGES, 4, 0);
	expect_device(cl, AT(0, 4), "store");
	end();
}

/* Fill the smallest home but for @room pages, page by page: backwards, since nothing is read ahead then. */
static void fill_home(struct kfile *file, uint64_t room)
{
	for (uint64_t off = 2 * CACHE_HOME_MIN; rig_frames(rig) < CACHE_HOME_MIN / GAIA_PAGE - room; off -= GAIA_PAGE)
		cr_assert_eq(cpu_read_direct(file, (char[GAIA_PAGE]){ 0 }, GAIA_PAGE, off - GAIA_PAGE), GAIA_PAGE);
}

/* Home evicts nothing for it; what it has it gives. */
Test(alone, home_that_is_full_is_left)
{
	struct client *cl;
	struct kfile *clean;
	uint64_t frames;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .home_bytes = CACHE_HOME_MIN }, 4 * GAIA_CHUNK);
	clean = kfile_create(rig, 2, 2 * CACHE_HOME_MIN);
	cr_assert_eq(cpu_read_direct(kf, (char[GAIA_PAGE]){ 0 }, GAIA_PAGE, AT(2, 5)), GAIA_PAGE);
	fill_home(clean, 0);
	frames = rig_frames(rig);
	cl = new_client(0);
	counts_begin();
	before.wasted = counter_value(CTR_home_evicted);
	will_need(cl, 0, 4 * GAIA_CHUNK);
	cr_assert_eq(counter_value(CTR_home_evicted), before.wasted);
	cr_assert_eq(rig_frames(rig), frames);
	cr_assert_geq(brought(), 1);
	cr_assert_lt(brought(), GAIA_CHUNK_PAGES);
	/* Nothing could be brought into the others. */
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	end();
}

/* In the little room that home has everything can be brought, but not kept. */
Test(alone, home_that_is_nearly_full_keeps_nothing_of_it)
{
	struct client *cl;
	struct kfile *clean;
	uint64_t frames;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .home_bytes = CACHE_HOME_MIN }, 4 * GAIA_CHUNK);
	write_cpu(AT(3, 7), "there");
	cr_assert_eq(cpu_fsync(kf), 0);
	kernel_reclaim(kf, 0, 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	clean = kfile_create(rig, 2, 2 * CACHE_HOME_MIN);
	fill_home(clean, 128);
	frames = rig_frames(rig);
	cl = new_client(0);
	counts_begin();
	will_need(cl, 0, 4 * GAIA_CHUNK);
	expect_counts(4 * GAIA_CHUNK_PAGES, 0, 0);
	cr_assert_eq(rig_frames(rig), frames);
	expect_device(cl, AT(3, 7), "there");
	end();
}

/* Home is not made to store, or to grow, for it. */
Test(alone, home_that_is_full_of_dirty_pages_is_left)
{
	struct client *cl;
	struct kfile *dirty;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .home_bytes = CACHE_HOME_MIN }, 4 * GAIA_CHUNK);
	dirty = kfile_create(rig, 2, CACHE_HOME_MIN);
	/* The flusher would store them: it is kept away, so only what is stored by who reads ahead would be seen. */
	pthread_rwlock_wrlock(&rig->cache->round);
	for (uint64_t off = 0; off < CACHE_HOME_MIN * 3 / 4; off += GAIA_PAGE)
		cr_assert_eq(cpu_write_direct(dirty, (char[GAIA_PAGE]){ 1 }, GAIA_PAGE, off), 0);
	pthread_rwlock_wrlock(&dirty->cfile->range);
	pthread_rwlock_unlock(&rig->cache->round);
	cl = new_client(0);
	counts_begin();
	will_need(cl, 0, 4 * GAIA_CHUNK);
	expect_counts(0, 0, 0);
	cr_assert_eq(counter_value(CTR_storage_writes), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	pthread_rwlock_unlock(&dirty->cfile->range);
	end();
}

/* ---- errors, and ends ---- */

Test(ends, an_error_is_nobodys)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	counts_begin();
	fault_arm("store.read", -EIO, 0, 1);
	will_need(cl, 0, 2 * GAIA_CHUNK);
	fault_disarm_all();
	cr_assert_eq(counter_value(CTR_readahead_failed) - before.failed, 1);
	expect_counts(0, 0, 0);
	/* Nor does it leave memory in use. */
	cr_assert_eq(rig_device_used(rig, 0), 0);
	cr_assert_eq(acquire_range(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	end();
}

/* A copy that failed may have left anything. */
Test(ends, a_copy_that_failed_is_not_used)
{
	struct client *cl;

	begin_devices(1);
	write_cpu(0, "right");
	cl = new_client(0);
	fault_arm("device.copy_in", -EIO, 0, 1);
	will_need(cl, 0, GAIA_CHUNK);
	fault_disarm_all();
	expect_device(cl, 0, "right");
	end();
}

static void *truncate_file(void *arg)
{
	return (void *)(intptr_t)cpu_truncate(kf, AT(0, 3) + 10);
}

/* A truncate that comes in between waits for the piece at work; what it removes is removed there, too, and nothing is read ahead beyond. */
Test(ends, with_the_file_that_is_cut_off)
{
	struct client *cl;
	pthread_t thread;
	void *result;

	begin_devices(1);
	write_cpu(AT(0, 3), "is cut off here");
	cl = new_client(0);
	expect_device(cl, AT(0, 3), "is cut off here");
	release_all(cl);
	fault_hold("readahead.bring");
	advise(cl);
	fault_await_held("readahead.bring");
	cr_assert_eq(cache_advise(cl->mapping, 0, 4 * GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	cr_assert_eq(pthread_create(&thread, NULL, truncate_file, NULL), 0);
	while (atomic_load(&kf->cfile->range_waiters) == 0)
		sched_yield();
	fault_let_go("readahead.bring");
	pthread_join(thread, &result);
	cr_assert_eq((intptr_t)result, 0);
	rig_readahead(rig);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
	will_need(cl, 0, 4 * GAIA_CHUNK);
	expect_device(cl, AT(0, 3), "is cut off");
	cr_assert_eq(*client_at(cl, AT(0, 3) + 10), 0);
	end();
}

static void *truncate_at_the_end(void *arg)
{
	return (void *)(intptr_t)cpu_truncate(kf, 3 * GAIA_CHUNK + GAIA_PAGE);
}

/* What gives way to a truncate goes on after it, and misses nothing that is still there. */
Test(ends, for_a_truncate_only_for_a_while)
{
	struct client *cl;
	pthread_t thread;
	void *result;

	begin_devices(1);
	cl = new_client(0);
	fault_hold("readahead.bring");
	cr_assert_eq(cache_advise(cl->mapping, 0, 4 * GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	fault_await_held("readahead.bring");
	cr_assert_eq(pthread_create(&thread, NULL, truncate_at_the_end, NULL), 0);
	while (atomic_load(&kf->cfile->range_waiters) == 0)
		usleep(100);
	fault_let_go("readahead.bring");
	pthread_join(thread, &result);
	cr_assert_eq((intptr_t)result, 0);
	rig_readahead(rig);
	cr_assert_eq(counter_value(CTR_readahead), 3 * GAIA_CHUNK_PAGES + 1);
	end();
}

static bool gives_way(struct cfile *f)
{
	bool any;

	pthread_mutex_lock(&f->lock);
	any = !TAILQ_EMPTY(&f->gave_way);
	pthread_mutex_unlock(&f->lock);
	return any;
}

/* A mapping may end while its readahead gives way to somebody. */
Test(ends, while_it_gives_way)
{
	struct client *cl;
	pthread_t thread;
	void *result;

	begin_devices(1);
	cl = new_client(0);
	pthread_rwlock_rdlock(&kf->cfile->range);
	cr_assert_eq(pthread_create(&thread, NULL, truncate_at_the_end, NULL), 0);
	while (atomic_load(&kf->cfile->range_waiters) == 0)
		usleep(100);
	advise(cl);
	while (!gives_way(kf->cfile))
		usleep(100);
	client_end(cl);
	rig_readahead(rig);
	pthread_rwlock_unlock(&kf->cfile->range);
	pthread_join(thread, &result);
	cr_assert_eq((intptr_t)result, 0);
	cr_assert_eq(counter_value(CTR_readahead), 0);
	end();
}

/* The worker has not begun when the mapping ends: it does nothing then. */
Test(ends, with_the_mapping)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	fault_hold("readahead.begin");
	advise(cl);
	fault_await_held("readahead.begin");
	client_end(cl);
	fault_let_go("readahead.begin");
	rig_readahead(rig);
	cr_assert_eq(counter_value(CTR_readahead), 0);
	end();
}

static _Atomic int ending; /* thread */

static void *end_client(void *arg)
{
	ending = gettid();
	client_end(arg);
	return NULL;
}

/* It ends after the piece at work, though there are more. */
Test(ends, after_the_piece_at_work)
{
	struct client *cl;
	pthread_t thread;

	begin_devices(1);
	cl = new_client(0);
	fault_hold("readahead.bring");
	cr_assert_eq(cache_advise(cl->mapping, 0, 4 * GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	fault_await_held("readahead.bring");
	cr_assert_eq(pthread_create(&thread, NULL, end_client, cl), 0);
	/* Until it waits for the worker. */
	while (!ending || !thread_sleeps(ending))
		usleep(100);
	fault_let_go("readahead.bring");
	pthread_join(thread, NULL);
	rig_readahead(rig);
	cr_assert_leq(counter_value(CTR_readahead), GAIA_CHUNK_PAGES);
	end();
}

Test(ends, with_other_advice)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	fault_hold("readahead.begin");
	advise(cl);
	fault_await_held("readahead.begin");
	cr_assert_eq(cache_advise(cl->mapping, 0, GAIA_CHUNK, GAIA_ADVISE_DONTNEED), 0);
	fault_let_go("readahead.begin");
	rig_readahead(rig);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

/* Only what is not needed is not brought. */
Test(ends, of_a_part)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	fault_hold("readahead.begin");
	cr_assert_eq(cache_advise(cl->mapping, 0, 4 * GAIA_CHUNK, GAIA_ADVISE_WILLNEED), 0);
	fault_await_held("readahead.begin");
	cr_assert_eq(cache_advise(cl->mapping, AT(1, 3), GAIA_CHUNK, GAIA_ADVISE_DONTNEED), 0);
	fault_let_go("readahead.begin");
	rig_readahead(rig);
	cr_assert_eq(counter_value(CTR_readahead), 3 * GAIA_CHUNK_PAGES);
	counts_begin();
	cr_assert_eq(acquire_range(cl, 0, AT(1, 3), GAIA_PROT_READ), 0);
	cr_assert_eq(acquire_range(cl, AT(2, 3), AT(1, GAIA_CHUNK_PAGES - 3), GAIA_PROT_READ), 0);
	expect_counts(0, 3 * GAIA_CHUNK_PAGES, 0);
	end();
}

/* ---- users ---- */

Test(users, may_have_no_more_read_ahead_than_they_may_pin)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 8 }, 16 * GAIA_CHUNK);
	rig->user = (struct cache_user){ .uid = 1 };
	cl = client_create(kf, 0, GAIA_PROT_RW, 16 * GAIA_CHUNK);
	will_need(cl, 0, 16 * GAIA_CHUNK);
	cr_assert_eq(rig_device_used(rig, 0), 6 * GAIA_CHUNK, "three quarters");
	cr_assert_eq(acquire_range(cl, 0, 6 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	will_need(cl, 6 * GAIA_CHUNK, GAIA_CHUNK);
	cr_assert_eq(rig_device_used(rig, 0), 6 * GAIA_CHUNK);
	end();
}

/* Readers have copies of their own, which are filled as their acquires would, and end with them. */
Test(users, who_only_read_have_their_own)
{
	struct client *reader, *writer;

	begin_writable(8);
	writer = new_client(0);
	write_device(writer, AT(1, 2), "unreleased");
	rig->user = (struct cache_user){ .uid = 1 };
	reader = new_reader();
	will_need(reader, AT(1, 0), GAIA_CHUNK);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	cr_assert_eq(acquire_range(reader, AT(1, 0), GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_str_eq((char *)client_at(reader, AT(1, 2)), "");
	client_end(reader);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	end();
}

/* What a client is handed is current, or zeros: also what was not read ahead of a chunk of which a part was. */
Test(users, see_nothing_of_what_the_memory_had_before)
{
	struct client *cl, *other;
	struct kfile *secret;

	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 1 }, 4 * GAIA_CHUNK);
	secret = kfile_create(rig, 2, GAIA_CHUNK);
	cr_assert_eq(cpu_write(secret, "secret", 6, AT(0, 100)), 0);
	other = client_create(secret, 0, GAIA_PROT_RW, GAIA_CHUNK);
	cr_assert_eq(client_acquire(other, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	client_end(other);
	cr_assert_eq(cache_evict(secret->cfile, 0, 0, 0), 0);
	write_cpu(AT(0, 1), "ours");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	cl = new_client(0);
	will_need(cl, 0, 2 * GAIA_PAGE);
	cr_assert_eq(acquire_range(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_READ), 0);
	cr_assert_str_eq((char *)client_at(cl, AT(0, 1)), "ours");
	for (unsigned i = 2 * GAIA_PAGE; i < GAIA_CHUNK; i++)
		cr_assert_eq(client_at(cl, 0)[i], 0);
	end();
}

/* ---- acquires that follow each other ---- */

#define LONG 24u /* chunks: there is room for all of them */

static struct client *begin_long(unsigned device_chunks)
{
	begin(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = device_chunks, .home_bytes = 128ull << 20 }, LONG * GAIA_CHUNK);
	counts_begin();
	return client_create(kf, 0, GAIA_PROT_RW, LONG * GAIA_CHUNK);
}

/* Acquire and release pages [a, a + n), and wait for what is read ahead then. Whether the device had something to do for it. */
static bool use(struct client *cl, uint64_t a, uint64_t n)
{
	uint64_t operations = counter_value(CTR_device_operations);
	bool any;

	/* What was evicted is free again, also where a driver keeps it for who imported it. */
	rig_importers_gone();
	/* What it causes is not its own. */
	fault_hold("readahead.begin");
	cr_assert_eq(acquire_range(cl, a * GAIA_PAGE, n * GAIA_PAGE, GAIA_PROT_READ), 0);
	any = counter_value(CTR_device_operations) != operations;
	fault_disarm_all();
	release_range(cl, a * GAIA_PAGE, n * GAIA_PAGE);
	rig_readahead(rig);
	return any;
}

Test(sequence, is_noticed_at_its_second_window)
{
	struct client *cl = begin_long(32);

	cr_assert(use(cl, 0, GAIA_CHUNK_PAGES));
	expect_counts(0, 0, 0);
	cr_assert(use(cl, GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES));
	expect_counts(GAIA_CHUNK_PAGES, 0, 0);
	for (unsigned k = 2; k < LONG; k++)
		cr_assert(!use(cl, k * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES), "%u", k);
	/* All but the first two, and each once. */
	expect_counts((LONG - 2) * GAIA_CHUNK_PAGES, (LONG - 2) * GAIA_CHUNK_PAGES, 0);
	end();
}

Test(sequence, of_small_windows)
{
	struct client *cl = begin_long(32);
	unsigned busy = 0;

	for (unsigned k = 0; k < 2 * GAIA_CHUNK_PAGES; k += 16)
		busy += use(cl, k, 16);
	/* The first two; and the chunks that the client gets are looked at as a whole. */
	cr_assert_leq(busy, 4);
	end();
}

/* How far it reaches beyond the last acquire: twice as far each time, up to 16 MiB. */
Test(sequence, that_goes_on_is_read_further_ahead)
{
	struct client *cl = begin_long(32);
	uint64_t ahead = GAIA_CHUNK_PAGES;

	use(cl, 0, GAIA_CHUNK_PAGES);
	for (unsigned k = 1; k < 8; k++, ahead = MIN(2 * ahead, (uint64_t)WINDOW_MOST)) {
		use(cl, k * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
		/* Requests are of half a window at least. */
		cr_assert_leq(brought() + 2 * GAIA_CHUNK_PAGES, (k + 1) * GAIA_CHUNK_PAGES + ahead, "%u", k);
		cr_assert_geq(brought() + 2 * GAIA_CHUNK_PAGES, (k + 1) * GAIA_CHUNK_PAGES + ahead / 2, "%u", k);
	}
	end();
}

/* What is evicted before it is used halves it. */
Test(sequence, that_is_evicted_is_read_less_far_ahead)
{
	struct client *cl = begin_long(16);
	uint64_t reach;

	for (unsigned k = 0; k < 6; k++)
		use(cl, k * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	reach = brought() / GAIA_CHUNK_PAGES + 2;
	cr_assert_geq(reach, 6 + 4);
	/* Somebody else needs all of the device. */
	begin_other(16);
	cr_assert_gt(counter_value(CTR_readahead_wasted), before.wasted);
	client_end(SLIST_FIRST(&rig->clients));
	cr_assert_eq(cache_evict(SLIST_FIRST(&rig->files)->cfile, 0, 0, 0), 0);
	before.brought = counter_value(CTR_readahead);
	use(cl, 6 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	/* It is asked for again, as far as the window reaches now. */
	cr_assert_eq(brought(), WINDOW_MOST / 2);
	end();
}

Test(sequence, is_not_read_beyond_the_mapping)
{
	struct client *cl, *part;

	cl = begin_long(32);
	part = client_create(kf, 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	client_end(cl);
	for (unsigned k = 0; k < 4; k++)
		use(part, k * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	expect_counts(2 * GAIA_CHUNK_PAGES, 2 * GAIA_CHUNK_PAGES, 0);
	end();
}

Test(stride, is_noticed_at_its_third_step)
{
	struct client *cl = begin_long(32);

	for (unsigned k = 0; k < 6; k++)
		cr_assert_eq(use(cl, 4 * k * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES), k < 3, "%u", k);
	/* Nothing between the steps. */
	expect_counts(3 * GAIA_CHUNK_PAGES, 3 * GAIA_CHUNK_PAGES, 0);
	cr_assert_eq(rig_device_used(rig, 0), 6 * GAIA_CHUNK);
	end();
}

Test(stride, may_go_backwards)
{
	struct client *cl = begin_long(32);

	for (unsigned k = LONG; k-- > 0;)
		cr_assert_eq(use(cl, k * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES), k >= LONG - 3, "%u", k);
	end();
}

Test(streams, of_one_mapping_are_several)
{
	struct client *cl = begin_long(32);
	/* At unequal distances: these are no stride. */
	static const unsigned start[] = { 0, 5, 11, 18 };

	for (unsigned k = 0; k < 5; k++)
		for (unsigned i = 0; i < ARRAY_LEN(start); i++)
			cr_assert_eq(use(cl, (start[i] + k) * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES), k < 2, "%u %u", k, i);
	end();
}

Test(streams, are_not_seen_in_what_is_at_random)
{
	static const unsigned places[] = { 7, 3, 20, 11, 2, 16, 9, 0, 22, 5 };
	struct client *cl = begin_long(32);

	for (unsigned i = 0; i < ARRAY_LEN(places); i++)
		use(cl, places[i] * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES / 2 + i);
	expect_counts(0, 0, 0);
	end();
}

/* Nor in the same range again and again. */
Test(streams, are_not_seen_in_repetitions)
{
	struct client *cl = begin_long(32);

	for (unsigned i = 0; i < 8; i++)
		use(cl, 0, GAIA_CHUNK_PAGES);
	expect_counts(0, 0, 0);
	end();
}

static void advise_on(struct client *cl, uint64_t chunk, uint64_t chunks, unsigned advice)
{
	cr_assert_eq(cache_advise(cl->mapping, chunk * GAIA_CHUNK, chunks * GAIA_CHUNK, advice), 0);
}

Test(advice, random_ends_it_and_normal_begins_it_again)
{
	struct client *cl = begin_long(32);

	advise_on(cl, 0, LONG, GAIA_ADVISE_RANDOM);
	for (unsigned k = 0; k < 4; k++)
		use(cl, k * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	expect_counts(0, 0, 0);
	advise_on(cl, 4, 4, GAIA_ADVISE_NORMAL);
	use(cl, 4 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	use(cl, 5 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	expect_counts(GAIA_CHUNK_PAGES, 0, 0);
	/* In the middle of a stream. */
	advise_on(cl, 5, 1, GAIA_ADVISE_RANDOM);
	use(cl, 6 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	expect_counts(GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES, 0);
	end();
}

/* Windows that come to such pages end there. */
Test(advice, random_ends_what_comes_to_it)
{
	struct client *cl = begin_long(32);

	advise_on(cl, 3, 1, GAIA_ADVISE_RANDOM);
	advise_on(cl, 0, 3, GAIA_ADVISE_SEQUENTIAL);
	use(cl, 0, GAIA_CHUNK_PAGES);
	expect_counts(2 * GAIA_CHUNK_PAGES, 0, 0);
	use(cl, GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	expect_counts(2 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES, 0);
	cr_assert_eq(rig_device_used(rig, 0), 3 * GAIA_CHUNK);
	end();
}

/* So do strides: at the last step before. */
Test(advice, random_ends_strides_that_come_to_it)
{
	struct client *cl = begin_long(32);

	advise_on(cl, 13, 2, GAIA_ADVISE_RANDOM);
	for (unsigned k = 0; k < 3; k++)
		use(cl, 3 * k * GAIA_CHUNK_PAGES, 2 * GAIA_CHUNK_PAGES);
	use(cl, 9 * GAIA_CHUNK_PAGES, 2 * GAIA_CHUNK_PAGES);
	cr_assert_eq(brought(), 2 * GAIA_CHUNK_PAGES);
	end();
}

/* What is advised while it is requested is taken out of the request. */
Test(advice, takes_its_pages_out_of_what_is_requested)
{
	struct client *cl = begin_long(32);

	advise_on(cl, 0, LONG, GAIA_ADVISE_SEQUENTIAL);
	fault_hold("readahead.begin");
	cr_assert_eq(acquire_range(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	fault_await_held("readahead.begin");
	advise_on(cl, 4, 2, GAIA_ADVISE_RANDOM);
	fault_let_go("readahead.begin");
	rig_readahead(rig);
	cr_assert_eq(brought(), WINDOW_MOST - 2 * GAIA_CHUNK_PAGES);
	end();
}

/* Steps of a stride, too: the others are brought. */
Test(advice, takes_steps_out_of_what_is_requested)
{
	struct client *cl = begin_long(32);

	fault_disarm_all();
	for (unsigned k = 0; k < 4; k++)
		use(cl, 2 * k * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	/* Two steps are there by now; the next request is of four. */
	before.brought = counter_value(CTR_readahead);
	fault_hold("readahead.begin");
	cr_assert_eq(acquire_range(cl, AT(8, 0), GAIA_CHUNK, GAIA_PROT_READ), 0);
	fault_await_held("readahead.begin");
	advise_on(cl, 14, 1, GAIA_ADVISE_DONTNEED);
	fault_let_go("readahead.begin");
	rig_readahead(rig);
	release_all(cl);
	cr_assert(use(cl, 14 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES));
	cr_assert(!use(cl, 12 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES));
	cr_assert(!use(cl, 16 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES));
	end();
}

/* A program that gives back what is behind it has what comes read ahead: also if it needs no more than a part of the device. */
Test(advice, that_what_was_used_is_not_needed_ends_no_stream)
{
	struct client *cl = begin_long(4);
	unsigned busy = 0;

	for (unsigned k = 0; k < LONG; k++) {
		busy += use(cl, k * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
		advise_on(cl, k, 1, GAIA_ADVISE_DONTNEED);
	}
	cr_assert_leq(busy, 2);
	end();
}

/* What the program has asked for itself it gets, whatever it says of the rest. */
Test(advice, random_leaves_what_will_be_needed)
{
	struct client *cl = begin_long(32);

	fault_hold("readahead.begin");
	advise_on(cl, 0, 2, GAIA_ADVISE_WILLNEED);
	fault_await_held("readahead.begin");
	advise_on(cl, 0, LONG, GAIA_ADVISE_RANDOM);
	fault_let_go("readahead.begin");
	rig_readahead(rig);
	expect_counts(2 * GAIA_CHUNK_PAGES, 0, 0);
	end();
}

Test(advice, sequential_begins_with_the_first_acquire)
{
	struct client *cl = begin_long(32);

	advise_on(cl, 0, LONG, GAIA_ADVISE_SEQUENTIAL);
	cr_assert(use(cl, 0, GAIA_CHUNK_PAGES));
	expect_counts(WINDOW_MOST, 0, 0);
	cr_assert(!use(cl, GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES));
	/* The same again is no step. */
	use(cl, GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	use(cl, GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	cr_assert_eq(brought(), WINDOW_MOST);
	end();
}

/* Each range has its own; as many as there is room for. */
Test(advice, is_limited)
{
	struct client *cl = begin_long(32);

	for (unsigned k = 0; k < 8; k++)
		advise_on(cl, 2 * k, 1, GAIA_ADVISE_RANDOM);
	for (unsigned k = 0; k < 8; k++)
		advise_on(cl, 2 * k + 1, 1, GAIA_ADVISE_SEQUENTIAL);
	cr_assert_eq(cache_advise(cl->mapping, 20 * GAIA_CHUNK, GAIA_CHUNK, GAIA_ADVISE_RANDOM), -EAGAIN);
	/* A neighbour's; and one that takes the place of others. */
	advise_on(cl, 16, 1, GAIA_ADVISE_SEQUENTIAL);
	advise_on(cl, 3, 4, GAIA_ADVISE_RANDOM);
	advise_on(cl, 20, 1, GAIA_ADVISE_RANDOM);
	cr_assert_eq(cache_advise(cl->mapping, 0, GAIA_CHUNK, 5), -EINVAL);
	use(cl, 20 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	use(cl, 21 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	expect_counts(0, 0, 0);
	use(cl, 16 * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	cr_assert_gt(brought(), 0);
	end();
}

/* ---- for the host: the store is read, into home ---- */

/* A file with its chunk's number in each, of which nothing is home, and a mapping of the host. */
static struct client *begin_host(unsigned chunks, uint64_t home_bytes, unsigned prot)
{
	begin(&(struct rig_options){ .devices = 1, .host = true, .host_chunks = 16, .reads_ahead = true, .home_bytes = home_bytes },
	      chunks * (uint64_t)GAIA_CHUNK);
	for (unsigned k = 0; k < chunks; k++)
		write_cpu(AT(k, 9), (char[2]){ (char)('A' + k) });
	cr_assert_eq(cpu_fsync(kf), 0);
	kernel_reclaim(kf, 0, 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	counts_begin();
	return client_create(kf, 1, prot, chunks * (uint64_t)GAIA_CHUNK);
}

static uint64_t storage_reads(void)
{
	return counter_value(CTR_storage_reads);
}

static void expect_letter(struct client *cl, unsigned chunk)
{
	cr_assert_eq(*(char *)client_at(cl, AT(chunk, 9)), 'A' + (char)chunk);
}

/* Acquire the chunk, and wait for what is read ahead then: how many pages the acquire itself has read. */
static uint64_t use_chunk(struct client *cl, unsigned chunk, unsigned prot)
{
	uint64_t reads = storage_reads();

	fault_hold("readahead.begin");
	cr_assert_eq(acquire_range(cl, AT(chunk, 0), GAIA_CHUNK, prot), 0);
	reads = storage_reads() - reads;
	fault_disarm_all();
	expect_letter(cl, chunk);
	release_range(cl, AT(chunk, 0), GAIA_CHUNK);
	rig_readahead(rig);
	return reads;
}

Test(host, acquires_in_order_find_the_store_read)
{
	for (unsigned way = 0; way < 2; way++) {
		unsigned prot = way ? GAIA_PROT_RW : GAIA_PROT_READ;
		struct client *cl = begin_host(12, 128ull << 20, prot);
		uint64_t home = counter_value(CTR_readahead_home);

		cr_assert_eq(use_chunk(cl, 0, prot), GAIA_CHUNK_PAGES);
		cr_assert_eq(counter_value(CTR_readahead_home), home);
		cr_assert_eq(use_chunk(cl, 1, prot), GAIA_CHUNK_PAGES);
		for (unsigned k = 2; k < 12; k++)
			cr_assert_eq(use_chunk(cl, k, prot), 0, "%u", k);
		cr_assert_eq(counter_value(CTR_readahead_home) - home, 10 * GAIA_CHUNK_PAGES);
		/* That is home's: nothing was made on the device, and nothing of it is counted as the device's. */
		expect_counts(0, 0, 0);
		end();
	}
}

Test(host, acquires_at_random_cause_nothing)
{
	static const unsigned order[] = { 3, 9, 0, 6, 11 };
	struct client *cl = begin_host(12, 128ull << 20, GAIA_PROT_READ);
	uint64_t home = counter_value(CTR_readahead_home);

	for (unsigned k = 0; k < 5; k++)
		use_chunk(cl, order[k], GAIA_PROT_READ);
	cr_assert_eq(cache_advise(cl->mapping, 0, 12 * GAIA_CHUNK, GAIA_ADVISE_RANDOM), 0);
	for (unsigned k = 1; k < 3; k++)
		use_chunk(cl, k, GAIA_PROT_READ);
	cr_assert_eq(counter_value(CTR_readahead_home), home);
	end();
}

Test(host, what_will_be_needed_is_read)
{
	struct client *cl = begin_host(6, 128ull << 20, GAIA_PROT_READ);
	uint64_t home = counter_value(CTR_readahead_home), frames = rig_frames(rig);

	/* Of the second chunk home has a page; and what is there already is not read again. */
	cr_assert_eq(cpu_read_direct(kf, (char[GAIA_PAGE]){ 0 }, GAIA_PAGE, AT(1, 5)), GAIA_PAGE);
	will_need(cl, AT(1, 0), 2 * GAIA_CHUNK);
	cr_assert_eq(counter_value(CTR_readahead_home) - home, 2 * GAIA_CHUNK_PAGES - 1);
	cr_assert_eq(rig_frames(rig) - frames, 2 * GAIA_CHUNK_PAGES);
	cr_assert_eq(rig_device_used(rig, 1), 0);
	will_need(cl, AT(1, 0), 2 * GAIA_CHUNK);
	cr_assert_eq(counter_value(CTR_readahead_home) - home, 2 * GAIA_CHUNK_PAGES - 1);
	cr_assert_eq(use_chunk(cl, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(use_chunk(cl, 2, GAIA_PROT_READ), 0);
	/* What was written meanwhile is what is there. */
	will_need(cl, AT(4, 0), GAIA_CHUNK);
	write_cpu(AT(4, 9), "E!");
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(use_chunk(cl, 4, GAIA_PROT_READ), 0);
	cr_assert_str_eq((char *)client_at(cl, AT(4, 9)), "E!");
	end();
}

/* What a device has is not brought home before it is needed there. */
Test(host, what_a_device_has_is_left)
{
	struct client *cl = begin_host(4, 128ull << 20, GAIA_PROT_READ), *dev = client_create(kf, 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	uint64_t reads, home = counter_value(CTR_readahead_home);

	cr_assert_eq(acquire_range(dev, AT(1, 0), GAIA_CHUNK, GAIA_PROT_READ), 0);
	rig_readahead(rig);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	reads = storage_reads();
	will_need(cl, AT(1, 0), GAIA_CHUNK);
	cr_assert_eq(storage_reads(), reads);
	cr_assert_eq(counter_value(CTR_readahead_home), home);
	/* From where it comes then the acquire decides. */
	use_chunk(cl, 1, GAIA_PROT_READ);
	end();
}

/* An eighth of home stays free, and nothing leaves it. */
Test(host, takes_free_memory_only)
{
	struct client *cl = begin_host(4, CACHE_HOME_MIN, GAIA_PROT_READ);
	uint64_t budget = CACHE_HOME_MIN / GAIA_PAGE, evicted = counter_value(CTR_home_evicted);

	will_need(cl, 0, 4 * GAIA_CHUNK);
	cr_assert_leq(rig_frames(rig), budget - budget / 8);
	cr_assert_geq(rig_frames(rig), budget / 2);
	cr_assert_eq(counter_value(CTR_home_evicted), evicted);
	for (unsigned k = 0; k < 4; k++)
		use_chunk(cl, k, GAIA_PROT_READ);
	end();
}

Test(host, an_error_is_nobodys)
{
	struct client *cl = begin_host(4, 128ull << 20, GAIA_PROT_READ);

	fault_arm("store.read", -EIO, 0, 1);
	will_need(cl, 0, GAIA_CHUNK);
	fault_disarm_all();
	cr_assert_eq(counter_value(CTR_readahead_failed) - before.failed, 1);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0, "nothing is locked");
	cr_assert_eq(use_chunk(cl, 0, GAIA_PROT_READ), GAIA_CHUNK_PAGES);
	end();
}

/* As far as the file goes, and not while it is cut. */
Test(host, ends_with_the_file)
{
	struct client *cl = begin_host(4, 128ull << 20, GAIA_PROT_READ);
	uint64_t home = counter_value(CTR_readahead_home);

	cr_assert_eq(cpu_truncate(kf, AT(1, 2) + 7), 0);
	will_need(cl, 0, 4 * GAIA_CHUNK);
	cr_assert_leq(counter_value(CTR_readahead_home) - home, GAIA_CHUNK_PAGES + 3);
	cr_assert_geq(counter_value(CTR_readahead_home) - home, GAIA_CHUNK_PAGES + 2);
	expect_counts(0, 0, 0);
	end();
}
