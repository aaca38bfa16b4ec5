/*
 * internal.h - what the files of this room share: clients, their mappings, the mount's list of them.
 *
 * A client is a connection. It begins when the listener accepts, becomes known by its
 * key when its HELLO carries a ticket, and ends when its socket does: then nobody finds
 * it any more, and a worker unmaps what it had mapped. The struct itself stays as
 * long as anything refers to it: the loop, an ioctl in progress, a mapping. So the cache may
 * pass a client to control_grant() and similar calls until cache_unmap() of its mapping has returned.
 *
 * A mapping is found through its client. It ends when it has been taken out of the client's table
 * (UNMAP, or the client's end) and the last ioctl that uses it has returned: the thread that drops
 * the last reference unmaps it in the cache. So an acquire that races with the end of its client
 * completes or fails, and then its pins go.
 *
 * Rules
 *  1. Locks are taken in this order: control.lock, client.send_lock, client.lock, revoke_wait.lock.
 *  2. No call of the cache is made with any of them held, since the cache calls back; but for
 *     cache_mapping_amounts() and cache_mapping_holds(), which only look.
 *  3. client.send_lock may be held while waiting for the client to read, SEND_TIMEOUT_NS at the longest.
 *     The loop's thread takes it only for the first message to a client, which finds room.
 *  4. libuv's handles, and the fields marked so, are touched by the loop's thread only. Another
 *     thread that wants to end a client calls client_disconnect(), and the loop
 *     sees the end of the socket.
 */
#ifndef GAIA_CONTROL_INTERNAL_H
#define GAIA_CONTROL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <uthash.h>
#include <uv.h>

#include "base/log.h"
#include "base/quota.h"
#include "base/uses.h"
#include "control/control.h"

/*
 * The number of connections that may exist without a HELLO. When more come, the user who has most of these loses
 * the oldest: any program may connect, but none can keep others out.
 */
#define MAX_PENDING 64
#define MAX_MAPS 65536 /* of one client */

#define TICKET_LIFE_NS (GAIA_TICKET_S * 1000000000ull) /* connecting takes microseconds, on a busy machine milliseconds */

/*
 * How long sending waits for room. Others wait for the client's memory meanwhile; and a client reads
 * its socket with a thread that does nothing else, so one that takes seconds is stopped or hostile.
 */
#define SEND_TIMEOUT_NS 5000000000ull
#define TRY_SEND_NS 10000000ull /* for another thread to finish sending, which takes microseconds if there is room */
#define REVOKE_TIMEOUT_NS 5000000000ull
/*
 * Each time that clients of a user were mute, the time that the user's clients get becomes a fourth. Ten minutes forgive one such
 * time. So a user whose clients come back and are mute again holds others up for seconds once, not without end.
 */
#define MUTE_DIVISOR 4
#define MUTE_LEAST_NS 50000000ull
#define MUTE_TIMES_MOST 5u
#define MUTE_FORGET_NS 600000000000ull
#define REVOKE_EACH_NS 250000ull /* additional time for each chunk that a client is asked for, if it answers */
/*
 * For the answer to a GRANT. A client maps what it gets within microseconds, unless its driver waits for all
 * work of a GPU.
 */
#define GRANT_TIMEOUT_NS 1000000000ull
#define MAX_LATE 1024 /* late answers that a client may owe: at most two for each of its threads that acquire */
#define REVOKE_LOOK_NS 100000000ull /* between two checks whether clients that do not answer are ending */
#define REVOKE_LOOK_MOST_NS 5000000ull /* the most that such a check takes */
#define REVOKES_AT_ONCE 64u /* that a client may have unanswered; a socket has room for twice as many */
#define MOVED_NS 100000000ull /* for all clients that move to the next daemon, to hear of it and hang up */
#define REVOKE_RETRY_NS 1000000ull /* while there is no room in a client's socket, or others are sending */

/*
 * The right to become a client, once and soon. It counts as one of its user's clients, and the client
 * takes over that place: so a program with a ticket is not turned away.
 */
struct ticket {
	/* Constant. */
	struct ticket_bytes {
		uint64_t id;	/* to find it by */
		uint64_t secret;
	} bytes;
	uid_t uid;
	uint64_t features; /* GAIA_FEATURE_*: those that both ends have */
	uint64_t expires_ns;
	int fd; /* of a socket for it alone, in another network namespace; -1: none */

