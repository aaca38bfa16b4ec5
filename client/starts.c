/*
 * starts.c - acquires that the caller does not wait for: gaia_acquire_start(), gaia_wait().
 *
 * The program gets one end of a pair of sockets, the library keeps the other. When the acquire has ended the library
 * shuts its end down for writing, so that the program's becomes readable, and stays so. When the program has closed its end, which a
 * thread notices by epoll(7), the acquire is cancelled: one that waits for a thread is forgotten, one that is under way or has been
 * made is given back.
 *
 *	QUEUED -> RUNNING -> ENDED -> taken by gaia_wait()
 *	   |         |         |
 *	   |         |         +-- closed: QUEUED again, to be given back
 *	   |         +------------ closed: given back by the thread that runs it
 *	   +---------------------- closed: freed
 *
 * Threads that acquire, and give back, are made when they are needed, and end when they have had nothing to do for a while; so does the one that
 * notices. Of each connection a few acquires are under way at a time, so that a program cannot have more of the daemon's threads
 * than by as many threads of its own. They do not wait behind those of another connection, nor does what is given back behind acquires.
 *
 * A child of fork() has none of them. Its copies of the program's ends, which would keep the parent's close(2) from being noticed, become another
 * socket, which is readable.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "sides.h"

/* Threads without work, and the one that notices what is closed, end after so long. */
#define LINGER_MS 1000

enum start_state { START_QUEUED, START_RUNNING, START_ENDED };

struct start {
	/* Constant. */
	uint64_t id;			/* the kernel's number of the program's socket */
	struct gaia_ioc_range io;	/* what to acquire; of a list: from its first byte to its last */
	struct gaia_list_range *list;	/* NULL: there is one range */
	size_t n;			/* ranges of the list */
	bool holding;			/* the thread that began it held something */
	/* gaia_lock. */
	struct mapping *m;		/* holds a reference; NULL: ended, and nothing is held any more */
	int theirs;			/* the program's end, as long as that is open by this number */
	int ours;			/* -1: the program's is closed */
	enum start_state state;
	enum start_work work;		/* what it is QUEUED for, or RUNNING */
	bool waits_for_room;		/* it could not be given back for want of room, and is tried again */
	int err;			/* ENDED: the acquire's result */
	TAILQ_ENTRY(start) queued;
	LIST_ENTRY(start) link;
};

/* How many are under way at a time, for each connection. */
static const unsigned at_once[START_WORKS] = { [START_ACQUIRE] = 8, [START_GIVE_BACK] = 2 };

/* gaia_lock, all of it. */
static LIST_HEAD(, start) starts = LIST_HEAD_INITIALIZER(starts);
static void *by_id;		/* a tree of tsearch(3): the same */
static TAILQ_HEAD(, start) queue = TAILQ_HEAD_INITIALIZER(queue);
static struct {
	pthread_cond_t work;	/* claimed has become more */
	unsigned idle;		/* threads that wait for it */
	unsigned claimed;	/* of these, how many are wanted; no more than there are */
} pool = { .work = PTHREAD_COND_INITIALIZER };
static pthread_cond_t settled = PTHREAD_COND_INITIALIZER; /* one is not RUNNING any more */
static int watched = -1;	/* epoll: our ends. -1: no thread watches them */
/* Of each ancestor that had some when it forked: of the socket that stands for its acquires. */
static uint64_t *forked_ids;
static size_t n_forked;

