/*
 * pieces.c - gpu-bench: kernel against copy engine, both directions, memory, slabs.
 */
#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "device/cuda/internal.h"

/* ---- kernel against copy engine ---- */

#define ROOM (32u * GAIA_CHUNK_PAGES) /* pages: half of the scenes' */

enum { ENGINE, BY_KERNEL, WAYS };

static struct device *device_that(uint32_t copy_from, uint64_t capacity)
{
	struct cuda_config config = { .capacity = capacity };
	struct device *dev;
	const char *why;
	const struct cuda_api *api = cuda_driver(&why);
	int err;

	if (!api)
		die("%s", why);
	err = cuda_create(api, &config, copy_from, &dev);
	if (err)
		die("a device of %llu bytes: %s", (unsigned long long)capacity, strerror(-err));
	return dev;
}

/* Every other piece of so many pages. */
static unsigned make_pieces(const struct scene *s, unsigned pages, unsigned n, struct dev_run *runs)
{
	for (unsigned i = 0; i < n; i++) {
		unsigned at = pages == GAIA_CHUNK_PAGES ? i * pages : 2 * i * pages;
		unsigned c = at / GAIA_CHUNK_PAGES, page = at % GAIA_CHUNK_PAGES;

		runs[i] = (struct dev_run){ .mem = s->mem[c], .page = page, .npages = pages,
					    .host = s->host + c * CHUNK + page * (size_t)GAIA_PAGE };
	}
	return n;
}

static void time_pieces(struct scene *s, enum dev_kind kind, unsigned pages, unsigned n, struct samples *us)
{
	static struct dev_run runs[4096];
	struct dev_op op = { .kind = kind, .runs = runs, .n = make_pieces(s, pages, n, runs) };

	for (struct repeat r = repeat(15); again(&r);) {
		double t0 = now_us();

		run_op(s->dev, &op);
		took(&r, us, now_us() - t0);
	}
}

static void pieces_row(struct scene scene[WAYS], enum dev_kind kind, unsigned pages, unsigned n)
{
	struct samples us[WAYS] = { 0 };
	double bytes = bytes_of(kind, pages * n), best;

	for (unsigned w = 0; w < WAYS; w++)
		time_pieces(&scene[w], kind, pages, n, &us[w]);
	best = MIN(median(&us[ENGINE]), median(&us[BY_KERNEL]));
	row_begin("%s, kernel against copy engine", kind_name(kind));
	row_number("piece_bytes", pages * (double)GAIA_PAGE);
	row_number("pieces", n);
	row_samples("kernel_us", &us[BY_KERNEL]);
	row_samples("engine_us", &us[ENGINE]);
	row_text("faster", median(&us[BY_KERNEL]) < median(&us[ENGINE]) ? "kernel" : "engine");
	put_rate(bytes, best, ceiling_of(kind));
	put_memory_share(kind, pages * n, best);
	row_end();
}

static void calibration_row(void)
{
	struct device *dev = device_that(0, 16 * CHUNK);

	row_begin("the crossover that calibration chose");
	row_number("copy_from_bytes", to_cuda(dev)->copy_from);
	row_end();
	dev->ops->destroy(dev);
}

void section_pieces(void)
{
	unsigned room = quick ? GAIA_CHUNK_PAGES : ROOM, chunks = quick ? 2 : BENCH_CHUNKS;
	struct scene scene[WAYS];

	bench_start();
	if (on_sim)
		does_not_apply("the simulated device has no copy engine");
	calibration_row();
	for (unsigned w = 0; w < WAYS; w++)
		scene_begin(&scene[w], device_that(w == ENGINE ? 1 : UINT32_MAX, (2 * chunks + 16) * CHUNK),
			    chunks);
	for (unsigned n = 1; n <= 4096; n *= 8)
		for (unsigned pages = 1; pages <= GAIA_CHUNK_PAGES && pages * n <= room; pages *= 2) {
			if (quick && pages != 1 && pages != 16)
				continue;
			pieces_row(scene, DEV_COPY_IN, pages, n);
			pieces_row(scene, DEV_COPY_OUT, pages, n);
		}
	for (unsigned w = 0; w < WAYS; w++) {
		scene_end(&scene[w]);
		scene[w].dev->ops->destroy(scene[w].dev);
	}
}

