/*
 * cache_cases.c - the cases of the consistency contract, section 5, that need no mount; and rules 6 and 7 of
 * its section 2. A test has its case's number.
 */
#include <linux/falloc.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cache_scene.h"
#include "held.h"

/* Something to do when an invalidation is about to begin: a release has published, the kernel knows nothing. */
static void (*at_invalidation)(void);
static unsigned invalidations;

static void before_invalidate(void *arg, struct kfile *file, off_t off, off_t len)
{
	void (*act)(void) = at_invalidation;

	invalidations++;
	at_invalidation = NULL;
	if (act)
		act();
}

static void begin_watched(unsigned devices)
{
	begin_devices(devices);
	rig->before_invalidate = before_invalidate;
	invalidations = 0;
}

/* The kernel caches the page. */
static void touch_cpu(uint64_t off)
{
	char byte;

	cr_assert_eq(cpu_read(kf, &byte, 1, off), 1);
}

static void push_kernel(void)
{
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
}

/* ---- case 1 ---- */

static void store_then_push(void)
{
	store_cpu(4095, "c");
	push_kernel();
}

static void store_only(void)
{
	store_cpu(4095, "c");
}

static void stale_page(void (*act)(void))
{
	struct client *cl;

	begin_watched(1);
	write_cpu(2000, "old");
	touch_cpu(0);
	cl = new_client(0);
	write_device(cl, 0, "d");
	at_invalidation = act;
	release_all(cl);
	cr_assert_null(at_invalidation, "the kernel's copy was invalidated");
	expect_cpu(0, "d");
	expect_cpu(2000, "old");
	expect_cpu(4095, "c");
	expect_device(cl, 4095, "c");
	expect_device(cl, 0, "d");
	end();
}

Test(case_1, a_stale_page_written_back_before_its_invalidation_keeps_both)
{
	stale_page(store_then_push);
}

Test(case_1, a_stale_page_written_back_by_its_invalidation_keeps_both)
{
	stale_page(store_only);
}

static void push_store_push(void)
{
	store_cpu(100, "1");
	push_kernel();
	/* The kernel's copy still lacks what the device wrote. */
	store_cpu(101, "2");
	push_kernel();
	store_cpu(102, "3");
}

Test(case_1, a_page_written_back_again_and_again_keeps_all)
{
	struct client *cl;

	begin_watched(1);
	touch_cpu(0);
	cl = new_client(0);
	write_device(cl, 0, "d");
	at_invalidation = push_store_push;
	release_all(cl);
	expect_cpu(0, "d");
	expect_cpu(100, "123");
	end();
}

static atomic_bool released;

static int release_it(void *client)
{
	release_all(client);
	atomic_store(&released, true);
	return 0;
}

/* Otherwise pages would be dropped while nobody keeps write(2) out (rule 15). */
Test(case_1, a_release_awaits_that_the_page_is_invalidated_again)
{
	struct held release = { .point = "notifier.before_invalidate", .call = release_it };
	struct client *cl;

	begin_watched(1);
	touch_cpu(0);
	cl = new_client(0);
	write_device(cl, 0, "d");
	at_invalidation = store_then_push;
	release.arg = cl;
	held_begin(&release);
	/* Some time to return in, if it does not wait. */
	for (int i = 0; i < 20 && !atomic_load(&released); i++)
		usleep(1000);
	cr_assert(!atomic_load(&released), "returned before");
	cr_assert_eq(held_end(&release), 0);
	cr_assert_eq(invalidations, 2);
	expect_cpu(0, "d");
	expect_cpu(4095, "c");
	end();
}

static void read_then_store(void)
{
	kernel_reclaim(kf, 0, GAIA_PAGE);
	expect_cpu(0, "d");
	store_cpu(0, "c");
	push_kernel();
}

/* What is read in the window has the device's bytes: a store over them is a later one. */
static pthread_t releasing;
static sem_t may_go_on;

static void hold_back_others(void *arg, struct kfile *file, off_t off, off_t len)
{
	if (pthread_equal(pthread_self(), releasing))
		before_invalidate(arg, file, off, len);
	else
		sem_wait(&may_go_on);
}

