/*
 * fault_client.c - a client of a device is killed, falls silent or talks nonsense, at every
 * step of the protocol, and in the middle of those that take time.
 *
 * Whatever it does: nobody hangs; plain readers and other clients work; what it had released is
 * there and what it had not is not; and when it is gone its memory, pins and connection are
 * free. One that is stopped while it holds pages keeps them, as with any lock; one that is
 * asked for idle memory and does not answer is disconnected.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"
#include "raw_client.h"
#include "report.h"
#include "shell.h"
#include "ways.h"

#define MIB (1024 * 1024)
#define RW (PROT_READ | PROT_WRITE)
#define FILE_SIZE (3 * MIB)   /* two chunks */
#define DEVICE_SIZE (8 * MIB)
#define AT 5000		      /* where the victim writes */

enum step {
	CONNECT, HELLO, WELCOME, MAP, ACQUIRE_IT, TAKE_GRANT, RELEASE_IT, SYNC_IT, UNMAP_IT, STEPS
};

static const char *const step_name[] = { "connect", "hello", "welcome", "map", "acquire",
					 "take the grant", "release", "sync", "unmap" };

enum action { DIES, BABBLES, STOPS };
#define NONSENSES 4u

static const struct timespec a_moment = { .tv_nsec = 500000 };

/* ---- the victim ---- */

/* Shared with it. */
struct victim {
	struct gate arrived; /* it is about to do its last step */
	struct gate done;    /* it has done it */
	struct gate babble;
	enum step last;
	unsigned nonsense;
	int sock;
	atomic_int waits; /* its thread that waits for its own memory */
};

struct progress {
	struct victim *v;
	int fd;
	struct raw raw;
	uint8_t ticket[16];
	uint64_t map;
	struct gaia_ioc_range io;
};

static void *babbler(void *arg)
{
	struct victim *v = arg;
	struct gaia_msg msg = { .kind = GAIA_MSG_REVOKED, .version = GAIA_PROTOCOL_VERSION,
				.seq = 77 };
	size_t n = sizeof(msg);

	while (!gate_pass(v->babble))
		;
	switch (v->nonsense) {
	case 0: /* an answer to nothing */
		break;
	case 1: /* noise */
		memset(&msg, 0xa5, sizeof(msg));
		break;
	case 2: /* a piece */
		n = 5;
		break;
	case 3: /* a greeting with a ticket that nobody gave out */
		msg = raw_hello((const uint8_t *)"sixteen bytes...");
		break;
	}
	send(v->sock, &msg, n, MSG_NOSIGNAL);
	return NULL;
}

static void take_grant(struct progress *p)
{
	struct gaia_msg msg;
	char *chunk;
	int fd;

	do
		CHILD_CHECK(raw_receive(p->raw.sock, &msg, &fd));
	while (msg.seq < p->io.seq);
	/* The first of the descriptors is the first chunk's. */
	CHILD_CHECK(msg.kind == GAIA_MSG_GRANT && fd >= 0);
	chunk = mmap(NULL, GAIA_CHUNK, RW, MAP_SHARED, fd, 0);
	CHILD_CHECK(chunk != MAP_FAILED);
	chunk[AT] = 'v';
}

static int release_it(struct progress *p)
{
	struct gaia_ioc_range io = raw_range(&p->raw, p->map, FILE_SIZE, 0);

	if (way_is("writeback"))
		return ioctl(p->fd, GAIA_IOC_RELEASE, &io);
	/* It has no value to set: done is an error, too. */
	fsetxattr(p->fd, GAIA_XATTR_RELEASE, &io, sizeof(io), 0);
	return errno == EALREADY ? 0 : -1;
}

/* It may be ended in its last step: only the steps before must succeed. */
static bool perform(struct progress *p, enum step step)
{
	struct gaia_ioc_map map = { .key = p->raw.key, .length = FILE_SIZE, .prot = RW };
	struct gaia_msg msg;

	switch (step) {
	case CONNECT:
		p->raw.sock = p->v->sock = raw_socket(p->fd, p->ticket);
		return p->raw.sock >= 0;
	case HELLO:
		msg = raw_hello(p->ticket);
		return send(p->raw.sock, &msg, sizeof(msg), MSG_NOSIGNAL) == sizeof(msg);
	case WELCOME:
		if (!raw_receive(p->raw.sock, &msg, NULL))
			return false;
		p->raw.key = msg.key;
		return msg.kind == GAIA_MSG_WELCOME;
	case MAP:
		if (ioctl(p->fd, GAIA_IOC_MAP, &map))
			return false;
		p->map = map.map;
		return true;
	case ACQUIRE_IT:
		p->io = raw_range(&p->raw, p->map, FILE_SIZE, RW);
		return !ioctl(p->fd, GAIA_IOC_ACQUIRE, &p->io);
	case TAKE_GRANT:
		take_grant(p);
		return true;
	case RELEASE_IT:
		return !release_it(p);
	case SYNC_IT:
		p->io = raw_range(&p->raw, p->map, FILE_SIZE, 0);
		return !ioctl(p->fd, GAIA_IOC_SYNC, &p->io);
	case UNMAP_IT:
		p->io = raw_range(&p->raw, p->map, 0, 0);
		return !ioctl(p->fd, GAIA_IOC_UNMAP, &p->io);
	case STEPS:
		break;
	}
	return false;
}

