/*
 * cache_lists.c - acquires and releases of lists of ranges: they are what as many single calls are, and all or nothing.
 */
#include <sched.h>
#include <semaphore.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "cache_acquires.h"
#include "held.h"
#include "page_waiters.h"
#include "pagecache/cache.h"
#include "pagecache/file.h"
#include "pagecache/holds.h"
#include "pagecache/mapping.h"

#define CHUNKS 4u
#define PAGES (CHUNKS * GAIA_CHUNK_PAGES)
#define AT(chunk, page) ((uint64_t)(chunk) * GAIA_CHUNK + (uint64_t)(page) * GAIA_PAGE)

/* ---- lists ---- */

struct list {
	struct gaia_list_range range[4096];
	size_t n;
};

static void list_add(struct list *l, uint64_t off, uint64_t len)
{
	cr_assert_lt(l->n, ARRAY_LEN(l->range));
	l->range[l->n++] = (struct gaia_list_range){ off, len };
}

/* Every other page of the chunks [0, chunks). */
static struct list *every_other(unsigned chunks)
{
	static struct list l;

	l.n = 0;
	for (unsigned c = 0; c < chunks; c++)
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i += 2)
			list_add(&l, AT(c, i) + 10, 1);
	return &l;
}

struct listed {
	struct client *cl;
	const struct list *list;
	unsigned prot;
	atomic_uint verdict;
};

/* A copy is passed on, which gets sorted. */
static int acquire_list(void *arg)
{
	struct listed *a = arg;
	struct list *copy = xmalloc(sizeof(*copy));
	uint64_t seq;
	int err;

	*copy = *a->list;
	for (size_t k = 0; k < copy->n; k++)
		client_push(a->cl, copy->range[k].offset, copy->range[k].length);
	err = cache_acquirev(a->cl->mapping, copy->range, copy->n, a->prot, &seq, &a->verdict);
	free(copy);
	return err;
}

static int acquirev(struct client *cl, const struct list *l, unsigned prot)
{
	return acquire_list(&(struct listed){ .cl = cl, .list = l, .prot = prot });
}

static int releasev(struct client *cl, const struct list *l)
{
	struct list *copy = xmalloc(sizeof(*copy));
	bool changed;
	int err;

	*copy = *l;
	for (size_t k = 0; k < copy->n; k++)
		client_push(cl, copy->range[k].offset, copy->range[k].length);
	err = cache_releasev(cl->mapping, copy->range, copy->n, &changed);
	free(copy);
	return err;
}

/* ---- what is held ---- */

struct count {
	uint16_t n, writes, coming, wanted;
};

static struct count *counts_of(struct client *cl)
{
	struct count *c = xcalloc(PAGES, sizeof(*c));
	struct mapping *m = cl->mapping;
	const struct hold *h;

	pthread_mutex_lock(&m->lock);
	HOLDS_FOREACH(h, &m->holds, 0, PAGES)
		for (uint64_t p = h->a; p < h->b; p++)
			c[p] = (struct count){ (uint16_t)h->n, (uint16_t)h->writes, (uint16_t)h->coming, 0 };
	HOLDS_FOREACH(h, &m->wanted, 0, PAGES)
		for (uint64_t p = h->a; p < h->b; p++) {
			c[p].wanted = (uint16_t)h->n;
			c[p].coming = (uint16_t)(c[p].coming + h->coming);
			c[p].writes = (uint16_t)(c[p].writes + h->writes);
		}
	pthread_mutex_unlock(&m->lock);
	return c;
}

#define expect_counts(is, should)                                                                                                  \
	do {                                                                                                                       \
		for (unsigned p_ = 0; p_ < PAGES; p_++)                                                                            \
			cr_assert(!memcmp(&(is)[p_], &(should)[p_], sizeof((is)[0])), "page %u: %u holds, %u to write, %u coming, %u wanted, not %u, %u, %u, %u", \
				  p_, (is)[p_].n, (is)[p_].writes, (is)[p_].coming, (is)[p_].wanted, (should)[p_].n, (should)[p_].writes,    \
				  (should)[p_].coming, (should)[p_].wanted);                                                        \
	} while (0)

static unsigned held(struct client *cl, uint64_t page)
{
	struct count *c = counts_of(cl);
	unsigned n = c[page].n;

	free(c);
	return n;
}

static struct client *begin_lists(void)
{
	begin(&(struct rig_options){ .devices = 2, .home_bytes = 1ull << 30 }, CHUNKS * GAIA_CHUNK);
	return new_client(0);
}

/* ---- what they mean ---- */

