/* victim.c - pages that left home, parked on devices: see victim.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/counters.h"
#include "base/latency.h"
#include "base/fault.h"
#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/home.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/run.h"
#include "pagecache/shares.h"
#include "pagecache/victim_inner.h"
#include "policy/ghosts.h"

#define RETURN_AT_ONCE 32u /* pages, while others wait for the lock */

uint64_t parked_key(const struct chunk *ch, unsigned i)
{
	return (ch->file->key << 40) + ch->index * GAIA_CHUNK_PAGES + i;
}

/* ---- out ---- */

/*
 * Whether the page leaves for the second time, and not long after the first: one that is read once, as in a scan, is not worth the bus. The
 * kernel has its own cache of what CPU programs read; that home gives a page to it for the second time means that it has dropped
 * the page meanwhile. victims.lock is held.
 */
static bool is_wanted(struct victims *v, const struct chunk *ch, unsigned i)
{
	uint64_t key = parked_key(ch, i);
	bool wanted = ghosts_take(v->ghosts, key) || fault_point("park.all");

	if (!wanted)
		ghosts_add(v->ghosts, key);
	return wanted;
}

/* chunk->lock is held, so that the index stays; victims.lock is not, as the reference takes another lock. */
static void index_make(struct chunk *ch)
{
	if (ch->parked)
		return;
	ch->parked = xcalloc(1, sizeof(*ch->parked));
	ch->parked->ch = chunk_ref(ch);
}

/* A batch that has room, for a device that works; NULL: there is none. */
static struct batch *batch_with_room(struct victims *v)
{
	struct batch *empty = NULL;

	for (unsigned k = 0; k < BATCHES; k++) {
		if (v->batch[k].state == BATCH_FILLS && v->batch[k].n < VICTIM_BATCH)
			return &v->batch[k];
		if (v->batch[k].state == BATCH_EMPTY)
			empty = &v->batch[k];
	}
	for (unsigned k = 0; k < v->n_devices && empty; k++) {
		empty->to = &v->dev[v->next_device++ % v->n_devices];
		if (!device_usable(empty->to->dev))
			return empty;
	}
	return NULL;
}

/* The next ones are called with chunk->lock and victims.lock held. */

/* The page's frame, if other pages have it or may get it; else 0. It stays so: nobody has the page locked who could change that. */
static frame_t shared_frame(const struct chunk *ch, unsigned i)
{
	const struct page *p = page_at(ch, i);

	return p->indexed ? p->frame : 0;
}

/* In the slot of a page that has left home with the same frame: nothing is copied, and nothing leaves for it. */
static bool park_beside(struct victims *v, struct chunk *ch, unsigned i, frame_t frame, bool wanted)
{
	uint32_t slot = slot_of_frame(v, frame);

	if (!slot || !slot_may_join(v, slot, ch->parked, i, wanted))
		return false;
	slot_join(v, slot, ch->parked, i);
	return true;
}

/* @wanted: else it is parked only if that costs nothing. */
static bool park(struct victims *v, struct chunk *ch, unsigned i, bool wanted)
{
	frame_t frame = shared_frame(ch, i);
	struct batch *b;
	uint32_t slot;

	if (frame && park_beside(v, ch, i, frame, wanted))
		return true;
	if (!wanted)
		return false;
	b = batch_with_room(v);
	slot = b ? slot_take(v, b->to) : 0;
	if (!slot) {
		ghosts_add(v->ghosts, parked_key(ch, i));
		return false;
	}
	slot_give(v, slot, ch->parked, i);
	if (frame)
		slot_link(v, slot, frame);
	b->state = BATCH_FILLS;
	b->slot[b->n] = slot;
	memcpy(b->bytes + (size_t)b->n++ * GAIA_PAGE, page_ptr(ch, i), GAIA_PAGE);
	return true;
}

/*
 * The page is parked already, in @slot, and leaves home again. Pages that have the same frame get into one slot by and by: the one that has more
 * of them. (@slot itself is not linked here: that the page comes from there is not known.)
 */
static void park_again(struct victims *v, struct chunk *ch, unsigned i, uint32_t slot)
{
	frame_t frame = shared_frame(ch, i);
	uint32_t other = frame ? slot_of_frame(v, frame) : 0;

	slot_note_back(v, slot, ch->parked, i, false);
	if (!other || other == slot || *slot_owner(v, other) & OWNER_COMING || slot_pages(v, other) < slot_pages(v, slot))
		return;
	if (slot_may_join(v, other, ch->parked, i, true))
		slot_move(v, other, ch->parked, i);
}

