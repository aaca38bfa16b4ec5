/*
 * cache_extents.c - device memory of long files comes in extents, which are handed over, pinned and evicted as a whole.
 */
#include "base/fault.h"
#include "base/util.h"
#define EXTENT GAIA_EXTENT_CHUNKS
#define CHUNKS (2 * EXTENT + 4u)
#include "cache_acquires.h"
#include "cache_marks.h"
#include "cache_mute.h"

#define HANG 240 /* seconds */
#define BYTES(chunks) ((chunks) * (uint64_t)GAIA_CHUNK)

static uint64_t used(void)
{
	return rig_device_used(rig, 0) / GAIA_CHUNK;
}

static int take(struct client *cl, unsigned first, unsigned n, unsigned prot)
{
	return client_acquire(cl, BYTES(first), BYTES(n), prot);
}

static void give(struct client *cl, unsigned first, unsigned n)
{
	cr_assert_eq(client_release(cl, BYTES(first), BYTES(n)), 0);
}

/* Another file, of so many chunks; and a client that maps all of it. */
static struct client *other_file(unsigned chunks)
{
	static uint64_t ino;

	return client_create(kfile_create(rig, 100 + ++ino, BYTES(chunks)), 0, GAIA_PROT_RW, BYTES(chunks));
}

/* So many chunks, the first of a file of their own, beside what there is. */
static int take_others(unsigned chunks)
{
	struct client *cl = other_file(chunks);
	int err = take(cl, 0, chunks, GAIA_PROT_READ);

	client_end(cl);
	return err;
}

static void begin_extents(unsigned device_chunks)
{
	begin_cold_on(1, device_chunks, BYTES(2 * CHUNKS));
}

/* ---- which are made ---- */

Test(extents, are_what_an_acquire_has_all_of, .timeout = HANG)
{
	struct client *cl;

	begin_extents(CHUNKS);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_READ), 0);
	expect_marks(cl);
	cr_assert_eq(cl->messages, 1);
	cr_assert_eq(cl->descriptors, 2 + 4);
	cr_assert_eq(used(), CHUNKS);
	end();
}

Test(extents, are_not_made_of_less, .timeout = HANG)
{
	struct client *cl;

	begin_extents(2 * CHUNKS);
	rig->user = (struct cache_user){ .uid = 1 }; /* for whom nothing is ready */
	cl = whole(0);
	cr_assert_eq(take(cl, 1, 2 * EXTENT - 2, GAIA_PROT_READ), 0);
	expect_marks_in(cl, 1, 2 * EXTENT - 1);
	cr_assert_eq(cl->descriptors, 2 * EXTENT - 2);
	cr_assert_eq(used(), 2 * EXTENT - 2);
	/* Nor beside a chunk that is there already. */
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_READ), 0);
	cr_assert_eq(cl->descriptors, CHUNKS);
	end();
}

/* A file's end may lie in it. */
Test(extents, may_end_beyond_the_file, .timeout = HANG)
{
	struct client *cl;

	begin_extents(CHUNKS);
	cr_assert_eq(cpu_truncate(kf, BYTES(EXTENT) - 5 * GAIA_PAGE), 0);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, EXTENT, GAIA_PROT_READ), 0);
	cr_assert_eq(cl->descriptors, 1);
	expect_marks_in(cl, 0, EXTENT - 1);
	end();
}

/* ---- handed over as a whole ---- */

