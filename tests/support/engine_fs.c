/*
 * engine_fs.c - one node's client of a distributed file system: a directory, by way of FUSE. Two of them over one directory are two nodes.
 *
 *	engine-fs DIR MOUNTPOINT [nolocks|reuse|ownlocks|oldnames|oldpages|slow=MICROSECONDS|late=MICROSECONDS|far=MICROSECONDS]
 *
 * returns when it is mounted; umount(8) ends it. It keeps what an engine promises, close-to-open, and no more:
 *
 *	attributes	the kernel believes them for an hour, unless it is told to ask (statx(2) with AT_STATX_FORCE_SYNC)
 *	names		are looked up each time
 *	pages		the kernel's are dropped when the file is opened, or when attributes show a change
 *	writes		stay here until the file is flushed (close(2) of any descriptor) or synced, or read here; then those fail that
 *			begin with LOSE (EIO). With O_APPEND they are stored at once
 *	locks		of all kinds reach across nodes, and waits for them can be interrupted; with `nolocks` there are none (ENOLCK)
 *			with `ownlocks` they hold on this node only
 *	numbers		are those of the directory; with `reuse` a new file gets that of one that was removed, whoever has it open
 *
 * mkdir(2) of the name `cut-off` is what a client does that was cut off from its server: all locks are gone, and descriptors that had some
 * fail (EBADFD) until they are closed. After that of `hold` the next flush that fails is answered after that of `let-go`; EBUSY says of
 * `is-held` that there is one.
 *
 * With `oldnames` and `oldpages` it promises less: names that were found, or not, and pages that were read, are believed for ever.
 * With `late` the answer to each read comes so much later, so what has been stored meanwhile is not in it; and pages are dropped when the
 * file is opened only, as if all changes came within one tick of the server's clock.
 * With `far` it takes so much longer to look for attributes, to open a file, and to read: a server that is far away.
 * With `slow` each read takes so much longer, and the kernel keeps no page: storage that is modelled, for scripts/bench.
 */
#define FUSE_USE_VERSION 314
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LONG 3600.0 /* seconds */

/* Lives for ever: an engine's number of a file does, too. */
struct file {
	ino_t ino;
	ino_t number; /* that others see */
	bool given;   /* to another file */
	int fd; /* O_PATH */
	SLIST_ENTRY(file) link;
};

