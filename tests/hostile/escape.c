/*
 * escape.c - a client that names what is not its own: others' keys, mappings, chunks, tickets and answers. It gets nothing and
 * changes nothing, and they go on; and it cannot write what it was given for reading.
 */
#include <sys/ioctl.h>
#include <sys/xattr.h>

#include "gaia/client.h"
#include "hostile.h"
#include "report.h"

#define SECRET 's'
#define BYTES (2ul * GAIA_CHUNK)
#define RW (PROT_READ | PROT_WRITE)

/* What the attacker knows, as if it had guessed it: all but the secrets. */
static struct {
	uint64_t client, map;
	const char *path;
} victim;

/* Try each call that names a mapping, on a file that the user may read. True: all were refused. */
static bool all_refused(int fd, struct gaia_client_key key, uint64_t map)
{
	static const unsigned long cmds[] = { GAIA_IOC_ACQUIRE, GAIA_IOC_RELEASE, GAIA_IOC_SYNC, GAIA_IOC_ADVISE,
					      GAIA_IOC_UNMAP };
	struct gaia_ioc_range io;

	for (size_t i = 0; i < sizeof(cmds) / sizeof(cmds[0]); i++) {
		io = (struct gaia_ioc_range){ .key = key, .map = map, .length = GAIA_PAGE };
		if (cmds[i] == GAIA_IOC_UNMAP)
			io.length = 0;
		if (cmds[i] == GAIA_IOC_ACQUIRE)
			io.prot = GAIA_PROT_READ;
		if (cmds[i] == GAIA_IOC_ADVISE)
			io.advice = GAIA_ADVISE_WILLNEED;
		if (!ioctl(fd, cmds[i], &io))
			return false;
	}
	io = (struct gaia_ioc_range){ .key = key, .map = map, .length = GAIA_PAGE };
	/* EALREADY says that the release was done. */
	return fsetxattr(fd, GAIA_XATTR_RELEASE, &io, sizeof(io), 0) && errno != EALREADY;
}

