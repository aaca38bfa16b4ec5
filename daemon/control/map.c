/*
 * map.c - mappings of clients, and the ioctls on them.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "control/internal.h"

/* The last whole page ends here. */
#define FILE_END ROUND_DOWN((uint64_t)INT64_MAX, GAIA_PAGE)

/* ---- pins: announced acquires, which the cache notes until they come or the mapping ends ---- */

/* Count a pin, before the cache notes it: 0, or -EAGAIN. */
static int pin_count(struct map *map)
{
	if (quota_take(map->client->ctl->quota, QUOTA_pins, map->client->uid))
		return -EAGAIN;
	atomic_fetch_add(&map->pins, 1);
	return 0;
}

/*
 * The cache has one pin less, or did not note the new one. A wrong count must not end the daemon: at 0 nothing
 * is given back.
 */
static void pin_uncount(struct map *map)
{
	unsigned n = atomic_load(&map->pins);

	while (n > 0 && !atomic_compare_exchange_weak(&map->pins, &n, n - 1))
		;
	if (n > 0)
		quota_give(map->client->ctl->quota, QUOTA_pins, map->client->uid);
}

int control_spans(void *client, int blocks)
{
	struct client *c = client;

	if (blocks > 0)
		return quota_take_many(c->ctl->quota, QUOTA_span_blocks, c->uid, (unsigned)blocks);
	quota_give_many(c->ctl->quota, QUOTA_span_blocks, c->uid, (unsigned)-blocks);
	return 0;
}

void map_put(struct map *map)
{
	if (atomic_fetch_sub(&map->refs, 1) != 1)
		return;
	cache_unmap(map->m, map->left);
	while (map->pins)
		pin_uncount(map);
	quota_give(map->client->ctl->quota, QUOTA_mappings, map->client->uid);
	client_put(map->client);
	free(map);
}

int map_find(struct control *ctl, struct cfile *f, const struct gaia_client_key *key, uint64_t id, bool take_out, struct map **out)
{
	struct client *c;
	struct map *map;
	int err = 0;

	if (!f)
		return -ENODEV;
	c = client_find(ctl, key);
	if (!c)
		return -ENOTCONN;
	pthread_mutex_lock(&c->lock);
	HASH_FIND(hh, c->maps, &id, sizeof(id), map);
	if (!map) {
		err = c->closed ? -ENOTCONN : -EINVAL;
	} else if (map->file != f) {
		err = -EACCES;
	} else if (take_out) {
		/* The table's reference becomes the caller's. */
		HASH_DEL(c->maps, map);
		c->n_maps--;
	} else {
		atomic_fetch_add(&map->refs, 1);
	}
	pthread_mutex_unlock(&c->lock);
	client_put(c);
	if (!err)
		*out = map;
	return err;
}

/* map_find(), and the range that @io names, widened to whole pages. */
static int find_range(struct control *ctl, struct cfile *f, const struct gaia_ioc_range *io,
		      struct map **out, uint64_t *off, uint64_t *len)
{
	struct map *map;
	uint64_t end;
	int err;

	err = map_find(ctl, f, &io->key, io->map, false, &map);
	if (err)
		return err;
	if (io->offset < map->start || io->offset > map->end ||
	    io->length > map->end - io->offset) {
		map_put(map);
		return -EINVAL;
	}
	*off = ROUND_DOWN(io->offset, (uint64_t)GAIA_PAGE);
	end = ROUND_UP(io->offset + io->length, (uint64_t)GAIA_PAGE);
	*len = io->length ? end - *off : 0;
	*out = map;
	return 0;
}

/* Take a place among the user's mappings and in the client's table, before there is a mapping to put there. */
static int reserve_map(struct client *c)
{
	int err = quota_take(c->ctl->quota, QUOTA_mappings, c->uid);

	if (err)
		return err;
	pthread_mutex_lock(&c->lock);
	if (c->closed)
		err = -ENOTCONN;
	else if (c->n_maps >= MAX_MAPS)
		err = -EMFILE;
	else
		c->n_maps++;
	pthread_mutex_unlock(&c->lock);
	if (err)
		quota_give(c->ctl->quota, QUOTA_mappings, c->uid);
	return err;
}

