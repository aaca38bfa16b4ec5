/*
 * cache_detect.c - releases of clients that look for changes themselves (GAIA_PROT_TOLD): when their word is taken, that no device is
 * asked then, and what a wrong word can do.
 */
#include "base/counters.h"
#include "base/util.h"
#include "cache_acquires.h"
#include "pagecache/cache.h"

#define AT(page) ((uint64_t)(page) * GAIA_PAGE)
#define SIZE (4 * (uint64_t)GAIA_CHUNK)

static void begin_detecting(unsigned devices)
{
	begin(&(struct rig_options){ .devices = devices, .detects = true }, SIZE);
}

/* A client that does not look for changes. */
static struct client *new_plain(unsigned device)
{
	struct client *cl;

	rig->options.detects = false;
	cl = new_client(device);
	rig->options.detects = true;
	return cl;
}

static void acquire_page(struct client *cl, unsigned page)
{
	cr_assert_eq(client_acquire(cl, AT(page), GAIA_PAGE, GAIA_PROT_RW), 0);
}

static void store(struct client *cl, uint64_t off, const char *text)
{
	client_store(cl, text, strlen(text), off);
}

/* Release pages, and say of [told, told + n_told) that they have changed, whatever is so. */
static int release_saying(struct client *cl, unsigned page, unsigned n, unsigned told, unsigned n_told)
{
	struct gaia_list_range range = { AT(page), AT(n) }, says = { AT(told), AT(n_told) };

	client_push(cl, AT(page), AT(n));
	return cache_release_told(cl->mapping, &range, 1, &says, n_told > 0, false, &(bool){ false });
}

static struct {
	uint64_t operations, windows, released, detected, invalidated, compared;
} before;

static void counting_begins(void)
{
	before.operations = counter_value(CTR_device_operations);
	before.windows = counter_value(CTR_release_windows);
	before.released = counter_value(CTR_released_pages);
	before.detected = counter_value(CTR_detected_pages);
	before.invalidated = counter_value(CTR_kernel_invalidated);
}

#define since(what, counter) (counter_value(CTR_##counter) - before.what)

Test(told, pages_are_published_and_no_device_is_asked)
{
	struct client *cl;

	begin_detecting(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, SIZE, GAIA_PROT_RW), 0);
	store(cl, AT(1), "one");
	store(cl, AT(700), "far");
	counting_begins();
	release_all(cl);
	cr_assert_eq(since(operations, device_operations), 0);
	cr_assert_eq(since(windows, release_windows), 0);
	cr_assert_eq(since(released, released_pages), 2);
	cr_assert_eq(since(detected, detected_pages), 2);
	expect_cpu(AT(1), "one");
	expect_cpu(AT(700), "far");
	end();
}

Test(told, nothing_publishes_nothing)
{
	struct client *cl;

	begin_detecting(1);
	write_cpu(AT(1), "one");
	expect_cpu(AT(1), "one");
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, SIZE, GAIA_PROT_RW), 0);
	/* A silent store. */
	store(cl, AT(1), "one");
	counting_begins();
	release_all(cl);
	cr_assert_eq(since(released, released_pages), 0);
	cr_assert_eq(since(invalidated, kernel_invalidated), 0);
	cr_assert_eq(since(operations, device_operations), 0);
	end();
}

Test(told, pages_are_not_armed_again)
{
	struct client *cl;

	begin_detecting(1);
	cl = new_client(0);
	for (unsigned round = 0; round < 3; round++) {
		char text[2] = { (char)('a' + round) };

		/* Another copy of what was released: so there is nothing to secure. */
		expect_cpu(AT(1), round > 0 ? (char[2]){ (char)('a' + round - 1) } : (char[1]){ 0 });
		if (round > 0)
			counting_begins();
		acquire_page(cl, 1);
		store(cl, AT(1), text);
		release_all(cl);
	}
	cr_assert_eq(since(operations, device_operations), 0);
	expect_cpu(AT(1), "c");
	end();
}

/* The index says so, and the acquire need not look. */
Test(told, chunks_become_ready)
{
	struct client *cl;
	uint64_t ready;

	begin_detecting(1);
	cl = new_client(0);
	acquire_page(cl, 1);
	store(cl, AT(1), "a");
	release_all(cl);
	expect_cpu(AT(1), "a");
	cr_assert_eq(client_acquire(cl, 0, SIZE, GAIA_PROT_RW), 0);
	release_all(cl);
	ready = counter_value(CTR_acquires_ready);
	cr_assert_eq(client_acquire(cl, 0, SIZE, GAIA_PROT_RW), 0);
	cr_assert_eq(counter_value(CTR_acquires_ready) - ready, 1);
	store(cl, AT(2), "b");
	release_all(cl);
	expect_cpu(AT(2), "b");
	end();
}

