/* file.c - creating and ending cfiles, their sizes and errors, and what stat(2) is told. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pagecache/file.h"

#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/evict.h"
#include "pagecache/file_pins.h"
#include "pagecache/readahead.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/victim.h"
#include "pagecache/writeback.h"

/* ---- life ---- */

static void range_init(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t attr;

	/* A truncate must get its turn under a stream of reads. As this kind of lock requires, nobody takes it shared
	 * twice, except by trying (writeback.c). */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(lock, &attr);
	pthread_rwlockattr_destroy(&attr);
}

static struct cfile *cfile_create(struct cache *c, uint64_t key, const struct cfile_source *src,
				  void *cookie)
{
	struct cfile *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->cache = c;
	f->key = key;
	f->source = *src;
	f->cookie = cookie;
	atomic_init(&f->passthrough, src->passthrough);
	atomic_init(&f->cpu_writes, CPU_WRITES);
	range_init(&f->range);
	pthread_mutex_init(&f->lock, NULL);
	pthread_mutex_init(&f->distrust, NULL);
	TAILQ_INIT(&f->unsynced);
	TAILQ_INIT(&f->syncs);
	TAILQ_INIT(&f->gave_way);
	pthread_cond_init(&f->sync_ended, NULL);
	return f;
}

/* Only when the cfile has been made: until then an earlier one, which had the file longer than the store, could be ending. */
static int ask_size(struct cfile *f)
{
	uint64_t size;
	int err = f->source.size(f->cookie, &size);

	if (!err)
		atomic_store(&f->size, size);
	return err;
}

int cfile_get(struct cache *c, uint64_t key, const struct cfile_source *src, void *cookie,
	      struct cfile **out)
{
	bool found;
	struct cfile *f;
	int err = 0;

	pthread_mutex_lock(&c->lock);
	HASH_FIND(hh, c->files, &key, sizeof(key), f);
	found = f != NULL;
	if (!f) {
		f = cfile_create(c, key, src, cookie);
		if (!f) {
			pthread_mutex_unlock(&c->lock);
			src->release(cookie);
			return -ENOMEM;
		}
		HASH_ADD(hh, c->files, key, sizeof(f->key), f);
	}
	f->holds++;
	f->uses++;
	f->forgotten = false;
	pthread_mutex_unlock(&c->lock);
	/* An existing cfile has a reference to the cookie already. */
	if (found)
		src->release(cookie);
	else
		err = ask_size(f);
	if (err)
		cfile_put(f);
	else
		*out = f;
	return err;
}

void cfile_hold(struct cfile *f)
{
	pthread_mutex_lock(&f->cache->lock);
	f->holds++;
	f->uses++;
	pthread_mutex_unlock(&f->cache->lock);
}

void cfile_use(struct cfile *f)
{
	atomic_fetch_add(&f->uses, 1);
}

void cfile_unuse(struct cfile *f)
{
	struct cache *c = f->cache;
	unsigned uses = atomic_load(&f->uses);

	/* Chunks are made and end with reads: so this takes no lock that other files use. */
	while (uses > 1)
		if (atomic_compare_exchange_weak(&f->uses, &uses, uses - 1))
			return;
	pthread_mutex_lock(&c->lock);
	if (--f->uses > 0) {
		pthread_mutex_unlock(&c->lock);
		return;
	}
	HASH_DEL(c->files, f);
	pthread_mutex_unlock(&c->lock);

	bug_on(f->chunks || atomic_load(&f->n_dirty) || atomic_load(&f->n_ahead));
	if (f->store_r)
		f->store_r->ops->close(f->store_r);
	if (f->store_w)
		f->store_w->ops->close(f->store_w);
	pthread_cond_destroy(&f->sync_ended);
	pthread_mutex_destroy(&f->distrust);
	pthread_mutex_destroy(&f->lock);
	pthread_rwlock_destroy(&f->range);
	f->source.release(f->cookie);
	free(f);
}

void range_lock_exclusively(struct cfile *f)
{
	atomic_fetch_add(&f->range_shut, 1);
	atomic_fetch_add(&f->range_waiters, 1);
	pthread_rwlock_wrlock(&f->range);
	atomic_fetch_sub(&f->range_waiters, 1);
}

void range_unlock_exclusively(struct cfile *f)
{
	pthread_rwlock_unlock(&f->range);
	atomic_fetch_sub(&f->range_shut, 1);
	readahead_wake(f);
}

