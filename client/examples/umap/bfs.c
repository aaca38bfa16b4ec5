/*
 * bfs.c - breadth-first search in a graph that need not fit in memory: its file is memory, and only one byte a vertex, its
 * level, is kept besides. Then check the levels against the graph, read another way.
 *
 * The search itself says which pages it needs next, and which leaves when another needs its memory: a level is a sweep over the file, so what
 * it has just passed is what it needs last. (With a policy of its own a region is never the memory of gaiafs itself, also not of a file on a mount.)
 *
 *	cc -O2 -pthread bfs.c -o bfs $(pkg-config --cflags --libs gaiaclient)
 *	./bfs --make 22 --budget 128M graph
 */
#include "rmat.h"

#include <pthread.h>

#define UNREACHED 255
#define SHARE 4096u   /* vertices that a thread takes at a time */
#define AHEAD 8u      /* so many shares later its edges are needed, whoever takes it */
#define AHEAD_MOST 64 /* pages of it */

struct searcher {
	struct search *search;
	pthread_t id;

	/* What lies before is not needed any more on this level. Atomic. */
	uint64_t vertex, edge;
};

struct search {
	/* Constant. */
	const uint64_t *offsets;
	const uint32_t *edges;
	uint64_t vertices, n_edges;
	unsigned threads;
	pthread_barrier_t barrier;
	struct searcher *searchers; /* one a thread */
	uint64_t page_size;
	bool prefetches;

	/* Atomic. */
	uint8_t *levels;
	uint64_t next; /* vertex that no thread has taken */
	uint64_t edge; /* how far the edges have been passed by who was last to do so */
	bool found;    /* a vertex of the level that comes next */

	/* Of one thread, between barriers. */
	uint8_t level;
	bool done;
};

static void now_at(struct searcher *self, uint64_t vertex, uint64_t edge)
{
	__atomic_store_n(&self->vertex, vertex, __ATOMIC_RELAXED);
	__atomic_store_n(&self->edge, edge, __ATOMIC_RELAXED);
}

#ifdef UMAP_H
/* Others cannot be told. */
static void prefetch_share(const struct search *search, uint64_t from)
{
}
#else
/* In the background: the pages that have edges of this level's vertices in the share that begins there, if there is one. */
static void prefetch_share(const struct search *search, uint64_t from)
{
	uint64_t to = from + SHARE < search->vertices ? from + SHARE : search->vertices;
	uintptr_t done = 0; /* up to here */
	void *pages[AHEAD_MOST];
	size_t n = 0;

	for (uint64_t v = from; v < to && n < AHEAD_MOST; v++) {
		uintptr_t at, end;

		if (__atomic_load_n(&search->levels[v], __ATOMIC_RELAXED) != search->level)
			continue;
		at = (uintptr_t)&search->edges[search->offsets[v]];
		end = (uintptr_t)&search->edges[search->offsets[v + 1]];
		for (at = at > done ? at : done; at < end && n < AHEAD_MOST; at = done) {
			pages[n++] = (void *)at;
			done = (at / search->page_size + 1) * search->page_size;
		}
	}
	/* If it fails they come when they are touched. */
	if (n > 0)
		(void)gaia_umap_prefetch(pages, n, 0);
}
#endif

/* All edges of the vertices of this level that a share has. */
static bool search_share(struct searcher *self, uint64_t from, uint64_t to)
{
	struct search *search = self->search;
	uint8_t level = search->level;
	bool found = false;

	now_at(self, from, __atomic_load_n(&search->edge, __ATOMIC_RELAXED));
	for (uint64_t v = from; v < to; v++) {
		uint64_t e, end;

		if (__atomic_load_n(&search->levels[v], __ATOMIC_RELAXED) != level)
			continue;
		e = search->offsets[v];
		end = search->offsets[v + 1];
		now_at(self, v, e);
		for (; e < end; e++) {
			uint8_t *other = &search->levels[search->edges[e]];

			/* Whoever else finds it now finds it on the same level. */
			if (__atomic_load_n(other, __ATOMIC_RELAXED) == UNREACHED) {
				__atomic_store_n(other, level + 1, __ATOMIC_RELAXED);
				found = true;
			}
		}
		__atomic_store_n(&search->edge, end, __ATOMIC_RELAXED);
	}
	return found;
}

