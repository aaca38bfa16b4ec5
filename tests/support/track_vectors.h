/*
 * track_vectors.h - what ids and bits of track.h stand for: full version vectors, for tests that run both.
 *
 * Beside a page's struct page_track and its replicas runs a reference that keeps, for home and for each replica, one
 * counter an owner, and gives each state of home's bytes a number that is never used again. After begin() and
 * each event() both must say the same: agree().
 *
 * A file that includes it must first define
 *	MUST(cond[, fmt...])		ends the test if not @cond
 *	unsigned choose(unsigned n)	less than @n: what happens next
 */
#ifndef GAIA_TESTS_TRACK_VECTORS_H
#define GAIA_TESTS_TRACK_VECTORS_H

#include <string.h>

#include "base/util.h"
#include "consistency/track.h"

#define DEVICES 3u
#define OWNERS (DEVICES + 1) /* 0: CPUs */
#define WINDOWS 4u

struct vector {
	uint32_t count[OWNERS];
};

/* What an id names. */
typedef uint64_t moment_t;

struct ref_replica {
	struct vector has;
	moment_t seen;
	bool valid;
	bool partly_void; /* a truncate took some of what it has */
	unsigned writers;
};

static struct {
	/* Under test. */
	struct page_track t;
	struct page_replica r[DEVICES], *list[DEVICES];
	struct page_view v;

	/* The reference. */
	struct vector home;
	moment_t now, home_moment;
	struct ref_replica ref[DEVICES];
	bool kernel_has;
	moment_t kernel_base;
	struct {
		bool open, dropped;
		uint16_t mark;
	} window[WINDOWS];
} w;

static bool covers(const struct vector *a, const struct vector *b)
{
	for (unsigned o = 0; o < OWNERS; o++)
		if (a->count[o] < b->count[o])
			return false;
	return true;
}

static void raise_to(struct vector *a, const struct vector *b)
{
	for (unsigned o = 0; o < OWNERS; o++)
		a->count[o] = MAX(a->count[o], b->count[o]);
}

static void begin(void)
{
	memset(&w, 0, sizeof(w));
	track_init(&w.t);
	for (unsigned i = 0; i < DEVICES; i++) {
		w.r[i].cut = GAIA_PAGE;
		w.list[i] = &w.r[i];
	}
	w.v = (struct page_view){ &w.t, w.list, DEVICES };
	w.home_moment = w.now = 1;
	w.kernel_has = true;
	w.kernel_base = w.home_moment;
}

/* ---- agreement ---- */

static void agree_on_names(void)
{
	track_id id[DEVICES + 2] = { w.t.home_id };
	moment_t moment[DEVICES + 2] = { w.home_moment };
	unsigned n = 1;

	for (unsigned i = 0; i < DEVICES; i++)
		if (w.r[i].seen) {
			id[n] = w.r[i].seen;
			moment[n++] = w.ref[i].seen;
		}
	if (w.t.pending && w.kernel_has) {
		MUST(w.t.kernel_base != 0, "the kernel has a copy");
		id[n] = w.t.kernel_base;
		moment[n++] = w.kernel_base;
	}
	for (unsigned a = 0; a < n; a++)
		for (unsigned b = 0; b < n; b++)
			MUST((id[a] == id[b]) == (moment[a] == moment[b]), "ids %u and %u of moments %llu and %llu",
			     id[a], id[b], (unsigned long long)moment[a], (unsigned long long)moment[b]);
}

