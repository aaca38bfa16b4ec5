/*
 * fs_limits.c - where paths, links, offsets and files end, compared with a plain directory; and
 * what may not be done to a program that runs.
 */
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child.h"
#include "ways.h"

static void make_file(const char *name, const char *text)
{
	int fd[2];

	SAME_FD_OK(fd, openat(at, name, O_CREAT | O_EXCL | O_WRONLY, 0644));
	SAME_OK(write(fd[side], text, strlen(text)));
	SAME_CLOSE(fd);
}

/* "d/../d/../...///f", of @length bytes, at most PATH_MAX. */
static const char *long_path(size_t length)
{
	static char path[PATH_MAX + 1];
	size_t n = 0;

	memset(path, '/', length);
	for (; n + 5 < length; n += 5)
		memcpy(path + n, "d/../", 5);
	path[length - 1] = 'f';
	path[length] = '\0';
	return path;
}

EACH_WAY(fs_limits, paths_of_4095_bytes_work_and_of_4096_do_not)
{
	struct stat st;
	int fd[2];

	SAME_OK(mkdirat(at, "d", 0755));
	SAME_FD_OK(fd, openat(at, long_path(PATH_MAX - 1), O_CREAT | O_EXCL | O_RDWR, 0644));
	SAME_CLOSE(fd);
	SAME_OK(fstatat(at, "f", &st, 0));
	SAME_ERR(openat(at, long_path(PATH_MAX), O_RDWR), ENAMETOOLONG);
	SAME_ERR(mkdirat(at, long_path(PATH_MAX), 0755), ENAMETOOLONG);
	SAME_ERR(fstatat(at, long_path(PATH_MAX), &st, 0), ENAMETOOLONG);
	SAME_ERR(unlinkat(at, long_path(PATH_MAX), 0), ENAMETOOLONG);
	SAME_ERR(renameat(at, "f", at, long_path(PATH_MAX)), ENAMETOOLONG);
	SAME_ERR(linkat(at, "f", at, long_path(PATH_MAX), 0), ENAMETOOLONG);
	SAME_ERR(symlinkat(long_path(PATH_MAX), at, "l"), ENAMETOOLONG);
	/* XFS has links of 1023 bytes. */
	if (SAME(symlinkat(long_path(PATH_MAX - 1), at, "l")) == 0)
		SAME_OK(fstatat(at, "l", &st, 0));
	SAME_OK(unlinkat(at, long_path(PATH_MAX - 1), 0));
	both_same_tree();
}

EACH_WAY(fs_limits, forty_links_are_followed_and_forty_one_are_not)
{
	char name[16], target[16];
	struct stat st[2];
	int fd[2];

	make_file("0", "text");
	for (int i = 1; i <= 41; i++) {
		snprintf(name, sizeof(name), "%d", i);
		snprintf(target, sizeof(target), "%d", i - 1);
		SAME_OK(symlinkat(target, at, name));
	}
	SAME_OK(fstatat(at, "40", &st[side], 0));
	both_same_stat(st, "through forty links");
	SAME_ERR(fstatat(at, "41", &st[side], 0), ELOOP);
	SAME_ERR(openat(at, "41", O_RDONLY), ELOOP);
	SAME_ERR(openat(at, "41", O_CREAT | O_RDWR, 0644), ELOOP);
	SAME_OK(symlinkat(".", at, "here"));
	SAME_FD_OK(fd, openat(at, "here/here/here/0", O_RDONLY));
	SAME_CLOSE(fd);
	SAME_ERR(unlinkat(at, "here", AT_REMOVEDIR), ENOTDIR);
	SAME_ERR(unlinkat(at, "here/", AT_REMOVEDIR), ENOTDIR);
	SAME_ERR(renameat(at, "here/", at, "there"), ENOTDIR);
}

EACH_WAY(fs_limits, names_do_not_leave_the_file_system)
{
	int other = open("/dev/shm", O_RDONLY | O_DIRECTORY);

	make_file("f", "text");
	SAME_OK(mkdirat(at, "d", 0755));
	SAME_ERR(renameat(at, "f", other, "f"), EXDEV);
	SAME_ERR(renameat(at, "d", other, "d"), EXDEV);
	SAME_ERR(linkat(at, "f", other, "f", 0), EXDEV);
	SAME_ERR(renameat2(at, "d", other, "d", RENAME_NOREPLACE), EXDEV);
	/* The directory beneath is another one, too. */
	cr_assert_eq(renameat(both_root[ON_MOUNT], "f", mnt.backing_fd, "g"), -1);
	cr_assert_eq(errno, EXDEV);
	cr_assert_eq(linkat(mnt.backing_fd, "f", both_root[ON_MOUNT], "g", 0), -1);
	cr_assert_eq(errno, EXDEV);
	close(other);
	both_same_tree();
}

