/*
 * tables.c - what the kernel knows by number, given to the daemon that goes on with the mount.
 *
 * A file that the kernel knows and an open file keep their numbers. Descriptors are sent along, so a file that has no name any more,
 * or another one, is the same file as before, and a directory that is being read goes on where it was. A file whose descriptor is closed
 * (inode.c) is found by its name, as ever.
 *
 * What the cache has is not sent: everything is stored by then, and the new daemon reads it again.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Kinds of parcels: besides those of takeover.c. */
enum { TABLES = 100, INODES, HANDLES };

/* Room for a record: more than its numbers, and the longest name, take. */
#define RECORD_BYTES 1024u
#define RECORD_FDS 3u

enum {
	OF_USERS = 1,
	WERE_CACHED = 2,
	MAY_CHANGE = 4,
	ATTR_GIVEN = 8,
	NEVER_PASSED = 16,
	DEVICE_ASKED = 32,
	FOR_DEVICES = 64,
	DEVICE_NOTED = 128,
	REMOVED = 256,
	CACHED = 512, /* with --cpu-cache auto: it is not passed through */
};

static uint64_t flags_of(struct inode *inode)
{
	bool cached = inode->fs->passthrough && inode->cfile && !cfile_is_passthrough(inode->cfile);

	return (inode->of_users ? OF_USERS : 0) | (inode->were_cached ? WERE_CACHED : 0) | (inode->may_change ? MAY_CHANGE : 0) |
	       (inode->attr_given ? ATTR_GIVEN : 0) | (inode->never_passed ? NEVER_PASSED : 0) |
	       (inode->device_asked ? DEVICE_ASKED : 0) | (inode->for_devices ? FOR_DEVICES : 0) |
	       (inode->device_noted ? DEVICE_NOTED : 0) | (inode->removed ? REMOVED : 0) | (cached ? CACHED : 0);
}

static void set_flags(struct inode *inode, uint64_t flags)
{
	inode->of_users = flags & OF_USERS;
	inode->were_cached = flags & WERE_CACHED;
	inode->may_change = flags & MAY_CHANGE;
	inode->attr_given = flags & ATTR_GIVEN;
	inode->never_passed = flags & NEVER_PASSED;
	inode->device_asked = flags & DEVICE_ASKED;
	inode->for_devices = flags & FOR_DEVICES;
	inode->device_noted = flags & DEVICE_NOTED;
	/* The next open drops what the kernel has of its listing: it may be one that dir_changed() was called for. */
	inode->relist = true;
}

/* ---- sending ---- */

/* A duplicate, since the descriptor may be closed when fs->lock is not held any more. */
static int put_duplicate(struct parcel *p, int fd)
{
	int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (fd >= 0 && copy < 0)
		return -errno;
	parcel_put_fd(p, copy);
	return 0;
}

/* fs->lock is held. */
static int put_inode(struct parcel *p, struct inode *inode)
{
	int err;

	parcel_put(p, inode->id);
	parcel_put(p, inode->key.dev);
	parcel_put(p, inode->key.ino);
	parcel_put(p, (uint64_t)inode->key.born);
	parcel_put(p, inode->type);
	parcel_put(p, inode->lookups);
	parcel_put(p, flags_of(inode));
	parcel_put(p, inode->remover);
	parcel_put(p, (uint64_t)inode->backing_id);
	parcel_put(p, inode->parent ? inode->parent->id : 0);
	parcel_put_text(p, inode->parent ? inode->name : "");
	err = put_duplicate(p, inode->fd);
	if (!err)
		err = put_duplicate(p, inode->users ? inode->read_fd : -1);
	if (!err)
		err = put_duplicate(p, inode->users ? inode->write_fd : -1);
	return err;
}

/* An error that has not been reported to the open file yet. */
static int owed_to(struct handle *h)
{
	uint64_t seen = h->errors_seen;
	int err = h->cfile ? -cfile_error_check(h->cfile, &seen) : 0;

	if (!err && h->cfile && open_to_write(h->flags))
		err = (int)atomic_load(&h->inode->lost);
	return err ? err : h->owed;
}

