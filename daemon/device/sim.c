/*
 * sim.c - the simulated device, for machines without a GPU; and the host as a device, which is the same without the simulation.
 *
 * A chunk is a memfd of its own, mapped here and by clients, whose "kernels" are
 * plain code on the CPU. One thread carries out the operations, one after the
 * other, in order of submission.
 *
 * How long an operation takes is decided by a model of a GPU with one queue for submissions, an engine for copies each way, and one
 * for work on its own memory. To submit an operation takes submit_ns, one after the other. It begins when its engine is free and
 * older operations have finished with the chunks that it names, is under way for bytes / bandwidth, and completes latency_ns after
 * that, but not before older ones. So the two directions overlap, and so do the latencies of operations that are submitted
 * together. A merge (DEV_PULL) takes two engines, since it reads over the bus; so does a copy that arms. (That two operations use
 * the same host memory delays neither.)
 *
 * The model has two clocks. By the wall clock, the thread sleeps until an operation is due, then carries it out. That takes time of
 * its own, which does not show as long as it is shorter than the model's: bandwidth should be at most a third of what the processor
 * copies. The other clock is the model's own, and is only counted (sim_ns). It stands still while nothing is outstanding; and by
 * this clock an operation is submitted when the last one was seen to complete, as if everything but the device took no time. On
 * both clocks a caller that waits for each operation before it submits the next pays every latency.
 *
 * It is stricter than a GPU, never kinder. The destination of a copy, which will be overwritten as a whole, holds garbage until the
 * operation is due. The garbage is there when submit() returns, unless older operations are outstanding, which may need the old
 * contents: then from when the last of them has completed (on a device that takes no time, not at all). New memory holds garbage,
 * too, and freed memory goes back to the system, never to another chunk. What is freed of an extent counts as used until all of that
 * is, as a GPU unmaps it as a whole. Operations on memory that is not, or no longer, the device's are refused.
 *
 * The host (device_host_create()) is a device for programs on the CPU. Its operations are carried out in the same way, at once; nothing is
 * garbage, and new memory is zeros.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/counters.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"
#include "device/device.h"
#include "device/memfd.h"
#include "device/word.h"

#define uthash_fatal(msg) bug("uthash: %s", msg)
#include <uthash.h>

#define NEW_GARBAGE 0xa5
#define COPY_GARBAGE 0x5b

enum clock { WALL, MODEL, CLOCKS };
enum engine { IN, OUT, LOCAL, ENGINES };

/* By one clock: when the queue and each engine are free again. */
struct timeline {
	uint64_t queue, engine[ENGINES];
	uint64_t last; /* when the last operation was due */
};

/* What DEV_ARM remembers of a chunk. */
struct armed {
	XXH128_hash_t hash[GAIA_CHUNK_PAGES];
	bool valid[GAIA_CHUNK_PAGES];
};

struct sim_mem {
	struct devmem base;

	/* Constant from alloc() to free(). */
	struct devmem *key; /* &base */
	struct memfd memory;

	/* The device's thread. */
	struct armed *armed;	  /* NULL: no page ever was */
	uint64_t busy_until[CLOCKS]; /* by each clock: until when an operation uses the chunk */

	/* sim->lock. */
	unsigned in_flight; /* mentions in the runs of outstanding operations */
	unsigned *n_live;   /* of an extent: its chunks that are not freed; NULL: of none */
	UT_hash_handle live_link;
};

struct sim {
	struct device base;

	/* Constant after creation. */
	uint64_t bandwidth, local;
	uint64_t latency_ns, submit_ns;
	bool waits; /* operations take time: one of these is not 0, and it is not only counted */
	bool no_peers;
	bool is_host; /* it simulates nothing */
	unsigned char *new_chunk; /* GAIA_CHUNK bytes of NEW_GARBAGE; NULL: new memory is zeros */
	pthread_t thread;

	atomic_flag told_of_descriptors; /* logged once: there were no descriptors */

