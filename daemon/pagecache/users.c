/*
 * users.c - how much of a device's memory each user may have pinned.
 *
 * What is pinned cannot be taken from a client that behaves. So no user may pin all of a device, and all users together
 * leave some to the owners of the mount, who are not limited. A chunk counts once for each user who pins it, or another of its extent, however
 * many of the user's mappings and calls do, and whether the user has pinned its file to the device as well.
 */
#include <errno.h>
#include <stdlib.h>
#include <uthash.h>

#include "pagecache/users.h"

#include "base/log.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/devices.h"
#include "pagecache/mapping.h"
#include "pagecache/replica.h"

/* How much of a device all users together may pin. */
#define USERS_OF_8 7u

/* Lives while the user pins something, a file or by an acquire, or something was read ahead. */
struct device_user {
	uid_t uid;
	uint64_t chunks;
	uint64_t ahead; /* that were read ahead for the user's mappings, and that nobody has pinned since */
	uint64_t file_chunks; /* of files that the user has pinned to the device */
	UT_hash_handle hh;
};

/* Of a replica: a user, and by how many grants and calls he pins it. Or of stranded memory: by how many clients. */
struct pinner {
	struct pinner *next;
	uid_t uid;
	uint64_t n;
	bool file; /* one of these is for a file that the user has pinned to the device */
};

static uint64_t chunks_of(const struct cache_device *dev)
{
	return dev->capacity / GAIA_CHUNK;
}

static uint64_t each_may(const struct cache_device *dev)
{
	return MAX(1u, chunks_of(dev) * dev->each_percent / 100);
}

static uint64_t users_may(const struct cache_device *dev)
{
	return MAX(each_may(dev), chunks_of(dev) * USERS_OF_8 / 8);
}

uint64_t user_limit(const struct cache_device *dev)
{
	return each_may(dev) * GAIA_CHUNK;
}

/* The next ones with dev->lock held. */
static struct pinner *pinner_find(struct pinner *p, uid_t uid)
{
	while (p && p->uid != uid)
		p = p->next;
	return p;
}

static struct device_user *user_find(const struct cache_device *dev, uid_t uid)
{
	struct device_user *user;

	HASH_FIND(hh, dev->users, &uid, sizeof(uid), user);
	return user;
}

static struct device_user *user_make(struct cache_device *dev, uid_t uid)
{
	struct device_user *user = user_find(dev, uid);

	if (user)
		return user;
	user = xcalloc(1, sizeof(*user));
	user->uid = uid;
	HASH_ADD(hh, dev->users, uid, sizeof(user->uid), user);
	return user;
}

static void user_maybe_free(struct cache_device *dev, struct device_user *user)
{
	if (user->chunks > 0 || user->ahead > 0 || user->file_chunks > 0)
		return;
	HASH_DEL(dev->users, user);
	free(user);
}

void user_pin_more(struct cache_device *dev, struct pinner **pinners, uid_t uid, unsigned chunks)
{
	struct pinner *p = pinner_find(*pinners, uid);
	struct device_user *user;

	if (p) {
		p->n++;
		return;
	}
	user = user_make(dev, uid);
	user->chunks += chunks;
	dev->user_chunks += *pinners ? 0 : chunks;
	p = xmalloc(sizeof(*p));
	*p = (struct pinner){ *pinners, uid, 1, false };
	*pinners = p;
}

void user_pin_less(struct cache_device *dev, struct pinner **pinners, uid_t uid, unsigned chunks)
{
	struct pinner **at = pinners, *p;
	struct device_user *user;

	while ((p = *at)->uid != uid)
		at = &p->next;
	if (--p->n > 0)
		return;
	*at = p->next;
	free(p);
	dev->user_chunks -= *pinners ? 0 : chunks;
	user = user_find(dev, uid);
	user->chunks -= chunks;
	user_maybe_free(dev, user);
}

uint64_t user_file_chunks(const struct cache_device *dev, uid_t uid)
{
	const struct device_user *has = user_find(dev, uid);

	return has ? has->file_chunks : 0;
}

void user_file_chunks_more(struct cache_device *dev, uid_t uid, uint64_t n)
{
	user_make(dev, uid)->file_chunks += n;
}

void user_file_chunks_less(struct cache_device *dev, uid_t uid, uint64_t n)
{
	struct device_user *has = user_find(dev, uid);

	has->file_chunks -= n;
	user_maybe_free(dev, has);
}

void user_file_pinned(struct replica *unit, uid_t uid)
{
	struct pinner *p = pinner_find(unit->pinners, uid);

	if (p && p->file)
		return;
	user_pin_more(unit->dev, &unit->pinners, uid, unit_chunks(unit));
	pinner_find(unit->pinners, uid)->file = true;
}

void user_file_unpinned(struct replica *unit, uid_t uid)
{
	struct pinner *p = pinner_find(unit->pinners, uid);

	if (!p || !p->file)
		return;
	p->file = false;
	user_pin_less(unit->dev, &unit->pinners, uid, unit_chunks(unit));
}

