/*
 * fault_device.c - a device that fails once, or is out of memory, or disappears for good.
 *
 * An operation that fails once loses nothing. With a device that is gone everything is lost that was released on it and
 * that nobody had fetched: reading or syncing it is EIO, until it is overwritten, cut off or
 * removed. Nothing else is affected.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "shell.h"
#include "ways.h"

#define PAGE 4096
#define SIZE (16 * PAGE)      /* what is mapped */
#define FILE_SIZE (SIZE - 100) /* devices zero the rest of the last page */
#define RW (PROT_READ | PROT_WRITE)

#define FAILS(call, why)                                                                   \
	do {                                                                               \
		errno = 0;                                                                 \
		cr_assert_eq((call), -1, "%s succeeded", #call);                           \
		cr_assert_eq(errno, (why), "%s: %s", #call, strerror(errno));              \
	} while (0)

static void mount_with(const char *faults)
{
	static const char *const args[] = { "--device", "sim:8M,count=2", "--writeback-age", "3600",
					    NULL };

	setenv("GAIAFS_FAULTS", faults, 1);
	way_start(args);
}

static void make_files(void)
{
	char bytes[SIZE];

	memset(bytes, '.', SIZE);
	for (int i = 0; i < 2; i++) {
		int fd = openat(both_root[ON_MOUNT], i ? "other" : "f", O_CREAT | O_RDWR, 0644);

		cr_assert_eq(write(fd, bytes, FILE_SIZE), FILE_SIZE);
		cr_assert_eq(fsync(fd), 0);
		close(fd);
	}
}

static void start_with(const char *faults)
{
	mount_with(faults);
	make_files();
}

static void expect_bytes(const char *name, off_t off, int byte)
{
	unsigned char c = 0;
	int fd = openat(both_root[ON_MOUNT], name, O_RDONLY);

	cr_assert_eq(pread(fd, &c, 1, off), 1, "%s at %ld: %s", name, (long)off, strerror(errno));
	cr_assert_eq(c, byte, "%s at %ld: %d", name, (long)off, c);
	close(fd);
}

/* Pages 0 to 3 of f are lost with device 0. */
static struct actor *lose_four_pages(void)
{
	struct actor *dev;
	char byte;
	int fd;

	mount_with("device.copy_out=errno:ENODEV,count=1");
	way_make_cached("f");
	make_files();
	dev = actor_start("f", SIZE, 0);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 0, 4 * PAGE, 'd');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	FAILS(pread(fd, &byte, 1, 0), EIO);
	close(fd);
	return dev;
}

EACH_WAY_BARE(fault_device, that_is_gone_takes_along_what_only_it_had)
{
	struct actor *dev = lose_four_pages(), *second;
	struct shell_result r;
	char page[PAGE];
	int fd;

	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	for (int i = 0; i < 3; i++) {
		FAILS(pread(fd, page, 1, i * PAGE), EIO);
		FAILS(fsync(fd), EIO);
	}
	cr_assert_eq(actor_do(dev, SYNC, 0, SIZE, 0), -EIO);
	cr_assert_eq(actor_do(dev, ACQUIRE, 0, SIZE, RW), -ENODEV);
	cr_assert_eq(actor_do(dev, ACQUIRE, 8 * PAGE, PAGE, PROT_READ), -ENODEV);
	/* All other pages of the file are good, on the CPU and on the other device. */
	expect_bytes("f", 4 * PAGE, '.');
	cr_assert_eq(pwrite(fd, "w", 1, 9 * PAGE), 1);
	expect_bytes("f", 9 * PAGE, 'w');
	second = actor_start("f", SIZE, 1);
	cr_assert_eq(actor_do(second, ACQUIRE, 0, PAGE, PROT_READ), -EIO);
	actor_ok(second, ACQUIRE, 8 * PAGE, 2 * PAGE, RW);
	actor_sees(second, LOAD, 9 * PAGE, 'w');
	actor_ok(second, STORE, 8 * PAGE, 1, 's');
	actor_ok(second, RELEASE, 8 * PAGE, 2 * PAGE, 0);
	expect_bytes("f", 8 * PAGE, 's');
	/* And other files. */
	expect_bytes("other", 0, '.');
	actor_end(second);
	second = actor_start("other", SIZE, 1);
	actor_ok(second, ACQUIRE, 0, SIZE, RW);
	actor_ok(second, STORE, 0, 1, 's');
	actor_ok(second, RELEASE, 0, SIZE, 0);
	actor_ok(second, SYNC, 0, SIZE, 0);
	actor_end(second);
	cr_assert_eq(mnt_log_lines(&mnt, "is gone"), 1, "it is not said once");
	/* It can be taken away, and nobody waits for what it does not give back. */
	r = shell_run(mnt.path, 60, "\"$GAIA\" set --wait . device.0=off");
	cr_assert_eq(r.status, 1);
	cr_assert(strstr(r.err, "device sim0 has failed: what was only there is lost"), "%s", r.err);
	shell_free(&r);
	shell_ok(mnt.path, "\"$GAIA\" top -b . 0.1 1 | grep -q '^sim0 .* gone$'");
	/* What is written over is whole again; a part of a page does not make it so. */
	memset(page, 'n', PAGE);
	cr_assert_eq(pwrite(fd, page, PAGE, 0), PAGE, "%s", strerror(errno));
	expect_bytes("f", 5, 'n');
	FAILS(pwrite(fd, page, 1, PAGE), EIO);
	FAILS(pread(fd, page, 1, PAGE), EIO);
	/* What is cut off is not missed. */
	cr_assert_eq(ftruncate(fd, PAGE), 0, "%s", strerror(errno));
	cr_assert_eq(ftruncate(fd, SIZE), 0, "%s", strerror(errno));
	expect_bytes("f", PAGE, 0);
	expect_bytes("f", 5, 'n');
	fsync(fd); /* may tell what failed before */
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	close(fd);
	actor_end(dev);
	/* way_end(): the end is clean. */
}

/* A passed-through file has what is released before the release returns: so the error goes to the release. */
AUTO_WAY_BARE(fault_device, that_is_gone_when_it_releases_fails_the_release_and_no_cpu_program)
{
	struct actor *cpu, *dev, *second;
	struct stat st;

	start_with("device.copy_out=errno:ENODEV,count=1");
	cpu = actor_start("f", SIZE, NO_DEVICE);
	dev = actor_start("f", SIZE, 0);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 0, 4 * PAGE, 'd');
	cr_assert_eq(actor_do(dev, RELEASE, 0, SIZE, 0), -EIO);
	cr_assert_eq(actor_do(dev, ACQUIRE, 0, SIZE, RW), -ENODEV);
	actor_sees(cpu, READ, 0, '.');
	actor_sees(cpu, MAP_LOAD, 3 * PAGE, '.');
	actor_ok(cpu, WRITE, 9 * PAGE, 1, 'w');
	second = actor_start("f", SIZE, 1);
	/* What was lost with it does not stand in the way of others. */
	actor_ok(second, ACQUIRE, 0, 4 * PAGE, PROT_READ);
	actor_sees(second, LOAD, 0, '.');
	actor_ok(cpu, FSYNC, 0, 0, 0);
	actor_ok(second, ACQUIRE, 8 * PAGE, 2 * PAGE, RW);
	actor_sees(second, LOAD, 9 * PAGE, 'w');
	actor_ok(second, STORE, 8 * PAGE, 1, 's');
	actor_ok(second, RELEASE, 8 * PAGE, 2 * PAGE, 0);
	actor_sees(cpu, READ, 8 * PAGE, 's');
	expect_bytes("other", 0, '.');
	/* What is cut off is not missed. */
	actor_ok(cpu, TRUNCATE, 0, 0, 0);
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &st, 0), 0);
	cr_assert_eq(st.st_size, 0);
	actor_end(second);
	actor_end(dev);
	actor_end(cpu);
}

