/*
 * coherence.c - twins, merging what the kernel writes back, and what its cache may hold. What devices released: see fetch.c.
 *
 * The kernel's page cache is a cache of home (contract, section 1). Its copy of a page is what was last given to it or
 * received from it, plus CPU stores that we have not been told of. While a release's
 * invalidation is pending (the page's window), home may change without the kernel's copy. So home's bytes at the time when
 * the window opened are kept as the kernel's base, and a whole page that the kernel writes back is merged
 * against them. The kernel then has a page that lacks what was merged in. So the notifier
 * thread invalidates it again; the release waits for that, too.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/coherence.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/uses.h"
#include "base/util.h"
#include "consistency/merge.h"
#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/fetch.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/grant.h"
#include "pagecache/home.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/run.h"
#include "pagecache/state.h"

/* ---- races ---- */

void races_note(struct chunk *ch, unsigned i, const void *home, const void *base, const void *theirs, unsigned len, unsigned owner)
{
	struct cache *c = ch->file->cache;
	size_t at = merge_next_race(home, base, theirs, len, 0);

	pthread_mutex_lock(&c->lock);
	for (; at < len; at = merge_next_race(home, base, theirs, len, at + 1))
		c->race[c->n_races++ % RACES_KEPT] = (struct race){
			ch->file->key, ch->index * GAIA_CHUNK + (uint64_t)i * GAIA_PAGE + at, owner
		};
	pthread_mutex_unlock(&c->lock);
}

/* ---- writes by CPUs ---- */

static void again_ask(struct chunk *ch, unsigned i)
{
	struct cache *c = ch->file->cache;
	struct again *a;

	if (fault_point("break.forget_again") || windows_suffice(ch, i))
		return;
	a = xmalloc(sizeof(*a));
	*a = (struct again){ .chunk = chunk_ref(ch), .page = i, .opened = window_open(ch, i) };
	pthread_mutex_lock(&c->lock);
	ch->file->again_asked++;
	atomic_fetch_add(&c->n_again, 1);
	TAILQ_INSERT_TAIL(&c->again, a, link);
	pthread_cond_signal(&c->again_cond);
	pthread_mutex_unlock(&c->lock);
}

/* The kernel has written back a page that did not start from what home has. */
static void kernel_write_merge(struct chunk *ch, unsigned i, const void *bytes, unsigned len,
			       frame_t spare[2])
{
	const struct page_track *t = &ch->track->page[i];
	uint8_t *home = page_ptr(ch, i), *wrote = frame_ptr(&ch->file->cache->frames, spare[1]);
	const uint8_t *base = base_bytes(ch, i, t->kernel_base);
	uint8_t *owners = page_owners(ch, i);
	size_t races;

	memcpy(wrote, bytes, len);
	memset(wrote + len, 0, GAIA_PAGE - len);
	home_change(ch, i, true, &spare[0]);
	races_note(ch, i, home, base, wrote, len, 0);
	/*
	 * A race is decided once. What processes write after that, over what the kernel sent then, comes later: if it
	 * lost again and again, writes that come after the release would be undone as long as windows overlap.
	 */
	races = merge3(home, base, wrote, len, t->met ? MERGE_THEIRS_WINS : MERGE_HOME_WINS);
	count(CTR_merges, 1);
	count(CTR_merge_races, races);
	if (owners)
		for (unsigned k = 0; k < len; k++)
			if (wrote[k] != base[k] && home[k] == wrote[k])
				owners[k] = 0;
	if (memcmp(home, wrote, GAIA_PAGE) == 0) {
		kernel_given(ch, i);
		return;
	}
	kernel_merged(ch, i, spare[1]);
	spare[1] = 0;
	again_ask(ch, i);
}

