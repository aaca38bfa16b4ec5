/*
 * contents.c - which cfile holds the contents of an inode, and how the cache opens them.
 *
 * A cfile exists while the cache has something of the file, perhaps long after the last handle is
 * closed. It keeps the inode, and with it the descriptor, until contents_released().
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Whether opening for writing has failed in a way in which opening for reading need not. */
static bool only_unwritable(int err)
{
	return err == -EACCES || err == -EPERM || err == -EROFS || err == -ETXTBSY;
}

/* A duplicate of the descriptor that was kept, or -1. */
static int access_dup(struct inode *inode, bool write)
{
	int fd;

	pthread_mutex_lock(&inode->fs->lock);
	fd = write || inode->read_fd < 0 ? inode->write_fd : inode->read_fd;
	if (fd >= 0)
		fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	pthread_mutex_unlock(&inode->fs->lock);
	return fd;
}

static int open_with_access(struct inode *inode, bool write, struct store_file **out)
{
	int fd = access_dup(inode, write), err;

	if (fd < 0)
		return -EACCES;
	err = store_open(inode->fs->store, fd, write, out);
	inode_close(inode, fd);
	return err;
}

int contents_open_below(struct inode *inode, bool write, struct store_file **out)
{
	int fd = inode_fd_get(inode), err;

	if (fd < 0)
		return fd;
	err = store_open(inode->fs->store, fd, write, out);
	inode_fd_put(inode);
	if (err == -EACCES)
		err = open_with_access(inode, write, out);
	return err ? -errno_below(-err) : 0;
}

/* The cache asks for the contents. [F] */
static int contents_open(void *cookie, bool write, struct store_file **out)
{
	struct inode *inode = cookie;
	int err = write ? backing_open(inode, true, out) : -EACCES;

	return write && !only_unwritable(err) ? err : backing_open(inode, false, out);
}

/* Returns the descriptors that were kept, for the caller to close. fs->lock is held. */
static void access_take(struct inode *inode, int fds[2])
{
	fds[0] = inode->read_fd;
	fds[1] = inode->write_fd;
	inode->read_fd = inode->write_fd = -1;
}

static void close_both(struct inode *inode, const int fds[2])
{
	for (int i = 0; i < 2; i++)
		if (fds[i] >= 0)
			inode_close(inode, fds[i]);
}

/* A cfile has ended, or cfile_get() found the one that exists. Any thread. */
static void contents_released(void *cookie)
{
	struct inode *inode = cookie;
	struct fs *fs = inode->fs;
	int fds[2] = { -1, -1 };

	pthread_mutex_lock(&fs->lock);
	bug_on(!inode->cfiles);
	if (!--inode->cfiles) {
		access_take(inode, fds);
		atomic_store(&inode->of_users, false);
	}
	pthread_mutex_unlock(&fs->lock);
	close_both(inode, fds);
	inode_put(inode);
}

static int stat_below(struct inode *inode, struct stat *st)
{
	int fd = inode_fd_get(inode), err;

	if (fd < 0)
		return fd;
	err = fstat(fd, st) ? -errno_below(errno) : 0;
	inode_fd_put(inode);
	return err;
}

/* A cfile was made, and asks how long the file is. */
static int contents_size(void *cookie, uint64_t *bytes)
{
	struct stat st;
	int err = stat_below(cookie, &st);

	if (!err)
		*bytes = (uint64_t)st.st_size;
	return err;
}

static size_t path_of(int fd, char path[PATH_MAX])
{
	ssize_t n = readlink(fd_path(fd).text, path, PATH_MAX - 1);

	path[MAX(n, 0)] = '\0';
	return (size_t)MAX(n, 0);
}

bool contents_name(void *cookie, char *buf, size_t size)
{
	struct inode *inode = cookie;
	struct fs *fs = inode->fs;
	char below[PATH_MAX], root[PATH_MAX];
	size_t n, n_root;
	int fd;

	fd = inode_fd_get(inode);
	if (fd < 0)
		return false;
	n = path_of(fd, below);
	inode_fd_put(inode);
	/* Not fs->source: that may have been renamed, and in a clone of its mount (mount_open_source()) paths begin at the clone's root. */
	n_root = path_of(fs->root.fd, root);
	if (!n || !n_root)
		return false;
	if (!strcmp(root, "/"))
		n_root = 0;
	if (!strncmp(below, root, n_root) && below[n_root] == '/')
		snprintf(buf, size, "%s%s", strcmp(fs->mountpoint, "/") ? fs->mountpoint : "", below + n_root);
	else
		snprintf(buf, size, "%s", below);
	return true;
}

