/*
 * internal.h - what the files of umap/ share.
 *
 * A region's memory is a memfd, mapped twice: as the program's *view*, which userfaultfd watches, and as the *desk*, which
 * only the library sees. A page's place in both is its place in the region. What is not in memory is a hole of the memfd.
 *
 *	fault -> a frame is taken -> the page is read to a block (blocks.c) -> UFFDIO_COPY: memfd and view have it
 *	(or the desk gets a copy, and UFFDIO_CONTINUE maps it to the view: where some of the page is not to be mapped, or is not there)
 *	view unmapped (MADV_DONTNEED) -> written from the desk if it was stored to -> hole (MADV_REMOVE of the desk)
 *
 * What was stored to: the view's pages are mapped write-protected, and asynchronous protection goes with the first store
 * (PAGEMAP_SCAN tells). When protected pages are unmapped the kernel leaves a mark of their protection, and none where
 * it had gone. So what is found *after* unmapping is exact, and no store can follow it without a fault that we see.
 *
 * Rules:
 *  U1. A page is chosen to be dropped (LEAVING) only under the region's lock, when it is not mapped, not dirty, and not being written or filled.
 *	Nobody maps, fills or writes it from then on, until its memory is a hole.
 *  U2. What maps or protects pages of the view by their addresses holds views_lock, shared: UFFDIO_CONTINUE and PAGEMAP_SCAN under the region's lock,
 *	UFFDIO_COPY by whoever fills the page. Who reads events until they are applied has it for himself: else the address may be another region's
 *	by then. Under the region's lock nobody waits for it (umap_hold_views()).
 *	A page that is copied is MAPPED while it is FILLING, and may be stored to at once: so it is not scanned before it is resident, and what was
 *	stored is written if it cannot become that.
 *  U3. DIRTY is set under the region's lock no later than protection is renewed, and cleared only before a write
 *	of the whole page begins; a failed write sets it again.
 *  U4. A page has one write at a time (WRITING).
 *  U5. What unmaps pages of the view by their addresses holds events_lock, as does who reads events until they are
 *	applied: else the address may be somebody else's by then (munmap, mremap).
 *  U6. No lock is held while a store or file is read or written.
 *  U7. Threads that serve faults wait only for frames that are being filled or written, or leave, which end by themselves; and for copies of BLOCK
 *	bytes, which are calls of the kernel.
 *
 * Locks, in the order in which they are taken: events_lock, views_lock, region.lock, process.lock.
 */
#ifndef UMAP_INTERNAL_H
#define UMAP_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/uio.h>

#pragma GCC visibility push(default)
#include "gaia/umap.h"
#pragma GCC visibility pop

#define SMALL_PAGE 4096ul
#define MAX_RUN (1ul << 20)	/* bytes that are read or written at a time, or one page */
#define BLOCK (128ul << 10)	/* of which so many are read at a time: what stays in a processor's cache. But where each is waited for, all of it */
#define MAX_BLOCK (2ul << 20)	/* the largest page */
#define NO_FRAME UINT32_MAX
#define SETTLE_TRIES 1000	/* until what munmap(2) or mremap(2) does is known */

/* ---- files and stores (segments.c) ---- */

/* A file that regions use: from the first such region to the last. */
struct umap_file {
	int fd;
	int direct;		/* the same with O_DIRECT; -1: all is by way of the kernel's page cache */
	bool no_direct;		/* that cannot be used; atomic */
	uint64_t dev, ino;
	int access;		/* O_RDONLY, O_RDWR; O_DIRECT; O_APPEND if it is a duplicate */
	bool block;		/* a block device */
	unsigned refs;		/* process.lock */
	LIST_ENTRY(umap_file) link;
};

struct umap_segment {
	uint64_t start, length;	/* in the region */
	uint64_t offset;	/* in the file or store */
	struct umap_file *file;	/* or */
	struct gaia_umap_store store;
};

struct umap_region;

/* An error of a file or store must not be taken for what these codes mean within the library. */
static inline int umap_foreign(int err)
{
	return err == -EAGAIN || err == -EBUSY || err == -ENOENT || err == -ESRCH ? -EIO : err;
}

