/*
 * device_cuda_kernels.c - the kernels themselves, kernels.cu compiled for warps of CPU threads
 * (tests/support/warp), against plain code.
 */
#include <xxhash.h>

#include "device/cuda/launch.h"
#include "device_io.h"

#define PAGES 29u /* more than a block takes, and not a multiple of what a warp does */

/* Three items that lie apart: pages of one memory, and what belongs to them. */
struct scene {
	unsigned char *page, *other, *base;
	struct page_hash armed[64], other_armed[64];
	struct page_item item[LIST_LONG];
	uint32_t place[PAGES]; /* number in the launch -> number in the arrays */
	uint8_t changed[8];
};

static struct scene s;
static uint64_t seed = 11;

extern unsigned warp_blocks; /* of the last launch */

static unsigned char *at(unsigned char *pages, uint32_t number)
{
	return pages + (size_t)s.place[number] * GAIA_PAGE;
}

static void begin(void)
{
	static const uint32_t first[3] = { 40, 0, 12 }, length[3] = { 1, 11, 17 };
	uint32_t number = 0;

	s.page = host_pages(64);
	s.other = host_pages(64);
	s.base = host_pages(64);
	fill_random(s.page, 64 * GAIA_PAGE, &seed);
	fill_random(s.other, 64 * GAIA_PAGE, &seed);
	fill_random(s.base, 64 * GAIA_PAGE, &seed);
	fill_random(s.armed, sizeof(s.armed), &seed);
	fill_random(s.other_armed, sizeof(s.other_armed), &seed);
	memset(s.changed, 0x5a, sizeof(s.changed));
	for (unsigned i = 0; i < 3; i++) {
		s.item[i] = (struct page_item){
			.page = s.page + (size_t)first[i] * GAIA_PAGE,
			.other = s.other + (size_t)first[i] * GAIA_PAGE,
			.base = s.base + (size_t)first[i] * GAIA_PAGE,
			.armed = &s.armed[first[i]],
			.other_armed = &s.other_armed[first[i]],
			.first = number,
			.limit = GAIA_PAGE,
		};
		for (uint32_t k = 0; k < length[i]; k++)
			s.place[number++] = first[i] + k;
	}
	cr_assert_eq(number, PAGES);
}

static void end(void)
{
	free(s.page);
	free(s.other);
	free(s.base);
}

TestSuite(warp, .init = begin, .fini = end, .timeout = 100);

/* Launches, and sees that nothing else was touched: the first page and hash after each item. */
static void launch(enum dev_kind kind)
{
	static const uint32_t beside[] = { 11, 29, 39, 41 };
	unsigned char *before = host_pages(8);
	struct page_hash armed[4];

	for (unsigned i = 0; i < 4; i++) {
		memcpy(before + i * GAIA_PAGE, s.page + beside[i] * GAIA_PAGE, GAIA_PAGE);
		memcpy(before + (4 + i) * GAIA_PAGE, s.other + beside[i] * GAIA_PAGE, GAIA_PAGE);
		armed[i] = s.armed[beside[i]];
	}
	cr_assert_eq(cuda_launch(kind, false, s.item, 3, PAGES, s.changed, NULL), CUDA_SUCCESS);
	for (unsigned i = 0; i < 4; i++) {
		cr_assert_arr_eq(before + i * GAIA_PAGE, s.page + beside[i] * GAIA_PAGE, GAIA_PAGE);
		cr_assert_arr_eq(before + (4 + i) * GAIA_PAGE, s.other + beside[i] * GAIA_PAGE, GAIA_PAGE);
		cr_assert_arr_eq(&armed[i], &s.armed[beside[i]], sizeof(armed[i]));
	}
	free(before);
}

static bool has_hash_of(const struct page_hash *hash, const void *page)
{
	XXH128_hash_t right = XXH3_128bits(page, GAIA_PAGE);

	return hash->low == right.low64 && hash->high == right.high64;
}

/* The host knows that they say nothing of the page any more. */
static void copies_and_leaves_hashes(enum dev_kind kind)
{
	struct page_hash before[ARRAY_LEN(s.armed)];

	memcpy(before, s.armed, sizeof(before));
	launch(kind);
	cr_assert_arr_eq(before, s.armed, sizeof(before));
	for (uint32_t i = 0; i < PAGES; i++)
		cr_assert_arr_eq(at(s.page, i), at(s.other, i), GAIA_PAGE);
}

