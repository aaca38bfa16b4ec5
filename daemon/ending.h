/*
 * ending.h - the end of a daemon: storing what is left, and naming the files that cannot be stored.
 *
 * Files that cannot be stored are tried again until the time is over, or until ending_give_up() is called. The process that
 * unmounted follows that in shared memory (struct gaia_end), which it can still read after the daemon has ended.
 *
 * Use: ending_init(); ending_begin() once, and then ending_store() any number of times, by one thread at a time;
 * ending_last(); ending_destroy(). Any thread may call ending_give_up() at any time.
 */
#ifndef GAIA_ENDING_H
#define GAIA_ENDING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gaia/protocol.h"
#include "pagecache/cache.h"

struct ending {
	atomic_uint_least64_t timeout_ns;
	/* Constant. */
	struct gaia_end *shared; /* never NULL */
	int fd;			 /* @shared, open for reading; -1: it is not shared */

	uint64_t until; /* set once, by ending_begin() */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool given_up; /* lock */
};

/* -ENOMEM. */
int ending_init(struct ending *e, uint64_t timeout_ms);
/* Any thread may call it. An end that has begun keeps the time that it had. */
void ending_set_timeout(struct ending *e, uint64_t timeout_ms);
void ending_begin(struct ending *e);
void ending_give_up(struct ending *e);
/*
 * [W] Store everything. What fails is tried again until it works, the time is over, or waiting was given up. 0, or an
 * error: then some data is not stored, and is kept.
 */
int ending_store(struct ending *e, struct cache *c);
/* [W] The same for the last time: what cannot be stored now is lost, logged, and told to the process that unmounted. */
int ending_last(struct ending *e, struct cache *c);
void ending_destroy(struct ending *e);

#endif
