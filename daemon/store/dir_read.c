/*
 * dir_read.c - reading files of a backing directory.
 *
 * A read that the caller will keep is cut into pieces. What the kernel has in memory is read from there, at
 * memory speed; what it does not have comes straight from the device (O_DIRECT), so that it does not lie in memory twice. All
 * pieces are under way at the same time.
 *
 * Correctness does not depend on what the kernel says it has in memory. A direct read sees each write that was complete
 * before it: the kernel first stores what it has of the range. If a piece comes back short, for whatever reason (the end of
 * the file, a file system that refuses), plain calls read on, and their result counts.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/thread.h"
#include "base/util.h"
#include "gaia/protocol.h"
#include "store/dir.h"

/* bytes: a range that is partly in memory is divided into blocks of this size, each of which is read in one way */
#define GRANULE (64u << 10)

/* bytes: no system call moves more */
#define MOST_AT_ONCE (1ull << 31)

ssize_t move_bytes(ssize_t (*call)(int, const struct iovec *, int, off_t), int fd,
		   const struct iovec *iov, int n, off_t off, size_t done)
{
	size_t total = done;
	size_t skip = done; /* bytes of iov[0] that are done */

	for (;;) {
		/*
		 * No file is longer than INT64_MAX. For a range that goes beyond, the kernel returns EINVAL
		 * even if its first bytes exist.
		 */
		uint64_t room = (uint64_t)INT64_MAX - (uint64_t)off - total;
		struct iovec rest;
		ssize_t got;

		/* Also skip buffers of no bytes: if a call moves nothing, nothing more is expected to be moved. */
		while (n > 0 && skip >= iov->iov_len) {
			skip -= iov->iov_len;
			iov++;
			n--;
		}
		if (n == 0 || room == 0)
			return (ssize_t)total;
		rest.iov_base = (char *)iov->iov_base + skip;
		rest.iov_len = MIN(iov->iov_len - skip, room);
		if (skip || room < MOST_AT_ONCE)
			got = call(fd, &rest, 1, off + (off_t)total);
		else
			got = call(fd, iov, MIN(n, IOV_MAX), off + (off_t)total);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			return (ssize_t)total;
		total += (size_t)got;
		skip += (size_t)got;
	}
}

static size_t iov_bytes(const struct iovec *iov, int n)
{
	size_t len = 0;

	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	return len;
}

/* Whether all of it could be read without waiting; then *@got is the number of bytes. */
static bool read_at_once(int fd, const struct iovec *iov, int n, off_t off, ssize_t *got)
{
	if (n > IOV_MAX)
		return false;
	*got = preadv2(fd, iov, n, off, RWF_NOWAIT);
	return *got >= 0 && (size_t)*got == iov_bytes(iov, n);
}

ssize_t dir_read(struct store_file *file, const struct iovec *iov, int n, off_t off)
{
	int fd = container_of(file, struct dir_file, base)->fd;
	ssize_t got;

	/* Usually the bytes are in the kernel's memory: then no other thread needs to take this one's place. */
	if (thread_is_relied_on() && read_at_once(fd, iov, n, off, &got))
		return got;
	thread_waits();
	return move_bytes(preadv, fd, iov, n, off, 0);
}

/* ---- what the kernel has in memory ---- */

enum presence { ABSENT, IN_PART, PRESENT };

/* cachestat(2) of Linux 6.5, which Debian 12's headers do not know. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

/* How much of a range the kernel has in memory. If the kernel cannot tell: all, so that plain reads are used. */
static enum presence presence(int fd, off_t off, size_t len)
{
	uint64_t range[2] = { (uint64_t)off, len };
	struct {
		uint64_t cached, dirty, writeback, evicted, recently_evicted;
	} pages;

	if (syscall(SYS_cachestat, fd, range, &pages, 0) < 0)
		return PRESENT;
	if (pages.cached == 0)
		return ABSENT;
	return pages.cached < (len + GAIA_PAGE - 1) / GAIA_PAGE ? IN_PART : PRESENT;
}

