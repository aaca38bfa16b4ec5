/*
 * sync.c - acquire and release.
 *
 * An acquire: pin replicas for the whole range; then chunk by chunk, under the locks of its pages,
 * plan (track_plan), fetch what others released, take what other devices have (peer.c), fill home, move
 * bytes in few large operations, and note the grant; last hand chunks that the client does not map yet
 * to it. A release: chunk by chunk, find what changed and publish it; then, with no lock held, invalidate
 * what the kernel may hold of that.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pagecache/state.h"

/* ---- acquire ---- */

/* One chunk's part of an acquire. */
struct part {
	struct mapping *m;
	struct replica *rep;
	struct chunk *ch;
	struct grant *grant; /* NULL: only bring the pages (advice) */
	struct ahead *ahead; /* NULL: nothing comes after it */
	uint64_t nth;	     /* of ahead's chunks */
	bool pin;
	bool wanted;	 /* no hold is added: what is wanted of the pages becomes held */
	struct hold add; /* to each page; its span is that of the part */
	unsigned a, b; /* pages to bring */
	unsigned end;  /* of what was asked for: what is not in the file is held, so that it stays private */
	bool granted;
	uint8_t step[GAIA_CHUNK_PAGES];
};

static void part_plan(struct part *pt)
{
	replica_plan(pt->rep, pt->a, pt->b, pt->add.writes > 0, pt->step);
}

/* Fetch the pages that the plan names (all runs of @step), and plan again. */
static int part_fetch(struct part *pt, enum track_step step)
{
	int err = 0;

	for (unsigned i = pt->a, j; i < pt->b && !err; i = j) {
		j = i + 1;
		if (pt->step[i] != step)
			continue;
		while (j < pt->b && pt->step[j] == step)
			j++;
		err = fetch_pages(pt->ch, i, j);
	}
	pthread_mutex_lock(&pt->ch->lock);
	part_plan(pt);
	pthread_mutex_unlock(&pt->ch->lock);
	return err;
}

static bool part_has(const struct part *pt, enum track_step step)
{
	for (unsigned i = pt->a; i < pt->b; i++)
		if (pt->step[i] == step)
			return true;
	return false;
}

/* Snapshot what is about to be written over; without room for that, fetch it. */
static int part_secure(struct part *pt, struct dev_run *runs)
{
	struct replica *rep = pt->rep;
	struct dev_op op = { .kind = DEV_COPY_WITHIN, .runs = runs };
	struct devmem *shadow = replica_shadow(rep);
	unsigned n = 0;
	int err;

	if (!shadow)
		return part_fetch(pt, TRACK_SECURE);
	for (unsigned i = pt->a; i < pt->b; i++)
		if (pt->step[i] == TRACK_SECURE) {
			dev_run_add(&op, runs, shadow, i, NULL, rep->mem);
			n++;
		}
	err = cache_device_run(rep->dev, &op);
	if (!err) {
		count(CTR_device_snapshots, n);
		pthread_mutex_lock(&pt->ch->lock);
		for (unsigned i = pt->a; i < pt->b; i++)
			if (pt->step[i] == TRACK_SECURE)
				replica_secured(rep, i);
		part_plan(pt);
		pthread_mutex_unlock(&pt->ch->lock);
	}
	replica_shadow_done(rep);
	return err;
}

/* Copy home's pages to the replica where the plan says so. Home has them. */
static int part_send(struct part *pt, struct dev_run *runs)
{
	struct chunk *ch = pt->ch;
	struct replica *rep = pt->rep;
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = runs };
	unsigned n = 0;
	int err;

	for (unsigned i = pt->a; i < pt->b; i++)
		if (pt->step[i] == TRACK_SEND) {
			dev_run_add(&op, runs, rep->mem, i, page_ptr(ch, i), NULL);
			n++;
		}
	if (n == 0)
		return 0;
	err = cache_device_run(rep->dev, &op);
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = pt->a; i < pt->b; i++) {
		if (pt->step[i] != TRACK_SEND)
			continue;
		if (err)
			replica_garbled(rep, i);
		else
			replica_sent(rep, i);
	}
	pthread_mutex_unlock(&ch->lock);
	if (!err)
		count(CTR_home_to_device, n);
	return err;
}

/* Merge home's pages into a replica that clients may be writing, or are reading. */
static int part_pull(struct part *pt, struct dev_run *runs)
{
	struct chunk *ch = pt->ch;
	struct replica *rep = pt->rep;
	struct dev_op op = { .kind = DEV_PULL, .runs = runs };
	int err;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = pt->a; i < pt->b; i++) {
		struct page_replica *r = &rep->page[i];
		/* What nobody writes, or is void, is overwritten: no base tells apart what to keep. */
		unsigned keep = r->writers > 0 ? r->cut : 0;

		if (pt->step[i] != TRACK_PULL)
			continue;
		runs[op.n++] = (struct dev_run){
			.mem = rep->mem, .page = i, .npages = 1, .host = page_ptr(ch, i),
			.base = keep > 0 ? base_bytes(ch, i, r->seen) : frame_zeros,
			.limit = keep,
		};
	}
	pthread_mutex_unlock(&ch->lock);
	if (op.n == 0)
		return 0;
	err = cache_device_run(rep->dev, &op);
	if (err)
		return err;
	count(CTR_home_to_device, op.n);
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = pt->a; i < pt->b; i++)
		if (pt->step[i] == TRACK_PULL)
			replica_pulled(rep, i);
	pthread_mutex_unlock(&ch->lock);
	return 0;
}

/* Have the device remember what the pages hold, so that the release can tell what changed. */
static int part_arm(struct part *pt, struct dev_run *runs)
{
	struct replica *rep = pt->rep;
	struct dev_op op = { .kind = DEV_ARM, .runs = runs };
	int err;

	for (unsigned i = pt->a; i < pt->b; i++)
		if (!(rep->page[i].flags & REPLICA_ARMED) && rep->page[i].writers == 0)
			dev_run_add(&op, runs, rep->mem, i, NULL, NULL);
	if (op.n == 0)
		return 0;
	err = cache_device_run(rep->dev, &op);
	if (err)
		return err;
	pthread_mutex_lock(&pt->ch->lock);
	for (unsigned i = pt->a; i < pt->b; i++)
		if (rep->page[i].writers == 0)
			replica_armed(rep, i);
	pthread_mutex_unlock(&pt->ch->lock);
	return 0;
}

/* What lies beyond the end of the file reads as zeros, whatever this memory had before. */
static int part_zero(struct part *pt)
{
	struct dev_run *runs = xmalloc((pt->end - pt->b) * sizeof(*runs));
	struct dev_op op = { .kind = DEV_ZERO, .runs = runs, .n = pt->end - pt->b };
	int err;

	for (unsigned k = 0; k < op.n; k++)
		runs[k] = (struct dev_run){ .mem = pt->rep->mem, .page = pt->b + k, .npages = 1 };
	err = cache_device_run(pt->rep->dev, &op);
	free(runs);
	pthread_mutex_lock(&pt->ch->lock);
	for (unsigned i = pt->b; i < pt->end && !err; i++)
		replica_zeroed(pt->rep, i);
	pthread_mutex_unlock(&pt->ch->lock);
	return err;
}

