/*
 * cache_memory.c - what stays in memory: the order in which pages leave home, and what the cache gives
 * back to the system.
 *
 * Pages are read here and there, so that no readahead follows, unless a test is about that.
 */
#include <unistd.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "cache_scene.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/frames.h"
#include "pagecache/root.h"

#define AT(page) ((uint64_t)(page) * GAIA_PAGE)

static void begin_plain(uint64_t home_bytes)
{
	begin(&(struct rig_options){ .home_bytes = home_bytes }, 16 * GAIA_CHUNK);
}

/* By a process, through the kernel's cache. */
static void read_page(unsigned page)
{
	char byte;

	cr_assert_eq(cpu_read(kf, &byte, 1, AT(page)), 1);
}

static void read_direct(unsigned first, unsigned n)
{
	static char buf[2 * GAIA_CHUNK];

	cr_assert_eq(cpu_read_direct(kf, buf, AT(n), AT(first)), (ssize_t)AT(n));
}

static bool at_home(unsigned page)
{
	struct chunk *ch = chunk_get(kf->cfile, page / GAIA_CHUNK_PAGES, false);
	bool present = false;

	if (ch) {
		pthread_mutex_lock(&ch->lock);
		present = page_present(ch, page % GAIA_CHUNK_PAGES);
		pthread_mutex_unlock(&ch->lock);
		chunk_put(ch);
	}
	return present;
}

static unsigned chunks(void)
{
	struct chunk **list;
	unsigned n = chunk_list_get(kf->cfile, 0, UINT64_MAX, &list);

	for (unsigned k = 0; k < n; k++)
		chunk_put(list[k]);
	free(list);
	return n;
}

/* Until the flusher has come by. */
static void wait_for_no_chunks(void)
{
	for (unsigned ms = 0; chunks() > 0; ms++) {
		cr_assert_lt(ms, 60000, "%u chunks stay", chunks());
		usleep(1000);
	}
}

/* ---- what the kernel was given ---- */

Test(given, a_page_that_the_kernel_just_got_leaves_home)
{
	begin_plain(0);
	read_page(7);
	cr_assert(kernel_has(kf, AT(7)));
	cr_assert_not(at_home(7));
	cr_assert_eq(counter_value(CTR_home_given), 1);
	end();
}

Test(given, a_page_that_the_kernel_did_not_get_stays)
{
	begin_plain(0);
	read_direct(7, 1);
	cr_assert(at_home(7));
	end();
}

Test(given, what_was_read_ahead_stays_until_it_is_asked_for)
{
	begin_plain(0);
	read_page(0); /* where a sequential reader begins */
	cr_assert_not(at_home(0));
	cr_assert(at_home(1) && at_home(2));
	read_page(1);
	cr_assert_not(at_home(1));
	cr_assert(at_home(2));
	cr_assert_eq(counter_value(CTR_home_hits), 1);
	end();
}

/* Reading a file once pushes nothing else out of home. */
Test(given, a_file_read_once_evicts_nothing)
{
	begin_plain(CACHE_HOME_MIN);
	read_direct(3, 64);
	for (unsigned page = GAIA_CHUNK_PAGES; page < 8 * GAIA_CHUNK_PAGES; page++)
		read_page(page);
	for (unsigned page = 3; page < 67; page++)
		cr_assert(at_home(page));
	cr_assert_eq(counter_value(CTR_home_evicted), 0);
	end();
}

Test(given, what_the_kernel_drops_is_read_again)
{
	begin_plain(0);
	write_cpu(AT(7), "seven");
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	kernel_reclaim(kf, 0, 0);
	expect_cpu(AT(7), "seven");
	cr_assert_not(at_home(7));
	kernel_reclaim(kf, 0, 0);
	expect_cpu(AT(7), "seven");
	end();
}

/* ---- what stays all the same ---- */

Test(given, a_page_of_a_chunk_that_a_device_shares_stays)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, AT(7), 1, GAIA_PROT_READ), 0);
	release_all(cl);
	client_end(cl);
	read_page(9);
	cr_assert(at_home(9), "the device still has the chunk");
	end();
}