/* Nobody can ask for the contents any more: drop all of them, dirty or not. */
static void drop_home(struct cfile *f)
{
	struct chunk **list;
	unsigned n;

	range_lock_exclusively(f);
	n = chunk_list_get(f, 0, UINT64_MAX, &list);
	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = list[k];

		pthread_mutex_lock(&ch->lock);
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES && ch->n_frames; i++) {
			pages_lock(ch, i, i + 1);
			page_drop(ch, i);
			pages_unlock(ch, i, i + 1);
		}
		track_maybe_free(ch);
		victim_drop_chunk(ch);
		pthread_mutex_unlock(&ch->lock);
	}
	range_unlock_exclusively(f);
	for (unsigned k = 0; k < n; k++)
		chunk_unlist(list[k]);
	for (unsigned k = 0; k < n; k++)
		chunk_put(list[k]);
	free(list);
}

/* Drop what is clean. */
static void shrink_home(struct cfile *f)
{
	struct chunk **list;
	unsigned n = chunk_list_get(f, 0, UINT64_MAX, &list);

	for (unsigned k = 0; k < n; k++) {
		chunk_shrink(list[k], false, false);
		pthread_mutex_lock(&list[k]->lock);
		victim_drop_chunk(list[k]);
		pthread_mutex_unlock(&list[k]->lock);
		chunk_unlist(list[k]);
		chunk_put(list[k]);
	}
	free(list);
}

/*
 * Nothing holds the file: drop what need not be kept. Called with a use of f that is the
 * caller's, so that f does not end meanwhile.
 */
static void cfile_settle(struct cfile *f)
{
	struct cache *c = f->cache;
	bool idle, forgotten, gone = atomic_load(&f->gone), pinned = atomic_load(&f->n_pinned) > 0, replicas;

	pthread_mutex_lock(&c->lock);
	idle = f->holds == 0;
	forgotten = f->forgotten;
	pthread_mutex_unlock(&c->lock);
	if (!idle)
		return;
	if (gone)
		drop_home(f);
	else if (forgotten)
		shrink_home(f);
	else
		return;

	/* The flusher drops replicas: it may wait for what we may not wait for. Those that are pinned for the file stay while it has a name. */
	pthread_mutex_lock(&f->lock);
	replicas = f->chunks != NULL;
	pthread_mutex_unlock(&f->lock);
	if (pinned ? gone : replicas) {
		pthread_mutex_lock(&c->lock);
		c->idle_files = true;
		pthread_cond_signal(&c->flusher_cond);
		pthread_mutex_unlock(&c->lock);
	}
}

void cfile_put(struct cfile *f)
{
	pthread_mutex_lock(&f->cache->lock);
	bug_on(f->holds == 0);
	f->holds--;
	pthread_mutex_unlock(&f->cache->lock);
	cfile_settle(f);
	cfile_unuse(f);
}

void cache_forget(struct cache *c, uint64_t key)
{
	struct cfile *f;

	pthread_mutex_lock(&c->lock);
	HASH_FIND(hh, c->files, &key, sizeof(key), f);
	if (f) {
		f->forgotten = true;
		f->uses++;
	}
	pthread_mutex_unlock(&c->lock);
	if (!f)
		return;
	cfile_settle(f);
	cfile_unuse(f);
}

void cfile_set_gone(struct cfile *f, bool gone)
{
	atomic_store(&f->gone, gone);
}

void idle_files_reap(struct cache *c)
{
	struct cfile *f, *tmp, **list;
	struct chunk **chunks;
	unsigned n = 0, n_chunks;

	pthread_mutex_lock(&c->lock);
	c->idle_files = false;
	list = xmalloc((HASH_COUNT(c->files) + 1) * sizeof(struct cfile *));
	HASH_ITER(hh, c->files, f, tmp) {
		if (f->holds > 0 || (!f->forgotten && !atomic_load(&f->gone)))
			continue;
		f->uses++;
		list[n++] = f;
	}
	pthread_mutex_unlock(&c->lock);
	for (unsigned k = 0; k < n; k++) {
		f = list[k];
		file_pins_end(f);
		n_chunks = chunk_list_get(f, 0, UINT64_MAX, &chunks);
		for (unsigned j = 0; j < n_chunks; j += EVICT_AT_ONCE)
			replicas_drop_idle(c, chunks + j, MIN(n_chunks - j, EVICT_AT_ONCE));
		for (unsigned j = 0; j < n_chunks; j++)
			chunk_put(chunks[j]);
		free(chunks);
		cfile_settle(f);
		cfile_unuse(f);
	}
	free(list);
}

