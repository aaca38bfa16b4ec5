/*
 * search.h - shortest paths on the device, and again from where it was when weights have changed.
 *
 * For each vertex the device keeps its distance and the edge by which it is reached. After a change of weights:
 *  - who was reached by an edge that became longer, and all behind it, lose their distance, and look for another among neighbours
 *    that have kept theirs;
 *  - who has an edge that became shorter, and who has found another distance, is queued;
 *  - delta-stepping (Meyer, Sanders 2003) as for GPUs (Davidson et al. 2014): vertices nearer than a limit are relaxed, all at
 *    once, until there are none; then the limit moves on, and the far ones are split by it.
 * So the work is proportional to what changes. Distances do not depend on the order, so they are comparable bit by bit.
 */
#ifndef EXAMPLE_SEARCH_H
#define EXAMPLE_SEARCH_H

#include "graph.h"

#define UNREACHED UINT64_MAX
#define NO_EDGE UINT32_MAX

enum list { NEAR, NEXT, FAR, FAR_NEXT, LOST, LISTS };

struct search {
	struct graph graph;   /* on the device */
	const uint32_t *now;  /* weights as they are */
	uint32_t *was;	      /* and for which the distances are right */
	uint64_t *best;	      /* of each vertex: distance << 32 | edge by which it is reached; UNREACHED */
	uint32_t *queued;     /* of each vertex: 1: it is in NEXT or FAR */
	uint32_t *list[LISTS]; /* of vertices; each has room for all */
	uint32_t *count;      /* of each list */
	uint64_t *nearest;    /* of those in FAR */
	uint64_t limit;	      /* distance << 32: nearer ones are relaxed first */
	uint32_t source;
};

DEVICE static inline void put(const struct search *s, enum list list, uint32_t v)
{
	s->list[list][device_add(&s->count[list], 1)] = v;
}

DEVICE static inline void queue(const struct search *s, uint32_t v)
{
	if (!device_exchange(&s->queued[v], 1))
		put(s, device_load(&s->best[v]) < s->limit ? NEXT : FAR, v);
}

/* Of each edge. Only the one edge by which a vertex is reached takes its distance away. */
KERNEL(compare, struct search)
{
	uint32_t now = a->now[i], was = a->was[i], from, to;

	if (now == was)
		return;
	a->was[i] = now;
	from = a->graph.targets[a->graph.reverse[i]];
	to = a->graph.targets[i];
	if (now < was) {
		if (a->best[from] != UNREACHED)
			queue(a, from);
	} else if ((uint32_t)a->best[to] == i && to != a->source) {
		a->best[to] = UNREACHED;
		put(a, LOST, to);
	}
}

struct lose {
	struct search s;
	uint32_t from; /* where in LOST those begin whose neighbours were not looked at */
};

KERNEL(lose, struct lose)
{
	const struct search *s = &a->s;
	uint32_t v = s->list[LOST][a->from + i];

	for (uint64_t e = s->graph.offsets[v]; e < s->graph.offsets[v + 1]; e++) {
		uint32_t to = s->graph.targets[e];

		if (s->best[to] != UNREACHED && (uint32_t)s->best[to] == e && to != s->source) {
			s->best[to] = UNREACHED;
			put(s, LOST, to);
		}
	}
}

/* Of each vertex that has lost its distance: another, by a neighbour that has one. */
KERNEL(seek, struct search)
{
	uint32_t v = a->list[LOST][i];
	uint64_t best = UNREACHED;

	for (uint64_t e = a->graph.offsets[v]; e < a->graph.offsets[v + 1]; e++) {
		uint64_t other = device_load(&a->best[a->graph.targets[e]]), edge = a->graph.reverse[e];

		if (other != UNREACHED) {
			uint64_t found = ((other >> 32) + a->now[edge]) << 32 | edge;

			best = found < best ? found : best;
		}
	}
	if (best != UNREACHED) {
		device_min(&a->best[v], best);
		queue(a, v);
	}
}

