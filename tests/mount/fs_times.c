/*
 * fs_times.c - which times each operation changes, of the file and of the directories around it.
 *
 * Each deed is done on a file d/f, freshly made, in both trees. Which of the times of d/f, d and e
 * it changed must agree at once, and, for modification times, in the backing directory when the
 * file has been synced.
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "ways.h"

/* ---- deeds; what fails must fail alike, and is compared, too ---- */

static int on_file(int at, int flags, int (*what)(int fd))
{
	int fd = openat(at, "d/f", flags, 0644), res;

	if (fd < 0)
		return -1;
	res = what ? what(fd) : 0;
	close(fd);
	return res;
}

static int write_some(int fd)
{
	return (int)pwrite(fd, "new", 3, 2);
}

static int write_nothing(int fd)
{
	return (int)write(fd, "", 0);
}

static int read_nothing(int fd)
{
	return (int)pread(fd, &(char){ 0 }, 1, 10000);
}

static int cut(int fd)
{
	return ftruncate(fd, 5);
}

static int cut_to_the_same(int fd)
{
	return ftruncate(fd, 10);
}

static int grow(int fd)
{
	return ftruncate(fd, 10000);
}

static int allocate(int fd)
{
	return fallocate(fd, 0, 0, 8192);
}

static int allocate_beyond(int fd)
{
	return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 8192);
}

static int punch(int fd)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1, 4);
}

static int copy_inside(int fd)
{
	off_t from = 0, to = 20;

	return (int)copy_file_range(fd, &from, fd, &to, 5, 0);
}

static int store_and_sync(int fd)
{
	char *p = mmap(NULL, 10, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return -1;
	p[3] = 's';
	return msync(p, 10, MS_SYNC) | munmap(p, 10);
}

static int set_attribute(int fd)
{
	return fsetxattr(fd, "user.new", "x", 1, 0);
}

static int remove_missing_attribute(int fd)
{
	return fremovexattr(fd, "user.missing");
}

static int seek_data(int fd)
{
	return (int)lseek(fd, 0, SEEK_DATA);
}

static int set_append(int fd)
{
	return fcntl(fd, F_SETFL, O_APPEND);
}

static int cut_by_name(int at, off_t size)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d/d/f", at);
	return truncate(path, size);
}

static int touch(int at, const char *name, long a_nsec, long m_nsec)
{
	struct timespec ts[2] = { { 1234567, a_nsec }, { 1234567, m_nsec } };

	return utimensat(at, name, ts, 0);
}

static int link_and_unlink(int at)
{
	return linkat(at, "d/f", at, "e/g", 0) | unlinkat(at, "e/g", 0);
}

static int make_and_close(int at, const char *name, int flags)
{
	int fd = openat(at, name, flags | O_CREAT | O_WRONLY, 0644);

	return fd < 0 ? -1 : close(fd);
}