/* A write that is not stored yet. */
struct waiting {
	TAILQ_ENTRY(waiting) link;
	ino_t ino;
	int fd;
	off_t off;
	size_t size;
	char bytes[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of both lists, and while writes are stored */
static SLIST_HEAD(, file) all_files;
static TAILQ_HEAD(, waiting) writes = TAILQ_HEAD_INITIALIZER(writes);
static struct file root;
static bool no_locks, reuse, own_locks, old_names, old_pages;
static long slow_us, late_us, far_us;

static struct file *file_of(fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID ? &root : (struct file *)ino;
}

static int fd_of(fuse_ino_t ino)
{
	return file_of(ino)->fd;
}

static const char *path_of(fuse_ino_t ino, char path[64])
{
	snprintf(path, 64, "/proc/self/fd/%d", fd_of(ino));
	return path;
}

static void pass_us(long us)
{
	struct timespec more = { us / 1000000, us % 1000000 * 1000 };

	if (us > 0) {
		(void)prctl(PR_SET_TIMERSLACK, 1ul);
		nanosleep(&more, NULL);
	}
}

static void reply(fuse_req_t req, int res)
{
	fuse_reply_err(req, res < 0 ? errno : 0);
}

static int store(ino_t ino)
{
	struct waiting *w, *next;
	int res = 0;

	pthread_mutex_lock(&lock);
	for (w = TAILQ_FIRST(&writes); w; w = next) {
		next = TAILQ_NEXT(w, link);
		if (w->ino != ino)
			continue;
		if (w->size >= 4 && !memcmp(w->bytes, "LOSE", 4)) {
			errno = EIO;
			res = -1;
		} else if (pwrite(w->fd, w->bytes, w->size, w->off) != (ssize_t)w->size) {
			res = -1;
		}
		TAILQ_REMOVE(&writes, w, link);
		close(w->fd);
		free(w);
	}
	pthread_mutex_unlock(&lock);
	return res;
}

/* This node sees what it has written. */
static int stat_of(int fd, struct stat *st)
{
	int res = fstatat(fd, "", st, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW);
	const struct waiting *w;

	pthread_mutex_lock(&lock);
	TAILQ_FOREACH(w, &writes, link)
		if (!res && w->ino == st->st_ino && st->st_size < w->off + (off_t)w->size)
			st->st_size = w->off + (off_t)w->size;
	pthread_mutex_unlock(&lock);
	return res;
}

/* lock is held. */
static ino_t number_for(ino_t ino)
{
	struct stat st;
	struct file *f;

	SLIST_FOREACH(f, &all_files, link)
		if (reuse && !f->given && !fstatat(f->fd, "", &st, AT_EMPTY_PATH) && !st.st_nlink) {
			f->given = true;
			return f->number;
		}
	return ino;
}

static int enter(fuse_ino_t parent, const char *name, struct fuse_entry_param *e)
{
	int fd = openat(fd_of(parent), name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct file *f;

	memset(e, 0, sizeof(*e));
	if (fd < 0 || stat_of(fd, &e->attr))
		return -1;
	e->attr_timeout = LONG;
	e->entry_timeout = old_names ? LONG : 0;
	pthread_mutex_lock(&lock);
	SLIST_FOREACH(f, &all_files, link)
		if (f->ino == e->attr.st_ino && !fstat(f->fd, &(struct stat){ 0 }))
			break;
	/* The number may be used again once nobody has the file; we have it. */
	if (f) {
		close(fd);
	} else {
		f = calloc(1, sizeof(*f));
		if (!f)
			abort();
		f->ino = e->attr.st_ino;
		f->number = number_for(f->ino);
		f->fd = fd;
		SLIST_INSERT_HEAD(&all_files, f, link);
	}
	pthread_mutex_unlock(&lock);
	e->ino = (fuse_ino_t)f;
	e->attr.st_ino = f->number;
	return 0;
}

static void reply_entry(fuse_req_t req, int res, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e;

	if (res < 0 || enter(parent, name, &e))
		fuse_reply_err(req, errno);
	else
		fuse_reply_entry(req, &e);
}

static void e_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct stat st;

	if (old_names && fstatat(fd_of(parent), name, &st, AT_SYMLINK_NOFOLLOW) && errno == ENOENT)
		fuse_reply_entry(req, &(struct fuse_entry_param){ .entry_timeout = LONG });
	else
		reply_entry(req, 0, parent, name);
}

static void e_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	pass_us(far_us);
	if (stat_of(fd_of(ino), &st)) {
		fuse_reply_err(req, errno);
		return;
	}
	if (ino != FUSE_ROOT_ID)
		st.st_ino = file_of(ino)->number;
	fuse_reply_attr(req, &st, LONG);
}

static int set(fuse_ino_t ino, const struct stat *attr, int to_set, const struct fuse_file_info *fi)
{
	const int times = FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME_NOW;
	struct timespec ts[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_nsec = UTIME_OMIT } };
	char path[64];
	int res = 0;

	path_of(ino, path);
	if (to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
		res = fchownat(fd_of(ino), "", to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1,
			       to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1, AT_EMPTY_PATH);
	if (!res && to_set & FUSE_SET_ATTR_MODE)
		res = chmod(path, attr->st_mode & 07777);
	if (!res && to_set & FUSE_SET_ATTR_SIZE)
		res = store(file_of(ino)->ino) ? -1 : fi ? ftruncate((int)fi->fh, attr->st_size) : truncate(path, attr->st_size);
	if (res || !(to_set & times))
		return res;
	if (to_set & FUSE_SET_ATTR_ATIME)
		ts[0] = attr->st_atim;
	if (to_set & FUSE_SET_ATTR_MTIME)
		ts[1] = attr->st_mtim;
	if (to_set & FUSE_SET_ATTR_ATIME_NOW)
		ts[0].tv_nsec = UTIME_NOW;
	if (to_set & FUSE_SET_ATTR_MTIME_NOW)
		ts[1].tv_nsec = UTIME_NOW;
	return store(file_of(ino)->ino) ? -1 : utimensat(fd_of(ino), "", ts, AT_EMPTY_PATH);
}

static void e_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
	if (set(ino, attr, to_set, fi))
		fuse_reply_err(req, errno);
	else
		e_getattr(req, ino, fi);
}

