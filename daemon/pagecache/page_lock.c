/* page_lock.c - the locks of pages: a state of each page, not a mutex. See rules 3, 17 and 21. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/counters.h"
#include "base/thread.h"
#include "base/uses.h"
#include "base/util.h"
#include "pagecache/chunk.h"
#include "pagecache/ready.h"
#include "pagecache/state.h"

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

void page_check_order(const struct chunk *ch, unsigned i)
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

void page_check_order(const struct chunk *ch, unsigned i)
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
	struct uses *waits;

	count(CTR_page_waits, 1);
	thread_waits();
	waits = wait_begin(WAIT_pages);
	pthread_cond_wait(&ch->unlocked, &ch->lock);
	wait_end(waits, WAIT_pages);
}

static void page_lock(struct chunk *ch, unsigned i, bool to_write)
{
	bool counted;

	if (try_lock(ch, i, to_write))
		return;
	page_check_order(ch, i);
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

bool page_is_to_renew(const struct chunk *ch, unsigned i)
{
	return (page_at(ch, i)->flags & (PAGE_STORING | PAGE_RENEWED)) == PAGE_STORING;
}

unsigned pages_lock_to_write(struct chunk *ch, unsigned a, unsigned b)
{
	unsigned n = 0;

	for (unsigned i = a; i < b; i++) {
		page_lock(ch, i, true);
		n += page_is_to_renew(ch, i);
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

/* Nobody who waits hears of it yet. */
static void end_all_locked(struct chunk *ch, unsigned a, unsigned b)
{
	for (unsigned i = a; i < b; i++)
		end_locked(ch, page_at(ch, i));
}

void pages_unlock(struct chunk *ch, unsigned a, unsigned b)
{
	end_all_locked(ch, a, b);
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
		end_all_locked(ch, i, j);
	pthread_cond_broadcast(&ch->unlocked);
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

		page_check_order(ch, i);
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
