/*
 * fault_store.c - the file system below is full, or its disk fails.
 *
 * Whoever syncs gets the error; what a sync had acknowledged stays; what could not be stored is kept
 * in home, up to its budget, seen by everybody, and stored when there is room again. Full file
 * systems are small ones of the test's own, in a mount namespace that ends with it.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor.h"
#include "own_mounts.h"
#include "report.h"
#include "shell.h"
#include "tree.h"
#include "ways.h"

#define MIB (1024 * 1024)
#define RW (PROT_READ | PROT_WRITE)

#define FAILS(call, why)                                                                   \
	do {                                                                               \
		errno = 0;                                                                 \
		cr_assert_eq((call), -1, "%s succeeded", #call);                           \
		cr_assert_eq(errno, (why), "%s: %s", #call, strerror(errno));              \
	} while (0)

/* ---- a small file system ---- */

static char top[PATH_MAX]; /* holds it, at top/small, and images of disks */

static void remove_top(void)
{
	struct shell_result r;

	way_clean_up();
	if (!top[0])
		return;
	r = shell_run("/", 60, "umount -l '%s/small'; umount -l '%s/disk'; rm -rf '%s'", top, top,
		      top);
	shell_free(&r);
}

/* NULL, or why there cannot be one. */
static const char *make_small(const char *commands)
{
	struct shell_result r;
	const char *why = NULL;

	if (geteuid() != 0)
		return "a small file system: needs root";
	cr_assert(own_mounts(NULL));
	tree_make_temp(NULL, top);
	shell_ok(top, "mkdir small disk");
	r = shell_run(top, 60, "set -e; %s", commands);
	if (r.status)
		why = "a small file system: cannot be made here (loop devices, mkfs.ext4)";
	shell_free(&r);
	return why;
}

#define ON_TMPFS "mount -t tmpfs -o size=16M none small"
#define ON_EXT4                                                                            \
	"mount -t tmpfs -o size=40M none disk; truncate -s 24M disk/image; "               \
	"mkfs.ext4 -q -m 0 disk/image; mount -o loop disk/image small"

static void start_small(const char *const *args)
{
	char small[PATH_MAX + 8];

	snprintf(small, sizeof(small), "%s/small", top);
	way_start_at(small, top, args);
}

/* All but @left bytes of the store. */
static void fill_up(size_t left)
{
	struct statvfs fs;
	int fd = openat(mnt.backing_fd, "ballast", O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
	off_t n;

	cr_assert_eq(fstatvfs(mnt.backing_fd, &fs), 0);
	n = (off_t)(fs.f_bavail * fs.f_bsize) - (off_t)left;
	cr_assert_eq(fallocate(fd, 0, 0, n & -MIB), 0, "%s", strerror(errno));
	close(fd);
}

static void make_room(void)
{
	cr_assert_eq(unlinkat(mnt.backing_fd, "ballast", 0), 0);
	/* ext4 frees later what is deleted. */
	cr_assert_eq(syncfs(mnt.backing_fd), 0);
}

static char *pattern(size_t n, unsigned seed)
{
	char *p = malloc(n);

	for (size_t i = 0; i < n; i++)
		p[i] = (char)((i / 7 + i * seed) % 251 + 1);
	return p;
}

/* ---- full ---- */

/* On both kinds of file system. */
#define FULL_TEST(name, way_, store, commands)                                            \
	Test(fault_store, name##_on_##store##_##way_, .init = way_bare_##way_,             \
	     .fini = remove_top, .timeout = WAY_SECONDS)                                   \
	{                                                                                  \
		const char *why = make_small(commands);                                    \
		if (why) {                                                                 \
			remove_top();                                                      \
			cr_skip_test("%s", why);                                           \
		}                                                                          \
		name();                                                                    \
		way_end();                                                                 \
	}

#define WHEN_FULL(name)                                    \
	static void name(void);                            \
	FULL_TEST(name, auto, tmpfs, ON_TMPFS)             \
	FULL_TEST(name, auto, ext4, ON_EXT4)               \
	FULL_TEST(name, writeback, tmpfs, ON_TMPFS)        \
	FULL_TEST(name, writeback, ext4, ON_EXT4)          \
	FULL_TEST(name, writethrough, tmpfs, ON_TMPFS)     \
	FULL_TEST(name, writethrough, ext4, ON_EXT4)       \
	static void name(void)

#define WHEN_FULL_AND_PASSED_THROUGH(name)                 \
	static void name(void);                            \
	FULL_TEST(name, auto, tmpfs, ON_TMPFS)             \
	FULL_TEST(name, auto, ext4, ON_EXT4)               \
	static void name(void)

/* The file has these bytes at @off. */
static void file_holds(int dir, const char *name, const char *want, size_t n, off_t off)
{
	char *is = malloc(n);
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);

	cr_assert_geq(fd, 0, "%s: %s", name, strerror(errno));
	cr_assert_eq(pread(fd, is, n, off), (ssize_t)n, "%s", strerror(errno));
	cr_assert(memcmp(is, want, n) == 0, "%s: other bytes than were written", name);
	close(fd);
	free(is);
}

