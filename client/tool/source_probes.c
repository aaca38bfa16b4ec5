/*
 * source_probes.c - what gaia check-source tries.
 *
 * Each probe does the same in turns: one client changes something, and then the other one looks. What is wrong is looked at again until it is right,
 * to tell for how long it was.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "source.h"

#define APPENDS 100u /* by each */

/* ---- names and bytes ---- */

static void made(struct result *r)
{
	char name[32];

	for (unsigned t = 0; t < TURNS; t++) {
		struct look l = { !(t % 2), name, t, 100 };

		snprintf(name, sizeof(name), "made%u", t);
		(void)is_gone(&l); /* which may be remembered there */
		if (failed(r, put(t % 2, name, MAKE, t, 100)) || !look(r, is_read, l))
			return;
	}
}

static void removed(struct result *r)
{
	char name[32];

	for (unsigned t = 0; t < TURNS; t++) {
		snprintf(name, sizeof(name), "removed%u", t);
		if (failed(r, put(t % 2, name, MAKE, t, 100)))
			return;
		(void)reads(!(t % 2), name, t, 100);
		if (failed(r, unlinkat(side[t % 2], name, 0) ? -errno : 0) || !look(r, is_gone, (struct look){ .by = !(t % 2), .name = name }))
			return;
	}
}

static void renamed_over(struct result *r)
{
	for (unsigned t = 0; t < TURNS; t++) {
		if (failed(r, put(t % 2, "over.new", MAKE, t, 100 + t)) ||
		    failed(r, renameat(side[t % 2], "over.new", side[t % 2], "over") ? -errno : 0) ||
		    !look(r, is_read, (struct look){ !(t % 2), "over", t, 100 + t }))
			return;
	}
}

/* Make all of them, one after the other: how many were not there. */
static int make_all(void *by)
{
	char name[32];
	int n = 0;

	for (unsigned t = 0; t < TURNS; t++) {
		int fd;

		snprintf(name, sizeof(name), "once%u", t);
		fd = open_file(*(int *)by, name, O_WRONLY | MAKE);
		if (fd < 0 && fd != -EEXIST)
			return 200;
		n += fd >= 0;
		if (fd >= 0)
			close(fd);
	}
	return n;
}

/* At the same time. */
static void made_once(struct result *r)
{
	int by[SIDES] = { 0, 1 }, ours, theirs;
	pid_t pid = child(make_all, &by[1]);

	if (pid < 0) {
		(void)failed(r, pid);
		return;
	}
	ours = make_all(&by[0]);
	theirs = end_child(pid, 10);
	if (failed(r, theirs < 0 ? theirs : ours > (int)TURNS || theirs > (int)TURNS ? -EIO : 0))
		return;
	r->turns = TURNS;
	r->wrong = (unsigned)abs(ours + theirs - (int)TURNS);
}

/* As long as before: size and, maybe, times tell nothing. */
static void rewritten(struct result *r)
{
	if (failed(r, put(0, "again", MAKE, 0, BYTES)))
		return;
	for (unsigned t = 0; t < TURNS; t++) {
		(void)reads(!(t % 2), "again", t, BYTES);
		if (failed(r, put(t % 2, "again", 0, t + 1, BYTES)) || !look(r, is_read, (struct look){ !(t % 2), "again", t + 1, BYTES }))
			return;
	}
}

static void resized(struct result *r)
{
	if (failed(r, put(0, "size", MAKE, 7, BYTES)))
		return;
	for (unsigned t = 0; t < TURNS; t++) {
		size_t n = t % 4 < 2 ? 100 + t : BYTES - t;

		(void)reads(!(t % 2), "size", 7, n);
		if (failed(r, put(t % 2, "size", 0, 7, n)) || !look(r, is_read, (struct look){ !(t % 2), "size", 7, n }))
			return;
	}
}

/* A descriptor that stays open. */
static void synced(struct result *r)
{
	char bytes[BYTES];
	int fd;

	if (failed(r, put(0, "synced", MAKE, 0, BYTES)))
		return;
	fd = open_file(0, "synced", O_WRONLY);
	if (failed(r, fd < 0 ? fd : 0))
		return;
	for (unsigned t = 1; t <= TURNS; t++) {
		(void)reads(1, "synced", t, BYTES);
		if (failed(r, moved(pwrite(fd, bytes_of(t, bytes), BYTES, 0), BYTES)) || failed(r, fsync(fd) ? -errno : 0) ||
		    !look(r, is_read, (struct look){ 1, "synced", t, BYTES }))
			break;
	}
	(void)failed(r, close_file(fd));
}

