/* report.c - the cache's status, residency of files, and a checker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/counters.h"
#include "base/latency.h"
#include "base/util.h"
#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/coherence.h"
#include "pagecache/dedup.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/grant.h"
#include "pagecache/home.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/shares.h"
#include "pagecache/state.h"
#include "pagecache/victim.h"
#include "pagecache/view.h"

/* As clients number devices. */
static int index_of(const struct cache_device *dev)
{
	return dev->home ? -1 : (int)dev->number;
}

static json_t *device_json(struct cache *c, unsigned number)
{
	struct cache_device *dev = cache_device_find(c, number);
	struct cache_device_use use;
	uint64_t held;

	if (!dev)
		return json_null();
	pthread_mutex_lock(&dev->reserve);
	held = device_held_idle(dev);
	cache_device(c, number, &use);
	pthread_mutex_unlock(&dev->reserve);
	return json_pack("{s:i, s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "index", index_of(dev),
			 "name", use.dev->name, "kind", use.dev->kind, "simulated",
			 use.dev->simulated, "gone", (int)atomic_load(&dev->gone), "capacity",
			 (json_int_t)use.capacity, "used", (json_int_t)use.used,
			 "pinned", (json_int_t)(use.pinned + held * GAIA_CHUNK), "each_user_bytes",
			 (json_int_t)use.each_user, "pinned_files_bytes", (json_int_t)use.files, "pin_share_bytes",
			 (json_int_t)use.files_most, "pin_each_user_bytes", (json_int_t)use.files_each_user,
			 "cache_bytes", (json_int_t)victim_bytes(dev), "in_bytes", (json_int_t)__atomic_load_n(&use.dev->core->bytes_in, __ATOMIC_RELAXED), "out_bytes",
			 (json_int_t)__atomic_load_n(&use.dev->core->bytes_out, __ATOMIC_RELAXED));
}

static json_t *devices_json(struct cache *c)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < cache_devices(c); i++)
		json_array_append_new(list, device_json(c, i));
	return list;
}

static json_t *races_json(struct cache *c)
{
	json_t *list = json_array();
	uint64_t first;

	pthread_mutex_lock(&c->lock);
	first = c->n_races > RACES_KEPT ? c->n_races - RACES_KEPT : 0;
	for (uint64_t k = first; k < c->n_races; k++) {
		struct race *r = &c->race[k % RACES_KEPT];

		json_array_append_new(list, json_pack("{s:I, s:I, s:i}", "file", (json_int_t)r->file,
						      "offset", (json_int_t)r->off, "owner",
						      (int)r->owner));
	}
	pthread_mutex_unlock(&c->lock);
	return list;
}

void cache_unstored(struct cache *c, uint64_t *home, uint64_t *devices)
{
	*home = atomic_load(&c->n_dirty) * GAIA_PAGE;
	*devices = atomic_load(&c->n_ahead) * GAIA_PAGE;
}

static json_t *tier_json(const char *name, uint64_t pages, uint64_t all, const struct read_cost *cost)
{
	return json_pack("{s:s, s:I, s:I, s:I, s:I}", "tier", name, "pages", (json_int_t)pages, "permille",
			 (json_int_t)(all ? pages * 1000 / all : 0), "page_ns", (json_int_t)(cost ? read_cost_ns(cost, 1, 1) : 0),
			 "batch_page_ns", (json_int_t)(cost ? read_cost_ns(cost, READ_BATCH, 1) / READ_BATCH : 0));
}

/*
 * The best device's that has been read from: what is guessed of others, as of the host, may be less than any device takes. If none has been, a guess.
 * @parks: of those that may have parked pages. NULL: there is none.
 */
static const struct read_cost *best_cost(struct cache *c, bool parks)
{
	const struct read_cost *best = NULL;
	bool best_known = false;

	for (unsigned i = 0; i < c->n_devices; i++) {
		const struct read_cost *cost = &c->dev[i].read_cost;
		bool known = atomic_load_explicit(&cost->samples[0], memory_order_relaxed) > 0;

		if (device_usable(&c->dev[i]) || (parks && !c->dev[i].victims))
			continue;
		if (!best || known > best_known || (known == best_known && read_cost_ns(cost, 1, 1) < read_cost_ns(best, 1, 1))) {
			best = cost;
			best_known = known;
		}
	}
	return best;
}

