/*
 * write.c - writing files' contents into home.
 *
 * A write locks its pages, makes them current where the contract asks for it, changes them, and marks them dirty.
 */
#include <errno.h>
#include <string.h>

#include "base/bits.h"
#include "base/counters.h"
#include "base/trace.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/coherence.h"
#include "pagecache/dedup.h"
#include "pagecache/fetch.h"
#include "pagecache/file.h"
#include "pagecache/fill.h"
#include "pagecache/frames.h"
#include "pagecache/home.h"
#include "pagecache/passthrough.h"
#include "pagecache/range.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/writeback.h"

struct span {
	struct chunk *ch;
	uint64_t off;	 /* of the file */
	const char *src; /* NULL: zeros */
	size_t len;
	unsigned a, b;
	enum cache_write_kind kind;
	uint64_t fresh[GAIA_CHUNK_PAGES / 64]; /* pages whose frame held nothing before */
};

/* Where in page i the span lies. */
static void span_of_page(const struct span *s, unsigned i, unsigned *from, unsigned *to)
{
	*from = i == s->a ? (unsigned)(s->off % GAIA_PAGE) : 0;
	*to = i == s->b - 1 ? (unsigned)((s->off + s->len - 1) % GAIA_PAGE) + 1 : GAIA_PAGE;
}

/* Whether the write leaves something of what page i holds now. */
static bool span_keeps(const struct span *s, unsigned i)
{
	unsigned from, to, limit = page_limit(s->ch, i);

	span_of_page(s, i, &from, &to);
	return limit > 0 && (from > 0 || to < limit);
}

/* Merge what devices released of the pages; but not what is lost and written over. */
static int span_fetch(const struct span *s)
{
	struct chunk *ch = s->ch;
	bool ahead = false;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = s->a; i < s->b && ch->track; i++) {
		if (page_ahead(ch, i) && !span_keeps(s, i))
			page_drop_lost(ch, i);
		ahead |= page_ahead(ch, i);
	}
	pthread_mutex_unlock(&ch->lock);
	return ahead ? fetch_pages(ch, s->a, s->b) : 0;
}

/* Bring home what the write needs of the old contents. Pages are locked. */
static int span_prepare(const struct span *s)
{
	uint64_t needed[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct chunk *ch = s->ch;
	bool any = false;
	int err;

	err = span_fetch(s);
	if (err == -EIO) /* once more: a device may just have proved to be gone */
		err = span_fetch(s);
	if (err)
		return err;
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = s->a; i < s->b; i++) {
		if (page_present(ch, i) ||
		    !(span_keeps(s, i) || (ch->track && home_base_needed(ch, i))))
			continue;
		bit_set(needed, i);
		any = true;
	}
	pthread_mutex_unlock(&ch->lock);
	return any ? home_fill_some(ch, s->a, s->b, needed) : 0;
}

/* Frames for the pages that have none, zeroed where the write does not reach. */
static int span_frames(struct span *s)
{
	struct chunk *ch = s->ch;
	struct cache *c = ch->file->cache;
	frame_t frame[FILL_PAGES];
	unsigned n, from, to;
	int err;

	for (unsigned i = s->a; i < s->b; i += n) {
		pthread_mutex_lock(&ch->lock);
		for (; i < s->b && page_present(ch, i); i++)
			;
		for (n = 0; i + n < s->b && n < FILL_PAGES && !page_present(ch, i + n); n++)
			;
		pthread_mutex_unlock(&ch->lock);
		if (n == 0)
			break;
		err = frame_alloc(c, n, frame);
		if (err)
			return err;
		for (unsigned k = 0; k < n; k++) {
			span_of_page(s, i + k, &from, &to);
			if (from > 0 || to < GAIA_PAGE)
				memset(frame_ptr(&c->frames, frame[k]), 0, GAIA_PAGE);
		}
		pthread_mutex_lock(&ch->lock);
		for (unsigned k = 0; k < n; k++) {
			page_set_frame(ch, i + k, frame[k]);
			bit_set(s->fresh, i + k);
		}
		pthread_mutex_unlock(&ch->lock);
	}
	return 0;
}

const char frame_zeros[GAIA_PAGE];

/* chunk->lock held. */
static void pages_written(struct chunk *ch, unsigned a, unsigned b, enum cache_write_kind kind)
{
	/* The kernel's cache does not keep what goes past it. */
	uint8_t given = kind == CACHE_WRITE_EXACT ? 0 : PAGE_GIVEN;

	pages_set_dirty(ch, a, b);
	for (unsigned i = a; i < b; i++)
		page_at(ch, i)->flags = (uint8_t)((page_at(ch, i)->flags & ~PAGE_GIVEN) | given);
}

/*
 * For pages of a chunk that no device had touched a moment ago. A track that is made in the meantime says
 * of them what is true afterwards, too: only home and the kernel have them, and the same bytes.
 */
static void span_copy(const struct span *s)
{
	struct chunk *ch = s->ch;
	const char *src = s->src;
	unsigned from, to;

	for (unsigned i = s->a; i < s->b; i++) {
		span_of_page(s, i, &from, &to);
		memcpy((char *)page_ptr(ch, i) + from, src ? src : frame_zeros, to - from);
		if (src)
			src += to - from;
	}
	pthread_mutex_lock(&ch->lock);
	pages_written(ch, s->a, s->b, s->kind);
	pthread_mutex_unlock(&ch->lock);
}

