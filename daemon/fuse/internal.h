/*
 * internal.h - what the files of fuse/ share. Not for other rooms.
 *
 * Locks, in the order in which they are taken:
 *	handle.lock	(directories: their position)
 *	inode.lock	(how the contents are in use)
 *	fs.lock		(the table of inodes; a leaf)
 * fs.lock is never held across a system call that may wait, a call of the cache or a reply.
 * inode.lock is held across cfile_get() and cfile_put(), which wait for storage only.
 * The callbacks of the cache do not take it, nor do reads, writes and invalidations.
 */
#ifndef GAIA_FUSE_INTERNAL_H
#define GAIA_FUSE_INTERNAL_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <uthash.h>

#include "base/clock.h"
#include "base/id_table.h"
#include "base/latency.h"
#include "base/log.h"
#include "base/parcel.h"
#include "base/thread.h"
#include "base/util.h"
#include "fuse/fs.h"
#include "fuse/libfuse.h"

#define FS_THREADS 12

/* The largest WRITE, and the largest request. */
#define FS_MAX_WRITE (1u << 20)
#define FS_REQUEST_BYTES (FS_MAX_WRITE + 4096)

/* Requests that Debian 12's kernel headers may not have. */
#define OPCODE_TMPFILE 51
#define OPCODE_COPY_FILE_RANGE_64 53

/*
 * How long the kernel may use names and attributes without asking again, seconds. Nothing but the mount changes the
 * tree, so for ever would be right; with a day, a change made in the source itself is seen in the end.
 */
#define FS_TIMEOUT 86400.0

/*
 * Identifies a file. Its inode number alone would not: that may be used again after the file is gone,
 * but not with the same time of birth.
 */
struct inode_key {
	uint64_t dev;
	uint64_t ino;
	int64_t born; /* ns; 0 if the file system does not know it */
};

/* What a file was like when it was looked at: another version of it differs. */
struct look {
	struct timespec mtime, ctime;
	off_t size;
	bool young; /* it may change again, and these stay the same */
};

/*
 * Lives from inode_enter() on while it is referenced: by the kernel (lookups), a handle,
 * the cfile with its contents, its children (for their names). There is one for each file, however
 * many names it has.
 */
struct inode {
	/* Constant. */
	struct fs *fs;
	struct inode_key key; /* but for inode_retire(), with fs->lock */
	uint64_t id; /* never used again: the kernel's nodeid, the cfile's key */
	mode_t type; /* S_IFMT bits */

	/* fs->lock. */
	uint64_t lookups; /* those that the kernel has not forgotten; together one reference */
	unsigned refs;
	unsigned writers;     /* handles that may write */
	unsigned cfiles;      /* cfiles that exist (each one reference): 1, or 2 for a moment */
	bool were_cached;     /* cfiles has been more than 0 */
	struct inode *parent; /* with name: one of its names (referenced); NULL: no name is known */
	char *name;
	int fd;		      /* O_PATH; -1: closed, and can be opened again by parent and name */
	unsigned fd_uses;     /* while this is not 0 fd must not be closed */
	bool removed;	      /* its name was removed, and it counts for the user remover */
	uid_t remover;
	bool on_idle;	      /* on fs->idle: iff fd >= 0, fd_uses == 0 and parent */
	TAILQ_ENTRY(inode) link;
	UT_hash_handle hh;    /* fs->inodes; not the root */

	LIST_HEAD(, backing) backings; /* its open store files */

	/*
	 * Since the cache last had nothing of the contents, a user other than root could write them: the bytes to be
	 * stored may be that user's. Set without a lock; cleared with fs->lock, when there is no cfile.
	 */
	atomic_bool of_users;

	atomic_bool relist; /* a directory: the kernel may keep an old listing, see dir_changed() */

	/*
	 * Descriptors with access to the contents, or -1. Kept while a cfile exists, and only by an
	 * unprivileged daemon, which might not be allowed to open them again (see contents.c). fs->lock.
	 */
	int read_fd, write_fd;

	pthread_mutex_t lock;
	/* lock. */
	struct cfile *cfile; /* held iff users > 0 */
	unsigned users;
	/* See passthrough.c. */
	unsigned passthrough_opens, passthrough_writers;
	int backing_id;	     /* the kernel's name of the file below, while there are such opens */
	bool may_change;     /* mappings may change the file below, which the kernel does not notice */
	bool attr_given;     /* since the kernel was last told that attributes change it was given some for good */
	bool never_passed;   /* the kernel does not pass it through, and never has */
	bool device_asked;   /* whether for_devices is known */
	bool for_devices;    /* a device maps the file, or has mapped it */
	bool device_noted;   /* that is noted in the source */
	bool handed_cached;  /* constant: the daemon before this one had it open, and did not pass it through */
	struct look seen;    /* of a shared source: the kernel's pages below are not older. Never young; */
	struct look taken;   /* and last for devices: what these may have is not older; */
	uint64_t stopping;   /* the number of the acquire after which none compares, while it is under way; shared.c has the lock */
	bool written_here;   /* but may be of a file that somebody on this machine can have written since */
	atomic_uchar times_failed; /* so often, one after the other, the file below has taken no times: see backing.c */
	atomic_uint lost_logged_s;
	atomic_uint_least64_t lost; /* the last store of the file that failed: see lost.c */
	struct lock_owner *lock_owners; /* of a shared source, hash: see shared_locks.c */
};
TAILQ_HEAD(inode_list, inode);

