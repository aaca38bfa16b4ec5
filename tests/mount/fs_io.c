/*
 * fs_io.c - reading and writing by calls: append, unlinked files, holes,
 * fallocate, copies inside the kernel, O_DIRECT.
 */
#include <fcntl.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include "child.h"
#include "ways.h"

#define KIB 1024
#define MIB (1024 * 1024)

/* Bytes that differ from page to page and inside a page. */
static void fill(char *buf, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1103515245 + 12345;
		buf[i] = seed >> 16;
	}
}

static void make_file(const char *name, size_t size)
{
	char *bytes = malloc(size + 1);
	int fd[2];

	fill(bytes, size, size);
	SAME_FD_OK(fd, openat(at, name, O_CREAT | O_TRUNC | O_WRONLY, 0644));
	for (size_t done = 0; done < size;)
		done += SAME_OK(write(fd[side], bytes + done, size - done));
	SAME_CLOSE(fd);
	free(bytes);
}

static void same_bytes(const int fd[2])
{
	static char buf[2][256 * KIB];
	off_t off = 0;
	long n;

	while ((n = SAME_OK(pread(fd[side], buf[side], sizeof(buf[0]), off))) > 0) {
		for (long i = 0; i < n; i++)
			cr_assert_eq(buf[0][i], buf[1][i], "byte %ld is %02x, plain %02x",
				     (long)off + i, buf[0][i] & 0xff, buf[1][i] & 0xff);
		off += n;
	}
}

EACH_WAY(fs_io, reads_and_writes_of_every_alignment)
{
	static char bytes[40000], got[2][50000];
	unsigned rnd = 7;
	int fd[2];

	fill(bytes, sizeof(bytes), 1);
	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_RDWR, 0644));
	for (int i = 0; i < 400; i++) {
		rnd = rnd * 1103515245 + 12345;
		off_t off = (rnd >> 8) % 300000;
		size_t len = rnd % sizeof(bytes);

		if (i % 3)
			SAME_OK(pwrite(fd[side], bytes, len, off));
		else
			SAME_OK(pread(fd[side], got[side], len, off));
		cr_assert_arr_eq(got[0], got[1], sizeof(got[0]));
	}
	same_bytes(fd);
	SAME_CLOSE(fd);
	way_unmount();
	way_remount();
	both_same_tree();
}

EACH_WAY(fs_io, reads_end_at_the_end_of_the_file)
{
	char buf[2][100];
	int fd[2];

	make_file("f", 4100);
	SAME_FD_OK(fd, openat(at, "f", O_RDWR));
	SAME_OK(pread(fd[side], buf[side], 100, 4090));
	SAME_OK(pread(fd[side], buf[side], 100, 4100));
	SAME_OK(pread(fd[side], buf[side], 100, 1 << 30));
	SAME_ERR(pread(fd[side], buf[side], 100, -1), EINVAL);
	SAME_OK(lseek(fd[side], -10, SEEK_END));
	SAME_OK(read(fd[side], buf[side], 100));
	SAME_ERR(lseek(fd[side], -1, SEEK_SET), EINVAL);
	SAME_CLOSE(fd);
	SAME_FD_OK(fd, openat(at, "f", O_WRONLY));
	SAME_ERR(read(fd[side], buf[side], 1), EBADF);
	SAME_OK(pwrite(fd[side], "x", 1, 9));
	SAME_CLOSE(fd);
	SAME_FD_OK(fd, openat(at, "f", O_RDONLY));
	SAME_ERR(write(fd[side], buf[side], 1), EBADF);
	same_bytes(fd);
	SAME_CLOSE(fd);
}

EACH_WAY(fs_io, vectors)
{
	char a[5], b[7000], c[3];
	struct iovec v[] = { { a, sizeof(a) }, { b, sizeof(b) }, { c, sizeof(c) } };
	int fd[2];

	fill(a, sizeof(a), 1);
	fill(b, sizeof(b), 2);
	fill(c, sizeof(c), 3);
	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_RDWR, 0644));
	SAME_OK(writev(fd[side], v, 3));
	SAME_OK(pwritev(fd[side], v, 3, 3000));
	SAME_OK(preadv(fd[side], v, 3, 1));
	same_bytes(fd);
	SAME_CLOSE(fd);
}