/* ---- both directions ---- */

static sem_t both_done;
static int both_err;

static void one_done(struct dev_op *op, int err)
{
	if (err)
		both_err = err;
	sem_post(&both_done);
}

static void submit(struct device *dev, struct dev_op *op)
{
	int err;

	op->done = one_done;
	err = device_submit(dev, op);
	if (err)
		die("the device refuses to %s: %s", kind_name(op->kind), strerror(-err));
}

static void await(unsigned n)
{
	while (n--)
		while (sem_wait(&both_done) && errno == EINTR)
			;
	if (both_err)
		die("a copy failed: %s", strerror(-both_err));
}

void section_both_ways(void)
{
	static struct dev_run in_runs[BENCH_CHUNKS], out_runs[BENCH_CHUNKS];
	unsigned chunks = quick ? 2 : 32;
	struct device *dev;
	struct scene s;

	bench_start();
	sem_init(&both_done, 0, 0);
	dev = bench_device((2 * chunks + 16) * CHUNK);
	scene_begin(&s, dev, chunks);
	for (unsigned n = 1; n <= chunks; n *= quick ? 2 : 8) {
		struct dev_op in = { .kind = DEV_COPY_IN, .runs = in_runs };
		struct dev_op out = { .kind = DEV_COPY_OUT, .runs = out_runs };
		struct samples in_us = { .n = 0 }, out_us = { .n = 0 }, both_us = { .n = 0 };

		in.n = make_runs(&s, DEV_COPY_IN, n * GAIA_CHUNK_PAGES, false, in_runs);
		out.n = make_runs(&s, DEV_COPY_OUT, n * GAIA_CHUNK_PAGES, false, out_runs);
		for (unsigned c = 0; c < n; c++) {
			out_runs[c].mem = s.other[c];
			out_runs[c].host = s.base + c * CHUNK;
		}
		for (struct repeat r = repeat(15); again(&r);) {
			double t0 = now_us(), t1, t2;

			submit(dev, &in);
			await(1);
			t1 = now_us();
			submit(dev, &out);
			await(1);
			t2 = now_us();
			submit(dev, &in);
			submit(dev, &out);
			await(2);
			took(&r, &both_us, now_us() - t2);
			took(&r, &in_us, t1 - t0);
			took(&r, &out_us, t2 - t1);
		}
		row_begin("copy in and copy out, submitted at once");
		row_number("bytes", 2.0 * n * CHUNK);
		row_samples("us", &both_us);
		row_number("copy_in_alone_us", median(&in_us));
		row_number("copy_out_alone_us", median(&out_us));
		put_rate(2.0 * n * CHUNK, median(&both_us), ceilings.to_device + ceilings.to_host);
		row_end();
	}
	scene_end(&s);
	dev->ops->destroy(dev);
}

/* ---- memory ---- */

#define SERIES 64u

struct series {
	struct samples first, next, rest;
};

/* Of the chunks that the device keeps ready, of what it makes when those run out, of the rest. */
static void put_series(const char *what, struct series *s)
{
	row_begin("%s, each", what);
	row_samples("first_8_us", &s->first);
	row_samples("next_8_us", &s->next);
	row_samples("rest_us", &s->rest);
	row_end();
}

static void into(struct series *s, unsigned i, double us)
{
	sample(i < 8 ? &s->first : i < 16 ? &s->next : &s->rest, us);
}

