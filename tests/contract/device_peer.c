/*
 * device_peer.c - the contract of copies between devices, over every kind of pair: simulated devices, fast and
 * slow; such under the faulty layer; and, where CUDA is at hand, two GPUs on a fake driver, by kernels, by the copy
 * engine, and both. With GAIAFS_TEST_CUDA in the environment the suite "cuda" takes GPUs 0 and 1.
 */
#include <pthread.h>

#include "base/fault.h"
#include "device_io.h"
#ifdef HAVE_CUDA
#include "fake_cuda_api.h"
#endif

#define CHUNKS 4u

struct pair {
	struct device *to, *from;
};

static struct device *new_sim(unsigned index, uint64_t bandwidth, bool no_peers)
{
	const struct sim_config config = { .index = index, .capacity = CHUNKS * GAIA_CHUNK,
					   .bandwidth = bandwidth, .no_peers = no_peers };
	struct device *dev = NULL;

	cr_assert_eq(device_sim_create(&config, &dev), 0);
	return dev;
}

static struct device *new_faulty(unsigned index)
{
	struct device *dev = NULL;

	cr_assert_eq(device_faulty_create(new_sim(index, 0, false), &dev), 0);
	return dev;
}

static void on_pair(void (*test)(const struct pair *p), struct device *to, struct device *from)
{
	test(&(struct pair){ to, from });
	to->ops->destroy(to);
	from->ops->destroy(from);
}

#ifdef HAVE_CUDA
static struct device *new_cuda(unsigned index, uint32_t copy_from)
{
	const struct cuda_config config = { .index = index, .capacity = CHUNKS * GAIA_CHUNK };
	const char *why = "";
	const struct cuda_api *api = on_real_gpu() ? cuda_driver(&why) : fake_cuda_api();
	struct device *dev = NULL;

	cr_assert_not_null(api, "%s", why);
	cr_assert_eq(cuda_create(api, &config, copy_from, &dev), 0);
	return dev;
}

static void skip_without_peers(struct device *to, struct device *from)
{
	if (device_reaches(to, from))
		return;
	to->ops->destroy(to);
	from->ops->destroy(from);
	cr_skip("the two GPUs do not reach each other's memory");
}

static void on_cuda(void (*test)(const struct pair *p), uint32_t copy_from)
{
	struct device *to, *from;
	const char *why;

	if (on_real_gpu() && device_cuda_count(&why) < 2)
		cr_skip("there is one GPU: copies between two could not be tested");
	if (!on_real_gpu()) {
		fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 2,
							    .memory = 2 * CHUNKS * GAIA_CHUNK });
		cr_assert_eq(fake_cuda_api()->cuInit(0), 0);
	}
	to = new_cuda(0, copy_from);
	from = new_cuda(1, copy_from);
	if (on_real_gpu())
		skip_without_peers(to, from);
	on_pair(test, to, from);
	if (on_real_gpu())
		return;
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true), 0);
}

#define EACH_CUDA(name)                           \
	Test(cuda, name, .timeout = 60)           \
	{                                         \
		on_cuda(name, 8 * GAIA_PAGE);     \
	}                                         \
	Test(cuda_by_kernel, name, .timeout = 60) \
	{                                         \
		on_cuda(name, UINT32_MAX);        \
	}                                         \
	Test(cuda_by_engine, name, .timeout = 60) \
	{                                         \
		on_cuda(name, 1);                 \
	}
#else
#define EACH_CUDA(name)
#endif

#define EACH_PAIR(name)                                                                        \
	static void name(const struct pair *p);                                                \
	Test(sim, name, .timeout = 60)                                                         \
	{                                                                                      \
		on_pair(name, new_sim(0, 0, false), new_sim(1, 0, false));                     \
	}                                                                                      \
	Test(slow_sim, name, .timeout = 60)                                                    \
	{                                                                                      \
		on_pair(name, new_sim(0, 4ull << 30, false), new_sim(1, 2ull << 30, false));   \
	}                                                                                      \
	Test(faulty_sim, name, .timeout = 60)                                                  \
	{                                                                                      \
		on_pair(name, new_faulty(0), new_faulty(1));                                   \
	}                                                                                      \
	Test(faulty_from_sim, name, .timeout = 60)                                             \
	{                                                                                      \
		on_pair(name, new_faulty(0), new_sim(1, 0, false));                            \
	}                                                                                      \
	Test(sim_from_faulty, name, .timeout = 60)                                             \
	{                                                                                      \
		on_pair(name, new_sim(0, 0, false), new_faulty(1));                            \
	}                                                                                      \
	EACH_CUDA(name)                                                                        \
	static void name(const struct pair *p)

static void must_free(struct devmem *mem)
{
	mem->dev->ops->free(mem->dev, mem);
}

