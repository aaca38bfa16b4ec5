/*
 * backing.c - store files that may lose their descriptor while nobody uses them.
 *
 * The cache keeps a store file for as long as it has anything of a file. These may be more files than
 * there are descriptors. So above fs->max_backings the file below that has been unused for longest is
 * closed, and opened again when it is used next.
 */
#include "base/log.h"
#include "fuse/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Lives until the cache closes the store file. The cfile's reference keeps the inode meanwhile. */
struct backing {
	struct store_file base;
	struct inode *inode; /* constant */

	/*
	 * The number of calls in progress; CLOSED: the file below has to be opened first. Only opening needs
	 * fs->lock, so reads and writes of different files share nothing here.
	 */
	atomic_int uses;
	atomic_bool used; /* since take_surplus() last looked at it */

	/* fs->lock; may be read by whoever counts in `uses`. */
	struct store_file *under; /* NULL iff CLOSED */
	TAILQ_ENTRY(backing) link; /* on fs->backings iff open */
	LIST_ENTRY(backing) of_inode;
};
#define CLOSED (-1)

/* So many times that cannot be set, one after the other, are taken for writes that are lost. */
#define TIMES_HEARD 3

/* The most that take_surplus() looks at in one call, to find one that was not used since it last looked. */
#define LOOKS 64u

static struct backing *backing_of(struct store_file *file)
{
	return container_of(file, struct backing, base);
}

/* A file below that is to be closed when the lock is no longer held. */
struct unused {
	struct store_file *under; /* NULL: none */
	struct inode *inode;	  /* kept until then */
};

static void close_under(struct inode *inode, struct store_file *under)
{
	bool writable = under->writable;
	struct lost_call c;

	lost_call_begins(&c, inode);
	lost_closed(&c, under->ops->close(under), writable);
}

static void close_unused(struct unused unused)
{
	if (!unused.under)
		return;
	close_under(unused.inode, unused.under);
	inode_put(unused.inode);
}

/* Nothing if it is in use. fs->lock is held here and in the next two. */
static struct unused take_unused(struct backing *b)
{
	struct fs *fs = b->inode->fs;
	struct unused unused;
	int uses = 0;

	if (!atomic_compare_exchange_strong(&b->uses, &uses, CLOSED))
		return (struct unused){ NULL };
	TAILQ_REMOVE(&fs->backings, b, link);
	fs->n_backings--;
	unused = (struct unused){ .under = b->under, .inode = b->inode };
	b->under = NULL;
	b->inode->refs++;
	return unused;
}

static struct unused take_surplus(struct fs *fs)
{
	for (unsigned n = 0; n < LOOKS && fs->n_backings > fs->max_backings; n++) {
		struct backing *b = TAILQ_FIRST(&fs->backings);
		struct unused unused = { NULL };

		if (!atomic_exchange(&b->used, false))
			unused = take_unused(b);
		if (unused.under)
			return unused;
		TAILQ_REMOVE(&fs->backings, b, link);
		TAILQ_INSERT_TAIL(&fs->backings, b, link);
	}
	return (struct unused){ NULL };
}

static void opened(struct backing *b, struct store_file *under)
{
	struct fs *fs = b->inode->fs;

	b->under = under;
	fs->n_backings++;
	TAILQ_INSERT_TAIL(&fs->backings, b, link);
	atomic_store(&b->uses, 0);
}

/* fs->lock is held, but dropped meanwhile. */
static int reopen(struct backing *b)
{
	struct fs *fs = b->inode->fs;
	struct store_file *under;
	int err;

	pthread_mutex_unlock(&fs->lock);
	err = contents_open_below(b->inode, b->base.writable, &under);
	pthread_mutex_lock(&fs->lock);
	if (!err && !b->under) {
		opened(b, under);
		under = NULL;
	}
	if (!err && under) {
		pthread_mutex_unlock(&fs->lock);
		close_under(b->inode, under);
		pthread_mutex_lock(&fs->lock);
	}
	return err;
}

static int begin_closed(struct backing *b)
{
	struct fs *fs = b->inode->fs;
	struct unused surplus;
	int err = 0;

	pthread_mutex_lock(&fs->lock);
	while (!b->under && !err)
		err = reopen(b);
	if (!err)
		atomic_fetch_add(&b->uses, 1);
	surplus = take_surplus(fs);
	pthread_mutex_unlock(&fs->lock);
	close_unused(surplus);
	return err;
}

