/*
 * sssp.c - shortest paths from one vertex of a graph, kept up to date on a device while a CPU program changes the weights.
 *
 *	sssp --make grid:1024x768 GRAPH		GRAPH and GRAPH.weights
 *	sssp --rounds 100 --changed 1 GRAPH	after each of 100 updates the distances again
 *
 * A round: the CPU program changes some weights; the device acquires the weights' file, copies it to memory of its own, and goes on
 * from the distances that it had (search.h). After each round all distances are compared with what Dijkstra's algorithm finds on
 * the CPU with weights of its own (reference.h). An epoch in the file keeps the device from using half of an update (epoch.h).
 */
#include "../shared/options.h"
#include "graph.h"
#include "reference.h"
#include "search.h"
#ifdef HAVE_PNG
#include "../shared/picture.h"
#endif

struct options {
	struct common common;
	const char *path, *make;
	uint64_t delta;
	int64_t source; /* negative: chosen */
};

static const char usage[] =
	"usage: sssp [OPTIONS] GRAPH\n"
	"       sssp --make rmat:SCALE|grid:WIDTHxHEIGHT [--seed N] [OPTIONS] GRAPH\n"
	"       sssp --update [OPTIONS] GRAPH\n"
	"Keeps the shortest paths from one vertex up to date on a device while a CPU program changes the weights.\n"
	"GRAPH and GRAPH.weights are on a gaiafs mount.\n"
	"\n"
	"  --make KIND        make the files first: an R-MAT graph of 2^SCALE vertices, or a grid of roads\n"
	"  --seed N           of --make (1)\n"
	"  --rounds N         how often weights change, after a first round that brings everything (10)\n"
	COMMON_UPDATES("weights") COMMON_MODE
	"  --window BYTES     bring so much at a time, for a device that is smaller than the files (all)\n"
	"  --source V         the vertex (a grid: the middle; else the first that has edges)\n"
	"  --delta N          vertices nearer than so much more are relaxed at once (64)\n"
#ifdef HAVE_PNG
	"  --png FILE         draw the last distances, of a grid\n"
#endif
	COMMON_REST;

struct run {
	/* Constant. */
	struct options options;
	struct data data[2]; /* the graph and its weights */
	struct search search;
	uint32_t *now; /* the device's copy of the weights */
	uint32_t source;
	struct graph_head head;
	uint64_t *best; /* the host's copy */
	struct reference reference;
	void *on_cpu;	/* the graph's file, as any program maps it */
	void *own;	/* with --window: the device's own copy of the graph */

	/* What happened. */
	uint64_t torn, checked, updates_seen, acquire_ns, compute_ns, last;
};

static struct options parse_options(int argc, char **argv)
{
	enum { MAKE = O_OWN, SOURCE, DELTA };
	static const struct option longs[] = { { "make", 1, NULL, MAKE }, { "source", 1, NULL, SOURCE }, { "delta", 1, NULL, DELTA },
					       COMMON_OPTIONS };
	struct options o = { common_defaults, NULL, NULL, 64, -1 };

	for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		switch (c) {
		case MAKE: o.make = optarg; break;
		case SOURCE: o.source = (int64_t)parse_size(optarg); break;
		case DELTA: o.delta = parse_size(optarg); break;
		case O_HELP: fputs(usage, stdout); exit(0);
		default:
			if (common_option(&o.common, c))
				break;
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (argc - optind != 1 || !o.delta || o.delta > UINT32_MAX) {
		fputs(usage, stderr);
		exit(2);
	}
	o.path = argv[optind];
	return o;
}

/* ---- the device's program ---- */

static void open_graph(struct run *r)
{
	struct data *d = &r->data[0];

	r->on_cpu = map_file(r->options.path, PROT_READ);
	data_open(d, r->options.common.mode, r->options.path, PROT_READ, r->options.common.device);
	memcpy(&r->head, r->on_cpu, smaller(sizeof(r->head), d->size));
	if (r->head.magic != GRAPH_MAGIC || d->size != graph_size(r->head.vertices, r->head.edges))
		errx(1, "%s: not a graph", r->options.path);
}

/* The graph, for the device: held until the end, since nobody changes it; or by windows into its own memory. */
static struct graph bring_graph(struct run *r)
{
	size_t window = r->options.common.window;
	struct data *d = &r->data[0];

