/* gpu_ends.h - a GPU of the fake driver, when a test is over. */
#ifndef GAIA_TESTS_GPU_ENDS_H
#define GAIA_TESTS_GPU_ENDS_H

#include "device/device.h"
#include "fake_cuda_api.h"

static inline void nothing_is_left(void)
{
	fake_cuda_importers_gone();
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
	cr_assert_eq(fake_cuda_alive(true), 0);
	cr_assert_eq(fake_cuda_used(), 0);
}

static inline void must_free(struct devmem *mem)
{
	mem->dev->ops->free(mem->dev, mem);
}

#endif
