/*
 * nodes_locks.c - --source shared: locks, and what is refused.
 */
#include <gaia/client.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "child.h"
#include "nodes_rig.h"
#include "shell.h"

#define LATE_TEXT "300000"
#define LATE_US 300000

enum kind { FLOCK, RECORD, OFD, KINDS };

static int record(int fd, int cmd, int type)
{
	struct flock l = { .l_type = (short)type, .l_whence = SEEK_SET };

	return fcntl(fd, cmd, &l);
}

/* As flock(2) of @op, with a lock of any kind. */
static int lock(int fd, enum kind kind, int op)
{
	int type = op & LOCK_EX ? F_WRLCK : op & LOCK_SH ? F_RDLCK : F_UNLCK;

	if (kind == FLOCK)
		return flock(fd, op);
	if (kind == RECORD)
		return record(fd, op & LOCK_NB ? F_SETLK : F_SETLKW, type);
	return record(fd, op & LOCK_NB ? F_OFD_SETLK : F_OFD_SETLKW, type);
}

struct player {
	int n, result;
	enum kind kind;
	struct gate locked, go;
	uid_t uid;
};

/* In a process of its own: take the lock, and keep it until told. */
static int hold(void *arg)
{
	struct player *p = arg;
	int fd = openat(at[p->n], "f", O_RDWR);

	CHILD_CHECK(fd >= 0 && !lock(fd, p->kind, LOCK_EX));
	gate_open(p->locked);
	CHILD_CHECK(gate_pass(p->go));
	return 0;
}

static struct player start_holder(int n, enum kind kind, pid_t *child)
{
	struct player p = { .n = n, .kind = kind, .locked = gate_make(), .go = gate_make() };
	static struct player kept; /* the child's copy is made by fork() */

	kept = p;
	*child = child_start(hold, &kept);
	cr_assert(gate_pass(p.locked));
	return p;
}

/* At some time, the kernel tells the daemon of a process's end when it comes to it. */
static void becomes_free(int fd, enum kind kind)
{
	time_t end = time(NULL) + HANG_SECONDS;

	while (lock(fd, kind, LOCK_EX | LOCK_NB)) {
		cr_assert(errno == EAGAIN && time(NULL) < end, "%s", strerror(errno));
		usleep(2000);
	}
}

ALL(nodes_locks, locks_of_each_kind_keep_the_other_node_out)
{
	struct player p;
	pid_t child;
	int fd;

	put(0, "f", "text");
	for (enum kind k = 0; k < KINDS; k++) {
		p = start_holder(0, k, &child);
		fd = open_at(1, "f", O_RDWR);
		for (int i = 0; i < 3; i++) {
			cr_assert_eq(lock(fd, k, LOCK_EX | LOCK_NB), -1, "kind %d", k);
			cr_assert_eq(errno, EAGAIN, "%s", strerror(errno));
			cr_assert_eq(lock(fd, k, LOCK_SH | LOCK_NB), -1);
		}
		gate_open(p.go);
		/* Waits for the other's end. */
		cr_assert_eq(lock(fd, k, LOCK_EX), 0, "%s", strerror(errno));
		cr_assert_eq(child_wait(child), 0);
		cr_assert_eq(lock(fd, k, LOCK_UN), 0);
		cr_assert_eq(close(fd), 0);
	}
}

ALL(nodes_locks, a_killed_holder_gives_its_locks_up)
{
	pid_t child;
	int fd;

	put(0, "f", "text");
	for (enum kind k = 0; k < KINDS; k++) {
		(void)start_holder(0, k, &child);
		fd = open_at(1, "f", O_RDWR);
		cr_assert_eq(lock(fd, k, LOCK_EX | LOCK_NB), -1);
		child_kill(child);
		becomes_free(fd, k);
		close(fd);
	}
}

