/*
 * fs_differences.c - where a mount is not like the directory below, and is known not to be.
 *
 * A test for each entry of the list in gaiafs-limits(7) ("Known differences from a local directory"): one that
 * fails because the difference has gone is good news, and the entry goes, too.
 */
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "shell.h"
#include "ways.h"

#define ALICE 1234u
#define BOB 1235u

static void make_file(const char *name)
{
	int fd[2];

	SAME_FD_OK(fd, openat(at, name, O_CREAT | O_EXCL | O_RDWR, 0644));
	SAME_OK(write(fd[side], "text", 4));
	SAME_CLOSE(fd);
}

static void stat_both(const char *name, struct stat st[2])
{
	SAME_OK(fstatat(at, name, &st[side], AT_SYMLINK_NOFOLLOW));
}

static void need_root(const char *why)
{
	if (geteuid() != 0)
		WAY_SKIP("%s: needs root", why);
}

/* "Access times" */
EACH_WAY(fs_differences, reading_what_is_cached_does_not_change_the_access_time)
{
	static const struct timespec old[2] = { { 1000000000, 0 }, { 1100000000, 0 } };
	struct stat st[2];
	char c[2];
	int fd[2];

	make_file("f");
	SAME_OK(utimensat(at, "f", old, 0));
	SAME_FD_OK(fd, openat(at, "f", O_RDONLY));
	SAME_OK(read(fd[side], &c[side], 1));
	stat_both("f", st);
	cr_assert_eq(st[ON_MOUNT].st_atim.tv_sec,
		     way_is("auto") ? st[ON_PLAIN].st_atim.tv_sec : 1000000000);
	SAME_CLOSE(fd);
	/* Those that are set are kept, and directories have them as below. */
	SAME_OK(mkdirat(at, "d", 0755));
	SAME_OK(utimensat(at, "d", old, 0));
	stat_both("d", st);
	cr_assert_eq(st[ON_MOUNT].st_atim.tv_sec, st[ON_PLAIN].st_atim.tv_sec);
}

/* "Times" */
EACH_WAY(fs_differences, cutting_a_file_by_name_to_the_size_it_has_may_leave_its_times)
{
	static const struct timespec old[2] = { { 1000000000, 0 }, { 1100000000, 0 } };
	char path[64];
	struct stat st[2];

	make_file("f");
	SAME_OK(utimensat(at, "f", old, 0));
	SAME_OK((snprintf(path, sizeof(path), "/proc/self/fd/%d/f", at), truncate(path, 4)));
	stat_both("f", st);
	if (way_is("writeback"))
		cr_assert_eq(st[ON_MOUNT].st_mtim.tv_sec, 1100000000);
	else
		cr_assert_eq(st[ON_MOUNT].st_mtim.tv_sec > 1100000000,
			     st[ON_PLAIN].st_mtim.tv_sec > 1100000000);
}

EACH_WAY(fs_differences, what_goes_through_a_fifo_leaves_its_times)
{
	static const struct timespec old[2] = { { 1000000000, 0 }, { 1100000000, 0 } };
	struct stat st[2];
	int fd[2];

	SAME_OK(mknodat(at, "fifo", S_IFIFO | 0644, 0));
	SAME_OK(utimensat(at, "fifo", old, 0));
	SAME_FD_OK(fd, openat(at, "fifo", O_RDWR));
	SAME_OK(write(fd[side], "x", 1));
	stat_both("fifo", st);
	cr_assert_eq(st[ON_MOUNT].st_mtim.tv_sec, 1100000000);
	SAME_CLOSE(fd);
}

EACH_WAY(fs_differences, there_is_no_time_of_birth)
{
	struct statx x;

	make_file("f");
	cr_assert_eq(statx(both_root[ON_MOUNT], "f", 0, STATX_BASIC_STATS | STATX_BTIME, &x), 0);
	cr_assert_eq(x.stx_mask & STATX_BTIME, 0u);
	cr_assert_eq(x.stx_mask & STATX_BASIC_STATS, STATX_BASIC_STATS);
}

static int write_by_bob(void *arg)
{
	int fd;

	child_become(BOB, BOB);
	fd = openat(*(int *)arg, "f", O_WRONLY);
	CHILD_CHECK(fd >= 0 && pwrite(fd, "x", 1, 0) == 1);
	return 0;
}

/* "Set-gid without execution" */
EACH_WAY_BARE(fs_differences, setgid_without_execution_survives_a_write_by_others)
{
	struct stat st[2];

	need_root("other users");
	way_start(NULL);
	make_file("f");
	SAME_OK(fchownat(at, "f", ALICE, ALICE, 0));
	SAME_OK(fchmodat(at, "f", 02666, 0));
	cr_assert_eq(SAME(child_run(write_by_bob, &at)), 0);
	stat_both("f", st);
	cr_assert_eq(st[ON_MOUNT].st_mode & 07777, 02666u);
	/* With it, it is cleared, as below. */
	SAME_OK(fchmodat(at, "f", 02676, 0));
	cr_assert_eq(SAME(child_run(write_by_bob, &at)), 0);
	stat_both("f", st);
	both_same_stat(st, "f");
	cr_assert_eq(st[ON_MOUNT].st_mode & 07777, 0676u);
}

