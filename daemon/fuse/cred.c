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
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
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

static int become(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	int err;

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

static void become_oneself(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	if (!req_fs(req)->privileged || (!ctx->uid && !ctx->gid))
		return;
	syscall(SYS_setfsuid, geteuid());
	syscall(SYS_setfsgid, getegid());
	/* The daemon gave its supplementary groups up when it started. */
	if (ctx->uid)
		syscall(SYS_setgroups, 0, NULL);
}

int cred_enter(fuse_req_t req)
{
	umask(fuse_req_ctx(req)->umask);
	return become(req);
}

void cred_leave(fuse_req_t req)
{
	umask(0);
	become_oneself(req);
}

/* ---- what a caller may, when what he has opened does not say it ---- */

/* Whether thread @pid, which waits for us, is in the daemon's user namespace. */
static bool same_user_namespace(pid_t pid)
{
	char path[64];
	struct stat own, his;

	snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
	return !stat("/proc/self/ns/user", &own) && !stat(path, &his) && own.st_dev == his.st_dev &&
	       own.st_ino == his.st_ino;
}

static bool has_capability(pid_t pid, unsigned capability)
{
	char path[64], line[256];
	uint64_t effective = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "CapEff: %" SCNx64, &effective) == 1)
			break;
	fclose(file);
	return effective >> capability & 1;
}

bool cred_is_whole(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	/* 0: not in our pid namespace. Neither the thread nor its number goes before it is answered. */
	return ctx->uid || (ctx->pid && has_capability(ctx->pid, CAP_DAC_OVERRIDE) && same_user_namespace(ctx->pid));
}

bool cred_may_write(fuse_req_t req, int fd)
{
	bool may;

	if (!req_fs(req)->privileged && fuse_req_ctx(req)->uid != geteuid())
		return false;
	if (!cred_is_whole(req) || become(req))
		return false;
	/* With the user's fsuid we have no capabilities that count for files. */
	may = !syscall(SYS_faccessat2, fd, "", W_OK, AT_EACCESS | AT_EMPTY_PATH);
	become_oneself(req);
	return may;
}