EACH_WAY(fs_io, an_unlinked_open_file_lives)
{
	struct stat st[2];
	int fd[2];

	make_file("f", 100000);
	SAME_FD_OK(fd, openat(at, "f", O_RDWR));
	SAME_OK(unlinkat(at, "f", 0));
	SAME_OK(fstat(fd[side], &st[side]));
	both_same_stat(st, "unlinked");
	cr_assert_eq(st[ON_MOUNT].st_nlink, 0u);
	same_bytes(fd);
	SAME_OK(pwrite(fd[side], "after the end", 13, 200000));
	SAME_OK(ftruncate(fd[side], 150000));
	SAME_OK(fchmod(fd[side], 0600));
	SAME_OK(fsync(fd[side]));
	SAME_OK(fstat(fd[side], &st[side]));
	both_same_stat(st, "unlinked and changed");
	same_bytes(fd);
	/* A new file of the old name is another file. */
	make_file("f", 10);
	SAME_OK(pwrite(fd[side], "old", 3, 0));
	same_bytes(fd);
	SAME_CLOSE(fd);
	both_same_tree();
}

EACH_WAY(fs_io, a_file_that_was_renamed_over_lives)
{
	int fd[2];

	make_file("old", 50000);
	make_file("new", 60000);
	SAME_FD_OK(fd, openat(at, "old", O_RDWR));
	SAME_OK(renameat(at, "new", at, "old"));
	SAME_OK(pwrite(fd[side], "mark", 4, 4095));
	same_bytes(fd);
	SAME_CLOSE(fd);
	both_same_tree();
}

static int append_lines(void *arg)
{
	int fd = openat(both_root[ON_MOUNT], "log", O_WRONLY | O_APPEND);
	char line[16];

	CHILD_CHECK(fd >= 0);
	for (int i = 0; i < 1000; i++) {
		snprintf(line, sizeof(line), "%s%08d\n", (const char *)arg, i);
		CHILD_CHECK(write(fd, line, 10) == 10);
	}
	CHILD_CHECK(close(fd) == 0);
	return 0;
}

EACH_WAY(fs_io, two_processes_append_without_losing_a_line)
{
	static char text[2 * 1000 * 10 + 1];
	int fd, next[2] = { 0, 0 }, n;
	pid_t a, b;

	SAME_OK(mknodat(at, "log", S_IFREG | 0644, 0));
	a = child_start(append_lines, "a");
	b = child_start(append_lines, "b");
	cr_assert_eq(child_wait(a), 0);
	cr_assert_eq(child_wait(b), 0);
	fd = openat(both_root[ON_MOUNT], "log", O_RDONLY);
	cr_assert_eq(read(fd, text, sizeof(text)), 20000);
	close(fd);
	for (char *line = text; line < text + 20000; line += 10) {
		int who = line[0] - 'a';

		cr_assert(who == 0 || who == 1);
		cr_assert_eq(sscanf(line + 1, "%8d\n", &n), 1);
		cr_assert_eq(n, next[who]++);
	}
	way_unmount();
	backing_holds("log", text, 20000);
}

EACH_WAY(fs_io, holes_and_data)
{
	char mark = 'x';
	int fd[2];

	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_RDWR, 0644));
	SAME_OK(ftruncate(fd[side], 16 * MIB));
	SAME_OK(pwrite(fd[side], &mark, 1, 4 * MIB));
	SAME_OK(pwrite(fd[side], &mark, 1, 9 * MIB + 5));
	for (int synced = 0; synced < 2; synced++) {
		SAME_OK(lseek(fd[side], 0, SEEK_DATA));
		SAME_OK(lseek(fd[side], 0, SEEK_HOLE));
		SAME_OK(lseek(fd[side], 4 * MIB, SEEK_DATA));
		SAME_OK(lseek(fd[side], 4 * MIB, SEEK_HOLE));
		SAME_OK(lseek(fd[side], 5 * MIB, SEEK_DATA));
		SAME_OK(lseek(fd[side], 9 * MIB, SEEK_HOLE));
		SAME_ERR(lseek(fd[side], 10 * MIB, SEEK_DATA), ENXIO);
		SAME_OK(lseek(fd[side], 10 * MIB, SEEK_HOLE));
		SAME_ERR(lseek(fd[side], 16 * MIB, SEEK_DATA), ENXIO);
		SAME_ERR(lseek(fd[side], 16 * MIB, SEEK_HOLE), ENXIO);
		SAME_OK(fsync(fd[side]));
	}
	same_bytes(fd);
	SAME_CLOSE(fd);
}

