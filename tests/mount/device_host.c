/*
 * device_host.c - the host as a device (GAIA_DEVICE_HOST): clients that read map the daemon's own memory of a file, those that can write have a copy.
 *
 * The litmus files run with it, too (litmus-runner --host).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "raw_client.h"
#include "report.h"
#include "ways.h"

#define MIB (1 << 20)
#define PAGE 4096
#define CHUNK (2 * MIB)
#define SIZE (8 * MIB)
#define RW (PROT_READ | PROT_WRITE)
#define READERS 8

#define OK(call) cr_assert_eq((call), 0, "%s: %s", #call, gaia_last_error_text())

static void start(const char *home)
{
	const char *args[] = { "--device", "none", "--home", home, NULL };

	way_start(args);
}

static int open_file(const char *name, int flags)
{
	return openat(both_root[ON_MOUNT], name, flags | O_CLOEXEC, 0644);
}

/* Each page begins with its number, and the rest is @byte. */
static void make_file(const char *name, size_t size, int byte)
{
	int fd = open_file(name, O_CREAT | O_RDWR);
	unsigned char page[PAGE];

	cr_assert_geq(fd, 0);
	memset(page, byte, PAGE);
	for (uint32_t i = 0; i < size / PAGE; i++) {
		memcpy(page, &i, sizeof(i));
		cr_assert_eq(pwrite(fd, page, PAGE, (off_t)i * PAGE), PAGE);
	}
	cr_assert_eq(fsync(fd), 0);
	close(fd);
}

static unsigned char *map(int fd, size_t len, int prot)
{
	unsigned char *p = gaia_mmap(len, prot, fd, 0, GAIA_DEVICE_HOST);

	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
	return p;
}

static bool has_pages(const unsigned char *p, size_t first, size_t n, int byte)
{
	for (size_t i = first; i < first + n; i++) {
		uint32_t number = 0;

		memcpy(&number, p + i * PAGE, sizeof(number));
		if (number != i || p[i * PAGE + PAGE - 1] != byte)
			return false;
	}
	return true;
}