void kernel_page_write(struct chunk *ch, unsigned i, bool present, const void *bytes, unsigned len,
		       frame_t spare[2])
{
	uint8_t *home = page_ptr(ch, i), *owners;

	if (ch->track->page[i].pending > 0 && fault_point("break.lose_write_back"))
		return;
	if (kernel_is_behind(ch, i)) {
		kernel_write_merge(ch, i, bytes, len, spare);
		return;
	}
	if (!present || memcmp(home, bytes, len) != 0) {
		home_change(ch, i, present, &spare[0]);
		owners = page_owners(ch, i);
		if (owners)
			merge_note_owner(owners, home, bytes, len, 0);
		memcpy(home, bytes, len);
	}
	kernel_given(ch, i);
}

void exact_write(struct chunk *ch, unsigned i, bool present, unsigned off, const void *bytes,
		 unsigned len, bool through, frame_t spare[2])
{
	uint8_t *home = page_ptr(ch, i), *owners;
	track_id before = ch->track->page[i].home_id;

	if (!present || memcmp(home + off, bytes, len) != 0) {
		home_change(ch, i, present, &spare[0]);
		memcpy(home + off, bytes, len);
	}
	owners = page_owners(ch, i);
	if (owners)
		memset(owners + off, 0, len);
	/* If the kernel wrote a part of a page, it had a copy of the page before. */
	if (through && len == GAIA_PAGE)
		kernel_given(ch, i);
	kernel_base_wrote(ch, i, before, off, bytes, len, &spare[1]);
}

void truncate_page(struct chunk *ch, unsigned i, unsigned cut, frame_t spare[2])
{
	if (cut == 0) {
		home_void(ch, i);
		return;
	}
	exact_write(ch, i, true, cut, frame_zeros, GAIA_PAGE - cut, true, spare);
	for (unsigned k = 0; k < ch->n_replicas; k++)
		replica_cut(ch->replica[k], i, cut);
}

/* ---- what others may store to ---- */

/* Copy what the replica released of pages [a, b), and has only in memory to which clients store, to other memory. */
static int snapshot(struct replica *rep, unsigned a, unsigned b)
{
	struct chunk *ch = rep->chunk;
	uint64_t pages[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct dev_run *runs = xmalloc((b - a) * sizeof(*runs));
	struct dev_op op = { .kind = DEV_COPY_WITHIN, .runs = runs };
	struct devmem *shadow = replica_shadow(rep);
	int err = shadow ? 0 : -ENOMEM;

	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b && !err; i++)
		if ((rep->page[i].flags & (REPLICA_AHEAD | REPLICA_SNAPPED)) == REPLICA_AHEAD) {
			dev_run_add(&op, runs, shadow, i, NULL, rep->mem);
			bit_set(pages, i);
		}
	pthread_mutex_unlock(&ch->lock);
	if (op.n > 0)
		err = cache_device_run(rep->dev, &op);
	pthread_mutex_lock(&ch->lock);
	for (unsigned i = a; i < b && !err; i++)
		if (bit_test(pages, i))
			replica_secured(rep, i);
	pthread_mutex_unlock(&ch->lock);
	if (shadow)
		replica_shadow_done(rep);
	free(runs);
	if (!err)
		count(CTR_device_snapshots, bits_count(pages, ARRAY_LEN(pages)));
	return err;
}

int pages_secure(struct chunk *ch, unsigned a, unsigned b)
{
	int err = fetch_pages(ch, a, b), one;

	for (unsigned k = 0; err; k++) {
		struct replica *rep;
		bool ahead = false;

		pthread_mutex_lock(&ch->lock);
		rep = k < ch->n_replicas ? ch->replica[k] : NULL;
		for (unsigned i = a; rep && replica_is_spoiled(rep) && i < b; i++)
			ahead |= replica_ahead(rep, i);
		pthread_mutex_unlock(&ch->lock);
		if (!rep)
			break;
		one = ahead && !atomic_load(&rep->dev->gone) ? snapshot(rep, a, b) : 0;
		if (one && log_may(&rep->dev->pace))
			log_warn("device %s: released pages of file %#lx can be neither read (%s) nor copied (%s): until then processes that still have a dead client's memory may change them",
				 rep->dev->dev->name, (unsigned long)ch->file->key, strerror(-err), strerror(-one));
	}
	return err;
}