EACH_WAY(fs_io, what_is_stored_through_a_mapping_is_data_and_no_hole)
{
	int fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	char *p;

	cr_assert_eq(ftruncate(fd, 4 * MIB), 0);
	p = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert_neq(p, MAP_FAILED);
	p[2 * MIB + 5] = 'x';
	/* A local file system may call more than the page that was touched data. */
	cr_assert_eq(lseek(fd, 0, SEEK_DATA), 2 * MIB, "%s", strerror(errno));
	munmap(p, 4 * MIB);
	close(fd);
}

/* EOPNOTSUPP on both sides skips the test. */
static void allocate(const int fd[2], int mode, off_t off, off_t len)
{
	if (SAME(fallocate(fd[side], mode, off, len)) < 0) {
		if (errno == EOPNOTSUPP)
			WAY_SKIP("fallocate: not on the file system of the test");
		cr_assert_fail("fallocate(%d, %ld, %ld): %s", mode, (long)off, (long)len,
			       strerror(errno));
	}
}

static void same_size(const int fd[2], off_t size)
{
	struct stat st[2];

	SAME_OK(fstat(fd[side], &st[side]));
	both_same_stat(st, "after fallocate");
	cr_assert_eq(st[ON_MOUNT].st_size, size);
}

EACH_WAY(fs_io, fallocate_reserves_and_grows)
{
	struct stat st;
	int fd[2];

	make_file("f", 10000);
	SAME_FD_OK(fd, openat(at, "f", O_RDWR));
	allocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 * MIB);
	same_size(fd, 10000);
	cr_assert_eq(fstat(fd[ON_MOUNT], &st), 0);
	cr_assert_geq(st.st_blocks * 512, 1 * MIB, "the blocks are reserved");
	allocate(fd, 0, 5000, 100000);
	same_size(fd, 105000);
	same_bytes(fd);
	SAME_ERR(fallocate(fd[side], 0, 0, 0), EINVAL);
	SAME_ERR(fallocate(fd[side], 0, -1, 10), EINVAL);
	SAME_CLOSE(fd);
	SAME_FD_OK(fd, openat(at, "f", O_RDONLY));
	SAME_ERR(fallocate(fd[side], 0, 0, 10), EBADF);
	SAME_CLOSE(fd);
	both_same_tree();
}

EACH_WAY(fs_io, fallocate_punches_and_zeroes)
{
	int fd[2];

	make_file("f", 1 * MIB);
	SAME_FD_OK(fd, openat(at, "f", O_RDWR));
	/* Some pages are dirty when their contents go. */
	SAME_OK(pwrite(fd[side], "dirty", 5, 100 * KIB));
	SAME_OK(pwrite(fd[side], "dirty", 5, 300 * KIB));
	allocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 50001, 150000);
	same_bytes(fd);
	SAME_OK(pwrite(fd[side], "again", 5, 100 * KIB));
	same_bytes(fd);
	allocate(fd, FALLOC_FL_ZERO_RANGE, 300 * KIB - 7, 50000);
	same_bytes(fd);
	allocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 1 * MIB - 100, 5000);
	same_size(fd, 1 * MIB);
	allocate(fd, FALLOC_FL_ZERO_RANGE, 1 * MIB - 100, 5000);
	same_size(fd, 1 * MIB + 4900);
	same_bytes(fd);
	SAME_ERR(fallocate(fd[side], FALLOC_FL_PUNCH_HOLE, 0, 10), EOPNOTSUPP);
	SAME_CLOSE(fd);
	way_unmount();
	way_remount();
	both_same_tree();
}

