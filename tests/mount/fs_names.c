/*
 * fs_names.c - making, finding, renaming and removing names.
 *
 * Each step is done on the mount and on a plain directory, and must end alike.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "ways.h"

static void make_file(const char *name, const char *text)
{
	int fd[2];

	SAME_FD_OK(fd, openat(at, name, O_CREAT | O_EXCL | O_WRONLY, 0644));
	SAME_OK(write(fd[side], text, strlen(text)));
	SAME_CLOSE(fd);
}

static void same_stat_at(const char *name)
{
	struct stat st[2];

	SAME_OK(fstatat(at, name, &st[side], AT_SYMLINK_NOFOLLOW));
	both_same_stat(st, name);
}

static void holds(const char *name, const char *text)
{
	char buf[2][64] = { "", "" };
	int fd[2];

	SAME_FD_OK(fd, openat(at, name, O_RDONLY));
	SAME_OK(read(fd[side], buf[side], sizeof(buf[0]) - 1));
	SAME_CLOSE(fd);
	cr_assert_str_eq(buf[ON_MOUNT], text, "%s on the mount", name);
	cr_assert_str_eq(buf[ON_PLAIN], text, "%s on the plain directory", name);
}

EACH_WAY(fs_names, a_missing_name_is_missing_until_it_is_made)
{
	struct stat st;

	for (int i = 0; i < 3; i++)
		SAME_ERR(fstatat(at, "f", &st, 0), ENOENT);
	make_file("f", "text");
	SAME_OK(fstatat(at, "f", &st, 0));
	SAME_OK(unlinkat(at, "f", 0));
	SAME_ERR(fstatat(at, "f", &st, 0), ENOENT);
	SAME_ERR(openat(at, "f", O_RDONLY), ENOENT);
	SAME_ERR(fstatat(at, "f/g", &st, 0), ENOENT);
}

EACH_WAY(fs_names, create_honours_excl_trunc_and_the_mode)
{
	static const mode_t modes[] = { 0, 0400, 0644, 0777, 04755, 02755, 01777 };
	char name[16];
	int fd[2];

	umask(022);
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		snprintf(name, sizeof(name), "mode%zu", i);
		SAME_FD_OK(fd, openat(at, name, O_CREAT | O_EXCL | O_RDWR, modes[i]));
		SAME_CLOSE(fd);
		same_stat_at(name);
	}
	SAME_ERR(openat(at, "mode1", O_CREAT | O_EXCL | O_RDWR, 0644), EEXIST);
	make_file("f", "long text");
	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_WRONLY, 0600));
	SAME_CLOSE(fd);
	holds("f", "long text");
	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_TRUNC | O_WRONLY, 0600));
	SAME_CLOSE(fd);
	holds("f", "");
	same_stat_at("f");
	umask(077);
	make_file("masked", "");
	umask(022);
	both_same_tree();
}

EACH_WAY(fs_names, open_refuses_what_a_local_directory_refuses)
{
	SAME_OK(mkdirat(at, "d", 0755));
	make_file("f", "text");
	SAME_OK(symlinkat("f", at, "l"));
	SAME_OK(symlinkat("loop", at, "loop"));
	SAME_ERR(openat(at, "d", O_WRONLY), EISDIR);
	SAME_ERR(openat(at, "d", O_CREAT | O_WRONLY, 0644), EISDIR);
	SAME_ERR(openat(at, "f", O_DIRECTORY), ENOTDIR);
	SAME_ERR(openat(at, "f/", O_RDONLY), ENOTDIR);
	SAME_ERR(openat(at, "f/x", O_CREAT | O_RDWR, 0644), ENOTDIR);
	SAME_ERR(openat(at, "l", O_RDONLY | O_NOFOLLOW), ELOOP);
	SAME_ERR(openat(at, "l", O_CREAT | O_EXCL | O_RDWR, 0644), EEXIST);
	SAME_ERR(openat(at, "loop", O_RDONLY), ELOOP);
	SAME_ERR(openat(at, "", O_RDONLY), ENOENT);
}

EACH_WAY(fs_names, mkdir_and_rmdir)
{
	struct stat st[2];

	umask(022);
	SAME_OK(mkdirat(at, "d", 0777));
	SAME_ERR(mkdirat(at, "d", 0777), EEXIST);
	SAME_OK(mkdirat(at, "d/e", 01700));
	SAME_OK(mkdirat(at, "d/e/f", 0));
	same_stat_at("d");
	same_stat_at("d/e");
	SAME_ERR(unlinkat(at, "d", AT_REMOVEDIR), ENOTEMPTY);
	SAME_ERR(unlinkat(at, "d", 0), EISDIR);
	SAME_OK(unlinkat(at, "d/e/f", AT_REMOVEDIR));
	SAME_OK(unlinkat(at, "d/e", AT_REMOVEDIR));
	SAME_OK(fstatat(at, "d", &st[side], 0));
	both_same_stat(st, "d without subdirectories");
	SAME_ERR(unlinkat(at, "d/.", AT_REMOVEDIR), EINVAL);
	SAME_OK(unlinkat(at, "d", AT_REMOVEDIR));
	SAME_ERR(unlinkat(at, "d", AT_REMOVEDIR), ENOENT);
	make_file("f", "");
	SAME_ERR(unlinkat(at, "f", AT_REMOVEDIR), ENOTDIR);
	SAME_ERR(mkdirat(at, "f", 0755), EEXIST);
}

EACH_WAY(fs_names, a_removed_directory_takes_no_names)
{
	int dir[2];

	SAME_OK(mkdirat(at, "d", 0755));
	SAME_FD_OK(dir, openat(at, "d", O_RDONLY | O_DIRECTORY));
	SAME_OK(unlinkat(at, "d", AT_REMOVEDIR));
	SAME_ERR(openat(dir[side], "f", O_CREAT | O_RDWR, 0644), ENOENT);
	SAME_ERR(mkdirat(dir[side], "e", 0755), ENOENT);
	SAME_CLOSE(dir);
}

EACH_WAY(fs_names, mknod_makes_fifos_and_sockets_and_devices)
{
	char got[2];
	int fd[2];

	SAME_OK(mknodat(at, "fifo", S_IFIFO | 0640, 0));
	SAME_OK(mknodat(at, "socket", S_IFSOCK | 0600, 0));
	SAME_OK(mknodat(at, "plain", S_IFREG | 0600, 0));
	SAME(mknodat(at, "null", S_IFCHR | 0666, makedev(1, 3)));
	same_stat_at("fifo");
	same_stat_at("socket");
	same_stat_at("plain");
	SAME_FD_OK(fd, openat(at, "fifo", O_RDWR | O_NONBLOCK));
	SAME_OK(write(fd[side], "x", 1));
	SAME_OK(read(fd[side], &got[side], 1));
	cr_assert_eq(got[ON_MOUNT], 'x');
	SAME_CLOSE(fd);
	/* The test's directory may be mounted nodev. */
	SAME_FD(fd, openat(at, "null", O_WRONLY | O_CREAT | O_TRUNC, 0644));
	if (fd[ON_MOUNT] >= 0) {
		cr_assert_eq(SAME(write(fd[side], "fred", 4)), 4);
		SAME_CLOSE(fd);
	}
	both_same_tree();
}

