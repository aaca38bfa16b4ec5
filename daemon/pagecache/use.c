/*
 * use.c - which files take the cache's memory, for gaia top.
 */
#include <stdlib.h>

#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/victim.h"
#include "pagecache/view.h"

#define FILES_NAMED 100u

struct use {
	struct cfile *file; /* used */
	uint64_t amounts[FILE_AMOUNT_COUNT];
};

static uint64_t sum_of(const struct use *u)
{
	return u->amounts[FILE_home_bytes] + u->amounts[FILE_device_bytes] + u->amounts[FILE_parked_bytes];
}

/* The most first. */
static int by_sum(const void *a, const void *b)
{
	uint64_t x = sum_of(a), y = sum_of(b);

	return (x < y) - (x > y);
}

/* chunk->lock is held. */
static void look_at_replica(struct replica *rep, uint64_t *amounts)
{
	bool pinned, ready;

	/* A view is home's memory. */
	if (replica_is_view(rep))
		return;
	pthread_mutex_lock(&rep->dev->lock);
	pinned = replica_unit(rep)->pins > 0 || replica_unit(rep)->file_pinned;
	ready = rep->n_ready > 0;
	pthread_mutex_unlock(&rep->dev->lock);
	amounts[FILE_device_bytes] += GAIA_CHUNK;
	amounts[FILE_pinned_bytes] += pinned || (ready && replica_is_held_ready_locked(rep)) ? GAIA_CHUNK : 0;
	amounts[FILE_private_bytes] += rep->only ? GAIA_CHUNK : 0;
}

static void look_at_chunk(struct chunk *ch, uint64_t *amounts)
{
	pthread_mutex_lock(&ch->lock);
	amounts[FILE_home_bytes] += (uint64_t)atomic_load(&ch->n_frames) * GAIA_PAGE;
	amounts[FILE_parked_bytes] += (uint64_t)victim_count(ch) * GAIA_PAGE;
	for (unsigned k = 0; k < ch->n_replicas; k++)
		look_at_replica(ch->replica[k], amounts);
	pthread_mutex_unlock(&ch->lock);
}

static void look_at(struct use *u)
{
	struct cfile *f = u->file;
	struct chunk **list;
	unsigned n = chunk_list_get(f, 0, UINT64_MAX, &list);

	for (unsigned k = 0; k < n; k++) {
		look_at_chunk(list[k], u->amounts);
		chunk_put(list[k]);
	}
	free(list);
	u->amounts[FILE_dirty_bytes] = cfile_dirty_bytes(f);
}

static struct use *list_files(struct cache *c, size_t *n)
{
	struct use *list;
	struct cfile *f, *next;

	*n = 0;
	pthread_mutex_lock(&c->lock);
	list = xcalloc(HASH_COUNT(c->files) + 1, sizeof(*list));
	HASH_ITER(hh, c->files, f, next) {
		/* Nobody has it any more: its contents are going. */
		if (f->holds == 0 && atomic_load(&f->gone))
			continue;
		f->uses++;
		list[(*n)++].file = f;
	}
	pthread_mutex_unlock(&c->lock);
	return list;
}

static json_t *file_json(const struct use *u)
{
	char name[CFILE_NAME_MAX];
	json_t *path = json_string(cfile_name(u->file, name)), *row;

	/* NULL: a name that is not UTF-8. */
	if (!path)
		path = json_sprintf("file %#lx", (unsigned long)u->file->key);
	row = json_pack("{s:o, s:I, s:i}", "path", path, "id", (json_int_t)u->file->key, "mappings", (int)atomic_load(&u->file->mappings));
	for (unsigned k = 0; k < FILE_AMOUNT_COUNT; k++)
		json_object_set_new(row, file_amount_names[k], json_integer((json_int_t)u->amounts[k]));
	for (enum moved k = 0; k < MOVED_COUNT; k++)
		json_object_set_new(row, moved_names[k], json_integer((json_int_t)moved_get(&u->file->moved, k)));
	return row;
}

json_t *cache_use_json(struct cache *c)
{
	json_t *files = json_array();
	struct use *list;
	size_t n;

	list = list_files(c, &n);
	for (size_t k = 0; k < n; k++)
		look_at(&list[k]);
	qsort(list, n, sizeof(*list), by_sum);
	for (size_t k = 0; k < n && k < FILES_NAMED && sum_of(&list[k]) > 0; k++)
		json_array_append_new(files, file_json(&list[k]));
	for (size_t k = 0; k < n; k++)
		cfile_unuse(list[k].file);
	free(list);
	return json_pack("{s:I, s:o}", "n_files", (json_int_t)n, "files", files);
}
