/*
 * keys.h - for policies: keys in numbered slots, found by a hash table; and queues of slots.
 */
#ifndef GAIA_POLICY_KEYS_H
#define GAIA_POLICY_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#define NO_SLOT UINT32_MAX

struct key_slot {
	uint64_t key;
	uint32_t chained; /* the next slot of the same hash, or of the free ones */
	uint32_t prev, next; /* in its queue */
	uint8_t queue;	     /* the policy's, as */
	uint8_t uses;	     /* this is */
};

struct keys {
	uint32_t places, n;
	uint32_t mask; /* of the table */
	uint32_t free; /* the first free slot */
	uint32_t *table;
	struct key_slot *slot;
};

/* False: no memory, and nothing is to be freed. */
bool keys_init(struct keys *k, uint32_t places);
void keys_free(struct keys *k);
uint32_t keys_find(const struct keys *k, uint64_t key);
/* A slot for the key, which has none; there is one. */
uint32_t keys_add(struct keys *k, uint64_t key);
void keys_drop(struct keys *k, uint32_t slot);

struct key_queue {
	uint32_t head, tail; /* the head leaves first */
	uint32_t length;
};

#define KEY_QUEUE ((struct key_queue){ NO_SLOT, NO_SLOT, 0 })

void queue_append(struct keys *k, struct key_queue *q, uint32_t slot);
void queue_remove(struct keys *k, struct key_queue *q, uint32_t slot);

/* Spreads keys over all bits. */
static inline uint64_t key_hash(uint64_t key)
{
	key ^= key >> 32;
	key *= 0xd6e8feb86659fd93u;
	key ^= key >> 32;
	key *= 0xd6e8feb86659fd93u;
	return key ^ key >> 32;
}

#endif
