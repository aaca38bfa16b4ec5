/*
 * store_reads.c - reads that are under way (store_read_begin()): what they promise over every store, and however dir
 * reads: by io_uring, by threads, past the kernel's page cache or not.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/thread.h"
#include "base/util.h"
#include "gaia/protocol.h"
#include "own_mounts.h"
#include "store/store.h"

#define PAGE ((size_t)GAIA_PAGE)
#define FILE_PAGES 600u
#define TAIL 100u /* bytes of the last page, beyond FILE_PAGES */
#define SIZE (FILE_PAGES * PAGE + TAIL)

static struct store *store;
static int ref = -1; /* of a file of dir's, open for both */
static char *bytes;  /* what the file holds */
static char *room;   /* page-aligned, for what is read */
#define ROOM (SIZE + 4 * PAGE)

static int temp_file(const char *dir)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/gaiafs-reads-XXXXXX", dir);
	fd = mkostemp(path, O_CLOEXEC);
	cr_assert_geq(fd, 0, "%s: %s", path, strerror(errno));
	unlink(path);
	return fd;
}

static void make_room(void)
{
	bytes = aligned_alloc(PAGE, ROUND_UP(ROOM, PAGE));
	room = aligned_alloc(PAGE, ROUND_UP(ROOM, PAGE));
	memset(bytes, 0, ROOM);
	for (size_t i = 0; i < SIZE; i++)
		bytes[i] = (char)((i * 31 + i / 251) % 255 + 1);
}

static void setup_dir(bool direct)
{
	const char *tmp = getenv("TMPDIR");

	make_room();
	ref = temp_file(tmp ? tmp : "/tmp");
	cr_assert_eq(store_dir_create(direct, false, &store), 0);
}

static void setup_direct(void)
{
	setup_dir(true);
}

static void setup_buffered(void)
{
	setup_dir(false);
}

static void setup_mem(void)
{
	make_room();
	cr_assert_eq(store_mem_create(&store), 0);
}

static void wrap(void)
{
	struct store *under = store;

	cr_assert_eq(store_faulty_create(under, &store), 0);
}

static void setup_faulty(void)
{
	setup_direct();
	wrap();
}

#ifdef GAIA_FAULTS
/* As on a kernel without io_uring. */
static void setup_threads(void)
{
	fault_arm("store.uring", -ENOSYS, 0, 0);
	setup_direct();
}
#endif

static void teardown(void)
{
	store->ops->destroy(store);
	if (ref >= 0)
		close(ref);
	free(bytes);
	free(room);
}

TestSuite(direct, .init = setup_direct, .fini = teardown);
TestSuite(buffered, .init = setup_buffered, .fini = teardown);
TestSuite(mem, .init = setup_mem, .fini = teardown);
TestSuite(faulty, .init = setup_faulty, .fini = teardown);
#ifdef GAIA_FAULTS
TestSuite(threads, .init = setup_threads, .fini = teardown);
#define BY_THREADS(name) Test(threads, name) { name(); }
#else
#define BY_THREADS(name)
#endif

#define EACH_STORE(name)             \
	static void name(void);      \
	Test(direct, name) { name(); }   \
	Test(buffered, name) { name(); } \
	Test(mem, name) { name(); }      \
	Test(faulty, name) { name(); }   \
	BY_THREADS(name)             \
	static void name(void)

/* ---- short forms ---- */

static struct store_file *open_file(void)
{
	struct store_file *f = NULL;

	cr_assert_eq(store_open(store, ref, true, &f), 0);
	return f;
}

/* The kernel has nothing of the file in memory: what is on the disk it does not keep. */
static void forget(void)
{
	if (ref < 0)
		return;
	cr_assert_eq(fsync(ref), 0);
	cr_assert_eq(posix_fadvise(ref, 0, 0, POSIX_FADV_DONTNEED), 0);
}

static void put(struct store_file *f, const void *buf, size_t len, size_t off)
{
	struct iovec iov = { (void *)buf, len };

	cr_assert_eq(f->ops->write(f, &iov, 1, (off_t)off), 0);
}

static struct store_file *cold_file(void)
{
	struct store_file *f = open_file();

	put(f, bytes, SIZE, 0);
	forget();
	return f;
}

struct one {
	struct store_read rd;
	struct iovec iov;
};

