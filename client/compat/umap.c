/*
 * umap.c - umap/umap.h by gaia_umap(). What UMap asks of the whole process (flush everything, unmap by address alone) needs
 * a list of the regions; the rest is handed on.
 */
#pragma GCC visibility push(default)
#include <umap/umap.h>
#pragma GCC visibility pop
#include "settings.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/queue.h>

#define BUDGET_PAGES_MIN 3

/* Lives from umap() until uunmap(). */
struct region {
	/* Constant once it is listed. */
	char *addr;
	size_t length;
	uint64_t number; /* no other has the same, ever */
	uint64_t page_size, first; /* pages of the store begin at first + n * page_size */
	struct gaia_umap_store store; /* the program's */

	LIST_ENTRY(region) link; /* lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, region) regions = LIST_HEAD_INITIALIZER(regions); /* lock */
static uint64_t last_number;					     /* lock */

/* ---- a child of fork(2) has no regions ---- */

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void)
{
	LIST_INIT(&regions);
	pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void heed_forks(void)
{
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- stores are asked for one page at a time: UMap's own do not expect more ---- */

static size_t part_of_page(const struct region *region, uint64_t offset, size_t n)
{
	uint64_t left = region->page_size - (offset - region->first) % region->page_size;

	return left < n ? (size_t)left : n;
}

static int read_pages(void *arg, void *buf, size_t n, uint64_t offset)
{
	struct region *region = arg;
	size_t part;
	int err = 0;

	for (size_t done = 0; done < n && !err; done += part) {
		part = part_of_page(region, offset + done, n - done);
		err = region->store.read(region->store.arg, (char *)buf + done, part, offset + done);
	}
	return err;
}

static int write_pages(void *arg, const void *buf, size_t n, uint64_t offset)
{
	struct region *region = arg;
	size_t part;
	int err = 0;

	for (size_t done = 0; done < n && !err; done += part) {
		part = part_of_page(region, offset + done, n - done);
		err = region->store.write(region->store.arg, (const char *)buf + done, part, offset + done);
	}
	return err;
}

static int sync_store(void *arg)
{
	struct region *region = arg;

	return region->store.sync(region->store.arg);
}

static int length_of_store(void *arg, uint64_t *length)
{
	struct region *region = arg;

	return region->store.length(region->store.arg, length);
}

/* ---- regions ---- */

static void *map(void *addr, size_t length, int prot, int flags, int fd, off_t offset, const struct gaia_umap_store *store)
{
	struct settings settings = settings_now();
	struct gaia_umap_segment segment = {.fd = fd, .offset = (uint64_t)offset, .length = length};
	struct gaia_umap_config config = {
		.size = sizeof(config),
		.addr = addr,
		.length = length,
		.prot = prot | PROT_READ,
		.flags = flags & UMAP_FIXED ? GAIA_UMAP_FIXED : 0,
		.segments = &segment,
		.n_segments = 1,
		.page_size = settings_page_size(&settings),
		.evict_high = settings.evict_high,
		.evict_low = settings.evict_low,
	};
	struct gaia_umap_store ours = {.size = sizeof(ours), .read = read_pages};
	struct region *region;
	uint64_t most;

	if (!length || offset < 0 || flags & MAP_ANONYMOUS || prot & ~(PROT_READ | PROT_WRITE)) {
		errno = EINVAL;
		return UMAP_FAILED;
	}
	region = calloc(1, sizeof(*region));
	if (!region) {
		errno = ENOMEM;
		return UMAP_FAILED;
	}
	region->length = length;
	region->page_size = settings.page_size;
	region->first = (uint64_t)offset;
	if (store) {
		region->store = *store;
		ours.arg = region;
		ours.write = store->write ? write_pages : NULL;
		ours.sync = store->sync ? sync_store : NULL;
		ours.length = store->length ? length_of_store : NULL;
		segment.store = &ours;
	}

	/* So many pages of the program's page size, which may be several of ours; no more than the region has. */
	most = length / config.page_size + 1;
	config.budget = settings.pages < most / (settings.page_size / config.page_size) + 1 ?
		settings.pages * (settings.page_size / config.page_size) : most;
	if (config.budget < BUDGET_PAGES_MIN)
		config.budget = BUDGET_PAGES_MIN;
	config.budget *= config.page_size;
	config.read_ahead = (unsigned)settings.read_ahead;
	if (settings.read_ahead >= config.budget / config.page_size)
		config.read_ahead = (unsigned)(config.budget / config.page_size - 1);

	/* Nobody else can know the address before this returns. */
	region->addr = gaia_umap(&config);
	if (region->addr == MAP_FAILED) {
		int error = errno;

		free(region);
		errno = error;
		return UMAP_FAILED;
	}
	pthread_mutex_lock(&lock);
	region->number = ++last_number;
	LIST_INSERT_HEAD(&regions, region, link);
	pthread_mutex_unlock(&lock);
	return region->addr;
}

void *umap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	return map(addr, length, prot, flags, fd, offset, NULL);
}

void *gaia_umap_over_store(void *addr, size_t length, int prot, int flags, off_t offset, const struct gaia_umap_store *store)
{
	if (!store || store->size != sizeof(*store) || !store->read) {
		errno = EINVAL;
		return UMAP_FAILED;
	}
	return map(addr, length, prot, flags, -1, offset, store);
}

/* Under the lock. */
static struct region *region_at(const void *addr)
{
	struct region *region;

	LIST_FOREACH(region, &regions, link) {
		if ((const char *)addr >= region->addr && (size_t)((const char *)addr - region->addr) < region->length)
			return region;
	}
	return NULL;
}

int uunmap(void *addr, size_t length)
{
	struct region *region;
	int result;

	(void)length; /* as in UMap */
	pthread_mutex_lock(&lock);
	region = region_at(addr);
	if (!region || region->addr != addr) {
		pthread_mutex_unlock(&lock);
		errno = EINVAL;
		return -1;
	}
	LIST_REMOVE(region, link);
	pthread_mutex_unlock(&lock);

	/* Not under the lock: it writes, and may call functions of the program. */
	result = gaia_uunmap(region->addr, region->length);
	if (result && errno == EDEADLK) {
		/* Called by a function of a store: the region is there still. */
		pthread_mutex_lock(&lock);
		LIST_INSERT_HEAD(&regions, region, link);
		pthread_mutex_unlock(&lock);
		errno = EDEADLK;
		return -1;
	}
	/* Unknown to gaia_uunmap(): it was moved by mremap(2), and its store may be in use for ever. */
	if (!result || errno != EINVAL) {
		int error = errno;

		free(region);
		errno = error;
	}
	return result;
}

static bool is_listed(uint64_t number)
{
	struct region *region;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(region, &regions, link) {
		if (region->number == number)
			break;
	}
	pthread_mutex_unlock(&lock);
	return region;
}

int umap_flush(void)
{
	struct listed {
		char *addr;
		size_t length;
		uint64_t number;
	} *all;
	struct region *region;
	size_t n = 0, i = 0;
	int error = 0;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(region, &regions, link)
		n++;
	all = calloc(n ? n : 1, sizeof(*all));
	if (all) {
		LIST_FOREACH(region, &regions, link)
			all[i++] = (struct listed){region->addr, region->length, region->number};
	}
	pthread_mutex_unlock(&lock);
	if (!all) {
		errno = ENOMEM;
		return -1;
	}
	for (i = 0; i < n; i++) {
		/* One that another thread ends meanwhile is written by that. */
		if (gaia_umap_flush(all[i].addr, all[i].length, 0)) {
			int why = errno;

			if (is_listed(all[i].number))
				error = why;
		}
	}
	free(all);
	if (error)
		errno = error;
	return error ? -1 : 0;
}

void umap_prefetch(int npages, struct umap_prefetch_item *page_array)
{
	int n;

	/* Neighbours in the list that are of one region by one call. A list of items is one of pointers. */
	for (int first = 0; first < npages; first += n) {
		char *addr = NULL;
		size_t length = 0;
		struct region *region;

		pthread_mutex_lock(&lock);
		region = region_at(page_array[first].page_base_addr);
		if (region) {
			addr = region->addr;
			length = region->length;
		}
		pthread_mutex_unlock(&lock);
		for (n = 1; addr && first + n < npages; n++) {
			char *page = page_array[first + n].page_base_addr;

			if (page < addr || (size_t)(page - addr) >= length)
				break;
		}
		if (addr)
			gaia_umap_prefetch(&page_array[first].page_base_addr, (size_t)n, 0);
	}
}

void umap_fetch_and_pin(char *paddr, uint64_t size)
{
	gaia_umap_advise(paddr, size, GAIA_UMAP_PIN);
}

int umap_has_write_support(void)
{
	return 1;
}
