/*
 * shared_locks.c - locks on files of a shared source are those of the files below, so that they hold on all machines.
 *
 * flock(2) is passed on to the open file's own descriptor below. Record locks belong to a process or, F_OFD_SETLK, to an open file: the
 * kernel gives each such owner a number. An owner that has locks in a file has a descriptor of its own below, with locks of that open
 * file (F_OFD_SETLK): so owners of this machine keep each other out, as those of others do. The descriptor is closed, and with it the
 * locks end, when
 *
 *	the process closes any descriptor of the file	locks_end_of_owner()
 *	the open file is closed				locks_end_of_handle(): it was the open file's, since a process that had locks by
 *							way of it has closed its descriptors before
 *	everything is unlocked
 *
 * A program that is killed closes everything. What a lock guards goes with it: to take one looks for what others have changed
 * (shared_revalidate()), to give one up stores what was written first (shared_store()).
 *
 * A call that has to wait is carried out by a worker, which waits below. A signal ends the wait: to the caller (an INTERRUPT), and by
 * that from us to the worker. The signal may come just before the worker's system call, and then does nothing: so it is sent again until
 * the wait has ended. Each user has a number of such calls, and each has a thread: none waits for a turn behind another, since that one may
 * be waiting for what the first one's program holds.
 *
 * If the file system below has no locks the call fails: the kernel's own would hold on this machine only.
 */
#include "base/fault.h"
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#define INTERRUPTS_WAIT SIGUSR2 /* serve_start() has it do nothing but interrupt system calls */

/* Lives while it is listed or used. */
struct lock_owner {
	/* Constant. */
	uint64_t id;
	uid_t uid;
	int fd;

	/* inode->lock. */
	uint64_t handle; /* by which it last took a lock, or tried */
	unsigned refs; /* one is that of the list */
	unsigned calls; /* under way, each of which may take a lock */
	unsigned ended; /* of them, since the beginning */
	bool listed;
	UT_hash_handle hh; /* inode->lock_owners, by id */
};

/* A call that takes a lock. */
struct lock_wait {
	fuse_req_t req;
	struct handle *handle;
	uint64_t unique;
	int64_t came;
	uid_t uid;
	struct lock_owner *owner; /* NULL: flock(2) */
	struct flock record;
	int op; /* of flock(2) */

	/* interrupts.lock; once it waits. */
	LIST_ENTRY(lock_wait) link;
	pthread_t thread;
	bool waits; /* @thread does */
	bool interrupted;
};

/* ---- owners ---- */

/* inode->lock is held here and in the next one. */
static struct lock_owner *find_owner(struct inode *inode, uint64_t id)
{
	struct lock_owner *o;

	HASH_FIND(hh, inode->lock_owners, &id, sizeof(id), o);
	return o;
}

/* Whether that was the last reference: then the caller is to end it, without the lock. */
static bool drop(struct lock_owner *o)
{
	return !--o->refs;
}

static void end_owner(struct inode *inode, struct lock_owner *o)
{
	inode_close(inode, o->fd);
	quota_give(inode->fs->config.quota, QUOTA_lock_owners, o->uid);
	free(o);
}

static void put_owner(struct inode *inode, struct lock_owner *o)
{
	bool last;

	pthread_mutex_lock(&inode->lock);
	last = drop(o);
	pthread_mutex_unlock(&inode->lock);
	if (last)
		end_owner(inode, o);
}

static struct lock_owner *get_owner(struct inode *inode, uint64_t id)
{
	struct lock_owner *o;

	pthread_mutex_lock(&inode->lock);
	o = find_owner(inode, id);
	if (o)
		o->refs++;
	pthread_mutex_unlock(&inode->lock);
	return o;
}

