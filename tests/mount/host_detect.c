/*
 * host_detect.c - what clients store to memory of the host is found by the kernel (client/host_detect.c), on a real mount: the daemon compares these
 * pages alone, and what is published is right, whoever else stores.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../client/protect.h"
#include "gaia/client.h"
#include "gaia/protocol.h"
#include "report.h"
#include "seen.h"
#include "ways.h"

#define PAGE 4096
#define CHUNK (2 << 20)
#define SIZE (4 * CHUNK)
#define PAGES (SIZE / PAGE)
#define RW (PROT_READ | PROT_WRITE)

#define OK(call) cr_assert_eq((call), 0, "%s: %s", #call, gaia_last_error_text())

static int fd = -1;
static unsigned char *p;

static unsigned char *map(void)
{
	unsigned char *at = gaia_mmap(SIZE, RW, fd, 0, GAIA_DEVICE_HOST);

	cr_assert_neq(at, MAP_FAILED, "%s", gaia_last_error_text());
	return at;
}

static void skip_without_kernel(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = FEATURE_WP_ASYNC | UFFD_FEATURE_WP_HUGETLBFS_SHMEM };
	int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
		WAY_SKIP("this kernel does not protect pages asynchronously (Linux 6.7), or userfaultfd(2) is not allowed");
	close(uffd);
}

/* A file of 'x', and a mapping of it that can write. */
static void start_with(const char *huge)
{
	const char *const args[] = { "--device", "none", "--home", "64M", "--huge-pages", huge, NULL };
	static unsigned char piece[CHUNK];

	skip_without_kernel();
	if (!getenv("GAIA_DETECT"))
		setenv("GAIA_DETECT", "auto", 1);
	way_start(args);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	cr_assert_geq(fd, 0);
	memset(piece, 'x', sizeof(piece));
	for (int i = 0; i < SIZE / CHUNK; i++)
		cr_assert_eq(pwrite(fd, piece, CHUNK, (off_t)i * CHUNK), CHUNK);
	cr_assert_eq(fsync(fd), 0);
	p = map();
}

static void start(void)
{
	start_with("off");
}

static void end(void)
{
	OK(gaia_munmap(p, SIZE));
	close(fd);
}

static long compared(void)
{
	return STATUS("counters", "compared_pages");
}

/* By read(2) here, and by another process. */
static void expect_on_file(off_t at, char byte)
{
	char seen = 0;
	int status;
	pid_t pid;

	cr_assert_eq(pread(fd, &seen, 1, at), 1);
	cr_assert_eq(seen, byte, "at %ld: '%c'", (long)at, seen);
	pid = fork();
	if (pid == 0) {
		int own = openat(both_root[ON_MOUNT], "f", O_RDONLY | O_CLOEXEC);
		char *mapped = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, own, at / PAGE * PAGE);

		/* (There are no shared mappings where each call is passed on.) */
		if (pread(own, &seen, 1, at) != 1 || seen != byte || (mapped != MAP_FAILED && mapped[at % PAGE] != byte))
			_exit(1);
		_exit(0);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0, "another process sees something else at %ld", (long)at);
}

EACH_WAY_BARE(host_detect, only_what_was_stored_to_is_compared)
{
	static const off_t at[] = { 0, 3 * PAGE - 1, 3 * PAGE, CHUNK + 77, SIZE - 1 };
	long before;

	start();
	for (char byte = 'a'; byte < 'f'; byte++) {
		OK(gaia_acquire(p, SIZE, RW));
		for (unsigned k = 0; k < 5; k++)
			p[at[k]] = (unsigned char)byte;
		before = compared();
		OK(gaia_release(p, SIZE));
		cr_assert_eq(compared() - before, 5);
		for (unsigned k = 0; k < 5; k++)
			expect_on_file(at[k], byte);
		expect_on_file(PAGE, 'x');
	}
	cr_assert_eq(STATUS("counters", "released_pages"), 25);
	before = compared();
	OK(gaia_acquire(p, SIZE, RW));
	OK(gaia_release(p, SIZE));
	cr_assert_eq(compared(), before);
	end();
}

/* Of memory that is one page to the kernel. */
EACH_WAY_BARE(host_detect, of_huge_pages_those_are_compared_that_were_stored_to)
{
	long before;

	start_with("on");
	for (char byte = 'a'; byte < 'f'; byte++) {
		OK(gaia_acquire(p, SIZE, RW));
		cr_assert_eq(p[3 * CHUNK + 5], 'x');
		p[CHUNK + 7 * PAGE] = (unsigned char)byte;
		before = compared();
		OK(gaia_release(p, SIZE));
		cr_assert_geq(compared() - before, 1);
		cr_assert_leq(compared() - before, CHUNK / PAGE);
		expect_on_file(CHUNK + 7 * PAGE, byte);
		expect_on_file(CHUNK + 8 * PAGE, 'x');
	}
	/* A part of one. */
	OK(gaia_acquire(p + CHUNK, CHUNK / 2, RW));
	p[CHUNK + 9 * PAGE] = 'z';
	OK(gaia_release(p + CHUNK, CHUNK / 2));
	expect_on_file(CHUNK + 9 * PAGE, 'z');
	end();
}

