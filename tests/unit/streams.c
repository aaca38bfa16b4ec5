/*
 * streams.c - tests of pagecache/streams.h: what is worth reading ahead.
 */
#include <criterion/criterion.h>
#include <errno.h>

#include "gaia/protocol.h"
#include "pagecache/mapping.h"
#include "pagecache/streams.h"

#define END 1000000u /* pages of the mapping */

static struct streams st;
static struct request rq;

static struct page_span span(uint64_t a, uint64_t b)
{
	return (struct page_span){ a, b };
}

static void begin(void)
{
	st = (struct streams){ .all = { 0, END } };
}

static bool acquired(uint64_t a, uint64_t b)
{
	return streams_acquired(&st, span(a, b), &rq);
}

static void ask(uint64_t a, uint64_t b)
{
	cr_assert(streams_ask(&st, (struct request){ .rest = { a, b }, .all = { a, b } }));
}

static void expect_piece(uint64_t most, uint64_t a, uint64_t b)
{
	struct page_span piece;
	uint64_t id;

	cr_assert_gt(st.n_requests, 0);
	id = streams_next(&st, most, &piece);
	cr_assert_eq(piece.a, a, "%lu", (unsigned long)piece.a);
	cr_assert_eq(piece.b, b, "%lu", (unsigned long)piece.b);
	streams_done(&st, id, piece);
}

/* ---- streams ---- */

Test(streams, one_acquire_asks_for_nothing, .init = begin)
{
	cr_assert_not(acquired(100, 200));
}

Test(streams, an_acquire_that_goes_on_asks_for_what_follows, .init = begin)
{
	cr_assert_not(acquired(100, 500));
	cr_assert(acquired(500, 900));
	cr_assert_eq(rq.rest.a, 900);
	cr_assert_eq(rq.rest.b, 1300, "as much as was acquired");
}

Test(streams, the_window_grows_to_its_limit, .init = begin)
{
	uint64_t ahead = 512, most = 0;

	cr_assert_not(acquired(0, 256));
	for (uint64_t at = 256; at < 20 * WINDOW_MOST; at += 256) {
		if (!acquired(at, at + 256))
			continue;
		cr_assert_eq(rq.rest.a, ahead, "no page twice, and none is left out");
		cr_assert_leq(rq.rest.b, at + 256 + WINDOW_MOST);
		cr_assert(rq.guess);
		most = MAX(most, rq.rest.b - (at + 256));
		ahead = rq.rest.b;
	}
	cr_assert_eq(most, WINDOW_MOST);
	cr_assert_gt(ahead, 19 * WINDOW_MOST);
}

Test(streams, the_window_shrinks_when_something_is_lost, .init = begin)
{
	uint64_t before;

	cr_assert_not(acquired(0, 1024));
	cr_assert(acquired(1024, 2048));
	cr_assert(acquired(2048, 3072));
	before = rq.rest.b - 3072;
	st.n_lost = 1;
	cr_assert(acquired(3072, 4096));
	cr_assert_eq(rq.rest.a, 4096, "what was lost is asked for again");
	cr_assert_eq(rq.rest.b - rq.rest.a, before / 2);
	cr_assert_eq(st.n_lost, 0);
}

Test(streams, the_third_at_equal_distances_asks_for_the_next, .init = begin)
{
	cr_assert_not(acquired(0, 8));
	cr_assert_not(acquired(100, 108));
	cr_assert(acquired(200, 208));
	cr_assert_eq(rq.stride, 100);
	cr_assert_eq(rq.rest.a, 300);
	cr_assert_eq(rq.rest.b, 308);
	cr_assert_gt(rq.more, 0);
	cr_assert_leq(rq.more, STEPS_MOST);
	cr_assert_eq(rq.all.b, 308 + rq.more * 100);
}

Test(streams, strides_go_backwards_too_and_end_where_the_mapping_begins, .init = begin)
{
	cr_assert_not(acquired(1000, 1008));
	cr_assert_not(acquired(700, 708));
	cr_assert(acquired(400, 408));
	cr_assert_eq(rq.stride, -300);
	cr_assert_eq(rq.rest.a, 100);
	cr_assert_eq(rq.more, 0);
}