/* Where pages were found that somebody needed at home, and what a page from there takes by now: alone, and in a batch. */
static json_t *tiers_json(struct cache *c)
{
	uint64_t home = counter_value(CTR_home_hits), parked = counter_value(CTR_victim_hits);
	uint64_t device = counter_value(CTR_device_reads), store = counter_value(CTR_storage_reads);
	uint64_t replicas = device > parked ? device - parked : 0, all = home + parked + replicas + store;
	const struct read_cost *cost = best_cost(c, false);

	return json_pack("[o, o, o, o]", tier_json("home", home, all, NULL), tier_json("parked on devices", parked, all, best_cost(c, true)),
			 tier_json("replicas on devices", replicas, all, cost), tier_json("storage", store, all, &c->store_cost));
}

static json_t *latency_json(enum latency l, const struct latency_values *v, uint64_t n)
{
	json_t *buckets = json_object();
	char bound[24];

	for (unsigned k = 0; k < LATENCY_BUCKETS; k++) {
		if (v->bucket[k] == 0)
			continue;
		snprintf(bound, sizeof(bound), "%llu", (unsigned long long)latency_bound_ns(k));
		json_object_set_new(buckets, bound, json_integer((json_int_t)v->bucket[k]));
	}
	return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "of", latency_of(l), "kind", latency_name(l), "count", (json_int_t)n,
			 "mean_ns", (json_int_t)(v->sum_ns / n), "p50_ns", (json_int_t)latency_percentile(v, 5000), "p99_ns",
			 (json_int_t)latency_percentile(v, 9900), "p999_ns", (json_int_t)latency_percentile(v, 9990), "below_ns", buckets);
}

/* Of each kind that there has been. */
static json_t *latencies_json(void)
{
	json_t *list = json_array();
	struct latency_values v;

	for (enum latency l = 0; l < LATENCY_COUNT; l++) {
		uint64_t n;

		latency_read(l, &v);
		n = latency_number(&v);
		if (n > 0)
			json_array_append_new(list, latency_json(l, &v, n));
	}
	return list;
}

json_t *cache_status_json(struct cache *c)
{
	json_t *counts = json_object();
	uint64_t files, home, devices;

	for (unsigned k = 0; k < CTR_COUNT; k++)
		json_object_set_new(counts, counter_name(k), json_integer((json_int_t)counter_value(k)));
	pthread_mutex_lock(&c->lock);
	files = HASH_COUNT(c->files);
	pthread_mutex_unlock(&c->lock);
	cache_unstored(c, &home, &devices);
	return json_pack("{s:I, s:I, s:o, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:I}, s:o, s:o, s:o, s:o, s:o}", "dirty_bytes",
			 (json_int_t)(home + devices), "only_on_devices_bytes", (json_int_t)devices, "devices", devices_json(c),
			 "host", device_json(c, GAIA_HOST), "home", "budget", (json_int_t)(c->frames.budget * GAIA_PAGE), "used",
			 (json_int_t)(atomic_load(&c->frames.used) * GAIA_PAGE), "dirty",
			 (json_int_t)home, "twins",
			 (json_int_t)(atomic_load(&c->n_kept) * GAIA_PAGE), "twins_limit",
			 (json_int_t)(c->frames.budget / KEPT_SHARE * GAIA_PAGE), "files",
			 (json_int_t)files, "dedup", dedup_json(c), "tiers", tiers_json(c), "latencies", latencies_json(), "counters", counts,
			 "races", races_json(c));
}

/* ---- residency ---- */

struct totals {
	uint64_t home, dirty, twinned, parked;
};

#define MAP_PAGES 8u /* that a character of a map is for */

