/*
 * collage.c - a picture made of small pictures: each block of it is replaced by that of many tiles which is most like it.
 *
 *	collage --make 100000 TILES			TILES and TILES.index
 *	collage --png collage.png TILES OUT		of a scene that it makes; of a picture of yours: --image FILE.png
 *
 * Which tiles a block is compared with follows from its colours and an index. So the device reads a part of a file that may be much
 * larger than its memory, and which part is known only on the device, when it has looked: it marks the pages that it wants, and
 * gaia_acquirev_start() brings these, while those before are compared; a window of the file at a time. Several devices, and the CPU,
 * can share the work: their blocks alternate, so that nearly each page of OUT is written by all of them at the same time.
 *
 * OUT has the pixels, three bytes each, row by row. It is compared with a reference that the CPU makes alone, byte by byte.
 */
#include "match.h"
#include "../shared/options.h"
#include "../shared/picture.h"
#include "scene.h"

#define MAX_OWNERS 17
#define CHUNK (2u << 20) /* device memory comes in units of 2 MiB of a file */

struct options {
	struct common common;
	const char *tiles, *out, *image, *make;
	uint64_t candidates, devices, shrink, width, height;
	bool cpu;
};

static const char usage[] =
	"usage: collage [OPTIONS] TILES OUT\n"
	"       collage --make NUMBER [--seed N] TILES\n"
	"       collage --update [OPTIONS] TILES\n"
	"Makes a picture of small pictures. TILES, TILES.index and OUT are on a gaiafs mount.\n"
	"\n"
	"  --make NUMBER      only make so many tiles\n"
	"  --seed N           of --make, and of the scene (1)\n"
	"  --image FILE.png   the picture to begin with, or\n"
	"  --scene WxH        a scene of so many pixels (512x384)\n"
	"  --candidates N     tiles that each block is compared with (16)\n"
	"  --devices N        so many devices of the mount, from --device on, share the work (1)\n"
	"  --cpu              so does the CPU, as a program that knows nothing of gaiafs\n"
	"  --rounds N         again, so many times, after a CPU program has changed tiles (0)\n"
	COMMON_UPDATES("tiles") COMMON_MODE
	"  --window BYTES     of TILES at a time (as device memory allows)\n"
	"  --png FILE         write the collage there, too\n"
	"  --shrink N         that with a pixel for N times N (1)\n"
	COMMON_REST;

struct window {
	struct gaia_range *ranges;
	size_t n;
	uint32_t first, end; /* tiles */
};

/* Who makes some of the blocks. */
struct owner {
	/* Constant, once it is set up. */
	struct job job;
	const struct options *options;
	bool is_cpu;
	struct data tiles, out; /* a device's */
	struct window *windows;
	size_t n_windows;

	/* The owner's thread; others between rounds. */
	pthread_t thread;
	uint64_t acquire_ns, compute_ns;
};

struct run {
	/* Constant. */
	struct options options;
	struct picture picture; /* in host memory */
	struct owner owners[MAX_OWNERS];
	unsigned n_owners;
	size_t out_size;
	struct reference reference;

	/* What happened. */
	uint64_t torn, checked, wanted, ns;
};

static void parse_size_of_scene(struct options *o, const char *text)
{
	unsigned long width, height;
	char end;

	if (sscanf(text, "%lux%lu%c", &width, &height, &end) != 2 || width < SMALL || height < SMALL || width > 32768 || height > 32768)
		errx(2, "--scene %s: not WIDTHxHEIGHT, of %u to 32768 pixels", text, SMALL);
	o->width = width;
	o->height = height;
}

static struct options parse_options(int argc, char **argv)
{
	enum { MAKE = O_OWN, IMAGE, SCENE, CANDIDATES, DEVICES, CPU, SHRINK };
	static const struct option longs[] = {
		{ "make", 1, NULL, MAKE },
		{ "image", 1, NULL, IMAGE },
		{ "scene", 1, NULL, SCENE },
		{ "candidates", 1, NULL, CANDIDATES },
		{ "devices", 1, NULL, DEVICES },
		{ "cpu", 0, NULL, CPU },
		{ "shrink", 1, NULL, SHRINK },
		COMMON_OPTIONS
	};
	struct options o;

