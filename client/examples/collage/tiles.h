/*
 * tiles.h - the files of tiles, their generator, and the index by colour.
 *
 * TILES begins with a page that has a struct epoch_head (epoch.h); then each tile has a page: a struct tile. TILES.index has an entry
 * of 8 bytes for each tile, key << 32 | number of the tile, sorted. The key is made of the tile's mean colour, coarsely, so that
 * tiles that look alike at first sight are neighbours in the index, and anywhere in TILES. Updates change what tiles show and leave
 * their keys alone: the index is of the tiles as they were made.
 */
#ifndef EXAMPLE_TILES_H
#define EXAMPLE_TILES_H

#include <assert.h>

#include "../shared/epoch.h"

#define TILES_MAGIC 0x74696c65732d3130u
#define SIDE 32u  /* pixels of a tile, which are 3 bytes each */
#define SMALL 16u /* of the same at half its size, and of a block of the picture */

struct tile {
	uint32_t number, version; /* version: the last update that changed it */
	unsigned char small[SMALL * SMALL * 3];
	unsigned char unused[PAGE - 8 - SMALL * SMALL * 3 - SIDE * SIDE * 3];
	unsigned char pixels[SIDE * SIDE * 3];
};
static_assert(sizeof(struct tile) == PAGE, "a tile is a page");

static inline struct tile *tiles_of(void *file)
{
	return (struct tile *)((char *)file + PAGE);
}

static inline const char *index_path(const char *path)
{
	static char name[4096];

	snprintf(name, sizeof(name), "%s.index", path);
	return name;
}

/*
 * The mean colour of a small picture: three numbers of 5 bits, whose bits are interleaved, the highest first; then 8 bits of which
 * side is brighter. Neighbours in the order of keys are alike.
 */
BOTH static inline uint32_t key_of(const unsigned char *small)
{
	uint32_t sum[3] = { 0, 0, 0 }, left = 0, top = 0, all, key = 0;

	for (uint32_t at = 0; at < SMALL * SMALL; at++) {
		uint32_t light = (uint32_t)small[at * 3] + small[at * 3 + 1] + small[at * 3 + 2];

		for (int c = 0; c < 3; c++)
			sum[c] += small[at * 3 + c];
		left += at % SMALL < SMALL / 2 ? light : 0;
		top += at / SMALL < SMALL / 2 ? light : 0;
	}
	all = sum[0] + sum[1] + sum[2] + 1;
	for (int bit = 4; bit >= 0; bit--)
		for (int c = 0; c < 3; c++)
			key = key << 1 | ((sum[c] / (SMALL * SMALL) >> 3) >> bit & 1);
	return key << 8 | (uint32_t)((uint64_t)left * 15 / all) << 4 | (uint32_t)((uint64_t)top * 15 / all);
}

/* What tile @number shows after update @version: a slope from one colour to another, and a disc or a bar before it. */
static inline void make_tile(struct tile *t, uint64_t seed, uint32_t number, uint32_t version)
{
	uint64_t own = mix(seed ^ mix(number)), turn = mix(own + version), form = mix(turn);
	int from[3], to[3], shape[3], angle_x = (int)(turn % 64) - 32, angle_y = (int)(turn / 64 % 64) - 32;
	int mid_x = 6 + (int)(form % 20), mid_y = 6 + (int)(form / 32 % 20), width = 3 + (int)(form / 1024 % 8);
	bool disc = form >> 20 & 1, bare = form >> 21 & 1;

	memset(t, 0, sizeof(*t));
	t->number = number;
	t->version = version;
	for (int c = 0; c < 3; c++) {
		int base = (int)(own >> (c * 8) & 255), contrast = (int)(own >> 32 & 63);

		from[c] = base - contrast;
		to[c] = base + contrast;
		shape[c] = base + (int)(turn >> (16 + c * 8) & 127) - 64;
	}
	for (int y = 0; y < (int)SIDE; y++) {
		for (int x = 0; x < (int)SIDE; x++) {
			int along = 128 + ((x - 16) * angle_x + (y - 16) * angle_y) / 8, dx = x - mid_x, dy = y - mid_y;
			bool inside = !bare && (disc ? dx * dx + dy * dy < width * width : dx * angle_y - dy * angle_x < width * 8 &&
						dx * angle_y - dy * angle_x > -width * 8);

			along = along < 0 ? 0 : along > 256 ? 256 : along;
			for (int c = 0; c < 3; c++) {
				int value = inside ? shape[c] : (from[c] * (256 - along) + to[c] * along) / 256;

				t->pixels[(y * (int)SIDE + x) * 3 + c] = (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
			}
		}
	}
	for (uint32_t at = 0; at < SMALL * SMALL; at++) {
		const unsigned char *p = &t->pixels[(at / SMALL * 2 * SIDE + at % SMALL * 2) * 3];

		for (uint32_t c = 0; c < 3; c++)
			t->small[at * 3 + c] = (unsigned char)((p[c] + p[3 + c] + p[SIDE * 3 + c] + p[SIDE * 3 + 3 + c]) / 4);
	}
}

/* What an update does to the file. */
static inline void apply_to_tiles(void *file, uint64_t update)
{
	const struct epoch_head *head = (const struct epoch_head *)file;
	uint64_t n = epoch_changes(head);

	for (uint64_t k = 0; k < n; k++) {
		uint32_t number = (uint32_t)epoch_item(head, update, k);

		make_tile(&tiles_of(file)[number], head->seed, number, (uint32_t)update);
	}
}

static inline int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Make both files. */
static inline void make_tiles(const char *path, uint32_t n, uint64_t seed)
{
	uint64_t *index = (uint64_t *)own_memory((size_t)n * 8);
	int fd = open_file(path, O_RDWR | O_CREAT | O_TRUNC);
	struct epoch_head head = { TILES_MAGIC, 0, seed, n, 0, 1 };
	struct tile t;

	if (ftruncate(fd, (off_t)(n + (size_t)1) * PAGE))
		err(1, "%s", path);
	for (uint32_t i = 0; i < n; i++) {
		make_tile(&t, seed, i, 0);
		write_all(fd, &t, sizeof(t), (i + (size_t)1) * PAGE);
		index[i] = (uint64_t)key_of(t.small) << 32 | i;
		if (i % 1024 == 0)
			progress("tile %u of %u", i, n);
	}
	write_all(fd, &head, sizeof(head), 0);
	close(fd);
	qsort(index, n, 8, by_value);
	fd = open_file(index_path(path), O_RDWR | O_CREAT | O_TRUNC);
	write_all(fd, index, (size_t)n * 8, 0);
	close(fd);
	free(index);
	end_progress();
}

#endif