/* The owner's locks end. It stays if a call of it is under way that may get one: call_ends() says whose it is. The caller has a reference. */
static void forget_owner(struct inode *inode, struct lock_owner *o)
{
	const struct flock all = { .l_type = F_UNLCK, .l_whence = SEEK_SET };
	unsigned ended;

	pthread_mutex_lock(&inode->lock);
	ended = o->ended;
	pthread_mutex_unlock(&inode->lock);
	(void)fcntl(o->fd, F_OFD_SETLK, &all);
	pthread_mutex_lock(&inode->lock);
	/* A call that has ended meanwhile may have got a lock after that. */
	if (o->listed && !o->calls && o->ended == ended) {
		HASH_DEL(inode->lock_owners, o);
		o->listed = false;
		o->refs--;
	}
	pthread_mutex_unlock(&inode->lock);
}

/*
 * A descriptor for locks. Not for writing where the caller's is not: while there is one the file cannot be run. If the owner comes with one
 * for writing later, it gets locks for reading only (ENOLCK).
 */
static int open_for_locks(const struct handle *h)
{
	bool write = open_to_write(h->flags);
	int fd = inode_open(h->inode, write ? O_RDWR : O_RDONLY);

	return fd < 0 && write ? inode_open(h->inode, O_WRONLY) : fd;
}

/* A call that takes a lock begins. inode->lock is held. */
static void call_begins(struct lock_owner *o)
{
	o->refs++;
	o->calls++;
}

/* It has ended. If the owner was forgotten meanwhile it ends with the handle, at the latest. */
static void call_ends(struct lock_owner *o, struct handle *h)
{
	pthread_mutex_lock(&h->inode->lock);
	o->calls--;
	o->ended++;
	o->handle = h->id;
	pthread_mutex_unlock(&h->inode->lock);
	atomic_store(&h->locks, true);
}

/* The owner, for a call that takes a lock; a new one if there is none yet. */
static int make_owner(struct handle *h, uint64_t id, uid_t uid, struct lock_owner **out)
{
	struct inode *inode = h->inode;
	struct quota *quota = inode->fs->config.quota;
	struct lock_owner *o, *other;
	int fd;

	pthread_mutex_lock(&inode->lock);
	o = find_owner(inode, id);
	if (o)
		call_begins(o);
	pthread_mutex_unlock(&inode->lock);
	*out = o;
	if (o)
		return 0;
	if (quota_take(quota, QUOTA_lock_owners, uid)) /* logs */
		return -ENOLCK;
	fd = open_for_locks(h);
	o = fd < 0 ? NULL : calloc(1, sizeof(*o));
	if (!o) {
		if (fd >= 0)
			inode_close(inode, fd);
		quota_give(quota, QUOTA_lock_owners, uid);
		/* EACCES would mean to the caller that somebody has the lock. */
		return fd >= 0 ? -ENOMEM : fd == -ESTALE || fd == -EIO ? fd : -ENOLCK;
	}
	*o = (struct lock_owner){ .id = id, .handle = h->id, .uid = uid, .fd = fd, .refs = 1 };
	pthread_mutex_lock(&inode->lock);
	other = find_owner(inode, id);
	call_begins(other ? other : o);
	if (!other) {
		o->listed = true; /* the reference that it has */
		HASH_ADD(hh, inode->lock_owners, id, sizeof(o->id), o);
	}
	pthread_mutex_unlock(&inode->lock);
	if (other)
		end_owner(inode, o);
	*out = other ? other : o;
	return 0;
}

bool locks_are_of(struct inode *inode, uint64_t owner)
{
	bool are;

	pthread_mutex_lock(&inode->lock);
	are = find_owner(inode, owner);
	pthread_mutex_unlock(&inode->lock);
	return are;
}

void locks_end_of_owner(struct inode *inode, uint64_t owner)
{
	struct lock_owner *o = get_owner(inode, owner);

	if (!o)
		return;
	forget_owner(inode, o);
	put_owner(inode, o);
}

void locks_end_of_handle(struct handle *h)
{
	struct inode *inode = h->inode;
	struct lock_owner *o, *next;

	if (!atomic_exchange(&h->locks, false))
		return;
	do {
		pthread_mutex_lock(&inode->lock);
		HASH_ITER(hh, inode->lock_owners, o, next)
			if (o->handle == h->id)
				break;
		if (o) {
			o->handle = 0; /* looked at; handles' numbers are not 0 */
			o->refs++;
		}
		pthread_mutex_unlock(&inode->lock);
		if (o) {
			forget_owner(inode, o);
			put_owner(inode, o);
		}
	} while (o);
}