Test(extents, are_handed_over_for_any_page, .timeout = HANG)
{
	struct client *first, *part;

	begin_extents(CHUNKS);
	first = whole(0);
	/* It maps no more than three chunks; but it reserves addresses for the extent. */
	part = client_create(kf, 0, GAIA_PROT_RW, BYTES(3));
	cr_assert_eq(take(first, 0, EXTENT, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(part, BYTES(2), 1, GAIA_PROT_RW), 0);
	cr_assert_eq(part->descriptors, 1);
	cr_assert_eq(part->granted, EXTENT);
	expect_marks_in(part, 0, 3);
	cr_assert_eq(take(part, 0, 3, GAIA_PROT_READ), 0);
	cr_assert_eq(part->descriptors, 1, "it has it");
	give(part, 0, 3);
	client_end(part);
	cache_check(rig->cache);
	expect_marks_in(first, 0, EXTENT);
	end();
}

Test(extents, are_handed_over_once_to_threads, .timeout = HANG)
{
	struct client *cl;

	begin_extents(CHUNKS);
	cl = whole(0);
	cr_assert_eq(take(whole(0), 0, EXTENT, GAIA_PROT_READ), 0);
	struct acquire first = of_page(cl, 0), second = of_page(cl, 5 * GAIA_CHUNK_PAGES), third = of_page(cl, 6 * GAIA_CHUNK_PAGES);
	struct held giver = giving(&first), waiter = waiting(&second);

	held_begin(&giver);
	held_begin(&waiter);
	cr_assert_eq(cl->granted, 0);
	fault_let_go(waiter.point);
	cr_assert_eq(held_end(&giver), 0);
	cr_assert_eq(held_end(&waiter), 0);
	cr_assert_eq(cl->descriptors, 1);
	cr_assert_eq(second.seq, first.seq, "it may not be used before that");
	cr_assert_eq(acquire(&third), 0);
	cr_assert_eq(third.seq, first.seq);
	give(cl, 0, EXTENT);
	end();
}

static void *acquire_in_thread(void *arg)
{
	return (void *)(intptr_t)acquire(arg);
}

/* Whoever comes next tries it: with all of the extent. */
Test(extents, are_handed_over_by_another_thread_if_one_cannot, .timeout = HANG)
{
	struct client *cl;

	begin_extents(CHUNKS);
	cr_assert_eq(take(whole(0), 0, EXTENT, GAIA_PROT_READ), 0);
	cl = whole(0);
	for (unsigned round = 0; round < 10; round++) {
		struct acquire a[EXTENT];
		pthread_t thread[EXTENT];
		unsigned failed = 0;
		void *err;

		fault_arm("device.export", -EMFILE, 0, 1);
		for (unsigned k = 0; k < EXTENT; k++) {
			a[k] = of_page(cl, k * GAIA_CHUNK_PAGES);
			cr_assert_eq(pthread_create(&thread[k], NULL, acquire_in_thread, &a[k]), 0);
		}
		for (unsigned k = 0; k < EXTENT; k++) {
			pthread_join(thread[k], &err);
			failed += err != NULL;
		}
		fault_disarm_all();
		cr_assert_eq(failed, 1);
		cr_assert_eq(cl->descriptors, 1);
		client_end(cl);
		cl = whole(0);
	}
	end();
}

static int refuse_first(void *arg, struct client *cl, unsigned nth)
{
	(void)arg;
	return nth == 0 ? -ENOMEM : 0;
}

Test(extents, that_a_client_cannot_map_are_handed_over_again, .timeout = HANG)
{
	struct client *cl;

	begin_extents(CHUNKS);
	cl = whole(0);
	rig->before_answer = refuse_first;
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_RW), -ENOMEM);
	cache_check(rig->cache);
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_RW), 0);
	expect_marks(cl);
	cr_assert_eq(cl->descriptors, 2 * (2 + 4));
	end();
}

/* ---- pinned as a whole ---- */

Test(extents, stay_while_any_page_is_held, .timeout = HANG)
{
	struct client *cl;

	begin_extents(2 * EXTENT);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, EXTENT, GAIA_PROT_READ), 0);
	cr_assert_eq(client_release(cl, 0, BYTES(5)), 0);
	cr_assert_eq(client_release(cl, BYTES(5) + GAIA_PAGE, BYTES(3) - GAIA_PAGE), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, GAIA_CHUNK), -EBUSY);
	cr_assert_eq(take_others(EXTENT + 1), -ENOMEM);
	cr_assert_eq(take_others(EXTENT), 0);
	cr_assert_eq(cl->revoked, 0);
	expect_marks_in(cl, 5, 6);
	cr_assert_eq(client_release(cl, BYTES(5), GAIA_PAGE), 0);
	cr_assert_eq(take_others(EXTENT + 1), 0);
	cr_assert_eq(cl->revoked, EXTENT);
	end();
}

/* Who holds a page of it needs no more room for the rest of it. */
Test(extents, have_room_for_all_of_their_pages, .timeout = HANG)
{
	struct client *cl, *other;

	begin_extents(2 * EXTENT);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, EXTENT, GAIA_PROT_READ), 0);
	give(cl, 1, EXTENT - 1);
	other = other_file(EXTENT);
	cr_assert_eq(take(other, 0, EXTENT, GAIA_PROT_RW), 0);
	cr_assert_eq(take(cl, 1, EXTENT - 1, GAIA_PROT_RW), 0, "the device is full of what is pinned");
	expect_marks_in(cl, 0, EXTENT);
	end();
}