	memset(&o, 0, sizeof(o));
	o.common = common_defaults;
	o.common.rounds = 0;
	o.candidates = 16;
	o.devices = o.shrink = 1;
	o.width = 512;
	o.height = 384;
	for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		switch (c) {
		case MAKE: o.make = optarg; break;
		case IMAGE: o.image = optarg; break;
		case SCENE: parse_size_of_scene(&o, optarg); break;
		case CANDIDATES: o.candidates = parse_size(optarg); break;
		case DEVICES: o.devices = parse_size(optarg); break;
		case CPU: o.cpu = true; break;
		case SHRINK: o.shrink = parse_size(optarg); break;
		case O_HELP: fputs(usage, stdout); exit(0);
		default:
			if (common_option(&o.common, c))
				break;
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (argc - optind != (o.make || o.common.update ? 1 : 2) || !o.candidates || !o.devices || o.devices >= MAX_OWNERS || !o.shrink ||
	    o.candidates > UINT32_MAX) {
		fputs(usage, stderr);
		exit(2);
	}
	if (o.devices > 1 && o.common.mode != MODE_GAIA)
		errx(2, "--mode %s: one device", mode_names[o.common.mode]);
	o.tiles = argv[optind];
	o.out = argv[optind + 1];
	return o;
}

/* ---- what there is to do ---- */

static void open_picture(struct run *r)
{
	struct picture *p = &r->picture;
	size_t width = r->options.width, height = r->options.height, index_size;
	unsigned char *whole = r->options.image ? read_png(r->options.image, &width, &height)
						: make_scene(width, height, r->options.common.seed);
	unsigned char *pixels;
	uint64_t *index;
	int fd;

	/* Whole blocks of it. */
	p->columns = (uint32_t)(width / SMALL);
	p->rows = (uint32_t)(height / SMALL);
	if (!p->columns || !p->rows)
		errx(2, "%s: smaller than a block of %ux%u", r->options.image, SMALL, SMALL);
	pixels = (unsigned char *)own_memory((size_t)p->columns * p->rows * SMALL * SMALL * 3);
	for (size_t y = 0; y < p->rows * SMALL; y++)
		memcpy(pixels + y * p->columns * SMALL * 3, whole + y * width * 3, (size_t)p->columns * SMALL * 3);
	free(whole);
	p->pixels = pixels;

	fd = open_file(index_path(r->options.tiles), O_RDONLY);
	index_size = file_size(fd, index_path(r->options.tiles));
	index = (uint64_t *)own_memory(index_size);
	read_all(fd, index, index_size, 0);
	close(fd);
	p->index = index;
	p->tiles = (uint32_t)(index_size / 8);
	p->candidates = (uint32_t)smaller(r->options.candidates, p->tiles);
	if (!p->tiles)
		errx(1, "%s is empty", index_path(r->options.tiles));
	r->out_size = (size_t)p->columns * p->rows * SIDE * SIDE * 3;
}

static void make_out(const struct run *r)
{
	int fd = open_file(r->options.out, O_RDWR | O_CREAT | O_TRUNC);

	if (ftruncate(fd, (off_t)r->out_size))
		err(1, "%s", r->options.out);
	close(fd);
}

/* In how large pieces TILES is brought, bytes of the file: two of them, and the whole of OUT, have to fit. */
static size_t window_size(const struct owner *o, size_t out_size)
{
	struct gaia_device_info info[64];
	size_t room;
	int n;

	if (o->options->common.window)
		return round_up(o->options->common.window, PAGE);
	if (o->tiles.mode != MODE_GAIA)
		return o->tiles.size;
	n = gaia_devices(o->tiles.fd, info, 64);
	if (o->tiles.device >= n || o->tiles.device >= 64)
		errx(1, "%s: the device is gone", o->options->tiles);
	/* Users other than root may hold three quarters of it. */
	room = info[o->tiles.device].capacity / 4 * 3 / CHUNK * CHUNK;
	if (room < round_up(out_size, CHUNK) + 2 * CHUNK)
		errx(1, "%s is too small for a collage of %s", info[o->tiles.device].name, size_text(out_size));
	room -= round_up(out_size, CHUNK);
	return room >= round_up(o->tiles.size, CHUNK) ? o->tiles.size : room / 2 / CHUNK * CHUNK;
}

/* The pages that the marks name, from tile @w->first on: neighbours as one range. */
static void list_ranges(struct owner *o, struct window *w, const uint32_t *wanted)
{
	size_t room = 0;

	for (uint32_t t = w->first; t < w->end; t++) {
		unsigned char *at = o->tiles.p + (t + (size_t)1) * PAGE;
		struct gaia_range *last = w->n ? &w->ranges[w->n - 1] : NULL;

		if (!(wanted[t / 32] >> t % 32 & 1))
			continue;
		if (last && (unsigned char *)last->addr + last->length == at) {
			last->length += PAGE;
			continue;
		}
		if (w->n == room) {
			room = room * 2 + 64;
			w->ranges = (struct gaia_range *)realloc(w->ranges, room * sizeof(*w->ranges));
			if (!w->ranges)
				err(1, "no memory for the list of pages");
		}
		w->ranges[w->n].addr = at;
		w->ranges[w->n++].length = PAGE;
	}
	/* Who copies takes all of it. */
	if (o->tiles.mode == MODE_COPY && w->n) {
		w->n = 1;
		w->ranges[0].addr = o->tiles.p + (w->first + (size_t)1) * PAGE;
		w->ranges[0].length = (size_t)(w->end - w->first) * PAGE;
	}
}

/* Pass 1: the device marks what it wants; the host makes lists of it, window by window. The index does not change, so once is enough. */
static void plan_windows(struct run *r, struct owner *o)
{
	uint32_t words = o->job.picture.tiles / 32 + 1, *wanted = (uint32_t *)own_memory(words * 4);
	size_t size = window_size(o, r->out_size);
	o->job.wanted = (uint32_t *)device_alloc(words * 4);
	LAUNCH(mark, blocks_of(&o->job), &o->job);
	device_copy(wanted, o->job.wanted, words * 4);
	device_free(o->job.wanted);
	o->job.wanted = NULL;
	o->windows = (struct window *)own_memory((o->tiles.size / size + 1) * sizeof(*o->windows));
	for (size_t off = 0; off < o->tiles.size; off += size) {
		struct window *w = &o->windows[o->n_windows];

		/* The first page is no tile. */
		w->first = (uint32_t)(off / PAGE - (off > 0));
		w->end = (uint32_t)(smaller(off + size, o->tiles.size) / PAGE - 1);
		list_ranges(o, w, wanted);
		o->n_windows += w->n > 0;
	}
	for (uint32_t t = 0; t < o->job.picture.tiles; t++)
		r->wanted += wanted[t / 32] >> t % 32 & 1;
	free(wanted);
}

/* One that is a device, or the CPU, as any program. */
static void set_up(struct run *r, unsigned part)
{
	struct owner *o = &r->owners[part];
	struct picture *p = &o->job.picture;
	enum mode mode = r->options.common.mode;

	o->options = &r->options;
	o->is_cpu = part >= r->options.devices;
	o->job.part = part;
	o->job.parts = r->n_owners;
	*p = r->picture;
	if (o->is_cpu) {
		const struct owner *shared = &r->owners[0];

		o->job.best = (uint64_t *)own_memory(blocks_of(&o->job) * 8 + 8);
		o->job.tiles = tiles_of(shared->tiles.cpu ? shared->tiles.cpu : map_file(r->options.tiles, PROT_READ));
		o->job.out = shared->out.cpu ? shared->out.cpu : (unsigned char *)map_file(r->options.out, RW);
		return;
	}
	data_open(&o->tiles, mode, r->options.tiles, PROT_READ, r->options.common.device < 0 && !part ? -1 :
		  (r->options.common.device < 0 ? 0 : r->options.common.device) + (int)part);
	if (o->tiles.size != (p->tiles + (size_t)1) * PAGE)
		errx(1, "%s and its index do not belong together", r->options.tiles);
	data_open(&o->out, mode, r->options.out, RW, mode == MODE_GAIA ? o->tiles.device : -1);
	o->job.tiles = tiles_of(o->tiles.p);
	o->job.out = o->out.p;
	o->job.best = (uint64_t *)device_alloc(blocks_of(&o->job) * 8);
#ifdef __CUDACC__
	p->pixels = (const unsigned char *)device_alloc(r->out_size / 4);
	p->index = (const uint64_t *)device_alloc((size_t)p->tiles * 8);
	device_copy((void *)p->pixels, r->picture.pixels, r->out_size / 4);
	device_copy((void *)p->index, r->picture.index, (size_t)p->tiles * 8);
#endif
	plan_windows(r, o);
}

/* ---- a round ---- */

/* What a program has to do that copies and shares OUT with others: write only what is its own. */
static void store_blocks(struct owner *o)
{
	const struct picture *p = &o->job.picture;
	size_t row = (size_t)p->columns * SIDE * 3, size = row * p->rows * SIDE;
	unsigned char *host = (unsigned char *)own_memory(size);

	device_copy(host, o->out.p, size);
	count_moved(0, size, 1);
	for (size_t i = 0; i < blocks_of(&o->job); i++) {
		size_t block = o->job.part + i * o->job.parts, at = block / p->columns * SIDE * row + block % p->columns * SIDE * 3;

		for (uint32_t y = 0; y < SIDE; y++)
			write_all(o->out.fd, host + at + y * row, SIDE * 3, at + y * row);
	}
	free(host);
}

static void device_pass(struct owner *o)
{
	bool alone = o->job.parts == 1, pieces = !alone && o->out.mode == MODE_COPY;
	uint64_t start = now_ns(), waited = 0;
	int next = -1;

	/* Who is alone overwrites all of OUT, so nothing of it is brought; who shares it stores to pages that others store to, too. */
	data_acquire(&o->out, 0, o->out.size, alone || pieces ? PROT_WRITE : RW);
	waited += now_ns() - start;
	for (size_t i = 0; i < o->n_windows; i++) {
		struct window *w = &o->windows[i];
		uint64_t from = now_ns();

		if (!i)
			next = data_acquirev_start(&o->tiles, w->ranges, w->n, PROT_READ);
		data_wait(&o->tiles, w->ranges, w->n, PROT_READ, next);
		if (i + 1 < o->n_windows)
			next = data_acquirev_start(&o->tiles, w[1].ranges, w[1].n, PROT_READ);
		waited += now_ns() - from;
		o->job.first = w->first;
		o->job.end = w->end;
		LAUNCH(match, blocks_of(&o->job), &o->job);
		data_releasev(&o->tiles, w->ranges, w->n);
		progress("window %zu of %zu", i + 1, o->n_windows);
	}
	if (pieces)
		store_blocks(o);
	else
		data_release(&o->out, 0, o->out.size);
	o->acquire_ns += waited;
	o->compute_ns += now_ns() - start - waited;
}

static void *pass(void *arg)
{
	struct owner *o = (struct owner *)arg;

	if (o->is_cpu) {
		memset(o->job.best, 0xff, blocks_of(&o->job) * 8);
		o->job.end = o->job.picture.tiles;
		for (size_t i = 0; i < blocks_of(&o->job); i++)
			match_block(&o->job, i);
		return NULL;
	}
	data_use_device(&o->tiles);
	device_fill(o->job.best, 0xff, blocks_of(&o->job) * 8);
	device_pass(o);
	return NULL;
}

/* The whole collage, of tiles as they are after whole updates: after how many. */
static uint64_t make_collage(struct run *r)
{
	uint64_t start = now_ns(), updates;

	for (;;) {
		updates = epoch_settled(&r->owners[0].tiles);
		for (unsigned i = 1; i < r->n_owners; i++)
			if ((errno = pthread_create(&r->owners[i].thread, NULL, pass, &r->owners[i])))
				err(1, "pthread_create");
		pass(&r->owners[0]);
		for (unsigned i = 1; i < r->n_owners; i++)
			pthread_join(r->owners[i].thread, NULL);
		if (epoch_is_still(&r->owners[0].tiles, updates))
			break;
		r->torn++;
		if (now_ns() - start > EPOCH_PATIENCE_NS)
			errx(1, "%s: updates follow each other faster than it can be read", r->options.tiles);
	}
	r->ns += now_ns() - start;
	return updates;
}

/* As any program reads it; in unified memory, from that of the CPU. */
static void read_out(const struct run *r, unsigned char *bytes)
{
	const struct data *out = &r->owners[0].out;

	if (out->cpu)
		memcpy(bytes, out->cpu, r->out_size);
	else
		read_all(out->fd, bytes, r->out_size, 0);
}

static void check(struct run *r, uint64_t round, uint64_t updates, unsigned char *bytes)
{
	const unsigned char *want;

	if (!to_be_checked(&r->options.common, round))
		return;
	read_out(r, bytes);
	want = reference_collage(&r->reference, updates);
	for (size_t i = 0; i < r->out_size; i++)
		if (bytes[i] != want[i])
			errx(1, "WRONG: round %" PRIu64 ", after %" PRIu64 " updates: byte %zu of %s is %u, not %u", round, updates, i,
			     r->options.out, bytes[i], want[i]);
	r->checked++;
}

/* ---- the end ---- */

static void draw(const struct run *r, unsigned char *bytes)
{
	size_t width = r->picture.columns * SIDE, n = r->options.shrink, columns = width / n, rows = r->picture.rows * SIDE / n;
	unsigned char *pixels = (unsigned char *)own_memory(columns * rows * 3);

	read_out(r, bytes);
	for (size_t i = 0; i < columns * rows * 3; i++) {
		size_t x = i / 3 % columns * n, y = i / 3 / columns * n, sum = 0;

		for (size_t at = 0; at < n * n; at++)
			sum += bytes[((y + at / n) * width + x + at % n) * 3 + i % 3];
		pixels[i] = (unsigned char)(sum / (n * n));
	}
	write_png(r->options.common.png, pixels, columns, rows, 3);
	free(pixels);
}

static void say(const struct run *r, struct moved first, struct moved rounds)
{
	const struct common *o = &r->options.common;
	uint64_t acquire_ns = 0, compute_ns = 0;
	char more[400];

	for (unsigned i = 0; i < r->n_owners; i++) {
		acquire_ns += r->owners[i].acquire_ns;
		compute_ns += r->owners[i].compute_ns;
	}
	if (o->json) {
		snprintf(more, sizeof(more),
			 "\"rounds\": %" PRIu64 ", \"checked\": %" PRIu64 ", \"torn\": %" PRIu64 ", \"tiles\": %u, \"wanted\": %" PRIu64
			 ", \"windows\": %zu, \"ns\": %" PRIu64 ", \"acquire_ns\": %" PRIu64 ", \"compute_ns\": %" PRIu64,
			 o->rounds, r->checked, r->torn, r->picture.tiles, r->wanted, r->owners[0].n_windows, r->ns, acquire_ns,
			 compute_ns);
		print_json("first", first, "");
		print_json("rounds", rounds, more);
		return;
	}
	printf("collage: %ux%u blocks, %u tiles (%s), mode %s; %" PRIu64 " pages of tiles wanted, in %zu window%s\n", r->picture.columns,
	       r->picture.rows, r->picture.tiles, size_text((uint64_t)r->picture.tiles * PAGE), mode_names[o->mode], r->wanted,
	       r->owners[0].n_windows, r->owners[0].n_windows == 1 ? "" : "s");
	print_moved("first", first, no_time(o->mode));
	if (o->rounds) {
		printf("%" PRIu64 " more, ", o->rounds);
		print_moved("moved", rounds, no_time(o->mode));
	}
	printf("seconds: %.3f in all; %.3f to bring pages, %.3f on devices; %" PRIu64 " passes met an update and were repeated\n",
	       (double)r->ns / 1e9, (double)acquire_ns / 1e9, (double)compute_ns / 1e9, r->torn);
	printf("%" PRIu64 " times all bytes of the collage were equal to the reference's\n", r->checked);
}

int main(int argc, char **argv)
{
	static struct run r;
	struct moved before, first, rounds;
	struct updater updater;
	unsigned char *bytes;
	bool updates;

	r.options = parse_options(argc, argv);
	if (r.options.make) {
		uint64_t tiles = parse_size(r.options.make);

		if (!tiles || tiles > 1u << 30)
			errx(2, "--make takes 1 to 2^30");
		make_tiles(r.options.tiles, (uint32_t)tiles, r.options.common.seed);
		set_changes(&r.options.common, r.options.tiles);
		return 0;
	}
	if (r.options.common.update)
		return only_update(&r.options.common, r.options.tiles, TILES_MAGIC, apply_to_tiles);
	updates = start_updates(&r.options.common, r.options.tiles, apply_to_tiles, &updater);
	open_picture(&r);
	make_out(&r);
	r.n_owners = (unsigned)r.options.devices + r.options.cpu;
	for (unsigned i = 0; i < r.n_owners; i++)
		set_up(&r, i);
	reference_open(&r.reference, &r.picture, r.options.tiles);
	if (updates && r.options.common.mode == MODE_STRICT)
		updater_in_memory(&updater, r.owners[0].tiles.cpu);
	bytes = (unsigned char *)own_memory(r.out_size);

	before = moved_until_now(&r.owners[0].tiles);
	check(&r, 0, make_collage(&r), bytes);
	first = moved_since(before, moved_until_now(&r.owners[0].tiles));
	before = moved_until_now(&r.owners[0].tiles);
	for (uint64_t round = 1; round <= r.options.common.rounds; round++) {
		if (updates)
			updater_ask(&updater);
		check(&r, round, make_collage(&r), bytes);
		progress("round %" PRIu64 " of %" PRIu64, round, r.options.common.rounds);
	}
	rounds = moved_since(before, moved_until_now(&r.owners[0].tiles));
	end_progress();
	if (updates)
		updater_stop(&updater);
	if (r.options.common.png)
		draw(&r, bytes);
	say(&r, first, rounds);
	for (unsigned i = 0; i < r.options.devices; i++) {
		data_close(&r.owners[i].tiles);
		data_close(&r.owners[i].out);
		for (size_t k = 0; k < r.owners[i].n_windows; k++)
			free(r.owners[i].windows[k].ranges);
		free(r.owners[i].windows);
	}
	reference_close(&r.reference);
	free(bytes);
	free((void *)r.picture.pixels);
	free((void *)r.picture.index);
	return 0;
}
