/* cache_rig.c - see cache_rig.h. */
#include "cache_rig.h"

#include <errno.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/util.h"
#ifdef RIG_CUDA
#include "fake_cuda_api.h"
#endif
#include "pagecache/cache.h"
#include "pagecache/readahead.h"
#include "pagecache/root.h"
#include "rig_detect.h"

#define must(cond)                                                     \
	do {                                                           \
		if (!(cond))                                           \
			bug("the rig did not expect: %s", #cond);      \
	} while (0)

/* ---- the kernel's pages ---- */

static struct kpage *kpage_find(struct kfile *kf, uint64_t index)
{
	struct kpage *p;

	HASH_FIND(hh, kf->pages, &index, sizeof(index), p);
	return p;
}

static struct kpage *kpage_add(struct kfile *kf, uint64_t index)
{
	struct kpage *p = xcalloc(1, sizeof(*p));

	p->index = index;
	p->locked = true;
	HASH_ADD(hh, kf->pages, index, sizeof(p->index), p);
	return p;
}

/* Locked; NULL: there is none and none was to be made. */
static struct kpage *kpage_get(struct kfile *kf, uint64_t index, bool make)
{
	struct kpage *p;

	pthread_mutex_lock(&kf->lock);
	while ((p = kpage_find(kf, index)) && p->locked)
		pthread_cond_wait(&kf->unlocked, &kf->lock);
	if (p)
		p->locked = true;
	else if (make)
		p = kpage_add(kf, index);
	pthread_mutex_unlock(&kf->lock);
	return p;
}

static struct kpage *kpage_tryget(struct kfile *kf, uint64_t index, bool dirty_only)
{
	struct kpage *p;

	pthread_mutex_lock(&kf->lock);
	p = kpage_find(kf, index);
	if (p && !p->locked && (p->dirty || !dirty_only))
		p->locked = true;
	else
		p = NULL;
	pthread_mutex_unlock(&kf->lock);
	return p;
}

static void kpage_put(struct kfile *kf, struct kpage *p)
{
	pthread_mutex_lock(&kf->lock);
	p->locked = false;
	if (!p->uptodate) {
		HASH_DEL(kf->pages, p);
		free(p);
	}
	pthread_cond_broadcast(&kf->unlocked);
	pthread_mutex_unlock(&kf->lock);
}

static void kpage_drop(struct kfile *kf, struct kpage *p)
{
	p->uptodate = false;
	p->dirty = false;
	kpage_put(kf, p);
}

static uint64_t ksize(struct kfile *kf)
{
	uint64_t size;

	pthread_mutex_lock(&kf->lock);
	size = kf->size;
	pthread_mutex_unlock(&kf->lock);
	return size;
}

static void kgrow(struct kfile *kf, uint64_t size)
{
	pthread_mutex_lock(&kf->lock);
	kf->size = MAX(kf->size, size);
	pthread_mutex_unlock(&kf->lock);
}

/* The indices of the pages in [first, last], rising; to be freed. */
static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static size_t kpage_list(struct kfile *kf, uint64_t off, uint64_t len, bool dirty_only,
			 uint64_t **out)
{
	uint64_t first = off / GAIA_PAGE, *list;
	uint64_t last = len == 0 ? UINT64_MAX : (off + len - 1) / GAIA_PAGE;
	struct kpage *p;
	size_t n = 0;

	pthread_mutex_lock(&kf->lock);
	list = xmalloc((HASH_COUNT(kf->pages) + 1) * sizeof(*list));
	for (p = kf->pages; p; p = p->hh.next)
		/* A thread that has a page locked may be making it dirty. */
		if (p->index >= first && p->index <= last && (p->locked || p->dirty || !dirty_only))
			list[n++] = p->index;
	pthread_mutex_unlock(&kf->lock);
	qsort(list, n, sizeof(*list), by_value);
	*out = list;
	return n;
}

/* READ into a locked page, and into the next ones that are not cached. */
static int kpage_fill(struct kfile *kf, struct kpage *p)
{
	struct kpage *all[CACHE_READ_MAX / GAIA_PAGE] = { p };
	uint64_t end = ksize(kf);
	struct cache_read rd;
	size_t n = 1, at = 0;
	int err;

	pthread_mutex_lock(&kf->lock);
	while (n <= kf->readahead && (p->index + n) * GAIA_PAGE < end &&
	       !kpage_find(kf, p->index + n)) {
		all[n] = kpage_add(kf, p->index + n);
		n++;
	}
	pthread_mutex_unlock(&kf->lock);
	err = cache_read_begin(kf->cfile, (off_t)(p->index * GAIA_PAGE), n * GAIA_PAGE, true, &rd);
	if (!err) {
		for (size_t k = 0; k < n; k++)
			memset(all[k]->bytes, 0, GAIA_PAGE);
		for (int i = 0; i < rd.n_iov; i++)
			for (size_t k = 0; k < rd.iov[i].iov_len; k++, at++)
				all[at / GAIA_PAGE]->bytes[at % GAIA_PAGE] =
					((unsigned char *)rd.iov[i].iov_base)[k];
		must(at == rd.bytes);
		for (size_t k = 0; k < n; k++)
			all[k]->uptodate = true;
		cache_read_end(&rd);
	}
	for (size_t k = 1; k < n; k++)
		kpage_put(kf, all[k]);
	return err;
}

/* Up to date; the pages beyond the end are the kernel's own. */
static int kpage_get_filled(struct kfile *kf, uint64_t index, struct kpage **out)
{
	struct kpage *p = kpage_get(kf, index, true);
	int err;

	if (!p->uptodate && index * GAIA_PAGE >= ksize(kf)) {
		p->uptodate = true;
	} else if (!p->uptodate) {
		err = kpage_fill(kf, p);
		if (err) {
			kpage_put(kf, p);
			return err;
		}
	}
	*out = p;
	return 0;
}

/* WRITE locked, consecutive pages. Afterwards they are clean, whatever the result. */
static int kpages_write(struct kfile *kf, struct kpage **p, size_t n)
{
	uint64_t off = p[0]->index * GAIA_PAGE, size = ksize(kf), len;
	unsigned char *buf;
	int err = 0;

	for (size_t k = 0; k < n; k++)
		p[k]->dirty = false;
	if (off >= size)
		return 0;
	len = MIN(n * GAIA_PAGE, size - off);
	buf = xmalloc(n * GAIA_PAGE);
	for (size_t k = 0; k < n; k++)
		memcpy(buf + k * GAIA_PAGE, p[k]->bytes, GAIA_PAGE);
	err = cache_write(kf->cfile, buf, len, (off_t)off, CACHE_WRITE_PAGES);
	free(buf);
	return err;
}

int kernel_writeback(struct kfile *kf, uint64_t off, uint64_t len, unsigned batch)
{
	struct kpage **run = xmalloc(batch * sizeof(struct kpage *));
	uint64_t *list;
	size_t total = kpage_list(kf, off, len, true, &list), n, i = 0;
	int err, result = 0;

	while (i < total) {
		run[0] = kpage_get(kf, list[i++], false);
		if (!run[0])
			continue;
		if (!run[0]->dirty) {
			kpage_put(kf, run[0]);
			continue;
		}
		for (n = 1; n < batch && i < total && list[i] == list[i - 1] + 1; n++, i++) {
			run[n] = kpage_tryget(kf, list[i], true);
			if (!run[n])
				break;
		}
		err = kpages_write(kf, run, n);
		if (err && !result)
			result = err;
		while (n > 0)
			kpage_put(kf, run[--n]);
	}
	free(list);
	free(run);
	return result;
}

void kernel_reclaim(struct kfile *kf, uint64_t off, uint64_t len)
{
	uint64_t *list;
	size_t n = kpage_list(kf, off, len, false, &list);

	for (size_t i = 0; i < n; i++) {
		struct kpage *p = kpage_tryget(kf, list[i], false);

		if (p && !p->dirty)
			kpage_drop(kf, p);
		else if (p)
			kpage_put(kf, p);
	}
	free(list);
}

bool kernel_has(struct kfile *kf, uint64_t off)
{
	bool has;

	pthread_mutex_lock(&kf->lock);
	has = kpage_find(kf, off / GAIA_PAGE) != NULL;
	pthread_mutex_unlock(&kf->lock);
	return has;
}

bool kernel_is_dirty(struct kfile *kf, uint64_t off)
{
	const struct kpage *kp;
	bool dirty;

	pthread_mutex_lock(&kf->lock);
	kp = kpage_find(kf, off / GAIA_PAGE);
	dirty = kp && atomic_load(&kp->dirty);
	pthread_mutex_unlock(&kf->lock);
	return dirty;
}

/* Launder and drop. */
static void kernel_invalidate(struct kfile *kf, uint64_t off, uint64_t len)
{
	uint64_t *list;
	size_t n = kpage_list(kf, off, len, false, &list);
	int err;

	for (size_t i = 0; i < n; i++) {
		struct kpage *p = kpage_get(kf, list[i], false);

		if (!p)
			continue;
		if (p->dirty) {
			err = kpages_write(kf, &p, 1);
			if (err) {
				pthread_mutex_lock(&kf->lock);
				kf->error = err;
				pthread_mutex_unlock(&kf->lock);
			}
		}
		kpage_drop(kf, p);
	}
	free(list);
}

/* As truncate_pagecache_range(): whole pages go, dirty or not, of others the bytes are zeroed. */
static void kernel_cut(struct kfile *kf, uint64_t off, uint64_t end)
{
	uint64_t *list;
	size_t n = kpage_list(kf, off, end == UINT64_MAX ? 0 : end - off, false, &list);

	for (size_t i = 0; i < n; i++) {
		struct kpage *p = kpage_get(kf, list[i], false);
		uint64_t start = list[i] * GAIA_PAGE;
		uint64_t a = MAX(off, start), b = MIN(end, start + GAIA_PAGE);

		if (!p)
			continue;
		if (b - a == GAIA_PAGE) {
			kpage_drop(kf, p);
			continue;
		}
		memset(p->bytes + (a - start), 0, b - a);
		kpage_put(kf, p);
	}
	free(list);
}

/* ---- what processes do ---- */

static ssize_t read_below(struct kfile *kf, void *buf, size_t len, uint64_t off)
{
	struct iovec iov = { buf, len };

	return kf->below->ops->read(kf->below, &iov, 1, (off_t)off);
}

static int write_below(struct kfile *kf, const void *buf, size_t len, uint64_t off)
{
	struct iovec iov = { (void *)buf, len };
	int err;

	/* Who writes has opened it for that. */
	if (!cfile_cpu_may_write(kf->cfile))
		cfile_cpu_writes(kf->cfile);
	err = kf->below->ops->write(kf->below, &iov, 1, (off_t)off);
	if (!err)
		kgrow(kf, off + len);
	return err;
}

ssize_t cpu_read(struct kfile *kf, void *buf, size_t len, uint64_t off)
{
	uint64_t size = ksize(kf);
	struct kpage *p;
	size_t done, n;
	int err;

	if (off >= size)
		return 0;
	len = MIN(len, size - off);
	if (kf->below)
		return read_below(kf, buf, len, off);
	for (done = 0; done < len; done += n) {
		uint64_t at = off + done;

		n = MIN(len - done, GAIA_PAGE - at % GAIA_PAGE);
		err = kpage_get_filled(kf, at / GAIA_PAGE, &p);
		if (err)
			return done ? (ssize_t)done : err;
		memcpy((char *)buf + done, p->bytes + at % GAIA_PAGE, n);
		kpage_put(kf, p);
	}
	return (ssize_t)len;
}

ssize_t cpu_read_direct(struct kfile *kf, void *buf, size_t len, uint64_t off)
{
	int err;

	if (kf->below)
		return read_below(kf, buf, len, off);
	err = kernel_writeback(kf, off, len, 256);
	return err ? err : cache_read(kf->cfile, buf, len, (off_t)off);
}

/* A write(2) of bytes of one page. */
static int write_in_page(struct kfile *kf, const void *buf, size_t len, uint64_t off)
{
	unsigned in = off % GAIA_PAGE;
	bool whole = len == GAIA_PAGE, through = kf->rig->options.writethrough;
	struct kpage *p;
	int err = 0;

	if (whole || through)
		p = kpage_get(kf, off / GAIA_PAGE, true);
	else
		err = kpage_get_filled(kf, off / GAIA_PAGE, &p);
	if (err)
		return err;
	memcpy(p->bytes + in, buf, len);
	if (whole)
		p->uptodate = true;
	if (through) {
		/* Pages of which it has only a part are not kept. */
		err = cache_write(kf->cfile, buf, len, (off_t)off, CACHE_WRITE_THROUGH);
		if (err)
			p->uptodate = p->dirty;
	} else {
		p->dirty = true;
	}
	if (!err)
		kgrow(kf, off + len);
	kpage_put(kf, p);
	return err;
}

int cpu_write(struct kfile *kf, const void *buf, size_t len, uint64_t off)
{
	int err = 0;
	size_t n;

	if (kf->below)
		return write_below(kf, buf, len, off);
	for (; len > 0 && !err; len -= n, off += n) {
		n = MIN(len, GAIA_PAGE - off % GAIA_PAGE);
		err = write_in_page(kf, buf, n, off);
		buf = (const char *)buf + n;
	}
	return err;
}

int cpu_write_direct(struct kfile *kf, const void *buf, size_t len, uint64_t off)
{
	int err;

	if (kf->below)
		return write_below(kf, buf, len, off);
	err = kernel_writeback(kf, off, len, 256);
	if (err)
		return err;
	kernel_invalidate(kf, off, len);
	err = cache_write(kf->cfile, buf, len, (off_t)off, CACHE_WRITE_EXACT);
	kernel_invalidate(kf, off, len);
	if (!err)
		kgrow(kf, off + len);
	return err;
}

int cpu_store(struct kfile *kf, const void *buf, size_t len, uint64_t off)
{
	struct kpage *p;
	size_t n;
	int err;

	if (kf->below) {
		must(off + len <= ROUND_UP(ksize(kf), (uint64_t)GAIA_PAGE));
		return write_below(kf, buf, len, off);
	}
	for (; len > 0; len -= n, off += n) {
		n = MIN(len, GAIA_PAGE - off % GAIA_PAGE);
		must(off / GAIA_PAGE * GAIA_PAGE < ksize(kf));
		err = kpage_get_filled(kf, off / GAIA_PAGE, &p);
		if (err)
			return err;
		memcpy(p->bytes + off % GAIA_PAGE, buf, n);
		p->dirty = true;
		kpage_put(kf, p);
		buf = (const char *)buf + n;
	}
	return 0;
}

int cpu_truncate(struct kfile *kf, uint64_t size)
{
	int err = cache_truncate(kf->cfile, size);

	if (err)
		return err;
	pthread_mutex_lock(&kf->lock);
	kf->size = size;
	pthread_mutex_unlock(&kf->lock);
	kernel_cut(kf, size, UINT64_MAX);
	return 0;
}

int cpu_allocate(struct kfile *kf, int mode, uint64_t off, uint64_t len)
{
	bool zeroes = mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
	int err = zeroes ? kernel_writeback(kf, off, len, 256) : 0;

	if (err)
		return err;
	err = cache_allocate(kf->cfile, mode, (off_t)off, (off_t)len);
	if (err)
		return err;
	if (zeroes)
		kernel_cut(kf, off, off + len);
	if (!(mode & FALLOC_FL_KEEP_SIZE))
		kgrow(kf, off + len);
	return 0;
}

ssize_t cpu_copy(struct kfile *from, uint64_t from_off, struct kfile *to, uint64_t to_off,
		 size_t len)
{
	ssize_t n;
	int err = kernel_writeback(from, from_off, len, 256);

	if (!err)
		err = kernel_writeback(to, to_off, len, 256);
	if (err)
		return err;
	n = cache_copy_range(from->cfile, (off_t)from_off, to->cfile, (off_t)to_off, len);
	if (n <= 0)
		return n;
	kgrow(to, to_off + (uint64_t)n);
	kernel_cut(to, ROUND_DOWN(to_off, (uint64_t)GAIA_PAGE),
		   ROUND_UP(to_off + (uint64_t)n, (uint64_t)GAIA_PAGE));
	return n;
}

int cpu_fsync(struct kfile *kf)
{
	int err = kernel_writeback(kf, 0, 0, 256), err2;

	err2 = cache_fsync(kf->cfile, 0, 0, false);
	return err ? err : err2;
}

/* ---- files ---- */

static int source_open(void *cookie, bool write, struct store_file **out)
{
	struct kfile *kf = cookie;

	atomic_fetch_add(&kf->opened, 1);
	return store_open(kf->rig->store, kf->ref, write, out);
}

static int source_size(void *cookie, uint64_t *bytes)
{
	struct kfile *kf = cookie;
	struct store_file *sf;
	struct stat st;

	must(store_open(kf->rig->mem, kf->ref, false, &sf) == 0);
	must(sf->ops->stat(sf, &st) == 0);
	sf->ops->close(sf);
	*bytes = (uint64_t)st.st_size;
	return 0;
}

static void source_release(void *cookie)
{
	struct kfile *kf = cookie;

	atomic_fetch_add(&kf->released, 1);
}

static const struct cfile_source source = {
	.open = source_open, .size = source_size, .release = source_release
};

static const struct cfile_source source_passthrough = {
	.open = source_open, .size = source_size, .release = source_release, .passthrough = true
};

static void store_resize(struct rig *rig, int ref, uint64_t size)
{
	struct store_file *sf;

	must(store_open(rig->mem, ref, true, &sf) == 0);
	must(sf->ops->truncate(sf, (off_t)size) == 0);
	sf->ops->close(sf);
}

struct kfile *kfile_create(struct rig *rig, int ref, uint64_t size)
{
	struct kfile *kf = xcalloc(1, sizeof(*kf));

	kf->rig = rig;
	kf->ref = ref;
	kf->size = size;
	pthread_mutex_init(&kf->lock, NULL);
	pthread_cond_init(&kf->unlocked, NULL);
	store_resize(rig, ref, size);
	if (rig->options.passthrough)
		must(store_open(rig->mem, ref, true, &kf->below) == 0);
	must(cfile_get(rig->cache, (uint64_t)ref, kf->below ? &source_passthrough : &source, kf,
		       &kf->cfile) == 0);
	SLIST_INSERT_HEAD(&rig->files, kf, link);
	return kf;
}

static void close_below(struct kfile *kf)
{
	if (kf->below)
		kf->below->ops->close(kf->below);
	kf->below = NULL;
}

int kfile_writers_leave(struct kfile *kf)
{
	uint64_t stopped = cfile_cpu_stops(kf->cfile);

	return stopped ? cfile_cpu_stopped(kf->cfile, stopped) : 0;
}

int kfile_leave_passthrough(struct kfile *kf)
{
	int err = cfile_leave_passthrough(kf->cfile);

	if (!err)
		close_below(kf);
	return err;
}

static void kfile_free(struct kfile *kf)
{
	struct kpage *p, *tmp;

	close_below(kf);

	HASH_ITER(hh, kf->pages, p, tmp) {
		must(!p->locked);
		HASH_DEL(kf->pages, p);
		free(p);
	}
	pthread_cond_destroy(&kf->unlocked);
	pthread_mutex_destroy(&kf->lock);
	free(kf);
}

/* The daemon ends a file on a thread of its choice: wait for that. */
static void wait_released(struct kfile *kf)
{
	for (unsigned k = 0; atomic_load(&kf->released) == 0; k++) {
		usleep(1000);
		if (k == 60000)
			bug("file %d was not let go of", kf->ref);
	}
	must(atomic_load(&kf->released) == 1);
}

void kfile_forget(struct kfile *kf)
{
	must(kernel_writeback(kf, 0, 0, 256) == 0);
	kernel_reclaim(kf, 0, 0);
	cfile_put(kf->cfile);
	cache_forget(kf->rig->cache, (uint64_t)kf->ref);
}

void kfile_remember(struct kfile *kf)
{
	must(cfile_get(kf->rig->cache, (uint64_t)kf->ref, kf->below ? &source_passthrough : &source, kf, &kf->cfile) == 0);
	/* The cfile was there, and has its reference. */
	must(atomic_fetch_sub(&kf->released, 1) == 1);
}

void kfile_end(struct kfile *kf, bool gone)
{
	struct rig *rig = kf->rig;

	if (!gone)
		must(kernel_writeback(kf, 0, 0, 256) == 0);
	cfile_set_gone(kf->cfile, gone);
	cfile_put(kf->cfile);
	if (!gone)
		must(cache_sync_all(rig->cache, NULL) == 0);
	cache_forget(rig->cache, (uint64_t)kf->ref);
	wait_released(kf);
	SLIST_REMOVE(&rig->files, kf, kfile, link);
	kfile_free(kf);
}

size_t store_peek(struct kfile *kf, void *buf, size_t len, uint64_t off)
{
	struct iovec iov = { buf, len };
	struct store_file *sf;
	ssize_t n;

	must(store_open(kf->rig->mem, kf->ref, false, &sf) == 0);
	n = sf->ops->read(sf, &iov, 1, (off_t)off);
	must(n >= 0);
	memset((char *)buf + n, 0, len - (size_t)n);
	sf->ops->close(sf);
	return (size_t)n;
}

/* ---- clients ---- */

/* A message by which a client was given chunks. */
struct handover {
	struct client *client;
	unsigned nth, n;
	uint64_t idx[GAIA_MSG_CHUNKS];
	unsigned chunks[GAIA_MSG_CHUNKS];
};

static int host_grant(void *arg, uint64_t map, unsigned prot, const uint64_t *idx, const int *fd,
		      const unsigned *chunks, unsigned n, uint64_t *seq, struct handover **answer)
{
	struct client *cl = arg;
	bool alive = atomic_load(&cl->alive);
	struct rig *rig = cl->rig;
	int rw = prot & GAIA_PROT_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
	unsigned given = 0; /* chunks */

	for (unsigned k = 0; k < n; k++) {
		must(chunks[k] == 1 || idx[k] % GAIA_EXTENT_CHUNKS == 0);
		must(idx[k] + chunks[k] <= cl->room);
		if (alive) {
			char *p = mmap(NULL, chunks[k] * (size_t)GAIA_CHUNK, rw, MAP_SHARED, fd[k], 0);

			must(p != MAP_FAILED);
			pthread_mutex_lock(&cl->lock);
			for (unsigned i = 0; i < chunks[k]; i++) {
				must(!cl->chunk[idx[k] + i]);
				cl->chunk[idx[k] + i] = (unsigned char *)p + i * (size_t)GAIA_CHUNK;
			}
			pthread_mutex_unlock(&cl->lock);
		}
		close(fd[k]);
		given += chunks[k];
	}
	*seq = atomic_fetch_add(&cl->granted, given) + given;
	atomic_fetch_add(&cl->descriptors, n);
	*answer = xmalloc(sizeof(**answer));
	**answer = (struct handover){ .client = cl, .nth = atomic_fetch_add(&cl->messages, 1), .n = n };
	memcpy((*answer)->idx, idx, n * sizeof(*idx));
	memcpy((*answer)->chunks, chunks, n * sizeof(*chunks));
	if (rig->after_grant)
		rig->after_grant(rig->arg, cl, idx[0]);
	if (!alive)
		free(*answer);
	return alive ? 0 : -ENOTCONN;
}

static void unmap_chunk(struct client *cl, uint64_t idx)
{
	pthread_mutex_lock(&cl->lock);
	if (cl->chunk[idx])
		munmap(cl->chunk[idx], GAIA_CHUNK);
	cl->chunk[idx] = NULL;
	pthread_mutex_unlock(&cl->lock);
}

static int host_granted(struct handover *answer)
{
	struct client *cl = answer->client;
	int err = 0;

	if (cl->rig->before_answer)
		err = cl->rig->before_answer(cl->rig->arg, cl, answer->nth);
	for (unsigned k = 0; k < answer->n && err; k++)
		for (unsigned i = 0; i < answer->chunks[k]; i++)
			unmap_chunk(cl, answer->idx[k] + i);
	free(answer);
	return err;
}

static int host_revoke(void *arg, uint64_t map, uint64_t idx)
{
	struct client *cl = arg;
	void (*before)(void *, struct client *, uint64_t) = atomic_load(&cl->rig->before_revoke);

	must(idx < cl->room);
	atomic_fetch_add(&cl->revoked, 1);
	if (before)
		before(cl->rig->arg, cl, idx);
	if (cl->hoards)
		atomic_store(&cl->alive, false);
	else
		unmap_chunk(cl, idx);
	return atomic_load(&cl->alive) ? 0 : -ENOTCONN;
}

static void host_revoke_many(struct cache_revoke *list, unsigned n)
{
	atomic_fetch_add(&((struct client *)list[0].client)->rig->asked, 1);
	for (unsigned i = 0; i < n; i++)
		list[i].err = host_revoke(list[i].client, list[i].map, list[i].idx);
}

struct revoking {
	struct rig *rig;
	struct cache_revoke *list;
	unsigned n;
};

static bool is_late(const struct client *cl)
{
	return cl->rig->late && cl->rig->late(cl->rig->arg, cl);
}

/* Time does not pass here: a client has answered, or is late. */
static struct revoking *host_revoke_more(struct revoking *r, uint64_t end)
{
	unsigned pending = 0;

	(void)end;
	atomic_fetch_add(&r->rig->looks, 1);
	for (unsigned i = 0; i < r->n; i++) {
		struct cache_revoke *ask = &r->list[i];

		if (ask->err != -EINPROGRESS)
			continue;
		if (is_late(ask->client))
			pending++;
		else
			ask->err = host_revoke(ask->client, ask->map, ask->idx);
	}
	if (pending > 0) {
		usleep(1000);
		return r;
	}
	free(r);
	return NULL;
}

static struct revoking *host_revoke_soon(struct cache_revoke *list, unsigned n, uint64_t end)
{
	struct revoking *r = xcalloc(1, sizeof(*r));

	atomic_fetch_add(&((struct client *)list[0].client)->rig->asked, 1);
	*r = (struct revoking){ ((struct client *)list[0].client)->rig, list, n };
	for (unsigned i = 0; i < n; i++)
		list[i].err = -EINPROGRESS;
	return host_revoke_more(r, end);
}

static bool host_alive(void *arg)
{
	struct client *cl = arg;

	return atomic_load(&cl->alive);
}

/* The rig's, where it is, is the first one; the next address is the second one's. */
static struct rig *rig_of(const struct cache_process *process, unsigned *second)
{
	*second = process->id % sizeof(struct rig *);
	return (struct rig *)(uintptr_t)(process->id - *second);
}

static bool host_process(void *arg, struct cache_process *out)
{
	struct client *cl = arg;

	atomic_fetch_add(&cl->rig->processes_looked_up, 1);
	if (!cl->hoards || !atomic_load(&cl->rig->hoarders_live[cl->second]))
		return false;
	*out = (struct cache_process){ .id = (uintptr_t)cl->rig + cl->second };
	return true;
}

static bool host_process_lives(const struct cache_process *process)
{
	unsigned second;
	struct rig *rig = rig_of(process, &second);

	atomic_fetch_add(&rig->processes_asked, 1);
	(void)fault_point("host.process_lives");
	return atomic_load(&rig->hoarders_live[second]);
}

static void host_invalidate(void *arg, void *cookie, off_t off, off_t len)
{
	struct kfile *kf = cookie;
	struct rig *rig = arg;

	if (rig->before_invalidate)
		rig->before_invalidate(rig->arg, kf, off, len);
	kernel_invalidate(kf, (uint64_t)off, (uint64_t)len);
}

static bool rig_detects(const struct rig *rig)
{
	const char *env = getenv("GAIA_TEST_DETECT");

	return rig->options.detects || (env && !strcmp(env, "client"));
}

unsigned rig_number(const struct rig *rig, unsigned device)
{
	return rig->options.host && device >= rig->options.devices ? GAIA_HOST : device;
}

struct client *client_create(struct kfile *kf, unsigned device, unsigned prot, uint64_t length)
{
	struct client *cl = xcalloc(1, sizeof(*cl));
	bool may_write = (prot & GAIA_PROT_WRITE) || kf->rig->options.readers_may_write;
	struct cache_user user = kf->rig->user;

	cl->rig = kf->rig;
	cl->kf = kf;
	cl->device = device;
	cl->prot = prot;
	cl->n_chunks = (length + GAIA_CHUNK - 1) / GAIA_CHUNK;
	cl->room = ROUND_UP(cl->n_chunks, GAIA_EXTENT_CHUNKS);
	cl->chunk = xcalloc(cl->room, sizeof(*cl->chunk));
	atomic_init(&cl->alive, true);
	pthread_mutex_init(&cl->lock, NULL);
	user.extents = !kf->rig->old_clients;
	must(cache_map(kf->cfile, rig_number(kf->rig, device), cl, user, 1, prot, may_write, 0, length, &cl->mapping) == 0);
	if (prot & GAIA_PROT_WRITE && rig_detects(cl->rig)) {
		cache_map_detects(cl->mapping);
		cl->detect = rig_detect_make(cl->n_chunks * GAIA_CHUNK_PAGES);
	}
	if (!kf->rig->options.reads_ahead)
		must(readahead_advise(cl->mapping, (struct page_span){ 0, (length + GAIA_PAGE - 1) / GAIA_PAGE }, GAIA_ADVISE_RANDOM) == 0);
	pthread_mutex_lock(&cl->rig->lock);
	SLIST_INSERT_HEAD(&cl->rig->clients, cl, link);
	pthread_mutex_unlock(&cl->rig->lock);
	return cl;
}

void client_die(struct client *cl)
{
	atomic_store(&cl->alive, false);
	for (uint64_t k = 0; k < cl->room; k++)
		unmap_chunk(cl, k);
}

void client_end(struct client *cl)
{
	for (uint64_t k = 0; k < cl->room; k++)
		unmap_chunk(cl, k);
	cache_unmap(cl->mapping, cl->kept ? CACHE_KEPT : atomic_load(&cl->alive) ? CACHE_UNMAPPED : CACHE_ENDED);
	must(atomic_load(&cl->spans) == 0);
	pthread_mutex_lock(&cl->rig->lock);
	SLIST_REMOVE(&cl->rig->clients, cl, client, link);
	pthread_mutex_unlock(&cl->rig->lock);
	pthread_mutex_destroy(&cl->lock);
	if (cl->detect)
		rig_detect_free(cl->detect);
	free(cl->chunk);
	free(cl);
}

void client_push(struct client *cl, uint64_t off, uint64_t len)
{
	uint64_t size = ksize(cl->kf);

	if (len > 0)
		must(kernel_writeback(cl->kf, off, len, 256) == 0);
	/* The page that says where the file ends: the daemon learns its size by it. */
	if (size > cfile_size(cl->kf->cfile))
		must(kernel_writeback(cl->kf, size - 1, 1, 1) == 0);
}

int client_acquire(struct client *cl, uint64_t off, uint64_t len, unsigned prot)
{
	uint64_t seq, a = off / GAIA_PAGE, b = len > 0 ? MIN((off + len - 1) / GAIA_PAGE + 1, cl->n_chunks * GAIA_CHUNK_PAGES) : a;
	int err;

	client_push(cl, off, len);
	if (cl->detect)
		rig_detect_begin(cl, a, b, prot);
	err = cache_acquire(cl->mapping, off, len, prot, &seq, NULL);
	if (cl->detect)
		rig_detect_end(cl, a, b, prot, err);
	return err;
}

int client_release(struct client *cl, uint64_t off, uint64_t len)
{
	client_push(cl, off, len);
	if (cl->detect)
		return rig_detect_release(cl, off, len);
	return cache_release(cl->mapping, off, len, NULL);
}

unsigned char *client_at(struct client *cl, uint64_t off)
{
	unsigned char *p;

	must(off / GAIA_CHUNK < cl->n_chunks);
	pthread_mutex_lock(&cl->lock);
	p = cl->chunk[off / GAIA_CHUNK];
	pthread_mutex_unlock(&cl->lock);
	return p ? p + off % GAIA_CHUNK : NULL;
}

void client_load(struct client *cl, void *buf, size_t len, uint64_t off)
{
	size_t n;

	for (; len > 0; len -= n, off += n) {
		n = MIN(len, GAIA_CHUNK - off % GAIA_CHUNK);
		must(client_at(cl, off));
		memcpy(buf, client_at(cl, off), n);
		buf = (char *)buf + n;
	}
}

void client_store(struct client *cl, const void *buf, size_t len, uint64_t off)
{
	size_t n;

	for (; len > 0; len -= n, off += n) {
		n = MIN(len, GAIA_CHUNK - off % GAIA_CHUNK);
		must(client_at(cl, off));
		memcpy(client_at(cl, off), buf, n);
		buf = (const char *)buf + n;
	}
}

/* ---- the whole ---- */

static int host_spans(void *arg, int blocks)
{
	struct client *cl = arg;
	int has = (int)atomic_load(&cl->spans);

	must(has + blocks >= 0);
	if (blocks > 0 && cl->spans_allowed && has + blocks > (int)cl->spans_allowed)
		return -EMFILE;
	atomic_fetch_add(&cl->spans, (unsigned)blocks);
	return 0;
}

static const struct cache_host host = {
	.invalidate = host_invalidate,
	.grant = host_grant,
	.granted = host_granted,
	.revoke = host_revoke,
	.revoke_many = host_revoke_many,
	.revoke_soon = host_revoke_soon,
	.revoke_more = host_revoke_more,
	.alive = host_alive,
	.process = host_process,
	.process_lives = host_process_lives,
	.spans = host_spans,
};

#ifdef RIG_CUDA
/* The CUDA device on a fake driver, with room for its tables; long runs are the copy engine's. */
static struct device *new_device(const struct rig_options *options, unsigned index)
{
	unsigned chunks = options->device_chunks ? options->device_chunks : 8;
	struct cuda_config config = { .index = index, .capacity = chunks * (uint64_t)GAIA_CHUNK };
	struct device *cuda, *dev;

	if (index == 0) {
		fake_cuda_reset(&(struct fake_cuda_config){
			.n_devices = options->devices + options->added,
			.memory = config.capacity + 8 * (uint64_t)GAIA_CHUNK,
			.no_peers = options->no_peers,
		});
		must(fake_cuda_api()->cuInit(0) == CUDA_SUCCESS);
	}
	must(cuda_create(fake_cuda_api(), &config, 8 * GAIA_PAGE, &cuda) == 0);
	must(device_faulty_create(cuda, &dev) == 0);
	return dev;
}

static void check_devices(void)
{
	must(!fake_cuda_violation());
	must(fake_cuda_alive(true) == 0);
}

bool rig_importers_gone(void)
{
	fake_cuda_importers_gone();
	return true;
}
#else
static void check_devices(void)
{
}

bool rig_importers_gone(void)
{
	return false;
}

static struct device *new_device(const struct rig_options *options, unsigned index)
{
	struct sim_config config = {
		.index = index,
		.capacity = (options->device_chunks ? options->device_chunks : 8) *
			    (uint64_t)GAIA_CHUNK,
		.latency_ns = options->latency_ns,
		.no_peers = options->no_peers,
		.no_readonly = options->always_writable,
	};
	struct device *sim, *dev;

	must(device_sim_create(&config, &sim) == 0);
	must(device_faulty_create(sim, &dev) == 0);
	return dev;
}
#endif

static struct device *new_host(const struct rig_options *options)
{
	struct device *host_device, *dev;

	must(device_host_create((options->host_chunks ? options->host_chunks : 8) * (uint64_t)GAIA_CHUNK, &host_device) == 0);
	must(device_faulty_create(host_device, &dev) == 0);
	return dev;
}

struct rig *rig_create(const struct rig_options *options)
{
	struct rig *rig = xcalloc(1, sizeof(*rig));
	struct device *dev[CACHE_MAX_DEVICES];
	uint64_t device_cache[CACHE_MAX_DEVICES] = { 0 };
	struct cache_config config = {
		.device_cache = device_cache,
		.dedup = options->dedup,
		.home_bytes = options->home_bytes ? options->home_bytes : 64ull << 20,
		.devices = dev,
		.n_devices = options->devices,
		.writeback_age_ms = options->age_ms ? options->age_ms : 3600000,
		.device_age_ms = options->device_age_ms ? options->device_age_ms : 3600000,
		.files_percent = options->files_percent ? options->files_percent : 50,
		.files_user_percent = options->files_user_percent,
		.host = &host,
		.host_arg = rig,
	};

	rig->options = *options;
	rig->user.owner = true;
	atomic_init(&rig->hoarders_live[0], true);
	atomic_init(&rig->hoarders_live[1], true);
	pthread_mutex_init(&rig->lock, NULL);
	for (unsigned k = 0; k < options->devices; k++) {
		dev[k] = new_device(options, k);
		device_cache[k] = options->device_cache;
	}
	config.local = options->host ? new_host(options) : NULL;
	must(store_mem_create(&rig->mem) == 0);
	must(store_faulty_create(rig->mem, &rig->store) == 0);
	must(cache_create(&config, &rig->cache) == 0);
	return rig;
}

void rig_destroy(struct rig *rig)
{
	struct client *cl;
	struct kfile *kf;

	fault_disarm_all();
	while ((cl = SLIST_FIRST(&rig->clients)))
		client_end(cl);
	SLIST_FOREACH(kf, &rig->files, link)
		for (unsigned k = 0; k < rig->options.devices; k++)
			(void)cache_unpin(kf->cfile, k, (struct cache_user){ .owner = true });
	while ((kf = SLIST_FIRST(&rig->files)))
		kfile_end(kf, false);
	cache_check(rig->cache);
	must(rig_frames(rig) == 0);
	for (unsigned k = 0; k < rig->options.devices; k++)
		must(rig_device_used(rig, k) == 0);
	must(!rig->options.host || rig_device_used(rig, rig->options.devices) == 0);
	cache_destroy(rig->cache);
	check_devices();
	rig->store->ops->destroy(rig->store);
	pthread_mutex_destroy(&rig->lock);
	free(rig);
}

uint64_t rig_frames(struct rig *rig)
{
	return atomic_load(&rig->cache->frames.used);
}

void rig_readahead(struct rig *rig)
{
	while (atomic_load(&rig->cache->n_readahead) > 0)
		usleep(100);
}

unsigned rig_add_device(struct rig *rig)
{
	must(rig->options.added > 0);
	must(cache_add_device(rig->cache, new_device(&rig->options, rig->options.devices)) == 0);
	rig->options.added--;
	return rig->options.devices++;
}

uint64_t rig_device_used(struct rig *rig, unsigned device)
{
	struct cache_device_use use;

	cache_device(rig->cache, rig_number(rig, device), &use);
	return use.used;
}
