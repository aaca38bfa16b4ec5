/*
 * strips.h - how far two neighbouring images are apart: phase correlation (Kuglin, Hines 1975) of the strips in which they overlap.
 *
 * The strips' Fourier transforms (transform.h) differ by a phase that turns with the frequency; what turns like that is a peak at the
 * shift. The place of the peak is a pair of integers, however sums are rounded, and is compared with the one that the images were
 * made with.
 */
#ifndef EXAMPLE_STRIPS_H
#define EXAMPLE_STRIPS_H

#include "micrograph.h"
#include "transform.h"

#define NOISE 8 /* of a pixel: its variance, roughly */

/* Two strips of an owner; each of long_side rows of short_side numbers. */
struct strips {
	const unsigned char *tiles[2]; /* the images */
	uint32_t side, short_side, long_side;
	bool below;		       /* the second is below the first; else to its right */
	const double *window;	       /* of long_side numbers, then of short_side: 0 at the edges */
	struct transform transform;
};

/* One number of a strip: the end of the first image, the beginning of the second. */
BOTH static inline void load_number(const struct strips *s, int which, size_t i)
{
	uint32_t along = (uint32_t)(i / s->short_side), across = (uint32_t)(i % s->short_side);
	uint32_t at = which ? across : s->side - s->short_side + across;
	uint32_t pixel = s->below ? at * s->side + along : along * s->side + at;

	s->transform.numbers[which][i] = (s->tiles[which][pixel] - 128.0) * s->window[along] * s->window[s->long_side + across];
}

KERNEL_OR_CPU(load_first, struct strips)
{
	load_number(a, 0, i);
}
KERNEL_OR_CPU(load_second, struct strips)
{
	load_number(a, 1, i);
}

/* The second's wave, turned back by the first's, with length 1; shorter where both are hardly more than the camera's noise. */
KERNEL_OR_CPU(cross, struct strips)
{
	struct complex_number first = a->transform.wave[0][i], second = a->transform.wave[1][i], c;
	double length;

	c.re = first.re * second.re + first.im * second.im;
	c.im = first.re * second.im - first.im * second.re;
	length = sqrt(c.re * c.re + c.im * c.im) + NOISE * a->long_side * a->short_side;
	a->transform.wave[0][i].re = c.re / length;
	a->transform.wave[0][i].im = c.im / length;
}

/* Of one owner. @own: without a library. Not thread-safe. */
static inline void strips_new(struct strips *s, uint32_t side, bool on_cpu, bool own)
{
	size_t window_size;
	double *window;

	memset(s, 0, sizeof(*s));
	s->side = s->long_side = side;
	s->short_side = (uint32_t)overlap_of(side);
	window_size = (s->long_side + s->short_side) * sizeof(*window);
	window = (double *)own_memory(window_size);
	for (uint32_t i = 0; i < s->long_side + s->short_side; i++) {
		bool is_long = i < s->long_side;
		double part = is_long ? (i + 0.5) / s->long_side : (i - s->long_side + 0.5) / s->short_side;

		window[i] = 4 * part * (1 - part);
	}
	s->window = (double *)alloc_on(on_cpu, window_size);
	copy_on(on_cpu, (void *)s->window, window, window_size);
	free(window);
	transform_new(&s->transform, s->short_side, s->long_side, on_cpu, own);
}

static inline void strips_free(struct strips *s)
{
	free_on(s->transform.on_cpu, (void *)s->window);
	transform_free(&s->transform);
}

/* Where the second image is, from the first. @host: room for a strip, in host memory. */
static inline struct place shift_of(struct strips *s, const unsigned char *first, const unsigned char *second, bool below, double *host)
{
	size_t numbers = (size_t)s->long_side * s->short_side;
	struct transform *t = &s->transform;
	int across = 0, along = 0, most;
	double best = -1e300;
	struct place place;

	s->tiles[0] = first;
	s->tiles[1] = second;
	s->below = below;
	LAUNCH_ON(t->on_cpu, load_first, numbers, s);
	LAUNCH_ON(t->on_cpu, load_second, numbers, s);
	transform_forward(t);
	LAUNCH_ON(t->on_cpu, cross, t->waves, s);
	transform_back(t);
	copy_on(t->on_cpu, host, t->numbers[0], numbers * sizeof(*host));
	/* The table misses by no more than this, from image to image. What is negative is found at the end. */
	most = 2 * (int)most_off(s->side);
	for (int y = -most; y <= most; y++) {
		for (int x = -most; x <= most; x++) {
			size_t at = (size_t)((y + (int)s->long_side) % (int)s->long_side) * s->short_side +
				    (size_t)((x + (int)s->short_side) % (int)s->short_side);

			if (host[at] > best) {
				best = host[at];
				across = x;
				along = y;
			}
		}
	}
	across = (int)(s->side - s->short_side) - across;
	place.x = below ? -along : across;
	place.y = below ? across : -along;
	return place;
}

#endif
