/*
 * evict.c - pages leave memory: chosen and unmapped first, then written if they must be, then dropped.
 *
 * A chosen page that is touched before it is dropped stays. With policies that use hits some pages are always chosen.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/param.h>

#include "internal.h"

#define BATCH EVICT_BATCH
#define MOST_FAILURES 8		/* of one call */

/* ---- the list of chosen frames ---- */

static void choose(struct umap_region *r, uint32_t frame, bool first)
{
	struct umap_frame *f = &r->frames[frame];

	f->flags |= FRAME_CHOSEN;
	f->prev = first ? NO_FRAME : r->chosen_tail;
	f->next = first ? r->chosen_head : NO_FRAME;
	if (f->prev == NO_FRAME)
		r->chosen_head = frame;
	else
		r->frames[f->prev].next = frame;
	if (f->next == NO_FRAME)
		r->chosen_tail = frame;
	else
		r->frames[f->next].prev = frame;
	r->n_chosen++;
}

void umap_unchoose(struct umap_region *r, uint32_t frame)
{
	struct umap_frame *f = &r->frames[frame];

	if (!(f->flags & FRAME_CHOSEN))
		return;
	if (f->prev == NO_FRAME)
		r->chosen_head = f->next;
	else
		r->frames[f->prev].next = f->next;
	if (f->next == NO_FRAME)
		r->chosen_tail = f->prev;
	else
		r->frames[f->next].prev = f->prev;
	f->flags &= ~(FRAME_CHOSEN | FRAME_FORCED);
	r->n_chosen--;
}

static void to_tail(struct umap_region *r, uint32_t frame)
{
	uint8_t forced = r->frames[frame].flags & FRAME_FORCED;

	umap_unchoose(r, frame);
	choose(r, frame, false);
	r->frames[frame].flags |= forced;
}

/* ---- unmapping ---- */

/* How many pages follow each other. */
static unsigned in_a_row(const uint64_t *pages, unsigned n)
{
	unsigned k = 1;

	while (k < n && pages[k] == pages[0] + k)
		k++;
	return k;
}

/* It is ours still, as far as anybody can tell. */
static int check_ours(struct umap_region *r, uint64_t start, uint64_t end)
{
	return umap_kernel_scan(r->view + start, end - start, false, NULL, NULL);
}

/* Unmap the pages, in order and no more than BATCH, by one call, if the region is whole. Whether that was done. Both locks are held (U5). */
static bool unmap_at_once(struct umap_region *r, const uint64_t *pages, unsigned n)
{
	struct iovec parts[BATCH];
	unsigned n_parts = 0, k;

	if (r->n_there != 1 || r->there[0].end - r->there[0].start != r->view_length)
		return false;
	for (unsigned i = 0; i < n; i += k) {
		uint64_t start = page_start(r, pages[i]), end;

		k = in_a_row(pages + i, n - i);
		end = MIN(page_end(r, pages[i] + k - 1), r->view_length);
		if (check_ours(r, start, end))
			return false;
		parts[n_parts++] = (struct iovec){ r->view + start, end - start };
	}
	return umap_kernel_unmap_at_once(parts, n_parts);
}

/* Pages in a row, all of them MAPPED. done: they have been unmapped. Both locks are held (U5). */
static int unmap_run(struct umap_region *r, uint64_t page, uint64_t n, bool done)
{
	uint64_t start = page_start(r, page), end = MIN(page_end(r, page + n - 1), r->view_length);
	int err = 0;

	FOR_EACH_THERE(r, done ? UINT64_MAX : start, end, i, a, b) {
		err = check_ours(r, a, b);
		if (!err)
			err = umap_kernel_unmap(r->view + a, b - a);
		if (err)
			return err;
	}
	if (r->writable)
		err = umap_rescan(r, start, end, false);
	if (err)
		return err;
	for (uint64_t i = page; i < page + n; i++)
		r->frames[frame_of(r, i)].flags &= ~FRAME_MAPPED;
	return 0;
}

/* What cannot be unmapped is not chosen any more. */
static void unmap_pages(struct umap_region *r, uint64_t *pages, unsigned n)
{
	unsigned k;
	bool done;

	qsort(pages, n, sizeof(pages[0]), umap_compare_pages);
	done = n > 1 && unmap_at_once(r, pages, n);
	for (unsigned i = 0; i < n; i += k) {
		k = in_a_row(pages + i, n - i);
		if (!unmap_run(r, pages[i], k, done))
			continue;
		for (unsigned j = i; j < i + k; j++) {
			uint32_t frame = frame_of(r, pages[j]);
			bool forced = r->frames[frame].flags & FRAME_FORCED;

			umap_unchoose(r, frame);
			if (!forced)
				r->policy.hit(r->policy_state, frame);
		}
	}
}

