/* id_table.c - see id_table.h. */
#include "base/id_table.h"

#include <errno.h>
#include <stdlib.h>

#include "base/util.h"

#define NONE UINT32_MAX /* no slot: above ID_TABLE_MAX */
#define LAST_GENERATION UINT32_MAX

static uint64_t id_of(uint32_t generation, uint32_t slot)
{
	return (uint64_t)generation << 32 | slot;
}

static uint32_t generation_of(uint64_t id)
{
	return (uint32_t)(id >> 32);
}

void id_table_init(struct id_table *t, uint32_t limit)
{
	bug_on(limit > ID_TABLE_MAX);
	*t = (struct id_table){ .limit = limit, .free = NONE };
}

void id_table_destroy(struct id_table *t)
{
	for (unsigned i = 0; i < ID_TABLE_SEGMENTS; i++)
		free(t->segment[i]);
}

/* Make the next segment. */
static int make_segment(struct id_table *t)
{
	struct id_slot *segment;
	unsigned i = 0;

	while (t->segment[i])
		i++;
	segment = calloc((size_t)ID_TABLE_FIRST << i, sizeof(*segment));
	if (!segment)
		return -ENOMEM;
	atomic_store_explicit(&t->segment[i], segment, memory_order_release);
	return 0;
}

/* A slot that was never used, with generation 0; or a negative errno. */
static int make_slot(struct id_table *t, uint32_t *out)
{
	int err;

	if (t->made == t->limit)
		return -ENFILE;
	if (!id_table_slot(t, t->made)) {
		err = make_segment(t);
		if (err)
			return err;
	}
	*out = t->made++;
	return 0;
}

int id_table_add(struct id_table *t, void *object, uint64_t *id)
{
	uint32_t slot = t->free, generation;
	struct id_slot *s;
	int err;

	bug_on(!object);
	if (slot == NONE) {
		err = make_slot(t, &slot);
		if (err)
			return err;
		s = id_table_slot(t, slot);
	} else {
		s = id_table_slot(t, slot);
		t->free = (uint32_t)s->id;
	}
	generation = generation_of(s->id) + 1;
	*id = id_of(generation, slot);
	atomic_store_explicit(&s->object, object, memory_order_relaxed);
	atomic_store_explicit(&s->id, *id, memory_order_release);
	return 0;
}

void id_table_remove(struct id_table *t, uint64_t id)
{
	uint32_t slot = (uint32_t)id;
	struct id_slot *s = id_table_slot(t, slot);

	bug_on(!s || s->id != id);
	if (generation_of(id) == LAST_GENERATION) {
		atomic_store_explicit(&s->id, id_of(LAST_GENERATION, NONE), memory_order_relaxed);
	} else {
		atomic_store_explicit(&s->id, id_of(generation_of(id), t->free), memory_order_relaxed);
		t->free = slot;
	}
	atomic_store_explicit(&s->object, NULL, memory_order_relaxed);
}

void *id_table_next(struct id_table *t, uint32_t *slot)
{
	void *object = NULL;

	while (!object && *slot < t->made) {
		const struct id_slot *s = id_table_slot(t, (*slot)++);

		bug_on(!s);
		object = s->object;
	}
	return object;
}

void id_table_mark(struct id_table *t, struct id_table_mark *out)
{
	*out = (struct id_table_mark){ .made = t->made };
	for (uint32_t slot = 0; slot < t->made; slot++)
		out->generation = MAX(out->generation, generation_of(id_table_slot(t, slot)->id));
}

int id_table_resume(struct id_table *t, const struct id_table_mark *mark)
{
	int err = 0;

	bug_on(t->made);
	if (mark->made > t->limit)
		return -EINVAL;
	while (!err && mark->made && !id_table_slot(t, mark->made - 1))
		err = make_segment(t);
	if (err)
		return err;
	t->made = mark->made;
	return 0;
}

int id_table_restore(struct id_table *t, void *object, uint64_t id)
{
	uint32_t slot = (uint32_t)id;
	struct id_slot *s = id_table_slot(t, slot);

	if (slot >= t->made || !generation_of(id) || s->object)
		return -EINVAL;
	atomic_store_explicit(&s->object, object, memory_order_relaxed);
	atomic_store_explicit(&s->id, id, memory_order_release);
	return 0;
}

void id_table_restored(struct id_table *t, const struct id_table_mark *mark)
{
	/* The slots that are free get the highest generation of all: so no number is given away again. */
	t->free = NONE;
	for (uint32_t slot = t->made; slot-- > 0;) {
		struct id_slot *s = id_table_slot(t, slot);

		if (s->object)
			continue;
		s->id = id_of(mark->generation, t->free);
		if (mark->generation != LAST_GENERATION)
			t->free = slot;
	}
}
