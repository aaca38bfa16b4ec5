/*
 * control.c - tests of daemon/control: what clients may do, and what becomes of those that may not.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../client/wire.h"
#include "base/counters.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/trace.h"
#include "base/util.h"
#include "control/internal.h"
#include "fake_daemon.h"

#define RW (GAIA_PROT_READ | GAIA_PROT_WRITE)

/* A client that does everything by hand. */
struct peer {
	int sock;
	struct gaia_client_key key;
	uint64_t seq;
};

static int file;

static void begin(void)
{
	log_set_level(LOG_LEVEL_ERROR);
	wire_sys.ioctl = fake_ioctl;
	fake_start();
	file = fake_file();
}

static void end(void)
{
	close(file);
	fake_stop();
}

static struct peer join_with(uint64_t features)
{
	struct peer p;

	p.sock = wire_socket();
	cr_assert_geq(p.sock, 0);
	cr_assert_eq(wire_handshake(p.sock, file, &p.key, &p.seq, &features), 0);
	/* Its welcome is here, but the thread that has sent it may be at it still, and have the lock: then no report would be sent. */
	fake_await_sent(p.key.id);
	return p;
}

/* ---- those who come too late ---- */

/* When it is asked so often, a ticket's life has passed. */
static unsigned asked, late_from;

static uint64_t late_clock(void)
{
	return ++asked >= late_from ? asked * GAIA_TICKET_S * 1000000000ull : 0;
}

static int spoils_the_first_ticket(int fd, unsigned long request, void *arg)
{
	int result = fake_ioctl(fd, request, arg);

	if (request == GAIA_IOC_CONNECT && late_from)
		((struct gaia_ioc_connect *)arg)->ticket[15] ^= asked == 1;
	return result;
}

/* As if it had been stopped for a time: by then somebody else could have the socket's name. */
Test(late, who_connects_too_late_does_not_believe_whom_it_has_reached, .init = begin, .fini = end, .timeout = 240)
{
	uint64_t (*clock)(void) = wire_sys.now_ns, features = 0;
	struct peer p;

	wire_sys.now_ns = late_clock;
	late_from = 2;
	p.sock = wire_socket();
	cr_assert_eq(wire_handshake(p.sock, file, &p.key, &p.seq, &features), -ESTALE);
	close(p.sock);
	/* The second time it is in time. */
	asked = 0;
	late_from = 2;
	wire_sys.ioctl = fake_ioctl;
	wire_sys.now_ns = clock;
	cr_assert_eq(wire_join(&p.sock, file, &p.key, &p.seq, &features), 0);
	close(p.sock);
}

/* As if the daemon had been stopped, or were slow, until the ticket had expired. */
Test(late, who_is_turned_away_too_late_asks_again, .init = begin, .fini = end, .timeout = 240)
{
	uint64_t features = 0;
	struct peer p;

	wire_sys.ioctl = spoils_the_first_ticket;
	wire_sys.now_ns = late_clock;
	late_from = 3;
	p.sock = wire_socket();
	cr_assert_eq(wire_handshake(p.sock, file, &p.key, &p.seq, &features), -ESTALE);
	close(p.sock);
	/* Then once more, and no more. */
	asked = 0;
	cr_assert_eq(wire_join(&p.sock, file, &p.key, &p.seq, &features), -ENOTCONN);
	cr_assert_eq(p.sock, -1);
	/* In time it is no reason to try again. */
	asked = 0;
	late_from = 1000;
	p.sock = wire_socket();
	cr_assert_eq(wire_handshake(p.sock, file, &p.key, &p.seq, &features), -ENOTCONN);
	close(p.sock);
}

static struct peer join(void)
{
	return join_with(0);
}

/* Leave, and wait until what was mapped is unmapped. */
static void leave(struct peer *p, unsigned maps)
{
	close(p->sock);
	while (maps--)
		sem_wait(&fake_unmapped);
}

static uint64_t map(struct peer *p, uint64_t offset, uint64_t length)
{
	struct gaia_ioc_map io = { .key = p->key, .offset = offset, .length = length, .prot = RW };

	cr_assert_eq(wire_ioctl(file, GAIA_IOC_MAP, &io), 0);
	return io.map;
}

static struct gaia_ioc_range range(struct peer *p, uint64_t id, uint64_t offset, uint64_t length)
{
	return (struct gaia_ioc_range){
		.key = p->key, .map = id, .offset = offset, .length = length,
	};
}

/* The connection ends without anything more being said. */
static bool is_ended(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLIN };
	struct gaia_msg msg;

	poll(&p, 1, -1);
	return recv(sock, &msg, sizeof(msg), 0) <= 0;
}

static int connect_to(const struct gaia_ioc_connect *io)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int sock = wire_socket();

	memcpy(addr.sun_path + 1, io->socket, strlen(io->socket));
	if (connect(sock, (struct sockaddr *)&addr,
		    offsetof(struct sockaddr_un, sun_path) + 1 + strlen(io->socket)))
		return -1;
	return sock;
}

/* Connected to the daemon, but not yet its client. */
static int stranger(struct gaia_ioc_connect *io)
{
	int sock;

	*io = (struct gaia_ioc_connect){ .version = GAIA_PROTOCOL_VERSION };
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_CONNECT, io), 0);
	sock = connect_to(io);
	cr_assert_geq(sock, 0);
	return sock;
}

static struct gaia_msg hello(const struct gaia_ioc_connect *io)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_HELLO, .version = GAIA_PROTOCOL_VERSION };

	memcpy(msg.ticket, io->ticket, sizeof(msg.ticket));
	return msg;
}

/* ---- becoming a client ---- */

Test(tickets, a_wrong_one_is_no_admission, .init = begin, .fini = end)
{
	struct gaia_ioc_connect io;
	int sock = stranger(&io);
	struct gaia_msg msg = hello(&io);

	msg.ticket[15] ^= 1;
	cr_assert_eq(wire_send(sock, &msg), 0);
	cr_assert(is_ended(sock));
	close(sock);
}

Test(tickets, each_admits_once, .init = begin, .fini = end)
{
	struct gaia_ioc_connect io, unused;
	int first = stranger(&io), second = stranger(&unused), fds[GAIA_MSG_CHUNKS];
	struct gaia_msg msg = hello(&io), answer;
	unsigned n;

	cr_assert_eq(wire_send(first, &msg), 0);
	cr_assert_eq(wire_receive(first, true, &answer, fds, &n), 0);
	cr_assert_eq(answer.kind, GAIA_MSG_WELCOME);
	cr_assert_eq(wire_send(second, &msg), 0);
	cr_assert(is_ended(second));
	close(first);
	close(second);
}

static bool is_admitted(int sock, const struct gaia_ioc_connect *io)
{
	struct gaia_msg msg = hello(io), answer;
	int fds[GAIA_MSG_CHUNKS];
	unsigned n;

	cr_assert_eq(wire_send(sock, &msg), 0);
	return !wire_receive(sock, true, &answer, fds, &n) && answer.kind == GAIA_MSG_WELCOME;
}

Test(tickets, hoarding_drops_ones_own_oldest, .init = begin, .fini = end)
{
	struct gaia_ioc_connect io, others, flood;
	int sock, other;

	fake_uid = 1001;
	other = stranger(&others);
	fake_uid = 1000;
	sock = stranger(&io);
	for (int i = 0; i < 2000; i++) {
		flood = (struct gaia_ioc_connect){ .version = GAIA_PROTOCOL_VERSION };
		cr_assert_eq(wire_ioctl(file, GAIA_IOC_CONNECT, &flood), 0);
	}
	cr_assert_eq(quota_use(fake_quota(), QUOTA_tickets).used, 65);
	cr_assert_not(is_admitted(sock, &io));
	cr_assert(is_admitted(other, &others));
	close(sock);
	close(other);
}

/* A user with room for one more client gets it, though the user has asked more often before. */
Test(tickets, hold_a_place_that_ones_own_next_takes, .init = begin, .fini = end)
{
	struct gaia_ioc_connect io, next;
	int first, second;
	struct peer p;

	quota_set_each(fake_quota(), QUOTA_clients, 2);
	fake_uid = 1000;
	p = join();
	first = stranger(&io);
	cr_assert_eq(quota_use(fake_quota(), QUOTA_clients).used, 2);
	second = stranger(&next);
	cr_assert_eq(quota_use(fake_quota(), QUOTA_clients).used, 2);
	cr_assert_not(is_admitted(first, &io));
	cr_assert(is_admitted(second, &next));
	close(first);
	close(second);
	close(p.sock);
}

Test(connecting, asks_for_the_same_version, .init = begin, .fini = end)
{
	struct gaia_ioc_connect io = { .version = GAIA_PROTOCOL_VERSION + 1 };

	cr_assert_eq(wire_ioctl(file, GAIA_IOC_CONNECT, &io), -EPROTO);
}

Test(connecting, silent_strangers_keep_nobody_out, .init = begin, .fini = end)
{
	struct gaia_ioc_connect io;
	int sock[100];
	struct peer p;

	for (int i = 0; i < 100; i++)
		sock[i] = stranger(&io);
	p = join();
	cr_assert(is_ended(sock[0]));
	for (int i = 0; i < 100; i++)
		close(sock[i]);
	close(p.sock);
}

static int ask_to_connect(uid_t uid)
{
	struct gaia_ioc_connect io = { .version = GAIA_PROTOCOL_VERSION };

	fake_uid = uid;
	return wire_ioctl(file, GAIA_IOC_CONNECT, &io);
}

Test(connecting, a_user_with_too_many_clients_is_told_and_alone, .init = begin, .fini = end)
{
	static struct peer p[1025];

	fake_uid = 1000;
	for (int i = 0; i < 1024; i++)
		p[i] = join();
	cr_assert_eq(ask_to_connect(1000), -EMFILE);
	fake_uid = 1001;
	p[1024] = join();
	fake_uid = 0;
	close(p[0].sock);
	p[0] = join();
	/* The place is free when the loop has seen the end. */
	while (ask_to_connect(1000))
		sched_yield();
	for (int i = 0; i < 1025; i++)
		close(p[i].sock);
}

Test(connecting, users_leave_root_a_reserve, .init = begin, .fini = end)
{
	static struct peer p[16];
	unsigned n;

	quota_cap(fake_quota(), QUOTA_clients, 16);
	for (n = 0; n < quota_use(fake_quota(), QUOTA_clients).users; n++) {
		fake_uid = 1000 + n;
		p[n] = join();
	}
	cr_assert_eq(ask_to_connect(2000), -ENFILE);
	for (fake_uid = 0; n < 16; n++)
		p[n] = join();
	cr_assert_eq(ask_to_connect(0), -ENFILE);
	while (n > 0)
		close(p[--n].sock);
}

/* Whatever is sent in place of @msg ends the client. */
static void assert_not_taken(const void *bytes, size_t len)
{
	struct peer p = join();

	map(&p, 0, GAIA_PAGE);
	cr_assert_eq(send(p.sock, bytes, len, 0), (ssize_t)len);
	cr_assert(is_ended(p.sock));
	leave(&p, 1);
}

