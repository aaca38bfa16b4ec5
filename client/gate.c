/*
 * gate.c - calls, while the mount goes from one daemon to another.
 *
 * A call that uses a connection (its key, a mapping's number there, its socket) is *inside* meanwhile: conn_enter(), conn_leave(). When the daemon
 * says that it may hand the mount over (MOVE), whatever would begin to hold something waits outside, and what ends holds goes on. So after a while
 * this process holds nothing, and the daemon, which counts the holds, sees that. Then either it stays (STAY), or the connection's thread makes
 * everything anew at the next daemon, alone: nobody is inside then (move.c).
 *
 * A thread that holds something may need more before it gives that back. Who acquired what cannot be known; so at first threads that have acquired
 * more often than released, go on, and so do the acquires that they have started. If that leads nowhere the daemon asks again after a moment, and then
 * all wait; and so on in turn.
 *
 * A call that came to the next daemon with the old key has failed there (ENOTCONN) and has done nothing: it is made again. A mapping that held
 * something then would have kept the mount from going over.
 *
 * What is queued in streams is announced or held from the call that queues it on, and so is of the old daemon, or the mount stays until it has been
 * carried out. Only a release of what nobody holds can come later: it fails, as it would have before, and keeps nobody waiting, the stream least of all.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

bool gate_holding(void)
{
	count(0);
	return held.n;
}

bool gate_lets(const struct conn *c, bool holding)
{
	return c->move == MOVE_NONE || (c->move == MOVE_ASKED && holding && c->asked % 2);
}

/* @st: of USE_START. The lock is held. */
static bool must_wait(const struct conn *c, enum use use, const struct start *st)
{
	switch (use) {
	case USE_ACQUIRE:
	case USE_MAP:
		return !gate_lets(c, gate_holding());
	case USE_START:
		return !gate_lets(c, start_was_holding(st));
	case USE_RELEASE:
	case USE_OTHER:
		return c->move == MOVE_MADE;
	case USE_TURN:
		break;
	}
	return false;
}

/* Wait until somebody is let in, or for a while: 0, or -EINTR: the thread has caught a signal. The lock is held, but not meanwhile. */
static int wait_outside(struct conn *c)
{
	/* After a signal the kernel goes on with a wait that has no limit. */
	const struct timespec limit = { .tv_sec = 10 };
	uint32_t let_in = c->let_in;
	int err = 0;

	pthread_mutex_unlock(&gaia_lock);
	if (syscall(SYS_futex, &c->let_in, FUTEX_WAIT_PRIVATE, let_in, &limit, NULL, 0) && errno == EINTR)
		err = -EINTR;
	pthread_mutex_lock(&gaia_lock);
	return err;
}

void gate_let_in(struct conn *c)
{
	c->let_in++;
	syscall(SYS_futex, &c->let_in, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	pthread_cond_broadcast(&c->changed);
	starts_go_on();
}

static int enter(struct conn *c, enum use use, const struct start *st)
{
	int err = 0;

	pthread_mutex_lock(&gaia_lock);
	/* Who waits for a cancelled one may hold what keeps the mount. */
	while (!err && must_wait(c, use, st) && !(st && start_is_cancelled(st))) {
		if (use == USE_ACQUIRE)
			err = wait_outside(c);
		else
			pthread_cond_wait(&c->changed, &gaia_lock);
	}
	if (c->state == CONN_DEAD) {
		err = -ENOTCONN;
	} else if (use == USE_TURN && c->move == MOVE_MADE) {
		err = -EINVAL;
	} else if (st && start_is_cancelled(st)) {
		err = -ECANCELED;
	} else if (!err) {
		c->calls++;
	}
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

int conn_enter(struct conn *c, enum use use)
{
	return enter(c, use, NULL);
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
	moves = c->moves;
	while (err == -ENOTCONN && use != USE_TURN && c->move != MOVE_NONE)
		pthread_cond_wait(&c->changed, &gaia_lock);
	again = err == -ENOTCONN && c->moves != moves && c->state == CONN_LIVE;
	pthread_mutex_unlock(&gaia_lock);
	return again;
}

/* As enter() with @err. */
static int mapping_entered(struct mapping *m, enum use use, int err)
{
	if (err || !m->lost)
		return err;
	err = m->lost;
	(void)conn_leave(m->conn, use, err);
	return error_of_lost(err);
}

int mapping_enter(struct mapping *m, enum use use)
{
	return mapping_entered(m, use, enter(m->conn, use, NULL));
}

int mapping_enter_start(struct mapping *m, const struct start *st)
{
	return mapping_entered(m, USE_START, enter(m->conn, USE_START, st));
}

bool mapping_leave(struct mapping *m, enum use use, int err)
{
	return conn_leave(m->conn, use, err);
}

/* ---- the connection's thread; the lock is held ---- */

int gate_message(struct conn *c, const struct gaia_msg *msg)
{
	struct gaia_msg answer = { .kind = GAIA_MSG_READY, .version = GAIA_PROTOCOL_VERSION, .seq = msg->seq };

	switch (msg->kind) {
	case GAIA_MSG_MOVE:
		c->move = MOVE_ASKED;
		c->asked++;
		return conn_say(c, &answer);
	case GAIA_MSG_STAY:
		c->move = MOVE_NONE;
		gate_let_in(c);
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
	gate_let_in(c);
}
