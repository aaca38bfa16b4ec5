/*
 * writeback.c - storing dirty home pages: by age, under pressure, on request; and fetching what devices released.
 *
 * A page whose store failed stays dirty and is tried again; the error is kept for
 * the next cfile_error_check(), and logged once.
 */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pagecache/writeback.h"

#include "base/counters.h"
#include "base/latency.h"
#include "base/log.h"
#include "base/probe.h"
#include "base/thread.h"
#include "base/uses.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/fetch.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/passthrough.h"
#include "pagecache/range.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/view.h"

#define RESPITE_NS 100000000ull /* for a store that failed: a full one takes some time to say so */

/* ---- the file below ---- */

int cfile_store(struct cfile *f, bool write, struct store_file **out)
{
	struct store_file *sf, **slot;
	int err;

	pthread_mutex_lock(&f->lock);
	sf = f->store_w ? f->store_w : write ? NULL : f->store_r;
	pthread_mutex_unlock(&f->lock);
	if (!sf) {
		err = f->source.open(f->cookie, write, &sf);
		if (err)
			return err;
		pthread_mutex_lock(&f->lock);
		slot = sf->writable ? &f->store_w : &f->store_r;
		if (*slot) {
			struct store_file *lost = sf;

			sf = *slot;
			pthread_mutex_unlock(&f->lock);
			lost->ops->close(lost);
		} else {
			*slot = sf;
			pthread_mutex_unlock(&f->lock);
		}
	}
	if (write && !sf->writable)
		return -EROFS;
	*out = sf;
	return 0;
}

void cfile_open_now(struct cfile *f, bool write)
{
	struct store_file *sf;
	struct stat st;

	/* A store that has closed the file meanwhile opens it again for any call. */
	if (!cfile_store(f, write, &sf))
		(void)sf->ops->stat(sf, &st);
}

void cfile_will_be_written(struct cfile *f)
{
	cfile_open_now(f, true);
}

void store_failed(struct cfile *f, int err)
{
	static struct log_rate rate;
	char name[CFILE_NAME_MAX];
	bool say;

	count(CTR_storage_errors, 1);
	pthread_mutex_lock(&f->lock);
	f->error = err;
	f->error_seq++;
	f->failed_ns = now_ns();
	f->failing = true;
	say = !f->logged;
	pthread_mutex_unlock(&f->lock);
	/* If the log's limit leaves the line out the next failure says it. */
	if (!say || !log_may_more(&rate, LOG_LEVEL_ERROR, LOG_AT_ONCE, LOG_EACH_NS))
		return;
	pthread_mutex_lock(&f->lock);
	f->logged = true;
	pthread_mutex_unlock(&f->lock);
	log_at(LOG_LEVEL_ERROR, "%s: what was written cannot be stored: %s; it stays cached and is tried again", cfile_name(f, name), strerror(-err));
}

/* The error with which the file's pages could not be stored just now, or 0. */
static int just_failed(struct cfile *f)
{
	int err;

	pthread_mutex_lock(&f->lock);
	err = f->failing && now_ns() - f->failed_ns < RESPITE_NS ? f->error : 0;
	pthread_mutex_unlock(&f->lock);
	return err;
}

/*
 * The error if a sync of the file has failed since @failed of them had, or 0. What was written to the store meanwhile may be
 * lost, and only that sync was told.
 */
static int failed_since(struct cfile *f, uint64_t failed)
{
	int err;

	if (atomic_load(&f->syncs_failed) == failed)
		return 0;
	pthread_mutex_lock(&f->lock);
	err = f->error;
	pthread_mutex_unlock(&f->lock);
	return err;
}

bool cfile_has_unstored(struct cfile *f)
{
	return atomic_load(&f->n_dirty) > 0 || atomic_load(&f->n_ahead) > 0;
}

/* The store gave the file a new time; set it to the time when the data was written. */
static void store_worked(struct cfile *f, struct store_file *sf)
{
	struct timespec ts[2] = { { .tv_nsec = UTIME_OMIT } };
	bool set;

	pthread_mutex_lock(&f->lock);
	f->failing = f->logged = false;
	set = f->mtime_set;
	ts[1] = f->mtime;
	pthread_mutex_unlock(&f->lock);
	if (set)
		(void)sf->ops->utimens(sf, ts); /* only a time, and only ours: not worth an error */
}

void cache_tell_unstored(struct cache *c)
{
	uint64_t pages = atomic_load(&c->n_dirty) + atomic_load(&c->n_ahead);

	if (c->unstored)
		__atomic_store_n(c->unstored, pages * GAIA_PAGE, __ATOMIC_RELAXED);
}

