/*
 * region.c - making and ending regions.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <unistd.h>

#include "policy.h"
#include "region.h"

#define MAX_PAGE MAX_BLOCK
#define MIN_FRAMES 3
#define MOST_FREE (8ul << 20)	/* bytes that are made free in the background, by default; */
#define MOST_FREE_CALM (1ul << 20) /* while nothing is read in order: pages that came for nothing else would leave for nothing */
#define NOT_SET 101		/* no percentage */

int umap_result(int err)
{
	if (err >= 0)
		return 0;
	errno = -err;
	return -1;
}

struct umap_call umap_begin_call(void)
{
	struct umap_call call;
	sigset_t others;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &call.cancel);
	umap_signals_of_others(&others);
	pthread_sigmask(SIG_BLOCK, &others, &call.signals);
	return call;
}

void umap_end_call(struct umap_call *call)
{
	int saved = errno;

	pthread_sigmask(SIG_SETMASK, &call->signals, NULL);
	errno = saved;
	pthread_setcancelstate(call->cancel, NULL);
}

/* ---- settings ---- */

static uint64_t page_size_setting(void)
{
	uint64_t n = umap_setting("GAIA_UMAP_PAGESIZE", SMALL_PAGE, MAX_PAGE, SMALL_PAGE);

	return n & (n - 1) ? SMALL_PAGE : n;
}

static int copy_config(const struct gaia_umap_config *from, struct gaia_umap_config *c)
{
	/* The first version's size. What a newer program sets and we do not know must be zero. */
	if (from->size < sizeof(*c))
		return -EINVAL;
	for (size_t i = sizeof(*c); i < from->size; i++)
		if (((const char *)from)[i])
			return -EINVAL;
	*c = *from;
	if (!c->prot)
		c->prot = PROT_READ;
	if (!c->page_size)
		c->page_size = page_size_setting();
	if (!c->read_ahead)
		c->read_ahead = umap_setting("GAIA_UMAP_READ_AHEAD", 0, UINT32_MAX - 1, (64 << 10) / c->page_size);
	if (c->reserved || (c->prot != PROT_READ && c->prot != (PROT_READ | PROT_WRITE)) ||
	    c->flags & ~(GAIA_UMAP_FIXED | GAIA_UMAP_NEED_SYSCALLS | GAIA_UMAP_NEED_PAGING | GAIA_UMAP_USE_MMAP |
			GAIA_UMAP_NO_HOST | GAIA_UMAP_BY_SIGNAL) ||
	    c->page_size < SMALL_PAGE || c->page_size > MAX_PAGE || c->page_size & (c->page_size - 1) ||
	    c->evict_high > 100 || c->evict_low > 100 || c->length > INT64_MAX - MAX_PAGE)
		return -EINVAL;
	if (c->flags & GAIA_UMAP_FIXED && (uintptr_t)c->addr % c->page_size)
		return -EINVAL;
	return 0;
}

static int set_policy(struct umap_region *r, const struct gaia_umap_policy *p)
{
	bool fifo = p == GAIA_UMAP_FIFO;

	if (p == GAIA_UMAP_S3FIFO)
		p = &umap_s3fifo;
	else if (fifo)
		p = &umap_fifo;
	else if (p == GAIA_UMAP_LRU)
		p = &umap_lru;
	if (p->size < sizeof(*p) || !p->create || !p->destroy || !p->inserted || !p->hit || !p->victim || !p->removed)
		return -EINVAL;
	r->policy = *p;
	/* Hits are seen of pages that are chosen already. FIFO has no use for them. */
	r->keep_chosen = fifo ? 0 : r->n_frames / 4;
	r->policy_state = r->policy.create(r->policy.arg, r->n_frames);
	return r->policy_state ? 0 : -ENOMEM;
}

