/*
 * mutant.c - see mutant.h.
 */
#include "mutant.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "hostile.h"

#define CONNS 6
#define MAPS 4
#define LONGEST 120 /* seconds, of a child that nobody waits for */

unsigned long seed;

/* ---- chance ---- */

__thread uint64_t chance;

static uint64_t random64(void)
{
	chance ^= chance << 13;
	chance ^= chance >> 7;
	chance ^= chance << 17;
	return chance;
}

unsigned below(unsigned n)
{
	return (unsigned)(random64() >> 16) % n;
}

bool one_in(unsigned n)
{
	return below(n) == 0;
}

static uint64_t number(void)
{
	static const uint64_t n[] = { 0, 1, 2, 3, 4, 5, 8, 4095, 4096, 4097, 8192, GAIA_CHUNK - 1, GAIA_CHUNK, GAIA_CHUNK + 1,
				      2 * GAIA_CHUNK, MUTANT_FILE_SIZE, MUTANT_FILE_SIZE + 1, INT32_MAX, UINT32_MAX, 1ull << 32,
				      1ull << 62, INT64_MAX - 4095, INT64_MAX, UINT64_MAX - 4095, UINT64_MAX };

	return one_in(4) ? random64() : n[below(sizeof(n) / sizeof(n[0]))];
}

static void change_bytes(void *at, size_t size)
{
	for (unsigned n = 1 + below(4); n && size >= 8; n--) {
		uint64_t value = number();

		if (one_in(2))
			((uint8_t *)at)[below((unsigned)size)] = (uint8_t)value;
		else
			memcpy((uint8_t *)at + below((unsigned)(size / 4 - 1)) * 4, &value, one_in(2) ? 4 : 8);
	}
}

/* ---- what an attacker has ---- */

/* While the thread that answers uses a socket nobody closes it, or its number would be another's. */
static pthread_mutex_t socks_lock = PTHREAD_MUTEX_INITIALIZER;

static struct conn {
	int sock; /* or -1; changed by the main thread, with socks_lock */
	bool welcome;
	struct gaia_client_key key;
	/* Of mappings: the number, a descriptor of the file, and what was acquired last. */
	struct {
		uint64_t id, offset, length;
		int fd;
	} map[MAPS];
} conn[CONNS];

enum { MINE, MINE_TOO, MINE_RO, ROOTS, DIRECTORY, NO_FILE, PIPE, CLOSED, FDS };
static int fds[FDS];

static int some_fd(void)
{
	return one_in(3) ? fds[below(FDS)] : fds[below(ROOTS + 1)];
}

static struct conn *some_conn(void)
{
	return &conn[below(CONNS)];
}

static void open_files(void)
{
	int p[2];

	fds[MINE] = open(mnt_file(&mnt, "mine"), O_RDWR);
	fds[MINE_TOO] = open(mnt_file(&mnt, "mine-too"), O_RDWR);
	fds[MINE_RO] = open(mnt_file(&mnt, "mine"), O_RDONLY);
	fds[ROOTS] = open(mnt_file(&mnt, "roots"), O_RDONLY);
	fds[DIRECTORY] = open(mnt.path, O_RDONLY | O_DIRECTORY);
	fds[NO_FILE] = open("/dev/null", O_RDWR);
	CHILD_CHECK(!pipe(p));
	fds[PIPE] = p[0];
	fds[CLOSED] = 1000000;
	for (int i = 0; i < CLOSED; i++)
		CHILD_CHECK(fds[i] >= 0);
}

/* ---- packets ---- */

