/*
 * ring.c - requests by io_uring instead of read(2) and write(2) of /dev/fuse.
 *
 * The kernel has a queue of requests for each CPU, and puts a request into an entry: buffers of ours, in which it
 * finds the answer as well. Here each entry has a thread, with an io_uring of its own: it waits for a request, carries it
 * out as the threads of serve.c do, and hands in the answer with the system call that waits for the next request. So the
 * rules are those of every thread that serves, and nothing depends on which thread a request meets. (libfuse
 * 3.18 has one thread for all entries of a CPU: a handler that waits holds up the other entries' requests. And what
 * a worker of ours answers there, it hands in itself; the entry's next request is then delivered to that worker, and lost
 * if it waits in the kernel, for that very request perhaps.)
 *
 * A request that a worker is to answer keeps its entry, and so its thread, while it waits for other requests (rule 6 in
 * ../README.md). With /dev/fuse there is always a thread for those; here there must be an entry of the queue that they
 * meet. So not all may be kept: ring_keep() refuses, and who asked is told to come again, or is answered in another way.
 *
 * That some are not kept is enough only because of how the kernel (6.14 to 6.18) hands requests out: one that waits in a queue
 * is given to an entry whose answer it takes, not to one that is registered later and idle. So nothing is answered
 * before all entries are registered. From then on, while requests wait in a queue, one of its entries is at work that is not
 * kept, and will come for them: an entry goes idle only when its queue is empty; and a request that may be kept waits
 * in a queue only if none was idle when it came (it cannot come before something is answered: it needs an open file). What
 * else waits there while entries are idle is never kept: what came before all were registered, and the kernel's own
 * requests, readahead and write-back, when it lets more of them in. It is behind an entry that is at work.
 *
 * FORGET and INTERRUPT still come by /dev/fuse, as INIT does. Nothing else comes there: from the answer to INIT on, the
 * kernel holds all requests back until each of its queues has an entry, for ever if need be. So whether it will take entries
 * is found out before it is told of a ring, and if it does not take one in the end, the session ends.
 */
#include "base/fault.h"
#include "fuse/internal.h"

#include <errno.h>
#include <liburing.h>
#include <linux/fuse.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PARAMETER "/sys/module/fuse/parameters/enable_uring"
#define POSSIBLE_CPUS "/sys/devices/system/cpu/possible"
/* Its first line names them, too. */
#define SOFTIRQS "/proc/softirqs"

/*
 * Entries of a queue. Workers may keep three quarters: the others are for what may wait for storage; and but five eighths
 * of ioctls and releases, which can come again, so that a burst of those leaves room for who asks about holes. On
 * machines with many CPUs a program's requests meet many queues, and its threads are not there for each.
 */
#define ENTRIES_ALL 256u
#define ENTRIES_MAX 16u
#define ENTRIES_MIN 8u

/*
 * libfuse wants a request in one piece: header and first argument are put right before the other arguments, which
 * need not be copied then.
 */
#define HEADROOM 4096
#define HEADER_ROOM 4096

/* ---- the kernel's interface: newer than Debian 12's <linux/fuse.h> ---- */

enum { RING_REGISTER = 1, RING_COMMIT_AND_FETCH = 2 };

struct ring_header {
	char in_out[128];	/* fuse_in_header; then fuse_out_header */
	char first[128];	/* the first argument */
	uint64_t flags;
	uint64_t commit_id;
	uint32_t payload_bytes; /* the other arguments; then the answer behind its header */
	uint32_t padding;
	uint64_t reserved;
};
_Static_assert(sizeof(struct ring_header) == 288, "as the kernel has it");

struct ring_command {
	uint64_t flags;
	uint64_t commit_id;
	uint16_t queue;
	uint8_t padding[6];
};
_Static_assert(sizeof(struct ring_command) == 24, "as the kernel has it");

/* ---- ours ---- */

struct queue {
	/* Constant. */
	struct ring *ring;
	unsigned cpu;

	atomic_uint kept; /* by requests that workers answer */
};

/* Lives as long as the ring. */
struct ring_entry {
	/* Constant. */
	struct queue *queue;
	struct ring_entry *next;
	struct ring_header *header;
	char *payload; /* FS_MAX_WRITE bytes */
	struct iovec buffers[2];
	pthread_t thread;

	/* The thread's. */
	struct io_uring io;
	bool kept;

	/* Of the request that is not answered yet; else 0. The kernel gives no number twice. */
	atomic_uint_least64_t unique;
	sem_t answered;
};

