/*
 * disk.c - a disk that remembers the order of what it was told: for power cuts.
 *
 *	powercut-disk LOG SIZE MOUNTPOINT [OPTIONS OF FUSE]
 *
 * A FUSE file system of two files. `disk` has SIZE bytes and is meant for a loop device. `marks` takes notes. Each write to the disk, each
 * flush of it and each note is appended to LOG, in the order in which they were answered: a write and a note when they have been
 * carried out, a flush when it is asked for, so that what the log has before it was answered before. (powercut.py has the format.)
 */
#define FUSE_USE_VERSION 314
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE = 'W', ZERO = 'Z', FLUSH = 'F', NOTE = 'N' };

/* Host byte order; @length bytes of data follow a WRITE and a NOTE. */
struct record {
	uint32_t kind, length;
	uint64_t offset;
};

static int log_fd, memory_fd;
static uint64_t size;
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;

/* @order is held. A log that cannot be written is the end: nothing could be said of this disk any more. */
static void note_down(enum kind kind, uint64_t offset, const void *data, uint32_t length)
{
	struct record r = { .kind = kind, .length = length, .offset = offset };
	struct iovec part[] = { { &r, sizeof(r) }, { (void *)data, data ? length : 0 } };
	ssize_t whole = (ssize_t)(part[0].iov_len + part[1].iov_len);

	if (writev(log_fd, part, 2) != whole) {
		perror("powercut-disk: the log");
		_exit(1);
	}
}

static bool is_disk(const char *path)
{
	return strcmp(path, "/disk") == 0;
}

static bool is_marks(const char *path)
{
	return strcmp(path, "/marks") == 0;
}

static int op_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
	(void)fi;
	st->st_mode = strcmp(path, "/") == 0 ? S_IFDIR | 0755 : is_marks(path) ? S_IFREG | 0622 : S_IFREG | 0600;
	st->st_nlink = 1;
	if (is_disk(path))
		st->st_size = (off_t)size;
	else if (!is_marks(path) && strcmp(path, "/") != 0)
		return -ENOENT;
	return 0;
}

static int op_open(const char *path, struct fuse_file_info *fi)
{
	(void)path;
	/* Nothing of it stays with the kernel: what was written was written to the disk. */
	fi->direct_io = 1;
	return 0;
}

static int op_truncate(const char *path, off_t to, struct fuse_file_info *fi)
{
	(void)to;
	(void)fi;
	return is_marks(path) ? 0 : -EPERM;
}

static int op_read(const char *path, char *buf, size_t len, off_t off, struct fuse_file_info *fi)
{
	ssize_t n = is_disk(path) ? pread(memory_fd, buf, len, off) : 0;

	(void)fi;
	return n < 0 ? -errno : (int)n;
}

static int op_write(const char *path, const char *buf, size_t len, off_t off, struct fuse_file_info *fi)
{
	int err = 0;

	(void)fi;
	pthread_mutex_lock(&order);
	if (is_marks(path)) {
		note_down(NOTE, 0, buf, (uint32_t)len);
	} else if ((uint64_t)off + len > size) {
		err = -ENOSPC;
	} else if (pwrite(memory_fd, buf, len, off) != (ssize_t)len) {
		err = -EIO;
	} else {
		note_down(WRITE, (uint64_t)off, buf, (uint32_t)len);
	}
	pthread_mutex_unlock(&order);
	return err ? err : (int)len;
}

static int op_fallocate(const char *path, int mode, off_t off, off_t len, struct fuse_file_info *fi)
{
	int err = 0;

	(void)fi;
	if (!is_disk(path) || !(mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) || len > UINT32_MAX)
		return -EOPNOTSUPP;
	pthread_mutex_lock(&order);
	if (fallocate(memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len))
		err = -errno;
	else
		note_down(ZERO, (uint64_t)off, NULL, (uint32_t)len);
	pthread_mutex_unlock(&order);
	return err;
}

static int op_fsync(const char *path, int datasync, struct fuse_file_info *fi)
{
	(void)datasync;
	(void)fi;
	if (is_disk(path)) {
		pthread_mutex_lock(&order);
		note_down(FLUSH, 0, NULL, 0);
		pthread_mutex_unlock(&order);
	}
	return 0;
}

static const struct fuse_operations ops = {
	.getattr = op_getattr,
	.open = op_open,
	.truncate = op_truncate,
	.read = op_read,
	.write = op_write,
	.fallocate = op_fallocate,
	.fsync = op_fsync,
};

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: powercut-disk LOG SIZE MOUNTPOINT [OPTIONS OF FUSE]\n");
		return 2;
	}
	size = strtoull(argv[2], NULL, 10);
	log_fd = open(argv[1], O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
	memory_fd = memfd_create("powercut-disk", MFD_CLOEXEC);
	if (log_fd < 0 || memory_fd < 0 || ftruncate(memory_fd, (off_t)size)) {
		perror("powercut-disk");
		return 1;
	}
	argv[2] = argv[0];
	return fuse_main(argc - 2, argv + 2, &ops, NULL);
}
