/*
 * reference.h - the same distances by the simplest way, from the beginning each time: Dijkstra's, with a heap, on the CPU. Its
 * weights are a copy of its own, read from the file once; from then on it applies to it what each update does.
 */
#ifndef EXAMPLE_REFERENCE_H
#define EXAMPLE_REFERENCE_H

#include "graph.h"

struct reference {
	struct graph graph;	 /* mapped as by any program */
	struct epoch_head head;
	uint32_t *weights;
	uint64_t updates;	 /* how many are in the weights */
	uint64_t *heap, used, room; /* distance << 32 | vertex */
	uint32_t *distances;
};

/* @path: of the weights, in whose file an update may be under way. */
static inline void reference_open(struct reference *r, struct graph graph, const char *path)
{
	uint64_t start = now_ns();
	struct epoch_head after;
	int fd = open_file(path, O_RDONLY);

	r->graph = graph;
	r->weights = (uint32_t *)own_memory(graph.edges * 4);
	r->distances = (uint32_t *)own_memory(graph.vertices * 4);
	r->heap = NULL;
	r->room = 0;
	do {
		if (now_ns() - start > EPOCH_PATIENCE_NS)
			errx(1, "%s: updates leave no time to read it", path);
		read_all(fd, &r->head, sizeof(r->head), 0);
		read_all(fd, r->weights, graph.edges * 4, PAGE);
		read_all(fd, &after, sizeof(after), 0);
	} while (r->head.epoch % 2 || after.epoch != r->head.epoch);
	if (r->head.magic != GRAPH_MAGIC || r->head.items != graph.edges)
		errx(1, "%s: not the weights of this graph", path);
	r->updates = r->head.epoch / 2;
	close(fd);
}

static inline void reference_close(struct reference *r)
{
	free(r->weights);
	free(r->distances);
	free(r->heap);
}

static inline void heap_push(struct reference *r, uint64_t entry)
{
	uint64_t at = r->used++;

	if (r->used > r->room) {
		r->room = r->room * 2 + 1024;
		r->heap = (uint64_t *)realloc(r->heap, r->room * 8);
		if (!r->heap)
			err(1, "no memory for the reference");
	}
	for (; at && r->heap[(at - 1) / 2] > entry; at = (at - 1) / 2)
		r->heap[at] = r->heap[(at - 1) / 2];
	r->heap[at] = entry;
}

static inline uint64_t heap_pop(struct reference *r)
{
	uint64_t least = r->heap[0], last = r->heap[--r->used], at = 0, child;

	while ((child = 2 * at + 1) < r->used) {
		child += child + 1 < r->used && r->heap[child + 1] < r->heap[child];
		if (r->heap[child] >= last)
			break;
		r->heap[at] = r->heap[child];
		at = child;
	}
	r->heap[at] = last;
	return least;
}

/* The distances after so many updates; never fewer than at the last call. */
static inline const uint32_t *reference_distances(struct reference *r, uint64_t updates, uint32_t source)
{
	while (r->updates < updates)
		apply_update(&r->head, r->weights, ++r->updates);
	memset(r->distances, 0xff, r->graph.vertices * 4);
	r->distances[source] = 0;
	r->used = 0;
	heap_push(r, source);
	while (r->used) {
		uint64_t entry = heap_pop(r), distance = entry >> 32;
		uint32_t v = (uint32_t)entry;

		if (distance != r->distances[v])
			continue;
		for (uint64_t e = r->graph.offsets[v]; e < r->graph.offsets[v + 1]; e++) {
			uint32_t to = r->graph.targets[e];

			if (distance + r->weights[e] < r->distances[to]) {
				r->distances[to] = (uint32_t)distance + r->weights[e];
				heap_push(r, (uint64_t)r->distances[to] << 32 | to);
			}
		}
	}
	return r->distances;
}

#endif
