/*
 * wire.c - see wire.h.
 */
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* A daemon answers the handshake within microseconds. A stopped daemon must not stop the program. */
#define HANDSHAKE_TIMEOUT_S 10

/*
 * Since Linux 6.16 a page of a FUSE file is under writeback until the daemon has answered, so
 * sync_file_range() can wait for that. Older kernels write a temporary copy and end
 * the page's writeback at once; of the calls that wait for the copies only
 * fsync() and fdatasync() do not end the file's POSIX locks, as close() would.
 */
static bool range_push_waits(void)
{
	static atomic_int known; /* 1: yes, 2: no */
	int k = atomic_load_explicit(&known, memory_order_relaxed);

	if (!k) {
		struct utsname u;
		int major = 0, minor = 0;

		uname(&u);
		sscanf(u.release, "%d.%d", &major, &minor);
		k = major > 6 || (major == 6 && minor >= 16) ? 1 : 2;
		atomic_store_explicit(&known, k, memory_order_relaxed);
	}
	return k == 1;
}

static int sys_push(int fd, off_t off, off_t len)
{
	if (!range_push_waits())
		return fdatasync(fd);
	/* All three flags: with fewer it may return while pages still wait to be sent. */
	return sync_file_range(fd, off, len,
			       SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
			       SYNC_FILE_RANGE_WAIT_AFTER);
}

static int sys_ioctl(int fd, unsigned long request, void *arg)
{
	return ioctl(fd, request, arg);
}

static uint64_t monotonic_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

struct wire_sys wire_sys = { .ioctl = sys_ioctl, .push = sys_push, .now_ns = monotonic_ns };

int wire_error(void)
{
	switch (errno) {
	case ECONNABORTED: /* the error of requests that were under way when the connection was aborted */
		return -ENOTCONN;
	case ENOSR: /* see protocol.h */
		return -ENOBUFS;
	}
	return -errno;
}

int wire_ioctl(int fd, unsigned long request, void *arg)
{
	while (wire_sys.ioctl(fd, request, arg) < 0) {
		if (errno != EINTR)
			return wire_error();
	}
	return 0;
}

int wire_ioctl_once(int fd, unsigned long request, void *arg)
{
	return wire_sys.ioctl(fd, request, arg) < 0 ? wire_error() : 0;
}

int wire_first_ioctl(int fd, unsigned long request, void *arg)
{
	int err = wire_ioctl(fd, request, arg);

	/* File systems and drivers have several errors for an unknown request. */
	if (err == -EINVAL || err == -ENOSYS || err == -EOPNOTSUPP)
		return -ENOTTY;
	return err;
}

/* Move the file's times: see GAIA_FEATURE_TIMES. The call always fails, but the kernel has moved them by then. */
static void move_times(int fd)
{
	(void)!fallocate(fd, FALLOC_FL_KEEP_SIZE, GAIA_TOUCH_OFFSET, 1);
}

bool wire_changed_nothing(int err)
{
	return err == -EINVAL || err == -EINTR || err == -ENOBUFS || err == -ENOTCONN || err == -E2BIG;
}

static int release_by_ioctl(int fd, unsigned long request, void *io, const uint32_t *changed)
{
	int err = wire_ioctl(fd, request, io);

	/* A release that fails does not say whether it changed anything: assume so unless its error excludes it. */
	if (err ? !wire_changed_nothing(err) : *changed)
		move_times(fd);
	return err;
}

static int release_by_xattr(int fd, const char *name, const void *io, size_t size)
{
	while (fsetxattr(fd, name, io, size, 0) < 0) {
		if (errno == EALREADY)
			return 0;
		if (errno != EINTR)
			return wire_error();
	}
	return -EPROTO;
}

int wire_release(int fd, unsigned by, struct gaia_ioc_range *io)
{
	return by == GAIA_RELEASE_BY_IOCTL ? release_by_ioctl(fd, GAIA_IOC_RELEASE, io, &io->changed) :
					     release_by_xattr(fd, GAIA_XATTR_RELEASE, io, sizeof(*io));
}

int wire_releasev(int fd, unsigned by, struct gaia_ioc_list *io)
{
	return by == GAIA_RELEASE_BY_IOCTL ? release_by_ioctl(fd, GAIA_IOC_RELEASEV, io, &io->changed) :
					     release_by_xattr(fd, GAIA_XATTR_RELEASEV, io, sizeof(*io));
}

static int push(int fd, uint64_t off, uint64_t len)
{
	while (wire_sys.push(fd, off, len) < 0) {
		if (errno != EINTR)
			return wire_error();
	}
	return 0;
}

/*
 * If a write has made the file grow beyond @end, which was pushed up to there, only the kernel knows that until the last page
 * has been pushed.
 */
static int push_size(int fd, uint64_t end)
{
	struct statx st;
	int err = 0;

	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE, &st) == 0 &&
	    st.stx_size > end)
		err = push(fd, st.stx_size - 1, 1);
	return err;
}

int wire_push(int fd, uint64_t off, uint64_t len)
{
	int err = push(fd, off, len);

	return err ? err : push_size(fd, off + len);
}

