/*
 * scrub.c - what the memory that clients map may show.
 *
 * A client maps whole chunks, of which it acquires pages. So a chunk is made ready before it is handed over (handover.c): each page of
 * it is current or zeros. And what is removed from the file later, or was stored by a client and never released, becomes
 * zeros wherever somebody maps it, before the call that removes it returns; pages that are held become zeros when nobody
 * holds them any more. The marks that say what memory contains are in state.c.
 */
#include <stdlib.h>

#include "pagecache/scrub.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/fetch.h"
#include "pagecache/grant.h"
#include "pagecache/replica.h"
#include "pagecache/state.h"

bool replica_is_mapped(const struct replica *rep)
{
	const struct grant *g;

	if (rep->spoiled)
		return true;
	LIST_FOREACH(g, &rep->grants, of_replica)
		if (g->delivered || g->offered || g->in_delivery || g->unanswered || g->lookers > 0)
			return true; /* g->lookers: also one that is being asked for it, and still maps it */
	return false;
}

/* Fetch what was released of pages that nobody holds any more: it is in the same memory as what was removed of them. */
static void fetch_removed(struct replica *rep, unsigned a, unsigned b, const uint64_t *held)
{
	struct chunk *ch = rep->chunk;

	for (unsigned i = a; i < b; i++) {
		unsigned flags = rep->page[i].flags;

		if (!(flags & REPLICA_REMOVED) || !(flags & REPLICA_AHEAD) || bit_test(held, i))
			continue;
		pthread_mutex_unlock(&ch->lock);
		(void)fetch_pages(ch, i, i + 1);
		pthread_mutex_lock(&ch->lock);
	}
}

/* Zero some pages of the chunk's memory on a device. Drops the lock meanwhile. */
static int zero_memory(struct chunk *ch, struct cache_device *dev, struct devmem *mem, unsigned a, unsigned b, const uint64_t *pages)
{
	struct dev_run *runs = xmalloc((b - a) * sizeof(*runs));
	struct dev_op op = { .kind = DEV_ZERO, .runs = runs };
	unsigned n_pages = 0;
	int err;

	FOR_RUNS(pages, a, b, i, j) {
		runs[op.n++] = (struct dev_run){ .mem = mem, .page = i, .npages = j - i };
		n_pages += j - i;
	}
	/* The pages' locks keep the memory. */
	pthread_mutex_unlock(&ch->lock);
	err = cache_device_run(dev, &op);
	pthread_mutex_lock(&ch->lock);
	free(runs);
	if (!err)
		count(CTR_device_zeroed, n_pages);
	return err;
}

static void zeroed(struct replica *rep, unsigned a, unsigned b, const uint64_t *pages)
{
	for (unsigned i = a; i < b; i++)
		if (bit_test(pages, i))
			replica_zeroed(rep, i);
}

/* Which pages of [a, b) must become zeros, if any: how many. @all: also what is old. Those from @end on are beyond the end of the file. */
static unsigned to_zero(struct replica *rep, unsigned a, unsigned b, unsigned end, bool all, const uint64_t *held, uint64_t *pages)
{
	unsigned n = 0;

	for (unsigned i = a; i < b; i++) {
		/* What the index says is current has nothing old in it. */
		if (i < end)
			i = bits_first(rep->stale, i, MIN(b, end));
		if (i == b)
			break;
		if (!replica_to_zero(rep, i, bit_test(held, i), all, i < end))
			continue;
		bit_set(pages, i);
		n++;
	}
	return n;
}

void replica_scrub(struct replica *rep, unsigned a, unsigned b, bool fetch)
{
	uint64_t held[GAIA_CHUNK_PAGES / 64] = { 0 }, pages[GAIA_CHUNK_PAGES / 64] = { 0 };

	if (!replica_hides_any(rep, a, b) || !replica_is_mapped(rep) || fault_point("break.no_scrub"))
		return;
	replica_held(rep, a, b, held);
	if (fetch)
		fetch_removed(rep, a, b, held);
	if (to_zero(rep, a, b, GAIA_CHUNK_PAGES, false, held, pages) == 0)
		return;
	/* A device that is gone, or fails, holds nobody up: its memory stays marked, to be zeroed before it is handed to anybody. */
	if (!zero_memory(rep->chunk, rep->dev, rep->mem, a, b, pages))
		zeroed(rep, a, b, pages);
}

/* ---- before chunks are handed over ---- */

void replica_find_old(struct replica *rep, unsigned end, uint64_t *pages)
{
	uint64_t held[GAIA_CHUNK_PAGES / 64] = { 0 };

	if (!replica_is_mapped(rep) || fault_point("break.no_scrub"))
		return;
	replica_held(rep, 0, GAIA_CHUNK_PAGES, held);
	(void)to_zero(rep, 0, GAIA_CHUNK_PAGES, end, true, held, pages);
}

int replicas_zero(const struct to_show *show, unsigned n)
{
	struct dev_op op = { .kind = DEV_ZERO };
	struct dev_run *runs;
	unsigned n_pages = 0;
	int err;

	for (unsigned k = 0; k < n; k++)
		n_pages += bits_count(show[k].old, GAIA_CHUNK_PAGES / 64);
	if (n_pages == 0)
		return 0;
	op.runs = runs = xmalloc(n_pages * sizeof(*runs));
	for (unsigned k = 0; k < n; k++)
		FOR_RUNS(show[k].old, 0, GAIA_CHUNK_PAGES, i, j)
			runs[op.n++] = (struct dev_run){ .mem = show[k].rep->mem, .page = i, .npages = j - i };
	err = cache_device_run(show[0].rep->dev, &op);
	free(runs);
	if (err)
		return err;
	count(CTR_device_zeroed, n_pages);
	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = show[k].rep->chunk;

		pthread_mutex_lock(&ch->lock);
		zeroed(show[k].rep, 0, GAIA_CHUNK_PAGES, show[k].old);
		pthread_mutex_unlock(&ch->lock);
	}
	return 0;
}

/* ---- after something was removed ---- */

static void scrub_old(struct chunk *ch, unsigned a, unsigned b)
{
	uint64_t pages[GAIA_CHUNK_PAGES / 64] = { 0 };

	for (unsigned i = a; i < b; i++)
		bit_set(pages, i);
	for (struct old_memory *old = a < b ? ch->old : NULL; old; old = old->next)
		(void)zero_memory(ch, old->dev, old->mem, a, b, pages);
}

void chunk_scrub(struct chunk *ch, unsigned a, unsigned b)
{
	struct replica *list[CACHE_MAX_REPLICAS];
	unsigned n = ch->n_replicas;

	for (unsigned k = 0; k < n; k++)
		list[k] = ch->replica[k];
	for (unsigned k = 0; k < n; k++)
		replica_scrub(list[k], a, b, true);
	scrub_old(ch, a, b);
}

bool chunk_is_mapped(const struct chunk *ch)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (replica_is_mapped(ch->replica[k]))
			return true;
	return ch->old != NULL;
}