/* More often than the notifier could be asked to invalidate it once more. */
static void push_very_often(void)
{
	for (unsigned k = 1; k <= 20000; k++) {
		char byte = (char)('a' + k % 26);

		cr_assert_eq(cpu_store(kf, &byte, 1, 4095), 0);
		push_kernel();
	}
	store_cpu(4095, "!");
	push_kernel();
	for (unsigned k = 0; k < 40000; k++)
		sem_post(&may_go_on);
}

Test(case_1, a_page_written_back_as_often_as_one_likes_keeps_all)
{
	struct client *cl;

	begin_watched(1);
	sem_init(&may_go_on, 0, 0);
	releasing = pthread_self();
	rig->before_invalidate = hold_back_others;
	touch_cpu(0);
	cl = new_client(0);
	write_device(cl, 0, "d");
	at_invalidation = push_very_often;
	release_all(cl);
	cr_assert_null(at_invalidation);
	expect_cpu(0, "d");
	expect_cpu(4095, "!");
	expect_device(cl, 4095, "!");
	end();
}

Test(case_1, a_page_read_in_between_is_a_new_base)
{
	struct client *cl;

	begin_watched(1);
	cl = new_client(0);
	write_device(cl, 0, "d");
	touch_cpu(100);
	at_invalidation = read_then_store;
	release_all(cl);
	expect_cpu(0, "c");
	expect_device(cl, 0, "c");
	end();
}

static void write_whole_page(char first)
{
	char page[GAIA_PAGE];

	memset(page, '.', sizeof(page));
	page[0] = first;
	cr_assert_eq(cpu_write(kf, page, sizeof(page), 0), 0);
	push_kernel();
}

static void write_again(void)
{
	write_whole_page('2');
}

static void write_and_once_more(void)
{
	/* The notifier may begin as soon as the first has been merged. */
	at_invalidation = write_again;
	write_whole_page('1');
}

/* The kernel makes the page anew each time, without reading it. */
Test(case_1, a_race_is_decided_once)
{
	struct client *cl;

	begin_watched(1);
	touch_cpu(0);
	cl = new_client(0);
	write_device(cl, 0, "d");
	at_invalidation = write_and_once_more;
	release_all(cl);
	cr_assert_null(at_invalidation, "the kernel's copy was invalidated twice");
	expect_cpu(0, "2");
	expect_device(cl, 0, "2");
	end();
}

/* ---- case 2 ---- */

Test(case_2, a_write_back_while_a_device_holds_the_page_is_merged_with_its_release)
{
	struct client *cl;

	begin_watched(1);
	write_cpu(0, "....");
	cl = new_client(0);
	write_device(cl, 0, "D");
	store_cpu(3, "C");
	push_kernel();
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	release_all(cl);
	expect_cpu(0, "D..C");
	end();
}

/* ---- case 3 ---- */

Test(case_3, what_was_read_before_a_release_is_not_what_the_kernel_keeps)
{
	struct client *cl;

	begin_watched(1);
	write_cpu(0, "old");
	cl = new_client(0);
	write_device(cl, 0, "new");
	expect_cpu(0, "old");
	release_all(cl);
	cr_assert_not(kernel_has(kf, 0));
	expect_cpu(0, "new");
	end();
}

static struct cache_read reading;
static atomic_bool released;

static void *release_thread(void *arg)
{
	cr_assert_eq(cache_release(((struct client *)arg)->mapping, 0, GAIA_PAGE, NULL), 0);
	atomic_store(&released, true);
	return NULL;
}

/* A READ under way has its bytes; the release that changes them waits until the kernel has it. */
Test(case_3, a_release_waits_for_a_read_under_way)
{
	struct client *cl;
	pthread_t thread;

	begin_watched(1);
	write_cpu(0, "old");
	push_kernel();
	cl = new_client(0);
	write_device(cl, 0, "new");
	cr_assert_eq(cache_read_begin(kf->cfile, 0, 3, true, &reading), 0);
	cr_assert_eq(pthread_create(&thread, NULL, release_thread, cl), 0);
	sched_yield();
	cr_assert(!atomic_load(&released));
	cr_assert_arr_eq(reading.iov[0].iov_base, "old", 3);
	cache_read_end(&reading);
	pthread_join(thread, NULL);
	expect_cpu(0, "new");
	end();
}

