/*
 * turns.c - acquires and releases, and the thread that carries them out in their turn.
 */
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

pthread_mutex_t turns_lock = PTHREAD_MUTEX_INITIALIZER;

/* turns_lock. A driver may still run them, or never. */
static LIST_HEAD(, turn) abandoned = LIST_HEAD_INITIALIZER(abandoned);

int range_acquire(struct mapping *m, struct gaia_ioc_range *io)
{
	int err = wire_push(m->file->fd, io->offset, io->length);

	io->key = m->conn->key;
	io->map = m->id;
	if (!err)
		err = wire_ioctl_once(m->file->fd, GAIA_IOC_ACQUIRE, io);
	return err;
}

struct gaia_list_range range_of(const struct gaia_ioc_range *io)
{
	return (struct gaia_list_range){ io->offset, io->length };
}

/* @told: NULL: the mapping does not tell. *@push_err: as of range_release(). */
static int release(struct mapping *m, struct gaia_ioc_range *io, const struct detect_told *told, int *push_err)
{
	const struct gaia_ioc_range asked = *io;
	const struct gaia_list_range range = range_of(io);
	int err;

	io->key = m->conn->key;
	io->map = m->id;
	/*
	 * The daemon is going to invalidate pages that the kernel caches, and clean ones cost it a
	 * fraction of dirty ones. An error concerns CPU programs' writes. The kernel reports it only
	 * once, so it is kept until the release is done.
	 */
	err = wire_push(m->file->fd, io->offset, io->length);
	if (!*push_err)
		*push_err = err;
	err = told && told->known ? list_release_told(m, &range, 1, told) : -ENOSYS;
	/* What is told may be refused, for want of room, where the release by itself is not. */
	if (err == -ENOSYS || (told && told->known && wire_changed_nothing(err)))
		err = wire_release(m->file->fd, m->release_by, io);
	if (!wire_changed_nothing(err))
		held_take(m, &asked);
	return err ? err : *push_err;
}

int range_release(struct mapping *m, struct gaia_ioc_range *io, int *push_err)
{
	const struct gaia_list_range range = range_of(io);
	struct detect_told told;
	int err;

	if (!m->detect)
		return release(m, io, NULL, push_err);
	detect_release(m, &range, 1, &told);
	err = release(m, io, &told, push_err);
	if (!wire_changed_nothing(err))
		detect_dropped(m, &range, 1);
	detect_told_free(&told);
	return err;
}

int range_give_back(struct mapping *m, const struct gaia_ioc_range *io)
{
	const struct gaia_list_range range = range_of(io);
	struct gaia_ioc_range own = *io;
	int err;

	/* If there is no memory for lists nothing can be told. */
	err = m->detect ? list_give_back(m, &range, 1) : -ENOBUFS;
	if (!wire_changed_nothing(err))
		return err;
	own.key = m->conn->key;
	own.map = m->id;
	own.prot = m->conn->features & GAIA_FEATURE_UNUSED ? GAIA_PROT_UNUSED : 0;
	err = wire_release(m->file->fd, m->release_by, &own);
	if (!wire_changed_nothing(err))
		detect_dropped(m, &range, 1);
	return err;
}

/* ---- the thread ---- */

/* Only the first error is kept. */
static void note_error(const struct turn *t, const struct gaia_ioc_range *asked, int err)
{
	struct mapping *m = t->m;

	pthread_mutex_lock(&turns_lock);
	if (!m->late_error) {
		m->late = (struct late_error){ t->release, asked->offset, asked->length };
		m->late_error = err;
	}
	pthread_mutex_unlock(&turns_lock);
}

int turns_take_error(struct mapping *m, struct late_error *out)
{
	int err = 0;

	if (!m->late_error)
		return 0;
	pthread_mutex_lock(&turns_lock);
	*out = m->late;
	err = m->late_error;
	m->late_error = 0;
	pthread_mutex_unlock(&turns_lock);
	return err;
}

static int release_turn(struct turn *t)
{
	const struct gaia_list_range range = range_of(&t->io);
	struct detect_told told;
	int err, push_err = 0;

	if (!t->m->detect)
		return release(t->m, &t->io, NULL, &push_err);
	detect_queue_tell(t->m, &range, &t->runs, &told);
	err = release(t->m, &t->io, &told, &push_err);
	detect_told_free(&told);
	return err;
}