static void agree(void)
{
	bool any_ahead = false, wanted;
	unsigned open = 0;

	agree_on_names();
	for (unsigned i = 0; i < DEVICES; i++) {
		const struct page_replica *r = &w.r[i];
		const struct ref_replica *ref = &w.ref[i];
		bool ahead = !covers(&w.home, &ref->has), newest = covers(&ref->has, &w.home);

		any_ahead |= ahead;
		MUST(!!(r->flags & REPLICA_AHEAD) == ahead, "device %u", i);
		MUST(r->written == (ref->writers > 0));
		MUST(track_is_home(&w.t, r) == (ref->valid && !ref->partly_void && newest && !ahead &&
						     !ref->writers), "device %u is as home", i);
		if (!ref->valid || ref->partly_void)
			continue;
		MUST((r->seen == w.t.home_id) == newest, "device %u covers home", i);
		MUST((ahead && r->seen != w.t.home_id) == (ahead && !newest), "concurrent");
		/* The base of what is to be merged is kept. */
		wanted = ahead || ref->writers > 0;
		MUST(!wanted || track_base_needed(&w.v, r->seen));
	}
	MUST(track_ahead(&w.v) == any_ahead);
	for (unsigned k = 0; k < WINDOWS; k++)
		open += w.window[k].open;
	MUST(w.t.pending == open);
	MUST(!w.kernel_has || w.t.may_hold, "the kernel holds a copy that nobody knows of");
}

/* ---- events ---- */

static void home_changed(void)
{
	track_home_changed(&w.v);
	w.home_moment = ++w.now;
}

static void merge_one(unsigned i)
{
	struct page_replica *r = &w.r[i];
	struct ref_replica *ref = &w.ref[i];
	bool equal = covers(&ref->has, &w.home) && !ref->partly_void, snapped;
	track_id kept = 0;

	snapped = r->flags & REPLICA_SNAPPED;
	r->seen = 0; /* as the cache does: its own base has served */
	home_changed();
	raise_to(&w.home, &ref->has);
	if (track_keep_released(r, equal)) {
		kept = track_fresh_id(&w.v);
		ref->seen = ++w.now;
	} else if (equal) {
		ref->seen = w.home_moment;
	}
	track_merged(&w.t, r, equal, kept);
	if (snapped && ref->writers == 0)
		ref->valid = false;
	if (ref->writers == 0)
		ref->partly_void = false;
	if (!equal && !kept)
		ref->valid = false; /* stale: it is not asked about any more */
}

/* Devices in order, some of them perhaps later. */
static void fetch(void)
{
	for (unsigned i = 0; i < DEVICES; i++) {
		if (!(w.r[i].flags & REPLICA_AHEAD))
			continue;
		merge_one(i);
		agree();
	}
}

static void cpu_write(void)
{
	fetch();
	home_changed();
	w.home.count[0]++;
}

static void give_kernel(void)
{
	fetch();
	track_kernel_given(&w.t, w.t.home_id);
	w.kernel_has = true;
	w.kernel_base = w.home_moment;
}

static void fill(unsigned i, bool pull)
{
	struct ref_replica *ref = &w.ref[i];

	if (pull)
		track_pulled(&w.t, &w.r[i]);
	else
		track_sent(&w.t, &w.r[i]);
	ref->has = w.home;
	ref->seen = w.home_moment;
	ref->valid = true;
	ref->partly_void = false;
}

static void acquire(unsigned i, bool write)
{
	bool stale = !w.ref[i].valid || !covers(&w.ref[i].has, &w.home) || w.ref[i].partly_void;
	enum track_step step;

	for (unsigned n = 0; (step = track_plan(&w.v, i, write)) != TRACK_NOTHING; n++) {
		MUST(n < 4, "the plan comes to an end");
		switch (step) {
		case TRACK_FETCH:
			MUST(track_ahead(&w.v));
			fetch();
			stale |= !w.ref[i].valid || !covers(&w.ref[i].has, &w.home);
			break;
		case TRACK_SEND:
			MUST(stale && w.ref[i].writers == 0);
			fill(i, false);
			break;
		case TRACK_PULL:
			MUST(stale && w.ref[i].writers > 0);
			fill(i, true);
			break;
		case TRACK_SECURE:
			MUST(write);
			track_secured(&w.r[i]);
			break;
		case TRACK_ZERO:
			MUST(false, "nobody overwrites it");
			break;
		case TRACK_NOTHING:
			break;
		}
	}
	MUST(w.ref[i].valid && covers(&w.ref[i].has, &w.home), "it is current now");
	for (unsigned k = 0; k < DEVICES; k++)
		MUST(k == i || covers(&w.ref[i].has, &w.ref[k].has) || !w.ref[k].valid ||
			  !(w.r[k].flags & REPLICA_AHEAD));
	if (write && w.ref[i].writers < 3) {
		w.r[i].flags |= REPLICA_ARMED;
		w.r[i].written = true;
		w.ref[i].writers++;
	}
}

