/* chunk.c - chunks, page locks, frames for pages, and the eviction of home. See internal.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/state.h"

/* ---- life ---- */

static struct chunk *chunk_create(struct cfile *f, uint64_t index)
{
	struct chunk *ch = xcalloc(1, sizeof(*ch));

	ch->file = f;
	ch->index = index;
	pthread_mutex_init(&ch->lock, NULL);
	pthread_cond_init(&ch->unlocked, NULL);
	HASH_ADD(hh, f->chunks, index, sizeof(ch->index), ch);
	cfile_use(f);
	return ch;
}

static void chunk_destroy(struct chunk *ch)
{
	bug_on(ch->n_frames || ch->n_dirty || ch->n_replicas || ch->track);
	bug_on(ch->lists || ch->arriving || ch->unsynced);
	pthread_cond_destroy(&ch->unlocked);
	pthread_mutex_destroy(&ch->lock);
	for (unsigned i = 0; i < ARRAY_LEN(ch->leaf); i++)
		free(ch->leaf[i]);
	free(ch->replica);
	free(ch);
}

struct chunk *chunk_get(struct cfile *f, uint64_t index, bool make)
{
	struct chunk *ch;

	pthread_mutex_lock(&f->lock);
	HASH_FIND(hh, f->chunks, &index, sizeof(index), ch);
	if (!ch && make)
		ch = chunk_create(f, index);
	if (ch)
		ch->refs++;
	pthread_mutex_unlock(&f->lock);
	return ch;
}

struct chunk *chunk_ref(struct chunk *ch)
{
	pthread_mutex_lock(&ch->file->lock);
	ch->refs++;
	pthread_mutex_unlock(&ch->file->lock);
	return ch;
}

void chunk_put(struct chunk *ch)
{
	struct cfile *f = ch->file;
	bool last;

	pthread_mutex_lock(&f->lock);
	bug_on(ch->refs == 0);
	last = --ch->refs == 0;
	if (last)
		HASH_DEL(f->chunks, ch);
	pthread_mutex_unlock(&f->lock);
	if (!last)
		return;
	chunk_destroy(ch);
	cfile_unuse(f);
}

static int by_index(const void *a, const void *b)
{
	const struct chunk *x = *(struct chunk *const *)a, *y = *(struct chunk *const *)b;

	return x->index < y->index ? -1 : x->index > y->index;
}

unsigned chunk_list_get(struct cfile *f, uint64_t first, uint64_t last, struct chunk ***out)
{
	struct chunk **list, *ch, *tmp;
	unsigned n = 0;

	pthread_mutex_lock(&f->lock);
	list = xmalloc((HASH_COUNT(f->chunks) + 1) * sizeof(struct chunk *));
	HASH_ITER(hh, f->chunks, ch, tmp) {
		if (ch->index < first || ch->index > last)
			continue;
		ch->refs++;
		list[n++] = ch;
	}
	pthread_mutex_unlock(&f->lock);
	if (n > 1)
		qsort(list, n, sizeof(struct chunk *), by_index);
	*out = list;
	return n;
}

/* ---- what a sync has to look at ---- */

/* One of the counts has changed. chunk->lock is held. */
static void note_unsynced(struct chunk *ch)
{
	struct cfile *f = ch->file;
	bool is = ch->n_dirty || ch->n_stored || ch->n_ahead;

	if (is == ch->unsynced)
		return;
	pthread_mutex_lock(&f->lock);
	ch->unsynced = is;
	if (is)
		TAILQ_INSERT_TAIL(&f->unsynced, ch, link);
	else
		TAILQ_REMOVE(&f->unsynced, ch, link);
	pthread_mutex_unlock(&f->lock);
}

void chunk_count_ahead(struct chunk *ch, int more)
{
	atomic_fetch_add(&ch->n_ahead, (unsigned)more);
	note_unsynced(ch);
	atomic_fetch_add(&ch->file->n_ahead, (uint64_t)more);
	atomic_fetch_add(&ch->file->cache->n_ahead, (uint64_t)more);
}

static unsigned count_of(const struct chunk *ch, enum unsynced what)
{
	switch (what) {
	case UNSYNCED_AHEAD:
		return ch->n_ahead;
	case UNSYNCED_DIRTY:
		return ch->n_dirty;
	case UNSYNCED_STORED:
		return ch->n_stored;
	default:
		return 1;
	}
}

