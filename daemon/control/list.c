/*
 * list.c - acquires and releases of lists of ranges.
 *
 * A client writes its lists to a memfd that it shares with the daemon, and that the daemon has made: so the daemon takes no descriptor
 * from anybody. (To close one is to call its file system, which may be somebody's FUSE server that never answers.) A list is copied by
 * pread(2) before it is looked at, into memory that counts for the client's user until the call is done: nothing that the client does to
 * it meanwhile matters. Called on workers, as what lists need is much work for some.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"
#include "control/internal.h"

/* Linux 6.3; headers may be older. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

/* ---- the memory ---- */

/* -1 and errno, or a descriptor. */
static int open_again(int fd, int flags)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, flags | O_CLOEXEC);
}

/* A descriptor for reading, or a negative errno. */
static int make_memory(void)
{
	int fd = memfd_create("gaiafs-lists", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL), own;

	/* Before Linux 6.3 there is no such flag. */
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("gaiafs-lists", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	own = ftruncate(fd, GAIA_LISTS_BYTES) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ?
		      -1 : open_again(fd, O_RDONLY);
	own = own < 0 ? -errno : own;
	close(fd);
	return own;
}

/* The client's, which is made if there is none. */
static int memory_of(struct client *c)
{
	int fd, err;

	pthread_mutex_lock(&c->lock);
	fd = c->lists;
	pthread_mutex_unlock(&c->lock);
	if (fd >= 0)
		return fd;
	err = quota_take(c->ctl->quota, QUOTA_lists, c->uid);
	if (err)
		return err;
	fd = make_memory();
	pthread_mutex_lock(&c->lock);
	if (fd >= 0 && c->lists < 0) {
		c->lists = fd;
		pthread_mutex_unlock(&c->lock);
		return fd;
	}
	/* It failed, or another thread was faster. */
	if (fd >= 0)
		close(fd);
	fd = c->lists >= 0 ? c->lists : fd;
	pthread_mutex_unlock(&c->lock);
	quota_give(c->ctl->quota, QUOTA_lists, c->uid);
	return fd;
}

/* A client needs it once. Nothing else limits how many descriptors are on their way to one that does not read. */
#define SENT_MOST 16u

/* The same, if it may be sent to the client again; then that is counted. */
static int memory_to_send(struct client *c)
{
	int fd = memory_of(c);

	pthread_mutex_lock(&c->lock);
	if (fd >= 0 && c->lists_sent >= SENT_MOST)
		fd = -EMFILE;
	c->lists_sent += fd >= 0;
	pthread_mutex_unlock(&c->lock);
	return fd;
}

void lists_end(struct client *c)
{
	if (c->lists < 0)
		return;
	close(c->lists);
	quota_give(c->ctl->quota, QUOTA_lists, c->uid);
}

int control_lists(struct control *ctl, struct gaia_ioc_lists *io)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_LISTS, .count = 1 };
	struct client *c = client_find(ctl, &io->key);
	int fd, theirs, err;

	if (!c)
		return -ENOTCONN;
	fd = c->features & GAIA_FEATURE_LISTS ? memory_to_send(c) : -EINVAL;
	/* A file description of its own: what the client does to its flags does not matter to ours. */
	theirs = fd < 0 ? -1 : open_again(fd, O_RDWR);
	if (fd < 0)
		err = fd;
	else if (theirs < 0)
		err = -errno;
	else
		err = client_try_send(c, &msg, &theirs, 1, &io->seq);
	if (fd >= 0 && err) {
		pthread_mutex_lock(&c->lock);
		c->lists_sent--;
		pthread_mutex_unlock(&c->lock);
	}
	if (theirs >= 0)
		close(theirs);
	client_put(c);
	return err;
}

/* ---- lists ---- */

struct list {
	struct client *c;
	struct gaia_list_range *range; /* @n, and behind them @told */
	size_t n, told;
	unsigned kib; /* counted */
};

/* What a range takes, here and in the cache: itself, its end, and two segments at most (pagecache/segments.c). */
#define RANGE_BYTES (sizeof(struct gaia_list_range) + 8 + 2 * 24)

