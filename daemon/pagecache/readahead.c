/*
 * readahead.c - brings pages to a device before they are acquired: because the program asked for them (GAIA_WILLNEED), or because its
 * acquires follow each other.
 *
 * A mapping's requests are ranges of pages. A worker takes them piece by piece, a part of one chunk each. It does nothing that costs
 * others anything, and gives up what it cannot have at once:
 *  - It takes file->range and page locks by trying. It takes only pages that nobody holds on the device and that a copy from home, the
 *    store or another device brings up to date: it fetches no releases, and merges nothing. It locks pages that the store has to be read
 *    for apart from the others, so that threads that want the others do not wait for the store.
 *  - It evicts nothing from home: it reads the store into free frames only. If few are free, it frees these again after the copy.
 *  - It pins nothing, because pins would count when it is decided whether an acquire fits: its page locks keep the replica (3).
 *  - It makes replicas in free memory, or in the place of readahead that was not used (replica_make_ahead()): not of what the
 *    mapping's own requests would bring again, and of another mapping or user only while that one has more of it. Its replicas are the first
 *    to be evicted, until an acquire has pinned them. No client maps them, so evicting them asks nobody. A replica that got no page goes again.
 *  - It hands nothing to clients. What it leaves stale an acquire finds stale; the rest is what the acquire itself would have brought.
 *  - Its workers do nothing else, so nobody waits for them; each user has a part of them.
 * After the piece at work it ends when the mapping ends, and pauses while somebody waits to truncate the file. Its errors are counted, and
 * not reported: an acquire that they concern finds them itself.
 *
 * What is requested, beside what the program asked for, and in which order it has its turn, is decided by streams.c.
 *
 * It leaves files alone that CPU programs may write past the cache: an acquire reads these again, to compare.
 *
 * For the host it only reads the store, into home: what is not there yet is what an acquire waits for, and from there its page is moved into
 * view, or copied, without a bus. Nothing is made on the device, so nothing of it is evicted as unused, and it may be what read(2) wants.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/readahead.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/fault.h"
#include "base/thread.h"
#include "base/util.h"
#include "consistency/track.h"
#include "pagecache/ahead.h"
#include "pagecache/bring.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/grant.h"
#include "pagecache/home.h"
#include "pagecache/passthrough.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/streams.h"
#include "pagecache/unused.h"
#include "pagecache/users.h"

#define PIECES 8u /* of a mapping, at work on them before other mappings have their turn */

/* Threads: in all, of all users together, of each user. The rest is for the owners of the mount. */
#define THREADS 8u
#define THREADS_USERS 6u
#define THREADS_EACH 2u

/* All threads together may have this part of home under way. If less is free, what they read does not stay there. */
#define HOME_SHARE 8u
#define PIECE_LEAST 32u

/* Lives while its mapping does, or its job, or a replica that was made for it and not used. */
struct readahead {
	/* Constant. */
	struct mapping *mapping; /* stays until readahead_end() has returned */
	struct cache *cache;
	struct cache_user user;

	atomic_uint refs;

	/* file->lock. */
	bool gave_way; /* its job waits in file->gave_way */
	TAILQ_ENTRY(readahead) link;

	uint64_t n_unused; /* replicas that were made for it and not used; cache_device.lock */

	pthread_mutex_t lock; /* a leaf, inside cfile.lock and cache_device.lock */
	pthread_cond_t paused;
	/* lock. */
	bool queued;	  /* a job is in the pool, at work, or in file->gave_way */
	unsigned at_work; /* with the mapping: jobs, of which one may have ended but for this */
	bool ended;
	struct streams st;
	struct page_span piece;	  /* at work; empty: none is */
	struct page_span present; /* all of the request at work, which may have no more pieces */
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
	ra->n_unused++;
	user_ahead_more(rep->dev, &ra->user);
}

void readahead_ended(struct replica *rep, bool used)
{
	struct readahead *ra = rep->ahead;

	if (!ra)
		return;
	if (!used)
		atomic_fetch_add(&ra->st.n_lost, 1);
	rep->ahead = NULL;
	ra->n_unused--;
	user_ahead_less(rep->dev, &ra->user);
	ra_put(ra);
}

