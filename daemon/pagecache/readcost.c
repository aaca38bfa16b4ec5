/* readcost.c - see readcost.h. */
#include "pagecache/readcost.h"

#include <string.h>

#include "base/util.h"

#define MOST_NS 1000000000000ull
#define LEAST_NS 100ull /* no read is faster; and shares of less would be lost in whole numbers */
#define STEP 8u		/* so many times more, or less, than what was expected is believed at once */
#define RUNS 4u		/* that the store reads at a time, while the first of them takes its time */
#define PROBE_GAP 32u
#define PROBE_SHARE 32 /* of the time; the unit of credit */
#define CREDIT_MOST_NS 100000000ll /* what may be saved: enough for a probe of any source, see is_due() */
#define DEBT_MOST_NS 10000000000ll /* what has to be made up for */

const unsigned read_point[READ_POINTS] = { 1, 8, 64, 256 };
_Static_assert(READ_DEVICES <= 8, "has[] has a bit for each");

static uint64_t point(const struct read_cost *rc, unsigned p)
{
	return atomic_load_explicit(&rc->ns[p], memory_order_relaxed);
}

static void point_set(struct read_cost *rc, unsigned p, uint64_t ns)
{
	atomic_store_explicit(&rc->ns[p], MIN(MAX(ns, LEAST_NS), MOST_NS), memory_order_relaxed);
}