Test(lists, hold_a_page_as_often_as_ranges_touch_it)
{
	struct client *cl = begin_lists();
	struct list l = { .n = 0 };

	list_add(&l, AT(1, 7) + 4000, 200);
	list_add(&l, AT(0, 3), 2 * GAIA_PAGE);
	list_add(&l, AT(0, 4) + 1, 1);
	list_add(&l, AT(2, 0), 0);
	list_add(&l, AT(0, 4), GAIA_PAGE);
	list_add(&l, AT(0, 4) + 9, 1);
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_RW), 0);
	cr_assert_eq(held(cl, 2), 0);
	cr_assert_eq(held(cl, 3), 1);
	cr_assert_eq(held(cl, 4), 4);
	cr_assert_eq(held(cl, 5), 0);
	cr_assert_eq(held(cl, GAIA_CHUNK_PAGES + 6), 0);
	cr_assert_eq(held(cl, GAIA_CHUNK_PAGES + 7), 1);
	cr_assert_eq(held(cl, GAIA_CHUNK_PAGES + 8), 1);
	cr_assert_eq(held(cl, 2 * GAIA_CHUNK_PAGES), 0);
	/* Part of them, and more than there are. */
	l.n = 0;
	list_add(&l, AT(0, 4), 1);
	list_add(&l, AT(0, 4), 2);
	list_add(&l, AT(0, 3), 1);
	list_add(&l, AT(0, 3), 1);
	cr_assert_eq(releasev(cl, &l), 0);
	cr_assert_eq(held(cl, 3), 0);
	cr_assert_eq(held(cl, 4), 2);
	cr_assert_eq(held(cl, GAIA_CHUNK_PAGES + 7), 1);
	release_all(cl);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(lists, of_nothing_do_nothing)
{
	struct client *cl = begin_lists();
	struct list l = { .n = 0 };

	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_READ), 0);
	cr_assert_eq(releasev(cl, &l), 0);
	list_add(&l, 0, 0);
	list_add(&l, UINT64_MAX, 0);
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_READ), 0);
	cr_assert_eq(releasev(cl, &l), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

Test(lists, lie_in_the_mapping)
{
	static const struct gaia_list_range bad[] = {
		{ CHUNKS * (uint64_t)GAIA_CHUNK, 1 }, { CHUNKS * (uint64_t)GAIA_CHUNK - 1, 2 }, { UINT64_MAX, 1 },
		{ 1, UINT64_MAX }, { UINT64_MAX - 5, UINT64_MAX - 5 }, { INT64_MAX, INT64_MAX },
	};
	struct client *cl = begin_lists();

	for (size_t k = 0; k < ARRAY_LEN(bad); k++) {
		struct gaia_list_range range[] = { { 0, 1 }, bad[k], { AT(1, 0), 1 } };
		bool changed;
		uint64_t seq;

		cr_assert_eq(cache_acquirev(cl->mapping, range, 3, GAIA_PROT_READ, &seq, NULL), -EINVAL);
		cr_assert_eq(rig_device_used(rig, 0), 0);
		cr_assert_eq(client_acquire(cl, 0, 1, GAIA_PROT_READ), 0);
		cr_assert_eq(cache_releasev(cl->mapping, range, 3, &changed), -EINVAL);
		cr_assert_eq(held(cl, 0), 1, "nothing was released");
		cr_assert_eq(client_release(cl, 0, 1), 0);
		cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	}
	end();
}

Test(lists, may_be_read_only)
{
	struct client *cl;
	struct list l = { .n = 0 };

	begin_devices(1);
	cl = client_create(kf, 0, GAIA_PROT_READ, CHUNKS * GAIA_CHUNK);
	list_add(&l, 0, 1);
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_RW), -EACCES);
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_READ), 0);
	cr_assert_eq(releasev(cl, &l), 0);
	end();
}

/* The index of a chunk's other pages says nothing of these, and nobody waits for them. */
Test(lists, concern_no_page_between_their_ranges, .timeout = 240)
{
	struct client *cl = begin_lists(), *other = new_client(1);
	struct list l = { .n = 0 };
	struct cache_read rd;

	list_add(&l, AT(0, 6), 1);
	list_add(&l, AT(0, 8), 1);
	write_cpu(AT(0, 7), "between");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	/* The client maps the chunk: it is handed over with all of its pages. */
	cr_assert_eq(client_acquire(cl, AT(0, 6), 1, GAIA_PROT_RW), 0);
	cr_assert_eq(client_release(cl, AT(0, 6), 1), 0);
	cr_assert_eq(cache_read_begin(kf->cfile, (off_t)AT(0, 7), 4, false, &rd), 0);
	write_cpu(AT(0, 6) + 50, "six");
	write_cpu(AT(0, 8) + 50, "eight");
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_RW), 0);
	client_store(cl, "mine", 4, AT(0, 6));
	client_store(cl, "mine", 4, AT(0, 8));
	cr_assert_eq(releasev(cl, &l), 0);
	cache_read_end(&rd);
	expect_cpu(AT(0, 6), "mine");
	expect_cpu(AT(0, 6) + 50, "six");
	expect_device(other, AT(0, 8), "mine");
	expect_device(other, AT(0, 8) + 50, "eight");
	expect_cpu(AT(0, 7), "between");
	release_all(other);
	release_all(other);
	end();
}

