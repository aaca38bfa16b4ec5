/*
 * pages.c - pages come to memory: faults and prefetches.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>

#include "internal.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* ---- mapping ---- */

struct verdict {
	bool mapped, clean;
};

static void see_one(void *arg, uint64_t start, uint64_t end, bool mapped, bool clean)
{
	*(struct verdict *)arg = (struct verdict){ mapped, clean };
}

/* -EAGAIN, too, while events are being read: the view may not be there any more (U2). */
static int map_there(struct umap_region *r, uint64_t at, uint64_t n, bool write, uint64_t *done)
{
	int err;

	*done = 0;
	if (!umap_hold_views())
		return -EAGAIN;
	err = umap_kernel_map(r->uffd, r->view + at, n, r->writable && !write, done);
	umap_let_views();
	return err;
}

/*
 * A fault on a page that we believe to be mapped: it came late, or the kernel has taken the mapping away (it reclaims
 * memory), or the program has (madvise). Nobody else maps it meanwhile (U2).
 */
static int map_again(struct umap_region *r, struct umap_frame *f, uint64_t at, bool write)
{
	char *view = r->view + at;
	struct verdict v = { false, false };
	int err = umap_kernel_scan(view, SMALL_PAGE, false, see_one, &v);
	uint64_t done;

	if (err)
		return err == -EPERM ? -ENOENT : err;
	if (v.mapped) {
		umap_kernel_wake(r->uffd, view, SMALL_PAGE);
		return 0;
	}
	if (r->writable && (!v.clean || write))
		f->flags |= FRAME_DIRTY;
	err = map_there(r, at, SMALL_PAGE, write, &done);
	if (err == -EFAULT) {
		/* MADV_REMOVE: what was there is zeros now, and these are what is stored. */
		memset(r->desk + at, 0, SMALL_PAGE);
		f->flags |= r->writable ? FRAME_DIRTY : 0;
		err = map_there(r, at, SMALL_PAGE, true, &done);
	}
	return err;
}

/*
 * Map n resident pages in a row, none of them mapped yet. Where it fails whoever waits for any of them tries again. The
 * lock is held.
 */
static int map_pages(struct umap_region *r, uint64_t page, uint64_t n, bool write)
{
	uint64_t start = page_start(r, page), end = MIN(page_end(r, page + n - 1), r->view_length);
	int err = 0;

	for (uint64_t i = page; i < page + n; i++)
		r->frames[frame_of(r, i)].flags |= write ? FRAME_DIRTY : 0;
	FOR_EACH_THERE(r, start, end, i, a, b) {
		uint64_t done, again;
		int failed = map_there(r, a, b - a, write, &done);

		if (failed == -EFAULT) {
			/* Some of it was removed (MADV_REMOVE) while it was not mapped: that is zeros now. */
			for (uint64_t at = a; at < b; at += SMALL_PAGE)
				(void)*(volatile char *)(r->desk + at);
			for (uint64_t k = page; k < page + n && r->writable; k++)
				r->frames[frame_of(r, k)].flags |= FRAME_DIRTY;
			failed = map_there(r, a, b - a, write, &again);
			done = MAX(done, again);
		}
		for (uint64_t k = a >> r->shift; done && k <= (a + done - 1) >> r->shift; k++)
			r->frames[frame_of(r, k)].flags |= FRAME_MAPPED;
		err = err ? err : failed;
	}
	if (err)
		FOR_EACH_THERE(r, start, end, i, a, b)
			umap_kernel_wake(r->uffd, r->view + a, b - a);
	return err;
}

