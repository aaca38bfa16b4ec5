/*
 * device_sim.c - what the simulated device promises beyond the contract of devices: to be stricter
 * than one.
 */
#include <dirent.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/counters.h"
#include "base/thread.h"
#include "device/word.h"
#include "device_io.h"

static struct device *dev;

static struct device *new_sim(struct sim_config config)
{
	struct device *d = NULL;

	cr_assert_eq(device_sim_create(&config, &d), 0);
	return d;
}

static void begin(void)
{
	dev = new_sim((struct sim_config){ .index = 3, .capacity = 4 * GAIA_CHUNK });
}

static void end(void)
{
	dev->ops->destroy(dev);
}

TestSuite(sim, .init = begin, .fini = end, .timeout = 60);
TestSuite(sim_of_own, .timeout = 60);

/* Stops the device's thread between two operations. */
struct stopper {
	struct dev_op op;
	struct dev_run run;
	sem_t stopped, go_on;
};

static void stop_here(struct dev_op *op, int err)
{
	struct stopper *s = op->arg;

	(void)err;
	sem_post(&s->stopped);
	sem_wait(&s->go_on);
}

static void stop_device(struct stopper *s, struct devmem *mem)
{
	sem_init(&s->stopped, 0, 0);
	sem_init(&s->go_on, 0, 0);
	s->run = (struct dev_run){ mem, .page = GAIA_CHUNK_PAGES - 1, .npages = 1 };
	s->op = (struct dev_op){ .kind = DEV_ARM, .runs = &s->run, .n = 1, .done = stop_here, .arg = s };
	cr_assert_eq(device_submit(mem->dev, &s->op), 0);
	sem_wait(&s->stopped);
}

static void post(struct dev_op *op, int err)
{
	(void)err;
	sem_post(op->arg);
}

static bool all_are(const void *buf, char value, size_t n)
{
	const char *p = buf;

	for (size_t i = 0; i < n; i++)
		if (p[i] != value)
			return false;
	return true;
}

/* Submits a copy that cannot begin before the stopper lets it. */
struct pending {
	struct dev_op op;
	struct dev_run run;
	sem_t ended;
};

static void submit_pending(struct pending *p, enum dev_kind kind, struct dev_run run)
{
	sem_init(&p->ended, 0, 0);
	p->run = run;
	p->op = (struct dev_op){ .kind = kind, .runs = &p->run, .n = 1, .done = post, .arg = &p->ended };
	cr_assert_eq(device_submit(run.mem->dev, &p->op), 0);
}

Test(sim, new_memory_holds_neither_zeros_nor_meaning)
{
	struct devmem *mem = must_alloc(dev);
	unsigned char *client = client_map(mem);

	cr_assert(all_are(client, (char)client[0], GAIA_CHUNK));
	cr_assert_neq(client[0], 0);
	client_unmap(client);
	dev->ops->free(dev, mem);
}

Test(sim, the_destination_of_a_copy_in_is_garbage_until_it_completes)
{
	struct devmem *mem = must_alloc(dev);
	unsigned char *client = client_map(mem);
	char *old = host_pages(4), *new = host_pages(2);
	struct stopper s;
	struct pending p;

	memset(old, 'o', 4 * GAIA_PAGE);
	memset(new, 'n', 2 * GAIA_PAGE);
	cr_assert_eq(copy_in(mem, 0, 4, old), 0);
	stop_device(&s, mem);
	submit_pending(&p, DEV_COPY_IN, (struct dev_run){ mem, .page = 1, .npages = 2,
							  .host = new });
	for (uint32_t i = GAIA_PAGE; i < 3 * GAIA_PAGE; i++)
		cr_assert(client[i] != 'o' && client[i] != 'n' && client[i] != 0);
	/* But its neighbours are left alone. */
	cr_assert(all_are(client, 'o', GAIA_PAGE));
	cr_assert(all_are(client + 3 * GAIA_PAGE, 'o', GAIA_PAGE));
	sem_post(&s.go_on);
	sem_wait(&p.ended);
	cr_assert(all_are(client + GAIA_PAGE, 'n', 2 * GAIA_PAGE));
	client_unmap(client);
	dev->ops->free(dev, mem);
	free(old);
	free(new);
}