Test(streams, distances_of_unequal_lengths_are_none, .init = begin)
{
	cr_assert_not(acquired(0, 8));
	cr_assert_not(acquired(100, 109));
	cr_assert_not(acquired(200, 208));
}

Test(streams, the_same_again_is_no_stream, .init = begin)
{
	for (unsigned k = 0; k < 10; k++)
		cr_assert_not(acquired(0, 512));
	for (unsigned k = 0; k < 10; k++)
		cr_assert_not(acquired(5000 * (k % 2), 5000 * (k % 2) + 100));
}

Test(streams, the_same_again_and_again_is_remembered_once, .init = begin)
{
	cr_assert_not(acquired(1000, 1100));
	for (unsigned k = 0; k < 2 * HISTORY; k++)
		cr_assert_not(acquired(0, 8));
	cr_assert(acquired(1100, 1200));
}

Test(streams, nothing_beyond_the_mapping_is_asked_for, .init = begin)
{
	st.all = span(0, 1000);
	cr_assert_not(acquired(0, 400));
	cr_assert(acquired(400, 800));
	cr_assert_eq(rq.rest.b, 1000);
	cr_assert_not(acquired(800, 1000));
}

Test(streams, several_go_on_beside_each_other, .init = begin)
{
	static const uint64_t at[STREAMS] = { 0, 100000, 300000, 700000 };

	for (unsigned k = 0; k < STREAMS; k++)
		cr_assert_not(acquired(at[k], at[k] + 256));
	for (unsigned n = 1; n < 5; n++)
		for (unsigned k = 0; k < STREAMS; k++)
			if (acquired(at[k] + n * 256, at[k] + (n + 1) * 256))
				cr_assert_eq(rq.rest.a / 100000, at[k] / 100000);
	for (unsigned k = 0; k < STREAMS; k++)
		cr_assert(streams_want(&st, span(at[k] + 5 * 256, at[k] + 5 * 256 + 1)));
	cr_assert_not(streams_want(&st, span(50000, 60000)));
}

/* ---- advice ---- */

Test(advice, sequential_asks_for_the_largest_window_at_once, .init = begin)
{
	cr_assert_eq(streams_advise(&st, span(0, END), GAIA_ADVISE_SEQUENTIAL), 0);
	cr_assert(acquired(0, 10));
	cr_assert_eq(rq.rest.a, 10);
	cr_assert_eq(rq.rest.b, 10 + WINDOW_MOST);
}

Test(advice, random_asks_for_nothing, .init = begin)
{
	cr_assert_eq(streams_advise(&st, span(0, END), GAIA_ADVISE_RANDOM), 0);
	for (unsigned k = 0; k < 20; k++)
		cr_assert_not(acquired(k * 512, (k + 1) * 512));
}

Test(advice, a_window_ends_where_random_begins, .init = begin)
{
	cr_assert_eq(streams_advise(&st, span(1000, 2000), GAIA_ADVISE_RANDOM), 0);
	cr_assert_not(acquired(0, 400));
	cr_assert(acquired(400, 800));
	cr_assert_eq(rq.rest.a, 800);
	cr_assert_eq(rq.rest.b, 1000);
}

Test(advice, random_takes_guesses_back_but_not_what_was_asked_for, .init = begin)
{
	ask(100, 200);
	cr_assert(streams_ask(&st, (struct request){ .rest = { 300, 400 }, .all = { 300, 400 }, .guess = true }));
	cr_assert_eq(streams_advise(&st, span(0, 1000), GAIA_ADVISE_RANDOM), 0);
	cr_assert(streams_want(&st, span(100, 200)));
	cr_assert_not(streams_want(&st, span(300, 400)));
}

