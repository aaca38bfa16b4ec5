/*
 * frames.c - home memory: pages of 2 MiB slabs.
 *
 * Slabs are what a device registers for DMA and what huge pages are made of; frames
 * are what chunks are made of. A file of one page costs one frame. Slabs are made on
 * demand and never moved. An empty slab is kept for the next need of frames, which saves
 * zeroing by the system and registering by devices; slabs that nobody needed for a while
 * are given back to the system, always whole: devices may have registered them. A slab can also be memory that is lent to
 * home, for all pages of one chunk (frames_lend()): its frames are never free. Slabs of successive numbers lie side by
 * side, up to ARENA_SLABS of them, so that devices can register several at once: their addresses are
 * reserved together, and stay. A slab without memory is inaccessible, so that the system counts it neither as data nor as committed
 * (ulimit -d, vm.overcommit_memory=2).
 *
 * Every read that misses and every write of a new page comes here, of whatever file. So frames are taken and given
 * without a lock, by changing the bits of a slab, which lie in one cache line; and each thread begins where it found
 * frames last. A slab without memory has no free frames; to give a slab back to the system a thread takes all its
 * frames first: as long as somebody has a frame its slab stays. frames.lock is for making slabs and giving them back.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "pagecache/frames.h"

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "pagecache/devices.h"
#include "pagecache/shares.h"

#define ARENA_SLABS 32u

/* So many slabs are looked at to find one with as many free frames as are wanted. */
#define LOOKS 16u

/* A device is not added where another one has been giving back a slab for so long: it does not answer. */
#define ADD_PATIENCE_S 2

/* The slab in which this thread found frames last. */
static __thread unsigned last_slab;

/* Twice the budget: twins and pages that cannot wait go beyond it. */
static unsigned slabs_for(uint64_t bytes)
{
	return (unsigned)MIN(2 * (bytes / GAIA_CHUNK) + 512, (FRAME_INDEXED - 1) / GAIA_CHUNK_PAGES);
}

int frames_init(struct frames *fr, uint64_t bytes, uint64_t most)
{
	fr->budget = bytes / GAIA_PAGE;
	/* The tables never move, so that frame_ptr() needs no lock. What of them is not used takes no memory. */
	fr->room = slabs_for(MAX(bytes, most));
	fr->slab = calloc(fr->room, sizeof(*fr->slab));
	fr->slabs_with_space = calloc((fr->room + 63) / 64, sizeof(*fr->slabs_with_space));
	fr->arena = calloc(fr->room / ARENA_SLABS + 1, sizeof(*fr->arena));
	if (!fr->slab || !fr->slabs_with_space || !fr->arena) {
		free(fr->slab);
		free(fr->slabs_with_space);
		free(fr->arena);
		return -ENOMEM;
	}
	pthread_mutex_init(&fr->lock, NULL);
	pthread_rwlock_init(&fr->telling, NULL);
	return 0;
}

int frames_set_budget(struct frames *fr, uint64_t bytes)
{
	if (slabs_for(bytes) > fr->room)
		return -ERANGE;
	atomic_store(&fr->budget, bytes / GAIA_PAGE);
	return 0;
}

void frames_destroy(struct frames *fr)
{
	bug_on(atomic_load(&fr->used) != 0 || fr->n_memory != 0);
	shares_destroy(fr);
	for (unsigned i = 0; i < fr->n_slabs; i++)
		free(fr->slab[i]);
	for (unsigned i = 0; i <= fr->room / ARENA_SLABS; i++)
		if (fr->arena[i])
			munmap(fr->arena[i], ARENA_SLABS * (size_t)GAIA_CHUNK);
	free(fr->slab);
	free(fr->slabs_with_space);
	free(fr->arena);
	pthread_mutex_destroy(&fr->lock);
	pthread_rwlock_destroy(&fr->telling);
}

static void tell(struct device *dev, void *memory, enum host_slab what)
{
	if (dev->ops->host_slab)
		dev->ops->host_slab(dev, memory, what);
}

/* fr->telling is held, for reading, and nothing else: a device may take its time until what goes is not used any more. */
static void tell_devices(struct frames *fr, void *memory, enum host_slab what)
{
	for (unsigned i = 0; i < fr->n_devices; i++)
		tell(fr->dev[i].dev, memory, what);
}

