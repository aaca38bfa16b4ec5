/*
 * ahead.c - what an acquire will need from the store, on its way before it is its turn.
 *
 * An acquire works chunk by chunk. While one goes to the device, the store reads the next ones: the device never
 * waits for the store if the store is the faster, nor the store for the device if that is, and the store has a queue
 * from which it can choose.
 *
 * Pages under way are locked. They lie after those that the acquire works on, so they are locked by trying only,
 * and it never waits for another page's lock while it has them: it waits for them to come, and lets them go, first.
 */
#include <stdlib.h>

#include "pagecache/state.h"

/* One acquire has at most one of so many parts of home under way. */
#define AHEAD_SHARE 16u

/* One chunk's pages under way. */
struct batch {
	struct fills fills;
	uint64_t locked[GAIA_CHUNK_PAGES / 64];
};

void ahead_init(struct ahead *ah, struct replica **reps, uint64_t n, struct page_span span, bool write)
{
	*ah = (struct ahead){ .reps = reps, .n = n, .span = span, .write = write };
}

/* chunk->lock held. Whether page i will have to be read from the store, as far as can be told. */
static bool will_be_read(struct replica *rep, unsigned i, bool write)
{
	struct chunk *ch = rep->chunk;
	enum track_step step;

	if (page_present(ch, i) || page_ahead(ch, i) || page_limit(ch, i) == 0)
		return false;
	step = replica_step(rep, i, write);
	if (step != TRACK_SEND && step != TRACK_PULL)
		return false;
	/* A device that has it sends it. */
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (replica_is_home(ch->replica[k], i))
			return false;
	return true;
}

/* Chunk k's pages that are asked for: [*a, *b). */
static void pages_of(const struct ahead *ah, uint64_t k, unsigned *a, unsigned *b)
{
	uint64_t start = ah->reps[k]->chunk->index * GAIA_CHUNK_PAGES;

	*a = (unsigned)(MAX(ah->span.a, start) - start);
	*b = (unsigned)(MIN(ah->span.b, start + GAIA_CHUNK_PAGES) - start);
}

static struct batch *batch_begin(const struct ahead *ah, uint64_t k)
{
	struct batch *bt = xcalloc(1, sizeof(*bt));
	struct chunk *ch = ah->reps[k]->chunk;
	unsigned a, b, j;

	bt->fills = (struct fills)FILLS(bt->fills, true);
	pages_of(ah, k, &a, &b);
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b; i++)
		if (will_be_read(ah->reps[k], i, ah->write) && page_trylock(ch, i))
			bit_set(bt->locked, i);
	pthread_mutex_unlock(&ch->lock);
	/* What cannot be read now is tried again at its turn. */
	for (unsigned i = a; i < b; i = j) {
		j = i + 1;
		if (!bit_test(bt->locked, i))
			continue;
		while (j < b && bit_test(bt->locked, j))
			j++;
		if (home_fill_begin(&bt->fills, ch, i, j))
			break;
	}
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
	/* It may be let go before its turn: it is the last one that should leave. */
	atomic_store_explicit(&ch->referenced, true, memory_order_relaxed);
	chunk_account(ch);
	free(bt);
}

/* Chunks that may be under way: their pages cannot leave home meanwhile, and other acquires have such, too. */
static unsigned how_far(const struct ahead *ah)
{
	const struct frames *fr = &ah->reps[0]->chunk->file->cache->frames;
	uint64_t budget = fr->budget;

	/* What is needed now has gone beyond it already. */
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
	for (; ah->next < ah->n && ah->next <= k + how_far(ah); ah->next++)
		ah->batch[ah->next % AHEAD_CHUNKS] = batch_begin(ah, ah->next);
}

void ahead_arrived(struct ahead *ah, uint64_t k)
{
	struct batch **bt = &ah->batch[k % AHEAD_CHUNKS];

	if (*bt)
		batch_end(ah, k, *bt);
	*bt = NULL;
}

void ahead_drain(struct ahead *ah)
{
	/* What of the last AHEAD_CHUNKS has not arrived. */
	for (uint64_t k = ah->next > AHEAD_CHUNKS ? ah->next - AHEAD_CHUNKS : 0; k < ah->next; k++)
		ahead_arrived(ah, k);
}
