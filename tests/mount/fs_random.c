/*
 * fs_random.c - random operations, the same on the mount and on a plain directory.
 *
 * What comes back must agree at each step, and the trees in the end. While files are worked on, a
 * device acquires and releases them all the time and writes nothing: nobody may notice.
 *
 * The seeds are fixed. To try others: SEED=1234 mount_fs_random.
 */
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "ways.h"

#define MIB (1024 * 1024)
#define RW (PROT_READ | PROT_WRITE)

static uint64_t seed;

static void start_random(uint64_t usual)
{
	const char *other = getenv("SEED");

	seed = other ? usual + strtoull(other, NULL, 10) * 7919 : usual;
}

static uint32_t rnd(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (seed >> 16) % below;
}

/* ---- the contents of one file ---- */

#define MOST (3 * MIB)		/* that a file grows to */
#define LONGEST 200000		/* of one operation */

static int fd[2], direct[2];
static char *map[2];		/* MOST bytes of each */
static char in[LONGEST], out[2][LONGEST];
static char *aligned[2];

/* Often at the borders of pages and chunks. */
static off_t offset(off_t below)
{
	static const off_t near[] = { 4096, 8192, 65536, 2 * MIB };
	off_t off;

	if (below <= 0)
		return 0;
	if (rnd(2))
		return rnd(below);
	off = near[rnd(4)] * (1 + rnd(4)) + rnd(7) - 3;
	return off < below ? off : off % below;
}

static size_t length(void)
{
	static const size_t most[] = { 10, 5000, 5000, LONGEST };

	return 1 + rnd(most[rnd(4)]);
}

static off_t size_of(void)
{
	struct stat st[2];

	SAME_OK(fstat(fd[side], &st[side]));
	both_same_stat(st, "the file");
	return st[ON_MOUNT].st_size;
}

static void same_out(size_t n, off_t off)
{
	for (size_t i = 0; i < n; i++)
		cr_assert_eq(out[0][i], out[1][i], "byte %ld is %02x, plain %02x", (long)(off + i),
			     out[0][i] & 0xff, out[1][i] & 0xff);
}

static void fill_in(size_t n)
{
	char c = rnd(256);

	for (size_t i = 0; i < n; i++)
		in[i] = c + i / 7;
}

static void do_write(void)
{
	off_t off = offset(MOST - LONGEST);
	size_t n = length();

	fill_in(n);
	SAME_OK(pwrite(fd[side], in, n, off));
}

static void do_read(void)
{
	off_t off = offset(MOST);
	size_t n = length();

	same_out(SAME_OK(pread(fd[side], out[side], n, off)), off);
}

static void do_map_store(void)
{
	off_t size = size_of(), off = offset(size);
	size_t n = length();

	if (off + (off_t)n > size)
		n = size - off;
	fill_in(n);
	for (int side = 0; side < 2; side++)
		memcpy(map[side] + off, in, n);
	if (rnd(4) == 0)
		SAME_OK(msync(map[side], MOST, MS_SYNC));
}

static void do_map_load(void)
{
	off_t size = size_of(), off = offset(size);
	size_t n = length();

	if (off + (off_t)n > size)
		n = size - off;
	for (int side = 0; side < 2; side++)
		memcpy(out[side], map[side] + off, n);
	same_out(n, off);
}

static void do_truncate(void)
{
	off_t size = offset(MOST - LONGEST);

	SAME_OK(ftruncate(fd[side], size));
}

static void do_allocate(void)
{
	static const int modes[] = { FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_ZERO_RANGE, 0, FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE };
	off_t off = offset(MOST - LONGEST);
	size_t n = length();
	int mode = modes[rnd(5)];

	/* Not all file systems can. */
	SAME(fallocate(fd[side], mode, off, n));
}

static long copy_all(int f, off_t from, off_t to, size_t n)
{
	size_t done = 0;
	ssize_t r;

	do {
		r = copy_file_range(f, &from, f, &to, n - done, 0);
		if (r < 0)
			return -1;
		done += r;
	} while (r > 0 && done < n);
	return done;
}

