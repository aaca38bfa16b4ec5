/*
 * policy.h - replacement policies: which keys leave a cache of so many places.
 *
 * A key is any number that names what the cache holds, here a page of some file. A policy remembers keys, never contents. Neighbouring
 * numbers are taken for neighbouring pages by policies that know chunks (policy_chunks).
 *
 * Use: for each access hit(); if that is false the caller makes room by evict(), if all places are taken, and then calls insert().
 * policy_access() does the three.
 *
 * Pure: no I/O, no locks, no clock, nothing random: the same calls give the same victims. A policy belongs to one thread at a time. All
 * memory is taken by create() and given back by destroy().
 */
#ifndef GAIA_POLICY_POLICY_H
#define GAIA_POLICY_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* Each policy has its own. */
struct policy;

#define POLICY_EVICTS 512u   /* keys that leave at a time at most */
#define POLICY_PLACES (1u << 30) /* of a cache at most */

struct policy_kind {
	const char *name;

	/* For a cache of @places, 1 to POLICY_PLACES. NULL: no memory. */
	struct policy *(*create)(uint32_t places);
	void (*destroy)(struct policy *p);

	/* The key is used. Whether it is in the cache. */
	bool (*hit)(struct policy *p, uint64_t key);

	/* The key, which is not in the cache, comes into it. There is a place. */
	void (*insert)(struct policy *p, uint64_t key);

	/* At least one key leaves, unless there is none: how many, and which. */
	unsigned (*evict)(struct policy *p, uint64_t out[POLICY_EVICTS]);

	/* The key is gone for another reason than lack of room: nothing is remembered of it. It may not be in the cache. */
	void (*remove)(struct policy *p, uint64_t key);

	/* How many keys are in the cache. */
	uint32_t (*count)(const struct policy *p);
};

/* First in, first out. */
extern const struct policy_kind policy_fifo;

/* The least recently used key leaves: the reference for what recency alone brings. */
extern const struct policy_kind policy_lru;

/*
 * S3-FIFO (SOSP'23): a new key goes through a small queue, a tenth of the places. If it is used there twice it moves on to the main
 * queue, else it leaves, and becomes a ghost; a ghost that comes again goes to the main queue at once. A key in the main queue that was used since
 * it came to the queue's end goes round again, up to three times. A hit counts uses, and moves nothing.
 */
extern const struct policy_kind policy_s3fifo;

/*
 * What home does: chunks of 512 keys in a queue. The first one goes to its end if any of its keys was used since it was last
 * looked at; else it leaves whole.
 */
extern const struct policy_kind policy_chunks;

/* All of them, ending with NULL. */
extern const struct policy_kind *const policies[];

/* Access @key in a cache of @places, the number that @p was made with: whether it was a hit. *@left, if not NULL: how many keys it cost. */
bool policy_access(const struct policy_kind *kind, struct policy *p, uint32_t places, uint64_t key, unsigned *left);

#endif