/* The lock is held. 1: a page that is being filled is mapped by whoever fills it; one that leaves is touched again then. */
static int map_resident(struct umap_region *r, uint32_t frame, uint64_t at, bool write)
{
	struct umap_frame *f = &r->frames[frame];

	if (f->state != FRAME_RESIDENT) {
		f->flags |= FRAME_TOUCHED;
		return 1;
	}
	if (f->flags & FRAME_CHOSEN) {
		bool forced = f->flags & FRAME_FORCED;

		umap_unchoose(r, frame);
		if (!forced)
			r->policy.hit(r->policy_state, frame);
		r->stats.hits += at != UINT64_MAX;
	}
	if (!(f->flags & FRAME_MAPPED))
		return map_pages(r, f->page, 1, write);
	return at == UINT64_MAX ? 0 : map_again(r, f, at & ~(SMALL_PAGE - 1), write);
}

/* ---- frames ---- */

static void make_hole(struct umap_region *r, uint32_t frame)
{
	madvise(r->desk + page_start(r, r->frames[frame].page), 1ul << r->shift, MADV_REMOVE);
}

/* Its memory is a hole. Whoever waits for the page touches it again, and so brings it. The lock is held. */
static void free_frame(struct umap_region *r, uint32_t frame)
{
	struct umap_frame *f = &r->frames[frame];

	FOR_EACH_THERE(r, f->flags & FRAME_TOUCHED ? page_start(r, f->page) : UINT64_MAX, page_end(r, f->page), i, a, b)
		umap_kernel_wake(r->uffd, r->view + a, b - a);
	r->frame_of[f->page] = 0;
	f->state = FRAME_FREE;
	f->flags = 0;
	f->next = r->free;
	r->free = frame;
	r->n_free++;
	r->n_busy--;
}

void umap_drop(struct umap_region *r, const uint32_t *frames, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct umap_frame *f = &r->frames[frames[i]];
		bool evicted = !(f->flags & FRAME_FORCED);

		umap_unchoose(r, frames[i]);
		r->policy.removed(r->policy_state, frames[i], evicted);
		r->stats.evictions += evicted;
		f->state = FRAME_LEAVING;
		f->flags = 0;
		r->n_busy++;
	}
	pthread_mutex_unlock(&r->lock);
	for (unsigned i = 0; i < n; i++)
		make_hole(r, frames[i]);
	pthread_mutex_lock(&r->lock);
	for (unsigned i = 0; i < n; i++)
		free_frame(r, frames[i]);
	pthread_cond_broadcast(&r->changed);
}

/* NO_FRAME: none is free. The lock is held. */
static uint32_t take_frame(struct umap_region *r)
{
	uint32_t frame = r->free;

	if (frame != NO_FRAME)
		r->free = r->frames[frame].next;
	else if (r->used < r->n_frames)
		frame = r->used++;
	else
		return NO_FRAME;
	r->n_free--;
	return frame;
}

/* Wait until a frame is free, or make one so. The lock is held, but not meanwhile. */
static int wait_for_frame(struct umap_region *r)
{
	int made;

	pthread_mutex_unlock(&r->lock);
	made = umap_evict(r, 1);
	pthread_mutex_lock(&r->lock);
	if (made == -EAGAIN) {
		if (!r->n_free && r->n_busy)
			pthread_cond_wait(&r->changed, &r->lock);
		return 0;
	}
	return made < 0 ? made : 0;
}

/* ---- filling ---- */

/* How many pages to read at a time, beginning with this one, if so many are wanted. The lock is held. */
static uint64_t run_length(struct umap_region *r, uint64_t page, uint64_t most)
{
	uint64_t n = 1;

	most = MIN(MIN(most, MAX_RUN >> r->shift), 1 + r->n_free);
	while (n < most && page + n < r->pages && !r->frame_of[page + n])
		n++;
	return n;
}

static void fill_ended(struct umap_region *r, uint64_t page, uint64_t n, int err)
{
	for (uint64_t i = page; i < page + n; i++) {
		uint32_t frame = frame_of(r, i);
		struct umap_frame *f = &r->frames[frame];

		if (err) {
			/* Whoever asked for the fill is the caller's matter. */
			free_frame(r, frame);
		} else {
			r->n_busy--;
			f->state = FRAME_RESIDENT;
			r->policy.inserted(r->policy_state, frame, i);
		}
	}
	pthread_cond_broadcast(&r->changed);
}