	pthread_mutex_t lock;
	/* lock. */
	pthread_cond_t submitted;
	struct dev_op *head, **tail; /* not yet begun, oldest first */
	unsigned outstanding;	     /* submitted, and done() not yet called */
	bool stop;
	uint64_t used;		     /* bytes of the live chunks, of those whose extents have live ones, and of those being made */
	struct sim_mem *live;	     /* by address */
	uint64_t model_now;	     /* when by the model's clock the last operation completed */
	uint64_t busy_since;	     /* by the wall's, while something is outstanding */

	/* The device's thread. */
	struct timeline line[CLOCKS];
};

static struct sim *to_sim(struct device *dev)
{
	return container_of(dev, struct sim, base);
}

static struct sim_mem *to_mem(struct devmem *mem)
{
	return container_of(mem, struct sim_mem, base);
}

/* ---- memory ---- */

/* NULL: @mem is no memory of this device. @mem is not dereferenced. sim->lock is held. */
static struct sim_mem *find_live(struct sim *sim, struct devmem *mem)
{
	struct sim_mem *m;

	HASH_FIND(live_link, sim->live, &mem, sizeof(mem), m);
	return m;
}

/* Of these chunks, one or an extent: garbage, or, on the host, zeros. */
static int create_memory(struct sim *sim, struct sim_mem **m, unsigned n)
{
	const char *name = sim->is_host ? "gaiafs-host" : "gaiafs-sim";
	struct memfd *memory[GAIA_EXTENT_CHUNKS];
	int err;

	for (unsigned k = 0; k < n; k++)
		memory[k] = &m[k]->memory;
	err = n == 1 ? memfd_make(name, sim->new_chunk, memory[0]) : memfd_make_extent(name, sim->new_chunk, memory);
	if (err == -EMFILE || err == -ENFILE) {
		if (!atomic_flag_test_and_set(&sim->told_of_descriptors))
			log_warn("device %s: out of descriptors (a chunk needs one): raise the limit of open files",
				 sim->base.name);
		return -ENOMEM;
	}
	return err;
}

/* @n chunks: one, or those of an extent. */
static int alloc_chunks(struct device *dev, struct devmem **out, unsigned n)
{
	struct sim *sim = to_sim(dev);
	struct sim_mem *m[GAIA_EXTENT_CHUNKS];
	uint64_t bytes = n * (uint64_t)GAIA_CHUNK;
	unsigned *n_live = NULL;
	bool fits;
	int err;

	pthread_mutex_lock(&sim->lock);
	fits = sim->used + bytes <= dev->capacity;
	if (fits)
		sim->used += bytes;
	pthread_mutex_unlock(&sim->lock);
	if (!fits)
		return -ENOMEM;

	for (unsigned k = 0; k < n; k++)
		m[k] = xcalloc(1, sizeof(*m[k]));
	err = create_memory(sim, m, n);
	if (!err && n > 1) {
		n_live = xcalloc(1, sizeof(*n_live));
		*n_live = n;
	}
	pthread_mutex_lock(&sim->lock);
	if (err)
		sim->used -= bytes;
	for (unsigned k = 0; k < n && !err; k++) {
		m[k]->base.dev = dev;
		m[k]->base.generation = device_new_generation();
		m[k]->base.joined = n > 1;
		m[k]->n_live = n_live;
		m[k]->key = &m[k]->base;
		HASH_ADD(live_link, sim->live, key, sizeof(m[k]->key), m[k]);
		out[k] = &m[k]->base;
	}
	pthread_mutex_unlock(&sim->lock);
	for (unsigned k = 0; k < n && err; k++)
		free(m[k]);
	return err;
}

static int sim_alloc(struct device *dev, struct devmem **out)
{
	return alloc_chunks(dev, out, 1);
}

static int sim_alloc_extent(struct device *dev, struct devmem *out[GAIA_EXTENT_CHUNKS])
{
	return alloc_chunks(dev, out, GAIA_EXTENT_CHUNKS);
}

