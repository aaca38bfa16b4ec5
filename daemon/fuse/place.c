/*
 * place.c - where a file's contents are to be (GAIA_IOC_PLACE), and what is pinned when the mount begins (--pin).
 *
 * The latter does not go through the mount, as a program would: the daemon would wait for itself when it ends. So it looks the names up
 * as the kernel would have it, and forgets them as the kernel does: a pinned file stays known all the same, since its cfile keeps it.
 */
#include "fuse/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE (64u << 20) /* bytes that are brought at a time; between two it is seen whether the mount ends */
#define WARM_MOST (1u << 30) /* bytes of home that one call warms */

static bool ends(struct fs *fs)
{
	bool ends;

	pthread_mutex_lock(&fs->lock);
	ends = fs->quiescing;
	pthread_mutex_unlock(&fs->lock);
	return ends;
}

/* ---- the ioctl ---- */

static bool takes_range(unsigned what)
{
	return what == GAIA_PLACE_FILL || what == GAIA_PLACE_WARM;
}

static bool is_valid(const struct gaia_ioc_place *io)
{
	if (io->what > GAIA_PLACE_WARM || io->flags & ~(io->what == GAIA_PLACE_UNPIN ? GAIA_PLACE_MINE : 0) || io->reserved || io->bytes || io->room)
		return false;
	if (io->device == GAIA_FROM_HOME && io->what != GAIA_PLACE_WARM && io->what != GAIA_PLACE_LOOK)
		return false;
	if (!takes_range(io->what))
		return !io->offset && !io->length;
	return io->length && io->offset <= INT64_MAX && io->length <= INT64_MAX - io->offset;
}

static int pin(struct inode *inode, struct cfile *f, unsigned device, struct cache_user user, bool *fresh)
{
	int err = cache_pin(f, device, user, fresh);

	if (!err)
		passthrough_mapped(inode, false);
	return err;
}

/* How much of the range, of which the end may be far beyond the file's, the file has. */
static uint64_t in_file(struct cfile *f, uint64_t offset, uint64_t length)
{
	uint64_t size = cfile_size(f);

	return MIN(length, size - MIN(size, offset));
}

static int fill(struct inode *inode, struct cfile *f, struct cache_user user, struct gaia_ioc_place *io, atomic_uint *verdict)
{
	int err;

	if (io->device >= cache_devices(inode->fs->cache))
		return -ENODEV;
	passthrough_mapped(inode, false);
	passthrough_acquire(inode);
	err = cache_bring(f, io->device, user, io->offset, io->length, io->what == GAIA_PLACE_WARM, verdict);
	if (!err)
		io->bytes = in_file(f, io->offset, io->length);
	return err;
}

/* In pieces, of which the first that is not whole is the last: there is no room, or the file ends. Less than was asked for if the caller gives up. */
static int fill_home(struct inode *inode, struct cfile *f, struct gaia_ioc_place *io, atomic_uint *verdict)
{
	uint64_t piece, done, at = io->offset, end = at + MIN(io->length, (uint64_t)WARM_MOST);
	int err = 0;

	do {
		piece = MIN(end - at, (uint64_t)PIECE);
		err = ends(inode->fs) ? -EINTR : cache_bring_home(f, at, piece, &done);
		at += err ? 0 : done;
	} while (!err && done == piece && at < end && (!verdict || atomic_load(verdict) == CACHE_OPEN));
	io->bytes = at - io->offset;
	return err ? err : cache_decide(verdict, CACHE_DONE) ? 0 : -EINTR;
}

