/*
 * source.c - where pages that home lacks come from: from devices that have what home would have, or from the store, by what either
 * is expected to cost (readcost.h); and the copies from devices.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "base/log.h"
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

/* ---- the choice ---- */

/* Whether the replica's pages that are what home would be can be read. */
static bool may_copy(const struct replica *rep)
{
	return !rep->only && !replica_is_spoiled(rep) && !atomic_load(&rep->dev->gone);
}

unsigned source_plan(struct fills *fills, struct fill_batch *bt, struct replica **rep)
{
	struct chunk *ch = bt->ch;
	struct read_cost *cost[READ_DEVICES], *probe;
	uint8_t has[FILL_PAGES] = { 0 };
	struct read_batch rb = {
		.store = &ch->file->cache->store_cost, .dev = cost, .n = bt->n, .page = bt->page, .has = has,
		.in_turn = fills->in_order, .may_probe = fills->may_probe && !fills->probe,
	};
	uint64_t instead_ns;

	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < ch->n_replicas && rb.n_dev < READ_DEVICES; k++) {
		struct replica *r = ch->replica[k];
		bool any = false;

		if (!may_copy(r))
			continue;
		for (unsigned i = 0; i < bt->n; i++)
			if (replica_is_home(r, bt->page[i])) {
				has[i] |= (uint8_t)(1u << rb.n_dev);
				any = true;
			}
		if (any) {
			rep[rb.n_dev] = r;
			cost[rb.n_dev++] = &r->dev->read_cost;
		}
	}
	pthread_mutex_unlock(&ch->lock);
	if (rb.n_dev == 0)
		return 0;
	probe = read_plan(&rb, bt->from, &instead_ns);
	if (probe) {
		count(CTR_read_probes, 1);
		fills->probe = probe;
		fills->instead_ns = instead_ns;
		fills->probe_began = now_ns();
	}
	return rb.n_dev;
}

unsigned source_ahead(const struct chunk *ch, unsigned i, unsigned b, unsigned ahead)
{
	const struct frames *fr = &ch->file->cache->frames;
	uint64_t needs = atomic_load(&fr->used) + b - i;
	uint64_t room = needs < fr->budget ? fr->budget - needs : 0;

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

static int copy_begin(struct fill *fl)
{
	struct frames *fr = &fl->ch->file->cache->frames;

	fl->op = (struct dev_op){ .kind = DEV_COPY_OUT, .runs = fl->runs };
	fl->wait.began_ns = now_ns(); /* if the device does not even see it */
	for (unsigned k = 0; k < fl->n; k++)
		dev_run_add(&fl->op, fl->runs, fl->rep->mem, fl->page[k], frame_ptr(fr, fl->frame[k]), NULL);
	return cache_device_begin(fl->rep->dev, &fl->op, &fl->wait);
}

/*
 * The device took @ns and did not give the pages. To ask it cost that, and reading the store after it; and that counts twice: otherwise
 * a device that fails at once would be asked instead of the store for ever.
 */
static void copy_failed(const struct fill *fl, int err, uint64_t ns)
{
	struct cache_device *dev = fl->rep->dev;
	uint64_t stored = read_cost_ns(&fl->ch->file->cache->store_cost, fl->n, 1);
	char name[CFILE_NAME_MAX];

	count(CTR_device_read_failures, 1);
	read_cost_learn(&dev->read_cost, fl->n, 1, ns + 2 * stored);
	if (!atomic_load(&dev->gone) && !atomic_exchange(&dev->complained, true))
		log_error("device %s: reading pages of %s: %s; they are read from the store", dev->dev->name,
			  cfile_name(fl->ch->file, name), strerror(-err));
}

void source_copy(struct fills *fills, struct fill_batch *bt, struct replica *rep, unsigned which)
{
	unsigned n = 0;
	struct fill *fl;
	int err;

	for (unsigned i = 0; i < bt->n; i++)
		n += bt->from[i] == which;
	if (n == 0)
		return;
	fl = fill_create(bt->ch, rep, n);
	for (unsigned i = 0; i < bt->n; i++)
		if (bt->from[i] == which)
			fill_add(fl, bt->page[i], bt->frame[i]);
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
	struct cache_device *dev = first->rep->dev;
	uint64_t last_ns = 0, ns = 0, own_ns;
	bool failed = false;
	unsigned pages = 0;

	for (struct fill *fl = first; fl; fl = STAILQ_NEXT(fl, link)) {
		if (fl->rep->dev != dev)
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

int source_copies_end(struct fills *fills)
{
	struct fill *fl;
	int err, first = 0;

	STAILQ_FOREACH(fl, &fills->copies, link)
		fl->err = cache_device_end(fl->rep->dev, &fl->wait);
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
		count(CTR_device_reads, fl->n);
		copy_cut(fl);
		fill_done(fl, 0);
	}
	err = fill_reads_end(fills, false);
	return first ? first : err;
}
