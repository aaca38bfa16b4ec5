/*
 * client.c - the calls of gaia/client.h.
 */
#pragma GCC visibility push(default)
#include "gaia/client.h"
#include "gaia/cuda.h"
#pragma GCC visibility pop

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static const struct kind_ops *const kinds[] = {
	&sim_kind,
#ifdef GAIA_CUDA
	&cuda_kind,
#endif
};

/* Turn a negative errno into -1 and errno, as callers of the library expect. */
static int result(int err)
{
	if (err >= 0)
		return err;
	errno = -err;
	return -1;
}

static int begin_call(void)
{
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	return cancel;
}

static void end_call(int *cancel)
{
	pthread_setcancelstate(*cancel, NULL);
}

/*
 * First in every call: keep the thread from being cancelled until the call returns, because poll(2), close(2) and
 * others are cancellation points, and the library calls them with locks and references held. (Nobody can cancel the
 * library's own threads.)
 */
#define NOT_CANCELLED __attribute__((cleanup(end_call), unused)) int cancel = begin_call()

/* ---- devices ---- */

static void describe(const struct gaia_ioc_device *d, struct gaia_device_info *out)
{
	memset(out, 0, sizeof(*out));
	memcpy(out->name, d->name, sizeof(out->name) - 1);
	memcpy(out->kind, d->kind, sizeof(out->kind) - 1);
	memcpy(out->uuid, d->uuid, sizeof(out->uuid));
	out->capacity = d->capacity;
	out->used = d->used;
	out->simulated = d->simulated;
}

int gaia_devices(int fd, struct gaia_device_info *out, int max)
{
	NOT_CANCELLED;
	unsigned total = 0, at = 0;

	if (max < 0 || (max && !out))
		return result(-EINVAL);
	do {
		struct gaia_ioc_devices io = { .first = at };
		int err = wire_first_ioctl(fd, GAIA_IOC_DEVICES, &io);

		if (err)
			return result(err);
		if (io.count > GAIA_DEVICES_AT_ONCE || io.total > INT_MAX)
			return result(-EPROTO);
		total = io.total;
		for (unsigned i = 0; i < io.count && at < (unsigned)max; i++)
			describe(&io.device[i], &out[at++]);
		if (!io.count)
			break;
	} while (at < (unsigned)max && at < total);
	return total;
}

static int find_kind(int fd, unsigned device, struct gaia_ioc_device *found,
		     const struct kind_ops **out)
{
	struct gaia_ioc_devices io = { .first = device };
	int err = wire_first_ioctl(fd, GAIA_IOC_DEVICES, &io);

	if (err)
		return err;
	if (io.count < 1)
		return -ENODEV;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (!strncmp(kinds[i]->kind, io.device[0].kind, sizeof(io.device[0].kind))) {
			*out = kinds[i];
			*found = io.device[0];
			return 0;
		}
	}
	return -ENODEV; /* of a kind that this library was built without */
}

/* ---- mapping ---- */

#define FOR_DETECT (GAIA_FEATURE_DETECT | GAIA_FEATURE_LISTS | GAIA_FEATURE_UNUSED)

/* By the caller's descriptor: the daemon accepts the mapping for that descriptor's file only. */
static int map_ioctl(struct mapping *m, int fd, unsigned device)
{
	struct gaia_ioc_map io = {
		.key = m->conn->key,
		.offset = m->offset,
		.length = m->length,
		.device = device,
		.prot = m->prot,
	};
	int err;

	/* An older daemon finds out itself. */
	if ((m->conn->features & FOR_DETECT) != FOR_DETECT)
		detect_end(m);
	io.flags = m->detect ? GAIA_MAP_DETECTS : 0;
	err = wire_ioctl(fd, GAIA_IOC_MAP, &io);

	m->id = io.map;
	m->release_by = io.release;
	return err;
}

