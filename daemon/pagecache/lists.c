/* lists.c - the cache's lists of chunks: those with frames, with dirty pages, with releases, and those without frames. */
#include <stdlib.h>

#include "base/util.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/root.h"
#include "pagecache/state.h"

void chunk_arrive(struct chunk *ch, unsigned lists)
{
	struct cache *c = ch->file->cache;
	struct chunk *first;

	lists &= ~atomic_load(&ch->lists);
	if (!lists)
		return;
	atomic_fetch_or(&ch->lists, lists);
	if (lists & CHUNK_DIRTY)
		ch->dirty_since = now_ns();
	if (lists & CHUNK_AHEAD)
		ch->ahead_since = now_ns();
	pthread_mutex_lock(&ch->file->lock);
	ch->refs += (unsigned)__builtin_popcount(lists);
	pthread_mutex_unlock(&ch->file->lock);
	if (atomic_fetch_or(&ch->arriving, lists))
		return; /* it is among the arrivals already */
	first = atomic_load(&c->arrivals);
	do
		ch->next_arrival = first;
	while (!atomic_compare_exchange_weak(&c->arrivals, &first, ch));
}

void lists_lock(struct cache *c)
{
	struct chunk *ch, *next, *first = NULL;

	pthread_mutex_lock(&c->lock);
	for (ch = atomic_exchange(&c->arrivals, NULL); ch; ch = next) {
		next = ch->next_arrival;
		ch->next_arrival = first;
		first = ch;
	}
	for (ch = first; ch; ch = next) {
		unsigned lists;

		next = ch->next_arrival;
		/* From here on it may arrive again. */
		lists = atomic_exchange(&ch->arriving, 0);
		if (lists & CHUNK_LRU) {
			TAILQ_INSERT_TAIL(&c->lru, ch, lru);
			c->n_lru++;
		}
		if (lists & CHUNK_DIRTY)
			TAILQ_INSERT_TAIL(&c->dirty, ch, dirty);
		if (lists & CHUNK_EMPTIED)
			TAILQ_INSERT_TAIL(&c->emptied, ch, emptied);
		if (lists & CHUNK_AHEAD)
			TAILQ_INSERT_TAIL(&c->ahead, ch, ahead);
	}
}

void chunk_leave_lru(struct chunk *ch)
{
	struct cache *c = ch->file->cache;

	TAILQ_REMOVE(&c->lru, ch, lru);
	c->n_lru--;
	atomic_fetch_and(&ch->lists, ~CHUNK_LRU);
}

/* The same for the other lists. */
static void chunk_leave_dirty(struct chunk *ch)
{
	TAILQ_REMOVE(&ch->file->cache->dirty, ch, dirty);
	atomic_fetch_and(&ch->lists, ~CHUNK_DIRTY);
}

static void chunk_leave_emptied(struct chunk *ch)
{
	TAILQ_REMOVE(&ch->file->cache->emptied, ch, emptied);
	atomic_fetch_and(&ch->lists, ~CHUNK_EMPTIED);
}

static void chunk_leave_ahead(struct chunk *ch)
{
	TAILQ_REMOVE(&ch->file->cache->ahead, ch, ahead);
	atomic_fetch_and(&ch->lists, ~CHUNK_AHEAD);
}

void chunk_account(struct chunk *ch)
{
	/* A thread that takes a chunk off a list either sees, under its lock, that it need not be there, or calls this afterwards. */
	pthread_mutex_lock(&ch->lock);
	if (ch->n_frames == 0)
		chunk_trim_leaves(ch);
	chunk_arrive(ch, (ch->n_frames ? CHUNK_LRU : 0) | (ch->n_dirty ? CHUNK_DIRTY : 0) | (ch->n_ahead ? CHUNK_AHEAD : 0));
	pthread_mutex_unlock(&ch->lock);
}

void chunk_unlist(struct chunk *ch)
{
	struct cache *c = ch->file->cache;
	unsigned before, drop;

	/* The lock keeps it from arriving again. */
	pthread_mutex_lock(&ch->lock);
	chunk_trim_leaves(ch);
	lists_lock(c);
	before = ch->lists;
	if ((before & CHUNK_LRU) && ch->n_frames == 0)
		chunk_leave_lru(ch);
	if ((before & CHUNK_DIRTY) && ch->n_dirty == 0)
		chunk_leave_dirty(ch);
	if ((before & CHUNK_AHEAD) && ch->n_ahead == 0)
		chunk_leave_ahead(ch);
	if (before & CHUNK_EMPTIED)
		chunk_leave_emptied(ch);
	drop = (unsigned)__builtin_popcount(before & ~ch->lists);
	pthread_mutex_unlock(&c->lock);
	pthread_mutex_unlock(&ch->lock);
	while (drop-- > 0)
		chunk_put(ch);
}

struct chunk *chunk_due(struct cache *c, uint64_t age_ns)
{
	struct chunk *ch;

	lists_lock(c);
	ch = TAILQ_FIRST(&c->dirty);
	if (ch && now_ns() - ch->dirty_since >= age_ns)
		chunk_leave_dirty(ch);
	else
		ch = NULL;
	pthread_mutex_unlock(&c->lock);
	return ch;
}

/* Other files' chunks may lie between those of one file: so many are looked at for each that is wanted. */
#define DUE_LOOKS 4u

unsigned chunks_due_ahead(struct cache *c, uint64_t age_ns, uint64_t at_ns, struct chunk **list, unsigned most)
{
	struct chunk *ch, *next;
	unsigned n = 0, looked = 0;

	lists_lock(c);
	for (ch = TAILQ_FIRST(&c->ahead); ch && ch->ahead_since + age_ns <= at_ns && n < most && looked < DUE_LOOKS * most; ch = next) {
		next = TAILQ_NEXT(ch, ahead);
		looked += n > 0;
		if (n > 0 ? ch->file != list[0]->file : ch->file->put_off == at_ns)
			continue;
		chunk_leave_ahead(ch);
		list[n++] = ch;
	}
	pthread_mutex_unlock(&c->lock);
	return n;
}

bool chunk_back_ahead(struct chunk *ch)
{
	struct cache *c = ch->file->cache;
	bool back;

	/* The lock keeps it from arriving. */
	pthread_mutex_lock(&ch->lock);
	lists_lock(c);
	back = ch->n_ahead > 0 && !(ch->lists & CHUNK_AHEAD);
	if (back) {
		TAILQ_INSERT_HEAD(&c->ahead, ch, ahead);
		atomic_fetch_or(&ch->lists, CHUNK_AHEAD);
	}
	pthread_mutex_unlock(&c->lock);
	pthread_mutex_unlock(&ch->lock);
	return back;
}

void emptied_reap(struct cache *c)
{
	struct chunk *ch;

	for (;;) {
		lists_lock(c);
		ch = TAILQ_FIRST(&c->emptied);
		if (ch)
			chunk_leave_emptied(ch);
		pthread_mutex_unlock(&c->lock);
		if (!ch)
			return;
		chunk_unlist(ch);
		chunk_put(ch);
	}
}