/* @m is freed: bytes that can be used again. Those of an extent only when all of it is, as a GPU unmaps it as a whole. lock is held. */
static uint64_t bytes_back(const struct sim_mem *m)
{
	if (!m->n_live)
		return GAIA_CHUNK;
	if (--*m->n_live)
		return 0;
	free(m->n_live);
	return GAIA_EXTENT;
}

static void sim_free(struct device *dev, struct devmem *mem)
{
	struct sim *sim = to_sim(dev);
	struct sim_mem *m;

	pthread_mutex_lock(&sim->lock);
	m = find_live(sim, mem);
	if (!m)
		bug("device %s: free of memory that it does not have: %p", dev->name, (void *)mem);
	if (m->in_flight)
		bug("device %s: free of chunk %" PRIu64 " with operations in flight", dev->name,
		    mem->generation);
	HASH_DELETE(live_link, sim->live, m);
	sim->used -= bytes_back(m);
	pthread_mutex_unlock(&sim->lock);

	memfd_end(&m->memory);
	free(m->armed);
	free(m);
}

static int sim_export_fd(struct device *dev, struct devmem *mem, bool write)
{
	struct sim *sim = to_sim(dev);
	struct sim_mem *m;

	pthread_mutex_lock(&sim->lock);
	m = find_live(sim, mem);
	pthread_mutex_unlock(&sim->lock);
	if (!m)
		return -EINVAL;

	if (!write && !dev->shares_readonly)
		return -ENOTSUP;
	return memfd_open(&m->memory, write);
}

/* ---- other simulated devices ---- */

static bool sim_reaches(struct device *dev, const struct device *from)
{
	return from->core->ops == dev->ops && !to_sim(dev)->no_peers && !to_sim(from->core)->no_peers;
}

/* Pin the sources until drop_sources(). Returns what is wrong with them; NULL: nothing, and they are pinned. */
static const char *hold_sources(struct sim *sim, const struct dev_op *op)
{
	struct sim *from;
	bool live = true;
	unsigned i;

	if (!device_reaches(&sim->base, op->from))
		return "a source that it does not reach";
	from = to_sim(op->from->core);
	pthread_mutex_lock(&from->lock);
	for (i = 0; i < op->n && live; i++)
		live = find_live(from, op->runs[i].other);
	for (i = 0; i < op->n && live; i++)
		to_mem(op->runs[i].other)->in_flight++;
	pthread_mutex_unlock(&from->lock);
	return live ? NULL : "a source that is not the other device's";
}

static void drop_sources(const struct dev_op *op)
{
	struct sim *from = to_sim(op->from->core);
	unsigned i;

	pthread_mutex_lock(&from->lock);
	for (i = 0; i < op->n; i++)
		to_mem(op->runs[i].other)->in_flight--;
	pthread_mutex_unlock(&from->lock);
}

/* ---- operations: the submitter's side ---- */

/* sim->lock. */
static const char *memory_fault(struct sim *sim, const struct dev_op *op)
{
	struct devmem *last = NULL;
	unsigned i;

	for (i = 0; i < op->n; i++) {
		if (op->runs[i].mem != last && !find_live(sim, op->runs[i].mem))
			return "memory that is not the device's";
		last = op->runs[i].mem;
	}
	if (op->kind != DEV_COPY_WITHIN)
		return NULL;
	for (i = 0; i < op->n; i++) {
		if (op->runs[i].other != last && !find_live(sim, op->runs[i].other))
			return "a source that is not the device's";
		last = op->runs[i].other;
	}
	return NULL;
}

/* sim->lock. Memory in flight cannot be freed. */
static void mark_in_flight(const struct dev_op *op, int by)
{
	unsigned i;

	for (i = 0; i < op->n; i++) {
		to_mem(op->runs[i].mem)->in_flight += by;
		if (op->kind == DEV_COPY_WITHIN)
			to_mem(op->runs[i].other)->in_flight += by;
	}
}

static void *page_at(struct devmem *mem, uint32_t page)
{
	return to_mem(mem)->memory.at + (size_t)page * GAIA_PAGE;
}

