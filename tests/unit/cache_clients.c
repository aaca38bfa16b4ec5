/*
 * cache_clients.c - what clients may rely on beside others: threads of one client, clients that die or are disconnected,
 * clients of one device.
 */
#include "cache_acquires.h"

#include <sys/mman.h>

/* ---- threads of one client ---- */

/* The rig's client counts what it is given, and does not take what it has. */
Test(threads, are_handed_a_chunk_once)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire first = of_page(cl, 0), second = of_page(cl, 1), third = of_page(cl, 2);
	struct held giver = giving(&first), waiter = waiting(&second);

	held_begin(&giver);
	held_begin(&waiter);
	cr_assert_eq(cl->granted, 0);
	fault_let_go(waiter.point);
	cr_assert_eq(held_end(&giver), 0);
	cr_assert_eq(held_end(&waiter), 0);
	cr_assert_eq(cl->granted, 1);
	cr_assert_neq(first.seq, 0);
	cr_assert_eq(second.seq, first.seq, "it may not be used before that");
	/* A later acquire may come before the client's own thread, too. */
	cr_assert_eq(acquire(&third), 0);
	cr_assert_eq(third.seq, first.seq);
	release_all(cl);
	end();
}

/* Otherwise two could wait for each other's chunks. */
Test(threads, hand_over_what_is_theirs_before_they_wait)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire first = of_page(cl, 0), second = of_page(cl, 1);
	struct held giver = giving(&first), waiter = waiting(&second);

	second.len = 2 * GAIA_CHUNK;
	held_begin(&giver);
	held_begin(&waiter);
	cr_assert_eq(cl->granted, 2, "of three");
	cr_assert_eq(held_end(&giver), 0);
	cr_assert_eq(held_end(&waiter), 0);
	cr_assert_eq(cl->granted, 3);
	cr_assert_geq(second.seq, first.seq);
	release_all(cl);
	end();
}

/* A thread that waits tries it then. */
Test(threads, do_it_when_the_one_that_was_to_cannot)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire first = of_page(cl, 0), second = of_page(cl, 1);
	struct held giver = giving(&first), waiter = waiting(&second);

	giver.point = "device.export";
	fault_arm(giver.point, -EMFILE, 0, 1);
	held_begin(&giver);
	held_begin(&waiter);
	cr_assert_eq(held_end(&giver), -EMFILE);
	cr_assert_eq(held_end(&waiter), 0);
	cr_assert_eq(cl->granted, 1);
	release_all(cl);
	end();
}

/* ---- acquires count (contract, promise 12) ---- */

/* Two ranges that meet in a page, as threads have them: what is stored in the second outlives the first one's release. */
Test(holds, of_ranges_that_share_a_page_are_each_their_own)
{
	const uint64_t middle = GAIA_PAGE + GAIA_PAGE / 2;
	struct client *cl, *other;

	begin_devices(2);
	cl = new_client(0);
	other = new_client(1);
	cr_assert_eq(client_acquire(cl, 0, middle, GAIA_PROT_RW), 0);
	cr_assert_eq(client_acquire(cl, middle, GAIA_PAGE, GAIA_PROT_RW), 0);
	client_store(cl, "first", 5, GAIA_PAGE);
	cr_assert_eq(client_release(cl, 0, middle), 0);
	expect_cpu(GAIA_PAGE, "first");
	client_store(cl, "second", 6, middle);
	write_cpu(GAIA_PAGE, "cpu's");
	expect_device(other, GAIA_PAGE, "cpu's");
	/* Not published, and not lost. */
	expect_cpu(middle, "");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(client_release(cl, middle, GAIA_PAGE), 0);
	expect_cpu(GAIA_PAGE, "cpu's");
	expect_cpu(middle, "second");
	expect_device(other, middle, "second");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	end();
}

/* The strongest access is that of all, until the last hold is gone; what was released meanwhile is what a death leaves. */
Test(holds, are_for_writing_until_the_last_is_gone)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	write_device(cl, 0, "one");
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	release_all(cl);
	client_store(cl, "two", 3, 0);
	expect_cpu(0, "one");
	release_all(cl);
	expect_cpu(0, "two");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	release_all(cl);

	write_device(cl, 0, "six");
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	release_all(cl);
	client_store(cl, "bad", 3, 0);
	client_die(cl);
	expect_cpu(0, "six");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	expect_cpu(0, "six");
	end();
}

