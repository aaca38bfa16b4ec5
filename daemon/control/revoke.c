/* revoke.c - taking memory back from clients: asking for it, waiting for the answers, and ending who does not answer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/counters.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"
#include "control/internal.h"

/* ---- asking ---- */

/* One client, and what one call asks it for. */
struct asked_client {
	struct client *client;
	struct revocation *next, *end; /* @next: to be sent next; @end: behind the last */
	struct revocation *first;
	uint64_t asked_ns;    /* when */
	uint64_t patience_ns; /* how long clients of its user are waited for */
	uint64_t deadline_ns; /* for its answers; UINT64_MAX: it has answered, or is disconnected */
	bool extended, resumed;
};

static int by_client(const void *a, const void *b)
{
	const struct revocation *x = a, *y = b;

	if (x->client != y->client)
		return (uintptr_t)x->client < (uintptr_t)y->client ? -1 : 1;
	return x->ask < y->ask ? -1 : x->ask > y->ask;
}

/* Sort @rev by client, and make an asked_client for each; to be freed. */
static struct asked_client *asked_clients(struct revocation *rev, unsigned n, unsigned *out)
{
	struct asked_client *list = xcalloc(n, sizeof(*list));
	unsigned n_clients = 0;

	for (unsigned i = 0; i < n; i++) {
		if (i == 0 || rev[i].client != rev[i - 1].client)
			list[n_clients++] = (struct asked_client){ .client = rev[i].client, .next = &rev[i],
								   .end = &rev[i], .first = &rev[i] };
		list[n_clients - 1].end = &rev[i + 1];
	}
	*out = n_clients;
	return list;
}

static void revoke_begin(struct revocation *rev)
{
	struct client *c = rev->client;

	/* While this thread waits the client's mappings may go, and the last of them would take the client along. */
	client_get(c);
	pthread_mutex_lock(&c->lock);
	/* If the client dies after this check, client_disconnect() finds the revocation in the list. */
	if (atomic_load(&c->dead)) {
		atomic_store(&rev->over, true);
	} else {
		LIST_INSERT_HEAD(&c->revocations, rev, link);
		pthread_mutex_lock(&rev->wait->lock);
		rev->wait->pending++;
		pthread_mutex_unlock(&rev->wait->lock);
	}
	pthread_mutex_unlock(&c->lock);
}

/* Clients do not wait for room in the socket for their answers, so there must be some before they are asked. */
static bool has_room_for_answers(struct client *c)
{
	bool room;

	pthread_mutex_lock(&c->lock);
	room = HASH_COUNT(c->asked) < REVOKES_AT_ONCE;
	pthread_mutex_unlock(&c->lock);
	return room;
}

static void revoke_set_seq(struct revocation *rev, uint64_t seq)
{
	struct client *c = rev->client;

	pthread_mutex_lock(&c->lock);
	if (!atomic_load(&rev->over)) {
		if (rev->seq)
			HASH_DEL(c->asked, rev);
		rev->seq = seq;
		if (seq)
			HASH_ADD(hh, c->asked, seq, sizeof(rev->seq), rev);
	}
	pthread_mutex_unlock(&c->lock);
}

/* Returns whether it was sent. Waits neither for room nor for other threads that are sending to the client. */
static bool revoke_try_send(struct revocation *rev)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_REVOKE, .map = rev->ask->map, .count = 1,
				.chunk = { rev->ask->idx } };
	struct client *c = rev->client;
	int err;

	if (pthread_mutex_trylock(&c->send_lock))
		return false;
	if (!has_room_for_answers(c)) {
		pthread_mutex_unlock(&c->send_lock);
		return false;
	}
	/* Set before it is sent: the answer may come before sending returns. */
	revoke_set_seq(rev, c->seq + 1);
	err = send_next(c, &msg, NULL, 0, SEND_NOW);
	if (err)
		revoke_set_seq(rev, 0);
	pthread_mutex_unlock(&c->send_lock);
	return !err;
}

