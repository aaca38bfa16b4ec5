/*
 * fs_locks.c - record locks and whole-file locks between processes.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child.h"
#include "ways.h"

struct two {
	struct gate locked, done;
};

static int lock(int fd, int cmd, int type, off_t start, off_t len)
{
	struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };

	return fcntl(fd, cmd, &l);
}

static int open_it(const char *name)
{
	return openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);
}

/* Holds bytes 100 to 199 for writing and the rest up to 299 for reading. */
static int hold_records(void *arg)
{
	struct two *t = arg;
	int fd = open_it("f");

	CHILD_CHECK(lock(fd, F_SETLK, F_WRLCK, 100, 100) == 0);
	CHILD_CHECK(lock(fd, F_SETLK, F_RDLCK, 200, 100) == 0);
	gate_open(t->locked);
	CHILD_CHECK(gate_pass(t->done));
	return 0;
}

EACH_WAY(fs_locks, record_locks_between_processes)
{
	struct two t = { gate_make(), gate_make() };
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 0 };
	pid_t child = child_start(hold_records, &t);
	int fd = open_it("f");

	cr_assert(gate_pass(t.locked));
	cr_assert_eq(lock(fd, F_SETLK, F_WRLCK, 0, 100), 0);
	cr_assert_eq(lock(fd, F_SETLK, F_RDLCK, 150, 10), -1);
	cr_assert(errno == EAGAIN || errno == EACCES, "%s", strerror(errno));
	cr_assert_eq(lock(fd, F_SETLK, F_RDLCK, 250, 10), 0);
	cr_assert_eq(lock(fd, F_SETLK, F_WRLCK, 250, 10), -1);
	cr_assert_eq(fcntl(fd, F_GETLK, &l), 0);
	cr_assert_eq(l.l_type, F_WRLCK);
	cr_assert_eq(l.l_start, 100);
	cr_assert_eq(l.l_len, 100);
	cr_assert_eq(l.l_pid, child);
	gate_open(t.done);
	/* Blocks until the child has gone, and its locks with it. */
	cr_assert_eq(lock(fd, F_SETLKW, F_WRLCK, 0, 0), 0, "%s", strerror(errno));
	cr_assert_eq(child_wait(child), 0);
	close(fd);
}

static int hold_then_close(void *arg)
{
	struct two *t = arg;
	int fd = open_it("f"), again = open_it("f");

	CHILD_CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
	gate_open(t->locked);
	CHILD_CHECK(gate_pass(t->done));
	close(again);
	gate_open(t->locked);
	CHILD_CHECK(gate_pass(t->done));
	return 0;
}

EACH_WAY(fs_locks, any_close_drops_a_process_record_locks)
{
	struct two t = { gate_make(), gate_make() };
	pid_t child = child_start(hold_then_close, &t);
	int fd = open_it("f");

	cr_assert(gate_pass(t.locked));
	cr_assert_eq(lock(fd, F_SETLK, F_WRLCK, 0, 10), -1);
	gate_open(t.done);
	cr_assert(gate_pass(t.locked));
	cr_assert_eq(lock(fd, F_SETLK, F_WRLCK, 0, 10), 0, "%s", strerror(errno));
	gate_open(t.done);
	cr_assert_eq(child_wait(child), 0);
	close(fd);
}

EACH_WAY(fs_locks, locks_of_open_file_descriptions)
{
	int a = open_it("f"), b = open_it("f");

	cr_assert_eq(lock(a, F_OFD_SETLK, F_WRLCK, 0, 10), 0);
	cr_assert_eq(lock(b, F_OFD_SETLK, F_WRLCK, 5, 10), -1);
	cr_assert_eq(errno, EAGAIN);
	cr_assert_eq(lock(b, F_OFD_SETLK, F_WRLCK, 10, 10), 0);
	close(a);
	cr_assert_eq(lock(b, F_OFD_SETLK, F_WRLCK, 0, 10), 0);
	close(b);
}

static int hold_file(void *arg)
{
	struct two *t = arg;
	int fd = openat(both_root[ON_MOUNT], "other name", O_RDWR);

	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(flock(fd, LOCK_EX) == 0);
	gate_open(t->locked);
	CHILD_CHECK(gate_pass(t->done));
	CHILD_CHECK(flock(fd, LOCK_SH) == 0);
	gate_open(t->locked);
	CHILD_CHECK(gate_pass(t->done));
	return 0;
}

EACH_WAY(fs_locks, flock_between_processes_and_over_names)
{
	struct two t = { gate_make(), gate_make() };
	int fd = open_it("f");
	pid_t child;

	cr_assert_eq(linkat(both_root[ON_MOUNT], "f", both_root[ON_MOUNT], "other name", 0), 0);
	child = child_start(hold_file, &t);
	cr_assert(gate_pass(t.locked));
	cr_assert_eq(flock(fd, LOCK_SH | LOCK_NB), -1);
	cr_assert_eq(errno, EWOULDBLOCK);
	gate_open(t.done);
	cr_assert(gate_pass(t.locked));
	cr_assert_eq(flock(fd, LOCK_SH | LOCK_NB), 0);
	cr_assert_eq(flock(fd, LOCK_EX | LOCK_NB), -1);
	gate_open(t.done);
	cr_assert_eq(flock(fd, LOCK_EX), 0);
	cr_assert_eq(child_wait(child), 0);
	close(fd);
}

static int count_up(void *arg)
{
	int fd = open_it("counter"), n;

	(void)arg;
	for (int i = 0; i < 200; i++) {
		CHILD_CHECK(lock(fd, F_SETLKW, F_WRLCK, 0, 0) == 0);
		n = 0;
		CHILD_CHECK(pread(fd, &n, sizeof(n), 0) >= 0);
		n++;
		CHILD_CHECK(pwrite(fd, &n, sizeof(n), 0) == sizeof(n));
		CHILD_CHECK(lock(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
	}
	return 0;
}

EACH_WAY(fs_locks, a_counter_under_a_lock_loses_nothing)
{
	pid_t child[3];
	int n = 0, fd;

	for (int i = 0; i < 3; i++)
		child[i] = child_start(count_up, NULL);
	for (int i = 0; i < 3; i++)
		cr_assert_eq(child_wait(child[i]), 0);
	fd = open_it("counter");
	cr_assert_eq(pread(fd, &n, sizeof(n), 0), (ssize_t)sizeof(n));
	close(fd);
	cr_assert_eq(n, 600);
}
