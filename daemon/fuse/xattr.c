/*
 * xattr.c - extended attributes and ACLs, passed through.
 *
 * The calls go by way of /proc/self/fd, whose links lead to the very file, even if it is a symlink.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <linux/limits.h>
#include <linux/xattr.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#define ACL_ACCESS "system.posix_acl_access"
#define ACL_DEFAULT "system.posix_acl_default"

bool xattr_source_has_acl(int fd)
{
	return getxattr(fd_path(fd).text, ACL_ACCESS, NULL, 0) >= 0 || errno == ENODATA;
}

/* Reply @n bytes, or the negative errno @n; @size: of the caller's buffer, 0 if the caller only asks for the size. */
static void reply_bytes(fuse_req_t req, const char *buf, ssize_t n, size_t size)
{
	if (n < 0)
		fuse_reply_err(req, (int)-n);
	else if (!size)
		fuse_reply_xattr(req, (size_t)n);
	else if ((size_t)n > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, buf, (size_t)n);
}

/* ---- what the daemon knows of a file ---- */

#define OWN_PREFIX "system.gaiafs."

/*
 * Attributes that can be read by their names, by who may read the file, and that no list has: so nobody copies them. (The kernel asks nobody
 * whether system.* may be read.)
 */
static const char *const own_names[] = { OWN_PREFIX "residency", OWN_PREFIX "device", OWN_PREFIX "dirty" };
enum own { OWN_RESIDENCY, OWN_DEVICE, OWN_DIRTY };

/* Its place among own_names, or as many as these are. */
static unsigned own_name(const char *name)
{
	unsigned i = 0;

	while (i < ARRAY_LEN(own_names) && strcmp(own_names[i], name) != 0)
		i++;
	return i;
}

static bool is_own(const char *name)
{
	return own_name(name) < ARRAY_LEN(own_names);
}

struct own_job {
	fuse_req_t req;
	struct fs *fs;
	struct inode *inode;
	unsigned name;
	size_t size;
};

static int may_read(const struct own_job *job)
{
	int fd = inode_fd_get(job->inode);
	bool may;

	if (fd < 0)
		return fd;
	may = cred_may_read(job->req, fd);
	inode_fd_put(job->inode);
	return may ? 0 : -EACCES;
}

static int own_text(const struct own_job *job, char *text, size_t size)
{
	struct cfile *f;
	int err = may_read(job);

	if (err)
		return err;
	/* Of a file of which nothing is cached nothing is to be cached because of this. */
	if (!contents_cached(job->inode)) {
		snprintf(text, size, "%s", job->name == OWN_RESIDENCY ? "home=0" : job->name == OWN_DEVICE ? "" : "0");
		return 0;
	}
	err = contents_get(job->inode, &f);
	if (err)
		return err;
	if (job->name == OWN_DIRTY)
		snprintf(text, size, "%llu", (unsigned long long)cfile_dirty_bytes(f));
	else
		cfile_where(f, job->name == OWN_DEVICE, text, size);
	contents_put(job->inode);
	return 0;
}

static void run_own(void *arg)
{
	struct own_job *job = arg;
	struct fs *fs = job->fs;
	char text[4096];
	int err = own_text(job, text, sizeof(text));

	reply_bytes(job->req, text, err ? err : (ssize_t)strlen(text), job->size);
	busy_end(fs);
	free(job);
}

/* On a worker of the caller's share: a large file has many chunks to look at, and storage is asked for rights. */
static void reply_own(fuse_req_t req, struct inode *inode, unsigned name, size_t size)
{
	struct fs *fs = req_fs(req);
	struct own_job *job = inode->type == S_IFREG ? malloc(sizeof(*job)) : NULL;

	if (!job) {
		fuse_reply_err(req, inode->type == S_IFREG ? ENOMEM : ENODATA);
		return;
	}
	if (!busy_begin(fs, false)) {
		free(job);
		fuse_reply_err(req, ENOTCONN);
		return;
	}
	/* The kernel keeps the inode until we have answered. */
	*job = (struct own_job){ .req = req, .fs = fs, .inode = inode, .name = name, .size = size };
	lane_submit(fs, LANE_LOOK, fuse_req_ctx(req)->uid, run_own, job);
}

/* ---- the requests ---- */