Test(connecting, garbage_ends_it, .init = begin, .fini = end)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_REVOKED, .version = GAIA_PROTOCOL_VERSION };
	char large[sizeof(msg) + 1] = "";

	assert_not_taken("", 1);
	assert_not_taken(large, sizeof(large));
	assert_not_taken(&msg, sizeof(msg)); /* the answer to nothing */
	msg.kind = GAIA_MSG_HELLO;
	assert_not_taken(&msg, sizeof(msg));
	msg.kind = 99;
	assert_not_taken(&msg, sizeof(msg));
	msg.kind = GAIA_MSG_REVOKED;
	msg.version++;
	assert_not_taken(&msg, sizeof(msg));
}

/* ---- its end ---- */

static int word;

static int fails(int fd, unsigned long request, void *arg)
{
	errno = word;
	return -1;
}

static int push_fails(int fd, off_t off, off_t len)
{
	return fails(fd, 0, NULL);
}

Test(gone, has_one_word_whatever_the_kernel_calls_it)
{
	static const int words[] = { ENOTCONN, ECONNABORTED };

	wire_sys.ioctl = fails;
	wire_sys.push = push_fails;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		word = words[i];
		cr_assert_eq(wire_ioctl(-1, GAIA_IOC_RELEASE, NULL), -ENOTCONN);
		cr_assert_eq(wire_push(-1, 0, 1), -ENOTCONN);
	}
	word = EIO;
	cr_assert_eq(wire_ioctl(-1, GAIA_IOC_RELEASE, NULL), -EIO);
}

/* ---- rights ---- */

Test(rights, nobody_acts_for_another_client, .init = begin, .fini = end)
{
	struct peer a = join(), b = join();
	uint64_t id = map(&a, 0, GAIA_CHUNK);
	struct gaia_ioc_range io = range(&b, id, 0, GAIA_PAGE);

	io.prot = RW;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), -EINVAL);
	io.key = a.key;
	io.key.secret ^= 1;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), -ENOTCONN);
	io.key = b.key;
	io.key.id = a.key.id;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), -ENOTCONN);
	cr_assert_eq(fake_seen().acquires, 0);
	close(b.sock);
	leave(&a, 1);
}

Test(rights, a_mapping_is_used_through_its_own_file, .init = begin, .fini = end)
{
	struct peer p = join();
	uint64_t id = map(&p, 0, GAIA_CHUNK);
	int other = fake_file();
	struct gaia_ioc_range io = range(&p, id, 0, GAIA_PAGE);

	cr_assert_eq(wire_ioctl(other, GAIA_IOC_RELEASE, &io), -EACCES);
	cr_assert_eq(wire_ioctl(other, GAIA_IOC_SYNC, &io), -EACCES);
	io.length = 0;
	cr_assert_eq(wire_ioctl(other, GAIA_IOC_UNMAP, &io), -EACCES);
	cr_assert_eq(fake_seen().live, 1);
	close(other);
	leave(&p, 1);
}

Test(rights, descriptors_limit_mappings, .init = begin, .fini = end)
{
	struct peer p = join();
	struct gaia_ioc_map io = { .key = p.key, .length = GAIA_PAGE, .prot = RW };
	struct gaia_ioc_map none = io;
	struct control_caller me = { .uid = getuid() };
	struct control *ctl = fake_control();
	struct cfile *f = fake_cfile(file);

	cr_assert_eq(control_map(ctl, f, true, false, me, &io), -EACCES);
	cr_assert_eq(control_map(ctl, f, false, true, me, &io), -EACCES);
	io.prot = GAIA_PROT_READ;
	cr_assert_eq(control_map(ctl, f, true, false, me, &io), 0);
	cr_assert_eq(control_map(ctl, NULL, true, true, me, &none), -ENODEV);
	none.device = 2;
	cr_assert_eq(control_map(ctl, f, true, true, me, &none), -ENODEV);
	leave(&p, 1);
}

static struct fake_cache map_as(struct gaia_ioc_map io, struct control_caller caller, bool writable)
{
	cr_assert_eq(control_map(fake_control(), fake_cfile(file), true, writable, caller, &io), 0);
	return fake_seen();
}

/* The caller, the process that connected, and the maker of the socket to which the memory goes: all one user. */
Test(rights, readers_share_with_others_of_the_user_who_gets_the_memory, .init = begin, .fini = end)
{
	struct control_caller me = { .uid = getuid() }, other = { .uid = getuid() + 1 }, unknown = { .uid = (uid_t)-1 };
	struct gaia_ioc_map io = { .length = GAIA_PAGE, .prot = GAIA_PROT_READ };
	struct peer p, q;

	fake_uid = me.uid;
	p = join();
	io.key = p.key;
	cr_assert(!map_as(io, me, false).alone);
	cr_assert(map_as(io, other, false).alone);
	cr_assert(map_as(io, unknown, false).alone);
	fake_uid = other.uid;
	q = join();
	io.key = q.key;
	cr_assert(map_as(io, other, false).alone);
	cr_assert(map_as(io, me, false).alone);
	close(q.sock);
	leave(&p, 5);
}

Test(rights, to_write_come_by_descriptor_or_by_the_caller, .init = begin, .fini = end)
{
	struct peer p = join();
	struct gaia_ioc_map io = { .key = p.key, .length = GAIA_PAGE, .prot = GAIA_PROT_READ };
	struct control_caller writer = { .may_write = true }, reader = { .may_write = false };

	cr_assert(!map_as(io, reader, false).may_write);
	cr_assert(map_as(io, writer, false).may_write);
	cr_assert(map_as(io, reader, true).may_write);
	/* But not to acquire for writing. */
	io.prot = RW;
	cr_assert_eq(control_map(fake_control(), fake_cfile(file), true, false, writer, &io), -EACCES);
	leave(&p, 3);
}

Test(rights, writing_needs_mapping_and_descriptor, .init = begin, .fini = end)
{
	struct peer p = join();
	struct gaia_ioc_map readable = { .key = p.key, .length = GAIA_PAGE, .prot = GAIA_PROT_READ };
	struct gaia_ioc_range io;

	cr_assert_eq(wire_ioctl(file, GAIA_IOC_MAP, &readable), 0);
	io = range(&p, readable.map, 0, GAIA_PAGE);
	io.prot = RW;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), -EACCES);
	io.map = map(&p, 0, GAIA_PAGE);
	cr_assert_eq(control_acquire(fake_control(), fake_cfile(file), false, &io, NULL), -EACCES);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), 0);
	leave(&p, 2);
}

/* ---- ranges ---- */

Test(ranges, lie_inside_the_mapping, .init = begin, .fini = end)
{
	static const struct { uint64_t offset, length; } bad[] = {
		{ 0, 1 },
		{ GAIA_PAGE - 1, 1 },
		{ GAIA_PAGE, 2 * GAIA_PAGE + 1 },
		{ 3 * GAIA_PAGE, 1 },
		{ 2 * GAIA_PAGE, UINT64_MAX },
		{ 2 * GAIA_PAGE, UINT64_MAX - 2 * GAIA_PAGE + 1 },
		{ UINT64_MAX, 1 },
		{ UINT64_MAX, UINT64_MAX },
	};
	struct peer p = join();
	uint64_t id = map(&p, GAIA_PAGE, 2 * GAIA_PAGE);

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct gaia_ioc_range io = range(&p, id, bad[i].offset, bad[i].length);

		cr_assert_eq(wire_ioctl(file, GAIA_IOC_RELEASE, &io), -EINVAL, "case %zu", i);
	}
	cr_assert_eq(fake_seen().releases, 0);
	leave(&p, 1);
}

Test(ranges, are_widened_to_whole_pages, .init = begin, .fini = end)
{
	struct peer p = join();
	uint64_t id = map(&p, GAIA_PAGE, 2 * GAIA_PAGE + 10);
	struct gaia_ioc_range io = range(&p, id, 2 * GAIA_PAGE - 1, 2);

	cr_assert_eq(fake_seen().len, 3 * GAIA_PAGE);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_RELEASE, &io), 0);
	cr_assert_eq(fake_seen().off, GAIA_PAGE);
	cr_assert_eq(fake_seen().len, 2 * GAIA_PAGE);
	io = range(&p, id, 3 * GAIA_PAGE + 9, 1);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_RELEASE, &io), 0);
	cr_assert_eq(fake_seen().off, 3 * GAIA_PAGE);
	cr_assert_eq(fake_seen().len, GAIA_PAGE);
	leave(&p, 1);
}

Test(ranges, of_no_bytes_are_nothing_to_do, .init = begin, .fini = end)
{
	struct peer p = join();
	struct gaia_ioc_range io = range(&p, map(&p, 0, GAIA_PAGE), 1, 0);

	cr_assert_eq(wire_ioctl(file, GAIA_IOC_RELEASE, &io), 0);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_SYNC, &io), 0);
	io.prot = RW;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), 0);
	cr_assert_eq(io.seq, 0);
	cr_assert_eq(fake_seen().releases + fake_seen().syncs + fake_seen().acquires, 0);
	leave(&p, 1);
}

Test(ranges, of_mappings_make_sense, .init = begin, .fini = end)
{
	static const struct { uint64_t offset, length; int err; } bad[] = {
		{ 0, 0, -EINVAL },
		{ 1, GAIA_PAGE, -EINVAL },
		{ INT64_MAX - GAIA_PAGE + 1, GAIA_PAGE, -EOVERFLOW },
		{ 0, UINT64_MAX, -EOVERFLOW },
		{ UINT64_MAX - GAIA_PAGE + 1, GAIA_PAGE, -EOVERFLOW },
		{ GAIA_PAGE, UINT64_MAX - GAIA_PAGE, -EOVERFLOW },
	};
	struct peer p = join();

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct gaia_ioc_map io = {
			.key = p.key, .offset = bad[i].offset, .length = bad[i].length, .prot = RW,
		};

		cr_assert_eq(wire_ioctl(file, GAIA_IOC_MAP, &io), bad[i].err, "case %zu", i);
	}
	cr_assert_eq(fake_seen().maps, 0);
	close(p.sock);
}

Test(ranges, unused_fields_are_zero, .init = begin, .fini = end)
{
	struct peer p = join();
	uint64_t id = map(&p, 0, GAIA_PAGE);
	struct gaia_ioc_range io = range(&p, id, 0, GAIA_PAGE);
	struct gaia_ioc_devices devices = { .reserved = 1 };
	struct gaia_ioc_report report = { .key = p.key, .what = 1, .reserved = 1 };

	cr_assert_eq(wire_ioctl(file, GAIA_IOC_UNMAP, &io), -EINVAL);
	io.advice = 1;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_RELEASE, &io), -EINVAL);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_SYNC, &io), -EINVAL);
	io.advice = GAIA_ADVISE_DONTNEED + 1;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ADVISE, &io), -EINVAL);
	io.prot = RW;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), -EINVAL);
	io.advice = 0;
	io.prot = 0;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), -EINVAL);
	io.prot = RW | 16;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), -EINVAL);
	io.prot = GAIA_PROT_PIN;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), -EINVAL);
	io.prot = RW | GAIA_PROT_PIN | GAIA_PROT_PINNED;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), -EINVAL);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_DEVICES, &devices), -EINVAL);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_REPORT, &report), -EINVAL);
	leave(&p, 1);
}

/* ---- leases ---- */

Test(leases, unmapped_means_gone, .init = begin, .fini = end)
{
	struct peer p = join();
	uint64_t id = map(&p, 0, GAIA_PAGE);
	struct gaia_ioc_range io = range(&p, id, 0, 0);

	cr_assert_eq(wire_ioctl(file, GAIA_IOC_UNMAP, &io), 0);
	cr_assert_eq(fake_seen().live, 0);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_UNMAP, &io), -EINVAL);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_RELEASE, &io), -EINVAL);
	close(p.sock);
}