EACH_WAY(fs_names, symbolic_links)
{
	char target[2][PATH_MAX], longest[PATH_MAX], small[2][4];
	struct stat st[2];

	make_file("f", "text");
	SAME_OK(symlinkat("f", at, "l"));
	SAME_OK(symlinkat("/nowhere/at/all", at, "dangling"));
	memset(longest, 'x', sizeof(longest));
	longest[PATH_MAX - 2] = '\0';
	if (SAME(symlinkat(longest, at, "longest")) < 0) {
		longest[1023] = '\0'; /* XFS */
		SAME_OK(symlinkat(longest, at, "longest"));
	}
	SAME_ERR(symlinkat("f", at, "l"), EEXIST);
	SAME_OK(readlinkat(at, "longest", target[side], PATH_MAX));
	cr_assert_arr_eq(target[ON_MOUNT], longest, strlen(longest));
	SAME_OK(readlinkat(at, "dangling", small[side], sizeof(small[0])));
	cr_assert_arr_eq(small[ON_MOUNT], "/now", 4);
	holds("l", "text");
	same_stat_at("l");
	SAME_OK(fstatat(at, "l", &st[side], 0));
	both_same_stat(st, "through the link");
	SAME_ERR(fstatat(at, "dangling", &st[side], 0), ENOENT);
	SAME_ERR(readlinkat(at, "f", target[side], PATH_MAX), EINVAL);
	SAME_OK(unlinkat(at, "l", 0));
	holds("f", "text");
}