/* How many of each of these pages there are: "O" all (that lie in the file), "o" some, " " none. */
static void map_text(const struct chunk *ch, const uint8_t *there, char out[static GAIA_CHUNK_PAGES / MAP_PAGES + 1])
{
	for (unsigned k = 0; k < GAIA_CHUNK_PAGES / MAP_PAGES; k++) {
		unsigned n = 0, all = 0;

		for (unsigned i = k * MAP_PAGES; i < (k + 1) * MAP_PAGES; i++) {
			n += there[i];
			all += there[i] || page_limit(ch, i) > 0;
		}
		out[k] = n == 0 ? ' ' : n == all ? 'O' : 'o';
	}
	out[GAIA_CHUNK_PAGES / MAP_PAGES] = '\0';
}

static json_t *replica_json(struct chunk *ch, struct replica *rep)
{
	char map[GAIA_CHUNK_PAGES / MAP_PAGES + 1];
	uint8_t there[GAIA_CHUNK_PAGES] = { 0 };
	unsigned present = 0, current = 0, stale = 0, ahead = 0, writable = 0, secured = 0, pins;

	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		struct page_replica *r = &rep->page[i];

		ahead += !!(r->flags & REPLICA_AHEAD);
		secured += !!(r->flags & REPLICA_SNAPPED);
		writable += r->written;
		if (!(r->flags & REPLICA_PRESENT))
			continue;
		present++;
		/* What is in view is home's, whatever it was when that was last looked at. */
		there[i] = r->seen == ch->track->page[i].home_id || replica_is_view(rep);
		current += there[i];
		stale += !there[i];
	}
	map_text(ch, there, map);
	pthread_mutex_lock(&rep->dev->lock);
	pins = replica_unit(rep)->pins;
	pthread_mutex_unlock(&rep->dev->lock);
	return json_pack("{s:i, s:s, s:b, s:b, s:b, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s}", "device",
			 index_of(rep->dev), "name", rep->dev->dev->name, "simulated",
			 rep->dev->dev->simulated, "private", rep->only && !replica_is_view(rep), "view", replica_is_view(rep), "present", (int)present, "current", (int)current,
			 "stale", (int)stale, "released", (int)ahead, "writable", (int)writable,
			 "secured", (int)secured, "pins", (int)pins, "map", map);
}

static json_t *chunk_json(struct chunk *ch, struct totals *sum)
{
	json_t *replicas = json_array();
	char map[GAIA_CHUNK_PAGES / MAP_PAGES + 1];
	uint8_t there[GAIA_CHUNK_PAGES];
	unsigned kernel = 0, pending = 0, twinned = 0, parked;

	pthread_mutex_lock(&ch->lock);
	chunk_unready(ch);
	for (unsigned k = 0; k < ch->n_replicas; k++)
		json_array_append_new(replicas, replica_json(ch, ch->replica[k]));
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES && ch->track; i++) {
		kernel += page_limit(ch, i) > 0 && ch->track->page[i].may_hold;
		pending += ch->track->page[i].pending > 0;
	}
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		there[i] = page_present(ch, i);
	map_text(ch, there, map);
	if (ch->track)
		twinned = HASH_COUNT(ch->track->extra);
	parked = victim_count(ch);
	sum->parked += parked;
	sum->home += ch->n_frames;
	sum->dirty += ch->n_dirty;
	sum->twinned += twinned;
	json_t *out = json_pack("{s:I, s:i, s:i, s:i, s:i, s:b, s:i, s:i, s:s, s:o}", "chunk",
				(json_int_t)ch->index, "home", (int)ch->n_frames, "victim", (int)parked, "dirty",
				(int)ch->n_dirty, "twinned", (int)twinned, "tracked",
				ch->track != NULL, "kernel_may_hold", (int)kernel,
				"invalidating", (int)pending, "map", map, "devices", replicas);
	pthread_mutex_unlock(&ch->lock);
	return out;
}

