/*
 * fs_readonly.c - a mount that becomes read-only, beside a plain directory that does: names that exist are said to exist,
 * what leads elsewhere can be written, programs run, and reading leaves the access times. As xfstests generic/120, 294,
 * 306 and 452 have it.
 */
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "own_mounts.h"
#include "shell.h"
#include "ways.h"

#define BLOCK 512

static void start(const char *const *args)
{
	struct statvfs st;

	if (geteuid() != 0)
		WAY_SKIP("making a mount read-only: needs root");
	way_start(args);
	cr_assert_eq(fstatvfs(mnt.backing_fd, &st), 0);
	if (st.f_flag & (ST_NODEV | ST_NOEXEC))
		WAY_SKIP("device files and programs: the test's directory is mounted without these");
}

/* The plain directory by a detached mount, so that nothing has to be unmounted. */
static int read_only_clone(const char *path)
{
	struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY };
	int fd = (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);

	cr_assert_geq(fd, 0, "open_tree: %s", strerror(errno));
	cr_assert_eq(syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)), 0, "%s", strerror(errno));
	return fd;
}

static void become_read_only(void)
{
	cr_assert_eq(mount(NULL, mnt.path, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0, "remount,ro: %s", strerror(errno));
	close(both_root[ON_PLAIN]);
	both_root[ON_PLAIN] = read_only_clone(plain_dir);
}

/* So that the kernel has asked for no name yet. */
static void become_another_mount(void)
{
	way_unmount();
	way_remount();
}

static int open_and_close(int at, const char *name, int flags)
{
	int fd = openat(at, name, flags, 0644);

	return fd < 0 ? -1 : close(fd);
}

static void make_names(void)
{
	SAME_OK(mknodat(at, "null", S_IFCHR | 0666, makedev(1, 3)));
	SAME_OK(mknodat(at, "zero", S_IFCHR | 0666, makedev(1, 5)));
	SAME_OK(mknodat(at, "fifo", S_IFIFO | 0666, 0));
	SAME_OK(mkdirat(at, "dir", 0755));
	SAME_OK(open_and_close(at, "file", O_CREAT | O_WRONLY));
	SAME_OK(symlinkat("file", at, "link"));
	SAME_OK(symlinkat("nowhere", at, "dangling"));
}

static void check_names(void)
{
	SAME_ERR(mknodat(at, "null", S_IFCHR | 0666, makedev(1, 3)), EEXIST);
	SAME_ERR(mknodat(at, "file", S_IFREG | 0666, 0), EEXIST);
	SAME_ERR(mkdirat(at, "dir", 0755), EEXIST);
	SAME_ERR(mkdirat(at, "file", 0755), EEXIST);
	SAME_ERR(mkdirat(at, "dir/.", 0755), EEXIST);
	SAME_ERR(symlinkat("file", at, "link"), EEXIST);
	SAME_ERR(symlinkat("file", at, "dangling"), EEXIST);
	SAME_ERR(linkat(at, "file", at, "link", 0), EEXIST);
	SAME_ERR(open_and_close(at, "file", O_CREAT | O_EXCL | O_RDONLY), EEXIST);
	SAME_OK(open_and_close(at, "file", O_CREAT | O_RDONLY));
	SAME_ERR(open_and_close(at, "file", O_CREAT | O_RDWR), EROFS);
	SAME_ERR(open_and_close(at, "link", O_CREAT | O_WRONLY), EROFS);
	SAME_ERR(open_and_close(at, "dangling", O_CREAT | O_RDONLY), EROFS);
	SAME_ERR(open_and_close(at, "file", O_RDONLY | O_TRUNC), EROFS);
	SAME_ERR(open_and_close(at, "new", O_CREAT | O_RDONLY), EROFS);
	SAME_ERR(open_and_close(at, "new", O_WRONLY), ENOENT);
	SAME_ERR(open_and_close(at, "dir", O_TMPFILE | O_RDWR), EROFS);
	SAME_ERR(mknodat(at, "new", S_IFCHR | 0666, makedev(1, 3)), EROFS);
	SAME_ERR(mkdirat(at, "new", 0755), EROFS);
	SAME_ERR(symlinkat("file", at, "new"), EROFS);
	SAME_ERR(linkat(at, "file", at, "new", 0), EROFS);
	SAME_ERR(utimensat(at, "file", NULL, 0), EROFS);
	SAME_ERR(utimensat(at, "null", NULL, 0), EROFS);
	SAME_ERR(fchmodat(at, "file", 0600, 0), EROFS);
	SAME_ERR(fchownat(at, "null", 1, 1, 0), EROFS);
	SAME_ERR(unlinkat(at, "file", 0), EROFS);
	SAME_ERR(faccessat(at, "file", W_OK, 0), EROFS);
	SAME_ERR(faccessat(at, "dir", W_OK, 0), EROFS);
	SAME_OK(faccessat(at, "null", R_OK | W_OK, 0));
	SAME_OK(faccessat(at, "fifo", R_OK | W_OK, 0));
	/* Of several errors, the same. */
	SAME(unlinkat(at, "new", 0));
	SAME(unlinkat(at, "dir", 0));
	SAME(unlinkat(at, "file", AT_REMOVEDIR));
	SAME(renameat(at, "file", at, "new"));
	SAME(renameat(at, "new", at, "file"));
	SAME(renameat(at, "dir", at, "dir/sub"));
	SAME(renameat2(at, "file", at, "link", RENAME_NOREPLACE));
	SAME(linkat(at, "new", at, "file", 0));
	SAME(mkdirat(at, "new/sub", 0755));
	SAME(mkdirat(at, "file/sub", 0755));
}

EACH_WAY_BARE(fs_readonly, names_that_exist_are_said_to_exist)
{
	start(NULL);
	make_names();
	become_another_mount();
	become_read_only();
	check_names();
	/* And when the kernel knows them. */
	check_names();
	both_same_tree();
}

static void write_block(const char *name, int flags)
{
	static const char block[BLOCK];
	int fd[2];

	SAME_FD_OK(fd, openat(at, name, flags, 0644));
	cr_assert_eq(SAME(write(fd[side], block, BLOCK)), BLOCK, "%s: %s", name, strerror(errno));
	SAME_CLOSE(fd);
}

EACH_WAY_BARE(fs_readonly, devices_and_pipes_can_be_written)
{
	static const int flags[] = { O_RDWR, O_WRONLY | O_CREAT, O_WRONLY | O_TRUNC, O_WRONLY | O_CREAT | O_TRUNC,
				     O_WRONLY | O_CREAT | O_APPEND };
	char got[BLOCK];
	int fd[2];

	start(NULL);
	make_names();
	become_another_mount();
	become_read_only();
	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++)
		write_block("null", flags[i]);
	SAME_FD_OK(fd, openat(at, "zero", O_RDWR));
	for (int side = 0; side < 2; side++) {
		memset(got, 'x', BLOCK);
		cr_assert_eq(pread(fd[side], got, BLOCK, 0), BLOCK, "%s", strerror(errno));
		cr_assert(!got[0] && !memcmp(got, got + 1, BLOCK - 1), "/dev/zero reads as something else");
	}
	SAME_ERR(ftruncate(fd[side], 0), EINVAL);
	SAME_CLOSE(fd);
	SAME_FD_OK(fd, openat(at, "fifo", O_RDWR));
	cr_assert_eq(SAME(write(fd[side], got, BLOCK)), BLOCK);
	cr_assert_eq(SAME(read(fd[side], got, BLOCK)), BLOCK);
	SAME_CLOSE(fd);
}

