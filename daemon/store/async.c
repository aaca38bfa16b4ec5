/*
 * async.c - see async.h.
 */
#include "store/async.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"

#define DEPTH 64u     /* reads under way by one thread */
#define POOL_LIMIT 8u /* by all, without rings */

/* One for each thread, from its first read to its end. */
struct ring {
	struct io_uring uring;
	unsigned under_way;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t ring_key;

static void ring_destroy(void *arg)
{
	struct ring *ring = arg;

	bug_on(ring->under_way);
	io_uring_queue_exit(&ring->uring);
	free(ring);
}

static void make_key(void)
{
	if (pthread_key_create(&ring_key, ring_destroy))
		bug("pthread_key_create");
}

static int ring_create(struct ring **out)
{
	struct ring *ring = xcalloc(1, sizeof(*ring));
	int err = fault_point("store.uring");

	/* Completions are asked for when they are needed, so the thread need not be interrupted for them. */
	if (!err)
		err = io_uring_queue_init(DEPTH, &ring->uring, IORING_SETUP_COOP_TASKRUN);
	if (err == -EINVAL) /* before Linux 5.19 */
		err = io_uring_queue_init(DEPTH, &ring->uring, 0);
	if (err)
		free(ring);
	else
		*out = ring;
	return err;
}

/* The thread's ring, or NULL if there are none. */
static struct ring *ring_get(struct async *as)
{
	struct ring *ring;
	int err;

	if (atomic_load(&as->refused))
		return NULL;
	pthread_once(&once, make_key);
	ring = pthread_getspecific(ring_key);
	if (ring)
		return ring;
	err = ring_create(&ring);
	if (!err && pthread_setspecific(ring_key, ring)) {
		ring_destroy(ring);
		err = -ENOMEM;
	}
	/* A shortage may be over next time. */
	if (err && !is_shortage(-err)) {
		atomic_store(&as->refused, true);
		log_debug("store: io_uring: %s; reads are left to threads", strerror(-err));
	}
	return err ? NULL : ring;
}

/* Wait for one more completion. */
static void ring_reap(struct ring *ring)
{
	struct io_uring_cqe *cqe;
	struct async_read *rd;
	int err;

	do
		err = io_uring_wait_cqe(&ring->uring, &cqe);
	while (err == -EINTR || err == -EAGAIN);
	/* Going on is impossible: the kernel may still write to buffers that would have to be given back. */
	if (err)
		bug("io_uring: %s", strerror(-err));
	rd = io_uring_cqe_get_data(cqe);
	if (rd) {
		rd->res = cqe->res;
		rd->done = true;
		ring->under_way--;
	}
	io_uring_cqe_seen(&ring->uring, cqe);
}

static bool ring_submit(struct ring *ring, struct async_read *rd)
{
	struct io_uring_sqe *sqe;

	while (ring->under_way >= DEPTH)
		ring_reap(ring);
	sqe = io_uring_get_sqe(&ring->uring);
	if (!sqe)
		return false;
	io_uring_prep_readv(sqe, rd->fd, rd->iov, (unsigned)rd->n, (uint64_t)rd->off);
	io_uring_sqe_set_data(sqe, rd);
	while (io_uring_sq_ready(&ring->uring) > 0) {
		int n = io_uring_submit(&ring->uring);

		if (n > 0 || n == -EINTR)
			continue;
		/* The kernel is short of memory: reads under way free some when they complete. */
		if (ring->under_way > 0) {
			ring_reap(ring);
			continue;
		}
		/* The entry stays queued and would go with the next one: make it do nothing. */
		io_uring_prep_nop(sqe);
		io_uring_sqe_set_data(sqe, NULL);
		return false;
	}
	ring->under_way++;
	return true;
}

static ssize_t read_now(const struct async_read *rd)
{
	ssize_t got = TEMP_FAILURE_RETRY(preadv(rd->fd, rd->iov, rd->n, rd->off));

	return got < 0 ? -errno : got;
}

static void read_in_pool(void *arg)
{
	struct async_read *rd = arg;

	rd->res = read_now(rd);
	sem_post(&rd->came);
}

/* NULL: no thread can be started. */
static struct pool *pool_get(struct async *as)
{
	struct pool *pool;

	pthread_mutex_lock(&as->lock);
	if (!as->pool && pool_create("gaia-store", POOL_LIMIT, &as->pool))
		as->pool = NULL;
	pool = as->pool;
	pthread_mutex_unlock(&as->lock);
	return pool;
}

void async_init(struct async *as)
{
	*as = (struct async){ .pool = NULL };
	pthread_mutex_init(&as->lock, NULL);
}

void async_destroy(struct async *as)
{
	if (as->pool)
		pool_destroy(as->pool);
	pthread_mutex_destroy(&as->lock);
}

bool async_has_ring(struct async *as)
{
	return ring_get(as);
}

void async_read_begin(struct async *as, struct async_read *rd)
{
	struct ring *ring = ring_get(as);
	struct pool *pool;

	rd->done = false;
	rd->ring = ring;
	if (ring && ring_submit(ring, rd))
		return;
	rd->ring = NULL;
	sem_init(&rd->came, 0, 0);
	pool = pool_get(as);
	if (pool)
		pool_submit(pool, read_in_pool, rd);
	else
		read_in_pool(rd);
}

ssize_t async_read_end(struct async_read *rd)
{
	int err = fault_point("store.completion");

	if (rd->ring) {
		while (!rd->done)
			ring_reap(rd->ring);
	} else {
		while (sem_wait(&rd->came))
			;
		sem_destroy(&rd->came);
	}
	return err ? err : rd->res;
}