static int chown_without_change(void *arg)
{
	int fd;

	child_become(BOB, BOB);
	fd = openat(*(int *)arg, "f", O_RDONLY);
	return fchown(fd, -1, -1) ? errno : 0;
}

/* "Set-id bits" */
EACH_WAY_BARE(fs_differences, while_a_file_is_written_anybody_may_chown_it_without_change)
{
	struct stat st[2];
	int fd[2];

	need_root("other users");
	way_start(NULL);
	make_file("f");
	SAME_OK(fchownat(at, "f", ALICE, ALICE, 0));
	SAME_OK(fchmodat(at, "f", 02755, 0));
	SAME_FD_OK(fd, openat(at, "f", O_WRONLY));
	cr_assert_eq(child_run(chown_without_change, &both_root[ON_PLAIN]), EPERM);
	cr_assert_eq(child_run(chown_without_change, &both_root[ON_MOUNT]), 0);
	stat_both("f", st);
	cr_assert_eq(st[ON_PLAIN].st_mode & 07777, 02755u);
	cr_assert_eq(st[ON_MOUNT].st_mode & 07777, 0755u);
	SAME_CLOSE(fd);
}

static int stay_in_a_namespace(void *arg)
{
	const struct gate *tried = arg;

	(void)!unshare(CLONE_NEWUSER);
	gate_open(*tried);
	return pause();
}

/* A descriptor of one that maps ten users, or -1 if none can be made. */
static int a_user_namespace(void)
{
	struct gate tried = gate_make();
	pid_t child = child_start(stay_in_a_namespace, &tried);
	bool mapped = gate_pass(tried);
	char path[64];
	int ns, fd;

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", child, i ? "uid_map" : "gid_map");
		fd = open(path, O_WRONLY);
		mapped = mapped && write(fd, "0 10000 10", 10) == 10;
		close(fd);
	}
	snprintf(path, sizeof(path), "/proc/%d/ns/user", child);
	ns = mapped ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	child_kill(child);
	return ns;
}

/* "File handles" */
EACH_WAY(fs_differences, file_handles_are_good_while_the_kernel_knows_the_file)
{
	struct {
		struct file_handle head;
		unsigned char bytes[MAX_HANDLE_SZ];
	} h[2];
	struct stat st;
	int fd[2], mount_id;

	need_root("file handles");
	make_file("f");
	for (int side = 0; side < 2; side++) {
		h[side].head.handle_bytes = MAX_HANDLE_SZ;
		if (name_to_handle_at(both_root[side], "f", &h[side].head, &mount_id, 0))
			WAY_SKIP("file handles: %s", strerror(errno));
	}
	SAME_FD_OK(fd, open_by_handle_at(at, &h[side].head, O_RDONLY));
	SAME_CLOSE(fd);
	way_unmount();
	way_remount();
	fd[ON_PLAIN] = open_by_handle_at(both_root[ON_PLAIN], &h[ON_PLAIN].head, O_RDONLY);
	cr_assert_geq(fd[ON_PLAIN], 0);
	close(fd[ON_PLAIN]);
	cr_assert_eq(open_by_handle_at(both_root[ON_MOUNT], &h[ON_MOUNT].head, O_RDONLY), -1);
	cr_assert_eq(errno, ESTALE);
	/* Nor is it that of the first file of this mount, which may well have the same number as that of the mount before. */
	make_file("other");
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "other", &st, 0), 0);
	cr_assert_eq(open_by_handle_at(both_root[ON_MOUNT], &h[ON_MOUNT].head, O_RDONLY), -1);
	cr_assert_eq(errno, ESTALE);
}

/* "O_APPEND" */
EACH_WAY(fs_differences, a_file_opened_to_append_and_passed_through_goes_on_appending)
{
	struct stat st[2];
	int fd[2];

	make_file("f");
	SAME_FD_OK(fd, openat(at, "f", O_WRONLY | O_APPEND));
	SAME_OK(fcntl(fd[side], F_SETFL, 0));
	SAME_OK(pwrite(fd[side], "x", 1, 0));
	stat_both("f", st);
	cr_assert_eq(st[ON_PLAIN].st_size, 4);
	cr_assert_eq(st[ON_MOUNT].st_size, way_is("auto") ? 5 : 4);
	/* The other way round it is as below. */
	SAME_CLOSE(fd);
	SAME_FD_OK(fd, openat(at, "f", O_WRONLY | O_TRUNC));
	SAME_OK(write(fd[side], "text", 4));
	SAME_OK(fcntl(fd[side], F_SETFL, O_APPEND));
	SAME_OK(pwrite(fd[side], "x", 1, 0));
	stat_both("f", st);
	cr_assert_eq(st[ON_PLAIN].st_size, 5);
	cr_assert_eq(st[ON_MOUNT].st_size, 5);
	SAME_CLOSE(fd);
}