void victim_offer(struct chunk *ch, unsigned i)
{
	struct victims *v = ch->file->cache->victims;
	const uint32_t *at;
	bool parked, wanted, joins;
	uint32_t beside;
	frame_t frame;

	if (!v || cfile_is_passthrough(ch->file) || page_limit(ch, i) == 0)
		return;
	pthread_mutex_lock(&v->lock);
	at = index_at(ch->parked, i);
	parked = at && *at;
	if (parked)
		park_again(v, ch, i, *at);
	wanted = !parked && is_wanted(v, ch, i);
	frame = parked ? 0 : shared_frame(ch, i);
	beside = frame ? slot_of_frame(v, frame) : 0;
	joins = beside && slot_pages(v, beside) < SHARERS_MOST;
	pthread_mutex_unlock(&v->lock);
	if (parked)
		return;
	if (wanted || joins) {
		index_make(ch);
		pthread_mutex_lock(&v->lock);
		parked = park(v, ch, i, wanted);
		/* It was made in vain. */
		if (ch->parked->n == 0 && !ch->parked->is_empty) {
			ch->parked->is_empty = true;
			ch->parked->next_empty = v->empty;
			v->empty = ch->parked;
		}
		pthread_mutex_unlock(&v->lock);
	}
	count(parked ? CTR_victim_parked : CTR_victim_refused, 1);
}

/* The copy of @b, which flies, has ended. */
static void batch_ended(struct batch *b, int err)
{
	struct victims *v = b->victims;
	struct cache_device *dev = b->to->dev;

	pthread_mutex_lock(&v->lock);
	for (unsigned k = 0; k < b->n; k++) {
		if (err)
			slot_drop_all(v, b->slot[k], false);
		slot_ended(v, b->slot[k]);
	}
	b->n = 0;
	b->state = BATCH_EMPTY;
	pthread_cond_broadcast(&v->changed);
	pthread_mutex_unlock(&v->lock);
	device_note_gone(dev, err);
}

static void on_copied(struct dev_op *op, int err)
{
	struct batch *b = op->arg;

	latency_count(LATENCY_device_copy_in, (int64_t)(now_ns() - b->began_ns));
	batch_ended(b, err);
}

static void batch_send(struct batch *b)
{
	struct victims *v = b->victims;
	struct cache_device *dev = b->to->dev;
	int err = -ENODEV;

	b->op = (struct dev_op){ .kind = DEV_COPY_IN, .runs = b->run, .done = on_copied, .arg = b };
	pthread_mutex_lock(&v->lock);
	/* Slots that nobody has any more are copied, too: they are free only afterwards. */
	for (unsigned k = 0; k < b->n; k++)
		dev_run_add(&b->op, b->run, slot_slab(v, b->slot[k])->mem, (b->slot[k] - 1) % GAIA_CHUNK_PAGES, b->bytes + (size_t)k * GAIA_PAGE, NULL);
	pthread_mutex_unlock(&v->lock);
	count(CTR_victim_batches, 1);
	b->began_ns = now_ns();
	if (!atomic_load(&dev->gone))
		err = device_submit(dev->dev, &b->op);
	if (err)
		batch_ended(b, err);
}

void victims_send(struct cache *c, bool all)
{
	struct victims *v = c->victims;
	struct batch *ready[BATCHES];
	unsigned n = 0;

	if (!v)
		return;
	pthread_mutex_lock(&v->lock);
	for (unsigned k = 0; k < BATCHES; k++) {
		struct batch *b = &v->batch[k];

		if (b->state != BATCH_FILLS || (b->n < VICTIM_BATCH && !all))
			continue;
		b->state = BATCH_FLIES;
		ready[n++] = b;
	}
	pthread_mutex_unlock(&v->lock);
	while (n > 0)
		batch_send(ready[--n]);
}

/* ---- what is parked is out of date ---- */

/* victims.lock is held. */
static void drop(struct victims *v, const struct chunk *ch, unsigned i)
{
	const uint32_t *at = index_at(ch->parked, i);

	if (at && *at)
		slot_drop(v, *at, ch->parked, i);
}

