/*
 * control.h - the clients of the mount: their sockets, leases and mappings.
 *
 * The ioctls of include/gaia/protocol.h that concern clients are carried out
 * here; fuse/ioctl.c decodes them and calls from a worker thread [W] (see cache.h). The sockets
 * live on the libuv loop of the main thread. This module also implements the part
 * of struct cache_host that concerns clients.
 *
 * Nothing that comes from a client is trusted: keys are looked up and their secrets compared in
 * constant time, every range is checked, and a mapping is found only through the client that
 * made it and the file on which the ioctl was called.
 */
#ifndef GAIA_CONTROL_CONTROL_H
#define GAIA_CONTROL_CONTROL_H

#include <stdbool.h>
#include <uv.h>

#include "base/quota.h"
#include "gaia/protocol.h"
#include "pagecache/cache.h"

struct control;

/*
 * Start listening on an abstract socket with a random name. @quota, which stays the caller's, limits each user's clients,
 * tickets and mappings. A negative errno; logs nothing.
 */
int control_create(uv_loop_t *loop, struct cache *cache, struct quota *quota, struct control **out);
/* [W] Disconnect all clients, end all mappings, and wait until both are done. On the loop's
 * thread but not inside uv_run(), which it calls; after the last ioctl has been answered. */
void control_destroy(struct control *ctl);

/*
 * What the status report says of the mount itself, beyond the cache: set once, before clients
 * can connect. @mount is merged into the report's top level (reference stolen).
 */
void control_set_mount_info(struct control *ctl, json_t *mount);
/*
 * The descriptor that GAIA_REPORT_END hands out: set once, too. The caller keeps @fd open for longer than @ctl;
 * -1 (the default): none.
 */
void control_set_end(struct control *ctl, int fd);

/*
 * An owner of the mount asks for an upgrade (GAIA_MSG_UPGRADE): @pid runs the new program; @wait_ms: so long clients are waited for. Called on
 * the loop's thread. @answer goes to control_answer_upgrade(), which any thread may call, once. Set once, before clients can connect.
 */
typedef void control_upgrade(void *arg, pid_t pid, unsigned how, uint64_t wait_ms, int answer);
void control_on_upgrade(struct control *ctl, control_upgrade *fn, void *arg);
/* @err: 0 or a negative errno; @text: why. Closes @answer. */
void control_answer_upgrade(int answer, int err, const char *text);
/*
 * Clients that come along when another daemon takes the mount over. They are asked to make ready; some thread looks until nobody is in the way;
 * and then, or when that takes too long, they hear that they stay, or that they have moved. One thread at a time.
 */
struct control_movers {
	unsigned staying; /* clients that have mappings and cannot come along */
	unsigned busy;	  /* that can, but hold something, or have not answered all that they were asked */
	char who[192];	  /* the first few that stay, or, if there are none, that are busy: their processes and users, for a message */
};
/* The next daemon has these GAIA_FEATURE_*: clients that use others cannot come along. Before the calls below. */
void control_move_to(struct control *ctl, uint64_t features);
/* Ask those that have not been asked since they last heard that they stay. */
void control_move_ask(struct control *ctl);
/* If no ioctl is under way, nor begins, what it says remains so, but for answers that come. */
void control_move_look(struct control *ctl, struct control_movers *out);
/* [W] Those that cannot be told within seconds are disconnected. */
void control_move_stay(struct control *ctl);
/* [W] The mount has gone over. Those that are ready, and hold nothing, are told; for the others the connection ends with the daemon. */
void control_moved(struct control *ctl);

/* The user who maps a file. */
struct control_caller {
	uid_t uid;	/* (uid_t)-1: share nothing with other callers of the same uid */
	bool may_write; /* may write the file now, whatever the descriptor allows */
};

/*
 * The ioctls. @f is the file of the descriptor (NULL: not a regular file: -ENODEV if one is
 * needed); @readable and @writable: how the descriptor is open; @uid, @tid: the caller, who waits for the answer (tid 0: not known). 0, and the out fields are set, or a negative
 * errno; -EMFILE and -ENFILE as from quota_take().
 */
int control_connect(struct control *ctl, uid_t uid, pid_t tid, struct gaia_ioc_connect *io);
int control_devices(struct control *ctl, struct gaia_ioc_devices *io);
int control_map(struct control *ctl, struct cfile *f, bool readable, bool writable, struct control_caller caller,
		struct gaia_ioc_map *io);
int control_unmap(struct control *ctl, struct cfile *f, struct gaia_ioc_range *io);
/* @verdict: see cache_acquire(). */
int control_acquire(struct control *ctl, struct cfile *f, bool writable, struct gaia_ioc_range *io,
		    atomic_uint *verdict);
/*
 * Which mappings may be released; others: -EOPNOTSUPP. A release under the inode's lock is not for readers: whoever may only read
 * the file must not be able to keep those from it who may write.
 */
enum releases { RELEASES_READERS = 1, RELEASES_WRITERS = 2, RELEASES_ANY = RELEASES_READERS | RELEASES_WRITERS };
/* *@changed: see cache_release(). */
int control_release(struct control *ctl, struct cfile *f, enum releases may,
		    struct gaia_ioc_range *io, bool *changed);
/* The same for lists of ranges; and the memory that a client puts these in. */
int control_lists(struct control *ctl, struct gaia_ioc_lists *io);
int control_acquirev(struct control *ctl, struct cfile *f, bool writable, struct gaia_ioc_list *io, atomic_uint *verdict);
int control_releasev(struct control *ctl, struct cfile *f, enum releases may, struct gaia_ioc_list *io, bool *changed);
/* With GAIA_SYNC_PUBLISH the store has it afterwards, perhaps not its disk. */
int control_sync(struct control *ctl, struct cfile *f, struct gaia_ioc_range *io);
int control_advise(struct control *ctl, struct cfile *f, struct gaia_ioc_range *io);
/* Only owners of the mount (quota_is_owner()) are told of other users. */
int control_report(struct control *ctl, struct cfile *f, uid_t uid, struct gaia_ioc_report *io);

/*
 * For struct cache_host. @client is the one that control passed to cache_map(); it is valid until
 * cache_unmap() of that mapping has returned.
 */
int control_grant(void *client, uint64_t map, unsigned prot, const uint64_t *idx, const int *fd,
		  const unsigned *chunks, unsigned n, uint64_t *seq, struct handover **answer);
int control_granted(struct handover *answer);
int control_revoke(void *client, uint64_t map, uint64_t idx);
void control_revoke_many(struct cache_revoke *list, unsigned n);
struct revoking *control_revoke_soon(struct cache_revoke *list, unsigned n, uint64_t end);
struct revoking *control_revoke_more(struct revoking *revoking, uint64_t end);
bool control_alive(void *client);
/* [W] */
bool control_process(void *client, struct cache_process *out);
bool control_process_lives(const struct cache_process *process);
int control_spans(void *client, int blocks);

#endif
