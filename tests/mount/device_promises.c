/*
 * device_promises.c - what a program may rely on: the promises of the consistency
 * contract, each between real processes.
 *
 * The litmus files go through many interleavings of each; here is one plain case,
 * to be read as an example.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "gaia/client.h"
#include "ways.h"

#define PAGE 4096
#define SIZE (4 * PAGE)
#define RW (PROT_READ | PROT_WRITE)

/* A file of dots, SIZE bytes, on a mount with two devices. */
static void start(void)
{
	static const char *const args[] = { "--device", "sim:8M", "--device", "sim:8M", NULL };
	char dots[SIZE];
	int fd[2];

	way_start(args);
	memset(dots, '.', SIZE);
	SAME_FD_OK(fd, openat(at, "f", O_CREAT | O_RDWR, 0644));
	SAME_OK(write(fd[side], dots, SIZE));
	SAME_CLOSE(fd);
}

static void device_writes(struct actor *dev, off_t off, size_t len, int byte)
{
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, off, len, byte);
	actor_ok(dev, RELEASE, 0, SIZE, 0);
}

/* POSIX holds among CPU processes also where a device holds and changes pages of the file. */
EACH_WAY_BARE(device_promises, promise_1_cpu_to_cpu_is_posix)
{
	struct actor *a, *b, *dev;
	int fd[2];

	start();
	a = actor_start("f", SIZE, NO_DEVICE);
	b = actor_start("f", SIZE, NO_DEVICE);
	dev = actor_start("f", SIZE, 0);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 100, 1, 'd');
	actor_ok(a, WRITE, 0, 1, 'a');
	actor_sees(b, READ, 0, 'a');
	actor_sees(b, MAP_LOAD, 0, 'a');
	actor_ok(b, MAP_STORE, 1, 1, 'b');
	actor_sees(a, READ, 1, 'b');
	actor_sees(a, MAP_LOAD, 1, 'b');
	actor_ok(a, TRUNCATE, PAGE, 0, 0);
	cr_assert_eq(actor_do(b, SIZE_OF, 0, 0, 0), PAGE);
	cr_assert_eq(actor_do(b, READ, PAGE, 0, 0), -ENODATA);
	actor_ok(b, WRITE, PAGE, 1, 'e');
	cr_assert_eq(actor_do(a, SIZE_OF, 0, 0, 0), PAGE + 1);
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	actor_end(dev);

	/* Append, rename, unlink while open; then both files are the same but for the device's byte. */
	SAME_FD_OK(fd, openat(at, "f", O_WRONLY | O_APPEND));
	SAME_OK(ftruncate(fd[side], 10));
	SAME_OK(pwrite(fd[side], "x", 1, 5));
	SAME_OK(write(fd[side], "tail", 4));
	SAME_OK(renameat(at, "f", at, "g"));
	SAME_OK(write(fd[side], "tail", 4));
	SAME_CLOSE(fd);
	actor_sees(a, READ, 10, 'x');
	actor_sees(b, MAP_LOAD, 11, 't');
	actor_end(a);
	actor_end(b);
}

EACH_WAY_BARE(device_promises, promise_2_cpu_to_device)
{
	struct actor *writer, *mapper, *dev;

	start();
	writer = actor_start("f", SIZE, NO_DEVICE);
	mapper = actor_start("f", SIZE, NO_DEVICE);
	dev = actor_start("f", SIZE, 0);
	for (int byte = 'a'; byte <= 'e'; byte++) {
		actor_ok(writer, WRITE, 10, 5000, byte);
		actor_ok(mapper, MAP_STORE, PAGE * 2 + 1, 5000, byte);
		actor_ok(dev, ACQUIRE, 0, SIZE, byte % 2 ? RW : PROT_READ);
		actor_sees(dev, LOAD, 9, '.');
		actor_sees(dev, LOAD, 10, byte);
		actor_sees(dev, LOAD, 5009, byte);
		actor_sees(dev, LOAD, PAGE * 2 + 1, byte);
		actor_sees(dev, LOAD, PAGE * 2 + 5000, byte);
		actor_ok(dev, RELEASE, 0, SIZE, 0);
	}
	actor_end(dev);
	actor_end(mapper);
	actor_end(writer);
}

