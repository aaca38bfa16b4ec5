/*
 * readahead.c - what is brought to a device before it is acquired: because a program has said so (GAIA_WILLNEED), or because its acquires
 * follow each other.
 *
 * A mapping's requests are ranges of pages. A worker takes them piece by piece, a part of one chunk each. It does only what costs nobody
 * anything, and gives up what it cannot have at once:
 *  - It takes file->range and page locks by trying, and only pages that nobody of the device holds and that are to be copied from home, the
 *    store or another device: nothing is fetched that others released, nothing merged.
 *  - It pins nothing: the locks of the pages keep the replica meanwhile (3). So who decides whether an acquire fits is not misled.
 *  - Replicas are made in free memory only, or in place of what was read ahead and not used (replica_make_ahead()). They are the first
 *    to be evicted, until an acquire has pinned them. No client has them, so none is asked for them.
 *  - It is handed to nobody. What an acquire would find stale is stale after it, or equal to what the acquire would have brought.
 *  - The workers are its own, so that nobody waits for them; each user has a part of these.
 * It ends after the piece at work: when the mapping ends, and for a moment when somebody waits to truncate the file. Its errors are counted, and
 * told to nobody: the acquire finds the same error, if it is one.
 *
 * Files that CPU programs may write past the cache are left alone: what would be read ahead is read again by the acquire, to compare.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/state.h"

#define REQUESTS 32u /* of a mapping that wait; more advice is not taken */
#define PIECES 8u    /* at work on them before other mappings have their turn */

/* Threads: in all, of all users together, of each user. The rest is for the owners of the mount. */
#define THREADS 8u
#define THREADS_USERS 6u
#define THREADS_EACH 2u

/* All threads together may have this part of home under way. */
#define HOME_SHARE 8u
#define PIECE_LEAST 32u

struct request {
	uint64_t id;
	struct page_span rest;	/* of the present range: what was not brought yet */
	struct page_span all;	/* from the first page of all ranges to the last */
};

/* Lives while its mapping does, or its job, or a replica that was made for it and not used. */
struct readahead {
	/* Constant. */
	struct mapping *mapping; /* stays until readahead_end() has returned */
	struct cache *cache;
	struct cache_user user;

	atomic_uint refs;

	pthread_mutex_t lock; /* a leaf, inside cache_device.lock */
	pthread_cond_t paused;
	/* lock. */
	bool queued;  /* a job is in the pool, or at work */
	bool at_work; /* with the mapping */
	bool ended;
	struct request request[REQUESTS]; /* in the order of their turns */
	unsigned n_requests;
	uint64_t last_id;
};

static struct readahead *ra_get(struct readahead *ra)
{
	atomic_fetch_add(&ra->refs, 1);
	return ra;
}

static void ra_put(struct readahead *ra)
{
	if (atomic_fetch_sub(&ra->refs, 1) != 1)
		return;
	pthread_mutex_destroy(&ra->lock);
	pthread_cond_destroy(&ra->paused);
	free(ra);
}

/* ---- what was brought and is not used yet ---- */

void readahead_made(struct readahead *ra, struct replica *rep)
{
	rep->ahead = ra_get(ra);
	user_ahead_more(rep->dev, &ra->user);
}

void readahead_ended(struct replica *rep)
{
	struct readahead *ra = rep->ahead;

	if (!ra)
		return;
	rep->ahead = NULL;
	user_ahead_less(rep->dev, &ra->user);
	ra_put(ra);
}

bool readahead_has_room(const struct readahead *ra, const struct cache_device *dev)
{
	return user_may_ahead(dev, &ra->user);
}

static void note_brought(struct replica *rep, unsigned i)
{
	if (bit_test(rep->brought, i))
		return;
	bit_set(rep->brought, i);
	rep->n_brought++;
}

void readahead_count(struct replica *rep, unsigned a, unsigned b)
{
	uint64_t used = 0, wasted = 0;

	for (unsigned i = a; rep->n_brought > 0 && (i = bits_first(rep->brought, i, b)) < b; i++) {
		if (replica_is_current(rep, i, i + 1, false))
			used++;
		else
			wasted++;
		bit_clear(rep->brought, i);
		rep->n_brought--;
	}
	if (used > 0)
		count(CTR_readahead_used, used);
	if (wasted > 0)
		count(CTR_readahead_wasted, wasted);
}

void readahead_dropped(struct replica *rep)
{
	if (rep->n_brought > 0)
		count(CTR_readahead_wasted, rep->n_brought);
	rep->n_brought = 0;
}

/* Whether the requests name some of the chunk: then it is not given up for others of them. cache_device.lock is held. */
static bool is_asked_for(struct readahead *ra, uint64_t index)
{
	uint64_t a = index * GAIA_CHUNK_PAGES, b = a + GAIA_CHUNK_PAGES;
	bool asked = false;

	pthread_mutex_lock(&ra->lock);
	for (unsigned k = 0; k < ra->n_requests && !asked; k++)
		asked = ra->request[k].all.a < b && a < ra->request[k].all.b;
	pthread_mutex_unlock(&ra->lock);
	return asked;
}