/* Make the mapping known to the daemon, and set m->conn, m->file and m->id. */
static int map_at_daemon(struct mapping *m, int fd, unsigned device)
{
	struct stat st;
	bool fresh;
	int err;

	if (fstat(fd, &st))
		return wire_error();
	if (!S_ISREG(st.st_mode))
		return -ENODEV;
	do {
		err = conn_get(fd, st.st_dev, &m->conn, &fresh);
		if (err)
			return err;
		err = file_get(m->conn, fd, st.st_ino, &m->file);
		if (err) {
			conn_put(m->conn);
			return err;
		}
		err = map_ioctl(m, fd, device);
		if (!err)
			return 0;
		/*
		 * The daemon does not know the connection: it has ended it, or the connection is to an earlier
		 * daemon whose device number (st_dev) was used again.
		 */
		if (err == -ENOTCONN) {
			pthread_mutex_lock(&gaia_lock);
			conn_kill(m->conn, err);
			pthread_mutex_unlock(&gaia_lock);
		}
		file_put(m->file);
		conn_put(m->conn);
	} while (err == -ENOTCONN && !fresh);
	return err;
}

static int unmap_at_daemon(struct mapping *m)
{
	struct gaia_ioc_range io = { .key = m->conn->key, .map = m->id };

	return wire_ioctl(m->file->fd, GAIA_IOC_UNMAP, &io);
}

static int do_mmap(size_t length, int prot, int fd, off_t offset, int device, void **out)
{
	struct gaia_ioc_device found;
	const struct kind_ops *ops;
	struct mapping *m;
	int err;

	if (!length || (prot != PROT_READ && prot != (PROT_READ | PROT_WRITE)) || offset < 0 ||
	    offset % GAIA_PAGE)
		return -EINVAL;
	if (device < 0)
		return -ENODEV;
	err = find_kind(fd, device, &found, &ops);
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
	m->strict = found.flags & GAIA_DEVICE_STRICT && ops->protect;
	err = mapping_reserve(m, &found);
	if (err)
		goto free_mapping;
	detect_init(m);
	err = held_init(m);
	if (!err)
		err = map_at_daemon(m, fd, device);
	if (err)
		goto unreserve;
	err = mapping_add(m);
	if (err)
		goto unmap;
	*out = m->addr;
	return 0;

unmap:
	unmap_at_daemon(m);
	file_put(m->file);
	conn_put(m->conn);
unreserve:
	m->ops->unreserve(m, true);
	detect_end(m);
	held_end(m);
	free(m->own);
free_mapping:
	free(m);
	return err;
}

void *gaia_mmap(size_t length, int prot, int fd, off_t offset, int device)
{
	NOT_CANCELLED;
	void *addr = MAP_FAILED;

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
	NOT_CANCELLED;
	struct mapping *m;
	bool ended = true;
	int err = 0;

	m = mapping_exact(addr, length, &err);
	if (!m)
		return result(err);
	if (m->ops->finish)
		err = m->ops->finish(m, &ended);
	if (!err && !mapping_remove(m))
		err = -EINVAL;
	if (err) {
		mapping_put(m);
		return result(err);
	}
	end_starts(m);
	held_unmapped(m);
	/*
	 * Unmap the memory first: the daemon may use it for others as soon as it is told. Nothing is mapped
	 * at these addresses any more, since the mapping is forgotten. If the daemon is gone there is nobody
	 * to tell, and the call has succeeded.
	 */
	m->ops->unreserve(m, ended);
	unmap_at_daemon(m);
	err = atomic_load(&m->late_error);
	mapping_put(m);
	mapping_put(m); /* the tables' reference */
	return result(err);
}

/* ---- ranges ---- */

/* Find the mapping of a range and describe the range to the daemon. */
static int range_begin(void *addr, size_t length, struct mapping **out, struct gaia_ioc_range *io)
{
	struct mapping *m = mapping_find(addr, length);
	int err;

	if (!m)
		return -EINVAL;
	err = atomic_exchange(&m->late_error, 0);
	if (!err && conn_is_dead(m->conn))
		err = -ENOTCONN;
	if (err) {
		mapping_put(m);
		return err;
	}
	*io = (struct gaia_ioc_range){
		.key = m->conn->key,
		.map = m->id,
		.offset = m->offset + ((char *)addr - m->addr),
		.length = length,
	};
	*out = m;
	return 0;
}

