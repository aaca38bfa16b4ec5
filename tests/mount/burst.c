/*
 * burst.c - many simultaneous requests that wait until the kernel has written pages back.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "gaia/client.h"
#include "ways.h"

#define PAGE 4096
#define SIZE (16 * PAGE)
#define RW (PROT_READ | PROT_WRITE)
#define MANY 32 /* of each kind: together far more than threads that serve */
#define ROUNDS 10

/* Each of the processes has a byte of its own in every page of the file. */
static void store(unsigned char *p, unsigned own, int value)
{
	for (unsigned at = own; at < SIZE; at += PAGE)
		p[at] = (unsigned char)value;
}

static void work_on_device(int fd, unsigned own)
{
	unsigned char *p = gaia_mmap(SIZE, RW, fd, 0, 0);

	if (p == MAP_FAILED)
		_exit(2);
	for (int k = 1; k <= ROUNDS; k++) {
		if (gaia_acquire(p, SIZE, RW))
			_exit(3);
		store(p, own, k);
		if (gaia_release(p, SIZE))
			_exit(4);
	}
}

/* To answer about holes, the daemon waits until the kernel has written back its newer pages. */
static void work_on_cpu(int fd, unsigned own)
{
	unsigned char *p = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		_exit(2);
	for (int k = 1; k <= ROUNDS; k++) {
		store(p, own, k);
		if (lseek(fd, 0, SEEK_HOLE) != SIZE)
			_exit(3);
	}
}

static pid_t begin(unsigned own, int start[2])
{
	char path[PATH_MAX + 16], c;
	pid_t pid = fork();
	int fd;

	cr_assert_geq(pid, 0);
	if (pid)
		return pid;
	close(start[1]);
	snprintf(path, sizeof(path), "%s/f", mnt.path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || read(start[0], &c, 1) != 0)
		_exit(1);
	if (own < MANY)
		work_on_device(fd, own);
	else
		work_on_cpu(fd, own);
	_exit(0);
}

/*
 * Acquires, releases and questions about holes wait until the kernel has written pages back; that takes requests, too. All
 * on one CPU, the daemon included.
 */
EACH_WAY_BARE(burst, of_requests_that_wait_is_served)
{
	static const char *const args[] = { "--device", "sim:16M", NULL };
	static unsigned char bytes[SIZE];
	int fd, status, start[2];
	pid_t pid[2 * MANY];
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	cr_assert_eq(sched_setaffinity(0, sizeof(one), &one), 0);
	way_start(args);
	way_make_cached("f");
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	cr_assert_eq(write(fd, bytes, SIZE), SIZE);

	cr_assert_eq(pipe2(start, O_CLOEXEC), 0);
	for (unsigned i = 0; i < 2 * MANY; i++)
		pid[i] = begin(i, start);
	close(start[0]);
	close(start[1]); /* now, all at once */
	for (unsigned i = 0; i < 2 * MANY; i++) {
		cr_assert_eq(waitpid(pid[i], &status, 0), pid[i]);
		cr_assert_eq(status, 0, "process %u: %x", i, status);
	}

	cr_assert_eq(pread(fd, bytes, SIZE, 0), SIZE);
	for (unsigned at = 0; at < SIZE; at++)
		cr_assert_eq(bytes[at], at % PAGE < 2 * MANY ? ROUNDS : 0, "byte %u", at);
	close(fd);
}