/* Without memory for a snapshot what is released, and goes on being written, comes home. */
Test(holds, that_go_on_need_no_room_on_the_device)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 1 }, GAIA_CHUNK);
	cl = client_create(kf, 0, GAIA_PROT_RW, GAIA_CHUNK);
	write_device(cl, 0, "one");
	write_device(cl, 0, "two");
	cr_assert_eq(client_release(cl, 0, GAIA_CHUNK), 0);
	client_store(cl, "bad", 3, 0);
	expect_cpu(0, "two");
	client_die(cl);
	expect_cpu(0, "two");
	end();
}

static int release_first_page(void *cl)
{
	return client_release(cl, 0, GAIA_PAGE);
}

/* A release of pages that another thread is just acquiring takes none of its holds, whichever of the two ends first. */
static void released_beside_an_acquire(bool acquire_ends_first)
{
	struct client *cl, *other;

	begin_devices(1);
	cl = new_client(0);
	other = new_client(0);
	struct acquire a = of_page(cl, 0);
	struct held acquiring = giving(&a);
	struct held releasing = { .point = "release.before_publish", .call = release_first_page, .arg = cl };

	write_cpu(0, "abc");
	held_begin(&acquiring);
	held_begin(&releasing);
	if (acquire_ends_first)
		cr_assert_eq(held_end(&acquiring), 0);
	cr_assert_eq(held_end(&releasing), 0);
	if (!acquire_ends_first)
		cr_assert_eq(held_end(&acquiring), 0);
	cache_check(rig->cache);
	release_all(cl);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	/* Nor does anything keep what another one loses by dying. */
	write_device(other, 0, "bad");
	client_die(other);
	expect_device(cl, 0, "abc");
	end();
}

Test(holds, that_are_coming_are_not_released)
{
	released_beside_an_acquire(true);
	released_beside_an_acquire(false);
}

/* What was acquired beyond the end is its own acquire's, also while another one, by which the client gets the chunk, is under way. */
static void wanted_beside_an_acquire(bool fails)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1 }, GAIA_CHUNK);
	cl = client_create(kf, 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 2 * GAIA_CHUNK, GAIA_PAGE, GAIA_PROT_RW), 0);
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
	struct acquire a = { .cl = cl, .off = 2 * GAIA_CHUNK + GAIA_PAGE, .len = GAIA_PAGE };
	struct held giver = giving(&a);

	if (fails) {
		giver.point = "device.export";
		fault_arm(giver.point, -EMFILE, 0, 1);
	}
	held_begin(&giver);
	cr_assert_eq(client_release(cl, 2 * GAIA_CHUNK, GAIA_PAGE), 0);
	cr_assert_eq(held_end(&giver), fails ? -EMFILE : 0);
	if (!fails)
		cr_assert_eq(client_release(cl, 2 * GAIA_CHUNK + GAIA_PAGE, GAIA_PAGE), 0);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	end();
}

Test(holds, of_what_lay_beyond_the_end_are_released_beside_an_acquire)
{
	wanted_beside_an_acquire(false);
	wanted_beside_an_acquire(true);
}

/* A release that fails has ended all its holds, and lost nothing. */
Test(holds, end_also_where_a_release_fails)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	for (unsigned k = 0; k < 3; k++) {
		write_device(cl, k * GAIA_CHUNK, "new");
		/* Another thread's. */
		cr_assert_eq(client_acquire(cl, k * GAIA_CHUNK + GAIA_PAGE, 1, GAIA_PROT_READ), 0);
	}
	fault_arm("device.find_changed", -EIO, 1, 1);
	cr_assert_eq(client_release(cl, 0, 2 * GAIA_CHUNK + GAIA_PAGE - 1), -EIO);
	fault_disarm_all();
	cache_check(rig->cache);
	for (unsigned k = 0; k < 3; k++)
		expect_cpu(k * GAIA_CHUNK, "new");
	/* Of the last chunk a page was released. */
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(client_release(cl, 2 * GAIA_CHUNK + GAIA_PAGE, 1), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	end();
}

