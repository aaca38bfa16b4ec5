/*
 * namei.c - names: looking up, making, linking, removing, renaming.
 *
 * The kernel checks permissions before it asks (default_permissions is always on). Calls that create
 * something run as the caller all the same: see cred.c.
 */
#include "base/fault.h"
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int read_again(struct inode *inode, struct stat *st)
{
	int fd = inode_fd_get(inode), err;

	if (fd < 0)
		return fd;
	err = attr_read(inode, fd, st);
	inode_fd_put(inode);
	return err;
}

void entry_fill(struct inode *inode, const struct stat *st, struct fuse_entry_param *e)
{
	double timeout = attr_timeout(inode);
	bool old;

	memset(e, 0, sizeof(*e));
	e->ino = serve_told(inode->id, "lookup.wrong_number");
	e->generation = inode->fs->generation;
	e->attr = *st;
	/* @st was read before the inode was known: programs may have written through the cache since then. */
	old = contents_were_cached(inode);
	if (!old || read_again(inode, &e->attr)) {
		attr_mend(inode, &e->attr);
		timeout = old ? 0 : timeout;
	}
	e->attr_timeout = attr_timeout_of(inode, timeout, &e->attr);
	e->entry_timeout = inode->fs->config.shared ? timeout : FS_TIMEOUT;
}

int entry_lookup(struct inode *parent, const char *name, struct fuse_entry_param *e)
{
	struct inode *inode;
	struct stat st;
	int dir, fd, err;

	dir = inode_fd_get(parent);
	if (dir < 0)
		return dir;
	fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	err = fd < 0 ? -errno_below(errno) : 0;
	inode_fd_put(parent);
	if (err)
		return err;
	err = inode_enter(parent->fs, fd, parent, name, &inode, &st);
	if (err)
		return err;
	entry_fill(inode, &st, e);
	return 0;
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	struct fuse_entry_param e;
	int err = entry_lookup(inode_of(fs, parent), name, &e);

	if (err == -ENOENT && !fs->config.shared) {
		/* The kernel is to remember that there is no such name. */
		memset(&e, 0, sizeof(e));
		e.entry_timeout = FS_TIMEOUT;
		err = 0;
	}
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_entry(req, &e);
}

