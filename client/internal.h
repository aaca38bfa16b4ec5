/*
 * internal.h - what the library's files share.
 *
 * connection.c keeps one connection for each mount, with a thread that carries out the
 * daemon's messages: map this chunk, give that one up. mapping.c keeps the mappings, found by
 * address (for callers) and by number (for that thread). move.c makes them at the daemon, and again when another daemon has taken the mount over;
 * gate.c keeps calls from coming between. turns.c has a thread for queued acquires and
 * releases, whose callers do not wait; starts.c has threads for acquires that callers wait for later. lists.c hands lists of ranges over.
 * sides.c lets a mapping of the host read home's own memory, though it can write. held.c counts holds, where they are needed. detect.c finds out
 * what has changed, if that is wanted. errors.c makes texts of errors. sim.c, host.c, and a file for each
 * other kind of device, do what differs between devices. client.c, devices.c and query.c are the API.
 *
 * Rules
 *  1. One lock, gaia_lock, guards everything here. Nothing that waits is done under it: no ioctl, no
 *     writing back, no blocking send or receive, and no call of a device's driver, which may wait for
 *     all streams.
 *  2. turns_lock is a leaf, held for moments only: callbacks of a device's driver take it. Neither a
 *     driver nor the daemon is called under it.
 *  3. A stream that waits for a turn waits for the turns thread and the daemon, and for nothing else of
 *     ours. The turns thread waits for no other thread here: not for the connection's, which may be in
 *     a driver that waits for that stream. What a turn's range needs is mapped before it is queued.
 *  4. The connection's thread receives messages under gaia_lock and carries them out without it, one
 *     after the other. Meanwhile mapping.busy keeps the mapping, as mapping.looking does for threads that look at its
 *     memory: a thread that forgets the mapping waits for that, so that nothing is placed at addresses that are given back.
 *  5. A child of fork() inherits neither chunks nor their descriptors. fork() takes gaia_lock, and does
 *     not wait for the connection's thread: descriptors are known to the connection from the moment
 *     that they are received until they are closed, and the child closes them. A kind whose chunks
 *     a child could inherit maps them under gaia_lock (sim.c, host.c).
 *  6. In a child the parent's connections are dead. Its mappings stay in the tables so that calls on them
 *     fail properly, until a mapping of the child's own takes their addresses.
 *  7. A connection lives while mappings and calls refer to it; the last reference to go ends it.
 *  8. Nobody waits for a thread of starts.c, except gaia_wait(): they come and go, and each keeps what it works on by references. So one of them
 *     may drop the last reference to a connection.
 *  9. What uses a connection's key or socket, or a mapping's number, is inside its gate (conn_enter()). Who is inside waits for nobody who may be
 *     outside: not for threads of starts.c. It may wait for streams, and so for turns, only while it holds something, or has announced it: then the
 *     gate lets turns in, and does not close. The connection's thread, when it gives the old daemon's memory up, may be in a driver that waits for
 *     streams; gaiaclient(3) says what these must not wait for.
 * 10. The program's threads come in through the API's files, which keep them from being cancelled in here (call.h).
 */
#ifndef GAIA_CLIENT_INTERNAL_H
#define GAIA_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "gaia/protocol.h"
#include "wire.h"

struct CUstream_st;
struct detect;
struct detect_page;
struct detect_runs;
struct held_chunk;
struct mapping;
struct sides;
struct start;

/* What differs between kinds of devices. Functions return 0 or a negative errno. Chunk k of a mapping is at
 * base + k * GAIA_CHUNK. */
struct kind_ops {
	const char *kind; /* as in gaia_ioc_device.kind */
	bool extents;	  /* its memory may come in extents (GAIA_FEATURE_EXTENTS): m->span is whole ones */

