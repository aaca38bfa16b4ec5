/*
 * base_thread.c - tests of base/thread.h.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"

#define JOBS 2000
#define LIMIT 4

static struct pool *pool;
static atomic_uint ran, running, most;
static sem_t started, gate;

static struct pool *new_pool(unsigned limit)
{
	struct pool *p;

	cr_assert_eq(pool_create("test-pool", limit, &p), 0);
	return p;
}

static void begin(void)
{
	sem_init(&started, 0, 0);
	sem_init(&gate, 0, 0);
	pool = new_pool(LIMIT);
}

static void bump(void *arg)
{
	unsigned now = atomic_fetch_add(&running, 1) + 1;
	unsigned seen = atomic_load(&most);

	(void)arg;
	while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now))
		;
	sched_yield();
	atomic_fetch_sub(&running, 1);
	atomic_fetch_add(&ran, 1);
}

static void wait_at_gate(void *arg)
{
	(void)arg;
	sem_post(&started);
	sem_wait(&gate);
	atomic_fetch_add(&ran, 1);
}

TestSuite(pool, .init = begin);

Test(pool, destroy_runs_all_that_was_submitted)
{
	for (int i = 0; i < JOBS; i++)
		pool_submit(pool, bump, NULL);
	pool_destroy(pool);
	cr_assert_eq(ran, JOBS);
}

Test(pool, destroy_of_an_idle_one_returns)
{
	pool_destroy(pool);
}

Test(pool, never_runs_more_jobs_at_once_than_its_limit)
{
	for (int i = 0; i < JOBS; i++)
		pool_submit(pool, bump, NULL);
	pool_destroy(pool);
	cr_assert_leq(most, LIMIT);
}

Test(pool, blocked_jobs_do_not_starve_others)
{
	/* All but one thread are stuck; whatever comes then still runs. */
	for (int i = 0; i < LIMIT - 1; i++)
		pool_submit(pool, wait_at_gate, NULL);
	for (int i = 0; i < LIMIT - 1; i++)
		sem_wait(&started);
	for (int i = 0; i < 100; i++)
		pool_submit(pool, bump, NULL);
	while (atomic_load(&ran) < 100)
		sched_yield();
	for (int i = 0; i < LIMIT - 1; i++)
		sem_post(&gate);
	pool_destroy(pool);
	cr_assert_eq(ran, 100 + LIMIT - 1);
}

Test(pool, grows_to_its_limit_and_queues_the_rest)
{
	int value;

	for (int i = 0; i < LIMIT + 2; i++)
		pool_submit(pool, wait_at_gate, NULL);
	for (int i = 0; i < LIMIT; i++)
		sem_wait(&started);
	/* All threads are known to be stuck: nobody can have started another. */
	sem_getvalue(&started, &value);
	cr_assert_eq(value, 0);
	for (int i = 0; i < LIMIT + 2; i++)
		sem_post(&gate);
	pool_destroy(pool);
	cr_assert_eq(ran, LIMIT + 2);
}

static int order[JOBS];
static int n_order;

static void note_order(void *arg)
{
	order[n_order++] = *(int *)arg;
}

Test(pool, one_thread_keeps_the_order_of_submission)
{
	static int numbers[JOBS];
	struct pool *one = new_pool(1);

	for (int i = 0; i < JOBS; i++) {
		numbers[i] = i;
		pool_submit(one, note_order, &numbers[i]);
	}
	pool_destroy(one);
	cr_assert_eq(n_order, JOBS);
	for (int i = 0; i < JOBS; i++)
		cr_assert_eq(order[i], i);
	pool_destroy(pool);
}

static void submit_another(void *arg)
{
	sem_wait(&gate);
	pool_submit(arg, bump, NULL);
}

static void *open_gate(void *arg)
{
	(void)arg;
	for (int i = 0; i < LIMIT; i++)
		sem_post(&gate);
	return NULL;
}