bool store_dir_has_pages(int fd)
{
	return presence(fd, 0, 0) != ABSENT;
}

/* ---- O_DIRECT ---- */

/* Open @fd's file again, with O_DIRECT: a descriptor; DIRECT_NONE: never possible; DIRECT_UNTRIED: not possible now. */
static int open_direct(int fd)
{
	struct statfs fs;
	char path[32];
	struct statx st;
	int direct;

	/* On overlayfs the pages belong to the file below, and cachestat(2) says that there are none (seen on Linux 6.18). */
	if (fstatfs(fd, &fs) < 0 || fs.f_type == OVERLAYFS_SUPER_MAGIC)
		return DIRECT_NONE;
	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) < 0 || !(st.stx_mask & STATX_DIOALIGN))
		return DIRECT_NONE;
	/* 0: the file system cannot do it. */
	if (st.stx_dio_offset_align == 0 || GAIA_PAGE % st.stx_dio_offset_align != 0 ||
	    st.stx_dio_mem_align == 0 || GAIA_PAGE % st.stx_dio_mem_align != 0)
		return DIRECT_NONE;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	direct = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOCTTY));
	if (direct < 0 && is_shortage(errno))
		return DIRECT_UNTRIED;
	return direct < 0 ? DIRECT_NONE : direct;
}

/* The file's descriptor for O_DIRECT, or negative. */
static int direct_fd(struct dir_file *f)
{
	int known = atomic_load(&f->direct), fd;

	if (known != DIRECT_UNTRIED)
		return known;
	thread_waits();
	fd = open_direct(f->fd);
	if (atomic_compare_exchange_strong(&f->direct, &known, fd))
		return fd;
	if (fd >= 0)
		close(fd);
	return known;
}

static bool in_pages(const struct store_read *rd)
{
	uintptr_t bits = (uintptr_t)rd->off;

	for (int i = 0; i < rd->n; i++)
		bits |= (uintptr_t)rd->iov[i].iov_base | rd->iov[i].iov_len;
	return bits % GAIA_PAGE == 0;
}

/* ---- pieces ---- */

/* A part of a read that is under way, all of which comes from one place. */
struct piece {
	struct async_read read;
	size_t len;
	bool direct;
};

/* store_read.state */
struct pieces {
	unsigned n;
	struct piece *at;
	struct iovec *iov; /* used by the pieces */
};

/* The value of store_read.state that means that store_read_end() reads. */
static char read_at_end;
#define READ_AT_END ((void *)&read_at_end)

static void piece_add(struct pieces *ps, off_t off, size_t len, int fd, bool direct)
{
	struct piece *last = ps->n > 0 ? &ps->at[ps->n - 1] : NULL;

	if (last && last->direct == direct) {
		last->len += len;
		return;
	}
	ps->at[ps->n++] = (struct piece){ .read = { .fd = fd, .off = off }, .len = len,
					  .direct = direct };
}

/* Cut @rd into pieces: read what is in memory by @fd, the rest by @direct. */
static void cut(struct pieces *ps, const struct store_read *rd, size_t len, int fd, int direct)
{
	for (size_t at = 0, n; at < len; at += n) {
		off_t off = rd->off + (off_t)at;
		bool absent;

		n = MIN(len - at, GRANULE - (size_t)off % GRANULE);
		absent = presence(fd, off, n) == ABSENT;
		piece_add(ps, off, n, absent ? direct : fd, absent);
	}
}