static int put_handle(struct parcel *p, struct handle *h)
{
	parcel_put(p, h->id);
	parcel_put(p, h->inode->id);
	parcel_put(p, (uint64_t)h->flags);
	parcel_put(p, h->uid);
	parcel_put(p, h->passthrough);
	parcel_put(p, (uint64_t)owed_to(h));
	return put_duplicate(p, h->dir ? dirfd(h->dir) : -1);
}

static int send_and_close(int sock, struct parcel *p, int err)
{
	if (!err)
		err = parcel_send(sock, p);
	for (unsigned i = 0; i < p->n_fds; i++)
		close(p->fd[i]);
	return err;
}

/* All of a table, and an empty parcel behind them. */
static int send_table(struct fs *fs, int sock, struct parcel *p, struct id_table *t, uint32_t kind,
		      int (*put)(struct parcel *p, void *object))
{
	uint32_t slot = 0;
	unsigned n;
	int err = 0;

	do {
		void *object = NULL;

		parcel_init(p, kind);
		n = 0;
		pthread_mutex_lock(&fs->lock);
		while (!err && parcel_has_room(p, RECORD_BYTES, RECORD_FDS) && (object = id_table_next(t, &slot))) {
			err = put(p, object);
			n++;
		}
		pthread_mutex_unlock(&fs->lock);
		err = send_and_close(sock, p, err);
	} while (!err && n);
	return err;
}

static int put_any_inode(struct parcel *p, void *object)
{
	return put_inode(p, object);
}

static int put_any_handle(struct parcel *p, void *object)
{
	return put_handle(p, object);
}

static void put_mark(struct parcel *p, struct id_table *t)
{
	struct id_table_mark mark;

	id_table_mark(t, &mark);
	parcel_put(p, mark.made);
	parcel_put(p, mark.generation);
}

int tables_send(struct fs *fs, int sock, struct parcel *p)
{
	int err;

	parcel_init(p, TABLES);
	parcel_put(p, fs->generation);
	pthread_mutex_lock(&fs->lock);
	put_mark(p, &fs->inodes_by_id);
	put_mark(p, &fs->handles);
	pthread_mutex_unlock(&fs->lock);
	err = parcel_send(sock, p);
	if (!err)
		err = send_table(fs, sock, p, &fs->inodes_by_id, INODES, put_any_inode);
	if (!err)
		err = send_table(fs, sock, p, &fs->handles, HANDLES, put_any_handle);
	return err;
}

/* ---- receiving ---- */

/* Where the names of inodes lead to, until all inodes are there. */
struct named {
	struct inode *inode;
	uint64_t parent;
};

struct names {
	struct named *named;
	size_t n, room;
	struct inode **made; /* those that were made; one reference each */
	size_t n_made, made_room;
};

static struct inode *make_inode(struct fs *fs, const struct inode_key *key, mode_t type)
{
	struct inode *inode = xcalloc(1, sizeof(*inode));

	inode->fs = fs;
	inode->key = *key;
	inode->type = type;
	inode->fd = inode->read_fd = inode->write_fd = -1;
	inode->refs = 1; /* given back when all handles are there */
	pthread_mutex_init(&inode->lock, NULL);
	return inode;
}

static void note_name(struct names *names, struct inode *inode, uint64_t parent)
{
	if (names->n == names->room) {
		names->room = MAX(1024u, 2 * names->room);
		names->named = xrealloc(names->named, names->room * sizeof(*names->named));
	}
	names->named[names->n++] = (struct named){ inode, parent };
}

static void note_made(struct names *names, struct inode *inode)
{
	if (names->n_made == names->made_room) {
		names->made_room = MAX(1024u, 2 * names->made_room);
		names->made = xrealloc(names->made, names->made_room * sizeof(*names->made));
	}
	names->made[names->n_made++] = inode;
}

