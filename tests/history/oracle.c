/*
 * oracle.c - see oracle.h.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

/* The violation with the shortest history so far, and how many there are. */
static struct violation found;
static unsigned long violations;
static unsigned shortest;

static void __attribute__((format(printf, 5, 6)))
complain(const struct cell *c, const ref *blame, uint64_t from, uint64_t to, const char *fmt, ...)
{
	struct violation v = { .file = c->file, .cell = c->cell, .from = from, .to = to };
	unsigned length = 0;
	va_list ap;

	violations++;
	for (unsigned i = 0; i < c->nw; i++)
		length += c->w[i].s < to && c->w[i].e > from;
	for (unsigned i = 0; i < c->nr; i++)
		length += c->r[i].loaded < to && c->r[i].e > from;
	if (violations > 1 && length >= shortest)
		return;
	shortest = length;
	va_start(ap, fmt);
	vsnprintf(v.what, sizeof(v.what), fmt, ap);
	va_end(ap);
	for (unsigned i = 0; i < 4 && blame[i] != NO_REF; i++)
		v.blame[v.nblame++] = blame[i];
	found = v;
}

/* ---- which write a read saw ---- */

/* A device's view of its own stores until they are released. */
static bool is_private_view(const struct read *r, const struct write *w)
{
	return r->owner && r->owner == w->owner && (w->private || w->optional || r->s < w->hi);
}

/* Each byte is one that some write allows. Racing writes of one cell may mix, as they are merged by bytes. */
static bool is_mixture(const struct cell *c, const struct read *r)
{
	uint8_t left = 0xff;

	if (world->config.bytes)
		return false;
	for (unsigned i = 0; i < c->nw && left; i++) {
		const struct write *w = &c->w[i];

		if (!could_see(r, w) || (overwritten(c, w, r->s) && !is_private_view(r, w)))
			continue;
		if (w->copied && w->copied->n > MOST_VALUES)
			return true;
		for (unsigned k = 0; k < (w->copied ? w->copied->n : 1); k++) {
			uint64_t value = w->copied ? w->copied->at[k] : w->value;

			for (unsigned b = 0; b < 8; b++)
				if ((value >> 8 * b & 0xff) == (r->value >> 8 * b & 0xff))
					left &= (uint8_t)~(1u << b);
		}
	}
	return left == 0;
}

static void find_seen(const struct cell *c, struct read *r)
{
	const struct write *hidden = NULL, *stale = NULL;
	unsigned n = 0;
	ref blame[4] = { r->by, NO_REF, NO_REF, NO_REF };

	for (unsigned i = 0; i < c->nw; i++) {
		const struct write *w = &c->w[i];

		if (!may_be(w, r->value))
			continue;
		if (!could_see(r, w)) {
			hidden = w;
		} else if (overwritten(c, w, r->s) && !is_private_view(r, w)) {
			stale = w;
		} else {
			n++;
			r->saw = (int)i;
		}
	}
	if (n == 1)
		return;
	r->saw = -1;
	if (n > 1)
		return;
	if (is_mixture(c, r)) {
		stats.mixed++;
		return;
	}
	if (stale) {
		const struct write *by = NULL;

		for (unsigned i = 0; i < c->nw; i++) {
			const struct write *w = &c->w[i];

			if (!w->optional && !w->private && stale->hi < w->lo && w->hi < r->s &&
			    (!by || w->hi > by->hi))
				by = w;
		}
		blame[1] = stale->by == NO_REF && by ? by->by : stale->by;
		blame[2] = by && stale->by != NO_REF ? by->by : NO_REF;
		complain(c, blame, by ? by->lo : stale->lo, r->e,
			 "a stale value: it was overwritten, for all to see, before the read began");
	} else if (hidden) {
		blame[1] = hidden->by;
		complain(c, blame, hidden->s, r->e,
			 hidden->s >= r->e ? "a value from the future" :
			 hidden->dropped != NEVER ? "a value that was lost with its client, unreleased" :
			 "a value that nobody had released");
	} else {
		uint64_t from = r->s;

		/* All that it could be. */
		for (unsigned i = 0; i < c->nw; i++)
			if (c->w[i].s && c->w[i].s < from && !overwritten(c, &c->w[i], r->s))
				from = c->w[i].s;
		complain(c, blame, from, r->e, "a value that nobody wrote here");
	}
}