static int compare_id(const void *a, const void *b)
{
	const struct start *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

static struct start *find_start(uint64_t id)
{
	struct start key = { .id = id };
	struct start **found = tfind(&key, &by_id, compare_id);

	return found ? *found : NULL;
}

/* Whether it is a descriptor of an ancestor's acquire. */
static bool is_forked(uint64_t id)
{
	for (size_t i = 0; i < n_forked; i++)
		if (forked_ids[i] == id)
			return true;
	return false;
}

static int add_start(struct start *st)
{
	if (!tsearch(st, &by_id, compare_id))
		return -ENOMEM;
	LIST_INSERT_HEAD(&starts, st, link);
	return 0;
}

static void remove_start(struct start *st)
{
	tdelete(st, &by_id, compare_id);
	LIST_REMOVE(st, link);
}

/* Without the lock; nobody finds it any more. */
static void free_start(struct start *st)
{
	if (st->m)
		mapping_put(st->m);
	free(st->list);
	free(st);
}

/* The lock is held. Also where a child that knows nothing of us has a copy of it, nothing is told of it any more. */
static void close_ours(struct start *st)
{
	epoll_ctl(watched, EPOLL_CTL_DEL, st->ours, NULL);
	close(st->ours);
	st->ours = -1;
}

/* It has ended, and the program is told. If nothing is held, which is returned, its reference to the mapping is the caller's. The lock is held. */
static bool end_start(struct start *st, int err)
{
	bool drops = false;

	st->state = START_ENDED;
	st->err = st->m && st->m->gone ? -ECANCELED : err;
	if (st->m && st->err) {
		st->m = NULL;
		drops = true;
	}
	shutdown(st->ours, SHUT_WR);
	return drops;
}

/* ---- the work ---- */

bool start_was_holding(const struct start *st)
{
	return st->holding;
}

bool start_is_cancelled(const struct start *st)
{
	return st->ours < 0 || st->m->gone;
}

static bool is_cancelled(const struct start *st)
{
	bool cancelled;

	pthread_mutex_lock(&gaia_lock);
	cancelled = start_is_cancelled(st);
	pthread_mutex_unlock(&gaia_lock);
	return cancelled;
}

static int acquire_range(const struct start *st, struct mapping *m)
{
	struct gaia_ioc_range io = st->io;
	int err = range_acquire(m, &io);

	return err || !io.seq ? err : conn_wait(m->conn, io.seq, io.unanswered);
}

/* The ranges that it is for: *@n of them. @one: room for one. */
static const struct gaia_list_range *ranges_of(const struct start *st, struct gaia_list_range *one, size_t *n)
{
	*one = range_of(&st->io);
	*n = st->list ? st->n : 1;
	return st->list ? st->list : one;
}

static int acquire_inside(const struct start *st, struct mapping *m)
{
	struct gaia_list_range one;
	size_t n;
	const struct gaia_list_range *range = ranges_of(st, &one, &n);
	int err;

	/*
	 * From now on the daemon finds out itself, for all of the mapping. The history checker has shown that holds which are given back at some time,
	 * beside others, make the library say of stores that they are none; why is not known.
	 */
	detect_lost(m);
	if (m->sides)
		return sides_acquire(m, range, n, (int)st->io.prot);
	detect_acquire(m, range, n, (int)st->io.prot, 0);
	err = st->list ? list_acquire(m, range, n, (int)st->io.prot) : acquire_range(st, m);
	detect_settled(m, range, n, !err);
	return err;
}

static int acquire_once(const struct start *st, struct mapping *m)
{
	int err;

	do {
		err = mapping_enter_start(m, st);
		if (err)
			return err;
		err = acquire_inside(st, m);
	} while (mapping_leave(m, USE_START, err));
	return err;
}

static int acquire(const struct start *st, struct mapping *m)
{
	int err;

	/* No signal interrupts this thread, but being stopped, or looked at by a debugger, does. */
	do
		err = is_cancelled(st) ? -ECANCELED : acquire_once(st, m);
	while (err == -EINTR);
	return conn_error(m->conn, err);
}

/* Nobody is told of an error. But where nothing has changed for want of room the pages must not stay held: false, it is to be tried again. */
static bool give_back(const struct start *st, struct mapping *m)
{
	struct gaia_list_range one;
	size_t n;
	const struct gaia_list_range *range = ranges_of(st, &one, &n);
	int err = mapping_enter(m, USE_OTHER);

	if (err)
		return true;
	err = m->sides ? sides_give_back(m, range, n) : st->list ? list_give_back(m, range, n) : range_give_back(m, &st->io);
	/* Something is held, so the connection has not moved. */
	(void)mapping_leave(m, USE_OTHER, err);
	if (conn_error(m->conn, err) != -ENOBUFS)
		return true;
	nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	return false;
}

/* The first that may be run now. The lock is held. */
static struct start *next_start(void)
{
	struct start *st;

	TAILQ_FOREACH(st, &queue, queued)
		if (st->m->conn->starts[st->work].running < at_once[st->work] &&
		    (st->work != START_ACQUIRE || gate_lets(st->m->conn, st->holding)))
			break;
	return st;
}

static int enqueue(struct start *st, enum start_work work);

/* Called with the lock held, which is dropped meanwhile. */
static void run(struct start *st)
{
	struct mapping *m = st->m;
	struct conn_starts *cs = &m->conn->starts[st->work];
	bool acquires = st->work == START_ACQUIRE, drops = false, again = false, cancelled;
	int err = 0;

	TAILQ_REMOVE(&queue, st, queued);
	st->state = START_RUNNING;
	cs->running++;
	if (acquires) {
		pthread_mutex_unlock(&gaia_lock);
		err = acquire(st, m);
		pthread_mutex_lock(&gaia_lock);
	}
	cancelled = st->ours < 0;
	/* With the mapping all its holds go. */
	if (cancelled && !err && !m->gone) {
		pthread_mutex_unlock(&gaia_lock);
		again = !give_back(st, m);
		pthread_mutex_lock(&gaia_lock);
	}
	cs->running--;
	cs->all--;
	pthread_cond_broadcast(&settled);
	if (again) {
		st->waits_for_room = true;
		/* After the others: what they give back may make the room. */
		(void)enqueue(st, START_GIVE_BACK);
		return;
	}
	if (cancelled)
		remove_start(st);
	else
		drops = end_start(st, err);
	pthread_mutex_unlock(&gaia_lock);
	/* If it is not cancelled it may be gone by now. */
	if (cancelled)
		free_start(st);
	if (drops)
		mapping_put(m);
	pthread_mutex_lock(&gaia_lock);
}

/* ---- the threads ---- */

/* Wait until this thread is wanted: false if it was not for some time. The lock is held. */
static bool wait_for_work(void)
{
	struct timespec until;
	int err = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += LINGER_MS / 1000;
	pool.idle++;
	while (!pool.claimed && !err)
		err = pthread_cond_timedwait(&pool.work, &gaia_lock, &until);
	pool.idle--;
	if (!pool.claimed)
		return false;
	pool.claimed--;
	return true;
}

static void *work_thread(void *arg)
{
	struct start *st;

	pthread_mutex_lock(&gaia_lock);
	do
		while ((st = next_start()))
			run(st);
	while (wait_for_work());
	pthread_mutex_unlock(&gaia_lock);
	return NULL;
}

static int start_detached(void *(*fn)(void *arg), void *arg, const char *name)
{
	pthread_t thread;
	int err = start_thread(&thread, fn, arg, name);

	if (!err)
		pthread_detach(thread);
	return err;
}

/* Have one more thread look for work. The lock is held. */
static int want_thread(void)
{
	if (pool.claimed == pool.idle)
		return start_detached(work_thread, NULL, "gaia-starts");
	pool.claimed++;
	pthread_cond_signal(&pool.work);
	return 0;
}

/*
 * Queue it. There are as many threads, at work or on their way to it, as may be at work; or this fails, and it is queued all the same. The
 * lock is held.
 */
static int enqueue(struct start *st, enum start_work work)
{
	struct conn_starts *cs = &st->m->conn->starts[work];

	st->state = START_QUEUED;
	st->work = work;
	TAILQ_INSERT_TAIL(&queue, st, queued);
	return ++cs->all > at_once[work] ? 0 : want_thread();
}

static void dequeue(struct start *st)
{
	TAILQ_REMOVE(&queue, st, queued);
	st->m->conn->starts[st->work].all--;
}

/* ---- what the program closes ---- */

/* It is cancelled while it is under way: it need not wait for the connection to move. The lock is held. */
static void leave_gate(const struct start *st)
{
	pthread_cond_broadcast(&st->m->conn->changed);
}

/* The program has closed its end. If it is to be freed, without the lock, it is returned. The lock is held. */
static struct start *closed(uint64_t id)
{
	struct start *st = find_start(id);

	/* It may just have been taken. */
	if (!st || st->ours < 0)
		return NULL;
	close_ours(st);
	st->theirs = -1;
	if (st->state == START_RUNNING) {
		leave_gate(st);
		return NULL;
	}
	if (st->state == START_ENDED && st->m) {
		/* If there is no thread for it now, watch() tries again. */
		(void)enqueue(st, START_GIVE_BACK);
		return NULL;
	}
	if (st->state == START_QUEUED)
		dequeue(st);
	remove_start(st);
	return st;
}

static void *watch(void *arg)
{
	int from = (int)(intptr_t)arg, n;
	struct epoll_event event;
	struct start *gone;
	bool more = true, lost;

	while (more) {
		n = epoll_wait(from, &event, 1, LINGER_MS);
		/* The program has closed the descriptor, which was not its own: the number may be another's by now. */
		lost = n < 0 && errno != EINTR;
		pthread_mutex_lock(&gaia_lock);
		gone = n > 0 ? closed(event.data.u64) : NULL;
		if (n <= 0 && next_start() && pool.claimed == pool.idle)
			(void)want_thread();
		more = !lost && (n != 0 || !LIST_EMPTY(&starts));
		if (!more && !lost)
			close(watched);
		if (!more)
			watched = -1;
		pthread_mutex_unlock(&gaia_lock);
		if (gone)
			free_start(gone);
	}
	return NULL;
}

/* The lock is held. */
static int start_watching(void)
{
	int err;

	watched = epoll_create1(EPOLL_CLOEXEC);
	if (watched < 0)
		return -errno;
	err = start_detached(watch, (void *)(intptr_t)watched, "gaia-watch");
	if (err) {
		close(watched);
		watched = -1;
	}
	return err;
}

void starts_go_on(void)
{
	struct start *st;
	unsigned n = 0;

	/* If there cannot be one the thread that watches looks again soon. */
	TAILQ_FOREACH(st, &queue, queued)
		if (n++ == at_once[START_ACQUIRE] || want_thread())
			break;
}

/* ---- beginning and end ---- */

/* The lock is held, so that a child finds both ends. */
static int open_ends(struct start *st)
{
	struct epoll_event event = { .events = 0 }; /* EPOLLHUP need not be asked for */
	socklen_t len = sizeof(st->id);
	int end[2], err = watched < 0 ? start_watching() : 0;

	if (err)
		return err;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, end))
		return -errno;
	st->theirs = end[0];
	st->ours = end[1];
	if (!getsockopt(st->theirs, SOL_SOCKET, SO_COOKIE, &st->id, &len)) {
		event.data.u64 = st->id;
		if (!epoll_ctl(watched, EPOLL_CTL_ADD, st->ours, &event))
			return 0;
	}
	/* The user watches as many descriptors as the kernel allows. */
	err = errno == ENOSPC ? -ENOMEM : -errno;
	close(st->theirs);
	close(st->ours);
	return err;
}