/* A list takes so many calls at most; ranges that are so near to each other are pushed by one. */
#define PUSHES 64u
#define NEAR (256u << 10)

/* The end of what belongs to the first range, if ranges go together that are @near. *@k: the range behind that. */
static uint64_t joined_end(const struct gaia_list_range *range, size_t n, uint64_t near, size_t *k)
{
	uint64_t end = range[0].offset + range[0].length;

	for (*k = 1; *k < n && (range[*k].offset <= end || range[*k].offset - end <= near); ++*k) {
		uint64_t its = range[*k].offset + range[*k].length;

		end = its > end ? its : end;
	}
	return end;
}

static size_t count_joined(const struct gaia_list_range *range, size_t n, uint64_t near)
{
	size_t joined = 0, step;

	for (size_t k = 0; k < n; k += step, joined++)
		joined_end(range + k, n - k, near, &step);
	return joined;
}

int wire_push_list(int fd, const struct gaia_list_range *range, size_t n)
{
	/* fdatasync() pushes all of the file anyway: once will do. */
	uint64_t near = range_push_waits() ? NEAR : UINT64_MAX, end = 0;
	size_t step;
	int err = 0;

	while (count_joined(range, n, near) > PUSHES)
		near *= 4;
	for (size_t k = 0; k < n && !err; k += step) {
		end = joined_end(range + k, n - k, near, &step);
		err = push(fd, range[k].offset, end - range[k].offset);
	}
	return err || n == 0 ? err : push_size(fd, end);
}

int wire_socket(void)
{
	struct timeval limit = { .tv_sec = HANDSHAKE_TIMEOUT_S };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (sock < 0)
		return -errno;
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	return sock;
}

/* Whether a ticket that was asked for at @asked may be too old by now. */
static bool is_late(uint64_t asked)
{
	return wire_sys.now_ns() - asked >= GAIA_TICKET_S * 1000000000ull;
}

int wire_handshake(int sock, int fd, struct gaia_client_key *key, uint64_t *seq, uint64_t *features)
{
	struct gaia_ioc_connect io = {
		.version = GAIA_PROTOCOL_VERSION,
		.minor = GAIA_PROTOCOL_MINOR,
		.features = features ? *features : 0,
	};
	struct gaia_msg msg = { .kind = GAIA_MSG_HELLO, .version = GAIA_PROTOCOL_VERSION };
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct timeval no_limit = { 0 };
	int fds[GAIA_MSG_CHUNKS];
	uint64_t asked = wire_sys.now_ns();
	size_t name;
	unsigned n;
	int err;

	err = wire_first_ioctl(fd, GAIA_IOC_CONNECT, &io);
	if (err)
		return err;
	if (io.version != GAIA_PROTOCOL_VERSION)
		return -EPROTO;
	name = strnlen(io.socket, sizeof(io.socket));
	memcpy(addr.sun_path + 1, io.socket, name);
	while (connect(sock, (struct sockaddr *)&addr,
		       offsetof(struct sockaddr_un, sun_path) + 1 + name)) {
		/* Refused: the daemon is not there any more; it may have handed the mount over. */
		if (errno != EINTR)
			return is_late(asked) || errno == ECONNREFUSED ? -ESTALE : -ENOTCONN;
	}
	/* Until then nobody else could have had the name. */
	if (is_late(asked))
		return -ESTALE;
	memcpy(msg.ticket, io.ticket, sizeof(msg.ticket));
	err = wire_send(sock, &msg);
	if (!err)
		err = wire_failed(wire_receive(sock, true, &msg, fds, &n));
	/* It has hung up: the ticket was too old when the daemon got to it. */
	if (err == -ENOTCONN && is_late(asked))
		return -ESTALE;
	if (err)
		return err == -EAGAIN ? -ENOTCONN : err;
	if (msg.kind != GAIA_MSG_WELCOME) {
		while (n)
			close(fds[--n]);
		return -EPROTO;
	}
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &no_limit, sizeof(no_limit));
	*key = msg.key;
	*seq = msg.seq;
	if (features)
		*features &= io.features;
	return 0;
}

int wire_join(int *sock, int fd, struct gaia_client_key *key, uint64_t *seq, uint64_t *features)
{
	int err = -ESTALE;

	for (int tries = 0; tries < 2 && err == -ESTALE; tries++) {
		*sock = wire_socket();
		if (*sock < 0)
			return *sock;
		err = wire_handshake(*sock, fd, key, seq, features);
		if (err)
			close(*sock);
	}
	if (err)
		*sock = -1;
	return err == -ESTALE ? -ENOTCONN : err;
}

/* The descriptors that came with the message: up to GAIA_MSG_CHUNKS, for which there is room. */
static unsigned take_descriptors(struct msghdr *hdr, int *fd)
{
	unsigned n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(hdr); c; c = CMSG_NXTHDR(hdr, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fd, CMSG_DATA(c), n * sizeof(int));
	}
	return n;
}