static void forget(struct fs *fs, fuse_ino_t ino, uint64_t nlookup)
{
	struct inode *inode = inode_of(fs, ino);

	if (inode)
		inode_forget(inode, nlookup);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	forget(req_fs(req), ino, nlookup);
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		forget(req_fs(req), forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct inode *inode = inode_of(req_fs(req), ino);
	char target[PATH_MAX + 1];
	int fd = inode_fd_get(inode);
	ssize_t n;

	if (fd < 0) {
		fuse_reply_err(req, -fd);
		return;
	}
	n = readlinkat(fd, "", target, sizeof(target));
	inode_fd_put(inode);
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

static int make_below(int dir, const char *name, mode_t mode, dev_t rdev, const char *target)
{
	if (target)
		return symlinkat(target, dir, name);
	return S_ISDIR(mode) ? mkdirat(dir, name, mode) : mknodat(dir, name, mode, rdev);
}

/* Make anything but a file that is opened at the same time (op_create()). @target: of a symlink. */
static void make(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev,
		 const char *target)
{
	struct fs *fs = req_fs(req);
	struct inode *dir = inode_of(fs, parent);
	int fd = inode_fd_get(dir), err;

	err = fd < 0 ? fd : inode_room(fs, fuse_req_ctx(req)->uid);
	if (!err)
		err = AS_CALLER(req, fd, make_below(fd, name, mode, rdev, target));
	if (!err)
		dir_changed(dir);
	reply_entry(req, err, dir, name);
	if (fd >= 0)
		inode_fd_put(dir);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	make(req, parent, name, mode, rdev, NULL);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	make(req, parent, name, mode | S_IFDIR, 0, NULL);
}

void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	make(req, parent, name, 0, 0, link);
}

/* @name: NULL for a file without a name. */
static int create_below(int dir, const char *name, mode_t mode, int flags)
{
	int fd = name ? openat(dir, name, flags | O_CREAT, mode) : openat(dir, ".", flags | O_TMPFILE, mode);

	return fd < 0 ? -errno : fd;
}

/* A new file, opened for reading and writing whatever its mode: its creator may do both with this descriptor. */
static int create_file(fuse_req_t req, struct inode *dir, const char *name, mode_t mode, int flags)
{
	int dirfd = inode_fd_get(dir), fd, again;

	flags = (flags & O_EXCL) | O_RDWR | O_NOFOLLOW | O_CLOEXEC;
	fd = dirfd < 0 ? dirfd : cred_enter(req);
	if (!fd) {
		fd = create_below(dirfd, name, mode, flags);
		cred_leave(req);
		if (cred_enter_capable(req, dirfd, fd)) {
			/* If somebody has made the file in the source meanwhile, the caller gets the first error. */
			again = create_below(dirfd, name, mode, flags | (name ? O_EXCL : 0));
			cred_leave(req);
			fd = again == -EEXIST ? fd : again;
		}
	}
	if (dirfd >= 0)
		inode_fd_put(dir);
	return fd;
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct inode *dir = inode_of(fs, parent), *inode;
	bool named = !serve_is_tmpfile(), entered = false;
	struct fuse_entry_param e;
	struct handle *h;
	struct stat st;
	uid_t uid = fuse_req_ctx(req)->uid;
	int access, fd, err;

	err = named ? inode_room(fs, uid) : inode_removal_begin(fs, uid);
	if (err)
		goto fail;
	access = create_file(req, dir, named ? name : NULL, mode, fi->flags);
	if (access < 0) {
		err = access;
		goto not_made;
	}
	if (named)
		dir_changed(dir);
	fd = open(fd_path(access).text, O_PATH | O_CLOEXEC);
	if (fd < 0) {
		err = -errno;
		goto close_access;
	}
	err = inode_enter(fs, fd, named ? dir : NULL, named ? name : NULL, &inode, &st);
	if (err)
		goto close_access;
	if (!named)
		inode_removal_end(fs, uid, inode);
	entered = true;
	passthrough_created(inode, access);
	err = handle_open(inode, fi->flags, access, fuse_req_ctx(req)->uid, &h);
	access = -1;
	if (err)
		goto forget;
	err = handle_tell(req, h, fi);
	if (err)
		goto forget;
	entry_fill(inode, &st, &e);
	fuse_reply_create(req, &e, fi);
	return;

forget:
	inode_forget(inode, 1);
close_access:
	if (access >= 0)
		close(access);
not_made:
	if (!named && !entered)
		inode_removal_end(fs, uid, NULL);
fail:
	fuse_reply_err(req, -err);
}

/*
 * Rights in a directory of a shared source as they are now: of names in it the kernel has allowed the change by what it remembers, and the
 * file system below may do no better.
 */
static void look_at_rights(fuse_req_t req, int dir)
{
	struct stat st;

	if (fuse_req_ctx(req)->uid)
		(void)inode_stat(req_fs(req), dir, &st);
}

static int link_below(fuse_req_t req, int fd, int dir, const char *name)
{
	const struct cred_over over = { .dirs = { dir }, .n_dirs = 1, .files = { fd }, .n_files = 1 };

	if (!req_fs(req)->config.shared)
		return AS_CALLER_MAY(req, linkat(AT_FDCWD, fd_path(fd).text, dir, name, AT_SYMLINK_FOLLOW));
	look_at_rights(req, dir);
	return AS_CALLER_OVER(req, &over, false, linkat(AT_FDCWD, fd_path(fd).text, dir, name, AT_SYMLINK_FOLLOW));
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname)
{
	struct fs *fs = req_fs(req);
	struct inode *inode = inode_of(fs, ino), *dir = inode_of(fs, newparent);
	int fd = inode_fd_get(inode), dirfd = inode_fd_get(dir), err = 0;
	struct fuse_entry_param e;

	if (fd < 0 || dirfd < 0)
		err = fd < 0 ? fd : dirfd;
	else
		err = link_below(req, fd, dirfd, newname);
	if (!err) {
		dir_changed(dir);
		contents_names_changed(inode);
		err = entry_lookup(dir, newname, &e);
	}
	(void)fault_point("link.before_reply");
	if (err) {
		fuse_reply_err(req, -err);
	} else {
		/*
		 * As for a new file, the kernel accepts the attributes of this reply even if it was told meanwhile that
		 * they change. Those of an existing file may be outdated then.
		 */
		e.attr_timeout = 0;
		fuse_reply_entry(req, &e);
	}
	if (fd >= 0)
		inode_fd_put(inode);
	if (dirfd >= 0)
		inode_fd_put(dir);
}

/* @victim: NULL if it is not known. As the caller where others may have changed who owns what since the kernel has looked. */
static int remove_below(fuse_req_t req, int dir, const struct inode *victim, const char *name, int flags)
{
	const struct cred_over over = { .dirs = { dir }, .n_dirs = 1, .files = { victim ? victim->fd : -1 }, .n_files = victim != NULL };

	if (!req_fs(req)->config.shared)
		return unlinkat(dir, name, flags) ? -errno : 0;
	look_at_rights(req, dir);
	return AS_CALLER_OVER(req, &over, false, unlinkat(dir, name, flags));
}

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name, int flags)
{
	struct fs *fs = req_fs(req);
	struct inode *dir = inode_of(fs, parent), *victim;
	int fd = inode_fd_get(dir), err = 0, full = 0;
	uid_t uid = fuse_req_ctx(req)->uid;

	if (fd < 0) {
		fuse_reply_err(req, -fd);
		return;
	}
	victim = inode_known(fs, fd, name);
	if (victim)
		err = full = inode_removal_begin(fs, uid);
	if (!err)
		err = remove_below(req, fd, victim, name, flags);
	if (!err)
		dir_changed(dir);
	inode_fd_put(dir);
	if (victim) {
		if (!err) {
			inode_unnamed(victim, dir, name);
			contents_names_changed(victim);
		}
		if (!full)
			inode_removal_end(fs, uid, err ? NULL : victim);
		inode_fd_put(victim);
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

struct renaming {
	struct inode *from, *to;
	int from_fd, to_fd;
	const char *name, *newname;
	unsigned flags;
};

/*
 * A directory that stands for both, since a capability must count for either one: they must have the same owner
 * and group. -1: they have not.
 */
static int both_directories(const struct renaming *r)
{
	struct stat from, to;

	return !fstat(r->from_fd, &from) && !fstat(r->to_fd, &to) && from.st_uid == to.st_uid && from.st_gid == to.st_gid ?
		       r->from_fd :
		       -1;
}

static int rename_as_caller(fuse_req_t req, const struct renaming *r, const struct inode *moved, const struct inode *other)
{
	struct cred_over over = { .dirs = { r->from_fd, r->to_fd }, .n_dirs = 2 };

	if (moved)
		over.files[over.n_files++] = moved->fd;
	if (other)
		over.files[over.n_files++] = other->fd;
	if (moved && S_ISDIR(moved->type))
		over.dirs[over.n_dirs++] = moved->fd; /* its ".." changes */
	for (unsigned i = 0; i < over.n_dirs; i++)
		look_at_rights(req, over.dirs[i]);
	return AS_CALLER_OVER(req, &over, false, renameat2(r->from_fd, r->name, r->to_fd, r->newname, r->flags));
}

/* As the caller if that creates something: a whiteout. */
static int rename_below(fuse_req_t req, const struct renaming *r, const struct inode *moved, const struct inode *other)
{
	if (req_fs(req)->config.shared)
		return rename_as_caller(req, r, moved, other);
	if (!(r->flags & RENAME_WHITEOUT))
		return AS_CALLER_MAY(req, renameat2(r->from_fd, r->name, r->to_fd, r->newname, r->flags));
	return AS_CALLER(req, both_directories(r), renameat2(r->from_fd, r->name, r->to_fd, r->newname, r->flags));
}

static int rename_known(fuse_req_t req, const struct renaming *r)
{
	struct fs *fs = req_fs(req);
	struct inode *moved = inode_known(fs, r->from_fd, r->name);
	struct inode *other = inode_known(fs, r->to_fd, r->newname);
	bool replaces = other && other != moved && !(r->flags & (RENAME_EXCHANGE | RENAME_NOREPLACE));
	uid_t uid = fuse_req_ctx(req)->uid;
	int err = 0, full = 0;

	if (replaces)
		err = full = inode_removal_begin(fs, uid);
	if (!err)
		err = rename_below(req, r, moved, other);
	if (!err) {
		dir_changed(r->from);
		dir_changed(r->to);
	}
	/* Two names of one file: nothing happens. */
	if (!err && moved != other) {
		if (moved) {
			inode_renamed(moved, r->to, r->newname);
			dir_changed(moved);
		}
		if (other && r->flags & RENAME_EXCHANGE) {
			inode_renamed(other, r->from, r->name);
			dir_changed(other);
		}
		if (other && !(r->flags & RENAME_EXCHANGE)) {
			inode_unnamed(other, r->to, r->newname);
			contents_names_changed(other);
		}
	}
	if (replaces && !full)
		inode_removal_end(fs, uid, err ? NULL : other);
	if (moved)
		inode_fd_put(moved);
	if (other)
		inode_fd_put(other);
	return err;
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
	       const char *newname, unsigned flags)
{
	struct fs *fs = req_fs(req);
	struct renaming r = {
		.from = inode_of(fs, parent),
		.to = inode_of(fs, newparent),
		.name = name,
		.newname = newname,
		.flags = flags,
	};
	int err;

	r.from_fd = inode_fd_get(r.from);
	r.to_fd = inode_fd_get(r.to);
	if (r.from_fd < 0 || r.to_fd < 0)
		err = MIN(r.from_fd, r.to_fd);
	else
		err = rename_known(req, &r);
	if (r.from_fd >= 0)
		inode_fd_put(r.from);
	if (r.to_fd >= 0)
		inode_fd_put(r.to);
	fuse_reply_err(req, -err);
}
