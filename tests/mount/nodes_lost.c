/*
 * nodes_lost.c - writes that an engine loses after it has answered them, of which it tells once, to whoever stores or closes the file next.
 *
 * Of engine_fs.c only, which loses writes that begin with LOSE.
 */
#include <gaia/client.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "nodes_rig.h"

#define PAGE 4096

#define WORKS(call) cr_assert_eq(call, 0, "%s: %s", #call, gaia_last_error_text())
#define SAYS_EIO(call)                                              \
	do {                                                        \
		cr_assert_eq(call, -1, "%s has worked", #call);     \
		cr_assert_eq(errno, EIO, "%s: %s", #call, strerror(errno)); \
	} while (0)

static unsigned char *map(int fd)
{
	unsigned char *p = gaia_mmap(PAGE, PROT_READ | PROT_WRITE, fd, 0, 0);

	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
	return p;
}

static void needs_engine_fs(void)
{
	if (getenv("GAIA_ENGINE_CLIENTS"))
		cr_skip_test("of this engine_fs only");
}

/* A file of node 0, mapped for its device by @mapped, and open to write by @fd. */
static unsigned char *open_for_both(int *mapped, int *fd)
{
	put(0, "f", "a file");
	*mapped = open_at(0, "f", O_RDWR);
	*fd = open_at(0, "f", O_RDWR);
	return map(*mapped);
}

static void device_writes(unsigned char *p, const char *bytes)
{
	WORKS(gaia_acquire(p, PAGE, PROT_READ | PROT_WRITE));
	memcpy(p, bytes, strlen(bytes));
	WORKS(gaia_release(p, PAGE));
}

static void writes(int fd, const char *bytes)
{
	cr_assert_eq(pwrite(fd, bytes, strlen(bytes), 0), (ssize_t)strlen(bytes));
}

/* The daemon notes it. */
static void wait_for_note(long before)
{
	for (int i = 0; i < 3000 && counter_of(0, "storage_errors") == before; i++)
		nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL);
	cr_assert_gt(counter_of(0, "storage_errors"), before);
}

static void devices_and_programs_tell_each_other(void)
{
	int mapped, fd;
	unsigned char *p;

	needs_engine_fs();
	p = open_for_both(&mapped, &fd);
	device_writes(p, "LOSE");
	SAYS_EIO(fsync(fd));
	SAYS_EIO(gaia_sync(p, PAGE));
	WORKS(gaia_sync(p, PAGE));
	cr_assert_eq(fsync(fd), 0);

	writes(fd, "LOSE");
	SAYS_EIO(gaia_sync(p, PAGE));
	SAYS_EIO(fsync(fd));
	cr_assert_eq(fsync(fd), 0);
	WORKS(gaia_sync(p, PAGE));

	WORKS(gaia_munmap(p, PAGE));
	cr_assert_eq(close(mapped), 0);
	cr_assert_eq(close(fd), 0);
}
ON(nodes_lost, devices_and_programs_tell_each_other, passed, true, true, "0", "")
ON(nodes_lost, devices_and_programs_tell_each_other, direct, true, false, "0", "")

/* Here of a program that only reads, whose close stores nothing; and the log says it. */
static void what_a_close_of_the_daemons_finds_is_told_to_who_wrote(void)
{
	int mapped, fd;
	unsigned char *p;
	long before;

	needs_engine_fs();
	p = open_for_both(&mapped, &fd);
	before = counter_of(0, "storage_errors");
	device_writes(p, "LOSE");
	cr_assert_eq(close(open_at(0, "f", O_RDONLY)), 0);
	wait_for_note(before);
	SAYS_EIO(gaia_sync(p, PAGE));
	SAYS_EIO(close(fd));
	WORKS(gaia_munmap(p, PAGE));
	cr_assert_eq(close(mapped), 0);
	cr_assert_gt(mnt_log_lines(&node[0], "/f: the file system below says, late,"), 0);
}
ON(nodes_lost, what_a_close_of_the_daemons_finds_is_told_to_who_wrote, passed, true, true, "0", "")
ON(nodes_lost, what_a_close_of_the_daemons_finds_is_told_to_who_wrote, direct, true, false, "0", "")

/* ---- a close that the engine is slow to answer ---- */

static void tell_engine(const char *what, int says)
{
	char name[PATH_MAX + 32];

	snprintf(name, sizeof(name), "%s/client0/%s", top, what);
	for (int i = 0; i < 3000; i++, nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL)) {
		cr_assert_eq(mkdir(name, 0777), -1);
		if (errno == says)
			return;
	}
	cr_assert_fail("%s: %s", name, strerror(errno));
}

