/* advise.c - eviction on request, and advice. */
#include <errno.h>
#include <stdlib.h>

#include "base/counters.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/evict.h"
#include "pagecache/file.h"
#include "pagecache/passthrough.h"
#include "pagecache/range.h"
#include "pagecache/readahead.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/victim.h"
#include "pagecache/view.h"
#include "pagecache/writeback.h"

/* ---- eviction on request, and advice ---- */

static int evict_home(struct chunk *ch, unsigned a, unsigned b)
{
	int busy = view_drop(ch), err;
	unsigned n = 0;

	pthread_rwlock_rdlock(&ch->file->range);
	err = chunk_store(ch, a, b, true);
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b; i++) {
		if (!page_present(ch, i))
			continue;
		pages_lock(ch, i, i + 1);
		if (page_present(ch, i) && !page_dirty(ch, i) && !page_in_view(ch, i) && home_may_leave(ch, i)) {
			victim_offer(ch, i);
			page_drop(ch, i);
			n++;
		}
		pages_unlock(ch, i, i + 1);
	}
	pthread_mutex_unlock(&ch->lock);
	pthread_rwlock_unlock(&ch->file->range);
	home_evicted(ch, n);
	victims_send(ch->file->cache, true);
	chunk_unlist(ch);
	return err ? err : busy;
}

static void evict_parked(struct chunk *ch, unsigned a, unsigned b)
{
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b; i++)
		victim_drop_slot(ch, i);
	pthread_mutex_unlock(&ch->lock);
}

/* @m: see replicas_drop(). */
static int evict(struct cfile *f, unsigned from, uint64_t off, uint64_t len, const struct mapping *m)
{
	uint64_t end = len == 0 || off + len < off ? UINT64_MAX : off + len;
	struct cache_device *dev = from == GAIA_FROM_HOME ? NULL : cache_device_find(f->cache, from);
	struct chunk **list;
	unsigned n, took;
	int err, result = 0;
	bool device = from != GAIA_FROM_HOME && from != GAIA_FROM_DEVICE_CACHE;

	if (device && !dev)
		return -ENODEV;
	n = chunk_list_get(f, off / GAIA_CHUNK, (end - 1) / GAIA_CHUNK, &list);
	for (unsigned k = 0; k < n; k += took) {
		uint64_t index = list[k]->index;
		unsigned a = page_in_chunk(off / GAIA_PAGE, index, 0, 0);
		unsigned b = page_in_chunk((end - 1) / GAIA_PAGE, index, 0, GAIA_CHUNK_PAGES - 1) + 1;

		took = device ? MIN(n - k, EVICT_AT_ONCE) : 1;
		/* An extent goes as a whole. */
		while (took > GAIA_EXTENT_CHUNKS && k + took < n && list[k + took]->index % GAIA_EXTENT_CHUNKS > 0)
			took--;
		err = 0;
		if (from == GAIA_FROM_HOME)
			err = evict_home(list[k], a, b);
		else if (from == GAIA_FROM_DEVICE_CACHE)
			evict_parked(list[k], a, b);
		else
			err = replicas_drop(list + k, took, dev, m, false);
		result = result ? result : err;
		for (unsigned i = k; i < k + took; i++)
			chunk_put(list[i]);
	}
	free(list);
	return result;
}

int cache_evict(struct cfile *f, unsigned from, uint64_t off, uint64_t len)
{
	return evict(f, from, off, len, NULL);
}

/* The pages that the range has in the file, [*first, *last]: false if there are none. */
static bool clip(struct mapping *m, uint64_t off, uint64_t len, uint64_t *first, uint64_t *last)
{
	uint64_t end = MIN(off + len, cfile_size(m->file));

	if (len == 0 || off >= end)
		return false;
	*first = off / GAIA_PAGE;
	*last = (end - 1) / GAIA_PAGE;
	return true;
}

int cache_advise(struct mapping *m, uint64_t off, uint64_t len, unsigned advice)
{
	uint64_t first, last, c0, c1;
	int err;

	if (!mapping_has(m, off, len))
		return -EINVAL;
	if (len == 0)
		return 0;
	switch (advice) {
	case GAIA_ADVISE_NORMAL:
	case GAIA_ADVISE_RANDOM:
	case GAIA_ADVISE_SEQUENTIAL:
		return readahead_advise(m, range_span(off, len), advice);
	case GAIA_ADVISE_WILLNEED:
		readahead_will_need(m, range_span(off, len));
		return 0;
	case GAIA_ADVISE_DONTNEED:
		readahead_cancel(m, range_span(off, len));
		err = passthrough_learn_size(m->file);
		if (err || !clip(m, off, len, &first, &last))
			return err;
		/* Whole chunks only: a part's neighbours may be needed. */
		c0 = (first + GAIA_CHUNK_PAGES - 1) / GAIA_CHUNK_PAGES;
		c1 = (last + 1) / GAIA_CHUNK_PAGES;
		if (c0 >= c1)
			return 0;
		/* Evicting what others use needs the right to write the file; a caller who advises may only read it. */
		err = evict(m->file, m->dev->number, c0 * GAIA_CHUNK, (c1 - c0) * GAIA_CHUNK, m);
		return err == -EBUSY ? 0 : err;
	default:
		return -EINVAL;
	}
}