/* Write pages [a, b), whose bytes are in @frame, or, if they are in view, in @copy, to the store. */
static int store_run(struct chunk *ch, unsigned a, unsigned b, const frame_t *frame, char *copy)
{
	struct cfile *f = ch->file;
	struct iovec iov[GAIA_CHUNK_PAGES];
	uint64_t off = ch->index * GAIA_CHUNK + (uint64_t)a * GAIA_PAGE;
	uint64_t size = cfile_size(f), began;
	struct store_file *sf;
	unsigned n = 0;
	int err;

	for (unsigned i = a; i < b; i++) {
		uint64_t at = off + (uint64_t)(i - a) * GAIA_PAGE;
		size_t len = at >= size ? 0 : (size_t)MIN(size - at, (uint64_t)GAIA_PAGE);
		char *p = copy && frame_is_lent(&f->cache->frames, frame[i - a]) ? copy + (size_t)(i - a) * GAIA_PAGE :
										   frame_ptr(&f->cache->frames, frame[i - a]);

		if (len == 0)
			break;
		if (n > 0 && (char *)iov[n - 1].iov_base + iov[n - 1].iov_len == p)
			iov[n - 1].iov_len += len;
		else
			iov[n++] = (struct iovec){ p, len };
	}
	if (n == 0)
		return 0;
	err = cfile_store(f, true, &sf);
	began = now_ns();
	if (!err) {
		struct uses *waits = wait_begin(WAIT_storage);

		err = sf->ops->write(sf, iov, (int)n, (off_t)off);
		wait_end(waits, WAIT_storage);
	}
	PROBE4(writeback, f->key, off / GAIA_PAGE, b - a, err);
	if (err) {
		store_failed(f, err);
		return err;
	}
	count(CTR_storage_writes, b - a);
	moved(&f->moved, MOVED_to_storage_bytes, (uint64_t)(b - a) * GAIA_PAGE);
	count(CTR_writeback_runs, 1);
	latency_count(LATENCY_storage_write, (int64_t)(now_ns() - began));
	store_worked(f, sf);
	return 0;
}

int chunk_store(struct chunk *ch, unsigned a, unsigned b, bool wait)
{
	frame_t frame[GAIA_CHUNK_PAGES];
	uint64_t failed;
	unsigned i, j;
	int err, first = 0;
	char *copy;

	if (cfile_is_passthrough(ch->file))
		return passthrough_store(ch, a, b, wait);
	pthread_mutex_lock(&ch->lock);
	for (i = a; ch->n_dirty && i < b; i = j) {
		j = i + 1;
		/* A thread that does not wait may have the page locked already, and others of the chunk. */
		if (!page_dirty(ch, i) || !store_begin(ch, i, wait))
			continue;
		while (j < b && page_dirty(ch, j) && store_begin(ch, j, false))
			j++;
		for (unsigned k = i; k < j; k++)
			frame[k - i] = page_at(ch, k)->frame;
		copy = view_store_copy(ch, i, j, frame);
		failed = atomic_load(&ch->file->syncs_failed);
		pthread_mutex_unlock(&ch->lock);
		err = store_run(ch, i, j, frame, copy);
		free(copy);
		pthread_mutex_lock(&ch->lock);
		/* A sync that fails from here on finds them stored (store_again()); one that has failed by now may not have. */
		if (!err)
			err = failed_since(ch->file, failed);
		if (err && !first)
			first = err;
		store_ended(ch, i, j, frame, !err);
	}
	pthread_mutex_unlock(&ch->lock);
	cache_tell_unstored(ch->file->cache);
	/* What is stored later, when it is fetched from a device, must not move the file's times again. */
	if (!ch->file->cache->times_above && !cfile_has_unstored(ch->file)) {
		pthread_mutex_lock(&ch->file->lock);
		if (!cfile_has_unstored(ch->file))
			ch->file->mtime_set = false;
		pthread_mutex_unlock(&ch->file->lock);
	}
	return first;
}

unsigned chunk_store_some(struct chunk *ch)
{
	unsigned before, after;

	/*
	 * Storing to such a file failed before, and trying again takes memory; and a thread that asks for memory may
	 * stand in the way of those who write the store's file past us.
	 */
	if (cfile_is_passthrough(ch->file) || just_failed(ch->file))
		return 0;
	if (pthread_rwlock_tryrdlock(&ch->file->range))
		return 0;
	pthread_mutex_lock(&ch->lock);
	before = ch->n_dirty;
	pthread_mutex_unlock(&ch->lock);
	(void)chunk_store(ch, 0, GAIA_CHUNK_PAGES, false);
	pthread_mutex_lock(&ch->lock);
	after = ch->n_dirty;
	pthread_mutex_unlock(&ch->lock);
	pthread_rwlock_unlock(&ch->file->range);
	return before > after ? before - after : 0;
}

