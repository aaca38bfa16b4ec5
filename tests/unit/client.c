/*
 * client.c - tests of libgaiaclient against a daemon without a mount.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../client/wire.h"
#include "base/log.h"
#include "fake_daemon.h"
#include "gaia/client.h"

#define RW (PROT_READ | PROT_WRITE)

static int file, push_error, interruptions;
static unsigned pushes;
static off_t push_off, push_len;

/* Nothing is cached by a kernel here; only that it is asked matters. */
static int fake_push(int fd, off_t off, off_t len)
{
	pushes++;
	push_off = off;
	push_len = len;
	errno = push_error;
	return push_error ? -1 : 0;
}

static int interrupted_ioctl(int fd, unsigned long request, void *arg)
{
	if (interruptions++ % 3 == 0) {
		errno = EINTR;
		return -1;
	}
	return fake_ioctl(fd, request, arg);
}

static void begin(void)
{
	log_set_level(LOG_LEVEL_ERROR);
	wire_sys.ioctl = fake_ioctl;
	wire_sys.push = fake_push;
	fake_start();
	file = fake_file();
}

static void end(void)
{
	close(file);
	fake_stop();
}

static unsigned entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned n = 0;

	cr_assert_not_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static unsigned char *must_map(size_t length, off_t offset)
{
	void *p = gaia_mmap(length, RW, file, offset, 0);

	cr_assert_neq(p, MAP_FAILED, "gaia_mmap: %s", strerror(errno));
	return p;
}

