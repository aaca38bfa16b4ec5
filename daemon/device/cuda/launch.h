/*
 * launch.h - starting the kernels: the boundary between code for nvcc and code for gcc.
 */
#ifndef GAIA_DEVICE_CUDA_LAUNCH_H
#define GAIA_DEVICE_CUDA_LAUNCH_H

#include <cuda.h>

#include "device/cuda/page.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C"
#endif
/*
 * Queue the kernel of @kind over all pages of @n_items items, @n_pages in all. @items and @changed
 * are addresses of the device. DEV_FIND_CHANGED sets a byte of @changed for each page, 0 or 1.
 */
CUresult cuda_launch(enum dev_kind kind, const struct page_item *items, uint32_t n_items,
		     uint32_t n_pages, uint8_t *changed, CUstream stream);

#endif
