/*
 * quota.c - see quota.h.
 */
#include "base/quota.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "base/log.h"
#include "base/util.h"

/* Lives while the user has anything. */
struct user {
	struct quota_user public;
	UT_hash_handle hh; /* by public.uid */
};

struct quota {
	uid_t owner; /* constant */
	struct log_rate pace[QUOTA_COUNT]; /* one for each kind of thing, so that none suppresses another's lines */

	pthread_mutex_t lock;
	/* lock. */
	struct user *users;
	struct limit {
		unsigned all, users, each; /* limits */
		unsigned used, used_by_users;
	} limit[QUOTA_COUNT];
};

static const char *const names[] = {
#define X(name, all, users, each) [QUOTA_##name] = #name,
	QUOTAS(X)
#undef X
};

struct quota *quota_create(uid_t owner)
{
	static const struct limit usual[] = {
#define X(name, a, u, e) [QUOTA_##name] = { .all = (a), .users = (u), .each = (e) },
		QUOTAS(X)
#undef X
	};
	struct quota *q = xcalloc(1, sizeof(*q));

	q->owner = owner;
	memcpy(q->limit, usual, sizeof(usual));
	pthread_mutex_init(&q->lock, NULL);
	return q;
}

void quota_destroy(struct quota *q)
{
	bug_on(q->users);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

static unsigned part(unsigned of, unsigned numerator, unsigned denominator)
{
	return (unsigned)MAX(1, (uint64_t)of * numerator / denominator);
}

void quota_cap(struct quota *q, enum quota_of what, unsigned all)
{
	struct limit *l = &q->limit[what];

	pthread_mutex_lock(&q->lock);
	if (all < l->all) {
		l->users = part(l->users, all, l->all);
		l->each = part(l->each, all, l->all);
		l->all = MAX(all, 1);
	}
	pthread_mutex_unlock(&q->lock);
}

void quota_set_each(struct quota *q, enum quota_of what, unsigned each)
{
	struct limit *l = &q->limit[what];

	pthread_mutex_lock(&q->lock);
	l->each = MIN(each, l->users);
	pthread_mutex_unlock(&q->lock);
}

bool quota_is_owner(const struct quota *q, uid_t uid)
{
	return uid == 0 || uid == q->owner;
}

/* The lock is held here and in the next function. */
static struct user *find(struct quota *q, uid_t uid)
{
	struct user *user;

	HASH_FIND(hh, q->users, &uid, sizeof(uid), user);
	return user;
}

static int look(struct quota *q, enum quota_of what, const struct user *user, uid_t uid, unsigned n)
{
	const struct limit *l = &q->limit[what];

	if (n > l->all || l->used > l->all - n)
		return -ENFILE;
	if (quota_is_owner(q, uid))
		return 0;
	if (n > l->each || (user && user->public.used[what] > l->each - n))
		return -EMFILE;
	return n > l->users || l->used_by_users > l->users - n ? -ENFILE : 0;
}

static void complain(struct quota *q, enum quota_of what, uid_t uid, int err)
{
	struct quota_use use;

	if (!log_may(&q->pace[what]))
		return;
	use = quota_use(q, what);
	if (err == -EMFILE && quota_is_option(what))
		log_warn("user %u has %u %s, as many as a user may have, and asks for more (--user-limit %s=N)",
			 (unsigned)uid, use.each, names[what], names[what]);
	else if (err == -EMFILE)
		log_warn("user %u has %u %s, as many as a user may have, and asks for more", (unsigned)uid,
			 use.each, names[what]);
	else
		log_warn("user %u is refused: there are %u %s, and no more are free for users", (unsigned)uid,
			 use.used, names[what]);
}

int quota_take_many(struct quota *q, enum quota_of what, uid_t uid, unsigned n)
{
	struct user *user;
	int err;

	pthread_mutex_lock(&q->lock);
	user = find(q, uid);
	err = look(q, what, user, uid, n);
	if (err || !n)
		goto unlock;
	if (!user) {
		user = xcalloc(1, sizeof(*user));
		user->public.uid = uid;
		HASH_ADD(hh, q->users, public.uid, sizeof(user->public.uid), user);
	}
	user->public.used[what] += n;
	q->limit[what].used += n;
	q->limit[what].used_by_users += quota_is_owner(q, uid) ? 0 : n;
unlock:
	pthread_mutex_unlock(&q->lock);
	if (err)
		complain(q, what, uid, err);
	return err;
}

int quota_take(struct quota *q, enum quota_of what, uid_t uid)
{
	return quota_take_many(q, what, uid, 1);
}

int quota_look(struct quota *q, enum quota_of what, uid_t uid)
{
	int err;

	pthread_mutex_lock(&q->lock);
	err = look(q, what, find(q, uid), uid, 1);
	pthread_mutex_unlock(&q->lock);
	return err;
}

static bool has_nothing(const struct user *user)
{
	for (unsigned i = 0; i < QUOTA_COUNT; i++)
		if (user->public.used[i])
			return false;
	return true;
}

void quota_give_many(struct quota *q, enum quota_of what, uid_t uid, unsigned n)
{
	struct user *user;

	if (!n)
		return;

	pthread_mutex_lock(&q->lock);
	user = find(q, uid);
	bug_on(!user || user->public.used[what] < n);
	user->public.used[what] -= n;
	q->limit[what].used -= n;
	q->limit[what].used_by_users -= quota_is_owner(q, uid) ? 0 : n;
	if (has_nothing(user)) {
		HASH_DEL(q->users, user);
		free(user);
	}
	pthread_mutex_unlock(&q->lock);
}

void quota_give(struct quota *q, enum quota_of what, uid_t uid)
{
	quota_give_many(q, what, uid, 1);
}

const char *quota_name(enum quota_of what)
{
	return names[what];
}

struct quota_use quota_use(struct quota *q, enum quota_of what)
{
	const struct limit *l = &q->limit[what];
	struct quota_use use;

	pthread_mutex_lock(&q->lock);
	use = (struct quota_use){ .used = l->used, .all = l->all, .users = l->users, .each = l->each };
	pthread_mutex_unlock(&q->lock);
	return use;
}

static int by_uid(const void *a, const void *b)
{
	const struct quota_user *x = a, *y = b;

	return x->uid < y->uid ? -1 : x->uid > y->uid;
}

struct quota_user *quota_users(struct quota *q, size_t *n)
{
	struct quota_user *list = NULL;
	struct user *user, *next;

	*n = 0;
	pthread_mutex_lock(&q->lock);
	if (q->users)
		list = xcalloc(HASH_COUNT(q->users), sizeof(*list));
	HASH_ITER(hh, q->users, user, next)
		list[(*n)++] = user->public;
	pthread_mutex_unlock(&q->lock);
	if (list)
		qsort(list, *n, sizeof(*list), by_uid);
	return list;
}

bool quota_is_option(enum quota_of what)
{
	return what == QUOTA_clients || what == QUOTA_mappings || what == QUOTA_directories ||
	       what == QUOTA_removed_files;
}

enum quota_of quota_named(const char *name, size_t len)
{
	unsigned i = 0;

	while (i < QUOTA_COUNT && (!quota_is_option(i) || strlen(names[i]) != len || memcmp(names[i], name, len)))
		i++;
	return (enum quota_of)i;
}