/* Put @map into its client's table, unless the client has ended meanwhile. */
static int add_map(struct map *map)
{
	struct client *c = map->client;
	int err = 0;

	pthread_mutex_lock(&c->lock);
	if (c->closed)
		err = -ENOTCONN;
	else
		HASH_ADD(hh, c->maps, id, sizeof(map->id), map);
	pthread_mutex_unlock(&c->lock);
	return err;
}

/*
 * The user for the cache. A reader shares memory with the user's other readers (not alone) only if caller,
 * ticket and socket are the same user's.
 */
static struct cache_user user_of(struct client *c, struct control_caller caller)
{
	return (struct cache_user){
		.uid = c->uid,
		.owner = quota_is_owner(c->ctl->quota, c->uid),
		.alone = caller.uid != c->uid || caller.uid != c->peer_uid,
		.uses = &c->uses,
		.extents = takes_extents(c),
	};
}

static bool flags_are_good(const struct client *c, const struct gaia_ioc_map *io)
{
	if (io->flags == 0)
		return true;
	return io->flags == GAIA_MAP_DETECTS && c->features & GAIA_FEATURE_DETECT && io->prot & GAIA_PROT_WRITE;
}

int control_map(struct control *ctl, struct cfile *f, bool readable, bool writable, struct control_caller caller,
		struct gaia_ioc_map *io)
{
	bool write = io->prot & GAIA_PROT_WRITE;
	struct client *c;
	struct map *map;
	int err;

	if (!f)
		return -ENODEV;
	if (io->prot != GAIA_PROT_READ && io->prot != (GAIA_PROT_READ | GAIA_PROT_WRITE))
		return -EINVAL;
	if (!io->length || io->offset % GAIA_PAGE)
		return -EINVAL;
	if (io->offset > FILE_END || io->length > FILE_END - io->offset)
		return -EOVERFLOW;
	if (!readable || (write && !writable))
		return -EACCES;
	if (!cache_has_device(ctl->cache, io->device))
		return -ENODEV;

	c = client_find(ctl, &io->key);
	if (!c)
		return -ENOTCONN;
	err = flags_are_good(c, io) ? reserve_map(c) : -EINVAL;
	if (err)
		goto put_client;

	map = xcalloc(1, sizeof(*map));
	/* Random, so that a stale or made-up number is no mapping. */
	fill_random(&map->id, sizeof(map->id));
	map->client = c;
	map->file = f;
	map->prot = io->prot;
	map->start = io->offset;
	map->end = ROUND_UP(io->offset + io->length, (uint64_t)GAIA_PAGE);
	map->refs = 1;
	err = cache_map(f, io->device, c, user_of(c, caller), map->id, io->prot, writable || caller.may_write,
			map->start, map->end - map->start, &map->m);
	if (err)
		goto free_map;
	map->detects = io->flags & GAIA_MAP_DETECTS;
	if (map->detects)
		cache_map_detects(map->m);
	io->map = map->id;
	err = add_map(map);
	if (err)
		map_put(map); /* which drops the client's reference, too */
	return err;

free_map:
	free(map);
	pthread_mutex_lock(&c->lock);
	c->n_maps--;
	pthread_mutex_unlock(&c->lock);
	quota_give(ctl->quota, QUOTA_mappings, c->uid);
put_client:
	client_put(c);
	return err;
}

int control_unmap(struct control *ctl, struct cfile *f, struct gaia_ioc_range *io)
{
	struct map *map;
	int err;

	if (io->offset || io->length || io->prot || io->advice)
		return -EINVAL;
	err = map_find(ctl, f, &io->key, io->map, true, &map);
	if (err)
		return err;
	/* Nobody finds it any more; but others may be at work on it, for as long as storage or a client takes. */
	if (atomic_load(&map->refs) > 1)
		cache_unmapping(map->m);
	map_put(map);
	return 0;
}

