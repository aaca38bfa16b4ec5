/*
 * file.c - open files, whose contents are in the page cache.
 *
 * A READ or WRITE with a lock owner is a process's direct I/O, past the kernel's cache; one without
 * fills the kernel's pages or writes them back. (The flag O_DIRECT does not tell the two apart: a
 * mapping of such a descriptor fills pages, too.)
 */
#include "base/fault.h"
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int handle_enter(struct handle *h)
{
	struct fs *fs = h->inode->fs;
	int err;

	pthread_mutex_init(&h->lock, NULL);
	pthread_mutex_lock(&fs->lock);
	err = id_table_add(&fs->handles, h, &h->id);
	if (!err) {
		h->inode->refs++;
		h->inode->writers += open_to_write(h->flags);
	}
	pthread_mutex_unlock(&fs->lock);
	if (err)
		pthread_mutex_destroy(&h->lock);
	return err;
}

int handle_open(struct inode *inode, int flags, int access, uid_t uid, struct handle **out)
{
	struct fs *fs = inode->fs;
	bool write = open_to_write(flags);
	struct handle *h = calloc(1, sizeof(*h));
	int err = -ENOMEM;

	if (!h)
		goto close_access;
	/*
	 * Find out now whether the file can be opened, not when data must be stored. Where a write
	 * changes a page in part the cache reads the rest, so writing needs read access, too.
	 */
	if (access < 0 && (write || !fs->privileged)) {
		access = inode_open(inode, write ? O_RDWR : O_RDONLY);
		if (access < 0) {
			err = access;
			goto free_handle;
		}
	} else if (access >= 0) {
		write = true;
	}
	err = contents_get(inode, &h->cfile);
	if (err)
		goto free_handle;
	if (access >= 0)
		access_give(inode, access, write);
	access = -1;
	if (open_to_write(flags)) {
		contents_written_by(inode, uid);
		cache_opened_to_write(h->cfile, uid);
	}
	h->uid = uid;
	h->inode = inode;
	h->refs = 1;
	h->flags = flags;
	h->errors_seen = cfile_error_now(h->cfile);
	err = handle_enter(h);
	if (err)
		goto put_contents;
	*out = h;
	return 0;

put_contents:
	contents_put(inode);
free_handle:
	free(h);
close_access:
	if (access >= 0)
		inode_close(inode, access);
	return err;
}

void handle_keep(struct handle *h)
{
	atomic_fetch_add(&h->refs, 1);
}

void handle_close(struct handle *h)
{
	struct inode *inode = h->inode;
	struct fs *fs = inode->fs;

	if (atomic_fetch_sub(&h->refs, 1) != 1)
		return;
	pthread_mutex_lock(&fs->lock);
	id_table_remove(&fs->handles, h->id);
	inode->writers -= !h->dir && open_to_write(h->flags);
	fs->n_dirs -= h->dir != NULL;
	pthread_mutex_unlock(&fs->lock);
	if (h->cfile)
		contents_put(inode);
	else if (!h->dir)
		shared_close(h);
	if (h->dir) {
		closedir(h->dir);
		quota_give(fs->config.quota, QUOTA_directories, h->uid);
	}
	pthread_mutex_destroy(&h->lock);
	free(h);
	inode_put(inode);
}

int handle_tell(fuse_req_t req, struct handle *h, struct fuse_file_info *fi)
{
	int err = passthrough_open(req, h, fi);

	if (err) {
		handle_close(h);
		return err;
	}
	if (!h->passthrough && open_to_write(fi->flags))
		cfile_will_be_written(h->cfile);
	h->uid = fuse_req_ctx(req)->uid;
	fi->fh = serve_told(h->id, "open.wrong_number");
	fi->keep_cache = !h->passthrough;
	/* For such handles op_flush() has nothing to do. The kernel respects this where it writes through. */
	fi->noflush = h->passthrough || !open_to_write(fi->flags);
	return 0;
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *h;
	int err = handle_open(inode_of(req_fs(req), ino), fi->flags, -1, fuse_req_ctx(req)->uid, &h);

	if (!err)
		err = handle_tell(req, h, fi);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_open(req, fi);
}

/*
 * The kernel sends no READ for a passed-through file, except for readahead advice. It would fill this mount's pages,
 * which nobody reads, and which nothing drops when the file below changes: they would be found, stale, once the file is
 * cached. So such a READ is refused, and the file below gets the advice.
 */
static void pass_advice(fuse_req_t req, struct inode *inode, size_t size, off_t off)
{
	int fd = inode_open(inode, O_RDONLY);

	if (fd >= 0) {
		(void)posix_fadvise(fd, off, (off_t)size, POSIX_FADV_WILLNEED);
		inode_close(inode, fd);
	}
	fuse_reply_err(req, EIO); /* the kernel tells nobody */
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct handle *h = req_handle(req, fi);
	bool fills_pages = !fi->lock_owner;
	struct cache_read rd;
	int err;

	if (h->passthrough) {
		pass_advice(req, h->inode, size, off);
		return;
	}
	err = cache_read_begin(h->cfile, off, MIN(size, CACHE_READ_MAX), fills_pages, &rd);
	if (err) {
		fuse_reply_err(req, -err);
		return;
	}
	(void)fault_point("read.before_reply");
	fuse_reply_iov(req, rd.iov, rd.n_iov);
	cache_read_end(&rd);
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
	      struct fuse_file_info *fi)
{
	enum cache_write_kind kind = fi->writepage    ? CACHE_WRITE_PAGES :
				     fi->lock_owner ? CACHE_WRITE_EXACT :
							CACHE_WRITE_THROUGH;
	struct handle *h = req_handle(req, fi);
	int err = serve_clears_set_id() ? attr_clear_set_id(h->inode) : 0;

