/*
 * cache_windows.c - acquires of many chunks: how many operations they take, and what happens to these chunks meanwhile.
 */
#include <sched.h>

#include "base/counters.h"
#include "base/fault.h"
#include "cache_acquires.h"
#include "page_waiters.h"
#include "pagecache/cache.h"
#include "pagecache/devices.h"
#include "pagecache/root.h"

#define CHUNKS 4u
#define ALL (CHUNKS * GAIA_CHUNK)
#define AT(chunk, page) ((uint64_t)(chunk) * GAIA_CHUNK + (uint64_t)(page) * GAIA_PAGE)

static struct {
	uint64_t operations, sent, between, looked_at;
} before;

static void counting_begins(void)
{
	before.operations = counter_value(CTR_device_operations);
	before.sent = counter_value(CTR_home_to_device);
	before.between = counter_value(CTR_device_to_device);
	before.looked_at = counter_value(CTR_acquired_looked_at);
}

/* Since then. @sent: pages that home sent; @between: that another device did. */
#define expect_work(operations_, sent_, between_)                                                      \
	do {                                                                                           \
		cr_assert_eq(counter_value(CTR_device_operations) - before.operations, (operations_)); \
		cr_assert_eq(counter_value(CTR_home_to_device) - before.sent, (sent_));                \
		cr_assert_eq(counter_value(CTR_device_to_device) - before.between, (between_));        \
		counting_begins();                                                                     \
	} while (0)

static int acquire_all(struct client *cl, unsigned prot)
{
	uint64_t seq;

	return cache_acquire(cl->mapping, 0, ALL, prot, &seq, NULL);
}

static void give_all_back(struct client *cl)
{
	cr_assert_eq(cache_release(cl->mapping, 0, ALL, NULL), 0);
}

/* A client that has had all of the file, to write it; home has all of it, too, and room for windows of all its chunks. */
static struct client *begin_windows(void)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 2, .home_bytes = 1ull << 30 }, ALL);
	cl = client_create(kf, 0, GAIA_PROT_RW, ALL);
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	give_all_back(cl);
	counting_begins();
	return cl;
}

/* Page @page of every chunk but the last. */
static void change_in_many(unsigned page, const char *text)
{
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		write_cpu(AT(k, page), text);
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
}

static void expect_held(struct client *cl, uint64_t off, const char *text)
{
	char seen[16] = "";

	client_load(cl, seen, strlen(text), off);
	cr_assert_str_eq(seen, text);
}

Test(windows, one_operation_of_a_kind)
{
	struct client *cl = begin_windows();

	/* To copy, which arms. */
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	counting_begins();
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	expect_work(1, CHUNKS * GAIA_CHUNK_PAGES, 0);
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		client_store(cl, "mine", 4, AT(k, 9));
	give_all_back(cl);
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		expect_cpu(AT(k, 9), "mine");
	end();
}

/* What is there already, from an acquire for reading, is armed by itself. */
Test(windows, what_was_there_is_armed_by_one_operation)
{
	struct client *cl = begin_windows();

	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(acquire_all(cl, GAIA_PROT_READ), 0);
	counting_begins();
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	expect_work(1, 0, 0);
	client_store(cl, "mine", 4, AT(2, 9));
	give_all_back(cl);
	give_all_back(cl);
	expect_cpu(AT(2, 9), "mine");
	end();
}

Test(windows, what_changed_in_many_chunks_is_one_copy)
{
	struct client *cl = begin_windows();

	change_in_many(7, "new");
	counting_begins();
	cr_assert_eq(acquire_all(cl, GAIA_PROT_READ), 0);
	expect_work(1, CHUNKS - 1, 0);
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		expect_held(cl, AT(k, 7), "new");
	give_all_back(cl);
	end();
}