bool readahead_has_room(const struct readahead *ra, const struct cache_device *dev)
{
	return user_may_ahead(dev, &ra->user);
}

static void brought_free(struct replica *rep)
{
	free(rep->brought);
	rep->brought = NULL;
}

static void note_brought(struct replica *rep, unsigned i)
{
	if (!rep->brought)
		rep->brought = xcalloc(1, sizeof(*rep->brought));
	if (bit_test(rep->brought->pages, i))
		return;
	bit_set(rep->brought->pages, i);
	rep->brought->n++;
}

void readahead_count(struct replica *rep, unsigned a, unsigned b)
{
	uint64_t used = 0, wasted = 0;

	for (unsigned i = a; rep->brought && (i = bits_first(rep->brought->pages, i, b)) < b; i++) {
		if (replica_is_current(rep, i, i + 1, false))
			used++;
		else
			wasted++;
		bit_clear(rep->brought->pages, i);
		if (--rep->brought->n == 0)
			brought_free(rep);
	}
	if (used > 0)
		count(CTR_readahead_used, used);
	if (wasted > 0)
		count(CTR_readahead_wasted, wasted);
}

void readahead_dropped(struct replica *rep)
{
	if (rep->brought)
		count(CTR_readahead_wasted, rep->brought->n);
	brought_free(rep);
}

/* Whether the requests name some of the chunk, or a stream will come to it: then it is not given up for others of them. cache_device.lock is held. */
static bool is_asked_for(struct readahead *ra, uint64_t index)
{
	struct page_span chunk = { index * GAIA_CHUNK_PAGES, (index + 1) * GAIA_CHUNK_PAGES };
	bool asked;

	pthread_mutex_lock(&ra->lock);
	asked = spans_meet(ra->present, chunk) || streams_want(&ra->st, chunk);
	pthread_mutex_unlock(&ra->lock);
	return asked;
}

/* Whether @other has so much more read ahead and not used that it is still no less after one of these has become @ra's. */
static bool has_more(const struct readahead *other, const struct readahead *ra, const struct cache_device *dev)
{
	if (other->user.uid == ra->user.uid)
		return other->n_unused > ra->n_unused + 1;
	return user_ahead(dev, &other->user) > user_ahead(dev, &ra->user) + 1;
}

static bool has_ended(struct readahead *ra)
{
	bool ended;

	pthread_mutex_lock(&ra->lock);
	ended = ra->ended;
	pthread_mutex_unlock(&ra->lock);
	return ended;
}

bool readahead_may_replace(struct readahead *ra, const struct replica *rep)
{
	const struct mapping *m = ra->mapping;

	if (rep->chunk->file == m->file && rep->only == m->readers && is_asked_for(ra, rep->chunk->index))
		return false;
	if (!user_ahead_helps(rep->dev, &ra->user, &rep->ahead->user))
		return false;
	return rep->ahead == ra || has_ended(rep->ahead) || has_more(rep->ahead, ra, rep->dev);
}

/* ---- one piece ---- */

static unsigned piece_pages(const struct cache *c)
{
	return (unsigned)MAX(MIN(c->frames.budget / HOME_SHARE / THREADS, (uint64_t)GAIA_CHUNK_PAGES), (uint64_t)PIECE_LEAST);
}

/* How many pages home can take without storing or evicting anything. */
static uint64_t home_room(struct cache *c)
{
	uint64_t stay = atomic_load(&c->n_dirty) + atomic_load(&c->n_kept), used = atomic_load(&c->frames.used);
	uint64_t budget = c->frames.budget;

	return used < budget && stay <= budget / 2 ? budget - used : 0;
}

/* Whether some of the stale pages is to be copied, unless somebody holds it. chunk->lock is held. */
static bool any_to_send(struct replica *rep, unsigned a, unsigned b, bool absent, const uint64_t *stale)
{
	for (unsigned i = a; (i = bits_first(stale, i, b)) < b; i++)
		if (page_present(rep->chunk, i) != absent && replica_step(rep, i, false) == TRACK_SEND)
			return true;
	return false;
}