static int copy_peer(struct devmem *to, struct devmem *from, uint32_t page, uint32_t n)
{
	struct dev_run run = { to, .other = from, .page = page, .npages = n };
	struct dev_op op = { .kind = DEV_COPY_PEER, .runs = &run, .n = 1, .from = from->dev };

	return device_run(to->dev, &op);
}

EACH_PAIR(two_of_a_kind_reach_each_other_and_none_itself)
{
	struct device *stranger = new_sim(7, 0, true);

	cr_assert(device_reaches(p->to, p->from));
	cr_assert(device_reaches(p->from, p->to));
	cr_assert_not(device_reaches(p->to, p->to));
	cr_assert_not(device_reaches(p->to, stranger));
	cr_assert_not(device_reaches(stranger, p->from));
	stranger->ops->destroy(stranger);
}

#define MAX_RUNS 64u

EACH_PAIR(random_pages_come_as_they_are_and_nothing_else_changes)
{
	enum { N = 2 };
	char *there[N], *here[N], *found = host_pages(GAIA_CHUNK_PAGES);
	struct devmem *to[N], *from[N];
	struct dev_run runs[MAX_RUNS];
	uint64_t seed = 5;

	for (unsigned c = 0; c < N; c++) {
		to[c] = must_alloc(p->to);
		from[c] = must_alloc(p->from);
		there[c] = host_pages(GAIA_CHUNK_PAGES);
		here[c] = host_pages(GAIA_CHUNK_PAGES);
		fill_random(here[c], GAIA_CHUNK, &seed);
		cr_assert_eq(copy_in(to[c], 0, GAIA_CHUNK_PAGES, here[c]), 0);
	}
	for (int round = 0; round < 30; round++) {
		struct dev_op op = { .kind = DEV_COPY_PEER, .runs = runs, .from = p->from };
		uint32_t longest = 1 + random_below(&seed, 60);

		for (unsigned c = 0; c < N; c++) {
			fill_random(there[c], GAIA_CHUNK, &seed);
			cr_assert_eq(copy_in(from[c], 0, GAIA_CHUNK_PAGES, there[c]), 0);
		}
		for (uint32_t page = random_below(&seed, 64); page < GAIA_CHUNK_PAGES && op.n < MAX_RUNS;) {
			unsigned a = random_below(&seed, N), b = random_below(&seed, N);
			uint32_t n = 1 + random_below(&seed, longest);
			size_t at = (size_t)page * GAIA_PAGE;

			n = MIN(n, GAIA_CHUNK_PAGES - page);
			runs[op.n++] = (struct dev_run){ to[a], .other = from[b], .page = page, .npages = n };
			memcpy(here[a] + at, there[b] + at, (size_t)n * GAIA_PAGE);
			page += n + random_below(&seed, 64);
		}
		cr_assert_eq(device_run(p->to, &op), 0);
	}
	for (unsigned c = 0; c < N; c++) {
		cr_assert_eq(copy_out(to[c], 0, GAIA_CHUNK_PAGES, found), 0);
		cr_assert_arr_eq(found, here[c], GAIA_CHUNK);
		cr_assert_eq(copy_out(from[c], 0, GAIA_CHUNK_PAGES, found), 0);
		cr_assert_arr_eq(found, there[c], GAIA_CHUNK);
		must_free(to[c]);
		must_free(from[c]);
		free(there[c]);
		free(here[c]);
	}
	free(found);
}

EACH_PAIR(the_pages_that_come_are_not_armed_and_the_sources_stay_so)
{
	struct devmem *to = must_alloc(p->to), *from = must_alloc(p->from);
	char *host = host_pages(GAIA_CHUNK_PAGES);

	memset(host, 'h', GAIA_CHUNK);
	cr_assert_eq(copy_in(to, 0, 40, host), 0);
	cr_assert_eq(copy_in(from, 0, 40, host), 0);
	cr_assert_eq(arm(to, 0, 40), 0);
	cr_assert_eq(arm(from, 0, 40), 0);
	cr_assert_eq(copy_peer(to, from, 3, 2), 0);
	cr_assert_eq(copy_peer(to, from, 10, 20), 0);
	cr_assert_eq(find_changed(to, 0, 40), 22);
	cr_assert_eq(find_changed(from, 0, 40), 0);
	must_free(to);
	must_free(from);
	free(host);
}