Test(leases, end_with_the_connection, .init = begin, .fini = end)
{
	uint64_t lost = counter_value(CTR_clients_lost);
	struct peer p = join();
	struct gaia_ioc_range io;

	map(&p, 0, GAIA_PAGE);
	io = range(&p, map(&p, 0, GAIA_PAGE), 0, GAIA_PAGE);
	leave(&p, 2);
	cr_assert_eq(fake_seen().live, 0);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_RELEASE, &io), -ENOTCONN);
	cr_assert_eq(counter_value(CTR_clients_lost), lost + 1);
}

/* A client whose connection ends, but not its process, may go on storing to what it maps. */
Test(leases, are_of_memory_that_the_living_keep, .init = begin, .fini = end)
{
	struct peer p = join();
	struct gaia_ioc_range io = range(&p, map(&p, 0, GAIA_CHUNK), 0, 0);

	cr_assert_eq(wire_ioctl(file, GAIA_IOC_UNMAP, &io), 0);
	sem_wait(&fake_unmapped);
	cr_assert_eq(fake_seen().kept, 0);
	map(&p, 0, GAIA_CHUNK);
	leave(&p, 1);
	cr_assert_eq(fake_seen().kept, 1);
}

/* By hand, as the daemon is in the parent: the ticket is got there, and what the welcome said told there. */
Test(leases, are_of_memory_that_the_dead_do_not_keep, .init = begin, .fini = end)
{
	struct gaia_ioc_connect io = { .version = GAIA_PROTOCOL_VERSION };
	struct gaia_msg msg;
	struct peer p;
	int told[2];
	pid_t pid;

	cr_assert_eq(pipe(told), 0);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_CONNECT, &io), 0);
	pid = fork();
	if (pid == 0) {
		int sock = connect_to(&io);

		msg = hello(&io);
		if (sock < 0 || send(sock, &msg, sizeof(msg), 0) < 0 ||
		    recv(sock, &msg, sizeof(msg), 0) < 0 ||
		    write(told[1], &msg.key, sizeof(msg.key)) < 0)
			_exit(1);
		pause();
	}
	cr_assert_eq(read(told[0], &p.key, sizeof(p.key)), (ssize_t)sizeof(p.key));
	map(&p, 0, GAIA_CHUNK);
	kill(pid, SIGKILL);
	sem_wait(&fake_unmapped);
	cr_assert_eq(fake_seen().kept, 0);
	cr_assert_eq(waitpid(pid, NULL, 0), pid);
}

/* Memory that it did not unmap is its own for as long. */
Test(leases, are_of_memory_that_goes_with_the_process)
{
	struct client c = { .pid = fork() }, unseen = { .pid = 0 };
	struct cache_process process, none;
	siginfo_t info;

	if (c.pid == 0) {
		pause();
		_exit(0);
	}
	cr_assert(control_process(&c, &process));
	cr_assert(control_process_lives(&process));
	kill(c.pid, SIGKILL);
	cr_assert_eq(waitid(P_PID, (id_t)c.pid, &info, WEXITED | WNOWAIT), 0);
	cr_assert_not(control_process_lives(&process), "it is dead, and was not waited for");
	cr_assert_not(control_process(&c, &none));
	cr_assert_eq(waitpid(c.pid, NULL, 0), c.pid);
	cr_assert_not(control_process_lives(&process));
	cr_assert_not(control_process(&unseen, &none));
}

Test(leases, a_clean_end_is_not_a_loss, .init = begin)
{
	struct peer p = join();
	struct gaia_ioc_range io = range(&p, map(&p, 0, GAIA_PAGE), 0, 0);

	cr_assert_eq(wire_ioctl(file, GAIA_IOC_UNMAP, &io), 0);
	close(p.sock);
	end();
	cr_assert_eq(counter_value(CTR_clients_lost), 0);
}

Test(leases, a_killed_client_is_dead_at_once, .init = begin, .fini = end)
{
	int told[2];
	struct peer p;
	char byte;
	pid_t pid;

	cr_assert_eq(pipe(told), 0);
	p = join();
	map(&p, 0, GAIA_PAGE);
	cr_assert(fake_alive());
	/* The connection is the child's alone. */
	pid = fork();
	if (pid == 0) {
		if (write(told[1], "", 1) == 1)
			pause();
		_exit(1);
	}
	cr_assert_eq(read(told[0], &byte, 1), 1);
	close(p.sock);
	cr_assert(fake_alive());
	kill(pid, SIGKILL);
	cr_assert_eq(waitpid(pid, NULL, 0), pid);
	/* Whether or not the loop has noticed. */
	cr_assert_not(fake_alive());
	sem_wait(&fake_unmapped);
}

static void *acquire_in_thread(void *arg)
{
	struct gaia_ioc_range *io = arg;
	int err;

	io->prot = RW;
	err = wire_ioctl(file, GAIA_IOC_ACQUIRE, io);
	cr_assert_eq(err, -ENOTCONN);
	return NULL;
}

Test(leases, an_acquire_may_race_with_the_end, .init = begin, .fini = end)
{
	struct peer p = join();
	struct gaia_ioc_range io = range(&p, map(&p, 0, GAIA_PAGE), 0, GAIA_PAGE);
	struct gaia_ioc_range again = io;
	pthread_t thread;
	int err;

	fake_gate.armed = true;
	cr_assert_eq(pthread_create(&thread, NULL, acquire_in_thread, &io), 0);
	sem_wait(&fake_gate.entered);
	close(p.sock);
	/* Until the client cannot be found any more. */
	do {
		err = wire_ioctl(file, GAIA_IOC_RELEASE, &again);
	} while (!err);
	cr_assert_eq(err, -ENOTCONN);
	cr_assert_eq(fake_seen().unmaps, 0);
	sem_post(&fake_gate.leave);
	sem_wait(&fake_unmapped);
	cr_assert_eq(pthread_join(thread, NULL), 0);
	cr_assert_eq(fake_seen().live, 0);
}

Test(leases, mappings_are_limited, .init = begin, .fini = end)
{
	struct peer p = join();
	struct gaia_ioc_map io = { .key = p.key, .length = GAIA_PAGE, .prot = RW };

	for (int i = 0; i < 65536; i++)
		cr_assert_eq(wire_ioctl(file, GAIA_IOC_MAP, &io), 0);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_MAP, &io), -EMFILE);
	leave(&p, 65536);
}

Test(leases, of_one_user_are_limited, .init = begin, .fini = end)
{
	struct gaia_ioc_map io = { .length = GAIA_PAGE, .prot = RW };
	struct gaia_ioc_range none;
	struct peer p[2], other;

	quota_set_each(fake_quota(), QUOTA_mappings, 3);
	fake_uid = 1000;
	p[0] = join();
	p[1] = join();
	fake_uid = 1001;
	other = join();
	map(&p[0], 0, GAIA_PAGE);
	map(&p[1], 0, GAIA_PAGE);
	none = range(&p[1], map(&p[1], 0, GAIA_PAGE), 0, 0);
	for (int i = 0; i < 2; i++) {
		io.key = p[i].key;
		cr_assert_eq(wire_ioctl(file, GAIA_IOC_MAP, &io), -EMFILE);
	}
	map(&other, 0, GAIA_PAGE);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_UNMAP, &none), 0);
	sem_wait(&fake_unmapped);
	map(&p[0], 0, GAIA_PAGE);
	leave(&p[1], 1);
	leave(&p[0], 2);
	leave(&other, 1);
}

/* ---- memory ---- */

Test(grants, come_in_packets_and_the_last_is_named, .init = begin, .fini = end)
{
	struct peer p = join();
	uint64_t id = map(&p, 0, 150ull * GAIA_CHUNK), seen = 0, last = p.seq;
	struct gaia_ioc_range io = range(&p, id, 0, 150ull * GAIA_CHUNK);

	io.prot = RW;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), 0);
	while (seen < 150) {
		int fds[GAIA_MSG_CHUNKS];
		struct gaia_msg msg;
		unsigned n;

		cr_assert_eq(wire_receive(p.sock, true, &msg, fds, &n), 0);
		cr_assert_eq(msg.kind, GAIA_MSG_GRANT);
		cr_assert_eq(msg.map, id);
		cr_assert_eq(msg.seq, last + 1);
		cr_assert_eq(n, msg.count);
		last = msg.seq;
		for (unsigned i = 0; i < n; i++) {
			unsigned char first;

			cr_assert_eq(msg.chunk[i], seen++);
			cr_assert_eq(pread(fds[i], &first, 1, 0), 1);
			cr_assert_eq(first, msg.chunk[i]);
			close(fds[i]);
		}
	}
	cr_assert_eq(io.seq, last);
	leave(&p, 1);
}

/* The GRANT that the acquire of these chunks brings: what it is of, in order. */
static struct gaia_msg acquire_chunks(struct peer *p, uint64_t id, uint64_t first, unsigned n, int fds[GAIA_MSG_CHUNKS], uint64_t *extents)
{
	struct gaia_ioc_range io = range(p, id, first * GAIA_CHUNK, n * (uint64_t)GAIA_CHUNK);
	struct gaia_msg msg;
	unsigned got;

	io.prot = RW;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), 0);
	cr_assert_eq(wire_receive_extents(p->sock, true, &msg, fds, &got, extents), 0);
	cr_assert_eq(msg.kind, GAIA_MSG_GRANT);
	cr_assert_eq(got, msg.count);
	return msg;
}

static void is_memory_of(int fd, uint64_t first, unsigned n)
{
	unsigned char byte;

	for (unsigned k = 0; k < n; k++) {
		cr_assert_eq(pread(fd, &byte, 1, k * (off_t)GAIA_CHUNK), 1);
		cr_assert_eq(byte, first + k);
	}
	cr_assert_eq(pread(fd, &byte, 1, n * (off_t)GAIA_CHUNK), 0, "it is no longer");
	close(fd);
}

Test(grants, are_of_chunks_and_of_extents, .init = begin, .fini = end)
{
	struct peer p = join_with(GAIA_FEATURE_SPANS | GAIA_FEATURE_EXTENTS);
	uint64_t id = map(&p, 0, 30ull * GAIA_CHUNK), extents;
	int fds[GAIA_MSG_CHUNKS];
	struct gaia_msg msg;

	cr_assert(fake_seen().extents);
	fake_prepare(id, 0, GAIA_EXTENT_CHUNKS);
	fake_extents = true;
	msg = acquire_chunks(&p, id, 6, 13, fds, &extents);
	cr_assert_eq(msg.count, 4);
	cr_assert_eq(extents, 1 << 2 | 1 << 3);
	for (unsigned i = 0; i < 4; i++) {
		static const uint64_t want[] = { 6, 7, 8, 16 };

		cr_assert_eq(msg.chunk[i], want[i]);
		is_memory_of(fds[i], want[i], i < 2 ? 1 : GAIA_EXTENT_CHUNKS);
	}
	leave(&p, 1);
}

static void gets_chunks(uint64_t features)
{
	struct peer p = join_with(features);
	uint64_t id = map(&p, 0, 30ull * GAIA_CHUNK), extents;
	int fds[GAIA_MSG_CHUNKS];

	cr_assert_not(fake_seen().extents);
	fake_extents = true;
	cr_assert_eq(acquire_chunks(&p, id, 8, 2, fds, &extents).count, 2);
	cr_assert_eq(extents, 0);
	is_memory_of(fds[0], 8, 1);
	is_memory_of(fds[1], 9, 1);
	leave(&p, 1);
}

