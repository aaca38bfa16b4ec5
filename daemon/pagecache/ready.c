/*
 * ready.c - chunks that a mapping may acquire without a look at them.
 *
 * Most acquires find nothing to do. An acquire that finds nothing left to do in a chunk remembers that: the chunk is then *ready* for
 * its mapping, to be read, or also to be written. If all of a range is ready, an acquire adds a span to the mapping's holds, and a release
 * of pages that were only read removes it. Both cost what the number of spans costs, whatever the size of the range.
 *
 * While a chunk is ready, the client maps it; its pages, as far as they were in the file when it became ready, are current (to be
 * written: armed); and none of them is locked. Code that changes one of these, or relies on what others hold of the chunk, calls
 * chunk_unready() first, with chunk->lock held; locking a page includes that call. Until then the replica knows nothing of holds that
 * were added and removed meanwhile. The call makes up for that: it pins the replica for what is held, and counts the pages that are
 * held for writing.
 *
 * A chunk may be ready for several mappings at a time, to be read or written, beside others that hold pages of it which the replica
 * has counted: an acquire that finds nothing to do in current pages finds the same whoever else holds them, and who needs to know that
 * locks them. So an acquire or a release that only adds or takes away its own mapping's holds ends that mapping's readiness only
 * (grant_end_ready()). What an acquire must know of others is whether they live: what a client had not released goes when it ends, and what is
 * stored to its memory then is not the file's. So each mapping has a list of the other clients that have grants of what is ready for
 * it and may store there (mapping.sharer), and asks them all, by cache_host.alive(), before it acquires something that is
 * ready; if one is gone the acquire takes the long way, which looks for what that one leaves. The list is exact because the grants of a
 * replica change only while it is ready for nobody. A client is valid while it is on a list, as its mapping ends after its grants.
 *
 * The replica of a ready chunk is not pinned for holds, so it may be among the idle ones. It counts as held there, once, whoever it is
 * ready for (cache_device.n_idle_ready): as long as an acquire fits beside all that is pinned and all that is ready nobody need know what is held.
 * Else as many idle replicas as are lacking, of which nothing is held, are made not ready (unready_idle()). No replica is evicted
 * while it is ready.
 *
 * Only mappings of the owners of the mount have ready chunks: what others pin is limited, and counted at once (users.c).
 */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/ready.h"

#include "base/bits.h"
#include "base/fault.h"
#include "base/util.h"
#include "pagecache/acquire.h"
#include "pagecache/cache.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/file_pins.h"
#include "pagecache/grant.h"
#include "pagecache/holds.h"
#include "pagecache/home.h"
#include "pagecache/mapping.h"
#include "pagecache/readahead.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/state.h"

/* Whether the mapping of @g must know that the client of @other lives. */
static bool must_ask(const struct grant *g, const struct grant *other)
{
	return other->mapping->export_write && other->mapping->client != g->mapping->client;
}

/* mapping->lock is held for the next ones, and chunk->lock for those that look at a replica's grants. */
static struct sharer *sharer_find(struct mapping *m, const void *client)
{
	for (unsigned k = 0; k < m->n_sharers; k++)
		if (m->sharer[k].client == client)
			return &m->sharer[k];
	return NULL;
}

static bool sharer_add(struct mapping *m, void *client)
{
	struct sharer *s = sharer_find(m, client);

	if (!s && m->n_sharers == SHARERS_MOST)
		return false;
	if (!s) {
		s = &m->sharer[m->n_sharers++];
		*s = (struct sharer){ .client = client };
	}
	s->n++;
	return true;
}

static void sharer_remove(struct mapping *m, const void *client)
{
	struct sharer *s = sharer_find(m, client);

	if (--s->n == 0)
		*s = m->sharer[--m->n_sharers];
}

/* Of those before @end in the list (NULL: all). */
static void sharers_remove(const struct grant *g, const struct grant *end)
{
	const struct grant *other;

	for (other = LIST_FIRST(&g->replica->grants); other != end; other = LIST_NEXT(other, of_replica))
		if (must_ask(g, other))
			sharer_remove(g->mapping, other->mapping->client);
}

/* False: they are too many, and none was added. */
static bool sharers_add(const struct grant *g)
{
	const struct grant *other;

	LIST_FOREACH(other, &g->replica->grants, of_replica)
		if (must_ask(g, other) && !sharer_add(g->mapping, other->mapping->client)) {
			sharers_remove(g, other);
			return false;
		}
	return true;
}

