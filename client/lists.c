/*
 * lists.c - acquires and releases of lists of ranges.
 *
 * A list lies in memory that the connection shares with the daemon, which makes it when it is first needed (GAIA_IOC_LISTS). Each call
 * has a place of its own there while it is under way; if there is none it waits for one.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "internal.h"

/* Of places that are longer the memory is given back. */
#define KEPT_BYTES (1u << 20)

/* ---- the memory ---- */

void lists_message(struct lists *ls, int fd, int failed)
{
	void *at;

	/* Nobody has asked for a second one. */
	if (ls->at)
		return;
	ls->error = failed;
	if (failed)
		return;
	at = mmap(NULL, GAIA_LISTS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (at == MAP_FAILED) {
		ls->error = -errno;
	} else if (madvise(at, GAIA_LISTS_BYTES, MADV_DONTFORK)) {
		ls->error = -errno;
		munmap(at, GAIA_LISTS_BYTES);
	} else {
		ls->at = at;
	}
}

void lists_forked(struct lists *ls)
{
	ls->at = NULL;
	ls->asking = false;
	TAILQ_INIT(&ls->used);
}

void lists_unmap(struct lists *ls)
{
	if (ls->at)
		munmap(ls->at, GAIA_LISTS_BYTES);
}

/* Ask the daemon for it. There may be no room for its message just now: then others' messages are being carried out. */
static int ask(struct mapping *m)
{
	struct gaia_ioc_lists io = { .key = m->conn->key };
	int err = 0;

	for (unsigned tries = 0; tries < 1000; tries++) {
		err = wire_ioctl(m->file->fd, GAIA_IOC_LISTS, &io);
		if (err != -EAGAIN)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	if (err == -EAGAIN)
		err = -ENOBUFS;
	return err ? err : conn_wait(m->conn, io.seq, 0);
}

/* One thread asks at a time: the daemon sends it a few times only. */
static int have_memory(struct mapping *m)
{
	struct conn *c = m->conn;
	struct lists *ls = &c->lists;
	int err = 0;

	pthread_mutex_lock(&gaia_lock);
	while (!ls->at && ls->asking)
		pthread_cond_wait(&c->changed, &gaia_lock);
	if (!ls->at) {
		ls->asking = true;
		pthread_mutex_unlock(&gaia_lock);
		err = ask(m);
		pthread_mutex_lock(&gaia_lock);
		ls->asking = false;
		pthread_cond_broadcast(&c->changed);
	}
	if (!err && !ls->at)
		err = ls->error ? ls->error : -ENOTCONN;
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

int lists_prepare(struct mapping *m)
{
	return have_memory(m);
}

/* ---- places ---- */

/* Find room for @pl->b bytes, from 0 on: false if there is none. The lock is held. */
static bool place_find(struct lists *ls, struct list_place *pl)
{
	struct list_place *next;
	size_t bytes = pl->b, at = 0;

	TAILQ_FOREACH(next, &ls->used, link) {
		if (next->a - at >= bytes)
			break;
		at = next->b;
	}
	if (!next && GAIA_LISTS_BYTES - at < bytes)
		return false;
	*pl = (struct list_place){ .a = at, .b = at + bytes };
	if (next)
		TAILQ_INSERT_BEFORE(next, pl, link);
	else
		TAILQ_INSERT_TAIL(&ls->used, pl, link);
	return true;
}

/* Write the list, and behind it what is @told (or NULL), to a place of its own. @wait: for memory, and for a place; else -ENOBUFS. */
static int place_begin(struct mapping *m, const struct gaia_list_range *range, size_t n, const struct detect_told *told,
		       bool wait, struct list_place *pl)
{
	size_t n_told = told ? told->n : 0;
	struct conn *c = m->conn;
	char *at = NULL;
	bool found = false;
	int err = wait ? have_memory(m) : 0;

	if (err)
		return err;
	pl->b = ((n + n_told) * sizeof(*range) + GAIA_PAGE - 1) / GAIA_PAGE * GAIA_PAGE;
	pthread_mutex_lock(&gaia_lock);
	while (c->state == CONN_LIVE && !(found = (wait || c->lists.at) && place_find(&c->lists, pl)) && wait)
		pthread_cond_wait(&c->changed, &gaia_lock);
	if (c->state == CONN_LIVE && !found)
		err = -ENOBUFS;
	else if (c->state == CONN_LIVE)
		at = c->lists.at + pl->a;
	else
		err = c->error;
	pthread_mutex_unlock(&gaia_lock);
	if (at)
		memcpy(at, range, n * sizeof(*range));
	if (at && n_told > 0)
		memcpy(at + n * sizeof(*range), told->range, n_told * sizeof(*range));
	return err;
}

static void place_end(struct conn *c, struct list_place *pl)
{
	if (pl->b - pl->a > KEPT_BYTES)
		madvise(c->lists.at + pl->a, pl->b - pl->a, MADV_REMOVE);
	pthread_mutex_lock(&gaia_lock);
	TAILQ_REMOVE(&c->lists.used, pl, link);
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&gaia_lock);
}

/* ---- the calls ---- */

static struct gaia_ioc_list to_send(const struct mapping *m, size_t n, const struct list_place *pl, int prot)
{
	return (struct gaia_ioc_list){ .key = m->conn->key, .map = m->id, .offset = pl->a, .count = (uint32_t)n, .prot = prot };
}

int list_acquire(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot)
{
	struct gaia_ioc_list io;
	struct list_place pl;
	int err = wire_push_list(m->file->fd, range, n);

	if (!err)
		err = place_begin(m, range, n, NULL, true, &pl);
	if (err)
		return err;
	io = to_send(m, n, &pl, prot);
	err = wire_ioctl_once(m->file->fd, GAIA_IOC_ACQUIREV, &io);
	place_end(m->conn, &pl);
	if (!err && io.seq)
		err = conn_wait(m->conn, io.seq, io.unanswered);
	return err;
}

/* Release what lies there, telling @told, or nothing (NULL). What is too long to be told is not told. */
static int release(struct mapping *m, size_t n, const struct list_place *pl, const struct detect_told *told, unsigned prot)
{
	struct gaia_ioc_list io = to_send(m, n, pl, (int)prot);
	int err;

	if (!told)
		return wire_releasev(m->file->fd, m->release_by, &io);
	io.prot |= GAIA_PROT_TOLD;
	io.told = (uint32_t)told->n;
	err = wire_releasev(m->file->fd, m->release_by, &io);
	return err == -E2BIG ? release(m, n, pl, NULL, prot) : err;
}

int list_release_told(struct mapping *m, const struct gaia_list_range *range, size_t n, const struct detect_told *told)
{
	struct list_place pl;
	int err;

	/* Without waiting: this may be the turns thread (rule 3). */
	if (place_begin(m, range, n, told, false, &pl))
		return -ENOSYS;
	err = release(m, n, &pl, told, 0);
	place_end(m->conn, &pl);
	return err;
}

/* @told: as of release(). */
static int release_list(struct mapping *m, const struct gaia_list_range *range, size_t n, const struct detect_told *told, int *push_err)
{
	struct list_place pl;
	int err;

	err = place_begin(m, range, n, told, true, &pl);
	/* Nothing has changed, and an error must say so. */
	if (err)
		return wire_changed_nothing(err) ? err : -ENOBUFS;
	/* As in turns.c. */
	err = wire_push_list(m->file->fd, range, n);
	if (!*push_err)
		*push_err = err;
	err = release(m, n, &pl, told, 0);
	place_end(m->conn, &pl);
	if (!wire_changed_nothing(err)) {
		held_take_list(m, range, n);
		detect_dropped(m, range, n);
	}
	return err ? err : *push_err;
}

int list_release(struct mapping *m, const struct gaia_list_range *range, size_t n, int *push_err)
{
	struct detect_told told;
	int err;

	detect_release(m, range, n, &told);
	err = release_list(m, range, n, told.known ? &told : NULL, push_err);
	detect_told_free(&told);
	return err;
}

int list_give_back(struct mapping *m, const struct gaia_list_range *range, size_t n)
{
	struct detect_told told;
	struct list_place pl;
	int err;

	detect_give_back(m, range, n, &told);
	err = place_begin(m, range, n, &told, true, &pl);
	/* Nothing has changed, and an error must say so. */
	if (err) {
		err = wire_changed_nothing(err) ? err : -ENOBUFS;
	} else {
		err = release(m, n, &pl, told.known ? &told : NULL, m->conn->features & GAIA_FEATURE_UNUSED ? GAIA_PROT_UNUSED : 0);
		place_end(m->conn, &pl);
		if (!wire_changed_nothing(err))
			detect_dropped(m, range, n);
	}
	detect_told_free(&told);
	return err;
}
