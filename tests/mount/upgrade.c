/*
 * upgrade.c - a mount goes to another daemon (gaiafs --upgrade) while programs use it.
 *
 * Under load processes of all kinds check everything that they read. Whoever sees an error, or a wrong byte, fails. Between two upgrades
 * each of them gets on. GAIAFS_UPGRADES says how many upgrades there are (3).
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "shell.h"
#include "upgrading.h"
#include "ways.h"

#define RW (PROT_READ | PROT_WRITE)
#define PAGE 4096
#define SIZE (64 * PAGE)
#define MIB (1024 * 1024)

/* ---- load ---- */

enum { WRITES, MAPS, APPENDS, NAMES, ORPHANS, LOCKS_A, LOCKS_B, HOLES, WORKERS };

static struct shared {
	atomic_bool over;
	atomic_ulong rounds[WORKERS];
	atomic_ulong added; /* by the two that lock */
} *shared;

struct worker {
	int number;
	uint64_t random;
};

static uint64_t next(struct worker *w)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return w->random;
}

static int open_in_child(const char *name, int flags)
{
	int fd = openat(both_root[ON_MOUNT], name, flags | O_CLOEXEC, 0644);

	CHILD_CHECK(fd >= 0);
	return fd;
}

/* One file, whose contents are known: by calls. */
static void write_and_read(struct worker *w, int fd, unsigned char *want)
{
	unsigned char got[3 * PAGE];
	size_t off = next(w) % (SIZE - sizeof(got)), len = 1 + next(w) % sizeof(got);

	memset(want + off, (int)next(w), len);
	CHILD_CHECK(pwrite(fd, want + off, len, (off_t)off) == (ssize_t)len);
	off = next(w) % (SIZE - sizeof(got));
	CHILD_CHECK(pread(fd, got, sizeof(got), (off_t)off) == sizeof(got));
	CHILD_CHECK(!memcmp(got, want + off, sizeof(got)));
	if (next(w) % 16 == 0)
		CHILD_CHECK(!fsync(fd));
}

static void writes(struct worker *w)
{
	static unsigned char want[SIZE];
	int fd = open_in_child("written", O_CREAT | O_RDWR);

	CHILD_CHECK(!ftruncate(fd, SIZE));
	while (!shared->over) {
		write_and_read(w, fd, want);
		shared->rounds[w->number]++;
	}
	close(fd);
}

/* The same by a mapping; what is stored there read(2) sees. */
static void maps(struct worker *w)
{
	int fd = open_in_child("mapped", O_CREAT | O_RDWR);
	unsigned char *p, byte;

	CHILD_CHECK(!ftruncate(fd, SIZE));
	p = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
	CHILD_CHECK(p != MAP_FAILED);
	while (!shared->over) {
		size_t at = next(w) % SIZE;

		p[at] = (unsigned char)next(w);
		CHILD_CHECK(pread(fd, &byte, 1, (off_t)at) == 1 && byte == p[at]);
		if (next(w) % 32 == 0)
			CHILD_CHECK(!msync(p, SIZE, MS_SYNC));
		if (next(w) % 64 == 0)
			CHILD_CHECK(!madvise(p, SIZE, MADV_DONTNEED));
		shared->rounds[w->number]++;
	}
	munmap(p, SIZE);
	close(fd);
}

static void appends(struct worker *w)
{
	int fd = open_in_child("appended", O_CREAT | O_RDWR | O_APPEND);
	uint64_t size = 0, got;
	struct stat st;

	while (!shared->over) {
		uint64_t word = size * 0x9e3779b97f4a7c15;

		CHILD_CHECK(write(fd, &word, sizeof(word)) == sizeof(word));
		size += sizeof(word);
		CHILD_CHECK(!fstat(fd, &st) && st.st_size == (off_t)size);
		if (next(w) % 256 == 0) {
			size = next(w) % size / sizeof(word) * sizeof(word);
			CHILD_CHECK(!ftruncate(fd, (off_t)size));
		} else {
			uint64_t at = next(w) % (size / sizeof(word)) * sizeof(word);

			CHILD_CHECK(pread(fd, &got, sizeof(got), (off_t)at) == sizeof(got) && got == at * 0x9e3779b97f4a7c15);
		}
		shared->rounds[w->number]++;
	}
	close(fd);
}

