/*
 * cache_slots.c - equal pages that left home with one frame are parked in one slot: they are copied once, and each can change.
 *
 * In most scenes all pages are looked for, the policy wants everything, and the store is dear (fault points). Files of all users share, since
 * whose a file is is not asked for pages that come from devices; except in the scene that is about that.
 */
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "cache_scene.h"
#include "held.h"
#include "pagecache/cache.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/root.h"
#include "pagecache/shares.h"
#include "pagecache/victim_inner.h"
#include "policy/ghosts.h"

#define AT(page) ((uint64_t)(page) * GAIA_PAGE)
#define PAGES 600u /* of two chunks */
#define KINDS 3u
/* A slot has so many pages at most. */
#define SLOTS_FOR(pages, kinds) ((kinds) * (((pages) / (kinds) + SHARERS_MOST - 1) / SHARERS_MOST))

/* Equal pages, where nothing is read ahead. */
#define FIRST 300u
#define OTHER 93u

static char bytes[AT(PAGES)], seen[AT(PAGES)];

static void mark(unsigned page, unsigned kind)
{
	for (unsigned i = 0; i < GAIA_PAGE; i += sizeof(unsigned))
		*(unsigned *)(bytes + AT(page) + i) = kind + 1 + i;
}

#include "parked_pages.h"

static void read_page(unsigned page)
{
	cr_assert_eq(cpu_read_direct(kf, seen, GAIA_PAGE, AT(page)), (ssize_t)GAIA_PAGE);
	cr_assert_eq(memcmp(seen, bytes + AT(page), GAIA_PAGE), 0);
}

static void write_page(unsigned page, unsigned kind)
{
	mark(page, kind);
	cr_assert_eq(cpu_write_direct(kf, bytes + AT(page), GAIA_PAGE, AT(page)), 0);
}

/* What left home lately is forgotten. */
static void forget_ghosts(void)
{
	struct victims *v = rig->cache->victims;

	pthread_mutex_lock(&v->lock);
	for (uint64_t key = 0; key < 4 * (rig->cache->frames.budget + 3 * GAIA_CHUNK_PAGES); key++)
		ghosts_add(v->ghosts, key + (1ull << 60));
	pthread_mutex_unlock(&v->lock);
}

static struct {
	uint64_t pages, slots, shared;
} now;

static void look(void)
{
	struct victims *v = rig->cache->victims;
	uint32_t slabs = v->dev[v->n_devices - 1].first + v->dev[v->n_devices - 1].room;

	pthread_mutex_lock(&v->lock);
	now.pages = v->n_parked;
	now.shared = v->n_shared;
	now.slots = 0;
	for (uint32_t i = 0; i < slabs; i++)
		now.slots += v->slab[i] ? v->slab[i]->n_taken : 0;
	pthread_mutex_unlock(&v->lock);
}

#define expect_parked(n_pages, n_slots)       \
	do {                                  \
		look();                       \
		cr_assert_eq(now.pages, n_pages); \
		cr_assert_eq(now.slots, n_slots); \
		cr_assert_eq(now.shared, now.pages - now.slots); \
	} while (0)

/* 0: it is not parked. */
static uint32_t slot_of_page(struct kfile *file, unsigned page)
{
	struct victims *v = rig->cache->victims;
	struct chunk *ch = chunk_get(file->cfile, page / GAIA_CHUNK_PAGES, false);
	const uint32_t *at;
	uint32_t slot;

	if (!ch)
		return 0;
	pthread_mutex_lock(&ch->lock);
	pthread_mutex_lock(&v->lock);
	at = index_at(ch->parked, page % GAIA_CHUNK_PAGES);
	slot = at ? *at : 0;
	pthread_mutex_unlock(&v->lock);
	pthread_mutex_unlock(&ch->lock);
	chunk_put(ch);
	return slot;
}

static uint64_t state_of(uint32_t slot)
{
	struct victims *v = rig->cache->victims;
	uint64_t state;

	pthread_mutex_lock(&v->lock);
	state = *slot_owner(v, slot);
	pthread_mutex_unlock(&v->lock);
	return state;
}

static unsigned pages_of(uint32_t slot)
{
	struct victims *v = rig->cache->victims;
	unsigned n;

	pthread_mutex_lock(&v->lock);
	(void)owner_pages(slot_owner(v, slot), &n);
	pthread_mutex_unlock(&v->lock);
	return n;
}

static void want_all(void)
{
	fault_arm("dedup.all", -EEXIST, 0, 0);
	fault_arm("park.all", -ENOSPC, 0, 0);
	fault_arm("source.store_is_dear", -ENOSPC, 0, 0);
}

