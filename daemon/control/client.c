/*
 * client.c - one client's connection: its life, its messages.
 */
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

void client_get(struct client *c)
{
	atomic_fetch_add(&c->refs, 1);
}

void client_put(struct client *c)
{
	struct control *ctl = c->ctl;

	if (atomic_fetch_sub(&c->refs, 1) != 1)
		return;
	bug_on(c->maps || !LIST_EMPTY(&c->revocations));
	close(c->fd);
	if (c->counted)
		quota_give(ctl->quota, QUOTA_clients, c->uid);
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
	/* Disconnected, and the loop has not come round to ending it. */
	if (c && atomic_load(&c->dead))
		c = NULL;
	if (c)
		client_get(c);
	pthread_mutex_unlock(&ctl->lock);
	return c;
}

/* The client's lock is held, so that the one who waits is still there. */
static void tell_waiter(struct revocation *rev)
{
	pthread_mutex_lock(&rev->wait->lock);
	pthread_cond_signal(&rev->wait->changed);
	pthread_mutex_unlock(&rev->wait->lock);
}

void client_disconnect(struct client *c)
{
	struct revocation *rev;

	atomic_store(&c->dead, true);
	shutdown(c->fd, SHUT_RDWR);
	pthread_mutex_lock(&c->lock);
	LIST_FOREACH(rev, &c->revocations, link)
		tell_waiter(rev);
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
	 * ETOOMANYREFS: too many descriptors of this user are in sockets, on their way to
	 * any client. Nothing tells when there are fewer.
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
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(GAIA_MSG_CHUNKS * sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = (void *)msg, .iov_len = sizeof(*msg) };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1 };

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

#define NOW 0 /* a deadline that has passed: once, without waiting */

/* send_lock is held. -ENOTCONN; or, of what is to be sent NOW, -EAGAIN: there is no room. */
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

	/* Not by pthread_mutex_clocklock(), which the thread sanitizer of older compilers does not know. */
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

int control_grant(void *client, uint64_t map, unsigned prot, const uint64_t *idx, const int *fd,
		  unsigned n, uint64_t *seq)
{
	struct client *c = client;
	int err = 0;

	for (unsigned i = 0; i < n && !err;) {
		struct gaia_msg msg = { .kind = GAIA_MSG_GRANT, .map = map, .prot = prot };

		msg.count = MIN(n - i, GAIA_MSG_CHUNKS);
		memcpy(msg.chunk, idx + i, msg.count * sizeof(*idx));
		err = client_send(c, &msg, fd + i, msg.count, seq);
		i += msg.count;
	}
	for (unsigned i = 0; i < n; i++)
		close(fd[i]);
	return err;
}

/* Where a look at the threads of processes goes on. */
struct look {
	pid_t pid;
	uint64_t thread; /* so many of that process were looked at; 0 again after the last */
};

/* At one thread at least, and no more when @until has come. */
static bool some_thread(struct look *look, uint64_t until, bool (*is_so)(pid_t pid, const char *tid))
{
	char path[32];
	struct dirent *entry = NULL;
	uint64_t nth = 0;
	bool found = false;
	DIR *threads;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)look->pid);
	threads = opendir(path);
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
		return false;
	if (fscanf(statm, "%lu", &pages) != 1)
		pages = 0;
	fclose(statm);
	return pages > 0;
}

/*
 * Whether the client, whose connection is over, lives and so maps its memory still. Who ends has lost
 * that before the socket. Of a process that we cannot see nothing is known.
 */
static bool keeps_memory(const struct client *c)
{
	struct look look = { .pid = c->pid };

	return c->pid == 0 || some_thread(&look, UINT64_MAX, thread_has_memory);
}

/* ---- taking memory back ---- */

static void revoke_begin(struct revocation *rev, const struct cache_revoke *ask, struct revoke_wait *wait)
{
	struct client *c = ask->client;

	rev->client = c;
	rev->wait = wait;
	rev->map = ask->map;
	/* Its mappings may go while we wait, and it with the last of them. */
	client_get(c);
	pthread_mutex_lock(&c->lock);
	LIST_INSERT_HEAD(&c->revocations, rev, link);
	pthread_mutex_unlock(&c->lock);
}

