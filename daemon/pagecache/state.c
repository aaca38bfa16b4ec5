/* state.c - see state.h. */
#include <stdlib.h>
#include <string.h>

#include "pagecache/state.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/home.h"
#include "pagecache/passthrough.h"
#include "pagecache/root.h"
#include "pagecache/state_inner.h"
#include "pagecache/view.h"

/* ---- tracking ---- */

void track_make(struct chunk *ch)
{
	if (ch->track)
		return;
	ch->track = xcalloc(1, sizeof(*ch->track));
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		track_init(&ch->track->page[i]);
		/* Of a passthrough file the kernel has nothing of ours: the open has made sure of that. */
		ch->track->page[i].may_hold = !cfile_is_passthrough(ch->file);
	}
}

void track_maybe_free(struct chunk *ch)
{
	if (!ch->track || ch->n_replicas > 0)
		return;
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		if (ch->track->page[i].pending > 0)
			return;
	/* Something was merged, but not put yet. */
	if (ch->track->extra && cfile_is_passthrough(ch->file))
		return;
	bug_on(ch->track->extra != NULL);
	free(ch->track);
	ch->track = NULL;
}

struct page_view state_view(const struct chunk *ch, unsigned i, struct page_replica **buf)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		buf[k] = &ch->replica[k]->page[i];
	return (struct page_view){ &ch->track->page[i], buf, ch->n_replicas };
}

/* ---- the index of what is stale ---- */

void state_touched(struct chunk *ch, unsigned i)
{
	for (unsigned k = 0; k < ch->n_replicas; k++) {
		bit_set(ch->replica[k]->stale, i);
		bit_set(ch->replica[k]->unready, i);
	}
}

void replica_made(struct replica *rep)
{
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		rep->page[i].cut = GAIA_PAGE;
		rep->page[i].flags = replica_is_view(rep) ? REPLICA_ZEROS : 0;
	}
	memset(rep->stale, 0xff, sizeof(rep->stale));
	memset(rep->unready, 0xff, sizeof(rep->unready));
}

bool replica_is_current(const struct replica *rep, unsigned a, unsigned b, bool write)
{
	return bits_first(rep->stale, a, b) == b && (!write || bits_first(rep->unready, a, b) == b);
}

void replica_not_current(const struct replica *rep, unsigned a, unsigned b, bool write, uint64_t *bits)
{
	for (unsigned k = a / 64; k * 64 < b; k++) {
		uint64_t word = rep->stale[k] | (write ? rep->unready[k] : 0);

		if (a > k * 64)
			word &= ~0ull << (a - k * 64);
		if (b < (k + 1) * 64)
			word &= ~0ull >> ((k + 1) * 64 - b);
		bits[k] |= word;
	}
}

/*
 * By the full look, what costs least first: what the index must not contradict. What is fresh has no base: who is to write it overwrites it,
 * too, and has to be marked for that.
 */
static bool is_current(struct replica *rep, unsigned i, bool write)
{
	return (!write || rep->n_undetecting == 0 || (rep->page[i].flags & REPLICA_ARMED)) && !replica_hides(rep, i) &&
	       !(write && (replica_is_fresh(rep, i) || home_lacks_base(rep->chunk, i))) &&
	       replica_step(rep, i, write) == TRACK_NOTHING && page_limit(rep->chunk, i) > 0;
}

void replica_acquired(struct replica *rep, unsigned a, unsigned b)
{
	unsigned i;

	for (i = a; (i = bits_first(rep->stale, i, b)) < b; i++)
		if (is_current(rep, i, false))
			bit_clear(rep->stale, i);
	for (i = a; (i = bits_first(rep->unready, i, b)) < b; i++)
		if (is_current(rep, i, true))
			bit_clear(rep->unready, i);
}

void replica_granted(struct replica *rep, bool detects)
{
	if (detects || rep->n_undetecting++ > 0)
		return;
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		if (!(rep->page[i].flags & REPLICA_ARMED))
			bit_set(rep->unready, i);
}