WHEN_FULL(a_write_is_kept_until_there_is_room)
{
	char *old = pattern(MIB, 3), *new = pattern(4 * MIB, 5);
	int fd;

	start_small(NULL);
	way_make_cached("f");
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, old, MIB), MIB);
	cr_assert_eq(fsync(fd), 0);
	fill_up(MIB);
	cr_assert_eq(pwrite(fd, new, 4 * MIB, 4 * MIB), 4 * MIB);
	FAILS(fsync(fd), ENOSPC);
	FAILS(fdatasync(fd), ENOSPC);
	/* Everybody sees it, and what was acknowledged stays where it is. */
	file_holds(both_root[ON_MOUNT], "f", new, 4 * MIB, 4 * MIB);
	file_holds(both_root[ON_MOUNT], "f", old, MIB, 0);
	file_holds(mnt.backing_fd, "f", old, MIB, 0);
	FAILS(close(fd), ENOSPC);

	make_room();
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	file_holds(mnt.backing_fd, "f", old, MIB, 0);
	file_holds(mnt.backing_fd, "f", new, 4 * MIB, 4 * MIB);
	close(fd);
	free(old);
	free(new);
}

WHEN_FULL(a_store_to_a_mapping_is_kept_until_there_is_room)
{
	char *new = pattern(4 * MIB, 5), *p;
	int fd;

	start_small(NULL);
	way_make_cached("f");
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(ftruncate(fd, 4 * MIB), 0);
	p = mmap(NULL, 4 * MIB, RW, MAP_SHARED, fd, 0);
	fill_up(MIB);
	memcpy(p, new, 4 * MIB);
	FAILS(msync(p, 4 * MIB, MS_SYNC), ENOSPC);
	FAILS(fsync(fd), ENOSPC);
	cr_assert(memcmp(p, new, 4 * MIB) == 0);
	make_room();
	cr_assert_eq(msync(p, 4 * MIB, MS_SYNC), 0, "%s", strerror(errno));
	file_holds(mnt.backing_fd, "f", new, 4 * MIB, 0);
	munmap(p, 4 * MIB);
	close(fd);
	free(new);
}

