/*
 * netns.c - programs in other network namespaces, as in containers.
 *
 * Names of abstract sockets belong to a network namespace, so such a program cannot reach the control socket by its name, though it
 * has files of the mount open. It gets a socket of its own, in its namespace, for as long as its ticket is valid. What is listed
 * there (/proc/net/unix) others in the namespace can see; but the name is new each time, the ticket admits nobody but its user, and the
 * library does not believe whom it has reached later than the ticket's life after it asked: by then somebody else could have taken
 * the name.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/util.h"
#include "control/internal.h"

int netns_open(void)
{
	return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
}

static bool is_same(int fd, const struct stat *own)
{
	struct stat st;

	return !fstat(fd, &st) && st.st_dev == own->st_dev && st.st_ino == own->st_ino;
}

/* Make the socket there. The thread is back when this returns. */
static int listen_there(struct control *ctl, int netns, struct listener *out)
{
	int err = fault_point("netns.listen");

	if (err)
		return err;
	if (setns(netns, CLONE_NEWNET))
		return -errno;
	err = listener_open(out);
	if (setns(ctl->netns, CLONE_NEWNET))
		bug("a thread cannot return to the daemon's network namespace: %s", strerror(errno));
	return err;
}

int netns_listen(struct control *ctl, pid_t tid, struct listener *out)
{
	struct stat own;
	char path[48];
	int fd, err = 0;

	out->fd = -1;
	if (ctl->netns < 0 || fstat(ctl->netns, &own))
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)tid);
	fd = tid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	/* Nobody can tell: it is as likely as not where we are. */
	if (fd < 0)
		return 0;
	if (!is_same(fd, &own))
		err = listen_there(ctl, fd, out);
	close(fd);
	if (!err || err == -EMFILE || err == -ENFILE)
		return err;
	if (log_may(&ctl->pace))
		log_warn("control: process %d is in another network namespace, where no socket can be made for it: %s; "
			 "it was turned away", (int)tid, strerror(-err));
	return -EHOSTUNREACH;
}
