/*
 * client_host_detect.c - tests of client/host_detect.c: what the library tells the daemon of stores to memory of the host, with the daemon's side of
 * clients over a played cache. They need userfaultfd(2) and PAGEMAP_SCAN (Linux 6.7), except those of what is done without.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../client/host_detect.h"
#include "../../client/protect.h"
#include "base/log.h"
#include "fake_daemon.h"
#include "gaia/client.h"

#define RW (PROT_READ | PROT_WRITE)
#define CHUNKS 4
#define PAGES (CHUNKS * GAIA_CHUNK_PAGES)
#define LENGTH ((size_t)CHUNKS * GAIA_CHUNK)
#define AT(page) ((size_t)(page) * GAIA_PAGE)

/* Not in the headers of older systems. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static int file;
static unsigned host;
static unsigned char *at;

static int push(int fd, off_t off, off_t len)
{
	return 0;
}

static unsigned char *map(void)
{
	return gaia_mmap(LENGTH, RW, file, 0, (int)host);
}

static void play_daemon(void)
{
	setenv("GAIA_DETECT", "auto", 1);
	log_set_level(LOG_LEVEL_ERROR);
	wire_sys.ioctl = fake_ioctl;
	wire_sys.push = push;
	fake_start();
	file = fake_file();
	host = fake_device("host", (unsigned char[16]){ 1 });
}

static void skip_without_kernel(void)
{
	int uffd = uffd_open_user_mode(FEATURE_WP_ASYNC | UFFD_FEATURE_WP_HUGETLBFS_SHMEM), pagemap = pagemap_open();

	if (uffd < 0 || pagemap < 0)
		cr_skip_test("this kernel does not protect pages asynchronously (Linux 6.7), or userfaultfd(2) is not allowed");
	close(uffd);
	close(pagemap);
}

static void begin(void)
{
	skip_without_kernel();
	play_daemon();
	at = map();
	cr_assert_neq(at, MAP_FAILED, "%s", gaia_last_error_text());
	cr_assert_neq(fake_seen().detects_id, 0);
}

static void end(void)
{
	if (at)
		cr_assert_eq(gaia_munmap(at, LENGTH), 0);
	close(file);
	fake_stop();
}

TestSuite(stores, .init = begin, .fini = end);
TestSuite(kept, .init = begin, .fini = end);
TestSuite(chosen, .init = begin, .fini = end);
TestSuite(without, .init = play_daemon, .fini = end);

#define OK(call) cr_assert_eq((call), 0, "%s: %s", #call, gaia_last_error_text())

static void acquire(unsigned page, unsigned n, int prot)
{
	OK(gaia_acquire(at + AT(page), AT(n), prot));
}

static void release(unsigned page, unsigned n)
{
	OK(gaia_release(at + AT(page), AT(n)));
}

/* Release the pages: whether it has told what has changed. */
static bool tells(unsigned page, unsigned n)
{
	unsigned before = fake_seen().told;

	release(page, n);
	return fake_seen().told > before;
}

static bool is_told(unsigned page)
{
	struct fake_cache seen = fake_seen();

	for (size_t k = 0; k < seen.n_found; k++)
		if (seen.found[k].offset <= AT(page) && AT(page) < seen.found[k].offset + seen.found[k].length)
			return true;
	return false;
}

/* The release of these, which are many, tells of no page but one. */
#define expect_only(page, n, changed)                                \
	do {                                                         \
		cr_assert(tells(page, n));                           \
		cr_assert_eq(fake_seen().n_found, 1);                \
		cr_assert_eq(fake_seen().found[0].offset, AT(changed)); \
		cr_assert_eq(fake_seen().found[0].length, GAIA_PAGE); \
	} while (0)
#define expect_none(page, n)                          \
	do {                                          \
		cr_assert(tells(page, n));            \
		cr_assert_eq(fake_seen().n_found, 0); \
	} while (0)

/* ---- what is told ---- */

