/*
 * cache_rig.h - the page cache with everything around it, and no mount.
 *
 * A rig is a cache over simulated devices and a store in memory, each wrapped so that fault points
 * make them fail, and its surroundings: a model of the kernel's page cache for each file
 * (a kfile) and clients that map device memory into this process.
 *
 * The model keeps whole pages, as the kernel does: filled by READs, changed by write(2) and by stores to
 * mappings, written back whole, dropped by reclaim and by invalidations, which write back
 * what is dirty first. A page is locked while a request about it is under way, so
 * that what would deadlock with the kernel deadlocks here.
 *
 * Use: rig_create(), kfile_create(), client_create()...; rig_destroy() ends what is left and checks that
 * the cache gave everything back. If something happens that the test did not ask for, the rig aborts, with a line that says why.
 */
#ifndef GAIA_TESTS_CACHE_RIG_H
#define GAIA_TESTS_CACHE_RIG_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uthash.h>

#include "base/fault.h"
#include "pagecache/cache.h"
#include "store/store.h"

struct rig_options {
	unsigned devices;	/* 0: none */
	unsigned added;		/* so many more may come by rig_add_device() */
	unsigned device_chunks; /* of each; 0: 8 */
	uint64_t device_cache;	/* of each: bytes for pages that left home, or CACHE_DEVICE_AUTO; 0: none */
	uint64_t home_bytes;	/* 0: 64 MiB */
	enum cache_dedup dedup;
	uint64_t age_ms;	/* 0: an hour, that is: nothing is stored unless asked */
	uint64_t device_age_ms;	/* 0: an hour, too */
	bool writethrough;	/* the kernel's way of caching */
	uint64_t latency_ns;	/* of the devices */
	bool always_writable;	/* the devices cannot share read-only, like GPUs */
	bool no_peers;		/* the devices cannot copy from each other */
	bool passthrough;	/* files begin as passthrough files: the kernel has nothing of them */
	bool reads_ahead;	/* else clients say GAIA_RANDOM at first: nothing that a test might count is brought to a device ahead */
	bool detects;		/* clients look for changes themselves (rig_detect.h). Also with GAIA_TEST_DETECT=client in the environment */
	unsigned files_percent;	/* of a device, how much pinned files may have; 0: 50 */
	unsigned files_user_percent; /* the same of each user who is no owner */
	bool readers_may_write;	/* clients that map for reading only could write the file as well */
	bool host;		/* the host is a device, too: every number from @devices on is its */
	unsigned host_chunks;	/* of it; 0: 8 */
};

struct kfile;
struct client;

struct rig {
	struct rig_options options;
	struct cache *cache;
	struct store *mem;   /* without faults */
	struct store *store; /* what the cache uses: faulty over mem */
	SLIST_HEAD(, kfile) files;
	pthread_mutex_t lock; /* the list of clients: threads make their own */
	SLIST_HEAD(, client) clients;

	struct cache_user user; /* the user of clients that are made next: by default an owner of the mount */

	bool old_clients; /* set by a test: clients that are made next do not know extents */

	/*
	 * Set by a test that controls when invalidations happen: called before each, on the
	 * thread that asked for it.
	 */
	void (*before_invalidate)(void *arg, struct kfile *kf, off_t off, off_t len);
	/* The same for chunks that a client has just been given: the acquire is not complete yet. */
	void (*after_grant)(void *arg, struct client *cl, uint64_t idx);
	/* Called when a client's answer to the @nth message by which it was given something (from 0 on) is waited for: what it says. */
	int (*before_answer)(void *arg, struct client *cl, unsigned nth);
	/* Called when a client is asked to unmap a chunk, before it does. */
	void (*_Atomic before_revoke)(void *arg, struct client *cl, uint64_t idx);
	/* Set by a test: whether a client that is asked for memory takes its time, on any thread. */
	bool (*late)(void *arg, const struct client *cl);
	void *arg;
	atomic_uint looks; /* how often a thread has looked whether clients that may take their time have answered */
	atomic_uint asked; /* how often clients were, several of them at once or one */
	atomic_bool hoarders_live[2]; /* at first; set by a test: the processes of the clients that hoard */
	atomic_uint processes_looked_up, processes_asked; /* cache_host.process, .process_lives: how often */
};

struct rig *rig_create(const struct rig_options *options);
/* Ends clients, files' pins, and files; nothing may be lost, held or leaked. */
void rig_destroy(struct rig *rig);

/* For a fake driver in mode busy_importers: importers give up the device memory that they kept. Otherwise does nothing. */
bool rig_importers_gone(void);
/* Frames of home in use. */
uint64_t rig_frames(struct rig *rig);
/* Wait until everything has been read ahead that is to be. */
void rig_readahead(struct rig *rig);
/* As the cache numbers devices. */
unsigned rig_number(const struct rig *rig, unsigned device);
/* Bytes of a device in use. */
uint64_t rig_device_used(struct rig *rig, unsigned device);
/* One more, as the others are; the host's number goes up. Returns its number. */
unsigned rig_add_device(struct rig *rig);

/* ---- a file, as the kernel has it ---- */

struct kpage {
	uint64_t index;
	atomic_bool locked, uptodate, dirty; /* changed by the thread that has the page; which thread has it is changed under the lock */
	UT_hash_handle hh;
	unsigned char bytes[GAIA_PAGE];
};