static bool sharers_live(const struct mapping *m)
{
	for (unsigned k = 0; k < m->n_sharers; k++)
		if (!m->file->cache->host.alive(m->sharer[k].client))
			return false;
	return true;
}

void grant_make_ready(struct grant *g)
{
	struct replica *rep = g->replica;
	struct chunk *ch = rep->chunk;
	struct mapping *m = g->mapping;
	bool access[READY_KINDS] = { false };
	uint64_t start = g->index * GAIA_CHUNK_PAGES;
	unsigned end = GAIA_CHUNK_PAGES;

	(void)fault_point("ready.before");
	pthread_mutex_lock(&ch->lock);
	while (end > 0 && page_limit(ch, end - 1) == 0)
		end--;
	if (m->user.owner && g->delivered && !g->in_delivery && !g->suspect && !g->unanswered && ch->n_locked == 0 &&
	    ch->n_shared == 0 && end > 0 && !replica_is_spoiled(rep) && !cfile_is_passthrough(ch->file)) {
		access[READY_TO_READ] = replica_is_current(rep, 0, end, false);
		access[READY_TO_WRITE] = (m->prot & GAIA_PROT_WRITE) && replica_is_current(rep, 0, end, true);
	}
	pthread_mutex_lock(&m->lock);
	if (access[READY_TO_READ] && !g->ready) {
		if (sharers_add(g))
			replica_ready_more(rep);
		else
			access[READY_TO_READ] = access[READY_TO_WRITE] = false;
	}
	for (unsigned what = 0; what < READY_KINDS; what++) {
		if (!access[what] || (g->ready & 1u << what))
			continue;
		bug_on(holds_add(&m->ready[what], start, start + end, 1, 0));
		g->ready |= (uint8_t)(1u << what);
	}
	if (g->ready)
		m->ready_seq = MAX(m->ready_seq, g->delivered);
	pthread_mutex_unlock(&m->lock);
	/* From now on nobody looks whether it is acquired. */
	if (g->ready)
		readahead_count(rep, 0, end);
	grant_repin(g);
	pthread_mutex_unlock(&ch->lock);
}

static void grant_unready(struct grant *g)
{
	uint64_t start = g->index * GAIA_CHUNK_PAGES;
	struct mapping *m = g->mapping;

	pthread_mutex_lock(&m->lock);
	for (unsigned what = 0; what < READY_KINDS; what++)
		holds_drop(&m->ready[what], start, start + GAIA_CHUNK_PAGES);
	g->ready = 0;
	sharers_remove(g, NULL);
	/* Under the same lock: a release finds it either ready or pinned (grant_pin_held()). */
	if (!g->pinned && holds_first(&m->holds, start, start + GAIA_CHUNK_PAGES)) {
		bug_on(!replica_pin(g->replica));
		g->pinned = true;
	}
	pthread_mutex_unlock(&m->lock);
	(void)fault_point("ready.before_catch_up");
	grant_catch_up(g);
	/* Last: code that looks for a victim finds it either ready or pinned. */
	replica_ready_less(g->replica);
}

void grant_end_ready(struct grant *g)
{
	if (g->ready)
		grant_unready(g);
}

void replica_end_ready(struct replica *rep)
{
	struct grant *g;

	LIST_FOREACH(g, &rep->grants, of_replica)
		grant_end_ready(g);
}

void unit_end_ready(struct replica *unit)
{
	for (unsigned k = 0; k < unit_chunks(unit); k++) {
		struct replica *rep = unit_member(unit, k);

		pthread_mutex_lock(&rep->chunk->lock);
		replica_end_ready(rep);
		pthread_mutex_unlock(&rep->chunk->lock);
	}
}

void chunk_end_ready(struct chunk *ch)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		replica_end_ready(ch->replica[k]);
	bug_on(ch->n_ready > 0);
}

/* Whether pages of the same chunks are wanted, which an acquire that takes the long way acquires, too. mapping->lock is held. */
static bool is_wanted(const struct mapping *m, struct page_span span)
{
	return holds_first(&m->wanted, ROUND_DOWN(span.a, GAIA_CHUNK_PAGES), ROUND_DOWN(span.b - 1, GAIA_CHUNK_PAGES) + GAIA_CHUNK_PAGES) != NULL;
}

/* mapping->lock is held. */
static bool covers(const struct holds *ready, uint64_t a, uint64_t b)
{
	const struct hold *h = holds_first(ready, a, b);

	return h && h->a <= a && h->b >= b;
}

