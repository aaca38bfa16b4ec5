/*
 * mem.c - a store that keeps files in memory, for tests.
 *
 * A file is a number; it lives from its first open to the end of the store. Its
 * contents are the pages that were written; pages that are missing are holes.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uthash.h>

#include "base/util.h"
#include "gaia/protocol.h"
#include "store/store.h"

struct mem_page {
	uint64_t index; /* in the file; constant */
	char bytes[GAIA_PAGE];
};

/* Lives from the first open of its number to the end of the store. */
struct mem_inode {
	/* Constant after creation. */
	int ref;
	UT_hash_handle hh; /* store->lock */

	pthread_mutex_t lock;

	/* lock. */
	off_t size;
	struct mem_page **pages; /* by index, rising; none lies beyond the size */
	size_t n, room;
	struct timespec atime, mtime, ctime;
	uid_t owner;
	mode_t mode;
};

struct mem_store {
	struct store base;
	pthread_mutex_t lock;
	struct mem_inode *inodes; /* lock */
};

/* Lives from open() to close(); constant in between. */
struct mem_file {
	struct store_file base;
	struct mem_inode *inode;
};

static struct mem_inode *inode_of(struct store_file *file)
{
	return container_of(file, struct mem_file, base)->inode;
}

/* All functions from here to the operations are called with the inode's lock held. */

static void touch(struct mem_inode *ino)
{
	clock_gettime(CLOCK_REALTIME, &ino->mtime);
	ino->ctime = ino->mtime;
}

