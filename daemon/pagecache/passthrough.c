/*
 * passthrough.c - files that CPU programs have open past the cache.
 *
 * The kernel passes their reads, writes and mappings on to the store's file itself. That file's page cache is
 * what CPU programs share, and home is what devices share of the file. Home's bytes of a tracked page are what the
 * store's were when the two were last made equal. So, with home's bytes as the base of both:
 *
 *	import	bytes of the store that differ from the base were written by CPU programs, and become
 *		home's as any write does
 *	put	bytes of home that differ from the base were released by devices, and are written to the store,
 *		and no other byte, since CPU programs may be writing those
 *
 * An acquire imports; a release imports, fetches and merges, and puts, before it returns. What has been merged but cannot be
 * put is dirty: the base is kept then as the page's `under`, and the writeback thread tries again.
 *
 * The store changes without notice to us. So home is not a copy of it that could be dropped and read again: dropping
 * a tracked page makes its replicas stale, and one that is somebody's base stays (home_may_leave()). But as long as nobody can write the file,
 * and home has had all changes, what home drops is on the devices as it is in the store: there it stays current, and home must have it again
 * before it is held for writing. When a program is about to get a descriptor that can write, what home lacks then becomes stale
 * (cfile_cpu_writes()). So of a file that is larger than home, and is only read, each page is read once.
 *
 * A file begins this way and leaves it once, when it is certain that nobody has the store's file open any more.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/passthrough.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/uses.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/dedup.h"
#include "pagecache/coherence.h"
#include "pagecache/fetch.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/home.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/writeback.h"

#define IMPORT_PAGES 256u /* in one call to the store */

bool cfile_is_passthrough(struct cfile *f)
{
	return atomic_load(&f->passthrough);
}

/* The next value of cpu_writes. It was never used before: a slow thread that has seen an earlier one must not take it for the same. */
static uint64_t next_state(uint64_t now, unsigned state)
{
	return now - now % CPU_STATES + CPU_STATES + state;
}

/* What home lacks cannot be compared with what CPU programs are going to write, so no device's copy of it counts any more. */
static void distrust_chunk(struct chunk *ch)
{
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES && ch->lacks_bases && ch->track; i++) {
		if (page_present(ch, i))
			continue;
		/* Who has it locked may be bringing it home, from a store that is as it was. */
		pages_lock(ch, i, i + 1);
		if (ch->track && !page_present(ch, i))
			home_distrust(ch, i);
		pages_unlock(ch, i, i + 1);
	}
	ch->lacks_bases = false;
	pthread_mutex_unlock(&ch->lock);
}

static void distrust(struct cfile *f)
{
	struct chunk **list;
	unsigned n;

	thread_waits();
	/* Others wait until it is done, too: they are about to write. */
	pthread_mutex_lock(&f->distrust);
	if (atomic_load(&f->lacks_bases)) {
		atomic_store(&f->distrusting, true);
		atomic_store(&f->lacks_bases, false);
		n = chunk_list_get(f, 0, UINT64_MAX, &list);
		for (unsigned k = 0; k < n; k++) {
			distrust_chunk(list[k]);
			chunk_unlist(list[k]);
			chunk_put(list[k]);
		}
		free(list);
		atomic_store(&f->distrusting, false);
	}
	pthread_mutex_unlock(&f->distrust);
}

void cfile_cpu_writes(struct cfile *f)
{
	uint64_t now = atomic_load(&f->cpu_writes);

	while (!atomic_compare_exchange_weak(&f->cpu_writes, &now, next_state(now, CPU_WRITES)))
		;
	if ((atomic_load(&f->lacks_bases) || atomic_load(&f->distrusting)) && !fault_point("break.trust_what_home_lacks"))
		distrust(f);
}

bool cfile_cpu_may_write(struct cfile *f)
{
	return atomic_load(&f->cpu_writes) % CPU_STATES == CPU_WRITES;
}

bool passthrough_compares(struct cfile *f)
{
	return cfile_is_passthrough(f) && atomic_load(&f->cpu_writes) % CPU_STATES != CPU_IMPORTED;
}

bool cfile_compares(struct cfile *f)
{
	return passthrough_compares(f);
}

