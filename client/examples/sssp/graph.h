/*
 * graph.h - the files of a graph, and their generators.
 *
 * GRAPH has what does not change: a page with a struct graph_head; vertices + 1 offsets of 8 bytes; for each edge its target, 4
 * bytes; and for each edge the number of the one that leads back. The edges from vertex v are offsets[v] up to offsets[v + 1] - 1.
 * Each edge is there in both directions. GRAPH.weights has what changes: a page that begins with a struct epoch_head (epoch.h), and
 * for each edge its weight, 4 bytes, from 1 to MAX_WEIGHT.
 */
#ifndef EXAMPLE_GRAPH_H
#define EXAMPLE_GRAPH_H

#include "../shared/epoch.h"
#include "../shared/rmat.h"

#define GRAPH_MAGIC 0x737373702d312e30u
#define EDGE_FACTOR 16 /* of R-MAT: edges a vertex, before they are doubled */
#define MAX_WEIGHT 255u

struct graph_head {
	uint64_t magic, vertices, edges; /* edges: with both directions */
	uint64_t width;			 /* of a grid: vertices a row; else 0 */
};

/* Where the parts of a GRAPH in memory are. */
struct graph {
	uint64_t vertices, edges, width;
	const uint64_t *offsets;
	const uint32_t *targets, *reverse;
};

static inline size_t graph_size(uint64_t vertices, uint64_t edges)
{
	return PAGE + (vertices + 1) * 8 + edges * 8;
}

static inline struct graph graph_at(const void *memory, const struct graph_head *head)
{
	struct graph g = { head->vertices, head->edges, head->width, NULL, NULL, NULL };

	g.offsets = (const uint64_t *)((const char *)memory + PAGE);
	g.targets = (const uint32_t *)(g.offsets + g.vertices + 1);
	g.reverse = g.targets + g.edges;
	return g;
}

static inline const char *weights_path(const char *path)
{
	static char name[4096];

	snprintf(name, sizeof(name), "%s.weights", path);
	return name;
}

static inline uint32_t *weights_of(void *file)
{
	return (uint32_t *)((char *)file + PAGE);
}

/* The weight of an edge after the update that changes it. */
static inline uint32_t changed_weight(uint64_t seed, uint64_t edge, uint64_t update)
{
	return (uint32_t)(1 + mix(seed ^ mix(edge ^ update << 40)) % MAX_WEIGHT);
}

/* What an update does, to the file or to a copy. */
static inline void apply_update(const struct epoch_head *head, uint32_t *weights, uint64_t update)
{
	uint64_t n = epoch_changes(head);

	for (uint64_t k = 0; k < n; k++) {
		uint64_t edge = epoch_item(head, update, k);

		weights[edge] = changed_weight(head->seed, edge, update);
	}
}

static inline void apply_to_file(void *file, uint64_t update)
{
	apply_update((const struct epoch_head *)file, weights_of(file), update);
}

/* ---- generators ---- */

/* Undirected edge i of a grid: to the right from each vertex, then down. False: there is none. */
static inline bool grid_edge(uint64_t i, uint64_t width, uint64_t height, uint32_t *from, uint32_t *to)
{
	uint64_t v = i / 2, x = v % width, y = v / width;

	*from = (uint32_t)v;
	*to = (uint32_t)(v + (i % 2 ? width : 1));
	return i % 2 ? y + 1 < height : x + 1 < width;
}

/* Ground that is easy or hard to cross, in patches, and fast roads every 32 vertices. */
static inline uint32_t grid_weight(uint64_t seed, uint64_t width, uint32_t from, uint32_t to)
{
	uint64_t x = from % width, y = from / width, step = to > from ? to - from : from - to;
	uint64_t patch = mix(seed ^ (x / 24 | y / 24 << 32)) % 5;

	if (step == 1 ? y % 32 == 16 : x % 32 == 16)
		return 6 + (uint32_t)(mix(seed + from + to) % 4);
	return (uint32_t)(20 + patch * 30 + mix(seed ^ mix(from ^ (uint64_t)to << 32)) % 40);
}

