/*
 * source_probes.c - what gaia check-source tries.
 *
 * Each probe does the same in turns: one client changes something, and then the other one looks. What is wrong is looked at again until it is right,
 * to tell for how long it was.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "source.h"

#define ENOUGH 3u /* a probe that was wrong so often is not made again */
#define BYTES 8192u

int side[SIDES];
volatile sig_atomic_t interrupted;

double clock_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void rest(unsigned ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l }, NULL);
}

/* ---- files ---- */

/* The bytes of turn @turn. */
static const char *bytes_of(unsigned turn, char out[BYTES])
{
	for (unsigned i = 0; i < BYTES; i++)
		out[i] = (char)('a' + (turn + i / 64) % 26);
	return out;
}

/* From open to close. 0, or a negative errno. */
static int put(int by, const char *name, int flags, unsigned turn, size_t n)
{
	int fd = openat(side[by], name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | flags, 0600), err = 0;
	char bytes[BYTES];

	if (fd < 0)
		return -errno;
	if (pwrite(fd, bytes_of(turn, bytes), n, 0) != (ssize_t)n)
		err = errno ? -errno : -EIO;
	if (close(fd) && !err)
		err = -errno;
	return err;
}

/* Whether the client that opens it reads just these bytes, and is told that it is so long. */
static bool reads(int by, const char *name, unsigned turn, size_t n)
{
	int fd = openat(side[by], name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	char want[BYTES], got[BYTES + 1];
	struct stat st;
	bool right;

	if (fd < 0)
		return false;
	right = read(fd, got, sizeof(got)) == (ssize_t)n && !memcmp(got, bytes_of(turn, want), n) && !fstat(fd, &st) && st.st_size == (off_t)n;
	close(fd);
	return right;
}

/* ---- looking ---- */

struct look {
	int by;
	const char *name;
	unsigned turn;
	size_t n;
};

static bool is_read(const struct look *l)
{
	return reads(l->by, l->name, l->turn, l->n);
}

static bool is_gone(const struct look *l)
{
	return faccessat(side[l->by], l->name, F_OK, AT_SYMLINK_NOFOLLOW) && (errno == ENOENT || errno == ESTALE);
}

/* Look once, and count that; what is wrong is looked at until it is right. Whether the probe goes on. */
static bool look(struct result *r, bool (*right)(const struct look *), struct look l)
{
	double begun = clock_now(), took = 0;

	r->turns++;
	if (right(&l))
		return !interrupted;
	r->wrong++;
	while (!interrupted && (took = clock_now() - begun) < LOOK_FOR && !right(&l))
		rest(10);
	r->longest = took > r->longest ? took : r->longest;
	return r->wrong < ENOUGH && !interrupted;
}

static bool failed(struct result *r, int err)
{
	if (err && !r->err)
		r->err = err;
	return err;
}

/* ---- names and bytes ---- */

static void made(struct result *r)
{
	char name[32];

	for (unsigned t = 0; t < TURNS; t++) {
		snprintf(name, sizeof(name), "made%u", t);
		if (failed(r, put(t % 2, name, O_CREAT | O_EXCL, t, 100)) ||
		    !look(r, is_read, (struct look){ !(t % 2), name, t, 100 }))
			return;
	}
}

static void removed(struct result *r)
{
	char name[32];

	for (unsigned t = 0; t < TURNS; t++) {
		snprintf(name, sizeof(name), "removed%u", t);
		if (failed(r, put(t % 2, name, O_CREAT | O_EXCL, t, 100)))
			return;
		(void)reads(!(t % 2), name, t, 100); /* so that it is known there */
		if (failed(r, unlinkat(side[t % 2], name, 0) ? -errno : 0) || !look(r, is_gone, (struct look){ .by = !(t % 2), .name = name }))
			return;
	}
}

static void renamed_over(struct result *r)
{
	for (unsigned t = 0; t < TURNS; t++) {
		if (failed(r, put(t % 2, "over.new", O_CREAT | O_TRUNC, t, 100 + t)) ||
		    failed(r, renameat(side[t % 2], "over.new", side[t % 2], "over") ? -errno : 0) ||
		    !look(r, is_read, (struct look){ !(t % 2), "over", t, 100 + t }))
			return;
	}
}

static void made_once(struct result *r)
{
	char name[32];

	for (unsigned t = 0; t < TURNS && !interrupted; t++) {
		int err;

		snprintf(name, sizeof(name), "once%u", t);
		if (failed(r, put(t % 2, name, O_CREAT | O_EXCL, t, 1)))
			return;
		err = put(!(t % 2), name, O_CREAT | O_EXCL, t, 1);
		r->turns++;
		r->wrong += err == 0;
		if (err && err != -EEXIST && failed(r, err))
			return;
	}
}

/* As long as before: size and, maybe, times tell nothing. */
static void rewritten(struct result *r)
{
	if (failed(r, put(0, "again", O_CREAT, 0, BYTES)))
		return;
	for (unsigned t = 0; t < TURNS; t++) {
		(void)is_read(&(struct look){ !(t % 2), "again", t, BYTES });
		if (failed(r, put(t % 2, "again", 0, t + 1, BYTES)) || !look(r, is_read, (struct look){ !(t % 2), "again", t + 1, BYTES }))
			return;
	}
}

static void resized(struct result *r)
{
	if (failed(r, put(0, "size", O_CREAT, 7, BYTES)))
		return;
	for (unsigned t = 0; t < TURNS; t++) {
		size_t n = t % 4 < 2 ? 100 + t : BYTES - t;

		(void)reads(!(t % 2), "size", 7, n);
		if (failed(r, put(t % 2, "size", O_TRUNC, 7, n)) || !look(r, is_read, (struct look){ !(t % 2), "size", 7, n }))
			return;
	}
}

/* A descriptor that stays open. */
static void synced(struct result *r)
{
	char bytes[BYTES];
	int fd;

	if (failed(r, put(0, "synced", O_CREAT, 0, BYTES)))
		return;
	fd = openat(side[0], "synced", O_WRONLY | O_CLOEXEC);
	for (unsigned t = 1; t <= TURNS && !failed(r, fd < 0 ? -errno : 0); t++) {
		if (failed(r, pwrite(fd, bytes_of(t, bytes), BYTES, 0) != BYTES || fsync(fd) ? -errno : 0) ||
		    !look(r, is_read, (struct look){ 1, "synced", t, BYTES }))
			break;
	}
	if (fd >= 0)
		close(fd);
}

/* Both have the file open, for writing. 0, or a negative errno; and then none is. */
static int open_both(const char *name, int flags, int fd[SIDES])
{
	int err = put(0, name, O_CREAT, 0, 0);

	fd[0] = fd[1] = -1;
	for (int i = 0; i < SIDES && !err; i++) {
		fd[i] = openat(side[i], name, O_RDWR | O_CLOEXEC | flags);
		err = fd[i] < 0 ? -errno : 0;
	}
	if (err && fd[0] >= 0)
		close(fd[0]);
	return err;
}

static void close_both(struct result *r, const int fd[SIDES])
{
	for (int i = 0; i < SIDES; i++)
		(void)failed(r, close(fd[i]) ? -errno : 0);
}

static void bytes_of_a_page(struct result *r)
{
	char bytes[BYTES];
	int fd[SIDES];

	if (failed(r, open_both("bytes", 0, fd)))
		return;
	for (unsigned i = 0; i < 64; i++)
		(void)failed(r, pwrite(fd[i % 2], bytes_of(3, bytes) + i, 1, i) == 1 ? 0 : -errno);
	close_both(r, fd);
	for (int i = 0; i < SIDES; i++)
		(void)look(r, is_read, (struct look){ i, "bytes", 3, 64 });
}

static void appended(struct result *r)
{
	char bytes[BYTES];
	int fd[SIDES];

	if (failed(r, open_both("appended", O_APPEND, fd)))
		return;
	for (unsigned i = 0; i < 32; i++)
		(void)failed(r, write(fd[i % 2], bytes_of(5, bytes) + 8 * i, 8) == 8 ? 0 : -errno);
	close_both(r, fd);
	for (int i = 0; i < SIDES; i++)
		(void)look(r, is_read, (struct look){ i, "appended", 5, 8 * 32 });
}

/* ---- locks ---- */

enum kind { LOCK_WHOLE, LOCK_RECORD, LOCK_OPEN_FILE };

/* 0, or a negative errno: -EAGAIN if somebody has it. */
static int try_lock(int fd, enum kind kind, bool lock)
{
	struct flock fl = { .l_type = lock ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET, .l_len = 10 };
	int res = kind == LOCK_WHOLE ? flock(fd, (lock ? LOCK_EX : LOCK_UN) | LOCK_NB) : fcntl(fd, kind == LOCK_RECORD ? F_SETLK : F_OFD_SETLK, &fl);

	return !res ? 0 : errno == EACCES || errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

/* By another process, since record locks are processes'. */
static int try_in_child(int fd, enum kind kind)
{
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(-try_lock(fd, kind, true));
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -errno;
	return WIFEXITED(status) ? -WEXITSTATUS(status) : -EINTR;
}

static void lock_of_kind(struct result *r, enum kind kind)
{
	int fd[SIDES];

	if (failed(r, open_both("lock", 0, fd)))
		return;
	for (unsigned t = 0; t < TURNS && !interrupted; t++) {
		int err;

		if (failed(r, try_lock(fd[t % 2], kind, true)))
			break;
		err = try_in_child(fd[!(t % 2)], kind);
		r->turns++;
		r->wrong += err == 0;
		if (err != -EAGAIN && failed(r, err))
			break;
		if (failed(r, try_lock(fd[t % 2], kind, false)))
			break;
		/* The child's end gave up what it had. */
		err = try_in_child(fd[!(t % 2)], kind);
		if (!err && kind == LOCK_WHOLE)
			(void)try_lock(fd[!(t % 2)], kind, false);
		if (!err && kind == LOCK_OPEN_FILE)
			(void)try_lock(fd[!(t % 2)], kind, false);
		r->wrong += err == -EAGAIN;
		if (err != -EAGAIN && failed(r, err))
			break;
	}
	close_both(r, fd);
}

static void lock_whole(struct result *r)
{
	lock_of_kind(r, LOCK_WHOLE);
}

static void lock_record(struct result *r)
{
	lock_of_kind(r, LOCK_RECORD);
}

static void lock_open_file(struct result *r)
{
	lock_of_kind(r, LOCK_OPEN_FILE);
}

/*
 * As gaiafs does it: what is written is stored before the lock is given up, and who gets it asks for the file's attributes, and drops its pages (in
 * the kernel of a client of GlusterFS 10.3 the attributes alone do not: 17 of 20 were old).
 */
static void lock_carries(struct result *r)
{
	struct statx stx;
	int fd[SIDES];

	if (failed(r, open_both("counter", 0, fd)))
		return;
	for (unsigned t = 0; t < TURNS && !interrupted; t++) {
		int f = fd[t % 2];
		unsigned is = 0;

		if (failed(r, try_lock(f, LOCK_WHOLE, true)) || failed(r, statx(f, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &stx) ? -errno : 0) ||
		    failed(r, -posix_fadvise(f, 0, 0, POSIX_FADV_DONTNEED)) || failed(r, pread(f, &is, sizeof(is), 0) < 0 ? -errno : 0))
			break;
		r->turns++;
		r->wrong += is != t;
		is = t + 1;
		if (failed(r, pwrite(f, &is, sizeof(is), 0) != sizeof(is) || fdatasync(f) ? -errno : 0) || failed(r, try_lock(f, LOCK_WHOLE, false)))
			break;
	}
	close_both(r, fd);
}

static bool is_free(const struct look *l)
{
	int fd = openat(side[l->by], l->name, O_RDWR | O_CLOEXEC);
	bool right = fd >= 0 && !try_lock(fd, LOCK_WHOLE, true);

	if (fd >= 0)
		close(fd);
	return right;
}

static void lock_of_the_dead(struct result *r)
{
	int done[2], fd;
	char said = 0;
	pid_t pid;

	if (failed(r, put(0, "dead", O_CREAT, 0, 1)) || failed(r, pipe2(done, O_CLOEXEC) ? -errno : 0))
		return;
	pid = fork();
	if (!pid) {
		fd = openat(side[0], "dead", O_RDWR | O_CLOEXEC);
		said = (char)(fd < 0 ? errno : -try_lock(fd, LOCK_WHOLE, true));
		(void)!write(done[1], &said, 1);
		for (;;)
			pause();
	}
	close(done[1]);
	if (pid > 0 && read(done[0], &said, 1) == 1)
		(void)failed(r, -said);
	close(done[0]);
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	/* It may take the server a moment to hear of it, for which nothing here is blamed. */
	rest(200);
	(void)look(r, is_free, (struct look){ .by = 1, .name = "dead" });
}

/* ---- times ---- */

/* What gaiafs tells by whether a file has changed. */
static int token(int by, struct statx *stx)
{
	return statx(side[by], "times", AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, stx) ? -errno : 0;
}

static bool same_time(struct statx_timestamp a, struct statx_timestamp b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* How many of so many changes, each @ms after the last, show in the file's times. */
static unsigned shown(struct result *r, unsigned turns, unsigned ms)
{
	struct statx before, after;
	unsigned n = 0;

	for (unsigned t = 0; t < turns && !interrupted; t++) {
		rest(ms);
		if (failed(r, token(!(t % 2), &before)) || failed(r, put(t % 2, "times", 0, t, BYTES)) || failed(r, token(!(t % 2), &after)))
			return n;
		n += !same_time(before.stx_mtime, after.stx_mtime) || !same_time(before.stx_ctime, after.stx_ctime);
	}
	return n;
}

static void times(struct result *r)
{
	static const unsigned waits[] = { 1, 4, 10, 40, 100, 400, 1100, 2100 };

	if (failed(r, put(0, "times", O_CREAT, 0, BYTES)))
		return;
	r->turns = TURNS;
	if (shown(r, TURNS, 0) == TURNS || r->err || interrupted)
		return;
	for (unsigned i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
		if (shown(r, 5, waits[i]) < 5)
			continue;
		r->grain = waits[i];
		return;
	}
	r->wrong = TURNS;
	r->longest = LOOK_FOR;
}

/* ---- all of them ---- */

#define OLD "what its client remembers: attributes, names or pages"

const struct probe probes[] = {
	{ "made", "a file that one makes, the other opens", OLD, made },
	{ "removed", "a file that one removes is gone for the other", OLD, removed },
	{ "renamed_over", "a file that one puts in the place of another, the other reads", OLD, renamed_over },
	{ "made_once", "of two that make a file with O_EXCL one does", "how it makes files", made_once },
	{ "rewritten", "what one has written and closed, the other reads when it opens the file", OLD, rewritten },
	{ "resized", "so it is when the file was made longer or shorter", OLD, resized },
	{ "synced", "so it is with what one has written and called fsync(2) for", OLD, synced },
	{ "times", "each change shows in the file's times", "writeback caching of its client, which keeps times of its own", times },
	{ "bytes_of_a_page", "bytes of one page that both write are all kept", "whether it writes whole pages (NFS: noalignwrite; FUSE: no writeback caching)", bytes_of_a_page },
	{ "appended", "what both append is all there", "whether its server appends (NFS does not: programs must lock)", appended },
	{ "flock", "flock(2) by one keeps the other out", LOCKS, lock_whole },
	{ "record_locks", "so do record locks (F_SETLK)", LOCKS, lock_record },
	{ "open_file_locks", "and locks of open files (F_OFD_SETLK)", LOCKS, lock_open_file },
	{ "lock_carries", "what was written under a lock, the next to get it reads", OLD, lock_carries },
	{ "lock_of_the_dead", "a process that dies gives its locks up", "for how long it keeps locks of clients that do not answer", lock_of_the_dead },
};
const size_t n_probes = sizeof(probes) / sizeof(probes[0]);

void probes_clean_up(void)
{
	static const char *const files[] = { "over", "over.new", "again", "size", "synced", "bytes", "appended", "lock", "counter", "dead", "times" };
	static const char *const many[] = { "made", "removed", "once" };
	char file[32];

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		(void)unlinkat(side[0], files[i], 0);
	for (unsigned t = 0; t < TURNS; t++)
		for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++) {
			snprintf(file, sizeof(file), "%s%u", many[i], t);
			(void)unlinkat(side[0], file, 0);
		}
}
