/*
 * ending.h - a daemon's last work: what is left is stored, and what cannot be is named.
 *
 * Files that cannot be stored are tried again until a time is over, or somebody says that nobody is to wait any longer. Who
 * unmounted looks at it through memory that is shared with him (struct gaia_end), also after the daemon has ended.
 *
 * Use: ending_init(); ending_begin() once, and then ending_store() any number of times, by one thread at a time;
 * ending_last(); ending_destroy(). ending_give_up() by any thread, at any time.
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
	int fd;			 /* of it, for reading; -1: it is nobody's but ours */

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
 * [W] Store everything, and again what failed, until it works, the time is over, or nobody waits. 0, or an error: then some
 * is not stored, and is kept.
 */
int ending_store(struct ending *e, struct cache *c);
/* [W] The same, once, for good: what cannot be stored is lost, logged, and told to who unmounted. */
int ending_last(struct ending *e, struct cache *c);
void ending_destroy(struct ending *e);

#endif
