/*
 * fetch.c - bringing home what devices released, of many chunks at a time.
 *
 * What is fetched together is a window: its pages are locked, each device is asked for all of what it released of them by one operation, in the
 * order of the devices, and then page after page is merged into home. So a window costs as many operations as devices have released
 * something in it. If it fails it is unlocked, and each of its chunks is locked and fetched by itself: what is in the way of one must not keep
 * the others from being stored.
 *
 * As with other windows (bring.c, rule 22) a thread waits for pages of the first chunk only, with no other page locked; what comes next joins if
 * its pages can be had by trying, and need nothing from the store.
 */
#include "pagecache/fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/counters.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/probe.h"
#include "base/uses.h"
#include "base/util.h"
#include "consistency/merge.h"
#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/dedup.h"
#include "pagecache/coherence.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/home.h"
#include "pagecache/range.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/run.h"
#include "pagecache/state.h"

/* A window ends when it has so many pages, or this part of home; or so many chunks. */
#define WINDOW_PAGES 16384u
#define WINDOW_SHARE 64u
#define WINDOW_CHUNKS 4096u

#define FOR_PAGES(pt, i) for (unsigned i = 0; (i = bits_first((pt)->pages, i, GAIA_CHUNK_PAGES)) < GAIA_CHUNK_PAGES; i++)

/* ---- from one device ---- */

/* Pages that one device released, in any number of chunks. */
struct fetch {
	struct cfile *file;
	struct cache_device *dev;
	struct fetch_trouble *trouble; /* or NULL */
	unsigned n;
	struct fetch_page {
		struct replica *rep;
		unsigned page;
	} *at;
	frame_t *frame; /* for the bytes of each */
};

static bool is_plain_copy(const struct chunk *ch, const struct replica *rep, unsigned i)
{
	const struct page_replica *r = &rep->page[i];

	return r->seen == ch->track->page[i].home_id && r->cut == GAIA_PAGE;
}

/* Whether home's present bytes matter to the merge: to be merged into, as a base, or for who wrote what. */
static bool fetch_needs_home(struct chunk *ch, const struct replica *rep, unsigned i)
{
	return !is_plain_copy(ch, rep, i) || others_outstanding(ch, i, rep) || page_owners(ch, i) ||
	       ch->track->page[i].pending > 0;
}

/* A merge takes the copy, a twin and a page of owners. */
#define MERGE_FRAMES 3u

unsigned fetch_frames(struct chunk *ch, unsigned i)
{
	unsigned n = 0;

	for (unsigned k = 0; k < ch->n_replicas && n < MERGE_FRAMES; k++)
		if (replica_ahead(ch->replica[k], i))
			n = fetch_needs_home(ch, ch->replica[k], i) ? MERGE_FRAMES : MAX(n, 1u);
	return n;
}

bool fetch_reads_store(struct chunk *ch, unsigned i)
{
	bool reads = false;

	for (unsigned k = 0; k < ch->n_replicas && !page_present(ch, i) && !reads; k++)
		reads = replica_ahead(ch->replica[k], i) &&
			(cfile_is_passthrough(ch->file) || fetch_needs_home(ch, ch->replica[k], i));
	return reads;
}

/* The part's pages that the device released; those of them for which home is needed and absent go into @needed. */
static void gather(struct fetch *fe, const struct fetch_part *pt, uint64_t *needed)
{
	struct chunk *ch = pt->ch;

	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < ch->n_replicas; k++) {
		struct replica *rep = ch->replica[k];

		if (rep->dev != fe->dev || rep->only)
			continue;
		FOR_PAGES(pt, i) {
			if (!replica_ahead(rep, i))
				continue;
			fe->at[fe->n++] = (struct fetch_page){ rep, i };
			if (!page_present(ch, i) && (cfile_is_passthrough(ch->file) || fetch_needs_home(ch, rep, i)))
				bit_set(needed, i);
		}
	}
	pthread_mutex_unlock(&ch->lock);
}

/* Gather the pages of all parts, and have home's bytes where they are needed. */
static int prepare(struct fetch *fe, const struct fetch_part *part, unsigned n)
{
	struct fills fills = FILLS(fills, false);
	int err = 0, ended;

	fills.to_change = true;
	for (unsigned k = 0; k < n; k++) {
		uint64_t needed[GAIA_CHUNK_PAGES / 64] = { 0 };

		gather(fe, &part[k], needed);
		if (!err && fe->n > 0 && atomic_load(&fe->dev->gone))
			err = -EIO;
		fills.more = k + 1 < n;
		if (!err)
			err = home_fill_begin(&fills, part[k].ch, 0, GAIA_CHUNK_PAGES, needed);
	}
	ended = home_fill_end(&fills);
	return err ? err : ended;
}

