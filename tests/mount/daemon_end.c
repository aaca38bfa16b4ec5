/*
 * daemon_end.c - how a mount ends: everything written and released is in the
 * backing directory, and nothing is left behind.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "own_mounts.h"
#include "shell.h"
#include "tree.h"
#include "ways.h"

#define SIZE (256 * 1024)
#define RW (PROT_READ | PROT_WRITE)

static char want[SIZE];

/* Writes in all ways. The actors keep the file open and mapped. */
static void write_in_all_ways(struct actor *who[2])
{
	int fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);

	memset(want, '.', SIZE);
	cr_assert_eq(write(fd, want, SIZE), SIZE);
	cr_assert_eq(close(fd), 0);
	who[0] = actor_start("f", SIZE, NO_DEVICE);
	who[1] = actor_start("f", SIZE, 0);
	actor_ok(who[0], WRITE, 1000, 5000, 'w');
	actor_ok(who[1], ACQUIRE, 0, SIZE, RW);
	actor_ok(who[1], STORE, 20000, 5000, 'd');
	actor_ok(who[1], RELEASE, 0, SIZE, 0);
	actor_ok(who[0], MAP_STORE, 100000, 5000, 'm');
	actor_ok(who[0], WRITE, 200000, 1, 'w');
	memset(want + 1000, 'w', 5000);
	memset(want + 20000, 'd', 5000);
	memset(want + 100000, 'm', 5000);
	want[200000] = 'w';
}

/* The signal comes while files are open and mapped: their pages are pushed out first. */
static void ends_on(int sig)
{
	struct actor *who[2];
	int status;

	write_in_all_ways(who);
	both_close();
	kill(mnt.daemon, sig);
	status = mnt_wait(&mnt);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: wait status %x",
		  strsignal(sig), status);
	backing_holds("f", want, SIZE);
	actor_kill(who[0]);
	actor_kill(who[1]);
}

EACH_WAY(daemon_end, sigterm_stores_everything)
{
	ends_on(SIGTERM);
}

EACH_WAY(daemon_end, sigint_stores_everything)
{
	ends_on(SIGINT);
}

EACH_WAY(daemon_end, umount_stores_everything)
{
	struct actor *who[2];

	write_in_all_ways(who);
	actor_end(who[0]);
	actor_end(who[1]);
	way_unmount();
	backing_holds("f", want, SIZE);
}

EACH_WAY(daemon_end, umount_of_a_busy_mount_changes_nothing)
{
	struct actor *who[2];

	write_in_all_ways(who);
	cr_assert_eq(umount2(mnt.path, UMOUNT_NOFOLLOW), -1);
	cr_assert(errno == EBUSY || errno == EPERM, "%s", strerror(errno));
	actor_sees(who[0], READ, 20000, 'd');
	actor_end(who[0]);
	actor_end(who[1]);
}

/* Nobody has anything open afterwards; nor has a container that starts then. */
static void write_and_close(void)
{
	struct actor *who[2];

	write_in_all_ways(who);
	actor_end(who[0]);
	actor_end(who[1]);
	both_close();
}

EACH_WAY(daemon_end, gaia_umount_stores_everything)
{
	int status;

	write_and_close();
	/* It returns when the daemon has stored everything, not when the mount point is free. */
	shell_ok("/", "\"$GAIA\" umount '%s'", mnt.path);
	backing_holds("f", want, SIZE);
	status = mnt_wait(&mnt);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %x", status);
}

/* Like a container: it has a copy of the mount without knowing. */
static int have_copies(void *arg)
{
	struct gate *copied = arg;

	CHILD_CHECK(own_mounts(mnt.path));
	gate_open(*copied);
	for (;;)
		pause();
}

static pid_t start_container(void)
{
	struct gate copied = gate_make();
	pid_t container;

	if (geteuid() != 0)
		WAY_SKIP("another mount namespace: needs root");
	container = child_start(have_copies, &copied);
	cr_assert(gate_pass(copied));
	close(copied.fd);
	return container;
}

EACH_WAY(daemon_end, gaia_umount_says_who_has_a_copy_of_the_mount)
{
	struct shell_result r;
	pid_t container;
	char name[32];
	int status;

	write_and_close();
	container = start_container();
	snprintf(name, sizeof(name), "process %d, ", container);
	r = shell_run("/", 60, "\"$GAIA\" umount '%s'", mnt.path);
	cr_assert_eq(r.status, 0, "%d: %s", r.status, r.err);
	cr_assert(strstr(r.err, "another mount namespace"), "%s", r.err);
	cr_assert(strstr(r.err, name), "%s", r.err);
	/* It has waited for seconds, but not for anything to be stored. */
	cr_assert_not(strstr(r.err, "left to store"), "%s", r.err);
	shell_free(&r);
	cr_assert_eq(kill(mnt.daemon, 0), 0);
	child_kill(container);
	status = mnt_wait(&mnt);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %x", status);
	backing_holds("f", want, SIZE);
}