EACH_WAY_BARE(fs_readonly, a_link_leads_to_where_one_can_write)
{
	static const int flags[] = { O_RDWR, O_RDWR | O_CREAT, O_RDWR | O_TRUNC, O_RDWR | O_CREAT | O_TRUNC };
	char target[PATH_MAX + 8];

	start(NULL);
	snprintf(target, sizeof(target), "%s/target", mnt.dir);
	SAME_OK(symlinkat(target, at, "out"));
	become_another_mount();
	become_read_only();
	SAME_ERR(open_and_close(at, "out", O_RDWR), ENOENT);
	/* By the link it can be made, too. */
	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
		unlink(target);
		if (flags[i] & O_CREAT)
			write_block("out", flags[i]);
		else
			cr_assert_eq(mknod(target, S_IFREG | 0644, 0), 0);
		write_block("out", flags[i]);
	}
	unlink(target);
}

EACH_WAY_BARE(fs_readonly, a_file_mounted_on_a_file_can_be_written)
{
	char target[PATH_MAX + 8], bound[PATH_MAX + 8];
	struct stat st;

	if (geteuid() != 0)
		WAY_SKIP("mounting something else: needs root");
	cr_assert(own_mounts(NULL));
	start(NULL);
	snprintf(target, sizeof(target), "%s/target", mnt.dir);
	snprintf(bound, sizeof(bound), "%s/file", mnt.path);
	cr_assert_eq(mknod(target, S_IFREG | 0644, 0), 0);
	make_names();
	become_read_only();
	cr_assert_eq(mount(target, bound, NULL, MS_BIND, NULL), 0, "%s", strerror(errno));
	for (int flags = O_RDWR;; flags = O_RDWR | O_CREAT | O_TRUNC) {
		int fd = openat(both_root[ON_MOUNT], "file", flags, 0644);

		cr_assert_geq(fd, 0, "%s", strerror(errno));
		cr_assert_eq(write(fd, "text", 4), 4, "%s", strerror(errno));
		close(fd);
		cr_assert(!stat(target, &st) && st.st_size == 4);
		if (flags & O_CREAT)
			break;
	}
	cr_assert_eq(umount2(bound, MNT_DETACH), 0);
	cr_assert_eq(openat(both_root[ON_MOUNT], "file", O_RDWR), -1);
	cr_assert_eq(errno, EROFS);
}

