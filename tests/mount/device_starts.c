/*
 * device_starts.c - acquires that are started and waited for later, or cancelled.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "child.h"
#include "gaia/client.h"
#include "gaia/cuda.h"
#include "raw_client.h"
#include "report.h"
#include "ways.h"

#define PAGE 4096
#define DEVICE (4ul * GAIA_CHUNK) /* all of it */
#define RW (PROT_READ | PROT_WRITE)

#define OK(call) cr_assert_eq((call), 0, "%s: %s", #call, strerror(errno))
#define FAILS(call, err)                                                      \
	do {                                                                  \
		errno = 0;                                                    \
		cr_assert_eq((call), -1, "%s succeeded", #call);              \
		cr_assert_eq(errno, (err), "%s: %s", #call, strerror(errno)); \
	} while (0)

/* In threads, where asserts do not work. */
#define must_not(wrong)                                                                \
	do {                                                                           \
		if (wrong) {                                                           \
			fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #wrong); \
			abort();                                                       \
		}                                                                      \
	} while (0)

static void start_mount(void)
{
	static const char *const args[] = { "--device", "sim:8M", NULL };

	way_start(args);
}

static int make_file(const char *name, size_t size, int byte)
{
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	char *bytes = malloc(size);

	cr_assert_geq(fd, 0);
	memset(bytes, byte, size);
	cr_assert_eq(pwrite(fd, bytes, size, 0), (ssize_t)size);
	/* Clients without the library do not push it. */
	cr_assert_eq(fsync(fd), 0);
	free(bytes);
	return fd;
}

static unsigned char *map(int fd, size_t len)
{
	void *p = gaia_mmap(len, RW, fd, 0, 0);

	cr_assert_neq(p, MAP_FAILED, "gaia_mmap: %s", strerror(errno));
	return p;
}

static int begin(void *addr, size_t len, int prot)
{
	int fd = gaia_acquire_start(addr, len, prot);

	cr_assert_geq(fd, 0, "gaia_acquire_start: %s", strerror(errno));
	return fd;
}

static void await_readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	cr_assert_eq(poll(&p, 1, HANG_SECONDS * 1000), 1, "it does not end");
	cr_assert(p.revents & POLLIN);
}

static bool is_readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static int byte_at(int fd, off_t off)
{
	unsigned char c;

	cr_assert_eq(pread(fd, &c, 1, off), 1);
	return c;
}

/* Nothing of the file is held any more, soon. */
static void await_nothing_held(int fd)
{
	struct gaia_ioc_file io = { .from = 0 };
	time_t end = time(NULL) + HANG_SECONDS;

	while (ioctl(fd, GAIA_IOC_EVICT, &io)) {
		cr_assert_eq(errno, EBUSY, "%s", strerror(errno));
		cr_assert_lt(time(NULL), end, "it stays held");
		usleep(1000);
	}
}

static bool is_held(int fd)
{
	struct gaia_ioc_file io = { .from = 0 };

	return ioctl(fd, GAIA_IOC_EVICT, &io) && errno == EBUSY;
}

/* ---- waited for ---- */

EACH_WAY(device_starts, is_made_when_it_has_been_waited_for)
{
	int fd = make_file("f", 3 * PAGE, 'x'), start;
	unsigned char *p = map(fd, 3 * PAGE);

	cr_assert_eq(pwrite(fd, "y", 1, PAGE), 1);
	start = begin(p, 2 * PAGE, RW);
	cr_assert(fcntl(start, F_GETFD) & FD_CLOEXEC);
	await_readable(start);
	await_readable(start);
	OK(gaia_wait(start));
	cr_assert_eq(fcntl(start, F_GETFD), -1, "it is closed");
	cr_assert_eq(p[0], 'x');
	cr_assert_eq(p[PAGE], 'y');
	p[0] = 'a';
	cr_assert_eq(byte_at(fd, 0), 'x');
	OK(gaia_release(p, 2 * PAGE));
	cr_assert_eq(byte_at(fd, 0), 'a');
	cr_assert_eq(byte_at(fd, PAGE), 'y');
	await_nothing_held(fd);
	OK(gaia_munmap(p, 3 * PAGE));
	close(fd);
}

EACH_WAY(device_starts, sees_what_was_stored_before_it_through_mappings)
{
	int fd = make_file("f", 2 * PAGE, 'x'), start;
	unsigned char *p = map(fd, 2 * PAGE);
	volatile unsigned char *cpu = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 0);

	cr_assert_neq(cpu, MAP_FAILED);
	for (int i = 1; i < 50; i++) {
		cpu[PAGE] = (unsigned char)i;
		start = begin(p, 2 * PAGE, PROT_READ);
		OK(gaia_wait(start));
		cr_assert_eq(p[PAGE], i);
		OK(gaia_release(p, 2 * PAGE));
	}
	munmap((void *)cpu, 2 * PAGE);
	OK(gaia_munmap(p, 2 * PAGE));
	close(fd);
}

