/* state.c - see state.h. */
#include "pagecache/state.h"

#include <stdlib.h>
#include <string.h>

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

/* @buf: room for all replicas of the chunk. */
static struct page_view view(const struct chunk *ch, unsigned i, struct page_replica **buf)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		buf[k] = &ch->replica[k]->page[i];
	return (struct page_view){ &ch->track->page[i], buf, ch->n_replicas };
}

/* ---- the index of what is stale ---- */

/* Something that track_plan() goes by has changed: of the page, or of one of its replicas. */
static void touched(struct chunk *ch, unsigned i)
{
	for (unsigned k = 0; k < ch->n_replicas; k++) {
		bit_set(ch->replica[k]->stale, i);
		bit_set(ch->replica[k]->unready, i);
	}
}

/* The same, of this replica: and what a client finds out about the page is not all that a release has to know. */
static void replica_touched(struct replica *rep, unsigned i)
{
	rep->page[i].alone = false;
	touched(rep->chunk, i);
}

void replica_made(struct replica *rep)
{
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++)
		rep->page[i].cut = GAIA_PAGE;
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

/* By the full look, what costs least first: what the index must not contradict. */
static bool is_current(struct replica *rep, unsigned i, bool write)
{
	return (!write || rep->n_undetecting == 0 || (rep->page[i].flags & REPLICA_ARMED)) && !replica_hides(rep, i) &&
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

static void twin_add(struct chunk *ch, unsigned i, track_id id, frame_t frame)
{
	struct page_extra *x = extra_make(ch, i);
	struct twin *tw = xmalloc(sizeof(*tw));

	*tw = (struct twin){ x->twins, id, frame };
	x->twins = tw;
	atomic_fetch_add(&ch->file->cache->n_kept, 1);
	count(CTR_twins, 1);
}

static bool outstanding(const struct page_replica *r)
{
	return r->written || (r->flags & REPLICA_AHEAD);
}

/* Whether its base is something that home was before. */
static bool is_behind(const struct page_track *t, const struct page_replica *r)
{
	return outstanding(r) && r->seen != 0 && r->seen != t->home_id;
}

/* Drop the twins that nothing needs any more. */
static void twins_collect(struct chunk *ch, unsigned i)
{
	struct page_replica *buf[CACHE_MAX_DEVICES];
	struct page_extra *x = extra_find(ch, i);
	struct twin **at, *tw;
	struct page_view v;
	bool behind = false;

	if (!x)
		return;
	v = view(ch, i, buf);
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
		behind |= is_behind(v.t, v.r[k]);
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
	struct page_replica *buf[CACHE_MAX_DEVICES];
	struct page_view v = view(ch, i, buf);

	return track_base_needed(&v, v.t->home_id) || kernel_is_behind(ch, i);
}

bool home_may_leave(struct chunk *ch, unsigned i)
{
	struct page_replica *buf[CACHE_MAX_DEVICES];
	struct page_view v;

	if (!ch->track || !cfile_is_passthrough(ch->file))
		return true;
	v = view(ch, i, buf);
	if (track_ahead(&v) || track_base_needed(&v, v.t->home_id) || under_bytes(ch, i))
		return false;
	/* The store may have something else when it is read next. */
	track_home_changed(&v);
	touched(ch, i);
	return true;
}

void home_change(struct chunk *ch, unsigned i, bool present, frame_t *spare)
{
	struct page_replica *buf[CACHE_MAX_DEVICES];
	struct page_view v = view(ch, i, buf);

	if (track_base_needed(&v, v.t->home_id)) {
		bug_on(!present || !*spare);
		memcpy(frame_ptr(&ch->file->cache->frames, *spare), page_ptr(ch, i), GAIA_PAGE);
		twin_add(ch, i, v.t->home_id, *spare);
		*spare = 0;
	}
	track_home_changed(&v);
	touched(ch, i);
}

void home_replace(struct chunk *ch, unsigned i, frame_t frame)
{
	struct page_replica *buf[CACHE_MAX_DEVICES];
	struct page_view v = view(ch, i, buf);
	frame_t old = page_set_frame(ch, i, frame);

	if (old && track_base_needed(&v, v.t->home_id))
		twin_add(ch, i, v.t->home_id, old);
	else if (old)
		frames_give(&ch->file->cache->frames, &old, 1);
	track_home_changed(&v);
	touched(ch, i);
}

void home_void(struct chunk *ch, unsigned i)
{
	struct page_replica *buf[CACHE_MAX_DEVICES];
	struct page_view v = view(ch, i, buf);

	track_home_changed(&v);
	touched(ch, i);
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
	struct page_replica *buf[CACHE_MAX_DEVICES];
	struct page_view v = view(ch, i, buf);

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
	struct page_replica *buf[CACHE_MAX_DEVICES];
	struct page_view v = view(ch, i, buf);
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

/* ---- a replica's page ---- */

bool others_outstanding(const struct chunk *ch, unsigned i, const struct replica *self)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (ch->replica[k] != self && outstanding(&ch->replica[k]->page[i]))
			return true;
	return false;
}

bool replica_is_home(const struct replica *rep, unsigned i)
{
	return track_is_home(&rep->chunk->track->page[i], &rep->page[i]);
}

bool replica_is_behind(const struct replica *rep, unsigned i)
{
	return is_behind(&rep->chunk->track->page[i], &rep->page[i]);
}

void replica_forget_base(struct replica *rep, unsigned i)
{
	rep->page[i].seen = 0;
	replica_touched(rep, i);
	twins_collect(rep->chunk, i);
}

bool replica_has(const struct replica *rep, unsigned i)
{
	uint8_t released = rep->page[i].flags & (REPLICA_AHEAD | REPLICA_SNAPPED);

	return replica_is_home(rep, i) || released == REPLICA_AHEAD;
}

bool replica_alone_has(const struct replica *rep, unsigned i)
{
	const struct page_replica *r = &rep->page[i];

	for (unsigned k = 0; k < rep->chunk->n_replicas; k++)
		if (rep->chunk->replica[k] != rep && replica_ahead(rep->chunk->replica[k], i))
			return false;
	return (r->flags & (REPLICA_AHEAD | REPLICA_SNAPPED)) == REPLICA_AHEAD && r->seen == rep->chunk->track->page[i].home_id;
}

static unsigned position(const struct replica *rep)
{
	unsigned self = 0;

	while (rep->chunk->replica[self] != rep)
		self++;
	return self;
}

/* The plan for a page that will be overwritten. What is lost with its device does not matter to who does so. */
static enum track_step plan_overwrite(struct replica *rep, unsigned i, bool held)
{
	struct page_replica *buf[CACHE_MAX_DEVICES];
	const struct chunk *ch = rep->chunk;
	struct page_view v = { &ch->track->page[i], buf, 0 };
	unsigned self = 0;

	for (unsigned k = 0; k < ch->n_replicas; k++) {
		if (ch->replica[k] == rep)
			self = v.n;
		else if (atomic_load(&ch->replica[k]->dev->gone))
			continue;
		buf[v.n++] = &ch->replica[k]->page[i];
	}
	return track_plan_overwrite(&v, self, held);
}

enum track_step replica_step(struct replica *rep, unsigned i, bool write)
{
	struct page_replica *buf[CACHE_MAX_DEVICES];
	struct page_view v = view(rep->chunk, i, buf);

	return track_plan(&v, position(rep), write);
}

unsigned replica_plan(struct replica *rep, unsigned a, unsigned b, const uint64_t *pages, const uint64_t *over, bool write, uint8_t *step)
{
	struct page_replica *buf[CACHE_MAX_DEVICES];
	unsigned self = position(rep), steps = 0;
	uint64_t held[GAIA_CHUNK_PAGES / 64] = { 0 };

	replica_held(rep, a, b, held);
	for (unsigned i = a; (i = bits_first(pages, i, b)) < b; i++) {
		struct page_view v = view(rep->chunk, i, buf);

		step[i] = (uint8_t)(bit_test(over, i) ? plan_overwrite(rep, i, bit_test(held, i)) : track_plan(&v, self, write));
		/* A plain copy may show anything until it has landed: a mapping that holds the page must not see that. */
		if (step[i] == TRACK_SEND && bit_test(held, i))
			step[i] = TRACK_PULL;
		steps |= 1u << step[i];
	}
	return steps;
}

void replica_sent(struct replica *rep, unsigned i)
{
	track_sent(&rep->chunk->track->page[i], &rep->page[i]);
	replica_touched(rep, i);
}

void replica_garbled(struct replica *rep, unsigned i)
{
	rep->page[i].flags = 0;
	replica_touched(rep, i);
}

void replica_distrusted(struct replica *rep, unsigned i)
{
	bug_on(replica_ahead(rep, i) || rep->page[i].written);
	rep->page[i].flags = 0;
	rep->page[i].seen = 0;
	replica_touched(rep, i);
}

void replica_pulled(struct replica *rep, unsigned i)
{
	track_pulled(&rep->chunk->track->page[i], &rep->page[i]);
	replica_touched(rep, i);
	twins_collect(rep->chunk, i);
}

void replica_secured(struct replica *rep, unsigned i)
{
	track_secured(&rep->page[i]);
	replica_touched(rep, i);
	rep->n_snapped++;
}

void replica_armed(struct replica *rep, unsigned i)
{
	rep->page[i].flags |= REPLICA_ARMED;
}

void replica_disarmed(struct replica *rep, unsigned i)
{
	rep->page[i].flags &= (uint8_t)~REPLICA_ARMED;
	replica_touched(rep, i);
}

/* Of most pages one mapping at most holds it for writing, and its bit (page_replica.written) says so; others are counted beside it. */
unsigned replica_writers(const struct replica *rep, unsigned i)
{
	return rep->page[i].written + (rep->more_writers ? rep->more_writers->of[i] : 0u);
}

static void written_more(struct replica *rep, unsigned i)
{
	if (!rep->more_writers)
		rep->more_writers = xcalloc(1, sizeof(*rep->more_writers));
	rep->more_writers->of[i]++;
	rep->more_writers->sum++;
}

static void written_less(struct replica *rep, unsigned i)
{
	bug_on(!rep->page[i].written);
	if (!rep->more_writers || rep->more_writers->of[i] == 0) {
		rep->page[i].written = false;
		rep->page[i].alone = false;
		return;
	}
	rep->more_writers->of[i]--;
	if (--rep->more_writers->sum > 0)
		return;
	free(rep->more_writers);
	rep->more_writers = NULL;
}

void replica_hold(struct replica *rep, unsigned i, bool beyond, bool detects)
{
	struct page_replica *r = &rep->page[i];

	if (r->written) {
		r->alone = false;
		written_more(rep, i);
		return;
	}
	r->written = true;
	r->alone = detects && replica_has_base(rep, i) && r->cut == GAIA_PAGE;
	if (!beyond)
		return;
	track_voided(r);
	replica_touched(rep, i);
}

bool replica_is_detected(const struct replica *rep, unsigned i)
{
	return rep->page[i].alone && !replica_is_spoiled(rep);
}

void replica_drop_hold(struct replica *rep, unsigned i)
{
	struct page_replica *r = &rep->page[i];

	written_less(rep, i);
	if (!r->written && !fault_point("break.keep_dead"))
		track_discarded(r);
	replica_touched(rep, i);
	twins_collect(rep->chunk, i);
}

void replica_undo_hold(struct replica *rep, unsigned i)
{
	struct page_replica *r = &rep->page[i];

	written_less(rep, i);
	/* What was cut off meanwhile is in its memory still; and what is fresh is nothing to read. */
	if (!r->written && (r->cut < GAIA_PAGE || (r->flags & REPLICA_FRESH)))
		track_discarded(r);
	replica_touched(rep, i);
	twins_collect(rep->chunk, i);
}

void replica_overwriting(struct replica *rep, unsigned i)
{
	track_overwriting(&rep->page[i]);
	replica_touched(rep, i);
}

bool replica_release(struct replica *rep, unsigned i, bool ends, enum found found, bool secured)
{
	struct page_replica *r = &rep->page[i];
	bool was_ahead = r->flags & REPLICA_AHEAD, was_snapped = r->flags & REPLICA_SNAPPED, changed = found != FOUND_EQUAL, news;
	struct page_replica before;

	bug_on(!r->written);
	if (ends)
		written_less(rep, i);
	before = *r;
	if (found == FOUND_WHOLE && r->cut > 0)
		track_overwritten(&rep->chunk->track->page[i], r);
	if (!changed && !r->written && (r->flags & REPLICA_FRESH))
		track_discarded(r);
	news = track_released(r, changed, r->written && (secured || !changed));
	/* The next acquire need not look at a page that was found unchanged. */
	if (changed || r->seen != before.seen || r->cut != before.cut || r->flags != before.flags)
		replica_touched(rep, i);
	/* Others may have written between the comparison and the snapshot: what they
	 * release next must be compared with the snapshot, byte by byte. */
	if (changed && r->written)
		replica_disarmed(rep, i);
	if (!was_ahead && replica_ahead(rep, i))
		chunk_count_ahead(rep->chunk, 1);
	if (was_snapped != !!(r->flags & REPLICA_SNAPPED))
		rep->n_snapped += was_snapped ? -1 : 1;
	twins_collect(rep->chunk, i);
	return news;
}

void replica_merge_begin(struct replica *rep, unsigned i)
{
	/* What it was when it was acquired is kept as its base, by another name. */
	rep->page[i].seen = 0;
	touched(rep->chunk, i);
}

void replica_merge_end(struct replica *rep, unsigned i, bool equal, frame_t frame)
{
	struct chunk *ch = rep->chunk;
	struct page_replica *r = &rep->page[i], *buf[CACHE_MAX_DEVICES];
	struct page_view v = view(ch, i, buf);
	track_id kept = 0;

	if (track_keep_released(r, equal)) {
		kept = track_fresh_id(&v);
		twin_add(ch, i, kept, frame);
	} else if (frame) {
		frames_give(&ch->file->cache->frames, &frame, 1);
	}
	rep->n_snapped -= !!(r->flags & REPLICA_SNAPPED);
	track_merged(v.t, r, equal, kept);
	touched(ch, i);
	/* In this order: somebody may look whether there is anything for the store. */
	pages_set_dirty(ch, i, i + 1);
	chunk_count_ahead(ch, -1);
	twins_collect(ch, i);
}

/* What the replica released of the page is void. */
static void release_void(struct replica *rep, unsigned i)
{
	if (!replica_ahead(rep, i))
		return;
	chunk_count_ahead(rep->chunk, -1);
	rep->n_snapped -= !!(rep->page[i].flags & REPLICA_SNAPPED);
}

void replica_cut(struct replica *rep, unsigned i, unsigned cut)
{
	if (cut == 0)
		release_void(rep, i);
	if (!replica_ahead(rep, i) && fault_point("break.forget_truncated"))
		rep->page[i].seen = rep->chunk->track->page[i].home_id;
	else
		track_truncated(&rep->page[i], cut);
	replica_touched(rep, i);
	replica_removed(rep, i);
	twins_collect(rep->chunk, i);
}

void replica_removed(struct replica *rep, unsigned i)
{
	if (!(rep->page[i].flags & REPLICA_PRESENT))
		return;
	rep->page[i].flags |= REPLICA_REMOVED;
	replica_touched(rep, i);
}

bool replica_to_zero(struct replica *rep, unsigned i, bool held, bool all, bool in_file)
{
	const struct page_replica *r = &rep->page[i];
	bool present = r->flags & REPLICA_PRESENT, removed = r->flags & REPLICA_REMOVED;

	if (r->flags & REPLICA_ZEROS)
		return false;
	/* What a client has stored beyond the end is its own; but not what it was given before the end was there. */
	if (held || r->written)
		return all && !in_file && (removed || !present);
	if (r->flags & REPLICA_AHEAD)
		return r->flags & REPLICA_SNAPPED;
	if (!present)
		return true;
	return (all || removed) && (!in_file || replica_step(rep, i, false) != TRACK_NOTHING);
}

bool replica_to_bring(struct replica *rep, unsigned i, bool held, bool in_file)
{
	const struct page_replica *r = &rep->page[i];

	if (!in_file)
		return false;
	if (!held && !r->written && !(r->flags & REPLICA_AHEAD))
		return false;
	/* Held since before the file reached there: it contains zeros, and what was stored there. */
	if (r->written && r->cut == 0 && !(r->flags & REPLICA_REMOVED))
		return false;
	/* It is being acquired for overwriting. */
	if (r->written && (r->flags & REPLICA_ZEROS))
		return false;
	return replica_step(rep, i, false) != TRACK_NOTHING;
}

void replica_zeroed(struct replica *rep, unsigned i)
{
	struct page_replica *r = &rep->page[i];

	r->flags &= (uint8_t)~REPLICA_REMOVED;
	replica_touched(rep, i);
	if (r->written || (r->flags & REPLICA_AHEAD))
		return;
	*r = (struct page_replica){ .cut = GAIA_PAGE, .flags = REPLICA_ZEROS };
}

void replica_drop_lost_of_others(struct replica *rep, unsigned i)
{
	struct chunk *ch = rep->chunk;

	for (unsigned k = 0; k < ch->n_replicas; k++) {
		struct replica *other = ch->replica[k];

		if (other == rep || other->only || !atomic_load(&other->dev->gone) || !replica_ahead(other, i))
			continue;
		replica_forget(other, i);
		replica_shadow_trim(other);
	}
}

void replica_forget(struct replica *rep, unsigned i)
{
	release_void(rep, i);
	track_truncated(&rep->page[i], 0);
	replica_touched(rep, i);
	twins_collect(rep->chunk, i);
}

void replica_left(struct chunk *ch, unsigned i)
{
	twins_collect(ch, i);
}
