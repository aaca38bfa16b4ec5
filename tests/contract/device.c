/*
 * device.c - the contract of device/device.h, over every device.
 *
 * A test is written once, for a struct device, and run on each: the simulated device, as fast as it
 * can and with a slow bus; the faulty layer with nothing armed; and, where CUDA is at hand to
 * compile it, the CUDA device on a fake driver: copies by kernels, by the copy engine, and both. With
 * GAIAFS_TEST_CUDA in the environment the suite "cuda" takes GPU 0, and passes over what only CPU code can do.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "base/fault.h"
#include "child.h"
#include "device_io.h"
#ifdef HAVE_CUDA
#include "fake_cuda_api.h"
#endif

#define CHUNKS 8u

static const struct sim_config fast = { .capacity = CHUNKS * GAIA_CHUNK };
static const struct sim_config slow = { .capacity = CHUNKS * GAIA_CHUNK,
					.bandwidth = 4ull << 30,
					.latency_ns = 20000 };

static struct device *new_sim(const struct sim_config *config)
{
	struct device *dev = NULL;

	cr_assert_eq(device_sim_create(config, &dev), 0);
	return dev;
}

static struct device *new_host(void)
{
	struct device *dev = NULL;

	cr_assert_eq(device_host_create(fast.capacity, &dev), 0);
	return dev;
}

static struct device *new_faulty(void)
{
	struct device *dev = NULL;

	cr_assert_eq(device_faulty_create(new_sim(&fast), &dev), 0);
	return dev;
}

static void on_device(void (*test)(struct device *dev), struct device *dev)
{
	test(dev);
	dev->ops->destroy(dev);
}

#ifdef HAVE_CUDA
/* With room for tables beside the chunks. */
static struct device *new_cuda(uint32_t copy_from)
{
	const struct cuda_config config = { .capacity = CHUNKS * GAIA_CHUNK };
	const struct cuda_api *api;
	struct device *dev = NULL;
	const char *why = "";

	if (!on_real_gpu())
		fake_cuda_start(2 * CHUNKS * GAIA_CHUNK);
	api = on_real_gpu() ? cuda_driver(&why) : fake_cuda_api();
	cr_assert_not_null(api, "%s", why);
	cr_assert_eq(cuda_create(api, &config, copy_from, &dev), 0);
	return dev;
}

static void on_cuda(void (*test)(struct device *dev), uint32_t copy_from)
{
	on_device(test, new_cuda(copy_from));
	if (on_real_gpu())
		return;
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true), 0);
}

#define EACH_CUDA(name)                               \
	Test(cuda, name, .timeout = 60)               \
	{                                             \
		on_cuda(name, 8 * GAIA_PAGE);         \
	}                                             \
	Test(cuda_by_kernel, name, .timeout = 60)     \
	{                                             \
		on_cuda(name, UINT32_MAX);            \
	}                                             \
	Test(cuda_by_engine, name, .timeout = 60)     \
	{                                             \
		on_cuda(name, 1);                     \
	}
#else
#define EACH_CUDA(name)
#endif

#define EACH_DEVICE(name)                                                  \
	static void name(struct device *dev);                              \
	Test(sim, name, .timeout = 60)                                     \
	{                                                                  \
		on_device(name, new_sim(&fast));                           \
	}                                                                  \
	Test(slow_sim, name, .timeout = 60)                                \
	{                                                                  \
		on_device(name, new_sim(&slow));                           \
	}                                                                  \
	Test(faulty_sim, name, .timeout = 60)                              \
	{                                                                  \
		on_device(name, new_faulty());                             \
	}                                                                  \
	Test(host, name, .timeout = 60)                                    \
	{                                                                  \
		on_device(name, new_host());                               \
	}                                                                  \
	EACH_CUDA(name)                                                    \
	static void name(struct device *dev)

static void must_free(struct devmem *mem)
{
	mem->dev->ops->free(mem->dev, mem);
}

/* ---- memory ---- */

EACH_DEVICE(says_what_it_is)
{
	cr_assert_gt(strlen(dev->name), 0);
	cr_assert_gt(strlen(dev->kind), 0);
	cr_assert_gt(strlen(dev->ops->name), 0);
	cr_assert_gt(dev->capacity, 0);
	cr_assert_eq(dev->capacity % GAIA_CHUNK, 0);
}

EACH_DEVICE(its_whole_capacity_can_be_had_and_no_more)
{
	struct devmem *mem[CHUNKS], *more = NULL;

	for (int round = 0; round < 3; round++) {
		for (unsigned i = 0; i < CHUNKS; i++)
			mem[i] = must_alloc(dev);
		cr_assert_eq(dev->ops->alloc(dev, &more), -ENOMEM);
		cr_assert_null(more);
		must_free(mem[3]);
		mem[3] = must_alloc(dev);
		cr_assert_eq(dev->ops->alloc(dev, &more), -ENOMEM);
		for (unsigned i = 0; i < CHUNKS; i++)
			must_free(mem[i]);
	}
}

EACH_DEVICE(memory_names_the_device_to_submit_to)
{
	struct devmem *mem = must_alloc(dev);

	cr_assert_eq(mem->dev, dev);
	must_free(mem);
}

EACH_DEVICE(no_generation_comes_twice)
{
	struct device *second = new_sim(&fast);
	uint64_t seen[20];

	for (unsigned i = 0; i < ARRAY_LEN(seen); i++) {
		struct devmem *mem = must_alloc(i % 2 ? dev : second);

		seen[i] = mem->generation;
		for (unsigned j = 0; j < i; j++)
			cr_assert_neq(seen[j], seen[i]);
		must_free(mem);
	}
	second->ops->destroy(second);
}

EACH_DEVICE(new_memory_shows_nothing_of_its_predecessor)
{
	char *secret = host_pages(GAIA_CHUNK_PAGES), *found = host_pages(GAIA_CHUNK_PAGES);
	struct devmem *mem = must_alloc(dev);

	memset(secret, 'S', GAIA_CHUNK);
	cr_assert_eq(copy_in(mem, 0, GAIA_CHUNK_PAGES, secret), 0);
	must_free(mem);
	mem = must_alloc(dev);
	cr_assert_eq(copy_out(mem, 0, GAIA_CHUNK_PAGES, found), 0);
	cr_assert_null(memchr(found, 'S', GAIA_CHUNK));
	must_free(mem);
	free(secret);
	free(found);
}

/* ---- extents ---- */

/* Over all devices that give any; they have room for one. */
#define EACH_WITH_EXTENTS(name)                                               \
	static void name##_of(struct device *dev, struct devmem **mem);       \
	EACH_DEVICE(name)                                                     \
	{                                                                     \
		struct devmem *mem[GAIA_EXTENT_CHUNKS];                       \
                                                                              \
		cr_assert_eq(dev->gives_extents, !!strcmp(dev->kind, "host"));\
		if (!dev->gives_extents)                                      \
			return;                                               \
		must_alloc_extent(dev, mem);                                  \
		name##_of(dev, mem);                                          \
	}                                                                     \
	static void name##_of(struct device *dev, struct devmem **mem)

static void free_extent(struct devmem **mem)
{
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++)
		must_free(mem[k]);
}

/* Each member has @npages pages of a byte of its own, from @page on. */
static void fill_extent(struct devmem **mem, uint32_t page, uint32_t npages, char first)
{
	char *host = host_pages(npages);

	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++) {
		memset(host, first + (char)k, npages * (size_t)GAIA_PAGE);
		cr_assert_eq(copy_in(mem[k], page, npages, host), 0);
	}
	free(host);
}

