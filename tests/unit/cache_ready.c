/*
 * cache_ready.c - acquires that find nothing to do: what they look at, counted, and that everybody else sees what they hold.
 */
#include <linux/falloc.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "cache_acquires.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/holds.h"
#include "pagecache/mapping.h"
#include "pagecache/replica.h"

#define CHUNKS 4u
#define ALL (CHUNKS * GAIA_CHUNK)
#define AT(chunk, page) ((uint64_t)(chunk) * GAIA_CHUNK + (uint64_t)(page) * GAIA_PAGE)

static struct {
	uint64_t ready, current, looked_at, sent;
} before;

static void looks_begin(void)
{
	before.ready = counter_value(CTR_acquires_ready);
	before.current = counter_value(CTR_acquired_current);
	before.looked_at = counter_value(CTR_acquired_looked_at);
	before.sent = counter_value(CTR_home_to_device);
}

/* Since then: acquires that looked at nothing, chunks that were found current, and looked at page by page; pages sent. */
#define expect_looks(ready_, current_, looked_at_, sent_)                                             \
	do {                                                                                          \
		cr_assert_eq(counter_value(CTR_acquires_ready) - before.ready, (ready_));             \
		cr_assert_eq(counter_value(CTR_acquired_current) - before.current, (current_));       \
		cr_assert_eq(counter_value(CTR_acquired_looked_at) - before.looked_at, (looked_at_)); \
		cr_assert_eq(counter_value(CTR_home_to_device) - before.sent, (sent_));               \
		looks_begin();                                                                        \
	} while (0)

/* By the status report: bytes of device 0 that are pinned, or held without anybody's having looked. */
static json_int_t pinned(void)
{
	json_t *status = cache_status_json(rig->cache), *devices = json_object_get(status, "devices");
	json_int_t n = json_integer_value(json_object_get(json_array_get(devices, 0), "pinned"));

	json_decref(status);
	return n;
}

/* As client_acquire(), but the kernel is not asked for anything: that looks at pages, too. */
static int acquire_range(struct client *cl, uint64_t off, uint64_t len, unsigned prot)
{
	uint64_t seq;

	return cache_acquire(cl->mapping, off, len, prot, &seq, NULL);
}

static void acquire_all(struct client *cl, unsigned prot)
{
	cr_assert_eq(acquire_range(cl, 0, ALL, prot), 0);
}

static void give_all_back(struct client *cl)
{
	cr_assert_eq(cache_release(cl->mapping, 0, ALL, NULL), 0);
}

/* A client that has had all of the file once, to write it: it is ready. */
static struct client *begin_ready(unsigned device_chunks)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 2, .device_chunks = device_chunks }, ALL);
	cl = client_create(kf, 0, GAIA_PROT_RW, ALL);
	acquire_all(cl, GAIA_PROT_RW);
	give_all_back(cl);
	looks_begin();
	return cl;
}

Test(ready, nothing_changed_costs_nothing)
{
	struct client *cl = begin_ready(8);

	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	expect_looks(1, 0, 0, 0);
	/* What was held to be written is compared, and is as ready as before. */
	acquire_all(cl, GAIA_PROT_RW);
	give_all_back(cl);
	acquire_all(cl, GAIA_PROT_RW);
	expect_looks(2, 0, 0, 0);
	cache_check(rig->cache);
	give_all_back(cl);
	end();
}

Test(ready, only_what_changed_is_looked_at)
{
	struct client *cl = begin_ready(8);

	write_cpu(AT(2, 7), "new");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	acquire_all(cl, GAIA_PROT_READ);
	expect_looks(0, 0, 1, 1);
	expect_device(cl, AT(2, 7), "new");
	give_all_back(cl);
	looks_begin();
	acquire_all(cl, GAIA_PROT_READ);
	expect_looks(1, 0, 0, 0);
	end();
}

Test(ready, what_another_device_released_is_fetched)
{
	struct client *cl = begin_ready(8), *other = client_create(kf, 1, GAIA_PROT_RW, ALL);

	write_device(other, AT(1, 3), "other");
	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	cr_assert_eq(client_release(other, 0, ALL), 0);
	expect_device(cl, AT(1, 3), "other");
	end();
}

/* A part of a chunk that nobody has brought up to date as a whole: no page is looked at, but the chunk is. */
Test(ready, a_part_is_current)
{
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(acquire_range(cl, AT(0, 3), 5 * GAIA_PAGE, GAIA_PROT_RW), 0);
	release_all(cl);
	looks_begin();
	cr_assert_eq(acquire_range(cl, AT(0, 3), 5 * GAIA_PAGE, GAIA_PROT_RW), 0);
	expect_looks(0, 1, 0, 0);
	cr_assert_eq(acquire_range(cl, AT(0, 3), 6 * GAIA_PAGE, GAIA_PROT_READ), 0);
	expect_looks(0, 0, 1, 1);
	release_all(cl);
	release_all(cl);
	end();
}

