/* umap_signal.c - regions whose faults are signals (GAIA_UMAP_BY_SIGNAL): beside what the other suites show of them, too. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "thread_sleeps.h"
#include "umap_rig.h"

TestSuite(umap_signal, .timeout = 100);

#define PAGES 64

static struct rig *begin(void)
{
	struct rig *rig = rig_create(PAGES * 4096);

	rig->config.flags |= GAIA_UMAP_BY_SIGNAL;
	return rig;
}

Test(umap_signal, it_is_said)
{
	struct rig *rig = begin();

	rig_map(rig);
	cr_assert_eq(rig_stats(rig).is, GAIA_UMAP_IS_BY_SIGNAL | GAIA_UMAP_IS_USER_MODE);
	cr_assert_eq(memcmp(rig->view, rig->content, rig->length), 0);
	cr_assert_geq(rig_stats(rig).faults, 1);
	rig->config.flags |= GAIA_UMAP_NEED_SYSCALLS;
	cr_assert_eq(rig_errno(&rig->config), EPERM);
	rig_unmap(rig);
}

/* No thread is asked: the one that touches runs the store's functions. */
static pthread_t reader;

static int note_reader(void *arg, void *buf, size_t n, uint64_t offset)
{
	(void)arg;
	(void)offset;
	reader = pthread_self();
	memset(buf, 'r', n);
	return 0;
}

Test(umap_signal, who_touches_reads)
{
	struct gaia_umap_store store = { .size = sizeof(store), .read = note_reader };
	struct gaia_umap_segment segment = { .store = &store, .length = PAGES * 4096 };
	struct gaia_umap_config c = {
		.size = sizeof(c), .segments = &segment, .n_segments = 1, .flags = GAIA_UMAP_NEED_PAGING | GAIA_UMAP_BY_SIGNAL,
	};
	unsigned char *view = gaia_umap(&c);

	if (view == MAP_FAILED && errno == ENOSYS)
		cr_skip_test("this kernel has no userfaultfd(2) with what paging needs, or it is forbidden");
	cr_assert_neq(view, MAP_FAILED);
	cr_assert_eq(view[7 * 4096], 'r');
	cr_assert(pthread_equal(reader, pthread_self()));
	cr_assert_eq(gaia_uunmap(view, PAGES * 4096), 0);
}

Test(umap_signal, system_calls_fail_where_the_page_is_not_in_memory)
{
	struct rig *rig = begin();
	unsigned char byte;
	int fd[2];

	rig->config.read_ahead = 0;
	rig_map(rig);
	cr_assert_eq(gaia_umap_advise(rig->view, rig->length, GAIA_UMAP_RANDOM), 0);
	cr_assert_eq(pipe(fd), 0);
	cr_assert_eq(write(fd[1], rig->view + 9 * 4096, 1), -1);
	cr_assert_eq(errno, EFAULT);
	cr_assert_eq(rig->view[9 * 4096], rig->content[9 * 4096]);
	cr_assert_eq(write(fd[1], rig->view + 9 * 4096, 1), 1);
	cr_assert_eq(read(fd[0], &byte, 1), 1);
	cr_assert_eq(byte, rig->content[9 * 4096]);
	rig_unmap(rig);
}

/* ---- handlers of the program's ---- */

static volatile sig_atomic_t seen, code;
static sigjmp_buf back;

static void note(int sig, siginfo_t *info, void *context)
{
	(void)context;
	seen = sig;
	code = info->si_code;
}

static void note_and_jump(int sig, siginfo_t *info, void *context)
{
	note(sig, info, context);
	siglongjmp(back, 1);
}

static void handle(void (*how)(int, siginfo_t *, void *))
{
	struct sigaction sa = { .sa_sigaction = how, .sa_flags = SA_SIGINFO };

	cr_assert_eq(sigaction(SIGBUS, &sa, NULL), 0);
}

Test(umap_signal, what_is_sent_is_passed_on)
{
	struct rig *rig;

	handle(note);
	rig = begin();
	rig->view = gaia_umap(&rig->config);
	if (rig->view == MAP_FAILED && errno == ENOSYS)
		cr_skip_test("this kernel has no userfaultfd(2) with what paging needs, or it is forbidden");
	cr_assert_neq(rig->view, MAP_FAILED);
	raise(SIGBUS);
	cr_assert_eq(seen, SIGBUS);
	cr_assert_eq(code, SI_TKILL);
	cr_assert_eq(memcmp(rig->view, rig->content, rig->length), 0);
	rig_unmap(rig);
}