unsigned chunk_list_unsynced(struct cfile *f, uint64_t first, uint64_t last, enum unsynced what,
			     struct chunk ***out)
{
	struct chunk **list = NULL, *ch;
	unsigned n = 0;

	pthread_mutex_lock(&f->lock);
	TAILQ_FOREACH(ch, &f->unsynced, link) {
		if (ch->index < first || ch->index > last || count_of(ch, what) == 0)
			continue;
		if ((n & (n - 1)) == 0)
			list = xrealloc(list, MAX(2 * n, 1u) * sizeof(struct chunk *));
		ch->refs++;
		list[n++] = ch;
	}
	pthread_mutex_unlock(&f->lock);
	if (n > 1)
		qsort(list, n, sizeof(struct chunk *), by_index);
	*out = list;
	return n;
}

/* ---- page locks ---- */

struct page *page_make(struct chunk *ch, unsigned i)
{
	struct page **leaf = &ch->leaf[i / LEAF_PAGES];

	if (!*leaf)
		*leaf = xcalloc(LEAF_PAGES, sizeof(**leaf));
	return *leaf + i % LEAF_PAGES;
}

/* Free the leaves that say nothing: of pages without frames that nobody has locked or waits for. chunk->lock is held. */
static void leaves_trim(struct chunk *ch)
{
	static const struct page nothing[LEAF_PAGES];

	for (unsigned k = 0; k < ARRAY_LEN(ch->leaf); k++) {
		if (!ch->leaf[k] || memcmp(ch->leaf[k], nothing, sizeof(nothing)) != 0)
			continue;
		free(ch->leaf[k]);
		ch->leaf[k] = NULL;
	}
}

/*
 * Threads that wait for a page exclusively go before those that come to share it: otherwise readers that never pause could keep
 * it for ever. And threads that waited to share it while it was locked go before the next one that locks it.
 */
static bool may_lock(const struct page *p, bool to_write)
{
	unsigned not = PAGE_LOCKED | PAGE_SHARERS_TURN | (to_write ? 0 : PAGE_STORING);

	return !(p->flags & not) && !p->readers;
}

static bool may_share(const struct page *p)
{
	return !(p->flags & PAGE_LOCKED) && p->readers < UINT8_MAX &&
	       (!p->lockers || (p->flags & PAGE_SHARERS_TURN));
}

/* Waiting threads beyond the largest count wait without being counted. */
static bool join_queue(uint8_t *n)
{
	if (*n == UINT8_MAX)
		return false;
	++*n;
	return true;
}

/*
 * What this thread shares: the number of pages, and the last one for which it may have waited. Checks rule 17, in builds for
 * tests. (A page may be unshared on another thread than it was shared on; then the counts of both are wrong.)
 */
#ifdef GAIA_FAULTS
static _Thread_local struct {
	const struct chunk *ch; /* NULL: nothing is shared */
	int page;
	unsigned n;
} shared;

static void shared_add(const struct chunk *ch, unsigned i, bool waits)
{
	if (waits || shared.n == 0) {
		shared.ch = ch;
		shared.page = (int)i;
	}
	shared.n++;
}

static void shared_remove(const struct chunk *ch, unsigned i)
{
	/* In tests a read may end on another thread. */
	shared.n -= shared.n > 0;
	if (shared.ch == ch && shared.page == (int)i)
		shared.page--;
	/* The chunk may be freed from now on. */
	if (shared.n == 0)
		shared.ch = NULL;
}

static void check_order(const struct chunk *ch, unsigned i)
{
	bug_on(shared.n > 0 &&
	       (shared.ch->file != ch->file || shared.ch->index > ch->index ||
		(shared.ch == ch && shared.page >= (int)i)));
}
#else
static void shared_add(const struct chunk *ch, unsigned i, bool waits)
{
}

static void shared_remove(const struct chunk *ch, unsigned i)
{
}

static void check_order(const struct chunk *ch, unsigned i)
{
}
#endif