static int part_grant(struct part *pt)
{
	int err;

	pthread_mutex_lock(&pt->ch->lock);
	err = pt->wanted ? grant_take_wanted(pt->grant, pt->a, pt->end, pt->b, pt->add.writes > 0) :
			   grant_hold(pt->grant, pt->a, pt->end, pt->b, pt->add.n, pt->add.writes);
	pthread_mutex_unlock(&pt->ch->lock);
	pt->granted = !err && !pt->wanted;
	return err;
}

static void part_pin(struct part *pt)
{
	pthread_mutex_lock(&pt->ch->lock);
	pt->grant->to_come++;
	grant_repin(pt->grant);
	pthread_mutex_unlock(&pt->ch->lock);
}

/*
 * Somebody may have stored to the memory who is no client any more: only what others hold, and so may be using, is left as it is.
 * Nobody publishes what he stored but those, and what they released is at home by now, or is brought there.
 */
static int part_distrust(struct part *pt)
{
	struct replica *rep = pt->rep;
	uint64_t held[GAIA_CHUNK_PAGES / 64] = { 0 };
	bool spoiled;
	int err;

	pthread_mutex_lock(&pt->ch->lock);
	spoiled = rep->spoiled;
	pthread_mutex_unlock(&pt->ch->lock);
	if (!spoiled)
		return 0;
	err = fetch_pages(pt->ch, pt->a, pt->b);
	if (err)
		return err;
	pthread_mutex_lock(&pt->ch->lock);
	replica_held(rep, pt->a, pt->b, held);
	for (unsigned i = pt->a; i < pt->b; i++)
		if (!bit_test(held, i))
			replica_distrusted(rep, i);
	pthread_mutex_unlock(&pt->ch->lock);
	return 0;
}

/* Bring the part's pages to the device. They are locked, file->range is held. */
static int part_bring(struct part *pt)
{
	struct dev_run *runs = xmalloc((pt->b - pt->a) * sizeof(*runs));
	int err = passthrough_catch_up(pt->ch, pt->a, pt->b);
	bool sends = false;

	/* Then bases may have been given up that the plan would ask for (kept_trim()). */
	if (!err && atomic_load(&pt->rep->dev->gone))
		err = -ENODEV;
	if (!err)
		err = part_distrust(pt);
	pthread_mutex_lock(&pt->ch->lock);
	part_plan(pt);
	pthread_mutex_unlock(&pt->ch->lock);
	if (!err && part_has(pt, TRACK_FETCH))
		err = part_fetch(pt, TRACK_FETCH);
	if (!err && part_has(pt, TRACK_SECURE))
		err = part_secure(pt, runs);
	if (!err)
		peer_send(pt->rep, pt->a, pt->b, pt->step, runs);
	for (unsigned i = pt->a, j; i < pt->b && !err; i = j) {
		j = i + 1;
		if (pt->step[i] != TRACK_SEND && pt->step[i] != TRACK_PULL)
			continue;
		while (j < pt->b && (pt->step[j] == TRACK_SEND || pt->step[j] == TRACK_PULL))
			j++;
		err = home_fill(pt->ch, i, j);
		sends = true;
	}
	if (!err && sends && pt->ahead)
		ahead_go_on(pt->ahead, pt->nth);
	if (!err)
		err = part_send(pt, runs);
	if (!err)
		err = part_pull(pt, runs);
	if (!err && pt->add.writes > 0)
		err = part_arm(pt, runs);
	free(runs);
	return err;
}

/* Of the part's pages the first one that lies beyond the end of the file. */
static unsigned part_in_file(const struct part *pt)
{
	unsigned i = pt->end;

	while (i > pt->a && page_limit(pt->ch, i - 1) == 0)
		i--;
	return i;
}

/* Never waiting for a page while others are under way for us. */
static void part_lock(struct part *pt)
{
	struct chunk *ch = pt->ch;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = pt->a; i < pt->end; i++) {
		if (page_trylock(ch, i))
			continue;
		if (pt->ahead) {
			pthread_mutex_unlock(&ch->lock);
			ahead_drain(pt->ahead);
			pthread_mutex_lock(&ch->lock);
		}
		pages_lock(ch, i, i + 1);
	}
	pthread_mutex_unlock(&ch->lock);
}

/* file->range is held. */
static int part_acquire(struct part *pt)
{
	int err = 0;

	if (pt->ahead)
		ahead_arrived(pt->ahead, pt->nth);
	if (pt->add.writes > 0)
		err = passthrough_room(pt->m, pt->end - pt->a);
	if (err)
		return err;
	if (!pt->grant)
		pt->end = part_in_file(pt);
	if (pt->a >= pt->end)
		return 0;
	part_lock(pt);
	/* The file may still grow, but nobody brings, writes or releases these pages meanwhile. */
	pt->b = part_in_file(pt);
	if (pt->a < pt->b)
		err = part_bring(pt);
	if (!err && pt->b < pt->end)
		err = part_zero(pt);
	if (!err && pt->grant)
		err = part_grant(pt);
	pthread_mutex_lock(&pt->ch->lock);
	pages_unlock(pt->ch, pt->a, pt->end);
	pthread_mutex_unlock(&pt->ch->lock);
	atomic_store_explicit(&pt->ch->referenced, true, memory_order_relaxed);
	chunk_account(pt->ch);
	return err;
}

/*
 * ---- handing chunks to the client ----
 *
 * Once each, though several of its threads may acquire pages of one chunk at the same time: the client would
 * map it anew, and a kernel that is using what it got before would meet unmapped memory. The others wait, and
 * say which message their caller must have handled, too.
 */

/* Whether it is for the caller to hand it over. */
static bool delivery_begin(struct grant *g)
{
	struct chunk *ch = g->replica->chunk;
	bool mine;

	pthread_mutex_lock(&ch->lock);
	if (g->mapping->kept == 1 + g->index)
		g->delivered = 1;
	mine = !g->delivered && !g->in_delivery;
	if (mine)
		g->in_delivery = true;
	pthread_mutex_unlock(&ch->lock);
	return mine;
}

/* @seq: by which message, or 0: it has failed. @sent: the client may have got it all the same. */
static void delivery_end(struct grant *g, uint64_t seq, bool sent)
{
	struct chunk *ch = g->replica->chunk;

	pthread_mutex_lock(&ch->lock);
	g->in_delivery = false;
	g->delivered = seq;
	/* Also by an earlier attempt. */
	g->offered = (g->offered || sent) && !seq;
	pthread_cond_broadcast(&ch->unlocked);
	pthread_mutex_unlock(&ch->lock);
}