/* Behind the end of a file that is an ordinary mapping. */
Test(umap_signal, what_others_lack_is_passed_on)
{
	struct rig *rig;
	volatile unsigned char *p;

	handle(note_and_jump);
	rig = begin();
	rig->view = gaia_umap(&rig->config);
	if (rig->view == MAP_FAILED && errno == ENOSYS)
		cr_skip_test("this kernel has no userfaultfd(2) with what paging needs, or it is forbidden");
	cr_assert_neq(rig->view, MAP_FAILED);
	p = mmap(NULL, (PAGES + 1) * 4096, PROT_READ, MAP_SHARED, rig->fd, 0);
	cr_assert_neq(p, MAP_FAILED);
	for (unsigned i = 0; i < 3; i++) {
		seen = 0;
		if (!sigsetjmp(back, 1))
			(void)p[PAGES * 4096];
		cr_assert_eq(seen, SIGBUS);
		cr_assert_eq(rig->view[i * 4096], rig->content[i * 4096]);
	}
	rig_unmap(rig);
}

/* Killed by the signal, as without the library. */
static bool touches_behind_the_end(struct rig *rig)
{
	volatile unsigned char *p;

	signal(SIGBUS, SIG_DFL);
	rig->view = gaia_umap(&rig->config);
	p = mmap(NULL, (PAGES + 1) * 4096, PROT_READ, MAP_SHARED, rig->fd, 0);
	if (rig->view == MAP_FAILED || p == MAP_FAILED || memcmp(rig->view, rig->content, rig->length))
		_exit(7);
	(void)p[PAGES * 4096];
	return true;
}

Test(umap_signal, without_another_handler_it_ends_the_process)
{
	struct rig *rig = begin();
	int status;
	pid_t pid;

	NOT_FOR_TSAN; /* it has handlers of its own */
	rig_map(rig); /* or skip */
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	pid = fork();
	if (!pid) {
		alarm(60);
		_exit(touches_behind_the_end(rig));
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "%x", (unsigned)status);
	rig_end(rig);
}

/* ---- threads ---- */

static atomic_uint reads;
static atomic_bool hold;

static int read_when_let(void *arg, void *buf, size_t n, uint64_t offset)
{
	(void)arg;
	atomic_fetch_add(&reads, 1);
	while (atomic_load(&hold))
		usleep(1000);
	memset(buf, (int)(offset / 4096), n);
	return 0;
}

static atomic_int toucher[4];
static atomic_uint n_begun, n_touchers;

static void *touch_page_3(void *view)
{
	toucher[n_begun++] = gettid();
	n_touchers++;
	return (void *)(uintptr_t)((volatile unsigned char *)view)[3 * 4096];
}

/* They wait for the one that reads it, and find the page. */
Test(umap_signal, a_page_that_many_touch_is_read_once)
{
	struct gaia_umap_store store = { .size = sizeof(store), .read = read_when_let };
	struct gaia_umap_segment segment = { .store = &store, .length = PAGES * 4096 };
	struct gaia_umap_config c = {
		.size = sizeof(c), .segments = &segment, .n_segments = 1, .flags = GAIA_UMAP_NEED_PAGING | GAIA_UMAP_BY_SIGNAL,
	};
	unsigned char *view = gaia_umap(&c);
	pthread_t thread[4];
	void *byte;

	if (view == MAP_FAILED && errno == ENOSYS)
		cr_skip_test("this kernel has no userfaultfd(2) with what paging needs, or it is forbidden");
	cr_assert_neq(view, MAP_FAILED);
	cr_assert_eq(gaia_umap_advise(view, PAGES * 4096, GAIA_UMAP_RANDOM), 0);
	atomic_store(&hold, true);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&thread[i], NULL, touch_page_3, view), 0);
	/* One of them reads; the others wait for it. */
	while (atomic_load(&reads) == 0 || n_touchers < 4)
		sched_yield();
	for (unsigned i = 0; i < 4; i++)
		while (!thread_sleeps(toucher[i]))
			sched_yield();
	atomic_store(&hold, false);
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(thread[i], &byte);
		cr_assert_eq((uintptr_t)byte, 3);
	}
	cr_assert_eq(atomic_load(&reads), 1);
	cr_assert_eq(gaia_uunmap(view, PAGES * 4096), 0);
}
