/*
 * acquire.c - acquires, and advice.
 *
 * Pin replicas for the whole range; then chunk by chunk, under the locks of its pages, plan (track_plan), fetch what others
 * released, take what other devices have (peer.c), fill home, move bytes in few large operations, and note the grant; last hand
 * chunks that the client does not map yet to it (handover.c).
 */
#include <errno.h>
#include <stdlib.h>

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
	spoiled = replica_is_spoiled(rep);
	pthread_mutex_unlock(&pt->ch->lock);
	if (!spoiled)
		return 0;
	err = pages_secure(pt->ch, pt->a, pt->b);
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

int replica_bring(struct replica *rep, unsigned a, unsigned b)
{
	struct part pt = { .rep = rep, .ch = rep->chunk, .a = a, .b = b };

	return part_bring(&pt);
}

/* The chunks of the first @n parts, where the client does not map them. */
static int parts_deliver(struct mapping *m, struct part **parts, uint64_t n)
{
	struct grant **list = xcalloc(n + 1, sizeof(struct grant *));
	int err;

	for (uint64_t k = 0; k < n; k++)
		list[k] = parts[k]->grant;
	err = grants_deliver(m, list, n);
	free(list);
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
		err = user_pin_all(m, held, n_mapped) ? 0 : user_refuse(m);
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