/* ---- a device sees its own stores ---- */

static bool touched(const struct spans *list, uint64_t from, uint64_t to)
{
	for (unsigned i = 0; i < list->n; i++)
		if (list->at[i].s < to && list->at[i].e > from)
			return true;
	return false;
}

static void check_own_stores(const struct cell *c, const struct read *r)
{
	const struct write *own = NULL;
	ref blame[4] = { r->by, NO_REF, NO_REF, NO_REF };
	unsigned n;
	const ref *cut;

	for (unsigned i = 0; i < c->nw; i++) {
		const struct write *w = &c->w[i];

		/* Made under an acquire that still holds, and by nobody who died. */
		if (w->owner == r->owner && w->e < r->loaded && w->s > r->s && w->dropped == NEVER &&
		    (!own || w->s > own->s))
			own = w;
	}
	if (!own || touched(acquires_of(c->file, r->owner - 1u, c->cell / page_cells()), own->s, r->e))
		return;
	/* Others who share the device may have lost theirs, uncovering what was below. */
	for (unsigned i = 0; i < c->nw; i++)
		if (c->w[i].owner == r->owner && c->w[i].dropped != NEVER && c->w[i].s < r->e)
			return;
	cut = truncations(c->file, &n);
	for (unsigned i = 0; i < n; i++)
		if (REF_OP(cut[i])->cell <= c->cell && REF_OP(cut[i])->s < r->e &&
		    (never_ended(REF_OP(cut[i])) || REF_OP(cut[i])->e > own->s) && REF_OP(cut[i])->arg != 1)
			return;
	for (unsigned i = 0; i < c->nw; i++)
		if (c->w[i].owner == r->owner && c->w[i].e >= own->s && c->w[i].s < r->e &&
		    may_be(&c->w[i], r->value))
			return;
	if (is_mixture(c, r))
		return;
	blame[1] = own->by;
	complain(c, blame, own->s, r->e, "a device lost its own store, without an acquire in between");
}

/* ---- orders ---- */

static int by_f(const void *a, const void *b)
{
	const struct write *x = *(const struct write *const *)a, *y = *(const struct write *const *)b;

	return x->f < y->f ? -1 : x->f > y->f;
}

/* The zones of the writes with f set. */
static void check_order(const struct cell *c, const char *whose)
{
	static const struct write **held;
	static unsigned room;
	unsigned n = 0;

	if (room < c->nw) {
		room = c->nw;
		held = realloc(held, room * sizeof(*held));
	}
	for (unsigned i = 0; i < c->nw; i++)
		if (c->w[i].f != NEVER && c->w[i].f < c->w[i].l)
			held[n++] = &c->w[i];
	if (n == 0)
		return;
	qsort(held, n, sizeof(*held), by_f);
	for (unsigned i = 0; i + 1 < n; i++) {
		const struct write *a = held[i], *b = held[i + 1];
		ref blame[4] = { a->first, a->last, b->first, b->last };

		if (b->f >= a->l)
			continue;
		if (blame[0] == NO_REF) {
			blame[0] = a->last;
			blame[1] = b->first;
			blame[2] = b->last;
			blame[3] = NO_REF;
		}
		complain(c, blame, b->f < a->f ? b->f : a->f, a->l > b->l ? a->l : b->l,
			 "%s saw two values at the same time: one came back", whose);
		return;
	}
	for (unsigned i = 0; i < c->nw; i++) {
		const struct write *w = &c->w[i], *in = NULL;
		unsigned a = 0, b = n;
		ref blame[4];

		if (w->f == NEVER || w->f < w->l)
			continue;
		/* The last that began before it; those before that had ended by then. */
		while (a < b) {
			unsigned m = (a + b) / 2;

			if (held[m]->f < w->l)
				a = m + 1;
			else
				b = m;
		}
		if (a > 0)
			in = held[a - 1];
		if (!in || in->l <= w->f)
			continue;
		blame[0] = in->first != NO_REF ? in->first : in->last;
		blame[1] = in->last;
		blame[2] = w->first;
		blame[3] = w->last;
		complain(c, blame, in->f && in->f < w->l ? in->f : w->l, in->l,
			 "%s: a write was lost, as an older value is there before and after it", whose);
		return;
	}
}

