/*
 * device_protocol.c - what client and daemon say to each other: descriptors that do not arrive, how many a process needs,
 * versions and features.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "gaia/client.h"
#include "raw_client.h"
#include "report.h"
#include "ways.h"

#define MIB (1024 * 1024)
#define CHUNK ((size_t)GAIA_CHUNK)
#define RW (PROT_READ | PROT_WRITE)

static int make_file(const char *name, size_t size, int byte)
{
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	char *bytes = malloc(size);

	cr_assert_geq(fd, 0);
	memset(bytes, byte, size);
	cr_assert_eq(pwrite(fd, bytes, size, 0), (ssize_t)size);
	free(bytes);
	/* Raw clients push nothing: with writeback only the kernel might have the bytes. */
	cr_assert_eq(fsync(fd), 0);
	return fd;
}

static unsigned count_descriptors(void)
{
	struct stat st;
	unsigned n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += !fstat(fd, &st);
	return n;
}

/* Leave the process just @n free descriptors, gaps included, until few_end(). */
struct few {
	struct rlimit old;
	int filler[64];
	int n;
};

static void few_begin(struct few *few, int n)
{
	struct rlimit limit;
	int next = 0;

	getrlimit(RLIMIT_NOFILE, &few->old);
	/* Above the highest that is open. */
	for (int fd = 0; fd < 1024; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			next = fd + 1;
	limit = few->old;
	limit.rlim_cur = next + n;
	setrlimit(RLIMIT_NOFILE, &limit);
	for (few->n = 0; few->n < 64; few->n++) {
		few->filler[few->n] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		if (few->filler[few->n] < 0)
			break;
	}
	for (; n > 0 && few->n > 0; n--)
		close(few->filler[--few->n]);
}

static void few_end(struct few *few)
{
	setrlimit(RLIMIT_NOFILE, &few->old);
	while (few->n > 0)
		close(few->filler[--few->n]);
}

/* ---- descriptors that do not arrive; in a child, since a connection belongs to a process ---- */

static int acquire_without_descriptors(void *arg)
{
	int f = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);
	int g = openat(both_root[ON_MOUNT], "g", O_RDWR | O_CLOEXEC);
	unsigned char *p = gaia_mmap(4 * CHUNK, RW, f, 0, 0), *other = gaia_mmap(CHUNK, RW, g, 0, 0);
	struct gaia_ioc_file evict = { .length = 4 * CHUNK, .from = 0 };
	struct few few;

	(void)arg;
	CHILD_CHECK(p != MAP_FAILED && other != MAP_FAILED);
	CHILD_CHECK(!gaia_acquire(other, CHUNK, RW));
	CHILD_CHECK(!gaia_acquire(p, 1, RW));
	for (int left = 0; left < 3; left++) {
		few_begin(&few, left);
		errno = 0;
		CHILD_CHECK(gaia_acquire(p, 4 * CHUNK, RW) == -1);
		CHILD_CHECK(errno == EMFILE);
		few_end(&few);
	}
	few_begin(&few, 0);
	/* What was mapped before stays usable, in this mapping and in the other. */
	p[0] = other[0] = 'd';
	CHILD_CHECK(!gaia_release(p, 1));
	CHILD_CHECK(!gaia_acquire(p, 1, RW));
	CHILD_CHECK(!gaia_release(other, CHUNK));
	CHILD_CHECK(!gaia_sync(other, CHUNK));
	CHILD_CHECK(!gaia_acquire(other, CHUNK, RW));
	CHILD_CHECK(gaia_acquire(p + CHUNK, 1, PROT_READ) == -1 && errno == EMFILE);
	few_end(&few);
	/* No hold of the acquires that failed is left: nothing keeps those chunks on the device. */
	evict.offset = CHUNK;
	evict.length = 3 * CHUNK;
	CHILD_CHECK(!ioctl(f, GAIA_IOC_EVICT, &evict));
	CHILD_CHECK(!gaia_acquire(p, 4 * CHUNK, RW));
	for (int k = 0; k < 4; k++) {
		CHILD_CHECK(p[k * CHUNK + 1] == 'f');
		p[k * CHUNK] = 'd';
	}
	CHILD_CHECK(!gaia_release(p, 4 * CHUNK));
	CHILD_CHECK(!gaia_munmap(p, 4 * CHUNK));
	CHILD_CHECK(!gaia_munmap(other, CHUNK));
	return 0;
}

