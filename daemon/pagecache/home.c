/*
 * home.c - the contents of files in home memory: filling, reading, writing.
 *
 * A read shares its pages one after the other; those that are absent, or behind a
 * device, are locked, brought home in one go, and then shared. A write locks its pages, makes them
 * current where the contract asks for it, changes them, and marks them dirty.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/state.h"

#define READAHEAD_PAGES 128u /* beyond what a sequential reader asked for */
#define FILL_PAGES READ_BATCH /* at a time */

static uint64_t page_offset(const struct chunk *ch, unsigned i)
{
	return ch->index * GAIA_CHUNK + (uint64_t)i * GAIA_PAGE;
}

unsigned page_limit(const struct chunk *ch, unsigned i)
{
	uint64_t size = cfile_size(ch->file), at = page_offset(ch, i);

	return at >= size ? 0 : (unsigned)MIN(size - at, (uint64_t)GAIA_PAGE);
}

/* ---- filling ---- */

/*
 * Pages on their way home from one source, into frames that belong to nobody until they have come. Until then the pages are
 * locked exclusively and file->range is held. From the store comes one run; from a device whatever it has of a batch.
 */
struct fill {
	STAILQ_ENTRY(fill) link;
	struct chunk *ch;
	struct replica *rep; /* NULL: from the store. Since pages are locked it stays (3) */
	unsigned n;
	uint16_t *page;
	frame_t *frame;

	unsigned n_read; /* of them, those that do not lie wholly beyond the end: the others are zeros, and nobody's to read */
	struct store_file *sf;
	struct store_read rd;
	struct iovec *iov;

	struct dev_op op;
	struct dev_run *runs;
	struct device_wait wait;
	int err;      /* of the copy, when it has ended */
	bool learned; /* see copies_learn() */
};

static struct fill *fill_create(struct chunk *ch, struct replica *rep, unsigned room)
{
	size_t piece = rep ? sizeof(struct dev_run) : sizeof(struct iovec);
	struct fill *fl = xmalloc(sizeof(*fl) + room * (piece + sizeof(*fl->frame) + sizeof(*fl->page)));

	*fl = (struct fill){ .ch = ch, .rep = rep };
	fl->iov = rep ? NULL : (struct iovec *)(fl + 1);
	fl->runs = rep ? (struct dev_run *)(fl + 1) : NULL;
	fl->frame = (frame_t *)((char *)(fl + 1) + room * piece);
	fl->page = (uint16_t *)(fl->frame + room);
	return fl;
}

static void fill_add(struct fill *fl, unsigned page, frame_t frame)
{
	fl->page[fl->n] = (uint16_t)page;
	fl->frame[fl->n++] = frame;
}

/* On error there is nothing to end. @at_once: it is ended next; @in_order: it continues what lies before it in the file. */
static int fill_begin(struct fill *fl, bool at_once, bool in_order)
{
	struct chunk *ch = fl->ch;
	struct frames *fr = &ch->file->cache->frames;
	struct store_read *rd = &fl->rd;
	int err;

	while (fl->n_read < fl->n && page_limit(ch, fl->page[fl->n_read]) > 0) {
		char *p = frame_ptr(fr, fl->frame[fl->n_read++]);
		struct iovec *last = rd->n > 0 ? &fl->iov[rd->n - 1] : NULL;

		if (last && (char *)last->iov_base + last->iov_len == p)
			last->iov_len += GAIA_PAGE;
		else
			fl->iov[rd->n++] = (struct iovec){ p, GAIA_PAGE };
	}
	if (fl->n_read == 0)
		return 0;
	err = cfile_store(ch->file, false, &fl->sf);
	if (err)
		return err;
	rd->iov = fl->iov;
	rd->off = (off_t)page_offset(ch, fl->page[0]);
	/*
	 * What will be compared with home again and again should be in the kernel's memory; and for sequential reads, one at
	 * a time, the kernel's readahead is best, since it is far ahead.
	 */
	rd->kept = !in_order && !passthrough_compares(ch->file);
	rd->at_once = at_once;
	store_read_begin(fl->sf, rd);
	return 0;
}

