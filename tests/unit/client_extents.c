/*
 * client_extents.c - tests of memory that the library is handed in extents (GAIA_FEATURE_EXTENTS). The tests are the daemon: they say what is handed
 * over and taken back, and hear the answers. The device is simulated, and strict or not, or (ON_GPU) a GPU of a fake driver.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../client/internal.h"
#include "gaia/client.h"

#ifdef ON_GPU
#include "../../client/cuda_client.h"
#include "fake_cuda.h"
#define KIND "cuda"
#else
#define KIND "sim"
#endif

#define RW (PROT_READ | PROT_WRITE)
#define SECONDS 120 /* a call that hangs */
#define CHUNK ((uint64_t)GAIA_CHUNK)
#define EXTENT ((uint64_t)GAIA_EXTENT)
#define EIGHT GAIA_EXTENT_CHUNKS

/* ---- the daemon ---- */

static int file, listener, sock;
static struct sockaddr_un name;
static uint64_t seq, maps;
static uint64_t features;
static bool strict;
static sem_t welcomed;

static void *greet(void *arg)
{
	struct gaia_msg msg;

	for (;;) {
		int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (s < 0)
			return NULL;
		if (recv(s, &msg, sizeof(msg), 0) != sizeof(msg) || msg.kind != GAIA_MSG_HELLO)
			abort();
		msg = (struct gaia_msg){ .kind = GAIA_MSG_WELCOME, .version = GAIA_PROTOCOL_VERSION, .seq = seq = 1 };
		sock = s;
		if (send(s, &msg, sizeof(msg), MSG_NOSIGNAL) != sizeof(msg))
			abort();
		sem_post(&welcomed);
	}
}

static void describe(struct gaia_ioc_devices *io)
{
	io->total = io->count = 1;
	strcpy(io->device[0].kind, io->first == GAIA_HOST ? "host" : KIND);
	io->device[0].flags = strict ? GAIA_DEVICE_STRICT : 0;
#ifdef ON_GPU
	fake_cuda_uuid(0, io->device[0].uuid);
#endif
}

static int answer(int fd, unsigned long request, void *arg)
{
	switch (request) {
	case GAIA_IOC_CONNECT: {
		struct gaia_ioc_connect *io = arg;

		io->version = GAIA_PROTOCOL_VERSION;
		io->features = features;
		memcpy(io->socket, name.sun_path + 1, sizeof(io->socket));
		return 0;
	}
	case GAIA_IOC_DEVICES:
		describe(arg);
		return 0;
	case GAIA_IOC_MAP:
		((struct gaia_ioc_map *)arg)->map = ++maps;
		return 0;
	}
	return 0;
}

static int push(int fd, off_t off, off_t len)
{
	return 0;
}

static void begin_with(uint64_t its_features)
{
	pthread_t greeter;
	socklen_t len;

#ifdef ON_GPU
	fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 1, .memory = 64 << 20 });
	cuda_lookup = fake_cuda_entry;
#endif
	features = its_features;
	sem_init(&welcomed, 0, 0);
	name.sun_family = AF_UNIX;
	len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			  (size_t)snprintf(name.sun_path + 1, 40, "gaiafs-extents/%d", (int)getpid()));
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	cr_assert(listener >= 0 && !bind(listener, (struct sockaddr *)&name, len) && !listen(listener, 8));
	cr_assert(!pthread_create(&greeter, NULL, greet, NULL) && !pthread_detach(greeter));
	file = memfd_create("file", MFD_CLOEXEC);
	wire_sys.ioctl = answer;
	wire_sys.push = push;
}

static void begin(void)
{
	begin_with(GAIA_FEATURES & ~GAIA_FEATURE_DETECT);
}

TestSuite(client_extents, .init = begin, .timeout = SECONDS);

/* What a GRANT hands over: a chunk or an extent of the file. */
struct piece {
	uint64_t idx;
	bool extent;
	bool unmappable;    /* what comes is no memory */
	struct gaia_span span; /* length not 0: said instead */
};

