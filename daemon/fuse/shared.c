/*
 * shared.c - files of a source that other machines change as well (--source shared).
 *
 * The file system below carries the bytes from machine to machine. So nothing of a file is kept here for CPU programs: no page of home,
 * and none of the kernel's pages of this mount. Each open file has a descriptor below, opened with the same flags, and
 *
 *	passthrough	the kernel reads, writes and maps the file below itself. Where it can: see passthrough.c
 *	direct		each read(2) and write(2) becomes one of the descriptor below. Shared mappings are refused (ENODEV): the kernel would
 *			keep their pages, and write whole ones back over what others have stored
 *
 * As in passthrough.c, an inode is open in one of the two ways at a time.
 *
 * The promise is that of close-to-open: what was written before a close, an fsync or an unlock is seen by whoever opens the file, or gets a
 * lock on it, after that. For it the file below is asked for its attributes at open and when a lock is granted (shared_revalidate()), and
 * what was written is stored at close and before a lock is given up (shared_store()).
 *
 * For devices such a file is, for good, one that CPU programs have open past the cache (pagecache/passthrough.c), wherever they run: an
 * acquire takes over the bytes below that differ from those that it took last, and a release stores the bytes that a device has changed, and no
 * others. As long as the file below is the version that was taken, and nobody here can write it, an acquire asks for its
 * attributes and reads nothing (shared_acquire()).
 */
#include "base/counters.h"
#include "base/fault.h"
#include "base/thread.h"
#include "fuse/internal.h"
#include "store/async.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Of open(2)'s flags those that the descriptor below has. (Not O_DIRECT: the kernel would ask for aligned memory.) */
#define FLAGS_BELOW (O_ACCMODE | O_APPEND | O_SYNC | O_DSYNC)

/* How often a name is tried that others make and remove all the time. */
#define CREATE_TRIES 16

/* ---- what others have changed ---- */

