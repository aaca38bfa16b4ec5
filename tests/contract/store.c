/*
 * store.c - the contract of store/store.h, over every store; then what is each store's own.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/thread.h"
#include "base/util.h"
#include "gaia/protocol.h"
#include "own_mounts.h"
#include "store/store.h"

#define PAGE ((off_t)GAIA_PAGE)
#define FAR ((off_t)1 << 40)
#define REFS 3

static struct store *store;
static int refs[REFS];

/* A new file, open for both; @path gets its name. */
static int temp_file(char path[PATH_MAX])
{
	const char *tmp = getenv("TMPDIR");
	int fd;

	snprintf(path, PATH_MAX, "%s/gaiafs-store-XXXXXX", tmp ? tmp : "/tmp");
	fd = mkostemp(path, O_CLOEXEC);
	cr_assert_geq(fd, 0, "%s: %s", path, strerror(errno));
	return fd;
}

/*
 * The names go at once: an open descriptor is all that the store needs, and
 * nothing is left behind however a test ends.
 */
static void make_files(void)
{
	for (int i = 0; i < REFS; i++) {
		char path[PATH_MAX];
		int fd = temp_file(path);

		refs[i] = open(path, O_PATH | O_CLOEXEC);
		unlink(path);
		close(fd);
		cr_assert_geq(refs[i], 0);
	}
}

static void setup_dir(void)
{
	make_files();
	cr_assert_eq(store_dir_create(true, false, &store), 0);
}

static void setup_mem(void)
{
	for (int i = 0; i < REFS; i++)
		refs[i] = 1000 - i;
	cr_assert_eq(store_mem_create(&store), 0);
}

static void wrap(void)
{
	struct store *inner = store;

	cr_assert_eq(store_faulty_create(inner, &store), 0);
}

static void setup_faulty_dir(void)
{
	setup_dir();
	wrap();
}

static void setup_faulty_mem(void)
{
	setup_mem();
	wrap();
}

static void teardown(void)
{
	store->ops->destroy(store);
}

TestSuite(dir, .init = setup_dir, .fini = teardown);
TestSuite(mem, .init = setup_mem, .fini = teardown);
TestSuite(faulty_dir, .init = setup_faulty_dir, .fini = teardown);
TestSuite(faulty_mem, .init = setup_faulty_mem, .fini = teardown);

/* One promise, asked of every store. */
#define EACH_STORE(name)                            \
	static void name(void);                     \
	Test(dir, name) { name(); }                 \
	Test(mem, name) { name(); }                 \
	Test(faulty_dir, name) { name(); }          \
	Test(faulty_mem, name) { name(); }          \
	static void name(void)

/* ---- short forms ---- */

static struct store_file *open_ref(int ref, bool write)
{
	struct store_file *f = NULL;

	cr_assert_eq(store_open(store, ref, write, &f), 0);
	cr_assert_eq(f->writable, write);
	return f;
}

static struct store_file *open_file(void)
{
	return open_ref(refs[0], true);
}

static void close_file(struct store_file *f)
{
	f->ops->close(f);
}

static int put(struct store_file *f, const void *buf, size_t len, off_t off)
{
	struct iovec iov = {(void *)buf, len};

	return f->ops->write(f, &iov, 1, off);
}

static ssize_t get(struct store_file *f, void *buf, size_t len, off_t off)
{
	struct iovec iov = {buf, len};

	return f->ops->read(f, &iov, 1, off);
}

/* Bytes that tell where they are. */
static void pattern(char *buf, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = (char)((i * 31 + i / 251 + seed) % 255 + 1); /* never 0 */
}

static void put_pattern(struct store_file *f, size_t len, off_t off, unsigned seed)
{
	char *buf = xmalloc(len);

	pattern(buf, len, seed);
	cr_assert_eq(put(f, buf, len, off), 0);
	free(buf);
}

static void expect_bytes(struct store_file *f, const char *want, size_t len, off_t off)
{
	char *buf = xmalloc(len);
	ssize_t got;

	memset(buf, 0xee, len);
	got = get(f, buf, len, off);
	cr_assert_eq(got, (ssize_t)len, "%zd of %zu at %jd", got, len, (intmax_t)off);
	for (size_t i = 0; i < len; i++)
		cr_assert_eq(buf[i], want[i], "byte %jd is %d, not %d",
			     (intmax_t)(off + (off_t)i), buf[i], want[i]);
	free(buf);
}

static void expect_pattern(struct store_file *f, size_t len, off_t off, unsigned seed)
{
	char *want = xmalloc(len);

	pattern(want, len, seed);
	expect_bytes(f, want, len, off);
	free(want);
}

static void expect_zeros(struct store_file *f, size_t len, off_t off)
{
	char *want = xcalloc(len, 1);

	expect_bytes(f, want, len, off);
	free(want);
}

static struct stat stat_of(struct store_file *f)
{
	struct stat st;

	cr_assert_eq(f->ops->stat(f, &st), 0);
	return st;
}

static void expect_size(struct store_file *f, off_t size)
{
	cr_assert_eq(stat_of(f).st_size, size, "size is %jd, not %jd",
		     (intmax_t)stat_of(f).st_size, (intmax_t)size);
}

static off_t seek_data(struct store_file *f, off_t off)
{
	return f->ops->seek(f, off, SEEK_DATA);
}

static off_t seek_hole(struct store_file *f, off_t off)
{
	return f->ops->seek(f, off, SEEK_HOLE);
}

/* Not every file system has holes, or has these ways of making them. */
static void need_holes(struct store_file *f)
{
	cr_assert_eq(f->ops->truncate(f, 16 * PAGE), 0);
	if (seek_hole(f, 0) != 0)
		cr_skip_test("no holes in the file system of the temporary directory");
}

static void need_mode(struct store_file *f, int mode)
{
	if (f->ops->allocate(f, mode, 0, PAGE) == -EOPNOTSUPP)
		cr_skip_test("no such fallocate in the file system of the temporary directory");
	cr_assert_eq(f->ops->truncate(f, 0), 0);
}

/* ---- reading and writing ---- */

EACH_STORE(a_new_file_is_empty)
{
	struct store_file *f = open_file();
	char byte;

	expect_size(f, 0);
	cr_assert_eq(get(f, &byte, 1, 0), 0);
	cr_assert_eq(get(f, &byte, 1, FAR), 0);
	cr_assert_eq(seek_data(f, 0), -ENXIO);
	cr_assert_eq(seek_hole(f, 0), -ENXIO);
	close_file(f);
}