Test(extents, count_whole_for_users, .timeout = HANG)
{
	struct client *cl;

	begin_extents(2 * EXTENT);
	/* Twelve chunks for each user. */
	rig->user = (struct cache_user){ .uid = 1 };
	cl = whole(0);
	cr_assert_eq(take(cl, 0, EXTENT, GAIA_PROT_READ), 0);
	cr_assert_eq(take(cl, EXTENT, 5, GAIA_PROT_READ), -ENOMEM);
	give(cl, 1, EXTENT - 1);
	cr_assert_eq(take(cl, EXTENT, 5, GAIA_PROT_READ), -ENOMEM, "one chunk of the extent is as all");
	cr_assert_eq(take(cl, EXTENT, 4, GAIA_PROT_READ), 0);
	cr_assert_eq(take(cl, 3, 2, GAIA_PROT_READ), 0, "and all as one");
	give(cl, 0, 1);
	cr_assert_eq(take_others(1), -ENOMEM);
	give(cl, 3, 2);
	cr_assert_eq(take_others(EXTENT), 0);
	cache_check(rig->cache);
	end();
}

/* ---- evicted as a whole ---- */

static void write_marks(struct client *cl, unsigned a, unsigned b)
{
	for (unsigned k = a; k < b; k++)
		client_store(cl, &k, sizeof(k), BYTES(k) + 7 * GAIA_PAGE + 8);
}

static void expect_written(unsigned a, unsigned b)
{
	for (unsigned k = a; k < b; k++) {
		unsigned seen = ~0u;

		cr_assert_eq(cpu_read(kf, &seen, sizeof(seen), BYTES(k) + 7 * GAIA_PAGE + 8), (ssize_t)sizeof(seen));
		cr_assert_eq(seen, k);
	}
}

/* With the bytes that were released in them. */
Test(extents, are_evicted_with_what_was_released, .timeout = HANG)
{
	struct client *cl;

	begin_extents(CHUNKS);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_RW), 0);
	write_marks(cl, 0, CHUNKS);
	give(cl, 0, CHUNKS);
	cr_assert_eq(take_others(1), 0);
	cr_assert(cl->revoked == EXTENT || cl->revoked == 1, "the first that is idle, with all of its extent");
	cr_assert_eq(take_others(CHUNKS), 0);
	cr_assert_eq(cl->revoked, CHUNKS);
	expect_written(0, CHUNKS);
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_READ), 0);
	expect_marks(cl);
	end();
}

/* On request, for any of their chunks. */
Test(extents, are_evicted_on_request, .timeout = HANG)
{
	struct client *cl;

	begin_extents(CHUNKS);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_RW), 0);
	write_marks(cl, 0, CHUNKS);
	give(cl, 0, CHUNKS);
	cr_assert_eq(cache_evict(kf->cfile, 0, BYTES(3), GAIA_CHUNK), 0);
	cr_assert_eq(used(), CHUNKS - EXTENT);
	cr_assert_eq(cl->revoked, EXTENT);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(used(), 0);
	expect_written(0, CHUNKS);
	end();
}

/* If something that was released in it cannot be brought home it stays, and nothing is lost. */
Test(extents, that_cannot_be_evicted_stay_whole, .timeout = HANG)
{
	struct client *cl;

	begin_extents(EXTENT);
	for (unsigned nth = 0; nth < 3; nth++) {
		cl = whole(0);
		cr_assert_eq(take(cl, 0, EXTENT, GAIA_PROT_RW), 0);
		write_marks(cl, 0, EXTENT);
		give(cl, 0, EXTENT);
		fault_arm("device.copy_out", -EIO, nth, 0);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), nth == 0 ? -EIO : 0);
		fault_disarm_all();
		cr_assert_eq(used(), nth == 0 ? EXTENT : 0);
		cache_check(rig->cache);
		cr_assert_eq(take(cl, 0, EXTENT, GAIA_PROT_RW), 0);
		expect_marks_in(cl, 0, EXTENT);
		give(cl, 0, EXTENT);
		client_end(cl);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
		expect_written(0, EXTENT);
		cr_assert_eq(cpu_fsync(kf), 0);
	}
	end();
}

/* What is ready may be held at any moment, and is made not ready by whole extents. */
Test(extents, make_room_of_what_is_ready, .timeout = HANG)
{
	struct client *cl;

	begin_extents(2 * EXTENT);
	cl = whole(0);
	for (unsigned round = 0; round < 3; round++) {
		/* So that the second finds nothing to do, and the chunks are ready. */
		for (unsigned k = 0; k < 2; k++) {
			cr_assert_eq(take(cl, 0, 2 * EXTENT, GAIA_PROT_READ), 0);
			give(cl, 0, 2 * EXTENT);
		}
		cr_assert_eq(take(cl, EXTENT + 3, 1, GAIA_PROT_READ), 0);
		cr_assert_eq(take_others(EXTENT + 1), -ENOMEM);
		cr_assert_eq(take_others(EXTENT), 0);
		expect_marks_in(cl, EXTENT + 3, EXTENT + 4);
		give(cl, EXTENT + 3, 1);
		cr_assert_eq(take_others(2 * EXTENT), 0);
		cache_check(rig->cache);
	}
	end();
}

