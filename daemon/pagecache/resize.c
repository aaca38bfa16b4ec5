/* resize.c - truncate, fallocate, holes, copies between files. */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/dedup.h"
#include "pagecache/coherence.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/home.h"
#include "pagecache/passthrough.h"
#include "pagecache/range.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/scrub.h"
#include "pagecache/state.h"
#include "pagecache/victim.h"
#include "pagecache/writeback.h"

/* ---- truncate ---- */

static void unprepare_cut(struct chunk *ch, uint64_t size)
{
	unsigned i = (unsigned)(size % GAIA_CHUNK / GAIA_PAGE);

	pthread_mutex_lock(&ch->lock);
	pages_unlock(ch, i, i + 1);
	pthread_mutex_unlock(&ch->lock);
	chunk_account(ch);
	chunk_put(ch);
}

/*
 * If anybody tracks the page in which the new end lies, bring it home, for its bytes before the end. Then the page is
 * left locked, so that it stays: *@out is its chunk (else NULL).
 */
static int prepare_cut(struct cfile *f, uint64_t size, struct chunk **out)
{
	unsigned i = (unsigned)(size % GAIA_CHUNK / GAIA_PAGE);
	struct chunk *ch;
	bool tracked;
	int err = 0;

	*out = NULL;
	if (size % GAIA_PAGE == 0)
		return 0;
	ch = chunk_get(f, size / GAIA_CHUNK, false);
	if (!ch)
		return 0;
	pthread_mutex_lock(&ch->lock);
	pages_lock(ch, i, i + 1);
	tracked = ch->track != NULL;
	pthread_mutex_unlock(&ch->lock);
	if (tracked)
		err = home_bring(ch, i, i + 1);
	if (tracked && !err) {
		*out = ch;
		return 0;
	}
	unprepare_cut(ch, size);
	return err;
}

/* Drop what the chunk's page has from @cut on (0: all). chunk->lock is held, the page is locked. @spare: the third is for page_own(). */
static void cut_page(struct chunk *ch, unsigned i, unsigned cut, frame_t spare[3])
{
	if (cut > 0)
		page_own(ch, i, &spare[2]);
	/* If it is tracked but not home: tracking began after prepare_cut(), by an acquire that waits for us. */
	victim_drop_slot(ch, i);
	if (ch->track && (cut == 0 || page_present(ch, i)))
		truncate_page(ch, i, cut, spare);
	if (cut == 0) {
		page_drop(ch, i);
	} else if (page_present(ch, i)) {
		memset((char *)page_ptr(ch, i) + cut, 0, GAIA_PAGE - cut);
		if (under_bytes(ch, i))
			memset(under_bytes(ch, i) + cut, 0, GAIA_PAGE - cut);
		/* The store has cut it, too, so there is nothing new to store. */
	}
}

/* @prepared: the page with the new end is locked already. */
static int cut_chunk(struct chunk *ch, uint64_t size, bool prepared)
{
	struct cache *c = ch->file->cache;
	uint64_t start = ch->index * GAIA_CHUNK;
	unsigned first = size > start ? (unsigned)((size - start) / GAIA_PAGE) : 0;
	unsigned cut = size > start ? (unsigned)((size - start) % GAIA_PAGE) : 0;
	frame_t spare[3] = { 0 };
	int err = frame_alloc(c, 2 + (cut > 0 && c->dedup), spare);

	if (err)
		return err;
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = first; i < GAIA_CHUNK_PAGES; i++, cut = 0) {
		if (!page_at(ch, i) && !ch->track) {
			/* Nobody has range: so nobody brings it meanwhile. */
			victim_drop_slot(ch, i);
			if (!ch->parked)
				i |= LEAF_PAGES - 1;
			continue;
		}
		if (cut > 0 && prepared) {
			cut_page(ch, i, cut, spare);
			continue;
		}
		pages_lock(ch, i, i + 1);
		cut_page(ch, i, cut, spare);
		pages_unlock(ch, i, i + 1);
	}
	for (unsigned k = 0; k < ch->n_replicas; k++)
		replica_shadow_trim(ch->replica[k]);
	if (chunk_is_mapped(ch)) {
		unsigned from = first + prepared;

		pages_lock(ch, from, GAIA_CHUNK_PAGES);
		chunk_scrub(ch, first, GAIA_CHUNK_PAGES);
		pages_unlock(ch, from, GAIA_CHUNK_PAGES);
	}
	track_maybe_free(ch);
	pthread_mutex_unlock(&ch->lock);
	spares_give(c, spare);
	if (spare[2])
		frames_give(&c->frames, &spare[2], 1);
	chunk_unlist(ch);
	return 0;
}

