/*
 * grant.c - what mappings hold.
 *
 * A mapping's holds are spans (holds.h). Holds in a chunk that it has a grant of are counted, for each page, in the chunk's
 * replica; others are wanted (mapping.wanted). The mapping's lock guards the spans. Those of a chunk are changed under that chunk's
 * lock, too, and those of pages that are held for writing under the page locks: so a thread that has locked such a page may rely on
 * what it saw.
 */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/grant.h"

#include "base/bits.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/holds.h"
#include "pagecache/mapping.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/scrub.h"
#include "pagecache/segments.h"
#include "pagecache/state.h"
#include "pagecache/users.h"

struct grant *grant_get(struct mapping *m, struct replica *rep)
{
	uint64_t index = rep->chunk->index;
	struct grant *g;

	pthread_mutex_lock(&rep->chunk->lock);
	pthread_mutex_lock(&m->lock);
	HASH_FIND(hh, m->grants, &index, sizeof(index), g);
	pthread_mutex_unlock(&m->lock);
	if (!g) {
		/* The others have one more to ask from now on. */
		chunk_unready(rep->chunk);
		g = xcalloc(1, sizeof(*g));
		g->mapping = m;
		g->replica = rep;
		g->index = index;
		LIST_INSERT_HEAD(&rep->grants, g, of_replica);
		if (m->prot & GAIA_PROT_WRITE)
			replica_granted(rep, m->unarmed);
		pthread_mutex_lock(&m->lock);
		HASH_ADD(hh, m->grants, index, sizeof(g->index), g);
		atomic_store_explicit(&m->n_grants, HASH_COUNT(m->grants), memory_order_relaxed);
		pthread_mutex_unlock(&m->lock);
	}
	pthread_mutex_unlock(&rep->chunk->lock);
	return g;
}

void mapping_grant_ends(struct mapping *m, struct grant *g)
{
	HASH_DEL(m->grants, g);
	atomic_store_explicit(&m->n_grants, HASH_COUNT(m->grants), memory_order_relaxed);
}

/* ---- how many spans there may be ---- */

#define SPANS_BLOCK 64u /* a mapping may have so many; for each further block of so many the host is asked */

/* Ask for room for @more spans. mapping->lock is held. */
static int spans_ask(struct mapping *m, uint64_t more)
{
	const struct cache_host *host = &m->file->cache->host;
	uint64_t blocks = (m->holds.spans + m->wanted.spans + m->spans_to_come + more) / SPANS_BLOCK;

	if (!host->spans || m->span_blocks >= blocks)
		return 0;
	if (blocks > INT_MAX || host->spans(m->client, (int)(blocks - m->span_blocks)))
		return -ENOSR;
	m->span_blocks = (unsigned)blocks;
	return 0;
}

/* One block is kept: the next acquire may want it again. */
void spans_give(struct mapping *m)
{
	uint64_t spans = m->holds.spans + m->wanted.spans + m->spans_to_come;
	uint64_t blocks = spans > 0 ? spans / SPANS_BLOCK + 1 : 0;

	if (m->span_blocks <= blocks)
		return;
	m->file->cache->host.spans(m->client, -(int)(m->span_blocks - blocks));
	m->span_blocks = (unsigned)blocks;
}

static bool cuts(const struct holds *hs, uint64_t at)
{
	const struct hold *h = holds_first(hs, at, at + 1);

	return h && h->a < at;
}

#define SEGMENTS_AT_ONCE 256u /* looked at with the mapping's lock */
#define SPANS_MOMENTARY 2u /* a chunk's border may cut spans until the next chunk is released, too */

int spans_keep(struct mapping *m, uint64_t more)
{
	int err;

	if (more == 0)
		return 0;
	pthread_mutex_lock(&m->lock);
	err = spans_ask(m, more);
	if (!err)
		m->spans_to_come += more;
	pthread_mutex_unlock(&m->lock);
	return err;
}

