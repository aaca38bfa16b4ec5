/* holds.c - see holds.h. */
#include "pagecache/holds.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/param.h>

#include "base/util.h"

static int compare(const struct hold *x, const struct hold *y)
{
	return x->a < y->a ? -1 : x->a > y->a;
}

RB_GENERATE_INTERNAL(hold_tree, hold, link, compare, __attribute__((unused)) static)

static bool alike(const struct hold *x, const struct hold *y)
{
	return x->n == y->n && x->writes == y->writes && x->coming == y->coming && x->over == y->over;
}

/* @n may be "negative". Nobody else changes it meanwhile: so no locked instruction is needed. */
static void add_pages(struct holds *hs, uint64_t n)
{
	atomic_store_explicit(&hs->pages, atomic_load_explicit(&hs->pages, memory_order_relaxed) + n, memory_order_relaxed);
}

/* Insert a span of pages [a, b) with the numbers of @like. */
static void insert(struct holds *hs, uint64_t a, uint64_t b, const struct hold *like)
{
	struct hold *h = xmalloc(sizeof(*h));

	*h = *like;
	h->a = a;
	h->b = b;
	RB_INSERT(hold_tree, &hs->tree, h);
	hs->spans++;
	add_pages(hs, b - a);
}

static void drop(struct holds *hs, struct hold *h)
{
	RB_REMOVE(hold_tree, &hs->tree, h);
	hs->spans--;
	add_pages(hs, h->a - h->b);
	free(h);
}

void holds_clear(struct holds *hs)
{
	struct hold *h;

	while ((h = RB_ROOT(&hs->tree)))
		drop(hs, h);
}

/* The span that has page @a, else the first after it. */
static struct hold *at_or_after(const struct holds *hs, uint64_t a)
{
	struct hold_tree *tree = (struct hold_tree *)&hs->tree;
	struct hold *h = RB_ROOT(tree), *found = NULL;

	while (h) {
		if (h->b > a) {
			found = h;
			h = RB_LEFT(h, link);
		} else {
			h = RB_RIGHT(h, link);
		}
	}
	return found;
}

const struct hold *holds_first(const struct holds *hs, uint64_t a, uint64_t b)
{
	const struct hold *h = at_or_after(hs, a);

	/* A span may lie across an empty range. */
	return a < b && h && h->a < b ? h : NULL;
}

const struct hold *holds_next(const struct hold *h, uint64_t b)
{
	h = RB_NEXT(hold_tree, NULL, (struct hold *)h);
	return h && h->a < b ? h : NULL;
}

/* Cut the span that has pages on both sides of @at, if there is one. */
static void split(struct holds *hs, uint64_t at)
{
	struct hold *h = at_or_after(hs, at);

	if (!h || h->a >= at)
		return;
	insert(hs, at, h->b, h);
	add_pages(hs, at - h->b);
	h->b = at;
}

/* Join adjacent spans in [a, b] that have become equal; those at the ends also with what is beyond. */
static void join(struct holds *hs, uint64_t a, uint64_t b)
{
	struct hold *h = at_or_after(hs, a > 0 ? a - 1 : 0), *next;

	for (; h && h->b <= b; h = next) {
		next = RB_NEXT(hold_tree, NULL, h);
		if (!next || next->a != h->b || !alike(h, next))
			continue;
		add_pages(hs, next->b - next->a);
		h->b = next->b;
		drop(hs, next);
		next = h;
	}
}

/*
 * Pages [a, b) with the numbers of @new, if none of them is in a span. They make the span before them longer, as when chunk after chunk is
 * acquired, or the one behind, if that has these numbers; or both, which then are one, as when what lies between chunks that are ready is acquired.
 */
static bool add_to_gap(struct holds *hs, uint64_t a, uint64_t b, const struct hold *new)
{
	struct hold *h = at_or_after(hs, a > 0 ? a - 1 : 0), *before = h && h->b == a ? h : NULL, *next = before ? RB_NEXT(hold_tree, NULL, h) : h;

	if (next && next->a < b)
		return false;
	if (before && !alike(before, new))
		before = NULL;
	if (next && (next->a > b || !alike(next, new)))
		next = NULL;
	if (before) {
		add_pages(hs, b - a + (next ? next->b - next->a : 0));
		before->b = next ? next->b : b;
		if (next)
			drop(hs, next);
	} else if (next) {
		add_pages(hs, b - a);
		next->a = a; /* it stays where it is in the order */
	} else {
		insert(hs, a, b, new);
	}
	return true;
}

int holds_add(struct holds *hs, uint64_t a, uint64_t b, uint32_t n, uint32_t writes)
{
	const struct hold *look;
	struct hold new = { .n = n, .writes = writes, .coming = n }, *h;
	uint64_t at = a;

	if (a >= b)
		return 0;
	if (n > HOLDS_OF_A_PAGE)
		return -EOVERFLOW;
	if (add_to_gap(hs, a, b, &new))
		return 0;
	HOLDS_FOREACH(look, hs, a, b)
		if (look->n + n > HOLDS_OF_A_PAGE)
			return -EOVERFLOW;
	split(hs, a);
	split(hs, b);
	for (h = at_or_after(hs, a); at < b; h = RB_NEXT(hold_tree, NULL, h)) {
		uint64_t gap = h && h->a < b ? h->a : b;

		if (at < gap)
			insert(hs, at, gap, &new);
		if (gap == b)
			break;
		h->n += n;
		h->writes += writes;
		h->coming += n;
		at = h->b;
	}
	join(hs, a, b);
	return 0;
}

enum change { SETTLE, UNDO, RELEASE, DROP, OVER, NOT_OVER };

static void change(struct hold *h, enum change how, uint32_t n, uint32_t writes)
{
	switch (how) {
	case SETTLE:
		h->coming -= MIN(n, h->coming);
		return;
	case OVER:
	case NOT_OVER:
		h->over = how == OVER;
		return;
	case UNDO:
		n = MIN(n, h->n);
		h->coming -= MIN(n, h->coming);
		h->writes -= MIN(writes, h->writes);
		break;
	case RELEASE:
		n = MIN(n, h->n - h->coming);
		break;
	case DROP:
		n = h->n;
		break;
	}
	h->n -= n;
	h->writes = MIN(h->writes, h->n);
	h->coming = MIN(h->coming, h->n);
}

static void change_all(struct holds *hs, uint64_t a, uint64_t b, enum change how, uint32_t n, uint32_t writes)
{
	struct hold *h, *next;

	if (a >= b)
		return;
	split(hs, a);
	split(hs, b);
	for (h = at_or_after(hs, a); h && h->a < b; h = next) {
		next = RB_NEXT(hold_tree, NULL, h);
		change(h, how, n, writes);
		if (h->n == 0)
			drop(hs, h);
	}
	join(hs, a, b);
}

void holds_settle(struct holds *hs, uint64_t a, uint64_t b, uint32_t n)
{
	change_all(hs, a, b, SETTLE, n, 0);
}

void holds_undo(struct holds *hs, uint64_t a, uint64_t b, uint32_t n, uint32_t writes)
{
	change_all(hs, a, b, UNDO, n, writes);
}

void holds_overwrite(struct holds *hs, uint64_t a, uint64_t b, bool over)
{
	change_all(hs, a, b, over ? OVER : NOT_OVER, 0, 0);
}

void holds_release(struct holds *hs, uint64_t a, uint64_t b, uint32_t n)
{
	change_all(hs, a, b, RELEASE, n, 0);
}

void holds_drop(struct holds *hs, uint64_t a, uint64_t b)
{
	change_all(hs, a, b, DROP, 0, 0);
}
