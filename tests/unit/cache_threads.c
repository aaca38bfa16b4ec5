/*
 * cache_threads.c - many threads at one file, each writing bytes of its own.
 *
 * Of each page every writer has a lane: the bytes whose offset leaves a certain remainder. It writes them
 * with stamps that only rise. So a thread that looks at a byte again must see a stamp that is no lower, in its own lanes
 * exactly the last one, and in the end all stamps are the last ones; whatever the kernel
 * writes back, the cache evicts or the store is given meanwhile. For the thread sanitizer, too.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/util.h"
#include "cache_rig.h"
#include "pagecache/cache.h"

#define LANES 8u
#define PAGES 6u
/* Both ends of the file, and both sides of a border of chunks. */
static const uint64_t page_of[PAGES] = { 0, 1, 511, 512, 513, 1024 };
#define SIZE (1025ull * GAIA_PAGE - 8)
#define BYTES 24u /* of a lane, in each page */

static struct world {
	struct rig *rig;
	struct kfile *kf, *other;
	unsigned rounds;
	atomic_uint writers; /* at work */
	atomic_uint turns;   /* that devices have had */
	atomic_uint violations;
	int may_fail; /* acquires, with this errno; 0: none */
} w;

/* A thread that looks at the file. */
struct observer {
	unsigned lane; /* LANES: writes nothing */
	enum { BY_WRITE, BY_STORE, BY_DIRECT, BY_DEVICE } way;
	unsigned device;
	uint64_t seed;
	uint8_t seen[PAGES][LANES][BYTES];
	pthread_t thread;
};

static uint32_t random_below(struct observer *o, uint32_t n)
{
	o->seed = o->seed * 6364136223846793005 + 1442695040888963407;
	return (uint32_t)(o->seed >> 33) % n;
}

/* Lanes are spread over the page, and reach into its last bytes. */
static uint64_t offset_of(unsigned page, unsigned lane, unsigned k)
{
	uint64_t in = k < BYTES / 2 ? k * LANES + lane :
				      GAIA_PAGE - LANES * (BYTES - k + 1) + lane;

	return page_of[page] * GAIA_PAGE + in;
}

static void look(struct observer *o, unsigned page, const unsigned char *bytes)
{
	for (unsigned lane = 0; lane < LANES; lane++)
		for (unsigned k = 0; k < BYTES; k++) {
			uint8_t now = bytes[offset_of(page, lane, k) % GAIA_PAGE];
			uint8_t *seen = &o->seen[page][lane][k];

			if (lane == o->lane ? now != *seen : now < *seen) {
				fprintf(stderr, "observer %u: page %u lane %u byte %u: %u after %u\n",
					o->lane, page, lane, k, now, *seen);
				atomic_fetch_add(&w.violations, 1);
			}
			*seen = now;
		}
}

static void round_of_device(struct observer *o, struct client *cl, unsigned page)
{
	uint64_t at = page_of[page] * GAIA_PAGE, len = MIN(GAIA_PAGE, SIZE - at);
	unsigned char bytes[GAIA_PAGE] = { 0 };
	int err;

	while ((err = client_acquire(cl, at, len, GAIA_PROT_RW)) == -ENOMEM)
		rig_importers_gone();
	cr_assert_eq(err, 0);
	client_load(cl, bytes, len, at);
	look(o, page, bytes);
	for (unsigned k = 0; k < BYTES; k++) {
		uint8_t stamp = ++o->seen[page][o->lane][k];

		client_store(cl, &stamp, 1, offset_of(page, o->lane, k));
	}
	cr_assert_eq(client_release(cl, at, len), 0);
}

static void round_of_cpu(struct observer *o, unsigned page)
{
	unsigned char bytes[GAIA_PAGE] = { 0 };
	uint64_t at = page_of[page] * GAIA_PAGE;
	int err = 0;

	cr_assert_geq(o->way == BY_DIRECT ? cpu_read_direct(w.kf, bytes, GAIA_PAGE, at) :
					    cpu_read(w.kf, bytes, GAIA_PAGE, at),
		      GAIA_PAGE - 8);
	look(o, page, bytes);
	for (unsigned k = 0; k < BYTES && o->lane < LANES && !err; k++) {
		uint8_t stamp = ++o->seen[page][o->lane][k];
		uint64_t off = offset_of(page, o->lane, k);

		err = o->way == BY_STORE ? cpu_store(w.kf, &stamp, 1, off) :
					   cpu_write(w.kf, &stamp, 1, off);
	}
	cr_assert_eq(err, 0);
}