/* An open file or directory. */
struct handle {
	/* Constant. */
	uint64_t id; /* fuse_file_info.fh */
	struct inode *inode;
	int flags;	     /* of open(2), as the caller gave them */
	struct cfile *cfile; /* of files */
	DIR *dir;	     /* of directories */
	uid_t uid;	     /* the user who opened it; open directories count as this user's */
	bool passthrough;    /* set before the kernel hears of the handle */
	int fd;		     /* of files of a shared source, which have no cfile: the file below, as it was opened; */
	struct cfile *for_devices; /* and since this handle was first used for devices, what these have of it. lock */
	atomic_bool locks;   /* of these: locks were taken by way of it */
	atomic_bool bad_noted; /* and that the descriptor was given up below is known to others */
	atomic_int owed;     /* errno: an error from before that has not been reported to it yet; 0 */

	atomic_uint_least64_t errors_seen; /* cursor of cfile_error_check(); of a shared source: as inode.lost was */
	atomic_uint refs;    /* the kernel's, and one for each acquire */

	pthread_mutex_t lock;
	bool appends;	     /* lock; of files of a shared source: @fd does */
	/* lock; directories. */
	struct dirent *next; /* read, but not handed out yet */
	off_t at;	     /* position of the stream */
};

/* What -o asks for: see mount_options.c. */
struct mount_options {
	char *rest;	   /* for libfuse and the kernel, comma separated */
	bool noatime;	   /* reading does not change access times below */
	bool nodiratime;   /* of directories only */
	bool readonly;	   /* when it is mounted; a remount may change that */
	unsigned max_read; /* bytes, the largest READ; 0: as the kernel likes */
};

/* What the supervisor needs to know: memory that the daemon shares with it. Zero until there is a mount. */
struct supervised {
	char mounted_as[PATH_MAX]; /* set before the numbers */
	atomic_uint major, minor;
	atomic_bool mounting; /* what is mounted there is ours, from now on */
	atomic_bool live; /* it answers, or is just about to */
	atomic_bool over; /* the connection has ended: the number may be another mount's by now */
	atomic_bool borrowed; /* fs.borrowed */
};

/* Where a receiving thread is parked: see receive.c. */
struct seat {
	sem_t woken;
	LIST_ENTRY(seat) link; /* receiving.seats */
};

/* Which threads receive requests: see receive.c. */
struct receiving {
	bool may_poll;		/* constant */
	bool guarded;		/* the guard exists; one thread starts and stops */
	pthread_t guard;
	sem_t guard_wake;
	atomic_bool guarding;	/* the guard is awake, or about to be */
	atomic_uint front;	/* ticket of the thread in front; 0: none */
	atomic_uint tickets;	/* handed out */
	atomic_uint steps;	/* taken by threads in front: shows that they move */
	atomic_uint taken;	/* requests received by the threads that serve */
	sem_t spare_wake;
	atomic_bool spare_on;	/* the spare receives, or is about to */
	int64_t spare_from;	/* the spare's, by quick_ticks(): it receives for at least SPARE_NS from then on */
	atomic_uint reading;	/* threads in read(2) */
	struct seat seat[FS_THREADS];
	atomic_uint n_taken;	/* elements of seat[] that belong to threads */
	atomic_uint parked;	/* threads */
	pthread_mutex_t lock;	/* a leaf */
	LIST_HEAD(, seat) seats; /* lock: threads that wait, and that nobody has woken yet */
	/* Hints, relaxed. */
	atomic_uint n_close;	/* requests in a row that came soon after the one before */
	/* By quick_ticks(). */
	atomic_int_least64_t ended; /* when a thread had last finished a request */
	atomic_int_least64_t rests_from; /* no thread gets in front for REST_NS from then on */
};

/*
 * Requests that workers carry out, by what they may wait for: so requests that wait long do not hold up those that do not.
 * Within a lane no user takes all threads (pool_share()).
 */
enum lane {
	LANE_ACQUIRE,	/* waits for room on a device, so for clients that must give theirs up; for storage */
	LANE_PINNED,	/* for storage: acquires that have their room (GAIA_PROT_PINNED), for which a device's stream waits */
	LANE_RELEASE,	/* for the kernel, which invalidates, and for storage; never for clients */
	LANE_UNMAP,	/* for whoever makes room on the device */
	LANE_QUERY,	/* for nothing */
	/* While all threads that serve are at work (hand.c): */
	LANE_LOOK,	/* for names and attributes of the directory below */
	LANE_HOME,	/* reads of what is at home: for nothing, or not for long */
	LANE_READ,	/* other reads: for storage */
	LANE_WRITE,	/* for storage, when home is full */
	LANE_CHANGE,	/* for storage that takes changes: requests that change names and attributes, and syncs */
	LANE_END,	/* the same: the end of open files and of names, for which no caller waits */
	/* Of a shared source: */
	LANE_LOCK,	/* for other programs, of any machine, to give locks up; never for a turn (QUOTA_lock_waits) */
	LANES
};

/* As capset(2) takes it. */
struct cap_set {
	struct __user_cap_data_struct word[_LINUX_CAPABILITY_U32S_3];
};

/* How the session was begun: see takeover.c. */
#define INIT_BYTES 512u
struct begun {
	size_t request_size, answer_size; /* 0: not known */
	_Alignas(uint64_t) char request[INIT_BYTES], answer[INIT_BYTES]; /* INIT, with its header, and what answered it, without */
};

/* Credentials of a privileged daemon's threads: see cred.c. */
struct powers {
	bool can_drop; /* threads drop root's powers */
	uid_t fsuid;   /* of such threads; 0: unchanged, the file system below does not look at it */
	struct cap_set plain, root, user; /* without the powers; acting for root; acting for a user */
};

/*
 * Acquires that are not answered yet, and so can be interrupted: see ioctl.c. If one thread receives a request and another its
 * INTERRUPT, the second may come here first: hence `early`.
 */