EACH_WAY_BARE(device_promises, promise_3_device_to_cpu)
{
	struct actor *cpu, *dev;

	start();
	cpu = actor_start("f", SIZE, NO_DEVICE);
	dev = actor_start("f", SIZE, 0);
	/* The mapping is established, its pages are there. */
	actor_sees(cpu, MAP_LOAD, 0, '.');
	actor_sees(cpu, MAP_LOAD, 3 * PAGE, '.');
	for (int byte = 'a'; byte <= 'e'; byte++) {
		device_writes(dev, 7, PAGE, byte);
		actor_sees(cpu, READ, 7, byte);
		actor_sees(cpu, MAP_LOAD, 7, byte);
		actor_sees(cpu, MAP_LOAD, PAGE + 6, byte);
		actor_sees(cpu, MAP_LOAD, PAGE + 7, '.');
	}
	actor_end(dev);
	actor_end(cpu);
}

EACH_WAY_BARE(device_promises, promise_4_device_to_device)
{
	struct actor *dev[2];

	start();
	for (int i = 0; i < 2; i++)
		dev[i] = actor_start("f", SIZE, i);
	for (int turn = 0; turn < 6; turn++) {
		struct actor *from = dev[turn % 2], *to = dev[1 - turn % 2];

		device_writes(from, turn * 100, 50, 'a' + turn);
		actor_ok(to, ACQUIRE, 0, SIZE, PROT_READ);
		for (int k = 0; k <= turn; k++)
			actor_sees(to, LOAD, k * 100 + 49, 'a' + k);
		actor_sees(to, LOAD, turn * 100 + 50, '.');
		actor_ok(to, RELEASE, 0, SIZE, 0);
	}
	actor_end(dev[0]);
	actor_end(dev[1]);
}

/* The device, another device, write(2) and a mapping: each its own bytes of every page. */
EACH_WAY_BARE(device_promises, promise_5_no_false_sharing)
{
	static char want[SIZE];
	struct actor *dev[2], *writer, *mapper;

	start();
	for (int i = 0; i < 2; i++)
		dev[i] = actor_start("f", SIZE, i);
	writer = actor_start("f", SIZE, NO_DEVICE);
	mapper = actor_start("f", SIZE, NO_DEVICE);
	actor_ok(dev[0], ACQUIRE, 0, SIZE, RW);
	actor_ok(dev[1], ACQUIRE, 0, SIZE, RW);
	memset(want, '.', SIZE);
	for (int off = 0; off < SIZE; off += 64) {
		static const char who[] = "01wm";

		actor_ok(dev[0], STORE, off, 1, '0');
		actor_ok(dev[1], STORE, off + 1, 1, '1');
		actor_ok(writer, WRITE, off + 2, 1, 'w');
		actor_ok(mapper, MAP_STORE, off + 3, 1, 'm');
		memcpy(want + off, who, 4);
	}
	actor_ok(dev[1], RELEASE, 0, SIZE, 0);
	actor_ok(dev[0], RELEASE, 0, SIZE, 0);
	for (int off = 0; off < SIZE; off += 640) {
		for (int i = 0; i < 5; i++) {
			actor_sees(writer, READ, off + i, want[off + i]);
			actor_sees(mapper, MAP_LOAD, off + i, want[off + i]);
		}
	}
	for (int i = 0; i < 2; i++) {
		actor_ok(dev[i], ACQUIRE, 0, SIZE, PROT_READ);
		for (int off = 0; off < SIZE; off += 640)
			for (int k = 0; k < 5; k++)
				actor_sees(dev[i], LOAD, off + k, want[off + k]);
		actor_end(dev[i]);
	}
	actor_end(writer);
	actor_end(mapper);
	way_unmount();
	backing_holds("f", want, SIZE);
}

EACH_WAY_BARE(device_promises, promise_6_races_are_decided)
{
	struct actor *dev[2], *cpu;

	start();
	for (int i = 0; i < 2; i++)
		dev[i] = actor_start("f", SIZE, i);
	cpu = actor_start("f", SIZE, NO_DEVICE);

	/* The CPU against a device: the device has the higher number. */
	actor_sees(cpu, READ, 0, '.');
	actor_ok(dev[0], ACQUIRE, 0, SIZE, RW);
	actor_ok(dev[0], STORE, 5, 10, 'd');
	actor_ok(cpu, WRITE, 0, 10, 'c');
	actor_ok(dev[0], RELEASE, 0, SIZE, 0);
	actor_sees(cpu, READ, 4, 'c');
	actor_sees(cpu, READ, 5, 'd');
	actor_sees(cpu, READ, 9, 'd');
	actor_sees(cpu, READ, 14, 'd');
	actor_sees(cpu, READ, 15, '.');

	/* Two devices, released in either order. */
	for (int first = 0; first < 2; first++) {
		actor_ok(dev[0], ACQUIRE, 0, SIZE, RW);
		actor_ok(dev[1], ACQUIRE, 0, SIZE, RW);
		actor_ok(dev[0], STORE, PAGE, 10, '0' + first * 2);
		actor_ok(dev[1], STORE, PAGE + 5, 10, '1' + first * 2);
		actor_ok(dev[first], RELEASE, 0, SIZE, 0);
		actor_ok(dev[1 - first], RELEASE, 0, SIZE, 0);
		actor_sees(cpu, READ, PAGE + 4, '0' + first * 2);
		actor_sees(cpu, READ, PAGE + 5, '1' + first * 2);
		actor_sees(cpu, READ, PAGE + 9, '1' + first * 2);
		actor_sees(cpu, READ, PAGE + 14, '1' + first * 2);
	}
	actor_end(dev[0]);
	actor_end(dev[1]);
	actor_end(cpu);
}