/* What is punched before it was stored is never stored, but counts for the size. */
EACH_WAY(fs_io, a_file_whose_end_was_punched_keeps_its_size)
{
	static const char bytes[12288] = "x";
	int fd[2];

	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_RDWR, 0644));
	SAME_OK(write(fd[side], bytes, 12288));
	allocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192);
	same_size(fd, 12288);
	SAME_CLOSE(fd);
	SAME_FD_OK(fd, openat(at, "g", O_CREAT | O_RDWR, 0644));
	SAME_OK(write(fd[side], bytes, 10000));
	allocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, 65536);
	same_size(fd, 10000);
	SAME_CLOSE(fd);
	way_unmount();
	way_remount();
	both_same_tree();
}

/* All of it, however little a call may copy: bytes copied, or -1. */
static long copy_all(int from, off_t from_off, int to, off_t to_off, size_t len)
{
	size_t done = 0;
	ssize_t n;

	do {
		n = copy_file_range(from, &from_off, to, &to_off, len - done, 0);
		if (n < 0)
			return -1;
		done += n;
	} while (n > 0 && done < len);
	return done;
}

EACH_WAY(fs_io, copy_file_range_between_files)
{
	int a[2], b[2];

	make_file("a", 3 * MIB + 123);
	make_file("b", 100000);
	SAME_FD_OK(a, openat(at, "a", O_RDWR));
	SAME_FD_OK(b, openat(at, "b", O_RDWR));
	/* Not on storage yet. */
	SAME_OK(pwrite(a[side], "dirty", 5, 9000));
	SAME_OK(copy_all(a[side], 5001, b[side], 7, 50000));
	same_bytes(b);
	cr_assert_eq(SAME_OK(copy_all(a[side], 0, b[side], 11, 4 * MIB)), 3 * MIB + 123);
	same_bytes(b);
	cr_assert_eq(SAME_OK(copy_all(a[side], 4 * MIB, b[side], 0, 10)), 0);
	SAME_ERR(copy_file_range(a[side], NULL, b[side], NULL, 10, 1), EINVAL);
	SAME_CLOSE(a);
	SAME_CLOSE(b);
	way_unmount();
	way_remount();
	both_same_tree();
}

EACH_WAY(fs_io, copy_file_range_within_a_file)
{
	int fd[2];

	make_file("f", 200000);
	SAME_FD_OK(fd, openat(at, "f", O_RDWR));
	SAME_OK(copy_all(fd[side], 100, fd[side], 100000, 50000));
	same_bytes(fd);
	SAME_OK(copy_all(fd[side], 0, fd[side], 200000, 4096));
	same_bytes(fd);
	/* Overlapping. */
	SAME_ERR(copy_all(fd[side], 0, fd[side], 100, 4096), EINVAL);
	SAME_CLOSE(fd);
	both_same_tree();
}

static int open_special(int at, const char *name, mode_t type)
{
	if (mknodat(at, name, type | 0666, makedev(1, 3)))
		return -1;
	return openat(at, name, O_RDWR);
}

