/*
 * device_cuda.c - what the CUDA device promises beyond the contract of devices, on a fake
 * driver: what happens to memory and to registrations, and when calls fail. And the arithmetic of
 * its kernels, from their source, on the CPU.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <xxhash.h>

#include "consistency/merge.h"
#include "device_io.h"
#include "fake_cuda_api.h"

#define CHUNKS 8u

static struct device *new_cuda(unsigned index, uint64_t capacity, uint32_t copy_from)
{
	const struct cuda_config config = { .index = index, .capacity = capacity };
	struct device *dev = NULL;

	cr_assert_eq(cuda_create(fake_cuda_api(), &config, copy_from, &dev), 0);
	return dev;
}

static void must_free(struct devmem *mem)
{
	mem->dev->ops->free(mem->dev, mem);
}

static void assert_nothing_left(void)
{
	fake_cuda_importers_gone();
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true), 0);
	cr_assert_eq(fake_cuda_used(), 0);
}

/* ---- the arithmetic of the kernels ---- */

TestSuite(kernels, .timeout = 60);

Test(kernels, the_hash_is_that_of_the_simulated_device)
{
	word_t page[PAGE_WORDS];
	uint64_t seed = 3;

	for (int round = 0; round < 2000; round++) {
		struct page_hash hash;
		XXH128_hash_t right;

		switch (round) {
		case 0:
			memset(page, 0, sizeof(page));
			break;
		case 1:
			memset(page, 0xff, sizeof(page));
			break;
		default:
			if (round % 2)
				fill_random(page, sizeof(page), &seed);
			else
				page[random_below(&seed, PAGE_WORDS)] ^= 1ull << random_below(&seed, 64);
		}
		hash = fake_cuda_hash(page);
		right = XXH3_128bits(page, sizeof(page));
		cr_assert_eq(hash.low, right.low64);
		cr_assert_eq(hash.high, right.high64);
	}
}

Test(kernels, a_page_finds_its_item)
{
	struct page_item items[40] = { 0 };
	uint64_t seed = 8;

	for (uint32_t n = 1; n <= ARRAY_LEN(items); n++) {
		uint32_t pages = 0;

		for (uint32_t i = 0; i < n; i++) {
			items[i].first = pages;
			pages += 1 + random_below(&seed, 9);
		}
		for (uint32_t page = 0, i = 0; page < pages; page++) {
			if (i + 1 < n && items[i + 1].first == page)
				i++;
			cr_assert_eq(page_find_item(items, n, page), &items[i]);
		}
	}
}

static void fill_small(unsigned char *buf, uint64_t *seed)
{
	fill_random(buf, GAIA_PAGE, seed);
	for (uint32_t i = 0; i < GAIA_PAGE; i++)
		buf[i] %= 3;
}

Test(kernels, a_pull_is_the_merge_that_home_does_where_the_device_wins)
{
	unsigned char *page = host_pages(1), *host = host_pages(1), *base = host_pages(1);
	unsigned char *merged = host_pages(1);
	uint64_t seed = 21;

	for (uint32_t limit = 0; limit <= GAIA_PAGE; limit += limit < 20 || limit > 4070 ? 1 : 37) {
		fill_small(page, &seed);
		fill_small(host, &seed);
		fill_small(base, &seed);
		memcpy(merged, page, GAIA_PAGE);
		merge3_reference(merged, base, host, limit, MERGE_HOME_WINS);
		memcpy(merged + limit, host + limit, GAIA_PAGE - limit);
		for (uint32_t i = 0; i < PAGE_WORDS; i++)
			word_pull((word_t *)page, (word_t *)host, limit ? (word_t *)base : NULL, limit, i);
		cr_assert_arr_eq(page, merged, GAIA_PAGE, "limit %u", limit);
	}
	free(page);
	free(host);
	free(base);
	free(merged);
}

/* Stores to the even bytes of a word, without pause, and looks whether they stay. */
struct storing_lane {
	unsigned char *word;
	atomic_bool stop;
	atomic_uint rounds;
	unsigned lost;
};

static unsigned char load_byte(const unsigned char *at)
{
	return __atomic_load_n(at, __ATOMIC_RELAXED);
}

