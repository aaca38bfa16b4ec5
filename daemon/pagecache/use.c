/*
 * use.c - which files take the cache's memory, for gaia top.
 */
#include <stdlib.h>

#include "base/util.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/victim.h"
#include "pagecache/view.h"

#define FILES_NAMED 100u

struct use {
	struct cfile *file; /* used */
	uint64_t home, dirty, devices, parked; /* bytes; dirty: with what devices have released */
};

static uint64_t sum_of(const struct use *u)
{
	return u->home + u->devices + u->parked;
}

/* The most first. */
static int by_sum(const void *a, const void *b)
{
	uint64_t x = sum_of(a), y = sum_of(b);

	return (x < y) - (x > y);
}

static void look_at_chunk(struct chunk *ch, struct use *u)
{
	pthread_mutex_lock(&ch->lock);
	u->home += (uint64_t)atomic_load(&ch->n_frames) * GAIA_PAGE;
	u->parked += (uint64_t)victim_count(ch) * GAIA_PAGE;
	/* A view is home's memory. */
	for (unsigned k = 0; k < ch->n_replicas; k++)
		u->devices += replica_is_view(ch->replica[k]) ? 0 : GAIA_CHUNK;
	pthread_mutex_unlock(&ch->lock);
}

static void look_at(struct use *u)
{
	struct cfile *f = u->file;
	struct chunk **list;
	unsigned n = chunk_list_get(f, 0, UINT64_MAX, &list);

	for (unsigned k = 0; k < n; k++) {
		look_at_chunk(list[k], u);
		chunk_put(list[k]);
	}
	free(list);
	u->dirty = (atomic_load(&f->n_dirty) + atomic_load(&f->n_ahead)) * GAIA_PAGE;
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
	json_t *path = json_string(cfile_name(u->file, name));

	/* NULL: a name that is not UTF-8. */
	if (!path)
		path = json_sprintf("file %#lx", (unsigned long)u->file->key);
	return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I}", "path", path, "home_bytes", (json_int_t)u->home, "device_bytes", (json_int_t)u->devices,
			 "parked_bytes", (json_int_t)u->parked, "dirty_bytes", (json_int_t)u->dirty, "mappings",
			 (json_int_t)atomic_load(&u->file->mappings));
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