/* Set *@under, which may be used until end(). */
static int begin(struct store_file *file, struct store_file **under)
{
	struct backing *b = backing_of(file);
	int n = atomic_load(&b->uses), err;

	cred_drop_powers(b->inode->fs);
	while (n != CLOSED && !atomic_compare_exchange_weak(&b->uses, &n, n + 1))
		;
	if (n == CLOSED) {
		err = begin_closed(b);
		if (err)
			return err;
	}
	if (!atomic_load_explicit(&b->used, memory_order_relaxed))
		atomic_store_explicit(&b->used, true, memory_order_relaxed);
	*under = b->under;
	return 0;
}

static void end(struct store_file *file)
{
	atomic_fetch_sub(&backing_of(file)->uses, 1);
}

/* A descriptor that the engine below has given up (after it was cut off from its server) fails for ever; a new one does not. */
static void close_if_unused(struct backing *b)
{
	struct fs *fs = b->inode->fs;
	struct unused unused;

	pthread_mutex_lock(&fs->lock);
	unused = take_unused(b);
	pthread_mutex_unlock(&fs->lock);
	close_unused(unused);
}

/* A call has ended with @res; what to tell of that. */
static int64_t ended(struct store_file *file, int64_t res)
{
	struct backing *b = backing_of(file);
	struct fs *fs = b->inode->fs;
	int err = res < 0 ? (int)-res : 0, told = errno_below(err);

	end(file);
	if (err == EBADFD)
		close_if_unused(b);
	if (told != err && log_may(&fs->below_pace))
		log_warn("%s: the file system below is cut off from its server, or its process has ended: %s", fs->mountpoint, strerror(err));
	return err ? -told : res;
}

