/* background.c - see background.h. */
#include "background.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"

/* Wait for the daemon's word that the mount is live. If it is not, the daemon itself has logged why. */
_Noreturn static void be_parent(pid_t child, int from)
{
	char byte;
	ssize_t n;
	int status = 0;

	do
		n = read(from, &byte, 1);
	while (n < 0 && errno == EINTR);
	if (n == 1)
		_exit(0);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		log_error("the daemon died while starting: %s", strsignal(WTERMSIG(status)));
	_exit(1);
}

int background_go(int *parent)
{
	int ends[2], err;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC)) {
		err = -errno;
		goto fail;
	}
	child = fork();
	if (child < 0) {
		err = -errno;
		goto fail;
	}
	if (child) {
		close(ends[1]);
		be_parent(child, ends[0]);
	}
	close(ends[0]);
	*parent = ends[1];
	setsid();
	return 0;

fail:
	log_error("cannot go to the background: %s", strerror(-err));
	return err;
}

void background_tell(int *parent)
{
	int null;

	if (*parent < 0)
		return;
	if (chdir("/"))
		log_debug("/: %s", strerror(errno));
	log_to_syslog();
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int fd = 0; fd <= 2 && null >= 0; fd++)
		dup2(null, fd);
	if (null > 2)
		close(null);
	if (write(*parent, "+", 1) != 1)
		log_debug("the parent is gone: %s", strerror(errno));
	close(*parent);
	*parent = -1;
}