/* How pages are filled. */
struct filling {
	bool quick;
	bool write;		/* the first page is to be stored to */
	uint64_t page;		/* the first */
	uint64_t unseen;	/* NO_PAGE; or what begins here is not to be mapped: 4 KiB of the region */
	bool left;		/* more than that has not been mapped */
	int err;		/* out: why the first page could not be */
};

/* Memory of the desk is made in one go; where there is none storing there would be SIGBUS. */
static int to_desk(struct umap_region *r, uint64_t at, const char *from, uint64_t n)
{
	if (madvise(r->desk + at, n, MADV_POPULATE_WRITE))
		return -ENOMEM;
	memcpy(r->desk + at, from, n);
	return 0;
}

/* Whether all of it is in the view, in one piece. The lock is held. */
static bool is_there(const struct umap_region *r, uint64_t start, uint64_t end)
{
	for (unsigned i = 0; i < r->n_there; i++)
		if (r->there[i].start <= start && end <= r->there[i].end)
			return true;
	return false;
}

static void set_mapped(struct umap_region *r, uint64_t start, uint64_t end, const struct filling *how)
{
	for (uint64_t page = start >> r->shift; page_start(r, page) < end; page++) {
		/* A page of 4 KiB that is not to be mapped is not. */
		if (page_start(r, page) != how->unseen || r->shift > __builtin_ctzl(SMALL_PAGE))
			r->frames[frame_of(r, page)].flags |= FRAME_MAPPED;
		if (how->write && page == how->page)
			r->frames[frame_of(r, page)].flags |= FRAME_DIRTY;
	}
}

/* Nothing of pages of the range was mapped. */
static void unset_mapped(struct umap_region *r, uint64_t start, uint64_t end)
{
	for (uint64_t page = (start + (1ul << r->shift) - 1) >> r->shift; page_start(r, page) < end; page++)
		r->frames[frame_of(r, page)].flags &= ~FRAME_MAPPED;
}

/* No lock is held before; until end_copying() views_lock is. The view: NULL, if the range is not there, and nothing has begun. */
static char *begin_copying(struct umap_region *r, uint64_t start, uint64_t end, const struct filling *how)
{
	char *view = NULL;

	pthread_rwlock_rdlock(&umap.views_lock);
	pthread_mutex_lock(&r->lock);
	if (is_there(r, start, end)) {
		view = r->view;
		set_mapped(r, start, end, how);
	}
	pthread_mutex_unlock(&r->lock);
	if (!view)
		pthread_rwlock_unlock(&umap.views_lock);
	return view;
}

static void end_copying(struct umap_region *r, uint64_t copied, uint64_t end)
{
	pthread_rwlock_unlock(&umap.views_lock);
	if (copied == end)
		return;
	pthread_mutex_lock(&r->lock);
	unset_mapped(r, copied, end);
	pthread_mutex_unlock(&r->lock);
}

/* Give the memfd and the view what was read: a range of which nothing is to be mapped otherwise, or is unseen. Returns where it stopped. */
static uint64_t copy_to_view(struct umap_region *r, uint64_t start, uint64_t end, const char *from, const struct filling *how)
{
	uint64_t at = start, done;
	int err = 0;
	char *view;

	while (at < end && (!err || err == -EAGAIN)) {
		/* Who reads events waits for it. */
		uint64_t part = MIN(at + BLOCK, end);

		view = begin_copying(r, at, part, how);
		if (!view)
			break;
		err = umap_kernel_copy(r->uffd, view + at, from + (at - start), part - at, r->writable && !(how->write && at >> r->shift == how->page), &done);
		at += done;
		end_copying(r, at, part);
		if (err == -EAGAIN) {
			/* Events of munmap(2) or mremap(2) come first. */
			umap_read_events();
			sched_yield();
		}
	}
	return at;
}

