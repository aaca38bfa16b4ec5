/*
 * late.c - clients that do not give up at once what an acquire has to take from them.
 *
 * They are asked by users, and waited for as long as they go on answering. What is not answered then is left to a worker, one for each
 * user, and the acquire takes other memory (18).
 */
#include <errno.h>
#include <stdlib.h>

#include "base/thread.h"
#include "base/util.h"
#include "pagecache/chunk.h"
#include "pagecache/evict.h"
#include "pagecache/file.h"
#include "pagecache/grant.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"

/* A user whose clients have not answered in time. A worker of the user's waits for them. cache.late_lock */
struct late_user {
	UT_hash_handle hh;
	uid_t uid;
	struct cache *cache;
	struct late_list list;
	unsigned n;
};

static bool user_is_late(struct cache *c, uid_t uid)
{
	struct late_user *u;

	pthread_mutex_lock(&c->late_lock);
	HASH_FIND(hh, c->late, &uid, sizeof(uid), u);
	pthread_mutex_unlock(&c->late_lock);
	return u;
}

#define OWED_GRANTS 16u

/* Who maps one chunk of an extent maps all. */
bool replica_is_owed(struct replica *rep)
{
	struct cache *c = rep->chunk->file->cache;
	unsigned looked = 0;
	bool owed = false;
	struct grant *g;

	pthread_mutex_lock(&rep->chunk->lock);
	LIST_FOREACH(g, &rep->grants, of_replica) {
		if (looked++ == OWED_GRANTS || owed)
			break;
		owed = (g->delivered || g->offered) && user_is_late(c, g->mapping->user.uid);
	}
	pthread_mutex_unlock(&rep->chunk->lock);
	return owed;
}

#define ANSWERS_WAITS 10u /* for ANSWER_NS, so many times at most while they answer, one after the other */

void late_split(struct asked *asked, struct late_list *list)
{
	STAILQ_INIT(list);
	for (unsigned k = 0; k < asked->n; k++) {
		struct cache_user user = asked->grant[k]->mapping->user;
		struct late *l;

		STAILQ_FOREACH(l, list, link)
			if (l->user.uid == user.uid)
				break;
		if (!l) {
			l = xcalloc(1, sizeof(*l));
			l->user = user;
			STAILQ_INSERT_TAIL(list, l, link);
		}
		asked_add(&l->asked, asked->ask[k], asked->grant[k]);
	}
	asked_free(asked);
}

void late_free(struct late *l)
{
	asked_free(&l->asked);
	free(l);
}

/* Wait for answers; @l->pending is how many lack then. */
static void late_await(struct late *l, const struct cache_host *host, uint64_t end)
{
	unsigned before = l->pending;

	l->revoking = host->revoke_more(l->revoking, end);
	l->pending = 0;
	for (unsigned k = 0; k < l->asked.n; k++)
		l->pending += l->asked.ask[k].err == -EINPROGRESS;
	l->silent = l->pending == before;
}

void late_ask(struct late_list *list, const struct cache_host *host)
{
	struct late *l;
	bool more = true;

	STAILQ_FOREACH(l, list, link) {
		l->revoking = host->revoke_soon(l->asked.ask, l->asked.n, 0);
		l->pending = l->asked.n;
	}
	for (unsigned k = 0; k < ANSWERS_WAITS && more; k++) {
		uint64_t end = now_ns() + ANSWER_NS;

		more = false;
		STAILQ_FOREACH(l, list, link)
			if (l->revoking && !l->silent) {
				late_await(l, host, end);
				more |= l->revoking && !l->silent;
			}
	}
}

/* All that is asked of the user's clients has its share of the worker's time, so none of their answers waits for another. */
static void late_work(void *arg)
{
	struct late_user *u = arg;
	struct cache *c = u->cache;
	struct late *l;

	pthread_mutex_lock(&c->late_lock);
	while ((l = STAILQ_FIRST(&u->list))) {
		uint64_t share = ANSWER_NS / u->n;

		STAILQ_REMOVE_HEAD(&u->list, link);
		pthread_mutex_unlock(&c->late_lock);
		late_await(l, &c->host, now_ns() + share);
		for (unsigned k = 0; k < l->asked.n; k++)
			asked_settle(&l->asked, k, STAYS);
		pthread_mutex_lock(&c->late_lock);
		if (l->revoking) {
			STAILQ_INSERT_TAIL(&u->list, l, link);
		} else {
			u->n--;
			late_free(l);
		}
	}
	HASH_DEL(c->late, u);
	pthread_mutex_unlock(&c->late_lock);
	free(u);
}

void late_leave(struct cache *c, struct late *l)
{
	struct late_user *u;

	pthread_mutex_lock(&c->late_lock);
	HASH_FIND(hh, c->late, &l->user.uid, sizeof(l->user.uid), u);
	if (!u) {
		u = xcalloc(1, sizeof(*u));
		u->uid = l->user.uid;
		u->cache = c;
		STAILQ_INIT(&u->list);
		HASH_ADD(hh, c->late, uid, sizeof(u->uid), u);
		pool_submit_for(c->evictors, l->user.uid, l->user.owner, late_work, u);
	}
	STAILQ_INSERT_TAIL(&u->list, l, link);
	u->n++;
	pthread_mutex_unlock(&c->late_lock);
}
