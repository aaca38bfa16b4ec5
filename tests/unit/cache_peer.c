/*
 * cache_peer.c - pages that an acquire takes from another device: when it does, that they are the right bytes,
 * and that it goes by way of home where it must.
 */
#include <sys/mman.h>

#include "cache_scene.h"

#define PAGE(n) ((uint64_t)(n) * GAIA_PAGE)

static struct client *a, *b;
static uint64_t came, sent, failed, read_below;

static void begin_with(const struct rig_options *options)
{
	begin(options, 4 * GAIA_CHUNK);
	a = new_client(0);
	b = new_client(1);
}

static void begin_peers(void)
{
	begin_with(&(struct rig_options){ .devices = 2 });
}

static void note_counters(void)
{
	came = counter_value(CTR_device_to_device);
	sent = counter_value(CTR_home_to_device);
	failed = counter_value(CTR_peer_failures);
	read_below = counter_value(CTR_storage_reads);
}

/* Since note_counters(): so many pages came from a device, so many from home, so many copies failed. */
#define expect_copies(from_device, from_home, failures)                                    \
	do {                                                                               \
		cr_assert_eq(counter_value(CTR_device_to_device) - came, from_device);     \
		cr_assert_eq(counter_value(CTR_home_to_device) - sent, from_home);         \
		cr_assert_eq(counter_value(CTR_peer_failures) - failed, failures);         \
	} while (0)

/* Device 0 has the first @n pages as home has them; each says in words which it is. */
static void give_to_a(unsigned n)
{
	char text[16];

	for (unsigned i = 0; i < n; i++) {
		snprintf(text, sizeof(text), "page %02u", i);
		write_cpu(PAGE(i), text);
	}
	cr_assert_eq(client_acquire(a, 0, PAGE(n), GAIA_PROT_READ), 0);
	note_counters();
}

static void expect_pages(struct client *cl, unsigned n)
{
	char text[16], seen[16] = "";

	for (unsigned i = 0; i < n; i++) {
		snprintf(text, sizeof(text), "page %02u", i);
		client_load(cl, seen, 7, PAGE(i));
		cr_assert_str_eq(seen, text);
	}
}

/* Acquired, and held. */
static void read_page(struct client *cl, unsigned page)
{
	cr_assert_eq(client_acquire(cl, PAGE(page), GAIA_PAGE, GAIA_PROT_READ), 0);
}

/* A copy of device 1 from device 0 was seen to arrive: what is counted now is no proof. */
static void make_proven(void)
{
	write_cpu(PAGE(600), "first");
	expect_device(a, PAGE(600), "first");
	expect_device(b, PAGE(600), "first");
	release_all(a);
	release_all(b);
	note_counters();
}

TestSuite(peer, .timeout = 60);

Test(peer, what_another_device_has_comes_from_there)
{
	begin_peers();
	give_to_a(40);
	cr_assert_eq(client_acquire(b, 0, PAGE(40), GAIA_PROT_RW), 0);
	expect_copies(40, 0, 0);
	expect_pages(b, 40);
	/* It is as if home had sent it: written, released, merged. */
	client_store(b, "device", 6, PAGE(3) + 100);
	write_cpu(PAGE(3) + 200, "cpu");
	release_all(b);
	expect_cpu(PAGE(3) + 100, "device");
	expect_cpu(PAGE(3) + 200, "cpu");
	expect_cpu(PAGE(3), "page 03");
	end();
}

Test(peer, what_no_device_has_comes_from_home)
{
	begin_peers();
	give_to_a(10);
	cr_assert_eq(client_acquire(b, 0, PAGE(30), GAIA_PROT_READ), 0);
	expect_copies(10, 20, 0);
	expect_pages(b, 10);
	end();
}

Test(peer, home_needs_not_have_it)
{
	begin_peers();
	give_to_a(8);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(rig_frames(rig), 0);
	note_counters();
	cr_assert_eq(client_acquire(b, 0, PAGE(8), GAIA_PROT_RW), 0);
	expect_copies(8, 0, 0);
	cr_assert_eq(rig_frames(rig), 0);
	cr_assert_eq(counter_value(CTR_storage_reads), read_below);
	expect_pages(b, 8);
	/* And it is the base of what the device writes, though home never had it since. */
	client_store(b, "device", 6, PAGE(5) + 100);
	write_cpu(PAGE(5) + 200, "cpu");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	release_all(b);
	expect_cpu(PAGE(5), "page 05");
	expect_cpu(PAGE(5) + 100, "device");
	expect_cpu(PAGE(5) + 200, "cpu");
	expect_device(a, PAGE(5) + 100, "device");
	end();
}

