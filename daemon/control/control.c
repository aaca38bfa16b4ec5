/*
 * control.c - the listener, tickets, and requests that need no client.
 *
 * The socket's name is in the abstract namespace. Any program in the daemon's network namespace can connect (for others see netns.c), so a
 * connection means nothing until it shows a ticket. The CONNECT ioctl gives out tickets: a program that
 * can open something on the mount may become a client.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"
#include "control/internal.h"

/* Linux 6.16; headers may be older. */
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

/*
 * Threads that unmap what lost clients leave. Each may wait for a device, which may in turn wait for clients
 * that are mute.
 */
#define WORKERS 16
#define WORKERS_FOR_EACH 6
#define WORKERS_FOR_USERS 12

void fill_random(void *buf, size_t len)
{
	/* getrandom() returns up to 256 bytes whole, and fails only before the machine has booted. */
	bug_on(len > 256);
	while (getrandom(buf, len, 0) != (ssize_t)len)
		bug_on(errno != EINTR);
}

bool equal_secret(const void *a, const void *b, size_t len)
{
	const volatile uint8_t *x = a, *y = b;
	uint8_t diff = 0;

	for (size_t i = 0; i < len; i++)
		diff |= x[i] ^ y[i];
	return diff == 0;
}

/* ---- tickets; ctl->lock is held unless stated otherwise ---- */

/* Remove the ticket. @seat: its place among its user's clients is given back, too. */
static void ticket_drop(struct control *ctl, struct ticket *t, bool seat)
{
	HASH_DEL(ctl->tickets, t);
	TAILQ_REMOVE(&ctl->oldest, t, link);
	quota_give(ctl->quota, QUOTA_tickets, t->uid);
	if (t->fd >= 0) {
		LIST_REMOVE(t, outside);
		close(t->fd);
		quota_give(ctl->quota, QUOTA_namespaces, t->uid);
	}
	if (seat)
		quota_give(ctl->quota, QUOTA_clients, t->uid);
	free(t);
}

static void tickets_expire(struct control *ctl)
{
	struct ticket *t;

	while ((t = TAILQ_FIRST(&ctl->oldest)) && t->expires_ns <= now_ns())
		ticket_drop(ctl, t, true);
}

/* Called without the lock. */
void tickets_forget_expired(struct control *ctl)
{
	pthread_mutex_lock(&ctl->lock);
	tickets_expire(ctl);
	pthread_mutex_unlock(&ctl->lock);
}

static struct ticket *ticket_oldest_of(struct control *ctl, uid_t uid)
{
	struct ticket *t;

	TAILQ_FOREACH(t, &ctl->oldest, link)
		if (t->uid == uid)
			break;
	return t;
}

/* Count a new ticket. If its user may have no more, the user's own oldest ticket is dropped, never another user's. */
static int ticket_take_room(struct control *ctl, uid_t uid, bool outside)
{
	static const enum quota_of needs[] = { QUOTA_tickets, QUOTA_clients, QUOTA_namespaces };
	int err;

	for (size_t i = 0; i < ARRAY_LEN(needs) - !outside; i++) {
		struct ticket *own;

		while (quota_look(ctl->quota, needs[i], uid) && (own = ticket_oldest_of(ctl, uid)))
			ticket_drop(ctl, own, true);
		err = quota_take(ctl->quota, needs[i], uid);
		if (err) {
			while (i > 0)
				quota_give(ctl->quota, needs[--i], uid);
			return err;
		}
	}
	return 0;
}

/* The ticket has a listener of its own, which ends with it. */
static int listen_outside(struct control *ctl, struct ticket *t)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = t->fd };
	struct itimerspec then = { .it_value = { .tv_sec = GAIA_TICKET_S, .tv_nsec = 1000000 } };

	if (epoll_ctl(ctl->arrivals, EPOLL_CTL_ADD, t->fd, &event) || timerfd_settime(ctl->expiry, 0, &then, NULL))
		return -errno;
	LIST_INSERT_HEAD(&ctl->outside, t, outside);
	return 0;
}

/* Called without the lock. @fd: of a listener for this ticket, which is its own then, whatever is returned; or -1. */
static int ticket_give_out(struct control *ctl, uid_t uid, uint64_t features, int fd, uint8_t out[16])
{
	struct ticket *t = xcalloc(1, sizeof(*t)), *same;
	int err;

	t->uid = uid;
	t->features = features;
	t->fd = fd;
	fill_random(&t->bytes, sizeof(t->bytes));
	pthread_mutex_lock(&ctl->lock);
	tickets_expire(ctl);
	err = ticket_take_room(ctl, uid, fd >= 0);
	if (err)
		goto unlock;
	if (fd >= 0) {
		err = listen_outside(ctl, t);
		if (err) {
			quota_give(ctl->quota, QUOTA_namespaces, uid);
			quota_give(ctl->quota, QUOTA_clients, uid);
			quota_give(ctl->quota, QUOTA_tickets, uid);
			goto unlock;
		}
	}
	HASH_FIND(hh, ctl->tickets, &t->bytes.id, sizeof(t->bytes.id), same);
	while (same) {
		fill_random(&t->bytes, sizeof(t->bytes));
		HASH_FIND(hh, ctl->tickets, &t->bytes.id, sizeof(t->bytes.id), same);
	}
	/* Set with the lock held, so that the list is sorted by it. */
	t->expires_ns = now_ns() + TICKET_LIFE_NS;
	HASH_ADD(hh, ctl->tickets, bytes.id, sizeof(t->bytes.id), t);
	TAILQ_INSERT_TAIL(&ctl->oldest, t, link);
	memcpy(out, &t->bytes, sizeof(t->bytes));
	t = NULL;
unlock:
	pthread_mutex_unlock(&ctl->lock);
	if (t && fd >= 0)
		close(fd);
	free(t);
	return err;
}