json_t *cfile_residency_json(struct cfile *f)
{
	json_t *chunks = json_array();
	struct totals sum = { .home = 0 };
	uint64_t ahead = atomic_load(&f->n_ahead);
	struct chunk **list;
	unsigned n = chunk_list_get(f, 0, UINT64_MAX, &list);

	for (unsigned k = 0; k < n; k++) {
		json_array_append_new(chunks, chunk_json(list[k], &sum));
		chunk_put(list[k]);
	}
	free(list);
	return json_pack("{s:I, s:I, s:i, s:i, s:b, s:I, s:I, s:I, s:I, s:I, s:o}", "size",
			 (json_int_t)cfile_size(f), "pages",
			 (json_int_t)((cfile_size(f) + GAIA_PAGE - 1) / GAIA_PAGE), "page_bytes",
			 (int)GAIA_PAGE, "chunk_bytes", (int)GAIA_CHUNK, "passthrough",
			 cfile_is_passthrough(f), "home",
			 (json_int_t)sum.home, "victim_bytes", (json_int_t)(sum.parked * GAIA_PAGE), "dirty", (json_int_t)(sum.dirty + ahead), "twinned",
			 (json_int_t)sum.twinned, "released",
			 (json_int_t)ahead, "chunks", chunks);
}

void cfile_where(struct cfile *f, bool names, char *text, size_t size)
{
	uint64_t home = 0, chunks[CACHE_MAX_DEVICES + 1] = { 0 };
	struct chunk **list;
	unsigned n = chunk_list_get(f, 0, UINT64_MAX, &list);
	size_t length = 0;

	for (unsigned k = 0; k < n; k++) {
		pthread_mutex_lock(&list[k]->lock);
		home += list[k]->n_frames;
		for (unsigned r = 0; r < list[k]->n_replicas; r++)
			chunks[list[k]->replica[r]->dev->index] += replica_has_memory(list[k]->replica[r]);
		pthread_mutex_unlock(&list[k]->lock);
		chunk_put(list[k]);
	}
	free(list);
	*text = '\0';
	if (!names)
		length = (size_t)snprintf(text, size, "home=%llu", (unsigned long long)(home * GAIA_PAGE));
	for (unsigned i = 0; i < f->cache->n_devices && length < size; i++)
		if (chunks[i] && names)
			length += (size_t)snprintf(text + length, size - length, "%s%s", length ? " " : "", f->cache->dev[i].dev->name);
		else if (chunks[i])
			length += (size_t)snprintf(text + length, size - length, " %s=%llu", f->cache->dev[i].dev->name,
						   (unsigned long long)(chunks[i] * GAIA_CHUNK));
}

uint64_t cfile_dirty_bytes(struct cfile *f)
{
	return (atomic_load(&f->n_dirty) + atomic_load(&f->n_ahead)) * GAIA_PAGE;
}

/* ---- checking ---- */

/* The table of state and invariant of track.h, tested. */
static void check_replica_page(struct chunk *ch, struct replica *rep, unsigned i, unsigned writers)
{
	struct page_replica *r = &rep->page[i];

	bug_on(replica_writers(rep, i) != writers || (writers > 0) != r->written);
	bug_on(r->left && !r->written);
	bug_on((r->flags & REPLICA_SNAPPED) && !(r->flags & REPLICA_AHEAD));
	bug_on((r->flags & REPLICA_SNAPPED) && !rep->shadow);
	bug_on((r->flags & REPLICA_ZEROS) && (r->flags != REPLICA_ZEROS || r->written));
	bug_on((r->flags & REPLICA_WHOLE) && !(r->flags & REPLICA_AHEAD));
	bug_on((r->flags & REPLICA_FRESH) && ((r->flags & ~REPLICA_REMOVED) != (REPLICA_FRESH | REPLICA_PRESENT) || !r->written || r->seen));
	bug_on(r->cut > GAIA_PAGE);
	/* Beyond the end of the file there is only what is void. */
	bug_on(page_limit(ch, i) == 0 && (r->flags & REPLICA_PRESENT) && (r->cut > 0 || !r->written));
	/* The store may change without our noticing. */
	bug_on(home_lacks_base(ch, i) && page_limit(ch, i) > 0 && !atomic_load(&rep->dev->gone) && home_base_needed(ch, i));
	/* The base of what is to be merged exists, except if the device is gone: then nothing is merged. */
	if (!atomic_load(&rep->dev->gone) && ((r->flags & REPLICA_AHEAD) || r->written) && r->cut > 0 &&
	    !(r->flags & REPLICA_FRESH) && r->seen != ch->track->page[i].home_id)
		(void)base_bytes(ch, i, r->seen);
}