static void revoke_set_seq(struct revocation *rev, uint64_t seq)
{
	pthread_mutex_lock(&rev->client->lock);
	rev->seq = seq;
	pthread_mutex_unlock(&rev->client->lock);
}

/* Nor does it wait for others who are sending to the client. Whether it is sent. */
static bool revoke_try_send(struct revocation *rev, uint64_t idx)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_REVOKE, .map = rev->map, .count = 1, .chunk = { idx } };
	struct client *c = rev->client;
	int err;

	if (pthread_mutex_trylock(&c->send_lock))
		return false;
	/* Before it is sent: the answer may be quicker than we are. */
	revoke_set_seq(rev, c->seq + 1);
	err = send_next(c, &msg, NULL, 0, NOW);
	if (err)
		revoke_set_seq(rev, 0);
	pthread_mutex_unlock(&c->send_lock);
	return !err;
}

static bool is_pending(const struct revocation *rev)
{
	return !atomic_load(&rev->answered) && !atomic_load(&rev->client->dead);
}

/* Of what is pending, send what was not sent: true if there is nothing left to send. */
static bool revoke_send_rest(struct revocation *rev, const struct cache_revoke *list, unsigned n)
{
	bool all = true;

	/* Nobody else changes whether it was sent. */
	for (unsigned i = 0; i < n; i++)
		if (is_pending(&rev[i]) && !rev[i].seq)
			all &= revoke_try_send(&rev[i], list[i].idx);
	return all;
}

/* False: nothing is pending any more. Else some time has passed, or something has changed. */
static bool revoke_wait_a_while(struct revoke_wait *wait, const struct revocation *rev, unsigned n,
				uint64_t until_ns)
{
	struct timespec until = { .tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000 };
	unsigned pending = 0;

	pthread_mutex_lock(&wait->lock);
	for (unsigned i = 0; i < n; i++)
		pending += is_pending(&rev[i]);
	if (pending)
		pthread_cond_timedwait(&wait->changed, &wait->lock, &until);
	pthread_mutex_unlock(&wait->lock);
	return pending;
}

