/* holds.c - the counted spans against an array with the numbers of each page. */
#include <criterion/criterion.h>
#include <stdlib.h>

#define MUST(...) cr_assert(__VA_ARGS__)

static unsigned choose(unsigned n)
{
	return (unsigned)random() % n;
}

#include "holds_array.h"

Test(holds, are_those_of_an_array)
{
	for (unsigned seed = 1; seed <= 200; seed++) {
		srandom(seed);
		begin(seed % 2 ? 0 : UINT64_MAX - PAGES - seed);
		for (unsigned step = 0; step < 300; step++) {
			event();
			agree();
		}
		end();
	}
}

Test(holds, of_a_page_are_so_many_and_no_more)
{
	struct holds hs = { .spans = 0 };

	cr_assert_eq(holds_add(&hs, 5, 6, HOLDS_OF_A_PAGE, 0), 0);
	cr_assert_eq(holds_add(&hs, 0, 10, 1, 1), -EOVERFLOW);
	cr_assert_eq(hs.spans, 1, "nothing was done");
	holds_settle(&hs, 5, 6, HOLDS_OF_A_PAGE);
	holds_release(&hs, 5, 6, 1);
	cr_assert_eq(holds_add(&hs, 0, 10, 1, 1), 0);
	cr_assert_eq(hs.spans, 3);
	holds_clear(&hs);
}

/* @alike_before and @alike_behind: what lies on both sides of the gap that is filled has its numbers. Spans are as few as can be. */
static void fill_a_gap(bool alike_before, bool alike_behind)
{
	begin(7);
	MUST(holds_add(&w.hs, w.from, w.from + 10, alike_before ? 1 : 2, 0) == 0);
	MUST(holds_add(&w.hs, w.from + 20, w.from + 30, alike_behind ? 1 : 2, 0) == 0);
	MUST(holds_add(&w.hs, w.from + 10, w.from + 20, 1, 0) == 0);
	for (unsigned p = 0; p < 30; p++)
		w.is[p].n = w.is[p].coming = p < 10 ? (alike_before ? 1 : 2) : p < 20 || alike_behind ? 1 : 2;
	agree();
	cr_assert_eq(w.hs.spans, 3u - alike_before - alike_behind);
	end();
}

Test(holds, that_fill_a_gap_are_joined_with_what_is_alike)
{
	for (int k = 0; k < 4; k++)
		fill_a_gap(k & 1, k & 2);
}

Test(holds, of_no_pages_there_are_none)
{
	struct holds hs = { .spans = 0 };

	cr_assert_eq(holds_add(&hs, 0, 10, 1, 1), 0);
	cr_assert_null(holds_first(&hs, 5, 5));
	cr_assert_not_null(holds_first(&hs, 5, 6));
	holds_clear(&hs);
}

/* What is looked at does not depend on how many pages there are, or spans elsewhere. */
Test(holds, many_spans_are_found_and_taken_one_by_one)
{
	const uint64_t many = 200000;
	struct holds hs = { .spans = 0 };
	const struct hold *h;

	for (uint64_t k = 0; k < many; k++)
		cr_assert_eq(holds_add(&hs, 4 * k, 4 * k + 2, 1, k % 2), 0);
	cr_assert_eq(hs.spans, many);
	h = holds_first(&hs, 2 * many + 2, 2 * many + 5);
	cr_assert_eq(h->a, 2 * many + 4);
	cr_assert_null(holds_first(&hs, 2, 4));
	holds_settle(&hs, 0, UINT64_MAX, 1);
	for (uint64_t k = many; k-- > 0;)
		holds_release(&hs, 4 * k + 1, 4 * k + 5, 1);
	cr_assert_eq(hs.spans, 1, "the first page is left");
	holds_release(&hs, 0, 1, 1);
	cr_assert_eq(hs.spans, 0);
}