void victim_drop_slot(struct chunk *ch, unsigned i)
{
	struct victims *v = ch->file->cache->victims;

	if (!ch->parked || fault_point("break.stale_parked"))
		return;
	pthread_mutex_lock(&v->lock);
	drop(v, ch, i);
	pthread_mutex_unlock(&v->lock);
}

void victim_drop_chunk(struct chunk *ch)
{
	struct victims *v = ch->file->cache->victims;

	if (!ch->parked)
		return;
	pthread_mutex_lock(&v->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		drop(v, ch, i);
	pthread_mutex_unlock(&v->lock);
}

static struct parked *next_empty(struct victims *v)
{
	struct parked *p;

	pthread_mutex_lock(&v->lock);
	p = v->empty;
	if (p)
		v->empty = p->next_empty;
	pthread_mutex_unlock(&v->lock);
	return p;
}

/* It is in no list. False: it has pages again. */
static bool index_end(struct victims *v, struct parked *p)
{
	struct chunk *ch = p->ch;
	bool ends;

	pthread_mutex_lock(&ch->lock);
	pthread_mutex_lock(&v->lock);
	p->is_empty = false;
	ends = p->n == 0;
	if (ends)
		ch->parked = NULL;
	pthread_mutex_unlock(&v->lock);
	pthread_mutex_unlock(&ch->lock);
	if (ends)
		free(p);
	return ends;
}

void victims_reap(struct cache *c)
{
	struct victims *v = c->victims;
	struct parked *p;

	while (v && (p = next_empty(v))) {
		struct chunk *ch = p->ch;

		if (index_end(v, p))
			chunk_put(ch);
	}
}

/* ---- back ---- */

unsigned victim_find(struct chunk *ch, const struct cache_device *dev, const uint16_t *page, unsigned n, uint32_t *slot)
{
	struct victims *v = ch->file->cache->victims;
	unsigned found = 0;

	memset(slot, 0, n * sizeof(*slot));
	if (!ch->parked || dev->victims != v)
		return 0;
	pthread_mutex_lock(&v->lock);
	for (unsigned k = 0; k < n; k++) {
		const uint32_t *at = index_at(ch->parked, page[k]);

		if (!at || !*at || slot_device(v, *at)->dev != dev || !slot_read(v, *at))
			continue;
		slot_note_back(v, *at, ch->parked, page[k], true);
		slot[k] = *at;
		found++;
	}
	pthread_mutex_unlock(&v->lock);
	return found;
}

/* The bytes that are on their way to the slot; NULL: none are. victims.lock is held. */
static const char *bytes_coming(struct victims *v, uint32_t slot)
{
	if (!(*slot_owner(v, slot) & OWNER_COMING))
		return NULL;
	for (unsigned k = 0; k < BATCHES; k++)
		for (unsigned i = 0; v->batch[k].state != BATCH_EMPTY && i < v->batch[k].n; i++)
			if (v->batch[k].slot[i] == slot)
				return v->batch[k].bytes + (size_t)i * GAIA_PAGE;
	return NULL;
}

/* Those of the first n pages. chunk->lock and victims.lock are held. */
static unsigned take_coming(struct victims *v, struct chunk *ch, const uint16_t *page, unsigned n, const frame_t *frame, bool *took)
{
	unsigned taken = 0;

	for (unsigned k = 0; k < n; k++) {
		const uint32_t *at = index_at(ch->parked, page[k]);
		const char *bytes = at && *at ? bytes_coming(v, *at) : NULL;

		if (!bytes)
			continue;
		memcpy(frame_ptr(&v->cache->frames, frame[k]), bytes, GAIA_PAGE);
		slot_note_back(v, *at, ch->parked, page[k], true);
		took[k] = true;
		taken++;
	}
	return taken;
}

unsigned victim_take_coming(struct chunk *ch, const uint16_t *page, unsigned n, const frame_t *frame, bool *took)
{
	struct victims *v = ch->file->cache->victims;
	unsigned taken = 0, some;

	memset(took, 0, n * sizeof(*took));
	if (!ch->parked || fault_point("victim.return"))
		return 0;
	/* Others, and devices that have got what was sent, wait for the lock. */
	for (unsigned k = 0; k < n; k += some) {
		some = MIN(n - k, RETURN_AT_ONCE);
		pthread_mutex_lock(&v->lock);
		taken += take_coming(v, ch, page + k, some, frame + k, took + k);
		pthread_mutex_unlock(&v->lock);
	}
	return taken;
}

void victim_came(struct chunk *ch, unsigned i, uint32_t slot)
{
	struct victims *v = ch->file->cache->victims;
	frame_t frame = shared_frame(ch, i);
	const uint32_t *at;
	uint32_t other;

	if (!frame)
		return;
	pthread_mutex_lock(&v->lock);
	other = slot_of_frame(v, frame);
	at = index_at(ch->parked, i);
	/* It has been absent and locked: so if it is parked there it has been all the time. */
	if (at && *at == slot) {
		slot_note_tag(v, slot, shares_tag(&v->cache->frames, frame));
		if (!other || slot_pages(v, other) == SHARERS_MOST)
			slot_link(v, slot, frame);
	}
	pthread_mutex_unlock(&v->lock);
}

struct devmem *victim_place(struct cache *c, uint32_t slot, unsigned *page, uint32_t *tag)
{
	struct victims *v = c->victims;
	struct devmem *mem;

	*page = (slot - 1) % GAIA_CHUNK_PAGES;
	pthread_mutex_lock(&v->lock);
	mem = slot_slab(v, slot)->mem;
	*tag = c->dedup ? slot_known(v, slot)->tag : 0;
	pthread_mutex_unlock(&v->lock);
	return mem;
}

void victim_read_ended(struct cache *c, const uint32_t *slot, unsigned n, bool failed)
{
	struct victims *v = c->victims;

	pthread_mutex_lock(&v->lock);
	for (unsigned k = 0; k < n; k++) {
		if (!slot[k])
			continue;
		if (failed)
			slot_drop_all(v, slot[k], false);
		slot_ended(v, slot[k]);
	}
	pthread_mutex_unlock(&v->lock);
}

/* ---- life ---- */

static uint32_t slabs_of(const struct cache_config *config, unsigned i)
{
	uint64_t bytes = config->device_cache ? config->device_cache[i] : 0;

	return (uint32_t)(MIN(bytes, config->devices[i]->capacity) / GAIA_CHUNK);
}

/* Two batches are a slab, of which devices are told as of home's. */
static void tell_devices(const struct victims *v, bool there)
{
	for (unsigned k = 0; k < v->n_devices; k++) {
		struct device *dev = v->dev[k].dev->dev;

		if (dev->ops->host_slab)
			dev->ops->host_slab(dev, v->memory, there ? HOST_SLAB_COMES : HOST_SLAB_GOES);
	}
}

static void victims_free(struct victims *v)
{
	ghosts_destroy(v->ghosts);
	free(v->slab);
	free(v->dev);
	free(v->memory);
	free(v);
}

static void devices_find(struct victims *v, struct cache *c, const struct cache_config *config)
{
	uint32_t first = 0;

	for (unsigned i = 0; i < config->n_devices; i++) {
		uint32_t room = slabs_of(config, i);

		if (room == 0)
			continue;
		v->dev[v->n_devices++] = (struct victim_device){
			.dev = &c->dev[i], .first = first, .room = room, .is_auto = config->device_cache[i] == CACHE_DEVICE_AUTO,
		};
		c->dev[i].victims = v;
		first += room;
	}
}

int victims_create(struct cache *c, const struct cache_config *config)
{
	pthread_condattr_t attr;
	uint64_t slabs = 0;
	struct victims *v;
	int err = -ENOMEM;

	for (unsigned i = 0; i < config->n_devices; i++)
		slabs += slabs_of(config, i);
	if (slabs == 0)
		return 0;
	/* Numbers of slots have 32 bits. */
	if (slabs >= UINT32_MAX / GAIA_CHUNK_PAGES)
		return -EINVAL;
	_Static_assert(BATCHES * VICTIM_BATCH == GAIA_CHUNK_PAGES, "batches are one slab");
	v = calloc(1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	v->cache = c;
	v->memory = aligned_alloc(GAIA_CHUNK, GAIA_CHUNK);
	v->dev = calloc(config->n_devices, sizeof(*v->dev));
	v->slab = calloc(slabs, sizeof(*v->slab));
	v->ghosts = ghosts_create(c->frames.budget + slabs * GAIA_CHUNK_PAGES);
	if (!v->memory || !v->dev || !v->slab || !v->ghosts)
		goto free_victims;
	for (unsigned k = 0; k < BATCHES; k++) {
		v->batch[k].bytes = (char *)v->memory + (size_t)k * VICTIM_BATCH * GAIA_PAGE;
		v->batch[k].victims = v;
	}
	pthread_mutex_init(&v->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&v->work, &attr);
	pthread_condattr_destroy(&attr);
	pthread_cond_init(&v->changed, NULL);
	devices_find(v, c, config);
	c->victims = v;
	err = -pthread_create(&v->thread, NULL, slabs_main, v);
	if (err)
		goto unlink;
	tell_devices(v, true);
	return 0;

unlink:
	c->victims = NULL;
	for (unsigned k = 0; k < v->n_devices; k++)
		v->dev[k].dev->victims = NULL;
free_victims:
	victims_free(v);
	return err;
}

void victims_stop(struct cache *c)
{
	struct victims *v = c->victims;

	if (!v)
		return;
	pthread_mutex_lock(&v->lock);
	v->stopping = true;
	pthread_cond_signal(&v->work);
	pthread_mutex_unlock(&v->lock);
	pthread_join(v->thread, NULL);
}

/* Until nothing is under way. */
static void settle(struct victims *v)
{
	victims_send(v->cache, true);
	pthread_mutex_lock(&v->lock);
	for (unsigned k = 0; k < BATCHES; k++)
		while (v->batch[k].state != BATCH_EMPTY)
			pthread_cond_wait(&v->changed, &v->lock);
	pthread_mutex_unlock(&v->lock);
}

void victims_destroy(struct cache *c)
{
	struct victims *v = c->victims;

	if (!v)
		return;
	settle(v);
	slabs_end(v);
	victims_reap(c);
	bug_on(v->n_parked > 0 || v->n_shared > 0 || v->n_leaves > 0);
	tell_devices(v, false);
	for (unsigned k = 0; k < v->n_devices; k++)
		v->dev[k].dev->victims = NULL;
	c->victims = NULL;
	pthread_mutex_destroy(&v->lock);
	pthread_cond_destroy(&v->work);
	pthread_cond_destroy(&v->changed);
	victims_free(v);
}

/* ---- looking at it ---- */

unsigned victim_count(const struct chunk *ch)
{
	struct victims *v = ch->file->cache->victims;
	unsigned n;

	if (!ch->parked)
		return 0;
	pthread_mutex_lock(&v->lock);
	n = ch->parked->n;
	pthread_mutex_unlock(&v->lock);
	return n;
}

uint64_t victims_saved(struct cache *c)
{
	struct victims *v = c->victims;
	uint64_t n;

	if (!v)
		return 0;
	pthread_mutex_lock(&v->lock);
	n = v->n_shared;
	pthread_mutex_unlock(&v->lock);
	return n;
}

/* Home's copy, if there is one, and the slot's are the same bytes; and beyond the end of the file zeros. */
static void check_bytes(struct parked *p, unsigned i, const char *bytes)
{
	struct chunk *ch = p->ch;

	pthread_mutex_lock(&ch->lock);
	bug_on(page_present(ch, i) && memcmp(page_ptr(ch, i), bytes, GAIA_PAGE) != 0);
	bug_on(page_dirty(ch, i));
	bug_on(page_limit(ch, i) == 0 || cfile_is_passthrough(ch->file));
	for (unsigned k = page_limit(ch, i); k < GAIA_PAGE; k++)
		bug_on(bytes[k]);
	pthread_mutex_unlock(&ch->lock);
}

/* The frame that is linked with the slot, if there is one, has its bytes. @bytes: NULL: they cannot be read. */
static void check_link(struct victims *v, uint32_t slot, const char *bytes)
{
	const struct frames *fr = &v->cache->frames;
	struct slot_known from = v->cache->dedup ? *slot_known(v, slot) : (struct slot_known){ 0 };

	if (!from.frame || !shares_indexed(fr, from.frame) || slot_of_frame(v, from.frame) != slot)
		return;
	bug_on(!*slot_owner(v, slot) || shares_domain(fr, from.frame) != from.domain);
	bug_on(bytes && memcmp(frame_ptr(fr, from.frame), bytes, GAIA_PAGE) != 0);
}

/* Slot -> pages, for which see also victim_check_chunk(). Returns how many they are. */
static unsigned check_slot(struct victims *v, uint32_t slot, const char *bytes)
{
	const uint64_t *owner = slot_owner(v, slot), *page;
	unsigned n, n_back = 0;

	bug_on(*owner & OWNER_STATE & ~OWNER_BACK);
	page = owner_pages(owner, &n);
	bug_on(n > SHARERS_MOST || (n == 0) != (*owner == 0) || (n > 1) != !!(*owner & OWNER_MANY));
	bug_on(n == 0 && v->cache->dedup && (slot_known(v, slot)->frame || slot_known(v, slot)->tag));
	/* (Unless there was no memory for fewer.) */
	bug_on(n > 1 && owner_sharers(*owner)->room > SHARERS_LEAST && n <= owner_sharers(*owner)->room / 4);
	for (unsigned k = 0; k < n; k++) {
		struct parked *p = owner_index(page[k]);
		unsigned i = page[k] & OWNER_PAGE;
		const uint32_t *at = index_at(p, i);

		bug_on(!at || *at != slot);
		bug_on(p->ch->parked != p);
		n_back += !!(page[k] & OWNER_BACK);
		if (bytes)
			check_bytes(p, i, bytes);
	}
	bug_on(!!(*owner & OWNER_BACK) != (n > 0 && n_back == n));
	check_link(v, slot, bytes);
	return n;
}

/* Returns how many slots are taken; @pages: with so many pages. */
static unsigned check_slab(struct victims *v, struct victim_device *vd, uint32_t number, char *bytes, uint64_t *pages)
{
	struct victim_slab *s = v->slab[number];
	struct dev_run run = { .mem = s->mem, .npages = GAIA_CHUNK_PAGES, .host = bytes };
	struct dev_op copy = { .kind = DEV_COPY_OUT, .runs = &run, .n = 1 };
	bool readable = !atomic_load(&vd->dev->gone) && !device_run(vd->dev->dev, &copy);
	unsigned taken = 0, n;

	bug_on(s->leaves || s->n_busy);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		n = check_slot(v, number * GAIA_CHUNK_PAGES + i + 1, readable ? bytes + (size_t)i * GAIA_PAGE : NULL);
		taken += n > 0;
		*pages += n;
	}
	bug_on(taken != s->n_taken);
	return taken;
}

void victims_check(struct cache *c)
{
	struct victims *v = c->victims;
	uint64_t pages = 0, all_taken = 0;
	char *bytes;

	if (!v)
		return;
	settle(v);
	bytes = aligned_alloc(GAIA_PAGE, GAIA_CHUNK);
	bug_on(!bytes);
	for (unsigned k = 0; k < v->n_devices; k++) {
		struct victim_device *vd = &v->dev[k];
		uint64_t taken = 0;
		unsigned slabs = 0;

		for (uint32_t i = vd->first; i < vd->first + vd->room; i++)
			if (v->slab[i]) {
				taken += check_slab(v, vd, i, bytes, &pages);
				slabs++;
			}
		bug_on(slabs != vd->n_slabs || (uint64_t)slabs * GAIA_CHUNK_PAGES - taken != vd->n_free);
		all_taken += taken;
	}
	bug_on(pages != v->n_parked || pages - all_taken != v->n_shared);
	free(bytes);
}

void victim_check_chunk(const struct chunk *ch)
{
	struct victims *v = ch->file->cache->victims;
	unsigned n = 0;

	if (!ch->parked)
		return;
	pthread_mutex_lock(&v->lock);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		const uint32_t *at = index_at(ch->parked, i);
		const uint64_t *page;
		unsigned k, of;

		if (!at || !*at)
			continue;
		n++;
		page = owner_pages(slot_owner(v, *at), &of);
		for (k = 0; k < of && (owner_index(page[k]) != ch->parked || (page[k] & OWNER_PAGE) != i); k++)
			;
		bug_on(k == of);
	}
	bug_on(n != ch->parked->n);
	for (unsigned k = 0; k < ARRAY_LEN(ch->parked->leaf); k++) {
		const struct parked_leaf *leaf = ch->parked->leaf[k];

		bug_on(leaf && leaf->n == 0);
		n -= leaf ? leaf->n : 0;
	}
	bug_on(n != 0);
	pthread_mutex_unlock(&v->lock);
}