WHEN_FULL(a_release_is_kept_until_there_is_room)
{
	static char want[4 * MIB];
	struct actor *dev, *cpu;

	start_small(NULL);
	way_make_cached("f");
	cr_assert_eq(truncate(mnt_file(&mnt, "f"), 4 * MIB), 0);
	dev = actor_start("f", 4 * MIB, 0);
	cpu = actor_start("f", 4 * MIB, NO_DEVICE);
	fill_up(MIB);
	actor_ok(dev, ACQUIRE, 0, 4 * MIB, RW);
	actor_ok(dev, STORE, 0, 4 * MIB, 'd');
	/* A release moves nothing and stores nothing. */
	actor_ok(dev, RELEASE, 0, 4 * MIB, 0);
	cr_assert_eq(actor_do(dev, SYNC, 0, 4 * MIB, 0), -ENOSPC);
	cr_assert_eq(actor_do(dev, SYNC, 0, 4 * MIB, 0), -ENOSPC);
	cr_assert_eq(actor_do(cpu, FSYNC, 0, 0, 0), -ENOSPC);
	actor_sees(cpu, READ, 4 * MIB - 1, 'd');
	actor_ok(dev, ACQUIRE, 0, 4 * MIB, RW);
	actor_sees(dev, LOAD, 12345, 'd');
	actor_ok(dev, RELEASE, 0, 4 * MIB, 0);
	make_room();
	actor_ok(dev, SYNC, 0, 4 * MIB, 0);
	memset(want, 'd', sizeof(want));
	file_holds(mnt.backing_fd, "f", want, 4 * MIB, 0);
	actor_end(dev);
	actor_end(cpu);
}

/* The release stores, so it gets the error. What it released is kept, and it can be repeated. */
WHEN_FULL_AND_PASSED_THROUGH(a_release_that_does_not_fit_is_told_and_can_be_repeated)
{
	static char want[4 * MIB];
	struct actor *dev, *cpu;

	start_small(NULL);
	close(openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644));
	cr_assert_eq(truncate(mnt_file(&mnt, "f"), 4 * MIB), 0);
	cpu = actor_start("f", 4 * MIB, NO_DEVICE);
	dev = actor_start("f", 4 * MIB, 0);
	fill_up(MIB);
	actor_ok(dev, ACQUIRE, 0, 4 * MIB, RW);
	actor_ok(dev, STORE, 0, 4 * MIB, 'd');
	cr_assert_eq(actor_do(dev, RELEASE, 0, 4 * MIB, 0), -ENOSPC);
	cr_assert_eq(actor_do(dev, SYNC, 0, 4 * MIB, 0), -ENOSPC);
	cr_assert_eq(actor_do(cpu, FSYNC, 0, 0, 0), -ENOSPC);
	actor_sees(cpu, READ, 4 * MIB - 1, 0);
	make_room();
	actor_ok(dev, RELEASE, 0, 4 * MIB, 0);
	actor_ok(dev, SYNC, 0, 4 * MIB, 0);
	actor_sees(cpu, READ, 4 * MIB - 1, 'd');
	actor_sees(cpu, MAP_LOAD, 2 * MIB, 'd');
	memset(want, 'd', sizeof(want));
	file_holds(mnt.backing_fd, "f", want, 4 * MIB, 0);
	actor_end(dev);
	actor_end(cpu);
}

WHEN_FULL(fallocate_says_so_and_leaves_the_size)
{
	char *old = pattern(MIB, 3);
	struct stat st;
	int fd;

	start_small(NULL);
	way_make_cached("f");
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, old, MIB), MIB);
	fill_up(2 * MIB);
	FAILS(fallocate(fd, 0, 0, 12 * MIB), ENOSPC);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(st.st_size, MIB);
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	file_holds(mnt.backing_fd, "f", old, MIB, 0);
	cr_assert_eq(fstatat(mnt.backing_fd, "f", &st, 0), 0);
	cr_assert_eq(st.st_size, MIB);
	make_room();
	cr_assert_eq(fallocate(fd, 0, 0, 6 * MIB), 0, "%s", strerror(errno));
	/* What is allocated can be stored, however full it gets. */
	fill_up(MIB);
	cr_assert_eq(pwrite(fd, old, MIB, 4 * MIB), MIB);
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	close(fd);
	free(old);
}