int place_contents(struct inode *inode, struct cfile *f, uid_t uid, struct gaia_ioc_place *io, atomic_uint *verdict)
{
	struct fs *fs = inode->fs;
	struct cache_user user = { .uid = uid, .owner = quota_is_owner(fs->config.quota, uid) };
	bool fresh = false;
	int err = 0;

	if (!is_valid(io))
		return -EINVAL;
	switch (io->what) {
	case GAIA_PLACE_PIN:
		err = pin(inode, f, io->device, user, &fresh);
		break;
	case GAIA_PLACE_UNPIN:
		user.owner = user.owner && !(io->flags & GAIA_PLACE_MINE);
		err = cache_unpin(f, io->device, user);
		break;
	case GAIA_PLACE_FILL:
	case GAIA_PLACE_WARM:
		err = io->device == GAIA_FROM_HOME ? fill_home(inode, f, io, verdict) : fill(inode, f, user, io, verdict);
		break;
	default:
		err = io->device == GAIA_FROM_HOME || io->device < cache_devices(fs->cache) ? 0 : -ENODEV;
	}
	if (err)
		return err;
	if (!takes_range(io->what) && io->device != GAIA_FROM_HOME)
		io->bytes = cache_pinned(f, io->device);
	io->flags = (fresh ? GAIA_PLACE_FRESH : 0) | (cfile_is_passthrough(f) ? GAIA_PLACE_PASSED : 0);
	io->room = cache_room(fs->cache, io->device);
	return 0;
}

/* ---- what is pinned when the mount begins ---- */

#define DEPTH_MOST 32u	  /* directories below the one that is named */

struct pinning {
	struct fs *fs;
	const struct fs_pin *pins; /* the caller's */
	unsigned n;

	/* Of the one at work. */
	unsigned device, files, not_pinned;
	uint64_t bytes;
};

static const char *why(int err)
{
	switch (err) {
	case -ENOSPC:
		return "pinned files would have more than their share of the device (--pin-share)";
	case -ENOMEM:
		return "what programs hold there leaves no room";
	case -ENODEV:
		return "there is no such device, or it is gone or off";
	case -ELOOP:
		return "a symbolic link is in its way";
	}
	return strerror(-err);
}

static char *copy_of(const char *text)
{
	size_t size = strlen(text) + 1;

	return memcpy(xmalloc(size), text, size);
}

/* A name below @dir, to be given back by inode_forget(). No symbolic link is followed. */
static int look_up(struct inode *dir, const char *name, struct inode **out)
{
	int at = inode_fd_get(dir), fd, err;
	struct stat st;

	if (at < 0)
		return at;
	fd = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	err = fd < 0 ? -errno : 0;
	inode_fd_put(dir);
	return err ? err : inode_enter(dir->fs, fd, dir, name, out, &st);
}

/* The same for a path of the mount. */
static int look_up_path(struct fs *fs, const char *path, struct inode **out)
{
	char *copy = copy_of(path), *rest = copy, *name;
	struct inode *at = &fs->root, *next;
	int err = 0;

	while (!err && (name = strsep(&rest, "/"))) {
		if (!*name || !strcmp(name, "."))
			continue;
		err = !strcmp(name, "..") ? -EINVAL : at->type == S_IFLNK ? -ELOOP : at->type == S_IFDIR ? look_up(at, name, &next) : -ENOTDIR;
		if (err)
			break;
		inode_forget(at, 1);
		at = next;
	}
	if (!err && at->type == S_IFLNK)
		err = -ELOOP;
	if (err)
		inode_forget(at, 1);
	else
		*out = at;
	free(copy);
	return err;
}

static int fill_all(struct inode *inode, struct cfile *f, unsigned device, struct cache_user user)
{
	/* Whoever may write the file can make it longer all the time. */
	uint64_t end = MIN(cfile_size(f), cache_pinned(f, device));
	int err = 0;

	for (uint64_t at = 0; at < end && !err; at += PIECE) {
		passthrough_acquire(inode);
		err = ends(inode->fs) ? -EINTR : cache_bring(f, device, user, at, MIN(end - at, (uint64_t)PIECE), false, NULL);
	}
	return err;
}

