/*
 * ahead.h - reading what an acquire will need from the store.
 */
#ifndef GAIA_PAGECACHE_AHEAD_H
#define GAIA_PAGECACHE_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "pagecache/segments.h"

struct batch;
struct chunk;
struct replica;

#define AHEAD_CHUNKS 4u /* chunks that are read, at most, beyond the one at work */
/* For one acquire: of pages @asked of the chunks of reps[0..n). */
struct ahead {
	struct replica **reps;
	uint64_t n;
	struct segments asked;
	bool write;
	uint64_t next; /* the first chunk whose reads were not begun */
	struct batch *batch[AHEAD_CHUNKS]; /* for chunk k at k % AHEAD_CHUNKS */
};
void ahead_init(struct ahead *ah, struct replica **reps, uint64_t n, struct segments asked, bool write);
/* Chunk k is at work: begin to read those after it. file->range is held from here to ahead_drain(). */
void ahead_go_on(struct ahead *ah, uint64_t k);
/* It is chunk k's turn: what was read of it is put into home, and all of it unlocked. What could not be read stays absent. */
void ahead_arrived(struct ahead *ah, uint64_t k);
/* The same for all chunks. */
void ahead_drain(struct ahead *ah);
/* Chunk k, whose turn has not come, is being read. */
bool ahead_is_under_way(const struct ahead *ah, uint64_t k);
/* Whether neither home nor a device has page @i, which the file has. chunk->lock is held. */
bool page_is_only_stored(struct chunk *ch, unsigned i);

#endif
