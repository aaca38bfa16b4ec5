/* state_replica.c - changes of the state of a replica's page. See state.h. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/fault.h"
#include "base/quota.h"
#include "base/util.h"
#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/frames.h"
#include "pagecache/grant.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/state.h"
#include "pagecache/state_inner.h"
#include "pagecache/view.h"

/* ---- a replica's page ---- */

/* Something of this replica's page has changed that track_plan() goes by; and what its client finds is not all that a release has to know. */
static void replica_touched(struct replica *rep, unsigned i)
{
	rep->page[i].alone = false;
	state_touched(rep->chunk, i);
}

bool others_outstanding(const struct chunk *ch, unsigned i, const struct replica *self)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (ch->replica[k] != self && state_is_outstanding(&ch->replica[k]->page[i]))
			return true;
	return false;
}

bool replica_is_home(const struct replica *rep, unsigned i)
{
	return track_is_home(&rep->chunk->track->page[i], &rep->page[i]);
}

bool replica_is_behind(const struct replica *rep, unsigned i)
{
	return state_is_behind(&rep->chunk->track->page[i], &rep->page[i]);
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

/* The page as this replica has to look at it, which is at *self. What is lost with its device does not matter to who overwrites it. */
static struct page_view own_view(const struct replica *rep, unsigned i, bool over, struct page_replica **buf, unsigned *self)
{
	const struct chunk *ch = rep->chunk;
	struct page_view v = { &ch->track->page[i], buf, 0 };

	/* Of one that was cut home's bytes will be read. */
	over |= replica_is_fresh(rep, i) && rep->page[i].cut == GAIA_PAGE;
	*self = 0;
	for (unsigned k = 0; k < ch->n_replicas; k++) {
		if (ch->replica[k] == rep)
			*self = v.n;
		else if (over && atomic_load(&ch->replica[k]->dev->gone))
			continue;
		buf[v.n++] = &ch->replica[k]->page[i];
	}
	return v;
}

enum track_step replica_step(struct replica *rep, unsigned i, bool write)
{
	struct page_replica *buf[CACHE_MAX_REPLICAS];
	struct page_view v;
	unsigned self;

	/* The usual end of an acquire: it has just been sent, and is the only one. */
	if (rep->chunk->n_replicas == 1 && replica_is_home(rep, i))
		return TRACK_NOTHING;
	v = own_view(rep, i, false, buf, &self);
	return track_plan(&v, self, write);
}

unsigned replica_plan(struct replica *rep, unsigned a, unsigned b, const uint64_t *pages, const uint64_t *over, bool write, uint8_t *step)
{
	struct page_replica *buf[CACHE_MAX_REPLICAS];
	unsigned self, steps = 0;
	uint64_t held[GAIA_CHUNK_PAGES / 64] = { 0 };

	replica_held(rep, a, b, held);
	for (unsigned i = a; (i = bits_first(pages, i, b)) < b; i++) {
		struct page_view v = own_view(rep, i, bit_test(over, i), buf, &self);

		step[i] = (uint8_t)(bit_test(over, i) ? track_plan_overwrite(&v, self, bit_test(held, i)) : track_plan(&v, self, write));
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

void view_absent(struct chunk *ch, unsigned i)
{
	for (unsigned k = 0; k < ch->n_replicas; k++)
		if (replica_is_view(ch->replica[k]))
			ch->replica[k]->page[i] = (struct page_replica){ .cut = GAIA_PAGE, .flags = REPLICA_ZEROS };
	state_touched(ch, i);
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
	/* What it had before the cut is zeros, or an overwriter's: to be discarded, should that be given back. */
	rep->page[i].left |= replica_is_fresh(rep, i) && rep->page[i].written;
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
	r->left = r->written;
	if (!r->written && !fault_point("break.keep_dead"))
		track_discarded(r);
	replica_touched(rep, i);
	twins_collect(rep->chunk, i);
}

void replica_undo_hold(struct replica *rep, unsigned i)
{
	struct page_replica *r = &rep->page[i];

	written_less(rep, i);
	/* What was cut off meanwhile, or left by others, is in its memory still; and what is fresh is nothing to read. */
	if (!r->written && (r->left || r->cut < GAIA_PAGE || (r->flags & REPLICA_FRESH)))
		track_discarded(r);
	r->left &= r->written;
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
	/* What was given back (cache_give_back()) may not have been compared, and others may have left something in its memory. */
	if (!changed && !r->written && (r->left || (r->flags & REPLICA_FRESH)))
		track_discarded(r);
	news = track_released(r, changed, changed ? r->written && secured : r->written || r->left);
	r->left &= r->written && !changed;
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
	state_touched(rep->chunk, i);
}

void replica_merge_end(struct replica *rep, unsigned i, bool equal, frame_t frame)
{
	struct chunk *ch = rep->chunk;
	struct page_replica *r = &rep->page[i], *buf[CACHE_MAX_REPLICAS];
	struct page_view v = state_view(ch, i, buf);
	track_id kept = 0;

	if (track_keep_released(r, equal)) {
		kept = track_fresh_id(&v);
		twin_add(ch, i, kept, frame);
	} else if (frame) {
		frames_give(&ch->file->cache->frames, &frame, 1);
	}
	rep->n_snapped -= !!(r->flags & REPLICA_SNAPPED);
	track_merged(v.t, r, equal, kept);
	state_touched(ch, i);
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
	/* It is cut where it is, at home. */
	if (replica_is_view(rep)) {
		replica_touched(rep, i);
		return;
	}
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
	if (!(rep->page[i].flags & REPLICA_PRESENT) || replica_is_view(rep))
		return;
	rep->page[i].flags |= REPLICA_REMOVED;
	replica_touched(rep, i);
}

bool replica_to_zero(struct replica *rep, unsigned i, bool held, bool all, bool in_file)
{
	const struct page_replica *r = &rep->page[i];
	bool present = r->flags & REPLICA_PRESENT, removed = r->flags & REPLICA_REMOVED;

	if ((r->flags & REPLICA_ZEROS) || replica_is_view(rep))
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
	/* What others released is not home's yet. */
	if (replica_is_view(rep) && !held)
		return (r->flags & REPLICA_PRESENT) && replica_step(rep, i, false) == TRACK_FETCH;
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