static void *store_all_the_time(void *arg)
{
	struct storing_lane *l = arg;
	unsigned char last = 0;

	for (unsigned char value = 1; !l->stop; value++, l->rounds++) {
		for (unsigned i = 0; i < 8; i += 2) {
			l->lost += load_byte(&l->word[i]) != last;
			__atomic_store_n(&l->word[i], value, __ATOMIC_RELAXED);
		}
		last = value;
	}
	return NULL;
}

Test(kernels, a_pull_loses_no_byte_that_is_stored_meanwhile)
{
	static word_t word, host, base;
	struct storing_lane lane = { .word = (unsigned char *)&word };
	pthread_t thread;

	cr_assert_eq(pthread_create(&thread, NULL, store_all_the_time, &lane), 0);
	while (lane.rounds < 200000) {
		for (unsigned i = 1; i < 8; i += 2)
			((unsigned char *)&host)[i]++;
		word_pull(&word, &host, &base, GAIA_PAGE, 0);
		for (unsigned i = 1; i < 8; i += 2)
			cr_assert_eq(load_byte(&lane.word[i]), ((unsigned char *)&host)[i]);
		base = host;
	}
	lane.stop = true;
	pthread_join(thread, NULL);
	cr_assert_eq(lane.lost, 0);
}

Test(kernels, zeroing_leaves_what_is_below_the_limit)
{
	unsigned char *page = host_pages(1);

	for (uint32_t limit = 0; limit <= GAIA_PAGE; limit++) {
		memset(page, 'x', GAIA_PAGE);
		for (uint32_t i = limit / 8; i < PAGE_WORDS; i++)
			word_zero((word_t *)page, limit, i);
		for (uint32_t i = 0; i < GAIA_PAGE; i++)
			cr_assert_eq(page[i], i < limit ? 'x' : 0);
	}
	free(page);
}

/* ---- host memory ---- */

static struct device *dev;

static void start(void)
{
	fake_cuda_start(2 * CHUNKS * GAIA_CHUNK);
	dev = new_cuda(0, CHUNKS * GAIA_CHUNK, 4 * GAIA_PAGE);
}

static void end(void)
{
	dev->ops->destroy(dev);
	assert_nothing_left();
}

TestSuite(cuda, .init = start, .fini = end, .timeout = 60);

static char *new_slabs(unsigned n)
{
	return memset(aligned_alloc(GAIA_CHUNK, n * (size_t)GAIA_CHUNK), 0, n * (size_t)GAIA_CHUNK);
}

static void announce(struct device *to, char *slab, bool there)
{
	to->ops->host_slab(to, slab, there);
}

/* By another thread, else the suite's time runs out; or it was refused (mode no_pins). */
static void wait_until_registered(char *slab)
{
	if (fake_cuda_mode()->no_pins) {
		while (!fake_cuda_calls_of("cuMemHostRegister"))
			sched_yield();
		cr_assert_not(fake_cuda_usable(slab, GAIA_CHUNK));
		return;
	}
	while (!fake_cuda_usable(slab, GAIA_CHUNK))
		sched_yield();
}

Test(cuda, slabs_are_registered_when_an_operation_names_them_and_until_they_go)
{
	struct devmem *mem = must_alloc(dev);
	char *slab = new_slabs(1);

	announce(dev, slab, true);
	cr_assert_not(fake_cuda_usable(slab, GAIA_CHUNK));
	cr_assert_eq(copy_in(mem, 0, 1, slab), 0);
	wait_until_registered(slab);
	cr_assert_eq(copy_in(mem, 0, 1, slab), 0);
	announce(dev, slab, false);
	cr_assert_not(fake_cuda_usable(slab, GAIA_CHUNK));
	cr_assert_eq(copy_in(mem, 0, 1, slab), 0); /* as any memory */
	cr_assert_not(fake_cuda_usable(slab, GAIA_CHUNK));
	must_free(mem);
	free(slab);
}

