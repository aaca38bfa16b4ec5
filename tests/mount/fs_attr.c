/*
 * fs_attr.c - modes, owners, times, sizes, and what statfs(2) says.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "ways.h"

static void make_file(const char *name, size_t size)
{
	char *bytes = malloc(size + 1);
	int fd[2];

	memset(bytes, 'x', size);
	SAME_FD_OK(fd, openat(at, name, O_CREAT | O_TRUNC | O_WRONLY, 0644));
	SAME_OK(write(fd[side], bytes, size));
	SAME_CLOSE(fd);
	free(bytes);
}

static void same_stat_at(const char *name)
{
	struct stat st[2];

	SAME_OK(fstatat(at, name, &st[side], AT_SYMLINK_NOFOLLOW));
	both_same_stat(st, name);
}

static struct stat stat_on_mount(const char *name)
{
	struct stat st;

	cr_assert_eq(fstatat(both_root[ON_MOUNT], name, &st, AT_SYMLINK_NOFOLLOW), 0, "%s: %s",
		     name, strerror(errno));
	return st;
}

EACH_WAY(fs_attr, chmod_by_name_and_by_descriptor)
{
	int fd[2];

	make_file("f", 10);
	SAME_OK(mkdirat(at, "d", 0755));
	for (mode_t mode = 0; mode <= 07777; mode += 0111) {
		SAME_OK(fchmodat(at, "f", mode, 0));
		same_stat_at("f");
	}
	SAME_OK(fchmodat(at, "d", 01777, 0));
	SAME_OK(fchmodat(at, "f", 0644, 0));
	SAME_FD_OK(fd, openat(at, "f", O_RDONLY));
	SAME_OK(fchmod(fd[side], 0640));
	SAME_CLOSE(fd);
	SAME_ERR(fchmodat(at, "missing", 0640, 0), ENOENT);
	both_same_tree();
}

EACH_WAY(fs_attr, chown_by_name_and_by_descriptor)
{
	int fd[2];

	if (geteuid() != 0)
		WAY_SKIP("chown: needs root");
	make_file("f", 10);
	SAME_OK(symlinkat("f", at, "l"));
	SAME_OK(fchownat(at, "f", 1, 2, 0));
	same_stat_at("f");
	SAME_OK(fchownat(at, "f", -1, 7, 0));
	same_stat_at("f");
	SAME_OK(fchownat(at, "l", 3, 4, AT_SYMLINK_NOFOLLOW));
	same_stat_at("l");
	same_stat_at("f");
	SAME_FD_OK(fd, openat(at, "f", O_RDONLY));
	SAME_OK(fchown(fd[side], 5, -1));
	SAME_CLOSE(fd);
	/* Set-id bits do not survive a change of owner. */
	SAME_OK(fchmodat(at, "f", 06755, 0));
	SAME_OK(fchownat(at, "f", 6, 6, 0));
	same_stat_at("f");
	both_same_tree();
}

EACH_WAY(fs_attr, utimens_to_the_nanosecond)
{
	static const struct timespec times[][2] = {
		{ { 1000000000, 123456789 }, { 1100000000, 987654321 } },
		{ { 0, 0 }, { 1, 1 } },
		{ { 1200000000, 5 }, { 0, UTIME_OMIT } },
		{ { 0, UTIME_OMIT }, { 1300000000, 7 } },
		{ { -1000, 0 }, { -2000, 0 } },
		{ { 3000000000, 0 }, { 4000000000, 0 } },
	};
	struct stat st[2];
	int fd[2];

	make_file("f", 10);
	SAME_OK(symlinkat("f", at, "l"));
	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		SAME_OK(utimensat(at, "f", times[i], 0));
		SAME_OK(fstatat(at, "f", &st[side], 0));
		cr_assert_eq(st[0].st_atim.tv_sec, st[1].st_atim.tv_sec, "atime of case %zu", i);
		cr_assert_eq(st[0].st_atim.tv_nsec, st[1].st_atim.tv_nsec, "atime of case %zu", i);
		cr_assert_eq(st[0].st_mtim.tv_sec, st[1].st_mtim.tv_sec, "mtime of case %zu", i);
		cr_assert_eq(st[0].st_mtim.tv_nsec, st[1].st_mtim.tv_nsec, "mtime of case %zu", i);
	}
	SAME_OK(utimensat(at, "l", times[0], AT_SYMLINK_NOFOLLOW));
	cr_assert_eq(stat_on_mount("l").st_mtim.tv_nsec, 987654321);
	cr_assert_eq(stat_on_mount("f").st_mtim.tv_sec, 4000000000);
	SAME_FD_OK(fd, openat(at, "f", O_RDONLY));
	SAME_OK(futimens(fd[side], times[0]));
	SAME_CLOSE(fd);
	cr_assert_eq(stat_on_mount("f").st_mtim.tv_nsec, 987654321);
	SAME_OK(utimensat(at, "f", NULL, 0));
	cr_assert_geq(stat_on_mount("f").st_mtim.tv_sec, time(NULL) - 1000);
}

