/*
 * counts.c - the page cache by itself, over devices and files that are nothing: what an acquire and a release cost in
 * instructions, and how much memory is kept of a page that a device has.
 *
 *	counts MIB DEVICES [PAGES]
 *
 * A file of holes, MIB MiB long, is acquired whole and released by each device. Then, as nothing has changed, the first device
 * acquires and releases it, for reading and for writing. Under valgrind --tool=callgrind --instr-atstart=no each of
 * these is a dump, whose description says which; by itself it prints how long they took, so that somebody
 * notices when it does not work any more. It prints how many bytes of the heap are in use for each page and device:
 *
 *	acquire read NS
 *	release read NS
 *	acquire write NS
 *	release write NS
 *	bytes BYTES
 *
 * Home is small, and evicts: so its frames (which are not in the heap) are few, however long the file is. A device's memory is
 * but a number; what is copied and compared there is somebody else's to measure.
 *
 * With PAGES, CPU programs then write so many pages, equally far apart, and the first device acquires all of the file once more, to read, and
 * releases it: "acquire changed", "release changed". So that it does so in the windows of a usual home, home is large then.
 *
 *	counts MIB alone|both
 *
 * The same by one device, of a file no two pages of which are equal, and that fits home with room to spare; before that CPU programs read
 * all of it, 4 KiB at a time: "read cold", "read hot", and write every eighth page: "write hot". With `both` equal pages are looked for
 * (dedup.h), and the device has room for pages that leave home (victim.h), though none does: neither can help.
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HAVE_CALLGRIND
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_STOP_INSTRUMENTATION
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(what) (void)(what)
#endif

#include "base/util.h"
#include "pagecache/cache.h"

#define HOME (64ull << 20)
#define LARGE_HOME (2ull << 30)
/* The fewest of several is taken: now and then the cache's own threads wake up. What takes long hardly shows it. */
#define REPEAT 3
#define REPEAT_UP_TO (64ull << 20)

/* What a struct devmem takes of the heap: its own size and the heap's word, in steps of two words. */
#define DEVMEM_HEAP ROUND_UP(sizeof(struct devmem) + sizeof(size_t), 2 * sizeof(size_t))

static void must(int err, const char *what)
{
	if (err)
		errx(1, "%s: %s", what, strerror(-err));
}

/* ---- a device that has no memory, and is always done: one thread ends operations in their order ---- */

struct nothing {
	struct device base;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t submitted;
	struct dev_op *head, **tail;
	bool stop;
};

static struct nothing *to_nothing(struct device *dev)
{
	return container_of(dev, struct nothing, base);
}

static int nothing_alloc(struct device *dev, struct devmem **out)
{
	*out = xcalloc(1, sizeof(**out));
	(*out)->dev = dev;
	(*out)->generation = device_new_generation();
	return 0;
}

static void nothing_free(struct device *dev, struct devmem *mem)
{
	(void)dev;
	free(mem);
}

static int nothing_export_fd(struct device *dev, struct devmem *mem, bool write)
{
	(void)dev, (void)mem, (void)write;
	return open("/dev/null", O_RDWR | O_CLOEXEC);
}