/* No other thread knows the tables yet. */
static int add_inode(struct fs *fs, struct names *names, struct inode *inode, uint64_t id)
{
	struct inode *same;
	int err;

	HASH_FIND(hh, fs->inodes, &inode->key, sizeof(inode->key), same);
	err = same ? -EPROTO : id_table_restore(&fs->inodes_by_id, inode, id);
	if (err)
		return err;
	inode->id = id;
	HASH_ADD(hh, fs->inodes, key, sizeof(inode->key), inode);
	fs->peak_inodes = MAX(fs->peak_inodes, HASH_COUNT(fs->inodes));
	fs->n_fds += inode->fd >= 0;
	inode->refs += inode->lookups > 0;
	note_made(names, inode);
	return 0;
}

/* It did not get into the table. */
static void free_inode(struct inode *inode)
{
	const int fd[] = { inode->fd, inode->read_fd, inode->write_fd };

	for (size_t i = 0; i < ARRAY_LEN(fd); i++)
		if (fd[i] >= 0)
			close(fd[i]);
	pthread_mutex_destroy(&inode->lock);
	free(inode->name);
	free(inode);
}

static int get_inode(struct fs *fs, struct parcel *p, struct names *names)
{
	uint64_t id = parcel_get(p), dev = parcel_get(p), ino = parcel_get(p), born = parcel_get(p), flags, parent;
	const char *name;
	struct inode_key key = { .dev = dev, .ino = ino, .born = (int64_t)born };
	struct inode *inode = make_inode(fs, &key, (mode_t)parcel_get(p));
	int err;

	inode->lookups = parcel_get(p);
	flags = parcel_get(p);
	set_flags(inode, flags);
	inode->remover = (uid_t)parcel_get(p);
	inode->backing_id = (int)parcel_get(p);
	parent = parcel_get(p);
	name = parcel_get_text(p);
	inode->name = parent ? strdup(name) : NULL;
	inode->fd = parcel_get_fd(p);
	inode->read_fd = parcel_get_fd(p);
	inode->write_fd = parcel_get_fd(p);
	inode->handed_cached = flags & CACHED;
	err = parcel_good(p) && (parent ? inode->name != NULL : inode->fd >= 0) ? add_inode(fs, names, inode, id) : -EPROTO;
	if (err) {
		free_inode(inode);
		return err;
	}
	inode->removed = flags & REMOVED;
	err = inode->removed ? quota_take(fs->config.quota, QUOTA_removed_files, inode->remover) : 0;
	if (err)
		inode->removed = false;
	if (parent)
		note_name(names, inode, parent);
	return err;
}

/* Now that all are there. */
static int link_names(struct fs *fs, const struct names *names)
{
	for (size_t k = 0; k < names->n; k++) {
		struct inode *inode = names->named[k].inode, *parent = inode_of(fs, names->named[k].parent);

		if (!parent || parent->type != S_IFDIR)
			return -EPROTO;
		parent->refs++;
		inode->parent = parent;
	}
	return 0;
}

static int get_contents(struct handle *h)
{
	struct inode *inode = h->inode;
	int err = contents_get(inode, &h->cfile);

	if (!err && inode->handed_cached)
		err = cfile_leave_passthrough(h->cfile);
	if (err) {
		if (h->cfile)
			contents_put(inode);
		h->cfile = NULL;
		return err;
	}
	h->errors_seen = cfile_error_now(h->cfile);
	if (open_to_write(h->flags))
		cache_opened_to_write(h->cfile, h->uid);
	if (h->passthrough) {
		inode->passthrough_opens++;
		inode->passthrough_writers += open_to_write(h->flags);
	} else if (open_to_write(h->flags)) {
		cfile_will_be_written(h->cfile);
	}
	return 0;
}

