/*
 * thread.c - see thread.h.
 *
 * At least one thread of a pool lives from pool_create() to pool_destroy(), so
 * that jobs get done even if no further thread can be started.
 */
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>
#include <uthash.h>

#include "base/latency.h"
#include "base/util.h"

#define IDLE_SECONDS 3
#define NAME_SIZE 16 /* the kernel's, with the NUL */

/* Lives from pool_submit() until a thread has taken it. */
struct job {
	STAILQ_ENTRY(job) link;
	void (*fn)(void *arg);
	void *arg;
	struct sharer *sharer; /* NULL: submitted for nobody in particular */
};
STAILQ_HEAD(job_list, job);

/* A user who has jobs in a pool. The pool's lock. */
struct sharer {
	uid_t uid;
	bool owner;
	unsigned at_work;	/* jobs in pool.jobs or on a thread */
	struct job_list waiting; /* jobs that wait for their turn: only while enough others are at work */
	TAILQ_ENTRY(sharer) link; /* pool.next_turn, iff jobs are waiting */
	UT_hash_handle hh;	/* by uid */
};

struct pool {
	/* Constant after creation. */
	char name[NAME_SIZE];
	unsigned limit;
	unsigned each, users;	/* see pool_share() */

	pthread_mutex_t lock;
	pthread_cond_t work;  /* a job was queued, or stopping was set; CLOCK_MONOTONIC */
	pthread_cond_t ended; /* threads became 0 */

	/* lock. */
	struct job_list jobs;
	struct sharer *sharers;
	TAILQ_HEAD(, sharer) next_turn; /* the user who had a turn last is at the end */
	unsigned users_at_work; /* jobs, without the owners' */
	unsigned queued;  /* length of jobs */
	unsigned put_off; /* jobs that wait for their users' turns */
	unsigned busy;	  /* jobs that threads have in hand */
	unsigned threads; /* those that have not decided to end */
	unsigned idle;	  /* threads that wait on work */
	bool stopping;
	/*
	 * The thread that ended last. It joins the one that ended before it, so
	 * joining this one joins all that ever ended.
	 */
	pthread_t last;
	bool has_last;

	LIST_ENTRY(pool) link; /* all_lock */
};

/* Taken before a pool's lock. */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, pool) all_pools = LIST_HEAD_INITIALIZER(all_pools);

void thread_set_name(const char *name)
{
	char cut[NAME_SIZE];

	snprintf(cut, sizeof(cut), "%s", name);
	pthread_setname_np(pthread_self(), cut);
}

/* Wait for a job; false: the thread must end instead. The lock is held, but dropped while the thread waits. */
static bool wait_for_job(struct pool *pool)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += IDLE_SECONDS;
	while (STAILQ_EMPTY(&pool->jobs)) {
		int err;

		if (pool->stopping)
			return false;
		pool->idle++;
		if (pool->threads > 1)
			err = pthread_cond_timedwait(&pool->work, &pool->lock, &until);
		else
			err = pthread_cond_wait(&pool->work, &pool->lock);
		pool->idle--;
		if (err == ETIMEDOUT && STAILQ_EMPTY(&pool->jobs) && pool->threads > 1)
			return false;
	}
	return true;
}

/* What remains to be done after enqueue(), once the lock is dropped: a woken thread wants the lock at once. */
enum help { WAKE_THREAD, START_THREAD };

/* The lock is held here and in the next three functions. */
static enum help enqueue(struct pool *pool, struct job *job)
{
	STAILQ_INSERT_TAIL(&pool->jobs, job, link);
	pool->queued++;
	if (pool->queued <= pool->idle || pool->threads == pool->limit)
		return WAKE_THREAD;
	pool->threads++;
	return START_THREAD;
}

static bool has_turn(const struct pool *pool, const struct sharer *s)
{
	return s->owner || (s->at_work < pool->each && pool->users_at_work < pool->users);
}

static void take_turn(struct pool *pool, struct sharer *s)
{
	s->at_work++;
	pool->users_at_work += !s->owner;
}

