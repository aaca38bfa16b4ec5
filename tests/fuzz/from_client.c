/*
 * from_client.c - what clients send to the daemon: ioctls, and packets on its socket.
 *
 * The real control room, over a cache that is played (fake_daemon.h). The input says what up to four clients do, one step after
 * the other. Only the very HELLO that was asked for makes a client; a key that is nobody's opens nothing; and
 * when the clients have gone, all that they had is gone.
 */
#include "fuzz.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "control/internal.h"
#include "fake_daemon.h"

#define CLIENTS 4
#define MOST_FDS 64u
#define MOST_STEPS 100
#define MOST_MAPS 40
#define NOBODY 65534

static struct peer {
	int sock; /* or -1 */
	bool asked, welcome;
	struct gaia_ioc_connect connect;
	struct gaia_client_key key;
	uint64_t map;
} client[CLIENTS];

static struct fuzz_input in;
static int file[3], strange[MOST_FDS];
static unsigned maps;

/* Room for the largest payload. */
union payload {
	struct gaia_ioc_connect connect;
	struct gaia_ioc_devices devices;
	struct gaia_ioc_map map;
	struct gaia_ioc_range range;
	struct gaia_ioc_lists lists;
	struct gaia_ioc_list list;
	struct gaia_ioc_report report;
	uint8_t byte[sizeof(struct gaia_ioc_devices)];
};

/* Bytes anywhere in a struct, few of them. */
static void poke(void *at, size_t size)
{
	uint16_t where;

	for (unsigned n = fuzz_below(&in, 6); n; n--) {
		fuzz_take(&in, &where, sizeof(where));
		((uint8_t *)at)[where % size] = fuzz_byte(&in);
	}
}

/* ---- the socket ---- */

/* Ranges for the lists to come: some as they should be, some of any bytes. */
static void write_lists(int fd)
{
	struct gaia_list_range range[67];

	for (unsigned i = 0; i < sizeof(range) / sizeof(*range); i++)
		range[i] = (struct gaia_list_range){ (uint64_t)fuzz_byte(&in) * (GAIA_PAGE / 4), fuzz_byte(&in) };
	if (fuzz_byte(&in) % 2)
		poke(range, sizeof(range));
	FUZZ_CHECK(pwrite(fd, range, sizeof(range), 0) == sizeof(range));
}

/* One packet, whose descriptors are closed: its length, 0 at the end, -1 and errno. */
static ssize_t receive(int sock, struct gaia_msg *msg, int flags)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(MOST_FDS * sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = msg, .iov_len = sizeof(*msg) };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	/* libFuzzer has a timer. */
	ssize_t n = TEMP_FAILURE_RETRY(recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC | flags));
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&hdr) : NULL;

	if (c && c->cmsg_type == SCM_RIGHTS)
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd = ((int *)CMSG_DATA(c))[i];

			if (msg->kind == GAIA_MSG_LISTS)
				write_lists(fd);
			close(fd);
		}
	return n;
}

static void drain(const struct peer *c)
{
	struct gaia_msg msg;

	while (c->sock >= 0 && receive(c->sock, &msg, MSG_DONTWAIT) > 0)
		;
}

/* With @n descriptors; or, where the kernel lets the daemon refuse them, with none. How many. */
static unsigned send_packet(int sock, const void *bytes, size_t len, unsigned n)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(MOST_FDS * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)bytes, .iov_len = len };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n) {
		hdr.msg_control = control.buf;
		hdr.msg_controllen = CMSG_SPACE(n * sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(&control.align), strange, n * sizeof(int));
	}
	if (TEMP_FAILURE_RETRY(sendmsg(sock, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT)) < 0 && errno == EPERM && n) {
		hdr.msg_control = NULL;
		hdr.msg_controllen = n = 0;
		(void)!TEMP_FAILURE_RETRY(sendmsg(sock, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT));
	}
	return n;
}

static void hang_up(struct peer *c)
{
	if (c->sock >= 0)
		close(c->sock);
	*c = (struct peer){ .sock = -1 };
}

