/*
 * cache.h - the page cache over host memory, devices and a store.
 *
 * fuse/, control/ and tests use the cache through this interface only. The cache knows
 * nothing of FUSE and of sockets: what it needs from them is in struct cache_host.
 *
 * Life: cache_create(); a cfile for each file with cached contents, by cfile_get()
 * and cfile_put(); mappings of files into clients of devices, by cache_map() and cache_unmap();
 * cache_sync_all(); cache_destroy(), when no cfile and mapping is held.
 *
 * Threads: everything is thread-safe. What a call may wait for is marked
 * (the rules are numbered in daemon/README.md):
 *  [F] may be called from threads that serve FUSE requests: waits for storage, for device
 *	copies and for other calls marked [F], never for the kernel or for a client.
 *  [W] may also wait for the kernel (invalidation) or a client (revocation): for worker threads only.
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

#include "base/uses.h"
#include "device/device.h"
#include "gaia/protocol.h"
#include "store/store.h"

struct cache;
struct cfile;
struct chunk;
struct handover;
struct mapping;

/* A chunk that is to be taken back from the client of a mapping, and the result. */
struct cache_revoke {
	void *client;
	uint64_t map, idx;
	int err; /* out: 0, or -ENOTCONN, see cache_host.revoke; -EINPROGRESS: see cache_host.revoke_soon */
};
struct revoking;

/* Names a process, for good: no other has the same, not even when this one has ended. */
struct cache_process {
	uint64_t id, started;
};

/* Functions that the cache needs from its surroundings. All but alive() and spans() are called without locks held. */
struct cache_host {
	/*
	 * Drop what the kernel caches of the file's bytes [off, off + len), writing back
	 * what is dirty of it, and return when that is complete. Called on worker threads only.
	 */
	void (*invalidate)(void *arg, void *cookie, off_t off, off_t len);

	/*
	 * Hand chunks of a mapping's file (idx[0..n)) to its client, to be mapped
	 * by descriptors fd[i], which the callee closes, also on error. Each is of chunks[i] chunks from idx[i] on: 1, or, if the mapping's client
	 * takes them (cache_user.extents), GAIA_EXTENT_CHUNKS, with an index that is a multiple of that; @chunks NULL: 1. *@seq: the message that the client must have
	 * handled before it uses them; rises, from 1 on. A chunk that the client maps is not handed to it again. @n is at most
	 * GAIA_MSG_CHUNKS; all or none. *@answer: the client's answer, for granted(); NULL: it does not answer. -ENOTCONN: the client is
	 * gone. [W]
	 */
	int (*grant)(void *client, uint64_t map, unsigned prot, const uint64_t *idx, const int *fd,
		     const unsigned *chunks, unsigned n, uint64_t *seq, struct handover **answer);

	/*
	 * Wait for the client's answer to a grant(), and free @answer. 0: it maps the chunks; or it has not answered for long. -ENOTCONN: it
	 * is gone. Another error: it says that it cannot map them. Then
	 * nothing is acquired, and they are handed over again when needed; but as the client may lie they are taken back as if it had
	 * mapped them. [W]
	 */
	int (*granted)(struct handover *answer);

	/*
	 * Take a chunk back: returns 0 when the client has unmapped it. -ENOTCONN: the client is
	 * gone, or did not answer and has been disconnected. [W]
	 */
	int (*revoke)(void *client, uint64_t map, uint64_t idx);
	/* The same for several chunks, which are asked for at once: clients that do not answer cost one timeout together. [W] */
	void (*revoke_many)(struct cache_revoke *list, unsigned n);
	/*
	 * The same, but return at @end (now_ns()). NULL: all is over by then. Otherwise those of which it is not have the error
	 * -EINPROGRESS, and @list stays until revoke_more(), which goes on waiting, on any thread, has returned NULL. [W]
	 */
	struct revoking *(*revoke_soon)(struct cache_revoke *list, unsigned n, uint64_t end);
	struct revoking *(*revoke_more)(struct revoking *revoking, uint64_t end);