/* Called without the lock. */
bool ticket_redeem(struct control *ctl, const uint8_t ticket[16], uid_t peer, uid_t *uid, uint64_t *features)
{
	struct ticket_bytes bytes;
	struct ticket *t;
	bool good = false;

	memcpy(&bytes, ticket, sizeof(bytes));
	pthread_mutex_lock(&ctl->lock);
	tickets_expire(ctl);
	HASH_FIND(hh, ctl->tickets, &bytes.id, sizeof(bytes.id), t);
	if (t && equal_secret(&t->bytes.secret, &bytes.secret, sizeof(bytes.secret)) && (t->fd < 0 || t->uid == peer)) {
		good = true;
		*uid = t->uid;
		*features = t->features;
		ticket_drop(ctl, t, false);
	}
	pthread_mutex_unlock(&ctl->lock);
	return good;
}

/* ---- the listener ---- */

/* There is no descriptor for the connection: accept and drop it, or poll would report it for ever. */
static void refuse_connection(struct control *ctl, int listener)
{
	int fd;

	if (log_may(&ctl->pace))
		log_warn("control: out of file descriptors, a client was turned away; raise the limit (ulimit -n)");
	if (ctl->spare >= 0)
		close(ctl->spare);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		close(fd);
	ctl->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Those outside go while we look: with the lock held they do not. */
static bool is_listener(const struct control *ctl, int fd)
{
	const struct ticket *t;

	if (fd == ctl->listener.fd)
		return true;
	LIST_FOREACH(t, &ctl->outside, outside)
		if (t->fd == fd)
			return true;
	return false;
}

static void on_arrival(uv_poll_t *poll, int status, int events)
{
	struct control *ctl = poll->data;
	struct epoll_event event;
	uint64_t times;
	int fd = -1;

	if (epoll_wait(ctl->arrivals, &event, 1, 0) != 1)
		return;
	pthread_mutex_lock(&ctl->lock);
	if (event.data.fd == ctl->expiry) {
		(void)!read(ctl->expiry, &times, sizeof(times));
		tickets_expire(ctl);
	} else if (is_listener(ctl, event.data.fd)) {
		fd = accept4(event.data.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0 && (errno == EMFILE || errno == ENFILE))
			refuse_connection(ctl, event.data.fd);
	}
	pthread_mutex_unlock(&ctl->lock);
	if (fd >= 0)
		client_accept(ctl, fd);
}

int listener_open(struct listener *out)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	uint64_t random[2];
	socklen_t len;
	int fd, err;

	fill_random(random, sizeof(random));
	snprintf(out->name, sizeof(out->name), "gaiafs/%016llx%016llx",
		 (unsigned long long)random[0], (unsigned long long)random[1]);
	memcpy(addr.sun_path + 1, out->name, strlen(out->name));
	len = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(out->name);

	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/*
	 * Connections inherit it: a client that sends descriptors gets EPERM. Otherwise the last reference to a file may lie in a message, and to
	 * drop it is to call the file system, which may be somebody's FUSE server that never answers. Older kernels cannot refuse them.
	 */
	(void)setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &(int){ 0 }, sizeof(int));
	if (bind(fd, (struct sockaddr *)&addr, len) || listen(fd, SOMAXCONN)) {
		err = -errno;
		close(fd);
		return err;
	}
	out->fd = fd;
	return 0;
}