void replica_grant_ended(struct replica *rep, bool detects)
{
	rep->n_undetecting -= !detects;
}

void page_disarm(struct chunk *ch, unsigned i)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (!bit_test(ch->replica[k]->unready, i))
			replica_disarmed(ch->replica[k], i);
}

bool replica_hides_any(const struct replica *rep, unsigned a, unsigned b)
{
	/* What is current hides nothing. */
	for (unsigned i = a; (i = bits_first(rep->stale, i, b)) < b; i++)
		if (replica_hides(rep, i))
			return true;
	return false;
}

void replica_check_index(struct replica *rep)
{
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		bug_on(!bit_test(rep->stale, i) && !is_current(rep, i, false));
		bug_on(!bit_test(rep->unready, i) && !is_current(rep, i, true));
		bug_on(rep->page[i].alone && (replica_writers(rep, i) != 1 || !replica_has_base(rep, i) || rep->page[i].cut < GAIA_PAGE));
	}
}

/* ---- what is kept of few pages ---- */

static struct page_extra *extra_find(const struct chunk *ch, unsigned i)
{
	struct page_extra *x = NULL;

	if (ch->track)
		HASH_FIND(hh, ch->track->extra, &i, sizeof(i), x);
	return x;
}

static struct page_extra *extra_make(struct chunk *ch, unsigned i)
{
	struct page_extra *x = extra_find(ch, i);

	if (!x) {
		x = xcalloc(1, sizeof(*x));
		x->page = i;
		HASH_ADD(hh, ch->track->extra, page, sizeof(x->page), x);
	}
	return x;
}

static void extra_maybe_free(struct chunk *ch, struct page_extra *x)
{
	if (x->twins || x->owners || x->under)
		return;
	HASH_DEL(ch->track->extra, x);
	free(x);
}

/* Give back a frame that is not kept for merges any more. */
static void kept_give(struct chunk *ch, frame_t *frame)
{
	struct cache *c = ch->file->cache;

	frames_give(&c->frames, frame, 1);
	*frame = 0;
	atomic_fetch_sub(&c->n_kept, 1);
}

void twin_add(struct chunk *ch, unsigned i, track_id id, frame_t frame)
{
	struct page_extra *x = extra_make(ch, i);
	struct twin *tw = xmalloc(sizeof(*tw));

	*tw = (struct twin){ x->twins, id, frame };
	x->twins = tw;
	atomic_fetch_add(&ch->file->cache->n_kept, 1);
	count(CTR_twins, 1);
}

bool state_is_outstanding(const struct page_replica *r)
{
	return r->written || (r->flags & REPLICA_AHEAD);
}

bool state_is_behind(const struct page_track *t, const struct page_replica *r)
{
	return state_is_outstanding(r) && r->seen != 0 && r->seen != t->home_id;
}

void twins_collect(struct chunk *ch, unsigned i)
{
	struct page_replica *buf[CACHE_MAX_REPLICAS];
	struct page_extra *x = extra_find(ch, i);
	struct twin **at, *tw;
	struct page_view v;
	bool behind = false;

	if (!x)
		return;
	v = state_view(ch, i, buf);
	for (at = &x->twins; (tw = *at);) {
		if (track_base_needed(&v, tw->id)) {
			at = &tw->next;
			continue;
		}
		*at = tw->next;
		kept_give(ch, &tw->frame);
		free(tw);
	}
	/* Who wrote home's bytes matters only for merges with an older base. */
	for (unsigned k = 0; k < v.n; k++)
		behind |= state_is_behind(v.t, v.r[k]);
	if (!behind && x->owners)
		kept_give(ch, &x->owners);
	extra_maybe_free(ch, x);
}

uint8_t *page_owners(struct chunk *ch, unsigned i)
{
	struct page_extra *x = extra_find(ch, i);

	return x && x->owners ? frame_ptr(&ch->file->cache->frames, x->owners) : NULL;
}

