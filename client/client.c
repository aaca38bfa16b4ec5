/*
 * client.c - the calls of gaia/client.h.
 */
#pragma GCC visibility push(default)
#include "gaia/client.h"
#include "gaia/cuda.h"
#pragma GCC visibility pop

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/stat.h>

#include "call.h"
#include "sides.h"

/* ---- mapping ---- */

static int do_mmap(size_t length, int prot, int fd, off_t offset, int device, void **out)
{
	struct gaia_ioc_device found;
	const struct kind_ops *ops;
	struct mapping *m;
	int err;

	if (!length)
		return error_because(-EINVAL, "the length is 0");
	if (prot != PROT_READ && prot != (PROT_READ | PROT_WRITE))
		return error_because(-EINVAL, "prot must be PROT_READ or PROT_READ | PROT_WRITE");
	if (offset < 0 || offset % GAIA_PAGE)
		return error_because(-EINVAL, "the offset, %lld, must be a multiple of %u", (long long)offset, GAIA_PAGE);
	err = device_find(fd, device, &found, &ops);
	if (err)
		return err;
	if (length > INT64_MAX - (uint64_t)offset)
		return -EOVERFLOW;

	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->ops = ops;
	m->offset = offset;
	m->length = length;
	m->prot = prot;
	m->device = device_number(device);
	memcpy(m->device_name, found.name, sizeof(m->device_name) - 1);
	memcpy(m->device_uuid, found.uuid, sizeof(m->device_uuid));
	m->strict = found.flags & GAIA_DEVICE_STRICT && ops->protect;
	err = mapping_reserve(m, &found);
	if (err)
		goto free_mapping;
	detect_init(m);
	err = held_init(m);
	if (!err)
		err = map_at_daemon(m, fd);
	if (err)
		goto unreserve;
	add_side(m, fd);
	err = mapping_add(m);
	if (err)
		goto unmap;
	/* The turns thread must not wait for it. */
	if (m->detect && lists_prepare(m))
		detect_lost(m);
	*out = m->addr;
	(void)conn_leave(m->conn, USE_MAP, 0);
	return 0;

unmap:
	unmap_at_daemon(m);
	m->ops->unreserve(m, true);
	remove_side(m);
	(void)conn_leave(m->conn, USE_MAP, 0);
	mapping_disconnect(m);
	goto end_tables;
unreserve:
	m->ops->unreserve(m, true);
end_tables:
	detect_end(m);
	held_end(m);
	free(m->own);
	free(m->extents);
free_mapping:
	free(m);
	return err;
}

void *gaia_mmap(size_t length, int prot, int fd, off_t offset, int device)
{
	CALL();
	void *addr = MAP_FAILED;

	error_about_fd(fd);
	result(do_mmap(length, prot, fd, offset, device, &addr));
	return addr;
}

#define REPORTED 16u

/* End the acquires of a mapping that is being unmapped. */
static void end_starts(struct mapping *m)
{
	struct gaia_ioc_range unwaited[REPORTED];
	unsigned n = starts_unmapped(m, unwaited, REPORTED);

	for (unsigned i = 0; i < n; i++)
		held_unwaited(m, &unwaited[i]);
}

int gaia_munmap(void *addr, size_t length)
{
	CALL();
	struct mapping *m;
	struct late_error late;
	bool ended = true, inside;
	int err = 0;

	error_about_address(addr, length);
	m = mapping_exact(addr, length, &err);
	if (!m && err == -EINVAL)
		error_because(err, "no mapping has this address and length: give those of gaia_mmap(), of the whole mapping");
	if (!m)
		return result(err);
	error_about_mapping(m, m->offset, length);
	if (m->ops->finish)
		err = m->ops->finish(m, &ended);
	if (err)
		return call_end(m, err);
	/* Not while the connection moves, with all mappings that are known. */
	inside = !conn_enter(m->conn, USE_OTHER);
	if (!mapping_remove(m)) {
		if (inside)
			(void)conn_leave(m->conn, USE_OTHER, 0);
		return call_end(m, -EINVAL);
	}
	end_starts(m);
	held_unmapped(m);
	/*
	 * Unmap the memory first: the daemon may use it for others as soon as it is told. Nothing is mapped
	 * at these addresses any more, since the mapping is forgotten. If the daemon is gone there is nobody
	 * to tell, and the call has succeeded.
	 */
	m->ops->unreserve(m, ended);
	if (m->sides)
		unmap_at_daemon(m->sides->reader);
	unmap_at_daemon(m);
	if (inside)
		(void)conn_leave(m->conn, USE_OTHER, 0);
	err = turns_take_error(m, &late);
	if (err)
		error_because(err, "it is unmapped, but an earlier " LATE_FORMAT " has failed", LATE_ARGS(late));
	mapping_put(m); /* the tables' reference */
	return call_end(m, err);
}