EACH_WAY(fs_names, hard_links_are_one_inode)
{
	struct stat a[2], b[2];
	int fd[2], other[2];
	char got[2][8];

	make_file("a", "one");
	SAME_OK(mkdirat(at, "d", 0755));
	SAME_OK(linkat(at, "a", at, "d/b", 0));
	SAME_ERR(linkat(at, "a", at, "d/b", 0), EEXIST);
	SAME_ERR(linkat(at, "missing", at, "c", 0), ENOENT);
	SAME_ERR(linkat(at, "d", at, "e", 0), EPERM);
	SAME_OK(fstatat(at, "a", &a[side], 0));
	SAME_OK(fstatat(at, "d/b", &b[side], 0));
	both_same_stat(a, "a");
	cr_assert_eq(a[ON_MOUNT].st_ino, b[ON_MOUNT].st_ino);
	cr_assert_eq(a[ON_MOUNT].st_dev, b[ON_MOUNT].st_dev);

	/* What is written through one name is read through the other, while both are open. */
	SAME_FD_OK(fd, openat(at, "a", O_RDWR));
	SAME_FD_OK(other, openat(at, "d/b", O_RDWR));
	SAME_OK(pwrite(fd[side], "ONE", 3, 0));
	SAME_OK(pread(other[side], got[side], 3, 0));
	cr_assert_arr_eq(got[ON_MOUNT], "ONE", 3);
	SAME_CLOSE(fd);
	SAME_CLOSE(other);
	SAME_OK(unlinkat(at, "a", 0));
	holds("d/b", "ONE");
	SAME_OK(fstatat(at, "d/b", &b[side], 0));
	cr_assert_eq(b[ON_MOUNT].st_nlink, 1u);
	both_same_tree();
}

EACH_WAY(fs_names, linkat_through_a_descriptor)
{
	char path[2][64];
	int fd[2];

	make_file("a", "text");
	SAME_FD_OK(fd, openat(at, "a", O_RDONLY));
	SAME_OK(snprintf(path[side], sizeof(path[0]), "/proc/self/fd/%d", fd[side]) > 0);
	SAME_OK(linkat(AT_FDCWD, path[side], at, "b", AT_SYMLINK_FOLLOW));
	SAME_CLOSE(fd);
	holds("b", "text");
	both_same_tree();
}

EACH_WAY(fs_names, tmpfile_has_no_name_until_linked)
{
	int m = openat(both_root[ON_MOUNT], ".", O_TMPFILE | O_RDWR, 0600), fd[2];
	char path[2][64];
	struct stat st[2];

	/* The kernel passes it on since 6.1, libfuse since 3.17. */
	if (m < 0 && errno == EOPNOTSUPP)
		WAY_SKIP("O_TMPFILE: not with this kernel and libfuse");
	cr_assert_geq(m, 0);
	close(m);
	SAME_FD_OK(fd, openat(at, ".", O_TMPFILE | O_RDWR, 0640));
	SAME_OK(write(fd[side], "text", 4));
	SAME_OK(fstat(fd[side], &st[side]));
	both_same_stat(st, "the temporary file");
	SAME_OK(snprintf(path[side], sizeof(path[0]), "/proc/self/fd/%d", fd[side]) > 0);
	SAME_OK(linkat(AT_FDCWD, path[side], at, "named", AT_SYMLINK_FOLLOW));
	SAME_CLOSE(fd);
	holds("named", "text");
	both_same_tree();
}

EACH_WAY(fs_names, rename_replaces)
{
	struct stat before, after;

	make_file("a", "a");
	make_file("b", "b");
	SAME_OK(mkdirat(at, "d", 0755));
	SAME_OK(mkdirat(at, "full", 0755));
	SAME_OK(mkdirat(at, "full/x", 0755));
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "a", &before, 0), 0);
	SAME_OK(renameat(at, "a", at, "b"));
	SAME_ERR(fstatat(at, "a", &after, 0), ENOENT);
	holds("b", "a");
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "b", &after, 0), 0);
	cr_assert_eq(before.st_ino, after.st_ino, "a rename keeps the inode number");
	SAME_OK(renameat(at, "b", at, "d/c"));
	holds("d/c", "a");
	SAME_ERR(renameat(at, "d/c", at, "full"), EISDIR);
	SAME_ERR(renameat(at, "d", at, "d/c"), EINVAL);
	cr_assert_eq(SAME(renameat(at, "d", at, "full")), -1);
	cr_assert(errno == ENOTEMPTY || errno == EEXIST, "%s", strerror(errno)); /* XFS: the latter */
	SAME_ERR(renameat(at, "full", at, "full/x/y"), EINVAL);
	SAME_ERR(renameat(at, "missing", at, "z"), ENOENT);
	make_file("f", "");
	SAME_ERR(renameat(at, "d", at, "f"), ENOTDIR);
	SAME_OK(mkdirat(at, "empty", 0700));
	SAME_OK(renameat(at, "d", at, "empty"));
	holds("empty/c", "a");
	SAME_OK(renameat(at, "empty", at, "full/x/moved"));
	holds("full/x/moved/c", "a");
	same_stat_at("full");
	same_stat_at("full/x");
	both_same_tree();
}

EACH_WAY(fs_names, rename_of_two_names_of_one_file_does_nothing)
{
	make_file("a", "text");
	SAME_OK(linkat(at, "a", at, "b", 0));
	SAME_OK(renameat(at, "a", at, "b"));
	holds("a", "text");
	holds("b", "text");
	both_same_tree();
}