/* Else they would keep out who uses a page of each, though nobody holds anything. */
Test(extents, give_way_to_parts_of_themselves, .timeout = HANG)
{
	struct client *cl;

	begin_extents(4 * EXTENT);
	cl = other_file(5 * EXTENT);
	for (unsigned ready = 0; ready < 2; ready++) {
		for (unsigned k = 0; k <= ready; k++) {
			cr_assert_eq(take(cl, 0, 4 * EXTENT, GAIA_PROT_RW), 0);
			give(cl, 0, 4 * EXTENT);
		}
		cr_assert_eq(take(cl, 4, 4 * EXTENT - 2, GAIA_PROT_RW), 0);
		give(cl, 4, 4 * EXTENT - 2);
		cache_check(rig->cache);
	}
	/* The same of what a user may pin: twenty-four chunks. */
	rig->user = (struct cache_user){ .uid = 1 };
	cl = other_file(5 * EXTENT);
	cr_assert_eq(take(cl, 0, 3 * EXTENT, GAIA_PROT_READ), 0);
	give(cl, 0, 3 * EXTENT);
	cr_assert_eq(take(cl, 1, 3 * EXTENT, GAIA_PROT_READ), 0);
	end();
}

/* The same beside what others hold, where nothing is ready: not for users who are no owners. */
Test(extents, that_are_idle_count_whole, .timeout = HANG)
{
	struct client *cl, *other;

	begin_extents(4 * EXTENT);
	other = other_file(2 * EXTENT);
	cr_assert_eq(take(other, 0, 2 * EXTENT, GAIA_PROT_READ), 0);
	rig->user = (struct cache_user){ .uid = 1 };
	cl = whole(0);
	cr_assert_eq(take(cl, 0, 2 * EXTENT, GAIA_PROT_READ), 0);
	give(cl, 0, 2 * EXTENT);
	cr_assert_eq(take(cl, EXTENT - 1, EXTENT + 2, GAIA_PROT_READ), 0);
	expect_marks_in(cl, EXTENT - 1, 2 * EXTENT + 1);
	cr_assert_leq(used(), 4 * EXTENT);
	give(cl, EXTENT - 1, EXTENT + 2);
	/* And for what a user may pin, twenty-four chunks here. */
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	give(other, 0, 2 * EXTENT);
	client_end(other);
	rig->user = (struct cache_user){ .owner = true };
	cr_assert_eq(take_others(4 * EXTENT), 0, "what has been idle for longest");
	rig->user = (struct cache_user){ .uid = 1 };
	cr_assert_eq(take(cl, 0, EXTENT, GAIA_PROT_READ), 0);
	give(cl, 0, EXTENT);
	other = other_file(2 * EXTENT + 2);
	cr_assert_eq(take(other, 0, 2 * EXTENT + 2, GAIA_PROT_READ), 0);
	cr_assert_eq(take(cl, 3, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(cl->revoked, 3 * EXTENT + 2, "it has come back as a single chunk");
	expect_marks_in(cl, 3, 4);
	end();
}

/* A page that was acquired beyond the end of the file is held as soon as the client has its chunk, whatever that was handed over for. */
Test(extents, are_handed_over_with_what_was_wanted, .timeout = HANG)
{
	struct client *cl, *other;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = CHUNKS }, GAIA_CHUNK);
	cl = whole(0);
	other = whole(0);
	cr_assert_eq(take(cl, 2, 1, GAIA_PROT_RW), 0);
	cr_assert_eq(cpu_truncate(kf, BYTES(EXTENT)), 0);
	cr_assert_eq(take(other, 0, EXTENT, GAIA_PROT_RW), 0);
	cr_assert_eq(take(cl, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(cl->granted, EXTENT);
	client_store(other, "other's", 7, BYTES(2) + 64);
	give(other, 0, EXTENT);
	give(cl, 0, 1);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY, "it holds the third chunk");
	client_store(cl, "held", 4, BYTES(2));
	give(cl, 2, 1);
	expect_cpu(BYTES(2), "held");
	expect_cpu(BYTES(2) + 64, "other's");
	end();
}

/* Who advises means whole chunks; and extents only if all of it is meant. */
Test(extents, go_as_advised_if_all_of_them_may, .timeout = HANG)
{
	struct client *cl;

	begin_extents(CHUNKS);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_READ), 0);
	give(cl, 0, CHUNKS);
	cr_assert_eq(cache_advise(cl->mapping, BYTES(2), BYTES(EXTENT), GAIA_ADVISE_DONTNEED), 0);
	cr_assert_eq(used(), CHUNKS);
	cr_assert_eq(cache_advise(cl->mapping, BYTES(2), BYTES(CHUNKS - 2), GAIA_ADVISE_DONTNEED), 0);
	cr_assert_eq(used(), EXTENT);
	end();
}