/* What cp -a, tar and rsync do: write, set the times, close. The write-back comes after. */
EACH_WAY(fs_attr, a_modification_time_that_was_set_survives_the_write_back)
{
	static const struct timespec times[2] = { { 1000000000, 1 }, { 1100000000, 987654321 } };
	static char bytes[300000];
	int fd[2];

	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_RDWR, 0644));
	SAME_OK(write(fd[side], bytes, sizeof(bytes)));
	SAME_OK(futimens(fd[side], times));
	cr_assert_eq(stat_on_mount("f").st_mtim.tv_nsec, 987654321);
	SAME_OK(fsync(fd[side]));
	cr_assert_eq(stat_on_mount("f").st_mtim.tv_nsec, 987654321, "after fsync");
	SAME_CLOSE(fd);
	cr_assert_eq(stat_on_mount("f").st_mtim.tv_nsec, 987654321, "after close");
	way_unmount();
	way_remount();
	cr_assert_eq(stat_on_mount("f").st_mtim.tv_sec, 1100000000, "after a new mount");
	cr_assert_eq(stat_on_mount("f").st_mtim.tv_nsec, 987654321, "after a new mount");
	cr_assert_eq(stat_on_mount("f").st_size, (off_t)sizeof(bytes));
}

/* Two threads may store a page at the same time; the slower one must not end after utimensat(2) and undo it. */
EACH_WAY_BARE(fs_attr, a_modification_time_that_was_set_is_not_undone_by_a_slow_store)
{
	static const struct timespec times[2] = { { 1000000000, 1 }, { 1100000000, 987654321 } };
	static const char *const often[] = { "--writeback-age", "0.001", NULL };
	struct stat st;
	char name[16];
	int fd;

#ifdef GAIA_FAULTS
	setenv("GAIAFS_FAULTS", "store.write=delay:40000us,seed=7", 1);
#endif
	way_start(often);
	unsetenv("GAIAFS_FAULTS");
	for (int i = 0; i < 24; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);
		cr_assert_eq(write(fd, "text", 4), 4);
		cr_assert_eq(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER), 0);
		/* So that the daemon's own writeback begins at different moments. */
		usleep(500 * i);
		cr_assert_eq(futimens(fd, times), 0);
		close(fd);
	}
	way_unmount();
	for (int i = 0; i < 24; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		cr_assert_eq(fstatat(mnt.backing_fd, name, &st, 0), 0);
		cr_assert_eq(st.st_mtim.tv_sec, 1100000000, "%s", name);
	}
}