/* What is held otherwise stays so, and is used and released meanwhile. */
EACH_WAY(device_starts, counts_as_another_acquire)
{
	int fd = make_file("f", PAGE, 'x'), start;
	unsigned char *p = map(fd, PAGE);

	OK(gaia_acquire(p, PAGE, RW));
	start = begin(p, PAGE, RW);
	p[0] = 'a';
	OK(gaia_release(p, PAGE));
	cr_assert_eq(byte_at(fd, 0), 'a');
	OK(gaia_wait(start));
	cr_assert_eq(p[0], 'a');
	p[0] = 'b';
	cr_assert(is_held(fd));
	OK(gaia_release(p, PAGE));
	cr_assert_eq(byte_at(fd, 0), 'b');
	await_nothing_held(fd);
	OK(gaia_munmap(p, PAGE));
	close(fd);
}

EACH_WAY(device_starts, of_a_list)
{
	int fd = make_file("f", 8 * PAGE, 'x'), start;
	unsigned char *p = map(fd, 8 * PAGE);
	struct gaia_range list[] = { { p + 5 * PAGE, 1 }, { p, 0 }, { p + 1, PAGE }, { p + PAGE, 10 } };

	start = gaia_acquirev_start(list, ARRAY_LEN(list), RW);
	cr_assert_geq(start, 0, "%s", strerror(errno));
	memset(list, 0, sizeof(list)); /* it was copied */
	OK(gaia_wait(start));
	p[PAGE] = 'a';
	p[5 * PAGE] = 'b';
	/* Page 1 is held twice. */
	OK(gaia_release(p, 2 * PAGE));
	cr_assert(is_held(fd));
	p[PAGE] = 'c';
	OK(gaia_release(p + PAGE, 5 * PAGE));
	cr_assert_eq(byte_at(fd, PAGE), 'c');
	cr_assert_eq(byte_at(fd, 5 * PAGE), 'b');
	await_nothing_held(fd);
	OK(gaia_munmap(p, 8 * PAGE));
	close(fd);
}

EACH_WAY(device_starts, errors)
{
	int fd = make_file("f", 2 * PAGE, 'x'), ro = openat(both_root[ON_MOUNT], "f", O_RDONLY | O_CLOEXEC), start, pair[2], copy;
	unsigned char *p = map(fd, 2 * PAGE), *r = gaia_mmap(PAGE, PROT_READ, ro, 0, 0);
	struct gaia_range outside[] = { { p, 1 }, { r, 1 } };

	cr_assert_neq((void *)r, MAP_FAILED);
	FAILS(gaia_acquire_start(p, 2 * PAGE + 1, RW), EINVAL);
	FAILS(gaia_acquire_start(p, 1, PROT_NONE), EINVAL);
	FAILS(gaia_acquire_start(r, 1, RW), EACCES);
	FAILS(gaia_acquirev_start(outside, 2, PROT_READ), EINVAL);
	FAILS(gaia_acquirev_start(outside + 1, 1, RW), EACCES);
	FAILS(gaia_acquirev_start(outside, SIZE_MAX, RW), E2BIG);
	FAILS(gaia_wait(-1), EBADF);
	FAILS(gaia_wait(fd), EINVAL);
	OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	FAILS(gaia_wait(pair[0]), EINVAL);
	cr_assert_eq(write(pair[1], "x", 1), 1, "it is open");
	close(pair[0]);
	close(pair[1]);
	/* Of nothing. */
	start = begin(NULL, 0, RW);
	await_readable(start);
	OK(gaia_wait(start));
	FAILS(gaia_wait(start), EBADF);
	start = gaia_acquirev_start(NULL, 0, RW);
	OK(gaia_wait(start));
	/* By a copy. */
	start = begin(p, 1, RW);
	copy = dup(start);
	close(start);
	OK(gaia_wait(copy));
	FAILS(gaia_wait(copy), EBADF);
	OK(gaia_release(p, 1));
	await_nothing_held(fd);
	/* Once only. */
	start = begin(p, 1, RW);
	copy = dup(start);
	OK(gaia_wait(start));
	FAILS(gaia_wait(copy), EINVAL);
	close(copy);
	OK(gaia_release(p, 1));
	OK(gaia_munmap(p, 2 * PAGE));
	OK(gaia_munmap(r, PAGE));
	close(fd);
	close(ro);
}

