/*
 * from_daemon.c - what a daemon sends to the client library: replies to ioctls, and messages with descriptors.
 *
 * The library is to end the connection or refuse, and to keep no descriptor. One thread is the daemon: it takes a
 * connection, sends what the input says, and hangs up; and on all later connections at once. The input: how long its first part is; the replies; the messages.
 */
#include "fuzz.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "gaia/client.h"
#include "wire.h"

#define MAP 77u /* the mapping's number, where the reply is good */
#define MOST_FDS 70u
#define MOST_TAIL 2048u

static struct fuzz_input replies, messages;
static int listener, stop, file;
static struct sockaddr_un name;
static socklen_t name_len;
static pthread_t daemon_thread;
static bool started;

/* What may come where a chunk is expected. */
static int strange[6];

/* ---- messages ---- */

static void send_packet(int sock, const void *bytes, size_t len, unsigned n, uint8_t what)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(MOST_FDS * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)bytes, .iov_len = len };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1 };
	int fd[MOST_FDS];

	/* Mostly chunks. */
	for (unsigned i = 0; i < n; i++)
		fd[i] = strange[i == what % 64u ? what / 64 + 1u : 0];
	if (n) {
		hdr.msg_control = control.buf;
		hdr.msg_controllen = CMSG_SPACE(n * sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fd, n * sizeof(int));
	}
	/* It may have hung up. */
	(void)!TEMP_FAILURE_RETRY(sendmsg(sock, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT));
}

enum { ODD_VERSION = 1, ODD_SEQ = 2, ODD_MAP = 4, ODD_COUNT = 8, ODD_BYTES = 16, TAIL = 32, ODD_FDS = 64, SPREAD = 128 };

static void send_message(int sock, uint64_t *seq)
{
	static const uint32_t kinds[] = { GAIA_MSG_GRANT, GAIA_MSG_REVOKE, GAIA_MSG_WELCOME, GAIA_MSG_REPORT };
	struct fuzz_input *in = &messages;
	struct {
		struct gaia_msg msg;
		uint8_t tail[MOST_TAIL];
	} packet = { 0 };
	struct gaia_msg *msg = &packet.msg;
	uint8_t how = fuzz_byte(in), kind = fuzz_byte(in), count = fuzz_byte(in), first = fuzz_byte(in);
	unsigned fds;
	size_t len = sizeof(*msg);

	msg->kind = kind < 250 ? kinds[kind % 4] : kind;
	msg->version = GAIA_PROTOCOL_VERSION + !!(how & ODD_VERSION);
	msg->seq = how & ODD_SEQ ? fuzz_byte(in) : ++*seq;
	msg->map = how & ODD_MAP ? fuzz_byte(in) : MAP;
	msg->prot = msg->kind == GAIA_MSG_GRANT ? kind / 4 % 4 : 0;
	msg->count = how & ODD_COUNT ? count : 1 + count % 4u;
	for (unsigned i = 0; i < GAIA_MSG_CHUNKS; i++)
		msg->chunk[i] = first % 8 + (how & SPREAD ? (uint64_t)i * first : i);
	if (how & ODD_BYTES)
		for (unsigned n = fuzz_below(in, 8); n; n--) {
			uint16_t at;

			fuzz_take(in, &at, sizeof(at));
			((uint8_t *)msg)[at % sizeof(*msg)] = fuzz_byte(in);
		}
	if (how & TAIL) {
		size_t tail = fuzz_byte(in) * 8u;

		fuzz_take(in, packet.tail, tail);
		len += tail;
		len -= fuzz_byte(in);
	}
	fds = msg->kind == GAIA_MSG_GRANT ? msg->count : msg->kind == GAIA_MSG_REPORT;
	if (how & ODD_FDS)
		fds = fuzz_byte(in);
	send_packet(sock, &packet, len, fds < MOST_FDS ? fds : MOST_FDS, fuzz_byte(in));
}

static void *be_daemon(void *arg)
{
	struct pollfd p[2] = { { .fd = listener, .events = POLLIN }, { .fd = stop, .events = POLLIN } };
	struct gaia_msg welcome = { .kind = GAIA_MSG_WELCOME, .version = GAIA_PROTOCOL_VERSION, .seq = 1 };
	struct gaia_msg said;
	uint64_t seq = 1;
	int sock;

	FUZZ_CHECK(TEMP_FAILURE_RETRY(poll(p, 2, -1)) > 0); /* libFuzzer has a timer */
	if (!p[0].revents)
		return NULL;
	sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	FUZZ_CHECK(sock >= 0);
	if (fuzz_byte(&messages) % 8)
		send_packet(sock, &welcome, sizeof(welcome), 0, 0);
	/* As many as the socket takes. */
	for (unsigned n = 0; messages.left && n < 200; n++)
		send_message(sock, &seq);
	/* Hangs up behind them: a socket that is closed with unread packets takes back what it sent. */
	shutdown(sock, SHUT_WR);
	p[0].fd = sock;
	do
		FUZZ_CHECK(TEMP_FAILURE_RETRY(poll(p, 2, -1)) > 0);
	while (!p[1].revents && TEMP_FAILURE_RETRY(recv(sock, &said, sizeof(said), MSG_DONTWAIT)) > 0);
	close(sock);
	/* Who connects again finds one that hangs up. */
	p[0].fd = listener;
	for (;;) {
		FUZZ_CHECK(TEMP_FAILURE_RETRY(poll(p, 2, -1)) > 0);
		if (p[1].revents)
			return NULL;
		sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		FUZZ_CHECK(sock >= 0);
		close(sock);
	}
}

