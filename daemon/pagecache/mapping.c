/* mapping.c - mappings begin and end, and which grants they have. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/mapping.h"

#include "base/util.h"
#include "pagecache/acquire.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/evict.h"
#include "pagecache/file.h"
#include "pagecache/grant.h"
#include "pagecache/pins.h"
#include "pagecache/readahead.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/room.h"
#include "pagecache/root.h"
#include "pagecache/segments.h"
#include "pagecache/state.h"
#include "pagecache/stranded.h"
#include "pagecache/view.h"

/* ---- grants ---- */

static int by_index(const void *a, const void *b)
{
	const struct grant *x = *(struct grant *const *)a, *y = *(struct grant *const *)b;

	return x->index < y->index ? -1 : x->index > y->index;
}

/* mapping->lock held. The mapping's grants of these chunks, of which there are few, from @from on: each is looked up. */
static unsigned look_up_grants(struct mapping *m, struct segments segs, uint64_t from, struct grant **list)
{
	struct grant *g;
	unsigned n = 0;

	for (size_t k = 0; segments_next_chunk(segs, &k, &from); from++) {
		HASH_FIND(hh, m->grants, &from, sizeof(from), g);
		if (g)
			list[n++] = g;
	}
	return n;
}

/* The same of many: each grant is asked where it is. */
static unsigned filter_grants(struct mapping *m, struct segments segs, uint64_t from, struct grant **list)
{
	struct grant *g, *tmp;
	unsigned n = 0;

	HASH_ITER(hh, m->grants, g, tmp)
		if (g->index >= from && segments_of_chunk(segs, g->index).n > 0)
			list[n++] = g;
	return n;
}

/* Of the segments' @chunks chunks from @from on. @idle: also those of which nothing is acquired; dev->reserve held. */
static unsigned pin_grants(struct mapping *m, struct segments segs, uint64_t from, uint64_t chunks, bool idle, struct grant ***out)
{
	struct grant **list;
	unsigned all, n = 0;

	/* A grant leaves the table, under the mapping's lock, before it and its replica are freed. */
	pthread_mutex_lock(&m->lock);
	list = xmalloc((MIN((uint64_t)HASH_COUNT(m->grants), chunks) + 1) * sizeof(struct grant *));
	all = chunks <= HASH_COUNT(m->grants) ? look_up_grants(m, segs, from, list) : filter_grants(m, segs, from, list);
	for (unsigned k = 0; k < all; k++)
		if (idle ? replica_pin(list[k]->replica) : grant_pin_held(m, list[k]))
			list[n++] = list[k];
	pthread_mutex_unlock(&m->lock);
	if (n > 1)
		qsort(list, n, sizeof(struct grant *), by_index);
	*out = list;
	return n;
}

unsigned grants_pin(struct mapping *m, struct segments segs, struct grant ***out)
{
	return pin_grants(m, segs, 0, segments_chunks(segs, 0, UINT64_MAX, NULL), false, out);
}

unsigned grants_pin_mapped(struct mapping *m, struct segments segs, uint64_t from, bool idle, struct grant ***out)
{
	uint64_t chunks = segments_chunks(segs, from, UINT64_MAX, NULL); /* counted before anything is locked */
	struct grant **list;
	unsigned n, mapped = 0;

	if (idle)
		pthread_mutex_lock(&m->dev->reserve);
	n = pin_grants(m, segs, from, chunks, idle, &list);
	for (unsigned k = 0; k < n; k++) {
		struct replica *rep = list[k]->replica;
		bool delivered;

		pthread_mutex_lock(&rep->chunk->lock);
		delivered = list[k]->delivered;
		pthread_mutex_unlock(&rep->chunk->lock);
		if (delivered)
			list[mapped++] = list[k];
		else
			replica_unpin(rep);
	}
	if (idle)
		pthread_mutex_unlock(&m->dev->reserve);
	*out = list;
	return mapped;
}

/* ---- mappings that may only read, but could store ---- */

static struct readers *readers_join(struct cfile *f, unsigned device, struct cache_user user)
{
	struct readers_of of = { .device = device, .uid = user.uid };
	struct readers *rd = NULL;

	pthread_mutex_lock(&f->lock);
	if (!user.alone)
		HASH_FIND(hh, f->readers, &of, sizeof(of), rd);
	if (!rd) {
		rd = xcalloc(1, sizeof(*rd));
		rd->of = of;
		rd->alone = user.alone;
		if (!rd->alone)
			HASH_ADD(hh, f->readers, of, sizeof(rd->of), rd);
	}
	rd->mappings++;
	pthread_mutex_unlock(&f->lock);
	return rd;
}