uint8_t *page_owners_make(struct chunk *ch, unsigned i, frame_t *spare)
{
	struct page_extra *x = extra_make(ch, i);

	if (!x->owners) {
		x->owners = *spare;
		*spare = 0;
		memset(page_owners(ch, i), 0, GAIA_PAGE);
		atomic_fetch_add(&ch->file->cache->n_kept, 1);
	}
	return page_owners(ch, i);
}

char *under_bytes(struct chunk *ch, unsigned i)
{
	struct page_extra *x = extra_find(ch, i);

	return x && x->under ? frame_ptr(&ch->file->cache->frames, x->under) : NULL;
}

void under_keep(struct chunk *ch, unsigned i, frame_t frame)
{
	extra_make(ch, i)->under = frame;
	atomic_fetch_add(&ch->file->cache->n_kept, 1);
}

void under_drop(struct chunk *ch, unsigned i)
{
	struct page_extra *x = extra_find(ch, i);

	if (!x || !x->under)
		return;
	kept_give(ch, &x->under);
	extra_maybe_free(ch, x);
}

const void *base_bytes(struct chunk *ch, unsigned i, track_id id)
{
	struct page_extra *x;

	if (id == ch->track->page[i].home_id || fault_point("break.drop_twin"))
		return page_ptr(ch, i);
	x = extra_find(ch, i);
	for (struct twin *tw = x ? x->twins : NULL; tw; tw = tw->next)
		if (tw->id == id)
			return frame_ptr(&ch->file->cache->frames, tw->frame);
	bug("file %#lx chunk %lu page %u: base %u is nowhere", (unsigned long)ch->file->key,
	    (unsigned long)ch->index, i, id);
}

/* ---- home ---- */

bool home_base_needed(struct chunk *ch, unsigned i)
{
	struct page_replica *buf[CACHE_MAX_REPLICAS];
	struct page_view v = state_view(ch, i, buf);

	return track_base_needed(&v, v.t->home_id) || kernel_is_behind(ch, i);
}

bool home_may_leave(struct chunk *ch, unsigned i)
{
	struct page_replica *buf[CACHE_MAX_REPLICAS];
	struct page_view v;

	if (!ch->track || !cfile_is_passthrough(ch->file))
		return true;
	v = state_view(ch, i, buf);
	if (track_ahead(&v) || track_base_needed(&v, v.t->home_id) || under_bytes(ch, i))
		return false;
	if (passthrough_is_trusted(ch->file)) {
		ch->lacks_bases = true;
		for (unsigned k = 0; k < ch->n_replicas; k++)
			bit_set(ch->replica[k]->unready, i);
		return true;
	}
	/* The store may have something else when it is read next. */
	track_home_changed(&v);
	state_touched(ch, i);
	return true;
}

void home_distrust(struct chunk *ch, unsigned i)
{
	struct page_replica *buf[CACHE_MAX_REPLICAS];
	struct page_view v = state_view(ch, i, buf);

	bug_on(track_ahead(&v) || track_base_needed(&v, v.t->home_id));
	track_home_changed(&v);
	state_touched(ch, i);
}

bool home_lacks_base(const struct chunk *ch, unsigned i)
{
	return cfile_is_passthrough(ch->file) && !page_present(ch, i);
}

void home_change(struct chunk *ch, unsigned i, bool present, frame_t *spare)
{
	struct page_replica *buf[CACHE_MAX_REPLICAS];
	struct page_view v = state_view(ch, i, buf);

	if (track_base_needed(&v, v.t->home_id)) {
		bug_on(!present || !*spare);
		memcpy(frame_ptr(&ch->file->cache->frames, *spare), page_ptr(ch, i), GAIA_PAGE);
		twin_add(ch, i, v.t->home_id, *spare);
		*spare = 0;
	}
	track_home_changed(&v);
	state_touched(ch, i);
}