	/*
	 * The writer may be another user than the one who opened the descriptor. Of pages that the kernel
	 * gathered, the writer is not known.
	 */
	if (!fi->writepage)
		contents_written_by(h->inode, fuse_req_ctx(req)->uid);
	if (!err)
		err = cache_write(h->cfile, buf, size, off, kind);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_write(req, size);
}

/* @err, or an error that was not reported to this open file yet. */
static int unseen_error(struct handle *h, int err)
{
	uint64_t seen = h->errors_seen;
	int kept = cfile_error_check(h->cfile, &seen);

	h->errors_seen = seen;
	kept = kept ? kept : -atomic_exchange(&h->owed, 0);
	return err ? err : kept;
}

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *h = req_handle(req, fi);
	int err = open_to_write(h->flags) ? cache_flush(h->cfile) : 0;

	/* What an engine has told the daemon is for the next sync: that is this, since there may be no other. */
	if (!err && open_to_write(h->flags) && atomic_load_explicit(&h->inode->lost, memory_order_relaxed))
		err = cache_fsync(h->cfile, 0, INT64_MAX, true);
	/*
	 * Errors from before are for fsync(2), as on a disk's file system. What could not be stored has just been tried again; and this may be
	 * the close of a child that runs another program, of which nobody looks at the result.
	 */
	fuse_reply_err(req, -err);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *h = req_handle(req, fi);

	passthrough_release(req, h);
	handle_close(h);
	fuse_reply_err(req, 0);
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	struct handle *h = req_handle(req, fi);
	int err = unseen_error(h, cache_fsync(h->cfile, 0, INT64_MAX, datasync));

	fuse_reply_err(req, -err);
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi)
{
	struct handle *h = req_handle(req, fi);
	int err;

	/*
	 * A client sends this for its effect in the kernel, which has happened by now (GAIA_FEATURE_TIMES).
	 * It is not passed on: on most file systems no file reaches that far.
	 */
	if (mode == FALLOC_FL_KEEP_SIZE && off == GAIA_TOUCH_OFFSET) {
		fuse_reply_err(req, EFBIG);
		return;
	}
	contents_written_by(h->inode, fuse_req_ctx(req)->uid);
	err = cache_allocate(h->cfile, mode, off, len);
	if (err)
		passthrough_failed(h);
	fuse_reply_err(req, -err);
}

struct seek {
	fuse_req_t req;
	struct handle *handle; /* stays until the request is answered */
	off_t off;
	int whence;
	int64_t came; /* serve_later() */
};

static void reply_seek(const struct seek *seek)
{
	off_t at = cache_seek(seek->handle->cfile, seek->off, seek->whence);

	if (at < 0)
		fuse_reply_err(seek->req, (int)-at);
	else
		fuse_reply_lseek(seek->req, at);
}

static void seek_after_push(void *arg)
{
	struct seek *seek = arg;
	struct inode *inode = seek->handle->inode;
	struct fs *fs = inode->fs;

	invalidate(inode, 0, 0);
	reply_seek(seek);
	serve_answered(LATENCY_request_seek, seek->came);
	busy_end(fs);
	free(seek);
}

/*
 * The kernel asks for holes and data without writing back its dirty pages first. If it may have any,
 * have it write them back; otherwise their data would be taken for a hole.
 */
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
	struct seek seek = { .req = req, .handle = req_handle(req, fi), .off = off, .whence = whence }, *job;
	struct fs *fs = req_fs(req);
	bool dirty;

	if (whence != SEEK_DATA && whence != SEEK_HOLE) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	pthread_mutex_lock(&fs->lock);
	dirty = seek.handle->inode->writers && !seek.handle->passthrough;
	pthread_mutex_unlock(&fs->lock);
	if (!dirty) {
		reply_seek(&seek);
		return;
	}
	job = malloc(sizeof(*job));
	if (!job) {
		fuse_reply_err(req, ENOMEM);
	} else if (!busy_begin(fs, false)) {
		free(job);
		fuse_reply_err(req, ENOTCONN);
	} else {
		*job = seek;
		job->came = serve_later();
		lane_submit(fs, LANE_RELEASE, fuse_req_ctx(req)->uid, seek_after_push, job);
	}
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
			struct fuse_file_info *fi_out, size_t len, int flags)
{
	struct handle *from = req_handle(req, fi_in), *to = req_handle(req, fi_out);
	ssize_t n;

	if (flags) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	contents_written_by(to->inode, fuse_req_ctx(req)->uid);
	n = cache_copy_range(from->cfile, off_in, to->cfile, off_out, len);
	if (n < 0) {
		passthrough_failed(to);
		fuse_reply_err(req, (int)-n);
	} else {
		fuse_reply_write(req, (size_t)n);
	}
}
