/*
 * cache_settings.c - budgets that change while the cache is at work (pagecache/settings.c).
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "cache_scene.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/root.h"
#include "pagecache/settings.h"
#include "pagecache/victim.h"

#define MIB (1ull << 20)
#define SIZE (12 * MIB)
#define ROUNDS 100u

static atomic_bool done;
static atomic_uint written;

static void set_home(uint64_t bytes)
{
	uint64_t beyond;

	cr_assert_eq(cache_set_home(rig->cache, bytes, bytes / 2, &beyond), 0);
}

static void set_device(uint64_t chunks)
{
	uint64_t beyond;

	cr_assert_eq(cache_set_device(rig->cache, 0, chunks * GAIA_CHUNK, &beyond), 0);
}

static uint64_t home_used(void)
{
	return rig_frames(rig) * GAIA_PAGE;
}

Test(cache_settings, limits_are_those_that_it_was_made_for)
{
	uint64_t beyond;

	begin(&(struct rig_options){ .devices = 1, .host = true }, SIZE);
	cr_assert_eq(cache_set_home(rig->cache, 4 * MIB, 2 * MIB, &beyond), -ERANGE);
	cr_assert_eq(cache_set_home(rig->cache, 66 * MIB, 2 * MIB, &beyond), -ERANGE);
	cr_assert_eq(cache_set_device(rig->cache, 0, 9 * GAIA_CHUNK, &beyond), -ERANGE);
	cr_assert_eq(cache_set_device(rig->cache, 0, GAIA_CHUNK - 1, &beyond), -ERANGE);
	set_home(64 * MIB);
	set_device(8);
	end();
}

/* Nor is it waited for. */
Test(cache_settings, what_cannot_be_stored_stays_beyond_a_smaller_home)
{
	char *bytes = malloc(SIZE), *read = malloc(SIZE);

	begin(&(struct rig_options){ .devices = 1, .host = true }, SIZE);
	memset(bytes, 'd', SIZE);
	fault_arm("store.write", -EIO, 0, 0);
	cr_assert_eq(cpu_write_direct(kf, bytes, SIZE, 0), 0);
	set_home(8 * MIB);
	settings_trim(rig->cache);
	cr_assert_geq(home_used(), SIZE);
	cr_assert_eq(cpu_read_direct(kf, read, SIZE, 0), (ssize_t)SIZE);
	cr_assert_eq(memcmp(read, bytes, SIZE), 0);
	fault_disarm_all();
	while (home_used() > 8 * MIB)
		settings_trim(rig->cache);
	cr_assert_eq(cpu_read_direct(kf, read, SIZE, 0), (ssize_t)SIZE);
	cr_assert_eq(memcmp(read, bytes, SIZE), 0);
	free(bytes);
	free(read);
	end();
}

/* Reads everything again and again, until pages are parked. */
static void park(uint64_t bytes)
{
	char *read = malloc(MIB);

	while (victim_bytes(&rig->cache->dev[0]) < bytes)
		for (uint64_t off = 0; off < SIZE; off += MIB)
			cr_assert_eq(cpu_read_direct(kf, read, MIB, off), (ssize_t)MIB);
	free(read);
}

Test(cache_settings, parked_pages_count_in_a_smaller_budget)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_cache = CACHE_DEVICE_AUTO, .home_bytes = 8 * MIB }, SIZE);
	park(4 * GAIA_CHUNK);
	set_device(5);
	while (victim_bytes(&rig->cache->dev[0]) > 5 * GAIA_CHUNK)
		settings_trim(rig->cache);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_leq(rig_device_used(rig, 0) + victim_bytes(&rig->cache->dev[0]), 5 * GAIA_CHUNK);
	cr_assert_eq(client_release(cl, 0, 4 * GAIA_CHUNK), 0);
	end();
}