static int count_names(const char *dir)
{
	int fd = openat(both_root[ON_MOUNT], dir, O_RDONLY | O_DIRECTORY), n = 0;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	CHILD_CHECK(d);
	errno = 0;
	while ((e = readdir(d)))
		n += e->d_name[0] != '.';
	CHILD_CHECK(!errno);
	closedir(d);
	return n;
}

static void names(struct worker *w)
{
	int root = both_root[ON_MOUNT];
	struct stat a, b;

	CHILD_CHECK(!mkdirat(root, "names", 0755) && !mkdirat(root, "names/sub", 0755));
	while (!shared->over) {
		int fd = open_in_child("names/a", O_CREAT | O_EXCL | O_WRONLY);

		CHILD_CHECK(write(fd, "text", 4) == 4 && !close(fd));
		CHILD_CHECK(!linkat(root, "names/a", root, "names/b", 0));
		CHILD_CHECK(!renameat(root, "names/a", root, "names/sub/c"));
		CHILD_CHECK(!symlinkat("b", root, "names/s"));
		CHILD_CHECK(count_names("names") == 3 && count_names("names/sub") == 1);
		CHILD_CHECK(!fstatat(root, "names/s", &a, 0) && !fstatat(root, "names/sub/c", &b, 0));
		CHILD_CHECK(a.st_ino == b.st_ino && a.st_nlink == 2 && a.st_size == 4);
		CHILD_CHECK(faccessat(root, "names/a", F_OK, 0) && errno == ENOENT);
		CHILD_CHECK(!unlinkat(root, "names/b", 0) && !unlinkat(root, "names/sub/c", 0) && !unlinkat(root, "names/s", 0));
		shared->rounds[w->number]++;
	}
}

static void orphans(struct worker *w)
{
	static unsigned char want[SIZE];
	int fd = -1;

	while (!shared->over) {
		if (fd < 0 || next(w) % 64 == 0) {
			if (fd >= 0)
				close(fd);
			fd = open_in_child("orphan", O_CREAT | O_EXCL | O_RDWR);
			memset(want, 0, sizeof(want));
			CHILD_CHECK(!ftruncate(fd, SIZE) && !unlinkat(both_root[ON_MOUNT], "orphan", 0));
		}
		write_and_read(w, fd, want);
		shared->rounds[w->number]++;
	}
	close(fd);
}

/* A number in a file, to which two processes add, each with the file locked. */
static void locks(struct worker *w)
{
	struct flock whole = { .l_type = F_WRLCK }, none = { .l_type = F_UNLCK };
	int fd = open_in_child("counter", O_CREAT | O_RDWR);
	uint64_t n;

	while (!shared->over) {
		CHILD_CHECK(!fcntl(fd, F_SETLKW, &whole));
		n = 0;
		CHILD_CHECK(pread(fd, &n, sizeof(n), 0) >= 0);
		CHILD_CHECK(n == shared->added);
		n++;
		CHILD_CHECK(pwrite(fd, &n, sizeof(n), 0) == sizeof(n));
		shared->added++;
		CHILD_CHECK(!fcntl(fd, F_SETLK, &none));
		shared->rounds[w->number]++;
	}
	close(fd);
}

static void holes(struct worker *w)
{
	int fd = open_in_child("sparse", O_CREAT | O_RDWR | O_TRUNC);

	while (!shared->over) {
		off_t at = (off_t)(1 + next(w) % 60) * PAGE;

		CHILD_CHECK(!ftruncate(fd, 0) && !ftruncate(fd, SIZE));
		CHILD_CHECK(pwrite(fd, "data", 4, at) == 4);
		CHILD_CHECK(lseek(fd, 0, SEEK_DATA) <= at && lseek(fd, at, SEEK_DATA) == at);
		shared->rounds[w->number]++;
	}
	close(fd);
}