struct ioctl_job;
struct lock_wait;
/* A call that may come to wait for a lock, from when it was received until it waits or has ended. interrupts.lock. */
struct lock_call {
	uint64_t unique;
	bool interrupted;
	LIST_ENTRY(lock_call) link;
};
struct interrupts {
	pthread_mutex_t lock;	/* a leaf, but for quotas and pools */
	/* lock. */
	struct ioctl_job *jobs; /* hash, by the request's number */
	LIST_HEAD(, lock_wait) lock_waits; /* those that wait for a lock in a shared source */
	LIST_HEAD(, lock_call) lock_calls; /* those that may come to wait */
	bool kicking;		/* a worker wakes those of them that were interrupted */
#define INTERRUPTS_EARLY 64u
	uint64_t early[INTERRUPTS_EARLY]; /* the last ones for which no job was known */
	unsigned n_early;
};

struct fs {
	/* Constant after fs_serve(). */
	struct fs_config config;
	struct mount_options options;
	char *source, *mountpoint;
	struct fuse_session *session;
	struct cache *cache;
	struct store *store;
	struct control *control;
	struct pool *lane[LANES];
	bool privileged;    /* acts for many users, switching to their credentials */
	struct powers powers;
	bool acl;	    /* the source has POSIX ACLs */
	bool writeback;	    /* the kernel gathers writes; from INIT on */
	bool passthrough;   /* the kernel serves files that no device maps; from INIT on */
	const char *not_auto; /* why passthrough is false although --cpu-cache auto was asked for */
	atomic_bool complained; /* logged: a file could not be passed through */
	int source_fd, roots_lock_fd; /* lock the source, see source_lock.c; -1 */
	unsigned long source_flags; /* ST_NOSUID, ST_NODEV, ST_NOEXEC as the source is mounted */
	unsigned max_fds;   /* descriptors of inodes: above it idle ones are closed */
	unsigned most_fds;  /* descriptors of inodes that cannot be closed: above it only the owners of the mount may make more */
	struct log_rate fds_pace, remote_pace, unknown_pace, below_pace;
	unsigned max_backings; /* the same as max_fds for store files */
	bool below_is_fuse; /* the source is a FUSE file system */
	bool mounted;
	unsigned dev_major, dev_minor; /* of the mount */
	char mounted_as[PATH_MAX];     /* the mount's source; tells it from a later mount that gets its numbers */
	struct supervised *supervised; /* NULL: no supervisor */
	int supervisor_socket;	       /* to the supervisor, and its to the daemon; if there is one */

	/*
	 * The mount and the lock of the source are another process's: it has been given them (handed), or has not yet given them to us
	 * (see fs_config.predecessor). Then nothing is unmounted or unlocked, and the supervisor does nothing (supervised.borrowed).
	 */
	bool borrowed;
	int root_fd;		/* of a predecessor: the root's descriptor until inode_table_init() */
	struct begun begun;

	struct interrupts interrupts;
	struct receiving receiving;
	pthread_t thread[FS_THREADS];
	unsigned n_threads;
	pthread_t spare;
	bool has_spare;
	/* These and the spare, by numbers that they take when they begin: */
	pthread_t server[FS_THREADS + 1];
	atomic_bool receives[FS_THREADS + 1]; /* between two requests */
	atomic_uint n_numbered;
	atomic_bool stopping;	/* the threads must end */
	atomic_bool pausing;	/* no request is received: see serve_pause(); changed with fs->lock */
	atomic_bool over;	/* the kernel has ended the session */
	atomic_uint running;	/* threads */

	pthread_mutex_t lock;
	/* lock. */
	struct inode *inodes; /* hash */
	unsigned peak_inodes;
	unsigned n_fds;		/* of inodes, without the root's */
	unsigned n_dirs;	/* open directories: their descriptors cannot be closed meanwhile */
	unsigned n_idle;	/* of n_fds: in idle */
	struct inode_list idle; /* inodes whose descriptor may be closed, longest unused first */
	unsigned n_backings;	/* store files with a descriptor */
	TAILQ_HEAD(, backing) backings; /* those of them that may be closed, longest unused first */
	bool quiescing;		/* no ioctls begin any more */
	bool deaf;		/* nor invalidations: nobody would serve the WRITEs that they wait for */
	unsigned n_busy;	/* ioctls and invalidations that run */
	pthread_cond_t nothing_busy;
	unsigned n_handed;	/* requests handed to workers: see hand.c */
	pthread_cond_t nothing_handed;
	unsigned n_paused;	/* threads that wait until pausing is false again */
	pthread_cond_t pause_changed; /* n_paused, pausing or stopping has */

	/*
	 * By the numbers that the kernel knows them by. Found without a lock: the kernel does not forget a file, or release an open one,
	 * while another of its requests names it. Changed with fs->lock.
	 */
	struct id_table inodes_by_id; /* without the root */
	struct id_table handles;
	uint32_t generation; /* constant: tells this mount's nodeids from others' in handles of files (name_to_handle_at(2), NFS) */

	struct inode root;
};

/* Flags for statx(2) below: what others have changed in a shared source is to be seen at once. */
static inline int fs_statx_flags(const struct fs *fs)
{
	return fs->config.shared ? AT_STATX_FORCE_SYNC : 0;
}

