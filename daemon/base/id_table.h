/*
 * id_table.h - numbers that name objects, for parties that must not be given pointers.
 *
 * An id is a slot of the table (the lower 32 bits) and how often the slot has been given away (the upper ones: its
 * generation, from 1 on). So ids are above 2^32, and no id is given twice while the table lives: a slot whose generations
 * are used up is not used again. An id that was never given, or whose object was taken out, is found to be that, whatever has
 * its slot now.
 *
 * Look-ups take no lock, and may run beside everything else. The caller serialises id_table_add() and
 * id_table_remove(), and sees to it that an object outlives the use of what was looked up.
 *
 * A slot takes 16 bytes. They come in segments, each as large as all those before it, and stay until the table is destroyed.
 */
#ifndef GAIA_BASE_ID_TABLE_H
#define GAIA_BASE_ID_TABLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ID_TABLE_FIRST 1024u /* slots of the first segment */
#define ID_TABLE_SEGMENTS 22u
#define ID_TABLE_MAX ((uint32_t)(((uint64_t)ID_TABLE_FIRST << ID_TABLE_SEGMENTS) - ID_TABLE_FIRST)) /* slots */

struct id_slot {
	/* Of the object; while there is none: the last generation, and the next free slot, so never an id of this slot. */
	_Atomic(uint64_t) id;
	_Atomic(void *) object;
};

struct id_table {
	uint32_t limit;	/* constant: slots */
	/* The caller's lock. */
	uint32_t made;	/* slots that have been used: the others have no generation yet */
	uint32_t free;	/* the last slot that became free; UINT32_MAX: none */
	/* Each is set once. */
	_Atomic(struct id_slot *) segment[ID_TABLE_SEGMENTS + 1]; /* the last: none, for numbers that are no ids */
};

/* @limit: objects at a time, ID_TABLE_MAX at most. */
void id_table_init(struct id_table *t, uint32_t limit);
/* Nothing is looked up any more. Objects that are still in the table are the caller's. */
void id_table_destroy(struct id_table *t);

/*
 * Give @object (not NULL) an id, and set *@id before it can be found. -ENFILE: the table is full, -ENOMEM: there is no memory for more
 * slots; then *@id is left alone.
 */
int id_table_add(struct id_table *t, void *object, uint64_t *id);
/* @id names an object. From now on it does not. */
void id_table_remove(struct id_table *t, uint64_t id);
/* The object of the first slot from *@slot on that has one, and in *@slot the slot after it. NULL: there is none. */
void *id_table_next(struct id_table *t, uint32_t *slot);

/*
 * A table that goes on where another process's has stopped, so that the numbers which that one gave away keep their meaning, and are
 * given to nothing else:
 *	id_table_mark()		of the old table
 *	id_table_resume()	of the new one, in place of the first id_table_add(). -EINVAL: more slots than its limit; -ENOMEM
 *	id_table_restore()	any number of times. -EINVAL: the number cannot be one of the old table's, or is in use already
 *	id_table_restored()	then it is as any other
 */
struct id_table_mark {
	uint32_t made;	     /* slots */
	uint32_t generation; /* the highest */
};
void id_table_mark(struct id_table *t, struct id_table_mark *out);
int id_table_resume(struct id_table *t, const struct id_table_mark *mark);
int id_table_restore(struct id_table *t, void *object, uint64_t id);
void id_table_restored(struct id_table *t, const struct id_table_mark *mark);

/* Where @slot is; NULL: it does not exist yet, or cannot. */
static inline struct id_slot *id_table_slot(const struct id_table *t, uint32_t slot)
{
	uint64_t at = (uint64_t)slot + ID_TABLE_FIRST;
	unsigned log2 = 63u - (unsigned)__builtin_clzll(at);
	struct id_slot *segment =
		atomic_load_explicit(&t->segment[log2 - (unsigned)__builtin_ctz(ID_TABLE_FIRST)], memory_order_acquire);

	return segment ? &segment[at - (1ull << log2)] : NULL;
}

/* The object that @id, any number at all, names; NULL: none. */
static inline void *id_table_find(const struct id_table *t, uint64_t id)
{
	struct id_slot *slot = id_table_slot(t, (uint32_t)id);

	if (!slot || atomic_load_explicit(&slot->id, memory_order_acquire) != id)
		return NULL;
	return atomic_load_explicit(&slot->object, memory_order_relaxed);
}

#endif
