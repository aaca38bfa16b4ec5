/*
 * stitch.c - one picture of a microscope's overlapping images, made by a device and the CPU together.
 *
 *	stitch --make 8x6 TILES
 *	stitch --png stitched.png TILES OUT
 *
 * Each owner (devices, and the CPU) finds for a share of the neighbours how far they are apart (strips.h). From that follows where
 * each image is. Then each owner makes some columns of OUT: a byte a pixel, the mean of the images that show it. A row of OUT is
 * shorter than a page, or not much longer, so that nearly every page is written by all owners, at the same time. Nobody takes care
 * of that: writes of different bytes are merged. The CPU's part maps the files as any program does, and knows nothing of gaiafs.
 *
 * OUT is compared with what the CPU makes alone of images that are made anew, at the places that they were made for.
 */
#include "../shared/options.h"
#include "canvas.h"
#include "strips.h"
#ifdef HAVE_PNG
#include "../shared/picture.h"
#endif

#define MAX_OWNERS 17

struct options {
	struct common common;
	const char *tiles, *out, *make;
	uint64_t devices, shrink, side;
	bool cpu, own_transform;
};

static const char usage[] =
	"usage: stitch [OPTIONS] TILES OUT\n"
	"       stitch --make COLUMNSxROWS [--side N] [--seed N] TILES\n"
	"       stitch --update [OPTIONS] TILES\n"
	"Makes one picture of a microscope's overlapping images. TILES and OUT are on a gaiafs mount.\n"
	"\n"
	"  --make CxR         only make so many images\n"
	"  --side N           of so many pixels each way (256)\n"
	"  --seed N           of --make (1)\n"
	"  --devices N        so many devices of the mount, from --device on, share the work (1)\n"
	"  --no-cpu           the CPU has no share\n"
	"  --rounds N         again, so many times, after a CPU program has taken images anew (0)\n"
	COMMON_UPDATES("images") COMMON_MODE
	"  --window BYTES     of TILES at a time, at least two rows of images (all)\n"
	"  --own-transform    Fourier transforms without a library\n"
#ifdef HAVE_PNG
	"  --png FILE         write the picture there, too\n"
	"  --shrink N         that with a pixel for N times N (1)\n"
#endif
	COMMON_REST;

struct owner {
	/* Constant, once it is set up. */
	const struct run *run;
	unsigned part;
	bool is_cpu;
	struct data tiles, out;	     /* a device's */
	const unsigned char *images; /* the file, as this owner has it */
	unsigned char *picture;	     /* OUT, the same */
	struct strips strips;
	double *host;		     /* room for a strip */
	struct place *places;	     /* in the memory where it works */

	/* The owner's thread; others between steps. */
	pthread_t thread;
	uint64_t acquire_ns, compute_ns;
};

struct run {
	/* Constant. */
	struct options options;
	struct set_head set;
	struct owner owners[MAX_OWNERS];
	unsigned n_owners;
	uint32_t width, height; /* of OUT: what any places need */

	/* By the owners, each its own. */
	struct place *right, *below; /* of each image: where that neighbour is */

	/* Between the steps. */
	struct place *places, *wanted; /* wanted: those that the images were made for */
	uint32_t *versions;	       /* the reference's */
	uint64_t reference_updates;

	/* What happened. */
	uint64_t torn, checked, ns;
};

static struct options parse_options(int argc, char **argv)
{
	enum { MAKE = O_OWN, SIDE_OPTION, DEVICES, NO_CPU, SHRINK, TRANSFORM };
	static const struct option longs[] = {
		{ "make", 1, NULL, MAKE },     { "side", 1, NULL, SIDE_OPTION }, { "devices", 1, NULL, DEVICES },
		{ "no-cpu", 0, NULL, NO_CPU }, { "shrink", 1, NULL, SHRINK },	 { "own-transform", 0, NULL, TRANSFORM },
		COMMON_OPTIONS
	};
	struct options o;

