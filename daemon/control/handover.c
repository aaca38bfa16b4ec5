/* handover.c - handing memory over to clients, and their answers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/util.h"
#include "control/internal.h"

/*
 * Note that the client owes an answer. Before the GRANT is sent, since the answer may come before sending
 * returns. send_lock is held.
 */
static struct handover *handover_begin(struct client *c, uint64_t map)
{
	struct handover *h = xcalloc(1, sizeof(*h));

	h->client = c;
	h->seq = c->seq + 1;
	h->map = map;
	pthread_mutex_lock(&c->lock);
	TAILQ_INSERT_TAIL(&c->handovers, h, link);
	pthread_mutex_unlock(&c->lock);
	return h;
}

/* True: there is nothing more to wait for. False: some time has passed. */
static bool handover_wait_a_while(struct client *c, const struct handover *h, uint64_t until_ns)
{
	struct timespec until = { .tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000 };
	struct uses *waits = wait_begin(WAIT_clients);
	bool over;

	pthread_mutex_lock(&c->lock);
	while (!(over = h->answered || c->n_late || atomic_load(&c->dead)) && now_ns() < until_ns)
		pthread_cond_timedwait(&c->answer, &c->lock, &until);
	pthread_mutex_unlock(&c->lock);
	wait_end(waits, WAIT_clients);
	return over;
}

/* Stop waiting: returns the answer, or 0 if there is none yet. handover_answered() handles one that comes later. */
static int handover_end(struct client *c, struct handover *h)
{
	bool never = false;
	int err = 0;

	pthread_mutex_lock(&c->lock);
	if (h->answered) {
		err = h->err;
	} else if (atomic_load(&c->dead)) {
		TAILQ_REMOVE(&c->handovers, h, link);
		err = -ENOTCONN;
	} else {
		h->late = true;
		h = NULL;
		never = ++c->n_late > MAX_LATE;
	}
	pthread_mutex_unlock(&c->lock);
	free(h);
	if (never) {
		if (log_may(&c->ctl->mute_pace))
			log_warn("control: client %d is disconnected: it does not say whether it could map what it was handed",
				 (int)c->pid);
		client_disconnect(c);
		err = -ENOTCONN;
	}
	return err;
}

/*
 * Wait for the client's answer. 0 if it takes too long; and at once if the client already owes an answer, so that a
 * client costs a worker no more than this time. (A client that was killed may be unable to end before this request
 * is answered: hence the check for that.)
 */
int control_granted(struct handover *h)
{
	struct client *c = h->client;
	uint64_t now = now_ns();
	/* Longer in tests that need the answer, which a busy machine may delay. */
	uint64_t deadline = now + (fault_point("grant.patience") ? 60 : 1) * GRANT_TIMEOUT_NS;
	struct look look = { .pid = c->pid };

	while (now < deadline && !handover_wait_a_while(c, h, MIN(now + REVOKE_LOOK_NS, deadline))) {
		now = now_ns();
		if (process_is_ending(&look, now + REVOKE_LOOK_MOST_NS))
			client_disconnect(c);
	}
	return handover_end(c, h);
}

int control_grant(void *client, uint64_t map, unsigned prot, const uint64_t *idx, const int *fd,
		  const unsigned *chunks, unsigned n, uint64_t *seq, struct handover **answer)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_GRANT, .map = map, .prot = prot, .count = n };
	struct client *c = client;
	struct handover *h = NULL;
	int err;

	bug_on(n > GAIA_MSG_CHUNKS);
	memcpy(msg.chunk, idx, n * sizeof(*idx));
	pthread_mutex_lock(&c->send_lock);
	if (c->features & GAIA_FEATURE_ANSWERS)
		h = handover_begin(c, map);
	err = send_grant(c, &msg, fd, chunks, now_ns() + SEND_TIMEOUT_NS);
	pthread_mutex_unlock(&c->send_lock);
	for (unsigned i = 0; i < n; i++)
		close(fd[i]);
	/* If sending failed the client has been disconnected. */
	if (err && h)
		return control_granted(h);
	*seq = msg.seq;
	*answer = h;
	return err;
}

int client_unanswered(struct client *c, uint64_t seq, uint32_t *out)
{
	const struct handover *h;
	int err;

	*out = 0;
	pthread_mutex_lock(&c->lock);
	TAILQ_FOREACH(h, &c->handovers, link) {
		if (h->late && h->seq <= seq) {
			*out = (uint32_t)MIN(seq + 1 - h->seq, UINT32_MAX);
			break;
		}
	}
	err = c->refused_late ? -ENOTCONN : 0;
	pthread_mutex_unlock(&c->lock);
	return err;
}

/* Maps any error that a client may name to one that an acquire can return. */
static int grant_error(uint32_t error)
{
	switch (error) {
	case 0:
	case EMFILE:
	case ENFILE:
	case ENOMEM:
	case ENODEV:
	case EPROTO:
		return -(int)error;
	}
	return -EIO;
}

bool handovers_answered(const struct client *c, uint64_t seq)
{
	const struct handover *h = TAILQ_FIRST(&c->handovers);

	return !h || h->seq >= seq;
}

bool handover_answered(struct client *c, const struct gaia_msg *msg)
{
	struct gaia_msg want = {
		.kind = GAIA_MSG_GRANTED,
		.version = GAIA_PROTOCOL_VERSION,
		.seq = msg->seq,
		.map = msg->map,
		.error = msg->error,
	};
	bool good, late = false;
	struct handover *h;

	if (memcmp(&want, msg, sizeof(want)) != 0)
		return false;
	pthread_mutex_lock(&c->lock);
	h = TAILQ_FIRST(&c->handovers);
	good = h && h->seq == msg->seq && h->map == msg->map;
	if (good) {
		TAILQ_REMOVE(&c->handovers, h, link);
		h->answered = true;
		h->err = grant_error(msg->error);
		late = h->late;
		c->n_late -= late;
		c->refused_late |= late && msg->error;
		pthread_cond_broadcast(&c->answer);
	}
	pthread_mutex_unlock(&c->lock);
	if (late)
		free(h);
	if (!good || !msg->error)
		return good;
	count(CTR_grants_refused, 1);
	if (log_shows(LOG_LEVEL_INFO) && log_may(&c->ctl->mute_pace))
		log_info("control: client %d could not map what it acquired: %s", (int)c->pid,
			 strerror(-grant_error(msg->error)));
	/* A late answer cannot refuse: the chunks count as mapped already. */
	return !late;
}

void handovers_forget(struct client *c)
{
	struct handover *h;

	while ((h = TAILQ_FIRST(&c->handovers))) {
		TAILQ_REMOVE(&c->handovers, h, link);
		free(h);
	}
}