Test(ready, what_is_held_is_not_evicted)
{
	struct client *cl = begin_ready(CHUNKS), *other;
	struct kfile *more = kfile_create(rig, 2, ALL);

	other = client_create(more, 0, GAIA_PROT_RW, ALL);
	acquire_all(cl, GAIA_PROT_READ);
	expect_looks(1, 0, 0, 0);
	cr_assert_eq(pinned(), ALL);
	cr_assert_eq(acquire_range(other, 0, 1, GAIA_PROT_READ), -ENOMEM);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(cl->revoked, 0);
	/* One of the four. */
	cr_assert_eq(cache_release(cl->mapping, AT(2, 0), GAIA_CHUNK, NULL), 0);
	cr_assert_eq(acquire_range(other, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(cl->revoked, 1);
	cr_assert_null(client_at(cl, AT(2, 0)));
	cr_assert_not_null(client_at(cl, AT(1, 0)));
	cr_assert_eq(acquire_range(other, GAIA_CHUNK, 1, GAIA_PROT_READ), -ENOMEM);
	client_end(other);
	give_all_back(cl);
	cr_assert_eq(pinned(), 0);
	end();
}

/* What cannot fit beside it is refused at once, and nothing is evicted for it. */
Test(ready, what_is_held_counts)
{
	struct client *cl = begin_ready(CHUNKS + 1), *idle, *other;

	idle = client_create(kfile_create(rig, 2, GAIA_CHUNK), 0, GAIA_PROT_RW, GAIA_CHUNK);
	other = client_create(kfile_create(rig, 3, ALL), 0, GAIA_PROT_RW, ALL);
	cr_assert_eq(acquire_range(idle, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_release(idle->mapping, 0, 1, NULL), 0);
	acquire_all(cl, GAIA_PROT_READ);
	expect_looks(1, 0, 1, 1);
	cr_assert_eq(acquire_range(other, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ), -ENOMEM);
	cr_assert_eq(idle->revoked, 0);
	cr_assert_eq(acquire_range(other, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(idle->revoked, 1);
	end();
}

/* The longest unused goes first; what was acquired without anybody's looking counts as used. */
Test(ready, what_was_used_last_stays)
{
	struct client *cl = begin_ready(CHUNKS + 1), *other;
	struct kfile *more = kfile_create(rig, 2, 2 * GAIA_CHUNK);

	other = client_create(more, 0, GAIA_PROT_RW, 2 * GAIA_CHUNK);
	cr_assert_eq(acquire_range(other, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_release(other->mapping, 0, 1, NULL), 0);
	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	cr_assert_eq(acquire_range(other, GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(cl->revoked, 0);
	cr_assert_eq(other->revoked, 1);
	end();
}

/* Another file's client, which has had its first chunk once. */
static struct client *begin_rival(int ref, uint64_t size)
{
	struct client *cl = client_create(kfile_create(rig, ref, size), 0, GAIA_PROT_RW, size);

	cr_assert_eq(acquire_range(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_release(cl->mapping, 0, GAIA_CHUNK, NULL), 0);
	return cl;
}

Test(ready, room_ends_the_readiness_of_what_it_takes_only)
{
	struct client *cl = begin_ready(CHUNKS);

	begin_rival(2, GAIA_CHUNK);
	cr_assert_eq(cl->revoked, 1);
	cr_assert_null(client_at(cl, AT(0, 0)));
	looks_begin();
	cr_assert_eq(acquire_range(cl, AT(1, 0), 3 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	expect_looks(1, 0, 0, 0);
	end();
}

/* The one that was idle longest might have been used since. */
Test(ready, room_that_others_give_ends_the_readiness_of_one)
{
	struct client *cl = begin_ready(CHUNKS + 1), *other;

	other = client_create(kfile_create(rig, 2, ALL), 0, GAIA_PROT_RW, ALL);
	cr_assert_eq(acquire_range(other, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_release(other->mapping, 0, 1, NULL), 0);
	cr_assert_eq(acquire_range(other, GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(other->revoked, 1);
	looks_begin();
	acquire_all(cl, GAIA_PROT_READ);
	expect_looks(0, 1, 0, 0);
	give_all_back(cl);
	/* What is not used after that is next. */
	for (unsigned k = 2; k < 4; k++) {
		cr_assert_eq(cl->revoked, 0);
		cr_assert_eq(cache_release(other->mapping, 0, ALL, NULL), 0);
		cr_assert_eq(acquire_range(other, k * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	}
	cr_assert_eq(cl->revoked, 1);
	end();
}

#define MANY 16u

/* Its own idle chunks are of no help to an acquire, though they are ready for another client. */
Test(ready, room_is_not_found_in_what_is_asked_for)
{
	struct client *cl, *other, *idle;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = MANY }, MANY * GAIA_CHUNK);
	cl = client_create(kf, 0, GAIA_PROT_RW, MANY * GAIA_CHUNK);
	cr_assert_eq(acquire_range(cl, 0, (MANY - 1) * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(cache_release(cl->mapping, 0, (MANY - 1) * GAIA_CHUNK, NULL), 0);
	idle = begin_rival(2, GAIA_CHUNK);
	other = client_create(kf, 0, GAIA_PROT_RW, MANY * GAIA_CHUNK);
	cr_assert_eq(acquire_range(other, 0, MANY * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(idle->revoked, 1);
	cr_assert_eq(cl->revoked, 0);
	end();
}

Test(ready, room_that_cannot_be_had_ends_nothings_readiness)
{
	struct client *cl = begin_ready(CHUNKS), *other;

	other = client_create(kfile_create(rig, 2, ALL), 0, GAIA_PROT_RW, ALL);
	cr_assert_eq(acquire_range(cl, 0, 3 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(acquire_range(other, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ), -ENOMEM);
	give_all_back(cl);
	looks_begin();
	acquire_all(cl, GAIA_PROT_READ);
	expect_looks(1, 0, 0, 0);
	cr_assert_eq(cl->revoked, 0);
	end();
}

/* What is held without anybody's having looked keeps its readiness when others need room, and its place. */
Test(ready, what_is_held_stays_ready)
{
	struct client *cl = begin_ready(CHUNKS);

	cr_assert_eq(acquire_range(cl, 0, 3 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	client_end(begin_rival(2, GAIA_CHUNK));
	cr_assert_null(client_at(cl, AT(3, 0)));
	looks_begin();
	cr_assert_eq(acquire_range(cl, 0, 3 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	expect_looks(1, 0, 0, 0);
	give_all_back(cl);
	give_all_back(cl);
	cr_assert_eq(pinned(), 0);
	end();
}

/* They are in use by an acquire to come as well. */
Test(ready, what_is_pinned_counts_once)
{
	struct client *cl = begin_ready(CHUNKS + 2), *idle = begin_rival(2, GAIA_CHUNK);

	acquire_all(cl, GAIA_PROT_RW | GAIA_PROT_PIN);
	cr_assert_eq(cl->revoked, 0);
	begin_rival(3, GAIA_CHUNK);
	cr_assert_eq(idle->revoked, 0);
	looks_begin();
	acquire_all(cl, GAIA_PROT_READ);
	cr_assert_eq(acquire_range(idle, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	expect_looks(2, 0, 0, 0);
	end();
}

/* Nobody has looked at what it held, which is in the way. */
Test(ready, the_dead_give_room)
{
	struct client *cl = begin_ready(CHUNKS);

	acquire_all(cl, GAIA_PROT_RW);
	expect_looks(1, 0, 0, 0);
	client_die(cl);
	begin_rival(2, GAIA_CHUNK);
	end();
}

/* ---- several clients ---- */

/* A second client of the same device, and both are ready. */
static struct client *begin_ready_too(struct client *cl, unsigned prot)
{
	struct client *other = client_create(kf, 0, GAIA_PROT_RW, ALL);

	acquire_all(other, prot);
	give_all_back(other);
	acquire_all(cl, prot);
	give_all_back(cl);
	looks_begin();
	return other;
}

static void read_by_turns(struct client *cl, struct client *other)
{
	acquire_all(cl, GAIA_PROT_READ);
	acquire_all(other, GAIA_PROT_READ);
	give_all_back(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	give_all_back(other);
}

Test(ready, several_clients_by_turns)
{
	struct client *cl = begin_ready(8), *other = begin_ready_too(cl, GAIA_PROT_READ);

	for (unsigned k = 0; k < 3; k++) {
		acquire_all(cl, GAIA_PROT_READ);
		acquire_all(other, GAIA_PROT_READ);
		give_all_back(cl);
		acquire_all(cl, GAIA_PROT_READ);
		give_all_back(other);
		give_all_back(cl);
	}
	expect_looks(9, 0, 0, 0);
	/* To evict and to check looks at them; and each finds what it holds. */
	read_by_turns(cl, other);
	looks_begin();
	acquire_all(cl, GAIA_PROT_READ);
	acquire_all(other, GAIA_PROT_READ);
	cache_check(rig->cache);
	give_all_back(cl);
	cr_assert_eq(pinned(), ALL);
	give_all_back(other);
	cr_assert_eq(pinned(), 0);
	end();
}

Test(ready, several_clients_that_write_by_turns)
{
	struct client *cl = begin_ready(8), *other = begin_ready_too(cl, GAIA_PROT_RW);

	/* To release what was held to be written locks it. */
	for (unsigned k = 0; k < 3; k++) {
		acquire_all(other, GAIA_PROT_RW);
		give_all_back(other);
		expect_looks(0, CHUNKS, 0, 0);
		acquire_all(cl, GAIA_PROT_RW);
		acquire_all(other, GAIA_PROT_RW);
		expect_looks(1, CHUNKS, 0, 0);
		give_all_back(other);
		give_all_back(cl);
	}
	end();
}

/* An acquire that is not ready, of chunks that are current. */
Test(ready, a_part_that_another_client_acquires)
{
	struct client *cl = begin_ready(8), *other;

	rig->user = (struct cache_user){ .uid = 1000 };
	other = client_create(kf, 0, GAIA_PROT_RW, ALL); /* never ready */
	acquire_all(other, GAIA_PROT_READ);
	give_all_back(other);
	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	looks_begin();
	for (unsigned k = 0; k < 3; k++) {
		acquire_all(other, GAIA_PROT_READ);
		acquire_all(cl, GAIA_PROT_READ);
		expect_looks(1, CHUNKS, 0, 0);
		give_all_back(other);
		give_all_back(cl);
	}
	acquire_all(cl, GAIA_PROT_READ);
	cr_assert_eq(acquire_range(other, AT(1, 0), GAIA_PAGE, GAIA_PROT_RW), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(1, 0), GAIA_CHUNK), -EBUSY);
	give_all_back(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(1, 0), GAIA_CHUNK), -EBUSY);
	give_all_back(other);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(1, 0), GAIA_CHUNK), 0);
	end();
}

/* Both hold the same page for writing, and nobody has looked. */
Test(ready, two_that_write)
{
	struct client *cl = begin_ready(8), *other = begin_ready_too(cl, GAIA_PROT_RW);

	/* The release of the one has looked at what the other had. */
	acquire_all(other, GAIA_PROT_READ);
	give_all_back(other);
	looks_begin();
	cr_assert_eq(acquire_range(cl, AT(1, 2), GAIA_PAGE, GAIA_PROT_RW), 0);
	cr_assert_eq(acquire_range(other, AT(1, 2), GAIA_PAGE, GAIA_PROT_RW), 0);
	expect_looks(2, 0, 0, 0);
	client_store(cl, "a", 1, AT(1, 2));
	client_store(other, "b", 1, AT(1, 2) + 1);
	cr_assert_eq(client_release(other, AT(1, 2), GAIA_PAGE), 0);
	expect_cpu(AT(1, 2) + 1, "b");
	client_store(cl, "c", 1, AT(1, 2) + 2);
	cache_check(rig->cache);
	cr_assert_eq(client_release(cl, AT(1, 2), GAIA_PAGE), 0);
	expect_cpu(AT(1, 2), "abc");
	end();
}

/* What it stored was held, to be written, without anybody's having looked. */
Test(ready, what_another_client_had_not_released_goes_with_it)
{
	struct client *cl = begin_ready(8), *other = begin_ready_too(cl, GAIA_PROT_RW);
	char seen[11] = "";

	acquire_all(other, GAIA_PROT_READ);
	give_all_back(other);
	looks_begin();
	cr_assert_eq(acquire_range(other, AT(1, 0), 10, GAIA_PROT_RW), 0);
	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	expect_looks(2, 0, 0, 0);
	client_store(other, "unreleased", 10, AT(1, 0));
	client_die(other);
	acquire_all(cl, GAIA_PROT_READ);
	client_load(cl, seen, 10, AT(1, 0));
	cr_assert_str_eq(seen, "");
	give_all_back(cl);
	/* The same of a part of a range. */
	other = begin_ready_too(cl, GAIA_PROT_RW);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(3, 0), GAIA_CHUNK), 0);
	acquire_all(other, GAIA_PROT_READ);
	give_all_back(other);
	cr_assert_eq(acquire_range(other, AT(1, 0), 10, GAIA_PROT_RW), 0);
	client_store(other, "unreleased", 10, AT(1, 0));
	client_die(other);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(3, 0), GAIA_CHUNK), 0);
	acquire_all(cl, GAIA_PROT_READ);
	client_load(cl, seen, 10, AT(1, 0));
	cr_assert_str_eq(seen, "");
	end();
}

Test(ready, as_many_clients_as_can_be_asked)
{
	struct client *cl = begin_ready(8), *others[SHARERS_MOST + 1];

	for (unsigned k = 0; k <= SHARERS_MOST; k++) {
		others[k] = client_create(kf, 0, GAIA_PROT_RW, ALL);
		acquire_all(others[k], GAIA_PROT_READ);
		give_all_back(others[k]);
	}
	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	looks_begin();
	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	expect_looks(0, CHUNKS, 0, 0);
	client_end(others[3]);
	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	looks_begin();
	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	expect_looks(1, 0, 0, 0);
	end();
}

/* It fails for the last chunk: of the others nothing stays held. */
Test(ready, what_was_held_is_taken_back_on_failure)
{
	struct client *cl = begin_ready(8);

	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(3, 0), GAIA_CHUNK), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	for (unsigned write = 0; write < 2; write++) {
		cr_assert_eq(acquire_range(cl, 0, AT(3, 0), GAIA_PROT_RW), 0);
		cr_assert_eq(cache_release(cl->mapping, 0, AT(3, 0), NULL), 0);
		looks_begin();
		fault_arm("store.read", -EIO, 0, 0);
		cr_assert_eq(acquire_range(cl, 0, ALL, write ? GAIA_PROT_RW : GAIA_PROT_READ), -EIO);
		fault_disarm_all();
		expect_looks(0, 0, 1, 0);
		cr_assert_eq(pinned(), 0);
		cache_check(rig->cache);
	}
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* Holds count, and each release takes one away: whether the chunk was looked at when it was added, or is by the release, or not. */
Test(ready, releases_take_one_hold_each)
{
	struct client *cl = begin_ready(8);

	acquire_all(cl, GAIA_PROT_READ);
	acquire_all(cl, GAIA_PROT_READ);
	write_cpu(AT(1, 0), "x"); /* not ready any more */
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	give_all_back(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(0, 0), GAIA_CHUNK), -EBUSY);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(1, 0), GAIA_CHUNK), -EBUSY);
	give_all_back(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(0, 0), GAIA_CHUNK), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(1, 0), GAIA_CHUNK), 0);
	end();
}

/* Of one chunk some pages are held to be written, others to be read; and another chunk is ready. */
Test(ready, a_release_of_both_kinds)
{
	struct client *cl = begin_ready(8);

	acquire_all(cl, GAIA_PROT_READ);
	cr_assert_eq(acquire_range(cl, AT(1, 2), GAIA_PAGE, GAIA_PROT_RW), 0);
	expect_looks(2, 0, 0, 0);
	client_store(cl, "mine", 4, AT(1, 2));
	give_all_back(cl);
	expect_cpu(AT(1, 2), "mine");
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(0, 0), GAIA_CHUNK), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(1, 0), GAIA_CHUNK), -EBUSY, "two acquires, one release");
	give_all_back(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(1, 0), GAIA_CHUNK), 0);
	end();
}

/* A client's unreleased stores go with it: a client that shares its memory is not ready there. */
Test(ready, not_where_another_client_may_store)
{
	struct client *cl = begin_ready(8), *other = client_create(kf, 0, GAIA_PROT_RW, ALL);

	cr_assert_eq(acquire_range(other, AT(1, 0), 10, GAIA_PROT_RW), 0);
	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	client_store(other, "unreleased", 10, AT(1, 0));
	client_die(other);
	acquire_all(cl, GAIA_PROT_READ);
	{
		char seen[11] = "";

		client_load(cl, seen, 10, AT(1, 0));
		cr_assert_str_eq(seen, "");
	}
	give_all_back(cl);
	client_end(other);
	end();
}

Test(ready, what_is_cut_off_is_not_ready)
{
	struct client *cl = begin_ready(8);

	write_cpu(AT(3, 0), "tail");
	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	cr_assert_eq(cpu_truncate(kf, AT(3, 0)), 0);
	cr_assert_eq(cpu_truncate(kf, ALL), 0);
	acquire_all(cl, GAIA_PROT_READ);
	{
		char seen[5] = "";

		client_load(cl, seen, 4, AT(3, 0));
		cr_assert_str_eq(seen, "");
	}
	give_all_back(cl);
	end();
}

/* Of the last chunk only what lies in the file is ready, and what the file grows by is looked at. */
Test(ready, up_to_the_end_of_the_file)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1 }, AT(1, 3));
	cl = new_client(0);
	cr_assert_eq(acquire_range(cl, 0, AT(1, 3), GAIA_PROT_RW), 0);
	cr_assert_eq(cache_release(cl->mapping, 0, AT(1, 3), NULL), 0);
	looks_begin();
	cr_assert_eq(acquire_range(cl, 0, AT(1, 3), GAIA_PROT_READ), 0);
	expect_looks(1, 0, 0, 0);
	cache_check(rig->cache);
	cr_assert_eq(cpu_truncate(kf, AT(2, 0)), 0);
	write_cpu(AT(1, 4), "grown");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	cr_assert_eq(cache_release(cl->mapping, 0, AT(1, 3), NULL), 0);
	looks_begin();
	cr_assert_eq(acquire_range(cl, 0, AT(1, 5), GAIA_PROT_READ), 0);
	expect_looks(0, 0, 1, 2);
	{
		char seen[6] = "";

		client_load(cl, seen, 5, AT(1, 4));
		cr_assert_str_eq(seen, "grown");
	}
	cr_assert_eq(cache_release(cl->mapping, 0, AT(1, 5), NULL), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "one hold each");
	end();
}

/* The mapping ends with holds that nobody has looked at. */
Test(ready, a_client_that_ends)
{
	struct client *cl = begin_ready(8);

	acquire_all(cl, GAIA_PROT_RW);
	client_store(cl, "void", 4, 0);
	client_end(cl);
	cr_assert_eq(pinned(), 0);
	cl = client_create(kf, 0, GAIA_PROT_READ, ALL);
	acquire_all(cl, GAIA_PROT_READ);
	{
		char seen[5] = "";

		client_load(cl, seen, 4, 0);
		cr_assert_str_eq(seen, "");
	}
	end();
}

/* What they pin is limited: each chunk is looked at, but no page. */
Test(ready, users_who_are_limited_are_counted)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 8 }, ALL);
	rig->user = (struct cache_user){ .uid = 1000 };
	cl = client_create(kf, 0, GAIA_PROT_RW, ALL);
	acquire_all(cl, GAIA_PROT_RW);
	give_all_back(cl);
	looks_begin();
	acquire_all(cl, GAIA_PROT_READ);
	expect_looks(0, CHUNKS, 0, 0);
	give_all_back(cl);
	end();
}

/* A client that could hold all of it, and holds nothing; what it read of chunk 1 is in the store only. */
static struct client *begin_armed(void)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1 }, ALL);
	write_cpu(AT(1, 3), "old");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	cl = client_create(kf, 0, GAIA_PROT_RW, ALL);
	acquire_all(cl, GAIA_PROT_RW);
	give_all_back(cl);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	kernel_reclaim(kf, 0, 0);
	return cl;
}

/* Held to be written without anybody's having looked: the punch keeps what the release will be compared with all the same. */
Test(ready, a_hole_stays_a_hole)
{
	struct client *cl = begin_armed();

	acquire_all(cl, GAIA_PROT_READ);
	give_all_back(cl);
	looks_begin();
	acquire_all(cl, GAIA_PROT_RW);
	expect_looks(1, 0, 0, 0);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, AT(1, 0), 16 * GAIA_PAGE), 0);
	client_store(cl, "X", 1, AT(1, 3) + 100);
	give_all_back(cl);
	{
		char seen[101];

		cr_assert_eq(cpu_read(kf, seen, sizeof(seen), AT(1, 3)), (ssize_t)sizeof(seen));
		cr_assert_arr_eq(seen, ((char[3]){ 0 }), 3);
		cr_assert_eq(seen[100], 'X');
	}
	end();
}