/* All pages are on the device, and none is home; they have left it together, so equal ones with one frame. */
static void park_all(void)
{
	want_all();
	look();
	for (unsigned tries = 0; now.pages < PAGES; tries++) {
		cr_assert_lt(tries, 10000u, "%lu pages are parked", now.pages);
		read_all();
		forget_home();
		settle();
		sched_yield();
		look();
	}
	/* Now there is room for all at once; except in batches, if no two are equal. */
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
	do {
		read_all();
		forget_home();
		settle();
		look();
	} while (now.pages < PAGES);
}

static void begin_kinds(struct rig_options options, unsigned kinds)
{
	options.devices = 1;
	options.device_cache = options.device_cache ? options.device_cache : 3 * GAIA_CHUNK;
	options.dedup = options.dedup ? options.dedup : CACHE_DEDUP_ALL_USERS;
	begin(&options, sizeof(bytes));
	for (unsigned i = 0; i < PAGES; i++)
		mark(i, i % kinds);
	cr_assert_eq(cpu_write_direct(kf, bytes, sizeof(bytes), 0), 0);
	forget_home();
}

static void begin_parked(unsigned kinds)
{
	begin_kinds((struct rig_options){ .devices = 1 }, kinds);
	park_all();
	expect_parked(PAGES, SLOTS_FOR(PAGES, kinds));
}

static struct {
	uint64_t store, hits, joined, in, dropped;
} before;

static void count_from_here(void)
{
	before.store = counter_value(CTR_storage_reads);
	before.hits = counter_value(CTR_victim_hits);
	before.joined = counter_value(CTR_dedup_parked);
	before.in = counter_value(CTR_device_bytes_in);
	before.dropped = counter_value(CTR_victim_dropped);
}

/*
 * All pages leave home again, together, for slots that they do not have yet; @first is called right before that. It happens once, unless a thread
 * of the cache's sends what there is of both batches meanwhile: then there is none for the rest.
 */
static void park_anew(void (*first)(void))
{
	unsigned tries = 0;

	do {
		cr_assert_lt(tries++, 100u, "%lu pages are parked", now.pages);
		cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
		read_all();
		first();
		forget_home();
		settle();
		look();
	} while (now.pages < PAGES);
}

#define rise(what, name) (counter_value(CTR_##name) - before.what)

Test(slots, have_equal_pages_once)
{
	begin_parked(KINDS);
	cr_assert_eq(victims_saved(rig->cache), PAGES - SLOTS_FOR(PAGES, KINDS));
	count_from_here();
	read_all();
	cr_assert_eq(rise(store, storage_reads), 0);
	cr_assert_eq(rise(hits, victim_hits), PAGES);
	settle();
	/* Nothing has changed: the slots are good for the next time. */
	forget_home();
	settle();
	expect_parked(PAGES, SLOTS_FOR(PAGES, KINDS));
	cr_assert_eq(rise(joined, dedup_parked), 0);
	/* And they are copied there once. */
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
	expect_parked(0, 0);
	cr_assert_eq(rise(dropped, victim_dropped), PAGES);
	park_anew(count_from_here);
	cr_assert_eq(rise(in, device_bytes_in), AT(SLOTS_FOR(PAGES, KINDS)));
	cr_assert_eq(rise(joined, dedup_parked), PAGES - SLOTS_FOR(PAGES, KINDS));
	end();
}

/* Not hashed again when they come home; but what has changed is. */
Test(slots, know_the_tags_of_their_pages)
{
	uint64_t hashed;

	begin_parked(KINDS);
	count_from_here();
	hashed = counter_value(CTR_dedup_hashed);
	read_all();
	cr_assert_eq(rise(hits, victim_hits), PAGES);
	cr_assert_eq(counter_value(CTR_dedup_hashed), hashed);
	cr_assert_eq(rig_frames(rig), KINDS);

	/* The page leaves home with a frame that nobody has looked for. */
	write_page(FIRST, KINDS);
	forget_home();
	settle();
	cr_assert_eq(counter_value(CTR_dedup_hashed), hashed);
	count_from_here();
	read_all();
	cr_assert_eq(rise(hits, victim_hits), PAGES);
	cr_assert_eq(counter_value(CTR_dedup_hashed), hashed + 1);
	cr_assert_eq(rig_frames(rig), KINDS + 1);
	forget_home();
	read_all();
	cr_assert_eq(counter_value(CTR_dedup_hashed), hashed + 1);
	end();
}

/* A tag only says what is worth comparing. */
Test(slots, with_wrong_tags_have_pages_that_share_with_none_but_equal_ones)
{
	uint64_t hashed;

	begin_parked(KINDS);
	for (unsigned i = 0; i < PAGES; i++) {
		uint32_t slot = slot_of_page(kf, i);

		pthread_mutex_lock(&rig->cache->victims->lock);
		slot_note_tag(rig->cache->victims, slot, 1);
		pthread_mutex_unlock(&rig->cache->victims->lock);
	}
	hashed = counter_value(CTR_dedup_hashed);
	read_all();
	cr_assert_eq(counter_value(CTR_dedup_hashed), hashed);
	cr_assert_eq(rig_frames(rig), KINDS);
	end();
}

