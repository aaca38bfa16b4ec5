/* cache_kept.c - what is kept for merges to come, as bases and as who wrote what, has its part of home and no more. */
#include "base/counters.h"
#include "base/fault.h"
#include "cache_scene.h"
#include "pagecache/cache.h"
#include "pagecache/coherence.h"
#include "pagecache/root.h"

#define HOME_PAGES (CACHE_HOME_MIN / GAIA_PAGE)
#define HELD_CHUNKS 14u /* more than three times what home has */

#define AT(page) ((uint64_t)(page) * GAIA_PAGE)

static void begin_kept(const struct rig_options *more)
{
	struct rig_options o = *more;

	o.home_bytes = CACHE_HOME_MIN;
	o.device_chunks = HELD_CHUNKS + 1;
	begin(&o, 16 * GAIA_CHUNK);
}

/* Of the chunk's first page, which the CPU changes elsewhere; and of one that nobody else changes. */
static uint64_t changed_at(unsigned chunk)
{
	return chunk * GAIA_CHUNK + 100;
}

static uint64_t own_at(unsigned chunk)
{
	return changed_at(chunk) + GAIA_CHUNK / 2;
}

static struct client *holds_all(unsigned device, char what)
{
	struct client *cl = client_create(kf, device, GAIA_PROT_RW, 16 * GAIA_CHUNK);

	cr_assert_eq(client_acquire(cl, 0, HELD_CHUNKS * GAIA_CHUNK, GAIA_PROT_RW), 0);
	for (unsigned k = 0; k < HELD_CHUNKS; k++) {
		client_store(cl, &what, 1, changed_at(k) + device);
		client_store(cl, &what, 1, own_at(k) + device);
	}
	return cl;
}

static void home_is_bounded(void)
{
	/* For one chunk at a time everything may be kept until its change is complete. */
	cr_assert_leq(atomic_load(&rig->cache->n_kept), HOME_PAGES / KEPT_SHARE + GAIA_CHUNK_PAGES);
	cr_assert_leq(rig_frames(rig), HOME_PAGES);
	cr_assert_eq(counter_value(CTR_home_overcommit), 0);
}

/* A byte each of pages that are held. */
static void change_all(bool direct)
{
	static char page[GAIA_CHUNK];

	for (unsigned k = 0; k < HELD_CHUNKS; k++) {
		memset(page, 'c', sizeof(page));
		/* Not where the devices write. */
		memset(page + 100, 0, 8);
		memset(page + 100 + GAIA_CHUNK / 2, 0, 8);
		cr_assert_eq((direct ? cpu_write_direct : cpu_write)(kf, page, GAIA_CHUNK, k * GAIA_CHUNK), 0);
		if (!direct)
			cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
		home_is_bounded();
	}
}

static void all_is_there(const char *devices)
{
	for (unsigned k = 0; k < HELD_CHUNKS; k++) {
		expect_cpu(changed_at(k), devices);
		expect_cpu(own_at(k), devices);
		expect_cpu(changed_at(k) - 4, "cccc");
		expect_cpu(changed_at(k) + 8, "cccc");
	}
}

static void twins_are_bounded(bool direct)
{
	struct client *cl;

	begin_kept(&(struct rig_options){ .devices = 1 });
	cl = holds_all(0, 'd');
	change_all(direct);
	cr_assert_gt(counter_value(CTR_twins_pulled), 0);
	cr_assert_eq(client_release(cl, 0, HELD_CHUNKS * GAIA_CHUNK), 0);
	all_is_there("d");
	cr_assert_eq(atomic_load(&rig->cache->n_kept), 0);
	end();
}

Test(kept, twins_of_what_is_written_directly_leave_room)
{
	twins_are_bounded(true);
}

Test(kept, twins_of_what_the_kernel_writes_back_leave_room)
{
	twins_are_bounded(false);
}

/*
 * Of a passthrough file home's bytes are the base, and CPU programs may change the store's: home has to keep what is held. A
 * user may have so much held, and no more.
 */
Test(kept, what_is_held_of_a_passthrough_file_leaves_room)
{
	struct client *cl, *other;
	unsigned held = 0;
	uint64_t frames;
	int err = 0;

	begin_kept(&(struct rig_options){ .devices = 1, .passthrough = true });
	rig->user = (struct cache_user){ .uid = 1 };
	cl = client_create(kf, 0, GAIA_PROT_RW, 16 * GAIA_CHUNK);
	while (held < HELD_CHUNKS && !err) {
		err = client_acquire(cl, held * GAIA_CHUNK, GAIA_CHUNK, GAIA_PROT_RW);
		held += !err;
	}
	cr_assert_eq(err, -ENOMEM);
	cr_assert_eq(held, 3, "three quarters of home, not %u chunks", held);
	frames = rig_frames(rig);
	cr_assert_leq(frames, HOME_PAGES - HOME_PAGES / 4);
	/* To read nothing has to stay. */
	cr_assert_eq(client_acquire(cl, 0, 8 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(counter_value(CTR_home_overcommit), 0);
	/* The owners of the mount are trusted. */
	rig->user.owner = true;
	other = client_create(kf, 0, GAIA_PROT_RW, 16 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(other, 4 * GAIA_CHUNK, GAIA_CHUNK, GAIA_PROT_RW), 0);
	client_store(cl, "d", 1, 100);
	cr_assert_eq(client_release(cl, 0, 16 * GAIA_CHUNK), 0);
	expect_store(100, "d");
	/* Some were acquired twice. */
	cr_assert_eq(client_release(cl, 0, 16 * GAIA_CHUNK), 0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_RW), 0);
	end();
}

/* Few twins are enough to keep writes apart: then pages of devices that ask for nothing are not touched. */
Test(kept, twins_that_find_room_stay)
{
	char seen;
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	write_device(cl, AT(7), "d");
	cr_assert_eq(cpu_write_direct(kf, "c", 1, AT(7) + 1), 0);
	client_load(cl, &seen, 1, AT(7) + 1);
	cr_assert_eq(seen, 0);
	cr_assert_eq(atomic_load(&rig->cache->n_kept), 1);
	release_all(cl);
	expect_cpu(AT(7), "dc");
	end();
}

/* What one device released is merged while another goes on writing: twins, and who wrote what. */
Test(kept, what_several_devices_need_leaves_room)
{
	struct client *one, *two;

	begin_kept(&(struct rig_options){ .devices = 2 });
	one = holds_all(0, '1');
	two = holds_all(1, '2');
	change_all(true);
	for (unsigned k = 0; k < HELD_CHUNKS; k++)
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
			client_store(one, "1", 1, k * GAIA_CHUNK + AT(i) + 100);
	cr_assert_eq(client_release(one, 0, HELD_CHUNKS * GAIA_CHUNK), 0);
	for (unsigned k = 0; k < HELD_CHUNKS; k++) {
		expect_cpu(changed_at(k), "1");
		cr_assert_eq(cpu_fsync(kf), 0);
		home_is_bounded();
	}
	cr_assert_eq(client_release(two, 0, HELD_CHUNKS * GAIA_CHUNK), 0);
	all_is_there("12");
	cr_assert_eq(atomic_load(&rig->cache->n_kept), 0);
	end();
}

/* Nothing of such a device is ever merged. */
Test(kept, twins_for_a_device_that_is_gone_go)
{
	begin_kept(&(struct rig_options){ .devices = 1 });
	(void)holds_all(0, 'd');
	fault_arm("device.pull", -ENODEV, 0, 0);
	change_all(true);
	expect_cpu(changed_at(1) - 4, "cccc");
	end();
}
