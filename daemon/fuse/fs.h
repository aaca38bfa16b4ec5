/*
 * fs.h - the mounted file system: FUSE requests to calls of the cache and of the backing directory.
 *
 * The namespace (names, modes, times, attributes) is passed through to the source directory; the
 * contents of regular files go through the page cache. Requests are served by threads
 * of its own; ioctls, which may wait for clients and for the kernel, by pools of workers.
 *
 * Use, from one thread unless it says otherwise:
 *	fs_create()		checks source and mountpoint
 *	fs_start()		mounts, and answers requests until the mount ends or fs_stop()
 *	fs_unmount()		takes it down: nothing written is only in the kernel's cache (nor after fs_push())
 *	fs_quiesce()		no ioctl runs any more
 *	fs_stop()		no request runs any more, all files are closed
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
		FS_AUTO,	 /* files that no device maps are the kernel's; others as FS_WRITETHROUGH. Where that cannot be: */
		FS_WRITEBACK,	 /* the kernel gathers writes */
		FS_WRITETHROUGH, /* it hands each on at once */
	} cpu_cache;
	struct quota *quota;	/* who may have how many directories open; the caller's, to be destroyed after fs */
	bool supervised;	/* a second process ends the connection when this one dies; */
	bool unmounts_dead;	/* and takes the mount away: else it stays, and answers ENOTCONN */
	bool background;	/* nothing is left to be said on standard error once the mount is live */

	/* The mount is live; the mount has ended by itself. Called on threads of fs. */
	void (*ready)(void *arg);
	void (*ended)(void *arg);
	void *arg;
};

/* Logs its failures, in one line. */
int fs_create(const struct fs_config *config, struct fs **out);

/* The version of libfuse, and what it lacks, as text. */
const char *fs_libfuse(void);

/* Which it is: "auto", "writeback" or "writethrough". Once it is ready. */
const char *fs_cpu_cache(const struct fs *fs);
/* Why it is not "auto" though it was to be; NULL: it is, or was not to be. */
const char *fs_not_auto(const struct fs *fs);

/* Absolute. */
const char *fs_source(const struct fs *fs);
const char *fs_mountpoint(const struct fs *fs);

/* What cache_create() needs of fs; its host_arg is the fs. */
const struct cache_host *fs_cache_host(void);

/* Logs its failures. */
int fs_start(struct fs *fs, struct cache *cache, struct store *store, struct control *control);

/*
 * What the kernel caches reaches the cache, as far as it is mounted. Requests must be served meanwhile. Not on the thread that
 * runs the control sockets' loop.
 */
void fs_push(struct fs *fs);

/* The same, and take the mount away, lazily if it is busy. 0 or an error; logs it. */
int fs_unmount(struct fs *fs);

/* New ioctls fail with ENOTCONN; returns when none runs. Not on the loop's thread either. */
void fs_quiesce(struct fs *fs);

void fs_stop(struct fs *fs);

/* The cache is destroyed before. */
void fs_destroy(struct fs *fs);

#endif