/* Runs over slab borders, in registered memory, in other memory, and in both. */
Test(cuda, copies_and_pulls_work_over_the_borders_of_registrations)
{
	enum { SLABS = 4, PAGES = SLABS * GAIA_CHUNK_PAGES };
	char *host = new_slabs(SLABS), *other = new_slabs(SLABS), *found = host_pages(GAIA_CHUNK_PAGES);
	struct devmem *mem = must_alloc(dev);
	uint64_t seed = 77;

	announce(dev, host, true);
	announce(dev, host + GAIA_CHUNK, true);
	announce(dev, host + 3 * (size_t)GAIA_CHUNK, true); /* the third is not */
	announce(dev, other + GAIA_CHUNK, true);
	for (int round = 0; round < 200; round++) {
		uint32_t n = 1 + random_below(&seed, round % 3 ? 20 : GAIA_CHUNK_PAGES);
		uint32_t page = random_below(&seed, GAIA_CHUNK_PAGES - n + 1);
		char *at = host + (size_t)random_below(&seed, PAGES - n + 1) * GAIA_PAGE;
		char *base = other + (size_t)random_below(&seed, PAGES - n + 1) * GAIA_PAGE;
		struct dev_run run = { mem, .page = page, .npages = n, .host = at, .base = base,
				       .limit = GAIA_PAGE };

		fill_random(at, (size_t)n * GAIA_PAGE, &seed);
		if (round % 2) {
			cr_assert_eq(copy_in(mem, page, n, at), 0);
		} else {
			/* What the device has is the base, all over: so all becomes host's. */
			fill_random(base, (size_t)n * GAIA_PAGE, &seed);
			cr_assert_eq(copy_in(mem, page, n, base), 0);
			cr_assert_eq(run_one(dev, DEV_PULL, run), 0);
		}
		cr_assert_eq(copy_out(mem, page, n, found), 0);
		cr_assert_arr_eq(found, at, (size_t)n * GAIA_PAGE);
		cr_assert_eq(copy_out(mem, page, n, base), 0);
		cr_assert_arr_eq(base, at, (size_t)n * GAIA_PAGE);
	}
	announce(dev, host, false);
	announce(dev, host + GAIA_CHUNK, false);
	announce(dev, host + 3 * (size_t)GAIA_CHUNK, false);
	announce(dev, other + GAIA_CHUNK, false);
	must_free(mem);
	free(host);
	free(other);
	free(found);
}

Test(cuda, memory_that_cannot_be_registered_works_all_the_same)
{
	struct devmem *mem = must_alloc(dev);
	char *slab = new_slabs(1), *found = host_pages(8);

	memset(slab, 's', GAIA_CHUNK);
	announce(dev, slab, true);
	fake_cuda_fail("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY, false);
	cr_assert_eq(copy_in(mem, 3, 8, slab), 0);
	while (fake_cuda_calls_of("cuMemHostRegister") == 0)
		sched_yield();
	cr_assert_eq(copy_in(mem, 3, 8, slab), 0);
	cr_assert(fake_cuda_failed());
	cr_assert_eq(copy_out(mem, 3, 8, found), 0);
	cr_assert_arr_eq(found, slab, 8 * GAIA_PAGE);
	announce(dev, slab, false);
	must_free(mem);
	free(slab);
	free(found);
}

/* More than fits all batches at once: items, staging buffers, results. */
Test(cuda, an_operation_may_be_larger_than_all_buffers)
{
	enum { N = CHUNKS * GAIA_CHUNK_PAGES };
	char *host = host_pages(N), *found = host_pages(N);
	struct dev_run *runs = calloc(N, sizeof(*runs));
	uint64_t bits[N / 64] = { 0 };
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = runs, .n = N };
	struct devmem *mem[CHUNKS];
	uint64_t seed = 4;

	for (unsigned c = 0; c < CHUNKS; c++)
		mem[c] = must_alloc(dev);
	fill_random(host, N * (size_t)GAIA_PAGE, &seed);
	for (uint32_t i = 0; i < N; i++) {
		uint32_t page = i / CHUNKS * 77 % GAIA_CHUNK_PAGES;

		runs[i] = (struct dev_run){ mem[i % CHUNKS], .page = page, .npages = 1,
					    .host = host + (size_t)i * GAIA_PAGE };
	}
	cr_assert_eq(device_run(dev, &op), 0);
	op.kind = DEV_FIND_CHANGED;
	op.changed = bits;
	cr_assert_eq(device_run(dev, &op), 0);
	for (uint32_t i = 0; i < N / 64; i++)
		cr_assert_eq(bits[i], UINT64_MAX);
	/* One page of each chunk, in the order of the runs. */
	for (uint32_t i = 0; i < N; i += 1009)
		cr_assert_eq(copy_in(runs[i].mem, runs[i].page, 1, host), 0);
	memset(bits, 0, sizeof(bits));
	cr_assert_eq(device_run(dev, &op), 0);
	for (uint32_t i = 0; i < N; i++)
		cr_assert_eq(bits[i / 64] >> (i % 64) & 1, i % 1009 == 0, "%u", i);
	op.kind = DEV_COPY_OUT;
	for (uint32_t i = 0; i < N; i++)
		runs[i].host = found + (size_t)i * GAIA_PAGE;
	cr_assert_eq(device_run(dev, &op), 0);
	for (uint32_t i = 0; i < N; i++)
		cr_assert_arr_eq(found + (size_t)i * GAIA_PAGE,
				 host + (i % 1009 ? (size_t)i * GAIA_PAGE : 0), GAIA_PAGE);
	for (unsigned c = 0; c < CHUNKS; c++)
		must_free(mem[c]);
	free(host);
	free(found);
	free(runs);
}

