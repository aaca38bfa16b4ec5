/*
 * interrupt.c - a signal ends an acquire that waits for a mute client, or for storage that does not answer: at once, while
 * these stay so. Such an acquire leaves nothing behind; and one that has returned 0 has been made.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "raw_client.h"
#include "report.h"
#include "ways.h"

#define DEVICE (4ul * GAIA_CHUNK) /* all of it */
#define RW (PROT_READ | PROT_WRITE)

static const char *const args[] = { "--device", "sim:8M", NULL };

enum how { CAUGHT, CAUGHT_WITH_RESTART, KILLED, HOWS };
static const char *const how_names[] = { "a signal", "a signal with SA_RESTART", "SIGKILL" };

/* Shared with the victim. */
static struct {
	atomic_int acquires; /* in the call, or has been */
	atomic_int result;   /* errno; -1: the call has not returned */
	atomic_uint made, interrupted;
} *shared;

static struct gate ready, go, enough;
static bool writes_first; /* the victim, so that there is something to push before the acquire */

static void note(int sig)
{
	(void)sig;
}

static void catch(int sig, int flags)
{
	struct sigaction sa = { .sa_handler = note, .sa_flags = flags };

	sigaction(sig, &sa, NULL);
}

static int open_mounted(const char *name)
{
	return open(mnt_file(&mnt, name), O_RDWR | O_CLOEXEC);
}