static const struct cfile_source contents_source = {
	.open = contents_open,
	.size = contents_size,
	.release = contents_released,
	.name = contents_name,
};
static const struct cfile_source contents_source_shared = {
	.open = contents_open,
	.size = contents_size,
	.release = contents_released,
	.name = contents_name,
	.passthrough = true,
	.shared = true,
};
static const struct cfile_source contents_source_passthrough = {
	.open = contents_open,
	.size = contents_size,
	.release = contents_released,
	.name = contents_name,
	.passthrough = true,
};

static const struct cfile_source *source_of(const struct fs *fs)
{
	if (fs->config.shared)
		return &contents_source_shared;
	return fs->passthrough ? &contents_source_passthrough : &contents_source;
}

/* Get the cfile, for the first user of the contents. inode->lock is held. */
static int hold_cfile(struct inode *inode)
{
	struct fs *fs = inode->fs;
	struct stat st;
	int err;

	/* A reference for the cfile. The cache gives it back by contents_released(), also if cfile_get() fails. */
	pthread_mutex_lock(&fs->lock);
	inode->refs++;
	inode->cfiles++;
	inode->were_cached = true;
	pthread_mutex_unlock(&fs->lock);
	err = cfile_get(fs->cache, inode->id, source_of(fs), inode, &inode->cfile);
	if (err)
		return err;
	err = stat_below(inode, &st);
	if (err)
		cfile_put(inode->cfile);
	else
		cfile_set_gone(inode->cfile, !st.st_nlink);
	return err;
}

int contents_get(struct inode *inode, struct cfile **out)
{
	int err = 0;

	pthread_mutex_lock(&inode->lock);
	if (!inode->users)
		err = hold_cfile(inode);
	if (!err)
		inode->users++;
	else
		inode->cfile = NULL;
	*out = inode->cfile;
	pthread_mutex_unlock(&inode->lock);
	return err;
}

void contents_written_by(struct inode *inode, uid_t uid)
{
	if (uid && !atomic_load_explicit(&inode->of_users, memory_order_relaxed))
		atomic_store(&inode->of_users, true);
}

/*
 * An unprivileged daemon keeps a descriptor that it was given, because the file's mode may come to
 * refuse the daemon such access, or refuses it already (a file created with mode 0444).
 */
void access_give(struct inode *inode, int access, bool write)
{
	struct fs *fs = inode->fs;
	int *slot = write ? &inode->write_fd : &inode->read_fd;

	if (!fs->privileged) {
		pthread_mutex_lock(&fs->lock);
		if (inode->cfiles && *slot < 0) {
			*slot = access;
			access = -1;
		}
		pthread_mutex_unlock(&fs->lock);
	}
	if (access >= 0)
		inode_close(inode, access);
}

void access_keep(struct inode *inode)
{
	int fd;

	if (inode->fs->privileged || !contents_cached(inode))
		return;
	fd = inode_open(inode, O_RDWR);
	if (fd >= 0)
		access_give(inode, fd, true);
}

/* Nobody uses the contents: close the kept descriptors that can be opened again. */
static void access_drop(struct inode *inode)
{
	struct fs *fs = inode->fs;
	struct stat st;
	int fds[2];

	if (fs->privileged || stat_below(inode, &st) || st.st_uid != geteuid() ||
	    (st.st_mode & (S_IRUSR | S_IWUSR)) != (S_IRUSR | S_IWUSR))
		return;
	pthread_mutex_lock(&fs->lock);
	access_take(inode, fds);
	pthread_mutex_unlock(&fs->lock);
	close_both(inode, fds);
}

void contents_put(struct inode *inode)
{
	pthread_mutex_lock(&inode->lock);
	if (!--inode->users) {
		access_drop(inode);
		cfile_put(inode->cfile);
		inode->cfile = NULL;
	}
	pthread_mutex_unlock(&inode->lock);
}

bool contents_cached(struct inode *inode)
{
	bool cached;

	pthread_mutex_lock(&inode->fs->lock);
	cached = inode->cfiles;
	pthread_mutex_unlock(&inode->fs->lock);
	return cached;
}

bool contents_were_cached(struct inode *inode)
{
	bool were;

	pthread_mutex_lock(&inode->fs->lock);
	were = inode->were_cached;
	pthread_mutex_unlock(&inode->fs->lock);
	return were;
}

void contents_names_changed(struct inode *inode)
{
	struct cfile *f;
	struct stat st;

	if (!contents_cached(inode) || contents_get(inode, &f))
		return;
	if (!stat_below(inode, &st))
		cfile_set_gone(f, !st.st_nlink);
	contents_put(inode);
}