/* Send what was not sent, to each client while it has room. True: there is nothing left to send. */
static bool revoke_send_rest(struct asked_client *list, unsigned n)
{
	bool all = true;

	for (unsigned i = 0; i < n; i++) {
		struct asked_client *ac = &list[i];

		while (ac->next < ac->end && (atomic_load(&ac->next->over) || revoke_try_send(ac->next)))
			ac->next++;
		all &= ac->next == ac->end;
	}
	return all;
}

/* ---- answers ---- */

void revoke_over(struct revocation *rev, bool answered)
{
	struct revoke_wait *wait = rev->wait;

	LIST_REMOVE(rev, link);
	if (rev->seq)
		HASH_DEL(rev->client->asked, rev);
	rev->answered = answered;
	atomic_store(&rev->over, true);
	pthread_mutex_lock(&wait->lock);
	if (--wait->pending == 0)
		pthread_cond_signal(&wait->none);
	pthread_mutex_unlock(&wait->lock);
}

bool revoke_answered(struct client *c, const struct gaia_msg *msg)
{
	struct gaia_msg want = {
		.kind = GAIA_MSG_REVOKED,
		.version = GAIA_PROTOCOL_VERSION,
		.seq = msg->seq,
		.map = msg->map,
	};
	struct revocation *rev;
	bool good;

	if (memcmp(&want, msg, sizeof(want)) != 0)
		return false;
	pthread_mutex_lock(&c->lock);
	HASH_FIND(hh, c->asked, &msg->seq, sizeof(msg->seq), rev);
	good = rev && rev->ask->map == msg->map && handovers_answered(c, rev->seq);
	if (good)
		revoke_over(rev, true);
	pthread_mutex_unlock(&c->lock);
	return good;
}

/* False: nothing is pending any more. True: some time has passed. */
static bool revoke_wait_a_while(struct revoke_wait *wait, uint64_t until_ns)
{
	struct timespec until = { .tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000 };
	struct uses *waits = wait_begin(WAIT_clients);
	bool pending;
	int err = 0;

	pthread_mutex_lock(&wait->lock);
	while (wait->pending && !err)
		err = pthread_cond_timedwait(&wait->none, &wait->lock, &until);
	pending = wait->pending;
	pthread_mutex_unlock(&wait->lock);
	wait_end(waits, WAIT_clients);
	return pending;
}

static bool is_pending(const struct revocation *rev)
{
	return !atomic_load(&rev->over);
}

/* ---- clients that end, or are mute ---- */

