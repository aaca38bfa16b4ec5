/*
 * fault_death.c - the daemon dies at the worst moment, and its supervisor ends what is left.
 */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "own_mounts.h"
#include "shell.h"
#include "threads.h"
#include "ways.h"

#define SIZE (4 * 4096)
#define RW (PROT_READ | PROT_WRITE)

static const struct timespec a_moment = { .tv_nsec = 2000000 };

static bool mountinfo_has(const char *path)
{
	struct shell_result r = shell_run("/", 60, "grep -qF ' %s ' /proc/self/mountinfo", path);
	bool has = r.status == 0;

	shell_free(&r);
	return has;
}

static void wait_until_unmounted(void)
{
	time_t end = time(NULL) + HANG_SECONDS;

	while (mountinfo_has(mnt.path)) {
		cr_assert_lt(time(NULL), end, "nobody takes the mount away");
		nanosleep(&a_moment, NULL);
	}
}

static void wait_until_dead(void)
{
	time_t end = time(NULL) + HANG_SECONDS;

	while (!mnt_is_dead(mnt.path)) {
		cr_assert_lt(time(NULL), end, "the mount does not say that its daemon is gone");
		nanosleep(&a_moment, NULL);
	}
}

/* The process whose comm is @name and whose parent is @parent (0: any); 0: there is none. */
static pid_t find_process(const char *name, pid_t parent)
{
	struct dirent *e;
	DIR *proc = opendir("/proc");
	pid_t found = 0;

	while (!found && (e = readdir(proc))) {
		char path[300], comm[32] = "", state = 0;
		int pid, ppid = 0;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%s/stat", e->d_name);
		f = e->d_name[0] >= '1' && e->d_name[0] <= '9' ? fopen(path, "re") : NULL;
		if (!f)
			continue;
		if (fscanf(f, "%d (%31[^)]) %c %d", &pid, comm, &state, &ppid) == 4 &&
		    !strcmp(comm, name) && state != 'Z' && (!parent || ppid == parent))
			found = pid;
		fclose(f);
	}
	closedir(proc);
	return found;
}

static pid_t supervisor_of_mnt(void)
{
	time_t end = time(NULL) + HANG_SECONDS;
	pid_t pid;

	/* It sets its name some time after its start. */
	while (!(pid = find_process("gaia-watch", mnt.daemon))) {
		cr_assert_lt(time(NULL), end, "there is no supervisor");
		nanosleep(&a_moment, NULL);
	}
	return pid;
}

static void wait_until_ended(pid_t pid)
{
	time_t end = time(NULL) + HANG_SECONDS;
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	while ((f = fopen(path, "re"))) {
		if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
			state = 'Z';
		fclose(f);
		if (state == 'Z')
			return;
		cr_assert_lt(time(NULL), end, "process %d does not end", pid);
		nanosleep(&a_moment, NULL);
	}
}

/* After mnt.daemon, whose supervisor that was, has been killed. In the background it logs to syslog. */
static void mount_stays_dead(pid_t supervisor, bool logs)
{
	wait_until_dead();
	/* Mounts are dead before it has acted. */
	wait_until_ended(supervisor);
	cr_assert(mountinfo_has(mnt.path), "the mount was taken away");
	cr_assert(mnt_is_dead(mnt.path));
	if (logs)
		cr_assert_eq(mnt_log_lines(&mnt, "Calls there fail"), 1);
	cr_assert_eq(mnt_log_lines(&mnt, "taken away"), 0);
}

static void make_file(const char *name)
{
	char bytes[SIZE];
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);

	memset(bytes, '.', SIZE);
	cr_assert_eq(pwrite(fd, bytes, SIZE, 0), SIZE);
	cr_assert_eq(close(fd), 0);
}

/* ---- the daemon waits for the kernel, which waits for the daemon ---- */

