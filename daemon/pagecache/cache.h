/*
 * cache.h - the page cache over host memory, devices and a store.
 *
 * The one interface by which fuse/, control/ and tests use the cache. It knows
 * nothing of FUSE and of sockets: what it needs from them is in struct cache_host.
 *
 * Life: cache_create(); a cfile for each file with cached contents, by cfile_get()
 * and cfile_put(); mappings of files into clients of devices, by cache_map() and cache_unmap();
 * cache_sync_all(); cache_destroy(), when no cfile and mapping is held.
 *
 * Threads: everything is thread-safe. Which calls may wait for what matters
 * (the rules are numbered in daemon/README.md):
 *  [F] may be called from threads that serve FUSE requests: waits for storage, for device
 *	copies and for other calls marked [F], never for the kernel nor for a client.
 *  [W] may also wait for the kernel (invalidation) or a client (revocation): from worker threads only.
 *
 * Errors are negative errno.
 */
#ifndef GAIA_PAGECACHE_CACHE_H
#define GAIA_PAGECACHE_CACHE_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "device/device.h"
#include "gaia/protocol.h"
#include "store/store.h"

struct cache;
struct cfile;
struct chunk;
struct mapping;

/* A chunk that is to be taken back from the client of a mapping, and what came of it. */
struct cache_revoke {
	void *client;
	uint64_t map, idx;
	int err; /* out: 0, or -ENOTCONN, see cache_host.revoke */
};

/* What the cache asks of its surroundings. All are called without locks held. */
struct cache_host {
	/*
	 * Drop what the kernel caches of the file's bytes [off, off + len), writing back
	 * what is dirty of it, and return when that is complete. Called on worker threads only.
	 */
	void (*invalidate)(void *arg, void *cookie, off_t off, off_t len);

	/*
	 * Hand chunks to the client of a mapping (its file's chunks idx[0..n)), to be mapped
	 * by descriptors fd[i], which are the callee's to close, also on error. *@seq: the message that the client must have
	 * handled before; rises, from 1 on. No chunk that the client maps is handed to it again. @n is at most
	 * GAIA_MSG_CHUNKS; all or none. -ENOTCONN: the client is gone. Another error: it says that it cannot map them. Nothing is
	 * acquired then, and they are handed over again when needed; but as it may lie they are taken back as if it had mapped them. [W]
	 */
	int (*grant)(void *client, uint64_t map, unsigned prot, const uint64_t *idx, const int *fd,
		     unsigned n, uint64_t *seq);

	/*
	 * Take a chunk back: returns 0 when the client has unmapped it. -ENOTCONN: the client is
	 * gone, or did not answer and has been disconnected. [W]
	 */
	int (*revoke)(void *client, uint64_t map, uint64_t idx);
	/* The same of several, of any chunks, asked all at once: those that do not answer cost one timeout together. [W] */
	void (*revoke_many)(struct cache_revoke *list, unsigned n);

	/*
	 * Whether the client's lease still stands. When not, its mappings are
	 * as good as unmapped and the cache drops its writes at once, without waiting for
	 * cache_unmap(). Quick, never blocks.
	 */
	bool (*alive)(void *client);

	/*
	 * Optional (NULL: any number). What a client's mappings hold are spans of pages, which take memory: before a
	 * mapping has more than a few dozen, it asks for another few dozen (@more), and gives them back later. A negative errno:
	 * there are no more; then nothing is acquired. Quick, called with locks held.
	 */
	int (*spans)(void *client, bool more);
};

struct cache_config {
	uint64_t home_bytes;		/* budget of home memory, bytes; at least CACHE_HOME_MIN */
	struct device **devices;	/* the cache owns them from cache_create()'s success on */
	unsigned n_devices;
	uint64_t writeback_age_ms;	/* dirty pages older than this are stored; 0: 5000 */
	uint64_t device_age_ms;		/* what devices released longer ago is fetched and stored; 0: writeback_age_ms */
	unsigned device_percent;	/* of each device, that one user may have pinned; 0: CACHE_DEVICE_PERCENT */
	uint64_t *unstored;		/* NULL, or where to say how many bytes the store lacks: atomically, see gaia_end */
	const struct cache_host *host;
	void *host_arg;			/* cache_host.invalidate's first argument */
};

