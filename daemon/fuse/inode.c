/*
 * inode.c - the table of inodes, and their descriptors.
 *
 * A file is used through an O_PATH descriptor, which survives renames and needs no privilege. The kernel
 * remembers more files than there are descriptors. So above fs->max_fds the descriptor that has been
 * unused for longest is closed, and opened again by the file's name when it is needed. The name is still
 * right then: only the mount changes the tree, and code that changes a name holds the descriptor
 * meanwhile. A file for which no name is known keeps its descriptor.
 */
#include "base/fault.h"
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* More descriptors than this would only pin kernel memory. */
#define MAX_FDS (64u << 10)

/* In a shared source: how many directories above a file are opened again for it. Each takes some of the thread's stack. */
#define MAX_DEPTH 4096

/* After a peak of at least this many inodes, freed memory is given back to the system. */
#define PEAK_WORTH_TRIMMING 8192

struct fd_path fd_path(int fd)
{
	struct fd_path p;

	snprintf(p.text, sizeof(p.text), "/proc/self/fd/%d", fd);
	return p;
}

int errno_below(int err)
{
	return err == ENOTCONN || err == ECONNABORTED || err == ESHUTDOWN ? EIO : err;
}

/* Attributes and identity of @name below @fd; of @fd itself if @name is "". */
static int identify(const struct fs *fs, int fd, const char *name, struct stat *st, struct inode_key *key)
{
	const int flags = fault_point("break.plain_stat") ? 0 : fs_statx_flags(fs);
	struct statx x;

	if (statx(fd, name, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | flags,
		  STATX_BASIC_STATS | STATX_BTIME, &x))
		return -errno_below(errno);
	*st = (struct stat){
		.st_dev = makedev(x.stx_dev_major, x.stx_dev_minor),
		.st_ino = x.stx_ino,
		.st_mode = x.stx_mode,
		.st_nlink = x.stx_nlink,
		.st_uid = x.stx_uid,
		.st_gid = x.stx_gid,
		.st_rdev = makedev(x.stx_rdev_major, x.stx_rdev_minor),
		.st_size = (off_t)x.stx_size,
		.st_blksize = x.stx_blksize,
		.st_blocks = (blkcnt_t)x.stx_blocks,
		.st_atim = { x.stx_atime.tv_sec, x.stx_atime.tv_nsec },
		.st_mtim = { x.stx_mtime.tv_sec, x.stx_mtime.tv_nsec },
		.st_ctim = { x.stx_ctime.tv_sec, x.stx_ctime.tv_nsec },
	};
	*key = (struct inode_key){ .dev = st->st_dev, .ino = st->st_ino };
	if (x.stx_mask & STATX_BTIME)
		key->born = x.stx_btime.tv_sec * 1000000000ll + x.stx_btime.tv_nsec;
	return 0;
}

int inode_stat(const struct fs *fs, int fd, struct stat *st)
{
	struct inode_key key;

	if (!fs->config.shared)
		return fstat(fd, st) ? -errno_below(errno) : 0;
	return identify(fs, fd, "", st, &key);
}

static bool same_file(const struct inode_key *a, const struct inode_key *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->born == b->born;
}

/* ---- descriptors ---- */

/* fs->lock held, as for all of this section. */
static void unlist_idle(struct inode *inode)
{
	if (!inode->on_idle)
		return;
	TAILQ_REMOVE(&inode->fs->idle, inode, link);
	inode->fs->n_idle--;
	inode->on_idle = false;
}

/* Returns a descriptor for the caller to close without the lock; -1: there is no surplus. */
static int take_surplus(struct fs *fs)
{
	struct inode *inode = TAILQ_FIRST(&fs->idle);
	int fd;

	if (fs->n_fds + fs->n_dirs <= fs->max_fds || !inode)
		return -1;
	unlist_idle(inode);
	fs->n_fds--;
	fd = inode->fd;
	inode->fd = -1;
	return fd;
}

