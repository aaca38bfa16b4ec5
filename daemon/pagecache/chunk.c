/* chunk.c - chunks: their lives, and which of a file's a sync has to look at. See internal.h. */
#include <stdlib.h>

#include "pagecache/chunk.h"

#include "base/util.h"
#include "pagecache/file.h"
#include "pagecache/root.h"
#include "pagecache/state.h"

/* ---- life ---- */

static struct chunk *chunk_create(struct cfile *f, uint64_t index)
{
	struct chunk *ch = xcalloc(1, sizeof(*ch));

	ch->file = f;
	ch->index = index;
	pthread_mutex_init(&ch->lock, NULL);
	pthread_cond_init(&ch->unlocked, NULL);
	HASH_ADD(hh, f->chunks, index, sizeof(ch->index), ch);
	cfile_use(f);
	return ch;
}

static void chunk_destroy(struct chunk *ch)
{
	bug_on(ch->n_frames || ch->n_dirty || ch->n_replicas || ch->track || ch->parked);
	bug_on(ch->lists || ch->arriving || ch->unsynced);
	pthread_cond_destroy(&ch->unlocked);
	pthread_mutex_destroy(&ch->lock);
	for (unsigned i = 0; i < ARRAY_LEN(ch->leaf); i++)
		free(ch->leaf[i]);
	free(ch->replica);
	free(ch);
}

struct chunk *chunk_get(struct cfile *f, uint64_t index, bool make)
{
	struct chunk *ch;

	pthread_mutex_lock(&f->lock);
	HASH_FIND(hh, f->chunks, &index, sizeof(index), ch);
	if (!ch && make)
		ch = chunk_create(f, index);
	if (ch)
		ch->refs++;
	pthread_mutex_unlock(&f->lock);
	return ch;
}

struct chunk *chunk_ref(struct chunk *ch)
{
	pthread_mutex_lock(&ch->file->lock);
	ch->refs++;
	pthread_mutex_unlock(&ch->file->lock);
	return ch;
}

void chunk_put(struct chunk *ch)
{
	struct cfile *f = ch->file;
	bool last;

	pthread_mutex_lock(&f->lock);
	bug_on(ch->refs == 0);
	last = --ch->refs == 0;
	if (last)
		HASH_DEL(f->chunks, ch);
	pthread_mutex_unlock(&f->lock);
	if (!last)
		return;
	chunk_destroy(ch);
	cfile_unuse(f);
}

static int by_index(const void *a, const void *b)
{
	const struct chunk *x = *(struct chunk *const *)a, *y = *(struct chunk *const *)b;

	return x->index < y->index ? -1 : x->index > y->index;
}

unsigned chunk_list_get(struct cfile *f, uint64_t first, uint64_t last, struct chunk ***out)
{
	struct chunk **list, *ch, *tmp;
	unsigned n = 0;

	pthread_mutex_lock(&f->lock);
	list = xmalloc((HASH_COUNT(f->chunks) + 1) * sizeof(struct chunk *));
	HASH_ITER(hh, f->chunks, ch, tmp) {
		if (ch->index < first || ch->index > last)
			continue;
		ch->refs++;
		list[n++] = ch;
	}
	pthread_mutex_unlock(&f->lock);
	if (n > 1)
		qsort(list, n, sizeof(struct chunk *), by_index);
	*out = list;
	return n;
}

struct page *page_make(struct chunk *ch, unsigned i)
{
	struct page **leaf = &ch->leaf[i / LEAF_PAGES];

	if (!*leaf)
		*leaf = xcalloc(LEAF_PAGES, sizeof(**leaf));
	return *leaf + i % LEAF_PAGES;
}

void chunk_trim_leaves(struct chunk *ch)
{
	static const struct page nothing[LEAF_PAGES];

	for (unsigned k = 0; k < ARRAY_LEN(ch->leaf); k++) {
		if (!ch->leaf[k] || memcmp(ch->leaf[k], nothing, sizeof(nothing)) != 0)
			continue;
		free(ch->leaf[k]);
		ch->leaf[k] = NULL;
	}
}

/* ---- what a sync has to look at ---- */

void chunk_note_unsynced(struct chunk *ch)
{
	struct cfile *f = ch->file;
	bool is = ch->n_dirty || ch->n_stored || ch->n_ahead;

	if (is == ch->unsynced)
		return;
	pthread_mutex_lock(&f->lock);
	ch->unsynced = is;
	if (is)
		TAILQ_INSERT_TAIL(&f->unsynced, ch, link);
	else
		TAILQ_REMOVE(&f->unsynced, ch, link);
	pthread_mutex_unlock(&f->lock);
}

void chunk_count_ahead(struct chunk *ch, int more)
{
	atomic_fetch_add(&ch->n_ahead, (unsigned)more);
	chunk_note_unsynced(ch);
	atomic_fetch_add(&ch->file->n_ahead, (uint64_t)more);
	atomic_fetch_add(&ch->file->cache->n_ahead, (uint64_t)more);
}

static unsigned count_of(const struct chunk *ch, enum unsynced what)
{
	switch (what) {
	case UNSYNCED_AHEAD:
		return ch->n_ahead;
	case UNSYNCED_DIRTY:
		return ch->n_dirty;
	case UNSYNCED_STORED:
		return ch->n_stored;
	default:
		return 1;
	}
}

unsigned chunk_list_unsynced(struct cfile *f, uint64_t first, uint64_t last, enum unsynced what,
			     struct chunk ***out)
{
	struct chunk **list = NULL, *ch;
	unsigned n = 0;

	pthread_mutex_lock(&f->lock);
	TAILQ_FOREACH(ch, &f->unsynced, link) {
		if (ch->index < first || ch->index > last || count_of(ch, what) == 0)
			continue;
		if ((n & (n - 1)) == 0)
			list = xrealloc(list, MAX(2 * n, 1u) * sizeof(struct chunk *));
		ch->refs++;
		list[n++] = ch;
	}
	pthread_mutex_unlock(&f->lock);
	if (n > 1)
		qsort(list, n, sizeof(struct chunk *), by_index);
	*out = list;
	return n;
}