EACH_STORE(what_was_written_is_read_at_every_alignment)
{
	static const off_t offs[] = {0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE - 1};
	static const size_t lens[] = {1, 2, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 5};
	struct store_file *f = open_file();

	for (size_t i = 0; i < ARRAY_LEN(offs); i++) {
		for (size_t j = 0; j < ARRAY_LEN(lens); j++) {
			off_t end = offs[i] + (off_t)lens[j];

			cr_assert_eq(f->ops->truncate(f, 0), 0);
			put_pattern(f, lens[j], offs[i], 7);
			expect_size(f, end);
			if (offs[i])
				expect_zeros(f, (size_t)offs[i], 0);
			expect_pattern(f, lens[j], offs[i], 7);
		}
	}
	close_file(f);
}

EACH_STORE(a_write_changes_nothing_beside_it)
{
	struct store_file *f = open_file();

	put_pattern(f, 4 * PAGE, 0, 1);
	cr_assert_eq(put(f, "abc", 3, 2 * PAGE - 1), 0);
	expect_pattern(f, 2 * PAGE - 1, 0, 1);
	expect_bytes(f, "abc", 3, 2 * PAGE - 1);
	{
		char want[4 * GAIA_PAGE];

		pattern(want, sizeof(want), 1);
		expect_bytes(f, want + 2 * PAGE + 2, 2 * PAGE - 2, 2 * PAGE + 2);
	}
	expect_size(f, 4 * PAGE);
	close_file(f);
}

EACH_STORE(nothing_written_changes_nothing)
{
	struct store_file *f = open_file();
	struct iovec empty[3] = {{"", 0}, {"", 0}, {"", 0}};

	cr_assert_eq(f->ops->write(f, empty, 0, PAGE), 0);
	cr_assert_eq(f->ops->write(f, empty, 3, PAGE), 0);
	expect_size(f, 0);
	cr_assert_eq(put(f, "x", 1, 0), 0);
	cr_assert_eq(f->ops->read(f, empty, 0, 0), 0);
	cr_assert_eq(f->ops->read(f, empty, 3, 0), 0);
	expect_size(f, 1);
	close_file(f);
}

EACH_STORE(a_read_is_short_at_the_end_of_the_file_only)
{
	struct store_file *f = open_file();
	char buf[3 * GAIA_PAGE];

	put_pattern(f, PAGE + 10, 0, 3);
	cr_assert_eq(get(f, buf, sizeof(buf), 0), PAGE + 10);
	cr_assert_eq(get(f, buf, PAGE + 11, 0), PAGE + 10);
	cr_assert_eq(get(f, buf, PAGE + 10, 0), PAGE + 10);
	cr_assert_eq(get(f, buf, sizeof(buf), PAGE + 9), 1);
	cr_assert_eq(get(f, buf, sizeof(buf), PAGE + 10), 0);
	cr_assert_eq(get(f, buf, sizeof(buf), 2 * PAGE), 0);
	/* Over several buffers too. */
	{
		struct iovec iov[3] = {{buf, 100}, {buf + 100, PAGE}, {buf + 100 + PAGE, PAGE}};

		cr_assert_eq(f->ops->read(f, iov, 3, 0), PAGE + 10);
		cr_assert_eq(f->ops->read(f, iov, 3, PAGE), 10);
	}
	close_file(f);
}

/* Pieces of 0 to 6 bytes, more of them than one system call takes. */
#define PIECES (2 * IOV_MAX + 77)

static size_t cut_up(char *buf, struct iovec *iov)
{
	size_t at = 0;

	for (int i = 0; i < PIECES; i++) {
		iov[i] = (struct iovec){buf + at, (size_t)(i * 5 % 7)};
		at += iov[i].iov_len;
	}
	return at;
}

EACH_STORE(any_number_of_buffers_will_do)
{
	static char from[7 * PIECES], to[7 * PIECES];
	static struct iovec iov[PIECES];
	struct store_file *f = open_file();
	size_t len = cut_up(from, iov);

	pattern(from, len, 9);
	cr_assert_eq(f->ops->write(f, iov, PIECES, 5), 0);
	expect_size(f, 5 + (off_t)len);
	expect_bytes(f, from, len, 5);
	cut_up(to, iov);
	cr_assert_eq(f->ops->read(f, iov, PIECES, 5), (ssize_t)len);
	cr_assert_arr_eq(to, from, len);
	/* Cut by the end of the file, in the second system call's part. */
	memset(to, 0, sizeof(to));
	cr_assert_eq(f->ops->truncate(f, 5 + (off_t)len * 2 / 3), 0);
	cr_assert_eq(f->ops->read(f, iov, PIECES, 5), (ssize_t)(len * 2 / 3));
	cr_assert_arr_eq(to, from, len * 2 / 3);
	close_file(f);
}

static void note_wait(void *n)
{
	++*(unsigned *)n;
}

EACH_STORE(a_thread_that_others_rely_on_reads_and_writes_the_same)
{
	static char from[3 * GAIA_PAGE], to[3 * GAIA_PAGE];
	struct iovec iov = { from, sizeof(from) };
	struct store_file *f = open_file();
	unsigned waits = 0;

	pattern(from, sizeof(from), 4);
	thread_relied_on(note_wait, &waits);
	cr_assert_eq(f->ops->write(f, &iov, 1, 5), 0);
	iov.iov_base = to;
	cr_assert_eq(f->ops->read(f, &iov, 1, 5), (ssize_t)sizeof(to));
	cr_assert_arr_eq(to, from, sizeof(from));
	/* Cut by the end of the file. */
	cr_assert_eq(f->ops->read(f, &iov, 1, 5 + GAIA_PAGE), 2 * GAIA_PAGE);
	cr_assert_arr_eq(to, from + GAIA_PAGE, 2 * GAIA_PAGE);
	cr_assert_eq(f->ops->sync(f, true), 0);
	thread_relied_on(NULL, NULL);
	close_file(f);
}

EACH_STORE(far_offsets_work_and_cost_nothing)
{
	struct store_file *f = open_file();
	char buf[16];

	cr_assert_eq(put(f, "far", 3, FAR - 1), 0);
	expect_size(f, FAR + 2);
	expect_bytes(f, "far", 3, FAR - 1);
	expect_zeros(f, 4 * PAGE, 0);
	expect_zeros(f, 4 * PAGE, FAR / 2 - 1);
	cr_assert_eq(get(f, buf, sizeof(buf), FAR), 2);
	cr_assert_lt(stat_of(f).st_blocks, 10000);
	close_file(f);
}

