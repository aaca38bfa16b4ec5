/* client.c - clients' connections: their lives, and the messages that they carry. */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"
#include "control/internal.h"

/* Messages taken from one client before others have their turn. */
#define MESSAGES_AT_ONCE 16

static void cond_init_monotonic(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

void client_get(struct client *c)
{
	atomic_fetch_add(&c->refs, 1);
}

/* Called when nothing refers to the client: so the handovers that are left are late ones, for which nobody waits. */
static void handovers_forget(struct client *c)
{
	struct handover *h;

	while ((h = TAILQ_FIRST(&c->handovers))) {
		TAILQ_REMOVE(&c->handovers, h, link);
		free(h);
	}
}

void client_put(struct client *c)
{
	struct control *ctl = c->ctl;

	if (atomic_fetch_sub(&c->refs, 1) != 1)
		return;
	bug_on(c->maps || !LIST_EMPTY(&c->revocations));
	handovers_forget(c);
	lists_end(c);
	close(c->fd);
	if (c->counted)
		quota_give(ctl->quota, QUOTA_clients, c->uid);
	pthread_cond_destroy(&c->answer);
	pthread_mutex_destroy(&c->lock);
	pthread_mutex_destroy(&c->send_lock);
	free(c);
	atomic_fetch_sub(&ctl->n_live, 1);
}

struct client *client_find(struct control *ctl, const struct gaia_client_key *key)
{
	struct client *c;

	pthread_mutex_lock(&ctl->lock);
	HASH_FIND(hh, ctl->clients, &key->id, sizeof(key->id), c);
	if (c && !equal_secret(&c->key.secret, &key->secret, sizeof(key->secret)))
		c = NULL;
	/* Dead: it was disconnected, but the loop has not ended it yet. */
	if (c && atomic_load(&c->dead))
		c = NULL;
	if (c)
		client_get(c);
	pthread_mutex_unlock(&ctl->lock);
	return c;
}

/*
 * The revocation is not pending any more: from here on it belongs to the thread that waits for it. The client's
 * lock is held, which keeps that thread from ending meanwhile.
 */
static void revoke_over(struct revocation *rev, bool answered)
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

void client_disconnect(struct client *c)
{
	struct revocation *rev;

	atomic_store(&c->dead, true);
	shutdown(c->fd, SHUT_RDWR);
	pthread_mutex_lock(&c->lock);
	while ((rev = LIST_FIRST(&c->revocations)))
		revoke_over(rev, false);
	pthread_cond_broadcast(&c->answer);
	pthread_mutex_unlock(&c->lock);
}

bool control_alive(void *client)
{
	struct client *c = client;
	struct pollfd p = { .fd = c->fd, .events = POLLRDHUP };

	return !atomic_load(&c->dead) && poll(&p, 1, 0) == 0;
}

/* ---- sending ---- */

/* Wait until sending may have become possible: 0, or -ETIMEDOUT. */
static int wait_to_send(struct client *c, int why, uint64_t deadline)
{
	struct pollfd p = { .fd = c->fd, .events = POLLOUT };
	uint64_t now = now_ns();

	if (now >= deadline)
		return -ETIMEDOUT;
	/*
	 * ETOOMANYREFS: too many descriptors of this user are in flight in sockets, to any client.
	 * There is no event for their becoming fewer.
	 */
	if (why == ETOOMANYREFS)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	else
		poll(&p, 1, (deadline - now) / 1000000 + 1);
	return 0;
}

/* send_lock is held. -ETIMEDOUT: there was no room until @deadline. */
static int send_packet(struct client *c, const struct gaia_msg *msg, const int *fd, unsigned n,
		       uint64_t deadline)
{
	static const struct gaia_span whole[GAIA_MSG_CHUNKS] = {
		[0 ... GAIA_MSG_CHUNKS - 1] = { .length = GAIA_CHUNK },
	};
	bool spans = msg->kind == GAIA_MSG_GRANT && c->features & GAIA_FEATURE_SPANS;
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(GAIA_MSG_CHUNKS * sizeof(int))];
	} control;
	struct iovec iov[] = {
		{ .iov_base = (void *)msg, .iov_len = sizeof(*msg) },
		{ .iov_base = (void *)whole, .iov_len = msg->count * sizeof(whole[0]) },
	};
	struct msghdr hdr = { .msg_iov = iov, .msg_iovlen = spans ? 2 : 1 };

	bug_on(n > GAIA_MSG_CHUNKS);
	if (n) {
		struct cmsghdr *cmsg;

		memset(&control, 0, sizeof(control));
		hdr.msg_control = control.buf;
		hdr.msg_controllen = CMSG_SPACE(n * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&hdr);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fd, n * sizeof(int));
	}
	while (!atomic_load(&c->dead)) {
		int err;

		if (sendmsg(c->fd, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 0;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN && errno != ETOOMANYREFS && errno != ENOBUFS && errno != ENOMEM)
			return -errno;
		err = wait_to_send(c, errno == EAGAIN ? EAGAIN : ETOOMANYREFS, deadline);
		if (err)
			return err;
	}
	return -ENOTCONN;
}