static void note_result(struct fetch_trouble *t, const struct cache_device *dev, int err)
{
	if (!t)
		return;
	t->failures[dev->index] = err ? t->failures[dev->index] + 1 : 0;
	t->err[dev->index] = err;
}

static int fetch_move(struct fetch *fe)
{
	struct frames *fr = &fe->file->cache->frames;
	struct dev_run *runs = xmalloc(fe->n * sizeof(*runs));
	struct dev_op op = { .kind = DEV_COPY_OUT, .runs = runs };
	char name[CFILE_NAME_MAX];
	int err;

	for (unsigned k = 0; k < fe->n; k++) {
		struct replica *rep = fe->at[k].rep;
		unsigned i = fe->at[k].page;
		bool snapped = rep->page[i].flags & REPLICA_SNAPPED;

		dev_run_add(&op, runs, snapped ? rep->shadow : rep->mem, i, frame_ptr(fr, fe->frame[k]), NULL);
	}
	err = cache_device_run(fe->dev, &op);
	free(runs);
	note_result(fe->trouble, fe->dev, err);
	if (err && atomic_load(&fe->dev->gone))
		return -EIO;
	if (!err) {
		atomic_store(&fe->dev->complained, false);
		count(CTR_device_to_home, fe->n);
		moved(&fe->file->moved, MOVED_from_device_bytes, (uint64_t)fe->n * GAIA_PAGE);
	} else if (!atomic_exchange(&fe->dev->complained, true)) {
		log_error("device %s: reading released pages of %s: %s; they stay on the device and are tried again",
			  fe->dev->dev->name, cfile_name(fe->file, name), strerror(-err));
	}
	return err;
}

/*
 * Merge the page's released bytes, which are in @frame (consumed), into home. chunk->lock is held. @spare: two frames, for
 * a twin and for owners; those that are taken become 0.
 */
static void fetch_merge(struct replica *rep, unsigned i, frame_t frame, frame_t spare[2])
{
	struct chunk *ch = rep->chunk;
	const struct page_replica *r = &rep->page[i];
	bool plain = is_plain_copy(ch, rep, i), multi = others_outstanding(ch, i, rep), whole = r->flags & REPLICA_WHOLE, equal;
	unsigned limit = MIN((unsigned)r->cut, page_limit(ch, i));
	unsigned owner = device_owner(rep->dev);
	uint8_t *theirs = frame_ptr(&ch->file->cache->frames, frame), *owners;
	uint8_t *home = page_present(ch, i) ? page_ptr(ch, i) : NULL;
	const void *base = NULL;
	size_t races;

	if (r->seen != ch->track->page[i].home_id && !whole)
		base = fault_point("break.wrong_base") ? frame_zeros : base_bytes(ch, i, r->seen);
	/* Who wrote home's bytes matters for releases that are still to be merged; this may be the last one. */
	owners = multi ? page_owners_make(ch, i, &spare[1]) : page_owners(ch, i);
	if (limit < GAIA_PAGE && r->cut == GAIA_PAGE)
		memset(theirs + limit, 0, GAIA_PAGE - limit);

	replica_merge_begin(rep, i);
	if (plain) {
		/* Home equals the base: the released bytes become home's, and the old frame can serve as the twin. */
		if (multi)
			merge_note_owner(owners, home, theirs, GAIA_PAGE, owner);
		home_replace(ch, i, frame);
		frame = 0;
		equal = true;
	} else if (!base) {
		home_change(ch, i, true, &spare[0]);
		if (whole && owners)
			merge_note_owner(owners, home, theirs, limit, owner);
		memcpy(home, theirs, limit);
		equal = whole && memcmp(home, theirs, GAIA_PAGE) == 0;
	} else {
		home_change(ch, i, true, &spare[0]);
		races_note(ch, i, home, base, theirs, limit, owner);
		races = owners ? merge3_owned(home, owners, base, theirs, limit, owner) :
				 merge3(home, base, theirs, limit, MERGE_THEIRS_WINS);
		count(CTR_merges, 1);
		count(CTR_merge_races, races);
		equal = memcmp(home, theirs, GAIA_PAGE) == 0;
	}
	replica_merge_end(rep, i, equal, frame);
}

