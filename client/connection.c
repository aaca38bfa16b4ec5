/*
 * connection.c - one connection to each mount, its thread, and fork().
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host_detect.h"
#include "internal.h"

/*
 * The library's code needs little more than one message, but a device's driver runs on this stack as well;
 * and a program's thread-local storage, which may be large, is taken from it.
 */
#define THREAD_STACK (1 << 20)

pthread_mutex_t gaia_lock = PTHREAD_MUTEX_INITIALIZER;

/* gaia_lock. */
static LIST_HEAD(, conn) conns = LIST_HEAD_INITIALIZER(conns);
static pthread_cond_t connected = PTHREAD_COND_INITIALIZER; /* one has left CONN_CONNECTING */

/* ---- fork ---- */

/* The lock is held. */
static void close_descriptors(struct conn *c)
{
	while (c->n_fds)
		close(c->fd[--c->n_fds]);
}

static void before_fork(void)
{
	pthread_mutex_lock(&gaia_lock);
	pthread_mutex_lock(&turns_lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&turns_lock);
	pthread_mutex_unlock(&gaia_lock);
}

static void after_fork_in_child(void)
{
	struct conn *c;

	starts_forked();
	host_detect_forked();
	while ((c = LIST_FIRST(&conns))) {
		LIST_REMOVE(c, link);
		files_forked(c);
		close_descriptors(c);
		if (c->sock >= 0)
			close(c->sock);
		c->sock = -1;
		lists_forked(&c->lists);
		gate_forked(c);
		c->state = CONN_DEAD;
		c->error = -ENOTCONN;
		c->forked = true;
		/* New, since the threads that waited on the old one do not exist in the child. */
		c->changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	}
	connected = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	pthread_mutex_unlock(&turns_lock);
	pthread_mutex_unlock(&gaia_lock);
}

static int atfork_error;