Test(case_3, what_is_released_before_and_after_a_chunk_that_is_not_held_is_not_what_the_kernel_keeps)
{
	const uint64_t before = GAIA_CHUNK - 3, after = 2 * GAIA_CHUNK;
	struct client *cl;

	/* So much that all is published before the kernel is told of any. */
	begin(&(struct rig_options){ .devices = 1, .home_bytes = 1ull << 30 }, 4 * GAIA_CHUNK);
	touch_cpu(before);
	touch_cpu(after);
	cl = new_client(0);
	write_device(cl, before, "one");
	write_device(cl, after, "two");
	release_all(cl);
	expect_cpu(before, "one");
	expect_cpu(after, "two");
	end();
}

/* ---- case 4 ---- */

Test(case_4, storage_and_a_replica_merge_with_the_right_base)
{
	struct client *cl;

	begin_watched(1);
	write_cpu(0, "......");
	cl = new_client(0);
	write_device(cl, 0, "DD");
	write_cpu(4, "CC");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "....CC");
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	expect_cpu(0, "DD..CC");
	end();
}

/* ---- case 5 ---- */

Test(case_5, two_devices_and_a_cpu_each_change_a_third)
{
	for (unsigned order = 0; order < 8; order++) {
		struct client *a, *b;

		begin_watched(2);
		write_cpu(0, "......");
		a = new_client(0);
		b = new_client(1);
		if (order & 1) {
			write_device(a, 0, "AA");
			write_device(b, 2, "BB");
		} else {
			write_device(b, 2, "BB");
			write_device(a, 0, "AA");
		}
		if (order & 2)
			store_cpu(4, "CC");
		release_all(order & 4 ? a : b);
		if (!(order & 2))
			write_cpu(4, "CC");
		release_all(order & 4 ? b : a);
		if (order & 1)
			expect_cpu(0, "AABBCC");
		expect_device(a, 0, "AABBCC");
		expect_device(b, 0, "AABBCC");
		expect_cpu(0, "AABBCC");
		cr_assert_eq(cpu_fsync(kf), 0);
		expect_store(0, "AABBCC");
		end();
	}
}

/* ---- case 6, rule 6 ---- */

/* The steps of three writers of one byte, in every order in which they can meet. */
Test(case_6, a_race_has_the_same_outcome_in_every_order)
{
	static const char *const orders[] = { "cabf", "cbaf", "acbf", "bcaf", "abcf", "bacf",
					      "afbcf", "bfacf", "cafbf", "cbfaf" };

	for (unsigned k = 0; k < ARRAY_LEN(orders); k++) {
		uint64_t races = counter_value(CTR_merge_races);
		struct client *a, *b;

		begin_watched(2);
		write_cpu(0, ".");
		a = new_client(0);
		b = new_client(1);
		write_device(a, 0, "A");
		write_device(b, 0, "B");
		for (const char *step = orders[k]; *step; step++)
			switch (*step) {
			case 'a':
				release_all(a);
				break;
			case 'b':
				release_all(b);
				break;
			case 'c':
				/* In nobody's window: concurrent with the device that has not released yet. */
				if (step == orders[k])
					write_cpu(0, "C");
				break;
			case 'f':
				cr_assert_eq(cpu_fsync(kf), 0);
				break;
			}
		expect_cpu(0, "B");
		expect_device(a, 0, "B");
		cr_assert_gt(counter_value(CTR_merge_races), races);
		end();
	}
}

Test(case_6, races_can_be_listed)
{
	struct client *cl;
	json_t *status, *races;

	begin_watched(1);
	write_cpu(GAIA_PAGE, "....");
	cl = new_client(0);
	write_device(cl, GAIA_PAGE + 2, "D");
	write_cpu(GAIA_PAGE + 2, "C");
	release_all(cl);
	expect_cpu(GAIA_PAGE, "..D.");
	status = cache_status_json(rig->cache);
	races = json_object_get(status, "races");
	cr_assert_eq(json_array_size(races), 1);
	cr_assert_eq(json_integer_value(json_object_get(json_array_get(races, 0), "offset")),
		     GAIA_PAGE + 2);
	json_decref(status);
	end();
}