/* Whether open(2) with these flags allows writing. */
static inline bool open_to_write(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

static inline struct fs *req_fs(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/* What the kernel names; NULL: nothing has that number. In requests that are carried out something has it (serve_request()). */
static inline struct inode *inode_of(struct fs *fs, fuse_ino_t nodeid)
{
	return nodeid == FUSE_ROOT_ID ? &fs->root : id_table_find(&fs->inodes_by_id, nodeid);
}

static inline struct handle *handle_of(struct fs *fs, uint64_t fh)
{
	return id_table_find(&fs->handles, fh);
}

static inline struct handle *req_handle(fuse_req_t req, const struct fuse_file_info *fi)
{
	return handle_of(req_fs(req), fi->fh);
}

/* ---- inode.c: the table ---- */

int inode_table_init(struct fs *fs);
void inode_table_destroy(struct fs *fs);

/*
 * The inode behind @fd, an O_PATH descriptor, which is consumed also on failure. Counts a
 * lookup. @name in @parent leads to it (NULL: no name does). *@st: its attributes below.
 */
int inode_enter(struct fs *fs, int fd, struct inode *parent, const char *name, struct inode **out,
		struct stat *st);
/*
 * To be called before a request of @uid's that makes a file or removes a name. 0, or -ENFILE: only the descriptors that are kept for
 * the owners of the mount are left. Files without a name, whose descriptors cannot be closed while they are used, have the others.
 */
int inode_room(struct fs *fs, uid_t uid);
/*
 * The same before a request of @uid's that may leave a file without a name, while the kernel may know the file. Also -EMFILE: the
 * user has removed the names of as many files that are still in use as a user may. The file counts for @uid from now on, and after
 * the request until it gets a name or nobody uses it. @inode: held by the caller, with its present name; NULL: the request failed.
 */
int inode_removal_begin(struct fs *fs, uid_t uid);
void inode_removal_end(struct fs *fs, uid_t uid, struct inode *inode);
void inode_forget(struct inode *inode, uint64_t n);
/* Of a shared source: the file is gone, and what its names lead to now is to be another inode, whatever its number is. */
void inode_retire(struct inode *inode);
void inode_put(struct inode *inode);

/*
 * Its O_PATH descriptor. It stays open, and the inode with it, until it is put. Or a
 * negative errno. (The inode of a request may go as soon as the request is answered.)
 */
int inode_fd_get(struct inode *inode);
void inode_fd_put(struct inode *inode);

/*
 * The inode with a name if it is in the table, else NULL. Its descriptor is got (to be
 * put), since names must not change without it.
 */
struct inode *inode_known(struct fs *fs, int dir, const char *name);
/* From now on the inode can be found by this name. */
void inode_renamed(struct inode *inode, struct inode *parent, const char *name);
/* A predecessor's inode, with its references, is in the table: give back the one that kept it until then. */
void inode_restored(struct inode *inode);
/* This name does not lead to the inode any more. */
void inode_unnamed(struct inode *inode, struct inode *parent, const char *name);

/* References to the inodes that @want, called with fs->lock held, accepts; to be put and freed. */
struct inode **inode_list(struct fs *fs, bool (*want)(const struct inode *), unsigned *n);

/* As fstat(2), but of a shared source as it is now. */
int inode_stat(const struct fs *fs, int fd, struct stat *st);

/* "/proc/self/fd/N": leads to that very file, whatever its names are by now. */
struct fd_path {
	char text[32];
};
struct fd_path fd_path(int fd);
/*
 * The error for programs if the file system below fails with @err (positive). One behind FUSE that is cut off from its server, or whose
 * process has died, says ENOTCONN. Of our mount that would say that we are dead: who hears it, as gaia umount, takes the mount away.
 */
int errno_below(int err);
/* Open the file itself, which must not be a symlink. */
int inode_open(struct inode *inode, int flags);
/* And close one that can read or write, but by which nothing was written: its errors are told to whom they concern (see lost.c). */
void inode_close(struct inode *inode, int fd);

/* ---- contents.c: inodes and cfiles ---- */

/* The cfile with the contents of a regular file, which is kept until contents_put(). */
int contents_get(struct inode *inode, struct cfile **out);
void contents_put(struct inode *inode);
/* Whether anything is cached, so that the store's view alone would be wrong. */
bool contents_cached(struct inode *inode);
/* Whether anything ever was. Then attributes that were read from the store before may lack what programs have written since. */
bool contents_were_cached(struct inode *inode);
/* The file's path on the mount, for messages; false if it has none. @cookie is the inode. */
bool contents_name(void *cookie, char *buf, size_t size);
/* A name was removed or added: tell the cache whether any name is left. */
void contents_names_changed(struct inode *inode);

/* @uid writes the contents, or will be able to. The caller holds the contents (contents_get()). */
void contents_written_by(struct inode *inode, uid_t uid);

/* A store file; with @write it allows writing, too, or the call fails. */
int contents_open_below(struct inode *inode, bool write, struct store_file **out);

/*
 * Give an unprivileged daemon @access, a descriptor that is consumed, to keep while the
 * contents are cached.
 */
void access_give(struct inode *inode, int access, bool write);
/* The file's mode is about to change: keep the present access. */
void access_keep(struct inode *inode);

/* ---- backing.c ---- */

/* The same, but the file below may be closed and opened again meanwhile. */
int backing_open(struct inode *inode, bool write, struct store_file **out);

/* Whether the cache has the inode's file open to write. fs->lock is held. */
bool backing_is_written(const struct inode *inode);
/* Close the files below that the inode's store files have open and do not use now. */
void backing_close_idle(struct inode *inode);

/* ---- passthrough.c ---- */

/* Called before INIT is answered: NULL if files can be passed through on this connection, else why not. */
const char *passthrough_init(struct fs *fs, struct fuse_conn_info *conn);
/* Called before an open is answered: decides how the handle is open. */
int passthrough_open(fuse_req_t req, struct handle *h, struct fuse_file_info *fi);
/* Called before handle_close(), while the kernel still knows the handle. */
void passthrough_release(fuse_req_t req, struct handle *h);
/* A device has mapped the file; @may_write: by a descriptor that allows writing. A mapping by a user who may only read leaves no
 * trace in the source. Called by a worker. */
void passthrough_mapped(struct inode *inode, bool may_write);
/* From now on the file, which devices are to have, is cached, if nobody has it open or mapped. The caller holds the contents. */
void passthrough_end(struct inode *inode);
/* Of a file of a shared source: whether nobody on this machine can write it, as far as that can be known. inode->lock is held. */
bool passthrough_nobody_writes(struct inode *inode);
/* A device is about to acquire some of it. Called by a worker. */
void passthrough_acquire(struct inode *inode);
/* CREATE has opened it as @fd below: to be called before passthrough_open(). */
void passthrough_created(struct inode *inode, int fd);
/* A request that changes the file has failed, perhaps halfway: the kernel itself would keep the attributes that it has. */
void passthrough_failed(struct handle *h);
/* How long the kernel may use attributes that are read after this call without asking again, seconds. */
double attr_timeout(struct inode *inode);
/* The same, when the attributes are known. */
double attr_timeout_of(const struct inode *inode, double timeout, const struct stat *st);
/* Register the file below with the kernel, in inode->backing_id. inode->lock is held. */
int passthrough_register(fuse_req_t req, struct inode *inode);
/* Whether the error means that the kernel will never pass this file through. */
bool passthrough_never(int err);
/* Whether it is our own attribute of files below. */
bool passthrough_hides(const char *xattr);

/* ---- file.c ---- */

/*
 * @access: a descriptor with the access that the caller has a right to (consumed), or -1:
 * open one. @uid: the caller's.
 */
int handle_open(struct inode *inode, int flags, int access, uid_t uid, struct handle **out);
/* Fill in the reply to an open; on error the handle is closed. */
int handle_tell(fuse_req_t req, struct handle *h, struct fuse_file_info *fi);
/* A file's handle, filled in but for its lock and number, gets these, and is known from now on. 0 or a negative errno. */
int handle_enter(struct handle *h);
/* Drop the kernel's reference, or that of handle_keep(). The last one closes the handle. */
void handle_close(struct handle *h);
/* Keep it beyond its RELEASE. */
void handle_keep(struct handle *h);

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
	      struct fuse_file_info *fi);
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);
void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
			struct fuse_file_info *fi_out, size_t len, int flags);