#define NOW 0 /* a deadline that has passed: try once, without waiting */

/* send_lock is held. 0 or -ENOTCONN; with the deadline NOW also -EAGAIN: there is no room. */
static int send_next(struct client *c, struct gaia_msg *msg, const int *fd, unsigned n, uint64_t deadline)
{
	int err;

	msg->version = GAIA_PROTOCOL_VERSION;
	msg->seq = c->seq + 1;
	err = send_packet(c, msg, fd, n, deadline);
	if (!err) {
		c->seq++;
		return 0;
	}
	if (err == -ETIMEDOUT && deadline == NOW)
		return -EAGAIN;
	if (err != -ENOTCONN && err != -EPIPE && err != -ECONNRESET)
		log_warn("control: client %d is disconnected: cannot send to it: %s", (int)c->pid,
			 strerror(-err));
	client_disconnect(c);
	return -ENOTCONN;
}

int client_send(struct client *c, struct gaia_msg *msg, const int *fd, unsigned n, uint64_t *seq)
{
	int err;

	pthread_mutex_lock(&c->send_lock);
	err = send_next(c, msg, fd, n, now_ns() + SEND_TIMEOUT_NS);
	if (!err)
		*seq = msg->seq;
	pthread_mutex_unlock(&c->send_lock);
	return err;
}

int client_try_send(struct client *c, struct gaia_msg *msg, const int *fd, unsigned n, uint64_t *seq)
{
	uint64_t until = now_ns() + TRY_SEND_NS;
	int err;

	/* Not pthread_mutex_clocklock(), which the thread sanitizer of older compilers does not know. */
	while (pthread_mutex_trylock(&c->send_lock)) {
		if (now_ns() >= until)
			return -EAGAIN;
		nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL);
	}
	err = send_next(c, msg, fd, n, NOW);
	if (!err)
		*seq = msg->seq;
	pthread_mutex_unlock(&c->send_lock);
	return err;
}

/* Where the next check of processes' threads continues. */
struct look {
	pid_t pid;
	uint64_t thread; /* threads of that process that were checked; 0 again after the last */
};

/* After a failure to open a file: false if it does not exist; true if it only could not be opened (EMFILE, say). */
static bool is_there(void)
{
	return errno != ENOENT && errno != ESRCH;
}

/*
 * Whether @is_so is true of some thread. Checks at least one, and stops at the time @until. @unseen: the result
 * if the threads cannot be listed.
 */
