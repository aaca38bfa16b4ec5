/*
 * device_life.c - the ends of things: forks, clients that die, daemons that die.
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "gaia/client.h"
#include "ways.h"

#define MIB (1024 * 1024)
#define RW (PROT_READ | PROT_WRITE)

static void make_file(const char *name, size_t size, int byte)
{
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);
	char *bytes = malloc(size);

	cr_assert_geq(fd, 0);
	memset(bytes, byte, size);
	cr_assert_eq(pwrite(fd, bytes, size, 0), (ssize_t)size);
	cr_assert_eq(close(fd), 0);
	free(bytes);
}

static int byte_at(const char *name, off_t off)
{
	int fd = openat(both_root[ON_MOUNT], name, O_RDONLY);
	unsigned char c;

	cr_assert_eq(pread(fd, &c, 1, off), 1, "%s", strerror(errno));
	close(fd);
	return c;
}

static void start_with(const char *device)
{
	const char *args[] = { "--device", device, NULL };

	way_start(args);
}

/* A client's end reaches the daemon when the kernel has closed its socket: soon. */
static void acquire_when_freed(struct actor *a, size_t len)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	time_t end = time(NULL) + HANG_SECONDS;
	long r;

	while ((r = actor_do(a, ACQUIRE, 0, len, RW)) == -ENOMEM) {
		cr_assert_lt(time(NULL), end, "the dead client's pins are not freed");
		nanosleep(&pause, NULL);
	}
	cr_assert_eq(r, 0, "%s", strerror(-(int)r));
}

/* ---- fork ---- */

struct shared_map {
	int fd;
	unsigned char *p;
};

static int child_of_a_client(void *arg)
{
	struct shared_map *s = arg;
	unsigned char *own;

#define NOT_HERE(call) CHILD_CHECK((errno = 0, (call)) == -1 && errno == ENOTCONN)
	NOT_HERE(gaia_acquire(s->p, MIB, PROT_READ));
	NOT_HERE(gaia_acquire(s->p, MIB, RW));
	NOT_HERE(gaia_release(s->p, MIB));
	NOT_HERE(gaia_sync(s->p, MIB));
	NOT_HERE(gaia_advise(s->p, MIB, GAIA_DONTNEED));
	NOT_HERE(gaia_munmap(s->p, MIB));
	/* A mapping of its own. */
	own = gaia_mmap(MIB, RW, s->fd, 0, 0);
	CHILD_CHECK(own != MAP_FAILED);
	CHILD_CHECK(gaia_acquire(own, MIB, RW) == 0);
	own[8192] = 'c';
	CHILD_CHECK(gaia_release(own, MIB) == 0);
	CHILD_CHECK(gaia_munmap(own, MIB) == 0);
	return 0;
}

EACH_WAY(device_life, after_fork_the_child_is_told_and_the_parent_goes_on)
{
	struct shared_map s;

	make_file("f", MIB, '.');
	s.fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	s.p = gaia_mmap(MIB, RW, s.fd, 0, 0);
	cr_assert_neq(s.p, MAP_FAILED);
	cr_assert_eq(gaia_acquire(s.p, MIB, RW), 0);
	s.p[0] = 'p';
	cr_assert_eq(child_run(child_of_a_client, &s), 0);
	s.p[1] = 'p';
	cr_assert_eq(gaia_release(s.p, MIB), 0);
	cr_assert_eq(byte_at("f", 0), 'p');
	cr_assert_eq(byte_at("f", 1), 'p');
	cr_assert_eq(byte_at("f", 8192), 'c');
	cr_assert_eq(gaia_acquire(s.p, MIB, RW), 0, "%s", strerror(errno));
	cr_assert_eq(s.p[8192], 'c');
	cr_assert_eq(gaia_munmap(s.p, MIB), 0);
	close(s.fd);
}

struct family {
	struct gate ready, done;
	pid_t grandchild;
};

/* Acquires all of the device, leaves a child behind, and waits to be killed. */
static int client_with_a_child(void *arg)
{
	struct family *f = arg;
	int fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	unsigned char *p = gaia_mmap(8 * MIB, RW, fd, 0, 0);

	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(gaia_acquire(p, 8 * MIB, RW) == 0);
	f->grandchild = fork();
	if (f->grandchild == 0) {
		f->grandchild = getpid();
		gate_open(f->ready);
		/* Not killed with its parent: that is the point. */
		gate_pass(f->done);
		_exit(0);
	}
	gate_pass(f->done);
	return 0;
}

