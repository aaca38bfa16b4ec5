/*
 * source_lock.c - keeping two daemons from caching one directory: neither would know what the other has.
 *
 * The source itself is locked (flock(2)), which every daemon that shares it sees. But every user who may open the directory for
 * reading may take that lock. So root's daemons also lock a file in a directory that is root's alone, which decides among them.
 * A lock on the source does not keep root from mounting if no gaiafs of root's has it.
 *
 * Daemons with --source shared, of this machine and of others, share the lock: a directory has such daemons, or one that caches it.
 */
#include "fuse/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOTS_LOCKS "/run/gaiafs"

/*
 * A locked file as /proc/locks names it: by the device of its mount, which st_dev differs from on some file
 * systems (btrfs).
 */
struct locked {
	unsigned major, minor;
	unsigned long long ino;
};

static int name_locked(int fd, struct locked *out)
{
	char path[64], *line = NULL;
	int mount = -1, id, err = -ENOENT;
	size_t room = 0;
	struct stat st;
	FILE *file;

	if (fstat(fd, &st))
		return -errno;
	out->ino = st.st_ino;
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	file = fopen(path, "re");
	while (file && getline(&line, &room, file) > 0) {
		sscanf(line, "mnt_id: %d", &mount);
		sscanf(line, "ino: %llu", &out->ino);
	}
	if (file)
		fclose(file);
	file = fopen("/proc/self/mountinfo", "re");
	while (err && file && getline(&line, &room, file) > 0)
		if (sscanf(line, "%d %*d %u:%u ", &id, &out->major, &out->minor) == 3 && id == mount)
			err = 0;
	if (file)
		fclose(file);
	free(line);
	return err;
}

/*
 * The process that took the lock which @line tells of: a line of /proc/locks, or, after @prefix, of a fdinfo.
 * 0: the lock is on another file.
 */
static pid_t locker_of(const char *line, const char *prefix, const struct locked *of)
{
	unsigned long long ino;
	unsigned major, minor;
	size_t n = strlen(prefix);
	pid_t pid;

	if (strncmp(line, prefix, n) ||
	    sscanf(line + n, "%*d: FLOCK %*s %*s %d %x:%x:%llu", &pid, &major, &minor, &ino) != 4)
		return 0;
	return ino == of->ino && major == of->major && minor == of->minor ? pid : 0;
}

/*
 * Whether the error means that the process has ended, or is the kernel's. Any other may hide what is looked
 * for: a root with few capabilities sees little.
 */
static bool is_nothing(int err)
{
	return err == ENOENT || err == ESRCH;
}

/* Whether the process is a gaiafs, or its supervisor: 1, 0, or a negative errno. */
static int runs_gaiafs(const char *pid)
{
	char path[64], exe[PATH_MAX], *name;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%.20s/exe", pid);
	n = readlink(path, exe, sizeof(exe) - 1);
	if (n < 0)
		return -errno;
	exe[n] = '\0';
	name = strrchr(exe, '/');
	/* " (deleted)" follows if the program's file was replaced. */
	return name && !strncmp(name + 1, "gaiafs", 6);
}

/*
 * Whether the process may be a gaiafs, or its supervisor, that root started. No other user can make a process
 * look like one.
 */
static bool is_roots_gaiafs(const char *pid)
{
	char path[PATH_MAX], line[256], called[32] = "";
	unsigned uid = 1;
	FILE *status;
	int is;

	snprintf(path, sizeof(path), "/proc/%.20s/status", pid);
	status = fopen(path, "re");
	if (!status)
		return !is_nothing(errno) && errno != EACCES; /* EACCES: hidden, so another user's */
	/* The real uid: a user may run a set-id program with another effective one. The line comes after the name's. */
	while (fgets(line, sizeof(line), status) && sscanf(line, "Uid: %u", &uid) != 1)
		sscanf(line, "Name: %31s", called);
	fclose(status);
	if (uid != 0)
		return false;
	is = runs_gaiafs(pid);
	return is < 0 ? !is_nothing(-is) && !strncmp(called, "gaiafs", 6) : is;
}

pid_t source_locker(const struct fs *fs)
{
	FILE *file = fopen("/proc/locks", "re");
	struct locked source;
	char line[256];
	pid_t locker = 0;
	int err = name_locked(fs->source_fd, &source);

	while (!err && file && locker <= 0 && fgets(line, sizeof(line), file))
		locker = locker_of(line, "", &source);
	if (file)
		fclose(file);
	return locker > 0 ? locker : 0;
}

pid_t source_daemon(const struct fs *fs)
{
	pid_t locker = source_locker(fs);
	char pid[24];

	/* Of a mount that was handed over it was the first daemon, which has ended: another process may have its number. */
	snprintf(pid, sizeof(pid), "%d", (int)locker);
	return locker && runs_gaiafs(pid) > 0 ? locker : 0;
}