#define assert_fails(call, error)                                                      \
	do {                                                                           \
		errno = 0;                                                             \
		cr_assert_eq((call), -1);                                              \
		cr_assert_eq(errno, (error), #call ": %s", strerror(errno));           \
	} while (0)

/* Whether a load of *p works, tried in a way that survives if not. */
static bool can_load(const void *p)
{
	int fds[2];
	bool can;

	cr_assert_eq(pipe(fds), 0);
	can = write(fds[1], p, 1) == 1;
	close(fds[0]);
	close(fds[1]);
	return can;
}

/* ---- mapping ---- */

Test(mapping, shows_each_chunk_at_its_place, .init = begin, .fini = end)
{
	size_t len = 3 * (size_t)GAIA_CHUNK;
	off_t offset = GAIA_CHUNK + 5 * GAIA_PAGE;
	unsigned char *p = must_map(len, offset);

	cr_assert_eq((uintptr_t)p % GAIA_CHUNK, 5 * GAIA_PAGE);
	cr_assert_eq(gaia_acquire(p, len, RW), 0);
	for (unsigned k = 2; k <= 4; k++) {
		unsigned char *start = p + (uint64_t)k * GAIA_CHUNK - offset;

		cr_assert_eq(*start, k);
		start[100] = 'x';
		cr_assert_eq(fake_chunk(fake_cache.map_id, k)[100], 'x');
	}
	cr_assert_eq(gaia_release(p, len), 0);
	cr_assert_eq(gaia_munmap(p, len), 0);
}

Test(mapping, is_private_until_acquired, .init = begin, .fini = end)
{
	unsigned char *p = must_map(2 * (size_t)GAIA_CHUNK, 0);

	cr_assert_not(can_load(p));
	cr_assert_eq(gaia_acquire(p, 1, PROT_READ), 0);
	cr_assert(can_load(p));
	cr_assert_not(can_load(p + GAIA_CHUNK));
	cr_assert_eq(gaia_munmap(p, 2 * (size_t)GAIA_CHUNK), 0);
	cr_assert_not(can_load(p));
}

Test(mapping, is_given_up_when_asked, .init = begin, .fini = end)
{
	unsigned char *p = must_map(2 * (size_t)GAIA_CHUNK, 0);

	cr_assert_eq(gaia_acquire(p, 2 * (size_t)GAIA_CHUNK, RW), 0);
	cr_assert_eq(fake_revoke(fake_cache.map_id, 0), 0);
	cr_assert_not(can_load(p));
	cr_assert(can_load(p + GAIA_CHUNK));
	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	cr_assert(can_load(p));
	cr_assert_eq(gaia_munmap(p, 2 * (size_t)GAIA_CHUNK), 0);
}

Test(mapping, refuses_what_makes_no_sense, .init = begin, .fini = end)
{
	int plain = memfd_create("plain", MFD_CLOEXEC), pipe_fd[2];

	cr_assert_eq(pipe(pipe_fd), 0);
#define assert_no_map(error, ...)                                                   \
	do {                                                                        \
		errno = 0;                                                          \
		cr_assert_eq(gaia_mmap(__VA_ARGS__), MAP_FAILED);                   \
		cr_assert_eq(errno, (error), #__VA_ARGS__ ": %s", strerror(errno)); \
	} while (0)
	assert_no_map(ENOTTY, 1, PROT_READ, plain, 0, 0);
	assert_no_map(ENOTTY, 1, PROT_READ, pipe_fd[0], 0, 0);
	assert_no_map(EBADF, 1, PROT_READ, -1, 0, 0);
	assert_no_map(EINVAL, 0, PROT_READ, file, 0, 0);
	assert_no_map(EINVAL, 1, PROT_WRITE, file, 0, 0);
	assert_no_map(EINVAL, 1, PROT_READ | PROT_EXEC, file, 0, 0);
	assert_no_map(EINVAL, 1, PROT_READ, file, 1, 0);
	assert_no_map(EINVAL, 1, PROT_READ, file, -GAIA_PAGE, 0);
	assert_no_map(ENODEV, 1, PROT_READ, file, 0, -1);
	assert_no_map(ENODEV, 1, PROT_READ, file, 0, 2);
	assert_no_map(ENODEV, 1, PROT_READ, file, 0, 1); /* of a kind that the library does not know */
	assert_no_map(EOVERFLOW, SIZE_MAX, PROT_READ, file, 0, 0);
	assert_no_map(EOVERFLOW, GAIA_PAGE, PROT_READ, file, INT64_MAX - GAIA_PAGE + 1, 0);
	assert_no_map(ENOMEM, INT64_MAX / 2, PROT_READ, file, 0, 0);
#undef assert_no_map
	cr_assert_eq(fake_cache.live, 0);
	close(plain);
	close(pipe_fd[0]);
	close(pipe_fd[1]);
}

Test(mapping, outlives_the_callers_descriptor, .init = begin, .fini = end)
{
	int own = dup(file);
	unsigned char *p = gaia_mmap(GAIA_PAGE, RW, own, 0, 0);

	cr_assert_neq(p, MAP_FAILED);
	close(own);
	cr_assert_eq(gaia_acquire(p, GAIA_PAGE, RW), 0);
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
}

Test(mapping, leaves_nothing_behind, .init = begin, .fini = end)
{
	unsigned fds, threads;

	/* Once, for what the C library keeps. */
	cr_assert_eq(gaia_munmap(must_map(GAIA_PAGE, 0), GAIA_PAGE), 0);
	fds = entries("/proc/self/fd");
	threads = entries("/proc/self/task");
	for (int i = 0; i < 20; i++) {
		unsigned char *p = must_map(GAIA_PAGE, 0), *q = must_map(GAIA_PAGE, 0);

		cr_assert_eq(gaia_acquire(p, GAIA_PAGE, RW), 0);
		cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
		cr_assert_eq(gaia_munmap(q, GAIA_PAGE), 0);
	}
	cr_assert_eq(fake_cache.live, 0);
	/* The daemon, in this process too, may not have closed its ends yet. */
	while (entries("/proc/self/fd") > fds || entries("/proc/self/task") > threads)
		sched_yield();
}

Test(mapping, ends_whole, .init = begin, .fini = end)
{
	unsigned char *p = must_map(3 * GAIA_PAGE, 0);

	assert_fails(gaia_munmap(p, GAIA_PAGE), EINVAL);
	assert_fails(gaia_munmap(p + GAIA_PAGE, 2 * GAIA_PAGE), EINVAL);
	assert_fails(gaia_munmap(p, 4 * GAIA_PAGE), EINVAL);
	assert_fails(gaia_munmap(NULL, GAIA_PAGE), EINVAL);
	cr_assert_eq(gaia_munmap(p, 3 * GAIA_PAGE), 0);
	assert_fails(gaia_munmap(p, 3 * GAIA_PAGE), EINVAL);
}

/* ---- ranges ---- */

Test(range, lies_in_one_mapping, .init = begin, .fini = end)
{
	unsigned char *p = must_map(2 * GAIA_PAGE, GAIA_PAGE);

	assert_fails(gaia_acquire(p - 1, 2, RW), EINVAL);
	assert_fails(gaia_acquire(p, 2 * GAIA_PAGE + 1, RW), EINVAL);
	assert_fails(gaia_acquire(p + 2 * GAIA_PAGE, 1, RW), EINVAL);
	assert_fails(gaia_acquire(p, SIZE_MAX, RW), EINVAL);
	assert_fails(gaia_release(&file, 1), EINVAL);
	assert_fails(gaia_sync(NULL, 1), EINVAL);
	cr_assert_eq(gaia_acquire(p + 2 * GAIA_PAGE - 1, 1, RW), 0);
	cr_assert_eq(fake_cache.off, 2 * GAIA_PAGE);
	cr_assert_eq(fake_cache.len, GAIA_PAGE);
	cr_assert_eq(gaia_munmap(p, 2 * GAIA_PAGE), 0);
}

Test(range, of_no_bytes_is_nothing_to_do, .init = begin, .fini = end)
{
	unsigned char *p = must_map(GAIA_PAGE, 0);

	cr_assert_eq(gaia_acquire(p, 0, RW), 0);
	cr_assert_eq(gaia_release(p, 0), 0);
	cr_assert_eq(gaia_sync(p, 0), 0);
	cr_assert_eq(gaia_advise(p, 0, GAIA_WILLNEED), 0);
	cr_assert_eq(fake_cache.acquires + fake_cache.releases + fake_cache.syncs, 0);
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
}

Test(range, values_are_checked, .init = begin, .fini = end)
{
	unsigned char *p = must_map(GAIA_PAGE, 0);
	void *r = gaia_mmap(GAIA_PAGE, PROT_READ, file, 0, 0);

	assert_fails(gaia_acquire(p, 1, PROT_WRITE), EINVAL);
	assert_fails(gaia_acquire(p, 1, PROT_NONE), EINVAL);
	assert_fails(gaia_advise(p, 1, 5), EINVAL);
	assert_fails(gaia_acquire(r, 1, RW), EACCES);
	cr_assert_eq(gaia_advise(p, 1, GAIA_DONTNEED), 0);
	cr_assert_eq(fake_cache.advices, 1);
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
	cr_assert_eq(gaia_munmap(r, GAIA_PAGE), 0);
}

Test(range, is_pushed_by_the_kernel_first, .init = begin, .fini = end)
{
	unsigned char *p = must_map(4 * GAIA_PAGE, GAIA_PAGE);

	cr_assert_eq(gaia_acquire(p + 10, 20, RW), 0);
	cr_assert_eq(pushes, 1);
	cr_assert_eq(push_off, GAIA_PAGE + 10);
	cr_assert_eq(push_len, 20);
	cr_assert_eq(gaia_release(p, GAIA_PAGE), 0);
	cr_assert_eq(gaia_sync(p, GAIA_PAGE), 0);
	cr_assert_eq(pushes, 3);
	cr_assert_eq(fake_cache.syncs, 1);
	cr_assert_eq(gaia_munmap(p, 4 * GAIA_PAGE), 0);
}

Test(range, lost_cpu_writes_are_reported, .init = begin, .fini = end)
{
	unsigned char *p = must_map(GAIA_PAGE, 0);

	push_error = EIO;
	assert_fails(gaia_acquire(p, 1, RW), EIO);
	cr_assert_eq(fake_cache.acquires, 0);
	assert_fails(gaia_sync(p, 1), EIO);
	/* The device's writes are published all the same. */
	assert_fails(gaia_release(p, 1), EIO);
	cr_assert_eq(fake_cache.releases, 1);
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
}

Test(range, interrupted_calls_go_on, .init = begin, .fini = end)
{
	unsigned char *p;

	wire_sys.ioctl = interrupted_ioctl;
	p = must_map(GAIA_PAGE, 0);
	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	cr_assert_eq(gaia_release(p, 1), 0);
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
	cr_assert_eq(fake_cache.live, 0);
	cr_assert_gt(interruptions, 4);
}

/* ---- devices ---- */

Test(devices, are_described, .init = begin, .fini = end)
{
	struct gaia_device_info info[3];

	cr_assert_eq(gaia_devices(file, NULL, 0), 2);
	cr_assert_eq(gaia_devices(file, info, 1), 2);
	cr_assert_str_eq(info[0].name, "sim0");
	cr_assert(info[0].simulated);
	cr_assert_eq(gaia_devices(file, info, 3), 2);
	cr_assert_str_eq(info[1].kind, "odd");
	cr_assert_eq(info[1].capacity, 32 << 20);
	assert_fails(gaia_devices(file, NULL, 1), EINVAL);
	assert_fails(gaia_devices(file, info, -1), EINVAL);
	assert_fails(gaia_devices(STDERR_FILENO, info, 1), ENOTTY);
}

/* ---- ends ---- */

Test(daemon_gone, is_enotconn_everywhere, .init = begin)
{
	struct gaia_device_info info;
	unsigned char *p = must_map(GAIA_PAGE, 0);

	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	fake_stop();
	assert_fails(gaia_acquire(p, 1, RW), ENOTCONN);
	assert_fails(gaia_release(p, 1), ENOTCONN);
	assert_fails(gaia_sync(p, 1), ENOTCONN);
	assert_fails(gaia_advise(p, 1, GAIA_WILLNEED), ENOTCONN);
	assert_fails(gaia_devices(file, &info, 1), ENOTCONN);
	errno = 0;
	cr_assert_eq(gaia_mmap(GAIA_PAGE, RW, file, 0, 0), MAP_FAILED);
	cr_assert_eq(errno, ENOTCONN);
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
}

static void *acquire_in_thread(void *arg)
{
	int err = gaia_acquire(arg, GAIA_PAGE, RW) ? errno : 0;

	return (void *)(intptr_t)err;
}

/* A daemon that comes back is another one: what was mapped is lost, what is mapped now works. */
Test(daemon_gone, a_new_one_is_connected_to, .init = begin, .fini = end)
{
	unsigned char *p = must_map(GAIA_PAGE, 0), *q;

	fake_stop();
	fake_start();
	assert_fails(gaia_acquire(p, 1, RW), ENOTCONN);
	q = must_map(GAIA_PAGE, 0);
	cr_assert_eq(gaia_acquire(q, 1, RW), 0);
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
	cr_assert_eq(gaia_acquire(q, 1, RW), 0);
	cr_assert_eq(gaia_munmap(q, GAIA_PAGE), 0);
}

Test(daemon_gone, ends_an_acquire_that_waits, .init = begin)
{
	unsigned char *p = must_map(GAIA_PAGE, 0);
	pthread_t thread;
	void *result;

	fake_gate.armed = true;
	cr_assert_eq(pthread_create(&thread, NULL, acquire_in_thread, p), 0);
	sem_wait(&fake_gate.entered);
	/* The client is disconnected before the acquire can grant anything. */
	fake_disconnect();
	sem_post(&fake_gate.leave);
	cr_assert_eq(pthread_join(thread, &result), 0);
	cr_assert_eq((intptr_t)result, ENOTCONN);
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
	fake_stop();
}

Test(descriptors, running_out_of_them_is_said, .init = begin, .fini = end)
{
	unsigned char *p = must_map(20 * (size_t)GAIA_CHUNK, 0);
	struct rlimit limit, low;
	int error;

	/* The daemon is in this process too, and must not be the one that runs out. */
	fake_prepare(fake_cache.map_id, 0, 20);
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = limit;
	low.rlim_cur = 3;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	error = gaia_acquire(p, 20 * (size_t)GAIA_CHUNK, RW) ? errno : 0;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	cr_assert_eq(error, EMFILE, "%s", strerror(error));
	assert_fails(gaia_acquire(p, 1, RW), ENOTCONN);
	cr_assert_eq(gaia_munmap(p, 20 * (size_t)GAIA_CHUNK), 0);
	p = must_map(GAIA_PAGE, 0);
	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
}

/* ---- threads and processes ---- */

/* The end of @name's line in a thread's status, as a hexadecimal number. */
static unsigned long long status_mask(const char *task, const char *name)
{
	char path[300], line[200];
	unsigned long long mask = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%s/status", task);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		if (!strncmp(line, name, strlen(name)))
			mask = strtoull(line + strlen(name) + 1, NULL, 16);
	}
	if (f)
		fclose(f);
	return mask;
}

Test(thread, takes_no_signals, .init = begin, .fini = end)
{
	unsigned char *p = must_map(GAIA_PAGE, 0);
	DIR *dir = opendir("/proc/self/task");
	unsigned found = 0;
	struct dirent *e;

	while ((e = readdir(dir))) {
		char path[300], name[32] = "";
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
		f = fopen(path, "r");
		if (!f)
			continue;
		if (fgets(name, sizeof(name), f) && !strcmp(name, "gaia\n")) {
			unsigned long long blocked = status_mask(e->d_name, "SigBlk:");

			found++;
			cr_assert(blocked & (1 << (SIGTERM - 1)));
			cr_assert(blocked & (1 << (SIGINT - 1)));
			cr_assert(blocked & (1 << (SIGALRM - 1)));
		}
		fclose(f);
	}
	closedir(dir);
	cr_assert_eq(found, 1);
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
}

static void *churn(void *arg)
{
	unsigned seed = (uintptr_t)arg;

	for (int i = 0; i < 200; i++) {
		size_t len = (1 + rand_r(&seed) % 3) * (size_t)GAIA_CHUNK;
		off_t offset = (rand_r(&seed) % 4) * (off_t)GAIA_PAGE;
		unsigned char *p = gaia_mmap(len, RW, file, offset, 0);

		if (p == MAP_FAILED || gaia_acquire(p, len, RW))
			return "map or acquire";
		if (p[GAIA_CHUNK - offset] != 1 && len > GAIA_CHUNK)
			return "wrong memory";
		p[10] = 1;
		if (gaia_release(p, len) || gaia_munmap(p, len))
			return "release or unmap";
	}
	return NULL;
}

Test(thread, many_use_it_at_once, .init = begin, .fini = end, .timeout = 100)
{
	pthread_t thread[4];

	for (uintptr_t i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&thread[i], NULL, churn, (void *)(i + 1)), 0);
	for (int i = 0; i < 4; i++) {
		void *failed;

		cr_assert_eq(pthread_join(thread[i], &failed), 0);
		cr_assert_null(failed, "%s", (char *)failed);
	}
	cr_assert_eq(fake_cache.live, 0);
}