Test(slots, have_zeros_once)
{
	begin(&(struct rig_options){ .devices = 1, .device_cache = 3 * GAIA_CHUNK, .dedup = CACHE_DEDUP_HOME }, sizeof(bytes));
	park_all();
	expect_parked(PAGES, SLOTS_FOR(PAGES, 1));
	read_all();
	end();
}

Test(slots, are_of_one_page_each_where_frames_are_not_shared)
{
	begin(&(struct rig_options){ .devices = 1, .device_cache = 3 * GAIA_CHUNK }, sizeof(bytes));
	park_all();
	expect_parked(PAGES, PAGES);
	cr_assert_eq(victims_saved(rig->cache), 0);
	end();
}

Test(slots, stay_for_the_others_when_a_page_changes)
{
	uint32_t slot;
	unsigned n;

	begin_parked(KINDS);
	slot = slot_of_page(kf, 0);
	n = pages_of(slot);
	cr_assert_eq(n, SHARERS_MOST);
	/* One after the other, from both ends of the list and from within. */
	for (unsigned k = 0; k + 1 < n; k++) {
		unsigned page = KINDS * (k % 3 == 0 ? k / 3 : k % 3 == 1 ? n - 1 - k / 3 : n / 3 + k / 3);

		if (slot_of_page(kf, page) != slot)
			continue;
		count_from_here();
		write_page(page, 1000 + k);
		cr_assert_eq(slot_of_page(kf, page), 0);
		cr_assert_eq(rise(dropped, victim_dropped), 1);
		settle();
	}
	for (unsigned page = 0; pages_of(slot) > 1; page += KINDS)
		if (slot_of_page(kf, page) == slot)
			write_page(page, 2000 + page);
	cr_assert_eq(state_of(slot) & OWNER_MANY, 0);
	settle();
	/* The last one has it alone, and is as it was. */
	for (unsigned page = 0; page < n * KINDS; page += KINDS) {
		if (slot_of_page(kf, page) != slot)
			continue;
		count_from_here();
		read_page(page);
		cr_assert_eq(rise(hits, victim_hits), 1);
		settle();
		write_page(page, 3000);
	}
	cr_assert_eq(state_of(slot), 0);
	read_all();
	end();
}

Test(slots, of_what_is_cut_off_stay_for_the_others)
{
	begin_parked(KINDS);
	cr_assert_eq(cpu_truncate(kf, AT(300) + 10), 0);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, AT(20), AT(30)), 0);
	look();
	cr_assert_eq(now.pages, 300 - 30);
	settle();
	cr_assert_eq(cpu_truncate(kf, AT(PAGES)), 0);
	memset(bytes + AT(300) + 10, 0, sizeof(bytes) - AT(300) - 10);
	memset(bytes + AT(20), 0, AT(30));
	read_all();
	settle();
	forget_home();
	settle();
	read_all();
	end();
}

Test(slots, are_spare_when_all_their_pages_are_home)
{
	uint32_t slot;

	begin_parked(KINDS);
	slot = slot_of_page(kf, 0);
	for (unsigned page = 0; page < PAGES; page++) {
		cr_assert_eq(state_of(slot) & OWNER_BACK, 0, "before page %u", page);
		if (slot_of_page(kf, page) != slot)
			continue;
		read_page(page);
		if (page == (SHARERS_MOST - 1) * KINDS)
			break;
	}
	settle();
	cr_assert_neq(state_of(slot) & OWNER_BACK, 0);
	/* One leaves again. */
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, AT(3), AT(1)), 0);
	cr_assert_eq(state_of(slot) & OWNER_BACK, 0);
	settle();
	/* And it is the only one that is not home; then it is none of the slot's. */
	write_page(3, 1000);
	cr_assert_neq(state_of(slot) & OWNER_BACK, 0);
	settle();
	end();
}

/* Frames that had one content have another one, while slots have the first still. */
static void use_frames_again(void)
{
	for (unsigned k = 1; k <= 6; k++) {
		for (unsigned i = k % 2; i < PAGES; i += 2 + k % 2)
			write_page(i, 100 * k + i % (KINDS + k));
		forget_home();
		read_all();
		settle();
		forget_home();
		settle();
		read_all();
		for (unsigned i = k % 3; i < PAGES; i += 3)
			write_page(i, 1000 * k + i % KINDS);
		forget_home();
		read_all();
		settle();
		forget_home();
		settle();
	}
}

Test(slots, are_not_those_of_what_a_frame_had_before)
{
	begin_parked(KINDS);
	use_frames_again();
	read_all();
	end();
}