Test(lists, publish_what_they_name_and_nothing_else)
{
	struct client *cl = begin_lists();
	struct list l = { .n = 0 };

	cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	for (unsigned i = 5; i < 10; i++)
		client_store(cl, "mine", 4, AT(0, i));
	client_store(cl, "mine", 4, AT(1, 5));
	list_add(&l, AT(0, 9), 1);
	list_add(&l, AT(1, 5), 1);
	list_add(&l, AT(0, 5), 1);
	cr_assert_eq(releasev(cl, &l), 0);
	expect_cpu(AT(0, 5), "mine");
	expect_cpu(AT(0, 9), "mine");
	expect_cpu(AT(1, 5), "mine");
	for (unsigned i = 6; i < 9; i++) {
		expect_cpu(AT(0, i), "\0");
		cr_assert_eq(held(cl, i), 1);
	}
	release_all(cl);
	expect_cpu(AT(0, 7), "mine");
	end();
}

/* What was held twice is published by the first release, and still held. */
Test(lists, take_away_as_many_holds_as_ranges)
{
	struct client *cl = begin_lists();
	struct list l = { .n = 0 };

	list_add(&l, AT(0, 5), 1);
	list_add(&l, AT(0, 5), 1);
	list_add(&l, AT(2, 5), 1);
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_RW), 0);
	client_store(cl, "one", 3, AT(0, 5));
	cr_assert_eq(client_release(cl, AT(0, 5), 1), 0);
	expect_cpu(AT(0, 5), "one");
	client_store(cl, "two", 3, AT(0, 5));
	expect_cpu(AT(0, 5), "one");
	cr_assert_eq(releasev(cl, &l), 0);
	expect_cpu(AT(0, 5), "two");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(lists, hold_a_page_65535_times_at_most)
{
	static struct gaia_list_range range[HOLDS_OF_A_PAGE + 1];
	struct client *cl = begin_lists();
	bool changed;
	uint64_t seq;

	for (size_t k = 0; k < ARRAY_LEN(range); k++)
		range[k] = (struct gaia_list_range){ AT(1, 0) - k % 2, 2 };
	cr_assert_eq(cache_acquirev(cl->mapping, range, ARRAY_LEN(range), GAIA_PROT_READ, &seq, NULL), -EOVERFLOW);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nothing is held");
	cr_assert_eq(cache_acquirev(cl->mapping, range, HOLDS_OF_A_PAGE, GAIA_PROT_READ, &seq, NULL), 0);
	cr_assert_eq(held(cl, GAIA_CHUNK_PAGES), HOLDS_OF_A_PAGE);
	cr_assert_eq(client_acquire(cl, AT(1, 0), 1, GAIA_PROT_READ), -EOVERFLOW);
	cr_assert_eq(cache_acquirev(cl->mapping, range, 2, GAIA_PROT_READ, &seq, NULL), -EOVERFLOW);
	/* More than there can be. */
	cr_assert_eq(cache_releasev(cl->mapping, range, ARRAY_LEN(range), &changed), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* ---- what is given back without having been used ---- */

Test(given_back, publishes_nothing_that_is_held_otherwise)
{
	struct gaia_list_range range[] = { { AT(0, 2), 1 }, { AT(1, 0), GAIA_PAGE }, { AT(0, 2), GAIA_PAGE } };
	struct client *cl = begin_lists();
	struct list l = { .n = 0 };
	bool changed;

	cr_assert_eq(client_acquire(cl, 0, AT(0, 4), GAIA_PROT_RW), 0);
	client_store(cl, "one", 3, AT(0, 2));
	cr_assert_eq(client_acquire(cl, AT(0, 1), AT(1, 1), GAIA_PROT_RW), 0);
	cr_assert_eq(cache_give_back(cl->mapping, AT(0, 1), AT(1, 1), &changed), 0);
	cr_assert(!changed);
	expect_cpu(AT(0, 2), "\0");
	cr_assert_eq(held(cl, 2), 1);
	cr_assert_eq(held(cl, 4), 0);
	cr_assert_eq(held(cl, GAIA_CHUNK_PAGES), 0);
	/* Of two holds both, and one is left. */
	for (size_t k = 0; k < ARRAY_LEN(range); k++)
		list_add(&l, range[k].offset, range[k].length);
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_RW), 0);
	cr_assert_eq(cache_give_backv(cl->mapping, range, ARRAY_LEN(range), &changed), 0);
	cr_assert(!changed);
	cr_assert_eq(held(cl, 2), 1);
	cr_assert_eq(held(cl, GAIA_CHUNK_PAGES), 0);
	expect_cpu(AT(0, 2), "\0");
	client_store(cl, "two", 3, AT(0, 3));
	cr_assert_eq(client_release(cl, 0, AT(0, 4)), 0);
	expect_cpu(AT(0, 2), "one");
	expect_cpu(AT(0, 3), "two");
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* Nobody else can publish that. */
Test(given_back, is_released_where_it_was_the_last_hold)
{
	struct client *cl = begin_lists();
	bool changed;

	cr_assert_eq(client_acquire(cl, 0, AT(0, 2), GAIA_PROT_RW), 0);
	cr_assert_eq(client_acquire(cl, 0, AT(0, 1), GAIA_PROT_RW), 0);
	client_store(cl, "one", 3, 0);
	client_store(cl, "two", 3, AT(0, 1));
	cr_assert_eq(cache_give_back(cl->mapping, 0, AT(0, 2), &changed), 0);
	cr_assert(changed);
	expect_cpu(0, "\0");
	expect_cpu(AT(0, 1), "two");
	cr_assert_eq(cache_give_back(cl->mapping, 0, AT(0, 2), &changed), 0);
	expect_cpu(0, "one");
	cr_assert_eq(cache_give_back(cl->mapping, 0, AT(0, 2), &changed), 0);
	cr_assert(!changed);
	cr_assert_eq(cache_give_back(cl->mapping, 0, AT(CHUNKS, 1), &changed), -EINVAL);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(given_back, leaves_alone_what_other_mappings_hold)
{
	struct client *cl = begin_lists(), *other = new_client(0);
	bool changed;

	cr_assert_eq(client_acquire(cl, 0, AT(0, 1), GAIA_PROT_RW), 0);
	cr_assert_eq(client_acquire(other, 0, AT(0, 1), GAIA_PROT_RW), 0);
	client_store(other, "one", 3, 0);
	cr_assert_eq(cache_give_back(cl->mapping, 0, AT(0, 1), &changed), 0);
	cr_assert(!changed);
	expect_cpu(0, "\0");
	/* What is stored then is compared with what was there. */
	client_store(other, "t", 1, 0);
	cr_assert_eq(client_release(other, 0, AT(0, 1)), 0);
	expect_cpu(0, "tne");
	/* It is nobody's if they end. */
	cr_assert_eq(client_acquire(cl, 0, AT(0, 1), GAIA_PROT_RW), 0);
	cr_assert_eq(client_acquire(other, 0, AT(0, 1), GAIA_PROT_RW), 0);
	client_store(other, "two", 3, 0);
	cr_assert_eq(cache_give_back(cl->mapping, 0, AT(0, 1), &changed), 0);
	client_end(other);
	expect_cpu(0, "tne");
	expect_device(cl, 0, "tne");
	end();
}

static struct {
	sem_t brought, go_on;
} acquiring;

static void stop_before_success(void *arg, struct client *cl, uint64_t idx)
{
	(void)arg, (void)cl, (void)idx;
	sem_post(&acquiring.brought);
	sem_wait(&acquiring.go_on);
}

static int acquire_first(void *arg)
{
	return client_acquire(arg, 0, 1, GAIA_PROT_RW);
}

static void *acquire_first_beside(void *arg)
{
	return (void *)(intptr_t)acquire_first(arg);
}

static int give_back_first(void *arg)
{
	bool changed;

	return cache_give_back(((struct client *)arg)->mapping, 0, 1, &changed);
}

/* A client that gives back what it does not hold, while it acquires it, loses that; nothing else comes of it. */
Test(given_back, while_the_only_acquire_succeeds)
{
	struct client *cl = begin_lists();
	struct held h = { .point = "release.before_publish", .call = give_back_first, .arg = cl };
	pthread_t acquires;
	void *result;

	sem_init(&acquiring.brought, 0, 0);
	sem_init(&acquiring.go_on, 0, 0);
	rig->after_grant = stop_before_success;
	cr_assert_eq(pthread_create(&acquires, NULL, acquire_first_beside, cl), 0);
	sem_wait(&acquiring.brought);
	rig->after_grant = NULL;
	held_begin(&h);
	sem_post(&acquiring.go_on);
	pthread_join(acquires, &result);
	cr_assert_null(result);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(held(cl, 0), 0);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* ---- what they cost ---- */

Test(lists, take_one_operation_of_a_kind)
{
	struct client *cl = begin_lists();
	const struct list *l = every_other(CHUNKS);
	uint64_t operations, sent, looked_at;

	cr_assert_eq(client_acquire(cl, 0, CHUNKS * GAIA_CHUNK, GAIA_PROT_RW), 0);
	release_all(cl);
	for (size_t k = 0; k < l->n; k++)
		write_cpu(l->range[k].offset, "new");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 256), 0);
	operations = counter_value(CTR_device_operations);
	sent = counter_value(CTR_home_to_device);
	looked_at = counter_value(CTR_acquired_looked_at);
	cr_assert_eq(acquirev(cl, l, GAIA_PROT_RW), 0);
	cr_assert_eq(counter_value(CTR_device_operations) - operations, 1);
	cr_assert_eq(counter_value(CTR_home_to_device) - sent, l->n);
	cr_assert_eq(counter_value(CTR_acquired_looked_at) - looked_at, CHUNKS, "each chunk once");
	for (size_t k = 0; k < l->n; k++)
		client_store(cl, "mine", 4, l->range[k].offset + 100);
	operations = counter_value(CTR_device_operations);
	cr_assert_eq(releasev(cl, l), 0);
	cr_assert_eq(counter_value(CTR_device_operations) - operations, 1);
	expect_cpu(AT(3, 510) + 10, "new");
	expect_cpu(AT(3, 510) + 110, "mine");
	end();
}

/* ---- all or nothing ---- */

/* Three chunks, of which home lacks one, another device has released a page, and this one has released a page, too. */
static struct client *begin_all_kinds(struct list *l)
{
	struct client *cl = begin_lists(), *other = new_client(1);

	cr_assert_eq(client_acquire(other, AT(1, 20), 1, GAIA_PROT_RW), 0);
	client_store(other, "theirs", 6, AT(1, 20));
	cr_assert_eq(client_release(other, AT(1, 20), 1), 0);
	cr_assert_eq(client_acquire(cl, AT(0, 9), 1, GAIA_PROT_RW), 0);
	client_store(cl, "earlier", 7, AT(0, 9));
	cr_assert_eq(client_release(cl, AT(0, 9), 1), 0);
	/* Held already. */
	cr_assert_eq(client_acquire(cl, AT(0, 11), GAIA_PAGE, GAIA_PROT_RW), 0);
	client_store(cl, "held", 4, AT(0, 11));
	write_cpu(AT(0, 11) + 100, "cpu");
	l->n = 0;
	list_add(l, AT(2, 3), 3 * GAIA_PAGE);
	list_add(l, AT(0, 9), 1);
	list_add(l, AT(1, 20), 1);
	list_add(l, AT(0, 11), 1);
	list_add(l, AT(1, 20), 5000);
	return cl;
}

/* @times 0: for ever. */
static void fails_at(const char *point, int err, unsigned times)
{
	struct list l;
	struct client *cl = begin_all_kinds(&l);
	struct count *before = counts_of(cl), *after;
	unsigned failed = 0;
	int got;

	for (unsigned skip = 0;; skip++) {
		fault_arm(point, err, skip, times);
		got = acquirev(cl, &l, GAIA_PROT_RW);
		fault_disarm_all();
		if (!got)
			break;
		failed++;
		cr_assert_eq(got, err, "%s: %d", point, got);
		after = counts_of(cl);
		expect_counts(after, before);
		free(after);
		cache_check(rig->cache);
		cr_assert_eq(cache_evict(kf->cfile, 0, AT(2, 0), GAIA_CHUNK), 0, "%s: nothing of it is held", point);
		expect_cpu(AT(0, 11), "\0\0\0\0");
		expect_cpu(AT(0, 9), "earlier");
		cr_assert_lt(skip, 100);
	}
	cr_assert_gt(failed, 0, "%s", point);
	cr_assert_eq(held(cl, 11), 2);
	cr_assert_eq(held(cl, GAIA_CHUNK_PAGES + 20), 2);
	client_store(cl, "mine", 4, AT(2, 4));
	cr_assert_eq(releasev(cl, &l), 0);
	after = counts_of(cl);
	expect_counts(after, before);
	expect_cpu(AT(2, 4), "mine");
	expect_cpu(AT(1, 20), "theirs");
	expect_cpu(AT(0, 11), "held");
	expect_cpu(AT(0, 11) + 100, "cpu");
	free(before);
	free(after);
	release_all(cl);
	end();
}

Test(nothing, is_held_after_a_copy_that_fails) { fails_at("device.copy_in", -EIO, 1); }
Test(nothing, is_held_after_a_fetch_that_fails) { fails_at("device.copy_out", -EIO, 1); }
Test(nothing, is_held_after_a_merge_that_fails) { fails_at("device.pull", -EIO, 1); }
Test(nothing, is_held_after_a_snapshot_that_fails) { fails_at("device.copy_within", -EIO, 1); }
Test(nothing, is_held_after_an_allocation_that_fails) { fails_at("device.alloc", -ENOMEM, 1); }
Test(nothing, is_held_after_a_hand_over_that_fails) { fails_at("device.export", -EMFILE, 1); }
/* What fails when it is read ahead is tried again. */
Test(nothing, is_held_after_a_read_that_fails) { fails_at("store.read", -EIO, 0); }

/* Found only when the holds of the first chunks are there, and of the last one in part. */
Test(nothing, is_held_if_one_page_would_be_held_too_often)
{
	static struct gaia_list_range many[HOLDS_OF_A_PAGE];
	struct client *cl = begin_lists();
	struct count *before, *after;
	struct list l = { .n = 0 };
	uint64_t seq;

	for (size_t k = 0; k < ARRAY_LEN(many); k++)
		many[k] = (struct gaia_list_range){ AT(2, 100), 1 };
	cr_assert_eq(cache_acquirev(cl->mapping, many, ARRAY_LEN(many), GAIA_PROT_READ, &seq, NULL), 0);
	before = counts_of(cl);
	list_add(&l, AT(2, 90), 1);
	list_add(&l, AT(2, 100), 1);
	list_add(&l, AT(2, 110), 1);
	list_add(&l, AT(0, 1), GAIA_CHUNK);
	list_add(&l, AT(0, 4), 1);
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_RW), -EOVERFLOW);
	after = counts_of(cl);
	expect_counts(after, before);
	cache_check(rig->cache);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, GAIA_CHUNK), 0);
	free(before);
	free(after);
	client_end(cl);
	end();
}