bool passthrough_is_trusted(struct cfile *f)
{
	if (f->source.shared || passthrough_compares(f))
		return false;
	atomic_store(&f->lacks_bases, true);
	/* Either we see that somebody may write, or who may sees this, and waits for the chunk's lock. */
	return !passthrough_compares(f);
}

uint64_t cfile_cpu_stops(struct cfile *f)
{
	uint64_t now = atomic_load(&f->cpu_writes), next = next_state(now, CPU_STOPPED);

	return cfile_is_passthrough(f) && now % CPU_STATES == CPU_WRITES &&
			       atomic_compare_exchange_strong(&f->cpu_writes, &now, next) ?
		       next :
		       0;
}

int passthrough_size(struct cfile *f)
{
	struct store_file *sf;
	struct stat st;
	int err;

	if (!cfile_is_passthrough(f))
		return 0;
	err = cfile_store(f, false, &sf);
	if (!err)
		err = sf->ops->stat(sf, &st);
	if (err)
		return err;
	/* CPU programs make files longer by themselves, shorter only by asking us. */
	pthread_mutex_lock(&f->lock);
	if ((uint64_t)st.st_size > atomic_load(&f->size))
		atomic_store(&f->size, (uint64_t)st.st_size);
	pthread_mutex_unlock(&f->lock);
	return 0;
}

static off_t page_offset(const struct chunk *ch, unsigned i)
{
	return (off_t)(ch->index * GAIA_CHUNK + (uint64_t)i * GAIA_PAGE);
}

/* ---- import ---- */

/* The store's bytes of pages [a, b). */
static int read_store(struct chunk *ch, unsigned a, unsigned b, char *buf)
{
	struct iovec iov = { buf, (size_t)(b - a) * GAIA_PAGE };
	struct store_file *sf;
	struct uses *waits;
	ssize_t got;
	int err;

	err = cfile_store(ch->file, false, &sf);
	if (err)
		return err;
	waits = wait_begin(WAIT_storage);
	got = sf->ops->read(sf, &iov, 1, page_offset(ch, a));
	wait_end(waits, WAIT_storage);
	if (got < 0) {
		count(CTR_storage_errors, 1);
		return (int)got;
	}
	count(CTR_storage_reads, b - a);
	moved(&ch->file->moved, MOVED_from_storage_bytes, (uint64_t)(b - a) * GAIA_PAGE);
	count(CTR_storage_read_runs, 1);
	for (unsigned i = a; i < b; i++) {
		size_t at = (size_t)(i - a) * GAIA_PAGE;
		size_t valid = (size_t)got > at ? (size_t)got - at : 0;

		valid = MIN(valid, (size_t)page_limit(ch, i));
		if (valid < GAIA_PAGE)
			memset(buf + at + valid, 0, GAIA_PAGE - valid);
	}
	return 0;
}

/* Make what CPU programs changed of page i home's. chunk->lock is held. */
static void import_page(struct chunk *ch, unsigned i, const char *store, frame_t spare[2])
{
	char *base = under_bytes(ch, i);
	size_t at = 0, len;

	/* If the last replica went while we waited for the page, no device has a copy that could be behind. */
	if (!ch->track) {
		memcpy(page_ptr(ch, i), store, GAIA_PAGE);
		return;
	}
	while ((len = store_next_run(store, base ? base : page_ptr(ch, i), GAIA_PAGE, &at)) > 0) {
		if (base)
			memcpy(base + at, store + at, len);
		exact_write(ch, i, true, (unsigned)at, store + at, (unsigned)len, false, spare);
		at += len;
	}
	count(CTR_passthrough_imported, 1);
	count(CTR_cpu_written_back, 1);
}

/* Pages [a, b) are present, and at most IMPORT_PAGES. */
static int import_run(struct chunk *ch, unsigned a, unsigned b, char *buf)
{
	struct cache *c = ch->file->cache;
	frame_t spare[2] = { 0, 0 };
	int err = read_store(ch, a, b, buf);

	for (unsigned i = a; i < b && !err; i++) {
		const char *store = buf + (size_t)(i - a) * GAIA_PAGE;

		if (memcmp(page_ptr(ch, i), store, GAIA_PAGE) == 0)
			continue;
		err = pages_own(ch, i, i + 1, NULL);
		if (!err)
			err = spares_take(c, spare);
		if (err)
			break;
		pthread_mutex_lock(&ch->lock);
		import_page(ch, i, store, spare);
		pthread_mutex_unlock(&ch->lock);
	}
	spares_give(c, spare);
	return err;
}