	if (!window) {
		data_acquire(d, 0, d->size, PROT_READ);
		return graph_at(d->p, &r->head);
	}
	r->own = device_alloc(d->size);
	for (size_t off = 0; off < d->size; off += window) {
		size_t len = smaller(window, d->size - off);

		data_acquire(d, off, len, PROT_READ);
		device_copy((char *)r->own + off, d->p + off, len);
		data_release(d, off, len);
	}
	return graph_at(r->own, &r->head);
}

static uint32_t choose_source(const struct run *r, struct graph graph)
{
	uint32_t v = 0;

	if (r->options.source >= 0) {
		if ((uint64_t)r->options.source >= graph.vertices)
			errx(2, "--source %" PRId64 ": the graph has %" PRIu64 " vertices", r->options.source, graph.vertices);
		return (uint32_t)r->options.source;
	}
	if (graph.width)
		return (uint32_t)(graph.vertices / graph.width / 2 * graph.width + graph.width / 2);
	while (v + 1 < graph.vertices && graph.offsets[v] == graph.offsets[v + 1])
		v++;
	return v;
}

/* The weights as they are after whole updates, in the device's own memory: after how many. */
static uint64_t bring_weights(struct run *r)
{
	struct data *d = &r->data[1];
	size_t window = r->options.common.window ? r->options.common.window : d->size - PAGE;
	uint64_t start = now_ns(), updates;

	for (;;) {
		updates = epoch_settled(d);
		for (size_t off = PAGE; off < d->size; off += window) {
			size_t len = smaller(window, d->size - off);

			data_acquire(d, off, len, PROT_READ);
			device_copy((char *)r->now + (off - PAGE), d->p + off, len);
			data_release(d, off, len);
		}
		if (epoch_is_still(d, updates))
			break;
		r->torn++;
		if (now_ns() - start > EPOCH_PATIENCE_NS)
			errx(1, "%s: updates follow each other faster than it can be read", d->path);
	}
	r->acquire_ns += now_ns() - start;
	return updates;
}

static void check(struct run *r, uint64_t round, uint64_t updates)
{
	const uint32_t *want;

	device_copy(r->best, r->search.best, r->search.graph.vertices * 8);
	if (!to_be_checked(&r->options.common, round))
		return;
	want = reference_distances(&r->reference, updates, r->source);
	for (uint64_t v = 0; v < r->search.graph.vertices; v++)
		if (want[v] != (uint32_t)(r->best[v] >> 32))
			errx(1, "WRONG: round %" PRIu64 ", after %" PRIu64 " updates: vertex %" PRIu64 " is %u away, not %u", round,
			     updates, v, want[v], (uint32_t)(r->best[v] >> 32));
	r->checked++;
}

static void do_round(struct run *r, uint64_t round)
{
	uint64_t updates = bring_weights(r), start = now_ns();

	if (round)
		search_again(&r->search, (uint32_t)r->options.delta);
	else
		search_first(&r->search, (uint32_t)r->options.delta);
	r->compute_ns += now_ns() - start;
	r->updates_seen += round && updates != r->last;
	r->last = updates;
	check(r, round, updates);
	progress("round %" PRIu64 " of %" PRIu64 ", after %" PRIu64 " updates", round, r->options.common.rounds, updates);
}

#ifdef HAVE_PNG
/* Distances as bands of colour, like those of an atlas. */
static void draw(const struct run *r)
{
	uint64_t vertices = r->search.graph.vertices, width = r->search.graph.width, most = 1;
	unsigned char *pixels;

	if (!width)
		errx(2, "--png draws grids only");
	pixels = (unsigned char *)own_memory(vertices * 3);
	for (uint64_t v = 0; v < vertices; v++)
		most = r->best[v] != UNREACHED && r->best[v] >> 32 > most ? r->best[v] >> 32 : most;
	for (uint64_t v = 0; v < vertices; v++) {
		static const unsigned char colours[][3] = { { 255, 247, 188 }, { 254, 196, 79 }, { 236, 112, 20 }, { 153, 52, 4 },
							    { 63, 0, 125 }, { 8, 29, 88 } };
		uint64_t band = r->best[v] == UNREACHED ? 0 : (r->best[v] >> 32) * 40 / most;
		uint64_t at = band * 5 * 256 / 41, part = at % 256;

		for (int c = 0; c < 3; c++)
			pixels[v * 3 + c] = (unsigned char)((colours[at / 256][c] * (256 - part) + colours[at / 256 + 1][c] * part) / 256);
	}
	write_png(r->options.common.png, pixels, width, vertices / width, 3);
	free(pixels);
}
#endif

static void say(const struct run *r, struct moved first, struct moved rounds)
{
	const struct common *o = &r->options.common;
	uint64_t sum = 0;
	char more[256];

	for (uint64_t v = 0; v < r->search.graph.vertices; v++)
		sum += mix(v << 32 | r->best[v] >> 32);
	snprintf(more, sizeof(more),
		 "\"rounds\": %" PRIu64 ", \"checked\": %" PRIu64 ", \"torn\": %" PRIu64 ", \"updates\": %" PRIu64
		 ", \"file\": %zu, \"acquire_ns\": %" PRIu64 ", \"compute_ns\": %" PRIu64 ", \"sum\": \"%016" PRIx64 "\"",
		 o->rounds, r->checked, r->torn, r->updates_seen, r->data[1].size, r->acquire_ns, r->compute_ns, sum);
	if (o->json) {
		print_json("rounds", rounds, more);
		return;
	}
	printf("sssp: %" PRIu64 " vertices, %" PRIu64 " edges, mode %s\n", r->search.graph.vertices, r->search.graph.edges,
	       mode_names[o->mode]);
	print_moved("first", first, no_time(o->mode));
	printf("%" PRIu64 " rounds, ", o->rounds);
	print_moved("moved", rounds, no_time(o->mode));
	printf("seconds: %.3f to bring weights, %.3f on the device; %" PRIu64 " reads met an update and were repeated\n",
	       (double)r->acquire_ns / 1e9, (double)r->compute_ns / 1e9, r->torn);
	printf("distances %016" PRIx64 "; %" PRIu64 " times all were equal to the reference's\n", sum, r->checked);
}

int main(int argc, char **argv)
{
	static struct run r;
	struct moved before, first, rounds;
	struct updater updater;
	const char *weights;
	struct graph graph;
	bool updates;

	r.options = parse_options(argc, argv);
	weights = weights_path(r.options.path);
	if (r.options.make) {
		struct plan plan = parse_plan(r.options.make, r.options.common.seed);

		make_graph(r.options.path, &plan);
		set_changes(&r.options.common, weights);
		if (!r.options.common.rounds)
			return 0;
	}
	if (r.options.common.update)
		return only_update(&r.options.common, weights, GRAPH_MAGIC, apply_to_file);
	updates = start_updates(&r.options.common, weights, apply_to_file, &updater);

	open_graph(&r);
	graph = graph_at(r.on_cpu, &r.head);
	data_open(&r.data[1], r.options.common.mode, weights, PROT_READ, r.options.common.device);
	reference_open(&r.reference, graph, weights);
	if (updates && r.options.common.mode == MODE_STRICT)
		updater_in_memory(&updater, r.data[1].cpu);
	r.now = (uint32_t *)device_alloc(graph.edges * 4);
	r.best = (uint64_t *)own_memory(graph.vertices * 8);
	r.source = choose_source(&r, graph);

	before = moved_until_now(r.data);
	r.search = search_new(bring_graph(&r), r.source, r.now);
	do_round(&r, 0);
	first = moved_since(before, moved_until_now(r.data));
	before = moved_until_now(r.data);
	r.acquire_ns = r.compute_ns = 0;
	for (uint64_t round = 1; round <= r.options.common.rounds; round++) {
		if (updates)
			updater_ask(&updater);
		do_round(&r, round);
	}
	rounds = moved_since(before, moved_until_now(r.data));
	end_progress();
	if (updates)
		updater_stop(&updater);
	say(&r, first, rounds);
#ifdef HAVE_PNG
	if (r.options.common.png)
		draw(&r);
#endif

	if (!r.options.common.window)
		data_release(&r.data[0], 0, r.data[0].size);
	data_close(&r.data[0]);
	data_close(&r.data[1]);
	search_free(&r.search);
	device_free(r.now);
	if (r.own)
		device_free(r.own);
	munmap(r.on_cpu, graph_size(r.head.vertices, r.head.edges));
	free(r.best);
	reference_close(&r.reference);
	return 0;
}