/* Choose until there are `until`, and `more` in any case. Returns how many. */
static unsigned choose_victims(struct umap_region *r, uint32_t until, uint32_t more)
{
	uint64_t mapped[BATCH];
	unsigned n = 0, n_mapped = 0;

	pthread_mutex_lock(&umap.events_lock);
	pthread_mutex_lock(&r->lock);
	while (n < BATCH && (r->n_chosen < until || n < more)) {
		uint32_t frame = r->policy.victim(r->policy_state);
		struct umap_frame *f;

		if (frame >= r->used)
			break;
		f = &r->frames[frame];
		/* An application's policy may be wrong. */
		if (f->state != FRAME_RESIDENT || f->flags & FRAME_PINNED)
			break;
		if (f->flags & FRAME_CHOSEN) {
			f->flags &= ~FRAME_FORCED;
			continue;
		}
		choose(r, frame, false);
		if (f->flags & FRAME_MAPPED)
			mapped[n_mapped++] = f->page;
		n++;
	}
	unmap_pages(r, mapped, n_mapped);
	pthread_mutex_unlock(&r->lock);
	pthread_mutex_unlock(&umap.events_lock);
	return n;
}

/* ---- leaving ---- */

/* Drop the first of the chosen ones, as far as they need not be written. The lock is held, but not meanwhile. */
static unsigned drop_first(struct umap_region *r, unsigned most)
{
	uint32_t frames[BATCH];
	unsigned n = 0;

	for (uint32_t frame = r->chosen_head; frame != NO_FRAME && n < most; frame = r->frames[frame].next) {
		if (r->frames[frame].flags & (FRAME_DIRTY | FRAME_WRITING))
			break;
		frames[n++] = frame;
	}
	umap_drop(r, frames, n);
	return n;
}

/* Write and drop up to n chosen ones. As umap_evict(). */
static int leave(struct umap_region *r, uint32_t n)
{
	unsigned failures = 0;
	uint32_t freed = 0;
	int err = 0;

	pthread_mutex_lock(&r->lock);
	for (uint32_t left = r->n_chosen + n; left && freed < n && failures < MOST_FAILURES; left--) {
		uint32_t frame = r->chosen_head;
		struct umap_frame *f;

		if (frame == NO_FRAME)
			break;
		f = &r->frames[frame];
		if (f->flags & FRAME_WRITING) {
			to_tail(r, frame);
		} else if (f->flags & FRAME_DIRTY) {
			int wrote = umap_write_run(r, f->page);

			if (wrote < 0) {
				err = wrote;
				failures++;
				if (f->flags & FRAME_CHOSEN)
					to_tail(r, frame);
			}
		} else {
			freed += drop_first(r, MIN(n - freed, BATCH));
		}
	}
	if (!freed && (!err || r->n_busy))
		err = -EAGAIN;
	pthread_mutex_unlock(&r->lock);
	return freed ? (int)freed : err;
}

int umap_evict(struct umap_region *r, uint32_t n)
{
	unsigned chose = choose_victims(r, r->keep_chosen + n, 0);
	int freed = leave(r, n);

	/* Those that cannot be written must not keep others from leaving. */
	while (freed < 0 && freed != -EAGAIN && (chose = choose_victims(r, 0, n)))
		freed = leave(r, n);
	return freed;
}

int umap_evict_range(struct umap_region *r, uint64_t start, uint64_t end, bool now)
{
	uint64_t *pages, mapped[BATCH];
	size_t n;
	int err;

	pthread_mutex_lock(&r->lock);
	err = umap_list_resident(r, start, end, &pages, &n);
	pthread_mutex_unlock(&r->lock);
	if (err)
		return err;
	for (size_t i = 0; i < n;) {
		unsigned chose = 0, n_mapped = 0;

		pthread_mutex_lock(&umap.events_lock);
		pthread_mutex_lock(&r->lock);
		for (; i < n && chose < BATCH; i++) {
			uint32_t frame = frame_of(r, pages[i]);
			struct umap_frame *f;

			if (frame == NO_FRAME)
				continue;
			f = &r->frames[frame];
			if (f->state != FRAME_RESIDENT || f->flags & FRAME_PINNED)
				continue;
			if (f->flags & FRAME_CHOSEN) {
				uint8_t forced = f->flags & FRAME_FORCED;

				umap_unchoose(r, frame);
				choose(r, frame, true);
				f->flags |= forced;
			} else {
				choose(r, frame, true);
				f->flags |= FRAME_FORCED;
				if (f->flags & FRAME_MAPPED)
					mapped[n_mapped++] = f->page;
			}
			chose++;
		}
		unmap_pages(r, mapped, n_mapped);
		pthread_mutex_unlock(&r->lock);
		pthread_mutex_unlock(&umap.events_lock);
		if (now && chose)
			leave(r, chose);
	}
	free(pages);
	return 0;
}
