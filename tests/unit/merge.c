/* merge.c - the 3-way merge against its definition, and the order of owners against the order of merges. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "consistency/merge.h"
#include "device_io.h"

#define PAGE GAIA_PAGE
#define ODD 8u /* room to start at odd addresses */

static const size_t lengths[] = { 0, 1, 2, 7, 8, 63, 64, 65, 127, 128, 129, 4031, 4032, 4095, 4096 };

struct three {
	uint8_t home[PAGE + ODD], base[PAGE + ODD], theirs[PAGE + ODD];
};

/* Few values, so that both sides often write the same; long runs that nobody wrote. */
static void make(struct three *t, uint64_t *seed)
{
	unsigned density = 1 + random_below(seed, 300);

	for (unsigned i = 0; i < sizeof(t->base); i++) {
		t->base[i] = (uint8_t)random_below(seed, 4);
		t->home[i] = random_below(seed, density) ? t->base[i] : (uint8_t)random_below(seed, 4);
		t->theirs[i] = random_below(seed, density) ? t->base[i] : (uint8_t)random_below(seed, 4);
	}
}

Test(merge3, is_its_definition)
{
	static struct three t, fast, slow;
	uint64_t seed = 1;

	for (unsigned round = 0; round < 400; round++) {
		size_t len = round < ARRAY_LEN(lengths) * 4 ? lengths[round / 4] :
							       random_below(&seed, PAGE + 1);
		unsigned at[3] = { random_below(&seed, ODD), random_below(&seed, ODD),
				   random_below(&seed, ODD) };
		enum merge_winner winner = round % 2 ? MERGE_HOME_WINS : MERGE_THEIRS_WINS;
		size_t races;

		make(&t, &seed);
		fast = slow = t;
		races = merge3(fast.home + at[0], t.base + at[1], t.theirs + at[2], len, winner);
		cr_assert_eq(merge3_reference(slow.home + at[0], t.base + at[1], t.theirs + at[2],
					      len, winner),
			     races, "length %zu", len);
		cr_assert_arr_eq(fast.home, slow.home, sizeof(fast.home), "length %zu", len);
	}
}

Test(merge3, keeps_writes_to_different_bytes)
{
	char home[] = "AA......";

	cr_assert_eq(merge3(home, "........", "......BB", 8, MERGE_THEIRS_WINS), 0);
	cr_assert_str_eq(home, "AA....BB");
}

Test(merge3, a_race_goes_to_the_winner_and_is_counted)
{
	char home[] = "AA.C", other[] = "AA.C";

	cr_assert_eq(merge3(home, "....", ".BBC", 4, MERGE_THEIRS_WINS), 1);
	cr_assert_str_eq(home, "ABBC");
	cr_assert_eq(merge3(other, "....", ".BBC", 4, MERGE_HOME_WINS), 1);
	cr_assert_str_eq(other, "AABC");
}

Test(merge3, races_of_a_whole_page_are_counted)
{
	static uint8_t home[PAGE], base[PAGE], theirs[PAGE];

	memset(home, 1, PAGE);
	memset(theirs, 2, PAGE);
	cr_assert_eq(merge3(home, base, theirs, PAGE, MERGE_THEIRS_WINS), PAGE);
	cr_assert_arr_eq(home, theirs, PAGE);
}

Test(merge_next_race, finds_the_races_that_the_merge_counts)
{
	static struct three t;
	uint64_t seed = 2;

	for (unsigned round = 0; round < 400; round++) {
		size_t len = round < ARRAY_LEN(lengths) * 4 ? lengths[round / 4] :
							       random_below(&seed, PAGE + 1);
		size_t n = 0, at = 0, from = 0;

		make(&t, &seed);
		for (;; n++, from = at + 1) {
			at = merge_next_race(t.home, t.base, t.theirs, len, from);
			for (size_t i = from; i < at; i++)
				cr_assert(t.theirs[i] == t.base[i] || t.home[i] == t.base[i] ||
					  t.home[i] == t.theirs[i]);
			if (at == len)
				break;
			cr_assert_lt(at, len);
			cr_assert(t.theirs[at] != t.base[at] && t.home[at] != t.base[at] &&
				  t.home[at] != t.theirs[at]);
		}
		cr_assert_eq(n, merge3(t.home, t.base, t.theirs, len, MERGE_HOME_WINS));
	}
}

/* ---- owners ---- */

static const unsigned orders[6][3] = { { 1, 2, 3 }, { 1, 3, 2 }, { 2, 1, 3 },
				       { 2, 3, 1 }, { 3, 1, 2 }, { 3, 2, 1 } };

Test(merge3_owned, the_order_of_merges_does_not_matter)
{
	static uint8_t base[PAGE], theirs[4][PAGE], first[PAGE], home[PAGE], owners[PAGE];
	uint64_t seed = 3;

	for (unsigned round = 0; round < 50; round++) {
		for (unsigned i = 0; i < PAGE; i++)
			for (unsigned o = 0; o < 4; o++) {
				base[i] = 1;
				/* 0 to 3 writers; each has a value of its own, or the same one. */
				theirs[o][i] = random_below(&seed, 3) ? 1 :
					       random_below(&seed, 4) ? (uint8_t)(10 + o) :
									20;
			}
		for (unsigned k = 0; k < ARRAY_LEN(orders); k++) {
			/* The CPU wrote before any of them came. */
			memcpy(home, theirs[0], PAGE);
			memset(owners, 0, PAGE);
			for (unsigned m = 0; m < 3; m++)
				merge3_owned(home, owners, base, theirs[orders[k][m]], PAGE,
					     orders[k][m]);
			if (k == 0)
				memcpy(first, home, PAGE);
			cr_assert_arr_eq(home, first, PAGE, "order %u", k);
		}
		for (unsigned i = 0; i < PAGE; i++) {
			unsigned o = 3;

			while (o > 0 && theirs[o][i] == base[i])
				o--;
			cr_assert_eq(first[i], theirs[o][i], "the highest of those that wrote");
		}
	}
}

Test(merge3_owned, races_are_counted)
{
	uint8_t owners[3] = { 0, 0, 0 };
	char home[] = "...";

	cr_assert_eq(merge3_owned(home, owners, "...", "AA.", 3, 2), 0);
	cr_assert_eq(merge3_owned(home, owners, "...", "BAB", 3, 1), 1);
	cr_assert_str_eq(home, "AAB");
	cr_assert_eq(owners[0], 2);
	cr_assert_eq(owners[1], 2);
	cr_assert_eq(owners[2], 1);
}

/* A base that has the other's write already tells that it came before. */
Test(merge3_owned, a_write_that_saw_the_higher_owners_wins)
{
	uint8_t owners[2] = { 0, 0 };
	char home[] = "..";

	merge3_owned(home, owners, "..", "A.", 2, 2);
	cr_assert_eq(merge3_owned(home, owners, "A.", "BB", 2, 1), 0);
	cr_assert_str_eq(home, "BB");
	cr_assert_eq(owners[0], 1);
}

Test(merge_note_owner, notes_what_changed)
{
	uint8_t owners[4] = { 7, 7, 7, 7 };

	merge_note_owner(owners, "abcd", "aXcY", 4, 3);
	cr_assert_eq(owners[0], 7);
	cr_assert_eq(owners[1], 3);
	cr_assert_eq(owners[2], 7);
	cr_assert_eq(owners[3], 3);
}