static void *search_levels(void *arg)
{
	struct searcher *self = arg;
	struct search *search = self->search;

	for (;;) {
		bool found = false;
		uint64_t from;

		while ((from = __atomic_fetch_add(&search->next, SHARE, __ATOMIC_RELAXED)) < search->vertices) {
			uint64_t to = from + SHARE < search->vertices ? from + SHARE : search->vertices;

			if (search->prefetches)
				prefetch_share(search, from + AHEAD * SHARE);
			found |= search_share(self, from, to);
		}
		/* Whoever is done needs nothing more. */
		now_at(self, search->vertices, search->n_edges);
		if (found)
			__atomic_store_n(&search->found, true, __ATOMIC_RELAXED);
		if (pthread_barrier_wait(&search->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
			search->done = !search->found || search->level == UNREACHED - 2;
			search->level++;
			search->found = false;
			search->next = 0;
			search->edge = 0;
			for (unsigned i = 0; i < search->threads; i++)
				now_at(&search->searchers[i], 0, 0);
		}
		pthread_barrier_wait(&search->barrier);
		if (search->done)
			return NULL;
	}
}

static void run_search(struct search *search)
{
	pthread_barrier_init(&search->barrier, NULL, search->threads);
	for (unsigned i = 0; i < search->threads; i++) {
		if ((errno = pthread_create(&search->searchers[i].id, NULL, search_levels, &search->searchers[i])))
			err(1, "pthread_create");
	}
	for (unsigned i = 0; i < search->threads; i++)
		pthread_join(search->searchers[i].id, NULL);
	pthread_barrier_destroy(&search->barrier);
}

#ifndef UMAP_H
/* ---- which page leaves ---- */

#define NO_SLOT UINT32_MAX
#define LOOK_AT_MOST 1024u /* slots for one that leaves: with more, those that follow each time */

struct slots {
	const struct search *search;
	uint32_t n, next;
	struct {
		uint64_t page;
		bool may_leave; /* there, and not chosen yet */
	} slot[];
};

static void *slots_create(void *arg, uint32_t n)
{
	struct slots *slots = calloc(1, sizeof(*slots) + n * sizeof(slots->slot[0]));

	if (slots) {
		slots->search = arg;
		slots->n = n;
	}
	return slots;
}

static void slot_inserted(void *state, uint32_t slot, uint64_t page)
{
	struct slots *slots = state;

	slots->slot[slot].page = page;
	slots->slot[slot].may_leave = true;
}

static void slot_hit(void *state, uint32_t slot)
{
	struct slots *slots = state;

	slots->slot[slot].may_leave = true;
}

static void slot_removed(void *state, uint32_t slot, int evicted)
{
	struct slots *slots = state;

	slots->slot[slot].may_leave = false;
}

/* How much of a sweep over n pages that has come to page `at` is left until it comes to this one, on this level or the next: 0 to 1. */
static double until(uint64_t page, uint64_t at, uint64_t n)
{
	return (double)(page >= at ? page - at : page + n - at) / (double)n;
}

/* That which is needed last, of some. */
static uint32_t slot_victim(void *state)
{
	struct slots *slots = state;
	const struct search *search = slots->search;
	uint64_t per_page = search->page_size, vertex = UINT64_MAX, edge = UINT64_MAX;
	uint64_t edges_from = graph_size(search->vertices, 0) / per_page, pages = graph_size(search->vertices, search->n_edges) / per_page + 1;
	uint32_t last = NO_SLOT;
	double longest = -1;

	for (unsigned i = 0; i < search->threads; i++) {
		uint64_t v = __atomic_load_n(&search->searchers[i].vertex, __ATOMIC_RELAXED);
		uint64_t e = __atomic_load_n(&search->searchers[i].edge, __ATOMIC_RELAXED);

		vertex = v < vertex ? v : vertex;
		edge = e < edge ? e : edge;
	}
	vertex = graph_size(vertex, 0) / per_page;
	edge = graph_size(search->vertices, edge) / per_page;
	for (uint32_t tried = 0, looked = 0; tried < slots->n && looked < LOOK_AT_MOST; tried++) {
		uint32_t i = slots->next;
		uint64_t page = slots->slot[i].page;
		double how_long;

		slots->next = i + 1 < slots->n ? i + 1 : 0;
		if (!slots->slot[i].may_leave)
			continue;
		looked++;
		how_long = page < edges_from ? until(page, vertex, edges_from) : until(page, edge, pages - edges_from);
		if (how_long > longest) {
			longest = how_long;
			last = i;
		}
	}
	if (last != NO_SLOT)
		slots->slot[last].may_leave = false;
	return last;
}

static const struct gaia_umap_policy passed_first = {
	.size = sizeof(passed_first),
	.create = slots_create,
	.destroy = free,
	.inserted = slot_inserted,
	.hit = slot_hit,
	.victim = slot_victim,
	.removed = slot_removed,
};
#endif

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
	struct search search = {.threads = options.threads, .page_size = options.page_size, .prefetches = !options.use_mmap};
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
	search.n_edges = head.edges;
	search.levels = malloc(head.vertices);
	search.searchers = calloc(search.threads, sizeof(search.searchers[0]));
	if (!search.levels || !search.searchers)
		err(1, "malloc");
	for (unsigned i = 0; i < search.threads; i++)
		search.searchers[i].search = &search;
	memset(search.levels, UNREACHED, head.vertices);
	size = graph_size(head.vertices, head.edges);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);

#ifndef UMAP_H
	struct gaia_umap_policy policy = passed_first;

	policy.arg = &search;
	options.policy = &policy;
	/* Half of them read what is prefetched. */
	setenv("GAIA_UMAP_PAGE_FILLERS", "8", 0);
#endif
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
	free(search.searchers);
	close(fd);
	return 0;
}
