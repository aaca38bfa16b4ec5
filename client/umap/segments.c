/*
 * segments.c - the files and stores that regions are made of.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* ---- threads that are in a function of a store ---- */

struct inside {
	uint32_t tid;
	LIST_ENTRY(inside) link;
};

static LIST_HEAD(, inside) insiders = LIST_HEAD_INITIALIZER(insiders);
static pthread_mutex_t insiders_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread unsigned depth;

static void enter_store(struct inside *i)
{
	depth++;
	i->tid = gettid();
	pthread_mutex_lock(&insiders_lock);
	LIST_INSERT_HEAD(&insiders, i, link);
	pthread_mutex_unlock(&insiders_lock);
}

static void leave_store(struct inside *i)
{
	pthread_mutex_lock(&insiders_lock);
	LIST_REMOVE(i, link);
	pthread_mutex_unlock(&insiders_lock);
	depth--;
}

bool umap_in_store(void)
{
	return depth;
}

bool umap_thread_in_store(uint32_t tid)
{
	struct inside *i;

	pthread_mutex_lock(&insiders_lock);
	LIST_FOREACH(i, &insiders, link)
		if (i->tid == tid)
			break;
	pthread_mutex_unlock(&insiders_lock);
	return i;
}

/* ---- files, each once ---- */

#define BUCKETS 256
static LIST_HEAD(bucket, umap_file) files[BUCKETS];	/* process.lock */

static void close_file(struct umap_file *f)
{
	close(f->fd);
	if (f->direct >= 0)
		close(f->direct);
	free(f);
}

static void put_file(struct umap_file *f)
{
	pthread_mutex_lock(&umap.lock);
	if (--f->refs) {
		f = NULL;
	} else {
		LIST_REMOVE(f, link);
	}
	pthread_mutex_unlock(&umap.lock);
	if (f)
		close_file(f);
}

/* A file that is open already, referenced, or NULL: one without O_APPEND, or with the same flags. process.lock is held. */
static struct umap_file *find_file(const struct stat *st, int access)
{
	struct umap_file *f;

	LIST_FOREACH(f, &files[(st->st_ino ^ st->st_dev) % BUCKETS], link)
		if (f->dev == st->st_dev && f->ino == st->st_ino && (f->access == (access & ~O_APPEND) || f->access == access))
			break;
	if (f)
		f->refs++;
	return f;
}

