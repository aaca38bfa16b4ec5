/*
 * live.h - options that are changed while the mount is live: by `gaia set`, and by reading the configuration file again.
 *
 * Any thread may call live_set() and live_reload(), as long as the options and what they concern live; after live_end() they change nothing.
 * Neither waits for clients or storage, but for the file; and live_set() for devices that it adds, as does live_end().
 */
#ifndef GAIA_LIVE_H
#define GAIA_LIVE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/quota.h"
#include "ending.h"
#include "options.h"
#include "pagecache/cache.h"

struct live {
	/* Constant. */
	int argc;
	char **argv;
	struct options *options; /* its `set` with the lock; all else is constant */
	struct quota *quota;
	struct ending *end;
	bool faults; /* devices are wrapped, so that tests can have them fail */
	uint64_t usual_home; /* bytes: without --home */
	uint64_t host_most;  /* bytes that the host as a device may have at most */
	unsigned usual_each[QUOTA_COUNT]; /* limits of each user without --user-limit */

	pthread_mutex_t reading; /* taken first: one thread reads the file */
	pthread_mutex_t making; /* taken first: one thread makes devices */
	pthread_mutex_t lock;
	struct cache *cache; /* lock; NULL: not yet, or it has ended */
	bool handing_over; /* lock; to another daemon, which would not hear of changes */
	char *words; /* lock; what `gaia set` has changed since the file was read, each with its NUL */
	size_t words_length;
};

/* @l begins with the constant fields; then with the cache, of which the devices' budgets are as the options say. */
void live_init(struct live *l);
void live_begin(struct live *l, struct cache *c);
void live_end(struct live *l);
void live_destroy(struct live *l);

/* How much of home the host as a device has. */
uint64_t live_host_bytes(const struct live *l, uint64_t home_bytes);
/* Limits of users, as the options say. Warns of those that are too high. */
void live_set_user_limits(struct live *l, const struct settings *set);

/*
 * Change options: @words is @length bytes of words "NAME=VALUE", each with its NUL: all or none. @said: lines for whoever asked, "" for
 * nothing. 0, or a negative errno, and @said says why: -EINVAL; -ENOTSUP: not while it is mounted; -ENOTCONN: it ends; -EBUSY.
 */
int live_set(struct live *l, const char *words, size_t length, char *said, size_t size);
/* Whether the word is about a device; or adds one. */
bool live_is_of_devices(const char *word);
bool live_adds(const char *word);
/* Nothing changes any more, -EBUSY, until that is undone: another daemon takes the mount over. */
void live_freeze(struct live *l, bool freeze);
/* Words of these that say the same again to a daemon with the same options; to be freed. */
char *live_words(struct live *l, size_t *length);
/* Read the configuration file again, and change what is different: what can be. @said also names what cannot. Or -EBUSY. */
int live_reload(struct live *l, char *said, size_t size);

#endif