int spans_room(struct mapping *m, struct segments segs, uint64_t *more)
{
	unsigned looked_at = 0;
	int err = 0;

	*more = 0;
	pthread_mutex_lock(&m->lock);
	SEGMENTS_FOREACH(s, segs) {
		*more += cuts(&m->holds, s->a) + cuts(&m->holds, s->b) + cuts(&m->wanted, s->a) + cuts(&m->wanted, s->b);
		if (++looked_at % SEGMENTS_AT_ONCE > 0)
			continue;
		/* Others' turn: a mapping that shares a chunk may need the lock to see what is held there. */
		pthread_mutex_unlock(&m->lock);
		sched_yield();
		pthread_mutex_lock(&m->lock);
	}
	if (*more > 0) {
		*more += SPANS_MOMENTARY;
		err = spans_ask(m, *more);
	}
	if (!err)
		m->spans_to_come += *more;
	pthread_mutex_unlock(&m->lock);
	return err;
}

void spans_room_end(struct mapping *m, uint64_t more)
{
	if (more == 0)
		return;
	pthread_mutex_lock(&m->lock);
	m->spans_to_come -= more;
	spans_give(m);
	pthread_mutex_unlock(&m->lock);
}

/* mapping->lock is held. There may be a gap between any two spans of the range, and each becomes a span. */
static int add(struct mapping *m, struct holds *hs, uint64_t a, uint64_t b, unsigned n, unsigned writes)
{
	const struct hold *h;
	uint64_t more = 3;
	int err;

	HOLDS_FOREACH(h, hs, a, b)
		more++;
	err = spans_ask(m, more);
	if (!err)
		err = holds_add(hs, a, b, n, writes);
	spans_give(m);
	return err;
}

void mapping_holds_nothing(struct mapping *m)
{
	bug_on(m->spans_to_come > 0 || m->holds.spans > 0 || m->ready[READY_TO_READ].spans > 0 || m->ready[READY_TO_WRITE].spans > 0 || m->n_sharers > 0);
	pthread_mutex_lock(&m->lock);
	holds_clear(&m->wanted);
	spans_give(m);
	pthread_mutex_unlock(&m->lock);
}

/* ---- holds of a chunk's pages ---- */

static uint64_t start_of(const struct grant *g)
{
	return g->index * GAIA_CHUNK_PAGES;
}

/* Those of pages [a, b) that lie in the span. */
static void mark(const struct grant *g, const struct hold *h, unsigned a, unsigned b, uint64_t *bits)
{
	uint64_t start = start_of(g);

	bits_set(bits, (unsigned)(MAX(h->a, start + a) - start), (unsigned)(MIN(h->b, start + b) - start));
}

void grant_held(const struct grant *g, unsigned a, unsigned b, enum held_as what, uint64_t *bits)
{
	struct mapping *m = g->mapping;
	const struct hold *h;

	pthread_mutex_lock(&m->lock);
	HOLDS_FOREACH(h, &m->holds, start_of(g) + a, start_of(g) + b)
		if (what == HELD || (what == HELD_WRITING ? h->writes > 0 : h->over && h->n > h->coming))
			mark(g, h, a, b, bits);
	pthread_mutex_unlock(&m->lock);
}

void grant_held_at_most(const struct grant *g, unsigned a, unsigned b, unsigned n, uint64_t *bits)
{
	struct mapping *m = g->mapping;
	const struct hold *h;

	pthread_mutex_lock(&m->lock);
	HOLDS_FOREACH(h, &m->holds, start_of(g) + a, start_of(g) + b)
		if (h->n <= n && h->coming == 0)
			mark(g, h, a, b, bits);
	pthread_mutex_unlock(&m->lock);
}

void replica_held(struct replica *rep, unsigned a, unsigned b, uint64_t *bits)
{
	const struct grant *g;

	LIST_FOREACH(g, &rep->grants, of_replica)
		if (g->pinned)
			grant_held(g, a, b, HELD, bits);
}