bool ready_has(struct mapping *m, struct page_span span)
{
	bool has;

	pthread_mutex_lock(&m->lock);
	has = covers(&m->ready[READY_TO_READ], span.a, span.b);
	pthread_mutex_unlock(&m->lock);
	return has;
}

/* Of @over, what lies in the file as a whole. mapping->lock is held. */
static struct page_span in_file(const struct mapping *m, struct page_span over)
{
	over.b = MIN(over.b, cfile_size(m->file) / GAIA_PAGE);
	over.a = MIN(over.a, over.b);
	return over;
}

bool ready_acquire(struct mapping *m, struct page_span span, bool write, struct page_span over, uint64_t *seq, atomic_uint *verdict, int *err)
{
	bool ready;

	if (device_usable(m->dev))
		return false;
	pthread_mutex_lock(&m->lock);
	ready = !is_wanted(m, span) && covers(&m->ready[write ? READY_TO_WRITE : READY_TO_READ], span.a, span.b) && sharers_live(m);
	if (ready) {
		/* The first and the last page may not be for overwriting. */
		m->spans_to_come += over.a < over.b ? 2 : 0;
		*err = mapping_hold(m, span, write);
		m->spans_to_come -= over.a < over.b ? 2 : 0;
	}
	if (ready && !*err) {
		if (cache_decide(verdict, CACHE_DONE)) {
			holds_settle(&m->holds, span.a, span.b, 1);
			over = in_file(m, over);
			holds_overwrite(&m->holds, over.a, over.b, true);
		} else {
			holds_undo(&m->holds, span.a, span.b, 1, write);
			spans_give(m);
			*err = -EINTR;
		}
		*seq = m->ready_seq;
	}
	pthread_mutex_unlock(&m->lock);
	return ready;
}

/*
 * The first run of chunks, from page @a of @span on, of which all pages that belong to the span are ready: [*from, *to), as pages of the
 * span. If there is none, both are the end of the span. mapping->lock is held.
 */
static void next_ready(const struct holds *ready, uint64_t a, struct page_span span, uint64_t *from, uint64_t *to)
{
	const struct hold *h;

	for (*to = a; (h = holds_first(ready, *to, span.b));) {
		*from = MAX(h->a, *to);
		/* The end of the file may be, or may have been, in the last of these chunks. */
		*to = h->b >= span.b ? span.b : ROUND_DOWN(h->b, GAIA_CHUNK_PAGES);
		if (*from < *to)
			return;
		*to = MIN(ROUND_DOWN(h->b, GAIA_CHUNK_PAGES) + GAIA_CHUNK_PAGES, span.b);
		if (*to == span.b)
			break;
	}
	*from = *to = span.b;
}

int ready_take(struct mapping *m, struct page_span span, bool write, struct page_span over, struct ready_runs *runs, uint64_t *rest)
{
	uint64_t from, to;
	bool none;
	int err = 0;

	pthread_mutex_lock(&m->lock);
	none = is_wanted(m, span) || !sharers_live(m);
	for (uint64_t at = span.a; at < span.b && !err; at = to) {
		if (none)
			from = to = span.b;
		else
			next_ready(&m->ready[write ? READY_TO_WRITE : READY_TO_READ], at, span, &from, &to);
		if (at < from)
			for (uint64_t c = at / GAIA_CHUNK_PAGES; c <= (from - 1) / GAIA_CHUNK_PAGES; c++)
				rest[runs->n_rest++] = c;
		if (from == to)
			break;
		if ((runs->n & (runs->n - 1)) == 0)
			runs->run = xrealloc(runs->run, MAX(2 * runs->n, 1u) * sizeof(runs->run[0]));
		runs->run[runs->n] = (struct page_span){ from, to };
		err = mapping_hold(m, runs->run[runs->n], write);
		runs->n += !err;
	}
	runs->seq = m->ready_seq;
	runs->over = in_file(m, over);
	pthread_mutex_unlock(&m->lock);
	return err;
}

bool ready_unhold(struct grant *g, unsigned a, unsigned b, bool write)
{
	uint64_t start = g->index * GAIA_CHUNK_PAGES;
	struct mapping *m = g->mapping;

	if (!g->ready || bits_first(g->counted, a, b) < b)
		return false;
	pthread_mutex_lock(&m->lock);
	holds_undo(&m->holds, start + a, start + b, 1, write);
	spans_give(m);
	pthread_mutex_unlock(&m->lock);
	return true;
}

