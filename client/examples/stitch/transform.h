/*
 * transform.h - the Fourier transforms of two strips, and back: by FFTW on the CPU and by cuFFT on a GPU, where the program was built
 * with them; else, or if it is asked to, by kernels of its own, which need no library, take any length, and are slower.
 *
 * Sums are rounded in other ways by each of them. strips.h takes nothing from them but a place, a pair of integers.
 */
#ifndef EXAMPLE_TRANSFORM_H
#define EXAMPLE_TRANSFORM_H

#include "../shared/device.h"

#include <math.h>
#ifdef HAVE_FFTW
#include <fftw3.h>
#endif
#if defined(__CUDACC__) && defined(HAVE_CUFFT)
#include "cuda_transform.h"
#define WITH_CUFFT
#endif

struct complex_number {
	double re, im;
};

/* Of one owner: long_side rows of short_side numbers, in the memory where it works. */
struct transform {
	/* Constant. */
	uint32_t side[2]; /* short_side, long_side */
	bool on_cpu, own;
	size_t waves;	  /* so many; libraries leave out those that follow from others */
	struct complex_number *turns[2]; /* own: the roots of 1, of each side's order */
#ifdef HAVE_FFTW
	fftw_plan fftw[3]; /* forward: one for each strip; back */
#endif
#ifdef WITH_CUFFT
	struct cufft_plans cufft;
#endif

	/* The owner's thread. */
	double *numbers[2];
	struct complex_number *wave[2], *spare;
};

/*
 * One pass of our own, of all rows or all columns: Stockham's, in which results lie in order, as another array takes them. Transforms
 * of length @done, of every n / done-th element, become transforms of length done * radix.
 */
struct pass {
	const struct complex_number *from, *turns;
	struct complex_number *to;
	uint32_t n, step; /* the length; from one element to the next */
	uint32_t done, radix;
	bool back;
};

KERNEL_OR_CPU(one_pass, struct pass)
{
	uint32_t at = (uint32_t)(i / a->step % a->n), apart = a->n / (a->done * a->radix), wave = at / apart, first = at % apart;
	const struct complex_number *line = a->from + (i - (size_t)at * a->step);
	struct complex_number sum = { 0, 0 };

	for (uint32_t k = 0; k < a->radix; k++) {
		struct complex_number x = line[(size_t)(wave % a->done * apart * a->radix + first + apart * k) * a->step];
		struct complex_number turn = a->turns[(uint64_t)k * wave * apart % a->n];
		double im = a->back ? turn.im : -turn.im;

		sum.re += x.re * turn.re - x.im * im;
		sum.im += x.re * im + x.im * turn.re;
	}
	a->to[i] = sum;
}

struct widening {
	double *numbers;
	struct complex_number *waves;
};

KERNEL_OR_CPU(widen, struct widening)
{
	a->waves[i].re = a->numbers[i];
	a->waves[i].im = 0;
}
KERNEL_OR_CPU(narrow, struct widening)
{
	a->numbers[i] = a->waves[i].re;
}

/* The least divisor of @n but 1, and 4 before 2: passes are few then. */
static inline uint32_t radix_of(uint32_t n)
{
	uint32_t radix = n % 4 ? 2 : 4;

	while (n % radix)
		radix++;
	return radix;
}

static inline void own_transform(struct transform *t, int strip, bool back)
{
	size_t all = (size_t)t->side[0] * t->side[1];

	for (int direction = 0; direction < 2; direction++) {
		struct pass pass;

		memset(&pass, 0, sizeof(pass));
		pass.n = t->side[direction];
		pass.turns = t->turns[direction];
		pass.step = direction ? t->side[0] : 1;
		pass.back = back;
		for (pass.done = 1; pass.done < pass.n; pass.done *= pass.radix) {
			pass.radix = radix_of(pass.n / pass.done);
			pass.from = t->wave[strip];
			pass.to = t->spare;
			LAUNCH_ON(t->on_cpu, one_pass, all, &pass);
			t->spare = t->wave[strip];
			t->wave[strip] = pass.to;
		}
	}
}

static inline void own_turns(struct transform *t, int direction)
{
	uint32_t n = t->side[direction];
	struct complex_number *turns = (struct complex_number *)own_memory(n * sizeof(*turns));

	for (uint32_t k = 0; k < n; k++) {
		turns[k].re = cos(2 * M_PI * k / n);
		turns[k].im = sin(2 * M_PI * k / n);
	}
	t->turns[direction] = (struct complex_number *)alloc_on(t->on_cpu, n * sizeof(*turns));
	copy_on(t->on_cpu, t->turns[direction], turns, n * sizeof(*turns));
	free(turns);
}