static bool is_zeros(const unsigned char *p, size_t n)
{
	return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

static long host_used(void)
{
	return STATUS("host", "used");
}

/* ---- one copy ---- */

static struct gate ready, go_on;

static int read_all(void *arg)
{
	int fd = open_file("f", O_RDONLY);
	unsigned char *p = gaia_mmap(SIZE, PROT_READ, fd, 0, GAIA_DEVICE_HOST);

	(void)arg;
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(gaia_acquire(p, SIZE, PROT_READ) == 0);
	CHILD_CHECK(has_pages(p, 0, SIZE / PAGE, 'x'));
	gate_open(ready);
	CHILD_CHECK(gate_pass(go_on));
	CHILD_CHECK(gaia_release(p, SIZE) == 0);
	CHILD_CHECK(gaia_munmap(p, SIZE) == 0);
	return 0;
}

EACH_WAY_BARE(device_host, processes_that_read_share_homes_memory)
{
	pid_t child[READERS];

	start("64M");
	make_file("f", SIZE, 'x');
	ready = gate_make();
	go_on = gate_make();
	for (int i = 0; i < READERS; i++)
		child[i] = child_start(read_all, NULL);
	for (int i = 0; i < READERS; i++)
		cr_assert(gate_pass(ready));
	cr_assert_eq(host_used(), SIZE);
	cr_assert_eq(STATUS("host", "pinned"), SIZE);
	/* All that they read is in there, and what the kernel was given has left. */
	cr_assert_leq(STATUS("home", "used"), SIZE + MIB);
	cr_assert_eq(STATUS("counters", "home_to_device"), 0);
	for (int i = 0; i < READERS; i++)
		gate_open(go_on);
	for (int i = 0; i < READERS; i++)
		cr_assert_eq(child_wait(child[i]), 0);
	cr_assert_eq(STATUS("host", "pinned"), 0);
}

EACH_WAY_BARE(device_host, it_is_described)
{
	struct gaia_pointer_info info;
	json_t *residency;
	unsigned char *p;
	int fd;

	start("64M");
	make_file("f", SIZE, 'x');
	fd = open_file("f", O_RDWR);
	cr_assert_eq(gaia_devices(fd, NULL, 0), 0, "it is not one of these");
	p = map(fd, SIZE, PROT_READ);
	OK(gaia_query(p + 1, &info));
	cr_assert_eq(info.device, GAIA_DEVICE_HOST);
	cr_assert_str_eq(info.device_kind, "host");
	cr_assert_str_eq(info.device_name, "host");
	cr_assert_eq(info.prot, PROT_READ);
	OK(gaia_acquire(p, PAGE, PROT_READ));
	residency = report("residency", "f");
	cr_assert_eq(NUMBER(residency, "chunks", "0", "devices", "0", "device"), GAIA_DEVICE_HOST);
	cr_assert(json_is_true(json_object_get(json_array_get(json_object_get(json_array_get(json_object_get(residency, "chunks"), 0),
									      "devices"), 0), "view")));
	json_decref(residency);
	OK(gaia_munmap(p, SIZE));
	/* Half of home. */
	cr_assert_eq(STATUS("host", "capacity"), 32 * MIB);
	errno = 0;
	cr_assert_eq(gaia_mmap(SIZE, PROT_READ, fd, 0, -2), MAP_FAILED);
	cr_assert_eq(errno, ENODEV);
	close(fd);
}

/* ---- who may do what ---- */

/* The descriptor of the file's first chunk, as a client that reads gets it. */
static int chunk_for_reading(int fd, struct raw *r)
{
	struct gaia_ioc_range io;
	struct gaia_ioc_map map_io;
	struct gaia_msg msg;
	int chunk;

	*r = raw_client(fd);
	map_io = (struct gaia_ioc_map){ .key = r->key, .length = SIZE, .prot = GAIA_PROT_READ, .device = GAIA_HOST };
	cr_assert_eq(ioctl(fd, GAIA_IOC_MAP, &map_io), 0, "%s", strerror(errno));
	io = raw_range(r, map_io.map, PAGE, GAIA_PROT_READ);
	cr_assert_eq(ioctl(fd, GAIA_IOC_ACQUIRE, &io), 0, "%s", strerror(errno));
	cr_assert(raw_receive(r->sock, &msg, &chunk));
	cr_assert_eq(msg.kind, GAIA_MSG_GRANT);
	return chunk;
}

static int reopen_for_writing(void *arg)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", *(int *)arg);
	child_become(65534, 65534);
	CHILD_CHECK(open(path, O_RDWR) < 0 && errno == EACCES);
	return 0;
}

EACH_WAY_BARE(device_host, what_is_mapped_for_reading_cannot_be_written)
{
	struct raw r;
	void *p;
	int fd, chunk;

	start("64M");
	make_file("f", SIZE, 'x');
	fd = open_file("f", O_RDWR);
	chunk = chunk_for_reading(fd, &r);
	p = mmap(NULL, CHUNK, PROT_READ, MAP_SHARED, chunk, 0);
	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	cr_assert_eq(((unsigned char *)p)[PAGE - 1], 'x');
	cr_assert_eq(mprotect(p, CHUNK, RW), -1);
	cr_assert_eq(errno, EACCES);
	cr_assert_eq(mmap(NULL, CHUNK, RW, MAP_SHARED, chunk, 0), MAP_FAILED);
	cr_assert_eq(errno, EACCES);
	cr_assert_eq(pwrite(chunk, "y", 1, 0), -1);
	cr_assert_eq(errno, EBADF);
	cr_assert_eq(ftruncate(chunk, 0), -1);
	cr_assert_eq(fallocate(chunk, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, CHUNK), -1);
	cr_assert_eq(errno, EBADF);
	if (geteuid() == 0)
		cr_assert_eq(child_run(reopen_for_writing, &chunk), 0);
	munmap(p, CHUNK);
	close(chunk);
	close(r.sock);
	close(fd);
}