/* ---- mappings ---- */

int cache_map(struct cfile *f, unsigned device, void *client, struct cache_user user, uint64_t map_id, unsigned prot,
	      bool may_write, uint64_t off, uint64_t len, struct mapping **out)
{
	struct cache *c = f->cache;
	struct cache_device *dev = cache_device_find(c, device);
	struct mapping *m;

	if (!dev || device_is_off(dev))
		return -ENODEV;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->off = off;
	m->len = len;
	if (readahead_begin(m, c, user)) {
		free(m);
		return -ENOMEM;
	}
	/* Each mapping may come to hold the same page for writing, and the count of those is limited. */
	if (atomic_fetch_add(&f->mappings, 1) >= CACHE_MAX_MAPPINGS) {
		atomic_fetch_sub(&f->mappings, 1);
		readahead_end(m);
		free(m);
		return -EMFILE;
	}
	cfile_hold(f);
	m->file = f;
	m->dev = dev;
	m->client = client;
	m->user = user;
	m->id = map_id;
	m->prot = prot;
	m->export_write = (prot & GAIA_PROT_WRITE) || !m->dev->dev->shares_readonly;
	m->readers = m->export_write && !may_write ? readers_join(f, dev->index, user) : NULL;
	if (dev->home && !m->export_write)
		m->readers = view_readers(c);
	if (dev->dev->gives_extents && !user.extents)
		atomic_fetch_add(&f->n_without_extents, 1);
	STAILQ_INIT(&m->pins);
	pthread_mutex_init(&m->lock, NULL);
	*out = m;
	return 0;
}

void cache_map_detects(struct mapping *m)
{
	m->detects = true;
	/* On the host the client finds what was stored to. What of that has changed the device is asked. */
	m->unarmed = !m->dev->home;
}

static uint64_t pages_in_file(const struct mapping *m)
{
	uint64_t size = cfile_size(m->file), end = size - MIN(size, m->off);

	return (MIN(end, m->len) + GAIA_PAGE - 1) / GAIA_PAGE;
}

void cache_mapping_amounts(const struct mapping *m, uint64_t amounts[static CLIENT_AMOUNT_COUNT])
{
	uint64_t chunks = atomic_load_explicit(&m->n_grants, memory_order_relaxed) * (uint64_t)GAIA_CHUNK;
	bool alone = m->readers && m->readers != view_readers(m->file->cache);

	amounts[m->dev->home ? CLIENT_host_bytes : CLIENT_device_bytes] += chunks;
	amounts[CLIENT_private_bytes] += alone ? chunks : 0;
	/* Only counted, not looked at one by one: so at most as many as the file has, since beyond its end nothing stays anywhere. */
	amounts[CLIENT_pinned_bytes] += GAIA_PAGE * MIN(atomic_load_explicit(&m->holds.pages, memory_order_relaxed) +
								atomic_load_explicit(&m->wanted.pages, memory_order_relaxed),
							pages_in_file(m));
}

bool cache_mapping_holds(const struct mapping *m)
{
	return atomic_load(&m->holds.pages) || atomic_load(&m->wanted.pages);
}

/* Nobody maps or pins any of it any more. */
static void readers_drop_replicas(struct readers *rd, struct cache_device *dev)
{
	struct replica_queue *idle[] = { &dev->unused, &dev->idle };
	bool leave;

	do {
		struct replica_list claimed = { .n = 0 };
		uint64_t before = device_count_left(dev);
		struct replica *rep, *next;

		leave = false;
		pthread_mutex_lock(&dev->reserve);
		pthread_mutex_lock(&dev->lock);
		TAILQ_FOREACH(rep, &dev->busy, link)
			leave |= rep->only == rd;
		for (unsigned k = 0; k < ARRAY_LEN(idle); k++)
			for (rep = TAILQ_FIRST(idle[k]); rep; rep = next) {
				next = TAILQ_NEXT(rep, link);
				if (rep->only != rd)
					continue;
				replica_claim_idle(rep);
				replica_list_add(&claimed, rep);
			}
		pthread_mutex_unlock(&dev->lock);
		pthread_mutex_unlock(&dev->reserve);
		/* Nothing was released in them, so eviction cannot fail. */
		(void)replicas_evict_all(&claimed);
		if (leave)
			device_await_left(dev, before);
	} while (leave);
}

/* Nothing of the mapping is pinned any more. */
static void readers_leave(struct mapping *m)
{
	struct readers *rd = m->readers;
	struct cfile *f = m->file;
	bool last;

	/* Views stay, for others. */
	if (rd == view_readers(f->cache))
		return;
	pthread_mutex_lock(&f->lock);
	last = --rd->mappings == 0;
	if (last && !rd->alone)
		HASH_DEL(f->readers, rd);
	pthread_mutex_unlock(&f->lock);
	if (!last)
		return;
	readers_drop_replicas(rd, m->dev);
	free(rd);
}

