/* view.c - home's own memory of a chunk, as clients on the host map it to read. See view.h. */
#include "pagecache/view.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/counters.h"
#include "base/util.h"
#include "consistency/track.h"
#include "pagecache/bring.h"
#include "pagecache/cache.h"
#include "pagecache/devices.h"
#include "pagecache/evict.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/window.h"

struct readers *view_readers(struct cache *c)
{
	return &c->viewers;
}

bool replica_is_view(const struct replica *rep)
{
	return rep->only && rep->only == &rep->chunk->file->cache->viewers;
}

/* ---- life ---- */

int view_begin(struct replica *rep, struct devmem *mem)
{
	struct device *dev = rep->dev->dev;
	struct chunk *ch = rep->chunk;

	rep->lent = frames_lend(&ch->file->cache->frames, dev->ops->host_memory(dev, mem));
	if (!rep->lent)
		return -ENOMEM;
	pthread_mutex_lock(&ch->lock);
	bug_on(ch->lent);
	ch->lent = rep->lent;
	pthread_mutex_unlock(&ch->lock);
	return 0;
}

void view_end(struct replica *rep)
{
	if (rep->lent)
		frames_lend_end(&rep->chunk->file->cache->frames, rep->lent);
	rep->lent = 0;
}

/* Nobody can ask for the file's contents any more. */
static bool file_is_dead(struct cfile *f)
{
	bool dead;

	pthread_mutex_lock(&f->cache->lock);
	dead = f->holds == 0 && atomic_load(&f->gone);
	pthread_mutex_unlock(&f->cache->lock);
	return dead;
}

/* The pages in view, those first that home must not drop: *@must of them. chunk->lock is held. */
static unsigned list_pages(const struct chunk *ch, bool dead, uint16_t *page, unsigned *must)
{
	/* What devices need as a base, and what CPU programs have changed in the file below, home alone may have. */
	bool all = cfile_is_passthrough(ch->file);
	unsigned n = 0;

	*must = 0;
	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
			bool needed = !dead && (all || page_dirty(ch, i));

			if (!page_in_view(ch, i) || needed != (round == 0))
				continue;
			page[n++] = (uint16_t)i;
			*must += needed;
		}
	return n;
}

/* Frames for @want pages, of which @must are needed: how many, or -ENOMEM. */
static int take_frames(struct cache *c, unsigned want, unsigned must, frame_t *frame)
{
	unsigned got = frames_take(&c->frames, want, frame, false);

	if (got < must)
		got += frames_take(&c->frames, must - got, frame + got, true);
	if (got >= must)
		return (int)got;
	frames_give(&c->frames, frame, got);
	return home_no_memory(must);
}

int view_leave(struct replica *rep)
{
	struct chunk *ch = rep->chunk;
	struct cache *c = ch->file->cache;
	bool dead = file_is_dead(ch->file);
	/* While home has room nothing need be read again. */
	bool roomy = atomic_load(&c->frames.used) + GAIA_CHUNK_PAGES <= c->frames.budget;
	uint16_t page[GAIA_CHUNK_PAGES];
	frame_t frame[GAIA_CHUNK_PAGES];
	unsigned n, must;
	int got;

	pthread_mutex_lock(&ch->lock);
	n = list_pages(ch, dead, page, &must);
	pthread_mutex_unlock(&ch->lock);
	got = take_frames(c, roomy && !dead ? n : must, must, frame);
	if (got < 0)
		return got;
	for (unsigned k = 0; k < (unsigned)got; k++)
		memcpy(frame_ptr(&c->frames, frame[k]), page_ptr(ch, page[k]), GAIA_PAGE);
	pthread_mutex_lock(&ch->lock);
	for (unsigned k = 0; k < n; k++) {
		if (k >= (unsigned)got) {
			page_drop(ch, page[k]);
			continue;
		}
		page_set_frame(ch, page[k], frame[k]);
		view_absent(ch, page[k]);
	}
	ch->lent = 0;
	pthread_mutex_unlock(&ch->lock);
	home_evicted(ch, dead ? 0 : n - (unsigned)got);
	return 0;
}

#define FULL_OF_8 7u /* home is nearly full when so much of it is used */
#define TRIM_AT_ONCE 64u

/* Claim up to @n of the host's idle replicas that have not been used since it was @idled (cache_device.n_idled). dev->reserve is held. */
static void claim_idle(struct cache_device *dev, uint64_t n, uint64_t idled, struct replica_list *claimed)
{
	struct replica *rep;

	pthread_mutex_lock(&dev->lock);
	while (claimed->n < n && (rep = TAILQ_FIRST(&dev->idle)) && rep->idled <= idled) {
		replica_claim_idle(rep);
		replica_list_add(claimed, rep);
	}
	pthread_mutex_unlock(&dev->lock);
}

