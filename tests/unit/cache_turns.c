/*
 * cache_turns.c - which of several waiting threads gets a page next: those that want it exclusively (writes, acquires, releases), or
 * shared (reads, storing). Neither kind keeps the other out; and a thread that has a page already does not wait for it behind others.
 */
#include <sched.h>

#include "held.h"
#include "page_waiters.h"

#define AT(page) ((uint64_t)(page) * GAIA_PAGE)

/* ---- calls on threads of their own ---- */

struct call {
	pthread_t thread;
	int page;
	char text[8]; /* written; or what was read */
	atomic_bool done;
};

static void *write_main(void *arg)
{
	struct call *c = arg;

	cr_assert_eq(cpu_write_direct(kf, c->text, strlen(c->text), AT(c->page)), 0);
	c->done = true;
	return NULL;
}

static void *read_main(void *arg)
{
	struct call *c = arg;

	cr_assert_eq(cpu_read_direct(kf, c->text, 4, AT(c->page)), 4);
	c->done = true;
	return NULL;
}

static void start(struct call *c, void *(*fn)(void *))
{
	cr_assert_eq(pthread_create(&c->thread, NULL, fn, c), 0);
}

/* Until it waits for its page, or is through. */
static void settle(const struct call *c, bool exclusively, unsigned n)
{
	while (!c->done && page_waiters((uint64_t)c->page, exclusively) < n)
		sched_yield();
}

/* ---- turns ---- */

Test(turns, a_write_goes_before_reads_that_come_later, .timeout = PATIENCE / 1000)
{
	struct call writer = { .page = 3, .text = "new!" }, reader = { .page = 3 };
	struct cache_read rd;

	begin(&(struct rig_options){ .devices = 0 }, GAIA_CHUNK);
	cr_assert_eq(cpu_write_direct(kf, "old!", 4, AT(3)), 0);
	cr_assert_eq(cache_read_begin(kf->cfile, (off_t)AT(3), 4, false, &rd), 0);
	start(&writer, write_main);
	settle(&writer, true, 1);
	cr_assert_not(writer.done, "the page is read just now");
	start(&reader, read_main);
	settle(&reader, false, 1);
	cr_assert_not(reader.done, "it came after the write, which still waits");
	cache_read_end(&rd);
	pthread_join(writer.thread, NULL);
	pthread_join(reader.thread, NULL);
	cr_assert_str_eq(reader.text, "new!");
	end();
}

static int acquire_page_7(void *client)
{
	return client_acquire(client, AT(7), GAIA_PAGE, GAIA_PROT_READ);
}

/* An acquire waits for all pages of its range, one after the other. */
Test(turns, so_does_an_acquire, .timeout = PATIENCE / 1000)
{
	struct call reader = { .page = 7 };
	struct client *cl;
	struct cache_read rd;
	struct held acquire;

	begin_devices(1);
	cl = new_client(0);
	cr_assert_eq(cpu_write_direct(kf, "old!", 4, AT(7)), 0);
	cr_assert_eq(cache_read_begin(kf->cfile, (off_t)AT(7), 4, false, &rd), 0);
	acquire = (struct held){ .call = acquire_page_7, .arg = cl };
	cr_assert_eq(pthread_create(&acquire.thread, NULL, held_main, &acquire), 0);
	while (page_waiters(7, true) == 0)
		sched_yield();
	start(&reader, read_main);
	settle(&reader, false, 1);
	cr_assert_not(reader.done, "it came after the acquire, which still waits");
	cache_read_end(&rd);
	pthread_join(acquire.thread, NULL);
	cr_assert_eq(acquire.result, 0);
	pthread_join(reader.thread, NULL);
	end();
}

Test(turns, reads_that_wait_go_before_the_next_write, .timeout = PATIENCE / 1000)
{
	struct call first = { .page = 3, .text = "one!" }, reader = { .page = 3 };
	struct call second = { .page = 3, .text = "two!" };

	begin(&(struct rig_options){ .devices = 0 }, GAIA_CHUNK);
	/* It has the page locked, and reads the rest of it. */
	fault_hold("store.read");
	start(&first, write_main);
	fault_await_held("store.read");
	start(&reader, read_main);
	settle(&reader, false, 1);
	start(&second, write_main);
	settle(&second, true, 1);
	fault_let_go("store.read");
	pthread_join(reader.thread, NULL);
	cr_assert_str_eq(reader.text, "one!");
	pthread_join(first.thread, NULL);
	pthread_join(second.thread, NULL);
	expect_cpu(AT(3), "two!");
	end();
}

/*
 * A read that has some of its pages needs memory for the others. The pages that are stored to make room may be those that it has: it
 * must not wait for them behind threads that wait for it.
 */