EACH_WAY_BARE(device_starts, that_fail_have_acquired_nothing)
{
	int fd, start;
	unsigned char *p;

	start_mount();
	fd = make_file("f", DEVICE + PAGE, 'x');
	p = map(fd, DEVICE + PAGE);
	start = begin(p, DEVICE + PAGE, RW);
	await_readable(start);
	FAILS(gaia_wait(start), ENOMEM);
	start = begin(p, DEVICE + PAGE, RW);
	await_readable(start);
	close(start);
	await_nothing_held(fd);
	OK(gaia_acquire(p, DEVICE, RW));
	OK(gaia_munmap(p, DEVICE + PAGE));
	close(fd);
}

/* More than are under way at a time; and more than there are descriptors for. */
EACH_WAY(device_starts, many_at_once)
{
	enum { MANY = 400 };
	int fd = make_file("f", MANY * PAGE, 'x'), start[MANY];
	unsigned char *p = map(fd, MANY * PAGE);
	struct rlimit limit, few;

	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < MANY; i++)
			start[i] = begin(p + i * PAGE, PAGE, RW);
		for (int i = MANY; i-- > 0;) {
			OK(gaia_wait(start[i]));
			p[i * PAGE]++;
		}
		OK(gaia_release(p, MANY * PAGE));
		cr_assert_eq(byte_at(fd, (MANY - 1) * PAGE), 'x' + round + 1);
	}
	OK(getrlimit(RLIMIT_NOFILE, &limit));
	few = (struct rlimit){ (rlim_t)start[20], limit.rlim_max };
	OK(setrlimit(RLIMIT_NOFILE, &few));
	for (int i = 0; i < MANY; i++) {
		start[i] = gaia_acquire_start(p, 1, RW);
		if (start[i] >= 0)
			continue;
		cr_assert_eq(errno, EMFILE, "%s", strerror(errno));
		cr_assert_gt(i, 10);
		while (i-- > 0)
			close(start[i]);
		break;
	}
	OK(setrlimit(RLIMIT_NOFILE, &limit));
	await_nothing_held(fd);
	OK(gaia_munmap(p, MANY * PAGE));
	close(fd);
}

/* Each waits for what it has started itself, closes it, or has it closed by the end of a mapping. */
static void *start_and_end(void *arg)
{
	unsigned seed = *(unsigned *)arg;
	int fd = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);

	for (int round = 0; round < 6; round++) {
		unsigned char *p = gaia_mmap(64 * PAGE, RW, fd, 0, 0);
		int start[20];

		must_not(p == MAP_FAILED);
		for (unsigned i = 0; i < ARRAY_LEN(start); i++) {
			unsigned page = (unsigned)rand_r(&seed) % 60;

			start[i] = gaia_acquire_start(p + page * PAGE, 4 * PAGE, rand_r(&seed) % 2 ? RW : PROT_READ);
			must_not(start[i] < 0);
			if (rand_r(&seed) % 3 == 0) {
				close(start[i]);
				start[i] = -1;
			}
		}
		for (unsigned i = 0; i < ARRAY_LEN(start); i++)
			if (start[i] >= 0 && rand_r(&seed) % 2) {
				must_not(gaia_wait(start[i]));
				start[i] = -1;
			}
		must_not(gaia_munmap(p, 64 * PAGE));
		for (unsigned i = 0; i < ARRAY_LEN(start); i++)
			if (start[i] >= 0)
				must_not(gaia_wait(start[i]) == 0 || errno != ECANCELED);
	}
	close(fd);
	return NULL;
}