/*
 * ---- lost.c: late errors of the file system below ----
 *
 * Errors are negative, 0 is none. The caller may hold an inode's lock or a handle's, and not fs->lock.
 */

/* Before INIT is answered. */
void lost_init(struct fs *fs);
/* Something of the file could not be stored: whom it concerns is told, but for @h (or NULL), which knows. */
void lost_note(struct inode *inode, struct handle *h, int err);
/* The same if anybody may have written it: the daemon was told, by a call about something else. */
void lost_heard(struct inode *inode, int err);

/* On the stack of a thread that stores the file below, or closes a descriptor of it; the inode is kept meanwhile. */
struct lost_call {
	struct inode *inode;
	uint64_t number;
	TAILQ_ENTRY(lost_call) link;
};
void lost_call_begins(struct lost_call *c, struct inode *inode);
/* Its errors have been noted. */
void lost_call_ends(struct lost_call *c);
/* The same after a close of a descriptor of the daemon's own, of which @err came. @wrote: something may have been written by it. */
void lost_closed(struct lost_call *c, int err, bool wrote);
/*
 * Of a shared source: what to tell a program that has stored the file, by a call that ends hereby, of which @err came: that, or what is owed
 * to it from before.
 */
int lost_with(struct handle *h, struct lost_call *c, int err);
/*
 * The same of a descriptor that is closed. The next one is told again: of a program that has started another the first close is that of the
 * child, of which nobody looks at the result.
 */
int lost_with_close(struct handle *h, struct lost_call *c, int err);
/* The same after the cache has synced: for device programs. */
int lost_with_synced(struct handle *h, int err);
/* The file below was synced for the cache, of which @err came: what to tell the cache. */
int lost_at_sync(struct inode *inode, int err);

/* ---- shared.c: files of a shared source ---- */

/* The requests that are carried out differently there. */
void shared_ops(struct fuse_lowlevel_ops *ops);
/*
 * Ask the file system below whether others have changed the file, by @fd, which is open there: what is read from now on is what they had
 * stored before. @opened: it has just been opened. -ESTALE: the file is gone; looking its name up finds what has it now.
 */
int shared_revalidate(struct inode *inode, int fd, bool opened);
/* Have what was written through the handle stored where others see it. */
int shared_store(struct handle *h);
/* The same of whatever was written on this node, by any handle: to be called before a lock is given up. */
int shared_store_writers(struct handle *h);
int shared_truncate(struct inode *inode, const struct handle *h, off_t size);
/* What devices have of the file; the handle holds it from now on. */
int shared_contents(struct handle *h, struct cfile **out);
/* Before an acquire of it: what others have stored is looked for. [F] */
int shared_acquire(struct handle *h, struct cfile *f);
/* The part of handle_close() that concerns them. */
void shared_close(struct handle *h);

/* ---- shared_locks.c ---- */

void op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock);
void op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock, int sleep);
void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op);
/* Whether the process @owner has record locks, or had some. */
bool locks_are_of(struct inode *inode, uint64_t owner);
/* A descriptor of the process @owner has been closed: its record locks end. */
void locks_end_of_owner(struct inode *inode, uint64_t owner);
/* The last descriptor of the handle has been closed: those of it end that belong to the open file. */
void locks_end_of_handle(struct handle *h);
/* -EIO if the engine says that it has given up record locks that were taken by way of the handle, or are @owner's (0: nobody's). */
int locks_check(struct handle *h, uint64_t owner);
/* Around the time in which a FUSE_SETLKW is carried out, or waits for its turn: its INTERRUPT is not lost meanwhile. */
void locks_call_begins(struct fs *fs, struct lock_call *call, uint64_t unique);
void locks_call_ends(struct fs *fs, struct lock_call *call);
/* The wait with this number, if it is one, is interrupted: false if it is none. interrupts.lock is held. */
bool locks_interrupt(struct fs *fs, uint64_t unique);
/* All waits are. */
void locks_interrupt_all(struct fs *fs);
/* Whether an INTERRUPT came before its request. interrupts.lock is held. */
bool was_interrupted(const struct interrupts *in, uint64_t unique);

