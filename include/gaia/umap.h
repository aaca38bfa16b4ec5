/*
 * gaia/umap.h - paging in user space: memory whose pages are read from, and written to, files or stores of the
 * application when they are touched. Part of libgaiaclient (-lgaiaclient); needs no daemon.
 *
 *	struct gaia_umap_segment file = { .fd = fd };
 *	struct gaia_umap_config config = {
 *		.size = sizeof(config), .prot = PROT_READ | PROT_WRITE,
 *		.page_size = 1 << 20, .budget = 256 << 20,
 *		.segments = &file, .n_segments = 1,
 *	};
 *	uint64_t *keys = gaia_umap(&config);			MAP_FAILED: see errno
 *	size_t length = ...					as the file's, here
 *	...use keys as any memory...
 *	gaia_umap_flush(keys, length, GAIA_UMAP_SYNC);
 *	gaia_uunmap(keys, length);
 *
 * It behaves as mmap(2) with MAP_SHARED does, but for the following. The application chooses the page size, how much
 * memory a region may take (its budget), and which pages leave when that is full.
 *
 *  - What is stored reaches the file when its page leaves, with gaia_umap_flush(), and with gaia_uunmap(); not
 *    before. So others see it late. It is lost when the process ends otherwise: exit(3) and exec(2) do not flush. Pages
 *    are written whole: what others write meanwhile to a page that was changed here may be overwritten.
 *  - A file never becomes longer. Bytes past its end read as zero, and what is stored there is dropped. If it is truncated,
 *    pages that are in memory keep their bytes until they leave. Nothing exists past the end of the region's last page
 *    (of 4 KiB): SIGSEGV.
 *  - Whoever touches a page that cannot be read, or one for which no other page can leave because they
 *    cannot be written, gets SIGBUS; nobody else does. Such a page can be tried again by gaia_umap_prefetch().
 *  - A page that cannot be written stays in memory and is tried again. The error is kept for the next
 *    gaia_umap_flush(), or for gaia_uunmap().
 *  - A child of fork(2) does not have the region: SIGSEGV. It may make regions of its own.
 *  - munmap(2) of a part takes that part away for good; what was stored there is written. mremap(2) may move the whole
 *    region (end it by its new address); of a part that is moved alone nothing is left: SIGSEGV at its new place.
 *    Do not do either with a part while other threads map memory: for a moment the library takes the address for its own.
 *    madvise(2) loses nothing, but for MADV_REMOVE, which makes zeros of its range: use gaia_umap_advise().
 *    mprotect(2) works as ever. Do not undo MADV_DONTFORK.
 *  - Without privileges the kernel may serve faults of the program only, not those within system calls: read(2) and the like
 *    fail with EFAULT then, at pages that are not in memory. Such regions have GAIA_UMAP_IS_USER_MODE in their statistics;
 *    GAIA_UMAP_NEED_SYSCALLS refuses them.
 *  - What is stored by way of pages that the kernel holds on to may be lost: reads with O_DIRECT into a region, registered
 *    buffers of io_uring(7), and DMA of devices; unless nothing of the region is flushed, and none of its pages leave,
 *    from when they are taken until they are let go. Ordinary read(2) into a region is fine.
 *  - Where the kernel lacks what is needed (Linux 6.7: userfaultfd(2) with asynchronous write protection, and PAGEMAP_SCAN; a
 *    sandbox may forbid them), a region over descriptors is an ordinary mapping by mmap(2), and has GAIA_UMAP_IS_MMAP in its statistics:
 *    budget, page size and policy mean nothing there, and past the end of a file is SIGBUS. GAIA_UMAP_NEED_PAGING refuses it.
 *
 *  - A region to read (PROT_READ) over one file on a gaiafs mount is the memory of gaiafs itself, where all of it fits in the budget, and in what
 *    gaiafs has for that (half of its --home): all processes with such regions share one copy, and nothing faults. It has GAIA_UMAP_IS_HOST in its
 *    statistics. All of the file is read when the region is made, and stays in memory until it ends; page size, budget, policy and advice mean nothing
 *    then; what others write shows as described at GAIA_DEVICE_HOST (gaia/client.h), at the latest in a region that is made after that; what is
 *    cut off the file becomes zeros. With GAIA_UMAP_NO_HOST, with GAIA_UMAP_FIXED, GAIA_UMAP_NEED_PAGING or GAIA_UMAP_USE_MMAP, with a policy of
 *    the application, if offset is not a multiple of the page size, or if gaiafs cannot give it, the region is as any other.
 *
 *  - With GAIA_UMAP_BY_SIGNAL a page that is not in memory raises SIGBUS in the thread that touches it, and a handler of the library's brings the page
 *    there: no other thread is woken, which is most of what a fault takes otherwise. The price: system calls fail with EFAULT
 *    at pages that are not in memory, also where the process has privileges (the region has GAIA_UMAP_IS_USER_MODE, too, and
 *    GAIA_UMAP_NEED_SYSCALLS refuses it); a thread that blocks SIGBUS is killed; functions of stores and policies run in
 *    the handler, on the stack of whoever touches. The handler is installed with the first such region, and stays: it passes
 *    what is not its own to the one that was there before. A program that installs another one later must pass on what is not that one's own
 *    (SA_SIGINFO). In a debugger: handle SIGBUS nostop noprint. No privileges are needed. Where it cannot be had it is as if the kernel lacked
 *    userfaultfd(2): see above.
 *
 * Threads that serve faults are shared by all regions of the process, made when they are needed, and end with the last
 * region. They block all signals. All functions are thread-safe; none is a cancellation point, and handlers of signals that come
 * during a call run after it, so that they may touch regions. They return -1 (or MAP_FAILED) and set errno.
 * A function of a store that calls any of these gets EDEADLK; one that touches a region gets SIGBUS where the page is not in memory. Common errors:
 *	EINVAL		the range is not in one region, or a value makes no sense
 *	ENOMEM		no memory, or no mappings (vm.max_map_count: a region takes two). Other regions are unharmed
 */