#define CACHE_HOME_MIN (8ull << 20)
#define CACHE_HOME_MAX (4ull << 40) /* numbers of frames have 32 bits, and twins and dirty pages may take as much again */
#define CACHE_DEVICE_PERCENT 75u
#define CACHE_MAX_DEVICES 254u /* an owner fits a byte */
#define CACHE_MAX_MAPPINGS 65535u /* of one file: all may hold a page for writing, see page_replica */

/* -EINVAL, -ENOMEM. Starts the writeback thread. */
int cache_create(const struct cache_config *config, struct cache **out);
/*
 * Before there is any file. Modification times are kept above: writing does not change the store's but by
 * cache_set_times(). Else, as at first, a write's is when it came.
 */
void cache_set_times_above(struct cache *c, bool above);
/*
 * [W] Fetch everything released, store everything dirty, sync the files. 0 or the first error. @unstored: NULL, or an array, to which
 * the files are added that failed: {"path", "bytes" (that the store lacks now; 0 where only a sync has failed), "error", "lost" (all of
 * them went with a device: trying again is of no use)}.
 */
int cache_sync_all(struct cache *c, json_t *unstored);
/* Bytes that the store lacks: dirty at home; and released on devices, and nowhere else. */
void cache_unstored(struct cache *c, uint64_t *home, uint64_t *devices);
void cache_destroy(struct cache *c);

/*
 * A file with cached contents. The cache keeps one while it is held, and beyond that while
 * it has anything cached; key is the caller's name of the file (unique while the
 * cfile exists), cookie its word for it in cache_host.invalidate.
 *
 * cfile_get() finds or makes it, and holds it. @open gives the cache a store_file (which it then owns)
 * when one is needed; it is called without locks and may fail. @size is asked, without locks, once the cfile was made: what a
 * former cfile of the key had of the file has been stored by then. @release is called when the cfile ends, on any thread.
 *
 * The caller's reference that keeps @cookie alive passes to the cache: @release gives it back when the cfile ends, or, where
 * the cfile existed and has one already, or cfile_get() fails, at once (before cfile_get() returns, without locks).
 * Of one key one cfile_get() at a time.
 */
struct cfile_source {
	/* Open the contents; @write: for writing too, if that is possible at all. */
	int (*open)(void *cookie, bool write, struct store_file **out);
	int (*size)(void *cookie, uint64_t *bytes);
	void (*release)(void *cookie);
	/* Optional. The file's path, for people, NUL-terminated: false if it has none. Any thread, without locks. */
	bool (*name)(void *cookie, char *buf, size_t size);
	bool passthrough; /* a new cfile is a passthrough file */
};
int cfile_get(struct cache *c, uint64_t key, const struct cfile_source *src, void *cookie,
	      struct cfile **out);
/* [F] The last put of a file whose last name is gone (see cfile_set_gone) drops its data. */
void cfile_put(struct cfile *f);
void cfile_hold(struct cfile *f);

/*
 * [F] Nobody knows the file any more (the kernel forgot the inode): drop what is cached of it as soon as
 * nothing holds it and nothing is left to store. Undone by the next cfile_get() of the key.
 */
void cache_forget(struct cache *c, uint64_t key);

/* The file has no name left: when it is no longer held nothing needs to be stored. */
void cfile_set_gone(struct cfile *f, bool gone);

/*
 * CPU programs have a passthrough file open past the cache: they read, write and map the store's file itself
 * (FOPEN_PASSTHROUGH), and the kernel neither asks nor tells us anything of its contents. Devices share it all the same, by
 * the contract, at a price: an acquire compares the range with the store's, and a release stores what has changed.
 *
 * cfile_leave_passthrough() [F]: nobody has the store's file open any more; from now on the file is cached, for as
 * long as the cfile exists. 0 also where it was cached already; on error (of the store) it is as before.
 *
 * cfile_cpu_writes(): a CPU program may change the store's file from now on, as is assumed at first;
 * cfile_cpu_may_write(): that is the last word. cfile_cpu_stops():
 * none can any more; the caller sees to it that none gets in between. Not 0 if that is news; then cfile_cpu_stopped() [F]
 * is due, with what it returned, and no lock of the caller's held: it takes over what they have changed, and acquires compare nothing
 * until somebody writes again. Its errors are the store's; acquires go on comparing then.
 */