/* "O_DIRECT" */
EACH_WAY(fs_differences, direct_io_need_not_be_aligned)
{
	char got[8] = "";
	unsigned char *p;
	int fd;

	make_file("f");
	/* Passed through it is as below, until a device has mapped it. */
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR | O_DIRECT);
	if (way_is("auto") && fd >= 0) {
		int below = openat(mnt.backing_fd, "f", O_RDWR | O_DIRECT);

		cr_assert_geq(below, 0, "%s", strerror(errno));
		cr_assert_eq(pwrite(fd, "odd", 3, 5), pwrite(below, "odd", 3, 5));
		close(below);
		p = gaia_mmap(4, PROT_READ, fd, 0, 0);
		cr_assert(p != MAP_FAILED && gaia_munmap(p, 4) == 0);
		close(fd);
		way_unmount();
		way_remount();
		fd = openat(both_root[ON_MOUNT], "f", O_RDWR | O_DIRECT);
	}
	cr_assert_geq(fd, 0, "%s", strerror(errno));
	cr_assert_eq(pwrite(fd, "odd", 3, 5), 3);
	cr_assert_eq(pread(fd, got, 7, 1), 7);
	cr_assert_arr_eq(got, "ext\0odd", 7);
	close(fd);
}

/* "Offsets" */
EACH_WAY(fs_differences, an_offset_that_below_is_too_large_is_told_by_fsync_unless_passed_through)
{
	const off_t far = 1l << 50;
	char got[4];
	int fd[2];

	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_RDWR, 0644));
	if (pwrite(fd[ON_PLAIN], "far", 3, far) == 3)
		WAY_SKIP("offsets: the file system of the test has them all");
	cr_assert_eq(errno, EFBIG);
	SAME_OK(pwrite(fd[side], "near", 4, 0));
	if (way_is("auto")) {
		cr_assert_eq(pwrite(fd[ON_MOUNT], "far", 3, far), -1);
	} else {
		cr_assert_eq(pwrite(fd[ON_MOUNT], "far", 3, far), 3);
		cr_assert_eq(fsync(fd[ON_MOUNT]), -1);
	}
	cr_assert_eq(errno, EFBIG, "%s", strerror(errno));
	/* Cut off again, it does no harm. */
	SAME_OK(ftruncate(fd[side], 4));
	SAME_OK(fsync(fd[side]));
	SAME_OK(pread(fd[side], got, 4, 0));
	cr_assert_arr_eq(got, "near", 4);
	SAME_CLOSE(fd);
	way_unmount();
	backing_holds("f", "near", 4);
}

/* "Idmapped mounts" */
EACH_WAY(fs_differences, an_idmapped_mount_is_refused)
{
	struct mount_attr attr = { .attr_set = MOUNT_ATTR_IDMAP };
	int ns, tree;

	need_root("mounting");
	ns = a_user_namespace();
	if (ns < 0)
		WAY_SKIP("user namespaces cannot be made here");
	attr.userns_fd = (uint64_t)ns;
	tree = (int)syscall(SYS_open_tree, both_root[ON_MOUNT], "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	cr_assert_geq(tree, 0, "%s", strerror(errno));
	cr_assert_eq(syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof(attr)), -1);
	cr_assert_eq(errno, EINVAL, "%s", strerror(errno));
	close(tree);
	close(ns);
}

/* "Calls" */
EACH_WAY(fs_differences, what_fuse_has_no_request_for_is_refused)
{
	struct {
		struct fiemap map;
		struct fiemap_extent extent[4];
	} fiemap = { .map = { .fm_length = ~0ull, .fm_extent_count = 4 } };
	struct fsxattr attributes;
	int fd, other, flags;

	make_file("f");
	make_file("g");
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	other = openat(both_root[ON_MOUNT], "g", O_RDWR);
#define REFUSED(call)                                                                              \
	do {                                                                                       \
		cr_assert_eq((call), -1, "%s works", #call);                                       \
		cr_assert(errno == EOPNOTSUPP || errno == ENOTTY, "%s: %s", #call, strerror(errno)); \
	} while (0)
	REFUSED(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
	REFUSED(fallocate(fd, FALLOC_FL_INSERT_RANGE, 0, 4096));
	REFUSED(ioctl(fd, FS_IOC_GETFLAGS, &flags));
	REFUSED(ioctl(fd, FS_IOC_FSGETXATTR, &attributes));
	REFUSED(ioctl(fd, FS_IOC_FIEMAP, &fiemap));
	REFUSED(ioctl(other, FICLONE, fd));
	close(fd);
	close(other);
}
