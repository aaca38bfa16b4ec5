/* uses.c - see uses.h. */
#include "base/uses.h"

#include <string.h>

#include "base/clock.h"

#define X(name, text) #name,
const char *const moved_names[] = { MOVED(X) };
const char *const wait_names[] = { WAITS(X) };
const char *const client_amount_names[] = { CLIENT_AMOUNTS(X) };
const char *const file_amount_names[] = { FILE_AMOUNTS(X) };
#undef X

__thread struct working_for working_for;

void uses_init(struct uses *u)
{
	memset(u, 0, sizeof(*u));
	pthread_mutex_init(&u->lock, NULL);
}

void uses_destroy(struct uses *u)
{
	pthread_mutex_destroy(&u->lock);
}

struct uses *wait_begin_slow(struct uses *u, enum wait_for what)
{
	uint64_t now = (uint64_t)quick_ticks();

	pthread_mutex_lock(&u->lock);
	u->waits[what].now++;
	u->waits[what].sum -= now;
	pthread_mutex_unlock(&u->lock);
	return u;
}

void wait_end_slow(struct uses *u, enum wait_for what)
{
	uint64_t now = (uint64_t)quick_ticks();

	pthread_mutex_lock(&u->lock);
	u->waits[what].now--;
	u->waits[what].sum += now;
	pthread_mutex_unlock(&u->lock);
}

uint64_t uses_waited_ns(struct uses *u, enum wait_for what, unsigned *now)
{
	struct waits w;
	uint64_t time;
	double ns;

	pthread_mutex_lock(&u->lock);
	w = u->waits[what];
	time = (uint64_t)quick_ticks(); /* not before any of these began */
	pthread_mutex_unlock(&u->lock);
	*now = w.now;
	ns = elapsed_ns(0, (int64_t)(w.sum + w.now * time));
	/* What began a moment ago, on another core, must not make less than nothing of it. */
	return ns > 0 ? (uint64_t)ns : 0;
}
