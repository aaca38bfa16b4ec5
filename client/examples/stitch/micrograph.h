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

/* From 0 to 255: smooth, with features of @size pixels. */
static inline int smooth(uint64_t seed, int x, int y, int size)
{
	int at_x = x / size, at_y = y / size, part_x = x % size * 256 / size, part_y = y % size * 256 / size, corner[4];

	for (int i = 0; i < 4; i++)
		corner[i] = (int)(mix(seed ^ mix((uint64_t)(at_x + i % 2) | (uint64_t)(at_y + i / 2) << 32)) & 255);
	part_x = part_x * part_x / 256 * (768 - 2 * part_x) / 256;
	part_y = part_y * part_y / 256 * (768 - 2 * part_y) / 256;
	return ((corner[0] * (256 - part_x) + corner[1] * part_x) * (256 - part_y) +
		(corner[2] * (256 - part_x) + corner[3] * part_x) * part_y) / 65536;
}

/* What lies under the microscope: cells with a rim and a nucleus, on uneven ground. */
static inline int specimen(uint64_t seed, int x, int y)
{
	int value = 150 + smooth(seed, x, y, 160) / 8 + smooth(seed + 1, x, y, 23) / 10, grain = 0;

	/* Fine grain, a little soft: without, there would be nothing between the cells to find a place by. */
	for (int i = 0; i < 4; i++)
		grain += (int)(mix(seed ^ mix((uint64_t)(x + i % 2) | (uint64_t)(y + i / 2) << 32)) % 19) - 9;
	value += grain * 2 / 3;


	for (int near_y = y / 44 - 1; near_y <= y / 44 + 1; near_y++) {
		for (int near_x = x / 44 - 1; near_x <= x / 44 + 1; near_x++) {
			uint64_t cell = mix(seed ^ mix((uint64_t)(uint32_t)near_x | (uint64_t)(uint32_t)near_y << 32));
			int dx = x - near_x * 44 - (int)(cell % 44), dy = y - near_y * 44 - (int)(cell / 64 % 44);
			int radius = 12 + (int)(cell >> 16 & 15), far = dx * dx + dy * dy;

			if (cell >> 24 & 1 || far > radius * radius)
				continue;
			value -= far > (radius - 3) * (radius - 3) ? 70 : 25 + (int)(cell >> 28 & 15);
			if (far < radius * radius / 9)
				value -= 50;
		}
	}
	return value;
}

/* The image @tile as the update @version took it. */
static inline void make_tile(const struct set_head *set, uint64_t tile, uint64_t version, unsigned char *pixels)
{
	struct place place = true_place(set, tile);
	uint64_t side = set->side, noise = mix(set->epochs.seed + mix(tile ^ version << 32));

	for (uint64_t i = 0; i < side * side; i++) {
		int value = specimen(set->epochs.seed, place.x + (int)(i % side), place.y + (int)(i / side));

		value += (int)(mix(noise + i) % 9) - 4;
		pixels[i] = (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
	}
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
