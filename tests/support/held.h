/*
 * held.h - a call on another thread, held at a fault point on its way (base/fault.h).
 */
#ifndef GAIA_TESTS_HELD_H
#define GAIA_TESTS_HELD_H

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdbool.h>

#include "base/fault.h"
#include "thread_sleeps.h"

struct held {
	const char *point;
	int (*call)(void *arg);
	void *arg;
	/* Of held_begin() and held_end(). */
	int result;
	pthread_t thread;
};

static inline void *held_main(void *arg)
{
	struct held *h = arg;

	h->result = h->call(h->arg);
	return NULL;
}

/* On return the call has reached its point. */
static inline void held_begin(struct held *h)
{
	fault_hold(h->point);
	cr_assert_eq(pthread_create(&h->thread, NULL, held_main, h), 0);
	fault_await_held(h->point);
}

/* Let it go on from there, and return its result. */
static inline int held_end(struct held *h)
{
	fault_let_go(h->point);
	pthread_join(h->thread, NULL);
	return h->result;
}

#endif