Test(pool, jobs_submitted_by_jobs_run_too)
{
	pthread_t opener;

	for (int i = 0; i < LIMIT; i++)
		pool_submit(pool, submit_another, pool);
	pthread_create(&opener, NULL, open_gate, NULL);
	pool_destroy(pool);
	pthread_join(opener, NULL);
	cr_assert_eq(ran, LIMIT);
}

static void *submit_many(void *arg)
{
	(void)arg;
	for (int i = 0; i < JOBS; i++)
		pool_submit(pool, bump, NULL);
	return NULL;
}

Test(pool, takes_jobs_from_any_thread)
{
	pthread_t threads[3];

	for (int i = 0; i < 3; i++)
		cr_assert_eq(pthread_create(&threads[i], NULL, submit_many, NULL), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	pool_destroy(pool);
	cr_assert_eq(ran, 3 * JOBS);
}

static unsigned threads_named(const char *name)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	unsigned n = 0;

	while ((entry = readdir(dir))) {
		char path[300], text[32] = "";
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		f = fopen(path, "r");
		if (!f)
			continue;
		if (fgets(text, sizeof(text), f)) {
			text[strcspn(text, "\n")] = '\0';
			n += strcmp(text, name) == 0;
		}
		fclose(f);
	}
	closedir(dir);
	return n;
}

Test(pool, idle_threads_end_but_one)
{
	for (int i = 0; i < LIMIT; i++)
		pool_submit(pool, wait_at_gate, NULL);
	for (int i = 0; i < LIMIT; i++)
		sem_wait(&started);
	cr_assert_eq(threads_named("test-pool"), LIMIT);
	for (int i = 0; i < LIMIT; i++)
		sem_post(&gate);
	while (threads_named("test-pool") > 1)
		usleep(20000);
	/* And it grows again. */
	for (int i = 0; i < LIMIT; i++)
		pool_submit(pool, wait_at_gate, NULL);
	for (int i = 0; i < LIMIT; i++)
		sem_wait(&started);
	for (int i = 0; i < LIMIT; i++)
		sem_post(&gate);
	pool_destroy(pool);
	cr_assert_eq(ran, 2 * LIMIT);
}

static void note_signals(void *arg)
{
	pthread_sigmask(SIG_SETMASK, NULL, arg);
}

Test(pool, leaves_signals_to_the_main_thread)
{
	sigset_t mask;

	pool_submit(pool, note_signals, &mask);
	pool_destroy(pool);
	cr_assert(sigismember(&mask, SIGTERM));
	cr_assert(sigismember(&mask, SIGINT));
	cr_assert_not(sigismember(&mask, SIGSEGV));
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	cr_assert_not(sigismember(&mask, SIGTERM));
}

Test(thread, a_long_name_is_cut)
{
	char name[16];

	thread_set_name("a-name-of-more-than-fifteen-bytes");
	pthread_getname_np(pthread_self(), name, sizeof(name));
	cr_assert_str_eq(name, "a-name-of-more-");
}

static void note_wait(void *n)
{
	++*(unsigned *)n;
}

Test(relied_on, a_thread_tells_before_it_waits_while_it_is)
{
	unsigned waits = 0;

	thread_waits();
	cr_assert_not(thread_is_relied_on());
	thread_relied_on(note_wait, &waits);
	cr_assert(thread_is_relied_on());
	thread_waits();
	cr_assert_eq(waits, 1);
	thread_relied_on(NULL, NULL);
	thread_waits();
	cr_assert_eq(waits, 1);
}

/* ---- shared by users ---- */

#define OWNER 0
#define ALICE 1000
#define BOB 1001
#define CAROL 1002

static sem_t done;

static void say_done(void *arg)
{
	(void)arg;
	sem_post(&done);
}

/* Eight threads: three for each user, five for all. */
static void begin_shared(void)
{
	sem_init(&started, 0, 0);
	sem_init(&gate, 0, 0);
	sem_init(&done, 0, 0);
	pool = new_pool(8);
	pool_share(pool, 3, 5);
}