	/*
	 * Whether the client's lease still stands. If not, its mappings are
	 * as good as unmapped and the cache drops its writes at once, without waiting for
	 * cache_unmap(). Quick, never blocks, called with locks held.
	 */
	bool (*alive)(void *client);

	/*
	 * Optional. The process of a client that did not unmap a chunk, of which it can be asked beyond the client's end whether it
	 * lives. False: it has ended, or cannot be seen; *@out is left alone. [W]
	 */
	bool (*process)(void *client, struct cache_process *out);
	bool (*process_lives)(const struct cache_process *process);

	/*
	 * Optional (NULL: any number). What a client's mappings hold are spans of pages, which take memory: before a
	 * mapping has more than a few dozen, it asks for so many blocks of a few dozen more, and gives them back later (@blocks < 0).
	 * A negative errno: there are not so many; none was taken, and nothing is acquired. Quick, called with locks held.
	 */
	int (*spans)(void *client, int blocks);
};

/* Equal pages of home in one frame (dedup.h). Beside them only pages that are written have frames of their own. */
enum cache_dedup {
	CACHE_DEDUP_OFF,
	CACHE_DEDUP_HOME,      /* pages of files of one owner */
	CACHE_DEDUP_ALL_USERS, /* pages of any files: by the time that a read takes users can tell that others have read the same bytes */
};

struct cache_config {
	uint64_t home_bytes;		/* budget of home memory, bytes; at least CACHE_HOME_MIN */
	uint64_t home_most;		/* what cache_set_home() may make of it; 0: home_bytes */
	struct device **devices;	/* the cache owns them once cache_create() has succeeded */
	unsigned n_devices;
	/*
	 * NULL, or for each device: how many bytes of its memory may have pages that left home (victim.h), as long as no
	 * replica needs them; CACHE_DEVICE_AUTO: nearly all that is free.
	 */
	const uint64_t *device_cache;
	struct device *local;		/* the host as a device, GAIA_HOST; as these. NULL: there is none */
	uint64_t local_bytes;		/* its budget, a part of home_bytes; 0: its capacity */
	enum cache_dedup dedup;
	uint64_t writeback_age_ms;	/* dirty pages older than this are stored; 0: 5000 */
	uint64_t device_age_ms;		/* releases older than this are fetched and stored; 0: writeback_age_ms */
	unsigned device_percent;	/* of each device: how much one user may have pinned; 0: CACHE_DEVICE_PERCENT */
	unsigned files_percent;		/* of each device: how much files may have that are pinned to it (cache_pin()) */
	unsigned files_user_percent;	/* the same of one user who is no owner of the mount; 0: users pin none */
	uint64_t *unstored;		/* NULL, or where the cache writes, atomically, how many bytes the store lacks; see gaia_end */
	const struct cache_host *host;
	void *host_arg;			/* cache_host.invalidate's first argument */
};

#define CACHE_HOME_MIN (8ull << 20)
#define CACHE_HOME_MAX (4ull << 40) /* numbers of frames have 31 bits, and twins and dirty pages may take as much again */
#define CACHE_DEVICE_PERCENT 75u
#define CACHE_DEVICE_AUTO UINT64_MAX
#define CACHE_MAX_DEVICES 254u /* without the host */
#define CACHE_MAX_REPLICAS (CACHE_MAX_DEVICES + 2) /* of a chunk: with the host, and its view. The owners, all devices, fit a byte */
#define CACHE_MAX_MAPPINGS 65535u /* of one file: all may hold a page for writing, see more_writers */

/* -EINVAL, -ENOMEM. Starts the writeback thread. */
int cache_create(const struct cache_config *config, struct cache **out);
/*
 * Call it before there is any file. If @above, the kernel keeps modification times: only cache_set_times() changes the
 * store's. Otherwise (the default) a write sets the modification time to the time of its arrival.
 */
void cache_set_times_above(struct cache *c, bool above);

