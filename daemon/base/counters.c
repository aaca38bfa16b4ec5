/*
 * counters.c - see counters.h.
 */
#include "base/counters.h"

struct counter_set counter_sets[COUNTER_SETS];
__thread struct counter_set *counter_set;

void counter_set_choose(void)
{
	static atomic_uint threads;
	unsigned n = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);

	counter_set = &counter_sets[n % COUNTER_SETS];
}

uint64_t counter_value(enum counter c)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < COUNTER_SETS; i++)
		sum += atomic_load_explicit(&counter_sets[i].value[c], memory_order_relaxed);
	return sum;
}

static const char *const names[] = {
#define X(name, text) [CTR_##name] = #name,
	COUNTERS(X)
#undef X
};

static const char *const texts[] = {
#define X(name, text) [CTR_##name] = text,
	COUNTERS(X)
#undef X
};

const char *counter_name(enum counter c)
{
	return names[c];
}

const char *counter_text(enum counter c)
{
	return texts[c];
}