void umap_files_forget(void);	/* in a child of fork() */
int umap_segments_open(struct umap_region *r, const struct gaia_umap_config *c);
void umap_segments_close(struct umap_region *r);

/*
 * Read a range of the region to buf; bytes past the end of a file become zero. nowait: -EAGAIN instead of
 * waiting for a disk. Errors are as of umap_foreign() otherwise.
 */
int umap_read(struct umap_region *r, char *buf, uint64_t start, uint64_t n, bool nowait);

/* Write a range of the desk, but for what lies past the end of a file. */
int umap_write(struct umap_region *r, uint64_t start, uint64_t n);
int umap_sync(struct umap_region *r);

/* Is this thread, or the thread tid, in a function of a store? */
bool umap_in_store(void);
bool umap_thread_in_store(uint32_t tid);

/* ---- blocks.c ---- */

/* At least n bytes, MAX_BLOCK at most, aligned to pages, for the caller until they are given back; NULL: no memory. Also in a handler of a signal. */
char *umap_take_block(uint64_t n);
void umap_give_block(char *block);
/* Before the first region, and after the last one. process.lock is held. */
int umap_blocks_start(void);
void umap_blocks_end(void);
void umap_blocks_forget(void);	/* in a child of fork() */

/* ---- the kernel (kernel.c) ---- */

/* Negative errno, as everywhere. */
struct umap_kernel {
	int uffd, pagemap;
	int by_signal;	/* another userfaultfd, of regions whose faults are SIGBUS; -1: there is none yet */
	bool user_mode;
};
int umap_kernel_open(struct umap_kernel *k);
int umap_kernel_open_by_signal(struct umap_kernel *k);
void umap_kernel_close(struct umap_kernel *k);
/* uffd: the region's. */
int umap_kernel_register(int uffd, void *view, uint64_t n);
void umap_kernel_unregister(int uffd, void *view, uint64_t n);

/*
 * Map what the memfd has. -EAGAIN: there are events to be read first; -ENOENT: nothing of ours is there. done (may be
 * NULL) becomes the bytes that were mapped, from the first on; the others were not, if it fails.
 */
int umap_kernel_map(int uffd, void *view, uint64_t n, bool protect, uint64_t *done);
/* The same for what the memfd has not, with these bytes; whoever waits for them is not woken. */
int umap_kernel_copy(int uffd, void *view, const void *from, uint64_t n, bool protect, uint64_t *done);
/* Nothing is mapped there. Let the kernel remember that it was protected: so it is clean. */
int umap_kernel_mark(int uffd, void *view, uint64_t n);
int umap_kernel_unmap(void *view, uint64_t n);
/* The same of several parts, by one call. False: some may not be unmapped (Linux before 6.14 cannot do it). */
bool umap_kernel_unmap_at_once(const struct iovec *parts, unsigned n);
void umap_kernel_poison(int uffd, void *view);
void umap_kernel_wake(int uffd, void *view, uint64_t n);

/*
 * Tell for each part of the view whether it is clean: protected, or unmapped while it was. rearm: protect again what
 * was stored to. Returns 0, or -EPERM if it is not all ours.
 */
int umap_kernel_scan(void *view, uint64_t n, bool rearm, void (*part)(void *arg, uint64_t start, uint64_t end, bool mapped, bool clean),
		     void *arg);

/* ---- regions ---- */

/* LEAVING: its memory is becoming a hole. Who touches it waits, as of a FILLING one. */
enum frame_state { FRAME_FREE, FRAME_FILLING, FRAME_RESIDENT, FRAME_LEAVING };

/* flags of a resident frame, the first two also of a FILLING one */
#define FRAME_MAPPED 1u		/* some of it may be mapped in the view */
#define FRAME_DIRTY 2u		/* to be written before it is dropped */
#define FRAME_WRITING 4u
#define FRAME_CHOSEN 8u		/* in region.chosen: leaves unless it is touched. Not mapped */
#define FRAME_FORCED 16u	/* chosen by advice, not by the policy */
#define FRAME_PINNED 32u	/* the policy does not know it */
#define FRAME_FAILED 64u	/* the last write failed */
#define FRAME_TOUCHED 128u	/* while it was FILLING, or LEAVING */