EACH_STORE(what_was_written_outlives_closing)
{
	struct store_file *f = open_file();
	struct store_file *other;

	put_pattern(f, 3 * PAGE + 1, 0, 5);
	cr_assert_eq(f->ops->sync(f, false), 0);
	close_file(f);
	f = open_file();
	expect_pattern(f, 3 * PAGE + 1, 0, 5);
	/* And two opens at the same time are of one file. */
	other = open_ref(refs[0], false);
	cr_assert_eq(put(f, "new", 3, 10), 0);
	expect_bytes(other, "new", 3, 10);
	cr_assert_eq(f->ops->truncate(f, 5), 0);
	expect_size(other, 5);
	close_file(f);
	expect_pattern(other, 5, 0, 5);
	close_file(other);
}

EACH_STORE(two_refs_are_two_files)
{
	struct store_file *a = open_ref(refs[0], true);
	struct store_file *b = open_ref(refs[1], true);

	cr_assert_eq(put(a, "aaaa", 4, 0), 0);
	cr_assert_eq(put(b, "bb", 2, 0), 0);
	expect_bytes(a, "aaaa", 4, 0);
	expect_bytes(b, "bb", 2, 0);
	expect_size(b, 2);
	cr_assert_neq(stat_of(a).st_ino, stat_of(b).st_ino);
	close_file(a);
	close_file(b);
}

EACH_STORE(a_file_opened_for_reading_is_only_read)
{
	struct store_file *f = open_file();
	struct store_file *ro;

	put_pattern(f, PAGE, 0, 2);
	ro = open_ref(refs[0], false);
	cr_assert_eq(put(ro, "x", 1, 0), -EBADF);
	cr_assert_eq(ro->ops->truncate(ro, 0), -EBADF);
	cr_assert_eq(ro->ops->truncate(ro, 2 * PAGE), -EBADF);
	cr_assert_eq(ro->ops->allocate(ro, 0, 0, 2 * PAGE), -EBADF);
	cr_assert_eq(ro->ops->allocate(ro, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE),
		     -EBADF);
	cr_assert_eq(f->ops->copy_range(f, 0, ro, 2 * PAGE, PAGE), -EBADF);
	cr_assert_eq(ro->ops->sync(ro, false), 0);
	expect_size(ro, PAGE);
	expect_pattern(ro, PAGE, 0, 2);
	close_file(ro);
	close_file(f);
}

EACH_STORE(sync_succeeds_both_ways)
{
	struct store_file *f = open_file();

	cr_assert_eq(f->ops->sync(f, true), 0);
	put_pattern(f, PAGE, 0, 1);
	cr_assert_eq(f->ops->sync(f, true), 0);
	cr_assert_eq(f->ops->sync(f, false), 0);
	expect_pattern(f, PAGE, 0, 1);
	close_file(f);
}

/* ---- size ---- */

EACH_STORE(truncate_brings_no_old_bytes_back)
{
	static const off_t cuts[] = {0, 1, 100, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 7, 3 * PAGE};
	struct store_file *f = open_file();

	for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
		put_pattern(f, 3 * PAGE + 50, 0, 4);
		cr_assert_eq(f->ops->truncate(f, cuts[i]), 0);
		expect_size(f, cuts[i]);
		cr_assert_eq(f->ops->truncate(f, 4 * PAGE), 0);
		expect_size(f, 4 * PAGE);
		if (cuts[i])
			expect_pattern(f, (size_t)cuts[i], 0, 4);
		expect_zeros(f, (size_t)(4 * PAGE - cuts[i]), cuts[i]);
		cr_assert_eq(f->ops->truncate(f, 0), 0);
	}
	/* Extended by a write beyond the end as well. */
	put_pattern(f, 2 * PAGE, 0, 4);
	cr_assert_eq(f->ops->truncate(f, 10), 0);
	cr_assert_eq(put(f, "x", 1, 3 * PAGE), 0);
	expect_zeros(f, 3 * PAGE - 10, 10);
	close_file(f);
}

EACH_STORE(truncate_takes_far_sizes_and_refuses_negative_ones)
{
	struct store_file *f = open_file();

	cr_assert_eq(put(f, "x", 1, 0), 0);
	cr_assert_eq(f->ops->truncate(f, FAR), 0);
	expect_size(f, FAR);
	expect_zeros(f, PAGE, FAR - PAGE);
	cr_assert_eq(f->ops->truncate(f, -1), -EINVAL);
	expect_size(f, FAR);
	cr_assert_eq(f->ops->truncate(f, 1), 0);
	expect_bytes(f, "x", 1, 0);
	close_file(f);
}

EACH_STORE(truncate_frees_blocks)
{
	struct store_file *f = open_file();
	blkcnt_t before;

	put_pattern(f, 256 * PAGE, 0, 4);
	cr_assert_eq(f->ops->sync(f, false), 0); /* delayed allocation is over */
	before = stat_of(f).st_blocks;
	cr_assert_eq(f->ops->truncate(f, PAGE), 0);
	cr_assert_lt(stat_of(f).st_blocks, before);
	close_file(f);
}

/* ---- holes ---- */

EACH_STORE(seek_finds_data_and_holes)
{
	struct store_file *f = open_file();
	const off_t a = 16 * PAGE, b = 1024 * PAGE;

	need_holes(f);
	put_pattern(f, 2 * PAGE, a, 1);
	put_pattern(f, 10, b, 1);
	cr_assert_eq(seek_data(f, 0), a);
	cr_assert_eq(seek_data(f, a - 1), a);
	cr_assert_eq(seek_data(f, a), a);
	cr_assert_eq(seek_data(f, a + 5), a + 5);
	cr_assert_eq(seek_data(f, a + 2 * PAGE), b);
	cr_assert_eq(seek_hole(f, 0), 0);
	cr_assert_eq(seek_hole(f, a - 1), a - 1);
	cr_assert_eq(seek_hole(f, a), a + 2 * PAGE);
	cr_assert_eq(seek_hole(f, a + PAGE + 1), a + 2 * PAGE);
	/* The end of the file is a hole, and no data follows. */
	cr_assert_eq(seek_hole(f, b), b + 10);
	cr_assert_eq(seek_data(f, b + 9), b + 9);
	cr_assert_eq(f->ops->truncate(f, 2 * b), 0);
	cr_assert_eq(seek_data(f, b + PAGE), -ENXIO);
	cr_assert_eq(seek_hole(f, 2 * b - 1), 2 * b - 1);
	close_file(f);
}

