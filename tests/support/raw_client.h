/*
 * raw_client.h - a client of the daemon that does without the library, and so may leave out
 * what the library would not: its connection, one step at a time.
 */
#ifndef GAIA_TESTS_RAW_CLIENT_H
#define GAIA_TESTS_RAW_CLIENT_H

#include <criterion/criterion.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "child.h"
#include "gaia/protocol.h"

struct raw {
	int sock;
	struct gaia_client_key key;
};

/* A connected socket that has not said hello; -1: turned away. */
static inline int raw_socket(int fd, uint8_t ticket[16])
{
	struct gaia_ioc_connect io = { .version = GAIA_PROTOCOL_VERSION };
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = HANG_SECONDS };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	size_t n;

	memset(ticket, 0, 16);
	if (ioctl(fd, GAIA_IOC_CONNECT, &io))
		return -1;
	n = strnlen(io.socket, sizeof(io.socket));
	memcpy(addr.sun_path + 1, io.socket, n);
	if (connect(sock, (struct sockaddr *)&addr, offsetof(struct sockaddr_un, sun_path) + 1 + n))
		return -1;
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	memcpy(ticket, io.ticket, 16);
	return sock;
}

static inline struct gaia_msg raw_hello(const uint8_t ticket[16])
{
	struct gaia_msg msg = { .kind = GAIA_MSG_HELLO, .version = GAIA_PROTOCOL_VERSION };

	memcpy(msg.ticket, ticket, 16);
	return msg;
}

/* Receive a message and at most one descriptor. False: the daemon closed the socket. */
static inline bool raw_receive(int sock, struct gaia_msg *msg, int *fd)
{
	char control[CMSG_SPACE(GAIA_MSG_CHUNKS * sizeof(int))]
		__attribute__((aligned(_Alignof(struct cmsghdr))));
	struct iovec iov = { msg, sizeof(*msg) };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			      .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&hdr) : NULL;

	if (fd)
		*fd = -1;
	if (c && c->cmsg_type == SCM_RIGHTS && fd)
		memcpy(fd, CMSG_DATA(c), sizeof(*fd));
	return n == sizeof(*msg);
}

static inline bool raw_connect(int fd, struct raw *out)
{
	uint8_t ticket[16];
	struct gaia_msg msg;

	out->sock = raw_socket(fd, ticket);
	if (out->sock < 0)
		return false;
	msg = raw_hello(ticket);
	if (send(out->sock, &msg, sizeof(msg), MSG_NOSIGNAL) != sizeof(msg))
		return false;
	if (!raw_receive(out->sock, &msg, NULL) || msg.kind != GAIA_MSG_WELCOME)
		return false;
	out->key = msg.key;
	return true;
}

static inline struct raw raw_client(int fd)
{
	struct raw r;

	cr_assert(raw_connect(fd, &r), "no connection: %s", strerror(errno));
	return r;
}

static inline uint64_t raw_map(int fd, const struct raw *r, uint64_t length, unsigned prot)
{
	struct gaia_ioc_map io = { .key = r->key, .length = length, .prot = prot };

	cr_assert_eq(ioctl(fd, GAIA_IOC_MAP, &io), 0, "%s", strerror(errno));
	return io.map;
}

static inline struct gaia_ioc_range raw_range(const struct raw *r, uint64_t map, uint64_t length,
				      unsigned prot)
{
	return (struct gaia_ioc_range){ .key = r->key, .map = map, .length = length,
					.prot = prot };
}

#endif
