/*
 * device_hostile.c - clients that lie: malformed ioctls and messages, other
 * clients' keys, chunks that they may not write.
 *
 * Whatever comes, the answer is an errno or a closed socket, and the daemon goes on
 * serving the others.
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "gaia/client.h"
#include "gaia/protocol.h"
#include "raw_client.h"
#include "ways.h"

#define MIB (1024 * 1024)
#define RW (PROT_READ | PROT_WRITE)

static int open_file(const char *name, int flags)
{
	int fd = openat(both_root[ON_MOUNT], name, flags | O_CLOEXEC, 0644);

	cr_assert_geq(fd, 0, "%s: %s", name, strerror(errno));
	return fd;
}

/* ioctl(2); a release is sent as this way of caching needs it. */
static int request(int fd, unsigned long cmd, void *arg)
{
	int err;

	if (cmd != GAIA_IOC_RELEASE || way_is("writeback"))
		return ioctl(fd, cmd, arg);
	cr_assert_eq(ioctl(fd, cmd, arg), -1);
	err = fsetxattr(fd, GAIA_XATTR_RELEASE, arg, sizeof(struct gaia_ioc_range), 0);
	cr_assert_eq(err, -1);
	return errno == EALREADY ? 0 : -1;
}

static int make_file(const char *name, size_t size, int byte)
{
	int fd = open_file(name, O_CREAT | O_RDWR);
	char *bytes = malloc(size);

	memset(bytes, byte, size);
	cr_assert_eq(pwrite(fd, bytes, size, 0), (ssize_t)size);
	/* A raw client does not do the library's CPU release. */
	cr_assert_eq(fsync(fd), 0);
	free(bytes);
	return fd;
}

/* The daemon lives, and a client that behaves is served well. */
static void all_is_well(void)
{
	int fd = make_file("well", 3 * 4096, '.');
	unsigned char *p = gaia_mmap(3 * 4096, RW, fd, 0, 0), got;

	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	cr_assert_eq(gaia_acquire(p, 3 * 4096, RW), 0, "%s", strerror(errno));
	p[5000] = 'd';
	cr_assert_eq(gaia_release(p, 3 * 4096), 0, "%s", strerror(errno));
	cr_assert_eq(pread(fd, &got, 1, 5000), 1);
	cr_assert_eq(got, 'd');
	cr_assert_eq(gaia_munmap(p, 3 * 4096), 0);
	close(fd);
}