int frames_add_device(struct frames *fr)
{
	struct device *dev = fr->dev[fr->n_devices].dev;
	struct timespec until;

	/* (ThreadSanitizer does not know pthread_rwlock_clockwrlock(); if somebody sets the clock just now it is tried again by hand.) */
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ADD_PATIENCE_S;
	if (pthread_rwlock_timedwrlock(&fr->telling, &until))
		return -EBUSY;
	for (unsigned k = 0; k < fr->n_slabs; k++)
		if (fr->slab[k]->memory)
			tell(dev, fr->slab[k]->memory, fr->slab[k]->lent ? HOST_SLAB_COMES_ALONE : HOST_SLAB_COMES);
	fr->n_devices++;
	pthread_rwlock_unlock(&fr->telling);
	return 0;
}

/* ---- taking ---- */

static unsigned slab_free(const struct slab *s)
{
	unsigned n = 0;

	for (unsigned w = 0; w < ARRAY_LEN(s->free); w++)
		n += (unsigned)__builtin_popcountll(atomic_load(&s->free[w]));
	return n;
}

/* The @n lowest of the set bits. */
static uint64_t lowest_bits(uint64_t bits, unsigned n)
{
	uint64_t rest = bits;

	while (rest && n-- > 0)
		rest &= rest - 1;
	return bits & ~rest;
}

static unsigned slab_take(struct frames *fr, unsigned at, unsigned n, frame_t *out)
{
	struct slab *s = fr->slab[at];
	unsigned got = 0;

	if (!atomic_load_explicit(&s->needed, memory_order_relaxed))
		atomic_store_explicit(&s->needed, true, memory_order_relaxed);
	for (unsigned w = 0; w < ARRAY_LEN(s->free) && got < n; w++) {
		uint64_t bits = lowest_bits(atomic_load(&s->free[w]), n - got);

		if (bits)
			bits &= atomic_fetch_and(&s->free[w], ~bits); /* other threads may have taken some */
		for (; bits; bits &= bits - 1)
			out[got++] = at * GAIA_CHUNK_PAGES + w * 64 + (unsigned)__builtin_ctzll(bits) + 1;
	}
	return got;
}

static void note_space(struct frames *fr, unsigned at)
{
	uint64_t bit = 1ull << (at % 64);

	if (!(atomic_load(&fr->slabs_with_space[at / 64]) & bit))
		atomic_fetch_or(&fr->slabs_with_space[at / 64], bit);
}

/* It had no free frames. A thread that gives some meanwhile either sees that the bit is cleared, or its frames are seen here. */
static void note_none(struct frames *fr, unsigned at)
{
	atomic_fetch_and(&fr->slabs_with_space[at / 64], ~(1ull << (at % 64)));
	if (slab_free(fr->slab[at]))
		note_space(fr, at);
}

/* The first slab of [i, end) that may have free frames, or @end. */
static unsigned next_with_space(const struct frames *fr, unsigned i, unsigned end)
{
	for (; i < end; i = ROUND_UP(i + 1, 64)) {
		uint64_t bits = atomic_load(&fr->slabs_with_space[i / 64]) >> (i % 64);

		if (bits)
			return MIN(i + (unsigned)__builtin_ctzll(bits), end);
	}
	return end;
}

/* Of a few slabs the first with @want free frames, or the one that has most; NO_SLAB: there are no free frames. */
#define NO_SLAB UINT32_MAX
static unsigned slab_find(struct frames *fr, unsigned want, unsigned *n_free)
{
	unsigned n = atomic_load(&fr->n_slabs), start = n ? last_slab % n : 0;
	unsigned best = NO_SLAB, looks = LOOKS;

	*n_free = 0;
	/* Around the table: [start, n), then [0, start). */
	for (unsigned round = 0; round < 2; round++) {
		unsigned end = round ? start : n;
		unsigned i = next_with_space(fr, round ? 0 : start, end);

		for (; i < end; i = next_with_space(fr, i + 1, end)) {
			unsigned free = slab_free(fr->slab[i]);

			if (free == 0)
				note_none(fr, i);
			if (free > *n_free) {
				*n_free = free;
				best = i;
			}
			if (*n_free >= want || (free && --looks == 0))
				return best;
		}
	}
	return best;
}