void home_replace(struct chunk *ch, unsigned i, frame_t frame)
{
	struct page_replica *buf[CACHE_MAX_REPLICAS];
	struct page_view v = state_view(ch, i, buf);
	frame_t old = page_in_view(ch, i) ? view_page_exchange(ch, i, frame) : page_set_frame(ch, i, frame);

	if (old && track_base_needed(&v, v.t->home_id))
		twin_add(ch, i, v.t->home_id, old);
	else if (old)
		frames_give(&ch->file->cache->frames, &old, 1);
	track_home_changed(&v);
	state_touched(ch, i);
}

void home_void(struct chunk *ch, unsigned i)
{
	struct page_replica *buf[CACHE_MAX_REPLICAS];
	struct page_view v = state_view(ch, i, buf);

	track_home_changed(&v);
	state_touched(ch, i);
	for (unsigned k = 0; k < ch->n_replicas; k++)
		replica_cut(ch->replica[k], i, 0);
	/* The kernel drops its copy itself. But if it thinks that the file has grown again, it gets
	 * zeros for READs beyond our end, and nobody notes that. */
	if (!cfile_is_passthrough(ch->file))
		track_kernel_given(v.t, v.t->home_id);
	twins_collect(ch, i);
}

/* ---- what the kernel has ---- */

void kernel_given(struct chunk *ch, unsigned i)
{
	struct page_track *t = &ch->track->page[i];

	track_kernel_given(t, t->home_id);
	twins_collect(ch, i);
}

void kernel_merged(struct chunk *ch, unsigned i, frame_t frame)
{
	struct page_replica *buf[CACHE_MAX_REPLICAS];
	struct page_view v = state_view(ch, i, buf);

	track_kernel_merged(v.t, track_fresh_id(&v));
	twin_add(ch, i, v.t->kernel_base, frame);
	twins_collect(ch, i);
}

void kernel_kept(struct chunk *ch, unsigned i)
{
	track_kernel_kept(&ch->track->page[i]);
}

bool kernel_is_behind(const struct chunk *ch, unsigned i)
{
	const struct page_track *t = &ch->track->page[i];

	return t->pending > 0 && t->kernel_base != 0 && t->kernel_base != t->home_id;
}

void kernel_base_wrote(struct chunk *ch, unsigned i, track_id before, unsigned off, const void *bytes,
		       unsigned len, frame_t *spare)
{
	struct page_replica *buf[CACHE_MAX_REPLICAS];
	struct page_view v = state_view(ch, i, buf);
	uint8_t *base;

	if (v.t->pending > 0 && v.t->kernel_base == before) {
		v.t->kernel_base = v.t->home_id;
	} else if (kernel_is_behind(ch, i)) {
		base = frame_ptr(&ch->file->cache->frames, *spare);
		memcpy(base, base_bytes(ch, i, v.t->kernel_base), GAIA_PAGE);
		memcpy(base + off, bytes, len);
		v.t->kernel_base = track_fresh_id(&v);
		twin_add(ch, i, v.t->kernel_base, *spare);
		*spare = 0;
	}
	twins_collect(ch, i);
}

uint16_t window_open(struct chunk *ch, unsigned i)
{
	atomic_fetch_add(&ch->file->n_windows, 1);
	return track_window_open(&ch->track->page[i]);
}

bool windows_suffice(const struct chunk *ch, unsigned i)
{
	return track_windows_suffice(&ch->track->page[i]);
}

void window_close(struct chunk *ch, unsigned i, uint16_t opened)
{
	/* Without waiting for a store: home's bytes stay as they are. */
	(void)pages_lock_to_write(ch, i, i + 1);
	track_window_close(&ch->track->page[i], opened);
	twins_collect(ch, i);
	pages_unlock(ch, i, i + 1);
	atomic_fetch_sub(&ch->file->n_windows, 1);
}
