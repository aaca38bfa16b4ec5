/*
 * cache_shares.c - equal pages of home in one frame: they are found, never by their hash alone, and a page that is written gets
 * a frame of its own first.
 *
 * In most scenes all pages are looked for, not only a sample (a fault point).
 */
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "cache_scene.h"
#include "held.h"
#include "pagecache/cache.h"
#include "pagecache/devices.h"
#include "pagecache/root.h"
#include "pagecache/shares.h"

#define AT(page) ((uint64_t)(page) * GAIA_PAGE)
#define PAGES 600u /* of two chunks */
#define KINDS 3u

static char bytes[AT(PAGES)], seen[AT(PAGES)];

static void mark(unsigned page, unsigned kind)
{
	for (unsigned i = 0; i < GAIA_PAGE; i++)
		bytes[AT(page) + i] = (char)(1 + (kind * 37 + i / 7) % 250);
}

static void read_all(void)
{
	cr_assert_eq(cpu_read_direct(kf, seen, sizeof(seen), 0), (ssize_t)sizeof(seen));
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert_eq(memcmp(seen + AT(i), bytes + AT(i), GAIA_PAGE), 0, "page %u", i);
}

static void forget_home(void)
{
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
}

static uint64_t saved(void)
{
	return shares_saved(&rig->cache->frames);
}

static void begin_of_kinds(struct rig_options options, unsigned kinds)
{
	options.dedup = options.dedup ? options.dedup : CACHE_DEDUP_HOME;
	begin(&options, sizeof(bytes));
	for (unsigned i = 0; i < PAGES; i++)
		mark(i, i % kinds);
	cr_assert_eq(cpu_write_direct(kf, bytes, sizeof(bytes), 0), 0);
	forget_home();
	cr_assert_eq(rig_frames(rig), 0u);
}

/* All pages are home, in as many frames as there are kinds. */
static void begin_shared(struct rig_options options)
{
	begin_of_kinds(options, KINDS);
	fault_arm("dedup.all", -EEXIST, 0, 0);
	read_all();
	cr_assert_eq(rig_frames(rig), KINDS);
	cr_assert_eq(saved(), PAGES - KINDS);
}

static void write_page(unsigned page, const char *text)
{
	cr_assert_eq(cpu_write_direct(kf, text, strlen(text), AT(page) + 100), 0);
	memcpy(bytes + AT(page) + 100, text, strlen(text));
}

Test(shares, are_pages_that_are_equal)
{
	begin_shared((struct rig_options){ .devices = 1 });
	cache_check(rig->cache);
	read_all();
	forget_home();
	cr_assert_eq(rig_frames(rig), 0u);
	cr_assert_eq(saved(), 0u);
	end();
}

Test(shares, are_not_made_unless_asked_for)
{
	begin_of_kinds((struct rig_options){ .devices = 1 }, KINDS);
	end();
	begin(&(struct rig_options){ .devices = 1 }, sizeof(bytes));
	fault_arm("dedup.all", -EEXIST, 0, 0);
	cr_assert_eq(cpu_write_direct(kf, bytes, sizeof(bytes), 0), 0);
	forget_home();
	read_all();
	cr_assert_eq(rig_frames(rig), PAGES);
	end();
}

Test(shares, end_where_a_page_is_written)
{
	begin_shared((struct rig_options){ .devices = 1 });
	write_page(7, "written");
	write_page(7 + KINDS, "written, too");
	cr_assert_eq(rig_frames(rig), KINDS + 2);
	read_all();
	cr_assert_eq(cpu_fsync(kf), 0);
	read_all();
	forget_home();
	read_all();
	end();
}

Test(shares, of_one_page_end_without_a_copy)
{
	uint64_t unshared;

	begin_of_kinds((struct rig_options){ .devices = 1 }, PAGES);
	fault_arm("dedup.all", -EEXIST, 0, 0);
	/* They are different: mark() has 250 kinds. */
	for (unsigned i = 0; i < 250; i++)
		cr_assert_eq(cpu_read_direct(kf, seen, 10, AT(i)), 10);
	unshared = counter_value(CTR_dedup_unshared);
	write_page(3, "alone");
	cr_assert_eq(counter_value(CTR_dedup_unshared), unshared);
	read_all();
	end();
}