/* Allocates, frees, and lets the device have its chunks ready again. */
static void memory_rows(bool exported, unsigned rounds)
{
	unsigned n = quick ? 20 : SERIES;
	struct device *dev = bench_device(2 * SERIES * CHUNK);
	struct series alloc, export_, free_;
	struct devmem *mem[SERIES];

	memset(&alloc, 0, sizeof(alloc));
	memset(&export_, 0, sizeof(export_));
	memset(&free_, 0, sizeof(free_));
	for (unsigned round = 0; round < rounds; round++) {
		usleep(quick ? 10000 : 200000);
		for (unsigned i = 0; i < n; i++) {
			double t0 = now_us();
			int err = dev->ops->alloc(dev, &mem[i]);

			if (err)
				die("allocating a chunk: %s", strerror(-err));
			into(&alloc, i, now_us() - t0);
		}
		for (unsigned i = 0; i < n && exported; i++) {
			double t0 = now_us();
			int fd = dev->ops->export_fd(dev, mem[i], true);

			into(&export_, i, now_us() - t0);
			if (fd < 0)
				die("exporting a chunk: %s", strerror(-fd));
			close(fd);
		}
		for (unsigned i = 0; i < n; i++) {
			double t0 = now_us();

			dev->ops->free(dev, mem[i]);
			into(&free_, i, now_us() - t0);
		}
	}
	if (exported) {
		put_series("allocating chunks that are exported then", &alloc);
		put_series("exporting", &export_);
		put_series("freeing what was exported", &free_);
	} else {
		put_series("allocating chunks that are not exported", &alloc);
		put_series("freeing what was not exported", &free_);
	}
	dev->ops->destroy(dev);
}

void section_memory(void)
{
	bench_start();
	memory_rows(true, quick ? 1 : 3);
	memory_rows(false, quick ? 1 : 3);
}

/* ---- slabs ---- */

static double copy_in_us(struct device *dev, struct devmem *mem, char *host)
{
	struct dev_run run = { .mem = mem, .npages = GAIA_CHUNK_PAGES, .host = host };
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = &run, .n = 1 };
	double t0 = now_us();

	run_op(dev, &op);
	return now_us() - t0;
}

enum { FIRST, SETTLE, SECOND, REGISTER, GOES, UNKNOWN, SLAB_TIMES };

/* What an announced slab costs, and copies from it; each time a new one. */
static void slab_once(struct device *dev, struct devmem *mem, struct samples us[SLAB_TIMES])
{
	char *slab = new_slabs(dev, 1, false), *other;
	double t0;

	/* Staged, where the pinner is not the faster one. */
	sample(&us[FIRST], copy_in_us(dev, mem, slab));
	t0 = now_us();
	settle_slabs(dev, slab, 1);
	sample(&us[SETTLE], now_us() - t0);
	sample(&us[SECOND], copy_in_us(dev, mem, slab));
	other = new_slabs(dev, 1, false);
	t0 = now_us();
	settle_slabs(dev, other, 1);
	sample(&us[REGISTER], now_us() - t0);
	free_slabs(dev, other, 1);
	t0 = now_us();
	if (dev->ops->host_slab)
		dev->ops->host_slab(dev, slab, false);
	sample(&us[GOES], now_us() - t0);
	sample(&us[UNKNOWN], copy_in_us(dev, mem, slab));
	munmap(slab, CHUNK);
}

void section_slabs(void)
{
	struct samples us[SLAB_TIMES] = { 0 };
	struct device *dev;
	struct devmem *mem;

	bench_start();
	dev = bench_device(16 * CHUNK);
	if (dev->ops->alloc(dev, &mem))
		die("no chunk");
	for (unsigned i = 0; i < (quick ? 4 : 32); i++)
		slab_once(dev, mem, us);
	row_begin("copy in of 2 MiB from an announced slab");
	row_number("bytes", CHUNK);
	row_samples("first_us", &us[FIRST]);
	row_samples("then_until_registered_us", &us[SETTLE]);
	row_samples("registered_us", &us[SECOND]);
	row_samples("register_us", &us[REGISTER]);
	row_samples("slab_goes_us", &us[GOES]);
	put_rate(CHUNK, median(&us[SECOND]), ceilings.to_device);
	row_end();
	row_begin("copy in of 2 MiB from memory that was not announced");
	row_number("bytes", CHUNK);
	row_samples("us", &us[UNKNOWN]);
	put_rate(CHUNK, median(&us[UNKNOWN]), ceilings.to_device);
	row_end();
	dev->ops->free(dev, mem);
	dev->ops->destroy(dev);
}