/* Page p of chunk k of the file begins with this. */
static uint32_t stamp(uint64_t k, unsigned p)
{
	return (uint32_t)(k * GAIA_CHUNK_PAGES + p) * 2654435761u;
}

static int memory_of(const struct piece *piece)
{
	unsigned n = piece->extent ? EIGHT : 1;
	int fd = memfd_create("memory", MFD_CLOEXEC), ends[2];

	if (piece->unmappable) {
		close(fd);
		cr_assert_eq(pipe(ends), 0);
		close(ends[1]);
		return ends[0];
	}
	cr_assert_eq(ftruncate(fd, n * (off_t)GAIA_CHUNK), 0);
	for (unsigned k = 0; k < n; k++)
		for (unsigned p = 0; p < GAIA_CHUNK_PAGES; p++) {
			uint32_t bytes = stamp(piece->idx + k, p);

			cr_assert_eq(pwrite(fd, &bytes, 4, k * (off_t)GAIA_CHUNK + p * (off_t)GAIA_PAGE), 4);
		}
	return fd;
}

static void hear(uint32_t kind, uint64_t map, uint32_t error)
{
	struct gaia_msg msg;

	cr_assert_eq(recv(sock, &msg, sizeof(msg), 0), (ssize_t)sizeof(msg));
	cr_assert_eq(msg.kind, kind);
	cr_assert_eq(msg.seq, seq);
	cr_assert_eq(msg.map, map);
	cr_assert_eq(msg.error, error, "%s", strerror((int)msg.error));
}

/* A GRANT, which is answered with @error. */
static void hand_over(uint64_t map, const struct piece *piece, unsigned n, uint32_t error)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_GRANT, .version = GAIA_PROTOCOL_VERSION, .seq = ++seq, .map = map, .prot = RW, .count = n };
	struct gaia_span span[GAIA_MSG_CHUNKS];
	char control[CMSG_SPACE(GAIA_MSG_CHUNKS * sizeof(int))] __attribute__((aligned(8))) = { 0 };
	struct iovec iov[] = { { &msg, sizeof(msg) }, { span, n * sizeof(span[0]) } };
	struct msghdr hdr = { .msg_iov = iov, .msg_iovlen = 2, .msg_control = control, .msg_controllen = CMSG_SPACE(n * sizeof(int)) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&hdr);
	int fd[GAIA_MSG_CHUNKS];

	*c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(n * sizeof(int)) };
	for (unsigned i = 0; i < n; i++) {
		msg.chunk[i] = piece[i].idx;
		span[i] = (struct gaia_span){ .length = piece[i].extent ? GAIA_EXTENT : GAIA_CHUNK };
		if (piece[i].span.length)
			span[i] = piece[i].span;
		fd[i] = memory_of(&piece[i]);
	}
	memcpy(CMSG_DATA(c), fd, n * sizeof(int));
	cr_assert_gt(sendmsg(sock, &hdr, MSG_NOSIGNAL), 0);
	for (unsigned i = 0; i < n; i++)
		close(fd[i]);
	hear(GAIA_MSG_GRANTED, map, error);
}

#define HAND_OVER(error, ...) \
	hand_over(maps, (const struct piece[]){ __VA_ARGS__ }, sizeof((const struct piece[]){ __VA_ARGS__ }) / sizeof(struct piece), error)
#define EXTENT_AT(k) { .idx = (k), .extent = true }
#define CHUNK_AT(k) { .idx = (k) }

static void take_back(uint64_t k)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_REVOKE, .version = GAIA_PROTOCOL_VERSION, .seq = ++seq, .map = maps, .count = 1, .chunk = { k } };

	cr_assert_eq(send(sock, &msg, sizeof(msg), MSG_NOSIGNAL), (ssize_t)sizeof(msg));
	hear(GAIA_MSG_REVOKED, maps, 0);
}

/* ---- the program ---- */

static unsigned char *map_on(int device, uint64_t offset, size_t length)
{
	unsigned char *p = gaia_mmap(length, RW, file, (off_t)offset, device);

	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
	if (sock == 0)
		sem_wait(&welcomed);
	return p;
}

