/*
 * device_api.c - the calls of gaia/client.h: what they return, and which errors.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "device_io.h"
#include "gaia/client.h"
#include "gaia/protocol.h"
#include "report.h"
#include "ways.h"

#define KIB 1024
#define MIB (1024 * 1024)
#define PAGE 4096
#define CHUNK (2 * MIB)
#define RW (PROT_READ | PROT_WRITE)

static int make_file(const char *name, size_t size, int byte)
{
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);
	char *bytes = malloc(size + 1);

	cr_assert_geq(fd, 0);
	memset(bytes, byte, size);
	cr_assert_eq(pwrite(fd, bytes, size, 0), (ssize_t)size);
	free(bytes);
	return fd;
}

static unsigned char *map(int fd, size_t len, int prot, off_t off, int device)
{
	void *p = gaia_mmap(len, prot, fd, off, device);

	cr_assert_neq(p, MAP_FAILED, "gaia_mmap: %s", strerror(errno));
	return p;
}

/* Nothing of the file is held on the device. */
static void evict(const char *name, unsigned from)
{
	struct gaia_ioc_file io = { .from = from };
	int fd = openat(both_root[ON_MOUNT], name, O_RDWR | O_CLOEXEC);

	cr_assert_eq(ioctl(fd, GAIA_IOC_EVICT, &io), 0, "%s", strerror(errno));
	close(fd);
}

static void start_with_devices(const char *first, const char *second)
{
	const char *args[] = { "--device", first, second ? "--device" : NULL, second, NULL };

	way_start(args);
}