#define REFUSED(call, ...)                                                                     \
	do {                                                                                   \
		static const int refused_ok[] = { __VA_ARGS__ };                               \
		bool refused_so = false;                                                       \
		errno = 0;                                                                     \
		cr_assert_eq((call), -1, "%s was carried out", #call);                         \
		for (size_t refused_i = 0; refused_i < sizeof(refused_ok) / sizeof(int); refused_i++) \
			refused_so |= errno == refused_ok[refused_i];                          \
		cr_assert(refused_so, "%s: %s", #call, strerror(errno));                       \
	} while (0)

EACH_WAY(device_hostile, malformed_ioctls_are_refused)
{
	int fd = make_file("f", MIB, 'x'), root = both_root[ON_MOUNT];
	struct gaia_ioc_connect connect = { .version = GAIA_PROTOCOL_VERSION + 1 };
	struct gaia_ioc_devices devices = { .first = UINT32_MAX };
	struct gaia_ioc_map good = { .length = MIB, .prot = 3 }, m;
	struct gaia_ioc_file file = { .reserved = 1 };
	struct gaia_ioc_report report = { .what = 99 };
	struct raw r = raw_client(fd);

	REFUSED(ioctl(fd, GAIA_IOC_CONNECT, &connect), EPROTO);
	cr_assert_eq(ioctl(fd, GAIA_IOC_DEVICES, &devices), 0);
	cr_assert_eq(devices.count, 0u);
	devices = (struct gaia_ioc_devices){ .reserved = 1 };
	REFUSED(ioctl(fd, GAIA_IOC_DEVICES, &devices), EINVAL);

	good.key = r.key;
	m = good, m.key.secret ^= 1;
	REFUSED(ioctl(fd, GAIA_IOC_MAP, &m), ENOTCONN);
	m = good, m.key.id ^= 1;
	REFUSED(ioctl(fd, GAIA_IOC_MAP, &m), ENOTCONN);
	m = good, memset(&m.key, 0, sizeof(m.key));
	REFUSED(ioctl(fd, GAIA_IOC_MAP, &m), ENOTCONN);
	m = good, m.offset = 1;
	REFUSED(ioctl(fd, GAIA_IOC_MAP, &m), EINVAL);
	m = good, m.offset = UINT64_MAX - 4095;
	REFUSED(ioctl(fd, GAIA_IOC_MAP, &m), EOVERFLOW, EINVAL);
	m = good, m.offset = (uint64_t)INT64_MAX - 4095;
	REFUSED(ioctl(fd, GAIA_IOC_MAP, &m), EOVERFLOW);
	m = good, m.length = 0;
	REFUSED(ioctl(fd, GAIA_IOC_MAP, &m), EINVAL);
	m = good, m.length = UINT64_MAX;
	REFUSED(ioctl(fd, GAIA_IOC_MAP, &m), EOVERFLOW);
	m = good, m.device = 1;
	REFUSED(ioctl(fd, GAIA_IOC_MAP, &m), ENODEV);
	m = good, m.device = UINT32_MAX;
	REFUSED(ioctl(fd, GAIA_IOC_MAP, &m), ENODEV);
	for (unsigned prot = 0; prot < 40; prot++) {
		m = good, m.prot = prot;
		if (prot != 1 && prot != 3)
			REFUSED(ioctl(fd, GAIA_IOC_MAP, &m), EINVAL);
	}
	m = good;
	REFUSED(ioctl(root, GAIA_IOC_MAP, &m), ENODEV);

	file.from = GAIA_FROM_HOME;
	REFUSED(ioctl(fd, GAIA_IOC_EVICT, &file), EINVAL);
	file = (struct gaia_ioc_file){ .offset = UINT64_MAX, .from = GAIA_FROM_HOME };
	REFUSED(ioctl(fd, GAIA_IOC_EVICT, &file), EINVAL);
	file = (struct gaia_ioc_file){ .offset = 4096, .length = UINT64_MAX - 4095 };
	REFUSED(ioctl(fd, GAIA_IOC_EVICT, &file), EINVAL);
	file = (struct gaia_ioc_file){ .from = 7 };
	REFUSED(ioctl(fd, GAIA_IOC_EVICT, &file), ENODEV, EINVAL);
	REFUSED(ioctl(fd, GAIA_IOC_FLUSH, &file), EINVAL);

	report.key = r.key;
	REFUSED(ioctl(fd, GAIA_IOC_REPORT, &report), EINVAL);
	report.what = GAIA_REPORT_RESIDENCY;
	REFUSED(ioctl(root, GAIA_IOC_REPORT, &report), ENODEV);
	report.reserved = 1;
	REFUSED(ioctl(fd, GAIA_IOC_REPORT, &report), EINVAL);
	report = (struct gaia_ioc_report){ .what = GAIA_REPORT_STATUS };
	REFUSED(ioctl(fd, GAIA_IOC_REPORT, &report), ENOTCONN);

	REFUSED(ioctl(fd, GAIA_IOC_MAP, NULL), EFAULT);
	REFUSED(ioctl(fd, _IOWR(GAIA_IOC_MAGIC, 4, char[8]), &m), ENOTTY, EINVAL);
	REFUSED(ioctl(fd, _IO(GAIA_IOC_MAGIC, 5)), ENOTTY, EINVAL);
	REFUSED(ioctl(fd, _IOWR(GAIA_IOC_MAGIC, 77, char[8]), &m), ENOTTY, EINVAL);
	REFUSED(ioctl(fd, 0xdeadbeef, &m), ENOTTY, EINVAL);
	close(r.sock);
	close(fd);
	all_is_well();
}

EACH_WAY(device_hostile, ranges_and_maps_of_others_are_refused)
{
	static const unsigned long cmds[] = { GAIA_IOC_ACQUIRE, GAIA_IOC_RELEASE, GAIA_IOC_SYNC,
					      GAIA_IOC_ADVISE };
	int fd = make_file("f", 4 * MIB, 'x'), other = make_file("other", 4 * MIB, 'y');
	int ro = open_file("f", O_RDONLY);
	struct raw a = raw_client(fd), b = raw_client(fd);
	uint64_t map = raw_map(fd, &a, MIB, 3), theirs = raw_map(other, &b, MIB, 3);
	struct gaia_ioc_range r;

	for (size_t i = 0; i < sizeof(cmds) / sizeof(cmds[0]); i++) {
		struct gaia_ioc_range good = raw_range(&a, map, MIB, 0);

		good.prot = cmds[i] == GAIA_IOC_ACQUIRE ? 3 : 0;
		good.advice = cmds[i] == GAIA_IOC_ADVISE ? GAIA_ADVISE_WILLNEED : 0;
		r = good;
		cr_assert_eq(request(fd, cmds[i], &r), 0, "call %zu: %s", i, strerror(errno));
		r = good, r.key.secret++;
		REFUSED(request(fd, cmds[i], &r), ENOTCONN);
		r = good, r.key = b.key;
		REFUSED(request(fd, cmds[i], &r), EINVAL);
		r = good, r.map++;
		REFUSED(request(fd, cmds[i], &r), EINVAL);
		r = good, r.map = theirs;
		REFUSED(request(fd, cmds[i], &r), EINVAL);
		r = good;
		REFUSED(request(other, cmds[i], &r), EACCES, EINVAL);
		r = good;
		REFUSED(request(both_root[ON_MOUNT], cmds[i], &r), ENODEV);
		r = good, r.length = MIB + 1;
		REFUSED(request(fd, cmds[i], &r), EINVAL);
		r = good, r.offset = MIB, r.length = 1;
		REFUSED(request(fd, cmds[i], &r), EINVAL);
		r = good, r.offset = UINT64_MAX, r.length = 2;
		REFUSED(request(fd, cmds[i], &r), EINVAL);
		r = good, r.offset = 4096, r.length = UINT64_MAX - 4095;
		REFUSED(request(fd, cmds[i], &r), EINVAL);
		r = good, r.prot = 77;
		REFUSED(request(fd, cmds[i], &r), EINVAL);
		r = good, r.advice = 77;
		REFUSED(request(fd, cmds[i], &r), EINVAL);
	}
	/* The descriptor decides, not only the mapping. */
	r = raw_range(&a, map, MIB, 3);
	REFUSED(ioctl(ro, GAIA_IOC_ACQUIRE, &r), EACCES);
	r = raw_range(&a, map, 0, 0);
	REFUSED(ioctl(other, GAIA_IOC_UNMAP, &r), EACCES, EINVAL);
	r = raw_range(&b, map, 0, 0);
	REFUSED(ioctl(fd, GAIA_IOC_UNMAP, &r), EINVAL);
	r = raw_range(&a, map, 1, 0);
	REFUSED(ioctl(fd, GAIA_IOC_UNMAP, &r), EINVAL);
	r = raw_range(&a, map, 0, 0);
	cr_assert_eq(ioctl(fd, GAIA_IOC_UNMAP, &r), 0);
	REFUSED(ioctl(fd, GAIA_IOC_UNMAP, &r), EINVAL);
	close(a.sock);
	close(b.sock);
	close(ro);
	close(fd);
	close(other);
	all_is_well();
}

/* The daemon hangs up: nothing more comes, except what was on its way. */
static void assert_hung_up(int sock)
{
	struct gaia_msg msg;

	while (raw_receive(sock, &msg, NULL))
		;
	cr_assert(errno != EAGAIN, "the daemon does not hang up");
	close(sock);
}

EACH_WAY(device_hostile, malformed_messages_end_the_connection)
{
	struct gaia_msg msg, big[2] = { 0 };
	uint8_t ticket[16], again[16];
	int fd = make_file("f", MIB, 'x'), sock;
	struct raw r;

	/* Instead of a hello. */
	for (unsigned kind = 0; kind < 10; kind++) {
		sock = raw_socket(fd, ticket);
		msg = raw_hello(ticket);
		msg.kind = kind;
		msg.version += kind == GAIA_MSG_HELLO;
		cr_assert_eq(send(sock, &msg, sizeof(msg), MSG_NOSIGNAL), (ssize_t)sizeof(msg));
		assert_hung_up(sock);
	}
	sock = raw_socket(fd, ticket);
	ticket[3] ^= 1;
	msg = raw_hello(ticket);
	send(sock, &msg, sizeof(msg), MSG_NOSIGNAL);
	assert_hung_up(sock);
	/* Too short, too long, empty. */
	for (size_t len = 0; len <= sizeof(big); len += sizeof(big) / 3) {
		sock = raw_socket(fd, ticket);
		big[0] = raw_hello(ticket);
		send(sock, big, len, MSG_NOSIGNAL);
		assert_hung_up(sock);
	}
	/* A ticket is good once. */
	sock = raw_socket(fd, ticket);
	msg = raw_hello(ticket);
	send(sock, &msg, sizeof(msg), MSG_NOSIGNAL);
	cr_assert(raw_receive(sock, &msg, NULL));
	close(sock);
	sock = raw_socket(fd, again);
	msg = raw_hello(ticket);
	send(sock, &msg, sizeof(msg), MSG_NOSIGNAL);
	assert_hung_up(sock);
	/* After the welcome. */
	for (unsigned kind = 0; kind < 10; kind++) {
		r = raw_client(fd);
		msg = (struct gaia_msg){ .kind = kind, .version = GAIA_PROTOCOL_VERSION,
					 .seq = 1, .map = 1, .count = UINT32_MAX };
		send(r.sock, &msg, sizeof(msg), MSG_NOSIGNAL);
		assert_hung_up(r.sock);
	}
	close(fd);
	all_is_well();
}

EACH_WAY(device_hostile, crowds_that_never_say_hello_keep_nobody_out)
{
	struct gaia_ioc_connect io;
	int fd = make_file("f", MIB, 'x'), sock[200];
	uint8_t ticket[16];

	for (int i = 0; i < 200; i++)
		sock[i] = raw_socket(fd, ticket);
	for (int i = 0; i < 2000; i++) {
		io = (struct gaia_ioc_connect){ .version = GAIA_PROTOCOL_VERSION };
		ioctl(fd, GAIA_IOC_CONNECT, &io);
	}
	all_is_well();
	for (int i = 0; i < 200; i++)
		close(sock[i]);
	close(fd);
	all_is_well();
}

static uint64_t seed;

static uint64_t random64(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

/* Numbers that are likely to hit something. */
static uint64_t interesting(void)
{
	static const uint64_t n[] = { 0, 1, 2, 3, 4, 4095, 4096, 4097, MIB, 2 * MIB, 2 * MIB - 1,
				      INT64_MAX, INT64_MAX - 4095, UINT64_MAX, UINT64_MAX - 4095,
				      UINT32_MAX, 1ull << 32, 1ull << 62 };
	uint64_t pick = random64();

	return pick % 4 ? n[pick / 4 % (sizeof(n) / sizeof(n[0]))] : random64();
}

/* Where the kernel gathers no writes, a release is the setting of an attribute. */
EACH_WAY(device_hostile, a_malformed_release_by_attribute_is_refused)
{
	bool through = !way_is("writeback");
	int fd = make_file("f", MIB, 'x'), root = both_root[ON_MOUNT];
	struct raw r = raw_client(fd);
	struct gaia_ioc_map map = { .key = r.key, .length = MIB, .prot = 3 };
	char value[2 * sizeof(struct gaia_ioc_range)] = { 0 };

	cr_assert_eq(ioctl(fd, GAIA_IOC_MAP, &map), 0);
	cr_assert_eq(map.release, through ? GAIA_RELEASE_BY_XATTR : GAIA_RELEASE_BY_IOCTL);
	for (size_t n = 0; n <= sizeof(value); n++)
		if (!through)
			REFUSED(fsetxattr(fd, GAIA_XATTR_RELEASE, value, n, 0), EOPNOTSUPP);
		else if (n == sizeof(struct gaia_ioc_range))
			REFUSED(fsetxattr(fd, GAIA_XATTR_RELEASE, value, n, 0), ENOTCONN);
		else
			REFUSED(fsetxattr(fd, GAIA_XATTR_RELEASE, value, n, 0), EINVAL);
	REFUSED(fsetxattr(root, GAIA_XATTR_RELEASE, value, sizeof(struct gaia_ioc_range), 0),
		ENODEV, EOPNOTSUPP);
	REFUSED((int)fgetxattr(fd, GAIA_XATTR_RELEASE, value, sizeof(value)), EOPNOTSUPP, ENODATA);
	close(r.sock);
	close(fd);
	all_is_well();
}

EACH_WAY(device_hostile, random_ioctls_break_nothing)
{
	static const unsigned long cmds[] = {
		GAIA_IOC_CONNECT, GAIA_IOC_DEVICES, GAIA_IOC_MAP, GAIA_IOC_UNMAP, GAIA_IOC_ACQUIRE,
		GAIA_IOC_RELEASE, GAIA_IOC_SYNC, GAIA_IOC_ADVISE, GAIA_IOC_FLUSH, GAIA_IOC_EVICT,
		GAIA_IOC_REPORT,
	};
	static union {
		uint64_t word[sizeof(struct gaia_ioc_devices) / 8];
		struct gaia_ioc_map map;
		struct gaia_ioc_range range;
	} arg;
	int fd[3] = { make_file("f", 3 * MIB, 'x'), open_file("f", O_RDONLY), both_root[ON_MOUNT] };
	struct raw r = raw_client(fd[0]);
	uint64_t map = raw_map(fd[0], &r, 3 * MIB, 3);
	struct actor *good = actor_start("f", 3 * MIB, 0);
	struct gaia_msg msg;
	int got;

	seed = 20240607;
	actor_ok(good, ACQUIRE, 0, 3 * MIB, RW);
	actor_ok(good, STORE, MIB, 10, 'g');
	for (int i = 0; i < 4000; i++) {
		unsigned long cmd = cmds[random64() % (sizeof(cmds) / sizeof(cmds[0]))];

		for (size_t k = 0; k < 8; k++)
			arg.word[k] = interesting();
		/* Half of the time most of it is right. */
		if (random64() % 2) {
			arg.range.key = r.key;
			if (cmd != GAIA_IOC_MAP)
				arg.range.map = map;
			if (random64() % 2)
				arg.range.prot = cmd == GAIA_IOC_ACQUIRE ? 1 + 2 * (i % 2) : 0;
			if (random64() % 2)
				arg.range.advice = 0;
		}
		if (cmd == GAIA_IOC_UNMAP && random64() % 8)
			continue;
		request(fd[random64() % 3], cmd, &arg);
		/* Reports and chunks that came: a client that does not read is disconnected. */
		while (poll(&(struct pollfd){ .fd = r.sock, .events = POLLIN }, 1, 0) == 1 &&
		       raw_receive(r.sock, &msg, &got))
			close(got);
	}
	actor_ok(good, RELEASE, 0, 3 * MIB, 0);
	actor_sees(good, READ, MIB, 'g');
	actor_end(good);
	close(r.sock);
	close(fd[0]);
	close(fd[1]);
	all_is_well();
}

EACH_WAY(device_hostile, random_messages_break_nothing)
{
	int fd = make_file("f", MIB, 'x');
	uint8_t ticket[16];
	union {
		uint64_t word[sizeof(struct gaia_msg) / 8];
		struct gaia_msg msg;
	} m;
	struct raw r;

	seed = 20240608;
	for (int i = 0; i < 300; i++) {
		if (i % 2) {
			r.sock = raw_socket(fd, ticket);
			cr_assert_geq(r.sock, 0);
		} else {
			r = raw_client(fd);
		}
		for (int k = 0; k < 3; k++) {
			for (size_t w = 0; w < sizeof(m) / 8; w++)
				m.word[w] = interesting();
			if (random64() % 2) {
				m.msg.kind = random64() % 8;
				m.msg.version = GAIA_PROTOCOL_VERSION;
			}
			send(r.sock, &m, random64() % 4 ? sizeof(m) : random64() % sizeof(m),
			     MSG_NOSIGNAL);
		}
		close(r.sock);
	}
	close(fd);
	all_is_well();
}

static int daemon_descriptors(void)
{
	char path[64];
	int n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", mnt.daemon);
	d = opendir(path);
	cr_assert_not_null(d, "%s: %s", path, strerror(errno));
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

/* Since Linux 6.16. */
static bool kernel_refuses_descriptors(void)
{
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool can = !setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &(int){ 0 }, sizeof(int));

	close(sock);
	return can;
}

/* Descriptors sent along with a hello are nobody's. */
EACH_WAY(device_hostile, descriptors_from_clients_do_not_pile_up)
{
	char control[CMSG_SPACE(10 * sizeof(int))]
		__attribute__((aligned(_Alignof(struct cmsghdr)))) = { 0 };
	int fd = make_file("f", MIB, 'x'), fds[10], had;
	struct cmsghdr *c = (struct cmsghdr *)control;
	uint8_t ticket[16];
	ssize_t sent;
	bool refused;
	time_t end;

	/* The daemon has them refused where the kernel can do that. */
	refused = kernel_refuses_descriptors();
	for (int k = 0; k < 10; k++)
		fds[k] = fd;
	had = daemon_descriptors();
	for (int i = 0; i < 100; i++) {
		int sock = raw_socket(fd, ticket);
		struct gaia_msg msg = raw_hello(ticket);
		struct iovec iov = { &msg, sizeof(msg) };
		struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
				      .msg_controllen = sizeof(control) };

		*c = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(fds)), .cmsg_level = SOL_SOCKET,
				       .cmsg_type = SCM_RIGHTS };
		memcpy(CMSG_DATA(c), fds, sizeof(fds));
		sent = sendmsg(sock, &hdr, MSG_NOSIGNAL);
		if (refused)
			cr_assert(sent < 0 && errno == EPERM, "%zd: %s", sent, strerror(errno));
		else
			cr_assert_eq(sent, (ssize_t)sizeof(msg), "%s", strerror(errno));
		close(sock);
	}
	close(fd);
	all_is_well();
	/* It may have more threads and files now than before, but not one for each message. */
	for (end = time(NULL) + HANG_SECONDS; daemon_descriptors() >= had + 100; usleep(1000))
		cr_assert_lt(time(NULL), end, "%d descriptors in the daemon, which had %d", daemon_descriptors(), had);
}