/* ---- attr.c ---- */


/* The attributes that the kernel is to see of a file, by its descriptor. */
int attr_read(struct inode *inode, int fd, struct stat *st);
/* The same, given the backing directory's attributes, which may be from before the last store. */
void attr_mend(struct inode *inode, struct stat *st);
/* The part of attr_mend() that concerns the number that a directory entry has. */
ino_t attr_ino(const struct fs *fs, dev_t dev, ino_t ino);
/* Whether its file below is on a mount with @flag of statvfs(2) that the source's own mount does not have. */
bool attr_mounted_with(struct inode *inode, unsigned long flag);

/*
 * To be called before something that only the owner of a file may do. The kernel has looked at the owner that it remembers; of a shared
 * source that may be a former one. 0: have the call made as the caller; -EPERM.
 */
int attr_look_at_owner(fuse_req_t req, struct inode *inode, int fd);
/* Clear set-id bits as a write by an unprivileged user does; the kernel leaves it to us. */
int attr_clear_set_id(struct inode *inode);
/* Whose it is, or who may write it, has changed perhaps: what its contents are shared with (--dedup) depends on that. */
void attr_owner_changed(struct inode *inode);
void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi);
void op_statfs(fuse_req_t req, fuse_ino_t ino);

/* ---- namei.c ---- */

/* Look a name up and fill in the reply; -ENOENT etc. Counts a lookup. */
int entry_lookup(struct inode *parent, const char *name, struct fuse_entry_param *e);
void entry_fill(struct inode *inode, const struct stat *st, struct fuse_entry_param *e);

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup);
void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void op_readlink(fuse_req_t req, fuse_ino_t ino);
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name);
void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi);
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
	       const char *newname, unsigned flags);

/* ---- dir.c ---- */

/* Called before the request is answered: names in the directory have changed, or it was moved, and so its ".." has changed. */
void dir_changed(struct inode *inode);
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi);
void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);

/* ---- xattr.c ---- */

bool xattr_source_has_acl(int fd);
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
		 int flags);
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

/* ---- ioctl.c ---- */

int lanes_start(struct fs *fs);
/* Carries out everything that was submitted. Also for lanes that were not started. */
void lanes_stop(struct fs *fs);
/* @uid: the user whose request it is. */
void lane_submit(struct fs *fs, enum lane lane, uid_t uid, void (*fn)(void *arg), void *arg);

/* A FUSE_INTERRUPT for the request with this number. */
void interrupt_request(struct fs *fs, uint64_t unique);
/* For a setxattr(2) that is a release: a worker carries it out and answers. */
void release_by_xattr(fuse_req_t req, struct inode *inode, bool is_list, const void *value, size_t size);
void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg, struct fuse_file_info *fi,
	      unsigned flags, const void *in_buf, size_t in_size, size_t out_size);

/* ---- place.c ---- */

/* [W] GAIA_IOC_PLACE, on a descriptor of the file that allows reading. @verdict: see cache_acquire(). */
int place_contents(struct inode *inode, struct cfile *f, uid_t uid, struct gaia_ioc_place *io, atomic_uint *verdict);

/* ---- cred.c: doing things as the caller ---- */

/* Called once, before there are threads. Logs what cannot be done. */
void cred_init(struct fs *fs);
/* Once in each thread that serves. */
int cred_thread_init(const struct fs *fs);
/*
 * Call this in any thread before something that may take space in the source. The thread drops root's
 * powers for good; later calls cost nothing.
 */
void cred_drop_powers(const struct fs *fs);
/*
 * Between this and cred_root_end() the thread has all of root's powers: for what root itself does or
 * wrote. 0, or a negative errno; call cred_root_end() in either case.
 */
int cred_root_begin(const struct fs *fs);
void cred_root_end(const struct fs *fs);
/* Between these it lacks what lets set-id bits stay on a file that is written (CAP_FSETID): for credentials with which anybody may write. */
int cred_writer_begin(const struct fs *fs);
void cred_writer_end(const struct fs *fs);
/* Whether @err means that there is no space left, though root may have some. */
static inline bool cred_no_room(long err)
{
	return err == -ENOSPC || err == -EDQUOT;
}
/* Make the system call @call: 0 or a negative errno. If the caller is root and there is no space, repeat it with root's powers. */
#define AS_CALLER_MAY(req, call)                                                        \
	({                                                                              \
		int res_ = (call) ? -errno : 0;                                         \
                                                                                        \
		if (cred_no_room(res_) && !fuse_req_ctx(req)->uid) {                    \
			res_ = cred_root_begin(req_fs(req));                            \
			if (!res_)                                                      \
				res_ = (call) ? -errno : 0;                             \
			cred_root_end(req_fs(req));                                     \
		}                                                                       \
		res_;                                                                   \
	})
/* Between this and cred_leave() this thread creates files as the caller, with the caller's umask. */
int cred_enter(fuse_req_t req);
void cred_leave(fuse_req_t req);
/*
 * A call made as the caller has failed with @err (negative) although the kernel had allowed the request: perhaps by a capability,
 * such as the root of a user namespace has over the files of its users. If the caller has it over the directory or file @fd (-1:
 * none): as cred_enter(), with that capability. Only for calls that make something new, or change the very thing that the request
 * names: nothing that exists may be opened with it.
 */
