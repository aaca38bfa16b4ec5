/*
 * cred.c - doing things as the caller, and without root's powers.
 *
 * A privileged daemon creates files with the caller's uid, gid and groups, so that ownership, set-gid directories,
 * default ACLs and quotas come out as in the directory below. An unprivileged daemon has only its own user's. If the
 * kernel allowed a request because of a capability of the caller's (the root of a user namespace has some over the
 * files of its users), the thread keeps that capability for the call.
 *
 * What users write must not be stored with root's powers: it could exceed quotas and use blocks that are reserved
 * for root. CAP_SYS_RESOURCE gives both powers, and on some file systems the fsuid 0 gives the second. Changing
 * either costs more than most stores. So each thread drops both once, and keeps all other capabilities. Its fsuid
 * becomes one that no file system knows, which has the same effect as the file owner's (quotas are charged to a
 * file's owner, whoever writes). For what root itself wrote or does, the thread has the powers again between
 * cred_root_begin() and cred_root_end(): for contents only if there was no space without them.
 *
 * In Linux credentials belong to a thread, though libc's wrappers hide that: hence the raw system
 * calls.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* More groups than the kernel gives anybody; any beyond would be ignored. */
#define MAX_GROUPS 65536
#define USUAL_GROUPS 64

/* The largest uid. It belongs to nobody, not even to the user "nobody". */
#define NO_USER ((uid_t)-2)

#define CAP_BIT(cap) (1ull << (cap))
/* The capabilities that setfsuid(2) takes from a thread that stops being root, and gives back: Linux's CAP_FS_SET. */
#define FILE_CAPS                                                                              \
	(CAP_BIT(CAP_CHOWN) | CAP_BIT(CAP_DAC_OVERRIDE) | CAP_BIT(CAP_DAC_READ_SEARCH) |           \
	 CAP_BIT(CAP_FOWNER) | CAP_BIT(CAP_FSETID) | CAP_BIT(CAP_MKNOD) |                          \
	 CAP_BIT(CAP_LINUX_IMMUTABLE) | CAP_BIT(CAP_MAC_OVERRIDE))
/* Without these only the fsuid 0 can do what root may do with users' files. */
#define NEEDED_CAPS                                                                            \
	(CAP_BIT(CAP_CHOWN) | CAP_BIT(CAP_DAC_OVERRIDE) | CAP_BIT(CAP_FOWNER) | CAP_BIT(CAP_FSETID))

static __thread bool dropped; /* this thread has dropped root's powers */

/* Set the thread's capabilities. */
static int take_caps(const struct cap_set *set)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };

	return syscall(SYS_capset, &head, set->word) ? -errno : 0;
}

static int caps_now(struct cap_set *set)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };

	return syscall(SYS_capget, &head, set->word) ? -errno : 0;
}

static uint64_t effective(const struct cap_set *set)
{
	return set->word[0].effective | (uint64_t)set->word[1].effective << 32;
}

static struct cap_set with(struct cap_set set, uint64_t caps)
{
	set.word[0].effective |= (uint32_t)caps;
	set.word[1].effective |= (uint32_t)(caps >> 32);
	return set;
}

static struct cap_set without(struct cap_set set, uint64_t caps)
{
	set.word[0].effective &= ~(uint32_t)caps;
	set.word[1].effective &= ~(uint32_t)(caps >> 32);
	return set;
}

/*
 * Whether the file system reserves blocks for the fsuid 0. Other file systems ignore the fsuid when
 * they store, or (NFS) send it to a server, which may know no uid but root's.
 */
static bool favours_fsuid_0(int fd)
{
	struct statfs st;

	if (fstatfs(fd, &st))
		return false;
	return st.f_type == EXT4_SUPER_MAGIC || st.f_type == F2FS_SUPER_MAGIC ||
	       st.f_type == 0x24051905; /* UBIFS */
}

/* Whether the user namespace has NO_USER. If it has not, no blocks are reserved for its root either. */
static bool can_be_no_user(void)
{
	uid_t got;

	syscall(SYS_setfsuid, NO_USER);
	got = (uid_t)syscall(SYS_setfsuid, -1); /* changes nothing, only returns it */
	syscall(SYS_setfsuid, 0);
	return got == NO_USER;
}