Test(advice, the_last_word_counts, .init = begin)
{
	cr_assert_eq(streams_advise(&st, span(0, END), GAIA_ADVISE_RANDOM), 0);
	cr_assert_eq(streams_advise(&st, span(0, 5000), GAIA_ADVISE_NORMAL), 0);
	cr_assert_not(acquired(0, 400));
	cr_assert(acquired(400, 800));
	cr_assert_not(acquired(6000, 6400));
	cr_assert_not(acquired(6400, 6800));
}

Test(advice, of_too_many_ranges_is_refused_and_leaves_what_there_is, .init = begin)
{
	for (unsigned k = 0; k < ADVICES; k++)
		cr_assert_eq(streams_advise(&st, span(k * 1000, k * 1000 + 10), GAIA_ADVISE_SEQUENTIAL), 0);
	cr_assert_eq(streams_advise(&st, span(500000, 500010), GAIA_ADVISE_SEQUENTIAL), -EAGAIN);
	cr_assert_eq(st.n_advice, ADVICES);
	cr_assert(acquired(0, 5));
	cr_assert_not(acquired(500000, 500005));
	cr_assert_eq(streams_advise(&st, span(0, END), GAIA_ADVISE_NORMAL), 0);
	cr_assert_eq(st.n_advice, 0);
}

/* ---- requests ---- */

Test(requests, go_piece_by_piece_each_in_one_chunk, .init = begin)
{
	ask(GAIA_CHUNK_PAGES - 10, GAIA_CHUNK_PAGES + 150);
	expect_piece(100, GAIA_CHUNK_PAGES - 10, GAIA_CHUNK_PAGES);
	expect_piece(100, GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES + 100);
	expect_piece(100, GAIA_CHUNK_PAGES + 100, GAIA_CHUNK_PAGES + 150);
	cr_assert_eq(st.n_requests, 0);
}

Test(requests, take_turns, .init = begin)
{
	ask(0, 20);
	ask(100, 120);
	expect_piece(10, 0, 10);
	expect_piece(10, 100, 110);
	expect_piece(10, 10, 20);
	expect_piece(10, 110, 120);
	cr_assert_eq(st.n_requests, 0);
}

Test(requests, of_strides_go_range_by_range, .init = begin)
{
	cr_assert(streams_ask(&st, (struct request){ .rest = { 0, 4 }, .all = { 0, 204 }, .stride = 100, .length = 4, .more = 2 }));
	expect_piece(10, 0, 4);
	expect_piece(10, 100, 104);
	expect_piece(10, 200, 204);
	cr_assert_eq(st.n_requests, 0);
}

Test(requests, that_follow_the_last_one_lengthen_it, .init = begin)
{
	ask(0, 10);
	cr_assert_not(streams_ask(&st, (struct request){ .rest = { 10, 20 }, .all = { 10, 20 } }));
	cr_assert_eq(st.n_requests, 1);
	expect_piece(100, 0, 20);
}

Test(requests, too_many_are_dropped, .init = begin)
{
	for (unsigned k = 0; k < REQUESTS; k++)
		ask(k * 100, k * 100 + 10);
	cr_assert_not(streams_ask(&st, (struct request){ .rest = { 90000, 90010 }, .all = { 90000, 90010 } }));
	cr_assert_eq(st.n_requests, REQUESTS);
	cr_assert_not(streams_want(&st, span(90000, 90010)));
}

Test(requests, are_cut_in_two, .init = begin)
{
	ask(0, 100);
	streams_cut(&st, span(40, 60), false);
	expect_piece(1000, 0, 40);
	expect_piece(1000, 60, 100);
	cr_assert_eq(st.n_requests, 0);
}

Test(requests, that_are_cut_while_a_piece_is_at_work_do_not_come_back, .init = begin)
{
	struct page_span piece;
	uint64_t id;

	ask(0, 100);
	id = streams_next(&st, 10, &piece);
	streams_cut(&st, span(0, 100), false);
	streams_done(&st, id, piece);
	cr_assert_eq(st.n_requests, 0);
	ask(0, 100);
	id = streams_next(&st, 10, &piece);
	streams_drop(&st, id);
	cr_assert_eq(st.n_requests, 0);
}