/* ext4 keeps what it had room for; and the kernel has the attributes of an empty file for good. */
WHEN_FULL_AND_PASSED_THROUGH(an_fallocate_that_fails_shows_what_it_has_done)
{
	struct stat st, below;
	int fd;

	start_small(NULL);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_WRONLY, 0644);
	fill_up(2 * MIB);
	cr_assert_eq(fstat(fd, &st), 0);
	FAILS(fallocate(fd, 0, 0, 12 * MIB), ENOSPC);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(fstatat(mnt.backing_fd, "f", &below, 0), 0);
	cr_assert_eq(st.st_size, below.st_size);
	cr_assert_eq(st.st_blocks, below.st_blocks);
	cr_assert_eq(lseek(fd, 0, SEEK_END), below.st_size);
	close(fd);
}

WHEN_FULL(a_removed_file_takes_what_was_kept_along)
{
	char *new = pattern(4 * MIB, 5);
	int fd;

	start_small(NULL);
	way_make_cached("f");
	fill_up(MIB);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(pwrite(fd, new, 4 * MIB, 0), 4 * MIB);
	FAILS(fsync(fd), ENOSPC);
	cr_assert_eq(unlinkat(both_root[ON_MOUNT], "f", 0), 0);
	file_holds(both_root[ON_MOUNT], "ballast", "", 0, 0);
	/* It can still be read by the open descriptor. */
	cr_assert_eq(pread(fd, new, 1, 0), 1);
	close(fd);
	free(new);
	/* The end of the mount is clean, though something was never stored. */
}

/* No more than home's budget is kept: the writer gets the error, now or by fsync. */
WHEN_FULL(what_is_kept_has_a_bound)
{
	static const char *const args[] = { "--home", "16M", NULL };
	char *new = pattern(MIB, 5);
	int fd;

	start_small(args);
	way_make_cached("f");
	fill_up(MIB);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	for (int i = 0; i < 200; i++)
		if (pwrite(fd, new, MIB, (off_t)i * MIB) != MIB) {
			cr_assert_eq(errno, ENOSPC, "%s", strerror(errno));
			break;
		}
	FAILS(fsync(fd), ENOSPC);
	/* Requests that are under way when the bound is reached go beyond it. */
	cr_assert_leq(STATUS("home", "used"), (16 + 24) * MIB);
	cr_assert_eq(unlinkat(both_root[ON_MOUNT], "f", 0), 0);
	close(fd);
	free(new);
}

/* What cannot be stored at the end is lost, and the daemon says of which file. */
WHEN_FULL(at_the_end_it_is_said_what_was_lost)
{
	static const char *const soon[] = { "--unmount-timeout", "0.2", NULL };
	char *new = pattern(4 * MIB, 5);
	struct shell_result r;
	int fd, status;

	start_small(soon);
	way_make_cached("unlucky");
	fill_up(MIB);
	fd = openat(both_root[ON_MOUNT], "unlucky", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(pwrite(fd, new, 4 * MIB, 0), 4 * MIB);
	FAILS(close(fd), ENOSPC);
	both_close();
	kill(mnt.daemon, SIGTERM);
	status = mnt_wait(&mnt);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1, "wait status %x", status);
	r = shell_run("/", 60, "grep unlucky '%s' | grep -c 'is lost: No space'", mnt.log);
	cr_assert_str_eq(r.out, "1\n", "%s", r.out);
	shell_free(&r);
	free(new);
}

/* ---- a disk that fails ---- */

/* A disk whose blocks are allocated when they are written, which fails when disk/ is full. */
#define ON_THIN_EXT4                                                                       \
	"mount -t tmpfs -o size=12M none disk; truncate -s 24M disk/image; "               \
	"mkfs.ext4 -q -m 0 -O ^has_journal -E lazy_itable_init=0 disk/image; "             \
	"mount -o loop disk/image small; "                                                 \
	"dd if=/dev/zero of=small/f bs=1M count=4 conv=fsync status=none; "                \
	"sync -f small; fallocate --dig-holes disk/image; "                                \
	"fallocate -l $(($(df --output=avail -k disk | tail -1) - 512))K disk/ballast"