	memset(&o, 0, sizeof(o));
	o.common = common_defaults;
	o.common.rounds = 0;
	o.devices = o.shrink = 1;
	o.side = 256;
	o.cpu = true;
	for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		switch (c) {
		case MAKE: o.make = optarg; break;
		case SIDE_OPTION: o.side = parse_size(optarg); break;
		case DEVICES: o.devices = parse_size(optarg); break;
		case NO_CPU: o.cpu = false; break;
		case SHRINK: o.shrink = parse_size(optarg); break;
		case TRANSFORM: o.own_transform = true; break;
		case O_HELP: fputs(usage, stdout); exit(0);
		default:
			if (common_option(&o.common, c))
				break;
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (argc - optind != (o.make || o.common.update ? 1 : 2) || !o.devices || o.devices >= MAX_OWNERS || !o.shrink) {
		fputs(usage, stderr);
		exit(2);
	}
	if (o.devices > 1 && o.common.mode != MODE_GAIA)
		errx(2, "--mode %s: one device", mode_names[o.common.mode]);
	o.tiles = argv[optind];
	o.out = argv[optind + 1];
	return o;
}

/* ---- places ---- */

/* From the first image down, and from there to the right. */
static void find_places(struct run *r)
{
	uint64_t columns = r->set.columns, n = columns * r->set.rows;

	memset(r->places, 0, n * sizeof(*r->places));
	for (uint64_t i = 1; i < n; i++) {
		uint64_t other = i % columns ? i - 1 : i - columns;
		struct place shift = i % columns ? r->right[other] : r->below[other];

		r->places[i].x = r->places[other].x + shift.x;
		r->places[i].y = r->places[other].y + shift.y;
	}
	begin_at_zero(r->places, n);
}

/* ---- what an owner does ---- */

static struct canvas canvas_of(const struct owner *o)
{
	const struct run *r = o->run;
	struct canvas c;