Test(warp, copies_in_and_leaves_hashes)
{
	copies_and_leaves_hashes(DEV_COPY_IN);
}

Test(warp, copies_from_a_peer_and_leaves_hashes)
{
	copies_and_leaves_hashes(DEV_COPY_PEER);
}

/* The second item's pages are there already: the copy engine has copied them. */
static void copies_and_arms(enum dev_kind kind)
{
	unsigned char *there = host_pages(64);

	memcpy(there, s.page, 64 * GAIA_PAGE);
	s.item[1].other = NULL;
	cr_assert_eq(cuda_launch(kind, true, s.item, 3, PAGES, NULL, NULL), CUDA_SUCCESS);
	for (uint32_t i = 0; i < PAGES; i++) {
		bool was_there = i >= 1 && i < 12;

		cr_assert_arr_eq(at(s.page, i), at(was_there ? there : s.other, i), GAIA_PAGE, "page %u", i);
		cr_assert(has_hash_of(&s.armed[s.place[i]], at(s.page, i)), "page %u", i);
	}
	free(there);
}

Test(warp, copies_in_and_arms)
{
	copies_and_arms(DEV_COPY_IN);
}

Test(warp, copies_from_a_peer_and_arms)
{
	copies_and_arms(DEV_COPY_PEER);
}

Test(warp, copies_out_and_leaves_hashes)
{
	struct page_hash before[64];

	memcpy(before, s.armed, sizeof(before));
	launch(DEV_COPY_OUT);
	for (uint32_t i = 0; i < PAGES; i++)
		cr_assert_arr_eq(at(s.other, i), at(s.page, i), GAIA_PAGE);
	cr_assert_arr_eq(before, s.armed, sizeof(before));
}

Test(warp, copies_within_with_hashes)
{
	launch(DEV_COPY_WITHIN);
	for (uint32_t i = 0; i < PAGES; i++) {
		cr_assert_arr_eq(at(s.page, i), at(s.other, i), GAIA_PAGE);
		cr_assert_arr_eq(&s.armed[s.place[i]], &s.other_armed[s.place[i]], sizeof(s.armed[0]));
	}
}

Test(warp, pulls_by_the_definition_and_arms_with_what_it_pulled)
{
	static const uint32_t limits[3] = { 4096, 0, 1001 };
	unsigned char *right = host_pages(64);

	for (uint32_t i = 0; i < 64 * GAIA_PAGE; i++) {
		s.page[i] %= 3;
		s.other[i] %= 3;
		s.base[i] %= 3;
	}
	for (unsigned i = 0; i < 3; i++)
		s.item[i].limit = limits[i];
	s.item[1].base = NULL;
	for (uint32_t i = 0; i < PAGES; i++) {
		const unsigned char *host = at(s.other, i), *base = at(s.base, i);
		uint32_t limit = limits[i < 1 ? 0 : i < 12 ? 1 : 2];

		memcpy(at(right, i), at(s.page, i), GAIA_PAGE);
		for (uint32_t k = 0; k < GAIA_PAGE; k++)
			if (k >= limit || (host[k] != base[k] && at(s.page, i)[k] == base[k]))
				at(right, i)[k] = host[k];
	}
	launch(DEV_PULL);
	for (uint32_t i = 0; i < PAGES; i++) {
		cr_assert_arr_eq(at(s.page, i), at(right, i), GAIA_PAGE, "page %u", i);
		cr_assert(has_hash_of(&s.armed[s.place[i]], at(s.other, i)));
	}
	free(right);
}

Test(warp, zeroes_from_the_limit_on)
{
	static const uint32_t limits[3] = { 4095, 0, 13 };
	unsigned char *before = host_pages(64);

	memcpy(before, s.page, 64 * GAIA_PAGE);
	for (unsigned i = 0; i < 3; i++)
		s.item[i].limit = limits[i];
	launch(DEV_ZERO);
	for (uint32_t i = 0; i < PAGES; i++) {
		uint32_t limit = limits[i < 1 ? 0 : i < 12 ? 1 : 2];

		memset(at(before, i) + limit, 0, GAIA_PAGE - limit);
		cr_assert_arr_eq(at(s.page, i), at(before, i), GAIA_PAGE);
	}
	free(before);
}

