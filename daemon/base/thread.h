/*
 * thread.h - a pool of worker threads, and names for threads.
 *
 * Use: pool_create(), then pool_submit() from any thread; pool_destroy()
 * runs everything that was submitted and joins; no thread but the pool's own may be submitting
 * still, even if its job has run. A job may block; the pool grows to its limit while jobs wait,
 * and idle threads end by themselves.
 */
#ifndef GAIA_BASE_THREAD_H
#define GAIA_BASE_THREAD_H

#include <stdbool.h>
#include <sys/types.h>

struct pool;

/* At most @limit threads, named @name (15 bytes at most). -ENOMEM or -EAGAIN. */
int pool_create(const char *name, unsigned limit, struct pool **out);
void pool_destroy(struct pool *pool);

/* Run @fn(@arg) on some thread of the pool, in order of submission as threads
 * come free. Never fails: it waits for memory rather than lose a job. */
void pool_submit(struct pool *pool, void (*fn)(void *arg), void *arg);

/*
 * A pool that users share. Jobs submitted for one of them wait for their turn where they would take more than
 * @each threads, or those of all users together more than @users: so a user whose jobs block holds up nobody
 * else's. The owners' jobs (see quota.h) never do: the threads beyond @users are theirs. Before the first job.
 */
void pool_share(struct pool *pool, unsigned each, unsigned users);
/* As pool_submit(). @owner: of the mount, and so the same each time for one @uid. */
void pool_submit_for(struct pool *pool, uid_t uid, bool owner, void (*fn)(void *arg), void *arg);

void thread_set_name(const char *name);

/*
 * A thread that others rely on (fuse/receive.c) says so: @before_wait is called when it is about
 * to wait, so that somebody can stand in for it. NULL: nobody relies on it, as at first.
 */
void thread_relied_on(void (*before_wait)(void *arg), void *arg);
/* Whether it is worth while to look first whether one need wait. */
bool thread_is_relied_on(void);
/* I am about to wait: for storage, a device, or a lock that is held across either. */
void thread_waits(void);

#endif