	/* control.lock. */
	TAILQ_ENTRY(ticket) link;
	LIST_ENTRY(ticket) outside; /* if it has such a socket */
	UT_hash_handle hh;	/* by bytes.id */
};

/* A user whose clients did not give up memory in time. */
struct mute_user {
	uid_t uid;
	/* control.lock. */
	unsigned times;	   /* as of since_ns; see mute_times() */
	uint64_t since_ns; /* when it last happened */
	UT_hash_handle hh;
};

TAILQ_HEAD(client_list, client);

/* Where clients connect. */
struct listener {
	int fd;
	char name[48]; /* without the leading NUL */
};
/* In the thread's network namespace, by a name that was never used. A negative errno. */
int listener_open(struct listener *out);

/* A descriptor of the thread's network namespace; negative: there is no /proc. */
int netns_open(void);
/*
 * A listener for thread @tid, which is in a call: out->fd is -1 if it can use that of the daemon. -EHOSTUNREACH: it is in another network
 * namespace, and none can be made there, which is logged; -EMFILE, -ENFILE.
 */
int netns_listen(struct control *ctl, pid_t tid, struct listener *out);

/* Forget all reports, at the end. */
void reports_forget(struct control *ctl);

struct control {
	/* Constant after creation. */
	uv_loop_t *loop;
	struct cache *cache;
	struct pool *workers;
	json_t *mount;
	int end; /* see control_set_end() */
	control_upgrade *upgrade; /* see control_on_upgrade() */
	void *upgrade_arg;
	uint64_t heir_features; /* see control_move_to() */
	struct quota *quota;
	struct log_rate pace, mute_pace; /* of lines that any program can cause, and of those about mute clients */
	struct listener listener;
	int netns;	/* the daemon's network namespace; -1: not known */
	int arrivals;	/* an epoll(7) of all listeners, and of */
	int expiry;	/* a timer, for tickets that have listeners of their own */

	/* The loop's thread. */
	int spare;	/* closed for a moment when there are no descriptors left; or -1 */
	uv_poll_t poll;
	unsigned handles; /* of libuv, not closed yet */
	struct client_list pending;
	unsigned n_pending;

	pthread_mutex_t lock;
	/* lock. */
	struct ticket *tickets;
	LIST_HEAD(, ticket) outside;
	TAILQ_HEAD(, ticket) oldest; /* the same, in the order in which they were given out and expire */
	struct client *clients; /* by id */
	struct mute_user *mute_users; /* by uid */
	TAILQ_HEAD(, report) reports; /* those that can still be read, in the order in which they were sent: see report.c */

	atomic_uint n_live; /* structs client that are not freed */
};

/* How a thread waits until clients have answered. */
struct revoke_wait {
	pthread_mutex_t lock;	/* a leaf */
	unsigned pending;	/* lock; those of its revocations that are pending */
	pthread_cond_t none;	/* none is pending; CLOCK_MONOTONIC */
};

/*
 * A chunk that a client must give up. Lives as long as a thread waits for that. While it is pending it is on
 * the client's list.
 */
struct revocation {
	/* Constant. */
	struct client *client;	/* holds a reference */
	struct revoke_wait *wait;
	struct cache_revoke *ask;
	/* client.lock. */
	uint64_t seq;		/* of the REVOKE; 0: it has not been sent */
	bool answered;
	atomic_bool over;	/* not pending any more: answered, or the client is dead; set with client.lock held */
	LIST_ENTRY(revocation) link;
	UT_hash_handle hh;	/* by seq, if it has one */
};

/* A GRANT for which the client owes an answer. The thread that sent it waits for a while; see `late`. */
struct handover {
	/* Constant. */
	struct client *client;
	uint64_t seq, map;
	/* client.lock. */
	bool answered;		/* and so not in the list any more */
	int err;		/* a negative errno: not mapped */
	bool late;		/* nobody waits for it: freed when it is answered, or with the client */
	TAILQ_ENTRY(handover) link;
};