Test(told, bytes_are_merged_with_others)
{
	struct client *cl, *other;

	begin_detecting(2);
	write_cpu(0, "......");
	cl = new_client(0);
	other = new_client(1);
	acquire_page(cl, 0);
	acquire_page(other, 0);
	store(cl, 0, "A");
	store(other, 2, "B");
	write_cpu(4, "c");
	release_all(cl);
	release_all(other);
	expect_cpu(0, "A.B.c.");
	end();
}

/* Two threads of a client, say. */
Test(told, what_stays_held_is_published_again)
{
	struct client *cl;

	begin_detecting(1);
	cl = new_client(0);
	acquire_page(cl, 0);
	acquire_page(cl, 0);
	store(cl, 0, "a");
	cr_assert_eq(client_release(cl, 0, GAIA_PAGE), 0);
	expect_cpu(0, "a");
	store(cl, 0, "b");
	cr_assert_eq(client_release(cl, 0, GAIA_PAGE), 0);
	expect_cpu(0, "b");
	end();
}

Test(told, bytes_beyond_the_end_are_dropped)
{
	struct client *cl;
	char seen[3];

	begin_detecting(1);
	cr_assert_eq(cpu_truncate(kf, 100), 0);
	write_cpu(96, "wxyz");
	cl = new_client(0);
	acquire_page(cl, 0);
	store(cl, 50, "in");
	store(cl, 200, "out");
	release_all(cl);
	expect_cpu(50, "in");
	cr_assert_arr_eq(client_at(cl, 200), "\0\0\0", 3);
	cr_assert_eq(cpu_truncate(kf, SIZE), 0);
	cr_assert_eq(cpu_read(kf, seen, 3, 200), 3);
	cr_assert_arr_eq(seen, "\0\0\0", 3);
	cr_assert_eq(client_acquire(cl, 200, 3, GAIA_PROT_READ), 0);
	cr_assert_arr_eq(client_at(cl, 200), "\0\0\0", 3);
	end();
}

/* ---- when the word is not taken ---- */

/* What this client compares with has the other's store in it. */
Test(not_taken, of_pages_that_others_write_too)
{
	struct client *a, *b;

	begin_detecting(1);
	a = new_client(0);
	b = new_client(0);
	acquire_page(a, 0);
	store(a, 0, "a");
	acquire_page(b, 0);
	client_die(a);
	/* It has found nothing changed: true, since it acquired the page. */
	cr_assert_eq(release_saying(b, 0, 1, 0, 0), 0);
	client_end(a);
	/* Published, like stores of the dead in pages that a live client holds. Had it not been, the device would have what nobody else has. */
	expect_cpu(0, "a");
	expect_device(b, 0, "a");
	end();
}

Test(not_taken, of_pages_that_others_changes_were_merged_into)
{
	struct client *cl, *reader;

	begin_detecting(1);
	write_cpu(0, "a");
	cl = new_client(0);
	reader = new_client(0);
	acquire_page(cl, 0);
	write_cpu(0, "x");
	expect_device(reader, 0, "x");
	/* It stores what was there when it acquired the page: over what it has been given since. */
	store(cl, 0, "a");
	release_all(cl);
	expect_cpu(0, "a");
	expect_device(reader, 0, "a");
	end();
}

Test(not_taken, of_pages_that_were_cut)
{
	struct client *cl;

	begin_detecting(1);
	write_cpu(0, "abcd");
	cl = new_client(0);
	acquire_page(cl, 0);
	cr_assert_eq(cpu_truncate(kf, 2), 0);
	cr_assert_eq(cpu_truncate(kf, SIZE), 0);
	write_cpu(2, "xy");
	cr_assert_eq(release_saying(cl, 0, 1, 0, 0), 0);
	expect_cpu(0, "abxy");
	expect_device(cl, 0, "abxy");
	end();
}

/* A client that looks for changes, and one for which the device does. */
Test(not_taken, from_clients_that_never_look)
{
	struct client *cl;

	begin_detecting(1);
	cl = new_plain(0);
	acquire_page(cl, 0);
	store(cl, 0, "a");
	cr_assert_eq(release_saying(cl, 0, 1, 0, 0), 0);
	expect_cpu(0, "a");
	end();
}

/* ---- beside clients for which the device looks ---- */

Test(beside, what_a_client_found_changed_is_armed_anew)
{
	struct client *cl, *plain;

	begin_detecting(1);
	write_cpu(0, "a");
	cl = new_client(0);
	plain = new_plain(0);
	/* Armed as "a", by the copy to the device. */
	acquire_page(cl, 0);
	store(cl, 0, "b");
	release_all(cl);
	expect_cpu(0, "b");
	acquire_page(plain, 0);
	store(plain, 0, "a");
	release_all(plain);
	expect_cpu(0, "a");
	end();
}

