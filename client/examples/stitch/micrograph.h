/*
 * micrograph.h - the file of a microscope's images, and their generator.
 *
 * A microscope takes an image, moves its table a little less far than the image is wide, and takes the next. Where the table really
 * went is known only roughly. TILES begins with a page that has a struct set_head; then come, in whole pages, 4 bytes for each image,
 * the last update that took it; and then the images, row by row, side * side bytes each, one a pixel, in whole pages. An update
 * takes some images anew: the same places, with other noise.
 */
#ifndef EXAMPLE_MICROGRAPH_H
#define EXAMPLE_MICROGRAPH_H

#include "../shared/epoch.h"

#define SET_MAGIC 0x7374697463682d31u

struct set_head {
	struct epoch_head epochs;
	uint64_t columns, rows; /* images */
	uint64_t side;		/* pixels; a multiple of 4 */
};

/* Where an image is, in pixels. */
struct place {
	int32_t x, y;
};

static inline size_t tile_stride(uint64_t side)
{
	return round_up(side * side, PAGE);
}

static inline size_t tile_at(const struct set_head *set, uint64_t tile)
{
	return PAGE + round_up(set->epochs.items * 4, PAGE) + tile * tile_stride(set->side);
}

static inline uint32_t *versions_of(void *file)
{
	return (uint32_t *)((char *)file + PAGE);
}

/* How wide neighbours overlap, when the table misses nothing. */
static inline uint64_t overlap_of(uint64_t side)
{
	return side / 4;
}

/* By how many pixels the table misses at most, each way. */
BOTH static inline uint32_t most_off(uint64_t side)
{
	return (uint32_t)side / 32;
}

static inline struct place true_place(const struct set_head *set, uint64_t tile)
{
	uint64_t random = mix(set->epochs.seed ^ mix(tile)), step = set->side - overlap_of(set->side);
	struct place place;

	place.x = (int32_t)(tile % set->columns * step + random % (2 * most_off(set->side) + 1));
	place.y = (int32_t)(tile / set->columns * step + random / 1024 % (2 * most_off(set->side) + 1));
	return place;
}

/* Random numbers that belong to points. */
static inline uint64_t at_point(uint64_t seed, int x, int y)
{
	return mix(seed ^ mix((uint64_t)(uint32_t)x | (uint64_t)(uint32_t)y << 32));
}

static inline int bend(int part)
{
	return part * part / 256 * (768 - 2 * part) / 256;
}

/* Add something smooth, from 0 to 255 / @by, with features of @size pixels. */
static inline void add_smooth(int *values, uint64_t seed, struct place from, int side, int size, int by)
{
	for (int y = 0; y < side; y++) {
		int at_y = (from.y + y) / size, part_y = bend((from.y + y) % size * 256 / size), left = 0, right = 0, last = -1;

		for (int x = 0; x < side; x++) {
			int at_x = (from.x + x) / size, part_x = bend((from.x + x) % size * 256 / size);

			if (at_x != last) {
				left = (int)(at_point(seed, at_x, at_y) & 255) * (256 - part_y) +
				       (int)(at_point(seed, at_x, at_y + 1) & 255) * part_y;
				right = (int)(at_point(seed, at_x + 1, at_y) & 255) * (256 - part_y) +
					(int)(at_point(seed, at_x + 1, at_y + 1) & 255) * part_y;
				last = at_x;
			}
			values[y * side + x] += (left * (256 - part_x) + right * part_x) / 65536 / by;
		}
	}
}