struct ring {
	/* Constant once ring_create() returns. */
	struct fs *fs;
	unsigned n_entries; /* of all queues */
	unsigned may_keep[2]; /* of each queue; enum kept */
	struct ring_entry *entries;

	sem_t prepared;	/* posted by each thread; then: */
	atomic_int error; /* of a thread, or of an entry that the kernel does not take or has lost; 0 */
	bool live;	/* there is a ring for the kernel; set before... */
	sem_t go;	/* ...each thread goes on */
	pthread_barrier_t registered;

	struct queue queue[];
};

/* Whose request this thread carries out or, a worker, answers; NULL: it came by /dev/fuse. */
static __thread struct ring_entry *own;

/* ---- talking to the kernel ---- */

static void prepare(struct ring_entry *e, unsigned command, uint64_t commit_id)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&e->io); /* there is one: nothing else is under way */
	struct ring_command cmd = { .commit_id = commit_id, .queue = (uint16_t)e->queue->cpu };

	io_uring_prep_rw(IORING_OP_URING_CMD, sqe, fuse_session_fd(e->queue->ring->fs->session),
			 e->buffers, ARRAY_LEN(e->buffers), 0);
	sqe->cmd_op = command;
	sqe->__pad1 = 0;
	memcpy((char *)sqe + offsetof(struct io_uring_sqe, cmd), &cmd, sizeof(cmd));
}

/* The next request is in the buffers: 0. Else the entry is not the kernel's any more. */
static int await(struct ring_entry *e)
{
	struct fs *fs = e->queue->ring->fs;
	struct io_uring_cqe *cqe;
	int err;

	do {
		err = io_uring_submit_and_wait(&e->io, 1);
		if (fs->stopping)
			return -ECANCELED;
		if (err < 0 && err != -EINTR && err != -EAGAIN)
			return err;
	} while (io_uring_peek_cqe(&e->io, &cqe));
	err = cqe->res;
	io_uring_cqe_seen(&e->io, cqe);
	return err;
}

static struct fuse_buf request_of(struct ring_entry *e)
{
	struct fuse_in_header *in = (struct fuse_in_header *)e->header->in_out;
	size_t first = in->len - sizeof(*in) - e->header->payload_bytes;
	char *at = e->payload - first - sizeof(*in);

	bug_on(first > sizeof(e->header->first));
	memcpy(at, in, sizeof(*in));
	memcpy(at + sizeof(*in), e->header->first, first);
	return (struct fuse_buf){ .mem = at, .size = in->len };
}

static void answer(struct ring_entry *e, const struct iovec *iov, int count)
{
	struct fuse_out_header *out = (struct fuse_out_header *)e->header->in_out;
	size_t n = 0;

	memcpy(out, iov[0].iov_base, sizeof(*out));
	for (int i = 1; i < count; i++) {
		bug_on(iov[i].iov_len > FS_MAX_WRITE - n);
		memcpy(e->payload + n, iov[i].iov_base, iov[i].iov_len);
		n += iov[i].iov_len;
	}
	e->header->payload_bytes = (uint32_t)n;
	e->unique = 0;
	sem_post(&e->answered);
}

bool ring_answer(const struct iovec *iov, int count)
{
	const struct fuse_out_header *out = iov[0].iov_base;

	/* Notifications have no number. */
	if (!own || !out->unique || own->unique != out->unique)
		return false;
	answer(own, iov, count);
	return true;
}

/* ---- the threads ---- */

bool ring_keep(enum kept kind, struct ring_entry **entry)
{
	struct queue *q;

	*entry = own;
	if (!own)
		return true;
	q = own->queue;
	own->kept = atomic_fetch_add(&q->kept, 1) < q->ring->may_keep[kind];
	if (!own->kept)
		atomic_fetch_sub(&q->kept, 1);
	return own->kept;
}

void ring_resume(struct ring_entry *entry)
{
	own = entry;
}

/* Whether it was answered; else everything ends. */
static bool carry_out(struct ring_entry *e)
{
	struct fs *fs = e->queue->ring->fs;
	struct fuse_buf buf = request_of(e);

	e->unique = ((struct fuse_in_header *)buf.mem)->unique;
	serve_one(fs, &buf);
	while (sem_wait(&e->answered))
		if (fs->stopping)
			return false;
	if (e->kept)
		atomic_fetch_sub(&e->queue->kept, 1);
	e->kept = false;
	return true;
}