/* What is stored between a look at the store and one at the cache is missed by both. */
EACH_WAY_BARE(fs_attr, a_write_shows_in_the_modification_time_also_while_it_is_stored)
{
	static const struct timespec old[2] = { { 1000, 0 }, { 1000, 0 } };
	static const char *const soon[] = { "--writeback-age", "0.001", NULL };
	struct stat st;
	int fd;

#ifdef GAIA_FAULTS
	setenv("GAIAFS_FAULTS", "attr.read=delay:40000us,seed=3", 1);
#endif
	way_start(soon);
	unsetenv("GAIAFS_FAULTS");
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	for (int i = 0; i < 16; i++) {
		cr_assert_eq(pwrite(fd, "text", 4, 0), 4);
		cr_assert_eq(fsync(fd), 0);
		cr_assert_eq(futimens(fd, old), 0);
		cr_assert_eq(pwrite(fd, "text", 4, 0), 4);
		cr_assert_eq(fstat(fd, &st), 0);
		cr_assert_gt(st.st_mtim.tv_sec, 1000, "round %d", i);
	}
	close(fd);
}

EACH_WAY(fs_attr, a_write_changes_the_modification_time)
{
	static const struct timespec old[2] = { { 1000000000, 0 }, { 1000000000, 0 } };
	time_t start = time(NULL);
	int fd[2];

	make_file("f", 100);
	SAME_OK(utimensat(at, "f", old, 0));
	SAME_FD_OK(fd, openat(at, "f", O_RDWR));
	SAME_OK(pwrite(fd[side], "y", 1, 50));
	cr_assert_geq(stat_on_mount("f").st_mtim.tv_sec, start, "while open");
	SAME_CLOSE(fd);
	cr_assert_geq(stat_on_mount("f").st_mtim.tv_sec, start, "after close");
	SAME_OK(utimensat(at, "f", old, 0));
	SAME_OK(fchmodat(at, "f", 0600, 0));
	cr_assert_eq(stat_on_mount("f").st_mtim.tv_sec, 1000000000, "chmod leaves it");
	cr_assert_geq(stat_on_mount("f").st_ctim.tv_sec, start);
	SAME_FD_OK(fd, openat(at, "f", O_RDWR));
	SAME_OK(ftruncate(fd[side], 10));
	cr_assert_geq(stat_on_mount("f").st_mtim.tv_sec, start, "after ftruncate");
	SAME_CLOSE(fd);
	SAME_OK(utimensat(at, "f", old, 0));
	SAME_FD_OK(fd, openat(at, "f", O_RDWR));
	SAME_OK(pwrite(fd[side], "y", 1, 5));
	SAME_CLOSE(fd);
	way_unmount();
	way_remount();
	cr_assert_geq(stat_on_mount("f").st_mtim.tv_sec, start, "after a new mount");
}

EACH_WAY(fs_attr, a_new_name_changes_the_directory_times)
{
	static const struct timespec old[2] = { { 1000000000, 0 }, { 1000000000, 0 } };
	time_t start = time(NULL);

	SAME_OK(mkdirat(at, "d", 0755));
	SAME_OK(utimensat(at, "d", old, 0));
	make_file("d/f", 0);
	cr_assert_geq(stat_on_mount("d").st_mtim.tv_sec, start);
	SAME_OK(utimensat(at, "d", old, 0));
	SAME_OK(unlinkat(at, "d/f", 0));
	cr_assert_geq(stat_on_mount("d").st_mtim.tv_sec, start);
}

static void same_bytes(const char *name)
{
	static char buf[2][70000];
	int fd[2];
	long n;

	SAME_FD_OK(fd, openat(at, name, O_RDONLY));
	n = SAME_OK(read(fd[side], buf[side], sizeof(buf[0])));
	cr_assert_arr_eq(buf[0], buf[1], n);
	SAME_CLOSE(fd);
}

EACH_WAY(fs_attr, truncate_by_descriptor)
{
	static const off_t sizes[] = { 60000, 60001, 4096, 4095, 4097, 50000, 1, 0, 65536, 10 };
	struct stat st[2];
	int fd[2];

	make_file("f", 60000);
	SAME_FD_OK(fd, openat(at, "f", O_RDWR));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		SAME_OK(ftruncate(fd[side], sizes[i]));
		SAME_OK(fstat(fd[side], &st[side]));
		both_same_stat(st, "through the descriptor");
		same_stat_at("f");
		same_bytes("f");
		SAME_OK(pwrite(fd[side], "mark", 4, sizes[i] / 2));
	}
	SAME_CLOSE(fd);
	both_same_tree();
}