/* Make one call of the file below. Returns @err, or what the call returns. */
#define PASS(type, file, call, ...)                                                                 \
	({                                                                                          \
		struct store_file *under_;                                                          \
		type res_ = begin(file, &under_);                                                   \
                                                                                                    \
		if (!res_)                                                                          \
			res_ = (type)ended(file, under_->ops->call(under_, ##__VA_ARGS__));         \
		res_;                                                                               \
	})

/*
 * Whether a call that failed with @err may be repeated with root's powers, because there was no space
 * and only root has written the file. If so the thread has them until cred_root_end().
 */
static bool again_as_root(struct store_file *file, ssize_t err)
{
	struct inode *inode = backing_of(file)->inode;
	struct fs *fs = inode->fs;

	if (!cred_no_room(err) || !fs->powers.can_drop || inode->of_users)
		return false;
	if (!cred_root_begin(fs))
		return true;
	cred_root_end(fs);
	return false;
}

/* As PASS, for a call that may take space: if there is none, it may be repeated with root's powers. */
#define PASS_TAKING(file, call, ...)                            \
	({                                                      \
		int got_ = PASS(int, file, call, ##__VA_ARGS__); \
                                                                \
		if (again_as_root(file, got_)) {                \
			got_ = PASS(int, file, call, ##__VA_ARGS__); \
			cred_root_end(backing_of(file)->inode->fs); \
		}                                               \
		got_;                                           \
	})

static ssize_t backing_read(struct store_file *file, const struct iovec *iov, int n, off_t off)
{
	return PASS(ssize_t, file, read, iov, n, off);
}

static void backing_read_begin(struct store_file *file, struct store_read *rd)
{
	struct store_file *under;

	rd->got = begin(file, &under);
	if (rd->got)
		return;
	store_read_begin(under, rd);
	if (!rd->state)
		rd->got = ended(file, rd->got);
}

/* The store file has been in use since the read began, so the file below is the same one. */
static ssize_t backing_read_end(struct store_file *file, struct store_read *rd)
{
	return ended(file, store_read_end(backing_of(file)->under, rd));
}

static int backing_write(struct store_file *file, const struct iovec *iov, int n, off_t off)
{
	return PASS_TAKING(file, write, iov, n, off);
}

static int backing_patch(struct store_file *file, const void *buf, const void *base, size_t len,
			 off_t off)
{
	return PASS_TAKING(file, patch, buf, base, len, off);
}

static int backing_sync(struct store_file *file, bool data_only)
{
	struct store_file *under;
	int err = begin(file, &under);

	if (err)
		return err;
	return lost_at_sync(backing_of(file)->inode, (int)ended(file, under->ops->sync(under, data_only)));
}

static int backing_truncate(struct store_file *file, off_t size)
{
	return PASS_TAKING(file, truncate, size);
}

static int backing_allocate(struct store_file *file, int mode, off_t off, off_t len)
{
	return PASS_TAKING(file, allocate, mode, off, len);
}

static off_t backing_seek(struct store_file *file, off_t off, int whence)
{
	return PASS(off_t, file, seek, off, whence);
}

static int backing_stat(struct store_file *file, struct stat *out)
{
	return PASS(int, file, stat, out);
}

static int backing_utimens(struct store_file *file, const struct timespec ts[2])
{
	struct inode *inode = backing_of(file)->inode;
	struct lost_call c;
	int err;

	/*
	 * An engine may store first what was written: else it would set the times once more. If it goes on failing it is the times that fail:
	 * what the cache has stored again is not stored for ever.
	 */
	lost_call_begins(&c, inode);
	err = PASS(int, file, utimens, ts);
	if ((err == -EIO || cred_no_room(err)) && inode->fs->below_is_fuse && atomic_load(&inode->times_failed) < TIMES_HEARD) {
		atomic_fetch_add(&inode->times_failed, 1);
		lost_heard(inode, err);
	} else if (!err && atomic_load_explicit(&inode->times_failed, memory_order_relaxed)) {
		atomic_store(&inode->times_failed, 0);
	}
	lost_call_ends(&c);
	return err;
}

static ssize_t copy_once(struct store_file *from, off_t from_off, struct store_file *to, off_t to_off,
			 size_t len)
{
	struct store_file *to_under;
	ssize_t n = begin(to, &to_under);

	if (n)
		return n;
	n = PASS(ssize_t, from, copy_range, from_off, to_under, to_off, len);
	end(to);
	if (n == -EBADFD)
		close_if_unused(backing_of(to));
	return n;
}

static ssize_t backing_copy_range(struct store_file *from, off_t from_off, struct store_file *to,
				  off_t to_off, size_t len)
{
	ssize_t n = copy_once(from, from_off, to, to_off, len);

	if (again_as_root(to, n)) {
		n = copy_once(from, from_off, to, to_off, len);
		cred_root_end(backing_of(to)->inode->fs);
	}
	return n;
}

static int backing_close(struct store_file *file)
{
	struct backing *b = backing_of(file);
	struct fs *fs = b->inode->fs;

	pthread_mutex_lock(&fs->lock);
	bug_on(atomic_load(&b->uses) > 0);
	if (b->under) {
		TAILQ_REMOVE(&fs->backings, b, link);
		fs->n_backings--;
	}
	LIST_REMOVE(b, of_inode);
	pthread_mutex_unlock(&fs->lock);
	if (b->under)
		close_under(b->inode, b->under);
	free(b);
	return 0;
}

bool backing_is_written(const struct inode *inode)
{
	const struct backing *b;

	LIST_FOREACH(b, &inode->backings, of_inode)
		if (b->base.writable)
			return true;
	return false;
}

void backing_close_idle(struct inode *inode)
{
	struct fs *fs = inode->fs;
	struct unused unused[4];
	struct backing *b;
	unsigned n = 0;

	pthread_mutex_lock(&fs->lock);
	LIST_FOREACH(b, &inode->backings, of_inode)
		if (n < ARRAY_LEN(unused) && (unused[n] = take_unused(b)).under)
			n++;
	pthread_mutex_unlock(&fs->lock);
	while (n > 0)
		close_unused(unused[--n]);
}

static const struct store_file_ops backing_ops = {
	.read = backing_read,
	.read_begin = backing_read_begin,
	.read_end = backing_read_end,
	.write = backing_write,
	.patch = backing_patch,
	.sync = backing_sync,
	.truncate = backing_truncate,
	.allocate = backing_allocate,
	.seek = backing_seek,
	.stat = backing_stat,
	.utimens = backing_utimens,
	.copy_range = backing_copy_range,
	.close = backing_close,
};

int backing_open(struct inode *inode, bool write, struct store_file **out)
{
	struct backing *b = calloc(1, sizeof(*b));
	struct fs *fs = inode->fs;
	struct store_file *under;
	struct unused surplus;
	int err = -ENOMEM;

	if (!b)
		return err;
	err = contents_open_below(inode, write, &under);
	if (err) {
		free(b);
		return err;
	}
	b->base.ops = &backing_ops;
	b->base.writable = write;
	b->inode = inode;
	pthread_mutex_lock(&fs->lock);
	opened(b, under);
	LIST_INSERT_HEAD(&inode->backings, b, of_inode);
	surplus = take_surplus(fs);
	pthread_mutex_unlock(&fs->lock);
	close_unused(surplus);
	*out = &b->base;
	return 0;
}