struct kfile {
	/* Constant. */
	struct rig *rig;
	int ref; /* names the file to the store */
	struct cfile *cfile;
	SLIST_ENTRY(kfile) link;

	unsigned readahead; /* pages that a READ asks for beyond the one wanted */

	struct store_file *below; /* the file of a passthrough file that processes work on: without faults */

	pthread_mutex_t lock;
	pthread_cond_t unlocked;
	/* lock. */
	struct kpage *pages;
	uint64_t size;
	int error; /* of a write-back that nobody waited for */

	atomic_uint opened, released; /* calls of cfile_source */
};

/* A file of the store. Contents that exist are left alone; what is missing up to @size is a hole. */
struct kfile *kfile_create(struct rig *rig, int ref, uint64_t size);
/* No process has the passthrough file, if it is one, open for writing any more. Whoever writes it opens it anew. Returns an error of the store's. */
int kfile_writers_leave(struct kfile *kf);
/* No process has the passthrough file open any more: from now on it is cached. Returns an error of the store's. */
int kfile_leave_passthrough(struct kfile *kf);
/* The inode is forgotten: write back, cfile_put(), cache_forget(). Frees it. @gone: its last name went, too. */
void kfile_end(struct kfile *kf, bool gone);
/* The same of a file that is pinned to a device, which stays; and the kernel knows it again. */
void kfile_forget(struct kfile *kf);
void kfile_remember(struct kfile *kf);

/* What processes do. Bytes or 0, or a negative errno. */
ssize_t cpu_read(struct kfile *kf, void *buf, size_t len, uint64_t off);
ssize_t cpu_read_direct(struct kfile *kf, void *buf, size_t len, uint64_t off);
int cpu_write(struct kfile *kf, const void *buf, size_t len, uint64_t off);
int cpu_write_direct(struct kfile *kf, const void *buf, size_t len, uint64_t off);
/* Through a shared mapping: below the end of the file. */
int cpu_store(struct kfile *kf, const void *buf, size_t len, uint64_t off);
int cpu_truncate(struct kfile *kf, uint64_t size);
int cpu_allocate(struct kfile *kf, int mode, uint64_t off, uint64_t len);
ssize_t cpu_copy(struct kfile *from, uint64_t from_off, struct kfile *to, uint64_t to_off,
		 size_t len);
int cpu_fsync(struct kfile *kf);

/* What the kernel does by itself. */
/* Write back the dirty pages of a range (len 0: to the end), up to @batch in a request. */
int kernel_writeback(struct kfile *kf, uint64_t off, uint64_t len, unsigned batch);
/* Drop clean pages. */
void kernel_reclaim(struct kfile *kf, uint64_t off, uint64_t len);
bool kernel_has(struct kfile *kf, uint64_t off);
/* What processes wrote there has not been written back. */
bool kernel_is_dirty(struct kfile *kf, uint64_t off);

/* What the store has: bytes below its end of the file; the rest of @buf is zeroed. */
size_t store_peek(struct kfile *kf, void *buf, size_t len, uint64_t off);

/* ---- a client with one mapping of one file ---- */

struct client {
	/* Constant. */
	struct rig *rig;
	struct kfile *kf;
	struct mapping *mapping;
	unsigned device, prot;
	uint64_t n_chunks, room; /* of the mapping; that `chunk` has */
	struct rig_detect *detect; /* NULL: it does not look for changes */
	SLIST_ENTRY(client) link;

	unsigned spans_allowed; /* set by a test; 0: any number */
	atomic_uint spans;	/* those that the cache has asked for, see cache_host.spans */
	bool kept; /* set by a test before client_end(): was disconnected, and lives */
	bool hoards; /* set by a test: does not unmap what it is asked for, and is disconnected for that */
	unsigned second; /* set by a test to 1: its process is the second one */
	atomic_bool alive;
	atomic_uint granted, revoked; /* chunks */
	atomic_uint messages, descriptors; /* by which it was granted some */
	pthread_mutex_t lock;
	/* lock. */
	unsigned char **chunk; /* where it maps the file's chunks; NULL: it does not */
};

/* Maps [0, length) of the file. */
struct client *client_create(struct kfile *kf, unsigned device, unsigned prot, uint64_t length);
/* The client is killed: its memory is unmapped at once; client_end() tells the cache. */
void client_die(struct client *cl);
/* cache_unmap(). Frees it. */
void client_end(struct client *cl);

/* Like libgaiaclient: pushes what CPUs wrote first. */
int client_acquire(struct client *cl, uint64_t off, uint64_t len, unsigned prot);
int client_release(struct client *cl, uint64_t off, uint64_t len);
/* The part of client_acquire() that concerns the kernel. */
void client_push(struct client *cl, uint64_t off, uint64_t len);
/* Where byte @off of the file is in device memory, or NULL. */
unsigned char *client_at(struct client *cl, uint64_t off);
void client_load(struct client *cl, void *buf, size_t len, uint64_t off);
void client_store(struct client *cl, const void *buf, size_t len, uint64_t off);

#define GAIA_PROT_RW (GAIA_PROT_READ | GAIA_PROT_WRITE)

#endif