static int work(void *arg)
{
	static void (*const kinds[WORKERS])(struct worker *w) = {
		[WRITES] = writes, [MAPS] = maps, [APPENDS] = appends, [NAMES] = names,
		[ORPHANS] = orphans, [LOCKS_A] = locks, [LOCKS_B] = locks, [HOLES] = holes,
	};
	struct worker *w = arg;

	kinds[w->number](w);
	return 0;
}

/* Until each worker has got on; false: one of them has ended, or hangs. */
static bool all_get_on(const pid_t pid[WORKERS])
{
	for (int i = 0; i < WORKERS; i++) {
		unsigned long rounds = shared->rounds[i], want = rounds + 10;

		for (int ms = 0; shared->rounds[i] < want; ms++) {
			if (waitpid(pid[i], NULL, WNOHANG) || ms > HANG_SECONDS * 1000) {
				fprintf(stderr, "worker %d: %lu rounds\n", i, rounds);
				return false;
			}
			usleep(1000);
		}
	}
	return true;
}

static void under_load(const char *const *args)
{
	static struct worker worker[WORKERS];
	const char *upgrades = getenv("GAIAFS_UPGRADES");
	pid_t pid[WORKERS];
	bool good = true;

	shared = mmap(NULL, sizeof(*shared), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(shared, MAP_FAILED);
	way_start(args);
	for (int i = 0; i < WORKERS; i++) {
		worker[i] = (struct worker){ .number = i, .random = 88172645463325252u + (unsigned)i };
		pid[i] = child_start(work, &worker[i]);
	}
	good = all_get_on(pid);
	for (int n = upgrades ? atoi(upgrades) : 3; n > 0 && good; n--)
		good = !upgrade(NULL) && all_get_on(pid);
	cr_assert(good);
	shared->over = true;
	for (int i = 0; i < WORKERS; i++)
		cr_assert_eq(child_wait(pid[i]), 0, "worker %d", i);
	munmap(shared, sizeof(*shared));
}

EACH_WAY_BARE(upgrade, no_program_notices)
{
	under_load(NULL);
}

/* Many files that the daemon has closed below, and opens again by name. */
EACH_WAY_BARE(upgrade, no_program_notices_with_little_home)
{
	under_load((const char *const[]){ "--home", "8M", "--writeback-age", "0.01", NULL });
}

/* ---- what stays ---- */

static int try_lock(void *arg)
{
	int fd = openat(both_root[ON_MOUNT], "f", O_RDWR);

	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK);
	return 0;
}

EACH_WAY(upgrade, open_files_locks_and_numbers_stay)
{
	int fd = open_file("f", O_CREAT | O_RDWR), gone = open_file("gone", O_CREAT | O_RDWR);
	int t = open_file("t", O_CREAT | O_RDWR), again;
	struct stat before, after, times;
	struct timespec now;
	char text[5] = "";
	unsigned char *p;

	cr_assert_eq(write(fd, "abcd", 4), 4);
	p = mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(madvise(p, PAGE, MADV_DONTFORK), 0); /* the mount's guard is a child, and would keep the mount in use */
	p[1] = 'B';
	cr_assert_eq(flock(fd, LOCK_EX), 0);
	cr_assert_eq(write(gone, "gone", 4), 4);
	cr_assert_eq(unlinkat(both_root[ON_MOUNT], "gone", 0), 0);
	cr_assert_eq(fstat(fd, &before), 0);
	cr_assert_eq(write(t, "time", 4), 4);
	cr_assert_eq(fstat(t, &times), 0);
	close(t);
	/* What is stored from then on would have another time. */
	do
		clock_gettime(CLOCK_REALTIME_COARSE, &now);
	while (now.tv_sec == times.st_mtim.tv_sec && now.tv_nsec <= times.st_mtim.tv_nsec);
	cr_assert_eq(upgrade(NULL), 0);
	p[2] = 'C';
	cr_assert_eq(pread(fd, text, 4, 0), 4);
	cr_assert_str_eq(text, "aBCd");
	cr_assert_eq(fstat(fd, &after), 0);
	cr_assert_eq(before.st_ino, after.st_ino);
	/* The kernel opens a file again only in the way in which it is open. */
	again = open_file("f", O_RDWR);
	cr_assert_eq(pread(again, text, 4, 0), 4);
	cr_assert_str_eq(text, "aBCd");
	close(again);
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "t", &after, 0), 0);
	cr_assert(after.st_mtim.tv_sec == times.st_mtim.tv_sec && after.st_mtim.tv_nsec == times.st_mtim.tv_nsec);
	cr_assert_eq(child_run(try_lock, NULL), 0);
	cr_assert_eq(pread(gone, text, 4, 0), 4);
	cr_assert_str_eq(text, "gone");
	cr_assert_eq(fstat(gone, &after), 0);
	cr_assert_eq(after.st_nlink, 0);
	/* Twice: what was taken over is handed over. */
	cr_assert_eq(upgrade(NULL), 0);
	cr_assert_eq(pread(gone, text, 4, 0), 4);
	munmap(p, PAGE);
	close(fd);
	close(gone);
}