Test(warp, arms_with_the_hash_of_the_simulated_device)
{
	launch(DEV_ARM);
	for (uint32_t i = 0; i < PAGES; i++)
		cr_assert(has_hash_of(&s.armed[s.place[i]], at(s.page, i)), "page %u", i);
}

Test(warp, finds_what_changed_and_arms_it_anew)
{
	launch(DEV_ARM);
	for (uint32_t i = 0; i < PAGES; i += 3)
		at(s.page, i)[random_below(&seed, GAIA_PAGE)] ^= 1;
	for (uint32_t round = 0; round < 2; round++) {
		launch(DEV_FIND_CHANGED);
		for (uint32_t i = 0; i < PAGES; i++) {
			cr_assert_eq(s.changed[i / 8] >> i % 8 & 1, !round && i % 3 == 0, "page %u", i);
			cr_assert(has_hash_of(&s.armed[s.place[i]], at(s.page, i)));
		}
		cr_assert_eq(s.changed[PAGES / 8] >> PAGES % 8, 0);
		cr_assert_eq(s.changed[PAGES / 8 + 1], 0x5a);
	}
}

/* As many items as a launch takes, several for each page, of which the last zeroes most. */
Test(warp, long_lists_are_worked_on_as_short_ones)
{
	static const uint32_t lengths[] = { LIST_SHORT, LIST_SHORT + 1, LIST_LONG };

	for (unsigned k = 0; k < ARRAY_LEN(lengths); k++) {
		memset(s.page, 'p', 64 * GAIA_PAGE);
		for (uint32_t i = 0; i < lengths[k]; i++)
			s.item[i] = (struct page_item){ .page = s.page + (size_t)(i % 64) * GAIA_PAGE,
							.first = i, .limit = GAIA_PAGE - 1 - i };
		cr_assert_eq(cuda_launch(DEV_ZERO, false, s.item, lengths[k], lengths[k], NULL, NULL), CUDA_SUCCESS);
		for (uint32_t page = 0; page < 64; page++) {
			uint32_t last = (lengths[k] - 1 - page) / 64 * 64 + page;

			for (uint32_t i = 0; i < GAIA_PAGE; i++)
				cr_assert_eq(s.page[page * GAIA_PAGE + i], i < GAIA_PAGE - 1 - last ? 'p' : 0,
					     "%u items, page %u", lengths[k], page);
		}
	}
}

/* One item of @pages pages. Returns the number of blocks. */
static unsigned copy_many(enum dev_kind kind, uint32_t pages)
{
	struct page_hash *armed = calloc(2 * pages, sizeof(*armed));
	size_t bytes = (size_t)pages * GAIA_PAGE;

	s.item[0] = (struct page_item){ .page = host_pages(pages), .other = host_pages(pages), .armed = armed,
					.other_armed = armed + pages };
	fill_random(s.item[0].other, bytes, &seed);
	cr_assert_eq(cuda_launch(kind, false, s.item, 1, pages, NULL, NULL), CUDA_SUCCESS);
	/* As DEV_COPY_OUT copies the other way, both are the same only if all of it was copied. */
	cr_assert_eq(memcmp(s.item[0].page, s.item[0].other, bytes), 0);
	free(s.item[0].page);
	free(s.item[0].other);
	free(armed);
	return warp_blocks;
}

/* 64 blocks of 16 pages each; the last turn is not a whole one. */
Test(warp, copies_across_the_bus_leave_multiprocessors_to_others)
{
	static const enum dev_kind kinds[] = { DEV_COPY_IN, DEV_COPY_OUT, DEV_COPY_PEER };

	for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
		cr_assert_eq(copy_many(kinds[k], 1), 1);
		cr_assert_eq(copy_many(kinds[k], 64 * 16), 64);
		cr_assert_eq(copy_many(kinds[k], 2 * 64 * 16 + 35), 64);
	}
	cr_assert_eq(copy_many(DEV_COPY_WITHIN, 64 * 16 + 1), 65);
}