/* Both have the file open, for writing. 0, or a negative errno; and then none has. */
static int open_both(const char *name, int fd[SIDES])
{
	int err = put(0, name, MAKE, 0, 0);

	for (int i = 0; i < SIDES && !err; i++) {
		fd[i] = open_file(i, name, O_RDWR);
		err = fd[i] < 0 ? fd[i] : 0;
		if (err && i)
			close(fd[0]);
	}
	return err;
}

static void close_both(struct result *r, const int fd[SIDES])
{
	for (int i = 0; i < SIDES; i++)
		(void)failed(r, close_file(fd[i]));
}

static void bytes_of_a_page(struct result *r)
{
	char bytes[BYTES];
	int fd[SIDES];

	if (failed(r, open_both("bytes", fd)))
		return;
	for (unsigned i = 0; i < 64; i++)
		(void)failed(r, moved(pwrite(fd[i % 2], bytes_of(3, bytes) + i, 1, i), 1));
	close_both(r, fd);
	for (int i = 0; i < SIDES; i++)
		(void)look(r, is_read, (struct look){ i, "bytes", 3, 64 });
}

static int append_all(void *by)
{
	int fd = open_file(*(int *)by, "appended", O_WRONLY | O_APPEND), err = fd < 0 ? fd : 0;

	for (unsigned i = 0; i < APPENDS && !err; i++)
		err = moved(write(fd, *(int *)by ? "bbbbbbb\n" : "aaaaaaa\n", 8), 8);
	if (fd >= 0 && close(fd) && !err)
		err = -errno;
	return -err;
}

static bool all_is_appended(const struct look *l)
{
	char bytes[BYTES];
	int fd = open_file(l->by, l->name, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, bytes, sizeof(bytes));
	unsigned whole[SIDES] = { 0, 0 };

	if (fd >= 0)
		close(fd);
	for (ssize_t i = 0; i + 8 <= n; i += 8)
		for (int by = 0; by < SIDES; by++)
			whole[by] += !memcmp(bytes + i, by ? "bbbbbbb\n" : "aaaaaaa\n", 8);
	return n == 2 * APPENDS * 8 && whole[0] == APPENDS && whole[1] == APPENDS;
}

/* At the same time. */
static void appended(struct result *r)
{
	int by[SIDES] = { 0, 1 }, theirs;
	pid_t pid;

	if (failed(r, put(0, "appended", MAKE, 0, 0)))
		return;
	pid = child(append_all, &by[1]);
	if (failed(r, pid < 0 ? pid : 0))
		return;
	(void)failed(r, -append_all(&by[0]));
	theirs = end_child(pid, 20);
	(void)failed(r, theirs > 0 ? -theirs : theirs);
	for (int i = 0; i < SIDES; i++)
		(void)look(r, all_is_appended, (struct look){ .by = i, .name = "appended" });
}

/* ---- locks ---- */

enum kind { LOCK_WHOLE, LOCK_RECORD, LOCK_OPEN_FILE };

struct attempt {
	int fd;
	enum kind kind;
};