	/*
	 * Open @device, and reserve m->span bytes of its addresses, aligned to GAIA_CHUNK: sets
	 * m->base, and m->own to the kind's own state. -ENODEV: the process cannot use the
	 * device.
	 */
	int (*reserve)(struct mapping *m, const struct gaia_ioc_device *device);
	/*
	 * Wait for the work that uses the mapping. *@ended: it has ended; false if that cannot be
	 * known and no more of it will be done. -EBUSY: not possible now; nothing has changed. NULL:
	 * there is no such work.
	 */
	int (*finish)(struct mapping *m, bool *ended);
	/* Undo reserve(), after finish() or before any use. The mapping cannot be found any more. */
	void (*unreserve)(struct mapping *m, bool ended);

	/*
	 * Map what is behind the @n descriptors at chunk @first and those after it, in place of chunks that were there: each is a chunk or, if its bit
	 * of @extents is set, an extent, which is mapped as a whole (extent_set()). No extent is placed there. The descriptors stay the caller's. On
	 * error nothing is mapped. In place() and clear() the mapping is busy.
	 */
	int (*place)(struct mapping *m, uint64_t first, unsigned n, const int *fd, uint64_t extents, int prot);
	/* Unmap those of @n chunks from @first on that are mapped; of extents all are named. Their addresses stay reserved. */
	int (*clear)(struct mapping *m, uint64_t first, unsigned n);
	/* Set how the program may touch pages [a, b) from m->base, whose chunks are placed (@prot: also PROT_NONE).
	 * gaia_lock is held. NULL: not possible. */
	int (*protect)(struct mapping *m, uint64_t a, uint64_t b, int prot);

	/*
	 * GAIA_DETECT=auto: detect() finds stores, not changes, and none that devices make by what was pinned before. What is told are hints: the daemon
	 * compares these pages, as it compares all if nothing is told.
	 */
	bool detects_stores;
	/*
	 * Make what detecting changes takes, once the mapping's memory is reserved: sets @d->changed, and keeps a place for a hash of each page of
	 * m->span, or what there is instead. It goes with unreserve(). NULL: not possible.
	 */
	int (*detect_make)(struct mapping *m, struct detect *d);
	/*
	 * Remember a hash of each page of the runs that say so (detect_run.compare); or (@compare) set m->detect->changed of each to whether its hash is
	 * another one now. Waits for it. The pages are where the program sees them.
	 */
	int (*detect)(struct mapping *m, const struct detect_runs *rs, bool compare);

	/*
	 * Queue an acquire or release, to be carried out in the order of a stream; after an error it is not
	 * queued. NULL: there are no streams, and the caller carries it out at once.
	 */
	int (*queue)(struct mapping *m, const struct gaia_ioc_range *io, bool release,
		     struct CUstream_st *stream);
};

extern const struct kind_ops sim_kind, host_kind;
#ifdef GAIA_CUDA
extern const struct kind_ops cuda_kind;
/* The UUID of the CUDA device that has this number in this process. -ENODEV: it sees none. */
int cuda_uuid(int ordinal, uint8_t uuid[16]);
#endif

/* Pages [page, page + n) from a mapping's base. */
struct detect_run {
	uint64_t page;
	uint32_t n;
	bool compare;	/* a hash tells whether they have changed; else they count as changed */
};
struct detect_runs {
	struct detect_run *at; /* ascending */
	size_t n, room;
};

/* What a release says of changes. */
struct detect_told {
	bool known;	/* else nothing */
	struct gaia_list_range *range;
	size_t n;
};

/* How changes are found, see detect.c. */
struct detect {
	/* Constant. */
	bool asked_for;	  /* by GAIA_DETECT: also where it does not pay */
	uint8_t *changed; /* of each page of the span, by the kind's detect(): the answer */
	atomic_bool lost; /* nothing is told any more */
	/* gaia_lock. */
	struct detect_page *page;
	bool placed[]; /* each chunk of the span: it is there */
};

