/*
 * client_detect_kernel.c - the kernel of client/cuda_detect.cu, compiled for warps of CPU threads (tests/support/warp), and the hash
 * (client/page_hash.h).
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../../client/cuda_detect.h"
#include "base/util.h"

#define PAGES 64u

void warp_detect(struct detect_work *work, unsigned blocks);

static char *pages;
static struct page_hash hash[PAGES];
static uint8_t changed[PAGES];
/* 29 pages, more than a block takes and not a multiple of what a warp does; they lie apart. */
static const struct detect_pages runs[] = { { 40, 0 }, { 0, 1 }, { 12, 12 } };
static const unsigned n_pages = 29;

static bool is_in(unsigned page)
{
	return page < 11 || (page >= 12 && page < 29) || page == 40;
}

static void begin(void)
{
	uint64_t x = 7;

	pages = aligned_alloc(GAIA_PAGE, PAGES * GAIA_PAGE);
	for (size_t i = 0; i < PAGES * GAIA_PAGE; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		pages[i] = (char)(x >> 56);
	}
	memset(hash, 0x5a, sizeof(hash));
	memset(changed, 0x5a, sizeof(changed));
}

static void end(void)
{
	free(pages);
}

static void run(bool compare)
{
	struct detect_work work = { .base = pages, .hash = hash, .changed = compare ? changed : NULL, .n_runs = 3, .n_pages = n_pages };

	memcpy(work.run, runs, sizeof(runs));
	warp_detect(&work, (n_pages + DETECT_PAGES_A_BLOCK - 1) / DETECT_PAGES_A_BLOCK);
}

static bool equal(struct page_hash a, struct page_hash b)
{
	return a.low == b.low && a.high == b.high;
}

TestSuite(kernel, .init = begin, .fini = end, .timeout = 100);
TestSuite(hash, .init = begin, .fini = end);

Test(kernel, remembers_the_hash_of_each_page_and_of_no_other)
{
	struct page_hash untouched;

	memset(&untouched, 0x5a, sizeof(untouched));
	run(false);
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert(equal(hash[i], is_in(i) ? page_hash(pages + i * GAIA_PAGE) : untouched), "page %u", i);
	cr_assert_eq(changed[0], 0x5a);
}

Test(kernel, says_of_each_page_whether_it_has_changed)
{
	struct page_hash before;

	run(false);
	before = hash[12];
	pages[12 * GAIA_PAGE]++;
	pages[28 * GAIA_PAGE + GAIA_PAGE - 1]++;
	pages[40 * GAIA_PAGE + 777]++;
	run(true);
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert_eq(changed[i], is_in(i) ? i == 12 || i == 28 || i == 40 : 0x5a, "page %u", i);
	cr_assert(equal(hash[12], before), "it is compared with the same again");
}

Test(kernel, does_nothing_for_no_pages)
{
	struct detect_work work = { .base = NULL };

	warp_detect(&work, 1);
}

Test(hash, depends_on_every_bit)
{
	struct page_hash was = page_hash(pages), now;

	for (unsigned bit = 0; bit < 8 * GAIA_PAGE; bit++) {
		pages[bit / 8] ^= (char)(1 << bit % 8);
		now = page_hash(pages);
		cr_assert(now.low != was.low && now.high != was.high, "bit %u", bit);
		pages[bit / 8] ^= (char)(1 << bit % 8);
	}
}

/* Words that change places, also between lanes, and zeros. */
Test(hash, depends_on_where_the_bytes_are)
{
	struct page_hash was = page_hash(pages), zeros;
	uint64_t *word = (uint64_t *)pages, first = word[0];

	for (unsigned i = 1; i < GAIA_PAGE / 8; i++) {
		word[0] = word[i];
		word[i] = first;
		cr_assert_not(equal(page_hash(pages), was), "word %u", i);
		word[i] = word[0];
		word[0] = first;
	}
	memset(pages, 0, GAIA_PAGE);
	zeros = page_hash(pages);
	for (unsigned i = 0; i < GAIA_PAGE / 8; i++) {
		word[i] = 1;
		cr_assert_not(equal(page_hash(pages), zeros));
		word[i] = 0;
	}
}
