/*
 * contents.c - which cfile holds the contents of an inode, and how the cache opens them.
 *
 * A cfile exists while the cache has something of the file, which may be long after the
 * last handle: it keeps the inode, and with it the descriptor, until contents_released().
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Errors of opening for writing after which reading may still be possible. */
static bool only_unwritable(int err)
{
	return err == -EACCES || err == -EPERM || err == -EROFS || err == -ETXTBSY;
}

/* The cache wants the contents. [F]; takes no lock. */
static int contents_open(void *cookie, bool write, struct store_file **out)
{
	struct inode *inode = cookie;
	struct store *store = inode->fs->store;
	int write_fd = inode->write_fd, read_fd = inode->read_fd, err;

	if (write) {
		err = store_open(store, write_fd >= 0 ? write_fd : inode->fd, true, out);
		if (!err || !only_unwritable(err))
			return err;
	}
	err = store_open(store, inode->fd, false, out);
	if (err == -EACCES && read_fd >= 0)
		err = store_open(store, read_fd, false, out);
	return err;
}

/* A cfile has ended, or cfile_get() found the one that exists. Any thread. */
static void contents_released(void *cookie)
{
	struct inode *inode = cookie;
	struct fs *fs = inode->fs;
	int read_fd = -1, write_fd = -1;

	pthread_mutex_lock(&fs->lock);
	bug_on(!inode->cfiles);
	if (!--inode->cfiles) {
		read_fd = atomic_exchange(&inode->read_fd, -1);
		write_fd = atomic_exchange(&inode->write_fd, -1);
	}
	pthread_mutex_unlock(&fs->lock);
	if (read_fd >= 0)
		close(read_fd);
	if (write_fd >= 0)
		close(write_fd);
	inode_put(inode);
}

static const struct cfile_source contents_source = {
	.open = contents_open,
	.release = contents_released,
};

int contents_get(struct inode *inode, struct cfile **out)
{
	struct fs *fs = inode->fs;
	int err = 0;

	pthread_mutex_lock(&inode->lock);
	if (!inode->users) {
		struct stat st;

		if (fstat(inode->fd, &st)) {
			err = -errno;
			goto unlock;
		}
		/* Given to the cache, or taken back below. */
		pthread_mutex_lock(&fs->lock);
		inode->refs++;
		inode->cfiles++;
		pthread_mutex_unlock(&fs->lock);
		err = cfile_get(fs->cache, inode->id, &contents_source, inode,
				(uint64_t)st.st_size, &inode->cfile);
		if (err) {
			inode->cfile = NULL;
			contents_released(inode);
			goto unlock;
		}
		cfile_set_gone(inode->cfile, !st.st_nlink);
	}
	inode->users++;
	*out = inode->cfile;
unlock:
	pthread_mutex_unlock(&inode->lock);
	return err;
}

void contents_put(struct inode *inode)
{
	pthread_mutex_lock(&inode->lock);
	if (!--inode->users) {
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

void contents_names_changed(struct inode *inode)
{
	struct cfile *f;
	struct stat st;

	if (!contents_cached(inode) || contents_get(inode, &f))
		return;
	if (!fstat(inode->fd, &st))
		cfile_set_gone(f, !st.st_nlink);
	contents_put(inode);
}