static bool same_time(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/*
 * Two changes may come within the same tick of the server's clock; so times that are younger than the coarsest clock show nothing. @asked:
 * from before the attributes were: the answer may have taken long. A modification time that no clock has reached yet was set by somebody,
 * who changed the other one then: it would make the file young until it comes.
 */
static struct look look_of(const struct stat *st, time_t asked)
{
	const time_t coarse_s = 2, modified = st->st_mtim.tv_sec, changed = st->st_ctim.tv_sec;
	const time_t latest = modified > time(NULL) + coarse_s ? changed : MAX(modified, changed);

	return (struct look){ .mtime = st->st_mtim, .ctime = st->st_ctim, .size = st->st_size, .young = asked - latest <= coarse_s };
}

/* Whether the file may have changed between two looks at it. */
static bool may_have_changed(const struct look *before, const struct look *now)
{
	return !same_time(before->mtime, now->mtime) || !same_time(before->ctime, now->ctime) || before->size != now->size || now->young;
}

static int look(struct inode *inode, int fd, struct look *out)
{
	time_t asked = time(NULL);
	struct stat st;
	int err = fault_point("shared.look");

	if (!err)
		err = inode_stat(inode->fs, fd, &st);
	count(CTR_shared_revalidations, 1);
	if (err == -ENOENT || err == -ESTALE) {
		inode_retire(inode);
		return -ESTALE;
	}
	if (!err)
		*out = look_of(&st, asked);
	return err;
}

/*
 * Not all file systems behind FUSE forget by themselves what may be old. Advice does not drop pages that somebody is just reading; when
 * a file is opened the kernel waits for those. 0; an errno (negative); or 1: pages may be left that are old (mapped ones, or where the
 * engine has the kernel keep them).
 */
enum forget {
	FORGET_OPENED, /* it has just been opened */
	FORGET_LEFT,   /* open it if advice leaves any */
	FORGET_ALL,    /* open it in any case */
};
static int forget_below(struct inode *inode, int fd, enum forget how)
{
	int again;

	if (!inode->fs->below_is_fuse)
		return 0;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (how == FORGET_OPENED)
		return store_dir_has_pages(fd);
	if (fault_point("break.only_advise") || (how == FORGET_LEFT && !store_dir_has_pages(fd)))
		return 0;
	again = open(fd_path(fd).text, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (again < 0)
		return -errno_below(errno);
	inode_close(inode, again);
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return store_dir_has_pages(fd);
}

int shared_revalidate(struct inode *inode, int fd, bool opened)
{
	struct look now;
	bool changed;
	int err = look(inode, fd, &now);

	if (err)
		return err;
	pthread_mutex_lock(&inode->lock);
	changed = may_have_changed(&inode->seen, &now);
	pthread_mutex_unlock(&inode->lock);
	if (!changed)
		return 0;
	err = forget_below(inode, fd, opened ? FORGET_OPENED : FORGET_LEFT);
	if (err < 0 && err != -EACCES)
		return err == -EAGAIN ? -EIO : err; /* who asks for a lock would take the former for "others have it" */
	/* Noted afterwards, since whoever finds that nothing has changed reads what the kernel has. */
	if (err || now.young)
		return 0;
	pthread_mutex_lock(&inode->lock);
	inode->seen = now;
	pthread_mutex_unlock(&inode->lock);
	return 0;
}

/* ---- for devices ---- */

/* An unprivileged daemon might not be allowed to open the file again. (With O_APPEND offsets would be ignored.) */
static void give_access(const struct handle *h)
{
	int access = h->flags & O_ACCMODE, fd;

	if (h->inode->fs->privileged || access == O_WRONLY || h->flags & O_APPEND)
		return;
	fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);
	if (fd >= 0)
		access_give(h->inode, fd, access == O_RDWR);
}

int shared_contents(struct handle *h, struct cfile **out)
{
	int err = 0;

	pthread_mutex_lock(&h->lock);
	if (!h->for_devices) {
		err = contents_get(h->inode, &h->for_devices);
		if (!err)
			give_access(h);
	}
	*out = h->for_devices;
	pthread_mutex_unlock(&h->lock);
	return err;
}

/* Whoever opens the file, or makes it shorter, comes here before it is answered: the next acquire compares, whatever times say. */
static void is_written_here(struct inode *inode)
{
	pthread_mutex_lock(&inode->lock);
	inode->written_here = true;
	pthread_mutex_unlock(&inode->lock);
}

static int look_for_end(struct cfile *f, const struct look *now)
{
	return (uint64_t)now->size < cfile_size(f) ? cache_look_for_end(f) : 0;
}

/*
 * Of acquires that begin at the same time one brings it about that none compares any more. The others, who have found the same version, wait
 * for it: else each of them would read all that it acquires once more.
 */
static pthread_mutex_t stops_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stop_ended = PTHREAD_COND_INITIALIZER;

static void stop_begins(struct inode *inode, uint64_t news)
{
	pthread_mutex_lock(&stops_lock);
	inode->stopping = news;
	pthread_mutex_unlock(&stops_lock);
}

static void stop_ends(struct inode *inode, uint64_t news)
{
	pthread_mutex_lock(&stops_lock);
	if (inode->stopping == news)
		inode->stopping = 0;
	pthread_cond_broadcast(&stop_ended);
	pthread_mutex_unlock(&stops_lock);
}

/* It takes over all that devices have of the file. Who wants little of much goes on by itself then. */
#define STOP_WAIT_S 1

static void wait_for_stop(const struct inode *inode)
{
	struct uses *waits = NULL;
	struct timespec end;
	uint64_t news;
	int err = 0;

	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += STOP_WAIT_S;
	pthread_mutex_lock(&stops_lock);
	news = inode->stopping;
	while (news && inode->stopping == news && !err) {
		thread_waits();
		if (!waits)
			waits = wait_begin(WAIT_storage);
		err = pthread_cond_clockwait(&stop_ended, &stops_lock, CLOCK_MONOTONIC, &end);
	}
	pthread_mutex_unlock(&stops_lock);
	wait_end(waits, WAIT_storage);
}

int shared_acquire(struct handle *h, struct cfile *f)
{
	struct inode *inode = h->inode;
	uint64_t news = 0;
	struct look now;
	bool compares, same;
	int err = look(inode, h->fd, &now), left;

	if (err)
		return err;
	pthread_mutex_lock(&inode->lock);
	same = !inode->written_here && !may_have_changed(&inode->taken, &now);
	if ((inode->written_here || may_have_changed(&inode->taken, &now)) && !fault_point("break.trust_taken") && !cfile_cpu_may_write(f))
		cfile_cpu_writes(f);
	compares = cfile_compares(f);
	/* What is read from now on may be newer than this, and not older. */
	inode->taken = now;
	if (cfile_cpu_may_write(f) && !may_have_changed(&now, &now) && passthrough_nobody_writes(inode)) {
		inode->written_here = false;
		news = cfile_cpu_stops(f);
		if (news)
			stop_begins(inode, news);
	}
	pthread_mutex_unlock(&inode->lock);
	if (compares && same && !news) {
		wait_for_stop(inode);
		compares = cfile_compares(f);
	}
	/* Always opened: an engine that is close-to-open may ask its server then only. */
	left = compares ? forget_below(inode, h->fd, FORGET_ALL) : 0;
	err = left < 0 && left != -EACCES ? left : look_for_end(f, &now);
	if (!err && news && !left) {
		(void)cfile_cpu_stopped(f, news); /* if it fails, acquires go on comparing */
	} else if (news) {
		pthread_mutex_lock(&inode->lock);
		cfile_cpu_writes(f);
		pthread_mutex_unlock(&inode->lock);
	}
	if (news)
		stop_ends(inode, news);
	return err;
}

int shared_store(struct handle *h)
{
	int fd, err = 0;

	if (!open_to_write(h->flags))
		return 0;
	/* File systems store what was written when a descriptor of the file is closed, whichever. */
	fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return fdatasync(h->fd) ? -errno : 0;
	if (close(fd))
		err = -errno;
	return err;
}

static bool is_written(struct inode *inode)
{
	bool is;

	pthread_mutex_lock(&inode->fs->lock);
	is = inode->writers;
	pthread_mutex_unlock(&inode->fs->lock);
	return is;
}

int shared_store_writers(struct handle *h)
{
	struct inode *inode = h->inode;
	int fd;

	if (open_to_write(h->flags))
		return shared_store(h);
	if (!is_written(inode))
		return 0;
	fd = inode_open(inode, O_WRONLY);
	/* The file's mode may have changed since it was opened. */
	if (fd < 0)
		return fdatasync(h->fd) ? -errno : 0;
	return close(fd) ? -errno : 0;
}

/* ---- opening and closing ---- */

/* Consumes @fd, the file below, and one of @uid's QUOTA_shared_files, also on failure. */
static int new_handle(struct inode *inode, int flags, int fd, uid_t uid, struct handle **out)
{
	struct fs *fs = inode->fs;
	struct handle *h;
	int err, kept;

	/* Names change without us. So the inode keeps its descriptor, by which fstat(2) finds the file. */
	kept = inode_fd_get(inode);
	err = kept < 0 ? kept : -ENOMEM;
	h = kept < 0 ? NULL : calloc(1, sizeof(*h));
	if (!h)
		goto put_fd;
	*h = (struct handle){ .inode = inode, .flags = flags, .uid = uid, .fd = fd, .refs = 1, .appends = flags & O_APPEND,
			       .errors_seen = atomic_load(&inode->lost) };
	err = handle_enter(h);
	if (err)
		goto free_handle;
	if (open_to_write(flags))
		contents_written_by(inode, uid);
	*out = h;
	return 0;

free_handle:
	free(h);
put_fd:
	if (kept >= 0)
		inode_fd_put(inode);
	quota_give(fs->config.quota, QUOTA_shared_files, uid);
	inode_close(inode, fd);
	return err;
}

void shared_close(struct handle *h)
{
	struct lost_call c;
	int err;

	if (h->for_devices)
		contents_put(h->inode);
	locks_end_of_handle(h); /* if it had no RELEASE */
	lost_call_begins(&c, h->inode);
	err = close(h->fd) ? -errno : 0;
	/* What is stored through a mapping after the last close(2) is heard of here. */
	lost_closed(&c, err, open_to_write(h->flags) && !(err == -EBADFD && atomic_load(&h->bad_noted)));
	inode_fd_put(h->inode);
	quota_give(h->inode->fs->config.quota, QUOTA_shared_files, h->uid);
}

/* Whether the file is open in passthrough, or can be: then it is from now on. inode->lock is held. */
static bool pass_through(fuse_req_t req, struct handle *h, int *err)
{
	struct inode *inode = h->inode;

	*err = 0;
	if (inode->never_passed)
		return false;
	if (!inode->passthrough_opens)
		*err = passthrough_register(req, inode);
	if (*err && passthrough_never(*err)) {
		if (!atomic_exchange(&inode->fs->complained, true))
			log_warn("a file could not be passed through: %s; such files are read and written by the daemon, and cannot be mapped shared",
				 strerror(-*err));
		inode->never_passed = true;
		*err = 0;
		return false;
	}
	inode->passthrough_opens += !*err;
	inode->passthrough_writers += !*err && open_to_write(h->flags); /* passthrough_release() counts down */
	return !*err;
}

/* Decide how the handle is open, and fill in the answer; on error the handle is closed. */
static int tell(fuse_req_t req, struct handle *h, struct fuse_file_info *fi)
{
	struct inode *inode = h->inode;
	int err = 0;

	pthread_mutex_lock(&inode->lock);
	if (inode->fs->passthrough)
		h->passthrough = pass_through(req, h, &err);
#if GAIA_HAVE_PASSTHROUGH
	if (h->passthrough)
		fi->backing_id = inode->backing_id;
#endif
	inode->written_here |= open_to_write(h->flags);
	pthread_mutex_unlock(&inode->lock);
	if (err) {
		handle_close(h);
		return err;
	}
	fi->fh = serve_told(h->id, "open.wrong_number");
	fi->direct_io = !h->passthrough;
	fi->keep_cache = 0;
	fi->noflush = 0; /* locks end with it */
	return 0;
}

static void shared_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct quota *quota = req_fs(req)->config.quota;
	struct inode *inode = inode_of(req_fs(req), ino);
	uid_t uid = fuse_req_ctx(req)->uid;
	int fd, below, err = quota_take(quota, QUOTA_shared_files, uid);
	struct handle *h;

	if (err) {
		fuse_reply_err(req, -err);
		return;
	}
	fd = inode_fd_get(inode);
	below = fd < 0 ? fd : open(fd_path(fd).text, (fi->flags & FLAGS_BELOW) | O_CLOEXEC);
	err = fd < 0 ? fd : below < 0 ? -errno_below(errno) : shared_revalidate(inode, below, true);
	if (fd >= 0)
		inode_fd_put(inode);
	if (err && below >= 0)
		inode_close(inode, below);
	if (err)
		quota_give(quota, QUOTA_shared_files, uid);
	else
		err = new_handle(inode, fi->flags, below, uid, &h);
	if (!err)
		err = tell(req, h, fi);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_open(req, fi);
}