/* Acquires the first chunk without the library: its descriptor. */
static int acquire_raw(int fd, struct raw *r, unsigned prot, uint64_t *map)
{
	struct gaia_ioc_map m = { .key = r->key, .length = MIB, .prot = prot };
	struct gaia_ioc_range io;
	struct gaia_msg msg;
	int chunk = -1;

	if (ioctl(fd, GAIA_IOC_MAP, &m))
		return -1;
	*map = m.map;
	io = raw_range(r, m.map, MIB, prot);
	if (ioctl(fd, GAIA_IOC_ACQUIRE, &io) || !io.seq)
		return -1;
	do {
		if (!raw_receive(r->sock, &msg, &chunk))
			return -1;
	} while (msg.seq < io.seq);
	return msg.kind == GAIA_MSG_GRANT ? chunk : -1;
}

/* What a user who may only read the file can do with the chunk: only read it. */
static int try_to_write(void *arg)
{
	int fd, chunk, again;
	char path[64];
	uint64_t map;
	struct raw r;

	if (geteuid() == 0)
		child_become(1234, 1234);
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(raw_connect(fd, &r));
	chunk = acquire_raw(fd, &r, GAIA_PROT_READ, &map);
	CHILD_CHECK(chunk >= 0);
	CHILD_CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, chunk, 0) != MAP_FAILED);
	CHILD_CHECK(mmap(NULL, 4096, RW, MAP_SHARED, chunk, 0) == MAP_FAILED);
	CHILD_CHECK(pwrite(chunk, "!", 1, 0) == -1);
	CHILD_CHECK(ftruncate(chunk, 0) == -1);
	CHILD_CHECK(fallocate(chunk, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == -1);
	if (*(bool *)arg) {
		/* Another user: nor by opening it anew. */
		CHILD_CHECK(fchmod(chunk, 0777) == -1);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", chunk);
		again = open(path, O_RDWR);
		CHILD_CHECK(again < 0 || (mmap(NULL, 4096, RW, MAP_SHARED, again, 0) == MAP_FAILED &&
					  pwrite(again, "!", 1, 0) == -1));
	}
	return 0;
}