void ready_settle(struct mapping *m, struct ready_runs *runs, uint64_t until, struct segment *run)
{
	if (runs->over.a < runs->over.b)
		return;
	for (; runs->settled < runs->n && runs->run[runs->settled].a < until; runs->settled++) {
		const struct page_span *span = &runs->run[runs->settled];

		mapping_settle_next(m, run, &(struct segment){ span->a, span->b, 1 });
	}
}

/* mapping->lock is held. */
static void settle_over(struct mapping *m, struct page_span run, struct page_span over)
{
	holds_settle(&m->holds, run.a, run.b, 1);
	holds_overwrite(&m->holds, MAX(run.a, over.a), MIN(run.b, over.b), true);
}

void ready_end(struct mapping *m, struct ready_runs *runs, bool write, bool undo)
{
	for (unsigned k = 0; k < runs->n && undo; k++)
		mapping_unhold(m, runs->run[k].a, runs->run[k].b, 1, write, true);
	pthread_mutex_lock(&m->lock);
	for (unsigned k = runs->settled; k < runs->n && !undo; k++)
		settle_over(m, runs->run[k], runs->over);
	pthread_mutex_unlock(&m->lock);
	free(runs->run);
}

/* Add pages [a, b), which follow those that are there already. */
static void rest_add(struct segments *rest, uint64_t a, uint64_t b)
{
	if (a >= b)
		return;
	if (rest->n > 0 && rest->at[rest->n - 1].b == a) {
		rest->at[rest->n - 1].b = b;
		return;
	}
	if ((rest->n & (rest->n - 1)) == 0)
		rest->at = xrealloc(rest->at, MAX(2 * rest->n, (size_t)1) * sizeof(rest->at[0]));
	rest->at[rest->n++] = (struct segment){ a, b, 1 };
}

/* The first pages of [*a, *b) that are held for writing become [*a, *b): false if there are none. mapping->lock is held. */
static bool first_written(const struct mapping *m, uint64_t *a, uint64_t *b)
{
	const struct hold *h;

	HOLDS_FOREACH(h, &m->holds, *a, *b)
		if (h->writes > 0) {
			*a = MAX(h->a, *a);
			*b = MIN(h->b, *b);
			return true;
		}
	return false;
}

/* mapping->lock is held. */
static bool all_held(const struct mapping *m, struct page_span span)
{
	const struct hold *h;

	for (; span.a < span.b; span.a = h->b) {
		h = holds_first(&m->holds, span.a, span.a + 1);
		if (!h)
			return false;
	}
	return true;
}

bool ready_release(struct mapping *m, struct page_span span, struct segments *rest)
{
	uint64_t from, to, written, until;
	bool all = true;

	pthread_mutex_lock(&m->lock);
	for (uint64_t at = span.a; at < span.b; at = to) {
		next_ready(&m->ready[READY_TO_READ], at, span, &from, &to);
		rest_add(rest, at, from);
		written = from;
		until = to;
		/* Chunks with such pages take the long way as a whole. */
		if (first_written(m, &written, &until)) {
			to = MIN(ROUND_DOWN(until - 1, GAIA_CHUNK_PAGES) + GAIA_CHUNK_PAGES, to);
			written = MAX(ROUND_DOWN(written, GAIA_CHUNK_PAGES), from);
			rest_add(rest, written, to);
		} else {
			written = to;
		}
		if (from == written)
			continue;
		all &= all_held(m, (struct page_span){ from, written });
		holds_release(&m->holds, from, written, 1);
	}
	spans_give(m);
	all &= rest->n == 0 && !holds_first(&m->wanted, span.a, span.b);
	pthread_mutex_unlock(&m->lock);
	return all;
}

uint64_t device_idle_ready(struct cache_device *dev, uint64_t most, struct replica ***out)
{
	struct replica *rep;
	uint64_t n = 0;

	pthread_mutex_lock(&dev->lock);
	most = MIN(most, dev->n_idle_ready);
	*out = xcalloc(most + 1, sizeof(struct replica *));
	for (rep = TAILQ_FIRST(&dev->idle_ready); rep && n < most; rep = TAILQ_NEXT(rep, link))
		(*out)[n++] = rep;
	pthread_mutex_unlock(&dev->lock);
	return n;
}

/* The same of those whose files are pinned to the device. */
static uint64_t device_idle_pinned_ready(struct cache_device *dev, struct replica ***out)
{
	struct replica *rep;
	uint64_t n = 0;

	pthread_mutex_lock(&dev->lock);
	*out = xcalloc(dev->n_idle_pinned + 1, sizeof(struct replica *));
	TAILQ_FOREACH(rep, &dev->idle_pinned, link)
		if (unit_ready(rep) > 0)
			(*out)[n++] = rep;
	pthread_mutex_unlock(&dev->lock);
	return n;
}

