/*
 * file_pins.c - files that are pinned to a device.
 *
 * What is pinned is a number of chunks, from the first, that all users' pins of the file agree on: the largest. The device counts these
 * chunks, whether they have a replica or not (cache_device.file_chunks); so the decision whether an acquire fits (18) leaves room for
 * those whose replica had to go. (That happens to a spoiled one for which there is no room in other memory.) The next acquire of such a chunk makes it again.
 *
 * cache_pin() gets all replicas at once, as an acquire of the file would, and then notes the pin: so a pin is there with all of its
 * memory, or not at all.
 *
 * The device's table of pinned files changes with reserve and lock held. Which replicas are pinned follows from it: replica.file_pinned is
 * set when a replica of such a chunk is made, or stays though it should have left, and cleared when it begins to leave.
 */
#include <errno.h>
#include <stdlib.h>
#include <uthash.h>

#include "pagecache/file_pins.h"

#include "base/fault.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/evict.h"
#include "pagecache/file.h"
#include "pagecache/home.h"
#include "pagecache/mapping.h"
#include "pagecache/passthrough.h"
#include "pagecache/prefetch.h"
#include "pagecache/readahead.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/users.h"

struct file_pin {
	struct file_pin *next;
	uid_t uid;
	bool owner; /* of the mount: what it pins does not count for it */
	uint64_t chunks;
};

/* A file that somebody has pinned to the device. Uses the cfile, so that it stays when nobody knows the file. */
struct pinned_file {
	struct cfile *file;
	struct file_pin *pins; /* one at least, of different users */
	uint64_t chunks; /* the largest of theirs */
	UT_hash_handle hh;
};

static uint64_t part_of(const struct cache_device *dev, unsigned percent)
{
	return dev->capacity / GAIA_CHUNK * percent / 100;
}

uint64_t files_limit(const struct cache_device *dev)
{
	return part_of(dev, dev->files_percent) * GAIA_CHUNK;
}

uint64_t files_user_limit(const struct cache_device *dev)
{
	return part_of(dev, MIN(dev->files_user_percent, dev->files_percent)) * GAIA_CHUNK;
}

/* The next ones with dev->lock held. */
static struct pinned_file *pinned_find(const struct cache_device *dev, const struct cfile *f)
{
	struct pinned_file *pf;

	HASH_FIND_PTR(dev->pinned_files, &f, pf);
	return pf;
}

static struct file_pin *pin_find(const struct pinned_file *pf, uid_t uid)
{
	struct file_pin *pin = pf ? pf->pins : NULL;

	while (pin && pin->uid != uid)
		pin = pin->next;
	return pin;
}

/* How many of the unit's chunks are among the file's first @chunks. */
static unsigned chunks_of(const struct replica *unit, uint64_t chunks)
{
	uint64_t first = unit->chunk->index;

	return first < chunks ? (unsigned)MIN(chunks - first, (uint64_t)unit_chunks(unit)) : 0;
}

static void set_pinned(struct replica *unit, unsigned chunks)
{
	unit->dev->file_chunks_there += chunks;
	unit->dev->file_chunks_there -= unit->file_pinned;
	unit->file_pinned = chunks;
}

void replica_file_pinned(struct replica *rep)
{
	const struct pinned_file *pf = rep->only ? NULL : pinned_find(rep->dev, rep->chunk->file);
	struct replica *unit = replica_unit(rep);
	unsigned chunks = pf ? chunks_of(unit, pf->chunks) : 0;

	/* An extent of which pins cover a part would be more than what they are for: it may go, and that part comes back as single chunks. */
	if (chunks < unit_chunks(unit))
		return;
	for (const struct file_pin *pin = pf->pins; pin; pin = pin->next)
		if (!pin->owner && chunks_of(unit, pin->chunks) > 0)
			user_file_pinned(unit, pin->uid);
	set_pinned(unit, chunks);
	/* It is not the first to go any more. */
	readahead_ended(unit, true);
}

void replica_file_unpinned(struct replica *rep)
{
	struct replica *unit = replica_unit(rep);

	if (!unit->file_pinned)
		return;
	users_file_unpinned(unit);
	set_pinned(unit, 0);
}