/* @seq becomes at least what this one was delivered by. False: who was handing it over could not. */
static bool delivery_wait(struct grant *g, uint64_t *seq)
{
	struct chunk *ch = g->replica->chunk;
	bool done;

	pthread_mutex_lock(&ch->lock);
	if (g->in_delivery) {
		pthread_mutex_unlock(&ch->lock);
		(void)fault_point("acquire.awaits_grant");
		pthread_mutex_lock(&ch->lock);
	}
	while (g->in_delivery)
		page_wait(ch);
	*seq = MAX(*seq, g->delivered);
	done = g->delivered;
	pthread_mutex_unlock(&ch->lock);
	return done;
}

/* All of the chunk is brought up to date, where somebody holds it or released it, or becomes zeros. Its pages are locked. */
static int show_locked(struct replica *rep)
{
	struct chunk *ch = rep->chunk;
	uint64_t held[GAIA_CHUNK_PAGES / 64] = { 0 };
	int err = passthrough_catch_up(ch, 0, GAIA_CHUNK_PAGES);
	unsigned end = GAIA_CHUNK_PAGES;

	pthread_mutex_lock(&ch->lock);
	/* It may grow meanwhile. */
	while (end > 0 && page_limit(ch, end - 1) == 0)
		end--;
	replica_held(rep, 0, GAIA_CHUNK_PAGES, held);
	for (unsigned i = 0, j; i < GAIA_CHUNK_PAGES && !err; i = j) {
		struct part pt = { .rep = rep, .ch = ch, .a = i };

		for (j = i; j < GAIA_CHUNK_PAGES && replica_to_bring(rep, j, bit_test(held, j), j < end); j++)
			;
		pt.b = j;
		if (i == j) {
			j++;
			continue;
		}
		pthread_mutex_unlock(&ch->lock);
		err = part_bring(&pt);
		pthread_mutex_lock(&ch->lock);
	}
	if (!err)
		err = replica_scrub_old(rep, end);
	pthread_mutex_unlock(&ch->lock);
	return err;
}

/* The client is about to map all of the chunk, though it has acquired a part. */
static int show(struct replica *rep)
{
	struct chunk *ch = rep->chunk;
	int err;

	pthread_rwlock_rdlock(&ch->file->range);
	pthread_mutex_lock(&ch->lock);
	pages_lock(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&ch->lock);
	err = show_locked(rep);
	pthread_mutex_lock(&ch->lock);
	pages_unlock(ch, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&ch->lock);
	chunk_account(ch);
	pthread_rwlock_unlock(&ch->file->range);
	return err;
}

static int deliver(struct mapping *m, struct grant **g, unsigned n)
{
	const struct cache_host *host = &m->file->cache->host;
	struct device *dev = m->dev->dev;
	uint64_t idx[GAIA_MSG_CHUNKS], seq = 0;
	int fd[GAIA_MSG_CHUNKS], err = 0;
	bool sent = false;
	unsigned k;

	for (k = 0; k < n && !err; k++)
		err = show(g[k]->replica);
	for (k = 0; k < n && !err; k++) {
		idx[k] = g[k]->index;
		fd[k] = dev->ops->export_fd(dev, g[k]->replica->mem, m->export_write);
		if (fd[k] < 0) {
			err = fd[k];
			log_error("device %s: exporting a chunk: %s", dev->name, strerror(-err));
			while (k > 0)
				close(fd[--k]);
		}
	}
	if (!err) {
		(void)fault_point("acquire.before_grant");
		sent = true;
		err = host->grant(m->client, m->id, m->prot, idx, fd, n, &seq);
	}
	for (k = 0; k < n; k++)
		delivery_end(g[k], err ? 0 : seq, sent);
	return err;
}

/* The chunks of the first @n parts, where the client does not map them. */
static int parts_deliver(struct mapping *m, struct part **parts, uint64_t n)
{
	struct grant *mine[GAIA_MSG_CHUNKS];
	uint64_t seq = 0;
	bool missing = n > 0;
	unsigned k = 0;
	int err = 0;

	while (missing && !err) {
		for (uint64_t i = 0; i < n && !err; i++) {
			if (delivery_begin(parts[i]->grant))
				mine[k++] = parts[i]->grant;
			if (k == GAIA_MSG_CHUNKS || (k > 0 && i + 1 == n)) {
				err = deliver(m, mine, k);
				k = 0;
			}
		}
		/* Only now: who hands over what we wait for may be waiting for ours. */
		missing = false;
		for (uint64_t i = 0; i < n && !err; i++)
			missing |= !delivery_wait(parts[i]->grant, &seq);
	}
	return err;
}

/* Take back what this acquire granted; the client has not heard of it. */
static void part_undo(struct part *pt)
{
	struct chunk *ch = pt->ch;
	struct grant *g = pt->grant;

	pthread_mutex_lock(&ch->lock);
	if (pt->granted) {
		pages_lock(ch, pt->a, pt->end);
		grant_unhold(g, pt->a, pt->end, pt->add.n, pt->add.writes);
		replica_scrub(pt->rep, pt->a, pt->end, false);
		pages_unlock(ch, pt->a, pt->end);
	}
	/* The client's death may have ended it. */
	if (pt->pin && g->to_come > 0)
		g->to_come--;
	grant_repin(g);
	pthread_mutex_unlock(&ch->lock);
}

/* The range in the mapping and in the file, in pages: false if there is nothing. */
static bool clip(struct mapping *m, uint64_t off, uint64_t len, uint64_t *first, uint64_t *last)
{
	uint64_t size = cfile_size(m->file), end = MIN(off + len, size);

	if (len == 0 || off >= end)
		return false;
	*first = off / GAIA_PAGE;
	*last = (end - 1) / GAIA_PAGE;
	return true;
}

static unsigned page_in_chunk(uint64_t page, uint64_t chunk, unsigned below, unsigned above)
{
	if (page / GAIA_CHUNK_PAGES < chunk)
		return below;
	if (page / GAIA_CHUNK_PAGES > chunk)
		return above;
	return (unsigned)(page % GAIA_CHUNK_PAGES);
}

/* What an acquire is to do. */
enum purpose {
	BRING,		/* the pages to the device; no client asked to use them (advice) */
	PIN,		/* and hand over the chunks; no page is granted */
	BRING_AND_GRANT,
	WANTED,		/* the same of what an earlier acquire asked for, whose it stays */
};

/* What one acquire takes together: a part for each chunk, and then what was wanted of these before. */
struct parts {
	struct part **at;
	uint64_t n;
	struct ahead ahead;
};

/* Between two parts: who wants to truncate the file, and all who wait behind him, get their turn. */
static void parts_give_turn(struct parts *parts, struct cfile *f)
{
	if (atomic_load(&f->range_waiters) == 0)
		return;
	ahead_drain(&parts->ahead);
	pthread_rwlock_unlock(&f->range);
	pthread_rwlock_rdlock(&f->range);
}