/* A packet with @n descriptors of all kinds. */
static void send_packet(int sock, const void *bytes, size_t len, unsigned n)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(253 * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { (void *)bytes, len };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1 };
	int fd[253];

	for (unsigned i = 0; i < n; i++)
		fd[i] = one_in(8) ? sock : fds[below(CLOSED)];
	if (n && one_in(16))
		fd[n - 1] = fds[CLOSED];
	if (n) {
		hdr.msg_control = control.buf;
		hdr.msg_controllen = CMSG_SPACE(n * sizeof(int));
		control.align = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
						  .cmsg_len = CMSG_LEN(n * sizeof(int)) };
		memcpy(CMSG_DATA(&control.align), fd, n * sizeof(int));
	}
	sendmsg(sock, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void send_garbage(int sock)
{
	struct gaia_msg msg[4] = { { .kind = below(10), .version = GAIA_PROTOCOL_VERSION, .seq = number() } };
	size_t len = one_in(4) ? below(sizeof(msg)) : sizeof(msg[0]);

	if (one_in(2))
		change_bytes(msg, sizeof(msg[0]));
	send_packet(sock, msg, len, one_in(4) ? below(254) : 0);
}

#define LIST_MOST 256u /* ranges */

static void hang_up(struct conn *c)
{
	pthread_mutex_lock(&socks_lock);
	if (c->sock >= 0)
		close(c->sock);
	c->sock = -1;
	c->welcome = false;
	pthread_mutex_unlock(&socks_lock);
}

static void map_some(struct conn *c, unsigned k, int fd)
{
	struct gaia_ioc_map io = { .key = c->key, .device = one_in(3) ? GAIA_HOST : below(2), .length = MUTANT_FILE_SIZE,
				   .prot = fd == fds[ROOTS] || one_in(4) ? GAIA_PROT_READ : GAIA_PROT_READ | GAIA_PROT_WRITE };

	hostile_add(&shared->count);
	if (ioctl(fd, GAIA_IOC_MAP, &io))
		return;
	hostile_add(&shared->done);
	c->map[k].id = io.map;
	c->map[k].fd = fd;
}

/* Become a client with some mappings, or do something else with the ticket. */
static void connect_somehow(struct conn *c)
{
	static uint8_t old[16];
	uint8_t ticket[16];
	struct gaia_msg msg;
	int sock;

	hang_up(c);
	sock = raw_socket_with(fds[one_in(2) ? DIRECTORY : MINE], one_in(2) ? 0 : GAIA_FEATURE_LISTS, ticket);
	if (sock < 0)
		return;
	msg = raw_hello(one_in(32) ? old : ticket);
	memcpy(old, ticket, sizeof(old));
	switch (below(16)) {
	case 0:
		change_bytes(&msg, sizeof(msg));
		send_packet(sock, &msg, sizeof(msg), 0);
		break;
	case 1:
		send_packet(sock, &msg, below(sizeof(msg)), 0);
		break;
	case 2:
		send_packet(sock, &msg, sizeof(msg), 1 + below(253));
		break;
	case 3:
		send_garbage(sock);
		send_packet(sock, &msg, sizeof(msg), 0);
		break;
	case 4: /* nothing at all */
		break;
	case 5: /* twice, and gone */
		send_packet(sock, &msg, sizeof(msg), 0);
		send_packet(sock, &msg, sizeof(msg), 0);
		break;
	default:
		send_packet(sock, &msg, sizeof(msg), 0);
		if (raw_receive(sock, &msg, NULL) && msg.kind == GAIA_MSG_WELCOME) {
			c->key = msg.key;
			c->welcome = true;
			pthread_mutex_lock(&socks_lock);
			c->sock = sock;
			pthread_mutex_unlock(&socks_lock);
			for (unsigned k = 0; k + 1 < MAPS; k++)
				map_some(c, k, fds[k == 0 ? ROOTS : below(MINE_TOO + 1)]);
			return;
		}
	}
	close(sock);
}

/* ---- the thread that answers ---- */

/* Lists that are right at first, and then are not. They are changed while the daemon may be reading them. */
static void write_lists(int fd)
{
	struct gaia_list_range range[LIST_MOST];

	for (unsigned k = 0; k < LIST_MOST; k++)
		range[k] = (struct gaia_list_range){ below(MUTANT_FILE_SIZE - 5000), below(one_in(8) ? 5000 : 2) };
	if (one_in(4))
		change_bytes(range, sizeof(range));
	(void)!pwrite(fd, range, sizeof(range), 0);
	(void)!ftruncate(fd, below(2) * (off_t)GAIA_LISTS_BYTES);
	(void)!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, below(1 << 20), below(1 << 20) + 1);
	fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE);
	fcntl(fd, F_SETFL, O_DIRECT | O_NONBLOCK);
}