/* They have had one frame, the first is parked, the other is home. Returns the slot. */
static uint32_t park_first_of_two(void)
{
	uint32_t slot;

	begin_parked(KINDS);
	/* Its slabs do not change any more: so the first free slot is the next one to be had. */
	while (victim_bytes(&rig->cache->dev[0]) < 3 * GAIA_CHUNK)
		sched_yield();
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
	read_page(FIRST);
	read_page(OTHER);
	cr_assert_eq(rig_frames(rig), 1u);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, AT(FIRST), AT(1)), 0);
	settle();
	slot = slot_of_page(kf, FIRST);
	cr_assert_neq(slot, 0u);
	return slot;
}

Test(slots, are_not_those_of_a_page_that_had_the_slot_before)
{
	uint32_t slot = park_first_of_two();

	write_page(FIRST, 1000);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(state_of(slot), 0);
	/* It is parked there again, with other bytes, and in a frame that nobody looks for. */
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, AT(FIRST), AT(1)), 0);
	settle();
	cr_assert_eq(slot_of_page(kf, FIRST), slot);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, AT(OTHER), AT(1)), 0);
	settle();
	cr_assert_neq(slot_of_page(kf, OTHER), slot);
	read_page(OTHER);
	read_page(FIRST);
	end();
}

Test(slots, are_not_those_of_a_page_that_has_changed_in_its_frame)
{
	uint32_t slot = park_first_of_two();

	write_page(OTHER, 1000);
	cr_assert_eq(rig_frames(rig), 1u);
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, AT(OTHER), AT(1)), 0);
	settle();
	cr_assert_neq(slot_of_page(kf, OTHER), slot);
	read_page(OTHER);
	read_page(FIRST);
	end();
}

static int evict_call(void *arg)
{
	(void)arg;
	return cache_evict(kf->cfile, GAIA_FROM_HOME, AT(FIRST), AT(1));
}

/* Something else has written to the directory below: that page may show one or the other, but no other page its former bytes. */
Test(slots, are_not_linked_with_what_the_store_has_by_now)
{
	struct held evict = { .point = "device.copy_in", .call = evict_call };
	struct store_file *sf;
	struct iovec iov = { bytes + AT(OTHER + 1), GAIA_PAGE };
	uint32_t slot;

	begin_kinds((struct rig_options){ .devices = 1 }, KINDS);
	park_all();
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
	read_page(FIRST);
	read_page(OTHER + 1);
	held_begin(&evict);
	slot = slot_of_page(kf, FIRST);
	cr_assert_eq(rig->mem->ops->open(rig->mem, kf->ref, true, &sf), 0);
	sf->ops->write(sf, &iov, 1, AT(FIRST));
	sf->ops->close(sf);
	/* It is under way to the device, and comes from the store all the same. */
	fault_arm("victim.return", -ENOSPC, 0, 0);
	cr_assert_eq(cpu_read_direct(kf, seen, GAIA_PAGE, AT(FIRST)), (ssize_t)GAIA_PAGE);
	cr_assert_arr_eq(seen, bytes + AT(OTHER + 1), GAIA_PAGE);
	cr_assert_eq(rig_frames(rig), 1u);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, AT(FIRST), AT(1)), 0);
	cr_assert_eq(slot_of_page(kf, FIRST), slot);
	cr_assert_eq(held_end(&evict), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, AT(OTHER + 1), AT(1)), 0);
	settle();
	cr_assert_neq(slot_of_page(kf, OTHER + 1), slot);
	read_page(OTHER + 1);
	end();
}

/* Pages that came to be parked apart get into one slot when they leave home with one frame. */
Test(slots, become_one_when_pages_are_seen_to_be_equal)
{
	begin_kinds((struct rig_options){ .devices = 1 }, KINDS);
	fault_arm("victim.sharers", -ENOMEM, 0, 0);
	park_all();
	expect_parked(PAGES, PAGES);
	fault_disarm_all();
	want_all();
	count_from_here();
	/* A slot of each kind gets full at a time; what is in a slot with many others stays there. */
	for (unsigned k = 0; k < 4; k++) {
		read_all();
		settle();
		forget_home();
		settle();
	}
	cr_assert_eq(rise(in, device_bytes_in), 0);
	cr_assert_eq(rise(store, storage_reads), 0);
	expect_parked(PAGES, SLOTS_FOR(PAGES, KINDS));
	cr_assert_eq(rise(dropped, victim_dropped), 0);
	read_all();
	cr_assert_eq(rise(store, storage_reads), 0);
	end();
}

