/* policy.c - the policies beside plain models of them, and what they are good for: miss counts on made traces. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/ghosts.h"
#include "policy/policy.h"

#define KEYS 4096u /* of the models */

static uint64_t seed;

static uint64_t random64(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

/* ---- plain models: lists of keys, the next to leave first ---- */

struct list {
	uint64_t key[KEYS];
	unsigned uses[KEYS];
	unsigned n;
};

static unsigned where(const struct list *l, uint64_t key)
{
	unsigned i = 0;

	while (i < l->n && l->key[i] != key)
		i++;
	return i;
}

static void append(struct list *l, uint64_t key, unsigned uses)
{
	l->key[l->n] = key;
	l->uses[l->n++] = uses;
}

static void delete(struct list *l, unsigned i)
{
	memmove(&l->key[i], &l->key[i + 1], (l->n - i - 1) * sizeof(l->key[0]));
	memmove(&l->uses[i], &l->uses[i + 1], (l->n - i - 1) * sizeof(l->uses[0]));
	l->n--;
}

struct model {
	const struct policy_kind *kind;
	unsigned places;
	struct list small, main; /* all but S3-FIFO: main. Of chunks: their numbers */
	struct list keys;	 /* of chunks: what they have */
	struct ghosts *ghosts;
};

static bool model_hit(struct model *m, uint64_t key)
{
	struct list *l = where(&m->small, key) < m->small.n ? &m->small : &m->main;
	unsigned i = where(l, m->kind == &policy_chunks ? key / 512 : key);

	if (i == l->n)
		return false;
	if (m->kind == &policy_lru) {
		delete(l, i);
		append(l, key, 0);
	}
	l->uses[i] += m->kind != &policy_lru;
	return m->kind != &policy_chunks || where(&m->keys, key) < m->keys.n;
}

static void model_insert(struct model *m, uint64_t key)
{
	if (m->kind == &policy_chunks) {
		append(&m->keys, key, 0);
		if (where(&m->main, key / 512) == m->main.n)
			append(&m->main, key / 512, 1);
	} else if (m->kind == &policy_s3fifo && !ghosts_take(m->ghosts, key)) {
		append(&m->small, key, 0);
	} else {
		append(&m->main, key, 0);
	}
}

static unsigned model_evict_chunk(struct model *m, uint64_t *out)
{
	unsigned n = 0;
	uint64_t chunk;

	while (m->main.uses[0]) {
		append(&m->main, m->main.key[0], 0);
		delete(&m->main, 0);
	}
	chunk = m->main.key[0];
	delete(&m->main, 0);
	for (uint64_t key = chunk * 512; key < (chunk + 1) * 512; key++)
		if (where(&m->keys, key) < m->keys.n) {
			delete(&m->keys, where(&m->keys, key));
			out[n++] = key;
		}
	return n;
}

static unsigned model_evict_s3(struct model *m, uint64_t *out)
{
	unsigned small = m->places / 10 ? m->places / 10 : 1;

	for (;;) {
		struct list *l = m->small.n >= small || m->main.n == 0 ? &m->small : &m->main;
		unsigned uses = l->uses[0] > 3 ? 3 : l->uses[0];

		out[0] = l->key[0];
		delete(l, 0);
		if (l == &m->small && uses >= 2) {
			append(&m->main, out[0], 0);
		} else if (l == &m->main && uses >= 1) {
			append(&m->main, out[0], uses - 1);
		} else {
			if (l == &m->small)
				ghosts_add(m->ghosts, out[0]);
			return 1;
		}
	}
}

static unsigned model_evict(struct model *m, uint64_t *out)
{
	if (m->small.n + m->main.n == 0)
		return 0;
	if (m->kind == &policy_chunks)
		return model_evict_chunk(m, out);
	if (m->kind == &policy_s3fifo)
		return model_evict_s3(m, out);
	out[0] = m->main.key[0];
	delete(&m->main, 0);
	return 1;
}

static void model_remove(struct model *m, uint64_t key)
{
	uint64_t chunk = key / 512;

	if (m->kind == &policy_s3fifo)
		(void)ghosts_take(m->ghosts, key);
	if (m->kind != &policy_chunks) {
		if (where(&m->small, key) < m->small.n)
			delete(&m->small, where(&m->small, key));
		if (where(&m->main, key) < m->main.n)
			delete(&m->main, where(&m->main, key));
		return;
	}
	if (where(&m->keys, key) == m->keys.n)
		return;
	delete(&m->keys, where(&m->keys, key));
	for (unsigned i = 0; i < m->keys.n; i++)
		if (m->keys.key[i] / 512 == chunk)
			return;
	delete(&m->main, where(&m->main, chunk));
}

static unsigned model_count(const struct model *m)
{
	return m->kind == &policy_chunks ? m->keys.n : m->small.n + m->main.n;
}

/* One call, by both. */
static void step(struct policy *p, struct model *m, uint64_t key, bool remove)
{
	uint64_t out[POLICY_EVICTS], expected[POLICY_EVICTS];
	bool hit;
	unsigned n;

	if (remove) {
		m->kind->remove(p, key);
		model_remove(m, key);
	} else {
		hit = m->kind->hit(p, key);
		cr_assert_eq(hit, model_hit(m, key), "%s: key %lu", m->kind->name, key);
		if (!hit && model_count(m) == m->places) {
			n = m->kind->evict(p, out);
			cr_assert_eq(n, model_evict(m, expected), "%s", m->kind->name);
			cr_assert_arr_eq(out, expected, n * sizeof(out[0]), "%s", m->kind->name);
		}
		if (!hit) {
			m->kind->insert(p, key);
			model_insert(m, key);
		}
	}
	cr_assert_eq(m->kind->count(p), model_count(m), "%s", m->kind->name);
}

/* Keys that are used often, a scan now and then, a loop; a key is removed sometimes. */
static uint64_t mixed_key(unsigned i, unsigned keys)
{
	if (i / 300 % 4 == 3)
		return i % keys;
	if (i / 300 % 4 == 2)
		return i % (keys / 3 + 1);
	return random64() % (random64() % keys + 1) * (random64() % 8 ? 1 : 77) % keys;
}

static void like_model(const struct policy_kind *kind, unsigned places, unsigned keys)
{
	struct model *m = calloc(1, sizeof(*m));
	struct policy *p = kind->create(places);

	*m = (struct model){ .kind = kind, .places = places, .ghosts = ghosts_create(places) };
	seed = 88172645463325252u + places;
	for (unsigned i = 0; i < 6000; i++)
		step(p, m, mixed_key(i, keys), random64() % 50 == 0);
	kind->destroy(p);
	ghosts_destroy(m->ghosts);
	free(m);
}

Test(policy, each_does_what_its_plain_model_does)
{
	static const unsigned places[] = { 1, 2, 9, 10, 31, 100, 700 };

	for (unsigned k = 0; policies[k]; k++)
		for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++)
			like_model(policies[k], places[i], places[i] * 3 + 2);
}

