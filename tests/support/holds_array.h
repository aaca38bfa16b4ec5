/*
 * holds_array.h - the reference of holds.h: an array with the numbers of each page, for tests that compare the two.
 *
 * After begin() and after each event() both must agree: agree(). end() frees everything.
 *
 * A file that includes it must first define
 *	MUST(cond[, fmt...])		ends the test if not @cond
 *	unsigned choose(unsigned n)	less than @n, which is at most 256: what happens next
 */
#ifndef GAIA_TESTS_HOLDS_ARRAY_H
#define GAIA_TESTS_HOLDS_ARRAY_H

#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "pagecache/holds.h"

#define PAGES 96u

struct numbers {
	uint32_t n, writes, coming;
};

static struct {
	struct holds hs;
	struct numbers is[PAGES];
	uint64_t from; /* page 0 of the array is this one */
} w;

static void begin(uint64_t from)
{
	w.hs = (struct holds){ .spans = 0 };
	memset(w.is, 0, sizeof(w.is));
	w.from = from;
}

static void end(void)
{
	holds_clear(&w.hs);
	MUST(w.hs.spans == 0 && !holds_first(&w.hs, 0, UINT64_MAX));
}

/* The same for pages [a, b) only: the spans found are those that have some of them. */
static void agree_between(uint64_t a, uint64_t b)
{
	const struct hold *h = holds_first(&w.hs, w.from + a, w.from + b);

	for (uint64_t p = a; p < b; p++) {
		if (h && h->b <= w.from + p)
			h = holds_next(h, w.from + b);
		MUST((w.is[p].n > 0) == (h && h->a <= w.from + p), "page %lu", (unsigned long)p);
	}
	MUST(!h || h->b >= w.from + b || !holds_next(h, w.from + b));
}

static void agree(void)
{
	struct numbers seen[PAGES] = { { 0, 0, 0 } };
	const struct hold *h, *before = NULL;
	uint64_t spans = 0, pages = 0;

	HOLDS_FOREACH(h, &w.hs, 0, UINT64_MAX) {
		MUST(w.from <= h->a && h->a < h->b && h->b <= w.from + PAGES);
		MUST(h->n > 0);
		MUST(!before || before->b <= h->a, "in order");
		MUST(!before || before->b < h->a || before->n != h->n || before->writes != h->writes ||
			     before->coming != h->coming,
		     "pages %lu and %lu are alike, and apart", (unsigned long)h->a - 1, (unsigned long)h->a);
		for (uint64_t p = h->a; p < h->b; p++)
			seen[p - w.from] = (struct numbers){ h->n, h->writes, h->coming };
		before = h;
		spans++;
		pages += h->b - h->a;
	}
	MUST(spans == w.hs.spans);
	MUST(pages == atomic_load(&w.hs.pages));
	MUST(!memcmp(seen, w.is, sizeof(seen)));
}

enum event { ADD, SETTLE, UNDO, RELEASE, DROP };

/* The operations of holds.h, on one page. */
static void apply(struct numbers *p, enum event what, uint32_t n, uint32_t writes)
{
	switch (what) {
	case ADD:
		*p = (struct numbers){ p->n + n, p->writes + writes, p->coming + n };
		return;
	case SETTLE:
		p->coming -= MIN(n, p->coming);
		return;
	case UNDO:
		p->coming -= MIN(n, p->coming);
		p->writes -= MIN(writes, p->writes);
		p->n -= MIN(n, p->n);
		break;
	case RELEASE:
		p->n -= MIN(n, p->n - p->coming);
		break;
	case DROP:
		p->n = 0;
		break;
	}
	p->writes = MIN(p->writes, p->n);
	p->coming = MIN(p->coming, p->n);
}

static bool too_many(uint64_t a, uint64_t b, uint32_t n)
{
	for (uint64_t p = a; p < b; p++)
		if (w.is[p].n + n > HOLDS_OF_A_PAGE)
			return true;
	return false;
}

static void event(void)
{
	static const enum event some[] = { ADD, ADD, ADD, ADD, ADD, ADD, SETTLE, SETTLE, SETTLE, UNDO, UNDO,
					   RELEASE, RELEASE, RELEASE, RELEASE, DROP };
	enum event what = some[choose(sizeof(some) / sizeof(some[0]))];
	uint64_t a = choose(PAGES), b = a + choose(PAGES + 1 - (unsigned)a);
	/* Seldom so many that soon a page would have too many. */
	uint32_t n = choose(32) == 31 ? HOLDS_OF_A_PAGE / 2 : 1 + choose(3), writes = choose(4) * n / 3;
	bool refused = false;

	switch (what) {
	case ADD:
		refused = a < b && too_many(a, b, n);
		MUST(holds_add(&w.hs, w.from + a, w.from + b, n, writes) == (refused ? -EOVERFLOW : 0));
		break;
	case SETTLE:
		holds_settle(&w.hs, w.from + a, w.from + b, n);
		break;
	case UNDO:
		holds_undo(&w.hs, w.from + a, w.from + b, n, writes);
		break;
	case RELEASE:
		holds_release(&w.hs, w.from + a, w.from + b, n);
		break;
	case DROP:
		holds_drop(&w.hs, w.from + a, w.from + b);
		break;
	}
	for (uint64_t p = a; p < b && !refused; p++)
		apply(&w.is[p], what, n, writes);
	agree_between(a, b);
}

#endif