/* The device is about to ask for it. */
Test(given, a_page_of_a_file_that_a_device_maps_stays)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	read_page(7);
	cr_assert(at_home(7));
	client_end(cl);
	read_page(9);
	cr_assert_not(at_home(9), "nobody maps it any more");
	end();
}

Test(given, a_dirty_page_stays)
{
	begin_plain(0);
	write_cpu(AT(7), "seven");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	kernel_reclaim(kf, 0, 0);
	expect_cpu(AT(7), "seven");
	cr_assert(at_home(7));
	expect_store(AT(7), "");
	end();
}

/* If a sync fails it is stored once more. */
Test(given, a_page_that_was_stored_and_not_synced_stays)
{
	begin_plain(0);
	write_cpu(AT(7), "seven");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	cr_assert_eq(cache_flush(kf->cfile), 0);
	kernel_reclaim(kf, 0, 0);
	expect_cpu(AT(7), "seven");
	cr_assert(at_home(7));
	end();
}

/* ---- what was written, when it is on the disk ---- */

/* Of a chunk that has clean pages as well. */
Test(given, a_dirty_page_outlives_what_others_need)
{
	begin_plain(CACHE_HOME_MIN);
	write_cpu(AT(7), "seven");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	kernel_reclaim(kf, 0, 0);
	read_direct(8, 64);
	for (unsigned k = 1; at_home(8) && k < 16; k++)
		read_direct(k * GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	cr_assert_not(at_home(8));
	expect_cpu(AT(7), "seven");
	end();
}

static void write_page(unsigned page, const char *text)
{
	write_cpu(AT(page), text);
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
}

Test(synced, what_the_kernel_has_leaves_home)
{
	begin_plain(0);
	write_page(7, "seven");
	write_page(GAIA_CHUNK_PAGES, "next chunk");
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert(kernel_has(kf, AT(7)));
	cr_assert_eq(rig_frames(rig), 0);
	wait_for_no_chunks();
	kernel_reclaim(kf, 0, 0);
	expect_cpu(AT(7), "seven");
	expect_cpu(AT(GAIA_CHUNK_PAGES), "next chunk");
	end();
}

Test(synced, what_the_kernel_read_when_it_was_dirty_leaves_home)
{
	begin_plain(0);
	cr_assert_eq(cpu_write_direct(kf, "seven", 5, AT(7)), 0);
	read_page(7);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_not(at_home(7));
	expect_cpu(AT(7), "seven");
	end();
}

Test(synced, what_the_kernel_does_not_have_stays)
{
	begin_plain(0);
	cr_assert_eq(cpu_write_direct(kf, "seven", 5, AT(7)), 0);
	write_page(8, "eight");
	cr_assert_eq(cpu_write_direct(kf, "EIGHT", 5, AT(8)), 0);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert(at_home(7));
	cr_assert(at_home(8), "its own copy went with the direct write");
	end();
}

Test(synced, what_devices_share_stays)
{
	begin_devices(1);
	(void)new_client(0);
	write_page(7, "seven");
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert(at_home(7));
	end();
}

Test(synced, nothing_leaves_when_the_sync_fails)
{
	begin_plain(0);
	write_page(7, "seven");
	fault_arm("store.sync", -EIO, 0, 1);
	cr_assert_eq(cpu_fsync(kf), -EIO);
	cr_assert(at_home(7));
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_not(at_home(7));
	end();
}

/* A sync that has begun may miss what is stored after that. */
Test(synced, only_what_was_stored_before_leaves_home)
{
	struct chunk *ch;

	begin_plain(0);
	for (unsigned page = 7; page < 10; page++)
		write_page(page, "before");
	cr_assert_eq(cache_flush(kf->cfile), 0);
	ch = chunk_get(kf->cfile, 0, false);
	chunk_sync_begins(ch);
	write_page(7, "stored meanwhile");
	write_page(10, "stored meanwhile, too");
	cr_assert_eq(cache_flush(kf->cfile), 0);
	write_page(8, "dirty");
	chunk_sync_ended(ch, true);
	chunk_put(ch);
	cr_assert(at_home(7) && at_home(8) && at_home(10));
	cr_assert_not(at_home(9));
	end();
}

/* ---- what is in use ---- */

/* Another reader is still being answered from the frame. */
Test(given, a_page_that_is_being_read_stays)
{
	struct cache_read rd;

	begin_plain(0);
	cr_assert_eq(cache_read_begin(kf->cfile, (off_t)AT(7), GAIA_PAGE, true, &rd), 0);
	read_page(7);
	cr_assert(at_home(7));
	cache_read_end(&rd);
	cr_assert_not(at_home(7));
	end();
}

/* ---- what the cache itself takes ---- */

Test(metadata, a_file_that_was_only_read_takes_none)
{
	begin_plain(0);
	for (unsigned page = 7; page < 8 * GAIA_CHUNK_PAGES; page += 11)
		read_page(page);
	wait_for_no_chunks();
	read_page(7);
	end();
}

Test(metadata, none_once_a_device_has_left)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, AT(7), 1, GAIA_PROT_READ), 0);
	client_end(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(chunks(), 0);
	end();
}