EACH_WAY_BARE(host_detect, all_is_compared_if_the_daemon_is_to_look)
{
	setenv("GAIA_DETECT", "daemon", 1);
	start();
	OK(gaia_acquire(p, SIZE, RW));
	p[5] = 'a';
	OK(gaia_release(p, SIZE));
	cr_assert_eq(compared(), PAGES);
	expect_on_file(5, 'a');
	end();
}

/* A store is a hint: what it has changed is compared. */
EACH_WAY_BARE(host_detect, what_stays_as_it_was_moves_no_times)
{
	const struct timespec long_ago[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	struct stat st;

	start();
	OK(gaia_acquire(p, SIZE, RW));
	p[5] = 'a';
	OK(gaia_release(p, SIZE));
	cr_assert_eq(futimens(fd, long_ago), 0);
	for (int round = 0; round < 2; round++) {
		long before = compared();

		OK(gaia_acquire(p, SIZE, RW));
		((volatile unsigned char *)p)[5] = 'a';
		((volatile unsigned char *)p)[3 * CHUNK] = 'x';
		OK(gaia_release(p, SIZE));
		cr_assert_eq(compared() - before, 2);
	}
	/* A page is less than the library looks at. */
	OK(gaia_acquire(p, PAGE, RW));
	OK(gaia_release(p, PAGE));
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &st, 0), 0);
	cr_assert_eq(st.st_mtim.tv_sec, 1000);
	cr_assert_eq(STATUS("counters", "released_pages"), 1);
	end();
}

/* Of what others hold, too, nobody's word is taken: the memory is one. */
EACH_WAY_BARE(host_detect, stores_by_another_mapping_are_found)
{
	unsigned char *q;
	long before;

	start();
	q = map();
	for (unsigned round = 0; round < 3; round++) {
		unsigned char a = (unsigned char)('a' + round), b = (unsigned char)('A' + round);

		OK(gaia_acquire(p, SIZE, RW));
		OK(gaia_acquire(q, SIZE, RW));
		q[1] = b;
		p[2] = a;
		p[CHUNK + 1] = a;
		q[CHUNK + 2] = b;
		/* By turns. */
		OK(gaia_release(round % 2 ? p : q, SIZE));
		p[PAGE] = q[2 * PAGE] = 'z';
		OK(gaia_release(round % 2 ? q : p, SIZE));
		expect_on_file(1, (char)b);
		expect_on_file(2, (char)a);
		expect_on_file(CHUNK + 1, (char)a);
		expect_on_file(CHUNK + 2, (char)b);
		expect_on_file(3, 'x');
	}
	/* One after the other each is alone. */
	for (unsigned round = 0; round < 4; round++) {
		unsigned char *at = round % 2 ? p : q;

		OK(gaia_acquire(at, SIZE, RW));
		at[10 + round] = '1';
		before = compared();
		OK(gaia_release(at, SIZE));
		cr_assert_eq(compared() - before, 1);
		expect_on_file(10 + round, '1');
	}
	OK(gaia_munmap(q, SIZE));
	end();
}

/* A process that acquires what is held here, stores, and releases: when it is told to, by a byte. */
static pid_t other_client(int told, int tells)
{
	pid_t pid = fork();
	char byte = 0;

	if (pid)
		return pid;
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);
	p = gaia_mmap(SIZE, RW, fd, 0, GAIA_DEVICE_HOST);
	if (p == MAP_FAILED || gaia_acquire(p, SIZE, RW))
		_exit(1);
	if (write(tells, &byte, 1) != 1 || read(told, &byte, 1) != 1)
		_exit(2);
	p[7] = p[3 * CHUNK + 7] = (unsigned char)byte;
	_exit(gaia_release(p, SIZE) || gaia_munmap(p, SIZE) ? 3 : 0);
}

EACH_WAY_BARE(host_detect, stores_of_another_process_are_found)
{
	int to[2], from[2], status;
	char byte = 'o';
	pid_t pid;

	WAY_NOT_FOR_ASAN;
	start();
	OK(pipe2(to, O_CLOEXEC));
	OK(pipe2(from, O_CLOEXEC));
	OK(gaia_acquire(p, SIZE, RW));
	p[8] = 'p';
	pid = other_client(to[0], from[1]);
	cr_assert_eq(read(from[0], &(char){ 0 }, 1), 1);
	p[3 * CHUNK + 8] = 'p';
	cr_assert_eq(write(to[1], &byte, 1), 1);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
	expect_on_file(7, 'o');
	p[9] = 'q';
	OK(gaia_release(p, SIZE));
	for (unsigned k = 0; k < 2; k++) {
		expect_on_file((off_t)k * 3 * CHUNK + 7, 'o');
		expect_on_file((off_t)k * 3 * CHUNK + 8, 'p');
	}
	expect_on_file(9, 'q');
	expect_on_file(10, 'x');
	end();
}