/*
 * The new size is not smaller than the one we knew. But a kernel that gathers writes may have had the file longer, and cut it:
 * what clients have stored beyond until now is void. What they store there from now on is not.
 */
static void void_beyond(struct cfile *f, uint64_t size)
{
	unsigned i = (unsigned)(size % GAIA_CHUNK / GAIA_PAGE);
	struct chunk *ch = size % GAIA_PAGE ? chunk_get(f, size / GAIA_CHUNK, false) : NULL;

	if (!ch)
		return;
	pthread_mutex_lock(&ch->lock);
	pages_lock(ch, i, i + 1);
	for (unsigned k = 0; k < ch->n_replicas; k++) {
		struct replica *rep = ch->replica[k];
		struct dev_run tail = { .mem = rep->mem, .page = i, .npages = 1,
					.limit = size % GAIA_PAGE };
		struct dev_op zero = { .kind = DEV_ZERO, .runs = &tail, .n = 1 };
		int err;

		if (!rep->page[i].written)
			continue;
		/* The page's lock keeps the replica. */
		pthread_mutex_unlock(&ch->lock);
		err = cache_device_run(rep->dev, &zero);
		pthread_mutex_lock(&ch->lock);
		if (err)
			replica_cut(rep, i, size % GAIA_PAGE);
	}
	pages_unlock(ch, i, i + 1);
	pthread_mutex_unlock(&ch->lock);
	chunk_put(ch);
}

/* The file has ended at @size since just now. @cut: of prepare_cut(). The range is locked exclusively. */
static void cut_all(struct cfile *f, uint64_t size, const struct chunk *cut)
{
	struct chunk **list;
	unsigned n = chunk_list_get(f, size / GAIA_CHUNK, UINT64_MAX, &list);

	for (unsigned k = 0; k < n; k++) {
		/* Nothing may be left behind, even without memory: try again. */
		while (cut_chunk(list[k], size, list[k] == cut) == -ENOMEM)
			usleep(1000);
		chunk_put(list[k]);
	}
	free(list);
}

int cache_truncate(struct cfile *f, uint64_t size)
{
	struct store_file *sf;
	struct chunk *cut = NULL;
	uint64_t old;
	int err;

	if (size > INT64_MAX)
		return -EFBIG;
	/* That may wait for a program's lease: not while others wait for the range. If it fails it does so again below. */
	cfile_will_be_written(f);
	range_lock_exclusively(f);
	err = passthrough_size(f);
	old = cfile_size(f);
	if (!err && size < old)
		err = prepare_cut(f, size, &cut);
	if (err)
		goto unlock;
	err = cfile_store(f, true, &sf);
	if (!err)
		err = sf->ops->truncate(sf, (off_t)size);
	if (err)
		goto unlock;
	pthread_mutex_lock(&f->lock);
	atomic_store(&f->size, size);
	f->mtime_set = false; /* the store has just set a newer one */
	pthread_mutex_unlock(&f->lock);
	(void)fault_point("truncate.before_cut");
	if (size < old)
		cut_all(f, size, cut);
	else
		void_beyond(f, size);
unlock:
	if (cut)
		unprepare_cut(cut, size);
	range_unlock_exclusively(f);
	return err;
}

