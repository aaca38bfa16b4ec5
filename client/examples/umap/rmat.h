/*
 * rmat.h - a graph in a file, and a generator of R-MAT graphs.
 *
 * The file is a struct graph_head, then vertices + 1 offsets of 8 bytes, then the edges' targets of 4 bytes: those of vertex v are
 * edges[offsets[v]] up to edges[offsets[v + 1] - 1]. Each edge is there in both directions.
 */
#ifndef EXAMPLE_RMAT_H
#define EXAMPLE_RMAT_H

#include "memory.h"
#include "../shared/rmat.h"

#define GRAPH_MAGIC 0x6772617068313233u
#define EDGE_FACTOR 16 /* edges a vertex, before they are doubled */

struct graph_head {
	uint64_t magic, vertices, edges; /* edges: with both directions */
	uint64_t sum;			 /* of edge_mark() over all edges */
};

static inline size_t graph_size(uint64_t vertices, uint64_t edges)
{
	return sizeof(struct graph_head) + (vertices + 1) * 8 + edges * 4;
}

static inline const uint64_t *graph_offsets(const struct graph_head *graph)
{
	return (const uint64_t *)(graph + 1);
}

static inline const uint32_t *graph_edges(const struct graph_head *graph, uint64_t vertices)
{
	return (const uint32_t *)(graph_offsets(graph) + vertices + 1);
}

static inline uint64_t edge_mark(uint32_t from, uint32_t to)
{
	return mix((uint64_t)from << 32 | to);
}

/* Write a graph of 2^scale vertices to the file. Needs the memory of the offsets, and the kernel's for the file. */
static inline void rmat_make(const char *path, unsigned scale)
{
	uint64_t vertices = (uint64_t)1 << scale, n = vertices * EDGE_FACTOR, sum = 0;
	size_t size = graph_size(vertices, 2 * n);
	uint64_t *ends = calloc(vertices + 1, 8), *offsets;
	struct graph_head *graph;
	uint32_t *edges, from, to;
	int fd;

	if (!scale || scale > 31)
		errx(2, "a graph has 2^1 to 2^31 vertices");
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
	if (fd < 0 || ftruncate(fd, (off_t)size))
		err(1, "%s", path);
	graph = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (graph == MAP_FAILED || !ends)
		err(1, "%s: too large", path);
	for (uint64_t i = 0; i < n; i++) {
		rmat_edge(i, scale, &from, &to);
		ends[from]++;
		ends[to]++;
		sum += edge_mark(from, to) + edge_mark(to, from);
	}
	offsets = (uint64_t *)(graph + 1);
	for (uint64_t v = 0, at = 0; v <= vertices; v++) {
		uint64_t degree = ends[v];

		offsets[v] = ends[v] = at;
		at += degree;
	}
	edges = (uint32_t *)(offsets + vertices + 1);
	for (uint64_t i = 0; i < n; i++) {
		rmat_edge(i, scale, &from, &to);
		edges[ends[from]++] = to;
		edges[ends[to]++] = from;
	}
	*graph = (struct graph_head){GRAPH_MAGIC, vertices, 2 * n, sum};
	if (munmap(graph, size) || fsync(fd) || close(fd))
		err(1, "%s", path);
	free(ends);
}

#endif