static void begin(struct store_file *f, struct one *one, size_t off, size_t len, bool at_once)
{
	one->iov = (struct iovec){ room + off, len };
	one->rd = (struct store_read){ .iov = &one->iov, .n = 1, .off = (off_t)off, .kept = true,
				       .at_once = at_once };
	store_read_begin(f, &one->rd);
}

/* Ends it: it has read the file's bytes, all that there are. */
static void expect(struct store_file *f, struct one *one)
{
	size_t off = (size_t)one->rd.off;
	size_t want = off >= SIZE ? 0 : MIN(one->iov.iov_len, SIZE - off);
	ssize_t got = store_read_end(f, &one->rd);

	cr_assert_eq(got, (ssize_t)want, "%zd of %zu at %zu", got, want, off);
	cr_assert_eq(memcmp(room + off, bytes + off, want), 0, "other bytes at %zu", off);
}

static void check(struct store_file *f, size_t off, size_t len)
{
	struct one one;

	for (int at_once = 0; at_once < 2; at_once++) {
		memset(room, 0xee, ROOM);
		begin(f, &one, off, len, at_once);
		expect(f, &one);
	}
}

/* ---- the promises ---- */

EACH_STORE(many_reads_under_way_read_what_they_would_alone)
{
	struct store_file *f = cold_file();
	struct one *one = xcalloc(FILE_PAGES, sizeof(*one));

	/* More than any queue holds; ended in another order. */
	for (size_t i = 0; i < FILE_PAGES; i++)
		begin(f, &one[i], i * PAGE, PAGE, false);
	for (size_t i = 0; i < FILE_PAGES; i++)
		expect(f, &one[(i * 7) % FILE_PAGES]);
	f->ops->close(f);
	free(one);
}

EACH_STORE(a_read_is_short_at_the_end_of_the_file_only)
{
	static const size_t far[] = { 0, PAGE, (FILE_PAGES - 1) * PAGE, FILE_PAGES * PAGE,
				      (FILE_PAGES + 1) * PAGE };
	struct store_file *f = cold_file();

	for (size_t i = 0; i < ARRAY_LEN(far); i++)
		for (size_t end = far[i] + PAGE; end <= ROUND_DOWN(ROOM, PAGE); end += 97 * PAGE) {
			forget();
			check(f, far[i], end - far[i]);
		}
	check(f, 0, ROUND_DOWN(ROOM, PAGE));
	f->ops->close(f);
}

EACH_STORE(no_alignment_is_asked_for)
{
	static const size_t off[] = { 0, 1, 511, 512, PAGE - 1, 100 * PAGE + 13 };
	static const size_t len[] = { 0, 1, 512, PAGE, PAGE + 1, 200 * PAGE + 77 };
	struct store_file *f = cold_file();

	for (size_t i = 0; i < ARRAY_LEN(off); i++)
		for (size_t k = 0; k < ARRAY_LEN(len); k++) {
			forget();
			check(f, off[i], len[k]);
		}
	f->ops->close(f);
}

EACH_STORE(any_number_of_buffers_will_do)
{
	struct store_file *f = cold_file();
	int n = IOV_MAX + 100;
	struct iovec *iov = xcalloc((size_t)n, sizeof(*iov));
	struct store_read rd = { .iov = iov, .n = n, .kept = true };

	/* Some are empty, the others are pages. */
	for (size_t i = 0, page = 0; i < (size_t)n; i++) {
		iov[i] = (struct iovec){ room + page * PAGE, i % 2 && page < FILE_PAGES ? PAGE : 0 };
		page += iov[i].iov_len > 0;
	}
	store_read_begin(f, &rd);
	cr_assert_eq(store_read_end(f, &rd), (ssize_t)((size_t)n / 2 * PAGE));
	cr_assert_eq(memcmp(room, bytes, (size_t)n / 2 * PAGE), 0);
	f->ops->close(f);
	free(iov);
}

EACH_STORE(holes_are_zeros)
{
	struct store_file *f = open_file();

	memset(bytes, 0, SIZE);
	memcpy(bytes + 300 * PAGE, "data", 4);
	put(f, "data", 4, 300 * PAGE);
	cr_assert_eq(f->ops->truncate(f, SIZE), 0);
	forget();
	check(f, 0, FILE_PAGES * PAGE);
	f->ops->close(f);
}

