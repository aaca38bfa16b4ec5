/*
 * thread.c - see thread.h.
 *
 * At least one thread of a pool lives from pool_create() to pool_destroy(), so
 * that a job gets done also when no further thread can be had.
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

#include "base/util.h"

#define IDLE_SECONDS 3
#define NAME_SIZE 16 /* the kernel's, with the NUL */

/* Lives from pool_submit() until a thread has taken it. */
struct job {
	STAILQ_ENTRY(job) link;
	void (*fn)(void *arg);
	void *arg;
};

struct pool {
	/* Constant after creation. */
	char name[NAME_SIZE];
	unsigned limit;

	pthread_mutex_t lock;
	pthread_cond_t work;  /* a job was queued, or stopping was set; CLOCK_MONOTONIC */
	pthread_cond_t ended; /* threads became 0 */

	/* lock. */
	STAILQ_HEAD(, job) jobs;
	unsigned queued;  /* length of jobs */
	unsigned threads; /* that have not decided to end */
	unsigned idle;	  /* threads that wait on work */
	bool stopping;
	/*
	 * The thread that ended last. It joins the one that ended before it, so
	 * joining this one joins all that ever ended.
	 */
	pthread_t last;
	bool has_last;
};

void thread_set_name(const char *name)
{
	char cut[NAME_SIZE];

	snprintf(cut, sizeof(cut), "%s", name);
	pthread_setname_np(pthread_self(), cut);
}

/* Wait for a job; false when this thread shall end instead. Called and returns with the lock. */
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

static void *worker(void *arg)
{
	struct pool *pool = arg;
	pthread_t previous;
	bool has_previous;

	thread_set_name(pool->name);
	pthread_mutex_lock(&pool->lock);
	while (wait_for_job(pool)) {
		struct job *job = STAILQ_FIRST(&pool->jobs);
		void (*fn)(void *) = job->fn;
		void *fn_arg = job->arg;

		STAILQ_REMOVE_HEAD(&pool->jobs, link);
		pool->queued--;
		pthread_mutex_unlock(&pool->lock);
		free(job);
		fn(fn_arg);
		pthread_mutex_lock(&pool->lock);
	}
	previous = pool->last;
	has_previous = pool->has_last;
	pool->last = pthread_self();
	pool->has_last = true;
	if (--pool->threads == 0)
		pthread_cond_signal(&pool->ended);
	pthread_mutex_unlock(&pool->lock);
	/* Not a word to the pool from here on: it may be gone. */
	if (has_previous)
		pthread_join(previous, NULL);
	return NULL;
}

/* A positive errno, as pthread_create(). Called with the lock. */
static int start_thread(struct pool *pool)
{
	sigset_t mask, old;
	pthread_t id;
	int err;

	/* Signals are for the main loop; faults of a thread itself stay its own. */
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
	if (!err)
		pool->threads++;
	return err;
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
	/* On Linux none of these fail for these arguments. */
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->ended, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&pool->work, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_lock(&pool->lock);
	err = start_thread(pool);
	pthread_mutex_unlock(&pool->lock);
	if (err)
		goto free_pool;
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
	pthread_mutex_lock(&pool->lock);
	pool->stopping = true;
	pthread_cond_broadcast(&pool->work);
	while (pool->threads > 0)
		pthread_cond_wait(&pool->ended, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
	pthread_join(pool->last, NULL);
	pthread_cond_destroy(&pool->work);
	pthread_cond_destroy(&pool->ended);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

void pool_submit(struct pool *pool, void (*fn)(void *arg), void *arg)
{
	struct job *job = xmalloc(sizeof(*job));

	job->fn = fn;
	job->arg = arg;
	pthread_mutex_lock(&pool->lock);
	STAILQ_INSERT_TAIL(&pool->jobs, job, link);
	pool->queued++;
	/* If that fails the job waits for one of the threads there are. */
	if (pool->queued > pool->idle && pool->threads < pool->limit)
		start_thread(pool);
	pthread_cond_signal(&pool->work);
	pthread_mutex_unlock(&pool->lock);
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