/* ---- on request ---- */

/* Store the dirty pages of chunks [first, last]. file->range is held. */
static int store_range(struct cfile *f, uint64_t first, uint64_t last)
{
	struct chunk **list;
	unsigned n;
	int err, result = 0;

	if (atomic_load(&f->n_dirty) == 0)
		return 0;
	n = chunk_list_unsynced(f, first, last, UNSYNCED_DIRTY, &list);
	for (unsigned k = 0; k < n; k++) {
		err = chunk_store(list[k], 0, GAIA_CHUNK_PAGES, true);
		if (err && !result)
			result = err;
		chunk_unlist(list[k]);
		chunk_put(list[k]);
	}
	free(list);
	return result;
}

int cfile_make_room(struct cfile *f)
{
	struct cache *c = f->cache;
	struct chunk **list;
	unsigned n;
	int err;

	/* What the host has of home is not for what cannot be stored. */
	if (atomic_load(&c->n_dirty) + atomic_load(&c->n_kept) + atomic_load(&c->frames.reserved) <= c->frames.budget)
		return 0;
	err = just_failed(f);
	if (err)
		return err;
	n = chunk_list_unsynced(f, 0, UINT64_MAX, UNSYNCED_DIRTY, &list);
	for (unsigned k = 0; k < n; k++) {
		if (!err)
			err = chunk_store(list[k], 0, GAIA_CHUNK_PAGES, true);
		chunk_put(list[k]);
	}
	free(list);
	return err;
}

bool cfile_range_is_wanted(struct cfile *f)
{
	return atomic_load(&f->range_waiters) > 0;
}

int cfile_fetch(struct cfile *f, uint64_t off, uint64_t len)
{
	uint64_t end = len == 0 || off + len < off ? UINT64_MAX : off + len;
	struct page_span span = { off / GAIA_PAGE, (end - 1) / GAIA_PAGE + 1 };
	struct fetch_window w;
	struct chunk **list;
	unsigned n, stored = 0;
	bool full = false;
	int err, result = 0, unstored = 0;

	if (atomic_load(&f->n_ahead) == 0)
		return 0;
	n = chunk_list_unsynced(f, off / GAIA_CHUNK, (end - 1) / GAIA_CHUNK, UNSYNCED_AHEAD, &list);
	for (unsigned done = 0; done < n && !(full && unstored); done += w.n) {
		if (cfile_range_is_wanted(f)) {
			pthread_rwlock_unlock(&f->range);
			pthread_rwlock_rdlock(&f->range);
		}
		w = fetch_some(list + done, n - done, span, NULL);
		for (unsigned k = 0; k < w.n; k++)
			result = result ? result : w.part[k].err;
		free(w.part);
		/* What was fetched makes room for windows. */
		while ((full = !home_can_take(f->cache, window_pages(f->cache))) && stored < done + w.n) {
			err = chunk_store(list[stored++], 0, GAIA_CHUNK_PAGES, true);
			unstored = unstored ? unstored : err;
		}
	}
	for (unsigned k = 0; k < n; k++)
		chunk_put(list[k]);
	free(list);
	return result ? result : unstored;
}

int cache_flush(struct cfile *f)
{
	int err;

	pthread_rwlock_rdlock(&f->range);
	err = store_range(f, 0, UINT64_MAX);
	pthread_rwlock_unlock(&f->range);
	return err;
}

int cache_flush_released(struct cfile *f)
{
	int err, result;

	pthread_rwlock_rdlock(&f->range);
	result = cfile_fetch(f, 0, 0);
	err = store_range(f, 0, UINT64_MAX);
	pthread_rwlock_unlock(&f->range);
	return result ? result : err;
}