/* In a child: _exit() with the number of the first thing that is wrong. */
#define child_check(n, cond)            \
	do {                            \
		if (!(cond))            \
			_exit(n);       \
	} while (0)

static void assert_child_succeeds(pid_t pid)
{
	int status;

	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status), "killed by signal %d", WTERMSIG(status));
	cr_assert_eq(WEXITSTATUS(status), 0, "check %d of the child failed", WEXITSTATUS(status));
}

Test(fork, a_child_has_no_mappings, .init = begin, .fini = end)
{
	unsigned char *p = must_map(GAIA_PAGE, 0);
	unsigned fds = entries("/proc/self/fd");
	pid_t pid;

	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	pid = fork();
	if (pid == 0) {
		child_check(1, gaia_acquire(p, 1, RW) == -1 && errno == ENOTCONN);
		child_check(2, gaia_release(p, 1) == -1 && errno == ENOTCONN);
		child_check(3, gaia_munmap(p, GAIA_PAGE) == -1 && errno == ENOTCONN);
		child_check(4, !can_load(p));
		/* The connection and the duplicate are not inherited. */
		child_check(5, entries("/proc/self/fd") <= fds - 2);
		/* Its own mappings may take the addresses. */
		child_check(6, mmap(p, GAIA_PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
				    -1, 0) == p);
		child_check(7, gaia_munmap(p, GAIA_PAGE) == -1 && can_load(p));
		_exit(0);
	}
	assert_child_succeeds(pid);
	cr_assert(fake_alive());
	cr_assert_eq(gaia_acquire(p, 1, RW), 0);
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
}