Test(sim, the_destination_of_a_copy_out_is_garbage_until_it_completes)
{
	struct devmem *mem = must_alloc(dev);
	char *host = host_pages(1);
	struct stopper s;
	struct pending p;

	memset(host, 'o', GAIA_PAGE);
	cr_assert_eq(copy_in(mem, 0, 1, host), 0);
	stop_device(&s, mem);
	submit_pending(&p, DEV_COPY_OUT, (struct dev_run){ mem, .npages = 1, .host = host });
	for (uint32_t i = 0; i < GAIA_PAGE; i++)
		cr_assert_neq(host[i], 'o');
	sem_post(&s.go_on);
	sem_wait(&p.ended);
	cr_assert(all_are(host, 'o', GAIA_PAGE));
	dev->ops->free(dev, mem);
	free(host);
}

Test(sim, garbage_does_not_reach_what_older_operations_still_need)
{
	struct devmem *mem = must_alloc(dev);
	char *old = host_pages(1), *new = host_pages(1), *out = host_pages(1);
	struct stopper s;
	struct pending first, second;

	memset(old, 'o', GAIA_PAGE);
	memset(new, 'n', GAIA_PAGE);
	cr_assert_eq(copy_in(mem, 0, 1, old), 0);
	stop_device(&s, mem);
	submit_pending(&first, DEV_COPY_OUT, (struct dev_run){ mem, .npages = 1, .host = out });
	submit_pending(&second, DEV_COPY_IN, (struct dev_run){ mem, .npages = 1, .host = new });
	sem_post(&s.go_on);
	sem_wait(&first.ended);
	sem_wait(&second.ended);
	cr_assert(all_are(out, 'o', GAIA_PAGE));
	cr_assert_eq(copy_out(mem, 0, 1, out), 0);
	cr_assert(all_are(out, 'n', GAIA_PAGE));
	dev->ops->free(dev, mem);
	free(old);
	free(new);
	free(out);
}

Test(sim, a_pending_pull_shows_clients_no_garbage)
{
	struct devmem *mem = must_alloc(dev);
	unsigned char *client = client_map(mem);
	char *old = host_pages(1), *new = host_pages(1);
	struct stopper s;
	struct pending p;

	memset(old, 'o', GAIA_PAGE);
	memset(new, 'n', GAIA_PAGE);
	cr_assert_eq(copy_in(mem, 0, 1, old), 0);
	stop_device(&s, mem);
	submit_pending(&p, DEV_PULL, (struct dev_run){ mem, .npages = 1, .host = new });
	cr_assert(all_are(client, 'o', GAIA_PAGE));
	sem_post(&s.go_on);
	sem_wait(&p.ended);
	cr_assert(all_are(client, 'n', GAIA_PAGE));
	client_unmap(client);
	dev->ops->free(dev, mem);
	free(old);
	free(new);
}

/* A page that can be written by its second address only, until somebody has tried by the first. */
static struct {
	unsigned char *first, *second;
} twice;

static void store_before(int sig)
{
	twice.second[0] = 'c';
	if (mprotect(twice.first, GAIA_PAGE, PROT_READ | PROT_WRITE))
		_exit(1);
}

