/* readcost.c - see readcost.h. */
#include "pagecache/readcost.h"

#include <string.h>

#include "base/util.h"

#define MOST_NS 1000000000000ull
#define SAMPLES 8u    /* the weight of the past */
#define STEP 8u	      /* so many times more, or less, than what was expected is believed at once */
#define RUNS 4u	      /* that the store reads at a time, while the first of them takes its time */
#define PROBE_GAP 32u
#define PROBE_SHARE 32u

const unsigned read_point[READ_POINTS] = { 1, 8, 64, 256 };
_Static_assert(READ_DEVICES <= 8, "has[] has a bit for each");

static uint64_t point(const struct read_cost *rc, unsigned p)
{
	return atomic_load_explicit(&rc->ns[p], memory_order_relaxed);
}

static void point_set(struct read_cost *rc, unsigned p, uint64_t ns, uint32_t samples)
{
	atomic_store_explicit(&rc->ns[p], MIN(MAX(ns, 1ull), MOST_NS), memory_order_relaxed);
	atomic_store_explicit(&rc->samples[p], samples, memory_order_relaxed);
}

void read_cost_init(struct read_cost *rc, bool is_store)
{
	/* 4 KiB at 3 and at 20 GB/s. */
	uint64_t latency = is_store ? 80000 : 25000, page = is_store ? 1365 : 205;

	for (unsigned p = 0; p < READ_POINTS; p++)
		point_set(rc, p, latency + read_point[p] * page, 0);
	atomic_store_explicit(&rc->passed, 0, memory_order_relaxed);
	atomic_store_explicit(&rc->credit_ns, 0, memory_order_relaxed);
}

void read_cost_set(struct read_cost *rc, const uint64_t ns[READ_POINTS])
{
	for (unsigned p = 0; p < READ_POINTS; p++)
		point_set(rc, p, ns[p], SAMPLES);
}

/* The point at or before so many pages, and which part of the way to the next one they are. */
static unsigned before(unsigned pages, double *part)
{
	unsigned p = 0;

	while (p + 1 < READ_POINTS && pages >= read_point[p + 1])
		p++;
	*part = 0;
	if (p + 1 < READ_POINTS && pages > read_point[p])
		*part = (double)(pages - read_point[p]) / (read_point[p + 1] - read_point[p]);
	return p;
}

static uint64_t more_runs(const struct read_cost *rc, unsigned runs)
{
	return (runs - 1) * (point(rc, 0) / RUNS);
}

uint64_t read_cost_ns(const struct read_cost *rc, unsigned pages, unsigned runs)
{
	double part, ns;
	unsigned p = before(pages, &part);

	ns = (double)point(rc, p);
	if (part > 0)
		ns += part * ((double)point(rc, p + 1) - ns);
	else if (pages > read_point[p])
		ns *= (double)pages / read_point[p];
	return MAX((uint64_t)ns, 1ull) + more_runs(rc, runs);
}

unsigned read_cost_window(const struct read_cost *rc)
{
	double one = (double)point(rc, 0), many = (double)point(rc, READ_POINTS - 1);
	double page = (many - one) / (read_point[READ_POINTS - 1] - 1);

	return page * READ_WINDOW_MOST > one ? MAX((unsigned)(one / page), 1u) : READ_WINDOW_MOST;
}

/* Multiply the point by @ratio, as far as the sample was about it. */
static void learn(struct read_cost *rc, unsigned p, double ratio, double about)
{
	uint32_t samples = atomic_load_explicit(&rc->samples[p], memory_order_relaxed);
	double weight = about / MIN(samples + 1, SAMPLES);

	if (about > 0)
		point_set(rc, p, (uint64_t)((double)point(rc, p) * (1 + weight * (ratio - 1)) + 0.5),
			  about < 0.5 ? samples : MIN(samples + 1, SAMPLES));
}

void read_cost_learn(struct read_cost *rc, unsigned pages, unsigned runs, uint64_t ns)
{
	uint64_t more = more_runs(rc, runs), took = ns > more ? MIN(ns - more, MOST_NS) : 0;
	double part, ratio = (double)took / (double)read_cost_ns(rc, pages, 1);
	unsigned p = before(pages, &part);

	ratio = MIN(MAX(ratio, 1.0 / STEP), (double)STEP);
	learn(rc, p, ratio, 1 - part);
	if (part > 0)
		learn(rc, p + 1, ratio, part);
}

/* ---- the choice ---- */

struct plan {
	struct read_cost *store;
	struct read_cost *const *dev;
	unsigned n_dev;
	const uint8_t *has;
	unsigned n;
	unsigned order[READ_DEVICES]; /* devices: those that come first are preferred */
};