/* There is no daemon in a child of this process: a mount that is dead, but has devices. */
static int childs_ioctl(int fd, unsigned long request, void *arg)
{
	struct gaia_ioc_devices *devices = arg;

	if (request == GAIA_IOC_DEVICES) {
		devices->total = devices->count = 1;
		strcpy(devices->device[0].kind, "sim");
		return 0;
	}
	errno = ENOTCONN;
	return -1;
}

static void *fork_in_thread(void *arg)
{
	for (int i = 0; i < 50; i++) {
		pid_t pid = fork();
		int status;

		if (pid == 0) {
			/* Any lock that is held for ever would show. */
			wire_sys.ioctl = childs_ioctl;
			child_check(1, gaia_mmap(GAIA_PAGE, RW, file, 0, 0) == MAP_FAILED);
			child_check(2, errno == ENOTCONN);
			_exit(0);
		}
		if (waitpid(pid, &status, 0) != pid || status)
			return "a child failed";
	}
	return NULL;
}

Test(fork, does_not_deadlock_with_calls_in_progress, .init = begin, .fini = end, .timeout = 100)
{
	pthread_t thread[3];

	cr_assert_eq(pthread_create(&thread[0], NULL, fork_in_thread, NULL), 0);
	for (uintptr_t i = 1; i < 3; i++)
		cr_assert_eq(pthread_create(&thread[i], NULL, churn, (void *)i), 0);
	for (int i = 0; i < 3; i++) {
		void *failed;

		cr_assert_eq(pthread_join(thread[i], &failed), 0);
		cr_assert_null(failed, "%s", (char *)failed);
	}
}