static void *writer_main(void *arg)
{
	struct observer *o = arg;
	struct client *cl = o->way == BY_DEVICE ?
				    client_create(w.kf, o->device, GAIA_PROT_RW, SIZE) :
				    NULL;

	for (unsigned k = 0; k < w.rounds; k++) {
		/* Processes that work past the cache would be done before the first device comes. */
		while (!cl && w.kf->below && atomic_load(&w.turns) < k)
			sched_yield();
		if (cl)
			round_of_device(o, cl, random_below(o, PAGES));
		else
			round_of_cpu(o, random_below(o, PAGES));
		atomic_fetch_add(&w.turns, cl != NULL);
	}
	if (cl)
		client_end(cl);
	atomic_fetch_sub(&w.writers, 1);
	return NULL;
}

/* The kernel, and whatever else happens. */
static void *disturber_main(void *arg)
{
	struct observer *o = arg;
	static _Thread_local char buf[1 << 20];
	uint64_t at;

	while (atomic_load(&w.writers) > 0) {
		at = page_of[random_below(o, PAGES)] * GAIA_PAGE;
		switch (random_below(o, 9)) {
		case 0:
			cr_assert_eq(kernel_writeback(w.kf, 0, 0, 256), 0);
			break;
		case 1:
		case 2:
			cr_assert_eq(kernel_writeback(w.kf, at, GAIA_PAGE, 1), 0);
			break;
		case 3:
			kernel_reclaim(w.kf, at, GAIA_PAGE);
			break;
		case 4:
			cr_assert_eq(cache_evict(w.kf->cfile, GAIA_FROM_HOME, at, GAIA_PAGE), 0);
			break;
		case 5:
			(void)cache_evict(w.kf->cfile, random_below(o, w.rig->options.devices), at,
					  GAIA_PAGE);
			break;
		case 6:
			cr_assert_eq(cpu_fsync(w.kf), 0);
			break;
		case 7:
			/* Home is small: something must go. */
			at = random_below(o, 16) * (uint64_t)sizeof(buf);
			cr_assert_eq(cache_read(w.other->cfile, buf, sizeof(buf), (off_t)at),
				     (ssize_t)sizeof(buf));
			break;
		case 8:
			round_of_cpu(o, random_below(o, PAGES));
			break;
		}
	}
	return NULL;
}

/* Every stamp is its lane's last one. */
static void check_end(const struct observer *o, unsigned n)
{
	unsigned char bytes[GAIA_PAGE], stored[GAIA_PAGE];

	cr_assert_eq(cpu_fsync(w.kf), 0);
	for (unsigned page = 0; page < PAGES; page++) {
		cpu_read(w.kf, bytes, GAIA_PAGE, page_of[page] * GAIA_PAGE);
		store_peek(w.kf, stored, GAIA_PAGE, page_of[page] * GAIA_PAGE);
		for (unsigned k = 0; k < n; k++)
			for (unsigned b = 0; b < BYTES; b++) {
				unsigned at = offset_of(page, o[k].lane, b) % GAIA_PAGE;

				cr_assert_eq(bytes[at], o[k].seen[page][o[k].lane][b],
					     "page %u lane %u byte %u: %u, not %u", page, o[k].lane,
					     b, bytes[at], o[k].seen[page][o[k].lane][b]);
				cr_assert_eq(stored[at], bytes[at]);
			}
	}
}

static void run(const struct rig_options *options, struct observer *o, unsigned n, unsigned rounds)
{
	struct observer disturber[2] = { { .lane = LANES, .way = BY_WRITE, .seed = 77 },
					 { .lane = LANES, .way = BY_DIRECT, .seed = 78 } };

	w.rig = rig_create(options);
	w.kf = kfile_create(w.rig, 1, SIZE);
	w.other = kfile_create(w.rig, 2, 16ull << 20);
	w.rounds = rounds;
	atomic_store(&w.writers, n);
	for (unsigned k = 0; k < n; k++) {
		o[k].lane = k;
		o[k].seed = k + 1;
		cr_assert_eq(pthread_create(&o[k].thread, NULL, writer_main, &o[k]), 0);
	}
	for (unsigned k = 0; k < ARRAY_LEN(disturber); k++)
		cr_assert_eq(pthread_create(&disturber[k].thread, NULL, disturber_main,
					    &disturber[k]), 0);
	for (unsigned k = 0; k < n; k++)
		pthread_join(o[k].thread, NULL);
	for (unsigned k = 0; k < ARRAY_LEN(disturber); k++)
		pthread_join(disturber[k].thread, NULL);
	cr_assert_eq(atomic_load(&w.violations), 0);
	check_end(o, n);
	rig_destroy(w.rig);
}