void users_file_unpinned(struct replica *unit)
{
	struct pinner *p, *next;

	for (p = unit->pinners; p; p = next) {
		next = p->next;
		user_file_unpinned(unit, p->uid);
	}
}

bool user_may_ahead(const struct cache_device *dev, const struct cache_user *user)
{
	const struct device_user *has = user_find(dev, user->uid);
	uint64_t mine = has ? has->chunks + has->ahead : 0;

	return user->owner || (mine < each_may(dev) && dev->user_chunks + dev->user_ahead < users_may(dev));
}

bool user_ahead_helps(const struct cache_device *dev, const struct cache_user *user, const struct cache_user *other)
{
	const struct device_user *has = user_find(dev, user->uid);

	if (user_may_ahead(dev, user))
		return true;
	if (has && has->chunks + has->ahead >= each_may(dev))
		return other->uid == user->uid && has->chunks < each_may(dev);
	return !other->owner && dev->user_chunks < users_may(dev);
}

void user_ahead_more(struct cache_device *dev, const struct cache_user *user)
{
	user_make(dev, user->uid)->ahead++;
	dev->user_ahead += !user->owner;
}

void user_ahead_less(struct cache_device *dev, const struct cache_user *user)
{
	struct device_user *has = user_find(dev, user->uid);

	has->ahead--;
	dev->user_ahead -= !user->owner;
	user_maybe_free(dev, has);
}

uint64_t user_ahead(const struct cache_device *dev, const struct cache_user *user)
{
	const struct device_user *has = user_find(dev, user->uid);

	return has ? has->ahead : 0;
}

/*
 * Counts those of reps[0..n) (NULL: made later) that are new to the user, and to all users; of an extent all, once: its replicas follow each
 * other. Whether there is room for them.
 */
static bool has_room(const struct mapping *m, struct replica *const *reps, uint64_t n)
{
	struct cache_device *dev = m->dev;
	struct device_user *user = user_find(dev, m->user.uid);
	uint64_t mine = 0, all = 0;

	for (uint64_t k = 0; k < n; k++) {
		const struct replica *unit = reps[k] ? replica_unit(reps[k]) : NULL;
		unsigned chunks = unit ? unit_chunks(unit) : 1;

		if (unit && k > 0 && reps[k - 1] && replica_unit(reps[k - 1]) == unit)
			continue;
		mine += !unit || !pinner_find(unit->pinners, m->user.uid) ? chunks : 0;
		all += !unit || !unit->pinners ? chunks : 0;
	}
	return (!mine || (user ? user->chunks : 0) + mine <= each_may(dev)) &&
	       (!all || dev->user_chunks + all <= users_may(dev));
}

int user_refuse(const struct mapping *m)
{
	if (log_may(&m->dev->pace))
		log_warn("device %s: user %u is refused more memory: a user may have %llu MiB of it pinned, all users but the owners of the mount %llu MiB (--user-limit device=PERCENT)",
			 m->dev->dev->name, (unsigned)m->user.uid, (unsigned long long)(each_may(m->dev) * GAIA_CHUNK >> 20),
			 (unsigned long long)(users_may(m->dev) * GAIA_CHUNK >> 20));
	return -ENOMEM;
}

bool user_may_pin(const struct mapping *m, struct replica *const *reps, uint64_t n)
{
	bool room;

	if (m->user.owner)
		return true;
	pthread_mutex_lock(&m->dev->lock);
	room = has_room(m, reps, n);
	pthread_mutex_unlock(&m->dev->lock);
	return room;
}

static void unit_pin_more(struct replica *unit, uid_t uid)
{
	user_pin_more(unit->dev, &unit->pinners, uid, unit_chunks(unit));
}

bool user_pin_all(const struct mapping *m, struct replica *const *reps, uint64_t n)
{
	struct cache_device *dev = m->dev;
	bool room;

	if (m->user.owner)
		return true;
	pthread_mutex_lock(&dev->reserve);
	pthread_mutex_lock(&dev->lock);
	room = has_room(m, reps, n);
	for (uint64_t k = 0; k < n && room; k++)
		unit_pin_more(replica_unit(reps[k]), m->user.uid);
	pthread_mutex_unlock(&dev->lock);
	pthread_mutex_unlock(&dev->reserve);
	return room;
}

void user_pin(const struct mapping *m, struct replica *rep)
{
	if (m->user.owner)
		return;
	pthread_mutex_lock(&rep->dev->lock);
	unit_pin_more(replica_unit(rep), m->user.uid);
	pthread_mutex_unlock(&rep->dev->lock);
}

void user_unpin(const struct mapping *m, struct replica *rep)
{
	struct replica *unit = replica_unit(rep);

	if (m->user.owner)
		return;
	pthread_mutex_lock(&rep->dev->lock);
	user_pin_less(rep->dev, &unit->pinners, m->user.uid, unit_chunks(unit));
	pthread_mutex_unlock(&rep->dev->lock);
}

void user_unpin_all(const struct mapping *m, struct replica *const *reps, uint64_t n)
{
	for (uint64_t k = 0; k < n; k++)
		user_unpin(m, reps[k]);
}