/* An acquire or release that is queued. A thread of the library carries it out when its stream has reached it. */
struct turn {
	struct mapping *m; /* NULL: gone */
	struct gaia_ioc_range io;
	bool release;
	struct detect_runs runs; /* of a release: what its stream compares */
	/* Called when it has been carried out, and its error noted in the mapping. turns_lock is held. */
	void (*done)(struct turn *t);
	LIST_ENTRY(turn) queued; /* mapping.turns_queued, or abandoned; before it is ready */
	STAILQ_ENTRY(turn) link; /* turns.ready */
};

/* The turns of a connection that are ready, in the order in which they became ready. */
struct turns {
	/* turns_lock. */
	pthread_cond_t changed; /* something below or in a mapping has changed, or a turn is done */
	STAILQ_HEAD(, turn) ready;
	bool started, stop;
	pthread_t thread;
};

/* A file that mappings of a connection use: one descriptor for all mappings with the same access. */
struct map_file {
	/* Constant. */
	ino_t ino;
	int access;	/* O_RDONLY or O_RDWR */
	int fd;		/* a duplicate of the first caller's; -1 in a child of fork() */
	/* gaia_lock. */
	unsigned refs;
	LIST_ENTRY(map_file) link; /* conn.files */
};

/* Where a list lies in the memory for lists: bytes [a, b), whole pages. */
struct list_place {
	size_t a, b;
	TAILQ_ENTRY(list_place) link;
};

/* The memory for lists of ranges that a connection shares with the daemon: see lists.c. gaia_lock. */
struct lists {
	char *at;	/* NULL: it was not needed yet, or could not be mapped: */
	int error;	/* why; a negative errno */
	bool asking;	/* a thread asks for it */
	TAILQ_HEAD(, list_place) used; /* in order */
};

/* What starts.c has to do, and how much of it for a connection: waiting or under way, and under way. gaia_lock. */
enum start_work { START_ACQUIRE, START_GIVE_BACK, START_WORKS };
struct conn_starts {
	unsigned all, running;
};

enum conn_state { CONN_CONNECTING, CONN_LIVE, CONN_DEAD };

/* Whether the mount goes to another daemon, see gate.c: the daemon has said that it may, as long as the connection is not DEAD; it has gone,
 * and the connection is made again. */
enum conn_move { MOVE_NONE, MOVE_ASKED, MOVE_MADE };

/* Lives from conn_get() until the last conn_put(). */
struct conn {
	/* Constant after creation. */
	dev_t dev;		/* st_dev of the mount's files */

	/* Constant once LIVE for those inside (gate.c). Written by the connection's thread. */
	int sock;		/* -1 in a child of fork(); written with gaia_lock held */
	struct gaia_client_key key;
	_Atomic uint64_t features; /* in use, GAIA_FEATURE_*; by others only a hint */
	/* Constant once LIVE. */
	pthread_t thread;

	struct turns turns;
	struct lists lists;

	/* Written with gaia_lock held. */
	_Atomic uint64_t seq;	/* of the last message that was carried out */
	/* gaia_lock. */
	enum conn_state state;
	int error;		/* DEAD: why, a negative errno */
	bool forked;		/* belongs to an ancestor of this process */
	unsigned refs;
	int fd[GAIA_MSG_CHUNKS]; /* of the message that is being carried out */
	unsigned n_fds;
	uint64_t refused;	/* the last GRANT that could not be carried out, and was refused */
	LIST_HEAD(, map_file) files;
	struct conn_starts starts[START_WORKS];
	enum conn_move move;
	unsigned calls;		/* inside */
	unsigned asked;		/* MOVEs, since it has last moved */
	unsigned moves;		/* how often it has moved */
	_Atomic uint32_t let_in; /* how often those outside the gate were let in: a futex(2) */
	pthread_cond_t changed;	/* state, seq, busy of a mapping, lists.asking, move, or lists.used or calls has become less */
	LIST_ENTRY(conn) link;
};