/*
 * The file below for a CREATE. The kernel has not found the name a moment ago, and so does not look at the flags any more: if another
 * machine has made the file since, O_TRUNC and the caller's rights are looked at here; or, without @may_open, by the kernel again (ESTALE).
 */
static int create_below(int dir, const char *name, mode_t mode, int flags, bool may_open)
{
	const int common = O_NOFOLLOW | O_CLOEXEC | (flags & (O_APPEND | O_SYNC | O_DSYNC));
	int fd, tries = 0;
	struct stat st;

	if (!name) {
		fd = openat(dir, ".", O_TMPFILE | O_RDWR | common | (flags & O_EXCL), mode);
		return fd < 0 ? -errno : fd;
	}
	do {
		/* For reading as well, whatever its mode: its creator may do both. */
		fd = openat(dir, name, O_CREAT | O_EXCL | O_RDWR | common, mode);
		if (fd < 0 && errno == EEXIST && !(flags & O_EXCL) && !may_open)
			return -ESTALE;
		if (fd < 0 && errno == EEXIST && !(flags & O_EXCL))
			fd = openat(dir, name, O_NONBLOCK | common | (flags & (O_ACCMODE | O_TRUNC)));
	} while (fd < 0 && errno == ENOENT && !(flags & O_EXCL) && ++tries < CREATE_TRIES);
	if (fd < 0)
		return errno == ELOOP ? -ESTALE : -errno_below(errno); /* ESTALE: the kernel looks again what the name is */
	if (!fstat(fd, &st) && S_ISREG(st.st_mode))
		return fd;
	close(fd);
	return -ESTALE;
}

