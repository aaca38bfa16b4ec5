/*
 * track.c - ids and bits against what they stand for: full version vectors.
 *
 * Beside the page's struct page_track and its replicas runs a reference that keeps, for home and
 * for each replica, one counter an owner, and gives each state of home's bytes a number that is never used
 * again. Random histories; after each event both must say the same.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "consistency/track.h"
#include "device_io.h"

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
	uint64_t seed;
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

static void begin(uint64_t seed)
{
	memset(&w, 0, sizeof(w));
	track_init(&w.t);
	for (unsigned i = 0; i < DEVICES; i++) {
		w.r[i].cut = GAIA_PAGE;
		w.list[i] = &w.r[i];
	}
	w.v = (struct page_view){ &w.t, w.list, DEVICES };
	w.home_moment = w.now = 1;
	w.seed = seed;
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
		cr_assert_neq(w.t.kernel_base, 0, "the kernel has a copy");
		id[n] = w.t.kernel_base;
		moment[n++] = w.kernel_base;
	}
	for (unsigned a = 0; a < n; a++)
		for (unsigned b = 0; b < n; b++)
			cr_assert_eq(id[a] == id[b], moment[a] == moment[b],
				     "ids %u and %u of moments %llu and %llu", id[a], id[b],
				     (unsigned long long)moment[a], (unsigned long long)moment[b]);
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
		cr_assert_eq(!!(r->flags & REPLICA_AHEAD), ahead, "device %u", i);
		cr_assert_eq(r->writers, ref->writers);
		cr_assert_eq(track_is_home(&w.t, r), ref->valid && !ref->partly_void && newest && !ahead &&
						     !ref->writers, "device %u is as home", i);
		if (!ref->valid || ref->partly_void)
			continue;
		cr_assert_eq(r->seen == w.t.home_id, newest, "device %u covers home", i);
		cr_assert_eq(ahead && r->seen != w.t.home_id, ahead && !newest, "concurrent");
		/* The base of what is to be merged is kept. */
		wanted = ahead || ref->writers > 0;
		cr_assert(!wanted || track_base_needed(&w.v, r->seen));
	}
	cr_assert_eq(track_ahead(&w.v), any_ahead);
	for (unsigned k = 0; k < WINDOWS; k++)
		open += w.window[k].open;
	cr_assert_eq(w.t.pending, open);
	cr_assert(!w.kernel_has || w.t.may_hold, "the kernel holds a copy that nobody knows of");
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
		cr_assert_lt(n, 4, "the plan comes to an end");
		switch (step) {
		case TRACK_FETCH:
			cr_assert(track_ahead(&w.v));
			fetch();
			stale |= !w.ref[i].valid || !covers(&w.ref[i].has, &w.home);
			break;
		case TRACK_SEND:
			cr_assert(stale && w.ref[i].writers == 0);
			fill(i, false);
			break;
		case TRACK_PULL:
			cr_assert(stale && w.ref[i].writers > 0);
			fill(i, true);
			break;
		case TRACK_SECURE:
			cr_assert(write);
			track_secured(&w.r[i]);
			break;
		case TRACK_NOTHING:
			break;
		}
	}
	cr_assert(w.ref[i].valid && covers(&w.ref[i].has, &w.home), "it is current now");
	for (unsigned k = 0; k < DEVICES; k++)
		cr_assert(k == i || covers(&w.ref[i].has, &w.ref[k].has) || !w.ref[k].valid ||
			  !(w.r[k].flags & REPLICA_AHEAD));
	if (write && w.ref[i].writers < 3) {
		w.r[i].flags |= REPLICA_ARMED;
		w.r[i].writers++;
		w.ref[i].writers++;
	}
}

static void release(unsigned i, bool changed)
{
	bool all_void = w.r[i].cut == 0, new;

	if (w.ref[i].writers == 0)
		return;
	w.r[i].writers--;
	w.ref[i].writers--;
	new = track_released(&w.r[i], changed, w.ref[i].writers > 0);
	cr_assert_eq(new, changed && !all_void);
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
	w.r[i].writers--;
	if (--w.ref[i].writers > 0)
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
	unsigned i = random_below(&w.seed, DEVICES);

	switch (random_below(&w.seed, 14)) {
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
		if (random_below(&w.seed, 2))
			discard(i);
		else
			evict(i);
		break;
	case 11:
		if (random_below(&w.seed, 3))
			break;
		truncate_at(random_below(&w.seed, 2) ? 0 : 1 + random_below(&w.seed, GAIA_PAGE - 1));
		w.kernel_has = false;
		track_kernel_given(&w.t, w.t.home_id);
		break;
	case 12:
		window_open();
		break;
	case 13:
		window_go_on(random_below(&w.seed, WINDOWS));
		break;
	}
}

Test(track, says_what_vectors_say)
{
	for (uint64_t seed = 1; seed <= 300; seed++) {
		begin(seed * 0x9e3779b97f4a7c15);
		for (unsigned k = 0; k < 1000; k++) {
			event();
			agree();
		}
	}
}