/* The lock is held. */
static int begin(struct start *st)
{
	int err = open_ends(st);

	if (err)
		return err;
	err = add_start(st);
	if (err)
		goto close_ends;
	if (!st->m) {
		end_start(st, 0);
		return 0;
	}
	err = enqueue(st, START_ACQUIRE);
	if (!err)
		return 0;
	dequeue(st);
	remove_start(st);
close_ends:
	close(st->theirs);
	close(st->ours);
	return err;
}

int start_begin(struct mapping *m, const struct gaia_ioc_range *io, struct gaia_list_range *list, size_t n)
{
	struct start *st = calloc(1, sizeof(*st));
	int fd, err;

	if (!st)
		return -ENOMEM;
	*st = (struct start){ .m = m, .io = *io, .list = list, .n = n };
	pthread_mutex_lock(&gaia_lock);
	st->holding = gate_holding();
	err = begin(st);
	fd = st->theirs;
	pthread_mutex_unlock(&gaia_lock);
	if (err)
		free(st);
	return err ? err : fd;
}

/* The acquire of this descriptor, which is closed, if it has ended; else -EAGAIN. Other errors: of gaia_wait(). */
static int take(int fd, struct start **out)
{
	socklen_t len = sizeof(uint64_t);
	struct start *st;
	uint64_t id;
	int err = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &id, &len))
		return errno == EBADF ? -EBADF : -EINVAL;
	pthread_mutex_lock(&gaia_lock);
	st = find_start(id);
	if (!st)
		err = is_forked(id) ? -ENOTCONN : -EINVAL;
	else if (st->ours < 0)
		err = -EINVAL; /* the program has shut it down, and so cancelled it */
	else if (st->state != START_ENDED)
		err = -EAGAIN;
	if (!err) {
		remove_start(st);
		close_ours(st);
		*out = st;
	}
	if (!err || err == -ENOTCONN)
		close(fd);
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