static bool try_lock(struct chunk *ch, unsigned i, bool to_write)
{
	struct page *p = page_make(ch, i);

	chunk_unready(ch);
	if (!may_lock(p, to_write))
		return false;
	p->flags |= PAGE_LOCKED;
	ch->n_locked++;
	return true;
}

bool page_trylock(struct chunk *ch, unsigned i)
{
	return try_lock(ch, i, false);
}

void page_wait(struct chunk *ch)
{
	thread_waits();
	pthread_cond_wait(&ch->unlocked, &ch->lock);
}

static void page_lock(struct chunk *ch, unsigned i, bool to_write)
{
	bool counted;

	if (try_lock(ch, i, to_write))
		return;
	check_order(ch, i);
	counted = join_queue(&page_make(ch, i)->lockers);
	while (!try_lock(ch, i, to_write))
		page_wait(ch);
	page_at(ch, i)->lockers -= counted;
}

void pages_lock(struct chunk *ch, unsigned a, unsigned b)
{
	for (unsigned i = a; i < b; i++)
		page_lock(ch, i, false);
}

static bool is_to_renew(const struct chunk *ch, unsigned i)
{
	return (page_at(ch, i)->flags & (PAGE_STORING | PAGE_RENEWED)) == PAGE_STORING;
}

unsigned pages_lock_to_write(struct chunk *ch, unsigned a, unsigned b)
{
	unsigned n = 0;

	for (unsigned i = a; i < b; i++) {
		page_lock(ch, i, true);
		n += is_to_renew(ch, i);
	}
	return n;
}

static void end_locked(struct chunk *ch, struct page *p)
{
	bug_on(!(p->flags & PAGE_LOCKED));
	p->flags &= (uint8_t)~PAGE_LOCKED;
	ch->n_locked--;
	if (p->sharers > 0)
		p->flags |= PAGE_SHARERS_TURN;
}

void pages_unlock(struct chunk *ch, unsigned a, unsigned b)
{
	for (unsigned i = a; i < b; i++)
		end_locked(ch, page_at(ch, i));
	if (a < b)
		pthread_cond_broadcast(&ch->unlocked);
}

static bool try_lock_all(struct chunk *ch, unsigned a, unsigned b, bool to_write)
{
	unsigned i = a;

	while (i < b && try_lock(ch, i, to_write))
		i++;
	if (i < b)
		pages_unlock(ch, a, i);
	return i == b;
}

void pages_lock_some(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages)
{
	FOR_RUNS(pages, a, b, i, j)
		pages_lock(ch, i, j);
}

void pages_unlock_some(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages)
{
	FOR_RUNS(pages, a, b, i, j)
		pages_unlock(ch, i, j);
}

bool pages_trylock_some(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages)
{
	FOR_RUNS(pages, a, b, i, j)
		if (!try_lock_all(ch, i, j, false)) {
			pages_unlock_some(ch, a, i, pages);
			return false;
		}
	return true;
}

bool pages_trylock(struct chunk *ch, unsigned a, unsigned b)
{
	return try_lock_all(ch, a, b, false);
}

bool pages_trylock_to_write(struct chunk *ch, unsigned a, unsigned b)
{
	return try_lock_all(ch, a, b, true);
}

bool page_tryshare(struct chunk *ch, unsigned i)
{
	struct page *p = page_make(ch, i);

	chunk_unready(ch);
	if (!may_share(p))
		return false;
	p->readers++;
	ch->n_shared++;
	shared_add(ch, i, false);
	return true;
}

void page_share(struct chunk *ch, unsigned i)
{
	struct page *p = page_make(ch, i);

	if (!may_share(p)) {
		bool counted = join_queue(&p->sharers);

		check_order(ch, i);
		while (!may_share(p)) {
			page_wait(ch);
			p = page_make(ch, i);
		}
		p->sharers -= counted;
		/* The sharers' turn ends with the last of them; others wait for that. */
		if (p->sharers == 0)
			p->flags &= (uint8_t)~PAGE_SHARERS_TURN;
	}
	chunk_unready(ch);
	p->readers++;
	ch->n_shared++;
	shared_add(ch, i, true);
}

void page_unshare(struct chunk *ch, unsigned i)
{
	bug_on(page_at(ch, i)->readers == 0);
	shared_remove(ch, i);
	ch->n_shared--;
	if (--page_at(ch, i)->readers == 0)
		pthread_cond_broadcast(&ch->unlocked);
}

