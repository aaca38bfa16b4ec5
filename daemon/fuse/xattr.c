/*
 * xattr.c - extended attributes and ACLs, passed through.
 *
 * By way of /proc/self/fd, whose links lead to the file itself, symlinks included.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#define ACL_ACCESS "system.posix_acl_access"

bool xattr_source_has_acl(int fd)
{
	return getxattr(fd_path(fd).text, ACL_ACCESS, NULL, 0) >= 0 || errno == ENODATA;
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
		 int flags)
{
	struct fd_path path = fd_path(inode_of(req_fs(req), ino)->fd);
	/* As the caller, since an ACL set by who is not of the file's group clears set-gid. */
	bool as_caller = !strcmp(name, ACL_ACCESS);
	int err = 0;

	if (as_caller)
		err = cred_enter(req);
	if (!err) {
		if (setxattr(path.text, name, value, size, flags))
			err = -errno;
		if (as_caller)
			cred_leave(req);
	}
	fuse_reply_err(req, -err);
}

static void reply_xattr(fuse_req_t req, ssize_t n, int err, const char *buf, size_t size)
{
	if (n < 0)
		fuse_reply_err(req, err);
	else if (!size)
		fuse_reply_xattr(req, (size_t)n);
	else
		fuse_reply_buf(req, buf, (size_t)n);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct fd_path path = fd_path(inode_of(req_fs(req), ino)->fd);
	char *buf = NULL;
	ssize_t n;

	if (size) {
		buf = malloc(size);
		if (!buf) {
			fuse_reply_err(req, ENOMEM);
			return;
		}
	}
	n = getxattr(path.text, name, buf, size);
	reply_xattr(req, n, errno, buf, size);
	free(buf);
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct fd_path path = fd_path(inode_of(req_fs(req), ino)->fd);
	char *buf = NULL;
	ssize_t n;

	if (size) {
		buf = malloc(size);
		if (!buf) {
			fuse_reply_err(req, ENOMEM);
			return;
		}
	}
	n = listxattr(path.text, buf, size);
	reply_xattr(req, n, errno, buf, size);
	free(buf);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct fd_path path = fd_path(inode_of(req_fs(req), ino)->fd);

	fuse_reply_err(req, removexattr(path.text, name) ? errno : 0);
}