static bool has_leaf(struct chunk *ch)
{
	bool has = false;

	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < ARRAY_LEN(ch->leaf); k++)
		has |= ch->leaf[k] != NULL;
	pthread_mutex_unlock(&ch->lock);
	return has;
}

/* The chunk stays, since the device has it. */
Test(metadata, of_home_there_is_none_once_home_is_empty)
{
	struct client *cl;
	struct chunk **list;
	unsigned n;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	n = chunk_list_get(kf->cfile, 0, UINT64_MAX, &list);
	cr_assert_eq(n, 1);
	for (unsigned k = 0; k < n; k++) {
		cr_assert_not(has_leaf(list[k]), "chunk %u", k);
		chunk_put(list[k]);
	}
	free(list);
	client_end(cl);
	end();
}

static atomic_uint came_through;

static void *lock_and_look(void *arg)
{
	struct chunk *ch = arg;

	pthread_mutex_lock(&ch->lock);
	pages_lock(ch, 7, 8);
	atomic_fetch_add(&came_through, 1);
	pages_unlock(ch, 7, 8);
	pthread_mutex_unlock(&ch->lock);
	chunk_account(ch);
	return NULL;
}

/* More threads than a page can count as waiting: its leaf may go while some of them still wait. */
Test(metadata, of_a_page_that_many_wait_for_may_come_and_go)
{
	pthread_t thread[300];
	struct chunk *ch;
	bool all_wait = false;

	begin_plain(0);
	ch = chunk_get(kf->cfile, 0, true);
	pthread_mutex_lock(&ch->lock);
	pages_lock(ch, 7, 8);
	pthread_mutex_unlock(&ch->lock);
	for (unsigned k = 0; k < ARRAY_LEN(thread); k++)
		cr_assert_eq(pthread_create(&thread[k], NULL, lock_and_look, ch), 0);
	while (!all_wait) {
		sched_yield();
		pthread_mutex_lock(&ch->lock);
		all_wait = page_at(ch, 7)->lockers == UINT8_MAX;
		pthread_mutex_unlock(&ch->lock);
	}
	pthread_mutex_lock(&ch->lock);
	pages_unlock(ch, 7, 8);
	pthread_mutex_unlock(&ch->lock);
	for (unsigned k = 0; k < ARRAY_LEN(thread); k++)
		pthread_join(thread[k], NULL);
	cr_assert_eq(atomic_load(&came_through), ARRAY_LEN(thread));
	cr_assert_geq(counter_value(CTR_page_waits), UINT8_MAX);
	cr_assert_not(has_leaf(ch));
	chunk_put(ch);
	end();
}

/* ---- slabs ---- */

static struct {
	struct frames fr;
	struct device dev;
	struct cache_device cdev;
	frame_t frame[4 * GAIA_CHUNK_PAGES];
	int announced;
	frame_t taken; /* UINT32_MAX: one is to be taken when a slab goes; then that one */
} slabs;

static void note_slab(struct device *dev, void *slab, enum host_slab what)
{
	bool there = what != HOST_SLAB_GOES;

	slabs.announced += there ? 1 : -1;
	/* It is memory as long as the device knows it. */
	*(volatile char *)slab = 1;
	if (there || slabs.taken != UINT32_MAX)
		return;
	slabs.taken = 0;
	cr_assert_eq(frames_take(&slabs.fr, 1, &slabs.taken, false), 1);
	*(char *)frame_ptr(&slabs.fr, slabs.taken) = 'k';
}

