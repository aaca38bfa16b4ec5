/*
 * supervisor.c - a process that outlives the daemon, to clean up after a death.
 *
 * If a daemon dies while one of its threads waits for the kernel, and the kernel waits for the daemon's answer to a request, the
 * process never ends: that thread cannot be killed, /dev/fuse stays open, and programs that use the mount hang. Only another
 * process can end the connection. So the daemon forks a child before it has threads or a mount. When the daemon's main thread ends
 * the kernel sends the child a signal, whatever the other threads do. The handler of fatal signals sends the same signal, because
 * the main thread of a process that dumps core ends only when all threads have stopped, which they might never do.
 *
 * The mount itself stays where it is, without a daemon, unless --supervisor unmount is given. If it were taken away, programs that
 * append to a file by its name would go on in the directory beneath. The next gaiafs that mounts there takes it away (mount.c).
 *
 * A connection is ended by a file of fusectl's that is named by the mount's device number. When the mount is gone the number may become
 * another's at once. So the daemon opens the file when it has mounted, and sends the child its descriptor, which stays that connection's.
 *
 * The child has nothing of the mount itself open. It keeps the descriptors by which the daemon has locked the source, and so the locks:
 * no other gaiafs mounts the source, perhaps in the same place, before the child is done.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"

#define DEATH SIGUSR1

/* All of a dying daemon's threads that can be killed end within this time. */
#define GRACE_MS 200
/* After the connection was ended, the other threads end within this time. */
#define PATIENCE_MS 10000

static const int fatal[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS };

/* For the signal handler: the supervisor's pid; 0: none. Written by the main thread. */
static volatile sig_atomic_t supervisor;

/* What supervisor_tell() sends; its descriptor goes along. */
union told {
	char room[CMSG_SPACE(sizeof(int))];
	struct cmsghdr header;
};

/* ---- the supervisor ---- */

static int by_number(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/*
 * Close all descriptors but these, of which some may be -1. Standard input and output, and in the background standard
 * error, become /dev/null.
 */
static void keep_nothing_but(int *fd, size_t n, bool background)
{
	unsigned next = 3;
	int null;

	qsort(fd, n, sizeof(*fd), by_number);
	for (size_t i = 0; i < n; i++) {
		if (fd[i] < (int)next)
			continue;
		if (fd[i] > (int)next)
			close_range(next, (unsigned)fd[i] - 1, 0);
		next = (unsigned)fd[i] + 1;
	}
	close_range(next, ~0u, 0);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int std = 0; std <= 2 && null >= 0; std++)
		if (std < 2 || background)
			dup2(null, std);
	if (null > 2)
		close(null);
}

static void wait_for_death(pid_t daemon)
{
	siginfo_t info = { 0 };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, DEATH);
	/* Other processes may send the signal, too. */
	while (getppid() == daemon && info.si_pid != daemon)
		if (sigwaitinfo(&set, &info) < 0)
			info.si_pid = 0;
}

static bool is_gone(int pidfd, int ms)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };

	return pidfd < 0 || poll(&p, 1, ms) != 0;
}

/* The descriptor that the daemon has sent; -1: none. */
static int told_file(int from)
{
	char byte;
	union told told;
	struct iovec part = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = told.room, .msg_controllen = sizeof(told.room) };
	int fd;

	if (from < 0 || recvmsg(from, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&msg) ||
	    CMSG_FIRSTHDR(&msg)->cmsg_type != SCM_RIGHTS)
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

_Noreturn static void supervise(struct fs *fs, pid_t daemon)
{
	int pidfd = pidfd_open(daemon, 0);
	enum mount_left left;
	bool gone;

	wait_for_death(daemon);
	/* The mount is, or is still, another daemon's. */
	if (fs->supervised->borrowed)
		_exit(0);
	fs->dev_major = fs->supervised->major;
	fs->dev_minor = fs->supervised->minor;
	memcpy(fs->mounted_as, fs->supervised->mounted_as, sizeof(fs->mounted_as));
	gone = is_gone(pidfd, GRACE_MS);
	(void)fault_point("supervisor.before_abort");
	left = mount_abort(fs, !gone, told_file(fs->supervisor_socket));
	if (left == MOUNT_DEAD)
		log_warn("%s: the gaiafs that was mounted here (process %d) has died; what was not stored is lost. Calls there fail "
			 "with ENOTCONN until the next gaiafs is mounted, or `gaia umount %s`", fs->mountpoint, (int)daemon,
			 fs->mountpoint);
	if (left == MOUNT_TAKEN)
		log_warn("%s: the gaiafs that was mounted here (process %d) has died; what was not "
			 "stored is lost, the mount is taken away", fs->mountpoint, (int)daemon);
	gone = gone || is_gone(pidfd, PATIENCE_MS);
	if (gone)
		source_lock_close(fs);
	else
		log_warn("process %d, which was gaiafs on %s, does not end: programs that use the mount "
			 "may hang; root ends that by `echo 1 > " FUSE_CONNECTIONS "/%u/abort`, once "
			 "fusectl is mounted there",
			 (int)daemon, fs->mountpoint, fs->dev_minor);
	_exit(0);
}