/* They cost nothing there; but they get no slot when that one is full. */
Test(slots, are_joined_by_pages_that_leave_for_the_first_time)
{
	struct kfile *other;
	uint32_t slot;

	begin_parked(KINDS);
	slot = slot_of_page(kf, PAGES - 1);
	/* So that the page is home, and its slot is linked. */
	read_page(PAGES - 1);
	other = kfile_create(rig, 2, sizeof(bytes));
	for (unsigned i = 0; i < PAGES; i++)
		mark(i, KINDS - 1);
	cr_assert_eq(cpu_write_direct(other, bytes, sizeof(bytes), 0), 0);
	/* Nobody has seen these leave. */
	fault_disarm_all();
	fault_arm("dedup.all", -EEXIST, 0, 0);
	cr_assert_eq(cpu_fsync(other), 0);
	cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_HOME, 0, 0), 0);
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert_eq(slot_of_page(other, i), 0u);
	look();
	count_from_here();
	/* Not as ghosts: more others have left since than there is room for. */
	for (unsigned i = 0; i < 3; i++)
		forget_ghosts();
	cr_assert_eq(cpu_read_direct(other, seen, sizeof(seen), 0), (ssize_t)sizeof(seen));
	cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_HOME, 0, 0), 0);
	settle();
	cr_assert_eq(pages_of(slot), SHARERS_MOST);
	cr_assert_eq(rise(in, device_bytes_in), 0);
	look();
	cr_assert_eq(now.slots, SLOTS_FOR(PAGES, KINDS));
	cr_assert_eq(rise(joined, dedup_parked), SHARERS_MOST - PAGES / KINDS % SHARERS_MOST);
	end();
}

/* ---- the places are needed ---- */

Test(slots, that_are_needed_are_forgotten_by_all_their_pages)
{
	static char page[GAIA_PAGE];
	struct kfile *other;

	begin_kinds((struct rig_options){ .device_cache = GAIA_CHUNK }, KINDS);
	park_all();
	expect_parked(PAGES, SLOTS_FOR(PAGES, KINDS));
	/* As many pages as there are slots, which are all different. */
	other = kfile_create(rig, 2, AT(GAIA_CHUNK_PAGES));
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
		memset(page, 0, sizeof(page));
		*(unsigned *)page = i + 1;
		cr_assert_eq(cpu_write_direct(other, page, GAIA_PAGE, AT(i)), 0);
	}
	cr_assert_eq(cpu_fsync(other), 0);
	for (unsigned round = 0; round < 3; round++) {
		cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_HOME, 0, 0), 0);
		settle();
		for (unsigned i = 0; i < GAIA_CHUNK_PAGES; i++) {
			cr_assert_eq(cpu_read_direct(other, page, GAIA_PAGE, AT(i)), (ssize_t)GAIA_PAGE);
			cr_assert_eq(*(unsigned *)page, i + 1);
		}
	}
	look();
	cr_assert_lt(now.pages, PAGES);
	cr_assert_eq(now.slots, GAIA_CHUNK_PAGES);
	read_all();
	forget_home();
	settle();
	read_all();
	end();
}

Test(slots, give_way_to_replicas)
{
	struct client *cl;

	begin_kinds((struct rig_options){ .device_chunks = 2, .device_cache = 2 * GAIA_CHUNK }, KINDS);
	park_all();
	cl = client_create(kf, 0, GAIA_PROT_READ, sizeof(bytes));
	cr_assert_eq(client_acquire(cl, 0, sizeof(bytes), GAIA_PROT_READ), 0);
	client_load(cl, seen, sizeof(bytes), 0);
	cr_assert_arr_eq(seen, bytes, sizeof(bytes));
	cr_assert_eq(victim_bytes(&rig->cache->dev[0]), 0);
	expect_parked(0, 0);
	settle();
	read_all();
	end();
}

/* Else anybody could have what is recorded of them take any amount of memory: with a hole. */
Test(slots, are_shared_by_so_many_pages_at_most)
{
	const unsigned all = 10 * GAIA_CHUNK_PAGES, most = 8 * GAIA_CHUNK_PAGES;
	static char piece[GAIA_CHUNK];

	begin(&(struct rig_options){ .devices = 1, .device_cache = GAIA_CHUNK, .dedup = CACHE_DEDUP_HOME }, AT(all));
	want_all();
	look();
	for (unsigned tries = 0; now.shared < most / 2; tries++) {
		cr_assert_lt(tries, 10000u);
		for (unsigned i = 0; i < 10; i++)
			cr_assert_eq(cpu_read_direct(kf, piece, sizeof(piece), i * GAIA_CHUNK), (ssize_t)sizeof(piece));
		forget_home();
		settle();
		look();
		cr_assert_leq(now.shared, most);
	}
	end();
}

