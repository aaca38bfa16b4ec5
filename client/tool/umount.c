/*
 * umount.c - unmount, and wait until the daemon has stored everything.
 *
 * First, while it is mounted, the daemon is asked to store everything. If it cannot, the files are named, and the
 * mount stays: the data can still be read there.
 *
 * The kernel's unmount returns when the mount is out of the tree; the daemon may then still be storing what was
 * written at the last moment. So the tool first becomes the daemon's client, which shows it the daemon's process, and
 * afterwards waits for that process to end. The daemon leaves the outcome in memory that both share. A mount whose
 * daemon is dead is detached. The daemon is dead if the kernel says so of the mount. That its socket cannot be
 * reached does not count: sockets belong to network namespaces.
 *
 * A mount namespace that was made meanwhile (for a container, a service) has a copy of every mount, which unmounting
 * here does not reach: the daemon then goes on. The tool looks for such copies, and says which process has one.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../report.h"
#include "../wire.h"
#include "mounts.h"
#include "tool.h"

/* After this time, say what is waited for. Many mount namespaces that exist before are gone by then. */
#define PATIENCE_MS 5000

extern char **environ;

static bool is_at(const struct mount_entry *e, const void *path)
{
	return !strcmp(e->point, path);
}

/* The same file system, in whatever place. */
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
 * The absolute path, without symbolic links, to be freed; or NULL and errno. The mount's root itself is not looked
 * up, since a dead mount would not answer.
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

/* Unmount by the set-uid helper, which reports errors itself. */
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

/* Whether the kernel says that the mount's daemon is dead. */
static bool is_dead(const char *point)
{
	struct statfs sfs;

	return statfs(point, &sfs) && (errno == ENOTCONN || errno == ECONNABORTED);
}

/* Become a client, to learn the daemon's process: a pidfd, or a negative errno. */
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
	err = wire_join(sock, dir, &key, &seq, NULL);
	close(dir); /* or the mount would be busy */
	if (err)
		return err;
	if (getsockopt(*sock, SOL_SOCKET, SO_PEERCRED, &cred, &len)) {
		err = -errno;
		goto close_socket;
	}
	*pid = cred.pid;
	fd = pidfd_open(cred.pid, 0);
	if (fd >= 0 && !wire_hung_up(*sock))
		return fd;
	/* The daemon is just ending, or its process has no number here (another PID namespace). */
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
		/* The process has chosen its name, which is about to be shown on root's terminal. */
		for (char *c = name; *c; c++)
			if (*c < ' ' || *c > '~')
				*c = '?';
		if (file)
			fclose(file);
		holder = atoi(entry->d_name);
	}
	if (proc)
		closedir(proc);
	return holder;
}

/* ---- the daemon stores ---- */