/* The pages of @add that lie in the chunk of @rep are to be held as often as it says. */
static int parts_add(struct parts *parts, struct mapping *m, struct replica *rep,
		     const struct hold *add, enum purpose purpose)
{
	uint64_t start = rep->chunk->index * GAIA_CHUNK_PAGES;
	struct part *pt = xcalloc(1, sizeof(*pt));

	pt->m = m;
	pt->rep = rep;
	pt->ch = rep->chunk;
	pt->grant = purpose == BRING ? NULL : grant_get(m, rep);
	pt->pin = purpose == PIN;
	pt->wanted = purpose == WANTED;
	pt->add = *add;
	pt->add.a = MAX(add->a, start);
	pt->add.b = MIN(add->b, start + GAIA_CHUNK_PAGES);
	pt->a = (unsigned)(pt->add.a - start);
	pt->end = (unsigned)(pt->add.b - start);
	/* The first ones are those of the file. */
	if (parts->n < parts->ahead.n) {
		pt->ahead = &parts->ahead;
		pt->nth = parts->n;
	}
	parts->at = xrealloc(parts->at, (parts->n + 1) * sizeof(*parts->at));
	parts->at[parts->n++] = pt;
	if (!pt->pin)
		return part_acquire(pt);
	part_pin(pt);
	return 0;
}

static void parts_end(struct parts *parts, bool undo)
{
	for (uint64_t k = 0; k < parts->n; k++) {
		struct part *pt = parts->at[k];

		if (pt->grant && undo)
			part_undo(pt);
		else if (pt->granted)
			grant_settle(pt->grant, pt->a, pt->end, pt->add.n);
		free(pt);
	}
	free(parts->at);
}

/* What of @span does not lie in the @n chunks of @mapped, which are in order: the first of it is *@out, from @at on. */
static bool next_unmapped(struct page_span span, struct grant **mapped, unsigned n, unsigned *k,
			  uint64_t *at, struct page_span *out)
{
	for (; *at < span.b; (*k)++) {
		uint64_t start = *k < n ? mapped[*k]->index * GAIA_CHUNK_PAGES : span.b;

		*out = (struct page_span){ *at, MIN(start, span.b) };
		*at = *k < n ? start + GAIA_CHUNK_PAGES : span.b;
		if (out->a < out->b) {
			(*k)++;
			return true;
		}
	}
	return false;
}

/* One hold less of [a, b), which another thread has taken over with the chunk. */
static void unhold(struct mapping *m, uint64_t a, uint64_t b, bool write)
{
	struct grant **list;
	unsigned n = grants_pin(m, a / GAIA_CHUNK_PAGES, (b - 1) / GAIA_CHUNK_PAGES, &list);

	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = list[k]->replica->chunk;
		unsigned from = page_in_chunk(a, ch->index, 0, 0);
		unsigned to = page_in_chunk(b - 1, ch->index, 0, GAIA_CHUNK_PAGES - 1) + 1;

		pthread_mutex_lock(&ch->lock);
		pages_lock(ch, from, to);
		grant_unhold(list[k], from, to, 1, write);
		replica_scrub(list[k]->replica, from, to, false);
		pages_unlock(ch, from, to);
		pthread_mutex_unlock(&ch->lock);
		replica_unpin(list[k]->replica);
	}
	free(list);
}

/* All of @span is not wanted any more, but what lies in the @n chunks of @mapped. */
static void unwant_unmapped(struct mapping *m, struct page_span span, struct grant **mapped,
			    unsigned n, bool write)
{
	struct page_span out;
	uint64_t at = span.a, end;
	unsigned k = 0;
	bool there;

	while (next_unmapped(span, mapped, n, &k, &at, &out))
		for (; out.a < out.b; out.a = end) {
			end = wanted_undo(m, out.a, out.b, write, &there);
			if (!there)
				unhold(m, out.a, end, write);
		}
}

/* The other way round. */
static int want_unmapped(struct mapping *m, struct page_span span, struct grant **mapped,
			 unsigned n, bool write)
{
	struct page_span out;
	uint64_t at = span.a;
	unsigned k = 0;
	int err = 0;

	while (!err && next_unmapped(span, mapped, n, &k, &at, &out))
		err = wanted_add(m, out.a, out.b, write);
	if (err)
		unwant_unmapped(m, (struct page_span){ span.a, out.a }, mapped, n, write);
	return err;
}

/* The acquire has succeeded. */
static void settle_unmapped(struct mapping *m, struct page_span span, struct grant **mapped, unsigned n)
{
	struct page_span out;
	uint64_t at = span.a;
	unsigned k = 0;

	while (next_unmapped(span, mapped, n, &k, &at, &out))
		wanted_settle(m, out.a, out.b);
}

/* What the client wanted of this chunk, which it maps, or is about to. */
static int acquire_wanted(struct mapping *m, struct replica *rep, struct parts *parts)
{
	struct hold h;
	int err = 0;

	pthread_rwlock_rdlock(&m->file->range);
	while (!err && wanted_first(m, rep->chunk->index, &h))
		err = parts_add(parts, m, rep, &h, WANTED);
	pthread_rwlock_unlock(&m->file->range);
	return err;
}

/* ---- acquires to come ---- */

#define PINS_MOST 4096u /* of a mapping */
#define BEYOND_MOST 64u /* of a pin: of a file that was cut off it is one, unless the client maps every other chunk */

static unsigned count_runs(struct grant **list, unsigned n)
{
	unsigned runs = 0;

	for (unsigned k = 0; k < n; k++)
		runs += k == 0 || list[k]->index != list[k - 1]->index + 1;
	return runs;
}

/* The chunks are counted in their grants. -EAGAIN: the mapping has too many acquires to come, or this one too many parts. */
static int pin_note(struct mapping *m, struct page_span span, uint64_t first, uint64_t n,
		    struct grant **beyond, unsigned n_beyond)
{
	unsigned runs = count_runs(beyond, n_beyond);
	struct pin *pin;
	int err = 0;

	if (runs > BEYOND_MOST)
		return -EAGAIN;
	pin = xcalloc(1, sizeof(*pin) + runs * sizeof(pin->beyond[0]));
	pin->span = span;
	pin->first = first;
	pin->n = n;
	for (unsigned k = 0; k < n_beyond; k++) {
		uint64_t index = beyond[k]->index;

		if (k == 0 || index != beyond[k - 1]->index + 1)
			pin->beyond[pin->n_beyond++].a = index;
		pin->beyond[pin->n_beyond - 1].b = index + 1;
	}
	pthread_mutex_lock(&m->lock);
	if (m->n_pins < PINS_MOST) {
		STAILQ_INSERT_TAIL(&m->pins, pin, link);
		m->n_pins++;
	} else {
		err = -EAGAIN;
	}
	pthread_mutex_unlock(&m->lock);
	if (err)
		free(pin);
	return err;
}

/* The oldest of this range, the caller's from now on; NULL: there is none. */
static struct pin *pin_take(struct mapping *m, struct page_span span)
{
	struct pin *pin;

	pthread_mutex_lock(&m->lock);
	STAILQ_FOREACH(pin, &m->pins, link)
		if (!pin->taken && pin->span.a == span.a && pin->span.b == span.b)
			break;
	if (pin)
		pin->taken = true;
	pthread_mutex_unlock(&m->lock);
	return pin;
}

