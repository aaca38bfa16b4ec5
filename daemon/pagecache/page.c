/* page.c - the frames of home's pages: whether they are dirty, stored, and being stored. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/util.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/victim.h"
#include "pagecache/view.h"

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

	page_at(ch, i)->frame = frame & ~FRAME_INDEXED;
	page_at(ch, i)->indexed = !!(frame & FRAME_INDEXED);
	tally(&ch->n_frames, (frame != 0) - (old != 0));
	return old;
}

void page_leaves_index(struct chunk *ch, unsigned i)
{
	page_at(ch, i)->indexed = false;
}

void pages_become(struct chunk *ch, unsigned a, unsigned b, uint8_t state)
{
	struct cfile *f = ch->file;
	int dirty = 0, stored = 0;

	for (unsigned i = a; i < b; i++) {
		struct page *p = page_at(ch, i);
		uint8_t now = (uint8_t)((p->flags & ~(PAGE_DIRTY | PAGE_STORED | PAGE_SYNCING)) | state);

		bug_on(state && !p->frame);
		/* Others may have its bytes, or come to have them. */
		bug_on((state & PAGE_DIRTY) && p->indexed && !fault_point("break.shared_written"));
		/* Everything that changes home's bytes makes them dirty, except what removes them (resize.c). */
		if ((state & PAGE_DIRTY) && ch->parked)
			victim_drop_slot(ch, i);
		dirty += !!(now & PAGE_DIRTY) - !!(p->flags & PAGE_DIRTY);
		stored += !!(now & PAGE_STORED) - !!(p->flags & PAGE_STORED);
		p->flags = now;
	}
	tally(&ch->n_dirty, dirty);
	tally(&ch->n_stored, stored);
	chunk_note_unsynced(ch);
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

bool page_drop(struct chunk *ch, unsigned i)
{
	frame_t old;

	if (!page_present(ch, i))
		return false;
	under_drop(ch, i);
	pages_become(ch, i, i + 1, 0);
	page_at(ch, i)->flags &= (uint8_t)~PAGE_GIVEN;
	if (page_in_view(ch, i)) {
		view_page_leaves(ch, i);
		return false;
	}
	old = page_set_frame(ch, i, 0);
	return frames_give(&ch->file->cache->frames, &old, 1) > 0;
}

/* ---- storing ---- */

bool store_begin(struct chunk *ch, unsigned i, bool wait)
{
	struct page *p;

	for (;;) {
		/* Not as a sharer: those who write go before this one's turn. */
		while (wait && (page_make(ch, i)->flags & PAGE_STORING)) {
			page_check_order(ch, i);
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

/* Of a page in view the frame is the page's still: it was stored from a copy. */
static void give_renewed(struct frames *fr, const frame_t *frame, unsigned n)
{
	for (unsigned k = 0; k < n; k++)
		if (!frame_is_lent(fr, frame[k]))
			frames_give(fr, &frame[k], 1);
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
			give_renewed(fr, frame + (i - a), j - i);
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
	return home_no_memory(n);
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
		if (!page_is_to_renew(ch, i)) /* it may have been stored by now */
			continue;
		page_at(ch, i)->flags |= PAGE_RENEWED;
		if (page_in_view(ch, i)) /* it is stored from a copy */
			continue;
		memcpy(frame_ptr(&c->frames, frame[--n]), page_ptr(ch, i), GAIA_PAGE);
		/* The thread that stores the old one gives it back. */
		page_set_frame(ch, i, frame[n]);
	}
	pthread_mutex_unlock(&ch->lock);
	frames_give(&c->frames, frame, n);
	return 0;
}
