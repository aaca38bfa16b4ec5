/* upgrade.c - see upgrade.h. */
#include "upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/thread.h"
#include "base/util.h"

/* Linux 6.5. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* For the new daemon to start what it needs, GPUs among it; nobody waits meanwhile. */
#define START_S 120
/* For each of its steps while programs wait. It only computes then. */
#define STEP_S 20
/* For storage, while programs wait. */
#define STORE_S 5
/* For requests under way to end, however often they have to. */
#define PAUSE_NS 10000000000ull
/*
 * Clients are asked at least so often to let go what they hold: each time some may wait for what they need first, and not get it (client/gate.c).
 * Between two times they go on for a moment. One that never lets go must not keep the others waiting for long.
 */
#define ROUNDS 5
#define ROUND_LEAST_NS 100000000ull
#define ROUND_MOST_NS 1000000000ull
#define BETWEEN_ROUNDS_US 100000
#define LOOK_LEAST_US 1000
#define LOOK_MOST_US 20000

/* ---- the old daemon ---- */

__attribute__((format(printf, 3, 4))) static int fails(struct upgrade *u, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(u->why, sizeof(u->why), fmt, ap);
	va_end(ap);
	return err;
}

/* Whether the two processes' links in /proc name the same: a namespace. */
static bool same_link(pid_t pid, const char *what)
{
	char path[64], own[64], theirs[128], ours[128];
	ssize_t a, b;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, what);
	snprintf(own, sizeof(own), "/proc/self/%s", what);
	a = readlink(path, theirs, sizeof(theirs));
	b = readlink(own, ours, sizeof(ours));
	return a > 0 && a == b && !memcmp(theirs, ours, (size_t)a);
}

/*
 * A descriptor (O_PATH) of the program that the process at the other end of @sock runs, and its name: of the very file, and only if that has this
 * name here, too. What a process in a sandbox calls /tmp/x is not what is there here.
 */
static int program_of(pid_t pid, int sock, char path[PATH_MAX])
{
	struct pollfd alive = { .fd = -1, .events = POLLIN };
	socklen_t size = sizeof(alive.fd);
	struct stat theirs, ours;
	int fd = -1, high, err = 0;
	char link[64];
	ssize_t n;

	/* The process itself, whatever becomes of its number. */
	if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &alive.fd, &size))
		alive.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (alive.fd < 0)
		return -errno;
	snprintf(link, sizeof(link), "/proc/%d/exe", (int)pid);
	fd = open(link, O_PATH | O_CLOEXEC);
	n = fd < 0 ? -1 : readlink(link, path, PATH_MAX - 1);
	if (n < 0)
		err = -errno;
	else
		path[n] = '\0';
	if (!err && (!same_link(pid, "ns/mnt") || !same_link(pid, "ns/user")))
		err = -EXDEV;
	if (!err && (fstat(fd, &theirs) || stat(path, &ours)))
		err = -errno;
	if (!err && (theirs.st_dev != ours.st_dev || theirs.st_ino != ours.st_ino))
		err = -ENOENT;
	/* All that was asked of the number was of this process, if it still lives. */
	if (!err && poll(&alive, 1, 0) != 0)
		err = -ESRCH;
	close(alive.fd);
	/* Not where the new daemon expects its socket. */
	high = err ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, UPGRADE_FD + 1);
	if (!err && high < 0)
		err = -errno;
	if (fd >= 0)
		close(fd);
	return err ? err : high;
}

