/*
 * canvas.h - the picture's pixels, from images whose places are known. Owners and the reference use the same arithmetic, on other
 * images and other places.
 */
#ifndef EXAMPLE_CANVAS_H
#define EXAMPLE_CANVAS_H

#include "../shared/device.h"
#include "micrograph.h"

/* Where all images are, and what is made of them. */
struct canvas {
	const unsigned char *tiles; /* the file */
	const struct place *places;
	uint32_t columns, rows, side, width, height;
	size_t stride;
	uint32_t from, to, top;	    /* of the picture: the owner's columns, and the first row to be made */
	unsigned char *out;
};

/* The mean of the images that show a pixel, rounded; 0: none does. */
BOTH static inline unsigned char pixel_of(const struct canvas *c, uint32_t x, uint32_t y)
{
	uint32_t step = c->side - c->side / 4, column = x / step, row = y / step, sum = 0, n = 0;

	for (uint32_t r = row ? row - 1 : 0; r <= row + 1 && r < c->rows; r++) {
		for (uint32_t k = column ? column - 1 : 0; k <= column + 1 && k < c->columns; k++) {
			size_t tile = (size_t)r * c->columns + k;
			uint32_t in_x = x - (uint32_t)c->places[tile].x, in_y = y - (uint32_t)c->places[tile].y;

			if (in_x < c->side && in_y < c->side) {
				sum += c->tiles[tile * c->stride + (size_t)in_y * c->side + in_x];
				n++;
			}
		}
	}
	return (unsigned char)(n ? (sum + n / 2) / n : 0);
}

KERNEL_OR_CPU(make, struct canvas)
{
	uint32_t wide = a->to - a->from, x = a->from + (uint32_t)(i % wide), y = a->top + (uint32_t)(i / wide);

	a->out[(size_t)y * a->width + x] = pixel_of(a, x, y);
}

/* So that the least of each coordinate is 0. */
static void begin_at_zero(struct place *places, size_t n)
{
	struct place least = places[0];

	for (size_t i = 1; i < n; i++) {
		least.x = places[i].x < least.x ? places[i].x : least.x;
		least.y = places[i].y < least.y ? places[i].y : least.y;
	}
	for (size_t i = 0; i < n; i++) {
		places[i].x -= least.x;
		places[i].y -= least.y;
	}
}

#endif