EACH_PAIR(the_pages_that_come_are_armed_if_that_is_asked)
{
	struct devmem *to = must_alloc(p->to), *from = must_alloc(p->from);
	struct dev_run runs[] = {
		{ to, .other = from, .page = 3, .npages = 2 },
		{ to, .other = from, .page = 10, .npages = 20 },
	};
	struct dev_op op = { .kind = DEV_COPY_PEER, .runs = runs, .n = 2, .from = p->from, .arm = true };
	char *host = host_pages(GAIA_CHUNK_PAGES);

	memset(host, 'h', GAIA_CHUNK);
	cr_assert_eq(copy_in(to, 0, 40, host), 0);
	memset(host, 'i', GAIA_CHUNK);
	cr_assert_eq(copy_in(from, 0, 40, host), 0);
	cr_assert_eq(arm(to, 0, 8), 0);
	cr_assert_eq(device_run(p->to, &op), 0);
	cr_assert_eq(find_changed(to, 0, 8), 0);
	cr_assert_eq(find_changed(to, 8, 2), 2); /* never armed */
	cr_assert_eq(find_changed(to, 10, 20), 0);
	must_free(to);
	must_free(from);
	free(host);
}

/* Submitted, not waited for: what follows builds on it. */
static void count_end(struct dev_op *op, int err)
{
	_Atomic unsigned *ended = op->arg;

	cr_assert_eq(err, 0);
	*ended += 1;
}

EACH_PAIR(it_is_in_order_with_the_others_of_the_device)
{
	enum { ROUNDS = 20 };
	struct devmem *to = must_alloc(p->to), *from = must_alloc(p->from), *last = must_alloc(p->to);
	char *old = host_pages(64), *new = host_pages(64), *found = host_pages(64);
	static _Atomic unsigned ended;

	ended = 0;
	memset(old, 'o', 64 * GAIA_PAGE);
	memset(new, 'n', 64 * GAIA_PAGE);
	cr_assert_eq(copy_in(from, 0, 64, new), 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct dev_run in = { to, .npages = 64, .host = old };
		struct dev_run peer = { to, .other = from, .npages = 64 };
		struct dev_run within = { last, .other = to, .npages = 64 };
		struct dev_op first = { DEV_COPY_IN, &in, 1, .done = count_end, .arg = &ended };
		struct dev_op second = { DEV_COPY_PEER, &peer, 1, .from = p->from, .done = count_end,
					 .arg = &ended };
		struct dev_op third = { DEV_COPY_WITHIN, &within, 1, .done = count_end, .arg = &ended };

		cr_assert_eq(device_submit(p->to, &first), 0);
		cr_assert_eq(device_submit(p->to, &second), 0);
		cr_assert_eq(device_submit(p->to, &third), 0);
		cr_assert_eq(copy_out(last, 0, 64, found), 0);
		cr_assert_eq(ended, 3 * (i + 1));
		cr_assert_arr_eq(found, new, 64 * GAIA_PAGE);
	}
	must_free(to);
	must_free(from);
	must_free(last);
	free(old);
	free(new);
	free(found);
}

EACH_PAIR(what_is_malformed_is_refused)
{
	struct devmem *to = must_alloc(p->to), *from = must_alloc(p->from), *gone = must_alloc(p->from);
	struct dev_run run = { to, .other = from, .npages = 1 };
	struct dev_op op = { .kind = DEV_COPY_PEER, .runs = &run, .n = 1 };

	cr_assert_eq(device_run(p->to, &op), -EINVAL, "no source device");
	op.from = p->to;
	cr_assert_eq(device_run(p->to, &op), -EINVAL, "the device itself");
	op.from = p->from;
	must_free(gone);
	run.other = gone;
	cr_assert_eq(device_run(p->to, &op), -EINVAL, "a source that was freed");
	run.other = to;
	cr_assert_eq(device_run(p->to, &op), -EINVAL, "a source of another device");
	run = (struct dev_run){ from, .other = from, .npages = 1 };
	cr_assert_eq(device_run(p->to, &op), -EINVAL, "a destination of another device");
	run = (struct dev_run){ to, .other = from, .page = 1, .npages = GAIA_CHUNK_PAGES };
	cr_assert_eq(device_run(p->to, &op), -EINVAL, "pages beyond the chunk");
	/* Nothing is in flight: all can be freed. */
	must_free(to);
	must_free(from);
}

/* ---- both ways at once ---- */

struct swapper {
	struct devmem *to, *from;
	pthread_t thread;
	int err;
};

static void *swap(void *arg)
{
	struct swapper *s = arg;

	for (int round = 0; round < 50 && !s->err; round++)
		s->err = copy_peer(s->to, s->from, 100, 50);
	return NULL;
}