/* The daemon has sent nothing. */
static bool nothing_came(int sock)
{
	struct gaia_msg msg;

	return recv(sock, &msg, sizeof(msg), MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

/* ---- others' keys and mappings ---- */

static int name_others(void *arg)
{
	struct gaia_client_key key;
	uint64_t own;
	struct raw r = { .sock = -1 };
	int fd, mine;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open(victim.path, O_RDONLY | O_CLOEXEC);
	mine = open(mnt_file(&mnt, "open_to_all"), O_RDWR | O_CLOEXEC);
	CHILD_CHECK(fd >= 0 && mine >= 0);
	CHILD_CHECK(raw_connect(fd, &r));
	own = raw_map(fd, &r, GAIA_CHUNK, GAIA_PROT_READ);
	CHILD_CHECK(victim.map != own);
	/* Root's client with made-up secrets, and its own client with root's mapping; on either file. */
	for (int i = 0; i < 1000; i++) {
		key = (struct gaia_client_key){ victim.client, i < 64 ? 1ull << i : r.key.secret + i };
		CHILD_CHECK(all_refused(fd, key, victim.map));
	}
	key = (struct gaia_client_key){ victim.client, r.key.secret };
	CHILD_CHECK(all_refused(fd, key, victim.map) && all_refused(mine, key, victim.map));
	CHILD_CHECK(all_refused(fd, r.key, victim.map) && all_refused(mine, r.key, victim.map));
	for (uint64_t map = 0; map < 1000; map++)
		CHILD_CHECK(map == own || all_refused(fd, r.key, map));
	/* Its own mapping, on another file that it may write. */
	CHILD_CHECK(all_refused(mine, r.key, own));
	CHILD_CHECK(nothing_came(r.sock));
	return 0;
}

EACH_WAY_BARE(escape, others_mappings_cannot_be_named)
{
	struct gaia_ioc_range io;
	struct gaia_msg msg;
	struct raw r;
	char *p, got;
	int fd, chunk, other;

	hostile_start(NULL);
	fd = hostile_file("f", BYTES);
	other = hostile_file("open_to_all", BYTES);
	cr_assert_eq(fchmod(other, 0666), 0);
	r = raw_client(fd);
	victim.client = r.key.id;
	victim.map = raw_map(fd, &r, BYTES, RW);
	victim.path = mnt_file(&mnt, "f");
	io = raw_range(&r, victim.map, GAIA_PAGE, RW);
	cr_assert_eq(ioctl(fd, GAIA_IOC_ACQUIRE, &io), 0, "%s", strerror(errno));
	cr_assert(raw_receive(r.sock, &msg, &chunk));
	p = mmap(NULL, GAIA_PAGE, RW, MAP_SHARED, chunk, 0);
	cr_assert_neq(p, MAP_FAILED);
	p[0] = SECRET;
	cr_assert_eq(child_run(name_others, NULL), 0);
	/* Nobody released it for root, or took anything from root. */
	cr_assert_eq(pread(fd, &got, 1, 0), 1);
	cr_assert_eq(got, 0);
	cr_assert(nothing_came(r.sock));
	io.prot = 0;
	io.seq = 0;
	if (ioctl(fd, GAIA_IOC_RELEASE, &io))
		cr_assert(fsetxattr(fd, GAIA_XATTR_RELEASE, &io, sizeof(io), 0) && errno == EALREADY, "%s",
			  strerror(errno));
	cr_assert_eq(pread(fd, &got, 1, 0), 1);
	cr_assert_eq(got, SECRET);
	munmap(p, GAIA_PAGE);
	close(chunk);
	close(r.sock);
	close(other);
	close(fd);
}

/* ---- chunks ---- */

/* Beyond the mapping, for writing, and by the descriptor that it was handed. */
static int reach_beyond(void *arg)
{
	struct gaia_ioc_map map = { .length = GAIA_CHUNK, .prot = RW };
	struct gaia_ioc_range io;
	struct gaia_msg msg;
	struct raw r = { .sock = -1 };
	char path[64];
	uint64_t own;
	int fd, chunk;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open(victim.path, O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0 && raw_connect(fd, &r));
	map.key = r.key;
	CHILD_CHECK(ioctl(fd, GAIA_IOC_MAP, &map) && errno == EACCES);
	own = raw_map(fd, &r, GAIA_CHUNK, GAIA_PROT_READ);
	for (uint64_t off = GAIA_CHUNK; off != 0; off <<= 1) {
		io = raw_range(&r, own, GAIA_PAGE, GAIA_PROT_READ);
		io.offset = off;
		CHILD_CHECK(ioctl(fd, GAIA_IOC_ACQUIRE, &io) && errno == EINVAL);
	}
	io = raw_range(&r, own, GAIA_PAGE, RW);
	CHILD_CHECK(ioctl(fd, GAIA_IOC_ACQUIRE, &io) && errno == EACCES);
	io.prot = GAIA_PROT_READ;
	CHILD_CHECK(!ioctl(fd, GAIA_IOC_ACQUIRE, &io));
	CHILD_CHECK(raw_receive(r.sock, &msg, &chunk) && msg.kind == GAIA_MSG_GRANT && msg.count == 1);
	CHILD_CHECK(msg.prot == GAIA_PROT_READ);
	CHILD_CHECK(mmap(NULL, GAIA_CHUNK, RW, MAP_SHARED, chunk, 0) == MAP_FAILED);
	CHILD_CHECK(pwrite(chunk, "x", 1, 0) == -1);
	CHILD_CHECK(ftruncate(chunk, 0) == -1);
	CHILD_CHECK(fallocate(chunk, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_CHUNK) == -1);
	CHILD_CHECK(fcntl(chunk, F_ADD_SEALS, F_SEAL_WRITE) == -1);
	CHILD_CHECK(fchmod(chunk, 0666) == -1);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", chunk);
	CHILD_CHECK(open(path, O_RDWR | O_CLOEXEC) == -1);
	CHILD_CHECK(truncate(path, 0) == -1);
	/* There are no bytes behind those that it was granted. */
	CHILD_CHECK(lseek(chunk, 0, SEEK_END) == GAIA_CHUNK);
	return 0;
}

EACH_WAY_BARE(escape, chunks_for_reading_cannot_be_written)
{
	unsigned char *p;
	int fd;

	hostile_start(NULL);
	fd = hostile_file("f", BYTES);
	victim.path = mnt_file(&mnt, "f");
	p = gaia_mmap(BYTES, RW, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	cr_assert_eq(gaia_acquire(p, BYTES, RW), 0, "%s", strerror(errno));
	p[0] = p[GAIA_CHUNK] = SECRET;
	cr_assert_eq(gaia_release(p, BYTES), 0);
	cr_assert_eq(child_run(reach_beyond, NULL), 0);
	cr_assert_eq(gaia_acquire(p, BYTES, PROT_READ), 0, "%s", strerror(errno));
	cr_assert_eq(p[0], SECRET);
	cr_assert_eq(p[GAIA_CHUNK], SECRET);
	cr_assert_eq(gaia_release(p, BYTES), 0);
	cr_assert_eq(gaia_munmap(p, BYTES), 0);
	close(fd);
}

/* ---- tickets ---- */

/* Whether a HELLO with this ticket makes a client. */
static bool is_welcome(const struct sockaddr_un *addr, socklen_t len, const uint8_t ticket[16])
{
	struct gaia_msg msg = raw_hello(ticket);
	struct timeval limit = { .tv_sec = HANG_SECONDS };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool welcome;

	CHILD_CHECK(sock >= 0 && !connect(sock, (const struct sockaddr *)addr, len));
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	welcome = send(sock, &msg, sizeof(msg), MSG_NOSIGNAL) == sizeof(msg) && raw_receive(sock, &msg, NULL) &&
		  msg.kind == GAIA_MSG_WELCOME;
	close(sock);
	return welcome;
}

static uint8_t roots_ticket[16];

static int try_tickets(void *arg)
{
	struct gaia_ioc_connect io = { .version = GAIA_PROTOCOL_VERSION };
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	socklen_t len;
	uint8_t ticket[16];
	int fd;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open(victim.path, O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0 && !ioctl(fd, GAIA_IOC_CONNECT, &io));
	memcpy(addr.sun_path + 1, io.socket, strnlen(io.socket, sizeof(io.socket)));
	len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strnlen(io.socket, sizeof(io.socket)));
	/* Half of root's ticket, and its own with any bit changed, are not valid. */
	for (int half = 0; half < 2; half++) {
		memset(ticket, 0, sizeof(ticket));
		memcpy(ticket + 8 * half, roots_ticket + 8 * half, 8);
		CHILD_CHECK(!is_welcome(&addr, len, ticket));
		memcpy(ticket, io.ticket, sizeof(ticket));
		memcpy(ticket + 8 * half, roots_ticket + 8 * half, 8);
		CHILD_CHECK(!is_welcome(&addr, len, ticket));
	}
	for (int bit = 0; bit < 128; bit++) {
		memcpy(ticket, io.ticket, sizeof(ticket));
		ticket[bit / 8] ^= 1u << bit % 8;
		CHILD_CHECK(!is_welcome(&addr, len, ticket));
	}
	memset(ticket, 0, sizeof(ticket));
	CHILD_CHECK(!is_welcome(&addr, len, ticket));
	/* A ticket is good for one HELLO. */
	CHILD_CHECK(is_welcome(&addr, len, io.ticket));
	CHILD_CHECK(!is_welcome(&addr, len, io.ticket));
	/* The daemon's name is taken. */
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHILD_CHECK(bind(fd, (struct sockaddr *)&addr, len) == -1 && errno == EADDRINUSE);
	return 0;
}

EACH_WAY_BARE(escape, tickets_cannot_be_made_up)
{
	struct gaia_msg msg;
	int fd, sock;

	hostile_start(NULL);
	fd = hostile_file("f", BYTES);
	victim.path = mnt_file(&mnt, "f");
	sock = raw_socket(fd, roots_ticket);
	cr_assert_geq(sock, 0);
	cr_assert_eq(child_run(try_tickets, NULL), 0);
	/* Root's is as good as ever. */
	msg = raw_hello(roots_ticket);
	cr_assert_eq(send(sock, &msg, sizeof(msg), MSG_NOSIGNAL), (ssize_t)sizeof(msg));
	cr_assert(raw_receive(sock, &msg, NULL));
	cr_assert_eq(msg.kind, GAIA_MSG_WELCOME);
	close(sock);
	close(fd);
}

/* ---- answers ---- */

/* In the name of a mapping of root's, which waits for root's answer. */
static int answer_for_others(void *arg)
{
	const uint64_t *map = arg;
	struct gaia_msg msg = { .version = GAIA_PROTOCOL_VERSION, .map = *map };
	int fd;

	child_become(NOBODY, NOBODY);
	fd = open(victim.path, O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	for (uint64_t seq = 0; seq < 50; seq++) {
		struct raw r = { .sock = -1 };

		CHILD_CHECK(raw_connect_with(fd, GAIA_FEATURES, &r));
		msg.kind = seq % 2 ? GAIA_MSG_GRANTED : GAIA_MSG_REVOKED;
		msg.error = seq % 2 ? EMFILE : 0;
		msg.seq = seq / 2;
		CHILD_CHECK(send(r.sock, &msg, sizeof(msg), MSG_NOSIGNAL) == sizeof(msg));
		/* The daemon hangs up. */
		CHILD_CHECK(raw_hung_up(r.sock));
		msg = (struct gaia_msg){ .version = GAIA_PROTOCOL_VERSION, .map = *map };
		close(r.sock);
	}
	return 0;
}

EACH_WAY_BARE(escape, nobody_answers_for_others)
{
	struct gaia_ioc_range io;
	struct gaia_msg msg;
	struct raw r;
	int fd, chunk;

	hostile_start(NULL);
	fd = hostile_file("f", BYTES);
	victim.path = mnt_file(&mnt, "f");
	r = raw_client_with(fd, GAIA_FEATURES);
	victim.map = raw_map(fd, &r, BYTES, RW);
	io = raw_range(&r, victim.map, GAIA_PAGE, RW);
	/* Not answered: it is owed from now on. */
	cr_assert_eq(ioctl(fd, GAIA_IOC_ACQUIRE, &io), 0, "%s", strerror(errno));
	cr_assert_eq(io.unanswered, 1u);
	cr_assert_eq(child_run(answer_for_others, &victim.map), 0);
	cr_assert(raw_receive(r.sock, &msg, &chunk));
	close(chunk);
	cr_assert_eq(msg.seq, io.seq);
	cr_assert(raw_answer(r.sock, &msg, 0));
	/* Nobody else has refused it. */
	io = raw_range(&r, victim.map, GAIA_PAGE, RW);
	cr_assert_eq(ioctl(fd, GAIA_IOC_ACQUIRE, &io), 0, "%s", strerror(errno));
	cr_assert_eq(STATUS("counters", "grants_refused"), 0);
	close(r.sock);
	close(fd);
}