EACH_STORE(seek_refuses_what_is_outside_the_file)
{
	struct store_file *f = open_file();

	put_pattern(f, 100, 0, 1);
	cr_assert_eq(seek_data(f, 99), 99);
	cr_assert_eq(seek_hole(f, 99), 100);
	cr_assert_eq(seek_data(f, 100), -ENXIO);
	cr_assert_eq(seek_hole(f, 100), -ENXIO);
	cr_assert_eq(seek_data(f, -1), -ENXIO);
	cr_assert_eq(seek_hole(f, -1), -ENXIO);
	cr_assert_eq(f->ops->seek(f, 0, SEEK_SET), -EINVAL);
	cr_assert_eq(f->ops->seek(f, 0, SEEK_END), -EINVAL);
	close_file(f);
}

EACH_STORE(allocate_extends_and_keeps_what_is_there)
{
	struct store_file *f = open_file();

	need_mode(f, 0);
	put_pattern(f, PAGE + 10, 0, 6);
	cr_assert_eq(f->ops->allocate(f, 0, 0, PAGE), 0);
	expect_size(f, PAGE + 10);
	cr_assert_eq(f->ops->allocate(f, 0, PAGE, 3 * PAGE + 1), 0);
	expect_size(f, 4 * PAGE + 1);
	expect_pattern(f, PAGE + 10, 0, 6);
	expect_zeros(f, 3 * PAGE - 9, PAGE + 10);
	close_file(f);
}

EACH_STORE(allocate_can_keep_the_size)
{
	struct store_file *f = open_file();

	need_mode(f, FALLOC_FL_KEEP_SIZE);
	put_pattern(f, 10, 0, 6);
	cr_assert_eq(f->ops->allocate(f, FALLOC_FL_KEEP_SIZE, 0, 8 * PAGE), 0);
	expect_size(f, 10);
	cr_assert_eq(f->ops->truncate(f, 2 * PAGE), 0);
	expect_pattern(f, 10, 0, 6);
	expect_zeros(f, 2 * PAGE - 10, 10);
	close_file(f);
}

EACH_STORE(punch_zeroes_exactly_the_range)
{
	static const struct {
		off_t off, len;
	} cases[] = {
		{0, 1}, {0, PAGE}, {PAGE, PAGE}, {100, 200}, {100, PAGE}, {PAGE - 1, 2},
		{PAGE - 1, 2 * PAGE + 2}, {PAGE, 2 * PAGE}, {3 * PAGE, 2 * PAGE}, {0, 4 * PAGE},
		{4 * PAGE - 1, 100}, {4 * PAGE, PAGE}, {FAR, PAGE},
	};
	struct store_file *f = open_file();
	char want[4 * GAIA_PAGE];

	need_mode(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		off_t from = MIN(cases[i].off, (off_t)sizeof(want));
		off_t to = MIN(cases[i].off + cases[i].len, (off_t)sizeof(want));

		put_pattern(f, sizeof(want), 0, 8);
		pattern(want, sizeof(want), 8);
		memset(want + from, 0, (size_t)(to - from));
		cr_assert_eq(f->ops->allocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					      cases[i].off, cases[i].len), 0);
		expect_size(f, sizeof(want));
		expect_bytes(f, want, sizeof(want), 0);
	}
	close_file(f);
}

EACH_STORE(punch_makes_holes_and_frees_blocks)
{
	struct store_file *f = open_file();
	blkcnt_t before;

	need_mode(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
	need_holes(f);
	put_pattern(f, 64 * PAGE, 0, 8);
	cr_assert_eq(f->ops->sync(f, false), 0);
	before = stat_of(f).st_blocks;
	cr_assert_eq(f->ops->allocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 16 * PAGE,
				      32 * PAGE), 0);
	cr_assert_lt(stat_of(f).st_blocks, before);
	cr_assert_eq(seek_hole(f, 0), 16 * PAGE);
	cr_assert_eq(seek_data(f, 16 * PAGE), 48 * PAGE);
	close_file(f);
}

EACH_STORE(zero_range_zeroes_and_may_extend)
{
	struct store_file *f = open_file();

	need_mode(f, FALLOC_FL_ZERO_RANGE);
	put_pattern(f, 2 * PAGE, 0, 3);
	cr_assert_eq(f->ops->allocate(f, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, PAGE + 5,
				      4 * PAGE), 0);
	expect_size(f, 2 * PAGE);
	expect_pattern(f, PAGE + 5, 0, 3);
	expect_zeros(f, PAGE - 5, PAGE + 5);
	cr_assert_eq(f->ops->allocate(f, FALLOC_FL_ZERO_RANGE, 10, 3 * PAGE), 0);
	expect_size(f, 3 * PAGE + 10);
	expect_pattern(f, 10, 0, 3);
	expect_zeros(f, 3 * PAGE, 10);
	close_file(f);
}

EACH_STORE(allocate_refuses_what_makes_no_sense)
{
	struct store_file *f = open_file();

	put_pattern(f, 2 * PAGE, 0, 3);
	cr_assert_eq(f->ops->allocate(f, 0, 0, 0), -EINVAL);
	cr_assert_eq(f->ops->allocate(f, 0, -1, 10), -EINVAL);
	cr_assert_eq(f->ops->allocate(f, 0, 0, -1), -EINVAL);
	cr_assert_eq(f->ops->allocate(f, 0, INT64_MAX, 2), -EFBIG);
	cr_assert_eq(f->ops->allocate(f, FALLOC_FL_PUNCH_HOLE, 0, PAGE), -EOPNOTSUPP);
	cr_assert_eq(f->ops->allocate(f, 1 << 30, 0, PAGE), -EOPNOTSUPP);
	expect_size(f, 2 * PAGE);
	expect_pattern(f, 2 * PAGE, 0, 3);
	close_file(f);
}

/* ---- copies ---- */