static int fill_end(struct fill *fl, bool quiet)
{
	struct chunk *ch = fl->ch;
	struct frames *fr = &ch->file->cache->frames;
	ssize_t got = fl->n_read > 0 ? store_read_end(fl->sf, &fl->rd) : 0;
	char name[CFILE_NAME_MAX];

	if (got < 0) {
		count(CTR_storage_errors, 1);
		if (!quiet)
			log_error("%s: reading at %llu: %s", cfile_name(ch->file, name), (unsigned long long)page_offset(ch, fl->page[0]), strerror((int)-got));
		return (int)got;
	}
	count(CTR_storage_reads, fl->n_read);
	count(CTR_storage_read_runs, fl->n_read > 0);
	/* The file below may end earlier than ours, and ours inside the page: zeros. */
	for (unsigned k = 0; k < fl->n; k++) {
		size_t at = (size_t)k * GAIA_PAGE, limit = page_limit(ch, fl->page[k]);
		size_t valid = (size_t)got > at ? (size_t)got - at : 0;

		valid = MIN(valid, limit);
		if (valid < GAIA_PAGE)
			memset((char *)frame_ptr(fr, fl->frame[k]) + valid, 0, GAIA_PAGE - valid);
	}
	return 0;
}

/* Its frames are home's now, or on error nobody's. */
static void fill_done(struct fill *fl, int err)
{
	struct chunk *ch = fl->ch;

	if (err)
		frames_give(&ch->file->cache->frames, fl->frame, fl->n);
	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < fl->n && !err; k++)
		page_set_frame(ch, fl->page[k], fl->frame[k]);
	pthread_mutex_unlock(&ch->lock);
	free(fl);
}

/* Begin to read a run of pages from the store. On error nobody has their frames. */
static int read_run(struct fills *fills, struct chunk *ch, const uint16_t *page, const frame_t *frame, unsigned n, bool at_once)
{
	struct fill *fl = fill_create(ch, NULL, n);
	int err;

	for (unsigned k = 0; k < n; k++)
		fill_add(fl, page[k], frame[k]);
	if (!fills->began)
		fills->began = now_ns();
	err = fill_begin(fl, at_once && STAILQ_EMPTY(&fills->list), fills->in_order);
	if (err)
		fill_done(fl, err);
	else
		STAILQ_INSERT_TAIL(&fills->list, fl, link);
	return err;
}

/* Whether the page is left absent rather than read from the store. */
static bool is_for_devices(const struct fills *fills, unsigned page)
{
	return fills->devices_only > 0 && page >= fills->devices_only;
}

/* Where the next run of pages begins: page[i] is the first of one. */
static unsigned run_after(const struct fills *fills, const uint16_t *page, unsigned i, unsigned n)
{
	unsigned j = i + 1;

	while (j < n && page[j] == page[j - 1] + 1 && is_for_devices(fills, page[j]) == is_for_devices(fills, page[i]))
		j++;
	return j;
}

/* What was begun from the store has come. */
static int reads_end(struct fills *fills, bool learn)
{
	bool at_end = true, makes_sense = learn && !fills->ahead && !fills->in_order && !fills->made_room;
	unsigned n_read = 0, runs = 0;
	const struct cfile *file = NULL;
	struct cache *c = NULL;
	uint64_t next = 0;
	struct fill *fl;
	int err, first = 0;

	while ((fl = STAILQ_FIRST(&fills->list))) {
		STAILQ_REMOVE_HEAD(&fills->list, link);
		c = fl->ch->file->cache;
		if (fl->n_read > 0) {
			uint64_t off = page_offset(fl->ch, fl->page[0]);

			runs += file != fl->ch->file || off != next;
			file = fl->ch->file;
			next = off + (uint64_t)fl->n_read * GAIA_PAGE;
			n_read += fl->n_read;
			at_end &= fl->rd.at_end;
		}
		err = fill_end(fl, fills->quiet);
		fill_done(fl, err);
		first = first ? first : err;
	}
	/*
	 * What was read ahead may have come long ago; what is read in order the kernel has read ahead; and who made room waited
	 * for that, too.
	 */
	if (makes_sense && n_read > 0 && !first) {
		read_cost_learn(&c->store_cost, n_read, runs, now_ns() - fills->began);
		atomic_store_explicit(&c->store_cost.in_turn, at_end, memory_order_relaxed);
	}
	fills->began = 0;
	return first;
}

/* ---- from devices ---- */

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