/* An acquire that fails adds none, and takes none of what there was. */
Test(holds, of_an_acquire_that_fails_are_none)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	fault_arm("device.copy_in", -EIO, 0, 1);
	cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_RW), -EIO);
	cache_check(rig->cache);
	/* Held for reading, as before: nothing is compared. */
	client_store(cl, "bad", 3, 0);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	expect_cpu(0, "");
	end();
}

Test(holds, of_a_page_are_so_many_and_no_more)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	for (unsigned k = 0; k < 65535; k++)
		cr_assert_eq(client_acquire(cl, GAIA_PAGE, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(cl, 0, 3 * GAIA_PAGE, GAIA_PROT_READ), -EOVERFLOW);
	cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW), -EOVERFLOW);
	cache_check(rig->cache);
	/* Nothing has changed: of the other pages of these ranges none is held. */
	for (unsigned k = 0; k < 65535; k++) {
		if (k % 5000 == 0)
			cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
		cr_assert_eq(client_release(cl, GAIA_PAGE, 1), 0);
	}
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* Spans are memory: a mapping that wants many asks for it, and gives it back. */
Test(holds, in_pieces_are_as_many_as_the_client_may_have)
{
	struct client *cl;
	uint64_t at = 4 * GAIA_PAGE;
	int err = 0;

	begin_devices(1);
	cl = new_client(0);
	cl->spans_allowed = 3;
	cr_assert_eq(client_acquire(cl, 0, 3 * GAIA_PAGE, GAIA_PROT_READ), 0);
	for (; !err; at += 2 * GAIA_PAGE) {
		cr_assert_lt(at, 4 * GAIA_CHUNK);
		err = client_acquire(cl, at, 1, GAIA_PROT_READ);
	}
	cr_assert_eq(err, -ENOSR);
	cr_assert_eq(cl->spans, 3);
	cr_assert_gt(at / (2 * GAIA_PAGE), 64);
	cache_check(rig->cache);
	/* Where it would have to be cut, a release changes nothing. */
	cr_assert_eq(client_release(cl, GAIA_PAGE, GAIA_PAGE), -ENOSR);
	cr_assert_eq(client_release(cl, 0, at), 0);
	cr_assert_eq(cl->spans, 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	/* Beyond the end they are counted, too. */
	cr_assert_eq(cpu_truncate(kf, 0), 0);
	for (at = 0, err = 0; !err; at += 2 * GAIA_PAGE)
		err = client_acquire(cl, at, 1, GAIA_PROT_READ);
	cr_assert_eq(err, -ENOSR);
	cr_assert_eq(cl->spans, 3);
	client_end(cl);
	end();
}

/* ---- threads of one client, and one that fails ---- */

#define LAST (GAIA_CHUNK - GAIA_PAGE) /* page of the first chunk */

/*
 * An acquire of the last page of the first chunk, and of the first one of the second, held where it has got the one
 * and brings the other, which will fail.
 */
static struct held failing(struct acquire *a)
{
	struct client *other = new_client(0);

	/* On the device already: not copied again. */
	cr_assert_eq(client_acquire(other, LAST, GAIA_PAGE, GAIA_PROT_READ), 0);
	release_all(other);
	*a = (struct acquire){ .cl = a->cl, .off = LAST, .len = 2 * GAIA_PAGE };
	fault_arm("device.copy_in", -EIO, 0, 1);
	return (struct held){ .point = "device.copy_in", .call = acquire, .arg = a };
}

/* "Nothing is acquired" is said of what it would have acquired, not of what others have. */
Test(threads, keep_what_they_acquired_when_another_one_fails)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire both = { .cl = cl }, one = of_page(cl, LAST / GAIA_PAGE);
	struct held loser = failing(&both);

	held_begin(&loser);
	cr_assert_eq(acquire(&one), 0);
	client_store(cl, "kept", 4, LAST);
	cr_assert_eq(held_end(&loser), -EIO);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, GAIA_CHUNK), -EBUSY);
	release_all(cl);
	expect_cpu(LAST, "kept");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* Two of the same pages, neither through yet; the first one fails, and the second one if @err. */
