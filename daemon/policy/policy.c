/* policy.c - see policy.h. */
#include <stddef.h>

#include "policy/policy.h"

const struct policy_kind *const policies[] = { &policy_fifo, &policy_lru, &policy_s3fifo, &policy_chunks, NULL };

bool policy_access(const struct policy_kind *kind, struct policy *p, uint32_t places, uint64_t key, unsigned *left)
{
	uint64_t out[POLICY_EVICTS];
	unsigned n = 0;
	bool hit = kind->hit(p, key);

	if (!hit) {
		if (kind->count(p) == places)
			n = kind->evict(p, out);
		kind->insert(p, key);
	}
	if (left)
		*left = n;
	return hit;
}