void grant_repin(struct grant *g)
{
	struct mapping *m = g->mapping;
	bool any = g->to_come > 0;

	pthread_mutex_lock(&m->lock);
	any |= !g->ready && holds_first(&m->holds, start_of(g), start_of(g) + GAIA_CHUNK_PAGES) != NULL;
	pthread_mutex_unlock(&m->lock);
	if (any == g->pinned)
		return;
	g->pinned = any;
	if (any) {
		bug_on(!replica_pin(g->replica));
		user_pin(g->mapping, g->replica);
	} else {
		user_unpin(g->mapping, g->replica);
		replica_unpin(g->replica);
	}
}

/* Pages of [a, b) that are held for writing by now are counted. Those from @beyond on lie beyond the end of the file. */
static void count_writing(struct grant *g, unsigned a, unsigned b, unsigned beyond)
{
	uint64_t writing[GAIA_CHUNK_PAGES / 64] = { 0 };

	grant_held(g, a, b, HELD_WRITING, writing);
	for (unsigned w = a / 64; w * 64 < b; w++) {
		uint64_t more = writing[w] & ~g->counted[w] & bits_within(w, a, b);

		g->counted[w] |= more;
		for (unsigned i; more; more &= more - 1) {
			i = w * 64 + (unsigned)__builtin_ctzll(more);
			replica_hold(g->replica, i, i >= beyond, g->mapping->detects);
		}
	}
}

/* Of the pages [a, b) of word @w those that are counted, though not held for writing any more: they are not counted now. */
static uint64_t count_less(struct grant *g, unsigned w, unsigned a, unsigned b, const uint64_t *writing)
{
	uint64_t less = g->counted[w] & ~writing[w] & bits_within(w, a, b);

	g->counted[w] &= ~less;
	return less;
}

/* Holds for writing that are not there any more are dropped from the replica; @untold: nobody was told that he had them. */
static void drop_ended(struct grant *g, unsigned a, unsigned b, bool untold)
{
	uint64_t writing[GAIA_CHUNK_PAGES / 64] = { 0 };

	grant_held(g, a, b, HELD_WRITING, writing);
	for (unsigned w = a / 64; w * 64 < b; w++) {
		uint64_t less = count_less(g, w, a, b, writing);

		for (; less; less &= less - 1) {
			unsigned i = w * 64 + (unsigned)__builtin_ctzll(less);

			if (untold)
				replica_undo_hold(g->replica, i);
			else
				replica_drop_hold(g->replica, i);
		}
	}
	grant_repin(g);
}

void grant_catch_up(struct grant *g)
{
	count_writing(g, 0, GAIA_CHUNK_PAGES, GAIA_CHUNK_PAGES);
	drop_ended(g, 0, GAIA_CHUNK_PAGES, false);
}

int grant_hold(struct grant *g, unsigned a, unsigned b, unsigned beyond, unsigned n, unsigned writes)
{
	struct mapping *m = g->mapping;
	int err;

	pthread_mutex_lock(&m->lock);
	err = add(m, &m->holds, start_of(g) + a, start_of(g) + b, n, writes);
	pthread_mutex_unlock(&m->lock);
	if (err)
		return err;
	if (writes > 0)
		count_writing(g, a, b, beyond);
	grant_repin(g);
	return 0;
}

int mapping_hold(struct mapping *m, struct page_span span, bool write)
{
	return add(m, &m->holds, span.a, span.b, 1, write);
}

void mapping_settle(struct mapping *m, const struct segment *s)
{
	if (s->a == s->b)
		return;
	pthread_mutex_lock(&m->lock);
	holds_settle(&m->holds, s->a, s->b, s->n);
	spans_give(m);
	pthread_mutex_unlock(&m->lock);
}

void mapping_settle_next(struct mapping *m, struct segment *run, const struct segment *next)
{
	if (run->b == next->a && run->n == next->n) {
		run->b = next->b;
		return;
	}
	mapping_settle(m, run);
	*run = *next;
}