/* An acquire or release in the order of a stream, which has failed when its turn had come. */
struct late_error {
	bool release;
	uint64_t offset, length; /* in the file, bytes */
};
#define LATE_FORMAT "%s of bytes %llu to %llu"
#define LATE_ARGS(l)                                                                        \
	(l).release ? "gaia_release_on()" : "gaia_acquire_on()", (unsigned long long)(l).offset, \
		(unsigned long long)((l).offset + (l).length - 1)

struct mapping {
	/* Constant once it is in the tables. */
	struct conn *conn;
	const struct kind_ops *ops;
	struct map_file *file;	/* holds a reference */
	char *addr;		/* as returned by gaia_mmap() */
	size_t length;		/* as given to it */
	uint64_t offset;	/* of addr in the file */
	int prot;
	unsigned device;	/* its number, or GAIA_HOST */
	char device_name[32];
	uint8_t device_uuid[16];
	bool strict;		/* pages can be touched only while they are held */
	char *base;		/* what is reserved: whole chunks around it, or whole extents (kind_ops.extents) */
	size_t span;
	uint64_t start;		/* of base in the file */
	void *own;		/* the kind's own state; free(3) is enough for it */
	struct detect *detect;	/* NULL: the daemon finds out itself what has changed. Set before the mapping is known */
	struct sides *sides;	/* of one that can write on the host, see sides.h; NULL: none */
	struct mapping *whole;	/* it is the reader of this one's sides; NULL: it is the program's */
	struct held_chunk *held; /* one for each chunk of span, with gaia_lock; NULL: holds are not counted */

	/* Constant for those inside (gate.c). */
	uint64_t id;		/* at the daemon */
	unsigned release_by;	/* GAIA_RELEASE_BY_* */
	int lost;		/* it could not be made again at the daemon that has taken the mount over: why, a negative errno */

	atomic_int late_error;	/* of turns: the first that was not reported yet; written with turns_lock held */

	/* turns_lock. */
	struct late_error late;	/* what has failed with it */
	LIST_HEAD(, turn) turns_queued; /* in streams, not ready */
	unsigned turns_ready;	/* not done */

	/* Used by the thread that has made the mapping busy; in the end, by the one that has forgotten it. */
	uint64_t *extents; /* one bit for each extent of span: it was placed as one. NULL: the kind has none */

	/* gaia_lock. */
	unsigned refs;
	bool busy; /* the connection's thread works on it, without the lock */
	unsigned looking; /* threads that look at its memory: see detect.c */
	bool gone; /* it is being unmapped, or has been: its addresses may be somebody else's */
};

/* How many chunks are behind @n descriptors of a GRANT, of which @extents are extents. */
static inline unsigned chunks_behind(unsigned n, uint64_t extents)
{
	return n + (GAIA_EXTENT_CHUNKS - 1) * (unsigned)__builtin_popcountll(n < 64 ? extents & ((1ull << n) - 1) : extents);
}

/* Whether chunk @k was placed as part of an extent; and, by the kinds, that the extent around it is placed, or is not any more. */
static inline bool extent_is_placed(const struct mapping *m, uint64_t k)
{
	k /= GAIA_EXTENT_CHUNKS;
	return m->extents && m->extents[k / 64] >> (k % 64) & 1;
}

static inline void extent_set(struct mapping *m, uint64_t k, bool placed)
{
	uint64_t bit = 1ull << (k / GAIA_EXTENT_CHUNKS % 64), *word = &m->extents[k / GAIA_EXTENT_CHUNKS / 64];

	*word = placed ? *word | bit : *word & ~bit;
}

extern pthread_mutex_t gaia_lock, turns_lock;

/* ---- connection.c ---- */

/*
 * A reference to the live connection to the mount of @fd, whose st_dev is @dev; makes a connection if there
 * is none. *@fresh: it was made by this call.
 */
