/*
 * fill.c - pages that home lacks come home: in batches, from the store and from devices, all of which are asked before any is
 * waited for.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/fill.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/latency.h"
#include "base/log.h"
#include "base/probe.h"
#include "base/uses.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/dedup.h"
#include "pagecache/fetch.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/home.h"
#include "pagecache/passthrough.h"
#include "pagecache/readcost.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/writeback.h"

static uint64_t page_offset(const struct chunk *ch, unsigned i)
{
	return ch->index * GAIA_CHUNK + (uint64_t)i * GAIA_PAGE;
}

unsigned page_limit(const struct chunk *ch, unsigned i)
{
	uint64_t size = cfile_size(ch->file), at = page_offset(ch, i);

	return at >= size ? 0 : (unsigned)MIN(size - at, (uint64_t)GAIA_PAGE);
}

/* ---- pages under way ---- */

struct fill *fill_create(struct chunk *ch, const struct source *src, unsigned room)
{
	size_t piece = src ? sizeof(struct dev_run) + sizeof(uint32_t) : sizeof(struct iovec);
	struct fill *fl = xmalloc(sizeof(*fl) + room * (piece + sizeof(*fl->frame) + sizeof(*fl->slot) + sizeof(*fl->page)));

	*fl = (struct fill){ .ch = ch, .dev = src ? src->dev : NULL, .rep = src ? src->rep : NULL };
	fl->iov = src ? NULL : (struct iovec *)(fl + 1);
	fl->runs = src ? (struct dev_run *)(fl + 1) : NULL;
	fl->tag = src ? (uint32_t *)(fl->runs + room) : NULL;
	fl->frame = (frame_t *)((char *)(fl + 1) + room * piece);
	fl->slot = fl->frame + room;
	fl->page = (uint16_t *)(fl->slot + room);
	return fl;
}

void fill_add(struct fill *fl, unsigned page, frame_t frame, uint32_t slot)
{
	fl->page[fl->n] = (uint16_t)page;
	fl->slot[fl->n] = slot;
	fl->frame[fl->n++] = frame;
}

void fill_done(const struct fills *fills, struct fill *fl, int err)
{
	struct chunk *ch = fl->ch;

	if (err)
		frames_give(&ch->file->cache->frames, fl->frame, fl->n);
	else if (!fills->to_change)
		/* What has come without the store does not wait for it. */
		dedup_frames(ch->file, fl->frame, fl->tag, fl->n, fl->n_read > 0);
	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < fl->n && !err; k++)
		page_set_frame(ch, fl->page[k], fl->frame[k]);
	pthread_mutex_unlock(&ch->lock);
	free(fl);
}

/* ---- from the store ---- */

/* On error there is nothing to end. @at_once: it is ended next; @in_order: it continues what lies before it in the file. */
static int fill_begin(struct fill *fl, bool at_once, bool in_order)
{
	struct chunk *ch = fl->ch;
	struct frames *fr = &ch->file->cache->frames;
	struct store_read *rd = &fl->rd;
	struct uses *waits;
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
	fl->began_ns = now_ns();
	waits = wait_begin(WAIT_storage);
	store_read_begin(fl->sf, rd);
	wait_end(waits, WAIT_storage);
	return 0;
}

static int fill_end(struct fill *fl, bool quiet)
{
	struct chunk *ch = fl->ch;
	struct frames *fr = &ch->file->cache->frames;
	char name[CFILE_NAME_MAX];
	ssize_t got = 0;

	if (fl->n_read > 0) {
		struct uses *waits = wait_begin(WAIT_storage);

		got = store_read_end(fl->sf, &fl->rd);
		wait_end(waits, WAIT_storage);
		latency_count(LATENCY_storage_read, (int64_t)(now_ns() - fl->began_ns));
	}
	PROBE5(fill, ch->file->key, ch->index * GAIA_CHUNK_PAGES + fl->page[0], fl->n, fl->n_read, got < 0 ? (int)got : 0);
	if (got < 0) {
		count(CTR_storage_errors, 1);
		if (!quiet)
			log_error("%s: reading at %llu: %s", cfile_name(ch->file, name), (unsigned long long)page_offset(ch, fl->page[0]), strerror((int)-got));
		return (int)got;
	}
	count(CTR_storage_reads, fl->n_read);
	moved(&ch->file->moved, MOVED_from_storage_bytes, (uint64_t)fl->n_read * GAIA_PAGE);
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

/* Begin to read a run of pages from the store. On error nobody has their frames. */
static int read_run(struct fills *fills, struct chunk *ch, const uint16_t *page, const frame_t *frame, unsigned n, bool at_once)
{
	struct fill *fl = fill_create(ch, NULL, n);
	int err;

	for (unsigned k = 0; k < n; k++)
		fill_add(fl, page[k], frame[k], 0);
	if (!fills->began)
		fills->began = now_ns();
	err = fill_begin(fl, at_once && STAILQ_EMPTY(&fills->list), fills->in_order);
	if (err)
		fill_done(fills, fl, err);
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

int fill_reads_end(struct fills *fills, bool learn)
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
		fill_done(fills, fl, err);
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

int fill_read_instead(struct fills *fills, const struct fill *fl)
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

/* ---- from all of them ---- */

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
	bt->on_devices = ch->n_replicas > 0 || ch->parked;
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
	struct source src[READ_DEVICES];
	unsigned n_src, i, j;
	int err;

	err = batch_frames(fills, bt);
	if (err)
		return err;
	if (bt->on_devices)
		source_take_coming(fills, bt);
	memset(bt->from, READ_STORE, bt->n);
	n_src = bt->on_devices ? source_plan(fills, bt, src) : 0;
	/* The devices first: to begin to read the store may take as long as to read it. */
	for (unsigned k = 0; k < n_src; k++)
		source_copy(fills, bt, &src[k], k);
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
	int err = fill_reads_end(fills, true), copied = source_copies_end(fills);
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

int home_fill_some(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages)
{
	struct fills fills = FILLS(fills, false);

	fills.to_change = true;
	return fill_now(&fills, ch, a, b, pages);
}

int fill_bring(struct fills *fills, struct chunk *ch, unsigned a, unsigned b)
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

	fills.to_change = true;
	return fill_bring(&fills, ch, a, b);
}