/* The daemon waits for answers until they come. */
static void be_patient(void)
{
	setenv("GAIAFS_FAULTS", "grant.patience=errno:EAGAIN", 1);
}

TestSuite(device_protocol, .init = be_patient);

EACH_WAY(device_protocol, without_descriptors_the_acquire_fails_alone)
{
	int f = make_file("f", 4 * CHUNK, 'f'), g = make_file("g", CHUNK, 'g');
	unsigned char got;

	cr_assert_eq(child_run(acquire_without_descriptors, NULL), 0);
	for (int k = 0; k < 4; k++) {
		cr_assert_eq(pread(f, &got, 1, k * CHUNK), 1);
		cr_assert_eq(got, 'd');
	}
	cr_assert_eq(pread(g, &got, 1, 0), 1);
	cr_assert_eq(got, 'd');
	cr_assert_geq(STATUS("counters", "grants_refused"), 4);
	cr_assert_eq(STATUS("counters", "clients_lost"), 0);
	close(f);
	close(g);
}

#define THREADS 6

struct shared {
	unsigned char *p;
	atomic_int failed, refused;
};

struct job {
	struct shared *shared;
	size_t index;
};

/* Counts in a byte of its own of each chunk; what cannot be mapped just then it leaves to a later round. */
static void *count_where_it_can(void *arg)
{
	struct job *job = arg;
	struct shared *s = job->shared;

	for (int counted = 0; counted < 8 * 20;) {
		unsigned char *p = s->p + counted % 8 * CHUNK + job->index * GAIA_PAGE;

		if (gaia_acquire(p, 1, RW)) {
			s->failed += errno != EMFILE;
			s->refused++;
			if (errno != EMFILE)
				return NULL;
			continue;
		}
		p[0]++;
		s->failed += gaia_release(p, 1) != 0;
		counted++;
	}
	return NULL;
}

/* Takes the last descriptors, over and over; and the device is too small, so that chunks come and go. */
static int count_with_few_descriptors(void *arg)
{
	int f = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);
	struct shared s = { .p = gaia_mmap(8 * CHUNK, RW, f, 0, 0) };
	struct gaia_ioc_file evict = { .length = 8 * CHUNK };
	struct job job[THREADS];
	pthread_t thread[THREADS];
	struct few few;

	(void)arg;
	CHILD_CHECK(s.p != MAP_FAILED);
	few_begin(&few, 1);
	for (size_t i = 0; i < THREADS; i++) {
		job[i] = (struct job){ &s, i };
		CHILD_CHECK(!pthread_create(&thread[i], NULL, count_where_it_can, &job[i]));
	}
	for (int i = 0; i < 400; i++) {
		int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

		ioctl(f, GAIA_IOC_EVICT, &evict);
		if (fd >= 0)
			close(fd);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	few_end(&few);
	CHILD_CHECK(!s.failed);
	CHILD_CHECK(!gaia_munmap(s.p, 8 * CHUNK));
	return 0;
}

EACH_WAY(device_protocol, threads_that_lack_descriptors_lose_nothing)
{
	int f = make_file("f", 8 * CHUNK, 0);
	unsigned char got;

	cr_assert_eq(child_run(count_with_few_descriptors, NULL), 0);
	for (int k = 0; k < 8; k++)
		for (int i = 0; i < THREADS; i++) {
			cr_assert_eq(pread(f, &got, 1, k * CHUNK + i * GAIA_PAGE), 1);
			cr_assert_eq(got, 20, "chunk %d, thread %d: %d", k, i, got);
		}
	cr_assert_eq(STATUS("counters", "clients_lost"), 0);
	close(f);
}

/* ---- how many a process needs ---- */