/* A thread of the daemon is in uninterruptible sleep. */
static bool daemon_hangs(void)
{
	char path[300], state = 0;
	bool hangs = false;
	struct dirent *e;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", mnt.daemon);
	tasks = opendir(path);
	while (!hangs && tasks && (e = readdir(tasks))) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", mnt.daemon, e->d_name);
		f = fopen(path, "re");
		if (!f)
			continue;
		if (fscanf(f, "%*d (%*[^)]) %c", &state) == 1)
			hangs = state == 'D';
		fclose(f);
	}
	if (tasks)
		closedir(tasks);
	return hangs;
}

/* Both exit with 0 when the call that hangs has failed. The first keeps the page locked: its read from the store takes hours. */
static int read_and_hang(void *arg)
{
	int fd = openat(both_root[ON_MOUNT], "f", O_RDONLY | O_DIRECT);
	void *page = mmap(NULL, 4096, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHILD_CHECK(fd >= 0 && page != MAP_FAILED);
	CHILD_CHECK(pread(fd, page, 4096, 0) == -1);
	return 0;
}

static int seek_and_hang(void *arg)
{
	static const char page[4096] = "written";
	int fd = openat(both_root[ON_MOUNT], "f", O_RDWR);

	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(pwrite(fd, page, sizeof(page), 0) == sizeof(page));
	/* To answer this, the daemon asks the kernel for the page, and so itself. */
	CHILD_CHECK(lseek(fd, 0, SEEK_HOLE) == -1);
	return 0;
}

/* A thread that serves, or that it has handed the request to, sleeps within the store. */
static void wait_until_reading(void)
{
	time_t end = time(NULL) + HANG_SECONDS;
	struct shell_result r;
	bool sleeps;

	do {
		if (time(NULL) >= end)
			threads_show(mnt.daemon, "daemon");
		cr_assert_lt(time(NULL), end, "the page is not read");
		nanosleep(&a_moment, NULL);
		/* nanosleep(2), clock_nanosleep(2) */
		r = shell_run("/", 60, "cd /proc/%d/task && for t in *; do read c < $t/comm && case $c in gaia-fuse|gaia-home|gaia-read) "
			      "cut -d' ' -f1 $t/syscall;; esac; done | grep -qxE '35|230|101|115'", mnt.daemon);
		sleeps = r.status == 0;
		shell_free(&r);
	} while (!sleeps);
}

/* Start a mount, a process that waits for its daemon, and another that the daemon waits for. */
static void hang_with(const char *faults, pid_t *reader, pid_t *who)
{
	time_t end;
	int seen = 0;

	setenv("GAIAFS_FAULTS", faults, 1);
	way_start(NULL);
	unsetenv("GAIAFS_FAULTS");
	cr_assert_eq(mknodat(mnt.backing_fd, "f", S_IFREG | 0644, 0), 0);
	cr_assert_eq(truncate(mnt_file(&mnt, "f"), SIZE), 0);
	*reader = child_start(read_and_hang, NULL);
	wait_until_reading();
	*who = child_start(seek_and_hang, NULL);
	/* Its threads sleep so for a moment at other times, too: seen once, or before it was asked, that proves nothing. */
	for (end = time(NULL) + HANG_SECONDS; seen < 50; nanosleep(&a_moment, NULL)) {
		seen = child_syscall(*who) == SYS_lseek && daemon_hangs() ? seen + 1 : 0;
		cr_assert_lt(time(NULL), end, "the daemon does not wait for itself");
	}
}

static void hang(pid_t *reader, pid_t *who)
{
	hang_with("store.read=delay:4000000000us", reader, who);
}

static void dies_while_it_hangs(int sig, bool detached)
{
	pid_t reader, who, supervisor;
	int status;

	if (!mnt_can_abort())
		WAY_SKIP("a hanging daemon: without root it needs fusectl on /sys/fs/fuse/connections");
	hang(&reader, &who);
	supervisor = supervisor_of_mnt();
	if (detached)
		cr_assert_eq(umount2(mnt.path, MNT_DETACH), 0);
	kill(mnt.daemon, sig);
	cr_assert_eq(child_wait(who), 0, "who waits for the dead daemon does not get an error");
	cr_assert_eq(child_wait(reader), 0, "who reads from it does not get an error");
	if (detached)
		cr_assert(!mountinfo_has(mnt.path));
	else
		mount_stays_dead(supervisor, true);
	both_close();
	status = mnt_wait(&mnt);
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == sig, "wait status %x", status);
	way_remount();
}