/* Put the inode on the idle list, or take it off: to be called after any change that decides which. */
static void relist_idle(struct inode *inode)
{
	unlist_idle(inode);
	if (inode->fd < 0 || inode->fd_uses || !inode->parent)
		return;
	TAILQ_INSERT_TAIL(&inode->fs->idle, inode, link);
	inode->fs->n_idle++;
	inode->on_idle = true;
}

/* The file has a name again, or the inode goes away. */
static void not_removed(struct inode *inode)
{
	if (inode->removed)
		quota_give(inode->fs->config.quota, QUOTA_removed_files, inode->remover);
	inode->removed = false;
}

/*
 * Open the file by a name that it had a moment ago. -ESTALE: the name leads to nothing, or to another file.
 * fs->lock is not held.
 */
static int reopen(const struct inode_key *wanted, mode_t type, struct inode *parent, const char *name)
{
	static __thread unsigned depth; /* of directories above that have to be opened, too */
	struct inode_key key = { .dev = 0 };
	struct stat st = { .st_mode = 0 };
	int dir, fd, err;

	if (depth >= MAX_DEPTH && parent->fs->config.shared)
		return -ENAMETOOLONG;
	depth++;
	dir = inode_fd_get(parent);
	depth--;
	if (dir < 0)
		return dir;
	fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	err = fd < 0 ? -errno_below(errno) : identify(parent->fs, fd, "", &st, &key);
	inode_fd_put(parent);
	if (!err && (!same_file(&key, wanted) || (st.st_mode & S_IFMT) != type))
		err = -ESTALE;
	if (!err)
		return fd;
	if (fd >= 0)
		close(fd);
	return err == -ENOENT ? -ESTALE : err;
}

/* 0: look again whether the inode has a descriptor. fs->lock is held, but dropped meanwhile. */
static int inode_reopen(struct inode *inode)
{
	struct fs *fs = inode->fs;
	struct inode *parent = inode->parent;
	const struct inode_key key = inode->key;
	char *name = strdup(inode->name);
	int fd, err = 0;

	parent->refs++;
	pthread_mutex_unlock(&fs->lock);
	fd = name ? reopen(&key, inode->type, parent, name) : -ENOMEM;
	pthread_mutex_lock(&fs->lock);
	if (fd < 0 && (!name || (inode->parent == parent && !strcmp(inode->name, name))))
		err = fd; /* it was not renamed meanwhile, so that is not the reason */
	if (fd >= 0 && inode->fd < 0) {
		inode->fd = fd;
		fs->n_fds++;
		fd = -1;
	}
	pthread_mutex_unlock(&fs->lock);
	if (fd >= 0)
		close(fd);
	free(name);
	inode_put(parent);
	pthread_mutex_lock(&fs->lock);
	return err;
}

int inode_fd_get(struct inode *inode)
{
	struct fs *fs = inode->fs;
	int fd, surplus, err = 0;

	pthread_mutex_lock(&fs->lock);
	while (inode->fd < 0 && !err)
		err = inode_reopen(inode);
	fd = inode->fd;
	if (fd >= 0) {
		unlist_idle(inode);
		inode->fd_uses++;
		inode->refs++;
	}
	surplus = take_surplus(fs);
	pthread_mutex_unlock(&fs->lock);
	if (surplus >= 0)
		close(surplus);
	return fd >= 0 ? fd : err;
}

/* ---- the table ---- */

static int inode_init(struct inode *inode, struct fs *fs, int fd, mode_t mode,
		      const struct inode_key *key)
{
	inode->fs = fs;
	inode->key = *key;
	inode->type = mode & S_IFMT;
	inode->fd = fd;
	inode->read_fd = -1;
	inode->write_fd = -1;
	return -pthread_mutex_init(&inode->lock, NULL);
}