/* Home will differ from the store by what the pages' releases wrote: see passthrough.c. */
static int fetch_keep_under(struct fetch *fe)
{
	struct cache *c = fe->file->cache;
	int err = 0;

	for (unsigned k = 0; k < fe->n && !err; k++) {
		struct chunk *ch = fe->at[k].rep->chunk;
		unsigned i = fe->at[k].page;
		frame_t frame;
		bool have;

		pthread_mutex_lock(&ch->lock);
		have = under_bytes(ch, i) != NULL;
		pthread_mutex_unlock(&ch->lock);
		if (have)
			continue;
		err = frame_alloc(c, 1, &frame);
		if (err)
			break;
		memcpy(frame_ptr(&c->frames, frame), page_ptr(ch, i), GAIA_PAGE);
		pthread_mutex_lock(&ch->lock);
		under_keep(ch, i, frame);
		pthread_mutex_unlock(&ch->lock);
	}
	return err;
}

/* Pages that were not merged equal the store's. */
static void fetch_forget_under(struct fetch *fe)
{
	for (unsigned k = 0; k < fe->n; k++) {
		struct chunk *ch = fe->at[k].rep->chunk;

		pthread_mutex_lock(&ch->lock);
		if (!page_dirty(ch, fe->at[k].page))
			under_drop(ch, fe->at[k].page);
		pthread_mutex_unlock(&ch->lock);
	}
}

/* If home's bytes will be changed where they are. */
static int own_to_merge(struct replica *rep, unsigned i)
{
	struct chunk *ch = rep->chunk;
	bool plain;

	if (!ch->file->cache->dedup)
		return 0;
	pthread_mutex_lock(&ch->lock);
	plain = is_plain_copy(ch, rep, i);
	pthread_mutex_unlock(&ch->lock);
	return plain ? 0 : pages_own(ch, i, i + 1, NULL);
}

/* Merge the pages that have been copied: how many, and *@err. */
static unsigned merge_all(struct fetch *fe, int *err)
{
	struct cache *c = fe->file->cache;
	frame_t spare[2] = { 0, 0 };
	unsigned k;

	for (k = 0; k < fe->n; k++) {
		struct replica *rep = fe->at[k].rep;

		*err = own_to_merge(rep, fe->at[k].page);
		if (!*err)
			*err = spares_take(c, spare);
		if (*err)
			break;
		pthread_mutex_lock(&rep->chunk->lock);
		fetch_merge(rep, fe->at[k].page, fe->frame[k], spare);
		if (k + 1 == fe->n || fe->at[k + 1].rep != rep)
			replica_shadow_trim(rep);
		pthread_mutex_unlock(&rep->chunk->lock);
	}
	spares_give(c, spare);
	return k;
}

/* Copy the pages from the device, and merge them. Home is there where it is needed. */
static int fetch_all(struct fetch *fe)
{
	struct cache *c = fe->file->cache;
	unsigned done = 0;
	int err;

	err = frame_alloc(c, fe->n, fe->frame);
	if (err)
		return err;
	err = fetch_move(fe);
	if (!err) {
		(void)fault_point("fetch.before_merge");
		done = merge_all(fe, &err);
	}
	frames_give(&c->frames, fe->frame + done, fe->n - done);
	return err;
}

/* Merge what one device released of the pages. */
static int fetch_from(struct cache_device *dev, const struct fetch_part *part, unsigned n, struct fetch_trouble *t)
{
	struct fetch fe = { .file = part[0].ch->file, .dev = dev, .trouble = t };
	bool passthrough = cfile_is_passthrough(fe.file);
	unsigned room = 0;
	int err;

	for (unsigned k = 0; k < n; k++)
		room += bits_count(part[k].pages, GAIA_CHUNK_PAGES / 64);
	fe.at = xmalloc(room * sizeof(*fe.at));
	fe.frame = xmalloc(room * sizeof(*fe.frame));
	err = prepare(&fe, part, n);
	if (!err && passthrough)
		err = fetch_keep_under(&fe);
	if (!err && fe.n > 0)
		err = fetch_all(&fe);
	if (err && passthrough)
		fetch_forget_under(&fe);
	PROBE4(fetch, fe.file->key, fe.n, dev->number, err);
	free(fe.at);
	free(fe.frame);
	return err;
}

/* ---- together ---- */

/* Mark the devices that released some of the pages. */
static void find_devices(const struct fetch_part *pt, bool *ahead)
{
	struct chunk *ch = pt->ch;

	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < ch->n_replicas; k++) {
		bool *found = &ahead[ch->replica[k]->dev->index];

		FOR_PAGES(pt, i) {
			if (*found)
				break;
			*found = replica_ahead(ch->replica[k], i);
		}
	}
	pthread_mutex_unlock(&ch->lock);
}

