/*
 * calls.c - the calls of gaia/umap.h on regions that there are. region.c makes and ends them.
 */
#include <errno.h>
#include <string.h>
#include <sys/param.h>

#include "region.h"

/* The region that has all of the range, referenced. */
static int get_range(void *addr, size_t length, struct umap_region **out, uint64_t *start)
{
	struct umap_region *r;

	if (umap_in_store())
		return -EDEADLK;
	umap_region_settle();
	r = umap_region_get(addr, start);
	if (!r)
		return -EINVAL;
	if (length > r->view_length - *start) {
		umap_region_put(r);
		return -EINVAL;
	}
	*out = r;
	return 0;
}

int gaia_umap_flush(void *addr, size_t length, int flags)
{
	NOT_CANCELLED;
	struct umap_region *r;
	uint64_t start;
	int err = flags & ~GAIA_UMAP_SYNC ? -EINVAL : get_range(addr, length, &r, &start);

	if (err)
		return umap_result(err);
	err = umap_flush(r, start, start + length, flags & GAIA_UMAP_SYNC);
	umap_region_put(r);
	return umap_result(err);
}

/* ---- bringing pages ---- */

/* Also if somebody else is just reading it. */
static int bring_and_wait(struct umap_region *r, uint64_t page, uint64_t n)
{
	for (;;) {
		int err = umap_bring(r, page, n);
		bool there;

		if (err <= 0)
			return err;
		pthread_mutex_lock(&r->lock);
		while (r->frame_of[page] && r->frames[frame_of(r, page)].state != FRAME_RESIDENT)
			pthread_cond_wait(&r->changed, &r->lock);
		there = r->frame_of[page];
		pthread_mutex_unlock(&r->lock);
		if (there)
			return 0;
	}
}

/* In the background, in parts that several threads can take. */
static int bring_later(struct umap_region *r, uint64_t page, uint64_t n)
{
	uint64_t part = MAX(MAX_RUN >> r->shift, 1);
	int err = 0;

	for (; n && !err; page += part, n -= part) {
		part = MIN(part, n);
		err = umap_prefetch(r, page, part);
	}
	return err;
}

/* view: r->view, as the caller of gaia_umap_prefetch() knows it. */
static int prefetch(struct umap_region *r, const char *view, void *const *pages, size_t n, bool wait)
{
	uint64_t page = 0, run = 0;
	int err = 0;

	/* Neighbours in the list are read together. */
	for (size_t i = 0; i <= n && !err; i++) {
		uint64_t at = i < n ? (uint64_t)((char *)pages[i] - view) : 0;

		if (i < n && at >= r->view_length)
			return -EINVAL;
		at >>= r->shift;
		if (i < n && run && at == page + run) {
			run++;
			continue;
		}
		/* Nobody else need begin what the caller waits for alone. */
		if (run && !(wait && run == n))
			err = bring_later(r, page, run);
		page = at;
		run = 1;
	}
	for (size_t i = 0; wait && i < n; i++) {
		int failed = bring_and_wait(r, ((char *)pages[i] - view) >> r->shift, n - i > 1 && run == n ? n - i : 1);

		err = failed ? failed : err;
	}
	return err;
}

int gaia_umap_prefetch(void *const *pages, size_t n, int flags)
{
	NOT_CANCELLED;
	struct umap_region *r;
	uint64_t start;
	int err = flags & ~GAIA_UMAP_WAIT ? -EINVAL : 0;

	if (!err && !n)
		return 0;
	if (!err)
		err = get_range(pages[0], 1, &r, &start);
	if (err)
		return umap_result(err);
	if (r->is_mmap || r->is_host)
		err = umap_mmap_prefetch(r, pages, n, flags & GAIA_UMAP_WAIT);
	else
		err = prefetch(r, (char *)pages[0] - start, pages, n, flags & GAIA_UMAP_WAIT);
	umap_region_put(r);
	return umap_result(err);
}

/* ---- advice ---- */

static void unpin(struct umap_region *r, uint64_t first, uint64_t last)
{
	pthread_mutex_lock(&r->lock);
	for (uint64_t page = first; page < last; page++) {
		struct umap_frame *f = r->frame_of[page] ? &r->frames[frame_of(r, page)] : NULL;

		if (f && f->flags & FRAME_PINNED) {
			f->flags &= ~FRAME_PINNED;
			r->n_pinned--;
			r->policy.inserted(r->policy_state, frame_of(r, page), page);
		}
	}
	pthread_mutex_unlock(&r->lock);
}