Test(cache_settings, a_device_that_is_taken_away_gives_back_what_it_has)
{
	struct cache_user user = { .uid = 1, .owner = true };
	struct mapping *m;
	struct client *cl;
	uint64_t left;
	bool fresh;

	begin(&(struct rig_options){ .devices = 2, .device_cache = CACHE_DEVICE_AUTO }, SIZE);
	cl = new_client(0);
	write_device(cl, 0, "held");
	write_device(cl, GAIA_CHUNK, "released");
	cr_assert_eq(client_release(cl, GAIA_CHUNK, GAIA_CHUNK), 0);
	cr_assert_eq(cache_device_off(rig->cache, 0, &left), 0);
	cr_assert_eq(left, 2 * GAIA_CHUNK);
	while (rig_device_used(rig, 0) > GAIA_CHUNK)
		settings_trim(rig->cache);
	expect_cpu(GAIA_CHUNK, "released");
	/* Nothing comes to it any more, also not what is there already. */
	cr_assert_eq(client_acquire(cl, 0, 4096, GAIA_PROT_READ), -ENODEV);
	cr_assert_eq(client_acquire(cl, GAIA_CHUNK, 4096, GAIA_PROT_RW), -ENODEV);
	cr_assert_eq(cache_map(kf->cfile, 0, NULL, user, 77, GAIA_PROT_RW, true, 0, GAIA_CHUNK, &m), -ENODEV);
	cr_assert_eq(cache_pin(kf->cfile, 0, user, &fresh), -ENODEV);
	cr_assert_eq(cache_bring(kf->cfile, 0, user, 0, GAIA_CHUNK, false, NULL), -ENODEV);
	cr_assert_eq(cache_room(rig->cache, 0), 0);
	settings_trim(rig->cache);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	/* What is held is the program's until it releases it. */
	client_store(cl, "HELD", 4, 0);
	cr_assert_eq(client_release(cl, 0, GAIA_CHUNK), 0);
	while (rig_device_used(rig, 0) > 0)
		settings_trim(rig->cache);
	expect_cpu(0, "HELD");
	/* And back. */
	set_device(4);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	release_all(cl);
	end();
}

/* Also from a program for which pages are ready, which need not ask for each acquire; and that acquires before it has released all. */
Test(cache_settings, nothing_is_ready_on_a_device_that_is_off)
{
	struct client *cl;
	uint64_t left;

	begin_devices(1);
	cl = new_client(0);
	for (unsigned k = 0; k < 2; k++) {
		cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
		if (k == 0)
			release_all(cl);
	}
	cr_assert_eq(cache_device_off(rig->cache, 0, &left), 0);
	settings_trim(rig->cache);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), -ENODEV);
	release_all(cl);
	while (rig_device_used(rig, 0) > 0)
		settings_trim(rig->cache);
	end();
}

/* Room for it was promised before; the program's device runs on what is brought. */
Test(cache_settings, an_acquire_that_was_started_is_finished)
{
	struct client *cl;
	uint64_t left;

	begin_devices(1);
	write_cpu(0, "brought");
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ | GAIA_PROT_PIN), 0);
	cr_assert_eq(cache_device_off(rig->cache, 0, &left), 0);
	cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ | GAIA_PROT_PINNED), 0);
	cr_assert_eq(memcmp(client_at(cl, 0), "brought", 7), 0);
	cr_assert_eq(client_release(cl, 0, 2 * GAIA_CHUNK), 0);
	client_end(cl);
	while (rig_device_used(rig, 0) > 0)
		settings_trim(rig->cache);
	end();
}

static int in_flight;

static void *acquire_one(void *arg)
{
	in_flight = client_acquire(arg, 0, GAIA_CHUNK, GAIA_PROT_RW);
	return NULL;
}