/* Change the pages: locked, prepared, with frames. */
static int span_apply(const struct span *s)
{
	struct chunk *ch = s->ch;
	struct cache *c = ch->file->cache;
	const char *src = s->src;
	frame_t spare[2] = { 0, 0 };
	unsigned from, to;
	bool tracked;
	int err = 0;

	pthread_mutex_lock(&ch->lock);
	tracked = ch->track != NULL;
	pthread_mutex_unlock(&ch->lock);
	if (!tracked) {
		span_copy(s);
		return 0;
	}
	for (unsigned i = s->a; i < s->b; i++) {
		const char *bytes = src ? src : frame_zeros;

		span_of_page(s, i, &from, &to);
		/* One for a twin, one for a copy of what the kernel sent. */
		err = spares_take(c, spare);
		if (err)
			break;
		pthread_mutex_lock(&ch->lock);
		if (!ch->track)
			memcpy((char *)page_ptr(ch, i) + from, bytes, to - from);
		else if (s->kind == CACHE_WRITE_PAGES)
			kernel_page_write(ch, i, !bit_test(s->fresh, i), bytes, to, spare);
		else
			exact_write(ch, i, !bit_test(s->fresh, i), from, bytes, to - from,
				    s->kind == CACHE_WRITE_THROUGH, spare);
		pages_written(ch, i, i + 1, s->kind);
		pthread_mutex_unlock(&ch->lock);
		if (src)
			src += to - from;
	}
	spares_give(c, spare);
	return err;
}

/* Pages that got frames but were not reached by the write become absent again. */
static void span_undo(const struct span *s)
{
	struct chunk *ch = s->ch;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = s->a; i < s->b; i++)
		if (bit_test(s->fresh, i) && !page_dirty(ch, i))
			page_drop(ch, i);
	pthread_mutex_unlock(&ch->lock);
}

static int write_span(struct span *s)
{
	struct chunk *ch = s->ch;
	struct cfile *f = ch->file;
	unsigned n_storing;
	int err;

	pthread_mutex_lock(&ch->lock);
	n_storing = pages_lock_to_write(ch, s->a, s->b);
	pthread_mutex_unlock(&ch->lock);

	err = pages_renew(ch, s->a, s->b, n_storing);
	if (!err)
		err = span_prepare(s);
	if (!err)
		err = span_frames(s);
	if (!err)
		err = pages_own(ch, s->a, s->b, NULL);
	if (!err)
		err = span_apply(s);
	if (!err) {
		pthread_mutex_lock(&f->lock);
		if (s->off + s->len > atomic_load(&f->size))
			atomic_store(&f->size, s->off + s->len);
		pthread_mutex_unlock(&f->lock);
	} else {
		span_undo(s);
	}
	kept_trim(ch, s->a, s->b);

	pthread_mutex_lock(&ch->lock);
	pages_unlock(ch, s->a, s->b);
	pthread_mutex_unlock(&ch->lock);
	atomic_store_explicit(&ch->referenced, true, memory_order_relaxed);
	chunk_account(ch);
	return err;
}

int home_write(struct cfile *f, const void *buf, size_t len, uint64_t off,
	       enum cache_write_kind kind)
{
	int err = 0;
	size_t n;

	if (len > 0) {
		cfile_wrote(f); /* before it can be stored */
		trace_access(TRACE_WRITE, f->key, off / GAIA_PAGE, (off + len - 1) / GAIA_PAGE - off / GAIA_PAGE + 1, 0);
	}
	for (; len > 0 && !err; off += n, len -= n) {
		struct span s = { .off = off, .src = buf, .kind = kind };

		n = range_first(off, len, &s.a, &s.b);
		s.len = n;
		s.ch = chunk_get(f, off / GAIA_CHUNK, true);
		err = write_span(&s);
		chunk_put(s.ch);
		if (buf)
			buf = (const char *)buf + n;
	}
	return err;
}

/* What the kernel wrote back was not taken; it still has the pages, and a release must know that. */
static void kernel_keeps(struct cfile *f, size_t len, uint64_t off)
{
	unsigned a, b;
	size_t n;

	for (; len > 0; off += n, len -= n) {
		struct chunk *ch = chunk_get(f, off / GAIA_CHUNK, false);

		n = range_first(off, len, &a, &b);
		if (!ch)
			continue;
		pthread_mutex_lock(&ch->lock);
		/* Home's bytes stay as they are. */
		(void)pages_lock_to_write(ch, a, b);
		for (unsigned i = a; i < b && ch->track; i++)
			kernel_kept(ch, i);
		pages_unlock(ch, a, b);
		pthread_mutex_unlock(&ch->lock);
		chunk_put(ch);
	}
}

int cache_write(struct cfile *f, const void *buf, size_t len, off_t off, enum cache_write_kind kind)
{
	int err;

	if (off < 0 || (uint64_t)off + len > INT64_MAX)
		return -EFBIG;
	if (kind == CACHE_WRITE_PAGES && off % GAIA_PAGE != 0)
		return -EINVAL;
	pthread_rwlock_rdlock(&f->range);
	if (cfile_is_passthrough(f)) {
		err = passthrough_write(f, buf, len, off);
		pthread_rwlock_unlock(&f->range);
		return err;
	}
	err = cfile_make_room(f);
	if (!err)
		err = home_write(f, buf, len, (uint64_t)off, kind);
	if (err && kind == CACHE_WRITE_PAGES)
		kernel_keeps(f, len, (uint64_t)off);
	pthread_rwlock_unlock(&f->range);
	if (!err && len > 0 && kind != CACHE_WRITE_EXACT)
		count(CTR_cpu_written_back,
		      ((uint64_t)off + len - 1) / GAIA_PAGE - (uint64_t)off / GAIA_PAGE + 1);
	return err;
}
