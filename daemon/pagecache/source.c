/*
 * source.c - where pages that home lacks come from: from devices that have what home would have, or from the store, by what either
 * is expected to cost (readcost.h); and the copies from devices.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/uses.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/fill.h"
#include "pagecache/frames.h"
#include "pagecache/home.h"
#include "pagecache/readcost.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/run.h"
#include "pagecache/state.h"
#include "pagecache/victim.h"

/* ---- the choice ---- */

/* Whether the replica's pages that are what home would be can be read. */
static bool may_copy(const struct replica *rep)
{
	return !rep->only && !replica_is_spoiled(rep) && !atomic_load(&rep->dev->gone);
}

/* What a batch can come from, as far as it is found. */
struct sources {
	struct source *src;
	struct read_cost *cost[READ_DEVICES];
	uint8_t has[FILL_PAGES];
	unsigned n;
};

static void found_add(struct sources *fd, struct cache_device *dev, struct replica *rep)
{
	fd->src[fd->n] = (struct source){ dev, rep };
	fd->cost[fd->n++] = &dev->read_cost;
}

/* chunk->lock is held. */
static void find_replica(struct sources *fd, const struct fill_batch *bt, struct replica *rep)
{
	bool any = false;

	if (fd->n == READ_DEVICES || !may_copy(rep))
		return;
	for (unsigned i = 0; i < bt->n; i++)
		if (replica_is_home(rep, bt->page[i])) {
			fd->has[i] |= (uint8_t)(1u << fd->n);
			any = true;
		}
	if (any)
		found_add(fd, rep->dev, rep);
}

/* As that. Slots that are found stay until slots_ended(). */
static void find_parked(struct sources *fd, struct fill_batch *bt, struct cache_device *dev)
{
	uint32_t slot[FILL_PAGES];

	if (fd->n == READ_DEVICES || atomic_load(&dev->gone) || victim_find(bt->ch, dev, bt->page, bt->n, slot) == 0)
		return;
	for (unsigned i = 0; i < bt->n; i++)
		if (slot[i]) {
			bt->slot[i] = slot[i];
			fd->has[i] |= (uint8_t)(1u << fd->n);
		}
	found_add(fd, dev, NULL);
}

/* Of the pages that come from elsewhere. */
static void slots_not_needed(struct fill_batch *bt, const struct sources *fd)
{
	for (unsigned i = 0; i < bt->n; i++)
		if (bt->slot[i] && (bt->from[i] == READ_STORE || fd->src[bt->from[i]].rep)) {
			victim_read_ended(bt->ch->file->cache, &bt->slot[i], 1, false);
			bt->slot[i] = 0;
		}
}

/* For tests that want all that devices have to come from there. */
static struct read_cost dear = { .ns = { 1000000000, 8000000000, 64000000000, 256000000000 } };

unsigned source_plan(struct fills *fills, struct fill_batch *bt, struct source *src)
{
	struct chunk *ch = bt->ch;
	struct cache *c = ch->file->cache;
	struct sources found = { .src = src };
	struct read_batch rb = {
		.store = &c->store_cost, .dev = found.cost, .n = bt->n, .page = bt->page, .has = found.has,
		.in_turn = fills->in_order, .may_probe = fills->may_probe && !fills->probe,
	};
	struct read_cost *probe;
	uint64_t instead_ns;
	bool parked;

	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < ch->n_replicas; k++)
		find_replica(&found, bt, ch->replica[k]);
	parked = ch->parked;
	if (parked)
		memset(bt->slot, 0, bt->n * sizeof(bt->slot[0]));
	for (unsigned k = 0; k < c->n_devices && parked; k++)
		find_parked(&found, bt, &c->dev[k]);
	pthread_mutex_unlock(&ch->lock);
	if (found.n == 0)
		return 0;
	rb.n_dev = found.n;
	if (fault_point("source.store_is_dear"))
		rb.store = &dear;
	probe = read_plan(&rb, bt->from, &instead_ns);
	if (probe) {
		count(CTR_read_probes, 1);
		fills->probe = probe;
		fills->instead_ns = instead_ns;
		fills->probe_began = now_ns();
	}
	if (parked)
		slots_not_needed(bt, &found);
	return found.n;
}