void page_downgrade(struct chunk *ch, unsigned i)
{
	end_locked(ch, page_at(ch, i));
	page_at(ch, i)->readers = 1;
	ch->n_shared++;
	shared_add(ch, i, true);
	pthread_cond_broadcast(&ch->unlocked);
}

/* ---- frames of pages ---- */

void *page_ptr(const struct chunk *ch, unsigned i)
{
	return frame_ptr(&ch->file->cache->frames, page_at(ch, i)->frame);
}

/* chunk->lock is held, so nobody else changes it; readers without the lock, who take it for a hint, must see a valid number. */
static void tally(atomic_uint *n, int more)
{
	atomic_store_explicit(n, atomic_load_explicit(n, memory_order_relaxed) + (unsigned)more,
			      memory_order_relaxed);
}

frame_t page_set_frame(struct chunk *ch, unsigned i, frame_t frame)
{
	frame_t old = page_at(ch, i)->frame;

	page_at(ch, i)->frame = frame;
	tally(&ch->n_frames, (frame != 0) - (old != 0));
	return old;
}

/*
 * Pages become dirty, stored (PAGE_STORED) or, with @state 0, neither. One of the counters belongs to all files: so it is changed
 * once for all these pages.
 */
static void pages_become(struct chunk *ch, unsigned a, unsigned b, uint8_t state)
{
	struct cfile *f = ch->file;
	int dirty = 0, stored = 0;

	for (unsigned i = a; i < b; i++) {
		struct page *p = page_at(ch, i);
		uint8_t now = (uint8_t)((p->flags & ~(PAGE_DIRTY | PAGE_STORED | PAGE_SYNCING)) | state);

		bug_on(state && !p->frame);
		dirty += !!(now & PAGE_DIRTY) - !!(p->flags & PAGE_DIRTY);
		stored += !!(now & PAGE_STORED) - !!(p->flags & PAGE_STORED);
		p->flags = now;
	}
	tally(&ch->n_dirty, dirty);
	tally(&ch->n_stored, stored);
	note_unsynced(ch);
	if (dirty) {
		atomic_fetch_add(&f->n_dirty, (uint64_t)dirty);
		atomic_fetch_add(&f->cache->n_dirty, (uint64_t)dirty);
	}
	if (stored)
		atomic_fetch_add(&f->n_stored, (uint64_t)stored);
}

void pages_set_dirty(struct chunk *ch, unsigned a, unsigned b)
{
	pages_become(ch, a, b, PAGE_DIRTY);
}

void pages_set_stored(struct chunk *ch, unsigned a, unsigned b)
{
	pages_become(ch, a, b, PAGE_STORED);
}

void page_clear_dirty(struct chunk *ch, unsigned i)
{
	if (page_dirty(ch, i))
		pages_become(ch, i, i + 1, 0);
}

void page_drop(struct chunk *ch, unsigned i)
{
	frame_t old;

	if (!page_present(ch, i))
		return;
	under_drop(ch, i);
	pages_become(ch, i, i + 1, 0);
	page_at(ch, i)->flags &= (uint8_t)~PAGE_GIVEN;
	old = page_set_frame(ch, i, 0);
	frames_give(&ch->file->cache->frames, &old, 1);
}

static int no_memory(unsigned n)
{
	log_error("home: no memory for %u pages; give the machine more, or --home less", n);
	return -ENOMEM;
}

/* ---- storing ---- */

bool store_begin(struct chunk *ch, unsigned i, bool wait)
{
	struct page *p;

	for (;;) {
		/* Not as a sharer: those who write go before this one's turn. */
		while (wait && (page_make(ch, i)->flags & PAGE_STORING)) {
			check_order(ch, i);
			page_wait(ch);
		}
		if (wait)
			page_share(ch, i);
		else if ((page_make(ch, i)->flags & PAGE_STORING) || !page_tryshare(ch, i))
			return false;
		p = page_at(ch, i);
		if (!(p->flags & PAGE_STORING))
			break;
		page_unshare(ch, i);
	}
	if (page_dirty(ch, i)) {
		p->flags |= PAGE_STORING;
		ch->n_storing++;
	}
	page_unshare(ch, i);
	return p->flags & PAGE_STORING;
}