/*
 * Fill the destination of a copy with garbage, so that code that uses it before the copy has completed is found out. Not
 * for DEV_PULL and DEV_ZERO: by the contract clients may be using their destination meanwhile.
 */
static void spoil_destination(struct dev_op *op)
{
	const struct dev_run *run;

	for (run = op->runs; run < op->runs + op->n; run++) {
		size_t bytes = (size_t)run->npages * GAIA_PAGE;

		if (op->kind == DEV_COPY_OUT)
			memset(run->host, COPY_GARBAGE, bytes);
		else if (op->kind == DEV_COPY_IN || op->kind == DEV_COPY_WITHIN ||
			 op->kind == DEV_COPY_PEER)
			memset(page_at(run->mem, run->page), COPY_GARBAGE, bytes);
	}
	op->spoiled = true;
}

static int sim_submit(struct device *dev, struct dev_op *op)
{
	struct sim *sim = to_sim(dev);
	const char *fault;
	bool idle, held = false;

	fault = device_op_fault(op);
	if (!fault && op->kind == DEV_COPY_PEER) {
		fault = hold_sources(sim, op);
		held = !fault;
	}
	pthread_mutex_lock(&sim->lock);
	if (!fault)
		fault = memory_fault(sim, op);
	if (fault) {
		pthread_mutex_unlock(&sim->lock);
		if (held)
			drop_sources(op);
		log_error("device %s: refused to %s: %s", dev->name, device_kind_name(op->kind), fault);
		return -EINVAL;
	}
	mark_in_flight(op, 1);
	idle = sim->outstanding++ == 0;
	pthread_mutex_unlock(&sim->lock);

	/* Without the lock: the memory is pinned, and nobody else may use it. */
	op->spoiled = false;
	if (idle && !sim->is_host)
		spoil_destination(op);
	op->next = NULL;
	op->start_ns = now_ns();

	pthread_mutex_lock(&sim->lock);
	if (idle)
		sim->busy_since = op->start_ns;
	op->start_model_ns = sim->model_now;
	if (!sim->head)
		pthread_cond_signal(&sim->submitted);
	*sim->tail = op;
	sim->tail = &op->next;
	pthread_mutex_unlock(&sim->lock);
	return 0;
}

/* ---- operations: the device's thread ---- */

static struct armed *get_armed(struct sim_mem *m)
{
	if (!m->armed)
		m->armed = xcalloc(1, sizeof(*m->armed));
	return m->armed;
}

static void forget_armed(struct sim_mem *m, uint32_t page, uint32_t npages)
{
	if (m->armed)
		memset(&m->armed->valid[page], 0, npages * sizeof(m->armed->valid[0]));
}

static void copy_armed(struct sim_mem *to, const struct sim_mem *from, uint32_t page,
		       uint32_t npages)
{
	struct armed *a;

	if (!from->armed) {
		forget_armed(to, page, npages);
		return;
	}
	a = get_armed(to);
	memcpy(&a->hash[page], &from->armed->hash[page], npages * sizeof(a->hash[0]));
	memcpy(&a->valid[page], &from->armed->valid[page], npages * sizeof(a->valid[0]));
}

/* Arm the page. Returns whether its hash has changed, or it was not armed. */
static bool arm_page(struct sim_mem *m, uint32_t page, const void *contents)
{
	struct armed *a = get_armed(m);
	XXH128_hash_t hash = XXH3_128bits(contents, GAIA_PAGE);
	bool changed = !a->valid[page] || !XXH128_isEqual(a->hash[page], hash);

	a->hash[page] = hash;
	a->valid[page] = true;
	return changed;
}

/* After a copy from outside. */
static void arm_or_forget(const struct dev_op *op, const struct dev_run *run)
{
	if (!op->arm)
		forget_armed(to_mem(run->mem), run->page, run->npages);
	for (uint32_t i = 0; op->arm && i < run->npages; i++)
		arm_page(to_mem(run->mem), run->page + i, page_at(run->mem, run->page + i));
}