Test(shares, are_of_zeros_without_a_hash)
{
	uint64_t hashed;

	memset(bytes, 0, sizeof(bytes));
	begin(&(struct rig_options){ .devices = 1, .dedup = CACHE_DEDUP_HOME }, sizeof(bytes));
	hashed = counter_value(CTR_dedup_hashed);
	read_all();
	cr_assert_eq(rig_frames(rig), 1u);
	cr_assert_eq(counter_value(CTR_dedup_hashed), hashed);
	write_page(5, "x");
	read_all();
	end();
}

/* Nothing crosses the bus; and what a device had there before is gone. */
Test(shares, of_zeros_are_made_on_devices)
{
	uint64_t in, zeroed;
	struct client *cl;

	memset(bytes, 0, sizeof(bytes));
	begin(&(struct rig_options){ .devices = 1, .dedup = CACHE_DEDUP_HOME }, sizeof(bytes));
	cl = client_create(kf, 0, GAIA_PROT_RW, sizeof(bytes));
	write_device(cl, AT(3) + 8, "before");
	cr_assert_eq(client_release(cl, 0, sizeof(bytes)), 0);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, sizeof(bytes)), 0);
	read_all();
	in = counter_value(CTR_device_bytes_in);
	zeroed = counter_value(CTR_device_zeroed);
	write_page(9, "not zeros");
	cr_assert_eq(client_acquire(cl, 0, AT(100), GAIA_PROT_READ), 0);
	client_load(cl, seen, AT(100), 0);
	cr_assert_eq(memcmp(seen, bytes, AT(100)), 0);
	cr_assert_eq(counter_value(CTR_device_bytes_in) - in, (uint64_t)GAIA_PAGE);
	cr_assert_geq(counter_value(CTR_device_zeroed) - zeroed, 99u);
	client_end(cl);
	end();
}

Test(shares, end_where_a_page_is_cut)
{
	begin_shared((struct rig_options){ .devices = 1 });
	cr_assert_eq(cpu_truncate(kf, AT(PAGES - 1) + 10), 0);
	cr_assert_eq(cpu_truncate(kf, AT(PAGES)), 0);
	memset(bytes + AT(PAGES - 1) + 10, 0, GAIA_PAGE - 10);
	read_all();
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, AT(10) + 50, AT(3)), 0);
	memset(bytes + AT(10) + 50, 0, AT(3));
	read_all();
	forget_home();
	read_all();
	end();
}

Test(shares, end_where_a_device_has_written)
{
	struct client *cl;

	begin_shared((struct rig_options){ .devices = 2 });
	cl = new_client(0);
	for (unsigned i = 0; i < 20; i += 2)
		write_device(cl, AT(i) + 5, "from a device");
	/* Home changes meanwhile, so that some of it is merged. */
	write_page(0, "from a CPU");
	write_page(4, "from a CPU");
	release_all(cl);
	for (unsigned i = 0; i < 20; i += 2)
		memcpy(bytes + AT(i) + 5, "from a device", strlen("from a device"));
	read_all();
	forget_home();
	read_all();
	client_end(cl);
	end();
}

/* A shared frame can be the base of what a device writes, when home has something else. */
Test(shares, are_bases_of_merges)
{
	struct client *cl, *other;

	begin_shared((struct rig_options){ .devices = 2 });
	cl = new_client(0);
	other = new_client(1);
	write_device(cl, AT(6), "first");
	write_device(other, AT(6) + 50, "second");
	release_all(cl);
	memcpy(bytes + AT(6), "first", 5);
	read_all();
	cache_check(rig->cache);
	release_all(other);
	memcpy(bytes + AT(6) + 50, "second", 6);
	read_all();
	client_end(cl);
	client_end(other);
	end();
}

