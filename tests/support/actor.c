/*
 * actor.c - see actor.h. Orders and results are in memory that both share; two
 * gates give each side its turn.
 */
#include "actor.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "ways.h"

#define END (-1)

struct actor {
	/* The test's. */
	pid_t pid;

	/* Constant after the start. */
	const char *name;
	size_t len;
	int device;
	struct gate order, result;

	/* Whose turn it is. */
	int act;
	off_t off;
	size_t n;
	int arg;
	long r;

	/* The actor's. */
	int fd;
	volatile unsigned char *cpu, *dev;
};

static long sys(long r)
{
	return r < 0 ? -errno : r;
}

static void set(volatile unsigned char *p, size_t n, int byte)
{
	while (n--)
		*p++ = byte;
}

static long write_bytes(struct actor *a)
{
	char *buf = malloc(a->n);
	long r;

	memset(buf, a->arg, a->n);
	r = sys(pwrite(a->fd, buf, a->n, a->off));
	free(buf);
	return r;
}

static long read_byte(struct actor *a)
{
	unsigned char c;
	long r = sys(pread(a->fd, &c, 1, a->off));

	return r < 0 ? r : r == 0 ? -ENODATA : c;
}

static long size_of(struct actor *a)
{
	struct stat st;

	return fstat(a->fd, &st) ? -errno : st.st_size;
}

static long perform(struct actor *a)
{
	void *at = (void *)(a->dev + a->off);

	switch ((enum act)a->act) {
	case STORE:
		set(a->dev + a->off, a->n, a->arg);
		return 0;
	case LOAD:
		return a->dev[a->off];
	case ACQUIRE:
		return sys(gaia_acquire(at, a->n, a->arg));
	case RELEASE:
		return sys(gaia_release(at, a->n));
	case SYNC:
		return sys(gaia_sync(at, a->n));
	case ADVISE:
		return sys(gaia_advise(at, a->n, a->arg));
	case WRITE:
		return write_bytes(a);
	case READ:
		return read_byte(a);
	case MAP_STORE:
		set(a->cpu + a->off, a->n, a->arg);
		return 0;
	case MAP_LOAD:
		return a->cpu[a->off];
	case MSYNC:
		return sys(msync((void *)a->cpu, a->len, MS_SYNC));
	case FSYNC:
		return sys(fsync(a->fd));
	case FDATASYNC:
		return sys(fdatasync(a->fd));
	case TRUNCATE:
		return sys(ftruncate(a->fd, a->off));
	case SIZE_OF:
		return size_of(a);
	}
	return -EINVAL;
}

static long set_up(struct actor *a)
{
	void *p;

	a->fd = openat(both_root[ON_MOUNT], a->name, O_RDWR | O_CLOEXEC);
	if (a->fd < 0)
		return -errno;
	p = mmap(NULL, a->len, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	a->cpu = p;
	if (a->device == NO_DEVICE)
		return 0;
	p = gaia_mmap(a->len, PROT_READ | PROT_WRITE, a->fd, 0, a->device);
	if (p == MAP_FAILED)
		return -errno;
	a->dev = p;
	return 0;
}

static int act(void *arg)
{
	struct actor *a = arg;

	a->r = set_up(a);
	gate_open(a->result);
	for (;;) {
		/* The test may take as long as it likes; but an actor whose test is gone dies. */
		while (!gate_pass(a->order))
			;
		if (a->act == END)
			break;
		a->r = perform(a);
		gate_open(a->result);
	}
	if (a->dev)
		CHILD_CHECK(gaia_munmap((void *)a->dev, a->len) == 0);
	CHILD_CHECK(munmap((void *)a->cpu, a->len) == 0);
	CHILD_CHECK(close(a->fd) == 0);
	return 0;
}

struct actor *actor_start(const char *name, size_t len, int device)
{
	struct actor *a = mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	long r;

	cr_assert_neq(a, MAP_FAILED);
	a->name = name;
	a->len = len;
	a->device = device;
	a->order = gate_make();
	a->result = gate_make();
	a->pid = child_start(act, a);
	r = actor_result(a);
	cr_assert_eq(r, 0, "an actor on %s, device %d: %s", name, device, strerror(-(int)r));
	return a;
}

void actor_order(struct actor *a, enum act what, off_t off, size_t len, int arg)
{
	a->act = what;
	a->off = off;
	a->n = len;
	a->arg = arg;
	gate_open(a->order);
}

long actor_result(struct actor *a)
{
	cr_assert(gate_pass(a->result), "an actor hangs or has died in step %d", a->act);
	return a->r;
}

long actor_do(struct actor *a, enum act what, off_t off, size_t len, int arg)
{
	actor_order(a, what, off, len, arg);
	return actor_result(a);
}

/* Waiting for orders is a poll(2), by whatever system call libc makes. */
static bool waits_elsewhere(long syscall_number)
{
#ifdef SYS_poll
	if (syscall_number == SYS_poll)
		return false;
#endif
	return syscall_number >= 0 && syscall_number != SYS_ppoll;
}

void actor_blocks(struct actor *a)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	time_t end = time(NULL) + HANG_SECONDS;

	do {
		cr_assert_lt(time(NULL), end, "the actor does not come to wait");
		cr_assert_eq(kill(a->pid, 0), 0, "the actor has ended");
		nanosleep(&pause, NULL);
	} while (!waits_elsewhere(child_syscall(a->pid)));
}

static void forget(struct actor *a)
{
	close(a->order.fd);
	close(a->result.fd);
	munmap(a, sizeof(*a));
}

void actor_kill(struct actor *a)
{
	child_kill(a->pid);
	forget(a);
}

void actor_end(struct actor *a)
{
	a->act = END;
	gate_open(a->order);
	cr_assert_eq(child_wait(a->pid), 0, "an actor did not end well");
	forget(a);
}
