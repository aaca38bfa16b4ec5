/*
 * hand.c - requests that workers carry out while all threads that serve are at work.
 *
 * Usually the thread that receives a request carries it out: waking another costs more than most requests. But when all threads
 * that serve wait for something, for instance for storage that does not answer, the spare receives (receive.c). It must not wait
 * itself, so it hands requests that may wait to workers. Workers are divided into lanes by what requests may wait for (enum
 * lane), and a user has a part of each lane: so a user's requests hold up neither those of others nor the user's own of another
 * kind.
 *
 * A request for which no worker is free waits for its turn in the daemon's memory, of which each user has a part.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define SMALL_REQUEST 4096u /* bytes: for names, attributes and reads, but hardly any write(2) */
#define NOBODY ((uid_t)-2)
/* How long a worker pauses when the pages of a read are locked, before other reads get their turns. */
#define TURN_US 1000
#define TURNS 100u /* afterwards the read waits for its pages */

/* Lives from hand_over() until it has been carried out. */
struct handed {
	struct fs *fs;
	uid_t uid;
	enum lane lane;
	int64_t came; /* when it was received, by quick_ticks() */
	unsigned turns; /* how often its pages were found locked */
	unsigned kib; /* taken from QUOTA_waiting_kib; 0: none, since the request must not be refused */
	struct lock_call call; /* if serve_may_wait_for_lock() */
	size_t size;
	_Alignas(struct fuse_in_header) char bytes[];
};

static enum cache_has at_home(struct fs *fs, const struct fuse_read_in *read)
{
	const struct handle *h = handle_of(fs, read->fh);

	return h->passthrough || !h->cfile ? CACHE_HAS_NOT : cache_has(h->cfile, (off_t)read->offset, read->size);
}

static enum lane lane_of_read(struct fs *fs, const struct fuse_read_in *read)
{
	return at_home(fs, read) == CACHE_HAS_NOT ? LANE_READ : LANE_HOME;
}

/* Whether it is a client's release. The receiving thread carries that out: release_by_xattr() hands it to a worker. */
static bool is_release(const struct fs *fs, const struct fuse_in_header *in)
{
	const char *name = (const char *)(in + 1) + FUSE_COMPAT_SETXATTR_IN_SIZE;

	return !fs->writeback && (!strcmp(name, GAIA_XATTR_RELEASE) || !strcmp(name, GAIA_XATTR_RELEASEV));
}

/*
 * The lane for the request, and the user for whom it counts. LANES: it waits for nothing, and the thread that has received it
 * carries it out. A request that the kernel makes by itself, without naming a user, counts for the user who opened the file.
 */
static enum lane lane_of(struct fs *fs, const struct fuse_in_header *in, uid_t *uid)
{
	const void *arg = in + 1;
	const struct handle *h;

	*uid = in->uid;
	switch (in->opcode) {
	case FUSE_LOOKUP:
	case FUSE_GETATTR:
	case FUSE_READLINK:
	case FUSE_OPEN:
	case FUSE_OPENDIR:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
	case FUSE_GETXATTR:
	case FUSE_LISTXATTR:
	case FUSE_STATFS:
		return LANE_LOOK;
	case FUSE_READ:
		return lane_of_read(fs, arg);
	case FUSE_LSEEK:
		return LANE_READ;
	case FUSE_WRITE:
		if (((const struct fuse_write_in *)arg)->write_flags & FUSE_WRITE_CACHE)
			*uid = handle_of(fs, ((const struct fuse_write_in *)arg)->fh)->uid;
		return LANE_WRITE;
	case FUSE_FLUSH:
		h = handle_of(fs, ((const struct fuse_flush_in *)arg)->fh);
		return (h->flags & O_ACCMODE) == O_RDONLY && !fs->config.shared ? LANE_LOOK : LANE_CHANGE;
	case FUSE_SETXATTR:
		return is_release(fs, in) ? LANES : LANE_CHANGE;
	case FUSE_SETATTR:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_SYMLINK:
	case FUSE_LINK:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
	case FUSE_RENAME:
	case FUSE_RENAME2:
	case FUSE_CREATE:
	case OPCODE_TMPFILE:
	case FUSE_REMOVEXATTR:
	case FUSE_GETLK:
	case FUSE_SETLK:
	case FUSE_SETLKW:
	case FUSE_FSYNC:
	case FUSE_FSYNCDIR:
	case FUSE_FALLOCATE:
	case FUSE_COPY_FILE_RANGE:
	case OPCODE_COPY_FILE_RANGE_64:
		return LANE_CHANGE;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		*uid = handle_of(fs, ((const struct fuse_release_in *)arg)->fh)->uid;
		return LANE_END;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		/*
		 * The kernel's own requests, which may wait for storage: together they have as much of the lane
		 * as one user.
		 */
		*uid = NOBODY;
		return LANE_END;
	default:
		return LANES;
	}
}

