/*
 * dir.c - the store that keeps each file's bytes in a file of a backing directory.
 *
 * A ref is a descriptor, usually O_PATH, of the backing file. Opening /proc/self/fd/N opens
 * that very file, whatever its name is by now, even if it has none left. A
 * descriptor that already allows what is asked is duplicated instead.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"
#include "gaia/protocol.h"
#include "store/dir.h"

static int fd_of(struct store_file *file)
{
	return container_of(file, struct dir_file, base)->fd;
}

static int dir_write(struct store_file *file, const struct iovec *iov, int n, off_t off)
{
	size_t want = 0;
	ssize_t done;

	if (!file->writable)
		return -EBADF;
	thread_waits();
	for (int i = 0; i < n; i++)
		want += iov[i].iov_len;
	done = move_bytes(pwritev, fd_of(file), iov, n, off, 0);
	if (done < 0)
		return (int)done;
	return (size_t)done == want ? 0 : -EIO;
}

int store_patch_by_write(struct store_file *file, const void *buf, const void *base, size_t len,
			 off_t off)
{
	const char *new = buf;
	size_t at = 0, n;
	int err = 0;

	while (!err && (n = store_next_run(new, base, len, &at)) > 0) {
		struct iovec iov = { (void *)(new + at), n };

		err = file->ops->write(file, &iov, 1, off + (off_t)at);
		at += n;
	}
	return err;
}

#define WORD sizeof(uint64_t)

/*
 * Where this thread continues after a SIGBUS: a page that it has mapped cannot be had, since the disk is full
 * or the file was truncated.
 */
static __thread sigjmp_buf *volatile lost_mapping;

static void on_sigbus(int number)
{
	if (lost_mapping)
		siglongjmp(*lost_mapping, 1);
	/* Not from patch_mapped(): the fault happens again, now with the default action. */
	signal(number, SIG_DFL);
}

#define WORD sizeof(uint64_t)

/*
 * Store the bytes of @buf that differ from @base's, @n at most, to the word at @at from its byte @from on: all at
 * once, and no other byte. So what others store to the bytes beside them is not lost.
 */
static void store_in_word(uint64_t *at, size_t from, const char *buf, const char *base, size_t n)
{
	uint64_t old, new, bytes = 0, changed = 0;

	for (size_t i = 0; i < n; i++)
		if (buf[i] != base[i]) {
			((char *)&bytes)[from + i] = buf[i];
			((unsigned char *)&changed)[from + i] = 0xff;
		}
	if (!changed)
		return;
	old = __atomic_load_n(at, __ATOMIC_RELAXED);
	do
		new = (old & ~changed) | bytes;
	while (!__atomic_compare_exchange_n(at, &old, new, false, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED));
}

/* The same for bytes of a page, from byte @in on. */
static void store_bytes(char *page, size_t in, const char *buf, const char *base, size_t len)
{
	size_t done, n;

	for (done = 0; done < len; done += n) {
		size_t from = (in + done) % WORD;

		n = WORD - from < len - done ? WORD - from : len - done;
		store_in_word((uint64_t *)(page + in + done - from), from, buf + done, base + done, n);
	}
}

static int patch_mapped(int fd, const char *buf, const char *base, size_t len, off_t off)
{
	size_t in = (size_t)off % GAIA_PAGE;
	sigset_t bus, old;
	sigjmp_buf back;
	volatile int err = 0;
	char *p;

	p = mmap(NULL, in + len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, off - (off_t)in);
	if (p == MAP_FAILED)
		return -errno;
	sigemptyset(&bus);
	sigaddset(&bus, SIGBUS);
	pthread_sigmask(SIG_UNBLOCK, &bus, &old);
	if (sigsetjmp(back, 0)) {
		err = -EIO;
	} else {
		lost_mapping = &back;
		store_bytes(p, in, buf, base, len);
	}
	lost_mapping = NULL;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	munmap(p, in + len);
	return err;
}

/*
 * Up to this many runs are written one by one. More of them (if each of many numbers has changed in part) would take far too
 * long. And if two runs are in one word, other programs, or readers after a crash of the daemon, could see half of a number.
 */
#define FEW_RUNS 8

static bool by_runs(const char *buf, const char *base, size_t len, off_t off)
{
	size_t at = 0, n, runs = 0;
	off_t last_word = -1;

	while ((n = store_next_run(buf, base, len, &at)) > 0) {
		off_t word = (off + (off_t)at) / (off_t)WORD;

		if (++runs > FEW_RUNS || word == last_word)
			return false;
		at += n;
		last_word = (off + (off_t)at - 1) / (off_t)WORD;
	}
	return true;
}

static int dir_patch(struct store_file *file, const void *buf, const void *base, size_t len,
		     off_t off)
{
	struct iovec whole = { (void *)buf, len };

	if (!file->writable)
		return -EBADF;
	if (fault_point("break.put_whole"))
		return file->ops->write(file, &whole, 1, off);
	if (!container_of(file, struct dir_file, base)->store->shared && !by_runs(buf, base, len, off) &&
	    !patch_mapped(fd_of(file), buf, base, len, off))
		return 0;
	/* If the file cannot be mapped because of an error, this meets the error, too. */
	return store_patch_by_write(file, buf, base, len, off);
}

static int dir_sync(struct store_file *file, bool data_only)
{
	int fd = fd_of(file);

	thread_waits();
	if (TEMP_FAILURE_RETRY(data_only ? fdatasync(fd) : fsync(fd)) < 0)
		return -errno;
	return 0;
}

