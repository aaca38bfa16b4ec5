/*
 * sim.c - memory of the simulated device, which is host memory: one memfd for each chunk or extent. On a strict device programs can touch only pages
 * that they hold, and store only to pages that they hold for writing (held.c).
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"
#include "page_hash.h"
#include "sim.h"

#define RESERVED (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

int keep_from_children(char *at, size_t len)
{
	return madvise(at, len, MADV_DONTFORK) ? -errno : 0;
}

int addresses_reserve(size_t span, char **out)
{
	size_t before;
	char *raw, *at;

	if (span > SIZE_MAX - GAIA_CHUNK)
		return -ENOMEM;
	raw = mmap(NULL, span + GAIA_CHUNK, PROT_NONE, RESERVED, -1, 0);
	if (raw == MAP_FAILED)
		return -ENOMEM;
	before = -(uintptr_t)raw % GAIA_CHUNK;
	at = raw + before;
	if (before)
		munmap(raw, before);
	munmap(at + span, GAIA_CHUNK - before);
	keep_from_children(at, span);
	*out = at;
	return 0;
}

static int sim_reserve(struct mapping *m, const struct gaia_ioc_device *device)
{
	(void)device;
	return addresses_reserve(m->span, &m->base);
}

/* ---- changes, looked for by the calling thread: so all of the library's way to find them can be tried without a GPU ---- */

/* mapping.own, if changes are looked for. */
struct sim_detect {
	struct page_hash *hash; /* of each page of the span, and behind them what has changed */
};

static size_t detect_bytes(const struct mapping *m)
{
	return m->span / GAIA_PAGE * (sizeof(struct page_hash) + 1);
}

static int sim_detect_make(struct mapping *m, struct detect *d)
{
	struct sim_detect *own = malloc(sizeof(*own));
	void *at = mmap(NULL, detect_bytes(m), PROT_READ | PROT_WRITE, RESERVED, -1, 0);

	if (!own || at == MAP_FAILED) {
		free(own);
		if (at != MAP_FAILED)
			munmap(at, detect_bytes(m));
		return -ENOMEM;
	}
	own->hash = at;
	d->changed = (uint8_t *)(own->hash + m->span / GAIA_PAGE);
	m->own = own;
	return 0;
}

static int sim_detect(struct mapping *m, const struct detect_runs *rs, bool compare)
{
	struct page_hash *hash = ((struct sim_detect *)m->own)->hash;

	for (size_t k = 0; k < rs->n; k++)
		for (uint64_t i = rs->at[k].page; rs->at[k].compare && i < rs->at[k].page + rs->at[k].n; i++) {
			struct page_hash now = page_hash(m->base + i * GAIA_PAGE);

			if (compare)
				m->detect->changed[i] = now.low != hash[i].low || now.high != hash[i].high;
			else
				hash[i] = now;
		}
	return 0;
}

static void sim_unreserve(struct mapping *m, bool ended)
{
	(void)ended;
	if (m->own)
		munmap(((struct sim_detect *)m->own)->hash, detect_bytes(m));
	munmap(m->base, m->span);
}

int chunks_clear(char *at, unsigned n)
{
	size_t len = n * (size_t)GAIA_CHUNK;

	if (mmap(at, len, PROT_NONE, RESERVED | MAP_FIXED, -1, 0) == MAP_FAILED)
		return -errno;
	return keep_from_children(at, len);
}

static int clear(struct mapping *m, uint64_t first, unsigned n)
{
	int err;

	held_cleared(m, first, n);
	err = chunks_clear(m->base + first * GAIA_CHUNK, n);
	/* (All chunks of an extent are named.) */
	for (uint64_t k = first; k < first + n && !err; k++)
		if (extent_is_placed(m, k))
			extent_set(m, k, false);
	return err;
}

/* Under gaia_lock, since no child may see a chunk before it is kept from children (rule 5). */
static int sim_clear(struct mapping *m, uint64_t first, unsigned n)
{
	int err;

	pthread_mutex_lock(&gaia_lock);
	err = clear(m, first, n);
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

int chunks_place(char *at, unsigned n, const int *fd, uint64_t extents, int prot)
{
	char *to = at;
	int err = 0;

	for (unsigned i = 0; i < n && !err; i++) {
		size_t len = extents >> i & 1 ? GAIA_EXTENT : GAIA_CHUNK;

		if (mmap(to, len, prot, MAP_SHARED | MAP_FIXED, fd[i], 0) == MAP_FAILED)
			err = -errno;
		else
			err = keep_from_children(to, len);
		to += len;
	}
	if (err)
		(void)chunks_clear(at, chunks_behind(n, extents));
	return err;
}

/* The lock is held. */
static void placed(struct mapping *m, uint64_t first, unsigned n, uint64_t extents, int prot)
{
	for (unsigned i = 0, chunks; i < n; i++, first += chunks) {
		bool together = extents >> i & 1;

		chunks = together ? GAIA_EXTENT_CHUNKS : 1;
		if (together)
			extent_set(m, first, true);
		held_placed(m, first, chunks, together, prot);
	}
}

static int sim_place(struct mapping *m, uint64_t first, unsigned n, const int *fd, uint64_t extents, int prot)
{
	int err;

	pthread_mutex_lock(&gaia_lock);
	err = chunks_place(m->base + first * GAIA_CHUNK, n, fd, extents, m->strict ? PROT_NONE : prot);
	if (err)
		held_cleared(m, first, chunks_behind(n, extents));
	else
		placed(m, first, n, extents, prot);
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

static int sim_protect(struct mapping *m, uint64_t a, uint64_t b, int prot)
{
	return mprotect(m->base + a * GAIA_PAGE, (b - a) * GAIA_PAGE, prot) ? -errno : 0;
}

const struct kind_ops sim_kind = {
	.kind = "sim",
	.extents = true,
	.reserve = sim_reserve,
	.unreserve = sim_unreserve,
	.place = sim_place,
	.clear = sim_clear,
	.protect = sim_protect,
	.detect_make = sim_detect_make,
	.detect = sim_detect,
};
