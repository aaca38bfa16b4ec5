/* track.c - see track.h. */
#include "consistency/track.h"

#include <string.h>

#include "base/util.h"

#define WINDOWS_MAX 16383u	/* what page_track.pending can count */
#define WINDOWS_SUFFICE 1024u	/* at most a few hundred releases are under way: as many as there are workers */

void track_init(struct page_track *t)
{
	/* The kernel may have been given the page before this tracking began. */
	*t = (struct page_track){ .home_id = 1, .may_hold = 1 };
}

bool track_ahead(const struct page_view *v)
{
	for (unsigned i = 0; i < v->n; i++)
		if (v->r[i]->flags & REPLICA_AHEAD)
			return true;
	return false;
}

static bool replica_needs_base(const struct page_replica *r)
{
	return r->written || (r->flags & REPLICA_AHEAD);
}

bool track_base_needed(const struct page_view *v, track_id id)
{
	if (v->t->pending > 0 && v->t->kernel_base == id)
		return true;
	for (unsigned i = 0; i < v->n; i++)
		if (v->r[i]->seen == id && replica_needs_base(v->r[i]))
			return true;
	return false;
}

static bool id_in_use(const struct page_view *v, track_id id)
{
	if (id == 0 || id == v->t->home_id || id == v->t->kernel_base)
		return true;
	for (unsigned i = 0; i < v->n; i++)
		if (v->r[i]->seen == id)
			return true;
	return false;
}

track_id track_fresh_id(const struct page_view *v)
{
	track_id id = v->t->home_id;

	do
		id++;
	while (id_in_use(v, id));
	return id;
}

track_id track_home_changed(struct page_view *v)
{
	v->t->home_id = track_fresh_id(v);
	return v->t->home_id;
}

static bool others_ahead(const struct page_view *v, unsigned self)
{
	for (unsigned i = 0; i < v->n; i++)
		if (i != self && (v->r[i]->flags & REPLICA_AHEAD))
			return true;
	return false;
}

enum track_step track_plan(const struct page_view *v, unsigned self, bool write)
{
	const struct page_replica *r = v->r[self];
	/* If a truncate voided bytes, the replica still has the old ones. */
	bool current = r->seen == v->t->home_id && r->cut == GAIA_PAGE;

	/* Also for who overwrites the page: what he stores from now on comes after what they released, and must not meet that in a merge. */
	if (others_ahead(v, self))
		return TRACK_FETCH;
	/* There is nothing that could tell what to keep of it. */
	if ((r->flags & REPLICA_FRESH) && r->cut == GAIA_PAGE)
		return TRACK_NOTHING;
	if (r->flags & REPLICA_AHEAD) {
		if (!current)
			return TRACK_FETCH;
		/* The release is in the snapshot alone: what the replica's writers stored since was discarded. */
		if ((r->flags & REPLICA_SNAPPED) && !r->written)
			return TRACK_FETCH;
		if (write && !(r->flags & REPLICA_SNAPPED))
			return TRACK_SECURE;
		return TRACK_NOTHING;
	}
	if (!(r->flags & REPLICA_PRESENT))
		return TRACK_SEND;
	if (current)
		return TRACK_NOTHING;
	return r->written ? TRACK_PULL : TRACK_SEND;
}

enum track_step track_plan_overwrite(const struct page_view *v, unsigned self, bool held)
{
	const struct page_replica *r = v->r[self];
	bool all = r->cut == GAIA_PAGE, current = all && r->seen == v->t->home_id;

	/* They came before what will be stored: they must not meet that in a merge. */
	if (others_ahead(v, self))
		return TRACK_FETCH;
	/* Fresh, or coming: there is nothing to keep apart. */
	if (r->written && all && (r->flags & (REPLICA_FRESH | REPLICA_ZEROS)))
		return TRACK_NOTHING;
	if ((r->flags & REPLICA_AHEAD) && !(r->flags & REPLICA_SNAPPED) && !r->written && current)
		return TRACK_SECURE;
	if (!(r->flags & REPLICA_AHEAD) && (r->flags & REPLICA_PRESENT) && current)
		return TRACK_NOTHING;
	/*
	 * Who holds it must not find zeros. And what others wrote before this acquire must be in the base of what is stored after it:
	 * bytes that are stored as they were in an older one would be taken for not stored. A release in the snapshot alone is not what
	 * the page has.
	 */
	if (held || (r->flags & REPLICA_AHEAD))
		return track_plan(v, self, true);
	return TRACK_ZERO;
}

bool track_is_home(const struct page_track *t, const struct page_replica *r)
{
	return (r->flags & REPLICA_PRESENT) && !(r->flags & REPLICA_AHEAD) && !r->written &&
	       r->seen == t->home_id && r->cut == GAIA_PAGE;
}

void track_sent(const struct page_track *t, struct page_replica *r)
{
	r->flags = REPLICA_PRESENT;
	r->seen = t->home_id;
	r->cut = GAIA_PAGE;
}