EACH_WAY(device_starts, by_many_threads)
{
	unsigned seed[4] = { 1, 2, 3, 4 };
	int fd = make_file("f", 64 * PAGE, 'x');
	pthread_t thread[4];

	for (unsigned i = 0; i < ARRAY_LEN(thread); i++)
		OK(pthread_create(&thread[i], NULL, start_and_end, &seed[i]));
	for (unsigned i = 0; i < ARRAY_LEN(thread); i++)
		OK(pthread_join(thread[i], NULL));
	await_nothing_held(fd);
	cr_assert_eq(byte_at(fd, 0), 'x');
	close(fd);
}

/* On a device without streams. */
EACH_WAY(device_starts, beside_acquires_in_the_order_of_a_stream)
{
	int fd = make_file("f", PAGE, 'x'), start;
	unsigned char *p = map(fd, PAGE);

	start = begin(p, PAGE, RW);
	OK(gaia_acquire_on(p, PAGE, RW, NULL));
	OK(gaia_wait(start));
	OK(gaia_release_on(p, PAGE, NULL));
	OK(gaia_release(p, PAGE));
	await_nothing_held(fd);
	OK(gaia_munmap(p, PAGE));
	close(fd);
}

/* ---- closed ---- */

EACH_WAY(device_starts, that_are_closed_are_given_back)
{
	int fd = make_file("f", 4 * PAGE, 'x'), start;
	unsigned char *p = map(fd, 4 * PAGE);
	struct gaia_range list[] = { { p + 2 * PAGE, PAGE }, { p, PAGE }, { p, 1 } };

	/* When it has been made; */
	start = begin(p, 4 * PAGE, RW);
	await_readable(start);
	cr_assert(is_held(fd));
	close(start);
	await_nothing_held(fd);
	start = gaia_acquirev_start(list, ARRAY_LEN(list), RW);
	await_readable(start);
	close(start);
	await_nothing_held(fd);
	/* or wherever it is. */
	for (int i = 0; i < 100; i++)
		close(begin(p, 4 * PAGE, i % 2 ? RW : PROT_READ));
	for (int i = 0; i < 20; i++)
		close(gaia_acquirev_start(list, ARRAY_LEN(list), RW));
	await_nothing_held(fd);
	OK(gaia_acquire(p, 4 * PAGE, RW));
	p[0] = 'a';
	OK(gaia_release(p, 4 * PAGE));
	cr_assert_eq(byte_at(fd, 0), 'a');
	await_nothing_held(fd);
	OK(gaia_munmap(p, 4 * PAGE));
	close(fd);
}

/* What the mapping holds otherwise, and has stored, stays private. */
/* The program releases, and acquires again, maybe before the library has noticed that the descriptor is closed. */
EACH_WAY(device_starts, that_are_closed_take_no_hold_of_what_comes)
{
	int fd = make_file("f", 4 * PAGE, 'x');
	unsigned char *p = map(fd, 4 * PAGE);

	for (int round = 0; round < 60; round++) {
		int start = begin(p, 4 * PAGE, RW), before = byte_at(fd, PAGE);
		long releases = STATUS("counters", "releases");
		time_t end = time(NULL) + HANG_SECONDS;

		await_readable(start);
		close(start);
		OK(gaia_release(p, 4 * PAGE));
		OK(gaia_acquire(p + PAGE, PAGE, RW));
		p[PAGE] = (unsigned char)round;
		while (STATUS("counters", "releases") < releases + 2) {
			cr_assert_lt(time(NULL), end, "it is not given back");
			usleep(1000);
		}
		cr_assert_eq(byte_at(fd, PAGE), before, "round %d: %d and not %d", round, byte_at(fd, PAGE), before);
		OK(gaia_release(p + PAGE, PAGE));
		cr_assert_eq(byte_at(fd, PAGE), round);
	}
	OK(gaia_munmap(p, 4 * PAGE));
	close(fd);
}

