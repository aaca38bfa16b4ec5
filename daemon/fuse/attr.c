/* attr.c - attributes: those of the source's files, corrected by what is only in the cache yet. */
#include "base/fault.h"
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The set-id bits that have an effect, and that a write by another user clears. */
static mode_t set_id_bits(mode_t mode)
{
	return mode & (mode & S_IXGRP ? S_ISUID | S_ISGID : S_ISUID);
}

ino_t attr_ino(const struct fs *fs, dev_t dev, ino_t ino)
{
	/* The mount shows one device number: files on other devices below the source get inode numbers of their own. */
	if (dev != fs->root.key.dev)
		ino ^= (ino_t)dev << 40 | (ino_t)1 << 63;
	return ino;
}

bool attr_mounted_with(struct inode *inode, unsigned long flag)
{
	int fd;
	struct statvfs st;

	if (inode->fs->source_flags & flag)
		return false;
	fd = inode_fd_get(inode);
	if (fd < 0 || fstatvfs(fd, &st))
		st.f_flag = flag;
	if (fd >= 0)
		inode_fd_put(inode);
	return st.f_flag & flag;
}

/* If something is mounted below the source with nosuid or nodev, its files have no set-id bits or device numbers in our mount. */
static void keep_from_rights(struct inode *inode, struct stat *st)
{
	if (S_ISREG(st->st_mode) && set_id_bits(st->st_mode) && attr_mounted_with(inode, ST_NOSUID))
		st->st_mode &= ~set_id_bits(st->st_mode);
	if ((S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode)) && attr_mounted_with(inode, ST_NODEV))
		st->st_rdev = 0; /* no device's number: ENXIO */
}

void attr_mend(struct inode *inode, struct stat *st)
{
	struct cfile *f;

	st->st_ino = attr_ino(inode->fs, st->st_dev, st->st_ino);
	keep_from_rights(inode, st);
	if (inode->type != S_IFREG || !contents_cached(inode) || contents_get(inode, &f))
		return;
	cfile_fix_stat(f, st);
	contents_put(inode);
}

/* The error means that others have removed a file of a shared source. */
static bool gone_below(struct inode *inode, int err)
{
	if (!inode->fs->config.shared || (err != -ESTALE && err != -ENOENT))
		return false;
	inode_retire(inode);
	return true;
}

int attr_read(struct inode *inode, int fd, struct stat *st)
{
	struct stat pending = { .st_mtim.tv_sec = INT64_MIN, .st_ctim.tv_sec = INT64_MIN };
	struct cfile *f = NULL;
	int err;

	if (inode->type == S_IFREG && contents_cached(inode) && contents_get(inode, &f))
		f = NULL;
	/* Before the attributes below are read: a time that has been stored is not known to the cache any more. */
	if (f)
		cfile_fix_stat(f, &pending);
	err = inode_stat(inode->fs, fd, st);
	if (gone_below(inode, err))
		err = -ESTALE;
	(void)fault_point("attr.read");
	if (!err) {
		attr_mend(inode, st);
		st->st_mtim = later_of(st->st_mtim, pending.st_mtim);
		st->st_ctim = later_of(st->st_ctim, pending.st_ctim);
	}
	if (f)
		contents_put(inode);
	return err;
}

static void reply_attr(fuse_req_t req, struct inode *inode, int fd)
{
	double timeout = attr_timeout(inode); /* asked for first, so that changes after that are noticed */
	struct stat st;
	int err = attr_read(inode, fd, &st);

	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_attr(req, &st, attr_timeout_of(inode, timeout, &st));
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct inode *inode = inode_of(req_fs(req), ino);
	int fd = inode_fd_get(inode);

	if (fd < 0) {
		fuse_reply_err(req, -fd);
		return;
	}
	reply_attr(req, inode, fd);
	inode_fd_put(inode);
}