Test(stores, are_told)
{
	acquire(0, PAGES, RW);
	at[AT(3)]++;
	at[AT(4) + 4095] = at[AT(4) + 4095];
	*(volatile char *)&at[AT(5)];
	*(volatile char *)&at[AT(4) + 4095] = 7;
	at[AT(700) + 17]++;
	cr_assert(tells(0, PAGES));
	cr_assert_eq(fake_seen().n_found, 2);
	cr_assert_eq(fake_seen().found[0].offset, AT(3));
	cr_assert_eq(fake_seen().found[0].length, AT(2));
	cr_assert_eq(fake_seen().found[1].offset, AT(700));
	cr_assert_eq(fake_seen().found[1].length, GAIA_PAGE);
}

/* Neither what was never touched, nor what was loaded from. */
Test(stores, are_none_of_what_is_only_read)
{
	volatile unsigned char sum = 0;

	acquire(0, PAGES, RW);
	for (unsigned i = 0; i < PAGES / 2; i++)
		sum += at[AT(i)];
	expect_none(0, PAGES);
	acquire(0, PAGES, RW);
	for (unsigned i = 0; i < PAGES; i++)
		sum += at[AT(i)];
	expect_none(0, PAGES);
}

Test(stores, are_found_in_each_hold)
{
	for (unsigned round = 0; round < 5; round++) {
		acquire(0, PAGES, RW);
		at[AT(100 * round)]++;
		expect_only(0, PAGES, 100 * round);
	}
	acquire(0, PAGES, RW);
	expect_none(0, PAGES);
}