static int map_many_times(void *arg)
{
	int rw[2], ro = openat(both_root[ON_MOUNT], "f", O_RDONLY | O_CLOEXEC);
	unsigned before, of_one, of_all;
	unsigned char *p[100];

	(void)arg;
	for (int i = 0; i < 2; i++)
		rw[i] = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);
	before = count_descriptors();
	p[0] = gaia_mmap(MIB, RW, rw[0], 0, 0);
	of_one = count_descriptors();
	for (int i = 1; i < 100; i++)
		p[i] = gaia_mmap(MIB, i % 4 ? RW : PROT_READ, rw[i % 2], 0, 0);
	of_all = count_descriptors();
	for (int i = 0; i < 100; i++)
		CHILD_CHECK(p[i] != MAP_FAILED);
	/* The connection, and the file. */
	CHILD_CHECK(of_one == before + 2);
	CHILD_CHECK(of_all == of_one);
	/* One that cannot write needs a descriptor that cannot. */
	CHILD_CHECK(gaia_mmap(MIB, PROT_READ, ro, 0, 0) != MAP_FAILED);
	CHILD_CHECK(count_descriptors() == of_one + 1);

	/* The caller's own are not needed; the library's stays until the last mapping goes. */
	close(rw[0]);
	close(rw[1]);
	CHILD_CHECK(!gaia_munmap(p[0], MIB));
	for (int i = 1; i < 100; i++) {
		CHILD_CHECK(!gaia_acquire(p[i], 1, PROT_READ));
		CHILD_CHECK(!gaia_release(p[i], 1));
		if (i < 99)
			CHILD_CHECK(!gaia_munmap(p[i], MIB));
	}
	CHILD_CHECK(count_descriptors() == of_one - 2 + 1);
	CHILD_CHECK(!gaia_munmap(p[99], MIB));
	CHILD_CHECK(count_descriptors() == of_one - 3 + 1);
	return 0;
}

EACH_WAY(device_protocol, a_file_needs_one_descriptor)
{
	int f = make_file("f", MIB, 'f');

	cr_assert_eq(child_run(map_many_times, NULL), 0);
	close(f);
}

/* Mappings are distinct though they share the descriptor, and a child of fork() has none of it. */
static int fork_with_two(void *arg)
{
	int f = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC), status;
	unsigned before = count_descriptors();
	unsigned char *p = gaia_mmap(CHUNK, RW, f, 0, 0), *q = gaia_mmap(CHUNK, RW, f, CHUNK, 0), there[CHUNK / GAIA_PAGE];
	pid_t pid;

	(void)arg;
	CHILD_CHECK(p != MAP_FAILED && q != MAP_FAILED);
	CHILD_CHECK(!gaia_acquire(p, CHUNK, RW) && !mincore(p, CHUNK, there));
	pid = fork();
	if (pid == 0) {
		CHILD_CHECK(mincore(p, CHUNK, there) == -1 && errno == ENOMEM);
		CHILD_CHECK(count_descriptors() == before);
		CHILD_CHECK(gaia_acquire(p, 1, RW) == -1 && errno == ENOTCONN);
		p = gaia_mmap(CHUNK, RW, f, 0, 0);
		CHILD_CHECK(p != MAP_FAILED);
		CHILD_CHECK(!gaia_acquire(p, 1, RW));
		CHILD_CHECK(!gaia_munmap(p, CHUNK));
		CHILD_CHECK(count_descriptors() == before);
		_exit(0);
	}
	CHILD_CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHILD_CHECK(!gaia_acquire(p, CHUNK, RW));
	CHILD_CHECK(!gaia_munmap(p, CHUNK));
	CHILD_CHECK(!gaia_acquire(q, CHUNK, RW));
	CHILD_CHECK(!gaia_munmap(q, CHUNK));
	return 0;
}

EACH_WAY(device_protocol, a_child_inherits_no_mapping_and_no_descriptor)
{
	int f = make_file("f", 2 * CHUNK, 'f');

	cr_assert_eq(child_run(fork_with_two, NULL), 0);
	close(f);
}

/* ---- versions ---- */

/* Protocol 1.0, as it was: not by today's header. */
struct connect_1_0 {
	uint32_t version, devices;
	char socket[64];
	uint8_t ticket[16];
};
#define CONNECT_1_0 _IOWR('g', 1, struct connect_1_0)

