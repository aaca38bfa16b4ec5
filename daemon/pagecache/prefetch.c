/*
 * prefetch.c - what is brought to a device, or into home, at once and on request, though nobody acquires it: the contents of files that are
 * pinned to a device (file_pins.c), and of those that a program will need (gaia warm).
 *
 * To a device it goes as an acquire to read does, by the same windows, with replicas pinned for the call; but nothing is held, and
 * nothing is handed to anybody. So a caller gets no memory by it, and an acquire checks all of these pages as it checks any.
 */
#include <errno.h>
#include <stdlib.h>

#include "pagecache/prefetch.h"

#include "base/util.h"
#include "pagecache/acquiring.h"
#include "pagecache/ahead.h"
#include "pagecache/bring.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/passthrough.h"
#include "pagecache/replica.h"
#include "pagecache/room.h"
#include "pagecache/root.h"
#include "pagecache/users.h"

static void bringing_free(struct bringing *b)
{
	free(b->index);
	free(b->reps);
	pthread_mutex_destroy(&b->m.lock);
}

int bringing_begin(struct bringing *b, struct cfile *f, struct cache_device *dev, struct cache_user user, uint64_t first, uint64_t n,
		   bool modest)
{
	int err = device_usable(dev);

	if (err)
		return err;
	/* As for an acquire: before any memory is spent on it. */
	if (n > dev->capacity / GAIA_CHUNK)
		return -ENOMEM;
	*b = (struct bringing){ .m = { .file = f, .dev = dev, .user = user, .prot = GAIA_PROT_READ }, .n = n };
	b->m.user.extents = true; /* nobody is handed anything */
	STAILQ_INIT(&b->m.pins);
	pthread_mutex_init(&b->m.lock, NULL);
	b->index = xcalloc(n + 1, sizeof(*b->index));
	b->reps = xcalloc(n + 1, sizeof(struct replica *));
	for (uint64_t k = 0; k < n; k++)
		b->index[k] = first + k;
	err = modest ? replicas_pin_modestly(&b->m, b->index, n, b->reps) : replicas_pin(&b->m, b->index, n, b->reps);
	if (err)
		bringing_free(b);
	return err;
}

void bringing_end(struct bringing *b)
{
	user_unpin_all(&b->m, b->reps, b->n);
	for (uint64_t k = 0; k < b->n; k++)
		replica_unpin(b->reps[k]);
	bringing_free(b);
}

/* Pages [a, b) of the file, in the chunks of @bg. */
static int bring(struct bringing *bg, uint64_t a, uint64_t b, atomic_uint *verdict)
{
	struct segment span = { a, b, 1 };
	struct acquiring ac = { .m = &bg->m, .asked = { &span, 1 }, .reps = bg->reps, .n = bg->n, .verdict = verdict };
	struct part *parts = xcalloc(bg->n, sizeof(*parts));
	unsigned first, end;
	int err;

	ahead_init(&ac.ahead, bg->reps, bg->n, ac.asked, false);
	pthread_rwlock_rdlock(&bg->m.file->range);
	for (uint64_t k = 0; k < bg->n; k++) {
		parts[k] = (struct part){ .m = &bg->m, .rep = bg->reps[k], .ch = bg->reps[k]->chunk, .ahead = &ac.ahead, .nth = k };
		segment_in_chunk(&span, bg->index[k], &first, &end);
		part_span(&parts[k], first, end);
	}
	err = parts_acquire(&ac, parts, bg->n, verdict);
	ahead_drain(&ac.ahead);
	pthread_rwlock_unlock(&bg->m.file->range);
	free(parts);
	return err;
}

/* The pages that the range has in the file, [*a, *b): false if there are none. */
static bool clip(struct cfile *f, uint64_t off, uint64_t len, uint64_t *a, uint64_t *b)
{
	uint64_t size = cfile_size(f), end = off + len < off ? size : MIN(off + len, size);

	*a = off / GAIA_PAGE;
	*b = (end + GAIA_PAGE - 1) / GAIA_PAGE;
	return off < end;
}

int cache_bring(struct cfile *f, unsigned device, struct cache_user user, uint64_t off, uint64_t len, bool modest, atomic_uint *verdict)
{
	struct bringing bg;
	uint64_t a, b, first;
	int err;

	if (device >= cache_devices(f->cache))
		return -ENODEV;
	err = passthrough_learn_size(f);
	if (err || !clip(f, off, len, &a, &b))
		return err;
	/* What is not pinned may only take what nobody uses; so may what a pinned file has grown by: whoever may write it can make it longer. */
	modest = modest || b > cache_pinned(f, device) / GAIA_PAGE;
	first = a / GAIA_CHUNK_PAGES;
	err = bringing_begin(&bg, f, cache_device_find(f->cache, device), user, first, (b + GAIA_CHUNK_PAGES - 1) / GAIA_CHUNK_PAGES - first, modest);
	if (err)
		return err;
	err = bring(&bg, a, b, verdict);
	bringing_end(&bg);
	return err ? err : cache_decide(verdict, CACHE_DONE) ? 0 : -EINTR;
}

uint64_t cache_room(struct cache *c, unsigned device)
{
	struct cache_device *dev;
	uint64_t taken, room, all;

	if (device == GAIA_FROM_HOME) {
		taken = atomic_load(&c->frames.used);
		all = c->frames.budget;
		return (all - MIN(taken, all)) * GAIA_PAGE;
	}
	dev = device < cache_devices(c) ? cache_device_find(c, device) : NULL;
	if (!dev || atomic_load(&dev->gone))
		return 0;
	pthread_mutex_lock(&dev->lock);
	taken = dev->pinned - dev->leaving + (dev->n_idle_ready + dev->n_idle_pinned + dev->file_chunks - dev->file_chunks_there) * GAIA_CHUNK;
	all = dev->capacity;
	room = all - MIN(taken, all);
	pthread_mutex_unlock(&dev->lock);
	return room;
}

int cache_bring_home(struct cfile *f, uint64_t off, uint64_t len, uint64_t *done)
{
	struct cache_read rd;
	int err = 0;

	*done = 0;
	if (cfile_is_passthrough(f))
		return -EOPNOTSUPP;
	while (*done < len && cache_room(f->cache, GAIA_FROM_HOME) >= CACHE_READ_MAX) {
		err = cache_read_begin(f, (off_t)(off + *done), MIN(len - *done, (uint64_t)CACHE_READ_MAX), false, &rd);
		if (err)
			break;
		cache_read_end(&rd);
		if (rd.bytes == 0)
			break;
		*done += rd.bytes;
	}
	return err;
}