Test(grants, are_of_chunks_for_clients_that_know_no_extents, .init = begin, .fini = end)
{
	gets_chunks(GAIA_FEATURE_SPANS);
	gets_chunks(GAIA_FEATURE_EXTENTS);
	gets_chunks(0);
}

/* It gives up all memory when it moves. */
Test(grants, do_not_keep_a_client_from_moving_to_where_there_are_no_extents, .init = begin, .fini = end)
{
	struct peer p = join_with(GAIA_FEATURE_MOVES | GAIA_FEATURE_SPANS | GAIA_FEATURE_EXTENTS);
	struct gaia_msg msg;
	int fds[GAIA_MSG_CHUNKS];
	unsigned n;

	map(&p, 0, GAIA_CHUNK);
	control_move_to(fake_control(), GAIA_FEATURES & ~GAIA_FEATURE_EXTENTS);
	/* Until it can be said: the thread that has welcomed the client may still be at it. */
	while (poll(&(struct pollfd){ .fd = p.sock, .events = POLLIN }, 1, 1) == 0)
		control_move_ask(fake_control());
	cr_assert_eq(wire_receive(p.sock, true, &msg, fds, &n), 0);
	cr_assert_eq(msg.kind, GAIA_MSG_MOVE);
	leave(&p, 1);
}

static void begin_dying(void)
{
	setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
	begin();
}

Test(grants, of_extents_to_a_client_that_takes_none_are_a_bug, .init = begin_dying, .signal = SIGABRT)
{
	struct peer p = join_with(GAIA_FEATURE_SPANS);
	uint64_t id = map(&p, 0, GAIA_EXTENT), idx = 0, seq;
	struct handover *answer;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	control_grant(fake_client(id), id, RW, &idx, &fd, (unsigned[]){ GAIA_EXTENT_CHUNKS }, 1, &seq, &answer);
}

Test(grants, to_a_client_that_does_not_read_end_it, .init = begin, .fini = end, .timeout = 240)
{
	struct peer p = join();
	struct gaia_ioc_range io = range(&p, map(&p, 0, GAIA_CHUNK), 0, GAIA_PAGE);

	fake_fill_socket(io.map);
	io.prot = RW;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), -ENOTCONN);
	leave(&p, 1);
}

static void *revoke_in_thread(void *arg)
{
	uint64_t *id = arg;

	return (void *)(intptr_t)fake_revoke(*id, 0);
}

/* The mapping's first page, and so its first chunk. */
static void acquire_page(struct peer *p, uint64_t id)
{
	struct gaia_ioc_range io = range(p, id, 0, GAIA_PAGE);
	int fds[GAIA_MSG_CHUNKS];
	struct gaia_msg msg;
	unsigned n;

	io.prot = RW;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIRE, &io), 0);
	cr_assert_eq(wire_receive(p->sock, true, &msg, fds, &n), 0);
	close(fds[0]);
}

/* What @revoke asks for is answered, and whoever waits for that goes on. */
static void is_revoked(struct peer *p, const struct gaia_msg *revoke, pthread_t waits)
{
	struct gaia_msg answer = { .kind = GAIA_MSG_REVOKED, .version = GAIA_PROTOCOL_VERSION, .seq = revoke->seq, .map = revoke->map };
	void *result;

	cr_assert_eq(wire_send(p->sock, &answer), 0);
	cr_assert_eq(pthread_join(waits, &result), 0);
	cr_assert_eq((intptr_t)result, 0);
}

Test(revoking, waits_for_the_answer, .init = begin, .fini = end)
{
	uint64_t before = counter_value(CTR_revokes);
	struct gaia_msg msg;
	struct peer p = join();
	uint64_t id = map(&p, 0, GAIA_CHUNK);
	int fds[GAIA_MSG_CHUNKS];
	pthread_t thread;
	unsigned n;

	acquire_page(&p, id);
	cr_assert_eq(pthread_create(&thread, NULL, revoke_in_thread, &id), 0);
	cr_assert_eq(wire_receive(p.sock, true, &msg, fds, &n), 0);
	cr_assert_eq(msg.kind, GAIA_MSG_REVOKE);
	cr_assert_eq(msg.map, id);
	cr_assert_eq(msg.chunk[0], 0);
	cr_assert_eq(counter_value(CTR_revokes), before);
	is_revoked(&p, &msg, thread);
	cr_assert_eq(counter_value(CTR_revokes), before + 1);
	leave(&p, 1);
}

static bool is_busy(void)
{
	struct control_movers who;

	control_move_look(fake_control(), &who);
	return who.busy;
}

/* Its daemon must not end before it has read the answer. */
Test(revoking, makes_a_client_busy_for_an_upgrade, .init = begin, .fini = end)
{
	struct gaia_msg msg;
	struct gaia_msg ready = { .kind = GAIA_MSG_READY, .version = GAIA_PROTOCOL_VERSION };
	struct peer p = join_with(GAIA_FEATURE_MOVES);
	uint64_t id = map(&p, 0, GAIA_CHUNK);
	int fds[GAIA_MSG_CHUNKS];
	pthread_t thread;
	unsigned n;

	acquire_page(&p, id);
	control_move_to(fake_control(), GAIA_FEATURES);
	control_move_ask(fake_control());
	cr_assert(is_busy());
	cr_assert_eq(wire_receive(p.sock, true, &msg, fds, &n), 0);
	cr_assert_eq(msg.kind, GAIA_MSG_MOVE);
	ready.seq = msg.seq;
	cr_assert_eq(wire_send(p.sock, &ready), 0);
	while (is_busy())
		usleep(1000);
	cr_assert_eq(pthread_create(&thread, NULL, revoke_in_thread, &id), 0);
	cr_assert_eq(wire_receive(p.sock, true, &msg, fds, &n), 0);
	cr_assert_eq(msg.kind, GAIA_MSG_REVOKE);
	cr_assert(is_busy());
	is_revoked(&p, &msg, thread);
	cr_assert(!is_busy());
	leave(&p, 1);
}

Test(revoking, from_a_client_that_ends_does_not_wait, .init = begin, .fini = end)
{
	struct peer p = join();
	uint64_t id = map(&p, 0, GAIA_CHUNK);
	struct gaia_msg msg;
	pthread_t thread;
	void *result;

	cr_assert_eq(pthread_create(&thread, NULL, revoke_in_thread, &id), 0);
	cr_assert_eq(recv(p.sock, &msg, sizeof(msg), 0), (ssize_t)sizeof(msg));
	close(p.sock);
	cr_assert_eq(pthread_join(thread, &result), 0);
	cr_assert_eq((intptr_t)result, -ENOTCONN);
	sem_wait(&fake_unmapped);
}

Test(revoking, without_an_answer_ends_the_client, .init = begin, .fini = end, .timeout = 240)
{
	struct peer p = join();
	uint64_t id = map(&p, 0, GAIA_CHUNK);

	cr_assert_eq(fake_revoke(id, 0), -ENOTCONN);
	sem_wait(&fake_unmapped);
	cr_assert_eq(fake_seen().live, 0);
	close(p.sock);
}

/* The memory is another client's by then, however busy the loop is. */
Test(revoking, without_an_answer_ends_the_client_at_once, .init = begin, .fini = end, .timeout = 240)
{
	struct peer p = join();
	uint64_t id = map(&p, 0, GAIA_CHUNK);
	struct gaia_ioc_range io = range(&p, id, 0, GAIA_PAGE);

	fault_hold("client.before_end");
	cr_assert_eq(fake_revoke(id, 0), -ENOTCONN);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_RELEASE, &io), -ENOTCONN);
	fault_let_go("client.before_end");
	sem_wait(&fake_unmapped);
	close(p.sock);
}

/* Answers the next REVOKE. */
static void answer_revoke(struct peer *p)
{
	struct gaia_msg msg, answer = { .kind = GAIA_MSG_REVOKED, .version = GAIA_PROTOCOL_VERSION };
	int fds[GAIA_MSG_CHUNKS];
	unsigned n;

	cr_assert_eq(wire_receive(p->sock, true, &msg, fds, &n), 0);
	cr_assert_eq(msg.kind, GAIA_MSG_REVOKE);
	answer.seq = msg.seq;
	answer.map = msg.map;
	cr_assert_eq(wire_send(p->sock, &answer), 0);
}

static void *revoke_all_in_thread(void *arg)
{
	return (void *)(intptr_t)fake_revoke_all(0);
}

Test(revoking, asks_all_before_it_waits_for_any, .init = begin, .fini = end)
{
	uint64_t timeouts = counter_value(CTR_revoke_timeouts);
	struct peer p[6];
	pthread_t thread;
	void *result;

	for (int i = 0; i < 6; i++) {
		p[i] = join();
		map(&p[i], 0, GAIA_CHUNK);
	}
	cr_assert_eq(pthread_create(&thread, NULL, revoke_all_in_thread, NULL), 0);
	/* In whatever order they were asked, one of these orders of answers is another. */
	for (int i = 0; i < 3; i++) {
		answer_revoke(&p[i]);
		answer_revoke(&p[5 - i]);
	}
	cr_assert_eq(pthread_join(thread, &result), 0);
	cr_assert_eq((intptr_t)result, 6);
	cr_assert_eq(counter_value(CTR_revoke_timeouts), timeouts);
	for (int i = 0; i < 6; i++)
		leave(&p[i], 1);
}

Test(revoking, from_six_that_are_mute_costs_one_timeout, .init = begin, .fini = end, .timeout = 240)
{
	struct peer p[7];
	pthread_t thread;
	void *result;

	for (int i = 0; i < 7; i++) {
		p[i] = join();
		map(&p[i], 0, GAIA_CHUNK);
	}
	cr_assert_eq(pthread_create(&thread, NULL, revoke_all_in_thread, NULL), 0);
	answer_revoke(&p[3]);
	cr_assert_eq(pthread_join(thread, &result), 0);
	cr_assert_eq((intptr_t)result, 1);
	cr_assert_eq(counter_value(CTR_revoke_timeouts), 1);
	for (int i = 0; i < 7; i++)
		leave(&p[i], 1);
}

static unsigned times_mute(uid_t uid)
{
	struct control *ctl = fake_control();
	struct mute_user *m;
	unsigned times;

	pthread_mutex_lock(&ctl->lock);
	HASH_FIND(hh, ctl->mute_users, &uid, sizeof(uid), m);
	times = m ? m->times : 0;
	pthread_mutex_unlock(&ctl->lock);
	return times;
}

/* A user whose clients are all stopped at once, for instance by a debugger, was mute once, whoever asked them and when. */
Test(revoking, from_clients_that_are_mute_at_the_same_time_counts_once, .init = begin, .fini = end, .timeout = 240)
{
	pthread_t thread[2];
	struct peer p[2];
	uint64_t id[2];

	fake_uid = 1000;
	for (int i = 0; i < 2; i++) {
		p[i] = join();
		id[i] = map(&p[i], 0, GAIA_CHUNK);
	}
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(pthread_create(&thread[i], NULL, revoke_in_thread, &id[i]), 0);
		usleep(300000); /* so that the second is disconnected later than the first */
	}
	for (int i = 0; i < 2; i++)
		cr_assert_eq(pthread_join(thread[i], NULL), 0);
	cr_assert_eq(counter_value(CTR_revoke_timeouts), 2);
	cr_assert_eq(times_mute(1000), 1);
	for (int i = 0; i < 2; i++)
		leave(&p[i], 1);
}