/* Give each piece its buffers. */
static void cut_iov(struct pieces *ps, const struct store_read *rd)
{
	struct iovec *out = ps->iov;
	size_t skip = 0; /* of rd->iov[i] */
	int i = 0;

	for (unsigned k = 0; k < ps->n; k++) {
		struct piece *p = &ps->at[k];

		p->read.iov = out;
		for (size_t left = p->len; left > 0;) {
			size_t n = MIN(left, rd->iov[i].iov_len - skip);

			*out++ = (struct iovec){ (char *)rd->iov[i].iov_base + skip, n };
			p->read.n++;
			left -= n;
			skip += n;
			if (skip == rd->iov[i].iov_len) {
				skip = 0;
				i++;
			}
		}
	}
}

/* @max: the most pieces that there can be. */
static struct pieces *pieces_create(size_t max, const struct store_read *rd)
{
	struct pieces *ps = xcalloc(1, sizeof(*ps) + max * sizeof(*ps->at) +
					       (max + (size_t)rd->n) * sizeof(*ps->iov));

	ps->at = (struct piece *)(ps + 1);
	ps->iov = (struct iovec *)(ps->at + max);
	return ps;
}

/* Read directly, and wait for it: for a thread that has nothing else to do meanwhile. */
static void read_whole(struct dir_file *f, struct store_read *rd, size_t len, int direct)
{
	ssize_t got;

	thread_waits();
	got = preadv(direct, rd->iov, rd->n, rd->off);
	if (got == (ssize_t)len)
		rd->got = got;
	else
		rd->got = move_bytes(preadv, f->fd, rd->iov, rd->n, rd->off, got > 0 ? (size_t)got : 0);
	count(CTR_storage_direct, got > 0 ? (size_t)got / GAIA_PAGE : 0);
}

void dir_read_begin(struct store_file *file, struct store_read *rd)
{
	struct dir_file *f = container_of(file, struct dir_file, base);
	size_t len = iov_bytes(rd->iov, rd->n);
	enum presence there = PRESENT;
	int direct = DIRECT_NONE;
	struct pieces *ps;

	if (rd->kept && f->store->direct && len > 0 && in_pages(rd))
		there = presence(f->fd, rd->off, len);
	if (there != PRESENT)
		direct = direct_fd(f);
	if (direct < 0) {
		/*
		 * Plain reads work best in order, since the kernel reads ahead: so nothing is read before
		 * store_read_end().
		 */
		rd->state = READ_AT_END;
		rd->at_end = true;
		return;
	}
	if (there == ABSENT && rd->at_once && rd->n <= IOV_MAX) {
		read_whole(f, rd, len, direct);
		return;
	}
	ps = pieces_create(there == IN_PART ? len / GRANULE + 2 : 1, rd);
	if (there == IN_PART)
		cut(ps, rd, len, f->fd, direct);
	else
		piece_add(ps, rd->off, len, direct, true);
	if (ps->n == 1 && !ps->at[0].direct) {
		free(ps);
		rd->state = READ_AT_END;
		rd->at_end = true;
		return;
	}
	thread_waits();
	cut_iov(ps, rd);
	for (unsigned k = 0; k < ps->n; k++)
		async_read_begin(&f->store->async, &ps->at[k].read);
	rd->state = ps;
}

ssize_t dir_read_end(struct store_file *file, struct store_read *rd)
{
	struct dir_file *f = container_of(file, struct dir_file, base);
	struct pieces *ps = rd->state;
	size_t good = 0, directly = 0; /* @good: bytes up to the end of the last piece before which all are complete */
	bool whole = true;

	if (rd->state == READ_AT_END)
		return dir_read(file, rd->iov, rd->n, rd->off);
	thread_waits();
	for (unsigned k = 0; k < ps->n; k++) {
		struct piece *p = &ps->at[k];
		ssize_t got = async_read_end(&p->read);

		if (whole && got > 0)
			good += (size_t)got;
		if (got > 0 && p->direct)
			directly += (size_t)got;
		whole = whole && got == (ssize_t)p->len;
	}
	count(CTR_storage_direct, directly / GAIA_PAGE);
	free(ps);
	return whole ? (ssize_t)good : move_bytes(preadv, f->fd, rd->iov, rd->n, rd->off, good);
}
