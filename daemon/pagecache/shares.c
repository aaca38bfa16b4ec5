/* shares.c - which frames are shared: an index by content, and counts. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/shares.h"

#include "base/bits.h"
#include "base/fault.h"
#include "base/util.h"

#define LOCKS 256u
/* So many pages for each frame of home's may be had by sharing: what is recorded of a page takes memory, too. Zeros cost nobody anything: a file can have any number. */
#define MOST 8u
#define MOST_ZEROS 4u

/* Of a frame. Guarded by the lock of its bucket, and valid while it is indexed. */
struct share {
	frame_t next; /* in the bucket */
	uint32_t tag, domain;
	_Atomic uint32_t owners; /* read without the lock for shares_by_others() */
	uint32_t slot;		 /* victims.lock, once a page has it: see slots.c */
};

struct slab_shares {
	_Atomic uint64_t indexed[GAIA_CHUNK_PAGES / 64];
	struct share of[GAIA_CHUNK_PAGES];
};

struct shares {
	unsigned n_buckets; /* a power of two */
	frame_t *bucket;
	_Atomic uint64_t saved[2]; /* of others, of zeros */
	struct {
		_Alignas(64) pthread_mutex_t lock;
	} part[LOCKS];
};

int shares_create(struct frames *fr)
{
	struct shares *sh = aligned_alloc(_Alignof(struct shares), sizeof(*sh));

	if (!sh)
		return -ENOMEM;
	memset(sh, 0, sizeof(*sh));
	sh->n_buckets = LOCKS;
	/* As many as home can have frames, with what goes beyond its budget. */
	while (sh->n_buckets < (uint64_t)fr->room * GAIA_CHUNK_PAGES / 2 && sh->n_buckets < 1u << 31)
		sh->n_buckets *= 2;
	/* Zeros that nobody has touched take no memory. */
	sh->bucket = calloc(sh->n_buckets, sizeof(*sh->bucket));
	if (!sh->bucket) {
		free(sh);
		return -ENOMEM;
	}
	for (unsigned k = 0; k < LOCKS; k++)
		pthread_mutex_init(&sh->part[k].lock, NULL);
	fr->shares = sh;
	return 0;
}

void shares_destroy(struct frames *fr)
{
	struct shares *sh = fr->shares;

	if (!sh)
		return;
	bug_on(sh->saved[false] != 0 || sh->saved[true] != 0);
	for (unsigned k = 0; k < LOCKS; k++)
		pthread_mutex_destroy(&sh->part[k].lock);
	for (unsigned i = 0; i < fr->n_slabs; i++)
		free(fr->slab[i]->shares);
	free(sh->bucket);
	free(sh);
	fr->shares = NULL;
}

static struct slab_shares *shares_of(const struct frames *fr, frame_t frame)
{
	return atomic_load_explicit(&fr->slab[(frame - 1) / GAIA_CHUNK_PAGES]->shares, memory_order_acquire);
}

static struct share *share_at(const struct frames *fr, frame_t frame)
{
	return &shares_of(fr, frame)->of[(frame - 1) % GAIA_CHUNK_PAGES];
}

/* The slab's part of the table, made if necessary. */
static struct slab_shares *shares_make(struct frames *fr, frame_t frame)
{
	struct slab *s = fr->slab[(frame - 1) / GAIA_CHUNK_PAGES];
	struct slab_shares *made, *there = shares_of(fr, frame);

	if (there)
		return there;
	made = fault_point("shares.memory") ? NULL : malloc(sizeof(*made));
	if (made) {
		/* The rest counts only where these say so. */
		memset(made->indexed, 0, sizeof(made->indexed));
#ifdef GAIA_FAULTS
		/* "break.stale_link" has them say more. */
		memset(made->of, 0, sizeof(made->of));
#endif
	}
	if (!made || atomic_compare_exchange_strong(&s->shares, &there, made))
		return made;
	free(made);
	return there;
}

static frame_t *bucket_lock(struct shares *sh, uint32_t tag)
{
	unsigned b = tag & (sh->n_buckets - 1);

	pthread_mutex_lock(&sh->part[b % LOCKS].lock);
	return &sh->bucket[b];
}

static void bucket_unlock(struct shares *sh, uint32_t tag)
{
	pthread_mutex_unlock(&sh->part[(tag & (sh->n_buckets - 1)) % LOCKS].lock);
}

bool shares_indexed(const struct frames *fr, frame_t frame)
{
	const struct slab_shares *ss = fr->shares ? shares_of(fr, frame) : NULL;
	unsigned at = (frame - 1) % GAIA_CHUNK_PAGES;

	return ss && (atomic_load(&ss->indexed[at / 64]) >> (at % 64) & 1);
}