static void share_fds(struct fs *fs)
{
	struct rlimit limit;
	uint64_t third;

	/*
	 * A third of the descriptors is for inodes, a third for store files (each may have two), a sixth for
	 * open directories.
	 */
	fs->max_fds = MAX_FDS;
	fs->most_fds = UINT_MAX;
	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		third = limit.rlim_cur / 3;
		fs->max_fds = (unsigned)MIN(MAX_FDS, third);
		/* Where open directories are few, inodes whose descriptors cannot be closed may have that sixth, too. */
		fs->most_fds = (unsigned)MIN(UINT_MAX, third + third / 2);
		quota_cap(fs->config.quota, QUOTA_removed_files, (unsigned)MIN(UINT_MAX, limit.rlim_cur));
		quota_cap(fs->config.quota, QUOTA_directories, (unsigned)MIN(UINT_MAX, third / 2));
		/*
		 * Clients have a part of the last sixth. The rest of it is for devices, and for files that are
		 * open for a moment.
		 */
		quota_cap(fs->config.quota, QUOTA_clients, (unsigned)MIN(UINT_MAX, third / 4));
		quota_cap(fs->config.quota, QUOTA_lists, (unsigned)MIN(UINT_MAX, third / 8));
		quota_cap(fs->config.quota, QUOTA_reports, (unsigned)MIN(UINT_MAX, third / 16));
		/* Of a shared source some of these are store files, for devices. */
		quota_cap(fs->config.quota, QUOTA_shared_files, (unsigned)MIN(UINT_MAX, third / 2));
		quota_cap(fs->config.quota, QUOTA_lock_owners, (unsigned)MIN(UINT_MAX, third / 4));
	}
	fs->max_backings = fs->config.shared ? fs->max_fds / 8 : fs->max_fds / 2;
}

int inode_table_init(struct fs *fs)
{
	struct inode_key key;
	struct stat st;
	int fd, err;

	/* getrandom() fails only before the machine has booted. */
	while (getrandom(&fs->generation, sizeof(fs->generation), 0) != sizeof(fs->generation))
		;
	fd = fs->config.predecessor < 0 ? mount_open_source(fs) : fs->root_fd;
	if (fd < 0)
		return fd;
	err = identify(fs, fd, "", &st, &key);
	if (!err)
		err = inode_init(&fs->root, fs, fd, st.st_mode, &key);
	if (err) {
		close(fd);
		return err;
	}
	fs->root.id = FUSE_ROOT_ID;
	fs->root.refs = 1;
	fs->root.lookups = 1;
	id_table_init(&fs->inodes_by_id, ID_TABLE_MAX);
	id_table_init(&fs->handles, ID_TABLE_MAX);
	TAILQ_INIT(&fs->idle);
	TAILQ_INIT(&fs->backings);
	share_fds(fs);
	return 0;
}

static void inode_free(struct inode *inode)
{
	if (inode->fd >= 0)
		close(inode->fd);
	pthread_mutex_destroy(&inode->lock);
	free(inode->name);
	free(inode);
}

/* Drop a reference. Returns the inodes that the caller must free without the lock, linked by `parent`. fs->lock is held. */
static struct inode *inode_drop(struct inode *inode)
{
	struct inode *dead = NULL;

