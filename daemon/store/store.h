/*
 * store.h - the contract of stores, which keep the bytes of files for good.
 *
 * A store opens files and moves bytes. The namespace (names, modes, times) belongs to
 * fuse/, which works on the backing directory itself. Implementations:
 * dir (a backing directory), mem (for tests), faulty (wraps any).
 *
 * All calls but read_begin() are synchronous, may block, and may be made from any thread and
 * concurrently on one file. Errors are negative errno. Nothing here retries,
 * caches or logs: the page cache above does.
 */
#ifndef GAIA_STORE_STORE_H
#define GAIA_STORE_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

struct store;
struct store_file;

/*
 * A read that is under way, from store_read_begin() to store_read_end(); the same thread calls both. In between
 * the buffers may hold anything.
 */
struct store_read {
	/* For the caller; constant meanwhile. */
	const struct iovec *iov;
	int n;
	off_t off;
	bool kept;    /* the caller will keep the bytes, so the store need not keep them just for later reads */
	bool at_once; /* store_read_end() is the next thing that the thread does */

	/* For the store. */
	void *state; /* NULL: the read is over */
	ssize_t got; /* its result then */
	bool at_end; /* nothing is under way before store_read_end() */
};

struct store_ops {
	const char *name;

	/*
	 * Open the contents of the file that @ref names. The store decides what a ref is: for dir a
	 * descriptor (O_PATH is enough; not consumed), for mem any number (a new number's file is made,
	 * empty). A descriptor that is open with the access asked for is duplicated: the right to the
	 * file was checked when it was opened, and the file's mode may refuse it by now. (Not one with
	 * O_APPEND or O_DIRECT.) @write: for reading and writing; else for reading. On success sets
	 * *@out, to be ended by close(). Regular files only (-EINVAL). Where writing is refused
	 * (-EACCES, -EPERM, -EROFS, -ETXTBSY) the caller decides whether reading will do.
	 */
	int (*open)(struct store *store, int ref, bool write, struct store_file **out);
	void (*destroy)(struct store *store);
};

/* Calls that would change a file that was not opened for writing: -EBADF. */
struct store_file_ops {
	/*
	 * Read up to the sum of @iov. Returns the bytes read, short only at the
	 * end of the file; or a negative errno, and then the buffers' contents
	 * are undefined. @off + length never exceeds INT64_MAX.
	 */
	ssize_t (*read)(struct store_file *file, const struct iovec *iov, int n, off_t off);

	/*
	 * The same in two steps: a read that takes long goes on after read_begin(), so that many can be under way at a time.
	 * read_end() waits for it, and returns what read() would. Use store_read_begin() and store_read_end().
	 */
	void (*read_begin)(struct store_file *file, struct store_read *rd);
	ssize_t (*read_end)(struct store_file *file, struct store_read *rd);

	/*
	 * Write all of @iov, extending the file where needed. 0, or a negative
	 * errno, and then any part of it may have been written (-EIO: the device
	 * accepted nothing more without saying why).
	 */
	int (*write)(struct store_file *file, const struct iovec *iov, int n, off_t off);

	/*
	 * Write the bytes of @buf that differ from @base's, and no others: so no write of other bytes meanwhile is lost,
	 * however it is made. @len: 1 to GAIA_PAGE, within a page of the file. 0 or a negative errno, as write(). If the
	 * file can be mapped, the bytes of a word (8, aligned in the file) change all at once: no reader sees half of
	 * them.
	 */
	int (*patch)(struct store_file *file, const void *buf, const void *base, size_t len,
		     off_t off);

	/* Everything written before is on stable storage on return. */
	int (*sync)(struct store_file *file, bool data_only);

	int (*truncate)(struct store_file *file, off_t size);

	/* As fallocate(2), same modes. -EOPNOTSUPP if the store cannot do it. */
	int (*allocate)(struct store_file *file, int mode, off_t off, off_t len);

	/* As lseek(2) with SEEK_DATA or SEEK_HOLE (others: -EINVAL): the offset, or -ENXIO. */
	off_t (*seek)(struct store_file *file, off_t off, int whence);

	/* Size, blocks, times of the contents as the store has them. */
	int (*stat)(struct store_file *file, struct stat *out);

	/* Set the times, as futimens(2). */
	int (*utimens)(struct store_file *file, const struct timespec ts[2]);

	/* Copy inside the store (by reflink if possible), as copy_file_range(2). Returns the bytes
	 * copied, maybe fewer than asked, 0 only at the end of @from; -EXDEV or
	 * -EOPNOTSUPP if the caller must copy between these two files itself. */
	ssize_t (*copy_range)(struct store_file *from, off_t from_off, struct store_file *to,
			      off_t to_off, size_t len);

	/*
	 * No call on @file may be in progress. Frees @file, always. 0, or an errno (negative): something that was written before, by
	 * whomever, may not be stored, and this call alone was told.
	 */
	int (*close)(struct store_file *file);
};

struct store {
	const struct store_ops *ops;
};

struct store_file {
	const struct store_file_ops *ops;
	bool writable;
};

/* Set *@at to the first run, from *@at on, of bytes in which @a and @b differ. Returns its length; 0: there is none. */
static inline size_t store_next_run(const char *a, const char *b, size_t len, size_t *at)
{
	size_t i = *at, j;

	while (i < len && a[i] == b[i])
		i++;
	for (j = i; j < len && a[j] != b[j]; j++)
		;
	*at = i;
	return j - i;
}

/* patch() by write(). */
int store_patch_by_write(struct store_file *file, const void *buf, const void *base, size_t len,
			 off_t off);

static inline int store_open(struct store *s, int ref, bool write, struct store_file **out)
{
	return s->ops->open(s, ref, write, out);
}

static inline void store_read_begin(struct store_file *file, struct store_read *rd)
{
	rd->state = NULL;
	rd->at_end = false;
	file->ops->read_begin(file, rd);
}

static inline ssize_t store_read_end(struct store_file *file, struct store_read *rd)
{
	return rd->state ? file->ops->read_end(file, rd) : rd->got;
}

/*
 * The implementations. On success *@out, to be ended by ops->destroy().
 *
 * dir: with @direct, bytes that the caller keeps and the kernel does not have in memory are read past its page cache
 * (O_DIRECT), so that they are not in memory twice. Only where file system and kernel can do that. With @shared other machines change the files,
 * too: then patch() writes each run of bytes by itself, however many they are, since a mapping would write whole pages.
 */
int store_dir_create(bool direct, bool shared, struct store **out);
/* Whether the kernel has pages of the file in memory, or may have: it cannot tell before Linux 6.5. */
bool store_dir_has_pages(int fd);
/* How a store made by store_dir_create() reads: "direct" or "buffered", and then ", io_uring" or ", threads". */
const char *store_dir_how(struct store *store);
int store_mem_create(struct store **out);
/* Its files belong to root at first. @mode: rights beside the owner's to read and write. */
void store_mem_chown(struct store_file *file, uid_t owner, mode_t mode);

/*
 * Wraps @under, and owns it. Consults the fault points "store.open", "store.read",
 * "store.write", "store.sync", "store.truncate", "store.allocate" before passing a
 * call on; a failed write may have written a part (the first half, page-wise).
 */
int store_faulty_create(struct store *under, struct store **out);

#endif
