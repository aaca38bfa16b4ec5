/*
 * umount.c - take a mount away and wait until its daemon has stored everything.
 *
 * The kernel's unmount returns when the mount is out of the tree, and the daemon then still stores.
 * So we become the daemon's client first, which tells us which process it is, and wait for that
 * process to end. A mount whose daemon is dead is detached.
 *
 * A mount namespace that somebody made meanwhile (a container, a service) has a copy of every mount,
 * which our unmounting does not reach: the daemon then goes on. We look for such copies, and say who has them.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../wire.h"
#include "tool.h"

/* After so long, say what is waited for; many mount namespaces are gone by then. */
#define PATIENCE_MS 5000

extern char **environ;

/* A line of a process's mountinfo. */
struct mount_entry {
	unsigned major, minor;
	char *point;
	char *type;
	char *source;
};

/* In place: \ooo to the byte that it stands for. */
static void unescape(char *s)
{
	char *to = s;

	while (*s) {
		unsigned byte;

		if (s[0] == '\\' && sscanf(s + 1, "%3o", &byte) == 1) {
			*to++ = byte;
			s += 4;
		} else {
			*to++ = *s++;
		}
	}
	*to = '\0';
}

static void free_entry(struct mount_entry *e)
{
	free(e->point);
	free(e->type);
	free(e->source);
}

static bool parse_entry(const char *line, struct mount_entry *out)
{
	const char *tail = strstr(line, " - ");

	*out = (struct mount_entry){ 0 };
	if (!tail ||
	    sscanf(line, "%*d %*d %u:%u %*s %ms", &out->major, &out->minor, &out->point) != 3 ||
	    sscanf(tail, " - %ms %ms", &out->type, &out->source) != 2) {
		free_entry(out);
		return false;
	}
	unescape(out->point);
	return true;
}

/* The last mount of @table that @matches says yes to: the topmost, where several are stacked. False: none. */
static bool find_mount(const char *table,
		       bool (*matches)(const struct mount_entry *e, const void *arg),
		       const void *arg, struct mount_entry *out)
{
	FILE *file = fopen(table, "re");
	bool found = false;
	char *line = NULL;
	size_t size = 0;

	if (!file)
		return false;
	while (getline(&line, &size, file) > 0) {
		struct mount_entry e;

		if (!parse_entry(line, &e))
			continue;
		if (!matches(&e, arg)) {
			free_entry(&e);
			continue;
		}
		if (found)
			free_entry(out);
		*out = e;
		found = true;
	}
	free(line);
	fclose(file);
	return found;
}

static bool is_at(const struct mount_entry *e, const void *path)
{
	return !strcmp(e->point, path);
}

/* The same file system, wherever. */
static bool is_same(const struct mount_entry *e, const void *arg)
{
	const struct mount_entry *other = arg;

	return e->major == other->major && e->minor == other->minor &&
	       !strcmp(e->type, other->type) && !strcmp(e->source, other->source);
}

/* The same file system in another place. */
static bool is_elsewhere(const struct mount_entry *e, const void *arg)
{
	const struct mount_entry *other = arg;

	return is_same(e, arg) && strcmp(e->point, other->point) != 0;
}

/*
 * The absolute path, without symbolic links, to be freed; or NULL and errno. What a dead mount cannot
 * be asked for, its root itself, is not asked for.
 */
static char *canonical(const char *path)
{
	char *copy, *slash, *dir, *full = realpath(path, NULL);

	if (full || (errno != ENOTCONN && errno != ECONNABORTED && errno != EACCES && errno != EIO))
		return full;
	copy = strdup(path);
	if (!copy)
		return NULL;
	for (size_t n = strlen(copy); n > 1 && copy[n - 1] == '/';)
		copy[--n] = '\0';
	slash = strrchr(copy, '/');
	if (slash)
		*slash = '\0';
	dir = realpath(!slash ? "." : slash == copy ? "/" : copy, NULL);
	if (dir && asprintf(&full, "%s/%s", !strcmp(dir, "/") ? "" : dir, slash ? slash + 1 : copy) < 0)
		full = NULL;
	free(dir);
	free(copy);
	return full;
}

/* Let the set-uid helper do it, which says what fails. */
static int unmount_by_helper(const char *point, bool detach)
{
	char *argv[] = { "fusermount3", detach ? "-uz" : "-u", "--", (char *)point, NULL };
	int status, err;
	pid_t pid;

	err = posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);
	if (err)
		return fail("%s: unmounting it needs fusermount3 (package fuse3) or root: %s", point,
			    strerror(err));
	while (waitpid(pid, &status, 0) < 0) {
		if (errno != EINTR)
			return fail("waitpid: %s", strerror(errno));
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return EXIT_OK;
	return fail("%s: not unmounted", point);
}

static int unmount(const char *point, int flags)
{
	if (!umount2(point, flags | UMOUNT_NOFOLLOW))
		return EXIT_OK;
	switch (errno) {
	case EPERM:
		return unmount_by_helper(point, flags & MNT_DETACH);
	case EBUSY:
		return fail("%s: busy: a program has a file open or works in it ('fuser -vm %s' says which)",
			    point, point);
	default:
		return fail("%s: %s", point, strerror(errno));
	}
}

