/*
 * fs_direct.c - asynchronous direct writes beside buffered readers, as xfstests generic/451 has it.
 *
 * When such a write has completed, readers through the kernel's cache see it; and a program that then changes a byte beside it
 * does not write back the old bytes.
 */
#include <fcntl.h>
#include <liburing.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "child.h"
#include "ways.h"

#define PAGE 4096
#define SIZE (160 * PAGE)
#define READERS 2
#define ROUNDS 200

/* ---- how a write is asked for, and waited for ---- */

struct async {
	const char *name;
	/* 0, or a negative errno. */
	int (*begin)(void);
	/* The bytes written, or a negative errno. */
	long (*write)(int fd, const void *buf, size_t len, off_t off);
	void (*end)(void);
};

static struct io_uring ring;

static int ring_begin(void)
{
	return io_uring_queue_init(4, &ring, 0);
}

static long ring_write(int fd, const void *buf, size_t len, off_t off)
{
	struct io_uring_cqe *cqe;
	long result;

	io_uring_prep_write(io_uring_get_sqe(&ring), fd, buf, (unsigned)len, (uint64_t)off);
	if (io_uring_submit(&ring) != 1)
		return -EIO;
	do
		result = io_uring_wait_cqe(&ring, &cqe);
	while (result == -EINTR);
	if (result)
		return result;
	result = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return result;
}

static void ring_end(void)
{
	io_uring_queue_exit(&ring);
}

static aio_context_t aio;

static int aio_begin(void)
{
	return syscall(SYS_io_setup, 1, &aio) ? -errno : 0;
}

static long aio_write(int fd, const void *buf, size_t len, off_t off)
{
	struct iocb cb = { .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = (uint32_t)fd,
			   .aio_buf = (uintptr_t)buf, .aio_nbytes = len, .aio_offset = off };
	struct iocb *cbs[] = { &cb };
	struct io_event done;

	if (syscall(SYS_io_submit, aio, 1L, cbs) != 1)
		return -errno;
	while (syscall(SYS_io_getevents, aio, 1L, 1L, &done, NULL) != 1)
		if (errno != EINTR)
			return -errno;
	return (long)done.res;
}

static void aio_end(void)
{
	syscall(SYS_io_destroy, aio);
}

static const struct async by_ring = { "io_uring", ring_begin, ring_write, ring_end };
static const struct async by_aio = { "io_submit(2)", aio_begin, aio_write, aio_end };

/* ---- concurrent readers ---- */

static int read_on(void *arg)
{
	char *bytes = malloc(SIZE);
	int fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);

	CHILD_CHECK(bytes && fd >= 0);
	for (;;)
		CHILD_CHECK(pread(fd, bytes, SIZE, 0) == SIZE);
}

/* ---- the scene ---- */

struct scene {
	const struct async *how;
	int direct, buffered;
	pid_t reader[READERS];
	unsigned char *written, *seen;
};

static void scene_begin(struct scene *s, const struct async *how)
{
	int err;

	s->how = how;
	way_start(NULL);
	err = how->begin();
	if (err)
		WAY_SKIP("%s: %s", how->name, strerror(-err));
	/* In auto: as after a device has mapped it. */
	way_make_cached("f");
	s->written = aligned_alloc(PAGE, SIZE);
	s->seen = aligned_alloc(PAGE, SIZE);
	cr_assert(s->written && s->seen);
	memset(s->written, 1, SIZE);
	s->direct = openat(both_root[ON_MOUNT], "f", O_RDWR | O_DIRECT);
	s->buffered = openat(both_root[ON_MOUNT], "f", O_RDWR);
	cr_assert(s->direct >= 0 && s->buffered >= 0, "%s", strerror(errno));
	cr_assert_eq(pwrite(s->direct, s->written, SIZE, 0), SIZE);
	for (unsigned k = 0; k < READERS; k++)
		s->reader[k] = child_start(read_on, NULL);
}

static void scene_end(struct scene *s)
{
	for (unsigned k = 0; k < READERS; k++)
		child_kill(s->reader[k]);
	close(s->direct);
	close(s->buffered);
	s->how->end();
	free(s->written);
	free(s->seen);
}

static void write_round(struct scene *s, unsigned round)
{
	memset(s->written, (int)(2 + round % 250), SIZE);
	cr_assert_eq(s->how->write(s->direct, s->written, SIZE, 0), SIZE);
}

static void expect_written(const struct scene *s, unsigned round, const char *where)
{
	for (size_t i = 0; i < SIZE; i += PAGE)
		cr_assert_eq(memcmp(s->seen + i, s->written + i, PAGE), 0,
			     "round %u, %s: page %zu is not what was written (%02x, not %02x)", round,
			     where, i / PAGE, s->seen[i], s->written[i]);
}

static void readers_see_it(const struct async *how)
{
	struct scene s;

	scene_begin(&s, how);
	for (unsigned round = 0; round < ROUNDS; round++) {
		write_round(&s, round);
		cr_assert_eq(pread(s.buffered, s.seen, SIZE, 0), SIZE);
		expect_written(&s, round, "read after it");
	}
	scene_end(&s);
}

static void a_store_beside_it_keeps_it(const struct async *how)
{
	static const unsigned char mark = 0xff;
	struct scene s;

	scene_begin(&s, how);
	for (unsigned round = 0; round < ROUNDS; round++) {
		write_round(&s, round);
		for (size_t i = 5; i < SIZE; i += PAGE) {
			cr_assert_eq(pwrite(s.buffered, &mark, 1, (off_t)i), 1);
			s.written[i] = mark;
		}
		cr_assert_eq(fsync(s.buffered), 0);
		cr_assert_eq(pread(s.direct, s.seen, SIZE, 0), SIZE);
		expect_written(&s, round, "after a store beside it and fsync");
	}
	scene_end(&s);
}

EACH_WAY_BARE(fs_direct, readers_see_what_was_written_by_io_uring)
{
	readers_see_it(&by_ring);
}

EACH_WAY_BARE(fs_direct, readers_see_what_was_written_by_io_submit)
{
	readers_see_it(&by_aio);
}

EACH_WAY_BARE(fs_direct, a_store_beside_what_was_written_by_io_uring_keeps_it)
{
	a_store_beside_it_keeps_it(&by_ring);
}

EACH_WAY_BARE(fs_direct, a_store_beside_what_was_written_by_io_submit_keeps_it)
{
	a_store_beside_it_keeps_it(&by_aio);
}