EACH_WAY_BARE(host_detect, bytes_of_programs_are_merged)
{
	start();
	for (char byte = 'a'; byte < 'e'; byte++) {
		OK(gaia_acquire(p, SIZE, RW));
		cr_assert_eq(pwrite(fd, &byte, 1, 5 * PAGE), 1);
		cr_assert_eq(pwrite(fd, &byte, 1, 9 * PAGE), 1);
		p[5 * PAGE + 1] = (unsigned char)byte;
		p[CHUNK] = (unsigned char)byte;
		OK(gaia_release(p, SIZE));
		expect_on_file(5 * PAGE, byte);
		expect_on_file(5 * PAGE + 1, byte);
		expect_on_file(9 * PAGE, byte);
		expect_on_file(CHUNK, byte);
		OK(gaia_acquire(p, SIZE, PROT_READ));
		cr_assert_eq(p[5 * PAGE], byte);
		cr_assert_eq(p[9 * PAGE], byte);
		cr_assert_eq(p[CHUNK], byte);
		OK(gaia_release(p, SIZE));
	}
	end();
}

/* A system call that has pinned the memory stores to it without its page tables. Pinning it counts as a store. */
EACH_WAY_BARE(host_detect, what_was_pinned_since_is_found)
{
	struct iovec buffer;
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	int zeros;

	start();
	cr_assert_eq(io_uring_queue_init(1, &ring, 0), 0);
	zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	for (unsigned round = 0; round < 3; round++) {
		off_t at = (1 + round) * (CHUNK / 2);

		OK(gaia_acquire(p, SIZE, RW));
		buffer = (struct iovec){ p + at, 2 * PAGE };
		cr_assert_eq(io_uring_register_buffers(&ring, &buffer, 1), 0);
		io_uring_prep_read_fixed(io_uring_get_sqe(&ring), zeros, p + at + 10, PAGE, 0, 0);
		cr_assert_eq(io_uring_submit(&ring), 1);
		cr_assert_eq(io_uring_wait_cqe(&ring, &cqe), 0);
		cr_assert_eq(cqe->res, PAGE);
		io_uring_cqe_seen(&ring, cqe);
		cr_assert_eq(io_uring_unregister_buffers(&ring), 0);
		OK(gaia_release(p, SIZE));
		expect_on_file(at + 9, 'x');
		expect_on_file(at + 10, 0);
		expect_on_file(at + PAGE + 9, 0);
		expect_on_file(at + PAGE + 10, 'x');
	}
	io_uring_queue_exit(&ring);
	close(zeros);
	end();
}

/* To read and to write by turns: the chunk is shown anew each time. And so it is when the daemon has taken it back. */
EACH_WAY_BARE(host_detect, what_comes_and_goes_is_armed_anew)
{
	struct gaia_ioc_file io = { .from = GAIA_HOST, .length = SIZE };
	long before;

	start();
	for (unsigned round = 0; round < 6; round++) {
		OK(gaia_acquire(p, SIZE, PROT_READ));
		cr_assert_eq(p[CHUNK + round], 'x');
		OK(gaia_release(p, SIZE));
		if (round % 2)
			cr_assert_eq(ioctl(fd, GAIA_IOC_EVICT, &io), 0);
		OK(gaia_acquire(p, SIZE, RW));
		p[CHUNK + round] = 'r';
		before = compared();
		OK(gaia_release(p, SIZE));
		cr_assert_eq(compared() - before, 1);
		expect_on_file(CHUNK + round, 'r');
	}
	end();
}

/* What was stored beyond the end, and before it in the same page. */
EACH_WAY_BARE(host_detect, bytes_beyond_the_end_are_dropped)
{
	char seen[4];

	start();
	cr_assert_eq(ftruncate(fd, CHUNK + 100), 0);
	OK(gaia_acquire(p, SIZE, RW));
	p[CHUNK + 50] = 'i';
	p[CHUNK + 200] = 'o';
	OK(gaia_release(p, SIZE));
	expect_on_file(CHUNK + 50, 'i');
	cr_assert_eq(ftruncate(fd, SIZE), 0);
	cr_assert_eq(pread(fd, seen, 4, CHUNK + 199), 4);
	cr_assert_arr_eq(seen, "\0\0\0\0", 4);
	/* What is cut off while it is held is void. */
	OK(gaia_acquire(p, SIZE, RW));
	cr_assert_eq(ftruncate(fd, CHUNK), 0);
	cr_assert_eq(ftruncate(fd, SIZE), 0);
	p[CHUNK - 1] = 'n';
	OK(gaia_release(p, SIZE));
	expect_on_file(CHUNK - 1, 'n');
	expect_on_file(CHUNK - 2, 'x');
	expect_on_file(CHUNK + 50, 0);
	OK(gaia_acquire(p, SIZE, RW));
	p[CHUNK + 7] = 'v';
	OK(gaia_release(p, SIZE));
	expect_on_file(CHUNK + 7, 'v');
	end();
}
