/*
 * counters.c - see counters.h.
 */
#include "base/counters.h"

_Atomic uint64_t counters[CTR_COUNT];

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