KERNEL(relax, struct search)
{
	uint32_t v = a->list[NEAR][i];
	uint64_t best;

	device_exchange(&a->queued[v], 0);
	best = device_load(&a->best[v]);
	if (best == UNREACHED)
		return;
	for (uint64_t e = a->graph.offsets[v]; e < a->graph.offsets[v + 1]; e++) {
		uint32_t to = a->graph.targets[e];
		uint64_t found = ((best >> 32) + a->now[e]) << 32 | e;

		if (found < device_load(&a->best[to]) && to != a->source && (found >> 32) < device_min(&a->best[to], found) >> 32)
			queue(a, to);
	}
}

KERNEL(find_nearest, struct search)
{
	device_min(a->nearest, device_load(&a->best[a->list[FAR][i]]));
}

KERNEL(split, struct search)
{
	uint32_t v = a->list[FAR][i];

	put(a, a->best[v] < a->limit ? NEXT : FAR_NEXT, v);
}

/* ---- the host's side ---- */

static inline struct search search_new(struct graph graph, uint32_t source, const uint32_t *now)
{
	struct search s;

	memset(&s, 0, sizeof(s));
	s.graph = graph;
	s.source = source;
	s.now = now;
	s.was = (uint32_t *)device_alloc(graph.edges * 4);
	s.best = (uint64_t *)device_alloc(graph.vertices * 8);
	s.queued = (uint32_t *)device_alloc(graph.vertices * 4);
	for (int i = 0; i < LISTS; i++)
		s.list[i] = (uint32_t *)device_alloc(graph.vertices * 4);
	s.count = (uint32_t *)device_alloc(LISTS * 4);
	s.nearest = (uint64_t *)device_alloc(8);
	return s;
}

static inline void search_free(struct search *s)
{
	device_free(s->was);
	device_free(s->best);
	device_free(s->queued);
	for (int i = 0; i < LISTS; i++)
		device_free(s->list[i]);
	device_free(s->count);
	device_free(s->nearest);
}

static inline uint32_t count_of(const struct search *s, enum list list)
{
	uint32_t n;

	device_copy(&n, &s->count[list], sizeof(n));
	return n;
}

static inline void swap_lists(struct search *s, enum list a, enum list b)
{
	uint32_t *list = s->list[a];

	s->list[a] = s->list[b];
	s->list[b] = list;
	device_copy(&s->count[a], &s->count[b], 4);
	device_fill(&s->count[b], 0, 4);
}

/* Relax what is queued, until nothing is. */
static inline void settle(struct search *s, uint32_t delta)
{
	uint64_t nearest;

	for (;;) {
		while (count_of(s, NEXT)) {
			swap_lists(s, NEAR, NEXT);
			LAUNCH(relax, count_of(s, NEAR), s);
		}
		if (!count_of(s, FAR))
			return;
		device_fill(s->nearest, 0xff, 8);
		LAUNCH(find_nearest, count_of(s, FAR), s);
		device_copy(&nearest, s->nearest, 8);
		if (nearest == UNREACHED)
			return; /* nobody reaches them: they stay queued */
		s->limit = ((nearest >> 32) + delta) << 32;
		LAUNCH(split, count_of(s, FAR), s);
		swap_lists(s, FAR, FAR_NEXT);
	}
}

/* All distances, from the beginning. */
static inline void search_first(struct search *s, uint32_t delta)
{
	uint64_t zero = NO_EDGE; /* distance 0, by no edge */
	uint32_t one = 1;

	device_copy(s->was, s->now, s->graph.edges * 4);
	device_fill(s->best, 0xff, s->graph.vertices * 8);
	device_copy(&s->best[s->source], &zero, 8);
	device_copy(s->list[FAR], &s->source, 4);
	device_copy(&s->count[FAR], &one, 4);
	device_copy(&s->queued[s->source], &one, 4);
	s->limit = 0;
	settle(s, delta);
}

/* The distances after weights have changed. */
static inline void search_again(struct search *s, uint32_t delta)
{
	struct lose lost;
	uint32_t end;

	s->limit = 0; /* all that is queued is far */
	device_fill(&s->count[LOST], 0, 4);
	LAUNCH(compare, s->graph.edges, s);
	lost.s = *s;
	for (lost.from = 0; (end = count_of(s, LOST)) > lost.from; lost.from = end)
		LAUNCH(lose, end - lost.from, &lost);
	LAUNCH(seek, count_of(s, LOST), s);
	settle(s, delta);
}

#endif
