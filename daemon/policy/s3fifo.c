/* s3fifo.c - S3-FIFO: Yang et al., FIFO queues are all you need for cache eviction, SOSP'23. */
#include <stdlib.h>

#include "policy/ghosts.h"
#include "policy/keys.h"
#include "policy/policy.h"

#define USES_COUNTED 3u /* two bits */
#define USES_TO_MOVE 2u /* in the small queue, after the one that brought it */

enum { SMALL, MAIN };

struct s3 {
	struct keys keys;
	struct key_queue queue[2];
	uint32_t small; /* places */
	struct ghosts *ghosts;
};

static struct policy *create(uint32_t places)
{
	struct s3 *p = malloc(sizeof(*p));

	if (!p)
		return NULL;
	p->small = places / 10 ? places / 10 : 1;
	p->queue[SMALL] = p->queue[MAIN] = KEY_QUEUE;
	p->ghosts = ghosts_create(places);
	if (!p->ghosts)
		goto free_policy;
	if (!keys_init(&p->keys, places))
		goto free_ghosts;
	return (struct policy *)p;

free_ghosts:
	ghosts_destroy(p->ghosts);
free_policy:
	free(p);
	return NULL;
}

static void destroy(struct policy *policy)
{
	struct s3 *p = (struct s3 *)policy;

	keys_free(&p->keys);
	ghosts_destroy(p->ghosts);
	free(p);
}

static bool hit(struct policy *policy, uint64_t key)
{
	struct s3 *p = (struct s3 *)policy;
	uint32_t slot = keys_find(&p->keys, key);

	if (slot == NO_SLOT)
		return false;
	if (p->keys.slot[slot].uses < USES_COUNTED)
		p->keys.slot[slot].uses++;
	return true;
}

static void append(struct s3 *p, uint32_t slot, uint8_t queue)
{
	p->keys.slot[slot].queue = queue;
	queue_append(&p->keys, &p->queue[queue], slot);
}

static void insert(struct policy *policy, uint64_t key)
{
	struct s3 *p = (struct s3 *)policy;

	append(p, keys_add(&p->keys, key), ghosts_take(p->ghosts, key) ? MAIN : SMALL);
}

static void drop(struct s3 *p, uint32_t slot)
{
	queue_remove(&p->keys, &p->queue[p->keys.slot[slot].queue], slot);
	keys_drop(&p->keys, slot);
}

/* Whether the queue's first, which was used, stays. */
static bool goes_round(struct s3 *p, uint32_t slot)
{
	struct key_slot *s = &p->keys.slot[slot];
	bool stays = s->uses >= (s->queue == SMALL ? USES_TO_MOVE : 1u);

	if (!stays)
		return false;
	queue_remove(&p->keys, &p->queue[s->queue], slot);
	s->uses = s->queue == SMALL ? 0 : s->uses - 1;
	append(p, slot, MAIN);
	return true;
}

static unsigned evict(struct policy *policy, uint64_t out[POLICY_EVICTS])
{
	struct s3 *p = (struct s3 *)policy;
	uint32_t slot;

	if (p->keys.n == 0)
		return 0;
	do
		slot = p->queue[p->queue[SMALL].length >= p->small || p->queue[MAIN].length == 0 ? SMALL : MAIN].head;
	while (goes_round(p, slot));
	out[0] = p->keys.slot[slot].key;
	if (p->keys.slot[slot].queue == SMALL)
		ghosts_add(p->ghosts, out[0]);
	drop(p, slot);
	return 1;
}

static void remove_key(struct policy *policy, uint64_t key)
{
	struct s3 *p = (struct s3 *)policy;
	uint32_t slot = keys_find(&p->keys, key);

	(void)ghosts_take(p->ghosts, key);
	if (slot != NO_SLOT)
		drop(p, slot);
}

static uint32_t count(const struct policy *policy)
{
	return ((const struct s3 *)policy)->keys.n;
}

const struct policy_kind policy_s3fifo = {
	.name = "s3fifo", .create = create, .destroy = destroy, .hit = hit, .insert = insert, .evict = evict,
	.remove = remove_key, .count = count,
};