static void assert_filled(struct devmem *mem, uint32_t page, uint32_t npages, char with)
{
	char *found = host_pages(npages);

	cr_assert_eq(copy_out(mem, page, npages, found), 0);
	cr_assert_eq(found[0], with);
	cr_assert_eq(memcmp(found, found + 1, npages * (size_t)GAIA_PAGE - 1), 0);
	free(found);
}

EACH_WITH_EXTENTS(an_extent_is_chunks_as_others_are)
{
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++) {
		cr_assert(mem[k]->joined);
		cr_assert_eq(mem[k]->dev, dev);
		for (unsigned j = 0; j < k; j++)
			cr_assert(mem[j] != mem[k] && mem[j]->generation != mem[k]->generation);
	}
	fill_extent(mem, 0, GAIA_CHUNK_PAGES, 'a');
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++)
		assert_filled(mem[k], 0, GAIA_CHUNK_PAGES, (char)('a' + (int)k));
	free_extent(mem);
	mem[0] = must_alloc(dev);
	cr_assert_not(mem[0]->joined);
	must_free(mem[0]);
}

EACH_WITH_EXTENTS(pages_of_an_extent_are_those_of_their_chunk)
{
	struct dev_run runs[GAIA_EXTENT_CHUNKS];
	struct dev_op zero = { .kind = DEV_ZERO, .runs = runs, .n = GAIA_EXTENT_CHUNKS };
	char *host = host_pages(4);

	fill_extent(mem, 8, 4, 'a');
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++)
		cr_assert_eq(arm(mem[k], 8, 4), 0);
	memset(host, 'x', 4 * GAIA_PAGE);
	cr_assert_eq(copy_in(mem[3], 10, 2, host), 0);
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++)
		cr_assert_eq(find_changed(mem[k], 8, 4), k == 3 ? 2 : 0);
	cr_assert_eq(copy_within(mem[6], mem[3], 10, 2), 0);
	assert_filled(mem[6], 8, 2, 'g');
	assert_filled(mem[6], 10, 2, 'x');
	cr_assert_eq(find_changed(mem[6], 8, 4), 0, "they were armed there");
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++)
		runs[k] = (struct dev_run){ mem[k], .page = 8 + k % 2, .npages = 1 };
	cr_assert_eq(device_run(dev, &zero), 0);
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++) {
		assert_filled(mem[k], 8 + k % 2, 1, 0);
		assert_filled(mem[k], 8 + !(k % 2), 1, (char)('a' + (int)k));
	}
	free_extent(mem);
	free(host);
}

EACH_WITH_EXTENTS(who_has_any_chunk_of_an_extent_has_all_in_their_order)
{
	unsigned char *client[2];

	fill_extent(mem, 0, GAIA_CHUNK_PAGES, 'a');
	client[0] = client_map(mem[0]);
	client[1] = client_map(mem[5]);
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++) {
		for (uint32_t i = 0; i < GAIA_CHUNK; i += 61)
			cr_assert_eq(client[1][k * GAIA_CHUNK + i], 'a' + k);
		cr_assert_eq(arm(mem[k], 0, GAIA_CHUNK_PAGES), 0);
	}
	client[1][2 * GAIA_CHUNK + 7] = 'c' - 1;
	client[1][7 * GAIA_CHUNK - 1] = 'z';
	cr_assert_eq(client[0][7 * GAIA_CHUNK - 1], 'z', "they are the same");
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++)
		cr_assert_eq(find_changed(mem[k], 0, GAIA_CHUNK_PAGES), k == 2 || k == 6);
	client_unmap_extent(client[0]);
	client_unmap_extent(client[1]);
	free_extent(mem);
}

/* What is freed is none of it any more, and the others are what they were. */
EACH_WITH_EXTENTS(chunks_of_an_extent_are_freed_one_by_one)
{
	uint64_t seed = 11;

	for (unsigned round = 0; round < 4; round++) {
		bool freed[GAIA_EXTENT_CHUNKS] = { false };
		struct devmem *other[GAIA_EXTENT_CHUNKS] = { NULL };

		fill_extent(mem, 8, 2, 'a');
		for (unsigned left = GAIA_EXTENT_CHUNKS; left > 0; left--) {
			unsigned k;

			cr_assert_eq(dev->ops->alloc_extent(dev, other), -ENOMEM, "there is no room beside %u", left);
			cr_assert_eq(dev->ops->alloc(dev, other), -ENOMEM, "what is freed is no room until all is: %u", left);
			cr_assert_null(other[0]);
			do
				k = random_below(&seed, GAIA_EXTENT_CHUNKS);
			while (freed[k]);
			freed[k] = true;
			must_free(mem[k]);
			cr_assert_eq(run_one(dev, DEV_ARM, (struct dev_run){ mem[k], .page = 8, .npages = 2 }), -EINVAL);
			for (unsigned j = 0; j < GAIA_EXTENT_CHUNKS; j++)
				if (!freed[j])
					assert_filled(mem[j], 8, 2, (char)('a' + (int)j));
		}
		must_alloc_extent(dev, mem);
	}
	free_extent(mem);
}

EACH_WITH_EXTENTS(an_extent_that_does_not_fit_takes_nothing)
{
	struct devmem *none[GAIA_EXTENT_CHUNKS] = { NULL };

	free_extent(mem);
	mem[0] = must_alloc(dev);
	cr_assert_eq(dev->ops->alloc_extent(dev, none), -ENOMEM);
	cr_assert_null(none[0]);
	for (unsigned k = 1; k < CHUNKS; k++)
		mem[k] = must_alloc(dev);
	for (unsigned k = 0; k < CHUNKS; k++)
		must_free(mem[k]);
	must_alloc_extent(dev, mem);
	cr_assert_eq(dev->ops->alloc(dev, none), -ENOMEM);
	free_extent(mem);
}

EACH_WITH_EXTENTS(a_new_extent_shows_nothing_of_its_predecessor_and_was_never_armed)
{
	char *found = host_pages(GAIA_CHUNK_PAGES);

	fill_extent(mem, 0, GAIA_CHUNK_PAGES, 'S');
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++)
		cr_assert_eq(arm(mem[k], 0, GAIA_CHUNK_PAGES), 0);
	free_extent(mem);
	must_alloc_extent(dev, mem);
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++) {
		cr_assert_eq(copy_out(mem[k], 0, GAIA_CHUNK_PAGES, found), 0);
		cr_assert_null(memchr(found, 'S' + (int)k, GAIA_CHUNK));
		cr_assert_eq(find_changed(mem[k], 0, GAIA_CHUNK_PAGES), GAIA_CHUNK_PAGES);
	}
	free_extent(mem);
	free(found);
}

/* ---- copies ---- */

#define MAX_RUNS 128u

/* Disjoint runs over @n chunks, in random order, and host memory for them: pages in all. */
static uint32_t random_runs(struct dev_run *runs, unsigned *n_runs, struct devmem **mem, unsigned n,
			    char *host, uint64_t *seed)
{
	uint32_t pages = 0, longest = 1 + random_below(seed, 100);
	unsigned count = 0;

	for (unsigned c = 0; c < n; c++) {
		uint32_t page = random_below(seed, 64);

		while (page < GAIA_CHUNK_PAGES && count < MAX_RUNS) {
			uint32_t len = 1 + random_below(seed, longest);
			unsigned at = random_below(seed, count + 1);

			len = MIN(len, GAIA_CHUNK_PAGES - page);
			runs[count++] = runs[at];
			runs[at] = (struct dev_run){ mem[c], .page = page, .npages = len };
			page += len + random_below(seed, 64);
		}
	}
	for (unsigned i = 0; i < count; i++) {
		runs[i].host = host + (size_t)pages * GAIA_PAGE;
		pages += runs[i].npages;
	}
	*n_runs = count;
	return pages;
}