/* What can write has memory of its own, until it is released. */
EACH_WAY_BARE(device_host, what_is_written_is_private_until_it_is_released)
{
	unsigned char *reads, *writes;
	char seen = 0;
	int fd;

	start("64M");
	make_file("f", SIZE, 'x');
	fd = open_file("f", O_RDWR);
	reads = map(fd, SIZE, PROT_READ);
	writes = map(fd, SIZE, RW);
	OK(gaia_acquire(reads, PAGE, PROT_READ));
	OK(gaia_acquire(writes, PAGE, RW));
	writes[100] = 'w';
	cr_assert_eq(pread(fd, &seen, 1, 100), 1);
	cr_assert_eq(seen, 'x');
	cr_assert_eq(reads[100], 'x');
	OK(gaia_release(writes, PAGE));
	cr_assert_eq(pread(fd, &seen, 1, 100), 1);
	cr_assert_eq(seen, 'w');
	OK(gaia_acquire(reads, PAGE, PROT_READ));
	cr_assert_eq(reads[100], 'w');
	OK(gaia_munmap(reads, SIZE));
	OK(gaia_munmap(writes, SIZE));
	close(fd);
}

/* ---- what was removed ---- */

static void removed(bool held)
{
	unsigned char *p;
	int fd;

	start("64M");
	make_file("f", SIZE, 'x');
	fd = open_file("f", O_RDWR);
	p = map(fd, SIZE, PROT_READ);
	OK(gaia_acquire(p, SIZE, PROT_READ));
	if (!held)
		OK(gaia_release(p, SIZE));
	cr_assert_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE + 10, 2 * PAGE), 0);
	cr_assert_eq(p[PAGE + 9], 'x');
	cr_assert(is_zeros(p + PAGE + 10, 2 * PAGE));
	cr_assert_eq(p[3 * PAGE + 10], 'x');
	cr_assert_eq(ftruncate(fd, CHUNK + 100), 0);
	cr_assert_eq(p[CHUNK + 99], 'x');
	cr_assert(is_zeros(p + CHUNK + 100, SIZE - CHUNK - 100));
	cr_assert_eq(ftruncate(fd, SIZE), 0);
	OK(gaia_acquire(p, SIZE, PROT_READ));
	cr_assert(is_zeros(p + CHUNK + 100, SIZE - CHUNK - 100));
	cr_assert(is_zeros(p + PAGE + 10, 2 * PAGE));
	OK(gaia_munmap(p, SIZE));
	close(fd);
}

EACH_WAY_BARE(device_host, what_is_removed_is_shown_to_nobody)
{
	removed(false);
}

EACH_WAY_BARE(device_host, what_is_removed_while_it_is_held_is_shown_to_nobody)
{
	removed(true);
}

/* ---- clients that end, or do not answer ---- */

static int hold_and_wait(void *arg)
{
	int prot = *(int *)arg, fd = open_file("f", O_RDWR);
	unsigned char *p = gaia_mmap(SIZE, prot, fd, 0, GAIA_DEVICE_HOST);

	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(gaia_acquire(p, SIZE, prot) == 0);
	if (prot & PROT_WRITE)
		p[100] = 'w';
	gate_open(ready);
	gate_pass(go_on);
	return 1;
}

static void killed(int prot)
{
	struct gaia_ioc_file io = { .from = GAIA_HOST };
	pid_t child;
	char seen;
	int fd;

	start("64M");
	make_file("f", SIZE, 'x');
	fd = open_file("f", O_RDWR);
	ready = gate_make();
	go_on = gate_make();
	child = child_start(hold_and_wait, &prot);
	cr_assert(gate_pass(ready));
	cr_assert_eq(ioctl(fd, GAIA_IOC_EVICT, &io), -1);
	cr_assert_eq(errno, EBUSY);
	child_kill(child);
	cr_assert_eq(ioctl(fd, GAIA_IOC_EVICT, &io), 0, "%s", strerror(errno));
	cr_assert_eq(host_used(), 0);
	cr_assert_eq(pread(fd, &seen, 1, 100), 1);
	cr_assert_eq(seen, 'x');
	close(fd);
}