/* A cell, with a rim and a nucleus. Some places have none. */
static inline void add_cell(int *values, uint64_t seed, struct place from, int side, int column, int row)
{
	uint64_t cell = at_point(seed, column, row);
	int mid_x = column * 44 + (int)(cell % 44) - from.x, mid_y = row * 44 + (int)(cell / 64 % 44) - from.y;
	int radius = 12 + (int)(cell >> 16 & 15), inner = (radius - 3) * (radius - 3);

	if (cell >> 24 & 1)
		return;
	for (int y = mid_y > radius ? mid_y - radius : 0; y <= mid_y + radius && y < side; y++) {
		for (int x = mid_x > radius ? mid_x - radius : 0; x <= mid_x + radius && x < side; x++) {
			int far = (x - mid_x) * (x - mid_x) + (y - mid_y) * (y - mid_y);

			if (far <= radius * radius)
				values[y * side + x] -= (far > inner ? 70 : 25 + (int)(cell >> 28 & 15)) +
							(far < radius * radius / 9 ? 50 : 0);
		}
	}
}

/* Fine grain, a little soft: without, there would be nothing between the cells to find a place by. */
static inline void add_grain(int *values, uint64_t seed, struct place from, int side)
{
	int *row = (int *)own_memory(2 * (size_t)(side + 1) * sizeof(*row));

	for (int y = 0; y <= side; y++) {
		int *now = row + y % 2 * (side + 1), *before = row + (y + 1) % 2 * (side + 1);

		for (int x = 0; x <= side; x++)
			now[x] = (int)(at_point(seed, from.x + x, from.y + y) % 19) - 9;
		for (int x = 0; x < side && y; x++)
			values[(y - 1) * side + x] += (now[x] + now[x + 1] + before[x] + before[x + 1]) * 2 / 3;
	}
	free(row);
}

/* The image @tile as the update @version took it. */
static inline void make_tile(const struct set_head *set, uint64_t tile, uint64_t version, unsigned char *pixels)
{
	uint64_t seed = set->epochs.seed, noise = mix(seed + mix(tile ^ version << 32));
	struct place from = true_place(set, tile);
	int side = (int)set->side, *values = (int *)own_memory((size_t)side * (size_t)side * sizeof(*values));

	add_smooth(values, seed, from, side, 160, 8);
	add_smooth(values, seed + 1, from, side, 23, 10);
	add_grain(values, seed + 2, from, side);
	for (int row = from.y / 44 - 2; row <= (from.y + side) / 44 + 1; row++)
		for (int column = from.x / 44 - 2; column <= (from.x + side) / 44 + 1; column++)
			add_cell(values, seed + 3, from, side, column, row);
	for (int i = 0; i < side * side; i++) {
		int value = 150 + values[i] + (int)(mix(noise + (uint64_t)i) % 9) - 4;

		pixels[i] = (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
	}
	free(values);
}

static inline void apply_to_set(void *file, uint64_t update)
{
	const struct set_head *set = (const struct set_head *)file;
	uint64_t n = epoch_changes(&set->epochs);

	for (uint64_t k = 0; k < n; k++) {
		uint64_t tile = epoch_item(&set->epochs, update, k);

		versions_of(file)[tile] = (uint32_t)update;
		make_tile(set, tile, update, (unsigned char *)file + tile_at(set, tile));
	}
}

static inline void make_set(const char *path, uint64_t columns, uint64_t rows, uint64_t side, uint64_t seed)
{
	unsigned char *pixels = (unsigned char *)own_memory(side * side);
	int fd = open_file(path, O_RDWR | O_CREAT | O_TRUNC);
	struct set_head set;

	memset(&set, 0, sizeof(set));
	set.epochs.magic = SET_MAGIC;
	set.epochs.seed = seed;
	set.epochs.items = columns * rows;
	set.columns = columns;
	set.rows = rows;
	set.side = side;
	if (ftruncate(fd, (off_t)tile_at(&set, columns * rows)))
		err(1, "%s", path);
	for (uint64_t tile = 0; tile < columns * rows; tile++) {
		make_tile(&set, tile, 0, pixels);
		write_all(fd, pixels, side * side, tile_at(&set, tile));
		progress("image %" PRIu64 " of %" PRIu64, tile, columns * rows);
	}
	write_all(fd, &set, sizeof(set), 0);
	close(fd);
	free(pixels);
	end_progress();
}

#endif
