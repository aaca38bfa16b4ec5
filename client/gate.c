/*
 * gate.c - calls, while the mount goes from one daemon to another.
 *
 * A call that uses a connection (its key, a mapping's number there, its socket) is *inside* meanwhile: conn_enter(), conn_leave(). When the daemon
 * says that it may hand the mount over (MOVE), whatever would begin to hold something waits outside, and what ends holds goes on. So after a while
 * this process holds nothing, and the daemon, which counts the holds, sees that. Then either it stays (STAY), or the connection's thread makes
 * everything anew at the next daemon, alone: nobody is inside then (move.c).
 *
 * A thread that holds something may need more before it gives that back. Who acquired what cannot be known; so at first threads that have acquired
 * more often than released, go on. If that leads nowhere the daemon asks again after a moment, and then all wait; and so on in turn.
 *
 * A call that came to the next daemon with the old key has failed there (ENOTCONN) and has done nothing: it is made again. A mapping that held
 * something then would have kept the mount from going over.
 */
#include <errno.h>

#include "internal.h"

/* Acquires less releases of this thread, since a connection has last moved: then nothing was held. */
static _Thread_local struct {
	unsigned moves, n;
} held;
/* gaia_lock. Of all connections. */
static unsigned moves_made;

/* The lock is held. */
static void count(int more)
{
	if (held.moves != moves_made)
		held.n = 0;
	held.moves = moves_made;
	if (more > 0 || held.n)
		held.n += (unsigned)more;
}

void gate_holds(int more)
{
	pthread_mutex_lock(&gaia_lock);
	count(more);
	pthread_mutex_unlock(&gaia_lock);
}

void gate_forked(struct conn *c)
{
	c->move = MOVE_NONE;
	held.n = 0;
}

/* The lock is held. */
static bool must_wait(struct conn *c, enum use use)
{
	if (c->move != MOVE_ASKED)
		return c->move == MOVE_MADE;
	count(0);
	switch (use) {
	case USE_ACQUIRE:
		return c->asked % 2 == 0 || !held.n;
	case USE_MAP:
	case USE_MAP_STAYING:
	case USE_START:
		return true;
	case USE_RELEASE:
	case USE_OTHER:
		break;
	}
	return false;
}

int conn_enter(struct conn *c, enum use use)
{
	int err = 0;

	pthread_mutex_lock(&gaia_lock);
	while (must_wait(c, use))
		pthread_cond_wait(&c->changed, &gaia_lock);
	if (c->state == CONN_DEAD) {
		err = -ENOTCONN;
	} else {
		c->calls++;
		c->staying += use == USE_MAP_STAYING;
	}
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

bool conn_leave(struct conn *c, enum use use, int err)
{
	unsigned moves;
	bool again;

	pthread_mutex_lock(&gaia_lock);
	if (!--c->calls && c->move == MOVE_MADE)
		pthread_cond_broadcast(&c->changed);
	if (use == USE_ACQUIRE && !err)
		count(1);
	else if (use == USE_RELEASE && !wire_changed_nothing(err))
		count(-1);
	c->staying -= use == USE_MAP_STAYING && err;
	moves = c->moves;
	while (err == -ENOTCONN && c->move != MOVE_NONE)
		pthread_cond_wait(&c->changed, &gaia_lock);
	again = err == -ENOTCONN && c->moves != moves && c->state == CONN_LIVE;
	pthread_mutex_unlock(&gaia_lock);
	return again;
}

int mapping_enter(struct mapping *m, enum use use)
{
	int err = conn_enter(m->conn, use);

	if (err || !m->lost)
		return err;
	err = m->lost;
	(void)conn_leave(m->conn, use, err);
	return error_of_lost(err);
}

bool mapping_leave(struct mapping *m, enum use use, int err)
{
	return conn_leave(m->conn, use, err);
}

void conn_stays_no_more(struct conn *c)
{
	pthread_mutex_lock(&gaia_lock);
	c->staying--;
	pthread_mutex_unlock(&gaia_lock);
}

/* ---- the connection's thread; the lock is held ---- */

int gate_message(struct conn *c, const struct gaia_msg *msg)
{
	struct gaia_msg answer = { .kind = GAIA_MSG_READY, .version = GAIA_PROTOCOL_VERSION, .seq = msg->seq };

	switch (msg->kind) {
	case GAIA_MSG_MOVE:
		if (c->staying) {
			answer.error = EOPNOTSUPP;
		} else {
			c->move = MOVE_ASKED;
			c->asked++;
		}
		return wire_send(c->sock, &answer);
	case GAIA_MSG_STAY:
		c->move = MOVE_NONE;
		starts_go_on();
		return 0;
	default:
		if (c->move != MOVE_ASKED)
			return -EPROTO;
		c->move = MOVE_MADE;
		return 0;
	}
}

void gate_alone(struct conn *c)
{
	while (c->calls)
		pthread_cond_wait(&c->changed, &gaia_lock);
}

void gate_open(struct conn *c, bool moved)
{
	c->move = MOVE_NONE;
	c->moves += moved;
	moves_made += moved;
	c->asked = 0;
	starts_go_on();
	pthread_cond_broadcast(&c->changed);
}
