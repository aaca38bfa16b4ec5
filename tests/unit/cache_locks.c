/*
 * cache_locks.c - what reads and writes of different files share: no lock; and a rare one when home is full. And what a sync
 * takes: locks of the chunks that it has something to do with.
 *
 * Linked so that every lock that the cache takes passes through here first (meson.build: --wrap), and is noted. One thread does
 * the same to two files: no lock may be among those of both. `--verbose` shows how many locks each request takes.
 */
#include "base/counters.h"
#include "base/util.h"
#include "cache_scene.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/frames.h"
#include "pagecache/root.h"

#define MOST 128u

/* Distinct locks, how often each was taken, and how often any. */
struct noted {
	const void *lock[MOST];
	unsigned times[MOST];
	unsigned n, taken;
};
static __thread struct noted *noting;

static void note(const void *lock)
{
	if (!noting)
		return;
	noting->taken++;
	for (unsigned k = 0; k < noting->n; k++)
		if (noting->lock[k] == lock) {
			noting->times[k]++;
			return;
		}
	if (noting->n == MOST)
		abort();
	noting->times[noting->n] = 1;
	noting->lock[noting->n++] = lock;
}

#define WRAP(name, type)                     \
	int __real_##name(type *lock);       \
	int __wrap_##name(type *lock);       \
	int __wrap_##name(type *lock)        \
	{                                    \
		note(lock);                  \
		return __real_##name(lock);  \
	}
WRAP(pthread_mutex_lock, pthread_mutex_t)
WRAP(pthread_mutex_trylock, pthread_mutex_t)
WRAP(pthread_rwlock_rdlock, pthread_rwlock_t)
WRAP(pthread_rwlock_tryrdlock, pthread_rwlock_t)
WRAP(pthread_rwlock_wrlock, pthread_rwlock_t)

/* ---- requests, each of pages [page, page + n) ---- */

struct request {
	const char *name;
	enum { READ, READ_DIRECT, WRITE, WRITE_DIRECT } what;
	uint64_t page;
	unsigned n;
};

/*
 * In order. Chunks 0 and 1 are made by them, and stay since they have pages then; in chunk 2 nothing
 * stays, but the test holds it.
 */
static const struct request requests[] = {
	{ "write of a page, the first of its chunk", WRITE, 3, 1 },
	{ "write of a page that is home", WRITE, 3, 1 },
	{ "write of 256 pages that are not home", WRITE, 100, 256 },
	{ "exact write into a page that is not home", WRITE_DIRECT, 400, 0 },
	{ "read of a dirty page", READ, 3, 1 },
	{ "direct read, the first of its chunk", READ_DIRECT, 512, 1 },
	{ "direct read of a page that is home", READ_DIRECT, 512, 1 },
	{ "read of a page that is not home", READ, 600, 1 },
	{ "read of the next page: read ahead", READ, 601, 1 },
	{ "read of a page that was read ahead", READ, 602, 1 },
	{ "read of 32 pages that are not home", READ, 900, 32 },
	{ "read of the only page of its chunk", READ, 1100, 1 },
	{ "the same again", READ, 1100, 1 },
};

static void carry_out(struct cfile *f, const struct request *r)
{
	static const char bytes[256 * GAIA_PAGE];
	off_t off = (off_t)r->page * GAIA_PAGE;
	size_t len = r->n ? r->n * GAIA_PAGE : 17;
	struct cache_read rd;

	switch (r->what) {
	case READ:
	case READ_DIRECT:
		cr_assert_eq(cache_read_begin(f, off, len, r->what == READ, &rd), 0);
		cr_assert_eq(rd.bytes, len);
		cache_read_end(&rd);
		break;
	case WRITE:
	case WRITE_DIRECT:
		cr_assert_eq(cache_write(f, bytes, len, off,
					 r->what == WRITE ? CACHE_WRITE_PAGES : CACHE_WRITE_EXACT),
			     0);
	}
}

static bool among(const struct noted *noted, const void *lock)
{
	for (unsigned k = 0; k < noted->n; k++)
		if (noted->lock[k] == lock)
			return true;
	return false;
}