/* ---- descriptors that lose their locks ---- */

#define MAX_FDS 4096
static atomic_bool locked[MAX_FDS], is_cut_off[MAX_FDS];

static void cut_off(void)
{
	const struct flock all = { .l_type = F_UNLCK, .l_whence = SEEK_SET };

	for (int fd = 0; fd < MAX_FDS; fd++)
		if (atomic_exchange(&locked[fd], false)) {
			(void)fcntl(fd, F_OFD_SETLK, &all);
			(void)flock(fd, LOCK_UN);
			is_cut_off[fd] = true;
		}
}

/* It has been answered then. */
static bool refused(fuse_req_t req, const struct fuse_file_info *fi)
{
	if (fi->fh >= MAX_FDS || !is_cut_off[fi->fh])
		return false;
	fuse_reply_err(req, EBADFD);
	return true;
}

/* ---- answers that are held ---- */

enum { HOLD_NONE, HOLD_NEXT, HOLD_HAS };
static atomic_int held;

static void hold_if_next(void)
{
	int next = HOLD_NEXT;

	if (!atomic_compare_exchange_strong(&held, &next, HOLD_HAS))
		return;
	while (held == HOLD_HAS)
		usleep(2000);
}

static void e_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char to[PATH_MAX];
	ssize_t n = readlinkat(fd_of(ino), "", to, sizeof(to) - 1);

	if (n < 0) {
		fuse_reply_err(req, errno);
		return;
	}
	to[n] = '\0';
	fuse_reply_readlink(req, to);
}

/* What a caller makes is the caller's. */
static int give(fuse_req_t req, int res, fuse_ino_t parent, const char *name)
{
	const struct fuse_ctx *caller = fuse_req_ctx(req);

	return res < 0 ? res : fchownat(fd_of(parent), name, caller->uid, caller->gid, AT_SYMLINK_NOFOLLOW);
}

static void e_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev)
{
	reply_entry(req, give(req, mknodat(fd_of(parent), name, mode, dev), parent, name), parent, name);
}

static void e_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	if (!strcmp(name, "cut-off")) {
		cut_off();
		fuse_reply_err(req, ENOTCONN);
		return;
	}
	if (!strcmp(name, "hold") || !strcmp(name, "let-go")) {
		held = name[0] == 'h' ? HOLD_NEXT : HOLD_NONE;
		fuse_reply_err(req, ENOTCONN);
		return;
	}
	if (!strcmp(name, "is-held")) {
		fuse_reply_err(req, held == HOLD_HAS ? EBUSY : ENOTCONN);
		return;
	}
	reply_entry(req, give(req, mkdirat(fd_of(parent), name, mode), parent, name), parent, name);
}

static void e_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	reply_entry(req, give(req, symlinkat(target, fd_of(parent), name), parent, name), parent, name);
}

static void e_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	char path[64];

	reply_entry(req, linkat(AT_FDCWD, path_of(ino, path), fd_of(parent), name, AT_SYMLINK_FOLLOW), parent, name);
}

static void e_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	reply(req, unlinkat(fd_of(parent), name, 0));
}

static void e_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	reply(req, unlinkat(fd_of(parent), name, AT_REMOVEDIR));
}

static void e_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t to, const char *as, unsigned flags)
{
	reply(req, renameat2(fd_of(parent), name, fd_of(to), as, flags));
}

static void e_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	char path[64];
	int fd;

	pass_us(far_us);
	fd = open(path_of(ino, path), (fi->flags & ~(O_NOFOLLOW | O_DIRECT)) | O_CLOEXEC);
	fi->fh = (uint64_t)fd;
	fi->keep_cache = old_pages;
	fi->direct_io = slow_us > 0;
	if (fd < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_open(req, fi);
}