int fetch_together(const struct fetch_part *part, unsigned n, struct fetch_trouble *t)
{
	struct cache *c = part[0].ch->file->cache;
	unsigned n_devices = cache_devices(c);
	bool ahead[CACHE_MAX_REPLICAS] = { false };
	struct cache_device *dev;
	int err = 0;

	count(CTR_fetch_windows, 1);
	for (unsigned k = 0; k < n; k++)
		find_devices(&part[k], ahead);
	/*
	 * In order of the devices, so that of racing bytes those of the higher owner come last. No replica
	 * is freed while we hold page locks; a new one is not ahead in our pages.
	 */
	for (unsigned d = 0; d <= n_devices && !err; d++) {
		dev = d < n_devices ? cache_device_find(c, d) : c->local;
		if (dev && ahead[dev->index])
			err = fetch_from(dev, part, n, t);
	}
	kept_trim_parts(part, n);
	return err;
}

/* So many operations of a device fail in a row before it is given up. */
#define FAILURES_ENOUGH 4u

/* Whether something of the pages is on a device that is given up; then *@err is how that failed. */
static bool is_given_up(const struct fetch_part *pt, const struct fetch_trouble *t, int *err)
{
	bool ahead[CACHE_MAX_REPLICAS] = { false };
	unsigned d = 0;

	while (t && d < CACHE_MAX_REPLICAS && t->failures[d] < FAILURES_ENOUGH)
		d++;
	if (!t || d == CACHE_MAX_REPLICAS)
		return false;
	find_devices(pt, ahead);
	while (d < CACHE_MAX_REPLICAS && !(ahead[d] && t->failures[d] >= FAILURES_ENOUGH))
		d++;
	if (d < CACHE_MAX_REPLICAS)
		*err = t->err[d];
	return d < CACHE_MAX_REPLICAS;
}

int fetch_alone(const struct fetch_part *pt, struct fetch_trouble *t)
{
	int err;

	return is_given_up(pt, t, &err) ? err : fetch_together(pt, 1, t);
}

int fetch_pages(struct chunk *ch, unsigned a, unsigned b)
{
	struct fetch_part part = { .ch = ch };

	for (unsigned i = a; i < b; i++)
		bit_set(part.pages, i);
	return fetch_together(&part, 1, NULL);
}

/* ---- windows ---- */

unsigned window_pages(const struct cache *c)
{
	return (unsigned)MAX(MIN(c->frames.budget / WINDOW_SHARE, (uint64_t)WINDOW_PAGES), (uint64_t)GAIA_CHUNK_PAGES);
}

bool home_can_take(const struct cache *c, unsigned n_frames)
{
	return atomic_load(&c->n_dirty) + atomic_load(&c->n_kept) + n_frames <= c->frames.budget / 2;
}

/* Of pages [a, b), those that devices released. chunk->lock is held. */
static void pages_released(struct chunk *ch, unsigned a, unsigned b, uint64_t *pages)
{
	for (unsigned i = a; i < b && ch->n_ahead > 0; i++)
		if (page_ahead(ch, i))
			bit_set(pages, i);
}

/* chunk->lock held. */
static bool reads_store(const struct fetch_part *pt)
{
	FOR_PAGES(pt, i)
		if (fetch_reads_store(pt->ch, i))
			return true;
	return false;
}

/* chunk->lock held. */
static unsigned part_frames(const struct fetch_part *pt)
{
	unsigned n = 0;

	FOR_PAGES(pt, i)
		n += fetch_frames(pt->ch, i);
	return n;
}

/* Unlock those that were locked of the pages before @end. chunk->lock is held. */
static void part_unlock(const struct fetch_part *pt, unsigned end)
{
	unsigned i, j;

	for (i = bits_first(pt->pages, 0, end); i < end; i = bits_first(pt->pages, j, end)) {
		for (j = i; j < end && bit_test(pt->pages, j); j++)
			;
		pages_unlock(pt->ch, i, j);
	}
}

/* All or none. chunk->lock is held. */
static bool part_trylock(const struct fetch_part *pt)
{
	FOR_PAGES(pt, i)
		if (!page_trylock(pt->ch, i)) {
			part_unlock(pt, i);
			return false;
		}
	return true;
}

/* chunk->lock held. */
static void first_lock(struct fetch_window *w, struct fetch_part *pt, unsigned a, unsigned b)
{
	struct chunk *ch = pt->ch;

	if (w->whole) {
		pages_lock(ch, a, b);
		pages_released(ch, a, b, pt->pages);
	}
	/* What is released while this waits for a page may be fetched or not. */
	for (unsigned i = a; i < b && !w->whole; i++)
		if (page_ahead(ch, i)) {
			pages_lock(ch, i, i + 1);
			bit_set(pt->pages, i);
		}
	w->reads_store = reads_store(pt);
}