static void limit_waiting(int sock, int seconds)
{
	struct timeval t = { .tv_sec = seconds };

	(void)setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	(void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
}

#define TAKE_OVER "--take-over"
#define SET TAKE_OVER "-set="
#define GPUS TAKE_OVER "-gpus="
#define DEVICES TAKE_OVER "-devices="
#define LEFT TAKE_OVER "-left"
#define NUMBER 12 /* characters, with the NUL */

static unsigned count_gpus(const struct upgrade *u)
{
	struct cache_device_use use;
	unsigned n = 0;

	for (unsigned i = 0; i < cache_devices(u->cache); i++) {
		cache_device(u->cache, i, &use);
		n += !use.dev->simulated;
	}
	return n;
}

/* This daemon's arguments, behind what makes another one take the mount over, and what was changed since. To be freed, and @words. */
static char **heirs_arguments(const struct upgrade *u, char *program, char **words)
{
	static char take_over[] = TAKE_OVER, left[] = LEFT;
	size_t length, n = 2, n_before, n_own = 0, n_words = 0, size;
	char **argv, *set = live_words(u->live, &length);

	while (u->argv[n_own])
		n_own++;
	for (size_t at = 0; at < length; at += strlen(set + at) + 1)
		n_words++;
	argv = xcalloc(n_own + n_words + 6, sizeof(*argv));
	*words = xmalloc(length + n_words * sizeof(SET) + sizeof(GPUS) + NUMBER + sizeof(DEVICES) + NUMBER);
	argv[0] = program;
	argv[1] = take_over;
	argv[n++] = *words;
	size = (size_t)sprintf(*words, GPUS "%u", count_gpus(u)) + 1;
	argv[n++] = *words + size;
	size += (size_t)sprintf(*words + size, DEVICES "%u", u->n_option_devices) + 1;
	for (size_t at = 0; at < length; at += strlen(set + at) + 1) {
		argv[n++] = *words + size;
		size += (size_t)sprintf(*words + size, SET "%s", set + at) + 1;
	}
	if (u->leave)
		argv[n++] = left;
	n_before = n;
	for (size_t i = 1; i < n_own; i++) {
		/* Of the upgrade before: they come first. */
		if (n == n_before && !strncmp(u->argv[i], TAKE_OVER, strlen(TAKE_OVER)))
			continue;
		argv[n++] = u->argv[i];
	}
	free(set);
	return argv;
}

/* @fd: of the program. */
static int spawn(struct upgrade *u, char *program, int fd, int end)
{
	posix_spawn_file_actions_t actions;
	char *words, **argv = heirs_arguments(u, program, &words);
	char file[64];
	int err;

	posix_spawn_file_actions_init(&actions);
	/* (Also if the two are the same: then it is inherited.) */
	posix_spawn_file_actions_adddup2(&actions, end, UPGRADE_FD);
	/* Where the names of files in the arguments begin. If it is not there any more, it fails. */
	if (u->cwd)
		posix_spawn_file_actions_addchdir_np(&actions, u->cwd);
	snprintf(file, sizeof(file), "/proc/self/fd/%d", fd);
	err = -posix_spawn(&u->heir, file, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (err)
		u->heir = 0;
	free(words);
	free(argv);
	return err;
}

int upgrade_begin(struct upgrade *u, pid_t pid, int answer)
{
	char program[PATH_MAX];
	int ends[2], fd, err;

	u->answer = answer;
	u->heir = 0;
	u->sock = -1;
	u->why[0] = '\0';
	fd = pid > 0 ? program_of(pid, answer, program) : -ESRCH;
	if (fd == -EXDEV)
		return fails(u, fd, "the program that asks is in another namespace than the daemon");
	if (fd < 0)
		return fails(u, fd, "the daemon cannot see which program asks for it: %s", strerror(-fd));
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		err = -errno;
		close(fd);
		return fails(u, err, "no socket: %s", strerror(-err));
	}
	u->sock = ends[0];
	limit_waiting(u->sock, START_S);
	log_info("%s: to be handed over to %s", fs_mountpoint(u->fs), program);
	live_freeze(u->live, true);
	err = spawn(u, program, fd, ends[1]);
	close(ends[1]);
	close(fd);
	if (!err)
		return 0;
	live_freeze(u->live, false);
	return fails(u, err, "%s: %s", program, strerror(-err));
}

/* For tests: the new daemon dies here. */
static void may_kill_heir(const struct upgrade *u, const char *fault)
{
	if (fault_point(fault))
		kill(u->heir, SIGKILL);
}

static int heir_failed(struct upgrade *u, int err)
{
	switch (err) {
	case -EPROTONOSUPPORT:
		return fails(u, err, "the two versions do not understand each other: unmount, and mount with the new one");
	case -EOPNOTSUPP:
		return fails(u, err, "this mount cannot be handed over; its log says why");
	case -EPIPE:
		return fails(u, -EIO, "the new daemon has ended; its log says why");
	default:
		return fails(u, err, "the new daemon: %s", strerror(-err));
	}
}

/* Whether clients' mappings keep it from going on. */
static bool in_the_way(const struct upgrade *u, const struct control_movers *who)
{
	return who->busy || (who->staying && !u->force);
}

static int fails_for(struct upgrade *u, const struct control_movers *who)
{
	if (who->staying)
		return fails(u, -EBUSY, "%u program%s files mapped for a device and cannot come along: %s (gaia status shows them); "
			     "--force ends their mappings", who->staying, who->staying > 1 ? "s have" : " has", who->who);
	return fails(u, -EBUSY, "%u program%s not let go what is acquired for a device: %s (gaia status shows them); try again, with a longer --wait, or with "
		     "--force, which ends their mappings", who->busy, who->busy > 1 ? "s have" : " has", who->who);
}

/* Devices' contents do not move to the new daemon: what is lost by that. */
static int nothing_pinned(struct upgrade *u)
{
	json_t *pins;
	size_t pinned;

	if (u->force)
		return 0;
	pins = cache_pins_json(u->cache, 0, true);
	pinned = json_array_size(json_object_get(pins, "pins"));
	json_decref(pins);
	if (pinned && !u->n_option_pins)
		return fails(u, -EBUSY, "%zu file%s pinned to a device (gaia pins shows them); --force unpins", pinned, pinned > 1 ? "s are" : " is");
	return 0;
}

static int store_all(struct upgrade *u)
{
	json_t *unstored = json_array(), *first;
	int err = cache_sync_all(u->cache, unstored);

	first = json_array_get(unstored, 0);
	if (first)
		fails(u, err, "files that cannot be stored: %zu; %s: %s", json_array_size(unstored),
		      json_string_value(json_object_get(first, "path")), json_string_value(json_object_get(first, "error")));
	else if (err)
		fails(u, err, "not everything can be stored: %s", strerror(-err));
	json_decref(unstored);
	return err;
}

static void *store_rest(void *arg)
{
	struct upgrade *u = arg;

	thread_set_name("gaia-rest");
	(void)fault_point("upgrade.rest");
	return (void *)(intptr_t)store_all(u);
}

/*
 * The same while programs wait. If storage does not answer they go on, with this daemon: when it has answered the upgrade fails.
 */
static int store_soon(struct upgrade *u)
{
	struct timespec until;
	void *err = NULL;
	pthread_t thread;

	if (pthread_create(&thread, NULL, store_rest, u))
		return fails(u, -EAGAIN, "no thread: %s", strerror(EAGAIN));
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += STORE_S;
	if (!pthread_timedjoin_np(thread, &err, &until))
		return (int)(intptr_t)err;
	fs_go_on(u->fs);
	control_move_stay(u->control);
	pthread_join(thread, NULL);
	return fails(u, -ETIMEDOUT, "storage has not answered for %d seconds", STORE_S);
}

static int nothing_unstored(struct upgrade *u)
{
	uint64_t home, devices;

	cache_unstored(u->cache, &home, &devices);
	return home || devices ? fails(u, -EBUSY, "not everything is stored") : 0;
}

static int hand_over(struct upgrade *u)
{
	int err = nothing_pinned(u);

	if (!err)
		err = store_soon(u);
	if (!err)
		err = nothing_unstored(u);
	if (err)
		return err;
	may_kill_heir(u, "upgrade.paused");
	limit_waiting(u->sock, STEP_S);
	err = fs_bequeath(u->fs, u->sock);
	return err ? heir_failed(u, err) : 0;
}

static bool heir_is_gone(const struct upgrade *u)
{
	struct pollfd p = { .fd = u->sock };

	return poll(&p, 1, 0) == 1 && p.revents & (POLLHUP | POLLERR);
}

/* Until no client is in the way, or @until. */
static void await_clients(struct upgrade *u, uint64_t until, struct control_movers *who)
{
	useconds_t us = LOOK_LEAST_US;

	for (;;) {
		control_move_ask(u->control);
		control_move_look(u->control, who);
		if (!in_the_way(u, who) || (who->staying && !u->force) || now_ns() >= until || heir_is_gone(u))
			return;
		usleep(us);
		us = MIN(us * 2, LOOK_MOST_US);
	}
}

/* fs_pause(), for @left nanoseconds at most, less what it takes. */
static int pause_once(struct upgrade *u, uint64_t *left)
{
	uint64_t begun = now_ns();
	int err = fs_pause(u->fs, begun + *left);

	*left -= MIN(*left, now_ns() - begun);
	return err;
}

/* Stop receiving, at a moment when no client that comes along holds anything: nothing changes any more then. */
static int pause_for_clients(struct upgrade *u)
{
	uint64_t end = now_ns() + u->wait_ns, round = MIN(MAX(u->wait_ns / ROUNDS, ROUND_LEAST_NS), ROUND_MOST_NS);
	uint64_t pause_left = PAUSE_NS;
	struct control_movers who;
	bool over = false;
	int err;

	for (;;) {
		await_clients(u, now_ns() + round, &who);
		if (heir_is_gone(u))
			return heir_failed(u, -EPIPE);
		over = now_ns() >= end;
		if (!in_the_way(u, &who) || (over && u->force)) {
			err = pause_once(u, &pause_left);
			if (err)
				return fails(u, err, "%s", err == -EBUSY ? "calls that are under way do not end; try again" : "the mount has ended");
			control_move_look(u->control, &who);
			/* Who begins to hold something each time, makes everybody wait: that ends, too. */
			over |= !pause_left;
			if (!in_the_way(u, &who) || (over && u->force))
				return 0;
			fs_go_on(u->fs);
		}
		if (over || (who.staying && !u->force))
			return fails_for(u, &who);
		control_move_stay(u->control);
		usleep(BETWEEN_ROUNDS_US);
	}
}

int upgrade_prepare(struct upgrade *u)
{
	struct control_movers who;
	uint64_t features;
	int err;

	may_kill_heir(u, "upgrade.begun");
	err = fs_offer(u->fs, u->sock, &features);
	if (err)
		return heir_failed(u, err);
	control_move_to(u->control, features);
	may_kill_heir(u, "upgrade.offered");
	/* Most of it is done before programs have to wait. */
	control_move_look(u->control, &who);
	err = who.staying && !u->force ? fails_for(u, &who) : nothing_pinned(u);
	if (!err)
		err = store_all(u);
	if (!err)
		err = pause_for_clients(u);
	return err ? err : hand_over(u);
}

int upgrade_commit(struct upgrade *u)
{
	int err;

	may_kill_heir(u, "upgrade.bequeathed");
	err = fs_commit(u->fs, u->sock);
	if (err && err != -EPIPE) {
		/* It may be about to take it. What it says from now on does not arrive, and so it does not: that is decided. */
		upgrade_cancel(u);
		err = fs_has_heir(u->fs, u->sock);
	}
	if (err)
		return heir_failed(u, err);
	control_moved(u->control);
	return 0;
}

/* What the new daemon says from now on does not arrive, and it notices that; what it has said before does. */
void upgrade_cancel(struct upgrade *u)
{
	shutdown(u->sock, SHUT_RDWR);
}

void upgrade_give_up(struct upgrade *u)
{
	live_freeze(u->live, false);
	/* It does not have the mount, whatever it says. A driver may keep it from ending: programs do not wait for that. */
	upgrade_cancel(u);
	if (u->heir)
		kill(u->heir, SIGKILL);
	fs_go_on(u->fs);
	control_move_stay(u->control);
	while (u->heir && waitpid(u->heir, NULL, 0) < 0 && errno == EINTR)
		;
	u->heir = 0;
	log_warn("%s: is not handed over: %s", fs_mountpoint(u->fs), u->why);
}

void upgrade_answer(struct upgrade *u, int err)
{
	if (u->sock >= 0)
		close(u->sock);
	u->sock = -1;
	control_answer_upgrade(u->answer, err, u->why);
}

/* ---- who asks ---- */

/* A ticket of the mount's daemon, and the name of its socket. */
static int get_ticket(const char *mountpoint, struct gaia_ioc_connect *io)
{
	int fd = open(mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;

	*io = (struct gaia_ioc_connect){ .version = GAIA_PROTOCOL_VERSION, .minor = GAIA_PROTOCOL_MINOR };
	if (fd < 0 || ioctl(fd, GAIA_IOC_CONNECT, io))
		err = -errno;
	if (fd >= 0)
		close(fd);
	return err;
}

static void cannot_ask(const char *mountpoint, int err)
{
	if (err == -ENOTTY || err == -EINVAL || err == -ENOSYS || err == -EOPNOTSUPP)
		log_error("%s: not a mount of gaiafs", mountpoint);
	else
		log_error("%s: %s", mountpoint, strerror(-err));
}

static int connect_to(const struct gaia_ioc_connect *io)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	size_t n = strnlen((const char *)io->socket, sizeof(io->socket));
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), err;

	memcpy(to.sun_path + 1, io->socket, n);
	if (fd >= 0 && !connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)))
		return fd;
	err = -errno;
	if (fd >= 0)
		close(fd);
	return err;
}