Test(shares, are_not_found_by_the_hash_alone)
{
	fault_arm("dedup.collide", -EEXIST, 0, 0);
	begin_shared((struct rig_options){ .devices = 1 });
	fault_arm("dedup.collide", -EEXIST, 0, 0);
	cache_check(rig->cache);
	write_page(8, "still");
	read_all();
	forget_home();
	end();
}

Test(shares, stay_as_they_are_when_there_is_no_memory)
{
	struct client *cl;

	begin_shared((struct rig_options){ .devices = 1 });
	fault_arm("dedup.own", -ENOMEM, 0, 1);
	cr_assert_eq(cpu_write_direct(kf, "lost", 4, AT(9)), -ENOMEM);
	read_all();
	cr_assert_eq(rig_frames(rig), KINDS);
	write_page(9, "kept");
	read_all();
	/* What a device has released stays there, until there is memory. */
	cl = new_client(0);
	write_device(cl, AT(12), "released");
	fault_arm("dedup.own", -ENOMEM, 0, 1);
	release_all(cl);
	memcpy(bytes + AT(12), "released", 8);
	if (cpu_read_direct(kf, seen, 8, AT(12)) == 8)
		cr_assert_eq(memcmp(seen, "released", 8), 0);
	read_all();
	client_end(cl);
	fault_disarm_all();
	/* Without a table a page is not shared, and nothing else is wrong. */
	fault_arm("dedup.all", -EEXIST, 0, 0);
	forget_home();
	fault_arm("shares.memory", -ENOMEM, 0, 0);
	read_all();
	end();
}

/* Home has room for a fraction of them: as long as that is enough for what differs nothing leaves. */
Test(shares, leave_last)
{
	uint64_t evicted, reads;
	char page[GAIA_PAGE];

	begin(&(struct rig_options){ .devices = 1, .home_bytes = CACHE_HOME_MIN, .dedup = CACHE_DEDUP_HOME }, 8 * CACHE_HOME_MIN);
	fault_arm("dedup.all", -EEXIST, 0, 0);
	for (unsigned i = 0; i < 8 * CACHE_HOME_MIN / sizeof(bytes); i++) {
		for (unsigned k = 0; k < PAGES; k++)
			mark(k, k % 200);
		cr_assert_eq(cpu_write_direct(kf, bytes, sizeof(bytes), i * sizeof(bytes)), 0);
		forget_home();
	}
	evicted = counter_value(CTR_home_evicted);
	for (unsigned round = 0; round < 2; round++) {
		reads = counter_value(CTR_storage_reads);
		for (unsigned i = 0; i < 8 * CACHE_HOME_MIN / sizeof(bytes) * PAGES; i++) {
			cr_assert_eq(cpu_read_direct(kf, page, GAIA_PAGE, AT(i)), (ssize_t)GAIA_PAGE);
			cr_assert_eq(memcmp(page, bytes + AT(i % PAGES), GAIA_PAGE), 0);
		}
	}
	cr_assert_eq(counter_value(CTR_home_evicted), evicted);
	cr_assert_eq(counter_value(CTR_storage_reads), reads);
	cr_assert_leq(rig_frames(rig), 201u);
	/* They make room all the same, when what differs needs it all. */
	cr_assert_eq(cpu_truncate(kf, 16 * CACHE_HOME_MIN), 0);
	for (unsigned i = 0; i < 2 * CACHE_HOME_MIN / GAIA_PAGE; i++) {
		memcpy(page, &i, sizeof(i));
		cr_assert_eq(cpu_write_direct(kf, page, GAIA_PAGE, 8 * CACHE_HOME_MIN + AT(i)), 0);
	}
	cr_assert_leq(rig_frames(rig), CACHE_HOME_MIN / GAIA_PAGE);
	end();
}