void cred_init(struct fs *fs)
{
	struct powers *p = &fs->powers;
	int err;

	if (!fs->privileged)
		return;
	err = caps_now(&p->root);
	p->plain = without(p->root, CAP_BIT(CAP_SYS_RESOURCE));
	p->user = without(p->plain, FILE_CAPS);
	/* If changing is refused at all, it is refused here. */
	if (!err)
		err = take_caps(&p->plain);
	if (!err)
		err = take_caps(&p->root);
	if (err) {
		log_warn("capabilities cannot be changed (%s): users can exceed quotas and use blocks that are "
			 "reserved for root", strerror(-err));
		return;
	}
	p->can_drop = true;
	if (!favours_fsuid_0(fs->root.fd) || !can_be_no_user())
		return;
	if ((effective(&p->root) & NEEDED_CAPS) == NEEDED_CAPS)
		p->fsuid = NO_USER;
	else
		log_warn("users can use blocks of %s that are reserved for root: to prevent it the daemon needs the "
			 "capabilities CHOWN, DAC_OVERRIDE, FOWNER and FSETID", fs->source);
}

/* Drop them, whatever the thread's present credentials are. */
static void drop(const struct powers *p)
{
	if (p->fsuid)
		syscall(SYS_setfsuid, p->fsuid);
	/* Last, since changing the fsuid takes some away. It worked in cred_init(), so it works here. */
	(void)take_caps(&p->plain);
}

void cred_drop_powers(const struct fs *fs)
{
	if (dropped || !fs->powers.can_drop)
		return;
	drop(&fs->powers);
	dropped = true;
}

int cred_root_begin(const struct fs *fs)
{
	const struct powers *p = &fs->powers;

	if (!p->can_drop)
		return 0;
	cred_drop_powers(fs);
	if (p->fsuid)
		syscall(SYS_setfsuid, 0);
	return take_caps(&p->root);
}

void cred_root_end(const struct fs *fs)
{
	if (fs->powers.can_drop)
		drop(&fs->powers);
}

int cred_writer_begin(const struct fs *fs)
{
	struct cap_set set = without(fs->powers.plain, CAP_BIT(CAP_FSETID));

	return fs->powers.can_drop ? take_caps(&set) : 0;
}

void cred_writer_end(const struct fs *fs)
{
	if (fs->powers.can_drop)
		drop(&fs->powers);
}

int cred_thread_init(const struct fs *fs)
{
	cred_drop_powers(fs);
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
	/* If the caller is in another pid namespace, or gone, its groups cannot be found out: then it acts without any. */
	if (syscall(SYS_setgroups, MAX(n, 0), groups))
		err = -errno;
	if (groups != few)
		free(groups);
	return err;
}

static int become_user(fuse_req_t req)
{
	const struct powers *p = &req_fs(req)->powers;
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	int err = take_groups(req);

	if (err)
		return err;
	syscall(SYS_setfsgid, ctx->gid);
	syscall(SYS_setfsuid, ctx->uid);
	/* If the fsuid was 0 the kernel has taken the capabilities. */
	return p->fsuid ? take_caps(&p->user) : 0;
}

static void become_oneself(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	const struct fs *fs = req_fs(req);

	if (!fs->privileged)
		return;
	if (ctx->uid && !fs->powers.fsuid)
		syscall(SYS_setfsuid, geteuid()); /* the capabilities come back with it */
	else
		cred_root_end(fs);
	if (ctx->gid)
		syscall(SYS_setfsgid, getegid());
	/* The daemon gave its supplementary groups up when it started. */
	if (ctx->uid)
		syscall(SYS_setgroups, 0, NULL);
}

static int become(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct fs *fs = req_fs(req);
	int err;

	if (!fs->privileged)
		return 0;
	if (!ctx->uid && ctx->gid)
		syscall(SYS_setfsgid, ctx->gid);
	err = ctx->uid ? become_user(req) : cred_root_begin(fs);
	if (err)
		become_oneself(req);
	return err;
}

int cred_enter(fuse_req_t req)
{
	int err;

	umask(fuse_req_ctx(req)->umask);
	err = become(req);
	if (err)
		umask(0);
	return err;
}

void cred_leave(fuse_req_t req)
{
	umask(0);
	become_oneself(req);
}

/* ---- what a caller may do, where the caller's open descriptor does not show it ---- */

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

/* Whether thread @pid has the fsuid @uid now. A thread of an NFS server does not while it serves another user. */
static bool acts_as(pid_t pid, uid_t uid)
{
	char path[64], line[256];
	unsigned fsuid = uid + 1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file) && sscanf(line, "Uid: %*u %*u %*u %u", &fsuid) != 1)
		;
	if (file)
		fclose(file);
	return fsuid == uid;
}