/* Protect what is not mapped, so that it counts as clean. */
static void mark_unseen(struct umap_region *r, struct filling *how)
{
	uint64_t end = how->unseen + SMALL_PAGE;
	char *view = begin_copying(r, how->unseen, end, how);

	if (!view) {
		how->left = true;
		return;
	}
	how->left |= r->writable && umap_kernel_mark(r->uffd, view + how->unseen, SMALL_PAGE);
	end_copying(r, end, end);
}

/* What was read of whole pages becomes the region's. Returns how much of it; less: there is no memory. No lock is held. */
static uint64_t place(struct umap_region *r, const char *block, uint64_t start, uint64_t n, struct filling *how)
{
	/* Behind the view there is nothing of the last page. */
	uint64_t end = MIN(start + n, r->view_length);
	uint64_t seen = how->unseen == NO_PAGE ? end : how->unseen + SMALL_PAGE; /* again */
	uint64_t bounds[] = { how->unseen, seen, how->write ? page_end(r, how->page) : end };

	for (uint64_t at = start, next, done; at < end; at = next) {
		next = end;
		for (unsigned i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++)
			if (bounds[i] > at && bounds[i] < next)
				next = bounds[i];
		done = at == how->unseen ? at : copy_to_view(r, at, next, block + (at - start), how);
		if (done < next && to_desk(r, done, block + (done - start), next - done))
			return done - start;
		if (at != how->unseen)
			how->left |= done < next;
		else if (r->shift > __builtin_ctzl(SMALL_PAGE))
			mark_unseen(r, how);
	}
	return n;
}

static void add_stored(void *arg, uint64_t start, uint64_t end, bool mapped, bool clean)
{
	bool *stored = arg;

	(void)mapped;
	for (uint64_t at = start; at < end; at += SMALL_PAGE)
		stored[at / SMALL_PAGE] |= !clean;
}

static int unmap_beginning(struct umap_region *r, uint64_t start, uint64_t end, bool *stored)
{
	int err = 0;

	pthread_mutex_lock(&umap.events_lock);
	pthread_mutex_lock(&r->lock);
	/* Of what is not there any more nothing can be seen; it was said to be stored to. */
	if (r->frames[frame_of(r, start >> r->shift)].flags & FRAME_DIRTY)
		memset(stored, true, (end - start + SMALL_PAGE - 1) / SMALL_PAGE);
	FOR_EACH_THERE(r, start, end, i, a, b) {
		int failed = umap_kernel_scan(r->view + a, b - a, false, NULL, NULL);

		if (!failed)
			failed = umap_kernel_unmap(r->view + a, b - a);
		/* A part that we have not heard of was unmapped. */
		if (failed == -ENOMEM)
			failed = -EPERM;
		if (!failed)
			failed = umap_kernel_scan(r->view + a, b - a, false, add_stored, stored + (a - start) / SMALL_PAGE);
		err = err ? err : failed;
	}
	pthread_mutex_unlock(&r->lock);
	pthread_mutex_unlock(&umap.events_lock);
	return err;
}

/*
 * A page cannot become the region's, but the beginning of it has been mapped: what was stored there is written now, as the page is FILLING, and
 * ends. No lock is held.
 */
static void write_beginning(struct umap_region *r, uint64_t start, uint64_t end)
{
	bool stored[MAX_BLOCK / SMALL_PAGE] = { false };
	int err = unmap_beginning(r, start, end, stored);

	for (unsigned tries = 0; err == -EPERM && tries < SETTLE_TRIES; tries++) {
		/* It was unmapped, or moved. */
		umap_read_events();
		sched_yield();
		err = unmap_beginning(r, start, end, stored);
	}
	for (uint64_t at = start; at < end && r->writable; at += SMALL_PAGE)
		if (stored[(at - start) / SMALL_PAGE])
			err = umap_write(r, at, SMALL_PAGE) ?: err;
	if (!err)
		return;
	pthread_mutex_lock(&r->lock);
	r->error = err;
	r->stats.write_errors++;
	pthread_mutex_unlock(&r->lock);
}