static void open_socket(struct peer *c)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = 20 };
	size_t n = strnlen(c->connect.socket, sizeof(c->connect.socket));

	if (c->sock >= 0 || !c->asked)
		return;
	c->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	memcpy(addr.sun_path + 1, c->connect.socket, n);
	FUZZ_CHECK(!TEMP_FAILURE_RETRY(connect(c->sock, (struct sockaddr *)&addr,
					       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n))));
	setsockopt(c->sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

/* The client's first packet: its HELLO, or something that is no such thing. */
static void say_hello(struct peer *c)
{
	struct {
		struct gaia_msg msg;
		uint8_t more[255];
	} packet = { .msg = { .kind = GAIA_MSG_HELLO, .version = GAIA_PROTOCOL_VERSION } }, good;
	uint8_t how = fuzz_byte(&in), fds = how & 1 ? fuzz_byte(&in) : 0;
	size_t len = sizeof(packet.msg);
	struct gaia_msg answer;
	ssize_t n;

	if (c->sock < 0 || c->welcome)
		return;
	memcpy(packet.msg.ticket, c->connect.ticket, sizeof(packet.msg.ticket));
	good = packet;
	if (how & 2)
		poke(&packet.msg, sizeof(packet.msg));
	if (how & 4)
		len += fuzz_byte(&in);
	if (how & 8)
		len -= fuzz_byte(&in);
	fds = (uint8_t)send_packet(c->sock, &packet, len, fds % MOST_FDS);
	n = receive(c->sock, &answer, 0);
	if (len == sizeof(packet.msg) && !memcmp(&packet.msg, &good.msg, len) && !fds) {
		FUZZ_CHECK(n == sizeof(answer) && answer.kind == GAIA_MSG_WELCOME, "%zd bytes of kind %u: %s", n,
			   answer.kind, strerror(errno));
		c->welcome = true;
		c->key = answer.key;
		c->asked = false; /* its ticket is used up */
		return;
	}
	FUZZ_CHECK(n == 0 || (n < 0 && errno == ECONNRESET), "welcome to what said no HELLO: %zd bytes, %s", n,
		   n < 0 ? strerror(errno) : "");
	hang_up(c);
}

/* A client's later packet: an answer that nobody asked for, or anything. */
static void say_more(struct peer *c)
{
	struct gaia_msg msg[2] = { { .kind = fuzz_below(&in, 10), .version = GAIA_PROTOCOL_VERSION } };
	size_t len = sizeof(msg[0]);

	msg->seq = fuzz_byte(&in);
	msg->map = c->map;
	if (fuzz_byte(&in) % 2)
		poke(msg, sizeof(*msg));
	if (!fuzz_below(&in, 8))
		len = fuzz_byte(&in) * 4u;
	if (c->welcome)
		(void)send_packet(c->sock, msg, len, fuzz_byte(&in) % 8 ? 0 : fuzz_byte(&in) % MOST_FDS);
}

/* ---- ioctls ---- */

static bool is_somebodys(const struct gaia_client_key *key)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		if (client[i].welcome && !memcmp(&client[i].key, key, sizeof(*key)))
			return true;
	return false;
}

static void ask_for_ticket(struct peer *c)
{
	struct gaia_ioc_connect io = { .version = GAIA_PROTOCOL_VERSION, .features = GAIA_FEATURE_LISTS };

	if (fuzz_byte(&in) % 4 == 3)
		poke(&io, sizeof(io));
	if (c->sock >= 0 || fake_ioctl(file[0], GAIA_IOC_CONNECT, &io) || !io.socket[0])
		return;
	c->asked = true;
	c->connect = io;
}

enum { GOOD_KEY = 1, GOOD_MAP = 2, GOOD_RANGE = 4, GOOD_PROT = 8, POKED = 16 };

