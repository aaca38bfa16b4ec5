/*
 * strips.h - how far two neighbouring images are apart: phase correlation (Kuglin, Hines 1975) of the strips in which they overlap.
 *
 * The strips' Fourier transforms differ by a phase that turns with the frequency; what turns like that is a peak at the shift. FFTW
 * transforms, for the CPU and in the place of a device's library. The place of the peak is a pair of integers, however sums are
 * rounded, and is compared with the one that the images were made with.
 */
#ifndef EXAMPLE_STRIPS_H
#define EXAMPLE_STRIPS_H

#include "micrograph.h"

#include <fftw3.h>

#define NOISE 8 /* of a pixel: its variance, roughly */

struct complex_number {
	double re, im;
};

/* Two strips of an owner, in the memory where it works; each of long_side rows of short_side numbers. */
struct strips {
	const unsigned char *tiles[2]; /* the images */
	uint32_t side, short_side, long_side;
	bool below;		       /* the second is below the first; else to its right */
	const double *window;	       /* of long_side numbers, then of short_side: 0 at the edges */
	double *numbers[2];
	struct complex_number *waves[2];
	fftw_plan forward[2], back;
};

/* One number of a strip: the end of the first image, the beginning of the second. */
BOTH static inline void load_number(const struct strips *s, int which, size_t i)
{
	uint32_t along = (uint32_t)(i / s->short_side), across = (uint32_t)(i % s->short_side);
	uint32_t at = which ? across : s->side - s->short_side + across;
	uint32_t pixel = s->below ? at * s->side + along : along * s->side + at;

	s->numbers[which][i] = (s->tiles[which][pixel] - 128.0) * s->window[along] * s->window[s->long_side + across];
}

/* The second's wave, turned back by the first's, with length 1; shorter where both are hardly more than the camera's noise. */
BOTH static inline void cross_wave(const struct strips *s, size_t i)
{
	struct complex_number a = s->waves[0][i], b = s->waves[1][i], c;
	double length;

	c.re = a.re * b.re + a.im * b.im;
	c.im = a.re * b.im - a.im * b.re;
	length = __builtin_sqrt(c.re * c.re + c.im * c.im) + NOISE * s->long_side * s->short_side;
	s->waves[0][i].re = c.re / length;
	s->waves[0][i].im = c.im / length;
}

KERNEL(load_first, struct strips)
{
	load_number(a, 0, i);
}
KERNEL(load_second, struct strips)
{
	load_number(a, 1, i);
}
KERNEL(cross, struct strips)
{
	cross_wave(a, i);
}

/* Of one owner; the plans' makers are not thread-safe. */
static inline struct strips strips_new(uint32_t side)
{
	size_t numbers, waves;
	struct strips s;
	double *window;

	memset(&s, 0, sizeof(s));
	s.side = s.long_side = side;
	s.short_side = (uint32_t)overlap_of(side);
	numbers = (size_t)s.long_side * s.short_side;
	waves = s.long_side * (s.short_side / 2 + (size_t)1);
	window = (double *)own_memory((s.long_side + s.short_side) * sizeof(*window));
	for (uint32_t i = 0; i < s.long_side + s.short_side; i++) {
		bool is_long = i < s.long_side;
		double part = is_long ? (i + 0.5) / s.long_side : (i - s.long_side + 0.5) / s.short_side;

		window[i] = 4 * part * (1 - part);
	}
	s.window = (double *)device_alloc((s.long_side + s.short_side) * sizeof(*window));
	device_copy((void *)s.window, window, (s.long_side + s.short_side) * sizeof(*window));
	free(window);
	for (int k = 0; k < 2; k++) {
		s.numbers[k] = (double *)device_alloc(numbers * sizeof(double));
		s.waves[k] = (struct complex_number *)device_alloc(waves * sizeof(struct complex_number));
	}
	for (int k = 0; k < 2; k++)
		s.forward[k] = fftw_plan_dft_r2c_2d((int)s.long_side, (int)s.short_side, s.numbers[k], (fftw_complex *)s.waves[k],
						    FFTW_ESTIMATE);
	s.back = fftw_plan_dft_c2r_2d((int)s.long_side, (int)s.short_side, (fftw_complex *)s.waves[0], s.numbers[0], FFTW_ESTIMATE);
	if (!s.forward[0] || !s.forward[1] || !s.back)
		errx(1, "FFTW can make no plan");
	return s;
}

static inline void strips_free(struct strips *s)
{
	fftw_destroy_plan(s->forward[0]);
	fftw_destroy_plan(s->forward[1]);
	fftw_destroy_plan(s->back);
	for (int k = 0; k < 2; k++) {
		device_free(s->numbers[k]);
		device_free(s->waves[k]);
	}
	device_free((void *)s->window);
}

static inline void transform(struct strips *s)
{
	fftw_execute(s->forward[0]);
	fftw_execute(s->forward[1]);
}

static inline void transform_back(struct strips *s)
{
	fftw_execute(s->back);
}

/* Where the second image is, from the first. @host: room for a strip, in host memory. */
static inline struct place shift_of(struct strips *s, const unsigned char *first, const unsigned char *second, bool below, double *host)
{
	size_t numbers = (size_t)s->long_side * s->short_side;
	int across = 0, along = 0, most;
	double best = -1e300;
	struct place place;

	s->tiles[0] = first;
	s->tiles[1] = second;
	s->below = below;
	LAUNCH(load_first, numbers, s);
	LAUNCH(load_second, numbers, s);
	transform(s);
	LAUNCH(cross, s->long_side * (s->short_side / 2 + (size_t)1), s);
	transform_back(s);
	device_copy(host, s->numbers[0], numbers * sizeof(*host));
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