static void fail_before(int err)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire both = { .cl = cl }, one = of_page(cl, LAST / GAIA_PAGE);
	struct held loser = failing(&both);
	struct held other = { .point = "device.export", .call = acquire, .arg = &one };

	held_begin(&loser);
	if (err)
		fault_arm(other.point, err, 0, 1);
	held_begin(&other);
	cr_assert_eq(held_end(&loser), -EIO);
	cr_assert_eq(held_end(&other), err);
	if (!err) {
		client_store(cl, "kept", 4, LAST);
		release_all(cl);
		expect_cpu(LAST, "kept");
	}
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(threads, keep_what_they_are_acquiring_when_another_one_fails)
{
	fail_before(0);
}

Test(threads, hold_nothing_when_all_fail)
{
	fail_before(-EMFILE);
}

/* Holds that are acquired again after that belong to the thread that acquired them. */
Test(threads, may_release_what_another_one_is_acquiring)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire both = { .cl = cl };
	struct held loser = failing(&both);

	held_begin(&loser);
	cr_assert_eq(client_release(cl, LAST, GAIA_PAGE), 0);
	write_device(cl, LAST, "again");
	cr_assert_eq(held_end(&loser), -EIO);
	release_all(cl);
	expect_cpu(LAST, "again");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

static int release_page(void *client)
{
	return client_release(client, 0, GAIA_PAGE);
}

/* What one thread stored the other's release published: the client holds nothing any more, maybe not even the memory. */
static void release_twice(bool evicted)
{
	struct client *a;

	begin_devices(1);
	a = new_client(0);
	struct held first = { .point = "release.before_invalidate", .call = release_page, .arg = a };

	write_cpu(0, "old");
	write_cpu(GAIA_CHUNK, "past");
	write_device(a, 0, "new");
	write_device(a, GAIA_CHUNK, "mine");
	expect_cpu(GAIA_CHUNK, "past");
	held_begin(&first);
	if (evicted) {
		cr_assert_eq(client_release(a, GAIA_CHUNK, GAIA_PAGE), 0);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	}
	release_all(a);
	expect_cpu(0, "new");
	expect_cpu(GAIA_CHUNK, "mine");
	store_cpu(0, "NEW");
	cr_assert_eq(held_end(&first), 0);
	expect_cpu(0, "NEW");
	end();
}

Test(threads, releases_of_nothing_await_what_another_one_published)
{
	release_twice(false);
}

Test(threads, releases_of_evicted_memory_await_what_another_one_published)
{
	release_twice(true);
}

/* ---- very many ---- */

/* The count of those that hold a page does not overflow. */
Test(mappings, of_one_file_are_so_many_and_no_more)
{
	static struct mapping *m[CACHE_MAX_MAPPINGS + 1];
	struct client *cl;
	unsigned n = 0;

	begin_devices(1);
	cl = new_client(0);
	while (n < CACHE_MAX_MAPPINGS &&
	       !cache_map(kf->cfile, 0, cl, rig->user, 2 + n, GAIA_PROT_RW, true, 0, GAIA_PAGE, &m[n]))
		n++;
	cr_assert_eq(n, CACHE_MAX_MAPPINGS - 1, "the client has one already");
	cr_assert_eq(cache_map(kf->cfile, 0, cl, rig->user, 2 + n, GAIA_PROT_RW, true, 0, GAIA_PAGE, &m[n]), -EMFILE);
	while (n > 0)
		cache_unmap(m[--n], CACHE_UNMAPPED);
	end();
}

/* ---- death ---- */

/* The kernel kills its threads, but not the requests that they have made. */
Test(death, in_the_middle_of_a_release_does_not_take_back_what_that_publishes)
{
	struct client *dying, *heir;
	pthread_t thread;

	begin_devices(1);
	dying = new_client(0);
	heir = new_client(0);
	struct held release = { .point = "release.before_publish", .call = release_page, .arg = dying };
	struct acquire next = of_page(heir, 0);

	write_device(dying, 0, "released");
	held_begin(&release);
	client_die(dying);
	thread = begin_waiting(&next);
	cr_assert_eq(held_end(&release), 0);
	cr_assert_eq(end_waiting(thread), 0);
	expect_device(heir, 0, "released");
	client_end(dying);
	expect_cpu(0, "released");
	release_all(heir);
	end();
}