#define MANY 65535u /* mappings of one client, in all of which a chunk is mapped */

static unsigned n_revoked;

static void *revoke_n_in_thread(void *arg)
{
	uint64_t *id = arg;

	return (void *)(intptr_t)fake_revoke_many(*id, n_revoked);
}

/* More than fit into its socket; and neither the asking nor the answers take longer, each, the more there are. */
Test(revoking, very_much_from_one_that_answers_costs_no_timeout, .init = begin, .fini = end, .timeout = 240)
{
	struct peer p = join();
	uint64_t id = map(&p, 0, GAIA_CHUNK);
	pthread_t thread;
	void *result;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* where each of them takes long */
	fault_arm("revoke.patience", -EAGAIN, 0, 0);
#endif
	n_revoked = MANY;
	cr_assert_eq(pthread_create(&thread, NULL, revoke_n_in_thread, &id), 0);
	for (unsigned i = 0; i < MANY; i++)
		answer_revoke(&p);
	cr_assert_eq(pthread_join(thread, &result), 0);
	cr_assert_eq((intptr_t)result, MANY);
	cr_assert_eq(counter_value(CTR_revoke_timeouts), 0);
	leave(&p, 1);
}

/* A client that answers has longer; but not for ever. */
Test(revoking, with_one_answer_of_two_ends_the_client, .init = begin, .fini = end, .timeout = 240)
{
	struct peer p = join();
	uint64_t id = map(&p, 0, GAIA_CHUNK);
	pthread_t thread;
	void *result;

	n_revoked = 2;
	cr_assert_eq(pthread_create(&thread, NULL, revoke_n_in_thread, &id), 0);
	answer_revoke(&p);
	cr_assert_eq(pthread_join(thread, &result), 0);
	cr_assert_eq((intptr_t)result, 1);
	cr_assert_eq(counter_value(CTR_revoke_timeouts), 1);
	sem_wait(&fake_unmapped);
	cr_assert_eq(fake_seen().live, 0);
	close(p.sock);
}

/* One that reads nothing has no room for the question, and keeps it from nobody else. */
Test(revoking, is_not_held_up_by_a_full_socket, .init = begin, .fini = end, .timeout = 240)
{
	struct peer full = join(), good = join();
	struct gaia_msg msg;
	pthread_t thread;
	void *result;

	map(&good, 0, GAIA_CHUNK);
	fake_fill_socket(map(&full, 0, GAIA_CHUNK));
	cr_assert_eq(pthread_create(&thread, NULL, revoke_all_in_thread, NULL), 0);
	answer_revoke(&good);
	/* Now there is. */
	do
		cr_assert_eq(recv(full.sock, &msg, sizeof(msg), 0), (ssize_t)sizeof(msg));
	while (msg.kind != GAIA_MSG_REVOKE);
	msg = (struct gaia_msg){ .kind = GAIA_MSG_REVOKED, .version = GAIA_PROTOCOL_VERSION,
				 .seq = msg.seq, .map = msg.map };
	cr_assert_eq(wire_send(full.sock, &msg), 0);
	cr_assert_eq(pthread_join(thread, &result), 0);
	cr_assert_eq((intptr_t)result, 2);
	cr_assert_eq(counter_value(CTR_revoke_timeouts), 0);
	leave(&good, 1);
	leave(&full, 1);
}

static atomic_bool acquired;

/* The chunk is handed over in a message, which waits for room. */
static void *await_room_in_thread(void *arg)
{
	acquire_in_thread(arg);
	acquired = true;
	return NULL;
}

/* Nor by another thread that waits for room in the socket. */
Test(revoking, is_not_held_up_by_another_message, .init = begin, .fini = end, .timeout = 240)
{
	struct peer full = join(), good = join();
	struct gaia_ioc_range io;
	pthread_t thread, sender;
	void *result;

	map(&good, 0, GAIA_CHUNK);
	io = range(&full, map(&full, 0, GAIA_CHUNK), 0, GAIA_PAGE);
	fake_fill_socket(io.map);
	cr_assert_eq(pthread_create(&sender, NULL, await_room_in_thread, &io), 0);
	fake_await_sender(full.key.id);
	cr_assert_eq(pthread_create(&thread, NULL, revoke_all_in_thread, NULL), 0);
	answer_revoke(&good);
	cr_assert_not(acquired);
	close(full.sock);
	cr_assert_eq(pthread_join(thread, &result), 0);
	cr_assert_eq((intptr_t)result, 1);
	cr_assert_eq(pthread_join(sender, NULL), 0);
	sem_wait(&fake_unmapped);
	leave(&good, 1);
}

/* What was not asked of a client yet it cannot answer: not with the number of no message, either. */
Test(revoking, without_a_question_has_no_answer, .init = begin, .fini = end, .timeout = 240)
{
	struct gaia_msg answer = { .kind = GAIA_MSG_REVOKED, .version = GAIA_PROTOCOL_VERSION };
	struct peer full = join(), good = join();
	pthread_t thread;
	void *result;

	map(&good, 0, GAIA_CHUNK);
	answer.map = map(&full, 0, GAIA_CHUNK);
	fake_fill_socket(answer.map);
	cr_assert_eq(pthread_create(&thread, NULL, revoke_all_in_thread, NULL), 0);
	answer_revoke(&good);
	cr_assert_eq(wire_send(full.sock, &answer), 0);
	cr_assert_eq(pthread_join(thread, &result), 0);
	cr_assert_eq((intptr_t)result, 1);
	cr_assert_eq(counter_value(CTR_revoke_timeouts), 0);
	sem_wait(&fake_unmapped);
	close(full.sock);
	leave(&good, 1);
}

static void *answer_in_thread(void *arg)
{
	for (unsigned i = 0; i < n_revoked; i++)
		answer_revoke(arg);
	return NULL;
}

/* Whoever asks goes on asking while something is pending; then nothing is kept for that. */
Test(revoking, is_over_when_nothing_is_pending, .init = begin, .fini = end, .timeout = 240)
{
	struct peer p = join();
	uint64_t id = map(&p, 0, GAIA_CHUNK);
	struct cache_revoke one = { .client = fake_client(id), .map = id };
	struct revoking *r = control_revoke_soon(&one, 1, 0);
	pthread_t thread;

	cr_assert_not_null(r);
	n_revoked = 1;
	cr_assert_eq(pthread_create(&thread, NULL, answer_in_thread, &p), 0);
	while (one.err == -EINPROGRESS)
		r = control_revoke_more(r, 0);
	cr_assert_eq(one.err, 0);
	cr_assert_null(r);
	cr_assert_eq(pthread_join(thread, NULL), 0);
	leave(&p, 1);
}

/* Ask for more than is sent at once, and leave it for longer than the client has. How many have been given up in the end. */
static unsigned revoke_and_leave(struct peer *p)
{
	uint64_t id = map(p, 0, GAIA_CHUNK);
	struct cache_revoke list[3 * REVOKES_AT_ONCE];
	unsigned n = ARRAY_LEN(list), given = 0;
	struct revoking *r;

	for (unsigned i = 0; i < n; i++)
		list[i] = (struct cache_revoke){ .client = fake_client(id), .map = id, .idx = i };
	r = control_revoke_soon(list, n, now_ns() + 1000000);
	usleep(REVOKE_TIMEOUT_NS / 1000 + 500000);
	while (r)
		r = control_revoke_more(r, now_ns() + 10000000);
	for (unsigned i = 0; i < n; i++)
		given += list[i].err == 0;
	return given;
}

/* What nobody has sent yet cannot be answered: that time is not the client's. */
Test(revoking, that_was_left_costs_no_timeout, .init = begin, .fini = end, .timeout = 240)
{
	struct peer p = join();
	pthread_t thread;

	n_revoked = 3 * REVOKES_AT_ONCE;
	cr_assert_eq(pthread_create(&thread, NULL, answer_in_thread, &p), 0);
	cr_assert_eq(revoke_and_leave(&p), n_revoked);
	cr_assert_eq(counter_value(CTR_revoke_timeouts), 0);
	cr_assert_eq(pthread_join(thread, NULL), 0);
	leave(&p, 1);
}

Test(revoking, that_was_left_ends_a_mute_client, .init = begin, .fini = end, .timeout = 240)
{
	struct peer p = join();

	cr_assert_eq(revoke_and_leave(&p), 0);
	cr_assert_eq(counter_value(CTR_revoke_timeouts), 1);
	sem_wait(&fake_unmapped);
	close(p.sock);
}

/* Whether or not the daemon still waits for the answer. */
static void *acquire_unanswered(void *arg)
{
	(void)wire_ioctl(file, GAIA_IOC_ACQUIRE, arg);
	return NULL;
}

/* Who has not said yet that it mapped a chunk cannot have unmapped it: the descriptor may come to be mapped later. */
Test(revoking, is_answered_after_what_was_handed_over_before, .init = begin, .fini = end, .timeout = 240)
{
	struct peer p = { .sock = wire_socket() };
	uint64_t features = GAIA_FEATURE_ANSWERS, id;
	int fds[GAIA_MSG_CHUNKS];
	struct gaia_ioc_range io;
	pthread_t acquirer, revoker;
	struct gaia_msg msg;
	void *result;
	unsigned n;

	cr_assert_eq(wire_handshake(p.sock, file, &p.key, &p.seq, &features), 0);
	cr_assert_eq(features, GAIA_FEATURE_ANSWERS);
	id = map(&p, 0, GAIA_CHUNK);
	io = range(&p, id, 0, GAIA_PAGE);
	io.prot = RW;
	cr_assert_eq(pthread_create(&acquirer, NULL, acquire_unanswered, &io), 0);
	cr_assert_eq(wire_receive(p.sock, true, &msg, fds, &n), 0);
	cr_assert_eq(msg.kind, GAIA_MSG_GRANT);
	close(fds[0]);
	cr_assert_eq(pthread_create(&revoker, NULL, revoke_in_thread, &id), 0);
	answer_revoke(&p);
	cr_assert_eq(pthread_join(revoker, &result), 0);
	cr_assert_eq((intptr_t)result, -ENOTCONN);
	cr_assert_eq(pthread_join(acquirer, NULL), 0);
	cr_assert(is_ended(p.sock));
	leave(&p, 1);
}

#ifndef __SANITIZE_THREAD__ /* which ends a process that forked from threads and makes one by clone(2) */

/*
 * A client whose process was killed, and whose socket is open still, as it is while one of its threads waits for our
 * answer to a request. Here it is open since we have it, too; and the signal stays pending, by which such a thread is
 * known, for the process's first thread, which had ended before.
 */
struct killed {
	struct peer p;
	pid_t pid;
};

static int never_ends(void *arg)
{
	while (syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0))
		;
	return 0;
}

static void live(const struct gaia_ioc_connect *io, int sock, int told)
{
	static char stack[16384] __attribute__((aligned(64)));
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	size_t len = strlen(io->socket);

	/* The process itself connects. */
	memcpy(addr.sun_path + 1, io->socket, len);
	if (connect(sock, (struct sockaddr *)&addr, offsetof(struct sockaddr_un, sun_path) + 1 + len))
		_exit(1);
	if (clone(never_ends, stack + sizeof(stack), CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD,
		  NULL) < 0)
		_exit(1);
	if (syscall(SYS_write, told, "", 1) != 1)
		syscall(SYS_exit_group, 1);
	syscall(SYS_exit, 0); /* this thread only */
}