EACH_PAIR(both_may_copy_from_each_other_at_once)
{
	struct swapper s[2] = { { .to = must_alloc(p->to), .from = must_alloc(p->from) },
				{ .to = must_alloc(p->from), .from = must_alloc(p->to) } };
	char *host = host_pages(50), *found = host_pages(50);

	for (unsigned i = 0; i < 2; i++) {
		memset(host, 'a' + (int)i, 50 * GAIA_PAGE);
		cr_assert_eq(copy_in(s[i].from, 100, 50, host), 0);
	}
	for (unsigned i = 0; i < 2; i++)
		cr_assert_eq(pthread_create(&s[i].thread, NULL, swap, &s[i]), 0);
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(s[i].thread, NULL);
		cr_assert_eq(s[i].err, 0);
		memset(host, 'a' + (int)i, 50 * GAIA_PAGE);
		cr_assert_eq(copy_out(s[i].to, 100, 50, found), 0);
		cr_assert_arr_eq(found, host, 50 * GAIA_PAGE);
	}
	for (unsigned i = 0; i < 2; i++) {
		must_free(s[i].to);
		must_free(s[i].from);
	}
	free(host);
	free(found);
}

/* ---- the simulated device ---- */

Test(sim_only, peers_off_ends_both_ways)
{
	struct device *a = new_sim(0, 0, false), *b = new_sim(1, 0, true);
	struct devmem *to = must_alloc(a), *from = must_alloc(b);

	cr_assert_not(device_reaches(a, b));
	cr_assert_not(device_reaches(b, a));
	cr_assert_eq(copy_peer(to, from, 0, 1), -EINVAL);
	cr_assert_eq(copy_peer(from, to, 0, 1), -EINVAL);
	must_free(to);
	must_free(from);
	a->ops->destroy(a);
	b->ops->destroy(b);
}

static void ignore_end(struct dev_op *op, int err)
{
}

Test(sim_only, freeing_a_source_in_use_is_a_bug, .signal = SIGABRT)
{
	struct device *a = new_sim(0, 1 << 20, false), *b = new_sim(1, 0, false);
	struct dev_run run = { must_alloc(a), .other = must_alloc(b), .npages = GAIA_CHUNK_PAGES };
	struct dev_op op = { .kind = DEV_COPY_PEER, .runs = &run, .n = 1, .from = b, .done = ignore_end };

	cr_assert_eq(device_submit(a, &op), 0);
	must_free(run.other);
}

Test(sim_only, the_destination_is_garbage_until_it_lands)
{
	struct device *a = new_sim(0, 1 << 20, false), *b = new_sim(1, 0, false);
	struct dev_run run = { must_alloc(a), .other = must_alloc(b), .npages = 256 };
	static _Atomic unsigned ended;
	struct dev_op op = { .kind = DEV_COPY_PEER, .runs = &run, .n = 1, .from = b, .done = count_end,
			     .arg = &ended };
	char *host = host_pages(256);
	unsigned char *client = client_map(run.mem);

	memset(host, 'x', 256 * GAIA_PAGE);
	cr_assert_eq(copy_in(run.mem, 0, 1, host), 0);
	cr_assert_eq(copy_in(run.other, 0, 256, host), 0);
	cr_assert_eq(device_submit(a, &op), 0);
	cr_assert(ended || client[0] != 'x');
	cr_assert_eq(copy_out(run.mem, 0, 256, host), 0);
	cr_assert_eq(ended, 1);
	cr_assert_eq(client[0], 'x');
	client_unmap(client);
	must_free(run.mem);
	must_free(run.other);
	a->ops->destroy(a);
	b->ops->destroy(b);
	free(host);
}

#ifdef GAIA_FAULTS
/* ---- faults ---- */

Test(faults, a_copy_that_fails_leaves_garbage_and_can_be_repeated)
{
	struct device *a = new_faulty(0), *b = new_faulty(1);
	struct devmem *to = must_alloc(a), *from = must_alloc(b);
	char *host = host_pages(1), *found = host_pages(1);

	memset(host, 'x', GAIA_PAGE);
	cr_assert_eq(copy_in(to, 9, 1, host), 0);
	cr_assert_eq(copy_in(from, 9, 1, host), 0);
	for (unsigned lied = 0; lied < 2; lied++) {
		fault_arm(lied ? "device.garble_peer" : "device.copy_peer", -EIO, 0, 1);
		cr_assert_eq(copy_peer(to, from, 9, 1), lied ? 0 : -EIO);
		cr_assert_eq(copy_out(to, 9, 1, found), 0);
		cr_assert_neq(memcmp(found, host, GAIA_PAGE), 0);
		cr_assert_eq(copy_peer(to, from, 9, 1), 0);
		cr_assert_eq(copy_out(to, 9, 1, found), 0);
		cr_assert_arr_eq(found, host, GAIA_PAGE);
	}
	must_free(to);
	must_free(from);
	a->ops->destroy(a);
	b->ops->destroy(b);
	free(host);
	free(found);
}
#endif