static void overwrite(const struct grant *g, const uint64_t *pages, bool over)
{
	struct mapping *m = g->mapping;

	pthread_mutex_lock(&m->lock);
	FOR_RUNS(pages, 0, GAIA_CHUNK_PAGES, i, j)
		holds_overwrite(&m->holds, start_of(g) + i, start_of(g) + j, over);
	spans_give(m);
	pthread_mutex_unlock(&m->lock);
}

void grant_overwrites(struct grant *g, const uint64_t *pages)
{
	overwrite(g, pages, true);
}

void replica_overwritten(struct replica *rep, const uint64_t *pages)
{
	const struct grant *g;

	LIST_FOREACH(g, &rep->grants, of_replica)
		if (g->pinned)
			overwrite(g, pages, false);
}

void grant_unhold(struct grant *g, unsigned a, unsigned b, unsigned n, unsigned writes, bool untold)
{
	struct mapping *m = g->mapping;

	pthread_mutex_lock(&m->lock);
	holds_undo(&m->holds, start_of(g) + a, start_of(g) + b, n, writes);
	spans_give(m);
	pthread_mutex_unlock(&m->lock);
	drop_ended(g, a, b, untold);
}

void grant_released(struct grant *g, unsigned a, unsigned b, unsigned n, uint64_t *ended)
{
	uint64_t writing[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct mapping *m = g->mapping;
	const struct hold *h;

	/* In one go: an acquire that succeeds meanwhile settles its holds under this lock alone. */
	pthread_mutex_lock(&m->lock);
	holds_release(&m->holds, start_of(g) + a, start_of(g) + b, n);
	HOLDS_FOREACH(h, &m->holds, start_of(g) + a, start_of(g) + b)
		if (h->writes > 0)
			mark(g, h, a, b, writing);
	spans_give(m);
	pthread_mutex_unlock(&m->lock);
	for (unsigned w = a / 64; w * 64 < b; w++)
		ended[w] |= count_less(g, w, a, b, writing);
	grant_repin(g);
}

void grant_release_lost(struct grant *g, unsigned a, unsigned b, unsigned n)
{
	uint64_t ended[GAIA_CHUNK_PAGES / 64] = { 0 };

	grant_released(g, a, b, n, ended);
	for (unsigned i = a; i < b; i++)
		if (bit_test(ended, i))
			replica_drop_hold(g->replica, i);
}

/* The first pages [*a, *b) of the chunk, from *a on, that the mapping holds: false if there are none. */
static bool next_held(struct grant *g, unsigned *a, unsigned *b, bool *writing)
{
	uint64_t start = start_of(g);
	const struct hold *h;

	pthread_mutex_lock(&g->mapping->lock);
	h = holds_first(&g->mapping->holds, start + *a, start + GAIA_CHUNK_PAGES);
	if (h) {
		*a = (unsigned)(MAX(h->a, start + *a) - start);
		*b = (unsigned)(MIN(h->b, start + GAIA_CHUNK_PAGES) - start);
		*writing = h->writes > 0;
	}
	pthread_mutex_unlock(&g->mapping->lock);
	return h;
}

/* chunk->lock is held; the pages that are held for writing are locked. */
static void drop(struct grant *g, unsigned a, unsigned b)
{
	struct mapping *m = g->mapping;

	pthread_mutex_lock(&m->lock);
	holds_drop(&m->holds, start_of(g) + a, start_of(g) + b);
	spans_give(m);
	pthread_mutex_unlock(&m->lock);
	drop_ended(g, a, b, false);
}

static bool hides(const struct replica *rep, unsigned a, unsigned b)
{
	while (a < b && !replica_hides(rep, a))
		a++;
	return a < b;
}

/* chunk->lock held. Home's bytes stay as they are, and so those who store them are not waited for. */
static bool lock_to_discard(struct chunk *ch, unsigned a, unsigned b, bool wait)
{
	if (!wait)
		return pages_trylock_to_write(ch, a, b);
	(void)pages_lock_to_write(ch, a, b);
	return true;
}

void grant_discard(struct grant *g, bool wait)
{
	struct chunk *ch = g->replica->chunk;
	bool writing;
	unsigned b;

	pthread_mutex_lock(&ch->lock);
	for (unsigned a = 0; next_held(g, &a, &b, &writing); a = b) {
		/* The client's last release may be working on them. */
		bool locked = writing || hides(g->replica, a, b);

		if (locked && !lock_to_discard(ch, a, b, wait))
			continue;
		drop(g, a, b);
		if (!locked)
			continue;
		replica_scrub(g->replica, a, b, false);
		pages_unlock(ch, a, b);
	}
	g->to_come = 0;
	grant_repin(g);
	pthread_mutex_unlock(&ch->lock);
}

static bool lives(struct cache *c, struct living *known, void *client)
{
	for (unsigned k = 0; k < MIN(known->n, LIVING_KNOWN); k++)
		if (known->client[k] == client)
			return true;
	if (!c->host.alive(client))
		return false;
	known->client[known->n++ % LIVING_KNOWN] = client;
	return true;
}

/* Grants of clients that are gone, or of mappings that have ended, which hold something; they stay meanwhile. */
struct dead {
	struct grant **grant;
	unsigned n;
};

/* chunk->lock held. Whether somebody may store there, which is news. */
static bool dead_find(struct dead *dead, struct replica *rep, struct living *known)
{
	unsigned before = rep->n_suspects;
	struct grant *g;

	LIST_FOREACH(g, &rep->grants, of_replica) {
		/* A client that has unmapped it is there still, and leaves the memory to nobody. */
		bool ended = atomic_load(&g->mapping->ended);
		bool stores = !ended && !g->suspect && g->mapping->export_write &&
			      (g->delivered || g->offered || g->in_delivery || g->unanswered);

		if ((!g->pinned && !g->ready && !stores) || (!ended && lives(rep->chunk->file->cache, known, g->mapping->client)))
			continue;
		chunk_unready(rep->chunk);
		/* First: what is dropped below is not all that he may store. */
		g->suspect |= stores;
		rep->n_suspects += stores;
		if (!g->pinned)
			continue;
		grant_look(g);
		dead->grant = xrealloc(dead->grant, (dead->n + 1) * sizeof(struct grant *));
		dead->grant[dead->n++] = g;
	}
	return rep->n_suspects > before;
}

/* No lock held. */
static void dead_discard(struct dead *dead, struct chunk *ch, bool wait)
{
	if (dead->n == 0)
		return;
	for (unsigned k = 0; k < dead->n; k++)
		grant_discard(dead->grant[k], wait);
	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < dead->n; k++)
		grant_looked(dead->grant[k]);
	pthread_mutex_unlock(&ch->lock);
	free(dead->grant);
}