static void write_and_forget(uint64_t first, uint64_t n, bool odd_are_equal)
{
	char page[GAIA_PAGE];

	for (uint64_t i = first; i < first + n; i++) {
		memset(page, 1, sizeof(page));
		if (!odd_are_equal || i % 2 == 0)
			memcpy(page, &i, sizeof(i));
		cr_assert_eq(cpu_write_direct(kf, page, GAIA_PAGE, AT(i)), 0);
	}
	forget_home();
}

/* A chunk that makes room keeps what it shares: to drop that would free nothing. */
Test(shares, leave_after_what_is_not_shared)
{
	uint64_t budget = CACHE_HOME_MIN / GAIA_PAGE, reads;
	char page[GAIA_PAGE];

	begin(&(struct rig_options){ .devices = 0, .home_bytes = CACHE_HOME_MIN, .dedup = CACHE_DEDUP_HOME }, AT(2 * budget));
	fault_arm("dedup.all", -EEXIST, 0, 0);
	write_and_forget(0, budget, true);
	write_and_forget(budget, budget, false);
	for (uint64_t i = 0; i < budget + budget * 3 / 4; i++)
		cr_assert_eq(cpu_read_direct(kf, page, GAIA_PAGE, AT(i)), (ssize_t)GAIA_PAGE);
	reads = counter_value(CTR_storage_reads);
	for (uint64_t i = 1; i < budget; i += 2)
		cr_assert_eq(cpu_read_direct(kf, page, GAIA_PAGE, AT(i)), (ssize_t)GAIA_PAGE);
	cr_assert_eq(counter_value(CTR_storage_reads), reads);
	for (uint64_t i = 0; i < budget; i += 2)
		cr_assert_eq(cpu_read_direct(kf, page, GAIA_PAGE, AT(i)), (ssize_t)GAIA_PAGE);
	cr_assert_gt(counter_value(CTR_storage_reads), reads);
	end();
}

/* What nobody uses makes room in the end, though each page by itself frees nothing. */
Test(shares, leave_when_their_turn_comes)
{
	uint64_t budget = CACHE_HOME_MIN / GAIA_PAGE;
	char page[GAIA_PAGE];

	begin(&(struct rig_options){ .devices = 0, .home_bytes = CACHE_HOME_MIN, .dedup = CACHE_DEDUP_HOME }, AT(5 * budget));
	write_and_forget(3 * budget, 2 * budget, false);
	for (uint64_t i = 0; i < 3 * budget; i++)
		cr_assert_eq(cpu_read_direct(kf, page, GAIA_PAGE, AT(i)), (ssize_t)GAIA_PAGE);
	cr_assert_gt(saved(), 2 * budget);
	for (uint64_t i = 0; i < 20 * budget; i++)
		cr_assert_eq(cpu_read_direct(kf, page, GAIA_PAGE, AT(3 * budget + i % (2 * budget))), (ssize_t)GAIA_PAGE);
	cr_assert_eq(saved(), 0u);
	end();
}

/* What is recorded of pages takes memory, too: a large hole may not have any number of them home. */
Test(shares, are_limited)
{
	uint64_t budget = CACHE_HOME_MIN / GAIA_PAGE, most = 0;
	static char piece[AT(256)];

	begin(&(struct rig_options){ .devices = 0, .home_bytes = CACHE_HOME_MIN, .dedup = CACHE_DEDUP_HOME }, AT(20 * budget));
	for (uint64_t i = 0; i < 20 * budget; i += 256) {
		cr_assert_eq(cpu_read_direct(kf, piece, sizeof(piece), AT(i)), (ssize_t)sizeof(piece));
		most = MAX(most, saved());
		cr_assert_leq(rig_frames(rig), budget);
	}
	cr_assert(most > 3 * budget && most <= 4 * budget, "%lu", most);
	end();
}

static void own(struct kfile *file, uid_t owner, mode_t mode)
{
	struct store_file *sf;

	cr_assert_eq(rig->mem->ops->open(rig->mem, file->ref, true, &sf), 0);
	store_mem_chown(sf, owner, mode);
	sf->ops->close(sf);
	cache_owner_changed(file->cfile);
}