/* ---- clients that do not give them up, or are gone ---- */

Test(extents, of_a_mute_client_are_left_to_a_worker, .timeout = HANG)
{
	struct client *cl, *other;

	begin_extents(2 * EXTENT);
	mute = whole(0);
	atomic_store(&mute_answers, false);
	cr_assert_eq(take(mute, 0, EXTENT, GAIA_PROT_RW), 0);
	write_marks(mute, 0, EXTENT);
	give(mute, 0, EXTENT);
	other = other_file(EXTENT);
	cr_assert_eq(take(other, 0, EXTENT, GAIA_PROT_READ), 0);
	give(other, 0, EXTENT);
	rig->late = is_mute;
	/* The mute one's has been idle for longer; but the other client answers. */
	cl = other_file(EXTENT);
	cr_assert_eq(take(cl, 0, EXTENT, GAIA_PROT_READ), 0);
	cr_assert_eq(mute->revoked, 0);
	cr_assert_eq(other->revoked, EXTENT);
	atomic_store(&mute_answers, true);
	give(cl, 0, EXTENT);
	cr_assert_eq(take_others(2 * EXTENT), 0);
	cr_assert_eq(mute->revoked, EXTENT);
	expect_written(0, EXTENT);
	end();
}

Test(extents, of_the_dead_are_not_used_again, .timeout = HANG)
{
	struct client *dead, *next;

	begin_extents(2 * EXTENT);
	dead = whole(0);
	cr_assert_eq(take(dead, 0, EXTENT, GAIA_PROT_RW), 0);
	write_marks(dead, 0, EXTENT);
	give(dead, 0, EXTENT);
	cr_assert_eq(take(dead, 0, 1, GAIA_PROT_RW), 0);
	client_store(dead, "never released", 14, 0);
	client_die(dead);
	next = whole(0);
	cr_assert_eq(take(next, 0, EXTENT, GAIA_PROT_READ), 0);
	expect_marks_in(next, 0, EXTENT);
	expect_written(0, EXTENT);
	client_end(dead);
	cache_check(rig->cache);
	end();
}

/* Whoever acquires a page of it gets all of it. */
Test(extents, of_the_dead_are_not_shown_in_parts_that_nobody_asked_for, .timeout = HANG)
{
	const uint64_t released = BYTES(2), at = BYTES(5) + 7 * GAIA_PAGE;
	struct client *dead, *next;
	char seen[6];

	begin_extents(2 * EXTENT);
	dead = whole(0);
	cr_assert_eq(take(dead, 0, EXTENT, GAIA_PROT_RW), 0);
	client_store(dead, "right", 6, released);
	give(dead, 2, 1);
	cr_assert_eq(take(dead, 2, 1, GAIA_PROT_RW), 0);
	client_store(dead, "wrong", 6, released);
	client_store(dead, "secret", 6, at);
	/* It is killed; a child of its has the memory still. */
	atomic_store(&dead->alive, false);
	next = whole(0);
	cr_assert_eq(client_acquire(next, 0, 1, GAIA_PROT_READ), 0);
	client_load(next, seen, 6, at);
	cr_assert_neq(memcmp(seen, "secret", 6), 0, "what was never released is shown");
	client_load(next, seen, 6, released);
	cr_assert_neq(memcmp(seen, "wrong", 6), 0, "what was never released is shown");
	/* What was released is not lost by what the child stores there. */
	client_store(dead, "wrong", 6, released);
	cr_assert_eq(take(next, 0, EXTENT, GAIA_PROT_READ), 0);
	client_load(next, seen, 6, released);
	cr_assert_arr_eq(seen, "right", 6);
	expect_marks_in(next, 5, 6);
	client_end(dead);
	cache_check(rig->cache);
	end();
}

/* ---- clients that do not know extents ---- */

Test(old_clients, keep_a_file_from_having_extents, .timeout = HANG)
{
	struct client *cl, *old;

	begin_extents(CHUNKS);
	rig->old_clients = true;
	old = whole(0);
	rig->old_clients = false;
	cl = whole(0);
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_READ), 0);
	cr_assert_eq(cl->descriptors, CHUNKS);
	cr_assert_eq(take(old, 0, CHUNKS, GAIA_PROT_READ), 0);
	expect_marks(old);
	give(cl, 0, CHUNKS);
	client_end(old);
	/* What is there stays as it is. */
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_READ), 0);
	cr_assert_eq(cl->descriptors, CHUNKS + 2 + 4);
	end();
}