void track_pulled(const struct page_track *t, struct page_replica *r)
{
	/* Of what is fresh only what had been cut off was brought. The rest is what differs from home. */
	bool fresh = r->flags & REPLICA_FRESH;

	r->seen = t->home_id;
	r->cut = GAIA_PAGE;
	r->flags &= (uint8_t)~(REPLICA_ZEROS | REPLICA_REMOVED | REPLICA_FRESH | REPLICA_ARMED);
	r->flags |= REPLICA_PRESENT | (fresh ? 0 : REPLICA_ARMED);
}

void track_secured(struct page_replica *r)
{
	r->flags |= REPLICA_SNAPPED;
}

void track_overwriting(struct page_replica *r)
{
	if (!r->written || !(r->flags & REPLICA_ZEROS))
		return;
	r->flags = r->cut > 0 ? REPLICA_PRESENT | REPLICA_FRESH : REPLICA_PRESENT;
	r->seen = 0;
}

void track_overwritten(const struct page_track *t, struct page_replica *r)
{
	/* The device remembers what was there before, if anything. */
	r->flags &= (uint8_t)~(REPLICA_FRESH | REPLICA_ARMED);
	r->flags |= REPLICA_WHOLE;
	r->seen = t->home_id;
}

bool track_released(struct page_replica *r, bool changed, bool writers_left)
{
	if (r->cut == 0) {
		/* All of it was truncated away, even if other mappings still write there whose pages were not secured. */
		if (!r->written)
			track_discarded(r);
		return false;
	}
	if (!changed) {
		/* Equal to the snapshot, if there is one: so the replica itself is the release again. */
		if (!writers_left)
			r->flags &= ~REPLICA_SNAPPED;
		if (!writers_left && r->cut < GAIA_PAGE && !(r->flags & REPLICA_AHEAD))
			r->flags &= ~REPLICA_PRESENT;
		return false;
	}
	r->flags |= REPLICA_AHEAD;
	if (writers_left)
		r->flags |= REPLICA_SNAPPED;
	else
		r->flags &= ~REPLICA_SNAPPED;
	return true;
}

bool track_keep_released(const struct page_replica *r, bool equal)
{
	return r->written && !equal;
}

void track_merged(const struct page_track *t, struct page_replica *r, bool equal, track_id kept)
{
	bool snapped = r->flags & REPLICA_SNAPPED;

	r->flags &= (uint8_t)~(REPLICA_AHEAD | REPLICA_SNAPPED | REPLICA_WHOLE);
	if (snapped && !r->written) {
		/* The replica's own bytes were discarded earlier. */
		r->flags &= ~REPLICA_PRESENT;
		r->seen = 0;
	} else if (equal) {
		r->seen = t->home_id;
	} else {
		r->seen = kept; /* 0: stale */
	}
	if (!r->written)
		r->cut = GAIA_PAGE;
}

void track_discarded(struct page_replica *r)
{
	/* If the page was released before, that release stays, in its snapshot. */
	if (r->flags & REPLICA_AHEAD)
		return;
	r->flags = 0;
	r->seen = 0;
	r->cut = GAIA_PAGE;
}

void track_kernel_given(struct page_track *t, track_id base)
{
	t->may_hold = 1;
	if (t->pending == 0)
		return;
	t->kernel_base = base;
	t->met = 0;
	if (t->given < UINT16_MAX)
		t->given++;
}

void track_kernel_merged(struct page_track *t, track_id base)
{
	track_kernel_given(t, base);
	t->met = t->pending > 0;
}

void track_kernel_kept(struct page_track *t)
{
	bool met = t->kernel_base && t->met;

	/* If the kernel had no copy, processes have written all of the page, so any base will do. */
	track_kernel_given(t, t->kernel_base ? t->kernel_base : t->home_id);
	t->met = met;
}

bool track_windows_suffice(const struct page_track *t)
{
	return t->pending >= WINDOWS_SUFFICE;
}

uint16_t track_window_open(struct page_track *t)
{
	bug_on(t->pending == WINDOWS_MAX);
	if (t->pending++ == 0) {
		t->kernel_base = t->home_id;
		t->met = 0;
		t->given = 0;
	}
	return t->given;
}

void track_window_close(struct page_track *t, uint16_t opened)
{
	/* The kernel was given no copy since the invalidation began, so the one that it had then is gone. */
	if (t->given == opened && opened < UINT16_MAX)
		t->kernel_base = 0;
	if (--t->pending > 0)
		return;
	t->may_hold = t->kernel_base != 0;
	t->kernel_base = 0;
	t->given = 0;
}

void track_voided(struct page_replica *r)
{
	r->flags = REPLICA_PRESENT;
	r->seen = 0;
	r->cut = 0;
}

void track_truncated(struct page_replica *r, unsigned cut)
{
	if (cut == 0) {
		/* A release of the page is gone together with the bytes it wrote. */
		r->flags &= (uint8_t)~(REPLICA_AHEAD | REPLICA_SNAPPED | REPLICA_WHOLE | REPLICA_FRESH);
		r->seen = 0;
		r->cut = 0;
		if (!r->written) {
			r->flags = 0;
			r->cut = GAIA_PAGE;
		}
	} else if (r->written && cut < r->cut) {
		r->cut = (uint16_t)cut;
	}
}