Test(nothing, is_held_of_what_does_not_fit)
{
	struct list l = { .n = 0 };
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, CHUNKS * GAIA_CHUNK);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, AT(3, 0), 1, GAIA_PROT_RW), 0);
	list_add(&l, AT(1, 0), 1);
	list_add(&l, AT(0, 0), 1);
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_READ), -ENOMEM);
	list_add(&l, AT(2, 0), 1);
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_READ), -ENOMEM);
	cr_assert_eq(held(cl, 0), 0);
	cr_assert_eq(held(cl, 3 * GAIA_CHUNK_PAGES), 1);
	cr_assert_eq(client_release(cl, AT(3, 0), 1), 0);
	l.n = 2;
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_READ), 0);
	cr_assert_eq(releasev(cl, &l), 0);
	end();
}

/* The list's holds are coming until it is decided: a release of them takes none. */
Test(nothing, is_held_after_it_was_given_up, .timeout = 240)
{
	struct list l;
	struct client *cl = begin_all_kinds(&l);
	struct listed a = { .cl = cl, .list = &l, .prot = GAIA_PROT_RW };
	struct held h = { .point = "acquire.before_grant", .call = acquire_list, .arg = &a };
	struct count *before = counts_of(cl), *after;

	held_begin(&h);
	after = counts_of(cl);
	cr_assert_eq(after[11].n, 2);
	cr_assert_eq(after[11].coming, 1);
	cr_assert_eq(after[GAIA_CHUNK_PAGES + 20].n, 2);
	cr_assert_eq(after[GAIA_CHUNK_PAGES + 20].coming, 2);
	free(after);
	cr_assert_eq(releasev(cl, &l), 0);
	cr_assert(cache_decide(&a.verdict, CACHE_GIVEN_UP));
	cr_assert_eq(held_end(&h), -EINTR);
	before[11] = (struct count){ 0 };
	after = counts_of(cl);
	expect_counts(after, before);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0, "nor pinned");
	expect_cpu(AT(0, 11), "held");
	free(before);
	free(after);
	end();
}