/* ---- those that are disconnected, and live ---- */

#define LATE (8 * GAIA_PAGE)

/* A client that has stored to the first chunk and released it; and where it goes on storing, when it is disconnected. */
static unsigned char *disconnected(struct client **cl)
{
	unsigned char *memory;

	*cl = new_client(0);
	write_device(*cl, LATE, "true");
	release_all(*cl);
	memory = mremap(client_at(*cl, 0), 0, GAIA_CHUNK, MREMAP_MAYMOVE);
	cr_assert_neq(memory, MAP_FAILED);
	client_die(*cl);
	(*cl)->kept = true;
	return memory;
}

Test(disconnected, store_to_memory_that_nobody_reads)
{
	struct client *a, *b;
	unsigned char *memory;

	begin_devices(1);
	memory = disconnected(&a);
	client_end(a);
	memcpy(memory + LATE, "lies", 4);
	forget_but_on_devices();
	expect_cpu(LATE, "true");
	b = new_client(0);
	memcpy(memory + LATE, "lies", 4);
	expect_device(b, LATE, "true");
	munmap(memory, GAIA_CHUNK);
	end();
}

/* As long as another one holds some of it it stays; but is not the file's any more. */
Test(disconnected, store_to_memory_that_goes_when_nobody_holds_it)
{
	struct client *a, *b, *other;
	unsigned char *memory;

	begin_devices(2);
	memory = disconnected(&a);
	b = new_client(0);
	other = new_client(1);
	cr_assert_eq(client_acquire(b, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	client_end(a);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	memcpy(memory + LATE, "lies", 4);
	forget_but_on_devices();
	expect_cpu(LATE, "true");
	forget_but_on_devices();
	expect_device(other, LATE, "true");
	release_all(b);
	expect_device(b, LATE, "true");
	munmap(memory, GAIA_CHUNK);
	end();
}

/* ---- memory of clients that are gone, which somebody has still ---- */

#define CALM (LATE + GAIA_PAGE) /* of a page that nobody changed: the device has what home has */

/* A client that left memory, and what it left. */
struct left {
	struct client *cl;
	unsigned char *memory;
	uint64_t fetched; /* pages, before it was gone */
};

static struct left leave_memory(const struct rig_options *options)
{
	struct left left;

	begin(options, 4 * GAIA_CHUNK);
	write_cpu(CALM, "calm");
	left.cl = new_client(0);
	expect_device(left.cl, CALM, "calm");
	write_device(left.cl, LATE, "true");
	release_all(left.cl);
	left.memory = mremap(client_at(left.cl, 0), 0, GAIA_CHUNK, MREMAP_MAYMOVE);
	cr_assert_neq(left.memory, MAP_FAILED);
	return left;
}

/* The client ends: its process, where children inherit its memory; elsewhere only its connection. */
static void leave(struct left *left)
{
	struct cache_device_use use;

	cache_device(rig->cache, 0, &use);
	left->fetched = counter_value(CTR_device_to_home);
	client_die(left->cl);
	left->cl->kept = !use.dev->inherited;
	client_end(left->cl);
}

static void lie(const struct left *left)
{
	memcpy(left->memory + LATE, "lies", 4);
	memcpy(left->memory + CALM, "lies", 4);
}

/* To devices, and to processes when a device has published what it found there. */
static void expect_no_lies(struct client *cl)
{
	expect_device(cl, LATE, "true");
	expect_device(cl, CALM, "calm");
	write_device(cl, LATE + 8, "x");
	write_device(cl, CALM + 8, "x");
	release_all(cl);
	forget_but_on_devices();
	expect_cpu(LATE, "true");
	expect_cpu(CALM, "calm");
}

static void left_end(struct left *left)
{
	munmap(left->memory, GAIA_CHUNK);
	end();
}

Test(left, memory_is_copied_on_the_device_and_nothing_crosses_the_bus)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b;
	uint64_t sent = counter_value(CTR_home_to_device);

	leave(&left);
	lie(&left);
	b = new_client(0);
	expect_device(b, LATE, "true");
	expect_device(b, CALM, "calm");
	cr_assert_eq(counter_value(CTR_device_renewed), 1);
	cr_assert_eq(counter_value(CTR_device_to_home), left.fetched);
	cr_assert_eq(counter_value(CTR_home_to_device), sent);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	expect_no_lies(b);
	lie(&left);
	expect_no_lies(b);
	left_end(&left);
}

Test(left, memory_is_taken_from_those_who_shared_it)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	expect_device(b, CALM, "calm");
	release_all(b);
	leave(&left);
	cr_assert_eq(atomic_load(&b->revoked), 1);
	cr_assert_null(client_at(b, 0));
	lie(&left);
	expect_no_lies(b);
	left_end(&left);
}