/* ---- replies ---- */

static void start_daemon(void)
{
	if (!started)
		FUZZ_CHECK(!pthread_create(&daemon_thread, NULL, be_daemon, NULL));
	started = true;
}

enum { FAILS = 1, RAW = 2 };

static int reply(int fd, unsigned long request, void *arg)
{
	static const int errors[] = { EIO, EINVAL, ENOTCONN, ENOTTY, EPROTO, ENOBUFS, ENOMEM, EINTR };
	uint8_t how = fuzz_byte(&replies);

	if (how & FAILS) {
		errno = errors[how / 4 % 8];
		return -1;
	}
	if (how & RAW && _IOC_DIR(request) & _IOC_READ)
		fuzz_take(&replies, arg, _IOC_SIZE(request));
	if (request == GAIA_IOC_CONNECT) {
		struct gaia_ioc_connect *io = arg;

		start_daemon();
		if (how & 4)
			return 0;
		io->version = GAIA_PROTOCOL_VERSION;
		memcpy(io->socket, name.sun_path + 1, sizeof(io->socket));
	} else if (request == GAIA_IOC_DEVICES && !(how & 4)) {
		struct gaia_ioc_devices *io = arg;

		io->total = io->count = 1;
		strcpy(io->device[0].kind, "sim");
	} else if (request == GAIA_IOC_MAP && !(how & 4)) {
		struct gaia_ioc_map *io = arg;

		io->map = MAP;
		io->release = how / 8 % 2;
	} else if (request == GAIA_IOC_ACQUIRE && !(how & 4)) {
		((struct gaia_ioc_range *)arg)->seq = how / 8 % 8;
	}
	return 0;
}

static int push(int fd, off_t off, off_t len)
{
	return 0;
}

/* ---- the program ---- */

static void use(void)
{
	static struct gaia_device_info info[3];
	uint8_t how = fuzz_byte(&replies);
	size_t length = 1 + (how & 7) * (size_t)GAIA_CHUNK / 2;
	int prot = how & 8 ? PROT_READ : PROT_READ | PROT_WRITE;
	char *p = gaia_mmap(length, prot, file, how / 16 * (off_t)GAIA_CHUNK / 4, 0);

	gaia_devices(file, info, how % 4);
	if (p == MAP_FAILED)
		return;
	gaia_acquire(p, length, prot);
	gaia_advise(p, length, GAIA_WILLNEED);
	gaia_acquire(p + length / 2, length - length / 2, PROT_READ);
	gaia_release(p, length);
	gaia_sync(p, length);
	gaia_munmap(p, length);
	FUZZ_CHECK(gaia_munmap(p, length) == -1 && errno == EINVAL, "it is still mapped: %s", strerror(errno));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	int pipe_fd[2];

	name.sun_family = AF_UNIX;
	name_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			       snprintf(name.sun_path + 1, 40, "gaiafs-fuzz/%d", (int)getpid()));
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	FUZZ_CHECK(listener >= 0 && !bind(listener, (struct sockaddr *)&name, name_len) && !listen(listener, 8), "%s",
		   strerror(errno));
	stop = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	file = memfd_create("file", MFD_CLOEXEC);
	strange[0] = memfd_create("chunk", MFD_CLOEXEC);
	FUZZ_CHECK(stop >= 0 && file >= 0 && !ftruncate(strange[0], GAIA_CHUNK) && !pipe2(pipe_fd, O_CLOEXEC));
	strange[1] = memfd_create("short", MFD_CLOEXEC);
	strange[2] = pipe_fd[0];
	strange[3] = open("/", O_PATH | O_CLOEXEC);
	strange[4] = listener;
	strange[5] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	wire_sys.ioctl = reply;
	wire_sys.push = push;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input in = { data, size };
	uint64_t one = 1;
	uint16_t split;
	unsigned had = fuzz_descriptors();

	fuzz_take(&in, &split, sizeof(split));
	if (split > in.left)
		split = (uint16_t)in.left;
	replies = (struct fuzz_input){ in.at, split };
	messages = (struct fuzz_input){ in.at + split, in.left - split };
	use();
	if (started) {
		FUZZ_CHECK(write(stop, &one, sizeof(one)) == sizeof(one));
		pthread_join(daemon_thread, NULL);
		FUZZ_CHECK(read(stop, &one, sizeof(one)) == sizeof(one));
		started = false;
	}
	FUZZ_CHECK(fuzz_descriptors() == had, "a descriptor was kept");
	return 0;
}