bool cred_enter_capable(fuse_req_t req, int fd, int err);
/* Make @call, a system call on @fd, as the caller; if need be again, with the caller's capability. 0 or a negative errno. */
#define AS_CALLER(req, fd, call)                                                        \
	({                                                                              \
		int res_ = cred_enter(req);                                             \
                                                                                        \
		if (!res_) {                                                            \
			res_ = (call) ? -errno : 0;                                     \
			cred_leave(req);                                                \
			if (cred_enter_capable(req, fd, res_)) {                        \
				res_ = (call) ? -errno : 0;                             \
				cred_leave(req);                                        \
			}                                                               \
		}                                                                       \
		res_;                                                                   \
	})
/* What a call changes, by descriptors (O_PATH): directories in which names change, and files whose owner may have it done. */
struct cred_over {
	int dirs[3], files[2];
	unsigned n_dirs, n_files;
};
/* As cred_enter(), but with the caller's capabilities over all of these. To be called when they have been looked at anew (inode_stat()). */
int cred_enter_over(fuse_req_t req, const struct cred_over *over);
/*
 * Of a shared source: make @call as the caller, so that the file system below looks whether it is allowed. The kernel has done so by
 * attributes that may be old. If need be (@at_once: in any case) with the caller's capabilities. 0 or a negative errno.
 */
#define AS_CALLER_OVER(req, over, at_once, call)                                        \
	({                                                                              \
		int res_ = (at_once) ? -EPERM : cred_enter(req);                        \
                                                                                        \
		if (!(at_once) && !res_) {                                              \
			res_ = (call) ? -errno : 0;                                     \
			cred_leave(req);                                                \
		}                                                                       \
		if ((res_ == -EPERM || res_ == -EACCES) && !cred_enter_over(req, over)) {       \
			res_ = (call) ? -errno : 0;                                     \
			cred_leave(req);                                                \
		}                                                                       \
		res_;                                                                   \
	})
/*
 * Whether the caller of @req, which is not answered yet, may write the file behind @fd (O_PATH) now, by the caller's fsuid, fsgid
 * and groups as they are in the daemon's user namespace. Of capabilities only root's count, and only if root has them there. On any
 * thread.
 */
bool cred_may_write(fuse_req_t req, int fd);
/* The same for reading. */
bool cred_may_read(fuse_req_t req, int fd);
/* Whether the caller has the powers that the uid implies: root may lack root's powers. */
bool cred_is_whole(fuse_req_t req);

/* ---- receive.c ---- */

/*
 * Of this thread, by quick_ticks(): when it received its present request, or 0 if another thread answers that (serve_later()); and when it had
 * carried out its last one.
 */
extern __thread struct request_times {
	int64_t came, ended;
} request_times;
/* The thread's present request came then. */
static inline void request_came(int64_t ticks)
{
	request_times.came = ticks;
}

/* As read(2), for a thread that serves. */
ssize_t receive(struct fs *fs, int fd, void *buf, size_t size);
/* For the spare: wait until it is needed, or until fs->stopping is set. */
void receive_spare_wait(struct fs *fs);
/* Whether the spare is still needed; asked between two requests. */
bool receive_spare_needed(struct fs *fs);
void receive_thread_ends(struct fs *fs);
/* A thread that serves, or the spare, is about to wait until fs->pausing is false. */
void receive_thread_pauses(struct fs *fs);
int receive_start(struct fs *fs);
/* Wake all parked threads, when fs->stopping or fs->pausing is set. */
void receive_wake_all(struct fs *fs);
/* Called when no thread serves any more. */
void receive_stop(struct fs *fs);

/* ---- serve.c ---- */

/*
 * Ask the kernel to write back and drop what it caches of the file, and wait until it has. For
 * workers.
 */
void invalidate(struct inode *inode, off_t off, off_t len);

/* Around anything that waits for the kernel or a client; false: it must not begin any more. */
bool busy_begin(struct fs *fs, bool invalidation);
void busy_end(struct fs *fs);

/*
 * 0, or the errno (negative) with which a request is refused that names a file that the kernel does not know (-ESTALE), or an open
 * one that there is not (-EBADF).
 */
int serve_unknown(struct fs *fs, const void *bytes);
/* Whether it may come to wait for a lock in a shared source. */
bool serve_may_wait_for_lock(const struct fs *fs, const void *bytes);
/* Answer a request, which libfuse has not seen, with @err (negative). */
void serve_refuse(struct fs *fs, const void *bytes, int err);
/* @id, to be told the kernel; or, if @fault is armed, a number that names nothing. */
uint64_t serve_told(uint64_t id, const char *fault);
/* Carry out a request that was received at request_times.came. */
void serve_request(struct fs *fs, void *bytes, size_t size);
/*
 * The thread's present request is answered by another thread, later. Returns when it came, for serve_answered(), which that thread
 * calls then.
 */
int64_t serve_later(void);
void serve_answered(enum latency kind, int64_t came);
/*
 * Have all threads stop between two requests, and the workers carry out what was handed to them. 0: nothing is received any more, until
 * serve_go_on(). -EBUSY: some requests do not end in time (@until, now_ns()); -ENODEV: the session is over. Then call serve_go_on(), too.
 */
int serve_pause(struct fs *fs, uint64_t until);
void serve_go_on(struct fs *fs);
/* The number of the present request of this thread. */
uint64_t serve_unique(void);
/* Whether this thread's present request is a FUSE_TMPFILE, which reaches op_create(). */
bool serve_is_tmpfile(void);
/* Whether it is a WRITE that must clear the file's set-id bits. */
bool serve_clears_set_id(void);
int serve_start(struct fs *fs);
void serve_stop(struct fs *fs);

/* ---- session.c ---- */

/*
 * Receive INIT, which comes first, and answer it. Called while no other thread uses the session. 0 also if the mount has ended before: then
 * the threads find that out. Logs errors.
 */