EACH_WAY(device_starts, that_are_closed_publish_nothing)
{
	int fd = make_file("f", 4 * PAGE, 'x'), start;
	unsigned char *p = map(fd, 4 * PAGE);
	struct gaia_range list[] = { { p + 2 * PAGE, PAGE }, { p, PAGE }, { p, 1 } };
	time_t end = time(NULL) + HANG_SECONDS;
	long before;

	OK(gaia_acquire(p, 2 * PAGE, RW));
	p[0] = 'a';
	start = begin(p, 4 * PAGE, RW);
	await_readable(start);
	p[PAGE] = 'b';
	before = STATUS("counters", "releases");
	close(start);
	start = gaia_acquirev_start(list, ARRAY_LEN(list), RW);
	await_readable(start);
	close(start);
	while (STATUS("counters", "releases") < before + 2) {
		cr_assert_lt(time(NULL), end, "it is not given back");
		usleep(1000);
	}
	/* That counts when it begins; the next has to wait for the pages. */
	start = begin(p, 4 * PAGE, RW);
	OK(gaia_wait(start));
	cr_assert_eq(byte_at(fd, 0), 'x');
	cr_assert_eq(byte_at(fd, PAGE), 'x');
	cr_assert_eq(p[0], 'a');
	cr_assert_eq(p[PAGE], 'b');
	OK(gaia_release(p + 2 * PAGE, 2 * PAGE));
	cr_assert_eq(byte_at(fd, 0), 'x');
	OK(gaia_release(p, 2 * PAGE));
	cr_assert_eq(byte_at(fd, 0), 'a');
	cr_assert_eq(byte_at(fd, PAGE), 'b');
	OK(gaia_release(p, 2 * PAGE));
	await_nothing_held(fd);
	OK(gaia_munmap(p, 4 * PAGE));
	close(fd);
}

/* ---- while they wait ---- */

/* A client with @len of the device in its hands, of which it holds nothing: an acquire of all of it waits for this client. */
static struct raw mute_client(int fd, size_t len)
{
	struct gaia_ioc_range io;
	struct raw r = raw_client(fd);
	uint64_t mapped = raw_map(fd, &r, len, GAIA_PROT_READ);

	io = raw_range(&r, mapped, len, GAIA_PROT_READ);
	cr_assert_eq(ioctl(fd, GAIA_IOC_ACQUIRE, &io), 0, "%s", strerror(errno));
	io.prot = io.seq = 0;
	cr_assert_eq(ioctl(fd, GAIA_IOC_RELEASE, &io), 0, "%s", strerror(errno));
	return r;
}

static void await_revoke(const struct raw *r)
{
	struct gaia_msg msg;

	do
		cr_assert(raw_receive(r->sock, &msg, NULL));
	while (msg.kind != GAIA_MSG_REVOKE);
}

static void note(int sig)
{
	(void)sig;
}

EACH_WAY_BARE(device_starts, are_interrupted_cancelled_and_unmapped_while_under_way)
{
	static const struct itimerval often = { { 0, 10000 }, { 0, 10000 } }, never;
	struct sigaction sa = { .sa_handler = note, .sa_flags = SA_RESTART };
	int fd, other, start[20], last, cancelled;
	unsigned char *p, *q;
	struct raw r;

	start_mount();
	fd = make_file("f", DEVICE, 'x');
	other = make_file("other", DEVICE, 'o');
	p = map(fd, DEVICE);
	q = map(fd, DEVICE);
	r = mute_client(other, DEVICE);

	for (unsigned i = 0; i < ARRAY_LEN(start); i++)
		start[i] = begin(p, DEVICE, RW);
	cancelled = begin(q, DEVICE, RW);
	last = begin(q, DEVICE, RW);
	await_revoke(&r);
	cr_assert(!is_readable(start[0]));
	/* A signal ends the wait, and not the acquire. */
	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	FAILS(gaia_wait(start[0]), EINTR);
	setitimer(ITIMER_REAL, &never, NULL);
	cr_assert(!is_readable(start[0]));
	close(cancelled);
	OK(gaia_munmap(p, DEVICE));
	/* More than may be under way: these have not begun. */
	for (unsigned i = 8; i < ARRAY_LEN(start); i++) {
		cr_assert(is_readable(start[i]), "%u", i);
		FAILS(gaia_wait(start[i]), ECANCELED);
	}
	cr_assert_eq(STATUS("counters", "revoke_timeouts"), 0, "not before the client was given up");
	close(r.sock);
	for (unsigned i = 0; i < 8; i++)
		FAILS(gaia_wait(start[i]), ECANCELED);
	OK(gaia_wait(last));
	cr_assert_eq(q[DEVICE - 1], 'x');
	OK(gaia_release(q, DEVICE));
	await_nothing_held(fd);
	OK(gaia_munmap(q, DEVICE));
	close(fd);
	close(other);
}