bool cfile_is_passthrough(struct cfile *f);
int cfile_leave_passthrough(struct cfile *f);
void cfile_cpu_writes(struct cfile *f);
bool cfile_cpu_may_write(struct cfile *f);
uint64_t cfile_cpu_stops(struct cfile *f);
int cfile_cpu_stopped(struct cfile *f, uint64_t stopped);

/* Bytes: the store's size, or more while dirty pages reach further. */
uint64_t cfile_size(struct cfile *f);

/* Mend the store's view of a file for what is still only in the cache: size, blocks, mtime. */
void cfile_fix_stat(struct cfile *f, struct stat *st);

/* [F] Pages whose bytes are stable until cache_read_end(); iov refers to cache memory. */
#define CACHE_READ_IOV 260
struct cache_read {
	struct iovec iov[CACHE_READ_IOV];
	int n_iov;
	size_t bytes;	/* may be less than asked at the end of the file */
	/* the cache's own */
	struct cfile *file;
	off_t off;
	bool kernel;
	struct chunk *chunk[2]; /* as many as CACHE_READ_MAX bytes may lie in */
};
#define CACHE_READ_MAX (1u << 20)

/*
 * @kernel: the reply fills the kernel's page cache, and home need not keep the pages (false: O_DIRECT, or a reader
 * inside the daemon). At most CACHE_READ_MAX bytes. On 0, end with cache_read_end(), after the kernel was given the bytes.
 */
int cache_read_begin(struct cfile *f, off_t off, size_t len, bool kernel, struct cache_read *rd);
void cache_read_end(struct cache_read *rd);
/*
 * Whether a read would find all at home now. LOCKED: but for pages, or the file, that somebody else works on, usually
 * for a moment. Waits for nothing itself. What it says may be wrong as soon as it is said.
 */
enum cache_has { CACHE_HAS_NOT, CACHE_HAS_LOCKED, CACHE_HAS_ALL };
enum cache_has cache_has(struct cfile *f, off_t off, size_t len);
/* The same as cache_read_begin() into a buffer, of any length: bytes read or a negative errno. */
ssize_t cache_read(struct cfile *f, void *buf, size_t len, off_t off);

enum cache_write_kind {
	CACHE_WRITE_EXACT,	/* exactly these bytes were written, past the kernel's cache (O_DIRECT, copies) */
	CACHE_WRITE_THROUGH,	/* exactly these bytes, and the kernel's cached copy has them too */
	CACHE_WRITE_PAGES,	/* whole pages of the kernel's cache, cut at the end of the file */
};
/* [F] All or an error. */
int cache_write(struct cfile *f, const void *buf, size_t len, off_t off, enum cache_write_kind kind);
/* [F] Set the size, as ftruncate(2). */
int cache_truncate(struct cfile *f, uint64_t size);
/* [F] As fallocate(2). */
int cache_allocate(struct cfile *f, int mode, off_t off, off_t len);
/* [F] SEEK_DATA, SEEK_HOLE. */
off_t cache_seek(struct cfile *f, off_t off, int whence);
/* [F] As copy_file_range(2); the files may be the same one. */
ssize_t cache_copy_range(struct cfile *from, off_t from_off, struct cfile *to, off_t to_off,
			 size_t len);

/* [F] Store what is dirty at home, without fetching from devices and without syncing; with fetching. */
int cache_flush(struct cfile *f);
int cache_flush_released(struct cfile *f);
/*
 * [F] Store what is dirty and call @set, which sets the file's times below. Nothing that was written before
 * changes them later. What cannot be stored is kept; its error is remembered for who asks.
 */
int cache_set_times(struct cfile *f, int (*set)(void *arg), void *arg);
/* [F] cache_flush of a range, and what devices have released in it, and sync. */
int cache_fsync(struct cfile *f, off_t off, off_t len, bool data_only);

/*
 * Errors of writeback that nobody waited for. Each cursor (one an open file description)
 * sees an error once: start it with cfile_error_now(), ask with cfile_error_check().
 */
