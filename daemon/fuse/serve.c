/*
 * serve.c - the threads that receive requests by /dev/fuse and carry them out (by io_uring: ring.c).
 *
 * The loop is our own, not libfuse's: it looks at requests before libfuse does, and its
 * threads can be stopped while the mount is still there.
 *
 * Before each write(2) the kernel asks for security.capability, a GETXATTR a write, unless the file
 * system promises to clear set-id bits itself (FUSE_HANDLE_KILLPRIV_V2); then it remembers that there is
 * none. libfuse before 3.17 cannot promise: we put it into its answer to INIT. Nor does it hand on
 * which WRITEs are to clear the bits: we look before it does.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Newer than Debian 12's kernel headers might be. */
#define OPCODE_TMPFILE 51
#define INIT2_OVER_IO_URING (1u << 9) /* of flags2 */

/* Of the request in hand. */
static __thread struct {
	bool is_tmpfile;
	bool clears_set_id;
	/* An INIT, and what of FUSE_HANDLE_KILLPRIV_V2 and INIT2_OVER_IO_URING the kernel can do. */
	bool is_init;
	uint32_t flags, flags2;
} request;

bool serve_is_tmpfile(void)
{
	return request.is_tmpfile;
}

bool serve_clears_set_id(void)
{
	return request.clears_set_id;
}

static void look_at_init(const struct fuse_init_in *init)
{
	request.is_init = true;
	request.flags = init->flags & FUSE_HANDLE_KILLPRIV_V2;
	if (init->flags & FUSE_INIT_EXT)
		request.flags2 = init->flags2 & INIT2_OVER_IO_URING;
}

bool serve_by_ring(const struct fs *fs)
{
	return fs->ring && request.flags2;
}

static void look_at(struct fuse_buf *buf)
{
	struct fuse_in_header *in = buf->mem;
	const void *arg = in + 1;

	memset(&request, 0, sizeof(request));
	switch (in->opcode) {
	case FUSE_INIT:
		look_at_init(arg);
		break;
	case FUSE_WRITE:
		request.clears_set_id =
			((const struct fuse_write_in *)arg)->write_flags & FUSE_WRITE_KILL_SUIDGID;
		break;
	case OPCODE_TMPFILE:
		/* libfuse before 3.17 does not know it; its arguments and answer are those of FUSE_CREATE. */
		request.is_tmpfile = true;
		in->opcode = FUSE_CREATE;
		break;
	}
}

/* What libfuse cannot promise, or does not do as we do. */
static ssize_t answer_init(struct fs *fs, int fd, struct iovec *iov, int count)
{
	struct fuse_init_out *out = iov[1].iov_base;
	bool by_ring = serve_by_ring(fs);
	ssize_t n;

	request.is_init = false;
	out->flags |= request.flags;
	if (by_ring) {
		out->flags |= FUSE_INIT_EXT;
		out->flags2 |= request.flags2;
	}
	n = writev(fd, iov, count);
	if (n >= 0 && by_ring)
		ring_start(fs->ring);
	return n;
}

static ssize_t send_answer(int fd, struct iovec *iov, int count, void *arg)
{
	struct fs *fs = arg;

	if (request.is_init && count == 2)
		return answer_init(fs, fd, iov, count);
	if (fs->ring && ring_answer(iov, count))
		return ((const struct fuse_out_header *)iov[0].iov_base)->len;
	return writev(fd, iov, count);
}

/* libfuse insists on it; but it is never asked to receive. */
static ssize_t receive_for_libfuse(int fd, void *buf, size_t size, void *arg)
{
	return receive(arg, fd, buf, size);
}

static const struct fuse_custom_io io = {
	.read = receive_for_libfuse,
	.writev = send_answer,
};

/* The next request; or 0: the session has ended, or fs->stopping is set. */
static size_t next_request(struct fs *fs, void *buf)
{
	ssize_t n;

	do
		n = receive(fs, fuse_session_fd(fs->session), buf, FS_REQUEST_BYTES);
	/* ENOENT: it was taken back before we had it. */
	while (n < 0 && !fs->stopping && (errno == EINTR || errno == EAGAIN || errno == ENOENT));
	if (n < 0 && !fs->stopping && errno != ENODEV)
		log_warn("fuse: reading requests: %s", strerror(errno));
	return n < 0 || fs->stopping ? 0 : (size_t)n;
}

void serve_one(struct fs *fs, struct fuse_buf *buf)
{
	look_at(buf);
	fuse_session_process_buf(fs->session, buf);
}

static void *serve(void *arg)
{
	struct fs *fs = arg;
	struct fuse_buf buf = { .mem = xmalloc(FS_REQUEST_BYTES) };
	int err;

	thread_set_name("gaia-fuse");
	err = cred_thread_init();
	if (err)
		log_error("fuse: a umask for each thread: %s", strerror(-err));

	while (!err && (buf.size = next_request(fs, buf.mem)))
		serve_one(fs, &buf);
	free(buf.mem);
	receive_thread_ends(fs);
	if (!fs->stopping) {
		fs->over = true;
		if (fs->supervised)
			fs->supervised->over = true;
	}
	if (atomic_fetch_sub(&fs->running, 1) == 1 && !fs->stopping)
		fs->config.ended(fs->config.arg);
	return NULL;
}

