/* chunks.c - the second chance by chunk: what home does (pagecache/leave.c). */
#include <stdlib.h>
#include <string.h>

#include "policy/keys.h"
#include "policy/policy.h"

#define CHUNK 512u /* keys */

/* Chunks are keys in slots, as pages are for other policies. */
struct chunks {
	struct keys keys;
	struct key_queue queue;
	uint32_t n;
	uint64_t (*has)[CHUNK / 64]; /* by slot: which of its keys */
};

static struct policy *create(uint32_t places)
{
	struct chunks *p = malloc(sizeof(*p));

	if (!p)
		return NULL;
	p->queue = KEY_QUEUE;
	p->n = 0;
	/* Each place may be another chunk's. */
	p->has = calloc(places, sizeof(*p->has));
	if (p->has && keys_init(&p->keys, places))
		return (struct policy *)p;
	free(p->has);
	free(p);
	return NULL;
}

static void destroy(struct policy *policy)
{
	struct chunks *p = (struct chunks *)policy;

	keys_free(&p->keys);
	free(p->has);
	free(p);
}

static uint64_t *word_of(struct chunks *p, uint32_t slot, uint64_t key)
{
	return &p->has[slot][key % CHUNK / 64];
}

static uint64_t bit_of(uint64_t key)
{
	return 1ull << key % 64;
}

static bool hit(struct policy *policy, uint64_t key)
{
	struct chunks *p = (struct chunks *)policy;
	uint32_t slot = keys_find(&p->keys, key / CHUNK);

	if (slot == NO_SLOT)
		return false;
	p->keys.slot[slot].uses = 1;
	return *word_of(p, slot, key) & bit_of(key);
}

static void insert(struct policy *policy, uint64_t key)
{
	struct chunks *p = (struct chunks *)policy;
	uint32_t slot = keys_find(&p->keys, key / CHUNK);

	if (slot == NO_SLOT) {
		slot = keys_add(&p->keys, key / CHUNK);
		memset(p->has[slot], 0, sizeof(p->has[slot]));
		queue_append(&p->keys, &p->queue, slot);
	}
	/* A read marks its chunk after it has brought the page. */
	p->keys.slot[slot].uses = 1;
	*word_of(p, slot, key) |= bit_of(key);
	p->n++;
}

static void drop(struct chunks *p, uint32_t slot)
{
	queue_remove(&p->keys, &p->queue, slot);
	keys_drop(&p->keys, slot);
}

static unsigned evict(struct policy *policy, uint64_t out[POLICY_EVICTS])
{
	struct chunks *p = (struct chunks *)policy;
	uint32_t slot = p->queue.head;
	unsigned n = 0;

	if (slot == NO_SLOT)
		return 0;
	while (p->keys.slot[slot].uses) {
		p->keys.slot[slot].uses = 0;
		queue_remove(&p->keys, &p->queue, slot);
		queue_append(&p->keys, &p->queue, slot);
		slot = p->queue.head;
	}
	for (unsigned i = 0; i < CHUNK; i++)
		if (*word_of(p, slot, i) & bit_of(i))
			out[n++] = p->keys.slot[slot].key * CHUNK + i;
	p->n -= n;
	drop(p, slot);
	return n;
}

static void remove_key(struct policy *policy, uint64_t key)
{
	struct chunks *p = (struct chunks *)policy;
	uint32_t slot = keys_find(&p->keys, key / CHUNK);

	if (slot == NO_SLOT || !(*word_of(p, slot, key) & bit_of(key)))
		return;
	*word_of(p, slot, key) &= ~bit_of(key);
	p->n--;
	for (unsigned i = 0; i < CHUNK / 64; i++)
		if (p->has[slot][i])
			return;
	drop(p, slot);
}

static uint32_t count(const struct policy *policy)
{
	return ((const struct chunks *)policy)->n;
}

const struct policy_kind policy_chunks = {
	.name = "chunks", .create = create, .destroy = destroy, .hit = hit, .insert = insert, .evict = evict,
	.remove = remove_key, .count = count,
};