static void *reads_and_closes(void *arg)
{
	(void)arg;
	(void)close(open_at(0, "f", O_RDONLY));
	return NULL;
}

static struct {
	unsigned char *p;
	int res, err;
	atomic_bool ended;
} syncs;

static void *syncs_meanwhile(void *arg)
{
	(void)arg;
	syncs.res = gaia_sync(syncs.p, PAGE);
	syncs.err = errno;
	syncs.ended = true;
	return NULL;
}

/* By then the engine has told that close, and tells the sync nothing. */
static void a_sync_waits_for_a_close_that_is_being_told(void)
{
	pthread_t closer, syncer;
	int mapped, fd;

	needs_engine_fs();
	syncs.p = open_for_both(&mapped, &fd);
	device_writes(syncs.p, "LOSE");
	tell_engine("hold", ENOTCONN);
	cr_assert_eq(pthread_create(&closer, NULL, reads_and_closes, NULL), 0);
	tell_engine("is-held", EBUSY);
	cr_assert_eq(pthread_create(&syncer, NULL, syncs_meanwhile, NULL), 0);
	/* So long for a sync that does not wait, to end. */
	for (int i = 0; i < 100 && !syncs.ended; i++)
		nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL);
	tell_engine("let-go", ENOTCONN);
	cr_assert_eq(pthread_join(syncer, NULL), 0);
	cr_assert_eq(pthread_join(closer, NULL), 0);
	cr_assert_eq(syncs.res, -1, "what was lost was not told");
	cr_assert_eq(syncs.err, EIO, "%s", strerror(syncs.err));
	SAYS_EIO(close(fd));
	WORKS(gaia_munmap(syncs.p, PAGE));
	cr_assert_eq(close(mapped), 0);
}
ON(nodes_lost, a_sync_waits_for_a_close_that_is_being_told, passed, true, true, "0", "")
ON(nodes_lost, a_sync_waits_for_a_close_that_is_being_told, direct, true, false, "0", "")

static void closes_that_nobody_looks_at(void)
{
	cr_assert_eq(system("true"), 0);
}

/* A child that runs a program closes what it has inherited, and the engine tells it. */
static void a_child_that_closes_its_descriptors_takes_no_error_away(void)
{
	int fd;

	needs_engine_fs();
	put(0, "f", "a file");
	fd = open_at(0, "f", O_RDWR);
	writes(fd, "LOSE");
	closes_that_nobody_looks_at();
	closes_that_nobody_looks_at();
	SAYS_EIO(fsync(fd));
	cr_assert_eq(fsync(fd), 0);
	writes(fd, "LOSE");
	closes_that_nobody_looks_at();
	SAYS_EIO(close(fd));
}
ON(nodes_lost, a_child_that_closes_its_descriptors_takes_no_error_away, passed, true, true, "0", "")
ON(nodes_lost, a_child_that_closes_its_descriptors_takes_no_error_away, direct, true, false, "0", "")

/* ---- locks ---- */

enum kind { FLOCK, RECORD, OFD, KINDS };

static int lock(int fd, enum kind kind, int op)
{
	struct flock record = { .l_type = (short)(op & LOCK_EX ? F_WRLCK : F_UNLCK), .l_whence = SEEK_SET };

	if (kind == FLOCK)
		return flock(fd, op);
	return fcntl(fd, kind == RECORD ? F_SETLK : F_OFD_SETLK, &record);
}