void read_cost_init(struct read_cost *rc, bool is_store)
{
	/* 4 KiB at 3 and at 20 GB/s. */
	uint64_t latency = is_store ? 80000 : 25000, page = is_store ? 1365 : 205;

	for (unsigned p = 0; p < READ_POINTS; p++) {
		point_set(rc, p, latency + read_point[p] * page);
		atomic_store_explicit(&rc->samples[p], 0, memory_order_relaxed);
	}
	atomic_store_explicit(&rc->in_turn, false, memory_order_relaxed);
	atomic_store_explicit(&rc->passed, 0, memory_order_relaxed);
	atomic_store_explicit(&rc->credit, 0, memory_order_relaxed);
	atomic_store(&rc->probing, false);
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

static uint64_t cost(const struct read_cost *rc, unsigned pages, unsigned runs, bool in_turn)
{
	double part, ns;
	unsigned p = before(pages, &part);

	ns = (double)point(rc, p);
	if (part > 0)
		ns += part * ((double)point(rc, p + 1) - ns);
	else if (pages > read_point[p])
		ns *= (double)pages / read_point[p];
	in_turn |= atomic_load_explicit(&rc->in_turn, memory_order_relaxed);
	return MAX((uint64_t)ns, 1ull) + (runs - 1) * (point(rc, 0) / (in_turn ? 1 : RUNS));
}

uint64_t read_cost_ns(const struct read_cost *rc, unsigned pages, unsigned runs)
{
	return cost(rc, pages, runs, false);
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
	double weight = about / MIN(samples + 1, READ_KNOWN);

	if (about <= 0)
		return;
	point_set(rc, p, (uint64_t)((double)point(rc, p) * (1 + weight * (ratio - 1)) + 0.5));
	if (about >= 0.5)
		atomic_store_explicit(&rc->samples[p], MIN(samples + 1, READ_KNOWN), memory_order_relaxed);
}

/* The point was just learned: have the others fit. */
static void fit(struct read_cost *rc, unsigned learned)
{
	for (unsigned p = learned + 1; p < READ_POINTS; p++) {
		uint64_t least = point(rc, p - 1), most = least * (read_point[p] / read_point[p - 1]);

		point_set(rc, p, MIN(MAX(point(rc, p), least), most));
	}
	for (unsigned p = learned; p-- > 0;) {
		unsigned times = read_point[p + 1] / read_point[p];
		uint64_t most = point(rc, p + 1), least = (most + times - 1) / times;

		point_set(rc, p, MIN(MAX(point(rc, p), least), most));
	}
}

void read_cost_learn(struct read_cost *rc, unsigned pages, unsigned runs, uint64_t ns)
{
	uint64_t all = read_cost_ns(rc, pages, runs), curve = read_cost_ns(rc, pages, 1);
	/* What runs add is little known. So a time between that of one run and what is expected of so many says nothing about the curve. */
	uint64_t expected = MIN(MAX(ns, curve), all);
	double part, ratio = (double)MIN(ns, MOST_NS) / (double)expected;
	/* It says as much about the curve as the curve is of it. */
	double about = (double)curve / (double)expected;
	unsigned p = before(pages, &part);

	ratio = MIN(MAX(ratio, 1.0 / STEP), (double)STEP);
	learn(rc, p, ratio, about * (1 - part));
	if (part > 0)
		learn(rc, p + 1, ratio, about * part);
	fit(rc, part < 0.5 ? p : p + 1);
}

uint64_t read_own_ns(uint64_t *last_ns, uint64_t began_ns, uint64_t ended_ns)
{
	uint64_t began = MAX(began_ns, *last_ns);

	*last_ns = MAX(*last_ns, ended_ns);
	return ended_ns > began ? ended_ns - began : 0;
}

/* ---- the choice ---- */

struct plan {
	const struct read_batch *rb;
	unsigned n, dev[READ_DEVICES]; /* those that come first are preferred */
};

/* Take pages from the first @use devices, and the others from the store: what that costs. */
static uint64_t plan_cost(const struct plan *pl, unsigned use, uint8_t *from)
{
	const struct read_batch *rb = pl->rb;
	unsigned pages[READ_DEVICES] = { 0 }, stored = 0, runs = 0;
	uint64_t ns = 0;

	for (unsigned i = 0; i < rb->n; i++) {
		unsigned k = 0;

		while (k < use && !(rb->has[i] >> pl->dev[k] & 1))
			k++;
		from[i] = k < use ? (uint8_t)pl->dev[k] : READ_STORE;
		if (k < use) {
			pages[pl->dev[k]]++;
		} else {
			stored++;
			runs += i == 0 || from[i - 1] != READ_STORE || rb->page[i] != rb->page[i - 1] + 1;
		}
	}
	if (stored > 0)
		ns = cost(rb->store, stored, runs, rb->in_turn);
	for (unsigned k = 0; k < rb->n_dev; k++)
		if (pages[k] > 0)
			ns = MAX(ns, cost(rb->dev[k], pages[k], 1, false));
	return ns;
}

/* The devices that have any of the pages; that which costs least for each page that it has comes first. */
static void plan_order(struct plan *pl)
{
	const struct read_batch *rb = pl->rb;
	double ns[READ_DEVICES];

	for (unsigned k = 0; k < rb->n_dev; k++) {
		unsigned pages = 0, at;

		for (unsigned i = 0; i < rb->n; i++)
			pages += rb->has[i] >> k & 1;
		if (pages == 0)
			continue;
		ns[k] = (double)read_cost_ns(rb->dev[k], pages, 1) / pages;
		for (at = pl->n++; at > 0 && ns[pl->dev[at - 1]] > ns[k]; at--)
			pl->dev[at] = pl->dev[at - 1];
		pl->dev[at] = k;
	}
}

/* The plan with its device @nth moved to place @to. */
static struct plan plan_moved(const struct plan *pl, unsigned nth, unsigned to)
{
	struct plan moved = *pl;

	if (nth > to)
		memmove(&moved.dev[to + 1], &pl->dev[to], (nth - to) * sizeof(pl->dev[0]));
	else
		memmove(&moved.dev[nth], &pl->dev[nth + 1], (to - nth) * sizeof(pl->dev[0]));
	moved.dev[to] = pl->dev[nth];
	return moved;
}

static bool uses(const uint8_t *from, unsigned n, unsigned which)
{
	return memchr(from, (int)which, n) != NULL;
}

/* ---- probes ---- */

static void credit_add(struct read_cost *rc, int64_t add)
{
	int64_t old = atomic_load_explicit(&rc->credit, memory_order_relaxed), credit;

	do {
		credit = MIN(old + add, CREDIT_MOST_NS * PROBE_SHARE);
	} while (!atomic_compare_exchange_weak_explicit(&rc->credit, &old, credit, memory_order_relaxed, memory_order_relaxed));
}

static bool is_due(const struct read_cost *rc, uint64_t more_ns)
{
	return atomic_load_explicit(&rc->passed, memory_order_relaxed) >= PROBE_GAP &&
	       atomic_load_explicit(&rc->credit, memory_order_relaxed) >=
		       (int64_t)MIN(more_ns, (uint64_t)CREDIT_MOST_NS) * PROBE_SHARE;
}

/* Another source costs @ns, and this one so much more. Whether it is used all the same, since that was seldom done. */
static bool probe_begin(struct read_cost *rc, uint64_t ns, uint64_t more_ns, bool may)
{
	atomic_fetch_add_explicit(&rc->passed, 1, memory_order_relaxed);
	credit_add(rc, (int64_t)ns);
	if (!may || !is_due(rc, more_ns) || atomic_exchange(&rc->probing, true))
		return false;
	/* One may just have ended. */
	if (!is_due(rc, more_ns)) {
		atomic_store(&rc->probing, false);
		return false;
	}
	atomic_store_explicit(&rc->passed, 0, memory_order_relaxed);
	return true;
}

void read_probe_end(struct read_cost *rc, uint64_t more_ns)
{
	credit_add(rc, -(int64_t)MIN(more_ns, (uint64_t)DEBT_MOST_NS) * PROBE_SHARE);
	atomic_store(&rc->probing, false);
}

/* Use a source that the plan, which costs @ns, does not use, if its time has come. */
static struct read_cost *plan_probe(const struct plan *pl, unsigned use, uint64_t ns, uint8_t *from)
{
	const struct read_batch *rb = pl->rb;
	bool may = rb->may_probe && rb->n <= READ_PROBE;
	uint8_t other[READ_BATCH];
	uint64_t takes;

	if (!uses(from, rb->n, READ_STORE)) {
		takes = plan_cost(pl, 0, other);
		if (probe_begin(rb->store, ns, takes > ns ? takes - ns : 0, may)) {
			memcpy(from, other, rb->n);
			return rb->store;
		}
	}
	for (unsigned k = 0; k < pl->n; k++) {
		struct read_cost *dev = rb->dev[pl->dev[k]];
		struct plan with = plan_moved(pl, k, 0);

		if (uses(from, rb->n, pl->dev[k]))
			continue;
		takes = plan_cost(&with, k < use ? use : use + 1, other);
		if (probe_begin(dev, ns, takes > ns ? takes - ns : 0, may)) {
			memcpy(from, other, rb->n);
			return dev;
		}
	}
	return NULL;
}

struct read_cost *read_plan(const struct read_batch *rb, uint8_t *from, uint64_t *instead_ns)
{
	struct plan pl = { .rb = rb };
	uint8_t other[READ_BATCH];
	uint64_t best, ns;
	unsigned use = 0;

	plan_order(&pl);
	best = plan_cost(&pl, 0, from);
	for (unsigned k = 1; k <= pl.n; k++) {
		ns = plan_cost(&pl, k, other);
		if (ns >= best)
			continue;
		best = ns;
		use = k;
		memcpy(from, other, rb->n);
	}
	/* Of several a cheap one may be in the way, and one that is dear good for little: try with one more and one less. */
	for (unsigned k = 0; k < pl.n && pl.n > 1;) {
		bool used = k < use;
		struct plan changed = plan_moved(&pl, k, used ? pl.n - 1 : use);
		unsigned n = used ? use - 1 : use + 1;

		ns = plan_cost(&changed, n, other);
		if (ns >= best) {
			k++;
			continue;
		}
		best = ns;
		pl = changed;
		use = n;
		memcpy(from, other, rb->n);
	}
	*instead_ns = best;
	return pl.n > 0 ? plan_probe(&pl, use, best, from) : NULL;
}
