/*
 * dedup.c - see dedup.h.
 *
 * A page is in the sample if a few of its bytes, mixed, say so: so equal pages are, or are not, wherever they lie. One page of SAMPLE is. Pages of
 * the sample are always looked for. The others of a file are if that pays by what its sample has found so far, or, while that is
 * too small to tell, by what the samples of all files have: of the pages looked for a share must have been found (WORTH), and reading these again
 * must take longer than it has taken to hash all. A page that was shared and is written then was found in vain; that counts twice. Where it
 * has not paid for long, all but one page of RESTS of the file's sample are left out, until it does; that one counts for all of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>
#ifdef GAIA_XXH_DISPATCH
#include <xxh_x86dispatch.h> /* by what this processor has: a third of the time */
#endif

#include "pagecache/dedup.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/home.h"
#include "pagecache/readcost.h"
#include "pagecache/root.h"
#include "pagecache/shares.h"
#include "pagecache/victim.h"
#include "pagecache/writeback.h"

#define SAMPLE 16u
#define RESTS 16u
#define WORTH_PERCENT 3u
/* Pages of the sample: fewer of a file do not tell; after so many what was is worth half. */
#define ENOUGH 32u
#define MANY 1024u
/* Where so many have found nothing most are left out; where too little, after MANY / 2. */
#define NOTHING 256u
/* For so many pages of the sample the store is not asked again whose the file is. */
#define OWNER_PAGES 64u

struct dedup {
	bool all_users; /* of all users' files, not only of one user's at a time */
	uint64_t seed; /* of the sample */
	uint8_t secret[XXH3_SECRET_SIZE_MIN];
	struct dedup_sample all; /* of all files together */
	atomic_uint hash_ns;   /* of a page, lately */
};

int dedup_create(struct cache *c, const struct cache_config *config)
{
	struct dedup *d;
	int err;

	if (config->dedup == CACHE_DEDUP_OFF)
		return 0;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	/* So that nobody can make files whose pages all have one hash. */
	if (getrandom(d->secret, sizeof(d->secret), 0) != sizeof(d->secret)) {
		free(d);
		return -EIO;
	}
	memcpy(&d->seed, d->secret, sizeof(d->seed));
	d->all_users = config->dedup == CACHE_DEDUP_ALL_USERS;
	err = shares_create(&c->frames);
	if (err)
		free(d);
	else
		c->dedup = d;
	return err;
}

void dedup_destroy(struct cache *c)
{
	free(c->dedup);
	c->dedup = NULL;
}

/* ---- which pages ---- */

/* The same for equal pages, whatever file they are of. A byte: the highest of the products', which depends on all below. */
static unsigned mixed_bytes(uint64_t seed, const void *page)
{
	uint64_t mixed = seed, word;

	for (unsigned at = 0; at < GAIA_PAGE; at += GAIA_PAGE / 4) {
		memcpy(&word, (const char *)page + at, sizeof(word));
		mixed = (mixed ^ word) * 0x9e3779b97f4a7c15u;
	}
	return (unsigned)(mixed >> 56);
}

static bool pays(const struct cache *c, const struct dedup_sample *sa)
{
	uint64_t tried = atomic_load_explicit(&sa->tried, memory_order_relaxed), found = atomic_load_explicit(&sa->found, memory_order_relaxed);
	uint64_t vain = atomic_load_explicit(&sa->vain, memory_order_relaxed);
	uint64_t hash_ns = atomic_load_explicit(&c->dedup->hash_ns, memory_order_relaxed);

	/* By these nothing was saved, and each has cost a copy. And of those that were found last some will be written yet. */
	found -= MIN(found, 2 * vain);
	return tried >= ENOUGH && found * 100 >= tried * WORTH_PERCENT && found * read_cost_ns(&c->store_cost, 1, 1) >= tried * hash_ns;
}

/* What tells most of the file. */
static const struct dedup_sample *sample_of(const struct cfile *f)
{
	bool known = atomic_load_explicit(&f->dedup.sample.tried, memory_order_relaxed) >= ENOUGH;

	return known ? &f->dedup.sample : &f->cache->dedup->all;
}

