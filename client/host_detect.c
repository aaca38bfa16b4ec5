/*
 * host_detect.c - which pages of a mapping of the host have been stored to while they were held, found by the kernel: they are write-protected
 * when they are acquired, and the first store to each takes that away (protect.h). So a release has to compare only these; and it costs an
 * acquire no look at their bytes.
 *
 * The kernel's page tables are the only memory of it. Protection belongs to the addresses by which the program stores; what is placed or shown
 * there anew (side_show()), or put there by the program itself, has none, and so counts as changed. Nothing but what is done here protects a page.
 * So a page that is protected has not been stored to since it was armed, be that in this acquire or an earlier one; and one that is not counts as
 * changed, whether it was armed or not. Arming may be left out at will.
 *
 * Stores that take other ways than these page tables are not seen:
 *  - by other mappings of the memory: these have holds of their own, and of a page that two mappings hold the daemon takes nobody's word;
 *  - by devices, and by the kernel for them, to pages that were pinned before (registered buffers of io_uring, RDMA, cudaHostRegister()): pinning
 *    takes the protection away. So a page that is held, in whatever way, is not armed (detect.c, is_free()): what was pinned under an older hold is
 *    not missed, and what was pinned under none may be others' memory by now.
 *
 * A store costs a fault more while its page is protected; so chunks of which much was stored to are left out for a while. A chunk that is mapped as
 * a huge page stays one: all of it is protected, or nothing; its first store has the kernel map it anew, and so all of it counts as stored to.
 */
#include "host_detect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/param.h>
#include <unistd.h>

#include "protect.h"

/* Not in the headers of older systems. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

#define FEATURES (FEATURE_WP_ASYNC | UFFD_FEATURE_WP_HUGETLBFS_SHMEM)

/* Two system calls, and a fault a page that is stored to, cost more than to compare so few. */
#define FEWEST 16u

/* Chunks of which more than one in so many pages had been stored to are left out once, then thrice, ... */
#define MUCH 4u
#define LEFT_OUT_MOST 31u

/* Of the process, while a mapping needs them. gaia_lock. */
static struct {
	int uffd, pagemap;
	unsigned users;
} kernel = { -1, -1, 0 };

/* Hints: threads may come in between. */
struct host_chunk {
	_Atomic uint8_t leave_out; /* so many acquires more */
	_Atomic uint8_t last;	   /* as many as it was last time */
	atomic_bool armed;
};

/* mapping.own */
struct host_own {
	uint8_t *changed; /* of each page of the span; as struct detect has it */
	struct host_chunk chunk[];
};

/* ---- the process ---- */

/* The lock is held. */
static int kernel_use(void)
{
	if (kernel.users++ > 0)
		return 0;
	kernel.uffd = uffd_open_user_mode(FEATURES);
	kernel.pagemap = kernel.uffd < 0 ? kernel.uffd : pagemap_open();
	if (kernel.pagemap >= 0)
		return 0;
	if (kernel.uffd >= 0)
		close(kernel.uffd);
	kernel.users = 0;
	kernel.uffd = -1;
	return kernel.pagemap;
}

static void kernel_close(void)
{
	close(kernel.uffd);
	close(kernel.pagemap);
	kernel.uffd = kernel.pagemap = -1;
}

static void kernel_leave(void)
{
	if (--kernel.users == 0)
		kernel_close();
}

void host_detect_forked(void)
{
	if (kernel.users > 0)
		kernel_close();
	kernel.users = 0;
}

void host_detect_descriptors(int fd[2])
{
	pthread_mutex_lock(&gaia_lock);
	fd[0] = kernel.users > 0 ? kernel.uffd : -1;
	fd[1] = kernel.users > 0 ? kernel.pagemap : -1;
	pthread_mutex_unlock(&gaia_lock);
}

/* ---- a mapping ---- */