static int size_below(struct cfile *f, uint64_t *size)
{
	struct store_file *sf;
	struct stat st;
	int err = cfile_store(f, false, &sf);

	if (!err)
		err = sf->ops->stat(sf, &st);
	if (!err)
		*size = (uint64_t)st.st_size;
	return err;
}

int cache_look_for_end(struct cfile *f)
{
	struct chunk *cut = NULL;
	uint64_t size;
	int err;

	bug_on(!cfile_is_passthrough(f));
	range_lock_exclusively(f);
	err = size_below(f, &size);
	if (!err && size < cfile_size(f))
		err = prepare_cut(f, size, &cut);
	if (!err && size < cfile_size(f)) {
		atomic_store(&f->size, size);
		cut_all(f, size, cut);
	}
	if (cut)
		unprepare_cut(cut, size);
	range_unlock_exclusively(f);
	return err;
}

/* ---- fallocate ---- */

/* Whether the page's old bytes are needed. It is locked; chunk->lock is held. */
static bool to_keep(struct chunk *ch, unsigned i, uint64_t off, uint64_t end)
{
	uint64_t start = ch->index * GAIA_CHUNK + (uint64_t)i * GAIA_PAGE;

	return start < off || start + GAIA_PAGE > end || page_ahead(ch, i) || home_base_needed(ch, i);
}

/* keep_tracked() of the chunk's pages [a, b), which are locked. chunk->lock is held, but not meanwhile. */
static int keep_pages(struct chunk *ch, unsigned a, unsigned b, uint64_t off, uint64_t end)
{
	int err = 0;

	for (unsigned i = a, j; i < b && ch->track && !err; i = j) {
		for (j = i; j < b && to_keep(ch, j, off, end); j++)
			;
		if (i == j) {
			page_disarm(ch, j++);
			continue;
		}
		pthread_mutex_unlock(&ch->lock);
		err = home_bring(ch, i, j);
		if (!err)
			err = pages_own(ch, i, j, NULL);
		pthread_mutex_lock(&ch->lock);
		if (!err)
			pages_set_dirty(ch, i, j);
	}
	return err;
}

/*
 * The store is about to forget the bytes of [off, end). Bring home what of them is released or somebody's base, and the pages
 * at both ends, of which a part remains: zeroing them at home is then a change that replicas see.
 * They stay home: file->range is held exclusively, so dirty pages cannot be stored, and so not dropped.
 *
 * Until the hole is there nobody may come to need the others' bytes as a base. The lock of range keeps acquires out that look at the
 * pages, but not those of what is ready. So pages that could be held for writing, and are not, are disarmed: only an acquire that looks at
 * them arms them again, and until then their chunk is not ready to be written.
 */
static int keep_tracked(struct cfile *f, uint64_t off, uint64_t end)
{
	struct chunk **list;
	unsigned n = chunk_list_get(f, off / GAIA_CHUNK, (end - 1) / GAIA_CHUNK, &list);
	int err = 0;

	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = list[k];
		unsigned a = page_in_chunk(off / GAIA_PAGE, ch->index, 0, 0);
		unsigned b = page_in_chunk((end - 1) / GAIA_PAGE, ch->index, 0, GAIA_CHUNK_PAGES - 1) + 1;

		pthread_mutex_lock(&ch->lock);
		if (ch->track && !err) {
			/* From here on it is known who holds what. */
			pages_lock(ch, a, b);
			err = keep_pages(ch, a, b, off, end);
			pages_unlock(ch, a, b);
		}
		pthread_mutex_unlock(&ch->lock);
		chunk_account(ch);
		chunk_put(ch);
	}
	free(list);
	return err;
}

/* Clean pages are read again when they are needed: if they were stored, they would fill a hole. chunk->lock is held. */
static bool forget_clean(struct chunk *ch, unsigned i)
{
	if (ch->track || !page_present(ch, i) || page_at(ch, i)->flags & PAGE_DIRTY)
		return false;
	pages_lock(ch, i, i + 1);
	page_drop(ch, i);
	pages_unlock(ch, i, i + 1);
	return true;
}