EACH_WAY(upgrade, a_directory_that_is_being_read_goes_on_where_it_was)
{
	bool seen[300] = { false };
	struct dirent *e;
	int n = 0, fd;
	char name[16];
	DIR *d;

	cr_assert_eq(mkdirat(both_root[ON_MOUNT], "d", 0755), 0);
	for (int i = 0; i < 300; i++) {
		snprintf(name, sizeof(name), "d/%d", i);
		close(open_file(name, O_CREAT | O_RDWR));
	}
	fd = openat(both_root[ON_MOUNT], "d", O_RDONLY | O_DIRECTORY);
	d = fdopendir(fd);
	cr_assert(d);
	while (n < 100 && (e = readdir(d)))
		if (e->d_name[0] != '.' && !seen[atoi(e->d_name)])
			seen[atoi(e->d_name)] = ++n;
	cr_assert_eq(upgrade(NULL), 0);
	while ((e = readdir(d)))
		if (e->d_name[0] != '.' && !seen[atoi(e->d_name)])
			seen[atoi(e->d_name)] = ++n;
	cr_assert_eq(n, 300);
	closedir(d);
}

EACH_WAY(upgrade, files_that_are_not_open_are_found)
{
	int fd, known = open_file("known", O_CREAT | O_RDWR);
	char name[32];

	/* A file that the kernel knows; it is not looked up again. */
	cr_assert_eq(write(known, "known", 5), 5);
	close(known);
	known = open_file("known", O_PATH);

	for (int i = 0; i < 200; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		fd = open_file(name, O_CREAT | O_RDWR);
		cr_assert_eq(write(fd, name, sizeof(name)), sizeof(name));
		close(fd);
	}
	cr_assert_eq(upgrade(NULL), 0);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", known);
	fd = open(name, O_RDONLY);
	cr_assert_geq(fd, 0, "%s", strerror(errno));
	cr_assert_eq(read(fd, name, sizeof(name)), 5);
	close(fd);
	close(known);
	for (int i = 0; i < 200; i++) {
		char got[32];

		snprintf(name, sizeof(name), "f%d", i);
		fd = open_file(name, O_RDONLY);
		cr_assert_eq(read(fd, got, sizeof(got)), sizeof(got));
		cr_assert_str_eq(got, name);
		close(fd);
	}
}

EACH_WAY(upgrade, the_new_daemon_has_the_source_and_a_supervisor)
{
	struct shell_result r;

	cr_assert_eq(upgrade(NULL), 0);
	r = shell_run("/", 90, "mkdir '%s/other' && \"$GAIAFS\" '%s' '%s/other'", mnt.dir, mnt.backing, mnt.dir);
	cr_assert_neq(r.status, 0);
	cr_assert(strstr(r.err, "already mounted by gaiafs"), "%s", r.err);
	shell_free(&r);
	both_close();
	kill(mnt.daemon, SIGKILL);
	for (int i = 0; i < 8000 && !mnt_log_lines(&mnt, "has died"); i++)
		usleep(10000);
	cr_assert(mnt_is_dead(mnt.path));
	cr_assert_eq(mnt_log_lines(&mnt, "has died"), 1);
	mnt_wait(&mnt);
	way_remount();
}