/* Whoever takes it out of the machine relies on it. */
Test(cache_settings, what_is_empty_stays_empty)
{
	struct client *cl;
	pthread_t thread;
	uint64_t left;

	begin_devices(1);
	cl = new_client(0);
	fault_hold("device.alloc");
	cr_assert_eq(pthread_create(&thread, NULL, acquire_one, cl), 0);
	fault_await_held("device.alloc");
	cr_assert_eq(cache_device_off(rig->cache, 0, &left), 0);
	cr_assert_eq(left, GAIA_CHUNK);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	fault_let_go("device.alloc");
	pthread_join(thread, NULL);
	cr_assert_eq(in_flight, -ENODEV);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

static void take_away(void *arg, struct client *cl, uint64_t index)
{
	uint64_t left;

	(void)arg;
	(void)cl;
	(void)index;
	cr_assert_eq(cache_device_off(rig->cache, 0, &left), 0);
}

Test(cache_settings, an_acquire_that_waits_for_room_hears_that_the_device_is_off)
{
	struct client *full, *waits;
	struct kfile *other;

	begin(&(struct rig_options){ .devices = 1 }, 8 * GAIA_CHUNK);
	other = kfile_create(rig, 2, 8 * GAIA_CHUNK);
	full = client_create(kf, 0, GAIA_PROT_RW, 8 * GAIA_CHUNK);
	for (unsigned k = 0; k < 8; k++)
		write_device(full, k * GAIA_CHUNK, "x");
	cr_assert_eq(client_release(full, 0, 8 * GAIA_CHUNK), 0);
	waits = client_create(other, 0, GAIA_PROT_RW, 8 * GAIA_CHUNK);
	rig->before_revoke = take_away;
	cr_assert_eq(client_acquire(waits, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW), -ENODEV);
	rig->before_revoke = NULL;
	for (unsigned k = 0; k < 8; k++)
		expect_cpu(k * GAIA_CHUNK, "x");
	end();
}

/* Nobody can unpin a file without a name, and no user holds up the owner. */
Test(cache_settings, pins_of_users_do_not_keep_a_device)
{
	struct cache_user user = { .uid = 1000 }, owner = { .uid = 0, .owner = true };
	struct kfile *other;
	uint64_t left;
	bool fresh;

	begin(&(struct rig_options){ .devices = 1, .files_user_percent = 50 }, GAIA_CHUNK);
	other = kfile_create(rig, 2, GAIA_CHUNK);
	cr_assert_eq(cache_pin(kf->cfile, 0, user, &fresh), 0);
	cr_assert_eq(cache_pin(other->cfile, 0, owner, &fresh), 0);
	cr_assert_eq(cache_device_off(rig->cache, 0, &left), -EBUSY);
	cr_assert_eq(cache_pinned(kf->cfile, 0), GAIA_CHUNK);
	cfile_set_gone(other->cfile, true);
	cr_assert_eq(cache_device_off(rig->cache, 0, &left), 0);
	/* It may be undone yet. */
	cr_assert_eq(cache_pinned(kf->cfile, 0), GAIA_CHUNK);
	cache_device_unpin(rig->cache, 0);
	cr_assert_eq(cache_pinned(kf->cfile, 0), 0);
	cr_assert_eq(cache_pinned(other->cfile, 0), 0);
	while (rig_device_used(rig, 0) > 0)
		settings_trim(rig->cache);
	end();
}

/* They were put there to stay. */
Test(cache_settings, a_device_with_pinned_files_is_not_taken_away)
{
	struct cache_user user = { .uid = 1, .owner = true };
	uint64_t left;
	bool fresh;

	begin(&(struct rig_options){ .devices = 1 }, 4 * GAIA_CHUNK);
	cr_assert_eq(cache_pin(kf->cfile, 0, user, &fresh), 0);
	cr_assert_eq(cache_device_off(rig->cache, 0, &left), -EBUSY);
	cr_assert_eq(cache_unpin(kf->cfile, 0, user), 0);
	cr_assert_eq(cache_device_off(rig->cache, 0, &left), 0);
	while (rig_device_used(rig, 0) > 0)
		settings_trim(rig->cache);
	end();
}

/* Each thread has a part of the file for itself, and finds there what it wrote. */
#define DEVICES_PART (4 * GAIA_CHUNK)
#define BLOCK (64u * 1024)

static void *use_cpu(void *arg)
{
	char *bytes = malloc(BLOCK), *read = malloc(BLOCK);
	uint64_t n = 0;

	(void)arg;
	for (; !atomic_load(&done); n++) {
		uint64_t off = DEVICES_PART + n % ((SIZE - DEVICES_PART) / BLOCK) * BLOCK;

		memset(bytes, (int)n, BLOCK);
		cr_assert_eq(cpu_write_direct(kf, bytes, BLOCK, off), 0);
		cr_assert_eq(cpu_read_direct(kf, read, BLOCK, off), (ssize_t)BLOCK);
		cr_assert_eq(memcmp(read, bytes, BLOCK), 0);
		atomic_fetch_add(&written, 1);
	}
	free(bytes);
	free(read);
	return NULL;
}

static void *use_device(void *arg)
{
	struct client *cl = arg;
	unsigned char byte[4] = { 0 }, read;
	int err;

	for (unsigned n = 1; !atomic_load(&done); n++) {
		uint64_t chunk = n % 4;

		err = client_acquire(cl, chunk * GAIA_CHUNK, GAIA_CHUNK, GAIA_PROT_RW);
		cr_assert(!err || err == -ENOMEM || err == -ENODEV, "%d", err);
		if (err)
			continue;
		client_load(cl, &read, 1, chunk * GAIA_CHUNK + 5);
		cr_assert_eq(read, byte[chunk]);
		byte[chunk] = (unsigned char)n;
		client_store(cl, &byte[chunk], 1, chunk * GAIA_CHUNK + 5);
		cr_assert_eq(client_release(cl, chunk * GAIA_CHUNK, GAIA_CHUNK), 0);
	}
	for (uint64_t chunk = 0; chunk < 4; chunk++) {
		cr_assert_eq(cpu_read(kf, &read, 1, chunk * GAIA_CHUNK + 5), 1);
		cr_assert_eq(read, byte[chunk]);
	}
	return NULL;
}

Test(cache_settings, budgets_change_while_pages_come_and_go)
{
	pthread_t cpu, device;
	uint64_t left;

	begin(&(struct rig_options){ .devices = 1, .device_cache = CACHE_DEVICE_AUTO, .host = true }, SIZE);
	cr_assert_eq(pthread_create(&device, NULL, use_device, new_client(0)), 0);
	cr_assert_eq(pthread_create(&cpu, NULL, use_cpu, NULL), 0);
	for (unsigned k = 0; k < ROUNDS; k++) {
		set_home(k % 2 ? 64 * MIB : 8 * MIB);
		if (k % 5 == 4)
			cr_assert_eq(cache_device_off(rig->cache, 0, &left), 0);
		else
			set_device(k % 3 ? 8 : 1);
		settings_trim(rig->cache);
		while (atomic_load(&written) <= k)
			sched_yield();
	}
	atomic_store(&done, true);
	pthread_join(cpu, NULL);
	pthread_join(device, NULL);
	set_home(8 * MIB);
	set_device(2);
	while (home_used() > 8 * MIB || rig_device_used(rig, 0) > 2 * GAIA_CHUNK)
		settings_trim(rig->cache);
	end();
}

/* Home's memory, of which there was some before and comes more, is what they are filled from. */
Test(cache_settings, a_device_that_is_added_is_as_the_others)
{
	struct cache_user user = { .uid = 1, .owner = true };
	struct client *first, *second, *host;
	bool fresh;

	begin(&(struct rig_options){ .devices = 1, .added = 2, .host = true }, 4 * GAIA_CHUNK);
	write_cpu(0, "home's");
	first = new_client(0);
	write_device(first, GAIA_CHUNK, "the first's");
	release_all(first);
	cr_assert_eq(cache_devices(rig->cache), 1);
	cr_assert_eq(rig_add_device(rig), 1);
	cr_assert_eq(cache_devices(rig->cache), 2);
	second = new_client(1);
	expect_device(second, 0, "home's");
	expect_device(second, GAIA_CHUNK, "the first's");
	write_device(second, 2 * GAIA_CHUNK, "the second's");
	release_all(second);
	expect_device(first, 2 * GAIA_CHUNK, "the second's");
	expect_cpu(2 * GAIA_CHUNK, "the second's");
	/* The host is the same as before. */
	host = new_client(2);
	expect_device(host, 2 * GAIA_CHUNK, "the second's");
	release_all(host);
	release_all(first);
	/* A file that is pinned there, and what is evicted from there, go by the number, too. */
	cr_assert_eq(cache_bring(kf->cfile, 1, user, 0, 4 * GAIA_CHUNK, false, NULL), 0);
	cr_assert_eq(rig_device_used(rig, 1), 4 * GAIA_CHUNK);
	cr_assert_eq(cache_evict(kf->cfile, 1, 0, 4 * GAIA_CHUNK), 0);
	cr_assert_eq(rig_device_used(rig, 1), 0);
	cr_assert_eq(cache_pin(kf->cfile, 1, user, &fresh), 0);
	cr_assert_eq(cache_pinned(kf->cfile, 1), 4 * GAIA_CHUNK);
	cr_assert_eq(cache_pinned(kf->cfile, 0), 0);
	end();
}

/* Consistency, promise 6: whichever was released first, and wherever the device is in the cache's table. */
Test(cache_settings, the_host_wins_races_also_with_a_device_that_was_added)
{
	struct client *device, *host;

	for (unsigned k = 0; k < 4; k++) {
		begin(&(struct rig_options){ .devices = 1, .added = 1, .host = true }, 4 * GAIA_CHUNK);
		write_cpu(0, ".");
		cr_assert_eq(rig_add_device(rig), 1);
		device = new_client(k % 2);
		host = new_client(2);
		write_device(device, 0, "D");
		write_device(host, 0, "H");
		release_all(k < 2 ? device : host);
		release_all(k < 2 ? host : device);
		expect_cpu(0, "H");
		end();
	}
}

Test(cache_settings, devices_are_added_while_pages_come_and_go)
{
	struct client *cl;
	pthread_t cpu, device;
	unsigned number;

	begin(&(struct rig_options){ .devices = 1, .added = 5, .device_cache = CACHE_DEVICE_AUTO, .host = true }, SIZE);
	cr_assert_eq(pthread_create(&device, NULL, use_device, new_client(0)), 0);
	cr_assert_eq(pthread_create(&cpu, NULL, use_cpu, NULL), 0);
	for (unsigned k = 0; k < ROUNDS; k++) {
		set_home(k % 2 ? 64 * MIB : 8 * MIB);
		settings_trim(rig->cache);
		frames_trim(&rig->cache->frames, true);
		if (k % 20 == 10) {
			number = rig_add_device(rig);
			cl = client_create(kf, number, GAIA_PROT_READ, 4 * GAIA_CHUNK);
			cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
			cr_assert_eq(client_release(cl, 0, 4 * GAIA_CHUNK), 0);
			client_end(cl);
		}
		while (atomic_load(&written) <= k)
			sched_yield();
	}
	atomic_store(&done, true);
	pthread_join(cpu, NULL);
	pthread_join(device, NULL);
	cr_assert_eq(cache_devices(rig->cache), 6);
	end();
}

/* ---- what devices hear of home's memory ---- */

#define HEARERS 4u
#define SLABS 200u
#define VACANT 4u

/* A device that only hears: of which memory, never twice. */
struct hearer {
	struct device device;
	pthread_mutex_t lock;
	const void *at[2 * SLABS];
	unsigned n;
};

static void hear(struct device *dev, void *slab, enum host_slab what)
{
	struct hearer *h = container_of(dev, struct hearer, device);
	unsigned k = 0;

	pthread_mutex_lock(&h->lock);
	while (k < h->n && h->at[k] != slab)
		k++;
	if (what == HOST_SLAB_GOES) {
		cr_assert_lt(k, h->n, "memory goes that never came");
		h->at[k] = h->at[--h->n];
	} else {
		cr_assert_eq(k, h->n, "memory comes twice");
		cr_assert_lt(h->n, 2 * SLABS);
		h->at[h->n++] = slab;
	}
	pthread_mutex_unlock(&h->lock);
}

static void take_slabs(struct frames *fr, frame_t *frame, unsigned n)
{
	for (unsigned k = 0; k < n; k++)
		cr_assert_eq(frames_take(fr, GAIA_CHUNK_PAGES, frame + k * GAIA_CHUNK_PAGES, true), GAIA_CHUNK_PAGES);
}

static void *take_and_give(void *arg)
{
	static frame_t frame[4 * VACANT * GAIA_CHUNK_PAGES];
	struct frames *fr = arg;

	while (!atomic_load(&done)) {
		take_slabs(fr, frame, 4 * VACANT);
		(void)frames_give(fr, frame, 4 * VACANT * GAIA_CHUNK_PAGES);
		frames_trim(fr, true);
		atomic_fetch_add(&written, 1);
	}
	return NULL;
}

Test(cache_settings, a_device_that_is_added_hears_of_all_memory_once)
{
	static frame_t frame[SLABS * GAIA_CHUNK_PAGES];
	static struct hearer hearer[HEARERS];
	static struct cache_device table[HEARERS];
	static const struct device_ops ops = { .name = "hearer", .host_slab = hear };
	struct frames fr = { .dev = table, .n_devices = 1 };
	pthread_t thread;

	for (unsigned k = 0; k < HEARERS; k++) {
		hearer[k].device.ops = &ops;
		pthread_mutex_init(&hearer[k].lock, NULL);
		table[k].dev = &hearer[k].device;
	}
	cr_assert_eq(frames_init(&fr, 2 * SLABS * (uint64_t)GAIA_CHUNK, 0), 0);
	take_slabs(&fr, frame, SLABS);
	cr_assert_eq(hearer[0].n, SLABS);
	/* Others come and go among the first and after the last. */
	(void)frames_give(&fr, frame, VACANT * GAIA_CHUNK_PAGES);
	frames_trim(&fr, true);
	cr_assert_eq(hearer[0].n, SLABS - VACANT);
	cr_assert_eq(pthread_create(&thread, NULL, take_and_give, &fr), 0);
	for (unsigned k = 1; k < HEARERS; k++) {
		while (atomic_load(&written) < 5 * k)
			sched_yield();
		cr_assert_eq(frames_add_device(&fr), 0);
	}
	atomic_store(&done, true);
	pthread_join(thread, NULL);
	for (unsigned k = 0; k < HEARERS; k++)
		cr_assert_eq(hearer[k].n, SLABS - VACANT, "%u: %u", k, hearer[k].n);
	(void)frames_give(&fr, frame + VACANT * GAIA_CHUNK_PAGES, (SLABS - VACANT) * GAIA_CHUNK_PAGES);
	frames_trim(&fr, true);
	for (unsigned k = 0; k < HEARERS; k++)
		cr_assert_eq(hearer[k].n, 0);
	frames_destroy(&fr);
}

static atomic_bool hung;

static void hear_and_hang(struct device *dev, void *slab, enum host_slab what)
{
	(void)dev;
	(void)slab;
	while (what == HOST_SLAB_GOES && atomic_load(&hung))
		sched_yield();
}

static void *trim_all(void *arg)
{
	frames_trim(arg, true);
	return NULL;
}

/* Neither for ever, nor by holding up those who need memory. */
Test(cache_settings, a_device_that_hangs_does_not_hold_up_who_adds_one)
{
	static frame_t frame[4 * GAIA_CHUNK_PAGES];
	static const struct device_ops ops = { .name = "hangs", .host_slab = hear_and_hang };
	static struct device device[2] = { { .ops = &ops }, { .ops = &ops } };
	static struct cache_device table[2] = { { .dev = &device[0] }, { .dev = &device[1] } };
	struct frames fr = { .dev = table, .n_devices = 1 };
	pthread_t thread;

	cr_assert_eq(frames_init(&fr, 64 * (uint64_t)GAIA_CHUNK, 0), 0);
	take_slabs(&fr, frame, 4);
	(void)frames_give(&fr, frame, 2 * GAIA_CHUNK_PAGES);
	atomic_store(&hung, true);
	cr_assert_eq(pthread_create(&thread, NULL, trim_all, &fr), 0);
	while (!pthread_rwlock_trywrlock(&fr.telling)) {
		pthread_rwlock_unlock(&fr.telling);
		sched_yield();
	}
	cr_assert_eq(frames_add_device(&fr), -EBUSY);
	take_slabs(&fr, frame, 2);
	atomic_store(&hung, false);
	pthread_join(thread, NULL);
	cr_assert_eq(frames_add_device(&fr), 0);
	(void)frames_give(&fr, frame, 4 * GAIA_CHUNK_PAGES);
	frames_trim(&fr, true);
	frames_destroy(&fr);
}