EACH_STORE(what_was_written_is_read_wherever_it_is)
{
	struct store_file *f = cold_file();

	/* In the kernel's memory, and not on the disk yet; some of it clean, most of it not there. */
	for (size_t i = 3; i < FILE_PAGES; i += 97) {
		memset(bytes + i * PAGE + 5, (int)i, 3 * PAGE);
		put(f, bytes + i * PAGE + 5, 3 * PAGE, i * PAGE + 5);
	}
	check(f, 0, FILE_PAGES * PAGE);
	check(f, 96 * PAGE, 128 * PAGE);
	f->ops->close(f);
}

EACH_STORE(a_file_that_is_cut_meanwhile_reads_short)
{
	struct store_file *f = cold_file();
	struct one one[4];
	ssize_t got;

	for (size_t i = 0; i < ARRAY_LEN(one); i++)
		begin(f, &one[i], i * 150 * PAGE, 150 * PAGE, false);
	cr_assert_eq(f->ops->truncate(f, 100 * PAGE + 10), 0);
	for (size_t i = 0; i < ARRAY_LEN(one); i++) {
		got = store_read_end(f, &one[i].rd);
		cr_assert_geq(got, i == 0 ? (ssize_t)(100 * PAGE + 10) : 0);
		cr_assert_leq(got, (ssize_t)(150 * PAGE));
	}
	cr_assert_eq(memcmp(room, bytes, 100 * PAGE + 10), 0);
	f->ops->close(f);
}

static void note_wait(void *n)
{
	++*(unsigned *)n;
}

Test(direct, a_thread_that_is_relied_on_says_that_it_waits)
{
	struct store_file *f = cold_file();
	unsigned waits = 0;
	struct one one;

	thread_relied_on(note_wait, &waits);
	begin(f, &one, 0, 16 * PAGE, true);
	expect(f, &one);
	cr_assert_gt(waits, 0);
	/* Not for what is in memory, if the file system can tell (tmpfs cannot). */
	cr_assert_eq(pread(ref, room, SIZE, 0), (ssize_t)SIZE);
	waits = 0;
	begin(f, &one, 0, 16 * PAGE, true);
	expect(f, &one);
	if (preadv2(ref, &one.iov, 1, 0, RWF_NOWAIT) > 0)
		cr_assert_eq(waits, 0);
	thread_relied_on(NULL, NULL);
	f->ops->close(f);
}

/* ---- where the bytes come from ---- */

/* Pages of the file that the kernel has in memory; the test is skipped where it does not tell. */
static size_t pages_in_memory(void)
{
	uint64_t range[2] = { 0, 0 }, pages[5];

	if (syscall(451, ref, range, pages, 0) < 0)
		cr_skip_test("cachestat(2): %s", strerror(errno));
	return pages[0];
}

/* The same where direct reads cannot be had: then the kernel has what was read before. */
static void need_direct(struct store_file *f)
{
	uint64_t before = counter_value(CTR_storage_direct);

	(void)pages_in_memory();
	check(f, 0, PAGE);
	if (counter_value(CTR_storage_direct) == before)
		cr_skip_test("no direct I/O in the file system of the temporary directory");
	forget();
}

#define EACH_DIRECT(name)              \
	static void name(void);        \
	Test(direct, name) { name(); } \
	BY_THREADS(name)               \
	static void name(void)

EACH_DIRECT(what_the_caller_keeps_does_not_lie_in_memory_twice)
{
	struct store_file *f = cold_file();

	need_direct(f);
	check(f, 0, FILE_PAGES * PAGE);
	cr_assert_eq(pages_in_memory(), 0);
	check(f, 0, ROUND_DOWN(ROOM, PAGE));
	cr_assert_leq(pages_in_memory(), 1, "the last one at most");
	f->ops->close(f);
}

EACH_DIRECT(what_the_caller_does_not_keep_the_kernel_does)
{
	struct store_file *f = cold_file();
	struct one one;

	need_direct(f);
	begin(f, &one, 0, FILE_PAGES * PAGE, false);
	expect(f, &one);
	cr_assert_eq(pages_in_memory(), 0);
	one.rd.kept = false;
	store_read_begin(f, &one.rd);
	expect(f, &one);
	cr_assert_geq(pages_in_memory(), FILE_PAGES);
	f->ops->close(f);
}