static int take_turn(struct turn *t)
{
	int err = mapping_enter(t->m, USE_TURN);

	if (err)
		return err;
	err = t->release ? release_turn(t) : range_acquire(t->m, &t->io);
	(void)mapping_leave(t->m, USE_TURN, err);
	return err;
}

/*
 * Does not wait until chunks are mapped (rule 3): the chunks of the range were mapped when it was announced.
 * If the file has grown since then there may be new ones, but these were not promised.
 */
static void carry_out(struct turn *t)
{
	const struct gaia_ioc_range asked = t->io;
	const struct gaia_list_range range = range_of(&t->io);
	int err;

	/* This thread handles no signals, but being stopped, or looked at by a debugger, interrupts the call, too. */
	do
		err = take_turn(t);
	while (err == -EINTR);
	if (err)
		detect_lost(t->m);
	if (t->release && t->m->detect)
		detect_queue_released(t->m, &range);
	if (!err && !t->release)
		held_add(t->m, &asked);
	if (err)
		note_error(t, &asked, err);
}

static void *turns_thread(void *arg)
{
	struct turns *ts = arg;
	struct turn *t;

	pthread_mutex_lock(&turns_lock);
	for (;;) {
		while (!(t = STAILQ_FIRST(&ts->ready)) && !ts->stop)
			pthread_cond_wait(&ts->changed, &turns_lock);
		if (!t)
			break;
		STAILQ_REMOVE_HEAD(&ts->ready, link);
		pthread_mutex_unlock(&turns_lock);
		carry_out(t);
		pthread_mutex_lock(&turns_lock);
		t->done(t);
		/* From now on the mapping may be freed. */
		t->m->turns_ready--;
		pthread_cond_broadcast(&ts->changed);
		detect_runs_free(&t->runs);
		free(t);
	}
	pthread_mutex_unlock(&turns_lock);
	return NULL;
}

void turns_init(struct turns *ts)
{
	pthread_cond_init(&ts->changed, NULL);
	STAILQ_INIT(&ts->ready);
}

int turns_start(struct conn *c)
{
	struct turns *ts = &c->turns;
	int err = 0;

	pthread_mutex_lock(&turns_lock);
	if (!ts->started) {
		err = start_thread(&ts->thread, turns_thread, ts, "gaia-turns");
		ts->started = !err;
	}
	pthread_mutex_unlock(&turns_lock);
	return err;
}

void turns_end(struct turns *ts, bool forked)
{
	/* In a child of fork() the thread does not exist, and it may have left anything half done. */
	if (forked)
		return;
	pthread_mutex_lock(&turns_lock);
	ts->stop = true;
	pthread_cond_broadcast(&ts->changed);
	pthread_mutex_unlock(&turns_lock);
	if (ts->started)
		pthread_join(ts->thread, NULL);
	pthread_cond_destroy(&ts->changed);
}

/* ---- turns ---- */

void turn_queued(struct turn *t)
{
	LIST_INSERT_HEAD(&t->m->turns_queued, t, queued);
}

void turn_not_queued(struct turn *t)
{
	LIST_REMOVE(t, queued);
}

void turn_ready(struct turn *t)
{
	pthread_mutex_lock(&turns_lock);
	LIST_REMOVE(t, queued);
	if (t->m) {
		t->m->turns_ready++;
		STAILQ_INSERT_TAIL(&t->m->conn->turns.ready, t, link);
		pthread_cond_broadcast(&t->m->conn->turns.changed);
	} else {
		detect_runs_free(&t->runs);
		free(t);
	}
	pthread_mutex_unlock(&turns_lock);
}

void turn_abandon(struct turn *t)
{
	LIST_REMOVE(t, queued);
	/* Without an effect, except that a stream which waits for the turn goes on. */
	t->done(t);
	t->m = NULL;
	LIST_INSERT_HEAD(&abandoned, t, queued);
}

bool turns_wait(struct mapping *m)
{
	struct turns *ts = &m->conn->turns;
	bool all_ready;
	struct turn *t;

	pthread_mutex_lock(&turns_lock);
	while (m->turns_ready)
		pthread_cond_wait(&ts->changed, &turns_lock);
	all_ready = LIST_EMPTY(&m->turns_queued);
	while ((t = LIST_FIRST(&m->turns_queued)))
		turn_abandon(t);
	pthread_cond_broadcast(&ts->changed);
	pthread_mutex_unlock(&turns_lock);
	return all_ready;
}