static bool process_has(const char *pid, const struct locked *what)
{
	char path[64], line[256];
	bool has = false;
	struct dirent *e;
	FILE *file;
	DIR *fds;

	snprintf(path, sizeof(path), "/proc/%.20s/fdinfo", pid);
	fds = opendir(path);
	if (!fds)
		return !is_nothing(errno);
	while (!has && fds && (e = readdir(fds))) {
		snprintf(path, sizeof(path), "/proc/%.20s/fdinfo/%.20s", pid, e->d_name);
		file = fopen(path, "re");
		if (!file)
			has = !is_nothing(errno);
		while (!has && file && fgets(line, sizeof(line), file))
			has = locker_of(line, "lock:\t", what) != 0;
		if (file)
			fclose(file);
	}
	closedir(fds);
	return has;
}

static bool a_gaiafs_of_roots_has(const struct locked *what)
{
	DIR *proc = opendir("/proc");
	bool has = !proc;
	struct dirent *e;

	while (!has && proc && (e = readdir(proc)))
		has = e->d_name[0] >= '1' && e->d_name[0] <= '9' && is_roots_gaiafs(e->d_name) && process_has(e->d_name, what);
	if (proc)
		closedir(proc);
	return has;
}

/*
 * Whether root may ignore the lock on the source, because no gaiafs of root's has it. If its owner cannot be seen (it may
 * be in another container), that may be a gaiafs.
 */
static bool is_nobodys(const struct fs *fs)
{
	struct locked source;
	pid_t locker = source_locker(fs);

	if (!locker || name_locked(fs->source_fd, &source) || a_gaiafs_of_roots_has(&source))
		return false;
	log_warn("%s: locked by process %d, which does not keep root from mounting it. If that is a gaiafs, end one of the two: neither "
		 "knows what the other has cached", fs->source, (int)locker);
	return true;
}

/* The file in ROOTS_LOCKS that stands for the source, by whatever path the source was named. */
static const char *roots_lock(const struct fs *fs, char path[96])
{
	struct stat st = { 0 };

	(void)fstat(fs->source_fd, &st); /* it is open */
	snprintf(path, 96, ROOTS_LOCKS "/source-%llx-%llx.lock", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
	return path;
}

/* -1: not root, or ROOTS_LOCKS is not root's alone. Then only the lock on the source decides. */
static int open_roots_lock(const struct fs *fs)
{
	struct stat dir;
	char path[96];

	if (geteuid())
		return -1;
	if (mkdir(ROOTS_LOCKS, 0700) && errno != EEXIST)
		log_debug(ROOTS_LOCKS ": %s", strerror(errno));
	if (lstat(ROOTS_LOCKS, &dir) || !S_ISDIR(dir.st_mode) || dir.st_uid != 0 || (dir.st_mode & (S_IWGRP | S_IWOTH)))
		return -1;
	return open(roots_lock(fs, path), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
}

int source_lock_open(struct fs *fs)
{
	fs->source_fd = open(fs->source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fs->source_fd < 0)
		return -errno;
	fs->roots_lock_fd = open_roots_lock(fs);
	return 0;
}

void source_lock_close(struct fs *fs)
{
	struct stat st;
	char path[96];

	/* The owner of the lock removes its file. Daemons that have opened it before see that by st_nlink. */
	if (!fs->borrowed && fs->roots_lock_fd >= 0 && !flock(fs->roots_lock_fd, LOCK_EX | LOCK_NB) && !fstat(fs->roots_lock_fd, &st) &&
	    st.st_nlink > 0)
		unlink(roots_lock(fs, path));
	/* In this order: a daemon that gets root's lock then finds the source unlocked. */
	if (fs->source_fd >= 0)
		close(fs->source_fd);
	if (fs->roots_lock_fd >= 0)
		close(fs->roots_lock_fd);
	fs->source_fd = fs->roots_lock_fd = -1;
}

/* Daemons for which it is a shared source do not keep each other away. */
static int kind_of_lock(const struct fs *fs)
{
	return fs->config.shared ? LOCK_SH : LOCK_EX;
}

/* Take root's lock. 0 also where there is none. */
static int trylock_roots(struct fs *fs)
{
	struct stat st;

	while (fs->roots_lock_fd >= 0) {
		if (flock(fs->roots_lock_fd, kind_of_lock(fs) | LOCK_NB))
			return -errno;
		if (fstat(fs->roots_lock_fd, &st) || st.st_nlink > 0)
			return 0;
		close(fs->roots_lock_fd);
		fs->roots_lock_fd = open_roots_lock(fs);
	}
	return 0;
}

int source_trylock(struct fs *fs)
{
	int err = trylock_roots(fs);

	if (err)
		return err;
	if (!flock(fs->source_fd, kind_of_lock(fs) | LOCK_NB))
		return 0;
	err = -errno;
	if (fs->config.shared && err != -EWOULDBLOCK) {
		log_warn("%s: cannot be locked (%s): nothing keeps a gaiafs from it that does not know that it is shared", fs->source, strerror(-err));
		return 0;
	}
	if (err != -EWOULDBLOCK || fs->roots_lock_fd < 0 || !is_nobodys(fs))
		return err;
	/* It may be free by now. */
	(void)flock(fs->source_fd, kind_of_lock(fs) | LOCK_NB);
	return 0;
}