/* An owner that has seen the other's write comes after it, whatever their numbers. */
Test(case_6, what_came_after_is_no_race)
{
	struct client *a, *b, *c;

	begin_watched(3);
	write_cpu(0, "....");
	a = new_client(0);
	b = new_client(1);
	c = new_client(2);
	/* Somebody always holds the page. */
	write_device(a, 1, "1");
	write_device(c, 0, "C");
	release_all(c);
	expect_cpu(0, "C...");
	write_device(b, 2, "2");
	release_all(a);
	write_device(a, 0, "A");
	release_all(b);
	release_all(a);
	expect_cpu(0, "A12.");
	end();
}

static struct client *second;

/* The kernel's page loses it as well, and goes on without what is released then. */
static void cut_and_release(void)
{
	cr_assert_eq(cpu_truncate(kf, 100), 0);
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
	write_device(second, 200, "new");
	at_invalidation = store_only;
	release_all(second);
}

/* Nor is what a process cuts off before, in the window of another release, which the kernel's page lacks then. */
Test(case_6, what_was_cut_off_before_is_no_race)
{
	uint64_t races = counter_value(CTR_merge_races);
	struct client *first;

	begin_watched(2);
	write_cpu(200, "old");
	push_kernel();
	first = new_client(0);
	second = new_client(1);
	write_device(first, 0, "d");
	at_invalidation = cut_and_release;
	release_all(first);
	expect_cpu(0, "d");
	expect_cpu(200, "new");
	expect_cpu(4095, "c");
	cr_assert_eq(counter_value(CTR_merge_races), races);
	end();
}

/* ---- case 7 ---- */

Test(case_7, a_silent_store_publishes_nothing)
{
	uint64_t published, stored;
	struct client *cl;

	begin_watched(1);
	write_cpu(0, "same");
	cr_assert_eq(cpu_fsync(kf), 0);
	published = counter_value(CTR_released_pages);
	stored = counter_value(CTR_storage_writes);
	cl = new_client(0);
	write_device(cl, 0, "same");
	expect_cpu(0, "same");
	release_all(cl);
	cr_assert_eq(counter_value(CTR_released_pages), published);
	cr_assert_eq(invalidations, 0);
	cr_assert(kernel_has(kf, 0));
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(counter_value(CTR_storage_writes), stored);
	end();
}

/* ---- case 8 ---- */

Test(case_8, eviction_brings_home_what_was_released)
{
	struct client *cl;

	begin_watched(1);
	cl = new_client(0);
	write_device(cl, 0, "kept");
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	cr_assert_null(client_at(cl, 0), "and took the memory from the client");
	expect_cpu(0, "kept");
	expect_device(cl, 0, "kept");
	end();
}