/* For callers that wait already when a daemon goes, the kernel uses another errno. */
static bool is_gone(const char *text)
{
	return strstr(text, strerror(ENOTCONN)) || strstr(text, strerror(ECONNABORTED));
}

EACH_WAY(daemon_end, gaia_umount_everywhere_ends_copies_of_the_mount)
{
	struct shell_result r;
	pid_t container;
	int status;

	write_and_close();
	container = start_container();
	shell_ok("/", "\"$GAIA\" umount --everywhere '%s'", mnt.path);
	backing_holds("f", want, SIZE);
	r = shell_run("/", 60, "nsenter --mount --target %d cat '%s/f'", container, mnt.path);
	cr_assert_neq(r.status, 0);
	cr_assert(is_gone(r.err), "%s", r.err);
	shell_free(&r);
	status = mnt_wait(&mnt);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %x", status);
	child_kill(container);
}

/* Otherwise it would wait for a minute, and nobody would know for what. */
Test(daemon_end, the_next_mount_says_at_once_who_has_a_copy_of_the_last, .init = way_init_writeback, .fini = way_clean_up,
     .timeout = WAY_SECONDS)
{
	pid_t container;
	int status;

	write_and_close();
	container = start_container();
	cr_assert_eq(umount2(mnt.path, UMOUNT_NOFOLLOW), 0, "%s", strerror(errno));
	/* The mount is made once the old daemon has gone. */
	shell_ok(mnt.dir, "mkdir next && \"$GAIAFS\" '%s' next 2> said & trap 'kill %d' EXIT; "
		 "until grep 'process %d, ' said | grep -q 'kill %d'; do kill -0 $! && sleep 0.01 || exit; done; "
		 "kill %d; trap - EXIT; wait $! && test -e next/f && \"$GAIA\" umount next && rm said && rmdir next",
		 mnt.backing, container, container, mnt.daemon, container);
	child_kill(container);
	status = mnt_wait(&mnt);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %x", status);
	backing_holds("f", want, SIZE);
}

/* The kernel gives the number of a mount that has ended to the next one, here in the same place. */
EACH_WAY(daemon_end, what_is_mounted_there_later_stays)
{
	struct stat ours, other, now = { .st_dev = 0 };
	siginfo_t ended;

	if (geteuid() != 0)
		WAY_SKIP("mounting something else: needs root");
	cr_assert_eq(fstat(both_root[ON_MOUNT], &ours), 0);
	both_close();
	cr_assert(child_stop(mnt.daemon));
	cr_assert_eq(umount2(mnt.path, MNT_DETACH), 0);
	cr_assert_eq(mount("other", mnt.path, "tmpfs", 0, NULL), 0);
	cr_assert_eq(stat(mnt.path, &other), 0);
	kill(mnt.daemon, SIGCONT);
	cr_assert_eq(waitid(P_PID, (id_t)mnt.daemon, &ended, WEXITED | WNOWAIT), 0);
	(void)stat(mnt.path, &now);
	umount2(mnt.path, MNT_DETACH);
	mnt_wait(&mnt);
	cr_assert_eq(now.st_dev, other.st_dev, "it was taken away");
	if (other.st_dev != ours.st_dev)
		WAY_SKIP("the number went elsewhere");
}

EACH_WAY_BARE(daemon_end, lazy_umount_stores_everything_when_the_last_file_is_closed)
{
	struct actor *who[2];
	int status;

	if (geteuid() != 0)
		WAY_SKIP("lazy umount: needs root");
	way_start(NULL);
	write_in_all_ways(who);
	both_close();
	cr_assert_eq(umount2(mnt.path, MNT_DETACH), 0);
	actor_ok(who[0], WRITE, 0, 1, 'l');
	want[0] = 'l';
	/* The actors have the test's descriptors of the root, too. */
	actor_kill(who[0]);
	actor_kill(who[1]);
	status = mnt_wait(&mnt);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %x", status);
	backing_holds("f", want, SIZE);
}

/* ---- what is left ---- */

static int count_entries(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	int n = 0;

	cr_assert_not_null(d, "%s: %s", dir, strerror(errno));
	while ((e = readdir(d)))
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static int count_fds(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	return count_entries(path);
}

static int count_sockets(void)
{
	char line[512];
	FILE *f = fopen("/proc/net/unix", "re");
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, "@gaiafs/") != NULL;
	if (f)
		fclose(f);
	return n;
}

/* Other tests run beside this one: only what bears this mount's name counts. */
EACH_WAY(daemon_end, nothing_is_left_behind)
{
	struct actor *who[2];
	char pid_dir[64];
	struct stat st;

	write_in_all_ways(who);
	actor_end(who[0]);
	actor_end(who[1]);
	snprintf(pid_dir, sizeof(pid_dir), "/proc/%d", mnt.daemon);
	cr_assert_eq(stat(pid_dir, &st), 0);
	way_unmount();
	cr_assert_eq(stat(pid_dir, &st), -1, "the daemon is still there");
	shell_ok("/", "! grep -F '%s' /proc/self/mountinfo", mnt.dir);
	cr_assert_eq(faccessat(mnt.backing_fd, "f", F_OK, 0), 0);
	cr_assert_eq(count_entries(mnt.backing), 1, "only the file is in the backing directory");
}