	memset(&c, 0, sizeof(c));
	c.tiles = o->images + tile_at(&r->set, 0);
	c.places = o->places;
	c.columns = (uint32_t)r->set.columns;
	c.rows = (uint32_t)r->set.rows;
	c.side = (uint32_t)r->set.side;
	c.width = r->width;
	c.height = r->height;
	c.stride = tile_stride(r->set.side);
	c.from = (uint32_t)((uint64_t)r->width * o->part / r->n_owners);
	c.to = (uint32_t)((uint64_t)r->width * (o->part + 1) / r->n_owners);
	c.out = o->picture;
	return c;
}

static void bring(struct owner *o, struct data *d, size_t off, size_t len, int prot)
{
	uint64_t start = now_ns();

	if (!o->is_cpu)
		data_acquire(d, off, len, prot);
	o->acquire_ns += now_ns() - start;
}

static void give_back(struct owner *o, struct data *d, size_t off, size_t len)
{
	uint64_t start = now_ns();

	if (!o->is_cpu)
		data_release(d, off, len);
	o->acquire_ns += now_ns() - start;
}

/* How many rows of images are brought at a time, and where they are in the file. */
static uint64_t rows_at_a_time(const struct run *r)
{
	uint64_t row = r->set.columns * tile_stride(r->set.side), rows = r->options.common.window / row;

	return !r->options.common.window || rows > r->set.rows ? r->set.rows : rows < 2 ? 2 : rows;
}

/* Step 1: how far neighbours are apart, of this owner's share of the images. */
static void *find_shifts(void *arg)
{
	struct owner *o = (struct owner *)arg;
	struct run *r = (struct run *)o->run;
	uint64_t columns = r->set.columns, rows = rows_at_a_time(r), start = now_ns(), before = o->acquire_ns;

	if (!o->is_cpu)
		data_use_device(&o->tiles);
	/* Rows of images; the last of a window is the first of the next, so that each has the one below it. */
	for (uint64_t first = 0; first < r->set.rows; first += rows - 1) {
		uint64_t end = first + rows < r->set.rows ? first + rows : r->set.rows;
		size_t off = tile_at(&r->set, first * columns), len = tile_at(&r->set, end * columns) - off;

		bring(o, &o->tiles, off, len, PROT_READ);
		for (uint64_t i = first * columns; i < end * columns; i++) {
			const unsigned char *image = o->images + tile_at(&r->set, i);

			if (i % r->n_owners != o->part)
				continue;
			if (i % columns + 1 < columns && (i / columns > first || !first))
				r->right[i] = shift_of(&o->strips, image, o->images + tile_at(&r->set, i + 1), false, o->host);
			if (i / columns + 1 < end)
				r->below[i] = shift_of(&o->strips, image, o->images + tile_at(&r->set, i + columns), true, o->host);
		}
		give_back(o, &o->tiles, off, len);
		if (end == r->set.rows)
			break;
	}
	o->compute_ns += now_ns() - start - (o->acquire_ns - before);
	return NULL;
}

/* What a program has to do that copies and shares OUT with others: write only what is its own. */
static void store_columns(struct owner *o, const struct canvas *c)
{
	unsigned char *host = (unsigned char *)own_memory(o->out.size);

	device_copy(host, o->out.p, o->out.size);
	count_moved(0, o->out.size, 1);
	for (size_t y = 0; y < c->height; y++)
		write_all(o->out.fd, host + y * c->width + c->from, c->to - c->from, y * c->width + c->from);
	free(host);
}

/*
 * Step 2: this owner's columns of the picture, by bands: the rows of pixels that a window of images can make, which are those above
 * where the row of images behind it may begin.
 */
static void *make_columns(void *arg)
{
	struct owner *o = (struct owner *)arg;
	const struct run *r = o->run;
	uint64_t rows = rows_at_a_time(r), columns = r->set.columns, start = now_ns(), before = o->acquire_ns;
	bool pieces = !o->is_cpu && o->out.mode == MODE_COPY && r->n_owners > 1;
	struct canvas c = canvas_of(o);
	uint32_t step = c.side - c.side / 4;

	if (!o->is_cpu)
		data_use_device(&o->tiles);
	copy_on(o->is_cpu, o->places, r->places, columns * r->set.rows * sizeof(*o->places));
	bring(o, &o->out, 0, o->out.size, pieces ? PROT_WRITE : RW);
	for (uint64_t first = 0; first < r->set.rows; first += rows - 1) {
		uint64_t end = first + rows < r->set.rows ? first + rows : r->set.rows;
		size_t off = tile_at(&r->set, first * columns), len = tile_at(&r->set, end * columns) - off, n;
		/* Where an image is differs by up to 2 * MAX_OFF from where it should be. */
		uint32_t until = end == r->set.rows ? c.height : (uint32_t)end * step - 2 * most_off(c.side);

		bring(o, &o->tiles, off, len, PROT_READ);
		c.rows = (uint32_t)end;
		n = (size_t)(until - c.top) * (c.to - c.from);
		LAUNCH_ON(o->is_cpu, make, n, &c);
		c.top = until;
		give_back(o, &o->tiles, off, len);
		if (end == r->set.rows)
			break;
	}
	if (pieces)
		store_columns(o, &c);
	else
		give_back(o, &o->out, 0, o->out.size);
	o->compute_ns += now_ns() - start - (o->acquire_ns - before);
	return NULL;
}

/* ---- a round ---- */

/* Both steps of all owners, of images as they are after whole updates: after how many. */
static void together(struct run *r, void *(*step)(void *))
{
	for (unsigned i = 1; i < r->n_owners; i++)
		if ((errno = pthread_create(&r->owners[i].thread, NULL, step, &r->owners[i])))
			err(1, "pthread_create");
	step(&r->owners[0]);
	for (unsigned i = 1; i < r->n_owners; i++)
		pthread_join(r->owners[i].thread, NULL);
}

static uint64_t make_picture(struct run *r)
{
	uint64_t start = now_ns(), updates;

	for (;;) {
		updates = epoch_settled(&r->owners[0].tiles);
		together(r, find_shifts);
		find_places(r);
		/* Half of an update can be seen as anything; pixels are made where there is room for them. */
		if (memcmp(r->places, r->wanted, r->set.epochs.items * sizeof(*r->places)) == 0)
			together(r, make_columns);
		else if (epoch_is_still(&r->owners[0].tiles, updates))
			errx(1, "WRONG: after %" PRIu64 " updates images are found where they are not", updates);
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
		memcpy(bytes, out->cpu, out->size);
	else
		read_all(out->fd, bytes, out->size, 0);
}

/* What OUT has to be after so many updates: all anew. The caller frees it. */
static unsigned char *reference_picture(struct run *r, uint64_t updates)
{
	uint64_t n = r->set.epochs.items, stride = tile_stride(r->set.side);
	unsigned char *tiles = (unsigned char *)own_memory(n * stride), *out = (unsigned char *)own_memory((size_t)r->width * r->height);
	struct canvas c = canvas_of(&r->owners[0]);

	for (; r->reference_updates < updates; r->reference_updates++)
		for (uint64_t many = epoch_changes(&r->set.epochs), k = 0; k < many; k++)
			r->versions[epoch_item(&r->set.epochs, r->reference_updates + 1, k)] = (uint32_t)r->reference_updates + 1;
	for (uint64_t i = 0; i < n; i++)
		make_tile(&r->set, i, r->versions[i], tiles + i * stride);
	c.tiles = tiles;
	c.places = r->wanted;
	c.from = 0;
	c.to = c.width;
	c.out = out;
	LAUNCH_ON(true, make, (size_t)c.width * c.height, &c);
	free(tiles);
	return out;
}

static void check(struct run *r, uint64_t round, uint64_t updates, unsigned char *bytes)
{
	unsigned char *want;

	if (!to_be_checked(&r->options.common, round))
		return;
	read_out(r, bytes);
	want = reference_picture(r, updates);
	for (size_t i = 0; i < (size_t)r->width * r->height; i++)
		if (bytes[i] != want[i])
			errx(1, "WRONG: round %" PRIu64 ", after %" PRIu64 " updates: pixel %zu,%zu is %u, not %u", round, updates,
			     i % r->width, i / r->width, bytes[i], want[i]);
	free(want);
	r->checked++;
}

/* ---- beginning and end ---- */

static void set_up(struct run *r, unsigned part)
{
	int device = r->options.common.device;
	enum mode mode = r->options.common.mode;
	struct owner *o = &r->owners[part];

	o->run = r;
	o->part = part;
	o->is_cpu = part >= r->options.devices;
	if (o->is_cpu) {
		const struct owner *shared = &r->owners[0];

		o->images = shared->tiles.cpu ? shared->tiles.cpu : (unsigned char *)map_file(r->options.tiles, PROT_READ);
		o->picture = shared->out.cpu ? shared->out.cpu : (unsigned char *)map_file(r->options.out, RW);
	} else {
		data_open(&o->tiles, mode, r->options.tiles, PROT_READ, device < 0 && !part ? -1 : (device < 0 ? 0 : device) + (int)part);
		data_open(&o->out, mode, r->options.out, RW, mode == MODE_GAIA ? o->tiles.device : -1);
		o->images = o->tiles.p;
		o->picture = o->out.p;
	}
	o->places = (struct place *)alloc_on(o->is_cpu, r->set.epochs.items * sizeof(*o->places));
	strips_new(&o->strips, (uint32_t)r->set.side, o->is_cpu, r->options.own_transform);
	o->host = (double *)own_memory((size_t)r->set.side * overlap_of(r->set.side) * sizeof(*o->host));
}

static void open_set(struct run *r)
{
	int fd = open_file(r->options.tiles, O_RDONLY), out;
	uint64_t n, step, start = now_ns();
	struct epoch_head after;

	read_all(fd, &r->set, sizeof(r->set), 0);
	n = r->set.epochs.items;
	if (r->set.epochs.magic != SET_MAGIC || !n || n != r->set.columns * r->set.rows ||
	    file_size(fd, r->options.tiles) != tile_at(&r->set, n))
		errx(1, "%s: not a set of images", r->options.tiles);
	r->right = (struct place *)own_memory(n * sizeof(*r->right));
	r->below = (struct place *)own_memory(n * sizeof(*r->below));
	r->places = (struct place *)own_memory(n * sizeof(*r->places));
	r->wanted = (struct place *)own_memory(n * sizeof(*r->wanted));
	r->versions = (uint32_t *)own_memory(n * sizeof(*r->versions));
	for (uint64_t i = 0; i < n; i++)
		r->wanted[i] = true_place(&r->set, i);
	begin_at_zero(r->wanted, n);

	do {
		if (now_ns() - start > EPOCH_PATIENCE_NS)
			errx(1, "%s: an update does not end", r->options.tiles);
		read_all(fd, &r->set, sizeof(r->set), 0);
		read_all(fd, r->versions, n * sizeof(*r->versions), PAGE);
		read_all(fd, &after, sizeof(after), 0);
	} while (r->set.epochs.epoch % 2 || after.epoch != r->set.epochs.epoch);
	r->reference_updates = r->set.epochs.epoch / 2;
	close(fd);

	step = r->set.side - overlap_of(r->set.side);
	r->width = (uint32_t)((r->set.columns - 1) * step + r->set.side + 2 * most_off(r->set.side));
	r->height = (uint32_t)((r->set.rows - 1) * step + r->set.side + 2 * most_off(r->set.side));
	out = open_file(r->options.out, O_RDWR | O_CREAT | O_TRUNC);
	if (ftruncate(out, (off_t)((size_t)r->width * r->height)))
		err(1, "%s", r->options.out);
	close(out);
}

#ifdef HAVE_PNG
static void draw(const struct run *r, unsigned char *bytes)
{
	size_t n = r->options.shrink, columns = r->width / n, rows = r->height / n;
	unsigned char *pixels = (unsigned char *)own_memory(columns * rows);

	read_out(r, bytes);
	for (size_t i = 0; i < columns * rows; i++) {
		size_t x = i % columns * n, y = i / columns * n, sum = 0;

		for (size_t at = 0; at < n * n; at++)
			sum += bytes[(y + at / n) * r->width + x + at % n];
		pixels[i] = (unsigned char)(sum / (n * n));
	}
	write_png(r->options.common.png, pixels, columns, rows, 1);
	free(pixels);
}
#endif

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
			 "\"rounds\": %" PRIu64 ", \"checked\": %" PRIu64 ", \"torn\": %" PRIu64 ", \"images\": %" PRIu64
			 ", \"ns\": %" PRIu64 ", \"acquire_ns\": %" PRIu64 ", \"compute_ns\": %" PRIu64,
			 o->rounds, r->checked, r->torn, r->set.epochs.items, r->ns, acquire_ns, compute_ns);
		print_json("first", first, "");
		print_json("rounds", rounds, more);
		return;
	}
	printf("stitch: %" PRIu64 "x%" PRIu64 " images of %" PRIu64 " pixels each way, to %ux%u, by %" PRIu64 " device%s%s, mode %s\n",
	       r->set.columns, r->set.rows, r->set.side, r->width, r->height, r->options.devices, r->options.devices == 1 ? "" : "s",
	       r->options.cpu ? " and the CPU" : "", mode_names[o->mode]);
	print_moved("first", first, no_time(o->mode));
	if (o->rounds) {
		printf("%" PRIu64 " more, ", o->rounds);
		print_moved("moved", rounds, no_time(o->mode));
	}
	printf("seconds: %.3f in all; %.3f to bring and give back, %.3f of all owners' work; %" PRIu64 " repeated for an update\n",
	       (double)r->ns / 1e9, (double)acquire_ns / 1e9, (double)compute_ns / 1e9, r->torn);
	printf("%" PRIu64 " times all bytes of the picture were equal to the reference's\n", r->checked);
}