/* Two files with the same contents, and how many frames they take. */
static uint64_t frames_of_two(enum cache_dedup dedup, uid_t first, uid_t second, mode_t mode)
{
	struct kfile *other;
	uint64_t frames;

	begin_of_kinds((struct rig_options){ .devices = 0, .dedup = dedup }, KINDS);
	other = kfile_create(rig, 2, sizeof(bytes));
	cr_assert_eq(cpu_write_direct(other, bytes, sizeof(bytes), 0), 0);
	cr_assert_eq(cpu_fsync(other), 0);
	cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_HOME, 0, 0), 0);
	own(kf, first, 0);
	own(other, second, mode);
	fault_arm("dedup.all", -EEXIST, 0, 0);
	read_all();
	cr_assert_eq(cpu_read_direct(other, seen, sizeof(seen), 0), (ssize_t)sizeof(seen));
	cr_assert_eq(memcmp(seen, bytes, sizeof(bytes)), 0);
	frames = rig_frames(rig);
	/* It is given away: what it has in common with its former owner's files is not shared from now on. */
	own(other, 77, mode);
	cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(cpu_read_direct(other, seen, sizeof(seen), 0), (ssize_t)sizeof(seen));
	cr_assert_eq(rig_frames(rig), dedup != CACHE_DEDUP_HOME ? KINDS : mode & 0022 ? KINDS + PAGES : 2 * KINDS);
	end();
	return frames;
}

Test(shares, are_of_files_of_one_owner)
{
	cr_assert_eq(frames_of_two(CACHE_DEDUP_HOME, 5, 5, 0444), KINDS);
	cr_assert_eq(frames_of_two(CACHE_DEDUP_HOME, 5, 6, 0), 2 * KINDS);
	cr_assert_eq(frames_of_two(CACHE_DEDUP_ALL_USERS, 5, 6, 0022), KINDS);
}

/* Who may write a file of somebody's could write guesses there, and see which of them that user has. */
Test(shares, are_not_of_files_that_others_may_write)
{
	/* It shares with nobody, nor its pages with each other. */
	cr_assert_eq(frames_of_two(CACHE_DEDUP_HOME, 5, 5, 0002), KINDS + PAGES);
	cr_assert_eq(frames_of_two(CACHE_DEDUP_HOME, 5, 5, 0020), KINDS + PAGES);
}

/* Nor by a descriptor from when they might, also one that was closed since: it may have been passed on. */
Test(shares, are_not_of_files_that_others_have_opened_to_write)
{
	static const struct { uid_t uid; uint64_t frames; } opened[] = { { 0, KINDS }, { 5, KINDS }, { 6, KINDS + PAGES } };
	struct kfile *other;

	for (unsigned k = 0; k < ARRAY_LEN(opened); k++) {
		begin_of_kinds((struct rig_options){ .devices = 0, .dedup = CACHE_DEDUP_HOME }, KINDS);
		other = kfile_create(rig, 2, sizeof(bytes));
		own(kf, 5, 0);
		own(other, 5, 0);
		cache_opened_to_write(kf->cfile, 5);
		cache_opened_to_write(other->cfile, opened[k].uid);
		cache_opened_to_write(other->cfile, opened[k].uid);
		cr_assert_eq(cpu_write_direct(other, bytes, sizeof(bytes), 0), 0);
		cr_assert_eq(cpu_fsync(other), 0);
		cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_HOME, 0, 0), 0);
		fault_arm("dedup.all", -EEXIST, 0, 0);
		read_all();
		cr_assert_eq(cpu_read_direct(other, seen, sizeof(seen), 0), (ssize_t)sizeof(seen));
		cr_assert_eq(rig_frames(rig), opened[k].frames, "opened by %u", (unsigned)opened[k].uid);
		end();
	}
}

static int read_one(void *arg)
{
	struct kfile *file = arg;
	char page[GAIA_PAGE];

	return cpu_read_direct(file, page, GAIA_PAGE, AT(300)) == GAIA_PAGE ? 0 : -EIO;
}