/* What is parked of [off, end) may be older than the store's, which may have changed in part. */
static void forget_parked(struct cfile *f, uint64_t off, uint64_t end)
{
	struct chunk **list;
	unsigned n = chunk_list_get(f, off / GAIA_CHUNK, (end - 1) / GAIA_CHUNK, &list);

	for (unsigned k = 0; k < n; k++) {
		uint64_t start = list[k]->index * GAIA_CHUNK;

		pthread_mutex_lock(&list[k]->lock);
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
			if (start + (uint64_t)(i + 1) * GAIA_PAGE > off && start + (uint64_t)i * GAIA_PAGE < end)
				victim_drop_slot(list[k], i);
		pthread_mutex_unlock(&list[k]->lock);
		chunk_put(list[k]);
	}
	free(list);
}

/* Home's copies of [off, end) become zeros, as the store's are. */
static int zero_cached(struct cfile *f, uint64_t off, uint64_t end)
{
	struct chunk **list;
	unsigned n = chunk_list_get(f, off / GAIA_CHUNK, (end - 1) / GAIA_CHUNK, &list);
	int err = 0;

	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = list[k];
		uint64_t start = ch->index * GAIA_CHUNK;

		for (unsigned i = 0; i < GAIA_CHUNK_PAGES && !err; i++) {
			uint64_t a = MAX(start + (uint64_t)i * GAIA_PAGE, off);
			uint64_t b = MIN(start + (uint64_t)(i + 1) * GAIA_PAGE, end);
			bool cached;

			if (a >= b)
				continue;
			pthread_mutex_lock(&ch->lock);
			cached = (page_present(ch, i) || ch->track) && !forget_clean(ch, i);
			/* What left home before now, with the bytes from before the hole. */
			if (!cached)
				victim_drop_slot(ch, i);
			pthread_mutex_unlock(&ch->lock);
			if (cached)
				err = home_write(f, NULL, (size_t)(b - a), a, CACHE_WRITE_THROUGH);
		}
		chunk_unlist(ch);
		chunk_put(ch);
	}
	free(list);
	return err;
}

/* What devices have of [off, end) is not part of the file any more. */
static void remove_from_devices(struct cfile *f, uint64_t off, uint64_t end)
{
	struct chunk **list;
	unsigned n = chunk_list_get(f, off / GAIA_CHUNK, (end - 1) / GAIA_CHUNK, &list);
	char name[CFILE_NAME_MAX];

	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = list[k];
		uint64_t start = ch->index * GAIA_CHUNK;
		unsigned a = (unsigned)((MAX(off, start) - start) / GAIA_PAGE);
		unsigned b = (unsigned)((MIN(end, start + GAIA_CHUNK) - start + GAIA_PAGE - 1) / GAIA_PAGE);

		pthread_mutex_lock(&ch->lock);
		if (ch->n_replicas > 0) {
			pages_lock(ch, a, b);
			pthread_mutex_unlock(&ch->lock);
			/* On error devices may show them as they are until they are acquired. */
			if (passthrough_catch_up(ch, a, b) && log_may(&f->cache->pace))
				log_error("%s: a part that was removed cannot be read: devices may still show it",
					  cfile_name(f, name));
			pthread_mutex_lock(&ch->lock);
			for (unsigned r = 0; r < ch->n_replicas; r++)
				for (unsigned i = a; i < b; i++)
					replica_removed(ch->replica[r], i);
			chunk_scrub(ch, a, b);
			pages_unlock(ch, a, b);
		}
		pthread_mutex_unlock(&ch->lock);
		chunk_put(ch);
	}
	free(list);
}