EACH_WAY_BARE(upgrade, in_the_background)
{
	struct mnt_options o = { .background = true };

	cr_assert_eq(mnt_start(&mnt, &o), 0);
	shell_ok(mnt.path, "echo before > f");
	cr_assert_eq(upgrade(NULL), 0);
	shell_ok(mnt.path, "grep before f && echo after > f");
	shell_ok("/", "\"$GAIA\" status '%s' && \"$GAIA\" umount '%s'", mnt.path, mnt.path);
	cr_assert_eq(mnt_wait(&mnt), 0);
}

/* ---- refusals ---- */

/* The mount works as before, and the next upgrade does, too. */
static void goes_on(int fd)
{
	char text[8] = "";

	cr_assert_eq(pwrite(fd, "going", 5, 0), 5);
	cr_assert_eq(pread(fd, text, 5, 0), 5);
	cr_assert_str_eq(text, "going");
	shell_ok(mnt.path, "mkdir d && echo x > d/f && cat d/f && rm -r d");
}

/* Mount with a fault, for the first time or again. */
static int mount_with(const char *faults, bool again, const char *const *args)
{
	setenv("GAIAFS_FAULTS", faults, 1);
	if (again)
		way_remount();
	else
		way_start(args);
	unsetenv("GAIAFS_FAULTS");
	return open_file("f", O_CREAT | O_RDWR);
}

EACH_WAY_BARE(upgrade, a_new_daemon_that_dies_changes_nothing)
{
	const char *const dies[] = { "upgrade.begun=errno:EIO,count=1", "upgrade.offered=errno:EIO,count=1", "upgrade.paused=errno:EIO,count=1",
				     "upgrade.bequeathed=errno:EIO,count=1" };

	for (size_t i = 0; i < sizeof(dies) / sizeof(dies[0]); i++) {
		int fd = mount_with(dies[i], i, NULL);

		refused(NULL, "has ended");
		goes_on(fd);
		cr_assert_eq(upgrade(NULL), 0);
		goes_on(fd);
		close(fd);
		way_unmount();
	}
	way_remount();
}

EACH_WAY_BARE(upgrade, a_new_daemon_that_fails_changes_nothing)
{
	const char *const fails[] = { "takeover.version=errno:EIO", "takeover.ready=errno:EIO", "takeover.taken=errno:EIO",
				      "takeover.committed=errno:EIO" };

	for (size_t i = 0; i < sizeof(fails) / sizeof(fails[0]); i++) {
		int fd = mount_with(fails[i], i, NULL);

		for (int twice = 0; twice < 2; twice++) {
			refused(NULL, i ? "has ended" : "versions do not understand each other");
			goes_on(fd);
		}
		close(fd);
		way_unmount();
	}
	way_remount();
}

static struct gate written, upgraded;