const char *cache_safe_name(const char *raw, char buf[CFILE_NAME_MAX])
{
	static const char octal[] = "01234567";
	json_t *text = json_string(raw); /* NULL: not UTF-8 */
	size_t n = 0;

	for (const char *s = raw; *s && n < CFILE_NAME_MAX - 5; s++) {
		unsigned c = (unsigned char)*s, next = (unsigned char)s[1];

		/* Terminals interpret U+0080 to U+009F, too. */
		if (c >= ' ' && c != 0x7f && (c < 0x80 || (text && (c != 0xc2 || next >= 0xa0) &&
							   !(s > raw && (unsigned char)s[-1] == 0xc2 && c < 0xa0)))) {
			/* Not a part of a letter. */
			if (c >= 0xc0 && n >= CFILE_NAME_MAX - 9)
				break;
			buf[n++] = *s;
			continue;
		}
		buf[n++] = '\\';
		buf[n++] = octal[c >> 6];
		buf[n++] = octal[c >> 3 & 7];
		buf[n++] = octal[c & 7];
	}
	buf[n] = '\0';
	json_decref(text);
	return buf;
}

const char *cfile_name(struct cfile *f, char buf[CFILE_NAME_MAX])
{
	char raw[CFILE_NAME_MAX] = "";

	if (f->source.name && f->source.name(f->cookie, raw, sizeof(raw)))
		cache_safe_name(raw, buf);
	if (!*raw)
		snprintf(buf, CFILE_NAME_MAX, "file %#lx", (unsigned long)f->key);
	return buf;
}

/* ---- size, times ---- */

uint64_t cfile_size(struct cfile *f)
{
	return atomic_load(&f->size);
}

void cfile_touch(struct cfile *f)
{
	pthread_mutex_lock(&f->lock);
	clock_gettime(CLOCK_REALTIME, &f->mtime);
	f->mtime_set = true;
	pthread_mutex_unlock(&f->lock);
}

int cfile_keep_time(struct cfile *f)
{
	struct store_file *sf;
	struct stat st;
	bool known;
	int err;

	pthread_mutex_lock(&f->lock);
	known = f->mtime_set;
	pthread_mutex_unlock(&f->lock);
	if (known)
		return 0;
	err = cfile_store(f, true, &sf);
	if (!err)
		err = sf->ops->stat(sf, &st);
	if (err)
		return err;
	pthread_mutex_lock(&f->lock);
	if (!f->mtime_set)
		f->mtime = st.st_mtim;
	f->mtime_set = true;
	pthread_mutex_unlock(&f->lock);
	return 0;
}

void cfile_wrote(struct cfile *f)
{
	if (!f->cache->times_above || cfile_keep_time(f))
		cfile_touch(f);
}

void cfile_fix_stat(struct cfile *f, struct stat *st)
{
	uint64_t dirty = atomic_load(&f->n_dirty) + atomic_load(&f->n_ahead);
	blkcnt_t whole, promised;

	/* For passthrough files the store's values are right. */
	if (cfile_is_passthrough(f))
		return;
	st->st_size = (off_t)cfile_size(f);
	/* A local file system also counts blocks that it has promised but not placed yet: tools take a
	 * file with contents and no blocks for a hole. It is not known how many of the dirty pages have blocks
	 * already: so count no more than the size needs. */
	whole = (blkcnt_t)((cfile_size(f) + GAIA_PAGE - 1) / GAIA_PAGE * (GAIA_PAGE / 512));
	promised = st->st_blocks + (blkcnt_t)(dirty * (GAIA_PAGE / 512));
	st->st_blocks = MAX(st->st_blocks, MIN(whole, promised));
	pthread_mutex_lock(&f->lock);
	if (f->mtime_set) {
		st->st_mtim = later_of(st->st_mtim, f->mtime);
		st->st_ctim = later_of(st->st_ctim, f->mtime);
	}
	pthread_mutex_unlock(&f->lock);
}

/* ---- errors ---- */

uint64_t cfile_error_now(struct cfile *f)
{
	uint64_t seq;

	pthread_mutex_lock(&f->lock);
	seq = f->error_seq;
	pthread_mutex_unlock(&f->lock);
	return seq;
}

int cfile_error_check(struct cfile *f, uint64_t *cursor)
{
	int err = 0;

	pthread_mutex_lock(&f->lock);
	if (*cursor != f->error_seq) {
		*cursor = f->error_seq;
		err = f->error;
	}
	pthread_mutex_unlock(&f->lock);
	return err;
}