/* ---- ranges ---- */

/* Find the mapping of a range and describe the range to the daemon. */
static int range_begin(void *addr, size_t length, struct mapping **out, struct gaia_ioc_range *io)
{
	struct mapping *m = mapping_find(addr, length);
	struct late_error late;
	int err;

	error_about_address(addr, length);
	if (!m)
		return error_because(-EINVAL, "the range is not inside one mapping of gaia_mmap()'s");
	error_about_mapping(m, m->offset + (uint64_t)((char *)addr - m->addr), length);
	err = turns_take_error(m, &late);
	if (err)
		error_because(err, "this call has done nothing, because an earlier " LATE_FORMAT " has failed", LATE_ARGS(late));
	else if (conn_is_dead(m->conn))
		err = -ENOTCONN;
	if (err) {
		call_end(m, err);
		return err;
	}
	*io = (struct gaia_ioc_range){
		.offset = m->offset + ((char *)addr - m->addr),
		.length = length,
	};
	*out = m;
	return 0;
}

/* Whom the daemon is to know it by. Inside. */
static void range_aim(struct mapping *m, struct gaia_ioc_range *io)
{
	io->key = m->conn->key;
	io->map = m->id;
}

/* The call has ended, with conn_error() of @err. */
static int range_end(struct mapping *m, int err)
{
	return call_end(m, conn_error(m->conn, err));
}

/* After an ACQUIRE: wait until its chunks are mapped. */
static int wait_mapped(struct mapping *m, const struct gaia_ioc_range *io)
{
	return io->seq ? conn_wait(m->conn, io->seq, io->unanswered) : 0;
}

static int acquire_inside(struct mapping *m, struct gaia_ioc_range io)
{
	const struct gaia_ioc_range asked = io;
	const struct gaia_list_range range = range_of(&io);
	int err;

	if (m->sides) {
		err = sides_acquire(m, &range, 1, (int)io.prot);
	} else {
		detect_acquire(m, &range, 1, (int)io.prot, 0);
		err = range_acquire(m, &io);
		if (!err)
			err = wait_mapped(m, &io);
		detect_settled(m, &range, 1, !err);
	}
	if (err)
		return err;
	held_add(m, &asked);
	detect_acquired(m, &range, 1, (int)asked.prot);
	return 0;
}

static int acquire_now(struct mapping *m, const struct gaia_ioc_range *io)
{
	int err;

	do {
		err = mapping_enter(m, USE_ACQUIRE);
		if (err)
			return err;
		err = acquire_inside(m, *io);
	} while (mapping_leave(m, USE_ACQUIRE, err));
	atomic_thread_fence(memory_order_seq_cst);
	return err;
}

static int release_now(struct mapping *m, struct gaia_ioc_range *io)
{
	const struct gaia_list_range range = range_of(io);
	int err, push_err = 0;

	starts_settle(m, &range, 1);
	atomic_thread_fence(memory_order_seq_cst);
	do {
		err = mapping_enter(m, USE_RELEASE);
		if (err)
			return err;
		err = m->sides ? sides_release(m, &range, 1, &push_err) : range_release(m, io, &push_err);
	} while (mapping_leave(m, USE_RELEASE, err));
	return err;
}

/* To read, to write, or to overwrite (PROT_WRITE alone). */
static bool prot_is_good(int prot)
{
	return prot && !(prot & ~(PROT_READ | PROT_WRITE));
}

#define PROT_IS_BAD "prot must be PROT_READ, PROT_READ | PROT_WRITE, or PROT_WRITE to overwrite"
#define START_PROT_IS_BAD "prot must be PROT_READ or PROT_READ | PROT_WRITE"

static int may_acquire(const struct mapping *m, int prot)
{
	if (prot & ~m->prot)
		return -EACCES;
	return prot == PROT_WRITE && !(m->conn->features & GAIA_FEATURE_OVERWRITE) ? -ENOSYS : 0;
}