/*
 * Settings, while anything runs (settings.c). None waits for anything.
 *
 * Ages are those of cache_config, and 0 means the same.
 */
void cache_set_ages(struct cache *c, uint64_t writeback_age_ms, uint64_t device_age_ms);
/* As in cache_config. What is pinned stays, though it may be more than would be allowed now. */
void cache_set_shares(struct cache *c, unsigned device_percent, unsigned files_percent, unsigned files_user_percent);
/*
 * Home's budget, and (@local_bytes, a part of it) the capacity of the host as a device. -ERANGE: less than CACHE_HOME_MIN or more than
 * cache_config.home_most; nothing has changed. What is beyond a smaller budget leaves in the background: until it has, and what cannot be stored
 * has not, home has more. *@beyond: how much that is just now, bytes.
 */
int cache_set_home(struct cache *c, uint64_t home_bytes, uint64_t local_bytes, uint64_t *beyond);
/*
 * The same for a device, by its number: -ERANGE: less than a chunk, or more than the device was made with. What programs hold, and files that are
 * pinned to it, stays until it is given up.
 */
int cache_set_device(struct cache *c, unsigned device, uint64_t bytes, uint64_t *beyond);
/*
 * One more device, which the cache then owns: the number that cache_devices() was before. It has all of its memory. -ENOSPC: there are
 * CACHE_MAX_DEVICES; -EBUSY: another device has hung: then it is still the caller's. One call of this and the ones above at a time.
 */
int cache_add_device(struct cache *c, struct device *device);
/*
 * Take a device away: from now on nothing can be mapped, acquired, pinned or parked there, -ENODEV, and what is idle leaves in the background: what was
 * released there is fetched first. What programs hold stays until they release it. *@left: how much there is, bytes; cache_device() says when it is
 * nothing. Undone by cache_set_device(). -EBUSY, and nothing has changed: owners of the mount have pinned files to it that still have names. Other pins
 * keep their memory there until cache_device_unpin() ends them, if the device is off, which is not undone.
 */
int cache_device_off(struct cache *c, unsigned device, uint64_t *left);
void cache_device_unpin(struct cache *c, unsigned device);
/*
 * [W] Fetch everything that is released, store everything that is dirty, sync the files. 0 or the first error. @unstored: NULL, or
 * an array to which the files that failed are added: {"path", "bytes" (that the store lacks now; 0 if only a sync has failed),
 * "error", "lost" (all of these bytes went with a device: trying again is of no use)}.
 */
int cache_sync_all(struct cache *c, json_t *unstored);
/* Bytes that the store lacks: those dirty at home, and those that are released on devices and nowhere else. */
void cache_unstored(struct cache *c, uint64_t *home, uint64_t *devices);
void cache_destroy(struct cache *c);

/*
 * A file with cached contents. The cache keeps one while it is held, and beyond that while
 * it has anything cached. key is the caller's name of the file (unique while the
 * cfile exists), cookie what the cache passes to the caller's functions.
 *
 * cfile_get() finds or makes it, and holds it. @open gives the cache a store_file (which it then owns)
 * when it needs one; it is called without locks and may fail. @size is asked, without locks, after the cfile was made: by then
 * everything that an earlier cfile of the key had has been stored. @release is called when the cfile ends, on any thread.
 *
 * The caller's reference that keeps @cookie alive passes to the cache. @release gives it back when the cfile ends. If
 * the cfile existed and has one already, or if cfile_get() fails, that happens at once (before cfile_get() returns, without locks).
 * There must be only one cfile_get() of a key at a time.
 */