/* Of up to @n of those that are ready, and not held, it is known from now on whether they are used. dev->reserve is held. */
static void end_ready(struct cache_device *dev, uint64_t n)
{
	struct replica **ready;
	uint64_t n_ready = device_idle_ready(dev, UINT64_MAX, &ready);

	for (uint64_t k = 0; k < n_ready && n > 0; k++) {
		if (unit_is_held_ready(ready[k]))
			continue;
		unit_end_ready(ready[k]);
		n--;
	}
	free(ready);
}

void view_trim(struct cache *c, bool lacking)
{
	uint64_t most = c->frames.budget / 8 * FULL_OF_8, used = atomic_load(&c->frames.used), n, now;
	struct replica_list claimed = { .n = 0 };

	if (!c->local || pthread_mutex_trylock(&c->local->reserve))
		return;
	n = used > most ? MIN((used - most) / GAIA_CHUNK_PAGES + 1, TRIM_AT_ONCE) : 0;
	if (lacking)
		end_ready(c->local, n);
	pthread_mutex_lock(&c->local->lock);
	now = c->local->n_idled;
	pthread_mutex_unlock(&c->local->lock);
	claim_idle(c->local, n, lacking ? now : c->idled[0], &claimed);
	if (!lacking && claimed.n < n)
		end_ready(c->local, n - claimed.n);
	pthread_mutex_unlock(&c->local->reserve);
	(void)replicas_evict_all(&claimed); /* on error it is tried again */
	if (lacking)
		return;
	memmove(c->idled, c->idled + 1, sizeof(c->idled) - sizeof(c->idled[0]));
	c->idled[ARRAY_LEN(c->idled) - 1] = now;
}

int view_drop(struct chunk *ch)
{
	bool any;

	pthread_mutex_lock(&ch->lock);
	any = ch->lent;
	pthread_mutex_unlock(&ch->lock);
	return any ? replicas_drop(&ch, 1, ch->file->cache->local, NULL, true) : 0;
}

/* ---- pages come into view, and leave ---- */

void view_bring(struct part *pt)
{
	struct chunk *ch = pt->ch;
	struct frames *fr = &ch->file->cache->frames;
	frame_t frame[GAIA_CHUNK_PAGES];
	unsigned n = 0;

	/* They are ours: nobody else looks at their frames, nor changes them. */
	FOR_TODO(pt, i)
		if ((pt->step[i] == TRACK_SEND || pt->step[i] == TRACK_PULL) && page_at(ch, i)->frame != pt->rep->lent + i)
			memcpy(frame_ptr(fr, pt->rep->lent + i), page_ptr(ch, i), GAIA_PAGE);
	pthread_mutex_lock(&ch->lock);
	FOR_TODO(pt, i) {
		if (pt->step[i] != TRACK_SEND && pt->step[i] != TRACK_PULL)
			continue;
		if (!page_in_view(ch, i))
			frame[n++] = page_set_frame(ch, i, ch->lent + i);
		replica_sent(pt->rep, i);
		pt->step[i] = TRACK_NOTHING;
	}
	pthread_mutex_unlock(&ch->lock);
	frames_give(fr, frame, n);
	count(CTR_home_viewed, n);
}

void view_page_leaves(struct chunk *ch, unsigned i)
{
	memset(page_ptr(ch, i), 0, GAIA_PAGE);
	page_set_frame(ch, i, 0);
	view_absent(ch, i);
}

frame_t view_page_exchange(struct chunk *ch, unsigned i, frame_t frame)
{
	char *home = page_ptr(ch, i), *other = frame_ptr(&ch->file->cache->frames, frame), old[GAIA_PAGE];

	memcpy(old, home, GAIA_PAGE);
	memcpy(home, other, GAIA_PAGE);
	memcpy(other, old, GAIA_PAGE);
	return frame;
}

char *view_store_copy(const struct chunk *ch, unsigned a, unsigned b, const frame_t *frame)
{
	struct frames *fr = &ch->file->cache->frames;
	char *copy = NULL;

	if (!ch->lent)
		return NULL;
	for (unsigned i = a; i < b; i++) {
		if (!frame_is_lent(fr, frame[i - a]))
			continue;
		if (!copy)
			copy = xmalloc((size_t)(b - a) * GAIA_PAGE);
		memcpy(copy + (size_t)(i - a) * GAIA_PAGE, frame_ptr(fr, frame[i - a]), GAIA_PAGE);
	}
	return copy;
}