Test(case_8, what_is_held_is_not_evicted)
{
	struct client *cl;

	begin_watched(1);
	cl = new_client(0);
	write_device(cl, 0, "held");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	release_all(cl);
	expect_cpu(0, "held");
	cr_assert_eq(client_acquire(cl, GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	end();
}

Test(case_8, an_acquire_that_does_not_fit_fails_whole)
{
	struct client *a, *b;
	uint64_t refused = counter_value(CTR_acquire_nomem);

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	a = new_client(0);
	b = new_client(0);
	cr_assert_eq(client_acquire(a, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(b, GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), -ENOMEM);
	cr_assert_eq(client_acquire(b, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), -ENOMEM);
	cr_assert_eq(counter_value(CTR_acquire_nomem), refused + 2);
	cache_check(rig->cache);
	cr_assert_eq(client_acquire(b, GAIA_CHUNK, GAIA_CHUNK, GAIA_PROT_RW), 0);
	release_all(a);
	release_all(b);
	cr_assert_eq(client_acquire(b, 2 * GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	end();
}

/* ---- cases 9 and 10 ---- */

Test(case_9, a_truncate_in_the_middle_of_a_dirty_page)
{
	struct client *cl;

	begin_watched(1);
	write_cpu(0, "..........");
	cl = new_client(0);
	write_device(cl, 0, "AAAAAAAAAA");
	cr_assert_eq(cpu_truncate(kf, 4), 0);
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
	release_all(cl);
	expect_cpu(0, "AAAA");
	for (unsigned k = 4; k < 10; k++) {
		char byte;

		cr_assert_eq(cpu_read(kf, &byte, 1, k), 1);
		cr_assert_eq(byte, 0, "byte %u", k);
	}
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "AAAA");
	end();
}

/* The kernel had gathered a write that made the file longer, so for the cache this is no cut. */
Test(case_9, a_truncate_voids_what_lies_beyond_whatever_size_we_knew)
{
	struct client *cl;
	char byte = 1;

	begin(&(struct rig_options){ .devices = 1 }, 100);
	cl = new_client(0);
	write_device(cl, 50, "kept");
	client_store(cl, "gone", 4, 3000);
	cr_assert_eq(cpu_write(kf, "x", 1, 4000), 0);
	cr_assert_eq(cpu_truncate(kf, 2000), 0);
	cr_assert_eq(cpu_truncate(kf, GAIA_PAGE), 0);
	release_all(cl);
	expect_cpu(50, "kept");
	cr_assert_eq(cpu_read(kf, &byte, 1, 3000), 1);
	cr_assert_eq(byte, 0);
	end();
}

Test(case_9, what_is_stored_after_a_file_grew_is_released)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1 }, 100);
	cl = new_client(0);
	write_device(cl, 50, "kept");
	cr_assert_eq(cpu_truncate(kf, 200), 0);
	cr_assert_eq(cpu_truncate(kf, 300), 0);
	client_store(cl, "late", 4, 250);
	release_all(cl);
	expect_cpu(50, "kept");
	expect_cpu(250, "late");
	end();
}

Test(case_9, a_truncate_takes_a_release_that_was_not_fetched)
{
	struct client *cl;
	char byte = 1;

	begin_watched(1);
	cl = new_client(0);
	write_device(cl, GAIA_PAGE - 2, "aabb");
	release_all(cl);
	cr_assert_eq(cpu_truncate(kf, GAIA_PAGE - 1), 0);
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
	expect_cpu(GAIA_PAGE - 2, "a");
	cr_assert_eq(cpu_read(kf, &byte, 1, GAIA_PAGE - 1), 1);
	cr_assert_eq(byte, 0);
	cr_assert_eq(cpu_read(kf, &byte, 1, GAIA_PAGE), 1);
	cr_assert_eq(byte, 0);
	cr_assert_eq(client_acquire(cl, GAIA_PAGE, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(*client_at(cl, GAIA_PAGE), 0);
	end();
}

Test(case_10, a_truncate_of_all_that_is_held)
{
	struct client *cl;

	begin_watched(1);
	cl = new_client(0);
	write_device(cl, 0, "gone");
	write_device(cl, GAIA_CHUNK, "gone");
	cr_assert_eq(cpu_truncate(kf, 0), 0);
	release_all(cl);
	cr_assert_eq(cfile_size(kf->cfile), 0);
	cr_assert_eq(cpu_truncate(kf, GAIA_PAGE), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(client_acquire(cl, 0, 4, GAIA_PROT_RW), 0);
	cr_assert_eq(*client_at(cl, 0), 0);
	end();
}

Test(case_10, a_file_without_a_name_lives_while_it_is_held)
{
	struct client *cl;
	uint64_t stored;

	begin_watched(1);
	cl = new_client(0);
	write_device(cl, 0, "orphan");
	cfile_set_gone(kf->cfile, true);
	release_all(cl);
	expect_cpu(0, "orphan");
	write_cpu(6, "s");
	expect_device(cl, 0, "orphans");
	stored = counter_value(CTR_storage_writes);
	client_end(cl);
	kfile_end(kf, true);
	cr_assert_eq(counter_value(CTR_storage_writes), stored, "nobody can ask for it");
	cr_assert_eq(rig_frames(rig), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

Test(case_10, a_file_without_a_name_keeps_what_was_released_while_it_is_open)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	write_device(cl, 0, "orphan");
	release_all(cl);
	cfile_set_gone(kf->cfile, true);
	client_end(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	expect_cpu(0, "orphan");
	kfile_end(kf, true);
	end();
}

/* And what processes wrote to it, when the last mapping goes. */
Test(case_10, a_file_without_a_name_keeps_what_was_written_while_it_is_open)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	write_cpu(0, "orphan");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	cfile_set_gone(kf->cfile, true);
	client_end(cl);
	kernel_reclaim(kf, 0, 0);
	expect_cpu(0, "orphan");
	kfile_end(kf, true);
	end();
}

/* ---- case 11 ---- */

Test(case_11, fsync_stores_what_was_released_and_nothing_that_was_not)
{
	struct client *a, *b;
	char byte = 1;

	begin_watched(2);
	a = new_client(0);
	b = new_client(1);
	write_device(a, 0, "released");
	release_all(a);
	write_device(b, GAIA_PAGE, "private");
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "released");
	store_peek(kf, &byte, 1, GAIA_PAGE);
	cr_assert_eq(byte, 0);
	end();
}

static void sync_beyond(uint64_t off)
{
	struct client *cl;

	begin_watched(1);
	cl = new_client(0);
	write_device(cl, off, "released");
	release_all(cl);
	cr_assert_eq(cache_fsync(kf->cfile, (off_t)ROUND_DOWN(off, GAIA_PAGE), GAIA_PAGE, true), 0);
	expect_store(off, "released");
	end();
}

Test(case_11, a_sync_of_a_range_that_begins_with_a_later_chunk_stores_it)
{
	sync_beyond(2 * GAIA_CHUNK);
}

Test(case_11, a_sync_of_a_range_within_a_later_chunk_stores_it)
{
	sync_beyond(2 * GAIA_CHUNK + 5 * GAIA_PAGE + 6);
}

/* ---- case 12, rule 7 ---- */

Test(case_12, the_dead_lose_what_they_did_not_release_and_nothing_else)
{
	struct client *cl;

	begin_watched(1);
	write_cpu(0, "......");
	cl = new_client(0);
	write_device(cl, 0, "R");
	release_all(cl);
	write_device(cl, 1, "X");
	write_cpu(5, "C");
	client_die(cl);
	write_cpu(4, "C");
	client_end(cl);
	expect_cpu(0, "R...CC");
	cl = new_client(0);
	expect_device(cl, 0, "R...CC");
	end();
}

Test(case_12, what_the_dead_hold_is_free_before_they_are_unmapped)
{
	struct client *dead, *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 1 }, 4 * GAIA_CHUNK);
	write_cpu(0, "....");
	dead = new_client(0);
	write_device(dead, 0, "X");
	client_die(dead);
	cl = new_client(0);
	write_device(cl, 1, "L");
	release_all(cl);
	expect_cpu(0, ".L..");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* Chunks elsewhere, too: the device is full of what the dead hold. */
Test(case_12, what_the_dead_hold_makes_room_for_others)
{
	struct client *dead, *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	dead = new_client(0);
	write_device(dead, 0, "X");
	write_device(dead, GAIA_CHUNK, "X");
	client_die(dead);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 2 * GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	end();
}

Test(case_12, one_of_two_clients_dies)
{
	struct client *a, *b;

	begin_watched(1);
	write_cpu(0, "....");
	a = new_client(0);
	b = new_client(0);
	write_device(a, GAIA_PAGE, "X");
	write_device(b, 0, "B");
	client_die(a);
	client_end(a);
	release_all(b);
	expect_cpu(0, "B...");
	cr_assert_eq(client_acquire(b, GAIA_PAGE, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(*client_at(b, GAIA_PAGE), 0);
	end();
}

/* ---- case 13 ---- */

static atomic_bool stop;

static void *storing_thread(void *arg)
{
	for (unsigned k = 0; !atomic_load(&stop); k++) {
		char byte = (char)k;

		cr_assert_eq(cpu_store(kf, &byte, 1, 100), 0);
	}
	return NULL;
}

Test(case_13, acquire_and_release_of_a_page_that_is_always_written_come_to_an_end, .timeout = 240)
{
	struct client *cl;
	pthread_t thread;
	char buf[2];

	begin_watched(1);
	cl = new_client(0);
	cr_assert_eq(pthread_create(&thread, NULL, storing_thread, NULL), 0);
	for (unsigned k = 0; k < 100; k++) {
		buf[0] = (char)k;
		cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_RW), 0);
		client_store(cl, buf, 1, 0);
		cr_assert_eq(client_release(cl, 0, GAIA_PAGE), 0);
		cr_assert_eq(cpu_read(kf, buf + 1, 1, 0), 1);
		cr_assert_eq(buf[1], buf[0]);
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	end();
}

/* ---- case 15 ---- */

static blkcnt_t stored_blocks(void)
{
	struct store_file *sf;
	struct stat st;

	cr_assert_eq(store_open(rig->mem, 1, false, &sf), 0);
	cr_assert_eq(sf->ops->stat(sf, &st), 0);
	sf->ops->close(sf);
	return st.st_blocks;
}

Test(case_15, a_hole_reads_zeros_and_stays_a_hole)
{
	struct client *cl;

	begin_watched(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	for (uint64_t off = 0; off < 4 * GAIA_CHUNK; off += 64)
		cr_assert_eq(*client_at(cl, off), 0);
	release_all(cl);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(stored_blocks(), 0);
	write_device(cl, GAIA_CHUNK, "x");
	release_all(cl);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(stored_blocks(), GAIA_PAGE / 512);
	end();
}

Test(case_15, what_was_released_is_no_hole)
{
	struct client *cl;

	begin_watched(1);
	cl = new_client(0);
	write_device(cl, GAIA_CHUNK, "x");
	release_all(cl);
	cr_assert_eq(cache_seek(kf->cfile, 0, SEEK_DATA), GAIA_CHUNK);
	cr_assert_eq(cache_seek(kf->cfile, GAIA_CHUNK, SEEK_HOLE), GAIA_CHUNK + GAIA_PAGE);
	end();
}

Test(case_15, a_hole_that_ends_within_a_page_leaves_what_follows)
{
	char seen[15];

	begin_watched(1);
	write_cpu(GAIA_PAGE + 96, "hole not stored");
	push_kernel();
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_PAGE + 100), 0);
	kernel_reclaim(kf, 0, 0);
	cr_assert_eq(cpu_read(kf, seen, sizeof(seen), GAIA_PAGE + 96), (ssize_t)sizeof(seen));
	cr_assert_arr_eq(seen, "\0\0\0\0 not stored", sizeof(seen));
	end();
}

/* ---- case 16 ---- */

Test(case_16, copies_and_direct_reads_see_what_was_released)
{
	struct kfile *to;
	struct client *cl;
	char buf[9] = "";

	begin_watched(1);
	to = kfile_create(rig, 2, 0);
	cl = new_client(0);
	write_device(cl, 0, "released");
	release_all(cl);
	cr_assert_eq(cpu_copy(kf, 0, to, 100, 8), 8);
	cr_assert_eq(cpu_read(to, buf, 8, 100), 8);
	cr_assert_str_eq(buf, "released");
	write_device(cl, 0, "RELEASED");
	release_all(cl);
	cr_assert_eq(cpu_read_direct(kf, buf, 8, 0), 8);
	cr_assert_str_eq(buf, "RELEASED");
	write_device(cl, 4 * GAIA_CHUNK - 8, "then the");
	release_all(cl);
	write_cpu(4 * GAIA_CHUNK, "end");
	cr_assert_eq(cpu_write_direct(kf, "x", 1, 4 * GAIA_CHUNK - 1), 0);
	expect_cpu(4 * GAIA_CHUNK - 8, "then thxend");
	end();
}

/* ---- case 17 ---- */

static void released_then_held_again(struct client **cl, unsigned devices)
{
	begin_watched(devices);
	write_cpu(0, "cpu.....");
	*cl = new_client(0);
	write_device(*cl, 4, "rel");
	release_all(*cl);
	write_device(*cl, 0, "private");
}

Test(case_17, a_reader_gets_the_released_bytes)
{
	struct client *cl;

	released_then_held_again(&cl, 1);
	expect_cpu(0, "cpu.rel.");
	client_store(cl, "!", 1, 7);
	release_all(cl);
	expect_cpu(0, "private!");
	end();
}

Test(case_17, fsync_stores_the_released_bytes)
{
	struct client *cl;

	released_then_held_again(&cl, 1);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "cpu.rel.");
	release_all(cl);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "private.");
	end();
}

Test(case_17, another_device_gets_the_released_bytes)
{
	struct client *cl, *other;

	released_then_held_again(&cl, 2);
	other = new_client(1);
	expect_device(other, 0, "cpu.rel.");
	release_all(cl);
	expect_device(other, 0, "private.");
	end();
}

Test(case_17, a_death_falls_back_to_the_released_bytes)
{
	struct client *cl;

	released_then_held_again(&cl, 1);
	client_die(cl);
	client_end(cl);
	cl = new_client(0);
	expect_device(cl, 0, "cpu.rel.");
	expect_cpu(0, "cpu.rel.");
	end();
}

Test(case_17, a_loop_that_nobody_watches_moves_nothing)
{
	uint64_t out, in;
	struct client *cl;
	char byte;

	begin_watched(1);
	cl = new_client(0);
	write_device(cl, 0, "a");
	release_all(cl);
	out = counter_value(CTR_device_to_home);
	in = counter_value(CTR_home_to_device);
	for (byte = 'b'; byte <= 'k'; byte++) {
		cr_assert_eq(client_acquire(cl, 0, 1, GAIA_PROT_RW), 0);
		client_store(cl, &byte, 1, 0);
		release_all(cl);
	}
	cr_assert_eq(counter_value(CTR_device_to_home), out);
	cr_assert_eq(counter_value(CTR_home_to_device), in);
	expect_cpu(0, "k");
	end();
}

Test(case_17, without_room_for_a_snapshot_it_is_fetched)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 1 }, GAIA_CHUNK);
	cl = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	write_device(cl, 0, "rel");
	cr_assert_eq(client_release(cl, 0, 3), 0);
	write_device(cl, 0, "pri");
	client_die(cl);
	client_end(cl);
	expect_cpu(0, "rel");
	end();
}