/* A chunk that the mapping has a grant of, with a reference; NULL: there is none any more. */
static struct chunk *chunk_of_mapping(struct mapping *m)
{
	struct chunk *ch = NULL;

	/* A grant leaves the table, under the mapping's lock, before it and its replica are freed. */
	pthread_mutex_lock(&m->lock);
	if (m->grants)
		ch = chunk_ref(m->grants->replica->chunk);
	pthread_mutex_unlock(&m->lock);
	return ch;
}

/* chunk->lock held, which keeps it. */
static struct grant *grant_find(struct mapping *m, const struct chunk *ch)
{
	struct grant *g;

	pthread_mutex_lock(&m->lock);
	HASH_FIND(hh, m->grants, &ch->index, sizeof(ch->index), g);
	pthread_mutex_unlock(&m->lock);
	return g;
}

/* The mapping's grant of the chunk ends; others may be evicting the replica meanwhile. Whether that is spoiled; *@now: from now on. */
static bool grant_end(struct mapping *m, struct chunk *ch, enum cache_left left, bool *now)
{
	bool kept = left == CACHE_KEPT || (left == CACHE_ENDED && m->dev->dev->inherited);
	struct keeper *keeper = left == CACHE_KEPT ? keeper_make(m) : NULL;
	struct grant *g;
	bool spoiled = false;

	*now = false;

	pthread_mutex_lock(&ch->lock);
	chunk_unready(ch);
	g = grant_find(m, ch);
	if (g && g->pinned) {
		grant_look(g);
		pthread_mutex_unlock(&ch->lock);
		grant_discard(g, true);
		pthread_mutex_lock(&ch->lock);
		grant_looked(g);
	}
	while (g && g->lookers > 0) {
		page_wait(ch);
		g = grant_find(m, ch);
	}
	if (g) {
		struct replica *rep = g->replica;
		bool before = replica_is_spoiled(rep);

		/* It may have become ready for others meanwhile. */
		chunk_unready(ch);
		rep->n_suspects -= g->suspect;
		if (g->delivered || g->offered || g->unanswered) {
			rep->spoiled |= kept && m->export_write;
			keeper_add(&rep->keepers, keeper);
			keeper = NULL;
		}
		spoiled = replica_is_spoiled(rep);
		*now = spoiled && !before;
		LIST_REMOVE(g, of_replica);
		if (m->prot & GAIA_PROT_WRITE)
			replica_grant_ended(rep, m->unarmed);
		pthread_mutex_lock(&m->lock);
		mapping_grant_ends(m, g);
		pthread_mutex_unlock(&m->lock);
		free(g);
	}
	pthread_mutex_unlock(&ch->lock);
	keepers_free(keeper);
	return spoiled;
}

void cache_unmapping(struct mapping *m)
{
	struct chunk **list;
	struct grant *g, *tmp;
	unsigned n = 0;

	atomic_store(&m->ended, true);
	/* What is ready is acquired without a look at who holds it. */
	pthread_mutex_lock(&m->lock);
	list = xmalloc((HASH_COUNT(m->grants) + 1) * sizeof(struct chunk *));
	HASH_ITER(hh, m->grants, g, tmp)
		list[n++] = chunk_ref(g->replica->chunk);
	pthread_mutex_unlock(&m->lock);
	for (unsigned k = 0; k < n; k++) {
		pthread_mutex_lock(&list[k]->lock);
		chunk_unready(list[k]);
		pthread_mutex_unlock(&list[k]->lock);
		chunk_put(list[k]);
	}
	free(list);
}

void cache_unmap(struct mapping *m, enum cache_left left)
{
	struct cfile *f = m->file;
	struct chunk *ch;
	bool now;

	readahead_cease(m);
	pins_drop(m);
	while ((ch = chunk_of_mapping(m))) {
		if (grant_end(m, ch, left, &now))
			spoiled_secure(ch, m->dev, m->readers, now);
		chunk_put(ch);
	}
	readahead_end(m);
	if (m->readers)
		readers_leave(m);
	mapping_holds_nothing(m);
	if (m->dev->dev->gives_extents && !m->user.extents)
		atomic_fetch_sub(&f->n_without_extents, 1);
	pthread_mutex_destroy(&m->lock);
	free(m);
	atomic_fetch_sub(&f->mappings, 1);
	cfile_put(f);
}