static void same_output(const char *command)
{
	struct shell_result r[2];
	char at[32];

	for (int side = 0; side < 2; side++) {
		snprintf(at, sizeof(at), "/proc/self/fd/%d", both_root[side]);
		r[side] = shell_run(at, 60, "%s", command);
		cr_assert_eq(r[side].status, 0, "%s: exit status %d\n%s", command, r[side].status, r[side].err);
	}
	cr_assert_str_eq(r[ON_MOUNT].out, r[ON_PLAIN].out);
	cr_assert_neq(r[ON_MOUNT].out[0], '\0', "%s prints nothing", command);
	for (int side = 0; side < 2; side++)
		shell_free(&r[side]);
}

EACH_WAY_BARE(fs_readonly, programs_run_on)
{
	start(NULL);
	for (int side = 0; side < 2; side++)
		shell_ok(side == ON_MOUNT ? mnt.path : plain_dir, "cp \"$(command -v ls)\" ls && chmod 755 ls");
	same_output("./ls ls");
	become_read_only();
	same_output("./ls ls");
	way_unmount();
	way_remount();
	become_read_only();
	same_output("./ls ls");
}

static long access_time(const char *name)
{
	struct stat st;

	cr_assert_eq(fstatat(mnt.backing_fd, name, &st, AT_SYMLINK_NOFOLLOW), 0);
	return st.st_atim.tv_sec;
}

EACH_WAY_BARE(fs_readonly, reading_leaves_the_access_times_where_it_was_mounted_so)
{
	static const char *const ro[] = { "-o", "ro", NULL };
	static const char *const names[] = { "ls", "cached", "dir", "link" };
	static const struct timespec long_ago[2] = { { 1000000000, 0 }, { 1100000000, 0 } };

	start(ro);
	shell_ok(mnt.backing, "cp \"$(command -v ls)\" ls && chmod 755 ls && mkdir dir && ln -s dir link");
	way_make_cached("cached");
	shell_ok(mnt.backing, "echo text > cached");
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		cr_assert_eq(utimensat(mnt.backing_fd, names[i], long_ago, AT_SYMLINK_NOFOLLOW), 0);
	shell_ok(mnt.path, "./ls . dir && cat ls cached > /dev/null && readlink link");
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		cr_assert_eq(access_time(names[i]), 1000000000, "%s: reading it has changed its access time", names[i]);
}