static int dir_truncate(struct store_file *file, off_t size)
{
	/* Where the contract says -EBADF the kernel would return EINVAL. */
	if (!file->writable)
		return -EBADF;
	thread_waits();
	return TEMP_FAILURE_RETRY(ftruncate(fd_of(file), size)) < 0 ? -errno : 0;
}

static int dir_allocate(struct store_file *file, int mode, off_t off, off_t len)
{
	if (!file->writable)
		return -EBADF;
	thread_waits();
	return TEMP_FAILURE_RETRY(fallocate(fd_of(file), mode, off, len)) < 0 ? -errno : 0;
}

static off_t dir_seek(struct store_file *file, off_t off, int whence)
{
	off_t found;

	/* The other values refer to a position, which a store_file does not have. */
	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		return -EINVAL;
	found = lseek(fd_of(file), off, whence);
	return found < 0 ? -errno : found;
}

/* What others have changed is to be seen at once. */
static int look_at_server(int fd)
{
	struct statx ignored;

	return statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_SIZE | STATX_MTIME, &ignored) < 0 ? -errno : 0;
}

static int dir_stat(struct store_file *file, struct stat *out)
{
	int fd = fd_of(file), err = container_of(file, struct dir_file, base)->store->shared ? look_at_server(fd) : 0;

	return err ? err : fstat(fd, out) < 0 ? -errno : 0;
}

static int dir_utimens(struct store_file *file, const struct timespec ts[2])
{
	return futimens(fd_of(file), ts) < 0 ? -errno : 0;
}

static ssize_t dir_copy_range(struct store_file *from, off_t from_off, struct store_file *to,
			      off_t to_off, size_t len)
{
	ssize_t got;

	if (to->ops != from->ops)
		return -EXDEV;
	if (!to->writable)
		return -EBADF;
	thread_waits();
	do
		got = copy_file_range(fd_of(from), &from_off, fd_of(to), &to_off, len, 0);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return errno == ENOSYS ? -EOPNOTSUPP : -errno;
	return got;
}

static int dir_close(struct store_file *file)
{
	struct dir_file *f = container_of(file, struct dir_file, base);
	int err = f->direct >= 0 && close(f->direct) ? -errno : 0;

	if (close(f->fd))
		err = -errno;
	free(f);
	return err;
}

static const struct store_file_ops dir_file_ops = {
	.read = dir_read,
	.read_begin = dir_read_begin,
	.read_end = dir_read_end,
	.write = dir_write,
	.patch = dir_patch,
	.sync = dir_sync,
	.truncate = dir_truncate,
	.allocate = dir_allocate,
	.seek = dir_seek,
	.stat = dir_stat,
	.utimens = dir_utimens,
	.copy_range = dir_copy_range,
	.close = dir_close,
};

/* Whether a duplicate of @fd has the access that is asked for. */
static bool has_access(int fd, bool write)
{
	int flags = fcntl(fd, F_GETFL);
	int mode = flags & O_ACCMODE;

	/* A duplicate would share O_APPEND, with which offsets are ignored, and O_DIRECT. */
	if (flags < 0 || flags & (O_PATH | O_APPEND | O_DIRECT))
		return false;
	return mode == O_RDWR || (mode == O_RDONLY && !write);
}

static int open_fd(int ref, bool write)
{
	int flags = (write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY;
	char path[32];
	int fd;

	if (has_access(ref, write)) {
		fd = fcntl(ref, F_DUPFD_CLOEXEC, 0);
	} else {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", ref);
		fd = TEMP_FAILURE_RETRY(open(path, flags));
	}
	return fd < 0 ? -errno : fd;
}

static int dir_open(struct store *store, int ref, bool write, struct store_file **out)
{
	struct dir_file *f;
	struct stat st;
	int err;

	/* Checked before opening, since opening a device or a FIFO has effects. */
	if (fstat(ref, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	f->fd = open_fd(ref, write);
	if (f->fd < 0) {
		err = f->fd;
		goto free_file;
	}
	f->base.ops = &dir_file_ops;
	f->base.writable = write;
	f->store = container_of(store, struct dir_store, base);
	f->direct = DIRECT_UNTRIED;
	*out = &f->base;
	return 0;

free_file:
	free(f);
	return err;
}

static void dir_destroy(struct store *store)
{
	struct dir_store *s = container_of(store, struct dir_store, base);

	async_destroy(&s->async);
	free(s);
}

static const struct store_ops dir_ops = {
	.name = "dir",
	.open = dir_open,
	.destroy = dir_destroy,
};

const char *store_dir_how(struct store *store)
{
	struct dir_store *s = container_of(store, struct dir_store, base);
	bool ring = async_has_ring(&s->async);

	if (s->direct)
		return ring ? "direct, io_uring" : "direct, threads";
	return ring ? "buffered, io_uring" : "buffered, threads";
}

int store_dir_create(bool direct, bool shared, struct store **out)
{
	struct sigaction sa = { .sa_handler = on_sigbus, .sa_flags = SA_NODEFER };
	struct dir_store *s;

	if (access("/proc/self/fd", X_OK) < 0) {
		int err = -errno;

		log_error("store: /proc/self/fd: %s; mount it: mount -t proc proc /proc",
			  strerror(-err));
		return err;
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->base.ops = &dir_ops;
	s->direct = direct;
	s->shared = shared;
	async_init(&s->async);
	sigemptyset(&sa.sa_mask);
	sigaction(SIGBUS, &sa, NULL);
	*out = &s->base;
	return 0;
}
