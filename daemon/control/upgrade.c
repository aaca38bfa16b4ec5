/* upgrade.c - who asks for an upgrade, and what the asker is told; and how clients come along (GAIA_MSG_MOVE). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "control/internal.h"

void control_on_upgrade(struct control *ctl, control_upgrade *fn, void *arg)
{
	ctl->upgrade = fn;
	ctl->upgrade_arg = arg;
}

void control_answer_upgrade(int answer, int err, const char *text)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_UPGRADED, .version = GAIA_PROTOCOL_VERSION, .error = (uint32_t)-err };

	snprintf((char *)msg.chunk, sizeof(msg.chunk), "%s", text);
	if (send(answer, &msg, sizeof(msg), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_debug("control: who asked for an upgrade is gone: %s", strerror(errno));
	close(answer);
}

/* As many as one line has room for. */
#define NAMED 3

/* Add the client, which is the @n-th, to @who. */
static void name_client(const struct client *c, unsigned n, char *who, size_t size)
{
	size_t length = strlen(who);
	const char *comma = n > 1 ? ", " : "";

	if (n > NAMED + 1)
		return;
	if (n > NAMED)
		snprintf(who + length, size - length, " and others");
	else if (c->pid > 0)
		snprintf(who + length, size - length, "%sprocess %d of user %u", comma, (int)c->pid, (unsigned)c->uid);
	else /* of a PID namespace that is not below the daemon's */
		snprintf(who + length, size - length, "%sa container's process of user %u", comma, (unsigned)c->uid);
}

/* ---- clients that come along ---- */

/* All clients that are known, with references; to be freed. */
static struct client **all_clients(struct control *ctl, unsigned *n)
{
	struct client **all, *c, *next;

	*n = 0;
	pthread_mutex_lock(&ctl->lock);
	all = xcalloc(HASH_COUNT(ctl->clients) + 1, sizeof(*all));
	HASH_ITER(hh, ctl->clients, c, next) {
		client_get(c);
		all[(*n)++] = c;
	}
	pthread_mutex_unlock(&ctl->lock);
	return all;
}

static void put_clients(struct client **all, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		client_put(all[i]);
	free(all);
}

/* Without waiting. False: not now. */
static bool say(struct client *c, uint32_t kind)
{
	struct gaia_msg msg = { .kind = kind };
	int err;

	if (pthread_mutex_trylock(&c->send_lock))
		return false;
	/* Before it is sent: the answer may come before sending returns. */
	pthread_mutex_lock(&c->lock);
	c->move.asked = kind == GAIA_MSG_MOVE;
	c->move.ready = c->move.refuses = false;
	if (kind == GAIA_MSG_MOVE) {
		c->move.owes = true;
		c->move.seq = c->seq + 1;
	}
	pthread_mutex_unlock(&c->lock);
	err = send_next(c, &msg, NULL, 0, SEND_NOW);
	if (err == -EAGAIN) {
		pthread_mutex_lock(&c->lock);
		c->move.asked = kind != GAIA_MSG_MOVE;
		c->move.owes &= kind != GAIA_MSG_MOVE;
		pthread_mutex_unlock(&c->lock);
	}
	pthread_mutex_unlock(&c->send_lock);
	return err != -EAGAIN;
}

void control_move_to(struct control *ctl, uint64_t features)
{
	ctl->heir_features = features;
}

/* Whether the client says that it can move, and the next daemon knows what it uses. */
static bool can_move(const struct client *c)
{
	/* (Without PUBLISHES a client syncs instead, and without EXTENTS it gets chunks.) */
	return c->features & GAIA_FEATURE_MOVES && !(c->features & ~(c->ctl->heir_features | GAIA_FEATURE_PUBLISHES | GAIA_FEATURE_EXTENTS));
}

void control_move_ask(struct control *ctl)
{
	struct client **all;
	unsigned n;

	all = all_clients(ctl, &n);
	for (unsigned i = 0; i < n; i++) {
		struct client *c = all[i];
		bool ask;

		pthread_mutex_lock(&c->lock);
		/* One that owes an answer is not asked again before it has come. */
		ask = can_move(c) && c->n_maps > 0 && !c->move.asked && !c->move.owes;
		pthread_mutex_unlock(&c->lock);
		if (ask)
			(void)say(c, GAIA_MSG_MOVE);
	}
	put_clients(all, n);
}

bool move_answered(struct client *c, const struct gaia_msg *msg)
{
	struct gaia_msg want = { .kind = GAIA_MSG_READY, .version = GAIA_PROTOCOL_VERSION, .seq = msg->seq, .error = msg->error };
	bool good;

	if (memcmp(&want, msg, sizeof(want)) != 0)
		return false;
	pthread_mutex_lock(&c->lock);
	good = c->move.owes && msg->seq == c->move.seq;
	if (good)
		c->move.owes = false;
	/* Else it is too late, and a STAY is on its way. */
	if (good && c->move.asked) {
		c->move.ready = !msg->error;
		c->move.refuses = msg->error;
	}
	pthread_mutex_unlock(&c->lock);
	return good;
}

/* c->lock is held. */
static bool holds_anything(const struct client *c)
{
	struct map *map, *next;

	HASH_ITER(hh, c->maps, map, next)
		if (atomic_load(&map->pins) || cache_mapping_holds(map->m))
			return true;
	return false;
}