static int by_pid(const void *a, const void *b)
{
	const pid_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* The processes of the clients that have pending revocations, each once and in order; to be freed. */
static pid_t *pending_pids(const struct revocation *rev, unsigned n, unsigned *n_pids)
{
	pid_t *pid = xcalloc(n, sizeof(*pid));
	unsigned all = 0, once = 0;

	for (unsigned i = 0; i < n; i++)
		if (is_pending(&rev[i]))
			pid[all++] = rev[i].client->pid;
	qsort(pid, all, sizeof(*pid), by_pid);
	for (unsigned i = 0; i < all; i++)
		if (once == 0 || pid[i] != pid[once - 1])
			pid[once++] = pid[i];
	*n_pids = once;
	return pid;
}

static void disconnect_process(const struct revocation *rev, unsigned n, pid_t pid)
{
	for (unsigned i = 0; i < n; i++)
		if (rev[i].client->pid == pid && is_pending(&rev[i]))
			client_disconnect(rev[i].client);
}

/*
 * Disconnect clients that are ending although their sockets are still open: one of their threads waits for an answer to a
 * request, and that request may be waiting for this very client's memory.
 *
 * A process may have many connections and threads just to make this long. So each process is checked once, and at the
 * time @until checking stops; the next call continues there.
 */
static void disconnect_ending(const struct revocation *rev, unsigned n, struct look *look, uint64_t until)
{
	unsigned n_pids, first = 0;
	pid_t *pid = pending_pids(rev, n, &n_pids);

	while (first < n_pids && pid[first] < look->pid)
		first++;
	for (unsigned k = 0; k < n_pids; k++) {
		pid_t at = pid[(first + k) % n_pids];

		if (at != look->pid)
			*look = (struct look){ .pid = at };
		if (process_is_ending(look, until)) {
			disconnect_process(rev, n, at);
			look->thread = 0;
		}
		if (look->thread)
			break;
		look->pid++;
		if (now_ns() >= until)
			break;
	}
	free(pid);
}

static unsigned count_pending(const struct asked_client *ac)
{
	unsigned pending = 0;

	for (const struct revocation *rev = ac->first; rev < ac->end; rev++)
		pending += is_pending(rev);
	return pending;
}

/*
 * The client's time is over: disconnect it. One that was asked for much, and answers, gets more time, once.
 * Whether it was disconnected.
 */
static bool lose_patience(struct asked_client *ac)
{
	unsigned pending = count_pending(ac), asked = (unsigned)(ac->end - ac->first);
	struct client *c = ac->client;

	if (pending && pending < asked && !ac->extended) {
		ac->extended = true;
		ac->deadline_ns += asked * REVOKE_EACH_NS;
		return false;
	}
	ac->deadline_ns = UINT64_MAX;
	if (!pending)
		return false;
	client_disconnect(c);
	return true;
}

/* Log that the client was mute. Called after note_mute(). */
static void tell_of_mute(const struct asked_client *ac)
{
	const struct client *c = ac->client;

	if (!log_may(&c->ctl->mute_pace))
		return;
	if (quota_is_owner(c->ctl->quota, c->uid))
		log_warn("control: client %d of user %u is disconnected: it did not give up memory within %g s", (int)c->pid, (unsigned)c->uid,
			 (double)ac->patience_ns / 1e9);
	else
		log_warn("control: client %d of user %u is disconnected: it did not give up memory within %g s; for the next %d minutes "
			 "clients of this user are waited for %g s only", (int)c->pid, (unsigned)c->uid, (double)ac->patience_ns / 1e9,
			 (int)(MUTE_FORGET_NS / 60000000000), (double)patience_with(c->ctl, c->uid) / 1e9);
}

/* Disconnect the clients whose time is over. Returns when the next one's is. */
static uint64_t disconnect_mute(struct asked_client *list, unsigned n, uint64_t now)
{
	uint64_t next = UINT64_MAX;
	bool any = false;

	for (unsigned i = 0; i < n; i++) {
		if (now >= list[i].deadline_ns && lose_patience(&list[i])) {
			any = true;
			note_mute(list[i].client->ctl, list[i].client->uid, list[i].asked_ns);
			tell_of_mute(&list[i]);
		}
		next = MIN(next, list[i].deadline_ns);
	}
	count(CTR_revoke_timeouts, any);
	return next;
}

/* ---- for the cache ---- */

/* What some thread waits for; another may go on waiting for it. */
struct revoking {
	struct revoke_wait wait;
	struct revocation *rev; /* by client */
	struct asked_client *list;
	unsigned n, n_clients;
	uint64_t deadline, next; /* when a client's time is over; when to look for ending ones */
	uint64_t left;		 /* when a thread has last waited for it */
	struct look look;
};

/*
 * Wait until each client has answered or is disconnected, but not beyond @end. All of a user's clients have the same deadline,
 * however many are mute.
 */
static void revoke_await(struct revoking *r, uint64_t end)
{
	uint64_t now, until;

	/* Once at least, so that clients that are looked at now and then are sent what they are asked for, and lose their time. */
	do {
		until = revoke_send_rest(r->list, r->n_clients) ? r->next : MIN(r->next, now_ns() + REVOKE_RETRY_NS);
		if (!revoke_wait_a_while(&r->wait, MIN(MIN(until, r->deadline), end)))
			return;
		now = now_ns();
		if (now >= r->deadline) {
			r->deadline = disconnect_mute(r->list, r->n_clients, now);
		} else if (now >= r->next) {
			disconnect_ending(r->rev, r->n, &r->look, MIN(now + REVOKE_LOOK_MOST_NS, r->deadline));
			r->next = now + REVOKE_LOOK_NS;
		}
	} while (now < end);
}

/*
 * Some thread goes on waiting. If that has been left for long, clients to which not all was sent meanwhile have their time from now on;
 * once, so that none has it for ever.
 */
static void revoke_resume(struct revoking *r)
{
	uint64_t now = now_ns();

	if (now < r->left + REVOKE_LOOK_NS)
		return;
	r->deadline = UINT64_MAX;
	for (unsigned i = 0; i < r->n_clients; i++) {
		struct asked_client *ac = &r->list[i];

		if (ac->next < ac->end && !ac->resumed && ac->deadline_ns < UINT64_MAX) {
			ac->resumed = true;
			ac->deadline_ns = now + ac->patience_ns;
		}
		r->deadline = MIN(r->deadline, ac->deadline_ns);
	}
}

static struct revoking *revoke_start(struct cache_revoke *list, unsigned n)
{
	struct revoking *r = xcalloc(1, sizeof(*r));
	uint64_t now = now_ns();

	*r = (struct revoking){ .rev = xcalloc(n, sizeof(*r->rev)), .n = n, .deadline = UINT64_MAX, .next = now + REVOKE_LOOK_NS,
				.left = now };
	pthread_mutex_init(&r->wait.lock, NULL);
	cond_init_monotonic(&r->wait.none);
	for (unsigned i = 0; i < n; i++) {
		r->rev[i].client = list[i].client;
		r->rev[i].wait = &r->wait;
		r->rev[i].ask = &list[i];
	}
	qsort(r->rev, n, sizeof(*r->rev), by_client);
	for (unsigned i = 0; i < n; i++)
		revoke_begin(&r->rev[i]);
	r->list = asked_clients(r->rev, n, &r->n_clients);
	for (unsigned i = 0; i < r->n_clients; i++) {
		struct asked_client *ac = &r->list[i];

		ac->asked_ns = now;
		ac->patience_ns = patience_with(ac->client->ctl, ac->client->uid);
		ac->deadline_ns = now + ac->patience_ns;
		r->deadline = MIN(r->deadline, ac->deadline_ns);
	}
	return r;
}

/* Tell who asked; of those that are pending that they are. Whether none is. */
static bool revoke_tell(struct revoking *r)
{
	bool over = true;

	for (unsigned i = 0; i < r->n; i++) {
		struct revocation *rev = &r->rev[i];

		/* With the lock: so the thread that set `over` has finished with it. */
		pthread_mutex_lock(&rev->client->lock);
		rev->ask->err = is_pending(rev) ? -EINPROGRESS : rev->answered ? 0 : -ENOTCONN;
		over &= rev->ask->err != -EINPROGRESS;
		pthread_mutex_unlock(&rev->client->lock);
	}
	return over;
}

struct revoking *control_revoke_more(struct revoking *r, uint64_t end)
{
	revoke_resume(r);
	revoke_await(r, end);
	r->left = now_ns();
	/* The last answer may have come just after the wait. */
	if (!revoke_tell(r))
		return r;
	for (unsigned i = 0; i < r->n; i++) {
		count(CTR_revokes, r->rev[i].answered);
		client_put(r->rev[i].client);
	}
	pthread_cond_destroy(&r->wait.none);
	pthread_mutex_destroy(&r->wait.lock);
	free(r->list);
	free(r->rev);
	free(r);
	return NULL;
}

struct revoking *control_revoke_soon(struct cache_revoke *list, unsigned n, uint64_t end)
{
	return control_revoke_more(revoke_start(list, n), end);
}

void control_revoke_many(struct cache_revoke *list, unsigned n)
{
	(void)control_revoke_more(revoke_start(list, n), UINT64_MAX);
}

int control_revoke(void *client, uint64_t map, uint64_t idx)
{
	struct cache_revoke one = { .client = client, .map = map, .idx = idx };

	control_revoke_many(&one, 1);
	return one.err;
}
