/*
 * cuda_transform.h - the strips' Fourier transforms by cuFFT, on the thread's current GPU. Whatever fails ends the program.
 */
#ifndef EXAMPLE_CUDA_TRANSFORM_H
#define EXAMPLE_CUDA_TRANSFORM_H

#include "../shared/cuda_device.h"

#include <cufft.h>

struct cufft_plans {
	cufftHandle forward, back;
};

static inline void cufft_plans_new(struct cufft_plans *plans, uint32_t rows, uint32_t columns)
{
	if (cufftPlan2d(&plans->forward, (int)rows, (int)columns, CUFFT_D2Z) || cufftPlan2d(&plans->back, (int)rows, (int)columns, CUFFT_Z2D))
		errx(1, "cuFFT can make no plan");
}

static inline void cufft_plans_free(struct cufft_plans *plans)
{
	cufftDestroy(plans->forward);
	cufftDestroy(plans->back);
}

/* @waves: pairs of numbers, for columns / 2 + 1 columns. */
static inline void cufft_forward(const struct cufft_plans *plans, double *numbers, void *waves)
{
	if (cufftExecD2Z(plans->forward, numbers, (cufftDoubleComplex *)waves))
		errx(1, "cuFFT cannot transform");
	CUDA(cudaDeviceSynchronize());
}

static inline void cufft_back(const struct cufft_plans *plans, void *waves, double *numbers)
{
	if (cufftExecZ2D(plans->back, (cufftDoubleComplex *)waves, numbers))
		errx(1, "cuFFT cannot transform");
	CUDA(cudaDeviceSynchronize());
}

#endif