int cache_set_times(struct cfile *f, int (*set)(void *arg), void *arg)
{
	int err;

	/* Before: opening the file below may wait for somebody's lease. */
	if (!f->cache->times_above && atomic_load(&f->n_dirty) > 0)
		cfile_will_be_written(f);
	/* Whoever writes or stores holds it shared. Where the kernel keeps times what is stored later keeps this one, see below. */
	range_lock_exclusively(f);
	if (!f->cache->times_above)
		(void)store_range(f, 0, UINT64_MAX);
	err = set(arg);
	pthread_mutex_lock(&f->lock);
	f->mtime_set = false;
	pthread_mutex_unlock(&f->lock);
	/* What could not be stored will be, and so will what devices have released; it was written before. */
	if (!cfile_is_passthrough(f) && cfile_has_unstored(f))
		(void)cfile_keep_time(f);
	range_unlock_exclusively(f);
	return err;
}

/*
 * A sync failed: what was stored before it may be lost, though the store does not say so again.
 * Pages that home still has are stored once more; they were written when they were. Those that are being
 * stored just now stay dirty: chunk_store() sees that the sync has failed. file->range held.
 */
static void store_again(struct cfile *f)
{
	struct chunk **list;
	unsigned n = chunk_list_unsynced(f, 0, UINT64_MAX, UNSYNCED_ANY, &list);

	(void)cfile_keep_time(f);
	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = list[k];

		pthread_mutex_lock(&ch->lock);
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
			if (!page_present(ch, i) || !(page_at(ch, i)->flags & PAGE_STORED))
				continue;
			pages_lock(ch, i, i + 1);
			if (page_present(ch, i) && (page_at(ch, i)->flags & PAGE_STORED))
				pages_set_dirty(ch, i, i + 1);
			pages_unlock(ch, i, i + 1);
		}
		pthread_mutex_unlock(&ch->lock);
		chunk_account(ch);
		chunk_put(ch);
	}
	free(list);
}

/* On the stack of the thread that syncs. */
struct sync {
	uint64_t number;
	TAILQ_ENTRY(sync) link;
};

/* Whether it is the only one. */
static bool sync_begin(struct cfile *f, struct sync *s)
{
	bool alone;

	pthread_mutex_lock(&f->lock);
	alone = TAILQ_EMPTY(&f->syncs);
	s->number = ++f->syncs_begun;
	TAILQ_INSERT_TAIL(&f->syncs, s, link);
	pthread_mutex_unlock(&f->lock);
	return alone;
}

/* @worked: also wait until the syncs under way now have said whether they worked: a failure is reported to one only. */
static void sync_end(struct cfile *f, struct sync *s, bool worked)
{
	struct uses *waits = NULL;
	uint64_t last;

	pthread_mutex_lock(&f->lock);
	/* First: no sync may wait for one that waits. */
	TAILQ_REMOVE(&f->syncs, s, link);
	pthread_cond_broadcast(&f->sync_ended);
	last = f->syncs_begun;
	while (worked && !TAILQ_EMPTY(&f->syncs) && TAILQ_FIRST(&f->syncs)->number <= last) {
		thread_waits();
		if (!waits)
			waits = wait_begin(WAIT_storage);
		pthread_cond_wait(&f->sync_ended, &f->lock);
	}
	pthread_mutex_unlock(&f->lock);
	wait_end(waits, WAIT_storage);
}

/*
 * Sync the store's file. Then what was stored before is on the disk, but only if no other sync of the file was under way meanwhile:
 * that one may be the one to which an error is reported.
 */
static int sync_stored(struct cfile *f, struct store_file *sf, bool data_only)
{
	struct chunk **list = NULL;
	struct sync sync;
	unsigned n = 0;
	bool alone = sync_begin(f, &sync);
	struct uses *waits;
	uint64_t began;
	int err;

	if (alone && atomic_load(&f->n_stored) > 0)
		n = chunk_list_unsynced(f, 0, UINT64_MAX, UNSYNCED_STORED, &list);
	for (unsigned k = 0; k < n; k++)
		chunk_sync_begins(list[k]);
	began = now_ns();
	waits = wait_begin(WAIT_storage);
	err = sf->ops->sync(sf, data_only);
	wait_end(waits, WAIT_storage);
	latency_count(LATENCY_storage_sync, (int64_t)(now_ns() - began));
	if (err) {
		store_failed(f, err);
		atomic_fetch_add(&f->syncs_failed, 1);
	}
	pthread_mutex_lock(&f->lock);
	alone = f->syncs_begun == sync.number;
	pthread_mutex_unlock(&f->lock);
	for (unsigned k = 0; k < n; k++) {
		chunk_sync_ended(list[k], !err && alone);
		chunk_put(list[k]);
	}
	free(list);
	if (err) {
		pthread_rwlock_rdlock(&f->range);
		store_again(f);
		pthread_rwlock_unlock(&f->range);
		/* Once more: a thread that has begun since then may have found nothing to store. */
		atomic_fetch_add(&f->syncs_failed, 1);
	}
	sync_end(f, &sync, !err);
	return err;
}