/* What is read once leaves half of that to what comes again. */
Test(slots, leave_room_for_pages_that_come_again)
{
	const unsigned all = 10 * GAIA_CHUNK_PAGES, half = 4 * GAIA_CHUNK_PAGES;
	static char piece[GAIA_CHUNK];
	struct victims *v;
	unsigned page = 0;
	struct chunk *ch;
	uint32_t slot;

	begin(&(struct rig_options){ .devices = 1, .device_cache = GAIA_CHUNK, .dedup = CACHE_DEDUP_HOME }, AT(all));
	want_all();
	look();
	for (unsigned tries = 0; now.shared < half + 2; tries++) {
		cr_assert_lt(tries, 10000u);
		for (unsigned i = 0; i < 10; i++)
			cr_assert_eq(cpu_read_direct(kf, piece, sizeof(piece), i * GAIA_CHUNK), (ssize_t)sizeof(piece));
		forget_home();
		settle();
		look();
	}
	/* A slot that has room. */
	v = rig->cache->victims;
	while (!(slot = slot_of_page(kf, page)) || pages_of(slot) < 3)
		page++;
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, AT(page), AT(1)), 0);
	ch = chunk_get(kf->cfile, page / GAIA_CHUNK_PAGES, false);
	pthread_mutex_lock(&v->lock);
	cr_assert_not(slot_may_join(v, slot, ch->parked, page % GAIA_CHUNK_PAGES, false));
	cr_assert(slot_may_join(v, slot, ch->parked, page % GAIA_CHUNK_PAGES, true));
	pthread_mutex_unlock(&v->lock);
	chunk_put(ch);
	end();
}

/* A page in each leaf of the index costs far more than its place in the list. */
Test(slots, are_not_shared_by_pages_that_are_far_from_each_other_without_end)
{
	const unsigned all = 3 * GAIA_CHUNK_PAGES;
	char page[GAIA_PAGE];

	begin(&(struct rig_options){ .devices = 1, .device_cache = GAIA_CHUNK, .dedup = CACHE_DEDUP_HOME }, AT(all * LEAF_PAGES));
	want_all();
	look();
	for (unsigned tries = 0; tries < 3 || now.pages < GAIA_CHUNK_PAGES; tries++) {
		cr_assert_lt(tries, 10000u);
		for (unsigned i = 0; i < all; i++)
			cr_assert_eq(cpu_read_direct(kf, page, sizeof(page), AT(i * LEAF_PAGES + 7)), (ssize_t)sizeof(page));
		forget_home();
		settle();
		look();
		cr_assert_leq(now.shared, 2 * GAIA_CHUNK_PAGES);
	}
	end();
}

/* What is recorded of pages counts while they are parked, not while others of their chunk are. */
Test(slots, of_pages_that_are_dropped_make_room_for_others)
{
	const unsigned all = 3 * GAIA_CHUNK_PAGES, leaves = GAIA_CHUNK_PAGES / LEAF_PAGES;
	uint64_t most = 2 * GAIA_CHUNK_PAGES, kept = 0;
	char page[GAIA_PAGE];
	struct victims *v;

	begin(&(struct rig_options){ .devices = 1, .device_cache = GAIA_CHUNK, .dedup = CACHE_DEDUP_HOME }, AT(all * LEAF_PAGES));
	want_all();
	v = rig->cache->victims;
	for (unsigned tries = 0; v->n_leaves < most; tries++) {
		cr_assert_lt(tries, 10000u);
		for (unsigned i = 0; i < all; i++)
			cr_assert_eq(cpu_read_direct(kf, page, sizeof(page), AT(i * LEAF_PAGES + 7)), (ssize_t)sizeof(page));
		forget_home();
		settle();
	}
	for (unsigned i = 0; i < all; i++)
		if (i % leaves == 0)
			kept += slot_of_page(kf, i * LEAF_PAGES + 7) != 0;
		else
			cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, AT(i * LEAF_PAGES + 7), GAIA_PAGE), 0);
	cr_assert_gt(kept, 0);
	look();
	cr_assert_eq(now.pages, kept);
	cr_assert_eq(v->n_leaves, kept);
	end();
}

/* ---- what fails, and what is under way ---- */

static int give_up(void *dev)
{
	return victim_give_up(dev);
}

/* Of a slab that is given up so many pages are dropped at a time; meanwhile others are read, and come and go. */
Test(slots, of_a_slab_that_leaves_do_not_keep_others_waiting)
{
	struct held h = { .point = "victim.leaves", .call = give_up };

	begin_kinds((struct rig_options){ .device_cache = GAIA_CHUNK }, KINDS);
	park_all();
	h.arg = &rig->cache->dev[0];
	count_from_here();
	held_begin(&h);
	look();
	cr_assert(now.pages > 0 && now.pages <= PAGES - GAIA_CHUNK_PAGES, "%lu", now.pages);
	read_all();
	cr_assert_gt(rise(hits, victim_hits), 0);
	cr_assert_gt(rise(store, storage_reads), 0);
	/* What will be dropped next is not joined. */
	forget_home();
	read_all();
	cr_assert_eq(rise(joined, dedup_parked), 0);
	cr_assert(held_end(&h));
	expect_parked(0, 0);
	cr_assert_eq(victim_bytes(&rig->cache->dev[0]), 0);
	read_all();
	end();
}

