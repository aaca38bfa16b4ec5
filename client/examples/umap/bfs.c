/*
 * bfs.c - breadth-first search in a graph that need not fit in memory: its file is memory, and only one byte a vertex, its
 * level, is kept besides. Then check the levels against the graph, read another way.
 *
 *	cc -O2 -pthread bfs.c -o bfs $(pkg-config --cflags --libs gaiaclient)
 *	./bfs --make 22 --budget 128M graph
 */
#include "rmat.h"

#include <pthread.h>

#define UNREACHED 255
#define SHARE 4096u /* vertices that a thread takes at a time */

struct search {
	/* Constant. */
	const uint64_t *offsets;
	const uint32_t *edges;
	uint64_t vertices;
	unsigned threads;
	pthread_barrier_t barrier;

	/* Atomic. */
	uint8_t *levels;
	uint64_t next; /* vertex that no thread has taken */
	bool found;    /* a vertex of the level that comes next */

	/* Of one thread, between barriers. */
	uint8_t level;
	bool done;
};

/* All edges of the vertices of this level that a share has. */
static bool search_share(struct search *search, uint64_t from, uint64_t to)
{
	uint8_t level = search->level;
	bool found = false;

	for (uint64_t v = from; v < to; v++) {
		if (__atomic_load_n(&search->levels[v], __ATOMIC_RELAXED) != level)
			continue;
		for (uint64_t e = search->offsets[v]; e < search->offsets[v + 1]; e++) {
			uint8_t *other = &search->levels[search->edges[e]];

			/* Whoever else finds it now finds it on the same level. */
			if (__atomic_load_n(other, __ATOMIC_RELAXED) == UNREACHED) {
				__atomic_store_n(other, level + 1, __ATOMIC_RELAXED);
				found = true;
			}
		}
	}
	return found;
}

static void *search_levels(void *arg)
{
	struct search *search = arg;

	for (;;) {
		bool found = false;
		uint64_t from;

		while ((from = __atomic_fetch_add(&search->next, SHARE, __ATOMIC_RELAXED)) < search->vertices) {
			uint64_t to = from + SHARE < search->vertices ? from + SHARE : search->vertices;

			found |= search_share(search, from, to);
		}
		if (found)
			__atomic_store_n(&search->found, true, __ATOMIC_RELAXED);
		if (pthread_barrier_wait(&search->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
			search->done = !search->found || search->level == UNREACHED - 2;
			search->level++;
			search->found = false;
			search->next = 0;
		}
		pthread_barrier_wait(&search->barrier);
		if (search->done)
			return NULL;
	}
}

static void run_search(struct search *search)
{
	pthread_t *threads = calloc(search->threads, sizeof(*threads));

	if (!threads)
		err(1, "calloc");
	pthread_barrier_init(&search->barrier, NULL, search->threads);
	for (unsigned i = 0; i < search->threads; i++) {
		if ((errno = pthread_create(&threads[i], NULL, search_levels, search)))
			err(1, "pthread_create");
	}
	for (unsigned i = 0; i < search->threads; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&search->barrier);
	free(threads);
}

/* The first vertex that has edges. */
static uint64_t root_of(const uint64_t *offsets, uint64_t vertices)
{
	for (uint64_t v = 0; v < vertices; v++) {
		if (offsets[v + 1] > offsets[v])
			return v;
	}
	errx(1, "the graph has no edges");
}

/*
 * Neighbours are at most one level apart, and each vertex but the root has one on the level before: then all levels are right. And
 * the edges are those that the graph was made with.
 */
static void verify(const struct graph_head *graph, const uint8_t *levels, uint64_t root)
{
	const uint64_t *offsets = graph_offsets(graph);
	const uint32_t *edges = graph_edges(graph, graph->vertices);
	uint64_t sum = 0;

	if (levels[root])
		errx(1, "the root is not on level 0");
	for (uint64_t v = 0; v < graph->vertices; v++) {
		bool has_parent = v == root || levels[v] == UNREACHED;

		for (uint64_t e = offsets[v]; e < offsets[v + 1]; e++) {
			uint8_t other = levels[edges[e]];

			sum += edge_mark((uint32_t)v, edges[e]);
			if ((other == UNREACHED) != (levels[v] == UNREACHED) || other > levels[v] + 1)
				errx(1, "%" PRIu64 " is on level %u and its neighbour %u on %u", v, levels[v], edges[e], other);
			has_parent |= other + 1 == levels[v];
		}
		if (!has_parent)
			errx(1, "%" PRIu64 " is on level %u, and no neighbour on the one before", v, levels[v]);
	}
	if (sum != graph->sum)
		errx(1, "these are not the edges that the graph was made with");
}

int main(int argc, char **argv)
{
	struct options options = parse_options(argc, argv,
					       "usage: bfs [OPTIONS] FILE\n"
					       "Searches the graph in FILE breadth first.\n" OPTIONS_TEXT
					       "  --make SCALE       make FILE first: an R-MAT graph of 2^SCALE vertices\n");
	struct search search = {.threads = options.threads};
	uint64_t root, reached = 0, sum = 0;
	struct graph_head head;
	void *memory;
	size_t size;
	double start;
	int fd;

	if (options.make)
		rmat_make(options.path, (unsigned)options.make);
	fd = open(options.path, O_RDONLY);
	if (fd < 0 || pread(fd, &head, sizeof(head), 0) != sizeof(head) || head.magic != GRAPH_MAGIC)
		err(1, "%s: not a graph", options.path);
	search.vertices = head.vertices;
	search.levels = malloc(head.vertices);
	if (!search.levels)
		err(1, "malloc");
	memset(search.levels, UNREACHED, head.vertices);
	size = graph_size(head.vertices, head.edges);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);

	start = seconds_now();
	memory = map_memory(&options, fd, size, PROT_READ);
	search.offsets = graph_offsets(memory);
	search.edges = graph_edges(memory, head.vertices);
	root = root_of(search.offsets, search.vertices);
	search.levels[root] = 0;
	run_search(&search);
	unmap_memory(&options, memory, size);
	for (uint64_t v = 0; v < head.vertices; v++) {
		reached += search.levels[v] != UNREACHED;
		sum += mix(v << 8 | search.levels[v]);
	}
	printf("bfs: %" PRIu64 " vertices, %" PRIu64 " edges, %s; %" PRIu64 " reached, levels' sum %016" PRIx64 "\nseconds %.3f\n",
	       head.vertices, head.edges, how(&options), reached, sum, seconds_now() - start);

	memory = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		err(1, "%s: mmap", options.path);
	verify(memory, search.levels, root);
	printf("verified\n");
	munmap(memory, size);
	free(search.levels);
	close(fd);
	return 0;
}