/* The device has failed: begin to read the store. On error nobody has the frames of the rest. */
static int fill_read_instead(struct fills *fills, const struct fill *fl)
{
	int err = 0;

	for (unsigned i = 0, j; i < fl->n; i = j) {
		j = run_after(fills, fl->page, i, fl->n);
		if (err || is_for_devices(fills, fl->page[i]))
			frames_give(&fl->ch->file->cache->frames, fl->frame + i, j - i);
		else
			err = read_run(fills, fl->ch, fl->page + i, fl->frame + i, j - i, false);
	}
	return err;
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

/* What was begun from devices has come; or it comes from the store now. */
static int copies_end(struct fills *fills)
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
	err = reads_end(fills, false);
	return first ? first : err;
}

/* ---- from all of them ---- */

/* Pages of a chunk that are absent, not necessarily neighbours. */
struct fill_batch {
	struct chunk *ch;
	bool replicas; /* there are any */
	unsigned n;
	uint16_t page[FILL_PAGES];
	frame_t frame[FILL_PAGES];
	uint8_t from[FILL_PAGES]; /* see read_plan() */
};

/* Those of [i, b) and @pages, from the first on; returns the first one that has no room. */
static unsigned batch_collect(struct fill_batch *bt, unsigned i, unsigned b, const uint64_t *pages)
{
	struct chunk *ch = bt->ch;

	bt->n = 0;
	/* We have them locked, so nobody else changes whether they have frames. */
	pthread_mutex_lock(&ch->lock);
	for (; (i = pages ? bits_first(pages, i, b) : i) < b; i++) {
		if (page_present(ch, i))
			continue;
		if (bt->n == FILL_PAGES)
			break;
		bt->page[bt->n++] = (uint16_t)i;
	}
	bt->replicas = ch->n_replicas > 0;
	pthread_mutex_unlock(&ch->lock);
	return i;
}

static int batch_frames(struct fills *fills, struct fill_batch *bt)
{
	struct cache *c = bt->ch->file->cache;
	unsigned got = frames_take(&c->frames, bt->n, bt->frame, false);

	if (got == bt->n)
		return 0;
	frames_give(&c->frames, bt->frame, got);
	if (fills->quiet)
		return -ENOBUFS;
	fills->made_room = true;
	return frame_alloc(c, bt->n, bt->frame);
}

/* Whether the replica's pages that are what home would be can be read. */
static bool may_copy(const struct replica *rep)
{
	return !rep->only && !replica_is_spoiled(rep) && !atomic_load(&rep->dev->gone);
}

/* Where the pages are to come from, if not all from the store: @rep becomes the replicas that can be read. */
static unsigned batch_plan(struct fills *fills, struct fill_batch *bt, struct replica **rep)
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

/* Begin to copy those that come from this replica; if that fails they are the store's. */
static void batch_copy(struct fills *fills, struct fill_batch *bt, struct replica *rep, unsigned which)
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

/* Keep those that come from the store. */
static void batch_keep_stored(struct fill_batch *bt)
{
	unsigned n = 0;

	for (unsigned i = 0; i < bt->n; i++)
		if (bt->from[i] == READ_STORE) {
			bt->page[n] = bt->page[i];
			bt->frame[n++] = bt->frame[i];
		}
	bt->n = n;
}

/* Begin to bring all of them home. @last: they are waited for next. */
static int batch_fill(struct fills *fills, struct fill_batch *bt, bool last)
{
	struct frames *fr = &bt->ch->file->cache->frames;
	struct replica *rep[READ_DEVICES];
	unsigned n_rep, i, j;
	int err;

	err = batch_frames(fills, bt);
	if (err)
		return err;
	memset(bt->from, READ_STORE, bt->n);
	n_rep = bt->replicas ? batch_plan(fills, bt, rep) : 0;
	/* The devices first: to begin to read the store may take as long as to read it. */
	for (unsigned k = 0; k < n_rep; k++)
		batch_copy(fills, bt, rep[k], k);
	batch_keep_stored(bt);
	for (i = 0; i < bt->n; i = j) {
		j = run_after(fills, bt->page, i, bt->n);
		if (err || is_for_devices(fills, bt->page[i]))
			frames_give(fr, bt->frame + i, j - i);
		else
			err = read_run(fills, bt->ch, bt->page + i, bt->frame + i, j - i, last && j == bt->n);
	}
	return err;
}