/* The acquire has failed: it may come again. */
static void pin_put_back(struct mapping *m, struct pin *pin)
{
	pthread_mutex_lock(&m->lock);
	pin->taken = false;
	pthread_mutex_unlock(&m->lock);
}

static bool pin_has(const struct pin *pin, uint64_t chunk)
{
	for (unsigned k = 0; k < pin->n_beyond; k++)
		if (chunk >= pin->beyond[k].a && chunk < pin->beyond[k].b)
			return true;
	return chunk >= pin->first && chunk - pin->first < pin->n;
}

/* The acquire has come, or will not: its chunks, and no other's, need not stay any more. */
static void pin_end(struct mapping *m, struct pin *pin)
{
	struct grant **list;
	unsigned n = grants_pin(m, pin->span.a / GAIA_CHUNK_PAGES, (pin->span.b - 1) / GAIA_CHUNK_PAGES,
				&list);

	for (unsigned k = 0; k < n; k++) {
		struct replica *rep = list[k]->replica;

		pthread_mutex_lock(&rep->chunk->lock);
		/* The client's death may have ended it. */
		if (pin_has(pin, list[k]->index) && list[k]->to_come > 0)
			list[k]->to_come--;
		grant_repin(list[k]);
		pthread_mutex_unlock(&rep->chunk->lock);
		replica_unpin(rep);
	}
	free(list);
	pthread_mutex_lock(&m->lock);
	STAILQ_REMOVE(&m->pins, pin, pin, link);
	m->n_pins--;
	pthread_mutex_unlock(&m->lock);
	free(pin);
}

void pins_drop(struct mapping *m)
{
	struct pin *pin;

	while ((pin = STAILQ_FIRST(&m->pins))) {
		STAILQ_REMOVE_HEAD(&m->pins, link);
		free(pin);
	}
}

static bool is_given_up(atomic_uint *verdict)
{
	return verdict && atomic_load(verdict) == CACHE_GIVEN_UP;
}

static struct replica **replicas_of(struct grant **list, unsigned n)
{
	struct replica **reps = xcalloc(n + 1, sizeof(*reps));

	for (unsigned k = 0; k < n; k++)
		reps[k] = list[k]->replica;
	return reps;
}

/*
 * Of the chunks that the file does not reach into those are held that the client maps from before. In others it
 * can store nothing, until it gets them by another acquire: what was asked for is remembered until then. That
 * other one may run beside this one, the file having grown. Of the two, one first says that the client has the chunk and
 * then looks for what is wanted, the other says first what is wanted and then looks for chunks: one of them sees the other.
 *
 * @pin: a stream waits for this acquire, and clients that are asked for memory may wait for the stream. So it brings the
 * chunks that were to stay for it, and waits for nobody who evicts. Chunks that the file has grown into since then count
 * as beyond its end.
 */
static int acquire_range(struct mapping *m, struct page_span span, bool write, enum purpose purpose,
			 const struct pin *pin, uint64_t *seq, atomic_uint *verdict)
{
	uint64_t c0 = span.a / GAIA_CHUNK_PAGES, c1 = (span.b - 1) / GAIA_CHUNK_PAGES;
	uint64_t end = (cfile_size(m->file) + GAIA_CHUNK - 1) / GAIA_CHUNK;
	uint64_t n = c0 < end ? MIN(c1 + 1, end) - c0 : 0, k;
	bool grants = pin || purpose == BRING_AND_GRANT, wanted = false;
	const struct hold add = { .a = span.a, .b = span.b, .n = 1, .writes = write };
	struct page_span beyond;
	pthread_rwlock_t *range = &m->file->range;
	struct parts parts = { .n = 0 };
	struct grant **mapped = NULL, **since = NULL;
	unsigned n_mapped = 0, n_since = 0, n_held = 0;
	struct replica **reps, **held = NULL;
	int err = 0;

	if (pin)
		n = MIN(n, pin->n);
	/* More than the device has cannot fit; asked before any memory is spent on it. */
	if (n > m->dev->dev->capacity / GAIA_CHUNK)
		return -ENOMEM;
	if (atomic_load(&m->dev->gone))
		return -ENODEV;
	reps = xcalloc(n, sizeof(*reps));
	if (pin) {
		/* They are pinned, as long as the client lives. */
		k = replicas_pin_again(m, c0, n, reps);
		err = k < n ? -ENOTCONN : 0;
		while (err && k > 0)
			replica_unpin(reps[--k]);
		for (k = 0; k < n && !err; k++)
			user_pin(m, reps[k]);
	} else if (n > 0)
		err = replicas_pin(m, c0, c0 + n - 1, reps);
	if (err)
		goto free_reps;
	beyond = (struct page_span){ MAX(span.a, (c0 + n) * GAIA_CHUNK_PAGES), span.b };
	if (purpose != BRING && beyond.a < beyond.b) {
		n_mapped = grants_pin_mapped(m, c0 + n, c1, !pin, &mapped);
		held = replicas_of(mapped, n_mapped);
		err = user_pin_all(m, held, n_mapped);
		n_held = err ? 0 : n_mapped;
	}
	ahead_init(&parts.ahead, reps, n, span, write);
	pthread_rwlock_rdlock(range);
	for (k = 0; k < n && !err; k++) {
		parts_give_turn(&parts, m->file);
		err = is_given_up(verdict) ? -EINTR : parts_add(&parts, m, reps[k], &add, purpose);
	}
	ahead_drain(&parts.ahead);
	for (k = 0; k < n_mapped && !err; k++) {
		parts_give_turn(&parts, m->file);
		err = parts_add(&parts, m, mapped[k]->replica, &add, purpose);
	}
	pthread_rwlock_unlock(range);
	for (k = 0; k < n && !err && purpose != BRING; k++)
		err = acquire_wanted(m, reps[k], &parts);
	if (!err && purpose != BRING)
		err = parts_deliver(m, parts.at, n);
	for (k = 0; k < n && !err && purpose != BRING; k++)
		err = acquire_wanted(m, reps[k], &parts);
	if (!err && grants && beyond.a < beyond.b) {
		err = want_unmapped(m, beyond, mapped, n_mapped, write);
		wanted = !err;
	}
	if (wanted) {
		n_since = grants_pin_mapped(m, c0 + n, c1, !pin, &since);
	}
	for (k = 0; k < n_since && !err; k++)
		err = acquire_wanted(m, since[k]->replica, &parts);
	for (k = 0; k < parts.n && !err && purpose != BRING; k++)
		delivery_wait(parts.at[k]->grant, seq);
	if (!err && !cache_decide(verdict, CACHE_DONE))
		err = -EINTR;
	if (!err && purpose == PIN)
		err = pin_note(m, span, c0, n, mapped, n_mapped);
	parts_end(&parts, err != 0);
	if (wanted && !err)
		settle_unmapped(m, beyond, mapped, n_mapped);
	else if (wanted)
		unwant_unmapped(m, beyond, mapped, n_mapped, write);
	for (k = 0; k < n_since; k++)
		replica_unpin(since[k]->replica);
	user_unpin_all(m, held, n_held);
	for (k = 0; k < n_mapped; k++)
		replica_unpin(mapped[k]->replica);
	user_unpin_all(m, reps, n);
	free(held);
	free(mapped);
	free(since);
	for (k = 0; k < n; k++)
		replica_unpin(reps[k]);
free_reps:
	free(reps);
	return err;
}