/* Take frames for n pages, or as many as there are, the first of which is this one. Returns how many. The lock is held. */
static uint64_t take_frames(struct umap_region *r, uint64_t page, uint64_t n, uint32_t frame)
{
	for (uint64_t i = page; i < page + n; i++) {
		if (i > page)
			frame = take_frame(r);
		if (frame == NO_FRAME)
			return i - page;
		r->frames[frame] = (struct umap_frame){ .page = i, .state = FRAME_FILLING };
		r->frame_of[i] = frame + 1;
		r->n_busy++;
	}
	return n;
}

/* Pages that are filled become resident, and whoever waits for them goes on. The lock is held. */
static void show(struct umap_region *r, uint64_t page, uint64_t n, struct filling *how)
{
	uint64_t unseen = how->unseen >> r->shift, first = page;
	bool touched;

	if (!n)
		return;
	fill_ended(r, page, n, 0);
	/* What fails is a matter of those who wait for the page: they touch it again. */
	if (how->left && page == how->page) {
		how->err = map_pages(r, page, 1, how->write);
		first++;
	}
	if (how->left && first < page + n)
		map_pages(r, first, page + n - first, false);
	touched = how->unseen != NO_PAGE && unseen >= page && unseen < page + n && r->frames[frame_of(r, unseen)].flags & FRAME_TOUCHED;
	if (!how->left && touched)
		map_resident(r, frame_of(r, unseen), how->unseen, false);
	how->left = false;
	FOR_EACH_THERE(r, r->by_signal ? UINT64_MAX : page_start(r, page), page_end(r, page + n - 1), i, a, b)
		umap_kernel_wake(r->uffd, r->view + a, b - a);
}

static void make_holes(struct umap_region *r, uint64_t page, uint64_t end)
{
	madvise(r->desk + page_start(r, page), (end - page) << r->shift, MADV_REMOVE);
}

/*
 * Fill n pages, the first in this frame, and map them. Returns how many were filled, or why the first was not. The lock is held, but not
 * meanwhile.
 */
static int fill(struct umap_region *r, uint64_t n, uint32_t frame, struct filling *how)
{
	uint64_t page = how->page, done = 0, most = MAX(r->unit >> r->shift, 1);
	char *block = umap_take_block(MIN(most, n) << r->shift);
	/* There are some since the region was made: all are in use, and there is no memory for more. */
	int err = block ? 0 : -EBUSY;

	n = take_frames(r, page, n, frame);
	while (done < n && !err) {
		uint64_t start = page_start(r, page + done), bytes = MIN(most, n - done) << r->shift, placed = 0;

		pthread_mutex_unlock(&r->lock);
		err = umap_read(r, block, start, bytes, how->quick);
		if (!err)
			placed = place(r, block, start, bytes, how);
		if (!err && placed < bytes)
			err = -ENOMEM;
		if (placed & ((1ul << r->shift) - 1))
			write_beginning(r, (start + placed) >> r->shift << r->shift, start + placed);
		if (err == -ENOMEM)
			make_holes(r, page + done + (placed >> r->shift), page + done + (bytes >> r->shift));
		pthread_mutex_lock(&r->lock);
		show(r, page + done, placed >> r->shift, how);
		done += placed >> r->shift;
	}
	if (block)
		umap_give_block(block);
	fill_ended(r, page + done, n - done, err);
	if (done && err && err != -EAGAIN)
		r->stats.read_errors++;
	return done ? (int)done : err;
}