struct msg_1_0 {
	uint32_t kind, version;
	uint64_t seq, id, secret;
	uint8_t ticket[16];
	uint64_t map;
	uint32_t prot, count;
	uint64_t chunk[64];
};

EACH_WAY(device_protocol, a_client_of_1_0_is_served)
{
	int fd = make_file("f", 3 * CHUNK, 'f'), sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct connect_1_0 io = { .version = 1 };
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct msg_1_0 msg = { .kind = 1, .version = 1 };
	struct timeval limit = { .tv_sec = HANG_SECONDS };
	char control[CMSG_SPACE(64 * sizeof(int))] __attribute__((aligned(_Alignof(struct cmsghdr))));
	struct iovec iov = { &msg, sizeof(msg) };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			      .msg_controllen = sizeof(control) };
	struct gaia_ioc_map map = { .length = 3 * CHUNK, .prot = RW };
	struct gaia_ioc_range range;
	int chunk[3];
	char got;

	cr_assert_eq(ioctl(fd, CONNECT_1_0, &io), 0, "%s", strerror(errno));
	cr_assert_eq(io.version, 1);
	memcpy(addr.sun_path + 1, io.socket, strnlen(io.socket, sizeof(io.socket)));
	cr_assert_eq(connect(sock, (struct sockaddr *)&addr, offsetof(struct sockaddr_un, sun_path) + 1 +
			     strnlen(io.socket, sizeof(io.socket))), 0);
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	memcpy(msg.ticket, io.ticket, 16);
	cr_assert_eq(send(sock, &msg, sizeof(msg), 0), (ssize_t)sizeof(msg));
	cr_assert_eq(recv(sock, &msg, sizeof(msg), 0), (ssize_t)sizeof(msg));
	cr_assert(msg.kind == 2 && msg.version == 1);
	map.key = (struct gaia_client_key){ msg.id, msg.secret };
	cr_assert_eq(ioctl(fd, GAIA_IOC_MAP, &map), 0);
	range = (struct gaia_ioc_range){ .key = map.key, .map = map.map, .length = 3 * CHUNK, .prot = RW };
	/* Such a client sends no answer, and none is waited for. */
	cr_assert_eq(ioctl(fd, GAIA_IOC_ACQUIRE, &range), 0);
	cr_assert_eq(recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC), (ssize_t)sizeof(msg));
	cr_assert_eq(hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC), 0);
	cr_assert(msg.kind == 3 && msg.version == 1 && msg.seq == range.seq && msg.count == 3 && msg.prot == RW);
	cr_assert_eq(CMSG_FIRSTHDR(&hdr)->cmsg_len, CMSG_LEN(sizeof(chunk)));
	memcpy(chunk, CMSG_DATA(CMSG_FIRSTHDR(&hdr)), sizeof(chunk));
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(msg.chunk[i], (uint64_t)i);
		cr_assert_eq(pread(chunk[i], &got, 1, 0), 1);
		cr_assert_eq(got, 'f');
		close(chunk[i]);
	}
	close(sock);
	close(fd);
}

struct acquire {
	int fd, err;
	struct gaia_ioc_range io;
};

static void *acquire_in_thread(void *arg)
{
	struct acquire *a = arg;

	a->err = ioctl(a->fd, GAIA_IOC_ACQUIRE, &a->io) ? errno : 0;
	return NULL;
}