Test(threads, cpus_and_devices_lose_no_byte, .timeout = 240)
{
	static struct observer o[] = { { .way = BY_WRITE }, { .way = BY_STORE },
				       { .way = BY_DEVICE, .device = 0 },
				       { .way = BY_DEVICE, .device = 1 } };

	run(&(struct rig_options){ .devices = 2, .reads_ahead = true, .age_ms = 1, .home_bytes = CACHE_HOME_MIN }, o,
	    ARRAY_LEN(o), 150);
}

Test(threads, clients_that_share_a_device_lose_no_byte, .timeout = 240)
{
	static struct observer o[] = { { .way = BY_STORE },
				       { .way = BY_DEVICE, .device = 0 },
				       { .way = BY_DEVICE, .device = 0 },
				       { .way = BY_DEVICE, .device = 0 },
				       { .way = BY_DEVICE, .device = 1 } };

	/* Room for three chunks, and sometimes a snapshot. */
	run(&(struct rig_options){ .devices = 2, .reads_ahead = true, .device_chunks = 4, .age_ms = 1,
				   .home_bytes = CACHE_HOME_MIN },
	    o, ARRAY_LEN(o), 120);
}

Test(threads, a_full_device_and_a_kernel_that_writes_through, .timeout = 240)
{
	static struct observer o[] = { { .way = BY_WRITE }, { .way = BY_STORE },
				       { .way = BY_DEVICE, .device = 0 },
				       { .way = BY_DEVICE, .device = 0 } };

	run(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 2, .age_ms = 1,
				   .writethrough = true, .home_bytes = CACHE_HOME_MIN },
	    o, ARRAY_LEN(o), 120);
}

Test(threads, a_slow_bus, .timeout = 240)
{
	static struct observer o[] = { { .way = BY_STORE },
				       { .way = BY_DEVICE, .device = 0 },
				       { .way = BY_DEVICE, .device = 1 },
				       { .way = BY_DEVICE, .device = 1 } };

	run(&(struct rig_options){ .devices = 2, .reads_ahead = true, .age_ms = 1, .latency_ns = 50000 }, o,
	    ARRAY_LEN(o), 100);
}

/* Processes work on the store's file, of which nobody tells the cache. */
Test(threads, a_passthrough_file, .timeout = 240)
{
	static struct observer o[] = { { .way = BY_WRITE }, { .way = BY_STORE },
				       { .way = BY_DEVICE, .device = 0 },
				       { .way = BY_DEVICE, .device = 1 },
				       { .way = BY_DEVICE, .device = 1 } };

	/* Between what a release finds in the store and what it writes there. */
	fault_arm_delay("release.before_put", 300, 5);
	run(&(struct rig_options){ .devices = 2, .reads_ahead = true, .age_ms = 1, .passthrough = true,
				   .home_bytes = CACHE_HOME_MIN },
	    o, ARRAY_LEN(o), 150);
	fault_disarm_all();
}

Test(threads, a_passthrough_file_and_a_full_device, .timeout = 240)
{
	static struct observer o[] = { { .way = BY_STORE },
				       { .way = BY_DEVICE, .device = 0 },
				       { .way = BY_DEVICE, .device = 0 } };

	run(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 2, .age_ms = 1,
				   .passthrough = true, .home_bytes = CACHE_HOME_MIN },
	    o, ARRAY_LEN(o), 120);
}

/*
 * ---- acquires that need each other's memory ----
 *
 * Each is of up to three chunks of a file of six, on a device that has three. So most of them need what others have, which
 * they may or may not get, whole; each byte is some thread's own.
 */

#define CHUNKS 6u
#define NEEDY 4u

struct needy {
	unsigned lane;
	uint64_t seed;
	unsigned got, refused;
	uint8_t stamp[CHUNKS];
	pthread_t thread;
};

