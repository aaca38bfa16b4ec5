/* host.c - memory of the host as a device: memfds, one for each chunk, as on the simulated device (sim.c); and of mappings with two sides. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "host_detect.h"
#include "sides.h"
#include "sim.h"

static size_t table_bytes(const struct mapping *m)
{
	return m->span / GAIA_CHUNK * sizeof(struct side_chunk);
}

int sides_make(struct mapping *m, struct mapping *reader)
{
	struct sides *s = calloc(1, sizeof(*s));
	int err = s ? 0 : -ENOMEM;

	if (err)
		return err;
	pthread_mutex_init(&s->lock, NULL);
	s->reader = reader;
	/* Most of it is never touched. */
	s->chunk = mmap(NULL, table_bytes(m), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (s->chunk == MAP_FAILED)
		goto free_sides;
	if (addresses_reserve(m->span, &s->at[SIDE_VIEW]))
		goto unmap_table;
	if (addresses_reserve(m->span, &s->at[SIDE_REPLICA]))
		goto unmap_view;
	reader->whole = m;
	m->sides = s;
	return 0;

unmap_view:
	munmap(s->at[SIDE_VIEW], m->span);
unmap_table:
	munmap(s->chunk, table_bytes(m));
free_sides:
	free(s);
	return -ENOMEM;
}

struct mapping *sides_free(struct mapping *m)
{
	struct sides *s = m->sides;
	struct mapping *reader = s->reader;

	for (uint64_t k = 0; k < m->span / GAIA_CHUNK; k++)
		free(s->chunk[k].pages);
	munmap(s->chunk, table_bytes(m));
	free(s);
	m->sides = NULL;
	reader->whole = NULL;
	return reader;
}

/* Of a mapping that has sides, or is one. */
static struct sides *sides_of(const struct mapping *m, enum side *side)
{
	*side = m->whole ? SIDE_VIEW : SIDE_REPLICA;
	return m->whole ? m->whole->sides : m->sides;
}

static int host_reserve(struct mapping *m, const struct gaia_ioc_device *device)
{
	(void)device;
	return addresses_reserve(m->span, &m->base);
}

static void host_unreserve(struct mapping *m, bool ended)
{
	(void)ended;
	munmap(m->base, m->span);
	for (unsigned i = 0; m->sides && i < SIDES; i++)
		munmap(m->sides->at[i], m->span);
	host_detect_end(m);
}

/* The lock is held. */
static int clear_side(struct mapping *m, enum side side, uint64_t first, unsigned n)
{
	struct mapping *whole = m->whole ? m->whole : m;
	struct sides *s = whole->sides;
	int err = 0;

	/* First where the program would come to it. */
	for (uint64_t k = first; k < first + n && !err; k++) {
		if (s->chunk[k].shown[side])
			err = chunks_clear(whole->base + k * GAIA_CHUNK, 1);
		if (!err && s->chunk[k].shown[side])
			s->chunk[k].shown[side] = false;
	}
	if (!err)
		err = chunks_clear(s->at[side] + first * GAIA_CHUNK, n);
	/* (Of a long mapping most of the table is never touched.) */
	for (uint64_t k = first; k < first + n && !err; k++)
		if (s->chunk[k].placed[side])
			s->chunk[k].placed[side] = false;
	return err;
}

/* Under gaia_lock, as in sim.c. */
static int host_clear(struct mapping *m, uint64_t first, unsigned n)
{
	enum side side;
	struct sides *s = sides_of(m, &side);
	int err;

	pthread_mutex_lock(&gaia_lock);
	err = s ? clear_side(m, side, first, n) : chunks_clear(m->base + first * GAIA_CHUNK, n);
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

/* The same memory once more. What was there is gone, also if it fails. */
static int map_again(char *at, char *from)
{
	if (mremap(from, 0, GAIA_CHUNK, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED)
		return -errno;
	return keep_from_children(at, GAIA_CHUNK);
}

static int host_place(struct mapping *m, uint64_t first, unsigned n, const int *fd, uint64_t extents, int prot)
{
	enum side side;
	struct sides *s = sides_of(m, &side);
	char *at = s ? s->at[side] : m->base;
	int err;

	pthread_mutex_lock(&gaia_lock);
	err = chunks_place(at + first * GAIA_CHUNK, n, fd, extents, prot);
	for (uint64_t k = first; s && !err && k < first + n; k++) {
		/* What it replaces must not stay where the program sees it. */
		if (s->chunk[k].shown[side])
			err = map_again((m->whole ? m->whole : m)->base + k * GAIA_CHUNK, at + k * GAIA_CHUNK);
		s->chunk[k].placed[side] = true;
	}
	if (s && err)
		(void)clear_side(m, side, first, n);
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

int side_show(struct mapping *m, uint64_t k, enum side side)
{
	struct sides *s = m->sides;
	struct side_chunk *c = &s->chunk[k];
	enum side other = side == SIDE_VIEW ? SIDE_REPLICA : SIDE_VIEW;
	char *at = m->base + k * GAIA_CHUNK;
	bool showed = c->shown[other];
	int err;

	if (m->gone)
		return -EINVAL;
	if (c->shown[side] || !c->placed[side])
		return 0;
	err = map_again(at, s->at[side] + k * GAIA_CHUNK);
	c->shown[other] = false;
	c->shown[side] = !err;
	if (!err)
		return 0;
	if (showed && !map_again(at, s->at[other] + k * GAIA_CHUNK))
		c->shown[other] = true;
	else
		(void)chunks_clear(at, 1);
	return err == -EINVAL ? -ENOMEM : err;
}

const struct kind_ops host_kind = {
	.kind = "host",
	.reserve = host_reserve,
	.unreserve = host_unreserve,
	.place = host_place,
	.clear = host_clear,
	.detects_stores = true,
	.detect_make = host_detect_make,
	.detect = host_detect,
};