static int victim_main(void *arg)
{
	struct progress p = { .v = arg };
	pthread_t thread;

	p.fd = open(mnt_file(&mnt, "f"), O_RDWR | O_CLOEXEC);
	CHILD_CHECK(p.fd >= 0);
	CHILD_CHECK(!pthread_create(&thread, NULL, babbler, p.v));
	for (enum step step = 0; step <= p.v->last; step++) {
		bool good;

		if (step == p.v->last)
			gate_open(p.v->arrived);
		good = perform(&p, step);
		CHILD_CHECK(good || step == p.v->last);
	}
	gate_open(p.v->done);
	for (;;)
		pause();
}

/* ---- around it ---- */

static struct victim *victim;
static pid_t victim_pid;

static void start_victim(enum step last, unsigned nonsense)
{
	victim->arrived = gate_make();
	victim->done = gate_make();
	victim->babble = gate_make();
	victim->last = last;
	victim->nonsense = nonsense;
	victim_pid = child_start(victim_main, victim);
}

static void end_victim(void)
{
	child_kill(victim_pid);
	close(victim->arrived.fd);
	close(victim->done.fd);
	close(victim->babble.fd);
}

static bool is_done(void)
{
	struct pollfd p = { .fd = victim->done.fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* Return when the last step, in thread @tid, waits for the daemon or is over. */
static void catch_in_flight(pid_t tid)
{
	time_t end = time(NULL) + HANG_SECONDS;
	long nr;

	cr_assert(gate_pass(victim->arrived), "the victim does not get to its last step");
	while (!is_done()) {
		nr = child_syscall(tid);
		if (nr == SYS_ioctl || nr == SYS_fsetxattr)
			return;
		cr_assert_lt(time(NULL), end, "the victim hangs");
		nanosleep(&a_moment, NULL);
	}
}

static void act(enum action action)
{
	switch (action) {
	case DIES:
		kill(victim_pid, SIGKILL);
		break;
	case BABBLES:
		gate_open(victim->babble);
		break;
	case STOPS:
		kill(victim_pid, SIGSTOP);
		break;
	}
}

struct numbers {
	long clients, pinned, used, twins;
};

static struct numbers numbers_now(void)
{
	json_t *status = report("status", ".");
	struct numbers n = {
		.clients = (long)json_array_size(json_object_get(status, "clients")),
		.pinned = NUMBER(status, "devices", "0", "pinned"),
		.used = NUMBER(status, "devices", "0", "used"),
		.twins = NUMBER(status, "home", "twins"),
	};

	json_decref(status);
	return n;
}

/* The daemon sees an end as soon as the kernel tells it. */
static void wait_for_numbers(const struct numbers *want, const char *when)
{
	time_t end = time(NULL) + HANG_SECONDS;
	struct numbers n;

	for (;;) {
		n = numbers_now();
		if (!memcmp(&n, want, sizeof(n)))
			return;
		cr_assert_lt(time(NULL), end,
			     "%s: %ld clients, %ld bytes pinned, %ld used, %ld in twins are left",
			     when, n.clients, n.pinned, n.used, n.twins);
		nanosleep(&a_moment, NULL);
	}
}

static int byte_of_f(off_t off)
{
	unsigned char c = 0;
	int fd = openat(both_root[ON_MOUNT], "f", O_RDONLY | O_CLOEXEC);

	cr_assert_eq(pread(fd, &c, 1, off), 1, "%s", strerror(errno));
	close(fd);
	return c;
}

/* A reader, and a client that needs little. */
static void others_work(const char *when)
{
	struct actor *a = actor_start("little", 4096, 0);

	cr_assert_eq(byte_of_f(AT + 1), '.', "%s", when);
	actor_ok(a, ACQUIRE, 0, 4096, RW);
	actor_ok(a, STORE, 7, 1, 'l');
	actor_ok(a, RELEASE, 0, 4096, 0);
	actor_sees(a, READ, 7, 'l');
	actor_end(a);
}

/* The victim is gone, or is as good as gone. */
static void all_is_free(const struct numbers *before, const char *when)
{
	struct actor *a = actor_start("all", DEVICE_SIZE, 0), *heir;
	time_t end = time(NULL) + HANG_SECONDS;
	long r;

	while ((r = actor_do(a, ACQUIRE, 0, DEVICE_SIZE, RW)) == -ENOMEM) {
		cr_assert_lt(time(NULL), end, "%s: memory is not given back", when);
		nanosleep(&a_moment, NULL);
	}
	cr_assert_eq(r, 0, "%s: %s", when, strerror(-(int)r));
	actor_ok(a, RELEASE, 0, DEVICE_SIZE, 0);
	actor_end(a);
	heir = actor_start("f", FILE_SIZE, 0);
	actor_ok(heir, ACQUIRE, 0, FILE_SIZE, RW);
	actor_sees(heir, LOAD, AT + 1, '.');
	actor_sees(heir, LOAD, AT, byte_of_f(AT));
	actor_end(heir);
	shell_ok(mnt.path, "for f in f all little; do \"$GAIA\" evict $f --from device 0; done");
	wait_for_numbers(before, when);
}

static void make_f(void)
{
	char bytes[2 * 4096];
	int fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0644);

	memset(bytes, '.', sizeof(bytes));
	cr_assert_eq(pwrite(fd, bytes, sizeof(bytes), 0), (ssize_t)sizeof(bytes));
	cr_assert_eq(ftruncate(fd, FILE_SIZE), 0);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
}

static void f_is_right(enum step last, bool in_flight, const char *when)
{
	int is = byte_of_f(AT);

	if (last < RELEASE_IT)
		cr_assert_eq(is, '.', "%s: what was not released is seen", when);
	else if (last > RELEASE_IT || !in_flight)
		cr_assert_eq(is, 'v', "%s: what was released is not seen", when);
	else
		cr_assert(is == '.' || is == 'v', "%s: %d", when, is);
}

static void one_case(enum step last, bool in_flight, enum action action, unsigned nonsense,
		     const struct numbers *before)
{
	static const char *const action_name[] = { "dies", "babbles", "stops" };
	char when[100];

	snprintf(when, sizeof(when), "a client %s %s %s (%u)", action_name[action],
		 in_flight ? "during" : "after", step_name[last], nonsense);
	make_f();
	start_victim(last, nonsense);
	if (in_flight)
		catch_in_flight(victim_pid);
	else
		cr_assert(gate_pass(victim->done), "%s: it does not get there", when);
	act(action);
	others_work(when);
	f_is_right(last, in_flight, when);
	if (action == STOPS)
		kill(victim_pid, SIGKILL);
	all_is_free(before, when);
	f_is_right(last, in_flight, when);
	end_victim();
}

static struct numbers start_all(void)
{
	static const char *const args[] = { "--device", "sim:8M,latency=3000", NULL };
	struct numbers before;
	int fd;

	victim = mmap(NULL, sizeof(*victim), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	way_start(args);
	fd = openat(both_root[ON_MOUNT], "all", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	cr_assert_eq(ftruncate(fd, DEVICE_SIZE), 0);
	close(fd);
	fd = openat(both_root[ON_MOUNT], "little", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	cr_assert_eq(ftruncate(fd, 4096), 0);
	close(fd);
	before = numbers_now();
	cr_assert_eq(before.used, 0);
	return before;
}

static bool takes_time(enum step step)
{
	return step == ACQUIRE_IT || step == RELEASE_IT || step == SYNC_IT || step == UNMAP_IT;
}

static void at_every_step(enum action action)
{
	struct numbers before = start_all();
	unsigned nonsense = 0; /* each kind comes at several steps */

	for (enum step last = 0; last < STEPS; last++) {
		one_case(last, false, action, nonsense++ % NONSENSES, &before);
		if (takes_time(last))
			one_case(last, true, action, nonsense++ % NONSENSES, &before);
	}
}

EACH_WAY_BARE(fault_client, may_die_at_every_step)
{
	at_every_step(DIES);
}

EACH_WAY_BARE(fault_client, may_babble_at_every_step)
{
	at_every_step(BABBLES);
}

EACH_WAY_BARE(fault_client, may_fall_silent_at_every_step)
{
	at_every_step(STOPS);
}

/* ---- a client that is asked for memory that it does not use ---- */

/* Until somebody waits for the victim to give up its chunks. */
static void during_a_revoke(enum action action)
{
	struct numbers before = start_all();
	struct actor *a = actor_start("all", DEVICE_SIZE, 0);

	make_f();
	start_victim(RELEASE_IT, 0);
	cr_assert(gate_pass(victim->done));
	actor_order(a, ACQUIRE, 0, DEVICE_SIZE, RW);
	actor_blocks(a);
	cr_assert_eq(byte_of_f(AT), 'v', "readers do not wait for it");
	act(action);
	cr_assert_eq(actor_result(a), 0);
	actor_end(a);
	f_is_right(RELEASE_IT, false, "revoked");
	end_victim();
	all_is_free(&before, "revoked");
}

EACH_WAY_BARE(fault_client, may_die_while_it_is_asked_for_memory)
{
	during_a_revoke(DIES);
}

EACH_WAY_BARE(fault_client, may_babble_while_it_is_asked_for_memory)
{
	during_a_revoke(BABBLES);
}

EACH_WAY_BARE(fault_client, may_not_be_silent_when_it_is_asked_for_memory)
{
	during_a_revoke(STOPS);
}

/* ---- a client that waits for memory that only it can give up ---- */

enum end { KILLED, TERMINATED, EXITS };

static void *acquire_the_rest(void *arg)
{
	struct progress *p = arg;
	struct gaia_ioc_map map = { .key = p->raw.key, .length = DEVICE_SIZE, .prot = RW };
	struct gaia_ioc_range io;
	int fd = open(mnt_file(&mnt, "all"), O_RDWR | O_CLOEXEC);

	CHILD_CHECK(fd >= 0 && !ioctl(fd, GAIA_IOC_MAP, &map));
	io = raw_range(&p->raw, map.map, DEVICE_SIZE, RW);
	atomic_store(&p->v->waits, gettid());
	gate_open(p->v->arrived);
	(void)ioctl(fd, GAIA_IOC_ACQUIRE, &io);
	gate_open(p->v->done);
	return NULL;
}

static int entangled_main(void *arg)
{
	static struct progress p;
	pthread_t thread;

	p.v = arg;
	p.fd = open(mnt_file(&mnt, "f"), O_RDWR | O_CLOEXEC);
	CHILD_CHECK(p.fd >= 0);
	for (enum step step = 0; step <= RELEASE_IT; step++)
		CHILD_CHECK(perform(&p, step));
	CHILD_CHECK(!pthread_create(&thread, NULL, acquire_the_rest, &p));
	if (p.v->nonsense == TERMINATED)
		pthread_exit(NULL);
	while (!gate_pass(p.v->babble))
		;
	_exit(0);
}

/* Its socket stays open until its request is answered, which waits for it. */
static void ends_entangled(enum end how)
{
	struct numbers before = start_all();
	struct actor *a = actor_start("little", 4096, 0);
	struct shell_result r;
	long result;

	make_f();
	victim->arrived = gate_make();
	victim->done = gate_make();
	victim->babble = gate_make();
	victim->nonsense = how;
	victim_pid = child_start(entangled_main, victim);
	cr_assert(gate_pass(victim->arrived));
	gate_open(victim->arrived);
	catch_in_flight(atomic_load(&victim->waits));
	actor_order(a, ACQUIRE, 0, 4096, RW);
	if (how == EXITS)
		gate_open(victim->babble);
	else
		kill(victim_pid, how == KILLED ? SIGKILL : SIGTERM);
	/* All of the device is promised: -ENOMEM at once, unless the victim has ended. */
	result = actor_result(a);
	cr_assert(result == 0 || result == -ENOMEM, "%ld", result);
	actor_end(a);
	end_victim();
	all_is_free(&before, "entangled");
	r = shell_run("/", 60, "grep -c 'did not give up memory' '%s'", mnt.log);
	cr_assert_eq(atoi(r.out), 0, "it was not seen to end");
	shell_free(&r);
}

EACH_WAY_BARE(fault_client, may_be_killed_while_it_waits_for_its_own_memory)
{
	ends_entangled(KILLED);
}

EACH_WAY_BARE(fault_client, may_be_terminated_while_it_waits_for_its_own_memory)
{
	ends_entangled(TERMINATED);
}

EACH_WAY_BARE(fault_client, may_exit_while_it_waits_for_its_own_memory)
{
	ends_entangled(EXITS);
}

/* ---- a client that is stopped while it holds pages ---- */

EACH_WAY_BARE(fault_client, that_is_stopped_keeps_what_it_holds_and_nobody_waits)
{
	struct numbers before = start_all();
	struct actor *a = actor_start("all", DEVICE_SIZE, 0);

	make_f();
	start_victim(TAKE_GRANT, 0);
	cr_assert(gate_pass(victim->done));
	act(STOPS);
	cr_assert_eq(actor_do(a, ACQUIRE, 0, DEVICE_SIZE, RW), -ENOMEM);
	others_work("stopped");
	/* Its pages can be written and synced meanwhile. */
	cr_assert_eq(actor_do(a, ACQUIRE, 0, MIB, RW), 0);
	actor_end(a);
	a = actor_start("f", FILE_SIZE, NO_DEVICE);
	actor_ok(a, WRITE, AT, 1, 'w');
	actor_ok(a, FSYNC, 0, 0, 0);
	actor_sees(a, READ, AT, 'w');
	/* The victim goes on. */
	kill(victim_pid, SIGCONT);
	actor_end(a);
	end_victim();
	all_is_free(&before, "stopped");
}
