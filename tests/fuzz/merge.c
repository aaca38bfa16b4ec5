/*
 * merge.c - compares the merges with their definition, byte by byte.
 *
 * Four bytes say how, and each further one all about one byte of the page: two bits each for base, home, theirs and who wrote
 * home's.
 */
#include "fuzz.h"

#include "consistency/merge.h"

#define MOST 4096u
#define ODD 64u /* room to start at odd addresses */

static struct page {
	uint8_t base[MOST + ODD], home[MOST + ODD], theirs[MOST + ODD], owners[MOST];
} made, fast, slow;

static bool is_race(uint8_t base, uint8_t home, uint8_t theirs)
{
	return theirs != base && home != base && theirs != home;
}

static size_t merge_slowly(uint8_t *home, const uint8_t *base, const uint8_t *theirs, size_t len,
			   enum merge_winner winner)
{
	size_t races = 0;

	for (size_t i = 0; i < len; i++) {
		bool race = is_race(base[i], home[i], theirs[i]);

		races += race;
		if (theirs[i] != base[i] && !(race && winner == MERGE_HOME_WINS))
			home[i] = theirs[i];
	}
	return races;
}

/* The higher owner keeps what both wrote. */
static size_t merge_owned_slowly(uint8_t *home, uint8_t *owners, const uint8_t *base, const uint8_t *theirs,
				 size_t len, unsigned owner)
{
	size_t races = 0;

	for (size_t i = 0; i < len; i++) {
		bool theirs_wrote = theirs[i] != base[i], home_wrote = home[i] != base[i];

		races += is_race(base[i], home[i], theirs[i]);
		if (!theirs_wrote || (home_wrote && owners[i] > owner))
			continue;
		home[i] = theirs[i];
		owners[i] = (uint8_t)owner;
	}
	return races;
}

static void check_races(const uint8_t *home, const uint8_t *base, const uint8_t *theirs, size_t len, size_t races)
{
	size_t n = 0, at = 0;

	for (size_t i = 0; i < len; i++) {
		if (!is_race(base[i], home[i], theirs[i]))
			continue;
		at = merge_next_race(home, base, theirs, len, at);
		FUZZ_CHECK(at == i, "race %zu is said to be at %zu, and is at %zu", n, at, i);
		at++;
		n++;
	}
	at = merge_next_race(home, base, theirs, len, at);
	FUZZ_CHECK(at == len && n == races, "%zu races, then one at %zu of %zu", n, at, len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input in = { data, size };
	unsigned base = fuzz_below(&in, ODD), home = fuzz_below(&in, ODD), theirs = fuzz_below(&in, ODD);
	uint8_t how = fuzz_byte(&in);
	enum merge_winner winner = how & 1 ? MERGE_HOME_WINS : MERGE_THEIRS_WINS;
	unsigned owner = 1 + how / 2 % 3;
	size_t len = in.left < MOST ? in.left : MOST, races;

	memset(&made, 0, sizeof(made));
	for (size_t i = 0; i < len; i++) {
		uint8_t b = fuzz_byte(&in);

		made.base[base + i] = b & 3;
		made.home[home + i] = b >> 2 & 3;
		made.theirs[theirs + i] = b >> 4 & 3;
		made.owners[i] = b >> 6;
	}

	fast = slow = made;
	races = merge_slowly(slow.home + home, made.base + base, made.theirs + theirs, len, winner);
	FUZZ_CHECK(merge3(fast.home + home, made.base + base, made.theirs + theirs, len, winner) == races);
	FUZZ_CHECK(!memcmp(&fast, &slow, sizeof(fast)), "merge3() of %zu bytes", len);
	fast = made;
	FUZZ_CHECK(merge3_reference(fast.home + home, made.base + base, made.theirs + theirs, len, winner) == races);
	FUZZ_CHECK(!memcmp(&fast, &slow, sizeof(fast)), "merge3_reference() of %zu bytes", len);
	check_races(made.home + home, made.base + base, made.theirs + theirs, len, races);

	fast = slow = made;
	races = merge_owned_slowly(slow.home + home, slow.owners, made.base + base, made.theirs + theirs, len, owner);
	FUZZ_CHECK(merge3_owned(fast.home + home, fast.owners, made.base + base, made.theirs + theirs, len, owner) ==
		   races);
	FUZZ_CHECK(!memcmp(&fast, &slow, sizeof(fast)), "merge3_owned() of %zu bytes", len);

	fast = made;
	merge_note_owner(fast.owners, made.base + base, made.theirs + theirs, len, owner);
	for (size_t i = 0; i < len; i++)
		FUZZ_CHECK(fast.owners[i] == (made.base[base + i] == made.theirs[theirs + i] ? made.owners[i] : owner),
			   "the owner of byte %zu", i);
	return 0;
}