EACH_DIRECT(what_is_in_memory_is_not_read_from_the_disk)
{
	struct store_file *f = cold_file();
	uint64_t before;

	need_direct(f);
	cr_assert_eq(pread(ref, room, SIZE, 0), (ssize_t)SIZE);
	before = counter_value(CTR_storage_direct);
	check(f, 0, ROUND_DOWN(ROOM, PAGE));
	cr_assert_eq(counter_value(CTR_storage_direct), before);
	/* All but what lies around one page. */
	forget();
	posix_fadvise(ref, 0, 0, POSIX_FADV_RANDOM);
	cr_assert_eq(pread(ref, room, PAGE, 100 * PAGE), (ssize_t)PAGE);
	before = counter_value(CTR_storage_direct);
	check(f, 0, FILE_PAGES * PAGE);
	cr_assert_gt(counter_value(CTR_storage_direct), before);
	cr_assert_lt(counter_value(CTR_storage_direct), before + 2 * FILE_PAGES);
	f->ops->close(f);
}

Test(buffered, nothing_is_read_directly)
{
	struct store_file *f = cold_file();

	check(f, 0, FILE_PAGES * PAGE);
	cr_assert_eq(counter_value(CTR_storage_direct), 0);
	f->ops->close(f);
}

Test(direct, a_file_system_without_it_is_read_as_ever)
{
	struct store_file *f;

	close(ref);
	ref = memfd_create("reads", MFD_CLOEXEC);
	f = open_file();
	put(f, bytes, SIZE, 0);
	check(f, 0, ROUND_DOWN(ROOM, PAGE));
	/* Holes: the kernel has no pages of them. */
	cr_assert_eq(f->ops->truncate(f, 0), 0);
	cr_assert_eq(f->ops->truncate(f, SIZE), 0);
	memset(bytes, 0, SIZE);
	check(f, 0, ROUND_DOWN(ROOM, PAGE));
	cr_assert_eq(counter_value(CTR_storage_direct), 0);
	f->ops->close(f);
}

/* The end of its last page is an offset that cannot be named. */
Test(direct, the_longest_file_is_read_to_its_end)
{
	const off_t last = INT64_MAX - (PAGE - 1);
	struct iovec iov[2] = { { room, PAGE }, { room + PAGE, PAGE } };
	struct store_file *f;

	close(ref);
	ref = memfd_create("reads", MFD_CLOEXEC);
	f = open_file();
	cr_assert_eq(f->ops->truncate(f, INT64_MAX), 0);
	put(f, bytes, PAGE - 1, (size_t)last);
	for (int at_once = 0; at_once < 2; at_once++) {
		struct store_read rd = { .iov = iov, .n = 2, .off = last - PAGE, .kept = true,
					 .at_once = at_once };

		memset(room, 0xee, 2 * PAGE);
		store_read_begin(f, &rd);
		cr_assert_eq(store_read_end(f, &rd), 2 * PAGE - 1);
		cr_assert_eq(memcmp(room + PAGE, bytes, PAGE - 1), 0);
	}
	cr_assert_eq(f->ops->read(f, iov, 1, last), PAGE - 1);
	cr_assert_eq(memcmp(room, bytes, PAGE - 1), 0);
	f->ops->close(f);
}

/* An overlay over new directories; nobody else sees it, and only they are left of it. */
static bool mount_overlay(char *at)
{
	static const char *const part[] = { "", "/lower", "/upper", "/work", "/merged" };
	char path[PATH_MAX], options[3 * PATH_MAX + 64];

	for (size_t i = 0; i < ARRAY_LEN(part); i++) {
		snprintf(path, sizeof(path), "%s%s", at, part[i]);
		if (i > 0 ? mkdir(path, 0700) : !mkdtemp(at))
			return false;
	}
	snprintf(options, sizeof(options), "lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", at, at, at);
	return own_mounts(NULL) && !mount("overlay", path, "overlay", 0, options);
}

static void unmount_overlay(const char *at)
{
	static const char *const part[] = { "/work/work", "/work", "/lower", "/upper", "/merged", "" };
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/merged", at);
	umount2(path, MNT_DETACH);
	for (size_t i = 0; i < ARRAY_LEN(part); i++) {
		snprintf(path, sizeof(path), "%s%s", at, part[i]);
		rmdir(path);
	}
}

