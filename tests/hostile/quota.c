/*
 * quota.c - a user takes room in the source through the mount that the user would not get there: the blocks that ext4 keeps for
 * root, and more than a quota allows. Refused, and told, in whatever way the user goes about it; root still has
 * what is root's.
 *
 * On small file systems of the test's own, in a mount namespace that ends with it.
 */
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/quota.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "gaia/client.h"
#include "hostile.h"
#include "own_mounts.h"
#include "shell.h"
#include "tree.h"

#define PAGE 4096
#define MIB (1024 * 1024)
#define RW (PROT_READ | PROT_WRITE)
#define TOO_MUCH (40 * MIB) /* more than any of these file systems has */
#define KEPT (6 * MIB)	    /* for root */
#define ALLOWED (4 * MIB)   /* by the quota */
/* What a file system may give beyond, to its own extents and directories. */
#define GIVE (MIB / 2)

/* ---- the source ---- */

static char top[PATH_MAX]; /* holds it, at top/small, and its image */

static void remove_top(void)
{
	struct shell_result r;

	way_clean_up();
	if (!top[0])
		return;
	r = shell_run("/", 60, "umount -l '%s/small'; umount -l '%s/disk'; rm -rf '%s'", top, top, top);
	shell_free(&r);
}

#define IMAGE(size) "mount -t tmpfs -o size=80M none disk && truncate -s " size " disk/image && "
/* A quarter is root's. */
#define EXT4 IMAGE("24M") "mkfs.ext4 -q -b 4096 -N 4096 -m 25 disk/image && mount -o loop disk/image small"
#define EXT4_QUOTA                                                                     \
	IMAGE("24M")                                                                   \
	"mkfs.ext4 -q -b 4096 -N 4096 -m 0 -O quota -E quotatype=usrquota disk/image && " \
	"mount -o loop,usrquota disk/image small"
/* It wants more space than it is given. */
#define XFS_QUOTA IMAGE("320M") "mkfs.xfs -q disk/image && mount -o loop,uquota disk/image small"

static const char *needs(const char *commands)
{
	return strstr(commands, "mkfs.xfs") ? "needs mkfs.xfs, and a kernel with CONFIG_XFS_QUOTA" :
	       strstr(commands, "usrquota") ? "needs a kernel with CONFIG_QUOTA and CONFIG_QFMT_V2" :
					      "needs mkfs.ext4 and loop devices";
}