unsigned source_ahead(const struct chunk *ch, unsigned i, unsigned b, unsigned ahead)
{
	const struct frames *fr = &ch->file->cache->frames;
	uint64_t needs = atomic_load(&fr->used) + b - i, budget = fr->budget;
	uint64_t room = needs < budget ? budget - needs : 0;

	for (unsigned k = 0; k < ch->n_replicas && ahead > 0; k++) {
		const struct replica *rep = ch->replica[k];
		uint64_t most = may_copy(rep) ? MIN(room, (uint64_t)read_cost_window(&rep->dev->read_cost)) : 0;
		unsigned n = 0;

		while (b + n < GAIA_CHUNK_PAGES && n < most && replica_is_home(rep, b + n))
			n++;
		ahead = MAX(ahead, n);
	}
	return ahead;
}

/* ---- copies ---- */

/* On a thread of the device: the slots may be given up, though nobody may look at what has come for long (it reads the store first). */
static void slots_read(void *arg, int err)
{
	struct fill *fl = arg;

	victim_read_ended(fl->ch->file->cache, fl->slot, fl->n, err);
}

static int copy_begin(struct fill *fl)
{
	struct cache *c = fl->ch->file->cache;
	int err;

	fl->op = (struct dev_op){ .kind = DEV_COPY_OUT, .runs = fl->runs };
	fl->wait.began_ns = now_ns(); /* if the device does not even see it */
	for (unsigned k = 0; k < fl->n; k++) {
		unsigned page = fl->page[k];
		struct devmem *mem;

		fl->tag[k] = 0;
		mem = fl->rep ? fl->rep->mem : victim_place(c, fl->slot[k], &page, &fl->tag[k]);
		dev_run_add(&fl->op, fl->runs, mem, page, frame_ptr(&c->frames, fl->frame[k]), NULL);
	}
	err = cache_device_begin_then(fl->dev, &fl->op, &fl->wait, fl->rep ? NULL : slots_read, fl);
	if (err && !fl->rep)
		slots_read(fl, err);
	return err;
}

/*
 * The device took @ns and did not give the pages. To ask it cost that, and reading the store after it; and that counts twice: otherwise
 * a device that fails at once would be asked instead of the store for ever.
 */
static void copy_failed(const struct fill *fl, int err, uint64_t ns)
{
	struct cache_device *dev = fl->dev;
	uint64_t stored = read_cost_ns(&fl->ch->file->cache->store_cost, fl->n, 1);
	char name[CFILE_NAME_MAX];

	count(CTR_device_read_failures, 1);
	read_cost_learn(&dev->read_cost, fl->n, 1, ns + 2 * stored);
	if (!atomic_load(&dev->gone) && !atomic_exchange(&dev->complained, true))
		log_error("device %s: reading pages of %s: %s; they are read from the store", dev->dev->name,
			  cfile_name(fl->ch->file, name), strerror(-err));
}

void source_copy(struct fills *fills, struct fill_batch *bt, const struct source *src, unsigned which)
{
	unsigned n = 0;
	struct fill *fl;
	int err;

	for (unsigned i = 0; i < bt->n; i++)
		n += bt->from[i] == which;
	if (n == 0)
		return;
	fl = fill_create(bt->ch, src, n);
	for (unsigned i = 0; i < bt->n; i++)
		if (bt->from[i] == which)
			fill_add(fl, bt->page[i], bt->frame[i], src->rep ? 0 : bt->slot[i]);
	err = copy_begin(fl);
	if (!err) {
		STAILQ_INSERT_TAIL(&fills->copies, fl, link);
		return;
	}
	copy_failed(fl, err, now_ns() - fl->wait.began_ns);
	free(fl);
	for (unsigned i = 0; i < bt->n; i++)
		if (bt->from[i] == which)
			bt->from[i] = READ_STORE;
}