#define ON_BAD_DISK(name)                                    \
	static void name(void);                            \
	FULL_TEST(name, auto, disk, ON_THIN_EXT4)          \
	FULL_TEST(name, writeback, disk, ON_THIN_EXT4)     \
	FULL_TEST(name, writethrough, disk, ON_THIN_EXT4)  \
	static void name(void)

static void repair_disk(void)
{
	shell_ok(top, "rm disk/ballast");
}

/* What the disk itself has, not a cache of it. */
static void disk_holds(const char *name, const char *want, size_t n)
{
	int fd = openat(mnt.backing_fd, name, O_RDONLY | O_CLOEXEC);

	cr_assert_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	close(fd);
	file_holds(mnt.backing_fd, name, want, n, 0);
}

/* The file system below takes the data, fails to write it, and says so once. We say so until it
 * is written. */
ON_BAD_DISK(a_failed_sync_fails_until_all_is_on_the_disk)
{
	char *new = pattern(4 * MIB, 5);
	struct actor *dev;
	int fd;

	start_small(NULL);
	way_make_cached("f");
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	dev = actor_start("f", 4 * MIB, 0);
	cr_assert_eq(pwrite(fd, new, 4 * MIB, 0), 4 * MIB);
	for (int i = 0; i < 3; i++) {
		errno = 0;
		cr_assert_eq(fsync(fd), -1, "fsync number %d succeeded", i);
		cr_assert(errno == ENOSPC || errno == EIO, "%s", strerror(errno));
		cr_assert_lt(actor_do(dev, SYNC, 0, 4 * MIB, 0), 0);
	}
	file_holds(both_root[ON_MOUNT], "f", new, 4 * MIB, 0);
	repair_disk();
	/* The device's sync has failed after the last fsync, which is told once. */
	cr_assert_eq(fsync(fd), -1);
	cr_assert(errno == ENOSPC || errno == EIO, "%s", strerror(errno));
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	disk_holds("f", new, 4 * MIB);
	actor_ok(dev, SYNC, 0, 4 * MIB, 0);
	actor_end(dev);
	close(fd);
	free(new);
}

/* A part of the disk cannot be read: reads of that part fail, others are not affected. */
ON_BAD_DISK(what_cannot_be_read_is_eio_and_nothing_else_is)
{
	char *good = pattern(MIB, 7), byte;
	int fd, below;

	start_small(NULL);
	below = openat(mnt.backing_fd, "f", O_RDONLY | O_CLOEXEC);
	cr_assert_eq(syncfs(below), 0);
	fd = openat(both_root[ON_MOUNT], "good", O_CREAT | O_RDWR, 0644);
	repair_disk();
	cr_assert_eq(write(fd, good, MIB), MIB);
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	close(fd);
	cr_assert_eq(posix_fadvise(below, 0, 0, POSIX_FADV_DONTNEED), 0);
	close(below);
	/* The end of the disk is gone, and with it most blocks of f. */
	shell_ok(top, "truncate -s 64K disk/image");
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	FAILS(pread(fd, &byte, 1, 3 * MIB), EIO);
	FAILS(pread(fd, &byte, 1, 3 * MIB), EIO);
	file_holds(both_root[ON_MOUNT], "good", good, MIB, 0);
	close(fd);
	free(good);
}

/* ---- a store that fails at a named point ---- */

static void start_faulty(const char *faults)
{
	setenv("GAIAFS_FAULTS", faults, 1);
	way_start(NULL);
}