/* Before INIT is answered the kernel has one answer to who may register entries. */
static int probe(struct ring_entry *e)
{
	int err;

	prepare(e, RING_REGISTER, 0);
	err = await(e);
	return err == -EAGAIN ? 0 : err ? err : -EPROTO;
}

static int prepare_thread(struct ring_entry *e)
{
	int err = cred_thread_init();

	if (err)
		return err;
	/* It belongs to this thread from here on. (Debian 12's liburing does not export its function for this.) */
	if (syscall(SYS_io_uring_register, e->io.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0))
		return -errno;
	return e->next ? 0 : probe(e); /* one will do */
}

/* The kernel does not have the entry (any more). */
static void lost(struct ring *ring, int err)
{
	int none = 0;

	if (err == -ENOTCONN || err == -ECONNABORTED || err == -ECANCELED) /* the session has ended */
		return;
	if (!atomic_compare_exchange_strong(&ring->error, &none, err))
		return;
	log_error("fuse: requests by io_uring: %s; the mount ends (--transport dev does without)", strerror(-err));
	serve_end(ring->fs);
}

static int register_entry(struct ring_entry *e)
{
	struct io_uring_cqe *cqe;
	int n = fault_point("ring.register");

	if (n)
		return n;
	prepare(e, RING_REGISTER, 0);
	n = io_uring_submit(&e->io);
	if (n != 1)
		return n < 0 ? n : -EIO;
	/* Refusals come at once. A request waits for await(). */
	return io_uring_peek_cqe(&e->io, &cqe) ? 0 : MIN(cqe->res, 0);
}

/* The kernel knows that there is a ring. */
static int enter(struct ring_entry *e)
{
	struct ring *ring = e->queue->ring;
	int err = register_entry(e);

	if (err)
		lost(ring, err);
	if (pthread_barrier_wait(&ring->registered) == PTHREAD_BARRIER_SERIAL_THREAD && !ring->error)
		ring->fs->config.ready(ring->fs->config.arg);
	pthread_barrier_wait(&ring->registered);
	return err;
}

static void *serve(void *arg)
{
	struct ring_entry *e = arg;
	struct ring *ring = e->queue->ring;
	int err;

	thread_set_name("gaia-ring");
	own = e;
	err = prepare_thread(e);
	if (err)
		ring->error = err;
	sem_post(&ring->prepared);
	while (sem_wait(&ring->go))
		;
	if (!ring->live)
		return NULL;

	err = enter(e);
	while (!err && !(err = await(e))) {
		uint64_t commit_id = e->header->commit_id;

		if (!carry_out(e))
			return NULL;
		prepare(e, RING_COMMIT_AND_FETCH, commit_id);
	}
	lost(ring, err);
	return NULL;
}

/* ---- its life ---- */

static void free_entry(struct ring_entry *e)
{
	io_uring_queue_exit(&e->io);
	sem_destroy(&e->answered);
	munmap(e->payload - HEADROOM, HEADROOM + FS_MAX_WRITE + HEADER_ROOM);
	free(e);
}

static int make_entry(struct queue *q, struct ring_entry **out)
{
	/* Nothing interrupts the thread: the kernel does its part when the thread waits. A little faster. */
	struct io_uring_params params = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			 IORING_SETUP_R_DISABLED,
	};
	struct ring_entry *e = calloc(1, sizeof(*e));
	char *memory;
	int err = -ENOMEM;

	if (!e)
		return err;
	memory = mmap(NULL, HEADROOM + FS_MAX_WRITE + HEADER_ROOM, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		goto free_e;
	err = io_uring_queue_init_params(1, &e->io, &params);
	if (err)
		goto unmap;
	e->queue = q;
	e->payload = memory + HEADROOM;
	e->header = (struct ring_header *)(e->payload + FS_MAX_WRITE);
	e->buffers[0] = (struct iovec){ e->header, sizeof(*e->header) };
	e->buffers[1] = (struct iovec){ e->payload, FS_MAX_WRITE };
	sem_init(&e->answered, 0, 0);
	*out = e;
	return 0;

unmap:
	munmap(memory, HEADROOM + FS_MAX_WRITE + HEADER_ROOM);
free_e:
	free(e);
	return err;
}

static int add_entry(struct queue *q)
{
	struct ring *ring = q->ring;
	struct ring_entry *e;
	int err;

	err = make_entry(q, &e);
	if (err)
		return err;
	e->next = ring->entries;
	err = -pthread_create(&e->thread, NULL, serve, e);
	if (err) {
		free_entry(e);
		return err;
	}
	ring->entries = e;
	return 0;
}