static int pin_file(struct pinning *p, struct inode *inode)
{
	struct cache_user user = { .uid = geteuid(), .owner = true };
	struct cfile *f;
	bool fresh;
	int err;

	err = contents_get(inode, &f);
	if (err)
		return err;
	err = pin(inode, f, p->device, user, &fresh);
	if (!err) {
		passthrough_end(inode);
		err = fill_all(inode, f, p->device, user);
		user.owner = false; /* what others have pinned stays so */
		if (err && fresh)
			(void)cache_unpin(f, p->device, user);
	}
	if (!err) {
		p->files++;
		p->bytes += cfile_size(f);
	}
	contents_put(inode);
	return err;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a directory, in order, to be freed. */
static int list_names(struct inode *inode, char ***out, size_t *n)
{
	size_t room = 0;
	struct dirent *e;
	int fd = inode_open(inode, O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	*out = NULL;
	*n = 0;
	if (fd < 0)
		return fd;
	if (!dir) {
		close(fd);
		return -ENOMEM;
	}
	while ((e = readdir(dir))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (*n == room) {
			room = MAX(2 * room, 64u);
			*out = xrealloc(*out, room * sizeof(char *));
		}
		(*out)[(*n)++] = copy_of(e->d_name);
	}
	closedir(dir);
	if (*n > 1)
		qsort(*out, *n, sizeof(char *), by_name);
	return 0;
}

static void pin_below(struct pinning *p, struct inode *inode, const char *path, unsigned depth);

static void pin_names(struct pinning *p, struct inode *dir, const char *path, unsigned depth)
{
	struct inode *inode;
	char **names;
	size_t n;
	int err = list_names(dir, &names, &n);

	for (size_t k = 0; k < n; k++) {
		char *below = xmalloc(strlen(path) + strlen(names[k]) + 2);
		int gone = err ? 0 : look_up(dir, names[k], &inode);

		sprintf(below, "%s/%s", path, names[k]);
		if (gone) {
			p->not_pinned++;
			log_warn("--pin %u:%s: is not pinned: %s", p->device, below, why(gone));
		} else if (!err) {
			pin_below(p, inode, below, depth + 1);
			inode_forget(inode, 1);
		}
		free(below);
		free(names[k]);
	}
	free(names);
	if (err) {
		p->not_pinned++;
		log_warn("--pin %u:%s: %s", p->device, path, why(err));
	}
}

/* A file, or the files in a directory; other things that are in one are passed over. */
static void pin_below(struct pinning *p, struct inode *inode, const char *path, unsigned depth)
{
	int err;

	if (inode->type == S_IFDIR) {
		if (depth < DEPTH_MOST) {
			pin_names(p, inode, path, depth);
			return;
		}
		p->not_pinned++;
		log_warn("--pin %u:%s: what is in it is not pinned: it is too deep", p->device, path);
		return;
	}
	if (inode->type != S_IFREG || ends(p->fs))
		return;
	err = pin_file(p, inode);
	if (err && err != -EINTR) {
		p->not_pinned++;
		log_warn("--pin %u:%s: is not pinned: %s", p->device, path, why(err));
	}
}

/* Its lines are as many as there are such options, and none of them is left out. */
static void pin_path(struct pinning *p, const struct fs_pin *pin)
{
	struct inode *inode;
	int err = look_up_path(p->fs, pin->path, &inode);

	p->device = pin->device;
	p->files = p->not_pinned = 0;
	p->bytes = 0;
	if (err) {
		log_at(LOG_LEVEL_WARN, "--pin %u:%s: is not pinned: %s", pin->device, pin->path, why(err));
		return;
	}
	if (inode->type == S_IFREG || inode->type == S_IFDIR)
		pin_below(p, inode, pin->path, 0);
	else
		log_at(LOG_LEVEL_WARN, "--pin %u:%s: is not pinned: not a regular file or directory", pin->device, pin->path);
	inode_forget(inode, 1);
	/* Of very many only some are named. */
	if (p->not_pinned > 1)
		log_at(LOG_LEVEL_WARN, "--pin %u:%s: in it, %u files or directories are not pinned", pin->device, pin->path, p->not_pinned);
	if (p->files > 0)
		log_at(LOG_LEVEL_INFO, "--pin %u:%s: %u file%s, %llu MiB", pin->device, pin->path, p->files, p->files > 1 ? "s are pinned" : " is pinned",
		       (unsigned long long)p->bytes >> 20);
}

static void run(void *arg)
{
	struct pinning *p = arg;

	for (unsigned k = 0; k < p->n && !ends(p->fs); k++)
		pin_path(p, &p->pins[k]);
	busy_end(p->fs);
	free(p);
}

void fs_pin(struct fs *fs, const struct fs_pin *pins, unsigned n)
{
	struct pinning *p;

	if (n == 0 || !busy_begin(fs, false))
		return;
	p = xcalloc(1, sizeof(*p));
	*p = (struct pinning){ .fs = fs, .pins = pins, .n = n };
	lane_submit(fs, LANE_ACQUIRE, geteuid(), run, p);
}
