/*
 * mmap.c - regions where there is no paging: ordinary mappings of their files. What is advised of them goes to the kernel, as it does of
 * those that are a daemon's memory (host.c).
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/param.h>

#include "region.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

static int check_segment(const struct umap_segment *s, bool last)
{
	if (!s->file)
		return -ENOTSUP;
	return s->offset % SMALL_PAGE || (!last && s->length % SMALL_PAGE) ? -ENOTSUP : 0;
}

int umap_mmap_create(struct umap_region *r, const struct gaia_umap_config *c)
{
	int prot = PROT_READ | (r->writable ? PROT_WRITE : 0), err;
	char *view;

	for (size_t i = 0; i < r->n_segments; i++) {
		err = check_segment(&r->segments[i], i + 1 == r->n_segments);
		if (err)
			return err;
	}
	r->is_mmap = true;
	err = umap_reserve(r, c, &view);
	if (err)
		return err;
	for (size_t i = 0; i < r->n_segments && r->segments[i].start < r->length; i++) {
		struct umap_segment *s = &r->segments[i];

		if (mmap(view + s->start, MIN(s->length, r->length - s->start), prot, MAP_SHARED | MAP_FIXED, s->file->fd, s->offset) == MAP_FAILED) {
			err = -errno;
			munmap(view, r->view_length);
			return err;
		}
	}
	madvise(view, r->view_length, MADV_DONTFORK);
	r->view = view;
	return 0;
}

int umap_mmap_prefetch(struct umap_region *r, void *const *pages, size_t n, bool wait)
{
	int err = 0;

	for (size_t i = 0; i < n; i++) {
		uint64_t at = (uint64_t)((char *)pages[i] - r->view) & ~(SMALL_PAGE - 1);

		if (at >= r->view_length)
			return -EINVAL;
		if (madvise(r->view + at, SMALL_PAGE, wait ? MADV_POPULATE_READ : MADV_WILLNEED) && wait && errno != EINVAL)
			err = -errno;
	}
	return err;
}

int umap_mmap_advise(struct umap_region *r, uint64_t start, uint64_t end, int advice)
{
	static const int as[] = {
		[GAIA_UMAP_NORMAL] = MADV_NORMAL, [GAIA_UMAP_RANDOM] = MADV_RANDOM, [GAIA_UMAP_SEQUENTIAL] = MADV_SEQUENTIAL,
		[GAIA_UMAP_WILLNEED] = MADV_WILLNEED,
	};
	char *from = r->view + (start & ~(SMALL_PAGE - 1));
	size_t n = r->view + MIN((end + SMALL_PAGE - 1) & ~(SMALL_PAGE - 1), r->view_length) - from;

	switch (advice) {
	case GAIA_UMAP_NORMAL:
	case GAIA_UMAP_RANDOM:
	case GAIA_UMAP_SEQUENTIAL:
		/* Of the whole region. */
		return madvise(r->view, r->view_length, as[advice]) ? -errno : 0;
	case GAIA_UMAP_WILLNEED:
		return madvise(from, n, as[advice]) ? -errno : 0;
	case GAIA_UMAP_PIN:
		if (r->is_host)
			return 0;	/* it is pinned */
		return mlock(from, n) ? -errno : 0;
	case GAIA_UMAP_UNPIN:
		if (r->is_host)
			return 0;
		return munlock(from, n) ? -errno : 0;
	case GAIA_UMAP_DONTNEED:
	case GAIA_UMAP_COLD:
		return 0;	/* the kernel's page cache decides */
	}
	return -EINVAL;
}