static void do_copy(void)
{
	off_t from = offset(MOST - LONGEST), to = offset(MOST - LONGEST);
	size_t n = length();

	SAME(copy_all(fd[side], from, to, n));
}

static void do_direct(void)
{
	off_t off = offset(MOST - LONGEST) & ~4095l;
	size_t n = (length() + 4095) & ~4095ul;

	if (n > LONGEST)
		n = LONGEST & ~4095ul;
	if (direct[ON_PLAIN] < 0)
		return;
	if (rnd(2)) {
		fill_in(n);
		for (int side = 0; side < 2; side++)
			memcpy(aligned[side], in, n);
		SAME_OK(pwrite(direct[side], aligned[side], n, off));
	} else {
		n = SAME_OK(pread(direct[side], aligned[side], n, off));
		for (int side = 0; side < 2; side++)
			memcpy(out[side], aligned[side], n);
		same_out(n, off);
	}
}

static void do_sync(void)
{
	bool data_only = rnd(2);

	SAME_OK(data_only ? fdatasync(fd[side]) : fsync(fd[side]));
}

static void open_all(void)
{
	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_RDWR, 0644));
	for (int side = 0; side < 2; side++) {
		direct[side] = openat(both_root[side], "f", O_RDWR | O_DIRECT);
		map[side] = mmap(NULL, MOST, RW, MAP_SHARED, fd[side], 0);
		cr_assert_neq(map[side], MAP_FAILED);
	}
}

static void close_all(void)
{
	for (int side = 0; side < 2; side++) {
		munmap(map[side], MOST);
		if (direct[side] >= 0)
			close(direct[side]);
	}
	SAME_CLOSE(fd);
}

static void do_reopen(void)
{
	close_all();
	open_all();
}

static void (*const file_op[])(void) = {
	do_write, do_write, do_write, do_read, do_read, do_map_store, do_map_store, do_map_load,
	do_map_load, do_truncate, do_allocate, do_copy, do_direct, do_sync, do_reopen,
};

/* Until it is killed. */
static int acquire_all_the_time(void *ready)
{
	int f = openat(both_root[ON_MOUNT], "f", O_RDWR);
	unsigned char *p = gaia_mmap(MOST, RW, f, 0, 0);

	CHILD_CHECK(p != MAP_FAILED);
	gate_open(*(struct gate *)ready);
	for (unsigned i = 0;; i++) {
		off_t off = i * 12345 % MOST;
		size_t n = 1 + i * 54321 % (MOST - off);

		CHILD_CHECK(gaia_acquire(p + off, n, i % 3 ? RW : PROT_READ) == 0);
		CHILD_CHECK(gaia_release(p + off, n) == 0);
		if (i % 17 == 0)
			CHILD_CHECK(gaia_advise(p, MOST, GAIA_DONTNEED) == 0);
	}
}

static void work_on_a_file(uint64_t with_seed, int steps, bool device)
{
	static const char *const args[] = { "--home", "8M", "--device", "sim:4M",
					    "--writeback-age", "0.02", NULL };
	struct gate ready = gate_make();
	pid_t child = 0;

	start_random(with_seed);
	way_start(args);
	for (int side = 0; side < 2; side++)
		cr_assert_eq(posix_memalign((void **)&aligned[side], 4096, LONGEST), 0);
	open_all();
	if (device) {
		child = child_start(acquire_all_the_time, &ready);
		cr_assert(gate_pass(ready));
	}
	for (int i = 0; i < steps; i++)
		file_op[rnd(sizeof(file_op) / sizeof(file_op[0]))]();
	if (child)
		child_kill(child);
	both_same_tree();
	close_all();
	way_unmount();
	way_remount();
	both_same_tree();
}

EACH_WAY_BARE(fs_random, a_file)
{
	work_on_a_file(20240601, 2500, false);
}

EACH_WAY_BARE(fs_random, a_file_that_a_device_acquires_all_the_time)
{
	work_on_a_file(20240602, 1500, true);
}

