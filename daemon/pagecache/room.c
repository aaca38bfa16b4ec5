/*
 * room.c - room on a device for an acquire.
 *
 * What an acquire gets is decided under dev->reserve, at once. So two acquires that need each other's memory are decided one after the
 * other, and one that cannot fit fails as a whole. What is missing is promised: replicas without memory, which the acquire pins, and
 * which count like others. Then, with no lock held, what must leave for them is evicted, and they get memory (18).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/room.h"

#include "base/thread.h"
#include "base/uses.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/coherence.h"
#include "pagecache/devices.h"
#include "pagecache/evict.h"
#include "pagecache/fetch.h"
#include "pagecache/file.h"
#include "pagecache/file_pins.h"
#include "pagecache/grant.h"
#include "pagecache/holds.h"
#include "pagecache/promises.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/stranded.h"
#include "pagecache/users.h"
#include "pagecache/view.h"

/* Give up snapshots, by fetching what was released, until a chunk is free: true if there was one. */
static bool shadows_reclaim(struct cache_device *dev)
{
	struct chunk **list;
	unsigned n = device_busy_chunks(dev, true, &list);
	bool freed = false;

	for (unsigned k = 0; k < n; k++) {
		struct replica *rep;

		if (!freed && !chunk_fetch(list[k], fetch_pages)) {
			pthread_mutex_lock(&list[k]->lock);
			rep = replica_find(list[k], dev, NULL);
			freed = !rep || !rep->shadow;
			pthread_mutex_unlock(&list[k]->lock);
		}
		chunk_put(list[k]);
	}
	free(list);
	return freed;
}

/* What an acquire needs, and what it has got. */
struct demand {
	struct mapping *m;
	struct readers *only;
	struct cache_device *dev;
	const uint64_t *index; /* of the chunks */
	uint64_t n;
	struct replica **out;	     /* pinned, but of what decide() has not decided */
	struct replica_list mine;    /* of these, the units that were promised to us */
	unsigned kept;		     /* so many of them have memory */
	bool counted;		     /* all of @out is, as the user's */
	struct replica_list victims; /* units that are claimed by us */
	uint64_t unready;	     /* idle units that were made not ready for it, and for which it has claimed none yet */
	uint64_t n_left, n_stuck;    /* the device's: before we looked; when we began to try */
	uint64_t n_given_up;	     /* stranded_count(), before we looked */
	unsigned rounds_late;	     /* in which clients did not answer at once, so that others' memory is claimed */
	unsigned decision;	     /* dev->n_decisions */
	bool modest;		     /* see replicas_pin_modestly() */
	bool splits;		     /* extents may go of which it asks for parts: there is no room otherwise */
	bool piecewise;		     /* see replicas_pin_piecewise() */
	atomic_bool *lacks;
};

/* Chunk k's replica, which stays while dev->reserve is held; NULL: there is none. *@wait: there is one, and it is leaving. */
static struct replica *look_up(struct demand *d, uint64_t k, bool *wait)
{
	struct chunk *ch = chunk_get(d->m->file, d->index[k], false);
	bool leaves = false, goes;
	struct replica *rep;

	if (!ch)
		return NULL;
	pthread_mutex_lock(&ch->lock);
	rep = replica_find(ch, d->dev, d->only);
	if (rep) {
		pthread_mutex_lock(&d->dev->lock);
		leaves = replica_leaves(rep);
		pthread_mutex_unlock(&d->dev->lock);
	}
	goes = rep && !leaves && replica_is_spoiled(rep);
	pthread_mutex_unlock(&ch->lock);
	if (goes && replica_claim(rep, NULL, NULL)) {
		replica_list_add(&d->victims, replica_unit(rep));
		leaves = true;
	}
	*wait |= leaves;
	chunk_put(ch);
	return rep;
}

/* Of the demand's replicas: whether this is the first one of its unit. They are in order, so those of a unit follow each other. */
static bool begins_unit(const struct demand *d, uint64_t k)
{
	return k == 0 || !d->out[k - 1] || replica_unit(d->out[k - 1]) != replica_unit(d->out[k]);
}