/* How far the daemon is, to be shown to the user from time to time. */
struct progress {
	const char *point;
	const struct gaia_end *end; /* shared with the daemon; NULL: it does not share any */
	uint64_t began_ns, said_ns; /* 0: nothing was said yet */
	uint64_t left;		    /* bytes, when something was last said */
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* On a terminal each second, in place; else one line each ten seconds. */
static void progress_say(struct progress *p)
{
	bool terminal = isatty(STDERR_FILENO);
	uint64_t now = now_ns(), left, ns;
	char bytes[32], rate[32] = "";

	if (!p->end || now - (p->said_ns ? p->said_ns : p->began_ns) < (terminal || !p->said_ns ? 1 : 10) * 1000000000ull)
		return;
	left = __atomic_load_n(&p->end->unstored, __ATOMIC_RELAXED);
	if (left == 0 && p->left == 0)
		return;
	ns = now - (p->said_ns ? p->said_ns : p->began_ns);
	if (left < p->left)
		format_bytes(rate, sizeof(rate), (json_int_t)((double)(p->left - left) * 1e9 / (double)ns));
	format_bytes(bytes, sizeof(bytes), (json_int_t)left);
	say_progress(terminal, "%s: %s left to store%s%s%s", p->point, bytes, *rate ? ", " : "", rate, *rate ? "/s" : "");
	p->said_ns = now;
	p->left = left;
}

/* A sync of the whole mount, by a thread of its own, so that the main thread can show how far it is. */
struct sync {
	int fd;
	char *text;
	int err;
	int done[2]; /* a pipe: the thread closes its end when it is done */
};

static void *sync_main(void *arg)
{
	struct sync *s = arg;

	/* The kernel's part first: the daemon stores what it has been sent. */
	s->err = sync_kernel(s->fd);
	if (!s->err)
		s->err = fetch_report(s->fd, GAIA_REPORT_SYNC, &s->text);
	close(s->done[1]);
	return NULL;
}

/* Have the daemon store everything: 0 and its report, in *@text, or a negative errno. */
static int sync_mount(int fd, struct progress *p, char **text)
{
	struct sync s = { .fd = fd };
	struct pollfd done;
	pthread_t thread;
	int err;

	if (pipe2(s.done, O_CLOEXEC))
		return -errno;
	err = -pthread_create(&thread, NULL, sync_main, &s);
	if (err) {
		close(s.done[1]);
		goto close_pipe;
	}
	done = (struct pollfd){ .fd = s.done[0], .events = POLLIN };
	while (poll(&done, 1, 500) <= 0)
		progress_say(p);
	pthread_join(thread, NULL);
	end_progress();
	err = s.err;
	*text = s.text;
close_pipe:
	close(s.done[0]);
	return err;
}

/* Write a line for each file that could not be stored. Returns their number; negative: the text is not valid. */
static ssize_t say_unstored(const char *text)
{
	json_t *report = json_loads(text, 0, NULL);
	ssize_t n = report ? (ssize_t)show_unstored(report) : -1;

	json_decref(report);
	return n;
}

/*
 * Before unmounting, have everything stored. EXIT_FAILED: some data cannot be stored, so the mount must stay,
 * where programs see it.
 */
static int store_first(const char *point, int dir, struct progress *p, bool discard)
{
	char *text = NULL;
	ssize_t n;
	int err = sync_mount(dir, p, &text);

	/*
	 * EPERM: a user who may not ask for this may not unmount either, which will say so. EINVAL: an older
	 * daemon does not know the request.
	 */
	if (err == -EPERM || err == -EINVAL)
		return EXIT_OK;
	/* With --discard the daemon names the files when they are lost. */
	n = err ? -1 : discard && p->end ? 0 : say_unstored(text);
	free(text);
	if (n == 0 || discard)
		return EXIT_OK;
	if (err == -ENOTCONN && is_dead(point))
		return fail("%s: not unmounted: its daemon has died before everything was stored; 'gaia umount %s' takes the mount away",
			    point, point);
	if (err == -ENOTCONN || err == -EHOSTUNREACH)
		return fail("%s: not unmounted: its daemon cannot be reached from this network namespace, or does not answer, so it is not known what is stored; 'gaia umount --discard %s' unmounts it all the same",
			    point, point);
	if (n < 0)
		return fail("%s: not unmounted: its daemon does not say what is stored: %s; 'gaia umount --discard %s' unmounts it all the same",
			    point, strerror(err ? -err : EPROTO), point);
	return fail("%s: not unmounted, so that nothing is lost: make room, and try again; 'gaia umount --discard %s' gives up what cannot be stored",
		    point, point);
}

/* ---- the daemon ends ---- */

/* The daemon's process has ended: report what it left in the shared memory. */
static int last_words(const char *point, const struct gaia_end *end, bool discard)
{
	ssize_t n;

	if (!end)
		return EXIT_OK;
	if (!__atomic_load_n(&end->length, __ATOMIC_ACQUIRE))
		return fail("%s: unmounted, but its daemon died before everything was stored", point);
	n = say_unstored(end->text);
	if (!n || (n > 0 && discard))
		return EXIT_OK;
	return fail("%s: unmounted, and what could not be stored is lost", point);
}

/*
 * Wait until the daemon of @e, which is unmounted, has ended. Unless the daemon was @told to end, do not wait
 * if another mount keeps it.
 */
static int wait_for(int pidfd, pid_t pid, int sock, bool told, const struct mount_entry *e, struct progress *p, bool discard)
{
	struct pollfd ended = { .fd = pidfd, .events = POLLIN };
	uint64_t began = now_ns();
	bool said = false, hurried = false;
	char name[64];
	int holder;

	while (poll(&ended, 1, 200) <= 0) {
		bool ending = p->end && __atomic_load_n(&p->end->ending, __ATOMIC_ACQUIRE);

		/* The second signal has it give up what it cannot store. Two of the same kind could become one. */
		if (ending && discard && !hurried)
			hurried = !pidfd_send_signal(pidfd, SIGINT, NULL, 0) && !pidfd_send_signal(pidfd, SIGTERM, NULL, 0);
		progress_say(p);
		if (said || now_ns() - began < PATIENCE_MS * 1000000ull)
			continue;
		/* A daemon without a mount disconnects its clients before it stores what is left. */
		told = told || ending || wire_hung_up(sock);
		holder = told ? 0 : find_holder(e, name);
		end_progress();
		if (holder) {
			fprintf(stderr, "gaia: %s: unmounted here, but another mount namespace (of process %d, %s) has a copy "
				"of the mount; 'kill %d', its daemon, stores everything and ends it there too\n",
				e->point, holder, name, (int)pid);
			return EXIT_OK;
		}
		fprintf(stderr, "gaia: waiting for the daemon (process %d) to store what is left%s\n", (int)pid,
			told ? "" : ", or for others to unmount, in a mount namespace that cannot be seen from here");
		said = true;
	}
	end_progress();
	return last_words(e->point, p->end, discard);
}

/* Have the daemon end for all mounts. If it is ending already, another signal would make it give up what it cannot store. */
static int end_everywhere(int pidfd, pid_t pid, const char *point, const struct gaia_end *end)
{
	if (end && __atomic_load_n(&end->ending, __ATOMIC_ACQUIRE))
		return EXIT_OK;
	if (!pidfd_send_signal(pidfd, SIGTERM, NULL, 0) || errno == ESRCH)
		return EXIT_OK;
	return fail("%s: unmounted here only: ending its daemon (process %d): %s", point, (int)pid, strerror(errno));
}

static const struct gaia_end *map_end(int dir)
{
	int fd = fetch_report_fd(dir, GAIA_REPORT_END);
	void *at = fd < 0 ? MAP_FAILED : mmap(NULL, GAIA_END_BYTES, PROT_READ, MAP_SHARED, fd, 0);

	if (fd >= 0)
		close(fd);
	return at == MAP_FAILED ? NULL : at;
}

/* Unmount and wait, for a daemon that answers. */
static int unmount_stored(const struct mount_entry *e, bool everywhere, bool discard, int pidfd, pid_t pid, int sock)
{
	struct progress p = { .point = e->point, .began_ns = now_ns() };
	struct mount_entry rest;
	bool elsewhere;
	int dir, status;

	dir = open(e->point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return fail("%s: %s", e->point, strerror(errno));
	p.end = map_end(dir);
	status = store_first(e->point, dir, &p, discard);
	close(dir); /* or the mount would be busy */
	/* Looked up first: the number of a mount that is gone is soon reused. */
	elsewhere = find_mount("/proc/self/mountinfo", is_elsewhere, e, &rest);
	if (!status)
		status = unmount(e->point, 0);
	if (!status && everywhere)
		status = end_everywhere(pidfd, pid, e->point, p.end);
	if (!status && elsewhere && !everywhere)
		fprintf(stderr, "gaia: %s: unmounted; the file system is still mounted at %s\n",
			e->point, rest.point);
	else if (!status)
		status = wait_for(pidfd, pid, sock, everywhere, e, &p, discard);
	if (elsewhere)
		free_entry(&rest);
	return status;
}

/* Unmount, for a daemon that lives but whose process cannot be waited for. */
static int unmount_blindly(const struct mount_entry *e, bool discard)
{
	struct progress p = { .point = e->point, .began_ns = now_ns() };
	int dir, status;

	dir = open(e->point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return fail("%s: %s", e->point, strerror(errno));
	status = store_first(e->point, dir, &p, discard);
	close(dir);
	return status ? status : unmount(e->point, 0);
}

static int unmount_live(const struct mount_entry *e, bool everywhere, bool discard)
{
	int sock = -1, pidfd, status;
	pid_t pid = 0;

	pidfd = find_daemon(e->point, &sock, &pid);
	if (pidfd == -ENOTCONN && is_dead(e->point))
		return unmount(e->point, MNT_FORCE | MNT_DETACH);
	if (pidfd < 0) {
		status = pidfd == -ESRCH || pidfd == -ENOTCONN || pidfd == -EHOSTUNREACH ? unmount_blindly(e, discard) : unmount(e->point, 0);
		if (!status)
			fprintf(stderr, "gaia: %s: unmounted; its daemon could not be asked (%s), so it may still be "
				"storing\n", e->point, strerror(-pidfd));
		return status;
	}
	status = unmount_stored(e, everywhere, discard, pidfd, pid, sock);
	close(pidfd);
	close(sock);
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

int umount_command(const char *path, bool force, bool everywhere, bool discard)
{
	char *point = canonical(path);
	struct mount_entry e;
	int status;

	if (!point)
		return fail("%s: %s", path, strerror(errno));
	if (!find_mount("/proc/self/mountinfo", is_at, point, &e)) {
		status = fail("%s: nothing is mounted there", point);
	} else {
		if (strcmp(e.type, GAIAFS_TYPE) != 0)
			status = fail("%s: is not a gaiafs mount but %s; use umount(8)", point, e.type);
		else if (force)
			status = unmount(point, MNT_FORCE | MNT_DETACH);
		else
			status = unmount_live(&e, everywhere, discard);
		free_entry(&e);
	}
	free(point);
	return status;
}