/* One window each: of the acquire, of the release, and of the fetch that an fsync causes. */
Test(windows, are_counted)
{
	struct client *cl = begin_windows();
	uint64_t acquired, released, fetched;

	change_in_many(7, "new");
	acquired = counter_value(CTR_acquire_windows);
	released = counter_value(CTR_release_windows);
	fetched = counter_value(CTR_fetch_windows);
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		client_store(cl, "mine", 4, AT(k, 9));
	give_all_back(cl);
	cr_assert_eq(cache_fsync(kf->cfile, 0, ALL, false), 0);
	cr_assert_eq(counter_value(CTR_acquire_windows) - acquired, 1);
	cr_assert_eq(counter_value(CTR_release_windows) - released, 1);
	cr_assert_eq(counter_value(CTR_fetch_windows) - fetched, 1);
	end();
}

/* Into pages that the client holds already. */
Test(windows, what_is_held_is_merged_by_one_operation)
{
	struct client *cl = begin_windows();

	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		client_store(cl, "mine", 4, AT(k, 7) + 100);
	change_in_many(7, "new");
	counting_begins();
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	expect_work(1, CHUNKS - 1, 0);
	give_all_back(cl);
	give_all_back(cl);
	for (unsigned k = 0; k + 1 < CHUNKS; k++) {
		expect_cpu(AT(k, 7), "new");
		expect_cpu(AT(k, 7) + 100, "mine");
	}
	end();
}

Test(windows, another_device_sends_by_one_operation)
{
	struct client *cl = begin_windows(), *other = client_create(kf, 1, GAIA_PROT_RW, ALL);

	/* The first copies from a device are compared with what it has. */
	write_cpu(AT(3, 0), "proof");
	expect_device(cl, AT(3, 0), "proof");
	expect_device(other, AT(3, 0), "proof");
	give_all_back(cl);
	give_all_back(other);
	counting_begins();
	cr_assert_eq(acquire_all(other, GAIA_PROT_READ), 0);
	expect_work(1, 0, CHUNKS * GAIA_CHUNK_PAGES - 1);
	give_all_back(other);
	end();
}

Test(windows, what_another_device_sends_is_armed)
{
	struct client *cl = begin_windows(), *other = client_create(kf, 1, GAIA_PROT_RW, ALL);

	write_cpu(AT(3, 0), "proof");
	expect_device(cl, AT(3, 0), "proof");
	cr_assert_eq(client_acquire(other, AT(3, 0), 1, GAIA_PROT_RW), 0);
	cr_assert_eq(client_release(other, AT(3, 0), 1), 0);
	give_all_back(cl);
	counting_begins();
	cr_assert_eq(acquire_all(other, GAIA_PROT_RW), 0);
	expect_work(1, 0, CHUNKS * GAIA_CHUNK_PAGES - 1);
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		client_store(other, "theirs", 6, AT(k, 9));
	give_all_back(other);
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		expect_cpu(AT(k, 9), "theirs");
	end();
}

Test(windows, what_others_released_in_many_chunks)
{
	struct client *cl = begin_windows(), *other = client_create(kf, 1, GAIA_PROT_RW, ALL);

	cr_assert_eq(acquire_all(other, GAIA_PROT_RW), 0);
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		client_store(other, "theirs", 6, AT(k, 9));
	give_all_back(other);
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		expect_held(cl, AT(k, 9), "theirs");
	give_all_back(cl);
	end();
}

/* What was released, and is nowhere else, before it is written again: one snapshot serves all chunks. */
Test(windows, what_is_written_again_is_secured_by_one_operation)
{
	struct client *cl = begin_windows();

	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		client_store(cl, "released", 8, AT(k, 9));
	give_all_back(cl);
	counting_begins();
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	expect_work(1, 0, 0);
	for (unsigned k = 0; k + 1 < CHUNKS; k++) {
		client_store(cl, "not yet!", 8, AT(k, 9));
		expect_cpu(AT(k, 9), "released");
	}
	give_all_back(cl);
	end();
}

/* All or nothing: of the chunks that came in the same window nothing is held either. */
Test(windows, a_copy_that_fails)
{
	struct client *cl = begin_windows();

	change_in_many(7, "new");
	fault_arm("device.copy_in", -EIO, 0, 1);
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), -EIO);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(1, 0), GAIA_CHUNK), 0, "nothing of it is held");
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		expect_held(cl, AT(k, 7), "new");
	give_all_back(cl);
	end();
}