int host_detect_make(struct mapping *m, struct detect *d)
{
	struct host_own *own = calloc(1, sizeof(*own) + m->span / GAIA_CHUNK * sizeof(own->chunk[0]));
	int err;

	if (!own)
		return -ENOMEM;
	own->changed = mmap(NULL, m->span / GAIA_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (own->changed == MAP_FAILED) {
		free(own);
		return -ENOMEM;
	}
	/* Under the lock, so that a child finds and closes them. */
	pthread_mutex_lock(&gaia_lock);
	err = kernel_use();
	pthread_mutex_unlock(&gaia_lock);
	if (err < 0) {
		munmap(own->changed, m->span / GAIA_PAGE);
		free(own);
		return err;
	}
	m->own = own;
	d->changed = own->changed;
	return 0;
}

void host_detect_end(struct mapping *m)
{
	struct host_own *own = m->own;

	if (!own)
		return;
	munmap(own->changed, m->span / GAIA_PAGE);
	pthread_mutex_lock(&gaia_lock);
	kernel_leave();
	pthread_mutex_unlock(&gaia_lock);
}

/* ---- runs, chunk by chunk: each is a mapping of its own ---- */

/* A huge page is protected as one by a scan; UFFDIO_WRITEPROTECT would split it. -ENOENT: the chunk is not watched. */
static int protect(char *at, uint64_t n)
{
	struct uffdio_writeprotect wp = { .range = { (uintptr_t)at, n }, .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	int err;

	if (n < GAIA_CHUNK)
		return ioctl(kernel.uffd, UFFDIO_WRITEPROTECT, &wp) ? -errno : 0;
	err = pagemap_scan(kernel.pagemap, at, n, true, NULL, NULL);
	return err == -EPERM ? -ENOENT : err;
}

static int watch(char *chunk)
{
	struct uffdio_register reg = { .range = { (uintptr_t)chunk, GAIA_CHUNK }, .mode = UFFDIO_REGISTER_MODE_WP };

	return ioctl(kernel.uffd, UFFDIO_REGISTER, &reg) ? -errno : 0;
}

/* Pages [a, b) of the span, which lie in one chunk. */
static int arm(struct mapping *m, uint64_t a, uint64_t b)
{
	struct host_chunk *c = &((struct host_own *)m->own)->chunk[a / GAIA_CHUNK_PAGES];
	uint8_t left = m->detect->asked_for ? 0 : c->leave_out;
	int err;

	/* What is one page to the kernel is mapped as such before it is watched. */
	(void)madvise(m->base + a * GAIA_PAGE, GAIA_PAGE, MADV_POPULATE_READ);
	if (b - a < GAIA_CHUNK_PAGES && pagemap_is_huge(kernel.pagemap, m->base + a * GAIA_PAGE)) {
		c->armed = false;
		return 0;
	}
	c->armed = left == 0;
	if (left > 0) {
		c->leave_out = left - 1;
		return 0;
	}
	err = protect(m->base + a * GAIA_PAGE, (b - a) * GAIA_PAGE);
	/* Not watched yet, or not any more, since it was placed or shown anew. */
	if (err == -ENOENT)
		err = watch(m->base + a / GAIA_CHUNK_PAGES * GAIA_CHUNK);
	else
		return err;
	return err ? err : protect(m->base + a * GAIA_PAGE, (b - a) * GAIA_PAGE);
}

static void note_clean(void *arg, uint64_t start, uint64_t end, bool mapped, bool clean)
{
	uint8_t *changed = arg;

	(void)mapped;
	if (clean)
		memset(changed + start / GAIA_PAGE, 0, (end - start) / GAIA_PAGE);
}

/* The chunk was armed, and so many of @n pages have been stored to since. */
static void learn(struct host_chunk *c, uint64_t stored, uint64_t n)
{
	c->last = stored * MUCH > n ? (uint8_t)MIN(2u * c->last + 1, LEFT_OUT_MOST) : 0;
	c->leave_out = c->last;
}

/* Pages [a, b) of the span, which lie in one chunk. What cannot be found out has changed. */
static void look(struct mapping *m, uint64_t a, uint64_t b)
{
	struct host_own *own = m->own;
	struct host_chunk *c = &own->chunk[a / GAIA_CHUNK_PAGES];
	uint64_t stored = 0;

	(void)pagemap_scan(kernel.pagemap, m->base + a * GAIA_PAGE, (b - a) * GAIA_PAGE, false, note_clean, own->changed + a);
	for (uint64_t i = a; i < b; i++)
		stored += own->changed[i];
	if (c->armed)
		learn(c, stored, b - a);
}

int host_detect(struct mapping *m, const struct detect_runs *rs, bool compare)
{
	struct host_own *own = m->own;
	unsigned fewest = m->detect->asked_for ? 1 : FEWEST;
	int err = 0;

	for (size_t k = 0; k < rs->n && !err; k++) {
		const struct detect_run *run = &rs->at[k];
		uint64_t end = run->page + run->n;

		if (!run->compare)
			continue;
		if (compare)
			memset(own->changed + run->page, 1, run->n);
		for (uint64_t a = run->page, b; a < end && run->n >= fewest && !err; a = b) {
			b = MIN(end, (a / GAIA_CHUNK_PAGES + 1) * GAIA_CHUNK_PAGES);
			if (compare)
				look(m, a, b);
			else
				err = arm(m, a, b);
		}
	}
	return err;
}