/* @map: "uid_map" or "gid_map". Whether the user namespace of thread @pid has the user or group @id. */
static bool namespace_has(pid_t pid, const char *map, unsigned id)
{
	unsigned first, n;
	char path[64];
	bool has = false;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, map);
	file = fopen(path, "re");
	while (!has && file && fscanf(file, "%*u %u %u", &first, &n) == 2)
		has = id >= first && id - first < n;
	if (file)
		fclose(file);
	return has;
}

/* The kernel's rule (capable_wrt_inode_uidgid()): capabilities count for files whose owner and group the caller's namespace has. */
static bool capable_of(pid_t pid, unsigned capability, int fd)
{
	struct stat st;

	return has_capability(pid, capability) && !fstat(fd, &st) && namespace_has(pid, "uid_map", st.st_uid) &&
	       namespace_has(pid, "gid_map", st.st_gid);
}

bool cred_enter_capable(fuse_req_t req, int fd, int err)
{
	const struct powers *p = &req_fs(req)->powers;
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	/* May search and write directories that others own; may do what their owner may. */
	unsigned capability = err == -EACCES ? CAP_DAC_OVERRIDE : CAP_FOWNER;
	struct cap_set set;

	if ((err != -EACCES && err != -EPERM) || !ctx->uid || !ctx->pid || !p->can_drop)
		return false;
	/* The kernel has checked this, too, but perhaps by attributes that have changed below since. */
	if (fd < 0 || !acts_as(ctx->pid, ctx->uid) || !capable_of(ctx->pid, capability, fd) || cred_enter(req))
		return false;
	set = with(p->user, CAP_BIT(capability));
	if (!take_caps(&set))
		return true;
	cred_leave(req);
	return false;
}

/* @caps, if the caller has each of them over all of @fds, of which there must be one. */
static uint64_t caps_over(fuse_req_t req, uint64_t caps, const int *fds, unsigned n)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	uint64_t has = 0;

	for (unsigned cap = 0; n && cap < 64; cap++) {
		bool all = caps & CAP_BIT(cap);

		for (unsigned i = 0; all && i < n; i++)
			all = capable_of(ctx->pid, cap, fds[i]);
		has |= all ? CAP_BIT(cap) : 0;
	}
	return has;
}

int cred_enter_over(fuse_req_t req, const struct cred_over *over)
{
	const struct powers *p = &req_fs(req)->powers;
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	uint64_t caps = 0;
	struct cap_set set;
	int err;

	if (ctx->uid && ctx->pid && p->can_drop && acts_as(ctx->pid, ctx->uid))
		caps = caps_over(req, CAP_BIT(CAP_DAC_OVERRIDE), over->dirs, over->n_dirs) |
		       caps_over(req, CAP_BIT(CAP_FOWNER) | CAP_BIT(CAP_CHOWN) | CAP_BIT(CAP_FSETID), over->files, over->n_files);
	err = cred_enter(req);
	if (err || !caps)
		return err;
	set = with(p->user, caps);
	err = take_caps(&set);
	if (err)
		cred_leave(req);
	return err;
}

bool cred_is_whole(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	/* 0: not in our pid namespace. Until we answer, neither the thread nor its number goes away. */
	return ctx->uid || (ctx->pid && has_capability(ctx->pid, CAP_DAC_OVERRIDE) && same_user_namespace(ctx->pid));
}

/*
 * Checks that open(2) makes and faccessat2(2) does not: append-only files are written at their end only, those
 * under fs-verity never.
 */
static bool is_kept_from_writers(int fd)
{
	struct statx stx;

	return statx(fd, "", AT_EMPTY_PATH, 0, &stx) || stx.stx_attributes & (STATX_ATTR_APPEND | STATX_ATTR_VERITY);
}

static bool may_access(fuse_req_t req, int fd, int mode)
{
	bool may;

	if (!req_fs(req)->privileged && fuse_req_ctx(req)->uid != geteuid())
		return false;
	if (!cred_is_whole(req) || become(req))
		return false;
	/* With the user's fsuid the thread has no capabilities that matter for files. */
	may = !syscall(SYS_faccessat2, fd, "", mode, AT_EACCESS | AT_EMPTY_PATH);
	become_oneself(req);
	return may;
}

bool cred_may_write(fuse_req_t req, int fd)
{
	return !is_kept_from_writers(fd) && may_access(req, fd, W_OK);
}

bool cred_may_read(fuse_req_t req, int fd)
{
	return may_access(req, fd, R_OK);
}