Test(policy, an_empty_cache_has_nothing_to_evict)
{
	for (unsigned k = 0; policies[k]; k++) {
		struct policy *p = policies[k]->create(3);
		uint64_t out[POLICY_EVICTS];

		cr_assert_eq(policies[k]->evict(p, out), 0);
		policies[k]->remove(p, 5);
		policies[k]->insert(p, 5);
		policies[k]->remove(p, 5);
		cr_assert_eq(policies[k]->evict(p, out), 0);
		policies[k]->destroy(p);
	}
}

/* ---- ghosts ---- */

Test(ghosts, are_those_that_left_last)
{
	static const unsigned most[] = { 1, 7, 255, 1000, 5000, 40000 };

	for (unsigned k = 0; k < sizeof(most) / sizeof(most[0]); k++) {
		struct ghosts *g = ghosts_create(most[k]);
		unsigned young = 0, old = 0, step = (most[k] + 255) / 256;

		/* Ages from 0 to five lives, so that their steps come round. */
		for (uint64_t key = 0; key < 6ull * most[k]; key++)
			ghosts_add(g, key);
		for (uint64_t key = 0; key < 6ull * most[k]; key++) {
			bool is_young = key + most[k] - 2 * step >= 6ull * most[k] && most[k] > 2 * step;
			bool is_old = key + most[k] + step < 6ull * most[k];
			bool is = ghosts_take(g, key);

			young += is_young && !is;
			old += is_old && is;
			cr_assert(!ghosts_take(g, key), "a ghost is taken once");
		}
		/* Sets that are too full; names that are the same. */
		cr_assert_leq(young, most[k] / 20, "of %u ghosts %u were forgotten", most[k], young);
		cr_assert_leq(old, most[k] / 1000, "of %u ghosts %u are too old", most[k], old);
		ghosts_destroy(g);
	}
}