static bool some_thread(struct look *look, uint64_t until, bool (*is_so)(pid_t pid, const char *tid), bool unseen)
{
	char path[32];
	struct dirent *entry = NULL;
	uint64_t nth = 0;
	bool found = false;
	DIR *threads;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)look->pid);
	threads = opendir(path);
	if (!threads)
		found = unseen && is_there();
	while (threads && !found && (entry = readdir(threads))) {
		if (entry->d_name[0] == '.' || nth++ < look->thread)
			continue;
		found = is_so(look->pid, entry->d_name);
		if (now_ns() >= until)
			break;
	}
	if (threads)
		closedir(threads);
	look->thread = entry ? nth : 0;
	return found;
}

static bool thread_is_killed(pid_t pid, const char *tid)
{
	unsigned long long pending;
	char path[64], line[128];
	bool killed = false;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/task/%.20s/status", (int)pid, tid);
	status = fopen(path, "re");
	if (!status)
		return false;
	while (!killed && fgets(line, sizeof(line), status))
		if (sscanf(line, "SigPnd: %llx", &pending) == 1)
			killed = pending & 1ull << (SIGKILL - 1);
	fclose(status);
	return killed;
}

static bool thread_has_memory(pid_t pid, const char *tid)
{
	unsigned long pages = 0;
	char path[64];
	FILE *statm;

	snprintf(path, sizeof(path), "/proc/%d/task/%.20s/statm", (int)pid, tid);
	statm = fopen(path, "re");
	if (!statm)
		return is_there();
	if (fscanf(statm, "%lu", &pages) != 1)
		pages = 0;
	fclose(statm);
	return pages > 0;
}

/*
 * Whether the client, whose connection is over, still runs and so still maps its memory. (A process that ends
 * loses its memory before its sockets.) If the process cannot be seen: true.
 */
static bool keeps_memory(const struct client *c)
{
	struct look look = { .pid = c->pid };

	return c->pid == 0 || some_thread(&look, UINT64_MAX, thread_has_memory, true);
}

/* ---- processes, beyond their clients' ends ---- */

/*
 * When the process started, in ticks since boot: tells it from a later process with the same number. 0: it does
 * not exist, or cannot be looked at.
 */
static unsigned long long started(pid_t pid)
{
	unsigned long long ticks = 0;
	char path[32], text[1024], *p;
	FILE *stat;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	stat = fopen(path, "re");
	if (!stat)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, stat);
	fclose(stat);
	text[n] = '\0';
	/* Start behind the process's name: that is in parentheses, and may contain anything. */
	p = strrchr(text, ')');
	if (!p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &ticks) != 1)
		return 0;
	return ticks;
}

bool control_process(void *client, struct cache_process *out)
{
	const struct client *c = client;
	unsigned long long ticks = c->pid ? started(c->pid) : 0;

	if (!ticks || !keeps_memory(c))
		return false;
	*out = (struct cache_process){ (uint64_t)c->pid, ticks };
	return true;
}

bool control_process_lives(const struct cache_process *process)
{
	struct look look = { .pid = (pid_t)process->id };
	unsigned long long ticks = started(look.pid);
	char path[64];

	/* 0: it has ended, or that cannot be found out for want of descriptors. */
	snprintf(path, sizeof(path), "/proc/%d", (int)look.pid);
	if (!ticks)
		return !access(path, F_OK);
	return ticks == process->started && some_thread(&look, UINT64_MAX, thread_has_memory, true);
}

/* ---- handing memory over ---- */

/*
 * Note that the client owes an answer. Before the GRANT is sent, since the answer may come before sending
 * returns. send_lock is held.
 */
static struct handover *handover_begin(struct client *c, uint64_t map)
{
	struct handover *h = xcalloc(1, sizeof(*h));

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
	bool over;

	pthread_mutex_lock(&c->lock);
	while (!(over = h->answered || c->n_late || atomic_load(&c->dead)) && now_ns() < until_ns)
		pthread_cond_timedwait(&c->answer, &c->lock, &until);
	pthread_mutex_unlock(&c->lock);
	return over;
}