/* Ids come round while one that is old is still somebody's base. */
Test(track, ids_are_not_given_again_while_they_are_referred_to)
{
	track_id old, kernel;

	begin(7);
	acquire(0, true);
	old = w.r[0].seen;
	cpu_write();
	window_open();
	kernel = w.t.kernel_base;
	w.kernel_has = true;
	w.kernel_base = w.home_moment;
	for (unsigned k = 0; k < 3000000; k++) {
		cpu_write();
		cr_assert_neq(w.t.home_id, 0);
		cr_assert_neq(w.t.home_id, old);
		cr_assert_neq(w.t.home_id, kernel);
		if (k % 10007 == 0) {
			acquire(1, true);
			release(1, k % 2);
		}
		if (k % 65500 == 0)
			agree();
	}
	agree();
}

/* ---- plans ---- */

Test(track_plan, is_this_table)
{
	enum { SELF_OLD = 1, OTHER_AHEAD = 2, WRITERS = 4 };
	static const struct {
		uint8_t flags;
		unsigned more;
		enum track_step read, write;
	} rows[] = {
		{ 0, SELF_OLD, TRACK_SEND, TRACK_SEND },
		{ 0, 0, TRACK_SEND, TRACK_SEND },
		{ REPLICA_PRESENT, 0, TRACK_NOTHING, TRACK_NOTHING },
		{ REPLICA_PRESENT, WRITERS, TRACK_NOTHING, TRACK_NOTHING },
		{ REPLICA_PRESENT, SELF_OLD, TRACK_SEND, TRACK_SEND },
		{ REPLICA_PRESENT, SELF_OLD | WRITERS, TRACK_PULL, TRACK_PULL },
		{ REPLICA_PRESENT, OTHER_AHEAD, TRACK_FETCH, TRACK_FETCH },
		{ 0, OTHER_AHEAD, TRACK_FETCH, TRACK_FETCH },
		{ REPLICA_PRESENT | REPLICA_AHEAD, 0, TRACK_NOTHING, TRACK_SECURE },
		{ REPLICA_PRESENT | REPLICA_AHEAD, SELF_OLD, TRACK_FETCH, TRACK_FETCH },
		{ REPLICA_PRESENT | REPLICA_AHEAD, OTHER_AHEAD, TRACK_FETCH, TRACK_FETCH },
		{ REPLICA_PRESENT | REPLICA_AHEAD | REPLICA_SNAPPED, WRITERS, TRACK_NOTHING,
		  TRACK_NOTHING },
		/* Its writers were discarded: what was released is in the snapshot only. */
		{ REPLICA_PRESENT | REPLICA_AHEAD | REPLICA_SNAPPED, 0, TRACK_FETCH, TRACK_FETCH },
	};

	for (unsigned k = 0; k < ARRAY_LEN(rows); k++) {
		begin(1);
		w.r[0].flags = rows[k].flags;
		w.r[0].seen = rows[k].more & SELF_OLD ? 9 : w.t.home_id;
		w.r[0].writers = rows[k].more & WRITERS ? 1 : 0;
		if (rows[k].more & OTHER_AHEAD)
			w.r[2] = (struct page_replica){ w.t.home_id, GAIA_PAGE, 0,
							REPLICA_PRESENT | REPLICA_AHEAD, 0 };
		cr_assert_eq(track_plan(&w.v, 0, false), rows[k].read, "row %u, to read", k);
		cr_assert_eq(track_plan(&w.v, 0, true), rows[k].write, "row %u, to write", k);
	}
}

Test(track_plan, what_a_truncate_voided_is_never_current)
{
	begin(1);
	acquire(0, true);
	w.r[0].cut = 100;
	cr_assert_eq(track_plan(&w.v, 0, false), TRACK_PULL);
}

Test(track_plan, what_is_held_beyond_the_end_counts_when_it_was_brought)
{
	begin(1);
	track_voided(&w.r[0]);
	w.r[0].writers = 2;
	cr_assert_not(track_base_needed(&w.v, w.t.home_id));
	w.r[0].writers--;
	cr_assert_not(track_released(&w.r[0], true, true), "dropped");
	home_changed();
	cr_assert_eq(track_plan(&w.v, 0, true), TRACK_PULL);
	track_pulled(&w.t, &w.r[0]);
	w.r[0].writers--;
	cr_assert(track_released(&w.r[0], true, false));
	cr_assert(track_ahead(&w.v));
}

/* What it keeps it sends again later: against the base that it had then, and with its races decided if they were. */
Test(kernel, keeps_what_could_not_be_taken)
{
	uint16_t first, second;
	struct page_track t;

	track_init(&t);
	t.may_hold = 0;
	track_kernel_kept(&t);
	cr_assert(t.may_hold);
	first = track_window_open(&t);
	track_kernel_merged(&t, 77);
	second = track_window_open(&t);
	track_kernel_kept(&t);
	cr_assert_eq(t.kernel_base, 77);
	cr_assert(t.met);
	track_window_close(&t, second);
	cr_assert_eq(t.kernel_base, 77);
	second = track_window_open(&t);
	track_window_close(&t, second);
	cr_assert_eq(t.kernel_base, 0, "it was dropped");
	track_kernel_kept(&t);
	cr_assert_eq(t.kernel_base, t.home_id);
	cr_assert_not(t.met);
	track_window_close(&t, first);
	cr_assert(t.may_hold);
}