Test(peer, devices_that_do_not_reach_each_other_go_through_home)
{
	begin_with(&(struct rig_options){ .devices = 2, .no_peers = true });
	give_to_a(5);
	cr_assert_eq(client_acquire(b, 0, PAGE(5), GAIA_PROT_READ), 0);
	expect_copies(0, 5, 0);
	expect_pages(b, 5);
	end();
}

Test(peer, what_is_held_for_writing_is_not_looked_at)
{
	begin_peers();
	write_cpu(PAGE(1), "released");
	write_device(a, PAGE(1), "private!");
	note_counters();
	expect_device(b, PAGE(1), "released");
	expect_copies(0, 1, 0);
	end();
}

/* Merged home first; then the device has what home has, and sends it. */
Test(peer, what_was_released_is_merged_first)
{
	begin_peers();
	write_device(a, PAGE(1), "device");
	release_all(a);
	note_counters();
	expect_device(b, PAGE(1), "device");
	expect_copies(1, 0, 0);
	expect_cpu(PAGE(1), "device");
	end();
}

Test(peer, what_lacks_others_writes_is_not_taken)
{
	begin_peers();
	/* The release of one, merged with a write that it did not know. */
	write_device(a, PAGE(1), "device");
	write_cpu(PAGE(1) + 100, "cpu");
	release_all(a);
	note_counters();
	expect_device(b, PAGE(1) + 100, "cpu");
	expect_device(b, PAGE(1), "device");
	expect_copies(0, 1, 0);
	/* Older than what home has. */
	read_page(a, 2);
	write_cpu(PAGE(2), "newer");
	note_counters();
	expect_device(b, PAGE(2), "newer");
	expect_copies(0, 1, 0);
	end();
}

Test(peer, what_a_truncate_cut_is_not_taken)
{
	char zeros[GAIA_PAGE] = { 0 }, seen[GAIA_PAGE];

	begin_peers();
	give_to_a(3);
	release_all(a);
	cr_assert_eq(cpu_truncate(kf, PAGE(1) + 2), 0);
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
	note_counters();
	cr_assert_eq(client_acquire(b, 0, PAGE(3), GAIA_PROT_READ), 0);
	expect_copies(1, 2, 0);
	client_load(b, seen, GAIA_PAGE, PAGE(1));
	cr_assert_arr_eq(seen, "pa", 2);
	cr_assert_arr_eq(seen + 2, zeros, GAIA_PAGE - 2);
	client_load(b, seen, GAIA_PAGE, PAGE(2));
	cr_assert_arr_eq(seen, zeros, GAIA_PAGE);
	end();
}

/* A copy may show anything until it has landed. */
Test(peer, nothing_is_copied_over_what_clients_hold)
{
	begin_peers();
	read_page(b, 1);
	write_cpu(PAGE(1), "newer");
	expect_device(a, PAGE(1), "newer");
	note_counters();
	expect_device(b, PAGE(1), "newer");
	expect_copies(0, 1, 0);
	end();
}

/* What its client may scribble on is only ever filled. */
Test(peer, a_mapping_of_its_own_is_no_source)
{
	struct client *own;

	begin_with(&(struct rig_options){ .devices = 2, .always_writable = true });
	own = client_create(kf, 0, GAIA_PROT_READ, 4 * GAIA_CHUNK);
	write_cpu(PAGE(1), "right");
	expect_device(own, PAGE(1), "right");
	/* Its memory is its client's to change, whatever that asked for. */
	cr_assert_eq(mprotect(client_at(own, PAGE(1)), GAIA_PAGE, PROT_READ | PROT_WRITE), 0);
	client_store(own, "wrong", 5, PAGE(1));
	note_counters();
	expect_device(b, PAGE(1), "right");
	expect_copies(0, 1, 0);
	/* But it is filled as any. */
	read_page(own, 2);
	write_cpu(PAGE(3), "third");
	expect_device(b, PAGE(3), "third");
	note_counters();
	expect_device(own, PAGE(3), "third");
	expect_copies(1, 0, 0);
	end();
}