static int set_size(fuse_req_t req, struct inode *inode, off_t size)
{
	struct cfile *f;
	int err = contents_get(inode, &f);

	if (err)
		return err;
	contents_written_by(inode, fuse_req_ctx(req)->uid);
	err = cache_truncate(f, (uint64_t)size);
	contents_put(inode);
	return err;
}

struct times {
	int fd;
	struct timespec ts[2];
};

int attr_look_at_owner(fuse_req_t req, struct inode *inode, int fd)
{
	uid_t caller = fuse_req_ctx(req)->uid;
	struct stat st;
	int err;

	if (!inode->fs->config.shared)
		return 0;
	err = inode_stat(inode->fs, fd, &st);
	if (err)
		return gone_below(inode, err) ? -ESTALE : err;
	/* Acting as the caller would be acting as the daemon's user. */
	return !inode->fs->privileged && caller && st.st_uid != caller ? -EPERM : 0;
}

static struct cred_over over_file(int fd)
{
	return (struct cred_over){ .files = { fd }, .n_files = 1 };
}

static int set_times_below(void *arg)
{
	const struct times *t = arg;

	return utimensat(t->fd, "", t->ts, AT_EMPTY_PATH) ? -errno : 0;
}

static int set_times(fuse_req_t req, struct inode *inode, int fd, const struct stat *attr, int to_set)
{
	const struct cred_over over = over_file(fd);
	struct times t = { fd, { { .tv_nsec = UTIME_OMIT }, { .tv_nsec = UTIME_OMIT } } };
	struct cfile *f;
	int err;

	if (to_set & FUSE_SET_ATTR_ATIME_NOW)
		t.ts[0].tv_nsec = UTIME_NOW;
	else if (to_set & FUSE_SET_ATTR_ATIME)
		t.ts[0] = attr->st_atim;
	if (to_set & FUSE_SET_ATTR_MTIME_NOW)
		t.ts[1].tv_nsec = UTIME_NOW;
	else if (to_set & FUSE_SET_ATTR_MTIME)
		t.ts[1] = attr->st_mtim;

	/* Only the owner sets other times than now. */
	if (inode->fs->config.shared && to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME))
		return AS_CALLER_OVER(req, &over, false, utimensat(fd, "", t.ts, AT_EMPTY_PATH));
	/* Later or running stores must not change the time again. */
	if (t.ts[1].tv_nsec == UTIME_OMIT || inode->type != S_IFREG || !contents_cached(inode) ||
	    contents_get(inode, &f))
		return set_times_below(&t);
	err = cache_set_times(f, set_times_below, &t);
	contents_put(inode);
	/* The kernel's own change, to a file that belongs to another user and may be written: the error would go to the next sync. */
	return err == -EPERM && to_set & FUSE_SET_ATTR_CTIME ? 0 : err;
}

