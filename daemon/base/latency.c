/*
 * latency.c - see latency.h.
 */
#include "base/latency.h"

const double latency_least_ns = LATENCY_PARTS, latency_most_ns = (1ull << 34) - 1;
struct latency_counts latency_sets[LATENCY_SETS][LATENCY_COUNT];
__thread struct latency_counts *latency_set = latency_sets[0];

void latency_set_choose(void)
{
	static atomic_uint threads;
	unsigned n = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);

	latency_set = latency_sets[n % LATENCY_SETS];
}

uint64_t latency_bound_ns(unsigned bucket)
{
	return (LATENCY_PARTS + bucket % LATENCY_PARTS + 1ull) << bucket / LATENCY_PARTS;
}

void latency_read(enum latency l, struct latency_values *out)
{
	*out = (struct latency_values){ .sum_ns = 0 };
	for (unsigned i = 0; i < LATENCY_SETS; i++) {
		uint64_t sum_ns = atomic_load_explicit(&latency_sets[i][l].sum_ns, memory_order_relaxed);

		/* Most sets have nothing of most kinds. (Each value adds to the sum.) */
		if (!sum_ns)
			continue;
		out->sum_ns += sum_ns;
		for (unsigned k = 0; k < LATENCY_BUCKETS; k++)
			out->bucket[k] += atomic_load_explicit(&latency_sets[i][l].bucket[k], memory_order_relaxed);
	}
}

uint64_t latency_number(const struct latency_values *v)
{
	uint64_t n = 0;

	for (unsigned k = 0; k < LATENCY_BUCKETS; k++)
		n += v->bucket[k];
	return n;
}

uint64_t latency_percentile(const struct latency_values *v, unsigned permyriad)
{
	uint64_t n = latency_number(v), below = 0;
	uint64_t wanted = n / 10000 * permyriad + (n % 10000 * permyriad + 9999) / 10000;

	for (unsigned k = 0; k < LATENCY_BUCKETS && n; k++) {
		below += v->bucket[k];
		if (below >= wanted && below)
			return latency_bound_ns(k);
	}
	return 0;
}

static const struct {
	const char *of, *name, *text;
} kinds[] = {
#define X(of, name, text) { #of, #name, text },
	LATENCIES(X)
#undef X
};

const char *latency_of(enum latency l)
{
	return kinds[l].of;
}

const char *latency_name(enum latency l)
{
	return kinds[l].name;
}

const char *latency_text(enum latency l)
{
	return kinds[l].text;
}