EACH_WAY_BARE(device_life, a_child_does_not_keep_the_lease_of_its_dead_parent)
{
	struct family *f = mmap(NULL, sizeof(*f), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct actor *other;
	pid_t client;

	start_with("sim:8M");
	make_file("f", 8 * MIB, '.');
	make_file("other", 8 * MIB, 'o');
	other = actor_start("other", 8 * MIB, 0);
	f->ready = gate_make();
	f->done = gate_make();
	/* Orphans become ours, to be waited for. */
	cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	client = child_start(client_with_a_child, f);
	cr_assert(gate_pass(f->ready));
	cr_assert_eq(actor_do(other, ACQUIRE, 0, 1, PROT_READ), -ENOMEM);
	child_kill(client);
	acquire_when_freed(other, 8 * MIB);
	gate_open(f->done);
	cr_assert_eq(child_wait(f->grandchild), 0);
	actor_end(other);
}

/* ---- a client dies ---- */

EACH_WAY_BARE(device_life, a_dead_client_frees_its_pins_and_loses_only_what_it_had_not_released)
{
	struct actor *victim, *other;

	start_with("sim:8M");
	make_file("f", 8 * MIB, '.');
	make_file("other", 8 * MIB, 'o');
	victim = actor_start("f", 8 * MIB, 0);
	other = actor_start("other", 8 * MIB, 0);
	actor_ok(victim, ACQUIRE, 0, 8 * MIB, RW);
	actor_ok(victim, STORE, 0, 1, 'r');
	actor_ok(victim, STORE, 5 * MIB, 1, 'r');
	actor_ok(victim, RELEASE, 0, 8 * MIB, 0);
	actor_ok(victim, ACQUIRE, 0, 8 * MIB, RW);
	actor_ok(victim, STORE, 0, 1, 'u');
	actor_ok(victim, STORE, 1, 1, 'u');
	actor_ok(victim, STORE, 3 * MIB, 4096, 'u');
	cr_assert_eq(actor_do(other, ACQUIRE, 0, 1, RW), -ENOMEM);
	actor_kill(victim);
	acquire_when_freed(other, 8 * MIB);
	cr_assert_eq(byte_at("f", 0), 'r', "released, then written again and not released");
	cr_assert_eq(byte_at("f", 1), '.');
	cr_assert_eq(byte_at("f", 3 * MIB + 5), '.');
	cr_assert_eq(byte_at("f", 5 * MIB), 'r');
	actor_end(other);
}

/* Case 12. The CPU's writes to the same pages live on; so do those in its mapping. */
EACH_WAY(device_life, a_client_that_dies_takes_no_cpu_write_along)
{
	struct actor *victim, *cpu, *heir;

	make_file("f", 4 * 4096, '.');
	cpu = actor_start("f", 4 * 4096, NO_DEVICE);
	victim = actor_start("f", 4 * 4096, 0);
	heir = actor_start("f", 4 * 4096, 0);
	actor_ok(victim, ACQUIRE, 0, 4 * 4096, RW);
	for (int page = 0; page < 4; page++) {
		actor_ok(victim, STORE, page * 4096, 100, 'd');
		actor_ok(cpu, page % 2 ? WRITE : MAP_STORE, page * 4096 + 50, 100, 'c');
	}
	actor_kill(victim);
	for (int page = 0; page < 4; page++) {
		actor_sees(cpu, READ, page * 4096 + 49, '.');
		actor_sees(cpu, READ, page * 4096 + 50, 'c');
		actor_sees(cpu, MAP_LOAD, page * 4096 + 149, 'c');
	}
	actor_ok(heir, ACQUIRE, 0, 4 * 4096, RW);
	actor_sees(heir, LOAD, 49, '.');
	actor_sees(heir, LOAD, 50, 'c');
	actor_end(heir);
	actor_end(cpu);
}

/* ---- the daemon dies ---- */

EACH_WAY(device_life, a_dead_daemon_is_enotconn)
{
	struct gaia_device_info info;
	unsigned char *p;
	int fd;

	make_file("f", MIB, '.');
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	p = gaia_mmap(MIB, RW, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(gaia_acquire(p, MIB, RW), 0);
	p[5] = 'd';
	both_close();
	mnt_crash(&mnt);
	/* The memory is still there: a kernel that runs on it does not fault. */
	cr_assert_eq(p[5], 'd');
	p[6] = 'd';
#define GONE(call)                                                             \
	do {                                                                   \
		errno = 0;                                                     \
		cr_assert_eq((call), -1);                                      \
		cr_assert_eq(errno, ENOTCONN, "%s: %s", #call, strerror(errno)); \
	} while (0)
	GONE(gaia_acquire(p, MIB, RW));
	GONE(gaia_release(p, MIB));
	GONE(gaia_sync(p, MIB));
	GONE(gaia_advise(p, MIB, GAIA_WILLNEED));
	GONE(gaia_devices(fd, &info, 1));
	errno = 0;
	cr_assert_eq(gaia_mmap(MIB, RW, fd, 0, 0), MAP_FAILED);
	cr_assert_eq(errno, ENOTCONN, "%s", strerror(errno));
	/* Unmapping gives the addresses back all the same. */
	gaia_munmap(p, MIB);
	cr_assert_eq(gaia_acquire(p, MIB, RW), -1);
	cr_assert_eq(errno, EINVAL, "%s", strerror(errno));
	close(fd);

	/* A new daemon: a new mapping works, in the same process. */
	way_remount();
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	p = gaia_mmap(MIB, RW, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	cr_assert_eq(gaia_acquire(p, MIB, RW), 0, "%s", strerror(errno));
	cr_assert_eq(p[5], '.', "it was not released");
	cr_assert_eq(gaia_munmap(p, MIB), 0);
	close(fd);
}

EACH_WAY(device_life, a_call_that_waits_when_the_daemon_dies_is_enotconn)
{
	static const struct {
		enum act act;
		int arg;
	} calls[] = { { ACQUIRE, RW }, { RELEASE, 0 }, { SYNC, 0 } };
	struct actor *a;
	long r;

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		make_file("f", MIB, '.');
		a = actor_start("f", MIB, 0);
		actor_ok(a, ACQUIRE, 0, MIB, RW);
		actor_ok(a, STORE, 0, 1, 'd');
		cr_assert(child_stop(mnt.daemon));
		actor_order(a, calls[i].act, 0, MIB, calls[i].arg);
		actor_blocks(a);
		both_close();
		mnt_crash(&mnt);
		r = actor_result(a);
		cr_assert_eq(r, -ENOTCONN, "call %zu: %s", i, strerror(-(int)r));
		actor_kill(a);
		way_remount();
	}
}

/* SIGTERM with clients: what is released is stored, the clients are told. */
EACH_WAY(device_life, a_daemon_that_is_told_to_end_stores_what_is_released)
{
	static char want[MIB];
	struct actor *a;
	int status;

	make_file("f", MIB, '.');
	a = actor_start("f", MIB, 0);
	actor_ok(a, ACQUIRE, 0, MIB, RW);
	actor_ok(a, STORE, 9000, 1000, 'r');
	actor_ok(a, RELEASE, 0, MIB, 0);
	actor_ok(a, ACQUIRE, 0, MIB, RW);
	actor_ok(a, STORE, 9000, 1, 'u');
	actor_ok(a, STORE, 0, 1, 'u');
	both_close();
	kill(mnt.daemon, SIGTERM);
	status = mnt_wait(&mnt);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %x", status);
	cr_assert_eq(actor_do(a, RELEASE, 0, MIB, 0), -ENOTCONN);
	actor_kill(a);
	memset(want, '.', MIB);
	memset(want + 9000, 'r', 1000);
	backing_holds("f", want, MIB);
}

/* ---- many clients at once ---- */

struct churn {
	int index;
	bool die;
};

static int come_and_go(void *arg)
{
	struct churn *c = arg;

	for (int i = 0; i < 10; i++) {
		int fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
		unsigned char *p = gaia_mmap(4 * MIB, RW, fd, 0, 0);

		CHILD_CHECK(p != MAP_FAILED);
		CHILD_CHECK(gaia_acquire(p, 4 * MIB, RW) == 0);
		for (int k = c->index; k < 4 * MIB; k += 4096 * 3)
			p[k]++;
		if (c->die && i == 9)
			kill(getpid(), SIGKILL);
		CHILD_CHECK(gaia_release(p, 4 * MIB) == 0);
		/* Without a munmap the connection lives on; with one it goes. */
		if (i % 2)
			CHILD_CHECK(gaia_munmap(p, 4 * MIB) == 0);
		close(fd);
	}
	return 0;
}

EACH_WAY(device_life, clients_that_come_and_go_and_die_lose_nothing_released)
{
	struct churn c[6];
	pid_t pid[6];

	make_file("f", 4 * MIB, 0);
	for (int i = 0; i < 6; i++) {
		c[i] = (struct churn){ i * 7, i % 2 };
		pid[i] = child_start(come_and_go, &c[i]);
	}
	for (int i = 0; i < 6; i++)
		cr_assert_eq(child_wait(pid[i]), c[i].die ? 128 + SIGKILL : 0);
	for (int i = 0; i < 6; i++) {
		for (int k = c[i].index; k < 4 * MIB; k += 4096 * 3 * 50) {
			int is = byte_at("f", k);

			/* Clients of one device share its memory: another's release may publish. */
			cr_assert(is == 10 || (c[i].die && is == 9), "byte %d of client %d is %d",
				  k, i, is);
		}
	}
}

/* ---- orphans ---- */

#define FEW 128	  /* descriptors; a third of them for files that are looked at */
#define OTHERS 200

static unsigned daemon_descriptors(void)
{
	unsigned n = 0;
	char path[64];
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", mnt.daemon);
	d = opendir(path);
	cr_assert(d, "%s: %s", path, strerror(errno));
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void look_at_others(void)
{
	char name[16];
	struct stat st;

	for (int i = 0; i < OTHERS; i++) {
		snprintf(name, sizeof(name), "other%d", i);
		cr_assert_eq(fstatat(both_root[ON_MOUNT], name, &st, 0), 0, "%s: %s", name, strerror(errno));
	}
}

static void start_with_few_descriptors(void)
{
	static const struct rlimit few = { FEW, FEW };
	char name[16];
	int fd;

	/* Otherwise the daemon raises the limit again. */
	if (!geteuid())
		cr_assert_eq(prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE), 0);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	start_with("sim:8M");
	for (int i = 0; i < OTHERS; i++) {
		snprintf(name, sizeof(name), "other%d", i);
		fd = openat(mnt.backing_fd, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
		cr_assert_geq(fd, 0);
		close(fd);
	}
}

/* What a device released, and all that a file without a name can be asked for. */
static void orphan_lives(int fd)
{
	struct timespec times[2] = { { .tv_sec = 1000 }, { .tv_sec = 2000 } };
	struct stat st;
	char byte;

	cr_assert_eq(fstat(fd, &st), 0, "%s", strerror(errno));
	cr_assert_eq(st.st_size, MIB);
	cr_assert_eq(pread(fd, &byte, 1, 8192), 1, "%s", strerror(errno));
	cr_assert_eq(byte, 'd');
	cr_assert_eq(pread(fd, &byte, 1, 4096), 1, "%s", strerror(errno));
	cr_assert_eq(byte, '.');
	cr_assert_eq(pwrite(fd, "c", 1, 4096), 1, "%s", strerror(errno));
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	cr_assert_eq(fchmod(fd, 0600), 0, "%s", strerror(errno));
	cr_assert_eq(futimens(fd, times), 0, "%s", strerror(errno));
	cr_assert_eq(ftruncate(fd, 4097), 0, "%s", strerror(errno));
	cr_assert_eq(fstat(fd, &st), 0, "%s", strerror(errno));
	cr_assert(st.st_size == 4097 && (st.st_mode & 0777) == 0600);
	cr_assert_eq(pread(fd, &byte, 1, 4096), 1, "%s", strerror(errno));
	cr_assert_eq(byte, 'c');
	cr_assert_eq(close(fd), 0, "%s", strerror(errno));
}

EACH_WAY_BARE(device_life, a_client_leaves_orphans_where_descriptors_are_few)
{
	static const char *const names[] = { "removed", "replaced" };
	struct actor *dev[2];
	int fd[2];

	start_with_few_descriptors();
	make_file("new", 1, 'n');
	for (int i = 0; i < 2; i++) {
		make_file(names[i], MIB, '.');
		fd[i] = openat(both_root[ON_MOUNT], names[i], O_RDWR);
		dev[i] = actor_start(names[i], MIB, 0);
		actor_ok(dev[i], ACQUIRE, 0, MIB, RW);
		actor_ok(dev[i], STORE, 8192, 1, 'd');
		actor_ok(dev[i], RELEASE, 0, MIB, 0);
	}
	cr_assert_eq(unlinkat(both_root[ON_MOUNT], "removed", 0), 0);
	cr_assert_eq(renameat(both_root[ON_MOUNT], "new", both_root[ON_MOUNT], "replaced"), 0);
	for (int i = 0; i < 2; i++)
		actor_end(dev[i]);
	/* The descriptors of those that are used least recently are closed. */
	look_at_others();
	look_at_others();
	cr_assert_lt(daemon_descriptors(), FEW);
	for (int i = 0; i < 2; i++)
		orphan_lives(fd[i]);
	cr_assert_eq(byte_at("replaced", 0), 'n');
}
