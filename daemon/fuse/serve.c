/*
 * serve.c - the threads that receive requests and carry them out.
 *
 * The loop is not libfuse's: ours looks at requests before libfuse does, and its threads can be stopped while the mount
 * is still there.
 *
 * libfuse does not say which WRITEs have to clear set-id bits: look_at() finds out.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"

#define WAKE_TO_PAUSE SIGURG /* see wake_readers() */

/* What libfuse does not tell of the request that this thread has in hand. */
static __thread struct {
	uint64_t unique;
	bool is_tmpfile;
	bool clears_set_id;
} request;

uint64_t serve_unique(void)
{
	return request.unique;
}

bool serve_is_tmpfile(void)
{
	return request.is_tmpfile;
}

bool serve_clears_set_id(void)
{
	return request.clears_set_id;
}

static void look_at(struct fuse_buf *buf)
{
	struct fuse_in_header *in = buf->mem;
	const void *arg = in + 1;

	memset(&request, 0, sizeof(request));
	request.unique = in->unique;
	switch (in->opcode) {
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

static __thread unsigned number; /* of this thread among those that receive */

static void take_number(struct fs *fs)
{
	number = atomic_fetch_add(&fs->n_numbered, 1);
	fs->server[number] = pthread_self();
	latency_set_choose();
}

/* Wait here, between two requests, while fs->pausing is set. */
static void pass_gate(struct fs *fs)
{
	if (!fs->pausing)
		return;
	receive_thread_pauses(fs);
	pthread_mutex_lock(&fs->lock);
	fs->n_paused++;
	pthread_cond_broadcast(&fs->pause_changed);
	while (fs->pausing && !fs->stopping)
		pthread_cond_wait(&fs->pause_changed, &fs->lock);
	fs->n_paused--;
	pthread_mutex_unlock(&fs->lock);
}

/* The next request; 0: the session has ended, or fs->stopping is set. @by: receive(), or another function like read(2). */
static size_t next_request(struct fs *fs, void *buf, ssize_t (*by)(struct fs *fs, int fd, void *buf, size_t size))
{
	ssize_t n;

	do {
		pass_gate(fs);
		atomic_store_explicit(&fs->receives[number], true, memory_order_relaxed);
		n = fs->stopping ? -1 : by(fs, fuse_session_fd(fs->session), buf, FS_REQUEST_BYTES);
		atomic_store_explicit(&fs->receives[number], false, memory_order_relaxed);
	/* ENOENT: the request was withdrawn before it could be read. */
	} while (n < 0 && !fs->stopping && (errno == EINTR || errno == EAGAIN || errno == ENOENT));
	if (n < 0 && !fs->stopping && errno != ENODEV)
		log_warn("fuse: reading requests: %s", strerror(errno));
	return n < 0 || fs->stopping ? 0 : (size_t)n;
}

void serve_refuse(struct fs *fs, const void *bytes, int err)
{
	const struct fuse_in_header *in = bytes;
	struct fuse_out_header out = { .len = sizeof(out), .error = err, .unique = in->unique };

	/* ENOENT: no caller waits for it any more. */
	if (write(fuse_session_fd(fs->session), &out, sizeof(out)) < 0 && errno != ENOENT)
		log_debug("fuse: answering: %s", strerror(errno));
}

uint64_t serve_told(uint64_t id, const char *fault)
{
	return fault_point(fault) ? id + (1ull << 32) : id;
}

static bool knows_file(struct fs *fs, uint64_t fh)
{
	struct handle *h = handle_of(fs, fh);

	return h && !h->dir;
}

static bool knows_dir(struct fs *fs, uint64_t fh)
{
	struct handle *h = handle_of(fs, fh);

	return h && h->dir;
}

int serve_unknown(struct fs *fs, const void *bytes)
{
	const struct fuse_in_header *in = bytes;
	const void *arg = in + 1;
	const struct fuse_copy_file_range_in *copy = arg;
	const uint64_t *first = arg; /* a handle, or another inode */
	bool known;

	switch (in->opcode) {
	case FUSE_READ:
	case FUSE_WRITE:
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_FSYNC:
	case FUSE_FALLOCATE:
	case FUSE_LSEEK:
	case FUSE_GETLK:
	case FUSE_SETLK:
	case FUSE_SETLKW:
		return knows_file(fs, *first) ? 0 : -EBADF;
	case FUSE_COPY_FILE_RANGE:
	case OPCODE_COPY_FILE_RANGE_64:
		return knows_file(fs, copy->fh_in) && knows_file(fs, copy->fh_out) ? 0 : -EBADF;
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
	case FUSE_RELEASEDIR:
	case FUSE_FSYNCDIR:
		return knows_dir(fs, *first) ? 0 : -EBADF;
	case FUSE_IOCTL:
		return handle_of(fs, *first) ? 0 : -EBADF;
	case FUSE_LINK:
	case FUSE_RENAME:
	case FUSE_RENAME2:
		known = inode_of(fs, in->nodeid) && inode_of(fs, *first);
		return known ? 0 : -ESTALE;
	/* These name none, or are not answered. */
	case FUSE_INIT:
	case FUSE_DESTROY:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
	case FUSE_NOTIFY_REPLY:
		return 0;
	default:
		return inode_of(fs, in->nodeid) ? 0 : -ESTALE;
	}
}

bool serve_may_wait_for_lock(const struct fs *fs, const void *bytes)
{
	return fs->config.shared && ((const struct fuse_in_header *)bytes)->opcode == FUSE_SETLKW;
}

static void refuse_unknown(struct fs *fs, const struct fuse_in_header *in, int err)
{
	if (log_may(&fs->unknown_pace))
		log_warn("fuse: the kernel names a file that it does not know, or an open file that it has released: request %u is refused: %s",
			 in->opcode, strerror(-err));
	serve_refuse(fs, in, err);
}

/* As LATENCY_PLACE(); 0: other. */
static const uint16_t kind_of[UINT8_MAX + 1] = {
#define KIND(name) LATENCY_PLACE(LATENCY_request_##name)
	[FUSE_READ] = KIND(read),
	[FUSE_WRITE] = KIND(write),
	[FUSE_OPEN] = KIND(open),
	[FUSE_CREATE] = KIND(open),
	[FUSE_FLUSH] = KIND(close),
	[FUSE_RELEASE] = KIND(close),
	[FUSE_FSYNC] = KIND(fsync),
	[FUSE_FSYNCDIR] = KIND(fsync),
	[FUSE_LOOKUP] = KIND(lookup),
	[FUSE_GETATTR] = KIND(getattr),
	[FUSE_READLINK] = KIND(getattr),
	[FUSE_STATFS] = KIND(getattr),
	[FUSE_SETATTR] = KIND(setattr),
	[FUSE_OPENDIR] = KIND(readdir),
	[FUSE_READDIR] = KIND(readdir),
	[FUSE_READDIRPLUS] = KIND(readdir),
	[FUSE_RELEASEDIR] = KIND(readdir),
	[FUSE_MKNOD] = KIND(names),
	[FUSE_MKDIR] = KIND(names),
	[FUSE_SYMLINK] = KIND(names),
	[FUSE_LINK] = KIND(names),
	[FUSE_UNLINK] = KIND(names),
	[FUSE_RMDIR] = KIND(names),
	[FUSE_RENAME] = KIND(names),
	[FUSE_RENAME2] = KIND(names),
	[FUSE_GETXATTR] = KIND(xattr),
	[FUSE_SETXATTR] = KIND(xattr),
	[FUSE_LISTXATTR] = KIND(xattr),
	[FUSE_REMOVEXATTR] = KIND(xattr),
	[FUSE_LSEEK] = KIND(seek),
	[FUSE_FALLOCATE] = KIND(allocate),
	[FUSE_COPY_FILE_RANGE] = KIND(copy),
	[OPCODE_COPY_FILE_RANGE_64] = KIND(copy),
#undef KIND
};

int64_t serve_later(void)
{
	int64_t came = request_times.came;

	request_times.came = 0;
	return came;
}

void serve_answered(enum latency kind, int64_t came)
{
	latency_count(kind, elapsed_ns(came, quick_ticks()));
}

_Static_assert(LATENCY_request_other == 0, "what the table does not name");

/* The thread has carried out its request. */
static void request_ends(const struct fuse_in_header *in)
{
	int64_t came = request_times.came, ended = quick_ticks_after(came);

	request_times.ended = ended;
	if (came)
		latency_count_at(kind_of[(uint8_t)in->opcode], elapsed_ns(came, ended));
}

void serve_request(struct fs *fs, void *bytes, size_t size)
{
	struct fuse_buf buf = { .mem = bytes, .size = size };
	const struct fuse_in_header *in = bytes;
	int err = serve_unknown(fs, in);
	struct lock_call call;
	bool waits;

	request_times.ended = request_times.came; /* for those that are not counted */
	if (err) {
		refuse_unknown(fs, in, err);
		return;
	}
	/* Not passed to libfuse, which would take a lock of the session for each request to handle this. */
	if (in->opcode == FUSE_INTERRUPT) {
		interrupt_request(fs, ((const struct fuse_interrupt_in *)(in + 1))->unique);
		return;
	}
	waits = serve_may_wait_for_lock(fs, in);
	if (waits)
		locks_call_begins(fs, &call, in->unique);
	look_at(&buf);
	fuse_session_process_buf(fs->session, &buf);
	if (waits)
		locks_call_ends(fs, &call);
	request_ends(in);
}

static ssize_t receive_as_spare(struct fs *fs, int fd, void *buf, size_t size)
{
	ssize_t n = read(fd, buf, size);

	request_came(quick_ticks());
	return n;
}

/* The spare: see receive.c. Of the session's end it says nothing: the other threads report that. */
static void *serve_as_spare(void *arg)
{
	struct fs *fs = arg;
	void *buf = xmalloc(FS_REQUEST_BYTES);
	size_t n = 1;

	thread_set_name("gaia-spare");
	take_number(fs);
	while (n && !fs->stopping) {
		receive_spare_wait(fs);
		pass_gate(fs);
		while (receive_spare_needed(fs) && (n = next_request(fs, buf, receive_as_spare)))
			if (!hand_over(fs, buf, n))
				serve_request(fs, buf, n);
	}
	free(buf);
	return NULL;
}

static void *serve(void *arg)
{
	struct fs *fs = arg;
	void *buf = xmalloc(FS_REQUEST_BYTES);
	size_t n;
	int err;

	thread_set_name("gaia-fuse");
	take_number(fs);
	err = cred_thread_init(fs);
	if (err)
		log_error("fuse: a umask for each thread: %s", strerror(-err));

	while (!err && (n = next_request(fs, buf, receive)))
		serve_request(fs, buf, n);
	free(buf);
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

static void wake(int signal)
{
	/* The signal has nothing to do but to interrupt read(2). */
}

static int start_threads(struct fs *fs)
{
	int err = receive_start(fs);

	if (err)
		goto fail;
	fs->running = FS_THREADS;
	while (fs->n_threads < FS_THREADS) {
		err = -pthread_create(&fs->thread[fs->n_threads], NULL, serve, fs);
		if (err)
			break;
		fs->n_threads++;
	}
	if (!err)
		err = -pthread_create(&fs->spare, NULL, serve_as_spare, fs);
	fs->has_spare = !err;
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
	struct sigaction sa = { .sa_handler = wake }, to_pause = { .sa_handler = wake, .sa_flags = SA_RESTART };
	sigset_t all, old;
	int err;

	sigemptyset(&sa.sa_mask);
	sigaction(SIGUSR2, &sa, NULL);
	sigemptyset(&to_pause.sa_mask);
	sigaction(WAKE_TO_PAUSE, &to_pause, NULL);
	/*
	 * Sent when somebody opens a file on which passthrough.c has a lease. It has nothing to do: the lease
	 * ends in a moment anyway.
	 */
	signal(SIGIO, SIG_IGN);
	sigfillset(&all);
	sigdelset(&all, SIGUSR2);
	sigdelset(&all, WAKE_TO_PAUSE);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	/* A session that is taken over has begun. */
	err = fs->config.predecessor < 0 ? session_begin(fs) : 0; /* logs */
	if (!err)
		err = start_threads(fs); /* logs */
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!err && fs->config.predecessor < 0)
		session_begun(fs);
	return err;
}

/* ---- pausing ---- */

/*
 * Threads in read(2) have to notice that they are to pause. A signal that ends the call might meet a thread that has begun a request
 * meanwhile, and end another call. So with this one calls go on (SA_RESTART); but now read(2) does not wait.
 */
static void wake_readers(struct fs *fs)
{
	receive_wake_all(fs);
	for (unsigned i = 0; i < fs->n_numbered; i++)
		if (fs->receives[i])
			pthread_kill(fs->server[i], WAKE_TO_PAUSE);
}

static void set_waiting(struct fs *fs, bool waits)
{
	int fd = fuse_session_fd(fs->session), flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, waits ? flags & ~O_NONBLOCK : flags | O_NONBLOCK))
		log_debug("fuse: %s", strerror(errno));
}