struct client {
	/* Constant after creation. */
	struct control *ctl;
	int fd;			/* closed with the struct, shut down before */
	pid_t pid;
	uid_t peer_uid;		/* the user who made the socket */

	/* Constant once it is in control.clients. */
	struct gaia_client_key key;
	uid_t uid;		/* the user who asked for the ticket: what the client uses counts as this user's */
	bool counted;		/* among that user's clients */
	uint64_t features;	/* in use, GAIA_FEATURE_* */

	atomic_uint refs;
	atomic_bool dead;	/* set by client_disconnect() only */
	atomic_uint_least64_t acquires, releases; /* asked for, for reports */
	struct uses uses;

	/* The loop's thread. */
	uv_poll_t poll;
	bool ended;		/* client_end() has run */
	bool welcome;		/* in control.clients; else in control.pending */
	TAILQ_ENTRY(client) link; /* control.pending */

	/* control.lock. */
	UT_hash_handle hh;	/* control.clients */

	pthread_mutex_t send_lock;
	/* send_lock. */
	uint64_t seq;		/* of the last message sent */

	pthread_mutex_t lock;
	/* lock. */
	LIST_HEAD(, revocation) revocations; /* pending */
	struct revocation *asked; /* those of them that were sent */
	TAILQ_HEAD(, handover) handovers; /* by seq */
	pthread_cond_t answer;	/* one of these was answered, or the client is dead; CLOCK_MONOTONIC */
	unsigned n_late;	/* handovers that are late */
	bool refused_late;	/* it could not map what counted as mapped already: it will be disconnected */
	struct map *maps;	/* by id */
	int lists;		/* its memory for lists of ranges, for reading; -1: none. Stays until the client is freed */
	unsigned lists_sent;	/* so often that memory was sent */
	unsigned n_maps;	/* in maps, or about to be */
	struct {
		uint64_t seq;	/* of the last MOVE */
		bool owes;	/* that is not answered */
		bool asked;	/* no STAY has been sent since */
		bool ready, refuses; /* the answer, if it was asked */
	} move;
	bool closed;		/* accepts no more maps */
};

struct map {
	/* Constant after creation. */
	uint64_t id;
	struct client *client;	/* holds a reference */
	struct cfile *file;	/* the cache holds it for the mapping */
	struct mapping *m;
	unsigned prot;
	bool detects;		/* GAIA_MAP_DETECTS */
	uint64_t start, end;	/* of the file, bytes; whole pages */

	atomic_uint pins;	/* announced acquires; each counts for the user, too */
	enum cache_left left;	/* see cache_unmap(); set before the table's reference is dropped */
	atomic_uint refs;
	UT_hash_handle hh;	/* client.lock */
};

/* ---- client.c ---- */

/* Take over a connection that was accepted; closes it on failure. Called by the loop's thread. */
void client_accept(struct control *ctl, int fd);
/* The connection is over: forget the client, unmap what it has. Called by the loop's thread. */
void client_end(struct client *c);
/* A reference to the client with this key, or NULL: there is none, or it has been disconnected. */
struct client *client_find(struct control *ctl, const struct gaia_client_key *key);
void client_get(struct client *c);
void client_put(struct client *c);
/* From now on nothing is sent to the client, nor accepted from it. Any thread may call this. */
void client_disconnect(struct client *c);

/* ---- send.c ---- */

/* Send @msg (its seq is filled in) with @n descriptors: 0 and *@seq, or -ENOTCONN. */
int client_send(struct client *c, struct gaia_msg *msg, const int *fd, unsigned n, uint64_t *seq);
/* The same without waiting for room, for messages that may be dropped: -EAGAIN if there is none now. */
int client_try_send(struct client *c, struct gaia_msg *msg, const int *fd, unsigned n, uint64_t *seq);
#define SEND_NOW 0 /* a deadline that has passed: try once, without waiting */
/* send_lock is held. 0 or -ENOTCONN; with the deadline SEND_NOW also -EAGAIN: there is no room. */
int send_next(struct client *c, struct gaia_msg *msg, const int *fd, unsigned n, uint64_t deadline);
/* The same of a GRANT, with a descriptor for each of its chunks, which is of so many @chunks (control_grant()). */
int send_grant(struct client *c, struct gaia_msg *msg, const int *fd, const unsigned *chunks, uint64_t deadline);
/* Whether the client may be handed extents: their lengths are said by spans. */
static inline bool takes_extents(const struct client *c)
{
	return c->features & GAIA_FEATURE_SPANS && c->features & GAIA_FEATURE_EXTENTS;
}