EACH_WAY_BARE(fs_random, a_file_that_a_device_acquires_all_the_time_again)
{
	work_on_a_file(20240603, 1500, true);
}

/* ---- names ---- */

#define DIRS 6
#define NAMES 8

static const char *name(void)
{
	static char buf[4][64];
	static unsigned turn;
	char *s = buf[turn++ % 4];

	switch (rnd(3)) {
	case 0:
		snprintf(s, sizeof(buf[0]), "n%u", rnd(NAMES));
		break;
	case 1:
		snprintf(s, sizeof(buf[0]), "n%u/n%u", rnd(DIRS), rnd(NAMES));
		break;
	default:
		snprintf(s, sizeof(buf[0]), "n%u/n%u/n%u", rnd(DIRS), rnd(DIRS), rnd(NAMES));
	}
	return s;
}

static int write_name(int at, const char *path, const char *text)
{
	int f = openat(at, path, O_CREAT | O_WRONLY | O_APPEND | O_NONBLOCK, 0644), r;

	if (f < 0)
		return -1;
	r = write(f, text, strlen(text));
	close(f);
	return r;
}

static void one_name(int i)
{
	const char *a = name(), *b = name();
	unsigned flag = rnd(2) ? RENAME_EXCHANGE : RENAME_NOREPLACE;
	mode_t mode = 0700 + rnd(64);
	struct stat st[2];
	char text[32];

	snprintf(text, sizeof(text), "%d ", i);
	switch (rnd(14)) {
	case 0:
	case 1:
		SAME(mkdirat(at, a, mode));
		break;
	case 2:
	case 3:
	case 4:
		SAME(write_name(at, a, text));
		break;
	case 5:
		SAME(unlinkat(at, a, 0));
		break;
	case 6:
		SAME(unlinkat(at, a, AT_REMOVEDIR));
		break;
	case 7:
	case 8:
		SAME(renameat(at, a, at, b));
		break;
	case 9:
		SAME(renameat2(at, a, at, b, flag));
		break;
	case 10:
		SAME(linkat(at, a, at, b, 0));
		break;
	case 11:
		SAME(symlinkat(b, at, a));
		break;
	case 12:
		SAME(mknodat(at, a, S_IFIFO | 0600, 0));
		break;
	default:
		if (SAME(fstatat(at, a, &st[side], AT_SYMLINK_NOFOLLOW)) == 0 &&
		    !S_ISDIR(st[0].st_mode))
			both_same_stat(st, a);
	}
}

/* Some files stay open, to be seen through their descriptors whatever happens to their names. */
#define OPEN 5

static void work_on_names(uint64_t with_seed)
{
	static const struct rlimit few = { 200, 200 };
	int kept[OPEN][2];
	struct stat st[2];
	char text[32];

	start_random(with_seed);
	/* Fewer descriptors than names, unless the daemon may raise the limit. */
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	umask(022);
	way_start(NULL);
	for (int k = 0; k < OPEN; k++) {
		snprintf(text, sizeof(text), "n%d", DIRS + k % (NAMES - DIRS));
		SAME_FD_OK(kept[k], openat(at, text, O_CREAT | O_RDWR, 0644));
	}
	for (int i = 0; i < 4000; i++) {
		one_name(i);
		if (i % 50 == 0) {
			int k = rnd(OPEN);

			snprintf(text, sizeof(text), "%d kept ", i);
			SAME_OK(pwrite(kept[k][side], text, strlen(text), i));
			SAME_OK(fstat(kept[k][side], &st[side]));
			both_same_stat(st, "a file that is open");
		}
	}
	both_same_tree();
	for (int k = 0; k < OPEN; k++)
		SAME_CLOSE(kept[k]);
	way_unmount();
	way_remount();
	both_same_tree();
}

EACH_WAY_BARE(fs_random, names)
{
	work_on_names(20240604);
}

EACH_WAY_BARE(fs_random, names_again)
{
	work_on_names(20240605);
}