/* What of the view is not in view is zeros. */
static void check_view(struct chunk *ch, struct replica *rep)
{
	static const char zeros[GAIA_PAGE];
	struct frames *fr = &ch->file->cache->frames;

	bug_on(rep->lent != ch->lent);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		bug_on(page_in_view(ch, i) != !!(rep->page[i].flags & REPLICA_PRESENT));
		bug_on(!page_in_view(ch, i) && memcmp(frame_ptr(fr, rep->lent + i), zeros, GAIA_PAGE) != 0);
		bug_on(rep->page[i].written || (rep->page[i].flags & ~(REPLICA_PRESENT | REPLICA_ZEROS)));
	}
}

static void check_replica(struct chunk *ch, struct replica *rep, uint64_t *ahead)
{
	uint64_t over[GAIA_CHUNK_PAGES / 64] = { 0 };
	unsigned snapped = 0, suspects = 0, writers[GAIA_CHUNK_PAGES] = { 0 };
	struct grant *g;

	LIST_FOREACH(g, &rep->grants, of_replica) {
		uint64_t held[GAIA_CHUNK_PAGES / 64] = { 0 }, writing[GAIA_CHUNK_PAGES / 64] = { 0 };

		grant_held(g, 0, GAIA_CHUNK_PAGES, HELD, held);
		grant_held(g, 0, GAIA_CHUNK_PAGES, HELD_WRITING, writing);
		grant_held(g, 0, GAIA_CHUNK_PAGES, HELD_OVERWRITING, over);
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
			writers[i] += bit_test(writing, i);
		bug_on(g->pinned != (bits_count(held, ARRAY_LEN(held)) + g->to_come > 0));
		suspects += g->suspect;
	}
	bug_on(suspects != rep->n_suspects);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		check_replica_page(ch, rep, i, writers[i]);
		/* Somebody will release it as a whole. */
		bug_on(replica_is_fresh(rep, i) && !bit_test(over, i));
		*ahead += !!(rep->page[i].flags & REPLICA_AHEAD);
		snapped += !!(rep->page[i].flags & REPLICA_SNAPPED);
	}
	bug_on(snapped != rep->n_snapped);
	replica_check_index(rep);
	if (replica_is_view(rep))
		check_view(ch, rep);
	bug_on(rep->n_shadow_users != 0 || (rep->shadow && !snapped));
}

/* @owners: for each frame how many have it. */
static void check_chunk(struct chunk *ch, uint32_t *owners, uint64_t *frames, uint64_t *dirty, uint64_t *ahead)
{
	unsigned n_frames = 0, n_dirty = 0, n_stored = 0, n_viewed = 0;
	uint64_t ahead_before = *ahead;

	pthread_mutex_lock(&ch->lock);
	ready_check(ch);
	chunk_unready(ch);
	victim_check_chunk(ch);
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		struct page *p = page_at(ch, i);

		if (!p)
			continue;
		bug_on(p->readers || (p->flags & (PAGE_LOCKED | PAGE_SHARERS_TURN | PAGE_STORING | PAGE_RENEWED)));
		bug_on(p->lockers || p->sharers);
		bug_on((p->flags & (PAGE_DIRTY | PAGE_STORED)) && !p->frame);
		bug_on((p->flags & PAGE_DIRTY) && (p->flags & PAGE_STORED));
		bug_on(p->flags & PAGE_SYNCING);
		n_frames += p->frame != 0;
		owners[p->frame]++;
		bug_on(p->indexed != (p->frame && shares_indexed(&ch->file->cache->frames, p->frame)));
		n_viewed += page_in_view(ch, i);
		n_dirty += !!(p->flags & PAGE_DIRTY);
		n_stored += !!(p->flags & PAGE_STORED);
	}
	bug_on(ch->n_locked || ch->n_shared || ch->n_storing);
	bug_on(n_frames != ch->n_frames || n_dirty != ch->n_dirty || n_stored != ch->n_stored);
	bug_on(n_frames > 0 && !(ch->lists & CHUNK_LRU));
	bug_on(n_dirty > 0 && !(ch->lists & CHUNK_DIRTY));
	bug_on(ch->n_ahead > 0 && !(ch->lists & CHUNK_AHEAD));
	bug_on(ch->n_replicas > 0 && !ch->track);
	for (unsigned k = 0; k < ch->n_replicas; k++)
		check_replica(ch, ch->replica[k], ahead);
	bug_on(*ahead - ahead_before != ch->n_ahead);
	bug_on(ch->unsynced != (n_dirty || n_stored || ch->n_ahead));
	for (struct page_extra *x = ch->track ? ch->track->extra : NULL; x; x = x->hh.next) {
		for (struct twin *tw = x->twins; tw; tw = tw->next) {
			owners[tw->frame]++;
			n_frames++;
		}
		n_frames += (x->under != 0) + (x->owners != 0);
		/* It stands for what has to be put, or for what was fetched in vain. */
		bug_on(x->under && !page_present(ch, x->page));
	}
	*frames += n_frames - n_viewed;
	*dirty += n_dirty;
	pthread_mutex_unlock(&ch->lock);
}