Test(nothing, is_taken_by_a_release_that_lacks_room)
{
	struct client *cl = begin_lists();
	struct count *before, *after;
	struct list l = { .n = 0 }, *cut = every_other(1);
	unsigned blocks;

	cl->spans_allowed = 3;
	list_add(&l, 0, GAIA_CHUNK);
	list_add(&l, AT(1, 0), GAIA_CHUNK);
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_RW), 0);
	client_store(cl, "mine", 4, 0);
	before = counts_of(cl);
	blocks = cl->spans;
	cr_assert_eq(releasev(cl, cut), -ENOSR);
	cr_assert_eq(cl->spans, blocks, "what could be had is given back");
	after = counts_of(cl);
	expect_counts(after, before);
	expect_cpu(0, "\0");
	free(after);
	/* Acquires are refused, too, with nothing held of them. */
	cr_assert_eq(acquirev(cl, cut, GAIA_PROT_RW), -ENOSR);
	after = counts_of(cl);
	expect_counts(after, before);
	free(after);
	cr_assert_eq(releasev(cl, &l), 0);
	expect_cpu(0, "mine");
	cr_assert_eq(cl->spans, 0);
	free(before);
	end();
}

/* The holds end all the same, of all chunks. */
Test(lists, that_cannot_be_compared_are_released_all_the_same)
{
	struct client *cl = begin_lists();
	const struct list *l = every_other(3);

	cr_assert_eq(acquirev(cl, l, GAIA_PROT_RW), 0);
	client_store(cl, "mine", 4, AT(2, 10));
	fault_arm("device.find_changed", -EIO, 0, 1);
	cr_assert_eq(releasev(cl, l), -EIO);
	fault_disarm_all();
	cr_assert_eq(held(cl, 0), 0);
	cr_assert_eq(held(cl, 2 * GAIA_CHUNK_PAGES + 10), 0);
	expect_cpu(AT(2, 10), "mine");
	end();
}

