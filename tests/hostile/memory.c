/*
 * memory.c - the daemon in a memory cgroup, as in a container, with all those at a time who fill what it keeps or take as much as
 * there is. It is not killed for want of memory, and answers.
 *
 * The test makes the group: version 2 where that has the memory controller, else version 1.
 */
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "attackers.h"
#include "gaia/client.h"
#include "hostile.h"
#include "report.h"

#define LIMIT "268435456"
#define FILLED (288ul << 20) /* more than all of it */

/* ---- the group ---- */

static struct {
	char path[PATH_MAX], former[PATH_MAX]; /* the daemon's, and the test's */
	bool v1;
} group;

static bool put(const char *dir, const char *file, const char *text)
{
	char path[PATH_MAX + 32];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : write(fd, text, strlen(text));
	if (fd >= 0)
		close(fd);
	return n >= 0;
}

/* The number after the word "oom_kill" that begins a line; -1: there is none. */
static long oom_kills(void)
{
	char path[PATH_MAX + 32], line[256];
	long n = -1;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", group.path, group.v1 ? "memory.oom_control" : "memory.events");
	f = fopen(path, "re");
	while (f && n < 0 && fgets(line, sizeof(line), f))
		if (sscanf(line, "oom_kill %ld", &n) != 1)
			n = -1;
	if (f)
		fclose(f);
	return n;
}

/* The test's group in the hierarchy whose line of /proc/self/cgroup has @controllers. */
static bool find_former(const char *controllers, const char *mount)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	char line[PATH_MAX], *list, *at;
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		list = strchr(line, ':');
		at = list ? strchr(list + 1, ':') : NULL;
		if (!at)
			continue;
		*at++ = '\0';
		found = !strcmp(list + 1, controllers);
		if (found)
			snprintf(group.former, sizeof(group.former), "%.1000s%.2000s", mount, strcmp(at, "/") ? at : "");
	}
	if (f)
		fclose(f);
	return found && !access(group.former, F_OK);
}

static bool make_group_in(const char *dir, const char *limit_file)
{
	struct timespec now;

	/* Process ids are small in a namespace of their own, and there may be several. */
	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(group.path, sizeof(group.path), "%.3500s/gaia-test-%d-%lld-%09ld", dir, getpid(), (long long)now.tv_sec, now.tv_nsec);
	if (mkdir(group.path, 0755))
		return false;
	if (put(group.path, limit_file, LIMIT))
		return true;
	rmdir(group.path);
	return false;
}

/* Groups with processes have none below them that are limited: so it is made beside, or above. */
static bool make_v2(const char *mount)
{
	char dir[PATH_MAX], control[PATH_MAX + 32], list[256], *slash;
	bool has;
	FILE *f;

	if (!find_former("", mount))
		return false;
	snprintf(dir, sizeof(dir), "%s", group.former);
	for (;;) {
		snprintf(control, sizeof(control), "%s/cgroup.subtree_control", dir);
		f = fopen(control, "re");
		has = f && fgets(list, sizeof(list), f) && strstr(list, "memory");
		if (f)
			fclose(f);
		if (has)
			break;
		slash = strrchr(dir, '/');
		if (!slash || strlen(dir) <= strlen(mount))
			return false;
		*slash = '\0';
	}
	if (!make_group_in(dir, "memory.max"))
		return false;
	if (put(group.path, "memory.swap.max", "0") || errno == ENOENT)
		return true;
	rmdir(group.path);
	return false;
}

static bool make_v1(void)
{
	group.v1 = find_former("memory", "/sys/fs/cgroup/memory") && make_group_in(group.former, "memory.limit_in_bytes");
	return group.v1;
}

/* A process that removes the group when the test has ended, in whatever way, and its daemon, too. */
static void remove_group_later(void)
{
	struct pollfd test = { .fd = (int)syscall(SYS_pidfd_open, getpid(), 0), .events = POLLIN };

	cr_assert_geq(test.fd, 0);
	if (fork()) {
		close(test.fd);
		return;
	}
	setsid();
	/* Criterion waits for the end of its pipes. */
	dup2(test.fd, 0);
	syscall(SYS_close_range, 1, ~0u, 0);
	test.fd = 0;
	poll(&test, 1, -1);
	for (int n = 0; rmdir(group.path) && errno == EBUSY && n < 6000; n++)
		usleep(10000);
	_exit(0);
}

/* Mount, with the daemon in the group. What others do for the test is not the daemon's memory. */
static void start_in_group(const char *const *args)
{
	if (geteuid())
		WAY_SKIP("needs root, to be another user as well");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	WAY_SKIP("sanitizers take more memory than the group has");
#endif
	if (!make_v2("/sys/fs/cgroup") && !make_v2("/sys/fs/cgroup/unified") && !make_v1())
		WAY_SKIP("no memory cgroup can be made here (%s): %s", group.path, strerror(errno));
	remove_group_later();
	if (!put(group.path, "cgroup.procs", "0"))
		WAY_SKIP("%s cannot be entered: %s", group.path, strerror(errno));
	hostile_start(args);
	cr_assert(put(group.former, "cgroup.procs", "0"), "%s: %s", group.former, strerror(errno));
	cr_assert_eq(oom_kills(), 0);
}

