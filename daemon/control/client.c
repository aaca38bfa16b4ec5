/* client.c - clients' connections: their lives, and what they say. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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
	handovers_forget(c);
	lists_end(c);
	close(c->fd);
	if (c->counted)
		quota_give(ctl->quota, QUOTA_clients, c->uid);
	pthread_cond_destroy(&c->answer);
	pthread_mutex_destroy(&c->lock);
	pthread_mutex_destroy(&c->send_lock);
	uses_destroy(&c->uses);
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
	if (memcmp(&want, msg, sizeof(want)) != 0 || !ticket_redeem(ctl, msg->ticket, c->peer_uid, &c->uid, &c->features))
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

static bool take_message(struct client *c, const struct gaia_msg *msg)
{
	if (!c->welcome && msg->kind == GAIA_MSG_UPGRADE)
		return upgrade_asked(c, msg);
	if (!c->welcome)
		return take_hello(c, msg);
	if (msg->kind == GAIA_MSG_READY)
		return move_answered(c, msg);
	return msg->kind == GAIA_MSG_GRANTED ? handover_answered(c, msg) : revoke_answered(c, msg);
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
		if (log_shows(LOG_LEVEL_INFO) && log_may(&c->ctl->pace))
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
	uses_init(&c->uses);
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