Test(slots, that_do_not_get_there_are_forgotten_by_all_their_pages)
{
	static const char *const points[] = { "device.copy_in", "device.submit" };

	for (unsigned k = 0; k < ARRAY_LEN(points); k++) {
		begin_parked(KINDS);
		cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
		read_all();
		count_from_here();
		fault_arm(points[k], -EIO, 0, 0);
		forget_home();
		settle();
		/* A thread of the cache's may have sent some of them before all had left: then what leaves afterwards takes slots of its own. */
		cr_assert_geq(rise(joined, dedup_parked), PAGES - 4 * SLOTS_FOR(PAGES, KINDS));
		expect_parked(0, 0);
		fault_disarm_all();
		want_all();
		read_all();
		end();
	}
}

Test(slots, that_cannot_be_read_are_forgotten_by_all_their_pages)
{
	uint32_t slot;

	begin_parked(KINDS);
	slot = slot_of_page(kf, FIRST);
	fault_arm("device.copy_out", -EIO, 0, 1);
	read_page(FIRST);
	cr_assert_eq(state_of(slot), 0);
	look();
	cr_assert_eq(now.pages, PAGES - SHARERS_MOST);
	settle();
	read_all();
	forget_home();
	settle();
	read_all();
	end();
}

Test(slots, on_a_device_that_is_lost_cost_nothing)
{
	begin_parked(KINDS);
	for (unsigned i = 0; i < PAGES / 2; i++)
		read_page(i);
	fault_arm("device.submit", -ENODEV, 0, 0);
	fault_arm("device.alloc", -ENODEV, 0, 0);
	/* They leave home in slots of the device, and are not there. */
	forget_home();
	read_all();
	forget_home();
	read_all();
	settle();
	for (unsigned tries = 0; victim_bytes(&rig->cache->dev[0]) > 0; tries++) {
		cr_assert_lt(tries, 60000u);
		usleep(1000);
	}
	expect_parked(0, 0);
	end();
}

static unsigned alone_after;

static void lack_sharers(void)
{
	fault_arm("victim.sharers", -ENOMEM, alone_after, 2);
}

Test(slots, are_had_alone_where_there_is_no_memory_to_share_them)
{
	for (alone_after = 0; alone_after < 12; alone_after++) {
		begin_parked(KINDS);
		park_anew(lack_sharers);
		cr_assert_geq(now.slots, SLOTS_FOR(PAGES, KINDS));
		read_all();
		end();
	}
}

static void begin_parked_equal(void)
{
	begin_parked(KINDS);
}

static void write_two(unsigned round)
{
	write_page(round, 50);
	write_page(100 + round, 50);
}

Test(slots, survive_the_failure_of_any_operation)
{
	fail_each_operation(begin_parked_equal, write_two);
}

Test(slots, that_are_under_way_may_be_joined_and_left)
{
	begin_kinds((struct rig_options){ .latency_ns = 20000000 }, KINDS);
	park_all();
	for (unsigned k = 1; k < 4; k++) {
		cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
		read_all();
		forget_home();
		/* Some of it is on its way. */
		write_page(0, 1000 + k);
		write_page(99, 1000 + k);
		read_all();
		settle();
		forget_home();
		read_all();
		settle();
	}
	end();
}

/* A page of the slot beside that one, but not near it. */
static unsigned next_in(uint32_t slot, unsigned page)
{
	for (unsigned k = page + 10 * KINDS; k < PAGES; k += KINDS)
		if (slot_of_page(kf, k) == slot)
			return k;
	cr_assert_fail("no other page is in the slot");
	return 0;
}

static int read_first(void *arg)
{
	static char page[GAIA_PAGE];

	(void)arg;
	if (cpu_read_direct(kf, page, GAIA_PAGE, AT(FIRST)) != GAIA_PAGE)
		return -EIO;
	return memcmp(page, bytes + AT(FIRST), GAIA_PAGE) ? -EBADMSG : 0;
}

/* It stays while one of its pages is read, though another one has been, and though all others have left it. */
Test(slots, are_read_by_several_at_once, .timeout = 200)
{
	struct held reads = { .point = "device.copy_out", .call = read_first };
	uint32_t slot;
	unsigned other;

	begin_parked(KINDS);
	slot = slot_of_page(kf, FIRST);
	other = next_in(slot, FIRST);
	held_begin(&reads);
	cr_assert_eq(state_of(slot) & OWNER_READS, OWNER_READ);
	count_from_here();
	read_page(other);
	cr_assert_eq(rise(hits, victim_hits), 1);
	cr_assert_eq(rise(store, storage_reads), 0);
	cr_assert_eq(state_of(slot) & OWNER_READS, OWNER_READ);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
	cr_assert_eq(state_of(slot), OWNER_GONE | OWNER_READ);
	/* Nobody joins those who have left it. */
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, AT(other), AT(1)), 0);
	cr_assert_neq(slot_of_page(kf, other), slot);
	cr_assert_eq(held_end(&reads), 0);
	cr_assert_eq(state_of(slot), 0);
	settle();
	read_all();
	end();
}

