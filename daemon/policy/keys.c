/* keys.c - see keys.h. */
#include <stdlib.h>

#include "policy/keys.h"

bool keys_init(struct keys *k, uint32_t places)
{
	uint32_t buckets = 16;

	while (buckets < places)
		buckets *= 2;
	*k = (struct keys){ .places = places, .mask = buckets - 1 };
	k->table = malloc(buckets * sizeof(*k->table));
	k->slot = calloc(places, sizeof(*k->slot));
	if (!k->table || !k->slot) {
		keys_free(k);
		return false;
	}
	for (uint32_t i = 0; i < buckets; i++)
		k->table[i] = NO_SLOT;
	for (uint32_t i = 0; i < places; i++)
		k->slot[i].chained = i + 1 < places ? i + 1 : NO_SLOT;
	return true;
}

void keys_free(struct keys *k)
{
	free(k->table);
	free(k->slot);
}

static uint32_t *bucket_of(const struct keys *k, uint64_t key)
{
	return &k->table[key_hash(key) & k->mask];
}

uint32_t keys_find(const struct keys *k, uint64_t key)
{
	uint32_t s = *bucket_of(k, key);

	while (s != NO_SLOT && k->slot[s].key != key)
		s = k->slot[s].chained;
	return s;
}

uint32_t keys_add(struct keys *k, uint64_t key)
{
	uint32_t *bucket = bucket_of(k, key), s = k->free;

	k->free = k->slot[s].chained;
	k->slot[s] = (struct key_slot){ .key = key, .chained = *bucket };
	*bucket = s;
	k->n++;
	return s;
}

void keys_drop(struct keys *k, uint32_t slot)
{
	uint32_t *at = bucket_of(k, k->slot[slot].key);

	while (*at != slot)
		at = &k->slot[*at].chained;
	*at = k->slot[slot].chained;
	k->slot[slot].chained = k->free;
	k->free = slot;
	k->n--;
}

void queue_append(struct keys *k, struct key_queue *q, uint32_t slot)
{
	k->slot[slot].prev = q->tail;
	k->slot[slot].next = NO_SLOT;
	if (q->tail == NO_SLOT)
		q->head = slot;
	else
		k->slot[q->tail].next = slot;
	q->tail = slot;
	q->length++;
}

void queue_remove(struct keys *k, struct key_queue *q, uint32_t slot)
{
	const struct key_slot *s = &k->slot[slot];

	if (s->prev == NO_SLOT)
		q->head = s->next;
	else
		k->slot[s->prev].next = s->next;
	if (s->next == NO_SLOT)
		q->tail = s->prev;
	else
		k->slot[s->next].prev = s->prev;
	q->length--;
}
