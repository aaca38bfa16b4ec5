/*
 * bench.c - gpu-bench: what the daemon's device makes of a GPU, as shares of what the GPU can do.
 *
 *	gpu-bench [--beside] --list				see sections.h
 *	gpu-bench [--quick] [--beside] [--device sim|cuda] SECTION
 *
 * There is no mount, and no page cache: only operations of device.h, and bare calls of the driver beside them.
 */
#include "bench.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "device/cuda/internal.h"

bool on_sim;
struct ceilings ceilings;

/* ---- what all sections share ---- */

void bench_start(void)
{
	log_set_level(LOG_LEVEL_WARN);
	if (on_sim && beside)
		does_not_apply("the simulated device has no kernels of other processes to wait for");
	if (on_sim) {
		rows_simulated();
		return;
	}
	gpu_start();
	ceilings = measure_ceilings();
}

static struct device *device_of(unsigned index, uint64_t capacity)
{
	struct sim_config sim = { .index = index, .capacity = capacity };
	struct cuda_config cuda = { .index = index, .capacity = capacity };
	struct device *dev;
	int err = on_sim ? device_sim_create(&sim, &dev) : device_cuda_create(&cuda, &dev);

	if (err)
		die("device %u of %llu bytes: %s", index, (unsigned long long)capacity, strerror(-err));
	return dev;
}

struct device *bench_device(uint64_t capacity)
{
	return device_of(0, capacity);
}

static bool refused; /* memory could not be registered */

/* The device's pinner registers slabs beside what runs: until then a row would be one of staged copies. */
void settle_slabs(struct device *dev, char *slabs, unsigned n)
{
	for (unsigned i = 0; i < n && !on_sim; i++) {
		size_t bytes;

		cuda_host_settle(to_cuda(dev), slabs + i * CHUNK);
		refused |= !cuda_host_address(slabs + i * CHUNK, &bytes);
	}
}

char *new_slabs(struct device *dev, unsigned n, bool settled)
{
	size_t bytes = n * CHUNK;
	char *raw = mmap(NULL, bytes + CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;

	if (raw == MAP_FAILED)
		die("no memory: %s", strerror(errno));
	at = (char *)ROUND_UP((uintptr_t)raw, CHUNK);
	if (at > raw)
		munmap(raw, (size_t)(at - raw));
	munmap(at + bytes, CHUNK - (size_t)(at - raw));
	madvise(at, bytes, MADV_HUGEPAGE);
	memset(at, 0x11, bytes);
	for (unsigned i = 0; i < n && dev->ops->host_slab; i++)
		dev->ops->host_slab(dev, at + i * CHUNK, true);
	if (settled)
		settle_slabs(dev, at, n);
	return at;
}

void free_slabs(struct device *dev, char *slabs, unsigned n)
{
	for (unsigned i = 0; i < n && dev->ops->host_slab; i++)
		dev->ops->host_slab(dev, slabs + i * CHUNK, false);
	munmap(slabs, n * CHUNK);
}

static void alloc_chunks(struct device *dev, struct devmem **mem, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		int err = dev->ops->alloc(dev, &mem[i]);

		if (err)
			die("allocating chunk %u: %s", i, strerror(-err));
	}
}

void scene_begin(struct scene *s, struct device *dev, unsigned chunks)
{
	struct dev_run runs[BENCH_CHUNKS];
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = runs, .n = chunks };

	*s = (struct scene){ .dev = dev, .n = chunks };
	alloc_chunks(dev, s->mem, chunks);
	alloc_chunks(dev, s->other, chunks);
	s->host = new_slabs(dev, chunks, true);
	s->base = new_slabs(dev, chunks, true);
	for (unsigned c = 0; c < chunks; c++)
		runs[c] = (struct dev_run){ .mem = s->mem[c], .npages = GAIA_CHUNK_PAGES,
					    .host = s->base + c * CHUNK };
	run_op(dev, &op);
	for (unsigned c = 0; c < chunks; c++)
		runs[c].mem = s->other[c];
	run_op(dev, &op);
}