/* A hole of the program's: nothing can be touched there. Else, make the toucher get SIGBUS; a handler knows without. The lock is held. */
static void poison(struct umap_region *r, uint64_t at)
{
	if (r->by_signal)
		return;
	bool held = umap_hold_views();

	at &= ~(SMALL_PAGE - 1);
	/* While events are being read it is tried again by whoever touches it. */
	FOR_EACH_THERE(r, at, at + SMALL_PAGE, i, a, b)
		held ? umap_kernel_poison(r->uffd, r->view + a) : umap_kernel_wake(r->uffd, r->view + a, SMALL_PAGE);
	if (held)
		umap_let_views();
}

static int bring_absent(struct umap_region *r, uint64_t page, uint64_t want, bool fault, bool write, enum umap_how how)
{
	struct filling filling = { .quick = how == UMAP_QUICK, .write = write, .page = page, .unseen = NO_PAGE };
	uint32_t frame;
	uint64_t run;
	int n, err;

	if (how == UMAP_RESIDENT)
		return -EDEADLK;
	if (how == UMAP_QUICK && !r->is_quick)
		return -EBUSY;
	frame = take_frame(r);
	if (frame == NO_FRAME) {
		if (how == UMAP_QUICK)
			return -EBUSY;
		err = wait_for_frame(r);
		return err ? err : -EAGAIN;	/* the page may be there by now */
	}
	run = run_length(r, page, want);
	n = fill(r, run, frame, &filling);
	if (n == -EBUSY)
		return how == UMAP_QUICK ? -EBUSY : -EAGAIN;
	/* What was to be read ahead may be why it failed. Its frames are free again, and the page is not there. */
	if (n < 0 && n != -EAGAIN && run > 1) {
		r->stats.read_errors++;
		n = fill(r, 1, take_frame(r), &filling);
		if (n == -EBUSY)
			return -EAGAIN;
	}
	if (n < 0) {
		if (how == UMAP_QUICK && n == -EAGAIN)
			return -EBUSY;
		r->stats.read_errors++;
		return n == -EAGAIN ? -EIO : n;
	}
	r->stats.ahead += fault ? n - 1 : n;
	if (fault)
		r->next_fault = page + n;
	return filling.err;
}

static int bring(struct umap_region *r, uint64_t page, uint64_t want, uint64_t at, bool write, enum umap_how how)
{
	int err;

	do {
		if (r->frame_of[page])
			err = map_resident(r, frame_of(r, page), at, write);
		else
			err = bring_absent(r, page, want, at != UINT64_MAX, write, how);
		if (err == 1 && how == UMAP_RESIDENT)
			return -EDEADLK;
		if (err == -EAGAIN) {
			/* Events of munmap(2) or mremap(2) come first; or frames of others. */
			pthread_mutex_unlock(&r->lock);
			umap_read_events();
			sched_yield();
			pthread_mutex_lock(&r->lock);
		}
	} while (err == -EAGAIN);
	return err;
}

/* Unlocks. */
static void unlock_and_kick(struct umap_region *r)
{
	bool kick = r->n_frames - r->n_free >= umap_marks(r).high;

	pthread_mutex_unlock(&r->lock);
	if (kick)
		umap_kick_evictor(r);
}

int umap_fault(struct umap_region *r, uint64_t at, bool write, enum umap_how how)
{
	uint64_t page = at >> r->shift;
	bool goes_on = false;
	int err;

	pthread_mutex_lock(&r->lock);
	err = bring(r, page,
		    r->advice == GAIA_UMAP_SEQUENTIAL || (r->advice == GAIA_UMAP_NORMAL && umap_goes_on(r, page)) ? 1 + r->ahead : 1,
		    at, write && r->writable, how);
	if (err != -EBUSY || how != UMAP_QUICK) {
		r->stats.faults++;
		/* -ENOENT, -ESRCH: it has been unmapped meanwhile, or the process ends. */
		if (err == -ENOENT || err == -ESRCH)
			umap_kernel_wake(r->uffd, r->view + (at & ~(SMALL_PAGE - 1)), SMALL_PAGE);
		else if (err < 0)
			poison(r, at);
		else
			goes_on = umap_follow_stream(r, page);
	}
	unlock_and_kick(r);
	if (goes_on)
		umap_kick_reader(r);
	return err;
}