#ifndef GAIA_UMAP_H
#define GAIA_UMAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What an application can put in the place of a file. Its functions run on the library's threads, several at a time, and
 * in the caller's where a call waits for pages, or writes them. They must not wait for a thread that touches a region.
 * They return 0, or a negative errno.
 */
struct gaia_umap_store {
	size_t size;		/* sizeof(struct gaia_umap_store) */
	void *arg;		/* passed to each function */

	/* Put the n bytes at offset in buf. All of them exist: they lie before length()'s end. */
	int (*read)(void *arg, void *buf, size_t n, uint64_t offset);

	/* The reverse. NULL: the store is read only. Writes of the same bytes come one at a time. */
	int (*write)(void *arg, const void *buf, size_t n, uint64_t offset);

	/* On return what was written is on stable storage. NULL: it always is. */
	int (*sync)(void *arg);

	/* Put the store's length in *length. NULL: there is no end. Asked again for each read and write. */
	int (*length)(void *arg, uint64_t *length);
};

/* A part of a region, from one file or store. */
struct gaia_umap_segment {
	const struct gaia_umap_store *store; /* NULL: fd. It must exist until gaia_uunmap() has returned */
	int fd;			/* a regular file or block device; may be closed after gaia_umap() */
	int reserved;		/* 0 */
	uint64_t offset;	/* bytes; any, also odd ones */
	uint64_t length;	/* bytes; 0: to the end that the file or store has now */
};

/*
 * A policy of the application. It decides which page leaves when another needs its memory. Pages are named by slots: a page
 * has one slot from inserted() to removed(). Called with a lock of the region held, one call at a time: it must be
 * quick, must not wait, and must not use any region. Hits of pages that are mapped are invisible: before a page
 * leaves it is unmapped, for a while, and only a touch in that time counts as a hit.
 */
struct gaia_umap_policy {
	size_t size;		/* sizeof(struct gaia_umap_policy) */

	/* Make a state for slots 0...slots - 1. NULL: gaia_umap() fails with ENOMEM. */
	void *(*create)(void *arg, uint32_t slots);
	void (*destroy)(void *state);

	/* The page is in the slot now. */
	void (*inserted)(void *state, uint32_t slot, uint64_t page);

	/* It has been chosen by victim(), and touched before it left: it stays, and may be chosen again. */
	void (*hit)(void *state, uint32_t slot);

	/* Choose a slot that is inserted and not chosen: it will leave unless it is touched. UINT32_MAX: there is none. */
	uint32_t (*victim)(void *state);

