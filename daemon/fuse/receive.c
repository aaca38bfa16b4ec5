/*
 * receive.c - which thread takes the next request from the kernel.
 *
 * Usually two wait in read(2), and the kernel wakes one for a request. (Not more than two: the kernel wakes the one that has
 * waited longest, whose core's caches are cold.) Waking a thread costs more than most requests do, above all where idle cores
 * halt (virtual machines). So while requests follow each other closely, one thread is in *front*: it polls for them and carries
 * them out; threads that finish meanwhile are parked. One thread may still be in read(2), and each request wakes it for nothing.
 * It is left there: it runs on the core of the program that asked, and so keeps that core awake until the answer comes.
 *
 * The front is given up, and others receive, when
 *  - no request has come for POLL_NS: back to waiting;
 *  - another program wants the core on which it polls;
 *  - requests pile up: one thread is too few;
 *  - the request in hand takes long by its size, or is about to wait (thread_waits());
 *  - it has not moved for GUARD_NS, whatever the reason: the guard, a thread of its own, takes it away.
 * After each of these but the first no thread gets in front for some time (REST_NS).
 *
 * So some thread receives at any time, unless all threads are busy: a thread is parked only while another is in front, or enough
 * others are in read(2); and a thread that leaves nobody to receive wakes a parked one.
 *
 * If requests come while all threads wait, for storage that is slow or does not answer at all, the guard calls the spare: one
 * more thread, which itself waits for nothing. It hands requests that may wait to workers (hand.c).
 */
#include "fuse/internal.h"

#include <errno.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

/*
 * How long a thread polls: long enough for a program that asks again at once but whose core has to be woken first,
 * which takes up to some tens of microseconds.
 */
#define POLL_NS 100000u
/*
 * Requests that are no further apart than this follow each other closely. Twice POLL_NS, because the thread that
 * judges it was in read(2), and had to be woken. (So polling is sometimes in vain for a program whose requests are
 * between one and two POLL_NS apart.)
 */
#define CLOSE_NS 200000u
/* A thread may get in front after this many requests in a row that followed each other closely. */
#define ENOUGH 4u
/* If more time passes between two polls, something else ran on this core. */
#define DISTURBED_NS 10000u
/* This many requests in a row that were there before the thread polled may mean that requests pile up. */
#define PILE 8u
#define LONG_BYTES (128u << 10)
/* Threads in read(2): the second receives what comes while the first is at work. */
#define WAITING 2u
#define REST_NS 1000000u
#define GUARD_NS 1000000u
/*
 * After this many looks in a row that find all threads at work and requests waiting, while fewer requests were taken than
 * there are threads, the guard concludes that the threads wait. (No request computes for that long.)
 */
#define STALLED 4u
/* The spare goes on for at least this long, so that it need not be called again if the threads soon wait again. */
#define SPARE_NS 100000000u

__thread struct request_times request_times;

/* This thread's ticket while it is in front, else 0. */
static __thread unsigned in_front;
static __thread unsigned n_at_once; /* requests in a row that did not have to be waited for */

/* This thread's seat; NULL until it is parked for the first time. */
static __thread struct seat *my_seat;

/* r->lock held. */
static void seat_leave(struct receiving *r, struct seat *seat)
{
	LIST_REMOVE(seat, link);
	atomic_fetch_sub(&r->parked, 1);
}

static void call_guard(struct receiving *r)
{
	if (!atomic_load(&r->guarding) && !atomic_exchange(&r->guarding, true))
		sem_post(&r->guard_wake);
}

/*
 * Have one more thread receive. The thread that was parked last is woken first: its caches are warm. It is woken
 * without the lock held, so that other threads need not wait for the lock meanwhile.
 */
static void wake_one(struct receiving *r)
{
	struct seat *seat;

	if (!atomic_load(&r->parked)) {
		call_guard(r);
		return;
	}
	pthread_mutex_lock(&r->lock);
	seat = LIST_FIRST(&r->seats);
	if (seat)
		seat_leave(r, seat);
	pthread_mutex_unlock(&r->lock);
	if (seat)
		sem_post(&seat->woken);
}

/* @ticket's thread is not in front any more; false: it was not in front before. */
static bool take_away(struct receiving *r, unsigned ticket)
{
	return atomic_compare_exchange_strong(&r->front, &ticket, 0);
}

static void pause_polling(struct receiving *r)
{
	atomic_store_explicit(&r->rests_from, quick_ticks(), memory_order_relaxed);
}

static void give_up(struct receiving *r)
{
	atomic_store_explicit(&r->n_close, 0, memory_order_relaxed);
	take_away(r, in_front);
	in_front = 0;
	thread_relied_on(NULL, NULL);
}

/* Give up the front while a request is in hand: then another thread has to receive. */
static void yield_front(void *arg)
{
	struct receiving *r = arg;

	pause_polling(r);
	give_up(r);
	if (!atomic_load(&r->reading))
		wake_one(r);
}

