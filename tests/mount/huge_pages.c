/* huge_pages.c - what programs map of simulated devices and of the host becomes huge pages (--huge-pages). */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "huge_pages.h"
#include "report.h"
#include "ways.h"

#define MIB (1 << 20)
#define CHUNK (2 * MIB)
#define CHUNKS 3
#define SIZE (CHUNKS * CHUNK)
#define RW (PROT_READ | PROT_WRITE)

#define OK(call) cr_assert_eq((call), 0, "%s: %s", #call, gaia_last_error_text())

static unsigned char content[SIZE];

static int make_file(void)
{
	int fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR | O_CLOEXEC, 0644);

	for (size_t i = 0; i < SIZE; i++)
		content[i] = (unsigned char)(i * 13 + i / 4096);
	cr_assert_eq(pwrite(fd, content, SIZE, 0), SIZE);
	cr_assert_eq(fsync(fd), 0);
	return fd;
}

/* Touching is what shows it: mappings that exist find huge pages when they next fault. */
static void await_huge(const unsigned char *p)
{
	time_t end = time(NULL) + HANG_SECONDS;

	for (unsigned k = 0; k < CHUNKS; k++) {
		while (!huge_pages_are_at(p + k * (size_t)CHUNK)) {
			cr_assert(time(NULL) < end, "chunk %u is not huge; the daemon has made %ld", k, STATUS("counters", "huge_chunks"));
			usleep(10000);
		}
	}
	cr_assert_geq(STATUS("counters", "huge_chunks"), CHUNKS);
}

static void start(const char *huge)
{
	const char *args[] = { "--device", "sim:32M,strict=off", "--home", "64M", "--huge-pages", huge, NULL };

	if (!huge_pages_can_be_had())
		WAY_SKIP("this kernel makes no huge pages of shared memory");
	way_start(args);
}

static void become_huge_and_share(int device)
{
	unsigned char *p, *q;
	int fd;

	start("on");
	fd = make_file();
	p = gaia_mmap(SIZE, RW, fd, 0, device);
	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
	OK(gaia_acquire(p, SIZE, RW));
	await_huge(p);
	cr_assert_eq(memcmp(p, content, SIZE), 0);
	for (size_t i = 0; i < SIZE; i += 5000)
		p[i] = content[i] ^= 0xff;
	OK(gaia_release(p, SIZE));
	q = gaia_mmap(SIZE, PROT_READ, fd, 0, device);
	cr_assert_neq(q, MAP_FAILED, "%s", gaia_last_error_text());
	OK(gaia_acquire(q, SIZE, PROT_READ));
	cr_assert_eq(memcmp(q, content, SIZE), 0);
	OK(gaia_release(q, SIZE));
	/* After it CPU programs read the same. */
	for (size_t i = 0; i < SIZE; i += CHUNK / 2) {
		unsigned char bytes[4096];

		cr_assert_eq(pread(fd, bytes, sizeof(bytes), (off_t)i), (ssize_t)sizeof(bytes));
		cr_assert_eq(memcmp(bytes, content + i, sizeof(bytes)), 0);
	}
	OK(gaia_munmap(q, SIZE));
	OK(gaia_munmap(p, SIZE));
	close(fd);
}

EACH_WAY_BARE(huge_pages, of_a_device)
{
	become_huge_and_share(0);
}

EACH_WAY_BARE(huge_pages, of_the_host)
{
	become_huge_and_share(GAIA_DEVICE_HOST);
}

/* The view that readers on the host share is home itself. */
EACH_WAY_BARE(huge_pages, of_readers_on_the_host)
{
	unsigned char *p;
	int fd;

	start("on");
	close(make_file());
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY | O_CLOEXEC);
	p = gaia_mmap(SIZE, PROT_READ, fd, 0, GAIA_DEVICE_HOST);
	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
	OK(gaia_acquire(p, SIZE, PROT_READ));
	await_huge(p);
	cr_assert_eq(memcmp(p, content, SIZE), 0);
	OK(gaia_release(p, SIZE));
	OK(gaia_munmap(p, SIZE));
	close(fd);
}

EACH_WAY_BARE(huge_pages, can_be_left_out)
{
	unsigned char *p;
	int fd;

	start("off");
	fd = make_file();
	p = gaia_mmap(SIZE, RW, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
	OK(gaia_acquire(p, SIZE, RW));
	cr_assert_eq(memcmp(p, content, SIZE), 0);
	cr_assert_not(mnt_has_thread(&mnt, "gaia-huge"), "nobody is there to do it");
	cr_assert_eq(STATUS("counters", "huge_chunks"), 0);
	OK(gaia_release(p, SIZE));
	OK(gaia_munmap(p, SIZE));
	close(fd);
}
