/* page_waiters.h - who waits for a page of the scene's file (cache_scene.h). */
#ifndef GAIA_TESTS_PAGE_WAITERS_H
#define GAIA_TESTS_PAGE_WAITERS_H

#include "cache_scene.h"
#include "pagecache/chunk.h"

#define PATIENCE 60000 /* ms: a call that takes longer hangs */

/* How many threads wait for page @page, to have it exclusively or to share it. */
static inline unsigned page_waiters(uint64_t page, bool exclusively)
{
	struct chunk *ch = chunk_get(kf->cfile, page / GAIA_CHUNK_PAGES, false);
	const struct page *p;
	unsigned n;

	pthread_mutex_lock(&ch->lock);
	p = page_at(ch, (unsigned)(page % GAIA_CHUNK_PAGES));
	n = !p ? 0 : exclusively ? p->lockers : p->sharers;
	pthread_mutex_unlock(&ch->lock);
	chunk_put(ch);
	return n;
}

#endif