/* The device of @first has ended its copies, that one and those after it in the list: learn what they took. */
static void copies_learn(struct fill *first)
{
	struct cache_device *dev = first->dev;
	uint64_t last_ns = 0, ns = 0, own_ns;
	bool failed = false;
	unsigned pages = 0;

	for (struct fill *fl = first; fl; fl = STAILQ_NEXT(fl, link)) {
		if (fl->dev != dev)
			continue;
		fl->learned = true;
		own_ns = read_own_ns(&last_ns, fl->wait.began_ns, fl->wait.ended_ns);
		if (fl->err) {
			copy_failed(fl, fl->err, own_ns);
			failed = true;
			continue;
		}
		pages += fl->n;
		ns += own_ns;
	}
	if (pages > 0)
		read_cost_learn(&dev->read_cost, pages, 1, ns);
	if (!failed && atomic_load_explicit(&dev->complained, memory_order_relaxed))
		atomic_store(&dev->complained, false);
}

/* What clients may have stored beyond the end of the file, without holding the page, is nobody's to read. */
static void copy_cut(const struct fill *fl)
{
	for (unsigned k = 0; k < fl->n; k++) {
		unsigned limit = page_limit(fl->ch, fl->page[k]);

		if (limit < GAIA_PAGE)
			memset((char *)frame_ptr(&fl->ch->file->cache->frames, fl->frame[k]) + limit, 0, GAIA_PAGE - limit);
	}
}

void source_take_coming(struct fills *fills, struct fill_batch *bt)
{
	struct chunk *ch = bt->ch;
	bool took[FILL_PAGES];
	unsigned taken, n = 0;
	struct fill *fl;

	pthread_mutex_lock(&ch->lock);
	taken = victim_take_coming(ch, bt->page, bt->n, bt->frame, took);
	pthread_mutex_unlock(&ch->lock);
	if (taken == 0)
		return;
	fl = fill_create(ch, NULL, taken);
	for (unsigned i = 0; i < bt->n; i++) {
		if (took[i]) {
			fill_add(fl, bt->page[i], bt->frame[i], 0);
		} else {
			bt->page[n] = bt->page[i];
			bt->frame[n++] = bt->frame[i];
		}
	}
	bt->n = n;
	count(CTR_victim_returned, taken);
	fill_done(fills, fl, 0);
}

/* Pages of slots are home. */
static void fill_from_slots_done(struct fills *fills, struct fill *fl)
{
	struct chunk *ch = fl->ch;
	uint16_t page[FILL_PAGES];
	uint32_t slot[FILL_PAGES];
	unsigned n = fl->n;

	memcpy(page, fl->page, n * sizeof(page[0]));
	memcpy(slot, fl->slot, n * sizeof(slot[0]));
	fill_done(fills, fl, 0);
	if (!ch->file->cache->dedup)
		return;
	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < n; k++)
		victim_came(ch, page[k], slot[k]);
	pthread_mutex_unlock(&ch->lock);
}

int source_copies_end(struct fills *fills)
{
	struct fill *fl;
	int err, first = 0;

	STAILQ_FOREACH(fl, &fills->copies, link)
		fl->err = cache_device_end(fl->dev, &fl->wait);
	STAILQ_FOREACH(fl, &fills->copies, link)
		if (!fl->learned)
			copies_learn(fl);
	while ((fl = STAILQ_FIRST(&fills->copies))) {
		STAILQ_REMOVE_HEAD(&fills->copies, link);
		if (fl->err) {
			err = fill_read_instead(fills, fl);
			first = first ? first : err;
			free(fl);
			continue;
		}
		count(CTR_device_to_home, fl->n);
		moved(&fl->ch->file->moved, MOVED_from_device_bytes, (uint64_t)fl->n * GAIA_PAGE);
		count(CTR_device_reads, fl->n);
		count(CTR_victim_hits, fl->rep ? 0 : fl->n);
		copy_cut(fl);
		if (fl->rep)
			fill_done(fills, fl, 0);
		else
			fill_from_slots_done(fills, fl);
	}
	err = fill_reads_end(fills, false);
	return first ? first : err;
}