/* With writeback caching: else lseek(2) asks for nothing. */
#define HANGING(name)                                                                         \
	static void name(void);                                                               \
	Test(fault_death, name, .init = way_bare_writeback, .fini = way_clean_up,             \
	     .timeout = WAY_SECONDS)                                                          \
	{                                                                                     \
		name();                                                                       \
		way_end();                                                                    \
	}                                                                                     \
	static void name(void)

HANGING(killed_while_it_waits_for_itself_nobody_hangs)
{
	dies_while_it_hangs(SIGKILL, false);
}

/* As when a daemon is told to end while files are open, and then killed. */
HANGING(killed_when_the_mount_is_out_of_the_tree_nobody_hangs)
{
	if (geteuid() != 0)
		WAY_SKIP("lazy umount: needs root");
	dies_while_it_hangs(SIGKILL, true);
}

/* The core is dumped when all threads have stopped, which one does not. */
#ifndef __SANITIZE_ADDRESS__ /* which catches it, and exits */
HANGING(crashed_while_it_waits_for_itself_nobody_hangs)
{
	dies_while_it_hangs(SIGSEGV, false);
}
#endif

HANGING(aborted_while_it_waits_for_itself_nobody_hangs)
{
	dies_while_it_hangs(SIGABRT, false);
}

#define CONNECTIONS "/sys/fs/fuse/connections"

/* In a mount namespace where fusectl's files are others: the file that ends the connection cannot be opened. */
HANGING(killed_where_the_connection_cannot_be_ended_the_mount_is_taken_away_and_nobody_hangs)
{
	pid_t reader, who, supervisor;
	char file[sizeof(CONNECTIONS) + 12];
	struct stat st;
	int status;

	if (geteuid() != 0)
		WAY_SKIP("hiding " CONNECTIONS ": needs root");
	cr_assert(own_mounts(NULL));
	if (mount("none", CONNECTIONS, "tmpfs", 0, NULL))
		WAY_SKIP(CONNECTIONS ": %s", strerror(errno));
	/* For whatever number it gets: the daemon opens the file when it has mounted. */
	for (unsigned number = 1; number < 4096; number++) {
		snprintf(file, sizeof(file), CONNECTIONS "/%u", number);
		cr_assert_eq(mknod(file, S_IFREG | 0600, 0), 0, "%s: %s", file, strerror(errno));
	}
	hang(&reader, &who);
	supervisor = supervisor_of_mnt();
	cr_assert_eq(fstat(both_root[ON_MOUNT], &st), 0);
	cr_assert_lt(minor(st.st_dev), 4096);
	kill(mnt.daemon, SIGKILL);
	cr_assert_eq(child_wait(who), 0, "who waits for the dead daemon does not get an error");
	cr_assert_eq(child_wait(reader), 0, "who reads from it does not get an error");
	wait_until_unmounted();
	wait_until_ended(supervisor);
	both_close();
	status = mnt_wait(&mnt);
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "wait status %x", status);
	cr_assert_eq(mnt_log_lines(&mnt, "has died; what was not stored is lost, the mount is taken away"), 1);
	cr_assert_eq(mnt_log_lines(&mnt, "Calls there fail"), 0);
	way_remount();
}