/* 0, or a negative errno: -EAGAIN if somebody has it. */
static int try_lock(int fd, enum kind kind, bool lock)
{
	struct flock fl = { .l_type = lock ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET, .l_len = 10 };
	int res = kind == LOCK_WHOLE ? flock(fd, (lock ? LOCK_EX : LOCK_UN) | LOCK_NB) : fcntl(fd, kind == LOCK_RECORD ? F_SETLK : F_OFD_SETLK, &fl);

	return !res ? 0 : errno == EACCES || errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

static int try_once(void *arg)
{
	struct attempt *a = arg;
	int err = try_lock(a->fd, a->kind, true);

	/* Locks of open files stay when a process ends that has inherited them. */
	if (!err)
		(void)try_lock(a->fd, a->kind, false);
	return -err;
}

/* By another process, since record locks are processes'. Whether it got it; errors are noted. */
static bool gets(struct result *r, int fd, enum kind kind)
{
	pid_t pid = child(try_once, &(struct attempt){ fd, kind });
	int err = pid < 0 ? pid : -end_child(pid, 10);

	if (err > 0)
		err = -err; /* end_child()'s own */
	if (err && err != -EAGAIN)
		(void)failed(r, err);
	return !err;
}

static void lock_of_kind(struct result *r, enum kind kind, const char *name)
{
	int fd[SIDES];

	if (failed(r, open_both(name, fd)))
		return;
	for (unsigned t = 0; t < TURNS; t++) {
		int ours = fd[t % 2], theirs = fd[!(t % 2)];
		bool kept_out, got;

		if (failed(r, try_lock(ours, kind, true)))
			break;
		kept_out = !gets(r, theirs, kind);
		if (failed(r, try_lock(ours, kind, false)))
			break;
		got = gets(r, theirs, kind);
		if (r->err || !count(r, kept_out && got))
			break;
	}
	close_both(r, fd);
}

static void lock_whole(struct result *r)
{
	lock_of_kind(r, LOCK_WHOLE, "lock0");
}

static void lock_record(struct result *r)
{
	lock_of_kind(r, LOCK_RECORD, "lock1");
}

static void lock_open_file(struct result *r)
{
	lock_of_kind(r, LOCK_OPEN_FILE, "lock2");
}

static int wait_for_it(void *fd)
{
	return flock(*(int *)fd, LOCK_EX) ? errno : 0;
}

/* Who waits gets it when it is given up; and a wait can be ended. */
static void lock_waits(struct result *r)
{
	int fd[SIDES], got;
	pid_t pid;

	if (failed(r, open_both("wait", fd)))
		return;
	for (unsigned t = 0; t < 4 && !interrupted; t++) {
		bool end = t % 2;

		if (failed(r, try_lock(fd[0], LOCK_WHOLE, true)))
			break;
		pid = child(wait_for_it, &fd[1]);
		rest(50);
		if (failed(r, pid < 0 ? pid : 0))
			break;
		if (end)
			kill(pid, SIGTERM);
		else
			(void)failed(r, try_lock(fd[0], LOCK_WHOLE, false));
		got = end_child(pid, LOOK_FOR);
		if (end)
			(void)failed(r, try_lock(fd[0], LOCK_WHOLE, false));
		/* (What it got it has by our descriptor.) */
		(void)try_lock(fd[1], LOCK_WHOLE, false);
		if (got > 0 && failed(r, -got))
			break;
		if (!count(r, got == (end ? -EINTR : 0)))
			break;
	}
	close_both(r, fd);
}

/*
 * As gaiafs does it: what is written is stored before the lock is given up, and who gets it asks for the file's attributes and, on FUSE, drops its pages
 * (in the kernel of a client of GlusterFS 10.3 the attributes alone do not: 17 of 20 were old).
 */
static void lock_carries(struct result *r)
{
	struct statfs fs;
	struct statx stx;
	int fd[SIDES];

	if (failed(r, open_both("counter", fd)))
		return;
	for (unsigned t = 0; t < TURNS; t++) {
		int f = fd[t % 2];
		unsigned is = 0;

		if (failed(r, try_lock(f, LOCK_WHOLE, true)) || failed(r, statx(f, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &stx) ? -errno : 0))
			break;
		if (!fstatfs(f, &fs) && fs.f_type == FUSE_SUPER_MAGIC)
			(void)posix_fadvise(f, 0, 0, POSIX_FADV_DONTNEED);
		if (failed(r, pread(f, &is, sizeof(is), 0) < 0 ? -errno : 0) || !count(r, is == t))
			break;
		is = t + 1;
		if (failed(r, moved(pwrite(f, &is, sizeof(is), 0), sizeof(is))) || failed(r, fdatasync(f) ? -errno : 0) || failed(r, try_lock(f, LOCK_WHOLE, false)))
			break;
	}
	close_both(r, fd);
}

static bool is_free(const struct look *l)
{
	int fd = open_file(l->by, l->name, O_RDWR);
	bool right = fd >= 0 && !try_lock(fd, LOCK_WHOLE, true);

	if (fd >= 0)
		close(fd);
	return right;
}

static int lock_and_stay(void *arg)
{
	int fd = open_file(0, "dead", O_RDWR);
	char said = (char)(fd < 0 ? -fd : -try_lock(fd, LOCK_WHOLE, true));

	if (write(*(int *)arg, &said, 1) != 1)
		return EIO;
	for (;;)
		pause();
}

static void lock_of_the_dead(struct result *r)
{
	struct look l = { .by = 1, .name = "dead" };
	char said = EIO;
	int done[2];
	pid_t pid;

	if (failed(r, put(0, "dead", MAKE, 0, 1)) || failed(r, pipe2(done, O_CLOEXEC) ? -errno : 0))
		return;
	pid = child(lock_and_stay, &done[1]);
	close(done[1]);
	if (!failed(r, pid < 0 ? pid : 0)) {
		(void)!read(done[0], &said, 1);
		(void)failed(r, -said);
		if (!r->err)
			(void)count(r, !is_free(&l));
		(void)end_child(pid, 0);
	}
	close(done[0]);
	if (r->err)
		return;
	/* It may take the server a moment to hear of it, for which nothing here is blamed. */
	rest(200);
	(void)look(r, is_free, l);
}

/* ---- times ---- */

/* What gaiafs tells by whether a file has changed. */
static int token(int by, struct statx *stx)
{
	return statx(side[by], "times", AT_STATX_FORCE_SYNC | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, stx) ? -errno : 0;
}

static bool same_time(struct statx_timestamp a, struct statx_timestamp b)
{
	return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* How many of TURNS changes, each @ms after the last, show in the file's times; fewer are tried if each takes long. */
static bool all_show(struct result *r, unsigned ms)
{
	struct statx before, after;

	for (unsigned t = 0; t < (ms > 40 ? 5 : TURNS) && !interrupted; t++) {
		rest(ms);
		if (failed(r, token(!(t % 2), &before)) || failed(r, put(t % 2, "times", 0, t, BYTES)) || failed(r, token(!(t % 2), &after)))
			return false;
		if (same_time(before.stx_mtime, after.stx_mtime) && same_time(before.stx_ctime, after.stx_ctime))
			return false;
	}
	return !interrupted;
}

static void times(struct result *r)
{
	static const unsigned waits[] = { 0, 1, 4, 10, 40, 100, 400, 1100, 2100 };

	if (failed(r, put(0, "times", MAKE, 0, BYTES)))
		return;
	for (unsigned i = 0; i < sizeof(waits) / sizeof(waits[0]) && !r->err && !interrupted; i++) {
		if (!all_show(r, waits[i]))
			continue;
		r->turns = waits[i] > 40 ? 5 : TURNS;
		r->grain = waits[i];
		return;
	}
	r->turns = r->wrong = 1;
	r->longest = LOOK_FOR;
}

/* ---- all of them ---- */

#define OLD "what its client remembers: attributes, names (also of what is not there) or pages"

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
	{ "lock_waits", "who waits for a lock gets it, or can be ended", "how its client waits for locks (FUSE: FUSE_INTERRUPT)", lock_waits },
	{ "lock_carries", "what was written under a lock, the next to get it reads", OLD, lock_carries },
	{ "lock_of_the_dead", "a process that dies gives its locks up", "for how long it keeps locks of clients that do not answer", lock_of_the_dead },
};
const size_t n_probes = sizeof(probes) / sizeof(probes[0]);

bool probes_begin(const char *secret)
{
	char got[64] = "";
	double begun = clock_now();
	int fd = open_file(0, "secret", O_WRONLY | MAKE), err;

	if (fd < 0)
		return false;
	err = moved(write(fd, secret, strlen(secret)), strlen(secret));
	if (close_file(fd) || err)
		return false;
	do {
		fd = open_file(1, "secret", O_RDONLY);
		if (fd >= 0) {
			ssize_t n = read(fd, got, sizeof(got) - 1);

			got[n < 0 ? 0 : n] = '\0';
			close(fd);
		}
		if (!strcmp(got, secret))
			return true;
		rest(20);
	} while (clock_now() - begun < 5 && !interrupted);
	return false;
}

void probes_clean_up(void)
{
	static const char *const files[] = { "secret", "over", "over.new", "again", "size", "synced", "bytes", "appended", "lock0", "lock1", "lock2", "wait",
					     "counter", "dead", "times" };
	static const char *const many[] = { "made", "removed", "once" };
	char file[32];

	for (int by = 0; by < SIDES; by++) {
		for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
			(void)unlinkat(side[by], files[i], 0);
		for (unsigned t = 0; t < TURNS; t++)
			for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++) {
				snprintf(file, sizeof(file), "%s%u", many[i], t);
				(void)unlinkat(side[by], file, 0);
			}
	}
}