/* A slab without memory. frames.lock is held. */
static struct slab *slab_vacant(struct frames *fr, unsigned *at)
{
	struct slab *s;

	if (fr->n_memory < fr->n_slabs) {
		for (*at = 0; fr->slab[*at]->memory; ++*at)
			;
		return fr->slab[*at];
	}
	if (fr->n_slabs == fr->room)
		return NULL;
	s = aligned_alloc(_Alignof(struct slab), sizeof(*s));
	if (!s)
		return NULL;
	memset(s, 0, sizeof(*s));
	*at = fr->n_slabs;
	fr->slab[*at] = s;
	atomic_store(&fr->n_slabs, *at + 1);
	return s;
}

/* Addresses for so many slabs, where nothing is accessible yet, or NULL. */
static char *addresses_reserve(unsigned slabs)
{
	size_t bytes = slabs * (size_t)GAIA_CHUNK;
	/* A chunk more, to cut aligned addresses out of it. */
	char *raw = mmap(NULL, bytes + GAIA_CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *aligned;

	if (raw == MAP_FAILED)
		return NULL;
	aligned = (char *)ROUND_UP((uintptr_t)raw, GAIA_CHUNK);
	if (aligned > raw)
		munmap(raw, (size_t)(aligned - raw));
	munmap(aligned + bytes, GAIA_CHUNK - (size_t)(aligned - raw));
	/*
	 * One page fault for a slab, not one for each frame; and disks read faster into one piece of memory than into 4 KiB
	 * pages from all over it (tests/bench/README.md, "Settings").
	 */
	(void)madvise(aligned, bytes, MADV_HUGEPAGE);
	return aligned;
}

/* The slab's place in its arena, or NULL. frames.lock is held. */
static char *place_in_arena(const struct frames *fr, unsigned at)
{
	char *arena = fr->arena[at / ARENA_SLABS];

	return arena ? arena + at % ARENA_SLABS * (size_t)GAIA_CHUNK : NULL;
}

/* frames.lock is held. */
static void *slab_memory(struct frames *fr, unsigned at)
{
	char **arena = &fr->arena[at / ARENA_SLABS], *memory;

	if (fault_point("home.memory"))
		return NULL;
	if (!*arena)
		*arena = fault_point("home.arena") ? NULL : addresses_reserve(ARENA_SLABS);
	memory = place_in_arena(fr, at);
	/* Where addresses are scarce (ulimit -v) a slab may have some by itself. */
	if (!memory)
		memory = addresses_reserve(1);
	if (!memory || !mprotect(memory, GAIA_CHUNK, PROT_READ | PROT_WRITE))
		return memory;
	if (!*arena)
		munmap(memory, GAIA_CHUNK);
	return NULL;
}

/*
 * Each place without memory between two with memory is a mapping of its own, of which a process may have some 65,000 (vm.max_map_count). So a
 * home with more slabs than this keeps its places accessible, and counted.
 */
#define SLABS_UNCOUNTED 16384u

/* @stays: its addresses do, for the next slab here. */
static void slab_memory_end(const struct frames *fr, void *memory, bool stays)
{
	if (!stays) {
		munmap(memory, GAIA_CHUNK);
		return;
	}
	if (atomic_load(&fr->n_slabs) > SLABS_UNCOUNTED) {
		(void)madvise(memory, GAIA_CHUNK, MADV_DONTNEED);
		return;
	}
	/* Unlike with mprotect(2) the system counts it no more. */
	if (mmap(memory, GAIA_CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED)
		(void)madvise(memory, GAIA_CHUNK, MADV_HUGEPAGE);
	else
		(void)madvise(memory, GAIA_CHUNK, MADV_DONTNEED); /* if that fails, too, the memory stays, for the next need */
}

/* A new slab keeps long runs together; but it is not worth it if an eighth of the budget is free in other slabs. */
static bool worth_a_slab(struct frames *fr)
{
	/* What is reserved, or lent, is in no slab of ours. */
	uint64_t frames = (uint64_t)(atomic_load(&fr->n_memory) - atomic_load(&fr->n_lent)) * GAIA_CHUNK_PAGES;
	uint64_t reserved = atomic_load(&fr->reserved), used = atomic_load(&fr->used);

	return frames < used - MIN(used, reserved) + MAX(fr->budget / 8, 2ull * GAIA_CHUNK_PAGES);
}

/* Frames of a new slab, unless others have made one meanwhile. 0: look again, or there is no memory. */
static unsigned slab_make(struct frames *fr, unsigned n, frame_t *out, bool *no_memory)
{
	unsigned at, got = 0, n_free;
	struct slab *s = NULL;
	void *memory = NULL;

	pthread_rwlock_rdlock(&fr->telling);
	pthread_mutex_lock(&fr->lock);
	(void)slab_find(fr, n, &n_free);
	if (n_free >= n) {
		pthread_mutex_unlock(&fr->lock);
		pthread_rwlock_unlock(&fr->telling);
		return 0;
	}
	s = slab_vacant(fr, &at);
	if (s)
		memory = slab_memory(fr, at);
	*no_memory = !memory;
	if (memory) {
		s->memory = memory;
		atomic_fetch_add(&fr->n_memory, 1);
		while (got < n) {
			out[got] = at * GAIA_CHUNK_PAGES + got + 1;
			got++;
		}
		atomic_store(&s->needed, true);
		for (unsigned w = 0; w < ARRAY_LEN(s->free); w++) {
			unsigned mine = n > w * 64 ? MIN(n - w * 64, 64u) : 0;

			atomic_store(&s->free[w], mine == 64 ? 0 : UINT64_MAX << mine);
		}
		note_space(fr, at);
		last_slab = at;
	}
	pthread_mutex_unlock(&fr->lock);
	/* The slab cannot go before that: some of its frames are ours. */
	if (memory)
		tell_devices(fr, memory, HOST_SLAB_COMES);
	pthread_rwlock_unlock(&fr->telling);
	return got;
}

/* How many of @n are within the budget; they count as used from now on. */
static unsigned budget_take(struct frames *fr, unsigned n, bool beyond)
{
	uint64_t used = atomic_load(&fr->used), budget = fr->budget, left;
	unsigned may;

	do {
		left = budget > used ? budget - used : 0;
		may = beyond ? n : (unsigned)MIN((uint64_t)n, left);
	} while (may && !atomic_compare_exchange_weak(&fr->used, &used, used + may));
	if (may > left)
		count(CTR_home_overcommit, may - left);
	return may;
}

unsigned frames_reserve(struct frames *fr, unsigned n, bool beyond)
{
	unsigned may = budget_take(fr, n, beyond);

	atomic_fetch_add(&fr->reserved, may);
	return may;
}

void frames_unreserve(struct frames *fr, unsigned n)
{
	atomic_fetch_sub(&fr->reserved, n);
	atomic_fetch_sub(&fr->used, n);
}

unsigned frames_take(struct frames *fr, unsigned n, frame_t *out, bool beyond)
{
	unsigned may = budget_take(fr, n, beyond), got = 0, want, at, n_free;
	bool no_memory = false;

	while (got < may) {
		want = MIN(may - got, GAIA_CHUNK_PAGES);
		at = slab_find(fr, want, &n_free);
		if (n_free < want && !no_memory && (at == NO_SLAB || worth_a_slab(fr))) {
			got += slab_make(fr, want, out + got, &no_memory);
		} else if (at == NO_SLAB) {
			break;
		} else {
			got += slab_take(fr, at, want, out + got);
			last_slab = at;
		}
	}
	if (got < may)
		atomic_fetch_sub(&fr->used, may - got);
	return got;
}

/* ---- giving ---- */

/* Of frames that nobody has any more. */
static void give_all(struct frames *fr, const frame_t *frame, unsigned n)
{
	unsigned k = 0;

	while (k < n) {
		unsigned word = (frame[k] - 1) / 64, at = word / (GAIA_CHUNK_PAGES / 64);
		uint64_t bits = 0;
		struct slab *s;

		bug_on(frame[k] == 0 || at >= atomic_load(&fr->n_slabs) || fr->slab[at]->lent);
		for (; k < n && (frame[k] - 1) / 64 == word; k++) {
			bug_on(bits >> ((frame[k] - 1) % 64) & 1);
			bits |= 1ull << ((frame[k] - 1) % 64);
		}
		s = fr->slab[at];
		if (!atomic_load_explicit(&s->needed, memory_order_relaxed))
			atomic_store_explicit(&s->needed, true, memory_order_relaxed);
		bug_on(atomic_fetch_or(&s->free[word % ARRAY_LEN(s->free)], bits) & bits);
		note_space(fr, at);
	}
	/* Last: a thread that may have as many more then finds them. */
	atomic_fetch_sub(&fr->used, n);
}

unsigned frames_give(struct frames *fr, const frame_t *frame, unsigned n)
{
	unsigned given = 0, first = 0;

	/* Runs between those that others have, too. */
	for (unsigned k = 0; fr->shares && k < n; k++) {
		if (!shares_indexed(fr, frame[k]) || shares_put(fr, frame[k]))
			continue;
		give_all(fr, frame + first, k - first);
		given += k - first;
		first = k + 1;
	}
	if (first < n)
		give_all(fr, frame + first, n - first);
	return given + n - first;
}

/* Take all of its frames, if nobody has one. */
static bool slab_take_whole(struct slab *s)
{
	unsigned w;

	for (w = 0; w < ARRAY_LEN(s->free); w++) {
		uint64_t all = UINT64_MAX;

		if (!atomic_compare_exchange_strong(&s->free[w], &all, 0))
			break;
	}
	if (w == ARRAY_LEN(s->free))
		return true;
	while (w-- > 0)
		atomic_store(&s->free[w], UINT64_MAX);
	return false;
}

void frames_trim(struct frames *fr, bool all)
{
	pthread_rwlock_rdlock(&fr->telling);
	pthread_mutex_lock(&fr->lock);
	for (unsigned at = fr->n_slabs; at-- > 0;) {
		struct slab *s = fr->slab[at];
		void *memory = s->memory;
		bool in_arena;

		if (!memory || s->lent || (atomic_exchange(&s->needed, false) && !all))
			continue;
		if (!slab_take_whole(s)) {
			note_space(fr, at);
			continue;
		}
		in_arena = memory == place_in_arena(fr, at);
		pthread_mutex_unlock(&fr->lock);
		tell_devices(fr, memory, HOST_SLAB_GOES);
		slab_memory_end(fr, memory, in_arena);
		pthread_mutex_lock(&fr->lock);
		/* Only now can the slab have memory again, which is at the same place if it is in an arena. */
		s->memory = NULL;
		atomic_fetch_sub(&fr->n_memory, 1);
	}
	pthread_mutex_unlock(&fr->lock);
	pthread_rwlock_unlock(&fr->telling);
}

/* ---- slabs of memory that belongs to chunks ---- */

frame_t frames_lend(struct frames *fr, void *memory)
{
	struct slab *s;
	unsigned at;

	bug_on((uintptr_t)memory % GAIA_CHUNK != 0);
	pthread_rwlock_rdlock(&fr->telling);
	pthread_mutex_lock(&fr->lock);
	s = slab_vacant(fr, &at);
	if (s) {
		s->lent = true;
		s->memory = memory;
		atomic_fetch_add(&fr->n_memory, 1);
		atomic_fetch_add(&fr->n_lent, 1);
	}
	pthread_mutex_unlock(&fr->lock);
	if (s)
		tell_devices(fr, memory, HOST_SLAB_COMES_ALONE);
	pthread_rwlock_unlock(&fr->telling);
	return s ? at * GAIA_CHUNK_PAGES + 1 : 0;
}

void frames_lend_end(struct frames *fr, frame_t first)
{
	struct slab *s = fr->slab[(first - 1) / GAIA_CHUNK_PAGES];

	bug_on(!s->lent);
	pthread_rwlock_rdlock(&fr->telling);
	tell_devices(fr, s->memory, HOST_SLAB_GOES);
	pthread_mutex_lock(&fr->lock);
	s->memory = NULL;
	s->lent = false;
	atomic_fetch_sub(&fr->n_memory, 1);
	atomic_fetch_sub(&fr->n_lent, 1);
	pthread_mutex_unlock(&fr->lock);
	pthread_rwlock_unlock(&fr->telling);
}

bool frame_is_lent(const struct frames *fr, frame_t frame)
{
	return frame && fr->slab[(frame - 1) / GAIA_CHUNK_PAGES]->lent;
}
