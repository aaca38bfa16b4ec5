/*
 * notify.c - see notify.h.
 */
#include "base/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

#define READ_MS 5000

/* @with: a descriptor that goes along; -1: none. False: there is no manager, or it cannot be told. */
static bool tell(const char *state, int with)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .header = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) } };
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	const char *name = getenv("NOTIFY_SOCKET");
	size_t len = name ? strlen(name) : 0;
	struct iovec text = { .iov_base = (char *)state, .iov_len = strlen(state) };
	struct msghdr msg = { .msg_name = &to, .msg_iov = &text, .msg_iovlen = 1 };
	bool told;
	int fd;

	/* A path, or "@" and an abstract name. */
	if (!len || len >= sizeof(to.sun_path) || (name[0] != '/' && name[0] != '@'))
		return false;
	memcpy(to.sun_path, name, len);
	if (name[0] == '@')
		to.sun_path[0] = '\0';
	msg.msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	if (with >= 0) {
		memcpy(CMSG_DATA(&control.header), &with, sizeof(with));
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
	}
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	told = fd >= 0 && sendmsg(fd, &msg, MSG_NOSIGNAL) >= 0;
	if (!told)
		log_warn("the service manager at %s cannot be told: %s", name, strerror(errno));
	if (fd >= 0)
		close(fd);
	return told;
}

void notify_manager(const char *state)
{
	(void)tell(state, -1);
}

/* As sd_notify_barrier(3): the manager closes the descriptor when it has read all that was sent before. */
void notify_manager_last(const char *state)
{
	struct pollfd read_by_it;
	int ends[2];
	bool told;

	if (!tell(state, -1) || pipe2(ends, O_CLOEXEC))
		return;
	told = tell("BARRIER=1", ends[1]);
	close(ends[1]);
	read_by_it = (struct pollfd){ .fd = ends[0] };
	if (told && poll(&read_by_it, 1, READ_MS) <= 0)
		log_warn("the service manager does not read what it is told");
	close(ends[0]);
}