EACH_STORE(copy_range_copies_between_files)
{
	struct store_file *from = open_ref(refs[0], true);
	struct store_file *to = open_ref(refs[1], true);

	put_pattern(from, 5 * PAGE + 10, 0, 1);
	put_pattern(to, 100, 0, 2);
	cr_assert_eq(from->ops->copy_range(from, 0, to, 50, 4 * PAGE + 1), 4 * PAGE + 1);
	expect_size(to, 4 * PAGE + 51);
	expect_pattern(to, 50, 0, 2);
	expect_pattern(to, 4 * PAGE + 1, 50, 1);
	/* To the end of the source and no further. */
	cr_assert_eq(from->ops->copy_range(from, 5 * PAGE, to, 0, PAGE), 10);
	cr_assert_eq(from->ops->copy_range(from, 5 * PAGE + 10, to, 0, PAGE), 0);
	cr_assert_eq(from->ops->copy_range(from, FAR, to, 0, PAGE), 0);
	cr_assert_eq(from->ops->copy_range(from, 0, to, 0, 0), 0);
	expect_pattern(from, 5 * PAGE + 10, 0, 1);
	close_file(from);
	close_file(to);
}

EACH_STORE(copy_range_works_within_a_file_but_not_onto_itself)
{
	struct store_file *f = open_file();

	put_pattern(f, 2 * PAGE, 0, 1);
	cr_assert_eq(f->ops->copy_range(f, 0, f, 2 * PAGE, 2 * PAGE), 2 * PAGE);
	expect_pattern(f, 2 * PAGE, 2 * PAGE, 1);
	cr_assert_eq(f->ops->copy_range(f, 0, f, PAGE, 2 * PAGE), -EINVAL);
	cr_assert_eq(f->ops->copy_range(f, PAGE, f, 0, 2 * PAGE), -EINVAL);
	cr_assert_eq(f->ops->copy_range(f, 0, f, 0, 1), -EINVAL);
	/* Next to each other is no overlap; nor is what lies beyond the end. */
	cr_assert_eq(f->ops->copy_range(f, 0, f, 1, 1), 1);
	cr_assert_eq(f->ops->copy_range(f, 3 * PAGE, f, 4 * PAGE, 3 * PAGE), PAGE);
	expect_size(f, 5 * PAGE);
	close_file(f);
}

EACH_STORE(copy_range_refuses_a_file_of_another_kind_of_store)
{
	struct store_file *a = open_file();
	struct store *other;
	struct store_file *b;

	/* A kind that @store is not: two wrappers around memory. */
	cr_assert_eq(store_mem_create(&other), 0);
	if (store->ops->open == other->ops->open) {
		struct store *inner = other;

		cr_assert_eq(store_faulty_create(inner, &other), 0);
	}
	cr_assert_eq(store_open(other, 1, true, &b), 0);
	put_pattern(a, 10, 0, 1);
	cr_assert_eq(a->ops->copy_range(a, 0, b, 0, 10), -EXDEV);
	cr_assert_eq(b->ops->copy_range(b, 0, a, 0, 10), -EXDEV);
	close_file(a);
	close_file(b);
	other->ops->destroy(other);
}

/* ---- times ---- */

EACH_STORE(times_are_kept_and_left_alone_as_told)
{
	struct store_file *f = open_file();
	struct timespec ts[2] = {{.tv_sec = 1000, .tv_nsec = 0}, {.tv_sec = 2000, .tv_nsec = 0}};
	struct stat st;

	cr_assert_eq(f->ops->utimens(f, ts), 0);
	st = stat_of(f);
	cr_assert_eq(st.st_atim.tv_sec, 1000);
	cr_assert_eq(st.st_mtim.tv_sec, 2000);
	ts[0].tv_nsec = UTIME_OMIT;
	ts[1].tv_sec = 3000;
	cr_assert_eq(f->ops->utimens(f, ts), 0);
	st = stat_of(f);
	cr_assert_eq(st.st_atim.tv_sec, 1000);
	cr_assert_eq(st.st_mtim.tv_sec, 3000);
	ts[0].tv_nsec = UTIME_NOW;
	ts[1].tv_nsec = UTIME_OMIT;
	cr_assert_eq(f->ops->utimens(f, ts), 0);
	st = stat_of(f);
	cr_assert_gt(st.st_atim.tv_sec, 3000);
	cr_assert_eq(st.st_mtim.tv_sec, 3000);
	put_pattern(f, 10, 0, 1);
	cr_assert_gt(stat_of(f).st_mtim.tv_sec, 3000);
	ts[1].tv_nsec = -1;
	cr_assert_eq(f->ops->utimens(f, ts), -EINVAL);
	cr_assert_eq(f->ops->utimens(f, NULL), 0);
	close_file(f);
}

/* ---- together ---- */

/* The simplest store there is: an array. */
static char model[16 * GAIA_PAGE];
static off_t model_size;

static void model_zero(off_t off, off_t end)
{
	if (off < model_size)
		memset(model + off, 0, (size_t)(MIN(end, model_size) - off));
}

EACH_STORE(any_mix_of_calls_does_what_it_does_to_an_array)
{
	const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	struct store_file *f = open_file();
	unsigned seed = 1;

	need_mode(f, punch);
	for (int step = 0; step < 600; step++) {
		off_t off = rand_r(&seed) % (off_t)sizeof(model);
		off_t len = 1 + rand_r(&seed) % ((off_t)sizeof(model) - off);
		off_t end = off + len;

		switch (rand_r(&seed) % 4) {
		case 0:
			len = MIN(len, 2 * PAGE + 1);
			pattern(model + off, (size_t)len, (unsigned)step);
			put_pattern(f, (size_t)len, off, (unsigned)step);
			model_size = MAX(model_size, off + len);
			break;
		case 1:
			cr_assert_eq(f->ops->truncate(f, off), 0);
			model_zero(off, model_size);
			model_size = off;
			break;
		case 2:
			cr_assert_eq(f->ops->allocate(f, punch, off, len), 0);
			model_zero(off, end);
			break;
		case 3:
			cr_assert_eq(f->ops->allocate(f, 0, off, len), 0);
			model_size = MAX(model_size, end);
			break;
		}
		expect_size(f, model_size);
		if (model_size)
			expect_bytes(f, model, (size_t)model_size, 0);
	}
	close_file(f);
}

#define WRITERS 4
#define STRIPE 1500 /* pages are shared between writers */
#define ROUNDS 60

struct writer {
	struct store_file *file;
	unsigned index;
	unsigned bad;
};

/* Writes its stripes and finds them as it wrote them, whatever the others do. */
static void *write_stripes(void *arg)
{
	struct writer *w = arg;
	char want[STRIPE], got[STRIPE];

	for (unsigned round = 0; round < ROUNDS; round++) {
		off_t off = (off_t)(round * WRITERS + w->index) * STRIPE;

		pattern(want, STRIPE, w->index);
		w->bad += put(w->file, want, STRIPE, off) != 0;
		w->bad += get(w->file, got, STRIPE, off) != STRIPE;
		w->bad += memcmp(want, got, STRIPE) != 0;
	}
	return NULL;
}