/* ---- what a client of the same device sees and shares ---- */

Test(rule_7, what_is_not_released_reaches_nobody)
{
	struct client *a, *b;
	char byte = 1;

	begin_watched(2);
	a = new_client(0);
	b = new_client(1);
	write_device(a, 0, "private");
	cr_assert_eq(cpu_read(kf, &byte, 1, 0), 1);
	cr_assert_eq(byte, 0);
	cr_assert_eq(client_acquire(b, 0, 1, GAIA_PROT_RW), 0);
	cr_assert_eq(*client_at(b, 0), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(cpu_read_direct(kf, &byte, 1, 0), 1);
	cr_assert_eq(byte, 0);
	end();
}

Test(rule_7, a_client_that_shares_a_page_goes_on_writing_it)
{
	struct client *a, *b;

	begin_watched(1);
	write_cpu(0, "........");
	a = new_client(0);
	b = new_client(0);
	write_device(a, 0, "a");
	write_device(b, 2, "b");
	release_all(a);
	expect_cpu(0, "a");
	client_store(b, "B", 1, 3);
	store_cpu(7, "c");
	write_device(a, 5, "A");
	release_all(b);
	release_all(a);
	expect_cpu(0, "a.bB.A.c");
	end();
}

/* The kernel has been given the bytes, and the program has closed the file, before the reading thread is done with it. */
Test(read, the_file_stays_until_a_read_has_ended)
{
	struct cache_read rd;

	begin_devices(1);
	cr_assert_eq(cache_read_begin(kf->cfile, 4 * GAIA_CHUNK, 1, true, &rd), 0);
	cr_assert_eq(rd.bytes, 0);
	kfile_forget(kf);
	cr_assert_eq(kf->released, 0);
	kfile_remember(kf);
	cache_read_end(&rd);
	end();
}