EACH_WAY_BARE(fault_device, what_is_lost_can_be_removed)
{
	struct actor *dev = lose_four_pages();

	cr_assert_eq(unlinkat(both_root[ON_MOUNT], "f", 0), 0);
	actor_end(dev);
	expect_bytes("other", 0, '.');
}

EACH_WAY_BARE(fault_device, what_is_lost_is_said_at_the_end)
{
	struct actor *dev = lose_four_pages();
	int status;

	actor_end(dev);
	both_close();
	kill(mnt.daemon, SIGTERM);
	status = mnt_wait(&mnt);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1, "wait status %x", status);
	cr_assert_eq(mnt_log_lines(&mnt, "/f: some of what was written could not be stored and is lost"), 1);
	cr_assert_eq(mnt_log_lines(&mnt, "is gone"), 1);
}

/* ---- every operation, for good and for once ---- */

static const char *const points[] = {
	"device.submit", "device.alloc", "device.copy_in", "device.copy_out", "device.copy_within",
	"device.pull", "device.zero", "device.arm", "device.find_changed",
};
#define N_POINTS (sizeof(points) / sizeof(points[0]))

/* @errors: that the call may end with; it is tried again until it works, or fails for good. */
static bool works(struct actor *a, enum act act, off_t off, size_t len, int arg, const int *errors)
{
	for (int i = 0; i < 12; i++) {
		long r = actor_do(a, act, off, len, arg);

		if (r >= 0)
			return true;
		for (int k = 0; r != -errors[k]; k++)
			cr_assert_neq(errors[k], 0, "%s", strerror(-(int)r));
	}
	return false;
}