/* Whole pages of a punched range are zeros in home and below: clean, and not worth memory. */
static void drop_zeroed(struct cfile *f, uint64_t off, uint64_t end)
{
	uint64_t first = (off + GAIA_PAGE - 1) / GAIA_PAGE, last = end / GAIA_PAGE;
	struct chunk **list;
	unsigned n;

	if (first >= last)
		return;
	n = chunk_list_get(f, first / GAIA_CHUNK_PAGES, (last - 1) / GAIA_CHUNK_PAGES, &list);
	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = list[k];

		pthread_mutex_lock(&ch->lock);
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
			uint64_t page = ch->index * GAIA_CHUNK_PAGES + i;

			if (page < first || page >= last || !page_present(ch, i))
				continue;
			pages_lock(ch, i, i + 1);
			page_drop(ch, i);
			pages_unlock(ch, i, i + 1);
		}
		pthread_mutex_unlock(&ch->lock);
		chunk_unlist(ch);
		chunk_put(ch);
	}
	free(list);
}

/* The only pages beyond the store's end may be pages that were not stored yet, and now need not be. */
static int grow_store(struct store_file *sf, uint64_t size)
{
	struct stat st;
	int err = sf->ops->stat(sf, &st);

	if (!err && (uint64_t)st.st_size < size)
		err = sf->ops->truncate(sf, (off_t)size);
	return err;
}

/* When some file systems (ext4) fail they keep what they had room for, and then their size is not the file's. */
static int allocate_or_not(struct store_file *sf, int mode, off_t off, off_t len)
{
	struct stat before, after;
	int err = sf->ops->stat(sf, &before);

	if (err)
		return err;
	err = sf->ops->allocate(sf, mode, off, len);
	if (err && !sf->ops->stat(sf, &after) && after.st_size > before.st_size)
		(void)sf->ops->truncate(sf, before.st_size);
	return err;
}