int conn_get(int fd, dev_t dev, struct conn **out, bool *fresh);
/* The last reference to go waits for the connection's thread, which then has no mapping to work on. */
void conn_put(struct conn *c);
/* One more reference. */
void conn_hold(struct conn *c);
/*
 * Wait until message @seq has been carried out. Takes gaia_lock only if it has not been, or if some messages were @unanswered
 * when the daemon named @seq (gaia_ioc_range): if one of these was refused meanwhile, the daemon's reply does not hold, the
 * connection ends, and the result is -ENOTCONN.
 */
int conn_wait(struct conn *c, uint64_t seq, uint32_t unanswered);
/* Declare the connection dead because of @error. The lock is held. */
void conn_kill(struct conn *c, int error);
/* Send a message to the daemon. The lock is held. */
int conn_say(struct conn *c, const struct gaia_msg *msg);
bool conn_is_dead(struct conn *c);
/* The result of a call that failed with @err: -ENOTCONN if the connection has ended, which is the cause then; else @err. */
int conn_error(struct conn *c, int err);
/* A thread of the library's: small, and without signals. */
int start_thread(pthread_t *thread, void *(*fn)(void *), void *arg, const char *name);

/* ---- gate.c ---- */

/* What a call is about to do with a connection. */
enum use {
	USE_MAP,
	USE_ACQUIRE,
	USE_START, /* the same on a thread of the library's */
	USE_RELEASE,
	USE_TURN, /* what was queued before: it does not wait. -EINVAL: nothing is held, nor was announced */
	USE_OTHER, /* nothing is held by it */
};
/* Be inside, when that is possible. -ENOTCONN: the connection has ended. -EINTR: of USE_ACQUIRE: the thread has caught a signal. */
int conn_enter(struct conn *c, enum use use);
/* The call has ended with @err. True: it has done nothing, and is to be made again, from conn_enter() on. */
bool conn_leave(struct conn *c, enum use use, int err);
/* The same for calls on a mapping. -ESTALE: it did not come along when the connection moved. */
int mapping_enter(struct mapping *m, enum use use);
/* For USE_START. -ECANCELED: it has been cancelled meanwhile. */
int mapping_enter_start(struct mapping *m, const struct start *st);
bool mapping_leave(struct mapping *m, enum use use, int err);
/* This thread holds something that another has acquired. */
void gate_holds(int more);
/* Whether this thread holds something, as far as can be known. Here and below the lock is held. */
bool gate_holding(void);
/* Whether an acquire may begin now, of a thread that is @holding something, or is not. */
bool gate_lets(const struct conn *c, bool holding);
/* A MOVE, STAY or MOVED. */
int gate_message(struct conn *c, const struct gaia_msg *msg);
/* Wait until nobody is inside. */
void gate_alone(struct conn *c);
/* It has come out whether the connection moves: wake all who wait for that. */
void gate_let_in(struct conn *c);
/* Let all in again; the connection has @moved, or ends. */
void gate_open(struct conn *c, bool moved);
void gate_forked(struct conn *c);

/* ---- move.c ---- */

/* Make the mapping known to the daemon, and set m->conn, m->file and m->id. On success the caller is inside. */
int map_at_daemon(struct mapping *m, int fd);
/* Inside, or the connection has ended. */
void unmap_at_daemon(struct mapping *m);
/* Give up m->file and m->conn. */
void mapping_disconnect(struct mapping *m);
void add_side(struct mapping *m, int fd);
/* Undo it; nothing of it was known yet. */
void remove_side(struct mapping *m);
/* Another daemon serves the mount: make connection and mappings anew there. On the connection's thread; the lock is held, but dropped meanwhile. */
int conn_move(struct conn *c);

/* ---- turns.c ---- */

/* The work of gaia_acquire() and gaia_release(). io.prot is set; who is asked (key, map) is found here. What was acquired is mapped when
 * message io.seq has been carried out. -EINTR: a signal has come, and nothing was acquired. *@push_err: 0 at first: the first error of writing back
 * what CPU programs wrote. The kernel tells it only once, so it stays from one try to the next (conn_leave()). */
