/*
 * cache_leases.c - how long a client may have memory of a device, and how much: what a user may pin; and memory to which
 * somebody stores who is not a client any more, from the moment when the daemon has noticed that.
 */
#include "cache_scene.h"
#include "held.h"

#include <linux/falloc.h>
#include <semaphore.h>
#include <sys/mman.h>

#include "base/thread.h"

/* ---- what each user may pin ---- */

static struct client *client_of(uid_t uid, bool owner)
{
	rig->user = (struct cache_user){ .uid = uid, .owner = owner };
	return client_create(kf, 0, GAIA_PROT_RW, 32 * GAIA_CHUNK);
}

static int acquire_chunks(struct client *cl, unsigned first, unsigned n)
{
	return client_acquire(cl, first * GAIA_CHUNK, n * GAIA_CHUNK, GAIA_PROT_READ);
}

/* Of 16 chunks a user may have 12: also of those that the user had before, and an owner of the mount holds now. */
Test(users, chunks_that_an_owner_holds_count_when_they_are_acquired_again)
{
	struct client *greedy, *owner;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 16, .readers_may_write = true }, 32 * GAIA_CHUNK);
	greedy = client_of(1, false);
	owner = client_of(0, true);
	for (unsigned k = 0; k < 16; k++) {
		cr_assert_eq(acquire_chunks(greedy, k, 1), 0);
		cr_assert_eq(client_release(greedy, k * GAIA_CHUNK, GAIA_CHUNK), 0);
	}
	cr_assert_eq(acquire_chunks(owner, 0, 16), 0);
	cr_assert_eq(acquire_chunks(greedy, 0, 16), -ENOMEM);
	cr_assert_eq(acquire_chunks(greedy, 0, 12), 0);
	cr_assert_eq(acquire_chunks(greedy, 12, 1), -ENOMEM);
	cr_assert_eq(acquire_chunks(greedy, 3, 4), 0, "what he holds he may acquire again");
	cr_assert_eq(client_release(owner, 0, 16 * GAIA_CHUNK), 0);
	cr_assert_eq(acquire_chunks(owner, 20, 1), 0);
	end();
}

/* ---- memory that a client leaves behind ---- */

#define LATE (3 * GAIA_PAGE) /* released, and nobody has asked for it */
#define CALM (8 * GAIA_PAGE) /* as in the store */

/* A client that maps what it released, and whose memory somebody else maps, too, as a child does. */
struct left {
	struct client *cl;
	unsigned char *memory;
};

static struct left leave_memory(const struct rig_options *options)
{
	struct left left;

	begin(options, 4 * GAIA_CHUNK);
	write_cpu(CALM, "calm");
	left.cl = new_client(0);
	expect_device(left.cl, CALM, "calm");
	write_device(left.cl, LATE, "true");
	release_all(left.cl);
	left.memory = mremap(client_at(left.cl, 0), 0, GAIA_CHUNK, MREMAP_MAYMOVE);
	cr_assert_neq(left.memory, MAP_FAILED);
	return left;
}

static void lie(const struct left *left)
{
	memcpy(left->memory + LATE, "lies", 4);
	memcpy(left->memory + CALM, "lies", 4);
}

/* The daemon ends the mapping of the client that has died. */
static void end_mapping(struct left *left)
{
	struct cache_device_use use;

	cache_device(rig->cache, 0, &use);
	left->cl->kept = !use.dev->inherited;
	client_end(left->cl);
}

static void left_end(struct left *left)
{
	munmap(left->memory, GAIA_CHUNK);
	end();
}

/* What processes read then, when nothing else has it than the device and the store. */
static void forget_but_on_devices(void)
{
	cr_assert_eq(cpu_fsync(kf), 0);
	kernel_reclaim(kf, 0, 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
	/* So that it is known how long a read of the store takes, and that devices are faster. */
	cr_assert_eq(cpu_read(kf, (char[1]){ 0 }, 1, 2 * GAIA_CHUNK), 1);
}

/* The first acquire that finds the client gone trusts nothing there: it does not wait until the mapping has ended. */
Test(dead, memory_is_not_trusted_before_its_mapping_has_ended)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	client_die(left.cl);
	memcpy(left.memory + CALM, "lies", 4);
	expect_device(b, CALM, "calm");
	release_all(b);
	lie(&left);
	forget_but_on_devices();
	expect_cpu(CALM, "calm");
	expect_cpu(LATE, "true");
	expect_device(b, LATE, "true");
	end_mapping(&left);
	lie(&left);
	release_all(b);
	expect_device(b, CALM, "calm");
	expect_device(b, LATE, "true");
	left_end(&left);
}