int umap_fault_here(struct umap_region *r, uint64_t at, bool write)
{
	int err = umap_fault(r, at, write, umap_in_store() ? UMAP_RESIDENT : UMAP_WAIT);
	uint32_t frame;

	if (err == -ENOENT || err == -ESRCH)
		return 0; /* touched again, it is what there is now */
	if (err != 1)
		return err;
	/* Who fills it does not wake us. */
	pthread_mutex_lock(&r->lock);
	while ((frame = frame_of(r, at >> r->shift)) != NO_FRAME && r->frames[frame].state != FRAME_RESIDENT)
		pthread_cond_wait(&r->changed, &r->lock);
	pthread_mutex_unlock(&r->lock);
	return 0;
}

int umap_bring(struct umap_region *r, uint64_t page, uint64_t n)
{
	int err;

	pthread_mutex_lock(&r->lock);
	err = bring(r, page, n, UINT64_MAX, false, UMAP_WAIT);
	unlock_and_kick(r);
	return err;
}

void umap_read_ahead(struct umap_region *r, uint64_t page, uint64_t n, uint64_t unseen)
{
	uint64_t end = page + n;
	struct filling filling;
	uint32_t frame;
	int got = 1;

	pthread_mutex_lock(&r->lock);
	for (; page < end && got > 0; page += got) {
		got = 1;
		if (r->frame_of[page])
			continue;
		frame = take_frame(r);
		if (frame == NO_FRAME)
			break;
		/* Whoever touches what cannot be read is told then. */
		filling = (struct filling){ .page = page, .unseen = unseen };
		got = fill(r, run_length(r, page, end - page), frame, &filling);
		if (got <= 0)
			break;
		r->stats.ahead += got;
	}
	unlock_and_kick(r);
}

/* ---- what the program unmaps ---- */

void umap_cut(struct umap_region *r, uint64_t start, uint64_t end)
{
	unsigned n = 0;
	bool writes = false;
	struct umap_range *more;

	pthread_mutex_lock(&r->lock);
	for (uint64_t page = start >> r->shift; page < r->pages && page_start(r, page) < end; page++) {
		struct umap_frame *f = r->frame_of[page] ? &r->frames[frame_of(r, page)] : NULL;

		/* What was stored there is not to be seen any more. */
		if (f && f->flags & FRAME_MAPPED && r->writable) {
			f->flags |= FRAME_DIRTY;
			writes = true;
		}
	}
	/* At most one range becomes two. */
	more = realloc(r->there, (r->n_there + 1) * sizeof(*more));
	if (more)
		r->there = more;
	else
		end = UINT64_MAX;	/* what is behind is lost, too: better than a wrong address */
	for (unsigned i = 0; i < r->n_there; i++) {
		struct umap_range t = r->there[i];

		if (t.start < start && end < t.end) {
			memmove(&r->there[i + 2], &r->there[i + 1], (r->n_there - i - 1) * sizeof(t));
			r->there[i].end = start;
			r->there[i + 1] = (struct umap_range){ end, t.end };
			n = ++r->n_there;
			break;
		}
		if (t.start >= start && t.end <= end)
			continue;
		if (t.start < end && start < t.end) {
			if (t.start < start)
				t.end = start;
			else
				t.start = end;
		}
		r->there[n++] = t;
	}
	r->n_there = n;
	r->write_all |= writes;
	umap_region_moved(r, r->view);
	pthread_mutex_unlock(&r->lock);
	if (writes)
		umap_kick_evictor(r);
}