static const struct device_ops slab_ops = { .name = "slabs", .host_slab = note_slab };

static void begin_slabs(unsigned n)
{
	cr_assert_eq(frames_init(&slabs.fr, 8 * GAIA_CHUNK, 0), 0);
	slabs.dev.ops = &slab_ops;
	slabs.cdev.dev = &slabs.dev;
	slabs.fr.dev = &slabs.cdev;
	slabs.fr.n_devices = 1;
	for (unsigned got = 0, more; got < n * GAIA_CHUNK_PAGES; got += more) {
		more = frames_take(&slabs.fr, GAIA_CHUNK_PAGES, slabs.frame + got, false);
		cr_assert_gt(more, 0, "there is no memory");
	}
	cr_assert_eq(slabs.announced, (int)n);
}

static void give_slabs(unsigned first, unsigned n)
{
	frames_give(&slabs.fr, slabs.frame + first * GAIA_CHUNK_PAGES, n * GAIA_CHUNK_PAGES);
}

static void end_slabs(void)
{
	frames_trim(&slabs.fr, true);
	cr_assert_eq(slabs.announced, 0);
	frames_destroy(&slabs.fr);
}

Test(slab, empty_ones_go_back_when_nobody_needed_them)
{
	begin_slabs(4);
	frames_trim(&slabs.fr, false);
	give_slabs(1, 3);
	cr_assert_eq(slabs.announced, 4, "somebody may need them next");
	frames_trim(&slabs.fr, false);
	cr_assert_eq(slabs.announced, 4, "they were in use a moment ago");
	frames_trim(&slabs.fr, false);
	cr_assert_eq(slabs.announced, 1);
	give_slabs(0, 1);
	end_slabs();
}

Test(slab, those_needed_in_between_stay)
{
	begin_slabs(4);
	give_slabs(0, 4);
	frames_trim(&slabs.fr, false);
	for (unsigned k = 0; k < 10; k++) {
		cr_assert_eq(frames_take(&slabs.fr, 300, slabs.frame, false), 300);
		frames_give(&slabs.fr, slabs.frame, 300);
		frames_trim(&slabs.fr, false);
	}
	cr_assert_eq(slabs.announced, 1, "one was used");
	end_slabs();
}

/* Devices register several at once. */
Test(slab, those_of_an_arena_lie_side_by_side)
{
	begin_slabs(4);
	for (unsigned i = 1; i < ARRAY_LEN(slabs.frame); i++)
		cr_assert_eq((char *)frame_ptr(&slabs.fr, slabs.frame[i]),
			     (char *)frame_ptr(&slabs.fr, slabs.frame[i - 1]) + GAIA_PAGE);
	give_slabs(0, 4);
	end_slabs();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they have data of their own */

/* Bytes of memory that this process could write: what the system counts for it. */
static uint64_t data_bytes(void)
{
	unsigned long long kib = 0;
	char line[256];
	FILE *f = fopen("/proc/self/status", "re");

	cr_assert_not_null(f);
	while (fgets(line, sizeof(line), f))
		(void)sscanf(line, "VmData: %llu kB", &kib);
	fclose(f);
	cr_assert_gt(kib, 0);
	return kib * 1024;
}

/* The system counts two slabs, not their arena; and none that went. */
Test(slab, counts_only_while_it_is_there)
{
	uint64_t before = data_bytes();

	begin_slabs(2);
	cr_assert_lt(data_bytes() - before, 3 * GAIA_CHUNK);
	give_slabs(0, 2);
	before = data_bytes();
	frames_trim(&slabs.fr, true);
	cr_assert_eq(before - data_bytes(), 2 * GAIA_CHUNK);
	end_slabs();
}

#endif

/* What is left where slabs went comes back as memory. */
Test(slab, comes_back_where_one_went)
{
	begin_slabs(4);
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < ARRAY_LEN(slabs.frame); i++)
			*(char *)frame_ptr(&slabs.fr, slabs.frame[i]) = 'r';
		give_slabs(round, 1);
		frames_trim(&slabs.fr, true);
		cr_assert_eq(slabs.announced, 3);
		cr_assert_eq(frames_take(&slabs.fr, GAIA_CHUNK_PAGES, slabs.frame + round * GAIA_CHUNK_PAGES, false), GAIA_CHUNK_PAGES);
	}
	give_slabs(0, 4);
	end_slabs();
}