/* ---- meanwhile ---- */

static struct acquire of_all(struct client *cl)
{
	return (struct acquire){ .cl = cl, .len = ALL };
}

/* An acquire of all, whose first copy is held. */
static struct held copying(struct acquire *a)
{
	return (struct held){ .point = "device.copy_in", .call = acquire, .arg = a };
}

static void *acquire_main(void *arg)
{
	return (void *)(intptr_t)acquire(arg);
}

/* The device's thread stays in done() of this operation, so that nothing which is submitted after it completes. */
static struct busy_device {
	struct dev_op op;
	struct dev_run run;
	sem_t done;
} busy;

static void stay(struct dev_op *op, int err)
{
	(void)op, (void)err;
	while (sem_wait(&busy.done))
		;
}

static void device_stays_busy(void)
{
	struct device *dev = rig->cache->dev[0].dev;

	busy.run.npages = 1;
	busy.op = (struct dev_op){ .kind = DEV_ARM, .runs = &busy.run, .n = 1, .done = stay };
	cr_assert_eq(sem_init(&busy.done, 0, 0), 0);
	cr_assert_eq(dev->ops->alloc(dev, &busy.run.mem), 0);
	cr_assert_eq(device_submit(dev, &busy.op), 0);
}

static void device_goes_on(void)
{
	sem_post(&busy.done);
}

/* Home is so small that a window has two chunks. */
Test(windows, the_next_is_submitted_while_the_device_copies, .timeout = PATIENCE / 1000)
{
	struct acquire a;
	pthread_t thread;
	void *result;

	begin(&(struct rig_options){ .devices = 1, .home_bytes = 256ull << 20 }, ALL);
	a = of_all(client_create(kf, 0, GAIA_PROT_RW, ALL));
	cr_assert_eq(acquire_all(a.cl, GAIA_PROT_RW), 0);
	give_all_back(a.cl);
	for (unsigned k = 0; k < CHUNKS; k++)
		write_cpu(AT(k, 7), "new");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	device_stays_busy();
	counting_begins();
	cr_assert_eq(pthread_create(&thread, NULL, acquire_main, &a), 0);
	while (counter_value(CTR_device_operations) - before.operations < 2)
		sched_yield();
	device_goes_on();
	pthread_join(thread, &result);
	cr_assert_eq((intptr_t)result, 0);
	expect_work(2, CHUNKS * GAIA_CHUNK_PAGES, 0);
	for (unsigned k = 0; k < CHUNKS; k++)
		expect_held(a.cl, AT(k, 7), "new");
	give_all_back(a.cl);
	rig->cache->dev[0].dev->ops->free(rig->cache->dev[0].dev, busy.run.mem);
	end();
}

/* Pages that it had not locked, since nothing had to be brought. */
Test(windows, what_changes_meanwhile_is_brought, .timeout = PATIENCE / 1000)
{
	struct client *cl = begin_windows();
	struct acquire a = of_all(cl);
	struct held h = copying(&a);

	change_in_many(7, "new");
	counting_begins();
	held_begin(&h);
	cr_assert_eq(cpu_write_direct(kf, "newer", 5, AT(1, 8)), 0);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(counter_value(CTR_acquired_looked_at) - before.looked_at, CHUNKS, "one of them twice");
	expect_held(cl, AT(1, 7), "new");
	expect_held(cl, AT(1, 8), "newer");
	/* The release knows what they were written over. */
	client_store(cl, "mine", 4, AT(1, 8) + 100);
	give_all_back(cl);
	expect_cpu(AT(1, 8), "newer");
	expect_cpu(AT(1, 8) + 100, "mine");
	end();
}

/* Who shares a page relies on its not being written. */
Test(windows, what_is_read_meanwhile_is_waited_for, .timeout = PATIENCE / 1000)
{
	struct client *cl = begin_windows();
	struct acquire a = of_all(cl);
	struct held h = copying(&a);
	struct cache_read rd;

	change_in_many(7, "new");
	held_begin(&h);
	cr_assert_eq(cache_read_begin(kf->cfile, (off_t)AT(1, 8), 4, false, &rd), 0);
	fault_let_go(h.point);
	while (page_waiters(GAIA_CHUNK_PAGES + 8, true) == 0)
		sched_yield();
	cache_read_end(&rd);
	pthread_join(h.thread, NULL);
	cr_assert_eq(h.result, 0);
	give_all_back(cl);
	end();
}