static int set_owner(fuse_req_t req, int fd, const struct stat *attr, int to_set)
{
	uid_t uid = to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1;
	gid_t gid = to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1;
	const struct cred_over over = over_file(fd);

	if (req_fs(req)->config.shared && to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
		return AS_CALLER_OVER(req, &over, false, fchownat(fd, "", uid, gid, AT_EMPTY_PATH));
	return AS_CALLER_MAY(req, fchownat(fd, "", uid, gid, AT_EMPTY_PATH));
}

void attr_owner_changed(struct inode *inode)
{
	struct cfile *f;

	/* If it cannot be had now nobody has anything of it. */
	if (inode->type != S_IFREG || !contents_cached(inode) || contents_get(inode, &f))
		return;
	cache_owner_changed(f);
	contents_put(inode);
}

/* Storing may clear set-id bits. So what was written before they are set must be stored first. */
static int store_before_set_id(struct inode *inode)
{
	struct cfile *f;
	int err;

	if (inode->fs->privileged || !contents_cached(inode))
		return 0;
	err = contents_get(inode, &f);
	if (err)
		return err;
	err = cache_flush(f);
	contents_put(inode);
	return err;
}

/* @req: NULL if the caller needs no right to it. */
static int set_mode(fuse_req_t req, struct inode *inode, int fd, mode_t mode)
{
	const struct cred_over over = over_file(fd);
	int err = 0;

	if (inode->type == S_IFREG) {
		access_keep(inode);
		if (set_id_bits(mode))
			err = store_before_set_id(inode);
	}
	/* Without its capability the caller would lose the set-group-ID bit, and not be told. */
	if (!err && req && inode->fs->config.shared)
		err = AS_CALLER_OVER(req, &over, mode & S_ISGID, chmod(fd_path(fd).text, mode & 07777));
	else if (!err && chmod(fd_path(fd).text, mode & 07777))
		err = -errno;
	return err;
}

int attr_clear_set_id(struct inode *inode)
{
	mode_t clear = 0;
	struct stat st;
	int fd, err;

	fd = inode_fd_get(inode);
	if (fd < 0)
		return fd;
	err = inode_stat(inode->fs, fd, &st);
	if (!err)
		clear = set_id_bits(st.st_mode);
	if (clear)
		err = set_mode(NULL, inode, fd, st.st_mode & ~clear);
	inode_fd_put(inode);
	/* If we may write another user's file, but not change its mode, storing clears the bits below. */
	return err == -EPERM && !inode->fs->privileged ? 0 : err;
}

/*
 * A SETATTR that sets nothing is chown(2) with neither owner nor group. It moves the change time and clears set-id bits,
 * so only the owner may do it. But the kernel also sends it, without checking any right, before other calls that clear the
 * bits (fallocate(2) for one), on a file that is open for writing.
 */
static bool may_set_nothing(fuse_req_t req, struct inode *inode, int fd)
{
	uid_t caller = fuse_req_ctx(req)->uid;
	bool is_written;
	struct stat st;

	if (!caller || S_ISDIR(inode->type) || inode_stat(inode->fs, fd, &st) || st.st_uid == caller ||
	    !set_id_bits(st.st_mode))
		return true;
	pthread_mutex_lock(&inode->fs->lock);
	is_written = inode->writers;
	pthread_mutex_unlock(&inode->fs->lock);
	return is_written;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi)
{
	const int times = FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW |
			  FUSE_SET_ATTR_MTIME_NOW;
	const int owner = FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID;
	struct inode *inode = inode_of(req_fs(req), ino);
	bool nothing = !(to_set & (owner | times | FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_SIZE));
	int fd = inode_fd_get(inode), err = 0;

	if (fd < 0) {
		fuse_reply_err(req, -fd);
		return;
	}
	if (to_set & (owner | FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME))
		err = attr_look_at_owner(req, inode, fd);
	/* Ownership first: changing it clears set-id bits, which the mode may set again. */
	if (err)
		;
	else if (nothing && !may_set_nothing(req, inode, fd))
		err = -EPERM;
	else if (nothing || to_set & owner)
		err = set_owner(req, fd, attr, to_set);
	if (!err && to_set & FUSE_SET_ATTR_MODE)
		err = set_mode(req, inode, fd, attr->st_mode);
	if (to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_MODE))
		attr_owner_changed(inode);
	if (!err && to_set & FUSE_SET_ATTR_KILL_SUID) /* and set-gid: FATTR_KILL_SUIDGID */
		err = attr_clear_set_id(inode);
	if (!err && to_set & FUSE_SET_ATTR_SIZE)
		err = req_fs(req)->config.shared ? shared_truncate(inode, fi ? req_handle(req, fi) : NULL, attr->st_size) :
						   set_size(req, inode, attr->st_size);
	if (!err && to_set & times)
		err = set_times(req, inode, fd, attr, to_set);
	if (err)
		fuse_reply_err(req, -err);
	else
		reply_attr(req, inode, fd);
	inode_fd_put(inode);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs st;

	/* One answer for the whole mount, since to callers it is one file system. */
	if (fstatvfs(req_fs(req)->root.fd, &st))
		fuse_reply_err(req, errno_below(errno));
	else
		fuse_reply_statfs(req, &st);
}
