/*
 * umap/umap.h - the interface of LLNL's UMap (version 2.1), for programs that were written for it. Link with
 * -lgaiaumap (pkg-config: gaiaumap). Written from UMap's documentation; new programs use gaia/umap.h.
 *
 *	int fd = open(path, O_RDWR);
 *	uint64_t *keys = umap(NULL, length, PROT_READ | PROT_WRITE, UMAP_PRIVATE, fd, 0);
 *	if (keys == UMAP_FAILED)
 *		...
 *	...use keys as any memory...
 *	uunmap(keys, length);		what was stored is in the file now
 *
 * In C++ a region can have a store of the program's own instead of a file: see Umap::umap_ex() below, and
 * umap/store/Store.hpp.
 *
 * A region behaves as gaia/umap.h says. What differs from UMap, for a program that is compiled anew:
 *
 *  - Each region has a buffer of its own, of UMAP_BUFSIZE pages at most and never larger than the region. UMap has
 *    one buffer for all regions. So a program with several large regions may take more memory than that many pages.
 *    Without UMAP_BUFSIZE it is a quarter of the machine's memory, not 90 % of what is free.
 *  - Any length and offset will do, and the offset counts (UMap: multiples of the page size, and the offset is ignored).
 *    A file never becomes longer.
 *  - The page size is as the program sets it where that is a power of two up to 2 MiB. Otherwise the library uses the
 *    largest such power that divides it, and umapcfg_get_umap_page_size() still returns what was set.
 *  - UMAP_PRIVATE means what it means in UMap: what is stored reaches the file, late. MAP_SHARED means the same here.
 *  - Errors: umap() and umap_ex() return UMAP_FAILED, uunmap() and umap_flush() -1, with errno. UMap ends the program, or
 *    throws. If a page cannot be read, its reader gets SIGBUS.
 *  - Where user-space paging is impossible, a region over a file is an ordinary shared mapping, and one over a store fails
 *    (ENOTSUP).
 *  - UMAP_LOGGING, UMAP_MONITOR_FREQ and UMAP_BUFADAPT_FREQ are ignored: see gaia_umap_stats(). There is no server
 *    (MP-UMap), and no store for a network.
 *
 * Environment, read by the first call: UMAP_PAGESIZE (bytes; default 4096), UMAP_BUFSIZE (pages), UMAP_READ_AHEAD
 * (pages; default 0: the library decides), UMAP_EVICT_HIGH_WATER_THRESHOLD and UMAP_EVICT_LOW_WATER_THRESHOLD (percent;
 * default 90 and 70). Read when the library is loaded, and set as GAIA_UMAP_... unless that is set: UMAP_PAGE_FILLERS,
 * UMAP_PAGE_EVICTORS (threads; the default is the library's), UMAP_MAX_FAULT_EVENTS. Values that make no sense count as
 * not set.
 *
 * All functions are thread-safe, and callable from C and C++.
 */
#ifndef GAIA_COMPAT_UMAP_H
#define GAIA_COMPAT_UMAP_H

#include <gaia/umap.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#define UMAP_PRIVATE MAP_PRIVATE
#define UMAP_FIXED MAP_FIXED
#define UMAP_FAILED ((void *)-1)

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Make a region over a file, with mmap(2)'s parameters. flags: UMAP_PRIVATE, with or without UMAP_FIXED; others are ignored, but
 * for MAP_ANONYMOUS: EINVAL. UMAP_FIXED replaces what is mapped there, except another region: EEXIST. fd may be closed
 * afterwards. UMAP_FAILED and errno as gaia_umap().
 */
void *umap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);

/* Write what was stored, and end the region that begins at addr: all of it, whatever the length. EINVAL: there is none. */
int uunmap(void *addr, size_t length);

/* Write what was stored in any region to its file or store. It is not brought to stable storage: fsync(2). */
int umap_flush(void);

struct umap_prefetch_item {
	void *page_base_addr; /* any address in the page */
};

/* Begin to read pages, of one region or several. Returns at once. Pages of no region are passed over. */
void umap_prefetch(int npages, struct umap_prefetch_item *page_array);

/* Read a range of a region, and keep it in memory until uunmap(). Does what it can: see GAIA_UMAP_PIN. */
void umap_fetch_and_pin(char *paddr, uint64_t size);

/* Whether regions can be written: 1. */
int umap_has_write_support(void);

/* The settings that the next region is made with. Thread counts count when there is no region yet. */
long umapcfg_get_system_page_size(void);	  /* bytes */
uint64_t umapcfg_get_umap_page_size(void);	  /* bytes */
uint64_t umapcfg_get_max_pages_in_buffer(void);	  /* pages */
uint64_t umapcfg_get_read_ahead(void);		  /* pages */
uint64_t umapcfg_get_num_fillers(void);		  /* threads; the number of processors if nothing was set */
uint64_t umapcfg_get_num_evictors(void);	  /* the same */
uint64_t umapcfg_get_max_fault_events(void);	  /* 256 if nothing was set */
int umapcfg_get_evict_low_water_threshold(void);  /* percent */
int umapcfg_get_evict_high_water_threshold(void); /* percent */

/*
 * Change them (UMap 1). What makes no sense is ignored: the page size must be a multiple of 4096. Those of threads and events
 * change the environment: not while another thread uses that.
 */
void umapcfg_set_umap_page_size(uint64_t page_size);
void umapcfg_set_max_pages_in_buffer(uint64_t max_pages);
void umapcfg_set_read_ahead(uint64_t num_pages);
void umapcfg_set_num_fillers(uint64_t num_fillers);
void umapcfg_set_num_evictors(uint64_t num_evictors);
void umapcfg_set_max_fault_events(uint64_t max_events);
void umapcfg_set_evict_low_water_threshold(int percent);
void umapcfg_set_evict_high_water_threshold(int percent);

/*
 * As umap(), over a store instead of a file: not of UMap's interface, but what umap_ex() is made of. *store is copied; its arg must
 * stay until uunmap() has returned. Its functions are never asked for bytes of two pages at a time.
 */
void *gaia_umap_over_store(void *addr, size_t length, int prot, int flags, off_t offset, const struct gaia_umap_store *store);

#ifdef __cplusplus
}

#include <umap/store/Store.hpp>

namespace Umap
{

/*
 * Make a region over a store, or with store == nullptr over fd. The store must exist until uunmap() has returned; it is not
 * deleted. Its functions are called by several threads at a time; what they throw counts as EIO.
 */
inline void *umap_ex(void *addr, std::size_t length, int prot, int flags, int fd, off_t offset, Store *store)
{
	if (!store)
		return umap(addr, length, prot, flags, fd, offset);
	struct gaia_umap_store functions = gaia_umap_store();
	functions.size = sizeof(functions);
	functions.arg = store;
	functions.read = Store::gaia_read;
	functions.write = Store::gaia_write;
	return gaia_umap_over_store(addr, length, prot, flags, offset, &functions);
}

} // namespace Umap
#endif
#endif
