/*
 * fs.h - the mounted file system: turns FUSE requests into calls of the cache and of the backing directory.
 *
 * The namespace (names, modes, times, attributes) is passed through to the source directory; the
 * contents of regular files go through the page cache. The file system's own threads serve requests;
 * pools of workers carry out ioctls, which may wait for clients and for the kernel.
 *
 * Use, from one thread unless it says otherwise:
 *	fs_create()		checks source and mountpoint
 *	fs_start()		mounts, and answers requests until the mount ends or fs_stop()
 *	fs_unmount()		unmounts; then, and after fs_push(), the daemon has everything that was written
 *	fs_quiesce()		when it returns no ioctl runs any more
 *	fs_stop()		when it returns no request runs any more, and all files are closed
 *	fs_destroy()
 * Each of the last four may be called in every state that fs_create() leaves.
 */
#ifndef GAIA_FUSE_FS_H
#define GAIA_FUSE_FS_H

#include <stdbool.h>

#include "base/quota.h"
#include "control/control.h"
#include "pagecache/cache.h"
#include "store/store.h"

struct fs;

struct fs_config {
	const char *source;
	const char *mountpoint; /* may be the source itself */
	const char *options;	/* as after -o, comma separated; "" for none */
	enum fs_cpu_cache {
		FS_AUTO,	 /* the kernel serves files that no device maps; others as FS_WRITETHROUGH. Or else FS_WRITEBACK */
		FS_WRITEBACK,	 /* the kernel gathers writes */
		FS_WRITETHROUGH, /* the kernel passes each write on at once */
	} cpu_cache;
	bool trusts_source;	/* whatever file system it is on: other machines do not change it meanwhile, or: */
	bool shared;		/* they do, each by a gaiafs of its own: see fuse/shared.c */
	double names_age_s;	/* then: how long the kernel may believe what it knows of directories */
	struct quota *quota;	/* limits directories and more for each user; the caller's, to be destroyed after fs */
	bool supervised;	/* a second process ends the connection when this one dies */
	bool unmounts_dead;	/* it takes the mount away, too; otherwise the mount stays, and answers ENOTCONN */
	bool background;	/* nothing may be written to standard error once the mount is live */
	int predecessor;	/* -1, or a socket to the daemon that has the mount, and hands it over: see below */

	/* @ready: the mount is live. @ended: it has ended by itself. Called on threads of fs. */
	void (*ready)(void *arg);
	void (*ended)(void *arg);
	/*
	 * For owners of the mount: change options (@words: @length bytes of words "NAME=VALUE", each with its NUL), or (@length is 0) read the
	 * configuration file again. 0 or a negative errno; @said: @size bytes, for lines to whoever asked. Called on workers.
	 */
	int (*set)(void *arg, const char *words, size_t length, char *said, size_t size);
	void *arg;
};

/* Logs its failures, in one line. */
int fs_create(const struct fs_config *config, struct fs **out);

/* The version of libfuse, and what it lacks, as a text. */
const char *fs_libfuse(void);

/* How CPU programs' data is cached: "auto", "writeback" or "writethrough". Only once the mount is ready. */
const char *fs_cpu_cache(const struct fs *fs);
/* Why it is not "auto" though that was asked for; NULL: it is "auto", or that was not asked for. */
const char *fs_not_auto(const struct fs *fs);

/* Absolute. */
const char *fs_source(const struct fs *fs);
const char *fs_mountpoint(const struct fs *fs);

/* What cache_create() needs of fs; its host_arg is the fs. */
const struct cache_host *fs_cache_host(void);

/* Logs its failures. */
int fs_start(struct fs *fs, struct cache *cache, struct store *store, struct control *control);

/* A path of the mount, relative to its root; a directory stands for all files in it. */
struct fs_pin {
	unsigned device;
	const char *path;
};
/*
 * Once the mount is ready: pin these in the background (cache_pin()), and bring their contents, until the mount ends. Logs what comes of each. @pins
 * stay the caller's, until fs_quiesce() has returned.
 */
void fs_pin(struct fs *fs, const struct fs_pin *pins, unsigned n);

/*
 * Have the kernel write back to the cache what it caches of the mount, if there is one. Requests must be served meanwhile. Must
 * not be called on the thread that runs the control sockets' loop.
 */
void fs_push(struct fs *fs);

/* The same, and unmount; lazily, if the mount is busy. 0, or an error, which it logs. */
int fs_unmount(struct fs *fs);

/* New ioctls fail with ENOTCONN; returns when none runs. Must not be called on the loop's thread either. */
void fs_quiesce(struct fs *fs);

void fs_stop(struct fs *fs);

/* The cache must have been destroyed before. */
void fs_destroy(struct fs *fs);

/*
 * ---- handing a mount over to a new process ----
 *
 * The new process, the heir, creates an fs whose config has a predecessor: fs_create() gets the place from it, fs_start() the rest, and
 * fs_create()'s caller starts store, devices and cache between the two, while the old daemon still serves.
 *
 * The old process, with the other end of the socket (SOCK_SEQPACKET, with time limits), calls these in this order. Each returns 0 or a
 * negative errno, after which the mount is as before, and fs_go_on() continues:
 *	fs_offer()	waits for the heir's greeting, sends the place, and waits until the heir has started what it needs. *@features: the
 *			GAIA_FEATURE_* of its clients.
 *			-EPROTONOSUPPORT: the heir's version hands over other things; -EOPNOTSUPP: this mount cannot be handed over; logs why
 *	fs_pause()	stops receiving: no request is under way then, nor an ioctl. -EBUSY: some did not end in time
 *	fs_bequeath()	when everything is stored: sends all that the kernel knows by number; the heir could serve then
 *	fs_commit()	has the heir take it. -EPIPE: the heir has ended and has not. Any other error: kill it, and ask again, by:
 *	fs_has_heir()	whether it took it. -EPIPE: it did not, and never will
 * When the heir has it, the old process ends as always, and leaves the mount alone.
 */
int fs_offer(struct fs *fs, int heir, uint64_t *features);
int fs_pause(struct fs *fs, uint64_t until);
int fs_bequeath(struct fs *fs, int heir);
int fs_commit(struct fs *fs, int heir);
int fs_has_heir(struct fs *fs, int heir);
void fs_go_on(struct fs *fs);

#endif