/* A client whose connection is the only one of its kind ends with starts under way. */
static int ends_with_starts(void *arg)
{
	int fd = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);
	unsigned char *p = gaia_mmap(DEVICE, RW, fd, 0, 0);
	int how = *(int *)arg;

	CHILD_CHECK(p != MAP_FAILED);
	for (int i = 0; i < 20; i++)
		CHILD_CHECK(gaia_acquire_start(p, DEVICE, RW) >= 0);
	if (how == 0)
		exit(0);
	if (how == 1)
		_exit(0);
	raise(SIGKILL);
	return 1;
}

EACH_WAY_BARE(device_starts, end_with_the_process)
{
	int fd, other;

	start_mount();
	fd = make_file("f", DEVICE, 'x');
	other = make_file("other", DEVICE, 'o');
	for (int how = 0; how < 3; how++) {
		time_t end = time(NULL) + HANG_SECONDS;
		unsigned char *p;

		cr_assert_eq(child_run(ends_with_starts, &how), how < 2 ? 0 : 128 + SIGKILL);
		await_nothing_held(fd);
		p = map(other, DEVICE);
		/* An acquire that the daemon has begun for the process may still come, and have the memory until it finds that it is in vain. */
		while (gaia_acquire(p, DEVICE, RW)) {
			cr_assert_eq(errno, ENOMEM, "%s", strerror(errno));
			cr_assert_lt(time(NULL), end, "the ended process's memory stays taken");
			usleep(1000);
		}
		OK(gaia_munmap(p, DEVICE));
	}
	close(fd);
	close(other);
}

/* What a mapping has stored is void when gaia_munmap() returns, whatever is under way for it in the daemon. */
EACH_WAY_BARE(device_starts, under_way_keep_nothing_of_an_unmapped_mapping)
{
	int fd, other, start;
	unsigned char *p;
	struct raw r;

	start_mount();
	fd = make_file("f", DEVICE, 'x');
	other = make_file("other", DEVICE, 'o');
	r = mute_client(other, DEVICE - GAIA_CHUNK);
	p = map(fd, DEVICE);
	OK(gaia_acquire(p, PAGE, RW));
	p[0] = 'u';
	start = begin(p, DEVICE, RW);
	await_revoke(&r);
	OK(gaia_munmap(p, DEVICE));
	p = map(fd, DEVICE);
	OK(gaia_acquire(p, PAGE, RW));
	cr_assert_eq(p[0], 'x', "%c", p[0]);
	p[1] = 'v';
	OK(gaia_release(p, PAGE));
	cr_assert_eq(byte_at(fd, 0), 'x');
	cr_assert_eq(byte_at(fd, 1), 'v');
	cr_assert_eq(STATUS("counters", "revoke_timeouts"), 0, "not before the client was given up");
	close(r.sock);
	FAILS(gaia_wait(start), ECANCELED);
	cr_assert_eq(byte_at(fd, 0), 'x');
	OK(gaia_munmap(p, DEVICE));
	close(fd);
	close(other);
}

/* ---- fork ---- */

struct child {
	struct gate go;
	int start, done;
	int own; /* the child's */
	unsigned char *p;
};

/* What is left of the grandparent's, and what its parent has. */
static int inherits_from_both(void *arg)
{
	const struct child *c = arg;

	CHILD_CHECK(is_readable(c->done) && is_readable(c->own));
	CHILD_CHECK(gaia_wait(c->done) == -1 && errno == ENOTCONN);
	CHILD_CHECK(gaia_wait(c->own) == -1 && errno == ENOTCONN);
	CHILD_CHECK(fcntl(c->done, F_GETFD) == -1 && fcntl(c->own, F_GETFD) == -1);
	return 0;
}

