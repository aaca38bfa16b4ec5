/*
 * raw_client.h - a client of the daemon without the library, which may leave out
 * what the library would not: its connection, one step at a time. Without features it is a client of
 * protocol 1.0.
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
static inline int raw_socket_with(int fd, uint64_t features, uint8_t ticket[16])
{
	struct gaia_ioc_connect io = { .version = GAIA_PROTOCOL_VERSION, .features = features };
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

static inline int raw_socket(int fd, uint8_t ticket[16])
{
	return raw_socket_with(fd, 0, ticket);
}

static inline struct gaia_msg raw_hello(const uint8_t ticket[16])
{
	struct gaia_msg msg = { .kind = GAIA_MSG_HELLO, .version = GAIA_PROTOCOL_VERSION };

	memcpy(msg.ticket, ticket, 16);
	return msg;
}

/*
 * Receive a message and at most one descriptor; and the spans of a GRANT, of which @n_spans come. False: the daemon closed the
 * socket.
 */
static inline bool raw_receive_spans(int sock, struct gaia_msg *msg, int *fd,
				     struct gaia_span span[GAIA_MSG_CHUNKS], unsigned *n_spans)
{
	char control[CMSG_SPACE(GAIA_MSG_CHUNKS * sizeof(int))]
		__attribute__((aligned(_Alignof(struct cmsghdr))));
	struct iovec iov[] = { { msg, sizeof(*msg) }, { span, GAIA_MSG_CHUNKS * sizeof(*span) } };
	struct msghdr hdr = { .msg_iov = iov, .msg_iovlen = 2, .msg_control = control,
			      .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&hdr) : NULL;

	if (fd)
		*fd = -1;
	if (c && c->cmsg_type == SCM_RIGHTS && fd)
		memcpy(fd, CMSG_DATA(c), sizeof(*fd));
	*n_spans = n > (ssize_t)sizeof(*msg) ? (n - sizeof(*msg)) / sizeof(*span) : 0;
	return n == (ssize_t)(sizeof(*msg) + *n_spans * sizeof(*span));
}

static inline bool raw_receive(int sock, struct gaia_msg *msg, int *fd)
{
	struct gaia_span span[GAIA_MSG_CHUNKS];
	unsigned n;

	return raw_receive_spans(sock, msg, fd, span, &n);
}

/* Whether the daemon has closed the socket, and not merely said nothing for long. What it sent before has been received. */
static inline bool raw_hung_up(int sock)
{
	char byte;
	ssize_t n = recv(sock, &byte, 1, 0);

	return n == 0 || (n < 0 && errno == ECONNRESET);
}

/* The answer to a GRANT. */
static inline bool raw_answer(int sock, const struct gaia_msg *grant, uint32_t error)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_GRANTED, .version = GAIA_PROTOCOL_VERSION,
				.seq = grant->seq, .map = grant->map, .error = error };

	return send(sock, &msg, sizeof(msg), MSG_NOSIGNAL) == sizeof(msg);
}

static inline bool raw_connect_with(int fd, uint64_t features, struct raw *out)
{
	uint8_t ticket[16];
	struct gaia_msg msg;

	out->sock = raw_socket_with(fd, features, ticket);
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

static inline bool raw_connect(int fd, struct raw *out)
{
	return raw_connect_with(fd, 0, out);
}

static inline struct raw raw_client_with(int fd, uint64_t features)
{
	struct raw r;

	cr_assert(raw_connect_with(fd, features, &r), "no connection: %s", strerror(errno));
	return r;
}

static inline struct raw raw_client(int fd)
{
	return raw_client_with(fd, 0);
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