EACH_DEVICE(random_copies_agree_with_a_plain_array)
{
	enum { N = 3 };
	char *model[N], *host = host_pages(N * GAIA_CHUNK_PAGES);
	struct dev_run runs[MAX_RUNS];
	struct devmem *mem[N];
	uint64_t seed = 42;

	for (unsigned c = 0; c < N; c++) {
		mem[c] = must_alloc(dev);
		model[c] = host_pages(GAIA_CHUNK_PAGES);
		cr_assert_eq(copy_in(mem[c], 0, GAIA_CHUNK_PAGES, model[c]), 0);
	}
	for (int round = 0; round < 60; round++) {
		struct dev_op op = { .kind = round % 2 ? DEV_COPY_OUT : DEV_COPY_IN, .runs = runs };
		uint32_t pages = random_runs(runs, &op.n, mem, N, host, &seed);

		fill_random(host, (size_t)pages * GAIA_PAGE, &seed);
		cr_assert_eq(device_run(dev, &op), 0);
		for (unsigned i = 0; i < op.n; i++) {
			unsigned c = runs[i].mem == mem[0] ? 0 : runs[i].mem == mem[1] ? 1 : 2;
			char *there = model[c] + (size_t)runs[i].page * GAIA_PAGE;
			size_t bytes = (size_t)runs[i].npages * GAIA_PAGE;

			if (op.kind == DEV_COPY_IN)
				memcpy(there, runs[i].host, bytes);
			else
				cr_assert_arr_eq(runs[i].host, there, bytes, "round %d", round);
		}
	}
	/* And nothing else was touched. */
	for (unsigned c = 0; c < N; c++) {
		cr_assert_eq(copy_out(mem[c], 0, GAIA_CHUNK_PAGES, host), 0);
		cr_assert_arr_eq(host, model[c], GAIA_CHUNK);
		must_free(mem[c]);
		free(model[c]);
	}
	free(host);
}

EACH_DEVICE(copies_within_go_to_the_same_pages_of_another_chunk)
{
	char *a = host_pages(GAIA_CHUNK_PAGES), *b = host_pages(GAIA_CHUNK_PAGES);
	struct devmem *from = must_alloc(dev), *to = must_alloc(dev);
	uint64_t seed = 7;

	fill_random(a, GAIA_CHUNK, &seed);
	fill_random(b, GAIA_CHUNK, &seed);
	cr_assert_eq(copy_in(from, 0, GAIA_CHUNK_PAGES, a), 0);
	cr_assert_eq(copy_in(to, 0, GAIA_CHUNK_PAGES, b), 0);
	cr_assert_eq(copy_within(to, from, 100, 50), 0);
	memcpy(b + 100 * GAIA_PAGE, a + 100 * GAIA_PAGE, 50 * GAIA_PAGE);
	cr_assert_eq(copy_out(to, 0, GAIA_CHUNK_PAGES, a), 0);
	cr_assert_arr_eq(a, b, GAIA_CHUNK);
	must_free(from);
	must_free(to);
	free(a);
	free(b);
}

EACH_DEVICE(zero_clears_runs_of_whole_pages)
{
	char *host = host_pages(8), *found = host_pages(8);
	struct devmem *mem = must_alloc(dev);
	struct dev_run runs[] = { { mem, .page = 101, .npages = 4 }, { mem, .page = 106, .npages = 1 } };
	struct dev_op op = { .kind = DEV_ZERO, .runs = runs, .n = ARRAY_LEN(runs) };

	memset(host, 'x', 8 * GAIA_PAGE);
	cr_assert_eq(copy_in(mem, 100, 8, host), 0);
	cr_assert_eq(device_run(dev, &op), 0);
	memset(host + GAIA_PAGE, 0, 4 * GAIA_PAGE);
	memset(host + 6 * GAIA_PAGE, 0, GAIA_PAGE);
	cr_assert_eq(copy_out(mem, 100, 8, found), 0);
	cr_assert_arr_eq(found, host, 8 * GAIA_PAGE);
	must_free(mem);
	free(host);
	free(found);
}

EACH_DEVICE(zero_clears_from_the_limit_to_the_end_of_the_page)
{
	static const uint32_t limits[] = { 0, 1, 7, 8, 2048, 4095, 4096 };
	char *host = host_pages(8), *found = host_pages(8);
	struct devmem *mem = must_alloc(dev);
	struct dev_run runs[ARRAY_LEN(limits)];
	struct dev_op op = { .kind = DEV_ZERO, .runs = runs, .n = ARRAY_LEN(limits) };

	memset(host, 'x', 8 * GAIA_PAGE);
	cr_assert_eq(copy_in(mem, 504, 8, host), 0);
	for (uint32_t i = 0; i < ARRAY_LEN(limits); i++) {
		runs[i] = (struct dev_run){ mem, .page = 504 + i, .npages = 1,
					    .limit = limits[i] };
		memset(host + i * GAIA_PAGE + limits[i], 0, GAIA_PAGE - limits[i]);
	}
	cr_assert_eq(device_run(dev, &op), 0);
	cr_assert_eq(copy_out(mem, 504, 8, found), 0);
	cr_assert_arr_eq(found, host, 8 * GAIA_PAGE);
	must_free(mem);
	free(host);
	free(found);
}

/* ---- order and completion ---- */

/* A crowd of operations of a test; filled in by done(), on the device's thread. */
struct crowd {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	unsigned n;
	unsigned order[1024];
	int err[1024];
	bool inside; /* done() ran within submit() */
	pthread_t submitter;
};

struct member {
	struct dev_op op;
	struct dev_run run;
	struct crowd *crowd;
	unsigned number;
};