EACH_WAY_BARE(device_hostile, a_reader_cannot_write_the_chunk)
{
	bool other_user = geteuid() == 0;
	struct actor *a;

	way_start(NULL);
	close(make_file("f", MIB, '.'));
	cr_assert_eq(child_run(try_to_write, &other_user), 0);
	/* Nor while a writer has the same chunk, or after it. */
	a = actor_start("f", MIB, 0);
	actor_ok(a, ACQUIRE, 0, MIB, RW);
	actor_ok(a, STORE, 0, 1, 'd');
	cr_assert_eq(child_run(try_to_write, &other_user), 0);
	actor_ok(a, RELEASE, 0, MIB, 0);
	cr_assert_eq(child_run(try_to_write, &other_user), 0);
	actor_sees(a, READ, 0, 'd');
	actor_sees(a, READ, 1, '.');
	actor_end(a);
}

/* Nobody can make a chunk shorter under those who have it mapped. */
EACH_WAY(device_hostile, a_chunk_keeps_its_size)
{
	int fd = make_file("f", MIB, '.'), chunk;
	struct raw r = raw_client(fd);
	uint64_t map;

	chunk = acquire_raw(fd, &r, GAIA_PROT_READ | GAIA_PROT_WRITE, &map);
	cr_assert_geq(chunk, 0);
	cr_assert_eq(ftruncate(chunk, 0), -1);
	cr_assert_eq(ftruncate(chunk, 64 * MIB), -1);
	close(chunk);
	close(r.sock);
	close(fd);
	all_is_well();
}