/*
 * Lock those of pages [a, b) that are to be copied to the replica, and that nobody of the device holds or has locked: a bit each. How many. Only
 * those that home has, or (@absent) only those that it lacks, as many as there is room for. chunk->lock is held.
 */
static unsigned pages_take(struct readahead *ra, struct replica *rep, unsigned a, unsigned b, bool absent, uint64_t *pages)
{
	struct chunk *ch = rep->chunk;
	uint64_t stale[GAIA_CHUNK_PAGES / 64] = { 0 }, held[GAIA_CHUNK_PAGES / 64] = { 0 };
	uint64_t most = absent ? home_room(ch->file->cache) : GAIA_CHUNK_PAGES;
	unsigned n = 0;

	replica_not_current(rep, a, b, false, stale);
	if (!any_to_send(rep, a, b, absent, stale))
		return 0;
	/* Then it is known who holds what. */
	chunk_unready(ch);
	replica_held(rep, a, b, held);
	for (unsigned i = a; (i = bits_first(stale, i, b)) < b; i++) {
		if (bit_test(held, i) || page_limit(ch, i) == 0 || page_present(ch, i) == absent || replica_step(rep, i, false) != TRACK_SEND)
			continue;
		if (n == most) {
			atomic_fetch_add(&ra->st.n_lost, 1);
			break;
		}
		if (!page_trylock(ch, i))
			continue;
		bit_set(pages, i);
		n++;
	}
	return n;
}

/*
 * Home lacked page i: it need not keep it. Of files that others may write home's bytes are what the replica is compared with. The page is locked;
 * chunk->lock is held.
 */
static void home_lacks_again(struct chunk *ch, unsigned i)
{
	if (page_present(ch, i) && !page_dirty(ch, i) && !page_in_view(ch, i) && !passthrough_compares(ch->file) && home_may_leave(ch, i))
		page_drop(ch, i);
}