static void release(unsigned i, bool changed)
{
	bool all_void = w.r[i].cut == 0, new;

	if (w.ref[i].writers == 0)
		return;
	w.r[i].written = --w.ref[i].writers > 0;
	new = track_released(&w.r[i], changed, w.ref[i].writers > 0);
	MUST(new == (changed && !all_void));
	if (new) {
		w.ref[i].has.count[i + 1]++;
	} else if (w.ref[i].writers == 0 && w.ref[i].partly_void) {
		if (!(w.r[i].flags & REPLICA_AHEAD))
			w.ref[i].valid = false;
	}
}

static void discard(unsigned i)
{
	if (w.ref[i].writers == 0)
		return;
	w.r[i].written = --w.ref[i].writers > 0;
	if (w.r[i].written)
		return;
	track_discarded(&w.r[i]);
	if (!(w.r[i].flags & REPLICA_AHEAD)) {
		w.ref[i].valid = false;
		w.ref[i].partly_void = false;
	}
}

static void evict(unsigned i)
{
	if (w.ref[i].writers > 0)
		return;
	fetch();
	w.r[i] = (struct page_replica){ .cut = GAIA_PAGE };
	memset(&w.ref[i], 0, sizeof(w.ref[i]));
}

static void truncate_at(unsigned cut)
{
	if (cut > 0)
		fetch();
	home_changed();
	w.home.count[0]++;
	for (unsigned i = 0; i < DEVICES; i++) {
		struct ref_replica *ref = &w.ref[i];

		track_truncated(&w.r[i], cut);
		if (ref->writers > 0)
			ref->partly_void = true;
		/* Unmerged releases are gone with their bytes. */
		if (cut == 0) {
			if (!covers(&w.home, &ref->has))
				ref->has = (struct vector){ { 0 } };
			if (ref->writers == 0)
				ref->valid = false;
		}
	}
}

static void window_open(void)
{
	for (unsigned k = 0; k < WINDOWS; k++) {
		if (w.window[k].open)
			continue;
		if (!w.t.pending && w.kernel_has && w.kernel_base != w.home_moment)
			return; /* the cache never lets it get here: see give_kernel() and the invalidations */
		w.window[k].open = true;
		w.window[k].dropped = false;
		w.window[k].mark = track_window_open(&w.t);
		return;
	}
}

static void window_go_on(unsigned k)
{
	if (!w.window[k].open)
		return;
	if (!w.window[k].dropped) {
		w.window[k].dropped = true;
		w.kernel_has = false;
		return;
	}
	w.window[k].open = false;
	track_window_close(&w.t, w.window[k].mark);
}

static void event(void)
{
	unsigned i = choose(DEVICES);

	switch (choose(14)) {
	case 0:
		cpu_write();
		/* The kernel has it, too: as it sent it, or as it goes through. */
		if (w.kernel_has)
			give_kernel();
		break;
	case 1:
		give_kernel();
		break;
	case 2:
	case 3:
		acquire(i, false);
		break;
	case 4:
	case 5:
	case 6:
		acquire(i, true);
		break;
	case 7:
	case 8:
		release(i, true);
		break;
	case 9:
		release(i, false);
		break;
	case 10:
		if (choose(2))
			discard(i);
		else
			evict(i);
		break;
	case 11:
		if (choose(3))
			break;
		truncate_at(choose(2) ? 0 : 1 + choose(GAIA_PAGE - 1));
		w.kernel_has = false;
		track_kernel_given(&w.t, w.t.home_id);
		break;
	case 12:
		window_open();
		break;
	case 13:
		window_go_on(choose(WINDOWS));
		break;
	}
}

#endif