bool replica_is_held_ready_locked(const struct replica *rep)
{
	uint64_t start = rep->chunk->index * GAIA_CHUNK_PAGES;
	const struct grant *g;
	bool held = false;

	LIST_FOREACH(g, &rep->grants, of_replica) {
		if (held)
			break;
		if (!g->ready)
			continue;
		pthread_mutex_lock(&g->mapping->lock);
		held = holds_first(&g->mapping->holds, start, start + GAIA_CHUNK_PAGES) != NULL;
		pthread_mutex_unlock(&g->mapping->lock);
	}
	return held;
}

bool unit_is_held_ready(const struct replica *unit)
{
	bool held = false;

	for (unsigned k = 0; k < unit_chunks(unit) && !held; k++) {
		const struct replica *rep = unit_member(unit, k);

		pthread_mutex_lock(&rep->chunk->lock);
		held = replica_is_held_ready_locked(rep);
		pthread_mutex_unlock(&rep->chunk->lock);
	}
	return held;
}

uint64_t device_held_idle(struct cache_device *dev)
{
	struct replica **list;
	uint64_t n = device_idle_ready(dev, UINT64_MAX, &list), held = 0;

	for (uint64_t k = 0; k < n; k++)
		held += unit_is_held_ready(list[k]) ? unit_chunks(list[k]) : 0;
	free(list);
	n = device_idle_pinned_ready(dev, &list);
	for (uint64_t k = 0; k < n; k++)
		held += unit_is_held_ready(list[k]) ? unit_chunks(list[k]) : 0;
	free(list);
	return held;
}

static void check_grant(const struct grant *g, unsigned what)
{
	uint64_t start = g->index * GAIA_CHUNK_PAGES;
	struct mapping *m = g->mapping;
	const struct hold *h;

	pthread_mutex_lock(&m->lock);
	h = holds_first(&m->ready[what], start, start + GAIA_CHUNK_PAGES);
	bug_on((h != NULL) != !!(g->ready & 1u << what));
	bug_on(h && h->a > start);
	bug_on(h && !replica_is_current(g->replica, 0, (unsigned)(MIN(h->b, start + GAIA_CHUNK_PAGES) - start), what == READY_TO_WRITE));
	pthread_mutex_unlock(&m->lock);
}

static void check_sharers(const struct grant *g)
{
	const struct grant *other;

	pthread_mutex_lock(&g->mapping->lock);
	LIST_FOREACH(other, &g->replica->grants, of_replica)
		bug_on(must_ask(g, other) && !sharer_find(g->mapping, other->mapping->client));
	pthread_mutex_unlock(&g->mapping->lock);
}

void ready_check(const struct chunk *ch)
{
	const struct grant *g;
	unsigned all = 0;

	for (unsigned k = 0; k < ch->n_replicas; k++) {
		const struct replica *rep = ch->replica[k];
		unsigned n = 0;

		LIST_FOREACH(g, &rep->grants, of_replica) {
			check_grant(g, READY_TO_READ);
			check_grant(g, READY_TO_WRITE);
			if (!g->ready)
				continue;
			n++;
			bug_on(!(g->ready & 1u << READY_TO_READ));
			bug_on(!g->delivered || g->in_delivery || g->suspect || g->unanswered || (g->pinned && g->to_come == 0));
			bug_on(!g->mapping->user.owner || replica_is_spoiled(rep) || cfile_is_passthrough(ch->file));
			check_sharers(g);
		}
		bug_on(n != rep->n_ready);
		all += n;
	}
	bug_on(all != atomic_load(&ch->n_ready));
}

void device_check_ready(struct cache_device *dev)
{
	const struct replica *rep;
	uint64_t n = 0;

	pthread_mutex_lock(&dev->lock);
	TAILQ_FOREACH(rep, &dev->idle, link)
		bug_on(unit_ready(rep) > 0 || rep->pins > 0 || rep->ahead);
	TAILQ_FOREACH(rep, &dev->unused, link)
		bug_on(unit_ready(rep) > 0 || rep->pins > 0 || !rep->ahead);
	TAILQ_FOREACH(rep, &dev->idle_ready, link) {
		bug_on(unit_ready(rep) == 0 || rep->pins > 0);
		n += unit_chunks(rep);
	}
	bug_on(n != dev->n_idle_ready);
	file_pins_check(dev);
	pthread_mutex_unlock(&dev->lock);
}