/* Pages that no client needed to be armed are armed for one that comes later. */
Test(beside, unchanged_pages_are_found_unchanged)
{
	struct client *cl, *plain;

	begin_detecting(1);
	cl = new_client(0);
	acquire_page(cl, 0);
	store(cl, 0, "b");
	release_all(cl);
	expect_cpu(0, "b");
	acquire_page(cl, 0);
	release_all(cl);
	plain = new_plain(0);
	acquire_page(plain, 0);
	counting_begins();
	release_all(plain);
	cr_assert_eq(since(released, released_pages), 0);
	acquire_page(plain, 0);
	store(plain, 0, "c");
	release_all(plain);
	expect_cpu(0, "c");
	end();
}

Test(beside, the_dead_publish_nothing)
{
	struct client *cl, *next;

	begin_detecting(1);
	write_cpu(0, "was");
	cl = new_client(0);
	acquire_page(cl, 0);
	store(cl, 0, "new");
	client_die(cl);
	client_end(cl);
	next = new_client(0);
	counting_begins();
	expect_device(next, 0, "was");
	release_all(next);
	acquire_page(next, 0);
	release_all(next);
	cr_assert_eq(since(released, released_pages), 0);
	expect_cpu(0, "was");
	end();
}

/* The other user's released bytes are in a snapshot meanwhile. */
Test(beside, the_dead_leave_what_was_released)
{
	struct client *cl;

	begin_detecting(1);
	cl = new_client(0);
	write_device(cl, 0, "old");
	release_all(cl);
	write_device(cl, 0, "new");
	client_die(cl);
	client_end(cl);
	expect_cpu(0, "old");
	end();
}

/* ---- on the host, where clients find stores: hints ---- */

static struct client *begin_on_host(void)
{
	begin(&(struct rig_options){ .devices = 1, .host = true, .detects = true }, SIZE);
	write_cpu(0, "abcd");
	return new_client(1);
}

Test(hints, are_compared_and_nothing_else_is)
{
	struct client *cl = begin_on_host();

	for (unsigned round = 0; round < 3; round++) {
		cr_assert_eq(client_acquire(cl, 0, SIZE, GAIA_PROT_RW), 0);
		store(cl, AT(3), (char[2]){ (char)('1' + round) });
		store(cl, AT(9), (char[2]){ (char)('1' + round) });
		counting_begins();
		before.compared = counter_value(CTR_compared_pages);
		release_all(cl);
		cr_assert_eq(since(compared, compared_pages), 2);
		cr_assert_eq(since(released, released_pages), 2);
		cr_assert_eq(since(detected, detected_pages), 0);
		cr_assert_eq(since(windows, release_windows), 1);
		expect_cpu(AT(3), (char[2]){ (char)('1' + round) });
		expect_cpu(AT(9), (char[2]){ (char)('1' + round) });
	}
	cr_assert_eq(client_acquire(cl, 0, SIZE, GAIA_PROT_RW), 0);
	before.compared = counter_value(CTR_compared_pages);
	release_all(cl);
	cr_assert_eq(since(compared, compared_pages), 0);
	end();
}

/* Once and again: what was compared is armed with what it was found to be. */
Test(hints, of_silent_stores_publish_nothing)
{
	struct client *cl = begin_on_host();

	acquire_page(cl, 0);
	store(cl, 0, "xbcd");
	cr_assert_eq(release_saying(cl, 0, 1, 0, 1), 0);
	expect_cpu(0, "xbcd");
	for (unsigned round = 0; round < 3; round++) {
		acquire_page(cl, 0);
		counting_begins();
		cr_assert_eq(release_saying(cl, 0, 1, 0, 1), 0);
		cr_assert_eq(since(released, released_pages), 0);
		cr_assert_eq(since(invalidated, kernel_invalidated), 0);
	}
	/* To overwrite arms nothing; what is acquired next is armed all the same, as for any client of the host. */
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_WRITE), 0);
	store(cl, 0, "over");
	release_all(cl);
	acquire_page(cl, 0);
	counting_begins();
	cr_assert_eq(release_saying(cl, 0, 1, 0, 1), 0);
	cr_assert_eq(since(released, released_pages), 0);
	expect_cpu(0, "over");
	end();
}

/* A lie hides a client's own stores, from whoever may not see them yet. */
Test(hints, that_are_not_given_publish_nothing)
{
	struct client *cl = begin_on_host();

	acquire_page(cl, 0);
	store(cl, 0, "lie!");
	counting_begins();
	cr_assert_eq(release_saying(cl, 0, 1, 0, 0), 0);
	cr_assert_eq(since(released, released_pages), 0);
	expect_cpu(0, "abcd");
	end();
}