static unsigned char *map(uint64_t offset, size_t length)
{
	return map_on(0, offset, length);
}

static void unmap(unsigned char *p, size_t length)
{
	cr_assert_eq(gaia_munmap(p, length), 0);
#ifdef ON_GPU
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true), 0);
#endif
}

static struct mapping *mapping_of(unsigned char *p)
{
	struct mapping *m = mapping_find((char *)p, 1);

	cr_assert_not_null(m);
	mapping_put(m);
	return m;
}

/* Whether a program, on its device, can use the page. */
static bool is_there(const char *page)
{
#ifdef ON_GPU
	return fake_cuda_usable(page, 1);
#else
	int fd[2];
	bool there;

	/* The kernel looks. */
	cr_assert_eq(pipe(fd), 0);
	there = write(fd[1], page, 1) == 1;
	close(fd[0]);
	close(fd[1]);
	return there;
#endif
}

/* Whether chunk @k of the file is placed, with its own bytes. Also outside of what the program has mapped, as long as it is reserved. */
static bool has(unsigned char *p, uint64_t k)
{
	const struct mapping *m = mapping_of(p);
	const char *at = m->base + (k * CHUNK - m->start);
	unsigned there = 0;
	uint32_t bytes;

	for (unsigned page = 0; page < GAIA_CHUNK_PAGES; page += 73) {
		if (!is_there(at + page * GAIA_PAGE))
			continue;
		there++;
		memcpy(&bytes, at + page * GAIA_PAGE, 4);
		cr_assert_eq(bytes, stamp(k, page), "page %u of chunk %llu", page, (unsigned long long)k);
	}
	cr_assert(there == 0 || there == (GAIA_CHUNK_PAGES + 72) / 73, "all of it or nothing: %u", there);
	return there > 0;
}

/* How many of the chunks [@a, @b) of the file are there. */
static unsigned there(unsigned char *p, uint64_t a, uint64_t b)
{
	unsigned n = 0;

	for (uint64_t k = a; k < b; k++)
		n += has(p, k);
	return n;
}

/* ---- handed over ---- */

/* The program's range is a small part of it. */
Test(client_extents, are_mapped_as_a_whole)
{
	uint64_t offset = EXTENT + 5 * CHUNK + 7 * GAIA_PAGE;
	unsigned char *p = map(offset, 3 * GAIA_PAGE);
	uint32_t bytes;

#ifdef ON_GPU
	unsigned calls = fake_cuda_calls();
#endif
	HAND_OVER(0, EXTENT_AT(EIGHT));
#ifdef ON_GPU
	/* As one chunk: import, map, release; enter and leave the context, and a mode; set access. */
	cr_assert_eq(fake_cuda_calls() - calls, 3 + 5);
#endif
	memcpy(&bytes, p, 4);
	cr_assert_eq(bytes, stamp(EIGHT + 5, 7));
	cr_assert_eq(there(p, EIGHT, 2 * EIGHT), EIGHT);
	unmap(p, 3 * GAIA_PAGE);
}

Test(client_extents, may_come_with_chunks)
{
	uint64_t length = 4 * EXTENT;
	unsigned char *p = map(GAIA_PAGE, length);

	HAND_OVER(0, EXTENT_AT(EIGHT), CHUNK_AT(2 * EIGHT), CHUNK_AT(2 * EIGHT + 1), CHUNK_AT(2), EXTENT_AT(4 * EIGHT), EXTENT_AT(3 * EIGHT));
	for (uint64_t k = 0; k < 5 * EIGHT; k++)
		cr_assert_eq(has(p, k), k == 2 || k / EIGHT == 1 || k / EIGHT > 2 || k == 2 * EIGHT || k == 2 * EIGHT + 1, "%d", (int)k);
	unmap(p, length);
}

