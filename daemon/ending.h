/*
 * ending.h - a daemon's last work: store what is left, and name what cannot be stored.
 *
 * Files that cannot be stored are tried again until the time is over, or until somebody says not to wait any longer. Whoever
 * unmounted watches through shared memory (struct gaia_end), and can read it after the daemon has ended.
 *
 * Use: ending_init(); ending_begin() once, and then ending_store() any number of times, by one thread at a time;
 * ending_last(); ending_destroy(). Any thread may call ending_give_up() at any time.
 */
#ifndef GAIA_ENDING_H
#define GAIA_ENDING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gaia/protocol.h"
#include "pagecache/cache.h"

struct ending {
	/* Constant. */
	uint64_t timeout_ns;
	struct gaia_end *shared; /* never NULL */
	int fd;			 /* of it, for reading; -1: it is not shared */

	uint64_t until; /* set once, by ending_begin() */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool given_up; /* lock */
};

/* -ENOMEM. */
int ending_init(struct ending *e, uint64_t timeout_ms);
void ending_begin(struct ending *e);
void ending_give_up(struct ending *e);
/*
 * [W] Store everything, and try again what failed, until it works, the time is over, or waiting was given up. 0, or an
 * error: then some data is not stored, and is kept.
 */
int ending_store(struct ending *e, struct cache *c);
/* [W] The same, once, for good: what cannot be stored is lost, logged, and told to whoever unmounted. */
int ending_last(struct ending *e, struct cache *c);
void ending_destroy(struct ending *e);

#endif
