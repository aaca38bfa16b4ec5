/*
 * ghosts.h - keys that left a cache not long ago.
 *
 * Whether a key comes again soon after it left is what tells a page of a working set from one of a scan. A key is a ghost until as many
 * others have become ghosts after it as the table was made for. Four bytes a ghost: keys are remembered by 19 bits of their hash, in
 * sets of four, and ages in steps of a 256th of that number. So the answer can be wrong: another key is taken for it once in
 * 100,000 times, and a set that got more than its share has forgotten its oldest.
 *
 * Pure, and for one thread at a time, as policy.h.
 */
#ifndef GAIA_POLICY_GHOSTS_H
#define GAIA_POLICY_GHOSTS_H

#include <stdbool.h>
#include <stdint.h>

struct ghosts;

/* NULL: no memory. @most: 1 to 2^32. */
struct ghosts *ghosts_create(uint64_t most);
void ghosts_destroy(struct ghosts *g);
/* The key has left. */
void ghosts_add(struct ghosts *g, uint64_t key);
/* Whether the key is a ghost; it is none afterwards. */
bool ghosts_take(struct ghosts *g, uint64_t key);

#endif
