/*
 * thread.h - a pool of worker threads, and names for threads.
 *
 * Use: pool_create(), then pool_submit() from any thread; pool_destroy()
 * runs everything that was submitted and joins. A job may block; the pool
 * grows to its limit while jobs wait, and idle threads end by themselves.
 */
#ifndef GAIA_BASE_THREAD_H
#define GAIA_BASE_THREAD_H

struct pool;

/* At most @limit threads, named @name (15 bytes at most). -ENOMEM or -EAGAIN. */
int pool_create(const char *name, unsigned limit, struct pool **out);
void pool_destroy(struct pool *pool);

/* Run @fn(@arg) on some thread of the pool, in order of submission as threads
 * come free. Never fails: it waits for memory rather than lose a job. */
void pool_submit(struct pool *pool, void (*fn)(void *arg), void *arg);

void thread_set_name(const char *name);

#endif