/* How many descriptors a message of the daemon must have, or -EPROTO if it is not a valid message. */
static int check_message(const struct gaia_msg *msg)
{
	if (msg->version != GAIA_PROTOCOL_VERSION)
		return -EPROTO;
	switch (msg->kind) {
	case GAIA_MSG_WELCOME:
	case GAIA_MSG_MOVE:
	case GAIA_MSG_STAY:
	case GAIA_MSG_MOVED:
		return 0;
	case GAIA_MSG_GRANT:
		return msg->count && msg->count <= GAIA_MSG_CHUNKS ? (int)msg->count : -EPROTO;
	case GAIA_MSG_REVOKE:
		return msg->count && msg->count <= GAIA_MSG_CHUNKS ? 0 : -EPROTO;
	case GAIA_MSG_REPORT:
	case GAIA_MSG_LISTS:
		return msg->count == 1 ? 1 : -EPROTO;
	default:
		return -EPROTO;
	}
}

/* Whether a message of @len bytes has the length that its kind and count imply. It may have spans. */
static bool is_whole(const struct gaia_msg *msg, size_t len)
{
	size_t spans = msg->kind == GAIA_MSG_GRANT ? msg->count * sizeof(struct gaia_span) : 0;

	return len == sizeof(*msg) || len == sizeof(*msg) + spans;
}

/* Whether another chunk of the GRANT, or another extent, is of its @i-th extent. */
static bool is_met_again(const struct gaia_msg *msg, unsigned i)
{
	for (unsigned k = 0; k < msg->count; k++)
		if (k != i && msg->chunk[k] / GAIA_EXTENT_CHUNKS == msg->chunk[i] / GAIA_EXTENT_CHUNKS)
			return true;
	return false;
}

/* Whether the caller can map each of the GRANT's spans. @extents: as of wire_receive_extents(). */
static bool spans_are_known(const struct gaia_msg *msg, const struct gaia_span *span, uint64_t *extents)
{
	for (unsigned i = 0; i < msg->count; i++) {
		if (span[i].offset || span[i].flags & GAIA_SPAN_MUST)
			return false;
		if (span[i].length == GAIA_CHUNK)
			continue;
		if (!extents || span[i].length != GAIA_EXTENT || msg->chunk[i] % GAIA_EXTENT_CHUNKS || is_met_again(msg, i))
			return false;
		*extents |= 1ull << i;
	}
	return true;
}

int wire_receive(int sock, bool wait, struct gaia_msg *msg, int fd[GAIA_MSG_CHUNKS], unsigned *n)
{
	return wire_receive_extents(sock, wait, msg, fd, n, NULL);
}

int wire_receive_extents(int sock, bool wait, struct gaia_msg *msg, int fd[GAIA_MSG_CHUNKS], unsigned *n, uint64_t *extents)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(GAIA_MSG_CHUNKS * sizeof(int))];
	} control;
	struct gaia_span span[GAIA_MSG_CHUNKS];
	struct iovec iov[] = {
		{ .iov_base = msg, .iov_len = sizeof(*msg) },
		{ .iov_base = span, .iov_len = sizeof(span) },
	};
	struct msghdr hdr;
	unsigned got, resets = 0;
	ssize_t len;
	int want, failed = 0;

	do {
		hdr = (struct msghdr){
			.msg_iov = iov,
			.msg_iovlen = 2,
			.msg_control = control.buf,
			.msg_controllen = sizeof(control.buf),
		};
		len = recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
		/* If a daemon ends without having read all the kernel reports that first, once, and then what it has sent. */
	} while (len < 0 && (errno == EINTR || (errno == ECONNRESET && !wait && !resets++)));
	if (len < 0 && errno == EAGAIN)
		return -EAGAIN;
	if (len <= 0)
		return -ENOTCONN;

	if (extents)
		*extents = 0;
	got = take_descriptors(&hdr, fd);
	want = len >= (ssize_t)sizeof(*msg) && !(hdr.msg_flags & MSG_TRUNC) ? check_message(msg) : -EPROTO;
	/* There may be fewer descriptors than were sent: the kernel gives only as many as the process may still have. */
	if (want < 0 || !is_whole(msg, len))
		failed = -EPROTO;
	else if (hdr.msg_flags & MSG_CTRUNC)
		failed = EMFILE;
	else if (got != (unsigned)want)
		failed = -EPROTO;
	else if (len > (ssize_t)sizeof(*msg) && !spans_are_known(msg, span, extents))
		failed = EPROTO;
	while (failed && got)
		close(fd[--got]);
	*n = got;
	return failed;
}

int wire_send(int sock, const struct gaia_msg *msg)
{
	ssize_t len;

	do {
		len = send(sock, msg, sizeof(*msg), MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (len < 0 && errno == EINTR);
	return len == sizeof(*msg) ? 0 : -ENOTCONN;
}

bool wire_hung_up(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLRDHUP };
	int n;

	/* A signal interrupts even this call, which does not wait. */
	do {
		n = poll(&p, 1, 0);
	} while (n < 0 && errno == EINTR);
	return n != 0;
}