EACH_WAY_BARE(device_promises, promise_7_unreleased_is_private)
{
	static char dots[SIZE];
	struct actor *dev, *other, *cpu;

	start();
	memset(dots, '.', SIZE);
	dev = actor_start("f", SIZE, 0);
	other = actor_start("f", SIZE, 1);
	cpu = actor_start("f", SIZE, NO_DEVICE);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 0, SIZE, 'u');
	actor_sees(cpu, READ, 0, '.');
	actor_sees(cpu, MAP_LOAD, PAGE, '.');
	actor_ok(cpu, FSYNC, 0, 0, 0);
	actor_ok(dev, SYNC, 0, SIZE, 0);
	actor_ok(dev, ADVISE, 0, SIZE, GAIA_DONTNEED);
	backing_holds("f", dots, SIZE);
	actor_ok(other, ACQUIRE, 0, SIZE, PROT_READ);
	actor_sees(other, LOAD, 0, '.');
	actor_sees(dev, LOAD, 0, 'u');
	/* A write by the CPU to the same page does not take the device's along. */
	actor_ok(cpu, WRITE, 10, 1, 'c');
	actor_sees(cpu, READ, 9, '.');
	actor_kill(dev);
	actor_sees(cpu, READ, 0, '.');
	actor_sees(cpu, READ, 10, 'c');
	actor_end(other);
	actor_end(cpu);
	way_unmount();
	dots[10] = 'c';
	backing_holds("f", dots, SIZE);
}

EACH_WAY_BARE(device_promises, promise_8_durable_means_released)
{
	static char want[SIZE];
	struct actor *dev, *cpu;

	start();
	memset(want, '.', SIZE);
	dev = actor_start("f", SIZE, 0);
	cpu = actor_start("f", SIZE, NO_DEVICE);
	static const enum act how[] = { FSYNC, FDATASYNC, MSYNC };
	for (size_t i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
		device_writes(dev, 100 * i, 50, 'r' + i);
		memset(want + 100 * i, 'r' + i, 50);
		actor_ok(cpu, MAP_STORE, PAGE + i, 1, 'c');
		want[PAGE + i] = 'c';
		actor_ok(cpu, how[i], 0, 0, 0);
		backing_holds("f", want, SIZE);
	}
	device_writes(dev, 3 * PAGE, PAGE, 's');
	memset(want + 3 * PAGE, 's', PAGE);
	actor_ok(dev, SYNC, 0, SIZE, 0);
	/* Not this. */
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 0, SIZE, 'u');
	actor_ok(cpu, FSYNC, 0, 0, 0);
	both_close();
	mnt_crash(&mnt);
	backing_holds("f", want, SIZE);
	actor_kill(dev);
	actor_kill(cpu);
	way_remount();
}

EACH_WAY_BARE(device_promises, promise_9_size_is_posix)
{
	struct actor *dev, *cpu;

	start();
	cpu = actor_start("f", 2 * SIZE, NO_DEVICE);
	dev = actor_start("f", 2 * SIZE, 0);
	actor_ok(cpu, TRUNCATE, PAGE + 100, 0, 0);
	actor_ok(dev, ACQUIRE, 0, 2 * SIZE, RW);
	actor_sees(dev, LOAD, PAGE + 99, '.');
	actor_sees(dev, LOAD, PAGE + 100, 0);
	actor_ok(dev, STORE, PAGE + 50, 100, 'd');
	actor_ok(dev, RELEASE, 0, 2 * SIZE, 0);
	cr_assert_eq(actor_do(cpu, SIZE_OF, 0, 0, 0), PAGE + 100, "a mapping never grows a file");
	actor_ok(cpu, TRUNCATE, SIZE, 0, 0);
	actor_sees(cpu, READ, PAGE + 99, 'd');
	actor_sees(cpu, READ, PAGE + 100, 0);
	actor_sees(cpu, MAP_LOAD, 2 * PAGE - 1, 0);

	/* Down and up again, while the device holds the pages that go: no replica brings them back. */
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 0, SIZE, 'D');
	actor_ok(cpu, TRUNCATE, 10, 0, 0);
	actor_ok(cpu, TRUNCATE, SIZE, 0, 0);
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	for (int off = 10; off < SIZE; off += 500) {
		actor_sees(cpu, READ, off, 0);
		actor_sees(cpu, MAP_LOAD, off, 0);
	}
	actor_ok(dev, ACQUIRE, 0, SIZE, PROT_READ);
	for (int off = 10; off < SIZE; off += 500)
		actor_sees(dev, LOAD, off, 0);
	actor_end(dev);
	actor_end(cpu);
}

