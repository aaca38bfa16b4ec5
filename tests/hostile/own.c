/*
 * own.c - a user who may write a file is given memory of a device, and keeps it without being a client any more: a child of the
 * client has it, or the client was disconnected, or has said that it unmapped it. Then the file is closed to the user. What the user
 * stores from then on gets nowhere: not into what a device reads there, nor into what it publishes, nor into what the user had released.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/xattr.h>

#include "gaia/client.h"
#include "hostile.h"
#include "report.h"

#define RW (PROT_READ | PROT_WRITE)
#define SIZE GAIA_CHUNK
/* Pages that the attacker has released; had for reading; never had; and one that root may be holding. */
#define RELEASED (1 * GAIA_PAGE)
#define CALM (2 * GAIA_PAGE)
#define NEVER (7 * GAIA_PAGE)
#define HELD (9 * GAIA_PAGE)

static struct gate go, done; /* root's order to store, and that it was done */

/* ---- the attacker ---- */

struct own {
	int fd;
	struct raw raw;
	uint64_t map;
	char *memory;
};

static int acquire(struct own *o, uint64_t off, unsigned prot, uint64_t *seq)
{
	struct gaia_ioc_range io = raw_range(&o->raw, o->map, GAIA_PAGE, prot);
	int err;

	io.offset = off;
	err = ioctl(o->fd, GAIA_IOC_ACQUIRE, &io);
	*seq = io.seq;
	return err;
}

static bool release(struct own *o, uint64_t off)
{
	struct gaia_ioc_range io = raw_range(&o->raw, o->map, GAIA_PAGE, 0);

	io.offset = off;
	if (way_is("writeback"))
		return !ioctl(o->fd, GAIA_IOC_RELEASE, &io);
	/* It has no value to set: done is an error, too. */
	return fsetxattr(o->fd, GAIA_XATTR_RELEASE, &io, sizeof(io), 0) && errno == EALREADY;
}

/* Become nobody, and a client that has released one page, has read another, and has the memory of all. */
static void own_begin(struct own *o)
{
	struct gaia_ioc_map map = { .length = SIZE, .prot = RW };
	struct gaia_msg msg;
	uint64_t seq;
	int chunk;

	child_become(NOBODY, NOBODY);
	o->fd = open(mnt_file(&mnt, "f"), O_RDWR | O_CLOEXEC);
	CHILD_CHECK(o->fd >= 0 && raw_connect(o->fd, &o->raw));
	map.key = o->raw.key;
	CHILD_CHECK(!ioctl(o->fd, GAIA_IOC_MAP, &map));
	o->map = map.map;
	CHILD_CHECK(!acquire(o, CALM, PROT_READ, &seq) && !acquire(o, RELEASED, RW, &seq));
	CHILD_CHECK(raw_receive(o->raw.sock, &msg, &chunk) && msg.kind == GAIA_MSG_GRANT);
	o->memory = mmap(NULL, SIZE, RW, MAP_SHARED, chunk, 0);
	CHILD_CHECK(o->memory != MAP_FAILED && !memcmp(o->memory + CALM, "calm", 4));
	memcpy(o->memory + RELEASED, "true", 4);
	CHILD_CHECK(release(o, RELEASED) && release(o, CALM));
}

/* Whenever root says so. */
static _Noreturn void store_evil(struct own *o)
{
	static const uint64_t at[] = { RELEASED, CALM, NEVER, HELD };

	shared->count = getpid();
	gate_open(ready);
	while (gate_pass(go)) {
		for (unsigned k = 0; k < sizeof(at) / sizeof(at[0]); k++)
			memcpy(o->memory + at[k], "EVIL", 4);
		gate_open(done);
	}
	_exit(0);
}

/* The client ends. Its child, which nobody knows, keeps the memory. */
static int leave_a_child(void *arg)
{
	pid_t client = getpid(), pid;
	struct own o;

	(void)arg;
	own_begin(&o);
	pid = fork();
	CHILD_CHECK(pid >= 0);
	if (pid == 0) {
		close(o.raw.sock);
		close(o.fd);
		/* It is the test's child then, and dies with the test. */
		while (getppid() == client)
			usleep(1000);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		store_evil(&o);
	}
	return 0;
}

/* It lives, and keeps the memory, without a connection. */
static int hang_up(void *arg)
{
	struct own o;

	(void)arg;
	own_begin(&o);
	close(o.raw.sock);
	store_evil(&o);
}

/* ---- root ---- */

static void let_him_store(void)
{
	gate_open(go);
	cr_assert(gate_pass(done), "the attacker does not store");
}

/* Stores to the pages, and so publishes what lies there. */
static void publish(char *p)
{
	static const uint64_t at[] = { RELEASED, CALM, NEVER };

	for (unsigned k = 0; k < sizeof(at) / sizeof(at[0]); k++) {
		cr_assert_eq(gaia_acquire(p + at[k], GAIA_PAGE, RW), 0, "%s", strerror(errno));
		cr_expect_neq(memcmp(p + at[k], "EVIL", 4), 0, "the device sees what the attacker stored at %lu", at[k]);
		p[at[k] + 8] = 'x';
		cr_assert_eq(gaia_release(p + at[k], GAIA_PAGE), 0, "%s", strerror(errno));
		let_him_store();
	}
}

/* @holds: root holds a page of the chunk when the attacker goes, so that it stays where it is. */
static void attack_by(int (*fn)(void *), bool holds)
{
	static const char *const args[] = { "--device", "sim:8M", NULL };
	char *expected = calloc(1, SIZE), *seen = calloc(1, SIZE), *p;
	pid_t pid;
	int fd;

	hostile_start(args);
	go = gate_make();
	done = gate_make();
	fd = hostile_file("f", SIZE);
	cr_assert_eq(pwrite(fd, "calm", 4, CALM), 4);
	cr_assert_eq(fsync(fd), 0);
	cr_assert_eq(fchmod(fd, 0666), 0);
	p = gaia_mmap(SIZE, RW, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	if (holds)
		cr_assert_eq(gaia_acquire(p + HELD, GAIA_PAGE, PROT_READ), 0, "%s", strerror(errno));

	/* The process that keeps the memory becomes our child: ours to kill and to wait for. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	pid = hostile_attack(fn);
	if (pid != shared->count)
		cr_assert_eq(child_wait(pid), 0);
	hostile_await_end_of_mapping();
	cr_assert_eq(fchmod(fd, 0600), 0);
	let_him_store();
	publish(p);
	if (holds)
		cr_assert_eq(gaia_release(p + HELD, GAIA_PAGE), 0, "%s", strerror(errno));
	publish(p);
	cr_assert_eq(gaia_munmap(p, SIZE), 0);

	memcpy(expected + RELEASED, "true", 4);
	memcpy(expected + CALM, "calm", 4);
	expected[RELEASED + 8] = expected[CALM + 8] = expected[NEVER + 8] = 'x';
	cr_assert_eq(pread(fd, seen, SIZE, 0), SIZE);
	cr_expect_arr_eq(seen, expected, SIZE, "processes read what the attacker stored");
	cr_assert_eq(fsync(fd), 0);
	backing_holds("f", expected, SIZE);
	close(fd);
	child_kill(shared->count);
	free(expected);
	free(seen);
}

EACH_WAY_BARE(own, children_of_a_client_that_ended_change_nothing)
{
	attack_by(leave_a_child, false);
}

EACH_WAY_BARE(own, children_change_nothing_while_another_client_holds_a_page)
{
	attack_by(leave_a_child, true);
}

EACH_WAY_BARE(own, clients_without_a_connection_change_nothing)
{
	attack_by(hang_up, false);
}