static void crowd_init(struct crowd *c)
{
	pthread_mutexattr_t attr;

	memset(c, 0, sizeof(*c));
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
	pthread_mutex_init(&c->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	pthread_cond_init(&c->ended, NULL);
	c->submitter = pthread_self();
}

static void note_end(struct dev_op *op, int err)
{
	struct member *m = op->arg;
	struct crowd *c = m->crowd;

	if (pthread_mutex_lock(&c->lock)) {
		/* EDEADLK: this is the submitter, who holds it. */
		c->inside = true;
		c->n++;
		return;
	}
	c->inside |= pthread_equal(pthread_self(), c->submitter);
	c->err[c->n] = err;
	c->order[c->n++] = m->number;
	pthread_cond_signal(&c->ended);
	pthread_mutex_unlock(&c->lock);
}

static int crowd_submit(struct crowd *c, struct member *m, unsigned number, enum dev_kind kind,
			struct dev_run run)
{
	int err;

	m->run = run;
	m->crowd = c;
	m->number = number;
	m->op = (struct dev_op){ .kind = kind, .runs = &m->run, .n = 1, .done = note_end, .arg = m };
	/* done() wants this lock, too. */
	pthread_mutex_lock(&c->lock);
	err = device_submit(run.mem->dev, &m->op);
	pthread_mutex_unlock(&c->lock);
	return err;
}

static void crowd_wait(struct crowd *c, unsigned n)
{
	pthread_mutex_lock(&c->lock);
	while (c->n < n)
		pthread_cond_wait(&c->ended, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

EACH_DEVICE(operations_end_in_order_once_and_never_within_submit)
{
	enum { N = 300 };
	static const enum dev_kind kinds[] = { DEV_ARM, DEV_COPY_IN, DEV_COPY_OUT, DEV_ZERO };
	static struct member members[N];
	struct devmem *mem = must_alloc(dev);
	char *host = host_pages(N);
	struct crowd crowd;

	crowd_init(&crowd);
	for (unsigned i = 0; i < N; i++)
		cr_assert_eq(crowd_submit(&crowd, &members[i], i, kinds[i % 4],
					  (struct dev_run){ mem, .page = i, .npages = 1,
							    .host = host + i * GAIA_PAGE }),
			     0);
	crowd_wait(&crowd, N);
	cr_assert_eq(crowd.n, N);
	cr_assert_not(crowd.inside);
	for (unsigned i = 0; i < N; i++) {
		cr_assert_eq(crowd.order[i], i);
		cr_assert_eq(crowd.err[i], 0);
	}
	must_free(mem);
	free(host);
}

/* Runs of all lengths, also in one operation, and pages that were armed before. */
EACH_DEVICE(what_is_copied_in_and_armed_counts_as_unchanged)
{
	char *host = host_pages(GAIA_CHUNK_PAGES);
	struct devmem *mem = must_alloc(dev);
	struct dev_run runs[] = {
		{ mem, .page = 0, .npages = 1, .host = host },
		{ mem, .page = 2, .npages = 100, .host = host + 2 * GAIA_PAGE },
		{ mem, .page = 110, .npages = 3, .host = host + 110 * GAIA_PAGE },
	};
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = runs, .n = ARRAY_LEN(runs), .arm = true };
	uint64_t seed = 5;

	fill_random(host, GAIA_CHUNK, &seed);
	for (unsigned round = 0; round < 2; round++) {
		cr_assert_eq(copy_in(mem, 0, GAIA_CHUNK_PAGES, host), 0);
		cr_assert_eq(arm(mem, 0, 50), 0);
		fill_random(host, GAIA_CHUNK, &seed);
		cr_assert_eq(device_run(dev, &op), 0);
		cr_assert_eq(find_changed(mem, 0, 1), 0);
		cr_assert_eq(find_changed(mem, 1, 1), 0); /* was armed, and is not copied to */
		cr_assert_eq(find_changed(mem, 2, 100), 0);
		cr_assert_eq(find_changed(mem, 102, 8), 8); /* never armed */
		cr_assert_eq(find_changed(mem, 110, 3), 0);
		/* What is copied in without is forgotten, as ever. */
		cr_assert_eq(copy_in(mem, 0, 5, host), 0);
		cr_assert_eq(copy_in(mem, 60, 1, host), 0);
		cr_assert_eq(find_changed(mem, 0, 102), 6);
	}
	must_free(mem);
	free(host);
}

EACH_DEVICE(an_operation_sees_what_those_before_it_did)
{
	char *a = host_pages(1), *b = host_pages(1), *out = host_pages(3);
	struct devmem *mem = must_alloc(dev), *snapshot = must_alloc(dev);
	struct member m[6];
	struct crowd crowd;
	struct {
		enum dev_kind kind;
		struct dev_run run;
	} steps[6] = {
		{ DEV_COPY_IN, { mem, .page = 9, .npages = 1, .host = a } },
		{ DEV_COPY_OUT, { mem, .page = 9, .npages = 1, .host = out } },
		{ DEV_COPY_WITHIN, { snapshot, .other = mem, .page = 9, .npages = 1 } },
		{ DEV_COPY_IN, { mem, .page = 9, .npages = 1, .host = b } },
		{ DEV_COPY_OUT, { mem, .page = 9, .npages = 1, .host = out + GAIA_PAGE } },
		{ DEV_COPY_OUT, { snapshot, .page = 9, .npages = 1, .host = out + 2 * GAIA_PAGE } },
	};

	memset(a, 'a', GAIA_PAGE);
	memset(b, 'b', GAIA_PAGE);
	crowd_init(&crowd);
	for (unsigned i = 0; i < 6; i++)
		cr_assert_eq(crowd_submit(&crowd, &m[i], i, steps[i].kind, steps[i].run), 0);
	crowd_wait(&crowd, 6);
	cr_assert_arr_eq(out, a, GAIA_PAGE);
	cr_assert_arr_eq(out + GAIA_PAGE, b, GAIA_PAGE);
	cr_assert_arr_eq(out + 2 * GAIA_PAGE, a, GAIA_PAGE);
	must_free(mem);
	must_free(snapshot);
	free(a);
	free(b);
	free(out);
}

/* done() goes on by itself: each end submits the next, the last one frees the memory. */
struct chain {
	struct dev_op op;
	struct dev_run run;
	unsigned left;
	struct crowd *crowd;
};

static void go_on(struct dev_op *op, int err)
{
	struct chain *c = op->arg;

	if (!err && --c->left) {
		c->run.page = c->left;
		err = device_submit(c->run.mem->dev, op);
		if (!err)
			return;
	}
	must_free(c->run.mem);
	pthread_mutex_lock(&c->crowd->lock);
	c->crowd->err[c->crowd->n++] = err;
	pthread_cond_signal(&c->crowd->ended);
	pthread_mutex_unlock(&c->crowd->lock);
}

EACH_DEVICE(done_may_submit_and_free)
{
	struct chain c = { .left = 100 };
	struct crowd crowd;

	crowd_init(&crowd);
	c.crowd = &crowd;
	c.run = (struct dev_run){ must_alloc(dev), .npages = 1 };
	c.op = (struct dev_op){ .kind = DEV_ARM, .runs = &c.run, .n = 1, .done = go_on, .arg = &c };
	cr_assert_eq(device_submit(dev, &c.op), 0);
	crowd_wait(&crowd, 1);
	cr_assert_eq(crowd.err[0], 0);
	cr_assert_eq(c.left, 0);
}

/* ---- changes ---- */

EACH_DEVICE(a_page_that_was_never_armed_counts_as_changed_and_is_then_armed)
{
	struct devmem *mem = must_alloc(dev);

	cr_assert_eq(find_changed(mem, 10, 20), 20);
	cr_assert_eq(find_changed(mem, 10, 20), 0);
	cr_assert_eq(find_changed(mem, 0, GAIA_CHUNK_PAGES), GAIA_CHUNK_PAGES - 20);
	must_free(mem);
}

EACH_DEVICE(one_changed_bit_is_found_in_its_page_and_only_there)
{
	static const uint32_t at[] = { 0, 1, GAIA_PAGE / 2, GAIA_PAGE - 1 };
	struct devmem *mem = must_alloc(dev);
	unsigned char *client = client_map(mem);

	cr_assert_eq(arm(mem, 0, GAIA_CHUNK_PAGES), 0);
	for (uint32_t page = 0; page < GAIA_CHUNK_PAGES; page += 73) {
		for (unsigned i = 0; i < ARRAY_LEN(at); i++) {
			uint64_t bits[GAIA_CHUNK_PAGES / 64] = { 0 };
			struct dev_run run = { mem, .npages = GAIA_CHUNK_PAGES };
			struct dev_op op = { .kind = DEV_FIND_CHANGED, .runs = &run, .n = 1, .changed = bits };

			client[page * GAIA_PAGE + at[i]] ^= (unsigned char)(1u << i);
			cr_assert_eq(device_run(dev, &op), 0);
			for (uint32_t p = 0; p < GAIA_CHUNK_PAGES; p++)
				cr_assert_eq(bits[p / 64] >> (p % 64) & 1, p == page);
		}
	}
	cr_assert_eq(find_changed(mem, 0, GAIA_CHUNK_PAGES), 0);
	client_unmap(client);
	must_free(mem);
}

EACH_DEVICE(a_silent_store_is_no_change)
{
	struct devmem *mem = must_alloc(dev);
	volatile unsigned char *client = client_map(mem);

	cr_assert_eq(arm(mem, 0, GAIA_CHUNK_PAGES), 0);
	for (uint32_t i = 0; i < GAIA_CHUNK; i += 512)
		client[i] = client[i];
	client[5]++;
	client[5]--;
	cr_assert_eq(find_changed(mem, 0, GAIA_CHUNK_PAGES), 0);
	client_unmap((unsigned char *)client);
	must_free(mem);
}

EACH_DEVICE(changed_bits_are_numbered_over_the_runs_in_order)
{
	struct devmem *mem[2] = { must_alloc(dev), must_alloc(dev) };
	unsigned char *client[2] = { client_map(mem[0]), client_map(mem[1]) };
	uint64_t seed = 99;

	for (int round = 0; round < 20; round++) {
		uint64_t bits[2 * GAIA_CHUNK_PAGES / 64] = { 0 };
		bool stored[2][GAIA_CHUNK_PAGES] = { 0 };
		struct dev_run runs[MAX_RUNS];
		struct dev_op op = { .kind = DEV_FIND_CHANGED, .runs = runs, .n = 0, .changed = bits };
		unsigned bit = 0;

		for (unsigned c = 0; c < 2; c++)
			cr_assert_eq(arm(mem[c], 0, GAIA_CHUNK_PAGES), 0);
		for (int i = 0; i < 200; i++) {
			unsigned c = random_below(&seed, 2), p = random_below(&seed, 512);

			if (stored[c][p])
				continue;
			stored[c][p] = true;
			client[c][p * GAIA_PAGE + random_below(&seed, GAIA_PAGE)]++;
		}
		random_runs(runs, &op.n, mem, 2, NULL, &seed);
		cr_assert_eq(device_run(dev, &op), 0);
		for (unsigned i = 0; i < op.n; i++)
			for (uint32_t p = 0; p < runs[i].npages; p++, bit++)
				cr_assert_eq(bits[bit / 64] >> (bit % 64) & 1,
					     stored[runs[i].mem == mem[1]][runs[i].page + p]);
		for (; bit < 64 * ARRAY_LEN(bits); bit++)
			cr_assert_not(bits[bit / 64] >> (bit % 64) & 1);
	}
	for (unsigned c = 0; c < 2; c++) {
		client_unmap(client[c]);
		must_free(mem[c]);
	}
}

EACH_DEVICE(copies_forget_keep_or_carry_armed_hashes)
{
	struct devmem *mem = must_alloc(dev), *other = must_alloc(dev);
	unsigned char *client = client_map(mem);
	char *host = host_pages(8);

	/* In: forgotten, even if nothing changed. */
	cr_assert_eq(copy_in(mem, 0, 8, host), 0);
	cr_assert_eq(arm(mem, 0, 8), 0);
	cr_assert_eq(copy_in(mem, 2, 3, host), 0);
	cr_assert_eq(find_changed(mem, 0, 8), 3);
	/* Out: kept. */
	cr_assert_eq(copy_out(mem, 0, 8, host), 0);
	cr_assert_eq(find_changed(mem, 0, 8), 0);
	/* Within, from a page that changed since it was armed: so has the copy. */
	client[GAIA_PAGE * 4] ^= 1;
	cr_assert_eq(arm(other, 0, 8), 0);
	cr_assert_eq(copy_within(other, mem, 0, 6), 0);
	cr_assert_eq(find_changed(other, 0, 8), 1);
	cr_assert_eq(find_changed(mem, 0, 8), 1);
	/* Within, from pages never armed: neither is the copy. */
	must_free(mem);
	mem = must_alloc(dev);
	cr_assert_eq(copy_within(other, mem, 0, 2), 0);
	cr_assert_eq(find_changed(other, 0, 8), 2);
	/* Zero: kept, so that it is a change where there was something else. */
	cr_assert_eq(copy_in(other, 0, 2, host), 0);
	cr_assert_eq(arm(other, 0, 2), 0);
	cr_assert_eq(run_one(dev, DEV_ZERO, (struct dev_run){ other, .page = 1, .npages = 1 }), 0);
	cr_assert_eq(find_changed(other, 0, 2), 0);
	client_unmap(client);
	must_free(mem);
	must_free(other);
	free(host);
}

/* ---- pulls ---- */

/* DEV_PULL in the words of device.h. */
static void pull_reference(unsigned char *page, const unsigned char *host,
			   const unsigned char *base, uint32_t limit)
{
	for (uint32_t i = 0; i < GAIA_PAGE; i++)
		if (i >= limit || (host[i] != base[i] && page[i] == base[i]))
			page[i] = host[i];
}

/* Bytes 0 to 2, so that every combination of equal and different is frequent. */
static void fill_small(unsigned char *buf, size_t bytes, uint64_t *seed)
{
	fill_random(buf, bytes, seed);
	for (size_t i = 0; i < bytes; i++)
		buf[i] %= 3;
}

EACH_DEVICE(pull_agrees_with_the_plain_merge)
{
	static const uint32_t limits[] = { 4096, 0, 1, 7, 8, 9, 2000, 4088, 4095 };
	enum { PAGES = 24, BYTES = PAGES * GAIA_PAGE };
	unsigned char *host = host_pages(PAGES), *base = host_pages(PAGES);
	unsigned char *model = host_pages(PAGES), *found = host_pages(PAGES);
	struct devmem *mem = must_alloc(dev);
	uint64_t seed = 5;

	for (unsigned round = 0; round < 4 * ARRAY_LEN(limits); round++) {
		uint32_t limit = limits[round % ARRAY_LEN(limits)];
		struct dev_run runs[2] = {
			{ mem, .page = 3, .npages = 7, .host = host, .base = base, .limit = limit },
			{ mem, .page = 100, .npages = PAGES - 7, .host = host + 7 * GAIA_PAGE,
			  .base = base + 7 * GAIA_PAGE, .limit = limit },
		};
		struct dev_op op = { .kind = DEV_PULL, .runs = runs, .n = 2 };
		unsigned own = 0;

		fill_small(host, BYTES, &seed);
		fill_small(base, BYTES, &seed);
		fill_small(model, BYTES, &seed);
		/* Pages that others did not write, and that the device did not. */
		memcpy(host, base, 2 * GAIA_PAGE);
		memcpy(model + GAIA_PAGE, base + GAIA_PAGE, 4 * GAIA_PAGE);
		if (!limit)
			runs[0].base = runs[1].base = NULL;
		cr_assert_eq(copy_in(mem, 3, 7, model), 0);
		cr_assert_eq(copy_in(mem, 100, PAGES - 7, model + 7 * GAIA_PAGE), 0);
		cr_assert_eq(device_run(dev, &op), 0);

		for (uint32_t p = 0; p < PAGES; p++) {
			uint32_t at = p * GAIA_PAGE;

			pull_reference(model + at, host + at, base + at, limit);
			own += memcmp(model + at, host + at, GAIA_PAGE) != 0;
		}
		cr_assert_eq(copy_out(mem, 3, 7, found), 0);
		cr_assert_eq(copy_out(mem, 100, PAGES - 7, found + 7 * GAIA_PAGE), 0);
		cr_assert_arr_eq(found, model, BYTES, "limit %u", limit);
		/* The armed hash is host's: what the device has of its own is a change. */
		cr_assert_eq(find_changed(mem, 3, 7) + find_changed(mem, 100, PAGES - 7), own);
	}
	must_free(mem);
	free(host);
	free(base);
	free(model);
	free(found);
}

/* A client that stores to every other byte of a page, without pause, and reads back. */
struct storing_client {
	volatile unsigned char *page;
	unsigned char last[GAIA_PAGE];
	atomic_bool stop;
	atomic_uint rounds;
	unsigned lost;
};

static void *store_all_the_time(void *arg)
{
	struct storing_client *c = arg;

	for (unsigned char value = 1; !c->stop; value++) {
		for (uint32_t i = 0; i < GAIA_PAGE; i += 2) {
			c->lost += c->page[i] != c->last[i];
			c->page[i] = c->last[i] = value;
		}
		c->rounds++;
	}
	return NULL;
}

EACH_DEVICE(pull_loses_no_byte_that_a_client_stores_meanwhile)
{
	unsigned char *host = host_pages(1), *base = host_pages(1);
	struct devmem *mem = must_alloc(dev);
	struct storing_client client = { .page = client_map(mem) };
	struct dev_run run = { mem, .page = 0, .npages = 1, .host = host, .base = base,
			       .limit = GAIA_PAGE };
	pthread_t thread;

	cr_assert_eq(copy_in(mem, 0, 1, base), 0);
	cr_assert_eq(pthread_create(&thread, NULL, store_all_the_time, &client), 0);
	while (client.rounds < 2000) {
		for (uint32_t i = 1; i < GAIA_PAGE; i += 2)
			host[i]++;
		cr_assert_eq(run_one(dev, DEV_PULL, run), 0);
		for (uint32_t i = 1; i < GAIA_PAGE; i += 2)
			cr_assert_eq(client.page[i], host[i]);
		memcpy(base, host, GAIA_PAGE);
	}
	client.stop = true;
	pthread_join(thread, NULL);
	cr_assert_eq(client.lost, 0);
	client_unmap((unsigned char *)client.page);
	must_free(mem);
	free(host);
	free(base);
}

/* ---- export ---- */

static int be_a_client(void *arg)
{
	int fd = *(int *)arg;
	unsigned char *p = mmap(NULL, GAIA_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	CHILD_CHECK(p != MAP_FAILED);
	for (uint32_t page = 0; page < GAIA_CHUNK_PAGES; page++)
		CHILD_CHECK(p[page * GAIA_PAGE] == (page & 0xff));
	p[GAIA_CHUNK - 1] = 'c';
	return 0;
}

EACH_DEVICE(another_process_reads_and_writes_the_same_memory)
{
	unsigned char *host = host_pages(GAIA_CHUNK_PAGES);
	struct devmem *mem = must_alloc(dev);
	int fd;

	skip_on_gpu(dev);
	fd = dev->ops->export_fd(dev, mem, true);
	cr_assert_geq(fd, 0);
	cr_assert_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
	for (uint32_t page = 0; page < GAIA_CHUNK_PAGES; page++)
		host[page * GAIA_PAGE] = page & 0xff;
	cr_assert_eq(copy_in(mem, 0, GAIA_CHUNK_PAGES, host), 0);
	cr_assert_eq(arm(mem, 0, GAIA_CHUNK_PAGES), 0);
	cr_assert_eq(child_run(be_a_client, &fd), 0);
	cr_assert_eq(find_changed(mem, 0, GAIA_CHUNK_PAGES), 1);
	cr_assert_eq(copy_out(mem, GAIA_CHUNK_PAGES - 1, 1, host), 0);
	cr_assert_eq(host[GAIA_PAGE - 1], 'c');
	close(fd);
	must_free(mem);
	free(host);
}

static int store_as_a_child(void *client)
{
	((unsigned char *)client)[GAIA_PAGE] = 'c';
	return 0;
}

/* What an exported chunk's contents are copied to, and what takes its place, is out of reach of a client that keeps it. */
EACH_DEVICE(a_client_that_keeps_memory_reaches_no_other)
{
	unsigned char *host = host_pages(GAIA_CHUNK_PAGES), *client;
	struct devmem *mem = must_alloc(dev), *copy = must_alloc(dev), *next;

	skip_on_gpu(dev);
	client = client_map(mem);
	cr_assert_eq(copy_in(mem, 0, GAIA_CHUNK_PAGES, host), 0);
	if (dev->inherited) {
		cr_assert_eq(child_run(store_as_a_child, client), 0);
		cr_assert_eq(client[GAIA_PAGE], 'c');
	}
	cr_assert_eq(copy_within(copy, mem, 0, GAIA_CHUNK_PAGES), 0);
	must_free(mem);
	memset(client, 'K', GAIA_CHUNK);
	next = must_alloc(dev);
	cr_assert_eq(copy_out(next, 0, GAIA_CHUNK_PAGES, host), 0);
	cr_assert_null(memchr(host, 'K', GAIA_CHUNK));
	memset(client, 'K', GAIA_CHUNK);
	cr_assert_eq(copy_out(next, 0, GAIA_CHUNK_PAGES, host), 0);
	cr_assert_null(memchr(host, 'K', GAIA_CHUNK));
	cr_assert_eq(copy_out(copy, 0, GAIA_CHUNK_PAGES, host), 0);
	cr_assert_null(memchr(host, 'K', GAIA_CHUNK));
	client_unmap(client);
	must_free(next);
	must_free(copy);
	free(host);
}

EACH_DEVICE(a_read_only_export_cannot_be_written_through)
{
	struct devmem *mem = must_alloc(dev);
	int fd = dev->ops->export_fd(dev, mem, false);
	char *host = host_pages(1);
	void *p;

	if (fd == -ENOTSUP)
		cr_skip("%s cannot export read-only", dev->kind);
	cr_assert_geq(fd, 0);
	cr_assert_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
	cr_assert_eq(mmap(NULL, GAIA_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	p = mmap(NULL, GAIA_CHUNK, PROT_READ, MAP_SHARED, fd, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(mprotect(p, GAIA_CHUNK, PROT_READ | PROT_WRITE), -1);
	cr_assert_eq(pwrite(fd, "x", 1, 0), -1);
	memset(host, 'h', GAIA_PAGE);
	cr_assert_eq(copy_in(mem, 17, 1, host), 0);
	cr_assert_arr_eq((char *)p + 17 * GAIA_PAGE, host, GAIA_PAGE);
	client_unmap(p);
	close(fd);
	must_free(mem);
	free(host);
}

/* The client may go on touching it. It has what the client stored, or zeros, and is nobody else's. */
EACH_DEVICE(what_a_client_maps_becomes_nobody_elses_when_the_device_frees_it)
{
	struct devmem *mem = must_alloc(dev);
	unsigned char *client = client_map(mem), *host = host_pages(1);

	client[5] = 'k';
	must_free(mem);
	mem = must_alloc(dev);
	memset(host, 'h', GAIA_PAGE);
	cr_assert_eq(copy_in(mem, 0, 1, host), 0);
	cr_assert(client[5] == 'k' || client[5] == 0, "it has become '%c'", client[5]);
	client_unmap(client);
	must_free(mem);
	free(host);
}

/* ---- refusals ---- */

static void must_not_end(struct dev_op *op, int err)
{
	(void)op;
	(void)err;
	abort();
}

EACH_DEVICE(malformed_operations_are_refused_and_do_nothing)
{
	struct device *second = new_sim(&fast);
	struct devmem *mem = must_alloc(dev), *foreign = must_alloc(second);
	char *host = host_pages(2), *found = host_pages(2);
	struct dev_run good = { mem, .page = 0, .npages = 1, .host = host };
	struct {
		enum dev_kind kind;
		struct dev_run run;
	} bad[] = {
		{ DEV_COPY_IN, { mem, .page = 0, .npages = 0, .host = host } },
		{ DEV_COPY_IN, { mem, .page = 511, .npages = 2, .host = host } },
		{ DEV_COPY_IN, { mem, .page = 512, .npages = 1, .host = host } },
		{ DEV_COPY_IN, { mem, .page = 2, .npages = UINT32_MAX, .host = host } },
		{ DEV_COPY_IN, { mem, .page = UINT32_MAX, .npages = 2, .host = host } },
		{ DEV_COPY_IN, { mem, .npages = 1, .host = host + 8 } },
		{ DEV_COPY_IN, { mem, .npages = 1, .host = NULL } },
		{ DEV_COPY_IN, { foreign, .npages = 1, .host = host } },
		{ DEV_COPY_IN, { NULL, .npages = 1, .host = host } },
		{ DEV_COPY_OUT, { mem, .npages = 1, .host = NULL } },
		{ DEV_COPY_WITHIN, { mem, .npages = 1, .other = mem } },
		{ DEV_COPY_WITHIN, { mem, .npages = 1, .other = foreign } },
		{ DEV_COPY_WITHIN, { mem, .npages = 1, .other = NULL } },
		{ DEV_PULL, { mem, .npages = 1, .host = host, .base = host, .limit = 4097 } },
		{ DEV_PULL, { mem, .npages = 1, .host = host, .base = NULL, .limit = 1 } },
		{ DEV_PULL, { mem, .npages = 1, .host = host, .base = host + 1, .limit = 1 } },
		{ DEV_ZERO, { mem, .npages = 1, .limit = 4097 } },
		{ DEV_ZERO, { mem, .npages = 2, .limit = 1 } },
		{ DEV_FIND_CHANGED + 1, { mem, .npages = 1, .host = host } },
	};

	memset(host, 'h', 2 * GAIA_PAGE);
	cr_assert_eq(copy_in(mem, 0, 2, host), 0);
	memset(host, 'x', 2 * GAIA_PAGE);
	for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
		/* Behind a good run, which must not be carried out either. */
		struct dev_run runs[2] = { good, bad[i].run };
		struct dev_op op = { .kind = bad[i].kind, .runs = runs, .n = 2,
				     .done = must_not_end };

		if (bad[i].kind == DEV_PULL)
			runs[0].base = host;
		cr_assert_eq(device_submit(dev, &op), -EINVAL, "case %u", i);
	}
	cr_assert_eq(device_submit(dev, &(struct dev_op){ .kind = DEV_ARM, .runs = &good, .n = 0,
							  .done = must_not_end }),
		     -EINVAL);
	cr_assert_eq(device_submit(dev, &(struct dev_op){ .kind = DEV_ARM, .runs = &good, .n = 1 }), -EINVAL);
	cr_assert_eq(device_submit(dev, &(struct dev_op){ .kind = DEV_FIND_CHANGED, .runs = &good, .n = 1,
							  .done = must_not_end }),
		     -EINVAL);
	cr_assert_eq(device_submit(dev, &(struct dev_op){ .kind = DEV_COPY_OUT, .runs = &good, .n = 1,
							  .arm = true, .done = must_not_end }),
		     -EINVAL);
	cr_assert_eq(copy_out(mem, 0, 2, found), 0);
	for (uint32_t i = 0; i < 2 * GAIA_PAGE; i++)
		cr_assert_eq(found[i], 'h');
	must_free(mem);
	must_free(foreign);
	second->ops->destroy(second);
	free(host);
	free(found);
}

/* ---- many threads ---- */

struct busy_thread {
	struct device *dev;
	uint64_t seed;
	unsigned wrong;
};

static void *be_busy(void *arg)
{
	struct busy_thread *t = arg;
	unsigned char *in = host_pages(64), *out = host_pages(64);

	for (int round = 0; round < 20; round++) {
		struct devmem *mem;

		if (t->dev->ops->alloc(t->dev, &mem)) {
			t->wrong++;
			break;
		}
		for (int i = 0; i < 10; i++) {
			uint32_t page = random_below(&t->seed, GAIA_CHUNK_PAGES - 64);

			fill_random(in, 64 * GAIA_PAGE, &t->seed);
			t->wrong += copy_in(mem, page, 64, in) != 0;
			t->wrong += arm(mem, page, 64) != 0;
			t->wrong += copy_out(mem, page, 64, out) != 0;
			t->wrong += memcmp(in, out, 64 * GAIA_PAGE) != 0;
		}
		must_free(mem);
	}
	free(in);
	free(out);
	return NULL;
}

EACH_DEVICE(threads_do_not_disturb_each_other)
{
	struct busy_thread threads[4];
	pthread_t ids[4];

	for (unsigned i = 0; i < 4; i++) {
		threads[i] = (struct busy_thread){ dev, .seed = i + 1 };
		cr_assert_eq(pthread_create(&ids[i], NULL, be_busy, &threads[i]), 0);
	}
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(ids[i], NULL);
		cr_assert_eq(threads[i].wrong, 0);
	}
}

struct extents_thread {
	struct device *dev;
	uint64_t seed;
	unsigned wrong, got, refused;
};

/* Chunks and extents, for one of which there is room. */
static void *want_extents(void *arg)
{
	struct extents_thread *t = arg;
	char *in = host_pages(1), *out = host_pages(1);

	for (int round = 0; round < 30; round++) {
		struct devmem *mem[GAIA_EXTENT_CHUNKS];
		bool extent = random_below(&t->seed, 2);
		unsigned n = extent ? GAIA_EXTENT_CHUNKS : 1;
		int err = extent ? t->dev->ops->alloc_extent(t->dev, mem) : t->dev->ops->alloc(t->dev, mem);

		t->wrong += err && err != -ENOMEM;
		t->got += !err;
		t->refused += err == -ENOMEM;
		for (unsigned k = 0; k < n && !err; k++) {
			memset(in, (int)random_below(&t->seed, 256), GAIA_PAGE);
			t->wrong += copy_in(mem[k], 5 + k, 1, in) != 0;
			t->wrong += copy_out(mem[k], 5 + k, 1, out) != 0;
			t->wrong += memcmp(in, out, GAIA_PAGE) != 0;
		}
		for (unsigned k = 0; k < n && !err; k++)
			must_free(mem[n - 1 - k]);
	}
	free(in);
	free(out);
	return NULL;
}

EACH_WITH_EXTENTS(threads_that_want_extents_get_them_or_no_memory)
{
	struct extents_thread threads[3];
	pthread_t ids[3];

	free_extent(mem);
	for (unsigned i = 0; i < 3; i++) {
		threads[i] = (struct extents_thread){ dev, .seed = i + 1 };
		cr_assert_eq(pthread_create(&ids[i], NULL, want_extents, &threads[i]), 0);
	}
	for (unsigned i = 0; i < 3; i++) {
		pthread_join(ids[i], NULL);
		cr_assert_eq(threads[i].wrong, 0);
		cr_assert_eq(threads[i].got + threads[i].refused, 30);
	}
	must_alloc_extent(dev, mem);
	free_extent(mem);
}

#ifdef GAIA_FAULTS
/* ---- faults ---- */

static struct device *faulty;

static void open_faulty(void)
{
	faulty = new_faulty();
}

static void close_faulty(void)
{
	fault_disarm_all();
	faulty->ops->destroy(faulty);
}

TestSuite(faults, .init = open_faulty, .fini = close_faulty, .timeout = 60);

Test(faults, a_failed_alloc_takes_nothing_from_the_capacity)
{
	struct devmem *mem[CHUNKS], *none = NULL;

	fault_arm("device.alloc", -ENOMEM, 0, 1);
	cr_assert_eq(faulty->ops->alloc(faulty, &none), -ENOMEM);
	cr_assert_null(none);
	for (unsigned i = 0; i < CHUNKS; i++)
		mem[i] = must_alloc(faulty);
	for (unsigned i = 0; i < CHUNKS; i++)
		must_free(mem[i]);
}

Test(faults, a_failed_extent_takes_nothing_from_the_capacity)
{
	struct devmem *mem[GAIA_EXTENT_CHUNKS] = { NULL };

	fault_arm("device.alloc", -ENOMEM, 0, 1);
	cr_assert_eq(faulty->ops->alloc_extent(faulty, mem), -ENOMEM);
	cr_assert_null(mem[0]);
	must_alloc_extent(faulty, mem);
	free_extent(mem);
}

Test(faults, a_failed_export_can_be_repeated)
{
	struct devmem *mem = must_alloc(faulty);

	fault_arm("device.export", -EMFILE, 0, 1);
	cr_assert_eq(faulty->ops->export_fd(faulty, mem, true), -EMFILE);
	client_unmap(client_map(mem));
	must_free(mem);
}

Test(faults, after_a_failed_submit_nothing_is_in_flight)
{
	struct devmem *mem = must_alloc(faulty);
	struct dev_run run = { mem, .npages = 1 };
	struct dev_op op = { .kind = DEV_ARM, .runs = &run, .n = 1, .done = must_not_end };

	fault_arm("device.submit", -EIO, 0, 1);
	cr_assert_eq(device_submit(faulty, &op), -EIO);
	cr_assert_eq(arm(mem, 0, 1), 0);
	must_free(mem);
}

Test(faults, every_kind_of_operation_fails_once_and_in_order)
{
	static const struct {
		const char *point;
		enum dev_kind kind;
	} points[] = {
		{ "device.copy_in", DEV_COPY_IN },
		{ "device.copy_out", DEV_COPY_OUT },
		{ "device.copy_within", DEV_COPY_WITHIN },
		{ "device.pull", DEV_PULL },
		{ "device.zero", DEV_ZERO },
		{ "device.arm", DEV_ARM },
		{ "device.find_changed", DEV_FIND_CHANGED },
	};
	struct devmem *mem = must_alloc(faulty), *other = must_alloc(faulty);
	char *host = host_pages(1), *base = host_pages(1);
	struct dev_run run = { mem, .other = other, .npages = 1, .host = host, .base = base };
	uint64_t bits = 0;

	for (unsigned i = 0; i < ARRAY_LEN(points); i++) {
		struct crowd crowd;
		struct member m[4];

		crowd_init(&crowd);
		fault_arm(points[i].point, -EIO, 1, 1);
		for (unsigned k = 0; k < 4; k++) {
			m[k] = (struct member){ .run = run, .crowd = &crowd, .number = k };
			m[k].op = (struct dev_op){ .kind = points[i].kind, .runs = &m[k].run, .n = 1,
						   .changed = &bits,
						   .done = note_end, .arg = &m[k] };
			cr_assert_eq(device_submit(faulty, &m[k].op), 0);
		}
		crowd_wait(&crowd, 4);
		for (unsigned k = 0; k < 4; k++) {
			cr_assert_eq(crowd.order[k], k);
			cr_assert_eq(crowd.err[k], k == 1 ? -EIO : 0, "%s", points[i].point);
		}
	}
	must_free(mem);
	must_free(other);
	free(host);
	free(base);
}

/* How many of the first @n pages are as in @as. */
static unsigned pages_equal(const char *found, const char *as, unsigned n)
{
	unsigned equal = 0;

	for (unsigned i = 0; i < n; i++)
		equal += !memcmp(found + i * GAIA_PAGE, as + i * GAIA_PAGE, GAIA_PAGE);
	return equal;
}

Test(faults, a_failed_copy_leaves_some_pages_changed_and_one_torn)
{
	enum { N = 9 };
	char *old = host_pages(N), *new = host_pages(N), *found = host_pages(N);
	struct devmem *mem = must_alloc(faulty);
	/* Two runs: the failure is within the second. */
	struct dev_run runs[2] = { { mem, .page = 0, .npages = 3 },
				   { mem, .page = 3, .npages = N - 3 } };
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = runs, .n = 2 };

	memset(old, 'o', N * GAIA_PAGE);
	memset(new, 'n', N * GAIA_PAGE);
	cr_assert_eq(copy_in(mem, 0, N, old), 0);
	fault_arm("device.copy_in", -EIO, 0, 1);
	runs[0].host = new;
	runs[1].host = new + 3 * GAIA_PAGE;
	cr_assert_eq(device_run(faulty, &op), -EIO);
	cr_assert_eq(copy_out(mem, 0, N, found), 0);
	cr_assert_eq(pages_equal(found, new, N), 4);
	cr_assert_eq(pages_equal(found, old, N), 4);

	cr_assert_eq(copy_in(mem, 0, N, new), 0);
	fault_arm("device.copy_out", -EIO, 0, 1);
	memcpy(found, old, N * GAIA_PAGE);
	op.kind = DEV_COPY_OUT;
	runs[0].host = found;
	runs[1].host = found + 3 * GAIA_PAGE;
	cr_assert_eq(device_run(faulty, &op), -EIO);
	cr_assert_eq(pages_equal(found, new, N), 4);
	cr_assert_eq(pages_equal(found, old, N), 4);
	cr_assert_eq(copy_out(mem, 0, N, found), 0);
	cr_assert_eq(pages_equal(found, new, N), N);
	must_free(mem);
	free(old);
	free(new);
	free(found);
}

Test(faults, a_failed_copy_of_one_page_does_not_look_like_a_success)
{
	char *new = host_pages(1), *found = host_pages(1);
	struct devmem *mem = must_alloc(faulty);

	memset(new, 'n', GAIA_PAGE);
	fault_arm("device.copy_in", -EIO, 0, 1);
	cr_assert_eq(copy_in(mem, 0, 1, new), -EIO);
	cr_assert_eq(copy_out(mem, 0, 1, found), 0);
	cr_assert_neq(memcmp(found, new, GAIA_PAGE), 0);
	cr_assert_eq(copy_in(mem, 0, 1, new), 0);
	fault_arm("device.copy_out", -EIO, 0, 1);
	cr_assert_eq(copy_out(mem, 0, 1, found), -EIO);
	cr_assert_neq(memcmp(found, new, GAIA_PAGE), 0);
	must_free(mem);
	free(new);
	free(found);
}
#endif