	while (inode) {
		struct fs *fs = inode->fs;
		struct inode *parent;

		bug_on(!inode->refs);
		if (--inode->refs)
			break;
		bug_on(inode->lookups || inode->cfiles || inode->fd_uses);
		HASH_DEL(fs->inodes, inode);
		id_table_remove(&fs->inodes_by_id, inode->id);
		unlist_idle(inode);
		not_removed(inode);
		fs->n_fds -= inode->fd >= 0;
		parent = inode->parent;
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
	if (fs->peak_inodes >= PEAK_WORTH_TRIMMING &&
	    HASH_COUNT(fs->inodes) < fs->peak_inodes / 8) {
		fs->peak_inodes = HASH_COUNT(fs->inodes);
		trim = true;
	}
	pthread_mutex_unlock(&fs->lock);
	if (trim)
		pool_submit(fs->lane[LANE_QUERY], trim_memory, NULL);
}

void inode_fd_put(struct inode *inode)
{
	struct fs *fs = inode->fs;
	struct inode *dead;

	pthread_mutex_lock(&fs->lock);
	bug_on(!inode->fd_uses);
	if (!--inode->fd_uses)
		relist_idle(inode);
	dead = inode_drop(inode);
	pthread_mutex_unlock(&fs->lock);
	inode_free_all(fs, dead);
}

int inode_open(struct inode *inode, int flags)
{
	int fd = inode_fd_get(inode), opened;

	if (fd < 0)
		return fd;
	opened = open(fd_path(fd).text, flags | O_CLOEXEC);
	if (opened < 0)
		opened = -errno_below(errno);
	inode_fd_put(inode);
	return opened;
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

void inode_restored(struct inode *inode)
{
	pthread_mutex_lock(&inode->fs->lock);
	relist_idle(inode);
	pthread_mutex_unlock(&inode->fs->lock);
	inode_put(inode);
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

/* Whether @dir is @inode, or below it, by the names that are known: then @inode cannot get one in it. fs->lock is held. */
static bool is_below(const struct inode *dir, const struct inode *inode)
{
	while (dir && dir != inode)
		dir = dir->parent;
	return dir;
}

/* Consumes @name. Returns inodes to be freed, as inode_drop(); *@old: the former name, to be freed. fs->lock is held. */
static struct inode *set_name(struct inode *inode, struct inode *parent, char *name, char **old)
{
	struct inode *former = inode->parent;

	*old = inode->name;
	inode->parent = parent;
	inode->name = name;
	if (parent) {
		parent->refs++;
		not_removed(inode);
	}
	relist_idle(inode);
	return former ? inode_drop(former) : NULL;
}

/* fs->lock is held. */
static void retire(struct inode *inode)
{
	struct fs *fs = inode->fs;
	int64_t never = -(int64_t)inode->id; /* no file is born then */

	if (inode == &fs->root || inode->key.born == never)
		return;
	HASH_DEL(fs->inodes, inode);
	inode->key.born = never;
	HASH_ADD(hh, fs->inodes, key, sizeof(inode->key), inode);
}

void inode_retire(struct inode *inode)
{
	pthread_mutex_lock(&inode->fs->lock);
	retire(inode);
	pthread_mutex_unlock(&inode->fs->lock);
}

void inode_renamed(struct inode *inode, struct inode *parent, const char *name)
{
	struct fs *fs = inode->fs;
	char *copy = strdup(name), *old;
	struct inode *dead;

	/* Without memory for the name the inode counts as nameless, and so keeps its descriptor. */
	pthread_mutex_lock(&fs->lock);
	if (fs->config.shared && is_below(parent, inode)) {
		dead = NULL; /* see takes_name() */
		old = copy;
	} else {
		dead = set_name(inode, copy ? parent : NULL, copy, &old);
	}
	pthread_mutex_unlock(&fs->lock);
	free(old);
	inode_free_all(fs, dead);
}

void inode_unnamed(struct inode *inode, struct inode *parent, const char *name)
{
	struct fs *fs = inode->fs;
	struct inode *dead = NULL;
	char *old = NULL;

	pthread_mutex_lock(&fs->lock);
	if (inode->parent == parent && !strcmp(inode->name, name))
		dead = set_name(inode, NULL, NULL, &old);
	pthread_mutex_unlock(&fs->lock);
	free(old);
	inode_free_all(fs, dead);
}

/* A new inode with @fd, not in the table. */
static struct inode *inode_new(struct fs *fs, int fd, mode_t mode, const struct inode_key *key)
{
	struct inode *inode = calloc(1, sizeof(*inode));

	if (inode && inode_init(inode, fs, fd, mode, key)) {
		free(inode);
		inode = NULL;
	}
	return inode;
}

/* Whether a file system that is mounted below the source, at @fd, is not to be served: -EREMOTE. */
static int refuse_mounted(struct fs *fs, int fd)
{
	char type[SOURCE_TYPE_SIZE], path[PATH_MAX];
	ssize_t n;

	if (fs->config.trusts_source || source_kind(fd, type) != SOURCE_SHARED)
		return 0;
	if (log_may(&fs->remote_pace)) {
		n = readlink(fd_path(fd).text, path, sizeof(path) - 1);
		path[MAX(n, 0)] = '\0';
		log_warn("%s: is not served (EREMOTE): other machines may change the files of %s, which is mounted there; if none uses them "
			 "meanwhile, say --source exclusive", path, type);
	}
	return -EREMOTE;
}

struct handle_of_file {
	struct file_handle head;
	unsigned char bytes[MAX_HANDLE_SZ];
};

/* Waits for nothing: it is made from what the kernel knows of the file. */
static bool get_handle(int fd, struct handle_of_file *out)
{
	int mount;

	out->head.handle_bytes = sizeof(out->bytes);
	return !name_to_handle_at(fd, "", &out->head, &mount, AT_EMPTY_PATH);
}

/*
 * Whether @fd, of a shared source, is another file than the inode's, though it has the same number: where the file system knows no time of
 * birth its own names for the two tell that. fs->lock is held, as for the next one.
 */
static bool is_successor(const struct inode *inode, int fd)
{
	struct handle_of_file of_inode, of_fd;

	if (!inode->fs->config.shared || inode->key.born || inode->fd < 0 || !get_handle(inode->fd, &of_inode) || !get_handle(fd, &of_fd))
		return false;
	return of_inode.head.handle_type != of_fd.head.handle_type || of_inode.head.handle_bytes != of_fd.head.handle_bytes ||
	       memcmp(of_inode.bytes, of_fd.bytes, of_fd.head.handle_bytes) != 0;
}

/*
 * Whether the inode is to be known by this name from now on: it has none, or others may have given it this one instead. If it would be below
 * itself, names of others between are old: then it keeps its own until these have been looked up.
 */
static bool takes_name(const struct inode *inode, const struct inode *parent, const char *name)
{
	if (!inode->fs->config.shared)
		return !inode->parent;
	return (!inode->parent || inode->parent != parent || strcmp(inode->name, name) != 0) && !is_below(parent, inode);
}

int inode_enter(struct fs *fs, int fd, struct inode *parent, const char *name, struct inode **out,
		struct stat *st)
{
	struct inode *inode, *new, *dead = NULL;
	char *copy = NULL, *old;
	struct inode_key key;
	int err, surplus;

	err = identify(fs, fd, "", st, &key);
	if (!err && key.dev != (parent ? parent : &fs->root)->key.dev)
		err = refuse_mounted(fs, fd);
	if (err)
		goto close_fd;
	/* The name's copy and the inode are made before the lock is taken, though neither may be needed. */
	err = -ENOMEM;
	if (name && !(copy = strdup(name)))
		goto close_fd;
	new = inode_new(fs, fd, st->st_mode, &key);
	if (!new)
		goto free_name;

	pthread_mutex_lock(&fs->lock);
	HASH_FIND(hh, fs->inodes, &key, sizeof(key), inode);
	if (inode && (is_successor(inode, fd) || (fs->config.shared && inode->type != (st->st_mode & S_IFMT)))) {
		retire(inode);
		inode = NULL;
	}
	if (!inode) {
		err = id_table_add(&fs->inodes_by_id, new, &new->id);
		if (err)
			goto unlock;
		inode = new;
		new = NULL;
		fs->n_fds++;
		HASH_ADD(hh, fs->inodes, key, sizeof(key), inode);
		fs->peak_inodes = MAX(fs->peak_inodes, HASH_COUNT(fs->inodes));
	} else if (inode->fd < 0) {
		inode->fd = fd;
		new->fd = -1;
		fs->n_fds++;
	}
	if (!inode->lookups++)
		inode->refs++;
	if (copy && takes_name(inode, parent, copy)) {
		dead = set_name(inode, parent, copy, &old);
		copy = old;
	} else {
		relist_idle(inode);
	}
	surplus = take_surplus(fs);
	pthread_mutex_unlock(&fs->lock);

	if (new)
		inode_free(new); /* and the descriptor, if it was not needed */
	if (surplus >= 0)
		close(surplus);
	free(copy);
	inode_free_all(fs, dead);
	*out = inode;
	return 0;

unlock:
	pthread_mutex_unlock(&fs->lock);
	inode_free(new); /* and the descriptor */
	free(copy);
	return err;
free_name:
	free(copy);
close_fd:
	close(fd);
	return err;
}

int inode_room(struct fs *fs, uid_t uid)
{
	bool full;

	if (quota_is_owner(fs->config.quota, uid))
		return 0;
	pthread_mutex_lock(&fs->lock);
	full = fs->n_fds - fs->n_idle + fs->n_dirs >= fs->most_fds;
	pthread_mutex_unlock(&fs->lock);
	if (!full)
		return 0;
	if (log_may(&fs->fds_pace))
		log_warn("user %u is refused: users have too many removed files in use, or directories open; raise the limit (ulimit -n)",
			 (unsigned)uid);
	return -ENFILE;
}

int inode_removal_begin(struct fs *fs, uid_t uid)
{
	int err = inode_room(fs, uid);

	return err ? err : quota_take(fs->config.quota, QUOTA_removed_files, uid);
}

void inode_removal_end(struct fs *fs, uid_t uid, struct inode *inode)
{
	bool his;

	pthread_mutex_lock(&fs->lock);
	his = inode && !inode->parent && !inode->removed;
	if (his) {
		inode->removed = true;
		inode->remover = uid;
	}
	pthread_mutex_unlock(&fs->lock);
	if (!his)
		quota_give(fs->config.quota, QUOTA_removed_files, uid);
}

struct inode *inode_known(struct fs *fs, int dir, const char *name)
{
	struct inode *inode;
	struct inode_key key;
	struct stat st;
	int err;

	if (identify(fs, dir, name, &st, &key))
		return NULL;
	pthread_mutex_lock(&fs->lock);
	HASH_FIND(hh, fs->inodes, &key, sizeof(key), inode);
	if (inode)
		inode->refs++;
	pthread_mutex_unlock(&fs->lock);
	if (!inode)
		return NULL;
	err = inode_fd_get(inode);
	inode_put(inode);
	return err < 0 ? NULL : inode;
}

struct inode **inode_list(struct fs *fs, bool (*want)(const struct inode *), unsigned *n)
{
	struct inode **list, *inode, *next;

	*n = 0;
	pthread_mutex_lock(&fs->lock);
	list = xcalloc(HASH_COUNT(fs->inodes) + 1, sizeof(*list));
	HASH_ITER(hh, fs->inodes, inode, next) {
		if (!want(inode))
			continue;
		inode->refs++;
		list[(*n)++] = inode;
	}
	pthread_mutex_unlock(&fs->lock);
	return list;
}

void inode_table_destroy(struct fs *fs)
{
	struct inode *inode, *next;

	HASH_ITER(hh, fs->inodes, inode, next) {
		bug_on(inode->cfiles || inode->fd_uses);
		HASH_DEL(fs->inodes, inode);
		not_removed(inode);
		inode_free(inode);
	}
	id_table_destroy(&fs->inodes_by_id);
	id_table_destroy(&fs->handles);
	close(fs->root.fd);
	pthread_mutex_destroy(&fs->root.lock);
}