/* The file below is open: that is not asked for with each request. */
static struct chunk *warm_up(struct cfile *f)
{
	carry_out(f, &(struct request){ "", READ_DIRECT, 1535, 1 });
	carry_out(f, &(struct request){ "", WRITE, 1535, 1 });
	cr_assert_eq(cache_flush(f), 0);
	return chunk_get(f, 2, true);
}

/* The cache has memory, too: a frame of each slab is taken, so that none goes back to the system meanwhile. */
#define SLABS 4u
static frame_t frame[SLABS * GAIA_CHUNK_PAGES];

static void take_slabs(struct frames *fr)
{
	cr_assert_eq(frames_take(fr, ARRAY_LEN(frame), frame, false), ARRAY_LEN(frame));
	for (unsigned k = 0; k < SLABS; k++)
		frames_give(fr, frame + k * GAIA_CHUNK_PAGES + 1, GAIA_CHUNK_PAGES - 1);
}

static void give_slabs(struct frames *fr)
{
	for (unsigned k = 0; k < SLABS; k++)
		frames_give(fr, frame + k * GAIA_CHUNK_PAGES, 1);
}

Test(locks, none_is_shared_by_reads_and_writes_of_two_files)
{
	static struct noted all[2];
	struct cfile *f[2];
	struct chunk *held[2];
	struct kfile *other;

	begin(&(struct rig_options){ .devices = 0 }, 3 * GAIA_CHUNK);
	other = kfile_create(rig, 77, 3 * GAIA_CHUNK);
	f[0] = kf->cfile;
	f[1] = other->cfile;
	take_slabs(&rig->cache->frames);
	for (unsigned k = 0; k < 2; k++)
		held[k] = warm_up(f[k]);
	for (unsigned r = 0; r < ARRAY_LEN(requests); r++)
		for (unsigned k = 0; k < 2; k++) {
			unsigned before = all[k].taken;

			noting = &all[k];
			carry_out(f[k], &requests[r]);
			noting = NULL;
			cr_log_info("%s: %u locks taken", requests[r].name, all[k].taken - before);
			for (unsigned j = 0; j < all[k].n; j++)
				cr_assert_not(among(&all[!k], all[k].lock[j]), "%s: a lock is shared%s",
					      requests[r].name,
					      all[k].lock[j] == &rig->cache->lock ? ": the cache's" : "");
		}
	for (unsigned k = 0; k < 2; k++) {
		cr_assert_gt(all[k].taken, ARRAY_LEN(requests), "locks are noted");
		chunk_put(held[k]);
	}
	give_slabs(&rig->cache->frames);
	kfile_end(other, false);
	end();
}

/* ---- a full home ---- */

static unsigned taken(const struct noted *noted, const void *lock)
{
	for (unsigned k = 0; k < noted->n; k++)
		if (noted->lock[k] == lock)
			return noted->times[k];
	return 0;
}

/* Reads, each of another chunk: all are in use when pages must leave. */
static void read_round_robin(unsigned chunks, unsigned from, unsigned to)
{
	for (unsigned page = from; page < to; page++)
		for (unsigned k = 0; k < chunks; k++)
			carry_out(kf->cfile, &(struct request){ "", READ_DIRECT, k * GAIA_CHUNK_PAGES + page, 1 });
}

Test(locks, the_caches_is_taken_rarely_when_home_is_full)
{
	const unsigned chunks = 16, each = CACHE_HOME_MIN / GAIA_PAGE / chunks;
	static struct noted all;

	begin(&(struct rig_options){ .devices = 0, .home_bytes = CACHE_HOME_MIN }, chunks * GAIA_CHUNK);
	read_round_robin(chunks, 0, each);
	noting = &all;
	read_round_robin(chunks, each, 2 * each);
	noting = NULL;
	cr_log_info("%u times for %u reads", taken(&all, &rig->cache->lock), chunks * each);
	cr_assert_gt(counter_value(CTR_home_evicted), chunks * each);
	cr_assert_gt(taken(&all, &rig->cache->lock), 0);
	cr_assert_lt(taken(&all, &rig->cache->lock), chunks * each / 16);
	end();
}