static void zones_begin(const struct cell *c)
{
	for (unsigned i = 0; i < c->nw; i++) {
		struct write *w = &c->w[i];

		w->f = w->private || w->raced ? NEVER : w->hi;
		w->l = w->lo;
		w->first = w->last = w->by;
	}
}

static void extend(struct write *w, const struct read *r, uint64_t s, uint64_t e)
{
	if (s > w->l) {
		w->l = s;
		w->last = r->by;
	}
	/* What may have been stored beyond the end is not there for all. */
	if (e < w->f && !w->optional && !w->raced && !w->gradual) {
		w->f = e;
		w->first = r->by;
	}
}

static void check_orders(const struct cell *c)
{
	zones_begin(c);
	for (unsigned i = 0; i < c->nr; i++) {
		const struct read *r = &c->r[i];

		if (r->saw >= 0 && !is_private_view(r, &c->w[r->saw]))
			extend(&c->w[r->saw], r, r->s, NEVER);
	}
	check_order(c, "the system");

	zones_begin(c);
	for (unsigned i = 0; i < c->nr; i++) {
		const struct read *r = &c->r[i];

		/* Past the kernel's cache, what is being released may be seen before it is there for all. */
		if (r->saw >= 0 && !r->owner && !r->last)
			extend(&c->w[r->saw], r, r->s, REF_OP(r->by)->kind == OP_DREAD ? NEVER : r->e);
	}
	check_order(c, "the CPU processes");

	for (unsigned d = 1; d <= config_memories(&world->config); d++) {
		for (unsigned i = 0; i < c->nw; i++) {
			c->w[i].f = NEVER;
			c->w[i].l = 0;
		}
		for (unsigned i = 0; i < c->nr; i++) {
			const struct read *r = &c->r[i];

			if (r->owner == d && !r->either && r->saw >= 0 && !c->w[r->saw].optional &&
			    !c->w[r->saw].raced && c->w[r->saw].dropped == NEVER)
				extend(&c->w[r->saw], r, r->loaded, r->e);
		}
		check_order(c, "a device");
	}
}

enum verdict oracle(uint64_t crashed)
{
	struct cell c = { .nw = 0 };
	unsigned nfiles = atomic_load(&world->nfiles);

	violations = 0;
	facts_gather(crashed);
	for (unsigned f = 0; f < nfiles; f++)
		for (uint32_t cell = 0; cell < all_cells(); cell++) {
			unsigned n;

			cell_ops(f, cell, &n);
			if (n == 0)
				continue;
			cell_gather(&c, f, cell);
			stats.cells++;
			stats.writes += c.nw - 1;
			stats.reads += c.nr;
			for (unsigned i = 0; i < c.nr; i++) {
				find_seen(&c, &c.r[i]);
				if (c.r[i].owner && !c.r[i].either)
					check_own_stores(&c, &c.r[i]);
			}
			check_orders(&c);
		}
	if (violations) {
		cell_gather(&c, found.file, found.cell);
		printf("%lu violation%s in round %u; the shortest history:\n", violations,
		       violations == 1 ? "" : "s", world->round);
		explain(&found, &c);
	}
	copies_drop();
	facts_drop();
	free(c.w);
	free(c.r);
	free(c.over);
	return violations ? VIOLATION : ALL_WELL;
}
