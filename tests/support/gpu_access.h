/*
 * gpu_access.h - device memory for tests whose "kernels" are CPU code: on a GPU they copy instead.
 *
 * With GAIAFS_TEST_CUDA in the environment the first device of a test's mounts is GPU 0, and the
 * others, if there are several, are simulated. The process that first copies loads the
 * driver, and must not be forked after that.
 */
#ifndef GAIA_TESTS_GPU_ACCESS_H
#define GAIA_TESTS_GPU_ACCESS_H

#include <stdbool.h>
#include <stddef.h>

/* Whether device number @device of a mount is a GPU. */
bool gpu_is(unsigned device);

/* The value of --device for device number @device of @size ("4M"; NULL: 256M). */
const char *gpu_option(unsigned device, const char *size, char out[64]);

/* Copy; complete on return. Either address may be of the GPU. 0 or EFAULT. */
int gpu_copy(void *to, const void *from, size_t n);

#endif