Test(peer, the_source_can_go_when_it_was_read)
{
	begin_peers();
	give_to_a(5);
	release_all(a);
	cr_assert_eq(client_acquire(b, 0, PAGE(5), GAIA_PROT_READ), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	expect_pages(b, 5);
	cr_assert_eq(client_acquire(a, 0, PAGE(5), GAIA_PROT_READ), 0);
	expect_copies(10, 0, 0);
	expect_pages(a, 5);
	end();
}

#ifdef GAIA_FAULTS
Test(peer, a_copy_that_fails_goes_through_home)
{
	begin_peers();
	make_proven();
	give_to_a(9);
	fault_arm("device.copy_peer", -EIO, 0, 1);
	cr_assert_eq(client_acquire(b, 0, PAGE(9), GAIA_PROT_RW), 0);
	expect_copies(0, 9, 1);
	expect_pages(b, 9);
	release_all(b);
	cache_check(rig->cache);
	/* It may work the next time. */
	write_cpu(PAGE(20), "again");
	expect_device(a, PAGE(20), "again");
	note_counters();
	expect_device(b, PAGE(20), "again");
	expect_copies(1, 0, 0);
	end();
}

Test(peer, a_device_that_is_out_of_reach_is_not_asked_again)
{
	begin_peers();
	give_to_a(9);
	fault_arm("device.copy_peer", -EHOSTUNREACH, 0, 1);
	cr_assert_eq(client_acquire(b, 0, PAGE(4), GAIA_PROT_READ), 0);
	expect_copies(0, 4, 1);
	cr_assert_eq(client_acquire(b, 0, PAGE(9), GAIA_PROT_READ), 0);
	expect_copies(0, 9, 1);
	expect_pages(b, 9);
	/* The other way is another matter. */
	write_cpu(PAGE(20), "back");
	expect_device(b, PAGE(20), "back");
	note_counters();
	expect_device(a, PAGE(20), "back");
	expect_copies(1, 0, 0);
	end();
}

Test(peer, what_arrives_wrong_is_not_used_and_not_asked_for_again)
{
	begin_peers();
	give_to_a(9);
	fault_arm("device.garble_peer", -EIO, 0, 0);
	cr_assert_eq(client_acquire(b, 0, PAGE(4), GAIA_PROT_RW), 0);
	expect_copies(0, 4, 1);
	expect_pages(b, 4);
	fault_disarm_all();
	cr_assert_eq(client_acquire(b, 0, PAGE(9), GAIA_PROT_RW), 0);
	expect_copies(0, 9, 1);
	expect_pages(b, 9);
	end();
}

/* Zeros are what a copy that did not happen may look like. */
Test(peer, pages_that_tell_nothing_prove_nothing)
{
	begin_peers();
	read_page(a, 1);
	note_counters();
	read_page(b, 1);
	expect_copies(1, 0, 0);
	give_to_a(1);
	fault_arm("device.garble_peer", -EIO, 0, 0);
	expect_device(b, 0, "page 00");
	expect_copies(0, 1, 1);
	end();
}

Test(peer, a_destination_that_fails_fails_the_acquire)
{
	begin_peers();
	give_to_a(2);
	fault_arm("device.copy_peer", -EIO, 0, 0);
	fault_arm("device.copy_in", -EIO, 0, 0);
	cr_assert_eq(client_acquire(b, 0, PAGE(2), GAIA_PROT_RW), -EIO);
	cache_check(rig->cache);
	fault_disarm_all();
	cr_assert_eq(client_acquire(b, 0, PAGE(2), GAIA_PROT_RW), 0);
	expect_pages(b, 2);
	end();
}

Test(peer, a_source_that_is_gone_is_not_asked)
{
	begin_peers();
	give_to_a(2);
	fault_arm("device.copy_in", -ENODEV, 0, 1);
	cr_assert_eq(client_acquire(a, PAGE(5), 1, GAIA_PROT_READ), -ENODEV);
	note_counters();
	cr_assert_eq(client_acquire(b, 0, PAGE(2), GAIA_PROT_READ), 0);
	expect_copies(0, 2, 0);
	expect_pages(b, 2);
	end();
}
#endif
