/*
 * async.h - preadv(2) that returns before the read is done.
 *
 * It uses io_uring, with one ring for each thread, so that one thread can have many reads under way. If the kernel refuses
 * rings (an old kernel, a container's rules), a pool of threads reads.
 */
#ifndef GAIA_STORE_ASYNC_H
#define GAIA_STORE_ASYNC_H

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

struct pool;
struct ring;

struct async {
	atomic_bool refused; /* the kernel gives no rings */
	pthread_mutex_t lock;
	struct pool *pool; /* lock: made when first needed */
};

void async_init(struct async *as);
/* Called when nothing is under way. */
void async_destroy(struct async *as);
/* Whether errno @err means a shortage in the system that may soon be over. */
static inline bool is_shortage(int err)
{
	return err == EMFILE || err == ENFILE || err == ENOMEM || err == EAGAIN;
}

/* Whether the kernel gives this thread a ring. */
bool async_has_ring(struct async *as);

/* From async_read_begin() to async_read_end(), which the same thread calls. */
struct async_read {
	/* For the caller. */
	int fd;
	int n;
	const struct iovec *iov;
	off_t off;

	ssize_t res;
	struct ring *ring; /* NULL: the pool reads, or it was done at once */
	bool done;	   /* by the ring: it has completed */
	sem_t came;	   /* by the pool: posted when it has completed */
};

void async_read_begin(struct async *as, struct async_read *rd);
/* Wait. Returns the bytes read, which may always be fewer than asked for, or a negative errno. */
ssize_t async_read_end(struct async_read *rd);

#endif