/* ---- the attackers: each a user of its own, until it has done so much, or gets no more ---- */

static const struct attacker {
	const char *name;
	int (*fn)(void *);
	int enough;
	const char *file; /* its own */
} attackers[] = {
	{ "pages that fill home", fill_home, FILLED / GAIA_PAGE, "filled" },
	{ "pages that are merged", fill_with_twins, 2048, "twins" },
	{ "fsyncs", flood_with_fsyncs, 100, "synced" },
	{ "clients", take_clients, INT_MAX, NULL },
	{ "mappings", take_mappings, 1000, NULL },
	{ "pins", take_pins, 1000, NULL },
	{ "directories", take_directories, 1000, NULL },
	{ "files without a name", take_nameless_files_by_four, 200, NULL },
};
#define ATTACKERS (sizeof(attackers) / sizeof(attackers[0]))

static volatile struct shared *of; /* each */

static bool is_enough(size_t i)
{
	return of[i].error || of[i].count >= attackers[i].enough;
}

static bool has_ended(pid_t pid)
{
	siginfo_t info = { 0 };

	return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid;
}

static void make_files(void)
{
	int fd;

	for (size_t i = 0; i < ATTACKERS; i++) {
		if (!attackers[i].file)
			continue;
		/* Where the kernel serves a file the daemon keeps nothing of it. */
		way_make_cached(attackers[i].file);
		fd = hostile_file(attackers[i].file, attackers[i].fn == fill_with_twins ? FLOOD_BYTES : 0);
		cr_assert_eq(fchown(fd, NOBODY - (uid_t)i, NOBODY), 0);
		close(fd);
	}
	close(hostile_file("f", GAIA_CHUNK));
	cr_assert_eq(mkdir(mnt_file(&mnt, "open"), 0755), 0);
	cr_assert_eq(chmod(mnt_file(&mnt, "open"), 01777), 0);
}

#define ATTACK_SECONDS 60 /* on a machine that is too busy they do less */

static void wait_for_all(const pid_t *pid)
{
	time_t end = time(NULL) + ATTACK_SECONDS;

	for (size_t i = 0; i < ATTACKERS; i++) {
		while (!is_enough(i) && (of[i].count == 0 || time(NULL) < end)) {
			cr_assert_eq(oom_kills(), 0, "killed for want of memory");
			cr_assert(!has_ended(pid[i]), "%s has ended, at %d", attackers[i].name, of[i].count);
			usleep(1000);
		}
		cr_assert_gt(of[i].count, 0, "%s: there were none", attackers[i].name);
	}
	cr_assert_eq(oom_kills(), 0, "killed for want of memory");
}

static void root_is_served(void)
{
	int fd = hostile_file("roots", GAIA_CHUNK);
	char *p = gaia_mmap(GAIA_CHUNK, PROT_READ | PROT_WRITE, fd, 0, 0), byte = 0;

	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	cr_assert_eq(pwrite(fd, "r", 1, 0), 1, "%s", strerror(errno));
	cr_assert_eq(gaia_acquire(p, GAIA_CHUNK, PROT_READ | PROT_WRITE), 0, "%s", strerror(errno));
	cr_assert_eq(p[0], 'r');
	p[1] = 'd';
	cr_assert_eq(gaia_release(p, GAIA_CHUNK), 0, "%s", strerror(errno));
	cr_assert_eq(pread(fd, &byte, 1, 1), 1, "%s", strerror(errno));
	cr_assert_eq(byte, 'd');
	cr_assert_eq(gaia_munmap(p, GAIA_CHUNK), 0);
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	cr_assert_geq(STATUS("home", "used"), 0);
	close(fd);
}

EACH_WAY_BARE(memory, is_enough_in_a_small_group)
{
	static const char *const args[] = { "--device", "sim:32M,count=2", "--home", "32M", NULL };
	pid_t pid[ATTACKERS];

	start_in_group(args);
	of = mmap(NULL, ATTACKERS * sizeof(*of), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(of, MAP_FAILED);
	fill_bytes = FILLED;
	make_files();
	for (size_t i = 0; i < ATTACKERS; i++) {
		shared = &of[i];
		hostile_uid = NOBODY - (uid_t)i;
		pid[i] = child_start(attackers[i].fn, NULL);
	}
	wait_for_all(pid);
	root_is_served();
	for (size_t i = 0; i < ATTACKERS; i++)
		child_kill(pid[i]);
	root_is_served();
	way_end();
	cr_assert_eq(oom_kills(), 0, "killed for want of memory, when all was over");
}