/*
 * False for a write-back, whose bytes come from a program that may be gone, and for requests whose errors the
 * kernel does not report; nor for the end of a process's locks, of which there would be no other.
 */
static bool may_be_refused(const struct fs *fs, const struct fuse_in_header *in, enum lane lane)
{
	return lane != LANE_END && !(fs->config.shared && in->opcode == FUSE_FLUSH) &&
	       !(in->opcode == FUSE_WRITE &&
		 ((const struct fuse_write_in *)(in + 1))->write_flags & FUSE_WRITE_CACHE);
}

static void carry_out(void *arg);

/*
 * For reads of what is at home: false if the read can be carried out now, true if it was put off. While its pages are
 * locked it takes turns with other reads, because the holder may be waiting for storage. If the read itself must wait for
 * storage, it goes to another lane.
 */
static bool put_off(struct handed *h)
{
	const struct fuse_in_header *in = (const void *)h->bytes;
	enum cache_has has = at_home(h->fs, (const void *)(in + 1));

	if (has == CACHE_HAS_ALL)
		return false;
	if (has == CACHE_HAS_LOCKED && h->turns++ < TURNS)
		usleep(TURN_US);
	else
		h->lane = LANE_READ;
	lane_submit(h->fs, h->lane, h->uid, carry_out, h);
	return true;
}

static void carry_out(void *arg)
{
	static __thread bool initialised;
	struct handed *h = arg;
	struct fs *fs = h->fs;
	bool waits;
	int err;

	/*
	 * A worker must never use another caller's umask, so this must work. It fails for lack of memory only,
	 * which passes.
	 */
	while (!initialised && (err = cred_thread_init(fs))) {
		log_error("fuse: a umask for each thread: %s; trying again", strerror(-err));
		usleep(100000);
	}
	initialised = true;
	if (h->lane == LANE_HOME && put_off(h))
		return;
	request_came(h->came);
	waits = serve_may_wait_for_lock(fs, h->bytes); /* looked at before: opcodes are changed */
	serve_request(fs, h->bytes, h->size);
	if (waits)
		locks_call_ends(fs, &h->call);
	quota_give_many(fs->config.quota, QUOTA_waiting_kib, h->uid, h->kib);
	free(h);
	pthread_mutex_lock(&fs->lock);
	if (!--fs->n_handed)
		pthread_cond_broadcast(&fs->nothing_handed);
	pthread_mutex_unlock(&fs->lock);
}

bool hand_over(struct fs *fs, const void *request, size_t size)
{
	const struct fuse_in_header *in = request;
	uid_t uid;
	enum lane lane = serve_unknown(fs, in) ? LANES : lane_of(fs, in, &uid);
	unsigned kib = (unsigned)(size / 1024 + 1);
	struct handed *h;
	int err;

	if (lane == LANES)
		return false;
	if (!may_be_refused(fs, in, lane))
		kib = 0;
	err = quota_take_many(fs->config.quota, QUOTA_waiting_kib, uid, kib); /* logs */
	/* If it is others who have used up the memory, a small request of a user who has little is not refused. */
	if (err == -ENFILE && size <= SMALL_REQUEST) {
		kib = 0;
	} else if (err) {
		serve_refuse(fs, in, -ENOMEM);
		return true;
	}
	h = xmalloc(sizeof(*h) + size);
	*h = (struct handed){ .fs = fs, .uid = uid, .lane = lane, .kib = kib, .size = size, .came = request_times.came };
	memcpy(h->bytes, request, size);
	if (serve_may_wait_for_lock(fs, in))
		locks_call_begins(fs, &h->call, in->unique);
	pthread_mutex_lock(&fs->lock);
	fs->n_handed++;
	pthread_mutex_unlock(&fs->lock);
	lane_submit(fs, lane, uid, carry_out, h);
	return true;
}

bool hand_wait_until(struct fs *fs, uint64_t until)
{
	struct timespec t = { (time_t)(until / 1000000000), (long)(until % 1000000000) };
	bool done;

	pthread_mutex_lock(&fs->lock);
	while (fs->n_handed && pthread_cond_timedwait(&fs->nothing_handed, &fs->lock, &t) != ETIMEDOUT)
		;
	done = !fs->n_handed;
	pthread_mutex_unlock(&fs->lock);
	return done;
}

void hand_wait(struct fs *fs)
{
	pthread_mutex_lock(&fs->lock);
	while (fs->n_handed)
		pthread_cond_wait(&fs->nothing_handed, &fs->lock);
	pthread_mutex_unlock(&fs->lock);
}