int gaia_acquire(void *addr, size_t length, int prot)
{
	CALL();
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (!prot_is_good(prot))
		return result(error_because(-EINVAL, PROT_IS_BAD));
	if (!length)
		return 0;
	err = range_begin(addr, length, &m, &io);
	if (err)
		return result(err);
	err = may_acquire(m, prot);
	if (err)
		return range_end(m, err);
	io.prot = prot;
	return range_end(m, error_of_room(m, length, acquire_now(m, &io)));
}

int gaia_release(void *addr, size_t length)
{
	CALL();
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (!length)
		return 0;
	err = range_begin(addr, length, &m, &io);
	if (err)
		return result(err);
	return range_end(m, release_now(m, &io));
}

/* ---- lists of ranges ---- */

static int by_offset(const void *a, const void *b)
{
	const struct gaia_list_range *x = a, *y = b;

	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The ranges as the daemon knows them: without empty ones, and sorted. All must lie in the mapping. */
static int list_fill(const struct mapping *m, const struct gaia_range *ranges, size_t n, struct gaia_list_range *out, size_t *n_out)
{
	size_t left = 0;

	for (size_t k = 0; k < n; k++) {
		uint64_t at = (uint64_t)((uintptr_t)ranges[k].addr - (uintptr_t)m->addr);

		if (!ranges[k].length)
			continue;
		if (at >= m->length || ranges[k].length > m->length - at)
			return error_because(-EINVAL, "range %zu does not lie in the mapping of the first", k);
		out[left++] = (struct gaia_list_range){ m->offset + at, ranges[k].length };
	}
	qsort(out, left, sizeof(*out), by_offset);
	*n_out = left;
	return 0;
}

/* From the first byte of a list to its last. */
static uint64_t list_span(const struct gaia_list_range *list, size_t n)
{
	uint64_t end = 0;

	for (size_t k = 0; k < n; k++)
		end = MAX(end, list[k].offset + list[k].length);
	return end - list[0].offset;
}

/* Find the mapping of the ranges. 1: they are all empty. */
static int list_begin(const struct gaia_range *ranges, size_t n, struct mapping **m, struct gaia_list_range **out, size_t *n_out)
{
	struct gaia_ioc_range io;
	size_t first = 0;
	int err;

	if (n > GAIA_LIST_MOST)
		return -E2BIG;
	while (first < n && !ranges[first].length)
		first++;
	if (first == n)
		return 1;
	err = range_begin(ranges[first].addr, ranges[first].length, m, &io);
	if (err)
		return err;
	*out = NULL;
	if (!((*m)->conn->features & GAIA_FEATURE_LISTS))
		err = -ENOSYS;
	else if (!(*out = malloc((n - first) * sizeof(**out))))
		err = -ENOBUFS;
	else
		err = list_fill(*m, ranges + first, n - first, *out, n_out);
	if (!err)
		error_about_mapping(*m, (*out)[0].offset, list_span(*out, *n_out));
	if (err) {
		free(*out);
		call_end(*m, err);
	}
	return err;
}

static int acquire_list_inside(struct mapping *m, const struct gaia_list_range *list, size_t n, int prot)
{
	int err;

	if (m->sides) {
		err = sides_acquire(m, list, n, prot);
	} else {
		detect_acquire(m, list, n, prot, 0);
		err = list_acquire(m, list, n, prot);
		detect_settled(m, list, n, !err);
	}
	if (err)
		return err;
	held_add_list(m, list, n, prot);
	detect_acquired(m, list, n, prot);
	return 0;
}

static int acquire_list_now(struct mapping *m, const struct gaia_list_range *list, size_t n, int prot)
{
	int err;

	do {
		err = mapping_enter(m, USE_ACQUIRE);
		if (err)
			return err;
		err = acquire_list_inside(m, list, n, prot);
	} while (mapping_leave(m, USE_ACQUIRE, err));
	return err;
}

int gaia_acquirev(const struct gaia_range *ranges, size_t n, int prot)
{
	CALL();
	struct gaia_list_range *list;
	struct mapping *m;
	size_t n_list;
	int err;

	if (!prot_is_good(prot))
		return result(error_because(-EINVAL, PROT_IS_BAD));
	err = list_begin(ranges, n, &m, &list, &n_list);
	if (err)
		return err > 0 ? 0 : result(err);
	err = may_acquire(m, prot);
	if (!err)
		err = acquire_list_now(m, list, n_list, prot);
	atomic_thread_fence(memory_order_seq_cst);
	free(list);
	return range_end(m, err);
}

static int release_list_now(struct mapping *m, const struct gaia_list_range *list, size_t n)
{
	int err, push_err = 0;

	do {
		err = mapping_enter(m, USE_RELEASE);
		if (err)
			return err;
		err = m->sides ? sides_release(m, list, n, &push_err) : list_release(m, list, n, &push_err);
	} while (mapping_leave(m, USE_RELEASE, err));
	return err;
}

int gaia_releasev(const struct gaia_range *ranges, size_t n)
{
	CALL();
	struct gaia_list_range *list;
	struct mapping *m;
	size_t n_list;
	int err;

	err = list_begin(ranges, n, &m, &list, &n_list);
	if (err)
		return err > 0 ? 0 : result(err);
	starts_settle(m, list, n_list);
	atomic_thread_fence(memory_order_seq_cst);
	err = release_list_now(m, list, n_list);
	free(list);
	return range_end(m, err);
}

static int sync_inside(struct mapping *m, struct gaia_ioc_range io)
{
	int err;

	range_aim(m, &io);
	err = wire_push(m->file->fd, io.offset, io.length);
	return err ? err : wire_ioctl(m->file->fd, GAIA_IOC_SYNC, &io);
}

static int publish_inside(struct mapping *m, struct gaia_ioc_range io)
{
	io.prot = m->conn->features & GAIA_FEATURE_PUBLISHES ? GAIA_SYNC_PUBLISH : 0;
	return sync_inside(m, io);
}

static int advise_inside(struct mapping *m, struct gaia_ioc_range io)
{
	/* An older daemon reads nothing ahead: there is nothing to advise it on. */
	if (io.advice < GAIA_ADVISE_WILLNEED && !(m->conn->features & GAIA_FEATURE_ADVICE))
		return 0;
	range_aim(m, &io);
	return m->sides ? sides_advise(m, &io) : wire_ioctl(m->file->fd, GAIA_IOC_ADVISE, &io);
}

/* A call that begins and ends no hold. */
static int do_range(struct mapping *m, const struct gaia_ioc_range *io, int (*fn)(struct mapping *m, struct gaia_ioc_range io))
{
	int err;

	do {
		err = mapping_enter(m, USE_OTHER);
		if (err)
			return err;
		err = fn(m, *io);
	} while (mapping_leave(m, USE_OTHER, err));
	return err;
}

/* gaia_sync() and gaia_publish(). */
static int store_range(void *addr, size_t length, int (*fn)(struct mapping *m, struct gaia_ioc_range io))
{
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (!length)
		return 0;
	err = range_begin(addr, length, &m, &io);
	if (err)
		return result(err);
	return range_end(m, do_range(m, &io, fn));
}

int gaia_sync(void *addr, size_t length)
{
	CALL();
	return store_range(addr, length, sync_inside);
}

int gaia_publish(void *addr, size_t length)
{
	CALL();
	return store_range(addr, length, publish_inside);
}

int gaia_advise(void *addr, size_t length, int advice)
{
	CALL();
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (advice < GAIA_NORMAL || advice > GAIA_DONTNEED)
		return result(error_because(-EINVAL, "there is no advice %d", advice));
	if (!length)
		return 0;
	err = range_begin(addr, length, &m, &io);
	if (err)
		return result(err);
	io.advice = advice;
	return range_end(m, do_range(m, &io, advise_inside));
}

/* ---- acquires that are waited for later ---- */

/* Of nothing: it has ended. */
static int start_nothing(void)
{
	return result(start_begin(NULL, &(struct gaia_ioc_range){ 0 }, NULL, 0));
}

int gaia_acquire_start(void *addr, size_t length, int prot)
{
	CALL();
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (prot != PROT_READ && prot != (PROT_READ | PROT_WRITE))
		return result(error_because(-EINVAL, START_PROT_IS_BAD));
	if (!length)
		return start_nothing();
	err = range_begin(addr, length, &m, &io);
	if (err)
		return result(err);
	io.prot = prot;
	err = prot & ~m->prot ? -EACCES : start_begin(m, &io, NULL, 0);
	return err < 0 ? range_end(m, err) : err;
}

int gaia_acquirev_start(const struct gaia_range *ranges, size_t n, int prot)
{
	CALL();
	struct gaia_ioc_range io = { .prot = (unsigned)prot };
	struct gaia_list_range *list;
	struct mapping *m;
	size_t n_list;
	int err;

	if (prot != PROT_READ && prot != (PROT_READ | PROT_WRITE))
		return result(error_because(-EINVAL, START_PROT_IS_BAD));
	err = list_begin(ranges, n, &m, &list, &n_list);
	if (err)
		return err > 0 ? start_nothing() : result(err);
	io.offset = list[0].offset;
	io.length = list_span(list, n_list);
	err = prot & ~m->prot ? -EACCES : start_begin(m, &io, list, n_list);
	if (err >= 0)
		return err;
	free(list);
	return range_end(m, err);
}

int gaia_wait(int fd)
{
	CALL();
	int err = start_wait(fd);

	atomic_thread_fence(memory_order_seq_cst);
	return result(err);
}

/* ---- ranges, in the order of a stream ---- */

/* Make room, and have the chunks mapped, since neither may be done while the stream waits. */
static int pin_range(struct mapping *m, struct gaia_ioc_range *io, int prot)
{
	/* Another daemon than that of gaia_mmap() has none for this connection yet, and the turns thread does not wait for it. */
	int err = m->detect ? lists_prepare(m) : 0;

	if (err == -ENOTCONN)
		return err;
	if (err)
		detect_lost(m);
	range_aim(m, io);
	io->prot = prot | GAIA_PROT_PIN;
	err = wire_ioctl_once(m->file->fd, GAIA_IOC_ACQUIRE, io);
	if (!err)
		err = wait_mapped(m, io);
	io->seq = io->unanswered = 0;
	return err;
}

static int acquire_on_inside(struct mapping *m, struct gaia_ioc_range io, struct CUstream_st *stream)
{
	uint32_t prot = io.prot;
	int err = pin_range(m, &io, (int)prot);

	if (err)
		return error_of_room(m, io.length, err);
	io.prot = prot | GAIA_PROT_PINNED;
	err = m->ops->queue(m, &io, false, stream);
	if (err) {
		io.prot = GAIA_PROT_PINNED;
		wire_ioctl(m->file->fd, GAIA_IOC_ACQUIRE, &io);
	}
	return err;
}

static int release_on_inside(struct mapping *m, struct gaia_ioc_range io, struct CUstream_st *stream)
{
	return m->ops->queue(m, &io, true, stream);
}

/* What is queued is announced, or held, and keeps the mount where it is until its turn has come. */
static int do_on(struct mapping *m, const struct gaia_ioc_range *io, enum use use,
		 int (*fn)(struct mapping *m, struct gaia_ioc_range io, struct CUstream_st *stream), struct CUstream_st *stream)
{
	int err;

	do {
		err = mapping_enter(m, use);
		if (err)
			return err;
		err = fn(m, *io, stream);
	} while (mapping_leave(m, use, err));
	return err;
}

int gaia_acquire_on(void *addr, size_t length, int prot, struct CUstream_st *stream)
{
	CALL();
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (!prot_is_good(prot))
		return result(error_because(-EINVAL, PROT_IS_BAD));
	if (!length)
		return 0;
	err = range_begin(addr, length, &m, &io);
	if (err)
		return result(err);
	err = may_acquire(m, prot);
	if (err)
		return range_end(m, err);
	io.prot = prot;
	if (!m->ops->queue) /* there are no streams: everything has been done */
		return range_end(m, error_of_room(m, length, acquire_now(m, &io)));
	return range_end(m, do_on(m, &io, USE_ACQUIRE, acquire_on_inside, stream));
}

int gaia_release_on(void *addr, size_t length, struct CUstream_st *stream)
{
	CALL();
	struct gaia_list_range range;
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (!length)
		return 0;
	err = range_begin(addr, length, &m, &io);
	if (err)
		return result(err);
	if (!m->ops->queue)
		return range_end(m, release_now(m, &io));
	range = range_of(&io);
	starts_settle(m, &range, 1);
	return range_end(m, do_on(m, &io, USE_RELEASE, release_on_inside, stream));
}