/* Become a client, to have the daemon's process: a pidfd, or a negative errno. */
static int find_daemon(const char *point, int *sock, pid_t *pid)
{
	struct gaia_client_key key;
	struct ucred cred;
	socklen_t len = sizeof(cred);
	uint64_t seq;
	int dir, fd, err;

	dir = open(point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	*sock = wire_socket();
	if (*sock < 0) {
		close(dir);
		return *sock;
	}
	err = wire_handshake(*sock, dir, &key, &seq, NULL);
	close(dir); /* or it were busy */
	if (err)
		goto close_socket;
	if (getsockopt(*sock, SOL_SOCKET, SO_PEERCRED, &cred, &len)) {
		err = -errno;
		goto close_socket;
	}
	*pid = cred.pid;
	fd = pidfd_open(cred.pid, 0);
	if (fd >= 0 && !wire_hung_up(*sock))
		return fd;
	/* It ends just now, or its process has no number here (another PID namespace). */
	if (fd >= 0)
		close(fd);
	err = -ESRCH;
close_socket:
	close(*sock);
	return err;
}

/* A process in whose mount namespace the file system is still mounted: its number, or 0, and its name. */
static int find_holder(const struct mount_entry *e, char name[64])
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	int holder = 0;

	while (proc && !holder && (entry = readdir(proc))) {
		struct mount_entry copy;
		char path[64];
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%.20s/mountinfo", entry->d_name);
		if (entry->d_name[0] < '1' || entry->d_name[0] > '9' ||
		    !find_mount(path, is_same, e, &copy))
			continue;
		free_entry(&copy);
		snprintf(path, sizeof(path), "/proc/%.20s/comm", entry->d_name);
		file = fopen(path, "re");
		if (!file || fscanf(file, "%63[^\n]", name) != 1)
			strcpy(name, "?");
		if (file)
			fclose(file);
		holder = atoi(entry->d_name);
	}
	if (proc)
		closedir(proc);
	return holder;
}

/* @e is unmounted, and its daemon ends, but for other mounts; if it was @told to, in any case. */
static void wait_for(int pidfd, pid_t pid, int sock, bool told, const struct mount_entry *e)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };
	char name[64];
	int holder;

	if (poll(&p, 1, PATIENCE_MS))
		return;
	/* A daemon without a mount lets go of its clients before it stores what is left. */
	told = told || wire_hung_up(sock);
	holder = told ? 0 : find_holder(e, name);
	if (holder) {
		fprintf(stderr, "gaia: %s: unmounted here, but another mount namespace (of process %d, %s) has a copy "
			"of the mount; 'kill %d', its daemon, stores everything and ends it there too\n",
			e->point, holder, name, (int)pid);
		return;
	}
	fprintf(stderr, "gaia: waiting for the daemon (process %d) to store what is left%s\n", (int)pid,
		told ? "" : ", or for others to unmount, in a mount namespace that cannot be seen from here");
	while (poll(&p, 1, -1) < 0 && errno == EINTR)
		;
}

static int unmount_live(const struct mount_entry *e, bool everywhere)
{
	struct mount_entry rest;
	int sock = -1, pidfd, status;
	bool elsewhere;
	pid_t pid = 0;

	/* Asked first: the number of a mount that has gone is soon another's. */
	elsewhere = find_mount("/proc/self/mountinfo", is_elsewhere, e, &rest);
	pidfd = find_daemon(e->point, &sock, &pid);
	if (pidfd == -ENOTCONN) {
		status = unmount(e->point, MNT_FORCE | MNT_DETACH);
		goto free_rest;
	}
	status = unmount(e->point, 0);
	if (status)
		goto close_fds;
	if (pidfd < 0)
		fprintf(stderr, "gaia: %s: unmounted; its daemon could not be asked (%s), so it may still be "
			"storing\n", e->point, strerror(-pidfd));
	else if (everywhere && pidfd_send_signal(pidfd, SIGTERM, NULL, 0) && errno != ESRCH)
		status = fail("%s: unmounted here only: ending its daemon (process %d): %s", e->point,
			      (int)pid, strerror(errno));
	else if (elsewhere && !everywhere)
		fprintf(stderr, "gaia: %s: unmounted; the file system is still mounted at %s\n",
			e->point, rest.point);
	else
		wait_for(pidfd, pid, sock, everywhere, e);
close_fds:
	if (pidfd >= 0) {
		close(pidfd);
		close(sock);
	}
free_rest:
	if (elsewhere)
		free_entry(&rest);
	return status;
}

bool is_mount_point(const char *path)
{
	char *point = canonical(path);
	struct mount_entry e;
	bool found = point && find_mount("/proc/self/mountinfo", is_at, point, &e);

	if (found)
		free_entry(&e);
	free(point);
	return found;
}

int umount_command(const char *path, bool force, bool everywhere)
{
	char *point = canonical(path);
	struct mount_entry e;
	int status;

	if (!point)
		return fail("%s: %s", path, strerror(errno));
	if (!find_mount("/proc/self/mountinfo", is_at, point, &e)) {
		status = fail("%s: nothing is mounted there", point);
	} else {
		if (strcmp(e.type, "fuse.gaiafs") != 0)
			status = fail("%s: is not a gaiafs mount but %s; use umount(8)", point, e.type);
		else if (force)
			status = unmount(point, MNT_FORCE | MNT_DETACH);
		else
			status = unmount_live(&e, everywhere);
		free_entry(&e);
	}
	free(point);
	return status;
}