static int punch(void *arg)
{
	(void)arg;
	return cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, AT(1, 0), 16 * GAIA_PAGE);
}

static bool is_hole(void)
{
	char seen[3] = "...";

	cr_assert_eq(cpu_read(kf, seen, sizeof(seen), AT(1, 3)), (ssize_t)sizeof(seen));
	return !seen[0] && !seen[1] && !seen[2];
}

Test(ready, to_punch_what_nobody_holds_reads_nothing)
{
	struct client *cl = begin_armed();
	char seen[4] = "...";

	fault_arm("store.read", -EIO, 0, 0);
	fault_arm("device.copy_out", -EIO, 0, 0);
	cr_assert_eq(punch(NULL), 0);
	fault_disarm_all();
	cr_assert(is_hole());
	acquire_all(cl, GAIA_PROT_RW);
	client_load(cl, seen, 3, AT(1, 3));
	cr_assert_str_eq(seen, "");
	client_store(cl, "X", 1, AT(1, 3) + 100);
	give_all_back(cl);
	cr_assert(is_hole());
	expect_cpu(AT(1, 3) + 100, "X");
	end();
}

static int acquire_chunk_1(void *cl)
{
	return acquire_range(cl, AT(1, 0), GAIA_CHUNK, GAIA_PROT_READ);
}

