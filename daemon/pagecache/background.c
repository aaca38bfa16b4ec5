/* background.c - what is done by age and under pressure: the flusher, the fetcher and the trimmer. */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bits.h"
#include "base/counters.h"
#include "base/thread.h"
#include "base/util.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/fetch.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/root.h"
#include "pagecache/settings.h"
#include "pagecache/stranded.h"
#include "pagecache/victim.h"
#include "pagecache/view.h"
#include "pagecache/writeback.h"

#define TICK_NS 500000000ull
/* Memory that was not needed for so long is given back: but not between two bursts of writes, since new memory is slow
 * (tests/bench/README.md, "Settings"). */
#define SPARE_NS 2000000000ull

/* ---- by age and under pressure ---- */

static struct chunk *due(struct cache *c)
{
	return chunk_due(c, atomic_load(&c->n_dirty) > c->frames.budget / 2 ? 0 : c->age_ns);
}

/* It was taken off a list, as due: put it on those where it belongs. The caller's reference ends. */
static void visited(struct chunk *ch)
{
	struct cache *c = ch->file->cache;

	chunk_account(ch);
	pthread_mutex_lock(&c->lock);
	if (ch->file->forgotten)
		c->idle_files = true;
	pthread_mutex_unlock(&c->lock);
	chunk_put(ch);
}

/* If so many chunks of a file cannot be stored, no more are tried in a round. */
#define FAILURES_ENOUGH 4u

/* Whoever holds the range may wait for storage, in somebody's stead or for long: the next round comes soon. */
static bool store_one_due(struct chunk *ch)
{
	bool stored;

	if (pthread_rwlock_tryrdlock(&ch->file->range))
		return false;
	log_decision("chunk %llu of %s is stored, as it has been dirty for long or much is", (unsigned long long)ch->index,
		     cfile_name(ch->file, (char[CFILE_NAME_MAX]){ "" }));
	stored = !chunk_store(ch, 0, GAIA_CHUNK_PAGES, true);
	pthread_rwlock_unlock(&ch->file->range);
	return stored;
}

/*
 * Store what is due. What cannot be stored goes to the end of the list, and holds up nothing else: the round is over at the
 * first that was tried in it before; and of a file of which much cannot be stored not each chunk is tried.
 */
static void store_due(struct cache *c, uint64_t round)
{
	struct chunk *ch;
	struct cfile *f;
	bool again = false;

	while (!again && !c->stopping && (ch = due(c))) {
		again = ch->tried == round;
		f = ch->file;
		if (f->tried != round) {
			f->tried = round;
			f->failed = 0;
		}
		if (!again && f->failed < FAILURES_ENOUGH && !store_one_due(ch))
			f->failed++;
		ch->tried = round;
		visited(ch);
	}
}

/*
 * Memory that is freed between blocks that stay is not given back by itself, and threads have heaps of their own: when
 * nothing was counted since the last round, and something before, everything free is given back. @at, @worked: the caller's, for this.
 */
static void heap_trim(uint64_t *at, bool *worked)
{
	uint64_t now = 0;

	for (unsigned k = 0; k < CTR_COUNT; k++)
		now += counter_value(k);
	if (now != *at) {
		*worked = true;
	} else if (*worked) {
		malloc_trim(0);
		*worked = false;
	}
	*at = now;
}

/* c->lock held. For the next look at what has the age. */
static void tick(struct cache *c, pthread_cond_t *cond, uint64_t age_ns)
{
	uint64_t t = now_ns() + MIN(TICK_NS, age_ns / 4 + 1000000);
	struct timespec until = { (time_t)(t / 1000000000), (long)(t % 1000000000) };

	cache_tell_unstored(c);
	pthread_cond_timedwait(cond, &c->lock, &until);
}