/* @bit: number of the run's first page in the op. */
static void carry_out_run(const struct dev_op *op, const struct dev_run *run, size_t bit)
{
	struct sim_mem *m = to_mem(run->mem);
	char *data = page_at(run->mem, run->page), *host = run->host;
	const char *base = run->limit ? run->base : host;
	size_t bytes = (size_t)run->npages * GAIA_PAGE, at;
	uint32_t i, w;

	switch (op->kind) {
	case DEV_COPY_IN:
		memcpy(data, host, bytes);
		arm_or_forget(op, run);
		break;
	case DEV_COPY_OUT:
		memcpy(host, data, bytes);
		break;
	case DEV_COPY_WITHIN:
		memcpy(data, page_at(run->other, run->page), bytes);
		copy_armed(m, to_mem(run->other), run->page, run->npages);
		break;
	case DEV_COPY_PEER:
		memcpy(data, page_at(run->other, run->page), bytes);
		arm_or_forget(op, run);
		break;
	case DEV_PULL:
		for (i = 0; i < run->npages; i++) {
			at = (size_t)i * GAIA_PAGE;
			for (w = 0; w < GAIA_PAGE / sizeof(word_t); w++)
				word_pull((word_t *)(data + at), (const word_t *)(host + at),
					  (const word_t *)(base + at), run->limit, w);
			arm_page(m, run->page + i, host + at);
		}
		break;
	case DEV_ZERO:
		memset(data + run->limit, 0, bytes - run->limit);
		break;
	case DEV_ARM:
		for (i = 0; i < run->npages; i++)
			arm_page(m, run->page + i, data + (size_t)i * GAIA_PAGE);
		break;
	case DEV_FIND_CHANGED:
		for (i = 0; i < run->npages; i++, bit++)
			if (arm_page(m, run->page + i, data + (size_t)i * GAIA_PAGE))
				op->changed[bit / 64] |= 1ull << (bit % 64);
		break;
	}
}

static void carry_out(const struct dev_op *op)
{
	const struct dev_run *run;
	size_t bit = 0;

	for (run = op->runs; run < op->runs + op->n; run++) {
		carry_out_run(op, run, bit);
		bit += run->npages;
	}
}

static const unsigned engines_of[] = {
	[DEV_COPY_IN] = 1u << IN,	 [DEV_COPY_OUT] = 1u << OUT,
	[DEV_COPY_WITHIN] = 1u << LOCAL, [DEV_COPY_PEER] = 1u << IN,
	[DEV_PULL] = 1u << IN | 1u << LOCAL, [DEV_ZERO] = 1u << LOCAL,
	[DEV_ARM] = 1u << LOCAL,	 [DEV_FIND_CHANGED] = 1u << LOCAL,
};

static unsigned engines(const struct dev_op *op)
{
	return engines_of[op->kind] | (op->arm ? 1u << LOCAL : 0);
}

/* How long the operation is under way. */
static uint64_t duration(const struct sim *sim, const struct dev_op *op)
{
	bool by_bus = device_uses_host(op->kind) || op->kind == DEV_COPY_PEER;
	uint64_t rate = by_bus ? sim->bandwidth : sim->local, pages = 0, bytes;

	for (unsigned i = 0; i < op->n; i++)
		pages += op->runs[i].npages;
	bytes = device_uses_host(op->kind) ? device_host_bytes(op) : pages * GAIA_PAGE;
	if (op->kind == DEV_COPY_WITHIN)
		bytes *= 2; /* read, and written */
	return rate ? (uint64_t)((double)bytes / (double)rate * 1e9) : 0;
}