static bool may_write_chunk_1(struct mapping *m)
{
	bool ready;

	pthread_mutex_lock(&m->lock);
	ready = holds_first(&m->ready[READY_TO_WRITE], GAIA_CHUNK_PAGES, 2 * GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&m->lock);
	return ready;
}

/* An acquire that has looked at the pages before the punch, and succeeds while that is under way, is none to write without a look. */
Test(ready, a_hole_stays_a_hole_beside_an_acquire, .timeout = 60)
{
	struct held punching = { .point = "store.allocate", .call = punch }, acquiring;
	struct client *cl;
	bool at_once;

	begin_armed();
	cl = client_create(kf, 0, GAIA_PROT_RW, ALL);
	acquiring = (struct held){ .point = "ready.before", .call = acquire_chunk_1, .arg = cl };
	held_begin(&acquiring);
	held_begin(&punching);
	cr_assert_eq(held_end(&acquiring), 0);
	at_once = may_write_chunk_1(cl->mapping);
	if (at_once)
		cr_assert_eq(acquire_range(cl, AT(1, 3), GAIA_PAGE, GAIA_PROT_RW), 0);
	cr_assert_eq(held_end(&punching), 0);
	if (!at_once)
		cr_assert_eq(acquire_range(cl, AT(1, 3), GAIA_PAGE, GAIA_PROT_RW), 0);
	client_store(cl, "X", 1, AT(1, 3) + 100);
	give_all_back(cl);
	cr_assert(is_hole());
	expect_cpu(AT(1, 3) + 100, "X");
	end();
}

