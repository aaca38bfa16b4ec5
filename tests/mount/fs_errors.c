/*
 * fs_errors.c - a mount that may not write, a full disk, and a disk that fails.
 *
 * A write that the kernel's cache or ours has taken is not lost for a passing
 * reason: the error is reported once, the data stays readable, and is stored later.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "gaia/protocol.h"

#include "child.h"
#include "own_mounts.h"
#include "shell.h"
#include "tree.h"
#include "ways.h"

#define KIB 1024
#define MIB (1024 * 1024)

EACH_WAY_BARE(fs_errors, a_read_only_mount_reads_and_does_not_write)
{
	static const char *const ro[] = { "-o", "ro", NULL };
	char got[5] = "";
	struct stat st;
	int root, fd;

	way_start(ro);
	root = both_root[ON_MOUNT];
	fd = openat(mnt.backing_fd, "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, "text", 4), 4);
	close(fd);
	cr_assert_eq(mkdirat(mnt.backing_fd, "d", 0755), 0);

	fd = openat(root, "f", O_RDONLY);
	cr_assert_geq(fd, 0, "%s", strerror(errno));
	cr_assert_eq(read(fd, got, 4), 4);
	cr_assert_str_eq(got, "text");
	cr_assert_eq(fchmod(fd, 0600), -1);
	cr_assert_eq(errno, EROFS);
	close(fd);
#define EROFS_FROM(call)                            \
	do {                                        \
		cr_assert_eq((call), -1);           \
		cr_assert_eq(errno, EROFS, "%s: %s", #call, strerror(errno)); \
	} while (0)
	EROFS_FROM(openat(root, "f", O_RDWR));
	EROFS_FROM(openat(root, "f", O_RDONLY | O_TRUNC));
	EROFS_FROM(openat(root, "new", O_CREAT | O_RDWR, 0644));
	EROFS_FROM(mkdirat(root, "e", 0755));
	EROFS_FROM(unlinkat(root, "f", 0));
	EROFS_FROM(unlinkat(root, "d", AT_REMOVEDIR));
	EROFS_FROM(renameat(root, "f", root, "g"));
	EROFS_FROM(linkat(root, "f", root, "g", 0));
	EROFS_FROM(symlinkat("f", root, "l"));
	EROFS_FROM(mknodat(root, "n", S_IFIFO | 0644, 0));
	EROFS_FROM(utimensat(root, "f", NULL, 0));
	EROFS_FROM(setxattr(mnt_file(&mnt, "f"), "user.a", "x", 1, 0));
	cr_assert_eq(fstatat(mnt.backing_fd, "f", &st, 0), 0);
	cr_assert_eq(st.st_size, 4);
}

/* ---- a full disk ---- */

static char small_root[PATH_MAX];

/* A file system of a few MiB with directories for both sides; gone with the test. */
static void mount_small(void)
{
	char backing[PATH_MAX + 16];

	if (geteuid() != 0)
		WAY_SKIP("a full disk: needs root, to mount a small one");
	/* Gone with the test, also when it cannot start. */
	cr_assert(own_mounts(NULL));
	tree_make_temp(NULL, small_root);
	if (mount("small", small_root, "tmpfs", 0, "size=8m,mode=0755")) {
		rmdir(small_root);
		WAY_SKIP("a full disk: cannot mount a tmpfs here");
	}
	snprintf(backing, sizeof(backing), "%s/backing", small_root);
	/* Detached at once: it lives as long as the daemon and our descriptors hold it. */
	cr_assert_eq(mkdir(backing, 0755), 0);
	way_start_at(backing, "/tmp", NULL);
	umount2(small_root, MNT_DETACH);
	rmdir(small_root);
}

/* Fill the small disk from beneath, but for @leave bytes; returns a descriptor of the filler. */
static int fill_disk(off_t leave)
{
	static char block[64 * KIB];
	int fd = openat(mnt.backing_fd, "filler", O_CREAT | O_RDWR, 0644);
	struct stat st;

	memset(block, 'f', sizeof(block));
	while (write(fd, block, sizeof(block)) > 0)
		;
	cr_assert_eq(errno, ENOSPC, "%s", strerror(errno));
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(ftruncate(fd, st.st_size - leave), 0);
	return fd;
}

static char bytes[2 * MIB];

static void make_bytes(void)
{
	unsigned seed = 4711;

	for (size_t i = 0; i < sizeof(bytes); i++) {
		seed = seed * 1103515245 + 12345;
		bytes[i] = seed >> 16;
	}
}

