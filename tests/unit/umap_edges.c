/*
 * Regions of gaia/umap.h and the rest of a process: system calls, fork, munmap, mremap, madvise, and limits.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "umap_rig.h"

TestSuite(umap_edges, .timeout = 100);

static sigjmp_buf fault;
static volatile sig_atomic_t fault_signal;

static void on_fault(int sig)
{
	fault_signal = sig;
	siglongjmp(fault, 1);
}

/* The signal that touching it raises, or 0. */
static int touch(const volatile unsigned char *p)
{
	/* The library has a handler of its own for the other. */
	if (!rig_by_signal())
		signal(SIGBUS, on_fault);
	signal(SIGSEGV, on_fault);
	if (sigsetjmp(fault, 1))
		return fault_signal;
	(void)*p;
	return 0;
}

/* ---- system calls ---- */

Test(umap_edges, system_calls_may_fault)
{
	struct rig *rig = rig_create(64 * 4096);
	unsigned char *bytes = malloc(rig->length);
	int fd[2];

	NOT_BY_SIGNAL;
	rig->config.budget = 4 * 4096;
	rig->config.flags |= GAIA_UMAP_NEED_SYSCALLS;
	rig->view = gaia_umap(&rig->config);
	if (rig->view == MAP_FAILED && errno == EPERM) {
		unlink(rig->path);
		cr_skip_test("faults within system calls need CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd");
	}
	if (rig->view == MAP_FAILED)
		rig_map(rig);	/* skips, or says why */
	cr_assert_eq(pipe(fd), 0);
	for (unsigned i = 0; i < 64; i++) {
		cr_assert_eq(write(fd[1], rig->view + i * 4096, 4096), 4096);
		cr_assert_eq(read(fd[0], bytes + i * 4096, 4096), 4096);
	}
	cr_assert_arr_eq(bytes, rig->content, rig->length);
	/* And stores by the kernel. */
	memset(bytes, 's', rig->length);
	cr_assert_eq(pwrite(rig->fd, bytes, 4096, 0), 4096);
	for (unsigned i = 0; i < 64; i++) {
		cr_assert_eq(write(fd[1], bytes, 4096), 4096);
		cr_assert_eq(read(fd[0], rig->view + i * 4096, 4096), 4096);
	}
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	rig_check_file(rig, bytes);
	free(bytes);
	rig_unmap(rig);
}

static bool become_nobody(void)
{
	return getuid() || (!setgid(65534) && !setuid(65534) && prctl(PR_SET_DUMPABLE, 1) == 0);
}

static bool user_mode(struct rig *rig)
{
	int null = open("/dev/null", O_WRONLY), fd[2];
	char value = '0';
	int sysctl = open("/proc/sys/vm/unprivileged_userfaultfd", O_RDONLY);

	if (!become_nobody() || null < 0 || pipe(fd) || (sysctl >= 0 && read(sysctl, &value, 1) == 1 && value == '1'))
		return true;	/* nothing to see */
	rig->view = gaia_umap(&rig->config);
	if (rig->view == MAP_FAILED || !(rig_stats(rig).is & GAIA_UMAP_IS_USER_MODE))
		return false;
	/* Pages that are not in memory are an error for system calls; for the program they are there. */
	if (write(fd[1], rig->view + 40 * 4096, 10) != -1 || errno != EFAULT)
		return false;
	if (memcmp(rig->view, rig->content, rig->length))
		return false;
	if (write(fd[1], rig->view + 40 * 4096, 10) != 10 || gaia_uunmap(rig->view, rig->length))
		return false;
	rig->config.flags |= GAIA_UMAP_NEED_SYSCALLS;
	return gaia_umap(&rig->config) == MAP_FAILED && errno == EPERM;
}

Test(umap_edges, without_privileges_system_calls_may_not_and_it_says_so)
{
	struct rig *rig = rig_create(64 * 4096);

	NOT_FOR_TSAN;
	rig_map(rig);	/* or skip */
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	cr_assert(rig_in_child(user_mode, rig));
	rig_end(rig);
}

/* ---- fork, and the end ---- */

static bool child_has_it_not(struct rig *rig)
{
	struct rig *other;

	if (touch(rig->view) != SIGSEGV || gaia_umap_flush(rig->view, rig->length, 0) != -1 || errno != EINVAL)
		return false;
	other = rig_create(8 * 4096);
	rig_map(other);
	if (memcmp(other->view, other->content, other->length))
		return false;
	other->view[0] = 'c';
	rig_unmap(other);
	return true;
}

Test(umap_edges, a_child_of_fork_has_no_region_and_can_make_its_own)
{
	struct rig *rig;

	NOT_FOR_ASAN;
	NOT_FOR_TSAN;
	rig = rig_create(8 * 4096);
	rig_map(rig);
	rig->view[0] = 'p';
	cr_assert(rig_in_child(child_has_it_not, rig));
	cr_assert_eq(rig->view[0], 'p');
	cr_assert_eq(rig->view[5 * 4096], rig->content[5 * 4096]);
	rig_unmap(rig);
}