/* When the operation, submitted at @now and under way for @ns, is due by that @clock. */
static uint64_t due_by(struct sim *sim, enum clock clock, const struct dev_op *op, uint64_t now,
		       uint64_t ns)
{
	struct timeline *line = &sim->line[clock];
	bool within = op->kind == DEV_COPY_WITHIN;
	uint64_t end;

	line->queue = MAX(line->queue, now) + sim->submit_ns;
	end = line->queue;
	for (unsigned e = 0; e < ENGINES; e++)
		if (engines(op) & 1u << e)
			end = MAX(end, line->engine[e]);
	for (unsigned i = 0; i < op->n; i++) {
		end = MAX(end, to_mem(op->runs[i].mem)->busy_until[clock]);
		if (within)
			end = MAX(end, to_mem(op->runs[i].other)->busy_until[clock]);
	}
	end += ns;
	for (unsigned e = 0; e < ENGINES; e++)
		if (engines(op) & 1u << e)
			line->engine[e] = end;
	for (unsigned i = 0; i < op->n; i++) {
		to_mem(op->runs[i].mem)->busy_until[clock] = end;
		if (within)
			to_mem(op->runs[i].other)->busy_until[clock] = end;
	}
	line->last = MAX(line->last, end + sim->latency_ns);
	return line->last;
}

/* Sleep until the operation is due. Returns when it is due by the model's clock. */
static uint64_t simulate_bus(struct sim *sim, struct dev_op *op)
{
	uint64_t ns = duration(sim, op), due;
	struct timespec ts;

	if (engines(op) & 1u << IN)
		count(CTR_sim_in_ns, ns);
	if (engines(op) & 1u << OUT)
		count(CTR_sim_out_ns, ns);
	if (engines(op) & 1u << LOCAL)
		count(CTR_sim_local_ns, ns);
	if (sim->waits) {
		if (!op->spoiled)
			spoil_destination(op);
		due = due_by(sim, WALL, op, op->start_ns, ns);
		ts.tv_sec = (time_t)(due / 1000000000);
		ts.tv_nsec = (long)(due % 1000000000);
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
			;
	}
	return due_by(sim, MODEL, op, op->start_model_ns, ns);
}

static void *sim_main(void *arg)
{
	struct sim *sim = arg;
	struct dev_op *op;
	uint64_t due;

	thread_set_name(sim->base.name);
	/* Without this the thread may sleep too long by more than the device's latency. */
	(void)prctl(PR_SET_TIMERSLACK, 1ul);
	pthread_mutex_lock(&sim->lock);
	for (;;) {
		while (!sim->head && !sim->stop)
			pthread_cond_wait(&sim->submitted, &sim->lock);
		op = sim->head;
		if (!op)
			break;
		sim->head = op->next;
		if (!sim->head)
			sim->tail = &sim->head;
		pthread_mutex_unlock(&sim->lock);

		due = sim->is_host ? 0 : simulate_bus(sim, op);
		carry_out(op);

		pthread_mutex_lock(&sim->lock);
		mark_in_flight(op, -1);
		count(CTR_sim_ns, due - sim->model_now);
		sim->model_now = due;
		if (--sim->outstanding == 0 && !sim->is_host)
			count(CTR_sim_wall_ns, now_ns() - sim->busy_since);
		pthread_mutex_unlock(&sim->lock);
		if (op->kind == DEV_COPY_PEER)
			drop_sources(op);

		op->done(op, 0); /* op may be gone now */
		pthread_mutex_lock(&sim->lock);
	}
	pthread_mutex_unlock(&sim->lock);
	return NULL;
}

/* ---- life ---- */

static void sim_destroy(struct device *dev)
{
	struct sim *sim = to_sim(dev);

	pthread_mutex_lock(&sim->lock);
	if (sim->outstanding || sim->live)
		bug("device %s: destroyed with %u operations in flight and %" PRIu64
		    " bytes allocated",
		    dev->name, sim->outstanding, sim->used);
	sim->stop = true;
	pthread_cond_signal(&sim->submitted);
	pthread_mutex_unlock(&sim->lock);
	pthread_join(sim->thread, NULL);

	pthread_cond_destroy(&sim->submitted);
	pthread_mutex_destroy(&sim->lock);
	free(sim->new_chunk);
	free(sim);
}

static void *host_memory(struct device *dev, struct devmem *mem)
{
	return to_mem(mem)->memory.at;
}

