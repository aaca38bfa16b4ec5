/*
 * cache_turns.c - who gets a page next that several wait for: exclusively (writes, acquires, releases), or shared (reads,
 * storing). Neither kind keeps the other out; and who has a page already does not wait for it behind others.
 */
#include <sched.h>

#include "cache_scene.h"
#include "held.h"
#include "pagecache/internal.h"

#define AT(page) ((uint64_t)(page) * GAIA_PAGE)
#define PATIENCE 20000 /* ms: a call that takes longer hangs */

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

/* Of those who wait for the page. */
static unsigned waiting(int page, bool exclusively)
{
	struct chunk *ch = chunk_get(kf->cfile, (uint64_t)page / GAIA_CHUNK_PAGES, false);
	const struct page *p;
	unsigned n;

	pthread_mutex_lock(&ch->lock);
	p = page_at(ch, (unsigned)page % GAIA_CHUNK_PAGES);
	n = exclusively ? p->lockers : p->sharers;
	pthread_mutex_unlock(&ch->lock);
	chunk_put(ch);
	return n;
}

/* Until it waits for its page, or is through. */
static void settle(const struct call *c, bool exclusively, unsigned n)
{
	while (!c->done && waiting(c->page, exclusively) < n)
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
	while (waiting(7, true) == 0)
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
 * A read that has some of its pages needs memory for the others. What is stored to make room may be what it has: it must not
 * wait for that behind who waits for it.
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
