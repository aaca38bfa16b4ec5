/*
 * track.c - ids and bits against what they stand for: full version vectors, on random histories.
 */
#include <criterion/criterion.h>

#include "device_io.h"

#define MUST(...) cr_assert(__VA_ARGS__)

static uint64_t choices; /* the seed of those to come */

static unsigned choose(unsigned n)
{
	return random_below(&choices, n);
}

#include "track_vectors.h"

Test(track, says_what_vectors_say)
{
	for (uint64_t seed = 1; seed <= 300; seed++) {
		begin();
		choices = seed * 0x9e3779b97f4a7c15;
		for (unsigned k = 0; k < 1000; k++) {
			event();
			agree();
		}
	}
}

/* Ids come round while one that is old is still somebody's base. */
Test(track, ids_are_not_given_again_while_they_are_referred_to)
{
	track_id old, kernel;

	begin();
	acquire(0, true);
	old = w.r[0].seen;
	cpu_write();
	window_open();
	kernel = w.t.kernel_base;
	w.kernel_has = true;
	w.kernel_base = w.home_moment;
	for (unsigned k = 0; k < 3000000; k++) {
		cpu_write();
		cr_assert_neq(w.t.home_id, 0);
		cr_assert_neq(w.t.home_id, old);
		cr_assert_neq(w.t.home_id, kernel);
		if (k % 10007 == 0) {
			acquire(1, true);
			release(1, k % 2);
		}
		if (k % 65500 == 0)
			agree();
	}
	agree();
}

/* ---- plans ---- */

Test(track_plan, is_this_table)
{
	enum { SELF_OLD = 1, OTHER_AHEAD = 2, WRITERS = 4 };
	static const struct {
		uint8_t flags;
		unsigned more;
		enum track_step read, write;
	} rows[] = {
		{ 0, SELF_OLD, TRACK_SEND, TRACK_SEND },
		{ 0, 0, TRACK_SEND, TRACK_SEND },
		{ REPLICA_PRESENT, 0, TRACK_NOTHING, TRACK_NOTHING },
		{ REPLICA_PRESENT, WRITERS, TRACK_NOTHING, TRACK_NOTHING },
		{ REPLICA_PRESENT, SELF_OLD, TRACK_SEND, TRACK_SEND },
		{ REPLICA_PRESENT, SELF_OLD | WRITERS, TRACK_PULL, TRACK_PULL },
		{ REPLICA_PRESENT, OTHER_AHEAD, TRACK_FETCH, TRACK_FETCH },
		{ 0, OTHER_AHEAD, TRACK_FETCH, TRACK_FETCH },
		{ REPLICA_PRESENT | REPLICA_AHEAD, 0, TRACK_NOTHING, TRACK_SECURE },
		{ REPLICA_PRESENT | REPLICA_AHEAD, SELF_OLD, TRACK_FETCH, TRACK_FETCH },
		{ REPLICA_PRESENT | REPLICA_AHEAD, OTHER_AHEAD, TRACK_FETCH, TRACK_FETCH },
		{ REPLICA_PRESENT | REPLICA_AHEAD | REPLICA_SNAPPED, WRITERS, TRACK_NOTHING,
		  TRACK_NOTHING },
		/* Its writers were discarded: what was released is in the snapshot only. */
		{ REPLICA_PRESENT | REPLICA_AHEAD | REPLICA_SNAPPED, 0, TRACK_FETCH, TRACK_FETCH },
		/* All of it counts as written; but not as written at the same time as what others released before this acquire. */
		{ REPLICA_PRESENT | REPLICA_FRESH, SELF_OLD | WRITERS, TRACK_NOTHING, TRACK_NOTHING },
		{ REPLICA_PRESENT | REPLICA_FRESH, SELF_OLD | WRITERS | OTHER_AHEAD, TRACK_FETCH, TRACK_FETCH },
	};

	for (unsigned k = 0; k < ARRAY_LEN(rows); k++) {
		begin();
		w.r[0].flags = rows[k].flags;
		w.r[0].seen = rows[k].more & SELF_OLD ? 9 : w.t.home_id;
		w.r[0].written = rows[k].more & WRITERS;
		if (rows[k].more & OTHER_AHEAD)
			w.r[2] = (struct page_replica){ .seen = w.t.home_id, .cut = GAIA_PAGE,
							.flags = REPLICA_PRESENT | REPLICA_AHEAD };
		cr_assert_eq(track_plan(&w.v, 0, false), rows[k].read, "row %u, to read", k);
		cr_assert_eq(track_plan(&w.v, 0, true), rows[k].write, "row %u, to write", k);
	}
}

Test(track_plan, what_a_truncate_voided_is_never_current)
{
	begin();
	acquire(0, true);
	w.r[0].cut = 100;
	cr_assert_eq(track_plan(&w.v, 0, false), TRACK_PULL);
}

Test(track_plan, what_is_held_beyond_the_end_counts_when_it_was_brought)
{
	begin();
	track_voided(&w.r[0]);
	w.r[0].written = true;
	cr_assert_not(track_base_needed(&w.v, w.t.home_id));
	cr_assert_not(track_released(&w.r[0], true, true), "dropped");
	home_changed();
	cr_assert_eq(track_plan(&w.v, 0, true), TRACK_PULL);
	track_pulled(&w.t, &w.r[0]);
	w.r[0].written = false;
	cr_assert(track_released(&w.r[0], true, false));
	cr_assert(track_ahead(&w.v));
}

/* What it keeps it sends again later: against the base that it had then, and with its races decided if they were. */
Test(kernel, keeps_what_could_not_be_taken)
{
	uint16_t first, second;
	struct page_track t;

	track_init(&t);
	t.may_hold = 0;
	track_kernel_kept(&t);
	cr_assert(t.may_hold);
	first = track_window_open(&t);
	track_kernel_merged(&t, 77);
	second = track_window_open(&t);
	track_kernel_kept(&t);
	cr_assert_eq(t.kernel_base, 77);
	cr_assert(t.met);
	track_window_close(&t, second);
	cr_assert_eq(t.kernel_base, 77);
	second = track_window_open(&t);
	track_window_close(&t, second);
	cr_assert_eq(t.kernel_base, 0, "it was dropped");
	track_kernel_kept(&t);
	cr_assert_eq(t.kernel_base, t.home_id);
	cr_assert_not(t.met);
	track_window_close(&t, first);
	cr_assert(t.may_hold);
}