void serve_end(struct fs *fs)
{
	fs->over = true;
	mount_abort_connection(fs);
	/* Also where it could not be ended. */
	fs->config.ended(fs->config.arg);
}

static void wake(int signal)
{
	/* Only its interrupting a read(2) matters. */
}

/* How we see libfuse's answers. Packages of 3.17 and newer may be built without. */
static int intercept(struct fs *fs)
{
	return fuse_session_custom_io(fs->session, &io, fuse_session_fd(fs->session));
}

/*
 * io_uring is for who asks for it. Of nine uses, by one process and by four, only opens by four gained each of the three
 * times they were measured (1.04 to 1.4 of the rate by /dev/fuse); names and writes of one process lost (0.6 to 1.0).
 */
static int choose_transport(struct fs *fs)
{
	/* Newer ones promise by themselves what answer_init() would. */
	bool must_see = !FUSE_CAP_HANDLE_KILLPRIV_V2;
	int err = 0;

	if (fs->config.transport == FS_TRANSPORT_URING)
		ring_create(fs, &fs->not_uring);
	if (fs->ring || must_see)
		err = intercept(fs);
	if (err && fs->ring) {
		ring_destroy(fs);
		fs->not_uring = "this libfuse was built without custom I/O (scripts/setup builds one with it)";
	}
	if (err && must_see)
		log_error("fuse: %s", strerror(-err));
	else if (fs->not_uring)
		log_warn("--transport uring: %s; requests come by /dev/fuse", fs->not_uring);
	return must_see ? err : 0;
}

static int start_threads(struct fs *fs)
{
	int err = receive_start(fs);

	if (err) {
		if (fs->ring)
			ring_destroy(fs);
		goto fail;
	}
	fs->running = FS_THREADS;
	while (fs->n_threads < FS_THREADS) {
		err = -pthread_create(&fs->thread[fs->n_threads], NULL, serve, fs);
		if (err)
			break;
		fs->n_threads++;
	}
	if (!err)
		return 0;
	atomic_fetch_sub(&fs->running, FS_THREADS - fs->n_threads);
	serve_stop(fs);
fail:
	log_error("fuse: cannot start threads: %s", strerror(-err));
	return err;
}

int serve_start(struct fs *fs)
{
	struct sigaction sa = { .sa_handler = wake };
	sigset_t all, old;
	int err;

	sigemptyset(&sa.sa_mask);
	sigaction(SIGUSR2, &sa, NULL);
	/* Whoever opens a file of which passthrough.c has a lease at that moment waits, and we are told. */
	signal(SIGIO, SIG_IGN);
	sigfillset(&all);
	sigdelset(&all, SIGUSR2);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = choose_transport(fs); /* logs */
	if (!err)
		err = start_threads(fs); /* logs */
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err;
}

void serve_join(pthread_t thread)
{
	struct timespec soon;

	/* Again and again: the first might come just before the thread starts to wait. */
	do {
		pthread_kill(thread, SIGUSR2);
		clock_gettime(CLOCK_REALTIME, &soon);
		soon.tv_nsec += 5000000;
		if (soon.tv_nsec >= 1000000000) {
			soon.tv_nsec -= 1000000000;
			soon.tv_sec++;
		}
	} while (pthread_timedjoin_np(thread, NULL, &soon) == ETIMEDOUT);
}

void serve_stop(struct fs *fs)
{
	fs->stopping = true;
	receive_wake_all(fs);
	for (unsigned i = 0; i < fs->n_threads; i++)
		serve_join(fs->thread[i]);
	fs->n_threads = 0;
	receive_stop(fs);
	if (fs->ring)
		ring_destroy(fs);
}

int keep_begin(struct fs *fs, enum kept kind, struct ring_entry **entry)
{
	if (!ring_keep(kind, entry))
		return -ENOBUFS;
	return busy_begin(fs, false) ? 0 : -ENOTCONN;
}

bool busy_begin(struct fs *fs, bool invalidation)
{
	bool may;

	pthread_mutex_lock(&fs->lock);
	may = invalidation ? !fs->deaf : !fs->quiescing;
	fs->n_busy += may;
	pthread_mutex_unlock(&fs->lock);
	return may;
}

void busy_end(struct fs *fs)
{
	pthread_mutex_lock(&fs->lock);
	if (!--fs->n_busy)
		pthread_cond_broadcast(&fs->nothing_busy);
	pthread_mutex_unlock(&fs->lock);
}

void invalidate(struct inode *inode, off_t off, off_t len)
{
	struct fs *fs = inode->fs;
	bool known;

	if (!busy_begin(fs, true))
		return;
	pthread_mutex_lock(&fs->lock);
	known = inode->lookups;
	pthread_mutex_unlock(&fs->lock);
	if (known)
		fuse_lowlevel_notify_inval_inode(fs->session, nodeid_of(inode), off, len);
	busy_end(fs);
}