/*
 * A job for @s is done. So at most one other gets its turn, of this user or another. No thread needs to be woken for it,
 * since the caller takes the next job.
 */
static void pass_turn(struct pool *pool, struct sharer *s)
{
	struct sharer *next;

	s->at_work--;
	pool->users_at_work -= !s->owner;
	TAILQ_FOREACH(next, &pool->next_turn, link) {
		struct job *job = STAILQ_FIRST(&next->waiting);

		if (!has_turn(pool, next))
			continue;
		STAILQ_REMOVE_HEAD(&next->waiting, link);
		pool->put_off--;
		TAILQ_REMOVE(&pool->next_turn, next, link);
		if (!STAILQ_EMPTY(&next->waiting))
			TAILQ_INSERT_TAIL(&pool->next_turn, next, link);
		take_turn(pool, next);
		STAILQ_INSERT_TAIL(&pool->jobs, job, link);
		pool->queued++;
		break;
	}
	if (!s->at_work && STAILQ_EMPTY(&s->waiting)) {
		HASH_DEL(pool->sharers, s);
		free(s);
	}
}

static void *worker(void *arg)
{
	struct pool *pool = arg;
	pthread_t previous;
	bool has_previous;

	thread_set_name(pool->name);
	latency_set_choose();
	pthread_mutex_lock(&pool->lock);
	while (wait_for_job(pool)) {
		struct job *job = STAILQ_FIRST(&pool->jobs);
		void (*fn)(void *) = job->fn;
		void *fn_arg = job->arg;
		struct sharer *sharer = job->sharer;

		STAILQ_REMOVE_HEAD(&pool->jobs, link);
		pool->queued--;
		pool->busy++;
		pthread_mutex_unlock(&pool->lock);
		free(job);
		fn(fn_arg);
		pthread_mutex_lock(&pool->lock);
		pool->busy--;
		if (sharer)
			pass_turn(pool, sharer);
	}
	previous = pool->last;
	has_previous = pool->has_last;
	pool->last = pthread_self();
	pool->has_last = true;
	if (--pool->threads == 0)
		pthread_cond_signal(&pool->ended);
	pthread_mutex_unlock(&pool->lock);
	/* The pool may be gone from here on: do not touch it. */
	if (has_previous)
		pthread_join(previous, NULL);
	return NULL;
}

/* Returns a positive errno, as pthread_create(). The thread is counted in pool->threads already. */
static int start_thread(struct pool *pool)
{
	sigset_t mask, old;
	pthread_t id;
	int err;

	/* Signals are for the main loop, except for those that the thread's own faults raise. */
	sigfillset(&mask);
	sigdelset(&mask, SIGSEGV);
	sigdelset(&mask, SIGBUS);
	sigdelset(&mask, SIGFPE);
	sigdelset(&mask, SIGILL);
	sigdelset(&mask, SIGABRT);
	sigdelset(&mask, SIGTRAP);
	pthread_sigmask(SIG_SETMASK, &mask, &old);
	err = pthread_create(&id, NULL, worker, pool);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err;
}

/* A thread that is counted could not be started: count it no longer, unless it is the only one. Whether that was possible. */
static bool do_without(struct pool *pool)
{
	bool others;

	pthread_mutex_lock(&pool->lock);
	others = pool->threads > 1;
	pool->threads -= others;
	pthread_mutex_unlock(&pool->lock);
	return others;
}

/* Called without the lock. */
static void help(struct pool *pool, enum help how)
{
	if (how == WAKE_THREAD) {
		pthread_cond_signal(&pool->work);
		return;
	}
	/* If no thread can be started the job waits for an existing one. The last of these may have ended meanwhile: try again. */
	while (start_thread(pool) && !do_without(pool))
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
}