/* Import those of pages [a, b), locked exclusively, that home has. */
static int import_pages(struct chunk *ch, unsigned a, unsigned b)
{
	char *buf = NULL;
	unsigned i, j;
	int err = 0;

	if (!passthrough_compares(ch->file))
		return 0;
	for (i = a; i < b && !err; i = j) {
		/* We have them locked, so nobody else changes whether they have frames. */
		pthread_mutex_lock(&ch->lock);
		for (; i < b && !page_present(ch, i); i++)
			;
		for (j = i; j < b && j - i < IMPORT_PAGES && page_present(ch, j); j++)
			;
		pthread_mutex_unlock(&ch->lock);
		if (i == j)
			break;
		if (!buf)
			buf = xmalloc((size_t)MIN(b - i, IMPORT_PAGES) * GAIA_PAGE);
		err = import_run(ch, i, j, buf);
	}
	free(buf);
	kept_trim(ch, a, b);
	return err;
}

int passthrough_learn_size(struct cfile *f)
{
	int err;

	pthread_rwlock_rdlock(&f->range);
	err = passthrough_size(f);
	pthread_rwlock_unlock(&f->range);
	return err;
}

int passthrough_catch_up(struct chunk *ch, unsigned a, unsigned b)
{
	bool ahead = false;
	int err = 0;

	if (!cfile_is_passthrough(ch->file))
		return 0;
	/* A release that was left unmerged is older than what CPU programs have written by now: merge it first. */
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b && ch->track && !ahead; i++)
		ahead = page_ahead(ch, i);
	pthread_mutex_unlock(&ch->lock);
	if (ahead)
		err = fetch_pages(ch, a, b);
	return err ? err : import_pages(ch, a, b);
}

bool passthrough_has_caught_up(struct chunk *ch)
{
	return !passthrough_compares(ch->file) && (!cfile_is_passthrough(ch->file) || atomic_load(&ch->n_ahead) == 0);
}

/* ---- put ---- */

/* Others may have made the file shorter without our knowledge. What is beyond its end is not stored: a mapping never makes it longer. */
static int limit_below(struct chunk *ch, unsigned i, struct store_file *sf, unsigned *limit)
{
	struct stat st;
	int err;

	if (!ch->file->source.shared)
		return 0;
	err = sf->ops->stat(sf, &st);
	if (!err)
		*limit = (unsigned)MIN((off_t)*limit, MAX(st.st_size - page_offset(ch, i), 0));
	return err;
}

static int put_page(struct chunk *ch, unsigned i, const char *base)
{
	unsigned limit = page_limit(ch, i);
	struct store_file *sf;
	struct uses *waits;
	int err = cfile_store(ch->file, true, &sf);

	if (err || limit == 0)
		return err;
	waits = wait_begin(WAIT_storage);
	err = limit_below(ch, i, sf, &limit);
	if (!err && limit > 0)
		err = sf->ops->patch(sf, page_ptr(ch, i), base, limit, page_offset(ch, i));
	wait_end(waits, WAIT_storage);
	return err;
}

/* Write what devices released of pages [a, b), locked exclusively, to the store. 0 or the first error. */
static int put_pages(struct chunk *ch, unsigned a, unsigned b)
{
	struct cfile *f = ch->file;
	int err, first = 0;
	unsigned put = 0;

	for (unsigned i = a; i < b; i++) {
		bool dirty;
		char *base;

		pthread_mutex_lock(&ch->lock);
		dirty = page_dirty(ch, i);
		base = dirty ? under_bytes(ch, i) : NULL;
		pthread_mutex_unlock(&ch->lock);
		if (!dirty)
			continue;
		bug_on(!base);
		err = put_page(ch, i, base);
		if (err) {
			store_failed(ch->file, err);
			first = first ? first : err;
			continue;
		}
		put++;
		pthread_mutex_lock(&ch->lock);
		page_clear_dirty(ch, i);
		under_drop(ch, i);
		pthread_mutex_unlock(&ch->lock);
	}
	count(CTR_passthrough_put, put);
	count(CTR_storage_writes, put);
	moved(&f->moved, MOVED_to_storage_bytes, (uint64_t)put * GAIA_PAGE);
	if (put > 0 && !first) {
		pthread_mutex_lock(&f->lock);
		f->failing = f->logged = false;
		pthread_mutex_unlock(&f->lock);
	}
	return first;
}

