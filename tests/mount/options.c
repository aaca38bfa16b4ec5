/*
 * options.c - what -o says is done: access times, set-id programs, device files, the largest read.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "gaia/client.h"
#include "own_mounts.h"
#include "shell.h"
#include "tree.h"
#include "ways.h"

#define ALICE 1234u
#define SIZE (1024 * 1024)

/* Where the way of caching makes no difference. */
#define ONCE_BARE(name)                                                                                       \
	static void name(void);                                                                               \
	Test(options, name, .init = way_bare_writeback, .fini = way_clean_up, .timeout = WAY_SECONDS) \
	{                                                                                                     \
		name();                                                                                       \
		way_end();                                                                                    \
	}                                                                                                     \
	static void name(void)

static void start_with(const char *options)
{
	const char *args[] = { "-o", options, NULL };

	way_start(args);
}

ONCE_BARE(words_of_mount_8_are_taken)
{
	start_with("defaults,strictatime,nostrictatime,norelatime,relatime,lazytime,nolazytime,acl,noacl,atime,diratime");
	shell_ok(mnt.path, "echo text > f && test \"$(cat f)\" = text");
}

/* As libfuse has it: a comma that belongs to a word is written "\,". */
ONCE_BARE(a_word_may_hold_a_comma)
{
	start_with("relatime,fsname=one\\,two,noatime");
	shell_ok("/", "grep -F ' %s rw,noatime ' /proc/self/mountinfo | grep -qF ' fuse.gaiafs one,two '", mnt.path);
}

/* ---- access times ---- */

static const struct timespec long_ago[2] = { { 1000000000, 0 }, { 1100000000, 0 } };

static void age(const char *name)
{
	cr_assert_eq(utimensat(mnt.backing_fd, name, long_ago, AT_SYMLINK_NOFOLLOW), 0);
}

static long access_time(const char *name)
{
	struct stat st;

	cr_assert_eq(fstatat(mnt.backing_fd, name, &st, AT_SYMLINK_NOFOLLOW), 0);
	return st.st_atim.tv_sec;
}

static void read_all(const char *name)
{
	static char bytes[SIZE];
	int fd = openat(both_root[ON_MOUNT], name, O_RDONLY);
	char *p;

	cr_assert_geq(fd, 0);
	cr_assert_eq(read(fd, bytes, SIZE), SIZE);
	p = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	cr_assert(p != MAP_FAILED && p[5] == 'x');
	munmap(p, SIZE);
	close(fd);
}

static void make_all(void)
{
	static char bytes[SIZE];
	int fd = openat(mnt.backing_fd, "f", O_CREAT | O_RDWR, 0644);

	memset(bytes, 'x', SIZE);
	cr_assert_eq(write(fd, bytes, SIZE), SIZE);
	close(fd);
	way_make_cached("for_devices");
	fd = openat(mnt.backing_fd, "for_devices", O_WRONLY);
	cr_assert_eq(write(fd, bytes, SIZE), SIZE);
	close(fd);
	cr_assert_eq(mkdirat(mnt.backing_fd, "d", 0755), 0);
	cr_assert_eq(symlinkat("f", mnt.backing_fd, "l"), 0);
}