/* ---- handover.c ---- */

/*
 * gaia_ioc_range.unanswered, for the reply to an ACQUIRE that names message @seq. -ENOTCONN: the client could not map what it
 * was handed, and said so too late.
 */
int client_unanswered(struct client *c, uint64_t seq, uint32_t *out);
/* Whether the client has answered everything that came before message @seq. c->lock is held. */
bool handovers_answered(const struct client *c, uint64_t seq);
/* A GRANTED. False: it is invalid. Called by the loop's thread. */
bool handover_answered(struct client *c, const struct gaia_msg *msg);
/* Called when nothing refers to the client: so the handovers that are left are late ones, for which nobody waits. */
void handovers_forget(struct client *c);

/* ---- revoke.c ---- */

/* A REVOKED. False: it is invalid. Called by the loop's thread. */
bool revoke_answered(struct client *c, const struct gaia_msg *msg);
/*
 * The revocation is not pending any more: from here on it belongs to the thread that waits for it. The client's
 * lock is held, which keeps that thread from ending meanwhile.
 */
void revoke_over(struct revocation *rev, bool answered);

/* ---- patience.c ---- */

/* How long clients of @uid are waited for. */
uint64_t patience_with(struct control *ctl, uid_t uid);
/*
 * A client of @uid's that was asked at @asked_ns was mute. However many of a user's clients are mute at the same time, it counts once. Nor does
 * it count for owners of the mount: they may stop their clients by a debugger as often as they like.
 */
void note_mute(struct control *ctl, uid_t uid, uint64_t asked_ns);
/* At the end: forget which users' clients were mute. */
void mute_forget(struct control *ctl);

/* ---- process.c ---- */

/* Where the next check of processes' threads continues. */
struct look {
	pid_t pid;
	uint64_t thread; /* threads of that process that were checked; 0 again after the last */
};

/*
 * Whether some thread of the process has a SIGKILL pending: however a process ends, the kernel kills its other threads. Checks at
 * least one, and stops at the time @until.
 */
bool process_is_ending(struct look *look, uint64_t until);
/*
 * Whether the client, whose connection is over, still runs and so still maps its memory. (A process that ends
 * loses its memory before its sockets.) If the process cannot be seen: true.
 */
bool keeps_memory(const struct client *c);

/* ---- map.c ---- */

/* Whether this mapping may be released in that way. */
bool map_may_release(const struct map *map, enum releases may);
void map_put(struct map *map);
/*
 * The mapping @id, with a reference. Its client is looked up by key and secret, the mapping through its client, and the
 * descriptor's file @f must be the mapping's. @take_out: nobody finds it any more.
 */
int map_find(struct control *ctl, struct cfile *f, const struct gaia_client_key *key, uint64_t id, bool take_out, struct map **out);

/* ---- upgrade.c ---- */

/* An UPGRADE, which comes first on its connection; a READY. False: it is invalid. Called by the loop's thread. */
bool upgrade_asked(struct client *c, const struct gaia_msg *msg);
bool move_answered(struct client *c, const struct gaia_msg *msg);

/* ---- list.c ---- */

/* The client is freed. */
void lists_end(struct client *c);

/* ---- control.c ---- */

/* Drop expired tickets, which gives their places back. Without this call that happens only when the next ticket is made. */
void tickets_forget_expired(struct control *ctl);
/*
 * Whether @ticket is valid, shown on a connection that the user @peer has made; the call uses it up. If it is, *@uid is the user it was given to, *@features are those that were
 * agreed on, and the caller has to give back one of this user's QUOTA_clients.
 */
bool ticket_redeem(struct control *ctl, const uint8_t ticket[16], uid_t peer, uid_t *uid, uint64_t *features);
void fill_random(void *buf, size_t len);
/* As memcmp() == 0, in a time that does not depend on where the difference is. */
bool equal_secret(const void *a, const void *b, size_t len);

#endif