static int inherits(void *arg)
{
	struct child *c = arg;
	int fd;
	unsigned char *p;

	CHILD_CHECK(is_readable(c->start) && is_readable(c->done));
	CHILD_CHECK(gaia_wait(c->start) == -1 && errno == ENOTCONN);
	CHILD_CHECK(fcntl(c->start, F_GETFD) == -1);
	CHILD_CHECK(gaia_acquire_start(c->p, PAGE, RW) == -1 && errno == ENOTCONN);
	/* Its own. */
	fd = openat(both_root[ON_MOUNT], "g", O_RDWR | O_CLOEXEC);
	p = gaia_mmap(PAGE, RW, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	c->own = gaia_acquire_start(p, PAGE, RW);
	CHILD_CHECK(c->own >= 0 && child_wait(child_start(inherits_from_both, c)) == 0);
	CHILD_CHECK(gaia_wait(c->own) == 0 && p[0] == 'g');
	CHILD_CHECK(gate_pass(c->go));
	return 0;
}

EACH_WAY(device_starts, belong_to_the_parent)
{
	struct child c = { .go = gate_make() };
	int fd, other;
	pid_t pid;

	WAY_NOT_FOR_ASAN;
	fd = make_file("f", 8 * PAGE, 'x');
	other = make_file("g", PAGE, 'g');
	c.p = map(fd, 8 * PAGE);
	c.done = begin(c.p, PAGE, RW);
	await_readable(c.done);
	c.start = begin(c.p + PAGE, PAGE, RW);
	pid = child_start(inherits, &c);
	/* The child does not keep it open. */
	close(c.done);
	OK(gaia_wait(c.start));
	cr_assert_eq(c.p[PAGE], 'x');
	OK(gaia_release(c.p + PAGE, PAGE));
	await_nothing_held(fd);
	gate_open(c.go);
	cr_assert_eq(child_wait(pid), 0);
	OK(gaia_munmap(c.p, 8 * PAGE));
	close(fd);
	close(other);
}

static atomic_bool stop;

static void *starts_all_the_time(void *arg)
{
	unsigned char *p = arg;

	while (!stop) {
		int start = gaia_acquire_start(p, PAGE, RW), closed = gaia_acquire_start(p, PAGE, RW);

		must_not(start < 0 || closed < 0);
		close(closed);
		must_not(gaia_wait(start));
		must_not(gaia_release(p, PAGE));
	}
	return NULL;
}

static int does_nothing(void *arg)
{
	struct gate *go = arg;

	return gate_pass(*go) ? 0 : 1;
}

/* Children that are made at any moment, and live on, keep nothing from being noticed. */
EACH_WAY(device_starts, while_processes_fork)
{
	struct gate go = gate_make();
	int fd = make_file("f", PAGE, 'x');
	unsigned char *p = map(fd, PAGE);
	pthread_t thread;
	pid_t pid[20];

	stop = false;
	OK(pthread_create(&thread, NULL, starts_all_the_time, p));
	for (unsigned i = 0; i < ARRAY_LEN(pid); i++)
		pid[i] = child_start(does_nothing, &go);
	stop = true;
	OK(pthread_join(thread, NULL));
	await_nothing_held(fd);
	for (unsigned i = 0; i < ARRAY_LEN(pid); i++)
		gate_open(go);
	for (unsigned i = 0; i < ARRAY_LEN(pid); i++)
		cr_assert_eq(child_wait(pid[i]), 0);
	OK(gaia_munmap(p, PAGE));
	close(fd);
}

/* ---- the daemon's end ---- */

EACH_WAY_BARE(device_starts, end_with_the_daemon)
{
	int fd, other, made, under_way, closed;
	unsigned char *p;
	struct raw r;

	start_mount();
	fd = make_file("f", DEVICE, 'x');
	other = make_file("other", DEVICE, 'o');
	p = map(fd, DEVICE);
	made = begin(p, PAGE, RW);
	await_readable(made);
	closed = begin(p, PAGE, RW);
	await_readable(closed);
	OK(gaia_release(p, PAGE)); /* of one of both */
	r = mute_client(other, DEVICE - GAIA_CHUNK);
	under_way = begin(p, DEVICE, RW);
	await_revoke(&r);
	kill(mnt.daemon, SIGKILL);
	close(closed);
	await_readable(under_way);
	FAILS(gaia_wait(under_way), ENOTCONN);
	(void)gaia_wait(made);
	FAILS(gaia_acquire_start(p, PAGE, RW), ENOTCONN);
	OK(gaia_munmap(p, DEVICE));
	close(r.sock);
	close(fd);
	close(other);
	mnt_crash(&mnt);
	way_remount();
}