/* ---- when too much is kept ---- */

static bool kept_too_much(struct cache *c)
{
	return atomic_load(&c->n_kept) > c->frames.budget / KEPT_SHARE || fault_point("home.kept_full");
}

/* Pages of replicas on one device. */
struct renewal {
	struct replica **rep;
	struct dev_run *runs;
	unsigned n, room;
};

/* Add those of the part's pages that have another base than home's present bytes. chunk->lock is held. */
static void renewal_add(struct renewal *rn, struct replica *rep, const struct fetch_part *pt)
{
	struct chunk *ch = rep->chunk;

	for (unsigned i = 0; (i = bits_first(pt->pages, i, GAIA_CHUNK_PAGES)) < GAIA_CHUNK_PAGES; i++) {
		const struct page_replica *r = &rep->page[i];

		if (!replica_is_behind(rep, i) || replica_ahead(rep, i) || !page_present(ch, i))
			continue;
		if (rn->n == rn->room) {
			rn->room = MAX(2 * rn->room, 64u);
			rn->runs = xrealloc(rn->runs, rn->room * sizeof(*rn->runs));
			rn->rep = xrealloc(rn->rep, rn->room * sizeof(*rn->rep));
		}
		rn->rep[rn->n] = rep;
		rn->runs[rn->n++] = (struct dev_run){ .mem = rep->mem, .page = i, .npages = 1, .limit = r->cut,
						      .host = page_ptr(ch, i), .base = base_bytes(ch, i, r->seen) };
	}
}

/*
 * Merge home into the pages that clients of the device hold for writing, as their own acquires would: then home's present bytes
 * are their base. If the device fails they are unchanged, but a release compares them byte by byte.
 */
static void bases_renew(struct cache_device *dev, const struct fetch_part *part, unsigned n)
{
	struct renewal rn = { .n = 0 };
	struct dev_op op = { .kind = DEV_PULL };
	int err;

	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = part[k].ch;

		pthread_mutex_lock(&ch->lock);
		for (unsigned r = 0; r < ch->n_replicas; r++)
			if (ch->replica[r]->dev == dev)
				renewal_add(&rn, ch->replica[r], &part[k]);
		pthread_mutex_unlock(&ch->lock);
	}
	op.runs = rn.runs;
	op.n = rn.n;
	err = rn.n > 0 ? cache_device_run(dev, &op) : 0;
	for (unsigned k = 0; k < rn.n; k++) {
		uint64_t pulled[GAIA_CHUNK_PAGES / 64] = { 0 };

		pthread_mutex_lock(&rn.rep[k]->chunk->lock);
		if (err)
			replica_disarmed(rn.rep[k], rn.runs[k].page);
		else
			replica_pulled(rn.rep[k], rn.runs[k].page);
		/* Also if it has failed: some of it may have been merged. */
		bit_set(pulled, rn.runs[k].page);
		replica_overwritten(rn.rep[k], pulled);
		pthread_mutex_unlock(&rn.rep[k]->chunk->lock);
	}
	if (!err) {
		count(CTR_home_to_device, rn.n);
		moved(&part[0].ch->file->moved, MOVED_to_device_bytes, (uint64_t)rn.n * GAIA_PAGE);
		count(CTR_twins_pulled, rn.n);
	}
	free(rn.runs);
	free(rn.rep);
}