uint64_t cfile_error_now(struct cfile *f);
int cfile_error_check(struct cfile *f, uint64_t *cursor);

/* ---- devices ---- */

/* Whose mapping it is. The owners of the mount have no limit but what there is. */
struct cache_user {
	uid_t uid;
	bool owner;
	bool alone; /* what only reads shares with nobody, not even others of this uid */
};

/*
 * Holds f. prot: GAIA_PROT_*. @may_write: the client may write the file, whatever prot says. One that may not
 * shares, where the device cannot keep it from writing, memory with the same user's mappings of this file that may not
 * either. It is only filled: nothing is read from it, and it goes with the last of these mappings. -ENODEV; -EMFILE: of
 * one file there are CACHE_MAX_MAPPINGS.
 */
int cache_map(struct cfile *f, unsigned device, void *client, struct cache_user user, uint64_t map_id, unsigned prot,
	      bool may_write, uint64_t off, uint64_t len, struct mapping **out);
/* What is known of the memory that the client of a mapping was given, when the mapping ends. */
enum cache_left {
	CACHE_UNMAPPED, /* the client has said that it unmapped it */
	CACHE_ENDED,	/* the client's process has ended; its children may have it (device.inherited) */
	CACHE_KEPT,	/* the client may have it, though it is not connected any more */
};
/*
 * [W] Drops what was not released. Where somebody may have memory of the mapping still, and go on storing there,
 * nothing of that becomes the file's from here on: what the device has of the file is copied to other memory, on the device, and
 * all who map the old one are asked to unmap it. While others hold pages of a chunk it stays theirs: what they release is
 * brought home at once, what nobody holds counts as absent, and the memory goes when it is acquired next and nobody holds any.
 */
void cache_unmap(struct mapping *m, enum cache_left left);

/* [W] prot: also GAIA_PROT_PIN and GAIA_PROT_PINNED. @seq: of cache_host.grant, the last one by which the client
 * maps some of these chunks, now or from before; 0: none. All or nothing. -ENOMEM: no room on the device, or the user has
 * pinned what one may; or, to write a file that CPU programs have open past the cache, no room in home for what is kept.
 *
 * @verdict: the caller's, who may give the acquire up while it is under way; NULL: he does not. Who changes it from
 * CACHE_OPEN decides, and the other keeps to it: cache_acquire() makes it CACHE_DONE before the range counts as acquired, or finds
 * it CACHE_GIVEN_UP, takes back what it has done, and returns -EINTR. It may stay open where nothing was to be acquired, or
 * on an error.
 */
enum { CACHE_OPEN, CACHE_DONE, CACHE_GIVEN_UP };
static inline bool cache_decide(atomic_uint *verdict, unsigned as)
{
	unsigned open = CACHE_OPEN;

	return !verdict || atomic_compare_exchange_strong(verdict, &open, as) || open == as;
}
int cache_acquire(struct mapping *m, uint64_t off, uint64_t len, unsigned prot, uint64_t *seq,
		  atomic_uint *verdict);
/* [W] *@changed (or NULL): something was published, also where the release failed; the file's times have moved. */
int cache_release(struct mapping *m, uint64_t off, uint64_t len, bool *changed);
int cache_advise(struct mapping *m, uint64_t off, uint64_t len, unsigned advice);

/* [W] Drop a memory's copy of a range as pressure would. from: GAIA_FROM_HOME or a device. -EBUSY. */
int cache_evict(struct cfile *f, unsigned from, uint64_t off, uint64_t len);

/* ---- looking at it ---- */

struct cache_device_use {
	const struct device *dev;
	uint64_t used;	/* bytes */
	uint64_t pinned;/* bytes */
	uint64_t each_user; /* bytes that one user may have pinned */
};
unsigned cache_devices(struct cache *c);
void cache_device(struct cache *c, unsigned i, struct cache_device_use *out);

/* For people and tests; new references. */
json_t *cache_status_json(struct cache *c);
json_t *cfile_residency_json(struct cfile *f);

/* Walks every list, table and counter; a lie is a bug(). Only while nothing else runs; waits for the flusher. */
void cache_check(struct cache *c);

#endif
