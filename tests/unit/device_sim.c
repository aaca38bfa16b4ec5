/*
 * device_sim.c - what the simulated device promises beyond the contract of devices: to be stricter
 * than one.
 */
#include <dirent.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/stat.h>

#include "base/thread.h"
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

/* Whoever keeps it after all. */
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

/* Else it would not end. */
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
