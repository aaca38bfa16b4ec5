/*
 * acquire.h - acquires, and those that were announced.
 */
#ifndef GAIA_PAGECACHE_ACQUIRE_H
#define GAIA_PAGECACHE_ACQUIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gaia_list_range;
struct mapping;

/* -EINVAL: one of the ranges does not lie in the mapping. */
int ranges_check(const struct mapping *m, const struct gaia_list_range *range, size_t n);
/* Take back @n holds of pages [a, b), which an acquire that has failed had added; @untold: see grant_unhold(). No lock is held. */
void mapping_unhold(struct mapping *m, uint64_t a, uint64_t b, unsigned n, bool write, bool untold);

#endif