/* Send the message, and wait for the answer, however long it takes. */
static int exchange(int fd, struct gaia_msg *msg)
{
	ssize_t n = send(fd, msg, sizeof(*msg), MSG_NOSIGNAL);

	if (n == (ssize_t)sizeof(*msg))
		do
			n = recv(fd, msg, sizeof(*msg), 0);
		while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return n == (ssize_t)sizeof(*msg) && msg->kind == GAIA_MSG_UPGRADED ? 0 : -EPROTO;
}

/* What is said to be the reason, as one line: what is mounted there may be anybody's. */
static const char *reason(struct gaia_msg *msg)
{
	char *text = (char *)msg->chunk;

	text[sizeof(msg->chunk) - 1] = '\0';
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	return text;
}

int upgrade_ask(const char *mountpoint, unsigned how, uint64_t wait_ms)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_UPGRADE, .version = GAIA_PROTOCOL_VERSION, .count = how };
	struct gaia_ioc_connect io;
	int fd, err = get_ticket(mountpoint, &io);

	if (err) {
		cannot_ask(mountpoint, err);
		return err;
	}
	if (how & GAIA_UPGRADE_LEAVE && !(io.features & GAIA_FEATURE_LEAVES)) {
		log_error("%s: its daemon is too old for --leave; upgrade it without", mountpoint);
		return -EOPNOTSUPP;
	}
	memcpy(msg.ticket, io.ticket, sizeof(msg.ticket));
	if (io.features & GAIA_FEATURE_MOVES)
		msg.map = wait_ms;
	fd = connect_to(&io);
	err = fd < 0 ? fd : exchange(fd, &msg);
	if (fd >= 0)
		close(fd);
	if (err == -EPROTO || err == -ECONNRESET) {
		log_error("%s: its daemon has not answered: it has died, or is too old to be upgraded; unmount, and mount with the new one", mountpoint);
	} else if (err) {
		log_error("%s: its daemon cannot be reached: %s", mountpoint, strerror(-err));
	} else if (msg.error) {
		log_error("%s: is not %s: %s", mountpoint, how & GAIA_UPGRADE_LEAVE ? "handed over" : "upgraded, and goes on as before", reason(&msg));
		err = -EBUSY;
	}
	return err;
}

