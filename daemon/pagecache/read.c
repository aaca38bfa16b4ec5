/*
 * read.c - reading files' contents from home.
 *
 * A read shares its pages one after the other; those that are absent, or behind a device, are locked, brought home in one go, and
 * then shared.
 */
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/trace.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/fill.h"
#include "pagecache/home.h"
#include "pagecache/passthrough.h"
#include "pagecache/range.h"
#include "pagecache/readcost.h"
#include "pagecache/state.h"

#define READAHEAD_PAGES 128u /* beyond what a sequential reader asked for */
#define FILL_PAGES READ_BATCH /* at a time */

static bool page_ready(struct chunk *ch, unsigned i)
{
	return page_present(ch, i) &&
	       (!(ch->track && page_ahead(ch, i)) || fault_point("break.stale_read"));
}

static void page_given(struct chunk *ch, unsigned i, bool kernel)
{
	if (kernel)
		page_at(ch, i)->flags |= PAGE_GIVEN;
	if (!ch->track || !kernel)
		return;
	kernel_given(ch, i);
}

/*
 * Whether page i, which nobody asked for, should be brought home with those before it: up to @end if it may be absent. What devices
 * released has to come sooner or later, and asking a device costs more than copying: so for sequential readers all of it.
 */
static bool bring_too(struct chunk *ch, unsigned i, unsigned end, bool in_order)
{
	if (i >= GAIA_CHUNK_PAGES || page_limit(ch, i) == 0 || page_ready(ch, i))
		return false;
	return i < end || (in_order && ch->track && page_ahead(ch, i));
}

/* Wait for page i, which is ready or locked by somebody, and share it. False: it was not ready in the end. chunk->lock is held. */
static bool share_ready(struct chunk *ch, unsigned i, bool kernel)
{
	page_share(ch, i);
	if (!page_ready(ch, i)) { /* after waiting */
		page_unshare(ch, i);
		return false;
	}
	page_given(ch, i, kernel);
	return true;
}

/*
 * Lock page i and those after it that are to be brought with it: of the read, up to @b, and beyond. Returns the end. chunk->lock is
 * held.
 */
static unsigned lock_missing(struct chunk *ch, unsigned i, unsigned b, unsigned ahead)
{
	unsigned j = i + 1, end;

	pages_lock(ch, i, i + 1);
	while (j < b && !page_ready(ch, j) && page_trylock(ch, j))
		j++;
	if (j < b)
		return j;
	end = b + source_ahead(ch, i, b, ahead);
	while (bring_too(ch, j, end, ahead > 0) && page_trylock(ch, j))
		j++;
	return j;
}

/* Bring pages [i, j), which are locked, home, and share those before @b. On error none. chunk->lock is held, and dropped meanwhile. */
static int share_missing(struct fills *fills, struct chunk *ch, unsigned i, unsigned j, unsigned b, bool kernel)
{
	int err;

	pthread_mutex_unlock(&ch->lock);
	err = fill_bring(fills, ch, i, j);
	if (err && j > b) /* what nobody asked for cannot fail */
		err = fill_bring(fills, ch, i, b);
	pthread_mutex_lock(&ch->lock);
	if (err) {
		pages_unlock(ch, i, j);
		return err;
	}
	if (j > b)
		pages_unlock(ch, b, j);
	for (; i < MIN(j, b); i++) {
		page_downgrade(ch, i);
		page_given(ch, i, kernel);
	}
	return 0;
}

/* Share pages [a, b), present and current. On error none of them. */
static int share_pages(struct chunk *ch, unsigned a, unsigned b, unsigned ahead, bool kernel)
{
	struct fills fills = FILLS(fills, false);
	unsigned i = a, j, hits = 0, misses = 0;
	bool brought = false;
	int err = 0;

	fills.in_order = ahead > 0;
	fills.may_probe = ahead == 0;
	fills.devices_only = b + ahead;
	pthread_mutex_lock(&ch->lock);
	while (i < b && !err) {
		if ((page_make(ch, i)->flags & PAGE_LOCKED) || page_ready(ch, i)) {
			if (share_ready(ch, i, kernel)) {
				hits++;
				i++;
			}
			continue;
		}
		j = lock_missing(ch, i, b, ahead);
		err = share_missing(&fills, ch, i, j, b, kernel);
		brought = true;
		if (!err) {
			misses += MIN(j, b) - i;
			i = MIN(j, b);
		}
	}
	if (err)
		while (i-- > a)
			page_unshare(ch, i);
	pthread_mutex_unlock(&ch->lock);
	if (brought)
		chunk_account(ch);
	count(CTR_home_misses, misses);
	count(CTR_home_hits, hits);
	trace_access(TRACE_READ, ch->file->key, ch->index * GAIA_CHUNK_PAGES + a, b - a, hits);
	atomic_store_explicit(&ch->referenced, true, memory_order_relaxed);
	return err;
}

static void unshare_parts(struct cache_read *rd, bool given)
{
	uint64_t off = (uint64_t)rd->off;
	size_t left = rd->bytes, n;
	unsigned a, b;

	for (unsigned k = 0; left > 0; k++, off += n, left -= n) {
		n = range_first(off, left, &a, &b);
		pages_unshare(rd->chunk[k], a, b, given);
		chunk_put(rd->chunk[k]);
	}
}