static bool acquire_prot_is_good(unsigned prot)
{
	unsigned access = prot & (GAIA_PROT_READ | GAIA_PROT_WRITE), how = prot & ~access;

	if (how && how != GAIA_PROT_PIN && how != GAIA_PROT_PINNED)
		return false;
	return access || prot == GAIA_PROT_PINNED;
}

static int acquire(struct map *map, uint64_t off, uint64_t len, unsigned prot, uint64_t *seq,
		   atomic_uint *verdict)
{
	int err = prot & GAIA_PROT_PIN ? pin_count(map) : 0;
	struct working_for before;

	if (err)
		return err;
	before = uses_enter(&map->client->uses);
	err = cache_acquire(map->m, off, len, prot, seq, verdict);
	uses_leave(before);
	if (err ? prot & GAIA_PROT_PIN : prot & GAIA_PROT_PINNED)
		pin_uncount(map);
	return err;
}

int control_acquire(struct control *ctl, struct cfile *f, bool writable, struct gaia_ioc_range *io,
		    atomic_uint *verdict)
{
	bool write = io->prot & GAIA_PROT_WRITE;
	uint64_t off, len;
	struct map *map;
	int err;

	io->seq = 0;
	if (io->advice)
		return -EINVAL;
	if (!acquire_prot_is_good(io->prot))
		return -EINVAL;
	err = find_range(ctl, f, io, &map, &off, &len);
	if (err)
		return err;
	atomic_fetch_add_explicit(&map->client->acquires, 1, memory_order_relaxed);
	if (write && (!writable || !(map->prot & GAIA_PROT_WRITE)))
		err = -EACCES;
	else if (len) /* of which pages it has only a part matters */
		err = acquire(map, io->offset, io->length, io->prot, &io->seq, verdict);
	if (!err)
		err = client_unanswered(map->client, io->seq, &io->unanswered);
	map_put(map);
	return err;
}

bool map_may_release(const struct map *map, enum releases may)
{
	return may & (map->prot & GAIA_PROT_WRITE ? RELEASES_WRITERS : RELEASES_READERS);
}

int control_release(struct control *ctl, struct cfile *f, enum releases may,
		    struct gaia_ioc_range *io, bool *changed)
{
	uint64_t off, len;
	struct working_for before;
	struct map *map;
	int err;

	*changed = false;
	if ((io->prot && io->prot != GAIA_PROT_UNUSED) || io->advice)
		return -EINVAL;
	err = find_range(ctl, f, io, &map, &off, &len);
	if (err)
		return err;
	atomic_fetch_add_explicit(&map->client->releases, 1, memory_order_relaxed);
	before = uses_enter(&map->client->uses);
	if (!map_may_release(map, may))
		err = -EOPNOTSUPP;
	else if (len && io->prot)
		err = cache_give_back(map->m, off, len, changed);
	else if (len)
		err = cache_release(map->m, off, len, changed);
	uses_leave(before);
	io->changed = *changed && map->client->features & GAIA_FEATURE_TIMES;
	map_put(map);
	return err;
}

int control_sync(struct control *ctl, struct cfile *f, struct gaia_ioc_range *io)
{
	uint64_t off, len;
	struct working_for before;
	struct map *map;
	int err;

	if ((io->prot && io->prot != GAIA_SYNC_PUBLISH) || io->advice)
		return -EINVAL;
	err = find_range(ctl, f, io, &map, &off, &len);
	if (err)
		return err;
	before = uses_enter(&map->client->uses);
	if (len)
		err = io->prot ? cache_publish(f, off, len) : cache_fsync(f, off, len, true);
	uses_leave(before);
	map_put(map);
	return err;
}

int control_advise(struct control *ctl, struct cfile *f, struct gaia_ioc_range *io)
{
	uint64_t off, len;
	struct map *map;
	int err;

	if (io->prot)
		return -EINVAL;
	if (io->advice > GAIA_ADVISE_DONTNEED)
		return -EINVAL;
	err = find_range(ctl, f, io, &map, &off, &len);
	if (err)
		return err;
	if (len)
		err = cache_advise(map->m, off, len, io->advice);
	map_put(map);
	return err;
}