Test(old_clients, get_single_chunks_where_nobody_holds_the_extent, .timeout = HANG)
{
	struct client *cl, *old;

	begin_extents(CHUNKS);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, EXTENT, GAIA_PROT_RW), 0);
	write_marks(cl, 0, EXTENT);
	rig->old_clients = true;
	old = whole(0);
	cr_assert_eq(take(old, EXTENT, 2, GAIA_PROT_READ), 0);
	cr_assert_eq(take(old, EXTENT - 1, 2, GAIA_PROT_READ), -EBUSY);
	give(cl, 0, EXTENT);
	cr_assert_eq(take(old, EXTENT - 1, 1, GAIA_PROT_READ), 0);
	expect_marks_in(old, EXTENT - 1, EXTENT);
	cr_assert_eq(cl->revoked, EXTENT);
	expect_written(0, EXTENT);
	end();
}

/* A call that has it may come to hold it, and is not waited for then. */
Test(old_clients, do_not_wait_for_who_comes_to_hold_it, .timeout = HANG)
{
	struct client *cl;
	pthread_t thread;

	begin_extents(CHUNKS);
	cl = whole(0);
	struct acquire a = { .cl = cl, .len = BYTES(EXTENT) };
	struct held reading = { .point = "store.read", .call = acquire, .arg = &a };

	held_begin(&reading);
	rig->old_clients = true;
	struct acquire b = of_page(whole(0), 0);

	thread = begin_waiting(&b);
	cr_assert_eq(held_end(&reading), 0);
	cr_assert_eq(end_waiting(thread), -EBUSY);
	expect_marks_in(cl, 0, EXTENT);
	give(cl, 0, EXTENT);
	cr_assert_eq(acquire(&b), 0);
	end();
}

/* ---- readers that have memory of their own ---- */

Test(readers, have_extents_of_their_own, .timeout = HANG)
{
	struct client *reader[2], *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 3 * EXTENT, .always_writable = true }, BYTES(CHUNKS));
	cl = whole(0);
	for (unsigned k = 0; k < 2; k++)
		reader[k] = client_create(kf, 0, GAIA_PROT_READ, LEN);
	cr_assert_eq(take(cl, 0, EXTENT, GAIA_PROT_RW), 0);
	client_store(cl, "written", 8, BYTES(3));
	give(cl, 0, EXTENT);
	for (unsigned k = 0; k < 2; k++) {
		char seen[8];

		cr_assert_eq(take(reader[k], 0, EXTENT, GAIA_PROT_READ), 0);
		cr_assert_eq(reader[k]->descriptors, 1);
		client_load(reader[k], seen, sizeof(seen), BYTES(3));
		cr_assert_str_eq(seen, "written");
	}
	cr_assert_eq(used(), 2 * EXTENT);
	client_end(reader[0]);
	cr_assert_eq(used(), 2 * EXTENT);
	client_end(reader[1]);
	cr_assert_eq(used(), EXTENT, "theirs goes with them");
	end();
}

/* ---- files that are pinned to the device ---- */

#define OWNER ((struct cache_user){ .owner = true })

/* A file of so many chunks, on a device all of which may be pinned. */
static void begin_to_pin(unsigned chunks)
{
	begin(&(struct rig_options){ .devices = 1, .device_chunks = 4 * EXTENT, .files_percent = 100 }, BYTES(chunks));
}

Test(pinned_files, are_in_extents, .timeout = HANG)
{
	struct client *cl;
	bool fresh;

	begin_to_pin(CHUNKS);
	cr_assert_eq(cache_pin(kf->cfile, 0, OWNER, &fresh), 0);
	cr_assert_eq(used(), CHUNKS);
	cache_check(rig->cache);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_READ), 0);
	cr_assert_eq(cl->descriptors, 2 + 4);
	give(cl, 0, CHUNKS);
	cr_assert_eq(take_others(4 * EXTENT - CHUNKS + 1), -ENOMEM);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(cache_unpin(kf->cfile, 0, OWNER), 0);
	cache_check(rig->cache);
	cr_assert_eq(take_others(4 * EXTENT), 0);
	end();
}