static void assert_reads(int fd)
{
	static char got[sizeof(bytes)];

	cr_assert_eq(pread(fd, got, sizeof(got), 0), (ssize_t)sizeof(got));
	cr_assert_arr_eq(got, bytes, sizeof(got));
}

/*
 * Write the bytes; true if all of them were taken. A mount may also refuse
 * a write(2) that does not fit with ENOSPC; then nothing is owed.
 */
static bool write_all(int fd)
{
	for (size_t done = 0; done < sizeof(bytes);) {
		ssize_t n = pwrite(fd, bytes + done, sizeof(bytes) - done, done);

		if (n < 0) {
			cr_assert_eq(errno, ENOSPC, "%s", strerror(errno));
			return false;
		}
		done += n;
	}
	return true;
}

CACHED_WAYS_BARE(fs_errors, a_full_disk_is_told_by_fsync_and_loses_nothing)
{
	int fd, filler;

	mount_small();
	make_bytes();
	filler = fill_disk(256 * KIB);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_geq(fd, 0);
	cr_assert(write_all(fd), "the cache takes what it has room for");
	cr_assert_eq(fsync(fd), -1);
	cr_assert_eq(errno, ENOSPC, "%s", strerror(errno));
	assert_reads(fd);
	cr_assert_eq(fsync(fd), -1, "still full, still an error");
	cr_assert_eq(ftruncate(filler, 0), 0);
	close(filler);
	cr_assert_eq(fsync(fd), 0, "with room again: %s", strerror(errno));
	backing_holds("f", bytes, sizeof(bytes));
	cr_assert_eq(close(fd), 0);
	way_unmount();
	backing_holds("f", bytes, sizeof(bytes));
}

CACHED_WAYS_BARE(fs_errors, a_full_disk_is_told_by_close_and_loses_nothing)
{
	int fd, filler;

	mount_small();
	make_bytes();
	filler = fill_disk(256 * KIB);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert(write_all(fd));
	cr_assert_eq(close(fd), -1);
	cr_assert_eq(errno, ENOSPC, "%s", strerror(errno));
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	assert_reads(fd);
	close(fd);
	cr_assert_eq(ftruncate(filler, 0), 0);
	close(filler);
	/* Nobody asks any more; the mount's end stores it. */
	way_unmount();
	backing_holds("f", bytes, sizeof(bytes));
}

/* As on the directory below: the writer gets the error, and what was accepted is there. */
AUTO_WAY_BARE(fs_errors, a_full_disk_is_told_by_write_where_files_are_passed_through)
{
	struct stat st;
	int fd, filler;

	mount_small();
	make_bytes();
	filler = fill_disk(256 * KIB);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_not(write_all(fd));
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	cr_assert_eq(fstat(fd, &st), 0);
	backing_holds("f", bytes, (size_t)st.st_size);
	cr_assert_eq(ftruncate(filler, 0), 0);
	close(filler);
	cr_assert(write_all(fd), "with room again");
	assert_reads(fd);
	cr_assert_eq(close(fd), 0, "%s", strerror(errno));
	backing_holds("f", bytes, sizeof(bytes));
}

EACH_WAY_BARE(fs_errors, what_cannot_be_stored_can_be_deleted)
{
	int fd, filler;

	mount_small();
	make_bytes();
	filler = fill_disk(256 * KIB);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write_all(fd), !way_is("auto"));
	cr_assert_eq(unlinkat(both_root[ON_MOUNT], "f", 0), 0);
	if (!way_is("auto"))
		assert_reads(fd);
	close(fd);
	close(filler);
	way_unmount();
	cr_assert_eq(faccessat(mnt.backing_fd, "f", F_OK, 0), -1);
}

EACH_WAY_BARE(fs_errors, fallocate_says_that_there_is_no_room)
{
	struct stat st;
	int fd, filler;

	mount_small();
	filler = fill_disk(256 * KIB);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(fallocate(fd, 0, 0, 2 * MIB), -1);
	cr_assert_eq(errno, ENOSPC, "%s", strerror(errno));
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(st.st_size, 0);
	close(filler);
	close(fd);
}

/* ---- a disk that fails ---- */

