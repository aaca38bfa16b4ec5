/*
 * inode.c - the table of inodes.
 *
 * An inode holds its file by an O_PATH descriptor, the one handle that survives renames and unlinks and
 * needs no privilege. Descriptors are finite, so above fs->max_inodes a worker asks the kernel to forget
 * the files that were looked up longest ago and are not open; directories stay, because dropping
 * one from the kernel's cache would pull it from under whoever has it as working directory.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Descriptors beyond this many would only hold memory of the kernel's that could be put to better use. */
#define MAX_INODES (256u << 10)
/* Asked to be forgotten in one go. */
#define PRUNE_BATCH 256

/* Freed memory goes back to the system when a peak of at least so many inodes is over. */
#define PEAK_WORTH_TRIMMING 8192

struct fd_path fd_path(int fd)
{
	struct fd_path p;

	snprintf(p.text, sizeof(p.text), "/proc/self/fd/%d", fd);
	return p;
}

int inode_open_fd(const struct inode *inode, int flags)
{
	int fd = open(fd_path(inode->fd).text, flags | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static int inode_init(struct inode *inode, struct fs *fs, int fd, const struct stat *st)
{
	inode->fs = fs;
	inode->key = (struct inode_key){ .dev = st->st_dev, .ino = st->st_ino };
	inode->type = st->st_mode & S_IFMT;
	inode->fd = fd;
	inode->read_fd = -1;
	inode->write_fd = -1;
	return -pthread_mutex_init(&inode->lock, NULL);
}

int inode_table_init(struct fs *fs)
{
	struct rlimit limit;
	struct stat st;
	int fd, err;

	fd = openat(fs->source_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st)) {
		err = -errno;
		goto close_fd;
	}
	err = inode_init(&fs->root, fs, fd, &st);
	if (err)
		goto close_fd;
	fs->root.id = ++fs->last_id;
	fs->root.refs = 1;
	fs->root.lookups = 1;
	TAILQ_INIT(&fs->order);
	fs->max_inodes = MAX_INODES;
	if (!getrlimit(RLIMIT_NOFILE, &limit))
		fs->max_inodes = (unsigned)MIN((rlim_t)MAX_INODES, limit.rlim_cur / 2);
	return 0;

close_fd:
	close(fd);
	return err;
}

static void inode_free(struct inode *inode)
{
	close(inode->fd);
	pthread_mutex_destroy(&inode->lock);
	free(inode->name);
	free(inode);
}

/* fs->lock held. The last reference is gone: returns the parent, whose reference is the caller's now. */
static struct inode *inode_unlist(struct inode *inode)
{
	struct fs *fs = inode->fs;

	bug_on(inode->lookups || inode->cfiles || inode->opens);
	HASH_DEL(fs->inodes, inode);
	TAILQ_REMOVE(&fs->order, inode, link);
	fs->n_inodes--;
	return inode->parent;
}

/* fs->lock held. What is to be freed when it no longer is, linked by parent. */
static struct inode *inode_drop(struct inode *inode)
{
	struct inode *dead = NULL;

	while (inode) {
		struct inode *parent;

		bug_on(!inode->refs);
		if (--inode->refs)
			break;
		parent = inode_unlist(inode);
		inode->parent = dead;
		dead = inode;
		inode = parent;
	}
	return dead;
}

static void trim_memory(void *unused)
{
	malloc_trim(0);
}

static void inode_free_all(struct fs *fs, struct inode *dead)
{
	bool trim = false;

	if (!dead)
		return;
	while (dead) {
		struct inode *next = dead->parent;

		inode_free(dead);
		dead = next;
	}
	pthread_mutex_lock(&fs->lock);
	if (fs->peak_inodes >= PEAK_WORTH_TRIMMING && fs->n_inodes < fs->peak_inodes / 8) {
		fs->peak_inodes = fs->n_inodes;
		trim = true;
	}
	pthread_mutex_unlock(&fs->lock);
	if (trim && fs->workers)
		pool_submit(fs->workers, trim_memory, NULL);
}

void inode_put(struct inode *inode)
{
	struct fs *fs = inode->fs;
	struct inode *dead;

	pthread_mutex_lock(&fs->lock);
	dead = inode_drop(inode);
	pthread_mutex_unlock(&fs->lock);
	inode_free_all(fs, dead);
}

void inode_forget(struct inode *inode, uint64_t n)
{
	struct fs *fs = inode->fs;
	struct inode *dead = NULL;
	bool tell_cache = false;
	uint64_t id = inode->id;

	if (inode == &fs->root)
		return;
	pthread_mutex_lock(&fs->lock);
	if (n > inode->lookups)
		bug("inode %lu: %lu of %lu lookups forgotten", (unsigned long)inode->key.ino,
		    (unsigned long)n, (unsigned long)inode->lookups);
	inode->lookups -= n;
	if (!inode->lookups) {
		tell_cache = inode->cfiles;
		dead = inode_drop(inode);
	}
	pthread_mutex_unlock(&fs->lock);
	if (tell_cache)
		cache_forget(fs->cache, id);
	inode_free_all(fs, dead);
}

bool inode_crowded(struct fs *fs)
{
	bool crowded;

	pthread_mutex_lock(&fs->lock);
	crowded = fs->n_inodes > fs->max_inodes;
	pthread_mutex_unlock(&fs->lock);
	return crowded;
}

/* fs->lock held. References to @inode and its parent are taken if the kernel may be asked to forget it. */
static bool prune_candidate(struct inode *inode)
{
	if (!inode->lookups || inode->opens || inode->type == S_IFDIR || !inode->parent)
		return false;
	inode->refs++;
	inode->parent->refs++;
	return true;
}

/* A worker: notifications wait for the kernel's lock of the directory. */
static void prune(void *arg)
{
	struct fs *fs = arg;
	struct prune_entry {
		struct inode *inode, *parent;
		char *name;
	} batch[PRUNE_BATCH];
	unsigned left;

	pthread_mutex_lock(&fs->lock);
	left = fs->n_inodes; /* each is looked at once at most */
	while (left && fs->n_inodes > fs->max_inodes - fs->max_inodes / 4 && !fs->quiescing) {
		unsigned n = 0;

		while (left && n < PRUNE_BATCH) {
			struct inode *inode = TAILQ_FIRST(&fs->order);

			left--;
			if (!inode)
				break;
			TAILQ_REMOVE(&fs->order, inode, link);
			TAILQ_INSERT_TAIL(&fs->order, inode, link);
			if (!prune_candidate(inode))
				continue;
			batch[n++] = (struct prune_entry){ inode, inode->parent,
							   strdup(inode->name) };
		}
		pthread_mutex_unlock(&fs->lock);
		for (unsigned i = 0; i < n; i++) {
			if (batch[i].name)
				fuse_lowlevel_notify_inval_entry(fs->session,
								 nodeid_of(batch[i].parent),
								 batch[i].name,
								 strlen(batch[i].name));
			free(batch[i].name);
			inode_put(batch[i].inode);
			inode_put(batch[i].parent);
		}
		pthread_mutex_lock(&fs->lock);
	}
	fs->pruning = false;
	pthread_mutex_unlock(&fs->lock);
	busy_end(fs);
}

/* fs->lock held. Returns what is to be freed. */
static struct inode *set_name(struct inode *inode, struct inode *parent, char *name)
{
	struct inode *old = inode->parent;

	inode->parent = parent;
	inode->name = name;
	if (parent)
		parent->refs++;
	return old ? inode_drop(old) : NULL;
}

void inode_rename(struct inode *inode, struct inode *parent, const char *name)
{
	struct fs *fs = inode->fs;
	char *copy = strdup(name), *old;
	struct inode *dead;

	if (!copy)
		return;
	pthread_mutex_lock(&fs->lock);
	old = inode->name;
	dead = set_name(inode, parent, copy);
	pthread_mutex_unlock(&fs->lock);
	free(old);
	inode_free_all(fs, dead);
}

int inode_enter(struct fs *fs, int fd, struct inode *parent, const char *name, struct inode **out,
		struct stat *st)
{
	struct inode *inode, *new = NULL;
	struct inode_key key;
	bool start_pruning = false;
	int err;

	if (fstat(fd, st)) {
		err = -errno;
		goto close_fd;
	}
	memset(&key, 0, sizeof(key));
	key.dev = st->st_dev;
	key.ino = st->st_ino;

	pthread_mutex_lock(&fs->lock);
	HASH_FIND(hh, fs->inodes, &key, sizeof(key), inode);
	if (!inode) {
		/* Made without the lock; somebody else may come first. */
		pthread_mutex_unlock(&fs->lock);
		err = -ENOMEM;
		new = calloc(1, sizeof(*new));
		if (!new)
			goto close_fd;
		if (name) {
			new->name = strdup(name);
			if (!new->name)
				goto free_new;
		}
		err = inode_init(new, fs, fd, st);
		if (err)
			goto free_new;
		pthread_mutex_lock(&fs->lock);
		HASH_FIND(hh, fs->inodes, &key, sizeof(key), inode);
	}
	if (!inode) {
		inode = new;
		new = NULL;
		fd = -1;
		inode->id = ++fs->last_id;
		if (inode->name)
			set_name(inode, parent, inode->name);
		HASH_ADD(hh, fs->inodes, key, sizeof(key), inode);
		fs->n_inodes++;
		fs->peak_inodes = MAX(fs->peak_inodes, fs->n_inodes);
	} else {
		TAILQ_REMOVE(&fs->order, inode, link);
	}
	TAILQ_INSERT_TAIL(&fs->order, inode, link);
	if (!inode->lookups++)
		inode->refs++;
	if (fs->n_inodes > fs->max_inodes && !fs->pruning) {
		fs->pruning = true;
		start_pruning = true;
	}
	pthread_mutex_unlock(&fs->lock);

	if (new) {
		inode_free(new); /* with the descriptor */
		fd = -1;
	}
	if (fd >= 0)
		close(fd);
	if (start_pruning && busy_begin(fs, false))
		pool_submit(fs->workers, prune, fs);
	*out = inode;
	return 0;

free_new:
	free(new->name);
	free(new);
close_fd:
	close(fd);
	return err;
}

struct inode *inode_known(struct fs *fs, struct inode *parent, const char *name)
{
	struct inode *inode;
	struct inode_key key;
	struct stat st;

	if (fstatat(parent->fd, name, &st, AT_SYMLINK_NOFOLLOW))
		return NULL;
	memset(&key, 0, sizeof(key));
	key.dev = st.st_dev;
	key.ino = st.st_ino;
	pthread_mutex_lock(&fs->lock);
	HASH_FIND(hh, fs->inodes, &key, sizeof(key), inode);
	if (inode)
		inode->refs++;
	pthread_mutex_unlock(&fs->lock);
	return inode;
}

void inode_table_destroy(struct fs *fs)
{
	struct inode *inode, *next;

	HASH_CLEAR(hh, fs->inodes);
	for (inode = TAILQ_FIRST(&fs->order); inode; inode = next) {
		next = TAILQ_NEXT(inode, link);
		bug_on(inode->cfiles || inode->opens);
		inode_free(inode);
	}
	close(fs->root.fd);
	pthread_mutex_destroy(&fs->root.lock);
}