Test(hints, are_not_needed_of_pages_that_two_hold)
{
	struct client *a = begin_on_host(), *b = new_client(1);

	acquire_page(a, 0);
	acquire_page(b, 0);
	store(b, 1, "B");
	store(a, 2, "A");
	/* By their own word neither has stored anything. */
	cr_assert_eq(release_saying(a, 0, 1, 0, 0), 0);
	cr_assert_eq(release_saying(b, 0, 1, 0, 0), 0);
	expect_cpu(0, "aBAd");
	end();
}

/* ---- wrong words ---- */

Test(wrong, ranges_change_nothing)
{
	struct client *cl;

	begin_detecting(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, AT(1), AT(2), GAIA_PROT_RW), 0);
	store(cl, AT(1), "a");
	cr_assert_eq(release_saying(cl, 1, 2, 0, 1), -EINVAL);
	cr_assert_eq(release_saying(cl, 1, 2, 2, 2), -EINVAL);
	cr_assert_eq(release_saying(cl, 1, 2, 5000, 1), -EINVAL);
	cr_assert_eq(release_saying(cl, 1, 2, 1, 1), 0);
	expect_cpu(AT(1), "a");
	end();
}

Test(wrong, lists_change_nothing)
{
	struct gaia_list_range apart[2] = { { AT(0), GAIA_PAGE }, { AT(2), GAIA_PAGE } }, between = { AT(0), AT(3) };
	struct client *cl;
	bool changed;

	begin_detecting(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, AT(3), GAIA_PROT_RW), 0);
	store(cl, AT(2), "a");
	cr_assert_eq(cache_release_told(cl->mapping, apart, 2, &between, 1, false, &changed), -EINVAL);
	between.offset = AT(2);
	between.length = GAIA_PAGE;
	cr_assert_eq(cache_release_told(cl->mapping, apart, 2, &between, 1, false, &changed), 0);
	cr_assert(changed);
	expect_cpu(AT(2), "a");
	release_all(cl);
	end();
}

Test(wrong, changes_of_what_is_not_held_are_none)
{
	struct client *cl, *holder;

	begin_detecting(1);
	write_cpu(0, "was");
	cl = new_client(0);
	holder = new_client(0);
	expect_device(cl, 0, "was");
	write_device(holder, 0, "new");
	counting_begins();
	cr_assert_eq(release_saying(cl, 0, 4, 0, 4), 0);
	cr_assert_eq(since(released, released_pages), 0);
	expect_cpu(0, "was");
	release_all(holder);
	expect_cpu(0, "new");
	end();
}

/* It loses its own stores, and nobody else's. */
Test(wrong, silence_loses_nothing_of_others)
{
	struct client *liar, *other;

	begin_detecting(2);
	write_cpu(0, "......");
	liar = new_client(0);
	other = new_client(1);
	acquire_page(liar, 0);
	acquire_page(other, 0);
	store(liar, 0, "L");
	store(other, 2, "B");
	write_cpu(4, "c");
	cr_assert_eq(release_saying(liar, 0, 1, 0, 0), 0);
	release_all(other);
	{
		char seen[6];

		cr_assert_eq(cpu_read(kf, seen, 6, 0), 6);
		cr_assert_eq(seen[2], 'B');
		cr_assert_eq(seen[4], 'c');
	}
	end();
}

/* All of it counts as changed, and its bytes are what they were. */
Test(wrong, too_much_publishes_no_wrong_byte)
{
	struct client *cl, *other;

	begin_detecting(2);
	write_cpu(0, "......");
	cl = new_client(0);
	other = new_client(1);
	cr_assert_eq(client_acquire(cl, 0, AT(4), GAIA_PROT_RW), 0);
	store(cl, 0, "A");
	write_device(other, 2, "B");
	release_all(other);
	write_cpu(4, "c");
	write_cpu(AT(1), "d");
	cr_assert_eq(release_saying(cl, 0, 4, 0, 4), 0);
	expect_cpu(0, "A.B.c.");
	expect_cpu(AT(1), "d");
	end();
}

Test(wrong, what_is_given_back_was_not_changed)
{
	struct gaia_list_range range = { 0, GAIA_PAGE };
	struct client *cl;
	bool changed;

	begin_detecting(1);
	cl = new_client(0);
	acquire_page(cl, 0);
	store(cl, 0, "a");
	acquire_page(cl, 0);
	/* Of the second acquire nothing was used. */
	cr_assert_eq(cache_release_told(cl->mapping, &range, 1, NULL, 0, true, &changed), 0);
	cr_assert_not(changed);
	release_all(cl);
	expect_cpu(0, "a");
	end();
}