/* Before there are threads: a fork(2) beside the first mapping would find it half done, and the child do it again. */
__attribute__((constructor)) static void watch_forks(void)
{
	atfork_error = -pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- the thread ---- */

void conn_kill(struct conn *c, int error)
{
	if (c->state == CONN_DEAD)
		return;
	c->state = CONN_DEAD;
	c->error = error;
	/* Nobody will say how it came out. */
	if (c->move == MOVE_ASKED) {
		c->move = MOVE_NONE;
		gate_let_in(c);
	}
	shutdown(c->sock, SHUT_RDWR);
	pthread_cond_broadcast(&c->changed);
}

int conn_say(struct conn *c, const struct gaia_msg *msg)
{
	int err = wire_send(c->sock, msg);

	/* The daemon has ended. It may have handed the mount over and said so: that comes next, or the end. */
	return c->move == MOVE_ASKED ? 0 : err;
}

/*
 * Answer @msg, which was carried out, or failed with @err. A GRANT that failed is refused, so that only the acquire
 * that caused it fails; if the daemon does not know refusals the connection ends.
 */
static int answer(struct conn *c, const struct gaia_msg *msg, int err)
{
	struct gaia_msg answer = { .version = GAIA_PROTOCOL_VERSION, .seq = msg->seq, .map = msg->map };

	if (msg->kind == GAIA_MSG_REVOKE) {
		answer.kind = GAIA_MSG_REVOKED;
		return err ? err : conn_say(c, &answer);
	}
	if (!(c->features & GAIA_FEATURE_ANSWERS))
		return err;
	if (err)
		c->refused = msg->seq;
	answer.kind = GAIA_MSG_GRANTED;
	answer.error = -err;
	return conn_say(c, &answer);
}

static bool is_of_moving(const struct gaia_msg *msg)
{
	return msg->kind == GAIA_MSG_MOVE || msg->kind == GAIA_MSG_STAY || msg->kind == GAIA_MSG_MOVED;
}

/* Take one message, if there is one, and carry it out. Called with the lock held, which is dropped meanwhile. */
static int serve_one(struct conn *c)
{
	bool takes_extents = c->features & GAIA_FEATURE_EXTENTS;
	uint64_t extents = 0;
	struct gaia_msg msg;
	int err, failed;

	/* What was sent before that can still be received, and must not count. */
	if (c->state == CONN_DEAD)
		return c->error;
	err = wire_receive_extents(c->sock, false, &msg, c->fd, &c->n_fds, takes_extents ? &extents : NULL);
	if (err == -EAGAIN)
		return 0;
	if (err < 0)
		return err;
	failed = -err;
	err = 0;
	if (msg.seq != c->seq + 1)
		err = -EPROTO;
	else if (msg.kind == GAIA_MSG_LISTS)
		lists_message(&c->lists, c->fd[0], failed);
	else if (is_of_moving(&msg))
		err = gate_message(c, &msg);
	else if (!mapping_takes(c, &msg))
		err = -EPROTO;
	else if (!failed)
		failed = mapping_message(c, &msg, c->fd, extents);
	close_descriptors(c);
	if (!err && c->state == CONN_DEAD)
		err = c->error;
	if (!err && msg.kind != GAIA_MSG_LISTS && !is_of_moving(&msg))
		err = answer(c, &msg, failed);
	if (!err) {
		c->seq = msg.seq;
		pthread_cond_broadcast(&c->changed);
	}
	return err;
}

static void *conn_thread(void *arg)
{
	struct conn *c = arg;
	struct pollfd p = { .events = POLLIN };
	int err = 0;

	while (!err) {
		p.fd = c->sock;
		poll(&p, 1, -1);
		pthread_mutex_lock(&gaia_lock);
		err = serve_one(c);
		if (!err && c->move == MOVE_MADE)
			err = conn_move(c);
		/*
		 * The library may be unable to unmap a chunk, or to map one that the daemon takes for mapped. The only
		 * way to say so is to end the connection, which is the lease.
		 */
		if (err)
			conn_kill(c, err);
		pthread_mutex_unlock(&gaia_lock);
	}
	return NULL;
}

int start_thread(pthread_t *thread, void *(*fn)(void *), void *arg, const char *name)
{
	long least = sysconf(_SC_THREAD_STACK_MIN);
	size_t stack = THREAD_STACK;
	sigset_t all, old;
	pthread_attr_t attr;
	int err;

	if (least > 0)
		stack += least;
	err = pthread_attr_init(&attr);
	if (err)
		return -err;
	pthread_attr_setstacksize(&attr, stack);
	/* Signals are for the application's threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(thread, &attr, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (err)
		return -err;
	pthread_setname_np(*thread, name);
	return 0;
}

/* ---- life ---- */

static int make_socket(struct conn *c)
{
	c->sock = wire_socket();
	return c->sock < 0 ? c->sock : 0;
}

/* Free a connection whose thread has ended, or never ran. */
static void free_conn(struct conn *c)
{
	if (c->sock >= 0)
		close(c->sock);
	pthread_cond_destroy(&c->changed);
	lists_unmap(&c->lists);
	turns_end(&c->turns, c->forked);
	free(c);
}

/* Make a connection: in conns, CONNECTING, with one reference. The lock is held. */
static int new_conn(dev_t dev, struct conn **out)
{
	struct conn *c = calloc(1, sizeof(*c));
	int err;

	if (!c)
		return -ENOMEM;
	/* Under the lock, so that a child finds and closes it. */
	err = make_socket(c);
	if (err) {
		free(c);
		return err;
	}
	c->dev = dev;
	c->refs = 1;
	LIST_INIT(&c->files);
	TAILQ_INIT(&c->lists.used);
	pthread_cond_init(&c->changed, NULL);
	turns_init(&c->turns);
	LIST_INSERT_HEAD(&conns, c, link);
	*out = c;
	return 0;
}

static int connect_conn(struct conn *c, int fd)
{
	uint64_t seq, features = GAIA_FEATURES & ~GAIA_FEATURES_OF_TOOLS;
	int err = wire_handshake(c->sock, fd, &c->key, &seq, &features);

	if (err == -ESTALE) {
		pthread_mutex_lock(&gaia_lock);
		close(c->sock);
		err = make_socket(c);
		pthread_mutex_unlock(&gaia_lock);
		if (!err)
			err = wire_handshake(c->sock, fd, &c->key, &seq, &features);
	}
	if (err)
		return err == -ESTALE ? -ENOTCONN : err;
	c->seq = seq;
	c->features = features;
	return start_thread(&c->thread, conn_thread, c, "gaia");
}

/* While it may move the socket's end need not be the connection's: its thread knows. */
static bool has_hung_up(const struct conn *c)
{
	return c->move == MOVE_NONE && wire_hung_up(c->sock);
}

/* The usable connection to a mount, waiting for one that is being made; the lock is held. */
static struct conn *find_conn(dev_t dev)
{
	struct conn *c;

again:
	LIST_FOREACH(c, &conns, link) {
		if (c->dev != dev || c->state == CONN_DEAD)
			continue;
		if (c->state == CONN_LIVE && !has_hung_up(c))
			return c;
		if (c->state == CONN_CONNECTING) {
			pthread_cond_wait(&connected, &gaia_lock);
			goto again;
		}
	}
	return NULL;
}

int conn_get(int fd, dev_t dev, struct conn **out, bool *fresh)
{
	struct conn *c;
	int err = 0;

	if (atfork_error)
		return atfork_error;
	pthread_mutex_lock(&gaia_lock);
	c = find_conn(dev);
	*fresh = !c;
	if (c) {
		c->refs++;
		goto unlock;
	}
	err = new_conn(dev, &c);
	if (err)
		goto unlock;
	pthread_mutex_unlock(&gaia_lock);
	err = connect_conn(c, fd);
	pthread_mutex_lock(&gaia_lock);
	if (err)
		LIST_REMOVE(c, link);
	else if (c->state == CONN_CONNECTING)
		c->state = CONN_LIVE;
	pthread_cond_broadcast(&connected);
	if (err)
		free_conn(c);
unlock:
	pthread_mutex_unlock(&gaia_lock);
	if (!err)
		*out = c;
	return err;
}

void conn_put(struct conn *c)
{
	pthread_mutex_lock(&gaia_lock);
	if (--c->refs) {
		pthread_mutex_unlock(&gaia_lock);
		return;
	}
	if (!c->forked) {
		LIST_REMOVE(c, link);
		conn_kill(c, -ENOTCONN);
	}
	pthread_mutex_unlock(&gaia_lock);
	if (!c->forked)
		pthread_join(c->thread, NULL);
	free_conn(c);
}

void conn_hold(struct conn *c)
{
	pthread_mutex_lock(&gaia_lock);
	c->refs++;
	pthread_mutex_unlock(&gaia_lock);
}

int conn_wait(struct conn *c, uint64_t seq, uint32_t unanswered)
{
	bool refused;
	int err;

	if (c->seq >= seq && !unanswered)
		return 0;
	pthread_mutex_lock(&gaia_lock);
	while (c->seq < seq && c->state == CONN_LIVE)
		pthread_cond_wait(&c->changed, &gaia_lock);
	refused = unanswered && c->refused > seq - unanswered;
	if (refused)
		conn_kill(c, -ENOTCONN);
	err = c->seq < seq || refused ? c->error : 0;
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

bool conn_is_dead(struct conn *c)
{
	bool dead;

	pthread_mutex_lock(&gaia_lock);
	dead = c->state == CONN_DEAD || has_hung_up(c);
	pthread_mutex_unlock(&gaia_lock);
	return dead;
}

int conn_error(struct conn *c, int err)
{
	return err && conn_is_dead(c) && err != -EMFILE && err != -ENOMEM ? -ENOTCONN : err;
}