int start_wait(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	const struct gaia_list_range *range;
	struct gaia_list_range one;
	struct start *st;
	size_t n;
	int err;

	while ((err = take(fd, &st)) == -EAGAIN)
		if (poll(&p, 1, -1) < 0 && errno == EINTR)
			return -EINTR;
	if (err)
		return err;
	err = st->err;
	if (st->io.length)
		error_about_range(st->io.offset, st->io.length);
	if (!err && st->list)
		held_add_list(st->m, st->list, st->n, (int)st->io.prot);
	else if (!err && st->m)
		held_add(st->m, &st->io);
	range = ranges_of(st, &one, &n);
	if (!err && st->m)
		gate_holds(1);
	if (!err && st->m)
		detect_acquired(st->m, range, n, (int)st->io.prot);
	free_start(st);
	return err;
}

/* ---- others' ends ---- */

/* Whether the program has closed its end, though watch() may not have noticed yet. */
static bool is_closed(const struct start *st)
{
	struct pollfd p = { .fd = st->ours };

	return st->ours < 0 || (poll(&p, 1, 0) == 1 && (p.revents & POLLHUP));
}

/* Whether one of the ranges may have pages in common with what it acquires. */
static bool overlaps(const struct start *st, const struct gaia_list_range *range, size_t n)
{
	uint64_t a = st->io.offset / GAIA_PAGE, b = (st->io.offset + st->io.length - 1) / GAIA_PAGE;

	for (size_t k = 0; k < n; k++)
		if (range[k].offset / GAIA_PAGE <= b && (range[k].offset + range[k].length - 1) / GAIA_PAGE >= a)
			return true;
	return false;
}