/* Whether there is room for it, and its pages could be locked. chunk->lock is held. */
static bool next_joins(const struct fetch_window *w, struct fetch_part *pt, unsigned a, unsigned b)
{
	struct cache *c = pt->ch->file->cache;
	unsigned n_pages;

	pages_released(pt->ch, a, b, pt->pages);
	n_pages = w->n_pages + bits_count(pt->pages, GAIA_CHUNK_PAGES / 64);
	if (n_pages > window_pages(c) || !home_can_take(c, w->n_frames + part_frames(pt)) || reads_store(pt))
		return false;
	return w->whole ? pages_trylock(pt->ch, a, b) : part_trylock(pt);
}

bool fetch_window_add(struct fetch_window *w, struct chunk *ch, unsigned a, unsigned b)
{
	struct fetch_part part = { .ch = ch, .a = a, .b = b };
	unsigned frames = 0;
	bool joins = true;

	if (w->n > 0 && (w->reads_store || w->n == (w->whole ? WINDOW_PAGES / GAIA_CHUNK_PAGES : WINDOW_CHUNKS) ||
			 cfile_is_passthrough(ch->file) || atomic_load(&ch->file->range_waiters) > 0))
		return false;
	pthread_mutex_lock(&ch->lock);
	if (w->n == 0)
		first_lock(w, &part, a, b);
	else
		joins = next_joins(w, &part, a, b);
	if (joins)
		frames = part_frames(&part);
	pthread_mutex_unlock(&ch->lock);
	if (!joins)
		return false;
	if ((w->n & (w->n - 1)) == 0)
		w->part = xrealloc(w->part, MAX(2 * w->n, 1u) * sizeof(*w->part));
	w->part[w->n++] = part;
	w->n_pages += bits_count(part.pages, GAIA_CHUNK_PAGES / 64);
	w->n_frames += frames;
	return true;
}

void fetch_window_unlock(struct fetch_window *w)
{
	for (unsigned k = 0; k < w->n; k++) {
		const struct fetch_part *pt = &w->part[k];

		pthread_mutex_lock(&pt->ch->lock);
		if (w->whole)
			pages_unlock(pt->ch, pt->a, pt->b);
		else
			part_unlock(pt, GAIA_CHUNK_PAGES);
		pthread_mutex_unlock(&pt->ch->lock);
		chunk_account(pt->ch);
	}
}

static bool add_pages(struct fetch_window *w, struct chunk *ch, struct page_span span)
{
	return fetch_window_add(w, ch, page_in_chunk(span.a, ch->index, 0, GAIA_CHUNK_PAGES),
				page_in_chunk(span.b - 1, ch->index, 0, GAIA_CHUNK_PAGES - 1) + 1);
}

/* Whether the chunk need not be tried: then @pt says so. */
static bool give_up(struct fetch_part *pt, struct chunk *ch, const struct fetch_trouble *t)
{
	*pt = (struct fetch_part){ .ch = ch };
	memset(pt->pages, 0xff, sizeof(pt->pages));
	pt->given_up = is_given_up(pt, t, &pt->err);
	return pt->given_up;
}

/* The chunk by itself; *@pt gets the result. */
static void fetch_one(struct fetch_part *pt, struct chunk *ch, struct page_span span, struct fetch_trouble *t)
{
	struct fetch_window w = { .n = 0 };

	if (give_up(pt, ch, t))
		return;
	(void)add_pages(&w, ch, span);
	w.part->err = fetch_alone(w.part, t);
	fetch_window_unlock(&w);
	*pt = *w.part;
	free(w.part);
}

struct fetch_window fetch_some(struct chunk **list, unsigned n, struct page_span span, struct fetch_trouble *t)
{
	struct fetch_window w = { .n = 0 };
	struct fetch_part none;
	int err;

	while (w.n < n && !give_up(&none, list[w.n], t) && add_pages(&w, list[w.n], span))
		;
	if (w.n == 0) {
		w.part = xmalloc(sizeof(*w.part));
		w.part[w.n++] = none;
		return w;
	}
	err = fetch_together(w.part, w.n, t);
	fetch_window_unlock(&w);
	if (w.n == 1)
		w.part->err = err;
	for (unsigned k = 0; err && w.n > 1 && k < w.n; k++) {
		if (k > 0 && atomic_load(&list[0]->file->range_waiters) > 0) {
			w.n = k; /* the others are the caller's again */
			break;
		}
		fetch_one(&w.part[k], list[k], span, t);
	}
	return w;
}