bool grants_drop_dead(struct replica *rep, struct living *known)
{
	struct dead dead = { .n = 0 };
	bool news;

	pthread_mutex_lock(&rep->chunk->lock);
	news = dead_find(&dead, rep, known);
	pthread_mutex_unlock(&rep->chunk->lock);
	dead_discard(&dead, rep->chunk, true);
	return news;
}

void chunk_drop_dead(struct chunk *ch, const struct cache_device *dev, struct living *known, bool wait)
{
	struct dead dead = { .n = 0 };

	pthread_mutex_lock(&ch->lock);
	/* The mappings of clients found gone end soon; what was released there is secured then, or by the next acquire. */
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (ch->replica[k]->dev == dev)
			(void)dead_find(&dead, ch->replica[k], known);
	pthread_mutex_unlock(&ch->lock);
	dead_discard(&dead, ch, wait);
}

/* ---- what is wanted of chunks that are not there yet ---- */

int wanted_add(struct mapping *m, uint64_t a, uint64_t b, unsigned n, bool write)
{
	int err;

	pthread_mutex_lock(&m->lock);
	err = add(m, &m->wanted, a, b, n, write ? n : 0);
	pthread_mutex_unlock(&m->lock);
	return err;
}

/*
 * Of the @n coming holds that an acquire has of page @at, and of those up to *end, which is @b or less: how many are wanted still. The
 * others have become holds. (Whose they are does not matter, as long as all who have some coming count so.) mapping->lock is held.
 */