int cache_allocate(struct cfile *f, int mode, off_t off, off_t len)
{
	bool zeroes = mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
	uint64_t size, end = (uint64_t)off + (uint64_t)len;
	struct store_file *sf;
	int err;

	if (off < 0 || len <= 0)
		return -EINVAL;
	if (end > INT64_MAX)
		return -EFBIG;
	/* A cache of pages does not support modes that move bytes to other offsets. */
	if (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		return -EOPNOTSUPP;
	/* Before: opening the file below may wait for somebody's lease. */
	cfile_will_be_written(f);
	range_lock_exclusively(f);
	err = cfile_store(f, true, &sf);
	if (cfile_is_passthrough(f)) {
		/* Its changes are imported, as those that CPU programs make are. */
		cfile_cpu_writes(f);
		if (!err)
			err = sf->ops->allocate(sf, mode, off, len);
		if (!err)
			err = passthrough_size(f);
		if (!err && zeroes)
			remove_from_devices(f, (uint64_t)off, end);
		goto unlock;
	}
	size = cfile_size(f);
	if (!err && zeroes)
		err = grow_store(sf, size);
	if (!err && zeroes && (uint64_t)off < size)
		err = keep_tracked(f, (uint64_t)off, MIN(end, size));
	if (!err) {
		err = allocate_or_not(sf, mode, off, len);
		/* Also if it has failed, which it may have half-way. */
		if (zeroes && (uint64_t)off < size)
			forget_parked(f, (uint64_t)off, MIN(end, size));
		(void)fault_point("allocate.forgot");
	}
	if (!err && zeroes && (uint64_t)off < size)
		err = zero_cached(f, (uint64_t)off, MIN(end, size));
	if (!err && zeroes && (uint64_t)off < size)
		remove_from_devices(f, (uint64_t)off, MIN(end, size));
	/* The last page ends with the file. */
	if (!err && zeroes)
		drop_zeroed(f, (uint64_t)off, end < size ? end : ROUND_UP(size, GAIA_PAGE));
	if (!err && !(mode & FALLOC_FL_KEEP_SIZE) && end > size) {
		pthread_mutex_lock(&f->lock);
		atomic_store(&f->size, end);
		pthread_mutex_unlock(&f->lock);
	}
unlock:
	range_unlock_exclusively(f);
	return err;
}

/* ---- holes ---- */

off_t cache_seek(struct cfile *f, off_t off, int whence)
{
	struct store_file *sf;
	off_t at;
	int err;

	pthread_rwlock_rdlock(&f->range);
	err = passthrough_size(f);
	if (!err && (off < 0 || (uint64_t)off >= cfile_size(f)))
		err = -ENXIO;
	/* The store knows the holes; so it must have the data, too. */
	if (!err)
		err = cfile_fetch(f, 0, 0);
	pthread_rwlock_unlock(&f->range);
	if (!err)
		err = cache_flush(f);
	if (!err)
		err = cfile_store(f, false, &sf);
	if (err)
		return err;
	at = sf->ops->seek(sf, off, whence);
	/* Beyond the store's end we have only zeros. */
	if (at == -ENXIO && whence == SEEK_HOLE)
		return off;
	return at;
}

/* ---- copies ---- */

#define COPY_BUFFER (256u << 10)

/* Whether anything would be out of date if the store changed without notice. */
static bool keeps_copies(struct cfile *f)
{
	bool any;

	if (cfile_is_passthrough(f))
		return false;

	pthread_mutex_lock(&f->lock);
	any = f->chunks != NULL;
	pthread_mutex_unlock(&f->lock);
	return any;
}

static int size_now(struct cfile *f, uint64_t *size)
{
	int err;

	pthread_rwlock_rdlock(&f->range);
	err = passthrough_size(f);
	*size = cfile_size(f);
	pthread_rwlock_unlock(&f->range);
	return err;
}

static ssize_t copy_by_hand(struct cfile *from, off_t from_off, struct cfile *to, off_t to_off,
			    size_t len)
{
	char *buf = xmalloc(COPY_BUFFER);
	ssize_t got = 0;
	size_t done = 0;
	int err = 0;

	while (done < len && !err) {
		got = cache_read(from, buf, MIN(len - done, (size_t)COPY_BUFFER),
				 from_off + (off_t)done);
		if (got <= 0)
			break;
		err = cache_write(to, buf, (size_t)got, to_off + (off_t)done, CACHE_WRITE_EXACT);
		if (!err)
			done += (size_t)got;
	}
	free(buf);
	if (done > 0)
		return (ssize_t)done;
	return err ? err : got;
}

ssize_t cache_copy_range(struct cfile *from, off_t from_off, struct cfile *to, off_t to_off,
			 size_t len)
{
	struct store_file *a, *b;
	uint64_t size;
	ssize_t n = size_now(from, &size);

	if (n < 0)
		return n;
	if (from_off < 0 || to_off < 0 || (uint64_t)to_off + len > INT64_MAX)
		return -EINVAL;
	if ((uint64_t)from_off >= size)
		return 0;
	len = (size_t)MIN((uint64_t)len, size - (uint64_t)from_off);
	if (from == to && (uint64_t)from_off < (uint64_t)to_off + len &&
	    (uint64_t)to_off < (uint64_t)from_off + len)
		return -EINVAL;
	/* The store may share the blocks, if nothing of the target is cached that would be out of date then. */
	if (from != to && !keeps_copies(to) && atomic_load(&from->n_ahead) == 0 &&
	    cache_flush(from) == 0 && !cfile_store(from, false, &a) && !cfile_store(to, true, &b)) {
		range_lock_exclusively(to);
		cfile_cpu_writes(to);
		n = keeps_copies(to) ? -EXDEV :
				       a->ops->copy_range(a, from_off, b, to_off, len);
		if (n > 0) {
			pthread_mutex_lock(&to->lock);
			if ((uint64_t)(to_off + n) > atomic_load(&to->size))
				atomic_store(&to->size, (uint64_t)(to_off + n));
			pthread_mutex_unlock(&to->lock);
		}
		range_unlock_exclusively(to);
		if (n > 0 || (n < 0 && n != -EXDEV && n != -EOPNOTSUPP && n != -EINVAL))
			return n;
	}
	return copy_by_hand(from, from_off, to, to_off, len);
}