EACH_STORE(concurrent_writes_of_different_bytes_are_all_kept)
{
	pthread_t threads[WRITERS];
	struct writer writers[WRITERS];
	struct store_file *f = open_file();

	for (unsigned i = 0; i < WRITERS; i++) {
		writers[i] = (struct writer){.file = f, .index = i};
		cr_assert_eq(pthread_create(&threads[i], NULL, write_stripes, &writers[i]), 0);
	}
	for (unsigned i = 0; i < WRITERS; i++) {
		pthread_join(threads[i], NULL);
		cr_assert_eq(writers[i].bad, 0);
	}
	expect_size(f, ROUNDS * WRITERS * STRIPE);
	for (unsigned i = 0; i < ROUNDS * WRITERS; i++)
		expect_pattern(f, STRIPE, (off_t)i * STRIPE, i % WRITERS);
	close_file(f);
}

static void *open_and_close(void *arg)
{
	for (int i = 0; i < 200; i++) {
		struct store_file *f;
		char byte = 0;

		if (store_open(store, refs[i % REFS], false, &f) == 0) {
			if (get(f, &byte, 1, 0) == 1 && byte == 'x')
				++*(int *)arg;
			close_file(f);
		}
	}
	return NULL;
}

EACH_STORE(files_may_be_opened_and_closed_by_many_at_once)
{
	pthread_t threads[WRITERS];
	int good[WRITERS] = {0};

	for (int i = 0; i < REFS; i++) {
		struct store_file *f = open_ref(refs[i], true);

		cr_assert_eq(put(f, "x", 1, 0), 0);
		close_file(f);
	}
	for (int i = 0; i < WRITERS; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, open_and_close, &good[i]), 0);
	for (int i = 0; i < WRITERS; i++) {
		pthread_join(threads[i], NULL);
		cr_assert_eq(good[i], 200);
	}
}

/* ---- dir's own ---- */

/*
 * The C library's calls, which a test can make do less than asked: the kernel
 * may at any time, and rarely does.
 */
static size_t at_most = SIZE_MAX;
static unsigned calls;

static ssize_t some(long nr, int fd, const struct iovec *iov, int n, off_t off)
{
	struct iovec part;

	if (at_most == SIZE_MAX)
		return syscall(nr, fd, iov, n, off, 0);
	if (++calls % 3 == 0) {
		errno = EINTR;
		return -1;
	}
	part = (struct iovec){iov->iov_base, MIN(iov->iov_len, at_most)};
	return syscall(nr, fd, &part, 1, off, 0);
}

ssize_t preadv64(int fd, const struct iovec *iov, int n, off_t off)
{
	return some(SYS_preadv, fd, iov, n, off);
}

ssize_t pwritev64(int fd, const struct iovec *iov, int n, off_t off)
{
	return some(SYS_pwritev, fd, iov, n, off);
}

/* ---- patch ---- */

static void a_patch_writes_what_differs_and_nothing_else(unsigned step)
{
	char base[GAIA_PAGE], buf[GAIA_PAGE], is[GAIA_PAGE];
	struct iovec iov = { base, sizeof(base) };
	struct store_file *f = open_ref(refs[0], true);

	memset(base, 'b', sizeof(base));
	cr_assert_eq(f->ops->write(f, &iov, 1, PAGE), 0);
	memcpy(buf, base, sizeof(buf));
	for (unsigned i = 3; i < sizeof(buf); i += step)
		buf[i] = 'n';
	/* Somebody else's, since. */
	iov = (struct iovec){ (char[]){ 'o', 'o' }, 2 };
	cr_assert_eq(f->ops->write(f, &iov, 1, PAGE), 0);
	cr_assert_eq(f->ops->patch(f, buf + 1, base + 1, sizeof(buf) - 1, PAGE + 1), 0);
	iov = (struct iovec){ is, sizeof(is) };
	cr_assert_eq(f->ops->read(f, &iov, 1, PAGE), (ssize_t)sizeof(is));
	cr_assert_arr_eq(is, "oob", 3);
	cr_assert_arr_eq(is + 3, buf + 3, sizeof(is) - 3);
	close_file(f);
	f = open_ref(refs[0], false);
	cr_assert_eq(f->ops->patch(f, buf, is, sizeof(buf), PAGE), -EBADF);
	close_file(f);
}

#define PATCH_TESTS(suite)                                                                       \
	Test(suite, a_patch_of_few_runs) { a_patch_writes_what_differs_and_nothing_else(1000); } \
	Test(suite, a_patch_of_many_runs) { a_patch_writes_what_differs_and_nothing_else(2); }
PATCH_TESTS(dir)
PATCH_TESTS(mem)
PATCH_TESTS(faulty_dir)

struct word_reader {
	const _Atomic uint64_t *word;
	uint64_t a, b;
	atomic_bool end;
	uint64_t seen; /* that was neither */
};

static void *read_word(void *arg)
{
	struct word_reader *r = arg;

	while (!r->end && !r->seen) {
		uint64_t is = *r->word;

		if (is != r->a && is != r->b)
			r->seen = is;
	}
	return NULL;
}