static int nothing_submit(struct device *dev, struct dev_op *op)
{
	struct nothing *d = to_nothing(dev);

	if (device_op_fault(op))
		return -EINVAL;
	op->next = NULL;
	pthread_mutex_lock(&d->lock);
	*d->tail = op;
	d->tail = &op->next;
	pthread_cond_signal(&d->submitted);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

static void *nothing_main(void *arg)
{
	struct nothing *d = arg;
	struct dev_op *op;

	pthread_mutex_lock(&d->lock);
	for (;;) {
		while (!d->head && !d->stop)
			pthread_cond_wait(&d->submitted, &d->lock);
		op = d->head;
		if (!op)
			break;
		d->head = op->next;
		if (!d->head)
			d->tail = &d->head;
		pthread_mutex_unlock(&d->lock);
		op->done(op, 0);
		pthread_mutex_lock(&d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

static void nothing_destroy(struct device *dev)
{
	struct nothing *d = to_nothing(dev);

	pthread_mutex_lock(&d->lock);
	d->stop = true;
	pthread_cond_signal(&d->submitted);
	pthread_mutex_unlock(&d->lock);
	pthread_join(d->thread, NULL);
	free(d);
}

static const struct device_ops nothing_ops = {
	.name = "nothing",
	.alloc = nothing_alloc,
	.free = nothing_free,
	.export_fd = nothing_export_fd,
	.submit = nothing_submit,
	.destroy = nothing_destroy,
};

static struct device *nothing_create(unsigned index, uint64_t capacity)
{
	struct nothing *d = xcalloc(1, sizeof(*d));

	d->base.ops = &nothing_ops;
	d->base.core = &d->base;
	snprintf(d->base.name, sizeof(d->base.name), "nothing%u", index);
	snprintf(d->base.kind, sizeof(d->base.kind), "nothing");
	d->base.simulated = true;
	d->base.shares_readonly = true;
	d->base.capacity = capacity;
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->submitted, NULL);
	d->tail = &d->head;
	must(-pthread_create(&d->thread, NULL, nothing_main, d), "a thread");
	return &d->base;
}

/* ---- clients that map nothing ---- */

static void no_invalidate(void *arg, void *cookie, off_t off, off_t len)
{
	(void)arg, (void)cookie, (void)off, (void)len;
}

static int grant(void *client, uint64_t map, unsigned prot, const uint64_t *idx, const int *fd, const unsigned *chunks,
		 unsigned n, uint64_t *seq, struct handover **answer)
{
	(void)client, (void)map, (void)prot, (void)idx, (void)chunks;
	for (unsigned i = 0; i < n; i++)
		close(fd[i]);
	*seq = 1;
	*answer = NULL;
	return 0;
}

static int take_back(void *client, uint64_t map, uint64_t idx)
{
	(void)client, (void)map, (void)idx;
	return 0;
}

static void take_back_many(struct cache_revoke *list, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		list[i].err = 0;
}

static struct revoking *take_back_soon(struct cache_revoke *list, unsigned n, uint64_t end)
{
	(void)end;
	take_back_many(list, n);
	return NULL;
}

static bool alive(void *client)
{
	(void)client;
	return true;
}

static const struct cache_host host = {
	.invalidate = no_invalidate,
	.grant = grant,
	.revoke = take_back,
	.revoke_many = take_back_many,
	.revoke_soon = take_back_soon,
	.alive = alive,
};

/* ---- a file of holes ---- */

static struct store *store;
static uint64_t length;

static void make_file(void)
{
	struct store_file *f;

	must(store_mem_create(&store), "a store");
	must(store_open(store, 1, true, &f), "a file");
	must(f->ops->truncate(f, (off_t)length), "its length");
	f->ops->close(f);
}

/* Instead of holes. */
static void make_pages_differ(void)
{
	uint64_t page[GAIA_PAGE / sizeof(uint64_t)] = { 0 };
	struct iovec iov = { page, sizeof(page) };
	struct store_file *f;

	must(store_open(store, 1, true, &f), "a file");
	for (uint64_t k = 0; k < length / GAIA_PAGE; k++) {
		page[0] = k + 1;
		must(f->ops->write(f, &iov, 1, (off_t)(k * GAIA_PAGE)), "a page");
	}
	f->ops->close(f);
}

static int source_open(void *cookie, bool write, struct store_file **out)
{
	(void)cookie;
	return store_open(store, 1, write, out);
}

static int source_size(void *cookie, uint64_t *bytes)
{
	(void)cookie;
	*bytes = length;
	return 0;
}

static void source_release(void *cookie)
{
	(void)cookie;
}

static const struct cfile_source source = { .open = source_open, .size = source_size, .release = source_release };

/* ---- what is measured ---- */

static void acquire(struct mapping *m, unsigned prot)
{
	uint64_t seq;

	must(cache_acquire(m, 0, length, prot, &seq, NULL), "acquire");
}

static void release(struct mapping *m)
{
	must(cache_release(m, 0, length, NULL), "release");
}

static void measure(struct mapping *m, unsigned prot, const char *acquire_name, const char *release_name)
{
	uint64_t start, between;

	CALLGRIND_START_INSTRUMENTATION;
	CALLGRIND_ZERO_STATS;
	start = now_ns();
	acquire(m, prot);
	between = now_ns();
	CALLGRIND_DUMP_STATS_AT(acquire_name);
	release(m);
	CALLGRIND_DUMP_STATS_AT(release_name);
	CALLGRIND_STOP_INSTRUMENTATION;
	printf("%s %" PRIu64 "\n%s %" PRIu64 "\n", acquire_name, between - start, release_name, now_ns() - between);
}

static void write_pages(struct cfile *file, uint64_t n)
{
	static char page[GAIA_PAGE] = "changed";

	for (uint64_t k = 0; k < n; k++)
		must(cache_write(file, page, sizeof(page), (off_t)(k * (length / GAIA_PAGE / n) * GAIA_PAGE), CACHE_WRITE_EXACT), "write");
}

static void read_pages(struct cfile *file)
{
	static char page[GAIA_PAGE];

	for (uint64_t at = 0; at < length; at += GAIA_PAGE)
		if (cache_read(file, page, sizeof(page), (off_t)at) != sizeof(page))
			errx(1, "a page cannot be read");
}

static void measure_cpu(struct cfile *file, void (*work)(struct cfile *file), const char *name)
{
	uint64_t start;

	CALLGRIND_START_INSTRUMENTATION;
	CALLGRIND_ZERO_STATS;
	start = now_ns();
	work(file);
	CALLGRIND_DUMP_STATS_AT(name);
	CALLGRIND_STOP_INSTRUMENTATION;
	printf("%s %" PRIu64 "\n", name, now_ns() - start);
}

static void write_eighth(struct cfile *file)
{
	write_pages(file, length / GAIA_PAGE / 8);
}

static size_t heap(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

int main(int argc, char **argv)
{
	struct device *dev[CACHE_MAX_DEVICES];
	struct mapping *m[CACHE_MAX_DEVICES];
	struct cache_user user = { .owner = true };
	struct cache_config config = { .home_bytes = HOME, .devices = dev, .writeback_age_ms = 3600000, .host = &host };
	static const uint64_t room[1] = { CACHE_DEVICE_AUTO };
	struct cache *cache;
	struct cfile *file;
	bool alone, both;
	unsigned n;
	uint64_t changed;
	size_t before, used;

	length = argc >= 3 ? strtoull(argv[1], NULL, 10) << 20 : 0;
	alone = argc == 3 && !strcmp(argv[2], "alone");
	both = argc == 3 && !strcmp(argv[2], "both");
	n = alone || both ? 1 : argc >= 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
	changed = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
	if (argc > 4 || !length || length > 1ull << 40 || !n || n > CACHE_MAX_DEVICES || changed > length / GAIA_PAGE)
		errx(2, "usage: counts MIB DEVICES [PAGES] (up to 1048576, %u, and all of them), or counts MIB alone|both", CACHE_MAX_DEVICES);
	if (changed || alone || both)
		config.home_bytes = LARGE_HOME;
	if (both) {
		config.dedup = CACHE_DEDUP_HOME;
		config.device_cache = room;
	}

	for (unsigned i = 0; i < n; i++)
		dev[i] = nothing_create(i, ROUND_UP(length, GAIA_CHUNK));
	config.n_devices = n;
	make_file();
	must(cache_create(&config, &cache), "a cache");
	must(cfile_get(cache, 1, &source, NULL, &file), "a file");
	if (alone || both) {
		make_pages_differ();
		measure_cpu(file, read_pages, "read cold");
		for (int i = 0; i < REPEAT; i++)
			measure_cpu(file, read_pages, "read hot");
		measure_cpu(file, write_eighth, "write hot");
	}
	before = heap();
	for (unsigned i = 0; i < n; i++) {
		must(cache_map(file, i, &m[i], user, 1, GAIA_PROT_READ | GAIA_PROT_WRITE, true, 0, length, &m[i]), "map");
		acquire(m[i], GAIA_PROT_READ);
		release(m[i]);
	}
	/* The first acquire for writing has the pages remembered: that is a change. */
	acquire(m[0], GAIA_PROT_READ | GAIA_PROT_WRITE);
	release(m[0]);
	used = heap() - before;
	for (int i = 0; i < (length <= REPEAT_UP_TO ? REPEAT : 1); i++) {
		measure(m[0], GAIA_PROT_READ, "acquire read", "release read");
		measure(m[0], GAIA_PROT_READ | GAIA_PROT_WRITE, "acquire write", "release write");
	}
	if (changed) {
		write_pages(file, changed);
		measure(m[0], GAIA_PROT_READ, "acquire changed", "release changed");
	}
	/* Less the device's own. */
	used -= n * ROUND_UP(length, GAIA_CHUNK) / GAIA_CHUNK * DEVMEM_HEAP;
	/* (With sanitizers, whose heap is another, it means nothing.) */
	printf("bytes %.2f\n", (double)used / (double)(length / GAIA_PAGE) / n);

	for (unsigned i = 0; i < n; i++)
		cache_unmap(m[i], CACHE_UNMAPPED);
	cfile_put(file);
	cache_forget(cache, 1);
	cache_destroy(cache);
	store->ops->destroy(store);
	return 0;
}