/* What is on a device that is gone will never be merged. */
static void bases_forget(struct cache_device *dev, const struct fetch_part *part, unsigned n)
{
	for (unsigned k = 0; k < n; k++) {
		struct chunk *ch = part[k].ch;

		pthread_mutex_lock(&ch->lock);
		for (unsigned r = 0; r < ch->n_replicas; r++)
			for (unsigned i = 0; i < GAIA_CHUNK_PAGES && ch->replica[r]->dev == dev; i++)
				if (bit_test(part[k].pages, i) && replica_is_behind(ch->replica[r], i))
					replica_forget_base(ch->replica[r], i);
		pthread_mutex_unlock(&ch->lock);
	}
}

void kept_trim_parts(const struct fetch_part *part, unsigned n)
{
	struct cache *c = part[0].ch->file->cache;

	/* While we have the pages locked no replica is freed. */
	for (unsigned d = 0; d < c->n_devices && kept_too_much(c); d++) {
		if (!atomic_load(&c->dev[d].gone))
			bases_renew(&c->dev[d], part, n);
		if (atomic_load(&c->dev[d].gone))
			bases_forget(&c->dev[d], part, n);
	}
}

void kept_trim(struct chunk *ch, unsigned a, unsigned b)
{
	struct fetch_part part = { .ch = ch };

	if (!kept_too_much(ch->file->cache))
		return;
	for (unsigned i = a; i < b; i++)
		bit_set(part.pages, i);
	kept_trim_parts(&part, 1);
}

void page_drop_lost(struct chunk *ch, unsigned i)
{
	for (unsigned k = 0; k < ch->n_replicas; k++) {
		struct replica *rep = ch->replica[k];

		if (!atomic_load(&rep->dev->gone))
			continue;
		replica_forget(rep, i);
		replica_shadow_trim(rep);
	}
}

/* ---- invalidating again ---- */

/* The invalidation for which the notifier was asked has completed. */
static void page_invalidated(struct chunk *ch, unsigned i, uint16_t opened)
{
	pthread_mutex_lock(&ch->lock);
	window_close(ch, i, opened);
	track_maybe_free(ch);
	pthread_mutex_unlock(&ch->lock);
}

void *notifier_main(void *arg)
{
	struct cache *c = arg;
	struct again *a;

	thread_set_name("gaia-notifier");
	pthread_mutex_lock(&c->lock);
	for (;;) {
		a = TAILQ_FIRST(&c->again);
		if (!a) {
			if (c->stopping)
				break;
			pthread_cond_wait(&c->again_cond, &c->lock);
			continue;
		}
		TAILQ_REMOVE(&c->again, a, link);
		pthread_mutex_unlock(&c->lock);

		struct chunk *ch = a->chunk;
		struct cfile *f = ch->file;

		(void)fault_point("notifier.before_invalidate");
		c->host.invalidate(c->host_arg, f->cookie,
				   (off_t)(ch->index * GAIA_CHUNK + (uint64_t)a->page * GAIA_PAGE),
				   GAIA_PAGE);
		count(CTR_kernel_invalidated, 1);
		page_invalidated(ch, a->page, a->opened);

		pthread_mutex_lock(&c->lock);
		f->again_done++;
		atomic_fetch_sub(&c->n_again, 1);
		pthread_cond_broadcast(&c->again_done);
		pthread_mutex_unlock(&c->lock);
		chunk_put(ch);
		free(a);
		pthread_mutex_lock(&c->lock);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

bool cache_is_invalidating(struct cache *c)
{
	return atomic_load(&c->n_again) > 0;
}

void again_wait(struct cfile *f)
{
	struct uses *waits = NULL;
	struct cache *c = f->cache;
	uint64_t until;

	/* Twice: while one is under way the kernel may write its copy back, and make us ask once more. */
	pthread_mutex_lock(&c->lock);
	for (int round = 0; round < 2; round++) {
		until = f->again_asked;
		while (f->again_done < until) {
			if (!waits)
				waits = wait_begin(WAIT_kernel);
			pthread_cond_wait(&c->again_done, &c->lock);
		}
	}
	pthread_mutex_unlock(&c->lock);
	wait_end(waits, WAIT_kernel);
}