static bool get_in_front(struct receiving *r)
{
	unsigned nobody = 0, ticket;

	if (atomic_load_explicit(&r->n_close, memory_order_relaxed) < ENOUGH || !r->may_poll ||
	    is_within_ns(atomic_load_explicit(&r->rests_from, memory_order_relaxed), quick_ticks(), REST_NS))
		return false;
	ticket = atomic_fetch_add(&r->tickets, 1) | 1u << 31;
	if (!atomic_compare_exchange_strong(&r->front, &nobody, ticket))
		return false;
	in_front = ticket;
	thread_relied_on(yield_front, r);
	n_at_once = 0;
	call_guard(r);
	return true;
}

/* Poll in front until there is a request (or the session ends), or it is better to stop. */
static void poll_in_front(struct fs *fs, int fd)
{
	struct receiving *r = &fs->receiving;
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	int64_t start = request_times.ended, last = start, now;

	while (!poll(&pfd, 1, 0)) {
		n_at_once = 0;
		now = quick_ticks();
		if (!is_within_ns(start, now, POLL_NS) || fs->stopping || fs->pausing) {
			give_up(r);
			return;
		}
		if (elapsed_ns(last, now) > DISTURBED_NS) {
			pause_polling(r);
			give_up(r);
			return;
		}
		last = now;
		sched_yield();
	}
	n_at_once++;
}

/* Whether enough others receive. */
static bool not_needed(struct receiving *r)
{
	return atomic_load(&r->front) || atomic_load(&r->reading) >= WAITING;
}

/* Put the seat among those that wait. False: it is not there, because the thread is needed after all or must end. */
static bool park_thread(struct fs *fs, struct seat *seat)
{
	struct receiving *r = &fs->receiving;
	bool wait;

	pthread_mutex_lock(&r->lock);
	wait = !fs->stopping && !fs->pausing;
	if (wait) {
		LIST_INSERT_HEAD(&r->seats, seat, link);
		/*
		 * Either this thread sees now that it is needed, or the thread that leaves nobody to receive
		 * sees it parked.
		 */
		atomic_fetch_add(&r->parked, 1);
		wait = not_needed(r);
		if (!wait)
			seat_leave(r, seat);
	}
	pthread_mutex_unlock(&r->lock);
	return wait;
}

static void park(struct fs *fs)
{
	struct receiving *r = &fs->receiving;

	if (!not_needed(r))
		return;
	if (!my_seat)
		my_seat = &r->seat[atomic_fetch_add(&r->n_taken, 1)];
	while (not_needed(r) && park_thread(fs, my_seat))
		while (sem_wait(&my_seat->woken))
			; /* EINTR: see serve_stop() */
}

static bool has_request(int fd)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };

	return poll(&pfd, 1, 0);
}

/*
 * For the thread in front, with a request in hand. Requests that were there before it polled need not be a pile: the
 * program that asks may share its core, which is best. So a further request must be waiting now.
 */
static bool is_pile(int fd)
{
	if (n_at_once < PILE)
		return false;
	n_at_once = 0;
	return has_request(fd);
}

static bool is_long(const struct fuse_in_header *in)
{
	switch (in->opcode) {
	case FUSE_READ:
		return ((const struct fuse_read_in *)(in + 1))->size > LONG_BYTES;
	case FUSE_WRITE:
		return in->len > LONG_BYTES;
	default:
		return false;
	}
}

/* Note whether requests follow each other closely, as far as a thread outside the front can tell. */
static void see_distance(struct receiving *r)
{
	int64_t ended = atomic_load_explicit(&r->ended, memory_order_relaxed);
	unsigned n = atomic_load_explicit(&r->n_close, memory_order_relaxed);

	if (elapsed_ns(ended, request_times.came) > CLOSE_NS)
		n = 0;
	else if (n < ENOUGH)
		n++;
	atomic_store_explicit(&r->n_close, n, memory_order_relaxed);
}

ssize_t receive(struct fs *fs, int fd, void *buf, size_t size)
{
	struct receiving *r = &fs->receiving;
	ssize_t n;

	if (in_front && atomic_load(&r->front) != in_front)
		give_up(r); /* the guard has taken the front away */
	if (!in_front)
		atomic_store_explicit(&r->ended, request_times.ended, memory_order_relaxed);
	atomic_fetch_add_explicit(&r->steps, in_front != 0, memory_order_relaxed);
	if (in_front || get_in_front(r))
		poll_in_front(fs, fd);
	if (!in_front)
		park(fs);
	if (fs->pausing) {
		errno = EINTR;
		return -1;
	}

	atomic_fetch_add(&r->reading, 1);
	n = read(fd, buf, size);
	request_came(quick_ticks());
	atomic_fetch_sub(&r->reading, 1);
	atomic_fetch_add_explicit(&r->taken, 1, memory_order_relaxed);

	if (!in_front) {
		see_distance(r);
		if (!atomic_load(&r->reading) && !atomic_load(&r->front))
			wake_one(r);
	} else if (n <= 0 || is_long(buf) || is_pile(fd)) {
		yield_front(r);
	}
	return n;
}