/* Whether somebody holds some of it. */
static bool unit_is_held(const struct replica *unit)
{
	bool held = unit_is_held_ready(unit);

	for (unsigned k = 0; k < unit_chunks(unit) && !held; k++) {
		struct replica *rep = unit_member(unit, k);
		const struct grant *g;

		pthread_mutex_lock(&rep->chunk->lock);
		LIST_FOREACH(g, &rep->grants, of_replica)
			held |= g->pinned;
		pthread_mutex_unlock(&rep->chunk->lock);
	}
	return held;
}

/*
 * The mapping's client does not know extents. Those of the demand go, and come back as single chunks (-EAGAIN; calls under way may be waited for).
 * If somebody holds one, or its file is pinned here, all stay (-EBUSY).
 */
static int without_extents(struct demand *d)
{
	int err = 0;

	for (uint64_t k = 0; k < d->n; k++) {
		if (!d->out[k] || !d->out[k]->extent || !begins_unit(d, k))
			continue;
		err = -EAGAIN;
		if (replica_unit(d->out[k])->file_pinned || unit_is_held(replica_unit(d->out[k])))
			return -EBUSY;
	}
	for (uint64_t k = 0; k < d->n && err; k++)
		if (d->out[k] && d->out[k]->extent && begins_unit(d, k) && replica_claim(d->out[k], NULL, NULL))
			replica_list_add(&d->victims, replica_unit(d->out[k]));
	return err;
}

/* To find the file's name its source may have to be asked, which may take long: no lock is held. */
static void say_it_is_older(const struct demand *d)
{
	if (log_may(&d->dev->pace_extents))
		log_warn("device %s: user %u is refused part of %s, which other programs hold in extents: its program has an older libgaiaclient, "
			 "which cannot map these (--device ...,extents=off)", d->dev->dev->name, (unsigned)d->m->user.uid,
			 cfile_name(d->m->file, (char[CFILE_NAME_MAX]){ "" }));
}

/*
 * Extents of which only parts are asked for count as a whole. If that is too much, those that nobody uses go, and what is asked for of them comes
 * back as single chunks: whether there were any.
 */
static bool split_extents(struct demand *d)
{
	uint64_t asked, end;

	for (uint64_t k = 0; k < d->n && !d->modest; k = end) {
		struct replica *unit = d->out[k] ? replica_unit(d->out[k]) : NULL;

		for (end = k + 1; end < d->n && unit && d->out[end] && replica_unit(d->out[end]) == unit; end++)
			;
		asked = end - k;
		if (unit && unit->extent && asked < unit_chunks(unit) && !unit->file_pinned && !unit_is_held(unit) && replica_claim(unit, NULL, NULL))
			replica_list_add(&d->victims, unit);
	}
	return d->victims.n > 0;
}

/*
 * If everything that is pinned then, all that is ready, and all of the files that are pinned to the device, can be there at the same
 * time: pin what is there, and count the rest as promised: 0. Otherwise as many chunks are too many, and nothing was done. dev->reserve is
 * held, without which the sum grows only by memory that clients keep: what becomes ready was pinned, and what is held of what is ready
 * counts already.
 */
static uint64_t pin_if_it_fits(struct demand *d)
{
	struct cache_device *dev = d->dev;
	uint64_t missing = 0, idle = 0, reserved, needed;

	pthread_mutex_lock(&dev->lock);
	for (uint64_t k = 0; k < d->n; k++) {
		const struct replica *unit = d->out[k] && begins_unit(d, k) ? replica_unit(d->out[k]) : NULL;

		missing += !d->out[k];
		if (unit && unit->pins == 0 && unit_ready(unit) == 0 && !unit->file_pinned)
			idle += unit_chunks(unit);
	}
	/* Of pinned files' chunks that are missing, those that are asked for count once. */
	reserved = dev->n_idle_pinned + dev->file_chunks - dev->file_chunks_there - file_chunks_missing(d->m, d->only, d->index, d->out, d->n);
	needed = dev->pinned - dev->leaving + (missing + idle + reserved + dev->n_idle_ready) * GAIA_CHUNK;
	for (uint64_t k = 0; k < d->n && needed <= dev->capacity; k++)
		if (d->out[k])
			bug_on(!replica_pin_locked(d->out[k]));
	if (needed <= dev->capacity) {
		dev->pinned += missing * GAIA_CHUNK;
		dev->promised += missing * GAIA_CHUNK;
	}
	pthread_mutex_unlock(&dev->lock);
	return needed <= dev->capacity ? 0 : (needed - dev->capacity + GAIA_CHUNK - 1) / GAIA_CHUNK;
}