/* Skips the test where there is no such thing. */
static void start_on(const char *commands, const char *const *args)
{
	char small[PATH_MAX + 8];
	struct shell_result r;

	if (geteuid())
		WAY_SKIP("needs root, to be another user as well");
	shared = mmap(NULL, sizeof(*shared), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(shared, MAP_FAILED);
	ready = gate_make();
	cr_assert(own_mounts(NULL));
	tree_make_temp(NULL, top);
	shell_ok(top, "chmod 755 . && mkdir small disk");
	r = shell_run(top, 60, "%s && chmod 777 small", commands);
	if (r.status) {
		char why[200];

		snprintf(why, sizeof(why), "%.*s", (int)strcspn(r.err, "\n"), r.err);
		shell_free(&r);
		remove_top();
		cr_skip_test("such a file system cannot be had here (%s): %s", needs(commands), why);
	}
	shell_free(&r);
	snprintf(small, sizeof(small), "%s/small", top);
	way_start_at(small, top, args);
}

static uint64_t free_bytes(void)
{
	struct statvfs fs;

	/* What is to be stored is; and ext4 frees later what is deleted. */
	cr_assert_eq(syncfs(mnt.backing_fd), 0);
	cr_assert_eq(fstatvfs(mnt.backing_fd, &fs), 0);
	return fs.f_bfree * fs.f_bsize;
}

static void check_kept(void)
{
	uint64_t left = free_bytes();

	cr_assert_geq(left, (uint64_t)(KEPT - GIVE), "of %d KiB that are kept for root %llu are left", KEPT >> 10,
		      (unsigned long long)left >> 10);
}

/* ---- attackers: nobody, each until it is told an error, which is shared->error ---- */

static const char *const victim = "n"; /* the file that is filled */
static int pages = TOO_MUCH / PAGE;
static int refusal = ENOSPC; /* what is to be told */

static void told(int err)
{
	if (!shared->error)
		shared->error = err;
}

static int open_victim(void)
{
	int fd = open(mnt_file(&mnt, victim), O_RDWR | O_CREAT | O_CLOEXEC, 0644);

	CHILD_CHECK(fd >= 0);
	return fd;
}

/* Each byte says where it lies. */
static void fill_page(char *page, int i)
{
	memset(page, i % 251 + 1, PAGE);
}

static int by_writing(void *arg)
{
	char page[PAGE];
	int fd, i;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open_victim();
	for (i = 0; i < pages; i++) {
		fill_page(page, i);
		if (pwrite(fd, page, PAGE, (off_t)i * PAGE) != PAGE) {
			told(errno);
			break;
		}
		shared->count = i + 1;
	}
	if (fsync(fd))
		told(errno);
	if (close(fd))
		told(errno);
	return 0;
}

static sigjmp_buf no_page;

static void on_bus(int number)
{
	(void)number;
	siglongjmp(no_page, 1);
}

/* Passed through, the store itself is told, by SIGBUS, as on the file system below. */
static int by_mapping(void *arg)
{
	char *p;
	int fd;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open_victim();
	CHILD_CHECK(ftruncate(fd, TOO_MUCH) == 0);
	p = mmap(NULL, TOO_MUCH, RW, MAP_SHARED, fd, 0);
	CHILD_CHECK(p != MAP_FAILED);
	signal(SIGBUS, on_bus);
	if (sigsetjmp(no_page, 1))
		told(refusal);
	else
		for (volatile int i = 0; i < TOO_MUCH / PAGE; i++)
			fill_page(p + (size_t)i * PAGE, i);
	signal(SIGBUS, SIG_DFL);
	if (msync(p, TOO_MUCH, MS_SYNC))
		told(errno);
	if (fsync(fd))
		told(errno);
	munmap(p, TOO_MUCH);
	close(fd);
	return 0;
}

static int by_device(void *arg)
{
	char *p;
	int fd;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open_victim();
	CHILD_CHECK(ftruncate(fd, TOO_MUCH) == 0);
	p = gaia_mmap(TOO_MUCH, RW, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(gaia_acquire(p, TOO_MUCH, RW) == 0);
	memset(p, 'd', TOO_MUCH);
	if (gaia_release(p, TOO_MUCH))
		told(errno);
	if (fsync(fd))
		told(errno);
	gaia_munmap(p, TOO_MUCH);
	close(fd);
	return 0;
}

static void allocate(void)
{
	int fd = open_victim();

	/* To the last block: what fails leaves nothing behind. */
	for (off_t n = 0, step = MIB / 4; n < TOO_MUCH && step >= PAGE;) {
		if (!fallocate(fd, 0, n, step)) {
			n += step;
			continue;
		}
		told(errno);
		step /= 2;
	}
	close(fd);
}

static int by_allocating(void *arg)
{
	(void)arg;
	child_become(NOBODY, NOBODY);
	allocate();
	return 0;
}

static int by_copying(void *arg)
{
	static char bytes[MIB];
	int fd, from;

	(void)arg;
	child_become(NOBODY, NOBODY);
	from = open(mnt_file(&mnt, "from"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	fd = open_victim();
	memset(bytes, 'c', MIB);
	CHILD_CHECK(from >= 0 && pwrite(from, bytes, MIB, 0) == MIB && fsync(from) == 0);
	for (off_t n = 0; n < TOO_MUCH; n += MIB) {
		off_t at = 0, to = n;

		if (copy_file_range(from, &at, fd, &to, MIB, 0) < 0) {
			told(errno);
			break;
		}
	}
	if (fsync(fd))
		told(errno);
	close(from);
	close(fd);
	return 0;
}

#define NAMES 200

/* 16 to a block. */
static const char *long_name(const char *dir, int i)
{
	static char text[300];

	snprintf(text, sizeof(text), "%s/%0240d", dir, i);
	return mnt_file(&mnt, text);
}

/* How many of these calls work; told() gets the error of the next. */
#define UNTIL_REFUSED(call)                                \
	({                                                 \
		int n_ = 0;                                \
                                                           \
		while (n_ < NAMES && (call) == 0)          \
			n_++;                              \
		told(n_ < NAMES ? errno : 0);              \
		shared->count += n_ == NAMES;              \
		n_;                                        \
	})

/* Not by files' contents: those have taken what there was. */
static int by_names(void *arg)
{
	static char value[3000], target[3000];
	char old[PATH_MAX];
	int fd;

	(void)arg;
	child_become(NOBODY, NOBODY);
	memset(target, 't', sizeof(target) - 1);
	CHILD_CHECK(mkdir(mnt_file(&mnt, "links"), 0755) == 0);
	CHILD_CHECK(mkdir(mnt_file(&mnt, "renamed"), 0755) == 0);
	CHILD_CHECK(mkdir(mnt_file(&mnt, "files"), 0755) == 0);
	for (int i = 0; i < NAMES; i++) {
		fd = open(long_name("files", i), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
		CHILD_CHECK(fd >= 0);
		close(fd);
	}
	allocate();
	snprintf(old, sizeof(old), "%s", long_name("files", 0));
	UNTIL_REFUSED(link(old, long_name("links", n_)));
	UNTIL_REFUSED(setxattr(long_name("files", n_), "user.x", value, sizeof(value), 0));
	UNTIL_REFUSED(symlink(target, long_name("links", NAMES + n_)));
	UNTIL_REFUSED(mkdir(long_name("links", 2 * NAMES + n_), 0755));
	UNTIL_REFUSED(({
		snprintf(old, sizeof(old), "%s", long_name("files", n_));
		rename(old, long_name("renamed", n_));
	}));
	return 0;
}

/* ---- blocks that are kept for root ---- */

static const char *const args[] = { "--device", "sim:64M", "--home", "64M", NULL };

/*
 * Not opened by root: where it is passed through, whoever opens it before root's open has ended would write with root's powers,
 * and that end comes some time after close(2).
 */
static void make_unopened(void)
{
	cr_assert_eq(mknod(mnt_file(&mnt, victim), S_IFREG | 0644, 0), 0, "%s", strerror(errno));
}

/* A file of nobody's, cached also where files are passed through if @cached. */
static void make_victim(bool cached)
{
	if (cached)
		way_make_cached(victim);
	else
		make_unopened();
	cr_assert_eq(chown(mnt_file(&mnt, victim), NOBODY, NOBODY), 0);
}

static void attack(int (*attacker)(void *))
{
	cr_assert_eq(child_run(attacker, NULL), 0);
	cr_assert_eq(shared->error, refusal, "told: %s", strerror(shared->error));
}

/* Root writes a new file of its own, makes directories, and gives more names than their blocks hold. */
static void check_root_has_room(void)
{
	static char bytes[2 * MIB];
	char old[PATH_MAX];
	int fd = hostile_file("roots", 0);

	memset(bytes, 'r', sizeof(bytes));
	cr_assert_eq(write(fd, bytes, sizeof(bytes)), (ssize_t)sizeof(bytes), "root: %s", strerror(errno));
	cr_assert_eq(fsync(fd), 0, "root: %s", strerror(errno));
	close(fd);
	backing_holds("roots", bytes, sizeof(bytes));
	for (int i = 0; i < 2 * PAGE / 256; i++)
		cr_assert_eq(mkdir(long_name(".", i), 0755), 0, "root: %s", strerror(errno));
	snprintf(old, sizeof(old), "%s", mnt_file(&mnt, "roots"));
	for (int i = 0; i < 2 * PAGE / 256; i++)
		cr_assert_eq(link(old, long_name(".", NAMES + i)), 0, "root: %s", strerror(errno));
}

/* What could not be stored goes with the file, so that the mount can end cleanly. */
static void end(void)
{
	cr_assert_eq(unlink(mnt_file(&mnt, victim)), 0);
	way_end();
	remove_top();
}

#define EACH_WAY_ON(name)                                                                            \
	static void quota_##name(void);                                                              \
	Test(quota, name##_auto, .init = way_bare_auto, .fini = remove_top, .timeout = WAY_SECONDS)   \
	{                                                                                            \
		quota_##name();                                                                      \
		end();                                                                               \
	}                                                                                            \
	CACHED_WAYS_ON(name)

#define CACHED_WAYS_ON(name)                                                                         \
	static void quota_##name(void);                                                              \
	Test(quota, name##_writeback, .init = way_bare_writeback, .fini = remove_top,                \
	     .timeout = WAY_SECONDS)                                                                 \
	{                                                                                            \
		quota_##name();                                                                      \
		end();                                                                               \
	}                                                                                            \
	Test(quota, name##_writethrough, .init = way_bare_writethrough, .fini = remove_top,          \
	     .timeout = WAY_SECONDS)                                                                 \
	{                                                                                            \
		quota_##name();                                                                      \
		end();                                                                               \
	}                                                                                            \
	static void quota_##name(void)

#define KEPT_FROM(name, attacker, cached)           \
	EACH_WAY_ON(blocks_for_root_kept_from_##name) \
	{                                           \
		start_on(EXT4, args);               \
		make_victim(cached);                \
		attack(attacker);                   \
		check_kept();                       \
		check_root_has_room();              \
	}

KEPT_FROM(writes, by_writing, false)
KEPT_FROM(cached_writes, by_writing, true)
KEPT_FROM(stores, by_mapping, false)
KEPT_FROM(a_device, by_device, false)
KEPT_FROM(a_device_of_a_cached_file, by_device, true)
KEPT_FROM(fallocate, by_allocating, false)
KEPT_FROM(copies, by_copying, false)

EACH_WAY_ON(blocks_for_root_kept_from_names)
{
	start_on(EXT4, args);
	attack(by_names);
	cr_assert_eq(shared->count, 0, "%d of 5 kinds of names were never refused", shared->count);
	check_kept();
	check_root_has_room();
}

/* Root's own file, which all may write, and which root reads at the time. */
EACH_WAY_ON(blocks_for_root_kept_from_writers_of_a_file_of_roots)
{
	int fd;

	start_on(EXT4, args);
	make_unopened();
	cr_assert_eq(chmod(mnt_file(&mnt, victim), 0666), 0);
	fd = open(mnt_file(&mnt, victim), O_RDONLY | O_CLOEXEC);
	attack(by_writing);
	close(fd);
	check_kept();
	check_root_has_room();
}

/* By a descriptor that root has opened. */
static int by_roots_descriptor(void *arg)
{
	static char bytes[MIB];
	int fd = *(int *)arg;

	child_become(NOBODY, NOBODY);
	memset(bytes, 'b', MIB);
	for (int i = 0; i < TOO_MUCH / MIB; i++)
		if (pwrite(fd, bytes, MIB, (off_t)i * MIB) != MIB)
			break;
	if (fsync(fd))
		told(errno);
	return 0;
}

/* In writeback the kernel does not say whose pages it writes. */
Test(quota, blocks_for_root_kept_from_who_has_roots_descriptor, .init = way_bare_writethrough, .fini = remove_top,
     .timeout = WAY_SECONDS)
{
	int fd;

	start_on(EXT4, args);
	fd = hostile_file(victim, 0);
	cr_assert_eq(child_run(by_roots_descriptor, &fd), 0);
	cr_assert_eq(shared->error, ENOSPC, "told: %s", strerror(shared->error));
	close(fd);
	check_kept();
	end();
}

/* That root is refused what the user is, and only that, where files are passed through, is a limit: daemon/README.md. */
CACHED_WAYS_ON(root_writes_a_users_file_beyond)
{
	static char bytes[2 * MIB];
	int fd;

	start_on(EXT4, args);
	make_victim(false);
	fd = open(mnt_file(&mnt, victim), O_RDWR | O_CLOEXEC);
	cr_assert_eq(fallocate(fd, 0, 0, (off_t)free_bytes() - 3 * MIB), 0, "%s", strerror(errno));
	cr_assert_eq(pwrite(fd, bytes, sizeof(bytes), TOO_MUCH), (ssize_t)sizeof(bytes));
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	close(fd);
}

/* The same bytes, once there is room. */
EACH_WAY_ON(what_is_refused_is_stored_later)
{
	char *want;
	int fd, ballast;

	start_on(EXT4, args);
	make_victim(false);
	pages = 10 * MIB / PAGE;
	ballast = openat(mnt.backing_fd, "ballast", O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
	cr_assert_eq(fallocate(ballast, 0, 0, 8 * MIB), 0);
	close(ballast);
	attack(by_writing);
	check_kept();
	cr_assert_eq(unlinkat(mnt.backing_fd, "ballast", 0), 0);
	free_bytes();
	fd = open(mnt_file(&mnt, victim), O_RDWR | O_CLOEXEC);
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	cr_assert_eq(ftruncate(fd, (off_t)shared->count * PAGE), 0);
	close(fd);
	want = malloc((size_t)pages * PAGE);
	for (int i = 0; i < shared->count; i++)
		fill_page(want + (size_t)i * PAGE, i);
	backing_holds(victim, want, (size_t)shared->count * PAGE);
	free(want);
}

/* ---- quotas ---- */

#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif

static void quota_of_nobody(int cmd, struct dqblk *q)
{
	cr_assert_eq(syscall(SYS_quotactl_fd, mnt.backing_fd, QCMD(cmd, USRQUOTA), NOBODY, q), 0, "quotactl: %s",
		     strerror(errno));
}

static void start_with_quota(const char *commands)
{
	struct dqblk q = { .dqb_bhardlimit = ALLOWED >> 10, .dqb_bsoftlimit = ALLOWED >> 10, .dqb_valid = QIF_BLIMITS };

	start_on(commands, args);
	quota_of_nobody(Q_SETQUOTA, &q);
	refusal = EDQUOT;
}

static void check_quota(void)
{
	struct dqblk q = { .dqb_curspace = 0 };

	free_bytes();
	quota_of_nobody(Q_GETQUOTA, &q);
	cr_assert_leq(q.dqb_curspace, (uint64_t)(ALLOWED + GIVE), "nobody, who may have %d KiB, has %llu", ALLOWED >> 10,
		      (unsigned long long)q.dqb_curspace >> 10);
}

#define HOLDS_FOR(name, attacker, fs, cached) \
	EACH_WAY_ON(name)                     \
	{                                     \
		start_with_quota(fs);         \
		make_victim(cached);          \
		attack(attacker);             \
		check_quota();                \
		check_root_has_room();        \
	}

HOLDS_FOR(holds_for_writes_on_ext4, by_writing, EXT4_QUOTA, false)
HOLDS_FOR(holds_for_stores_on_ext4, by_mapping, EXT4_QUOTA, false)
HOLDS_FOR(holds_for_a_device_on_ext4, by_device, EXT4_QUOTA, true)
HOLDS_FOR(holds_for_fallocate_on_ext4, by_allocating, EXT4_QUOTA, false)
HOLDS_FOR(holds_for_writes_on_xfs, by_writing, XFS_QUOTA, false)
HOLDS_FOR(holds_for_stores_on_xfs, by_mapping, XFS_QUOTA, false)
HOLDS_FOR(holds_for_a_device_on_xfs, by_device, XFS_QUOTA, true)
HOLDS_FOR(holds_for_fallocate_on_xfs, by_allocating, XFS_QUOTA, false)