uint64_t file_chunks_missing(const struct mapping *m, const struct readers *only, const uint64_t *index, struct replica *const *reps,
			     uint64_t n)
{
	const struct pinned_file *pf = only ? NULL : pinned_find(m->dev, m->file);
	uint64_t missing = 0;

	/* Those in an extent of which pins cover a part are there, and not pinned. */
	for (uint64_t k = 0; k < n && pf; k++)
		missing += index[k] < pf->chunks && (!reps[k] || !replica_unit(reps[k])->file_pinned);
	return missing;
}

bool file_pins_end_within(const struct mapping *m, const struct readers *only, uint64_t first, uint64_t end)
{
	const struct pinned_file *pf;
	bool within;

	pthread_mutex_lock(&m->dev->lock);
	pf = only ? NULL : pinned_find(m->dev, m->file);
	within = pf && first < pf->chunks && pf->chunks < end;
	pthread_mutex_unlock(&m->dev->lock);
	return within;
}

/* ---- pinning ---- */

/* Whether the user may pin @n chunks of the file. */
static int may_pin(const struct cache_device *dev, const struct cfile *f, const struct cache_user *user, uint64_t n)
{
	const struct pinned_file *pf = pinned_find(dev, f);
	const struct file_pin *mine = pin_find(pf, user->uid);
	uint64_t more = pf && pf->chunks >= n ? 0 : n - (pf ? pf->chunks : 0);
	uint64_t more_mine = mine && mine->chunks >= n ? 0 : n - (mine ? mine->chunks : 0);

	/* With the lock, so that none is pinned beside cache_device_off(). */
	if (device_usable(dev))
		return -ENODEV;
	if (!user->owner && dev->files_user_percent == 0)
		return -EPERM;
	if (!user->owner && more_mine > 0 && user_file_chunks(dev, user->uid) + more_mine > files_user_limit(dev) / GAIA_CHUNK)
		return -EDQUOT;
	return more > 0 && dev->file_chunks + more > files_limit(dev) / GAIA_CHUNK ? -ENOSPC : 0;
}

/* may_pin() has said so. The replicas of its chunks, all that there are, are pinned meanwhile. dev->reserve is held, too. */
static void pin_note(struct cache_device *dev, struct cfile *f, struct cache_user user, uint64_t n, struct replica **reps, uint64_t n_reps)
{
	struct pinned_file *pf = pinned_find(dev, f);
	struct file_pin *pin = pin_find(pf, user.uid);

	if (!pf) {
		pf = xcalloc(1, sizeof(*pf));
		pf->file = f;
		cfile_use(f);
		atomic_fetch_add(&f->n_pinned, 1);
		HASH_ADD_PTR(dev->pinned_files, file, pf);
	}
	if (!pin) {
		pin = xcalloc(1, sizeof(*pin));
		pin->uid = user.uid;
		pin->owner = user.owner;
		pin->next = pf->pins;
		pf->pins = pin;
	}
	if (n > pin->chunks) {
		user_file_chunks_more(dev, user.uid, n - pin->chunks);
		pin->chunks = n;
	}
	if (n > pf->chunks) {
		dev->file_chunks += n - pf->chunks;
		pf->chunks = n;
	}
	for (uint64_t k = 0; k < n_reps; k++)
		replica_file_pinned(reps[k]);
}

/* The chunks that a pin of the file covers. One that is empty takes a share, too: each pin costs the daemon memory. */
static uint64_t chunks_to_pin(uint64_t in_file)
{
	return MAX(1u, in_file);
}

static int may_pin_now(struct cache_device *dev, const struct cfile *f, const struct cache_user *user, uint64_t n)
{
	int err;

	pthread_mutex_lock(&dev->lock);
	err = may_pin(dev, f, user, n);
	pthread_mutex_unlock(&dev->lock);
	return err;
}