_Noreturn static void be_supervisor(struct fs *fs, pid_t daemon)
{
	/* Leave the terminal and the daemon's process group. */
	setsid();
	prctl(PR_SET_NAME, "gaia-watch");
	prctl(PR_SET_PDEATHSIG, DEATH);
	if (chdir("/"))
		log_debug("/: %s", strerror(errno));
	if (fs->config.background)
		log_to_syslog();
	keep_nothing_but((int[]){ fs->source_fd, fs->roots_lock_fd, fs->supervisor_socket }, 3, fs->config.background);
	supervise(fs, daemon);
}

/* ---- the daemon ---- */

static void on_fatal(int number)
{
	if (supervisor)
		kill(supervisor, DEATH);
	/* The default action is set again: either what caused the signal happens again and ends us, or this
	 * signal does. */
	raise(number);
}

/* Only signals for which no handler is installed (a sanitizer may have some). */
static void catch_fatal(void)
{
	struct sigaction sa = { .sa_handler = on_fatal, .sa_flags = SA_RESETHAND }, old;

	sigemptyset(&sa.sa_mask);
	for (size_t i = 0; i < ARRAY_LEN(fatal); i++)
		if (!sigaction(fatal[i], NULL, &old) && !(old.sa_flags & SA_SIGINFO) &&
		    old.sa_handler == SIG_DFL)
			sigaction(fatal[i], &sa, NULL);
}

int supervisor_start(struct fs *fs)
{
	pid_t daemon = getpid(), child;
	int ends[2] = { -1, -1 }, err;
	sigset_t all, old;

	if (!fs->config.supervised)
		return 0;
	fs->supervised = mmap(NULL, sizeof(*fs->supervised), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (fs->supervised == MAP_FAILED) {
		fs->supervised = NULL;
		err = -errno;
		goto fail;
	}
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		err = -errno;
		goto unmap;
	}
	fs->supervised->borrowed = fs->borrowed;
	/* No signal from elsewhere may end the child. */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &old);
	child = fork();
	fs->supervisor_socket = ends[child == 0];
	if (child == 0)
		be_supervisor(fs, daemon);
	err = child < 0 ? -errno : 0;
	sigprocmask(SIG_SETMASK, &old, NULL);
	close(ends[1]);
	if (err) {
		close(ends[0]);
		fs->supervisor_socket = -1;
		goto unmap;
	}
	supervisor = child;
	catch_fatal();
	return 0;

unmap:
	munmap(fs->supervised, sizeof(*fs->supervised));
	fs->supervised = NULL;
fail:
	log_error("cannot start the supervisor: %s; `--supervisor off` does without",
		  strerror(-err));
	return err;
}

void supervisor_set_borrowed(struct fs *fs, bool borrowed)
{
	fs->borrowed = borrowed;
	if (fs->supervised)
		fs->supervised->borrowed = borrowed;
}

void supervisor_tell(struct fs *fs)
{
	char byte = 0;
	union told told = { .header = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) } };
	struct iovec part = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = told.room, .msg_controllen = sizeof(told.room) };
	int fd;

	if (!fs->supervised)
		return;
	memcpy(fs->supervised->mounted_as, fs->mounted_as, sizeof(fs->mounted_as));
	fs->supervised->major = fs->dev_major;
	fs->supervised->minor = fs->dev_minor;
	fd = mount_abort_file(fs);
	if (fd < 0)
		return;
	memcpy(CMSG_DATA(&told.header), &fd, sizeof(fd));
	if (sendmsg(fs->supervisor_socket, &msg, MSG_NOSIGNAL) != 1)
		log_debug("supervisor: %s", strerror(errno));
	close(fd);
}

void supervisor_end(struct fs *fs)
{
	pid_t child = supervisor;

	if (!fs->supervised)
		return;
	supervisor = 0;
	kill(child, SIGKILL);
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	close(fs->supervisor_socket);
	munmap(fs->supervised, sizeof(*fs->supervised));
	fs->supervised = NULL;
}