/* Whether page i has something for the store: it may have been merged home already. chunk->lock is held. */
static bool released(struct chunk *ch, unsigned i)
{
	return page_ahead(ch, i) || page_dirty(ch, i);
}

/* The release reports it. No write of a CPU program that would cover what is lost with its device passes through here. */
static void drop_lost(struct chunk *ch, unsigned a, unsigned b)
{
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b && ch->track; i++)
		page_drop_lost(ch, i);
	pthread_mutex_unlock(&ch->lock);
}

int passthrough_released(struct chunk *ch, unsigned a, unsigned b)
{
	int err = 0;

	if (!cfile_is_passthrough(ch->file))
		return 0;
	for (unsigned i = a, j; i < b && !err; i = j) {
		pthread_mutex_lock(&ch->lock);
		for (; i < b && !released(ch, i); i++)
			;
		for (j = i; j < b && released(ch, j); j++)
			;
		pthread_mutex_unlock(&ch->lock);
		if (i == j)
			break;
		/* What CPU programs wrote until now is concurrent with the release, and merged as such. */
		err = import_pages(ch, i, j);
		if (!err)
			err = fetch_pages(ch, i, j);
		if (err == -EIO)
			drop_lost(ch, i, j);
		(void)fault_point("release.before_put");
		if (!err)
			err = put_pages(ch, i, j);
	}
	return err;
}

int passthrough_room(const struct mapping *m, unsigned n)
{
	struct cache *c = m->file->cache;
	int err;

	if (m->user.owner || !cfile_is_passthrough(m->file))
		return 0;
	err = home_room_to_stay(c, n);
	if (err && log_may(&c->pace))
		log_warn("user %u cannot acquire more for writing: home is full of held pages of files that CPU programs have open past "
			 "the cache; raise --home, or use --cpu-cache writeback",
			 (unsigned)m->user.uid);
	return err;
}

int passthrough_before_release(struct cfile *f)
{
	int err;

	if (!cfile_is_passthrough(f))
		return 0;
	err = cfile_make_room(f);
	return err ? err : passthrough_size(f);
}

int passthrough_left_over(struct chunk *ch, unsigned a, unsigned b)
{
	bool ahead = false;

	if (!cfile_is_passthrough(ch->file) || atomic_load(&ch->file->n_ahead) == 0)
		return 0;
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b && !ahead; i++)
		ahead = page_ahead(ch, i);
	pthread_mutex_unlock(&ch->lock);
	return ahead ? passthrough_catch_up(ch, a, b) : 0;
}

bool passthrough_has_left_over(struct cfile *f)
{
	return cfile_is_passthrough(f) && cfile_has_unstored(f);
}

int passthrough_release_again(struct chunk *ch, const uint64_t *pages)
{
	int err, result = 0;

	pthread_rwlock_rdlock(&ch->file->range);
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; (i = bits_first(pages, i, GAIA_CHUNK_PAGES)) < GAIA_CHUNK_PAGES; i++) {
		if (!released(ch, i))
			continue;
		pages_lock(ch, i, i + 1);
		pthread_mutex_unlock(&ch->lock);
		err = passthrough_catch_up(ch, i, i + 1);
		if (!err)
			err = put_pages(ch, i, i + 1);
		result = result ? result : err;
		pthread_mutex_lock(&ch->lock);
		pages_unlock(ch, i, i + 1);
	}
	pthread_mutex_unlock(&ch->lock);
	pthread_rwlock_unlock(&ch->file->range);
	chunk_unlist(ch);
	return result;
}