struct umap_frame {
	uint64_t page;
	uint32_t prev, next;	/* in chosen; next: in free */
	uint8_t state;
	uint8_t flags;
};

struct umap_range {
	uint64_t start, end;	/* bytes of the region */
};

/*
 * Faults in order, forward or backward (streams.c). The next pages are read in the background, and mapped but for the 4 KiB that will be touched first:
 * their fault, which costs little, says that the stream goes on.
 */
#define STREAMS 8
#define MOST_AHEAD (4ul << 20)	/* bytes of a window, or one page */
struct umap_stream {
	uint64_t forward, backward; /* faults of these pages go on with it; NO_PAGE: none does */
	uint64_t front;		/* forward: the first page that was not asked for yet; backward: the page behind it */
	uint32_t window;	/* pages that were asked for last; 0: two faults have not been in order yet */
	uint64_t used;		/* when it went on last, by region.stream_clock */
	uint64_t from, n;	/* to be read; n 0: nothing */
	bool begun;		/* some of what was asked for last has been taken from there */
};
#define NO_PAGE UINT64_MAX

/* From how many pages on they leave in the background, and until there are how many. */
struct umap_marks {
	uint32_t high, low;
};
enum { MARKS_CALM, MARKS_STREAMS };
#define CALM 64			/* faults since one was in order */

struct umap_region {
	/* Constant. */
	uint64_t length;	/* bytes, as given */
	uint64_t view_length;	/* in whole pages of 4 KiB */
	uint64_t desk_length;	/* in whole pages of the region */
	uint64_t pages;
	unsigned shift;		/* page size: 1 << shift */
	bool writable, is_mmap, is_host; /* neither: it is paged */
	bool by_signal;		/* who touches serves itself (signal.c) */
	int uffd;		/* if it is paged */
	char *desk;
	struct umap_segment *segments;
	size_t n_segments;
	uint64_t unit;		/* bytes that are read at a time, or one page */
	bool is_quick;		/* some of it may be read without waiting */
	struct gaia_umap_policy policy;
	uint32_t n_frames, keep_chosen, ahead;
	struct umap_marks marks[2]; /* by umap_marks() */
	uint32_t most_ahead;	/* pages of a stream's window; 0: there are no streams */

	/* process.lock */
	unsigned refs;
	bool ending, evict_queued, ahead_queued;
	TAILQ_ENTRY(umap_region) evict_link, ahead_link;

	/* Changed under lock and process.lock: either is enough to read it. */
	char *view;
	struct umap_place *places; /* where its parts are in the tree by address (process.c) */
	LIST_ENTRY(umap_region) link;

	/* Atomic: they are counted without locks. */
	uint64_t reads, read_bytes, writes, written_bytes;

	pthread_mutex_t lock;
	/* lock */
	pthread_cond_t changed;	/* a frame is not FILLING, LEAVING or WRITING any more, or free */
	struct umap_range *there; /* what the program has not unmapped, in order */
	unsigned n_there;
	uint32_t *frame_of;	/* by page: its frame + 1, or 0 */
	struct umap_frame *frames;
	uint32_t free, used;	/* the list of free frames, and how many were ever used */
	uint32_t n_free, n_busy, n_pinned;
	uint32_t chosen_head, chosen_tail, n_chosen;
	void *policy_state;
	int advice;
	uint64_t next_fault;	/* the page after the last one that was read for a fault */
	struct umap_stream streams[STREAMS];
	uint64_t stream_clock;
	uint32_t in_streams;	/* so many faults may still come that are not in order, until it is calm */
	bool write_all;		/* the evictor shall write all that is dirty: the program has unmapped it */
	int error;		/* of writes; kept for the next flush */
	struct gaia_umap_stats stats;	/* but for what is above, and what can be counted */
};

/* ---- pages (pages.c, evict.c, write.c) ---- */