#define OK(call) cr_assert_eq((call), 0, "%s: %s", #call, strerror(errno))
#define FAILS(call, err)                                                              \
	do {                                                                          \
		errno = 0;                                                            \
		cr_assert_eq((call), -1, "%s succeeded", #call);                      \
		cr_assert_eq(errno, (err), "%s: %s", #call, strerror(errno));         \
	} while (0)
#define MAP_FAILS(call, err)                                                          \
	do {                                                                          \
		errno = 0;                                                            \
		cr_assert_eq((call), MAP_FAILED, "%s succeeded", #call);              \
		cr_assert_eq(errno, (err), "%s: %s", #call, strerror(errno));         \
	} while (0)

EACH_WAY_BARE(device_api, devices_are_described)
{
	struct gaia_device_info info[3];
	int fd;

	start_with_devices("sim:8M", "sim:16M");
	fd = make_file("f", 10, 'x');
	cr_assert_eq(gaia_devices(fd, NULL, 0), 2, "%s", strerror(errno));
	memset(info, 0xee, sizeof(info));
	cr_assert_eq(gaia_devices(fd, info, 1), 2);
	cr_assert_str_neq(info[0].name, "");
	cr_assert_eq((unsigned char)info[1].name[0], 0xee, "only as many as there is room for");
	/* Any descriptor of the mount will do. */
	cr_assert_eq(gaia_devices(both_root[ON_MOUNT], info, 3), 2);
	cr_assert_eq(info[0].capacity, 8u * MIB);
	cr_assert_eq(info[1].capacity, 16u * MIB);
	cr_assert_str_neq(info[0].name, info[1].name);
	cr_assert_str_eq(info[0].kind, "sim");
	cr_assert(info[0].simulated);
	cr_assert_eq(info[0].used, 0u);
	FAILS(gaia_devices(fd, info, -1), EINVAL);
	FAILS(gaia_devices(fd, NULL, 1), EINVAL);
	close(fd);
}

EACH_WAY_BARE(device_api, a_mount_without_devices_says_so)
{
	int fd;

	start_with_devices("none", NULL);
	fd = make_file("f", 10, 'x');
	cr_assert_eq(gaia_devices(fd, NULL, 0), 0, "%s", strerror(errno));
	MAP_FAILS(gaia_mmap(10, PROT_READ, fd, 0, 0), ENODEV);
	close(fd);
}

EACH_WAY_BARE(device_api, a_read_only_mount_is_acquired_and_released)
{
	static const char *const ro[] = { "-o", "ro", NULL };
	unsigned char *p;
	int fd;

	way_start(ro);
	fd = openat(mnt.backing_fd, "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, "text", 4), 4);
	close(fd);
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	cr_assert_geq(fd, 0, "%s", strerror(errno));
	MAP_FAILS(gaia_mmap(4, RW, fd, 0, 0), EACCES);
	p = map(fd, 4, PROT_READ, 0, 0);
	OK(gaia_acquire(p, 4, PROT_READ));
	cr_assert_eq(memcmp(p, "text", 4), 0);
	OK(gaia_release(p, 4));
	OK(gaia_munmap(p, 4));
	close(fd);
}

EACH_WAY(device_api, a_descriptor_elsewhere_is_enotty)
{
	int fd = openat(both_root[ON_PLAIN], "f", O_CREAT | O_RDWR, 0644), shm;

	cr_assert_eq(ftruncate(fd, 4096), 0);
	FAILS(gaia_devices(fd, NULL, 0), ENOTTY);
	MAP_FAILS(gaia_mmap(4096, PROT_READ, fd, 0, 0), ENOTTY);
	close(fd);
	shm = memfd_create("elsewhere", MFD_CLOEXEC);
	cr_assert_eq(ftruncate(shm, 4096), 0);
	FAILS(gaia_devices(shm, NULL, 0), ENOTTY);
	MAP_FAILS(gaia_mmap(4096, PROT_READ, shm, 0, 0), ENOTTY);
	close(shm);
	FAILS(gaia_devices(shm, NULL, 0), EBADF);
	MAP_FAILS(gaia_mmap(4096, PROT_READ, shm, 0, 0), EBADF);
}

EACH_WAY(device_api, errors_of_mapping)
{
	int root = both_root[ON_MOUNT], fd = make_file("f", 8192, 'x'), other;

	MAP_FAILS(gaia_mmap(0, RW, fd, 0, 0), EINVAL);
	MAP_FAILS(gaia_mmap(4096, RW, fd, 1, 0), EINVAL);
	MAP_FAILS(gaia_mmap(4096, RW, fd, 4095, 0), EINVAL);
	MAP_FAILS(gaia_mmap(4096, RW, fd, -4096, 0), EINVAL);
	MAP_FAILS(gaia_mmap(4096, PROT_NONE, fd, 0, 0), EINVAL);
	MAP_FAILS(gaia_mmap(4096, PROT_WRITE, fd, 0, 0), EINVAL);
	MAP_FAILS(gaia_mmap(4096, RW | PROT_EXEC, fd, 0, 0), EINVAL);
	MAP_FAILS(gaia_mmap(4096, RW, fd, 0, 1), ENODEV);
	MAP_FAILS(gaia_mmap(4096, RW, fd, 0, -2), ENODEV);
	MAP_FAILS(gaia_mmap(4096, RW, fd, 0, INT32_MAX), ENODEV);
	MAP_FAILS(gaia_mmap(8192, RW, fd, INT64_MAX - 4095, 0), EOVERFLOW);
	MAP_FAILS(gaia_mmap(SIZE_MAX, RW, fd, 4096, 0), EOVERFLOW);
	close(fd);
	fd = openat(root, "f", O_RDONLY);
	MAP_FAILS(gaia_mmap(4096, RW, fd, 0, 0), EACCES);
	close(fd);
	fd = openat(root, "f", O_WRONLY);
	MAP_FAILS(gaia_mmap(4096, PROT_READ, fd, 0, 0), EACCES);
	close(fd);
	MAP_FAILS(gaia_mmap(4096, PROT_READ, root, 0, 0), ENODEV);
	cr_assert_eq(mkfifoat(root, "fifo", 0600), 0);
	other = openat(root, "fifo", O_RDWR | O_NONBLOCK);
	errno = 0;
	cr_assert_eq(gaia_mmap(4096, PROT_READ, other, 0, 0), MAP_FAILED);
	cr_assert(errno == ENODEV || errno == ENOTTY, "%s", strerror(errno));
	close(other);
}

EACH_WAY(device_api, errors_of_ranges)
{
	int fd = make_file("f", 64 * KIB, 'x'), ro;
	unsigned char *p = map(fd, 40000, RW, 4096, 0), *r;

	OK(gaia_acquire(p, 40000, RW));
	OK(gaia_release(p, 40000));
	OK(gaia_acquire(p, 0, RW));
	FAILS(gaia_acquire(p, 40001, RW), EINVAL);
	FAILS(gaia_acquire(p - 1, 10, RW), EINVAL);
	FAILS(gaia_acquire(p + 40000, 1, RW), EINVAL);
	FAILS(gaia_acquire(p, SIZE_MAX, RW), EINVAL);
	FAILS(gaia_acquire(p + 39999, SIZE_MAX - 10, RW), EINVAL);
	FAILS(gaia_acquire(NULL, 1, RW), EINVAL);
	FAILS(gaia_acquire(&fd, sizeof(fd), RW), EINVAL);
	FAILS(gaia_acquire(p, 10, PROT_NONE), EINVAL);
	FAILS(gaia_acquire(p, 10, RW | PROT_EXEC), EINVAL);
	OK(gaia_release(p, 0));
	FAILS(gaia_release(p + 39999, 2), EINVAL);
	OK(gaia_sync(p, 0));
	FAILS(gaia_sync(p, 40001), EINVAL);
	FAILS(gaia_advise(p, 10, -1), EINVAL);
	FAILS(gaia_advise(p, 10, GAIA_DONTNEED + 1), EINVAL);
	FAILS(gaia_advise(p, 10, 99), EINVAL);
	OK(gaia_advise(p, 0, GAIA_WILLNEED));
	FAILS(gaia_munmap(p, 39999), EINVAL);
	FAILS(gaia_munmap(p + 4096, 40000 - 4096), EINVAL);
	FAILS(gaia_munmap(NULL, 40000), EINVAL);
	/* The errors left the mapping alone. */
	OK(gaia_acquire(p, 40000, PROT_READ));
	cr_assert_eq(p[39999], 'x');
	OK(gaia_munmap(p, 40000));
	FAILS(gaia_munmap(p, 40000), EINVAL);
	FAILS(gaia_acquire(p, 10, RW), EINVAL);

	ro = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	r = map(ro, 4096, PROT_READ, 0, 0);
	FAILS(gaia_acquire(r, 4096, RW), EACCES);
	FAILS(gaia_acquire(r, 4096, PROT_WRITE), EACCES);
	OK(gaia_acquire(r, 4096, PROT_READ));
	cr_assert_eq(r[0], 'x');
	OK(gaia_release(r, 4096));
	OK(gaia_munmap(r, 4096));
	/* A mapping for reading through a descriptor that may write. */
	r = map(fd, 4096, PROT_READ, 0, 0);
	FAILS(gaia_acquire(r, 4096, RW), EACCES);
	OK(gaia_munmap(r, 4096));
	close(ro);
	close(fd);
}

/* The library says what the memory may be used for: a page that is to be overwritten is one to write. */
EACH_WAY(device_api, overwrites)
{
	int fd = make_file("f", 64 * KIB, 'x');
	unsigned char *p = map(fd, 64 * KIB, RW, 0, 0);
	struct gaia_range list[] = { { p + 32 * KIB, 4096 }, { p + 40 * KIB, 4096 } };
	char byte;

	OK(gaia_acquire(p + 1, 8192, PROT_WRITE));
	cr_assert_eq(p[0], 'x');
	cr_assert_eq(p[8192], 'x');
	memset(p + 1, 'd', 8192);
	OK(gaia_release(p + 1, 8192));
	for (unsigned at = 0; at < 12288; at++) {
		cr_assert_eq(pread(fd, &byte, 1, at), 1);
		cr_assert_eq(byte, at >= 1 && at < 8193 ? 'd' : 'x', "%u", at);
	}
	OK(gaia_acquirev(list, 2, PROT_WRITE));
	memset(list[0].addr, 'e', 4096);
	memset(list[1].addr, 'e', 4096);
	OK(gaia_releasev(list, 2));
	cr_assert_eq(pread(fd, &byte, 1, 32 * KIB + 4095), 1);
	cr_assert_eq(byte, 'e');
	OK(gaia_munmap(p, 64 * KIB));
	close(fd);
}

static int store_into(void *p)
{
	/* A sanitizer would make a report of it. */
	signal(SIGSEGV, SIG_DFL);
	signal(SIGBUS, SIG_DFL);
	*(volatile char *)p = 'w';
	return 0;
}

EACH_WAY(device_api, a_read_only_mapping_cannot_be_stored_to)
{
	int fd = make_file("f", 4096, 'x'), ro = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	unsigned char *r = map(ro, 4096, PROT_READ, 0, 0);

	OK(gaia_acquire(r, 4096, PROT_READ));
	cr_assert_gt(child_run(store_into, r), 128, "a signal");
	cr_assert_eq(r[0], 'x');
	OK(gaia_release(r, 4096));
	OK(gaia_munmap(r, 4096));
	close(ro);
	close(fd);
}

EACH_WAY(device_api, the_descriptor_may_be_closed)
{
	int fd = make_file("f", 4096, 'x');
	unsigned char *p = map(fd, 4096, RW, 0, 0);
	char got;

	close(fd);
	OK(gaia_acquire(p, 4096, RW));
	p[7] = 'd';
	OK(gaia_release(p, 4096));
	OK(gaia_sync(p, 4096));
	OK(gaia_munmap(p, 4096));
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	cr_assert_eq(pread(fd, &got, 1, 7), 1);
	cr_assert_eq(got, 'd');
	close(fd);
}

EACH_WAY(device_api, ranges_need_no_alignment)
{
	int fd = make_file("f", 3 * MIB, '.');
	unsigned char *p = map(fd, 3 * MIB - 100, RW, 0, 0), got[3];

	/* Over the border of two chunks. */
	OK(gaia_acquire(p + 2 * MIB - 5, 11, RW));
	for (int i = -5; i < 6; i++) {
		cr_assert_eq(p[2 * MIB + i], '.');
		p[2 * MIB + i] = 'd';
	}
	OK(gaia_release(p + 2 * MIB - 5, 11));
	cr_assert_eq(pread(fd, got, 3, 2 * MIB - 6), 3);
	cr_assert_arr_eq(got, ".dd", 3);
	cr_assert_eq(pread(fd, got, 3, 2 * MIB + 4), 3);
	cr_assert_arr_eq(got, "dd.", 3);
	OK(gaia_munmap(p, 3 * MIB - 100));
	close(fd);
}

EACH_WAY(device_api, an_offset_is_where_it_says)
{
	int fd = make_file("f", 5 * MIB, '.');
	unsigned char *p, got;

	cr_assert_eq(pwrite(fd, "here", 4, 3 * MIB + 8192), 4);
	p = map(fd, MIB, RW, 3 * MIB + 4096, 0);
	OK(gaia_acquire(p, MIB, RW));
	cr_assert_arr_eq(p + 4096, "here", 4);
	p[0] = 'd';
	OK(gaia_release(p, MIB));
	cr_assert_eq(pread(fd, &got, 1, 3 * MIB + 4096), 1);
	cr_assert_eq(got, 'd');
	OK(gaia_munmap(p, MIB));
	close(fd);
}

EACH_WAY(device_api, acquiring_again_keeps_what_the_device_wrote)
{
	int fd = make_file("f", 8192, '.');
	unsigned char *p = map(fd, 8192, RW, 0, 0), got[2];

	OK(gaia_acquire(p, 8192, RW));
	p[0] = 'd';
	cr_assert_eq(pwrite(fd, "c", 1, 1), 1);
	OK(gaia_acquire(p, 8192, RW));
	cr_assert_arr_eq(p, "dc", 2);
	OK(gaia_release(p, 8192));
	cr_assert_eq(pread(fd, got, 2, 0), 2);
	cr_assert_arr_eq(got, "dc", 2);
	/* Nothing is acquired: passed over. */
	OK(gaia_release(p, 8192));
	OK(gaia_munmap(p, 8192));
	close(fd);
}

EACH_WAY(device_api, unmapping_drops_what_was_not_released)
{
	int fd = make_file("f", 8192, '.');
	unsigned char *p = map(fd, 8192, RW, 0, 0), got[2];

	OK(gaia_acquire(p, 8192, RW));
	p[0] = 'r';
	OK(gaia_release(p, 8192));
	OK(gaia_acquire(p, 8192, RW));
	p[1] = 'u';
	OK(gaia_munmap(p, 8192));
	cr_assert_eq(pread(fd, got, 2, 0), 2);
	cr_assert_arr_eq(got, "r.", 2);
	p = map(fd, 8192, RW, 0, 0);
	OK(gaia_acquire(p, 8192, RW));
	cr_assert_arr_eq(p, "r.", 2);
	OK(gaia_munmap(p, 8192));
	close(fd);
}

EACH_WAY(device_api, two_mappings_of_one_file)
{
	int fd = make_file("f", 4 * MIB, '.');
	unsigned char *a = map(fd, 4 * MIB, RW, 0, 0), *b = map(fd, MIB, RW, 2 * MIB, 0), got;

	cr_assert_neq(a, b);
	OK(gaia_acquire(a, 4 * MIB, RW));
	OK(gaia_acquire(b, MIB, RW));
	a[0] = 'a';
	b[0] = 'b';
	OK(gaia_release(b, MIB));
	cr_assert_eq(pread(fd, &got, 1, 2 * MIB), 1);
	cr_assert_eq(got, 'b');
	/* The first still holds all of its own. */
	a[2 * MIB + 1] = 'a';
	OK(gaia_release(a, 4 * MIB));
	cr_assert_eq(pread(fd, &got, 1, 2 * MIB + 1), 1);
	cr_assert_eq(got, 'a');
	OK(gaia_munmap(a, 4 * MIB));
	OK(gaia_acquire(b, MIB, PROT_READ));
	cr_assert_arr_eq(b, "ba.", 3);
	OK(gaia_munmap(b, MIB));
	close(fd);
}

/* Files that are passed through, and that somebody can write, are not read ahead. */
EACH_WAY_BARE(device_api, what_follows_is_read_ahead)
{
	unsigned char *p;
	int fd;

	start_with_devices("sim:32M", NULL);
	fd = make_file("f", 12 * MIB, '.');
	cr_assert_eq(pwrite(fd, "x", 1, 7 * MIB), 1);
	/* What is being stored is not waited for. */
	OK(fsync(fd));
	p = map(fd, 12 * MIB, RW, 0, 0);
	OK(gaia_advise(p, 12 * MIB, GAIA_RANDOM));
	OK(gaia_advise(p, 4 * MIB, GAIA_NORMAL));
	OK(gaia_advise(p, 12 * MIB, GAIA_SEQUENTIAL));
	OK(gaia_acquire(p, 2 * MIB, RW));
	while (strcmp(way, "auto") && STATUS("counters", "readahead") < 10 * MIB / 4096)
		usleep(1000);
	OK(gaia_acquire(p + 2 * MIB, 10 * MIB, PROT_READ));
	cr_assert_eq(p[7 * MIB], 'x');
	cr_assert_eq(p[7 * MIB + 1], '.');
	if (strcmp(way, "auto"))
		cr_assert_geq(STATUS("counters", "readahead_used"), 10 * MIB / 4096 - 1);
	OK(gaia_release(p, 12 * MIB));
	OK(gaia_munmap(p, 12 * MIB));
	close(fd);
}

EACH_WAY_BARE(device_api, advice_loses_nothing)
{
	unsigned char *p, got;
	int fd;

	start_with_devices("sim:8M", NULL);
	fd = make_file("f", 6 * MIB, '.');
	p = map(fd, 6 * MIB, RW, 0, 0);
	OK(gaia_advise(p, 6 * MIB, GAIA_WILLNEED));
	OK(gaia_acquire(p, 6 * MIB, RW));
	cr_assert_eq(p[5 * MIB], '.');
	p[5 * MIB] = 'd';
	/* Advice is not an order: what is acquired stays. */
	OK(gaia_advise(p, 6 * MIB, GAIA_DONTNEED));
	cr_assert_eq(p[5 * MIB], 'd');
	OK(gaia_release(p, 6 * MIB));
	OK(gaia_advise(p, 6 * MIB, GAIA_DONTNEED));
	cr_assert_eq(pread(fd, &got, 1, 5 * MIB), 1);
	cr_assert_eq(got, 'd');
	OK(gaia_acquire(p, 6 * MIB, PROT_READ));
	cr_assert_eq(p[5 * MIB], 'd');
	OK(gaia_munmap(p, 6 * MIB));
	close(fd);
}

EACH_WAY(device_api, sync_stores_what_is_released_and_what_cpus_wrote)
{
	static unsigned char want[3 * 4096];
	int fd = make_file("f", sizeof(want), '.');
	unsigned char *p = map(fd, sizeof(want), RW, 0, 0);

	memset(want, '.', sizeof(want));
	OK(gaia_acquire(p, sizeof(want), RW));
	for (size_t i = 0; i < sizeof(want); i += 3)
		p[i] = want[i] = 'd';
	OK(gaia_release(p, sizeof(want)));
	for (size_t i = 1; i < sizeof(want); i += 900) {
		want[i] = 'c';
		cr_assert_eq(pwrite(fd, "c", 1, i), 1);
	}
	OK(gaia_sync(p, sizeof(want)));
	backing_holds("f", want, sizeof(want));
	OK(gaia_munmap(p, sizeof(want)));
	close(fd);
}

EACH_WAY_BARE(device_api, what_does_not_fit_is_enomem_and_acquires_nothing)
{
	struct actor *other;
	unsigned char *p;
	int fd, got;

	start_with_devices("sim:8M", NULL);
	fd = make_file("big", 12 * MIB, 'b');
	close(make_file("other", 8 * MIB, 'o'));
	p = map(fd, 12 * MIB, RW, 0, 0);
	FAILS(gaia_acquire(p, 12 * MIB, RW), ENOMEM);
	/* Nothing is pinned: all of the device is there for another process. */
	other = actor_start("other", 8 * MIB, 0);
	actor_ok(other, ACQUIRE, 0, 8 * MIB, RW);
	FAILS(gaia_acquire(p, 1, PROT_READ), ENOMEM);
	actor_ok(other, STORE, 7 * MIB, 1, 'O');
	actor_ok(other, RELEASE, 0, 8 * MIB, 0);
	/* What fits, fits; what the other released is evicted for it and not lost. */
	OK(gaia_acquire(p + 4 * MIB, 8 * MIB, RW));
	cr_assert_eq(p[11 * MIB], 'b');
	p[11 * MIB] = 'B';
	FAILS(gaia_acquire(p, 4 * MIB, RW), ENOMEM);
	cr_assert_eq(p[11 * MIB], 'B', "a failed acquire leaves what is acquired alone");
	OK(gaia_release(p + 4 * MIB, 8 * MIB));
	actor_sees(other, READ, 7 * MIB, 'O');
	actor_ok(other, ACQUIRE, 0, 8 * MIB, PROT_READ);
	actor_sees(other, LOAD, 7 * MIB, 'O');
	actor_end(other);
	OK(gaia_munmap(p, 12 * MIB));
	cr_assert_eq(pread(fd, &got, 1, 11 * MIB), 1);
	cr_assert_eq(*(char *)&got, 'B');
	close(fd);
}

EACH_WAY_BARE(device_api, a_file_larger_than_home_and_device_together)
{
	static const char *const args[] = { "--home", "8M", "--device", "sim:8M", NULL };
	static unsigned char bytes[MIB];
	unsigned char *p;
	int fd;

	way_start(args);
	fd = openat(both_root[ON_MOUNT], "big", O_CREAT | O_RDWR, 0644);
	for (int i = 0; i < 40; i++) {
		memset(bytes, i, sizeof(bytes));
		cr_assert_eq(pwrite(fd, bytes, MIB, (off_t)i * MIB), MIB);
	}
	p = map(fd, 40 * MIB, RW, 0, 0);
	for (int i = 0; i < 40; i += 4) {
		OK(gaia_acquire(p + i * MIB, 4 * MIB, RW));
		for (int k = 0; k < 4 * MIB; k++)
			p[i * MIB + k]++;
		OK(gaia_release(p + i * MIB, 4 * MIB));
	}
	for (int i = 0; i < 40; i++) {
		cr_assert_eq(pread(fd, bytes, MIB, (off_t)i * MIB), MIB);
		for (int k = 0; k < MIB; k++)
			cr_assert_eq(bytes[k], i + 1, "byte %d of MiB %d", k, i);
	}
	OK(gaia_munmap(p, 40 * MIB));
	close(fd);
	way_unmount();
	fd = openat(mnt.backing_fd, "big", O_RDONLY);
	for (int i = 0; i < 40; i++) {
		cr_assert_eq(pread(fd, bytes, MIB, (off_t)i * MIB), MIB);
		for (int k = 0; k < MIB; k += 97)
			cr_assert_eq(bytes[k], i + 1, "beneath: byte %d of MiB %d", k, i);
	}
	close(fd);
}

#define THREADS 4
#define ROUNDS 50

struct job {
	int index, fd;
	unsigned char *p;
	int failed;
};

/* Each counts up its own bytes of the same pages, half of them through one mapping. */
static void *count_bytes(void *arg)
{
	struct job *j = arg;
	bool own = !j->p;
	unsigned char *p = own ? gaia_mmap(4 * MIB, RW, j->fd, 0, 0) : j->p;

	if (p == MAP_FAILED) {
		j->failed = 1;
		return NULL;
	}
	for (int round = 0; round < ROUNDS && !j->failed; round++) {
		if (gaia_acquire(p, 4 * MIB, RW)) {
			j->failed = 2;
			break;
		}
		for (int i = j->index; i < 4 * MIB; i += 65536 + THREADS)
			p[i]++;
		if (gaia_release(p, 4 * MIB))
			j->failed = 3;
	}
	if (own && gaia_munmap(p, 4 * MIB))
		j->failed = 4;
	return NULL;
}

EACH_WAY(device_api, threads_share_a_connection)
{
	pthread_t thread[THREADS];
	struct job job[THREADS];
	int fd = make_file("f", 4 * MIB, 0), sum = 0;
	unsigned char *one = gaia_mmap(4 * MIB, RW, fd, 0, 0);
	static unsigned char got[4 * MIB];

	cr_assert_neq(one, MAP_FAILED);
	for (int i = 0; i < THREADS; i++) {
		job[i] = (struct job){ .index = i, .fd = fd, .p = i % 2 ? one : NULL };
		cr_assert_eq(pthread_create(&thread[i], NULL, count_bytes, &job[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		cr_assert_eq(job[i].failed, 0, "thread %d failed at step %d", i, job[i].failed);
	}
	cr_assert_eq(pread(fd, got, sizeof(got), 0), (ssize_t)sizeof(got));
	for (int i = 0; i < 4 * MIB; i++) {
		cr_assert(got[i] == 0 || got[i] == ROUNDS, "byte %d was counted to %d", i, got[i]);
		sum += got[i] == ROUNDS;
	}
	cr_assert_gt(sum, THREADS * 60);
	OK(gaia_munmap(one, 4 * MIB));
	close(fd);
}

#define CHUNKS 24

static struct shared {
	unsigned char *p;
	pthread_barrier_t all;
	atomic_int failed;
} shared;

/* Use a page of its own in each chunk, at the same time as all others. */
static void *use_page_of_each_chunk(void *arg)
{
	size_t page = (uintptr_t)arg;

	for (size_t chunk = 0; chunk < CHUNKS; chunk++) {
		unsigned char *p = shared.p + chunk * CHUNK + page * PAGE;

		pthread_barrier_wait(&shared.all);
		if (gaia_acquire(p, PAGE, RW)) {
			shared.failed++;
			continue;
		}
		p[page] += 1 + page;
		shared.failed += gaia_release(p, PAGE) != 0;
	}
	return NULL;
}

/* None may use its page before the chunk is there, whichever of them it is handed to. */
EACH_WAY(device_api, threads_acquire_pages_of_one_chunk_at_the_same_time)
{
	int fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	pthread_t thread[THREADS];
	unsigned char got;

	cr_assert_eq(ftruncate(fd, CHUNKS * CHUNK), 0);
	shared.p = map(fd, CHUNKS * CHUNK, RW, 0, 0);
	pthread_barrier_init(&shared.all, NULL, THREADS);
	for (uintptr_t i = 0; i < THREADS; i++)
		cr_assert_eq(pthread_create(&thread[i], NULL, use_page_of_each_chunk, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	cr_assert_eq(shared.failed, 0);
	OK(gaia_munmap(shared.p, CHUNKS * CHUNK));
	for (off_t i = 0; i < CHUNKS * THREADS; i++) {
		off_t chunk = i / THREADS, page = i % THREADS;

		cr_assert_eq(pread(fd, &got, 1, chunk * CHUNK + page * PAGE + page), 1);
		cr_assert_eq(got, 1 + page, "chunk %ld, page %ld", (long)chunk, (long)page);
	}
	pthread_barrier_destroy(&shared.all);
	close(fd);
}

#define FEW 6 /* chunks; the device has room for two */

/* Counts in its own page of each chunk, in an order of its own. */
static void *count_in_each_chunk(void *arg)
{
	size_t page = (uintptr_t)arg;
	unsigned char counted[FEW] = { 0 };
	uint64_t seed = 1 + page;

	for (int round = 0; round < 200; round++) {
		size_t chunk = next_random(&seed) % FEW;
		unsigned char *p = shared.p + chunk * CHUNK + page * PAGE;

		/* What the others hold may leave no room. */
		while (gaia_acquire(p, PAGE, RW))
			if (errno != ENOMEM)
				shared.failed++;
		shared.failed += p[0] != counted[chunk] || p[PAGE - 1] != counted[chunk];
		p[0] = p[PAGE - 1] = ++counted[chunk];
		shared.failed += gaia_release(p, PAGE) != 0;
	}
	return NULL;
}

/* Chunks come and go under them: none goes that one of them uses, nor comes too late for another. */
EACH_WAY_BARE(device_api, threads_of_one_mapping_share_too_small_a_device)
{
	pthread_t thread[THREADS];
	int fd;

	start_with_devices("sim:4M", NULL);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(ftruncate(fd, FEW * CHUNK), 0);
	shared.p = map(fd, FEW * CHUNK, RW, 0, 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		cr_assert_eq(pthread_create(&thread[i], NULL, count_in_each_chunk, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	cr_assert_eq(shared.failed, 0);
	OK(gaia_munmap(shared.p, FEW * CHUNK));
	close(fd);
}

/* Makes each call with a cancellation pending; index is 6 once all have returned. */
static void *call_though_cancelled(void *arg)
{
	struct job *j = arg;

	pthread_cancel(pthread_self());
	j->p = gaia_mmap(MIB, RW, j->fd, 0, 0);
	j->failed += j->p == MAP_FAILED;
	j->failed += gaia_acquire(j->p, MIB, RW) != 0;
	j->p[5] = 'd';
	j->failed += gaia_release(j->p, MIB) != 0;
	j->failed += gaia_sync(j->p, MIB) != 0;
	j->failed += gaia_advise(j->p, MIB, GAIA_WILLNEED) != 0;
	j->failed += gaia_munmap(j->p, MIB) != 0;
	j->index = 6;
	pthread_testcancel();
	return NULL;
}

/* A thread that is cancelled in a call would leave locks behind. */
EACH_WAY(device_api, a_thread_is_not_cancelled_in_a_call)
{
	int fd = make_file("f", MIB, '.');
	struct job j = { .fd = fd };
	pthread_t thread;
	void *result;
	char got;

	cr_assert_eq(pthread_create(&thread, NULL, call_though_cancelled, &j), 0);
	pthread_join(thread, &result);
	cr_assert_eq(result, PTHREAD_CANCELED);
	cr_assert_eq(j.index, 6);
	cr_assert_eq(j.failed, 0);
	cr_assert_eq(pread(fd, &got, 1, 5), 1);
	cr_assert_eq(got, 'd');
	close(fd);
}

static void ignore(int signal)
{
}

struct storm {
	pthread_t target;
	atomic_uint pause_us; /* between two signals */
	atomic_bool over;
};

static void *send_signals(void *arg)
{
	struct storm *s = arg;

	while (!s->over) {
		unsigned pause_us = s->pause_us;

		pthread_kill(s->target, SIGUSR1);
		if (pause_us)
			usleep(pause_us);
	}
	return NULL;
}

/* The pauses between signals grow until an acquire gets done, however slow it is. */
static int acquire_in_storm(struct storm *storm, void *p)
{
	int err;

	for (storm->pause_us = 100; (err = gaia_acquire(p, PAGE, RW)) && errno == EINTR;)
		storm->pause_us = MIN(2 * storm->pause_us, 5000000u);
	storm->pause_us = 0;
	return err;
}

/* As profilers and runtimes send them. Only an acquire may fail with EINTR. */
EACH_WAY(device_api, signals_fail_no_call_but_acquires)
{
	struct sigaction sa = { .sa_handler = ignore }, old;
	struct storm storm = { .target = pthread_self() };
	int fd = make_file("f", MIB, '.');
	unsigned char *p = map(fd, MIB, RW, 0, 0);
	pthread_t thread;

	sigaction(SIGUSR1, &sa, &old);
	cr_assert_eq(pthread_create(&thread, NULL, send_signals, &storm), 0);
	for (int i = 0; i < 1000; i++) {
		OK(acquire_in_storm(&storm, p));
		p[i]++;
		OK(gaia_release(p, PAGE));
	}
	storm.over = true;
	pthread_join(thread, NULL);
	sigaction(SIGUSR1, &old, NULL);
	OK(gaia_munmap(p, MIB));
	close(fd);
}

EACH_WAY(device_api, many_mappings_come_and_go)
{
	unsigned char *p[100];
	char name[16];
	int fd;

	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		fd = make_file(name, 5000, i);
		p[i] = map(fd, 5000, RW, 0, 0);
		close(fd);
		OK(gaia_acquire(p[i], 5000, RW));
		p[i][4999] = 200;
	}
	for (int i = 99; i >= 0; i--) {
		cr_assert_eq(p[i][0], i);
		OK(gaia_release(p[i], 5000));
		OK(gaia_munmap(p[i], 5000));
	}
	for (int i = 0; i < 100; i++) {
		unsigned char got[2];

		snprintf(name, sizeof(name), "f%d", i);
		fd = openat(both_root[ON_MOUNT], name, O_RDONLY);
		cr_assert_eq(pread(fd, got, 2, 4998), 2);
		cr_assert_eq(got[0], i);
		cr_assert_eq(got[1], 200);
		close(fd);
	}
}

static void *sync_in_a_loop(void *arg)
{
	struct job *j = arg;

	for (int i = 0; i < 200 && !j->failed; i++)
		if (gaia_acquire(j->p, MIB, PROT_READ) || gaia_sync(j->p, MIB) ||
		    gaia_advise(j->p, MIB, GAIA_WILLNEED))
			j->failed = errno;
	return NULL;
}

/* Case 14: the process's read(2) and its invalidations wait on the same kernel pages. */
EACH_WAY(device_api, calls_and_reads_of_one_file_in_one_process_do_not_lock_up)
{
	int fd = make_file("f", MIB, '.');
	struct job j = { .fd = fd, .p = map(fd, MIB, RW, 0, 0) };
	unsigned char *p = map(fd, MIB, RW, 0, 0);
	volatile char *cpu = mmap(NULL, MIB, RW, MAP_SHARED, fd, 0);
	static char buf[MIB];
	pthread_t thread;

	cr_assert_eq(pthread_create(&thread, NULL, sync_in_a_loop, &j), 0);
	for (int i = 0; i < 100; i++) {
		OK(gaia_acquire(p, MIB, RW));
		p[i * 4096 + 1] = 'd';
		cpu[i * 4096 + 2] = 'c';
		OK(gaia_release(p, MIB));
		cr_assert_eq(pread(fd, buf, MIB, 0), MIB);
		cr_assert_arr_eq(buf + i * 4096, ".dc", 3);
		cr_assert_eq(cpu[i * 4096 + 1], 'd');
	}
	pthread_join(thread, NULL);
	cr_assert_eq(j.failed, 0, "%s", strerror(j.failed));
	munmap((void *)cpu, MIB);
	OK(gaia_munmap(p, MIB));
	OK(gaia_munmap(j.p, MIB));
	close(fd);
}

/* ---- lists of ranges ---- */

static unsigned char value_at(int fd, off_t at)
{
	unsigned char byte = 0xee;

	cr_assert_eq(pread(fd, &byte, 1, at), 1);
	return byte;
}

EACH_WAY(device_api, lists_carry_writes_both_ways)
{
	int fd = make_file("f", 6 * MIB, 'x');
	unsigned char *p = map(fd, 6 * MIB, RW, 0, 0), *q;
	struct gaia_range list[] = { { p + 5 * MIB, 10 }, { p + 100, 50 }, { NULL, 0 }, { p + 2 * MIB - 1, 2 }, { p + 5 * MIB, 4096 } };
	int cpu_fd = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);

	q = mmap(NULL, 6 * MIB, RW, MAP_SHARED, cpu_fd, 0);
	cr_assert_neq(q, MAP_FAILED);
	q[2 * MIB] = 'm';
	cr_assert_eq(pwrite(fd, "w", 1, 110), 1);
	OK(gaia_acquirev(list, 5, RW));
	cr_assert_eq(p[110], 'w');
	cr_assert_eq(p[2 * MIB], 'm');
	cr_assert_eq(p[5 * MIB], 'x');
	p[111] = p[2 * MIB - 1] = p[5 * MIB + 9] = 'd';
	OK(gaia_releasev(list, 4));
	cr_assert_eq(value_at(fd, 111), 'd');
	cr_assert_eq(q[2 * MIB - 1], 'd');
	cr_assert_eq(value_at(fd, 5 * MIB + 9), 'd');
	/* It was held twice. */
	p[5 * MIB + 10] = 'e';
	OK(gaia_releasev(list + 4, 1));
	cr_assert_eq(value_at(fd, 5 * MIB + 10), 'e');
	OK(gaia_munmap(p, 6 * MIB));
	munmap(q, 6 * MIB);
	close(cpu_fd);
	close(fd);
}

EACH_WAY(device_api, errors_of_lists)
{
	int fd = make_file("f", 4 * MIB, 'x'), ro = openat(both_root[ON_MOUNT], "f", O_RDONLY | O_CLOEXEC);
	unsigned char *p = map(fd, 4 * MIB, RW, 0, 0), *other = map(fd, MIB, RW, 0, 0), *reader = map(ro, MIB, PROT_READ, 0, 0);
	unsigned char *odd = map(fd, PAGE + 99, RW, 0, 0);
	struct gaia_range *many = calloc((1 << 20) + 1, sizeof(*many));
	struct gaia_range list[] = { { p, 1 }, { p + 4 * MIB - 1, 1 } };

	OK(gaia_acquirev(NULL, 0, RW));
	OK(gaia_releasev(NULL, 0));
	OK(gaia_acquirev(many, 5, PROT_READ));
	FAILS(gaia_acquirev(list, 2, PROT_NONE), EINVAL);
	FAILS(gaia_acquirev(list, 2, PROT_READ | PROT_EXEC), EINVAL);
	list[1].length = 2;
	FAILS(gaia_acquirev(list, 2, RW), EINVAL);
	FAILS(gaia_releasev(list, 2), EINVAL);
	list[1] = (struct gaia_range){ other, 1 };
	FAILS(gaia_acquirev(list, 2, RW), EINVAL);
	list[1] = (struct gaia_range){ p - 1, 2 };
	FAILS(gaia_acquirev(list, 2, RW), EINVAL);
	list[1] = (struct gaia_range){ p + 1, SIZE_MAX };
	FAILS(gaia_acquirev(list, 2, RW), EINVAL);
	/* Behind the mapping, but in its last page. */
	list[0] = (struct gaia_range){ odd, 1 };
	list[1] = (struct gaia_range){ odd + PAGE, 100 };
	FAILS(gaia_acquirev(list, 2, RW), EINVAL);
	FAILS(gaia_releasev(list, 2), EINVAL);
	list[0] = (struct gaia_range){ &fd, 1 };
	FAILS(gaia_acquirev(list, 2, RW), EINVAL);
	FAILS(gaia_acquirev(&(struct gaia_range){ reader, 1 }, 1, RW), EACCES);
	FAILS(gaia_acquirev(many, (1 << 20) + 1, RW), E2BIG);
	FAILS(gaia_releasev(many, (1 << 20) + 1), E2BIG);
	/* Too many holds of one page; none of the others is held either. */
	for (unsigned k = 0; k < 65536; k++)
		many[k] = (struct gaia_range){ p + 100, 1 };
	many[65536] = (struct gaia_range){ p + 2 * MIB, 1 };
	FAILS(gaia_acquirev(many, 65537, PROT_READ), EOVERFLOW);
	evict("f", 0);
	OK(gaia_acquirev(many + 1, 65536, PROT_READ));
	OK(gaia_releasev(many, 65537));
	evict("f", 0);
	free(many);
	OK(gaia_munmap(p, 4 * MIB));
	OK(gaia_munmap(other, MIB));
	OK(gaia_munmap(reader, MIB));
	OK(gaia_munmap(odd, PAGE + 99));
	close(fd);
	close(ro);
}

struct lister {
	unsigned char *p;
	unsigned from;
	int fd;
};

/* As many ranges as there may be: several such lists do not fit the shared memory at the same time, and wait for each other. */
static void *list_all(void *arg)
{
	struct lister *l = arg;
	struct gaia_range *list = calloc(1 << 20, sizeof(*list));

	for (unsigned k = 0; k < 1 << 20; k++)
		list[k] = (struct gaia_range){ l->p + (k * 7919ull + l->from) % (4 * MIB), 1 };
	OK(gaia_acquirev(list, 1 << 20, RW));
	l->p[l->from * 100]++;
	OK(gaia_releasev(list, 1 << 20));
	free(list);
	return NULL;
}

EACH_WAY(device_api, lists_may_be_long)
{
	int fd = make_file("f", 4 * MIB, 0);
	unsigned char *p = map(fd, 4 * MIB, RW, 0, 0);
	struct lister l[5];
	pthread_t thread[5];

	for (unsigned k = 0; k < 5; k++) {
		l[k] = (struct lister){ p, k + 1, fd };
		cr_assert_eq(pthread_create(&thread[k], NULL, list_all, &l[k]), 0);
	}
	for (unsigned k = 0; k < 5; k++)
		pthread_join(thread[k], NULL);
	for (unsigned k = 0; k < 5; k++)
		cr_assert_eq(value_at(fd, (k + 1) * 100), 1);
	evict("f", 0);
	OK(gaia_munmap(p, 4 * MIB));
	close(fd);
}

static int list_in_child(void *arg)
{
	unsigned char *parents = arg, *p;
	int fd = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);

	CHILD_CHECK(gaia_acquirev(&(struct gaia_range){ parents, 1 }, 1, PROT_READ) == -1 && errno == ENOTCONN);
	CHILD_CHECK(gaia_releasev(&(struct gaia_range){ parents, 1 }, 1) == -1 && errno == ENOTCONN);
	p = gaia_mmap(MIB, RW, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(!gaia_acquirev(&(struct gaia_range){ p + PAGE, 1 }, 1, RW));
	p[PAGE] = 'c';
	CHILD_CHECK(!gaia_releasev(&(struct gaia_range){ p + PAGE, 1 }, 1));
	return 0;
}

EACH_WAY(device_api, lists_after_fork)
{
	int fd = make_file("f", MIB, 'x');
	unsigned char *p = map(fd, MIB, RW, 0, 0);
	struct gaia_range one = { p, 1 };

	OK(gaia_acquirev(&one, 1, RW));
	cr_assert_eq(child_run(list_in_child, p), 0);
	p[0] = 'p';
	OK(gaia_releasev(&one, 1));
	cr_assert_eq(value_at(fd, 0), 'p');
	cr_assert_eq(value_at(fd, PAGE), 'c');
	OK(gaia_munmap(p, MIB));
	close(fd);
}