static void e_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	int fd = openat(fd_of(parent), name, (fi->flags & ~O_DIRECT) | O_CREAT | O_CLOEXEC, mode);
	struct fuse_entry_param e;

	fi->fh = (uint64_t)fd;
	fi->direct_io = slow_us > 0;
	if (fd < 0 || fchown(fd, fuse_req_ctx(req)->uid, fuse_req_ctx(req)->gid) || enter(parent, name, &e))
		fuse_reply_err(req, errno);
	else
		fuse_reply_create(req, &e, fi);
}

static void e_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	char *buf = malloc(size);
	ssize_t n;

	pass_us(slow_us + far_us);
	n = !buf || store(file_of(ino)->ino) ? -1 : pread((int)fi->fh, buf, size, off);
	pass_us(late_us);
	if (n < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_buf(req, buf, (size_t)n);
	free(buf);
}

static void e_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct waiting *w;
	ssize_t n;

	if (refused(req, fi))
		return;
	if (fcntl((int)fi->fh, F_GETFL) & O_APPEND) {
		n = store(file_of(ino)->ino) ? -1 : pwrite((int)fi->fh, buf, size, off);
		if (n < 0)
			fuse_reply_err(req, errno);
		else
			fuse_reply_write(req, (size_t)n);
		return;
	}
	w = malloc(sizeof(*w) + size);
	if (!w)
		abort();
	w->ino = file_of(ino)->ino;
	w->fd = fcntl((int)fi->fh, F_DUPFD_CLOEXEC, 0);
	w->off = off;
	w->size = size;
	memcpy(w->bytes, buf, size);
	pthread_mutex_lock(&lock);
	TAILQ_INSERT_TAIL(&writes, w, link);
	pthread_mutex_unlock(&lock);
	fuse_reply_write(req, size);
}

static void e_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	int res, err;

	if (refused(req, fi))
		return;
	res = store(file_of(ino)->ino);
	err = errno;
	if (res < 0)
		hold_if_next();
	fuse_reply_err(req, res < 0 ? err : 0);
}

static void e_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	int res;

	if (refused(req, fi))
		return;
	res = store(file_of(ino)->ino);
	if (!res)
		res = data_only ? fdatasync((int)fi->fh) : fsync((int)fi->fh);
	reply(req, res);
}

/* What was written and not flushed stays. */
static void e_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	if (fi->fh < MAX_FDS)
		locked[fi->fh] = is_cut_off[fi->fh] = false;
	reply(req, close((int)fi->fh));
}

static void e_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	int fd = openat(fd_of(ino), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	fi->fh = (uint64_t)dir;
	if (dir)
		fuse_reply_open(req, fi);
	else
		fuse_reply_err(req, errno);
}

static void e_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	DIR *dir = (DIR *)fi->fh;
	char *buf = malloc(size);
	size_t used = 0, need;
	struct dirent *e;

	(void)ino;
	if (!buf)
		abort();
	seekdir(dir, off);
	while ((e = readdir(dir))) {
		struct stat st = { .st_ino = e->d_ino, .st_mode = (mode_t)DTTOIF(e->d_type) };

		need = fuse_add_direntry(req, buf + used, size - used, e->d_name, &st, e->d_off);
		if (need > size - used)
			break;
		used += need;
	}
	fuse_reply_buf(req, buf, used);
	free(buf);
}

static void e_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	reply(req, closedir((DIR *)fi->fh));
}

static void e_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs st;

	if (fstatvfs(fd_of(ino), &st))
		fuse_reply_err(req, errno);
	else
		fuse_reply_statfs(req, &st);
}

static void e_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
	off_t at = store(file_of(ino)->ino) ? -1 : lseek((int)fi->fh, off, whence);

	if (at < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_lseek(req, at);
}

static void e_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len, struct fuse_file_info *fi)
{
	reply(req, store(file_of(ino)->ino) ? -1 : fallocate((int)fi->fh, mode, off, len));
}

/* ---- locks ---- */

static void e_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *l)
{
	(void)ino;
	l->l_pid = 0;
	if (refused(req, fi))
		return;
	if (no_locks)
		fuse_reply_err(req, ENOLCK);
	else if (fcntl((int)fi->fh, F_OFD_GETLK, l))
		fuse_reply_err(req, errno);
	else
		fuse_reply_lock(req, l);
}

