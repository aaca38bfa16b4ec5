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
#include <pthread.h>
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

struct visit {
	int netns;
	struct listener *out;
	int err;
};

static void *visit_main(void *arg)
{
	struct visit *v = arg;

	v->err = setns(v->netns, CLONE_NEWNET) ? -errno : listener_open(v->out);
	return NULL;
}

/* Make the socket there, by a thread that ends there: the way back could fail for want of memory. */
static int listen_there(int netns, struct listener *out)
{
	struct visit v = { .netns = netns, .out = out };
	pthread_t thread;
	int err = fault_point("netns.listen");

	if (!err)
		err = -pthread_create(&thread, NULL, visit_main, &v);
	if (err)
		return err;
	pthread_join(thread, NULL);
	return v.err;
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
	/* The caller waits for our answer, so the number is its own. If it cannot be looked at it is as likely as not where we are. */
	if (fd < 0)
		return 0;
	if (!is_same(fd, &own))
		err = listen_there(fd, out);
	close(fd);
	if (!err || err == -EMFILE || err == -ENFILE)
		return err;
	if (log_may(&ctl->pace))
		log_warn("control: process %d is in another network namespace, where no socket can be made for it: %s; "
			 "it was turned away", (int)tid, strerror(-err));
	return -EHOSTUNREACH;
}