Test(turns, who_has_a_page_makes_room_without_waiting_for_it, .timeout = PATIENCE / 1000)
{
	struct call writer = { .page = 3, .text = "new!" };
	struct kfile *other;
	struct cache_read has, needs;
	uint64_t overcommit;

	begin(&(struct rig_options){ .devices = 0, .home_bytes = CACHE_HOME_MIN }, CACHE_HOME_MIN);
	other = kfile_create(rig, 2, GAIA_CHUNK);
	/* All of home is dirty, and of one file. */
	for (uint64_t at = 0; at < CACHE_HOME_MIN; at += GAIA_PAGE)
		cr_assert_eq(cpu_write_direct(kf, "old!", 4, at), 0);
	cr_assert_eq(cache_read_begin(kf->cfile, (off_t)AT(3), 4, false, &has), 0);
	start(&writer, write_main);
	settle(&writer, true, 1);
	overcommit = counter_value(CTR_home_overcommit);
	for (unsigned i = 0; i < 64; i++) {
		cr_assert_eq(cache_read_begin(other->cfile, (off_t)AT(i), 4, false, &needs), 0);
		cache_read_end(&needs);
	}
	cr_assert_eq(counter_value(CTR_home_overcommit), overcommit, "the others were stored");
	cr_assert_not(writer.done);
	cache_read_end(&has);
	pthread_join(writer.thread, NULL);
	kfile_end(other, false);
	end();
}

/* ---- writes do not wait for what is being stored ---- */

static int flush_file(void *none)
{
	return cache_flush(kf->cfile);
}

static void write_back(const char *text)
{
	write_cpu(0, text);
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
}

static void expect_home(const char *text)
{
	kernel_reclaim(kf, 0, 0);
	expect_cpu(0, text);
}

/* Its first page has "old", which is on its way to the store. */
static void begin_storing(struct held *flush)
{
	begin_devices(1);
	write_back("old");
	*flush = (struct held){ .point = "store.write", .call = flush_file };
	held_begin(flush);
}

Test(storing, is_not_waited_for_by_a_write_back, .timeout = PATIENCE / 1000)
{
	uint64_t frames, stored = counter_value(CTR_storage_writes);
	struct held flush;

	begin_storing(&flush);
	frames = rig_frames(rig);
	write_back("new");
	expect_home("new");
	cr_assert_eq(rig_frames(rig), frames + 1);
	write_back("2nd");
	expect_home("2nd");
	cr_assert_eq(rig_frames(rig), frames + 1);
	cr_assert_eq(held_end(&flush), 0);
	expect_store(0, "old");
	cr_assert_eq(rig_frames(rig), frames);
	cache_check(rig->cache);
	cr_assert_eq(cache_flush(kf->cfile), 0);
	expect_store(0, "2nd");
	cr_assert_eq(counter_value(CTR_storage_writes) - stored, 2);
	end();
}

Test(storing, that_fails_leaves_what_was_written_meanwhile, .timeout = PATIENCE / 1000)
{
	struct held flush;

	fault_arm("store.write", -EIO, 0, 1);
	begin_storing(&flush);
	write_back("new");
	cr_assert_eq(held_end(&flush), -EIO);
	cache_check(rig->cache);
	expect_home("new");
	cr_assert_eq(cache_flush(kf->cfile), 0);
	expect_store(0, "new");
	end();
}

static void *fsync_main(void *arg)
{
	struct call *c = arg;

	cr_assert_eq(cache_fsync(kf->cfile, 0, 0, true), 0);
	c->done = true;
	return NULL;
}

/* Otherwise what it stores would be written over by what was there before. */
Test(storing, is_waited_for_by_a_sync_of_what_is_newer, .timeout = PATIENCE / 1000)
{
	struct call sync = { .done = false };
	struct held flush;

	begin_storing(&flush);
	write_back("new");
	start(&sync, fsync_main);
	/* Time for a sync that would not wait. */
	for (int k = 0; k < 1000; k++)
		sched_yield();
	cr_assert(!sync.done);
	/* Nor does it keep writers from the page. */
	write_back("2nd");
	cr_assert_eq(held_end(&flush), 0);
	pthread_join(sync.thread, NULL);
	expect_store(0, "2nd");
	end();
}

/* Of home's old bytes, which are being stored, one copy more is kept for the merge to come. */
Test(storing, of_a_base_goes_on_beside_a_write_and_a_merge, .timeout = PATIENCE / 1000)
{
	struct client *cl;
	struct held flush;

	begin_storing(&flush);
	cr_assert_eq(held_end(&flush), 0);
	cl = new_client(0);
	write_device(cl, GAIA_PAGE - 3, "dev");
	write_back("mid");
	held_begin(&flush);
	write_back("new");
	expect_home("new");
	cr_assert_eq(held_end(&flush), 0);
	expect_store(0, "mid");
	release_all(cl);
	cr_assert_eq(cpu_fsync(kf), 0);
	expect_store(0, "new");
	expect_store(GAIA_PAGE - 3, "dev");
	end();
}

static int acquire_page_0(void *client)
{
	return client_acquire(client, 0, GAIA_PAGE, GAIA_PROT_READ);
}

/* Others that change a page, or give it to a device, get it once it is stored. */
Test(storing, is_waited_for_by_an_acquire_but_not_by_writes_beside_it, .timeout = PATIENCE / 1000)
{
	struct held flush, acquire = { .call = acquire_page_0 };
	char seen[4] = "";

	begin_storing(&flush);
	acquire.arg = new_client(0);
	cr_assert_eq(pthread_create(&acquire.thread, NULL, held_main, &acquire), 0);
	while (page_waiters(0, true) == 0)
		sched_yield();
	write_back("new");
	cr_assert_eq(held_end(&flush), 0);
	pthread_join(acquire.thread, NULL);
	cr_assert_eq(acquire.result, 0);
	client_load(acquire.arg, seen, 3, 0);
	cr_assert_str_eq(seen, "new");
	end();
}