/* The signal would end it, and not stay pending, while it is about to. */
static void await_end_of_first_thread(pid_t pid)
{
	char path[32], state = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	while (state != 'Z') {
		f = fopen(path, "re");
		cr_assert_not_null(f);
		cr_assert_eq(fscanf(f, "%*d (%*[^)]) %c", &state), 1);
		fclose(f);
	}
}

static struct killed join_and_be_killed(uint64_t *id)
{
	struct gaia_ioc_connect io = { .version = GAIA_PROTOCOL_VERSION };
	int told[2], fds[GAIA_MSG_CHUNKS];
	struct killed k = { .p.sock = wire_socket() };
	struct gaia_msg msg;
	unsigned n;
	char byte;

	cr_assert_eq(pipe(told), 0);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_CONNECT, &io), 0);
	k.pid = fork();
	if (k.pid == 0)
		live(&io, k.p.sock, told[1]);
	close(told[1]);
	cr_assert_eq(read(told[0], &byte, 1), 1);
	close(told[0]);
	msg = hello(&io);
	cr_assert_eq(wire_send(k.p.sock, &msg), 0);
	cr_assert_eq(wire_receive(k.p.sock, true, &msg, fds, &n), 0);
	cr_assert_eq(msg.kind, GAIA_MSG_WELCOME);
	k.p.key = msg.key;
	*id = map(&k.p, 0, GAIA_CHUNK);
	await_end_of_first_thread(k.pid);
	kill(k.pid, SIGKILL);
	/* All of it has ended; but we do not say that we know. */
	cr_assert_eq(waitid(P_PID, (id_t)k.pid, &(siginfo_t){ 0 }, WEXITED | WNOWAIT), 0);
	return k;
}

static void forget_killed(struct killed *k)
{
	cr_assert_eq(waitpid(k->pid, NULL, 0), k->pid);
	leave(&k->p, 1);
}

Test(revoking, from_a_client_that_was_killed_does_not_wait, .init = begin, .fini = end, .timeout = 240)
{
	uint64_t id;
	struct killed k = join_and_be_killed(&id);

	cr_assert_eq(fake_revoke(id, 0), -ENOTCONN);
	cr_assert_eq(counter_value(CTR_revoke_timeouts), 0);
	forget_killed(&k);
}

static sem_t may_end;

static void *idle(void *arg)
{
	sem_wait(&may_end);
	return NULL;
}

/* The look at all those threads takes longer than a look may; the next one goes on there. */
Test(revoking, from_a_client_that_was_killed_does_not_wait_for_one_with_many_threads, .init = begin, .fini = end,
     .timeout = 240)
{
	static pthread_t thread[1000];
	struct peer many = join();
	pthread_t revoker;
	pthread_attr_t small;
	struct killed k;
	void *result;
	uint64_t id;

	fault_arm("revoke.patience", -EAGAIN, 0, 0);
	map(&many, 0, GAIA_CHUNK);
	k = join_and_be_killed(&id);
	sem_init(&may_end, 0, 0);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	for (size_t i = 0; i < 1000; i++)
		cr_assert_eq(pthread_create(&thread[i], &small, idle, NULL), 0);
	cr_assert_eq(pthread_create(&revoker, NULL, revoke_all_in_thread, NULL), 0);
	while (!is_ended(k.p.sock))
		;
	answer_revoke(&many);
	cr_assert_eq(pthread_join(revoker, &result), 0);
	cr_assert_eq((intptr_t)result, 1);
	cr_assert_eq(counter_value(CTR_revoke_timeouts), 0);
	for (size_t i = 0; i < 1000; i++)
		sem_post(&may_end);
	for (size_t i = 0; i < 1000; i++)
		pthread_join(thread[i], NULL);
	pthread_attr_destroy(&small);
	forget_killed(&k);
	leave(&many, 1);
}
#endif

/* ---- acquires to come ---- */

static int acquire_as(struct peer *p, uint64_t id, unsigned prot)
{
	struct gaia_ioc_range io = range(p, id, 0, GAIA_PAGE);

	io.prot = prot;
	return wire_ioctl(file, GAIA_IOC_ACQUIRE, &io);
}

static unsigned pins_used(void)
{
	return quota_use(fake_quota(), QUOTA_pins).used;
}

Test(pins, are_limited_for_each_user, .init = begin, .fini = end, .timeout = 240)
{
	struct peer p, other;
	uint64_t first, second, others;

	quota_set_each(fake_quota(), QUOTA_pins, 2);
	fake_uid = 1000;
	p = join();
	first = map(&p, 0, GAIA_CHUNK);
	second = map(&p, 0, GAIA_CHUNK);
	cr_assert_eq(acquire_as(&p, first, GAIA_PROT_READ | GAIA_PROT_PIN), 0);
	cr_assert_eq(acquire_as(&p, second, GAIA_PROT_READ | GAIA_PROT_PIN), 0);
	cr_assert_eq(acquire_as(&p, second, GAIA_PROT_READ | GAIA_PROT_PIN), -EAGAIN);
	cr_assert_eq(fake_seen().pins, 2);
	fake_uid = 1001;
	other = join();
	others = map(&other, 0, GAIA_CHUNK);
	cr_assert_eq(acquire_as(&other, others, GAIA_PROT_READ | GAIA_PROT_PIN), 0);
	/* Ended by the acquire itself, or by giving it up. */
	cr_assert_eq(acquire_as(&p, first, GAIA_PROT_READ | GAIA_PROT_PINNED), 0);
	cr_assert_eq(acquire_as(&p, second, GAIA_PROT_PINNED), 0);
	cr_assert_eq(pins_used(), 1);
	cr_assert_eq(acquire_as(&p, second, GAIA_PROT_READ | GAIA_PROT_PIN), 0);
	cr_assert_eq(acquire_as(&p, second, GAIA_PROT_READ | GAIA_PROT_PIN), 0);
	cr_assert_eq(pins_used(), 3);
	leave(&p, 2);
	leave(&other, 1);
	/* With the mapping, a moment after it. */
	while (pins_used())
		sched_yield();
}

Test(pins, that_fail_are_none, .init = begin, .fini = end)
{
	struct peer p = join();
	uint64_t id = map(&p, 0, GAIA_CHUNK);

	fake_errors.pin = -ENOMEM;
	cr_assert_eq(acquire_as(&p, id, GAIA_PROT_READ | GAIA_PROT_PIN), -ENOMEM);
	fake_errors.pin = 0;
	cr_assert_eq(pins_used(), 0);
	cr_assert_eq(acquire_as(&p, id, GAIA_PROT_READ | GAIA_PROT_PIN), 0);
	/* One that comes and fails may come again. */
	fake_errors.acquire = -EIO;
	cr_assert_eq(acquire_as(&p, id, GAIA_PROT_READ | GAIA_PROT_PINNED), -EIO);
	cr_assert_eq(pins_used(), 1);
	fake_errors.acquire = 0;
	cr_assert_eq(acquire_as(&p, id, GAIA_PROT_READ | GAIA_PROT_PINNED), 0);
	cr_assert_eq(pins_used(), 0);
	leave(&p, 1);
}

/* ---- lists of ranges ---- */

/* Ask for the memory for lists: its descriptor, or a negative errno. */
static int lists_of(struct peer *p)
{
	struct gaia_ioc_lists io = { .key = p->key };
	int fds[GAIA_MSG_CHUNKS];
	struct gaia_msg msg;
	unsigned n;
	int err = wire_ioctl(file, GAIA_IOC_LISTS, &io);

	if (err)
		return err;
	cr_assert_eq(wire_receive(p->sock, true, &msg, fds, &n), 0);
	cr_assert_eq(msg.kind, GAIA_MSG_LISTS);
	cr_assert_eq(msg.seq, io.seq);
	cr_assert_eq(n, 1);
	return fds[0];
}

static int acquire_listed(struct peer *p, uint64_t id, unsigned n)
{
	struct gaia_ioc_list io = { .key = p->key, .map = id, .count = n, .prot = RW };

	return wire_ioctl(file, GAIA_IOC_ACQUIREV, &io);
}

static int release_listed(struct peer *p, uint64_t id, unsigned n)
{
	struct gaia_ioc_list io = { .key = p->key, .map = id, .count = n };

	return wire_ioctl(file, GAIA_IOC_RELEASEV, &io);
}

Test(lists, have_a_memory_that_is_sent_a_few_times, .init = begin, .fini = end)
{
	struct peer p, other;
	int fd, sent = 0;

	fake_uid = 1000;
	quota_set_each(fake_quota(), QUOTA_lists, 1);
	p = join_with(GAIA_FEATURE_LISTS);
	other = join_with(GAIA_FEATURE_LISTS);
	while ((fd = lists_of(&p)) >= 0) {
		cr_assert_lt(ftruncate(fd, 0), 0);
		close(fd);
		cr_assert_lt(++sent, 100);
	}
	cr_assert_eq(fd, -EMFILE);
	cr_assert_gt(sent, 1);
	cr_assert_eq(lists_of(&other), -EMFILE, "each client's memory counts for its user");
	cr_assert_eq(quota_use(fake_quota(), QUOTA_lists).used, 1);
	leave(&p, 0);
	while (quota_use(fake_quota(), QUOTA_lists).used)
		sched_yield();
	fd = lists_of(&other);
	cr_assert_geq(fd, 0);
	close(fd);
	leave(&other, 0);
}

Test(lists, are_limited_for_each_user, .init = begin, .fini = end)
{
	const struct gaia_list_range range[] = { { 0, 1 }, { GAIA_PAGE, 1 } };
	struct peer p;
	uint64_t id;
	int fd;

	fake_uid = 1000;
	quota_set_each(fake_quota(), QUOTA_listed_kib, 8);
	p = join_with(GAIA_FEATURE_LISTS);
	id = map(&p, 0, GAIA_CHUNK);
	cr_assert_eq(acquire_listed(&p, id, 2), -EINVAL, "there is no memory for it yet");
	fd = lists_of(&p);
	cr_assert_eq(pwrite(fd, range, sizeof(range), 0), sizeof(range));
	cr_assert_eq(acquire_listed(&p, id, 2), 0);
	cr_assert_eq(fake_seen().acquires, 2);
	cr_assert_eq(acquire_listed(&p, id, 1000), -E2BIG, "there never will be room");
	cr_assert_eq(quota_take_many(fake_quota(), QUOTA_listed_kib, 1000, 8), 0);
	cr_assert_eq(acquire_listed(&p, id, 2), -ENOBUFS);
	cr_assert_eq(release_listed(&p, id, 2), -ENOBUFS);
	cr_assert_eq(fake_seen().acquires, 2);
	cr_assert_eq(fake_seen().releases, 0);
	quota_give_many(fake_quota(), QUOTA_listed_kib, 1000, 8);
	cr_assert_eq(release_listed(&p, id, 2), 0);
	cr_assert_eq(fake_seen().releases, 2);
	cr_assert_eq(quota_use(fake_quota(), QUOTA_listed_kib).used, 0);
	close(fd);
	leave(&p, 1);
}

/* ---- what clients say of changes ---- */