int home_fill_begin(struct fills *fills, struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages)
{
	struct fill_batch bt; /* large: not cleared */
	int err = 0;

	bt.ch = ch;
	for (unsigned i = a; i < b && !err;) {
		i = batch_collect(&bt, i, b, pages);
		if (bt.n > 0)
			err = batch_fill(fills, &bt, !fills->ahead && !fills->more && i == b);
	}
	return err;
}

int home_fill_end(struct fills *fills)
{
	int err = reads_end(fills, true), copied = copies_end(fills);
	uint64_t took;

	if (fills->probe) {
		took = now_ns() - fills->probe_began;
		read_probe_end(fills->probe, took > fills->instead_ns ? took - fills->instead_ns : 0);
		fills->probe = NULL;
	}
	fills->made_room = false;
	return err ? err : copied;
}

static int fill_now(struct fills *fills, struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages)
{
	int err = home_fill_begin(fills, ch, a, b, pages), ended = home_fill_end(fills);

	return err ? err : ended;
}

int home_fill(struct chunk *ch, unsigned a, unsigned b)
{
	return home_fill_some(ch, a, b, NULL);
}

int home_fill_some(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages)
{
	struct fills fills = FILLS(fills, false);

	return fill_now(&fills, ch, a, b, pages);
}

static int bring(struct fills *fills, struct chunk *ch, unsigned a, unsigned b)
{
	bool ahead = false;
	int err;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b && ch->track && !ahead; i++)
		ahead = page_ahead(ch, i);
	pthread_mutex_unlock(&ch->lock);
	if (ahead) {
		err = fetch_pages(ch, a, b);
		if (err)
			return err;
	}
	return fill_now(fills, ch, a, b, NULL);
}

int home_bring(struct chunk *ch, unsigned a, unsigned b)
{
	struct fills fills = FILLS(fills, false);

	return bring(&fills, ch, a, b);
}

/* ---- reading ---- */

static bool page_ready(struct chunk *ch, unsigned i)
{
	return page_present(ch, i) &&
	       (!(ch->track && page_ahead(ch, i)) || fault_point("break.stale_read"));
}

static void page_given(struct chunk *ch, unsigned i, bool kernel)
{
	if (kernel)
		page_at(ch, i)->flags |= PAGE_GIVEN;
	if (!ch->track || !kernel)
		return;
	kernel_given(ch, i);
}

/*
 * Whether page i, which nobody asked for, should be brought home with those before it: up to @end if it may be absent. What devices
 * released has to come sooner or later, and asking a device costs more than copying: so for sequential readers all of it.
 */
static bool bring_too(struct chunk *ch, unsigned i, unsigned end, bool in_order)
{
	if (i >= GAIA_CHUNK_PAGES || page_limit(ch, i) == 0 || page_ready(ch, i))
		return false;
	return i < end || (in_order && ch->track && page_ahead(ch, i));
}

/*
 * How many pages may be brought beyond a read [i, b): @ahead; or, if a device has them and gives them, as many as go together for what
 * it takes to wait for it, but nothing leaves home for these. chunk->lock is held.
 */
static unsigned bring_ahead(const struct chunk *ch, unsigned i, unsigned b, unsigned ahead)
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

/* Share pages [a, b), present and current. On error none of them. */
static int share_pages(struct chunk *ch, unsigned a, unsigned b, unsigned ahead, bool kernel)
{
	struct fills fills = FILLS(fills, false);
	unsigned i = a, j, end, hits = 0, misses = 0;
	bool brought = false;
	int err = 0;

	fills.in_order = ahead > 0;
	fills.may_probe = ahead == 0;
	fills.devices_only = b + ahead;
	pthread_mutex_lock(&ch->lock);
	while (i < b) {
		if ((page_make(ch, i)->flags & PAGE_LOCKED) || page_ready(ch, i)) {
			page_share(ch, i);
			if (!page_ready(ch, i)) { /* after waiting */
				page_unshare(ch, i);
				continue;
			}
			page_given(ch, i, kernel);
			hits++;
			i++;
			continue;
		}
		pages_lock(ch, i, i + 1);
		j = i + 1;
		while (j < b && !page_ready(ch, j) && page_trylock(ch, j))
			j++;
		if (j == b) {
			end = b + bring_ahead(ch, i, b, ahead);
			while (bring_too(ch, j, end, ahead > 0) && page_trylock(ch, j))
				j++;
		}
		pthread_mutex_unlock(&ch->lock);
		err = bring(&fills, ch, i, j);
		if (err && j > b) /* what nobody asked for cannot fail */
			err = bring(&fills, ch, i, b);
		brought = true;
		pthread_mutex_lock(&ch->lock);
		if (err) {
			pages_unlock(ch, i, j);
			break;
		}
		misses += MIN(j, b) - i;
		if (j > b)
			pages_unlock(ch, b, j);
		for (; i < MIN(j, b); i++) {
			page_downgrade(ch, i);
			page_given(ch, i, kernel);
		}
	}
	if (err)
		while (i-- > a)
			page_unshare(ch, i);
	pthread_mutex_unlock(&ch->lock);
	if (brought)
		chunk_account(ch);
	count(CTR_home_misses, misses);
	count(CTR_home_hits, hits);
	atomic_store_explicit(&ch->referenced, true, memory_order_relaxed);
	return err;
}