/* Whether the last of these replicas is in an extent that reaches beyond them, and that is not pinned already. They are pinned for a call. */
static bool reaches_beyond(const struct bringing *b, struct cache_device *dev)
{
	const struct replica *last = b->n > 0 ? b->reps[b->n - 1] : NULL;
	bool beyond;

	pthread_mutex_lock(&dev->lock);
	beyond = last && last->extent && last != last->extent->member[GAIA_EXTENT_CHUNKS - 1] && !replica_unit(last)->file_pinned;
	pthread_mutex_unlock(&dev->lock);
	return beyond;
}

#define TRIES 4u /* others may acquire it meanwhile */

/* Pin the replicas of the file's chunks. What is pinned is no more than these: so an extent at the end goes, and its chunks come back. */
static int begin_to_pin(struct bringing *b, struct cfile *f, struct cache_device *dev, struct cache_user user, uint64_t in_file)
{
	struct chunk *last;
	int err = 0;

	for (unsigned k = 0; k < TRIES && (!err || err == -EBUSY); k++) {
		err = bringing_begin(b, f, dev, user, 0, in_file, false);
		if (err || !reaches_beyond(b, dev))
			return err;
		last = chunk_ref(b->reps[b->n - 1]->chunk);
		bringing_end(b);
		err = replica_drop_shared(last, dev);
		chunk_put(last);
	}
	return err ? err : -EBUSY;
}

int cache_pin(struct cfile *f, unsigned device, struct cache_user user, bool *fresh)
{
	struct cache_device *dev;
	uint64_t in_file, n;
	struct bringing b;
	int err;

	if (device >= cache_devices(f->cache))
		return -ENODEV;
	dev = cache_device_find(f->cache, device);
	err = passthrough_learn_size(f);
	if (err)
		return err;
	in_file = (cfile_size(f) + GAIA_CHUNK - 1) / GAIA_CHUNK;
	n = chunks_to_pin(in_file);
	/* Before anybody's memory is taken for it. */
	err = may_pin_now(dev, f, &user, n);
	if (!err)
		err = begin_to_pin(&b, f, dev, user, in_file);
	if (err)
		return err;
	(void)fault_point("pin.before_note");
	pthread_mutex_lock(&dev->reserve);
	pthread_mutex_lock(&dev->lock);
	err = may_pin(dev, f, &user, n);
	*fresh = !pin_find(pinned_find(dev, f), user.uid);
	if (!err)
		pin_note(dev, f, user, n, b.reps, b.n);
	pthread_mutex_unlock(&dev->lock);
	pthread_mutex_unlock(&dev->reserve);
	bringing_end(&b);
	return err;
}

/* ---- pins end ---- */

/* The user's pin, or (@all) all pins of the file, are not the file's any more: they are returned. dev->lock is held. */
static struct file_pin *pins_take(struct cache_device *dev, struct pinned_file *pf, uid_t uid, bool all)
{
	struct file_pin **at = &pf->pins, *pin, *ended = NULL;
	uint64_t most = 0;

	while ((pin = *at)) {
		if (!all && pin->uid != uid) {
			most = MAX(most, pin->chunks);
			at = &pin->next;
			continue;
		}
		*at = pin->next;
		pin->next = ended;
		ended = pin;
		user_file_chunks_less(dev, pin->uid, pin->chunks);
	}
	dev->file_chunks -= pf->chunks - most;
	pf->chunks = most;
	return ended;
}

/* What these pins were for the chunk's unit. Others pin the file's first @left chunks still. dev->reserve is held. */
static void chunk_unpin(struct cache_device *dev, struct chunk *ch, const struct file_pin *ended, uint64_t left)
{
	struct replica *unit;
	bool idle;

	pthread_mutex_lock(&ch->lock);
	unit = replica_find(ch, dev, NULL);
	unit = unit ? replica_unit(unit) : NULL;
	pthread_mutex_lock(&dev->lock);
	if (unit && unit->file_pinned && chunks_of(unit, left) < unit_chunks(unit)) {
		idle = unit->pins == 0;
		if (idle)
			replica_idle_remove(unit);
		replica_file_unpinned(unit);
		if (idle)
			replica_idle_add(unit);
	}
	for (; unit && ended; ended = ended->next)
		user_file_unpinned(unit, ended->uid);
	pthread_mutex_unlock(&dev->lock);
	pthread_mutex_unlock(&ch->lock);
}