EACH_WAY(fs_limits, dots_are_not_removed_renamed_or_made)
{
	SAME_OK(mkdirat(at, "d", 0755));
	SAME_ERR(unlinkat(at, "d/.", AT_REMOVEDIR), EINVAL);
	SAME_ERR(unlinkat(at, "d/..", AT_REMOVEDIR), ENOTEMPTY);
	SAME_ERR(unlinkat(at, "d/.", 0), EISDIR);
	SAME_ERR(mkdirat(at, "d/.", 0755), EEXIST);
	SAME_ERR(mkdirat(at, "d/..", 0755), EEXIST);
	SAME_ERR(renameat(at, "d/.", at, "e"), EBUSY);
	SAME_ERR(renameat(at, "d", at, "d/.."), EBUSY);
	SAME_ERR(linkat(at, "d", at, "e", 0), EPERM);
	SAME_ERR(linkat(at, ".", at, "e", 0), EPERM);
	SAME_ERR(mkdirat(at, "e/f", 0755), ENOENT);
	SAME_OK(mkdirat(at, "e/", 0755));
	SAME_ERR(openat(at, "f/", O_CREAT | O_RDWR, 0644), EISDIR);
	SAME_ERR(mknodat(at, "f/", S_IFREG | 0644, 0), ENOENT);
	both_same_tree();
}

/* ---- offsets ---- */

#define MOST INT64_MAX

EACH_WAY(fs_limits, offsets_end_at_two_to_the_63)
{
	static char page[4096];
	off_t from, to;
	int fd[2];

	make_file("f", "text");
	SAME_FD_OK(fd, openat(at, "f", O_RDWR));
	SAME_OK(pread(fd[side], page, 10, MOST - 10));
	SAME_OK(pread(fd[side], page, 10, 1l << 50));
	SAME(pread(fd[side], page, 10, MOST - 9));
	SAME(pread(fd[side], page, 10, MOST));
	SAME_ERR(pread(fd[side], page, 10, -1), EINVAL);
	SAME(pwrite(fd[side], page, 10, MOST));
	SAME(pwrite(fd[side], page, 10, MOST - 5));
	SAME_ERR(pwrite(fd[side], page, 10, -1), EINVAL);
	SAME_ERR(lseek(fd[side], MOST, SEEK_END), EINVAL);
	SAME_ERR(lseek(fd[side], MOST, SEEK_DATA), ENXIO);
	SAME_ERR(lseek(fd[side], MOST, SEEK_HOLE), ENXIO);
	SAME_ERR(lseek(fd[side], -1, SEEK_DATA), ENXIO);
	SAME_ERR(lseek(fd[side], 0, 99), EINVAL);
	SAME(ftruncate(fd[side], MOST));
	SAME(ftruncate(fd[side], 1l << 44));
	SAME(ftruncate(fd[side], (1l << 44) - 4096));
	SAME_OK(ftruncate(fd[side], 4));
	SAME_ERR(ftruncate(fd[side], -1), EINVAL);
	/* Where there are files of that size they end in the middle of a page whose end no offset can name. */
	if (SAME(fallocate(fd[side], 0, MOST - 10, 10)) == 0)
		SAME_OK(pwrite(fd[side], "0123456789", 10, MOST - 10));
	SAME_ERR(fallocate(fd[side], 0, MOST - 10, 11), EFBIG);
	SAME_ERR(fallocate(fd[side], 0, MOST, MOST), EFBIG);
	SAME_ERR(fallocate(fd[side], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MOST - 1, 10), EFBIG);
	SAME(fallocate(fd[side], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4, MOST - 4));
	SAME((from = MOST - 5, to = 0, copy_file_range(fd[side], &from, fd[side], &to, 10, 0)));
	SAME_OK(pread(fd[side], page, 10, MOST - 10));
	SAME(fsync(fd[side]));
	SAME(sync_file_range(fd[side], MOST - 5, 10, SYNC_FILE_RANGE_WRITE));
	SAME_OK(sync_file_range(fd[side], 0, MOST, SYNC_FILE_RANGE_WRITE));
	SAME(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd[side], MOST & ~4095l) == MAP_FAILED ? -1 : 0);
	SAME(mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd[side], MOST & ~4095l) == MAP_FAILED ? -1 : 0);
	SAME_OK(ftruncate(fd[side], 10)); /* what was copied; all of it takes long to compare */
	SAME_CLOSE(fd);
	way_unmount();
	way_remount();
	both_same_tree();
}