/* In fault_point(), which the fault makes long. */
static void wait_until_asleep(pid_t pid)
{
	time_t end = time(NULL) + HANG_SECONDS;
	long call;

	while ((call = child_syscall(pid)) != SYS_nanosleep && call != SYS_clock_nanosleep) {
		cr_assert_lt(time(NULL), end, "process %d is in call %ld", pid, call);
		nanosleep(&a_moment, NULL);
	}
}

/* The daemon is being killed, root takes its mount away by force, and another mount gets its number before the supervisor acts. */
HANGING(killed_and_taken_away_it_does_not_take_the_next_mount_with_it)
{
	struct mnt next[16];
	static const char *const no_device[] = { "--device", "none", NULL };
	const struct mnt_options options = { .args = no_device };
	pid_t reader, who, supervisor;
	unsigned n = 0, number;
	bool same = false;
	struct stat st;

	if (geteuid() != 0)
		WAY_SKIP("umount -f: needs root");
	hang_with("store.read=delay:4000000000us;supervisor.before_abort=delay:5000000us", &reader, &who);
	supervisor = supervisor_of_mnt();
	cr_assert_eq(fstat(both_root[ON_MOUNT], &st), 0);
	number = minor(st.st_dev);
	both_close();
	kill(mnt.daemon, SIGKILL);
	wait_until_asleep(supervisor);
	cr_assert_eq(umount2(mnt.path, MNT_FORCE | MNT_DETACH), 0);
	cr_assert_eq(child_wait(who), 0);
	cr_assert_eq(child_wait(reader), 0);
	(void)mnt_wait(&mnt);
	while (!same && n < 16) {
		cr_assert_eq(mnt_start(&next[n], &options), 0);
		cr_assert_eq(stat(next[n].path, &st), 0);
		same = minor(st.st_dev) == number;
		n++;
	}
	wait_until_ended(supervisor);
	for (unsigned k = 0; k < n; k++) {
		cr_assert(!mnt_is_dead(next[k].path), "mount %u, of %u, is dead", k, n);
		cr_assert_eq(mnt_stop(&next[k]), 0);
	}
	if (!same)
		WAY_SKIP("no mount got the number");
	way_remount();
}

/* ---- in general ---- */

EACH_WAY(fault_death, the_mount_stays_and_it_is_said_once)
{
	struct actor *reader, *client;
	pid_t supervisor = supervisor_of_mnt();

	make_file("f");
	reader = actor_start("f", SIZE, NO_DEVICE);
	client = actor_start("f", SIZE, 0);
	actor_ok(client, ACQUIRE, 0, SIZE, RW);
	both_close();
	kill(mnt.daemon, SIGKILL);
	mount_stays_dead(supervisor, true);
	cr_assert_eq(actor_do(reader, FSYNC, 0, 0, 0), -ENOTCONN);
	cr_assert_eq(actor_do(client, RELEASE, 0, SIZE, 0), -ENOTCONN);
	actor_kill(reader);
	actor_kill(client);
	cr_assert_eq(mnt_log_lines(&mnt, "has died"), 1);
	mnt_wait(&mnt);
	way_remount();
}

/* Other threads serve the next requests before the thread that answered the first one goes on. */
EACH_WAY_BARE(fault_death, as_soon_as_it_answers_the_mount_stays)
{
	pid_t supervisor;

	setenv("GAIAFS_FAULTS", "mount.answered=delay:4000000000us", 1);
	way_start(NULL);
	unsetenv("GAIAFS_FAULTS");
	supervisor = supervisor_of_mnt();
	make_file("f");
	both_close();
	kill(mnt.daemon, SIGKILL);
	mount_stays_dead(supervisor, true);
	mnt_wait(&mnt);
	way_remount();
}

EACH_WAY_BARE(fault_death, in_the_background_too)
{
	struct mnt_options o = { .background = true };
	pid_t supervisor;

	cr_assert_eq(mnt_start(&mnt, &o), 0, "cannot mount");
	supervisor = supervisor_of_mnt();
	kill(mnt.daemon, SIGKILL);
	mount_stays_dead(supervisor, false);
	mnt_wait(&mnt);
	cr_assert_eq(mnt_restart(&mnt), 0);
}