static const struct device_ops host_ops = {
	.name = "host",
	.alloc = sim_alloc,
	.free = sim_free,
	.export_fd = sim_export_fd,
	.submit = sim_submit,
	.host_memory = host_memory,
	.destroy = sim_destroy,
};

static const struct device_ops sim_ops = {
	.name = "sim",
	.alloc = sim_alloc,
	.alloc_extent = sim_alloc_extent,
	.free = sim_free,
	.export_fd = sim_export_fd,
	.submit = sim_submit,
	.reaches = sim_reaches,
	.destroy = sim_destroy,
};

/* The same in each run of the daemon, and different for each index. */
static void make_uuid(unsigned char uuid[16], unsigned index)
{
	memcpy(uuid, "gaiafs-sim", 10);
	uuid[10] = uuid[11] = 0;
	uuid[12] = (unsigned char)(index >> 24);
	uuid[13] = (unsigned char)(index >> 16);
	uuid[14] = (unsigned char)(index >> 8);
	uuid[15] = (unsigned char)index;
}

/* Start the device's thread. Consumes @sim, on error, too. */
static int start(struct sim *sim, struct device **out)
{
	int err;

	pthread_mutex_init(&sim->lock, NULL);
	pthread_cond_init(&sim->submitted, NULL);
	sim->tail = &sim->head;
	atomic_flag_clear(&sim->told_of_descriptors);

	err = -pthread_create(&sim->thread, NULL, sim_main, sim);
	if (err) {
		log_error("device %s: cannot start its thread: %s", sim->base.name, strerror(-err));
		goto free_sim;
	}
	*out = &sim->base;
	return 0;

free_sim:
	pthread_cond_destroy(&sim->submitted);
	pthread_mutex_destroy(&sim->lock);
	free(sim->new_chunk);
	free(sim);
	return err;
}

int device_host_create(uint64_t capacity, struct device **out)
{
	struct sim *sim = xcalloc(1, sizeof(*sim));

	sim->base.ops = &host_ops;
	sim->base.core = &sim->base;
	snprintf(sim->base.name, sizeof(sim->base.name), "host");
	snprintf(sim->base.kind, sizeof(sim->base.kind), "host");
	sim->base.shares_readonly = true;
	sim->base.inherited = true;
	sim->base.capacity = ROUND_DOWN(capacity, GAIA_CHUNK);
	sim->is_host = true;
	sim->no_peers = true;
	return start(sim, out);
}

int device_sim_create(const struct sim_config *config, struct device **out)
{
	struct sim *sim;

	if (config->capacity < GAIA_CHUNK) {
		log_error("device sim%u: %" PRIu64 " bytes are too few: at least %u are needed",
			  config->index, config->capacity, GAIA_CHUNK);
		return -EINVAL;
	}
	sim = xcalloc(1, sizeof(*sim));
	sim->base.ops = &sim_ops;
	sim->base.core = &sim->base;
	snprintf(sim->base.name, sizeof(sim->base.name), "sim%u", config->index);
	snprintf(sim->base.kind, sizeof(sim->base.kind), "sim");
	sim->base.simulated = true;
	sim->base.shares_readonly = !config->no_readonly;
	sim->base.strict = !config->lax;
	sim->base.gives_extents = !config->no_extents;
	sim->base.inherited = true;
	make_uuid(sim->base.uuid, config->index);
	sim->base.capacity = ROUND_DOWN(config->capacity, GAIA_CHUNK);
	sim->bandwidth = config->bandwidth;
	sim->local = config->local;
	sim->latency_ns = config->latency_ns;
	sim->submit_ns = config->submit_ns;
	sim->waits = !config->no_wait && (config->bandwidth || config->local || config->latency_ns ||
					  config->submit_ns);
	sim->no_peers = config->no_peers;
	sim->new_chunk = xmalloc(GAIA_CHUNK);
	memset(sim->new_chunk, NEW_GARBAGE, GAIA_CHUNK);
	return start(sim, out);
}