static int create_as_caller(fuse_req_t req, struct inode *dir, const char *name, mode_t mode, int flags)
{
	/* An unprivileged daemon has only its own user's rights to give. */
	bool may_open = req_fs(req)->privileged || fuse_req_ctx(req)->uid == geteuid();
	int at = inode_fd_get(dir), fd, again;

	fd = at < 0 ? at : cred_enter(req);
	if (!fd) {
		fd = create_below(at, name, mode, flags, may_open);
		cred_leave(req);
		/* With the caller's capability nothing is opened that exists already. */
		if (cred_enter_capable(req, at, fd)) {
			again = create_below(at, name, mode, flags | O_EXCL, may_open);
			cred_leave(req);
			fd = again == -EEXIST ? fd : again;
		}
	}
	if (at >= 0)
		inode_fd_put(dir);
	return fd;
}

static void shared_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	struct inode *dir = inode_of(fs, parent), *inode;
	bool named = !serve_is_tmpfile();
	uid_t uid = fuse_req_ctx(req)->uid;
	struct fuse_entry_param e;
	struct handle *h;
	struct stat st;
	int below, fd, err;

	/* Before the file is made: it would be left behind. */
	err = quota_take(fs->config.quota, QUOTA_shared_files, uid);
	if (err)
		goto fail;
	err = named ? inode_room(fs, uid) : inode_removal_begin(fs, uid);
	if (err)
		goto give;
	below = create_as_caller(req, dir, named ? name : NULL, mode, fi->flags);
	if (below < 0) {
		err = below;
		goto not_made;
	}
	fd = open(fd_path(below).text, O_PATH | O_CLOEXEC);
	err = fd < 0 ? -errno : inode_enter(fs, fd, named ? dir : NULL, named ? name : NULL, &inode, &st);
	if (err) {
		close(below);
		goto not_made;
	}
	if (!named)
		inode_removal_end(fs, uid, inode);
	/* With it goes what was taken of the quota. */
	err = new_handle(inode, fi->flags, below, uid, &h);
	if (!err)
		err = tell(req, h, fi);
	if (err) {
		inode_forget(inode, 1);
		goto fail;
	}
	entry_fill(inode, &st, &e);
	fuse_reply_create(req, &e, fi);
	return;