/* Passed through or cached, by the kernel for itself or by us for a device. */
EACH_WAY_BARE(options, noatime_keeps_access_times)
{
	static const char *const names[] = { "f", "for_devices", "d", "l", "ls" };
	const size_t n = sizeof(names) / sizeof(*names);
	char target[16];
	unsigned char *p;
	int fd;
	DIR *d;

	if (geteuid() != 0)
		WAY_SKIP("noatime: keeps access times for root's mounts only");
	start_with("noatime");
	make_all();
	shell_ok(mnt.backing, "cp \"$(command -v ls)\" ls && chmod 755 ls");
	for (size_t i = 0; i < n; i++)
		age(names[i]);
	shell_ok(mnt.path, "./ls > /dev/null");
	read_all("f");
	read_all("for_devices");
	fd = openat(both_root[ON_MOUNT], "for_devices", O_RDONLY);
	p = gaia_mmap(SIZE, PROT_READ, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(gaia_acquire(p, SIZE, PROT_READ), 0);
	cr_assert_eq(p[SIZE - 1], 'x');
	cr_assert_eq(gaia_release(p, SIZE), 0);
	cr_assert_eq(gaia_munmap(p, SIZE), 0);
	close(fd);
	d = fdopendir(openat(both_root[ON_MOUNT], "d", O_RDONLY | O_DIRECTORY));
	cr_assert_not_null(d);
	while (readdir(d))
		;
	closedir(d);
	cr_assert_eq(readlinkat(both_root[ON_MOUNT], "l", target, sizeof(target)), 1);
	for (size_t i = 0; i < n; i++)
		cr_assert_eq(access_time(names[i]), 1000000000, "%s: reading it has changed its access time", names[i]);
	/* Times can be set, and files changed, all the same. */
	shell_ok(mnt.path, "touch -a -d @1200000000 f && echo more >> f && ln f g && mv g h && rm h");
	cr_assert_eq(access_time("f"), 1200000000);
}

/* ---- reads ---- */

EACH_WAY_BARE(options, the_largest_read_can_be_set)
{
	start_with("max_read=8192");
	make_all();
	read_all("f");
	read_all("for_devices");
}

/* ---- set-id programs, device files ---- */

static void need_rights(void)
{
	struct statvfs st;

	if (geteuid() != 0)
		WAY_SKIP("set-id programs and device files: need root");
	cr_assert_eq(fstatvfs(mnt.backing_fd, &st), 0);
	if (st.f_flag & (ST_NOSUID | ST_NODEV | ST_NOEXEC))
		WAY_SKIP("set-id programs and device files: the test's directory is mounted without these");
}

/* In directory @dir. */
static void make_dangerous(const char *dir)
{
	shell_ok(dir, "cp /usr/bin/id . && chown %u:%u id && chmod 4755 id && mknod -m 666 null c 1 3", ALICE, ALICE);
}

static bool set_id_works(const char *dir)
{
	struct shell_result r = shell_run(dir, 30, "./id -u");
	bool works = atoi(r.out) == (int)ALICE;

	cr_assert_eq(r.status, 0, "%s", r.err);
	shell_free(&r);
	return works;
}

static bool device_works(const char *dir)
{
	struct shell_result r = shell_run(dir, 30, "echo x > null");
	bool works = r.status == 0;

	shell_free(&r);
	return works;
}

EACH_WAY_BARE(options, set_id_programs_and_devices_are_as_below)
{
	way_start(NULL);
	need_rights();
	make_dangerous(mnt.path);
	cr_assert(set_id_works(mnt.path) && device_works(mnt.path));
}

ONCE_BARE(set_id_programs_and_devices_can_be_refused)
{
	start_with("nosuid,nodev");
	need_rights();
	make_dangerous(mnt.path);
	cr_assert(!set_id_works(mnt.path) && !device_works(mnt.path));
}

static void mount_tmpfs(const char *at)
{
	cr_assert_eq(mkdir(at, 0755), 0);
	cr_assert_eq(mount("tmpfs", at, "tmpfs", MS_NOSUID | MS_NODEV, NULL), 0);
}

/* As with a bind mount. */
ONCE_BARE(a_source_mounted_nosuid_and_nodev_has_neither)
{
	char source[PATH_MAX];

	if (geteuid() != 0)
		WAY_SKIP("mounting something else: needs root");
	cr_assert(own_mounts(NULL));
	tree_make_temp(NULL, source);
	cr_assert_eq(mount("tmpfs", source, "tmpfs", MS_NOSUID | MS_NODEV, NULL), 0);
	way_start_at(source, "/tmp", NULL);
	make_dangerous(mnt.path);
	cr_assert(!set_id_works(mnt.path) && !device_works(mnt.path));
	/* They are seen, and copied, all the same. */
	shell_ok(mnt.path, "test $(stat -c %%a id) = 4755");
	way_unmount();
	umount2(source, MNT_DETACH);
	rmdir(source);
}

/* A user's disk, for example. */
ONCE_BARE(nor_has_what_is_mounted_so_below_the_source)
{
	char usb[PATH_MAX + 8], seen[PATH_MAX + 8];
	struct stat st;

	if (geteuid() != 0)
		WAY_SKIP("mounting something else: needs root");
	cr_assert(own_mounts(NULL));
	way_start(NULL);
	snprintf(usb, sizeof(usb), "%s/usb", mnt.backing);
	snprintf(seen, sizeof(seen), "%s/usb", mnt.path);
	mount_tmpfs(usb);
	make_dangerous(usb);
	cr_assert(!set_id_works(seen), "a set-id program of a file system that is mounted nosuid runs as its owner");
	cr_assert(!device_works(seen), "a device file of a file system that is mounted nodev works");
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "usb/null", &st, 0), 0);
	cr_assert(S_ISCHR(st.st_mode));
	both_close();
	umount2(usb, MNT_DETACH);
}