/* @n jobs that block, of which @run get a thread. */
static void block(uid_t uid, unsigned n, unsigned run)
{
	while (n--)
		pool_submit_for(pool, uid, uid == OWNER, wait_at_gate, NULL);
	while (run--)
		sem_wait(&started);
}

static void let_go(unsigned n)
{
	while (n--)
		sem_post(&gate);
}

Test(share, one_users_blocked_jobs_hold_up_no_other, .init = begin_shared)
{
	block(ALICE, 200, 3);
	pool_submit_for(pool, BOB, false, say_done, NULL);
	pool_submit_for(pool, OWNER, true, say_done, NULL);
	sem_wait(&done);
	sem_wait(&done);
	cr_assert_eq(atomic_load(&ran), 0);
	cr_assert_neq(sem_trywait(&started), 0);
	let_go(200);
	pool_destroy(pool);
	cr_assert_eq(atomic_load(&ran), 200);
}

Test(share, all_users_leave_threads_to_the_owners, .init = begin_shared)
{
	block(ALICE, 10, 3);
	block(BOB, 10, 2);
	pool_submit_for(pool, CAROL, false, say_done, NULL);
	block(OWNER, 3, 3);
	/* All threads are blocked. */
	cr_assert_eq(atomic_load(&ran), 0);
	cr_assert_neq(sem_trywait(&done), 0);
	let_go(23);
	pool_destroy(pool);
	cr_assert_eq(sem_trywait(&done), 0);
	cr_assert_eq(atomic_load(&ran), 23);
}

static char turns[16];
static atomic_uint n_turns;

static void note(void *arg)
{
	turns[atomic_fetch_add(&n_turns, 1)] = *(const char *)arg;
}

Test(share, users_who_wait_take_turns, .init = begin_shared)
{
	static char a = 'a', b = 'b';

	pool_destroy(pool);
	pool = new_pool(1);
	pool_share(pool, 1, 1);
	block(CAROL, 1, 1);
	for (int i = 0; i < 3; i++)
		pool_submit_for(pool, ALICE, false, note, &a);
	for (int i = 0; i < 3; i++)
		pool_submit_for(pool, BOB, false, note, &b);
	let_go(1);
	pool_destroy(pool);
	cr_assert_str_eq(turns, "ababab");
}

static sem_t may_end, has_begun;

static void wait_to_end(void *arg)
{
	(void)arg;
	sem_post(&has_begun);
	while (sem_wait(&may_end))
		;
}

static struct pool_use use_of(const char *name)
{
	struct pool_use use[8];
	unsigned n = pools_look(use, 8);

	for (unsigned i = 0; i < n; i++)
		if (!strcmp(use[i].name, name))
			return use[i];
	return (struct pool_use){ .name = "" };
}

/* Those that wait for a thread, and those that wait for their users' turns. */
Test(pools, say_what_they_have_to_do)
{
	struct pool *looked, *other;
	struct pool_use use;

	sem_init(&may_end, 0, 0);
	sem_init(&has_begun, 0, 0);
	cr_assert_eq(pool_create("looked-at", 3, &looked), 0);
	cr_assert_eq(pool_create("other", 1, &other), 0);
	pool_share(looked, 2, 2);
	use = use_of("looked-at");
	cr_assert_eq(use.threads, 3);
	cr_assert_eq(use.busy + use.waiting, 0);
	for (int i = 0; i < 4; i++)
		pool_submit_for(looked, 1000, false, wait_to_end, NULL);
	for (int i = 0; i < 3; i++)
		pool_submit(looked, wait_to_end, NULL);
	for (int i = 0; i < 3; i++)
		sem_wait(&has_begun);
	use = use_of("looked-at");
	cr_assert_eq(use.busy, 3);
	cr_assert_eq(use.waiting, 4);
	cr_assert_eq(use_of("other").busy, 0);
	pool_destroy(other);
	cr_assert_str_eq(use_of("other").name, "");
	for (int i = 0; i < 7; i++)
		sem_post(&may_end);
	pool_destroy(looked);
	cr_assert_eq(pools_look(&use, 1), 0);
}