static uint64_t stamp_at(unsigned chunk, unsigned lane)
{
	return chunk * (uint64_t)GAIA_CHUNK + lane;
}

static uint32_t needy_random(struct needy *n, uint32_t below)
{
	n->seed = n->seed * 6364136223846793005 + 1442695040888963407;
	return (uint32_t)(n->seed >> 33) % below;
}

static void needy_round(struct needy *n, struct client *cl)
{
	unsigned first = needy_random(n, CHUNKS), chunks = 1 + needy_random(n, MIN(3u, CHUNKS - first));
	uint64_t off = first * (uint64_t)GAIA_CHUNK, len = (chunks - 1) * (uint64_t)GAIA_CHUNK + GAIA_PAGE;
	int err = client_acquire(cl, off, len, GAIA_PROT_RW);
	uint8_t seen;

	cr_assert(err == 0 || err == -ENOMEM || err == w.may_fail, "%d", err);
	n->refused += err != 0;
	if (err == -ENOMEM)
		rig_importers_gone();
	if (err)
		return;
	n->got++;
	for (unsigned c = first; c < first + chunks; c++) {
		client_load(cl, &seen, 1, stamp_at(c, n->lane));
		cr_assert_eq(seen, n->stamp[c], "chunk %u lane %u: %u, not %u", c, n->lane, seen, n->stamp[c]);
		n->stamp[c]++;
		client_store(cl, &n->stamp[c], 1, stamp_at(c, n->lane));
	}
	cr_assert_eq(client_release(cl, off, len), 0);
}

static void *needy_main(void *arg)
{
	struct needy *n = arg;
	struct client *cl = NULL;

	while (n->got < w.rounds) {
		if (!cl)
			cl = client_create(w.kf, 0, GAIA_PROT_RW, CHUNKS * GAIA_CHUNK);
		needy_round(n, cl);
		switch (needy_random(n, 16)) {
		case 0:
			client_end(cl);
			cl = NULL;
			break;
		case 1:
			client_die(cl);
			cl->kept = needy_random(n, 2);
			client_end(cl);
			cl = NULL;
			break;
		case 2:
			(void)cache_evict(w.kf->cfile, 0, 0, 0);
			break;
		}
	}
	if (cl)
		client_end(cl);
	return NULL;
}

static void run_needy(const struct rig_options *options, unsigned rounds)
{
	static struct needy n[NEEDY];
	uint8_t seen;

	w.rig = rig_create(options);
	w.kf = kfile_create(w.rig, 1, CHUNKS * GAIA_CHUNK);
	w.rounds = rounds;
	for (unsigned k = 0; k < NEEDY; k++) {
		n[k].lane = n[k].seed = k;
		cr_assert_eq(pthread_create(&n[k].thread, NULL, needy_main, &n[k]), 0);
	}
	for (unsigned k = 0; k < NEEDY; k++)
		pthread_join(n[k].thread, NULL);
	for (unsigned k = 0; k < NEEDY; k++)
		for (unsigned c = 0; c < CHUNKS; c++) {
			cr_assert_eq(cpu_read(w.kf, &seen, 1, stamp_at(c, k)), 1);
			cr_assert_eq(seen, n[k].stamp[c], "chunk %u lane %u: %u, not %u", c, k, seen, n[k].stamp[c]);
		}
	for (unsigned k = 0; k < NEEDY; k++)
		cr_log_info("%u acquires, %u did not fit", n[k].got, n[k].refused);
	fault_disarm_all();
	cache_check(w.rig->cache);
	rig_destroy(w.rig);
}

Test(needy, acquires_on_a_small_device_end, .timeout = 240)
{
	run_needy(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 3, .home_bytes = CACHE_HOME_MIN }, 400);
}

/* Those that were chosen cannot always go, nor is there always memory. */
Test(needy, acquires_end_where_evictions_fail, .timeout = 240)
{
	w.may_fail = -EIO;
	fault_arm_delay("evict.before_fetch", 300, 5);
	fault_arm("device.copy_out", -EIO, 20, 60);
	fault_arm("device.alloc", -ENOMEM, 40, 40);
	run_needy(&(struct rig_options){ .devices = 1, .reads_ahead = true, .device_chunks = 3, .home_bytes = CACHE_HOME_MIN }, 200);
}