/* A number that a device released is what it was or what it is, also for a mapping that looks on. */
Test(dir, a_word_is_never_seen_half_patched)
{
	struct word_reader r = { .a = 0x0102030405060708, .b = 0xf1020304f50607f8 };
	struct store_file *f = open_ref(refs[0], true);
	struct iovec iov = { &r.a, sizeof(r.a) };
	pthread_t thread;
	char path[64];
	char *page;
	int fd;

	cr_assert_eq(f->ops->write(f, &iov, 1, PAGE + 8), 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", refs[0]);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, PAGE);
	close(fd);
	cr_assert_neq(page, MAP_FAILED);
	r.word = (_Atomic uint64_t *)(page + 8);
	cr_assert_eq(pthread_create(&thread, NULL, read_word, &r), 0);
	for (int i = 0; i < 2000; i++) {
		cr_assert_eq(f->ops->patch(f, &r.b, &r.a, sizeof(r.a), PAGE + 8), 0);
		cr_assert_eq(f->ops->patch(f, &r.a, &r.b, sizeof(r.a), PAGE + 8), 0);
	}
	r.end = true;
	pthread_join(thread, NULL);
	cr_assert_eq(r.seen, 0, "%llx was seen", (unsigned long long)r.seen);
	munmap(page, PAGE);
	close_file(f);
}

/* A mapping reaches no further than the file. */
Test(dir, a_patch_beyond_the_end_makes_the_file_longer)
{
	char base[GAIA_PAGE] = "", buf[GAIA_PAGE], is[GAIA_PAGE];
	struct store_file *f = open_ref(refs[0], true);
	struct iovec iov = { is, sizeof(is) };

	for (unsigned i = 0; i < sizeof(buf); i++)
		buf[i] = i % 2 ? 'x' : 0;
	cr_assert_eq(f->ops->patch(f, buf, base, sizeof(buf), 3 * PAGE), 0);
	cr_assert_eq(f->ops->read(f, &iov, 1, 3 * PAGE), (ssize_t)sizeof(is));
	cr_assert_arr_eq(is, buf, sizeof(buf));
	close_file(f);
}

Test(faulty, patch_fails_as_told)
{
	struct store_file *f = open_ref(refs[0], true);

	fault_arm("store.write", -ENOSPC, 0, 1);
	cr_assert_eq(f->ops->patch(f, "a", "b", 1, 0), -ENOSPC);
	cr_assert_eq(f->ops->patch(f, "a", "b", 1, 0), 0);
	close_file(f);
}

Test(dir, short_and_interrupted_transfers_go_on)
{
	static const size_t parts[] = {1, 3, 1000};
	static char from[7 * PIECES], to[7 * PIECES];
	static struct iovec iov[PIECES];
	struct store_file *f = open_file();
	size_t len = cut_up(from, iov);

	pattern(from, len, 9);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		at_most = parts[i];
		cut_up(from, iov);
		cr_assert_eq(f->ops->write(f, iov, PIECES, 5), 0);
		cut_up(to, iov);
		cr_assert_eq(f->ops->read(f, iov, PIECES, 5), (ssize_t)len);
		cr_assert_arr_eq(to, from, len);
		put_pattern(f, 5000, PAGE, 1);
		expect_pattern(f, 5000, PAGE, 1);
		cr_assert_eq(f->ops->truncate(f, 0), 0);
	}
	cr_assert_gt(calls, 0);
	close_file(f);
}

Test(dir, a_device_that_takes_no_more_is_an_io_error)
{
	struct store_file *f = open_file();

	at_most = 0;
	cr_assert_eq(put(f, "x", 1, 0), -EIO);
	close_file(f);
}

static void refuses_what_is_no_regular_file(void)
{
	struct store_file *const untouched = (struct store_file *)-1;
	struct store_file *f = untouched;
	int dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int null = open("/dev/null", O_PATH | O_CLOEXEC);
	int link = open("/proc/self/exe", O_PATH | O_NOFOLLOW | O_CLOEXEC);

	cr_assert_eq(store_open(store, dir, false, &f), -EINVAL);
	cr_assert_eq(store_open(store, dir, true, &f), -EINVAL);
	cr_assert_eq(store_open(store, null, true, &f), -EINVAL);
	cr_assert_eq(store_open(store, link, false, &f), -EINVAL);
	cr_assert_eq(store_open(store, -1, false, &f), -EBADF);
	cr_assert_eq(f, untouched);
	close(dir);
	close(null);
	close(link);
}

Test(dir, refuses_what_is_no_regular_file) { refuses_what_is_no_regular_file(); }
Test(faulty_dir, refuses_what_is_no_regular_file) { refuses_what_is_no_regular_file(); }

Test(dir, says_why_a_file_cannot_be_written)
{
	struct store_file *f = NULL;
	int running = open("/proc/self/exe", O_PATH | O_CLOEXEC);

	cr_assert_eq(store_open(store, running, true, &f), -ETXTBSY);
	cr_assert_eq(f, NULL);
	f = open_ref(running, false);
	expect_bytes(f, "\177ELF", 4, 0);
	close_file(f);
	close(running);
}

Test(dir, a_right_once_granted_is_kept)
{
	char path[PATH_MAX];
	int granted = temp_file(path);
	int named = open(path, O_PATH | O_CLOEXEC);
	bool root = geteuid() == 0;
	struct store_file *f = NULL;

	unlink(path);
	cr_assert_eq(fchmod(granted, 0), 0);
	if (root)
		cr_assert_eq(seteuid(65534), 0);
	cr_assert_eq(store_open(store, named, true, &f), -EACCES);
	cr_assert_eq(store_open(store, named, false, &f), -EACCES);
	f = open_ref(granted, true);
	cr_assert_eq(put(f, "x", 1, 0), 0);
	close_file(f);
	/* A right to less than that is no right to more, though the duplicate has it. */
	f = open_ref(granted, false);
	expect_bytes(f, "x", 1, 0);
	cr_assert_eq(put(f, "y", 1, 0), -EBADF);
	close_file(f);
	close(granted);
	close(named);
	/* Back to a process that the leak checker may look into. */
	if (root && seteuid(0) == 0)
		prctl(PR_SET_DUMPABLE, 1);
}

Test(dir, a_ref_opened_for_reading_serves_to_write_where_the_file_allows_it)
{
	char path[PATH_MAX];
	int ro, append;
	struct store_file *f;

	close(temp_file(path));
	ro = open(path, O_RDONLY | O_CLOEXEC);
	append = open(path, O_RDWR | O_APPEND | O_CLOEXEC);
	unlink(path);
	f = open_ref(ro, true);
	put_pattern(f, 10, 0, 1);
	close_file(f);
	/* Offsets count, also where the ref would append. */
	f = open_ref(append, true);
	put_pattern(f, 5, 0, 2);
	expect_size(f, 10);
	expect_pattern(f, 5, 0, 2);
	close_file(f);
	close(ro);
	close(append);
}

static int count_descriptors(int *inheritable)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	int n = 0;

	*inheritable = 0;
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		n++;
		*inheritable += !(fcntl(atoi(entry->d_name), F_GETFD) & FD_CLOEXEC);
	}
	closedir(dir);
	return n;
}

static void check_descriptors(int ref)
{
	int inheritable, now_inheritable;
	int before = count_descriptors(&inheritable);
	struct store_file *f = open_ref(ref, true);

	cr_assert_eq(count_descriptors(&now_inheritable), before + 1);
	cr_assert_eq(now_inheritable, inheritable);
	close_file(f);
	/* The ref is not consumed. */
	cr_assert_eq(count_descriptors(&now_inheritable), before);
	close_file(open_ref(ref, true));
}