/* Up to where a GRANT reaches. */
Test(client_extents, sixty_four_come_at_once)
{
	struct piece piece[GAIA_MSG_CHUNKS];
	unsigned char *p = map(0, GAIA_MSG_CHUNKS * EXTENT);

	for (unsigned i = 0; i < GAIA_MSG_CHUNKS; i++)
		piece[i] = (struct piece){ .idx = (uint64_t)(GAIA_MSG_CHUNKS - 1 - i) * EIGHT, .extent = i != 3 };
	hand_over(maps, piece, GAIA_MSG_CHUNKS, 0);
	cr_assert(has(p, 0) && has(p, (GAIA_MSG_CHUNKS - 4) * EIGHT) && has(p, GAIA_MSG_CHUNKS * EIGHT - 1));
	cr_assert_not(has(p, (GAIA_MSG_CHUNKS - 4) * EIGHT + 1));
	unmap(p, GAIA_MSG_CHUNKS * EXTENT);
}

Test(client_extents, at_the_end_of_all_files)
{
	uint64_t last = ((uint64_t)INT64_MAX + 1 - EXTENT) / CHUNK, offset = (uint64_t)INT64_MAX + 1 - 3 * GAIA_PAGE;
	unsigned char *p = map(offset, GAIA_PAGE);

	HAND_OVER(0, EXTENT_AT(last));
	cr_assert_eq(there(p, last, last + EIGHT), EIGHT);
	take_back(last + EIGHT - 1);
	cr_assert_eq(there(p, last, last + EIGHT), 0);
	unmap(p, GAIA_PAGE);
#ifndef ON_GPU
	/* More than there are addresses. */
	cr_assert_eq(gaia_mmap(INT64_MAX - GAIA_PAGE, RW, file, GAIA_PAGE, 0), MAP_FAILED);
	cr_assert_eq(errno, ENOMEM);
#endif
}

/* ---- taken back ---- */

Test(client_extents, go_with_any_of_their_chunks)
{
	unsigned char *p = map(0, 3 * EXTENT);

	HAND_OVER(0, EXTENT_AT(0), EXTENT_AT(EIGHT), EXTENT_AT(2 * EIGHT));
	take_back(EIGHT + 5);
	cr_assert_eq(there(p, EIGHT, 2 * EIGHT), 0);
	cr_assert_eq(there(p, 0, EIGHT), EIGHT);
	cr_assert_eq(there(p, 2 * EIGHT, 3 * EIGHT), EIGHT);
	/* Each is named. */
	for (uint64_t k = EIGHT; k < 2 * EIGHT; k++)
		take_back(k);
	cr_assert_eq(there(p, 0, 3 * EIGHT), 2 * EIGHT);
	/* From now on these are chunks. */
	HAND_OVER(0, CHUNK_AT(EIGHT + 2), CHUNK_AT(EIGHT + 3));
	take_back(EIGHT + 2);
	cr_assert_not(has(p, EIGHT + 2));
	cr_assert(has(p, EIGHT + 3));
	HAND_OVER(0, EXTENT_AT(EIGHT));
	cr_assert_eq(there(p, 0, 3 * EIGHT), 3 * EIGHT);
	unmap(p, 3 * EXTENT);
}

/* As one message may name several. */
Test(client_extents, and_chunks_beside_them_go_together)
{
	unsigned char *p = map(0, 3 * EXTENT);
	struct gaia_msg msg = { .kind = GAIA_MSG_REVOKE, .count = 4, .map = maps, .chunk = { EIGHT - 1, EIGHT + 1, EIGHT, 2 * EIGHT } };
	struct mapping *m = mapping_of(p);

	HAND_OVER(0, CHUNK_AT(EIGHT - 2), CHUNK_AT(EIGHT - 1), EXTENT_AT(EIGHT), CHUNK_AT(2 * EIGHT), CHUNK_AT(2 * EIGHT + 1));
#ifdef ON_GPU
	unsigned calls = fake_cuda_calls_of("cuMemUnmap");
#endif
	pthread_mutex_lock(&gaia_lock);
	cr_assert_eq(mapping_message(m->conn, &msg, NULL, 0), 0);
	pthread_mutex_unlock(&gaia_lock);
#ifdef ON_GPU
	cr_assert_eq(fake_cuda_calls_of("cuMemUnmap") - calls, fake_cuda_mode()->single_unmaps ? 4 : 1);
#endif
	cr_assert(has(p, EIGHT - 2) && has(p, 2 * EIGHT + 1));
	cr_assert_eq(there(p, EIGHT - 1, 2 * EIGHT + 1), 0);
	unmap(p, 3 * EXTENT);
}

