/* parcel.c - see parcel.h. */
#include "base/parcel.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void parcel_init(struct parcel *p, uint32_t kind)
{
	p->size = p->at = 0;
	p->n_fds = p->next_fd = 0;
	p->bad = false;
	parcel_put(p, kind);
}

bool parcel_has_room(const struct parcel *p, size_t bytes, unsigned fds)
{
	return bytes <= PARCEL_BYTES - p->size && fds <= PARCEL_FDS - p->n_fds;
}

static void put(struct parcel *p, const void *bytes, size_t n)
{
	p->bad |= !parcel_has_room(p, n, 0);
	if (p->bad)
		return;
	memcpy(p->bytes + p->size, bytes, n);
	p->size += n;
}

void parcel_put(struct parcel *p, uint64_t number)
{
	put(p, &number, sizeof(number));
}

void parcel_put_bytes(struct parcel *p, const void *bytes, size_t n)
{
	parcel_put(p, n);
	put(p, bytes, n);
}

/* With its NUL, so that it is a string where it is unpacked. */
void parcel_put_text(struct parcel *p, const char *text)
{
	parcel_put_bytes(p, text, strlen(text) + 1);
}

void parcel_put_fd(struct parcel *p, int fd)
{
	parcel_put(p, fd >= 0);
	p->bad |= !parcel_has_room(p, 0, fd >= 0);
	if (fd >= 0 && !p->bad)
		p->fd[p->n_fds++] = fd;
}

/* Room for all descriptors of a packet. */
union rights {
	char room[CMSG_SPACE(PARCEL_FDS * sizeof(int))];
	struct cmsghdr align;
};

static int error_of(int err)
{
	switch (err) {
	case EAGAIN:
		return -ETIMEDOUT;
	case ECONNRESET:
	case ENOTCONN:
		return -EPIPE;
	}
	return -err;
}

int parcel_send(int sock, struct parcel *p)
{
	struct iovec part = { p->bytes, p->size };
	struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1 };
	union rights rights = { .room = { 0 } };
	struct cmsghdr *c;
	ssize_t n;

	if (p->bad)
		return -E2BIG;
	if (p->n_fds) {
		msg.msg_control = rights.room;
		msg.msg_controllen = CMSG_SPACE(p->n_fds * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(p->n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), p->fd, p->n_fds * sizeof(int));
	}
	do
		n = sendmsg(sock, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? error_of(errno) : 0;
}

static void take_rights(struct parcel *p, struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		p->n_fds = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(p->fd, CMSG_DATA(c), p->n_fds * sizeof(int));
	}
}

int parcel_receive(int sock, struct parcel *p, uint32_t kind)
{
	struct iovec part = { p->bytes, sizeof(p->bytes) };
	union rights rights;
	struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = rights.room, .msg_controllen = sizeof(rights.room) };
	ssize_t n;
	int err = 0;

	p->size = p->at = 0;
	p->n_fds = p->next_fd = 0;
	p->bad = false;
	do
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n ? error_of(errno) : -EPIPE;
	take_rights(p, &msg);
	p->size = (size_t)n;
	if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || parcel_get(p) != kind)
		err = -EPROTO;
	if (err)
		parcel_drop(p);
	return err;
}

static const void *get(struct parcel *p, size_t n)
{
	const void *bytes = p->bytes + p->at;

	p->bad |= n > p->size - p->at;
	if (p->bad)
		return NULL;
	p->at += n;
	return bytes;
}

uint64_t parcel_get(struct parcel *p)
{
	const void *bytes = get(p, sizeof(uint64_t));
	uint64_t number = 0;

	if (bytes)
		memcpy(&number, bytes, sizeof(number));
	return number;
}

const void *parcel_get_bytes(struct parcel *p, size_t *n)
{
	const void *bytes;

	*n = parcel_get(p);
	bytes = get(p, *n);
	if (!bytes)
		*n = 0;
	return bytes;
}

const char *parcel_get_text(struct parcel *p)
{
	size_t n;
	const char *text = parcel_get_bytes(p, &n);

	p->bad |= !n || text[n - 1];
	return p->bad ? "" : text;
}

int parcel_get_fd(struct parcel *p)
{
	bool has = parcel_get(p);

	p->bad |= has && p->next_fd == p->n_fds;
	return has && !p->bad ? p->fd[p->next_fd++] : -1;
}

bool parcel_good(const struct parcel *p)
{
	return !p->bad;
}

bool parcel_is_empty(const struct parcel *p)
{
	return p->bad || p->at == p->size;
}

void parcel_drop(struct parcel *p)
{
	while (p->next_fd < p->n_fds)
		close(p->fd[p->next_fd++]);
}