Test(dir, an_open_file_is_one_descriptor_that_children_do_not_get)
{
	char path[PATH_MAX];
	int fd = temp_file(path);

	unlink(path);
	check_descriptors(refs[0]);
	check_descriptors(fd);
	close(fd);
}

Test(dir, a_missing_proc_is_found_at_once)
{
	struct store *s = NULL;
	int err;

	if (!own_mounts(NULL) || mount("none", "/proc", "tmpfs", 0, NULL))
		cr_skip_test("hiding /proc needs root");
	err = store_dir_create(true, false, &s);
	umount2("/proc", MNT_DETACH);
	cr_assert_eq(err, -ENOENT);
	cr_assert_eq(s, NULL);
}

/* ---- mem's own ---- */

Test(mem, a_file_is_as_big_as_its_pages)
{
	struct store_file *f = open_file();

	cr_assert_eq(put(f, "x", 1, 0), 0);
	cr_assert_eq(put(f, "xy", 2, 8 * PAGE - 1), 0);
	cr_assert_eq(stat_of(f).st_blocks, 3 * 8);
	cr_assert_eq(f->ops->truncate(f, 8 * PAGE), 0);
	cr_assert_eq(stat_of(f).st_blocks, 2 * 8);
	cr_assert_eq(f->ops->truncate(f, 1), 0);
	cr_assert_eq(stat_of(f).st_blocks, 8);
	cr_assert_eq(f->ops->truncate(f, 0), 0);
	cr_assert_eq(stat_of(f).st_blocks, 0);
	close_file(f);
}

/* ---- faulty's own ---- */

#ifdef GAIA_FAULTS

TestSuite(faulty, .init = setup_faulty_mem, .fini = teardown);

Test(faulty, open_fails_as_told)
{
	struct store_file *f = NULL;

	fault_arm("store.open", -EMFILE, 0, 1);
	cr_assert_eq(store_open(store, refs[0], true, &f), -EMFILE);
	cr_assert_eq(f, NULL);
	close_file(open_file());
}

Test(faulty, read_fails_as_told)
{
	struct store_file *f = open_file();
	char byte;

	put_pattern(f, 10, 0, 1);
	fault_arm("store.read", -EIO, 1, 1);
	cr_assert_eq(get(f, &byte, 1, 0), 1);
	cr_assert_eq(get(f, &byte, 1, 0), -EIO);
	expect_pattern(f, 10, 0, 1);
	close_file(f);
}

/* What is left of a failed write of @pages pages and @more bytes: @kept pages. */
static void check_failed_write(size_t pages, size_t more, size_t kept)
{
	size_t len = pages * GAIA_PAGE + more;
	size_t first = MIN(len, 100), done = kept * GAIA_PAGE;
	struct store_file *f = open_file();
	char *old = xmalloc(len), *new = xmalloc(len);
	struct iovec iov[3] = {{new, first}, {"", 0}, {new + first, len - first}};

	pattern(old, len, 1);
	pattern(new, len, 2);
	cr_assert_eq(f->ops->truncate(f, 0), 0);
	cr_assert_eq(put(f, old, len, 10), 0);
	fault_arm("store.write", -ENOSPC, 0, 1);
	cr_assert_eq(f->ops->write(f, iov, 3, 10), -ENOSPC);
	expect_size(f, (off_t)len + 10);
	if (done)
		expect_bytes(f, new, done, 10);
	expect_bytes(f, old + done, len - done, 10 + (off_t)done);
	/* The next one is whole. */
	cr_assert_eq(f->ops->write(f, iov, 3, 10), 0);
	expect_bytes(f, new, len, 10);
	close_file(f);
	free(old);
	free(new);
}

Test(faulty, a_failed_write_leaves_the_first_half)
{
	check_failed_write(8, 0, 4);
	check_failed_write(3, 0, 1);
	check_failed_write(2, 0, 1);
	check_failed_write(1, GAIA_PAGE - 1, 0);
	check_failed_write(1, 0, 0);
	check_failed_write(0, 1, 0);
}

Test(faulty, a_failed_write_of_nothing_is_still_a_failure)
{
	struct store_file *f = open_file();

	fault_arm("store.write", -EIO, 0, 1);
	cr_assert_eq(f->ops->write(f, NULL, 0, 0), -EIO);
	expect_size(f, 0);
	close_file(f);
}

Test(faulty, sync_fails_as_told)
{
	struct store_file *f = open_file();

	fault_arm("store.sync", -EIO, 0, 2);
	cr_assert_eq(f->ops->sync(f, true), -EIO);
	cr_assert_eq(f->ops->sync(f, false), -EIO);
	cr_assert_eq(f->ops->sync(f, false), 0);
	close_file(f);
}

Test(faulty, truncate_fails_as_told_and_changes_nothing)
{
	struct store_file *f = open_file();

	put_pattern(f, 10, 0, 1);
	fault_arm("store.truncate", -EIO, 0, 1);
	cr_assert_eq(f->ops->truncate(f, 5), -EIO);
	expect_size(f, 10);
	cr_assert_eq(f->ops->truncate(f, 5), 0);
	expect_size(f, 5);
	close_file(f);
}

Test(faulty, allocate_fails_as_told_and_changes_nothing)
{
	struct store_file *f = open_file();

	fault_arm("store.allocate", -ENOSPC, 0, 1);
	cr_assert_eq(f->ops->allocate(f, 0, 0, PAGE), -ENOSPC);
	expect_size(f, 0);
	cr_assert_eq(f->ops->allocate(f, 0, 0, PAGE), 0);
	expect_size(f, PAGE);
	close_file(f);
}

Test(faulty, an_armed_point_leaves_the_other_calls_alone)
{
	struct store_file *f = open_file();

	fault_arm("store.read", -EIO, 0, 0);
	put_pattern(f, 10, 0, 1);
	cr_assert_eq(f->ops->sync(f, false), 0);
	cr_assert_eq(f->ops->copy_range(f, 0, f, 10, 10), 10);
	cr_assert_eq(seek_data(f, 0), 0);
	expect_size(f, 20);
	fault_disarm_all();
	expect_pattern(f, 10, 10, 1);
	close_file(f);
}

Test(faulty, a_delay_changes_no_outcome)
{
	struct store_file *f = open_file();

	fault_arm_delay("store.write", 100, 1);
	fault_arm_delay("store.read", 100, 2);
	put_pattern(f, 3 * PAGE, 5, 1);
	expect_pattern(f, 3 * PAGE, 5, 1);
	close_file(f);
}

#endif
