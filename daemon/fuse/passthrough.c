/*
 * passthrough.c - which files the kernel serves from the file below, without us (--cpu-cache auto).
 *
 * An inode is open in one of two ways at a time; the kernel refuses an open in the other way with EIO:
 *
 *	passthrough	reads, writes and mappings go to the file below. For files that no device maps.
 *	cached		through the kernel's cache and ours. For files that a device maps, or has mapped.
 *
 * The first open decides; further ones follow it for as long as any of them lasts. A file that is open in passthrough when a
 * device maps it stays so (pagecache/passthrough.c shares it). It is cached when it is next opened after the last of these
 * opens has ended.
 *
 * The kernel tells us nothing of mappings in passthrough: they hold the file below, not ours, and outlive its RELEASE (seen
 * on Linux 6.18). So before a file is cached, leases show whether the file below is in use: one for writing is granted only
 * if nobody else has it open or mapped, and one for reading only if nobody can write it.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <unistd.h>

/* "A device has mapped this file": on the file below, not shown in the mount. */
#define XATTR_DEVICE "trusted.gaiafs.device"

bool passthrough_hides(const char *xattr)
{
	return !strcmp(xattr, XATTR_DEVICE);
}

/* ---- whether the file below is in use ---- */

/*
 * Whether the cache may have to store something of the file. Then our descriptors stay open: else its owner could take a lease, and the
 * thread that stores would wait for that (see cfile_will_be_written()).
 */
static bool may_have_to_be_stored(struct inode *inode)
{
	if (!inode->cfile)
		return contents_cached(inode);
	return !cfile_is_passthrough(inode->cfile) || cfile_has_unstored(inode->cfile);
}

/* Whether a lease of that @kind is granted: see the top of this file. Not while some of the file may have to be stored. */
static int ask_for_lease(struct inode *inode, int kind)
{
	int fd, err;

	if (may_have_to_be_stored(inode))
		return -EAGAIN;
	fd = inode_open(inode, O_RDONLY | O_NONBLOCK); /* does not wait for other programs' leases */
	if (fd < 0)
		return -EAGAIN;
	backing_close_idle(inode);
	/* As root: where even root lacks CAP_LEASE (in some containers) this works at least for root's own files. */
	err = cred_root_begin(inode->fs);
	if (!err && fcntl(fd, F_SETLEASE, kind))
		err = -errno;
	cred_root_end(inode->fs);
	if (!err)
		fcntl(fd, F_SETLEASE, F_UNLCK);
	inode_close(inode, fd);
	return err;
}

/*
 * Of a shared source. Without leases below (NFS) mappings of files that are passed through cannot be seen, so there may be some. Else there are
 * none, but for programs that use the file below itself. inode->lock is held.
 */
bool passthrough_nobody_writes(struct inode *inode)
{
	struct fs *fs = inode->fs;
	bool is_open;
	int err;

	pthread_mutex_lock(&fs->lock);
	is_open = inode->writers;
	pthread_mutex_unlock(&fs->lock);
	if (is_open)
		return false;
	err = ask_for_lease(inode, F_RDLCK);
	return !err || ((err == -EINVAL || err == -EOPNOTSUPP) && !fs->passthrough);
}

#if GAIA_HAVE_PASSTHROUGH

/* Whether the daemon has CAP_SYS_ADMIN in the initial user namespace, which the root of another one has not. */
static bool may_pass_through(const struct fs *fs)
{
	unsigned first = 1, below = 1, n = 0;
	FILE *map = fopen("/proc/self/uid_map", "re");

	if (map && fscanf(map, "%u %u %u", &first, &below, &n) != 3)
		n = 0;
	if (map)
		fclose(map);
	return fs->privileged && first == 0 && below == 0 && n == UINT32_MAX;
}

static bool is_stacked(int fd)
{
	struct statfs st;

	return !fstatfs(fd, &st) && st.f_type == OVERLAYFS_SUPER_MAGIC;
}

const char *passthrough_init(struct fs *fs, struct fuse_conn_info *conn)
{
	if (!(conn->capable & FUSE_CAP_PASSTHROUGH))
		return "this kernel cannot pass files through (Linux 6.9 can)";
	if (!may_pass_through(fs))
		return "only root may pass files through";
	/*
	 * Not over file systems that are stacked themselves (max_backing_stack_depth 0 asks for that): mappings of their
	 * files hold the files beneath these, so leases do not show whether there is one.
	 */
	if (is_stacked(fs->root.fd))
		return "files of a stacked file system cannot be passed through";
	conn->max_backing_stack_depth = 0;
	return NULL;
}

static bool lease_granted(struct inode *inode, int kind)
{
	return ask_for_lease(inode, kind) == 0;
}

/* inode->lock held, as for all of this section. */
static bool nobody_has_it(struct inode *inode)
{
	return !inode->passthrough_opens && lease_granted(inode, F_WRLCK);
}

static bool nobody_writes_it(struct inode *inode)
{
	return !inode->passthrough_writers && lease_granted(inode, F_RDLCK);
}