/* ---- whose they are ---- */

static void own(struct kfile *file, uid_t owner)
{
	struct store_file *sf;

	cr_assert_eq(rig->mem->ops->open(rig->mem, file->ref, true, &sf), 0);
	store_mem_chown(sf, owner, 0);
	sf->ops->close(sf);
	cache_owner_changed(file->cfile);
}

/* A page whose file is given away may stay where it is parked; but no other page of that file comes to share its former owner's slots by that. */
Test(slots, are_not_joined_by_way_of_a_file_that_was_given_away)
{
	struct kfile *other;
	uint32_t slot;

	begin_kinds((struct rig_options){ .dedup = CACHE_DEDUP_HOME }, 1);
	other = kfile_create(rig, 2, AT(2));
	cr_assert_eq(cpu_write_direct(other, bytes, AT(2), 0), 0);
	cr_assert_eq(cpu_fsync(other), 0);
	cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_HOME, 0, 0), 0);
	own(kf, 5);
	own(other, 5);
	park_all();
	/* So that it is known whose they are, pages come from the store. */
	fault_disarm_all();
	fault_arm("dedup.all", -EEXIST, 0, 0);
	fault_arm("park.all", -ENOSPC, 0, 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
	for (unsigned i = 0; i < 8; i++)
		read_page(i);
	cr_assert_eq(cpu_read_direct(other, seen, AT(2), 0), (ssize_t)AT(2));
	cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_HOME, 0, 0), 0);
	forget_home();
	settle();
	slot = slot_of_page(other, 0);
	cr_assert_neq(slot, 0);
	cr_assert_eq(slot_of_page(other, 1), slot);
	cr_assert_eq(slot_of_page(kf, 3), slot);
	/* Now it is another user's, and that is known when its second page comes from the store. */
	own(other, 77);
	cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_DEVICE_CACHE, AT(1), AT(1)), 0);
	cr_assert_eq(cpu_read_direct(other, seen, AT(1), AT(1)), (ssize_t)AT(1));
	fault_arm("source.store_is_dear", -ENOSPC, 0, 0);
	count_from_here();
	cr_assert_eq(cpu_read_direct(other, seen, AT(1), 0), (ssize_t)AT(1));
	cr_assert_eq(rise(hits, victim_hits), 1);
	cr_assert_eq(rig_frames(rig), 1);
	cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_HOME, 0, 0), 0);
	settle();
	cr_assert_eq(slot_of_page(other, 0), slot);
	cr_assert_neq(slot_of_page(other, 1), slot);
	end();
}

/* ---- what is wrong is found ---- */

static void no_core(void)
{
	setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
}

/*
 * Where only every second page is written, the others keep the slots. Those that are written come from the store again: from a slot they would be linked
 * with it.
 */
static void join_what_a_frame_had(void)
{
	begin_parked(KINDS);
	fault_arm("break.stale_link", -EEXIST, 0, 0);
	for (unsigned i = 0; i < PAGES; i += 2)
		mark(i, 100 + i % KINDS);
	for (unsigned i = 0; i < PAGES; i += 2)
		cr_assert_eq(cpu_write_direct(kf, bytes + AT(i), GAIA_PAGE, AT(i)), 0);
	forget_home();
	for (unsigned i = 0; i < PAGES; i += 2)
		cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, AT(i), AT(1)), 0);
	for (unsigned i = 0; i < PAGES; i += 2)
		read_page(i);
}

Test(slots, that_are_joined_by_others_are_found, .init = no_core, .signal = SIGABRT)
{
	join_what_a_frame_had();
	settle();
}

Test(slots, that_are_joined_by_others_would_show_their_bytes)
{
	unsigned wrong = 0;

	join_what_a_frame_had();
	forget_home();
	for (unsigned i = 0; i < PAGES; i += 2) {
		cr_assert_eq(cpu_read_direct(kf, seen, GAIA_PAGE, AT(i)), (ssize_t)GAIA_PAGE);
		wrong += memcmp(seen, bytes + AT(i), GAIA_PAGE) != 0;
	}
	cr_assert_gt(wrong, 0u);
	/* Else LeakSanitizer takes what slots know of their pages for lost: they know where it is in 44 bits. */
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_DEVICE_CACHE, 0, 0), 0);
}