static inline void *new_file(const char *path, size_t size)
{
	int fd = open_file(path, O_RDWR | O_CREAT | O_TRUNC);
	void *p;

	if (ftruncate(fd, (off_t)size))
		err(1, "%s", path);
	p = mmap(NULL, size, RW, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		err(1, "%s", path);
	close(fd);
	return p;
}

struct plan {
	uint64_t vertices, candidates; /* edges before they are doubled, some of which a grid does not have */
	uint64_t width, height, seed;
	unsigned scale; /* R-MAT; 0: a grid */
};

static inline bool plan_edge(const struct plan *plan, uint64_t i, uint32_t *from, uint32_t *to)
{
	if (!plan->scale)
		return grid_edge(i, plan->width, plan->height, from, to);
	rmat_edge(plan->seed * plan->candidates + i, plan->scale, from, to);
	return true;
}

/* "rmat:SCALE" or "grid:WIDTHxHEIGHT". */
static inline struct plan parse_plan(const char *text, uint64_t seed)
{
	struct plan plan = { 0, 0, 0, 0, seed, 0 };
	unsigned long width, height;
	char end;

	if (sscanf(text, "rmat:%u%c", &plan.scale, &end) == 1 && plan.scale >= 1 && plan.scale <= 26) {
		plan.vertices = (uint64_t)1 << plan.scale;
		plan.candidates = plan.vertices * EDGE_FACTOR;
	} else if (sscanf(text, "grid:%lux%lu%c", &width, &height, &end) == 2 && width >= 2 && height >= 2 && width < 32768 &&
		   height < 32768) {
		plan.scale = 0;
		plan.width = width;
		plan.height = height;
		plan.vertices = plan.width * plan.height;
		plan.candidates = plan.vertices * 2;
	} else {
		errx(2, "%s: not rmat:SCALE (1 to 26), nor grid:WIDTHxHEIGHT", text);
	}
	return plan;
}

/* Make both files. */
static inline void make_graph(const char *path, const struct plan *plan)
{
	uint64_t *ends = (uint64_t *)own_memory((plan->vertices + 1) * 8), edges = 0;
	uint32_t from, to, *targets, *reverse, *weights;
	struct epoch_head *epochs;
	struct graph_head *head;
	uint64_t *offsets;
	size_t size;

	for (uint64_t i = 0; i < plan->candidates; i++) {
		if (plan_edge(plan, i, &from, &to)) {
			ends[from]++;
			ends[to]++;
			edges += 2;
		}
	}
	size = graph_size(plan->vertices, edges);
	head = (struct graph_head *)new_file(path, size);
	offsets = (uint64_t *)((char *)head + PAGE);
	targets = (uint32_t *)(offsets + plan->vertices + 1);
	reverse = targets + edges;
	for (uint64_t v = 0, at = 0; v <= plan->vertices; v++) {
		uint64_t degree = ends[v];

		offsets[v] = ends[v] = at;
		at += degree;
	}
	for (uint64_t i = 0; i < plan->candidates; i++) {
		uint64_t there, back;

		if (!plan_edge(plan, i, &from, &to))
			continue;
		there = ends[from]++;
		back = ends[to]++;
		targets[there] = to;
		targets[back] = from;
		reverse[there] = (uint32_t)back;
		reverse[back] = (uint32_t)there;
		if (i % 65536 == 0)
			progress("edge %" PRIu64 " of %" PRIu64, i, plan->candidates);
	}
	head->magic = GRAPH_MAGIC;
	head->vertices = plan->vertices;
	head->edges = edges;
	head->width = plan->width;

	epochs = (struct epoch_head *)new_file(weights_path(path), PAGE + edges * 4);
	weights = weights_of(epochs);
	for (uint64_t e = 0; e < edges; e++)
		weights[e] = plan->scale ? changed_weight(plan->seed, e, 0)
					 : grid_weight(plan->seed, plan->width, targets[reverse[e]], targets[e]);
	epochs->magic = GRAPH_MAGIC;
	epochs->seed = plan->seed;
	epochs->items = edges;
	munmap(epochs, PAGE + edges * 4);
	munmap(head, size);
	free(ends);
	end_progress();
}

#endif