static void request(struct peer *c)
{
	static const unsigned long cmds[] = { GAIA_IOC_MAP, GAIA_IOC_ACQUIRE, GAIA_IOC_RELEASE, GAIA_IOC_SYNC,
					      GAIA_IOC_ADVISE, GAIA_IOC_UNMAP, GAIA_IOC_REPORT, GAIA_IOC_DEVICES,
					      GAIA_IOC_LISTS, GAIA_IOC_ACQUIREV, GAIA_IOC_RELEASEV };
	unsigned long cmd = cmds[fuzz_below(&in, 11)];
	struct gaia_client_key key;
	union payload io = { 0 };
	uint8_t how = fuzz_byte(&in), more = fuzz_byte(&in);
	bool map = cmd == GAIA_IOC_MAP, keyed = cmd != GAIA_IOC_DEVICES;
	int err;

	if (how & POKED)
		fuzz_take(&in, &io, _IOC_SIZE(cmd));
	if (keyed && how & GOOD_KEY)
		io.map.key = c->key;
	if (map && how & GOOD_MAP) {
		io.map.release = io.map.device = 0;
		io.map.flags &= GAIA_MAP_DETECTS;
		io.map.prot = more & 1 ? GAIA_PROT_READ : GAIA_PROT_READ | GAIA_PROT_WRITE;
	}
	if (map && how & GOOD_RANGE) {
		io.map.offset = more / 2 % 4 * GAIA_PAGE;
		io.map.length = 1 + more / 8 * (uint64_t)(GAIA_CHUNK / 4);
	}
	if (cmd == GAIA_IOC_ACQUIREV || cmd == GAIA_IOC_RELEASEV) {
		if (how & GOOD_MAP)
			io.list.map = c->map;
		if (how & GOOD_RANGE) {
			io.list.offset = more % 4 * 16;
			io.list.count = more / 4;
		}
		if (how & GOOD_PROT) {
			io.list.prot = cmd == GAIA_IOC_ACQUIREV ? 1u + more / 16 % 4 : more / 16 % 4 ? 0u : GAIA_PROT_UNUSED;
			if (cmd == GAIA_IOC_RELEASEV && more & 64)
				io.list.prot |= GAIA_PROT_TOLD;
			io.list.unanswered = 0;
			io.list.told = io.list.prot & GAIA_PROT_TOLD ? io.list.told % 8 : 0;
		}
	} else if (!map && keyed && cmd != GAIA_IOC_REPORT && cmd != GAIA_IOC_LISTS) {
		if (how & GOOD_MAP)
			io.range.map = c->map;
		if (how & GOOD_RANGE) {
			io.range.offset = more % 4 * GAIA_PAGE;
			io.range.length = cmd == GAIA_IOC_UNMAP ? 0 : more / 4;
			io.range.offset *= cmd != GAIA_IOC_UNMAP;
		}
		if (how & GOOD_PROT) {
			io.range.prot = cmd == GAIA_IOC_ACQUIRE ? 1u + more / 16 : cmd == GAIA_IOC_RELEASE && more / 16 % 4 == 0 ? GAIA_PROT_UNUSED : 0u;
			io.range.advice = cmd == GAIA_IOC_ADVISE ? GAIA_ADVISE_WILLNEED : 0;
		}
	}
	if (cmd == GAIA_IOC_REPORT && how & GOOD_PROT)
		io.report = (struct gaia_ioc_report){ .key = io.report.key, .what = 1 + more % 2 };
	if (map && maps == MOST_MAPS)
		return;
	key = io.map.key;
	err = fake_ioctl(file[fuzz_below(&in, 3)], cmd, &io);
	FUZZ_CHECK(err == 0 || errno > 0);
	FUZZ_CHECK(err || !keyed || is_somebodys(&key), "request %lx with nobody's key was carried out", cmd);
	if (err)
		return;
	if (map) {
		maps++;
		c->map = io.map.map;
	}
	for (unsigned i = 0; i < CLIENTS; i++)
		drain(&client[i]);
}

/* ---- all of it ---- */

/* Is served; and behind all other connections, so that none of those is still to be accepted. */
static void be_honest(struct peer *c)
{
	in = (struct fuzz_input){ 0 };
	ask_for_ticket(c);
	open_socket(c);
	say_hello(c);
	FUZZ_CHECK(c->welcome);
}

/* What was closed the daemon sees a moment later. */
static void await_the_end(unsigned descriptors)
{
	const struct control *ctl = fake_control();
	unsigned tries = 0;

	while (fake_seen().live || atomic_load(&ctl->n_live) || fuzz_descriptors() != descriptors) {
		FUZZ_CHECK(tries++ < 20000, "%u mappings and %u clients are left, %u descriptors of %u", fake_seen().live,
			   ctl->n_live, fuzz_descriptors(), descriptors);
		usleep(tries < 1000 ? 20 : 1000);
	}
	FUZZ_CHECK(!quota_use(fake_quota(), QUOTA_mappings).used && !quota_use(fake_quota(), QUOTA_pins).used);
	FUZZ_CHECK(quota_use(fake_quota(), QUOTA_clients).used == quota_use(fake_quota(), QUOTA_tickets).used);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	char path[64];

	fake_start();
	fake_chunks = 3;
	file[0] = fake_file();
	file[1] = fake_file();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file[0]);
	file[2] = open(path, O_RDONLY | O_CLOEXEC);
	FUZZ_CHECK(file[2] >= 0);
	for (unsigned i = 0; i < MOST_FDS; i++)
		strange[i] = i % 2 ? file[0] : open(i % 4 ? "/" : "/dev/null", O_RDONLY | O_CLOEXEC);
	for (unsigned i = 0; i < CLIENTS; i++)
		client[i].sock = -1;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const steps[])(struct peer *) = { ask_for_ticket, open_socket, say_hello, say_more,
								request,	request,     request,	hang_up };
	unsigned had = fuzz_descriptors();

	in = (struct fuzz_input){ data, size };
	maps = 0;
	fake_uid = fuzz_byte(&in) % 2 ? NOBODY : 0;
	for (unsigned n = 0; in.left && n < MOST_STEPS; n++) {
		uint8_t step = fuzz_byte(&in);

		steps[step % 8](&client[step / 8 % CLIENTS]);
	}
	for (unsigned i = 0; i < CLIENTS; i++)
		hang_up(&client[i]);
	be_honest(&client[0]);
	hang_up(&client[0]);
	await_the_end(had);
	return 0;
}