/* Stop waiting: returns the answer, or 0 if there is none yet. take_granted() handles one that comes later. */
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
static int handover_await(struct client *c, struct handover *h)
{
	uint64_t now = now_ns();
	/* Longer in tests that need the answer, which a busy machine may delay. */
	uint64_t deadline = now + (fault_point("grant.patience") ? 60 : 1) * GRANT_TIMEOUT_NS;
	struct look look = { .pid = c->pid };

	while (now < deadline && !handover_wait_a_while(c, h, MIN(now + REVOKE_LOOK_NS, deadline))) {
		now = now_ns();
		if (some_thread(&look, now + REVOKE_LOOK_MOST_NS, thread_is_killed, false))
			client_disconnect(c);
	}
	return handover_end(c, h);
}

int control_grant(void *client, uint64_t map, unsigned prot, const uint64_t *idx, const int *fd,
		  unsigned n, uint64_t *seq)
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
	err = send_next(c, &msg, fd, n, now_ns() + SEND_TIMEOUT_NS);
	pthread_mutex_unlock(&c->send_lock);
	for (unsigned i = 0; i < n; i++)
		close(fd[i]);
	/* If sending failed the client has been disconnected. */
	if (h)
		err = handover_await(c, h);
	if (!err)
		*seq = msg.seq;
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

/* ---- taking memory back ---- */

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
	err = send_next(c, &msg, NULL, 0, NOW);
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

/* False: nothing is pending any more. True: some time has passed. */
static bool revoke_wait_a_while(struct revoke_wait *wait, uint64_t until_ns)
{
	struct timespec until = { .tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000 };
	bool pending;
	int err = 0;

	pthread_mutex_lock(&wait->lock);
	while (wait->pending && !err)
		err = pthread_cond_timedwait(&wait->none, &wait->lock, &until);
	pending = wait->pending;
	pthread_mutex_unlock(&wait->lock);
	return pending;
}