	/* The slot is empty now. It may have been chosen or not. evicted is 0 if the page was dropped for another reason. */
	void (*removed)(void *state, uint32_t slot, int evicted);

	void *arg;		/* passed to create() */
};

/* Of the library's own: FIFO; S3-FIFO, with ghosts (the default); LRU, by what hits are seen. */
#define GAIA_UMAP_S3FIFO ((const struct gaia_umap_policy *)0)
#define GAIA_UMAP_FIFO ((const struct gaia_umap_policy *)1)
#define GAIA_UMAP_LRU ((const struct gaia_umap_policy *)2)

/* flags */
#define GAIA_UMAP_FIXED 1	  /* at addr, replacing what is mapped there, as MAP_FIXED */
#define GAIA_UMAP_NEED_SYSCALLS 2 /* fail with EPERM if faults within system calls cannot be served */
#define GAIA_UMAP_NEED_PAGING 4	  /* fail with ENOSYS instead of falling back to mmap(2) */
#define GAIA_UMAP_USE_MMAP 8	  /* use mmap(2), as if there were nothing else */
#define GAIA_UMAP_NO_HOST 16	  /* do not use gaiafs's memory: see above */
#define GAIA_UMAP_BY_SIGNAL 32	  /* whoever touches a page serves itself: see above */

/* Zero means the default, everywhere. Set size, and zero the rest first: later versions add fields at the end. */
struct gaia_umap_config {
	size_t size;		/* sizeof(struct gaia_umap_config) */
	void *addr;		/* a hint, as mmap(2)'s; with GAIA_UMAP_FIXED the address, a multiple of the page size */
	uint64_t length;	/* bytes; default: all of the segments, which must not be shorter */
	int prot;		/* PROT_READ or PROT_READ | PROT_WRITE; default: PROT_READ */
	unsigned flags;		/* GAIA_UMAP_FIXED... */
	const struct gaia_umap_segment *segments; /* one after the other they make the region */
	size_t n_segments;
	uint64_t page_size;	/* a power of two, 4096 to 2 MiB; default: GAIA_UMAP_PAGESIZE, else 4096 */
	uint64_t budget;	/* bytes of memory, three pages at least; default: GAIA_UMAP_BUFSIZE pages, else a quarter of the
				 * machine's memory, at most all of the region. An instruction that touches more pages than the budget has never ends */
	const struct gaia_umap_policy *policy; /* copied; default: GAIA_UMAP_S3FIFO */
	/*
	 * Percents of the budget: pages begin to leave in the background at high, until there are low. Default:
	 * GAIA_UMAP_EVICT_HIGH_WATER_THRESHOLD and GAIA_UMAP_EVICT_LOW_WATER_THRESHOLD; else 90 and 70, but not so that more than 4 and 8 MiB
	 * are free, while no faults are in order half a MiB and 1 MiB (8 and 16 pages, if that is more).
	 */
	unsigned evict_high;
	unsigned evict_low;
	/*
	 * Pages to read together with one, at once, when faults are in order; default: GAIA_UMAP_READ_AHEAD, else up to 64 KiB. Where they go on in order,
	 * forward or backward, up to 4 MiB, or a page, is read ahead in the background besides, if the budget has 16 pages or more; not with
	 * GAIA_UMAP_READ_AHEAD=0, unless this is given.
	 */
	unsigned read_ahead;
	unsigned reserved;	/* 0 */
};

/*
 * Make a region. The number of threads that serve faults and of those that evict are the process's:
 * GAIA_UMAP_PAGE_FILLERS (at least two) and GAIA_UMAP_PAGE_EVICTORS in the environment, read when there is no region yet; and
 * GAIA_UMAP_MAX_FAULT_EVENTS, how many faults are taken from the kernel at a time.
 *
 * The files of segments are opened anew (by /proc/self/fd), once for each file however many regions use it, so that flags
 * like O_APPEND do not matter; where that is refused the descriptor is duplicated. A descriptor with O_DIRECT has its file read and written past the
 * kernel's page cache, as far as segments begin at multiples of 4 KiB, of it and of the region: so that memory does not have it twice. When the
 * last such region ends
 * that is closed, and with it the process's record locks of the file (F_SETLK of fcntl(2)) are gone, as with every close(2).
 *
 * EACCES: a descriptor is not open for reading, or prot asks for writing and a descriptor or store is not for writing.
 * EINVAL, too: a descriptor has O_APPEND or O_DIRECT, its file could not be opened anew, and prot asks for writing.
 * ENODEV: a descriptor is of something else. EBADF. EMFILE, ENFILE. EEXIST: GAIA_UMAP_FIXED over a region. ENOTSUP: without paging, there is a store, or a segment that is not
 * made of whole pages of 4096 bytes. EPERM, ENOSYS: see the flags. EAGAIN: there can be no more threads.
 */
