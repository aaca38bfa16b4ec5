/*
 * match.h - which tile stands for which block of the picture: what the device does, what another owner of blocks does on the CPU,
 * and the reference.
 *
 * A block's candidates are those whose keys are nearest to its own in the index. Of these it takes the one whose small picture
 * differs least, and of equals the one with the lowest number. Which pages of TILES that needs is known only when the index has
 * been looked at: pass 1 marks them, so that they come by one acquire, and pass 2 compares.
 */
#ifndef EXAMPLE_MATCH_H
#define EXAMPLE_MATCH_H

#include "tiles.h"

#define NONE_YET UINT64_MAX

/* What it takes to look for tiles; in the memory of whoever looks. */
struct picture {
	const unsigned char *pixels; /* of 3 bytes */
	uint32_t columns, rows;	     /* of blocks */
	const uint64_t *index;
	uint32_t tiles, candidates;
};

struct job {
	struct picture picture;
	uint32_t part, parts;	      /* blocks of this owner: part, part + parts... */
	uint32_t *wanted;	      /* a bit for each tile */
	uint64_t *best;		      /* of each of its blocks: difference << 32 | tile */
	const struct tile *tiles;     /* of which those from @first to below @end may be touched, where they are wanted */
	uint32_t first, end;
	unsigned char *out;	      /* the collage */
};

BOTH static inline void get_block(const struct picture *p, uint32_t block, unsigned char *small)
{
	size_t row = (size_t)p->columns * SMALL * 3;
	const unsigned char *from = p->pixels + block / p->columns * SMALL * row + block % p->columns * SMALL * 3;

	for (uint32_t y = 0; y < SMALL; y++)
		for (uint32_t x = 0; x < SMALL * 3; x++)
			small[y * SMALL * 3 + x] = from[y * row + x];
}

/* Where in the index a block's candidates begin. */
BOTH static inline uint32_t candidates_of(const struct picture *p, const unsigned char *small)
{
	uint64_t key = (uint64_t)key_of(small) << 32;
	uint32_t low = 0, high = p->tiles;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (p->index[middle] < key)
			low = middle + 1;
		else
			high = middle;
	}
	low = low > p->candidates / 2 ? low - p->candidates / 2 : 0;
	return low + p->candidates > p->tiles ? p->tiles - p->candidates : low;
}

BOTH static inline uint32_t difference(const unsigned char *a, const unsigned char *b)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < SMALL * SMALL * 3; i++)
		sum += (uint32_t)(a[i] < b[i] ? b[i] - a[i] : a[i] - b[i]);
	return sum;
}

BOTH static inline void put_tile(const struct picture *p, unsigned char *out, uint32_t block, const struct tile *t)
{
	size_t row = (size_t)p->columns * SIDE * 3;
	unsigned char *to = out + block / p->columns * SIDE * row + block % p->columns * SIDE * 3;

	for (uint32_t y = 0; y < SIDE; y++)
		for (uint32_t x = 0; x < SIDE * 3; x++)
			to[y * row + x] = t->pixels[y * SIDE * 3 + x];
}

/* How many blocks the owner has. */
static inline size_t blocks_of(const struct job *job)
{
	size_t all = (size_t)job->picture.columns * job->picture.rows;

	return all / job->parts + (job->part < all % job->parts);
}

BOTH static inline void match_block(const struct job *a, size_t i)
{
	uint32_t block = a->part + (uint32_t)i * a->parts, first;
	uint64_t best = a->best[i];
	unsigned char small[SMALL * SMALL * 3];

	get_block(&a->picture, block, small);
	first = candidates_of(&a->picture, small);
	for (uint32_t k = 0; k < a->picture.candidates; k++) {
		uint32_t tile = (uint32_t)a->picture.index[first + k];

		if (tile >= a->first && tile < a->end) {
			uint64_t found = (uint64_t)difference(small, a->tiles[tile].small) << 32 | tile;

			best = found < best ? found : best;
		}
	}
	if (best == a->best[i])
		return;
	a->best[i] = best;
	put_tile(&a->picture, a->out, block, &a->tiles[(uint32_t)best]);
}

/* Pass 1, of each block. */
KERNEL(mark, struct job)
{
	unsigned char small[SMALL * SMALL * 3];
	uint32_t first;

	get_block(&a->picture, a->part + (uint32_t)i * a->parts, small);
	first = candidates_of(&a->picture, small);
	for (uint32_t k = 0; k < a->picture.candidates; k++) {
		uint32_t tile = (uint32_t)a->picture.index[first + k];

		device_or(&a->wanted[tile / 32], 1u << tile % 32);
	}
}

/* Pass 2, of each block, once for each window of TILES. */
KERNEL(match, struct job)
{
	match_block(a, i);
}

/* ---- the reference: tiles made anew, and nothing shared ---- */

struct reference {
	struct picture picture;
	struct epoch_head head;
	uint32_t *versions; /* of each tile, after so many updates */
	uint64_t updates;
	unsigned char *out;
};

/* @path: of the tiles, in whose file an update may be under way. */
static inline void reference_open(struct reference *r, const struct picture *picture, const char *path)
{
	int fd = open_file(path, O_RDONLY);
	uint64_t start = now_ns();
	struct epoch_head after;

	r->picture = *picture;
	r->versions = (uint32_t *)own_memory(picture->tiles * 4);
	r->out = (unsigned char *)own_memory((size_t)picture->columns * picture->rows * SIDE * SIDE * 3);
	do {
		if (now_ns() - start > EPOCH_PATIENCE_NS)
			errx(1, "%s: updates leave no time to read it", path);
		read_all(fd, &r->head, sizeof(r->head), 0);
		for (uint32_t i = 0; i < picture->tiles && r->head.epoch; i++)
			read_all(fd, &r->versions[i], 4, (i + (size_t)1) * PAGE + offsetof(struct tile, version));
		read_all(fd, &after, sizeof(after), 0);
	} while (r->head.epoch % 2 || after.epoch != r->head.epoch);
	r->updates = r->head.epoch / 2;
	close(fd);
}

static inline const unsigned char *reference_collage(struct reference *r, uint64_t updates)
{
	uint32_t blocks = r->picture.columns * r->picture.rows;
	unsigned char small[SMALL * SMALL * 3];

	for (; r->updates < updates; r->updates++)
		for (uint64_t n = epoch_changes(&r->head), k = 0; k < n; k++)
			r->versions[epoch_item(&r->head, r->updates + 1, k)] = (uint32_t)r->updates + 1;
	for (uint32_t block = 0; block < blocks; block++) {
		struct tile t, best;
		uint64_t least = NONE_YET;
		uint32_t first;

		get_block(&r->picture, block, small);
		first = candidates_of(&r->picture, small);
		for (uint32_t k = 0; k < r->picture.candidates; k++) {
			uint32_t number = (uint32_t)r->picture.index[first + k];
			uint64_t found;

			make_tile(&t, r->head.seed, number, r->versions[number]);
			found = (uint64_t)difference(small, t.small) << 32 | number;
			if (found < least) {
				least = found;
				best = t;
			}
		}
		put_tile(&r->picture, r->out, block, &best);
		progress("reference: block %u of %u", block, blocks);
	}
	return r->out;
}

static inline void reference_close(struct reference *r)
{
	free(r->versions);
	free(r->out);
}

#endif
