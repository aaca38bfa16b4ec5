/*
 * fake_daemon.h - a daemon as clients see it, without a mount and without a page cache.
 *
 * The real control room on a loop of its own thread, over a cache that grants memory and otherwise only
 * records what it is asked. The client library's ioctls are redirected to it (wire_sys). A "file on the mount" is a
 * descriptor that was passed to fake_file().
 */
#ifndef GAIA_TESTS_FAKE_DAEMON_H
#define GAIA_TESTS_FAKE_DAEMON_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "control/control.h"

/* Start and stop it. One at a time. */
void fake_start(void);
/* As if the daemon ended: clients are disconnected, further ioctls fail as on a dead mount. */
void fake_stop(void);

struct control *fake_control(void);
struct quota *fake_quota(void);

/* The user who calls from now on; by default root. */
extern uid_t fake_uid;
/* GAIA_FEATURE_* that it does not have, as one that is older. */
extern uint64_t fake_lacks;

/* Whether mappings hold something, as an upgrade sees it. */
extern atomic_bool fake_holds;

/* A new file of the mount: a descriptor, read-write. */
int fake_file(void);
struct cfile *fake_cfile(int fd);

/* Carries out the library's calls, by control's functions: -1 and errno. */
int fake_ioctl(int fd, unsigned long request, void *arg);

/* What was asked of the cache so far. */
struct fake_cache {
	unsigned maps, unmaps, acquires, releases, syncs, publishes, advices;
	unsigned given_back;		/* those of the releases that were of what had not been used */
	unsigned give_back_failed;	/* of these, those that were refused */
	unsigned live;			/* mappings */
	unsigned kept;			/* mappings whose client keeps the memory after unmapping */
	bool detects;			/* of the last mapping: its client looks for changes */
	uint64_t detects_id;		/* the last mapping of which that is so; 0: none */
	unsigned told;			/* those of the releases that told what had changed */
	size_t n_found;			/* what the last of these told; at most 8 ranges of it: */
	struct gaia_list_range found[8];
	int pins;			/* GAIA_PROT_PIN without their GAIA_PROT_PINNED */
	uint64_t off, len;		/* of the last range */
	uint64_t map_id;		/* of the last mapping */
	unsigned prot;
	void *client;			/* of the last mapping */
	bool may_write, alone, extents;	/* the same */
};
struct fake_cache fake_seen(void);

/* While armed, cache_acquire() (but not to pin) posts entered and waits for leave. */
struct fake_gate {
	atomic_bool armed;
	sem_t entered, leave;
};
extern struct fake_gate fake_gate;

/* The file's length in chunks: chunks beyond it are not granted. 0: no end. */
extern atomic_uint fake_chunks;

/* From now on clients that take them are handed all memory in extents. */
extern atomic_bool fake_extents;

/* The cache's answers from now on, if not 0. */
struct fake_errors {
	atomic_int pin, acquire, release;
};
extern struct fake_errors fake_errors;

/* Add a device. Returns its number. */
unsigned fake_device(const char *kind, const unsigned char uuid[16]);

/* Posted by each cache_unmap(). */
extern sem_t fake_unmapped;

/* The memory of chunk @idx of a mapping as the "device" sees it; NULL: never granted. */
unsigned char *fake_chunk(uint64_t map_id, uint64_t idx);

/* Take a chunk back from its client: control_revoke()'s result. */
int fake_revoke(uint64_t map_id, uint64_t idx);

/* Leave no room for a message to the mapping's client: it gets empty ones. */
void fake_fill_socket(uint64_t map_id);

/* Wait until somebody is sending to the client with this key.id; until nobody is. */
void fake_await_sender(uint64_t client);
void fake_await_sent(uint64_t client);

/* Take the chunk back from the clients of all mappings at once. Returns how many have given it up. */
unsigned fake_revoke_all(uint64_t idx);
/* Take @n chunks back from the mapping's client at once. Returns how many it has given up. */
unsigned fake_revoke_many(uint64_t map_id, unsigned n);

/* The client of a mapping, for struct cache_revoke. */
void *fake_client(uint64_t map_id);

/* Have the descriptors of chunks ready, so that the next acquire needs no new ones. */
void fake_prepare(uint64_t map_id, uint64_t first, unsigned n);

/* Whether the client that last mapped has mappings and is alive; and disconnect it. */
bool fake_alive(void);
void fake_disconnect(void);

#endif