void scene_end(struct scene *s)
{
	for (unsigned c = 0; c < s->n; c++) {
		s->dev->ops->free(s->dev, s->mem[c]);
		s->dev->ops->free(s->dev, s->other[c]);
	}
	free_slabs(s->dev, s->host, s->n);
	free_slabs(s->dev, s->base, s->n);
}

void run_op(struct device *dev, struct dev_op *op)
{
	int err = device_run(dev, op);

	if (err)
		die("the device does not %s: %s", device_kind_name(op->kind), strerror(-err));
}

unsigned make_runs(const struct scene *s, enum dev_kind kind, unsigned pages, bool scattered,
		   struct dev_run *runs)
{
	unsigned most = scattered || kind == DEV_ZERO ? 1 : GAIA_CHUNK_PAGES, n = 0;

	for (unsigned at = 0; pages; n++) {
		unsigned c = at / GAIA_CHUNK_PAGES, page = at % GAIA_CHUNK_PAGES, len = MIN(most, pages);
		size_t offset = c * CHUNK + page * (size_t)GAIA_PAGE;

		runs[n] = (struct dev_run){ .mem = s->mem[c], .page = page, .npages = len };
		if (kind == DEV_COPY_WITHIN || kind == DEV_COPY_PEER)
			runs[n].other = s->other[c];
		if (device_uses_host(kind))
			runs[n].host = s->host + offset;
		if (kind == DEV_PULL) {
			runs[n].base = s->base + offset;
			runs[n].limit = GAIA_PAGE;
		}
		at += scattered ? 2 : len;
		pages -= len;
	}
	return n;
}

double ceiling_of(enum dev_kind kind)
{
	switch (kind) {
	case DEV_COPY_IN:
	case DEV_PULL:
		return ceilings.to_device;
	case DEV_COPY_OUT:
		return ceilings.to_host;
	case DEV_COPY_WITHIN:
		return ceilings.within;
	case DEV_ZERO:
		return ceilings.set;
	case DEV_ARM:
	case DEV_FIND_CHANGED:
		return ceilings.read;
	case DEV_COPY_PEER: /* said by gpu-ceilings between */
		break;
	}
	return 0;
}

double bytes_of(enum dev_kind kind, unsigned pages)
{
	/* A pull reads the host's page and its base. */
	return (double)pages * GAIA_PAGE * (kind == DEV_PULL ? 2 : 1);
}

void put_rate(double bytes, double us, double ceiling)
{
	row_rate(bytes, us, ceiling);
	if (bytes <= 2 * ceilings.l2)
		row_bool("in_l2", true);
	if (refused)
		row_bool("staged", true);
}

/* One page's bytes of the GPU's memory for each page: what a pull or a copy out reads there, or a copy in writes. */
void put_memory_share(enum dev_kind kind, unsigned pages, double us)
{
	double rate = us > 0 ? (double)pages * GAIA_PAGE / us / 1e3 : 0;

	if (!device_uses_host(kind) || ceilings.read <= 0)
		return;
	row_number("gpu_memory_gb_s", rate);
	row_number("gpu_memory_read_ceiling_gb_s", ceilings.read);
	row_number("of_gpu_memory_ceiling", rate / ceilings.read);
}

const char *kind_name(enum dev_kind kind)
{
	return device_kind_name(kind);
}

/* ---- kinds ---- */

#define PAGES_MAX 16384u

/* How long the driver takes to move as many bytes in one piece and to report it. */
static double bare_us(enum dev_kind kind, unsigned pages)
{
	size_t bytes = (size_t)bytes_of(kind, pages);
	bool has_host = device_uses_host(kind);
	struct samples us = { .n = 0 };
	CUdeviceptr to, from;
	void *host = NULL;
	CUstream s;

	if (on_sim || kind == DEV_COPY_PEER)
		return 0;
	s = new_stream();
	to = new_memory(bytes);
	from = new_memory(bytes);
	if (has_host)
		host = new_pinned(bytes);
	for (struct repeat r = repeat(15); again(&r);) {
		double t0 = now_us();

		if (kind == DEV_COPY_OUT)
			CU(MemcpyDtoHAsync(host, from, bytes, s));
		else if (has_host)
			CU(MemcpyHtoDAsync(to, host, bytes, s));
		else if (kind == DEV_COPY_WITHIN)
			CU(MemcpyDtoDAsync(to, from, bytes, s));
		else if (kind == DEV_ZERO)
			CU(MemsetD8Async(to, 0, bytes, s));
		else
			KERNEL(kernel_read(from, bytes, to, s));
		CU(StreamSynchronize(s));
		took(&r, &us, now_us() - t0);
	}
	if (host)
		CU(MemFreeHost(host));
	CU(MemFree(from));
	CU(MemFree(to));
	CU(StreamDestroy(s));
	return median(&us);
}