/* The acquire waits for the client's answer. */
EACH_WAY(device_protocol, a_client_of_1_1_is_told_of_spans_and_answers)
{
	int fd = make_file("f", 3 * CHUNK, 'f'), chunk;
	struct raw r = raw_client_with(fd, GAIA_FEATURES | 1ull << 63);
	struct acquire a = { .fd = fd };
	struct gaia_span span[GAIA_MSG_CHUNKS];
	struct gaia_msg msg;
	pthread_t thread;
	unsigned n;

	a.io = raw_range(&r, raw_map(fd, &r, 3 * CHUNK, RW), 3 * CHUNK, RW);
	for (int i = 0; i < 2; i++) {
		uint32_t error = i ? 0 : EMFILE;

		cr_assert_eq(pthread_create(&thread, NULL, acquire_in_thread, &a), 0);
		cr_assert(raw_receive_spans(r.sock, &msg, &chunk, span, &n));
		cr_assert_eq(msg.kind, GAIA_MSG_GRANT);
		cr_assert_eq(msg.count, 3);
		cr_assert_eq(n, 3);
		for (unsigned k = 0; k < n; k++) {
			cr_assert_eq(msg.chunk[k], k);
			cr_assert_eq(span[k].offset, 0);
			cr_assert_eq(span[k].length, GAIA_CHUNK);
			cr_assert_eq(span[k].flags, 0);
		}
		close(chunk);
		cr_assert(raw_answer(r.sock, &msg, error));
		pthread_join(thread, NULL);
		cr_assert_eq(a.err, (int)error, "%s", strerror(a.err));
	}
	cr_assert_eq(a.io.seq, msg.seq);
	close(r.sock);
	close(fd);
}

static bool log_says(const char *what)
{
	static char text[1 << 16];
	FILE *f = fopen(mnt.log, "re");
	size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

	text[n] = '\0';
	if (f)
		fclose(f);
	return strstr(text, what);
}

EACH_WAY(device_protocol, another_major_is_refused_and_both_are_named)
{
	struct gaia_ioc_connect io = { .version = GAIA_PROTOCOL_VERSION + 1, .minor = 7 };
	int fd = make_file("f", MIB, 'f');
	char both[64];

	snprintf(both, sizeof(both), "speaks protocol %u.7, this daemon %u.%u", io.version, GAIA_PROTOCOL_VERSION, GAIA_PROTOCOL_MINOR);
	cr_assert_eq(ioctl(fd, GAIA_IOC_CONNECT, &io), -1);
	cr_assert_eq(errno, EPROTO);
	cr_assert(log_says(both));
	/* Every major may ask which one this is; that is no ticket. */
	io = (struct gaia_ioc_connect){ .version = 0 };
	cr_assert_eq(ioctl(fd, GAIA_IOC_CONNECT, &io), 0);
	cr_assert_eq(io.version, GAIA_PROTOCOL_VERSION);
	cr_assert_eq(io.minor, GAIA_PROTOCOL_MINOR);
	cr_assert_eq(io.features, GAIA_FEATURES);
	for (size_t i = 0; i < sizeof(io.ticket); i++)
		cr_assert_eq(io.ticket[i], 0);
	close(fd);
}

/* ---- a client that lies ---- */

/* It says that it could not map the chunk, and keeps it: it is asked for the memory as if it had mapped it. */
EACH_WAY(device_protocol, memory_that_was_refused_is_taken_back_all_the_same)
{
	int fd = make_file("f", CHUNK, 'f'), chunk;
	struct raw r = raw_client_with(fd, GAIA_FEATURES);
	struct gaia_ioc_file evict = { .length = CHUNK };
	struct acquire a = { .fd = fd };
	struct gaia_msg msg;
	pthread_t thread;

	a.io = raw_range(&r, raw_map(fd, &r, CHUNK, RW), CHUNK, RW);
	cr_assert_eq(pthread_create(&thread, NULL, acquire_in_thread, &a), 0);
	cr_assert(raw_receive(r.sock, &msg, &chunk));
	cr_assert(raw_answer(r.sock, &msg, ENOMEM));
	pthread_join(thread, NULL);
	cr_assert_eq(a.err, ENOMEM);
	/* It does not answer, so it is disconnected, and the memory is free. */
	cr_assert_eq(ioctl(fd, GAIA_IOC_EVICT, &evict), 0);
	cr_assert(raw_receive(r.sock, &msg, NULL));
	cr_assert_eq(msg.kind, GAIA_MSG_REVOKE);
	cr_assert_not(raw_receive(r.sock, &msg, NULL));
	cr_assert_eq(STATUS("counters", "revoke_timeouts"), 1);
	close(chunk);
	close(r.sock);
	close(fd);
}