EACH_WAY_BARE(device_host, a_reader_that_is_killed_holds_nothing)
{
	killed(PROT_READ);
}

EACH_WAY_BARE(device_host, what_a_writer_that_is_killed_had_not_released_is_lost)
{
	killed(RW);
}

static int use_and_stop(void *arg)
{
	int fd = open_file("f", O_RDONLY);
	unsigned char *p = gaia_mmap(SIZE, PROT_READ, fd, 0, GAIA_DEVICE_HOST);

	(void)arg;
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(gaia_acquire(p, 2 * CHUNK, PROT_READ) == 0);
	CHILD_CHECK(gaia_release(p, 2 * CHUNK) == 0);
	gate_open(ready);
	gate_pass(go_on);
	return 0;
}

/* All that the host may have is mapped by a client that does not answer. */
AUTO_WAY_BARE(device_host, a_client_that_does_not_answer_loses_what_it_does_not_hold)
{
	unsigned char *p;
	pid_t child;
	int fd;

	start("8M");
	make_file("f", SIZE, 'x');
	ready = gate_make();
	go_on = gate_make();
	child = child_start(use_and_stop, NULL);
	cr_assert(gate_pass(ready));
	cr_assert(child_stop(child));
	fd = open_file("f", O_RDONLY);
	p = map(fd, SIZE, PROT_READ);
	OK(gaia_acquire(p + 2 * CHUNK, 2 * CHUNK, PROT_READ));
	cr_assert(has_pages(p, 2 * CHUNK / PAGE, 2 * CHUNK / PAGE, 'x'));
	child_kill(child);
	OK(gaia_munmap(p, SIZE));
	close(fd);
}

/* ---- a small home ---- */

static int read_in_pieces(void *arg)
{
	int fd = open_file("f", O_RDONLY);
	unsigned char *p = gaia_mmap(3 * SIZE, PROT_READ, fd, 0, GAIA_DEVICE_HOST);

	(void)arg;
	CHILD_CHECK(p != MAP_FAILED);
	for (size_t round = 0; round < 2; round++)
		for (size_t at = 0; at < 3 * SIZE; at += CHUNK) {
			CHILD_CHECK(gaia_acquire(p + at, CHUNK, PROT_READ) == 0);
			CHILD_CHECK(has_pages(p, at / PAGE, CHUNK / PAGE, 'x'));
			CHILD_CHECK(gaia_release(p + at, CHUNK) == 0);
		}
	CHILD_CHECK(gaia_munmap(p, 3 * SIZE) == 0);
	return 0;
}

EACH_WAY_BARE(device_host, files_go_through_a_home_smaller_than_they_are)
{
	static unsigned char piece[CHUNK];
	pid_t child[2];
	int fd;

	start("8M");
	make_file("f", 3 * SIZE, 'x');
	for (int i = 0; i < 2; i++)
		child[i] = child_start(read_in_pieces, NULL);
	/* Meanwhile others need home, too. */
	make_file("g", 3 * SIZE, 'y');
	fd = open_file("g", O_RDONLY);
	for (size_t at = 0; at < 3 * SIZE; at += CHUNK) {
		cr_assert_eq(pread(fd, piece, CHUNK, (off_t)at), CHUNK);
		cr_assert_eq(piece[PAGE - 1], 'y');
	}
	close(fd);
	for (int i = 0; i < 2; i++)
		cr_assert_eq(child_wait(child[i]), 0);
	cr_assert_leq(host_used(), 4 * MIB);
}