/* ---- chunks ---- */

Test(cuda, what_was_exported_is_never_used_again)
{
	struct devmem *mem[CHUNKS];
	unsigned char *client;
	char *host = host_pages(GAIA_CHUNK_PAGES);

	for (unsigned i = 0; i < CHUNKS; i++)
		mem[i] = must_alloc(dev);
	client = client_map(mem[2]);
	memset(client, 'c', GAIA_CHUNK);
	must_free(mem[2]);
	mem[2] = must_alloc(dev); /* there is room for no other */
	memset(host, 'h', GAIA_CHUNK);
	cr_assert_eq(copy_in(mem[2], 0, GAIA_CHUNK_PAGES, host), 0);
	for (uint32_t i = 0; i < GAIA_CHUNK; i++)
		cr_assert_eq(client[i], 'c');
	memset(client, 'd', GAIA_CHUNK);
	cr_assert_eq(copy_out(mem[2], 0, GAIA_CHUNK_PAGES, host), 0);
	cr_assert_null(memchr(host, 'd', GAIA_CHUNK));
	client_unmap(client);
	for (unsigned i = 0; i < CHUNKS; i++)
		must_free(mem[i]);
	free(host);
}

Test(cuda, memory_is_scrubbed_before_a_client_gets_it)
{
	for (int round = 0; round < 3; round++) {
		struct devmem *mem[CHUNKS];

		for (unsigned i = 0; i < CHUNKS; i++) {
			unsigned char *client;

			mem[i] = must_alloc(dev);
			if (i % 2)
				continue;
			client = client_map(mem[i]);
			for (uint32_t k = 0; k < GAIA_CHUNK; k += 64)
				cr_assert_eq(client[k], 0);
			memset(client, 's', GAIA_CHUNK);
			client_unmap(client);
		}
		for (unsigned i = 0; i < CHUNKS; i++)
			must_free(mem[i]);
		fake_cuda_importers_gone();
	}
}

Test(cuda, memory_that_is_used_again_was_never_armed)
{
	for (int round = 0; round < 3; round++) {
		struct devmem *mem[CHUNKS];

		for (unsigned i = 0; i < CHUNKS; i++) {
			mem[i] = must_alloc(dev);
			/* Zeros, whose hash was armed in the round before. */
			cr_assert_eq(find_changed(mem[i], 0, GAIA_CHUNK_PAGES), GAIA_CHUNK_PAGES);
		}
		for (unsigned i = 0; i < CHUNKS; i++)
			must_free(mem[i]);
	}
}

Test(cuda, read_only_exports_cannot_be_had)
{
	struct devmem *mem = must_alloc(dev);

	cr_assert_not(dev->shares_readonly);
	cr_assert_eq(dev->ops->export_fd(dev, mem, false), -ENOTSUP);
	must_free(mem);
}

Test(cuda, an_export_without_descriptors_fails_and_no_more)
{
	struct devmem *mem = must_alloc(dev);

	fake_cuda_fail("cuMemExportToShareableHandle", 1, CUDA_ERROR_OPERATING_SYSTEM, false);
	cr_assert_eq(dev->ops->export_fd(dev, mem, true), -EMFILE);
	client_unmap(client_map(mem));
	must_free(mem);
}