EACH_WAY_BARE(device_promises, promise_10_orphans_live)
{
	struct actor *dev, *cpu;
	struct stat st;
	int root, fd;

	start();
	root = both_root[ON_MOUNT];
	dev = actor_start("f", SIZE, 0);
	cpu = actor_start("f", SIZE, NO_DEVICE);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	cr_assert_eq(unlinkat(root, "f", 0), 0);
	actor_ok(dev, STORE, 0, 10, 'd');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	actor_sees(cpu, READ, 0, 'd');
	actor_sees(cpu, MAP_LOAD, 9, 'd');
	actor_ok(cpu, WRITE, 20, 1, 'c');
	device_writes(dev, 21, 1, 'd');
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_sees(dev, LOAD, 20, 'c');
	actor_sees(cpu, READ, 21, 'd');
	actor_end(dev);
	actor_end(cpu);
	cr_assert_eq(fstatat(root, "f", &st, 0), -1);
	cr_assert_eq(errno, ENOENT);

	/* Renamed over while mapped. */
	fd = openat(root, "g", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(ftruncate(fd, SIZE), 0);
	close(fd);
	fd = openat(root, "h", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, "new", 3), 3);
	close(fd);
	dev = actor_start("g", SIZE, 0);
	cpu = actor_start("g", SIZE, NO_DEVICE);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	cr_assert_eq(renameat(root, "h", root, "g"), 0);
	actor_ok(dev, STORE, 0, 3, 'd');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	actor_sees(cpu, READ, 0, 'd');
	actor_end(dev);
	actor_end(cpu);
	way_unmount();
	backing_holds("g", "new", 3);
}

/* Until the next acquire a load sees old or new bytes; after it, new ones. */
EACH_WAY_BARE(device_promises, promise_11_nothing_between_acquire_and_release)
{
	struct actor *dev, *cpu;

	start();
	dev = actor_start("f", SIZE, 0);
	cpu = actor_start("f", SIZE, NO_DEVICE);
	actor_ok(dev, ACQUIRE, 0, SIZE, PROT_READ);
	for (int byte = 'a'; byte < 'z'; byte++) {
		long is;

		actor_ok(cpu, WRITE, 0, SIZE, byte);
		is = actor_do(dev, LOAD, 1000, 1, 0);
		cr_assert(is == byte || is == '.' || (is >= 'a' && is < byte), "%ld", is);
	}
	actor_ok(dev, ACQUIRE, 0, SIZE, PROT_READ);
	actor_sees(dev, LOAD, 1000, 'y');
	actor_end(dev);
	actor_end(cpu);
}

/* ---- promise 16: times ---- */

static struct stat look(void)
{
	struct stat st;

	cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &st, 0), 0, "%s", strerror(errno));
	return st;
}

static int compare_times(struct timespec a, struct timespec b)
{
	if (a.tv_sec != b.tv_sec)
		return a.tv_sec < b.tv_sec ? -1 : 1;
	return a.tv_nsec < b.tv_nsec ? -1 : a.tv_nsec > b.tv_nsec;
}

static void cr_same_times(struct stat a, struct stat b, const char *when)
{
	cr_assert_eq(compare_times(a.st_mtim, b.st_mtim), 0, "%s: the modification time moved", when);
	cr_assert_eq(compare_times(a.st_ctim, b.st_ctim), 0, "%s: the change time moved", when);
}

/* Until the clock that files are stamped with has moved on from @st's times. */
static void wait_for_the_next_tick(struct stat st)
{
	struct timespec now;

	do
		clock_gettime(CLOCK_REALTIME_COARSE, &now);
	while (compare_times(now, st.st_mtim) <= 0 || compare_times(now, st.st_ctim) <= 0);
}