/* Of a page that was there, and of one that was not; in the kernel's own way, and to the end of it. */
Test(stores, of_system_calls_are_told)
{
	int fds[2];
	char bytes[GAIA_PAGE + 2] = { 0 };

	OK(pipe2(fds, O_CLOEXEC));
	acquire(0, PAGES, RW);
	at[AT(20)]++;
	release(0, PAGES);
	acquire(0, PAGES, RW);
	cr_assert_eq(write(fds[1], bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
	cr_assert_eq(read(fds[0], at + AT(20) - 1, sizeof(bytes)), (ssize_t)sizeof(bytes));
	cr_assert_eq(write(fds[1], bytes, 1), 1);
	cr_assert_eq(read(fds[0], at + AT(900), 1), 1);
	cr_assert(tells(0, PAGES));
	cr_assert_eq(fake_seen().n_found, 2);
	cr_assert_eq(fake_seen().found[0].offset, AT(19));
	cr_assert_eq(fake_seen().found[0].length, AT(3));
	cr_assert(is_told(900));
	close(fds[0]);
	close(fds[1]);
}

/* The program may touch it by other ways than loads and stores. */
Test(stores, of_another_process_are_told)
{
	pid_t parent = getpid(), pid;
	int status;

	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	acquire(0, PAGES, RW);
	pid = fork();
	if (pid == 0) {
		char byte = 7;
		struct iovec from = { &byte, 1 }, to = { at + AT(9), 1 };

		_exit(syscall(SYS_process_vm_writev, parent, &from, 1, &to, 1, 0) == 1 ? 0 : errno == EPERM ? 2 : 1);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	if (WEXITSTATUS(status) == 2)
		cr_skip_test("process_vm_writev(2) is not allowed here");
	cr_assert_eq(status, 0);
	cr_assert_eq(at[AT(9)], 7);
	expect_only(0, PAGES, 9);
}

Test(stores, of_lists_are_told)
{
	struct gaia_range list[] = { { at + AT(600), AT(100) }, { at, AT(50) } };

	OK(gaia_acquirev(list, 2, RW));
	at[AT(1)]++;
	at[AT(699)]++;
	OK(gaia_releasev(list, 2));
	cr_assert_eq(fake_seen().told, 1);
	cr_assert_eq(fake_seen().n_found, 2);
	cr_assert(is_told(1) && is_told(699));
}

Test(stores, beyond_the_end_are_not_known)
{
	fake_chunks = 2;
	acquire(0, PAGES, RW);
	at[AT(1)]++;
	cr_assert(tells(0, PAGES));
	cr_assert_eq(fake_seen().n_found, 2);
	cr_assert(is_told(1) && !is_told(2) && is_told(2 * GAIA_CHUNK_PAGES) && is_told(PAGES - 1));
	fake_chunks = 0;
}

/* Two threads, say: what the first has published is not known to the second. */
Test(stores, to_what_is_held_twice_are_not_known)
{
	acquire(0, 64, RW);
	acquire(32, 64, RW);
	cr_assert(tells(0, 64));
	cr_assert(!is_told(31) && is_told(32) && is_told(63));
	cr_assert(tells(32, 64));
	cr_assert(is_told(32) && is_told(63) && !is_told(64));
	acquire(0, 96, RW);
	expect_none(0, 96);
}

/* What is held may be pinned, and stored to by devices, at any time: page tables do not tell. */
Test(stores, to_what_was_held_already_are_not_known)
{
	acquire(70, 1, PROT_READ);
	acquire(0, PAGES, RW);
	expect_only(0, PAGES, 70);
	release(70, 1);
	acquire(0, PAGES, RW);
	expect_none(0, PAGES);
}

Test(stores, of_what_was_started_are_not_known)
{
	int fd = gaia_acquire_start(at, AT(64), RW);

	cr_assert_geq(fd, 0);
	OK(gaia_wait(fd));
	cr_assert(!tells(0, 64));
}

/* ---- the program's mappings, and the kernel's memory ---- */

static void store_one(unsigned page)
{
	acquire(0, PAGES, RW);
	at[AT(page)]++;
}

Test(kept, what_is_unmapped_by_the_kernel_is_known)
{
	store_one(3);
	at[AT(3)]++;
	/* The kernel leaves a mark of what was protected, and none of what was not. */
	cr_assert_eq(madvise(at, LENGTH, MADV_DONTNEED), 0);
	expect_only(0, PAGES, 3);
	store_one(4);
	(void)madvise(at, LENGTH, MADV_PAGEOUT);
	cr_assert(tells(0, PAGES));
	cr_assert(is_told(4));
	cr_assert(!is_told(700));
	/* Then the kernel may need no page table for it. */
	acquire(0, PAGES, RW);
	memset(at + GAIA_CHUNK, 1, GAIA_CHUNK);
	cr_assert_eq(madvise(at, LENGTH, MADV_DONTNEED), 0);
	cr_assert(tells(0, PAGES));
	cr_assert_eq(fake_seen().n_found, 1);
	cr_assert_eq(fake_seen().found[0].offset, GAIA_CHUNK);
	cr_assert_eq(fake_seen().found[0].length, GAIA_CHUNK);
}

Test(kept, other_rights_are_no_stores)
{
	store_one(3);
	cr_assert_eq(mprotect(at + AT(1), AT(600), PROT_READ), 0);
	cr_assert_eq(mprotect(at + AT(1), AT(600), PROT_NONE), 0);
	cr_assert_eq(mprotect(at + AT(1), AT(600), RW), 0);
	expect_only(0, PAGES, 3);
	store_one(4);
	expect_only(0, PAGES, 4);
}

/* The memory becomes a huge page, elsewhere and here, before the stores and behind them. */
Test(kept, huge_pages_hide_no_store)
{
	unsigned char *chunk;
	bool collapses;

	acquire(0, PAGES, RW);
	release(0, PAGES);
	chunk = fake_chunk(fake_seen().detects_id, 1);
	memset(chunk, 1, GAIA_CHUNK);
	/* Mapped as one page where the program sees it, too, before it is armed. */
	collapses = !madvise(chunk, GAIA_CHUNK, MADV_COLLAPSE);
	for (unsigned round = 0; round < 3; round++) {
		acquire(0, PAGES, RW);
		*(volatile char *)&at[AT(513)];
		at[AT(600 + round)]++;
		if (collapses && round == 1)
			cr_assert_eq(madvise(chunk, GAIA_CHUNK, MADV_COLLAPSE), 0);
		if (round == 2)
			(void)madvise(at + GAIA_CHUNK, GAIA_CHUNK, MADV_COLLAPSE);
		at[AT(600 + round)]++;
		expect_only(0, PAGES, 600 + round);
	}
	if (!collapses)
		cr_skip_test("there are no huge pages of shared memory here");
}

/* Whatever the program puts there is not what was armed. */
Test(kept, what_the_program_puts_there_counts_as_changed)
{
	void *own;

	acquire(0, PAGES, RW);
	own = mmap(at + AT(5), AT(2), RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	cr_assert_eq(own, at + AT(5));
	at[AT(700)]++;
	cr_assert(tells(0, PAGES));
	cr_assert(is_told(5) && is_told(6) && is_told(700) && !is_told(1000));
	/* And the same where something of ours is that has moved away and back (nobody else's memory can come to be there meanwhile), or a hole. */
	acquire(0, PAGES, RW);
	at[AT(1600)]++;
	own = mremap(at + AT(1600), AT(2), AT(2), MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, at + AT(1030));
	cr_assert_eq(own, at + AT(1030));
	cr_assert_eq(mremap(own, AT(2), AT(2), MREMAP_MAYMOVE | MREMAP_FIXED, at + AT(1600)), at + AT(1600));
	cr_assert(tells(0, PAGES));
	cr_assert(is_told(1030) && is_told(1600) && is_told(1601) && !is_told(700));
	acquire(0, PAGES, RW);
	cr_assert_eq(munmap(at + AT(1040), AT(2)), 0);
	cr_assert(tells(0, PAGES));
	cr_assert(is_told(1040) && is_told(1041) && !is_told(600));
	/* What is not ours must not come to be there before the end. */
	cr_assert_eq(mmap(at + AT(1040), AT(2), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0), at + AT(1040));
}

/* Taken back by the daemon, and handed over again. */
Test(kept, what_is_placed_anew_is_armed_anew)
{
	store_one(3);
	release(0, PAGES);
	for (unsigned k = 0; k < CHUNKS; k++)
		OK(fake_revoke(fake_seen().detects_id, k));
	store_one(4);
	expect_only(0, PAGES, 4);
	/* What goes while it is held is not known. */
	acquire(0, PAGES, RW);
	OK(fake_revoke(fake_seen().detects_id, 1));
	cr_assert(tells(0, PAGES));
	cr_assert(is_told(GAIA_CHUNK_PAGES) && is_told(2 * GAIA_CHUNK_PAGES - 1));
	cr_assert(!is_told(0) && !is_told(2 * GAIA_CHUNK_PAGES));
}

/* To read it comes to the mapping's other side, and to write it comes back (sides.h): by other mappings each time. */
Test(kept, what_is_shown_anew_is_armed_anew)
{
	for (unsigned round = 0; round < 3; round++) {
		store_one(10 + round);
		expect_only(0, PAGES, 10 + round);
		acquire(0, PAGES, PROT_READ);
		release(0, PAGES);
	}
}

/* What a chunk takes along when it changes sides counts, on each, as often as it is held. */
Test(kept, holds_that_change_sides_are_counted)
{
	unsigned before;

	acquire(0, 1, PROT_READ);
	acquire(40, 40, RW);
	at[AT(41)]++;
	expect_only(40, 40, 41);
	/* Page 0 has come along, and is held. */
	acquire(0, 40, RW);
	expect_only(0, 40, 0);
	/* Back to the view, with it. */
	acquire(2, 1, PROT_READ);
	before = fake_seen().given_back;
	cr_assert_gt(before, 0, "page 0 has changed sides");
	acquire(40, 40, RW);
	expect_none(40, 40);
	release(0, 1);
	release(2, 1);
	store_one(3);
	expect_only(0, PAGES, 3);
	/* A list of both sides' pages. */
	acquire(600, 1, PROT_READ);
	acquire(0, 64, RW);
	release(600, 1);
	release(0, 64);
	acquire(0, 64, RW);
	acquire(1100, 100, PROT_READ);
	release(0, 1200);
	store_one(5);
	expect_only(0, PAGES, 5);
}

Test(kept, children_have_none_of_it)
{
	int fd[2], status;
	pid_t pid;

	host_detect_descriptors(fd);
	cr_assert(fd[0] >= 0 && fd[1] >= 0);
	cr_assert(fcntl(fd[0], F_GETFD) == FD_CLOEXEC && fcntl(fd[1], F_GETFD) == FD_CLOEXEC);
	acquire(0, PAGES, RW);
	at[AT(3)]++;
	pid = fork();
	if (pid == 0) {
		int none[2];

		host_detect_descriptors(none);
		if (fcntl(fd[0], F_GETFD) != -1 || fcntl(fd[1], F_GETFD) != -1 || none[0] != -1 || none[1] != -1)
			_exit(1);
		_exit(gaia_munmap(at, LENGTH) == -1 && errno == ENOTCONN ? 0 : 2);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
	at[AT(5)]++;
	cr_assert(tells(0, PAGES));
	cr_assert_eq(fake_seen().n_found, 2);
	cr_assert(is_told(3) && is_told(5));
}

Test(kept, descriptors_are_open_while_mappings_need_them)
{
	unsigned char *first = at, *second = map();
	int fd[2], same[2];

	cr_assert_neq(second, MAP_FAILED);
	host_detect_descriptors(fd);
	OK(gaia_munmap(second, LENGTH));
	host_detect_descriptors(same);
	cr_assert(fd[0] >= 0 && same[0] == fd[0] && same[1] == fd[1]);
	store_one(3);
	expect_only(0, PAGES, 3);
	at = NULL;
	OK(gaia_munmap(first, LENGTH));
	cr_assert(fcntl(fd[0], F_GETFD) == -1 && fcntl(fd[1], F_GETFD) == -1);
	host_detect_descriptors(same);
	cr_assert(same[0] == -1 && same[1] == -1);
	at = map();
	cr_assert_neq(at, MAP_FAILED);
	store_one(4);
	expect_only(0, PAGES, 4);
}

/* Then nothing can be found out. */
Test(kept, closed_descriptors_hide_no_store)
{
	int fd[2];

	host_detect_descriptors(fd);
	store_one(3);
	/* As programs do that close all that they do not know. */
	close(fd[0]);
	cr_assert(!tells(0, PAGES));
	store_one(4);
	cr_assert(!tells(0, PAGES));
	close(fd[1]);
	store_one(5);
	cr_assert(!tells(0, PAGES));
	/* The library closes the numbers in the end. */
	cr_assert_eq(dup2(file, fd[0]), fd[0]);
	cr_assert_eq(dup2(file, fd[1]), fd[1]);
	store_one(6);
	cr_assert(!tells(0, PAGES));
}

/* ---- what is worth it ---- */

Test(chosen, few_pages_are_left_to_the_daemon)
{
	acquire(0, 15, RW);
	cr_assert(!tells(0, 15));
	acquire(0, 16, RW);
	cr_assert(tells(0, 16));
}

Test(chosen, what_is_stored_to_much_is_left_out_for_a_while)
{
	acquire(0, GAIA_CHUNK_PAGES, RW);
	memset(at, 1, GAIA_CHUNK / 3);
	cr_assert(tells(0, GAIA_CHUNK_PAGES));
	/* Pages that were stored to then are not protected; the others are still. */
	acquire(0, GAIA_CHUNK_PAGES, RW);
	at[AT(500)]++;
	cr_assert(tells(0, GAIA_CHUNK_PAGES));
	cr_assert(is_told(4) && is_told(500) && !is_told(300));
	for (unsigned round = 0; round < 3; round++) {
		acquire(0, GAIA_CHUNK_PAGES, RW);
		at[AT(3)]++;
		expect_only(0, GAIA_CHUNK_PAGES, 3);
	}
}

Test(chosen, what_is_left_out_longer_comes_back)
{
	unsigned left_out = 0;

	for (unsigned round = 0; round < 3; round++) {
		acquire(0, GAIA_CHUNK_PAGES, RW);
		memset(at, 1, GAIA_CHUNK);
		release(0, GAIA_CHUNK_PAGES);
	}
	do {
		acquire(0, GAIA_CHUNK_PAGES, RW);
		cr_assert_lt(++left_out, 40);
	} while (!tells(0, GAIA_CHUNK_PAGES));
	cr_assert_gt(left_out, 3);
	acquire(0, GAIA_CHUNK_PAGES, RW);
	at[AT(3)]++;
	expect_only(0, GAIA_CHUNK_PAGES, 3);
}

/* ---- without ---- */

/* Refuse a call, or if @request is not 0 an ioctl, with @err. */
static void forbid(unsigned call, unsigned request, int err)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, request, 0, request ? 1 : 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

	cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static void works_untold(void)
{
	int fd[2];

	at = map();
	cr_assert_neq(at, MAP_FAILED, "%s", gaia_last_error_text());
	cr_assert_eq(fake_seen().detects_id, 0);
	host_detect_descriptors(fd);
	cr_assert(fd[0] == -1 && fd[1] == -1);
	store_one(3);
	cr_assert(!tells(0, PAGES));
	cr_assert_gt(fake_seen().releases, 0);
}

Test(without, permission_the_daemon_looks)
{
	forbid(SYS_userfaultfd, 0, EPERM);
	works_untold();
}

Test(without, a_kernel_that_can_the_daemon_looks)
{
	forbid(SYS_userfaultfd, 0, ENOSYS);
	works_untold();
}

Test(without, descriptors_the_daemon_looks)
{
	forbid(SYS_userfaultfd, 0, EMFILE);
	works_untold();
}

Test(without, features_the_daemon_looks)
{
	forbid(SYS_ioctl, UFFDIO_API, EINVAL);
	works_untold();
}

/* PAGEMAP_SCAN */
Test(without, scans_the_daemon_looks)
{
	forbid(SYS_ioctl, 0xc0606610, ENOTTY);
	works_untold();
}

Test(without, protection_nothing_is_told)
{
	skip_without_kernel();
	at = map();
	cr_assert_neq(at, MAP_FAILED);
	cr_assert_neq(fake_seen().detects_id, 0);
	acquire(0, 100, RW);
	at[AT(3)]++;
	/* (Of whole chunks it is the scan that protects.) */
	forbid(SYS_ioctl, UFFDIO_WRITEPROTECT, ENOMEM);
	expect_only(0, 100, 3);
	acquire(0, 100, RW);
	at[AT(4)]++;
	cr_assert(!tells(0, 100));
}

/* What is pinned over an acquire would not be seen: so that is for those who ask for it. */
Test(without, being_wanted_the_daemon_looks)
{
	unsetenv("GAIA_DETECT");
	works_untold();
}

Test(without, an_older_daemon_nothing_is_told)
{
	fake_lacks = GAIA_FEATURE_DETECT;
	at = map();
	cr_assert_neq(at, MAP_FAILED);
	cr_assert_eq(fake_seen().detects_id, 0);
	store_one(3);
	cr_assert(!tells(0, PAGES));
	fake_lacks = 0;
}

/* For a client that asks for it whatever it costs. */
Test(without, doubt_all_is_looked_at)
{
	skip_without_kernel();
	setenv("GAIA_DETECT", "client", 1);
	at = map();
	cr_assert_neq(at, MAP_FAILED);
	for (unsigned round = 0; round < 3; round++) {
		acquire(0, GAIA_CHUNK_PAGES, RW);
		memset(at, 1, GAIA_CHUNK);
		cr_assert(!tells(0, GAIA_CHUNK_PAGES));
		acquire(9, 1, RW);
		expect_none(9, 1);
	}
}