/* Nobody has more of the device by a pin than the pin is for. */
Test(pinned_files, do_not_end_within_extents, .timeout = HANG)
{
	struct client *cl;
	bool fresh;

	begin_to_pin(CHUNKS);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, EXTENT, GAIA_PROT_READ), 0);
	cr_assert_eq(cpu_truncate(kf, BYTES(2)), 0);
	cr_assert_eq(cache_pin(kf->cfile, 0, OWNER, &fresh), -EBUSY);
	cr_assert_eq(cache_pinned(kf->cfile, 0), 0);
	give(cl, 0, EXTENT);
	cr_assert_eq(cache_pin(kf->cfile, 0, OWNER, &fresh), 0);
	cr_assert_eq(used(), 2);
	/* Nor when it grows. */
	cr_assert_eq(cpu_truncate(kf, BYTES(CHUNKS)), 0);
	cr_assert_eq(take(cl, 0, 2 * EXTENT, GAIA_PROT_READ), 0);
	cr_assert_eq(cl->descriptors, 1 + EXTENT + 1);
	give(cl, 0, 2 * EXTENT);
	cr_assert_eq(take_others(4 * EXTENT - 2), 0);
	cr_assert_eq(used(), 4 * EXTENT);
	cache_check(rig->cache);
	end();
}

/* A pin of a file that was empty is for one chunk, which it gets when it is there. */
Test(pinned_files, that_were_empty_get_single_chunks, .timeout = HANG)
{
	struct client *cl;
	bool fresh;

	begin_to_pin(0);
	cr_assert_eq(cache_pin(kf->cfile, 0, OWNER, &fresh), 0);
	cr_assert_eq(cpu_truncate(kf, BYTES(CHUNKS)), 0);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, CHUNKS, GAIA_PROT_READ), 0);
	cr_assert_eq(cl->descriptors, EXTENT + 1 + 4);
	give(cl, 0, CHUNKS);
	cr_assert_eq(take_others(4 * EXTENT - 1), 0);
	end();
}

/* Of several pins the largest counts; when that ends an extent stays for the others. */
Test(pinned_files, keep_extents_for_smaller_pins, .timeout = HANG)
{
	struct cache_user other = { .uid = 7 };
	bool fresh;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 4 * EXTENT, .files_percent = 100, .files_user_percent = 100 }, BYTES(EXTENT + 2));
	cr_assert_eq(cache_pin(kf->cfile, 0, other, &fresh), 0);
	cr_assert_eq(cpu_truncate(kf, BYTES(2 * EXTENT)), 0);
	cr_assert_eq(cache_unpin(kf->cfile, 0, other), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(cache_pin(kf->cfile, 0, OWNER, &fresh), 0);
	cr_assert_eq(cpu_truncate(kf, BYTES(EXTENT + 2)), 0);
	cache_check(rig->cache);
	cr_assert_eq(cache_unpin(kf->cfile, 0, OWNER), 0);
	cache_check(rig->cache);
	cr_assert_eq(take_others(4 * EXTENT), 0);
	end();
}

/* Else a pin of a chunk would be one of eight, whatever the limit. */
Test(pinned_files, keep_no_extents_that_smaller_pins_do_not_fill, .timeout = HANG)
{
	struct cache_user large = { .uid = 7 }, small = { .uid = 8 };
	bool fresh;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 4 * EXTENT, .files_percent = 100, .files_user_percent = 100 }, BYTES(EXTENT));
	cr_assert_eq(cache_pin(kf->cfile, 0, large, &fresh), 0);
	cr_assert_eq(cpu_truncate(kf, BYTES(1)), 0);
	cr_assert_eq(cache_pin(kf->cfile, 0, small, &fresh), 0);
	cr_assert_eq(cache_unpin(kf->cfile, 0, large), 0);
	cache_check(rig->cache);
	cr_assert_eq(take_others(4 * EXTENT), -ENOMEM);
	cr_assert_eq(take_others(4 * EXTENT - 1), 0);
	end();
}

/* What it covers of such an extent does not count twice. */
Test(pinned_files, do_not_keep_out_who_acquires_the_extent, .timeout = HANG)
{
	struct cache_user large = { .uid = 7 }, small = { .uid = 8 };
	bool fresh;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 * EXTENT, .files_percent = 100, .files_user_percent = 100 }, BYTES(EXTENT));
	cr_assert_eq(cache_pin(kf->cfile, 0, large, &fresh), 0);
	cr_assert_eq(cpu_truncate(kf, BYTES(1)), 0);
	cr_assert_eq(cache_pin(kf->cfile, 0, small, &fresh), 0);
	cr_assert_eq(cache_unpin(kf->cfile, 0, large), 0);
	cr_assert_eq(cpu_truncate(kf, BYTES(EXTENT)), 0);
	cr_assert_eq(take(other_file(EXTENT), 0, EXTENT, GAIA_PROT_READ), 0);
	cr_assert_eq(take(whole(0), 0, EXTENT, GAIA_PROT_READ), 0);
	cache_check(rig->cache);
	end();
}