static int map_detecting(struct peer *p, unsigned prot, unsigned flags, uint64_t *id)
{
	struct gaia_ioc_map io = { .key = p->key, .length = GAIA_CHUNK, .prot = prot, .flags = flags };
	int err = wire_ioctl(file, GAIA_IOC_MAP, &io);

	*id = io.map;
	return err;
}

static int release_told(struct peer *p, uint64_t id, unsigned prot, unsigned told)
{
	struct gaia_ioc_list io = { .key = p->key, .map = id, .count = 1, .prot = prot, .told = told };

	return wire_ioctl(file, GAIA_IOC_RELEASEV, &io);
}

Test(detect, is_for_those_who_said_so, .init = begin, .fini = end)
{
	const struct gaia_list_range range[] = { { 0, GAIA_CHUNK }, { GAIA_PAGE, 1 }, { 3 * GAIA_PAGE, 2 } };
	struct peer old = join_with(GAIA_FEATURE_LISTS), p = join_with(GAIA_FEATURE_LISTS | GAIA_FEATURE_DETECT);
	struct gaia_ioc_list acquire = { .key = p.key, .count = 1, .prot = RW, .told = 1 };
	uint64_t id, plain;
	int fd = lists_of(&p);

	cr_assert_eq(pwrite(fd, range, sizeof(range), 0), sizeof(range));
	cr_assert_eq(map_detecting(&old, RW, GAIA_MAP_DETECTS, &id), -EINVAL);
	cr_assert_eq(map_detecting(&p, GAIA_PROT_READ, GAIA_MAP_DETECTS, &id), -EINVAL);
	cr_assert_eq(map_detecting(&p, RW, GAIA_MAP_DETECTS | 2, &id), -EINVAL);
	cr_assert_eq(map_detecting(&p, RW, 0, &plain), 0);
	cr_assert_not(fake_seen().detects);
	cr_assert_eq(map_detecting(&p, RW, GAIA_MAP_DETECTS, &id), 0);
	cr_assert(fake_seen().detects);

	cr_assert_eq(release_told(&p, plain, GAIA_PROT_TOLD, 2), -EINVAL);
	cr_assert_eq(release_told(&p, id, 0, 2), -EINVAL);
	cr_assert_eq(release_told(&p, id, GAIA_PROT_TOLD | 64, 2), -EINVAL);
	cr_assert_eq(release_told(&p, id, GAIA_PROT_TOLD, GAIA_LIST_MOST + 1), -EINVAL);
	cr_assert_eq(release_told(&p, id, GAIA_PROT_TOLD, UINT32_MAX), -EINVAL);
	acquire.map = id;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_ACQUIREV, &acquire), -EINVAL);
	cr_assert_eq(fake_seen().releases + fake_seen().acquires, 0);

	cr_assert_eq(release_told(&p, id, GAIA_PROT_TOLD, 2), 0);
	cr_assert_eq(fake_seen().n_found, 2);
	cr_assert_eq(fake_seen().found[1].offset, 3 * GAIA_PAGE);
	cr_assert_eq(fake_seen().given_back, 0);
	cr_assert_eq(release_told(&p, id, GAIA_PROT_TOLD | GAIA_PROT_UNUSED, 0), 0);
	cr_assert_eq(fake_seen().given_back, 1);
	cr_assert_eq(release_told(&p, id, 0, 0), 0);
	cr_assert_eq(fake_seen().told, 2);
	close(fd);
	leave(&old, 0);
	leave(&p, 2);
}

/* Whoever may only read a file cannot keep its inode's lock by releases. */
Test(releases, are_asked_for_in_the_way_of_the_mapping, .init = begin, .fini = end)
{
	struct peer p = join_with(GAIA_FEATURE_LISTS);
	struct gaia_ioc_map io = { .key = p.key, .length = GAIA_CHUNK, .prot = GAIA_PROT_READ };
	struct gaia_ioc_range read, write;
	struct gaia_ioc_list list = { .key = p.key };
	struct cfile *f = fake_cfile(file);
	int fd = lists_of(&p);
	bool changed;

	write = range(&p, map(&p, 0, GAIA_CHUNK), 0, GAIA_PAGE);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_MAP, &io), 0);
	read = range(&p, io.map, 0, GAIA_PAGE);
	cr_assert_eq(control_release(fake_control(), f, RELEASES_WRITERS, &read, &changed), -EOPNOTSUPP);
	cr_assert_eq(control_release(fake_control(), f, RELEASES_READERS, &write, &changed), -EOPNOTSUPP);
	list.map = read.map;
	cr_assert_eq(control_releasev(fake_control(), f, RELEASES_WRITERS, &list, &changed), -EOPNOTSUPP);
	cr_assert_eq(control_releasev(fake_control(), f, RELEASES_READERS, &list, &changed), 0);
	list.map = write.map;
	cr_assert_eq(control_releasev(fake_control(), f, RELEASES_READERS, &list, &changed), -EOPNOTSUPP);
	cr_assert_eq(control_releasev(fake_control(), f, RELEASES_WRITERS, &list, &changed), 0);
	cr_assert_eq(fake_seen().releases, 0);
	cr_assert_eq(control_release(fake_control(), f, RELEASES_READERS, &read, &changed), 0);
	cr_assert_eq(control_release(fake_control(), f, RELEASES_WRITERS, &write, &changed), 0);
	cr_assert_eq(control_release(fake_control(), f, RELEASES_ANY, &read, &changed), 0);
	cr_assert_eq(fake_seen().releases, 3);
	/* Of what was not used. */
	cr_assert_eq(fake_seen().given_back, 0);
	read.prot = list.prot = GAIA_PROT_UNUSED;
	cr_assert_eq(control_release(fake_control(), f, RELEASES_WRITERS, &read, &changed), -EOPNOTSUPP);
	cr_assert_eq(control_release(fake_control(), f, RELEASES_READERS, &read, &changed), 0);
	cr_assert_eq(control_releasev(fake_control(), f, RELEASES_WRITERS, &list, &changed), 0);
	cr_assert_eq(fake_seen().given_back, 2);
	for (unsigned prot = 1; prot < 64; prot++)
		if (prot != GAIA_PROT_UNUSED) {
			read.prot = list.prot = prot;
			cr_assert_eq(control_release(fake_control(), f, RELEASES_READERS, &read, &changed), -EINVAL);
			cr_assert_eq(control_releasev(fake_control(), f, RELEASES_WRITERS, &list, &changed), -EINVAL);
		}
	close(fd);
	leave(&p, 2);
}

/* ---- looking ---- */

Test(reports, say_who_is_there_and_cannot_be_changed, .init = begin, .fini = end)
{
	struct peer p = join();
	struct gaia_ioc_report io = { .key = p.key, .what = GAIA_REPORT_STATUS };
	int fds[GAIA_MSG_CHUNKS], pid, mappings;
	struct gaia_msg msg;
	json_t *report;
	const char *version;
	unsigned n;

	map(&p, 0, GAIA_PAGE);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_REPORT, &io), 0);
	cr_assert_eq(wire_receive(p.sock, true, &msg, fds, &n), 0);
	cr_assert_eq(msg.kind, GAIA_MSG_REPORT);
	cr_assert_eq(msg.seq, io.seq);
	cr_assert_lt(pwrite(fds[0], "x", 1, 0), 0);
	cr_assert_lt(ftruncate(fds[0], 1 << 20), 0);
	lseek(fds[0], 0, SEEK_SET);
	report = json_loadfd(fds[0], 0, NULL);
	cr_assert_not_null(report);
	cr_assert_eq(json_unpack(report, "{s:s, s:[{s:i, s:i}], s:[], s:{}}", "version", &version,
				 "clients", "pid", &pid, "mappings", &mappings, "devices", "home"), 0);
	cr_assert_str_eq(version, "test");
	cr_assert_eq(pid, getpid());
	cr_assert_eq(mappings, 1);
	json_decref(report);
	close(fds[0]);
	leave(&p, 1);
}

/* The rows of @list in the report @what that @p asks for, as @uid. */
static json_t *rows_of(struct peer *p, uid_t uid, unsigned what, const char *list)
{
	struct gaia_ioc_report io = { .key = p->key, .what = what };
	int fds[GAIA_MSG_CHUNKS];
	struct gaia_msg msg;
	json_t *report, *found;
	unsigned n;

	fake_uid = uid;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_REPORT, &io), 0);
	cr_assert_eq(wire_receive(p->sock, true, &msg, fds, &n), 0);
	lseek(fds[0], 0, SEEK_SET);
	report = json_loadfd(fds[0], 0, NULL);
	close(fds[0]);
	found = json_incref(json_object_get(report, list));
	cr_assert_not_null(found, "%s", list);
	json_decref(report);
	return found;
}

static int number(json_t *rows, size_t row, const char *key)
{
	return (int)json_integer_value(json_object_get(json_array_get(rows, row), key));
}

static json_t *rows(struct peer *p, uid_t uid, const char *list)
{
	return rows_of(p, uid, GAIA_REPORT_STATUS, list);
}

Test(reports, of_pins_of_others_are_for_root, .init = begin, .fini = end)
{
	struct peer a;
	json_t *got;

	fake_uid = 1000;
	a = join();
	got = rows_of(&a, 1000, GAIA_REPORT_PINS, "pins");
	cr_assert_eq(number(got, 0, "uid"), 1000);
	cr_assert(json_is_false(json_object_get(json_array_get(got, 0), "all")));
	json_decref(got);
	got = rows_of(&a, 0, GAIA_REPORT_PINS, "pins");
	cr_assert(json_is_true(json_object_get(json_array_get(got, 0), "all")));
	json_decref(got);
	leave(&a, 0);
}

Test(reports, of_other_users_are_for_root, .init = begin, .fini = end)
{
	struct peer a, b;
	json_t *got;

	fake_uid = 1000;
	a = join();
	map(&a, 0, GAIA_PAGE);
	fake_uid = 1001;
	b = join();

	got = rows(&a, 1000, "users");
	cr_assert_eq(json_array_size(got), 1);
	cr_assert_eq(number(got, 0, "uid"), 1000);
	cr_assert_eq(number(got, 0, "clients"), 1);
	cr_assert_eq(number(got, 0, "mappings"), 1);
	json_decref(got);
	got = rows(&b, 1001, "clients");
	cr_assert_eq(json_array_size(got), 1);
	cr_assert_eq(number(got, 0, "uid"), 1001);
	json_decref(got);
	got = rows(&a, 1000, "limits");
	cr_assert_eq(json_array_size(got), QUOTA_COUNT);
	cr_assert_eq(number(got, 0, "each_user"), 1024);
	cr_assert_null(json_object_get(json_array_get(got, 0), "present"));
	json_decref(got);
	got = rows(&a, 1000, "counters");
	cr_assert_null(json_object_get(got, "dedup_found"), "it tells what others have");
	cr_assert_not_null(json_object_get(got, "twins"));
	json_decref(got);
	got = rows(&a, 1000, "races");
	cr_assert_eq(json_array_size(got), 0, "they tell where others write");
	json_decref(got);

	got = rows(&a, 0, "users");
	cr_assert_eq(json_array_size(got), 2);
	json_decref(got);
	got = rows(&a, 0, "clients");
	cr_assert_eq(json_array_size(got), 2);
	json_decref(got);
	got = rows(&a, 0, "limits");
	cr_assert_eq(number(got, 0, "present"), 2);
	json_decref(got);
	got = rows(&a, 0, "races");
	cr_assert_eq(json_array_size(got), 1);
	json_decref(got);
	leave(&a, 1);
	close(b.sock);
}

