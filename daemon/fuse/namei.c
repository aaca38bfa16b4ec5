/*
 * namei.c - names: looking up, making, linking, removing, renaming.
 *
 * The kernel has checked permissions before it asks (default_permissions is always on); what creates
 * something runs as the caller nevertheless, see cred.c.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void entry_fill(struct inode *inode, const struct stat *st, struct fuse_entry_param *e)
{
	memset(e, 0, sizeof(*e));
	e->ino = nodeid_of(inode);
	e->generation = inode->id;
	e->attr = *st;
	attr_mend(inode, &e->attr);
	e->attr_timeout = FS_TIMEOUT;
	e->entry_timeout = FS_TIMEOUT;
}

int entry_lookup(struct inode *parent, const char *name, struct fuse_entry_param *e)
{
	struct inode *inode;
	struct stat st;
	int fd, err;

	fd = openat(parent->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	err = inode_enter(parent->fs, fd, parent, name, &inode, &st);
	if (err)
		return err;
	entry_fill(inode, &st, e);
	return 0;
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e;
	int err = entry_lookup(inode_of(req_fs(req), parent), name, &e);

	if (err == -ENOENT) {
		/* That there is no such name is worth remembering, too. */
		memset(&e, 0, sizeof(e));
		e.entry_timeout = FS_TIMEOUT;
		err = 0;
	}
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_entry(req, &e);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	inode_forget(inode_of(req_fs(req), ino), nlookup);
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		inode_forget(inode_of(req_fs(req), forgets[i].ino), forgets[i].nlookup);
	fuse_reply_none(req);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char target[PATH_MAX + 1];
	ssize_t n = readlinkat(inode_of(req_fs(req), ino)->fd, "", target, sizeof(target));

	if (n < 0) {
		fuse_reply_err(req, errno);
	} else if (n == sizeof(target)) {
		fuse_reply_err(req, ENAMETOOLONG);
	} else {
		target[n] = '\0';
		fuse_reply_readlink(req, target);
	}
}

static void reply_entry(fuse_req_t req, int err, struct inode *parent, const char *name)
{
	struct fuse_entry_param e;

	if (!err)
		err = entry_lookup(parent, name, &e);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_entry(req, &e);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	struct inode *dir = inode_of(req_fs(req), parent);
	int err = cred_enter(req);

	if (!err) {
		if (mknodat(dir->fd, name, mode, rdev))
			err = -errno;
		cred_leave(req);
	}
	reply_entry(req, err, dir, name);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct inode *dir = inode_of(req_fs(req), parent);
	int err = cred_enter(req);

	if (!err) {
		if (mkdirat(dir->fd, name, mode))
			err = -errno;
		cred_leave(req);
	}
	reply_entry(req, err, dir, name);
}

void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	struct inode *dir = inode_of(req_fs(req), parent);
	int err = cred_enter(req);

	if (!err) {
		if (symlinkat(link, dir->fd, name))
			err = -errno;
		cred_leave(req);
	}
	reply_entry(req, err, dir, name);
}

/* A new file, opened for everything, since it is its creator who asks. */
static int create_file(fuse_req_t req, struct inode *dir, const char *name, mode_t mode, int flags)
{
	int fd, err;

	flags = (flags & O_EXCL) | O_RDWR | O_NOFOLLOW | O_CLOEXEC;
	err = cred_enter(req);
	if (err)
		return err;
	if (serve_is_tmpfile())
		fd = openat(dir->fd, ".", flags | O_TMPFILE, mode);
	else
		fd = openat(dir->fd, name, flags | O_CREAT, mode);
	if (fd < 0)
		err = -errno;
	cred_leave(req);
	return err ? err : fd;
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct inode *dir = inode_of(fs, parent), *inode;
	bool named = !serve_is_tmpfile();
	struct fuse_entry_param e;
	struct handle *h;
	struct stat st;
	int access, fd, err;

	access = create_file(req, dir, name, mode, fi->flags);
	if (access < 0) {
		err = access;
		goto fail;
	}
	fd = open(fd_path(access).text, O_PATH | O_CLOEXEC);
	if (fd < 0) {
		err = -errno;
		goto close_access;
	}
	err = inode_enter(fs, fd, named ? dir : NULL, named ? name : NULL, &inode, &st);
	if (err)
		goto close_access;
	err = handle_open(inode, fi->flags, access, &h);
	access = -1;
	if (err)
		goto forget;
	entry_fill(inode, &st, &e);
	fi->fh = (uintptr_t)h;
	fi->keep_cache = 1;
	fuse_reply_create(req, &e, fi);
	return;

forget:
	inode_forget(inode, 1);
close_access:
	if (access >= 0)
		close(access);
fail:
	fuse_reply_err(req, -err);
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname)
{
	struct fs *fs = req_fs(req);
	struct inode *inode = inode_of(fs, ino), *dir = inode_of(fs, newparent);
	int err = 0;

	if (linkat(AT_FDCWD, fd_path(inode->fd).text, dir->fd, newname, AT_SYMLINK_FOLLOW))
		err = -errno;
	else
		contents_names_changed(inode);
	reply_entry(req, err, dir, newname);
}

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name, int flags)
{
	struct fs *fs = req_fs(req);
	struct inode *dir = inode_of(fs, parent), *victim = inode_known(fs, dir, name);
	int err = 0;

	if (unlinkat(dir->fd, name, flags))
		err = -errno;
	if (victim) {
		if (!err)
			contents_names_changed(victim);
		inode_put(victim);
	}
	fuse_reply_err(req, -err);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, 0);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, AT_REMOVEDIR);
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
	       const char *newname, unsigned flags)
{
	struct fs *fs = req_fs(req);
	struct inode *from = inode_of(fs, parent), *to = inode_of(fs, newparent);
	struct inode *moved = inode_known(fs, from, name);
	struct inode *other = inode_known(fs, to, newname);
	int err = 0;

	if (renameat2(from->fd, name, to->fd, newname, flags))
		err = -errno;
	if (!err && moved)
		inode_rename(moved, to, newname);
	if (!err && other) {
		if (flags & RENAME_EXCHANGE)
			inode_rename(other, from, name);
		else
			contents_names_changed(other);
	}
	if (moved)
		inode_put(moved);
	if (other)
		inode_put(other);
	fuse_reply_err(req, -err);
}