/* Once: a release that fails ends all the same, and what was stored is kept, unless the device is gone. */
static bool released(struct actor *a, const int *errors)
{
	long r = actor_do(a, RELEASE, 0, SIZE, 0);

	for (int k = 0; r < 0 && r != -errors[k]; k++)
		cr_assert_neq(errors[k], 0, "%s", strerror(-(int)r));
	return r != -ENODEV;
}

/*
 * Two clients of one device, another device and a CPU, all in the same pages, so that every
 * kind of operation is needed. True: all of it worked, and all is as it should be.
 */
static bool use_the_device(const int *errors)
{
	struct actor *a = actor_start("f", SIZE, 0), *b = actor_start("f", SIZE, 0);
	struct actor *c = actor_start("f", SIZE, 1), *cpu = actor_start("f", SIZE, NO_DEVICE);
	bool good;

	good = works(a, ACQUIRE, 0, SIZE, RW, errors) && works(b, ACQUIRE, 0, SIZE, RW, errors);
	if (!good)
		goto end;
	actor_ok(a, STORE, 0, 100, 'a');
	actor_ok(b, STORE, 200, 100, 'b');
	actor_ok(cpu, WRITE, 400, 100, 'w');
	/* While b goes on writing: a snapshot; then a pull, into what b writes. */
	good = released(a, errors) && works(a, ACQUIRE, 0, SIZE, RW, errors);
	if (!good)
		goto end;
	actor_ok(a, STORE, 100, 100, 'A');
	good = released(a, errors) && released(b, errors) &&
	       works(c, ACQUIRE, 0, SIZE, RW, errors);
	if (!good)
		goto end;
	actor_ok(c, STORE, 600, 100, 'c');
	good = released(c, errors) && works(cpu, READ, 0, 1, 0, errors) &&
	       works(cpu, FSYNC, 0, 0, 0, errors);
	if (!good)
		goto end;
	actor_sees(cpu, READ, 50, 'a');
	actor_sees(cpu, READ, 150, 'A');
	actor_sees(cpu, READ, 250, 'b');
	actor_sees(cpu, READ, 450, 'w');
	actor_sees(cpu, READ, 650, 'c');
	actor_sees(cpu, READ, 750, '.');
end:
	actor_end(a);
	actor_end(b);
	actor_end(c);
	actor_end(cpu);
	return good;
}