/* The pages have been brought, or not: note it, and unlock them. @absent: home lacked them. */
static void pages_give(struct replica *rep, unsigned a, unsigned b, bool absent, const uint64_t *pages)
{
	struct chunk *ch = rep->chunk;
	struct cache *c = ch->file->cache;
	bool drop = absent && home_room(c) < c->frames.budget / HOME_SHARE;
	unsigned n = 0, j;

	pthread_mutex_lock(&ch->lock);
	replica_filled(rep);
	for (unsigned i = a; (i = bits_first(pages, i, b)) < b; i = j) {
		for (j = i; j < b && bit_test(pages, j); j++)
			;
		replica_acquired(rep, i, j);
		for (unsigned k = i; k < j; k++) {
			if (drop)
				home_lacks_again(ch, k);
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
	chunk_account(ch);
	if (drop)
		chunk_unlist(ch);
}

/* Bring those of pages [a, b) of the chunk that home has, or lacks, as far as they are to be had. -ENOENT: it has no replica. file->range is held. */
static int chunk_bring(struct mapping *m, struct chunk *ch, unsigned a, unsigned b, bool absent)
{
	uint64_t pages[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct replica *rep;
	unsigned n = 0;
	bool there;
	int err;

	pthread_mutex_lock(&ch->lock);
	rep = replica_to_fill(m, ch, &there);
	if (rep)
		n = pages_take(m->readahead, rep, a, b, absent, pages);
	/* Once no page of it is locked it may go. */
	if (rep && n == 0)
		replica_filled(rep);
	pthread_mutex_unlock(&ch->lock);
	if (n == 0)
		return there ? 0 : -ENOENT;
	(void)fault_point("readahead.bring");
	err = replica_bring_some(rep, a, b, pages);
	pages_give(rep, a, b, absent, pages);
	if (err == -ENOBUFS)
		atomic_fetch_add(&m->readahead->st.n_lost, 1);
	return err == -ENOBUFS ? 0 : err;
}

static int bring_once(struct mapping *m, struct page_span piece)
{
	uint64_t index = piece.a / GAIA_CHUNK_PAGES, start = index * GAIA_CHUNK_PAGES;
	unsigned a = (unsigned)(piece.a - start), b = (unsigned)(piece.b - start);
	struct chunk *ch = chunk_get(m->file, index, false);
	int err = -ENOENT;

	if (!ch)
		return err;
	err = chunk_bring(m, ch, a, b, false);
	if (!err)
		err = chunk_bring(m, ch, a, b, true);
	chunk_put(ch);
	return err;
}

/* Whether something of the chunk could be brought: home or a device has some, or home has room. */
static bool may_bring(struct mapping *m, uint64_t index)
{
	struct chunk *ch;
	bool may = home_room(m->file->cache) > 0;

	if (may)
		return true;
	atomic_fetch_add(&m->readahead->st.n_lost, 1);
	ch = chunk_get(m->file, index, false);
	if (!ch)
		return false;
	pthread_mutex_lock(&ch->lock);
	may = ch->n_frames > 0;
	pthread_mutex_unlock(&ch->lock);
	chunk_put(ch);
	return may;
}

/* Of a piece, 0 also if it was left alone; OVER or an error: so is the rest of the request. GAVE_WAY: it is to be tried again, when range is free. */
enum { OVER = 1, GAVE_WAY };

/* ---- one piece for the host ---- */

/* How many pages home can take for it: an eighth stays free. */
static uint64_t room_to_read(struct cache *c)
{
	uint64_t keep = c->frames.budget / HOME_SHARE, room = home_room(c);

	return room - MIN(room, keep);
}

/* Lock those of pages [a, b) that would have to be read from the store, as far as home has room and nobody has them locked. How many. */
static unsigned stored_pages_take(struct readahead *ra, struct chunk *ch, unsigned a, unsigned b, uint64_t *pages)
{
	uint64_t room = room_to_read(ra->cache);
	unsigned n = 0;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b; i++) {
		if (!page_is_only_stored(ch, i))
			continue;
		if (n == room) {
			atomic_fetch_add(&ra->st.n_lost, 1);
			break;
		}
		if (!page_trylock(ch, i))
			continue;
		bit_set(pages, i);
		n++;
	}
	pthread_mutex_unlock(&ch->lock);
	return n;
}

/* Read those of pages [a, b) that are in the store alone. file->range is held. */
static int chunk_read(struct readahead *ra, struct chunk *ch, unsigned a, unsigned b)
{
	struct fills fills = FILLS(fills, false);
	uint64_t pages[GAIA_CHUNK_PAGES / 64] = { 0 };
	unsigned there = 0;
	int err, also;

	if (stored_pages_take(ra, ch, a, b, pages) == 0)
		return 0;
	(void)fault_point("readahead.bring");
	fills.quiet = true;
	err = home_fill_begin(&fills, ch, a, b, pages);
	also = home_fill_end(&fills);
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; (i = bits_first(pages, i, b)) < b; i++) {
		there += page_present(ch, i);
		pages_unlock(ch, i, i + 1);
	}
	pthread_mutex_unlock(&ch->lock);
	count(CTR_readahead_home, there);
	chunk_account(ch);
	err = err ? err : also;
	if (err == -ENOBUFS)
		atomic_fetch_add(&ra->st.n_lost, 1);
	return err == -ENOBUFS ? 0 : err;
}

static int read_once(struct readahead *ra, struct page_span piece)
{
	uint64_t index = piece.a / GAIA_CHUNK_PAGES, start = index * GAIA_CHUNK_PAGES;
	struct chunk *ch;
	int err;

	if (room_to_read(ra->cache) == 0) {
		atomic_fetch_add(&ra->st.n_lost, 1);
		return OVER;
	}
	ch = chunk_get(ra->mapping->file, index, true);
	err = chunk_read(ra, ch, (unsigned)(piece.a - start), (unsigned)(piece.b - start));

	chunk_put(ch);
	return err;
}

/* ---- one piece, anywhere ---- */

/* Who waits to truncate the file, and all who wait behind, go first. */
static bool range_try(struct cfile *f)
{
	return atomic_load(&f->range_waiters) == 0 && !pthread_rwlock_tryrdlock(&f->range);
}

static int bring(struct readahead *ra, struct page_span piece)
{
	struct mapping *m = ra->mapping;
	struct cfile *f = m->file;
	uint64_t index = piece.a / GAIA_CHUNK_PAGES;
	int err;

	if (atomic_load(&m->dev->gone) || passthrough_compares(f) || piece.a >= (cfile_size(f) + GAIA_PAGE - 1) / GAIA_PAGE)
		return OVER;
	if (!range_try(f))
		return GAVE_WAY;
	err = m->dev->home ? read_once(ra, piece) : bring_once(m, piece);
	pthread_rwlock_unlock(&f->range);
	if (err != -ENOENT || m->dev->home)
		return err;
	if (!may_bring(m, index))
		return 0;
	err = replica_make_ahead(m, index);
	if (err)
		return err;
	if (range_try(f)) {
		err = bring_once(m, piece);
		pthread_rwlock_unlock(&f->range);
	} else {
		err = GAVE_WAY;
	}
	replica_drop_empty(m, index);
	return err == -ENOENT ? 0 : err;
}

/* ---- requests ---- */

/* Whether it gave way. */
static bool work(struct readahead *ra)
{
	struct working_for before;
	uint64_t id;
	int err = 0;

	for (unsigned k = 0; k < PIECES && ra->st.n_requests > 0 && !ra->ended && err != GAVE_WAY; k++) {
		struct page_span piece;

		id = streams_next(&ra->st, piece_pages(ra->cache), &ra->piece);
		ra->present = ra->st.request[0].all;
		piece = ra->piece;
		pthread_mutex_unlock(&ra->lock);
		pthread_rwlock_rdlock(&ra->cache->round);
		before = uses_enter_ahead(ra->user.uses);
		err = bring(ra, piece);
		uses_leave(before);
		pthread_rwlock_unlock(&ra->cache->round);
		if (err < 0)
			count(CTR_readahead_failed, 1);
		if (err == -ENOMEM)
			atomic_fetch_add(&ra->st.n_lost, 1);
		pthread_mutex_lock(&ra->lock);
		ra->piece = (struct page_span){ 0, 0 };
		pthread_cond_broadcast(&ra->paused);
		if (err == 0)
			streams_done(&ra->st, id, piece);
		else if (err != GAVE_WAY)
			streams_drop(&ra->st, id);
	}
	return err == GAVE_WAY;
}

static void run(void *arg);

static void submit(struct readahead *ra)
{
	pool_submit_for(ra->cache->readahead, ra->user.uid, ra->user.owner, run, ra);
}

void readahead_wake(struct cfile *f)
{
	TAILQ_HEAD(, readahead) woken = TAILQ_HEAD_INITIALIZER(woken);
	struct readahead *ra;

	pthread_mutex_lock(&f->lock);
	while ((ra = TAILQ_FIRST(&f->gave_way))) {
		TAILQ_REMOVE(&f->gave_way, ra, link);
		ra->gave_way = false;
		TAILQ_INSERT_TAIL(&woken, ra, link);
	}
	pthread_mutex_unlock(&f->lock);
	/* As soon as it is submitted it may give way again. */
	while ((ra = TAILQ_FIRST(&woken))) {
		TAILQ_REMOVE(&woken, ra, link);
		submit(ra);
	}
}

/* The job waits until range is not held exclusively any more. */
static void give_way(struct readahead *ra)
{
	struct cfile *f = ra->mapping->file;

	pthread_mutex_lock(&f->lock);
	ra->gave_way = true;
	TAILQ_INSERT_TAIL(&f->gave_way, ra, link);
	pthread_mutex_unlock(&f->lock);
	/* Whoever had it, or waited for it, may have been done before that. */
	if (range_try(f)) {
		pthread_rwlock_unlock(&f->range);
		readahead_wake(f);
	}
}

/* The job ends. */
static void job_end(struct readahead *ra)
{
	struct cache *c = ra->cache;

	ra_put(ra);
	atomic_fetch_sub(&c->n_readahead, 1);
}

static void run(void *arg)
{
	struct readahead *ra = ra_get(arg);
	bool more, waits;

	(void)fault_point("readahead.begin");
	pthread_mutex_lock(&ra->lock);
	ra->at_work++;
	waits = work(ra);
	more = ra->st.n_requests > 0 && !ra->ended;
	waits &= more;
	ra->queued = more;
	if (waits) {
		pthread_mutex_unlock(&ra->lock);
		give_way(ra);
		pthread_mutex_lock(&ra->lock);
	}
	ra->at_work--;
	pthread_cond_broadcast(&ra->paused);
	pthread_mutex_unlock(&ra->lock);
	if (more && !waits)
		submit(ra);
	else if (!more)
		job_end(ra);
	ra_put(ra);
}

static void ask(struct readahead *ra, struct request rq)
{
	bool begin;

	pthread_mutex_lock(&ra->lock);
	begin = streams_ask(&ra->st, rq) && !ra->queued;
	if (begin) {
		ra->queued = true;
		ra_get(ra);
		atomic_fetch_add(&ra->cache->n_readahead, 1);
	}
	pthread_mutex_unlock(&ra->lock);
	if (begin)
		submit(ra);
}

void readahead_acquired(struct mapping *m, struct page_span span)
{
	struct readahead *ra = m->readahead;
	struct request rq;
	bool asks;

	pthread_mutex_lock(&ra->lock);
	asks = streams_acquired(&ra->st, span, &rq);
	pthread_mutex_unlock(&ra->lock);
	/* Mostly what goes round in a file that is all there. */
	if (asks && !(rq.stride == 0 && ready_has(m, rq.rest)))
		ask(ra, rq);
}

/* ---- advice ---- */

void readahead_will_need(struct mapping *m, struct page_span span)
{
	ask(m->readahead, (struct request){ .rest = span, .all = span });
}

void readahead_cancel(struct mapping *m, struct page_span span)
{
	struct readahead *ra = m->readahead;

	pthread_mutex_lock(&ra->lock);
	streams_cut(&ra->st, span, false);
	while (spans_meet(ra->piece, span))
		pthread_cond_wait(&ra->paused, &ra->lock);
	pthread_mutex_unlock(&ra->lock);
}

int readahead_advise(struct mapping *m, struct page_span span, unsigned how)
{
	struct readahead *ra = m->readahead;
	int err;

	pthread_mutex_lock(&ra->lock);
	err = streams_advise(&ra->st, span, how);
	pthread_mutex_unlock(&ra->lock);
	return err;
}

/* ---- life ---- */

int readahead_begin(struct mapping *m, struct cache *c, struct cache_user user)
{
	struct readahead *ra = calloc(1, sizeof(*ra));

	if (!ra)
		return -ENOMEM;
	ra->mapping = m;
	ra->st.all = (struct page_span){ m->off / GAIA_PAGE, (m->off + m->len + GAIA_PAGE - 1) / GAIA_PAGE };
	ra->cache = c;
	ra->user = user;
	atomic_init(&ra->refs, 1);
	pthread_mutex_init(&ra->lock, NULL);
	pthread_cond_init(&ra->paused, NULL);
	m->readahead = ra;
	return 0;
}

void readahead_cease(struct mapping *m)
{
	pthread_mutex_lock(&m->readahead->lock);
	m->readahead->ended = true;
	pthread_mutex_unlock(&m->readahead->lock);
}

/* A job that waits in file->gave_way ends there. */
static void end_waiting(struct readahead *ra, struct cfile *f)
{
	bool waits;

	pthread_mutex_lock(&f->lock);
	waits = ra->gave_way;
	if (waits)
		TAILQ_REMOVE(&f->gave_way, ra, link);
	ra->gave_way = false;
	pthread_mutex_unlock(&f->lock);
	if (waits)
		job_end(ra);
}

void readahead_end(struct mapping *m)
{
	struct readahead *ra = m->readahead;

	readahead_cease(m);
	pthread_mutex_lock(&ra->lock);
	while (ra->at_work > 0)
		pthread_cond_wait(&ra->paused, &ra->lock);
	pthread_mutex_unlock(&ra->lock);
	if (m->file)
		end_waiting(ra, m->file);
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