Test(direct, what_an_overlay_has_in_memory_is_not_read_from_the_disk)
{
	const char *tmp = getenv("TMPDIR");
	char at[PATH_MAX - 16], merged[PATH_MAX];
	struct store_file *f;
	uint64_t before;

	snprintf(at, sizeof(at), "%s/gaiafs-overlay-XXXXXX", tmp ? tmp : "/tmp");
	if (!mount_overlay(at)) {
		unmount_overlay(at);
		cr_skip_test("overlayfs cannot be mounted over the temporary directory");
	}
	snprintf(merged, sizeof(merged), "%s/merged", at);
	close(ref);
	ref = temp_file(merged);
	f = open_file();
	put(f, bytes, SIZE, 0);
	before = counter_value(CTR_storage_direct);
	check(f, 0, ROUND_DOWN(ROOM, PAGE));
	f->ops->close(f);
	close(ref);
	ref = -1;
	unmount_overlay(at);
	cr_assert_eq(counter_value(CTR_storage_direct), before);
}

Test(direct, stores_through_a_mapping_are_read)
{
	struct store_file *f = cold_file();
	char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, ref, 0);

	cr_assert_neq(p, MAP_FAILED);
	for (size_t i = 0; i < FILE_PAGES; i += 50) {
		p[i * PAGE + 7] = bytes[i * PAGE + 7] = (char)~bytes[i * PAGE + 7];
		check(f, 0, ROUND_DOWN(ROOM, PAGE));
	}
	munmap(p, SIZE);
	f->ops->close(f);
}

#ifdef GAIA_FAULTS

/* ---- what goes wrong ---- */

/* Pieces that the file is cut into: something of each second 64 KiB is in memory. */
static void read_in_pieces(struct store_file *f)
{
	static const size_t from[] = { 0, 130, 300, 400 };
	struct one one[4];

	forget();
	posix_fadvise(ref, 0, 0, POSIX_FADV_RANDOM);
	for (size_t i = 0; i < FILE_PAGES; i += 32)
		cr_assert_eq(pread(ref, room, 1, (off_t)(i * PAGE)), 1);
	memset(room, 0xee, ROOM);
	for (size_t i = 0; i < ARRAY_LEN(one); i++)
		begin(f, &one[i], from[i] * PAGE, 100 * PAGE, false);
	for (size_t i = 0; i < ARRAY_LEN(one); i++)
		expect(f, &one[i]);
}

EACH_DIRECT(each_read_that_fails_or_stops_is_carried_out_by_plain_calls)
{
	static const int errors[] = { -EIO, -EINTR, -EAGAIN, -EINVAL, -ECANCELED, -EOPNOTSUPP };
	struct store_file *f = cold_file();

	need_direct(f);
	for (unsigned nth = 0; nth < 40; nth++) {
		fault_arm("store.completion", errors[nth % ARRAY_LEN(errors)], nth, 1);
		read_in_pieces(f);
	}
	/* And all of them. */
	fault_arm("store.completion", -EIO, 0, 0);
	read_in_pieces(f);
	f->ops->close(f);
}

Test(faulty, a_read_fails_as_told)
{
	struct store_file *f = cold_file();
	struct one one[3];

	fault_arm("store.read", -EIO, 1, 1);
	for (size_t i = 0; i < ARRAY_LEN(one); i++)
		begin(f, &one[i], i * 10 * PAGE, 10 * PAGE, false);
	expect(f, &one[0]);
	cr_assert_eq(store_read_end(f, &one[1].rd), -EIO);
	expect(f, &one[2]);
	f->ops->close(f);
}

static void *lack_once(void *how)
{
	const char **said = how;

	fault_arm("store.uring", -EMFILE, 0, 1);
	said[0] = store_dir_how(store);
	said[1] = store_dir_how(store);
	return NULL;
}

/* For want of descriptors, for example. */
Test(direct, a_ring_that_cannot_be_had_for_now_is_had_later)
{
	const char *said[2];
	pthread_t thread;

	if (!strstr(store_dir_how(store), "io_uring"))
		cr_skip_test("io_uring is refused here");
	/* Each has its own. */
	cr_assert_eq(pthread_create(&thread, NULL, lack_once, said), 0);
	pthread_join(thread, NULL);
	cr_assert_str_eq(said[0], "direct, threads");
	cr_assert_str_eq(said[1], "direct, io_uring");
}

Test(threads, it_says_so)
{
	cr_assert_str_eq(store_dir_how(store), "direct, threads");
}

#endif
