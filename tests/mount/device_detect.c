/*
 * device_detect.c - clients that look for changes themselves (GAIA_DETECT=client), on a real mount: that the daemon takes their word, beside
 * others for which it looks. The suites of promises and of started acquires, and the litmus files, run once more with such clients.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "gaia/client.h"
#include "report.h"
#include "ways.h"

#define PAGE 4096
#define SIZE (1024 * PAGE)
#define RW (PROT_READ | PROT_WRITE)

/* A file of dots on a mount with two devices. In auto it has been a device's before. */
static void start(void)
{
	static const char *const args[] = { "--device", "sim:16M", "--device", "sim:16M", NULL };
	char dots[PAGE];
	int fd;

	way_start(args);
	way_make_cached("f");
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	memset(dots, '.', PAGE);
	for (unsigned i = 0; i < SIZE / PAGE; i++)
		cr_assert_eq(write(fd, dots, PAGE), PAGE);
	cr_assert_eq(close(fd), 0);
}

static struct actor *device(int number, const char *detect)
{
	struct actor *dev;

	setenv("GAIA_DETECT", detect, 1);
	dev = actor_start("f", SIZE, number);
	unsetenv("GAIA_DETECT");
	return dev;
}

static time_t modified(void)
{
	struct stat st;

	cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &st, 0), 0);
	return st.st_mtim.tv_sec;
}

EACH_WAY_BARE(device_detect, what_clients_find_is_published_and_no_device_is_asked)
{
	struct actor *dev, *cpu;
	long windows;

	start();
	dev = device(0, "client");
	cpu = actor_start("f", SIZE, NO_DEVICE);
	for (int byte = 'a'; byte <= 'e'; byte++) {
		windows = STATUS("counters", "release_windows");
		actor_ok(dev, ACQUIRE, 0, SIZE, RW);
		actor_ok(dev, STORE, 3 * PAGE - 1, 2, byte);
		actor_ok(dev, STORE, 700 * PAGE, 1, byte);
		actor_ok(dev, RELEASE, 0, SIZE, 0);
		cr_assert_eq(STATUS("counters", "release_windows"), windows);
		actor_sees(cpu, READ, 3 * PAGE, byte);
		actor_sees(cpu, MAP_LOAD, 3 * PAGE - 1, byte);
		actor_sees(cpu, MAP_LOAD, 700 * PAGE, byte);
		actor_sees(cpu, READ, 3 * PAGE + 1, '.');
	}
	cr_assert_eq(STATUS("counters", "released_pages"), 15);
	cr_assert_eq(STATUS("counters", "detected_pages"), 15);
	actor_end(dev);
	actor_end(cpu);
}

EACH_WAY_BARE(device_detect, what_stays_as_it_was_moves_no_times)
{
	const struct timespec long_ago[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	struct actor *dev;

	start();
	dev = device(0, "client");
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	cr_assert_eq(utimensat(both_root[ON_MOUNT], "f", long_ago, 0), 0);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 0, 10, '.');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	cr_assert_eq(modified(), 1000);
	cr_assert_eq(STATUS("counters", "released_pages"), 0);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 0, 10, 'x');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	cr_assert_gt(modified(), 1000);
	actor_end(dev);
}

/* On one device and on another one, and with one for which the daemon looks. */
EACH_WAY_BARE(device_detect, bytes_of_all_are_kept)
{
	struct actor *dev[3], *cpu;

	start();
	dev[0] = device(0, "client");
	dev[1] = device(0, "daemon");
	dev[2] = device(1, "client");
	cpu = actor_start("f", SIZE, NO_DEVICE);
	for (int round = 0; round < 4; round++) {
		for (int k = 0; k < 3; k++)
			actor_ok(dev[k], ACQUIRE, 0, SIZE, RW);
		for (int k = 0; k < 3; k++)
			actor_ok(dev[k], STORE, 5 * PAGE + k, 1, 'a' + 3 * round + k);
		actor_ok(cpu, WRITE, 5 * PAGE + 3, 1, 'A' + round);
		for (int k = 0; k < 3; k++)
			actor_ok(dev[(k + round) % 3], RELEASE, 0, SIZE, 0);
		for (int k = 0; k < 3; k++)
			actor_sees(cpu, READ, 5 * PAGE + k, 'a' + 3 * round + k);
		actor_sees(cpu, READ, 5 * PAGE + 3, 'A' + round);
		actor_sees(cpu, READ, 5 * PAGE + 4, '.');
	}
	for (int k = 0; k < 3; k++)
		actor_end(dev[k]);
	actor_end(cpu);
}

EACH_WAY_BARE(device_detect, what_the_dead_stored_is_lost)
{
	struct actor *dev, *next, *cpu;

	start();
	dev = device(0, "client");
	cpu = actor_start("f", SIZE, NO_DEVICE);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 0, 1, 'a');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 0, 2, 'b');
	actor_kill(dev);
	next = device(0, "client");
	actor_ok(next, ACQUIRE, 0, SIZE, RW);
	actor_sees(next, LOAD, 0, 'a');
	actor_sees(next, LOAD, 1, '.');
	actor_ok(next, STORE, 2, 1, 'c');
	actor_ok(next, RELEASE, 0, SIZE, 0);
	actor_sees(cpu, READ, 0, 'a');
	actor_sees(cpu, READ, 1, '.');
	actor_sees(cpu, READ, 2, 'c');
	actor_end(next);
	actor_end(cpu);
}