/* -1 if it is another file by now. */
static int open_again(const char *path, int access, const struct stat *st)
{
	int fd = open(path, access | O_CLOEXEC);
	struct stat now;

	if (fd >= 0 && (fstat(fd, &now) || now.st_dev != st->st_dev || now.st_ino != st->st_ino)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* An open file of our own, as flags that others set, like O_APPEND, would be ours too; where that is refused, a duplicate. */
static int open_file(int fd, int access, const struct stat *st, struct umap_file **out)
{
	struct umap_file *f = calloc(1, sizeof(*f));
	char path[40];
	int err;

	if (!f)
		return -ENOMEM;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	f->access = access & ~O_APPEND;
	f->fd = open(path, (access & O_ACCMODE) | O_CLOEXEC);
	/* Where this is refused nothing is lost but time. */
	f->direct = f->fd >= 0 && access & O_DIRECT ? open_again(path, f->access, st) : -1;
	if (f->fd < 0) {
		f->access = access;
		f->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		f->direct = f->fd >= 0 && access & O_DIRECT ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
	}
	if (f->fd < 0) {
		err = -errno;
		free(f);
		return err;
	}
	f->dev = st->st_dev;
	f->ino = st->st_ino;
	f->block = S_ISBLK(st->st_mode);
	f->refs = 1;
	*out = f;
	return 0;
}

static int get_file(int fd, bool writable, struct umap_file **out)
{
	int access = fcntl(fd, F_GETFL), err;
	struct umap_file *f, *mine = NULL;
	struct stat st;

	if (access < 0 || fstat(fd, &st))
		return -errno;
	if (access & O_PATH)
		return -EBADF;
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return -ENODEV;
	access &= O_ACCMODE | O_APPEND | O_DIRECT;
	if ((access & O_ACCMODE) == O_WRONLY || (writable && (access & O_ACCMODE) != O_RDWR))
		return -EACCES;
	pthread_mutex_lock(&umap.lock);
	f = find_file(&st, access);
	pthread_mutex_unlock(&umap.lock);
	if (!f) {
		err = open_file(fd, access, &st, &mine);
		if (err)
			return err;
		pthread_mutex_lock(&umap.lock);
		f = find_file(&st, access);
		if (!f) {
			f = mine;
			mine = NULL;
			LIST_INSERT_HEAD(&files[(st.st_ino ^ st.st_dev) % BUCKETS], f, link);
		}
		pthread_mutex_unlock(&umap.lock);
		if (mine)
			close_file(mine);
	}
	/* A duplicate. pwrite(2) would write at its end; and nothing but whole pages. */
	if (writable && fcntl(f->fd, F_GETFL) & (O_APPEND | O_DIRECT)) {
		put_file(f);
		return -EINVAL;
	}
	*out = f;
	return 0;
}

/* In a child of fork(): nothing uses them any more. */
void umap_files_forget(void)
{
	struct umap_file *f;

	for (unsigned i = 0; i < BUCKETS; i++)
		while ((f = LIST_FIRST(&files[i]))) {
			LIST_REMOVE(f, link);
			close_file(f);
		}
	LIST_INIT(&insiders);
	pthread_mutex_init(&insiders_lock, NULL);
}

/* ---- segments ---- */

/* The end of the segment's file or store, in bytes. UINT64_MAX: it has none. */
static int store_end(const struct umap_segment *s, uint64_t *end)
{
	struct stat st;
	int err;

	if (!s->file) {
		struct inside in;

		*end = UINT64_MAX;
		if (!s->store.length)
			return 0;
		enter_store(&in);
		err = s->store.length(s->store.arg, end);
		leave_store(&in);
		return err > 0 ? -EIO : err;
	}
	if (s->file->block)
		return ioctl(s->file->fd, BLKGETSIZE64, end) ? -errno : 0;
	if (fstat(s->file->fd, &st))
		return -errno;
	*end = st.st_size;
	return 0;
}

static int open_segment(struct umap_segment *s, const struct gaia_umap_segment *from, bool writable)
{
	uint64_t end;
	int err;

	if (from->reserved)
		return -EINVAL;
	s->offset = from->offset;
	s->length = from->length;
	if (from->store) {
		if (from->store->size < sizeof(s->store) || !from->store->read)
			return -EINVAL;
		if (writable && !from->store->write)
			return -EACCES;
		s->store = *from->store;
	} else {
		err = get_file(from->fd, writable, &s->file);
		if (err)
			return err;
	}
	if (!s->length) {
		err = store_end(s, &end);
		if (err)
			return err;
		if (end == UINT64_MAX || end <= s->offset)
			return -EINVAL;
		s->length = end - s->offset;
	}
	/* Files have no bytes where off_t ends. */
	if (s->length > INT64_MAX || s->offset > INT64_MAX - s->length)
		return -EINVAL;
	return 0;
}

/* On failure the caller closes what there is. */
int umap_segments_open(struct umap_region *r, const struct gaia_umap_config *c)
{
	uint64_t length = 0;
	int err;

	if (!c->n_segments || !c->segments)
		return -EINVAL;
	r->unit = BLOCK;
	r->segments = calloc(c->n_segments, sizeof(r->segments[0]));
	if (!r->segments)
		return -ENOMEM;
	for (size_t i = 0; i < c->n_segments; i++) {
		r->n_segments++;
		err = open_segment(&r->segments[i], &c->segments[i], r->writable);
		if (err)
			return err;
		r->segments[i].start = length;
		if (r->segments[i].file && r->segments[i].file->direct < 0)
			r->is_quick = true;
		else
			r->unit = MAX_RUN;
		length += r->segments[i].length;
		if (length > INT64_MAX)
			return -EINVAL;
	}
	if (c->length > length)
		return -EINVAL;
	r->length = c->length ? c->length : length;
	return 0;
}

void umap_segments_close(struct umap_region *r)
{
	for (size_t i = 0; i < r->n_segments; i++)
		if (r->segments[i].file)
			put_file(r->segments[i].file);
	free(r->segments);
	r->segments = NULL;
	r->n_segments = 0;
}

/* The segment that has the byte. */
static struct umap_segment *segment_of(struct umap_region *r, uint64_t at)
{
	size_t low = 0, high = r->n_segments;

	while (high - low > 1) {
		size_t middle = (low + high) / 2;

		if (r->segments[middle].start <= at)
			low = middle;
		else
			high = middle;
	}
	return &r->segments[low];
}

/* ---- bytes ---- */

/* What O_DIRECT asks of offsets, lengths and addresses, at most: no device has larger blocks. */
#define DIRECT 4096ul

static bool may_direct(const struct umap_file *f)
{
	return f->direct >= 0 && !__atomic_load_n(&f->no_direct, __ATOMIC_RELAXED);
}

/* After an error: some file systems cannot do it, or not everywhere. */
static bool refuses_direct(struct umap_file *f)
{
	if (errno != EINVAL && errno != EOPNOTSUPP)
		return false;
	__atomic_store_n(&f->no_direct, true, __ATOMIC_RELAXED);
	return true;
}

/* Of buf there is more than n bytes, up to a multiple of 4 KiB. */
static int read_file(struct umap_file *f, char *buf, uint64_t n, uint64_t offset, bool nowait)
{
	bool direct = may_direct(f) && (uintptr_t)buf % DIRECT == 0;

	if (nowait && direct)
		return -EAGAIN;
	while (n) {
		bool now = direct && offset % DIRECT == 0;
		struct iovec v = { buf, now ? (n + DIRECT - 1) / DIRECT * DIRECT : n };
		ssize_t got = preadv2(now ? f->direct : f->fd, &v, 1, offset, nowait ? RWF_NOWAIT : 0);

		if (nowait && got != (ssize_t)n)
			return -EAGAIN;
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && now && refuses_direct(f)) {
			direct = false;
			continue;
		}
		if (got < 0)
			return -errno;
		if (!got)
			break;
		got = MIN((uint64_t)got, n);
		buf += got;
		n -= got;
		offset += got;
	}
	/* Past the end of the file. */
	memset(buf, 0, n);
	return 0;
}

static int read_store(struct umap_segment *s, char *buf, uint64_t n, uint64_t offset)
{
	struct inside in;
	uint64_t end, there;
	int err = store_end(s, &end);

	if (err)
		return err;
	there = end <= offset ? 0 : MIN(n, end - offset);
	/* What it does not write must not be what was in another page. */
	memset(buf, 0, n);
	if (there) {
		enter_store(&in);
		err = s->store.read(s->store.arg, buf, there, offset);
		leave_store(&in);
	}
	return err > 0 ? -EIO : err;
}

int umap_read(struct umap_region *r, char *buf, uint64_t start, uint64_t n, bool nowait)
{
	uint64_t end = MIN(start + n, r->length);
	int err = 0;

	for (uint64_t at = start; at < end && !err;) {
		struct umap_segment *s = segment_of(r, at);
		uint64_t part = MIN(end, s->start + s->length) - at;

		if (s->file)
			err = read_file(s->file, buf + (at - start), part, s->offset + (at - s->start), nowait);
		else if (nowait)
			err = -EAGAIN;
		else
			err = read_store(s, buf + (at - start), part, s->offset + (at - s->start));
		if (!err || !nowait) {
			__atomic_add_fetch(&r->reads, 1, __ATOMIC_RELAXED);
			__atomic_add_fetch(&r->read_bytes, part, __ATOMIC_RELAXED);
		}
		at += part;
	}
	/* The region's last page may have bytes that nothing stands behind. */
	if (!err && start + n > r->length)
		memset(buf + (r->length - start), 0, start + n - r->length);
	return nowait ? err : umap_foreign(err);
}

/* As pwrite(2), in whole pages past the page cache where that can be. What is stored meanwhile must not change them: some file systems compute sums. */
static ssize_t write_some(struct umap_file *f, char *buf, uint64_t n, uint64_t offset, char *block)
{
	uint64_t part = block && offset % DIRECT == 0 ? MIN(n, MAX_BLOCK) / DIRECT * DIRECT : 0;
	ssize_t put;

	/* Memory that cannot be read is an error of the write, not SIGBUS. */
	if (part && (madvise(buf, part, MADV_POPULATE_READ) && errno != EINVAL))
		part = 0;
	put = part ? pwrite(f->direct, memcpy(block, buf, part), part, offset) : -1;
	if (!part || (put < 0 && refuses_direct(f)))
		put = pwrite(f->fd, buf, n, offset);
	return put;
}

static int write_file(struct umap_file *f, char *buf, uint64_t n, uint64_t offset)
{
	char *block = may_direct(f) ? umap_take_block(MIN(n, MAX_BLOCK)) : NULL;
	int err = 0;

	while (n && !err) {
		ssize_t put = write_some(f, buf, n, offset, block);

		if (put > 0) {
			buf += put;
			n -= put;
			offset += put;
		} else if (put == 0 || errno != EINTR) {
			err = put ? -errno : -EIO;
		}
	}
	if (block)
		umap_give_block(block);
	return err;
}

int umap_write(struct umap_region *r, uint64_t start, uint64_t n)
{
	uint64_t end = MIN(start + n, r->length);
	int err = 0;

	for (uint64_t at = start; at < end && !err;) {
		struct umap_segment *s = segment_of(r, at);
		uint64_t part = MIN(end, s->start + s->length) - at, offset = s->offset + (at - s->start), limit;

		/* Never longer than it is (until a truncation between this and the write). */
		err = store_end(s, &limit);
		if (!err && limit > offset) {
			uint64_t bytes = MIN(part, limit - offset);
			struct inside in;

			if (s->file) {
				err = write_file(s->file, r->desk + at, bytes, offset);
			} else {
				enter_store(&in);
				err = s->store.write(s->store.arg, r->desk + at, bytes, offset);
				leave_store(&in);
			}
			if (err > 0)
				err = -EIO;
			__atomic_add_fetch(&r->writes, 1, __ATOMIC_RELAXED);
			if (!err)
				__atomic_add_fetch(&r->written_bytes, bytes, __ATOMIC_RELAXED);
		}
		at += part;
	}
	return err;
}

int umap_sync(struct umap_region *r)
{
	int err = 0;

	for (size_t i = 0; i < r->n_segments; i++) {
		struct umap_segment *s = &r->segments[i];
		struct inside in;
		int failed = 0;

		if (s->file) {
			/* The same file several times in a row is one. */
			if (i && r->segments[i - 1].file == s->file)
				continue;
			failed = fdatasync(s->file->fd) ? -errno : 0;
		} else if (s->store.sync) {
			enter_store(&in);
			failed = s->store.sync(s->store.arg);
			leave_store(&in);
		}
		err = err ? err : failed;
	}
	return err > 0 ? -EIO : err;
}