static unsigned coming_wanted(struct mapping *m, uint64_t at, uint64_t b, unsigned n, uint64_t *end)
{
	const struct hold *h = holds_first(&m->wanted, at, b);

	if (!h || h->a > at) {
		*end = h ? h->a : b;
		return 0;
	}
	*end = MIN(b, h->b);
	return MIN(n, h->coming);
}

uint64_t wanted_undo(struct mapping *m, uint64_t a, uint64_t b, unsigned n, bool write, unsigned *left)
{
	unsigned there;
	uint64_t end;

	pthread_mutex_lock(&m->lock);
	there = coming_wanted(m, a, b, n, &end);
	if (there > 0) {
		holds_undo(&m->wanted, a, end, there, write ? there : 0);
		spans_give(m);
	}
	pthread_mutex_unlock(&m->lock);
	*left = n - there;
	return end;
}

void wanted_settle(struct mapping *m, uint64_t a, uint64_t b, unsigned n)
{
	unsigned there;
	uint64_t end;

	pthread_mutex_lock(&m->lock);
	for (; a < b; a = end) {
		there = coming_wanted(m, a, b, n, &end);
		if (there > 0)
			holds_settle(&m->wanted, a, end, there);
		if (there < n)
			holds_settle(&m->holds, a, end, n - there);
	}
	spans_give(m);
	pthread_mutex_unlock(&m->lock);
}

void wanted_release(struct mapping *m, uint64_t a, uint64_t b, unsigned n)
{
	pthread_mutex_lock(&m->lock);
	holds_release(&m->wanted, a, b, n);
	spans_give(m);
	pthread_mutex_unlock(&m->lock);
}

bool wanted_any(struct mapping *m)
{
	bool any;

	pthread_mutex_lock(&m->lock);
	any = m->wanted.spans > 0;
	pthread_mutex_unlock(&m->lock);
	return any;
}

bool wanted_first(struct mapping *m, uint64_t chunk, struct hold *out)
{
	uint64_t first = chunk * GAIA_CHUNK_PAGES, end = first + GAIA_CHUNK_PAGES;
	const struct hold *h;

	pthread_mutex_lock(&m->lock);
	h = holds_first(&m->wanted, first, end);
	if (h)
		*out = (struct hold){ .a = MAX(h->a, first), .b = MIN(h->b, end), .n = h->n, .writes = h->writes };
	pthread_mutex_unlock(&m->lock);
	return h;
}

/* mapping->lock is held. */
static int take_wanted(struct mapping *m, uint64_t a, uint64_t b, bool write)
{
	const struct hold *h;
	struct hold take;
	int err = 0;

	for (; !err && (h = holds_first(&m->wanted, a, b)); a = take.b) {
		take = (struct hold){ .a = MAX(h->a, a), .b = MIN(h->b, b), .n = h->n, .writes = h->writes, .coming = h->coming };
		if (take.writes > 0 && !write)
			continue;
		err = holds_add(&m->holds, take.a, take.b, take.n, take.writes);
		if (err)
			break;
		holds_settle(&m->holds, take.a, take.b, take.n - take.coming);
		holds_drop(&m->wanted, take.a, take.b);
	}
	spans_give(m);
	return err;
}

int grant_take_wanted(struct grant *g, unsigned a, unsigned b, unsigned beyond, bool write)
{
	struct mapping *m = g->mapping;
	int err;

	pthread_mutex_lock(&m->lock);
	err = take_wanted(m, start_of(g) + a, start_of(g) + b, write);
	pthread_mutex_unlock(&m->lock);
	count_writing(g, a, b, beyond);
	grant_repin(g);
	return err;
}