static bool is_pending(const struct revocation *rev)
{
	return !atomic_load(&rev->over);
}

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
 * request, and that request may be waiting for this very client's memory. They are recognised by threads with a pending
 * SIGKILL: however a process ends, the kernel kills its other threads.
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
		if (some_thread(look, until, thread_is_killed, false)) {
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

/* How often this user's clients were mute, less one for each MUTE_FORGET_NS since the last time. control.lock is held. */
static unsigned mute_times(const struct mute_user *m, uint64_t now)
{
	uint64_t forgotten = (now - m->since_ns) / MUTE_FORGET_NS;

	return forgotten < m->times ? m->times - (unsigned)forgotten : 0;
}

/* How long clients of @uid are waited for. */
static uint64_t patience_with(struct control *ctl, uid_t uid)
{
	uint64_t timeout = REVOKE_TIMEOUT_NS;
	struct mute_user *m;

	pthread_mutex_lock(&ctl->lock);
	HASH_FIND(hh, ctl->mute_users, &uid, sizeof(uid), m);
	for (unsigned n = m ? mute_times(m, now_ns()) : 0; n > 0; n--)
		timeout = MAX(timeout / MUTE_DIVISOR, MUTE_LEAST_NS);
	pthread_mutex_unlock(&ctl->lock);
	return timeout;
}

/*
 * A client of @uid's that was asked at @asked_ns was mute. However many of a user's clients are mute at the same time, it counts once. Nor does
 * it count for owners of the mount: they may stop their clients by a debugger as often as they like.
 */
static void note_mute(struct control *ctl, uid_t uid, uint64_t asked_ns)
{
	struct mute_user *m, *tmp, *his = NULL;
	uint64_t now = now_ns();

	if (quota_is_owner(ctl->quota, uid))
		return;
	pthread_mutex_lock(&ctl->lock);
	HASH_ITER(hh, ctl->mute_users, m, tmp) {
		if (m->uid == uid) {
			his = m;
		} else if (!mute_times(m, now)) {
			HASH_DEL(ctl->mute_users, m);
			free(m);
		}
	}
	if (!his) {
		his = xcalloc(1, sizeof(*his));
		his->uid = uid;
		HASH_ADD(hh, ctl->mute_users, uid, sizeof(his->uid), his);
	}
	if (his->since_ns < asked_ns) {
		his->times = MIN(mute_times(his, now) + 1, MUTE_TIMES_MOST);
		his->since_ns = now;
	}
	pthread_mutex_unlock(&ctl->lock);
}

void mute_forget(struct control *ctl)
{
	struct mute_user *m, *tmp;

	HASH_ITER(hh, ctl->mute_users, m, tmp) {
		HASH_DEL(ctl->mute_users, m);
		free(m);
	}
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

/* ---- receiving, on the loop's thread ---- */

/* False: this is not a HELLO with a valid ticket. */
static bool take_hello(struct client *c, const struct gaia_msg *msg)
{
	struct gaia_msg want = { .kind = GAIA_MSG_HELLO, .version = GAIA_PROTOCOL_VERSION };
	struct gaia_msg welcome = { .kind = GAIA_MSG_WELCOME };
	struct control *ctl = c->ctl;
	struct client *same;
	uint64_t seq;

	memcpy(want.ticket, msg->ticket, sizeof(want.ticket));
	if (memcmp(&want, msg, sizeof(want)) != 0 || !ticket_redeem(ctl, msg->ticket, &c->uid, &c->features))
		return false;

	c->counted = true;
	pthread_mutex_lock(&ctl->lock);
	do {
		fill_random(&c->key, sizeof(c->key));
		HASH_FIND(hh, ctl->clients, &c->key.id, sizeof(c->key.id), same);
	} while (same || !c->key.id);
	HASH_ADD(hh, ctl->clients, key.id, sizeof(c->key.id), c);
	pthread_mutex_unlock(&ctl->lock);

	TAILQ_REMOVE(&ctl->pending, c, link);
	ctl->n_pending--;
	c->welcome = true;
	log_debug("client: process %d of user %u has connected", (int)c->pid, (unsigned)c->uid);
	welcome.key = c->key;
	return client_send(c, &welcome, NULL, 0, &seq) == 0;
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

/* Whether the client has answered everything that came before message @seq. c->lock is held. */
static bool is_next_answer(const struct client *c, uint64_t seq)
{
	const struct handover *h = TAILQ_FIRST(&c->handovers);

	return !h || h->seq >= seq;
}

static bool take_granted(struct client *c, const struct gaia_msg *msg)
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
	if (log_may(&c->ctl->mute_pace))
		log_info("control: client %d could not map what it acquired: %s", (int)c->pid,
			 strerror(-grant_error(msg->error)));
	/* A late answer cannot refuse: the chunks count as mapped already. */
	return !late;
}

static bool take_revoked(struct client *c, const struct gaia_msg *msg)
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
	good = rev && rev->ask->map == msg->map && is_next_answer(c, rev->seq);
	if (good)
		revoke_over(rev, true);
	pthread_mutex_unlock(&c->lock);
	return good;
}

static bool take_message(struct client *c, const struct gaia_msg *msg)
{
	if (!c->welcome)
		return take_hello(c, msg);
	return msg->kind == GAIA_MSG_GRANTED ? take_granted(c, msg) : take_revoked(c, msg);
}

static void on_client(uv_poll_t *poll, int status, int events)
{
	struct client *c = poll->data;

	for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
		struct gaia_msg msg;
		struct iovec iov = { .iov_base = &msg, .iov_len = sizeof(msg) };
		/* Without space for descriptors: if a client sends any, the kernel drops them. */
		struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1 };
		ssize_t n = recvmsg(c->fd, &hdr, MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			client_end(c);
			return;
		}
		if (n == sizeof(msg) && !(hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && take_message(c, &msg))
			continue;
		if (log_may(&c->ctl->pace))
			log_info("control: client %d is disconnected: it sent an invalid message",
				 (int)c->pid);
		client_end(c);
		return;
	}
}

