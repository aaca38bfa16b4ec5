/*
 * acquire.c - acquires, and advice.
 *
 * Pin replicas for the whole range; then bring their pages up to date and note what is held, many chunks at a time (bring.c); last
 * hand chunks that the client does not map yet to it (handover.c).
 */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/bring.h"
#include "pagecache/state.h"

/* ---- acquire ---- */

static void part_pin(struct part *pt)
{
	pthread_mutex_lock(&pt->ch->lock);
	pt->grant->to_come++;
	grant_repin(pt->grant);
	pthread_mutex_unlock(&pt->ch->lock);
}

/* The chunks of the first @n parts, where the client does not map them. */
static int parts_deliver(struct mapping *m, const struct part *parts, uint64_t n)
{
	struct grant **list = xcalloc(n + 1, sizeof(struct grant *));
	int err;

	for (uint64_t k = 0; k < n; k++)
		list[k] = parts[k].grant;
	err = grants_deliver(m, list, n);
	free(list);
	return err;
}

/* Take back what this acquire granted; the client has not been told of it. */
static void part_undo(struct part *pt)
{
	struct chunk *ch = pt->ch;
	struct grant *g = pt->grant;

	pthread_mutex_lock(&ch->lock);
	if (pt->granted) {
		pages_lock(ch, pt->a, pt->end);
		grant_unhold(g, pt->a, pt->end, pt->add.n, pt->add.writes, false);
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
	PIN,		/* hand over the chunks; no page is granted */
	BRING_AND_GRANT,
	WANTED,		/* the same of what an earlier acquire asked for, whose it stays */
};

/* What one acquire takes together: a part for each chunk, and then what was wanted of these before. */
struct parts {
	struct part *at;
	uint64_t n, room;
	struct ahead ahead;
};

/* Between two windows: a thread that waits to truncate the file, and all who wait behind it, get their turn. */
static void parts_give_turn(struct parts *parts, struct cfile *f)
{
	if (atomic_load(&f->range_waiters) == 0)
		return;
	ahead_drain(&parts->ahead);
	pthread_rwlock_unlock(&f->range);
	pthread_rwlock_rdlock(&f->range);
}

/* The pages of @add that lie in the chunk of @rep are to be held as often as it says. */
static void parts_add(struct parts *parts, struct mapping *m, struct replica *rep, const struct hold *add, enum purpose purpose)
{
	uint64_t start = rep->chunk->index * GAIA_CHUNK_PAGES;
	struct part *pt;

	if (parts->n == parts->room) {
		parts->room = MAX(2 * parts->room, 4u);
		parts->at = xrealloc(parts->at, parts->room * sizeof(*parts->at));
	}
	pt = &parts->at[parts->n];
	*pt = (struct part){
		.m = m, .rep = rep, .ch = rep->chunk, .grant = grant_get(m, rep),
		.pin = purpose == PIN, .wanted = purpose == WANTED, .add = *add,
	};
	pt->add.a = MAX(add->a, start);
	pt->add.b = MIN(add->b, start + GAIA_CHUNK_PAGES);
	pt->a = (unsigned)(pt->add.a - start);
	pt->end = (unsigned)(pt->add.b - start);
	/* The first ones are those of the file. */
	if (parts->n < parts->ahead.n) {
		pt->ahead = &parts->ahead;
		pt->nth = parts->n;
	}
	parts->n++;
	if (pt->pin)
		part_pin(pt);
}

static bool is_given_up(atomic_uint *verdict)
{
	return verdict && atomic_load(verdict) == CACHE_GIVEN_UP;
}

/* Before each window. */
static int parts_pause(struct parts *parts, struct cfile *f, atomic_uint *verdict)
{
	parts_give_turn(parts, f);
	return is_given_up(verdict) ? -EINTR : 0;
}

/* Acquire the parts from @from on. file->range is held. */
static int parts_acquire(struct parts *parts, uint64_t from, struct cfile *f, atomic_uint *verdict)
{
	uint64_t to;
	int err = 0;

	for (; from < parts->n && !err; from = to) {
		err = parts_pause(parts, f, verdict);
		if (err)
			break;
		to = from + window_acquire(&parts->at[from], parts->n - from, &err);
		for (uint64_t k = from; k < to && !err; k++) {
			if (!parts->at[k].again)
				continue;
			ahead_drain(&parts->ahead);
			err = parts_pause(parts, f, verdict);
			if (!err)
				err = part_acquire_again(&parts->at[k]);
		}
	}
	return err;
}

static void parts_end(struct parts *parts, bool undo)
{
	for (uint64_t k = 0; k < parts->n; k++) {
		struct part *pt = &parts->at[k];

		if (undo)
			part_undo(pt);
		else if (pt->granted)
			grant_settle(pt->grant, pt->a, pt->end, pt->add.n);
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

void mapping_unhold(struct mapping *m, uint64_t a, uint64_t b, bool write, bool untold)
{
	struct grant **list;
	unsigned n = grants_pin(m, a / GAIA_CHUNK_PAGES, (b - 1) / GAIA_CHUNK_PAGES, &list);

	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = list[k]->replica->chunk;
		unsigned from = page_in_chunk(a, ch->index, 0, 0);
		unsigned to = page_in_chunk(b - 1, ch->index, 0, GAIA_CHUNK_PAGES - 1) + 1;

		pthread_mutex_lock(&ch->lock);
		if (!untold || !ready_unhold(list[k], from, to, write)) {
			pages_lock(ch, from, to);
			grant_unhold(list[k], from, to, 1, write, untold);
			replica_scrub(list[k]->replica, from, to, false);
			pages_unlock(ch, from, to);
		}
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
				mapping_unhold(m, out.a, end, write, false);
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
	while (!err && wanted_first(m, rep->chunk->index, &h)) {
		parts_add(parts, m, rep, &h, WANTED);
		err = parts_acquire(parts, parts->n - 1, m->file, NULL);
	}
	pthread_rwlock_unlock(&m->file->range);
	return err;
}

/* ---- announced acquires ---- */

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

/* Take the oldest pin of this range, which becomes the caller's; NULL: there is none. */
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

/* The acquire has come, or will not: its chunks, and no others, need not stay any more. */
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

static struct replica **replicas_of(struct grant **list, unsigned n)
{
	struct replica **reps = xcalloc(n + 1, sizeof(*reps));

	for (unsigned k = 0; k < n; k++)
		reps[k] = list[k]->replica;
	return reps;
}

/*
 * In chunks that the file does not reach, pages are held if the client maps the chunk already. In others it
 * can store nothing until it gets them by another acquire: what was asked for is remembered until then. If the file has grown,
 * that other acquire may run beside this one. The other one first notes that the client has the chunk and
 * then looks for what is wanted; this one first notes what is wanted and then looks for chunks: so one of them sees the other.
 *
 * @ready: hold what is ready at once; NULL: decide about the whole range together.
 *
 * @pin: a stream waits for this acquire, and clients that are asked for memory may wait for the stream. So it brings the
 * chunks that were to stay for it, and waits for no evictor. Chunks that the file has grown into since then count
 * as beyond its end.
 */
static int acquire_chunks(struct mapping *m, struct page_span span, bool write, enum purpose purpose, const struct pin *pin,
			  struct ready_runs *ready, uint64_t *seq, atomic_uint *verdict)
{
	uint64_t c0 = span.a / GAIA_CHUNK_PAGES, c1 = (span.b - 1) / GAIA_CHUNK_PAGES;
	uint64_t end = (cfile_size(m->file) + GAIA_CHUNK - 1) / GAIA_CHUNK;
	uint64_t n_all = c0 < end ? MIN(c1 + 1, end) - c0 : 0, n, k;
	uint64_t *index;
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
		n_all = MIN(n_all, pin->n);
	/* More than the device has cannot fit; asked before any memory is spent on it. */
	if (n_all > m->dev->dev->capacity / GAIA_CHUNK)
		return -ENOMEM;
	if (atomic_load(&m->dev->gone))
		return -ENODEV;
	reps = xcalloc(n_all + 1, sizeof(*reps));
	index = xcalloc(n_all + 1, sizeof(*index));
	if (ready) {
		err = ready_take(m, (struct page_span){ span.a, MIN(span.b, (c0 + n_all) * GAIA_CHUNK_PAGES) }, write, ready, index);
		n = ready->n_rest;
		*seq = MAX(*seq, ready->seq);
	} else {
		for (n = 0; n < n_all; n++)
			index[n] = c0 + n;
	}
	if (err)
		goto end_ready;
	if (pin) {
		/* They are pinned, as long as the client lives. */
		k = replicas_pin_again(m, index, n, reps);
		err = k < n ? -ENOTCONN : 0;
		while (err && k > 0)
			replica_unpin(reps[--k]);
		for (k = 0; k < n && !err; k++)
			user_pin(m, reps[k]);
	} else if (n > 0)
		err = replicas_pin(m, index, n, reps);
	if (err)
		goto end_ready;
	beyond = (struct page_span){ MAX(span.a, (c0 + n_all) * GAIA_CHUNK_PAGES), span.b };
	if (beyond.a < beyond.b) {
		n_mapped = grants_pin_mapped(m, c0 + n_all, c1, !pin, &mapped);
		held = replicas_of(mapped, n_mapped);
		err = user_pin_all(m, held, n_mapped) ? 0 : user_refuse(m);
		n_held = err ? 0 : n_mapped;
	}
	ahead_init(&parts.ahead, reps, n, span, write);
	pthread_rwlock_rdlock(range);
	for (k = 0; k < n && !err; k++)
		parts_add(&parts, m, reps[k], &add, purpose);
	if (!err && purpose != PIN)
		err = parts_acquire(&parts, 0, m->file, verdict);
	ahead_drain(&parts.ahead);
	for (k = 0; k < n_mapped && !err; k++)
		parts_add(&parts, m, mapped[k]->replica, &add, purpose);
	if (!err && purpose != PIN)
		err = parts_acquire(&parts, n, m->file, verdict);
	pthread_rwlock_unlock(range);
	for (k = 0; k < n && !err; k++)
		err = acquire_wanted(m, reps[k], &parts);
	if (!err)
		err = parts_deliver(m, parts.at, n);
	for (k = 0; k < n && !err; k++)
		err = acquire_wanted(m, reps[k], &parts);
	if (!err && grants && beyond.a < beyond.b) {
		err = want_unmapped(m, beyond, mapped, n_mapped, write);
		wanted = !err;
	}
	if (wanted) {
		n_since = grants_pin_mapped(m, c0 + n_all, c1, !pin, &since);
	}
	for (k = 0; k < n_since && !err; k++)
		err = acquire_wanted(m, since[k]->replica, &parts);
	for (k = 0; k < parts.n && !err; k++)
		delivery_wait(parts.at[k].grant, seq);
	if (!err && !cache_decide(verdict, CACHE_DONE))
		err = -EINTR;
	for (k = 0; k < parts.n && !err; k++)
		grant_make_ready(parts.at[k].grant);
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
end_ready:
	if (ready)
		ready_end(m, ready, write, err != 0);
	free(reps);
	free(index);
	return err;
}

/* Two acquires that hold what is ready may both fail for lack of room for the rest. So the second try decides about the whole range at once. */
static int acquire_range(struct mapping *m, struct page_span span, bool write, enum purpose purpose, const struct pin *pin, uint64_t *seq,
			 atomic_uint *verdict)
{
	struct ready_runs ready = { .n = 0 };
	bool apart = purpose == BRING_AND_GRANT && !pin;
	int err = acquire_chunks(m, span, write, purpose, pin, apart ? &ready : NULL, seq, verdict);

	if (err == -ENOMEM && ready.n > 0)
		err = acquire_chunks(m, span, write, purpose, pin, NULL, seq, verdict);
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

static struct page_span pages_of(uint64_t off, uint64_t len)
{
	return (struct page_span){ off / GAIA_PAGE, (off + len - 1) / GAIA_PAGE + 1 };
}

int cache_acquire(struct mapping *m, uint64_t off, uint64_t len, unsigned prot, uint64_t *seq,
		  atomic_uint *verdict)
{
	unsigned access = prot & (GAIA_PROT_READ | GAIA_PROT_WRITE);
	struct page_span span = pages_of(off, len);
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
	if (access && !(prot & (GAIA_PROT_PIN | GAIA_PROT_PINNED)) &&
	    ready_acquire(m, span, access & GAIA_PROT_WRITE, seq, verdict, &err)) {
		count(CTR_acquires, 1);
		count(CTR_acquires_ready, 1);
		if (!err)
			readahead_acquired(m, span);
		return err;
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
	if (access && !err && !(prot & GAIA_PROT_PIN))
		readahead_acquired(m, span);
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

/* @m: see replicas_drop(). */
static int evict(struct cfile *f, unsigned from, uint64_t off, uint64_t len, const struct mapping *m)
{
	uint64_t end = len == 0 || off + len < off ? UINT64_MAX : off + len;
	struct cache *c = f->cache;
	struct chunk **list;
	unsigned n, took;
	int err, result = 0;

	if (from != GAIA_FROM_HOME && from >= c->n_devices)
		return -ENODEV;
	n = chunk_list_get(f, off / GAIA_CHUNK, (end - 1) / GAIA_CHUNK, &list);
	for (unsigned k = 0; k < n; k += took) {
		uint64_t index = list[k]->index;

		took = from == GAIA_FROM_HOME ? 1 : MIN(n - k, EVICT_AT_ONCE);
		if (from == GAIA_FROM_HOME)
			err = evict_home(list[k], page_in_chunk(off / GAIA_PAGE, index, 0, 0),
					 page_in_chunk((end - 1) / GAIA_PAGE, index, 0,
						       GAIA_CHUNK_PAGES - 1) + 1);
		else
			err = replicas_drop(list + k, took, &c->dev[from], m);
		result = result ? result : err;
		for (unsigned i = k; i < k + took; i++)
			chunk_put(list[i]);
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
	uint64_t first, last, c0, c1;
	int err;

	if (off < m->off || len > m->len || off - m->off > m->len - len)
		return -EINVAL;
	if (len == 0)
		return 0;
	switch (advice) {
	case GAIA_ADVISE_NORMAL:
	case GAIA_ADVISE_RANDOM:
	case GAIA_ADVISE_SEQUENTIAL:
		return readahead_advise(m, pages_of(off, len), advice);
	case GAIA_ADVISE_WILLNEED:
		readahead_will_need(m, pages_of(off, len));
		return 0;
	case GAIA_ADVISE_DONTNEED:
		readahead_cancel(m, pages_of(off, len));
		err = learn_size(m->file);
		if (err || !clip(m, off, len, &first, &last))
			return err;
		/* Whole chunks only: a part's neighbours may be needed. */
		c0 = (first + GAIA_CHUNK_PAGES - 1) / GAIA_CHUNK_PAGES;
		c1 = (last + 1) / GAIA_CHUNK_PAGES;
		if (c0 >= c1)
			return 0;
		/* Evicting what others use needs the right to write the file; a caller who advises may only read it. */
		err = evict(m->file, m->dev->index, c0 * GAIA_CHUNK, (c1 - c0) * GAIA_CHUNK, m);
		return err == -EBUSY ? 0 : err;
	default:
		return -EINVAL;
	}
}
