/*
 * fake_cuda_api.c - see fake_cuda_api.h.
 */
#include "fake_cuda_api.h"

#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "fake_cuda_internal.h"

struct page_hash fake_cuda_hash(const void *page)
{
	struct hash_pair pair[HASH_LANES], sums[HASH_LANES];
	struct hash_keys keys[HASH_LANES];
	word_t half[2] = { 0, 0 };
	const word_t *words = page;

	for (uint32_t lane = 0; lane < HASH_LANES; lane++) {
		keys[lane] = hash_keys_of(lane);
		pair[lane] = hash_begin(lane);
	}
	for (uint32_t block = 0; block < HASH_BLOCKS; block++) {
		memset(sums, 0, sizeof(sums));
		for (uint32_t lane = 0; lane < HASH_LANES; lane++) {
			for (uint32_t i = 0; i < HASH_UNITS; i++) {
				const word_t *unit = &words[2 * hash_unit(block, i, lane)];

				hash_add(&sums[lane], unit[0], unit[1], &keys[lane], block, i);
			}
		}
		for (uint32_t lane = 0; lane < HASH_LANES; lane++) {
			struct hash_pair both = sums[lane];

			both.of[0] += sums[lane ^ 4].of[0];
			both.of[1] += sums[lane ^ 4].of[1];
			hash_end_block(&pair[lane], &both, block, &keys[lane]);
		}
	}
	for (uint32_t lane = 0; lane < HASH_LANES; lane++)
		half[lane / 4] += hash_part(&pair[lane], lane);
	return (struct page_hash){ hash_end(half[0], 0), hash_end(half[1], 4) };
}

struct work {
	enum dev_kind kind;
	bool arm;
	uint32_t n_items, n_pages;
	uint8_t *changed;
	struct page_item items[];
};

static void *nth_page(const void *first, uint32_t n)
{
	return (char *)first + (size_t)n * GAIA_PAGE;
}

static bool may_touch(const struct work *w, const struct page_item *item, uint32_t n)
{
	bool other = w->kind <= DEV_PULL && (item->other || !w->arm), base = w->kind == DEV_PULL && item->limit;

	return fake_cuda_usable(nth_page(item->page, n), GAIA_PAGE) &&
	       fake_cuda_usable(&item->armed[n], sizeof(item->armed[n])) &&
	       (!other || fake_cuda_usable(nth_page(item->other, n), GAIA_PAGE)) &&
	       (!base || fake_cuda_usable(nth_page(item->base, n), GAIA_PAGE));
}

/* What kernels.cu does, on the CPU. Returns whether the page changed, if that is what is asked. */
static bool work_on(const struct work *w, const struct page_item *item, uint32_t n)
{
	struct page_hash *armed = &item->armed[n], hash;
	void *page = nth_page(item->page, n);
	bool changed = false;

	switch (w->kind) {
	case DEV_COPY_IN:
	case DEV_COPY_PEER:
		if (item->other || !w->arm)
			memcpy(page, nth_page(item->other, n), GAIA_PAGE);
		if (w->arm)
			*armed = fake_cuda_hash(page);
		break;
	case DEV_COPY_OUT:
		memcpy(nth_page(item->other, n), page, GAIA_PAGE);
		break;
	case DEV_COPY_WITHIN:
		memcpy(page, nth_page(item->other, n), GAIA_PAGE);
		*armed = item->other_armed[n];
		break;
	case DEV_PULL:
		for (uint32_t i = 0; i < PAGE_WORDS; i++)
			word_pull(page, nth_page(item->other, n),
				  item->limit ? nth_page(item->base, n) : NULL, item->limit, i);
		*armed = fake_cuda_hash(nth_page(item->other, n));
		break;
	case DEV_ZERO:
		for (uint32_t i = item->limit / 8; i < PAGE_WORDS; i++)
			word_zero(page, item->limit, i);
		break;
	case DEV_ARM:
		*armed = fake_cuda_hash(page);
		break;
	case DEV_FIND_CHANGED:
		hash = fake_cuda_hash(page);
		changed = hash.low != armed->low || hash.high != armed->high;
		*armed = hash;
		break;
	}
	return changed;
}

/* Bytes of host memory that kernels.cu reads and writes for an item of @n pages. */
static void count_bus(enum dev_kind kind, const struct page_item *item, uint64_t n)
{
	switch (kind) {
	case DEV_COPY_IN:
		fake_cuda_kernel_says(0, item->other ? n * GAIA_PAGE : 0, 0);
		break;
	case DEV_COPY_OUT:
		fake_cuda_kernel_says(0, 0, n * GAIA_PAGE);
		break;
	case DEV_PULL: /* what is merged is hashed by the same loads; of the base what is below the limit, in units */
		fake_cuda_kernel_says(0, n * (GAIA_PAGE + ROUND_UP(item->limit, 16u)), 0);
		break;
	case DEV_FIND_CHANGED:
		fake_cuda_kernel_says(0, 0, (n + 7) / 8);
		break;
	default:
		break;
	}
}

static void run(void *arg)
{
	struct work *w = arg;

	if (w->kind == DEV_FIND_CHANGED) {
		if (fake_cuda_usable(w->changed, (w->n_pages + 7) / 8))
			memset(w->changed, 0, (w->n_pages + 7) / 8);
		else
			fake_refuse(CUDA_SUCCESS, "a kernel whose results are not the device's");
		count_bus(w->kind, NULL, w->n_pages);
	}
	for (uint32_t i = 0; i < w->n_items && w->kind != DEV_FIND_CHANGED; i++)
		count_bus(w->kind, &w->items[i],
			  (i + 1 < w->n_items ? w->items[i + 1].first : w->n_pages) - w->items[i].first);
	/* From the last to the first: on a GPU there is no order. */
	for (uint32_t number = w->n_pages; number-- > 0;) {
		const struct page_item *item = page_find_item(w->items, w->n_items, number);

		if (!may_touch(w, item, number - item->first))
			fake_refuse(CUDA_SUCCESS, "a kernel on memory that is not the device's");
		else if (work_on(w, item, number - item->first))
			w->changed[number / 8] |= (uint8_t)(1 << number % 8);
	}
}

static CUresult launch(enum dev_kind kind, bool arm, const struct page_item *items, uint32_t n_items,
		       uint32_t n_pages, uint8_t *changed, CUstream stream)
{
	size_t list = n_items * sizeof(*items);
	struct work *w = malloc(sizeof(*w) + list);
	CUresult err;

	*w = (struct work){ kind, arm, n_items, n_pages, changed };
	memcpy(w->items, items, list);
	fake_cuda_kernel_says(PARAMETER_BYTES(list_room(n_items)), 0, 0);
	err = fake_cuda_launch_copy(stream, run, w, sizeof(*w) + list);
	free(w);
	return err;
}

const struct cuda_api *fake_cuda_api(void)
{
	static struct cuda_api api;

	cuda_copy_batch_t *copy_batch = (cuda_copy_batch_t *)fake_cuda_entry("cuMemcpyBatchAsync");

	/* Devices that exist use the table. The mode does not change while there are any. */
	if (api.launch && api.copy_batch == copy_batch)
		return &api;
	api.copy_batch = copy_batch;
#define X(name) api.name = (__typeof__(api.name))fake_cuda_entry(#name);
	CUDA_CALLS(X)
#undef X
	api.launch = launch;
	return &api;
}

void fake_cuda_start(size_t memory)
{
	fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 1, .memory = memory });
	if (fake_cuda_api()->cuInit(0))
		abort();
}