/* Take pages from the first @use devices, and the others from the store: what that costs. */
static uint64_t plan_cost(const struct plan *pl, unsigned use, uint8_t *from)
{
	unsigned pages[READ_DEVICES] = { 0 }, stored = 0, runs = 0;
	uint64_t ns = 0;

	for (unsigned i = 0; i < pl->n; i++) {
		unsigned k = 0;

		while (k < use && !(pl->has[i] >> pl->order[k] & 1))
			k++;
		from[i] = k < use ? (uint8_t)pl->order[k] : READ_STORE;
		if (k < use) {
			pages[pl->order[k]]++;
		} else {
			stored++;
			runs += i == 0 || from[i - 1] != READ_STORE;
		}
	}
	if (stored > 0)
		ns = read_cost_ns(pl->store, stored, runs);
	for (unsigned k = 0; k < READ_DEVICES; k++)
		if (pages[k] > 0)
			ns = MAX(ns, read_cost_ns(pl->dev[k], pages[k], 1));
	return ns;
}

/* The device that costs least for each page that it has comes first; those that have none are left out. */
static void plan_order(struct plan *pl)
{
	double ns[READ_DEVICES];
	unsigned n = 0, pages, at;

	for (unsigned k = 0; k < pl->n_dev; k++) {
		pages = 0;
		for (unsigned i = 0; i < pl->n; i++)
			pages += pl->has[i] >> k & 1;
		if (pages == 0)
			continue;
		ns[k] = (double)read_cost_ns(pl->dev[k], pages, 1) / pages;
		for (at = n++; at > 0 && ns[pl->order[at - 1]] > ns[k]; at--)
			pl->order[at] = pl->order[at - 1];
		pl->order[at] = k;
	}
	pl->n_dev = n;
}

static bool uses(const uint8_t *from, unsigned n, unsigned which)
{
	return memchr(from, (int)which, n) != NULL;
}

/* Another source costs @ns, and so much more than this one would be saved. Whether it is used all the same, since that was seldom done. */
static bool probe_due(struct read_cost *rc, uint64_t ns, uint64_t more_ns)
{
	uint32_t passed = atomic_fetch_add_explicit(&rc->passed, 1, memory_order_relaxed) + 1;
	uint64_t credit = atomic_fetch_add_explicit(&rc->credit_ns, ns / PROBE_SHARE, memory_order_relaxed) + ns / PROBE_SHARE;

	if (passed < PROBE_GAP || credit < more_ns)
		return false;
	/* One thread only. */
	if (!atomic_compare_exchange_strong_explicit(&rc->passed, &passed, 0, memory_order_relaxed, memory_order_relaxed))
		return false;
	atomic_store_explicit(&rc->credit_ns, 0, memory_order_relaxed);
	return true;
}

/* Use a source that the plan, which costs @ns, does not use, if its time has come. */
static bool plan_probe(const struct plan *pl, unsigned use, uint64_t ns, uint8_t *from)
{
	uint8_t other[READ_BATCH];
	uint64_t cost;

	if (!uses(from, pl->n, READ_STORE)) {
		cost = plan_cost(pl, 0, other);
		if (probe_due(pl->store, ns, cost > ns ? cost - ns : 0)) {
			memcpy(from, other, pl->n);
			return true;
		}
	}
	for (unsigned k = 0; k < pl->n_dev; k++) {
		struct plan with = *pl;

		if (uses(from, pl->n, pl->order[k]))
			continue;
		/* It comes first, and what was used before after it. */
		memmove(&with.order[1], &with.order[0], k * sizeof(with.order[0]));
		with.order[0] = pl->order[k];
		cost = plan_cost(&with, k < use ? use : use + 1, other);
		if (probe_due(pl->dev[pl->order[k]], ns, cost > ns ? cost - ns : 0)) {
			memcpy(from, other, pl->n);
			return true;
		}
	}
	return false;
}

bool read_plan(struct read_cost *store, struct read_cost *const *dev, unsigned n_dev, const uint8_t *has, unsigned n,
	       uint8_t *from)
{
	struct plan pl = { .store = store, .dev = dev, .n_dev = n_dev, .has = has, .n = n };
	uint8_t other[READ_BATCH];
	uint64_t best, cost;
	unsigned use = 0;

	plan_order(&pl);
	best = plan_cost(&pl, 0, from);
	for (unsigned k = 1; k <= pl.n_dev; k++) {
		cost = plan_cost(&pl, k, other);
		if (cost >= best)
			continue;
		best = cost;
		use = k;
		memcpy(from, other, n);
	}
	return pl.n_dev > 0 && plan_probe(&pl, use, best, from);
}
