/*
 * thread.h - a pool of worker threads, and names for threads.
 *
 * Use: pool_create(), then pool_submit() from any thread. pool_destroy()
 * runs everything that was submitted and joins the threads; by then no thread outside the pool may
 * still be inside pool_submit(), even if its job has run. A job may block; the pool grows to its
 * limit while jobs wait, and idle threads end by themselves.
 */
#ifndef GAIA_BASE_THREAD_H
#define GAIA_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

struct pool;

/* At most @limit threads, named @name (15 bytes at most). -ENOMEM or -EAGAIN. */
int pool_create(const char *name, unsigned limit, struct pool **out);
void pool_destroy(struct pool *pool);

/* Run @fn(@arg) on some thread of the pool, in order of submission as threads
 * become free. Never fails: it waits for memory rather than lose a job. */
void pool_submit(struct pool *pool, void (*fn)(void *arg), void *arg);

/*
 * Let users share the pool. A user's job waits for its turn if this user's jobs would take more than @each threads, or those of
 * all users together more than @users: so a user whose jobs block does not hold up other users'
 * jobs. The owners' jobs (see quota.h) never wait for a turn: the threads beyond @users are theirs. Call it before the first job.
 */
void pool_share(struct pool *pool, unsigned each, unsigned users);
/* As pool_submit(). @owner: @uid is an owner of the mount; the same in each call for a uid. */
void pool_submit_for(struct pool *pool, uid_t uid, bool owner, void (*fn)(void *arg), void *arg);

/* What the pools of the process do now: jobs that threads have in hand, and those that wait for a thread or for their users' turns. */
struct pool_use {
	char name[16];
	unsigned threads; /* at most */
	unsigned busy, waiting;
};
/* At most @most; returns how many. */
unsigned pools_look(struct pool_use *out, unsigned most);

void thread_set_name(const char *name);

/* A condition whose time limits are of CLOCK_MONOTONIC, as now_ns(). */
void cond_init_monotonic(pthread_cond_t *cond);

/*
 * For a thread that others rely on (fuse/receive.c): @before_wait is called when it is about to wait,
 * so that another thread can take its place. NULL (the default): nobody relies on it.
 */
void thread_relied_on(void (*before_wait)(void *arg), void *arg);
/* Whether others rely on this thread. If so, it pays to check first whether it must wait at all. */
bool thread_is_relied_on(void);
/* To be called before the thread waits: for storage, a device, or a lock that is held across either. */
void thread_waits(void);

#endif