/* Each column of base/uses.h, which gaia(1) explains; what is moved by whose calls, and what these wait for. */
Test(reports, say_what_each_client_has_moves_and_waits_for, .init = begin, .fini = end)
{
	struct gaia_ioc_range io;
	json_t *got, *waits;
	struct peer a, b;
	pthread_t thread;

	fake_uid = 1000;
	a = join();
	io = range(&a, map(&a, 0, GAIA_PAGE), 0, GAIA_PAGE);
	io.prot = RW;
	fake_uid = 1001;
	b = join();
	sem_init(&fake_gate.entered, 0, 0);
	sem_init(&fake_gate.leave, 0, 0);
	fake_gate.armed = true;
	fake_errors.acquire = -ENOTCONN; /* the client is handed nothing */
	cr_assert_eq(pthread_create(&thread, NULL, acquire_in_thread, &io), 0);
	sem_wait(&fake_gate.entered);

	got = rows(&a, 1000, "clients");
	for (unsigned k = 0; k < MOVED_COUNT; k++)
		cr_assert_not_null(json_object_get(json_array_get(got, 0), moved_names[k]), "%s", moved_names[k]);
	for (unsigned k = 0; k < CLIENT_AMOUNT_COUNT; k++)
		cr_assert_not_null(json_object_get(json_array_get(got, 0), client_amount_names[k]), "%s", client_amount_names[k]);
	cr_assert_eq(number(got, 0, "to_device_bytes"), GAIA_PAGE);
	cr_assert_eq(number(got, 0, "from_device_bytes"), 0);
	cr_assert_eq(number(got, 0, "mapped_bytes"), GAIA_PAGE);
	cr_assert_eq(number(got, 0, "device_bytes"), GAIA_CHUNK);
	cr_assert_eq(number(got, 0, "pinned_bytes"), GAIA_PAGE);
	waits = json_object_get(json_array_get(got, 0), "waits");
	cr_assert_eq(json_array_size(waits), 1);
	cr_assert_str_eq(json_string_value(json_object_get(json_array_get(waits, 0), "for")), wait_names[WAIT_room]);
	cr_assert_eq(number(waits, 0, "now"), 1);
	cr_assert_gt(number(waits, 0, "ns"), 0, "a wait that is not over does not count");
	json_decref(got);
	got = rows(&b, 1001, "clients");
	cr_assert_eq(number(got, 0, "to_device_bytes"), 0, "another's calls count for it");
	cr_assert_eq(number(got, 0, "mapped_bytes"), 0);
	cr_assert_eq(json_array_size(json_object_get(json_array_get(got, 0), "waits")), 0);
	json_decref(got);

	fake_gate.armed = false;
	sem_post(&fake_gate.leave);
	pthread_join(thread, NULL);
	got = rows(&a, 1000, "clients");
	cr_assert_eq(number(json_object_get(json_array_get(got, 0), "waits"), 0, "now"), 0);
	json_decref(got);
	fake_errors.acquire = 0;
	leave(&a, 1);
	close(b.sock);
}

/* What a ticket takes of its user's is free again when it cannot be redeemed any more. */
Test(reports, know_of_no_ticket_that_has_expired, .init = begin, .fini = end)
{
	struct control *ctl = fake_control();
	struct gaia_ioc_connect io;
	struct peer p = join();
	struct ticket *t;
	json_t *got;
	int sock;

	fake_uid = 1000;
	sock = stranger(&io);
	got = rows(&p, 0, "users");
	cr_assert_eq(json_array_size(got), 2);
	json_decref(got);
	pthread_mutex_lock(&ctl->lock);
	TAILQ_FOREACH(t, &ctl->oldest, link)
		t->expires_ns = 0;
	pthread_mutex_unlock(&ctl->lock);
	got = rows(&p, 0, "users");
	cr_assert_eq(json_array_size(got), 1);
	cr_assert_eq(number(got, 0, "uid"), 0);
	json_decref(got);
	cr_assert_not(is_admitted(sock, &io));
	close(sock);
	close(p.sock);
}

/* Ask for @n reports as @uid, which wait in @p's socket then. */
static void ask_for_reports(struct peer *p, uid_t uid, unsigned n)
{
	struct gaia_ioc_report io = { .key = p->key, .what = GAIA_REPORT_STATUS };

	fake_uid = uid;
	while (n-- > 0)
		cr_assert_eq(wire_ioctl(file, GAIA_IOC_REPORT, &io), 0);
}

/* Of the reports that are waiting: how many say anything. */
static unsigned reports_left(struct peer *p, unsigned n)
{
	int fds[GAIA_MSG_CHUNKS];
	unsigned left = 0, k;
	struct gaia_msg msg;
	struct stat st;

	while (n-- > 0) {
		cr_assert_eq(wire_receive(p->sock, true, &msg, fds, &k), 0);
		cr_assert_eq(fstat(fds[0], &st), 0);
		left += st.st_size > 0;
		close(fds[0]);
	}
	return left;
}

/* What nobody reads is memory of ours. */
Test(reports, of_each_user_are_few, .init = begin, .fini = end)
{
	struct peer a, b, root = join();

	fake_uid = 1000;
	a = join();
	fake_uid = 1001;
	b = join();
	ask_for_reports(&b, 1001, 3);
	ask_for_reports(&root, 0, 3);
	ask_for_reports(&a, 1000, 20);
	cr_assert_eq(reports_left(&a, 20), 16);
	cr_assert_eq(reports_left(&b, 3), 3);
	cr_assert_eq(reports_left(&root, 3), 3);
	/* A client's end changes nothing: it may have them still. */
	ask_for_reports(&a, 1000, 20);
	cr_assert_eq(reports_left(&a, 20), 16);
	leave(&a, 0);
	leave(&b, 0);
	leave(&root, 0);
}

/* One who watches (gaia top) has many reports, all read, which are kept for a while. */
Test(reports, of_owners_leave_users_theirs, .init = begin, .fini = end, .timeout = 30)
{
	struct peer a, root = join();
	struct gaia_ioc_report io = { .what = GAIA_REPORT_STATUS };
	unsigned n;

	fake_uid = 1000;
	a = join();
	io.key = a.key;
	quota_cap(fake_quota(), QUOTA_reports, 8);
	n = quota_use(fake_quota(), QUOTA_reports).all;
	ask_for_reports(&root, 0, n);
	cr_assert_eq(reports_left(&root, n), n);
	fake_uid = 1000;
	while (wire_ioctl(file, GAIA_IOC_REPORT, &io))
		cr_assert_eq(sched_yield(), 0);
	cr_assert_eq(reports_left(&a, 1), 1);
	leave(&a, 0);
	leave(&root, 0);
}

/* Where it is their own share that is full, an owner who is slow to read loses nothing by it. */
Test(reports, of_owners_are_not_dropped_in_vain, .init = begin, .fini = end, .timeout = 30)
{
	struct peer a, b, root = join();
	unsigned n;

	fake_uid = 1000;
	a = join();
	fake_uid = 1001;
	b = join();
	quota_cap(fake_quota(), QUOTA_reports, 32);
	quota_set_each(fake_quota(), QUOTA_reports, 32);
	n = quota_use(fake_quota(), QUOTA_reports).users;
	cr_assert_lt(n + 1, quota_use(fake_quota(), QUOTA_reports).all);
	ask_for_reports(&root, 0, 1);
	fault_arm("report.is_read", -EEXIST, 0, 0);
	ask_for_reports(&a, 1000, n);
	ask_for_reports(&b, 1001, 1);
	cr_assert_eq(reports_left(&root, 1), 1);
	cr_assert_eq(reports_left(&a, n), n - 1);
	cr_assert_eq(reports_left(&b, 1), 1);
	fault_disarm_all();
	leave(&a, 0);
	leave(&b, 0);
	leave(&root, 0);
}

/* A client that asks and does not read holds up nobody: the threads that answer are few. */
Test(reports, wait_for_no_room, .init = begin, .fini = end, .timeout = 240)
{
	struct peer full = join();
	struct gaia_ioc_report io = { .key = full.key, .what = GAIA_REPORT_STATUS };
	struct gaia_ioc_range acquire = range(&full, map(&full, 0, GAIA_CHUNK), 0, GAIA_PAGE);
	pthread_t sender;

	acquired = false;
	fake_fill_socket(acquire.map);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_REPORT, &io), -EAGAIN);
	/* It is a client still; nor is a message waited for that waits for room itself. */
	cr_assert_eq(pthread_create(&sender, NULL, await_room_in_thread, &acquire), 0);
	fake_await_sender(full.key.id);
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_REPORT, &io), -EAGAIN);
	cr_assert_not(acquired);
	close(full.sock);
	cr_assert_eq(pthread_join(sender, NULL), 0);
	sem_wait(&fake_unmapped);
}

Test(reports, on_files_need_a_file, .init = begin, .fini = end)
{
	struct peer p = join();
	struct gaia_ioc_report io = { .key = p.key, .what = GAIA_REPORT_RESIDENCY };

	cr_assert_eq(control_report(fake_control(), NULL, 0, &io), -ENODEV);
	io.what = GAIA_REPORT_USE + 1;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_REPORT, &io), -EINVAL);
	close(p.sock);
}

/* Names of all files are in them, and to sync them all takes its time. */
Test(reports, of_the_whole_mount_are_for_its_owners, .init = begin, .fini = end)
{
	struct peer p = join();
	struct gaia_ioc_report io = { .key = p.key, .what = GAIA_REPORT_SYNC };

	cr_assert_eq(control_report(fake_control(), NULL, 12345, &io), -EPERM);
	cr_assert_eq(control_report(fake_control(), NULL, 0, &io), 0);
	io.what = GAIA_REPORT_END;
	cr_assert_eq(control_report(fake_control(), NULL, 12345, &io), -EPERM);
	/* Nothing was given to hand out. */
	cr_assert_eq(control_report(fake_control(), NULL, 0, &io), -EOPNOTSUPP);
	io.what = GAIA_REPORT_USE;
	cr_assert_eq(control_report(fake_control(), NULL, 12345, &io), -EPERM);
	cr_assert_eq(control_report(fake_control(), NULL, 0, &io), 0);
	io.what = GAIA_REPORT_TRACE;
	cr_assert_eq(control_report(fake_control(), NULL, 12345, &io), -EPERM);
	cr_assert_not(atomic_load(&trace_on));
	cr_assert_eq(control_report(fake_control(), NULL, 0, &io), 0);
	cr_assert(atomic_load(&trace_on));
	close(p.sock);
}

Test(devices, are_listed_from_where_one_asks, .init = begin, .fini = end)
{
	struct gaia_ioc_devices io = { 0 };

	cr_assert_eq(wire_ioctl(file, GAIA_IOC_DEVICES, &io), 0);
	cr_assert_eq(io.total, 2);
	cr_assert_eq(io.count, 2);
	cr_assert_str_eq(io.device[0].name, "sim0");
	cr_assert_eq(io.device[0].simulated, 1);
	io.first = 1;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_DEVICES, &io), 0);
	cr_assert_eq(io.count, 1);
	cr_assert_str_eq(io.device[0].name, "odd1");
	io.first = UINT32_MAX;
	cr_assert_eq(wire_ioctl(file, GAIA_IOC_DEVICES, &io), 0);
	cr_assert_eq(io.count, 0);
	cr_assert_eq(io.total, 2);
}