bool readahead_is_needed(struct readahead *ra, const struct replica *rep)
{
	const struct mapping *m = ra->mapping;

	return rep->chunk->file == m->file && rep->only == m->readers && is_asked_for(ra, rep->chunk->index);
}

/* ---- one piece ---- */

static unsigned piece_pages(const struct cache *c)
{
	return (unsigned)MAX(MIN(c->frames.budget / HOME_SHARE / THREADS, (uint64_t)GAIA_CHUNK_PAGES), (uint64_t)PIECE_LEAST);
}

/* Whether home can take pages without storing what others wrote, and without going beyond its budget. */
static bool home_has_room(struct cache *c)
{
	uint64_t stay = atomic_load(&c->n_dirty) + atomic_load(&c->n_kept);

	return atomic_load(&c->frames.used) <= c->frames.budget && stay <= c->frames.budget / 2;
}

/*
 * Lock those of pages [a, b) that are to be copied to the replica, and that nobody of the device holds or has locked: a bit each. How many; 0 also if
 * home has no room for them. chunk->lock is held.
 */
static unsigned pages_take(struct replica *rep, unsigned a, unsigned b, uint64_t *pages)
{
	struct chunk *ch = rep->chunk;
	uint64_t stale[GAIA_CHUNK_PAGES / 64] = { 0 }, held[GAIA_CHUNK_PAGES / 64] = { 0 };
	bool room = home_has_room(ch->file->cache);
	unsigned n = 0;

	replica_not_current(rep, a, b, false, stale);
	if (bits_first(stale, a, b) == b)
		return 0;
	chunk_unready(ch);
	replica_held(rep, a, b, held);
	for (unsigned i = a; (i = bits_first(stale, i, b)) < b; i++) {
		if (bit_test(held, i) || page_limit(ch, i) == 0 || (!room && !page_present(ch, i)) ||
		    replica_step(rep, i, false) != TRACK_SEND || !page_trylock(ch, i))
			continue;
		bit_set(pages, i);
		n++;
	}
	return n;
}

/* The pages have been brought, or not: note it, and unlock them. */
static void pages_give(struct replica *rep, unsigned a, unsigned b, const uint64_t *pages)
{
	struct chunk *ch = rep->chunk;
	unsigned n = 0, j;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; (i = bits_first(pages, i, b)) < b; i = j) {
		for (j = i; j < b && bit_test(pages, j); j++)
			;
		replica_acquired(rep, i, j);
		for (unsigned k = i; k < j; k++) {
			if (!replica_is_current(rep, k, k + 1, false))
				continue;
			note_brought(rep, k);
			n++;
		}
		pages_unlock(ch, i, j);
	}
	pthread_mutex_unlock(&ch->lock);
	if (n > 0)
		count(CTR_readahead, n);
}