static int truncate_at(int root, const char *name, off_t size)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", root, name);
	return truncate(path, size);
}

EACH_WAY(fs_attr, truncate_by_name)
{
	static const off_t sizes[] = { 3000, 9000, 0, 8192, 8191, 70000, 12 };

	make_file("f", 10000);
	SAME_OK(mkdirat(at, "d", 0755));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		SAME_OK(truncate_at(at, "f", sizes[i]));
		same_stat_at("f");
		same_bytes("f");
	}
	SAME_ERR(truncate_at(at, "d", 0), EISDIR);
	SAME_ERR(truncate_at(at, "missing", 0), ENOENT);
	SAME_ERR(truncate_at(at, "f", -1), EINVAL);
	way_unmount();
	way_remount();
	both_same_tree();
}

EACH_WAY(fs_attr, truncate_needs_a_descriptor_for_writing)
{
	int fd[2];

	make_file("f", 100);
	SAME_FD_OK(fd, openat(at, "f", O_RDONLY));
	SAME_ERR(ftruncate(fd[side], 0), EINVAL);
	SAME_CLOSE(fd);
	same_stat_at("f");
}

/* Bytes cut off must not come back when the file grows again, neither now nor from storage. */
EACH_WAY(fs_attr, what_was_cut_off_reads_as_zeros_after_growing)
{
	char buf[8192], zeros[8192] = { 0 };
	int fd;

	make_file("f", 8192);
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	cr_assert_eq(ftruncate(fd, 100), 0);
	cr_assert_eq(ftruncate(fd, 8192), 0);
	cr_assert_eq(pread(fd, buf, sizeof(buf), 0), 8192);
	cr_assert_eq(buf[99], 'x');
	cr_assert_arr_eq(buf + 100, zeros, 8092);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	memset(buf, 'x', 100);
	memset(buf + 100, 0, sizeof(buf) - 100);
	way_unmount();
	backing_holds("f", buf, sizeof(buf));
}

EACH_WAY(fs_attr, blocks_tell_holes_from_data)
{
	static char bytes[1 << 20];
	struct stat st[2];
	int fd[2];

	memset(bytes, 1, sizeof(bytes));
	SAME_FD_OK(fd, openat(at, "sparse", O_CREAT | O_RDWR, 0644));
	SAME_OK(ftruncate(fd[side], 64 << 20));
	SAME_OK(pwrite(fd[side], bytes, sizeof(bytes), 32 << 20));
	/* Until the file is closed the kernel may report the blocks that it knew. */
	SAME_CLOSE(fd);
	SAME_OK(fstatat(at, "sparse", &st[side], 0));
	cr_assert_eq(st[ON_MOUNT].st_size, 64 << 20);
	cr_assert_geq(st[ON_MOUNT].st_blocks * 512, 1 << 20);
	cr_assert_lt(st[ON_MOUNT].st_blocks * 512, 4 << 20);
}

EACH_WAY(fs_attr, statfs_is_that_of_the_directory_beneath)
{
	struct statvfs v[2];

	SAME_OK(fstatvfs(both_root[side], &v[side]));
	cr_assert_eq(v[0].f_frsize, v[1].f_frsize);
	cr_assert_eq(v[0].f_blocks, v[1].f_blocks);
	cr_assert_eq(v[0].f_files, v[1].f_files);
	cr_assert_eq(v[0].f_namemax, v[1].f_namemax);
	cr_assert_leq(v[0].f_bavail, v[0].f_blocks);
}

EACH_WAY(fs_attr, access_follows_the_mode)
{
	make_file("f", 0);
	SAME_OK(fchmodat(at, "f", 0600, 0));
	SAME_OK(faccessat(at, "f", R_OK | W_OK, 0));
	SAME(faccessat(at, "f", X_OK, 0));
	SAME_OK(fchmodat(at, "f", 0100, 0));
	SAME_OK(faccessat(at, "f", X_OK, 0));
	SAME_ERR(faccessat(at, "missing", F_OK, 0), ENOENT);
}