int range_acquire(struct mapping *m, struct gaia_ioc_range *io);
int range_release(struct mapping *m, struct gaia_ioc_range *io, int *push_err);
/* The range, as lists have it. */
struct gaia_list_range range_of(const struct gaia_ioc_range *io);
/* Release what was acquired and not used, nor counted as held (held_add()). */
int range_give_back(struct mapping *m, const struct gaia_ioc_range *io);

void turns_init(struct turns *ts);
/* Called when nobody queues any more. */
void turns_end(struct turns *ts, bool forked);
/* Start the thread unless it runs. */
int turns_start(struct conn *c);
/* A turn is about to be queued (turn_queued()); or it was not queued after all. turns_lock is held. */
void turn_queued(struct turn *t);
void turn_not_queued(struct turn *t);
/* A stream has reached the turn. The turn, from malloc(3), now belongs to the thread. */
void turn_ready(struct turn *t);
/*
 * Give up a turn that is queued and not ready: the driver may keep it for ever, or make it ready at any
 * time, which then has no effect. turns_lock is held.
 */
void turn_abandon(struct turn *t);
/* The error of the mapping's turns that was not reported yet, or 0. It counts as reported now. *@out: what has failed. */
int turns_take_error(struct mapping *m, struct late_error *out);
/* Wait for the mapping's turns that a stream has reached, and abandon the others. False: there were others. */
bool turns_wait(struct mapping *m);

/* ---- lists.c ---- */

/* The work of gaia_acquirev() and gaia_releasev(): of ranges of the file, not empty and sorted. Errors as of range_acquire().
 * What was acquired is mapped. */
int list_acquire(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot);
int list_release(struct mapping *m, const struct gaia_list_range *range, size_t n, int *push_err);
/* Have the memory for lists, so that list_release_told() need not wait for it. */
int lists_prepare(struct mapping *m);
/* Only to tell the daemon, with what has changed. -ENOSYS: there is no memory for lists, and nothing was done: the caller releases it otherwise. */
int list_release_told(struct mapping *m, const struct gaia_list_range *range, size_t n, const struct detect_told *told);
/* As range_give_back(). */
int list_give_back(struct mapping *m, const struct gaia_list_range *range, size_t n);
/* The daemon has sent the memory, which is the descriptor @fd, or could not be received (@failed: a negative errno). The lock is held. */
void lists_message(struct lists *ls, int fd, int failed);
/* In a child of fork(), where it is not mapped; the lock is held. At the end of the connection. */
void lists_forked(struct lists *ls);
void lists_unmap(struct lists *ls);

/* ---- starts.c ---- */

/*
 * Begin to acquire io's range, or the list (NULL: no list; else from malloc(3), not empty and sorted, and @io is from its first byte to its
 * last), as io.prot says: a descriptor for start_wait(), or a negative errno. If it works the list and the caller's reference to
 * @m belong to it. @m NULL: there is nothing to acquire.
 */
int start_begin(struct mapping *m, const struct gaia_ioc_range *io, struct gaia_list_range *list, size_t n);
/* The work of gaia_wait(). */
int start_wait(int fd);
/*
 * Wait until nothing is held of these ranges any more for acquires that the program has cancelled. Before a release, which would take their holds
 * away: then what gives them back would take later ones away. The lock is not held, nor anything that such an acquire may wait for.
 */