/* ---- syncs ---- */

#define CACHED 24u /* chunks */

/* The device has the first @chunks of a file, and home, and nothing is dirty. */
static struct client *cache_chunks(struct kfile *file, unsigned chunks)
{
	struct client *cl = client_create(file, 0, GAIA_PROT_RW, chunks * GAIA_CHUNK);

	cr_assert_eq(client_acquire(cl, 0, chunks * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(client_release(cl, 0, chunks * GAIA_CHUNK), 0);
	cr_assert_eq(cache_fsync(file->cfile, 0, 0, false), 0);
	return cl;
}

/* Of a sync after a page of the file was changed: by a CPU program, or released by the device. */
static struct noted sync_of_a_page(struct kfile *file, struct client *cl, bool device)
{
	struct noted noted = { .n = 0 };

	if (device) {
		cr_assert_eq(client_acquire(cl, 0, GAIA_PAGE, GAIA_PROT_RW), 0);
		client_store(cl, "d", 1, 0);
		cr_assert_eq(client_release(cl, 0, GAIA_PAGE), 0);
	} else {
		carry_out(file->cfile, &(struct request){ "", WRITE_DIRECT, 0, 0 });
	}
	noting = &noted;
	cr_assert_eq(cache_fsync(file->cfile, 0, 0, false), 0);
	noting = NULL;
	return noted;
}

static unsigned chunks_locked(struct cfile *f, const struct noted *noted)
{
	struct chunk **list;
	unsigned n = chunk_list_get(f, 0, UINT64_MAX, &list), locked = 0;

	for (unsigned k = 0; k < n; k++) {
		locked += taken(noted, &list[k]->lock) > 0;
		chunk_put(list[k]);
	}
	free(list);
	return locked;
}

Test(locks, a_sync_takes_those_of_what_was_changed)
{
	struct kfile *file[2];
	struct client *cl[2];

	begin(&(struct rig_options){ .devices = 1, .device_chunks = CACHED + 1, .home_bytes = (CACHED + 8) * GAIA_CHUNK },
	      CACHED * GAIA_CHUNK);
	file[0] = kfile_create(rig, 77, GAIA_CHUNK);
	file[1] = kf;
	for (unsigned k = 0; k < 2; k++)
		cl[k] = cache_chunks(file[k], k ? CACHED : 1);
	for (unsigned device = 0; device < 2; device++) {
		struct noted few = sync_of_a_page(file[0], cl[0], device);
		struct noted many = sync_of_a_page(file[1], cl[1], device);

		cr_log_info("%s: %u locks taken with a chunk cached, %u with %u", device ? "released" : "written",
			    few.taken, many.taken, CACHED);
		cr_assert_eq(chunks_locked(file[0]->cfile, &few), 1);
		cr_assert_eq(chunks_locked(file[1]->cfile, &many), 1);
		cr_assert_eq(many.taken, few.taken, "%u locks, not %u", many.taken, few.taken);
		cr_assert_eq(taken(&many, &rig->cache->lock), taken(&few, &rig->cache->lock));
	}
	client_end(cl[0]);
	kfile_end(file[0], false);
	end();
}

/* Those that were stored have something to be synced, once. */
Test(locks, so_does_a_sync_of_what_was_stored)
{
	struct noted noted = { .n = 0 };

	begin(&(struct rig_options){ .devices = 0 }, CACHED * GAIA_CHUNK);
	for (unsigned k = 0; k < CACHED; k++)
		carry_out(kf->cfile, &(struct request){ "", WRITE_DIRECT, k * GAIA_CHUNK_PAGES, 0 });
	cr_assert_eq(cache_flush(kf->cfile), 0);
	noting = &noted;
	cr_assert_eq(cache_fsync(kf->cfile, 0, 0, false), 0);
	noting = NULL;
	cr_assert_eq(chunks_locked(kf->cfile, &noted), CACHED);
	noted = sync_of_a_page(kf, NULL, false);
	cr_assert_eq(chunks_locked(kf->cfile, &noted), 1);
	end();
}