/* What the store has said of a file that is given away at that moment is not kept. */
Test(shares, are_not_of_whom_a_file_was_when_the_store_was_asked)
{
	struct held held = { .point = "dedup.asked", .call = read_one };
	struct kfile *other;

	begin_shared((struct rig_options){ .devices = 0 });
	other = kfile_create(rig, 2, sizeof(bytes));
	cr_assert_eq(cpu_write_direct(other, bytes, sizeof(bytes), 0), 0);
	cr_assert_eq(cpu_fsync(other), 0);
	cr_assert_eq(cache_evict(other->cfile, GAIA_FROM_HOME, 0, 0), 0);
	cr_assert_eq(rig_frames(rig), KINDS);
	held.arg = other;
	held_begin(&held);
	own(other, 77, 0);
	cr_assert_eq(held_end(&held), 0);
	cr_assert_eq(cpu_read_direct(other, seen, sizeof(seen), 0), (ssize_t)sizeof(seen));
	cr_assert_eq(memcmp(seen, bytes, sizeof(bytes)), 0);
	/* One of them was not looked for. */
	cr_assert_eq(rig_frames(rig), 2 * KINDS + 1);
	end();
}

/* Bytes that a device gives are not waited for by asking the store whose they are. */
Test(shares, ask_the_store_only_when_it_is_read)
{
	uint64_t opened;
	struct client *cl;

	begin_of_kinds((struct rig_options){ .devices = 1 }, KINDS);
	fault_arm("dedup.all", -EEXIST, 0, 0);
	fault_arm("source.store_is_dear", -ENOSPC, 0, 0);
	cl = client_create(kf, 0, GAIA_PROT_RW, sizeof(bytes));
	cr_assert_eq(client_acquire(cl, 0, sizeof(bytes), GAIA_PROT_READ), 0);
	forget_home();
	cache_owner_changed(kf->cfile);
	opened = counter_value(CTR_dedup_hashed);
	read_all();
	cr_assert_eq(counter_value(CTR_dedup_hashed), opened);
	cr_assert_gt(counter_value(CTR_device_reads), 0u);
	client_end(cl);
	end();
}

/* What a device has released of pages that nobody else writes takes the place of the shared frame: nothing is copied. */
Test(shares, are_left_by_what_is_released_without_a_copy)
{
	uint64_t unshared, merges;
	struct client *cl;

	begin_shared((struct rig_options){ .devices = 1 });
	cl = client_create(kf, 0, GAIA_PROT_RW, sizeof(bytes));
	for (unsigned i = 0; i < 30; i++)
		write_device(cl, AT(i) + 5, "from a device");
	cr_assert_eq(client_release(cl, 0, sizeof(bytes)), 0);
	for (unsigned i = 0; i < 30; i++)
		memcpy(bytes + AT(i) + 5, "from a device", strlen("from a device"));
	unshared = counter_value(CTR_dedup_unshared);
	merges = counter_value(CTR_merges);
	read_all();
	cr_assert_eq(counter_value(CTR_dedup_unshared), unshared);
	cr_assert_eq(counter_value(CTR_merges), merges);
	client_end(cl);
	end();
}

/* A write when home is full of what is dirty does not drop all that is shared: that would free nearly nothing. */
Test(shares, outlive_a_burst_of_writes)
{
	uint64_t budget = CACHE_HOME_MIN / GAIA_PAGE, before;
	static char piece[AT(256)];
	char page[GAIA_PAGE];

	begin(&(struct rig_options){ .devices = 0, .home_bytes = CACHE_HOME_MIN, .dedup = CACHE_DEDUP_HOME }, AT(5 * budget));
	for (uint64_t i = 0; i < 3 * budget; i += 256)
		cr_assert_eq(cpu_read_direct(kf, piece, sizeof(piece), AT(i)), (ssize_t)sizeof(piece));
	before = saved();
	cr_assert_gt(before, 2 * budget);
	for (uint64_t i = 0; i < budget + 10; i++) {
		memcpy(page, &i, sizeof(i));
		cr_assert_eq(cpu_write_direct(kf, page, GAIA_PAGE, AT(4 * budget - 20 + i)), 0);
	}
	cr_assert_gt(saved(), before / 2);
	end();
}