/*
 * How many pages to bring home beyond a read [at, end): some, if it continues where one of the last few reads ended.
 * Several programs may read in several places; the streams are hints, so nobody locks anything.
 */
static unsigned read_beyond(struct cfile *f, uint64_t at, uint64_t end)
{
	unsigned k;

	for (k = 0; k < READ_STREAMS; k++)
		if (atomic_load_explicit(&f->stream[k], memory_order_relaxed) == at)
			break;
	if (k < READ_STREAMS) {
		atomic_store_explicit(&f->stream[k], end, memory_order_relaxed);
		return READAHEAD_PAGES;
	}
	k = atomic_load_explicit(&f->oldest_stream, memory_order_relaxed);
	atomic_store_explicit(&f->stream[k], end, memory_order_relaxed);
	atomic_store_explicit(&f->oldest_stream, (k + 1) % READ_STREAMS, memory_order_relaxed);
	return 0;
}

static void add_iov(struct cache_read *rd, char *p, size_t len)
{
	struct iovec *last = rd->n_iov > 0 ? &rd->iov[rd->n_iov - 1] : NULL;

	if (last && (char *)last->iov_base + last->iov_len == p)
		last->iov_len += len;
	else
		rd->iov[rd->n_iov++] = (struct iovec){ p, len };
}

int cache_read_begin(struct cfile *f, off_t off, size_t len, bool kernel, struct cache_read *rd)
{
	uint64_t size, at = (uint64_t)off;
	unsigned a, b, ahead, k = 0;
	size_t left, n;
	int err;

	rd->n_iov = 0;
	rd->bytes = 0;
	rd->file = f;
	rd->off = off;
	rd->kernel = kernel;
	/* The caller's hold may end before the read: a program that has its bytes may close the file at once. */
	cfile_use(f);
	pthread_rwlock_rdlock(&f->range);
	size = cfile_size(f);
	if (at >= size || len == 0)
		return 0;
	len = MIN(len, (size_t)CACHE_READ_MAX);
	left = (size_t)MIN((uint64_t)len, size - at);
	ahead = read_beyond(f, at, at + left);
	for (; left > 0; at += n, left -= n) {
		struct chunk *ch = chunk_get(f, at / GAIA_CHUNK, true);

		n = range_first(at, left, &a, &b);
		err = share_pages(ch, a, b, ahead, kernel);
		if (err) {
			chunk_put(ch);
			goto unshare;
		}
		for (unsigned i = a; i < b; i++) {
			size_t from = i == a ? at % GAIA_PAGE : 0;
			size_t to = i == b - 1 ? (at + n - 1) % GAIA_PAGE + 1 : GAIA_PAGE;

			add_iov(rd, (char *)page_ptr(ch, i) + from, to - from);
		}
		rd->bytes += n;
		rd->chunk[k++] = ch;
	}
	return 0;

unshare:
	unshare_parts(rd, false);
	pthread_rwlock_unlock(&f->range);
	cfile_unuse(f);
	return err;
}

static enum cache_has has_pages(struct chunk *ch, unsigned a, unsigned b)
{
	enum cache_has has = CACHE_HAS_ALL;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b && has != CACHE_HAS_NOT; i++)
		if (!page_ready(ch, i))
			has = CACHE_HAS_NOT;
		else if (page_at(ch, i)->flags & PAGE_LOCKED)
			has = CACHE_HAS_LOCKED;
	pthread_mutex_unlock(&ch->lock);
	return has;
}

enum cache_has cache_has(struct cfile *f, off_t off, size_t len)
{
	enum cache_has all = CACHE_HAS_ALL;
	uint64_t at = (uint64_t)off, size;
	unsigned a, b;
	size_t n;

	if (pthread_rwlock_tryrdlock(&f->range))
		return CACHE_HAS_LOCKED;
	size = cfile_size(f);
	for (len = at < size ? MIN(len, size - at) : 0; len > 0 && all != CACHE_HAS_NOT; at += n, len -= n) {
		struct chunk *ch = chunk_get(f, at / GAIA_CHUNK, false);
		enum cache_has has = CACHE_HAS_NOT;

		n = range_first(at, len, &a, &b);
		if (ch) {
			has = has_pages(ch, a, b);
			chunk_put(ch);
		}
		all = MIN(all, has);
	}
	pthread_rwlock_unlock(&f->range);
	return all;
}

void cache_read_end(struct cache_read *rd)
{
	unshare_parts(rd, rd->kernel);
	pthread_rwlock_unlock(&rd->file->range);
	cfile_unuse(rd->file);
}

ssize_t cache_read(struct cfile *f, void *buf, size_t len, off_t off)
{
	struct cache_read rd;
	size_t done = 0;
	int err;

	if (cfile_is_passthrough(f))
		return passthrough_read(f, buf, len, off);

	while (done < len) {
		err = cache_read_begin(f, off + (off_t)done, len - done, false, &rd);
		if (err)
			return done ? (ssize_t)done : err;
		for (int i = 0; i < rd.n_iov; i++) {
			memcpy((char *)buf + done, rd.iov[i].iov_base, rd.iov[i].iov_len);
			done += rd.iov[i].iov_len;
		}
		cache_read_end(&rd);
		if (rd.bytes == 0)
			break;
	}
	return (ssize_t)done;
}
