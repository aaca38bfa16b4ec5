/* ghosts.c - see ghosts.h. */
#include <stdlib.h>

#include "policy/ghosts.h"

#include "policy/keys.h"

#define SET 4u
#define AGES 4096u /* steps that are told apart */
#define LIFE 256u  /* steps of a ghost's life at most; a set that is seldom looked at forgets in time, before ages come round */
#define SPARE 2u   /* so many times the ghosts have room, since sets fill unevenly */

/* A mark is 20 bits of a hash, the last of which is set, and the step in which it was made. 0: none. */
struct ghosts {
	uint64_t made, step, sets;
	uint32_t life; /* steps */
	uint32_t mark[];
};

struct ghosts *ghosts_create(uint64_t most)
{
	uint64_t sets = 1;
	struct ghosts *g;

	while (sets * SET < SPARE * most)
		sets *= 2;
	g = calloc(1, sizeof(*g) + sets * SET * sizeof(g->mark[0]));
	if (!g)
		return NULL;
	g->sets = sets;
	g->step = (most + LIFE - 1) / LIFE;
	g->life = (uint32_t)(most / g->step);
	return g;
}

void ghosts_destroy(struct ghosts *g)
{
	free(g);
}

static uint32_t now(const struct ghosts *g)
{
	return (uint32_t)(g->made / g->step % AGES);
}

static uint32_t age(const struct ghosts *g, uint32_t mark)
{
	return (now(g) - mark % AGES) % AGES;
}

/* The key's set, without those whose time is over: they must not seem young again. */
static uint32_t *set_of(struct ghosts *g, uint64_t hash)
{
	uint32_t *set = &g->mark[hash % g->sets * SET];

	for (unsigned i = 0; i < SET; i++)
		if (set[i] && age(g, set[i]) >= g->life)
			set[i] = 0;
	return set;
}

static uint32_t name_of(uint64_t hash)
{
	return (uint32_t)(hash >> 44) | 1;
}

void ghosts_add(struct ghosts *g, uint64_t key)
{
	uint64_t hash = key_hash(key);
	uint32_t *set = set_of(g, hash), *at = set;

	for (unsigned i = 0; i < SET; i++) {
		/* The same key again, or a free place, or else the oldest. */
		if (!set[i] || set[i] / AGES == name_of(hash)) {
			at = &set[i];
			break;
		}
		if (age(g, set[i]) > age(g, *at))
			at = &set[i];
	}
	*at = name_of(hash) * AGES + now(g);
	g->made++;
}

bool ghosts_take(struct ghosts *g, uint64_t key)
{
	uint64_t hash = key_hash(key);
	uint32_t *set = set_of(g, hash);

	for (unsigned i = 0; i < SET; i++)
		if (set[i] / AGES == name_of(hash)) {
			set[i] = 0;
			return true;
		}
	return false;
}