void store_ended(struct chunk *ch, unsigned a, unsigned b, const frame_t *frame, bool stored)
{
	struct frames *fr = &ch->file->cache->frames;
	unsigned i, j;

	for (i = a; i < b; i = j) {
		bool renewed = page_at(ch, i)->flags & PAGE_RENEWED;

		for (j = i; j < b && !(page_at(ch, j)->flags & PAGE_RENEWED) == !renewed; j++)
			page_at(ch, j)->flags &= (uint8_t)~PAGE_STORING;
		ch->n_storing -= j - i;
		if (renewed)
			frames_give(fr, frame + (i - a), j - i);
		else if (stored)
			pages_set_stored(ch, i, j);
	}
	for (i = a; i < b; i++)
		page_at(ch, i)->flags &= (uint8_t)~PAGE_RENEWED;
	pthread_cond_broadcast(&ch->unlocked);
}

/* As frame_alloc(), but waits for no storage: goes beyond the budget by what is being stored at most. */
static int frames_to_renew(struct cache *c, unsigned n, frame_t *out)
{
	unsigned got = frames_take(&c->frames, n, out, false);

	if (got < n)
		got += frames_take(&c->frames, n - got, out + got, true);
	if (got == n)
		return 0;
	frames_give(&c->frames, out, got);
	return no_memory(n);
}

int pages_renew(struct chunk *ch, unsigned a, unsigned b, unsigned n)
{
	struct cache *c = ch->file->cache;
	frame_t frame[GAIA_CHUNK_PAGES];
	int err = n > 0 ? frames_to_renew(c, n, frame) : 0;

	if (n == 0 || err)
		return err;
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b; i++) {
		if (!is_to_renew(ch, i)) /* it may have been stored by now */
			continue;
		memcpy(frame_ptr(&c->frames, frame[--n]), page_ptr(ch, i), GAIA_PAGE);
		/* The thread that stores the old one gives it back. */
		page_set_frame(ch, i, frame[n]);
		page_at(ch, i)->flags |= PAGE_RENEWED;
	}
	pthread_mutex_unlock(&ch->lock);
	frames_give(&c->frames, frame, n);
	return 0;
}

/* ---- the cache's lists of chunks ---- */

/*
 * Put the chunk on those of @lists that it is not on, with a reference for each. chunk->lock is held. Nearly always it is on
 * them; if not, this still takes no lock that other files use: the chunk is added to cache.arrivals, and the thread that
 * next looks at the lists puts arrivals on them, in the order in which they came (lists_lock()).
 */
static void chunk_arrive(struct chunk *ch, unsigned lists)
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

static void lists_lock(struct cache *c)
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

/* The lists are locked as above, and the chunk is on the list; the list's reference becomes the caller's. */
static void leave_lru(struct chunk *ch)
{
	struct cache *c = ch->file->cache;

	TAILQ_REMOVE(&c->lru, ch, lru);
	c->n_lru--;
	atomic_fetch_and(&ch->lists, ~CHUNK_LRU);
}

static void leave_dirty(struct chunk *ch)
{
	TAILQ_REMOVE(&ch->file->cache->dirty, ch, dirty);
	atomic_fetch_and(&ch->lists, ~CHUNK_DIRTY);
}

static void leave_emptied(struct chunk *ch)
{
	TAILQ_REMOVE(&ch->file->cache->emptied, ch, emptied);
	atomic_fetch_and(&ch->lists, ~CHUNK_EMPTIED);
}

static void leave_ahead(struct chunk *ch)
{
	TAILQ_REMOVE(&ch->file->cache->ahead, ch, ahead);
	atomic_fetch_and(&ch->lists, ~CHUNK_AHEAD);
}

void chunk_account(struct chunk *ch)
{
	/* A thread that takes a chunk off a list either sees, under its lock, that it need not be there, or calls this afterwards. */
	pthread_mutex_lock(&ch->lock);
	if (ch->n_frames == 0)
		leaves_trim(ch);
	chunk_arrive(ch, (ch->n_frames ? CHUNK_LRU : 0) | (ch->n_dirty ? CHUNK_DIRTY : 0) | (ch->n_ahead ? CHUNK_AHEAD : 0));
	pthread_mutex_unlock(&ch->lock);
}