EACH_WAY(fs_names, rename_flags)
{
	make_file("a", "a");
	make_file("b", "b");
	SAME_OK(mkdirat(at, "d", 0755));
	make_file("d/x", "x");
	SAME_ERR(renameat2(at, "a", at, "b", RENAME_NOREPLACE), EEXIST);
	holds("b", "b");
	SAME_OK(renameat2(at, "a", at, "c", RENAME_NOREPLACE));
	SAME_OK(renameat2(at, "b", at, "c", RENAME_EXCHANGE));
	holds("b", "a");
	holds("c", "b");
	SAME_OK(renameat2(at, "b", at, "d", RENAME_EXCHANGE));
	holds("d", "a");
	holds("b/x", "x");
	SAME_ERR(renameat2(at, "b", at, "missing", RENAME_EXCHANGE), ENOENT);
	SAME_ERR(renameat2(at, "b", at, "d", RENAME_EXCHANGE | RENAME_NOREPLACE), EINVAL);
	both_same_tree();
}

EACH_WAY(fs_names, a_renamed_open_directory_still_works)
{
	int dir[2];

	SAME_OK(mkdirat(at, "d", 0755));
	SAME_OK(mkdirat(at, "p", 0755));
	SAME_FD_OK(dir, openat(at, "d", O_RDONLY | O_DIRECTORY));
	SAME_OK(renameat(at, "d", at, "p/q"));
	SAME_OK(mkdirat(dir[side], "inside", 0755));
	SAME_OK(faccessat(at, "p/q/inside", F_OK, 0));
	SAME_OK(faccessat(dir[side], "../../p", F_OK, 0));
	SAME_CLOSE(dir);
	both_same_tree();
}

EACH_WAY(fs_names, names_of_255_bytes_work_and_of_256_do_not)
{
	char name[257];
	struct stat st[2];

	memset(name, 'n', sizeof(name));
	name[255] = '\0';
	make_file(name, "text");
	holds(name, "text");
	SAME_OK(symlinkat("f", at, "l"));
	SAME_ERR(linkat(at, name, at, name, 0), EEXIST);
	SAME_OK(renameat(at, name, at, "short"));
	SAME_OK(renameat(at, "short", at, name));
	name[255] = 'n';
	name[256] = '\0';
	SAME_ERR(openat(at, name, O_CREAT | O_RDWR, 0644), ENAMETOOLONG);
	SAME_ERR(mkdirat(at, name, 0755), ENAMETOOLONG);
	SAME_ERR(fstatat(at, name, &st[side], 0), ENAMETOOLONG);
	SAME_ERR(symlinkat("f", at, name), ENAMETOOLONG);
	SAME_ERR(renameat(at, "l", at, name), ENAMETOOLONG);
	both_same_tree();
}

EACH_WAY(fs_names, any_byte_but_slash_and_nul_may_be_in_a_name)
{
	char name[] = "a?b";

	for (int c = 1; c < 256; c++) {
		if (c == '/')
			continue;
		name[1] = c;
		SAME_OK(mknodat(at, name, S_IFREG | 0600, 0));
	}
	both_same_tree();
}

EACH_WAY(fs_names, names_made_beneath_the_mount_are_found)
{
	struct stat st;
	int fd = openat(mnt.backing_fd, "beneath", O_CREAT | O_WRONLY, 0644);

	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, "text", 4), 4);
	close(fd);
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "beneath", &st, 0), 0, "%s", strerror(errno));
	cr_assert_eq(st.st_size, 4);
}

EACH_WAY(fs_names, deep_trees)
{
	int dir[2], next[2];

	SAME_FD_OK(dir, openat(at, ".", O_RDONLY | O_DIRECTORY));
	for (int i = 0; i < 300; i++) {
		SAME_OK(mkdirat(dir[side], "deeper", 0755));
		SAME_FD_OK(next, openat(dir[side], "deeper", O_RDONLY | O_DIRECTORY));
		SAME_CLOSE(dir);
		dir[0] = next[0];
		dir[1] = next[1];
	}
	SAME_OK(mknodat(dir[side], "bottom", S_IFREG | 0644, 0));
	SAME_CLOSE(dir);
	way_unmount();
	cr_assert_eq(mnt_restart(&mnt), 0);
	both_open(mnt.path, plain_dir);
	for (int side = 0; side < 2; side++)
		dir[side] = openat(both_root[side], ".", O_RDONLY | O_DIRECTORY);
	for (int i = 0; i < 300; i++) {
		SAME_FD_OK(next, openat(dir[side], "deeper", O_RDONLY | O_DIRECTORY));
		SAME_CLOSE(dir);
		dir[0] = next[0];
		dir[1] = next[1];
	}
	SAME_OK(faccessat(dir[side], "bottom", F_OK, 0));
	SAME_CLOSE(dir);
}
