/* huge.c - see huge.h. */
#include "device/huge.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"
#include "gaia/protocol.h"

/* Not in the headers of older systems. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Memory that is filled now is in the way of who fills it, and may be gone soon. */
#define DELAY_NS 1000000000ull
/* When one that was wanted at once was not to be had, or took so long, the next tries wait: so many times as long, and at least... */
#define LONG_NS 20000000ull
#define REST_TIMES 10
#define REST_NS 100000000ull
/* There may be no huge page free now, or the memory may be in use by I/O. */
#define MAX_TRIES 30

static struct {
	pthread_t thread;
	bool started;
	void *window; /* GAIA_CHUNK bytes of addresses, aligned to as much: the thread's */

	pthread_mutex_t lock;
	/* lock. */
	pthread_cond_t changed;
	TAILQ_HEAD(, huge_wish) queue; /* by from_ns */
	struct huge_wish *in_hand;     /* NULL: none, or it was forgotten meanwhile */
	uint64_t small_until; /* till then none is asked for at once */
	unsigned n_at_once;   /* that are being asked for so... */
	uint64_t since_ns;    /* ...since there were none */
	bool running, stop;
} huge = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* What the pages hold stays, and so do the addresses of others: they find the huge page when they next fault. A negative errno. */
static int collapse(int fd, off_t from)
{
	int err = fault_point("huge.collapse");

	if (err)
		return err;
	/* Not where devices have it mapped: that may end at any moment. */
	if (mmap(huge.window, GAIA_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, from) == MAP_FAILED)
		return -errno;
	if (madvise(huge.window, GAIA_CHUNK, MADV_COLLAPSE))
		err = -errno;
	if (mmap(huge.window, GAIA_CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		bug("addresses that cannot be given back: %s", strerror(errno));
	return err;
}

/* The first that is due. NULL: the thread is to end. The lock is held, but dropped meanwhile. */
static struct huge_wish *wait_for_one(void)
{
	while (!huge.stop) {
		struct huge_wish *w = TAILQ_FIRST(&huge.queue);
		struct timespec until;

		if (!w) {
			pthread_cond_wait(&huge.changed, &huge.lock);
			continue;
		}
		if (w->from_ns <= now_ns())
			return w;
		until.tv_sec = (time_t)(w->from_ns / 1000000000);
		until.tv_nsec = (long)(w->from_ns % 1000000000);
		pthread_cond_timedwait(&huge.changed, &huge.lock, &until);
	}
	return NULL;
}

static void queue_it(struct huge_wish *w)
{
	w->where = HUGE_QUEUED;
	w->from_ns = now_ns() + DELAY_NS;
	TAILQ_INSERT_TAIL(&huge.queue, w, link);
	pthread_cond_signal(&huge.changed);
}

/* The lock is held, but dropped meanwhile. */
static void make_huge(struct huge_wish *w)
{
	off_t from = w->from;
	int fd, err;

	TAILQ_REMOVE(&huge.queue, w, link);
	fd = fcntl(w->fd, F_DUPFD_CLOEXEC, 0);
	w->where = HUGE_IN_HAND;
	huge.in_hand = w;
	pthread_mutex_unlock(&huge.lock);
	err = fd < 0 ? -errno : collapse(fd, from);
	if (fd >= 0)
		close(fd);
	if (!err)
		count(CTR_huge_chunks, 1);
	pthread_mutex_lock(&huge.lock);
	w = huge.in_hand;
	huge.in_hand = NULL;
	if (w) {
		w->where = HUGE_NOWHERE;
		if (err && ++w->tries < MAX_TRIES)
			queue_it(w);
	}
}

/* By memory of our own: what programs do to theirs says nothing about the kernel. A negative errno. */
static int try_one(void)
{
	int fd = memfd_create("gaiafs-huge", MFD_CLOEXEC), err;

	if (fd < 0)
		return -errno;
	err = fallocate(fd, 0, 0, GAIA_CHUNK) ? -errno : collapse(fd, 0);
	close(fd);
	return err;
}

static void *huge_main(void *arg)
{
	struct huge_wish *w;
	bool can;

	(void)arg;
	thread_set_name("gaia-huge");
	can = try_one() != -EINVAL;
	if (!can)
		log_info("no huge pages for what programs map: the kernel makes none of shared memory here (it needs Linux 6.1, and shmem_enabled not to be deny)");
	pthread_mutex_lock(&huge.lock);
	while (can && (w = wait_for_one()))
		make_huge(w);
	huge.running = false;
	while ((w = TAILQ_FIRST(&huge.queue))) {
		TAILQ_REMOVE(&huge.queue, w, link);
		w->where = HUGE_NOWHERE;
	}
	pthread_mutex_unlock(&huge.lock);
	return NULL;
}

int huge_start(void)
{
	size_t length = 2 * (size_t)GAIA_CHUNK;
	char *raw = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	size_t before;
	int err;

	if (raw == MAP_FAILED)
		return -errno;
	before = -(uintptr_t)raw % GAIA_CHUNK;
	huge.window = raw + before;
	if (before)
		munmap(raw, before);
	munmap(raw + before + GAIA_CHUNK, GAIA_CHUNK - before);
	TAILQ_INIT(&huge.queue);
	cond_init_monotonic(&huge.changed);
	huge.stop = false;
	huge.small_until = 0;
	huge.running = true;
	err = -pthread_create(&huge.thread, NULL, huge_main, NULL);
	if (err) {
		huge.running = false;
		munmap(huge.window, GAIA_CHUNK);
		return err;
	}
	huge.started = true;
	return 0;
}

void huge_end(void)
{
	if (!huge.started)
		return;
	pthread_mutex_lock(&huge.lock);
	huge.stop = true;
	pthread_cond_signal(&huge.changed);
	pthread_mutex_unlock(&huge.lock);
	pthread_join(huge.thread, NULL);
	pthread_cond_destroy(&huge.changed);
	munmap(huge.window, GAIA_CHUNK);
	huge.started = false;
}

bool huge_at_once(int fd, off_t from, void *at)
{
	uint64_t begun = now_ns(), took;
	bool can, made;

	pthread_mutex_lock(&huge.lock);
	/* While one waits, for processors that are busy perhaps, others do not go there, too. */
	can = huge.running && begun >= huge.small_until && (huge.n_at_once == 0 || begun - huge.since_ns < LONG_NS);
	if (can && huge.n_at_once++ == 0)
		huge.since_ns = begun;
	pthread_mutex_unlock(&huge.lock);
	if (!can)
		return false;
	/* Nothing at all is not collapsed. */
	made = !fault_point("huge.at_once") && pwrite(fd, "", 1, from) == 1 && !madvise(at, GAIA_CHUNK, MADV_COLLAPSE);
	if (made)
		count(CTR_huge_chunks, 1);
	took = now_ns() - begun;
	pthread_mutex_lock(&huge.lock);
	huge.n_at_once--;
	if (!made || took > LONG_NS)
		huge.small_until = MAX(huge.small_until, begun + took + MAX(REST_TIMES * took, REST_NS));
	pthread_mutex_unlock(&huge.lock);
	return made;
}

void huge_ask(struct huge_wish *w, int fd, off_t from)
{
	pthread_mutex_lock(&huge.lock);
	if (huge.running) {
		w->fd = fd;
		w->from = from;
		queue_it(w);
	}
	pthread_mutex_unlock(&huge.lock);
}

void huge_forget(struct huge_wish *w)
{
	pthread_mutex_lock(&huge.lock);
	if (w->where == HUGE_QUEUED)
		TAILQ_REMOVE(&huge.queue, w, link);
	else if (w->where == HUGE_IN_HAND)
		huge.in_hand = NULL;
	w->where = HUGE_NOWHERE;
	pthread_mutex_unlock(&huge.lock);
}
