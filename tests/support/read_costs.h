/* read_costs.h - what reading costs (pagecache/readcost.h), given by a test. */
#ifndef GAIA_TESTS_READ_COSTS_H
#define GAIA_TESTS_READ_COSTS_H

#include "pagecache/readcost.h"

/* As if that were known for long. Probes are not touched. */
static inline void read_cost_set(struct read_cost *rc, const uint64_t ns[READ_POINTS])
{
	for (unsigned p = 0; p < READ_POINTS; p++) {
		rc->ns[p] = ns[p];
		rc->samples[p] = READ_KNOWN;
	}
}

/* So much for the wait, and for each page. */
static inline void read_cost_is(struct read_cost *rc, uint64_t latency, uint64_t page)
{
	uint64_t ns[READ_POINTS];

	for (unsigned p = 0; p < READ_POINTS; p++)
		ns[p] = latency + read_point[p] * page;
	read_cost_set(rc, ns);
}

#endif