/* ---- who is to be the unit's main process ---- */

/* What /proc says of the control groups of process @pid. 0 bytes: nothing. */
static size_t groups_of(pid_t pid, char *text, size_t size)
{
	char path[64];
	FILE *file;
	size_t n = 0;

	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
	file = fopen(path, "re");
	if (file) {
		n = fread(text, 1, size, file);
		fclose(file);
	}
	return n;
}

static bool is_of_our_groups(pid_t pid)
{
	char own[8192], its[8192];
	size_t n = groups_of(getpid(), own, sizeof(own));

	return n > 0 && n < sizeof(own) && groups_of(pid, its, sizeof(its)) == n && !memcmp(own, its, n);
}

/* Whether the daemon was started as this program is now, but for what has to do with taking over. */
static bool has_our_arguments(pid_t pid, char **argv)
{
	char path[64], *line = NULL;
	size_t room = 0;
	bool same = true;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
	file = fopen(path, "re");
	/* The program's own name may be another. */
	if (!file || getdelim(&line, &room, '\0', file) <= 0)
		same = false;
	argv++;
	while (same && getdelim(&line, &room, '\0', file) > 0)
		if (strncmp(line, TAKE_OVER, strlen(TAKE_OVER)) != 0)
			same = *argv && !strcmp(line, *argv++);
	free(line);
	if (file)
		fclose(file);
	return same && !*argv;
}