static int add_arrival(struct control *ctl, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	return epoll_ctl(ctl->arrivals, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

static void close_listeners(struct control *ctl)
{
	const int fds[] = { ctl->listener.fd, ctl->arrivals, ctl->expiry, ctl->netns };

	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

static int open_listeners(struct control *ctl)
{
	int err;

	ctl->listener.fd = -1;
	ctl->arrivals = epoll_create1(EPOLL_CLOEXEC);
	ctl->expiry = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	ctl->netns = netns_open();
	err = ctl->arrivals < 0 || ctl->expiry < 0 ? -errno : listener_open(&ctl->listener);
	if (!err)
		err = add_arrival(ctl, ctl->listener.fd);
	if (!err)
		err = add_arrival(ctl, ctl->expiry);
	if (err)
		close_listeners(ctl);
	return err;
}

int control_create(uv_loop_t *loop, struct cache *cache, struct quota *quota, struct control **out)
{
	struct control *ctl = xcalloc(1, sizeof(*ctl));
	int err;

	ctl->loop = loop;
	ctl->cache = cache;
	ctl->quota = quota;
	ctl->end = -1;
	TAILQ_INIT(&ctl->pending);
	TAILQ_INIT(&ctl->oldest);
	TAILQ_INIT(&ctl->reports);
	pthread_mutex_init(&ctl->lock, NULL);
	err = open_listeners(ctl);
	if (err)
		goto free_control;
	ctl->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	err = pool_create("control", WORKERS, &ctl->workers);
	if (err)
		goto close_listeners;
	pool_share(ctl->workers, WORKERS_FOR_EACH, WORKERS_FOR_USERS);
	err = uv_poll_init(loop, &ctl->poll, ctl->arrivals);
	if (err)
		goto destroy_pool;
	ctl->handles = 1;
	ctl->poll.data = ctl;
	uv_poll_start(&ctl->poll, UV_READABLE, on_arrival);
	*out = ctl;
	return 0;

destroy_pool:
	pool_destroy(ctl->workers);
close_listeners:
	if (ctl->spare >= 0)
		close(ctl->spare);
	close_listeners(ctl);
free_control:
	pthread_mutex_destroy(&ctl->lock);
	free(ctl);
	return err;
}

void control_set_mount_info(struct control *ctl, json_t *mount)
{
	ctl->mount = mount;
}

void control_set_end(struct control *ctl, int fd)
{
	ctl->end = fd;
}

static void on_listener_closed(uv_handle_t *handle)
{
	struct control *ctl = handle->data;

	ctl->handles--;
}

void control_destroy(struct control *ctl)
{
	struct client *c, *next;
	struct ticket *t;

	uv_close((uv_handle_t *)&ctl->poll, on_listener_closed);
	while ((c = TAILQ_FIRST(&ctl->pending)))
		client_end(c);
	HASH_ITER(hh, ctl->clients, c, next)
		client_end(c);
	while (ctl->handles)
		uv_run(ctl->loop, UV_RUN_ONCE);
	pool_destroy(ctl->workers);
	bug_on(ctl->n_live);
	while ((t = TAILQ_FIRST(&ctl->oldest)))
		ticket_drop(ctl, t, true);
	reports_forget(ctl);
	mute_forget(ctl);

	if (ctl->spare >= 0)
		close(ctl->spare);
	close_listeners(ctl);
	json_decref(ctl->mount);
	pthread_mutex_destroy(&ctl->lock);
	free(ctl);
}

int control_connect(struct control *ctl, uid_t uid, pid_t tid, struct gaia_ioc_connect *io)
{
	const struct gaia_ioc_connect in = *io;
	struct listener own = { .fd = -1 };
	int err;

	if (in.version && in.version != GAIA_PROTOCOL_VERSION) {
		if (log_may(&ctl->pace))
			log_warn("control: a program of user %u speaks protocol %u.%u, this daemon %u.%u: it was turned away; install libgaiaclient and gaiafs of the same release, and restart both",
				 (unsigned)uid, in.version, in.minor, GAIA_PROTOCOL_VERSION, GAIA_PROTOCOL_MINOR);
		return -EPROTO;
	}
	memset(io, 0, sizeof(*io));
	io->version = GAIA_PROTOCOL_VERSION;
	io->minor = GAIA_PROTOCOL_MINOR;
	io->features = GAIA_FEATURES;
	io->devices = cache_devices(ctl->cache);
	if (!in.version)
		return 0;
	err = netns_listen(ctl, tid, &own);
	if (err)
		return err;
	memcpy(io->socket, own.fd >= 0 ? own.name : ctl->listener.name, sizeof(io->socket));
	return ticket_give_out(ctl, uid, in.features & GAIA_FEATURES, own.fd, io->ticket);
}

int control_devices(struct control *ctl, struct gaia_ioc_devices *io)
{
	unsigned first = io->first, total = cache_devices(ctl->cache), n;

	if (io->reserved)
		return -EINVAL;
	n = first < total ? MIN(total - first, GAIA_DEVICES_AT_ONCE) : first == GAIA_HOST && cache_has_device(ctl->cache, first);
	memset(io, 0, sizeof(*io));
	io->first = first;
	io->total = total;
	io->count = n;
	for (unsigned i = 0; i < n; i++) {
		struct gaia_ioc_device *d = &io->device[i];
		struct cache_device_use use;

		cache_device(ctl->cache, first + i, &use);
		snprintf(d->name, sizeof(d->name), "%s", use.dev->name);
		snprintf(d->kind, sizeof(d->kind), "%s", use.dev->kind);
		memcpy(d->uuid, use.dev->uuid, sizeof(d->uuid));
		d->capacity = use.capacity;
		d->used = use.used;
		d->simulated = use.dev->simulated;
		d->flags = use.dev->strict ? GAIA_DEVICE_STRICT : 0;
	}
	return 0;
}
