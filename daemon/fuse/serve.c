/*
 * serve.c - the threads that receive requests and carry them out.
 *
 * The loop is our own, not libfuse's: it looks at requests before libfuse does, and its
 * threads can be stopped while the mount is still there.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

/* Newer than Debian 12's kernel headers might be. */
#define OPCODE_TMPFILE 51

static __thread bool is_tmpfile;

bool serve_is_tmpfile(void)
{
	return is_tmpfile;
}

/* libfuse 3.14 does not know FUSE_TMPFILE, whose arguments and answer are those of FUSE_CREATE. */
static void take_tmpfile_for_create(struct fuse_buf *buf)
{
	struct fuse_in_header *in = buf->mem;

	is_tmpfile = in->opcode == OPCODE_TMPFILE;
	if (is_tmpfile)
		in->opcode = FUSE_CREATE;
}

static void *serve(void *arg)
{
	struct fs *fs = arg;
	struct fuse_buf buf = { .mem = NULL };
	int err;

	thread_set_name("gaia-fuse");
	err = cred_thread_init();
	if (err)
		log_error("fuse: a umask for each thread: %s", strerror(-err));

	while (!err && !fs->stopping) {
		int n = fuse_session_receive_buf(fs->session, &buf);

		if (n == -EINTR || n == -EAGAIN)
			continue;
		if (n <= 0)
			break;
		take_tmpfile_for_create(&buf);
		fuse_session_process_buf(fs->session, &buf);
	}
	free(buf.mem);
	if (!fs->stopping)
		fs->over = true;
	if (atomic_fetch_sub(&fs->running, 1) == 1 && !fs->stopping)
		fs->config.ended(fs->config.arg);
	return NULL;
}

static void wake(int signal)
{
	/* Only its interrupting a read(2) matters. */
}

int serve_start(struct fs *fs)
{
	struct sigaction sa = { .sa_handler = wake };
	sigset_t all, old;
	int err = 0;

	sigemptyset(&sa.sa_mask);
	sigaction(SIGUSR2, &sa, NULL);
	sigfillset(&all);
	sigdelset(&all, SIGUSR2);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	fs->running = FS_THREADS;
	while (fs->n_threads < FS_THREADS) {
		err = -pthread_create(&fs->thread[fs->n_threads], NULL, serve, fs);
		if (err)
			break;
		fs->n_threads++;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!err)
		return 0;
	log_error("fuse: cannot start threads: %s", strerror(-err));
	atomic_fetch_sub(&fs->running, FS_THREADS - fs->n_threads);
	serve_stop(fs);
	return err;
}

void serve_stop(struct fs *fs)
{
	fs->stopping = true;
	for (unsigned i = 0; i < fs->n_threads; i++) {
		struct timespec soon;

		/* Again and again: the first might come just before the thread starts to wait. */
		do {
			pthread_kill(fs->thread[i], SIGUSR2);
			clock_gettime(CLOCK_REALTIME, &soon);
			soon.tv_nsec += 5000000;
			if (soon.tv_nsec >= 1000000000) {
				soon.tv_nsec -= 1000000000;
				soon.tv_sec++;
			}
		} while (pthread_timedjoin_np(fs->thread[i], NULL, &soon) == ETIMEDOUT);
	}
	fs->n_threads = 0;
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