/*
 * Whether the engine has given the owner's locks up: a client that was cut off from its server cannot say when, and some let the descriptor
 * that has the locks fail from then on. (Others take a new one, and nobody is told.)
 */
static bool has_lost(const struct lock_owner *o)
{
	struct flock any = { .l_type = F_RDLCK, .l_whence = SEEK_SET };

	return fcntl(o->fd, F_OFD_GETLK, &any) && errno == EBADFD;
}

int locks_check(struct handle *h, uint64_t owner)
{
	struct inode *inode = h->inode;
	struct lock_owner *o, *next, **list;
	unsigned n = 0;
	int err = 0;

	if (!inode->fs->below_is_fuse || (!owner && !atomic_load(&h->locks)))
		return 0;
	pthread_mutex_lock(&inode->lock);
	list = malloc((HASH_COUNT(inode->lock_owners) + 1) * sizeof(struct lock_owner *));
	HASH_ITER(hh, inode->lock_owners, o, next)
		if (list && (o->id == owner || o->handle == h->id)) {
			o->refs++;
			list[n++] = o;
		}
	pthread_mutex_unlock(&inode->lock);
	if (!list)
		return -EIO; /* perhaps */
	for (unsigned k = 0; k < n; k++) {
		if (has_lost(list[k]))
			err = -EIO;
		put_owner(inode, list[k]);
	}
	free(list);
	return err;
}

/* ---- taking and giving up ---- */

/* Errors by which a file system says that it has no locks. */
static int lock_errno(int err)
{
	return err == ENOSYS || err == EOPNOTSUPP || err == EBADF || err == EINVAL ? -ENOLCK : err == EACCES ? -EAGAIN : -err;
}

static int try_lock(const struct lock_wait *w)
{
	struct flock record = w->record;

	if (w->owner)
		return fcntl(w->owner->fd, F_OFD_SETLK, &record) ? lock_errno(errno) : 0;
	return flock(w->handle->fd, w->op | LOCK_NB) ? lock_errno(errno) : 0;
}

static int wait_for_lock(const struct lock_wait *w)
{
	struct flock record = w->record;

	if (w->owner)
		return fcntl(w->owner->fd, F_OFD_SETLKW, &record) ? lock_errno(errno) : 0;
	return flock(w->handle->fd, w->op) ? lock_errno(errno) : 0;
}

static bool gives_up(const struct lock_wait *w)
{
	return w->owner ? w->record.l_type == F_UNLCK : w->op == LOCK_UN;
}

/* What was written under a lock is stored before others get it. */
static void store_for_others(const struct lock_wait *w)
{
	struct lost_call c;

	if (fault_point("break.unlock_unstored"))
		return;
	lost_call_begins(&c, w->handle->inode);
	(void)lost_with_close(w->handle, &c, shared_store_writers(w->handle)); /* the next close or fsync reports it */
}

/* Whether others may have the bytes afterwards that nobody but the caller could have before. */
static bool lets_others_in(const struct lock_wait *w)
{
	return w->owner ? w->record.l_type != F_WRLCK : w->op != LOCK_EX;
}

/* Give the lock up that was got just now; with it goes what the caller had of these bytes before. */
static void undo(const struct lock_wait *w)
{
	struct flock record = w->record;

	store_for_others(w);
	record.l_type = F_UNLCK;
	if (w->owner)
		(void)fcntl(w->owner->fd, F_OFD_SETLK, &record);
	else
		(void)flock(w->handle->fd, LOCK_UN);
}

/* Look for what others have changed, now that there is the lock. Without that it would guard old bytes. */
static int look_under_lock(const struct lock_wait *w)
{
	int err = fault_point("break.trust_at_grant") ? 0 : shared_revalidate(w->handle->inode, w->handle->fd, false);

	/* If the file is gone meanwhile, its lock is one all the same. */
	if (!err || err == -ESTALE)
		return 0;
	undo(w);
	return err;
}