/*
 * Before each pull: bases are as the device is, and the host's pages differ from them in a byte of 64. What
 * a pull has brought is the base of the next.
 */
static void prepare_pull(struct scene *s, struct dev_run *runs, unsigned n)
{
	char *swapped = s->host;

	s->host = s->base;
	s->base = swapped;
	for (unsigned i = 0; i < n; i++) {
		void *host = runs[i].host;

		runs[i].host = (void *)runs[i].base;
		runs[i].base = host;
	}
}

static void make_pull_differ(struct scene *s)
{
	struct dev_run runs[BENCH_CHUNKS];
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = runs, .n = s->n };

	memcpy(s->host, s->base, s->n * CHUNK);
	for (size_t i = 0; i < s->n * CHUNK; i += 64)
		s->host[i] = (char)(s->host[i] + 1);
	/* As the device is after a pull from host. */
	for (unsigned c = 0; c < s->n; c++)
		runs[c] = (struct dev_run){ .mem = s->mem[c], .npages = GAIA_CHUNK_PAGES,
					    .host = s->host + c * CHUNK };
	run_op(s->dev, &op);
}

/* @arm: see dev_op. */
static void kind_row(struct scene *s, struct device *from, enum dev_kind kind, bool arm, unsigned pages,
		     bool scattered, double bare)
{
	static uint64_t changed[PAGES_MAX / 64];
	static struct dev_run runs[PAGES_MAX];
	struct dev_op op = { .kind = kind, .runs = runs, .changed = changed, .from = from, .arm = arm };
	struct samples us = { .n = 0 };

	if (kind == DEV_PULL)
		make_pull_differ(s);
	op.n = make_runs(s, kind, pages, scattered, runs);
	for (struct repeat r = repeat(15); again(&r);) {
		double t0;

		if (kind == DEV_PULL)
			prepare_pull(s, runs, op.n);
		memset(changed, 0, sizeof(changed));
		t0 = now_us();
		run_op(s->dev, &op);
		took(&r, &us, now_us() - t0);
	}
	row_begin("%s%s", kind_name(kind), arm ? ", armed" : "");
	row_number("pages", pages);
	row_number("runs", op.n);
	row_text("layout", scattered ? "every other page" : "a run a chunk");
	row_number("bytes", bytes_of(kind, pages));
	row_samples("us", &us);
	if (bare > 0)
		row_number("bare_us", bare);
	put_rate(bytes_of(kind, pages), median(&us), ceiling_of(kind));
	put_memory_share(kind, pages, median(&us));
	row_end();
}

/* What another GPU has, to the first. Its chunks take the place of the scene's sources. */
static void measure_peer(struct scene *s, unsigned pages_max)
{
	struct devmem *own[BENCH_CHUNKS];
	struct device *second;
	struct scene theirs;

	if (!on_sim && gpu_count() < 2) {
		row_not_run(kind_name(DEV_COPY_PEER), "there is one GPU");
		return;
	}
	second = device_of(1, 2 * s->n * CHUNK);
	if (device_reaches(s->dev, second)) {
		scene_begin(&theirs, second, s->n);
		memcpy(own, s->other, sizeof(own));
		memcpy(s->other, theirs.mem, sizeof(own));
		for (unsigned pages = 1; pages <= pages_max; pages *= pages == 512 ? 32 : 8)
			for (unsigned scattered = 0; scattered < (pages > 1 ? 2 : 1); scattered++)
				for (unsigned arm = 0; arm < 2; arm++)
					kind_row(s, second, DEV_COPY_PEER, arm, pages, scattered, 0);
		memcpy(s->other, own, sizeof(own));
		scene_end(&theirs);
	} else {
		row_not_run(kind_name(DEV_COPY_PEER), "the devices do not reach each other");
	}
	second->ops->destroy(second);
}