/* The first line of a file; -errno. */
static int read_line(const char *path, char **line)
{
	FILE *file = fopen(path, "re");
	size_t room = 0;
	int err = 0;

	if (!file)
		return -errno;
	*line = NULL;
	if (getline(line, &room, file) < 0) {
		free(*line);
		err = -EIO;
	}
	fclose(file);
	return err;
}

/* The columns of /proc/softirqs, one for each possible CPU. */
static unsigned count_columns(void)
{
	unsigned n = 0;
	char *line;

	if (read_line(SOFTIRQS, &line))
		return 0;
	for (const char *at = line; (at = strstr(at, "CPU")); at++)
		n++;
	free(line);
	return n;
}

/*
 * "0" or "0-7": the kernel counts on there being no gaps. It wants a queue for each. In a container the file may be about
 * other CPUs than the kernel's, so another one must agree.
 */
static int count_cpus(unsigned *n)
{
	char *line, end = '\0';
	unsigned last = 0;
	int err = read_line(POSSIBLE_CPUS, &line);

	if (err)
		return err;
	if (strcmp(line, "0\n") && (sscanf(line, "0-%u%c", &last, &end) != 2 || end != '\n'))
		err = -EINVAL;
	free(line);
	if (!err && count_columns() != last + 1)
		err = -EINVAL;
	*n = last + 1;
	return err;
}

/* NULL: it allows it. */
static const char *check_parameter(void)
{
	FILE *file = fopen(PARAMETER, "re");
	int c;

	if (!file)
		return "the kernel does not have it (Linux 6.14 and newer may)";
	c = fgetc(file);
	fclose(file);
	return c == 'Y' ? NULL : "the kernel has it switched off; `echo Y > " PARAMETER "` allows it";
}

static int create(struct fs *fs, unsigned n_queues)
{
	struct ring *ring = calloc(1, sizeof(*ring) + n_queues * sizeof(ring->queue[0]));
	unsigned entries = MAX(ENTRIES_MIN, MIN(ENTRIES_MAX, ENTRIES_ALL / n_queues));
	int err = 0;

	if (!ring)
		return -ENOMEM;
	ring->fs = fs;
	ring->n_entries = n_queues * entries;
	ring->may_keep[KEPT_SEEK] = entries * 3 / 4;
	ring->may_keep[KEPT_OTHER] = entries * 5 / 8;
	sem_init(&ring->prepared, 0, 0);
	sem_init(&ring->go, 0, 0);
	pthread_barrier_init(&ring->registered, NULL, ring->n_entries);
	fs->ring = ring;
	for (unsigned i = 0; i < n_queues; i++) {
		ring->queue[i].ring = ring;
		ring->queue[i].cpu = i;
	}
	for (unsigned i = 0; i < ring->n_entries && !err; i++)
		err = add_entry(&ring->queue[i % n_queues]);
	for (struct ring_entry *e = ring->entries; e; e = e->next)
		while (sem_wait(&ring->prepared))
			;
	if (!err)
		err = ring->error;
	if (err)
		ring_destroy(fs);
	else
		inode_share_fds(fs, ring->n_entries);
	return err;
}

void ring_create(struct fs *fs, const char **why)
{
	unsigned n;
	int err;

	*why = check_parameter();
	if (*why)
		return;
	if (count_cpus(&n)) {
		*why = "the CPUs that there may be are not 0 to some number, or " POSSIBLE_CPUS " and " SOFTIRQS
		       " do not agree on that";
		return;
	}
	err = create(fs, n);
	if (err == -EPERM || err == -EACCES)
		*why = "io_uring is forbidden (sysctl kernel.io_uring_disabled, a container's seccomp filter, or "
		       "SELinux)";
	else if (err)
		*why = strerror(-err);
}

static void let_go(struct ring *ring)
{
	for (unsigned i = 0; i < ring->n_entries; i++)
		sem_post(&ring->go);
}

void ring_start(struct ring *ring)
{
	ring->live = true;
	let_go(ring);
}

void ring_destroy(struct fs *fs)
{
	struct ring *ring = fs->ring;
	struct ring_entry *e;

	if (!ring->live)
		let_go(ring);
	for (e = ring->entries; e; e = e->next)
		serve_join(e->thread);
	while ((e = ring->entries)) {
		ring->entries = e->next;
		free_entry(e);
	}
	pthread_barrier_destroy(&ring->registered);
	sem_destroy(&ring->prepared);
	sem_destroy(&ring->go);
	free(ring);
	fs->ring = NULL;
}