static void cr_times_move(void (*change)(void *arg), void *arg, const char *when)
{
	struct stat before = look(), after;

	wait_for_the_next_tick(before);
	change(arg);
	after = look();
	cr_assert_lt(compare_times(before.st_mtim, after.st_mtim), 0, "%s: the modification time did not move", when);
	cr_assert_lt(compare_times(before.st_ctim, after.st_ctim), 0, "%s: the change time did not move", when);
	/* In the other ways reading the store may move it: gaiafs-limits(7), known differences. */
	if (way_is("writeback"))
		cr_assert_eq(compare_times(before.st_atim, after.st_atim), 0, "%s: the access time moved", when);
}

static void set_old_times(void)
{
	static const struct timespec old[2] = { { 1000000000, 1 }, { 1100000000, 2 } };

	cr_assert_eq(utimensat(both_root[ON_MOUNT], "f", old, 0), 0);
	cr_assert_eq(compare_times(look().st_mtim, old[1]), 0);
}

static void writes_another_byte(void *dev)
{
	static int byte = 'a';

	device_writes(dev, 0, 1, byte++);
}

static void times_move_at_the_release(void)
{
	struct actor *dev, *cpu;
	struct stat st, seen;
	char dots[SIZE];

	memset(dots, '.', SIZE);
	dots[0] = 'f';
	dev = actor_start("f", SIZE, 0);
	set_old_times();
	st = look();
	device_writes(dev, 0, 1, '.');
	cr_same_times(st, look(), "a release of what was there already");
	cr_times_move(writes_another_byte, dev, "a release");
	cr_times_move(writes_another_byte, dev, "a second release, nobody having read");
	cpu = actor_start("f", SIZE, NO_DEVICE);
	actor_sees(cpu, READ, 0, 'b');
	cr_times_move(writes_another_byte, dev, "a release of a page that was read");
	actor_sees(cpu, MAP_LOAD, 0, 'c');
	cr_times_move(writes_another_byte, dev, "a release of a page that is mapped");

	/* What was seen stays, when the bytes come home, are stored, and on the directory beneath. */
	st = look();
	wait_for_the_next_tick(st);
	actor_sees(cpu, READ, 0, 'd');
	actor_ok(cpu, FSYNC, 0, 0, 0);
	/* (Storing moves the change time, as it does for CPU writes.) */
	cr_assert_eq(compare_times(st.st_mtim, look().st_mtim), 0, "a fetch and a sync moved the modification time");
	cr_times_move(writes_another_byte, dev, "a release after a sync");
	set_old_times();
	st = look();
	actor_sees(cpu, READ, 0, 'e');
	actor_ok(cpu, FSYNC, 0, 0, 0);
	cr_assert_eq(compare_times(st.st_mtim, look().st_mtim), 0, "storing a release moved a time that was set later");
	cr_times_move(writes_another_byte, dev, "the last release");
	seen = look();
	actor_end(dev);
	actor_end(cpu);
	way_unmount();
	backing_holds("f", dots, SIZE);
	cr_assert_eq(fstatat(mnt.backing_fd, "f", &st, 0), 0);
	cr_assert_eq(compare_times(seen.st_mtim, st.st_mtim), 0, "the modification time is another beneath");
}

EACH_WAY_BARE(device_promises, promise_16_times_move_at_the_release)
{
	start();
	times_move_at_the_release();
}

AUTO_WAY_BARE(device_promises, promise_16_times_of_a_cached_file_move_at_the_release)
{
	static const char *const args[] = { "--device", "sim:8M", NULL };
	char dots[SIZE];
	int fd;

	way_start(args);
	memset(dots, '.', SIZE);
	way_make_cached("f");
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	cr_assert_eq(write(fd, dots, SIZE), SIZE);
	close(fd);
	times_move_at_the_release();
}

/* By an inherited descriptor for writing, of another user's file that nobody could not open. */
static int release_as_nobody(void *arg)
{
	unsigned char *p;

	child_become(1234, 1234);
	p = gaia_mmap(SIZE, RW, *(int *)arg, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(gaia_acquire(p, SIZE, RW) == 0);
	p[0] = 'n';
	CHILD_CHECK(gaia_release(p, SIZE) == 0);
	CHILD_CHECK(gaia_munmap(p, SIZE) == 0);
	return 0;
}

static void nobody_writes(void *fd)
{
	cr_assert_eq(child_run(release_as_nobody, fd), 0);
}

EACH_WAY_BARE(device_promises, promise_16_times_move_for_users_who_do_not_own_the_file)
{
	int fd;

	if (geteuid())
		WAY_SKIP("needs root, to be another user");
	start();
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	cr_assert_eq(fchmod(fd, 0600), 0);
	cr_times_move(nobody_writes, &fd, "a release by another user");
	close(fd);
}
