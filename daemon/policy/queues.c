/* queues.c - FIFO and LRU: one queue, which hits change or not. */
#include <stdlib.h>

#include "policy/keys.h"
#include "policy/policy.h"

struct one_queue {
	struct keys keys;
	struct key_queue queue;
};

static struct policy *create(uint32_t places)
{
	struct one_queue *p = malloc(sizeof(*p));

	if (p && !keys_init(&p->keys, places)) {
		free(p);
		return NULL;
	}
	if (p)
		p->queue = KEY_QUEUE;
	return (struct policy *)p;
}

static void destroy(struct policy *policy)
{
	struct one_queue *p = (struct one_queue *)policy;

	keys_free(&p->keys);
	free(p);
}

static bool fifo_hit(struct policy *policy, uint64_t key)
{
	return keys_find(&((struct one_queue *)policy)->keys, key) != NO_SLOT;
}

static bool lru_hit(struct policy *policy, uint64_t key)
{
	struct one_queue *p = (struct one_queue *)policy;
	uint32_t slot = keys_find(&p->keys, key);

	if (slot == NO_SLOT)
		return false;
	queue_remove(&p->keys, &p->queue, slot);
	queue_append(&p->keys, &p->queue, slot);
	return true;
}

static void insert(struct policy *policy, uint64_t key)
{
	struct one_queue *p = (struct one_queue *)policy;

	queue_append(&p->keys, &p->queue, keys_add(&p->keys, key));
}

static void drop(struct one_queue *p, uint32_t slot)
{
	queue_remove(&p->keys, &p->queue, slot);
	keys_drop(&p->keys, slot);
}

static unsigned evict(struct policy *policy, uint64_t out[POLICY_EVICTS])
{
	struct one_queue *p = (struct one_queue *)policy;
	uint32_t slot = p->queue.head;

	if (slot == NO_SLOT)
		return 0;
	out[0] = p->keys.slot[slot].key;
	drop(p, slot);
	return 1;
}

static void remove_key(struct policy *policy, uint64_t key)
{
	struct one_queue *p = (struct one_queue *)policy;
	uint32_t slot = keys_find(&p->keys, key);

	if (slot != NO_SLOT)
		drop(p, slot);
}

static uint32_t count(const struct policy *policy)
{
	return ((const struct one_queue *)policy)->keys.n;
}

const struct policy_kind policy_fifo = {
	.name = "fifo", .create = create, .destroy = destroy, .hit = fifo_hit, .insert = insert, .evict = evict,
	.remove = remove_key, .count = count,
};

const struct policy_kind policy_lru = {
	.name = "lru", .create = create, .destroy = destroy, .hit = lru_hit, .insert = insert, .evict = evict,
	.remove = remove_key, .count = count,
};