#define IS_TOLD(call)                                                                                                \
	do {                                                                                                         \
		cr_assert_eq(call, -1, "kind %d: %s has worked", kind, #call);                                       \
		cr_assert(errno == EIO || errno == EBADFD, "kind %d: %s: %s", kind, #call, strerror(errno));         \
	} while (0)

/* Node 0's client, for a moment, from its server. The other node gets the lock at once, and the holder can be told only afterwards. */
static void who_is_cut_off_is_told_that_its_lock_is_gone(void)
{
	char cut[PATH_MAX + 32];

	needs_engine_fs();
	snprintf(cut, sizeof(cut), "%s/client0/cut-off", top);
	put(0, "f", "a file");
	for (enum kind kind = 0; kind < KINDS; kind++) {
		int fd = open_at(0, "f", O_RDWR), other = open_at(1, "f", O_RDWR);

		cr_assert_eq(lock(fd, kind, LOCK_EX | LOCK_NB), 0, "%s", strerror(errno));
		cr_assert_eq(lock(other, kind, LOCK_EX | LOCK_NB), -1);
		cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
		cr_assert_eq(close(dup(fd)), 0);
		/* To a process's record locks that was the end. */
		cr_assert_eq(lock(fd, kind, LOCK_EX | LOCK_NB), 0, "%s", strerror(errno));
		cr_assert_eq(mkdir(cut, 0777), -1);
		cr_assert_eq(errno, ENOTCONN);
		cr_assert_eq(lock(other, kind, LOCK_EX | LOCK_NB), 0, "%s", strerror(errno));
		IS_TOLD(fsync(fd));
		IS_TOLD(fsync(fd));
		IS_TOLD(close(fd));
		cr_assert_eq(lock(other, kind, LOCK_UN), 0);
		cr_assert_eq(close(other), 0);

		fd = open_at(0, "f", O_RDWR);
		cr_assert_eq(lock(fd, kind, LOCK_EX | LOCK_NB), 0, "kind %d: %s", kind, strerror(errno));
		cr_assert_eq(fsync(fd), 0);
		cr_assert_eq(close(fd), 0);
	}
}
ON(nodes_lost, who_is_cut_off_is_told_that_its_lock_is_gone, passed, true, true, "0", "")
ON(nodes_lost, who_is_cut_off_is_told_that_its_lock_is_gone, direct, true, false, "0", "")

/* A descriptor that was given up says nothing of what others wrote by theirs; and anybody who may read can have one. */
static void who_only_reads_makes_no_call_of_others_fail(void)
{
	char cut[PATH_MAX + 32];
	int writer, reader;

	needs_engine_fs();
	snprintf(cut, sizeof(cut), "%s/client0/cut-off", top);
	put(0, "f", "a file");
	writer = open_at(0, "f", O_RDWR);
	reader = open_at(0, "f", O_RDONLY);
	cr_assert_eq(flock(reader, LOCK_SH), 0);
	cr_assert_eq(mkdir(cut, 0777), -1);
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(fsync(reader), -1);
		cr_assert_eq(errno, EBADFD, "%s", strerror(errno));
		writes(writer, "good");
		cr_assert_eq(fsync(writer), 0, "%s", strerror(errno));
	}
	(void)close(reader);
	cr_assert_eq(close(dup(writer)), 0, "%s", strerror(errno));
	cr_assert_eq(fsync(writer), 0, "%s", strerror(errno));
	cr_assert_eq(close(writer), 0);
}
ON(nodes_lost, who_only_reads_makes_no_call_of_others_fail, passed, true, true, "0", "")
ON(nodes_lost, who_only_reads_makes_no_call_of_others_fail, direct, true, false, "0", "")

/* A source that is not shared may be such an engine as well. What the cache still has it stores again. */
static void a_sync_fails_after_such_a_close_and_the_cache_stores_again(void)
{
	int fd, told = 0;

	needs_engine_fs();
	put(0, "f", "a file");
	fd = open_at(0, "f", O_RDWR);
	writes(fd, "LOSE");
	/*
	 * The first close has the cache store it, and sets times, before which the engine stores. And before it answers an open the daemon looks
	 * whether it may, by a descriptor that it closes.
	 */
	for (int i = 0; i < 2; i++)
		told += close(open_at(0, "f", O_RDWR)) != 0;
	cr_assert_gt(told, 0);
	SAYS_EIO(fsync(fd));
	writes(fd, "KEEP");
	cr_assert_eq(fsync(fd), 0);
	cr_assert_eq(close(fd), 0);
	has(0, "f", "KEEPle");
}
ON(nodes_lost, a_sync_fails_after_such_a_close_and_the_cache_stores_again, local, true, false, NULL, "")
