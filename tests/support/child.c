/*
 * child.c - see child.h. Waiting is by pidfd and eventfd with poll(2), so that
 * a hang becomes a failed assert with a name instead of a stuck suite.
 */
#include "child.h"

#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "threads.h"

pid_t child_start(int (*fn)(void *arg), void *arg)
{
	pid_t pid, parent = getpid();

	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		abort();
	}
	if (pid > 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	_exit(fn(arg));
}

static bool readable_in_time(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int n;

	do
		n = poll(&p, 1, HANG_SECONDS * 1000);
	while (n < 0 && errno == EINTR);
	return n == 1;
}

int child_wait(pid_t pid)
{
	int fd = syscall(SYS_pidfd_open, pid, 0), status;
	bool ended = fd >= 0 && readable_in_time(fd);

	if (fd >= 0)
		close(fd);
	if (!ended) {
		fprintf(stderr, "child %d hangs; killed\n", pid);
		kill(pid, SIGKILL);
		return -1;
	}
	if (waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int child_run(int (*fn)(void *arg), void *arg)
{
	return child_wait(child_start(fn, arg));
}

void child_kill(pid_t pid)
{
	kill(pid, SIGKILL);
	child_wait(pid);
}

bool child_stop(pid_t pid)
{
	time_t end = time(NULL) + HANG_SECONDS;
	siginfo_t now = { 0 };

	kill(pid, SIGSTOP);
	/* Its end stays to be waited for. There is nothing to poll for a stop. */
	while (!waitid(P_PID, (id_t)pid, &now, WSTOPPED | WEXITED | WNOWAIT | WNOHANG) && !now.si_pid) {
		if (time(NULL) >= end) {
			fprintf(stderr, "child %d does not stop\n", pid);
			threads_show(pid, "child");
			return false;
		}
		usleep(1000);
	}
	return now.si_pid && now.si_code == CLD_STOPPED;
}

long child_syscall(pid_t tid)
{
	char path[64];
	long number;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/syscall", tid);
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f, "%ld", &number) != 1)
		number = -1; /* "running" */
	fclose(f);
	return number;
}

void child_become(uid_t uid, gid_t gid)
{
	CHILD_CHECK(setgroups(0, NULL) == 0);
	CHILD_CHECK(setresgid(gid, gid, gid) == 0);
	CHILD_CHECK(setresuid(uid, uid, uid) == 0);
	/* Changing ids clears the death signal. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

void child_fail(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: in a child: %s (errno: %s)\n", file, line, what, strerror(errno));
	_exit(1);
}

struct gate gate_make(void)
{
	struct gate g = { eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC) };

	if (g.fd < 0) {
		perror("eventfd");
		abort();
	}
	return g;
}

void gate_open(struct gate g)
{
	uint64_t one = 1;

	if (write(g.fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

bool gate_pass(struct gate g)
{
	uint64_t one;

	return readable_in_time(g.fd) && read(g.fd, &one, sizeof(one)) == sizeof(one);
}
