/*
 * stranded.c - memory that was freed, and that clients map which did not unmap it: of a device that cannot take it back.
 *
 * It stays taken until the processes of those clients end. So it counts as used and pinned, and in what their users may have pinned,
 * until then. A device knows these processes (cache_device.keeping), and each process what it keeps: so who looks for memory asks once
 * for each process, whatever that keeps. Nothing leaves these lists while somebody asks, which takes a while and holds no lock:
 * threads that look at the same time all ask, and the first to learn that a process has ended counts its memory as free.
 */
#include <stdlib.h>
#include <uthash.h>

#include "pagecache/stranded.h"

#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/mapping.h"
#include "pagecache/root.h"
#include "pagecache/users.h"

/* Chunks of a device's memory: one, or those of an extent. Lives while somebody keeps them. */
struct stranded {
	unsigned chunks;
	uint64_t n; /* keepers */
	struct pinner *pinners;
};

/* One client's relation to one such chunk, or to one that may become such a chunk. */
struct keeper {
	struct keeper *next; /* of a list that was not stranded yet */
	const struct cache_host *host;
	struct cache_process process;
	uid_t uid;
	bool owner;

	/* dev->lock, once it is stranded. */
	struct stranded *chunk;
	LIST_ENTRY(keeper) link; /* in keeping.keepers */
};

/* A process. Lives while it keeps something of the device. */
struct keeping {
	struct cache_process process;
	const struct cache_host *host;
	LIST_HEAD(, keeper) keepers;
	UT_hash_handle hh;
};

/* Asked for once: a process that has ended since is found out by stranded_reap(). */
static bool process_of(struct mapping *m, struct cache_process *out)
{
	const struct cache_host *host = &m->file->cache->host;
	bool known;

	pthread_mutex_lock(&m->lock);
	known = m->process_known;
	*out = m->process;
	pthread_mutex_unlock(&m->lock);
	if (known)
		return true;
	if (!host->process || !host->process(m->client, out))
		return false;
	pthread_mutex_lock(&m->lock);
	m->process = *out;
	m->process_known = true;
	pthread_mutex_unlock(&m->lock);
	return true;
}

struct keeper *keeper_make(struct mapping *m)
{
	struct cache_process process;
	struct keeper *k;

	if (m->dev->dev->inherited || !process_of(m, &process))
		return NULL;
	k = xcalloc(1, sizeof(*k));
	k->host = &m->file->cache->host;
	k->process = process;
	k->uid = m->user.uid;
	k->owner = m->user.owner;
	return k;
}

void keeper_add(struct keeper **list, struct keeper *k)
{
	if (!k)
		return;
	k->next = *list;
	*list = k;
}

void keepers_free(struct keeper *list)
{
	struct keeper *next;

	for (; list; list = next) {
		next = list->next;
		free(list);
	}
}

/* The next ones with dev->lock held. */
static struct keeping *keeping_find(struct cache_device *dev, const struct cache_process *process)
{
	struct keeping *kg;

	HASH_FIND(hh, dev->keeping, process, sizeof(*process), kg);
	return kg;
}

static struct keeping *keeping_get(struct cache_device *dev, const struct keeper *k)
{
	struct keeping *kg = keeping_find(dev, &k->process);

	if (kg)
		return kg;
	kg = xcalloc(1, sizeof(*kg));
	kg->process = k->process;
	kg->host = k->host;
	HASH_ADD(hh, dev->keeping, process, sizeof(kg->process), kg);
	return kg;
}

struct keeper *keepers_join(struct keeper **lists, unsigned n)
{
	struct keeper *all = NULL, *k;

	for (unsigned i = 0; i < n; i++)
		while ((k = lists[i])) {
			lists[i] = k->next;
			keeper_add(&all, k);
		}
	return all;
}

uint64_t strand(struct cache_device *dev, struct keeper *keepers, unsigned chunks)
{
	struct stranded *s;

	if (!keepers)
		return 0;
	s = xcalloc(1, sizeof(*s));
	s->chunks = chunks;
	for (struct keeper *k = keepers; k; k = k->next) {
		k->chunk = s;
		s->n++;
		if (!k->owner)
			user_pin_more(dev, &s->pinners, k->uid, chunks);
		LIST_INSERT_HEAD(&keeping_get(dev, k)->keepers, k, link);
	}
	dev->n_stranded += chunks;
	return chunks * (uint64_t)GAIA_CHUNK;
}

/* The keeper has given its chunk up, and is freed. */
static void give_up(struct cache_device *dev, struct keeper *k)
{
	struct stranded *s = k->chunk;

	if (!k->owner)
		user_pin_less(dev, &s->pinners, k->uid, s->chunks);
	free(k);
	if (--s->n > 0)
		return;
	dev->n_stranded -= s->chunks;
	dev->used -= s->chunks * (uint64_t)GAIA_CHUNK;
	dev->pinned -= s->chunks * (uint64_t)GAIA_CHUNK;
	free(s);
	/* As when a replica has gone. */
	dev->n_left++;
	pthread_cond_broadcast(&dev->changed);
}

static void keeping_end(struct cache_device *dev, struct keeping *kg)
{
	struct keeper *k;

	while ((k = LIST_FIRST(&kg->keepers))) {
		LIST_REMOVE(k, link);
		give_up(dev, k);
	}
	HASH_DEL(dev->keeping, kg);
	free(kg);
	dev->n_given_up++;
}

/* The process has ended; another thread may have found that out. */
static void process_ended(struct cache_device *dev, const struct cache_process *process)
{
	struct keeping *kg;

	pthread_mutex_lock(&dev->lock);
	kg = keeping_find(dev, process);
	if (kg)
		keeping_end(dev, kg);
	pthread_mutex_unlock(&dev->lock);
}

uint64_t stranded_count(struct cache_device *dev)
{
	uint64_t n;

	pthread_mutex_lock(&dev->lock);
	n = dev->n_given_up;
	pthread_mutex_unlock(&dev->lock);
	return n;
}

bool stranded_reap(struct cache_device *dev, uint64_t before)
{
	const struct cache_host *host = NULL;
	struct cache_process *list;
	struct keeping *kg, *next;
	unsigned n = 0;

	pthread_mutex_lock(&dev->lock);
	list = xcalloc(HASH_COUNT(dev->keeping) + 1, sizeof(*list));
	HASH_ITER(hh, dev->keeping, kg, next) {
		host = kg->host;
		list[n++] = kg->process;
	}
	pthread_mutex_unlock(&dev->lock);
	for (unsigned k = 0; k < n; k++)
		if (!host->process_lives(&list[k]))
			process_ended(dev, &list[k]);
	free(list);
	return stranded_count(dev) != before;
}

void stranded_free(struct cache_device *dev)
{
	struct keeping *kg, *next;

	pthread_mutex_lock(&dev->lock);
	HASH_ITER(hh, dev->keeping, kg, next)
		keeping_end(dev, kg);
	pthread_mutex_unlock(&dev->lock);
}