/* Part of it cannot stay. */
Test(client_extents, give_way_to_a_chunk)
{
	unsigned char *p = map(0, 2 * EXTENT);

	HAND_OVER(0, EXTENT_AT(0), EXTENT_AT(EIGHT));
	HAND_OVER(0, CHUNK_AT(3));
	cr_assert_eq(there(p, 0, EIGHT), 1);
	cr_assert_eq(there(p, EIGHT, 2 * EIGHT), EIGHT);
	/* And in place of chunks, and of itself. */
	HAND_OVER(0, EXTENT_AT(0));
	HAND_OVER(0, EXTENT_AT(0));
	cr_assert_eq(there(p, 0, 2 * EIGHT), 2 * EIGHT);
	unmap(p, 2 * EXTENT);
}

/* ---- refused ---- */

Test(client_extents, that_cannot_be_mapped_bring_nothing)
{
	unsigned char *p = map(0, 4 * EXTENT);

	HAND_OVER(0, CHUNK_AT(0));
#ifdef ON_GPU
	uint32_t error = EIO;
#else
	uint32_t error = EACCES;
#endif
	HAND_OVER(error, EXTENT_AT(EIGHT), CHUNK_AT(1), EXTENT_AT(2 * EIGHT), { .idx = 3 * EIGHT, .extent = true, .unmappable = true });
	HAND_OVER(error, EXTENT_AT(EIGHT), CHUNK_AT(1), { .idx = 2, .unmappable = true });
	cr_assert_eq(there(p, 0, 4 * EIGHT), 1);
	HAND_OVER(0, EXTENT_AT(3 * EIGHT), EXTENT_AT(EIGHT));
	cr_assert_eq(there(p, 0, 4 * EIGHT), 1 + 2 * EIGHT);
	unmap(p, 4 * EXTENT);
}

Test(client_extents, that_are_none_are_refused)
{
	unsigned char *p = map(0, 4 * EXTENT);

	HAND_OVER(EPROTO, EXTENT_AT(EIGHT + 1));
	HAND_OVER(EPROTO, EXTENT_AT(0), EXTENT_AT(EIGHT + 4));
	HAND_OVER(EPROTO, { .idx = 0, .extent = true, .span = { .length = 4 * CHUNK } });
	HAND_OVER(EPROTO, { .idx = 0, .extent = true, .span = { .length = 2 * EXTENT } });
	HAND_OVER(EPROTO, { .idx = 0, .extent = true, .span = { .length = EXTENT, .offset = GAIA_PAGE } });
	HAND_OVER(EPROTO, { .idx = 0, .extent = true, .span = { .length = EXTENT, .flags = 1 } });
	/* Nor one of which a part comes twice. */
	HAND_OVER(EPROTO, EXTENT_AT(EIGHT), CHUNK_AT(EIGHT + 3));
	HAND_OVER(EPROTO, CHUNK_AT(EIGHT + 3), EXTENT_AT(EIGHT));
	HAND_OVER(EPROTO, EXTENT_AT(EIGHT), EXTENT_AT(EIGHT));
	cr_assert_eq(there(p, 0, 4 * EIGHT), 0);
	HAND_OVER(0, EXTENT_AT(EIGHT));
	unmap(p, 4 * EXTENT);
}

static void begin_older(void)
{
	begin_with(GAIA_FEATURES & ~GAIA_FEATURE_DETECT & ~GAIA_FEATURE_EXTENTS);
}