/* Whether only the owner may change it. Of a shared source the kernel may remember a former one, as of no other. */
static bool is_owners(const struct fs *fs, const char *name)
{
	return fs->config.shared && (!strcmp(name, ACL_ACCESS) || !strcmp(name, ACL_DEFAULT));
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
		 int flags)
{
	struct fs *fs = req_fs(req);
	struct inode *inode = inode_of(fs, ino);
	/* As the caller, since an ACL that is set by a user outside the file's group clears set-gid. */
	bool is_access = !strcmp(name, ACL_ACCESS), as_caller = is_access || is_owners(fs, name);
	int fd, err;

	if (!fs->writeback && (!strcmp(name, GAIA_XATTR_RELEASE) || !strcmp(name, GAIA_XATTR_RELEASEV))) {
		release_by_xattr(req, inode, !strcmp(name, GAIA_XATTR_RELEASEV), value, size);
		return;
	}
	if (passthrough_hides(name) || is_own(name)) {
		fuse_reply_err(req, EPERM);
		return;
	}
	fd = inode_fd_get(inode);
	err = fd < 0 ? fd : is_owners(fs, name) ? attr_look_at_owner(req, inode, fd) : 0;
	if (is_access && inode->type == S_IFREG)
		access_keep(inode); /* setting an ACL changes the mode, too */
	if (!err && as_caller)
		err = AS_CALLER(req, fd, setxattr(fd_path(fd).text, name, value, size, flags));
	else if (!err)
		err = AS_CALLER_MAY(req, setxattr(fd_path(fd).text, name, value, size, flags));
	if (is_access)
		attr_owner_changed(inode);
	if (fd >= 0)
		inode_fd_put(inode);
	fuse_reply_err(req, -err);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct inode *inode = inode_of(req_fs(req), ino);
	char *buf;
	ssize_t n;
	int fd;

	if (passthrough_hides(name)) {
		fuse_reply_err(req, ENODATA);
		return;
	}
	if (is_own(name)) {
		reply_own(req, inode, own_name(name), size);
		return;
	}
	buf = malloc(MAX(size, 1u));
	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	fd = inode_fd_get(inode);
	if (fd < 0) {
		n = fd;
	} else {
		n = getxattr(fd_path(fd).text, name, buf, size);
		if (n < 0)
			n = -errno;
		/* As with set-id bits: see attr.c. */
		else if (!strcmp(name, XATTR_NAME_CAPS) && attr_mounted_with(inode, ST_NOSUID))
			n = -ENODATA;
		inode_fd_put(inode);
	}
	reply_bytes(req, buf, n, size);
	free(buf);
}

/*
 * Remove from @list the daemon's own names and, unless @all, those that only a privileged process may see.
 * Returns the bytes that remain.
 */
static ssize_t visible(char *list, ssize_t n, bool all)
{
	char *to = list;

	for (const char *name = list, *next; name < list + n; name = next) {
		next = name + strlen(name) + 1;
		if (passthrough_hides(name) ||
		    (!all && !strncmp(name, XATTR_TRUSTED_PREFIX, XATTR_TRUSTED_PREFIX_LEN)))
			continue;
		memmove(to, name, (size_t)(next - name));
		to += next - name;
	}
	return to - list;
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct inode *inode = inode_of(req_fs(req), ino);
	char *buf = malloc(XATTR_LIST_MAX);
	ssize_t n;
	int fd;

	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	fd = inode_fd_get(inode);
	if (fd < 0) {
		n = fd;
	} else {
		n = listxattr(fd_path(fd).text, buf, XATTR_LIST_MAX);
		if (n < 0)
			n = -errno;
		inode_fd_put(inode);
	}
	/* The list is of what the daemon may see, which may be more than the caller may. */
	if (n > 0)
		n = visible(buf, n, !fuse_req_ctx(req)->uid);
	reply_bytes(req, buf, n, size);
	free(buf);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct inode *inode = inode_of(req_fs(req), ino);
	int fd = inode_fd_get(inode), err = fd < 0 ? fd : 0;

	if (!err && (passthrough_hides(name) || is_own(name))) {
		err = is_own(name) ? -EPERM : -ENODATA;
		inode_fd_put(inode);
	} else if (!err) {
		if (is_owners(req_fs(req), name)) {
			err = attr_look_at_owner(req, inode, fd);
			if (!err)
				err = AS_CALLER(req, fd, removexattr(fd_path(fd).text, name));
		} else if (removexattr(fd_path(fd).text, name)) {
			err = -errno;
		}
		inode_fd_put(inode);
	}
	fuse_reply_err(req, -err);
}
