/*
 * cache_acquires.h - acquires at the same time as others: on threads that are held at a point, that wait, or whose clients give
 * memory up slowly. And readers that have memory of their own.
 */
#ifndef GAIA_TESTS_CACHE_ACQUIRES_H
#define GAIA_TESTS_CACHE_ACQUIRES_H

#include <pthread.h>
#include <semaphore.h>

#include "base/thread.h"
#include "cache_scene.h"
#include "held.h"

struct acquire {
	struct client *cl;
	uint64_t off, len, seq;
	unsigned prot; /* besides GAIA_PROT_RW */
	atomic_uint verdict;
};

static inline int acquire(void *arg)
{
	struct acquire *a = arg;

	return cache_acquire(a->cl->mapping, a->off, a->len, GAIA_PROT_RW | a->prot, &a->seq, &a->verdict);
}

static inline struct acquire of_page(struct client *cl, uint64_t page)
{
	return (struct acquire){ .cl = cl, .off = page * GAIA_PAGE, .len = GAIA_PAGE };
}

/* Two acquires, to be begun in this order: one hands over a chunk, the other wants the same chunk. */
static inline struct held giving(struct acquire *a)
{
	return (struct held){ .point = "acquire.before_grant", .call = acquire, .arg = a };
}

static inline struct held waiting(struct acquire *a)
{
	return (struct held){ .point = "acquire.awaits_grant", .call = acquire, .arg = a };
}

/* ---- that wait ---- */

static sem_t waits;

static inline void post(void *sem)
{
	sem_post(sem);
}

static inline void *acquire_and_say_when_waiting(void *arg)
{
	thread_relied_on(post, &waits);
	return (void *)(intptr_t)acquire(arg);
}

/* Begin an acquire; returns when it waits for something. */
static inline pthread_t begin_waiting(struct acquire *a)
{
	pthread_t thread;

	sem_init(&waits, 0, 0);
	cr_assert_eq(pthread_create(&thread, NULL, acquire_and_say_when_waiting, a), 0);
	sem_wait(&waits);
	return thread;
}

static inline int end_waiting(pthread_t thread)
{
	void *result;

	pthread_join(thread, &result);
	return (int)(intptr_t)result;
}

/* ---- whose memory is given up slowly ---- */

/* Posted when a client is asked to give up a chunk; the client waits for the other before it does. */
static struct {
	sem_t asked, go_on;
} giving_up;

static inline void be_slow(void *arg, struct client *cl, uint64_t idx)
{
	sem_post(&giving_up.asked);
	sem_wait(&giving_up.go_on);
}

static inline void give_up_slowly(void)
{
	sem_init(&giving_up.asked, 0, 0);
	sem_init(&giving_up.go_on, 0, 0);
	rig->before_revoke = be_slow;
}

/* ---- those that may not write, on a device that cannot keep them from it ---- */

static inline void begin_writable(unsigned chunks)
{
	begin(&(struct rig_options){ .devices = 1, .device_chunks = chunks, .always_writable = true },
	      4 * GAIA_CHUNK);
}

static inline struct client *new_reader(void)
{
	return client_create(kf, 0, GAIA_PROT_READ, 4 * GAIA_CHUNK);
}

/* Make processes read from the device or the store, by dropping all other copies. */
static inline void forget_but_on_devices(void)
{
	cr_assert_eq(cpu_fsync(kf), 0);
	kernel_reclaim(kf, 0, 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	/* So that it is known how long a read of the store takes, and that devices are faster. */
	cr_assert_eq(cpu_read(kf, (char[1]){ 0 }, 1, 2 * GAIA_CHUNK), 1);
}

#endif
