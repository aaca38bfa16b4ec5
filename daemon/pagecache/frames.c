/*
 * frames.c - home memory: pages of 2 MiB slabs.
 *
 * Slabs are what a device registers for DMA and what huge pages are made of; frames
 * are what chunks are made of. A file of one page costs one frame. Slabs are made on
 * demand and never moved. An empty one is kept for who needs frames next, whom it saves the
 * system's zeroing and the devices' registering; those that nobody needed for a while
 * are given back to the system, always whole: devices may have registered them.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "pagecache/internal.h"

int frames_init(struct frames *fr, uint64_t bytes)
{
	fr->budget = bytes / GAIA_PAGE;
	/* The table never moves, so that frame_ptr() needs no lock. Twice the budget: twins and pages
	 * that cannot wait go beyond it. */
	fr->room = (unsigned)(2 * (bytes / GAIA_CHUNK) + 512);
	fr->slab = calloc(fr->room, sizeof(*fr->slab));
	if (!fr->slab)
		return -ENOMEM;
	pthread_mutex_init(&fr->lock, NULL);
	return 0;
}

void frames_destroy(struct frames *fr)
{
	bug_on(fr->used != 0);
	for (unsigned i = 0; i < fr->n_slabs; i++) {
		bug_on(fr->slab[i]->memory);
		free(fr->slab[i]);
	}
	free(fr->slab);
	pthread_mutex_destroy(&fr->lock);
}

/* No lock is held: a device may take its time. */
static void tell_devices(struct frames *fr, void *slab, bool there)
{
	for (unsigned i = 0; i < fr->n_devices; i++) {
		struct device *dev = fr->dev[i].dev;

		if (dev->ops->host_slab)
			dev->ops->host_slab(dev, slab, there);
	}
}

static int slab_populate(struct slab *s)
{
	/* Twice the size, to cut an aligned one out of. */
	char *raw = mmap(NULL, 2 * GAIA_CHUNK, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *aligned;

	if (raw == MAP_FAILED)
		return -ENOMEM;
	aligned = (char *)ROUND_UP((uintptr_t)raw, GAIA_CHUNK);
	if (aligned > raw)
		munmap(raw, (size_t)(aligned - raw));
	munmap(aligned + GAIA_CHUNK, GAIA_CHUNK - (size_t)(aligned - raw));
	s->memory = aligned;
	s->free = GAIA_CHUNK_PAGES;
	return 0;
}

/*
 * A slab with a free frame, with @want of them if there is one. UINT32_MAX: none and none to be had.
 * *@fresh: its memory, if that is new.
 */
static unsigned slab_choose(struct frames *fr, unsigned want, void **fresh)
{
	unsigned fallback = fr->n_slabs, hole = fr->n_slabs;

	for (unsigned k = 0; k < fr->n_slabs; k++) {
		unsigned i = (fr->hint + k) % fr->n_slabs;
		struct slab *s = fr->slab[i];

		if (!s->memory) {
			hole = i;
			continue;
		}
		if (s->free >= want)
			return i;
		if (s->free && fallback == fr->n_slabs)
			fallback = i;
	}
	/* A new one keeps long runs together; an old one with few free frames serves when memory is short. */
	if (hole < fr->n_slabs && slab_populate(fr->slab[hole]) == 0) {
		*fresh = fr->slab[hole]->memory;
		return hole;
	}
	if (hole == fr->n_slabs && fr->n_slabs < fr->room) {
		struct slab *s = calloc(1, sizeof(*s));

		if (s && slab_populate(s) == 0) {
			fr->slab[fr->n_slabs] = s;
			*fresh = s->memory;
			return fr->n_slabs++;
		}
		free(s);
	}
	return fallback < fr->n_slabs ? fallback : UINT32_MAX;
}

unsigned frames_take(struct frames *fr, unsigned n, frame_t *out, bool beyond)
{
	unsigned got = 0, at;
	void *fresh = NULL;
	struct slab *s;

	pthread_mutex_lock(&fr->lock);
	if (!beyond) {
		uint64_t left = fr->budget > fr->used ? fr->budget - fr->used : 0;

		n = (unsigned)MIN((uint64_t)n, left);
	}
	if (n == 0)
		goto unlock;
	at = slab_choose(fr, MIN(n, GAIA_CHUNK_PAGES), &fresh);
	if (at == UINT32_MAX)
		goto unlock;
	fr->hint = at;
	s = fr->slab[at];
	if (fresh)
		fr->n_empty++;
	if (s->free == GAIA_CHUNK_PAGES) {
		fr->n_empty--;
		fr->unneeded = MIN(fr->unneeded, fr->n_empty);
	}
	for (unsigned i = 0; i < GAIA_CHUNK_PAGES && got < n; i++) {
		if (i % 64 == 0 && s->used[i / 64] == UINT64_MAX) {
			i += 63;
			continue;
		}
		if (bit_test(s->used, i))
			continue;
		bit_set(s->used, i);
		out[got++] = at * GAIA_CHUNK_PAGES + i + 1;
	}
	s->free -= got;
	fr->used += got;
	if (beyond && fr->used > fr->budget)
		count(CTR_home_overcommit, MIN((uint64_t)got, fr->used - fr->budget));
unlock:
	pthread_mutex_unlock(&fr->lock);
	/* It cannot go before that: it has frames that are ours. */
	if (fresh)
		tell_devices(fr, fresh, true);
	return got;
}

void frames_give(struct frames *fr, const frame_t *frame, unsigned n)
{
	pthread_mutex_lock(&fr->lock);
	for (unsigned k = 0; k < n; k++) {
		unsigned at = (frame[k] - 1) / GAIA_CHUNK_PAGES;
		unsigned i = (frame[k] - 1) % GAIA_CHUNK_PAGES;
		struct slab *s;

		bug_on(frame[k] == 0 || at >= fr->n_slabs);
		s = fr->slab[at];
		bug_on(!bit_test(s->used, i));
		bit_clear(s->used, i);
		if (++s->free == GAIA_CHUNK_PAGES)
			fr->n_empty++;
	}
	fr->used -= n;
	pthread_mutex_unlock(&fr->lock);
}

void frames_trim(struct frames *fr, bool all)
{
	unsigned n, last;

	pthread_mutex_lock(&fr->lock);
	n = all ? fr->n_empty : fr->unneeded;
	last = fr->n_slabs;
	while (n > 0 && last > 0) {
		struct slab *s = fr->slab[--last];
		void *memory = s->memory;

		if (!memory || s->free < GAIA_CHUNK_PAGES)
			continue;
		s->memory = NULL;
		s->free = 0;
		fr->n_empty--;
		n--;
		pthread_mutex_unlock(&fr->lock);
		tell_devices(fr, memory, false);
		munmap(memory, GAIA_CHUNK);
		pthread_mutex_lock(&fr->lock);
	}
	fr->unneeded = fr->n_empty;
	pthread_mutex_unlock(&fr->lock);
}

void *frame_ptr(const struct frames *fr, frame_t frame)
{
	return (char *)fr->slab[(frame - 1) / GAIA_CHUNK_PAGES]->memory +
	       (size_t)((frame - 1) % GAIA_CHUNK_PAGES) * GAIA_PAGE;
}
