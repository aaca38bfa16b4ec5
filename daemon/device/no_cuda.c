/*
 * no_cuda.c - stands in for cuda/ in builds without CUDA.
 */
#include <errno.h>

#include "base/log.h"
#include "device/device.h"

static const char without[] = "this build of gaiafs has no CUDA";

int device_cuda_create(const struct cuda_config *config, struct device **out)
{
	log_error("device cuda%u: %s (it was built without nvcc)", config->index, without);
	return -ENODEV;
}

unsigned device_cuda_count(const char **why)
{
	*why = without;
	return 0;
}