/* The part of the view that has the page, as far as it is there; call part for each. The region's lock is held. */
#define FOR_EACH_THERE(r, from, to, i, a, b) \
	for (unsigned i = 0; i < (r)->n_there; i++) \
		for (uint64_t a = (r)->there[i].start > (from) ? (r)->there[i].start : (from), \
			      b = (r)->there[i].end < (to) ? (r)->there[i].end : (to); a < b; a = b)

static inline uint64_t page_start(const struct umap_region *r, uint64_t page)
{
	return page << r->shift;
}

static inline uint64_t page_end(const struct umap_region *r, uint64_t page)
{
	return (page + 1) << r->shift;
}

static inline uint32_t frame_of(const struct umap_region *r, uint64_t page)
{
	return r->frame_of[page] - 1;	/* NO_FRAME: none */
}

/* Streams need memory that is free. The lock is held. */
static inline struct umap_marks umap_marks(const struct umap_region *r)
{
	return r->marks[r->in_streams ? MARKS_STREAMS : MARKS_CALM];
}

enum umap_how {
	UMAP_WAIT,
	UMAP_QUICK,		/* -EBUSY instead of waiting */
	UMAP_RESIDENT,		/* -EDEADLK instead of reading anything */
};

/* Bring a page that was touched at this byte of the region to memory, and map it; else whoever touched it gets SIGBUS. No lock is held. */
int umap_fault(struct umap_region *r, uint64_t at, bool write, enum umap_how how);

/* The same in the thread that has touched it, which is to get SIGBUS if this fails. 0: it shall try again. */
int umap_fault_here(struct umap_region *r, uint64_t at, bool write);

/*
 * Bring a page to memory, and map it; at most n pages from it on if none of them is there. 1: somebody else is reading
 * it just now. No lock is held.
 */
int umap_bring(struct umap_region *r, uint64_t page, uint64_t n);

/*
 * Read those of n pages from this one on that are not there, as long as frames are free, and map them: but for the 4 KiB of the region that begin at
 * @unseen (NO_PAGE: all), unless these have been touched meanwhile. No lock is held.
 */
void umap_read_ahead(struct umap_region *r, uint64_t page, uint64_t n, uint64_t unseen);

/* ---- streams.c ---- */

/* A fault of the page would be in order: so it is read together with those behind it. The lock is held. */
bool umap_goes_on(const struct umap_region *r, uint64_t page);
/* A fault of the page has been served. True: umap_kick_reader() is to be called. The lock is held. */
bool umap_follow_stream(struct umap_region *r, uint64_t page);
/* Some of what a stream has asked for, which is not asked for any more then. False: there is nothing. The lock is held. */
bool umap_take_ahead(struct umap_region *r, struct umap_stream *out);
/* Read what the region's streams have asked for. No lock is held. */
void umap_read_streams(struct umap_region *r);

/* The program has unmapped the range of the region. events_lock is held. */
void umap_cut(struct umap_region *r, uint64_t start, uint64_t end);

#define EVICT_BATCH 64
/*
 * Drop n chosen frames, a batch at most: their memory becomes holes, and they free. The region's lock is held (U1), but not while they are
 * LEAVING: that takes long where other processors must forget them.
 */
void umap_drop(struct umap_region *r, const uint32_t *frames, unsigned n);

/* It leaves the list of chosen ones. The lock is held. */
void umap_unchoose(struct umap_region *r, uint32_t frame);

/*
 * Make up to n frames free by the policy. Returns how many, or, if none because of that, the error of a write;
 * -EAGAIN: everything is being filled or written. No lock is held.
 */
int umap_evict(struct umap_region *r, uint32_t n);

/* The pages of the range, as far as they are neither pinned nor busy, leave next; leave: now. No lock is held. */
int umap_evict_range(struct umap_region *r, uint64_t start, uint64_t end, bool leave);

/* Write what is dirty in the range. No lock is held. */
int umap_write_range(struct umap_region *r, uint64_t start, uint64_t end);

