/*
 * async.h - preadv(2) that is not waited for at once.
 *
 * By io_uring, with a ring a thread, so that one thread can have many reads under way; where the kernel refuses
 * that (an old one, a container's rules), by a pool of threads.
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
	atomic_bool refused; /* no rings here */
	pthread_mutex_t lock;
	struct pool *pool; /* lock: made when first needed */
};

void async_init(struct async *as);
/* When nothing is under way. */
void async_destroy(struct async *as);
/* Whether errno @err says that the system is short of something, and may soon have it again. */
static inline bool is_shortage(int err)
{
	return err == EMFILE || err == ENFILE || err == ENOMEM || err == EAGAIN;
}

/* Whether the kernel gives this thread a ring. */
bool async_has_ring(struct async *as);

/* From async_read_begin() to async_read_end(), which the same thread calls. */
struct async_read {
	/* The caller's. */
	int fd;
	int n;
	const struct iovec *iov;
	off_t off;

	ssize_t res;
	struct ring *ring; /* NULL: the pool's, or done before it was begun */
	bool done;	   /* by the ring; it came */
	sem_t came;	   /* from the pool */
};

void async_read_begin(struct async *as, struct async_read *rd);
/* Waits: the bytes read, which may be fewer than asked for at any time, or a negative errno. */
ssize_t async_read_end(struct async_read *rd);

#endif