/* Whether a mapping of such a descriptor may write: that takes the right to read, too. */
static bool may_write_mapped(int flags)
{
	return (flags & O_ACCMODE) == O_RDWR;
}

/*
 * Have the kernel drop the file's attributes. It waits for nobody meanwhile, so any thread may ask for it:
 * an exception from rule 7.
 */
static void drop_attributes(struct inode *inode)
{
	fuse_lowlevel_notify_inval_inode(inode->fs->session, inode->id, -1, 0);
}

/*
 * To be called before a program gets a descriptor that can write the file. Stores through a mapping of it change the file
 * without the kernel's noticing; and some calls may do so while a reply of ours with old attributes is under way.
 */
static void expect_changes(struct inode *inode, int flags)
{
	cfile_cpu_writes(inode->cfile);
	inode->may_change |= may_write_mapped(flags);
	if (inode->attr_given)
		drop_attributes(inode);
	inode->attr_given = false;
}

/* ---- opening ---- */

/* Note what the source says of the file. @size: of its XATTR_DEVICE; negative if it has none. */
static void note_for_devices(struct inode *inode, ssize_t size)
{
	inode->device_asked = true;
	inode->device_noted |= size >= 0;
	inode->for_devices |= size >= 0;
}

static bool is_for_devices(struct inode *inode)
{
	int fd;

	if (!inode->device_asked) {
		fd = inode_fd_get(inode);
		if (fd < 0)
			return false;
		note_for_devices(inode, getxattr(fd_path(fd).text, XATTR_DEVICE, NULL, 0));
		inode_fd_put(inode);
	}
	return inode->for_devices;
}

/*
 * Register @fd with the kernel: an id, or a negative errno. The kernel keeps this thread's present
 * credentials, and uses them for whatever anybody writes until the file's last close. So the thread has
 * root's powers here only if the file is root's and nobody else may write it. Of a shared source that may change at any time; and so
 * may the mode: the kernel, which takes set-id bits from what is written, may not know that there are some, so the file system below has to.
 */
static int register_backing(fuse_req_t req, struct inode *inode, int fd)
{
	struct stat st;
	bool shared = inode->fs->config.shared;
	bool roots = !shared && !inode->of_users && !fstat(fd, &st) && !st.st_uid &&
		     !(st.st_mode & (S_IWGRP | S_IWOTH));
	int id = roots ? cred_root_begin(inode->fs) : shared ? cred_writer_begin(inode->fs) : 0;

	if (!id) {
		errno = 0;
		id = fuse_passthrough_open(req, fd);
		if (id <= 0)
			id = errno ? -errno : -EIO;
	}
	if (roots)
		cred_root_end(inode->fs);
	else if (shared)
		cred_writer_end(inode->fs);
	return id;
}

int passthrough_register(fuse_req_t req, struct inode *inode)
{
	int fd = inode_fd_get(inode), id;

	if (fd < 0)
		return fd;
	id = register_backing(req, inode, fd);
	inode_fd_put(inode);
	/* Older kernels need a descriptor that allows reading. */
	if (id == -EBADF) {
		fd = inode_open(inode, O_RDONLY);
		id = fd < 0 ? fd : register_backing(req, inode, fd);
		if (fd >= 0)
			inode_close(inode, fd);
	}
	inode->backing_id = MAX(id, 0);
	return MIN(id, 0);
}

/* Nobody has the file below, so no mapping of it can change it any more. */
static int leave_passthrough(struct inode *inode)
{
	int err = cfile_leave_passthrough(inode->cfile);

	if (!err)
		inode->may_change = false;
	return err;
}

static bool to_be_cached(struct inode *inode)
{
	if (inode->passthrough_opens)
		return false;
	return !cfile_is_passthrough(inode->cfile) ||
	       ((inode->never_passed || (is_for_devices(inode) && nobody_has_it(inode))) && !leave_passthrough(inode));
}

bool passthrough_never(int err)
{
	return err == -EPERM || err == -ELOOP || err == -EOPNOTSUPP;
}

static int passthrough_or_cached(fuse_req_t req, struct handle *h)
{
	struct inode *inode = h->inode;
	int err = 0;

	if (to_be_cached(inode))
		return 0;
	if (!inode->passthrough_opens)
		err = passthrough_register(req, inode);
	inode->never_passed = passthrough_never(err);
	if (err && (inode->never_passed || nobody_has_it(inode))) {
		if (!atomic_exchange(&inode->fs->complained, true))
			log_warn("a file could not be passed through: %s; such files are served "
				 "by the daemon, which is slower", strerror(-err));
		return leave_passthrough(inode);
	}
	if (err)
		return err;
	h->passthrough = true;
	inode->passthrough_opens++;
	if (open_to_write(h->flags)) {
		inode->passthrough_writers++;
		expect_changes(inode, h->flags);
	}
	return 0;
}

int passthrough_open(fuse_req_t req, struct handle *h, struct fuse_file_info *fi)
{
	struct inode *inode = h->inode;
	int err;

	if (!inode->fs->passthrough)
		return 0;
	pthread_mutex_lock(&inode->lock);
	err = passthrough_or_cached(req, h);
	if (!err && h->passthrough)
		fi->backing_id = inode->backing_id;
	pthread_mutex_unlock(&inode->lock);
	return err;
}