/* It waits for a page of the second chunk: then it has none of the first. */
Test(windows, who_waits_has_no_page_locked, .timeout = PATIENCE / 1000)
{
	struct client *cl = begin_windows();
	struct acquire a = of_all(cl);
	struct cache_read rd;
	pthread_t thread;
	void *result;

	change_in_many(7, "new");
	cr_assert_eq(cache_read_begin(kf->cfile, (off_t)AT(1, 7), 4, false, &rd), 0);
	cr_assert_eq(pthread_create(&thread, NULL, acquire_main, &a), 0);
	while (page_waiters(GAIA_CHUNK_PAGES + 7, true) == 0)
		sched_yield();
	cr_assert_eq(cpu_write_direct(kf, "newer", 5, AT(0, 7)), 0);
	cache_read_end(&rd);
	pthread_join(thread, &result);
	cr_assert_eq((intptr_t)result, 0);
	give_all_back(cl);
	end();
}

/* The first chunk is looked at again while the next four are read from the store: their reads are not taken for its own. */
Test(windows, what_is_read_ahead_is_not_mixed_up, .timeout = PATIENCE / 1000)
{
	struct acquire a = { .off = GAIA_CHUNK / 2, .len = 6 * GAIA_CHUNK - GAIA_CHUNK / 2 };
	struct held h = copying(&a);
	struct cache_read rd;

	begin(&(struct rig_options){ .devices = 1, .home_bytes = 1ull << 30 }, 6 * GAIA_CHUNK);
	for (unsigned k = 1; k < 6; k++)
		write_cpu(AT(k, 3), "old");
	cr_assert_eq(cpu_fsync(kf), 0);
	kernel_reclaim(kf, 0, 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	a.cl = client_create(kf, 0, GAIA_PROT_RW, 6 * GAIA_CHUNK);
	held_begin(&h);
	cr_assert_eq(cache_read_begin(kf->cfile, 0, 4, false, &rd), 0);
	fault_let_go(h.point);
	/* Until it hands the chunks over, for which it looks at all of their pages. */
	while (page_waiters(0, true) == 0)
		sched_yield();
	cache_read_end(&rd);
	pthread_join(h.thread, NULL);
	cr_assert_eq(h.result, 0);
	cache_check(rig->cache);
	for (unsigned k = 1; k < 6; k++)
		expect_held(a.cl, AT(k, 3), "old");
	cr_assert_eq(cache_release(a.cl->mapping, a.off, a.len, NULL), 0);
	end();
}

/* ---- releases ---- */

/* Home is so small that each window has two chunks. */
static struct client *begin_small(void)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .home_bytes = 128ull << 20 }, ALL);
	cl = client_create(kf, 0, GAIA_PROT_RW, ALL);
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	return cl;
}

static void *release_main(void *client)
{
	give_all_back(client);
	return NULL;
}

Test(windows, a_release_compares_a_window_by_one_operation)
{
	struct client *cl = begin_small();

	client_store(cl, "mine", 4, AT(3, 9));
	counting_begins();
	give_all_back(cl);
	expect_work(2, 0, 0);
	expect_cpu(AT(3, 9), "mine");
	end();
}

struct one_page {
	struct client *cl;
	uint64_t off;
};

static int release_one_page(void *arg)
{
	const struct one_page *page = arg;

	return cache_release(page->cl->mapping, page->off, GAIA_PAGE, NULL);
}

