/*
 * marks.c - a user who may only read does all that readers do, by reads, by mappings and by devices, and tries what only others may.
 * Nothing of it is left in the source: no byte, time, attribute or name. Access times move with each read, as on any file
 * system, unless the mount is read-only or `noatime`.
 */
#include <dirent.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "gaia/client.h"
#include "hostile.h"

#define SIZE (GAIA_CHUNK + 3 * GAIA_PAGE + 5)
#define RW (PROT_READ | PROT_WRITE)
#define DEVICES 2

/* ---- the source ---- */

static const char *const names[] = { ".", "f", "d", "d/g", "l" };
#define NAMES (sizeof(names) / sizeof(names[0]))

/* What there is of a file that a caller could leave a mark in. */
struct looks {
	struct stat st;
	char attributes[1024]; /* names and values, one after the other */
	unsigned long hash;    /* of the contents */
};

static void make_file(const char *name, mode_t mode)
{
	int fd = openat(mnt.backing_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	char *bytes = malloc(SIZE);

	cr_assert_geq(fd, 0, "%s: %s", name, strerror(errno));
	memset(bytes, 's', SIZE);
	cr_assert_eq(write(fd, bytes, SIZE), SIZE);
	cr_assert_eq(fchmod(fd, mode), 0);
	fsetxattr(fd, "user.there", "before", 6, 0); /* where there are such */
	free(bytes);
	close(fd);
}

/* So old that what reads it moves the access time, also with relatime. */
static void make_source(mode_t file, mode_t dir)
{
	const struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 2000 } };

	cr_assert_eq(mkdirat(mnt.backing_fd, "d", 0700), 0);
	make_file("f", file);
	make_file("d/g", file);
	cr_assert_eq(symlinkat("f", mnt.backing_fd, "l"), 0);
	cr_assert_eq(fchmodat(mnt.backing_fd, "d", dir, 0), 0);
	cr_assert_eq(fchmod(mnt.backing_fd, dir), 0);
	for (unsigned k = NAMES; k--;)
		cr_assert_eq(utimensat(mnt.backing_fd, names[k], old, AT_SYMLINK_NOFOLLOW), 0);
}

static void look_at_attributes(const char *path, char *out, size_t room)
{
	char list[512], value[256];
	ssize_t n = llistxattr(path, list, sizeof(list)), got;
	size_t used = 0;

	cr_assert(n >= 0 || errno == ENOTSUP, "%s: %s", path, strerror(errno));
	for (char *name = list; name < list + n; name += strlen(name) + 1) {
		got = lgetxattr(path, name, value, sizeof(value));
		cr_assert_geq(got, 0, "%s: %s: %s", path, name, strerror(errno));
		used += (size_t)snprintf(out + used, room - used, "%s=%.*s;", name, (int)got, value);
		cr_assert_lt(used, room);
	}
}

/* By a descriptor that moves no access time. */
static unsigned long hash_of(const char *path)
{
	int fd = open(path, O_RDONLY | O_NOATIME | O_CLOEXEC);
	unsigned char *bytes = malloc(SIZE + 1);
	unsigned long hash = 5381;
	ssize_t n = read(fd, bytes, SIZE + 1);

	cr_assert_geq(n, 0, "%s: %s", path, strerror(errno));
	for (ssize_t i = 0; i < n; i++)
		hash = hash * 33 + bytes[i];
	free(bytes);
	close(fd);
	return hash;
}

static void look_at_source(struct looks looks[NAMES])
{
	char path[PATH_MAX + 8];

	memset(looks, 0, NAMES * sizeof(*looks));
	for (unsigned k = 0; k < NAMES; k++) {
		snprintf(path, sizeof(path), "%s/%s", mnt.backing, names[k]);
		cr_assert_eq(lstat(path, &looks[k].st), 0, "%s: %s", path, strerror(errno));
		look_at_attributes(path, looks[k].attributes, sizeof(looks[k].attributes));
		if (S_ISREG(looks[k].st.st_mode))
			looks[k].hash = hash_of(path);
	}
}