/* A chunk is looked at and written to. Others are reports, or memory for lists. */
static void use_chunk(int fd)
{
	unsigned char *p;
	struct stat st;

	if (fstat(fd, &st) || st.st_size < GAIA_CHUNK)
		return;
	if (st.st_size == GAIA_LISTS_BYTES) {
		write_lists(fd);
		return;
	}
	p = mmap(NULL, GAIA_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		p = mmap(NULL, GAIA_CHUNK, PROT_READ, MAP_SHARED, fd, 0);
	else
		p[below(GAIA_CHUNK)] = (unsigned char)random64();
	if (p != MAP_FAILED) {
		(void)((volatile unsigned char *)p)[below(GAIA_CHUNK)];
		munmap(p, GAIA_CHUNK);
	}
	if (one_in(16))
		(void)!ftruncate(fd, below(3) * GAIA_CHUNK);
}

static void answer(int sock, const struct gaia_msg *msg)
{
	struct gaia_msg revoked = { .kind = GAIA_MSG_REVOKED, .version = GAIA_PROTOCOL_VERSION, .seq = msg->seq, .map = msg->map };

	if (msg->kind != GAIA_MSG_REVOKE)
		return;
	if (one_in(16))
		send_garbage(sock);
	if (one_in(32))
		change_bytes(&revoked, sizeof(revoked));
	send_packet(sock, &revoked, sizeof(revoked), one_in(32) ? below(20) : 0);
	if (one_in(16))
		send_packet(sock, &revoked, sizeof(revoked), 0);
}

static void take_message(const struct pollfd *p)
{
	struct gaia_msg msg;
	int chunk;

	if (!(p->revents & POLLIN) || !raw_receive(p->fd, &msg, &chunk))
		return;
	if (chunk >= 0) {
		use_chunk(chunk);
		close(chunk);
	}
	answer(p->fd, &msg);
}

static void *listen_to_all(void *arg)
{
	struct pollfd p[CONNS];
	int n;

	chance = *(uint64_t *)arg;
	for (;;) {
		pthread_mutex_lock(&socks_lock);
		for (int i = 0; i < CONNS; i++)
			p[i] = (struct pollfd){ .fd = conn[i].sock, .events = POLLIN };
		n = poll(p, CONNS, 0);
		for (int i = 0; i < CONNS && n > 0; i++)
			take_message(&p[i]);
		pthread_mutex_unlock(&socks_lock);
		usleep(300);
	}
	return NULL;
}

/* ---- ioctls and attributes ---- */

static const unsigned long known[] = {
	GAIA_IOC_MAP,	  GAIA_IOC_MAP,	    GAIA_IOC_ACQUIRE, GAIA_IOC_ACQUIRE, GAIA_IOC_ACQUIRE, GAIA_IOC_RELEASE,
	GAIA_IOC_RELEASE, GAIA_IOC_UNMAP,   GAIA_IOC_SYNC,    GAIA_IOC_ADVISE,	GAIA_IOC_FLUSH,	  GAIA_IOC_EVICT,
	GAIA_IOC_EVICT,	  GAIA_IOC_RELEASE, GAIA_IOC_RELEASE, GAIA_IOC_DEVICES, GAIA_IOC_CONNECT, GAIA_IOC_REPORT,
	GAIA_IOC_LISTS,	  GAIA_IOC_ACQUIREV, GAIA_IOC_ACQUIREV, GAIA_IOC_RELEASEV, GAIA_IOC_PLACE,
	GAIA_IOC_SET,
};

union payload {
	struct gaia_ioc_connect connect;
	struct gaia_ioc_devices devices;
	struct gaia_ioc_map map;
	struct gaia_ioc_range range;
	struct gaia_ioc_list list;
	struct gaia_ioc_lists lists;
	struct gaia_ioc_file file;
	struct gaia_ioc_place place;
	struct gaia_ioc_set set;
	struct gaia_ioc_report report;
	uint8_t byte[1 << 14]; /* as much as a number can say */
};

/* What would be right for one of the connection's mappings. */
static void make_right(union payload *io, unsigned long cmd, const struct conn *c, unsigned k)
{
	uint64_t offset = below(MUTANT_FILE_SIZE), length = 1 + below(one_in(4) ? MUTANT_FILE_SIZE : 3 * GAIA_PAGE);

	memset(io, 0, sizeof(io->devices));
	if (offset + length > MUTANT_FILE_SIZE)
		offset = 0;
	switch (cmd) {
	case GAIA_IOC_CONNECT:
		io->connect.version = GAIA_PROTOCOL_VERSION;
		break;
	case GAIA_IOC_MAP:
		io->map = (struct gaia_ioc_map){ .key = c->key, .device = below(2), .length = MUTANT_FILE_SIZE,
						 .prot = one_in(3) ? GAIA_PROT_READ : GAIA_PROT_READ | GAIA_PROT_WRITE };
		break;
	case GAIA_IOC_FLUSH:
	case GAIA_IOC_EVICT:
		io->file.from = cmd == GAIA_IOC_FLUSH ? 0 : one_in(2) ? GAIA_FROM_HOME : below(2);
		break;
	case GAIA_IOC_REPORT:
		io->report = (struct gaia_ioc_report){ .key = c->key, .what = one_in(4) ? GAIA_REPORT_PINS : 1 + below(2) };
		break;
	case GAIA_IOC_PLACE:
		io->place = (struct gaia_ioc_place){ .what = below(GAIA_PLACE_WARM + 1), .device = one_in(4) ? GAIA_FROM_HOME : below(2) };
		if (io->place.what >= GAIA_PLACE_FILL) {
			io->place.offset = offset;
			io->place.length = length;
		}
		break;
	case GAIA_IOC_UNMAP:
		io->range = (struct gaia_ioc_range){ .key = c->key, .map = c->map[k].id };
		break;
	case GAIA_IOC_DEVICES:
		break;
	case GAIA_IOC_LISTS:
		io->lists.key = c->key;
		break;
	case GAIA_IOC_ACQUIREV:
	case GAIA_IOC_RELEASEV:
		io->list = (struct gaia_ioc_list){ .key = c->key, .map = c->map[k].id, .offset = below(4) * 16, .count = below(LIST_MOST - 4) };
		if (one_in(8))
			io->list.offset = one_in(2) ? number() : GAIA_LISTS_BYTES - below(64) * 8;
		if (one_in(8))
			io->list.count = one_in(2) ? (uint32_t)number() : GAIA_LIST_MOST - below(2);
		if (cmd == GAIA_IOC_ACQUIREV)
			io->list.prot = k == 0 || one_in(3) ? 1 : 3;
		break;
	default:
		if (cmd != GAIA_IOC_ACQUIRE && c->map[k].length && !one_in(4)) {
			offset = c->map[k].offset;
			length = c->map[k].length;
		}
		io->range = (struct gaia_ioc_range){ .key = c->key, .map = c->map[k].id, .offset = offset, .length = length };
		if (cmd == GAIA_IOC_ACQUIRE)
			io->range.prot = (k == 0 || one_in(3) ? 1 : 3) | (one_in(6) ? 4u << below(2) : 0);
		if (cmd == GAIA_IOC_ADVISE)
			io->range.advice = 3 + below(2);
	}
}

static unsigned long change_number(unsigned long cmd)
{
	switch (below(5)) {
	case 0:
		return _IOC(below(4), GAIA_IOC_MAGIC, _IOC_NR(cmd), _IOC_SIZE(cmd));
	case 1:
		return _IOC(_IOC_DIR(cmd), GAIA_IOC_MAGIC, _IOC_NR(cmd), below(1 << _IOC_SIZEBITS));
	case 2:
		return _IOC(_IOC_DIR(cmd), GAIA_IOC_MAGIC, below(256), _IOC_SIZE(cmd));
	default:
		return cmd ^ 1ul << below(32);
	}
}

/* Ends where nothing is mapped, so that a longer one is not all there. */
static union payload *edge_of_nowhere(size_t size)
{
	static uint8_t *end;

	if (!end) {
		uint8_t *p = mmap(NULL, 2 * sizeof(union payload), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		CHILD_CHECK(p != MAP_FAILED);
		CHILD_CHECK(!munmap(p + sizeof(union payload), sizeof(union payload)));
		end = p + sizeof(union payload);
	}
	return (union payload *)(end - size);
}

static void note_done(struct conn *c, unsigned k, unsigned long cmd, const union payload *io, int fd)
{
	hostile_add(&shared->done);
	if (cmd == GAIA_IOC_MAP) {
		c->map[k].id = io->map.map;
		c->map[k].fd = fd;
	} else if (cmd == GAIA_IOC_ACQUIRE) {
		c->map[k].offset = io->range.offset;
		c->map[k].length = io->range.length;
	} else if (cmd == GAIA_IOC_RELEASE) {
		c->map[k].length = 0;
	}
}

static void some_ioctl(void)
{
	struct conn *c = some_conn();
	unsigned k = below(MAPS);
	unsigned long cmd = known[below(sizeof(known) / sizeof(known[0]))], asked = cmd;
	int fd = cmd == GAIA_IOC_MAP || one_in(16) ? some_fd() : c->map[k].fd, err;
	union payload io;
	void *arg = &io;

	if (cmd == GAIA_IOC_UNMAP && !one_in(8))
		return;
	make_right(&io, cmd, c, k);
	if (one_in(3))
		change_bytes(&io, _IOC_SIZE(cmd));
	if (one_in(16))
		asked = change_number(cmd);
	if (one_in(32)) {
		size_t part = below((unsigned)_IOC_SIZE(cmd) + 1);

		arg = memcpy(edge_of_nowhere(part), &io, part);
	} else if (one_in(64)) {
		arg = NULL;
	}
	hostile_add(&shared->count);
	/* Where the kernel writes through, that is how. */
	if ((cmd == GAIA_IOC_RELEASE || cmd == GAIA_IOC_RELEASEV) && one_in(2)) {
		err = fsetxattr(fd, cmd == GAIA_IOC_RELEASE ? GAIA_XATTR_RELEASE : GAIA_XATTR_RELEASEV, arg, one_in(8) ? below(sizeof(io.range) * 2) : sizeof(io.range),
				below(8) / 6);
		err = err && errno != EALREADY;
	} else {
		err = ioctl(fd, asked, arg);
	}
	if (!err && asked == cmd && arg == &io)
		note_done(c, k, cmd, &io, fd);
	else if (err && errno == ENOTCONN && one_in(4)) /* the daemon has had enough of it */
		hang_up(c);
}

static void some_name(char name[300])
{
	static const char *const names[] = { "user.mine", "user.", "user", "", "trusted.gaiafs.device", "trusted.gaiafs.x",
					     "system.gaiafs.release", "system.gaiafs", "system.posix_acl_access",
					     "system.posix_acl_default", "security.capability", "security.selinux",
					     "gaiafs", "user.\xff\xfe" };
	size_t n;

	snprintf(name, 300, "%s", names[below(sizeof(names) / sizeof(names[0]))]);
	if (one_in(4)) {
		n = strlen(name);
		memset(name + n, 'x', 298 - n);
		name[250 + below(8)] = '\0';
	}
	if (*name && one_in(8))
		name[below((unsigned)strlen(name))] = (char)(1 + below(255));
}

static void some_xattr(void)
{
	static char value[70000];
	size_t size = one_in(4) ? below(sizeof(value)) : below(300);
	int fd = some_fd();
	char name[300];

	some_name(name);
	for (int i = 0; i < 40; i++)
		value[below(300)] = (char)random64();
	hostile_add(&shared->more);
	switch (below(6)) {
	case 0:
	case 1:
		fsetxattr(fd, name, value, size, below(4));
		break;
	case 2:
	case 3:
		(void)!fgetxattr(fd, name, value, one_in(4) ? 0 : size);
		break;
	case 4:
		(void)!flistxattr(fd, value, one_in(4) ? 0 : size);
		break;
	case 5:
		fremovexattr(fd, name);
	}
}

/* ---- the rest of it ---- */

/* What makes the file under a mapping another. */
static void some_file_call(void)
{
	static char bytes[3 * GAIA_PAGE];
	int fd = fds[below(MINE_TOO + 1)];
	off_t at = below(MUTANT_FILE_SIZE);

	hostile_add(&shared->more);
	switch (below(8)) {
	case 0:
		(void)!ftruncate(fd, below(MUTANT_FILE_SIZE));
		break;
	case 1:
	case 2:
		(void)!ftruncate(fd, MUTANT_FILE_SIZE);
		break;
	case 3:
		(void)!fallocate(fd, one_in(2) ? 3 : 0, at, below(GAIA_CHUNK)); /* 3: punch */
		break;
	case 4:
		(void)!fsync(fd);
		break;
	case 5:
		(void)!pread(fd, bytes, sizeof(bytes), at);
		break;
	default:
		(void)!pwrite(fd, bytes, below(sizeof(bytes)), at);
	}
}

/* A child has the connections of its parent, uses some of them, and dies. */
static void some_fork(void)
{
	pid_t pid;

	/* Held across, or the child might have it as the other thread's, for ever. */
	pthread_mutex_lock(&socks_lock);
	pid = fork();
	pthread_mutex_unlock(&socks_lock);
	hostile_add(&shared->more);
	if (pid > 0) {
		waitpid(pid, NULL, 0);
		return;
	}
	if (pid < 0)
		return;
	alarm(LONGEST); /* nobody waits for it whose parent is killed */
	random64();
	for (int i = 0; i < 5; i++) {
		struct conn *c = some_conn();

		if (one_in(2))
			some_ioctl();
		else if (c->sock >= 0 && one_in(4))
			send_garbage(c->sock);
	}
	if (one_in(2))
		kill(getpid(), SIGKILL);
	_exit(0);
}

static void one_request(void)
{
	struct conn *c = some_conn();
	unsigned what = below(100);

	if (!c->welcome || what < 1)
		connect_somehow(c);
	else if (what < 76)
		some_ioctl();
	else if (what < 86)
		some_xattr();
	else if (what < 97)
		some_file_call();
	else if (what < 98)
		hang_up(c);
	else if (what < 99)
		send_garbage(c->sock);
	else
		some_fork();
}

int mutant(void *arg)
{
	uint64_t answers;
	pthread_t thread;

	hostile_become();
	chance = (seed + *(unsigned *)arg) * 0x9e3779b97f4a7c15 | 1;
	answers = random64();
	open_files();
	for (int i = 0; i < CONNS; i++) {
		conn[i] = (struct conn){ .sock = -1 };
		for (int k = 0; k < MAPS; k++)
			conn[i].map[k].fd = fds[MINE];
	}
	CHILD_CHECK(!pthread_create(&thread, NULL, listen_to_all, &answers));
	for (int n = 0; n < MUTANT_REQUESTS; n++)
		one_request();
	/* As it is, or all at once, or not even that. */
	if (one_in(2))
		for (int i = 0; i < CONNS; i++)
			hang_up(&conn[i]);
	if (one_in(2))
		kill(getpid(), SIGKILL);
	_exit(0);
}