/* One of the mapping's that is cancelled, and has not been given back though there may be room; NULL: none has. The lock is held. */
static struct start *next_unsettled(const struct mapping *m, const struct gaia_list_range *range, size_t n)
{
	struct start *st;

	LIST_FOREACH(st, &starts, link)
		if (st->m == m && !st->waits_for_room && overlaps(st, range, n) && is_closed(st))
			return st;
	return NULL;
}

void starts_settle(const struct mapping *m, const struct gaia_list_range *range, size_t n)
{
	struct start *st, *gone;

	pthread_mutex_lock(&gaia_lock);
	while ((st = next_unsettled(m, range, n))) {
		if (st->ours < 0) {
			/* There may be no thread for it. */
			if (st->state == START_QUEUED)
				run(st);
			else
				pthread_cond_wait(&settled, &gaia_lock);
			continue;
		}
		gone = closed(st->id);
		if (!gone)
			continue;
		pthread_mutex_unlock(&gaia_lock);
		free_start(gone);
		pthread_mutex_lock(&gaia_lock);
	}
	pthread_mutex_unlock(&gaia_lock);
}

void starts_each(void (*fn)(const struct mapping *m, const struct gaia_ioc_range *io))
{
	const struct start *st;

	LIST_FOREACH(st, &starts, link)
		if (st->m && !st->m->gone && !is_closed(st))
			fn(st->m, &st->io);
}

unsigned starts_unmapped(struct mapping *m, struct gaia_ioc_range *unwaited, unsigned most)
{
	struct start *st;
	unsigned n = 0;

	pthread_mutex_lock(&gaia_lock);
	LIST_FOREACH(st, &starts, link) {
		/* What is to be given back keeps its reference until a thread has noticed that there is nothing to give. */
		if (st->m != m || st->ours < 0)
			continue;
		if (n < most && !is_closed(st))
			unwaited[n++] = st->io;
		/* So does what is under way. */
		if (st->state == START_RUNNING) {
			leave_gate(st);
			continue;
		}
		if (st->state == START_QUEUED)
			dequeue(st);
		/* Not the last: the caller has one, too. */
		m->refs -= end_start(st, -ECANCELED);
	}
	pthread_mutex_unlock(&gaia_lock);
	return n;
}

/* A socket that is readable for ever; -1: there is none. */
static int dead_end(void)
{
	socklen_t len = sizeof(*forked_ids);
	uint64_t *ids;
	int end[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, end))
		return -1;
	close(end[1]);
	ids = realloc(forked_ids, (n_forked + 1) * sizeof(*ids));
	if (ids) {
		forked_ids = ids;
		n_forked += !getsockopt(end[0], SOL_SOCKET, SO_COOKIE, &ids[n_forked], &len);
	}
	return end[0];
}

/* Whether the descriptor is still what the program was given. */
static bool is_theirs(const struct start *st)
{
	socklen_t len = sizeof(uint64_t);
	uint64_t id;

	return st->theirs >= 0 && !getsockopt(st->theirs, SOL_SOCKET, SO_COOKIE, &id, &len) && id == st->id;
}

void starts_forked(void)
{
	struct start *st;
	int dead = -1;

	LIST_FOREACH(st, &starts, link)
		if (st->ours >= 0)
			close(st->ours);
	if (watched >= 0)
		close(watched);
	watched = -1;
	/* Now there are descriptors for it. */
	if (!LIST_EMPTY(&starts))
		dead = dead_end();
	while ((st = LIST_FIRST(&starts))) {
		if (is_theirs(st) && (dead < 0 || dup3(dead, st->theirs, O_CLOEXEC) < 0))
			close(st->theirs);
		/* The tables have another one, or nobody needs it. */
		if (st->m)
			st->m->refs--;
		remove_start(st);
		free(st->list);
		free(st);
	}
	if (dead >= 0)
		close(dead);
	TAILQ_INIT(&queue);
	settled = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	pool.work = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	pool.idle = pool.claimed = 0;
}