/* Its programs' locks end, too. */
ALL(nodes_locks, a_node_that_dies_gives_its_locks_up)
{
	pid_t child;
	int fd;

	put(0, "f", "text");
	for (enum kind k = 0; k < KINDS; k++) {
		if (!node[0].daemon)
			cr_assert_eq(mnt_restart(&node[0]), 0);
		else
			close(at[0]);
		at[0] = open(node[0].path, O_PATH | O_DIRECTORY | O_CLOEXEC);
		(void)start_holder(0, k, &child);
		fd = open_at(1, "f", O_RDWR);
		cr_assert_eq(lock(fd, k, LOCK_EX | LOCK_NB), -1);
		close(at[0]);
		mnt_crash(&node[0]);
		becomes_free(fd, k);
		child_kill(child);
		has(1, "f", "text");
		close(fd);
	}
	at[0] = -1;
}

ALL(nodes_locks, readers_share_and_a_writer_does_not)
{
	int a, b;

	put(0, "f", "text");
	for (enum kind k = 0; k < KINDS; k++) {
		if (k == RECORD)
			continue; /* of one process */
		a = open_at(0, "f", O_RDWR);
		b = open_at(1, "f", O_RDWR);
		cr_assert_eq(lock(a, k, LOCK_SH | LOCK_NB), 0);
		cr_assert_eq(lock(b, k, LOCK_SH | LOCK_NB), 0);
		cr_assert_eq(lock(a, k, LOCK_EX | LOCK_NB), -1);
		cr_assert_eq(lock(b, k, LOCK_UN), 0);
		cr_assert_eq(lock(a, k, LOCK_EX | LOCK_NB), 0);
		cr_assert_eq(lock(b, k, LOCK_SH | LOCK_NB), -1);
		close(a);
		becomes_free(b, k);
		close(b);
	}
}

/* A process of node 1: 0, if it can lock these bytes. */
static int try_range(void *arg)
{
	struct flock *l = arg;
	int fd = openat(at[1], "f", O_RDWR);

	CHILD_CHECK(fd >= 0);
	return fcntl(fd, F_SETLK, l) ? 1 : 0;
}

static bool can_lock(int type, off_t start, off_t len)
{
	struct flock l = { .l_type = (short)type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };

	return child_run(try_range, &l) == 0;
}

ALL(nodes_locks, record_locks_are_of_bytes_and_end_with_any_close)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 100 }, got;
	int fd, again;

	put(0, "f", "text");
	fd = open_at(0, "f", O_RDWR);
	cr_assert_eq(fcntl(fd, F_SETLK, &l), 0);
	l = (struct flock){ .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 200, .l_len = 100 };
	cr_assert_eq(fcntl(fd, F_SETLK, &l), 0);
	cr_assert(can_lock(F_WRLCK, 0, 100));
	cr_assert(!can_lock(F_WRLCK, 0, 101));
	cr_assert(!can_lock(F_RDLCK, 199, 1));
	cr_assert(can_lock(F_RDLCK, 200, 100));
	cr_assert(!can_lock(F_WRLCK, 250, 1));
	cr_assert(can_lock(F_WRLCK, 300, 0));
	/* Who asks is told the range; not the process, which may be on another machine. */
	again = open_at(1, "f", O_RDWR);
	got = (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET };
	cr_assert_eq(fcntl(again, F_OFD_GETLK, &got), 0, "%s", strerror(errno));
	cr_assert_eq(got.l_type, F_WRLCK);
	cr_assert_eq(got.l_start, 100);
	cr_assert_eq(got.l_len, 100);
	close(again);
	/* Part of it is given up. */
	l = (struct flock){ .l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 150, .l_len = 10 };
	cr_assert_eq(fcntl(fd, F_SETLK, &l), 0);
	cr_assert(can_lock(F_WRLCK, 150, 10));
	cr_assert(!can_lock(F_WRLCK, 149, 2));
	again = open_at(0, "f", O_RDONLY);
	close(again);
	cr_assert(can_lock(F_WRLCK, 0, 0));
	close(fd);
}

#define ROUNDS 50
/* With one descriptor all the time: what is read after the lock is what was written before the last unlock, on whichever node. */
static int count_up(void *arg)
{
	struct player *p = arg;
	int fd = openat(at[p->n], "f", O_RDWR);
	char text[8] = "";

	CHILD_CHECK(fd >= 0);
	for (int i = 0; i < ROUNDS; i++) {
		CHILD_CHECK(!lock(fd, p->kind, LOCK_EX));
		CHILD_CHECK(pread(fd, text, 4, 0) == 4);
		snprintf(text, sizeof(text), "%04u", (unsigned)(atoi(text) + 1) % 10000);
		CHILD_CHECK(pwrite(fd, text, 4, 0) == 4);
		CHILD_CHECK(!lock(fd, p->kind, LOCK_UN));
	}
	return close(fd);
}