Test(older, daemons_hand_over_none, .init = begin_older, .timeout = SECONDS)
{
	unsigned char *p = map(5 * GAIA_CHUNK, EXTENT);

	HAND_OVER(EPROTO, EXTENT_AT(EIGHT));
	HAND_OVER(0, CHUNK_AT(5), CHUNK_AT(EIGHT), CHUNK_AT(EIGHT + 1));
	take_back(EIGHT);
	cr_assert_eq(there(p, 5, EIGHT + 5), 2);
	unmap(p, EXTENT);
}

Test(older, daemons_may_be_next, .init = begin, .timeout = SECONDS)
{
	unsigned char *p = map(0, EXTENT);
	struct gaia_msg msg = { .kind = GAIA_MSG_MOVE, .version = GAIA_PROTOCOL_VERSION };
	int old = sock;

	HAND_OVER(0, EXTENT_AT(0));
	msg.seq = ++seq;
	cr_assert_gt(send(old, &msg, sizeof(msg), 0), 0);
	hear(GAIA_MSG_READY, 0, 0);
	features &= ~GAIA_FEATURE_EXTENTS;
	msg.kind = GAIA_MSG_MOVED;
	msg.seq++;
	cr_assert_gt(send(old, &msg, sizeof(msg), 0), 0);
	sem_wait(&welcomed);
	cr_assert_eq(gaia_acquire(p, 1, RW), 0, "%s", gaia_last_error_text());
	cr_assert_eq(there(p, 0, EIGHT), 0);
	cr_assert_eq(maps, 2);
	HAND_OVER(EPROTO, EXTENT_AT(0));
	HAND_OVER(0, CHUNK_AT(1));
	take_back(0);
	cr_assert(has(p, 1), "what was an extent of the daemon before is chunks now");
	cr_assert_eq(gaia_release(p, 1), 0);
	close(old);
	unmap(p, EXTENT);
}

#ifndef ON_GPU

/* ---- what looks at chunks ---- */

static void begin_detecting(void)
{
	setenv("GAIA_DETECT", "client", 1);
	begin_with(GAIA_FEATURES);
}

Test(detecting, knows_each_chunk, .init = begin_detecting, .timeout = SECONDS)
{
	unsigned char *p = map(CHUNK, 2 * EXTENT);
	const struct detect *d = mapping_of(p)->detect;

	cr_assert_not_null(d);
	HAND_OVER(0, EXTENT_AT(0), CHUNK_AT(EIGHT), EXTENT_AT(2 * EIGHT));
	for (unsigned k = 0; k < 3 * EIGHT; k++)
		cr_assert_eq(d->placed[k], k <= EIGHT || k >= 2 * EIGHT, "%u", k);
	take_back(2 * EIGHT + 3);
	for (unsigned k = 0; k < 3 * EIGHT; k++)
		cr_assert_eq(d->placed[k], k <= EIGHT, "%u", k);
	HAND_OVER(0, CHUNK_AT(7));
	for (unsigned k = 0; k < 3 * EIGHT; k++)
		cr_assert_eq(d->placed[k], k == 7 || k == EIGHT, "%u", k);
	unmap(p, 2 * EXTENT);
}

/* The host's memory comes in chunks, and so there are no addresses for more. */
Test(host, is_handed_over_in_chunks, .init = begin, .timeout = SECONDS)
{
	unsigned char *p = map_on(-1, 5 * CHUNK, 2 * EXTENT);

	cr_assert_eq(mapping_of(p)->span, 2 * EXTENT);
	maps = 1; /* not what is only read of it */
	HAND_OVER(EPROTO, EXTENT_AT(EIGHT));
	HAND_OVER(0, CHUNK_AT(EIGHT));
	unmap(p, 2 * EXTENT);
}

/* ---- strict ---- */

static void begin_strict(void)
{
	strict = true;
	begin();
}

TestSuite(strict, .init = begin_strict, .timeout = SECONDS);