/* Of 8 TiB, nearly all of it a hole. */
EACH_WAY(fs_limits, a_huge_sparse_file)
{
	const off_t far = (1l << 43) + 12345;
	struct stat st[2];
	char got[2][10];
	int fd[2];

	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_RDWR, 0644));
	if (SAME(ftruncate(fd[side], far)) < 0)
		WAY_SKIP("a file of 8 TiB: not on the file system of the test");
	SAME_OK(pwrite(fd[side], "first", 5, 0));
	SAME_OK(pwrite(fd[side], "last", 4, far - 4));
	SAME_OK(pwrite(fd[side], "middle", 6, far / 2));
	SAME_OK(fsync(fd[side]));
	SAME_OK(fstat(fd[side], &st[side]));
	both_same_stat(st, "a huge file");
	cr_assert_lt(st[ON_MOUNT].st_blocks, 100);
	SAME_OK(lseek(fd[side], 4096, SEEK_DATA));
	SAME_OK(lseek(fd[side], far / 2, SEEK_HOLE));
	SAME_OK(pread(fd[side], got[side], 10, far - 4));
	cr_assert_arr_eq(got[ON_MOUNT], "last", 4);
	SAME_OK(pread(fd[side], got[side], 10, far / 2));
	cr_assert_arr_eq(got[0], got[1], 10);
	SAME_OK(ftruncate(fd[side], far / 2 + 3));
	SAME_OK(lseek(fd[side], 4096, SEEK_DATA));
	SAME_CLOSE(fd);
}

static int write_beyond_the_limit(void *arg)
{
	static char bytes[8192];
	struct rlimit limit = { 4096, 4096 };
	int fd = openat(*(int *)arg, "f", O_CREAT | O_TRUNC | O_RDWR, 0644);

	CHILD_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	CHILD_CHECK(pwrite(fd, bytes, 8192, 0) == 4096);
	signal(SIGXFSZ, SIG_IGN);
	CHILD_CHECK(pwrite(fd, bytes, 1, 4096) == -1 && errno == EFBIG);
	CHILD_CHECK(ftruncate(fd, 4097) == -1 && errno == EFBIG);
	CHILD_CHECK(fallocate(fd, 0, 0, 5000) == -1 && errno == EFBIG);
	signal(SIGXFSZ, SIG_DFL);
	ftruncate(fd, 4097);
	return 0;
}

EACH_WAY(fs_limits, what_exceeds_the_limit_of_a_process_gives_sigxfsz)
{
	cr_assert_eq(SAME(child_run(write_beyond_the_limit, &at)), 128 + SIGXFSZ);
	both_same_tree();
}

/* ---- few descriptors ---- */

#define MANY 200

/* A third of them is for files that nobody uses. Root's daemon would raise the limit if it could. */
static void start_with_few_descriptors(void)
{
	static const struct rlimit few = { MANY, MANY };

	(void)prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	way_start(NULL);
}

/* And sync it. */
static int create(const char *name, const char *text)
{
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_EXCL | O_RDWR, 0644);

	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	cr_assert_eq(fsync(fd), 0);
	return fd;
}

/* So that the daemon closes the descriptors of files used before. */
static void make_many(void)
{
	char name[32];

	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "many%d", i);
		close(create(name, ""));
	}
}

EACH_WAY_BARE(fs_limits, a_file_without_a_name_lives_where_descriptors_are_few)
{
	char seen[8] = "";
	struct stat st;
	int fd;

	start_with_few_descriptors();
	fd = create("orphan", "orphan");
	cr_assert_eq(unlinkat(both_root[ON_MOUNT], "orphan", 0), 0);
	make_many();
	cr_assert_eq(fchmod(fd, 0600), 0);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(st.st_mode & 07777, 0600);
	cr_assert_eq(st.st_nlink, 0);
	cr_assert_eq(pread(fd, seen, sizeof(seen), 0), 6);
	cr_assert_str_eq(seen, "orphan");
	close(fd);
}

EACH_WAY_BARE(fs_limits, a_file_that_was_renamed_is_found_where_descriptors_are_few)
{
	struct stat st;
	int fd;

	start_with_few_descriptors();
	fd = create("old", "renamed");
	cr_assert_eq(renameat(both_root[ON_MOUNT], "old", both_root[ON_MOUNT], "new"), 0);
	close(create("old", "another"));
	make_many();
	/* By a descriptor: for an open the kernel would look the name up again. */
	cr_assert_eq(fchmod(fd, 0600), 0);
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "new", &st, 0), 0);
	cr_assert_eq(st.st_mode & 07777, 0600);
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "old", &st, 0), 0);
	cr_assert_eq(st.st_mode & 07777, 0644);
	close(fd);
}