void cache_check(struct cache *c)
{
	uint32_t *owners = xcalloc(c->frames.room * GAIA_CHUNK_PAGES + 1, sizeof(*owners));
	uint64_t frames = 0, dirty = 0, all_ahead = 0;

	/* The caller says that nothing else runs, but cannot know about these workers, nor about the flusher. */
	for (unsigned i = 0; i < c->n_devices; i++) {
		struct cache_device *dev = &c->dev[i];

		pthread_mutex_lock(&dev->lock);
		while (dev->late > 0)
			pthread_cond_wait(&dev->changed, &dev->lock);
		pthread_mutex_unlock(&dev->lock);
	}
	pthread_rwlock_wrlock(&c->round);
	victims_check(c);
	for (unsigned i = 0; i < c->n_devices; i++)
		device_check_ready(&c->dev[i]);
	for (struct cfile *f = c->files, *next; f; f = next) {
		uint64_t file_dirty = 0, ahead = 0;
		struct chunk **list;
		unsigned n;

		cfile_use(f);
		n = chunk_list_get(f, 0, UINT64_MAX, &list);
		for (unsigned k = 0; k < n; k++) {
			check_chunk(list[k], owners, &frames, &file_dirty, &ahead);
			chunk_put(list[k]);
		}
		free(list);
		bug_on(file_dirty != atomic_load(&f->n_dirty));
		bug_on(ahead != atomic_load(&f->n_ahead));
		dirty += file_dirty;
		all_ahead += ahead;
		next = f->hh.next;
		cfile_unuse(f);
	}
	bug_on(dirty != atomic_load(&c->n_dirty));
	bug_on(all_ahead != atomic_load(&c->n_ahead));
	/* All of the host's memory counts, with all pages that are in view. */
	bug_on((c->local ? c->local->used / GAIA_PAGE - c->local->n_stranded * GAIA_CHUNK_PAGES : 0) != atomic_load(&c->frames.reserved));
	frames -= shares_check(&c->frames, owners);
	free(owners);
	bug_on(frames + atomic_load(&c->frames.reserved) != atomic_load(&c->frames.used));
	for (unsigned i = 0; i < c->n_devices; i++) {
		struct replica *rep;
		uint64_t pinned = c->dev[i].n_stranded * GAIA_CHUNK;

		TAILQ_FOREACH(rep, &c->dev[i].busy, link)
			pinned += unit_bytes(rep);
		bug_on(pinned != c->dev[i].pinned);
		bug_on(c->dev[i].promised || c->dev[i].later || c->dev[i].leaving);
		/* Nothing is ready any more. */
		bug_on(c->dev[i].n_idle_ready);
	}
	pthread_rwlock_unlock(&c->round);
}
