/* send.c - messages to clients. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/log.h"
#include "base/util.h"
#include "control/internal.h"

/* Wait until sending may have become possible: 0, or -ETIMEDOUT. */
static int wait_to_send(struct client *c, int why, uint64_t deadline)
{
	struct pollfd p = { .fd = c->fd, .events = POLLOUT };
	uint64_t now = now_ns();

	if (now >= deadline)
		return -ETIMEDOUT;
	/*
	 * ETOOMANYREFS: too many descriptors of this user are in flight in sockets, to any client.
	 * There is no event for their becoming fewer.
	 */
	if (why == ETOOMANYREFS)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	else
		poll(&p, 1, (deadline - now) / 1000000 + 1);
	return 0;
}

/* send_lock is held. @span: one for each chunk of @msg, or NULL. -ETIMEDOUT: there was no room until @deadline. */
static int send_packet(struct client *c, const struct gaia_msg *msg, const struct gaia_span *span, const int *fd, unsigned n,
		       uint64_t deadline)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(GAIA_MSG_CHUNKS * sizeof(int))];
	} control;
	struct iovec iov[] = {
		{ .iov_base = (void *)msg, .iov_len = sizeof(*msg) },
		{ .iov_base = (void *)span, .iov_len = msg->count * sizeof(*span) },
	};
	struct msghdr hdr = { .msg_iov = iov, .msg_iovlen = span ? 2 : 1 };

	bug_on(n > GAIA_MSG_CHUNKS);
	if (n) {
		struct cmsghdr *cmsg;

		memset(&control, 0, sizeof(control));
		hdr.msg_control = control.buf;
		hdr.msg_controllen = CMSG_SPACE(n * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&hdr);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fd, n * sizeof(int));
	}
	while (!atomic_load(&c->dead)) {
		int err;

		if (sendmsg(c->fd, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 0;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN && errno != ETOOMANYREFS && errno != ENOBUFS && errno != ENOMEM)
			return -errno;
		err = wait_to_send(c, errno == EAGAIN ? EAGAIN : ETOOMANYREFS, deadline);
		if (err)
			return err;
	}
	return -ENOTCONN;
}

static int send_numbered(struct client *c, struct gaia_msg *msg, const struct gaia_span *span, const int *fd, unsigned n, uint64_t deadline)
{
	int err;

	msg->version = GAIA_PROTOCOL_VERSION;
	msg->seq = c->seq + 1;
	err = send_packet(c, msg, span, fd, n, deadline);
	if (!err) {
		c->seq++;
		return 0;
	}
	if (err == -ETIMEDOUT && deadline == SEND_NOW)
		return -EAGAIN;
	/* Any client can bring that about, again and again: by refusing descriptors, for instance. */
	if (err != -ENOTCONN && err != -EPIPE && err != -ECONNRESET && log_may(&c->ctl->mute_pace))
		log_warn("control: client %d is disconnected: cannot send to it: %s", (int)c->pid,
			 strerror(-err));
	client_disconnect(c);
	return -ENOTCONN;
}

int send_next(struct client *c, struct gaia_msg *msg, const int *fd, unsigned n, uint64_t deadline)
{
	return send_numbered(c, msg, NULL, fd, n, deadline);
}

int send_grant(struct client *c, struct gaia_msg *msg, const int *fd, const unsigned *chunks, uint64_t deadline)
{
	struct gaia_span span[GAIA_MSG_CHUNKS];

	for (unsigned i = 0; i < msg->count; i++) {
		unsigned its = chunks ? chunks[i] : 1;

		bug_on(its != 1 && (its != GAIA_EXTENT_CHUNKS || msg->chunk[i] % GAIA_EXTENT_CHUNKS || !takes_extents(c)));
		span[i] = (struct gaia_span){ .length = its * (uint64_t)GAIA_CHUNK };
	}
	return send_numbered(c, msg, c->features & GAIA_FEATURE_SPANS ? span : NULL, fd, msg->count, deadline);
}

int client_send(struct client *c, struct gaia_msg *msg, const int *fd, unsigned n, uint64_t *seq)
{
	int err;

	pthread_mutex_lock(&c->send_lock);
	err = send_next(c, msg, fd, n, now_ns() + SEND_TIMEOUT_NS);
	if (!err)
		*seq = msg->seq;
	pthread_mutex_unlock(&c->send_lock);
	return err;
}

int client_try_send(struct client *c, struct gaia_msg *msg, const int *fd, unsigned n, uint64_t *seq)
{
	uint64_t until = now_ns() + TRY_SEND_NS;
	int err;

	/* Not pthread_mutex_clocklock(), which the thread sanitizer of older compilers does not know. */
	while (pthread_mutex_trylock(&c->send_lock)) {
		if (now_ns() >= until)
			return -EAGAIN;
		nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL);
	}
	err = send_next(c, msg, fd, n, SEND_NOW);
	if (!err)
		*seq = msg->seq;
	pthread_mutex_unlock(&c->send_lock);
	return err;
}