Test(sim_of_own, a_pull_keeps_what_clients_store_after_it_has_looked)
{
	int fd = memfd_create("page", MFD_CLOEXEC);
	word_t host = 0, base = 0;

	cr_assert_eq(ftruncate(fd, GAIA_PAGE), 0);
	twice.first = mmap(NULL, GAIA_PAGE, PROT_READ, MAP_SHARED, fd, 0);
	twice.second = mmap(NULL, GAIA_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert(twice.first != MAP_FAILED && twice.second != MAP_FAILED);
	cr_assert_neq(signal(SIGSEGV, store_before), SIG_ERR);
	((unsigned char *)&host)[1] = 'h';
	word_pull((word_t *)twice.first, &host, &base, GAIA_PAGE, 0);
	cr_assert_arr_eq(twice.second, "ch\0\0\0\0\0", 8);
	munmap(twice.first, GAIA_PAGE);
	munmap(twice.second, GAIA_PAGE);
	close(fd);
}

Test(sim, freed_memory_is_refused)
{
	struct devmem *mem = must_alloc(dev), *kept = must_alloc(dev);

	dev->ops->free(dev, mem);
	cr_assert_eq(run_one(dev, DEV_ARM, (struct dev_run){ mem, .npages = 1 }), -EINVAL);
	cr_assert_eq(run_one(dev, DEV_COPY_WITHIN, (struct dev_run){ kept, .other = mem,
								     .npages = 1 }),
		     -EINVAL);
	cr_assert_eq(dev->ops->export_fd(dev, mem, true), -EINVAL);
	dev->ops->free(dev, kept);
}

Test(sim_of_own, can_be_one_that_shares_nothing_read_only)
{
	struct device *d = new_sim((struct sim_config){ .capacity = GAIA_CHUNK, .no_readonly = true });
	struct devmem *mem = must_alloc(d);
	int fd;

	cr_assert_not(d->shares_readonly);
	cr_assert_eq(d->ops->export_fd(d, mem, false), -ENOTSUP);
	fd = d->ops->export_fd(d, mem, true);
	cr_assert_geq(fd, 0);
	close(fd);
	d->ops->free(d, mem);
	d->ops->destroy(d);
}

Test(sim_of_own, freeing_twice_is_a_bug, .init = begin, .signal = SIGABRT)
{
	struct devmem *mem = must_alloc(dev);

	dev->ops->free(dev, mem);
	dev->ops->free(dev, mem);
}

Test(sim_of_own, freeing_what_an_operation_uses_is_a_bug, .init = begin, .signal = SIGABRT)
{
	struct devmem *mem = must_alloc(dev), *other = must_alloc(dev);
	struct stopper s;
	struct pending p;

	stop_device(&s, mem);
	submit_pending(&p, DEV_COPY_WITHIN, (struct dev_run){ mem, .other = other, .npages = 1 });
	dev->ops->free(dev, other);
}

Test(sim_of_own, destroying_it_with_memory_in_use_is_a_bug, .init = begin, .signal = SIGABRT)
{
	must_alloc(dev);
	dev->ops->destroy(dev);
}

Test(sim, clients_cannot_resize_memory_nor_hand_it_on_by_name)
{
	struct devmem *mem = must_alloc(dev);
	int fd = dev->ops->export_fd(dev, mem, true);
	struct stat st;

	cr_assert_eq(ftruncate(fd, 0), -1);
	cr_assert_eq(ftruncate(fd, 2 * GAIA_CHUNK), -1);
	cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(st.st_mode & 07777, 0600);
	cr_assert_eq(st.st_size, GAIA_CHUNK);
	close(fd);
	dev->ops->free(dev, mem);
}

/* Though a client keeps it. */
Test(sim, freed_memory_is_given_back_and_shows_nothing)
{
	struct devmem *mem = must_alloc(dev);
	int fd = dev->ops->export_fd(dev, mem, true);
	char *p = mmap(NULL, GAIA_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct stat st;

	cr_assert_neq(p, MAP_FAILED);
	memset(p, 'x', GAIA_CHUNK);
	dev->ops->free(dev, mem);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(st.st_blocks, 0, "%ld blocks are kept", (long)st.st_blocks);
	cr_assert(all_are(p, 0, GAIA_CHUNK));
	munmap(p, GAIA_CHUNK);
	close(fd);
}

static unsigned descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

Test(sim_of_own, no_descriptor_is_left)
{
	unsigned before = descriptors();

	begin();
	for (int i = 0; i < 10; i++) {
		struct devmem *mem = must_alloc(dev);

		client_unmap(client_map(mem));
		dev->ops->free(dev, mem);
	}
	end();
	cr_assert_eq(descriptors(), before);
}

/* ---- extents ---- */

static struct device *new_for_extents(void)
{
	return new_sim((struct sim_config){ .capacity = GAIA_EXTENT + 2 * GAIA_CHUNK });
}

static void free_extent(struct devmem *const mem[GAIA_EXTENT_CHUNKS])
{
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++)
		mem[k]->dev->ops->free(mem[k]->dev, mem[k]);
}

Test(sim_of_own, an_extent_is_one_file_that_cannot_be_resized)
{
	struct device *d = new_for_extents();
	struct devmem *mem[GAIA_EXTENT_CHUNKS];
	struct stat st[2];
	int fd[2];

	cr_assert(d->gives_extents);
	must_alloc_extent(d, mem);
	for (unsigned i = 0; i < 2; i++) {
		fd[i] = d->ops->export_fd(d, mem[i ? 7 : 2], true);
		cr_assert_geq(fd[i], 0);
		cr_assert_eq(fstat(fd[i], &st[i]), 0);
		cr_assert_eq(ftruncate(fd[i], GAIA_CHUNK), -1);
		cr_assert_eq(ftruncate(fd[i], GAIA_EXTENT + GAIA_CHUNK), -1);
		close(fd[i]);
	}
	cr_assert_eq(st[0].st_size, GAIA_EXTENT);
	cr_assert_eq(st[0].st_mode & 07777, 0600);
	cr_assert_eq(st[0].st_ino, st[1].st_ino);
	free_extent(mem);
	d->ops->destroy(d);
}

/* Clients that keep all see nothing where something else may be, or was. */
Test(sim_of_own, a_freed_part_of_an_extent_is_given_back_and_shows_nothing)
{
	struct device *d = new_for_extents();
	struct devmem *mem[GAIA_EXTENT_CHUNKS];
	unsigned char *client;
	char *found = host_pages(1);
	struct stat st;
	long blocks;
	int fd;

	must_alloc_extent(d, mem);
	client = client_map(mem[0]);
	fd = d->ops->export_fd(d, mem[0], true);
	cr_assert_geq(fd, 0);
	memset(client, 'x', GAIA_EXTENT);
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS; k++) {
		unsigned gone = (k * 3 + 2) % GAIA_EXTENT_CHUNKS;

		cr_assert_eq(fstat(fd, &st), 0);
		blocks = st.st_blocks;
		d->ops->free(d, mem[gone]);
		mem[gone] = NULL;
		cr_assert_eq(fstat(fd, &st), 0);
		cr_assert_eq((blocks - (long)st.st_blocks) * 512, (long)GAIA_CHUNK); /* (Clients that read there bring pages back.) */
		for (unsigned j = 0; j < GAIA_EXTENT_CHUNKS; j++) {
			cr_assert(all_are(client + j * (size_t)GAIA_CHUNK, mem[j] ? 'x' : 0, GAIA_CHUNK));
			if (!mem[j])
				continue;
			cr_assert_eq(copy_out(mem[j], 9, 1, found), 0);
			cr_assert(all_are(found, 'x', GAIA_PAGE));
		}
	}
	client_unmap_extent(client);
	close(fd);
	d->ops->destroy(d);
	free(found);
}