/* Bring pages [a, b) of the chunk, as far as they are to be had. -ENOENT: it has no replica. file->range is held. */
static int chunk_bring(struct mapping *m, struct chunk *ch, unsigned a, unsigned b)
{
	uint64_t pages[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct replica *rep;
	unsigned n = 0;
	int err = 0;

	pthread_mutex_lock(&ch->lock);
	rep = replica_to_fill(m, ch, &err);
	if (rep)
		n = pages_take(rep, a, b, pages);
	pthread_mutex_unlock(&ch->lock);
	if (n == 0)
		return err;
	(void)fault_point("readahead.bring");
	err = replica_bring_some(rep, a, b, pages);
	pages_give(rep, a, b, pages);
	chunk_account(ch);
	return err;
}

static int bring_once(struct mapping *m, struct page_span piece)
{
	uint64_t index = piece.a / GAIA_CHUNK_PAGES, start = index * GAIA_CHUNK_PAGES;
	struct chunk *ch = chunk_get(m->file, index, false);
	int err = -ENOENT;

	if (!ch)
		return err;
	err = chunk_bring(m, ch, (unsigned)(piece.a - start), (unsigned)(piece.b - start));
	chunk_put(ch);
	return err;
}

/* 0 also if it was left alone; OVER or an error: so is the rest of the request. */
#define OVER 1
static int bring(struct readahead *ra, struct page_span piece)
{
	struct mapping *m = ra->mapping;
	struct cfile *f = m->file;
	int err;

	if (atomic_load(&m->dev->gone) || passthrough_compares(f) || piece.a >= (cfile_size(f) + GAIA_PAGE - 1) / GAIA_PAGE)
		return OVER;
	/* Who waits to truncate the file, and all who wait behind, go first. */
	if (atomic_load(&f->range_waiters) > 0 || pthread_rwlock_tryrdlock(&f->range))
		return 0;
	err = bring_once(m, piece);
	pthread_rwlock_unlock(&f->range);
	if (err != -ENOENT)
		return err;
	err = replica_make_ahead(m, piece.a / GAIA_CHUNK_PAGES);
	if (err || atomic_load(&f->range_waiters) > 0 || pthread_rwlock_tryrdlock(&f->range))
		return err;
	err = bring_once(m, piece);
	pthread_rwlock_unlock(&f->range);
	return err == -ENOENT ? 0 : err;
}

/* ---- requests ---- */

/* The lock is held in the next three. */
static void request_remove(struct readahead *ra, unsigned k)
{
	ra->n_requests--;
	memmove(&ra->request[k], &ra->request[k + 1], (ra->n_requests - k) * sizeof(ra->request[0]));
}

static void request_drop(struct readahead *ra, uint64_t id)
{
	for (unsigned k = 0; k < ra->n_requests; k++)
		if (ra->request[k].id == id) {
			request_remove(ra, k);
			return;
		}
}

/* The first request's next piece: it comes last then, if there is more of it. */
static uint64_t next_piece(struct readahead *ra, struct page_span *piece)
{
	struct request rq = ra->request[0];
	uint64_t end = ROUND_DOWN(rq.rest.a, GAIA_CHUNK_PAGES) + GAIA_CHUNK_PAGES;

	*piece = (struct page_span){ rq.rest.a, MIN(MIN(rq.rest.b, end), rq.rest.a + piece_pages(ra->cache)) };
	rq.rest.a = piece->b;
	request_remove(ra, 0);
	if (rq.rest.a < rq.rest.b)
		ra->request[ra->n_requests++] = rq;
	return rq.id;
}

static void work(struct readahead *ra)
{
	struct page_span piece;
	uint64_t id;
	int err;

	for (unsigned k = 0; k < PIECES && ra->n_requests > 0 && !ra->ended; k++) {
		id = next_piece(ra, &piece);
		pthread_mutex_unlock(&ra->lock);
		pthread_rwlock_rdlock(&ra->cache->round);
		err = bring(ra, piece);
		pthread_rwlock_unlock(&ra->cache->round);
		if (err < 0)
			count(CTR_readahead_failed, 1);
		pthread_mutex_lock(&ra->lock);
		if (err)
			request_drop(ra, id);
	}
}

static void run(void *arg)
{
	struct readahead *ra = arg;
	struct cache *c = ra->cache;
	bool more;

	(void)fault_point("readahead.begin");
	pthread_mutex_lock(&ra->lock);
	ra->at_work = true;
	work(ra);
	ra->at_work = false;
	more = ra->n_requests > 0 && !ra->ended;
	ra->queued = more;
	pthread_cond_broadcast(&ra->paused);
	pthread_mutex_unlock(&ra->lock);
	if (more) {
		pool_submit_for(c->readahead, ra->user.uid, ra->user.owner, run, ra);
		return;
	}
	ra_put(ra);
	atomic_fetch_sub(&c->n_readahead, 1);
}

static void ask(struct readahead *ra, struct page_span span)
{
	struct cache *c = ra->cache;
	struct request *last;
	bool submit = false;

	pthread_mutex_lock(&ra->lock);
	last = ra->n_requests > 0 ? &ra->request[ra->n_requests - 1] : NULL;
	if (last && last->rest.b == span.a) {
		last->rest.b = last->all.b = span.b;
	} else if (ra->n_requests < REQUESTS) {
		ra->request[ra->n_requests++] = (struct request){ ++ra->last_id, span, span };
		submit = !ra->queued;
	}
	if (submit) {
		ra->queued = true;
		ra_get(ra);
		atomic_fetch_add(&c->n_readahead, 1);
	}
	pthread_mutex_unlock(&ra->lock);
	if (submit)
		pool_submit_for(c->readahead, ra->user.uid, ra->user.owner, run, ra);
}

void readahead_will_need(struct mapping *m, struct page_span span)
{
	ask(m->readahead, span);
}

void readahead_cancel(struct mapping *m, struct page_span span)
{
	struct readahead *ra = m->readahead;

	pthread_mutex_lock(&ra->lock);
	for (unsigned k = ra->n_requests; k-- > 0;)
		if (ra->request[k].rest.a < span.b && span.a < ra->request[k].rest.b)
			request_remove(ra, k);
	pthread_mutex_unlock(&ra->lock);
}

/* ---- life ---- */

int readahead_begin(struct mapping *m, struct cache *c, struct cache_user user)
{
	struct readahead *ra = calloc(1, sizeof(*ra));

	if (!ra)
		return -ENOMEM;
	ra->mapping = m;
	ra->cache = c;
	ra->user = user;
	atomic_init(&ra->refs, 1);
	pthread_mutex_init(&ra->lock, NULL);
	pthread_cond_init(&ra->paused, NULL);
	m->readahead = ra;
	return 0;
}

void readahead_end(struct mapping *m)
{
	struct readahead *ra = m->readahead;

	pthread_mutex_lock(&ra->lock);
	ra->ended = true;
	while (ra->at_work)
		pthread_cond_wait(&ra->paused, &ra->lock);
	pthread_mutex_unlock(&ra->lock);
	ra_put(ra);
}

int readahead_start(struct cache *c)
{
	int err = pool_create("gaia-readahead", THREADS, &c->readahead);

	if (!err)
		pool_share(c->readahead, THREADS_EACH, THREADS_USERS);
	return err;
}

void readahead_stop(struct cache *c)
{
	pool_destroy(c->readahead);
}