Test(pinned_files, keep_out_clients_without_extents, .timeout = HANG)
{
	struct client *old;
	bool fresh;

	begin_to_pin(CHUNKS);
	cr_assert_eq(cache_pin(kf->cfile, 0, OWNER, &fresh), 0);
	rig->old_clients = true;
	old = whole(0);
	cr_assert_eq(take(old, 0, 1, GAIA_PROT_READ), -EBUSY);
	cr_assert_eq(used(), CHUNKS, "nothing was evicted for it");
	cr_assert_eq(take(old, 2 * EXTENT, 4, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_unpin(kf->cfile, 0, OWNER), 0);
	cr_assert_eq(take(old, 0, 1, GAIA_PROT_READ), 0);
	end();
}

/* ---- the device's budget ---- */

Test(budget, that_shrinks_takes_whole_extents, .timeout = HANG)
{
	uint64_t beyond;
	struct client *cl;

	begin_extents(3 * EXTENT);
	cl = whole(0);
	cr_assert_eq(take(cl, 0, 2 * EXTENT, GAIA_PROT_RW), 0);
	write_marks(cl, 0, 2 * EXTENT);
	give(cl, 0, 2 * EXTENT);
	cr_assert_eq(cache_set_device(rig->cache, 0, BYTES(EXTENT + 3), &beyond), 0);
	while (used() > EXTENT + 3)
		sched_yield();
	cr_assert_eq(used(), EXTENT);
	expect_written(0, 2 * EXTENT);
	cr_assert_eq(take(cl, 0, 2 * EXTENT, GAIA_PROT_RW), -ENOMEM);
	cr_assert_eq(take(cl, EXTENT, EXTENT, GAIA_PROT_RW), 0);
	end();
}

/* ---- many at once ---- */

#define ROUNDS 60u
#define THREADS 4u

struct worker {
	struct client *cl;
	unsigned seed, number;
	unsigned counts[2 * EXTENT]; /* what it has written to each chunk at last */
};

/* It alone writes its word of each chunk; and what it reads there it has written. */
static void *work(void *arg)
{
	struct worker *w = arg;

	for (unsigned round = 0; round < ROUNDS; round++) {
		unsigned first = (unsigned)rand_r(&w->seed) % (2 * EXTENT), n = 1 + (unsigned)rand_r(&w->seed) % EXTENT, seen;

		if (rand_r(&w->seed) % 2) {
			first = first / EXTENT * EXTENT;
			n = EXTENT;
		}
		n = MIN(n, 2 * EXTENT - first);
		if (take(w->cl, first, n, GAIA_PROT_RW))
			continue;
		for (unsigned k = first; k < first + n; k++) {
			uint64_t at = BYTES(k) + 9 * GAIA_PAGE + 64 * w->number;

			client_load(w->cl, &seen, sizeof(seen), at);
			cr_assert_eq(seen, w->counts[k]);
			w->counts[k]++;
			client_store(w->cl, &w->counts[k], sizeof(seen), at);
		}
		give(w->cl, first, n);
		if (rand_r(&w->seed) % 8 == 0)
			(void)cache_evict(kf->cfile, 0, BYTES(first), BYTES(n));
	}
	return NULL;
}

/* On a device that has room for half of what they use. */
Test(threads, lose_nothing_in_extents, .timeout = 2 * HANG)
{
	struct worker w[THREADS];
	pthread_t thread[THREADS];
	unsigned seen;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = EXTENT + 4, .home_bytes = BYTES(3 * EXTENT) }, BYTES(2 * EXTENT));
	for (unsigned k = 0; k < THREADS; k++) {
		w[k] = (struct worker){ .cl = client_create(kf, 0, GAIA_PROT_RW, BYTES(2 * EXTENT)), .seed = k + 1, .number = k };
		cr_assert_eq(pthread_create(&thread[k], NULL, work, &w[k]), 0);
	}
	for (unsigned k = 0; k < THREADS; k++)
		pthread_join(thread[k], NULL);
	cache_check(rig->cache);
	for (unsigned k = 0; k < THREADS; k++)
		for (unsigned c = 0; c < 2 * EXTENT; c++) {
			cr_assert_eq(cpu_read(kf, &seen, sizeof(seen), BYTES(c) + 9 * GAIA_PAGE + 64 * k), (ssize_t)sizeof(seen));
			cr_assert_eq(seen, w[k].counts[c], "thread %u, chunk %u", k, c);
		}
	end();
}