static int list(int at)
{
	DIR *d = fdopendir(openat(at, "d", O_RDONLY | O_DIRECTORY));
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int make_dir_inside(int at)
{
	return mkdirat(at, "d/sub", 0755);
}

#define DEED(name, call)                       \
	static int name(int at)                \
	{                                      \
		return (call);                 \
	}
#define FILE_DEED(what, flags) DEED(deed_##what, on_file(at, flags, what))

FILE_DEED(write_some, O_RDWR)
FILE_DEED(write_nothing, O_RDWR)
FILE_DEED(read_nothing, O_RDWR)
FILE_DEED(cut, O_RDWR)
FILE_DEED(cut_to_the_same, O_RDWR)
FILE_DEED(grow, O_RDWR)
FILE_DEED(allocate, O_RDWR)
FILE_DEED(allocate_beyond, O_RDWR)
FILE_DEED(punch, O_RDWR)
FILE_DEED(copy_inside, O_RDWR)
FILE_DEED(store_and_sync, O_RDWR)
FILE_DEED(set_attribute, O_RDONLY)
FILE_DEED(remove_missing_attribute, O_RDONLY)
FILE_DEED(seek_data, O_RDONLY)
FILE_DEED(set_append, O_RDWR)
FILE_DEED(fsync, O_RDONLY)
DEED(open_to_write, on_file(at, O_WRONLY, NULL))
DEED(open_and_empty, on_file(at, O_WRONLY | O_TRUNC, NULL))
DEED(open_to_read_and_empty, on_file(at, O_RDONLY | O_TRUNC, NULL))
DEED(create_what_is_there, on_file(at, O_WRONLY | O_CREAT, NULL))
DEED(fail_to_create, on_file(at, O_WRONLY | O_CREAT | O_EXCL, NULL))
DEED(append, on_file(at, O_WRONLY | O_APPEND, write_some))
DEED(write_at_once, on_file(at, O_WRONLY | O_SYNC, write_some))
DEED(cut_by_its_name, cut_by_name(at, 5))
DEED(cut_by_its_name_to_the_same, cut_by_name(at, 10))
DEED(grow_by_its_name, cut_by_name(at, 10000))
DEED(change_mode, fchmodat(at, "d/f", 0600, 0))
DEED(change_mode_to_the_same, fchmodat(at, "d/f", 0644, 0))
DEED(change_mode_of_dir, fchmodat(at, "d", 0700, 0))
DEED(change_owner_to_the_same, fchownat(at, "d/f", geteuid(), getegid(), 0))
DEED(change_no_owner, fchownat(at, "d/f", -1, -1, 0))
DEED(touch_both, touch(at, "d/f", 7, 8))
DEED(touch_modified, touch(at, "d/f", UTIME_OMIT, 8))
DEED(touch_accessed, touch(at, "d/f", 7, UTIME_OMIT))
DEED(touch_nothing, touch(at, "d/f", UTIME_OMIT, UTIME_OMIT))
DEED(touch_now, touch(at, "d/f", UTIME_NOW, UTIME_NOW))
DEED(touch_dir, touch(at, "d", 7, 8))
DEED(make_link, linkat(at, "d/f", at, "e/g", 0))
DEED(fail_to_link, linkat(at, "d/f", at, "e/old", 0))
DEED(remove_file, unlinkat(at, "d/f", 0))
DEED(rename_inside, renameat(at, "d/f", at, "d/g"))
DEED(rename_across, renameat(at, "d/f", at, "e/g"))
DEED(rename_over, renameat(at, "d/f", at, "e/old"))
DEED(rename_over_it, renameat(at, "e/old", at, "d/f"))
DEED(rename_to_itself, renameat(at, "d/f", at, "d/f"))
DEED(exchange, renameat2(at, "d/f", at, "e/old", RENAME_EXCHANGE))
DEED(fail_to_rename, renameat2(at, "d/f", at, "e/old", RENAME_NOREPLACE))
DEED(rename_dir, renameat(at, "d", at, "e/d"))
DEED(make_file, make_and_close(at, "d/new", O_EXCL))
DEED(make_symlink, symlinkat("x", at, "d/new"))
DEED(make_fifo, mknodat(at, "d/new", S_IFIFO | 0600, 0))
DEED(fail_to_make_dir, mkdirat(at, "d/f", 0700))
DEED(make_and_remove_dir, mkdirat(at, "d/new", 0700) | unlinkat(at, "d/new", AT_REMOVEDIR))
DEED(look, faccessat(at, "d/f", R_OK, 0))
DEED(look_for_what_is_missing, faccessat(at, "d/missing", R_OK, 0))

static const struct {
	const char *name;
	int (*deed)(int at);
	bool reads; /* so what it does to access times is not compared: gaiafs-limits(7) */
	bool not_back; /* with writeback it may differ: gaiafs-limits(7) */
} deeds[] = {
#define ONE(d) { .name = #d, .deed = d }
#define READS(d) { .name = #d, .deed = d, .reads = true }
	ONE(deed_write_some), ONE(deed_write_nothing), READS(deed_read_nothing), ONE(deed_cut),
	ONE(deed_cut_to_the_same), ONE(deed_grow), ONE(deed_allocate), ONE(deed_allocate_beyond),
	ONE(deed_punch), READS(deed_copy_inside), READS(deed_store_and_sync),
	ONE(deed_set_attribute), ONE(deed_remove_missing_attribute), ONE(deed_seek_data),
	ONE(deed_set_append), ONE(deed_fsync), ONE(open_to_write), ONE(open_and_empty),
	ONE(open_to_read_and_empty), ONE(create_what_is_there), ONE(fail_to_create), ONE(append),
	ONE(write_at_once), ONE(cut_by_its_name),
	{ "cut_by_its_name_to_the_same", cut_by_its_name_to_the_same, .not_back = true },
	ONE(grow_by_its_name), ONE(change_mode), ONE(change_mode_to_the_same),
	ONE(change_mode_of_dir), ONE(change_owner_to_the_same), ONE(change_no_owner),
	ONE(touch_both), ONE(touch_modified), ONE(touch_accessed), ONE(touch_nothing),
	ONE(touch_now), ONE(touch_dir), ONE(make_link), ONE(fail_to_link), ONE(link_and_unlink),
	ONE(remove_file), ONE(rename_inside), ONE(rename_across), ONE(rename_over),
	ONE(rename_over_it), ONE(rename_to_itself), ONE(exchange), ONE(fail_to_rename),
	ONE(rename_dir), ONE(make_file), ONE(make_symlink), ONE(make_fifo), ONE(make_dir_inside),
	ONE(fail_to_make_dir), ONE(make_and_remove_dir), ONE(list), ONE(look),
	ONE(look_for_what_is_missing),
};

/* ---- what changed ---- */

#define WATCHED 4
static const char *const watched[WATCHED] = { "d/f", "d", "e", "e/old" };

struct watch {
	int fd[WATCHED]; /* whatever becomes of the names */
	struct stat before[WATCHED];
};

static bool same_time(struct timespec a, struct timespec b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool before(struct timespec a, struct timespec b)
{
	return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec < b.tv_nsec);
}

/* Until the clock that files are stamped with has moved on. */
static void wait_for_the_next_tick(const struct watch w[2])
{
	struct timespec now;
	bool later;

	do {
		clock_gettime(CLOCK_REALTIME_COARSE, &now);
		later = true;
		for (int i = 0; i < WATCHED; i++)
			later = later && before(w[0].before[i].st_ctim, now) &&
				before(w[1].before[i].st_ctim, now);
	} while (!later);
}

static void put(int at, const char *name)
{
	int fd = openat(at, name, O_CREAT | O_TRUNC | O_WRONLY, 0644);

	cr_assert_eq(write(fd, "0123456789", 10), 10);
	cr_assert_eq(close(fd), 0);
}

static void begin(struct watch *w, int root, const char *name)
{
	static const struct timespec old[2] = { { 1000000000, 1 }, { 1100000000, 2 } };
	int at;

	cr_assert_eq(mkdirat(root, name, 0755), 0);
	at = openat(root, name, O_RDONLY | O_DIRECTORY);
	cr_assert(mkdirat(at, "d", 0755) == 0 && mkdirat(at, "e", 0755) == 0);
	put(at, "d/f");
	put(at, "e/old");
	for (int i = 0; i < WATCHED; i++) {
		w->fd[i] = openat(at, watched[i], O_PATH);
		cr_assert_eq(utimensat(at, watched[i], old, 0), 0);
	}
	for (int i = 0; i < WATCHED; i++)
		cr_assert_eq(fstat(w->fd[i], &w->before[i]), 0);
	close(at);
}

/* Which times of each watched file have changed: "amc m  ", for example. */
static const char *changed(const struct watch *w, bool access, char text[40])
{
	char *p = text;

	for (int i = 0; i < WATCHED; i++) {
		const struct stat *was = &w->before[i];
		struct stat st;

		cr_assert_eq(fstat(w->fd[i], &st), 0);
		if (access && !same_time(st.st_atim, was->st_atim))
			*p++ = 'a';
		if (!same_time(st.st_mtim, was->st_mtim))
			*p++ = 'm';
		if (!same_time(st.st_ctim, was->st_ctim))
			*p++ = 'c';
		*p++ = i == WATCHED - 1 ? '\0' : ' ';
	}
	return text;
}

/* The modification times beneath, once all is stored. */
static const char *changed_beneath(const char *dir, const struct watch *w, char text[40])
{
	char path[64], *p = text;
	int fd;

	for (int i = 0; i < WATCHED; i++) {
		struct stat st;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", w->fd[i]);
		fd = open(path, O_RDONLY);
		cr_assert_eq(fsync(fd), 0);
		close(fd);
		snprintf(path, sizeof(path), "%s/%s", dir, watched[i]);
		if (fstatat(mnt.backing_fd, path, &st, 0) == 0)
			*p++ = same_time(st.st_mtim, w->before[i].st_mtim) ? '=' : 'm';
		else
			*p++ = '-';
	}
	*p = '\0';
	return text;
}

static void try(unsigned k)
{
	char text[4][40], name[16];
	struct watch w[2];
	int dir[2];

	snprintf(name, sizeof(name), "%u", k);
	begin(&w[ON_MOUNT], both_root[ON_MOUNT], name);
	begin(&w[ON_PLAIN], both_root[ON_PLAIN], name);
	SAME_FD_OK(dir, openat(at, name, O_RDONLY | O_DIRECTORY));
	wait_for_the_next_tick(w);
	SAME(deeds[k].deed(dir[side]));
	for (int side = 0; side < 2; side++)
		changed(&w[side], !deeds[k].reads, text[side]);
	if (!deeds[k].not_back || !way_is("writeback"))
		cr_expect_str_eq(text[ON_MOUNT], text[ON_PLAIN],
			 "%s: of \"d/f d e e/old\" changed \"%s\" on the mount, \"%s\" on a plain directory",
			 deeds[k].name, text[ON_MOUNT], text[ON_PLAIN]);
	/* The plain directory is its own backing. */
	for (int i = 0; i < WATCHED; i++) {
		struct stat st;

		snprintf(text[3], sizeof(text[3]), "%s", watched[i]);
		text[1][i] = fstatat(dir[ON_PLAIN], text[3], &st, 0)		   ? '-' :
			     same_time(st.st_mtim, w[ON_PLAIN].before[i].st_mtim) ? '=' :
										    'm';
	}
	text[1][WATCHED] = '\0';
	changed_beneath(name, &w[ON_MOUNT], text[0]);
	cr_expect_str_eq(text[0], text[1], "%s: beneath, of \"d/f d e e/old\": \"%s\", plain \"%s\"",
			 deeds[k].name, text[0], text[1]);
	for (int i = 0; i < WATCHED; i++)
		for (int side = 0; side < 2; side++)
			close(w[side].fd[i]);
	SAME_CLOSE(dir);
}

EACH_WAY(fs_times, each_operation_changes_the_times_that_it_changes_below)
{
	for (unsigned k = 0; k < sizeof(deeds) / sizeof(deeds[0]); k++)
		try(k);
}

/* Make and ninja compare what they saw with what they see later, to the nanosecond. */
EACH_WAY(fs_times, a_modification_time_that_was_seen_stays)
{
	struct timespec seen[100];
	struct stat st;
	char name[16];
	int fd;

	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);
		cr_assert_eq(write(fd, "text", 4), 4);
		if (i % 2)
			fsync(fd);
		close(fd);
		cr_assert_eq(fstatat(both_root[ON_MOUNT], name, &st, 0), 0);
		seen[i] = st.st_mtim;
	}
	way_unmount();
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		cr_assert_eq(fstatat(mnt.backing_fd, name, &st, 0), 0);
		cr_assert(same_time(st.st_mtim, seen[i]), "%s: %ld.%09ld beneath, %ld.%09ld was seen", name,
			  st.st_mtim.tv_sec, st.st_mtim.tv_nsec, seen[i].tv_sec, seen[i].tv_nsec);
	}
}