/* The daemon at the other end: 0, or -EBUSY: it was not left. */
static int adopt(int fd, const struct gaia_ioc_connect *io)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_UPGRADE, .version = GAIA_PROTOCOL_VERSION, .count = GAIA_UPGRADE_ADOPT };
	int err;

	memcpy(msg.ticket, io->ticket, sizeof(msg.ticket));
	err = exchange(fd, &msg);
	return err ? err : msg.error ? -EBUSY : 0;
}

bool upgrade_adopt(const char *mountpoint, char **argv)
{
	struct gaia_ioc_connect io;
	struct ucred who = { .pid = 0 };
	socklen_t size = sizeof(who);
	int fd = get_ticket(mountpoint, &io) ? -1 : connect_to(&io);
	bool adopted = fd >= 0 && !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) && who.pid > 0 && is_of_our_groups(who.pid) &&
		       !adopt(fd, &io);
	char state[64];

	if (fd >= 0)
		close(fd);
	if (!adopted)
		return false;
	log_info("%s: process %d of this unit serves it, and goes on", mountpoint, (int)who.pid);
	if (!has_our_arguments(who.pid, argv))
		log_warn("%s: the unit's command is another now than when it was mounted, which a restart does not change: stop it, and start it", mountpoint);
	snprintf(state, sizeof(state), "MAINPID=%d\nREADY=1\nSTATUS=mounted", (int)who.pid);
	notify_manager_last(state);
	return true;
}