static bool nobody_receives(struct receiving *r)
{
	return !atomic_load(&r->front) && !atomic_load(&r->reading) && !atomic_load(&r->parked);
}

/* Whether the guard has to look for a stall. */
static bool is_stall(struct receiving *r)
{
	return nobody_receives(r) && !atomic_load(&r->spare_on);
}

/* Looks in a row: see STALLED. */
struct stall {
	unsigned looks, taken;
};

/* One look of the guard, which calls the spare if the threads are stalled. Returns whether to go on looking. */
static bool look_for_stall(struct fs *fs, struct stall *stall)
{
	struct receiving *r = &fs->receiving;
	unsigned taken = atomic_load_explicit(&r->taken, memory_order_relaxed);

	if (!is_stall(r)) {
		stall->looks = 0;
		return false;
	}
	if (!has_request(fuse_session_fd(fs->session)))
		stall->looks = 0;
	else if (!stall->looks++)
		stall->taken = taken;
	else if (taken - stall->taken >= FS_THREADS)
		stall->looks = 0;
	if (stall->looks > STALLED) {
		stall->looks = 0;
		atomic_store(&r->spare_on, true);
		sem_post(&r->spare_wake);
		return false;
	}
	return true;
}

void receive_spare_wait(struct fs *fs)
{
	while (sem_wait(&fs->receiving.spare_wake) && !fs->stopping)
		; /* EINTR: see serve_stop() */
	fs->receiving.spare_from = quick_ticks();
}

bool receive_spare_needed(struct fs *fs)
{
	struct receiving *r = &fs->receiving;

	if (fs->stopping || fs->pausing)
		return false;
	if (nobody_receives(r) || is_within_ns(r->spare_from, quick_ticks(), SPARE_NS))
		return true;
	atomic_store(&r->spare_on, false);
	/* A thread that left nobody to receive meanwhile has called the guard, which did nothing because the spare was on. */
	if (nobody_receives(r))
		call_guard(r);
	return false;
}

static void *guard(void *arg)
{
	const struct timespec pause = { .tv_nsec = GUARD_NS };
	struct fs *fs = arg;
	struct receiving *r = &fs->receiving;
	struct stall stall = { 0 };

	thread_set_name("gaia-guard");
	while (!fs->stopping) {
		unsigned ticket = atomic_load(&r->front), steps = atomic_load(&r->steps);

		if (!ticket && !look_for_stall(fs, &stall)) {
			atomic_store(&r->guarding, false);
			if ((atomic_load(&r->front) || is_stall(r)) && !atomic_exchange(&r->guarding, true))
				continue;
			while (sem_wait(&r->guard_wake) && !fs->stopping)
				;
			continue;
		}
		nanosleep(&pause, NULL);
		if (!ticket || atomic_load(&r->steps) != steps || !take_away(r, ticket))
			continue;
		pause_polling(r);
		if (!atomic_load(&r->reading))
			wake_one(r);
	}
	return NULL;
}

int receive_start(struct fs *fs)
{
	struct receiving *r = &fs->receiving;
	cpu_set_t cpus;

	LIST_INIT(&r->seats);
	for (unsigned i = 0; i < FS_THREADS; i++)
		sem_init(&r->seat[i].woken, 0, 0);
	pthread_mutex_init(&r->lock, NULL);
	sem_init(&r->guard_wake, 0, 0);
	sem_init(&r->spare_wake, 0, 0);
	/* With a single core a polling thread would keep the program that it waits for from running. */
	r->may_poll = !sched_getaffinity(0, sizeof(cpus), &cpus) && CPU_COUNT(&cpus) > 1;
	r->guarded = !pthread_create(&r->guard, NULL, guard, fs);
	return r->guarded ? 0 : -EAGAIN;
}

void receive_thread_ends(struct fs *fs)
{
	if (in_front)
		yield_front(&fs->receiving);
	/* Each thread that ends wakes the next one, which ends for the same reason. */
	wake_one(&fs->receiving);
}

void receive_thread_pauses(struct fs *fs)
{
	if (in_front)
		yield_front(&fs->receiving);
}

void receive_wake_all(struct fs *fs)
{
	struct receiving *r = &fs->receiving;
	struct seat *seat;

	pthread_mutex_lock(&r->lock);
	while ((seat = LIST_FIRST(&r->seats))) {
		seat_leave(r, seat);
		sem_post(&seat->woken);
	}
	pthread_mutex_unlock(&r->lock);
}

void receive_stop(struct fs *fs)
{
	struct receiving *r = &fs->receiving;

	/* It was never started, or has been stopped. */
	if (!r->guarded)
		return;
	r->guarded = false;
	sem_post(&r->guard_wake);
	pthread_join(r->guard, NULL);
	pthread_mutex_destroy(&r->lock);
	sem_destroy(&r->guard_wake);
	sem_destroy(&r->spare_wake);
	for (unsigned i = 0; i < FS_THREADS; i++)
		sem_destroy(&r->seat[i].woken);
}