Test(sim_of_own, an_extent_that_is_lent_for_reading_cannot_be_written)
{
	struct device *d = new_for_extents();
	struct device *never = new_sim((struct sim_config){ .index = 1, .capacity = GAIA_EXTENT, .no_readonly = true });
	struct devmem *mem[GAIA_EXTENT_CHUNKS];
	char *host = host_pages(1), *client;
	int fd;

	must_alloc_extent(d, mem);
	fd = d->ops->export_fd(d, mem[1], false);
	cr_assert_geq(fd, 0);
	cr_assert_eq(mmap(NULL, GAIA_EXTENT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	client = mmap(NULL, GAIA_EXTENT, PROT_READ, MAP_SHARED, fd, 0);
	cr_assert_neq(client, MAP_FAILED);
	memset(host, 'h', GAIA_PAGE);
	cr_assert_eq(copy_in(mem[6], 3, 1, host), 0);
	cr_assert(all_are(client + 6 * GAIA_CHUNK + 3 * GAIA_PAGE, 'h', GAIA_PAGE));
	munmap(client, GAIA_EXTENT);
	close(fd);
	free_extent(mem);
	must_alloc_extent(never, mem);
	cr_assert_eq(never->ops->export_fd(never, mem[1], false), -ENOTSUP);
	free_extent(mem);
	never->ops->destroy(never);
	d->ops->destroy(d);
	free(host);
}

Test(sim_of_own, extents_count_as_their_chunks_and_may_be_none)
{
	struct device *d = new_for_extents(), *none = new_sim((struct sim_config){ .index = 1, .capacity = GAIA_CHUNK, .no_extents = true });
	struct devmem *mem[GAIA_EXTENT_CHUNKS], *more[GAIA_EXTENT_CHUNKS] = { NULL }, *single[2];

	cr_assert_not(none->gives_extents);
	must_alloc_extent(d, mem);
	cr_assert_eq(d->ops->alloc_extent(d, more), -ENOMEM);
	for (unsigned i = 0; i < 2; i++)
		single[i] = must_alloc(d);
	cr_assert_eq(d->ops->alloc(d, more), -ENOMEM);
	cr_assert_null(more[0]);
	for (unsigned i = 0; i < 2; i++)
		d->ops->free(d, single[i]);
	free_extent(mem);
	none->ops->destroy(none);
	d->ops->destroy(d);
}

static void limit_descriptors(rlim_t n)
{
	struct rlimit limit;

	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = n;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Wherever it has to stop. */
Test(sim_of_own, an_extent_without_descriptors_takes_nothing)
{
	struct device *d = new_for_extents();
	struct devmem *mem[GAIA_EXTENT_CHUNKS] = { NULL };
	unsigned before = descriptors();
	int next = dup(0);

	close(next);
	for (unsigned more = 0; more < GAIA_EXTENT_CHUNKS; more++) {
		limit_descriptors((rlim_t)next + more);
		cr_assert_eq(d->ops->alloc_extent(d, mem), -ENOMEM, "%u", more);
		cr_assert_null(mem[0]);
		limit_descriptors((rlim_t)next + 64);
		cr_assert_eq(descriptors(), before, "%u", more);
	}
	must_alloc_extent(d, mem);
	free_extent(mem);
	cr_assert_eq(descriptors(), before);
	d->ops->destroy(d);
}

Test(sim, is_named_after_its_index)
{
	struct device *other = new_sim((struct sim_config){ .index = 4, .capacity = GAIA_CHUNK });
	struct device *again = new_sim((struct sim_config){ .index = 3, .capacity = GAIA_CHUNK });

	cr_assert_str_eq(dev->name, "sim3");
	cr_assert_str_eq(dev->kind, "sim");
	cr_assert(dev->simulated);
	cr_assert_neq(memcmp(dev->uuid, other->uuid, sizeof(dev->uuid)), 0);
	cr_assert_eq(memcmp(dev->uuid, again->uuid, sizeof(dev->uuid)), 0);
	other->ops->destroy(other);
	again->ops->destroy(again);
}

Test(sim_of_own, capacity_is_whole_chunks)
{
	struct sim_config config = { .capacity = 3 * GAIA_CHUNK - 1 };
	struct device *d = new_sim(config);

	cr_assert_eq(d->capacity, 2 * GAIA_CHUNK);
	d->ops->destroy(d);
	d = NULL;
	config.capacity = GAIA_CHUNK - 1;
	cr_assert_eq(device_sim_create(&config, &d), -EINVAL);
	cr_assert_null(d);
}

Test(sim_of_own, nothing_is_faster_than_the_bus)
{
	struct device *d = new_sim((struct sim_config){ .capacity = GAIA_CHUNK,
							.bandwidth = 100 * 1000 * 1000,
							.latency_ns = 2000000 });
	struct devmem *mem = must_alloc(d);
	char *host = host_pages(GAIA_CHUNK_PAGES);
	uint64_t start = now_ns();

	/* 2 MiB at 100 MB/s: 20.97 ms each, and 2 ms for each of the three. */
	cr_assert_eq(copy_in(mem, 0, GAIA_CHUNK_PAGES, host), 0);
	cr_assert_eq(copy_out(mem, 0, GAIA_CHUNK_PAGES, host), 0);
	cr_assert_eq(arm(mem, 0, 1), 0);
	cr_assert_geq(now_ns() - start, 47900000);
	d->ops->free(d, mem);
	d->ops->destroy(d);
	free(host);
}

/* ---- the model: its own clock only, nothing is waited for ---- */

#define OPS 3u
#define COPY_NS 2097152u /* of a chunk, at a byte a nanosecond */

static const struct sim_config modelled = { .capacity = 4 * GAIA_CHUNK, .bandwidth = 1000000000,
					    .local = 2000000000, .latency_ns = 10000000, .no_wait = true };

/* What is submitted together: while the device's thread is kept from looking. */
struct together {
	struct device *dev;
	struct dev_op first, op[OPS];
	struct dev_run run[OPS];
	uint64_t before; /* by the model's clock, when they were submitted */
	sem_t ended;
};

static void one_ended(struct dev_op *op, int err)
{
	sem_t *ended = op->arg;

	cr_assert_eq(err, 0);
	sem_post(ended);
}

static void submit_all(struct dev_op *first, int err)
{
	struct together *t = first->arg;

	(void)err;
	t->before = counter_value(CTR_sim_ns);
	for (unsigned i = 0; i < OPS; i++)
		cr_assert_eq(device_submit(t->dev, &t->op[i]), 0);
	sem_post(&t->ended);
}

/* How long the operations on whole chunks take by the model from when all are submitted. A kind's host memory is @host. */
static uint64_t time_together(struct device *d, struct devmem *const mem[OPS], const enum dev_kind kind[OPS],
			      char *host)
{
	struct together t = { .dev = d };
	struct dev_run run = { mem[0], .npages = 1 };
	uint64_t bits[GAIA_CHUNK_PAGES / 64] = { 0 };

	sem_init(&t.ended, 0, 0);
	for (unsigned i = 0; i < OPS; i++) {
		t.run[i] = (struct dev_run){ mem[i], .npages = GAIA_CHUNK_PAGES, .host = host + i * GAIA_CHUNK };
		t.op[i] = (struct dev_op){ .kind = kind[i], .runs = &t.run[i], .n = 1, .changed = bits,
					   .done = one_ended, .arg = &t.ended };
	}
	t.first = (struct dev_op){ .kind = DEV_ARM, .runs = &run, .n = 1, .done = submit_all, .arg = &t };
	cr_assert_eq(device_submit(d, &t.first), 0);
	for (unsigned i = 0; i < OPS + 1; i++)
		sem_wait(&t.ended);
	sem_destroy(&t.ended);
	return counter_value(CTR_sim_ns) - t.before;
}

/* The same on memory that is allocated for it: chunk[i] says which of it operation i names. */
static uint64_t model(struct sim_config config, const unsigned chunk[OPS], const enum dev_kind kind[OPS])
{
	struct device *d = new_sim(config);
	struct devmem *have[OPS], *mem[OPS];
	char *host = host_pages(OPS * GAIA_CHUNK_PAGES);
	uint64_t ns;

	for (unsigned i = 0; i < OPS; i++)
		have[i] = must_alloc(d);
	for (unsigned i = 0; i < OPS; i++)
		mem[i] = have[chunk[i]];
	ns = time_together(d, mem, kind, host);
	for (unsigned i = 0; i < OPS; i++)
		d->ops->free(d, have[i]);
	d->ops->destroy(d);
	free(host);
	return ns;
}

static const unsigned apart[OPS] = { 0, 1, 2 }, same[OPS] = { 0, 0, 0 };

Test(sim_of_own, copies_in_one_direction_take_turns_and_latencies_overlap)
{
	const enum dev_kind in[OPS] = { DEV_COPY_IN, DEV_COPY_IN, DEV_COPY_IN };

	cr_assert_eq(model(modelled, apart, in), 3 * COPY_NS + modelled.latency_ns);
	cr_assert_eq(counter_value(CTR_sim_in_ns), 3 * COPY_NS);
	cr_assert_eq(counter_value(CTR_sim_out_ns), 0);
}

Test(sim_of_own, both_directions_and_its_own_memory_overlap)
{
	const enum dev_kind kinds[OPS] = { DEV_COPY_IN, DEV_COPY_OUT, DEV_FIND_CHANGED };
	cr_assert_eq(model(modelled, apart, kinds), COPY_NS + modelled.latency_ns);
	cr_assert_eq(counter_value(CTR_sim_in_ns), COPY_NS);
	cr_assert_eq(counter_value(CTR_sim_out_ns), COPY_NS);
	/* Its own memory is twice as fast. A page was worked on before. */
	cr_assert_eq(counter_value(CTR_sim_local_ns), COPY_NS / 2 + GAIA_PAGE / 2);
}

Test(sim_of_own, operations_on_the_same_memory_do_not_overlap)
{
	const enum dev_kind kinds[OPS] = { DEV_COPY_IN, DEV_COPY_OUT, DEV_FIND_CHANGED };

	cr_assert_eq(model(modelled, same, kinds), 2 * COPY_NS + COPY_NS / 2 + modelled.latency_ns);
}

Test(sim_of_own, a_merge_is_on_the_bus_and_on_its_own_memory)
{
	const enum dev_kind kinds[OPS] = { DEV_PULL, DEV_ARM, DEV_COPY_OUT };

	cr_assert_eq(model(modelled, apart, kinds), COPY_NS + COPY_NS / 2 + modelled.latency_ns);
}

Test(sim_of_own, submissions_take_turns_whatever_they_are)
{
	const enum dev_kind kinds[OPS] = { DEV_COPY_IN, DEV_COPY_OUT, DEV_FIND_CHANGED };
	struct sim_config config = modelled;

	config.submit_ns = 1000;
	/* The last is the shortest, but none completes before those before it. */
	cr_assert_eq(model(config, apart, kinds), 2 * 1000 + COPY_NS + config.latency_ns);
	config.submit_ns = 2 * COPY_NS;
	cr_assert_eq(model(config, apart, kinds), 3 * 2 * COPY_NS + COPY_NS / 2 + config.latency_ns);
}

Test(sim_of_own, who_waits_for_each_pays_for_each_latency)
{
	struct device *d = new_sim(modelled);
	struct devmem *mem = must_alloc(d);
	char *host = host_pages(GAIA_CHUNK_PAGES);
	uint64_t before = counter_value(CTR_sim_ns);

	cr_assert_eq(copy_in(mem, 0, GAIA_CHUNK_PAGES, host), 0);
	cr_assert_eq(copy_out(mem, 0, GAIA_CHUNK_PAGES, host), 0);
	cr_assert_eq(counter_value(CTR_sim_ns) - before, 2 * (COPY_NS + modelled.latency_ns));
	d->ops->free(d, mem);
	d->ops->destroy(d);
	free(host);
}

Test(sim_of_own, all_runs_of_an_operation_take_their_time)
{
	struct device *d = new_sim(modelled);
	struct devmem *a = must_alloc(d), *b = must_alloc(d);
	char *host = host_pages(5);
	struct dev_run runs[] = { { a, .npages = 2, .host = host }, { b, .npages = 3, .host = host + 2 * GAIA_PAGE } };
	struct dev_run within[] = { { a, .other = b, .npages = 1 }, { b, .other = a, .page = 4, .npages = 4 } };
	uint64_t bits[1] = { 0 };
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = runs, .n = 2, .changed = bits };

	cr_assert_eq(device_run(d, &op), 0);
	cr_assert_eq(counter_value(CTR_sim_in_ns), 5 * GAIA_PAGE);
	op.kind = DEV_FIND_CHANGED;
	cr_assert_eq(device_run(d, &op), 0);
	cr_assert_eq(counter_value(CTR_sim_local_ns), 5 * GAIA_PAGE / 2);
	op.kind = DEV_COPY_WITHIN;
	op.runs = within;
	cr_assert_eq(device_run(d, &op), 0);
	cr_assert_eq(counter_value(CTR_sim_local_ns), 5 * GAIA_PAGE / 2 + 5 * GAIA_PAGE, "read, and written");
	d->ops->free(d, a);
	d->ops->free(d, b);
	d->ops->destroy(d);
	free(host);
}

Test(sim_of_own, what_it_moves_is_counted)
{
	struct device *d = new_sim(modelled), *layered = NULL;
	struct devmem *mem;
	char *host = host_pages(2 * GAIA_CHUNK_PAGES);
	struct dev_run merge;

	cr_assert_eq(device_faulty_create(d, &layered), 0);
	mem = must_alloc(layered);
	cr_assert_eq(copy_in(mem, 0, 3, host), 0);
	cr_assert_eq(copy_out(mem, 0, 2, host), 0);
	cr_assert_eq(arm(mem, 0, 5), 0);
	merge = (struct dev_run){ mem, .npages = 1, .host = host, .base = host + GAIA_PAGE, .limit = 1 };
	cr_assert_eq(run_one(layered, DEV_PULL, merge), 0);
	cr_assert_eq(counter_value(CTR_device_operations), 4, "of layers, one counts");
	cr_assert_eq(counter_value(CTR_device_bytes_in), 5 * GAIA_PAGE, "a merge reads its base, too");
	cr_assert_eq(counter_value(CTR_device_bytes_out), 2 * GAIA_PAGE);
	merge.host = NULL;
	cr_assert_eq(run_one(layered, DEV_PULL, merge), -EINVAL);
	cr_assert_eq(counter_value(CTR_device_operations), 4, "what is refused does not count");
	layered->ops->free(layered, mem);
	layered->ops->destroy(layered);
	free(host);
}

/* ---- waiting for an operation: device_run(), by a thread that others rely on ---- */

static void count_wait(void *arg)
{
	++*(unsigned *)arg;
}

/* A device that is done before anybody can wait: kinder than any may be. */
static int done_at_once(struct device *d, struct dev_op *op)
{
	op->done(op, 0);
	return 0;
}

Test(run, others_hear_of_a_wait_only_if_it_is_one)
{
	const struct device_ops ops = { .name = "prompt", .submit = done_at_once };
	struct device prompt = { .ops = &ops };
	struct dev_run run = { .npages = 1 };
	struct dev_op op = { .kind = DEV_ARM, .runs = &run, .n = 1 };
	unsigned waits = 0;

	thread_relied_on(count_wait, &waits);
	cr_assert_eq(device_run(&prompt, &op), 0);
	cr_assert_eq(waits, 0);
	run.npages = GAIA_CHUNK_PAGES;
	cr_assert_eq(device_run(&prompt, &op), 0);
	cr_assert_eq(waits, 1, "for many pages nobody waits and looks");
	thread_relied_on(NULL, NULL);
}

static void let_go_on(void *arg)
{
	sem_post(&((struct stopper *)arg)->go_on);
}

/* Otherwise it would not end. */
Test(sim, others_hear_of_a_wait_for_a_device_that_takes_its_time)
{
	struct devmem *mem = must_alloc(dev);
	struct dev_run run = { mem, .npages = 1 };
	struct dev_op op = { .kind = DEV_ARM, .runs = &run, .n = 1 };
	struct stopper s;

	stop_device(&s, mem);
	thread_relied_on(let_go_on, &s);
	cr_assert_eq(device_run(dev, &op), 0);
	thread_relied_on(NULL, NULL);
	dev->ops->free(dev, mem);
}