EACH_WAY_BARE(fault_store, umount_ends_after_writes_that_failed)
{
	char *new = pattern(MIB, 5);

	start_faulty("store.write=errno:EIO,count=3");
	for (int i = 0; i < 20; i++) {
		char name[16];
		int fd;

		snprintf(name, sizeof(name), "f%d", i);
		fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);
		cr_assert_eq(write(fd, new, MIB), MIB);
		close(fd);
	}
	way_unmount();
	for (int i = 0; i < 20; i++) {
		char name[16];

		snprintf(name, sizeof(name), "f%d", i);
		backing_holds(name, new, MIB);
	}
	free(new);
}

EACH_WAY_BARE(fault_store, of_reading_is_told_to_the_reader_and_passes)
{
	char *old = pattern(MIB, 3), byte;
	struct actor *dev;
	int fd;

	start_faulty("store.read=errno:EIO,count=6");
	way_make_cached("f");
	fd = openat(mnt.backing_fd, "f", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	cr_assert_eq(write(fd, old, MIB), MIB);
	close(fd);
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	dev = actor_start("f", MIB, 0);
	FAILS(pread(fd, &byte, 1, 0), EIO);
	cr_assert_eq(actor_do(dev, ACQUIRE, 0, MIB, RW), -EIO);
	for (int i = 0; i < 10 && pread(fd, &byte, 1, 0) < 0; i++)
		;
	file_holds(both_root[ON_MOUNT], "f", old, MIB, 0);
	actor_ok(dev, ACQUIRE, 0, MIB, RW);
	actor_sees(dev, LOAD, 5000, (unsigned char)old[5000]);
	actor_end(dev);
	close(fd);
	free(old);
}

/* Each open file gets the error once, by the first call that can report it. */
EACH_WAY_BARE(fault_store, of_writing_and_of_syncing_are_told_and_nothing_is_lost)
{
	static const char *const lazy[] = { "--writeback-age", "3600", NULL };
	/* What only root has written is tried again with root's capabilities before anybody is told. */
	const char *const faults[] = { "store.write=errno:EIO,count=1", "store.sync=errno:EIO,count=1",
				       geteuid() ? "store.write=errno:EDQUOT,count=1" :
						   "store.write=errno:EDQUOT,count=2" };
	char *new = pattern(MIB, 5);

	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		int fd, other;

		setenv("GAIAFS_FAULTS", faults[i], 1);
		if (i == 0)
			way_start(lazy);
		else
			way_remount();
		way_make_cached("f");
		fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
		other = openat(both_root[ON_MOUNT], "f", O_RDWR);
		cr_assert_eq(pwrite(fd, new, MIB, 0), MIB);
		FAILS(fsync(fd), i == 2 ? EDQUOT : EIO);
		cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
		cr_assert_eq(fsync(fd), 0);
		FAILS(fsync(other), i == 2 ? EDQUOT : EIO);
		cr_assert_eq(fsync(other), 0);
		file_holds(mnt.backing_fd, "f", new, MIB, 0);
		close(fd);
		close(other);
		both_close();
		mnt_crash(&mnt);
		file_holds(mnt.backing_fd, "f", new, MIB, 0);
		cr_assert_eq(unlinkat(mnt.backing_fd, "f", 0), 0);
	}
	free(new);
}

/* The daemon never answers ENOBUFS (protocol.h), but a store may. */
EACH_WAY_BARE(fault_store, of_writing_that_is_no_valid_answer_is_eio_for_a_device)
{
	struct actor *dev;

	start_faulty("store.write=errno:ENOBUFS,count=1");
	way_make_cached("f");
	shell_ok(mnt.backing, "truncate -s 1M f");
	dev = actor_start("f", MIB, 0);
	actor_ok(dev, ACQUIRE, 0, MIB, RW);
	actor_ok(dev, STORE, 5000, 1, 7);
	actor_ok(dev, RELEASE, 0, MIB, 0);
	cr_assert_eq(actor_do(dev, SYNC, 0, MIB, 0), -EIO);
	actor_ok(dev, SYNC, 0, MIB, 0);
	actor_end(dev);
}