EACH_WAY_BARE(fault_death, over_its_own_source_too)
{
	struct mnt_options o = { .over = true };
	pid_t supervisor;
	struct stat st;

	cr_assert_eq(mnt_start(&mnt, &o), 0, "cannot mount");
	supervisor = supervisor_of_mnt();
	shell_ok(mnt.path, "echo text > f && sync f");
	kill(mnt.daemon, SIGKILL);
	mount_stays_dead(supervisor, true);
	shell_ok("/", "! echo more > '%s/beneath' 2> /dev/null", mnt.path);
	cr_assert_eq(fstatat(mnt.backing_fd, "beneath", &st, 0), -1);
	/* The next replaces it. */
	shell_ok("/", "\"$GAIAFS\" '%s' 2> /dev/null && test \"$(cat '%s/f')\" = text && \"$GAIA\" umount '%s'", mnt.path, mnt.path,
		 mnt.path);
	cr_assert(!mountinfo_has(mnt.path), "the dead mount was covered");
	mnt_wait(&mnt);
	cr_assert_eq(mnt_restart(&mnt), 0);
}

EACH_WAY_BARE(fault_death, told_to_the_supervisor_takes_the_mount_away)
{
	static const char *const args[] = { "--supervisor", "unmount", NULL };

	pid_t supervisor;

	way_start(args);
	supervisor = supervisor_of_mnt();
	both_close();
	kill(mnt.daemon, SIGKILL);
	wait_until_unmounted();
	wait_until_ended(supervisor);
	mnt_wait(&mnt);
	cr_assert_eq(mnt_log_lines(&mnt, "taken away"), 1);
	way_remount();
}

/* By name, as loops in shells do. Ends when it was told that the daemon is dead, and has tried after that. */
static int append_again_and_again(void *arg)
{
	const struct gate *dead = arg;
	struct pollfd p = { .fd = dead->fd, .events = POLLIN };
	bool last = false;
	const char *path = mnt_file(&mnt, "log");
	int fd;

	while (!last) {
		last = poll(&p, 1, 0) == 1;
		fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
		CHILD_CHECK(fd >= 0 || errno == ENOTCONN || errno == ECONNABORTED);
		CHILD_CHECK(!last || fd < 0);
		if (fd < 0)
			continue;
		(void)!write(fd, "line\n", 5);
		close(fd);
	}
	return 0;
}

EACH_WAY(fault_death, nobody_writes_beneath)
{
	struct gate dead = gate_make();
	pid_t supervisor = supervisor_of_mnt(), who = child_start(append_again_and_again, &dead);
	struct stat st = { 0 };
	time_t end;

	for (end = time(NULL) + HANG_SECONDS; fstatat(both_root[ON_MOUNT], "log", &st, 0) || !st.st_size; nanosleep(&a_moment, NULL))
		cr_assert_lt(time(NULL), end, "nothing is appended");
	both_close();
	kill(mnt.daemon, SIGKILL);
	mount_stays_dead(supervisor, true);
	gate_open(dead);
	cr_assert_eq(child_wait(who), 0, "what is appended to a file of a dead mount goes elsewhere, or it hangs");
	mnt_wait(&mnt);
	cr_assert(!mountinfo_has(mnt.path));
	shell_ok("/", "test -z \"$(ls -A '%s')\"", mnt.path);
}

/* Only the daemon's end makes the supervisor act, or end. */
EACH_WAY(fault_death, signals_to_the_supervisor_change_nothing)
{
	static const int signals[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM,
				       SIGCHLD };
	pid_t supervisor = supervisor_of_mnt();

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		kill(supervisor, signals[i]);
	make_file("f");
	cr_assert(mountinfo_has(mnt.path));
	cr_assert_eq(supervisor_of_mnt(), supervisor);
	/* Nor has it forgotten what it is for. */
	both_close();
	kill(mnt.daemon, SIGKILL);
	mount_stays_dead(supervisor, true);
	mnt_wait(&mnt);
}