static void chunks_unpin(struct cache_device *dev, struct cfile *f, struct file_pin *ended, uint64_t before, uint64_t left)
{
	struct file_pin *next;
	struct chunk **list;
	unsigned n = chunk_list_get(f, 0, before - 1, &list);

	for (unsigned k = 0; k < n; k++) {
		chunk_unpin(dev, list[k], ended, left);
		chunk_put(list[k]);
	}
	free(list);
	for (; ended; ended = next) {
		next = ended->next;
		free(ended);
	}
}

/* Whether there was such a pin; *@last: none is left, and the cfile's use is the caller's. dev->reserve is held. */
static bool unpin(struct cache_device *dev, struct cfile *f, uid_t uid, bool all, bool *last)
{
	struct file_pin *ended = NULL;
	struct pinned_file *pf;
	uint64_t before = 0, left = 0;

	*last = false;
	pthread_mutex_lock(&dev->lock);
	pf = pinned_find(dev, f);
	if (pf) {
		before = pf->chunks;
		ended = pins_take(dev, pf, uid, all);
		left = pf->chunks;
		*last = !pf->pins;
	}
	if (*last) {
		HASH_DEL(dev->pinned_files, pf);
		free(pf);
		atomic_fetch_sub(&f->n_pinned, 1);
	}
	pthread_mutex_unlock(&dev->lock);
	if (!ended)
		return false;
	chunks_unpin(dev, f, ended, before, left);
	return true;
}

int cache_unpin(struct cfile *f, unsigned device, struct cache_user user)
{
	struct cache_device *dev;
	bool any, last;

	if (device >= cache_devices(f->cache))
		return -ENODEV;
	dev = cache_device_find(f->cache, device);
	pthread_mutex_lock(&dev->reserve);
	any = unpin(dev, f, user.uid, user.owner, &last);
	pthread_mutex_unlock(&dev->reserve);
	if (last)
		cfile_unuse(f);
	return any ? 0 : -ENOENT;
}

bool file_pins_of_owners(const struct cache_device *dev)
{
	for (const struct pinned_file *pf = dev->pinned_files; pf; pf = pf->hh.next)
		for (const struct file_pin *pin = pf->pins; pin && !atomic_load(&pf->file->gone); pin = pin->next)
			if (pin->owner)
				return true;
	return false;
}

void file_pins_end_on(struct cache_device *dev)
{
	struct cfile *f;
	unsigned n = 0;
	bool last;

	do {
		last = false;
		pthread_mutex_lock(&dev->reserve);
		pthread_mutex_lock(&dev->lock);
		f = device_is_off(dev) && dev->pinned_files ? dev->pinned_files->file : NULL;
		pthread_mutex_unlock(&dev->lock);
		if (f)
			(void)unpin(dev, f, 0, true, &last);
		pthread_mutex_unlock(&dev->reserve);
		if (last)
			cfile_unuse(f);
		n += last;
	} while (f);
	if (n)
		log_warn("device %s is off: %u file%s of users had been pinned to it, and no more", dev->dev->name, n, n > 1 ? "s" : "");
}

void file_pins_end(struct cfile *f)
{
	struct cache *c = f->cache;
	bool last;

	for (unsigned i = 0; i < c->n_devices && atomic_load(&f->n_pinned) > 0 && atomic_load(&f->gone); i++) {
		if (pthread_mutex_trylock(&c->dev[i].reserve))
			continue;
		(void)unpin(&c->dev[i], f, 0, true, &last);
		pthread_mutex_unlock(&c->dev[i].reserve);
		if (last)
			cfile_unuse(f); /* the caller has a use of its own */
	}
}

/* ---- looking at them ---- */

uint64_t cache_pinned(struct cfile *f, unsigned device)
{
	struct cache_device *dev;
	struct pinned_file *pf;
	uint64_t chunks;

	if (device >= cache_devices(f->cache))
		return 0;
	dev = cache_device_find(f->cache, device);
	pthread_mutex_lock(&dev->lock);
	pf = pinned_find(dev, f);
	chunks = pf ? pf->chunks : 0;
	pthread_mutex_unlock(&dev->lock);
	return chunks * GAIA_CHUNK;
}

