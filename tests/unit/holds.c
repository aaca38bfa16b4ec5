/* holds.c - the counted spans against an array with the numbers of each page. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "pagecache/holds.h"

#define PAGES 96u

struct numbers {
	uint32_t n, writes, coming;
};

static void check(const struct holds *hs, const struct numbers *is)
{
	struct numbers seen[PAGES] = { { 0, 0, 0 } };
	const struct hold *h, *before = NULL;
	uint64_t spans = 0;

	HOLDS_FOREACH(h, hs, 0, UINT64_MAX) {
		cr_assert_lt(h->a, h->b);
		cr_assert_gt(h->n, 0);
		cr_assert(!before || before->b <= h->a, "in order");
		cr_assert(!before || before->b < h->a || before->n != h->n || before->writes != h->writes ||
				  before->coming != h->coming,
			  "pages %lu and %lu are alike, and apart", (unsigned long)h->a - 1, (unsigned long)h->a);
		for (uint64_t p = h->a; p < h->b; p++)
			seen[p] = (struct numbers){ h->n, h->writes, h->coming };
		before = h;
		spans++;
	}
	cr_assert_eq(spans, hs->spans);
	cr_assert_eq(memcmp(seen, is, sizeof(seen)), 0);
}

/* The words of holds.h, a page at a time. */
static void apply(struct numbers *p, unsigned what, uint32_t n, uint32_t writes)
{
	switch (what) {
	case 0:
		*p = (struct numbers){ p->n + n, p->writes + writes, p->coming + n };
		return;
	case 1:
		p->coming -= MIN(n, p->coming);
		return;
	case 2:
		p->coming -= MIN(n, p->coming);
		p->writes -= MIN(writes, p->writes);
		p->n -= MIN(n, p->n);
		break;
	case 3:
		p->n -= p->n > p->coming;
		break;
	case 4:
		p->n = 0;
		break;
	}
	p->writes = MIN(p->writes, p->n);
	p->coming = MIN(p->coming, p->n);
}

Test(holds, are_those_of_an_array)
{
	for (unsigned seed = 1; seed <= 200; seed++) {
		struct numbers is[PAGES] = { { 0, 0, 0 } };
		struct holds hs = { .spans = 0 };

		srandom(seed);
		for (unsigned step = 0; step < 300; step++) {
			uint64_t a = (uint64_t)random() % PAGES, b = a + 1 + (uint64_t)random() % (PAGES - a);
			uint32_t n = 1 + (uint32_t)random() % 3, writes = (uint32_t)random() % (n + 1);
			unsigned what = (unsigned)random() % 40;

			what = what < 14 ? 0 : what < 22 ? 1 : what < 26 ? 2 : what < 39 ? 3 : 4;
			switch (what) {
			case 0:
				cr_assert_eq(holds_add(&hs, a, b, n, writes), 0);
				break;
			case 1:
				holds_settle(&hs, a, b, n);
				break;
			case 2:
				holds_undo(&hs, a, b, n, writes);
				break;
			case 3:
				holds_release(&hs, a, b);
				break;
			case 4:
				holds_drop(&hs, a, b);
				break;
			}
			for (uint64_t p = a; p < b; p++)
				apply(&is[p], what, n, writes);
			check(&hs, is);
		}
		holds_clear(&hs);
		cr_assert_eq(hs.spans, 0);
	}
}

Test(holds, of_a_page_are_so_many_and_no_more)
{
	struct holds hs = { .spans = 0 };

	cr_assert_eq(holds_add(&hs, 5, 6, HOLDS_OF_A_PAGE, 0), 0);
	cr_assert_eq(holds_add(&hs, 0, 10, 1, 1), -EOVERFLOW);
	cr_assert_eq(hs.spans, 1, "nothing was done");
	holds_settle(&hs, 5, 6, HOLDS_OF_A_PAGE);
	holds_release(&hs, 5, 6);
	cr_assert_eq(holds_add(&hs, 0, 10, 1, 1), 0);
	cr_assert_eq(hs.spans, 3);
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
		holds_release(&hs, 4 * k + 1, 4 * k + 5);
	cr_assert_eq(hs.spans, 1, "the first page is left");
	holds_release(&hs, 0, 1);
	cr_assert_eq(hs.spans, 0);
}