void passthrough_release(fuse_req_t req, struct handle *h)
{
	struct inode *inode = h->inode;

	if (!h->passthrough)
		return;
	pthread_mutex_lock(&inode->lock);
	inode->passthrough_writers -= open_to_write(h->flags);
	if (!--inode->passthrough_opens) {
		fuse_passthrough_close(req, inode->backing_id);
		inode->backing_id = 0;
	}
	pthread_mutex_unlock(&inode->lock);
}

void passthrough_mapped(struct inode *inode, bool may_write)
{
	bool news, note;
	int fd;

	if (!inode->fs->passthrough || inode->fs->config.shared)
		return;
	pthread_mutex_lock(&inode->lock);
	news = !inode->for_devices;
	note = may_write && !inode->device_noted;
	inode->for_devices = true;
	inode->device_noted |= note;
	pthread_mutex_unlock(&inode->lock);
	cred_drop_powers(inode->fs);
	/* If the note cannot be written, this is known only for as long as the inode lives. */
	fd = note ? inode_fd_get(inode) : -1;
	if (fd >= 0 && setxattr(fd_path(fd).text, XATTR_DEVICE, "", 0, 0))
		log_debug("noting that devices use a file: %s", strerror(errno));
	if (fd >= 0)
		inode_fd_put(inode);
	if (news || note)
		invalidate(inode, -1, 0);
}

void passthrough_end(struct inode *inode)
{
	if (!inode->fs->passthrough || inode->fs->config.shared)
		return;
	pthread_mutex_lock(&inode->lock);
	(void)to_be_cached(inode);
	pthread_mutex_unlock(&inode->lock);
}

void passthrough_failed(struct handle *h)
{
	if (h->passthrough)
		drop_attributes(h->inode);
}

void passthrough_acquire(struct inode *inode)
{
	struct cfile *f = inode->cfile; /* the caller's handle keeps it */
	uint64_t news = 0;

	if (inode->fs->config.shared || !cfile_is_passthrough(f) || !cfile_cpu_may_write(f))
		return;
	pthread_mutex_lock(&inode->lock);
	if (nobody_writes_it(inode))
		news = cfile_cpu_stops(f);
	pthread_mutex_unlock(&inode->lock);
	if (news)
		(void)cfile_cpu_stopped(f, news); /* if it fails, acquires go on comparing */
}

void passthrough_created(struct inode *inode, int fd)
{
	if (!inode->fs->passthrough)
		return;
	pthread_mutex_lock(&inode->lock);
	note_for_devices(inode, fgetxattr(fd, XATTR_DEVICE, NULL, 0));
	pthread_mutex_unlock(&inode->lock);
}

/*
 * If nobody can write the file now, attributes that are read from now on are right until somebody opens it for writing. If such
 * an open overtakes a reply with attributes, the kernel does not use these: expect_changes() has told it that they change.
 */
double attr_timeout(struct inode *inode)
{
	bool sure = true;

	if (inode->fs->config.shared)
		return inode->type == S_IFDIR ? inode->fs->config.names_age_s : 0;
	if (inode->fs->passthrough && inode->type == S_IFREG) {
		pthread_mutex_lock(&inode->lock);
		if (inode->may_change)
			inode->may_change = !nobody_writes_it(inode);
		sure = !inode->may_change && !inode->passthrough_writers;
		inode->attr_given |= sure;
		pthread_mutex_unlock(&inode->lock);
	}
	return sure ? FS_TIMEOUT : 0;
}

#else

const char *passthrough_init(struct fs *fs, struct fuse_conn_info *conn)
{
	return "this libfuse cannot pass files through (3.17 can)";
}

int passthrough_open(fuse_req_t req, struct handle *h, struct fuse_file_info *fi)
{
	return 0;
}

void passthrough_release(fuse_req_t req, struct handle *h)
{
}

void passthrough_mapped(struct inode *inode, bool may_write)
{
}

void passthrough_end(struct inode *inode)
{
}

void passthrough_failed(struct handle *h)
{
}

void passthrough_acquire(struct inode *inode)
{
}

void passthrough_created(struct inode *inode, int fd)
{
}

double attr_timeout(struct inode *inode)
{
	if (inode->fs->config.shared)
		return inode->type == S_IFDIR ? inode->fs->config.names_age_s : 0;
	return FS_TIMEOUT;
}

int passthrough_register(fuse_req_t req, struct inode *inode)
{
	return -EOPNOTSUPP;
}

bool passthrough_never(int err)
{
	return err == -EOPNOTSUPP;
}

#endif

/*
 * The attributes of an empty file may be kept for long: stores through a mapping cannot change it, and whatever makes it
 * longer goes through FUSE, which asks for them again. This saves a GETATTR when a file is created, and another at the
 * first stat(2) after it is closed.
 */
double attr_timeout_of(const struct inode *inode, double timeout, const struct stat *st)
{
	return !inode->fs->config.shared && S_ISREG(st->st_mode) && !st->st_size ? FS_TIMEOUT : timeout;
}