/* Tried again, everything works, and no byte is lost. */
EACH_WAY_BARE(fault_device, that_fails_once_loses_nothing)
{
	static const int errors[] = { EIO, ENOMEM, 0 };

	for (size_t i = 0; i < N_POINTS; i++)
		for (int after = 0; after < 4; after++) {
			char faults[100];

			snprintf(faults, sizeof(faults), "%s=errno:%s,after=%d,count=2", points[i],
				 i == 1 ? "ENOMEM" : "EIO", after);
			start_with(faults);
			cr_assert(use_the_device(errors), "%s: it never works", faults);
			cr_assert_eq(unlinkat(both_root[ON_MOUNT], "f", 0), 0);
			way_end();
		}
}

/* Wherever it disappears: no hang, others are not concerned, and nobody sees bytes that nobody
 * wrote. */
EACH_WAY_BARE(fault_device, that_is_gone_stops_nobody)
{
	static const int errors[] = { EIO, ENODEV, 0 };
	struct actor *cpu;
	long r;

	for (size_t i = 0; i < N_POINTS; i++) {
		char faults[100];

		snprintf(faults, sizeof(faults), "%s=errno:ENODEV,after=1,count=1", points[i]);
		start_with(faults);
		(void)use_the_device(errors);
		cpu = actor_start("f", SIZE, NO_DEVICE);
		r = actor_do(cpu, READ, 50, 1, 0);
		cr_assert(r == 'a' || r == '.' || r == -EIO, "%s: %ld", faults, r);
		actor_sees(cpu, READ, 8 * PAGE, '.');
		actor_end(cpu);
		expect_bytes("other", 0, '.');
		cr_assert_leq(mnt_log_lines(&mnt, "is gone"), 1);
		cr_assert_eq(unlinkat(both_root[ON_MOUNT], "f", 0), 0);
		way_end();
	}
}

/* ---- no memory ---- */

/* The device says that it is full, whatever it seems to have. */
EACH_WAY_BARE(fault_device, without_memory_is_enomem_and_the_rest_works)
{
	struct actor *dev;

	start_with("device.alloc=errno:ENOMEM,count=6");
	dev = actor_start("f", SIZE, 0);
	cr_assert_eq(actor_do(dev, ACQUIRE, 0, SIZE, RW), -ENOMEM);
	expect_bytes("f", 0, '.');
	for (int i = 0; i < 10 && actor_do(dev, ACQUIRE, 0, SIZE, RW) < 0; i++)
		;
	actor_sees(dev, LOAD, 0, '.');
	actor_ok(dev, STORE, 0, 1, 'd');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	actor_ok(dev, SYNC, 0, SIZE, 0);
	expect_bytes("f", 0, 'd');
	actor_end(dev);
}

/* ---- copies between devices ---- */

/* Device 0 has all of f; what device 1 acquires of it, in two parts, is right. */
static void acquire_of_both(const char *faults)
{
	struct actor *first, *second;

	start_with(faults);
	first = actor_start("f", SIZE, 0);
	second = actor_start("f", SIZE, 1);
	actor_ok(first, ACQUIRE, 0, SIZE, PROT_READ);
	for (off_t off = 0; off < SIZE; off += SIZE / 2) {
		actor_ok(second, ACQUIRE, off, SIZE / 2, RW);
		actor_sees(second, LOAD, off, '.');
		actor_sees(second, LOAD, off + 7 * PAGE, '.');
		actor_ok(second, STORE, off + PAGE, 1, 's');
		actor_ok(second, RELEASE, off, SIZE / 2, 0);
		expect_bytes("f", off + PAGE, 's');
		expect_bytes("f", off + PAGE + 1, '.');
	}
	actor_end(first);
	actor_end(second);
}

EACH_WAY_BARE(fault_device, copies_between_devices_that_fail_are_made_by_way_of_home)
{
	acquire_of_both("device.copy_peer=errno:EIO");
	cr_assert_eq(mnt_log_lines(&mnt, "is gone"), 0);
}

EACH_WAY_BARE(fault_device, copies_between_devices_that_arrive_wrong_are_not_used)
{
	acquire_of_both("device.garble_peer=errno:EIO");
	cr_assert_eq(mnt_log_lines(&mnt, "arrived wrong"), 1, "it is not said once");
}