Test(ghosts, the_same_key_is_one_ghost)
{
	struct ghosts *g = ghosts_create(100);

	for (unsigned i = 0; i < 10; i++)
		ghosts_add(g, 7);
	cr_assert(ghosts_take(g, 7));
	cr_assert_not(ghosts_take(g, 7));
	cr_assert_not(ghosts_take(g, 8));
	ghosts_destroy(g);
}

/* ---- miss counts ---- */

#define PAGES 40000u
#define ACCESSES 400000u

/* Ranks by Zipf's law with exponent 0.9; ranks are scattered over the pages of a file. */
static uint32_t *zipf(void)
{
	double *sum = malloc((PAGES + 1) * sizeof(*sum));
	uint32_t *page = malloc(PAGES * sizeof(*page)), *trace = malloc(ACCESSES * sizeof(*trace));

	sum[0] = 0;
	for (unsigned i = 0; i < PAGES; i++) {
		sum[i + 1] = sum[i] + pow(i + 1, -0.9);
		page[i] = i;
	}
	for (unsigned i = PAGES - 1; i > 0; i--) {
		unsigned j = (unsigned)(random64() % (i + 1));
		uint32_t was = page[i];

		page[i] = page[j];
		page[j] = was;
	}
	for (unsigned k = 0; k < ACCESSES; k++) {
		double at = (double)(random64() >> 11) / 9007199254740992.0 * sum[PAGES];
		unsigned low = 0, high = PAGES;

		while (high - low > 1) {
			unsigned mid = (low + high) / 2;

			if (sum[mid] <= at)
				low = mid;
			else
				high = mid;
		}
		trace[k] = page[low];
	}
	free(sum);
	free(page);
	return trace;
}

/* Misses among the accesses that are not a scan's. After each @between accesses another file is scanned, of @scan pages. */
static double misses(const struct policy_kind *kind, const uint32_t *trace, unsigned places, unsigned between, unsigned scan)
{
	struct policy *p = kind->create(places);
	uint64_t scanned = 1u << 20;
	unsigned missed = 0;

	for (unsigned i = 0; i < ACCESSES; i++) {
		missed += !policy_access(kind, p, places, trace[i], NULL);
		for (unsigned k = 0; between && (i + 1) % between == 0 && k < scan; k++)
			(void)policy_access(kind, p, places, scanned++, NULL);
	}
	kind->destroy(p);
	return (double)missed / ACCESSES;
}

Test(policy, s3fifo_misses_less_than_recency_and_chunks)
{
	uint32_t *trace;
	double s3, lru, chunks;

	seed = 88172645463325252u;
	trace = zipf();
	s3 = misses(&policy_s3fifo, trace, PAGES / 5, 0, 0);
	lru = misses(&policy_lru, trace, PAGES / 5, 0, 0);
	chunks = misses(&policy_chunks, trace, PAGES / 5, 0, 0);
	cr_log_info("zipf: s3fifo %.3f, lru %.3f, chunks %.3f", s3, lru, chunks);
	cr_assert_lt(s3, 0.94 * lru);
	cr_assert_lt(s3, 0.85 * chunks);
	free(trace);
}

Test(policy, a_scan_costs_s3fifo_little)
{
	uint32_t *trace;
	double s3, scanned;

	seed = 88172645463325252u;
	trace = zipf();
	s3 = misses(&policy_s3fifo, trace, PAGES / 5, 0, 0);
	scanned = misses(&policy_s3fifo, trace, PAGES / 5, PAGES / 2, PAGES / 4);
	cr_log_info("zipf: s3fifo %.3f, beside scans %.3f, lru %.3f, chunks %.3f", s3, scanned,
		    misses(&policy_lru, trace, PAGES / 5, PAGES / 2, PAGES / 4),
		    misses(&policy_chunks, trace, PAGES / 5, PAGES / 2, PAGES / 4));
	cr_assert_lt(scanned, 1.1 * s3);
	cr_assert_lt(scanned, 0.9 * misses(&policy_lru, trace, PAGES / 5, PAGES / 2, PAGES / 4));
	free(trace);
}