frame_t shares_join(struct frames *fr, frame_t frame, uint32_t tag, uint32_t domain)
{
	struct slab_shares *ss = shares_make(fr, frame);
	unsigned at = (frame - 1) % GAIA_CHUNK_PAGES;
	struct shares *sh = fr->shares;
	bool zeros = tag == SHARES_ZEROS;
	frame_t *bucket, found;

	if (!ss || atomic_load(&sh->saved[zeros]) >= (zeros ? MOST_ZEROS : MOST) * fr->budget)
		return frame;
	bucket = bucket_lock(sh, tag);
	for (found = *bucket; found; found = share_at(fr, found)->next) {
		const struct share *s = share_at(fr, found);

		if (s->tag == tag && s->domain == domain && (zeros || memcmp(frame_ptr(fr, found), frame_ptr(fr, frame), GAIA_PAGE) == 0))
			break;
	}
	if (found) {
		if (!fault_point("break.share_uncounted"))
			atomic_fetch_add(&share_at(fr, found)->owners, 1);
		atomic_fetch_add(&sh->saved[zeros], 1);
	} else {
		uint32_t slot = fault_point("break.stale_link") ? ss->of[at].slot : 0;

		ss->of[at] = (struct share){ .next = *bucket, .tag = tag, .domain = domain, .owners = 1, .slot = slot };
		*bucket = frame;
		atomic_fetch_or(&ss->indexed[at / 64], 1ull << (at % 64));
	}
	bucket_unlock(sh, tag);
	return found ? found : frame;
}

/* Its bucket is locked. */
static void leave_index(struct frames *fr, frame_t *bucket, frame_t frame)
{
	unsigned at = (frame - 1) % GAIA_CHUNK_PAGES;

	while (*bucket != frame)
		bucket = &share_at(fr, *bucket)->next;
	*bucket = share_at(fr, frame)->next;
	atomic_fetch_and(&shares_of(fr, frame)->indexed[at / 64], ~(1ull << (at % 64)));
}

bool shares_own(struct frames *fr, frame_t frame)
{
	/* It stays: we have a share. */
	uint32_t tag = share_at(fr, frame)->tag;
	frame_t *bucket = bucket_lock(fr->shares, tag);
	bool alone = atomic_load(&share_at(fr, frame)->owners) == 1;

	if (alone)
		leave_index(fr, bucket, frame);
	bucket_unlock(fr->shares, tag);
	return alone;
}

bool shares_put(struct frames *fr, frame_t frame)
{
	uint32_t tag = share_at(fr, frame)->tag;
	frame_t *bucket = bucket_lock(fr->shares, tag);
	bool last = atomic_fetch_sub(&share_at(fr, frame)->owners, 1) == 1;

	if (last)
		leave_index(fr, bucket, frame);
	else
		atomic_fetch_sub(&fr->shares->saved[tag == SHARES_ZEROS], 1);
	bucket_unlock(fr->shares, tag);
	return last;
}

bool shares_by_others(const struct frames *fr, frame_t frame)
{
	return shares_indexed(fr, frame) && atomic_load_explicit(&share_at(fr, frame)->owners, memory_order_relaxed) > 1;
}

bool shares_zeros(const struct frames *fr, frame_t frame)
{
	return shares_indexed(fr, frame) && share_at(fr, frame)->tag == SHARES_ZEROS;
}

uint32_t shares_domain(const struct frames *fr, frame_t frame)
{
	return share_at(fr, frame)->domain;
}

uint32_t shares_tag(const struct frames *fr, frame_t frame)
{
	return share_at(fr, frame)->tag;
}

uint32_t shares_slot(const struct frames *fr, frame_t frame)
{
	return share_at(fr, frame)->slot;
}

void shares_set_slot(struct frames *fr, frame_t frame, uint32_t slot)
{
	share_at(fr, frame)->slot = slot;
}

uint64_t shares_saved(const struct frames *fr)
{
	return fr->shares ? atomic_load(&fr->shares->saved[false]) + atomic_load(&fr->shares->saved[true]) : 0;
}

uint64_t shares_check(const struct frames *fr, const uint32_t *owners)
{
	uint64_t saved = 0, indexed = 0, found = 0;

	for (frame_t frame = 1; frame <= fr->n_slabs * GAIA_CHUNK_PAGES; frame++) {
		if (!shares_indexed(fr, frame)) {
			bug_on(owners[frame] > 1);
			continue;
		}
		bug_on(share_at(fr, frame)->owners != owners[frame] || owners[frame] == 0);
		saved += owners[frame] - 1;
		indexed++;
	}
	for (unsigned b = 0; fr->shares && b < fr->shares->n_buckets; b++)
		for (frame_t frame = fr->shares->bucket[b]; frame; frame = share_at(fr, frame)->next) {
			bug_on(!shares_indexed(fr, frame) || (share_at(fr, frame)->tag & (fr->shares->n_buckets - 1)) != b);
			found++;
		}
	bug_on(found != indexed || saved != shares_saved(fr));
	return saved;
}