static int by_pid(const void *a, const void *b)
{
	const pid_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* The processes of those who are pending, each once and in order; to be freed. */
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
 * Disconnect those who have ended, though their sockets are still open: one of the threads waits for our answer to a
 * request, and that request may be waiting for this very client's memory. However a process
 * ends, the kernel kills its threads that are left.
 *
 * A process may have many connections and many threads, to keep us looking: so each is looked at once,
 * and at @until the look stops, to go on there at the next.
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
		if (some_thread(look, until, thread_is_killed)) {
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

static void disconnect_mute(const struct revocation *rev, unsigned n)
{
	bool any = false;

	for (unsigned i = 0; i < n; i++) {
		struct client *c = rev[i].client;

		if (!is_pending(&rev[i]))
			continue;
		any = true;
		if (log_may(&c->ctl->mute_pace))
			log_warn("control: client %d is disconnected: it did not give up memory within %d s",
				 (int)c->pid, (int)(REVOKE_TIMEOUT_NS / 1000000000));
		client_disconnect(c);
	}
	count(CTR_revoke_timeouts, any);
}

/* Until each has answered or is disconnected: one deadline for all, however many are mute. */
static void revoke_await(struct revoke_wait *wait, struct revocation *rev, const struct cache_revoke *list,
			 unsigned n)
{
	uint64_t now = now_ns(), deadline = now + REVOKE_TIMEOUT_NS, next = now + REVOKE_LOOK_NS, until;
	struct look look = { .pid = 0 };

	for (;;) {
		until = revoke_send_rest(rev, list, n) ? next : MIN(next, now_ns() + REVOKE_RETRY_NS);
		if (!revoke_wait_a_while(wait, rev, n, MIN(until, deadline)))
			return;
		now = now_ns();
		if (now >= deadline) {
			disconnect_mute(rev, n);
		} else if (now >= next) {
			disconnect_ending(rev, n, &look, MIN(now + REVOKE_LOOK_MOST_NS, deadline));
			next = now + REVOKE_LOOK_NS;
		}
	}
}

void control_revoke_many(struct cache_revoke *list, unsigned n)
{
	struct revocation *rev = xcalloc(n, sizeof(*rev));
	struct revoke_wait wait;
	pthread_condattr_t attr;

	pthread_mutex_init(&wait.lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&wait.changed, &attr);
	pthread_condattr_destroy(&attr);

	for (unsigned i = 0; i < n; i++)
		revoke_begin(&rev[i], &list[i], &wait);
	revoke_await(&wait, rev, list, n);
	for (unsigned i = 0; i < n; i++) {
		struct client *c = rev[i].client;

		pthread_mutex_lock(&c->lock);
		LIST_REMOVE(&rev[i], link);
		pthread_mutex_unlock(&c->lock);
		list[i].err = atomic_load(&rev[i].answered) ? 0 : -ENOTCONN;
		count(CTR_revokes, !list[i].err);
		client_put(c);
	}
	pthread_cond_destroy(&wait.changed);
	pthread_mutex_destroy(&wait.lock);
	free(rev);
}

int control_revoke(void *client, uint64_t map, uint64_t idx)
{
	struct cache_revoke one = { .client = client, .map = map, .idx = idx };

	control_revoke_many(&one, 1);
	return one.err;
}

/* ---- receiving, on the loop's thread ---- */

/* False: this is no HELLO with a ticket. */
static bool take_hello(struct client *c, const struct gaia_msg *msg)
{
	struct gaia_msg want = { .kind = GAIA_MSG_HELLO, .version = GAIA_PROTOCOL_VERSION };
	struct gaia_msg welcome = { .kind = GAIA_MSG_WELCOME };
	struct control *ctl = c->ctl;
	struct client *same;
	uint64_t seq;

	memcpy(want.ticket, msg->ticket, sizeof(want.ticket));
	if (memcmp(&want, msg, sizeof(want)) != 0 || !ticket_redeem(ctl, msg->ticket, &c->uid))
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
	welcome.key = c->key;
	return client_send(c, &welcome, NULL, 0, &seq) == 0;
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
	bool good = false;

	if (memcmp(&want, msg, sizeof(want)) != 0)
		return false;
	pthread_mutex_lock(&c->lock);
	LIST_FOREACH(rev, &c->revocations, link) {
		if (rev->seq && rev->seq == msg->seq && rev->map == msg->map && !rev->answered) {
			good = true;
			atomic_store(&rev->answered, true);
			tell_waiter(rev);
			break;
		}
	}
	pthread_mutex_unlock(&c->lock);
	return good;
}

static void on_client(uv_poll_t *poll, int status, int events)
{
	struct client *c = poll->data;

	for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
		struct gaia_msg msg;
		struct iovec iov = { .iov_base = &msg, .iov_len = sizeof(msg) };
		/* No room for descriptors: those that a client sends are dropped by the kernel. */
		struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1 };
		ssize_t n = recvmsg(c->fd, &hdr, MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			client_end(c);
			return;
		}
		if (n == sizeof(msg) && !(hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
		    (c->welcome ? take_revoked(c, &msg) : take_hello(c, &msg)))
			continue;
		if (log_may(&c->ctl->pace))
			log_info("control: client %d is disconnected: it sent something that is no valid message",
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

/* The oldest connection that has not said HELLO, of the user who has most of those. There are some. */
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
	c->pid = cred.pid;
	c->peer_uid = cred.uid;
	c->refs = 1;
	c->poll.data = c;
	pthread_mutex_init(&c->send_lock, NULL);
	pthread_mutex_init(&c->lock, NULL);
	LIST_INIT(&c->revocations);
	TAILQ_INSERT_TAIL(&ctl->pending, c, link);
	ctl->n_pending++;
	ctl->handles++;
	atomic_fetch_add(&ctl->n_live, 1);
	uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT, on_client);
}

/* On a worker: unmapping waits for the device and for others' requests. */
static void unmap_all(void *arg)
{
	struct client *c = arg;
	struct map *maps, *map, *next;
	enum cache_left left = keeps_memory(c) ? CACHE_KEPT : CACHE_ENDED;

	/* Closed: nobody adds or removes any more, so the table is ours. */
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