/* 1: it has left again meanwhile. */
static int pin_resident(struct umap_region *r, uint64_t page)
{
	struct umap_frame *f;
	int err = 1;

	pthread_mutex_lock(&r->lock);
	f = r->frame_of[page] ? &r->frames[frame_of(r, page)] : NULL;
	if (f && f->state == FRAME_RESIDENT) {
		err = 0;
		if (!(f->flags & FRAME_PINNED) && r->n_frames < r->pages && r->n_pinned + 3 >= r->n_frames) {
			err = -ENOMEM;
		} else if (!(f->flags & FRAME_PINNED)) {
			umap_unchoose(r, frame_of(r, page));
			r->policy.removed(r->policy_state, frame_of(r, page), 0);
			f->flags |= FRAME_PINNED;
			r->n_pinned++;
		}
	}
	pthread_mutex_unlock(&r->lock);
	return err;
}

/* All of the range, or nothing more than before. */
static int pin(struct umap_region *r, uint64_t first, uint64_t last)
{
	for (uint64_t page = first; page < last; page++) {
		int err;

		do {
			err = bring_and_wait(r, page, 1);
			if (!err)
				err = pin_resident(r, page);
		} while (err > 0);
		if (err) {
			unpin(r, first, page);
			return err;
		}
	}
	return 0;
}

static int advise(struct umap_region *r, uint64_t start, uint64_t end, int advice)
{
	uint64_t first = start >> r->shift, last = (end + (1ul << r->shift) - 1) >> r->shift;

	switch (advice) {
	case GAIA_UMAP_NORMAL:
	case GAIA_UMAP_RANDOM:
	case GAIA_UMAP_SEQUENTIAL:
		pthread_mutex_lock(&r->lock);
		r->advice = advice;
		pthread_mutex_unlock(&r->lock);
		return 0;
	case GAIA_UMAP_WILLNEED:
		return bring_later(r, first, MIN(last - first, r->n_frames));
	case GAIA_UMAP_DONTNEED:
	case GAIA_UMAP_COLD:
		return umap_evict_range(r, start, end, advice == GAIA_UMAP_DONTNEED);
	case GAIA_UMAP_PIN:
		return pin(r, first, last);
	case GAIA_UMAP_UNPIN:
		unpin(r, first, last);
		return 0;
	}
	return -EINVAL;
}

int gaia_umap_advise(void *addr, size_t length, int advice)
{
	NOT_CANCELLED;
	struct umap_region *r;
	uint64_t start;
	int err = get_range(addr, length, &r, &start);

	if (err)
		return umap_result(err);
	if (r->is_mmap || r->is_host)
		err = umap_mmap_advise(r, start, start + length, advice);
	else if (length)
		err = advise(r, start, start + length, advice);
	umap_region_put(r);
	return umap_result(err);
}

/* ---- statistics ---- */

int gaia_umap_stats(void *addr, struct gaia_umap_stats *out)
{
	NOT_CANCELLED;
	struct gaia_umap_stats s;
	struct umap_region *r;
	uint64_t start;
	int err = out->size < offsetof(struct gaia_umap_stats, page_size) ? -EINVAL : get_range(addr, 1, &r, &start);

	if (err)
		return umap_result(err);
	if (r->is_mmap || r->is_host) {
		s = (struct gaia_umap_stats){ .is = r->is_host ? GAIA_UMAP_IS_HOST : GAIA_UMAP_IS_MMAP, .length = r->length };
	} else {
		pthread_mutex_lock(&r->lock);
		s = r->stats;
		s.reads = __atomic_load_n(&r->reads, __ATOMIC_RELAXED);
		s.read_bytes = __atomic_load_n(&r->read_bytes, __ATOMIC_RELAXED);
		s.writes = __atomic_load_n(&r->writes, __ATOMIC_RELAXED);
		s.written_bytes = __atomic_load_n(&r->written_bytes, __ATOMIC_RELAXED);
		s.is = (umap.kernel.user_mode || r->by_signal ? GAIA_UMAP_IS_USER_MODE : 0) | (r->by_signal ? GAIA_UMAP_IS_BY_SIGNAL : 0);
		s.length = r->length;
		s.page_size = 1ul << r->shift;
		s.pages = r->n_frames;
		s.resident = r->n_frames - r->n_free;
		s.pinned = r->n_pinned;
		for (uint32_t i = 0; i < r->used; i++)
			s.dirty += r->frames[i].state == FRAME_RESIDENT && r->frames[i].flags & FRAME_DIRTY;
		pthread_mutex_unlock(&r->lock);
	}
	umap_region_put(r);
	s.size = out->size;
	memcpy(out, &s, MIN(out->size, sizeof(s)));
	if (out->size > sizeof(s))
		memset((char *)out + sizeof(s), 0, out->size - sizeof(s));
	return 0;
}