/* ---- life ---- */

static void on_client_closed(uv_handle_t *handle)
{
	struct client *c = handle->data;

	c->ctl->handles--;
	client_put(c);
}

static unsigned pending_of(const struct control *ctl, uid_t uid)
{
	const struct client *c;
	unsigned n = 0;

	TAILQ_FOREACH(c, &ctl->pending, link)
		n += c->peer_uid == uid;
	return n;
}

/* The oldest connection without a HELLO, of the user who has most of them. There is at least one. */
static struct client *pending_surplus(const struct control *ctl)
{
	struct client *c, *found = NULL;
	unsigned n, most = 0;

	TAILQ_FOREACH(c, &ctl->pending, link) {
		n = pending_of(ctl, c->peer_uid);
		if (n > most) {
			most = n;
			found = c;
		}
	}
	return found;
}

void client_accept(struct control *ctl, int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	struct client *c;

	if (ctl->n_pending >= MAX_PENDING)
		client_end(pending_surplus(ctl));
	c = xcalloc(1, sizeof(*c));
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) ||
	    uv_poll_init(ctl->loop, &c->poll, fd)) {
		if (log_may(&ctl->pace))
			log_warn("control: a client was turned away: cannot watch its socket");
		close(fd);
		free(c);
		return;
	}
	c->ctl = ctl;
	c->fd = fd;
	c->lists = -1;
	c->pid = cred.pid;
	c->peer_uid = cred.uid;
	c->refs = 1;
	c->poll.data = c;
	pthread_mutex_init(&c->send_lock, NULL);
	pthread_mutex_init(&c->lock, NULL);
	LIST_INIT(&c->revocations);
	TAILQ_INIT(&c->handovers);
	cond_init_monotonic(&c->answer);
	TAILQ_INSERT_TAIL(&ctl->pending, c, link);
	ctl->n_pending++;
	ctl->handles++;
	atomic_fetch_add(&ctl->n_live, 1);
	uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT, on_client);
}

/* On a worker: unmapping waits for the device and for other requests. */
static void unmap_all(void *arg)
{
	struct client *c = arg;
	struct map *maps, *map, *next;
	enum cache_left left = keeps_memory(c) ? CACHE_KEPT : CACHE_ENDED;

	/* The client is closed: no other thread adds or removes mappings any more. */
	pthread_mutex_lock(&c->lock);
	maps = c->maps;
	c->maps = NULL;
	c->n_maps = 0;
	pthread_mutex_unlock(&c->lock);

	HASH_ITER(hh, maps, map, next) {
		HASH_DEL(maps, map);
		map->left = left;
		map_put(map);
	}
	client_put(c);
}

void client_end(struct client *c)
{
	struct control *ctl = c->ctl;
	bool mapped;

	if (c->ended)
		return;
	c->ended = true;
	(void)fault_point("client.before_end");
	uv_close((uv_handle_t *)&c->poll, on_client_closed);
	if (c->welcome) {
		log_debug("client: process %d of user %u has gone", (int)c->pid, (unsigned)c->uid);
		pthread_mutex_lock(&ctl->lock);
		HASH_DELETE(hh, ctl->clients, c);
		pthread_mutex_unlock(&ctl->lock);
	} else {
		TAILQ_REMOVE(&ctl->pending, c, link);
		ctl->n_pending--;
	}
	client_disconnect(c);

	pthread_mutex_lock(&c->lock);
	c->closed = true;
	mapped = c->maps != NULL;
	pthread_mutex_unlock(&c->lock);
	if (mapped) {
		count(CTR_clients_lost, 1);
		client_get(c);
		pool_submit_for(ctl->workers, c->uid, quota_is_owner(ctl->quota, c->uid), unmap_all, c);
	}
}