EACH_WAY(fault_death, the_supervisor_is_out_of_reach_of_the_terminal)
{
	pid_t supervisor = supervisor_of_mnt();

	cr_assert_eq(getsid(supervisor), supervisor);
	cr_assert_eq(getpgid(supervisor), supervisor);
}

/* Of the source it has one descriptor, and the lock. */
static bool may_be_open(const char *link)
{
	return !strcmp(link, "/dev/null") || !strcmp(link, mnt.backing) || !strcmp(link, mnt.log) || !strncmp(link, "/run/gaiafs/source-", 19) ||
	       !strncmp(link, "anon_inode:[pidfd", 17) || !strncmp(link, "pidfd:", 6) || !strncmp(link, "socket:", 7);
}

/* Something that the process has open and may not have: into @link. False: nothing. */
static bool has_more_open(pid_t pid, char link[PATH_MAX])
{
	bool found = false;
	char path[300];
	struct dirent *e;
	DIR *fds;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	fds = opendir(path);
	cr_assert_not_null(fds);
	while (!found && (e = readdir(fds))) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/%d/fd/%s", pid, e->d_name);
		n = readlink(path, link, PATH_MAX - 1);
		if (n < 0)
			continue; /* . and .. */
		link[n] = '\0';
		found = !may_be_open(link);
	}
	closedir(fds);
	return found;
}

EACH_WAY(fault_death, the_supervisor_keeps_nothing_of_the_mount_open)
{
	char path[300], link[PATH_MAX];
	pid_t supervisor = supervisor_of_mnt();
	time_t end = time(NULL) + HANG_SECONDS;
	ssize_t n;

	/* It closes what it has inherited some time after it has its name. */
	while (has_more_open(supervisor, link)) {
		cr_assert_lt(time(NULL), end, "the supervisor has %s open", link);
		nanosleep(&a_moment, NULL);
	}
	snprintf(path, sizeof(path), "/proc/%d/cwd", supervisor);
	n = readlink(path, link, sizeof(link) - 1);
	cr_assert(n == 1 && link[0] == '/', "its directory is not /");
}

EACH_WAY(fault_death, a_clean_end_ends_the_supervisor)
{
	pid_t supervisor = supervisor_of_mnt();

	way_unmount();
	wait_until_ended(supervisor);
	cr_assert_eq(mnt_log_lines(&mnt, "has died"), 0);
}

EACH_WAY_BARE(fault_death, without_a_supervisor_there_is_none)
{
	static const char *const args[] = { "--supervisor", "off", NULL };

	way_start(args);
	cr_assert_eq(find_process("gaia-watch", mnt.daemon), 0);
}

/* The lock on the source passes to the next only when the supervisor is done: it cannot take
 * away the wrong mount, however quickly the next comes. */
EACH_WAY(fault_death, the_next_mount_may_come_at_once)
{
	for (int round = 0; round < 10; round++) {
		pid_t supervisor = supervisor_of_mnt();

		both_close();
		kill(supervisor, SIGSTOP);
		mnt_crash(&mnt);
		kill(supervisor, SIGCONT);
		way_remount();
		wait_until_ended(supervisor);
		cr_assert(mountinfo_has(mnt.path), "the mount of the next was taken away");
		make_file("f");
	}
}

/* ---- while it starts ---- */