static bool stop_leaving;

static void *join_and_leave(void *arg)
{
	struct rig *rig = arg;

	while (!__atomic_load_n(&stop_leaving, __ATOMIC_RELAXED)) {
		void *p = gaia_umap(&rig->config);

		if (p == MAP_FAILED || gaia_uunmap(p, rig->length))
			return (void *)1;
	}
	return NULL;
}

static bool makes_a_mapping(struct rig *rig)
{
	void *p = gaia_umap(&rig->config);

	return p != MAP_FAILED && !gaia_uunmap(p, rig->length);
}

Test(umap_edges, forks_beside_regions_that_are_mappings)
{
	struct rig *rig;
	pthread_t thread;
	void *wrong;

	NOT_FOR_ASAN;
	rig = rig_create(4096);
	rig->config.flags = GAIA_UMAP_USE_MMAP;
	cr_assert_eq(pthread_create(&thread, NULL, join_and_leave, rig), 0);
	for (unsigned i = 0; i < 300; i++)
		cr_assert(rig_in_child(makes_a_mapping, rig));
	__atomic_store_n(&stop_leaving, true, __ATOMIC_RELAXED);
	pthread_join(thread, &wrong);
	cr_assert_null(wrong);
	rig_end(rig);
}

static void *fork_children(void *arg)
{
	for (unsigned i = 0; i < 50; i++)
		if (!rig_in_child(child_has_it_not, arg))
			return (void *)1;
	return NULL;
}

Test(umap_edges, forks_beside_faults)
{
	struct rig *rig;
	pthread_t thread;
	void *wrong;

	NOT_FOR_ASAN;
	NOT_FOR_TSAN;
	rig = rig_create(64 * 4096);
	rig->config.budget = 4 * 4096;
	rig_map(rig);
	cr_assert_eq(pthread_create(&thread, NULL, fork_children, rig), 0);
	while (pthread_tryjoin_np(thread, &wrong))
		for (unsigned i = 0; i < 64; i++)
			rig->view[i * 4096]++;
	cr_assert_null(wrong);
	rig_unmap(rig);
}

static int ready[2];

static bool store_for_ever(struct rig *rig)
{
	rig_map(rig);
	for (unsigned char value = 1;; value++) {
		for (unsigned i = 0; i < 32; i++)
			memset(rig->view + i * 4096, value, 4096);
		if (gaia_umap_flush(rig->view, rig->length, 0) || write(ready[1], &value, 1) != 1)
			return false;
	}
}

Test(umap_edges, what_was_flushed_is_there_after_kill)
{
	struct rig *rig = rig_create(32 * 4096);
	unsigned char flushed = 0, bytes[4096];

	NOT_FOR_TSAN;
	rig->config.budget = 8 * 4096;
	rig_map(rig);
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	for (unsigned round = 0; round < 10; round++) {
		pid_t pid;

		cr_assert_eq(pipe(ready), 0);
		pid = fork();
		if (!pid) {
			close(ready[0]);
			_exit(store_for_ever(rig));
		}
		close(ready[1]);
		for (unsigned i = 0; i < 3 + round; i++)
			cr_assert_eq(read(ready[0], &flushed, 1), 1);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		while (read(ready[0], &flushed, 1) == 1)
			;
		close(ready[0]);
		/* Each page has the value that was flushed, or the next. Nothing older, and nothing of both but at one border. */
		for (unsigned i = 0; i < 32; i++) {
			cr_assert_eq(pread(rig->fd, bytes, 4096, i * 4096), 4096);
			for (unsigned j = 0; j < 4096; j++)
				cr_assert((unsigned char)(bytes[j] - flushed) <= 1, "page %u has %u, %u was flushed", i, bytes[j], flushed);
		}
	}
	rig_end(rig);
}

/* ---- addresses ---- */