static int make_only(const struct options *o)
{
	unsigned long columns, rows;
	char end;

	if (sscanf(o->make, "%lux%lu%c", &columns, &rows, &end) != 2 || !columns || !rows || columns > 1000 || rows > 1000)
		errx(2, "--make %s: not COLUMNSxROWS, of 1 to 1000", o->make);
	if (o->side < 128 || o->side > 4096 || o->side % 8)
		errx(2, "--side: from 128 to 4096, a multiple of 8");
	make_set(o->tiles, columns, rows, o->side, o->common.seed);
	set_changes(&o->common, o->tiles);
	return 0;
}

int main(int argc, char **argv)
{
	static struct run r;
	struct moved before, first, rounds;
	struct updater updater;
	unsigned char *bytes;
	bool updates;

	r.options = parse_options(argc, argv);
	if (r.options.make)
		return make_only(&r.options);
	if (r.options.common.update)
		return only_update(&r.options.common, r.options.tiles, SET_MAGIC, apply_to_set);
	updates = start_updates(&r.options.common, r.options.tiles, apply_to_set, &updater);
	open_set(&r);
	r.n_owners = (unsigned)r.options.devices + r.options.cpu;
	for (unsigned i = 0; i < r.n_owners; i++)
		set_up(&r, i);
	if (updates && r.options.common.mode == MODE_STRICT)
		updater_in_memory(&updater, r.owners[0].tiles.cpu);
	bytes = (unsigned char *)own_memory((size_t)r.width * r.height);

	before = moved_until_now(&r.owners[0].tiles);
	check(&r, 0, make_picture(&r), bytes);
	first = moved_since(before, moved_until_now(&r.owners[0].tiles));
	before = moved_until_now(&r.owners[0].tiles);
	for (uint64_t round = 1; round <= r.options.common.rounds; round++) {
		if (updates)
			updater_ask(&updater);
		check(&r, round, make_picture(&r), bytes);
		progress("round %" PRIu64 " of %" PRIu64, round, r.options.common.rounds);
	}
	rounds = moved_since(before, moved_until_now(&r.owners[0].tiles));
	end_progress();
	if (updates)
		updater_stop(&updater);
#ifdef HAVE_PNG
	if (r.options.common.png)
		draw(&r, bytes);
#endif
	say(&r, first, rounds);
	for (unsigned i = 0; i < r.n_owners; i++) {
		if (!r.owners[i].is_cpu) {
			data_close(&r.owners[i].tiles);
			data_close(&r.owners[i].out);
		}
		strips_free(&r.owners[i].strips);
		free_on(r.owners[i].is_cpu, r.owners[i].places);
		free(r.owners[i].host);
	}
	free(bytes);
	return 0;
}
