/*
 * shell.c - see shell.h. Output goes to files in memory: a daemon that a
 * command leaves behind holds them without holding us up, as a pipe would.
 */
#include "shell.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>

static char *contents(int fd)
{
	off_t size = lseek(fd, 0, SEEK_END);
	char *text = calloc(1, size + 1);

	if (!text || pread(fd, text, size, 0) < 0)
		abort();
	close(fd);
	return text;
}

/* To append to: two threads that write to a file in memory at once have one offset otherwise, and no lock of it. */
static int catcher(const char *name)
{
	int fd = memfd_create(name, MFD_CLOEXEC);

	if (fd < 0 || fcntl(fd, F_SETFL, O_APPEND))
		abort();
	return fd;
}

static struct shell_result run(const char *cwd, int seconds, const char *line)
{
	int out = catcher("stdout"), err = catcher("stderr");
	struct pollfd p = { .events = POLLIN };
	struct shell_result r = { .status = -1 };
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setpgid(0, 0);
		if ((cwd && chdir(cwd)) || dup2(open("/dev/null", O_RDONLY), 0) < 0 ||
		    dup2(out, 1) < 0 || dup2(err, 2) < 0)
			_exit(126);
		setenv("GAIAFS", GAIAFS_BUILT, 0);
		setenv("GAIA", GAIA_BUILT, 0);
		execl("/bin/sh", "sh", "-c", line, NULL);
		_exit(127);
	}
	if (pid < 0)
		abort();
	p.fd = syscall(SYS_pidfd_open, pid, 0);
	if (poll(&p, 1, seconds * 1000) != 1)
		kill(-pid, SIGKILL);
	close(p.fd);
	if (waitpid(pid, &status, 0) == pid)
		r.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	r.out = contents(out);
	r.err = contents(err);
	return r;
}

static char *format(const char *fmt, va_list ap)
{
	char *line;

	if (vasprintf(&line, fmt, ap) < 0)
		abort();
	return line;
}

struct shell_result shell_run(const char *cwd, int seconds, const char *fmt, ...)
{
	struct shell_result r;
	va_list ap;
	char *line;

	va_start(ap, fmt);
	line = format(fmt, ap);
	va_end(ap);
	r = run(cwd, seconds, line);
	free(line);
	return r;
}

void shell_free(struct shell_result *r)
{
	free(r->out);
	free(r->err);
}

void shell_ok(const char *cwd, const char *fmt, ...)
{
	struct shell_result r;
	va_list ap;
	char *line;

	va_start(ap, fmt);
	line = format(fmt, ap);
	va_end(ap);
	r = run(cwd, 120, line);
	cr_assert_eq(r.status, 0, "%s: exit status %d\n%s%s", line, r.status, r.out, r.err);
	shell_free(&r);
	free(line);
}

void shell_gaia_fails(const char *cwd, int status, const char *args, const char *says)
{
	struct shell_result r = shell_run(cwd, 60, "\"$GAIA\" %s", args);
	char *newline = strchr(r.err, '\n');

	cr_assert_eq(r.status, status, "gaia %s: status %d: %s", args, r.status, r.err);
	cr_assert(newline && !newline[1], "gaia %s: not one line but \"%s\"", args, r.err);
	cr_assert(!says || strstr(r.err, says), "gaia %s: no \"%s\" in \"%s\"", args, says, r.err);
	cr_assert_str_eq(r.out, "", "gaia %s", args);
	shell_free(&r);
}

int shell_on_terminal(const char *cwd, int seconds, const char *command, char *said, size_t room)
{
	int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), status;
	struct shell_result r;
	size_t had = 0;
	ssize_t n;

	cr_assert(terminal >= 0 && !grantpt(terminal) && !unlockpt(terminal), "posix_openpt: %s", strerror(errno));
	r = shell_run(cwd, seconds, "%s 2> %s", command, ptsname(terminal));
	/* What was written stays to be read; then EIO: nobody has the other end. */
	while (had < room - 1 && (n = read(terminal, said + had, room - 1 - had)) > 0)
		had += (size_t)n;
	said[had] = '\0';
	close(terminal);
	status = r.status;
	shell_free(&r);
	return status;
}

const char *shell_lacks(const char *const *programs)
{
	for (; *programs; programs++) {
		struct shell_result r = shell_run(NULL, 60, "command -v %s", *programs);

		shell_free(&r);
		if (r.status)
			return *programs;
	}
	return NULL;
}