/* Position of the first page that is not before @index. */
static size_t lower_bound(const struct mem_inode *ino, uint64_t index)
{
	size_t lo = 0, hi = ino->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (ino->pages[mid]->index < index)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static struct mem_page *find_page(const struct mem_inode *ino, uint64_t index)
{
	size_t at = lower_bound(ino, index);

	return at < ino->n && ino->pages[at]->index == index ? ino->pages[at] : NULL;
}

/* The page, new if need be. NULL: there is no memory. */
static struct mem_page *make_page(struct mem_inode *ino, uint64_t index)
{
	size_t at = lower_bound(ino, index);
	struct mem_page *page;

	if (at < ino->n && ino->pages[at]->index == index)
		return ino->pages[at];
	if (ino->n == ino->room) {
		size_t room = MAX(16, 2 * ino->room);
		struct mem_page **pages = realloc(ino->pages, room * sizeof(*pages));

		if (!pages)
			return NULL;
		ino->pages = pages;
		ino->room = room;
	}
	page = calloc(1, sizeof(*page));
	if (!page)
		return NULL;
	page->index = index;
	memmove(&ino->pages[at + 1], &ino->pages[at], (ino->n - at) * sizeof(*ino->pages));
	ino->pages[at] = page;
	ino->n++;
	return page;
}

/* Make the pages from @first to before @end holes. */
static void drop_pages(struct mem_inode *ino, uint64_t first, uint64_t end)
{
	size_t from = lower_bound(ino, first);
	size_t to = lower_bound(ino, end);

	if (from >= to)
		return;
	for (size_t i = from; i < to; i++)
		free(ino->pages[i]);
	memmove(&ino->pages[from], &ino->pages[to], (ino->n - to) * sizeof(*ino->pages));
	ino->n -= to - from;
}

/* Zero bytes that are all in one page. */
static void zero_within_page(struct mem_inode *ino, off_t off, size_t len)
{
	struct mem_page *page = find_page(ino, (uint64_t)off / GAIA_PAGE);

	if (page)
		memset(page->bytes + (uint64_t)off % GAIA_PAGE, 0, len);
}

/* Bytes from @off to before @end become zeros, and holes where they are whole pages. */
static void zero_range(struct mem_inode *ino, off_t off, off_t end)
{
	/* off_t has no room to round up its last page. */
	uint64_t first = ((uint64_t)off + GAIA_PAGE - 1) / GAIA_PAGE;
	uint64_t last = (uint64_t)end / GAIA_PAGE;

	if (first > last) {
		zero_within_page(ino, off, (size_t)(end - off));
		return;
	}
	if ((uint64_t)off % GAIA_PAGE)
		zero_within_page(ino, off, GAIA_PAGE - (uint64_t)off % GAIA_PAGE);
	if ((uint64_t)end % GAIA_PAGE)
		zero_within_page(ino, (off_t)(last * GAIA_PAGE), (uint64_t)end % GAIA_PAGE);
	drop_pages(ino, first, last);
}

static void read_bytes(const struct mem_inode *ino, char *to, size_t len, off_t off)
{
	while (len > 0) {
		size_t within = (uint64_t)off % GAIA_PAGE;
		size_t part = MIN(len, GAIA_PAGE - within);
		struct mem_page *page = find_page(ino, (uint64_t)off / GAIA_PAGE);

		if (page)
			memcpy(to, page->bytes + within, part);
		else
			memset(to, 0, part);
		to += part;
		off += (off_t)part;
		len -= part;
	}
}

/* 0, or -ENOMEM, and then a part is written. */
static int write_bytes(struct mem_inode *ino, const char *from, size_t len, off_t off)
{
	while (len > 0) {
		size_t within = (uint64_t)off % GAIA_PAGE;
		size_t part = MIN(len, GAIA_PAGE - within);
		struct mem_page *page = make_page(ino, (uint64_t)off / GAIA_PAGE);

		if (!page)
			return -ENOMEM;
		memcpy(page->bytes + within, from, part);
		from += part;
		off += (off_t)part;
		len -= part;
		ino->size = MAX(ino->size, off);
	}
	return 0;
}

/* The operations. */

static ssize_t mem_read(struct store_file *file, const struct iovec *iov, int n, off_t off)
{
	struct mem_inode *ino = inode_of(file);
	size_t total = 0;

	pthread_mutex_lock(&ino->lock);
	for (int i = 0; i < n && off < ino->size; i++) {
		size_t len = MIN(iov[i].iov_len, (uint64_t)(ino->size - off));

		read_bytes(ino, iov[i].iov_base, len, off);
		off += (off_t)len;
		total += len;
	}
	pthread_mutex_unlock(&ino->lock);
	return (ssize_t)total;
}

/* The buffers are filled in read_end(). Until then they hold garbage, so that code that uses them too early is found out. */
static void mem_read_begin(struct store_file *file, struct store_read *rd)
{
	for (int i = 0; i < rd->n; i++)
		memset(rd->iov[i].iov_base, 0xa5, rd->iov[i].iov_len);
	rd->state = file;
	rd->at_end = true;
}

static ssize_t mem_read_end(struct store_file *file, struct store_read *rd)
{
	return mem_read(file, rd->iov, rd->n, rd->off);
}

static int mem_write(struct store_file *file, const struct iovec *iov, int n, off_t off)
{
	struct mem_inode *ino = inode_of(file);
	int err = 0;

	if (!file->writable)
		return -EBADF;
	pthread_mutex_lock(&ino->lock);
	for (int i = 0; i < n && !err; i++) {
		err = write_bytes(ino, iov[i].iov_base, iov[i].iov_len, off);
		off += (off_t)iov[i].iov_len;
	}
	touch(ino);
	pthread_mutex_unlock(&ino->lock);
	return err;
}

/* Memory cannot be more stable than it is. */
static int mem_sync(struct store_file *file, bool data_only)
{
	return 0;
}

static int mem_truncate(struct store_file *file, off_t size)
{
	struct mem_inode *ino = inode_of(file);

	if (!file->writable)
		return -EBADF;
	if (size < 0)
		return -EINVAL;
	pthread_mutex_lock(&ino->lock);
	if (size < ino->size)
		zero_range(ino, size, ino->size);
	/* Of the page that contained the old end, zero_range() has only zeroed bytes: now it goes, too. */
	drop_pages(ino, ((uint64_t)size + GAIA_PAGE - 1) / GAIA_PAGE, UINT64_MAX);
	ino->size = size;
	touch(ino);
	pthread_mutex_unlock(&ino->lock);
	return 0;
}

static int mem_allocate(struct store_file *file, int mode, off_t off, off_t len)
{
	struct mem_inode *ino = inode_of(file);
	off_t end;

	if (off < 0 || len <= 0)
		return -EINVAL;
	switch (mode) {
	case 0:
	case FALLOC_FL_KEEP_SIZE:
	case FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE:
	case FALLOC_FL_ZERO_RANGE:
	case FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE:
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (!file->writable)
		return -EBADF;
	if (__builtin_add_overflow(off, len, &end))
		return -EFBIG;
	pthread_mutex_lock(&ino->lock);
	if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		zero_range(ino, off, end);
	/* Nothing is set aside: memory cannot promise that it will be there. */
	if (!(mode & FALLOC_FL_KEEP_SIZE))
		ino->size = MAX(ino->size, end);
	touch(ino);
	pthread_mutex_unlock(&ino->lock);
	return 0;
}

static off_t mem_seek(struct store_file *file, off_t off, int whence)
{
	struct mem_inode *ino = inode_of(file);
	off_t found = -ENXIO;
	uint64_t index = (uint64_t)off / GAIA_PAGE;
	size_t at;

	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		return -EINVAL;
	pthread_mutex_lock(&ino->lock);
	if (off < 0 || off >= ino->size)
		goto unlock;
	at = lower_bound(ino, index);
	if (whence == SEEK_DATA) {
		if (at < ino->n)
			found = MAX(off, (off_t)(ino->pages[at]->index * GAIA_PAGE));
	} else {
		for (; at < ino->n && ino->pages[at]->index == index; at++)
			index++;
		found = MIN(MAX(off, (off_t)(index * GAIA_PAGE)), ino->size);
	}
unlock:
	pthread_mutex_unlock(&ino->lock);
	return found;
}

static int mem_stat(struct store_file *file, struct stat *out)
{
	struct mem_inode *ino = inode_of(file);

	memset(out, 0, sizeof(*out));
	out->st_ino = (ino_t)ino->ref;
	out->st_mode = S_IFREG | 0600;
	out->st_nlink = 1;
	out->st_blksize = GAIA_PAGE;
	pthread_mutex_lock(&ino->lock);
	out->st_size = ino->size;
	out->st_uid = ino->owner;
	out->st_mode |= ino->mode;
	out->st_blocks = (blkcnt_t)(ino->n * (GAIA_PAGE / 512));
	out->st_atim = ino->atime;
	out->st_mtim = ino->mtime;
	out->st_ctim = ino->ctime;
	pthread_mutex_unlock(&ino->lock);
	return 0;
}

static int mem_utimens(struct store_file *file, const struct timespec ts[2])
{
	struct mem_inode *ino = inode_of(file);
	struct timespec now;

	for (int i = 0; ts && i < 2; i++)
		if (ts[i].tv_nsec != UTIME_NOW && ts[i].tv_nsec != UTIME_OMIT &&
		    (ts[i].tv_nsec < 0 || ts[i].tv_nsec > 999999999))
			return -EINVAL;
	clock_gettime(CLOCK_REALTIME, &now);
	pthread_mutex_lock(&ino->lock);
	if (!ts || ts[0].tv_nsec == UTIME_NOW)
		ino->atime = now;
	else if (ts[0].tv_nsec != UTIME_OMIT)
		ino->atime = ts[0];
	if (!ts || ts[1].tv_nsec == UTIME_NOW)
		ino->mtime = now;
	else if (ts[1].tv_nsec != UTIME_OMIT)
		ino->mtime = ts[1];
	ino->ctime = now;
	pthread_mutex_unlock(&ino->lock);
	return 0;
}

static ssize_t mem_copy_range(struct store_file *from, off_t from_off, struct store_file *to,
			      off_t to_off, size_t len)
{
	size_t total = 0;
	struct stat st;

	if (to->ops != from->ops)
		return -EXDEV;
	if (!to->writable)
		return -EBADF;
	if (len > (uint64_t)(INT64_MAX - MAX(from_off, to_off)))
		return -EOVERFLOW;
	mem_stat(from, &st);
	len = MIN(len, (uint64_t)MAX(st.st_size - from_off, 0));
	if (inode_of(from) == inode_of(to) && from_off < to_off + (off_t)len &&
	    to_off < from_off + (off_t)len)
		return -EINVAL;
	/* A page at a time: never two locks at once. */
	while (total < len) {
		char page[GAIA_PAGE];
		struct iovec iov = {page, MIN(len - total, sizeof(page))};
		ssize_t got = mem_read(from, &iov, 1, from_off + (off_t)total);
		int err;

		if (got == 0)
			break;
		iov.iov_len = (size_t)got;
		err = mem_write(to, &iov, 1, to_off + (off_t)total);
		if (err)
			return total > 0 ? (ssize_t)total : err;
		total += (size_t)got;
	}
	return (ssize_t)total;
}

static int mem_close(struct store_file *file)
{
	free(container_of(file, struct mem_file, base));
	return 0;
}

static const struct store_file_ops mem_file_ops = {
	.read = mem_read,
	.read_begin = mem_read_begin,
	.read_end = mem_read_end,
	.write = mem_write,
	.patch = store_patch_by_write,
	.sync = mem_sync,
	.truncate = mem_truncate,
	.allocate = mem_allocate,
	.seek = mem_seek,
	.stat = mem_stat,
	.utimens = mem_utimens,
	.copy_range = mem_copy_range,
	.close = mem_close,
};

static struct mem_inode *inode_create(int ref)
{
	struct mem_inode *ino = calloc(1, sizeof(*ino));

	if (!ino)
		return NULL;
	ino->ref = ref;
	pthread_mutex_init(&ino->lock, NULL);
	touch(ino);
	ino->atime = ino->mtime;
	return ino;
}

static void inode_destroy(struct mem_inode *ino)
{
	drop_pages(ino, 0, UINT64_MAX);
	free(ino->pages);
	pthread_mutex_destroy(&ino->lock);
	free(ino);
}

static int mem_open(struct store *store, int ref, bool write, struct store_file **out)
{
	struct mem_store *s = container_of(store, struct mem_store, base);
	struct mem_file *f = calloc(1, sizeof(*f));

	if (!f)
		return -ENOMEM;
	f->base.ops = &mem_file_ops;
	f->base.writable = write;
	pthread_mutex_lock(&s->lock);
	HASH_FIND_INT(s->inodes, &ref, f->inode);
	if (!f->inode) {
		f->inode = inode_create(ref);
		if (f->inode)
			HASH_ADD_INT(s->inodes, ref, f->inode);
	}
	pthread_mutex_unlock(&s->lock);
	if (!f->inode) {
		free(f);
		return -ENOMEM;
	}
	*out = &f->base;
	return 0;
}

static void mem_destroy(struct store *store)
{
	struct mem_store *s = container_of(store, struct mem_store, base);
	struct mem_inode *ino, *next;

	HASH_ITER(hh, s->inodes, ino, next) {
		HASH_DEL(s->inodes, ino);
		inode_destroy(ino);
	}
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static const struct store_ops mem_ops = {
	.name = "mem",
	.open = mem_open,
	.destroy = mem_destroy,
};

void store_mem_chown(struct store_file *file, uid_t owner, mode_t mode)
{
	struct mem_inode *ino = inode_of(file);

	pthread_mutex_lock(&ino->lock);
	ino->owner = owner;
	ino->mode = mode;
	pthread_mutex_unlock(&ino->lock);
}

int store_mem_create(struct store **out)
{
	struct mem_store *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->base.ops = &mem_ops;
	pthread_mutex_init(&s->lock, NULL);
	*out = &s->base;
	return 0;
}
