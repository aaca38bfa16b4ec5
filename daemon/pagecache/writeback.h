/*
 * writeback.h - storing, and bringing home in the background: writeback.c, background.c.
 */
#ifndef GAIA_PAGECACHE_WRITEBACK_H
#define GAIA_PAGECACHE_WRITEBACK_H

#include <stdbool.h>
#include <stdint.h>

struct cache;
struct cfile;
struct chunk;
struct store_file;

void *flusher_main(void *cache);
void *fetcher_main(void *cache);
void *trimmer_main(void *cache);
/*
 * Store the dirty pages of [a, b). @wait: wait for pages that are locked; otherwise skip them. file->range is held
 * shared or exclusively. 0 or the first error; then the pages stay dirty.
 */
int chunk_store(struct chunk *ch, unsigned a, unsigned b, bool wait);
/* chunk_store() for eviction: takes all its locks by trying. Returns the number of pages stored. */
unsigned chunk_store_some(struct chunk *ch);
int cfile_store(struct cfile *f, bool write, struct store_file **out);
/* The same, and have the store open it now, before the caller takes what others may want: that may wait for a program's lease. */
void cfile_open_now(struct cfile *f, bool write);
/* Pages of the file could not be stored: note it for the next cfile_error_check(), and log it. */
void store_failed(struct cfile *f, int err);
/* Set the modification time for what is dirty and stored later: to now; */
void cfile_touch(struct cfile *f);
/* to the time that the store's file has now, unless one has been set; */
int cfile_keep_time(struct cfile *f);
/* one of the two, depending on whether the kernel keeps times (times_above). */
void cfile_wrote(struct cfile *f);
/*
 * Called before home takes more of the file: 0; or, when dirty pages have used up home's budget, the error with which the
 * file's pages cannot be stored. Otherwise such pages would take all of the machine's memory. file->range is held.
 */
int cfile_make_room(struct cfile *f);
/*
 * Merge home what devices released in a range (len 0: to the end). file->range is held, shared, and given up meanwhile for those that wait for
 * it. When home has much to store, what was fetched is stored, too, as far as that makes room; if that fails, and there is no room, nothing more
 * is fetched.
 */
int cfile_fetch(struct cfile *f, uint64_t off, uint64_t len);

/* See cache_config.unstored. */
void cache_tell_unstored(struct cache *c);
/* Somebody waits for the range, and everybody else behind that thread. */
bool cfile_range_is_wanted(struct cfile *f);

#endif