static int read_all(int fd, void *buf, size_t len, uint64_t off)
{
	while (len > 0) {
		ssize_t n = pread(fd, buf, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		/* Nothing has changed, and a release must be told so. */
		if (n <= 0)
			return n < 0 ? -ENOSR : -EINVAL;
		buf = (char *)buf + n;
		len -= (size_t)n;
		off += (uint64_t)n;
	}
	return 0;
}

static void list_free(struct list *l)
{
	free(l->range);
	quota_give_many(l->c->ctl->quota, QUOTA_listed_kib, l->c->uid, l->kib);
}

/* Whether this user could ever have a list that takes so much. */
static bool can_be(const struct client *c, unsigned kib)
{
	struct quota_use use = quota_use(c->ctl->quota, QUOTA_listed_kib);

	return kib <= (quota_is_owner(c->ctl->quota, c->uid) ? use.all : use.each);
}

/* Copy the list that @io names. -ENOSR: the user has too much of that under way, or there is no memory; -E2BIG: there never will be. */
static int list_copy(struct client *c, const struct gaia_ioc_list *io, struct list *out)
{
	uint64_t all = (uint64_t)io->count + io->told;
	size_t bytes = all * sizeof(struct gaia_list_range);
	struct list l = { .c = c, .n = io->count, .told = io->told, .kib = (unsigned)(all * RANGE_BYTES / 1024 + 1) };
	int fd, err;

	if (io->unanswered || io->count > GAIA_LIST_MOST || io->told > GAIA_LIST_MOST || io->offset % 8 || io->offset > GAIA_LISTS_BYTES ||
	    bytes > GAIA_LISTS_BYTES - io->offset)
		return -EINVAL;
	pthread_mutex_lock(&c->lock);
	fd = c->lists;
	pthread_mutex_unlock(&c->lock);
	if (fd < 0)
		return -EINVAL;
	if (!can_be(c, l.kib))
		return -E2BIG;
	if (quota_take_many(c->ctl->quota, QUOTA_listed_kib, c->uid, l.kib))
		return -ENOSR;
	l.range = malloc(bytes + 1);
	err = l.range ? read_all(fd, l.range, bytes, io->offset) : -ENOSR;
	if (err)
		list_free(&l);
	else
		*out = l;
	return err;
}

int control_acquirev(struct control *ctl, struct cfile *f, bool writable, struct gaia_ioc_list *io, atomic_uint *verdict)
{
	bool write = io->prot & GAIA_PROT_WRITE;
	struct working_for before;
	struct map *map;
	struct list l;
	int err;

	io->seq = 0;
	if (!io->prot || io->prot & ~(GAIA_PROT_READ | GAIA_PROT_WRITE) || io->told)
		return -EINVAL;
	err = map_find(ctl, f, &io->key, io->map, false, &map);
	if (err)
		return err;
	atomic_fetch_add_explicit(&map->client->acquires, 1, memory_order_relaxed);
	err = write && (!writable || !(map->prot & GAIA_PROT_WRITE)) ? -EACCES : list_copy(map->client, io, &l);
	if (!err) {
		before = uses_enter(&map->client->uses);
		err = cache_acquirev(map->m, l.range, l.n, io->prot, &io->seq, verdict);
		uses_leave(before);
		list_free(&l);
	}
	if (!err)
		err = client_unanswered(map->client, io->seq, &io->unanswered);
	map_put(map);
	return err;
}

static int release_list(struct map *map, unsigned prot, struct list *l, bool *changed)
{
	bool unused = prot & GAIA_PROT_UNUSED;

	if (prot & GAIA_PROT_TOLD)
		return cache_release_told(map->m, l->range, l->n, l->range + l->n, l->told, unused, changed);
	return unused ? cache_give_backv(map->m, l->range, l->n, changed) : cache_releasev(map->m, l->range, l->n, changed);
}

int control_releasev(struct control *ctl, struct cfile *f, enum releases may, struct gaia_ioc_list *io, bool *changed)
{
	struct working_for before;
	struct map *map;
	struct list l;
	int err;

	*changed = false;
	if (io->prot & ~(GAIA_PROT_UNUSED | GAIA_PROT_TOLD) || (io->told && !(io->prot & GAIA_PROT_TOLD)))
		return -EINVAL;
	err = map_find(ctl, f, &io->key, io->map, false, &map);
	if (err)
		return err;
	atomic_fetch_add_explicit(&map->client->releases, 1, memory_order_relaxed);
	if (!map_may_release(map, may))
		err = -EOPNOTSUPP;
	else if (io->prot & GAIA_PROT_TOLD && !map->detects)
		err = -EINVAL;
	else
		err = list_copy(map->client, io, &l);
	if (!err) {
		before = uses_enter(&map->client->uses);
		err = release_list(map, io->prot, &l, changed);
		uses_leave(before);
		list_free(&l);
	}
	io->changed = *changed && map->client->features & GAIA_FEATURE_TIMES;
	map_put(map);
	return err;
}