/* The call has ended, with conn_error() of @err. */
static int range_end(struct mapping *m, int err)
{
	err = conn_error(m->conn, err);
	mapping_put(m);
	return result(err);
}

/* After an ACQUIRE: wait until its chunks are mapped. */
static int wait_mapped(struct mapping *m, const struct gaia_ioc_range *io)
{
	return io->seq ? conn_wait(m->conn, io->seq, io->unanswered) : 0;
}

static int acquire_now(struct mapping *m, struct gaia_ioc_range *io)
{
	const struct gaia_ioc_range asked = *io;
	const struct gaia_list_range range = range_of(io);
	int err;

	detect_acquire(m, &range, 1, (int)io->prot, 0);
	err = range_acquire(m, io);
	if (!err)
		err = wait_mapped(m, io);
	detect_settled(m, &range, 1, !err);
	if (!err) {
		held_add(m, &asked);
		detect_acquired(m, &range, 1, (int)asked.prot);
	}
	atomic_thread_fence(memory_order_seq_cst);
	return err;
}

static int release_now(struct mapping *m, struct gaia_ioc_range *io)
{
	const struct gaia_list_range range = range_of(io);

	starts_settle(m, &range, 1);
	atomic_thread_fence(memory_order_seq_cst);
	return range_release(m, io);
}

/* To read, to write, or to overwrite (PROT_WRITE alone). */
static bool prot_is_good(int prot)
{
	return prot && !(prot & ~(PROT_READ | PROT_WRITE));
}

static int may_acquire(const struct mapping *m, int prot)
{
	if (prot & ~m->prot)
		return -EACCES;
	return prot == PROT_WRITE && !(m->conn->features & GAIA_FEATURE_OVERWRITE) ? -ENOSYS : 0;
}

int gaia_acquire(void *addr, size_t length, int prot)
{
	NOT_CANCELLED;
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (!prot_is_good(prot))
		return result(-EINVAL);
	if (!length)
		return 0;
	err = range_begin(addr, length, &m, &io);
	if (err)
		return result(err);
	err = may_acquire(m, prot);
	if (err)
		return range_end(m, err);
	io.prot = prot;
	return range_end(m, acquire_now(m, &io));
}

int gaia_release(void *addr, size_t length)
{
	NOT_CANCELLED;
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
			return -EINVAL;
		out[left++] = (struct gaia_list_range){ m->offset + at, ranges[k].length };
	}
	qsort(out, left, sizeof(*out), by_offset);
	*n_out = left;
	return 0;
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
	if (err) {
		free(*out);
		mapping_put(*m);
	}
	return err;
}

static int acquire_list_now(struct mapping *m, const struct gaia_list_range *list, size_t n, int prot)
{
	int err;

	detect_acquire(m, list, n, prot, 0);
	err = list_acquire(m, list, n, prot);
	detect_settled(m, list, n, !err);
	if (err)
		return err;
	held_add_list(m, list, n, prot);
	detect_acquired(m, list, n, prot);
	return 0;
}