/* Pages that are equal @apart. */
static void write_equal(uint64_t from, uint64_t to, uint64_t apart)
{
	uint64_t page[GAIA_PAGE / 8];

	for (uint64_t i = from; i < to; i++) {
		for (unsigned k = 0; k < GAIA_PAGE / 8; k++)
			page[k] = (i % apart * 512 + k) * 0x9e3779b97f4a7c15u;
		cr_assert_eq(cpu_write_direct(kf, page, GAIA_PAGE, AT(i)), 0);
	}
}

/* How many were hashed for that. */
static uint64_t read_pages(uint64_t from, uint64_t to)
{
	uint64_t hashed = counter_value(CTR_dedup_hashed);
	char page[GAIA_PAGE];

	for (uint64_t i = from; i < to; i++)
		cr_assert_eq(cpu_read_direct(kf, page, GAIA_PAGE, AT(i)), (ssize_t)GAIA_PAGE);
	return counter_value(CTR_dedup_hashed) - hashed;
}

/* Of files without equal pages only a sample is hashed; of others all pages are, when the sample has shown that. */
Test(shares, are_looked_for_where_they_are)
{
	uint64_t hashed;

	begin(&(struct rig_options){ .devices = 0, .dedup = CACHE_DEDUP_HOME }, AT(8192));
	write_equal(0, 8192, 4096);
	forget_home();
	hashed = read_pages(0, 4096);
	cr_assert(hashed > 4096 / 32 && hashed < 4096 / 8, "%lu", hashed);
	cr_assert_eq(saved(), 0u);
	/* The same pages once more: what the sample finds says that it pays, if reading them takes longer than hashing them. */
	fault_arm_delay("store.read", 200, 1);
	read_pages(4096, 8192);
	cr_assert_gt(saved(), 4096u / 32);
	forget_home();
	read_pages(0, 8192);
	cr_assert_gt(saved(), 4096u * 9 / 10);
	end();
}

/* Where there were none for long the sample is smaller; but when it finds some all are looked for again. */
Test(shares, are_looked_for_less_where_there_were_none)
{
	uint64_t n = 12288, hashed;

	begin(&(struct rig_options){ .devices = 0, .home_bytes = 2 * AT(n), .dedup = CACHE_DEDUP_HOME }, AT(2 * n));
	write_equal(0, 2 * n, 2 * n);
	forget_home();
	hashed = read_pages(0, n);
	cr_assert(hashed > n / 64 && hashed < n / 32, "%lu", hashed);
	hashed = read_pages(n, 2 * n);
	cr_assert(hashed > n / 1024 && hashed < n / 64, "%lu", hashed);
	cr_assert_eq(saved(), 0u);
	write_equal(n, 2 * n, n);
	fault_arm_delay("store.read", 200, 1);
	/* The first half, of which nothing is found when it comes, may make it doubtful again for a while. */
	for (unsigned k = 0; k < 6; k++) {
		forget_home();
		read_pages(0, 2 * n);
	}
	cr_assert_gt(saved(), n * 9 / 10);
	end();
}

/* Each would get a frame of its own again: so nothing is saved, however many are found. */
Test(shares, are_looked_for_less_where_all_are_written_soon)
{
	const uint64_t n = 4096;

	begin(&(struct rig_options){ .devices = 0, .home_bytes = 2 * AT(n), .dedup = CACHE_DEDUP_HOME }, AT(n));
	fault_arm_delay("store.read", 50, 1);
	for (unsigned round = 0;; round++) {
		uint64_t hashed;

		write_equal(0, n, n / 2);
		forget_home();
		hashed = read_pages(0, n);
		if (round == 3) {
			cr_assert(hashed > 0 && hashed < n / 8, "%lu", hashed);
			break;
		}
		write_equal(0, n, n);
	}
	end();
}