/* A client that keeps a chunk which it no longer holds, and does not answer, loses its connection. */
EACH_WAY_BARE(device_hostile, a_client_that_does_not_give_up_memory_is_disconnected)
{
	static const char *const args[] = { "--device", "sim:8M", NULL };
	struct gaia_ioc_range io;
	struct actor *a;
	struct raw r;
	uint64_t map;
	int fd;

	way_start(args);
	fd = make_file("f", MIB, '.');
	close(make_file("big", 8 * MIB, 'b'));
	r = raw_client(fd);
	close(acquire_raw(fd, &r, GAIA_PROT_READ | GAIA_PROT_WRITE, &map));
	io = raw_range(&r, map, MIB, 0);
	cr_assert_eq(request(fd, GAIA_IOC_RELEASE, &io), 0);
	/* Needs all of the device. */
	a = actor_start("big", 8 * MIB, 0);
	actor_ok(a, ACQUIRE, 0, 8 * MIB, RW);
	actor_sees(a, LOAD, 8 * MIB - 1, 'b');
	io = raw_range(&r, map, MIB, GAIA_PROT_READ);
	REFUSED(ioctl(fd, GAIA_IOC_ACQUIRE, &io), ENOTCONN);
	actor_end(a);
	close(r.sock);
	close(fd);
	all_is_well();
}