ALL(nodes_locks, a_counter_that_is_guarded_by_a_lock_counts_all)
{
	struct player p[2 * NODES];
	pid_t child[2 * NODES];
	char want[8];

	for (enum kind k = 0; k < KINDS; k++) {
		put(0, "f", "0000");
		for (int i = 0; i < 2 * NODES; i++)
			p[i] = (struct player){ .n = i % NODES, .kind = k };
		for (int i = 0; i < 2 * NODES; i++)
			child[i] = child_start(count_up, &p[i]);
		for (int i = 0; i < 2 * NODES; i++)
			cr_assert_eq(child_wait(child[i]), 0);
		sprintf(want, "%04d", 2 * NODES * ROUNDS);
		has(0, "f", want);
		has(1, "f", want);
	}
}

/* Another look fails than the one of open(2). */
static void a_lock_is_not_got_if_it_would_guard_old_bytes(void)
{
	int fd, other;

	put(0, "f", "text");
	close(at[1]);
	cr_assert_eq(mnt_unmount(&node[1]), 0);
	for (enum kind k = 0; k < KINDS; k++) {
		setenv("GAIAFS_FAULTS", "shared.look=errno:EIO,after=1,count=1", 1);
		cr_assert_eq(mnt_restart(&node[1]), 0);
		unsetenv("GAIAFS_FAULTS");
		at[1] = open(node[1].path, O_PATH | O_DIRECTORY | O_CLOEXEC);
		fd = open_at(1, "f", O_RDWR);
		cr_assert_eq(lock(fd, k, LOCK_EX), -1, "kind %d", k);
		cr_assert_eq(errno, EIO, "%s", strerror(errno));
		other = open_at(0, "f", O_RDWR);
		cr_assert_eq(lock(other, k, LOCK_EX | LOCK_NB), 0, "kind %d: %s", k, strerror(errno));
		close(other);
		becomes_free(fd, k);
		close(fd);
		close(at[1]);
		cr_assert_eq(mnt_unmount(&node[1]), 0);
	}
	cr_assert_eq(mnt_restart(&node[1]), 0);
	at[1] = open(node[1].path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}
ON(nodes_locks, a_lock_is_not_got_if_it_would_guard_old_bytes, passed, false, true, "1", "")
ON(nodes_locks, a_lock_is_not_got_if_it_would_guard_old_bytes, direct, true, false, "1", "")

/* By descriptors that stay open. The reader only reads, so that nothing of its own doing has it look. */
ALL(nodes_locks, what_was_written_before_an_unlock_is_read_after_a_lock)
{
	char text[16], is[16] = "";
	int writer, reader;

	put(0, "f", "text 000");
	writer = open_at(0, "f", O_RDWR);
	reader = open_at(1, "f", O_RDWR);
	for (int i = 0; i < 60; i++) {
		enum kind k = (enum kind)(i % KINDS);

		cr_assert_eq(lock(reader, k, LOCK_EX), 0);
		cr_assert_eq(pread(reader, is, 8, 0), 8);
		snprintf(text, sizeof(text), "text %03d", i);
		cr_assert_str_eq(is, text);
		cr_assert_eq(lock(reader, k, LOCK_UN), 0);
		cr_assert_eq(lock(writer, k, LOCK_EX), 0);
		snprintf(text, sizeof(text), "text %03d", i + 1);
		cr_assert_eq(pwrite(writer, text, 8, 0), 8);
		cr_assert_eq(lock(writer, k, LOCK_UN), 0);
	}
	close(writer);
	close(reader);
}

/* The lock is another descriptor's than what it guards, which only that one stores. */
ALL(nodes_locks, an_unlock_by_a_descriptor_for_reading_stores_what_was_written)
{
	char text[16];
	int writer, locker;

	put(0, "f", "text 000");
	writer = open_at(0, "f", O_RDWR);
	for (int i = 0; i < 2 * KINDS; i++) {
		enum kind k = (enum kind)(i / 2);

		locker = open_at(0, "f", O_RDONLY);
		cr_assert_eq(lock(locker, k, LOCK_SH), 0);
		snprintf(text, sizeof(text), "text %03d", i + 1);
		cr_assert_eq(pwrite(writer, text, 8, 0), 8);
		if (i % 2)
			cr_assert_eq(lock(locker, k, LOCK_UN), 0);
		else
			cr_assert_eq(close(locker), 0);
		has(1, "f", text);
		if (i % 2)
			close(locker);
	}
	close(writer);
}

/* ---- waiting ---- */

static void nothing(int sig)
{
	(void)sig;
}

/* Waits for the lock; exits with 0 if it was interrupted. */
static int wait_and_be_interrupted(void *arg)
{
	struct player *p = arg;
	struct sigaction sa = { .sa_handler = nothing };
	int fd;

	if (p->uid)
		child_become(p->uid, p->uid);
	fd = openat(at[p->n], "f", O_RDWR);
	CHILD_CHECK(fd >= 0);
	sigaction(SIGUSR1, &sa, NULL);
	gate_open(p->locked);
	CHILD_CHECK(lock(fd, p->kind, LOCK_EX) == -1);
	return errno == EINTR ? 0 : errno;
}

static void wait_until(int n, long waits)
{
	time_t end = time(NULL) + HANG_SECONDS;
	long are;

	do {
		struct shell_result r = shell_run(NULL, 60, "\"$GAIA\" status --json '%s' | grep -A6 '\"lock_waits\"' | sed -n 's/.*\"present\": //p'", node[n].path);

		are = strtol(r.out, NULL, 10);
		shell_free(&r);
		cr_assert_lt(time(NULL), end, "%ld calls wait, not %ld", are, waits);
	} while (are != waits);
}

ALL(nodes_locks, a_wait_is_interrupted_by_a_signal)
{
	pid_t holder, child;
	struct player p, w;
	int fd, status;

	put(0, "f", "text");
	for (enum kind k = 0; k < KINDS; k++) {
		p = start_holder(0, k, &holder);
		w = (struct player){ .n = 1, .kind = k, .locked = gate_make() };
		child = child_start(wait_and_be_interrupted, &w);
		cr_assert(gate_pass(w.locked));
		wait_until(1, 1);
		kill(child, SIGUSR1);
		status = child_wait(child);
		cr_assert_eq(status, 0, "%s", strerror(status));
		/* One that is killed ends at once, and gets nothing. */
		child = child_start(wait_and_be_interrupted, &w);
		cr_assert(gate_pass(w.locked));
		wait_until(1, 1);
		child_kill(child);
		wait_until(1, 0);
		gate_open(p.go);
		cr_assert_eq(child_wait(holder), 0);
		fd = open_at(1, "f", O_RDWR);
		becomes_free(fd, k);
		close(fd);
	}
}

static void end_while_a_call_waits(void)
{
	struct player w = { .n = 1, .kind = FLOCK, .locked = gate_make() };
	pid_t child;
	int fd;

	put(0, "f", "text");
	fd = open_at(0, "f", O_RDWR);
	cr_assert_eq(lock(fd, FLOCK, LOCK_EX), 0);
	child = child_start(wait_and_be_interrupted, &w);
	cr_assert(gate_pass(w.locked));
	wait_until(1, 1);
	close(at[1]);
	at[1] = -1;
	cr_assert_eq(kill(node[1].daemon, SIGTERM), 0);
	cr_assert_eq(mnt_wait(&node[1]), 0);
	(void)child_wait(child);
	close(fd);
}

ALL(nodes_locks, the_mount_ends_while_a_call_waits)
{
	end_while_a_call_waits();
}

/* The call has found the lock taken, and is just about to wait. */
static void the_mount_ends_while_a_call_begins_to_wait(void)
{
	close(at[1]);
	cr_assert_eq(mnt_unmount(&node[1]), 0);
	setenv("GAIAFS_FAULTS", "lock.before_wait=delay:3000000us", 1);
	cr_assert_eq(mnt_restart(&node[1]), 0);
	unsetenv("GAIAFS_FAULTS");
	at[1] = open(node[1].path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	end_while_a_call_waits();
}
ON(nodes_locks, the_mount_ends_while_a_call_begins_to_wait, direct, false, false, "0", "")

#define EACH 64 /* QUOTA_lock_waits */
static int wait_for_ever(void *arg)
{
	struct player *p = arg;
	int fd;

	child_become(p->uid, p->uid);
	fd = openat(at[p->n], "f", O_RDWR);
	CHILD_CHECK(fd >= 0);
	if (!lock(fd, p->kind, LOCK_EX))
		return 1;
	return errno == ENOLCK ? 2 : 3;
}

static int lock_another(void *arg)
{
	struct player *p = arg;
	int fd;

	if (p->uid)
		child_become(p->uid, p->uid);
	fd = openat(at[p->n], p->uid ? "of user" : "g", O_RDWR);
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(!lock(fd, p->kind, LOCK_EX));
	CHILD_CHECK(pwrite(fd, "x", 1, 0) == 1);
	CHILD_CHECK(!lock(fd, p->kind, LOCK_UN));
	return close(fd);
}

/* A user has as many calls that wait as a user may; the user's other calls, and others', go on. */
static void who_waits_for_locks_holds_nobody_up(void)
{
	struct player p = { .n = 0, .kind = FLOCK, .uid = 12345 }, other = { .n = 0, .kind = RECORD, .uid = 23456 };
	pid_t child[EACH];
	int fd;

	put(0, "f", "text");
	put(0, "g", "text");
	put(0, "of user", "text");
	cr_assert_eq(fchmodat(at[0], "f", 0666, 0), 0);
	cr_assert_eq(fchmodat(at[0], "g", 0666, 0), 0);
	cr_assert_eq(fchmodat(at[0], "of user", 0666, 0), 0);
	fd = open_at(1, "f", O_RDWR);
	cr_assert_eq(lock(fd, FLOCK, LOCK_EX), 0);
	for (int i = 0; i < EACH; i++)
		child[i] = child_start(wait_for_ever, &p);
	wait_until(0, EACH);
	cr_assert_eq(child_run(wait_for_ever, &p), 2);
	/* What needs no waiting is done. */
	cr_assert_eq(child_run(lock_another, &p), 0);
	cr_assert_eq(child_run(lock_another, &other), 0);
	other.uid = 0;
	cr_assert_eq(child_run(lock_another, &other), 0);
	has(0, "g", "xext");
	for (int i = 0; i < EACH; i++)
		child_kill(child[i]);
	wait_until(0, 0);
	close(fd);
}
ON(nodes_locks, who_waits_for_locks_holds_nobody_up, passed, false, true, "1", "")

ALL(nodes_locks, what_was_written_is_seen_by_those_whom_a_weaker_lock_lets_in)
{
	for (enum kind k = 0; k < KINDS; k++) {
		char new = (char)('A' + k), is = 0;
		int fd[NODES];

		put(0, "f", "text");
		for (int i = 0; i < NODES; i++)
			fd[i] = open_at(i, "f", O_RDWR);
		cr_assert_eq(lock(fd[0], k, LOCK_EX), 0);
		cr_assert_eq(pwrite(fd[0], &new, 1, 0), 1);
		cr_assert_eq(lock(fd[0], k, LOCK_SH), 0);
		cr_assert_eq(lock(fd[1], k, LOCK_SH), 0);
		cr_assert_eq(pread(fd[1], &is, 1, 0), 1);
		cr_expect_eq(is, new, "kind %d: %c, not %c", k, is, new);
		for (int i = 0; i < NODES; i++)
			close(fd[i]);
	}
}

/* On node 1: read the file, whose first answer comes late. */
static int read_late(void *arg)
{
	struct player *p = arg;
	int fd = openat(at[1], "f", O_RDONLY);
	char byte;

	CHILD_CHECK(fd >= 0);
	gate_open(p->locked);
	CHILD_CHECK(pread(fd, &byte, 1, 0) == 1);
	return 0;
}

static void what_is_just_being_read_is_not_old_to_who_gets_a_lock(void)
{
	for (enum kind k = 0; k < KINDS; k++) {
		struct player p = { .locked = gate_make() };
		char new = (char)('A' + k), is = 0;
		int fd[NODES];
		pid_t child;

		put(0, "f", "text");
		for (int i = 0; i < NODES; i++)
			fd[i] = open_at(i, "f", O_RDWR);
		cr_assert_eq(lock(fd[0], k, LOCK_EX), 0);
		child = child_start(read_late, &p);
		cr_assert(gate_pass(p.locked));
		/* If it has not asked by then it reads what is new. */
		usleep(LATE_US / 3);
		cr_assert_eq(pwrite(fd[0], &new, 1, 0), 1);
		cr_assert_eq(lock(fd[0], k, LOCK_UN), 0);
		cr_assert_eq(lock(fd[1], k, LOCK_EX), 0);
		cr_assert_eq(pread(fd[1], &is, 1, 0), 1);
		cr_expect_eq(is, new, "kind %d: %c, not %c", k, is, new);
		cr_assert_eq(child_wait(child), 0);
		for (int i = 0; i < NODES; i++)
			close(fd[i]);
	}
}

ON(nodes_locks, what_is_just_being_read_is_not_old_to_who_gets_a_lock, passed, true, true, "1", "late=" LATE_TEXT)
ON(nodes_locks, what_is_just_being_read_is_not_old_to_who_gets_a_lock, direct, true, false, "1", "late=" LATE_TEXT)

static void locks_that_the_engine_lacks_are_refused(void)
{
	int fd;

	put(0, "f", "text");
	fd = open_at(0, "f", O_RDWR);
	for (enum kind k = 0; k < KINDS; k++)
		for (int wait = 0; wait < 2; wait++) {
			cr_assert_eq(lock(fd, k, wait ? LOCK_EX : LOCK_SH | LOCK_NB), -1, "kind %d", k);
			cr_assert_eq(errno, ENOLCK, "%s", strerror(errno));
		}
	close(fd);
	has(1, "f", "text");
}
ON(nodes_locks, locks_that_the_engine_lacks_are_refused, passed, true, true, "1", "nolocks")

/* ---- refusals ---- */

/* A mount of `files` at "more", with options: one line says @says, and nothing is mounted. */
static void refused(const char *options, const char *says)
{
	struct shell_result r = shell_run(top, 100, "mkdir -p more && \"$GAIAFS\" %s files more", options);

	cr_assert_neq(r.status, 0, "%s", options);
	cr_assert_not_null(strstr(r.err, says), "%s: %s", options, r.err);
	cr_assert_eq(strchr(r.err, '\n'), r.err + strlen(r.err) - 1, "%s: %s", options, r.err);
	shell_free(&r);
}

static void what_is_not_there_yet_is_refused_by_a_sentence(void)
{
	char said[512];

	refused("--source shared --cpu-cache writeback", "--cpu-cache writeback");
	refused("--names-age 2", "--names-age: is for --source shared");
	refused("--source shared --names-age -1", "not a number of seconds");
	refused("", "already mounted by gaiafs");
	refused("--source local", "already mounted by gaiafs");
	cr_assert_neq(mnt_upgrade(&node[0], NULL, said), 0);
	cr_assert_not_null(strstr(said, "cannot be handed over"), "%s", said);
	cr_assert_eq(mnt_log_lines(&node[0], "locks in a shared source cannot be handed over"), 1);
}
ON(nodes_locks, what_is_not_there_yet_is_refused_by_a_sentence, passed, false, true, "1", "")

static void one_that_caches_keeps_shared_ones_out(void)
{
	shell_ok(top, "mkdir own m n && \"$GAIAFS\" --device none own m");
	struct shell_result r = shell_run(top, 100, "\"$GAIAFS\" --source shared own n");

	cr_assert_neq(r.status, 0);
	cr_assert_not_null(strstr(r.err, "already mounted by gaiafs"), "%s", r.err);
	shell_free(&r);
	shell_ok(top, "\"$GAIA\" umount m");
	shell_ok(top, "\"$GAIAFS\" --source shared own n && \"$GAIA\" status --json n | grep -q '\"source_mode\": \"shared\"' && \"$GAIA\" umount n");
	shell_ok(top, "\"$GAIAFS\" --device none own m && \"$GAIA\" umount m");
}
ON(nodes_locks, one_that_caches_keeps_shared_ones_out, passed, false, true, "1", "")