/* Another program uses the GPU: what the budget promises is not there. */
Test(cuda_small, out_of_memory_is_no_reason_to_give_up, .timeout = 60)
{
	struct devmem *mem[CHUNKS], *none = NULL;
	unsigned n = 0;
	int err;

	fake_cuda_start(6 * GAIA_CHUNK);
	dev = new_cuda(0, 6 * GAIA_CHUNK, 1);
	while (!(err = dev->ops->alloc(dev, &mem[n])))
		n++;
	cr_assert_eq(err, -ENOMEM);
	cr_assert(n >= 3 && n < 6, "%u", n);
	must_free(mem[--n]);
	mem[n++] = must_alloc(dev);
	cr_assert_eq(dev->ops->alloc(dev, &none), -ENOMEM);
	client_unmap(client_map(mem[0])); /* then it is destroyed, and made anew */
	must_free(mem[0]);
	/* If another process had imported it: not before that lets it go. */
	if (fake_cuda_mode()->busy_importers)
		cr_assert_eq(dev->ops->alloc(dev, &none), -ENOMEM);
	fake_cuda_importers_gone();
	mem[0] = must_alloc(dev);
	while (n)
		must_free(mem[--n]);
	dev->ops->destroy(dev);
	assert_nothing_left();
}

/* ---- several GPUs; creation ---- */

Test(cuda_several, devices_share_the_registrations_of_the_process, .timeout = 60)
{
	struct device *two[2];
	struct devmem *mem[2];
	char *slab = new_slabs(1), *found = host_pages(1);

	fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 2, .memory = 16 * GAIA_CHUNK });
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	memset(slab, 's', GAIA_CHUNK);
	for (unsigned i = 0; i < 2; i++) {
		two[i] = new_cuda(i, 4 * GAIA_CHUNK, 1);
		mem[i] = must_alloc(two[i]);
		announce(two[i], slab, true);
		cr_assert_eq(copy_in(mem[i], 0, 8, slab), 0);
		wait_until_registered(slab);
		cr_assert_eq(copy_in(mem[i], 0, 8, slab), 0);
		cr_assert_eq(copy_out(mem[i], 7, 1, found), 0);
		cr_assert_arr_eq(found, slab, GAIA_PAGE);
	}
	cr_assert(memcmp(two[0]->uuid, two[1]->uuid, 16) != 0);
	announce(two[0], slab, false);
	cr_assert_eq(fake_cuda_usable(slab, GAIA_CHUNK), !fake_cuda_mode()->no_pins);
	cr_assert_eq(copy_in(mem[1], 0, 8, slab), 0);
	announce(two[1], slab, false);
	cr_assert_not(fake_cuda_usable(slab, GAIA_CHUNK));
	for (unsigned i = 0; i < 2; i++) {
		must_free(mem[i]);
		two[i]->ops->destroy(two[i]);
	}
	assert_nothing_left();
	free(slab);
	free(found);
}

static void create_two(struct device *two[2], bool no_peers)
{
	fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 2, .memory = 16 * GAIA_CHUNK,
						    .no_peers = no_peers });
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	for (unsigned i = 0; i < 2; i++)
		two[i] = new_cuda(i, 4 * GAIA_CHUNK, 8 * GAIA_PAGE);
}

static void destroy_two(struct device *two[2])
{
	for (unsigned i = 0; i < 2; i++)
		two[i]->ops->destroy(two[i]);
	assert_nothing_left();
}

static int copy_peer(struct devmem *to, struct devmem *from)
{
	struct dev_run run = { to, .other = from, .npages = 20 };
	struct dev_op op = { .kind = DEV_COPY_PEER, .runs = &run, .n = 1, .from = from->dev };

	return device_run(to->dev, &op);
}

Test(cuda_several, gpus_without_peer_access_do_not_reach_each_other, .timeout = 60)
{
	struct device *two[2];

	create_two(two, true);
	cr_assert_not(device_reaches(two[0], two[1]));
	cr_assert_not(device_reaches(two[1], two[0]));
	destroy_two(two);
}

/* All of both devices is allocated when calls are made to fail: nobody makes chunks to keep then. */
static void alloc_all(struct device *of, struct devmem *mem[4])
{
	for (unsigned i = 0; i < 4; i++)
		mem[i] = must_alloc(of);
}

static void free_all(struct devmem *mem[4])
{
	for (unsigned i = 0; i < 4; i++)
		must_free(mem[i]);
}