static int read_directly(void *arg)
{
	char byte;

	(void)arg;
	return cpu_read_direct(kf, &byte, 1, 0) == 1 ? 0 : -EIO;
}

/* It had taken a chunk that was ready; that was looked at, is ready again, and is given back. */
Test(ready, an_acquire_that_is_given_up)
{
	struct client *cl = begin_ready(8);
	struct acquire a = { .cl = cl, .off = 0, .len = ALL };
	struct held h = giving(&a);

	cr_assert_eq(cache_evict(kf->cfile, 0, AT(3, 0), GAIA_CHUNK), 0);
	held_begin(&h);
	cr_assert_eq(read_directly(NULL), 0);
	cr_assert_eq(acquire_range(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	atomic_store(&a.verdict, CACHE_GIVEN_UP);
	cr_assert_eq(held_end(&h), -EINTR);
	cr_assert_eq(cache_release(cl->mapping, 0, GAIA_CHUNK, NULL), 0);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* It had taken a chunk in which another client stored, which then ended: what is given back is not the file's. */
static void given_up_after_another_has_ended(bool dies)
{
	struct client *cl = begin_ready(8), *other = client_create(kf, 0, GAIA_PROT_RW, ALL);
	struct acquire a = { .cl = cl, .off = 0, .len = ALL };
	struct held h = giving(&a);
	char seen[6] = ".....";

	cr_assert_eq(acquire_range(other, AT(0, 5), GAIA_PAGE, GAIA_PROT_RW), 0);
	acquire_all(cl, GAIA_PROT_RW);
	give_all_back(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(3, 0), GAIA_CHUNK), 0);
	held_begin(&h);
	client_store(other, "other", 5, AT(0, 5));
	if (dies)
		client_die(other);
	client_end(other);
	atomic_store(&a.verdict, CACHE_GIVEN_UP);
	cr_assert_eq(held_end(&h), -EINTR);
	cr_assert_eq(acquire_range(cl, AT(0, 5), GAIA_PAGE, GAIA_PROT_READ), 0);
	client_load(cl, seen, 5, AT(0, 5));
	cr_assert_arr_eq(seen, ((char[5]){ 0 }), 5);
	give_all_back(cl);
	end();
}

Test(ready, an_acquire_that_is_given_up_after_another_client_has_unmapped)
{
	given_up_after_another_has_ended(false);
}

Test(ready, an_acquire_that_is_given_up_after_another_client_has_died)
{
	given_up_after_another_has_ended(true);
}

/* Its client has unmapped it, while an acquire on it is under way: what was stored is void at once. */
Test(ready, what_a_mapping_stored_that_is_about_to_end)
{
	struct client *cl = begin_ready(8), *other = client_create(kf, 0, GAIA_PROT_RW, ALL);
	struct acquire a = { .cl = other, .off = 0, .len = ALL };
	struct held h = giving(&a);
	char seen[6] = ".....";

	acquire_all(other, GAIA_PROT_RW);
	give_all_back(other);
	cr_assert_eq(acquire_range(other, AT(0, 5), GAIA_PAGE, GAIA_PROT_RW), 0);
	client_store(other, "other", 5, AT(0, 5));
	cr_assert_eq(cache_evict(kf->cfile, 0, AT(3, 0), GAIA_CHUNK), 0);
	held_begin(&h);
	cache_unmapping(other->mapping);
	cr_assert_eq(acquire_range(cl, AT(0, 5), GAIA_PAGE, GAIA_PROT_READ), 0);
	client_load(cl, seen, 5, AT(0, 5));
	cr_assert_arr_eq(seen, ((char[5]){ 0 }), 5);
	give_all_back(cl);
	(void)held_end(&h);
	client_end(other);
	cr_assert_eq(acquire_range(cl, AT(0, 5), GAIA_PAGE, GAIA_PROT_READ), 0);
	client_load(cl, seen, 5, AT(0, 5));
	cr_assert_arr_eq(seen, ((char[5]){ 0 }), 5);
	give_all_back(cl);
	end();
}

/* An acquire to write that does not fit leaves what was ready as it was. */
Test(ready, what_does_not_fit_spoils_nothing)
{
	struct client *cl = begin_ready(CHUNKS), *other = client_create(kfile_create(rig, 2, GAIA_CHUNK), 0, GAIA_PROT_RW, GAIA_CHUNK);

	cr_assert_eq(cache_evict(kf->cfile, 0, AT(3, 0), GAIA_CHUNK), 0);
	cr_assert_eq(acquire_range(cl, 0, AT(3, 0), GAIA_PROT_RW), 0);
	cr_assert_eq(cache_release(cl->mapping, 0, AT(3, 0), NULL), 0);
	cr_assert_eq(acquire_range(other, 0, 1, GAIA_PROT_READ), 0);
	looks_begin();
	cr_assert_eq(acquire_range(cl, 0, ALL, GAIA_PROT_RW), -ENOMEM);
	cr_assert_eq(acquire_range(cl, 0, AT(3, 0), GAIA_PROT_RW), 0);
	cr_assert_eq(counter_value(CTR_home_to_device) - before.sent, 0, "nothing had to come again");
	end();
}

/* ---- threads ---- */

#define ROUNDS 200u
static atomic_bool done;

static struct {
	struct client *cl;
	_Atomic int tid;
	atomic_bool over;
	int err;
} releaser;

static void *release_all_of_it(void *arg)
{
	(void)arg;
	atomic_store(&releaser.tid, (int)syscall(SYS_gettid));
	releaser.err = cache_release(releaser.cl->mapping, 0, ALL, NULL);
	atomic_store(&releaser.over, true);
	return NULL;
}

/* A chunk that is just ceasing to be ready is held as before. */
Test(ready, a_release_sees_what_is_held_while_it_ends)
{
	struct held reader = { .point = "ready.before_catch_up", .call = read_directly };
	pthread_t thread;

	releaser.cl = begin_ready(8);
	acquire_all(releaser.cl, GAIA_PROT_RW);
	expect_looks(1, 0, 0, 0);
	client_store(releaser.cl, "new", 3, 0);
	held_begin(&reader);
	cr_assert_eq(pthread_create(&thread, NULL, release_all_of_it, NULL), 0);
	/* It waits for the chunk, unless it found nothing to release. */
	while (!atomic_load(&releaser.over) && !(atomic_load(&releaser.tid) && thread_sleeps(releaser.tid)))
		sched_yield();
	cr_assert_eq(held_end(&reader), 0);
	pthread_join(thread, NULL);
	cr_assert_eq(releaser.err, 0);
	expect_cpu(0, "new");
	end();
}

static void *keep_reading(void *arg)
{
	while (!atomic_load(&done))
		bug_on(read_directly(arg));
	return NULL;
}

static void *keep_evicting(void *arg)
{
	const char *mode = getenv("FAKE_CUDA");
	struct client *other = arg;

	/* With a driver whose importers keep what is evicted there is no room for more. */
	if (mode && strstr(mode, "busy_importers"))
		return NULL;
	for (uint64_t k = 0; !atomic_load(&done); k++) {
		bug_on(acquire_range(other, k % CHUNKS * GAIA_CHUNK, 1, GAIA_PROT_READ));
		bug_on(cache_release(other->mapping, 0, ALL, NULL));
	}
	return NULL;
}

static atomic_bool released;

static void *release_page(void *arg)
{
	struct client *cl = arg;

	bug_on(cache_release(cl->mapping, 0, GAIA_PAGE, NULL));
	atomic_store(&released, true);
	return NULL;
}

static unsigned pins_of(struct replica *rep)
{
	unsigned n;

	pthread_mutex_lock(&rep->dev->lock);
	n = rep->pins;
	pthread_mutex_unlock(&rep->dev->lock);
	return n;
}

/* A release that comes when the chunk is not ready any more, and what is held has not been counted yet. */
Test(ready, a_release_between_ready_and_counted, .timeout = 60)
{
	struct client *cl = begin_ready(8);
	struct held reader = { .point = "ready.before_catch_up", .call = read_directly };
	struct chunk *ch = chunk_get(kf->cfile, 0, false);
	struct replica *rep = ch->replica[0];
	pthread_t thread;
	char seen;

	cr_assert_eq(acquire_range(cl, 0, GAIA_PAGE, GAIA_PROT_RW), 0);
	expect_looks(1, 0, 0, 0);
	client_store(cl, "X", 1, 0);
	held_begin(&reader);
	cr_assert_eq(pthread_create(&thread, NULL, release_page, cl), 0);
	/* The grant has one, and the release. */
	while (pins_of(rep) < 2 && !atomic_load(&released))
		sched_yield();
	cr_assert_eq(held_end(&reader), 0);
	pthread_join(thread, NULL);
	cr_assert_eq(cpu_read_direct(kf, &seen, 1, 0), 1);
	cr_assert_eq(seen, 'X');
	chunk_put(ch);
	end();
}

static int acquire_all_to_read(void *cl)
{
	return acquire_range(cl, 0, ALL, GAIA_PROT_READ);
}

/* What is ready between, before and behind chunks that have to be brought: each of two acquires settles its own holds of it, once. */
Test(ready, each_acquire_settles_its_own_holds)
{
	struct client *cl = begin_ready(8);
	struct held acquiring = { .point = "ready.before", .call = acquire_all_to_read, .arg = cl };
	const struct hold *h;

	write_cpu(AT(1, 7), "new");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	held_begin(&acquiring);
	write_cpu(AT(CHUNKS - 2, 7), "new");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	acquire_all(cl, GAIA_PROT_READ);
	/* The first one's are coming still: only our own can be taken. */
	give_all_back(cl);
	give_all_back(cl);
	cr_assert_eq(held_end(&acquiring), 0);
	h = holds_first(&cl->mapping->holds, 0, CHUNKS * GAIA_CHUNK_PAGES);
	cr_assert(h && h->a == 0 && h->b == CHUNKS * GAIA_CHUNK_PAGES && h->n == 1 && h->coming == 0, "one span, of one hold that counts");
	give_all_back(cl);
	cr_assert_null(holds_first(&cl->mapping->holds, 0, CHUNKS * GAIA_CHUNK_PAGES));
	end();
}

/* While pages are locked and room is needed all the time: what is released is seen, each time. */
Test(ready, each_release_is_seen)
{
	struct client *cl = begin_ready(CHUNKS + 1), *other;
	pthread_t reader, evictor;
	uint64_t seen;

	other = client_create(kfile_create(rig, 2, ALL), 0, GAIA_PROT_RW, ALL);
	fault_arm_delay("ready.before_catch_up", 300, 1);
	pthread_create(&reader, NULL, keep_reading, NULL);
	pthread_create(&evictor, NULL, keep_evicting, other);
	for (uint64_t n = 1; n <= ROUNDS; n++) {
		acquire_all(cl, GAIA_PROT_RW);
		client_store(cl, &n, sizeof(n), 0);
		give_all_back(cl);
		cr_assert_eq(cpu_read_direct(kf, &seen, sizeof(seen), 0), (ssize_t)sizeof(seen));
		cr_assert_eq(seen, n);
		acquire_all(cl, GAIA_PROT_READ);
		give_all_back(cl);
	}
	atomic_store(&done, true);
	pthread_join(reader, NULL);
	pthread_join(evictor, NULL);
	end();
}

static void *keep_acquiring(void *arg)
{
	struct client *cl = arg;

	while (!atomic_load(&done)) {
		bug_on(acquire_range(cl, 0, ALL, GAIA_PROT_READ));
		bug_on(cache_release(cl->mapping, 0, ALL, NULL));
	}
	return NULL;
}

/* The same of one client by another of the same device, beside a third one. */
Test(ready, each_release_is_seen_by_another_client)
{
	struct client *cl = begin_ready(CHUNKS + 1), *other = begin_ready_too(cl, GAIA_PROT_RW), *third, *rival;
	pthread_t reader, evictor, acquirer;
	uint64_t seen;

	third = client_create(kf, 0, GAIA_PROT_RW, ALL);
	rival = client_create(kfile_create(rig, 2, ALL), 0, GAIA_PROT_RW, ALL);
	fault_arm_delay("ready.before_catch_up", 300, 1);
	pthread_create(&reader, NULL, keep_reading, NULL);
	pthread_create(&evictor, NULL, keep_evicting, rival);
	pthread_create(&acquirer, NULL, keep_acquiring, third);
	for (uint64_t n = 1; n <= ROUNDS / 4; n++) {
		struct client *writes = n % 2 ? cl : other, *reads = n % 2 ? other : cl;

		acquire_all(reads, GAIA_PROT_READ);
		cr_assert_eq(acquire_range(writes, AT(n % CHUNKS, 0), 2 * GAIA_PAGE, GAIA_PROT_RW), 0);
		client_store(writes, &n, sizeof(n), AT(n % CHUNKS, 1));
		cr_assert_eq(cache_release(writes->mapping, AT(n % CHUNKS, 0), 2 * GAIA_PAGE, NULL), 0);
		give_all_back(reads);
		acquire_all(reads, GAIA_PROT_READ);
		client_load(reads, &seen, sizeof(seen), AT(n % CHUNKS, 1));
		cr_assert_eq(seen, n);
		cr_assert_eq(cpu_read_direct(kf, &seen, sizeof(seen), AT(n % CHUNKS, 1)), (ssize_t)sizeof(seen));
		cr_assert_eq(seen, n);
		give_all_back(reads);
	}
	atomic_store(&done, true);
	pthread_join(reader, NULL);
	pthread_join(evictor, NULL);
	pthread_join(acquirer, NULL);
	end();
}

/* Clients come, store, and end without a release, beside one that is ready again and again. */
Test(ready, the_dead_leave_nothing)
{
	struct client *cl = begin_ready(8), *third = begin_ready_too(cl, GAIA_PROT_READ), *other;
	pthread_t reader, acquirer;
	char seen[11] = "";

	fault_arm_delay("ready.before_catch_up", 300, 1);
	pthread_create(&reader, NULL, keep_reading, NULL);
	pthread_create(&acquirer, NULL, keep_acquiring, third);
	for (unsigned n = 0; n < ROUNDS / 8; n++) {
		other = client_create(kf, 0, GAIA_PROT_RW, ALL);
		cr_assert_eq(acquire_range(other, AT(1, 0), 10, GAIA_PROT_RW), 0);
		acquire_all(cl, GAIA_PROT_READ);
		give_all_back(cl);
		client_store(other, "unreleased", 10, AT(1, 0));
		client_die(other);
		acquire_all(cl, GAIA_PROT_READ);
		client_load(cl, seen, 10, AT(1, 0));
		cr_assert_str_eq(seen, "");
		client_end(other);
		give_all_back(cl);
	}
	atomic_store(&done, true);
	pthread_join(reader, NULL);
	pthread_join(acquirer, NULL);
	end();
}