/* The pages of a range that lie in its first chunk: [*a, *b); returns the bytes. */
static size_t first_part(uint64_t off, size_t len, unsigned *a, unsigned *b)
{
	uint64_t in = off % GAIA_CHUNK;
	size_t n = (size_t)MIN((uint64_t)len, GAIA_CHUNK - in);

	*a = (unsigned)(in / GAIA_PAGE);
	*b = (unsigned)((in + n + GAIA_PAGE - 1) / GAIA_PAGE);
	return n;
}

static void unshare_parts(struct cache_read *rd, bool given)
{
	uint64_t off = (uint64_t)rd->off;
	size_t left = rd->bytes, n;
	unsigned a, b;

	for (unsigned k = 0; left > 0; k++, off += n, left -= n) {
		n = first_part(off, left, &a, &b);
		pages_unshare(rd->chunk[k], a, b, given);
		chunk_put(rd->chunk[k]);
	}
}

/*
 * How many pages to bring home beyond a read [at, end): some, if it continues where one of the last few reads ended.
 * Several programs may read in several places; the streams are hints, so nobody locks anything.
 */
static unsigned read_beyond(struct cfile *f, uint64_t at, uint64_t end)
{
	unsigned k;

	for (k = 0; k < READ_STREAMS; k++)
		if (atomic_load_explicit(&f->stream[k], memory_order_relaxed) == at)
			break;
	if (k < READ_STREAMS) {
		atomic_store_explicit(&f->stream[k], end, memory_order_relaxed);
		return READAHEAD_PAGES;
	}
	k = atomic_load_explicit(&f->oldest_stream, memory_order_relaxed);
	atomic_store_explicit(&f->stream[k], end, memory_order_relaxed);
	atomic_store_explicit(&f->oldest_stream, (k + 1) % READ_STREAMS, memory_order_relaxed);
	return 0;
}

static void add_iov(struct cache_read *rd, char *p, size_t len)
{
	struct iovec *last = rd->n_iov > 0 ? &rd->iov[rd->n_iov - 1] : NULL;

	if (last && (char *)last->iov_base + last->iov_len == p)
		last->iov_len += len;
	else
		rd->iov[rd->n_iov++] = (struct iovec){ p, len };
}

int cache_read_begin(struct cfile *f, off_t off, size_t len, bool kernel, struct cache_read *rd)
{
	uint64_t size, at = (uint64_t)off;
	unsigned a, b, ahead, k = 0;
	size_t left, n;
	int err;

	rd->n_iov = 0;
	rd->bytes = 0;
	rd->file = f;
	rd->off = off;
	rd->kernel = kernel;
	pthread_rwlock_rdlock(&f->range);
	size = cfile_size(f);
	if (at >= size || len == 0)
		return 0;
	len = MIN(len, (size_t)CACHE_READ_MAX);
	left = (size_t)MIN((uint64_t)len, size - at);
	ahead = read_beyond(f, at, at + left);
	for (; left > 0; at += n, left -= n) {
		struct chunk *ch = chunk_get(f, at / GAIA_CHUNK, true);

		n = first_part(at, left, &a, &b);
		err = share_pages(ch, a, b, ahead, kernel);
		if (err) {
			chunk_put(ch);
			goto unshare;
		}
		for (unsigned i = a; i < b; i++) {
			size_t from = i == a ? at % GAIA_PAGE : 0;
			size_t to = i == b - 1 ? (at + n - 1) % GAIA_PAGE + 1 : GAIA_PAGE;

			add_iov(rd, (char *)page_ptr(ch, i) + from, to - from);
		}
		rd->bytes += n;
		rd->chunk[k++] = ch;
	}
	return 0;

unshare:
	unshare_parts(rd, false);
	pthread_rwlock_unlock(&f->range);
	return err;
}