/* As xfstests generic/434 has it. */
EACH_WAY(fs_io, copy_file_range_refuses_what_it_refuses_below)
{
	int from[2], to[2], other[2];
	loff_t where, end = INT64_MAX - 50;
	struct rlimit no_limit, limit;

	make_file("from", 1000);
	make_file("to", 0);
	SAME_FD_OK(from, openat(at, "from", O_RDWR));
	SAME_FD_OK(to, openat(at, "to", O_RDWR));
#define COPY(in, out) copy_file_range((in)[side], (where = 0, &where), (out)[side], NULL, 100, 0)
	/* Beyond the end of what is copied there is nothing. */
	for (off_t beyond = 1000; beyond < 100000; beyond *= 7)
		cr_assert_eq(SAME_OK(copy_file_range(from[side], (where = beyond, &where), to[side], NULL, 100, 0)), 0);
	cr_assert_eq(SAME_OK(copy_file_range(from[side], NULL, to[side], NULL, 0, 0)), 0);
	SAME(copy_file_range(from[side], (where = 0, &where), to[side], &end, 100, 0));
	SAME(copy_file_range(from[side], &end, to[side], NULL, 100, 0));
	SAME(copy_file_range(from[side], (where = -1, &where), to[side], NULL, 100, 0));
	both_same_tree();

	SAME_FD_OK(other, openat(at, "to", O_RDONLY));
	SAME_ERR(COPY(from, other), EBADF);
	SAME_CLOSE(other);
	SAME_FD_OK(other, openat(at, "to", O_WRONLY | O_APPEND));
	SAME_ERR(COPY(from, other), EBADF);
	SAME_ERR(COPY(other, to), EBADF);
	SAME_CLOSE(other);
	SAME_FD_OK(other, openat(at, ".", O_RDONLY | O_DIRECTORY));
	SAME_ERR(COPY(other, to), EISDIR);
	SAME_CLOSE(other);
	SAME_FD_OK(other, openat(at, "from", O_PATH));
	SAME_ERR(COPY(other, to), EBADF);
	SAME_CLOSE(other);
	/* Not every user can open it, and nobody if the test's directory is mounted nodev. */
	SAME_FD(other, open_special(at, "null", S_IFCHR));
	if (other[ON_MOUNT] >= 0) {
		SAME_ERR(COPY(from, other), EINVAL);
		SAME_ERR(COPY(other, to), EINVAL);
		SAME_CLOSE(other);
	}
	SAME_FD_OK(other, open_special(at, "fifo", S_IFIFO));
	SAME_ERR(COPY(from, other), EINVAL);
	SAME_ERR(COPY(other, to), EINVAL);
	SAME_CLOSE(other);
	both_same_tree();

	/* A file that is as large as it may be does not grow. */
	cr_assert_eq(getrlimit(RLIMIT_FSIZE, &no_limit), 0);
	limit = no_limit;
	limit.rlim_cur = 150;
	signal(SIGXFSZ, SIG_IGN);
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	cr_assert_eq(SAME_OK(COPY(from, to)), 100);
	cr_assert_eq(SAME_OK(COPY(from, to)), 50);
	SAME_ERR(COPY(from, to), EFBIG);
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &no_limit), 0);
#undef COPY
	SAME_CLOSE(from);
	SAME_CLOSE(to);
	both_same_tree();
}

static long send_all(int to, int from, off_t off, size_t len)
{
	size_t done = 0;
	ssize_t n;

	do {
		n = sendfile(to, from, &off, len - done);
		if (n < 0)
			return -1;
		done += n;
	} while (n > 0 && done < len);
	return done;
}

EACH_WAY(fs_io, sendfile_and_splice)
{
	int a[2], b[2], p[2];
	off_t off;

	make_file("a", 200000);
	make_file("b", 10);
	SAME_FD_OK(a, openat(at, "a", O_RDWR));
	SAME_FD_OK(b, openat(at, "b", O_RDWR));
	SAME_OK(pwrite(a[side], "dirty", 5, 9000));
	SAME_OK(send_all(b[side], a[side], 1000, 150000));
	same_bytes(b);
	cr_assert_eq(pipe(p), 0);
	for (int i = 0; i < 10; i++) {
		SAME_OK((off = 4000 * i + 1, splice(a[side], &off, p[1], NULL, 4096, 0)));
		/* Both sides' pages are in the pipe now, in order. */
		SAME_OK((off = 70000 + 4096 * i, splice(p[0], NULL, b[side], &off, 4096, 0)));
	}
	same_bytes(b);
	close(p[0]);
	close(p[1]);
	SAME_CLOSE(a);
	SAME_CLOSE(b);
	both_same_tree();
}