not_made:
	if (!named)
		inode_removal_end(fs, uid, NULL);
give:
	quota_give(fs->config.quota, QUOTA_shared_files, uid);
fail:
	fuse_reply_err(req, -err);
}

static void shared_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *h = req_handle(req, fi);
	bool may_unlock = atomic_load(&h->locks) || locks_are_of(h->inode, fi->lock_owner);
	struct lost_call c;
	int err;

	lost_call_begins(&c, h->inode);
	err = lost_with_close(h, &c, may_unlock ? shared_store_writers(h) : shared_store(h));
	if (!err && may_unlock)
		err = locks_check(h, fi->lock_owner);
	locks_end_of_owner(h->inode, fi->lock_owner);
	fuse_reply_err(req, -err);
}

static void shared_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *h = req_handle(req, fi);

	passthrough_release(req, h);
	locks_end_of_handle(h);
	handle_close(h);
	fuse_reply_err(req, 0);
}

/* ---- reading and writing ---- */

/* Of a file that is passed through only advice to read ahead comes here: see op_read(). */
static void shared_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct handle *h = req_handle(req, fi);
	ssize_t n;
	char *buf;

	if (h->passthrough) {
		(void)posix_fadvise(h->fd, off, (off_t)size, POSIX_FADV_WILLNEED);
		fuse_reply_err(req, EIO);
		return;
	}
	size = MIN(size, (size_t)FS_MAX_WRITE);
	buf = malloc(size + !size);
	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	n = pread(h->fd, buf, size, off);
	if (n < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_buf(req, buf, (size_t)n);
	free(buf);
}

/* The open file has O_APPEND or has it no more: so has the descriptor below. h->lock is held. */
static int follow_append(struct handle *h, int flags)
{
	int below;

	if (h->appends == !!(flags & O_APPEND))
		return 0;
	below = fcntl(h->fd, F_GETFL);
	if (below < 0 || fcntl(h->fd, F_SETFL, (below & ~O_APPEND) | (flags & O_APPEND)))
		return -errno;
	h->appends = flags & O_APPEND;
	return 0;
}

