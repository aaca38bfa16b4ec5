/*
 * ahead.c - reading what an acquire will need from the store before it is needed.
 *
 * An acquire works chunk by chunk. While one chunk goes to the device, the store reads the next ones: so of store and
 * device the faster never waits for the slower longer than necessary, and the store has a queue of reads
 * from which it can choose.
 *
 * Pages under way are locked. They lie after those that the acquire works on, so they are locked by trying only,
 * and while the acquire has them it never waits for another page's lock: before that it waits for their reads, and unlocks them.
 */
#include <stdlib.h>

#include "pagecache/ahead.h"

#include "base/bits.h"
#include "base/util.h"
#include "consistency/track.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/home.h"
#include "pagecache/passthrough.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/segments.h"
#include "pagecache/state.h"

/* One acquire may have this part of home under way at most. */
#define AHEAD_SHARE 16u

/* One chunk's pages under way. */
struct batch {
	uint64_t nth; /* of the acquire's chunks */
	struct fills fills;
	uint64_t locked[GAIA_CHUNK_PAGES / 64];
};

void ahead_init(struct ahead *ah, struct replica **reps, uint64_t n, struct segments asked, bool write)
{
	*ah = (struct ahead){ .reps = reps, .n = n, .asked = asked, .write = write };
}

bool page_is_only_stored(struct chunk *ch, unsigned i)
{
	if (page_present(ch, i) || page_ahead(ch, i) || page_limit(ch, i) == 0)
		return false;
	/* If a device has the page it sends it. */
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (replica_is_home(ch->replica[k], i))
			return false;
	return true;
}

/* Whether page i will have to be read from the store, as far as that is known. chunk->lock is held. */
static bool will_be_read(struct replica *rep, unsigned i, bool write)
{
	enum track_step step;

	if (!page_is_only_stored(rep->chunk, i))
		return false;
	step = replica_step(rep, i, write);
	return step == TRACK_SEND || step == TRACK_PULL;
}

/* NULL: there is nothing to read of it. */
static struct batch *batch_begin(const struct ahead *ah, uint64_t k)
{
	struct batch *bt = xcalloc(1, sizeof(*bt));
	struct chunk *ch = ah->reps[k]->chunk;
	unsigned a, b;

	bt->nth = k;
	bt->fills = (struct fills)FILLS(bt->fills, true);
	pthread_mutex_lock(&ch->lock);
	SEGMENTS_FOREACH(s, segments_of_chunk(ah->asked, ch->index)) {
		segment_in_chunk(s, ch->index, &a, &b);
		for (unsigned i = a; i < b; i++)
			if (will_be_read(ah->reps[k], i, ah->write) && page_trylock(ch, i))
				bit_set(bt->locked, i);
	}
	pthread_mutex_unlock(&ch->lock);
	if (bits_first(bt->locked, 0, GAIA_CHUNK_PAGES) == GAIA_CHUNK_PAGES) {
		free(bt);
		return NULL;
	}
	/* A page that cannot be read now is tried again at its turn. */
	(void)home_fill_begin(&bt->fills, ch, 0, GAIA_CHUNK_PAGES, bt->locked);
	return bt;
}

static void batch_end(const struct ahead *ah, uint64_t k, struct batch *bt)
{
	struct chunk *ch = ah->reps[k]->chunk;

	(void)home_fill_end(&bt->fills);
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		if (bit_test(bt->locked, i))
			pages_unlock(ch, i, i + 1);
	pthread_mutex_unlock(&ch->lock);
	/* Its pages may be unlocked before its turn: then it should be the last chunk to leave. */
	atomic_store_explicit(&ch->referenced, true, memory_order_relaxed);
	chunk_account(ch);
	free(bt);
}

/* How many chunks may be under way: their pages cannot leave home meanwhile, and other acquires have such pages, too. */
static unsigned how_far(const struct ahead *ah)
{
	const struct frames *fr = &ah->reps[0]->chunk->file->cache->frames;
	uint64_t budget = fr->budget;

	/* What is needed now has gone beyond the budget already. */
	if (atomic_load(&fr->used) > budget)
		return 0;
	return (unsigned)MIN((uint64_t)AHEAD_CHUNKS, budget / AHEAD_SHARE / GAIA_CHUNK_PAGES);
}

void ahead_go_on(struct ahead *ah, uint64_t k)
{
	/* What is read now would be read once more, to compare. */
	if (passthrough_compares(ah->reps[k]->chunk->file))
		return;
	ah->next = MAX(ah->next, k + 1);
	for (; ah->next < ah->n && ah->next <= k + how_far(ah); ah->next++) {
		bug_on(ah->batch[ah->next % AHEAD_CHUNKS]);
		ah->batch[ah->next % AHEAD_CHUNKS] = batch_begin(ah, ah->next);
	}
}

bool ahead_is_under_way(const struct ahead *ah, uint64_t k)
{
	const struct batch *bt = ah->batch[k % AHEAD_CHUNKS];

	return bt && bt->nth == k;
}

void ahead_arrived(struct ahead *ah, uint64_t k)
{
	struct batch **bt = &ah->batch[k % AHEAD_CHUNKS];

	if (!ahead_is_under_way(ah, k))
		return;
	batch_end(ah, k, *bt);
	*bt = NULL;
}

void ahead_drain(struct ahead *ah)
{
	/* Those of the last AHEAD_CHUNKS chunks that have not arrived. */
	for (uint64_t k = ah->next > AHEAD_CHUNKS ? ah->next - AHEAD_CHUNKS : 0; k < ah->next; k++)
		ahead_arrived(ah, k);
}
