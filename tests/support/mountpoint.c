#include "mountpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FUSE_MAGIC 0x65735546
#define FUSECTL_MAGIC 0x65735543
#define MAX_ARGS 64
#define START_SECONDS 60
#define EXIT_SECONDS 60
#define BUSY_TRIES 200		/* 10 ms each */
#define PATIENCE_SECONDS 2	/* before looking for who else has the mount */

static int pidfd_open_(pid_t pid)
{
	return (int)syscall(SYS_pidfd_open, pid, 0);
}

static int run_quietly(const char *const *argv)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return -1;
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, 0);
		dup2(null, 1);
		dup2(null, 2);
		execvp(argv[0], (char *const *)argv);
		_exit(127);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return status ? -1 : 0;
}

/* Close the descriptors from @first to below @end. */
static void close_between(int first, int end)
{
	if (first < end)
		syscall(SYS_close_range, first, end - 1, 0);
}

/* In place: the kernel's table has blanks and the like as \ooo. */
static void unescape(char *s)
{
	char *out = s;
	unsigned c;
	int n;

	while (*s) {
		if (*s == '\\' && sscanf(s, "\\%3o%n", &c, &n) == 1) {
			*out++ = (char)c;
			s += n;
		} else {
			*out++ = *s++;
		}
	}
	*out = '\0';
}

/* Asks a process's table, not the file system, which may be dead and hang. */
static bool is_mounted_for(const char *table, const char *path)
{
	char line[PATH_MAX + 512], where[PATH_MAX];
	bool found = false;
	FILE *f = fopen(table, "re");

	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f))
		if (sscanf(line, "%*s %*s %*s %*s %4095s", where) == 1) {
			unescape(where);
			found = strcmp(where, path) == 0;
		}
	fclose(f);
	return found;
}

static bool is_mounted(const char *path)
{
	return is_mounted_for("/proc/self/mountinfo", path);
}

/*
 * A mount namespace that somebody on this machine made meanwhile (a service, a container, another
 * run of the tests) has a copy of every mount, and keeps the file system alive after our umount. Whether
 * there is one that we may look into.
 */
static bool is_mounted_elsewhere(const char *path)
{
	DIR *proc = opendir("/proc");
	bool found = false;
	struct dirent *e;
	char table[64];

	while (proc && !found && (e = readdir(proc))) {
		snprintf(table, sizeof(table), "/proc/%.20s/mountinfo", e->d_name);
		found = e->d_name[0] >= '1' && e->d_name[0] <= '9' && is_mounted_for(table, path);
	}
	if (proc)
		closedir(proc);
	return found;
}

/* Take the mount away, whatever state it is in. */
static void detach(const char *path)
{
	const char *fusermount[] = { "fusermount3", "-u", "-z", "-q", path, NULL };

	for (int tries = 0; tries < 16 && is_mounted(path); tries++)
		if (umount2(path, MNT_FORCE | MNT_DETACH | UMOUNT_NOFOLLOW))
			run_quietly(fusermount);
}

static int unlink_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)ftw;
	return type == FTW_DP || type == FTW_DNR ? rmdir(path) : unlink(path);
}

static void remove_tree(const char *dir)
{
	/* FTW_MOUNT: if the mount could not be taken away, stay out of it. */
	nftw(dir, unlink_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* Milliseconds until @deadline (CLOCK_MONOTONIC seconds), not below 0. */
static int ms_left(time_t deadline)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec >= deadline ? 0 : (int)(deadline - now.tv_sec) * 1000;
}

static time_t deadline_in(int seconds)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + seconds;
}

/* ---- the guard ---- */

static _Noreturn void guard_main(const struct mnt *m, int owner, int daemon)
{
	struct pollfd p = { .fd = owner, .events = POLLIN };
	sigset_t all;
	int null = open("/dev/null", O_RDWR);

	/* Outside the group that a test runner kills, deaf to signals, and with nobody's pipes open. */
	setsid();
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	dup2(null, 0);
	dup2(null, 1);
	dup2(null, 2);
	close_between(3, owner < daemon ? owner : daemon);
	close_between(owner < daemon ? owner + 1 : daemon + 1, owner < daemon ? daemon : owner);
	close_between(owner < daemon ? daemon + 1 : owner + 1, INT_MAX);

	while (poll(&p, 1, -1) < 0)
		;
	syscall(SYS_pidfd_send_signal, daemon, SIGKILL, NULL, 0);
	detach(m->path);
	p.fd = daemon;
	poll(&p, 1, EXIT_SECONDS * 1000);
	detach(m->path);
	remove_tree(m->dir);
	_exit(0);
}