static void wait_for_fds(int most, const char *what)
{
	const struct timespec pause = { .tv_nsec = 2000000 };
	time_t end = time(NULL) + HANG_SECONDS;
	int n;

	while ((n = count_fds(mnt.daemon)) > most) {
		cr_assert_lt(time(NULL), end, "%s: the daemon has %d descriptors, not %d", what, n,
			     most);
		nanosleep(&pause, NULL);
	}
}

/* Descriptors of the daemon come and go with files, clients and mappings. */
EACH_WAY(daemon_end, the_daemon_keeps_no_descriptors_of_what_is_gone)
{
	int root = both_root[ON_MOUNT], at_rest = 0, sockets;

	for (int round = 0; round < 4; round++) {
		struct actor *a[4];
		char name[16];

		for (int i = 0; i < 4; i++) {
			snprintf(name, sizeof(name), "f%d", i);
			close(openat(root, name, O_CREAT | O_RDWR, 0644));
			cr_assert_eq(truncate(mnt_file(&mnt, name), SIZE), 0);
			a[i] = actor_start(name, SIZE, 0);
			actor_ok(a[i], ACQUIRE, 0, SIZE, RW);
			actor_ok(a[i], STORE, 0, SIZE, 'd');
			if (i % 2)
				actor_ok(a[i], RELEASE, 0, SIZE, 0);
		}
		sockets = count_sockets();
		cr_assert_gt(sockets, 0);
		for (int i = 0; i < 4; i++) {
			snprintf(name, sizeof(name), "f%d", i);
			if (i < 2)
				actor_kill(a[i]);
			else
				actor_end(a[i]);
			cr_assert_eq(unlinkat(root, name, 0), 0);
		}
		/* The first round makes what stays: threads, pools. */
		if (round == 0)
			at_rest = count_fds(mnt.daemon);
		else
			wait_for_fds(at_rest, "after clients");
	}
}

#define NAMES 50000
#define ROUNDS 12
#define WINDOW 3 /* rounds that are to add nothing */

static long resident_kib(pid_t pid)
{
	char line[256];
	long kib = -1;
	FILE *f;

	snprintf(line, sizeof(line), "/proc/%d/status", pid);
	f = fopen(line, "re");
	cr_assert_not_null(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "VmRSS: %ld", &kib) == 1)
			break;
	fclose(f);
	return kib;
}

static bool forget_names(void)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, "2", 1) == 1;

	if (fd >= 0)
		close(fd);
	return done;
}

static void look_up_all(void)
{
	struct stat st;
	char name[32];

	for (int i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "d/n%d", i);
		cr_assert_eq(fstatat(both_root[ON_MOUNT], name, &st, 0), 0, "%s: %s", name,
			     strerror(errno));
	}
}

/* In memory: a disk would be slow. */
static char names_dir[PATH_MAX];

static void remove_names(void)
{
	struct shell_result r;

	way_clean_up();
	r = shell_run("/", 60, "rm -rf '%s'", names_dir);
	shell_free(&r);
}

/* One way is enough: caching makes no difference to names. */
Test(daemon_end, looked_up_and_forgotten_names_leave_nothing, .init = way_bare_writeback,
     .fini = remove_names, .timeout = WAY_SECONDS)
{
	long kib[ROUNDS], limit, now;
	char name[32];
	int at_rest;

	tree_make_temp("/dev/shm", names_dir);
	way_start_at(names_dir, "/dev/shm", NULL);
	cr_assert_eq(mkdirat(mnt.backing_fd, "d", 0755), 0);
	for (int i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "d/n%d", i);
		cr_assert_eq(mknodat(mnt.backing_fd, name, S_IFREG | 0644, 0), 0);
	}
	at_rest = count_fds(mnt.daemon);
	/* Threads may keep what they have freed, so that the first rounds add something. A leak for each
	 * name adds something in every round. */
	for (int round = 0; round < ROUNDS; round++) {
		look_up_all();
		if (!forget_names()) {
			remove_names();
			WAY_SKIP("forgetting: may not write /proc/sys/vm/drop_caches");
		}
		/* The directory itself may stay. */
		wait_for_fds(at_rest + 10, "after forgetting");
		now = kib[round] = resident_kib(mnt.daemon);
		if (round < 2 * WINDOW)
			continue;
		limit = kib[round - WINDOW] + WINDOW * NAMES * 16 / 1024;
		/* A worker gives freed memory back some time later. */
		for (int ms = 0; now >= limit && ms < 1000; ms++) {
			usleep(1000);
			now = resident_kib(mnt.daemon);
		}
#ifdef __SANITIZE_ADDRESS__ /* keeps what is freed */
		limit = now + 1;
#endif
		if (now < limit)
			break;
		cr_assert_lt(round, ROUNDS - 1, "%ld KiB after %d rounds, %ld KiB %d before", now,
			     ROUNDS, kib[round - WINDOW], WINDOW);
	}
	way_end();
}