/* How long to wait for the threads before they are woken again: one may have been just about to wait. */
#define WAKE_AGAIN_NS 3000000u

static bool all_paused(struct fs *fs, uint64_t until)
{
	struct timespec t = { (time_t)(until / 1000000000), (long)(until % 1000000000) };
	bool all;

	pthread_mutex_lock(&fs->lock);
	while (fs->n_paused < fs->n_threads + fs->has_spare && pthread_cond_timedwait(&fs->pause_changed, &fs->lock, &t) != ETIMEDOUT)
		;
	all = fs->n_paused == fs->n_threads + fs->has_spare;
	pthread_mutex_unlock(&fs->lock);
	return all;
}

static void set_pausing(struct fs *fs, bool pausing)
{
	pthread_mutex_lock(&fs->lock);
	fs->pausing = pausing;
	pthread_cond_broadcast(&fs->pause_changed);
	pthread_mutex_unlock(&fs->lock);
}

int serve_pause(struct fs *fs, uint64_t until)
{
	bool all = false;

	set_pausing(fs, true);
	set_waiting(fs, false);
	sem_post(&fs->receiving.spare_wake);
	while (!all && !fs->over && now_ns() < until) {
		wake_readers(fs);
		all = all_paused(fs, MIN(until, now_ns() + WAKE_AGAIN_NS));
	}
	set_waiting(fs, true);
	if (fs->over)
		return -ENODEV;
	return all && hand_wait_until(fs, until) ? 0 : -EBUSY;
}

void serve_go_on(struct fs *fs)
{
	set_pausing(fs, false);
}

/* Join a thread that ends when it finds fs->stopping set, and wake it so that it looks. */
static void join(pthread_t thread)
{
	struct timespec soon;

	/* Repeatedly: the first signal might come just before the thread starts to wait. */
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
	pthread_mutex_lock(&fs->lock);
	fs->stopping = true;
	pthread_cond_broadcast(&fs->pause_changed);
	pthread_mutex_unlock(&fs->lock);
	receive_wake_all(fs);
	for (unsigned i = 0; i < fs->n_threads; i++)
		join(fs->thread[i]);
	fs->n_threads = 0;
	if (fs->has_spare)
		join(fs->spare);
	fs->has_spare = false;
	hand_wait(fs);
	receive_stop(fs);
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
		fuse_lowlevel_notify_inval_inode(fs->session, inode->id, off, len);
	busy_end(fs);
}