static enum cache_has has_pages(struct chunk *ch, unsigned a, unsigned b)
{
	enum cache_has has = CACHE_HAS_ALL;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b && has != CACHE_HAS_NOT; i++)
		if (!page_ready(ch, i))
			has = CACHE_HAS_NOT;
		else if (page_at(ch, i)->flags & PAGE_LOCKED)
			has = CACHE_HAS_LOCKED;
	pthread_mutex_unlock(&ch->lock);
	return has;
}

enum cache_has cache_has(struct cfile *f, off_t off, size_t len)
{
	enum cache_has all = CACHE_HAS_ALL;
	uint64_t at = (uint64_t)off, size;
	unsigned a, b;
	size_t n;

	if (pthread_rwlock_tryrdlock(&f->range))
		return CACHE_HAS_LOCKED;
	size = cfile_size(f);
	for (len = at < size ? MIN(len, size - at) : 0; len > 0 && all != CACHE_HAS_NOT; at += n, len -= n) {
		struct chunk *ch = chunk_get(f, at / GAIA_CHUNK, false);
		enum cache_has has = CACHE_HAS_NOT;

		n = first_part(at, len, &a, &b);
		if (ch) {
			has = has_pages(ch, a, b);
			chunk_put(ch);
		}
		all = MIN(all, has);
	}
	pthread_rwlock_unlock(&f->range);
	return all;
}

void cache_read_end(struct cache_read *rd)
{
	unshare_parts(rd, rd->kernel);
	pthread_rwlock_unlock(&rd->file->range);
}

ssize_t cache_read(struct cfile *f, void *buf, size_t len, off_t off)
{
	struct cache_read rd;
	size_t done = 0;
	int err;

	if (cfile_is_passthrough(f))
		return passthrough_read(f, buf, len, off);

	while (done < len) {
		err = cache_read_begin(f, off + (off_t)done, len - done, false, &rd);
		if (err)
			return done ? (ssize_t)done : err;
		for (int i = 0; i < rd.n_iov; i++) {
			memcpy((char *)buf + done, rd.iov[i].iov_base, rd.iov[i].iov_len);
			done += rd.iov[i].iov_len;
		}
		cache_read_end(&rd);
		if (rd.bytes == 0)
			break;
	}
	return (ssize_t)done;
}

/* ---- writing ---- */

struct span {
	struct chunk *ch;
	uint64_t off;	 /* of the file */
	const char *src; /* NULL: zeros */
	size_t len;
	unsigned a, b;
	enum cache_write_kind kind;
	uint64_t fresh[GAIA_CHUNK_PAGES / 64]; /* pages whose frame held nothing before */
};

/* Where in page i the span lies. */
static void span_of_page(const struct span *s, unsigned i, unsigned *from, unsigned *to)
{
	*from = i == s->a ? (unsigned)(s->off % GAIA_PAGE) : 0;
	*to = i == s->b - 1 ? (unsigned)((s->off + s->len - 1) % GAIA_PAGE) + 1 : GAIA_PAGE;
}

/* Whether the write leaves something of what page i holds now. */
static bool span_keeps(const struct span *s, unsigned i)
{
	unsigned from, to, limit = page_limit(s->ch, i);

	span_of_page(s, i, &from, &to);
	return limit > 0 && (from > 0 || to < limit);
}

/* Merge what devices released of the pages; but not what is lost and written over. */
static int span_fetch(const struct span *s)
{
	struct chunk *ch = s->ch;
	bool ahead = false;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = s->a; i < s->b && ch->track; i++) {
		if (page_ahead(ch, i) && !span_keeps(s, i))
			page_drop_lost(ch, i);
		ahead |= page_ahead(ch, i);
	}
	pthread_mutex_unlock(&ch->lock);
	return ahead ? fetch_pages(ch, s->a, s->b) : 0;
}