void chunk_unlist(struct chunk *ch)
{
	struct cache *c = ch->file->cache;
	unsigned before, drop;

	/* The lock keeps it from arriving again. */
	pthread_mutex_lock(&ch->lock);
	leaves_trim(ch);
	lists_lock(c);
	before = ch->lists;
	if ((before & CHUNK_LRU) && ch->n_frames == 0)
		leave_lru(ch);
	if ((before & CHUNK_DIRTY) && ch->n_dirty == 0)
		leave_dirty(ch);
	if ((before & CHUNK_AHEAD) && ch->n_ahead == 0)
		leave_ahead(ch);
	if (before & CHUNK_EMPTIED)
		leave_emptied(ch);
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
		leave_dirty(ch);
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
		leave_ahead(ch);
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
			leave_emptied(ch);
		pthread_mutex_unlock(&c->lock);
		if (!ch)
			return;
		chunk_unlist(ch);
		chunk_put(ch);
	}
}

/* ---- what the kernel has ---- */

/* Whether devices share the chunk: they read home, not the kernel's cache. chunk->lock is held. */
static bool devices_share(const struct chunk *ch)
{
	return ch->track || atomic_load(&ch->file->mappings) > 0;
}

/* Returns its frame if the page may leave, and drops it; else 0: what was stored may have to be stored again if a sync fails. */
static frame_t page_leave(struct chunk *ch, unsigned i)
{
	struct page *p = page_at(ch, i);

	if (!p->frame || p->readers || (p->flags & (PAGE_LOCKED | PAGE_DIRTY | PAGE_STORED)))
		return 0;
	p->flags &= (uint8_t)~PAGE_GIVEN;
	return page_set_frame(ch, i, 0);
}

/* Drop the lock, and give back the frames of the pages that have left. */
static void pages_left(struct chunk *ch, const frame_t *frame, unsigned n)
{
	if (n > 0 && ch->n_frames == 0)
		chunk_arrive(ch, CHUNK_EMPTIED);
	pthread_mutex_unlock(&ch->lock);
	if (n == 0)
		return;
	frames_give(&ch->file->cache->frames, frame, n);
	count(CTR_home_given, n);
}

void pages_unshare(struct chunk *ch, unsigned a, unsigned b, bool given)
{
	frame_t frame[GAIA_CHUNK_PAGES];
	unsigned n = 0;

	pthread_mutex_lock(&ch->lock);
	given = given && !devices_share(ch);
	for (unsigned i = a; i < b; i++) {
		page_unshare(ch, i);
		if (given && (frame[n] = page_leave(ch, i)))
			n++;
	}
	pages_left(ch, frame, n);
}

void chunk_sync_begins(struct chunk *ch)
{
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES && ch->n_stored; i++)
		if (page_at(ch, i) && (page_at(ch, i)->flags & PAGE_STORED))
			page_at(ch, i)->flags |= PAGE_SYNCING;
	pthread_mutex_unlock(&ch->lock);
}

void chunk_sync_ended(struct chunk *ch, bool worked)
{
	frame_t frame[GAIA_CHUNK_PAGES];
	unsigned n = 0;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES && ch->n_stored; i++) {
		struct page *p = page_at(ch, i);

		if (!p || !(p->flags & PAGE_SYNCING))
			continue;
		p->flags &= (uint8_t)~PAGE_SYNCING;
		if (!worked)
			continue;
		pages_become(ch, i, i + 1, 0);
		if ((p->flags & PAGE_GIVEN) && !devices_share(ch) && (frame[n] = page_leave(ch, i)))
			n++;
	}
	pages_left(ch, frame, n);
}

/* ---- eviction ---- */

unsigned chunk_shrink(struct chunk *ch)
{
	unsigned n = 0;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES && ch->n_frames; i++) {
		struct page *p = page_at(ch, i);

		if (!p || !p->frame || p->readers || (p->flags & (PAGE_LOCKED | PAGE_DIRTY)))
			continue;
		if (!home_may_leave(ch, i))
			continue;
		page_drop(ch, i);
		n++;
	}
	pthread_mutex_unlock(&ch->lock);
	count(CTR_home_evicted, n);
	return n;
}