/* @age: seconds after which what is dirty is stored though nobody asks. */
static void start_with_fault(const char *faults, const char *age)
{
#ifdef GAIA_FAULTS
	const char *args[] = { "--writeback-age", age, NULL };

	setenv("GAIAFS_FAULTS", faults, 1);
	way_start(args);
	unsetenv("GAIAFS_FAULTS");
#else
	WAY_SKIP("%s: built without fault points (-Dfaults=false)", faults);
#endif
}

CACHED_WAYS_BARE(fs_errors, a_failed_store_is_told_once_by_fsync_and_tried_again)
{
	int fd;

	start_with_fault("store.write=errno:EIO,count=1", "3600");
	make_bytes();
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert(write_all(fd));
	cr_assert_eq(fsync(fd), -1);
	cr_assert_eq(errno, EIO, "%s", strerror(errno));
	assert_reads(fd);
	cr_assert_eq(fsync(fd), 0, "told once: %s", strerror(errno));
	backing_holds("f", bytes, sizeof(bytes));
	cr_assert_eq(close(fd), 0);
}

CACHED_WAYS_BARE(fs_errors, a_failed_store_is_told_by_close_and_tried_again)
{
	int fd;

	start_with_fault("store.write=errno:EIO,count=1", "3600");
	make_bytes();
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert(write_all(fd));
	cr_assert_eq(close(fd), -1);
	cr_assert_eq(errno, EIO, "%s", strerror(errno));
	way_unmount();
	backing_holds("f", bytes, sizeof(bytes));
}

static int wait_for_error(void *go)
{
	struct shell_result r;

	CHILD_CHECK(gate_pass(*(struct gate *)go));
	r = shell_run(mnt.path, HANG_SECONDS,
		      "until \"$GAIA\" status . | grep -q storage_errors; do sleep 0.01; done");
	return r.status;
}

/* Nobody waited when it failed; then it was stored. Each descriptor that was open hears of it once. */
CACHED_WAYS_BARE(fs_errors, a_failure_in_the_background_is_told_to_each_descriptor_once)
{
	struct gate go = gate_make();
	pid_t watcher;
	int fd[2];

	start_with_fault("store.write=errno:EIO,count=1", "0.01");
	make_bytes();
	/* A process from before the opens: a copy of a descriptor that is closed is told, too. */
	watcher = child_start(wait_for_error, &go);
	for (int i = 0; i < 2; i++)
		fd[i] = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert(write_all(fd[0]));
	cr_assert_eq(sync_file_range(fd[0], 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE |
				     SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER), 0);
	gate_open(go);
	cr_assert_eq(child_wait(watcher), 0);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(fsync(fd[i]), -1, "descriptor %d is not told", i);
		cr_assert_eq(errno, EIO, "%s", strerror(errno));
	}
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(fsync(fd[i]), 0, "descriptor %d is told twice: %s", i, strerror(errno));
		cr_assert_eq(close(fd[i]), 0);
	}
	backing_holds("f", bytes, sizeof(bytes));
}

EACH_WAY_BARE(fs_errors, a_failed_sync_is_told)
{
	int fd;

	start_with_fault("store.sync=errno:EIO,count=1", "3600");
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, "text", 4), 4);
	cr_assert_eq(fsync(fd), -1);
	cr_assert_eq(errno, EIO, "%s", strerror(errno));
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	close(fd);
}