/* What follows goes by the file's size. */
static int learn_size(struct cfile *f)
{
	int err;

	pthread_rwlock_rdlock(&f->range);
	err = passthrough_size(f);
	pthread_rwlock_unlock(&f->range);
	return err;
}

int cache_acquire(struct mapping *m, uint64_t off, uint64_t len, unsigned prot, uint64_t *seq,
		  atomic_uint *verdict)
{
	unsigned access = prot & (GAIA_PROT_READ | GAIA_PROT_WRITE);
	struct page_span span = { off / GAIA_PAGE, (off + len - 1) / GAIA_PAGE + 1 };
	struct pin *pin = NULL;
	int err = 0;

	*seq = 0;
	if (access & ~m->prot)
		return -EACCES;
	if (off < m->off || len > m->len || off - m->off > m->len - len)
		return -EINVAL;
	if (len == 0)
		return 0;
	if (prot & GAIA_PROT_PINNED) {
		pin = pin_take(m, span);
		if (!pin)
			return -EINVAL;
	}
	if (access)
		err = learn_size(m->file);
	if (access && !err) {
		err = acquire_range(m, span, access & GAIA_PROT_WRITE,
				    prot & GAIA_PROT_PIN ? PIN : BRING_AND_GRANT, pin, seq, verdict);
		count(CTR_acquires, !(prot & GAIA_PROT_PIN));
	}
	if (err == -ENOMEM)
		count(CTR_acquire_nomem, 1);
	if (pin && err)
		pin_put_back(m, pin);
	else if (pin)
		pin_end(m, pin);
	return err;
}

/* ---- release ---- */

/* One chunk's part of a release. */
struct release {
	struct chunk *ch;
	uint64_t published[GAIA_CHUNK_PAGES / 64]; /* by us or others, and the kernel may hold copies */
	uint16_t opened[GAIA_CHUNK_PAGES]; /* of those, see window_open() */
	bool changed;
};

/* Nobody can tell: who needs them gets them, but for what lies beyond the end, which may be there still. */
static void take_for_changed(struct replica *rep, const uint64_t *pages, unsigned a, unsigned b, uint64_t *changed)
{
	pthread_mutex_lock(&rep->chunk->lock);
	for (unsigned i = a; i < b; i++) {
		unsigned limit = page_limit(rep->chunk, i);

		if (!bit_test(pages, i))
			continue;
		bit_set(changed, i);
		replica_disarmed(rep, i);
		if (limit < GAIA_PAGE)
			replica_cut(rep, i, limit);
	}
	pthread_mutex_unlock(&rep->chunk->lock);
}

/*
 * Find the changed ones of @pages, none of which is void. Locked by the caller. Bytes past the end are dropped first. On error all
 * count as changed.
 */
static int find_changed(struct replica *rep, const uint64_t *pages, unsigned a, unsigned b,
			uint64_t *changed)
{
	struct dev_run *runs = xmalloc((b - a) * sizeof(*runs));
	struct dev_op op = { .kind = DEV_FIND_CHANGED, .runs = runs };
	uint64_t packed[GAIA_CHUNK_PAGES / 64] = { 0 };
	unsigned nth = 0;
	int err = 0;

	for (unsigned i = a; i < b && !err; i++) {
		unsigned limit = page_limit(rep->chunk, i);

		if (!bit_test(pages, i))
			continue;
		if (limit > 0 && limit < GAIA_PAGE) {
			struct dev_run tail = { .mem = rep->mem, .page = i, .npages = 1,
						.limit = limit };
			struct dev_op zero = { .kind = DEV_ZERO, .runs = &tail, .n = 1 };

			err = cache_device_run(rep->dev, &zero);
		}
		dev_run_add(&op, runs, rep->mem, i, NULL, NULL);
	}
	op.changed = packed;
	if (!err && op.n > 0)
		err = cache_device_run(rep->dev, &op);
	for (unsigned i = a; i < b && !err; i++)
		if (bit_test(pages, i)) {
			bool differs = bit_test(packed, nth++);

			/* Not armed: the device compared with something else. */
			if (differs || !(rep->page[i].flags & REPLICA_ARMED))
				bit_set(changed, i);
		}
	if (err)
		take_for_changed(rep, pages, a, b, changed);
	free(runs);
	return err;
}

/* Snapshot changed pages that other mappings go on writing. What has no room is fetched by the caller. */
static bool secure_shared(struct replica *rep, const uint64_t *pages, unsigned a, unsigned b)
{
	struct devmem *shadow = replica_shadow(rep);
	struct dev_run *runs;
	struct dev_op op = { .kind = DEV_COPY_WITHIN };
	int err;

	if (!shadow)
		return false;
	op.runs = runs = xmalloc((b - a) * sizeof(*runs));
	for (unsigned i = a; i < b; i++)
		if (bit_test(pages, i))
			dev_run_add(&op, runs, shadow, i, NULL, rep->mem);
	err = cache_device_run(rep->dev, &op);
	free(runs);
	if (err)
		replica_shadow_done(rep);
	else
		count(CTR_device_snapshots, bits_count(pages, GAIA_CHUNK_PAGES / 64));
	return err == 0;
}

/* What a release of pages of a chunk finds: a bit a page. */
struct found {
	uint64_t writing[GAIA_CHUNK_PAGES / 64]; /* held for it by this mapping */
	uint64_t once[GAIA_CHUNK_PAGES / 64];	 /* held by it once, so that this release seems to be the last */
	uint64_t ended[GAIA_CHUNK_PAGES / 64];	 /* held for writing by it no more */
	uint64_t changed[GAIA_CHUNK_PAGES / 64];
	uint64_t shared[GAIA_CHUNK_PAGES / 64]; /* changed, and somebody goes on writing them */
};

/* Publish page i, which @g held for writing. chunk->lock held, page locked. */
static void publish_page(struct grant *g, unsigned i, const struct found *found, bool secured,
			 struct release *rl)
{
	struct chunk *ch = g->replica->chunk;

	if (!replica_release(g->replica, i, bit_test(found->ended, i), bit_test(found->changed, i),
			     secured && bit_test(found->shared, i)))
		return;
	rl->changed = true;
	count(CTR_released_pages, 1);
	if (ch->track->page[i].may_hold) {
		rl->opened[i] = window_open(ch, i);
		bit_set(rl->published, i);
	}
}