/* An acquire of any page of the chunk secures what was released, even by a client that holds some of the chunk already. */
Test(dead, memory_is_secured_by_the_acquire_that_finds_it_so)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	cr_assert_eq(client_acquire(b, 0, 1, GAIA_PROT_READ), 0);
	client_die(left.cl);
	cr_assert_eq(client_acquire(b, 0, 1, GAIA_PROT_READ), 0);
	lie(&left);
	expect_cpu(LATE, "true");
	expect_device(b, LATE, "true");
	expect_device(b, CALM, "calm");
	end_mapping(&left);
	left_end(&left);
}

/* Nobody has the memory: it is as good as before. */
Test(dead, memory_is_trusted_again_when_nobody_was_left_it)
{
	struct client *cl, *b;
	uint64_t sent;

	begin_devices(1);
	write_cpu(0, "calm");
	cl = new_client(0);
	b = new_client(0);
	expect_device(cl, 0, "calm");
	release_all(cl);
	client_die(cl);
	expect_device(b, 0, "calm");
	/* Its mapping ends as one does that the client has unmapped. */
	atomic_store(&cl->alive, true);
	client_end(cl);
	release_all(b);
	sent = counter_value(CTR_home_to_device);
	expect_device(b, 0, "calm");
	cr_assert_eq(counter_value(CTR_home_to_device), sent);
	cr_assert_eq(atomic_load(&b->revoked), 0);
	end();
}

/* ---- what was released there, and cannot be fetched at once ---- */

/* Long enough for all that tries. */
static void break_fetches(void)
{
	fault_arm("device.copy_out", -EIO, 0, 1000);
}

static void mend_fetches(void)
{
	fault_disarm_all();
}

Test(unfetched, memory_that_is_held_is_secured_on_the_device)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	cr_assert_eq(client_acquire(b, 0, 1, GAIA_PROT_READ), 0);
	break_fetches();
	client_die(left.cl);
	end_mapping(&left);
	lie(&left);
	mend_fetches();
	expect_cpu(LATE, "true");
	release_all(b);
	expect_device(b, LATE, "true");
	left_end(&left);
}

Test(unfetched, memory_that_cannot_be_copied_or_evicted_is_secured_on_the_device)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	break_fetches();
	fault_arm("device.copy_within", -EIO, 0, 1);
	client_die(left.cl);
	end_mapping(&left);
	lie(&left);
	mend_fetches();
	expect_device(b, LATE, "true");
	expect_cpu(LATE, "true");
	left_end(&left);
}

Test(unfetched, releases_are_secured_on_the_device)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	cr_assert_eq(client_acquire(b, LATE, GAIA_PAGE, GAIA_PROT_RW), 0);
	client_die(left.cl);
	end_mapping(&left);
	client_store(b, "b's", 3, LATE + 8);
	break_fetches();
	release_all(b);
	lie(&left);
	mend_fetches();
	expect_cpu(LATE, "true");
	expect_cpu(LATE + 8, "b's");
	left_end(&left);
}

/* By one that finds the client gone, though it fails itself. */
Test(unfetched, memory_is_secured_by_an_acquire_that_fails)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	break_fetches();
	client_die(left.cl);
	cr_assert_eq(client_acquire(b, LATE, 1, GAIA_PROT_READ), -EIO);
	lie(&left);
	mend_fetches();
	expect_device(b, LATE, "true");
	expect_cpu(LATE, "true");
	end_mapping(&left);
	left_end(&left);
}

static void die_when_asked(void *arg, struct client *cl, uint64_t idx)
{
	client_die(cl);
}

/* Its client is disconnected for not giving it up, and it stays where it is for want of a way to fetch what was released there. */
Test(unfetched, memory_that_was_not_given_up_is_not_trusted)
{
	struct left left = leave_memory(&(struct rig_options){ .devices = 1 });
	struct client *b = new_client(0);

	rig->before_revoke = die_when_asked;
	break_fetches();
	cr_assert_eq(cache_evict(kf->cfile, 0, 0, 0), -EIO);
	rig->before_revoke = NULL;
	mend_fetches();
	memcpy(left.memory + CALM, "lies", 4);
	expect_device(b, CALM, "calm");
	release_all(b);
	lie(&left);
	expect_device(b, CALM, "calm");
	expect_device(b, LATE, "true");
	expect_cpu(LATE, "true");
	end_mapping(&left);
	left_end(&left);
}

/* ---- while those who shared it are asked to unmap it ---- */

/* A client that unmaps only when @go_on is posted, and the thread that waits for it. */
static struct asking {
	struct left left;
	struct client *sharer;
	pthread_t thread;
	sem_t asked, go_on;
} asking;

static void be_slow(void *arg, struct client *cl, uint64_t idx)
{
	if (cl != asking.sharer)
		return;
	sem_post(&asking.asked);
	sem_wait(&asking.go_on);
}

static void *end_left(void *arg)
{
	end_mapping(&asking.left);
	return arg;
}