/* Whether a library transforms there. */
static inline bool library_transforms(bool on_cpu)
{
	bool fftw = false, cufft = false;

#ifdef HAVE_FFTW
	fftw = true;
#endif
#ifdef WITH_CUFFT
	cufft = true;
#endif
#ifdef __CUDACC__
	return on_cpu ? fftw : cufft;
#else
	(void)on_cpu;
	(void)cufft;
	return fftw;
#endif
}

static inline void plan_by_library(struct transform *t)
{
#ifdef WITH_CUFFT
	if (!t->on_cpu) {
		cufft_plans_new(&t->cufft, t->side[1], t->side[0]);
		return;
	}
#endif
#ifdef HAVE_FFTW
	int rows = (int)t->side[1], columns = (int)t->side[0];

	for (int k = 0; k < 2; k++)
		t->fftw[k] = fftw_plan_dft_r2c_2d(rows, columns, t->numbers[k], (fftw_complex *)t->wave[k], FFTW_ESTIMATE);
	t->fftw[2] = fftw_plan_dft_c2r_2d(rows, columns, (fftw_complex *)t->wave[0], t->numbers[0], FFTW_ESTIMATE);
	if (!t->fftw[0] || !t->fftw[1] || !t->fftw[2])
		errx(1, "FFTW can make no plan");
#endif
	(void)t;
}

/* Not thread-safe: nor are FFTW's plans. */
static inline void transform_new(struct transform *t, uint32_t short_side, uint32_t long_side, bool on_cpu, bool own)
{
	size_t numbers = (size_t)short_side * long_side;

	memset(t, 0, sizeof(*t));
	t->side[0] = short_side;
	t->side[1] = long_side;
	t->on_cpu = on_cpu;
	t->own = own || !library_transforms(on_cpu);
	t->waves = t->own ? numbers : long_side * (short_side / 2 + (size_t)1);
	for (int k = 0; k < 2; k++) {
		t->numbers[k] = (double *)alloc_on(on_cpu, numbers * sizeof(double));
		t->wave[k] = (struct complex_number *)alloc_on(on_cpu, t->waves * sizeof(struct complex_number));
	}
	if (t->own) {
		t->spare = (struct complex_number *)alloc_on(on_cpu, numbers * sizeof(struct complex_number));
		own_turns(t, 0);
		own_turns(t, 1);
	} else {
		plan_by_library(t);
	}
}

static inline void transform_free(struct transform *t)
{
#ifdef HAVE_FFTW
	for (int k = 0; k < 3; k++)
		if (t->fftw[k])
			fftw_destroy_plan(t->fftw[k]);
#endif
#ifdef WITH_CUFFT
	if (!t->own && !t->on_cpu)
		cufft_plans_free(&t->cufft);
#endif
	for (int k = 0; k < 2; k++) {
		free_on(t->on_cpu, t->numbers[k]);
		free_on(t->on_cpu, t->wave[k]);
		if (t->own)
			free_on(t->on_cpu, t->turns[k]);
	}
	if (t->own)
		free_on(t->on_cpu, t->spare);
}

/* Of both strips: numbers to waves. */
static inline void transform_forward(struct transform *t)
{
	for (int k = 0; k < 2; k++) {
		struct widening widening = { t->numbers[k], t->wave[k] };

		if (t->own) {
			LAUNCH_ON(t->on_cpu, widen, t->waves, &widening);
			own_transform(t, k, false);
			continue;
		}
#ifdef WITH_CUFFT
		if (!t->on_cpu) {
			cufft_forward(&t->cufft, t->numbers[k], t->wave[k]);
			continue;
		}
#endif
#ifdef HAVE_FFTW
		fftw_execute(t->fftw[k]);
#endif
	}
}

/* Of the first: waves to numbers, all of them times short_side * long_side. */
static inline void transform_back(struct transform *t)
{
	if (t->own) {
		struct widening widening;

		own_transform(t, 0, true);
		widening.numbers = t->numbers[0];
		widening.waves = t->wave[0];
		LAUNCH_ON(t->on_cpu, narrow, t->waves, &widening);
		return;
	}
#ifdef WITH_CUFFT
	if (!t->on_cpu) {
		cufft_back(&t->cufft, t->wave[0], t->numbers[0]);
		return;
	}
#endif
#ifdef HAVE_FFTW
	fftw_execute(t->fftw[2]);
#endif
}

#endif