#define SAME_FIELD(name, a, b) cr_expect_eq((long)(a), (long)(b), "%s: " #b " was %ld, is %ld", name, (long)(a), (long)(b))
#define SAME_TIME(name, a, b)                                                             \
	cr_expect((a).tv_sec == (b).tv_sec && (a).tv_nsec == (b).tv_nsec,                 \
		  "%s: " #b " was %ld.%09ld, is %ld.%09ld", name, (long)(a).tv_sec, (a).tv_nsec, (long)(b).tv_sec, (b).tv_nsec)

static void compare(const char *name, const struct looks *was, const struct looks *is, bool access_times)
{
	SAME_FIELD(name, was->st.st_ino, is->st.st_ino);
	SAME_FIELD(name, was->st.st_mode, is->st.st_mode);
	SAME_FIELD(name, was->st.st_uid, is->st.st_uid);
	SAME_FIELD(name, was->st.st_gid, is->st.st_gid);
	SAME_FIELD(name, was->st.st_nlink, is->st.st_nlink);
	SAME_FIELD(name, was->st.st_size, is->st.st_size);
	SAME_FIELD(name, was->st.st_blocks, is->st.st_blocks);
	SAME_TIME(name, was->st.st_mtim, is->st.st_mtim);
	SAME_TIME(name, was->st.st_ctim, is->st.st_ctim);
	if (access_times)
		SAME_TIME(name, was->st.st_atim, is->st.st_atim);
	cr_expect_str_eq(is->attributes, was->attributes, "%s: attributes were \"%s\", are \"%s\"", name, was->attributes,
			 is->attributes);
	cr_expect_eq(was->hash, is->hash, "%s: other bytes", name);
}

/* ---- the attacker ---- */

static void look_around(void)
{
	char text[256];
	struct statvfs fs;
	struct stat st;
	DIR *dir;

	for (unsigned k = 0; k < NAMES; k++) {
		CHILD_CHECK(!lstat(mnt_file(&mnt, names[k]), &st));
		llistxattr(mnt_file(&mnt, names[k]), text, sizeof(text));
		lgetxattr(mnt_file(&mnt, names[k]), "user.there", text, sizeof(text));
		lgetxattr(mnt_file(&mnt, names[k]), "trusted.gaiafs.device", text, sizeof(text));
		CHILD_CHECK(!statvfs(mnt_file(&mnt, names[k]), &fs));
		dir = opendir(mnt_file(&mnt, names[k]));
		while (dir && readdir(dir))
			;
		if (dir)
			closedir(dir);
	}
	CHILD_CHECK(readlink(mnt_file(&mnt, "l"), text, sizeof(text)) == 1);
}

static void read_file(int fd)
{
	char *bytes = aligned_alloc(GAIA_PAGE, GAIA_CHUNK), *p, *private;
	int direct = open(mnt_file(&mnt, "f"), O_RDONLY | O_DIRECT | O_CLOEXEC);

	posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
	CHILD_CHECK(pread(fd, bytes, GAIA_CHUNK, GAIA_PAGE) == GAIA_CHUNK);
	CHILD_CHECK(pread(direct, bytes, GAIA_CHUNK, 0) == GAIA_CHUNK);
	p = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	private = mmap(NULL, SIZE, RW, MAP_PRIVATE, fd, 0);
	CHILD_CHECK(p != MAP_FAILED && private != MAP_FAILED);
	CHILD_CHECK(p[SIZE - 1] == 's' && mprotect(p, SIZE, RW));
	memset(private, 'P', SIZE);
	msync(p, SIZE, MS_SYNC);
	msync(private, SIZE, MS_SYNC);
	munmap(p, SIZE);
	munmap(private, SIZE);
	fsync(fd);
	fdatasync(fd);
	sync_file_range(fd, 0, SIZE, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	lseek(fd, 0, SEEK_HOLE);
	flock(fd, LOCK_EX | LOCK_NB);
	fcntl(fd, F_SETLK, &(struct flock){ .l_type = F_RDLCK, .l_whence = SEEK_SET });
	close(direct);
	free(bytes);
}

/* The second device cannot keep a reader from storing to its memory: what is there may be what this user stored before. */
static void read_by_device(int fd, int device)
{
	char *p = gaia_mmap(SIZE, PROT_READ, fd, 0, device);

	CHILD_CHECK(p != MAP_FAILED);
	gaia_advise(p, SIZE, GAIA_WILLNEED);
	CHILD_CHECK(!gaia_acquire(p, SIZE, PROT_READ));
	CHILD_CHECK(device || (p[0] == 's' && p[SIZE - 1] == 's'));
	CHILD_CHECK(gaia_acquire(p, SIZE, RW));
	if (!mprotect(p, SIZE, RW)) {
		memset(p, 'E', SIZE);
		hostile_add(&shared->more);
	}
	CHILD_CHECK(!gaia_release(p, SIZE));
	gaia_sync(p, SIZE);
	gaia_advise(p, SIZE, GAIA_DONTNEED);
	CHILD_CHECK(!gaia_acquire(p, GAIA_PAGE, PROT_READ));
	/* What is left is held at the end. */
}

/* What the library would not ask for. */
static void ask_as_if_for_writing(int fd)
{
	struct gaia_ioc_map map = { .length = SIZE, .prot = GAIA_PROT_READ | GAIA_PROT_WRITE };
	struct gaia_ioc_file file = { .from = GAIA_FLUSH_DEVICES };
	struct gaia_ioc_range io;
	struct raw r;

	CHILD_CHECK(raw_connect_with(fd, GAIA_FEATURES, &r));
	map.key = r.key;
	CHILD_CHECK(ioctl(fd, GAIA_IOC_MAP, &map));
	map.prot = GAIA_PROT_READ;
	CHILD_CHECK(!ioctl(fd, GAIA_IOC_MAP, &map));
	io = raw_range(&r, map.map, SIZE, GAIA_PROT_READ | GAIA_PROT_WRITE);
	CHILD_CHECK(ioctl(fd, GAIA_IOC_ACQUIRE, &io));
	io = raw_range(&r, map.map, SIZE, GAIA_PROT_READ | GAIA_PROT_PIN);
	ioctl(fd, GAIA_IOC_ACQUIRE, &io);
	io = raw_range(&r, map.map, SIZE, 0);
	ioctl(fd, GAIA_IOC_RELEASE, &io);
	fsetxattr(fd, GAIA_XATTR_RELEASE, &io, sizeof(io), 0);
	ioctl(fd, GAIA_IOC_SYNC, &io);
	ioctl(fd, GAIA_IOC_FLUSH, &file);
	file.from = 0;
	ioctl(fd, GAIA_IOC_FLUSH, &file);
	ioctl(fd, GAIA_IOC_EVICT, &file);
	file.from = GAIA_FROM_HOME;
	ioctl(fd, GAIA_IOC_EVICT, &file);
	/* Times, as clients move them that have released something. */
	fallocate(fd, FALLOC_FL_KEEP_SIZE, GAIA_TOUCH_OFFSET, 1);
	close(r.sock);
}

#define REFUSED(call) CHILD_CHECK((call) < 0)

static void try_to_change(int fd)
{
	static const int flags[] = { O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC, O_WRONLY | O_APPEND };
	char f[PATH_MAX], new[PATH_MAX];

	snprintf(f, sizeof(f), "%s", mnt_file(&mnt, "f"));
	snprintf(new, sizeof(new), "%s", mnt_file(&mnt, "d/new"));
	for (unsigned k = 0; k < sizeof(flags) / sizeof(flags[0]); k++)
		REFUSED(open(f, flags[k] | O_CLOEXEC));
	REFUSED(open(new, O_CREAT | O_RDONLY | O_CLOEXEC, 0600));
	REFUSED(open(mnt_file(&mnt, "d"), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
	REFUSED(pwrite(fd, "E", 1, 0));
	REFUSED(ftruncate(fd, 0));
	REFUSED(truncate(f, 0));
	REFUSED(fallocate(fd, 0, 0, SIZE + GAIA_PAGE));
	REFUSED(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_PAGE));
	REFUSED(chmod(f, 0777));
	REFUSED(chown(f, getuid(), getgid()));
	REFUSED(utimensat(AT_FDCWD, f, (struct timespec[2]){ { .tv_sec = 1 }, { .tv_sec = 1 } }, 0));
	REFUSED(utimensat(AT_FDCWD, f, NULL, 0));
	REFUSED(setxattr(f, "user.there", "after", 5, 0));
	REFUSED(setxattr(f, "user.mark", "", 0, 0));
	REFUSED(setxattr(f, "trusted.gaiafs.device", "", 0, 0));
	REFUSED(removexattr(f, "user.there"));
	REFUSED(link(f, new));
	REFUSED(symlink(f, new));
	REFUSED(mkdir(new, 0700));
	REFUSED(rename(f, new));
	REFUSED(unlink(f));
	REFUSED(unlink(mnt_file(&mnt, "d/g")));
}

/* More than once: a file that a device has mapped is opened in another way. */
static int leave_marks(void *arg)
{
	int fd, open_before = -1;

	(void)arg;
	if (hostile_uid)
		hostile_become();
	for (unsigned round = 0; round < 3; round++) {
		fd = open(mnt_file(&mnt, round % 2 ? "d/g" : "f"), O_RDONLY | O_CLOEXEC);
		CHILD_CHECK(fd >= 0);
		look_around();
		read_file(fd);
		for (int device = 0; device < DEVICES; device++)
			read_by_device(fd, device);
		ask_as_if_for_writing(fd);
		try_to_change(fd);
		read_file(fd);
		if (open_before >= 0)
			close(open_before);
		open_before = fd;
	}
	/* With what it holds. */
	kill(getpid(), SIGKILL);
	return 0;
}

/* ---- the tests ---- */

static void leaves_no_mark(const char *option, mode_t file, mode_t dir, uid_t uid)
{
	const char *args[] = { "--device", "sim:16M", "--device", "sim:16M,readonly=off", option ? "-o" : NULL, option, NULL };
	struct looks before[NAMES], after[NAMES];

	hostile_start(args);
	hostile_uid = uid;
	make_source(file, dir);
	look_at_source(before);
	cr_assert_eq(child_run(leave_marks, NULL), 128 + SIGKILL);
	cr_assert_eq(shared->more, 3, "%d times stored to a device's memory", shared->more);
	/* What is remembered, or to be stored, is stored by then. */
	way_unmount();
	look_at_source(after);
	for (unsigned k = 0; k < NAMES; k++)
		compare(names[k], &before[k], &after[k], option != NULL);
}

EACH_WAY_BARE(marks, a_reader_leaves_none) { leaves_no_mark(NULL, 0644, 0755, NOBODY); }
EACH_WAY_BARE(marks, a_reader_leaves_none_without_access_times) { leaves_no_mark("noatime", 0644, 0755, NOBODY); }
EACH_WAY_BARE(marks, a_reader_leaves_none_on_a_readonly_mount) { leaves_no_mark("ro", 0644, 0755, NOBODY); }
EACH_WAY_BARE(marks, who_could_write_leaves_none_on_a_readonly_mount) { leaves_no_mark("ro", 0666, 0777, NOBODY); }
EACH_WAY_BARE(marks, root_leaves_none_on_a_readonly_mount) { leaves_no_mark("ro", 0644, 0755, 0); }
