/*
 * scene.h - a picture to begin with, for those who give none: hills in the evening. Integers only, so it is the same everywhere.
 */
#ifndef EXAMPLE_SCENE_H
#define EXAMPLE_SCENE_H

#include "../shared/common.h"

/* From 0 to 255: smooth along x, a wave of each @period with its own height. */
static inline int wave(uint64_t seed, int x, int period)
{
	int at = x / period, part = x % period * 256 / period;
	int from = (int)(mix(seed ^ mix((uint64_t)at)) & 255), to = (int)(mix(seed ^ mix((uint64_t)at + 1)) & 255);

	part = part * part / 256 * (768 - 2 * part) / 256;
	return (from * (256 - part) + to * part) / 256;
}

static inline void blend(unsigned char *pixel, int red, int green, int blue, int part)
{
	const int with[3] = { red, green, blue };

	for (int c = 0; c < 3; c++)
		pixel[c] = (unsigned char)((pixel[c] * (256 - part) + with[c] * part) / 256);
}

/* The caller frees it. */
static inline unsigned char *make_scene(size_t width, size_t height, uint64_t seed)
{
	unsigned char *pixels = (unsigned char *)own_memory(width * height * 3);
	int sun_x = (int)(width * 2 / 3), sun_y = (int)(height * 2 / 5), radius = (int)(height / 9 + 1);

	for (int y = 0; y < (int)height; y++) {
		for (int x = 0; x < (int)width; x++) {
			unsigned char *pixel = &pixels[((size_t)y * width + (size_t)x) * 3];
			int depth = y * 256 / (int)height, dx = x - sun_x, dy = y - sun_y, away = dx * dx + dy * dy;
			int glow = radius * radius * 700 / (away + radius * radius);

			blend(pixel, 30 + depth / 2, 40 + depth / 3, 110, 256);
			blend(pixel, 255, 150, 60, depth * 3 / 4);
			blend(pixel, 255, 200, 90, glow > 256 ? 256 : glow);
			if (away < radius * radius)
				blend(pixel, 255, 244, 200, 256);
			/* Ranges of hills, the nearest last. */
			for (int range = 0; range < 4; range++) {
				int period = (int)width / (3 + range) + 1, rough = period / 5 + 1;
				int top = (int)height * (48 + range * 13) / 100 -
					  (wave(seed + (uint64_t)range, x, period) * 3 + wave(seed + 9 + (uint64_t)range, x, rough)) *
						  (int)height / 5500;

				if (y > top)
					blend(pixel, 96 - range * 24, 62 - range * 8, 104 - range * 22, 256 - (3 - range) * 30);
			}
		}
	}
	return pixels;
}

#endif
