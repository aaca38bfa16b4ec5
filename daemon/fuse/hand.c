/*
 * hand.c - requests that workers carry out while all threads that serve are at work.
 *
 * Usually who receives a request carries it out: to wake another thread costs more than most requests. That ends when
 * all threads that serve wait for something, storage that does not answer for one. Then the spare receives (receive.c),
 * which must not wait itself: it hands what may wait to workers, by what a request may wait for (enum lane), and for
 * whom: a user has a part of each lane, so that what he has under way holds up neither others nor his own requests of
 * another kind.
 *
 * What finds no worker waits for its turn, in memory of ours, which is limited for each user.
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

/* Newer than Debian 12's kernel headers might be. */
#define OPCODE_TMPFILE 51

#define SMALL_REQUEST 4096u /* bytes: names and attributes, reads, but hardly any write(2) */
#define NOBODY ((uid_t)-2)
/* A worker's pause for a read whose pages are locked, before others have their turns. */
#define TURN_US 1000
#define TURNS 100u /* then it waits in line for its pages */

/* Lives from hand_over() until it has been carried out. */
struct handed {
	struct fs *fs;
	uid_t uid;
	enum lane lane;
	unsigned turns; /* in which its pages were locked */
	unsigned kib; /* of QUOTA_waiting_kib; 0: not counted, since it must not be refused */
	size_t size;
	_Alignas(struct fuse_in_header) char bytes[];
};

static const struct handle *handle_at(uint64_t fh)
{
	return (const struct handle *)(uintptr_t)fh;
}

static enum cache_has at_home(const struct fuse_read_in *read)
{
	const struct handle *h = handle_at(read->fh);

	return h->passthrough ? CACHE_HAS_NOT : cache_has(h->cfile, (off_t)read->offset, read->size);
}

static enum lane lane_of_read(const struct fuse_read_in *read)
{
	return at_home(read) == CACHE_HAS_NOT ? LANE_READ : LANE_HOME;
}

/* A release of a client's: its worker is found by who decodes it. */
static bool is_release(const struct fs *fs, const struct fuse_in_header *in)
{
	const char *name = (const char *)(in + 1) + FUSE_COMPAT_SETXATTR_IN_SIZE;

	return !fs->writeback && !strcmp(name, GAIA_XATTR_RELEASE);
}

/*
 * Where the request is to be carried out, and as whose it counts; LANES: by who has received it, since it waits for
 * nothing. What the kernel does by itself, without saying for whom, is done for who opened the file.
 */
static enum lane lane_of(const struct fs *fs, const struct fuse_in_header *in, uid_t *uid)
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
		return lane_of_read(arg);
	case FUSE_LSEEK:
		return LANE_READ;
	case FUSE_WRITE:
		if (((const struct fuse_write_in *)arg)->write_flags & FUSE_WRITE_CACHE)
			*uid = handle_at(((const struct fuse_write_in *)arg)->fh)->uid;
		return LANE_WRITE;
	case FUSE_FLUSH:
		h = handle_at(((const struct fuse_flush_in *)arg)->fh);
		return (h->flags & O_ACCMODE) == O_RDONLY ? LANE_LOOK : LANE_CHANGE;
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
	case FUSE_FSYNC:
	case FUSE_FSYNCDIR:
	case FUSE_FALLOCATE:
	case FUSE_COPY_FILE_RANGE:
		return LANE_CHANGE;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		*uid = handle_at(((const struct fuse_release_in *)arg)->fh)->uid;
		return LANE_END;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		/* The kernel's own, which may wait for storage: no more of the lane than a user's. */
		*uid = NOBODY;
		return LANE_END;
	default:
		return LANES;
	}
}

/* The kernel has taken these bytes from a program that is gone, or does not hear of an error. */
static bool may_be_refused(const struct fuse_in_header *in, enum lane lane)
{
	return lane != LANE_END &&
	       !(in->opcode == FUSE_WRITE &&
		 ((const struct fuse_write_in *)(in + 1))->write_flags & FUSE_WRITE_CACHE);
}

static void refuse(struct fs *fs, const struct fuse_in_header *in, int err)
{
	struct fuse_out_header out = { .len = sizeof(out), .error = err, .unique = in->unique };

	/* ENOENT: nobody waits for it any more. */
	if (write(fuse_session_fd(fs->session), &out, sizeof(out)) < 0 && errno != ENOENT)
		log_debug("fuse: answering: %s", strerror(errno));
}

static void carry_out(void *arg);

/*
 * Among reads of what is at home: whether this one is to be carried out, or was put off. While somebody has its pages
 * it takes turns with others, for he may wait for storage. It waits for storage itself, in another lane, if it must.
 */
static bool put_off(struct handed *h)
{
	const struct fuse_in_header *in = (const void *)h->bytes;
	enum cache_has has = at_home((const void *)(in + 1));

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
	int err;

	/* Not with somebody else's umask. There is no memory: that passes. */
	while (!initialised && (err = cred_thread_init(fs))) {
		log_error("fuse: a umask for each thread: %s; trying again", strerror(-err));
		usleep(100000);
	}
	initialised = true;
	if (h->lane == LANE_HOME && put_off(h))
		return;
	serve_request(fs, h->bytes, h->size);
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
	enum lane lane = lane_of(fs, in, &uid);
	unsigned kib = (unsigned)(size / 1024 + 1);
	struct handed *h;
	int err;

	if (lane == LANES)
		return false;
	if (!may_be_refused(in, lane))
		kib = 0;
	err = quota_take_many(fs->config.quota, QUOTA_waiting_kib, uid, kib); /* logs */
	/* What others have used up is no reason to refuse who has little, and asks for little. */
	if (err == -ENFILE && size <= SMALL_REQUEST) {
		kib = 0;
	} else if (err) {
		refuse(fs, in, -ENOMEM);
		return true;
	}
	h = xmalloc(sizeof(*h) + size);
	*h = (struct handed){ .fs = fs, .uid = uid, .lane = lane, .kib = kib, .size = size };
	memcpy(h->bytes, request, size);
	pthread_mutex_lock(&fs->lock);
	fs->n_handed++;
	pthread_mutex_unlock(&fs->lock);
	lane_submit(fs, lane, uid, carry_out, h);
	return true;
}

void hand_wait(struct fs *fs)
{
	pthread_mutex_lock(&fs->lock);
	while (fs->n_handed)
		pthread_cond_wait(&fs->nothing_handed, &fs->lock);
	pthread_mutex_unlock(&fs->lock);
}
