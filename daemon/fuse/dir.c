/*
 * dir.c - reading directories.
 *
 * Offsets are those of the directory below, which file systems keep stable while entries
 * are added and removed.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * The kernel caches listings. After it has made or removed a name (nobody else does) it drops the directory's listing; but it
 * looks for that only when a reader starts at the beginning, and only if the listing is complete. An incomplete listing from
 * before the change is completed by the next reader, and then used by readers that are halfway; and nothing drops the ".." of a
 * directory that is moved (Linux 6.18). So after each change the next open drops the kernel's listing.
 */
void dir_changed(struct inode *inode)
{
	atomic_store(&inode->relist, true);
}

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct inode *inode = inode_of(fs, ino);
	uid_t uid = fuse_req_ctx(req)->uid;
	struct handle *h;
	int fd, err;

	/* Each open directory holds a descriptor, and their number is limited. */
	err = quota_take(fs->config.quota, QUOTA_directories, uid);
	if (err)
		goto fail;
	h = calloc(1, sizeof(*h));
	if (!h) {
		err = -ENOMEM;
		goto give_back;
	}
	fd = inode_open(inode, O_RDONLY | O_DIRECTORY);
	if (fd < 0) {
		err = fd;
		goto free_handle;
	}
	h->dir = fdopendir(fd);
	if (!h->dir) {
		err = -errno;
		close(fd);
		goto free_handle;
	}
	h->inode = inode;
	h->refs = 1;
	h->flags = fi->flags;
	h->uid = uid;
	pthread_mutex_init(&h->lock, NULL);
	pthread_mutex_lock(&fs->lock);
	err = id_table_add(&fs->handles, h, &h->id);
	if (!err) {
		inode->refs++;
		fs->n_dirs++;
	}
	pthread_mutex_unlock(&fs->lock);
	if (err)
		goto close_dir;
	fi->fh = serve_told(h->id, "open.wrong_number");
	/* The kernel may keep the listing for the next reader. */
	fi->cache_readdir = !fs->config.shared;
	fi->keep_cache = !atomic_exchange(&inode->relist, false) && !fs->config.shared;
	fuse_reply_open(req, fi);
	return;

close_dir:
	pthread_mutex_destroy(&h->lock);
	closedir(h->dir);
free_handle:
	free(h);
give_back:
	quota_give(fs->config.quota, QUOTA_directories, uid);
fail:
	fuse_reply_err(req, -err);
}

static bool is_dots(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

/*
 * Only the attributes that the directory entry has: the kernel asks for the others when it
 * needs them.
 */
static void plain_entry(const struct fs *fs, const struct handle *h, const struct dirent *d,
			struct fuse_entry_param *e)
{
	memset(e, 0, sizeof(*e));
	e->attr.st_ino = attr_ino(fs, h->inode->key.dev, d->d_ino);
	e->attr.st_mode = DTTOIF(d->d_type);
}

/* Returns the entry's bytes in the reply; it was added if they are at most @room. */
static size_t add_entry(fuse_req_t req, struct handle *h, const struct dirent *d, char *buf,
			size_t room, bool plus)
{
	struct fs *fs = req_fs(req);
	struct fuse_entry_param e;
	size_t need;

	plain_entry(fs, h, d, &e);
	if (!plus)
		return fuse_add_direntry(req, buf, room, d->d_name, &e.attr, d->d_off);

	/* See first whether there is room: a lookup that the reply does not tell the kernel of would be counted for ever. */
	need = fuse_add_direntry_plus(req, NULL, 0, d->d_name, NULL, 0);
	if (need > room)
		return need;
	if (!is_dots(d->d_name) && entry_lookup(h->inode, d->d_name, &e))
		plain_entry(fs, h, d, &e);
	return fuse_add_direntry_plus(req, buf, room, d->d_name, &e, d->d_off);
}

static void read_dir(fuse_req_t req, struct handle *h, size_t size, off_t off, bool plus)
{
	char *buf = malloc(size);
	size_t used = 0;
	int err = 0;

	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	pthread_mutex_lock(&h->lock);
	if (off != h->at) {
		seekdir(h->dir, off);
		h->next = NULL;
		h->at = off;
	}
	for (;;) {
		size_t need;

		if (!h->next) {
			errno = 0;
			h->next = readdir(h->dir);
			if (!h->next) {
				err = -errno;
				break;
			}
		}
		need = add_entry(req, h, h->next, buf + used, size - used, plus);
		if (need > size - used)
			break;
		used += need;
		h->at = h->next->d_off;
		h->next = NULL;
	}
	pthread_mutex_unlock(&h->lock);
	/* Entries that were read before an error are valid; the next read will meet the error again. */
	if (err && !used)
		fuse_reply_err(req, -err);
	else
		fuse_reply_buf(req, buf, used);
	free(buf);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	read_dir(req, req_handle(req, fi), size, off, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	read_dir(req, req_handle(req, fi), size, off, true);
}

void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	handle_close(req_handle(req, fi));
	fuse_reply_err(req, 0);
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	int fd = dirfd(req_handle(req, fi)->dir);

	fuse_reply_err(req, (datasync ? fdatasync(fd) : fsync(fd)) ? errno : 0);
}