static void section_kinds(void)
{
	static const enum dev_kind kinds[] = { DEV_COPY_IN, DEV_COPY_OUT, DEV_FIND_CHANGED, DEV_PULL,
					       DEV_COPY_WITHIN, DEV_ARM, DEV_ZERO };
	unsigned pages_max = quick ? 512 : PAGES_MAX, chunks = quick ? 2 : BENCH_CHUNKS;
	struct device *dev;
	struct scene s;

	bench_start();
	dev = bench_device((2 * chunks + 16) * CHUNK);
	scene_begin(&s, dev, chunks);
	for (unsigned k = 0; k < ARRAY_LEN(kinds); k++)
		for (unsigned pages = 1; pages <= pages_max; pages *= pages == 512 ? 32 : 8) {
			double bare = bare_us(kinds[k], pages);

			for (unsigned scattered = 0; scattered < (pages > 1 ? 2 : 1); scattered++)
				for (unsigned arm = 0; arm < (kinds[k] == DEV_COPY_IN ? 2 : 1); arm++)
					kind_row(&s, NULL, kinds[k], arm, pages, scattered, bare);
		}
	measure_peer(&s, pages_max);
	scene_end(&s);
	dev->ops->destroy(dev);
}

/* ---- latency ---- */

struct timed {
	struct dev_op op;
	sem_t completed;
	double at;
	int err;
};

static void note_time(struct dev_op *op, int err)
{
	struct timed *t = op->arg;

	t->at = now_us();
	t->err = err;
	sem_post(&t->completed);
}

static void latency_row(struct scene *s, enum dev_kind kind)
{
	struct samples submit = { .n = 0 }, done = { .n = 0 }, total = { .n = 0 };
	uint64_t changed = 0;
	struct dev_run run;
	struct timed t = { .op = { .kind = kind, .runs = &run, .n = 1, .changed = &changed,
				   .done = note_time } };

	make_runs(s, kind, 1, false, &run);
	sem_init(&t.completed, 0, 0);
	t.op.arg = &t;
	for (struct repeat r = repeat(200); again(&r);) {
		double t0 = now_us(), t1;
		int err = device_submit(s->dev, &t.op);

		t1 = now_us();
		if (err)
			die("the device refuses to %s: %s", kind_name(kind), strerror(-err));
		while (sem_wait(&t.completed) && errno == EINTR)
			;
		took(&r, &total, now_us() - t0);
		took(&r, &submit, t1 - t0);
		took(&r, &done, t.at - t0);
		if (t.err)
			die("the device does not %s: %s", kind_name(kind), strerror(-t.err));
	}
	sem_destroy(&t.completed);
	row_begin("%s of a page, waited for", kind_name(kind));
	row_samples("us", &total);
	row_samples("submit_us", &submit);
	/* From submit() to done(), on the device's thread; the rest is waking the caller. */
	row_samples("until_done_us", &done);
	row_end();
}

/* 16 operations in flight: what each adds. */
static void queue_row(struct scene *s, enum dev_kind kind)
{
	struct samples us = { .n = 0 };
	uint64_t changed[16] = { 0 };
	struct dev_run run[16];
	struct timed t[16];

	for (struct repeat r = repeat(100); again(&r);) {
		double t0 = now_us();

		for (unsigned i = 0; i < 16; i++) {
			make_runs(s, kind, 1, false, &run[i]);
			run[i].page = i;
			t[i] = (struct timed){ .op = { .kind = kind, .runs = &run[i], .n = 1,
						       .changed = &changed[i], .done = note_time } };
			t[i].op.arg = &t[i];
			sem_init(&t[i].completed, 0, 0);
			if (device_submit(s->dev, &t[i].op))
				die("the device refuses to %s", kind_name(kind));
		}
		for (unsigned i = 0; i < 16; i++) {
			while (sem_wait(&t[i].completed) && errno == EINTR)
				;
			if (t[i].err)
				die("the device does not %s: %s", kind_name(kind), strerror(-t[i].err));
		}
		took(&r, &us, (now_us() - t0) / 16);
	}
	row_begin("%s of a page, 16 operations submitted at once, each", kind_name(kind));
	row_samples("us", &us);
	row_end();
}