int gaia_acquirev(const struct gaia_range *ranges, size_t n, int prot)
{
	NOT_CANCELLED;
	struct gaia_list_range *list;
	struct mapping *m;
	size_t n_list;
	int err;

	if (!prot_is_good(prot))
		return result(-EINVAL);
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

int gaia_releasev(const struct gaia_range *ranges, size_t n)
{
	NOT_CANCELLED;
	struct gaia_list_range *list;
	struct mapping *m;
	size_t n_list;
	int err;

	err = list_begin(ranges, n, &m, &list, &n_list);
	if (err)
		return err > 0 ? 0 : result(err);
	starts_settle(m, list, n_list);
	atomic_thread_fence(memory_order_seq_cst);
	err = list_release(m, list, n_list);
	free(list);
	return range_end(m, err);
}

int gaia_sync(void *addr, size_t length)
{
	NOT_CANCELLED;
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (!length)
		return 0;
	err = range_begin(addr, length, &m, &io);
	if (err)
		return result(err);
	err = wire_push(m->file->fd, io.offset, length);
	if (!err)
		err = wire_ioctl(m->file->fd, GAIA_IOC_SYNC, &io);
	return range_end(m, err);
}

int gaia_advise(void *addr, size_t length, int advice)
{
	NOT_CANCELLED;
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (advice < GAIA_NORMAL || advice > GAIA_DONTNEED)
		return result(-EINVAL);
	if (!length)
		return 0;
	err = range_begin(addr, length, &m, &io);
	if (err)
		return result(err);
	/* An older daemon reads nothing ahead: there is nothing to advise it on. */
	if (advice < GAIA_WILLNEED && !(m->conn->features & GAIA_FEATURE_ADVICE))
		return range_end(m, 0);
	io.advice = advice;
	return range_end(m, wire_ioctl(m->file->fd, GAIA_IOC_ADVISE, &io));
}

/* ---- acquires that are waited for later ---- */

/* Of nothing: it has ended. */
static int start_nothing(void)
{
	return result(start_begin(NULL, &(struct gaia_ioc_range){ 0 }, NULL, 0));
}

int gaia_acquire_start(void *addr, size_t length, int prot)
{
	NOT_CANCELLED;
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (prot != PROT_READ && prot != (PROT_READ | PROT_WRITE))
		return result(-EINVAL);
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
	NOT_CANCELLED;
	struct gaia_ioc_range io = { .prot = (unsigned)prot };
	struct gaia_list_range *list;
	struct mapping *m;
	size_t n_list;
	int err;

	if (prot != PROT_READ && prot != (PROT_READ | PROT_WRITE))
		return result(-EINVAL);
	err = list_begin(ranges, n, &m, &list, &n_list);
	if (err)
		return err > 0 ? start_nothing() : result(err);
	io.offset = list[0].offset;
	for (size_t k = 0; k < n_list; k++)
		io.length = MAX(io.length, list[k].offset + list[k].length - io.offset);
	err = prot & ~m->prot ? -EACCES : start_begin(m, &io, list, n_list);
	if (err >= 0)
		return err;
	free(list);
	return range_end(m, err);
}

int gaia_wait(int fd)
{
	NOT_CANCELLED;
	int err = start_wait(fd);

	atomic_thread_fence(memory_order_seq_cst);
	return result(err);
}

/* ---- ranges, in the order of a stream ---- */

/* Make room, and have the chunks mapped, since neither may be done while the stream waits. */
static int pin_range(struct mapping *m, struct gaia_ioc_range *io, int prot)
{
	int err;

	io->prot = prot | GAIA_PROT_PIN;
	err = wire_ioctl_once(m->file->fd, GAIA_IOC_ACQUIRE, io);
	if (!err)
		err = wait_mapped(m, io);
	io->seq = io->unanswered = 0;
	return err;
}

int gaia_acquire_on(void *addr, size_t length, int prot, struct CUstream_st *stream)
{
	NOT_CANCELLED;
	struct gaia_ioc_range io;
	struct mapping *m;
	int err;

	if (!prot_is_good(prot))
		return result(-EINVAL);
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
		return range_end(m, acquire_now(m, &io));
	err = pin_range(m, &io, prot);
	if (err)
		return range_end(m, err);
	io.prot = prot | GAIA_PROT_PINNED;
	err = m->ops->queue(m, &io, false, stream);
	if (err) {
		io.prot = GAIA_PROT_PINNED;
		wire_ioctl(m->file->fd, GAIA_IOC_ACQUIRE, &io);
	}
	return range_end(m, err);
}

int gaia_release_on(void *addr, size_t length, struct CUstream_st *stream)
{
	NOT_CANCELLED;
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
	return range_end(m, m->ops->queue(m, &io, true, stream));
}
