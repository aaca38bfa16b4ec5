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