Test(left, memory_that_was_unmapped_stays)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	expect_device(b, CALM, "calm");
	client_end(left.cl);
	cr_assert_eq(counter_value(CTR_device_renewed), 0);
	cr_assert_eq(atomic_load(&b->revoked), 0);
	expect_device(b, LATE, "true");
	left_end(&left);
}

/* A snapshot of what was released is not where a client stores. */
Test(left, memory_falls_back_to_what_was_released)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });

	write_device(left.cl, LATE, "priv");
	write_device(left.cl, CALM, "priv");
	leave(&left);
	cr_assert_eq(counter_value(CTR_device_renewed), 1);
	lie(&left);
	expect_no_lies(new_client(0));
	left_end(&left);
}

Test(left, memory_goes_where_there_is_no_room_for_a_copy)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1, .device_chunks = 1 });

	leave(&left);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	cr_assert_eq(counter_value(CTR_device_renewed), 0);
	lie(&left);
	expect_no_lies(new_client(0));
	left_end(&left);
}

Test(left, memory_goes_where_it_cannot_be_copied)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });

	fault_arm("device.copy_within", -EIO, 0, 1);
	leave(&left);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	lie(&left);
	expect_no_lies(new_client(0));
	left_end(&left);
}

/* Clients that hold some of it keep it; what nobody held comes from home, and what they release goes there at once. */
Test(left, memory_that_is_held_is_not_trusted)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	cr_assert_eq(client_acquire(b, 0, GAIA_PAGE, GAIA_PROT_READ), 0);
	leave(&left);
	cr_assert_eq(counter_value(CTR_device_to_home), left.fetched + 1);
	cr_assert_eq(atomic_load(&b->revoked), 0);
	lie(&left);
	write_device(b, CALM + 8, "b's");
	write_device(b, LATE + 8, "b's");
	cr_assert_eq(client_release(b, LATE, 2 * GAIA_PAGE), 0);
	lie(&left);
	expect_cpu(LATE, "true");
	expect_cpu(CALM, "calm");
	expect_cpu(LATE + 8, "b's");
	expect_cpu(CALM + 8, "b's");
	expect_device(b, CALM, "calm");
	/* Of what b holds, nothing is brought: it may be using it. */
	lie(&left);
	cr_assert_eq(client_acquire(b, CALM, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(memcmp(client_at(b, CALM), "lies", 4), 0);
	release_all(b);
	release_all(b);
	expect_no_lies(b);
	cr_assert_eq(atomic_load(&b->revoked), 1);
	left_end(&left);
}

/* ---- clients of one device ---- */

/* Two that hold a page for writing, in which @a has stored: the other one's release. */
static struct held neighbours_release(struct client **a)
{
	struct client *b;

	begin_devices(1);
	*a = new_client(0);
	b = new_client(0);
	write_cpu(0, "old");
	write_device(*a, 0, "new");
	cr_assert_eq(client_acquire(b, 0, GAIA_PAGE, GAIA_PROT_RW), 0);
	return (struct held){ .point = "release.before_invalidate", .call = release_page, .arg = b };
}

/* The first release publishes what the other client stored there, too; once that is home the other's has nothing new. */
Test(neighbours, releases_do_not_return_before_the_kernel_lacks_old_bytes)
{
	struct client *a;
	struct held first = neighbours_release(&a);
	char seen[4] = "";

	expect_cpu(0, "old");
	held_begin(&first);
	cr_assert_eq(cpu_read_direct(kf, seen, 3, 0), 3);
	cr_assert_str_eq(seen, "new");
	cr_assert_eq(release_page(a), 0);
	expect_cpu(0, "new");
	/* Later than both: not a race. */
	write_cpu(0, "NEW");
	cr_assert_eq(held_end(&first), 0);
	expect_cpu(0, "NEW");
	end();
}

/* ... also where the device has been told since what is home, and so can tell that it is no news. */
Test(neighbours, releases_of_nothing_new_await_what_others_published)
{
	struct client *a;
	struct held first = neighbours_release(&a);

	store_cpu(64, "elsewhere");
	cr_assert_eq(kernel_writeback(kf, 0, GAIA_PAGE, 1), 0);
	held_begin(&first);
	expect_device(a, 64, "elsewhere");
	cr_assert_eq(release_page(a), 0);
	expect_cpu(0, "new");
	store_cpu(0, "NEW");
	cr_assert_eq(held_end(&first), 0);
	expect_cpu(0, "NEW");
	expect_cpu(64, "elsewhere");
	end();
}

/* What one stores between the comparison and the snapshot of the other's release is released with it, and so can be taken back. */
Test(neighbours, take_back_what_another_one_released_of_theirs)
{
	struct client *a, *b;

	begin_devices(1);
	a = new_client(0);
	b = new_client(0);
	struct held release = { .point = "device.copy_within", .call = release_page, .arg = a };

	write_cpu(0, "......");
	write_device(a, 0, "A");
	cr_assert_eq(client_acquire(b, 0, GAIA_PAGE, GAIA_PROT_RW), 0);
	held_begin(&release);
	client_store(b, "B", 1, 1);
	cr_assert_eq(held_end(&release), 0);
	expect_cpu(0, "AB....");
	/* Now the page is as it was when it was compared. */
	client_store(b, ".", 1, 1);
	release_all(b);
	expect_cpu(0, "A.....");
	end();
}

/* It need not, and where the kernel writes through it must not: it does not hold the inode's lock. */
Test(neighbours, releases_of_readers_leave_the_kernel_alone)
{
	struct client *writer, *reader;

	begin_devices(1);
	writer = new_client(0);
	reader = new_reader();
	struct held first = { .point = "release.before_invalidate", .call = release_page, .arg = writer };

	write_cpu(0, "old");
	write_device(writer, 0, "new");
	held_begin(&first);
	expect_device(reader, 0, "new");
	cr_assert(kernel_has(kf, 0));
	release_all(reader);
	cr_assert(kernel_has(kf, 0));
	cr_assert_eq(held_end(&first), 0);
	cr_assert(!kernel_has(kf, 0));
	end();
}

/* ---- acquires that are given up while they are under way ---- */

Test(given_up, leaves_nothing_behind)
{
	static const unsigned prots[] = { 0, GAIA_PROT_PIN };
	struct client *cl;

	begin_devices(1);
	write_cpu(0, "abc");
	cl = new_client(0);
	for (size_t k = 0; k < ARRAY_LEN(prots); k++) {
		struct acquire a = of_page(cl, k * GAIA_CHUNK_PAGES);
		struct held giver = giving(&a);

		a.prot = prots[k];
		held_begin(&giver);
		cr_assert(cache_decide(&a.verdict, CACHE_GIVEN_UP));
		cr_assert_eq(held_end(&giver), -EINTR);
		cr_assert_eq(a.verdict, CACHE_GIVEN_UP);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held, nor to come");
		cache_check(rig->cache);
	}
	expect_device(cl, 0, "abc");
	release_all(cl);
	end();
}

/* What was announced may come again. */
Test(given_up, keeps_the_room_that_it_came_for)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire a = of_page(cl, 0);

	a.prot = GAIA_PROT_PIN;
	cr_assert_eq(acquire(&a), 0);
	cr_assert_eq(a.verdict, CACHE_DONE);
	a.prot = GAIA_PROT_PINNED;
	a.verdict = CACHE_GIVEN_UP;
	cr_assert_eq(acquire(&a), -EINTR);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	a.verdict = CACHE_OPEN;
	cr_assert_eq(acquire(&a), 0);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(given_up, takes_nothing_from_another_thread)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire first = of_page(cl, 0), second = of_page(cl, 0);
	struct held giver = giving(&first), waiter = waiting(&second);

	held_begin(&giver);
	held_begin(&waiter);
	cr_assert(cache_decide(&first.verdict, CACHE_GIVEN_UP));
	cr_assert_eq(held_end(&giver), -EINTR);
	cr_assert_eq(held_end(&waiter), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	client_store(cl, "mine", 4, 10);
	release_all(cl);
	expect_cpu(10, "mine");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* Of pages that are held already one hold was added, which is one to take back, whatever is released meanwhile. */
static void gives_up_beside_a_hold(bool release_first)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	struct acquire held = of_page(cl, 0), both = { .cl = cl, .len = GAIA_CHUNK + GAIA_PAGE };
	struct held giver = giving(&both);

	cr_assert_eq(acquire(&held), 0);
	client_store(cl, "mine", 4, 10);
	held_begin(&giver);
	if (release_first)
		cr_assert_eq(client_release(cl, 0, GAIA_PAGE), 0);
	cr_assert(cache_decide(&both.verdict, CACHE_GIVEN_UP));
	cr_assert_eq(held_end(&giver), -EINTR);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, GAIA_CHUNK, GAIA_CHUNK), 0, "the second chunk is not held");
	if (!release_first) {
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, GAIA_CHUNK), -EBUSY, "the first one still is");
		cr_assert_eq(client_release(cl, 0, GAIA_PAGE), 0);
	}
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "it was once");
	expect_cpu(10, "mine");
	end();
}

