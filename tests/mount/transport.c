/*
 * transport.c - what holds however requests come from the kernel (suite mount: by /dev/fuse; suite uring: by io_uring, which
 * has a queue for each CPU).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "gaia/client.h"
#include "own_mounts.h"
#include "shell.h"
#include "ways.h"

#define PAGE 4096
#define SIZE (16 * PAGE)
#define RW (PROT_READ | PROT_WRITE)
#define MANY 32 /* of each kind: more than any queue has entries */
#define ROUNDS 10

#define PARAMETER "/sys/module/fuse/parameters/enable_uring"
#define POSSIBLE "/sys/devices/system/cpu/possible"

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

/* Who answers about holes waits for the pages of which the kernel has newer ones. */
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
 * on one CPU, the daemon included, so that they meet one queue.
 */
EACH_WAY_BARE(transport, a_burst_of_those_who_wait_goes_on)
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

/* What was mounted, but not as it was asked for, and then reported about. @why: said on standard error. */
static void expect_dev(struct shell_result *r, const char *why)
{
	cr_assert_eq(r->status, 0, "%s: %d: %s", why, r->status, r->err);
	cr_assert(strstr(r->err, "requests come by /dev/fuse"), "%s: %s", why, r->err);
	cr_assert(strstr(r->err, why), "%s: %s", why, r->err);
	cr_assert(strstr(r->out, "\"transport\": \"dev\""), "%s: %s", why, r->out);
	shell_free(r);
}

/* Where requests by io_uring cannot be had they come as usual, and why is said. */
AUTO_WAY_BARE(transport, where_io_uring_cannot_be_had_status_says_why)
{
	struct shell_result r;

	if (!own_mounts(NULL))
		WAY_SKIP("this user may not mount something over the kernel's parameter");
	way_start(NULL);
	r = shell_run(mnt.dir, 60,
		      "mkdir below above && echo N > off && { [ ! -e " PARAMETER " ] || mount --bind off " PARAMETER "; } && "
		      "\"$GAIAFS\" --transport uring below above && "
		      "\"$GAIA\" status above --json; \"$GAIA\" umount above");
	cr_assert(strstr(r.out, "\"not_uring\": \"the kernel "), "%s", r.out);
	expect_dev(&r, "the kernel ");
}

/* The kernel waits for an entry in the queue of each of its CPUs, and lets no request through before. */
AUTO_WAY_BARE(transport, a_mount_does_not_hang_where_the_cpus_are_told_wrong)
{
	static const char *const wrong[] = { "0,2-3", "0-1,4-5", "1-2", "0", "0-8191", "0-1 ", "" };
	struct shell_result r;

	if (!own_mounts(NULL))
		WAY_SKIP("this user may not mount something over the kernel's parameter");
	way_start(NULL);
	shell_ok(mnt.dir, "mkdir below above && touch cpus && echo Y > on && echo $(cat " POSSIBLE ") > right && "
			  "{ [ ! -e " PARAMETER " ] || mount --bind on " PARAMETER "; } && mount --bind cpus " POSSIBLE);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		r = shell_run(mnt.dir, 20,
			      "echo '%s' > cpus && ! cmp -s cpus right || exit 9; "
			      "\"$GAIAFS\" --transport uring below above && ls above && "
			      "\"$GAIA\" status above --json; \"$GAIA\" umount above",
			      wrong[i]);
		/* 9: of this machine it is right. */
		if (r.status != 9)
			expect_dev(&r, "--transport uring: ");
		else
			shell_free(&r);
	}
}

/* Else the kernel would hold back all requests, or those that meet one CPU. */
AUTO_WAY_BARE(transport, a_ring_that_is_not_complete_is_no_mount)
{
	struct shell_result r;

#ifndef GAIA_FAULTS
	WAY_SKIP("built without fault points (-Dfaults=false)");
#endif
	way_start(NULL);
	r = shell_run(mnt.dir, 60, "mkdir below above && [ \"$(cat " PARAMETER ")\" = Y ] || exit 9; "
				   "GAIAFS_FAULTS=ring.register=errno:ENOMEM,after=3,count=1 "
				   "\"$GAIAFS\" --transport uring below above && exit 8; ! mountpoint above >&2");
	if (r.status == 9)
		WAY_SKIP("the kernel does not do FUSE over io_uring, or has it switched off");
	cr_assert_eq(r.status, 0, "%d: %s", r.status, r.err);
	cr_assert(strstr(r.err, "the mount ends"), "%s", r.err);
	shell_free(&r);
}

/* From now on, for this process and its children. */
static void forbid(unsigned call)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0, "%s", strerror(errno));
}

static void comes_by_dev_without(unsigned call)
{
	struct shell_result r;

	if (geteuid() || access(PARAMETER, F_OK))
		WAY_SKIP("not root, or the kernel does not do FUSE over io_uring");
	way_start(NULL);
	forbid(call);
	r = shell_run(mnt.dir, 60, "mkdir below above && [ \"$(cat " PARAMETER ")\" = Y ] || exit 9; "
				   "\"$GAIAFS\" --transport uring below above && ls above && "
				   "\"$GAIA\" status above --json; \"$GAIA\" umount above");
	if (r.status == 9)
		WAY_SKIP("the kernel has FUSE over io_uring switched off");
	expect_dev(&r, "seccomp");
}

/* As filters of containers do, each a different one. */
AUTO_WAY_BARE(transport, a_filter_of_setup_means_dev)
{
	comes_by_dev_without(SYS_io_uring_setup);
}

AUTO_WAY_BARE(transport, a_filter_of_register_means_dev)
{
	comes_by_dev_without(SYS_io_uring_register);
}

AUTO_WAY_BARE(transport, a_filter_of_enter_means_dev)
{
	comes_by_dev_without(SYS_io_uring_enter);
}
