/*
 * passthrough.h - files that CPU programs have open past the cache. For others these do nothing.
 */
#ifndef GAIA_PAGECACHE_PASSTHROUGH_H
#define GAIA_PAGECACHE_PASSTHROUGH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct cfile;
struct chunk;
struct mapping;

/* Whether CPU programs may write the store's file past us: acquires and releases read it to compare. */
bool passthrough_compares(struct cfile *f);
/*
 * The same, the other way round, asked before something is done that is right only as long as it is so: if a CPU program may write the file at any
 * time from now on, cfile_cpu_writes() looks at each chunk with lacks_bases before that. The chunk's lock is held until it is set.
 */
bool passthrough_is_trusted(struct cfile *f);
/* Update the size to that of the store's file. file->range is held. */
int passthrough_size(struct cfile *f);
/* The same, with file->range not held: what follows goes by the size. */
int passthrough_learn_size(struct cfile *f);
/* In pages [a, b), locked exclusively: what was released, and what CPU programs have changed, becomes home's. */
int passthrough_catch_up(struct chunk *ch, unsigned a, unsigned b);
/* Whether it has nothing to do in the chunk: nobody can write the file beside us, and nothing that was released is not home's. */
bool passthrough_has_caught_up(struct chunk *ch);
/*
 * Called before pages are acquired for writing: home's bytes are the only base of what is written then, and stay until the
 * release. -ENOMEM: there is no room for @n more pages, except for the owners of the mount.
 */
int passthrough_room(const struct mapping *m, unsigned n);
/*
 * The steps of a release. Before pages are locked, with file->range held: check that there is room for what may not be stored, and
 * update the size. Then merge what earlier releases left unmerged of pages [a, b). Then, when the pages are released: show them
 * to CPU programs, or report an error. At last, with nothing held: try again what earlier releases could not store of these pages.
 */
int passthrough_before_release(struct cfile *f);
int passthrough_left_over(struct chunk *ch, unsigned a, unsigned b);
int passthrough_released(struct chunk *ch, unsigned a, unsigned b);
bool passthrough_has_left_over(struct cfile *f);
int passthrough_release_again(struct chunk *ch, const uint64_t *pages);
/* cache_read() and cache_write() for such a file. */
ssize_t passthrough_read(struct cfile *f, void *buf, size_t len, off_t off);
int passthrough_write(struct cfile *f, const void *buf, size_t len, off_t off);
/* chunk_store() for such a file. */
int passthrough_store(struct chunk *ch, unsigned a, unsigned b, bool wait);

#endif