/* The test itself must not have the file open: each process that it starts closes its copy, and is told of the error. */
static int write_what_is_not_stored(void *arg)
{
	int fd = open_in_child("g", O_CREAT | O_RDWR);

	CHILD_CHECK(write(fd, "text", 4) == 4);
	/* The kernel's dirty pages come to the daemon, which does not store them yet. */
	CHILD_CHECK(!sync_file_range(fd, 0, 4, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
	gate_open(written);
	CHILD_CHECK(gate_pass(upgraded));
	CHILD_CHECK(fsync(fd) && errno == EIO);
	CHILD_CHECK(!fsync(fd));
	return 0;
}

/* And the error goes to whom it belongs, once, whichever daemon says it. */
CACHED_WAYS_BARE(upgrade, what_cannot_be_stored_stays)
{
	pid_t writer;

	written = gate_make();
	upgraded = gate_make();
	close(mount_with("store.write=errno:EIO,count=1", false, (const char *const[]){ "--writeback-age", "3600", NULL }));
	writer = child_start(write_what_is_not_stored, NULL);
	cr_assert(gate_pass(written));
	refused(NULL, "g: Input/output error");
	cr_assert_eq(upgrade(NULL), 0);
	gate_open(upgraded);
	cr_assert_eq(child_wait(writer), 0);
	backing_holds("g", "text", 4);
}

static int ask_in_vain(void *arg)
{
	struct shell_result r = shell_run("/", HANG_SECONDS, "\"$GAIAFS\" --upgrade '%s'", mnt.path);

	return r.status;
}

/* With a new daemon that starts, and does not come to its end. @before: so many there were. */
static pid_t start_endless_upgrade(int before)
{
	pid_t asker;

	close(mount_with("takeover.ready=delay:4000000000us", before, NULL));
	asker = child_start(ask_in_vain, NULL);
	for (int i = 0; i < 8000 && mnt_log_lines(&mnt, "to be handed over") <= before; i++)
		usleep(10000);
	return asker;
}

EACH_WAY_BARE(upgrade, meanwhile_another_is_refused_and_a_signal_ends_it)
{
	pid_t asker = start_endless_upgrade(0);

	refused(NULL, "it is being upgraded");
	shell_ok(mnt.path, "echo text > f && grep text f");
	both_close();
	kill(mnt.daemon, SIGTERM);
	cr_assert_eq(mnt_wait(&mnt), 0);
	cr_assert_eq(child_wait(asker), 1);
	backing_holds("f", "text\n", 5);
	way_remount();
}

/* It would keep the source's lock, and the connection. At whatever moment that is. */
EACH_WAY_BARE(upgrade, the_new_daemon_dies_with_the_old_one_while_that_has_the_mount)
{
	const useconds_t later[] = { 0, 2000, 20000, 100000 };

	for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++) {
		pid_t asker = start_endless_upgrade((int)i);

		both_close();
		usleep(later[i]);
		mnt_crash(&mnt);
		cr_assert_eq(child_wait(asker), 1);
	}
	way_remount();
}

static int ask_as_a_stranger(void *arg)
{
	struct shell_result r;

	child_become(12345, 12345);
	r = shell_run("/", 60, "\"$GAIAFS\" --upgrade --force '%s'", mnt.path);
	CHILD_CHECK(r.status == 1);
	CHILD_CHECK(strstr(r.err, "only root and the user who mounted it may"));
	return 0;
}

EACH_WAY(upgrade, a_stranger_may_not_ask)
{
	pid_t daemon = mnt.daemon;

	if (geteuid() != 0)
		WAY_SKIP("another user: needs root");
	cr_assert_eq(child_run(ask_as_a_stranger, NULL), 0);
	cr_assert_eq(kill(daemon, 0), 0);
	shell_ok(mnt.path, "echo text > f");
}

/* (Those that can come along: upgrade_clients.c.) */
EACH_WAY(upgrade, what_is_held_on_devices_keeps_it_from_being_upgraded)
{
	int fd = open_file("f", O_CREAT | O_RDWR);
	unsigned char *p;
	char who[128];

	snprintf(who, sizeof(who), "1 program has not let go what is acquired for a device: process %d of user %u (", (int)getpid(), (unsigned)getuid());
	cr_assert_eq(ftruncate(fd, MIB), 0);
	p = gaia_mmap(MIB, RW, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(gaia_acquire(p, MIB, RW), 0);
	p[0] = 'd';
	refused("--wait 0.2", who);
	cr_assert_eq(gaia_release(p, MIB), 0);
	/* What was released is stored, and what was not is lost. */
	cr_assert_eq(gaia_acquire(p, MIB, RW), 0);
	p[1] = 'd';
	cr_assert_eq(mnt_upgrade(&mnt, "--force --wait 0.2", NULL), 0);
	cr_assert_eq(gaia_release(p, MIB), -1);
	cr_assert_eq(errno, ENOTCONN);
	cr_assert_eq(gaia_munmap(p, MIB), 0);
	backing_holds("f", (unsigned char[MIB]){ 'd' }, MIB);
	p = gaia_mmap(MIB, RW, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(gaia_acquire(p, MIB, RW), 0);
	cr_assert(p[0] == 'd' && p[1] == 0);
	cr_assert_eq(gaia_munmap(p, MIB), 0);
	/* A connection without mappings is no obstacle, and is made again. */
	cr_assert_eq(upgrade(NULL), 0);
	p = gaia_mmap(MIB, RW, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(gaia_munmap(p, MIB), 0);
	close(fd);
}

static int hold_until_told(void *arg)
{
	int (*pipes)[2] = arg, fd = open_in_child("f", O_RDWR);
	unsigned char *p;
	char byte = 0;

	/* Its own copy of the end that the parent closes would keep it waiting. */
	close(pipes[1][1]);
	p = gaia_mmap(MIB, RW, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED && !gaia_acquire(p, 1, PROT_READ));
	CHILD_CHECK(write(pipes[0][1], &byte, 1) == 1);
	/* The end of the file: it may end. */
	CHILD_CHECK(read(pipes[1][0], &byte, 1) == 0);
	return 0;
}

/* Three are named, and that there are more. */
EACH_WAY(upgrade, the_first_of_many_programs_are_named)
{
	int fd = open_file("f", O_CREAT | O_RDWR), pipes[2][2];
	pid_t pid[5];
	char byte, said[512], one[64];
	unsigned named = 0;

	cr_assert_eq(ftruncate(fd, MIB), 0);
	cr_assert(!pipe2(pipes[0], O_CLOEXEC) && !pipe2(pipes[1], O_CLOEXEC));
	for (size_t i = 0; i < 5; i++) {
		pid[i] = child_start(hold_until_told, pipes);
		cr_assert_eq(read(pipes[0][0], &byte, 1), 1);
	}
	cr_assert_eq(mnt_upgrade(&mnt, "--wait 0", said), 1);
	cr_assert(strstr(said, "5 programs have not let go what is acquired for a device: process "), "%s", said);
	cr_assert(strstr(said, " and others (gaia status shows them); try again, with a longer --wait, or with --force, which ends their mappings"), "%s", said);
	for (size_t i = 0; i < 5; i++) {
		snprintf(one, sizeof(one), "process %d of user %u", (int)pid[i], (unsigned)getuid());
		named += strstr(said, one) != NULL;
	}
	cr_assert_eq(named, 3, "%s", said);
	close(pipes[1][1]);
	for (size_t i = 0; i < 5; i++)
		cr_assert_eq(child_wait(pid[i]), 0);
	close(fd);
}

/* The next message, and the descriptor that comes with it. */
static int heard(int manager, char text[256])
{
	char room[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { .iov_base = text, .iov_len = 255 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room) };
	ssize_t n = recvmsg(manager, &msg, MSG_CMSG_CLOEXEC);
	int fd = -1;

	cr_assert_gt(n, 0, "nothing was said: %s", strerror(errno));
	text[n] = '\0';
	if (CMSG_FIRSTHDR(&msg))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

static void hears(int manager, const char *what)
{
	char text[256];

	cr_assert_eq(heard(manager, text), -1);
	cr_assert(!strncmp(text, what, strlen(what)), "\"%s\", not \"%s\"", text, what);
}

static int adopt(void *arg)
{
	struct shell_result r = shell_run("/", HANG_SECONDS, "\"$GAIAFS\" --foreground --adopt '%s'", mnt.path);
	int status = r.status;

	shell_free(&r);
	return status;
}

/* A manager that is an abstract socket of ours. */
static int be_manager(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int size = snprintf(at.sun_path, sizeof(at.sun_path), "@gaiafs-upgrade/%d", (int)getpid());
	struct timeval patience = { .tv_sec = HANG_SECONDS };

	setenv("NOTIFY_SOCKET", at.sun_path, 1);
	at.sun_path[0] = '\0';
	cr_assert(!bind(manager, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)size)));
	cr_assert(!setsockopt(manager, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)));
	return manager;
}

EACH_WAY_BARE(upgrade, the_service_manager_hears_of_it_when_it_should)
{
	int manager = be_manager(), barrier;
	char main_pid[64], text[256];
	pid_t adopter;

	way_start(NULL);
	hears(manager, "READY=1");
	/* The new one's word, which a manager does not listen to yet, and the old one's, in any order. */
	cr_assert_eq(upgrade(NULL), 0);
	snprintf(main_pid, sizeof(main_pid), "MAINPID=%d", (int)mnt.daemon);
	cr_assert_eq(heard(manager, text), -1);
	if (strcmp(text, main_pid) != 0) {
		cr_assert_eq(strncmp(text, "READY=1", 7), 0, "%s", text);
		hears(manager, main_pid);
	} else {
		hears(manager, "READY=1");
	}
	cr_assert_eq(upgrade("--leave"), 0);
	hears(manager, "READY=1");
	adopter = child_start(adopt, NULL);
	snprintf(main_pid, sizeof(main_pid), "MAINPID=%d\nREADY=1\n", (int)mnt.daemon);
	hears(manager, main_pid);
	/* It does not end before the manager has read that: else nobody knew whose word it was. */
	barrier = heard(manager, text);
	cr_assert(!strcmp(text, "BARRIER=1") && barrier >= 0);
	cr_assert_eq(waitpid(adopter, NULL, WNOHANG), 0);
	close(barrier);
	cr_assert_eq(child_wait(adopter), 0);
	unsetenv("NOTIFY_SOCKET");
	close(manager);
}

/* A service manager that waits for the old daemon's end sends it a signal, if it is still there. */
EACH_WAY_BARE(upgrade, a_signal_to_the_old_daemon_is_not_for_one_that_was_left)
{
	pid_t old;

	setenv("GAIAFS_FAULTS", "upgrade.answered=delay:2000000us,seed=6", 1);
	way_start(NULL);
	unsetenv("GAIAFS_FAULTS");
	old = mnt.daemon;
	mnt_may_adopt();
	shell_ok("/", "\"$GAIAFS\" --upgrade --leave '%s' && kill -TERM %d", mnt.path, (int)old);
	cr_assert_eq(mnt_adopt(&mnt), 0);
	cr_assert_eq(mnt_log_lines(&mnt, "Terminated: ending"), 1);
	close(open_file("f", O_CREAT | O_RDWR));
	/* Of which the new one has not heard until now. */
	both_close();
	cr_assert_eq(kill(mnt.daemon, SIGTERM), 0);
	cr_assert_eq(mnt_wait(&mnt), 0);
	cr_assert_eq(mnt_log_lines(&mnt, "Terminated: ending"), 2);
	way_remount();
}

/* The unit has not started again. */
EACH_WAY_BARE(upgrade, one_that_was_left_and_that_nobody_adopts_ends)
{
	int manager = be_manager();

	setenv("GAIAFS_FAULTS", "upgrade.alone=errno:EIO", 1);
	way_start(NULL);
	unsetenv("GAIAFS_FAULTS");
	/* One that was not left goes on, and nobody else may have it. */
	hears(manager, "READY=1");
	cr_assert_eq(adopt(NULL), 1);
	cr_assert_eq(mnt_log_lines(&mnt, "no unit has started again"), 0);
	both_close();
	cr_assert_eq(upgrade("--leave"), 0);
	cr_assert_eq(mnt_wait(&mnt), 0);
	cr_assert_eq(mnt_log_lines(&mnt, "no unit has started again"), 1);
	unsetenv("NOTIFY_SOCKET");
	close(manager);
	way_remount();
}

EACH_WAY(upgrade, what_is_no_mount_of_gaiafs_is_said_so)
{
	struct shell_result r = shell_run("/", 60, "\"$GAIAFS\" --upgrade '%s'", mnt.dir);

	cr_assert_eq(r.status, 1);
	cr_assert(strstr(r.err, "not a mount of gaiafs"), "%s", r.err);
	shell_free(&r);
	refused("--home 8M", "keeps the options that it has");
}

/* What is called so there may be another program here. */
EACH_WAY(upgrade, a_program_of_another_namespace_is_not_started)
{
	pid_t daemon = mnt.daemon;
	struct shell_result r;

	if (geteuid() != 0)
		WAY_SKIP("a mount namespace: needs root");
	r = shell_run("/", 60, "unshare --mount \"$GAIAFS\" --upgrade '%s'", mnt.path);
	cr_assert_eq(r.status, 1);
	cr_assert(strstr(r.err, "in another namespace than the daemon"), "%s", r.err);
	shell_free(&r);
	cr_assert_eq(kill(daemon, 0), 0);
	shell_ok(mnt.path, "echo text > f");
}