/*
 * Pages of the file are looked for if none of these bits of their mixed_bytes() is set. Only what the file itself has shown makes its sample smaller:
 * else who reads pages that are all different would see to it that others' are not looked for.
 */
static unsigned looked_for(const struct cfile *f)
{
	const struct dedup_sample *own = &f->dedup.sample;
	unsigned enough = atomic_load_explicit(&own->found, memory_order_relaxed) > 0 ? MANY / 2 : NOTHING;

	_Static_assert(SAMPLE * RESTS <= 256, "it is by one byte");
	if (fault_point("dedup.all") || pays(f->cache, sample_of(f)))
		return 0;
	return (atomic_load_explicit(&own->tried, memory_order_relaxed) < enough ? SAMPLE : SAMPLE * RESTS) - 1;
}

/* For how many pages of the file's sample this one stands, where @mask says which are looked for; 0: it is not in the sample. */
static unsigned in_sample(unsigned mask, uint64_t seed, const void *page)
{
	mask = mask ? mask : SAMPLE - 1;
	return mixed_bytes(seed, page) & mask ? 0 : (mask + 1) / SAMPLE;
}

static void learn(struct dedup_sample *sa, unsigned n, bool found)
{
	if (found)
		atomic_fetch_add_explicit(&sa->found, n, memory_order_relaxed);
	if (atomic_fetch_add_explicit(&sa->tried, n, memory_order_relaxed) + n < MANY)
		return;
	atomic_store_explicit(&sa->tried, MANY / 2, memory_order_relaxed);
	atomic_store_explicit(&sa->found, atomic_load_explicit(&sa->found, memory_order_relaxed) / 2, memory_order_relaxed);
	atomic_store_explicit(&sa->vain, atomic_load_explicit(&sa->vain, memory_order_relaxed) / 2, memory_order_relaxed);
}

/* Hashing takes more or less time as the processor's caches have the page: what it has taken lately. */
static void learn_cost(struct dedup *d, uint64_t ns)
{
	uint64_t old = atomic_load_explicit(&d->hash_ns, memory_order_relaxed);

	/* A thread that did not run meanwhile says nothing. */
	ns = MIN(ns, 10000u);
	atomic_store_explicit(&d->hash_ns, (unsigned)(old ? (7 * old + ns) / 8 : ns), memory_order_relaxed);
}

/* ---- whose ---- */

/*
 * cfile.dedup.owner: the owner of the file (32 bits), how often who has rights to it has changed (16), whether the file may share (1), and for
 * how many pages of the sample that may be taken for true (15); 0: the store is to be asked.
 */
#define OWNER_CHANGE 0x10000u
#define OWNER_SHARES 0x8000u
#define OWNER_LEFT 0x7fffu

void cache_owner_changed(struct cfile *f)
{
	uint64_t owner = atomic_load(&f->dedup.owner);

	while (!atomic_compare_exchange_weak(&f->dedup.owner, &owner, ((owner & UINT32_MAX) + OWNER_CHANGE) & (UINT32_MAX & ~(OWNER_CHANGE - 1))))
		;
}

void cache_opened_to_write(struct cfile *f, uid_t uid)
{
	uint64_t writer = 0;

	if (uid && !atomic_compare_exchange_strong(&f->dedup.writer, &writer, uid + 1ull) && writer != uid + 1ull)
		atomic_store(&f->dedup.writer, UINT64_MAX);
}

/* Whether a user who is not the owner may still write it, though the mode does not allow it now. */
static bool others_have_it_open(const struct cfile *f, uint32_t owner)
{
	uint64_t writer = atomic_load(&f->dedup.writer);

	return writer && writer != owner + 1ull;
}