/* The holds end, whatever happens; on error what was stored is kept, and is published as far as that is known. */
static int release_locked(struct grant *g, unsigned a, unsigned b, struct release *rl)
{
	struct replica *rep = g->replica;
	struct chunk *ch = rep->chunk;
	uint64_t compare[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct found found = { .writing = { 0 } };
	bool secured = false, any_shared = false, any = false, spoiled;
	int err = 0;

	pthread_mutex_lock(&ch->lock);
	grant_held(g, a, b, HELD_WRITING, found.writing);
	grant_held(g, a, b, HELD_ONCE, found.once);
	for (unsigned i = a; i < b; i++) {
		if (!bit_test(found.writing, i))
			continue;
		any = true;
		if (rep->page[i].cut > 0)
			bit_set(compare, i);
	}
	pthread_mutex_unlock(&ch->lock);
	/* What is void may be so because it was lost (page_drop_lost()), of which others were told. */
	if (any && !atomic_load(&rep->dev->gone))
		err = find_changed(rep, compare, a, b, found.changed);
	if (any && atomic_load(&rep->dev->gone)) {
		pthread_mutex_lock(&ch->lock);
		grant_release_lost(g, a, b);
		pthread_mutex_unlock(&ch->lock);
		return -ENODEV;
	}
	for (unsigned i = a; i < b; i++)
		if (bit_test(found.changed, i) && rep->page[i].writers > bit_test(found.once, i)) {
			bit_set(found.shared, i);
			any_shared = true;
		}
	if (any_shared)
		secured = secure_shared(rep, found.shared, a, b);
	(void)fault_point("release.before_publish");

	pthread_mutex_lock(&ch->lock);
	grant_released(g, a, b, found.ended);
	for (unsigned i = a; i < b; i++)
		if (bit_test(found.writing, i))
			publish_page(g, i, &found, secured, rl);
	replica_shadow_trim(rep);
	spoiled = rep->spoiled;
	pthread_mutex_unlock(&ch->lock);
	if (secured)
		replica_shadow_done(rep);
	/*
	 * What others go on writing and could not be secured belongs home; and what somebody may write who is no client any more.
	 * It is released, whether that works now or when somebody asks for it; then with what they have written by that time.
	 */
	if ((any_shared && !secured) || spoiled)
		(void)fetch_pages(ch, a, b);
	pthread_mutex_lock(&ch->lock);
	replica_scrub(rep, a, b, true);
	pthread_mutex_unlock(&ch->lock);
	return err;
}

static int release_part(struct grant *g, unsigned a, unsigned b, struct release *rl)
{
	struct chunk *ch = g->replica->chunk;
	int err, first;

	pthread_rwlock_rdlock(&ch->file->range);
	first = passthrough_before_release(ch->file);
	pthread_mutex_lock(&ch->lock);
	pages_lock(ch, a, b);
	pthread_mutex_unlock(&ch->lock);
	if (!first)
		first = passthrough_left_over(ch, a, b);
	err = release_locked(g, a, b, rl);
	first = first ? first : err;
	if (!first)
		first = passthrough_released(ch, a, b);
	pthread_mutex_lock(&ch->lock);
	pages_unlock(ch, a, b);
	pthread_mutex_unlock(&ch->lock);
	chunk_account(ch);
	pthread_rwlock_unlock(&ch->file->range);
	return first;
}

/* Whether there are any, in pages [a, b). */
static bool join_windows(struct release *rl, unsigned a, unsigned b)
{
	struct chunk *ch = rl->ch;
	bool any = false;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b && ch->track; i++) {
		if (ch->track->page[i].pending == 0 || bit_test(rl->published, i))
			continue;
		rl->opened[i] = window_open(ch, i);
		bit_set(rl->published, i);
		any = true;
	}
	pthread_mutex_unlock(&ch->lock);
	return any;
}

/*
 * What the caller stored may have been published by somebody else's release: another client's of the device, or
 * another thread's of this one. Ours has found nothing new, then; but it must not return before the kernel has dropped
 * its copy, and theirs may take longer to get there. So the pages of their windows are invalidated by us, too.
 * @rl: our @n parts, in order; parts of other chunks are added, one by one. How many there are then.
 */
static uint64_t join_others(struct cfile *f, struct page_span span, struct release **rl, uint64_t n)
{
	struct chunk **list;
	uint64_t ours = 0, mine = 0, all = n;
	unsigned n_chunks;

	for (uint64_t k = 0; k < n; k++)
		ours += bits_count((*rl)[k].published, GAIA_CHUNK_PAGES / 64);
	if (atomic_load(&f->n_windows) == ours)
		return n;
	n_chunks = chunk_list_get(f, span.a / GAIA_CHUNK_PAGES, (span.b - 1) / GAIA_CHUNK_PAGES, &list);
	*rl = xrealloc(*rl, (n + n_chunks + 1) * sizeof(**rl));
	for (unsigned k = 0; k < n_chunks; k++) {
		uint64_t start = list[k]->index * GAIA_CHUNK_PAGES;
		struct release other = { .ch = list[k] }, *part = &other;

		while (mine < n && (*rl)[mine].ch->index < list[k]->index)
			mine++;
		if (mine < n && (*rl)[mine].ch == list[k])
			part = &(*rl)[mine];
		if (join_windows(part, (unsigned)(MAX(span.a, start) - start),
				 (unsigned)(MIN(span.b, start + GAIA_CHUNK_PAGES) - start)) &&
		    part == &other)
			(*rl)[all++] = other;
		else
			chunk_put(list[k]);
	}
	free(list);
	return all;
}

/* With "break.forget_again" the kernel is trusted with what it wrote back or read since the release. */
static bool to_invalidate(const struct release *rl, unsigned i)
{
	return bit_test(rl->published, i) &&
	       !(fault_point("break.forget_again") &&
		 rl->ch->track->page[i].given != rl->opened[i]);
}

/* Invalidate what was published, in runs, and close the windows. No locks held. */
static void invalidate_published(struct cfile *f, struct release *rl, uint64_t n)
{
	struct cache *c = f->cache;
	uint64_t run = 0, from = 0, at;

	(void)fault_point("release.before_invalidate");
	for (uint64_t k = 0; k <= n && !fault_point("break.publish_late"); k++)
		for (unsigned i = 0; i < (k < n ? GAIA_CHUNK_PAGES : 1); i++) {
			at = k < n ? rl[k].ch->index * GAIA_CHUNK_PAGES + i : UINT64_MAX;
			if (run > 0 && (k == n || at != from + run || !to_invalidate(&rl[k], i))) {
				c->host.invalidate(c->host_arg, f->cookie, (off_t)(from * GAIA_PAGE),
						   (off_t)(run * GAIA_PAGE));
				count(CTR_kernel_invalidated, run);
				run = 0;
			}
			if (k < n && to_invalidate(&rl[k], i)) {
				if (run == 0)
					from = at;
				run++;
			}
		}
	for (uint64_t k = 0; k < n; k++) {
		struct chunk *ch = rl[k].ch;

		pthread_mutex_lock(&ch->lock);
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
			if (!bit_test(rl[k].published, i))
				continue;
			window_close(ch, i, rl[k].opened[i]);
		}
		track_maybe_free(ch);
		pthread_mutex_unlock(&ch->lock);
	}
}