static void begin(void)
{
	shared = mmap(NULL, sizeof(*shared), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(shared, MAP_FAILED);
	ready = gate_make();
	go = gate_make();
	enough = gate_make();
}

/* Whole pages, so that nothing has to be read for them. */
static void write_page(int fd)
{
	static char bytes[4096];

	memset(bytes, 'g', sizeof(bytes));
	CHILD_CHECK(pwrite(fd, bytes, sizeof(bytes), GAIA_CHUNK) == sizeof(bytes));
}

static int acquire_all(void *arg)
{
	const enum how *how = arg;
	unsigned char *p;
	int fd;

	catch(SIGUSR1, *how == CAUGHT_WITH_RESTART ? SA_RESTART : 0);
	fd = open_mounted("f");
	CHILD_CHECK(fd >= 0);
	p = gaia_mmap(DEVICE, RW, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	if (writes_first)
		write_page(fd); /* the kernel asks for attributes once */
	gate_open(ready);
	CHILD_CHECK(gate_pass(go));
	if (writes_first)
		write_page(fd);
	shared->acquires++;
	shared->result = gaia_acquire(p, DEVICE, RW) ? errno : 0;
	gate_open(ready);
	CHILD_CHECK(gate_pass(enough));
	/* The call may be repeated. */
	CHILD_CHECK(!gaia_acquire(p, DEVICE, RW));
	CHILD_CHECK(p[1] == 'f');
	CHILD_CHECK(p[GAIA_CHUNK] == (writes_first ? 'g' : 'f'));
	CHILD_CHECK(!gaia_munmap(p, DEVICE));
	close(fd);
	return 0;
}

static pid_t victim_start(enum how *how)
{
	pid_t pid;

	shared->acquires = 0;
	shared->result = -1;
	pid = child_start(acquire_all, how);
	cr_assert(gate_pass(ready));
	return pid;
}

/* Of a victim that waits in the daemon. */
static void interrupt(pid_t pid, enum how how)
{
	kill(pid, how == KILLED ? SIGKILL : SIGUSR1);
	if (how == KILLED) {
		cr_assert_eq(child_wait(pid), 128 + SIGKILL);
		return;
	}
	cr_assert(gate_pass(ready), "%s: it goes on", how_names[how]);
	cr_assert_eq(shared->result, EINTR, "%s: %s", how_names[how], strerror(shared->result));
}

/* All of the device can be had for another file, and all of the file is there to be cut off. */
static void nothing_is_left(const char *what)
{
	int fd = open_mounted("other");
	unsigned char *p = gaia_mmap(DEVICE, RW, fd, 0, 0);

	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	/* The interrupted acquire may still be being undone. */
	while (gaia_acquire(p, DEVICE, RW))
		cr_assert_eq(errno, ENOMEM, "%s: %s", what, strerror(errno));
	cr_assert_eq(gaia_release(p, DEVICE), 0);
	cr_assert_eq(gaia_munmap(p, DEVICE), 0);
	close(fd);
}

static void victim_end(pid_t pid, enum how how)
{
	nothing_is_left(how_names[how]);
	if (how == KILLED)
		return;
	gate_open(enough);
	cr_assert_eq(child_wait(pid), 0, "%s", how_names[how]);
}

static void make_file(int dir, const char *name)
{
	static char bytes[DEVICE];
	int fd = openat(dir, name, O_RDWR | O_CREAT | O_CLOEXEC, 0644);

	memset(bytes, 'f', sizeof(bytes));
	cr_assert_eq(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
	cr_assert_eq(fsync(fd), 0);
	close(fd);
}

/* ---- clients that are mute ---- */

/* A client with all of the device in its hands, of which it holds nothing. */
static struct raw mute_client(int fd)
{
	struct gaia_ioc_range io;
	struct raw r = raw_client(fd);
	uint64_t map = raw_map(fd, &r, DEVICE, GAIA_PROT_READ);

	io = raw_range(&r, map, DEVICE, GAIA_PROT_READ);
	cr_assert_eq(ioctl(fd, GAIA_IOC_ACQUIRE, &io), 0, "%s", strerror(errno));
	io.prot = io.seq = 0;
	cr_assert_eq(ioctl(fd, GAIA_IOC_RELEASE, &io), 0, "%s", strerror(errno));
	return r;
}

EACH_WAY_BARE(interrupt, an_acquire_that_waits_for_a_client)
{
	begin();
	way_start(args);
	make_file(both_root[ON_MOUNT], "f");
	make_file(both_root[ON_MOUNT], "other");
	for (enum how how = 0; how < HOWS; how++) {
		pid_t pid = victim_start(&how); /* first: it has no copy of the other's socket */
		int fd = open_mounted("other");
		struct raw r = mute_client(fd);
		struct gaia_msg msg;

		gate_open(go);
		do
			cr_assert(raw_receive(r.sock, &msg, NULL));
		while (msg.kind != GAIA_MSG_REVOKE);
		interrupt(pid, how);
		cr_assert_eq(STATUS("counters", "revoke_timeouts"), 0, "%s: not before the client was given up",
			     how_names[how]);
		close(r.sock);
		close(fd);
		victim_end(pid, how);
	}
}

/* ---- storage that does not answer ---- */

static struct mnt below;

static void take_down(void)
{
	if (below.daemon)
		kill(below.daemon, SIGCONT);
	way_clean_up();
	if (below.daemon)
		mnt_stop(&below);
}

/* The victim's main thread has asked the daemon. */
static void wait_for_ioctl(pid_t pid)
{
	char path[64], word[16] = "";

	snprintf(path, sizeof(path), "/proc/%d/syscall", pid);
	while (!shared->acquires || atoi(word) != SYS_ioctl) {
		FILE *f = fopen(path, "re");

		if (!f || fscanf(f, "%15s", word) != 1)
			word[0] = '\0';
		if (f)
			fclose(f);
		usleep(1000);
	}
}

static void start_above(void)
{
	static const char *const of_below[] = { "--cpu-cache", "writethrough", NULL };
	struct mnt_options options = { .args = of_below };
	char source[PATH_MAX + 8], plain[PATH_MAX + 8];

	if (geteuid())
		WAY_SKIP("needs root: nothing is mounted over what another user has mounted");
	begin();
	cr_assert_eq(mnt_start(&below, &options), 0);
	snprintf(source, sizeof(source), "%s/d", below.path);
	snprintf(plain, sizeof(plain), "%s/plain", below.path);
	cr_assert_eq(mkdir(source, 0755), 0);
	cr_assert_eq(mkdir(plain, 0755), 0);
	way_start_at(source, plain, args);
}

/* To push what was written does not wait for the storage. To close the file does, and a process that is killed closes it. */
static void an_acquire_that_waits_for_storage(void)
{
	start_above();
	make_file(both_root[ON_MOUNT], "f");
	make_file(both_root[ON_MOUNT], "other");
	for (enum how how = 0; how < HOWS; how++) {
		struct gaia_ioc_file all = { .from = GAIA_FROM_HOME };
		int fd = open_mounted("f");
		pid_t pid;

		writes_first = how != KILLED;
		pid = victim_start(&how);
		cr_assert_eq(ioctl(fd, GAIA_IOC_EVICT, &all), 0, "%s", strerror(errno));
		close(fd);
		/* Nor is it in the kernel's cache of what is below. */
		fd = openat(mnt.backing_fd, "f", O_RDONLY | O_CLOEXEC);
		cr_assert_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
		close(fd);
		cr_assert(child_stop(below.daemon));
		gate_open(go);
		wait_for_ioctl(pid);
		interrupt(pid, how);
		kill(below.daemon, SIGCONT);
		victim_end(pid, how);
	}
}

#define WHEN_STOPPED(name, way_)                                                                         \
	Test(interrupt, name##_##way_, .init = way_bare_##way_, .fini = take_down, .timeout = WAY_SECONDS) \
	{                                                                                                \
		name();                                                                                  \
		way_end();                                                                               \
		cr_assert_eq(mnt_stop(&below), 0);                                                       \
	}

WHEN_STOPPED(an_acquire_that_waits_for_storage, writeback)
WHEN_STOPPED(an_acquire_that_waits_for_storage, writethrough)

/* ---- at any moment ---- */

#define TURNS 200u
#define RANGE (GAIA_CHUNK + 8 * 4096ul)

/* A signal within @us. */
static void arm(unsigned *seed, unsigned us)
{
	struct itimerval t = { .it_value = { 0, 1 + rand_r(seed) % us } };

	setitimer(ITIMER_REAL, &t, NULL);
}

static void disarm(void)
{
	struct itimerval t = { { 0, 0 }, { 0, 0 } };

	setitimer(ITIMER_REAL, &t, NULL);
}

/* Count in the first page what has been acquired; the rest changes all the time, so that there is something to bring. */
static int acquire_under_fire(void *arg)
{
	static char bytes[GAIA_CHUNK / 4];
	unsigned seed = 1, us = 1500, *p; /* us: so that about every other acquire is interrupted */
	int fd = open_mounted("f");

	(void)arg;
	catch(SIGALRM, 0);
	CHILD_CHECK(fd >= 0);
	p = gaia_mmap(RANGE, RW, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	for (;;) {
		memset(bytes, (int)(seed % 251), sizeof(bytes));
		CHILD_CHECK(pwrite(fd, bytes, sizeof(bytes), 8192) == (ssize_t)sizeof(bytes));
		/* What is pushed to the daemon before an acquire is not interrupted. */
		CHILD_CHECK(!sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE_AND_WAIT));
		arm(&seed, us);
		if (!gaia_acquire(p, RANGE, RW)) {
			disarm();
			++*p;
			CHILD_CHECK(!gaia_release(p, RANGE));
			shared->made++;
			us = MAX(us - us / 8, 100u);
			continue;
		}
		CHILD_CHECK(errno == EINTR);
		shared->interrupted++;
		us = MIN(us + us / 8, 500000u);
		/* The last acquire is an interrupted one. */
		if (shared->made >= TURNS && shared->interrupted >= TURNS)
			break;
	}
	gate_open(ready);
	CHILD_CHECK(gate_pass(enough));
	CHILD_CHECK(!gaia_munmap(p, RANGE));
	close(fd);
	return 0;
}

EACH_WAY_BARE(interrupt, an_acquire_at_any_moment)
{
	unsigned count = 0;
	pid_t pid;
	int fd;

	begin();
	way_start(args);
	way_make_cached("f");
	make_file(both_root[ON_MOUNT], "other");
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);
	cr_assert_eq(ftruncate(fd, RANGE), 0);
	pid = child_start(acquire_under_fire, NULL);
	for (unsigned last = 0; !gate_pass(ready); last = shared->made + shared->interrupted)
		cr_assert_gt(shared->made + shared->interrupted, last, "stuck after %u acquires, and %u that were interrupted",
			     shared->made, shared->interrupted);
	nothing_is_left("a signal");
	cr_assert_eq(pread(fd, &count, sizeof(count), 0), sizeof(count));
	cr_assert_eq(count, shared->made, "%u of %u acquires were made", count, shared->made);
	gate_open(enough);
	cr_assert_eq(child_wait(pid), 0);
	close(fd);
}