/* One pin, for a report. */
struct listed {
	struct cfile *file; /* with a use */
	uid_t uid;
	uint64_t chunks;
};

/* Of all users, or of one; to be freed. */
static struct listed *list_pins(struct cache_device *dev, uid_t uid, bool all, size_t *n)
{
	struct listed *list = NULL;
	struct pinned_file *pf, *next;
	size_t room = 0;

	*n = 0;
	pthread_mutex_lock(&dev->lock);
	HASH_ITER(hh, dev->pinned_files, pf, next)
		for (struct file_pin *pin = pf->pins; pin; pin = pin->next) {
			if (!all && pin->uid != uid)
				continue;
			if (*n == room) {
				room = MAX(2 * room, 16u);
				list = xrealloc(list, room * sizeof(*list));
			}
			cfile_use(pf->file);
			list[(*n)++] = (struct listed){ pf->file, pin->uid, pin->chunks };
		}
	pthread_mutex_unlock(&dev->lock);
	return list;
}

/* How many chunks of the pin have memory there, and how many pages of them are what the file is now. */
static void count_there(const struct listed *pin, struct cache_device *dev, uint64_t *chunks, uint64_t *current)
{
	struct chunk **list;
	unsigned n = chunk_list_get(pin->file, 0, pin->chunks - 1, &list);

	*chunks = *current = 0;
	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = list[k];
		struct replica *rep;

		pthread_mutex_lock(&ch->lock);
		rep = replica_find(ch, dev, NULL);
		*chunks += rep != NULL;
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES && rep; i++)
			*current += page_limit(ch, i) > 0 && replica_has(rep, i) && rep->page[i].seen == ch->track->page[i].home_id;
		pthread_mutex_unlock(&ch->lock);
		chunk_put(ch);
	}
	free(list);
}

static void add_pin(json_t *rows, const struct listed *pin, struct cache_device *dev)
{
	char name[CFILE_NAME_MAX];
	uint64_t chunks, current;

	count_there(pin, dev, &chunks, &current);
	json_array_append_new(rows, json_pack("{s:s, s:i, s:s, s:I, s:I, s:I, s:I, s:b}", "path", cfile_name(pin->file, name), "device",
					      (int)dev->number, "name", dev->dev->name, "uid", (json_int_t)pin->uid, "pinned_bytes",
					      (json_int_t)(pin->chunks * GAIA_CHUNK), "memory_bytes", (json_int_t)(chunks * GAIA_CHUNK),
					      "current_bytes", (json_int_t)(current * GAIA_PAGE), "device_gone",
					      (int)atomic_load(&dev->gone)));
}

json_t *cache_pins_json(struct cache *c, uid_t uid, bool all)
{
	json_t *rows = json_array();

	for (unsigned i = 0; i < c->n_devices; i++) {
		struct listed *list;
		size_t n;

		list = list_pins(&c->dev[i], uid, all, &n);
		for (size_t k = 0; k < n; k++) {
			add_pin(rows, &list[k], &c->dev[i]);
			cfile_unuse(list[k].file);
		}
		free(list);
	}
	return json_pack("{s:o}", "pins", rows);
}

void file_pins_check(struct cache_device *dev)
{
	uint64_t idle = 0, there = 0, chunks = 0;
	const struct pinned_file *pf;
	const struct replica *rep;

	TAILQ_FOREACH(rep, &dev->idle_pinned, link) {
		bug_on(!rep->file_pinned || rep->pins > 0 || rep->ahead || rep->only);
		idle += unit_chunks(rep);
		there += rep->file_pinned;
	}
	TAILQ_FOREACH(rep, &dev->busy, link)
		there += rep->file_pinned;
	for (pf = dev->pinned_files; pf; pf = pf->hh.next) {
		bug_on(!pf->pins || pf->chunks == 0);
		chunks += pf->chunks;
	}
	bug_on(idle != dev->n_idle_pinned || there != dev->file_chunks_there || chunks != dev->file_chunks);
	bug_on(dev->file_chunks_there > dev->file_chunks);
}