/* ---- the end of the file ---- */

Test(lists, beyond_the_end_are_held_when_the_chunk_comes)
{
	struct list l = { .n = 0 };
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(cpu_truncate(kf, AT(1, 3) + 5), 0);
	list_add(&l, AT(3, 2), 1);
	list_add(&l, AT(3, 2), 1);
	list_add(&l, AT(1, 2), 4 * GAIA_PAGE);
	list_add(&l, AT(3, 9), 1);
	list_add(&l, AT(0, 1), 1);
	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_RW), 0);
	cr_assert_null(client_at(cl, AT(3, 2)));
	cr_assert_eq(held(cl, GAIA_CHUNK_PAGES + 5), 1, "of a chunk that is mapped it is held");
	cr_assert_eq(cpu_truncate(kf, CHUNKS * GAIA_CHUNK), 0);
	cr_assert_eq(client_acquire(cl, AT(3, 0), 1, GAIA_PROT_READ), 0);
	cr_assert_eq(held(cl, 3 * GAIA_CHUNK_PAGES + 2), 2);
	cr_assert_eq(held(cl, 3 * GAIA_CHUNK_PAGES + 9), 1);
	cr_assert_eq(client_release(cl, AT(3, 0), 1), 0);
	cr_assert_eq(releasev(cl, &l), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

static void *cut(void *arg)
{
	cr_assert_eq(cpu_truncate(kf, *(uint64_t *)arg), 0);
	return NULL;
}

/* It gets its turn, before or after the list's pages are brought: what was cut is zeros in any case. */
Test(lists, of_a_file_that_is_cut_meanwhile, .timeout = 240)
{
	struct client *cl = begin_lists();
	const struct list *l = every_other(CHUNKS);
	struct listed a = { .cl = cl, .list = l, .prot = GAIA_PROT_RW };
	struct held h = { .point = "device.copy_in", .call = acquire_list, .arg = &a };
	uint64_t size = AT(1, 6) + 20;
	pthread_t thread;
	char seen;

	for (size_t k = 0; k < l->n; k++)
		write_cpu(l->range[k].offset, "old");
	held_begin(&h);
	cr_assert_eq(pthread_create(&thread, NULL, cut, &size), 0);
	while (atomic_load(&kf->cfile->range_waiters) == 0)
		sched_yield();
	cr_assert_eq(held_end(&h), 0);
	pthread_join(thread, NULL);
	cache_check(rig->cache);
	client_load(cl, &seen, 1, AT(1, 6) + 10);
	cr_assert_eq(seen, 'o');
	client_store(cl, "lost", 4, AT(2, 0));
	client_store(cl, "kept", 4, AT(1, 4));
	cr_assert_eq(releasev(cl, l), 0);
	cr_assert_eq(cpu_truncate(kf, CHUNKS * GAIA_CHUNK), 0);
	expect_cpu(AT(1, 4), "kept");
	for (unsigned i = 8; i < GAIA_CHUNK_PAGES; i += 2) {
		cr_assert_eq(cpu_read(kf, &seen, 1, AT(1, i) + 10), 1);
		cr_assert_eq(seen, 0);
	}
	cr_assert_eq(cpu_read(kf, &seen, 1, AT(2, 0)), 1);
	cr_assert_eq(seen, 0);
	end();
}

/* ---- deaths ---- */

Test(lists, of_a_client_that_dies_meanwhile)
{
	struct list l;
	struct client *cl = begin_all_kinds(&l), *other = new_client(0);

	cr_assert_eq(acquirev(cl, &l, GAIA_PROT_RW), 0);
	client_store(cl, "never", 5, AT(2, 3));
	client_die(cl);
	client_end(cl);
	cache_check(rig->cache);
	cr_assert_eq(acquirev(other, &l, GAIA_PROT_RW), 0);
	expect_cpu(AT(2, 3), "\0");
	cr_assert_eq(releasev(other, &l), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

/* ---- as many single calls ---- */

static uint32_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005 + 1442695040888963407;
	return (uint32_t)(*seed >> 33);
}

/* Ranges around the borders of chunks, so that many overlap. */
static void random_list(struct list *l, uint64_t *seed)
{
	unsigned n = next_random(seed) % 8 + 1;

	for (l->n = 0; n > 0; n--) {
		uint64_t page = next_random(seed) % CHUNKS * GAIA_CHUNK_PAGES + next_random(seed) % 10;
		uint64_t off = page * GAIA_PAGE + next_random(seed) % GAIA_PAGE;
		uint64_t len = next_random(seed) % 4 == 0 ? next_random(seed) % (3 * GAIA_CHUNK) : next_random(seed) % (3 * GAIA_PAGE);

		if (off >= 5 * GAIA_PAGE)
			off -= 5 * GAIA_PAGE;
		list_add(l, off, MIN(len, CHUNKS * GAIA_CHUNK - off));
	}
}

/* Two files, with a client each: one acquires and releases lists, the other one range after the other. */
struct side {
	struct kfile *kf;
	struct client *cl;
};

static int single_calls(struct client *cl, const struct list *l, unsigned prot)
{
	int err = 0;

	for (size_t k = 0; k < l->n && !err; k++)
		err = prot ? client_acquire(cl, l->range[k].offset, l->range[k].length, prot) :
			     client_release(cl, l->range[k].offset, l->range[k].length);
	return err;
}

static void compare_sides(const struct side *side, uint64_t size)
{
	struct count *c[2] = { counts_of(side[0].cl), counts_of(side[1].cl) };
	unsigned char seen[2][64];

	expect_counts(c[0], c[1]);
	for (unsigned page = 0; page < PAGES; page += 1 + (page % GAIA_CHUNK_PAGES > 12 ? 83 : 0)) {
		uint64_t off = page * (uint64_t)GAIA_PAGE;

		for (unsigned k = 0; k < 2 && off < size; k++)
			cr_assert_gt(cpu_read(side[k].kf, seen[k], 64, off), 0);
		if (off + 64 <= size)
			cr_assert_arr_eq(seen[0], seen[1], 64, "page %u", page);
		if (c[0][page].n == 0 || off + 64 > size)
			continue;
		for (unsigned k = 0; k < 2; k++)
			client_load(side[k].cl, seen[k], 64, off);
		cr_assert_arr_eq(seen[0], seen[1], 64, "page %u on the device", page);
	}
	free(c[0]);
	free(c[1]);
}

/* A byte of a page that is held for writing, the same on both sides. */
static void store_somewhere(const struct side *side, uint64_t *seed)
{
	struct count *c = counts_of(side[0].cl);
	unsigned page = next_random(seed) % PAGES, k = 0;
	unsigned char value = (unsigned char)next_random(seed);

	while (k < PAGES && (c[page].n == 0 || c[page].writes == 0 || c[page].wanted > 0)) {
		page = (page + 1) % PAGES;
		k++;
	}
	for (unsigned s = 0; s < 2 && k < PAGES; s++)
		client_store(side[s].cl, &value, 1, page * (uint64_t)GAIA_PAGE + next_random(&(uint64_t){ *seed }) % 64);
	free(c);
}

static void as_single_calls(uint64_t seed, struct rig_options options)
{
	static const uint64_t sizes[] = { CHUNKS * GAIA_CHUNK, AT(2, 4) + 77, AT(1, 0), AT(3, 2) };
	struct list *l = xmalloc(sizeof(*l));
	struct side side[2];
	uint64_t size = sizes[0];

	options.devices = 1;
	rig = rig_create(&options);
	for (int k = 0; k < 2; k++) {
		side[k].kf = kfile_create(rig, k + 1, size);
		side[k].cl = client_create(side[k].kf, 0, GAIA_PROT_RW, CHUNKS * GAIA_CHUNK);
	}
	kf = side[0].kf;
	for (unsigned step = 0; step < 60; step++) {
		unsigned char value = (unsigned char)next_random(&seed);
		unsigned prot = next_random(&seed) % 2 ? GAIA_PROT_RW : GAIA_PROT_READ, what = next_random(&seed) % 8;
		uint64_t at = next_random(&seed) % PAGES * (uint64_t)GAIA_PAGE + next_random(&seed) % 64;

		random_list(l, &seed);
		switch (what) {
		case 0:
		case 1:
		case 2:
			cr_assert_eq(acquirev(side[0].cl, l, prot), 0);
			cr_assert_eq(single_calls(side[1].cl, l, prot), 0);
			break;
		case 3:
		case 4:
			cr_assert_eq(releasev(side[0].cl, l), 0);
			cr_assert_eq(single_calls(side[1].cl, l, 0), 0);
			break;
		case 5:
			for (unsigned k = 0; k < 2 && at < size; k++)
				cr_assert_eq(cpu_write(side[k].kf, &value, 1, at), 0);
			break;
		case 6:
			size = sizes[next_random(&seed) % ARRAY_LEN(sizes)];
			for (unsigned k = 0; k < 2; k++)
				cr_assert_eq(cpu_truncate(side[k].kf, size), 0);
			break;
		case 7:
			for (unsigned k = 0; k < 2; k++)
				(void)cache_evict(side[k].kf->cfile, 0, at, GAIA_CHUNK);
			break;
		}
		store_somewhere(side, &seed);
		cache_check(rig->cache);
		compare_sides(side, size);
	}
	free(l);
	end();
}

Test(lists, are_as_many_single_calls, .timeout = 240)
{
	for (uint64_t seed = 1; seed <= 6; seed++)
		as_single_calls(seed, (struct rig_options){ .writethrough = seed % 2 });
}

Test(lists, of_a_passthrough_file_are_as_many_single_calls, .timeout = 240)
{
	for (uint64_t seed = 11; seed <= 13; seed++)
		as_single_calls(seed, (struct rig_options){ .passthrough = true });
}

/* ---- threads ---- */

/* Two threads of one client: each page that both need is a counter for each of them. */
struct counting {
	struct client *cl;
	unsigned lane;
	pthread_t thread;
};

#define ROUNDS 60u
#define CELLS 24u

static uint64_t cell_at(unsigned k, unsigned lane)
{
	return AT(k % 3, 3 * (k / 3)) + lane * 8;
}

static void *counting_main(void *arg)
{
	struct counting *c = arg;
	struct list *l = xcalloc(1, sizeof(*l));
	uint64_t seed = c->lane + 1, value;

	for (uint64_t round = 0; round < ROUNDS; round++) {
		unsigned from = next_random(&seed) % CELLS;

		l->n = 0;
		for (unsigned k = 0; k < CELLS; k++)
			list_add(l, cell_at((from + k) % CELLS, 0), 100);
		cr_assert_eq(acquirev(c->cl, l, GAIA_PROT_RW), 0);
		for (unsigned k = 0; k < CELLS; k++) {
			client_load(c->cl, &value, 8, cell_at(k, c->lane));
			cr_assert_eq(value, round);
			value++;
			client_store(c->cl, &value, 8, cell_at(k, c->lane));
		}
		cr_assert_eq(releasev(c->cl, l), 0);
	}
	free(l);
	return NULL;
}

Test(lists, of_several_threads_lose_nothing, .timeout = 240)
{
	struct client *cl = begin_lists();
	struct counting c[] = { { cl, 0, 0 }, { cl, 1, 0 }, { new_client(1), 2, 0 } };
	uint64_t value;

	for (unsigned k = 0; k < ARRAY_LEN(c); k++)
		cr_assert_eq(pthread_create(&c[k].thread, NULL, counting_main, &c[k]), 0);
	for (unsigned k = 0; k < ARRAY_LEN(c); k++)
		pthread_join(c[k].thread, NULL);
	for (unsigned k = 0; k < CELLS; k++)
		for (unsigned lane = 0; lane < ARRAY_LEN(c); lane++) {
			cr_assert_eq(cpu_read(kf, &value, 8, cell_at(k, lane)), 8);
			cr_assert_eq(value, ROUNDS);
		}
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}