/* Wherever in its start the daemon dies, nothing is left. */
EACH_WAY_BARE(fault_death, killed_while_it_starts_it_leaves_nothing)
{
	uint64_t random = 88172645463325252;
	const char *gaiafs;

	way_start(NULL);
	both_close();
	cr_assert_eq(mnt_unmount(&mnt), 0);
	cr_assert(!mountinfo_has(mnt.path));
	gaiafs = getenv("GAIAFS"); /* shell.h sets it */
	cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	for (int i = 0; i < 30; i++) {
		pid_t daemon = fork();

		if (!daemon) {
			int null = open("/dev/null", O_RDWR);

			dup2(null, 2);
			/* Without this, a mount that was live would stay. */
			execl(gaiafs, "gaiafs", "-f", "--supervisor", "unmount", mnt.backing, mnt.path, NULL);
			_exit(127);
		}
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		nanosleep(&(struct timespec){ .tv_nsec = (long)(random % 30000000) }, NULL);
		kill(daemon, SIGKILL);
		/* The supervisor becomes our child, if there is one, and ends. */
		while (waitpid(-1, NULL, 0) > 0)
			;
		cr_assert(!mountinfo_has(mnt.path), "round %d: a mount is left", i);
	}
	way_remount();
}

/* ---- a user's own mount ---- */

/* @arg: what gaiafs(8) is given, and the mount point, with nothing mounted there before. */
static int dies_as_user(void *arg)
{
	const char *const *dirs = arg;
	struct shell_result r;
	int fd;

	/* Otherwise the supervisor of a daemon that is slow to die takes the mount away. */
	if (geteuid() == 0) {
		CHILD_CHECK(own_mounts(NULL));
		mount("none", CONNECTIONS, "fusectl", 0, NULL);
		child_become(65534, 65534);
	}
	if (!mnt_can_abort())
		return 77;
	fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return 77;
	close(fd);
	r = shell_run(mnt.dir, 60,
		      "set -e; cd mine; mkdir b m; dirs='%s'; m=%s; \"$GAIAFS\" $dirs; echo text > $m/f; sync $m/f\n"
		      "pid=$(\"$GAIA\" status $m | sed -n 's/^pid *//p'); kill -9 $pid\n"
		      "n=0; until LC_ALL=C stat -f $m 2>&1 | grep -q 'not connected\\|connection abort'; do\n"
		      "  n=$((n + 1)); test $n -lt 2000; sleep 0.02; done\n"
		      "if echo more 2> /dev/null > $m/beneath; then echo written beneath; exit 1; fi\n"
		      "\"$GAIAFS\" $dirs; test \"$(cat $m/f)\" = text; test ! -e $m/beneath\n"
		      /* It has replaced the dead one: there is one to be taken away. */
		      "test $(grep -cF \" $PWD/$m \" /proc/self/mountinfo) = 1; \"$GAIA\" umount $m\n"
		      "if grep -F \" $PWD/$m \" /proc/self/mountinfo; then exit 1; fi; test \"$(cat b/f)\" = text", dirs[0], dirs[1]);
	if (r.status)
		fprintf(stderr, "%s%s", r.out, r.err);
	return r.status != 0;
}

static void users_mount_is_replaced(const char *given, const char *point)
{
	const char *dirs[] = { given, point };
	char mine[PATH_MAX];

	snprintf(mine, sizeof(mine), "%s/mine", mnt.dir);
	cr_assert_eq(mkdir(mine, 0755), 0);
	cr_assert_eq(chmod(mine, 0777), 0);
	switch (child_run(dies_as_user, dirs)) {
	case 0:
		way_end();
		break;
	case 77:
		WAY_SKIP("a user's own mount: /dev/fuse is not open to all, or there is no fusectl on " CONNECTIONS);
		break;
	default:
		cr_assert_fail("a user's mount was not replaced");
	}
}

Test(fault_death, of_a_users_own_daemon, .init = way_init_writeback, .fini = way_clean_up,
     .timeout = WAY_SECONDS)
{
	users_mount_is_replaced("b m", "m");
}

Test(fault_death, of_a_users_own_daemon_over_its_source, .init = way_init_writeback, .fini = way_clean_up,
     .timeout = WAY_SECONDS)
{
	users_mount_is_replaced("b", "b");
}