uint64_t umap_budget(const struct umap_region *r, const struct gaia_umap_config *c)
{
	uint64_t pages = c->budget >> r->shift;

	if (!pages)
		pages = umap_setting("GAIA_UMAP_BUFSIZE", MIN_FRAMES, UINT32_MAX - 1, 0);
	if (!pages)
		pages = ((uint64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 4) >> r->shift;
	return pages << r->shift;
}

/* From how many pages on they leave in the background, and until there are how many. */
static void set_marks(struct umap_region *r, const struct gaia_umap_config *c)
{
	unsigned high = c->evict_high ? c->evict_high : umap_setting("GAIA_UMAP_EVICT_HIGH_WATER_THRESHOLD", 1, 100, NOT_SET);
	unsigned low = c->evict_low ? c->evict_low : umap_setting("GAIA_UMAP_EVICT_LOW_WATER_THRESHOLD", 0, 100, NOT_SET);
	const uint64_t bytes[] = { [MARKS_CALM] = MOST_FREE_CALM, [MARKS_STREAMS] = MOST_FREE };
	uint64_t pages = r->n_frames;

	for (unsigned i = 0; i < 2; i++) {
		struct umap_marks *m = &r->marks[i];
		uint64_t most = MAX(bytes[i] >> r->shift, 16);

		/* What is made free at a time has a limit: else much of a large budget stood empty. */
		m->high = high == NOT_SET ? pages - MIN(pages / 10, most / 2) : (pages * high + 99) / 100;
		m->low = low == NOT_SET ? pages - MIN((pages * 3 + 9) / 10, most) : pages * low / 100;
		m->low = MIN(m->low, m->high - 1);
	}
}

static int set_budget(struct umap_region *r, const struct gaia_umap_config *c)
{
	uint64_t pages = umap_budget(r, c) >> r->shift;

	if (c->budget && c->budget >> r->shift < MIN_FRAMES)
		return -EINVAL;
	pages = MIN(MIN(MAX(pages, MIN_FRAMES), r->pages), UINT32_MAX - 1);
	r->n_frames = r->n_free = pages;
	set_marks(r, c);
	if (r->n_frames == r->pages)
		r->marks[MARKS_CALM].high = r->marks[MARKS_STREAMS].high = UINT32_MAX; /* all of it fits */
	r->ahead = c->read_ahead;
	/* All streams together leave half of the budget to what is used. None if nothing at all is to be read ahead. */
	if (c->read_ahead || umap_setting("GAIA_UMAP_READ_AHEAD", 0, 0, 1))
		r->most_ahead = MIN(MAX(MOST_AHEAD >> r->shift, 1), r->n_frames / (2 * STREAMS));
	return 0;
}

/* ---- memory ---- */

int umap_reserve(struct umap_region *r, const struct gaia_umap_config *c, char **out)
{
	uint64_t align = r->is_mmap ? SMALL_PAGE : 1ul << r->shift, n = r->view_length + (align - SMALL_PAGE);
	char *at, *aligned;

	if (c->flags & GAIA_UMAP_FIXED) {
		if (umap_region_at(c->addr, (char *)c->addr + r->view_length))
			return -EEXIST;
		at = mmap(c->addr, r->view_length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
		*out = at;
		return at == MAP_FAILED ? -errno : 0;
	}
	at = mmap(c->addr, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return -errno;
	aligned = (char *)(((uintptr_t)at + align - 1) & ~(align - 1));
	if (aligned > at)
		munmap(at, aligned - at);
	if (aligned + r->view_length < at + n)
		munmap(aligned + r->view_length, at + n - (aligned + r->view_length));
	*out = aligned;
	return 0;
}

/* Where all memory is locked (mlockall(2)) it would be filled, all of it, unless it is mapped without access first. */
static char *map_memfd(int fd, char *at, uint64_t n)
{
	char *p = mmap(at, n, PROT_NONE, MAP_SHARED | MAP_NORESERVE | (at ? MAP_FIXED : 0), fd, 0);

	if (p != MAP_FAILED) {
		munlock(p, n);
		madvise(p, n, MADV_DONTFORK);
	}
	return p;
}

/* @view: reserved, and unmapped if this fails. */
static int map_views(struct umap_region *r, char *view)
{
	int fd = memfd_create("gaia_umap", MFD_CLOEXEC), err;

	if (fd < 0) {
		err = -errno;
		goto unmap_view;
	}
	if (ftruncate(fd, r->desk_length)) {
		err = -errno;
		goto close_fd;
	}
	r->desk = map_memfd(fd, NULL, r->desk_length);
	if (r->desk == MAP_FAILED) {
		r->desk = NULL;
		err = -errno;
		goto close_fd;
	}
	madvise(r->desk, r->desk_length, MADV_DONTDUMP);
	/* Else the memory of many pages comes with one, and does not go with it. */
	if (r->shift < __builtin_ctzl(MAX_PAGE))
		madvise(r->desk, r->desk_length, MADV_NOHUGEPAGE);
	if (mprotect(r->desk, r->desk_length, PROT_READ | PROT_WRITE)) {
		err = -errno;
		goto close_fd;	/* the caller unmaps it */
	}
	if (map_memfd(fd, view, r->view_length) == MAP_FAILED) {
		err = -errno;
		goto close_fd;
	}
	err = umap_kernel_register(r->uffd, view, r->view_length);
	if (err)
		goto close_fd;
	if (mprotect(view, r->view_length, PROT_READ | (r->writable ? PROT_WRITE : 0))) {
		err = -errno;
		umap_kernel_unregister(r->uffd, view, r->view_length);
		goto close_fd;
	}
	r->view = view;
	close(fd);	/* the mappings keep the memory */
	return 0;

close_fd:
	close(fd);
unmap_view:
	munmap(view, r->view_length);
	return err;
}

/* ---- a region's life ---- */

static void free_region(struct umap_region *r)
{
	if (r->is_host)
		umap_host_end(r);
	if (r->view && r->is_mmap)
		munmap(r->view, r->view_length);
	for (unsigned i = 0; r->view && !r->is_mmap && !r->is_host && i < r->n_there; i++) {
		/* Without events: nobody need read them. */
		umap_kernel_unregister(r->uffd, r->view + r->there[i].start, r->there[i].end - r->there[i].start);
		munmap(r->view + r->there[i].start, r->there[i].end - r->there[i].start);
	}
	if (r->desk)
		munmap(r->desk, r->desk_length);
	if (r->policy_state)
		r->policy.destroy(r->policy_state);
	umap_segments_close(r);
	pthread_cond_destroy(&r->changed);
	pthread_mutex_destroy(&r->lock);
	free(r->there);
	free(r->frame_of);
	free(r->frames);
	free(r);
}

static int create_paged(struct umap_region *r, const struct gaia_umap_config *c)
{
	int err = set_budget(r, c);
	char *view;

	if (err)
		return err;
	/* First, since nothing may be mapped there that we need: an address that is given (GAIA_UMAP_FIXED) may be free until now. */
	err = umap_reserve(r, c, &view);
	if (err)
		return err;
	r->by_signal = c->flags & GAIA_UMAP_BY_SIGNAL;
	r->uffd = r->by_signal ? umap.kernel.by_signal : umap.kernel.uffd;
	r->free = r->chosen_head = r->chosen_tail = NO_FRAME;
	r->frame_of = calloc(r->pages, sizeof(r->frame_of[0]));
	r->frames = calloc(r->n_frames, sizeof(r->frames[0]));
	err = r->frame_of && r->frames ? set_policy(r, c->policy) : -ENOMEM;
	if (!err)
		return map_views(r, view);
	munmap(view, r->view_length);
	return err;
}

static int new_region(const struct gaia_umap_config *c, struct umap_region **out)
{
	struct umap_region *r = calloc(1, sizeof(*r));
	int err;

	if (!r)
		return -ENOMEM;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->changed, NULL);
	r->writable = c->prot & PROT_WRITE;
	r->shift = __builtin_ctzl(c->page_size);
	r->advice = GAIA_UMAP_NORMAL;
	err = umap_segments_open(r, c);
	if (err)
		goto free_r;
	r->view_length = (r->length + SMALL_PAGE - 1) & ~(SMALL_PAGE - 1);
	r->pages = (r->length + c->page_size - 1) >> r->shift;
	r->desk_length = r->pages << r->shift;
	err = -ENOMEM;
	r->there = malloc(sizeof(r->there[0]));
	if (!r->there)
		goto free_r;
	r->there[0] = (struct umap_range){ 0, r->view_length };
	r->n_there = 1;
	*out = r;
	return 0;

free_r:
	free_region(r);
	return err;
}

/* Whole regions that the program has unmapped itself. */
static void end_dead(void)
{
	struct umap_region *r;

	while ((r = umap_region_remove_dead())) {
		umap_write_range(r, 0, r->view_length);
		free_region(r);
		umap_process_leave();
	}
}

static int create_host(const struct gaia_umap_config *c, char **view)
{
	struct umap_region *r;
	int err = new_region(c, &r);

	if (err)
		return err;
	err = umap_host_create(r, c);
	if (!err) {
		*view = r->view;
		err = umap_region_add(r);
	}
	if (err)
		free_region(r);
	return err;
}

/* @view: where it is, which is only safe to look at before others can find it. */
static int create(const struct gaia_umap_config *from, char **view)
{
	struct gaia_umap_config c;
	struct umap_region *r;
	int err = copy_config(from, &c), paged;
	bool user_mode;

	if (err)
		return err;
	umap_region_settle();
	end_dead();
	/* What is wrong with it is told by the other ways, too. */
	if (umap_host_may_be(&c) && !create_host(&c, view))
		return 0;
	paged = c.flags & GAIA_UMAP_USE_MMAP ? -ENOSYS : umap_process_join(c.flags & GAIA_UMAP_BY_SIGNAL);
	if (paged && (paged != -ENOSYS || c.flags & GAIA_UMAP_NEED_PAGING))
		return paged;
	user_mode = c.flags & GAIA_UMAP_BY_SIGNAL || umap.kernel.user_mode;
	err = !paged && c.flags & GAIA_UMAP_NEED_SYSCALLS && user_mode ? -EPERM : new_region(&c, &r);
	if (err)
		goto leave;
	err = paged ? umap_mmap_create(r, &c) : create_paged(r, &c);
	if (!err) {
		*view = r->view;
		err = umap_region_add(r);
	}
	if (err) {
		free_region(r);
		goto leave;
	}
	return 0;

leave:
	if (!paged)
		umap_process_leave();
	return err;
}

void *gaia_umap(const struct gaia_umap_config *config)
{
	NOT_CANCELLED;
	char *view;
	int err = umap_in_store() ? -EDEADLK : create(config, &view);

	if (err) {
		errno = -err;
		return MAP_FAILED;
	}
	return view;
}

int umap_flush(struct umap_region *r, uint64_t start, uint64_t end, bool sync)
{
	int err = 0, synced = 0;

	if (r->is_host)
		return 0;
	if (r->is_mmap) {
		start &= ~(SMALL_PAGE - 1);
		return sync && msync(r->view + start, end - start, MS_SYNC) ? -errno : 0;
	}
	err = umap_write_range(r, start, end);
	if (sync)
		synced = umap_sync(r);
	pthread_mutex_lock(&r->lock);
	if (!err)
		err = r->error;
	r->error = 0;
	pthread_mutex_unlock(&r->lock);
	return err ? err : synced;
}

int gaia_uunmap(void *addr, size_t length)
{
	NOT_CANCELLED;
	struct umap_region *r;
	bool paged;
	int err;

	if (umap_in_store())
		return umap_result(-EDEADLK);
	umap_region_settle();
	r = length ? umap_region_remove(addr, length) : NULL;
	if (!r)
		return umap_result(-EINVAL);
	paged = !r->is_mmap && !r->is_host;
	err = umap_flush(r, 0, r->view_length, false);
	free_region(r);
	if (paged)
		umap_process_leave();
	return umap_result(err);
}
