/*
 * cache_evictions.c - room on devices: for an acquire that is to come (GAIA_PROT_PIN), for one whose chunks others have to
 * give up first, and for one that was promised it.
 */
#include "base/counters.h"
#include "base/fault.h"
#include "cache_acquires.h"
#include "cache_mute.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/stranded.h"

/* ---- room for acquires to come ---- */

static int pin(struct client *cl, uint64_t off, uint64_t len, unsigned prot, uint64_t *seq)
{
	return cache_acquire(cl->mapping, off, len, prot, seq, NULL);
}

Test(pin, keeps_chunks_for_the_acquire_to_come)
{
	struct client *cl, *rival;
	uint64_t pinned, seq, sent;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	write_cpu(0, "abc");
	cl = new_client(0);
	rival = new_client(0);
	sent = counter_value(CTR_home_to_device);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &pinned), 0);
	cr_assert_eq(cl->granted, 2, "the chunks were handed over");
	cr_assert_eq(counter_value(CTR_home_to_device), sent, "and nothing in them");
	cr_assert_not_null(client_at(cl, GAIA_CHUNK));
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(client_acquire(rival, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), -ENOMEM);
	/* A release of what is not acquired yet is no end to it. */
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);

	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PINNED, &seq), 0);
	cr_assert_eq(seq, pinned, "and not again");
	cr_assert_eq(cl->granted, 2);
	expect_device(cl, 0, "abc");
	cr_assert_eq(client_acquire(rival, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), -ENOMEM);
	release_all(cl);
	cr_assert_eq(client_acquire(rival, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	end();
}

Test(pin, is_one_for_each_acquire)
{
	struct client *cl;
	uint64_t seq;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 100, GAIA_PROT_READ | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(pin(cl, 5000, 100, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(pin(cl, 0, 100, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), 0);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(pin(cl, 5000, 100, GAIA_PROT_PINNED, &seq), 0);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

static struct eviction {
	struct client *rival;
	pthread_t evictor;
} eviction;

static void *evict_for_rival(void *arg)
{
	cr_assert_eq(client_acquire(eviction.rival, 3 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	return NULL;
}

/* The device is full, and of chunk 2 nothing is held: another thread waits for that to be given up. */
static void begin_eviction(void)
{
	eviction.rival = new_client(0);
	give_up_slowly();
	cr_assert_eq(pthread_create(&eviction.evictor, NULL, evict_for_rival, NULL), 0);
	sem_wait(&giving_up.asked);
}

static void end_eviction(void)
{
	sem_post(&giving_up.go_on);
	pthread_join(eviction.evictor, NULL);
	rig->before_revoke = NULL;
}

/* As when the client cannot unmap before its stream, which waits for the acquire, has gone on. */
Test(pin, lets_the_acquire_wait_for_nobody_who_evicts, .timeout = 60)
{
	struct client *cl, *dead;
	uint64_t seq;
	char seen[4];

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 3 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	dead = new_client(0);
	cr_assert_eq(client_acquire(cl, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	release_all(cl);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(client_acquire(dead, 0, 1, GAIA_PROT_RW), 0);
	client_store(dead, "lost", 4, 0);
	client_die(dead);
	begin_eviction();
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PINNED, &seq), 0);
	/* What is held is acquired again as freely. */
	cr_assert_eq(client_acquire(cl, 0, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(client_acquire(cl, 1, 1, GAIA_PROT_RW), 0);
	/* And a death is seen all the same. */
	client_store(cl, "kept", 4, GAIA_PAGE);
	cr_assert_eq(client_release(cl, 0, 2 * GAIA_CHUNK), 0);
	cr_assert_eq(cpu_read(kf, seen, 4, 0), 4);
	cr_assert_eq(memcmp(seen, (char[4]){ 0 }, 4), 0, "%.4s", seen);
	expect_cpu(GAIA_PAGE, "kept");
	end_eviction();
	end();
}

Test(pin, of_what_lies_beyond_the_end_does_so_too, .timeout = 60)
{
	struct client *cl, *other;
	uint64_t seq;
	char seen[7];

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 3 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	other = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 3 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_all(cl);
	cr_assert_eq(cpu_truncate(kf, 100), 0);
	/* The client maps chunk 1, and goes on mapping it, though the file does not reach there now. */
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
	begin_eviction();
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PINNED, &seq), 0);
	client_store(cl, "private", 7, GAIA_CHUNK);
	end_eviction();
	cr_assert_eq(client_acquire(other, GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(cpu_read(kf, seen, 7, GAIA_CHUNK), 7);
	cr_assert_eq(memcmp(seen, (char[7]){ 0 }, 7), 0);
	cr_assert_eq(client_release(cl, 0, 2 * GAIA_CHUNK), 0);
	expect_cpu(GAIA_CHUNK, "private");
	end();
}

/* The file has grown between the two: the first holds chunk 0 only. */
Test(pin, takes_none_of_what_another_of_the_same_range_holds)
{
	struct client *cl;
	uint64_t seq;

	begin_devices(1);
	cr_assert_eq(cpu_truncate(kf, GAIA_CHUNK), 0);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(cpu_truncate(kf, 2 * GAIA_CHUNK), 0);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), 0);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, GAIA_CHUNK, GAIA_CHUNK), -EBUSY, "the second one's");
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), 0);
	cr_assert_not_null(client_at(cl, GAIA_CHUNK));
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(pin, is_needed_for_an_acquire_that_says_so_and_there_are_not_any_number)
{
	struct client *cl;
	uint64_t seq;
	int err = 0;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), -EINVAL);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_PINNED, &seq), -EINVAL);
	for (unsigned n = 0; n <= 4096 && !err; n++)
		err = pin(cl, 0, 1, GAIA_PROT_READ | GAIA_PROT_PIN, &seq);
	cr_assert_eq(err, -EAGAIN);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), 0);
	client_end(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(pin, is_for_the_acquire_of_just_that_range)
{
	struct client *cl;
	uint64_t seq;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_READ | GAIA_PROT_PIN, &seq), 0);
	cr_assert_eq(pin(cl, 0, GAIA_PAGE, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), -EINVAL);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_PAGE, GAIA_PROT_READ | GAIA_PROT_PINNED, &seq), 0);
	client_end(cl);
	end();
}