EACH_WAY(fs_io, direct_io_agrees_with_cached_io)
{
	char *page[2];
	int fd[2], direct[2];

	for (int side = 0; side < 2; side++)
		cr_assert_eq(posix_memalign((void **)&page[side], 4096, 64 * KIB), 0);
	make_file("f", 256 * KIB);
	if (openat(both_root[ON_PLAIN], "f", O_RDWR | O_DIRECT) < 0)
		WAY_SKIP("O_DIRECT: not on the file system of the test");
	SAME_FD_OK(fd, openat(at, "f", O_RDWR));
	SAME_FD_OK(direct, openat(at, "f", O_RDWR | O_DIRECT));
	for (int i = 0; i < 10; i++) {
		/* Cached and dirty, then read past the cache. */
		SAME_OK(pwrite(fd[side], "cached", 6, 20000 * i + 3));
		SAME_OK(pread(direct[side], page[side], 64 * KIB, 16 * KIB * i));
		cr_assert_arr_eq(page[0], page[1], 64 * KIB);
		/* Written past the cache, then read from it. */
		fill(page[0], 8 * KIB, i);
		fill(page[1], 8 * KIB, i);
		SAME_OK(pwrite(direct[side], page[side], 8 * KIB, 24 * KIB * i));
		same_bytes(fd);
	}
	SAME_OK(pwrite(direct[side], page[side], 64 * KIB, 256 * KIB));
	same_bytes(fd);
	SAME_CLOSE(fd);
	SAME_CLOSE(direct);
	free(page[0]);
	free(page[1]);
	way_unmount();
	way_remount();
	both_same_tree();
}

EACH_WAY(fs_io, everything_synced_is_in_the_backing_directory)
{
	static char bytes[3 * MIB + 17];
	int fd, dir;

	fill(bytes, sizeof(bytes), 9);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
	cr_assert_eq(fdatasync(fd), 0);
	backing_holds("f", bytes, sizeof(bytes));
	bytes[1 * MIB] ^= 1;
	cr_assert_eq(pwrite(fd, bytes + 1 * MIB, 1, 1 * MIB), 1);
	cr_assert_eq(fsync(fd), 0);
	backing_holds("f", bytes, sizeof(bytes));
	bytes[6] ^= 1;
	cr_assert_eq(pwrite(fd, bytes + 6, 1, 6), 1);
	cr_assert_eq(close(fd), 0);
	backing_holds("f", bytes, sizeof(bytes));
	dir = openat(both_root[ON_MOUNT], ".", O_RDONLY | O_DIRECTORY);
	cr_assert_eq(fsync(dir), 0);
	close(dir);
}

/* What fsync said is stored survives the daemon. */
EACH_WAY(fs_io, everything_synced_survives_a_crash)
{
	static char bytes[1 * MIB];
	int fd;

	fill(bytes, sizeof(bytes), 10);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
	cr_assert_eq(fsync(fd), 0);
	both_close();
	mnt_crash(&mnt);
	errno = 0;
	cr_assert_eq(fsync(fd), -1);
	cr_assert(errno == ENOTCONN || errno == ECONNABORTED, "%s", strerror(errno));
	close(fd);
	backing_holds("f", bytes, sizeof(bytes));
	way_remount();
	cr_assert_eq(unlinkat(both_root[ON_MOUNT], "f", 0), 0);
}

EACH_WAY_BARE(fs_io, a_file_larger_than_home_memory)
{
	static const char *const args[] = { "--home", "8M", "--device", "none", NULL };
	static char bytes[1 * MIB], got[1 * MIB];
	int fd;

	way_start(args);
	fd = openat(both_root[ON_MOUNT], "big", O_CREAT | O_RDWR, 0644);
	for (int i = 0; i < 48; i++) {
		fill(bytes, sizeof(bytes), i);
		cr_assert_eq(pwrite(fd, bytes, sizeof(bytes), (off_t)i * MIB), 1 * MIB);
	}
	for (int i = 47; i >= 0; i--) {
		fill(bytes, sizeof(bytes), i);
		cr_assert_eq(pread(fd, got, sizeof(got), (off_t)i * MIB), 1 * MIB);
		cr_assert_arr_eq(got, bytes, sizeof(bytes));
	}
	close(fd);
	way_unmount();
	fd = openat(mnt.backing_fd, "big", O_RDONLY);
	for (int i = 0; i < 48; i++) {
		fill(bytes, sizeof(bytes), i);
		cr_assert_eq(pread(fd, got, sizeof(got), (off_t)i * MIB), 1 * MIB);
		cr_assert_arr_eq(got, bytes, sizeof(bytes));
	}
	close(fd);
}