int cache_publish(struct cfile *f, off_t off, off_t len)
{
	uint64_t last = len == 0 ? UINT64_MAX : (uint64_t)(off + len - 1) / GAIA_CHUNK;
	int err, result;

	pthread_rwlock_rdlock(&f->range);
	result = cfile_fetch(f, (uint64_t)off, (uint64_t)len);
	err = store_range(f, (uint64_t)off / GAIA_CHUNK, last);
	pthread_rwlock_unlock(&f->range);
	return result ? result : err;
}

int cache_fsync(struct cfile *f, off_t off, off_t len, bool data_only)
{
	uint64_t failed = atomic_load(&f->syncs_failed);
	int err, result = cache_publish(f, off, len);
	struct store_file *sf;

	/* A file that nobody could write has nothing of ours to sync, but costs nothing either. */
	err = cfile_store(f, false, &sf);
	if (err)
		store_failed(f, err);
	else
		err = sync_stored(f, sf, data_only);
	/* What was stored for this one may have been lost to another. */
	if (!err)
		err = failed_since(f, failed);
	return result ? result : err;
}

/* Whether everything that the store lacks of the file was released on devices that are gone. */
static bool all_lost(struct cfile *f)
{
	struct chunk **list;
	bool lost = true;
	unsigned n;

	if (atomic_load(&f->n_dirty) > 0 || atomic_load(&f->n_ahead) == 0)
		return false;
	n = chunk_list_unsynced(f, 0, UINT64_MAX, UNSYNCED_AHEAD, &list);
	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = list[k];

		pthread_mutex_lock(&ch->lock);
		for (unsigned r = 0; r < ch->n_replicas; r++)
			for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
				lost &= !replica_ahead(ch->replica[r], i) || atomic_load(&ch->replica[r]->dev->gone);
		pthread_mutex_unlock(&ch->lock);
		chunk_put(ch);
	}
	free(list);
	return lost;
}

/* One of cache_sync_all()'s list. */
static void note_unstored(struct cfile *f, int err, json_t *list)
{
	char name[CFILE_NAME_MAX];
	uint64_t pages = atomic_load(&f->n_dirty) + atomic_load(&f->n_ahead);

	json_t *path = json_string(cfile_name(f, name));

	if (!path) /* it must not be missing, whatever its name is */
		path = json_sprintf("file %#lx", (unsigned long)f->key);
	json_array_append_new(list, json_pack("{s:o, s:I, s:s, s:b}", "path", path, "bytes", (json_int_t)(pages * GAIA_PAGE),
					      "error", strerror(-err), "lost", all_lost(f)));
}

/* Whether anything of the file may not be stored and synced. */
static bool may_be_unsynced(struct cfile *f)
{
	if (f->store_w || atomic_load(&f->n_dirty) || atomic_load(&f->n_ahead))
		return true;
	/* What is cached clean was stored by somebody's flush, perhaps not synced: of a shared source by programs' own descriptors. */
	return f->chunks && !f->source.shared;
}

/* A user may have any number of files: so many are named. */
#define UNSTORED_NAMED 1000u

int cache_sync_all(struct cache *c, json_t *unstored)
{
	struct cfile **list, *f, *tmp;
	unsigned n = 0, more = 0;
	char rest[64];
	int err, result = 0;

	pthread_mutex_lock(&c->lock);
	list = xmalloc((HASH_COUNT(c->files) + 1) * sizeof(struct cfile *));
	HASH_ITER(hh, c->files, f, tmp) {
		if (f->holds == 0 && atomic_load(&f->gone))
			continue;
		f->uses++;
		list[n++] = f;
	}
	pthread_mutex_unlock(&c->lock);
	for (unsigned k = 0; k < n; k++) {
		f = list[k];
		err = may_be_unsynced(f) ? cache_fsync(f, 0, 0, false) : 0;
		if (err && unstored && json_array_size(unstored) >= UNSTORED_NAMED)
			more++;
		else if (err && unstored)
			note_unstored(f, err, unstored);
		result = result ? result : err;
		cfile_unuse(f);
	}
	free(list);
	if (more) {
		snprintf(rest, sizeof(rest), "(and %u more files)", more);
		json_array_append_new(unstored, json_pack("{s:s, s:I, s:s, s:b}", "path", rest, "bytes", (json_int_t)0, "error",
							  "not named", "lost", false));
	}
	return result;
}