/* Answer, and end the call. */
static void finish(struct lock_wait *w, int err)
{
	struct handle *h = w->handle;
	struct inode *inode = h->inode;

	if (!err && !gives_up(w))
		err = look_under_lock(w);
	if (!w->owner && !err)
		atomic_store(&h->locks, true);
	if (w->owner) {
		if (!gives_up(w))
			call_ends(w->owner, h);
		if (!err && gives_up(w) && !w->record.l_start && !w->record.l_len)
			forget_owner(inode, w->owner);
		put_owner(inode, w->owner);
	}
	fuse_reply_err(w->req, -err);
	handle_close(h);
}

static void run_wait(void *arg)
{
	struct lock_wait *w = arg;
	struct fs *fs = w->handle->inode->fs;
	struct interrupts *in = &fs->interrupts;
	sigset_t set, old;
	bool over;
	int err;

	sigemptyset(&set);
	sigaddset(&set, INTERRUPTS_WAIT);
	pthread_mutex_lock(&in->lock);
	w->thread = pthread_self();
	w->waits = true;
	over = w->interrupted;
	pthread_mutex_unlock(&in->lock);
	pthread_sigmask(SIG_UNBLOCK, &set, &old);
	err = -EINTR;
	while (err == -EINTR && !over) {
		err = wait_for_lock(w);
		pthread_mutex_lock(&in->lock);
		over = w->interrupted;
		pthread_mutex_unlock(&in->lock);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_mutex_lock(&in->lock);
	LIST_REMOVE(w, link);
	pthread_mutex_unlock(&in->lock);
	finish(w, err);
	quota_give(fs->config.quota, QUOTA_lock_waits, w->uid);
	serve_answered(LATENCY_request_other, w->came);
	busy_end(fs);
	free(w);
}

static void kick(void *arg);

/* To be called when a wait was interrupted. interrupts.lock is held. */
static void start_kicking(struct fs *fs)
{
	if (fs->interrupts.kicking)
		return;
	fs->interrupts.kicking = true;
	pool_submit(fs->lane[LANE_QUERY], kick, fs);
}

/* Wake the workers whose waits were interrupted until they have ended. */
static void kick(void *arg)
{
	struct fs *fs = arg;
	struct interrupts *in = &fs->interrupts;
	useconds_t pause = 500, longest = 100000;
	struct lock_wait *w;
	bool any;

	do {
		any = false;
		pthread_mutex_lock(&in->lock);
		LIST_FOREACH(w, &in->lock_waits, link) {
			any |= w->interrupted;
			if (w->interrupted && w->waits)
				pthread_kill(w->thread, INTERRUPTS_WAIT);
		}
		in->kicking = any;
		pthread_mutex_unlock(&in->lock);
		if (any)
			usleep(pause);
		pause = MIN(2 * pause, longest);
	} while (any);
}

void locks_call_begins(struct fs *fs, struct lock_call *call, uint64_t unique)
{
	*call = (struct lock_call){ .unique = unique };
	pthread_mutex_lock(&fs->interrupts.lock);
	LIST_INSERT_HEAD(&fs->interrupts.lock_calls, call, link);
	pthread_mutex_unlock(&fs->interrupts.lock);
}

void locks_call_ends(struct fs *fs, struct lock_call *call)
{
	pthread_mutex_lock(&fs->interrupts.lock);
	LIST_REMOVE(call, link);
	pthread_mutex_unlock(&fs->interrupts.lock);
}

/* The same for one that does not wait yet. */
static bool interrupt_call(struct interrupts *in, uint64_t unique)
{
	struct lock_call *call;
	bool any = false;

	LIST_FOREACH(call, &in->lock_calls, link) {
		call->interrupted |= call->unique == unique;
		any |= call->unique == unique;
	}
	return any;
}

/* interrupts.lock is held. */
static bool call_was_interrupted(const struct interrupts *in, uint64_t unique)
{
	struct lock_call *call;

	LIST_FOREACH(call, &in->lock_calls, link)
		if (call->unique == unique && call->interrupted)
			return true;
	return was_interrupted(in, unique);
}

bool locks_interrupt(struct fs *fs, uint64_t unique)
{
	struct lock_wait *w;

	LIST_FOREACH(w, &fs->interrupts.lock_waits, link)
		if (w->unique == unique)
			break;
	if (!w)
		return interrupt_call(&fs->interrupts, unique);
	w->interrupted = true;
	start_kicking(fs);
	return true;
}

void locks_interrupt_all(struct fs *fs)
{
	struct interrupts *in = &fs->interrupts;
	struct lock_wait *w;

	pthread_mutex_lock(&in->lock);
	LIST_FOREACH(w, &in->lock_waits, link)
		w->interrupted = true;
	if (LIST_FIRST(&in->lock_waits))
		start_kicking(fs);
	pthread_mutex_unlock(&in->lock);
}

/* Hand the call to a worker. -ENOLCK: the user, or all users, have as many that wait as they may. */
static int begin_waiting(struct lock_wait *w)
{
	struct fs *fs = w->handle->inode->fs;
	struct interrupts *in = &fs->interrupts;
	struct lock_wait *job;

	if (quota_take(fs->config.quota, QUOTA_lock_waits, w->uid)) /* logs */
		return -ENOLCK;
	job = malloc(sizeof(*job));
	if (!job) {
		quota_give(fs->config.quota, QUOTA_lock_waits, w->uid);
		return -ENOMEM;
	}
	*job = *w;
	pthread_mutex_lock(&in->lock);
	job->interrupted = call_was_interrupted(in, job->unique);
	LIST_INSERT_HEAD(&in->lock_waits, job, link);
	pthread_mutex_unlock(&in->lock);
	(void)fault_point("lock.before_wait");
	/* Listed before: whoever has the waits end (wait_idle()) finds it, or it does not begin. */
	if (!busy_begin(fs, false)) {
		pthread_mutex_lock(&in->lock);
		LIST_REMOVE(job, link);
		pthread_mutex_unlock(&in->lock);
		quota_give(fs->config.quota, QUOTA_lock_waits, w->uid);
		free(job);
		return -ENOTCONN;
	}
	job->came = serve_later();
	lane_submit(fs, LANE_LOCK, job->uid, run_wait, job);
	return 0;
}

/* Carry out a call, all of which is in @w. */
static void lock_file(struct lock_wait *w, bool sleep)
{
	int err;

	handle_keep(w->handle); /* until finish() */
	if (lets_others_in(w))
		store_for_others(w);
	err = try_lock(w);
	if (err == -EAGAIN && sleep) {
		err = begin_waiting(w);
		if (!err)
			return; /* run_wait() finishes it */
	}
	finish(w, err);
}

void op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock, int sleep)
{
	struct lock_wait w = { .req = req, .handle = req_handle(req, fi), .unique = serve_unique(), .uid = fuse_req_ctx(req)->uid, .record = *lock };
	int err;

	w.record.l_pid = 0; /* F_OFD_SETLK insists */
	w.record.l_whence = SEEK_SET;
	if (lock->l_type != F_UNLCK) {
		err = make_owner(w.handle, fi->lock_owner, w.uid, &w.owner);
	} else {
		w.owner = get_owner(w.handle->inode, fi->lock_owner);
		err = 0;
	}
	if (w.owner)
		lock_file(&w, sleep);
	else
		fuse_reply_err(req, -err); /* 0: who has no lock gives none up */
}

void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
	struct lock_wait w = { .req = req, .handle = req_handle(req, fi), .unique = serve_unique(), .uid = fuse_req_ctx(req)->uid };

	w.op = op & ~LOCK_NB;
	lock_file(&w, !(op & LOCK_NB));
}

void op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock)
{
	struct handle *h = req_handle(req, fi);
	struct lock_owner *o = get_owner(h->inode, fi->lock_owner);
	struct flock record = *lock;
	int err;

	record.l_pid = 0;
	record.l_whence = SEEK_SET;
	err = fcntl(o ? o->fd : h->fd, F_OFD_GETLK, &record) ? lock_errno(errno) : 0;
	if (o)
		put_owner(h->inode, o);
	/* The holder's process is not known: it may be on another machine. */
	record.l_pid = 0;
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_lock(req, &record);
}