/* There are no addresses for an arena; or, at first, not for this slab's. */
static void slabs_by_themselves(unsigned refused)
{
	fault_arm("home.arena", -ENOMEM, 0, refused);
	begin_slabs(4);
	for (unsigned i = 0; i < ARRAY_LEN(slabs.frame); i++)
		*(char *)frame_ptr(&slabs.fr, slabs.frame[i]) = 's';
	give_slabs(1, 2);
	frames_trim(&slabs.fr, true);
	cr_assert_eq(slabs.announced, 2);
	cr_assert_eq(frames_take(&slabs.fr, GAIA_CHUNK_PAGES, slabs.frame + GAIA_CHUNK_PAGES, false), GAIA_CHUNK_PAGES);
	*(char *)frame_ptr(&slabs.fr, slabs.frame[GAIA_CHUNK_PAGES]) = 't';
	give_slabs(0, 2);
	give_slabs(3, 1);
	end_slabs();
	fault_disarm_all();
}

Test(slab, has_its_own_addresses_where_they_are_scarce)
{
	slabs_by_themselves(0);
}

Test(slab, has_its_own_addresses_beside_an_arena)
{
	slabs_by_themselves(1);
}

/* Its place is taken again only when it has gone. */
Test(slab, that_goes_takes_no_new_one_along)
{
	begin_slabs(1);
	give_slabs(0, 1);
	slabs.taken = UINT32_MAX;
	frames_trim(&slabs.fr, true);
	cr_assert_eq(slabs.announced, 1);
	cr_assert_eq(*(char *)frame_ptr(&slabs.fr, slabs.taken), 'k');
	frames_give(&slabs.fr, &slabs.taken, 1);
	end_slabs();
}

Test(slab, one_in_use_stays)
{
	begin_slabs(2);
	frames_give(&slabs.fr, slabs.frame, GAIA_CHUNK_PAGES - 1);
	for (unsigned k = 0; k < 3; k++)
		frames_trim(&slabs.fr, true);
	cr_assert_eq(slabs.announced, 2);
	*(char *)frame_ptr(&slabs.fr, slabs.frame[GAIA_CHUNK_PAGES - 1]) = 1;
	frames_give(&slabs.fr, slabs.frame + GAIA_CHUNK_PAGES - 1, 1);
	give_slabs(1, 1);
	end_slabs();
}

/* Of more frames than the budget has, each belongs to one thread at a time, and its slab stays meanwhile. */
#define TAKERS 4u

static void *take_and_give(void *arg)
{
	const unsigned self = (unsigned)(uintptr_t)arg;
	frame_t mine[GAIA_CHUNK_PAGES];

	for (unsigned k = 0; k < 300; k++) {
		unsigned n = frames_take(&slabs.fr, 1 + (k * 53 + self * 131) % ARRAY_LEN(mine), mine, false);

		for (unsigned i = 0; i < n; i++)
			*(unsigned *)frame_ptr(&slabs.fr, mine[i]) = self;
		cr_assert_leq(atomic_load(&slabs.fr.used), slabs.fr.budget);
		for (unsigned i = 0; i < n; i++)
			cr_assert_eq(*(unsigned *)frame_ptr(&slabs.fr, mine[i]), self);
		frames_give(&slabs.fr, mine, n);
	}
	return NULL;
}

Test(slab, threads_take_and_give_frames_while_slabs_go)
{
	pthread_t thread[TAKERS];

	cr_assert_eq(frames_init(&slabs.fr, 3 * GAIA_CHUNK, 0), 0);
	for (unsigned t = 0; t < TAKERS; t++)
		cr_assert_eq(pthread_create(&thread[t], NULL, take_and_give, (void *)(uintptr_t)(t + 1)), 0);
	for (unsigned k = 0; k < 300; k++)
		frames_trim(&slabs.fr, true);
	for (unsigned t = 0; t < TAKERS; t++)
		pthread_join(thread[t], NULL);
	cr_assert_eq(atomic_load(&slabs.fr.used), 0);
	frames_trim(&slabs.fr, true);
	frames_destroy(&slabs.fr);
}