/* The memory has been copied away from the process that was left it; the sharer maps the old memory. */
static void begin_asking(unsigned chunks)
{
	asking.left = leave_memory(&(struct rig_options){ .devices = 1, .device_chunks = chunks });
	asking.sharer = new_client(0);
	expect_device(asking.sharer, CALM, "calm");
	release_all(asking.sharer);
	sem_init(&asking.asked, 0, 0);
	sem_init(&asking.go_on, 0, 0);
	rig->before_revoke = be_slow;
	client_die(asking.left.cl);
	cr_assert_eq(pthread_create(&asking.thread, NULL, end_left, NULL), 0);
	sem_wait(&asking.asked);
}

static void end_asking(void)
{
	sem_post(&asking.go_on);
	pthread_join(asking.thread, NULL);
}

Test(asked, sharers_see_no_more_what_is_truncated, .timeout = 60)
{
	begin_asking(8);
	cr_assert_eq(memcmp(client_at(asking.sharer, CALM), "calm", 4), 0);
	cr_assert_eq(cpu_truncate(kf, CALM + 2), 0);
	cr_assert_eq(memcmp(client_at(asking.sharer, CALM + 2), (char[2]){ 0 }, 2), 0);
	cr_assert_eq(memcmp(client_at(asking.sharer, LATE), "true", 4), 0);
	cr_assert_eq(cpu_truncate(kf, 4 * GAIA_CHUNK), 0);
	cr_assert_eq(cpu_allocate(kf, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, LATE, 4), 0);
	cr_assert_eq(memcmp(client_at(asking.sharer, LATE), (char[4]){ 0 }, 4), 0);
	end_asking();
	cr_assert_null(client_at(asking.sharer, 0));
	expect_cpu(CALM, "ca");
	left_end(&asking.left);
}

Test(asked, sharers_keep_nobody_else_from_the_chunk, .timeout = 60)
{
	struct client *other;

	begin_asking(8);
	other = new_client(0);
	expect_device(other, CALM, "calm");
	expect_device(other, LATE, "true");
	write_device(other, LATE + 8, "new");
	release_all(other);
	lie(&asking.left);
	expect_cpu(LATE, "true");
	expect_cpu(LATE + 8, "new");
	/* And if the next one leaves it behind. */
	client_die(other);
	other->kept = true;
	client_end(other);
	other = new_client(0);
	expect_device(other, LATE + 8, "new");
	cr_assert_eq(memcmp(client_at(asking.sharer, LATE), "lies", 4), 0, "it has the old memory");
	end_asking();
	cr_assert_null(client_at(asking.sharer, 0));
	expect_device(asking.sharer, LATE, "true");
	expect_device(asking.sharer, LATE + 8, "new");
	cr_assert_eq(rig_device_used(rig, 0), GAIA_CHUNK);
	left_end(&asking.left);
}

static sem_t waits;

static void post_waits(void *arg)
{
	sem_post(arg);
}

/* Of one page: says when it waits for somebody. */
struct acquire {
	struct client *cl;
	uint64_t off;
	int result;
};

static void *acquire_page(void *arg)
{
	struct acquire *a = arg;

	thread_relied_on(post_waits, &waits);
	a->result = client_acquire(a->cl, a->off, 1, GAIA_PROT_READ);
	return NULL;
}

/* Their answer is about the old memory. */
Test(asked, sharers_get_the_new_memory_when_they_have_answered, .timeout = 60)
{
	struct acquire a;
	pthread_t thread;
	char seen[4];

	begin_asking(8);
	a = (struct acquire){ .cl = asking.sharer, .off = LATE };
	sem_init(&waits, 0, 0);
	fault_hold("acquire.awaits_grant");
	cr_assert_eq(pthread_create(&thread, NULL, acquire_page, &a), 0);
	fault_await_held("acquire.awaits_grant");
	fault_let_go("acquire.awaits_grant");
	end_asking();
	pthread_join(thread, NULL);
	cr_assert_eq(a.result, 0);
	lie(&asking.left);
	client_load(asking.sharer, seen, 4, LATE);
	cr_assert_eq(memcmp(seen, "true", 4), 0);
	left_end(&asking.left);
}

/* An acquire that needs room takes the old memory for as good as free. */
Test(asked, sharers_are_waited_for_by_who_needs_their_room, .timeout = 60)
{
	struct client *other;
	struct acquire a;
	pthread_t thread;

	begin_asking(2);
	other = new_client(0);
	expect_device(other, CALM, "calm");
	a = (struct acquire){ .cl = new_client(0), .off = GAIA_CHUNK };
	sem_init(&waits, 0, 0);
	cr_assert_eq(pthread_create(&thread, NULL, acquire_page, &a), 0);
	sem_wait(&waits);
	end_asking();
	pthread_join(thread, NULL);
	cr_assert_eq(a.result, 0);
	left_end(&asking.left);
}
