/*
 * sections.c - see sections.h.
 */
#include "sections.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "neighbour.h"
#include "rows.h"

#define FDS_AT_ONCE 64u

bool quick;
bool beside;
const char *argument;

static const char *program = "measure";
static bool is_other;

static void say(const char *fmt, va_list args)
{
	char text[512];
	int n = snprintf(text, sizeof(text), "%s: ", program);

	vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, args);
	fprintf(stderr, "%s\n", text);
}

void die(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	say(fmt, args);
	va_end(args);
	_exit(1); /* nothing of CUDA's own, which may hang now */
}

void does_not_apply(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	say(fmt, args);
	va_end(args);
	_exit(77);
}

/* ---- the other process ---- */

struct other other_start(void (*run)(int sock))
{
	struct other o;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		die("socketpair: %s", strerror(errno));
	o.pid = fork();
	if (o.pid < 0)
		die("fork: %s", strerror(errno));
	if (o.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		is_other = true;
		close(pair[0]);
		run(pair[1]);
		_exit(0);
	}
	close(pair[1]);
	o.sock = pair[0];
	return o;
}

void other_end(struct other *o)
{
	int status;

	close(o->sock);
	if (waitpid(o->pid, &status, 0) < 0 || status)
		die("the other process failed");
}

/* The other process has ended. It has said why, unless it was killed. */
static void gone(void)
{
	int status;

	if (is_other)
		_exit(0);
	if (wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status))
		_exit(1);
	die("the other process is gone");
}

void tell(int sock, const void *message, unsigned bytes)
{
	if (send(sock, message, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
		gone();
}

void hear(int sock, void *message, unsigned bytes)
{
	if (recv(sock, message, bytes, MSG_WAITALL) != (ssize_t)bytes)
		gone();
}

union fd_control {
	struct cmsghdr align;
	char buf[CMSG_SPACE(FDS_AT_ONCE * sizeof(int))];
};

void tell_fds(int sock, const int *fd, unsigned n)
{
	union fd_control control = { .buf = { 0 } };
	struct iovec iov = { "", 1 };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			      .msg_controllen = CMSG_SPACE(n * sizeof(int)) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&hdr);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(c), fd, n * sizeof(int));
	if (sendmsg(sock, &hdr, MSG_NOSIGNAL) != 1)
		gone();
}

void hear_fds(int sock, int *fd, unsigned n)
{
	union fd_control control;
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *c;

	if (recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC) != 1)
		gone();
	c = CMSG_FIRSTHDR(&hdr);
	if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(n * sizeof(int)))
		die("descriptors did not arrive: a limit on open files?");
	memcpy(fd, CMSG_DATA(c), n * sizeof(int));
}

/* ---- the program ---- */

static int usage(const struct section *table)
{
	fprintf(stderr, "usage: %s [--beside] --list | [--quick] [--beside] SECTION [ARGUMENT]; sections:", program);
	for (; table->name; table++)
		fprintf(stderr, " %s", table->name);
	fprintf(stderr, "\n");
	return 2;
}

/* A descriptor a chunk. */
static void raise_limits(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

static int list(const struct section *table)
{
	for (; table->name; table++)
		if (!beside || table->beside)
			printf("%s %u\n", table->name, beside ? table->beside : table->seconds);
	return fflush(stdout) ? 1 : 0;
}

void section_done(void)
{
	neighbour_end();
	_exit(0); /* no driver may hang in its own end */
}

int sections_main(const char *name, const struct section *table, int argc, char **argv)
{
	const char *section = NULL;
	bool list_only = false;

	program = name;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--quick"))
			quick = true;
		else if (!strcmp(argv[i], "--beside"))
			beside = true;
		else if (!strcmp(argv[i], "--list"))
			list_only = true;
		else if (argv[i][0] == '-')
			return usage(table);
		else if (!section)
			section = argv[i];
		else if (!argument)
			argument = argv[i];
		else
			return usage(table);
	}
	if (list_only)
		return list(table);
	if (!section)
		return usage(table);
	while (table->name && strcmp(table->name, section) != 0)
		table++;
	if (!table->name) {
		fprintf(stderr, "%s: there is no section %s\n", program, section);
		return 2;
	}
	if (beside && !table->beside) {
		fprintf(stderr, "%s: section %s is not for --beside\n", program, section);
		return 2;
	}
	raise_limits();
	rows_section(table->name);
	if (beside)
		neighbour_fork();
	table->run();
	section_done();
}
