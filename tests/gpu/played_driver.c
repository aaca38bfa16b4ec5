/*
 * played_driver.c - in the place of daemon/device/cuda/driver.c: the daemon's driver is the fake one.
 *
 * An object that is named when a program is linked is taken before one of a library.
 */
#include <stddef.h>

#include "device/cuda/api.h"
#include "fake_cuda_api.h"

const struct cuda_api *cuda_driver(const char **why)
{
	const struct cuda_api *api = fake_cuda_api();

	*why = "the fake driver does not start";
	return api->cuInit(0) == CUDA_SUCCESS ? api : NULL;
}