void *gaia_umap(const struct gaia_umap_config *config);

/*
 * Write what was stored, and end the region: addr as returned by gaia_umap(), and its length. No thread may
 * touch it any more. It is ended also if some of it could not be written, now or since the last flush: that is the error.
 */
int gaia_uunmap(void *addr, size_t length);

/*
 * Write what was stored in the range before the call. flags: 0, or GAIA_UMAP_SYNC: also bring it to stable storage, as fsync(2).
 * EIO, ENOSPC...: something of the region (in the range or not) could not be written, now or since the last flush: that is kept, and tried again.
 */
#define GAIA_UMAP_SYNC 1
int gaia_umap_flush(void *addr, size_t length, int flags);

/*
 * Bring pages of one region to memory: those at the n addresses. flags: 0 returns at once, reports no errors, and may leave
 * pages out; GAIA_UMAP_WAIT returns when each has been brought, or with an error (EIO...) if some cannot be. If there are more than the budget holds, the
 * first have left by then.
 */
#define GAIA_UMAP_WAIT 1
int gaia_umap_prefetch(void *const *pages, size_t n, int flags);

/* Say how a range will be used. It changes nothing that the program sees. NORMAL, SEQUENTIAL and RANDOM are said of the whole region. */
#define GAIA_UMAP_NORMAL 0	/* read ahead if faults are in order */
#define GAIA_UMAP_RANDOM 1	/* never read ahead */
#define GAIA_UMAP_SEQUENTIAL 2	/* read ahead of every fault */
#define GAIA_UMAP_WILLNEED 3	/* bring the range to memory, in the background */
#define GAIA_UMAP_DONTNEED 4	/* its pages leave now, after they were written if they were changed */
#define GAIA_UMAP_COLD 5	/* its pages leave before others do */
#define GAIA_UMAP_PIN 6		/* bring it to memory, and keep it there. ENOMEM: less than three pages of the budget would be left */
#define GAIA_UMAP_UNPIN 7	/* end that */
int gaia_umap_advise(void *addr, size_t length, int advice);

/* is */
#define GAIA_UMAP_IS_MMAP 1	 /* an ordinary mapping: see above. All that follows is zero, but for length */
#define GAIA_UMAP_IS_USER_MODE 2 /* faults within system calls fail with EFAULT */
#define GAIA_UMAP_IS_HOST 4	 /* gaiafs's memory: see above. All that follows is zero, but for length */
#define GAIA_UMAP_IS_BY_SIGNAL 8 /* see GAIA_UMAP_BY_SIGNAL */

struct gaia_umap_stats {
	size_t size;		/* set by the caller: sizeof(struct gaia_umap_stats) */
	uint64_t is;		/* GAIA_UMAP_IS_... */
	uint64_t length;	/* bytes */
	uint64_t page_size;
	uint64_t pages;		/* the budget, in pages */
	uint64_t resident;	/* pages in memory */
	uint64_t dirty;		/* of these, known to be changed; what was stored since the last flush may not be known yet */
	uint64_t pinned;
	uint64_t faults;	/* served since the region was made; all that follows, too */
	uint64_t hits;		/* of these, of pages that were chosen to leave */
	uint64_t reads;		/* calls of read(2), or of the store's function */
	uint64_t read_bytes;
	uint64_t writes;
	uint64_t written_bytes;
	uint64_t evictions;	/* pages */
	uint64_t ahead;		/* pages read ahead or prefetched */
	uint64_t read_errors;
	uint64_t write_errors;
};
int gaia_umap_stats(void *addr, struct gaia_umap_stats *out);

#ifdef __cplusplus
}
#endif
#endif