/*
 * So many chunks are published before the kernel's copies of them go. As long as they do not, home's bytes from before are
 * kept for each page that changes again: at most this part of home, at one release.
 */
#define RELEASE_SHARE 64u
#define RELEASE_CHUNKS 16u

static uint64_t chunks_at_once(const struct cache *c)
{
	return MAX(1u, MIN(c->frames.budget / RELEASE_SHARE / GAIA_CHUNK_PAGES, (uint64_t)RELEASE_CHUNKS));
}

/* What was published is so for the kernel, too. */
static void release_complete(struct cfile *f, struct release *rl, uint64_t n)
{
	invalidate_published(f, rl, n);
	again_wait(f);
	for (uint64_t k = 0; k < n; k++)
		chunk_put(rl[k].ch);
	memset(rl, 0, n * sizeof(*rl));
}

/* What a store or a device may say, too, means to the client that nothing has changed. */
static int after_holds(int err)
{
	switch (err) {
	case -EINVAL:
	case -EINTR:
	case -ENOTCONN:
	case -ENOBUFS:
	case -ENOSR:
		return -EIO;
	}
	return err;
}

int cache_release(struct mapping *m, uint64_t off, uint64_t len)
{
	uint64_t first, last, at_once = chunks_at_once(m->file->cache);
	struct release *rl;
	struct grant **held;
	bool changed = false;
	uint64_t done = 0;
	unsigned n;
	int one, err = 0;

	if (off < m->off || len > m->len || off - m->off > m->len - len)
		return -EINVAL;
	if (len == 0)
		return 0;
	/* Not clipped to the file's size: what was acquired before a truncate is released, too. */
	first = off / GAIA_PAGE;
	last = (off + len - 1) / GAIA_PAGE;
	if (fault_point("break.publish_late"))
		m->file->cache->host.invalidate(m->file->cache->host_arg, m->file->cookie, (off_t)off,
						(off_t)len);
	err = spans_room(m, first, last + 1);
	if (err)
		return err;
	wanted_release(m, first, last + 1);
	n = grants_pin(m, first / GAIA_CHUNK_PAGES, last / GAIA_CHUNK_PAGES, &held);
	rl = xcalloc(MIN(n, at_once) + 1, sizeof(*rl));
	for (unsigned k = 0; k < n; k++) {
		struct replica *rep = held[k]->replica;
		uint64_t index = held[k]->index;

		if (done == at_once) {
			release_complete(m->file, rl, done);
			done = 0;
		}
		rl[done].ch = chunk_ref(rep->chunk);
		one = release_part(held[k], page_in_chunk(first, index, 0, 0),
				   page_in_chunk(last, index, 0, GAIA_CHUNK_PAGES - 1) + 1, &rl[done]);
		/* The others' holds end as well. */
		err = err ? err : one;
		changed |= rl[done].changed;
		done++;
		replica_unpin(rep);
	}
	if (!err)
		err = passthrough_release_again(m->file, off, len);
	/* Else what was put has set the time. */
	if (changed && !cfile_is_passthrough(m->file))
		cfile_touch(m->file);
	/* Who can store nothing waits for nothing; where the kernel writes through, it may not even invalidate. */
	if (!err && (m->prot & GAIA_PROT_WRITE))
		done = join_others(m->file, (struct page_span){ first, last + 1 }, &rl, done);
	release_complete(m->file, rl, done);
	free(rl);
	free(held);
	count(CTR_releases, 1);
	return after_holds(err);
}

/* ---- eviction on request, and advice ---- */

static int evict_home(struct chunk *ch, unsigned a, unsigned b)
{
	int err;

	pthread_rwlock_rdlock(&ch->file->range);
	err = chunk_store(ch, a, b, true);
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b; i++) {
		if (!page_present(ch, i))
			continue;
		pages_lock(ch, i, i + 1);
		if (page_present(ch, i) && !page_dirty(ch, i) && home_may_leave(ch, i)) {
			page_drop(ch, i);
			count(CTR_home_evicted, 1);
		}
		pages_unlock(ch, i, i + 1);
	}
	pthread_mutex_unlock(&ch->lock);
	pthread_rwlock_unlock(&ch->file->range);
	chunk_unlist(ch);
	return err;
}

/* @m: see replica_drop(). */
static int evict(struct cfile *f, unsigned from, uint64_t off, uint64_t len, const struct mapping *m)
{
	uint64_t end = len == 0 || off + len < off ? UINT64_MAX : off + len;
	struct cache *c = f->cache;
	struct chunk **list;
	unsigned n;
	int err, result = 0;

	if (from != GAIA_FROM_HOME && from >= c->n_devices)
		return -ENODEV;
	n = chunk_list_get(f, off / GAIA_CHUNK, (end - 1) / GAIA_CHUNK, &list);
	for (unsigned k = 0; k < n; k++) {
		uint64_t index = list[k]->index;

		if (from == GAIA_FROM_HOME)
			err = evict_home(list[k], page_in_chunk(off / GAIA_PAGE, index, 0, 0),
					 page_in_chunk((end - 1) / GAIA_PAGE, index, 0,
						       GAIA_CHUNK_PAGES - 1) + 1);
		else
			err = replica_drop(list[k], &c->dev[from], m);
		if (err && !result)
			result = err;
		chunk_put(list[k]);
	}
	free(list);
	return result;
}

int cache_evict(struct cfile *f, unsigned from, uint64_t off, uint64_t len)
{
	return evict(f, from, off, len, NULL);
}

int cache_advise(struct mapping *m, uint64_t off, uint64_t len, unsigned advice)
{
	uint64_t first, last, seq, c0, c1;
	int err = 0;

	if (off < m->off || len > m->len || off - m->off > m->len - len)
		return -EINVAL;
	err = learn_size(m->file);
	if (err || !clip(m, off, len, &first, &last))
		return err;
	switch (advice) {
	case GAIA_ADVISE_WILLNEED:
		for (uint64_t p = first; p <= last && !err; p = ROUND_DOWN(p, GAIA_CHUNK_PAGES) +
								GAIA_CHUNK_PAGES)
			err = acquire_range(m, (struct page_span){ p, MIN(last, p | (GAIA_CHUNK_PAGES - 1)) + 1 },
					    false, BRING, NULL, &seq, NULL);
		return err == -ENOMEM ? 0 : err; /* as far as there is room */
	case GAIA_ADVISE_DONTNEED:
		/* Whole chunks only: a part's neighbours may be needed. */
		c0 = (first + GAIA_CHUNK_PAGES - 1) / GAIA_CHUNK_PAGES;
		c1 = (last + 1) / GAIA_CHUNK_PAGES;
		if (c0 >= c1)
			return 0;
		/* To evict what others use is for who may write the file; who advises may only read it. */
		err = evict(m->file, m->dev->index, c0 * GAIA_CHUNK, (c1 - c0) * GAIA_CHUNK, m);
		return err == -EBUSY ? 0 : err;
	default:
		return -EINVAL;
	}
}