Test(pin, stays_when_the_acquire_fails)
{
	struct client *cl;
	uint64_t seq;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	fault_arm("device.copy_in", -EIO, 0, 1);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_RW | GAIA_PROT_PINNED, &seq), -EIO);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EBUSY);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_RW | GAIA_PROT_PINNED, &seq), 0);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(pin, that_cannot_be_had_holds_nothing)
{
	struct client *cl;
	uint64_t seq;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 3 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), -ENOMEM);
	fault_arm("device.export", -EMFILE, 1, 1);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), -EMFILE);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	end();
}

Test(pin, of_a_dead_client_is_in_nobodys_way)
{
	struct client *cl, *rival;
	uint64_t seq;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	rival = new_client(0);
	cr_assert_eq(pin(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	client_die(cl);
	cr_assert_eq(client_acquire(rival, 2 * GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	end();
}

/* ---- clients that are gone, and hold pages that somebody waits with ---- */

static int write_first_page(void *none)
{
	return cpu_write_direct(kf, "x", 1, 1);
}

/* Two have died on a full device of two chunks; the page of the first one's is being read from storage that does not answer. */
static void begin_stuck(struct held *reading)
{
	struct client *first, *second;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	first = new_client(0);
	second = new_client(0);
	write_device(first, 0, "lost");
	write_device(second, GAIA_CHUNK, "lost");
	client_die(first);
	client_die(second);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	*reading = (struct held){ .point = "store.read", .call = write_first_page };
	held_begin(reading);
}

static void *acquire_chunk_3(void *cl)
{
	cr_assert_eq(client_acquire(cl, 3 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	return NULL;
}

/* Of those who wait for the first page. */
static unsigned waiting_for_page(void)
{
	struct chunk *ch = chunk_get(kf->cfile, 0, false);
	unsigned n;

	pthread_mutex_lock(&ch->lock);
	n = page_at(ch, 0)->lockers;
	pthread_mutex_unlock(&ch->lock);
	chunk_put(ch);
	return n;
}

Test(dead, client_whose_page_is_waited_for_keeps_no_other_room, .timeout = 60)
{
	struct held reading;

	begin_stuck(&reading);
	cr_assert_eq(client_acquire(new_client(0), 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(held_end(&reading), 0);
	end();
}

Test(dead, client_whose_page_is_waited_for_holds_up_only_those_who_need_its_room, .timeout = 60)
{
	struct client *cl;
	struct held reading;
	pthread_t other;

	begin_stuck(&reading);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(pthread_create(&other, NULL, acquire_chunk_3, new_client(0)), 0);
	while (waiting_for_page() == 0)
		sched_yield();
	cr_assert_eq(cache_evict(kf->cfile, 0, 2 * GAIA_CHUNK, GAIA_CHUNK), -EBUSY);
	release_all(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 2 * GAIA_CHUNK, GAIA_CHUNK), 0);
	cr_assert_eq(held_end(&reading), 0);
	pthread_join(other, NULL);
	end();
}

/* What it held goes on in the next chunk, whose room is to be had. */
Test(dead, client_that_held_pages_of_two_chunks_keeps_the_one_that_is_waited_for, .timeout = 60)
{
	struct held reading = { .point = "store.read", .call = write_first_page };
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	client_die(cl);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	held_begin(&reading);
	cr_assert_eq(client_acquire(new_client(0), 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(held_end(&reading), 0);
	end();
}

/* ---- memory of a device that cannot take it back, with clients that do not give it up ---- */

/* A client that maps the first @n chunks, holds none of them, and keeps them. */
static struct client *begin_hoarding(unsigned device_chunks, unsigned n, uid_t uid)
{
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = device_chunks }, 4 * GAIA_CHUNK);
	rig->cache->dev[0].dev->inherited = false;
	rig->user = (struct cache_user){ .uid = uid, .owner = uid == 0 };
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, n * GAIA_CHUNK, GAIA_PROT_RW), 0);
	release_all(cl);
	cl->hoards = true;
	return cl;
}

static bool reap(void)
{
	struct cache_device *dev = &rig->cache->dev[0];

	return stranded_reap(dev, stranded_count(dev));
}

Test(stranded, memory_is_used_until_its_client_has_ended)
{
	struct client *cl;

	begin_hoarding(2, 1, 0);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	release_all(cl);
	/* The chunk that was not used for longest is of no use, and so the other leaves, too. */
	cr_assert_eq(client_acquire(cl, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 3 * GAIA_CHUNK, 1, GAIA_PROT_READ), -ENOMEM);
	atomic_store(&rig->hoarders_live[0], false);
	rig_importers_gone();
	cr_assert_eq(client_acquire(cl, 3 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	end();
}

Test(stranded, memory_counts_for_its_clients_user)
{
	struct client *cl;

	begin_hoarding(4, 2, 1000);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	cl = new_client(0);
	/* A user may have three of them. */
	cr_assert_eq(client_acquire(cl, 0, 2 * GAIA_CHUNK, GAIA_PROT_READ), -ENOMEM);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	atomic_store(&rig->hoarders_live[0], false);
	rig_importers_gone();
	cr_assert_eq(client_acquire(cl, GAIA_CHUNK, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	end();
}

/* Of a client that is disconnected for another reason, and lives: the chunk has other memory then. */
Test(stranded, memory_that_was_replaced_is_used_as_well)
{
	struct client *cl = begin_hoarding(4, 1, 0);

	cl->kept = true;
	client_die(cl);
	client_end(cl);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	pthread_rwlock_wrlock(&rig->cache->round); /* not the flusher */
	cr_assert_not(reap());
	atomic_store(&rig->hoarders_live[0], false);
	cr_assert(reap());
	pthread_rwlock_unlock(&rig->cache->round);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	end();
}

/* Whatever it keeps. The flusher asks by itself now and then: not meanwhile. */
Test(stranded, memory_costs_one_question_for_each_process)
{
	begin_hoarding(8, 3, 0);
	pthread_rwlock_wrlock(&rig->cache->round);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 3 * GAIA_CHUNK);
	cr_assert_eq(rig->processes_looked_up, 1);
	cr_assert_not(reap());
	cr_assert_eq(rig->processes_asked, 1);
	atomic_store(&rig->hoarders_live[0], false);
	cr_assert(reap());
	cr_assert_eq(rig->processes_asked, 2);
	cr_assert_eq(rig_device_used(rig, 0), 0);
	cr_assert_not(reap());
	cr_assert_eq(rig->processes_asked, 2, "there is none any more");
	pthread_rwlock_unlock(&rig->cache->round);
	end();
}

Test(stranded, memory_is_used_until_all_its_clients_have_ended)
{
	struct client *first = begin_hoarding(8, 2, 1000), *second;

	first->hoards = false;
	rig->user.uid = 1001;
	second = new_client(0);
	cr_assert_eq(client_acquire(second, GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	release_all(second);
	first->hoards = second->hoards = true;
	second->second = 1;
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cr_assert_eq(rig_device_used(rig, 0), 3 * GAIA_CHUNK);
	cr_assert_eq(rig->cache->dev[0].user_chunks, 3);
	pthread_rwlock_wrlock(&rig->cache->round);
	atomic_store(&rig->hoarders_live[0], false);
	cr_assert(reap());
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK);
	cr_assert_eq(rig->cache->dev[0].user_chunks, 2);
	cr_assert_not(reap());
	atomic_store(&rig->hoarders_live[1], false);
	cr_assert(reap());
	cr_assert_eq(rig_device_used(rig, 0), 0);
	cr_assert_eq(rig->cache->dev[0].user_chunks, 0);
	pthread_rwlock_unlock(&rig->cache->round);
	end();
}

static int reap_all(void *none)
{
	(void)none;
	return reap();
}

/* An acquire needs that memory while another thread is asking, and when that has just found out. */
Test(stranded, memory_is_found_by_all_who_look, .timeout = 60)
{
	struct held first = { .point = "host.process_lives", .call = reap_all };
	struct cache_device *dev;
	struct client *cl;
	uint64_t before;

	begin_hoarding(2, 2, 0);
	/* Not the flusher's question. */
	pthread_rwlock_wrlock(&rig->cache->round);
	dev = &rig->cache->dev[0];
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), -ENOMEM);
	held_begin(&first);
	before = stranded_count(dev);
	atomic_store(&rig->hoarders_live[0], false);
	rig_importers_gone();
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(held_end(&first), true, "the other thread was told as well");
	cr_assert(stranded_reap(dev, before), "so is who looked for room before");
	cr_assert_not(reap());
	pthread_rwlock_unlock(&rig->cache->round);
	end();
}

Test(pin, ends_with_the_mapping)
{
	struct client *cl;
	uint64_t seq;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), 0);
	client_end(cl);
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), 0);
	end();
}

Test(pin, to_write_needs_a_mapping_that_may)
{
	struct client *cl;
	uint64_t seq;

	begin_devices(1);
	cl = client_create(kf, 0, GAIA_PROT_READ, GAIA_CHUNK);
	cr_assert_eq(pin(cl, 0, 1, GAIA_PROT_RW | GAIA_PROT_PIN, &seq), -EACCES);
	end();
}

/* ---- acquires beside an eviction ---- */

/* Of the device's three chunks the first one was released, changed, the second one is held, the third one neither. */
static void begin_full(struct client **writer, struct client **holder)
{
	begin(&(struct rig_options){ .devices = 1, .device_chunks = 3 }, 8 * GAIA_CHUNK);
	*writer = new_client(0);
	*holder = new_client(0);
	write_device(*writer, 0, "released");
	release_all(*writer);
	cr_assert_eq(client_acquire(*holder, GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(client_release(*holder, 2 * GAIA_CHUNK, GAIA_CHUNK), 0);
}

static struct acquire of_chunk(struct client *cl, uint64_t chunk)
{
	return (struct acquire){ .cl = cl, .off = chunk * GAIA_CHUNK, .len = GAIA_PAGE };
}

/* What was released is on its way out of the device. */
static struct held evicting(struct acquire *a)
{
	return (struct held){ .point = "device.copy_out", .call = acquire, .arg = a };
}

Test(eviction, holds_up_nobody_who_needs_what_is_there, .timeout = 60)
{
	struct client *writer, *holder, *other;

	begin_full(&writer, &holder);
	struct acquire needy = of_chunk(new_client(0), 3), again;
	struct held h = evicting(&needy);

	other = new_client(0);
	held_begin(&h);
	expect_device(other, GAIA_CHUNK, "");
	again = of_chunk(other, 2);
	cr_assert_eq(acquire(&again), 0, "nobody has held it");
	cr_assert_eq(cache_evict(kf->cfile, 0, 2 * GAIA_CHUNK, GAIA_CHUNK), -EBUSY);
	release_all(other);
	cr_assert_eq(cache_evict(kf->cfile, 0, 2 * GAIA_CHUNK, GAIA_CHUNK), 0);
	client_end(holder);
	cr_assert_eq(held_end(&h), 0);
	expect_cpu(0, "released");
	end();
}

/* On request, so that there is room for others. */
static int evict_first(void *arg)
{
	return cache_evict(kf->cfile, 0, 0, GAIA_CHUNK);
}

Test(eviction, holds_up_nobody_who_needs_what_is_free, .timeout = 60)
{
	struct held h = { .point = "device.copy_out", .call = evict_first };
	struct client *writer, *holder;

	begin_full(&writer, &holder);
	cr_assert_eq(cache_evict(kf->cfile, 0, 2 * GAIA_CHUNK, GAIA_CHUNK), 0);
	held_begin(&h);
	expect_device(holder, 3 * GAIA_CHUNK, "");
	cr_assert_eq(held_end(&h), 0);
	expect_cpu(0, "released");
	end();
}

Test(eviction, lets_those_unmap_who_mapped_the_chunk, .timeout = 60)
{
	struct client *writer, *holder;

	begin_full(&writer, &holder);
	struct acquire needy = of_chunk(new_client(0), 3);
	struct held h = evicting(&needy);

	held_begin(&h);
	client_end(writer);
	cr_assert_eq(held_end(&h), 0);
	expect_cpu(0, "released");
	end();
}

/* A mapping whose replicas are its own waits for those that are being evicted. */
Test(eviction, of_a_readers_own_chunk_and_its_end_are_no_matter, .timeout = 60)
{
	struct client *reader;

	begin_writable(1);
	reader = new_reader();
	struct acquire needy = of_chunk(new_client(0), 1);
	struct held h = { .point = "evict.before_fetch", .call = acquire, .arg = &needy };

	cr_assert_eq(client_acquire(reader, 0, 1, GAIA_PROT_READ), 0);
	release_all(reader);
	held_begin(&h);
	fault_let_go(h.point);
	client_end(reader);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	end();
}

Test(eviction, is_awaited_by_who_needs_the_chunk, .timeout = 60)
{
	struct client *writer, *holder, *late;
	pthread_t thread;

	begin_full(&writer, &holder);
	late = new_client(0);
	struct acquire needy = of_chunk(new_client(0), 3), same = of_chunk(late, 0);
	struct held h = evicting(&needy);

	held_begin(&h);
	thread = begin_waiting(&same);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(end_waiting(thread), 0);
	expect_device(late, 0, "released");
	end();
}

/* All clients of all the chunks that an acquire needs. */
Test(eviction, asks_all_at_once, .timeout = 60)
{
	struct client *cl[3];

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 4 }, 8 * GAIA_CHUNK);
	for (unsigned k = 0; k < 3; k++) {
		cl[k] = new_client(0);
		cr_assert_eq(client_acquire(cl[k], k * GAIA_CHUNK, (4 - k) * GAIA_CHUNK, GAIA_PROT_READ), 0);
		release_all(cl[k]);
	}
	struct client *needy = client_create(kf, 0, GAIA_PROT_RW, 8 * GAIA_CHUNK);

	cr_assert_eq(client_acquire(needy, 4 * GAIA_CHUNK, 4 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(rig->asked, 1);
	cr_assert_eq(cl[0]->revoked + cl[1]->revoked + cl[2]->revoked, 4 + 3 + 2);
	end();
}

/* ... and no more than that. */
Test(eviction, takes_no_more_than_is_needed)
{
	struct client *cl, *needy;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 4 }, 8 * GAIA_CHUNK);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, 3 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	release_all(cl);
	needy = client_create(kf, 0, GAIA_PROT_RW, 8 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(needy, 2 * GAIA_CHUNK, 3 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(cl->revoked, 1, "of chunk 2 there is one, and one is free");
	end();
}

static int cut_to_nothing(void *arg)
{
	return cpu_truncate(arg, 0);
}

/* It may wait for the store. What is left of that file on the device has been idle for longest. */
Test(eviction, waits_for_no_truncate_of_another_file_where_there_is_other_room, .timeout = 60)
{
	struct held h = { .point = "truncate.before_cut", .call = cut_to_nothing };
	struct kfile *cut;
	struct client *cl;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 4 * GAIA_CHUNK);
	cut = kfile_create(rig, 2, GAIA_CHUNK);
	cl = client_create(cut, 0, GAIA_PROT_READ, GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(client_release(cl, 0, GAIA_CHUNK), 0);
	cl = new_client(0);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(client_release(cl, 0, GAIA_CHUNK), 0);
	h.arg = cut;
	held_begin(&h);
	cr_assert_eq(client_acquire(cl, GAIA_CHUNK, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(held_end(&h), 0);
	end();
}

static bool is_being_evicted(const struct kfile *of)
{
	struct chunk *ch = chunk_get(of->cfile, 0, false);
	bool is;

	cr_assert(ch);
	pthread_mutex_lock(&ch->lock);
	cr_assert_eq(ch->n_replicas, 1);
	pthread_mutex_lock(&ch->replica[0]->dev->lock);
	is = ch->replica[0]->evicting;
	pthread_mutex_unlock(&ch->replica[0]->dev->lock);
	pthread_mutex_unlock(&ch->lock);
	chunk_put(ch);
	return is;
}

static void *acquire_chunk_9(void *cl)
{
	cr_assert_eq(client_acquire(cl, 9 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	return NULL;
}

/* Eight acquires find other room; the next one does not let the file that is being cut keep its memory for ever. */
Test(eviction, waits_for_a_truncate_of_another_file_in_the_end, .timeout = 60)
{
	struct held h = { .point = "truncate.before_cut", .call = cut_to_nothing };
	struct kfile *cut;
	const char *mode = getenv("FAKE_CUDA");
	struct client *cl;
	pthread_t thread;

	/* What is evicted there makes no room. */
	if (mode && strstr(mode, "busy_importers"))
		cr_skip_test("importers keep what is evicted");
	begin(&(struct rig_options){ .devices = 1, .device_chunks = 2 }, 10 * GAIA_CHUNK);
	cut = kfile_create(rig, 2, GAIA_CHUNK);
	cl = client_create(cut, 0, GAIA_PROT_READ, GAIA_CHUNK);
	cr_assert_eq(client_acquire(cl, 0, GAIA_CHUNK, GAIA_PROT_READ), 0);
	cr_assert_eq(client_release(cl, 0, GAIA_CHUNK), 0);
	cl = client_create(kf, 0, GAIA_PROT_RW, 10 * GAIA_CHUNK);
	h.arg = cut;
	held_begin(&h);
	/* The first has the other half of the device. */
	for (unsigned k = 0; k <= 8; k++) {
		cr_assert_eq(client_acquire(cl, k * GAIA_CHUNK, GAIA_CHUNK, GAIA_PROT_READ), 0, "chunk %u", k);
		cr_assert_eq(client_release(cl, k * GAIA_CHUNK, GAIA_CHUNK), 0);
		cr_assert_not(is_being_evicted(cut), "for chunk %u", k);
	}
	cr_assert_eq(pthread_create(&thread, NULL, acquire_chunk_9, cl), 0);
	while (!is_being_evicted(cut))
		sched_yield();
	cr_assert_eq(held_end(&h), 0);
	pthread_join(thread, NULL);
	end();
}

/* ---- clients that do not answer ---- */

/* Device 0 has @n_mute chunks that the mute one maps, and up to @n those that another maps; nothing is held, and one chunk is free. */
static struct client *begin_mute(unsigned n_mute, unsigned n)
{
	struct client *other;
	struct cache_user owner;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = n + 1 }, (n + 12) * GAIA_CHUNK);
	owner = rig->user;
	rig->user = (struct cache_user){ .uid = 1 };
	mute = client_create(kf, 0, GAIA_PROT_RW, (n + 12) * GAIA_CHUNK);
	rig->user = (struct cache_user){ .uid = 2 };
	other = client_create(kf, 0, GAIA_PROT_RW, (n + 12) * GAIA_CHUNK);
	for (unsigned k = 0; k < n; k++) {
		struct client *cl = k < n_mute ? mute : other;

		cr_assert_eq(client_acquire(cl, k * GAIA_CHUNK, 1, GAIA_PROT_RW), 0);
		client_store(cl, "kept", 4, k * GAIA_CHUNK);
		cr_assert_eq(client_release(cl, k * GAIA_CHUNK, 1), 0);
	}
	rig->user = owner;
	atomic_store(&mute_answers, false);
	rig->late = is_mute;
	return other;
}

static void expect_kept(unsigned n)
{
	for (unsigned k = 0; k < n; k++)
		expect_cpu(k * GAIA_CHUNK, "kept");
}

/* The memory of others is taken meanwhile, as much as is needed; and that of the mute one stays, when it has answered. */
Test(mute, is_not_waited_for_where_others_answer, .timeout = 60)
{
	struct client *other = begin_mute(1, 5), *needy = client_create(kf, 0, GAIA_PROT_RW, 12 * GAIA_CHUNK);
	uint64_t evicted = counter_value(CTR_device_evicted);

	cr_assert_eq(client_acquire(needy, 7 * GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(counter_value(CTR_device_evicted), evicted + 1);
	cr_assert_eq(atomic_load(&other->revoked), 2, "more than are needed, since these may be mute, too");
	cr_assert_not_null(client_at(mute, 0), "it has not given it up, and the acquire is done");
	/* What is not needed stays, and is the next to go. */
	cr_assert_eq(client_acquire(needy, 9 * GAIA_CHUNK, 1, GAIA_PROT_RW), 0);
	cr_assert_eq(counter_value(CTR_device_evicted), evicted + 2);
	cr_assert_eq(atomic_load(&other->revoked), 2);
	atomic_store(&mute_answers, true);
	expect_kept(5);
	end();
}

/* If there is no other memory, it is. */
Test(mute, is_waited_for_where_nobody_answers, .timeout = 60)
{
	struct client *other = begin_mute(2, 3), *needy = client_create(kf, 0, GAIA_PROT_RW, 12 * GAIA_CHUNK);
	struct acquire a = { .cl = needy, .off = 4 * GAIA_CHUNK, .len = 4 * GAIA_CHUNK };
	uint64_t evicted = counter_value(CTR_device_evicted);
	pthread_t thread = begin_waiting(&a);

	while (counter_value(CTR_device_evicted) < evicted + 1)
		usleep(1000);
	cr_assert_eq(atomic_load(&other->revoked), 1);
	cr_assert_eq(atomic_load(&mute->revoked), 0);
	atomic_store(&mute_answers, true);
	cr_assert_eq(end_waiting(thread), 0);
	cr_assert_eq(atomic_load(&mute->revoked), 2);
	expect_kept(3);
	end();
}

static void die(void *arg, struct client *cl, uint64_t idx)
{
	(void)arg;
	(void)idx;
	atomic_store(&cl->alive, false);
}

/* Until it is gone: what it released is kept, and its memory is free. */
Test(mute, may_die, .timeout = 60)
{
	struct client *needy;
	struct acquire a;
	pthread_t thread;

	begin_mute(2, 2);
	needy = client_create(kf, 0, GAIA_PROT_RW, 12 * GAIA_CHUNK);
	a = (struct acquire){ .cl = needy, .off = 4 * GAIA_CHUNK, .len = 3 * GAIA_CHUNK };
	thread = begin_waiting(&a);
	rig->before_revoke = die;
	atomic_store(&mute_answers, true);
	cr_assert_eq(end_waiting(thread), 0);
	rig->before_revoke = NULL;
	expect_kept(2);
	end();
}

/* ... or if others' memory is free meanwhile. */
Test(mute, is_waited_for_no_longer_than_that, .timeout = 60)
{
	struct client *other = begin_mute(1, 3), *needy = client_create(kf, 0, GAIA_PROT_RW, 12 * GAIA_CHUNK);
	struct acquire a = { .cl = needy, .off = 4 * GAIA_CHUNK, .len = 2 * GAIA_CHUNK };
	unsigned asked = rig->asked;
	pthread_t thread;

	cr_assert_eq(client_acquire(other, GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_READ), 0);
	thread = begin_waiting(&a);
	while (rig->asked == asked)
		usleep(1000);
	usleep(50000);
	release_all(other);
	cr_assert_eq(end_waiting(thread), 0);
	cr_assert_not_null(client_at(mute, 0));
	atomic_store(&mute_answers, true);
	expect_kept(3);
	end();
}

/* What is cut off the file meanwhile is zeros where it still maps it. */
Test(mute, is_shown_nothing_that_is_gone, .timeout = 60)
{
	struct client *needy;

	begin_mute(1, 5);
	needy = client_create(kf, 0, GAIA_PROT_RW, 12 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(needy, 7 * GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(memcmp(client_at(mute, 0), "kept", 4), 0);
	cr_assert_eq(cpu_truncate(kf, 0), 0);
	cr_assert_eq(memcmp(client_at(mute, 0), "\0\0\0\0", 4), 0);
	atomic_store(&mute_answers, true);
	end();
}

/* Chunks that the device's clients have not given up in time. */
static unsigned n_late(void)
{
	struct cache_device *dev = &rig->cache->dev[0];
	uint64_t late;

	pthread_mutex_lock(&dev->lock);
	late = dev->late;
	pthread_mutex_unlock(&dev->lock);
	return late / GAIA_CHUNK;
}

/* Once it is known to be late no more of what it maps is asked for, while there is other memory: of chunks that are ready, too. */
static void expect_one_late(bool ready)
{
	struct client *needy;

	begin_mute(8, 12);
	needy = client_create(kf, 0, GAIA_PROT_RW, 24 * GAIA_CHUNK);
	if (ready) {
		cr_assert_eq(client_acquire(needy, 8 * GAIA_CHUNK, 4 * GAIA_CHUNK, GAIA_PROT_READ), 0);
		cr_assert_eq(client_release(needy, 8 * GAIA_CHUNK, 4 * GAIA_CHUNK), 0);
		cr_assert_eq(rig->cache->dev[0].n_idle_ready, 4);
	}
	cr_assert_eq(client_acquire(needy, 14 * GAIA_CHUNK, 3 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(n_late(), 2);
	atomic_store(&mute_answers, true);
	expect_kept(12);
	end();
}

Test(mute, costs_one_round, .timeout = 60)
{
	expect_one_late(false);
}

Test(mute, costs_one_round_where_others_are_ready, .timeout = 60)
{
	expect_one_late(true);
}

static struct client *slow;
static atomic_bool slow_answers;

static bool is_mute_or_slow(void *arg, const struct client *cl)
{
	return is_mute(arg, cl) || (cl == slow && !atomic_load(&slow_answers));
}

/* However many chunks of another user's client are late, too. */
Test(mute, keeps_nobody_from_being_heard, .timeout = 60)
{
	struct client *needy;
	struct acquire a;
	pthread_t thread;

	slow = begin_mute(16, 22);
	rig->late = is_mute_or_slow;
	needy = client_create(kf, 0, GAIA_PROT_RW, 34 * GAIA_CHUNK);
	a = (struct acquire){ .cl = needy, .off = 24 * GAIA_CHUNK, .len = 2 * GAIA_CHUNK };
	thread = begin_waiting(&a);
	while (n_late() < 22)
		usleep(1000);
	atomic_store(&slow_answers, true);
	cr_assert_eq(end_waiting(thread), 0);
	cr_assert_eq(atomic_load(&mute->revoked), 0);
	atomic_store(&mute_answers, true);
	expect_kept(22);
	end();
}

/* A chunk that clients of two users map is late until both have answered. */
Test(mute, shares_a_chunk, .timeout = 60)
{
	struct client *other = begin_mute(1, 3), *needy = client_create(kf, 0, GAIA_PROT_RW, 15 * GAIA_CHUNK);
	struct acquire a = { .cl = needy, .off = 4 * GAIA_CHUNK, .len = 4 * GAIA_CHUNK };
	pthread_t thread;

	cr_assert_eq(client_acquire(other, 0, 1, GAIA_PROT_READ), 0);
	release_all(other);
	thread = begin_waiting(&a);
	while (atomic_load(&other->revoked) < 3)
		usleep(1000);
	cr_assert_eq(atomic_load(&mute->revoked), 0);
	atomic_store(&mute_answers, true);
	cr_assert_eq(end_waiting(thread), 0);
	cr_assert_eq(atomic_load(&mute->revoked), 1);
	cr_assert_eq(atomic_load(&other->revoked), 3);
	expect_kept(3);
	end();
}

/* It answers once each time that somebody looks. */
static bool is_steady(void *arg, const struct client *cl)
{
	static atomic_uint seen;

	(void)arg;
	(void)cl;
	return atomic_exchange(&seen, rig->looks) == rig->looks;
}

/* ... and is waited for; no more is taken than is needed. */
Test(mute, is_not_who_answers_one_after_the_other, .timeout = 60)
{
	struct client *other = begin_mute(0, 8), *needy = client_create(kf, 0, GAIA_PROT_RW, 20 * GAIA_CHUNK);
	uint64_t evicted = counter_value(CTR_device_evicted);

	rig->late = is_steady;
	cr_assert_eq(client_acquire(needy, 9 * GAIA_CHUNK, 5 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(atomic_load(&other->revoked), 4);
	cr_assert_eq(counter_value(CTR_device_evicted), evicted + 4);
	expect_kept(8);
	end();
}

/* ---- what is promised to an acquire ---- */

/* Neither to later acquires nor to snapshots. */
Test(promise, is_given_to_nobody_else, .timeout = 60)
{
	struct client *writer, *holder, *thief;
	uint64_t snapshots, fetched;

	begin_full(&writer, &holder);
	/* Else what is released of this page is fetched at once: somebody goes on writing it. */
	cr_assert_eq(client_release(holder, GAIA_CHUNK, GAIA_PAGE), 0);
	thief = new_client(0);
	struct acquire needy = { .cl = new_client(0), .off = 2 * GAIA_CHUNK, .len = 2 * GAIA_CHUNK };
	struct held h = { .point = "device.alloc", .call = acquire, .arg = &needy };

	write_device(holder, GAIA_CHUNK, "first");
	cr_assert_eq(client_release(holder, GAIA_CHUNK, GAIA_PAGE), 0);
	cr_assert_eq(client_acquire(holder, GAIA_CHUNK, 2 * GAIA_PAGE, GAIA_PROT_READ), 0);
	held_begin(&h);
	cr_assert_eq(rig_device_used(rig, 0), 2 * GAIA_CHUNK, "there is room");
	cr_assert_eq(client_acquire(thief, 0, 1, GAIA_PROT_READ), -ENOMEM);
	snapshots = counter_value(CTR_device_snapshots);
	fetched = counter_value(CTR_device_to_home);
	write_device(holder, GAIA_CHUNK, "later");
	cr_assert_eq(counter_value(CTR_device_snapshots), snapshots);
	cr_assert_eq(counter_value(CTR_device_to_home), fetched + 1);
	expect_cpu(GAIA_CHUNK, "first");
	cr_assert_eq(held_end(&h), 0);
	release_all(holder);
	expect_cpu(GAIA_CHUNK, "later");
	end();
}

/* Two acquires that need one chunk need it once. */
Test(promise, is_shared_by_all_who_need_the_chunk, .timeout = 60)
{
	struct client *writer, *holder;
	pthread_t thread;

	begin_full(&writer, &holder);
	cr_assert_eq(client_acquire(holder, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	struct acquire needy = of_chunk(new_client(0), 3), same = of_chunk(new_client(0), 3);
	struct held h = evicting(&needy);

	held_begin(&h);
	thread = begin_waiting(&same);
	cr_assert_eq(held_end(&h), 0);
	cr_assert_eq(end_waiting(thread), 0);
	cr_assert_eq(rig_device_used(rig, 0), 3 * GAIA_CHUNK);
	end();
}

Test(promise, that_is_broken_is_for_the_next_to_try, .timeout = 60)
{
	struct client *writer, *holder;
	pthread_t thread;

	begin_full(&writer, &holder);
	cr_assert_eq(client_acquire(holder, 2 * GAIA_CHUNK, 1, GAIA_PROT_READ), 0);
	struct acquire needy = of_chunk(new_client(0), 3), same = of_chunk(new_client(0), 3);
	struct held h = evicting(&needy);

	fault_arm(h.point, -EIO, 0, 1);
	held_begin(&h);
	thread = begin_waiting(&same);
	cr_assert_eq(held_end(&h), -ENOMEM, "what was to go could not be fetched");
	cr_assert_eq(end_waiting(thread), 0, "now it could");
	expect_cpu(0, "released");
	end();
}

/* Of what does not fit nothing is evicted. */
Test(promise, is_of_all_or_nothing)
{
	struct client *writer, *holder, *greedy;

	begin_full(&writer, &holder);
	greedy = client_create(kf, 0, GAIA_PROT_RW, 8 * GAIA_CHUNK);
	cr_assert_eq(client_acquire(greedy, 3 * GAIA_CHUNK, 3 * GAIA_CHUNK, GAIA_PROT_RW), -ENOMEM);
	cr_assert_eq(writer->revoked + holder->revoked, 0);
	cr_assert_eq(client_acquire(greedy, 3 * GAIA_CHUNK, 2 * GAIA_CHUNK, GAIA_PROT_RW), 0);
	cr_assert_eq(writer->revoked + holder->revoked, 2);
	end();
}