/* Whether all chunks of an extent of the file are missing, from the @k-th that is asked for on. */
static bool lacks_extent(const struct demand *d, uint64_t k)
{
	if (d->index[k] % GAIA_EXTENT_CHUNKS > 0 || d->n - k < GAIA_EXTENT_CHUNKS ||
	    d->index[k + GAIA_EXTENT_CHUNKS - 1] != d->index[k] + GAIA_EXTENT_CHUNKS - 1)
		return false;
	for (unsigned i = 0; i < GAIA_EXTENT_CHUNKS; i++)
		if (d->out[k + i])
			return false;
	return !file_pins_end_within(d->m, d->only, d->index[k], d->index[k] + GAIA_EXTENT_CHUNKS);
}

/*
 * Whether what is missing is made as extents where it can be: not of files that a client has mapped which does not know extents.
 */
static bool makes_extents(const struct demand *d)
{
	return d->dev->dev->gives_extents && d->only != view_readers(d->m->file->cache) && d->m->user.extents &&
	       atomic_load(&d->m->file->n_without_extents) == 0;
}

/* Make replicas of what was counted: all, or, on error, none. dev->reserve is held. */
static int make_promises(struct demand *d)
{
	bool extents = makes_extents(d);
	int err = 0;

	for (uint64_t k = 0; k < d->n; k++) {
		if (d->out[k])
			continue;
		if (!err && extents && lacks_extent(d, k) && !promise_make_extent(d->m->file, d->index[k], d->dev, d->only, d->out + k)) {
			replica_list_add(&d->mine, d->out[k]);
			continue;
		}
		if (!err)
			err = promise_make(chunk_get(d->m->file, d->index[k], true), d->dev, d->only, &d->out[k]);
		if (!err) {
			replica_list_add(&d->mine, d->out[k]);
			continue;
		}
		pthread_mutex_lock(&d->dev->lock);
		d->dev->pinned -= GAIA_CHUNK;
		d->dev->promised -= GAIA_CHUNK;
		pthread_mutex_unlock(&d->dev->lock);
	}
	return err;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* For any of the unit. */
static bool asks_for(const struct demand *d, const struct replica *unit)
{
	bool asks = false;

	for (unsigned k = 0; k < unit_chunks(unit) && !asks; k++)
		asks = bsearch(&unit_member(unit, k)->chunk->index, d->index, d->n, sizeof(d->index[0]), by_number);
	return asks && unit->chunk->file == d->m->file && unit->only == d->only;
}

#define LOOK_AT 16u /* at first */

/*
 * End the readiness of idle units of @n chunks that the acquire does not ask for, the longest unused first, of which nothing is held. False:
 * there are not so many; then nothing was done. Otherwise there is room for as many, unless some were acquired meanwhile. dev->reserve is held.
 */
static bool unready_idle(struct demand *d, uint64_t n)
{
	uint64_t most = n + LOOK_AT, listed, free_ones, chunks;
	struct replica **list;

	/* Those that have been idle for longest are seldom held: so mostly a few have to be looked at, however many there are. */
	for (;; most *= 2) {
		listed = device_idle_ready(d->dev, most, &list);
		free_ones = chunks = 0;
		for (uint64_t k = 0; k < listed && chunks < n; k++) {
			if (asks_for(d, list[k]) || unit_is_held_ready(list[k]))
				continue;
			chunks += unit_chunks(list[k]);
			list[free_ones++] = list[k];
		}
		if (chunks >= n || listed < most)
			break;
		free(list);
	}
	for (uint64_t k = 0; k < free_ones && chunks >= n; k++) {
		unit_end_ready(list[k]);
		d->unready++;
	}
	free(list);
	return chunks >= n;
}

static bool lacks_room(struct cache_device *dev)
{
	bool lacks;

	pthread_mutex_lock(&dev->lock);
	lacks = dev->used + dev->promised > dev->capacity + dev->leaving;
	pthread_mutex_unlock(&dev->lock);
	return lacks;
}

/*
 * Whether its eviction would wait: for pages that are being read ahead, or for a thread that removes contents of the file, which may wait for
 * storage. dev->lock is held.
 */
static bool leaves_late(const struct replica *rep)
{
	return rep->filling > 0 || atomic_load(&rep->chunk->file->range_shut) > 0;
}

#define LATE_LOOK_AT 1024u
#define LATE_PASSES 8u

/*
 * Whether others go before one that leaves late: for so many decisions. Otherwise memory would stay whose user keeps cutting the file, and
 * that of others would go. dev->lock is held.
 */
static bool pass_over_late(const struct demand *d, struct replica *rep)
{
	if (!leaves_late(rep) || (rep->passed == LATE_PASSES && rep->passed_by != d->decision))
		return false;
	rep->passed += rep->passed_by != d->decision;
	rep->passed_by = d->decision;
	return true;
}

/*
 * The first that could be evicted, if @n_stuck is dev->n_stuck as of when the caller began to try: another file's trouble is not ours, as long as
 * another chunk can go. One that leaves late is passed over unless it is to be waited for (@wait), or there are so many. dev->lock is held.
 */
static struct replica *first_quiet(const struct demand *d, struct replica_queue *list, uint64_t n_stuck, bool wait)
{
	unsigned looked_at = 0;
	struct replica *rep;

	TAILQ_FOREACH(rep, list, link)
		if (rep->stuck <= n_stuck && (wait || !pass_over_late(d, rep) || ++looked_at > LATE_LOOK_AT))
			break;
	return rep;
}

/*
 * If an idle replica that is ready has been idle for longer than those that are not, it may have been used since: it is the last from now
 * on, and, unless it is held, not ready, so that it is known whether it is used. dev->reserve is held.
 */
static void use_again(const struct demand *d)
{
	struct cache_device *dev = d->dev;
	struct replica *rep, *other;
	bool held;

	pthread_mutex_lock(&dev->lock);
	rep = TAILQ_FIRST(&dev->idle_ready);
	other = TAILQ_FIRST(&dev->idle);
	if ((rep && other && other->idled < rep->idled) || first_quiet(d, &dev->unused, UINT64_MAX, false))
		rep = NULL;
	pthread_mutex_unlock(&dev->lock);
	if (!rep)
		return;
	held = unit_is_held_ready(rep);
	if (!held)
		unit_end_ready(rep);
	pthread_mutex_lock(&dev->lock);
	if (held && rep->pins == 0) {
		replica_idle_remove(rep);
		replica_idle_add(rep);
	}
	pthread_mutex_unlock(&dev->lock);
}

/*
 * Claim the replica that was read ahead first of those that were not used since, or else the one that has been idle for longest of those that
 * are not ready: false if none can go. @wait: see first_quiet(). dev->reserve is held.
 */
static bool claim_next(struct demand *d, bool wait)
{
	struct cache_device *dev = d->dev;
	struct replica *rep;

	pthread_mutex_lock(&dev->lock);
	rep = first_quiet(d, &dev->unused, d->n_stuck, wait);
	if (!rep)
		rep = first_quiet(d, &dev->idle, d->n_stuck, wait);
	if (rep) {
		replica_claim_idle(rep);
		replica_list_add(&d->victims, rep);
	}
	pthread_mutex_unlock(&dev->lock);
	return rep;
}

#define OWED_LOOK_AT 1024u

/*
 * Put what is owed behind other idle replicas that are not ready, so that a client that is mute once does not cost every round. False:
 * there are no others. @looks is how often this may look at one still. dev->reserve is held.
 */
static bool pass_over_owed(struct demand *d, unsigned *looks)
{
	struct cache_device *dev = d->dev;
	uint64_t before = UINT64_MAX;

	for (; *looks > 0; --*looks) {
		struct replica *rep = NULL;
		bool again;

		pthread_mutex_lock(&dev->lock);
		before = MIN(before, dev->n_idled);
		if (dev->late > 0 && !first_quiet(d, &dev->unused, d->n_stuck, false))
			rep = first_quiet(d, &dev->idle, d->n_stuck, false);
		again = rep && rep->idled > before;
		pthread_mutex_unlock(&dev->lock);
		if (!rep || !replica_is_owed(rep))
			break;
		if (again)
			return false;
		pthread_mutex_lock(&dev->lock);
		if (rep->pins == 0) {
			replica_idle_remove(rep);
			replica_idle_add(rep);
		}
		pthread_mutex_unlock(&dev->lock);
	}
	return true;
}

/* Claim units of up to @most chunks, or a few more; for each one loses its readiness, here or when room was counted. dev->reserve is held. */
static void claim_room(struct demand *d, uint64_t most, bool regardless)
{
	unsigned looks = OWED_LOOK_AT;

	while (most > 0 && (regardless || lacks_room(d->dev))) {
		bool claimed;

		if (d->unready == 0 && !d->modest)
			use_again(d);
		claimed = pass_over_owed(d, &looks) && claim_next(d, false);
		if (!claimed && !d->modest && unready_idle(d, 1))
			continue;
		/* Only now what is owed, or one whose eviction waits. */
		if (!claimed && !claim_next(d, false) && !claim_next(d, true))
			return;
		d->unready -= d->unready > 0;
		most -= MIN(most, (uint64_t)unit_chunks(d->victims.at[d->victims.n - 1]));
	}
}

#define TRIES_TO_FIT 3u /* others may acquire what is ready meanwhile */

/* pin_if_it_fits(), beside everything that is held; what is ready may be held at any moment. dev->reserve is held. */
static bool pin_beside_what_is_held(struct demand *d)
{
	uint64_t lacking;

	for (unsigned k = 0; k < TRIES_TO_FIT; k++) {
		lacking = pin_if_it_fits(d);
		if (lacking == 0)
			return true;
		if (d->modest || !unready_idle(d, lacking))
			return false;
	}
	return pin_if_it_fits(d) == 0;
}

/*
 * Decide at once everything that the acquire gets. 0: it is pinned, or promised, and what leaves for that is
 * claimed. -ENOMEM: it does not fit; -EDQUOT: it is more than one user may pin. -EAGAIN: something of it is leaving; those of these that
 * we have to evict are claimed.
 */
static int decide(struct demand *d)
{
	bool wait = false;
	int err = 0;

	d->n_left = device_count_left(d->dev);
	d->unready = 0;
	pthread_mutex_lock(&d->dev->reserve);
	for (uint64_t k = 0; k < d->n; k++)
		d->out[k] = look_up(d, k, &wait);
	if (wait)
		err = -EAGAIN;
	else if (!d->m->user.extents && (err = without_extents(d)))
		;
	else if (!user_may_pin(d->m, d->out, d->n))
		err = -EDQUOT;
	else if (!pin_beside_what_is_held(d))
		err = -ENOMEM;
	if (d->splits && (err == -ENOMEM || err == -EDQUOT) && split_extents(d))
		err = -EAGAIN;
	if (err)
		memset(d->out, 0, d->n * sizeof(struct replica *));
	else
		err = make_promises(d);
	if (!err) {
		claim_room(d, units_chunks(&d->mine), false);
		/* At once, so that what others of the same user decide meanwhile counts it. */
		for (uint64_t k = 0; k < d->n; k++)
			user_pin(d->m, d->out[k]);
		d->counted = true;
	}
	pthread_mutex_unlock(&d->dev->reserve);
	return err;
}

/* ---- victims that clients map ---- */

#define MORE_AT_ONCE 16u /* so many more are claimed at most, when clients have not answered */

/* Whether others are asking clients for it: then it is late. */
static bool is_others(struct replica *rep)
{
	bool others;

	pthread_mutex_lock(&rep->chunk->lock);
	others = rep->lookers > 0;
	if (others)
		replica_set_late(rep);
	pthread_mutex_unlock(&rep->chunk->lock);
	return others;
}

/* Those whose clients others are asking, which may take a while, are not our victims any more. */
static void leave_to_others(struct demand *d)
{
	struct replica_list *victims = &d->victims;
	unsigned kept = 0;

	for (unsigned k = 0; k < victims->n; k++) {
		struct replica *unit = victims->at[k];
		bool others = false;

		for (unsigned i = 0; !others && i < unit_chunks(unit); i++)
			others = is_others(unit_member(unit, i));
		if (!others)
			victims->at[kept++] = unit;
	}
	d->rounds_late += kept < victims->n;
	victims->n = kept;
}

/* Nor those of whose clients some have not answered. Consumes @list. */
static void leave_late(struct demand *d, struct late_list *list)
{
	struct replica_list *victims = &d->victims;
	unsigned kept = 0;
	struct late *l;

	STAILQ_FOREACH(l, list, link)
		for (unsigned k = 0; k < l->asked.n; k++)
			if (l->asked.ask[k].err == -EINPROGRESS) {
				struct replica *rep = l->asked.grant[k]->replica;

				pthread_mutex_lock(&rep->chunk->lock);
				replica_set_late(rep);
				pthread_mutex_unlock(&rep->chunk->lock);
			}
	STAILQ_FOREACH(l, list, link)
		for (unsigned k = 0; k < l->asked.n; k++)
			asked_settle(&l->asked, k, replica_unit(l->asked.grant[k]->replica)->late ? STAYS : GOES);
	for (unsigned k = 0; k < victims->n; k++)
		if (!victims->at[k]->late)
			victims->at[kept++] = victims->at[k];
	d->rounds_late += kept < victims->n;
	victims->n = kept;
	while ((l = STAILQ_FIRST(list))) {
		STAILQ_REMOVE_HEAD(list, link);
		if (l->revoking)
			late_leave(d->m->file->cache, l);
		else
			late_free(l);
	}
}

/*
 * Evict victims of up to @n chunks, or a few more, of an acquire that needs room, any room. Clients that do not answer at once are left to workers. What more
 * has been given up stays idle. If evicting one fails others may do.
 */
static void evict_for_room(struct demand *d, uint64_t n)
{
	struct replica_list *victims = &d->victims;
	struct asked asked = { .n = 0 };
	struct late_list list;

	leave_to_others(d);
	for (unsigned k = 0; k < victims->n; k++)
		asked_note(&asked, victims->at[k], false);
	late_split(&asked, &list);
	late_ask(&list, &d->m->file->cache->host);
	leave_late(d, &list);
	while (victims->n > 0 && units_chunks(victims) - unit_chunks(victims->at[victims->n - 1]) >= n)
		replica_unclaim(victims->at[--victims->n], false, true);
	(void)replicas_evict_revoked(victims);
}

/* The device has no memory for @n chunks that it should have: 0 if it may have now. d->n_left is from before it was asked. */
static int make_room(struct demand *d, uint64_t n)
{
	struct cache_device *dev = d->dev;
	bool others, late;

	pthread_mutex_lock(&dev->reserve);
	/* The clients of the next ones may not answer either. */
	claim_room(d, n + MIN((1u << MIN(d->rounds_late, 8u)) - 1, MORE_AT_ONCE), true);
	pthread_mutex_lock(&dev->lock);
	others = dev->leaving > dev->late || dev->n_left != d->n_left;
	late = dev->late > 0;
	pthread_mutex_unlock(&dev->lock);
	pthread_mutex_unlock(&dev->reserve);
	if (d->victims.n > 0) {
		evict_for_room(d, n);
		return 0;
	}
	if (!others && shadows_reclaim(dev))
		return 0;
	if (!others && !late)
		return -ENOMEM;
	/* Not only what leaves is room: what others use may become idle. */
	device_await_left_until(dev, d->n_left, now_ns() + ANSWER_NS);
	return 0;
}

#define KEPT_AT_ONCE 8u /* chunks of a piecewise demand, which is for more than... */
#define PIECEWISE_FROM 16u

/*
 * So many promises are kept before the acquire goes on. All, if to keep them may take more than the device's memory: clients or other
 * acquires that are waited for, who may wait for pages. (Parked pages, too, and the host's memory is home's.)
 */
static unsigned kept_at_once(struct demand *d)
{
	uint64_t missing = 0, mine = units_chunks(&d->mine), kept = 0;
	struct cache_device *dev = d->dev;
	unsigned n = 0;

	if (!d->piecewise || mine < PIECEWISE_FROM || d->victims.n > 0 || dev->home || dev->victims)
		return d->mine.n;
	pthread_mutex_lock(&dev->lock);
	for (uint64_t k = 0; k < d->n; k++)
		missing += !d->out[k]->mem;
	d->piecewise = missing == mine && dev->n_stranded == 0 && dev->used + dev->promised <= dev->capacity;
	pthread_mutex_unlock(&dev->lock);
	if (!d->piecewise)
		return d->mine.n;
	while (kept < KEPT_AT_ONCE)
		kept += unit_chunks(d->mine.at[n++]);
	promises_later(dev, d->mine.at + n, d->mine.n - n, d->lacks);
	return n;
}

/* So many chunks that were promised to us have no memory yet. */
static uint64_t lacking(const struct demand *d)
{
	return units_chunks(&(struct replica_list){ d->mine.at + d->kept, d->mine.n - d->kept });
}

/* The first @n of ours. */
static int keep_promises(struct demand *d, unsigned n)
{
	int err = 0;

	while (d->kept < n && !err) {
		d->n_left = device_count_left(d->dev);
		d->n_given_up = stranded_count(d->dev);
		err = promise_keep(d->mine.at[d->kept]);
		if (!err)
			d->kept++;
		else if (err == -ENOMEM && n == d->mine.n)
			err = stranded_reap(d->dev, d->n_given_up) ? 0 : make_room(d, lacking(d));
	}
	return err;
}

/* Wait for what had been promised to others. Nobody waits for us any more. -EAGAIN: a promise was broken. */
static int await_promises(struct demand *d)
{
	struct uses *waits;
	bool failed = false, may_keep = true;

	thread_waits();
	waits = wait_begin(WAIT_room);
	for (uint64_t k = 0; k < d->n && !failed; k++)
		failed = !promise_await(d->out[k], &may_keep);
	wait_end(waits, WAIT_room);
	return failed ? -EAGAIN : 0;
}

static void give_back(struct demand *d)
{
	if (d->counted)
		user_unpin_all(d->m, d->out, d->n);
	d->counted = false;
	promises_break(d->dev, d->mine.at + d->kept, d->mine.n - d->kept);
	for (uint64_t k = 0; k < d->n; k++)
		if (d->out[k])
			replica_unpin(d->out[k]);
}

/* The device has less memory than it says: so something has to leave after all. */
static int not_piecewise(struct demand *d)
{
	d->piecewise = false;
	return -EAGAIN;
}

/* One attempt. -EAGAIN: something has changed since. */
static int try_to_obtain(struct demand *d)
{
	unsigned now;
	int err;

	pthread_mutex_lock(&d->dev->lock);
	d->n_stuck = d->dev->n_stuck;
	d->n_given_up = d->dev->n_given_up;
	pthread_mutex_unlock(&d->dev->lock);
	err = decide(d);
	if ((err == -ENOMEM || err == -EDQUOT) && stranded_reap(d->dev, d->n_given_up))
		err = decide(d);
	/* First what costs no waiting. */
	for (int wait = 0; wait <= 1 && (err == -ENOMEM || err == -EDQUOT || err == -EBUSY); wait++) {
		device_drop_dead(d->dev, wait);
		err = decide(d);
	}
	if ((err == -ENOMEM || err == -EDQUOT) && d->dev->dev->gives_extents) {
		d->splits = true;
		err = decide(d);
		d->splits = false;
	}
	if (err == -EDQUOT)
		err = user_refuse(d->m);
	else if (err == -EBUSY)
		say_it_is_older(d);
	if (err == -EAGAIN && d->victims.n == 0 && !d->m->user.extents) {
		/* Calls that have an extent pinned may come to hold some of it: then it is not to be waited for. */
		device_await_left_until(d->dev, d->n_left, now_ns() + ANSWER_NS);
	} else if (err == -EAGAIN && d->victims.n == 0) {
		device_await_left(d->dev, d->n_left);
	} else if (err == -EAGAIN) {
		/* If this fails, what was released there cannot be fetched, and nothing else in it can be trusted. */
		err = replicas_evict_all(&d->victims);
		err = err ? err : -EAGAIN;
	} else if (!err) {
		now = kept_at_once(d);
		evict_for_room(d, UINT64_MAX);
		err = keep_promises(d, now);
		if (now == d->mine.n)
			err = err ? err : await_promises(d);
		else if (err == -ENOMEM)
			err = not_piecewise(d);
	}
	if (err)
		give_back(d);
	free(d->mine.at);
	d->mine = (struct replica_list){ .n = 0 };
	d->kept = 0;
	return err;
}

/* How many of the first ones have memory. */
static uint64_t count_kept(const struct demand *d)
{
	uint64_t k = 0;

	if (!d->piecewise)
		return d->n;
	pthread_mutex_lock(&d->dev->lock);
	while (k < d->n && d->out[k]->mem)
		k++;
	pthread_mutex_unlock(&d->dev->lock);
	return k;
}

bool grant_pin_held(const struct mapping *m, const struct grant *g)
{
	uint64_t start = g->index * GAIA_CHUNK_PAGES;

	if (replica_pin_again(g->replica))
		return true;
	return g->ready && holds_first(&m->holds, start, start + GAIA_CHUNK_PAGES) && replica_pin(g->replica);
}

/* What is pinned stays without dev->reserve. A grant leaves the table, under the mapping's lock, before it and its replica go. */
static uint64_t pin_pinned(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out)
{
	struct grant *g;
	uint64_t k;

	pthread_mutex_lock(&m->lock);
	for (k = 0; k < n; k++) {
		HASH_FIND(hh, m->grants, &index[k], sizeof(index[k]), g);
		if (!g || !grant_pin_held(m, g))
			break;
		out[k] = g->replica;
	}
	pthread_mutex_unlock(&m->lock);
	return k;
}

static void see_who_is_dead(struct replica **reps, uint64_t n)
{
	struct living known = { .n = 0 };

	for (uint64_t k = 0; k < n; k++)
		replica_drop_dead(reps[k], &known);
}

uint64_t replicas_pin_again(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out)
{
	n = pin_pinned(m, index, n, out);
	see_who_is_dead(out, n);
	return n;
}

/* @kept: see replicas_pin_piecewise(); or NULL. */
static int pin_all(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out, bool modest, uint64_t *kept, atomic_bool *lacks)
{
	struct demand d = { .m = m, .only = m->readers, .dev = m->dev, .index = index, .n = n, .out = out, .modest = modest, .piecewise = kept, .lacks = lacks };
	uint64_t held;
	int err;

	if (kept)
		*kept = n;

	/* What is held already is acquired again without waiting for anybody who evicts: but it may be others who hold it. */
	held = replicas_pin_again(m, index, n, out);
	if (held == d.n && user_pin_all(m, out, d.n))
		return 0;
	while (held > 0)
		replica_unpin(out[--held]);

	pthread_mutex_lock(&d.dev->lock);
	d.decision = ++d.dev->n_decisions;
	pthread_mutex_unlock(&d.dev->lock);
	do
		err = try_to_obtain(&d);
	while (err == -EAGAIN);
	if (err == -ENOMEM && device_is_off(d.dev))
		err = -ENODEV;
	log_decision("device %s: %llu chunks of %s for user %u: %s", d.dev->dev->name, (unsigned long long)n, cfile_name(m->file, (char[CFILE_NAME_MAX]){ "" }),
		     (unsigned)m->user.uid, err ? strerror(-err) : "there is room");
	if (!err && kept)
		*kept = count_kept(&d);
	if (!err)
		see_who_is_dead(out, d.n);
	return err;
}

int replicas_pin(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out)
{
	return pin_all(m, index, n, out, false, NULL, NULL);
}

int replicas_pin_piecewise(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out, uint64_t *kept, atomic_bool *lacks)
{
	return pin_all(m, index, n, out, false, kept, lacks);
}

int replicas_pin_modestly(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out)
{
	return pin_all(m, index, n, out, true, NULL, NULL);
}