/* So many chunks are looked at before the lock, which all files share, is dropped. */
#define LOOKS_AT_ONCE 64u

/* A hint: its lock is not held. */
static bool all_dirty(const struct chunk *ch)
{
	return ch->n_dirty > 0 && ch->n_dirty == ch->n_frames;
}

/*
 * The chunk that was not used for the longest time and may have clean pages, taken off the list; the list's reference becomes the
 * caller's. Chunks that were used since the last look get a second chance. NULL: there was none among those looked at. *@looks counts down.
 */
static struct chunk *lru_next(struct cache *c, unsigned *looks)
{
	struct chunk *ch, *found = NULL;

	lists_lock(c);
	for (unsigned n = MIN(*looks, LOOKS_AT_ONCE); n > 0 && !found; n--) {
		--*looks;
		ch = TAILQ_FIRST(&c->lru);
		if (!ch) {
			*looks = 0;
			break;
		}
		if (atomic_exchange(&ch->referenced, false) || all_dirty(ch)) {
			TAILQ_REMOVE(&c->lru, ch, lru);
			TAILQ_INSERT_TAIL(&c->lru, ch, lru);
		} else {
			leave_lru(ch);
			found = ch;
		}
	}
	pthread_mutex_unlock(&c->lock);
	return found;
}

/* Evict clean frames until @want are free or every chunk was looked at. Returns how many. */
static unsigned home_evict(struct cache *c, unsigned want)
{
	unsigned freed = 0, looks;
	struct chunk *ch;

	lists_lock(c);
	looks = 2 * c->n_lru;
	pthread_mutex_unlock(&c->lock);
	while (looks > 0 && freed < want) {
		ch = lru_next(c, &looks);
		if (!ch)
			continue;
		freed += chunk_shrink(ch);
		chunk_account(ch);
		chunk_put(ch);
	}
	return freed;
}

/* Store some of the chunk that has been dirty longest, so that it can be evicted. Returns the number of pages stored. */
static unsigned home_clean(struct cache *c)
{
	struct chunk *ch = chunk_due(c, 0);
	unsigned n;

	if (!ch)
		return 0;
	n = chunk_store_some(ch);
	chunk_account(ch);
	chunk_put(ch);
	return n;
}

int frame_alloc(struct cache *c, unsigned n, frame_t *out)
{
	unsigned got = 0, fruitless = 0, more;

	while (got < n) {
		got += frames_take(&c->frames, n - got, out + got, false);
		if (got == n)
			break;
		if (home_evict(c, MAX(n - got, 64u)) > 0 || home_clean(c) > 0) {
			fruitless = 0;
			continue;
		}
		/* When so many attempts have failed all dirty chunks of the list were tried. */
		if (++fruitless < 4)
			continue;
		/*
		 * Everything is in use or cannot be stored. If threads waited here, they might hold what
		 * the others wait for. One more page does less harm than a deadlock.
		 */
		more = frames_take(&c->frames, n - got, out + got, true);
		if (more == 0)
			goto give_back;
		got += more;
	}
	return 0;

give_back:
	frames_give(&c->frames, out, got);
	return no_memory(n);
}

int home_room_to_stay(struct cache *c, unsigned n)
{
	uint64_t most = c->frames.budget - c->frames.budget / 4, used;
	unsigned fruitless = 0;

	while ((used = atomic_load(&c->frames.used)) + n > most && fruitless < 4) {
		if (home_evict(c, (unsigned)(used + n - most)) > 0 || home_clean(c) > 0)
			fruitless = 0;
		else
			fruitless++;
	}
	return fruitless < 4 ? 0 : -ENOMEM;
}

int spares_take(struct cache *c, frame_t spare[2])
{
	int err = 0;

	for (unsigned k = 0; k < 2 && !err; k++)
		if (!spare[k])
			err = frame_alloc(c, 1, &spare[k]);
	return err;
}

void spares_give(struct cache *c, frame_t spare[2])
{
	for (unsigned k = 0; k < 2; k++)
		if (spare[k])
			frames_give(&c->frames, &spare[k], 1);
}