/*
 * Whether it has an answer to give. If the daemon ended before having read that, the client might take the end of its connection for the
 * daemon's death. c->lock is held.
 */
static bool owes_answers(const struct client *c)
{
	return !c->move.ready || !LIST_EMPTY(&c->revocations) || !TAILQ_EMPTY(&c->handovers);
}

void control_move_look(struct control *ctl, struct control_movers *out)
{
	char busy[sizeof(out->who)] = "";
	struct client *c, *next;

	*out = (struct control_movers){ .who = "" };
	pthread_mutex_lock(&ctl->lock);
	HASH_ITER(hh, ctl->clients, c, next) {
		pthread_mutex_lock(&c->lock);
		if (c->n_maps > 0) {
			if (!can_move(c) || c->move.refuses)
				name_client(c, ++out->staying, out->who, sizeof(out->who));
			else if (owes_answers(c) || holds_anything(c))
				name_client(c, ++out->busy, busy, sizeof(busy));
		}
		pthread_mutex_unlock(&c->lock);
	}
	pthread_mutex_unlock(&ctl->lock);
	if (!out->staying)
		memcpy(out->who, busy, sizeof(busy));
}

void control_move_stay(struct control *ctl)
{
	uint64_t until = now_ns() + SEND_TIMEOUT_NS;
	bool all_told = false;

	while (!all_told) {
		struct client **all;
		unsigned n;

		all_told = true;
		all = all_clients(ctl, &n);
		for (unsigned i = 0; i < n; i++) {
			struct client *c = all[i];
			bool tell;

			pthread_mutex_lock(&c->lock);
			tell = c->move.asked && !atomic_load(&c->dead);
			pthread_mutex_unlock(&c->lock);
			if (!tell || say(c, GAIA_MSG_STAY))
				continue;
			/* It would wait for that for ever. */
			if (now_ns() >= until)
				client_disconnect(c);
			all_told = false;
		}
		put_clients(all, n);
		if (!all_told)
			nanosleep(&(struct timespec){ .tv_nsec = REVOKE_RETRY_NS }, NULL);
	}
}

/* Those that move, as all_clients(). */
static struct client **moving_clients(struct control *ctl, unsigned *n)
{
	struct client **all;
	unsigned n_all;

	all = all_clients(ctl, &n_all);
	*n = 0;
	for (unsigned i = 0; i < n_all; i++) {
		struct client *c = all[i];
		bool moves;

		pthread_mutex_lock(&c->lock);
		moves = c->move.asked && c->move.ready && !holds_anything(c);
		pthread_mutex_unlock(&c->lock);
		if (moves)
			all[(*n)++] = c;
		else
			client_put(c);
	}
	return all;
}

/* Tell it, unless it has been told, or cannot be now. Whether it has hung up, as it does when it has heard. */
static bool tell_moved(struct client *c)
{
	bool told, gone;

	pthread_mutex_lock(&c->lock);
	told = !c->move.asked;
	gone = c->closed;
	pthread_mutex_unlock(&c->lock);
	/* There is room: it has answered all that it was asked, but for a few revocations. */
	if (!told && !gone)
		(void)say(c, GAIA_MSG_MOVED);
	return gone;
}

void control_moved(struct control *ctl)
{
	uint64_t until = now_ns() + MOVED_NS;
	struct client **all;
	bool gone;
	unsigned n;

	all = moving_clients(ctl, &n);
	/* What a client still says is read meanwhile (owes_answers()). */
	do {
		gone = true;
		for (unsigned i = 0; i < n; i++)
			gone &= tell_moved(all[i]);
		if (!gone)
			nanosleep(&(struct timespec){ .tv_nsec = REVOKE_RETRY_NS }, NULL);
	} while (!gone && now_ns() < until);
	put_clients(all, n);
}

/* ---- who asks ---- */

/* Milliseconds; more is nonsense. */
#define LONGEST_WAIT 86400000u

bool upgrade_asked(struct client *c, const struct gaia_msg *msg)
{
	struct gaia_msg want = { .kind = GAIA_MSG_UPGRADE, .version = GAIA_PROTOCOL_VERSION, .count = msg->count & (GAIA_UPGRADE_FORCE | GAIA_UPGRADE_LEAVE | GAIA_UPGRADE_ADOPT), .map = MIN(msg->map, LONGEST_WAIT) };
	struct control *ctl = c->ctl;
	int answer;

	memcpy(want.ticket, msg->ticket, sizeof(want.ticket));
	if (c->counted || memcmp(&want, msg, sizeof(want)) != 0 || !ticket_redeem(ctl, msg->ticket, c->peer_uid, &c->uid, &c->features))
		return false;
	c->counted = true;
	answer = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
	if (answer < 0)
		return false;
	if (!ctl->upgrade) {
		control_answer_upgrade(answer, -EOPNOTSUPP, "it cannot be");
		return true;
	}
	/* The user who has opened the mount, and the one who runs the program that is to serve it. */
	if (!quota_is_owner(ctl->quota, c->uid) || !quota_is_owner(ctl->quota, c->peer_uid)) {
		if (log_may(&ctl->pace))
			log_warn("control: process %d of user %u asked for an upgrade, and was refused", (int)c->pid, (unsigned)c->peer_uid);
		control_answer_upgrade(answer, -EPERM, "only root and the user who mounted it may");
		return true;
	}
	ctl->upgrade(ctl->upgrade_arg, c->pid, msg->count, msg->map, answer);
	return true;
}