/* What a slot held before may have been open to the other GPU. */
Test(cuda_several, access_is_given_once_in_each_life_of_a_chunk, .timeout = 60)
{
	struct devmem *to[4], *from[4];
	struct device *two[2];

	create_two(two, false);
	alloc_all(two[0], to);
	alloc_all(two[1], from);
	for (unsigned i = 0; i < 20; i++) {
		cr_assert_eq(copy_peer(to[0], from[0]), 0);
		fake_cuda_fail("cuMemSetAccess", 1, CUDA_ERROR_INVALID_VALUE, false);
		cr_assert_eq(copy_peer(to[0], from[0]), 0);
		cr_assert_not(fake_cuda_failed(), "it was called");
		client_unmap(client_map(from[0])); /* so that it is made anew */
		must_free(from[0]);
		fake_cuda_importers_gone();
		from[0] = must_alloc(two[1]);
	}
	free_all(to);
	free_all(from);
	destroy_two(two);
}

Test(cuda_several, access_that_is_refused_breaks_neither, .timeout = 60)
{
	struct devmem *to[4], *from[4];
	char *host = host_pages(20);
	struct device *two[2];

	create_two(two, false);
	alloc_all(two[0], to);
	alloc_all(two[1], from);
	fake_cuda_fail("cuMemSetAccess", 1, CUDA_ERROR_NOT_SUPPORTED, false);
	cr_assert_eq(copy_peer(to[0], from[0]), -EHOSTUNREACH);
	cr_assert(fake_cuda_failed());
	cr_assert_eq(copy_in(to[0], 0, 20, host), 0);
	cr_assert_eq(copy_in(from[0], 0, 20, host), 0);
	cr_assert_eq(copy_peer(to[0], from[0]), 0);
	free_all(to);
	free_all(from);
	destroy_two(two);
	free(host);
}

/* What it holds cannot be trusted any more, though it could be read. */
Test(cuda_several, nothing_is_taken_from_a_gpu_that_is_switched_off, .timeout = 60)
{
	char *host = host_pages(20);
	struct device *two[2];
	struct devmem *to, *from;

	create_two(two, false);
	to = must_alloc(two[0]);
	from = must_alloc(two[1]);
	cr_assert_eq(copy_peer(to, from), 0);
	fake_cuda_fail("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, false);
	cr_assert_eq(copy_in(from, 0, 20, host), -EIO);
	cr_assert_eq(copy_peer(to, from), -EHOSTUNREACH);
	cr_assert_not(device_reaches(two[0], two[1]));
	cr_assert_eq(copy_in(to, 0, 20, host), 0);
	must_free(to);
	must_free(from);
	destroy_two(two);
	free(host);
}

Test(cuda_several, says_what_it_is, .timeout = 60)
{
	unsigned char uuid[16];

	fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 2, .first = 3,
						    .memory = 100 * (size_t)GAIA_CHUNK });
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	dev = new_cuda(1, 0, 1);
	cr_assert_str_eq(dev->name, "cuda1");
	cr_assert_str_eq(dev->kind, "cuda");
	cr_assert_not(dev->simulated);
	cr_assert_eq(dev->capacity, 80 * (uint64_t)GAIA_CHUNK); /* 80 % of what is free */
	fake_cuda_uuid(4, uuid);
	cr_assert_arr_eq(dev->uuid, uuid, 16);
	dev->ops->destroy(dev);
	assert_nothing_left();
}

static void assert_refused(struct cuda_config config, int err)
{
	struct device *none = NULL;

	cr_assert_eq(cuda_create(fake_cuda_api(), &config, 1, &none), err);
	cr_assert_null(none);
	assert_nothing_left();
}

Test(cuda_several, what_cannot_be_had_is_refused, .timeout = 60)
{
	fake_cuda_start(8 * GAIA_CHUNK);
	assert_refused((struct cuda_config){ .index = 1 }, -ENODEV);
	assert_refused((struct cuda_config){ .capacity = 9 * GAIA_CHUNK }, -EINVAL);
	assert_refused((struct cuda_config){ .capacity = GAIA_CHUNK - 1 }, -EINVAL);
	fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 1, .memory = 8 * GAIA_CHUNK,
						    .granularity = 2 * GAIA_CHUNK });
	cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	assert_refused((struct cuda_config){ .index = 0 }, -ENODEV);
}