struct cfile_source {
	/* Open the contents; @write: for writing too, if that is possible at all. */
	int (*open)(void *cookie, bool write, struct store_file **out);
	int (*size)(void *cookie, uint64_t *bytes);
	void (*release)(void *cookie);
	/* Optional. The file's path, for messages, NUL-terminated: false if it has none. Any thread, without locks. */
	bool (*name)(void *cookie, char *buf, size_t size);
	bool passthrough; /* a new cfile is a passthrough file */
	bool shared;	  /* and others may change it at any time: cfile_cpu_writes() may come after they have */
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

/*
 * [F] A program has opened the file for writing, not past the cache: open the store's file now, for as long as the cache has something of it,
 * not when something is to be stored. Threads that store in others' stead (the flusher, or one that needs memory) would wait there
 * for a lease that some program has taken on it meanwhile (fcntl(2)). With the file open for writing nobody gets one. Errors come when something is
 * stored.
 */
void cfile_will_be_written(struct cfile *f);

/* A name for messages: control characters, as terminals may take them for, are written in octal; cut off at the end. Returns @buf. */
#define CFILE_NAME_MAX 4096u
const char *cache_safe_name(const char *raw, char buf[CFILE_NAME_MAX]);

/* Whether some of it is dirty, or released by a device and not fetched yet. */
bool cfile_has_unstored(struct cfile *f);

/* The file has no name left: when it is no longer held nothing needs to be stored. */
void cfile_set_gone(struct cfile *f, bool gone);

/*
 * CPU programs have a passthrough file open past the cache: they read, write and map the store's file itself
 * (FOPEN_PASSTHROUGH), and the kernel neither asks nor tells us anything about its contents. Devices still share it, by
 * the contract, at a price: an acquire compares the range with the store's, and a release stores what has changed.
 *
 * cfile_leave_passthrough() [F]: nobody has the store's file open any more; from now on the file is cached, for as
 * long as the cfile exists. 0 also if it was cached already; on error (of the store) nothing has changed.
 *
 * cfile_cpu_writes(): from now on a CPU program may change the store's file (the default).
 * cfile_cpu_may_write(): whether a CPU program may.
 * cfile_cpu_stops(): no CPU program can change it any more; the caller makes sure that none begins meanwhile. If the result is
 * not 0 this is news: then call cfile_cpu_stopped() [F] with it, holding no lock. That takes over what they have changed, and
 * acquires compare nothing until somebody writes again. Its errors are the store's; then acquires go on comparing.
 * cfile_compares(): whether acquires do.
 */
bool cfile_is_passthrough(struct cfile *f);
int cfile_leave_passthrough(struct cfile *f);
void cfile_cpu_writes(struct cfile *f);
bool cfile_cpu_may_write(struct cfile *f);
uint64_t cfile_cpu_stops(struct cfile *f);
int cfile_cpu_stopped(struct cfile *f, uint64_t stopped);
bool cfile_compares(struct cfile *f);

/* Size in bytes. Larger than the store's while dirty pages extend the file. */
uint64_t cfile_size(struct cfile *f);

/* Correct the store's view of a file by what is only in the cache yet: size, blocks, mtime. */
void cfile_fix_stat(struct cfile *f, struct stat *st);

/* [F] Pages whose bytes are stable until cache_read_end(); iov refers to cache memory. */
#define CACHE_READ_IOV 260
struct cache_read {
	struct iovec iov[CACHE_READ_IOV];
	int n_iov;
	size_t bytes;	/* may be less than asked at the end of the file */
	/* for the cache */
	struct cfile *file;
	off_t off;
	bool kernel;
	struct chunk *chunk[2]; /* CACHE_READ_MAX bytes are in at most so many */
};
#define CACHE_READ_MAX (1u << 20)

/*
 * @kernel: the reply fills the kernel's page cache, so home need not keep the pages (false: O_DIRECT, or a reader
 * inside the daemon). At most CACHE_READ_MAX bytes. After 0, call cache_read_end() when the kernel has been given the bytes;
 * the file stays until then, though its last user may have put it when the kernel had them.
 */
int cache_read_begin(struct cfile *f, off_t off, size_t len, bool kernel, struct cache_read *rd);
void cache_read_end(struct cache_read *rd);
/*
 * Whether a read would find everything at home now. LOCKED: except that somebody else works on some of the pages, or on the
 * file, usually for a moment. Waits for nothing itself. The answer may be out of date at once.
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
/* [F] Of a passthrough file: others may have made it shorter below. Then what is cached beyond its end goes, as if it was truncated here. */
int cache_look_for_end(struct cfile *f);
/* [F] As fallocate(2). */
int cache_allocate(struct cfile *f, int mode, off_t off, off_t len);
/* [F] SEEK_DATA, SEEK_HOLE. */
off_t cache_seek(struct cfile *f, off_t off, int whence);
/* [F] As copy_file_range(2); the files may be the same one. */
ssize_t cache_copy_range(struct cfile *from, off_t from_off, struct cfile *to, off_t to_off,
			 size_t len);

/* [F] Store what is dirty at home, without syncing; without fetching from devices, and with fetching. */
int cache_flush(struct cfile *f);
int cache_flush_released(struct cfile *f);
/*
 * [F] Store what is dirty and call @set, which sets the file's times below. Nothing that was written before
 * changes them later. What cannot be stored is kept; its error is remembered for cfile_error_check().
 */
int cache_set_times(struct cfile *f, int (*set)(void *arg), void *arg);
/* Pages are to be invalidated in the kernel that nobody waits for: it lacks something of them. */
bool cache_is_invalidating(struct cache *c);
/* The file belongs to another user by now, or others may write it. Waits for nothing. */
void cache_owner_changed(struct cfile *f);
/* The user may have the file open for writing, until the cfile ends, whatever its mode becomes: see dedup.c. Waits for nothing. */
void cache_opened_to_write(struct cfile *f, uid_t uid);
/* [F] cache_flush of a range, and what devices have released in it, and sync. */
int cache_fsync(struct cfile *f, off_t off, off_t len, bool data_only);
/* [F] The same without the sync. */
int cache_publish(struct cfile *f, off_t off, off_t len);

/*
 * Errors of writeback that nobody waited for. Each cursor (one for each open file description)
 * sees an error once: start it with cfile_error_now(), ask with cfile_error_check().
 */
uint64_t cfile_error_now(struct cfile *f);
int cfile_error_check(struct cfile *f, uint64_t *cursor);

/* ---- devices ---- */

/* The user of a mapping. The owners of the mount are not limited. */
struct cache_user {
	uid_t uid;
	bool owner;
	bool alone; /* mappings that only read share with no other, not even of this uid */
	struct uses *uses; /* of a mapping's client, until cache_unmap() has returned; or NULL */
	bool extents; /* of a mapping: its client takes extents */
};

/*
 * Holds f. @device: a number, or GAIA_HOST: then what the mapping acquires is home's own memory, if it is for reading only (view.h), and
 * else as on any device. prot: GAIA_PROT_*. @may_write: the client may write the file, whatever prot says. If a client may not, and the
 * device cannot keep it from writing, the mapping shares memory only with the same user's mappings of this file that may not
 * write it either. That memory is only filled: nothing is read from it, and it goes with the last of these mappings. -ENODEV;
 * -EMFILE: the file has CACHE_MAX_MAPPINGS already.
 */
int cache_map(struct cfile *f, unsigned device, void *client, struct cache_user user, uint64_t map_id, unsigned prot,
	      bool may_write, uint64_t off, uint64_t len, struct mapping **out);
/*
 * Before the mapping, which is for writing, is used: its client looks itself for what changes in pages that it holds for writing, and tells
 * it by cache_release_told().
 */
void cache_map_detects(struct mapping *m);
/*
 * What the mapping has at the moment is added to @amounts (of CLIENT_AMOUNTS, of which mapped_bytes is the caller's to know). Takes no
 * lock: any thread may call it while the mapping is there.
 */
void cache_mapping_amounts(const struct mapping *m, uint64_t amounts[static CLIENT_AMOUNT_COUNT]);
/* Whether the mapping holds anything, or is about to. As cache_mapping_amounts(). */
bool cache_mapping_holds(const struct mapping *m);
/* What is known, when a mapping ends, of the memory that its client was given. */
enum cache_left {
	CACHE_UNMAPPED, /* the client has said that it unmapped it */
	CACHE_ENDED,	/* the client's process has ended; its children may have the memory (device.inherited) */
	CACHE_KEPT,	/* the client may have it, though it is not connected any more */
};
/*
 * [W] Drops what was not released. If somebody may still have memory of the mapping, and go on storing there,
 * nothing of that becomes the file's from here on: what the device has of the file is copied to other memory, on the device, and
 * all clients that map the old memory are asked to unmap it. While others hold pages of a chunk it stays in use for them: what
 * they release is brought home at once, pages that nobody holds count as absent, and when it is next acquired and nobody holds
 * any page, the memory goes.
 */
void cache_unmap(struct mapping *m, enum cache_left left);
/*
 * The client has unmapped it, and calls on it are under way, so that cache_unmap() comes later: from now on, as if the client were gone, who
 * needs pages that it holds drops what was stored there and not released.
 */
void cache_unmapping(struct mapping *m);

/* [W] prot: also GAIA_PROT_PIN and GAIA_PROT_PINNED. @seq: of cache_host.grant, the last message by which the client
 * maps some of these chunks, now or from before; 0: none. All or nothing. -ENOMEM: no room on the device, or the user has
 * reached the limit of what one may pin; or, to write a file that CPU programs have open past the cache, no room in home for
 * what must be kept.
 *
 * @verdict: lets the caller give the acquire up while it is under way; NULL: the caller does not. Whoever changes it from
 * CACHE_OPEN decides, and the other side keeps to that: either cache_acquire() makes it CACHE_DONE before the range counts as
 * acquired, or it finds CACHE_GIVEN_UP, takes back what it has done, and returns -EINTR. It may stay open if nothing had to be
 * acquired, or on an error.
 */
enum { CACHE_OPEN, CACHE_DONE, CACHE_GIVEN_UP };
static inline bool cache_decide(atomic_uint *verdict, unsigned as)
{
	unsigned open = CACHE_OPEN;

	return !verdict || atomic_compare_exchange_strong(verdict, &open, as) || open == as;
}
int cache_acquire(struct mapping *m, uint64_t off, uint64_t len, unsigned prot, uint64_t *seq,
		  atomic_uint *verdict);
/*
 * [W] The same for @n ranges, which may overlap: a page that k of them touch gets k holds. Sorts them. @prot: without GAIA_PROT_PIN and
 * _PINNED. -EINVAL: one of them, which is not empty, does not lie in the mapping.
 */
int cache_acquirev(struct mapping *m, struct gaia_list_range *range, size_t n, unsigned prot, uint64_t *seq, atomic_uint *verdict);
/* [W] *@changed (or NULL): something was published, even if the release failed; the file's times have moved. */
int cache_release(struct mapping *m, uint64_t off, uint64_t len, bool *changed);
/* [W] The same for @n ranges, which may overlap: a page that k of them touch loses k holds. Sorts them. */
int cache_releasev(struct mapping *m, struct gaia_list_range *range, size_t n, bool *changed);
/*
 * [W] Give back what was acquired and has not been used: as cache_release() and cache_releasev(), except that pages which this mapping or
 * another one goes on holding for writing are not published.
 */
int cache_give_back(struct mapping *m, uint64_t off, uint64_t len, bool *changed);
int cache_give_backv(struct mapping *m, struct gaia_list_range *range, size_t n, bool *changed);
/*
 * [W] As cache_releasev(), or cache_give_backv() (@unused), of a mapping whose client looks for changes itself: it has found them in the @n_told
 * ranges @told, and nowhere else, since it acquired the pages. -EINVAL: these are not all among the @n ranges. Sorts both.
 */
int cache_release_told(struct mapping *m, struct gaia_list_range *range, size_t n, struct gaia_list_range *told, size_t n_told,
		       bool unused, bool *changed);
int cache_advise(struct mapping *m, uint64_t off, uint64_t len, unsigned advice);

/* [W] Drop a memory's copy of a range as pressure would. from: GAIA_FROM_HOME, GAIA_FROM_DEVICE_CACHE a device or GAIA_HOST. -EBUSY. */
int cache_evict(struct cfile *f, unsigned from, uint64_t off, uint64_t len);

/* ---- files that stay on a device; what is brought though nobody acquires it ---- */

/*
 * [W] Pin the file to the device, as long as it is now: its shared replicas are there when the call returns, and stay, whoever maps it, until
 * cache_unpin(), or the file has no name and no user any more. Their contents come by cache_bring(), or by acquires. A user's later call for a
 * longer file extends the pin. *@fresh: the user had none of it there. On error nothing has changed. -ENOSPC: more than files_percent;
 * -EDQUOT: more than files_user_percent; -EPERM: that is 0; -ENOMEM: what is held beside it leaves no room; -ENODEV.
 */
int cache_pin(struct cfile *f, unsigned device, struct cache_user user, bool *fresh);
/* [W] The user's pin ends; if the user is an owner of the mount, everybody's. The contents stay until others need the room. -ENOENT: there is none. */
int cache_unpin(struct cfile *f, unsigned device, struct cache_user user);
/* Bytes of the device that are pinned for the file, by whomever. */
uint64_t cache_pinned(struct cfile *f, unsigned device);
/*
 * [W] Bring a range to the device, as an acquire to read does, and hold nothing. @modest: only beside what is in use, pinned or ready; else
 * -ENOMEM. @verdict: see cache_acquire().
 */
int cache_bring(struct cfile *f, unsigned device, struct cache_user user, uint64_t off, uint64_t len, bool modest, atomic_uint *verdict);
/* [F] Bring a range into home, as far as there are free frames: *@done bytes, also on error. -EOPNOTSUPP: the kernel serves the file itself. */
int cache_bring_home(struct cfile *f, uint64_t off, uint64_t len, uint64_t *done);
/* Bytes that such calls find free, or in no use, on the device or in home (GAIA_FROM_HOME). */
uint64_t cache_room(struct cache *c, unsigned device);

/* ---- looking at it ---- */

struct cache_device_use {
	const struct device *dev;
	uint64_t capacity; /* bytes: the budget */
	uint64_t used;	/* bytes */
	uint64_t pinned;/* bytes */
	uint64_t each_user; /* bytes that one user may have pinned */
	uint64_t files; /* bytes that are pinned for files, and may be: by all, by one user who is no owner */
	uint64_t files_most, files_each_user;
};
/* Without the host. */
unsigned cache_devices(struct cache *c);
/* Whether there is one of this number, which may be GAIA_HOST; and what is used of it. */
bool cache_has_device(struct cache *c, unsigned number);
void cache_device(struct cache *c, unsigned number, struct cache_device_use *out);

/* For reports and tests; new references. */
json_t *cache_status_json(struct cache *c);
/* Which files take the memory: "files", with the most first, and "n_files", how many there are. Looks at each chunk [W]. */
json_t *cache_use_json(struct cache *c);
json_t *cfile_residency_json(struct cfile *f);
/*
 * Where the file's contents are, as @text: "home=BYTES" and "NAME=BYTES" for each device that has memory for some (whole chunks), or (@names) the
 * names of these devices alone; between them blanks. What does not fit is left out. Takes as long as the file has chunks in memory, and changes nothing.
 */
void cfile_where(struct cfile *f, bool names, char *text, size_t size);
/* Bytes that the store lacks: dirty at home, or released and not fetched. */
uint64_t cfile_dirty_bytes(struct cfile *f);
/* Pins of files: of user @uid, or of @all. May wait for storage, where the paths are. */
json_t *cache_pins_json(struct cache *c, uid_t uid, bool all);

/* Walk every list, table and counter; an inconsistency is a bug(). Only while nothing else runs; waits for the flusher. */
void cache_check(struct cache *c);

#endif