int pool_create(const char *name, unsigned limit, struct pool **out)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	pthread_condattr_t attr;
	int err;

	if (!pool)
		return -ENOMEM;
	bug_on(limit == 0);
	snprintf(pool->name, sizeof(pool->name), "%s", name);
	pool->limit = limit;
	STAILQ_INIT(&pool->jobs);
	TAILQ_INIT(&pool->next_turn);
	/* On Linux none of these calls fails for these arguments. */
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->ended, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&pool->work, &attr);
	pthread_condattr_destroy(&attr);
	pool->threads = 1;
	err = start_thread(pool);
	if (err)
		goto free_pool;
	pthread_mutex_lock(&all_lock);
	LIST_INSERT_HEAD(&all_pools, pool, link);
	pthread_mutex_unlock(&all_lock);
	*out = pool;
	return 0;

free_pool:
	pthread_cond_destroy(&pool->work);
	pthread_cond_destroy(&pool->ended);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
	return -err;
}

void pool_destroy(struct pool *pool)
{
	pthread_mutex_lock(&all_lock);
	LIST_REMOVE(pool, link);
	pthread_mutex_unlock(&all_lock);
	pthread_mutex_lock(&pool->lock);
	pool->stopping = true;
	pthread_cond_broadcast(&pool->work);
	while (pool->threads > 0)
		pthread_cond_wait(&pool->ended, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
	pthread_join(pool->last, NULL);
	bug_on(pool->sharers);
	pthread_cond_destroy(&pool->work);
	pthread_cond_destroy(&pool->ended);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

unsigned pools_look(struct pool_use *out, unsigned most)
{
	struct pool *pool;
	unsigned n = 0;

	pthread_mutex_lock(&all_lock);
	LIST_FOREACH(pool, &all_pools, link) {
		if (n == most)
			break;
		pthread_mutex_lock(&pool->lock);
		out[n] = (struct pool_use){ .threads = pool->limit, .busy = pool->busy, .waiting = pool->queued + pool->put_off };
		pthread_mutex_unlock(&pool->lock);
		memcpy(out[n++].name, pool->name, sizeof(pool->name));
	}
	pthread_mutex_unlock(&all_lock);
	return n;
}

static struct job *new_job(void (*fn)(void *arg), void *arg)
{
	struct job *job = xcalloc(1, sizeof(*job));

	job->fn = fn;
	job->arg = arg;
	return job;
}

void pool_submit(struct pool *pool, void (*fn)(void *arg), void *arg)
{
	struct job *job = new_job(fn, arg);
	enum help how;

	pthread_mutex_lock(&pool->lock);
	how = enqueue(pool, job);
	pthread_mutex_unlock(&pool->lock);
	help(pool, how);
}

void pool_share(struct pool *pool, unsigned each, unsigned users)
{
	bug_on(!each || !users);
	pool->each = each;
	pool->users = users;
}

void pool_submit_for(struct pool *pool, uid_t uid, bool owner, void (*fn)(void *arg), void *arg)
{
	struct job *job = new_job(fn, arg);
	enum help how = WAKE_THREAD;
	struct sharer *s;
	bool turn;

	pthread_mutex_lock(&pool->lock);
	HASH_FIND(hh, pool->sharers, &uid, sizeof(uid), s);
	if (!s) {
		s = xcalloc(1, sizeof(*s));
		s->uid = uid;
		s->owner = owner;
		STAILQ_INIT(&s->waiting);
		HASH_ADD(hh, pool->sharers, uid, sizeof(s->uid), s);
	}
	job->sharer = s;
	turn = has_turn(pool, s);
	if (turn) {
		take_turn(pool, s);
		how = enqueue(pool, job);
	} else {
		if (STAILQ_EMPTY(&s->waiting))
			TAILQ_INSERT_TAIL(&pool->next_turn, s, link);
		STAILQ_INSERT_TAIL(&s->waiting, job, link);
		pool->put_off++;
	}
	pthread_mutex_unlock(&pool->lock);
	if (turn)
		help(pool, how);
}

void cond_init_monotonic(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

static __thread struct {
	void (*before_wait)(void *arg);
	void *arg;
} reliance;

void thread_relied_on(void (*before_wait)(void *arg), void *arg)
{
	reliance.before_wait = before_wait;
	reliance.arg = arg;
}

bool thread_is_relied_on(void)
{
	return reliance.before_wait;
}

void thread_waits(void)
{
	if (reliance.before_wait)
		reliance.before_wait(reliance.arg);
}