/*
 * Make @call, which changes contents. The kernel takes set-id bits from what a user changes if it knows of them; another node may have
 * set them just now. So for users the file system below does it.
 */
#define AS_WRITER(req, call)                                              \
	({                                                                \
		bool user_ = fuse_req_ctx(req)->uid;                      \
		int err_ = user_ ? cred_writer_begin(req_fs(req)) : 0;    \
                                                                          \
		if (!err_)                                                \
			err_ = AS_CALLER_MAY(req, call);                  \
		if (user_)                                                \
			cred_writer_end(req_fs(req));                     \
		err_;                                                     \
	})

static void shared_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct handle *h = req_handle(req, fi);
	int err = serve_clears_set_id() ? attr_clear_set_id(h->inode) : 0;
	ssize_t n = 0;

	contents_written_by(h->inode, fuse_req_ctx(req)->uid);
	if (!err) {
		pthread_mutex_lock(&h->lock);
		err = follow_append(h, fi->flags);
		pthread_mutex_unlock(&h->lock);
	}
	/* With O_APPEND the file below decides where its end is. */
	if (!err)
		err = AS_WRITER(req, (n = pwrite(h->fd, buf, size, off)) < 0);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_write(req, (size_t)n);
}

static int truncate_below(struct inode *inode, const struct handle *h, off_t size)
{
	int fd, err;

	if (h && open_to_write(h->flags))
		return ftruncate(h->fd, size) ? -errno : 0;
	fd = inode_fd_get(inode);
	if (fd < 0)
		return fd;
	err = truncate(fd_path(fd).text, size) ? -errno : 0;
	inode_fd_put(inode);
	return err;
}

int shared_truncate(struct inode *inode, const struct handle *h, off_t size)
{
	int err = truncate_below(inode, h, size);
	struct cfile *f;

	if (err)
		return err;
	is_written_here(inode);
	if (!contents_cached(inode) || contents_get(inode, &f))
		return 0;
	/* If it fails devices have what was cut until they acquire it. */
	(void)cache_look_for_end(f);
	contents_put(inode);
	return 0;
}

static void shared_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	struct handle *h = req_handle(req, fi);
	struct lost_call c;
	int err;

	lost_call_begins(&c, h->inode);
	err = lost_with(h, &c, (datasync ? fdatasync(h->fd) : fsync(h->fd)) ? -errno : 0);
	fuse_reply_err(req, -(err ? err : locks_check(h, 0)));
}

static void shared_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len, struct fuse_file_info *fi)
{
	struct handle *h = req_handle(req, fi);

	contents_written_by(h->inode, fuse_req_ctx(req)->uid);
	/* Devices see it when they acquire it next. */
	fuse_reply_err(req, -AS_WRITER(req, fallocate(h->fd, mode, off, len)));
}

static void shared_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
	off_t at = lseek(req_handle(req, fi)->fd, off, whence);

	if (at < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_lseek(req, at);
}

static void shared_copy_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in, struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
			      struct fuse_file_info *fi_out, size_t len, int flags)
{
	struct handle *from = req_handle(req, fi_in), *to = req_handle(req, fi_out);
	ssize_t n = 0;
	int err;

	contents_written_by(to->inode, fuse_req_ctx(req)->uid);
	err = AS_WRITER(req, (n = copy_file_range(from->fd, &off_in, to->fd, &off_out, len, (unsigned)flags)) < 0);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_write(req, (size_t)n);
}

void shared_ops(struct fuse_lowlevel_ops *ops)
{
	ops->open = shared_open;
	ops->create = shared_create;
	ops->read = shared_read;
	ops->write = shared_write;
	ops->flush = shared_flush;
	ops->release = shared_release;
	ops->fsync = shared_fsync;
	ops->fallocate = shared_fallocate;
	ops->lseek = shared_lseek;
	ops->copy_file_range = shared_copy_range;
	ops->getlk = op_getlk;
	ops->setlk = op_setlk;
	ops->flock = op_flock;
}