static int guard_start(struct mnt *m)
{
	int owner = pidfd_open_(getpid());
	int daemon = pidfd_open_(m->daemon);
	int err = 0;

	if (owner < 0 || daemon < 0) {
		err = -1;
		goto close_fds;
	}
	m->guard = fork();
	if (m->guard == 0)
		guard_main(m, owner, daemon);
	if (m->guard < 0) {
		m->guard = 0;
		err = -1;
	}
close_fds:
	if (owner >= 0)
		close(owner);
	if (daemon >= 0)
		close(daemon);
	return err;
}

static void guard_end(struct mnt *m)
{
	if (!m->guard)
		return;
	kill(m->guard, SIGKILL);
	while (waitpid(m->guard, NULL, 0) < 0 && errno == EINTR)
		;
	m->guard = 0;
}

/* ---- the daemon ---- */

static const char *binary(const struct mnt *m)
{
	const char *path = m->options.gaiafs ? m->options.gaiafs : getenv("GAIAFS");

	return path ? path : GAIAFS_BUILT;
}

static bool says_age(const char *const *args)
{
	for (; args && *args; args++)
		if (!strcmp(*args, "--writeback-age") || !strcmp(*args, "--device-age"))
			return true;
	return false;
}

static _Noreturn void exec_daemon(const struct mnt *m)
{
	const char *argv[MAX_ARGS + 10];
	sigset_t none;
	int n = 0, out, in;

	argv[n++] = binary(m);
	if (!m->options.background)
		argv[n++] = "-f";
	/* What a test's device has released stays there until it is asked for, however slow the machine. */
	if (!says_age(m->options.args)) {
		argv[n++] = "--device-age";
		argv[n++] = "3600";
	}
	for (int i = 0; m->options.args && m->options.args[i] && i < MAX_ARGS; i++)
		argv[n++] = m->options.args[i];
	argv[n++] = m->backing;
	if (!m->options.over)
		argv[n++] = m->path;
	argv[n] = NULL;

	in = open("/dev/null", O_RDONLY);
	out = open(m->log, O_WRONLY | O_APPEND | O_CREAT, 0644);
	dup2(in, 0);
	dup2(out, 1);
	dup2(out, 2);
	/* The daemon inherits nothing that the test has open. */
	close_between(3, INT_MAX);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execv(argv[0], (char *const *)argv);
	fprintf(stderr, "cannot run %s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

/* The exit status of @pid when it comes within the time; -1: it did not. */
static int wait_exit(pid_t pid, int seconds)
{
	time_t deadline = deadline_in(seconds);
	struct pollfd p = { .fd = pidfd_open_(pid), .events = POLLIN };
	int status, got = 0;

	while (p.fd >= 0 && got == 0 && ms_left(deadline) > 0)
		got = poll(&p, 1, ms_left(deadline)) > 0;
	if (p.fd >= 0)
		close(p.fd);
	if (!got || waitpid(pid, &status, 0) != pid)
		return -1;
	return status;
}

/* The child that the command, which has exited, left running: it became ours. */
static pid_t find_orphan(const char *exe)
{
	char path[64], want[PATH_MAX], is[PATH_MAX];
	pid_t found = 0;
	FILE *f;
	int pid;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
	f = fopen(path, "re");
	if (!f || !realpath(exe, want)) {
		if (f)
			fclose(f);
		return 0;
	}
	while (!found && fscanf(f, "%d", &pid) == 1) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/%d/exe", pid);
		n = readlink(path, is, sizeof(is) - 1);
		if (n < 0)
			continue;
		is[n] = '\0';
		if (strcmp(is, want) == 0)
			found = pid;
	}
	fclose(f);
	return found;
}

/* Wait until the mount answers, or the daemon has ended. */
static int wait_live(struct mnt *m)
{
	time_t deadline = deadline_in(START_SECONDS);
	const struct timespec pause = { .tv_nsec = 2000000 };
	struct statfs sfs;
	int status;

	do {
		/* statfs(2) of the mount waits for the daemon's first answers. */
		if (is_mounted(m->path) && statfs(m->path, &sfs) == 0 && sfs.f_type == FUSE_MAGIC)
			return 0;
		if (waitpid(m->daemon, &status, WNOHANG) == m->daemon) {
			m->daemon = 0;
			return -1;
		}
		nanosleep(&pause, NULL);
	} while (ms_left(deadline) > 0);
	return -1;
}

static void kill_daemon(struct mnt *m)
{
	if (!m->daemon)
		return;
	kill(m->daemon, SIGKILL);
	/* While it is dying, the processes it served hang, and it may wait for them: abort the mount. */
	detach(m->path);
	while (waitpid(m->daemon, NULL, 0) < 0 && errno == EINTR)
		;
	m->daemon = 0;
}

static int launch(struct mnt *m)
{
	int status;

	if (m->options.background)
		prctl(PR_SET_CHILD_SUBREAPER, 1);
	m->daemon = fork();
	if (m->daemon < 0) {
		m->daemon = 0;
		return -1;
	}
	if (m->daemon == 0)
		exec_daemon(m);
	if (guard_start(m))
		goto fail;
	if (m->options.background) {
		status = wait_exit(m->daemon, START_SECONDS);
		if (status == 0)
			m->daemon = find_orphan(binary(m));
		else if (status != -1)
			m->daemon = 0;
		/* The guard knew the command only, which is gone. */
		guard_end(m);
		if (status != 0 || !m->daemon || guard_start(m) || !is_mounted(m->path))
			goto fail;
	}
	if (wait_live(m))
		goto fail;
	return 0;

fail:
	fprintf(stderr, "mount: %s did not come up:\n", binary(m));
	kill_daemon(m);
	detach(m->path);
	guard_end(m);
	mnt_show_log(m);
	return -1;
}

/* ---- the interface ---- */

static int make_dirs(struct mnt *m, const struct mnt_options *o)
{
	const char *tmp = getenv("TMPDIR");
	char template[sizeof(m->dir)];

	snprintf(template, sizeof(template), "%s/gaia-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (!mkdtemp(template))
		return -1;
	/* As the kernel's mount table has it. */
	if (!realpath(template, m->backing) || strlen(m->backing) >= sizeof(m->dir))
		return -1;
	strcpy(m->dir, m->backing);
	snprintf(m->log, sizeof(m->log), "%s/log", m->dir);
	if (o->backing) {
		if (!realpath(o->backing, m->backing))
			return -1;
	} else {
		snprintf(m->backing, sizeof(m->backing), "%s/backing", m->dir);
		if (mkdir(m->backing, 0755))
			return -1;
	}
	if (o->over) {
		strcpy(m->path, m->backing);
	} else {
		snprintf(m->path, sizeof(m->path), "%s/mnt", m->dir);
		if (mkdir(m->path, 0755))
			return -1;
	}
	/* Unprivileged users of the mount must get there. */
	return chmod(m->dir, 0755);
}

int mnt_start(struct mnt *m, const struct mnt_options *options)
{
	memset(m, 0, sizeof(*m));
	m->options = *options;
	m->backing_fd = -1;
	if (make_dirs(m, options)) {
		fprintf(stderr, "mount: cannot make directories below $TMPDIR: %s\n",
			strerror(errno));
		goto remove;
	}
	m->backing_fd = open(m->backing, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (m->backing_fd < 0) {
		fprintf(stderr, "mount: open %s: %s\n", m->backing, strerror(errno));
		goto remove;
	}
	if (launch(m))
		goto close_backing;
	return 0;

close_backing:
	close(m->backing_fd);
	m->backing_fd = -1;
remove:
	if (m->dir[0])
		remove_tree(m->dir);
	return -1;
}

int mnt_wait(struct mnt *m)
{
	int status = wait_exit(m->daemon, PATIENCE_SECONDS);

	if (status == -1) {
		/* A copy of the mount keeps the daemon: it ends when it is told to. */
		if (!is_mounted(m->path) && is_mounted_elsewhere(m->path))
			kill(m->daemon, SIGTERM);
		status = wait_exit(m->daemon, EXIT_SECONDS);
	}
	if (status == -1) {
		fprintf(stderr, "mount: the daemon did not end; its log:\n");
		mnt_show_log(m);
		kill_daemon(m);
	}
	m->daemon = 0;
	detach(m->path);
	guard_end(m);
	return status;
}

static int unmount_once(struct mnt *m)
{
	const char *fusermount[] = { "fusermount3", "-u", m->path, NULL };
	int err = umount2(m->path, UMOUNT_NOFOLLOW);

	if (err && errno == EPERM) {
		err = run_quietly(fusermount);
		errno = EBUSY; /* it does not say why */
	}
	return err;
}

int mnt_unmount(struct mnt *m)
{
	int err;

	if (!m->daemon)
		return -1;
	/* A program that looks at all mounts of the machine makes them busy for a moment; and so does a guard that has just begun. */
	for (unsigned tries = 0; (err = unmount_once(m)) && errno == EBUSY; tries++) {
		if (tries == BUSY_TRIES)
			break;
		usleep(10000);
	}
	if (err) {
		fprintf(stderr, "mount: cannot unmount %s: %s\n", m->path, strerror(errno));
		detach(m->path);
		err = -1;
	}
	switch (mnt_wait(m)) {
	case 0:
		return err;
	case -1:
		return -1;
	default:
		fprintf(stderr, "mount: the daemon failed; its log:\n");
		mnt_show_log(m);
		return -1;
	}
}

void mnt_crash(struct mnt *m)
{
	kill_daemon(m);
	detach(m->path);
	guard_end(m);
}

int mnt_restart(struct mnt *m)
{
	return launch(m);
}

int mnt_stop(struct mnt *m)
{
	int err = 0;

	if (m->daemon)
		err = mnt_unmount(m);
	if (m->backing_fd >= 0)
		close(m->backing_fd);
	m->backing_fd = -1;
	if (m->dir[0])
		remove_tree(m->dir);
	m->dir[0] = '\0';
	return err;
}

/* The new daemon was the old one's child, and becomes ours. */
int mnt_adopt(struct mnt *m)
{
	int status = wait_exit(m->daemon, EXIT_SECONDS);

	guard_end(m);
	m->daemon = status == 0 ? find_orphan(binary(m)) : 0;
	if (m->daemon && !guard_start(m))
		return 0;
	fprintf(stderr, "mount: after the upgrade: the old daemon's status is %x; the log:\n", (unsigned)status);
	mnt_show_log(m);
	return -1;
}

void mnt_may_adopt(void)
{
	prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int mnt_upgrade(struct mnt *m, const char *option, char said[512])
{
	char command[2 * PATH_MAX];
	size_t n = 0;
	int status;
	FILE *f;

	mnt_may_adopt();
	snprintf(command, sizeof(command), "exec '%s' --upgrade %s '%s' 2>&1", binary(m), option ? option : "", m->path);
	f = popen(command, "re");
	if (!f)
		return -1;
	if (said)
		n = fread(said, 1, 511, f);
	if (said)
		said[n] = '\0';
	status = pclose(f);
	if (status)
		return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	return mnt_adopt(m);
}

bool mnt_can_abort(void)
{
	struct statfs sfs;

	return geteuid() == 0 || (statfs("/sys/fs/fuse/connections", &sfs) == 0 &&
				  sfs.f_type == FUSECTL_MAGIC);
}

bool mnt_is_dead(const char *path)
{
	struct statfs sfs;

	if (statfs(path, &sfs))
		return errno == ENOTCONN || errno == ECONNABORTED;
	return sfs.f_type != FUSE_MAGIC;
}

int mnt_log_lines(const struct mnt *m, const char *text)
{
	FILE *log = fopen(m->log, "re");
	char line[4096];
	int n = 0;

	while (log && fgets(line, sizeof(line), log))
		n += strstr(line, text) != NULL;
	if (log)
		fclose(log);
	return n;
}

void mnt_show_log(const struct mnt *m)
{
	char line[4096];
	FILE *f = fopen(m->log, "re");

	if (!f)
		return;
	while (fgets(line, sizeof(line), f))
		fputs(line, stderr);
	fclose(f);
}

bool mnt_has_thread(const struct mnt *m, const char *name)
{
	char path[300], is[32];
	struct dirent *e;
	bool has = false;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)m->daemon);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", (int)m->daemon, e->d_name);
		f = fopen(path, "re");
		if (f && fgets(is, sizeof(is), f))
			has |= !strncmp(is, name, strlen(name)) && is[strlen(name)] == '\n';
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return has;
}

/* What `gaia status` says of it: the rest of the line. */
static int status_of(const struct mnt *m, const char *what, char rest[64])
{
	const char *gaia = getenv("GAIA"), *at;
	char command[2 * PATH_MAX], line[512], before[64];
	int err = -1;
	FILE *f;

	snprintf(before, sizeof(before), "\"%s\": ", what);
	snprintf(command, sizeof(command), "exec '%s' status --json '%s'", gaia ? gaia : GAIA_BUILT, m->path);
	f = popen(command, "re");
	while (f && fgets(line, sizeof(line), f)) {
		at = strstr(line, before);
		if (at) {
			snprintf(rest, 64, "%.63s", at + strlen(before));
			err = 0;
		}
	}
	if (f && pclose(f))
		err = -1;
	return err;
}

int mnt_says(const struct mnt *m, const char *what, char word[16])
{
	char rest[64];

	return !status_of(m, what, rest) && sscanf(rest, "\"%15[a-z]", word) == 1 ? 0 : -1;
}

long mnt_number(const struct mnt *m, const char *what)
{
	char rest[64];
	long n;

	return !status_of(m, what, rest) && sscanf(rest, "%ld", &n) == 1 ? n : -1;
}

const char *mnt_file(const struct mnt *m, const char *name)
{
	static char buf[4][PATH_MAX];
	static unsigned turn;
	char *out = buf[turn++ % 4];

	if ((size_t)snprintf(out, PATH_MAX, "%s/%s", m->path, name) >= PATH_MAX)
		out[0] = '\0';
	return out;
}