/* Whether nobody but the owner, and root, can write it: by the mode, whose bits for the group are a mask of those of an access control list. */
static bool owner_writes_alone(const struct stat *st)
{
	return !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* 0, or a negative errno. -ESTALE: it has changed meanwhile. */
static int ask_owner(struct cfile *f, uint64_t *owner)
{
	struct store_file *sf;
	struct stat st;
	uint64_t known;
	int err = cfile_store(f, false, &sf);

	if (!err)
		err = sf->ops->stat(sf, &st);
	if (err)
		return err;
	(void)fault_point("dedup.asked");
	known = (uint64_t)st.st_uid << 32 | (*owner & (UINT32_MAX & ~(OWNER_CHANGE - 1))) | (owner_writes_alone(&st) ? OWNER_SHARES : 0) | OWNER_PAGES;
	if (!atomic_compare_exchange_strong(&f->dedup.owner, owner, known))
		return -ESTALE;
	*owner = known;
	return 0;
}

/*
 * What is shared can be found out by who writes one of the files and looks how much memory is used, or how long a write takes. So only
 * files share that have the same owner and that nobody else can write. False: this one does not, or it is not known.
 */
static bool find_domain(struct cfile *f, bool sample, bool may_ask, uint32_t *domain)
{
	uint64_t owner = atomic_load(&f->dedup.owner);

	*domain = 1;
	if (f->cache->dedup->all_users)
		return true;
	if (!(owner & OWNER_LEFT)) {
		if (!may_ask || ask_owner(f, &owner))
			return false;
	} else if (sample) {
		/* If another thread has done so, or has asked, that will do. */
		(void)atomic_compare_exchange_strong(&f->dedup.owner, &(uint64_t){ owner }, owner - 1);
	}
	*domain = 1 + (uint32_t)(owner >> 32);
	return owner & OWNER_SHARES && !others_have_it_open(f, (uint32_t)(owner >> 32));
}

/* ---- equal pages ---- */

static uint32_t tag_of(struct dedup *d, const void *page, bool timed)
{
	uint64_t began = timed ? now_ns() : 0;
	uint32_t tag = (uint32_t)XXH3_64bits_withSecret(page, GAIA_PAGE, d->secret, sizeof(d->secret));

	if (timed)
		learn_cost(d, now_ns() - began);
	count(CTR_dedup_hashed, 1);
	if (tag == SHARES_ZEROS || fault_point("dedup.collide"))
		tag = 1;
	return tag;
}

/* True: another one was found, and has taken its place. */
static bool join(struct cache *c, frame_t *frame, uint32_t tag, uint32_t domain)
{
	frame_t own = *frame, found = shares_join(&c->frames, own, tag, domain);

	*frame = shares_indexed(&c->frames, found) ? found | FRAME_INDEXED : found;
	if (found == own)
		return false;
	frames_give(&c->frames, &own, 1);
	return true;
}

/* @page: its bytes; @tag: their tag, or 0. @mask: which are looked for; what is found may change that. */
static __attribute__((noinline)) void dedup_frame(struct cfile *f, frame_t *frame, const char *page, uint32_t tag, bool may_ask,
						  unsigned *mask)
{
	struct cache *c = f->cache;
	uint32_t domain;
	unsigned sample;
	bool found;

	/* Zeros are nobody's secret, and need no hash. */
	if (page[0] == 0 && memcmp(page, page + 1, GAIA_PAGE - 1) == 0) {
		found = join(c, frame, SHARES_ZEROS, SHARES_ZEROS);
		count(CTR_dedup_zeros, found);
		return;
	}
	sample = in_sample(*mask, c->dedup->seed, page);
	if ((!sample && *mask) || !find_domain(f, sample, may_ask, &domain))
		return;
	found = join(c, frame, tag ? tag : tag_of(c->dedup, page, sample), domain);
	count(CTR_dedup_found, found);
	if (sample) {
		learn(&f->dedup.sample, sample, found);
		learn(&c->dedup->all, 1, found);
		*mask = looked_for(f);
	}
}

void dedup_frames(struct cfile *f, frame_t *frame, const uint32_t *tag, unsigned n, bool may_ask)
{
	struct cache *c = f->cache;
	unsigned mask;
	uint64_t seed;

	/* There the store may have something else at any time. */
	if (!c->dedup || cfile_is_passthrough(f))
		return;
	mask = looked_for(f);
	seed = c->dedup->seed;
	for (unsigned k = 0; k < n; k++) {
		const char *page = frame_ptr(&c->frames, frame[k]);

		/* Most need no more than this, where there is nothing to find. */
		if (page[0] == 0 || !(mixed_bytes(seed, page) & mask))
			dedup_frame(f, &frame[k], page, tag ? tag[k] : 0, may_ask, &mask);
	}
}

/* ---- frames of their own ---- */

/* It was, and is not any more, as nobody else has it: page_leaves_index() is next. */
static bool becomes_own(const struct chunk *ch, unsigned i)
{
	struct frames *fr = &ch->file->cache->frames;
	frame_t frame = page_at(ch, i)->frame;

	return (shares_by_others(fr, frame) && fault_point("break.shared_written")) || shares_own(fr, frame);
}

/* No more than were found: else it would be long before others count again. */
static void found_in_vain(struct dedup_sample *sa, unsigned n)
{
	unsigned vain = atomic_load_explicit(&sa->vain, memory_order_relaxed) + n;

	atomic_store_explicit(&sa->vain, MIN(vain, atomic_load_explicit(&sa->found, memory_order_relaxed)), memory_order_relaxed);
}

static void page_move(struct chunk *ch, unsigned i, frame_t frame)
{
	struct cache *c = ch->file->cache;
	frame_t old = page_at(ch, i)->frame;
	/* Zeros are not in the sample when they are found, either. */
	unsigned sample = shares_zeros(&c->frames, old) ? 0 : in_sample(looked_for(ch->file), c->dedup->seed, page_ptr(ch, i));

	memcpy(frame_ptr(&c->frames, frame), page_ptr(ch, i), GAIA_PAGE);
	if (sample) {
		found_in_vain(&ch->file->dedup.sample, sample);
		found_in_vain(&c->dedup->all, 1);
	}
	count(CTR_dedup_unshared, 1);
	old = page_set_frame(ch, i, frame);
	frames_give(&c->frames, &old, 1);
}

void page_own(struct chunk *ch, unsigned i, frame_t *spare)
{
	if (!page_indexed(ch, i))
		return;
	if (becomes_own(ch, i)) {
		page_leaves_index(ch, i);
		return;
	}
	page_move(ch, i, *spare);
	*spare = 0;
}

/* As page_own(), of a page that is indexed. */
static __attribute__((noinline)) int page_copy(struct chunk *ch, unsigned i)
{
	bool own = becomes_own(ch, i);
	frame_t frame = 0;
	int err;

	/* Others may give theirs back meanwhile, which does no harm. */
	err = own ? 0 : fault_point("dedup.own");
	if (!err && !own)
		err = frame_alloc(ch->file->cache, 1, &frame);
	if (err)
		return err;
	pthread_mutex_lock(&ch->lock);
	if (own)
		page_leaves_index(ch, i);
	else
		page_move(ch, i, frame);
	pthread_mutex_unlock(&ch->lock);
	return 0;
}

int pages_own_indexed(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages)
{
	int err;

	for (unsigned i = a; (i = pages ? bits_first(pages, i, b) : i) < b; i++) {
		err = page_indexed(ch, i) ? page_copy(ch, i) : 0;
		if (err)
			return err;
	}
	return 0;
}

json_t *dedup_json(struct cache *c)
{
	const struct dedup *d = c->dedup;

	return json_pack("{s:s, s:I, s:I, s:i}", "mode", !d ? "off" : d->all_users ? "all-users" : "home", "saved_bytes",
			 (json_int_t)(shares_saved(&c->frames) * GAIA_PAGE), "parked_saved_bytes",
			 (json_int_t)(victims_saved(c) * GAIA_PAGE), "hash_ns", d ? (int)atomic_load(&((struct dedup *)d)->hash_ns) : 0);
}