/* Whatever it answers instead, its connection ends and nothing else. */
EACH_WAY(device_protocol, forged_answers_end_the_connection)
{
	int fd = make_file("f", CHUNK, 'f'), chunk;
	struct actor *good = actor_start("f", CHUNK, 0);

	for (int how = 0; how < 6; how++) {
		struct raw r = raw_client_with(fd, GAIA_FEATURES);
		struct acquire a = { .fd = fd };
		struct gaia_msg msg;
		pthread_t thread;

		a.io = raw_range(&r, raw_map(fd, &r, CHUNK, RW), CHUNK, RW);
		cr_assert_eq(pthread_create(&thread, NULL, acquire_in_thread, &a), 0);
		cr_assert(raw_receive(r.sock, &msg, &chunk));
		close(chunk);
		if (how == 0)
			msg.seq++;
		if (how == 1)
			msg.map ^= 1;
		if (how == 2)
			msg.seq--;
		if (how < 3)
			raw_answer(r.sock, &msg, 0);
		if (how == 3)
			cr_assert_eq(send(r.sock, &msg, sizeof(msg), MSG_NOSIGNAL), (ssize_t)sizeof(msg));
		if (how == 4)
			cr_assert_eq(send(r.sock, &msg, 100, MSG_NOSIGNAL), 100);
		if (how == 5)
			shutdown(r.sock, SHUT_RDWR);
		pthread_join(thread, NULL);
		cr_assert_eq(a.err, ENOTCONN, "%d: %s", how, strerror(a.err));
		close(r.sock);
	}
	actor_ok(good, ACQUIRE, 0, CHUNK, RW);
	actor_ok(good, STORE, 0, 1, 'd');
	actor_ok(good, RELEASE, 0, CHUNK, 0);
	actor_end(good);
	close(fd);
}

/* Whatever error it makes up, the acquire fails with one that acquires fail with. */
EACH_WAY(device_protocol, errors_that_clients_make_up_become_eio)
{
	static const uint32_t error[] = { EINTR, ENOBUFS, 512, 0xffffffff, 1u << 31, EALREADY };
	int fd = make_file("f", CHUNK, 'f'), chunk;
	struct raw r = raw_client_with(fd, GAIA_FEATURES);
	struct acquire a = { .fd = fd };
	struct gaia_msg msg;
	pthread_t thread;

	a.io = raw_range(&r, raw_map(fd, &r, CHUNK, RW), CHUNK, RW);
	for (size_t i = 0; i < sizeof(error) / sizeof(error[0]); i++) {
		cr_assert_eq(pthread_create(&thread, NULL, acquire_in_thread, &a), 0);
		cr_assert(raw_receive(r.sock, &msg, &chunk));
		close(chunk);
		cr_assert(raw_answer(r.sock, &msg, error[i]));
		pthread_join(thread, NULL);
		cr_assert_eq(a.err, EIO, "%u: %s", error[i], strerror(a.err));
	}
	close(r.sock);
	close(fd);
}

/* A client that is late has acquired, as one of 1.0 has, and cannot refuse any more. */
EACH_WAY(device_protocol_late, an_answer_that_does_not_come_is_not_waited_for)
{
	int fd = make_file("f", 2 * CHUNK, 'f'), chunk;
	struct raw r = raw_client_with(fd, GAIA_FEATURES);
	struct gaia_ioc_range io = raw_range(&r, raw_map(fd, &r, 2 * CHUNK, RW), 1, RW);
	struct gaia_msg first, second;

	cr_assert_eq(ioctl(fd, GAIA_IOC_ACQUIRE, &io), 0, "%s", strerror(errno));
	cr_assert_eq(io.unanswered, 1u);
	io.unanswered = 0;
	io.offset = CHUNK;
	cr_assert_eq(ioctl(fd, GAIA_IOC_ACQUIRE, &io), 0, "%s", strerror(errno));
	cr_assert_eq(io.unanswered, 2u);
	cr_assert(raw_receive(r.sock, &first, &chunk));
	close(chunk);
	cr_assert(raw_receive(r.sock, &second, &chunk));
	close(chunk);
	cr_assert_eq(second.seq, io.seq);
	cr_assert(raw_answer(r.sock, &first, 0));
	cr_assert(raw_answer(r.sock, &second, EMFILE));
	cr_assert(raw_hung_up(r.sock));
	close(r.sock);
	close(fd);
}
