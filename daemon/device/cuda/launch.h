/*
 * launch.h - starting the kernels: the boundary between code for nvcc and code for gcc.
 */
#ifndef GAIA_DEVICE_CUDA_LAUNCH_H
#define GAIA_DEVICE_CUDA_LAUNCH_H

#include <cuda.h>

#include "device/cuda/page.h"
#include "device/device.h"

/*
 * A kernel gets its items as parameters, which the launch copies: so no list is uploaded, and the caller may reuse its
 * list at once. There is a kernel for short lists, whose parameters are as small as those of any driver, and one for
 * long lists. (Up to 32,764 bytes are possible from CUDA 12.1 on; see driver.c.)
 */
#define LIST_SHORT 80u
#define LIST_LONG 512u
#define PARAMETER_BYTES(room) ((room) * sizeof(struct page_item) + 2 * sizeof(uint32_t) + sizeof(void *))

static inline uint32_t list_room(uint32_t n_items)
{
	return n_items <= LIST_SHORT ? LIST_SHORT : LIST_LONG;
}

#ifdef __cplusplus
extern "C"
#endif
/*
 * Queue the kernel of @kind (and @arm: see struct dev_op) over all pages of @n_items items, @n_pages in all. @items can be read up to
 * list_room(@n_items) of them. @changed is an address of the device: DEV_FIND_CHANGED writes a bit for each page, eight
 * a byte, the first of them the lowest, and zeros to the end of the last byte.
 */
CUresult cuda_launch(enum dev_kind kind, bool arm, const struct page_item *items, uint32_t n_items,
		     uint32_t n_pages, uint8_t *changed, CUstream stream);

#endif