static int get_dir(struct fs *fs, struct handle *h, int fd)
{
	int err = quota_take(fs->config.quota, QUOTA_directories, h->uid);

	if (err)
		return err;
	h->dir = fdopendir(fd);
	if (!h->dir) {
		quota_give(fs->config.quota, QUOTA_directories, h->uid);
		return -errno;
	}
	h->at = -1; /* wherever the next reader is */
	fs->n_dirs++;
	return 0;
}

static int get_handle(struct fs *fs, struct parcel *p)
{
	struct handle *h = xcalloc(1, sizeof(*h));
	uint64_t id = parcel_get(p);
	int fd, err;

	h->inode = inode_of(fs, parcel_get(p));
	h->flags = (int)parcel_get(p);
	h->uid = (uid_t)parcel_get(p);
	h->passthrough = parcel_get(p);
	h->owed = (int)parcel_get(p);
	h->refs = 1;
	fd = parcel_get_fd(p);
	err = parcel_good(p) && h->inode && (fd >= 0) == (h->inode->type == S_IFDIR) ? 0 : -EPROTO;
	if (!err)
		err = fd >= 0 ? get_dir(fs, h, fd) : get_contents(h);
	if (err)
		goto fail;
	pthread_mutex_init(&h->lock, NULL);
	err = id_table_restore(&fs->handles, h, id);
	if (err)
		goto undo;
	h->id = id;
	h->inode->refs++;
	h->inode->writers += h->cfile && open_to_write(h->flags);
	return 0;

undo:
	if (h->cfile)
		contents_put(h->inode);
	if (h->dir) {
		closedir(h->dir);
		quota_give(fs->config.quota, QUOTA_directories, h->uid);
		fs->n_dirs--;
	}
	pthread_mutex_destroy(&h->lock);
	free(h);
	return err;
fail:
	if (fd >= 0)
		close(fd);
	free(h);
	return err;
}

/* Everything of one kind, up to the empty parcel. */
static int receive_inodes(struct fs *fs, int sock, struct parcel *p, struct names *names)
{
	bool some = true;
	int err = 0;

	while (!err && some) {
		err = parcel_receive(sock, p, INODES);
		some = !err && !parcel_is_empty(p);
		while (!err && !parcel_is_empty(p))
			err = get_inode(fs, p, names);
		parcel_drop(p);
	}
	return err ? err : link_names(fs, names);
}

static int receive_handles(struct fs *fs, int sock, struct parcel *p)
{
	bool some = true;
	int err = 0;

	while (!err && some) {
		err = parcel_receive(sock, p, HANDLES);
		some = !err && !parcel_is_empty(p);
		while (!err && !parcel_is_empty(p))
			err = get_handle(fs, p);
		parcel_drop(p);
	}
	return err;
}

static void get_mark(struct parcel *p, struct id_table_mark *mark)
{
	mark->made = (uint32_t)parcel_get(p);
	mark->generation = (uint32_t)parcel_get(p);
}

int tables_receive(struct fs *fs, int sock, struct parcel *p)
{
	struct id_table_mark inodes = { 0 }, handles = { 0 };
	struct names names = { 0 };
	int err = parcel_receive(sock, p, TABLES);

	if (!err) {
		fs->generation = (uint32_t)parcel_get(p);
		get_mark(p, &inodes);
		get_mark(p, &handles);
		err = parcel_good(p) ? id_table_resume(&fs->inodes_by_id, &inodes) : -EPROTO;
		parcel_drop(p);
	}
	if (!err)
		err = id_table_resume(&fs->handles, &handles);
	if (!err)
		err = receive_inodes(fs, sock, p, &names);
	if (!err)
		err = receive_handles(fs, sock, p);
	if (!err) {
		id_table_restored(&fs->inodes_by_id, &inodes);
		id_table_restored(&fs->handles, &handles);
		/* This forgets the inodes that nobody uses: those that only the old daemon's cache had. */
		for (size_t k = 0; k < names.n_made; k++)
			inode_restored(names.made[k]);
	}
	free(names.named);
	free(names.made);
	if (err)
		log_error("taking the mount over: its files: %s", strerror(-err));
	return err;
}