static bool is_writable(unsigned char *page)
{
	int fd[2];
	bool good;

	/* The kernel tries. */
	cr_assert_eq(pipe(fd), 0);
	cr_assert_eq(write(fd[1], "x", 1), 1);
	good = read(fd[0], page, 1) == 1;
	close(fd[0]);
	close(fd[1]);
	return good;
}

Test(strict, pages_of_extents_can_be_touched_while_they_are_held)
{
	unsigned char *p = map(CHUNK, EXTENT + CHUNK);
	size_t page = 9 * GAIA_PAGE + 6 * CHUNK; /* of chunk 7 */

	/* Before it is placed, too: as if the file had ended before. */
	cr_assert_eq(gaia_acquire(p + page, GAIA_PAGE, PROT_READ), 0);
	HAND_OVER(0, EXTENT_AT(0), EXTENT_AT(EIGHT));
	cr_assert(is_there((char *)p + page));
	cr_assert_not(is_writable(p + page));
	cr_assert_not(is_there((char *)p + page + GAIA_PAGE));
	/* Over the bound of two. */
	cr_assert_eq(gaia_acquire(p + page, 2 * CHUNK, RW), 0);
	for (size_t at = page; at < page + 2 * CHUNK; at += GAIA_PAGE)
		cr_assert(is_writable(p + at));
	cr_assert_not(is_there((char *)p + page - GAIA_PAGE));
	cr_assert_eq(gaia_release(p + page, 2 * CHUNK), 0);
	cr_assert_eq(gaia_release(p + page, GAIA_PAGE), 0);
	cr_assert_not(is_there((char *)p + page));
	/* Taken back by another chunk, and handed over again. */
	take_back(3);
	cr_assert_eq(gaia_acquire(p + page, GAIA_PAGE, RW), 0);
	cr_assert_not(is_there((char *)p + page));
	HAND_OVER(0, EXTENT_AT(0));
	cr_assert(is_writable(p + page));
	cr_assert_eq(gaia_release(p + page, GAIA_PAGE), 0);
	unmap(p, EXTENT + CHUNK);
}

static struct kind_ops short_ops;

/* As if no mapping were left: only those that are there can be changed. */
static int short_protect(struct mapping *m, uint64_t a, uint64_t b, int prot)
{
	if (a % (EIGHT * GAIA_CHUNK_PAGES) || b % (EIGHT * GAIA_CHUNK_PAGES))
		return -ENOMEM;
	return sim_kind.protect(m, a, b, prot);
}

Test(strict, without_mappings_all_of_an_extent_can_be_touched)
{
	unsigned char *p = map(0, 2 * EXTENT);

	HAND_OVER(0, EXTENT_AT(0), EXTENT_AT(EIGHT));
	short_ops = sim_kind;
	short_ops.protect = short_protect;
	mapping_of(p)->ops = &short_ops;
	cr_assert_eq(gaia_acquire(p + 3 * CHUNK, 2 * CHUNK, RW), 0);
	cr_assert(is_writable(p + 3 * CHUNK) && is_writable(p + 5 * CHUNK - 1));
	cr_assert(is_writable(p) && is_writable(p + EXTENT - 1));
	cr_assert_not(is_there((char *)p + EXTENT));
	cr_assert_eq(gaia_release(p + 3 * CHUNK, 2 * CHUNK), 0);
	/* Handed over again it is as any. */
	take_back(0);
	mapping_of(p)->ops = &sim_kind;
	HAND_OVER(0, EXTENT_AT(0));
	cr_assert_not(is_there((char *)p));
	unmap(p, 2 * EXTENT);
}

/* ---- children ---- */

Test(client_extents, are_not_inherited)
{
	unsigned char *p = map(0, EXTENT);
	unsigned char in_core;
	int status;
	pid_t pid;

	HAND_OVER(0, EXTENT_AT(0));
	pid = fork();
	if (pid == 0)
		_exit(mincore(p + 3 * CHUNK, GAIA_PAGE, &in_core) == -1 && errno == ENOMEM ? 0 : 1);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	unmap(p, EXTENT);
}
#endif