/* Nobody should rename beneath the mount; but if so, the other file is left alone. */
EACH_WAY_BARE(fs_limits, a_file_that_was_replaced_beneath_is_not_taken_for_its_successor)
{
	char from[PATH_MAX + 8], to[PATH_MAX + 8];
	struct stat st;
	int fd;

	start_with_few_descriptors();
	fd = create("f", "first");
	close(create("g", "successor"));
	make_many();
	snprintf(from, sizeof(from), "%s/g", mnt.backing);
	snprintf(to, sizeof(to), "%s/f", mnt.backing);
	cr_assert_eq(rename(from, to), 0);
	cr_assert(fchmod(fd, 0600) == -1 && errno == ESTALE);
	cr_assert_eq(stat(to, &st), 0);
	cr_assert_eq(st.st_mode & 07777, 0644);
	close(fd);
}

/* ---- mappings beyond the end ---- */

struct touch {
	int at;
	off_t where;
	bool store;
};

static int touch(void *arg)
{
	struct touch *t = arg;
	int fd = openat(t->at, "f", O_RDWR);
	volatile char *p = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	CHILD_CHECK(p != MAP_FAILED);
	if (t->store)
		p[t->where] = 'x';
	return p[t->where];
}

EACH_WAY(fs_limits, pages_beyond_the_end_give_sigbus)
{
	static const off_t where[] = { 0, 4999, 5000, 8191, 8192, 12288, 16383 };
	int fd[2];

	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_RDWR, 0644));
	SAME_OK(ftruncate(fd[side], 5000));
	for (int store = 0; store < 2; store++) {
		for (size_t i = 0; i < sizeof(where) / sizeof(where[0]); i++) {
			int r = SAME(child_run(touch, &((struct touch){ at, where[i], store })));

			cr_assert_eq(r == 128 + SIGBUS, where[i] >= 8192, "at %ld", (long)where[i]);
		}
	}
	SAME_CLOSE(fd);
}

/* ---- programs that run ---- */

struct runner {
	int at, input; /* the read end of a pipe: the program ends when it is closed */
};

static int run_program(void *arg)
{
	struct runner *r = arg;
	int fd = openat(r->at, "program", O_PATH);
	char *const argv[] = { "cat", NULL }, *const envp[] = { NULL };

	dup2(r->input, 0);
	fexecve(fd, argv, envp);
	return errno;
}

static void copy_program(const char *from)
{
	static char bytes[1 << 16];
	int in = open(from, O_RDONLY), fd[2];
	ssize_t n;

	cr_assert_geq(in, 0, "%s: %s", from, strerror(errno));
	SAME_FD_OK(fd, openat(at, "program", O_CREAT | O_WRONLY, 0755));
	while ((n = read(in, bytes, sizeof(bytes))) > 0)
		cr_assert_eq(SAME(write(fd[side], bytes, n)), n);
	SAME_CLOSE(fd);
	close(in);
}

/* Until the child has executed the program. */
static void wait_until_it_runs(int at, pid_t pid)
{
	char link[64];
	struct stat program, exe;

	snprintf(link, sizeof(link), "/proc/%d/exe", pid);
	cr_assert_eq(fstatat(at, "program", &program, 0), 0);
	do
		cr_assert_eq(stat(link, &exe), 0, "%s: %s", link, strerror(errno));
	while (exe.st_ino != program.st_ino || exe.st_dev != program.st_dev);
}

static int open_for(int at, int flags)
{
	int fd = openat(at, "program", flags);

	return fd < 0 ? -1 : close(fd);
}

EACH_WAY(fs_limits, a_program_that_runs_is_not_written)
{
	struct runner r[2];
	int fd[2], p[2];
	pid_t pid[2];
	char path[64];

	cr_assert_eq(pipe2(p, O_CLOEXEC), 0);
	copy_program("/bin/cat");
	for (int side = 0; side < 2; side++) {
		r[side] = (struct runner){ both_root[side], p[0] };
		pid[side] = child_start(run_program, &r[side]);
		wait_until_it_runs(both_root[side], pid[side]);
	}
	SAME_ERR(open_for(at, O_WRONLY), ETXTBSY);
	SAME_ERR(open_for(at, O_RDWR | O_TRUNC), ETXTBSY);
	SAME_ERR((snprintf(path, sizeof(path), "/proc/self/fd/%d/program", at), truncate(path, 0)),
		 ETXTBSY);
	SAME_OK(open_for(at, O_RDONLY));
	SAME_OK(renameat(at, "program", at, "other"));
	SAME_OK(renameat(at, "other", at, "program"));
	close(p[1]);
	for (int side = 0; side < 2; side++)
		cr_assert_eq(child_wait(pid[side]), 0);
	/* And what is open for writing does not run. */
	SAME_FD_OK(fd, openat(at, "program", O_WRONLY));
	cr_assert_eq(SAME(child_run(run_program, &r[side])), ETXTBSY);
	SAME_CLOSE(fd);
	cr_assert_eq(SAME(child_run(run_program, &r[side])), 0);
	SAME_OK(fchmodat(at, "program", 0644, 0));
	cr_assert_eq(SAME(child_run(run_program, &r[side])), EACCES);
	close(p[0]);
}