void *flusher_main(void *arg)
{
	struct cache *c = arg;
	uint64_t trimmed = now_ns(), counted = 0, round = 0;
	bool idle, worked = false;

	thread_set_name("gaia-flusher");
	pthread_mutex_lock(&c->lock);
	while (!c->stopping) {
		tick(c, &c->flusher_cond, c->age_ns);
		idle = c->idle_files;
		pthread_mutex_unlock(&c->lock);

		pthread_rwlock_rdlock(&c->round);
		if (idle)
			idle_files_reap(c);
		emptied_reap(c);
		victims_reap(c);
		if (now_ns() - trimmed > SPARE_NS) {
			for (unsigned k = 0; k < c->n_devices; k++)
				(void)stranded_reap(&c->dev[k], 0);
			heap_trim(&counted, &worked);
			trimmed = now_ns();
		}
		store_due(c, ++round);
		pthread_rwlock_unlock(&c->round);
		pthread_mutex_lock(&c->lock);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* Whether there are pages of the file that could not be stored when that was last tried. */
static bool store_fails(struct cfile *f)
{
	bool fails;

	pthread_mutex_lock(&f->lock);
	fails = f->failing && atomic_load(&f->n_dirty) > 0;
	pthread_mutex_unlock(&f->lock);
	return fails;
}

/* So many chunks are taken off the list at a time, at most. */
#define FETCH_AT_ONCE 1024u

/* Store what was fetched of the window's chunks: false if that failed, or somebody waits for the range. @worked: something was stored. */
static bool window_store(const struct fetch_window *w, bool *worked)
{
	for (unsigned k = 0; k < w->n; k++) {
		if (w->part[k].err || bits_count(w->part[k].pages, GAIA_CHUNK_PAGES / 64) == 0)
			continue;
		if (cfile_range_is_wanted(w->part[k].ch->file) || chunk_store(w->part[k].ch, 0, GAIA_CHUNK_PAGES, true))
			return false;
		*worked = true;
	}
	return true;
}

/* Of what was fetched by age. */
struct by_age {
	struct cfile *file;
	struct chunk *at[FETCH_AT_ONCE];
	bool left[FETCH_AT_ONCE]; /* it was not tried */
	unsigned n, done;
};

/*
 * Fetch what is released of the chunks, and store it: a window at a time, of one chunk until something could be stored. It ends where that fails,
 * or somebody waits for the range, which is held.
 */
static void fetch_and_store(struct by_age *b)
{
	struct fetch_trouble trouble = { .err = { 0 } };
	bool worked = false, goes_on = true;
	struct fetch_window w;

	while (b->done < b->n && goes_on && !b->file->cache->stopping && !store_fails(b->file) && !cfile_range_is_wanted(b->file)) {
		w = fetch_some(b->at + b->done, worked ? b->n - b->done : 1, (struct page_span){ 0, UINT64_MAX }, &trouble);
		for (unsigned k = 0; k < w.n; k++)
			b->left[b->done + k] = w.part[k].given_up;
		b->done += w.n;
		goes_on = window_store(&w, &worked);
		free(w.part);
	}
}

/*
 * Fetch and store chunks that are due, all of one file; false: there are none. What is not tried, since somebody else has or wants the range or
 * its device fails, stays due until the next round, and comes first then: whoever has the range may wait for storage, in somebody's stead or for
 * long. But what cannot be stored is put off by another age.
 */
static bool fetch_due(struct cache *c, uint64_t begun)
{
	struct by_age *b = xcalloc(1, sizeof(*b));
	bool any, fails = false;

	b->n = chunks_due_ahead(c, c->device_age_ns, begun, b->at, FETCH_AT_ONCE);
	any = b->n > 0;
	if (any) {
		b->file = b->at[0]->file;
		if (!pthread_rwlock_tryrdlock(&b->file->range)) {
			log_decision("%u chunks of %s are fetched, as devices released them long ago", b->n,
				     cfile_name(b->file, (char[CFILE_NAME_MAX]){ "" }));
			fetch_and_store(b);
			fails = store_fails(b->file);
			pthread_rwlock_unlock(&b->file->range);
		}
	}
	for (unsigned k = b->done; k < b->n; k++)
		b->left[k] = true;
	for (unsigned k = 0; k < b->n; k++)
		if (b->left[k])
			b->file->put_off = begun;
	for (unsigned k = b->n; k-- > 0;)
		if (fails || !b->left[k] || !chunk_back_ahead(b->at[k]))
			visited(b->at[k]);
	free(b);
	return any;
}

/*
 * Fetch what devices have released, by age: on a thread of its own, so that a device that is slow, or does not answer, keeps no dirty
 * page from being stored. A window at a time, and each is stored before the next is fetched: so home takes one window, not everything
 * that devices have. What cannot be stored stays on the device.
 */
void *fetcher_main(void *arg)
{
	struct cache *c = arg;
	uint64_t begun;

	thread_set_name("gaia-fetcher");
	pthread_mutex_lock(&c->lock);
	while (!c->stopping) {
		tick(c, &c->fetcher_cond, c->device_age_ns);
		pthread_mutex_unlock(&c->lock);
		pthread_rwlock_rdlock(&c->round);
		begun = now_ns(); /* what is put off is not due again in this round */
		while (!c->stopping && fetch_due(c, begun))
			;
		pthread_rwlock_unlock(&c->round);
		pthread_mutex_lock(&c->lock);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* Whether something was made smaller since the last look. c->lock is held. */
static bool told_to_shrink(const struct cache *c, uint64_t *told)
{
	bool is = *told != c->n_shrunk;

	*told = c->n_shrunk;
	return is;
}

/*
 * Give home memory back: on a thread of its own, since devices that have registered it may make that wait for one that does not answer; and take
 * back what clients on the host map and do not use, when home is nearly full, since they may not answer either.
 */
void *trimmer_main(void *arg)
{
	struct cache *c = arg;
	uint64_t until, trimmed = now_ns(), told = 0;

	thread_set_name("gaia-trimmer");
	pthread_mutex_lock(&c->lock);
	while (!c->stopping) {
		until = now_ns() + SPARE_NS;
		/* It may have been said while this thread was at work. (What shrinks and could not, is tried again in the next round.) */
		if (!atomic_load(&c->lacking) && !told_to_shrink(c, &told))
			pthread_cond_timedwait(&c->trimmer_cond, &c->lock,
					       &(struct timespec){ (time_t)(until / 1000000000), (long)(until % 1000000000) });
		pthread_mutex_unlock(&c->lock);
		pthread_rwlock_rdlock(&c->round);
		if (!c->stopping && atomic_exchange(&c->lacking, false))
			view_trim(c, true);
		if (!c->stopping)
			settings_trim(c);
		if (!c->stopping && now_ns() - trimmed >= SPARE_NS) {
			/* First: the other may wait for clients. */
			frames_trim(&c->frames, false);
			view_trim(c, false);
			trimmed = now_ns();
		}
		pthread_rwlock_unlock(&c->round);
		pthread_mutex_lock(&c->lock);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}