/* The kernel may ask twice for one read(2), and read ahead: so not just one failure. */
CACHED_WAYS_BARE(fs_errors, a_failed_read_is_told_and_leaves_nothing_behind)
{
	static char got[64 * KIB], want[64 * KIB];
	int fd, failed = 0;
	ssize_t n;

	start_with_fault("store.read=errno:EIO,count=8", "3600");
	memset(want, 'r', sizeof(want));
	fd = openat(mnt.backing_fd, "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, want, sizeof(want)), (ssize_t)sizeof(want));
	close(fd);
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	while ((n = pread(fd, got, sizeof(got), 0)) < 0) {
		cr_assert_eq(errno, EIO, "%s", strerror(errno));
		cr_assert_lt(failed++, 9);
	}
	cr_assert_gt(failed, 0);
	for (ssize_t i = 0; i < n; i++)
		cr_assert_eq(got[i], 'r', "byte %zd", i);
	cr_assert_eq(pread(fd, got, sizeof(got), 0), (ssize_t)sizeof(got));
	cr_assert_arr_eq(got, want, sizeof(want));
	close(fd);
}

/* ---- numbers that name nothing ---- */

#define REFUSED(want, call)                                              \
	do {                                                             \
		cr_assert_eq(call, -1, #call " succeeded");              \
		cr_assert_eq(errno, want, #call ": %s", strerror(errno)); \
	} while (0)

static void assert_alive(void)
{
	cr_assert_eq(mkdirat(both_root[ON_MOUNT], "alive", 0755), 0, "%s", strerror(errno));
	cr_assert_eq(faccessat(mnt.backing_fd, "alive", F_OK, 0), 0);
}

static void make_below(void)
{
	close(openat(mnt.backing_fd, "f", O_CREAT | O_RDWR, 0644));
	cr_assert_eq(mkdirat(mnt.backing_fd, "d", 0755), 0);
	cr_assert_eq(symlinkat("f", mnt.backing_fd, "s"), 0);
}

/* The kernel is told wrong numbers of files: it names, and in the end forgets, what is unknown. */
EACH_WAY_BARE(fs_errors, an_unknown_file_is_refused)
{
	char path[PATH_MAX + 8], target[8];
	int root;

	start_with_fault("lookup.wrong_number=errno:EIO", "3600");
	make_below();
	root = both_root[ON_MOUNT];
	REFUSED(ESTALE, openat(root, "f", O_RDWR));
	REFUSED(ESTALE, openat(root, "d", O_RDONLY | O_DIRECTORY));
	REFUSED(ESTALE, openat(root, "s", O_RDONLY));
	REFUSED(ESTALE, (int)readlinkat(root, "s", target, sizeof(target)));
	REFUSED(ESTALE, fchmodat(root, "f", 0600, 0));
	REFUSED(ESTALE, faccessat(root, "d/x", F_OK, 0));
	REFUSED(ESTALE, mkdirat(root, "d/x", 0755));
	REFUSED(ESTALE, symlinkat("f", root, "d/x"));
	REFUSED(ESTALE, openat(root, "d/x", O_CREAT | O_RDWR, 0644));
	REFUSED(ESTALE, linkat(root, "f", root, "g", 0));
	REFUSED(ESTALE, linkat(root, "f", root, "d/x", 0));
	REFUSED(ESTALE, renameat(root, "f", root, "d/x"));
	REFUSED(ESTALE, unlinkat(root, "d/x", 0));
	snprintf(path, sizeof(path), "%s/f", mnt.path);
	REFUSED(ESTALE, setxattr(path, "user.x", "", 0, 0));
	REFUSED(ESTALE, (int)getxattr(path, "user.x", target, sizeof(target)));
	REFUSED(ESTALE, (int)listxattr(path, target, sizeof(target)));
	REFUSED(ESTALE, removexattr(path, "user.x"));
	REFUSED(ESTALE, truncate(path, 1));
	assert_alive();
}

/* The same of open files. (One that is passed through the kernel reads and writes without a number.) */
CACHED_WAYS_BARE(fs_errors, an_unknown_open_file_is_refused)
{
	_Alignas(4096) static char page[4096];
	int root, fd;
	DIR *dir;

	start_with_fault("open.wrong_number=errno:EIO", "3600");
	make_below();
	root = both_root[ON_MOUNT];
	fd = openat(root, "f", O_RDWR | O_DIRECT);
	cr_assert_geq(fd, 0, "%s", strerror(errno));
	REFUSED(EBADF, (int)pwrite(fd, page, sizeof(page), 0));
	cr_assert_eq(ftruncate(fd, sizeof(page)), 0);
	REFUSED(EBADF, (int)pread(fd, page, sizeof(page), 0));
	REFUSED(EBADF, fsync(fd));
	REFUSED(EBADF, fallocate(fd, 0, 0, 4096));
	REFUSED(EBADF, (int)lseek(fd, 0, SEEK_DATA));
	REFUSED(EBADF, (int)copy_file_range(fd, &(off_t){ 0 }, fd, &(off_t){ 8192 }, 4096, 0));
	REFUSED(EBADF, ioctl(fd, GAIA_IOC_FLUSH, &(struct gaia_ioc_file){ 0 }));
	REFUSED(EBADF, close(fd));
	fd = openat(root, "d", O_RDONLY | O_DIRECTORY);
	cr_assert_geq(fd, 0, "%s", strerror(errno));
	REFUSED(EBADF, fsync(fd));
	dir = fdopendir(fd);
	errno = 0;
	cr_assert_null(readdir(dir));
	cr_assert_eq(errno, EBADF, "%s", strerror(errno));
	closedir(dir);
	assert_alive();
}