Test(given_up, takes_back_what_it_added)
{
	gives_up_beside_a_hold(false);
	gives_up_beside_a_hold(true);
}

static void *give_up(void *verdict)
{
	(void)cache_decide(verdict, CACHE_GIVEN_UP);
	return NULL;
}

/* Whichever comes first, both sides know. */
Test(given_up, or_done_is_decided_once)
{
	unsigned done = 0;
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	for (unsigned i = 0; i < 500; i++) {
		struct acquire a = of_page(cl, 0);
		pthread_t thread;
		int err;

		rig_importers_gone();
		cr_assert_eq(pthread_create(&thread, NULL, give_up, &a.verdict), 0);
		err = acquire(&a);
		pthread_join(thread, NULL);
		cr_assert_eq(a.verdict, err ? CACHE_GIVEN_UP : CACHE_DONE);
		cr_assert(!err || err == -EINTR, "%d", err);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), err ? 0 : -EBUSY);
		done += !err;
		if (!err) {
			client_store(cl, &done, sizeof(done), 0);
			release_all(cl);
		}
	}
	cr_assert_eq(cpu_read(kf, &(unsigned){ 0 }, sizeof(done), 0), sizeof(done));
	cache_check(rig->cache);
	end();
}

static uint64_t amount(struct client *cl, enum client_amount of)
{
	uint64_t amounts[CLIENT_AMOUNT_COUNT] = { 0 };

	cache_mapping_amounts(cl->mapping, amounts);
	return amounts[of];
}

/* Beyond the file's end an acquire holds nothing that takes memory, however far it goes. */
Test(clients, have_what_the_file_has)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1 }, GAIA_CHUNK + 2 * GAIA_PAGE + 1);
	cl = client_create(kf, 0, GAIA_PROT_RW, 4 * GAIA_CHUNK);
	cr_assert_eq(amount(cl, CLIENT_device_bytes), 0);
	cr_assert_eq(client_acquire(cl, 0, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(amount(cl, CLIENT_pinned_bytes), GAIA_CHUNK + 3 * GAIA_PAGE);
	cr_assert_eq(amount(cl, CLIENT_device_bytes), 2 * GAIA_CHUNK);
	cr_assert_eq(amount(cl, CLIENT_private_bytes), 0);
	release_all(cl);
	cr_assert_eq(amount(cl, CLIENT_pinned_bytes), 0);
	cr_assert_eq(client_acquire(cl, GAIA_PAGE, 2 * GAIA_PAGE, GAIA_PROT_READ), 0);
	cr_assert_eq(amount(cl, CLIENT_pinned_bytes), 2 * GAIA_PAGE);
	release_all(cl);
	end();
}