/* What all keep of home together has a limit, so the windows of a third are smaller. */
Test(windows, of_several_releases_are_smaller, .timeout = PATIENCE / 1000)
{
	struct client *cl, *others;
	struct one_page page[2];
	struct held held[2] = {
		{ .point = "release.before_invalidate", .call = release_one_page, .arg = &page[0] },
		{ .point = "release.before_publish", .call = release_one_page, .arg = &page[1] },
	};

	begin(&(struct rig_options){ .devices = 1, .home_bytes = 128ull << 20 }, ALL + 2 * GAIA_CHUNK);
	cl = client_create(kf, 0, GAIA_PROT_RW, ALL);
	others = client_create(kf, 0, GAIA_PROT_RW, ALL + 2 * GAIA_CHUNK);
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	for (unsigned k = 0; k < 2; k++) {
		page[k] = (struct one_page){ others, AT(CHUNKS + k, 3) };
		write_device(others, page[k].off, "others");
		held_begin(&held[k]);
	}
	client_store(cl, "mine", 4, AT(3, 9));
	counting_begins();
	give_all_back(cl);
	expect_work(CHUNKS, 0, 0);
	for (unsigned k = 2; k-- > 0;)
		cr_assert_eq(held_end(&held[k]), 0);
	/* And as large as before. */
	cr_assert_eq(acquire_all(cl, GAIA_PROT_RW), 0);
	counting_begins();
	give_all_back(cl);
	expect_work(CHUNKS / 2, 0, 0);
	for (unsigned k = 0; k < 2; k++)
		expect_cpu(page[k].off, "others");
	expect_cpu(AT(3, 9), "mine");
	end();
}

/* While the first chunks are compared it comes to one of which a page is being read. */
Test(windows, a_release_that_waits_has_no_page_locked, .timeout = PATIENCE / 1000)
{
	struct client *cl = begin_small();
	struct cache_read rd;
	pthread_t thread;

	client_store(cl, "first", 5, AT(1, 7));
	client_store(cl, "second", 6, AT(2, 7));
	cr_assert_eq(cache_read_begin(kf->cfile, (off_t)AT(2, 7), 4, false, &rd), 0);
	cr_assert_eq(pthread_create(&thread, NULL, release_main, cl), 0);
	while (page_waiters(2 * GAIA_CHUNK_PAGES + 7, true) == 0)
		sched_yield();
	cr_assert_eq(cpu_write_direct(kf, "newer", 5, AT(1, 8)), 0);
	cache_read_end(&rd);
	pthread_join(thread, NULL);
	expect_cpu(AT(1, 7), "first");
	expect_cpu(AT(1, 8), "newer");
	expect_cpu(AT(2, 7), "second");
	end();
}

/* The kernel may have to write other pages of the file before it drops one. */
static void write_elsewhere(void *arg, struct kfile *file, off_t off, off_t len)
{
	uint64_t *n = arg;

	(void)len;
	for (unsigned k = 0; k < CHUNKS; k++)
		cr_assert_eq(cache_write(file->cfile, "else", 4, (off_t)AT(k, 100), CACHE_WRITE_EXACT), 0);
	*n += off == (off_t)AT(0, 7) || off == (off_t)AT(1, 7) || off == (off_t)AT(2, 7);
}

Test(windows, invalidates_with_no_page_locked, .timeout = PATIENCE / 1000)
{
	struct client *cl = begin_small();
	uint64_t n = 0;

	for (unsigned k = 0; k + 1 < CHUNKS; k++)
		client_store(cl, "mine", 4, AT(k, 7));
	rig->before_invalidate = write_elsewhere;
	rig->arg = &n;
	give_all_back(cl);
	cr_assert_eq(n, CHUNKS - 1);
	rig->before_invalidate = NULL;
	for (unsigned k = 0; k + 1 < CHUNKS; k++) {
		expect_cpu(AT(k, 7), "mine");
		expect_cpu(AT(k, 100), "else");
	}
	end();
}

Test(windows, a_comparison_that_fails_in_the_middle)
{
	struct client *cl = begin_small();

	for (unsigned k = 0; k < CHUNKS; k++)
		client_store(cl, "mine", 4, AT(k, 7));
	fault_arm("device.find_changed", -EIO, 1, 1);
	cr_assert_eq(cache_release(cl->mapping, 0, ALL, NULL), -EIO);
	/* Nothing is held, and nothing is lost. */
	for (unsigned k = 0; k < CHUNKS; k++)
		expect_cpu(AT(k, 7), "mine");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}
