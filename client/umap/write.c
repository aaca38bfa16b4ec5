/*
 * write.c - what was stored goes to files and stores.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/param.h>

#include "internal.h"

#define SCAN_PAGES 512		/* at a time */

struct marking {
	struct umap_region *r;
	uint64_t base;
};

static void mark(void *arg, uint64_t start, uint64_t end, bool mapped, bool clean)
{
	struct marking *m = arg;
	struct umap_region *r = m->r;

	if (clean)
		return;
	for (uint64_t page = (m->base + start) >> r->shift; page_start(r, page) < m->base + end; page++) {
		struct umap_frame *f = r->frame_of[page] ? &r->frames[frame_of(r, page)] : NULL;

		if (f && f->flags & FRAME_MAPPED)
			f->flags |= FRAME_DIRTY;
	}
}

/* views_lock is held. */
static int rescan(struct umap_region *r, uint64_t start, uint64_t end, bool rearm)
{
	int err = 0;

	end = MIN(end, r->view_length);
	FOR_EACH_THERE(r, start, end, i, a, b) {
		struct marking m = { r, a };
		int failed = umap_kernel_scan(r->view + a, b - a, rearm, mark, &m);

		err = err ? err : failed;
	}
	return err;
}

int umap_rescan(struct umap_region *r, uint64_t start, uint64_t end, bool rearm)
{
	int err;

	if (!umap_hold_views())
		return -EAGAIN;
	err = rescan(r, start, end, rearm);
	umap_let_views();
	return err;
}

/* Dirty pages in a row, from this one on, that nobody writes. */
static uint64_t run_to_write(const struct umap_region *r, uint64_t page, bool *mapped)
{
	uint64_t n = 0, most = MAX(MAX_RUN >> r->shift, 1);

	*mapped = false;
	for (; n < most && page + n < r->pages && r->frame_of[page + n]; n++) {
		const struct umap_frame *f = &r->frames[frame_of(r, page + n)];

		if (f->state != FRAME_RESIDENT || (f->flags & (FRAME_DIRTY | FRAME_WRITING)) != FRAME_DIRTY)
			break;
		*mapped |= f->flags & FRAME_MAPPED;
	}
	return n;
}

int umap_write_run(struct umap_region *r, uint64_t page)
{
	bool mapped, keep = false;
	uint64_t n = run_to_write(r, page, &mapped);
	int err;

	if (mapped) {
		if (!umap_hold_views()) {
			/* Who reads events may wait for the lock. */
			pthread_mutex_unlock(&r->lock);
			pthread_rwlock_rdlock(&umap.views_lock);
			pthread_mutex_lock(&r->lock);
			n = run_to_write(r, page, &mapped);
		}
		/* U3. Where it cannot be protected (an munmap or mremap that we have not heard of) it stays dirty. */
		if (n && mapped)
			keep = rescan(r, page_start(r, page), page_end(r, page + n - 1), true);
		umap_let_views();
	}
	if (!n)
		return 0;
	for (uint64_t i = page; i < page + n; i++) {
		struct umap_frame *f = &r->frames[frame_of(r, i)];

		f->flags = (f->flags & ~(keep ? 0 : FRAME_DIRTY)) | FRAME_WRITING;
		r->n_busy++;
	}
	pthread_mutex_unlock(&r->lock);
	err = umap_write(r, page_start(r, page), n << r->shift);
	pthread_mutex_lock(&r->lock);
	for (uint64_t i = page; i < page + n; i++) {
		struct umap_frame *f = &r->frames[frame_of(r, i)];

		f->flags &= ~(FRAME_WRITING | FRAME_FAILED);
		if (err)
			f->flags |= FRAME_DIRTY | FRAME_FAILED;
		r->n_busy--;
	}
	if (err) {
		r->error = err;
		r->stats.write_errors++;
	}
	pthread_cond_broadcast(&r->changed);
	return err ? umap_foreign(err) : (int)n;
}

int umap_compare_pages(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* The pages of the range that are in memory, in order. The lock is held. */
int umap_list_resident(struct umap_region *r, uint64_t start, uint64_t end, uint64_t **out, size_t *n_out)
{
	uint64_t first = start >> r->shift, last = MIN((end + (1ul << r->shift) - 1) >> r->shift, r->pages), *pages;
	size_t n = 0;

	if (first >= last) {
		*out = NULL;
		*n_out = 0;
		return 0;
	}
	pages = malloc(MIN(last - first, r->used) * sizeof(pages[0]) + 1);
	if (!pages)
		return -ENOMEM;
	if (last - first < r->used) {
		for (uint64_t page = first; page < last; page++)
			if (r->frame_of[page])
				pages[n++] = page;
	} else {
		for (uint32_t i = 0; i < r->used; i++)
			if (r->frames[i].state != FRAME_FREE && r->frames[i].page >= first && r->frames[i].page < last)
				pages[n++] = r->frames[i].page;
		qsort(pages, n, sizeof(pages[0]), umap_compare_pages);
	}
	*out = pages;
	*n_out = n;
	return 0;
}

/* How many of the pages follow each other. */
static size_t in_a_row(const uint64_t *pages, size_t n)
{
	size_t k = 1;

	while (k < n && k < SCAN_PAGES && pages[k] == pages[0] + k)
		k++;
	return k;
}

/* What is stored to pages that are FILLING and mapped already is told when they are resident (U2). The lock is held, but not meanwhile. */
static void wait_for_fills(struct umap_region *r, uint64_t page, size_t n)
{
	for (size_t k = 0; k < n;) {
		const struct umap_frame *f = r->frame_of[page + k] ? &r->frames[frame_of(r, page + k)] : NULL;

		if (f && f->state == FRAME_FILLING && f->flags & FRAME_MAPPED) {
			pthread_cond_wait(&r->changed, &r->lock);
			k = 0;
		} else {
			k++;
		}
	}
}

int umap_write_range(struct umap_region *r, uint64_t start, uint64_t end)
{
	uint64_t *pages, unseen = 0;
	size_t n;
	int err;

	if (!r->writable)
		return 0;
	pthread_mutex_lock(&r->lock);
	err = umap_list_resident(r, start, end, &pages, &n);
	for (size_t i = 0; !err && i < n; i++) {
		uint64_t page = pages[i];
		struct umap_frame *f;

		if (page >= unseen) {
			/* From here on what was stored before this call is told by DIRTY. */
			size_t k = in_a_row(pages + i, n - i);

			wait_for_fills(r, page, k);
			if (umap_rescan(r, page_start(r, page), page_end(r, page + k - 1), true) == -EAGAIN) {
				pthread_mutex_unlock(&r->lock);
				umap_read_events();
				sched_yield();
				pthread_mutex_lock(&r->lock);
				i--;
				continue;
			}
			unseen = page + k;
		}
		while (r->frame_of[page] && r->frames[frame_of(r, page)].flags & FRAME_WRITING)
			pthread_cond_wait(&r->changed, &r->lock);
		if (!r->frame_of[page])
			continue;	/* it was written, and dropped */
		f = &r->frames[frame_of(r, page)];
		if (f->state == FRAME_RESIDENT && f->flags & FRAME_DIRTY)
			umap_write_run(r, page);	/* its error is kept in the region */
	}
	pthread_mutex_unlock(&r->lock);
	free(pages);
	return err;
}