Test(slab, frames_that_lie_about_are_used)
{
	static frame_t all[8 * GAIA_CHUNK_PAGES], again[4 * GAIA_CHUNK_PAGES];
	unsigned n = ARRAY_LEN(all);

	cr_assert_eq(frames_init(&slabs.fr, n * GAIA_PAGE, 0), 0);
	cr_assert_eq(frames_take(&slabs.fr, n, all, false), n);
	cr_assert_eq(frames_take(&slabs.fr, 1, again, false), 0, "the budget is used up");
	for (unsigned k = 0; k < n; k += 2)
		frames_give(&slabs.fr, all + k, 1);
	for (unsigned k = 0; k < ARRAY_LEN(again); k += 64)
		cr_assert_eq(frames_take(&slabs.fr, 64, again + k, false), 64);
	cr_assert_leq(slabs.fr.n_memory, 8 + 2, "an eighth more than the budget, or two slabs");
	for (unsigned k = 1; k < n; k += 2)
		frames_give(&slabs.fr, all + k, 1);
	frames_give(&slabs.fr, again, ARRAY_LEN(again));
	frames_trim(&slabs.fr, true);
	frames_destroy(&slabs.fr);
}

/* The flusher's. */
Test(slab, an_idle_cache_keeps_none)
{
	bool memory;

	begin_plain(0);
	read_direct(3, 700);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	for (unsigned ms = 0;; ms++) {
		struct frames *fr = &rig->cache->frames;

		memory = false;
		pthread_mutex_lock(&fr->lock);
		for (unsigned i = 0; i < fr->n_slabs; i++)
			memory |= fr->slab[i]->memory != NULL;
		pthread_mutex_unlock(&fr->lock);
		if (!memory)
			break;
		cr_assert_lt(ms, 60000, "empty slabs stay");
		usleep(1000);
	}
	end();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their heaps are others */

static uint64_t resident_bytes(void)
{
	unsigned long size = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	cr_assert_not_null(f);
	cr_assert_eq(fscanf(f, "%lu %lu", &size, &resident), 2);
	fclose(f);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

#define SHREDS 65536u
#define SHRED 1024u

/* Freed memory that lies between what is in use. */
Test(heap, of_an_idle_daemon_is_given_back)
{
	static char *shred[SHREDS];
	uint64_t most;

	begin_plain(0);
	for (unsigned k = 0; k < SHREDS; k++) {
		shred[k] = malloc(SHRED);
		cr_assert_not_null(shred[k]);
		memset(shred[k], 1, SHRED);
	}
	for (unsigned k = 0; k < SHREDS; k++)
		if (k % 64)
			free(shred[k]);
	most = resident_bytes();
	read_direct(3, 700);
	for (unsigned ms = 0; resident_bytes() > most - SHREDS * SHRED / 2; ms++) {
		cr_assert_lt(ms, 60000, "what was freed stays");
		usleep(1000);
	}
	for (unsigned k = 0; k < SHREDS; k += 64)
		free(shred[k]);
	end();
}

#endif

/* ---- the flusher ---- */

static void *let_go_soon(void *arg)
{
	/* A check that waits for nothing is through by then; one that waits does so however long this takes. */
	usleep(50000);
	fault_let_go("store.write");
	return NULL;
}

/* It stores when it likes, and tests cannot tell when it does not. */
Test(flusher, is_awaited_by_checks, .timeout = 60)
{
	static char data[GAIA_CHUNK];
	pthread_t thread;

	begin_plain(CACHE_HOME_MIN);
	fault_hold("store.write");
	/* More than half of home. */
	for (unsigned k = 0; k < 3; k++)
		cr_assert_eq(cpu_write_direct(kf, data, GAIA_CHUNK, k * GAIA_CHUNK), 0);
	fault_await_held("store.write");
	cr_assert_eq(pthread_create(&thread, NULL, let_go_soon, NULL), 0);
	cache_check(rig->cache);
	pthread_join(thread, NULL);
	end();
}
