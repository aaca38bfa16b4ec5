/*
 * cred.c - doing things as the caller.
 *
 * A privileged daemon creates files with the caller's uid, gid and groups, so that
 * ownership, set-gid directories, default ACLs and quotas come out as in the directory
 * below. These credentials belong to a thread in Linux, though libc's wrappers hide it:
 * hence the raw system calls. An unprivileged daemon has only its own user's.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* More than the kernel gives anybody: a caller's groups beyond would be ignored. */
#define MAX_GROUPS 65536
#define USUAL_GROUPS 64

int cred_thread_init(void)
{
	/* A umask of the thread's own. */
	return unshare(CLONE_FS) ? -errno : 0;
}

static int take_groups(fuse_req_t req)
{
	gid_t few[USUAL_GROUPS], *groups = few;
	int n = fuse_req_getgroups(req, USUAL_GROUPS, few), err = 0;

	if (n > USUAL_GROUPS) {
		n = MIN(n, MAX_GROUPS);
		groups = calloc((size_t)n, sizeof(*groups));
		if (!groups)
			return -ENOMEM;
		n = MIN(fuse_req_getgroups(req, n, groups), n);
	}
	/* The caller may be in another pid namespace, or gone: then it has no groups to us. */
	if (syscall(SYS_setgroups, MAX(n, 0), groups))
		err = -errno;
	if (groups != few)
		free(groups);
	return err;
}

int cred_enter(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	int err;

	umask(ctx->umask);
	if (!req_fs(req)->privileged || (!ctx->uid && !ctx->gid))
		return 0;
	if (ctx->uid) {
		err = take_groups(req);
		if (err)
			return err;
	}
	syscall(SYS_setfsgid, ctx->gid);
	syscall(SYS_setfsuid, ctx->uid);
	return 0;
}

void cred_leave(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	umask(0);
	if (!req_fs(req)->privileged || (!ctx->uid && !ctx->gid))
		return;
	syscall(SYS_setfsuid, geteuid());
	syscall(SYS_setfsgid, getegid());
	/* The daemon gave its supplementary groups up when it started. */
	if (ctx->uid)
		syscall(SYS_setgroups, 0, NULL);
}