void starts_settle(const struct mapping *m, const struct gaia_list_range *range, size_t n);
/* Call @fn for each that was not waited for. The lock is held. */
void starts_each(void (*fn)(const struct mapping *m, const struct gaia_ioc_range *io));
/* The mapping is gone: those of it end. Returns how many were not waited for, and the first @most of them. */
unsigned starts_unmapped(struct mapping *m, struct gaia_ioc_range *unwaited, unsigned most);
/* In a child of fork(); the lock is held. */
void starts_forked(void);
/* What waited because a connection was about to move need not wait any more. The lock is held. */
void starts_go_on(void);
/* Of one that is under way; the lock is held. Whether its thread held something when it began it. */
bool start_was_holding(const struct start *st);
/* Whether nobody wants it any more. */
bool start_is_cancelled(const struct start *st);

/* ---- held.c ---- */

/* Called with m->base and span set. -ENOMEM. Undone by held_end(). */
int held_init(struct mapping *m);
void held_end(struct mapping *m);
/* Note that the range, as it was asked for, was acquired, and its chunks are mapped; or that it was released, even if that failed. */
void held_add(struct mapping *m, const struct gaia_ioc_range *io);
void held_take(struct mapping *m, const struct gaia_ioc_range *io);
/* The same for a list, which is sorted. */
void held_add_list(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot);
void held_take_list(struct mapping *m, const struct gaia_list_range *range, size_t n);
/* Called before it is unmapped. */
void held_unmapped(struct mapping *m);
/* The mapping, or the process, ends, and nobody has waited for this started acquire. */
void held_unwaited(const struct mapping *m, const struct gaia_ioc_range *io);
/* Chunks of a strict mapping were placed, @together as an extent or each by itself: without access yet, later with @prot at most; or they are being
 * cleared. The lock is held. */
void held_placed(struct mapping *m, uint64_t first, unsigned n, bool together, int prot);
void held_cleared(struct mapping *m, uint64_t first, unsigned n);

/* How the page at @addr is held: PROT_NONE, PROT_READ or PROT_READ | PROT_WRITE; -1: holds are not counted. */
int held_prot(const struct mapping *m, const char *addr);

/* ---- devices.c ---- */

/* As the protocol has it. */
static inline unsigned device_number(int device)
{
	return device == -1 ? GAIA_HOST : device < 0 ? UINT32_MAX : (unsigned)device;
}
/* Device @device of @fd's mount, and what its kind does. -ENODEV: there is none, or none of a kind that this library was built for. */
int device_find(int fd, int device, struct gaia_ioc_device *out, const struct kind_ops **ops);
/* The result of calls on a mapping that is lost because of @lost, and the error's text. */
int error_of_lost(int lost);
/* If @err is -ENOMEM and the device is why, say so in the error's text. Returns @err. */
int error_of_room(const struct mapping *m, size_t length, int err);

/* ---- errors.c ---- */