/* Bring home what the write needs of the old contents. Pages are locked. */
static int span_prepare(const struct span *s)
{
	uint64_t needed[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct chunk *ch = s->ch;
	bool any = false;
	int err;

	err = span_fetch(s);
	if (err == -EIO) /* once more: a device may just have proved to be gone */
		err = span_fetch(s);
	if (err)
		return err;
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = s->a; i < s->b; i++) {
		if (page_present(ch, i) ||
		    !(span_keeps(s, i) || (ch->track && home_base_needed(ch, i))))
			continue;
		bit_set(needed, i);
		any = true;
	}
	pthread_mutex_unlock(&ch->lock);
	return any ? home_fill_some(ch, s->a, s->b, needed) : 0;
}

/* Frames for the pages that have none, zeroed where the write does not reach. */
static int span_frames(struct span *s)
{
	struct chunk *ch = s->ch;
	struct cache *c = ch->file->cache;
	frame_t frame[FILL_PAGES];
	unsigned n, from, to;
	int err;

	for (unsigned i = s->a; i < s->b; i += n) {
		pthread_mutex_lock(&ch->lock);
		for (; i < s->b && page_present(ch, i); i++)
			;
		for (n = 0; i + n < s->b && n < FILL_PAGES && !page_present(ch, i + n); n++)
			;
		pthread_mutex_unlock(&ch->lock);
		if (n == 0)
			break;
		err = frame_alloc(c, n, frame);
		if (err)
			return err;
		for (unsigned k = 0; k < n; k++) {
			span_of_page(s, i + k, &from, &to);
			if (from > 0 || to < GAIA_PAGE)
				memset(frame_ptr(&c->frames, frame[k]), 0, GAIA_PAGE);
		}
		pthread_mutex_lock(&ch->lock);
		for (unsigned k = 0; k < n; k++) {
			page_set_frame(ch, i + k, frame[k]);
			bit_set(s->fresh, i + k);
		}
		pthread_mutex_unlock(&ch->lock);
	}
	return 0;
}

const char frame_zeros[GAIA_PAGE];

/* chunk->lock held. */
static void pages_written(struct chunk *ch, unsigned a, unsigned b, enum cache_write_kind kind)
{
	/* The kernel's cache does not keep what goes past it. */
	uint8_t given = kind == CACHE_WRITE_EXACT ? 0 : PAGE_GIVEN;

	pages_set_dirty(ch, a, b);
	for (unsigned i = a; i < b; i++)
		page_at(ch, i)->flags = (uint8_t)((page_at(ch, i)->flags & ~PAGE_GIVEN) | given);
}

/*
 * For pages of a chunk that no device had touched a moment ago. A track that is made in the meantime says
 * of them what is true afterwards, too: only home and the kernel have them, and the same bytes.
 */
static void span_copy(const struct span *s)
{
	struct chunk *ch = s->ch;
	const char *src = s->src;
	unsigned from, to;

	for (unsigned i = s->a; i < s->b; i++) {
		span_of_page(s, i, &from, &to);
		memcpy((char *)page_ptr(ch, i) + from, src ? src : frame_zeros, to - from);
		if (src)
			src += to - from;
	}
	pthread_mutex_lock(&ch->lock);
	pages_written(ch, s->a, s->b, s->kind);
	pthread_mutex_unlock(&ch->lock);
}

/* Change the pages: locked, prepared, with frames. */
static int span_apply(const struct span *s)
{
	struct chunk *ch = s->ch;
	struct cache *c = ch->file->cache;
	const char *src = s->src;
	frame_t spare[2] = { 0, 0 };
	unsigned from, to;
	bool tracked;
	int err = 0;

	pthread_mutex_lock(&ch->lock);
	tracked = ch->track != NULL;
	pthread_mutex_unlock(&ch->lock);
	if (!tracked) {
		span_copy(s);
		return 0;
	}
	for (unsigned i = s->a; i < s->b; i++) {
		const char *bytes = src ? src : frame_zeros;

		span_of_page(s, i, &from, &to);
		/* One for a twin, one for a copy of what the kernel sent. */
		err = spares_take(c, spare);
		if (err)
			break;
		pthread_mutex_lock(&ch->lock);
		if (!ch->track)
			memcpy((char *)page_ptr(ch, i) + from, bytes, to - from);
		else if (s->kind == CACHE_WRITE_PAGES)
			kernel_page_write(ch, i, !bit_test(s->fresh, i), bytes, to, spare);
		else
			exact_write(ch, i, !bit_test(s->fresh, i), from, bytes, to - from,
				    s->kind == CACHE_WRITE_THROUGH, spare);
		pages_written(ch, i, i + 1, s->kind);
		pthread_mutex_unlock(&ch->lock);
		if (src)
			src += to - from;
	}
	spares_give(c, spare);
	return err;
}

