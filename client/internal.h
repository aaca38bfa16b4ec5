/*
 * internal.h - what the library's files share.
 *
 * connection.c keeps one connection a mount and process, with a thread that carries out what the
 * daemon says: map this chunk, give that one up. mapping.c keeps the mappings, found by
 * address (by callers) and by number (by that thread). sim.c, and a file for each other kind of
 * device, do what differs between devices. client.c is the API.
 *
 * Rules
 *  1. One lock, gaia_lock, guards everything here. Nothing that waits for the daemon is done under it:
 *     no ioctl, no writing back, no blocking send or receive.
 *  2. The connection's thread receives, maps and closes chunks' descriptors under the lock, and fork()
 *     takes it too. So a child inherits neither chunks nor their descriptors.
 *  3. In a child the parent's connections are dead. Its mappings stay in the tables so that calls on them
 *     fail properly, until a mapping of the child's own takes their addresses.
 *  4. A connection lives while mappings and calls refer to it; the last mapping takes it along.
 */
#ifndef GAIA_CLIENT_INTERNAL_H
#define GAIA_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "gaia/protocol.h"
#include "wire.h"

/* What differs between kinds of devices. 0 or a negative errno. */
struct kind_ops {
	const char *kind; /* as in gaia_ioc_device.kind */

	/* Addresses for @span bytes, a multiple of GAIA_CHUNK, aligned to it. */
	int (*reserve)(size_t span, char **base);
	void (*unreserve)(char *base, size_t span);

	/* Put the chunk behind @fd at @at; replaces what was there. @fd stays the caller's. */
	int (*place)(char *at, int fd, int prot);

	/* Take away what was placed at @at, if anything. The addresses stay reserved. */
	int (*clear)(char *at);
};

extern const struct kind_ops sim_kind;

enum conn_state { CONN_CONNECTING, CONN_LIVE, CONN_DEAD };

/* Lives from conn_get() until the last conn_put(). */
struct conn {
	/* Constant after creation. */
	dev_t dev;		/* st_dev of the mount's files */

	/* Constant once LIVE. */
	int sock;		/* -1 in a child of fork() */
	struct gaia_client_key key;
	pthread_t thread;

	/* gaia_lock. */
	enum conn_state state;
	int error;		/* DEAD: why, a negative errno */
	bool forked;		/* belongs to an ancestor of this process */
	unsigned refs;
	uint64_t seq;		/* of the last message that was carried out */
	pthread_cond_t changed;	/* state or seq */
	LIST_ENTRY(conn) link;
};

struct mapping {
	/* Constant once it is in the tables. */
	struct conn *conn;
	const struct kind_ops *ops;
	uint64_t id;
	unsigned release_by;	/* GAIA_RELEASE_BY_* */
	int fd;			/* a duplicate of the caller's; -1 in a child of fork() */
	char *addr;		/* as returned by gaia_mmap() */
	size_t length;		/* as given to it */
	uint64_t offset;	/* of addr in the file */
	int prot;
	char *base;		/* what is reserved: whole chunks around it */
	size_t span;

	/* gaia_lock. */
	unsigned refs;
};

extern pthread_mutex_t gaia_lock;

/* ---- connection.c ---- */

/*
 * A reference to the live connection to the mount of @fd, whose st_dev is @dev; makes it if there is
 * none. *@fresh: it was made now.
 */
int conn_get(int fd, dev_t dev, struct conn **out, bool *fresh);
/* May wait for the connection's thread, which waits for nothing. Without the lock. */
void conn_put(struct conn *c);
/* Wait until message @seq has been carried out. */
int conn_wait(struct conn *c, uint64_t seq);
/* Declare it dead, for whatever reason; the lock is held. */
void conn_kill(struct conn *c, int error);
bool conn_is_dead(struct conn *c);

/* ---- mapping.c ---- */

/* Reserve addresses for what m->offset and m->length say, and set m->addr, base and span. */
int mapping_reserve(struct mapping *m);
/* Make a mapping known; it then has one reference, the tables'. -ENOMEM. */
int mapping_add(struct mapping *m);
/* The mapping that holds all of the range, with a reference; or NULL. */
struct mapping *mapping_find(const char *addr, size_t length);
/* Forget the mapping with exactly this range; its reference passes to the caller. NULL: there is none. */
struct mapping *mapping_remove(const char *addr, size_t length, int *err);
/* Without the lock. */
void mapping_put(struct mapping *m);
/* Carry out a GRANT or REVOKE of @c's; the lock is held. */
int mapping_message(struct conn *c, const struct gaia_msg *msg, const int *fd);
/* In a child of fork(); the lock is held. */
void mapping_forked(void);

#endif