/* A call of this thread begins: @call is its name, which stays. Calls do not nest. */
void error_begin(const char *call);
/* What it is about, where that is known. Descriptors and mappings stay until error_end(). */
void error_about_fd(int fd);
void error_about_address(const void *addr, size_t length);
void error_about_range(uint64_t offset, uint64_t length); /* of a file that is not known */
void error_about_mapping(const struct mapping *m, uint64_t offset, uint64_t length);
/* Why it will fail with @err, which is returned, and what to do: said in the place of what error_end() says of its own. */
int error_because(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* It has failed with @err, an errno. Only the first of these in a call counts. */
void error_end(int err);
/* Of the thread's last call that failed; empty if there is none. */
const char *error_text(void);

/* ---- detect.c: nothing of it does anything if m->detect is NULL, except what is for streams, which is not called then ---- */

/* Called when the memory is reserved: makes m->detect, if that is wanted and possible. */
void detect_init(struct mapping *m);
/* Does not end what the kind has made. */
void detect_end(struct mapping *m);
/* With m->detect: these chunks are there from now on; or are about to go. The lock is held. */
void detect_placed(struct mapping *m, uint64_t first, unsigned n, bool placed);
/* All of its chunks have gone, and nothing was held. Inside of nobody's call. */
void detect_moved(struct mapping *m);
/* Ranges of the file, sorted and not empty, are about to be acquired. @stream: the number of the stream that will come to that; 0: at once. */
void detect_acquire(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot, uint64_t stream);
/* They have been, or have not. Then, when the program may touch them: remember what they are. */
void detect_settled(struct mapping *m, const struct gaia_list_range *range, size_t n, bool good);
void detect_acquired(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot);
/* One of the holds of each has gone. */
void detect_dropped(struct mapping *m, const struct gaia_list_range *range, size_t n);
/* They are about to be released: what has changed. *@out is to be freed. */
void detect_release(struct mapping *m, const struct gaia_list_range *range, size_t n, struct detect_told *out);
/* The same of what was acquired and not used. */
void detect_give_back(struct mapping *m, const struct gaia_list_range *range, size_t n, struct detect_told *out);
void detect_told_free(struct detect_told *told);
void detect_runs_free(struct detect_runs *rs);
/* Something that was queued has failed. */
void detect_lost(struct mapping *m);

/* The acquire has been queued: what its stream is to remember next; and whether it will. */
void detect_queue_acquired(struct mapping *m, const struct gaia_list_range *range, struct detect_runs *rs);
void detect_queue_hashed(struct mapping *m, const struct detect_runs *rs, bool good);
/* A release is about to be queued: what its stream is to compare before. When that has been done: what has changed. When it has been carried out. */
void detect_queue_release(struct mapping *m, const struct gaia_list_range *range, uint64_t stream, struct detect_runs *rs);
void detect_queue_tell(struct mapping *m, const struct gaia_list_range *range, const struct detect_runs *rs, struct detect_told *out);
void detect_queue_released(struct mapping *m, const struct gaia_list_range *range);

/* ---- mapping.c ---- */

/* Reserve addresses on @device for m->offset and m->length, and set m->addr, base, span and start. m->extents is to be freed. */
int mapping_reserve(struct mapping *m, const struct gaia_ioc_device *device);
/* Make a mapping known; it then has one reference, the tables'. -ENOMEM. */
int mapping_add(struct mapping *m);
/* The mapping that contains all of the range, with a reference; or NULL. */
struct mapping *mapping_find(const char *addr, size_t length);
/* The mapping with exactly this range, with a reference. NULL and *@err: there is none, or it is
 * an ancestor's. */
struct mapping *mapping_exact(const char *addr, size_t length, int *err);
/*
 * Forget the mapping, and wait until no thread works on it any more. The caller gets the tables'
 * reference. False: another thread has forgotten it.
 */
bool mapping_remove(struct mapping *m);
/* The lock is held. */
void mappings_each(void (*fn)(struct mapping *m));
/* Forget the numbers of all mappings of @c, which are listed in *@out: to be freed. Nobody is inside; the lock is held. -ENOMEM. */
int mappings_unnumber(struct conn *c, struct mapping ***out, size_t *n);
/* The mapping can be found by its new number. -ENOMEM. */
int mapping_number(struct mapping *m);
/* Without the lock. */
void mapping_put(struct mapping *m);
/* Whether the message is a GRANT or REVOKE that is valid on @c. The lock is held. */
bool mapping_takes(struct conn *c, const struct gaia_msg *msg);
/*
 * Carry out such a message; a GRANT, of which @extents are extents (wire_receive_extents()), that fails maps nothing. The lock is held, but dropped
 * while chunks are mapped or unmapped.
 */
int mapping_message(struct conn *c, const struct gaia_msg *msg, const int *fd, uint64_t extents);

/* A reference to the connection's descriptor of the file that @fd is open on (st_ino: @ino), with the same access; makes one if
 * there is none. -EMFILE, -ENOMEM. */
int file_get(struct conn *c, int fd, ino_t ino, struct map_file **out);
/* Without the lock. */
void file_put(struct map_file *f);
/* In a child of fork(); the lock is held. */
void files_forked(struct conn *c);

#endif
