/*
 * pins.h - acquires that were announced (GAIA_PROT_PIN). No lock is held.
 */
#ifndef GAIA_PAGECACHE_PINS_H
#define GAIA_PAGECACHE_PINS_H

#include <stdint.h>

#include "pagecache/range.h"

struct grant;
struct mapping;
struct pin;

/* The chunks are counted in their grants. -EAGAIN: the mapping has too many acquires to come, or this one too many parts. */
int pin_note(struct mapping *m, struct page_span span, uint64_t first, uint64_t n, struct grant **beyond, unsigned n_beyond);
/* Take the oldest pin of this range, which becomes the caller's; NULL: there is none. */
struct pin *pin_take(struct mapping *m, struct page_span span);
/* The acquire has failed: it may come again. */
void pin_put_back(struct mapping *m, struct pin *pin);
/* The acquire has come, or will not: its chunks, and no others, need not stay any more. */
void pin_end(struct mapping *m, struct pin *pin);
/* The mapping ends, and with it all announced acquires. */
void pins_drop(struct mapping *m);

#endif