/* Of an open file. Who waits tries again and again: so it can be interrupted at any time. */
static int take(fuse_req_t req, int fd, const struct flock *l, int op, bool waits)
{
	int res;

	do {
		res = l ? fcntl(fd, F_OFD_SETLK, l) : flock(fd, op | LOCK_NB);
		if (!res && fd < MAX_FDS)
			locked[fd] = true;
		if (!res || errno != EAGAIN || !waits)
			return res;
		usleep(2000);
	} while (!fuse_req_interrupted(req));
	errno = EINTR;
	return -1;
}

static void e_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *l, int waits)
{
	(void)ino;
	l->l_pid = 0;
	if (refused(req, fi))
		return;
	if (no_locks)
		fuse_reply_err(req, ENOLCK);
	else
		reply(req, take(req, (int)fi->fh, l, 0, waits));
}

static void e_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
	(void)ino;
	if (refused(req, fi))
		return;
	if (no_locks)
		fuse_reply_err(req, ENOLCK);
	else
		reply(req, take(req, (int)fi->fh, NULL, op & ~LOCK_NB, !(op & LOCK_NB)));
}

static void e_init(void *arg, struct fuse_conn_info *conn)
{
	(void)arg;
	if (own_locks)
		conn->want &= ~(unsigned)(FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS);
	else
		conn->want |= conn->capable & (FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS);
	if (old_pages || late_us > 0)
		conn->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
}

static const struct fuse_lowlevel_ops ops = {
	.init = e_init, .lookup = e_lookup, .getattr = e_getattr, .setattr = e_setattr, .readlink = e_readlink, .mknod = e_mknod,
	.mkdir = e_mkdir, .unlink = e_unlink, .rmdir = e_rmdir, .symlink = e_symlink, .rename = e_rename, .link = e_link, .open = e_open,
	.create = e_create, .read = e_read, .write = e_write, .flush = e_flush, .release = e_release, .fsync = e_fsync,
	.opendir = e_opendir, .readdir = e_readdir, .releasedir = e_releasedir, .statfs = e_statfs, .lseek = e_lseek,
	.fallocate = e_fallocate, .getlk = e_getlk, .setlk = e_setlk, .flock = e_flock,
};

int main(int argc, char **argv)
{
	/* Who is not root may seldom let others use it. */
	bool others = geteuid() == 0;
	char *args[] = { argv[0], (char *)"-o",
			 (char *)(others ? "subtype=engine,fsname=engine,default_permissions,allow_other" : "subtype=engine,fsname=engine,default_permissions"), NULL };
	struct fuse_args fuse = FUSE_ARGS_INIT(3, args);
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	struct fuse_session *session;

	if (argc < 3 || !config)
		return 2;
	umask(0);
	no_locks = argc > 3 && !strcmp(argv[3], "nolocks");
	reuse = argc > 3 && !strcmp(argv[3], "reuse");
	own_locks = argc > 3 && !strcmp(argv[3], "ownlocks");
	old_names = argc > 3 && !strcmp(argv[3], "oldnames");
	old_pages = argc > 3 && !strcmp(argv[3], "oldpages");
	late_us = argc > 3 && !strncmp(argv[3], "late=", 5) ? atol(argv[3] + 5) : 0;
	far_us = argc > 3 && !strncmp(argv[3], "far=", 4) ? atol(argv[3] + 4) : 0;
	slow_us = argc > 3 && !strncmp(argv[3], "slow=", 5) ? atol(argv[3] + 5) : 0;
	root.fd = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
	session = root.fd < 0 ? NULL : fuse_session_new(&fuse, &ops, sizeof(ops), NULL);
	if (!session || fuse_session_mount(session, argv[2])) {
		perror(argv[1]);
		return 1;
	}
	fuse_loop_cfg_set_max_threads(config, 100); /* who waits has one */
	if (fuse_daemonize(0)) {
		fuse_session_unmount(session);
		return 1;
	}
	return fuse_session_loop_mt(session, config);
}