/*
 * Write the run of pages that begins with this dirty one, which is not WRITING. Returns the pages that were written, 0 if somebody else has begun to
 * write it meanwhile, or a negative errno, as of umap_foreign(). The lock is held, but not meanwhile.
 */
int umap_write_run(struct umap_region *r, uint64_t page);

/* See what was stored to in the range, and mark it DIRTY; rearm: protect it again. The lock is held. -EAGAIN: events are being read. */
int umap_rescan(struct umap_region *r, uint64_t start, uint64_t end, bool rearm);

/* The pages of the range that are in memory, in order; the caller frees the list. The lock is held. */
int umap_compare_pages(const void *a, const void *b);	/* for qsort(3) */
int umap_list_resident(struct umap_region *r, uint64_t start, uint64_t end, uint64_t **out, size_t *n_out);

/* ---- the process (process.c, threads.c) ---- */

struct umap_process {
	pthread_mutex_t events_lock;
	pthread_rwlock_t views_lock;
	pthread_mutex_t lock;
	pthread_cond_t work;	/* for fillers: jobs, faults, or nobody polls */
	pthread_cond_t evict;	/* for evictors */
	pthread_cond_t changed;	/* a region's refs, or the threads have ended */
	struct umap_kernel kernel; /* constant while there are regions */
	/* lock */
	unsigned regions;	/* that are paged, and those being made */
	bool stopping;
	unsigned dead;		/* regions that the program has unmapped as a whole */
	LIST_HEAD(, umap_region) all;
	TAILQ_HEAD(, umap_region) to_evict, to_read;
};
extern struct umap_process umap;

/* U2. False: events are being read, perhaps by somebody who waits for the lock that is held. */
static inline bool umap_hold_views(void)
{
	return !pthread_rwlock_tryrdlock(&umap.views_lock);
}

static inline void umap_let_views(void)
{
	pthread_rwlock_unlock(&umap.views_lock);
}

/* One more paged region, and one less. -ENOSYS: there is no paging here. */
int umap_process_join(bool by_signal);
void umap_process_leave(void);

/* What munmap(2) and mremap(2) did before this call is known after it. */
void umap_region_settle(void);

/* The region that has the byte, referenced, and which one of its bytes that is (at may be NULL); or NULL. */
struct umap_region *umap_region_get(const void *addr, uint64_t *at);
struct umap_region *umap_region_find(const char *from, const char *to);	/* one that overlaps, referenced */
void umap_region_put(struct umap_region *r);
bool umap_region_at(const char *from, const char *to);	/* is there one? */
int umap_region_add(struct umap_region *r);

/* Take it from the table, so that nobody finds it, and wait until nobody uses it. NULL: there is none. dead: one that the program has unmapped. */
struct umap_region *umap_region_remove(const void *addr, uint64_t length);
struct umap_region *umap_region_remove_dead(void);

/* view, or there[], are other ones: r->lock and events_lock are held. */
void umap_region_moved(struct umap_region *r, char *view);

/* A number from the environment, unless the process has the privileges of its file (setuid). */
unsigned umap_setting(const char *name, unsigned min, unsigned max, unsigned otherwise);

/* process.lock is held; stop gives it up meanwhile. */
int umap_threads_start(void);
void umap_threads_stop(void);
void umap_threads_forget(void);	/* in a child of fork() */

/* There is a userfaultfd by_signal now. */
void umap_threads_look(void);

/* ---- faults that are signals (signal.c) ---- */

/* All but those that come of what a thread does itself, as in a store's functions: these cannot come later. */
void umap_signals_of_others(sigset_t *set);
/* From now on SIGBUS is ours. process.lock is held. */
void umap_signal_start(void);

void umap_kick_evictor(struct umap_region *r);
bool umap_faults_wait(void); /* for a filler */
void umap_kick_reader(struct umap_region *r); /* streams of the region go on */
bool umap_ending(struct umap_region *r); /* who reads for nobody in particular need not go on */
int umap_prefetch(struct umap_region *r, uint64_t page, uint64_t n); /* in the background */

/* Read and apply the events that the kernel waits with; faults among them are served later. */
void umap_read_events(void);

#endif