enum { WAIT_BLOCKING, WAIT_EVENT, WAIT_QUERY, WAITS };

static void wait_so(unsigned how, CUevent e, CUstream s)
{
	CUresult r;

	CU(EventRecord(e, s));
	if (how != WAIT_QUERY) {
		CU(EventSynchronize(e));
		return;
	}
	while ((r = cu.EventQuery(e)) == CUDA_ERROR_NOT_READY)
		;
	check_cu(r, "cuEventQuery");
}

/* The least that an operation of ours can take, for each way to wait for its end. */
static void bare_rows(void)
{
	static const char *const how[] = { "waiting by a blocking event", "waiting by a spinning event",
					   "asking for an event in a loop" };
	CUdeviceptr dev, sink;
	CUstream s;
	void *host;

	if (on_sim) {
		row_not_run("bare: a kernel, and its end", "the simulated device has no driver");
		return;
	}
	s = new_stream();
	dev = new_memory(4096);
	sink = new_memory(64);
	host = new_pinned(4096);
	for (unsigned w = 0; w < WAITS; w++) {
		CUevent e = new_event(w == WAIT_BLOCKING ? CU_EVENT_BLOCKING_SYNC : 0);
		struct samples alone = { .n = 0 }, with_list = { .n = 0 };

		for (struct repeat r = repeat(200); again(&r);) {
			double t0 = now_us(), t1;

			KERNEL(kernel_read(dev, 4096, sink, s));
			wait_so(w, e, s);
			t1 = now_us();
			took(&r, &alone, t1 - t0);
			/* As the daemon's device does: the list of runs goes first. */
			CU(MemcpyHtoDAsync(dev, host, 64, s));
			KERNEL(kernel_read(dev, 4096, sink, s));
			wait_so(w, e, s);
			took(&r, &with_list, now_us() - t1);
		}
		row_begin("bare: a kernel, %s", how[w]);
		row_samples("us", &alone);
		row_end();
		row_begin("bare: a small copy and a kernel, %s", how[w]);
		row_samples("us", &with_list);
		row_end();
		CU(EventDestroy(e));
	}
}

static void section_latency(void)
{
	static const enum dev_kind kinds[] = { DEV_COPY_IN, DEV_COPY_OUT, DEV_FIND_CHANGED, DEV_ARM,
					       DEV_COPY_WITHIN, DEV_PULL, DEV_ZERO };
	struct device *dev;
	struct scene s;

	bench_start();
	dev = bench_device(16 * CHUNK);
	scene_begin(&s, dev, 2);
	for (unsigned k = 0; k < ARRAY_LEN(kinds); k++)
		latency_row(&s, kinds[k]);
	for (unsigned k = 0; k < 3; k++)
		queue_row(&s, kinds[k]);
	bare_rows();
	scene_end(&s);
	dev->ops->destroy(dev);
}

static const struct section sections[] = {
	{ "kinds", 30, 40, section_kinds },
	{ "latency", 8, 15, section_latency },
	{ "detect", 35, 40, section_detect },
	{ "pieces", 20, 30, section_pieces },
	{ "memory", 8, 12, section_memory },
	{ "slabs", 6, 10, section_slabs },
	{ "both_ways", 6, 10, section_both_ways },
	{ NULL, 0, 0, NULL },
};

int main(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i++) {
		if (strcmp(argv[i], "--device") != 0)
			continue;
		on_sim = !strcmp(argv[i + 1], "sim");
		if (!on_sim && strcmp(argv[i + 1], "cuda") != 0)
			die("--device is sim or cuda");
		argc -= 2;
		memmove(argv + i, argv + i + 2, (size_t)(argc + 1 - i) * sizeof(*argv));
		break;
	}
	return sections_main("gpu-bench", sections, argc, argv);
}