Test(umap_edges, a_part_can_be_unmapped)
{
	struct rig *rig = rig_create(16 * 65536);
	unsigned char *hole;

	rig->config.page_size = 65536;
	rig->config.budget = 4 * 65536;
	rig_map(rig);
	/* From within a page to within a page. */
	for (unsigned i = 0; i < 16; i++)
		rig->view[i * 65536 + 8192] = rig->content[i * 65536 + 8192] = 'u';
	/* At once: else another thread's memory may come to be there. */
	hole = mmap(rig->view + 5 * 65536 + 4096, 3 * 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	cr_assert_neq(hole, MAP_FAILED);
	memset(hole, 'h', 3 * 65536);
	for (unsigned round = 0; round < 3; round++)
		for (size_t at = 0; at < rig->length; at += 4096)
			if (rig->view + at < hole || rig->view + at >= hole + 3 * 65536)
				cr_assert_eq(rig->view[at], rig->content[at]);
	for (size_t at = 0; at < 3 * 65536; at++)
		cr_assert_eq(hole[at], 'h', "what lies in the hole is somebody else's");
	rig->view[0] = rig->content[0] = 'v';
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	cr_assert_eq(hole[5], 'h');
	rig_check_file(rig, rig->content);
	rig_end(rig);
}

Test(umap_edges, all_of_it_can_be_unmapped)
{
	struct rig *rig = rig_create(16 * 4096), *other = rig_create(16 * 4096);

	rig_map(rig);
	rig->view[4096] = rig->content[4096] = 'u';
	cr_assert_eq(munmap(rig->view, rig->length), 0);
	/* Its addresses may be used again, unless a new thread's stack is there by now. */
	if (mmap(rig->view, rig->length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == rig->view) {
		other->config.addr = rig->view;
		other->config.flags |= GAIA_UMAP_FIXED;
	}
	rig_map(other);
	if (other->config.addr)
		cr_assert_eq(other->view, rig->view);
	cr_assert_arr_eq(other->view, other->content, other->length);
	rig_check_file(rig, rig->content);
	rig_unmap(other);
	rig_end(rig);
}

Test(umap_edges, a_fixed_address_is_taken_and_no_region_replaced)
{
	struct rig *rig = rig_create(16 * 4096);
	void *at = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	rig->config.addr = at;
	rig->config.flags |= GAIA_UMAP_FIXED;
	rig_map(rig);
	cr_assert_eq(rig->view, at);
	cr_assert_arr_eq(rig->view, rig->content, rig->length);
	rig->config.addr = rig->view + 4096;
	cr_assert_eq(rig_errno(&rig->config), EEXIST);
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	rig_end(rig);
}

Test(umap_edges, a_region_can_be_moved)
{
	struct rig *rig = rig_create(64 * 4096);
	unsigned char *old, *to = mmap(NULL, 64 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	rig->config.budget = 8 * 4096;
	rig_map(rig);
	old = rig->view;
	old[3 * 4096] = rig->content[3 * 4096] = 'm';
	cr_assert_eq(mremap(old, rig->length, rig->length, MREMAP_MAYMOVE | MREMAP_FIXED, to), to);
	rig->view = to;
	rig->view[4 * 4096] = rig->content[4 * 4096] = 'n';
	cr_assert_arr_eq(rig->view, rig->content, rig->length);
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	rig_check_file(rig, rig->content);
	/* What lies there now, maybe a thread's stack, is not ours. */
	cr_assert_eq(gaia_uunmap(old, rig->length), -1);
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	rig_end(rig);
}

Test(umap_edges, a_part_that_is_moved_alone_is_lost_and_says_so)
{
	struct rig *rig = rig_create(64 * 4096);
	unsigned char *to = mmap(NULL, 8 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	NOT_FOR_TSAN;
	rig_map(rig);
	rig->view[9 * 4096] = rig->content[9 * 4096] = 'm';
	rig->view[1 * 4096] = rig->content[1 * 4096] = 'n';
	cr_assert_eq(mremap(rig->view + 8 * 4096, 8 * 4096, 8 * 4096, MREMAP_MAYMOVE | MREMAP_FIXED, to), to);
	while (touch(to + 4096) == 0)
		usleep(1000);
	cr_assert_eq(touch(to + 5 * 4096), SIGSEGV);
#ifndef __SANITIZE_ADDRESS__ /* whose own memory may have come to be there by now (seen) */
	cr_assert_eq(touch(rig->view + 8 * 4096), SIGSEGV);
#endif
	cr_assert_eq(rig->view[20 * 4096], rig->content[20 * 4096]);
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	rig_check_file(rig, rig->content);
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	rig_end(rig);
}

Test(umap_edges, advice_of_the_program_loses_nothing)
{
	struct rig *rig = rig_create(16 * 4096);

	rig_map(rig);
	memset(rig->view + 4096, 'd', 8192);
	memset(rig->content + 4096, 'd', 8192);
	cr_assert_eq(madvise(rig->view, rig->length, MADV_DONTNEED), 0);
	cr_assert_eq(rig->view[4096], 'd');
	cr_assert_eq(madvise(rig->view, rig->length, MADV_DONTNEED), 0);
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	rig_check_file(rig, rig->content);
	cr_assert_arr_eq(rig->view, rig->content, rig->length);
	cr_assert_eq(madvise(rig->view, rig->length, MADV_DONTNEED), 0);
	cr_assert_eq(gaia_umap_advise(rig->view, rig->length, GAIA_UMAP_DONTNEED), 0);
	rig_check_file(rig, rig->content);
	/* Zeros by the program's own wish. */
	(void)*(volatile unsigned char *)(rig->view + 3 * 4096);
	cr_assert_eq(madvise(rig->view + 3 * 4096, 4096, MADV_REMOVE), 0);
	cr_assert_eq(rig->view[3 * 4096], 0);
	rig->view[3 * 4096 + 1] = 'r';
	memset(rig->content + 3 * 4096, 0, 4096);
	rig->content[3 * 4096 + 1] = 'r';
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	rig_check_file(rig, rig->content);
	rig_end(rig);
}

Test(umap_edges, locked_memory_is_served)
{
	struct rig *rig = rig_create(64 * 4096);

	rig->config.budget = 4 * 4096;
	cr_assert_eq(mlockall(MCL_FUTURE), 0);
	rig_map(rig);
	cr_assert_eq(rig_stats(rig).resident, 0);
	for (unsigned i = 0; i < 64; i++)
		rig->view[i * 4096] = rig->content[i * 4096] = i;
	munlockall();
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	rig_check_file(rig, rig->content);
	rig_end(rig);
}

/* ---- many ---- */

static unsigned threads(void)
{
	char line[256];
	unsigned n = 0;
	FILE *f = fopen("/proc/self/status", "r");

	while (fgets(line, sizeof(line), f))
		sscanf(line, "Threads: %u", &n);
	fclose(f);
	return n;
}

/* The kernel counts a thread for a moment after it has ended for pthread_join(3). */
static bool threads_become(unsigned n)
{
	for (unsigned i = 0; i < 10000 && threads() != n; i++)
		usleep(1000);
	return threads() == n;
}

Test(umap_edges, threads_come_with_the_first_region_and_go_with_the_last)
{
	struct rig *rig = rig_create(16 * 4096), *other = rig_create(4096);
	unsigned before = threads();

	for (unsigned round = 0; round < 100; round++) {
		rig_map(rig);
		cr_assert_gt(threads(), before);
		cr_assert_eq(rig->view[8192], rig->content[8192]);
		rig_map(other);
		cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
		cr_assert_eq(other->view[0], other->content[0]);
		cr_assert_eq(gaia_uunmap(other->view, other->length), 0);
		cr_assert(threads_become(before));
	}
	rig_end(rig);
	rig_end(other);
}

/* The mappings of regions' memory that shall not have huge pages. */
static unsigned without_huge_pages(void)
{
	char line[512];
	unsigned n = 0;
	bool ours = false;
	FILE *f = fopen("/proc/self/smaps", "r");

	while (fgets(line, sizeof(line), f)) {
		if (strchr(line, '-') && strchr(line, '/'))
			ours = strstr(line, "/memfd:gaia_umap");
		else if (!strncmp(line, "VmFlags:", 8) && ours) {
			n += strstr(line, " nh") != NULL;
			ours = false;
		}
	}
	fclose(f);
	return n;
}

Test(umap_edges, huge_pages_hold_only_pages_as_large)
{
	struct rig *rig = rig_create(4 << 20);

	if (access("/sys/kernel/mm/transparent_hugepage", F_OK))
		cr_skip_test("this kernel has no huge pages");
	rig_map(rig);
	cr_assert_eq(without_huge_pages(), 1);
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	rig->config.page_size = 2 << 20;
	rig->config.budget = 6 << 20;
	rig_map(rig);
	cr_assert_eq(without_huge_pages(), 0);
	rig_unmap(rig);
}

static unsigned most_mappings(void)
{
	unsigned n = 0;
	FILE *f = fopen("/proc/sys/vm/max_map_count", "r");

	if (f && fscanf(f, "%u", &n) != 1)
		n = 0;
	if (f)
		fclose(f);
	return n;
}

#define MANY 40000

Test(umap_edges, twenty_thousand_regions_live_and_what_is_too_many_is_enomem)
{
	struct rig *rig = rig_create(2 * 4096);
	static unsigned char *view[MANY];
	unsigned n = 0;

	if (most_mappings() < 45000)
		cr_skip_test("vm.max_map_count is below 45000");
	for (; n < MANY; n++) {
		view[n] = gaia_umap(&rig->config);
		if (view[n] == MAP_FAILED)
			break;
	}
	if (!n && errno == ENOSYS)
		cr_skip_test("no paging here");
	cr_assert(n == MANY || errno == ENOMEM);
	cr_assert_geq(n, 20000, "%u regions: vm.max_map_count?", n);
	for (unsigned i = 0; i < n; i += 37) {
		cr_assert_eq(view[i][4096], rig->content[4096]);
		cr_assert_leq(threads(), 70);
	}
	for (unsigned i = 0; i < n; i++)
		cr_assert_eq(gaia_uunmap(view[i], rig->length), 0);
	rig_map(rig);
	cr_assert_arr_eq(rig->view, rig->content, rig->length);
	rig_unmap(rig);
}