int session_begin(struct fs *fs);
/* Begin libfuse's session with the INIT of fs->begun. The answer is noted there, and the kernel is not told. */
int session_begin_again(struct fs *fs);
/* INIT has been answered, and the threads serve. If libfuse has refused the session (and logged why), every call would fail: then end. */
void session_begun(struct fs *fs);

/* ---- hand.c ---- */

/* Hand the request to a worker. False: it waits for nothing, and the caller has to carry it out. */
bool hand_over(struct fs *fs, const void *request, size_t size);
/* Wait until all requests that were handed over have been carried out. Called when no thread receives any more. */
void hand_wait(struct fs *fs);
/* The same, until @until at the latest (now_ns()): whether they have been. */
bool hand_wait_until(struct fs *fs, uint64_t until);

/* ---- mount_options.c ---- */

/* @text: as after -o. On success out->rest is to be freed. Logs. */
int mount_options_parse(const char *text, struct mount_options *out);

/* ---- mount.c ---- */

/*
 * Find the absolute paths of source and mountpoint, if they can be used; else log one line that says
 * what to do. At the mountpoint there may still be the mount of a gaiafs that has died.
 */
int mount_resolve(struct fs *fs);
/* The descriptor (O_PATH) of the source, below which all its files are opened, or a negative errno. */
int mount_open_source(const struct fs *fs);
/* libfuse's session, not mounted yet. Logs errors. */
int mount_make_session(struct fs *fs, const struct fuse_lowlevel_ops *ops);
/* Make the session and mount it, in place of a mount that has died. Logs errors. */
int mount_begin(struct fs *fs, const struct fuse_lowlevel_ops *ops);
/* Whether the mount that is visible at the mountpoint is ours. */
bool mount_is_ours(const struct fs *fs);
/* Whether the mount allows no writing, by -o ro or since a remount, wherever it is mounted. If that cannot be found out: true. */
bool mount_is_readonly(const struct fs *fs);
/* -EBUSY unless @lazy. */
int mount_end(struct fs *fs, bool lazy);
/* End the connection: programs that still use the mount get ENOTCONN. Called when no request is served any more. */
void mount_destroy_session(struct fs *fs);
/*
 * For the supervisor: end the connection of a dead daemon if it @hangs, because threads of the daemon that cannot be killed keep it
 * open. Take the mount away if the configuration asks for that, if the connection cannot be ended otherwise, or if it was never live.
 */
enum mount_left {
	MOUNT_NONE,  /* there was none, or it is out of the tree */
	MOUNT_DEAD,  /* it stays, and answers ENOTCONN */
	MOUNT_TAKEN, /* it was taken away */
} mount_abort(struct fs *fs, bool hangs, int kept);
/* The file that ends the mount's connection, and never another's; -1: it cannot be opened. The caller closes it. */
int mount_abort_file(const struct fs *fs);
#define FUSE_CONNECTIONS "/sys/fs/fuse/connections"

/* The type of the file system with this number, as mount tables name it ("fuse.sshfs"): -ENOENT: none. */
#define SOURCE_TYPE_SIZE 64
int mount_type(dev_t dev, char type[SOURCE_TYPE_SIZE]);

/* ---- source_kind.c ---- */

/* What kind of file system @fd (also O_PATH) is on; if it is not local or not known, its name. */
enum source_kind {
	SOURCE_LOCAL,	/* or not known */
	SOURCE_MADE_UP, /* the kernel makes up the contents */
	SOURCE_SHARED,	/* other machines may change it; or it is behind FUSE, and nobody knows */
} source_kind(int fd, char type[SOURCE_TYPE_SIZE]);

/* ---- source_lock.c ---- */

/* fs->source, for reading; its locks are not taken yet. */
int source_lock_open(struct fs *fs);
/* The source is unlocked when the supervisor has closed it, too. If fs->borrowed, it stays locked. */
void source_lock_close(struct fs *fs);
/* 0: it is ours; -EWOULDBLOCK: another gaiafs, or what may be one, has it. Logs a lock that root's gaiafs does not wait for. */
int source_trylock(struct fs *fs);
/* The process that has locked it; 0: it cannot be seen (it is in another PID namespace). */
pid_t source_locker(const struct fs *fs);
/* The same if it is a gaiafs. */
pid_t source_daemon(const struct fs *fs);

/* ---- takeover.c ---- */

/*
 * While the mount is the old daemon's: if that ends, nothing may be left that keeps the connection or the lock. To be called again when this
 * thread's credentials have changed, which makes the kernel forget it.
 */
void takeover_die_with_old(const struct fs *fs);
/* From a predecessor: the source and its lock, and where it is mounted. Logs errors. */
int takeover_place(struct fs *fs);
/* Take the mount, with everything that the kernel knows of it. What is received is the new daemon's when this returns 0. Logs errors. */
int takeover(struct fs *fs, const struct fuse_lowlevel_ops *ops);

/* ---- tables.c ---- */

/*
 * Send the inodes and handles that the kernel knows, with their descriptors. Nothing is received meanwhile (serve_pause()). A negative errno.
 */
int tables_send(struct fs *fs, int sock, struct parcel *p);
/* Receive them, into empty tables. If it fails, what has come stays, to be destroyed with the tables. Logs errors. */
int tables_receive(struct fs *fs, int sock, struct parcel *p);

/* ---- supervisor.c ---- */

/* Called before there are threads or a mount, if the configuration asks for it. Logs errors. */
int supervisor_start(struct fs *fs);
/* The mount has become ours, or is not ours for now: fs->borrowed. */
void supervisor_set_borrowed(struct fs *fs, bool borrowed);
/* It is mounted: tell the supervisor where, and let it end this connection, whatever becomes of its number. */
void supervisor_tell(struct fs *fs);
/* The daemon ends by itself: end the supervisor. */
void supervisor_end(struct fs *fs);

#endif