/* They need not be looked for. The daemon's secret has them in the sample now and then. */
Test(shares, of_zeros_say_nothing_of_others)
{
	char page[GAIA_PAGE];

	for (unsigned round = 0; round < 100; round++) {
		begin(&(struct rig_options){ .devices = 0, .dedup = CACHE_DEDUP_HOME }, AT(8));
		for (unsigned i = 0; i < 8; i++)
			cr_assert_eq(cpu_read_direct(kf, page, GAIA_PAGE, AT(i)), (ssize_t)GAIA_PAGE);
		cr_assert_eq(saved(), 7u);
		kf->cfile->dedup.sample.found = 100;
		memset(page, 1, sizeof(page));
		for (unsigned i = 0; i < 8; i++)
			cr_assert_eq(cpu_write_direct(kf, page, GAIA_PAGE, AT(i)), 0);
		cr_assert_eq(kf->cfile->dedup.sample.vain, 0u);
		end();
	}
}

/* ---- several threads ---- */

#define THREADS 4u
#define RACED 64u

static void *read_and_write(void *arg)
{
	unsigned me = (unsigned)(uintptr_t)arg;
	char page[GAIA_PAGE], expected[GAIA_PAGE];
	uint64_t seed = me + 1;

	for (unsigned round = 0; round < 600; round++) {
		/* Pages of its own, with contents that all have. */
		unsigned i, kind;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		i = (unsigned)(seed >> 33) % RACED * THREADS + me;
		kind = (unsigned)(seed >> 50) % KINDS;
		for (unsigned k = 0; k < GAIA_PAGE; k++)
			expected[k] = (char)(1 + (kind * 37 + k / 7) % 250);
		if (cpu_write_direct(kf, expected, GAIA_PAGE, AT(i)) || cpu_read_direct(kf, page, GAIA_PAGE, AT(i)) != GAIA_PAGE ||
		    memcmp(page, expected, GAIA_PAGE) != 0)
			return (void *)1;
		(void)cache_fsync(kf->cfile, 0, 0, false);
		if (round % 3 == 0)
			(void)cache_evict(kf->cfile, GAIA_FROM_HOME, AT(i), GAIA_PAGE);
		if (cpu_read_direct(kf, page, GAIA_PAGE, AT(i)) != GAIA_PAGE || memcmp(page, expected, GAIA_PAGE) != 0)
			return (void *)2;
	}
	return NULL;
}

Test(shares, come_and_go_between_threads)
{
	pthread_t thread[THREADS];
	void *wrong;

	begin_shared((struct rig_options){ .devices = 0 });
	for (unsigned k = 0; k < THREADS; k++)
		cr_assert_eq(pthread_create(&thread[k], NULL, read_and_write, (void *)(uintptr_t)k), 0);
	for (unsigned k = 0; k < THREADS; k++) {
		pthread_join(thread[k], &wrong);
		cr_assert_null(wrong, "thread %u: %p", k, wrong);
	}
	end();
}

/* ---- what is wrong is found ---- */

static void no_core(void)
{
	setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
}

Test(shares, that_are_counted_wrongly_are_found, .init = no_core, .signal = SIGABRT)
{
	begin_of_kinds((struct rig_options){ .devices = 0 }, KINDS);
	fault_arm("dedup.all", -EEXIST, 0, 0);
	fault_arm("break.share_uncounted", -EEXIST, 3, 1);
	read_all();
	cache_check(rig->cache);
}

Test(shares, that_were_written_would_change_other_pages)
{
	begin_shared((struct rig_options){ .devices = 0 });
	fault_arm("break.shared_written", -EEXIST, 0, 0);
	write_page(7, "written");
	cr_assert_eq(cpu_read_direct(kf, seen, GAIA_PAGE, AT(7 + KINDS)), (ssize_t)GAIA_PAGE);
	cr_assert_neq(memcmp(seen, bytes + AT(7 + KINDS), GAIA_PAGE), 0);
}