int passthrough_store(struct chunk *ch, unsigned a, unsigned b, bool wait)
{
	int err, first = 0;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b && ch->n_dirty; i++) {
		if (!page_dirty(ch, i))
			continue;
		if (wait)
			pages_lock(ch, i, i + 1);
		else if (!page_trylock(ch, i))
			continue;
		pthread_mutex_unlock(&ch->lock);
		err = passthrough_catch_up(ch, i, i + 1);
		if (!err)
			err = put_pages(ch, i, i + 1);
		first = first ? first : err;
		pthread_mutex_lock(&ch->lock);
		pages_unlock(ch, i, i + 1);
	}
	track_maybe_free(ch);
	pthread_mutex_unlock(&ch->lock);
	return first;
}

/* ---- reads and writes through the daemon ---- */

ssize_t passthrough_read(struct cfile *f, void *buf, size_t len, off_t off)
{
	struct iovec iov = { buf, len };
	struct store_file *sf;
	int err = cfile_store(f, false, &sf);

	return err ? err : sf->ops->read(sf, &iov, 1, off);
}

int passthrough_write(struct cfile *f, const void *buf, size_t len, off_t off)
{
	struct iovec iov = { (void *)buf, len };
	struct store_file *sf;
	int err = cfile_store(f, true, &sf);

	cfile_cpu_writes(f);
	return err ? err : sf->ops->write(sf, &iov, 1, off);
}

/* ---- leaving ---- */

/* The store cannot change any more, and what is left at home agrees with it. */
static void leave_chunk(struct chunk *ch)
{
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		if (!page_present(ch, i))
			continue;
		pages_lock(ch, i, i + 1);
		under_drop(ch, i); /* from now on it is dirty as other pages are */
		pages_unlock(ch, i, i + 1);
	}
	track_maybe_free(ch);
	pthread_mutex_unlock(&ch->lock);
}

/* Make home equal to the store. Pages that nobody tracks may be anything: they are dropped, and read again when needed. */
static int import_chunk(struct chunk *ch)
{
	int err = 0;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES && !ch->track; i++) {
		if (!page_present(ch, i))
			continue;
		pages_lock(ch, i, i + 1);
		if (!ch->track)
			page_drop(ch, i);
		pages_unlock(ch, i, i + 1);
	}
	/* Tracking may have begun while we waited for a page. */
	if (ch->track) {
		pages_lock(ch, 0, GAIA_CHUNK_PAGES);
		pthread_mutex_unlock(&ch->lock);
		err = passthrough_catch_up(ch, 0, GAIA_CHUNK_PAGES);
		pthread_mutex_lock(&ch->lock);
		pages_unlock(ch, 0, GAIA_CHUNK_PAGES);
	}
	pthread_mutex_unlock(&ch->lock);
	chunk_unlist(ch);
	return err;
}

int cfile_cpu_stopped(struct cfile *f, uint64_t stopped)
{
	struct chunk **list;
	unsigned n;
	int err;

	pthread_rwlock_rdlock(&f->range);
	err = passthrough_size(f);
	n = chunk_list_get(f, 0, UINT64_MAX, &list);
	for (unsigned k = 0; k < n; k++) {
		if (!err)
			err = import_chunk(list[k]);
		chunk_put(list[k]);
	}
	free(list);
	/* Unless somebody has begun to write again. */
	atomic_compare_exchange_strong(&f->cpu_writes, &stopped,
				       next_state(stopped, err ? CPU_WRITES : CPU_IMPORTED));
	pthread_rwlock_unlock(&f->range);
	return err;
}

int cfile_leave_passthrough(struct cfile *f)
{
	struct chunk **list;
	unsigned n;
	int err;

	cfile_open_now(f, false);
	range_lock_exclusively(f);
	err = passthrough_size(f);
	if (err || !cfile_is_passthrough(f))
		goto unlock;
	n = chunk_list_get(f, 0, UINT64_MAX, &list);
	for (unsigned k = 0; k < n && !err; k++)
		err = import_chunk(list[k]);
	for (unsigned k = 0; k < n; k++) {
		if (!err)
			leave_chunk(list[k]);
		chunk_put(list[k]);
	}
	free(list);
	if (!err)
		atomic_store(&f->passthrough, false);
unlock:
	range_unlock_exclusively(f);
	return err;
}