/* Pages that got frames but were not reached by the write become absent again. */
static void span_undo(const struct span *s)
{
	struct chunk *ch = s->ch;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = s->a; i < s->b; i++)
		if (bit_test(s->fresh, i) && !page_dirty(ch, i))
			page_drop(ch, i);
	pthread_mutex_unlock(&ch->lock);
}

static int write_span(struct span *s)
{
	struct chunk *ch = s->ch;
	struct cfile *f = ch->file;
	unsigned n_storing;
	int err;

	pthread_mutex_lock(&ch->lock);
	n_storing = pages_lock_to_write(ch, s->a, s->b);
	pthread_mutex_unlock(&ch->lock);

	err = pages_renew(ch, s->a, s->b, n_storing);
	if (!err)
		err = span_prepare(s);
	if (!err)
		err = span_frames(s);
	if (!err)
		err = span_apply(s);
	if (!err) {
		pthread_mutex_lock(&f->lock);
		if (s->off + s->len > atomic_load(&f->size))
			atomic_store(&f->size, s->off + s->len);
		pthread_mutex_unlock(&f->lock);
	} else {
		span_undo(s);
	}
	kept_trim(ch, s->a, s->b);

	pthread_mutex_lock(&ch->lock);
	pages_unlock(ch, s->a, s->b);
	pthread_mutex_unlock(&ch->lock);
	atomic_store_explicit(&ch->referenced, true, memory_order_relaxed);
	chunk_account(ch);
	return err;
}

int home_write(struct cfile *f, const void *buf, size_t len, uint64_t off,
	       enum cache_write_kind kind)
{
	int err = 0;
	size_t n;

	if (len > 0)
		cfile_wrote(f); /* before it can be stored */
	for (; len > 0 && !err; off += n, len -= n) {
		struct span s = { .off = off, .src = buf, .kind = kind };

		n = first_part(off, len, &s.a, &s.b);
		s.len = n;
		s.ch = chunk_get(f, off / GAIA_CHUNK, true);
		err = write_span(&s);
		chunk_put(s.ch);
		if (buf)
			buf = (const char *)buf + n;
	}
	return err;
}

/* What the kernel wrote back was not taken; it still has the pages, and a release must know that. */
static void kernel_keeps(struct cfile *f, size_t len, uint64_t off)
{
	unsigned a, b;
	size_t n;

	for (; len > 0; off += n, len -= n) {
		struct chunk *ch = chunk_get(f, off / GAIA_CHUNK, false);

		n = first_part(off, len, &a, &b);
		if (!ch)
			continue;
		pthread_mutex_lock(&ch->lock);
		/* Home's bytes stay as they are. */
		(void)pages_lock_to_write(ch, a, b);
		for (unsigned i = a; i < b && ch->track; i++)
			kernel_kept(ch, i);
		pages_unlock(ch, a, b);
		pthread_mutex_unlock(&ch->lock);
		chunk_put(ch);
	}
}

int cache_write(struct cfile *f, const void *buf, size_t len, off_t off, enum cache_write_kind kind)
{
	int err;

	if (off < 0 || (uint64_t)off + len > INT64_MAX)
		return -EFBIG;
	if (kind == CACHE_WRITE_PAGES && off % GAIA_PAGE != 0)
		return -EINVAL;
	pthread_rwlock_rdlock(&f->range);
	if (cfile_is_passthrough(f)) {
		err = passthrough_write(f, buf, len, off);
		pthread_rwlock_unlock(&f->range);
		return err;
	}
	err = cfile_make_room(f);
	if (!err)
		err = home_write(f, buf, len, (uint64_t)off, kind);
	if (err && kind == CACHE_WRITE_PAGES)
		kernel_keeps(f, len, (uint64_t)off);
	pthread_rwlock_unlock(&f->range);
	if (!err && len > 0 && kind != CACHE_WRITE_EXACT)
		count(CTR_cpu_written_back,
		      ((uint64_t)off + len - 1) / GAIA_PAGE - (uint64_t)off / GAIA_PAGE + 1);
	return err;
}
